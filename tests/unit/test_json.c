/* SPDX-License-Identifier: Apache-2.0
 *
 * The JSON reader and writer: the grammar (against Python; with the data folder also
 * JSONTestSuite), budgets, positions of errors, exact strings and numbers, and reading back what
 * was written.
 */
#include "failing.h"
#include "json.h"
#include "skipping.h"

#include <dirent.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <time.h>

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "refused.h"

static nib_allocator heap;

static int setup(void **state)
{
    (void)state;
    heap = nib__allocator_default();
    return 0;
}

/* Copies to an exact size, so that ASan detects a read past the end. */
static char *exact(const char *text, size_t size)
{
    char *copy = malloc(size == 0 ? 1 : size);
    assert_non_null(copy);
    memcpy(copy, text, size);
    return copy;
}

/* One letter per event: { } [ ] k s n t f 0 and . at the end, ! for an error. */
static void trace(char *out, size_t out_size, const char *text, size_t size,
                  const nib_json_limits *limits, nib_err *err)
{
    static const char letters[] = "!{}[]ksntf0.";
    char *copy = exact(text, size);
    nib_json json;
    nib__json_init(&json, "test", copy, size, limits);
    size_t used = 0;
    nib_json_event event;
    do {
        event = nib__json_next(&json);
        assert_int_equal(event, json.event);
        if (used + 1 < out_size)
            out[used++] = letters[event];
    } while (event != NIB_JSON_END && event != NIB_JSON_ERROR);
    out[used] = 0;
    assert_int_equal(nib__json_next(&json), event); /* the last event repeats */
    assert_int_equal(nib__json_status(&json, err), event == NIB_JSON_END ? NIB_OK : NIB_BAD_INPUT);
    free(copy);
}

static void expect(const char *text, const char *events)
{
    char out[64];
    nib_err err = {0};
    trace(out, sizeof out, text, strlen(text), NULL, &err);
    if (strcmp(out, events) != 0)
        fail_msg("%s gives %s, not %s (%s)", text, out, events, err.text);
}

static void expect_error(const char *text)
{
    char out[64];
    nib_err err = {0};
    trace(out, sizeof out, text, strlen(text), NULL, &err);
    refused(NIB_BAD_INPUT, err.status, &err);
}

static void test_events(void **state)
{
    (void)state;
    expect("{}", "{}.");
    expect(" [ ] ", "[].");
    expect("[1,2,[3]]", "[nn[n]].");
    expect("{\"a\":1,\"b\":{\"c\":[true,false,null,\"x\"]}}", "{knk{k[tf0s]}}.");
    expect("3", "n.");
    expect("\"\"", "s.");
    expect("\xef\xbb\xbf{}", "{}.");
    expect("\t\r\n null\n", "0.");
    expect("", "!");
    expect("\xef\xbb\xbf", "!");
    expect("\xef\xbb{}", "!");
    expect("{} {}", "{}!");
    expect("[1,]", "[n!");
    expect("[,1]", "[!");
    expect("{\"a\":1,}", "{kn!");
    expect("{\"a\" 1}", "{!");
    expect("{\"a\":}", "{k!");
    expect("{1:2}", "{!");
    expect("[1}", "[n!");
    expect("{\"a\":1]", "{kn!");
    expect("]", "!");
    expect("[", "[!");
    expect("tru", "!");
    expect("truex", "t!");
    expect("[1 2]", "[n!");
    expect("// no", "!");
    expect("'a'", "!");
}

static void test_numbers_grammar(void **state)
{
    static const char *const good[] = {
        "0",   "-0",   "1",    "10",    "-1.5",
        "1e5", "1E+5", "1e-5", "0.0e0", "123456789012345678901234567890"};
    static const char *const bad[] = {"-",   "+1",  ".5",       "1.",        "1.e5", "1e", "1e+",
                                      "0x1", "NaN", "Infinity", "-Infinity", "-x",   "1_0"};
    (void)state;
    for (size_t i = 0; i < COUNT(good); i++)
        expect(good[i], "n.");
    for (size_t i = 0; i < COUNT(bad); i++) {
        char out[8];
        trace(out, sizeof out, bad[i], strlen(bad[i]), NULL, NULL);
        assert_non_null(strchr(out, '!'));
    }
    expect("01", "!");
    expect("-012", "!");
}

