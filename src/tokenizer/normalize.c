/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs the normalizers on a text. Also the alphabet of byte-level tokenizers.
 *
 * Canonical ordering is our own, because utf8proc sorts a run of combining marks in quadratic time,
 * and a text may be a single run. Decomposition and composition are utf8proc's.
 */
#include "point_ranges.h"
#include "tokenizer_parts.h"

#include <utf8proc.h>

/* ---- Unicode normalization forms ---- */

/* Hugging Face's tokenizers, which train the vocabularies, normalize by Unicode 9. These ranges
 * hold all marks and all decomposable characters that were added later: they stay unchanged, and
 * nothing moves or composes across them. Found by comparing both libraries for each character. */
static const nib_point_range LATER[] = {
    {0x7fd, 0x7fd},     {0x898, 0x8d3},     {0x9fe, 0x9fe},     {0xafa, 0xaff},
    {0xb55, 0xb55},     {0xc04, 0xc3c},     {0xcf3, 0xd00},     {0xd3b, 0xd3c},
    {0xd81, 0xd81},     {0xeba, 0xeba},     {0xece, 0xece},     {0x1715, 0x1715},
    {0x180f, 0x180f},   {0x1abf, 0x1ace},   {0x1cf7, 0x1cf7},   {0x1df6, 0x1dfa},
    {0x32ff, 0x32ff},   {0xa7f2, 0xa7f4},   {0xa82c, 0xa82c},   {0xa8ff, 0xa8ff},
    {0xab69, 0xab69},   {0x10781, 0x107ba}, {0x10d24, 0x10f85}, {0x11070, 0x11074},
    {0x110c2, 0x110c2}, {0x11145, 0x11146}, {0x111c9, 0x111c9}, {0x111ce, 0x111cf},
    {0x11241, 0x11241}, {0x1133b, 0x1133b}, {0x1145e, 0x1145e}, {0x1182c, 0x11a99},
    {0x11d31, 0x11f42}, {0x13440, 0x13455}, {0x16f4f, 0x16f4f}, {0x16f7f, 0x16f87},
    {0x16fe4, 0x16ff1}, {0x1cf00, 0x1cf46}, {0x1e030, 0x1e4ef}, {0x1f16c, 0x1f16c},
    {0x1fbf0, 0x1fbf9},
};

static bool is_after_unicode_9(uint32_t point)
{
    return point >= LATER[0].first && nib__point_among(LATER, COUNT(LATER), point);
}

typedef struct point_buffer {
    const nib_allocator *allocator;
    int32_t *at, *sorted;
    size_t count, capacity, sorted_capacity;
} point_buffer;

static bool decompose(point_buffer *p, const char *text, size_t size, utf8proc_option_t options)
{
    enum { LONGEST = 32 }; /* U+FDFA decomposes to 18 */
    const char *const end = text + size;
    int boundary = 0;
    p->count = 0;
    while (text < end) {
        const utf8proc_int32_t point = (utf8proc_int32_t)nib__utf8_next(&text);
        if (!nib__reserve(p->allocator, (void **)&p->at, &p->capacity, p->count + LONGEST,
                          sizeof *p->at))
            return false;
        const utf8proc_ssize_t made =
            utf8proc_decompose_char(point, p->at + p->count, LONGEST, options, &boundary);
        if (made < 0 || made > LONGEST)
            p->at[p->count++] = point; /* not assigned in utf8proc's Unicode: keep it */
        else
            p->count += (size_t)made;
    }
    return true;
}

static unsigned combining_class(int32_t point)
{
    return point < 0x300 ? 0 : (unsigned)utf8proc_get_property(point)->combining_class;
}

/* Sorts marks by class, stably: a counting sort, so that n marks cost n steps. */
static bool sort_marks(point_buffer *p, size_t start, size_t count)
{
    size_t places[257] = {0};
    if (!nib__reserve(p->allocator, (void **)&p->sorted, &p->sorted_capacity, count,
                      sizeof *p->sorted))
        return false;
    for (size_t i = 0; i < count; i++)
        places[(combining_class(p->at[start + i]) & 255) + 1]++;
    for (size_t c = 1; c < COUNT(places); c++)
        places[c] += places[c - 1];
    for (size_t i = 0; i < count; i++)
        p->sorted[places[combining_class(p->at[start + i]) & 255]++] = p->at[start + i];
    memcpy(p->at + start, p->sorted, count * sizeof *p->at);
    return true;
}

static bool order_marks(point_buffer *p)
{
    for (size_t i = 0; i < p->count;) {
        size_t end = i;
        bool sorted = true;
        unsigned last = 0;
        for (unsigned class; end < p->count && (class = combining_class(p->at[end])) != 0; end++) {
            sorted = sorted && class >= last;
            last = class;
        }
        if (!sorted && !sort_marks(p, i, end - i))
            return false;
        i = end == i ? i + 1 : end;
    }
    return true;
}

