/* SPDX-License-Identifier: Apache-2.0
 *
 * Upper, lower and title case as in Python's str: full mappings, where a character may become
 * several, and the final sigma. Categories and one-to-one mappings are utf8proc's; this file has
 * tables of Unicode 14 for the properties that utf8proc lacks.
 */
#include "point_ranges.h"
#include "template_parts.h"

#include <utf8proc.h>

/* ---- properties of characters ---- */

/* Digits that are not decimals (Numeric_Type=Digit): superscript, subscript, circled. */
static const nib_point_range other_digits[] = {
    {0xb2, 0xb3},       {0xb9, 0xb9},       {0x1369, 0x1371},   {0x19da, 0x19da},
    {0x2070, 0x2070},   {0x2074, 0x2079},   {0x2080, 0x2089},   {0x2460, 0x2468},
    {0x2474, 0x247c},   {0x2488, 0x2490},   {0x24ea, 0x24ea},   {0x24f5, 0x24fd},
    {0x24ff, 0x24ff},   {0x2776, 0x277e},   {0x2780, 0x2788},   {0x278a, 0x2792},
    {0x10a40, 0x10a43}, {0x10e60, 0x10e68}, {0x11052, 0x1105a}, {0x1f100, 0x1f10a},
};

/* Other_Lowercase and Other_Uppercase: cased characters outside Ll and Lu. */
static const nib_point_range other_lower[] = {
    {0xaa, 0xaa},       {0xba, 0xba},       {0x2b0, 0x2b8},     {0x2c0, 0x2c1},
    {0x2e0, 0x2e4},     {0x345, 0x345},     {0x37a, 0x37a},     {0x1d2c, 0x1d6a},
    {0x1d78, 0x1d78},   {0x1d9b, 0x1dbf},   {0x2071, 0x2071},   {0x207f, 0x207f},
    {0x2090, 0x209c},   {0x2170, 0x217f},   {0x24d0, 0x24e9},   {0x2c7c, 0x2c7d},
    {0xa69c, 0xa69d},   {0xa770, 0xa770},   {0xa7f8, 0xa7f9},   {0xab5c, 0xab5f},
    {0x10780, 0x10780}, {0x10783, 0x10785}, {0x10787, 0x107b0}, {0x107b2, 0x107ba},
};
static const nib_point_range other_upper[] = {
    {0x2160, 0x216f}, {0x24b6, 0x24cf}, {0x1f130, 0x1f149}, {0x1f150, 0x1f169}, {0x1f170, 0x1f189},
};

static utf8proc_category_t category(uint32_t point)
{
    return utf8proc_category((utf8proc_int32_t)point);
}

bool nib__point_is_digit(uint32_t point)
{
    return category(point) == UTF8PROC_CATEGORY_ND ||
           nib__point_among(other_digits, COUNT(other_digits), point);
}

bool nib__point_is_lower(uint32_t point)
{
    return category(point) == UTF8PROC_CATEGORY_LL ||
           nib__point_among(other_lower, COUNT(other_lower), point);
}

bool nib__point_is_upper(uint32_t point)
{
    return category(point) == UTF8PROC_CATEGORY_LU ||
           nib__point_among(other_upper, COUNT(other_upper), point);
}

bool nib__point_is_title(uint32_t point) { return category(point) == UTF8PROC_CATEGORY_LT; }

static bool is_cased(uint32_t point)
{
    return nib__point_is_lower(point) || nib__point_is_upper(point) || nib__point_is_title(point);
}

/* ---- mappings ---- */