static void test_literals(void **state)
{
    (void)state;
    const nib_json_limits limits = {.literals = true};
    const char text[] = "[NaN, Infinity, -Infinity, -1]";
    nib_json json;
    double value = 0;
    int64_t whole = 0;
    nib__json_init(&json, "x", text, sizeof text - 1, &limits);
    assert_true(nib__json_expect(&json, NIB_JSON_ARRAY));
    assert_true(nib__json_read_double(&json, &value) && isnan(value));
    assert_true(nib__json_read_double(&json, &value) && value == INFINITY);
    assert_true(nib__json_read_double(&json, &value) && value == -INFINITY);
    assert_true(nib__json_read_int64(&json, -1, -1, &whole) && whole == -1);
    assert_true(nib__json_expect(&json, NIB_JSON_ARRAY_END));
    nib__json_init(&json, "x", "NaN", 3, &limits);
    assert_false(nib__json_read_int64(&json, INT64_MIN, INT64_MAX, &whole));
    refused(NIB_BAD_INPUT, json.err.status, &json.err);
    char out[8];
    trace(out, sizeof out, "-NaN", 4, &limits, NULL);
    assert_string_equal(out, "!");
    trace(out, sizeof out, "Infinit", 7, &limits, NULL);
    assert_string_equal(out, "!");
}

/* Strings of every length around the eight bytes scanned at a time, with every byte that ends or
 * breaks a string at every position. */
static void test_string_scan(void **state)
{
    (void)state;
    char text[40], out[8];
    for (size_t size = 0; size < 24; size++) {
        for (size_t place = 0; place <= size; place++) {
            static const struct {
                char byte;
                const char *events;
            } cases[] = {{'a', "s."}, {'\x7f', "s."}, {0, "!"},         {'\x1f', "!"}, {'\n', "!"},
                         {' ', "s."}, {'!', "s."},    {'#', "s."},      {'[', "s."},   {']', "s."},
                         {'\\', "!"}, {'\x80', "!"},  {(char)0xff, "!"}};
            for (size_t c = 0; c < COUNT(cases); c++) {
                memset(text, 'x', sizeof text);
                text[0] = '"';
                text[1 + size + 1] = '"';
                text[1 + place] = cases[c].byte;
                trace(out, sizeof out, text, size + 3, NULL, NULL);
                assert_string_equal(out, cases[c].events);
                if (cases[c].events[0] == 's') {
                    trace(out, sizeof out, text, size + 2, NULL, NULL); /* closing quote missing */
                    assert_string_equal(out, "!");
                }
            }
        }
    }
}

static void test_error_positions(void **state)
{
    (void)state;
    expect_error("[1,\n 2,\n  x]");
    expect_error("{\"a\":1");
    expect_error("[\"abc");
    expect_error("[\"a\x01\"]");
    expect_error("[\"a\\x\"]");
    expect_error("[\"\xff\"]");
    expect_error("1 1");
    expect_error("[-]");
    expect_error("\x01");
    expect_error("");
}

static void test_depth(void **state)
{
    (void)state;
    enum { MANY = 100000 };
    char *text = malloc(MANY), out[160];
    assert_non_null(text);
    memset(text, '[', MANY);
    for (int depth = 0; depth <= 600; depth += 50) {
        const nib_json_limits limits = {.depth = depth};
        const int allowed = depth == 0 ? 64 : depth > NIB_JSON_DEPTH ? NIB_JSON_DEPTH : depth;
        nib_json json;
        nib__json_init(&json, "deep", text, MANY, &limits);
        for (int i = 0; i < allowed; i++)
            assert_int_equal(nib__json_next(&json), NIB_JSON_ARRAY);
        assert_int_equal(nib__json_next(&json), NIB_JSON_ERROR);
        refused(NIB_BAD_INPUT, json.err.status, &json.err);
    }
    for (int i = 0; i < 64; i++) {
        text[i] = '[';
        text[64 + i] = ']';
    }
    trace(out, sizeof out, text, 128, NULL, NULL); /* exactly at the limit */
    assert_int_equal(out[128], '.');
    trace(out, sizeof out, text, 127, NULL, NULL);
    assert_int_equal(out[127], '!');
    free(text);
    /* Each level remembers whether it is an object or array. */
    expect("[{\"a\":[{\"b\":[]},1]},{}]", "[{k[{k[]}n]}{}].");
    expect("[{\"a\":[{\"b\":[]},1}]", "[{k[{k[]}n!");
}