static bool normalize_part(point_buffer *p, const char *text, size_t size,
                           utf8proc_option_t options, nib_text *out)
{
    if (!decompose(p, text, size, options) || !order_marks(p))
        return false;
    size_t count = p->count;
    if (options & UTF8PROC_COMPOSE) {
        const utf8proc_ssize_t left = utf8proc_normalize_utf32(p->at, (utf8proc_ssize_t)count,
                                                               UTF8PROC_STABLE | UTF8PROC_COMPOSE);
        count = left < 0 ? count : (size_t)left;
    }
    for (size_t i = 0; i < count; i++) {
        char bytes[4];
        nib__text_put(out, bytes, (size_t)nib__utf8_put(bytes, (uint32_t)p->at[i]));
    }
    return true;
}

/* Copies runs of characters below `plain`, which do not change. The last one before a run that
 * needs work may compose with it, so it is normalized along unless it was added after Unicode 9. */
static bool normalize_form(const nib_allocator *a, const char *text, size_t size,
                           utf8proc_option_t options, uint32_t plain, nib_text *out)
{
    point_buffer p = {.allocator = a};
    const char *at = text, *const end = text + size, *start = text, *last = text;
    bool done = true;
    while (at < end && done) {
        const char *const here = at;
        const uint32_t point = nib__utf8_next(&at);
        if (point < plain || is_after_unicode_9(point)) {
            last = point < plain ? here : at;
            continue;
        }
        while (at < end) {
            const char *next = at;
            const uint32_t other = nib__utf8_next(&next);
            if (other < plain || is_after_unicode_9(other))
                break;
            at = next;
        }
        nib__text_put(out, start, (size_t)(last - start));
        done = normalize_part(&p, last, (size_t)(at - last), options, out);
        start = last = at;
    }
    nib__text_put(out, start, (size_t)(end - start));
    nib__release(a, p.at);
    nib__release(a, p.sorted);
    return done;
}

/* ---- the alphabet of byte-level tokenizers ---- */

/* Printable Latin-1 bytes stand for themselves; the others map to U+0100 and up, in order. */
static bool stands_for_itself(unsigned byte)
{
    return (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte != 0xad);
}

static uint32_t point_of_byte(unsigned byte)
{
    if (stands_for_itself(byte))
        return byte;
    if (byte <= 0x20)
        return 0x100 + byte;
    return byte == 0xad ? 0x143 : 0x121 + (byte - 0x7f);
}

int nib__byte_level_byte(uint32_t point)
{
    if (point < 0x100)
        return stands_for_itself(point) ? (int)point : -1;
    if (point <= 0x120)
        return (int)point - 0x100;
    if (point <= 0x142)
        return (int)point - 0x121 + 0x7f;
    return point == 0x143 ? 0xad : -1;
}

void nib__byte_level_put(nib_text *out, const char *text, size_t size)
{
    char bytes[128];
    size_t used = 0;
    for (size_t i = 0; i < size; i++) {
        if (used > sizeof bytes - 4) {
            nib__text_put(out, bytes, used);
            used = 0;
        }
        used += (size_t)nib__utf8_put(bytes + used, point_of_byte((unsigned char)text[i]));
    }
    nib__text_put(out, bytes, used);
}

/* ---- other normalizers ---- */

static void lowercase(const char *text, size_t size, nib_text *out)
{
    for (const char *const end = text + size; text < end;) {
        char bytes[4];
        const uint32_t point = nib__utf8_next(&text);
        if (point == 0x130) {
            /* the only character whose lower case is two code points */
            nib__text_put(out, "i\xcc\x87", 3);
            continue;
        }
        const uint32_t lower = (uint32_t)utf8proc_tolower((utf8proc_int32_t)point);
        nib__text_put(out, bytes, (size_t)nib__utf8_put(bytes, lower));
    }
}

static void strip_accents(const char *text, size_t size, nib_text *out)
{
    for (const char *const end = text + size; text < end;) {
        const char *const start = text;
        const uint32_t point = nib__utf8_next(&text);
        const utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)point);
        if (category < UTF8PROC_CATEGORY_MN || category > UTF8PROC_CATEGORY_ME ||
            is_after_unicode_9(point))
            nib__text_put(out, start, (size_t)(text - start));
    }
}

static void strip(const nib_normalizer *n, const char *text, size_t size, nib_text *out)
{
    const char *end = text + size;
    while (n->left && text < end) {
        const char *next = text;
        if (!nib__is_space(nib__utf8_next(&next)))
            break;
        text = next;
    }
    while (n->right && text < end) {
        const char *last = end - 1;
        while (((unsigned char)*last & 0xc0) == 0x80)
            last--;
        const char *at = last;
        if (!nib__is_space(nib__utf8_next(&at)))
            break;
        end = last;
    }
    nib__text_put(out, text, (size_t)(end - text));
}

/* Marks the replacement of a match if any byte of the match was marked. marks NULL: no marks. */
static void mark_match(nib_text *marks, const char *before, size_t copied, nib_text_range match,
                       size_t content_size)
{
    if (marks == NULL)
        return;
    const bool marked = memchr(before + match.start, 1, match.end - match.start) != NULL;
    nib__text_put(marks, before + copied, match.start - copied);
    for (size_t i = 0; i < content_size; i++)
        nib__text_put(marks, marked ? "\1" : "", 1);
}

