/* SPDX-License-Identifier: Apache-2.0
 *
 * nib_text, printed sizes and names, UTF-8, shortest decimals, near names.
 */
#include "failing.h"
#include "skipping.h"
#include "text.h"

#include <float.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <wctype.h>

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static nib_allocator heap;

static int setup(void **state)
{
    (void)state;
    heap = nib__allocator_default();
    return 0;
}

/* ---- the text ---- */

static void test_put(void **state)
{
    (void)state;
    nib_text text;
    nib__text_init(&text, &heap);
    assert_null(text.at);
    nib__text_clear(&text);
    nib__text_put(&text, "", 0);
    assert_string_equal(text.at, "");
    nib__text_str(&text, "ab");
    nib__text_put(&text, "c\0d", 3);
    assert_int_equal(text.size, 5);
    assert_memory_equal(text.at, "abc\0d", 6);
    nib__text_clear(&text);
    for (int i = 0; i < 1000; i++)
        nib__text_format(&text, "%d,", i % 10);
    assert_int_equal(text.size, 2000);
    nib__text_clear(&text);
    nib__text_format(&text, "%*s|", 5000, "x"); /* longer than the buffer */
    assert_int_equal(text.size, 5001);
    assert_string_equal(text.at + 4999, "x|");
    assert_false(text.failed);
    nib__text_free(&text);
    nib__text_free(&text);
}

typedef struct collector {
    char bytes[64];
    size_t size;
    int calls;
    nib_status answer;
} collector;

static nib_status collect(void *ctx, const char *bytes, size_t size)
{
    collector *c = ctx;
    c->calls++;
    memcpy(c->bytes + c->size, bytes, size);
    c->size += size;
    return c->answer;
}

static void test_flush(void **state)
{
    (void)state;
    collector c = {.answer = NIB_OK};
    const nib_sink sink = {collect, &c};
    nib_err err = {0};
    nib_text text;
    nib__text_init(&text, &heap);
    assert_int_equal(nib__text_flush(&text, &sink, &err), NIB_OK);
    assert_int_equal(c.calls, 0); /* nothing to flush */
    nib__text_str(&text, "one ");
    assert_int_equal(nib__text_flush(&text, &sink, &err), NIB_OK);
    nib__text_str(&text, "two");
    assert_int_equal(nib__text_flush(&text, &sink, NULL), NIB_OK);
    assert_memory_equal(c.bytes, "one two", 7);
    assert_int_equal(c.size, 7);
    c.answer = NIB_CANCELLED;
    nib__text_str(&text, "x");
    assert_int_equal(nib__text_flush(&text, &sink, &err), NIB_CANCELLED);
    assert_int_equal(err.status, NIB_CANCELLED);
    nib__text_free(&text);
}

static void test_memory_fails(void **state)
{
    (void)state;
    for (int n = 0;; n++) {
        failing f = {.left = n};
        const nib_allocator a = failing_allocator(&f);
        collector c = {.answer = NIB_OK};
        const nib_sink sink = {collect, &c};
        nib_text text;
        nib__text_init(&text, &a);
        nib__text_str(&text, "short");
        nib__text_format(&text, "%100d", 7);
        nib__text_double(&text, 0.1);
        nib__near_names(&text, "abcd", (const char *const[]){"abce"}, 1);
        const bool failed = text.failed;
        if (failed) {
            const size_t size = text.size;
            nib__text_str(&text, "more");
            nib__text_clear(&text);
            nib__text_format(&text, "%d", 1);
            assert_true(text.size <= size && text.failed); /* it stays failed */
            assert_int_equal(nib__text_flush(&text, &sink, NULL), NIB_NO_MEMORY);
            assert_int_equal(c.calls, 0);
        }
        nib__text_free(&text);
        assert_int_equal(f.live, 0);
        if (!failed) {
            assert_true(n > 1);
            return;
        }
    }
}

/* ---- printing numbers and names ---- */

static void test_say_count(void **state)
{
    (void)state;
    char out[32];
    assert_string_equal(nib__format_count(out, 0), "0");
    assert_string_equal(nib__format_count(out, 999), "999");
    assert_string_equal(nib__format_count(out, 1000), "1,000");
    assert_string_equal(nib__format_count(out, 1234567), "1,234,567");
    assert_string_equal(nib__format_count(out, UINT64_MAX), "18,446,744,073,709,551,615");
}

static void test_say_bytes(void **state)
{
    (void)state;
    static const struct {
        uint64_t bytes;
        const char *text;
    } cases[] = {
        {0, "0 B"},
        {999, "999 B"},
        {1000, "1.0 kB"},
        {1049, "1.0 kB"},
        {1050, "1.1 kB"},
        {999949, "999.9 kB"},
        {999950, "1.0 MB"},
        {1234567890, "1.2 GB"},
        {999999999, "1.0 GB"},
        {1500000000000, "1.5 TB"},
        {UINT64_C(2) * 1000000000000000, "2.0 PB"},
        {UINT64_MAX, "18.4 EB"},
    };
    char out[32];
    for (size_t i = 0; i < COUNT(cases); i++)
        assert_string_equal(nib__format_bytes(out, cases[i].bytes), cases[i].text);
}