static void test_budget(void **state)
{
    (void)state;
    const char text[] = "[1,2,3,4]";
    char out[16];
    nib_json_limits limits = {.events = 7};
    trace(out, sizeof out, text, sizeof text - 1, &limits, NULL);
    assert_string_equal(out, "[nnnn].");
    limits.events = 6;
    nib_err err = {0};
    trace(out, sizeof out, text, sizeof text - 1, &limits, &err);
    assert_string_equal(out, "[nnnn]!");
    limits.events = 3;
    trace(out, sizeof out, text, sizeof text - 1, &limits, &err);
    assert_string_equal(out, "[nn!");
    refused(NIB_BAD_INPUT, err.status, &err);
}

static void test_skip(void **state)
{
    (void)state;
    const char text[] = "{\"a\":[1,{\"b\":[]},[[]]],\"c\":{\"d\":{}},\"e\":5,\"f\":\"g\"}";
    nib_json json;
    nib__json_init(&json, "x", text, sizeof text - 1, NULL);
    assert_int_equal(nib__json_next(&json), NIB_JSON_OBJECT);
    static const char *const keys[] = {"a", "c", "e", "f"};
    for (size_t i = 0; i < COUNT(keys); i++) {
        assert_int_equal(nib__json_next(&json), NIB_JSON_KEY);
        assert_true(nib__json_is(&json, keys[i]));
        if (i % 2 == 0)
            nib__json_next(&json); /* skipping also works from the value's first event */
        assert_true(nib__json_skip(&json));
    }
    assert_int_equal(nib__json_next(&json), NIB_JSON_OBJECT_END);
    assert_int_equal(nib__json_next(&json), NIB_JSON_END);

    nib__json_init(&json, "x", text, sizeof text - 1, NULL);
    nib__json_next(&json);
    assert_true(nib__json_skip(&json)); /* skips the whole text */
    assert_int_equal(nib__json_next(&json), NIB_JSON_END);

    nib__json_init(&json, "x", text, 20, NULL); /* cut */
    nib__json_next(&json);
    assert_false(nib__json_skip(&json));
    assert_int_equal(json.event, NIB_JSON_ERROR);
}

/* ---- strings ---- */

static void decodes(const char *text, const char *decoded, size_t decoded_size)
{
    char *copy = exact(text, strlen(text));
    nib_json json;
    nib_arena arena;
    size_t size = 0;
    nib__arena_init(&arena, &heap, 0);
    nib__json_init(&json, "x", copy, strlen(text), NULL);
    const char *got = nib__json_read_string(&json, &arena, &size);
    if (got == NULL)
        fail_msg("%s: %s", text, json.err.text);
    assert_int_equal(size, decoded_size);
    assert_memory_equal(got, decoded, size + 1);
    if (strlen(decoded) == decoded_size) {
        char other[64];
        assert_true(nib__json_is(&json, decoded));
        snprintf(other, sizeof other, "%sx", decoded);
        assert_false(nib__json_is(&json, other));
        if (decoded_size > 0) {
            other[decoded_size - 1] = 0;
            assert_false(nib__json_is(&json, other));
        }
    }
    nib__arena_free(&arena);
    free(copy);
}

static void test_strings(void **state)
{
    (void)state;
    decodes("\"\"", "", 0);
    decodes("\"plain\"", "plain", 5);
    decodes("\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"", "\"\\/\b\f\n\r\t", 8);
    decodes("\"\\u0041\\u00e9\\u20AC\"", "A\xc3\xa9\xe2\x82\xac", 6);
    decodes("\"\\ud83d\\uDE00!\"", "\xf0\x9f\x98\x80!", 5);
    decodes("\"a\\u0000b\"", "a\0b", 3);
    decodes("\"\xf0\x9f\x98\x80\"", "\xf0\x9f\x98\x80", 4);
    decodes("\"\\uFFFF\\udbff\\udfff\"", "\xef\xbf\xbf\xf4\x8f\xbf\xbf", 7);
}