static nib_status replace(nib_encoder *e, const nib_normalizer *n, const char *text, size_t size,
                          nib_text *out, nib_text *marks)
{
    size_t from = 0, last = SIZE_MAX, copied = 0;
    for (;;) {
        nib_text_range match;
        bool found;
        NIB_TRY(
            nib__find_next(&n->finder, &e->run, text, size, &from, &last, &match, &found, e->err));
        if (!found)
            break;
        nib__text_put(out, text + copied, match.start - copied);
        nib__text_put(out, n->content, n->content_size);
        mark_match(marks, e->piece_marks, copied, match, n->content_size);
        copied = match.end;
        NIB_TRY(nib__encoder_count_output(e, out, n->content_size, "a Replace"));
    }
    nib__text_put(out, text + copied, size - copied);
    if (marks != NULL)
        nib__text_put(marks, e->piece_marks + copied, size - copied);
    return NIB_OK;
}

static nib_status run_form(nib_encoder *e, const nib_normalizer *n, const char *text, size_t size,
                           nib_text *out)
{
    static const utf8proc_option_t options[] = {
        [NIB_NORMAL_NFC] = UTF8PROC_STABLE | UTF8PROC_COMPOSE,
        [NIB_NORMAL_NFD] = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE,
        [NIB_NORMAL_NFKC] = UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT,
        [NIB_NORMAL_NFKD] = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT,
    };
    /* No character below U+0300 changes under NFC, and no ASCII character under the others. */
    const uint32_t plain = n->kind == NIB_NORMAL_NFC ? 0x300 : 0x80;
    if (!normalize_form(&e->t->allocator, text, size, options[n->kind], plain, out))
        return nib__fail_memory(e->err, 4 * size, "a normalizer");
    return NIB_OK;
}

static nib_status run_normalizer(nib_encoder *e, const nib_normalizer *n, const char *text,
                                 size_t size, nib_text *out, nib_text *marks)
{
    switch (n->kind) {
    case NIB_NORMAL_LOWERCASE: lowercase(text, size, out); return NIB_OK;
    case NIB_NORMAL_STRIP: strip(n, text, size, out); return NIB_OK;
    case NIB_NORMAL_STRIP_ACCENTS: strip_accents(text, size, out); return NIB_OK;
    case NIB_NORMAL_PREPEND:
        nib__text_put(out, n->content, size == 0 ? 0 : n->content_size);
        nib__text_put(out, text, size);
        return NIB_OK;
    case NIB_NORMAL_REPLACE: return replace(e, n, text, size, out, marks);
    case NIB_NORMAL_BYTES: nib__byte_level_put(out, text, size); return NIB_OK;
    default: return run_form(e, n, text, size, out);
    }
}

/* Makes the marks of a normalizer's output. If the text changed and the normalizer does not track
 * which byte came from where, one marked byte marks the whole output. */
static nib_status update_marks(nib_encoder *e, const nib_normalizer *n, const char *text,
                               size_t size, const nib_text *made, nib_text *marks)
{
    const bool same = made->size == size && (size == 0 || memcmp(made->at, text, size) == 0);
    if (n->kind == NIB_NORMAL_PREPEND) {
        for (size_t i = size; i < made->size; i++)
            nib__text_put(marks, "", 1);
        nib__text_put(marks, e->piece_marks, size);
    } else if (n->kind != NIB_NORMAL_REPLACE && same) {
        nib__text_put(marks, e->piece_marks, size);
    } else if (n->kind != NIB_NORMAL_REPLACE) {
        const bool any = memchr(e->piece_marks, 1, size) != NULL;
        for (size_t i = 0; i < made->size; i++)
            nib__text_put(marks, any ? "\1" : "", 1);
    }
    e->piece_marks = marks->at == NULL ? "" : marks->at;
    return marks->failed ? nib__fail_memory(e->err, made->size, "the marks of user text") : NIB_OK;
}

nib_status nib__normalize(nib_encoder *e, const char *text, size_t size, const char **out,
                          size_t *out_size)
{
    for (size_t i = 0; i < e->t->normalizer_count; i++) {
        nib_text *made = &e->normal[i % 2];
        nib_text *marks = e->piece_marks == NULL ? NULL : &e->normal_marks[i % 2];
        nib__text_clear(made);
        if (marks != NULL)
            nib__text_clear(marks);
        NIB_TRY(run_normalizer(e, &e->t->normalizers[i], text, size, made, marks));
        NIB_TRY(nib__encoder_count_output(e, made, made->size, "the normalizers"));
        if (marks != NULL)
            NIB_TRY(update_marks(e, &e->t->normalizers[i], text, size, made, marks));
        text = made->at == NULL ? "" : made->at;
        size = made->size;
    }
    *out = text;
    *out_size = size;
    return NIB_OK;
}