static void expect_name(const char *expected, const char *name, size_t size, size_t out_size)
{
    char out[128];
    memset(out, 0x7e, sizeof out);
    assert_string_equal(nib__escape_name(out, out_size, name, size), expected);
    assert_int_equal(out[out_size], 0x7e); /* nothing past its end */
}

static void test_say_name(void **state)
{
    (void)state;
    expect_name("model.layers.0", "model.layers.0", 14, 64);
    expect_name("", "", 0, 64);
    expect_name("a\\x00b", "a\0b", 3, 64);
    expect_name("\\x1b[31m\\x0a\\x7f", "\033[31m\n\x7f", 7, 64);
    expect_name("\\x22\\x27\\x60", "\"'`", 3, 64);
    expect_name("\xc3\xa9\xe2\x82\xac", "\xc3\xa9\xe2\x82\xac", 5, 64);
    expect_name("\\xff\\xc3(", "\xff\xc3(", 3, 64);
    expect_name("\\xc2\\x9b", "\xc2\x9b", 2, 64);          /* a control beyond ASCII */
    expect_name("\\xe2\\x80\\xae", "\xe2\x80\xae", 3, 64); /* changes the writing direction */
    expect_name("abcdefg", "abcdefg", 7, 8);               /* fits exactly */
    expect_name("abcd...", "abcdefgh", 8, 8);
    expect_name("abc...", "abc\ndefgh", 9, 8); /* escapes are kept whole */
    expect_name("ab...", "ab\xe2\x82\xac\xe2\x82\xac", 8, 8);
    expect_name("..", "abcdef", 6, 3);
    expect_name("", "abc", 3, 1);
    assert_string_equal(nib__escape_name(NULL, 0, "abc", 3), "");
}

/* ---- UTF-8 ---- */

static void test_utf8_all(void **state)
{
    (void)state;
    for (uint32_t point = 0; point < 0x110000; point++) {
        char bytes[5] = {0};
        const int length = nib__utf8_put(bytes, point);
        const char *at = bytes;
        if (point >= 0xd800 && point <= 0xdfff) {
            assert_memory_equal(bytes, "\xef\xbf\xbd", 3); /* a surrogate */
            continue;
        }
        if (nib__utf8_length(bytes, (size_t)length) != length || nib__utf8_next(&at) != point ||
            at != bytes + length || nib__utf8_length(bytes, (size_t)length - 1) != 0)
            fail_msg("U+%04x", point);
    }
    char bytes[4];
    assert_int_equal(nib__utf8_put(bytes, 0x110000), 3);
    assert_int_equal(nib__utf8_put(bytes, UINT32_MAX), 3);
}

/* Every pair of first bytes, against the table of well-formed sequences. */
static void test_utf8_pairs(void **state)
{
    (void)state;
    for (int a = 0; a < 256; a++) {
        for (int b = 0; b < 256; b++) {
            const char s[4] = {(char)a, (char)b, (char)0x80, (char)0xbf};
            int want = 0;
            if (a < 0x80)
                want = 1;
            else if (a >= 0xc2 && a <= 0xdf && b >= 0x80 && b <= 0xbf)
                want = 2;
            else if (a >= 0xe0 && a <= 0xef && b >= (a == 0xe0 ? 0xa0 : 0x80) &&
                     b <= (a == 0xed ? 0x9f : 0xbf))
                want = 3;
            else if (a >= 0xf0 && a <= 0xf4 && b >= (a == 0xf0 ? 0x90 : 0x80) &&
                     b <= (a == 0xf4 ? 0x8f : 0xbf))
                want = 4;
            assert_int_equal(nib__utf8_length(s, 4), want);
        }
    }
    assert_int_equal(nib__utf8_length("", 0), 0);
    assert_int_equal(nib__utf8_length("\xe2\x82(", 3), 0);
    assert_int_equal(nib__utf8_length("\xf0\x9f\x98(", 4), 0);
}

static void test_utf8_check(void **state)
{
    (void)state;
    char text[100];
    assert_int_equal(nib__utf8_check("", 0), 0);
    for (size_t size = 1; size < 40; size++) {
        memset(text, 'a', sizeof text);
        assert_int_equal(nib__utf8_check(text, size), size);
        for (size_t bad = 0; bad < size; bad++) {
            text[bad] = (char)0x80;
            assert_int_equal(nib__utf8_check(text, size), bad);
            text[bad] = 'a';
            if (bad + 1 < size) {
                memcpy(text + bad, "\xc3\xa9", 2);
                assert_int_equal(nib__utf8_check(text, size), size);
                assert_int_equal(nib__utf8_check(text, bad + 1), bad); /* cut */
                memcpy(text + bad, "aa", 2);
            }
        }
    }
}