/* A string, or the first key of an object, that the grammar allows and no word can be. */
static void refuses_word(const char *text)
{
    nib_json json;
    nib_arena arena;
    nib__arena_init(&arena, &heap, 0);
    nib__json_init(&json, "x", text, strlen(text), NULL);
    const nib_json_event event = nib__json_next(&json);
    if (event == NIB_JSON_OBJECT)
        assert_int_equal(nib__json_next(&json), NIB_JSON_KEY);
    else
        assert_int_equal(event, NIB_JSON_STRING);
    assert_false(nib__json_is(&json, "\xed\xa0\x80"));
    assert_null(nib__json_string(&json, &arena, NULL));
    refused(NIB_BAD_INPUT, json.err.status, &json.err);
    assert_int_equal(nib__json_next(&json), NIB_JSON_ERROR);
    nib__arena_free(&arena);
}

static void test_surrogates(void **state)
{
    static const char *const lone[] = {"\"\\ud800\"",
                                       "\"\\udc00\"",
                                       "\"\\ud800x\"",
                                       "\"\\ud800\\n\"",
                                       "\"\\ud800\\u0041\"",
                                       "\"\\udc00\\ud800\"",
                                       "\"ab\\ud83d\\ud83d\\ude00\""};
    (void)state;
    for (size_t i = 0; i < COUNT(lone); i++)
        refuses_word(lone[i]);
}

/* A NUL would cut a string whose size nobody asks for. */
static void test_nul(void **state)
{
    static const char *const texts[] = {"\"a\\u0000b\"", "\"\\u0000\"", "{\"a\\u0000\": 1}"};
    (void)state;
    for (size_t i = 0; i < COUNT(texts); i++)
        refuses_word(texts[i]);
}

static void test_strings_without_memory(void **state)
{
    (void)state;
    failing f = {0};
    const nib_allocator a = failing_allocator(&f);
    nib_json json;
    nib_arena arena;
    nib_err err = {0};
    nib__arena_init(&arena, &a, 0);
    nib__json_init(&json, "x", "\"abc\"", 5, NULL);
    assert_null(nib__json_read_string(&json, &arena, NULL));
    refused(NIB_NO_MEMORY, nib__json_status(&json, &err), &err);
    nib__arena_init(&arena, &heap, 16);
    nib__json_init(&json, "x", "\"0123456789abcdef\"", 18, NULL);
    assert_null(nib__json_read_string(&json, &arena, NULL)); /* the arena's limit applies too */
    assert_int_equal(nib__json_status(&json, NULL), NIB_NO_MEMORY);
    nib__arena_free(&arena);
}

/* ---- numbers ---- */

static void reads_int(const char *text, bool good, int64_t value)
{
    nib_json json;
    int64_t got = 7;
    char *copy = exact(text, strlen(text));
    nib__json_init(&json, "x", copy, strlen(text), NULL);
    assert_int_equal(nib__json_read_int64(&json, INT64_MIN, INT64_MAX, &got), good);
    assert_true(got == (good ? value : 7));
    assert_int_equal(json.err.status, good ? NIB_OK : NIB_BAD_INPUT);
    free(copy);
}

static void test_int64(void **state)
{
    (void)state;
    reads_int("0", true, 0);
    reads_int("-0", true, 0);
    reads_int("-1", true, -1);
    reads_int("9223372036854775807", true, INT64_MAX);
    reads_int("9223372036854775808", false, 0);
    reads_int("-9223372036854775808", true, INT64_MIN);
    reads_int("-9223372036854775809", false, 0);
    reads_int("18446744073709551616", false, 0);
    reads_int("99999999999999999999999999999999999", false, 0);
    reads_int("1.0", false, 0);
    reads_int("1e2", false, 0);
    reads_int("true", false, 0);
    nib_json json;
    int64_t got = 0;
    nib__json_init(&json, "f.json", "[5]", 3, NULL);
    nib__json_next(&json);
    assert_false(nib__json_read_int64(&json, 6, 10, &got));
    refused(NIB_BAD_INPUT, json.err.status, &json.err);
}

static double read_double(const char *text)
{
    nib_json json;
    double got = 7;
    char *copy = exact(text, strlen(text));
    nib__json_init(&json, "x", copy, strlen(text), NULL);
    if (!nib__json_read_double(&json, &got))
        fail_msg("%s", json.err.text);
    free(copy);
    return got;
}