/* From Unicode's SpecialCasing: characters whose uppercase is several characters. */
static const struct {
    uint16_t point, upper[3], title[3];
} special[] = {
    {0xdf, {0x53, 0x53}, {0x53, 0x73}},
    {0x149, {0x2bc, 0x4e}, {0x2bc, 0x4e}},
    {0x1f0, {0x4a, 0x30c}, {0x4a, 0x30c}},
    {0x390, {0x399, 0x308, 0x301}, {0x399, 0x308, 0x301}},
    {0x3b0, {0x3a5, 0x308, 0x301}, {0x3a5, 0x308, 0x301}},
    {0x587, {0x535, 0x552}, {0x535, 0x582}},
    {0x1e96, {0x48, 0x331}, {0x48, 0x331}},
    {0x1e97, {0x54, 0x308}, {0x54, 0x308}},
    {0x1e98, {0x57, 0x30a}, {0x57, 0x30a}},
    {0x1e99, {0x59, 0x30a}, {0x59, 0x30a}},
    {0x1e9a, {0x41, 0x2be}, {0x41, 0x2be}},
    {0x1f50, {0x3a5, 0x313}, {0x3a5, 0x313}},
    {0x1f52, {0x3a5, 0x313, 0x300}, {0x3a5, 0x313, 0x300}},
    {0x1f54, {0x3a5, 0x313, 0x301}, {0x3a5, 0x313, 0x301}},
    {0x1f56, {0x3a5, 0x313, 0x342}, {0x3a5, 0x313, 0x342}},
    {0x1fb2, {0x1fba, 0x399}, {0x1fba, 0x345}},
    {0x1fb3, {0x391, 0x399}, {0x1fbc}},
    {0x1fb4, {0x386, 0x399}, {0x386, 0x345}},
    {0x1fb6, {0x391, 0x342}, {0x391, 0x342}},
    {0x1fb7, {0x391, 0x342, 0x399}, {0x391, 0x342, 0x345}},
    {0x1fbc, {0x391, 0x399}, {0x1fbc}},
    {0x1fc2, {0x1fca, 0x399}, {0x1fca, 0x345}},
    {0x1fc3, {0x397, 0x399}, {0x1fcc}},
    {0x1fc4, {0x389, 0x399}, {0x389, 0x345}},
    {0x1fc6, {0x397, 0x342}, {0x397, 0x342}},
    {0x1fc7, {0x397, 0x342, 0x399}, {0x397, 0x342, 0x345}},
    {0x1fcc, {0x397, 0x399}, {0x1fcc}},
    {0x1fd2, {0x399, 0x308, 0x300}, {0x399, 0x308, 0x300}},
    {0x1fd3, {0x399, 0x308, 0x301}, {0x399, 0x308, 0x301}},
    {0x1fd6, {0x399, 0x342}, {0x399, 0x342}},
    {0x1fd7, {0x399, 0x308, 0x342}, {0x399, 0x308, 0x342}},
    {0x1fe2, {0x3a5, 0x308, 0x300}, {0x3a5, 0x308, 0x300}},
    {0x1fe3, {0x3a5, 0x308, 0x301}, {0x3a5, 0x308, 0x301}},
    {0x1fe4, {0x3a1, 0x313}, {0x3a1, 0x313}},
    {0x1fe6, {0x3a5, 0x342}, {0x3a5, 0x342}},
    {0x1fe7, {0x3a5, 0x308, 0x342}, {0x3a5, 0x308, 0x342}},
    {0x1ff2, {0x1ffa, 0x399}, {0x1ffa, 0x345}},
    {0x1ff3, {0x3a9, 0x399}, {0x1ffc}},
    {0x1ff4, {0x38f, 0x399}, {0x38f, 0x345}},
    {0x1ff6, {0x3a9, 0x342}, {0x3a9, 0x342}},
    {0x1ff7, {0x3a9, 0x342, 0x399}, {0x3a9, 0x342, 0x345}},
    {0x1ffc, {0x3a9, 0x399}, {0x1ffc}},
    {0xfb00, {0x46, 0x46}, {0x46, 0x66}},
    {0xfb01, {0x46, 0x49}, {0x46, 0x69}},
    {0xfb02, {0x46, 0x4c}, {0x46, 0x6c}},
    {0xfb03, {0x46, 0x46, 0x49}, {0x46, 0x66, 0x69}},
    {0xfb04, {0x46, 0x46, 0x4c}, {0x46, 0x66, 0x6c}},
    {0xfb05, {0x53, 0x54}, {0x53, 0x74}},
    {0xfb06, {0x53, 0x54}, {0x53, 0x74}},
    {0xfb13, {0x544, 0x546}, {0x544, 0x576}},
    {0xfb14, {0x544, 0x535}, {0x544, 0x565}},
    {0xfb15, {0x544, 0x53b}, {0x544, 0x56b}},
    {0xfb16, {0x54e, 0x546}, {0x54e, 0x576}},
    {0xfb17, {0x544, 0x53d}, {0x544, 0x56d}},
};

static nib_status put_point(nib_render *r, nib_builder *b, uint32_t point, bool user)
{
    char bytes[4];
    return nib__put(r, b, bytes, (size_t)nib__utf8_put(bytes, point), user);
}

static nib_status put_points(nib_render *r, nib_builder *b, const uint16_t points[3], bool user)
{
    for (int i = 0; i < 3 && points[i] != 0; i++)
        NIB_TRY(put_point(r, b, points[i], user));
    return NIB_OK;
}