/* ---- decimals ---- */

static void expect_double(double value, const char *expected)
{
    nib_text text;
    nib__text_init(&text, &heap);
    nib__text_double(&text, value);
    assert_string_equal(text.at, expected);
    nib__text_free(&text);
}

static void test_double(void **state)
{
    (void)state;
    expect_double(0, "0");
    expect_double(-0.0, "-0");
    expect_double(1, "1");
    expect_double(-1.5, "-1.5");
    expect_double(0.1, "0.1");
    expect_double((double)0.1f, "0.1"); /* a float: nine digits at most */
    expect_double(1.0 / 3, "0.3333333333333333");
    expect_double((double)(1.0f / 3), "0.33333334");
    expect_double(16777217, "16777217");
    expect_double(2147483648.0, "2147483648");
    expect_double(123456789012345.0, "123456789012345");
    expect_double(1e300, "1e+300");
    expect_double(5e-324, "5e-324");
    expect_double(DBL_MAX, "1.7976931348623157e+308");
    expect_double((double)FLT_MAX, "3.4028235e+38");
    expect_double((double)0x1p-149f, "1e-45");
    expect_double(NAN, "nan");
    expect_double(INFINITY, "inf");
    expect_double(-INFINITY, "-inf");
}

static uint64_t next_random(uint64_t *s)
{
    *s += UINT64_C(0x9e3779b97f4a7c15);
    uint64_t z = *s;
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

static void check_round_trip(uint64_t seed)
{
    nib_text text;
    nib__text_init(&text, &heap);
    for (int i = 0; i < 20000; i++) {
        const uint64_t bits = next_random(&seed);
        double value;
        float single;
        memcpy(&value, &bits, sizeof value);
        memcpy(&single, &bits, sizeof single);
        if (!isfinite(value) || !isfinite(single))
            continue;
        nib__text_clear(&text);
        nib__text_double_exact(&text, value);
        assert_null(strchr(text.at, ','));
        char copy[40];
        snprintf(copy, sizeof copy, "%s", text.at);
        char *dot = strchr(copy, '.');
        if (dot != NULL)
            *dot = localeconv()->decimal_point[0]; /* as strtod expects */
        assert_true(strtod(copy, NULL) == value);

        nib__text_clear(&text);
        nib__text_double(&text, (double)single);
        snprintf(copy, sizeof copy, "%s", text.at);
        dot = strchr(copy, '.');
        if (dot != NULL)
            *dot = localeconv()->decimal_point[0];
        assert_true(strtof(copy, NULL) == single);
        assert_true(text.size <= 16); /* whole numbers below 1e15 print in full */

        nib__text_clear(&text);
        nib__text_double_exact(&text, (double)single);
        snprintf(copy, sizeof copy, "%s", text.at);
        dot = strchr(copy, '.');
        if (dot != NULL)
            *dot = localeconv()->decimal_point[0];
        assert_true(strtod(copy, NULL) == (double)single);
    }
    nib__text_free(&text);
}

static void test_double_round_trip(void **state)
{
    (void)state;
    check_round_trip(1);
}

/* musl accepts the name of any locale, but knows only the C locale. */
static void use_comma(const char *test)
{
    if (setlocale(LC_NUMERIC, "de_DE.UTF-8") == NULL ||
        strcmp(localeconv()->decimal_point, ",") != 0)
        skip_test(test, SKIP_LOCALE);
}

static void test_double_locale(void **state)
{
    (void)state;
    use_comma(__func__);
    check_round_trip(2);
    test_double(state);
    setlocale(LC_NUMERIC, "C");
}

/* In an application that has set a locale, sentences keep the decimal point, and so does the locale
 * of the application. */
static void test_format_locale(void **state)
{
    (void)state;
    char text[32];
    nib_text built;
    nib_err err;
    use_comma(__func__);
    assert_int_equal(nib__format(text, sizeof text, "%.2f and %g", 1.25, 0.5), 12);
    assert_string_equal(text, "1.25 and 0.5");
    assert_string_equal(nib__format_seconds(text, 1.5), "1.5 s");
    assert_int_equal(nib__fail(&err, NIB_BAD_INPUT, "%g", 2.5), NIB_BAD_INPUT);
    assert_string_equal(err.text, "2.5");
    nib__text_init(&built, &heap);
    nib__text_format(&built, "%.1f", 0.5);
    assert_string_equal(built.at, "0.5");
    nib__text_free(&built);
    assert_string_equal(localeconv()->decimal_point, ",");
    setlocale(LC_NUMERIC, "C");
}

/* Also where I is not the upper case of i. */
static void check_same(void)
{
    assert_true(nib__same_ignoring_case("TITLE", "title"));
    assert_true(nib__same_ignoring_case("", ""));
    assert_false(nib__same_ignoring_case("title", "titles"));
    assert_false(nib__same_ignoring_case("titles", "title"));
    assert_true(nib__same_start_ignoring_case("OpenCL: not found", "opencl:0", 7));
    assert_false(nib__same_start_ignoring_case("OpenCL: not found", "opencl:0", 8));
    assert_true(nib__same_start_ignoring_case("Ab", "aB", 100));
    assert_false(nib__same_ignoring_case("[", "{")); /* not letters, but 32 apart */
    assert_false(nib__same_ignoring_case("\xc4\xb1", "I"));
}

static void test_same_ignoring_case(void **state)
{
    (void)state;
    check_same();
    /* not strcasecmp, which sanitizers replace by one for the C locale */
    if (setlocale(LC_CTYPE, "tr_TR.UTF-8") == NULL || towupper(L'i') == L'I')
        skip_test(__func__, SKIP_LOCALE);
    check_same();
    setlocale(LC_CTYPE, "C");
}

/* ---- near names ---- */

static const char *const layers[] = {
    "model.embed_tokens",
    "model.layers.0.self_attn.q_proj",
    "model.layers.0.self_attn.k_proj",
    "model.layers.0.mlp.up_proj",
    "model.layers.1.self_attn.q_proj",
    "model.layers.1.mlp.gate_proj",
    "model.norm",
    "lm_head",
};

static void expect_near(const char *wanted, const char *expected)
{
    nib_text text;
    nib__text_init(&text, &heap);
    nib__near_names(&text, wanted, layers, COUNT(layers));
    assert_string_equal(text.at == NULL ? "" : text.at, expected);
    nib__text_free(&text);
}

static void test_near(void **state)
{
    (void)state;
    expect_near("lm_heed", "lm_head");
    expect_near("ml_head", "lm_head"); /* a swap counts as one edit */
    expect_near("LM_HEAD", "lm_head");
    expect_near("lmhead", "lm_head");
    expect_near("model.norn", "model.norm");
    expect_near("model.layers.0.self_atn.q_proj",
                "model.layers.0.self_attn.q_proj, model.layers.0.self_attn.k_proj or "
                "model.layers.1.self_attn.q_proj");
    expect_near("q_prj", "model.layers.0.self_attn.q_proj or model.layers.1.self_attn.q_proj");
    expect_near("layers.0.feed_forward.gate_proj", "model.layers.1.mlp.gate_proj");
    expect_near("embed", "model.embed_tokens"); /* part of the name */
    expect_near("lm_head.weight", "lm_head");   /* the reverse */
    expect_near("tokens", "model.embed_tokens");
    expect_near("roj", "");                          /* a substring inside a word is not near */
    expect_near("bed_tokens", "model.embed_tokens"); /* two edits */
    expect_near("output", "");
    expect_near("xq", "");
    expect_near("", "");
    expect_near(".", "");
}

static void test_near_hostile(void **state)
{
    (void)state;
    static char longer[300], equal[257];
    memset(longer, 'a', sizeof longer - 1);
    memset(equal, 'a', sizeof equal - 1);
    const char *const names[] = {longer, equal, "", "\033[2Jabc"};
    nib_text text;
    nib__text_init(&text, &heap);
    nib__near_names(&text, longer, names, COUNT(names));
    assert_int_equal(text.size, 0);
    nib__near_names(&text, equal, names, COUNT(names)); /* only 256 bytes are compared */
    assert_int_equal(text.size, 256);
    nib__text_clear(&text);
    nib__near_names(&text, "[2Jabc", names, COUNT(names));
    assert_string_equal(text.at, "\\x1b[2Jabc");
    nib__text_clear(&text);
    nib__near_names(&text, "abc", NULL, 0);
    assert_int_equal(text.size, 0);
    nib__text_free(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_put),
        cmocka_unit_test(test_flush),
        cmocka_unit_test(test_memory_fails),
        cmocka_unit_test(test_say_count),
        cmocka_unit_test(test_say_bytes),
        cmocka_unit_test(test_say_name),
        cmocka_unit_test(test_utf8_all),
        cmocka_unit_test(test_utf8_pairs),
        cmocka_unit_test(test_utf8_check),
        cmocka_unit_test(test_double),
        cmocka_unit_test(test_double_round_trip),
        cmocka_unit_test(test_double_locale),
        cmocka_unit_test(test_format_locale),
        cmocka_unit_test(test_same_ignoring_case),
        cmocka_unit_test(test_near),
        cmocka_unit_test(test_near_hostile),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