static void test_doubles(void **state)
{
    (void)state;
    assert_true(read_double("0") == 0 && !signbit(read_double("0")));
    assert_true(signbit(read_double("-0")) && signbit(read_double("-0.0e5")));
    assert_true(read_double("1.5") == 1.5);
    assert_true(read_double("0.1") == 0.1);
    assert_true(read_double("-123.456e-7") == -123.456e-7);
    assert_true(read_double("1e22") == 1e22);
    assert_true(read_double("1e23") == 1e23);
    assert_true(read_double("123456789012345678") == 123456789012345678.0);
    assert_true(read_double("9007199254740993") == 9007199254740992.0); /* a tie, to even */
    assert_true(read_double("9007199254740993.00000000000000000001") == 9007199254740994.0);
    assert_true(read_double("2.2250738585072011e-308") ==
                0x0.fffffffffffffp-1022); /* a well-known hard case */
    assert_true(read_double("4.9406564584124654e-324") == 0x1p-1074);
    assert_true(read_double("2e-324") == 0);
    assert_true(read_double("1e-400") == 0);
    assert_true(read_double("1.7976931348623157e308") == 0x1.fffffffffffffp1023);
    assert_true(read_double("0e999999999999999999999") == 0);
    assert_true(read_double("1e-999999999999999999999") == 0);
    assert_true(read_double("0.00001e5") == 1);
}

/* More digits than the reader keeps: 1 + 2^-53 is a tie that a single distant digit decides. */
static void test_long_doubles(void **state)
{
    (void)state;
    static const char tie[] = "1.00000000000000011102230246251565404236316680908203125";
    enum { ZEROS = 2000 };
    char text[ZEROS + 200];
    assert_true(read_double(tie) == 1);
    size_t size = sizeof tie - 1;
    memcpy(text, tie, size);
    memset(text + size, '0', ZEROS);
    memcpy(text + size + ZEROS, "1", 2);
    assert_true(read_double(text) == 0x1.0000000000001p0);
    text[size + ZEROS] = '0';
    assert_true(read_double(text) == 1);
    /* 10^2000 / 10^2000 in both forms. */
    text[0] = '1';
    memset(text + 1, '0', ZEROS);
    memcpy(text + 1 + ZEROS, "e-2000", 7);
    assert_true(read_double(text) == 1);
    memcpy(text, "0.", 2);
    memset(text + 2, '0', ZEROS);
    memcpy(text + 2 + ZEROS, "1e2001", 7);
    assert_true(read_double(text) == 1);
    nib_json json;
    double got = 7;
    nib__json_init(&json, "x", "[-1e309]", 8, NULL);
    nib__json_next(&json);
    assert_false(nib__json_read_double(&json, &got));
    refused(NIB_BAD_INPUT, json.err.status, &json.err);
    assert_true(got == 7);
}