static nib_status put_upper(nib_render *r, nib_builder *b, uint32_t point, bool title, bool user)
{
    if (point >= 0x1f80 && point <= 0x1faf && !title) { /* Greek with iota subscript */
        static const uint16_t rows[] = {0x1f08, 0x1f28, 0x1f68};
        NIB_TRY(put_point(r, b, rows[(point - 0x1f80) >> 4] | (point & 7), user));
        return put_point(r, b, 0x399, user);
    }
    for (size_t i = 0; point >= special[0].point && i < COUNT(special); i++) {
        if (special[i].point == point)
            return put_points(r, b, title ? special[i].title : special[i].upper, user);
    }
    const utf8proc_int32_t p = (utf8proc_int32_t)point;
    return put_point(r, b, (uint32_t)(title ? utf8proc_totitle(p) : utf8proc_toupper(p)), user);
}

/* Case_Ignorable: marks and the like, which the final-sigma rule skips. */
static bool is_ignored(uint32_t point)
{
    static const nib_point_range others[] = {
        {0xb7, 0xb7},     {0x387, 0x387},   {0x55f, 0x55f},   {0x5f4, 0x5f4},   {0x2018, 0x2019},
        {0x2024, 0x2024}, {0x2027, 0x2027}, {0xfe13, 0xfe13}, {0xfe52, 0xfe52}, {0xfe55, 0xfe55},
        {0xff07, 0xff07}, {0xff0e, 0xff0e}, {0xff1a, 0xff1a},
    };
    const utf8proc_category_t c = category(point);
    return c == UTF8PROC_CATEGORY_MN || c == UTF8PROC_CATEGORY_ME || c == UTF8PROC_CATEGORY_CF ||
           c == UTF8PROC_CATEGORY_LM || c == UTF8PROC_CATEGORY_SK || point == '\'' ||
           point == '.' || point == ':' || nib__point_among(others, COUNT(others), point);
}

/* Does the sigma at `at` end its word? A cased letter precedes it, at `from` or later, and none
 * follows. */
static bool is_final(const nib_string *s, size_t from, size_t at)
{
    bool before = false;
    for (size_t i = at; i > from && !before;) {
        i--;
        if (((unsigned char)s->at[i] & 0xc0) == 0x80)
            continue;
        const char *c = s->at + i;
        const uint32_t point = nib__utf8_next(&c);
        before = !is_ignored(point) && is_cased(point);
        if (!before && !is_ignored(point))
            return false;
    }
    for (const char *c = s->at + at + 2; before && c < s->at + s->size;) {
        const uint32_t point = nib__utf8_next(&c);
        if (!is_ignored(point))
            return !is_cased(point);
    }
    return before;
}

static nib_status put_lower(nib_render *r, nib_builder *b, const nib_string *s, size_t from,
                            size_t at, uint32_t point, bool user)
{
    if (point == 0x130) {
        NIB_TRY(put_point(r, b, 'i', user));
        return put_point(r, b, 0x307, user);
    }
    if (point == 0x3a3)
        return put_point(r, b, is_final(s, from, at) ? 0x3c2 : 0x3c3, user);
    return put_point(r, b, (uint32_t)utf8proc_tolower((utf8proc_int32_t)point), user);
}

/* Does Jinja's title filter start a word after this character? */
static bool separates_words(uint32_t point)
{
    return point == '-' || point == '(' || point == '{' || point == '[' || point == '<' ||
           nib__template_space(point);
}

nib_status nib__put_case(nib_render *r, nib_builder *b, const nib_string *s, nib_case as)
{
    bool first = true;
    /* where the final-sigma rule stops looking back: Jinja lowercases each word's rest alone */
    size_t from = 0;
    NIB_TRY(nib__run_steps(r, s->size / 16));
    for (size_t i = 0; i < s->size;) {
        const char *next = s->at + i;
        const bool user = s->marks != NULL ? s->marks[i] != 0 : s->user;
        const uint32_t point = nib__utf8_next(&next);
        const bool upper = as == NIB_UPPER || (as != NIB_LOWER && first);
        NIB_TRY(upper ? put_upper(r, b, point, as == NIB_STR_TITLE || as == NIB_CAPITALIZE, user)
                      : put_lower(r, b, s, from, i, point, user));
        first = as == NIB_STR_TITLE     ? !is_cased(point)
                : as == NIB_JINJA_TITLE ? separates_words(point)
                                        : false;
        i = (size_t)(next - s->at);
        if (as == NIB_JINJA_TITLE && upper)
            from = i;
    }
    return NIB_OK;
}