static uint64_t next_random(uint64_t *s)
{
    *s += UINT64_C(0x9e3779b97f4a7c15);
    uint64_t z = *s;
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

/* Against the C library, in the C locale: random digits with random exponents, long and short. */
static void test_doubles_random(void **state)
{
    (void)state;
    uint64_t seed = 3;
    for (int i = 0; i < 50000; i++) {
        char text[64], digits[32];
        snprintf(digits, sizeof digits, "%020llu", (unsigned long long)next_random(&seed));
        const int count = 1 + (int)(next_random(&seed) % 19), range = i % 2 == 0 ? 25 : 300;
        const int exponent = (int)(next_random(&seed) % (uint64_t)(2 * range)) - range;
        snprintf(text, sizeof text, "%d.%.*se%d", i % 10, count, digits + 1, exponent);
        const double want = strtod(text, NULL), got = read_double(text);
        if (want != got)
            fail_msg("%s: %a, not %a", text, got, want);
    }
}

static void test_locale(void **state)
{
    if (setlocale(LC_NUMERIC, "de_DE.UTF-8") == NULL)
        skip_test(__func__, SKIP_LOCALE);
    const double value = read_double("3.14159265358979311599796346854");
    test_doubles(state);
    nib_text text;
    nib_jsonw w;
    nib__text_init(&text, &heap);
    nib__jsonw_init(&w, &text, 0);
    nib__jsonw_double(&w, value);
    setlocale(LC_NUMERIC, "C");
    assert_true(value == 3.141592653589793);
    assert_string_equal(text.at, "3.141592653589793");
    nib__text_free(&text);
}

/* ---- helpers ---- */

static void test_helpers(void **state)
{
    (void)state;
    nib_json json;
    bool flag = false;
    nib_err err = {0};
    nib__json_init(&json, "x", "[true,false,1]", 14, NULL);
    assert_true(nib__json_expect(&json, NIB_JSON_ARRAY));
    assert_true(nib__json_read_bool(&json, &flag) && flag);
    assert_true(nib__json_read_bool(&json, &flag) && !flag);
    assert_false(nib__json_read_bool(&json, &flag));
    refused(NIB_BAD_INPUT, json.err.status, &json.err);
    nib__json_fail(&json, "later");
    assert_int_equal(nib__json_status(&json, &err), NIB_BAD_INPUT);
    assert_null(strstr(err.text, "later")); /* the first error is kept */

    nib__json_init(&json, "x", "{\"a\": 1}", 8, NULL);
    assert_false(nib__json_expect(&json, NIB_JSON_ARRAY));
    refused(NIB_BAD_INPUT, json.err.status, &json.err);

    nib__json_init(&json, "x", "{\"a\": 1}", 8, NULL);
    nib__json_next(&json);
    nib__json_next(&json);
    nib__json_fail(&json, "key %s is not known; %d others are", "`a`", 3);
    assert_string_equal(json.err.text, "x: line 1, column 2: key `a` is not known; 3 others are");
    assert_int_equal(nib__json_next(&json), NIB_JSON_ERROR);
    assert_false(nib__json_skip(&json));

    nib__json_init(&json, "x", "[1]", 3, NULL);
    nib__json_next(&json);
    int64_t whole;
    double value;
    assert_false(nib__json_is(&json, ""));
    assert_false(nib__json_int64(&json, &whole));
    nib__json_init(&json, "x", "[1]", 3, NULL);
    nib__json_next(&json);
    assert_false(nib__json_double(&json, &value));
    nib__json_init(&json, "x", "[]", 2, NULL);
    assert_int_equal(nib__json_status(&json, &err), NIB_OK);
}

/* ---- the writer ---- */

static void write_sample(nib_jsonw *w)
{
    nib__jsonw_object(w);
    nib__jsonw_pair_string(w, "name", "a\"b\\c\n\x01\x7f\xc3\xa9\xff");
    nib__jsonw_pair_string(w, "none", NULL);
    nib__jsonw_pair_int(w, "min", INT64_MIN);
    nib__jsonw_pair_double(w, "pi", 3.25);
    nib__jsonw_pair_double(w, "nan", NAN);
    nib__jsonw_pair_bool(w, "yes", true);
    nib__jsonw_key(w, "empty");
    nib__jsonw_array(w);
    nib__jsonw_array_end(w);
    nib__jsonw_key(w, "list");
    nib__jsonw_array(w);
    nib__jsonw_int(w, 1);
    nib__jsonw_null(w);
    nib__jsonw_object(w);
    nib__jsonw_object_end(w);
    nib__jsonw_string_n(w, "\0x", 2);
    nib__jsonw_bool(w, false);
    nib__jsonw_array_end(w);
    nib__jsonw_object_end(w);
}

static void test_writer(void **state)
{
    (void)state;
    nib_text text;
    nib_jsonw w;
    nib__text_init(&text, &heap);
    nib__jsonw_init(&w, &text, 0);
    write_sample(&w);
    assert_string_equal(
        text.at, "{\"name\": \"a\\\"b\\\\c\\n\\u0001\\u007f\xc3\xa9\xef\xbf\xbd\", \"none\": null, "
                 "\"min\": -9223372036854775808, \"pi\": 3.25, \"nan\": null, \"yes\": true, "
                 "\"empty\": [], \"list\": [1, null, {}, \"\\u0000x\", false]}");
    nib__text_clear(&text);
    nib__jsonw_init(&w, &text, 2);
    nib__jsonw_object(&w);
    nib__jsonw_key(&w, "a");
    nib__jsonw_array(&w);
    nib__jsonw_int(&w, 1);
    nib__jsonw_int(&w, 2);
    nib__jsonw_array_end(&w);
    nib__jsonw_key(&w, "b");
    nib__jsonw_object(&w);
    nib__jsonw_object_end(&w);
    nib__jsonw_object_end(&w);
    assert_string_equal(text.at, "{\n  \"a\": [\n    1,\n    2\n  ],\n  \"b\": {}\n}");
    nib__text_free(&text);
}

static void test_written_is_read(void **state)
{
    (void)state;
    nib_text text;
    nib_jsonw w;
    nib_arena arena;
    uint64_t seed = 9;
    nib__text_init(&text, &heap);
    nib__arena_init(&arena, &heap, 0);
    double values[300];
    char names[300][12];
    nib__jsonw_init(&w, &text, 1);
    nib__jsonw_object(&w);
    for (size_t i = 0; i < COUNT(values); i++) {
        const uint64_t bits = next_random(&seed);
        memcpy(&values[i], &bits, sizeof bits);
        if (!isfinite(values[i]))
            values[i] = 0.1;
        size_t size = 0;
        for (int c = 0; c < 3; c++) {
            const uint32_t point = (uint32_t)(next_random(&seed) % (c == 0 ? 0x80 : 0xd800));
            size += (size_t)nib__utf8_put(names[i] + size, point == 0 ? 1 : point);
        }
        names[i][size] = 0;
        nib__jsonw_pair_double(&w, names[i], values[i]);
    }
    nib__jsonw_object_end(&w);
    nib_json json;
    nib__json_init(&json, "written", text.at, text.size, NULL);
    assert_true(nib__json_expect(&json, NIB_JSON_OBJECT));
    for (size_t i = 0; i < COUNT(values); i++) {
        double value = 0;
        assert_true(nib__json_expect(&json, NIB_JSON_KEY));
        assert_true(nib__json_is(&json, names[i]));
        assert_string_equal(nib__json_string(&json, &arena, NULL), names[i]);
        assert_true(nib__json_read_double(&json, &value));
        assert_true(value == values[i]);
    }
    assert_true(nib__json_expect(&json, NIB_JSON_OBJECT_END));
    assert_true(nib__json_expect(&json, NIB_JSON_END));
    nib__arena_free(&arena);
    nib__text_free(&text);
}

static void test_writer_without_memory(void **state)
{
    (void)state;
    for (int n = 0;; n++) {
        failing f = {.left = n};
        const nib_allocator a = failing_allocator(&f);
        nib_text text;
        nib_jsonw w;
        nib__text_init(&text, &a);
        nib__jsonw_init(&w, &text, 4);
        write_sample(&w);
        const bool failed = text.failed;
        nib__text_free(&text);
        assert_int_equal(f.live, 0);
        if (!failed) {
            assert_true(n > 1);
            return;
        }
    }
}

/* ---- which texts are JSON ---- */

/* True if the whole text is valid, including every number and string. */
static bool accepts(const char *text, size_t size)
{
    char *copy = exact(text, size);
    nib_arena arena;
    nib_json json;
    nib__arena_init(&arena, &heap, 0);
    nib__json_init(&json, "suite", copy, size, NULL);
    nib_json_event event;
    do {
        double value;
        size_t bytes;
        event = nib__json_next(&json);
        if (event == NIB_JSON_NUMBER)
            (void)nib__json_double(&json, &value);
        if (event == NIB_JSON_KEY || event == NIB_JSON_STRING)
            (void)nib__json_string(&json, &arena, &bytes);
    } while (event != NIB_JSON_END && event != NIB_JSON_ERROR);
    nib__arena_free(&arena);
    free(copy);
    return event == NIB_JSON_END;
}

static size_t from_hex(char *out, size_t room, const char *hex)
{
    size_t size = 0;
    for (unsigned byte; sscanf(hex, "%2x", &byte) == 1; hex += 2) {
        assert_true(size < room);
        out[size++] = (char)byte;
    }
    return size;
}

static void expect_accepted(const char *text, size_t size, bool want)
{
    char hex[1024];
    if (accepts(text, size) == want)
        return;
    for (size_t i = 0; i < size && i < sizeof hex / 2 - 1; i++)
        snprintf(hex + 2 * i, 3, "%02x", (unsigned char)text[i]);
    fail_msg("%s is %s", size == 0 ? "the empty text" : hex, want ? "refused" : "accepted");
}

static bool bit(const char *digits, size_t i)
{
    const char digit[2] = {digits[i / 4], 0};
    return (strtoul(digit, NULL, 16) >> (3 - i % 4) & 1) != 0;
}

/* Each byte is removed, replaced by each of a set, and preceded by each of the set. */
static size_t expect_changes(const char *text, size_t size, const char *set, size_t set_size,
                             const char *verdicts)
{
    char changed[128];
    size_t count = 0;
    assert_true(size < sizeof changed);
    for (size_t i = 0; i < size; i++) {
        const size_t rest = size - i - 1;
        memcpy(changed, text, i);
        memcpy(changed + i, text + i + 1, rest);
        expect_accepted(changed, size - 1, bit(verdicts, count++));
        for (size_t b = 0; b < set_size; b++) {
            changed[i] = set[b];
            memcpy(changed + i + 1, text + i + 1, rest);
            expect_accepted(changed, size, bit(verdicts, count++));
            memcpy(changed + i + 1, text + i, rest + 1);
            expect_accepted(changed, size + 1, bit(verdicts, count++));
        }
    }
    assert_int_equal(strlen(verdicts), (count + 3) / 4);
    return count;
}

/* Against Python's verdicts; tools/golden/make_json_golden.py describes the lines. */
static void test_texts_of_python(void **state)
{
    (void)state;
    static char line[8192];
    char text[1024], set[128];
    size_t texts = 0, changes = 0;
    FILE *file = fopen("tests/golden/json_texts.txt", "r");
    assert_non_null(file);
    while (fgets(line, sizeof line, file) != NULL) {
        char *words = NULL, *what = strtok_r(line, " \n", &words);
        const char *bytes = strtok_r(NULL, " \n", &words);
        if (what[0] == '#')
            continue;
        const size_t size = from_hex(text, sizeof text, bytes);
        if (strcmp(what, "changes") == 0) {
            const size_t set_size = from_hex(set, sizeof set, strtok_r(NULL, " \n", &words));
            changes += expect_changes(text, size, set, set_size, strtok_r(NULL, " \n", &words));
        } else {
            expect_accepted(text, size, strcmp(what, "accept") == 0);
            texts++;
        }
    }
    assert_int_equal(fclose(file), 0);
    assert_true(texts == 95 && changes > 5000);
}

static void test_json_test_suite(void **state)
{
    (void)state;
    const char *data = test_data();
    char folder[1024], path[1400];
    snprintf(folder, sizeof folder, "%s/robustness/JSONTestSuite/test_parsing", data);
    DIR *files = opendir(folder);
    assert_non_null(files);
    static char text[1 << 20];
    int counts[128] = {0};
    for (const struct dirent *entry; (entry = readdir(files)) != NULL;) {
        const char *name = entry->d_name;
        if (strstr(name, ".json") == NULL)
            continue;
        snprintf(path, sizeof path, "%s/%s", folder, name);
        FILE *file = fopen(path, "rb");
        assert_non_null(file);
        const size_t size = fread(text, 1, sizeof text, file);
        assert_int_equal(fclose(file), 0);
        const clock_t before = clock();
        const bool accepted = accepts(text, size);
        if ((name[0] == 'y' && !accepted) || (name[0] == 'n' && accepted))
            fail_msg("%s is %s", name, accepted ? "accepted" : "rejected");
        if (strcmp(name, "i_structure_UTF-8_BOM_empty_object.json") == 0)
            assert_true(accepted);
        assert_true(clock() - before < CLOCKS_PER_SEC);
        counts[name[0] & 127]++;
    }
    closedir(files);
    assert_true(counts['y'] >= 90 && counts['n'] >= 180 &&
                counts['i'] >= 30); /* the suite was really read */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_events),
        cmocka_unit_test(test_numbers_grammar),
        cmocka_unit_test(test_literals),
        cmocka_unit_test(test_string_scan),
        cmocka_unit_test(test_error_positions),
        cmocka_unit_test(test_depth),
        cmocka_unit_test(test_budget),
        cmocka_unit_test(test_skip),
        cmocka_unit_test(test_strings),
        cmocka_unit_test(test_surrogates),
        cmocka_unit_test(test_nul),
        cmocka_unit_test(test_strings_without_memory),
        cmocka_unit_test(test_int64),
        cmocka_unit_test(test_doubles),
        cmocka_unit_test(test_long_doubles),
        cmocka_unit_test(test_doubles_random),
        cmocka_unit_test(test_locale),
        cmocka_unit_test(test_helpers),
        cmocka_unit_test(test_writer),
        cmocka_unit_test(test_written_is_read),
        cmocka_unit_test(test_writer_without_memory),
        cmocka_unit_test(test_texts_of_python),
        cmocka_unit_test(test_json_test_suite),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
