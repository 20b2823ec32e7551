/* SPDX-License-Identifier: Apache-2.0
 *
 * Constrained decoding: every text that masks allow conforms to its schema, masks allow exactly the
 * tokens that are accepted, and generation never gets stuck.
 */
#include "constraining.h"
#include "failing.h"
#include "refused.h"
#include "skipping.h"
#include "validating.h"

#include <stdio.h>

static const char BYTES[] = "tests/golden/tokenizer_bytes.json";
static const char PIECES[] = "tests/golden/tokenizer_words.json";
static const char SHIPPED[] = "configs/tokenizer/tokenizer.json";

static const char *const schemas[] = {
    "{}",
    "true",
    "{\"type\":\"object\"}",
    "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\"},\"age\":{\"type\":"
    "\"integer\",\"minimum\":0,\"maximum\":130},\"nick\":{\"type\":[\"string\",\"null\"],"
    "\"maxLength\":6}},\"required\":[\"name\",\"age\"],\"additionalProperties\":false}",
    "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"},\"ab\":{\"type\":"
    "\"boolean\"},"
    "\"abc\":{\"enum\":[\"x\",\"xy\",1,null]}},\"additionalProperties\":{\"type\":\"string\","
    "\"maxLength\":3}}",
    "{\"type\":\"object\",\"required\":[\"z\"],\"additionalProperties\":{\"type\":\"integer\"}}",
    "{\"type\":\"object\",\"properties\":{\"\\u00e9\\n\\\"\":{\"const\":\"\\u20ac\\u0001\"},"
    "\"\\u0001\":{\"type\":\"null\"}},\"additionalProperties\":{\"type\":\"null\"}}",
    "{\"type\":\"array\",\"items\":{\"type\":\"number\"},\"minItems\":1,\"maxItems\":4}",
    "{\"type\":\"array\",\"prefixItems\":[{\"type\":\"string\",\"minLength\":2,\"maxLength\":4},"
    "{\"type\":\"boolean\"}],\"items\":false,\"minItems\":2}",
    "{\"type\":\"array\",\"prefixItems\":[{\"const\":\"first\"}],\"items\":{\"type\":\"integer\"}}",
    "{\"type\":\"number\",\"minimum\":-1.25,\"exclusiveMaximum\":0.5}",
    "{\"type\":\"number\",\"exclusiveMinimum\":10}",
    "{\"type\":\"integer\",\"exclusiveMinimum\":-12,\"exclusiveMaximum\":7}",
    "{\"enum\":[\"red\",\"reddish\",1,10,1.5e3,-0.0,true,null,[],{\"k\":[1,{\"l\":\"m\"}]},[1,"
    "\"2\"]]}",
    "{\"const\":{\"b\":1,\"a\":[true,null]}}",
    "{\"type\":\"string\",\"minLength\":3,\"maxLength\":9}",
    "{\"anyOf\":[{\"type\":\"string\",\"maxLength\":4},{\"enum\":[\"longer than four\",7]},"
    "{\"type\":\"integer\",\"minimum\":100,\"maximum\":200}]}",
    "{\"anyOf\":[{\"type\":\"object\",\"properties\":{\"t\":{\"const\":\"a\"},\"v\":{\"type\":"
    "\"integer\"}},\"required\":[\"t\",\"v\"],\"additionalProperties\":false},{\"type\":\"object\","
    "\"properties\":{\"t\":{\"const\":\"ab\"},\"v\":{\"type\":\"array\",\"items\":{\"$ref\":\"#\"},"
    "\"maxItems\":2}},\"required\":[\"t\",\"v\"],\"additionalProperties\":false}]}",
    "{\"oneOf\":[{\"type\":\"object\",\"properties\":{\"t\":{\"const\":1}},\"required\":[\"t\"]},"
    "{\"type\":\"object\",\"properties\":{\"t\":{\"enum\":[2,3]}}},{\"type\":\"null\"}]}",
    "{\"$ref\":\"#/$defs/tree\",\"$defs\":{\"tree\":{\"type\":\"object\",\"properties\":{\"value\":"
    "{\"type\":\"integer\"},\"left\":{\"anyOf\":[{\"$ref\":\"#/$defs/tree\"},{\"type\":\"null\"}]},"
    "\"right\":{\"$ref\":\"#/$defs/tree\"}},\"required\":[\"value\",\"left\"],"
    "\"additionalProperties\":false}}}",
    "{\"allOf\":[{\"$ref\":\"#/definitions/x\"}],\"title\":\"t\",\"default\":{\"any\":[]},"
    "\"definitions\":{\"x\":{\"type\":[\"boolean\",\"array\"],\"maxItems\":0}}}",
    /* Strings, some constant and others free. */
    "{\"type\":\"array\",\"items\":{\"anyOf\":[{\"enum\":[\"ab\",\"a\\\"\",\"abc\\n\",\"the\",\"\"]"
    "},"
    "{\"type\":\"string\",\"maxLength\":2},{\"type\":\"string\",\"format\":\"time\"}]}}",
    "{\"anyOf\":[{\"type\":\"array\",\"items\":{\"const\":\"the\"},\"maxItems\":2},{\"type\":"
    "\"array\","
    "\"items\":{\"type\":\"string\",\"minLength\":2,\"maxLength\":3},\"minItems\":2}]}",
    "{\"anyOf\":[{\"type\":\"object\",\"properties\":{\"the\":{\"type\":\"string\"}},"
    "\"required\":[\"the\"]},{\"type\":\"object\",\"additionalProperties\":{\"type\":\"integer\"}}]"
    "}",
    /* Alternatives that stay open while their contents differ. */
    "{\"anyOf\":[{\"type\":\"array\",\"items\":{\"type\":\"array\",\"items\":{\"type\":\"integer\"}"
    "}},"
    "{\"type\":\"array\",\"items\":{\"type\":\"array\",\"items\":{\"type\":\"string\","
    "\"maxLength\":3}},"
    "\"minItems\":2,\"maxItems\":2}]}",
};

/* Random texts of one schema, each validated. */
static size_t walk_schema(const constraining *c, const char *schema, int walks)
{
    const nib_allocator a = nib__allocator_default();
    nib_constraint *constraint = open_constraint(c, schema);
    walking w = open_walking(c, 7);
    nib_text text;
    size_t ended = 0;
    nib__text_init(&text, &a);
    assert_int_equal(nib__masks_open(&w.masks, constraint, &a, NULL), NIB_OK);
    for (int i = 0; i < walks; i++) {
        nib_arena arena;
        nib__arena_init(&arena, &a, 0);
        nib__text_clear(&text);
        const walked end = walk_once(&w, constraint, &text);
        nib__text_put(&text, "", 0);
        if (end == WALK_STUCK)
            fail_msg("%s: stuck after %s", schema, text.at);
        const json_tree *value = read_tree(&arena, text.at, text.size);
        if (end == WALK_ENDED && value == NULL)
            fail_msg("%s: no JSON: %s", schema, text.at);
        if (end == WALK_ENDED && schema != NULL) {
            const json_tree *root = read_tree(&arena, schema, strlen(schema));
            assert_non_null(root);
            if (!is_of(value, root, root))
                fail_msg("%s is not of %s", text.at, schema);
        }
        ended += end == WALK_ENDED;
        nib__arena_free(&arena);
    }
    nib__text_free(&text);
    nib__masks_close(w.masks);
    free(w.allowed);
    nib__constraint_close(constraint);
    return ended;
}

static void walk_all(const char *tokenizer, int walks)
{
    constraining c = open_constraining(tokenizer);
    for (size_t i = 0; i < COUNT(schemas); i++)
        if (walk_schema(&c, schemas[i], walks) * 2 < (size_t)walks)
            fail_msg("%s: most texts do not end", schemas[i]);
    assert_true(walk_schema(&c, NULL, walks) * 2 >= (size_t)walks);
    close_constraining(&c);
}

static void test_walks(void **state)
{
    (void)state;
    walk_all(BYTES, 12);
    walk_all(PIECES, 12);
    walk_all(SHIPPED, 8);
}

static void test_walks_of_known_tokenizers(void **state)
{
    static const char *const names[] = {"gpt2/tokenizer.json", "llama2/hf/tokenizer.json",
                                        "mistral/Mistral-7B-v0.3_tokenizer.json"};
    const char *data = test_data();
    char path[1024];
    (void)state;
    for (size_t i = 0; i < COUNT(names); i++) {
        snprintf(path, sizeof path, "%s/tokenizers/%s", data, names[i]);
        walk_all(path, 1);
    }
}

/* ---- masks against accepting each token ---- */

static void check_masks(const char *tokenizer, int walks, int steps)
{
    constraining c = open_constraining(tokenizer);
    for (size_t i = 0; i < COUNT(schemas); i++) {
        nib_constraint *constraint = open_constraint(&c, schemas[i]);
        expect_masks(&c, constraint, i, "", walks, steps);
        nib__constraint_close(constraint);
    }
    close_constraining(&c);
}

static void test_masks(void **state)
{
    (void)state;
    check_masks(BYTES, 4, 60);
    check_masks(PIECES, 3, 40);
    check_masks(SHIPPED, 2, 50);
}

/* ---- accepted and refused texts ---- */

static void expect_texts(const char *schema, const char *const *yes, const char *const *no)
{
    constraining c = open_constraining(SHIPPED);
    nib_constraint *constraint = open_constraint(&c, schema);
    for (; yes != NULL && *yes != NULL; yes++)
        if (!accepts(&c, constraint, *yes))
            fail_msg("%s should be of %s", *yes, schema);
    for (; no != NULL && *no != NULL; no++)
        if (accepts(&c, constraint, *no))
            fail_msg("%s should not be of %s", *no, schema);
    nib__constraint_close(constraint);
    close_constraining(&c);
}

#define TEXTS(...) ((const char *const[]){__VA_ARGS__, NULL})

static void test_strings(void **state)
{
    (void)state;
    expect_texts(
        "{\"type\":\"string\"}",
        TEXTS("\"\"", "\"a\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\"", "\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"",
              "\"\\u0041\\u00e9\\uFFFF\"", "\"\\ud83d\\ude00\"", "\"\\uD83D\\uDE00x\"",
              "\"\xed\x9f\xbf\xee\x80\x80\xf4\x8f\xbf\xbf\""),
        TEXTS("\"a\nb\"", "\"\t\"", "\"\x7f\"", "\"\\x\"", "\"\\u12g4\"", "\"\\ud83d\"",
              "\"\\ud83dx\"", "\"\\ud83d\\n\"", "\"\\ud83d\\u0041\"", "\"\\ud83d\\ud83d\"",
              "\"\\ude00\"", "\"\xc3\"", "\"\xc0\xaf\"", "\"\x80\"", "\"\xed\xa0\x80\"",
              "\"\xf4\x90\x80\x80\"", "\"\xe0\x80\xaf\"", "\"\xff\"", "\"a", "\"a\"b", "'a'"));
    expect_texts("{\"type\":\"string\",\"minLength\":2,\"maxLength\":3}",
                 TEXTS("\"ab\"", "\"\xf0\x9f\x98\x80\xc3\xa9z\"", "\"\\n\\u0041\"",
                       "\"\\ud83d\\ude00\\ud83d\\ude00\\ud83d\\ude00\""),
                 TEXTS("\"\"", "\"a\"", "\"abcd\"", "\"\\ud83d\\ude00\"", "\"\\n\\n\\n\\n\""));
}

static void test_numbers(void **state)
{
    (void)state;
    expect_texts("{\"type\":\"number\"}",
                 TEXTS("0", "-0", "-0.5", "10.25", "1e5", "1E+05", "2.5e-10", "123456789012345678",
                       "0.12345678901234567"),
                 TEXTS("01", "+1", "1.", ".5", "1e", "1e+", "--1", "1e100", "1234567890123456789",
                       "0.123456789012345678", "NaN", "Infinity", "0x1"));
    expect_texts("{\"type\":\"integer\"}",
                 TEXTS("0", "7", "-10", "999999999999999999", "-999999999999999999"),
                 TEXTS("-0", "1.0", "1e2", "1000000000000000000", "00"));
    expect_texts("{\"type\":\"number\",\"minimum\":0,\"maximum\":1}",
                 TEXTS("0", "1", "0.5", "0.999999999", "1.0", "-0", "-0.0"),
                 TEXTS("1.1", "-0.1", "2", "10", "1e0", "0.1234567891", "1.000000001"));
    expect_texts("{\"type\":\"number\",\"exclusiveMinimum\":0,\"exclusiveMaximum\":1}",
                 TEXTS("0.000000001", "0.999999999"), TEXTS("0", "0.0", "1", "-0", "1.0"));
    expect_texts("{\"type\":\"number\",\"maximum\":-2.5}",
                 TEXTS("-2.5", "-3", "-2.75", "-999999999"),
                 TEXTS("-2", "-2.4", "0", "2", "-0", "-1000000000"));
}

/* Every integer of a range against bounds. */
static void test_integer_bounds(void **state)
{
    static const int bounds[][2] = {{0, 0},    {3, 120},    {-7, 5},      {10, 19},   {-120, -13},
                                    {99, 101}, {-100, 100}, {-999, -999}, {100, 999}, {-1, 1}};
    constraining c = open_constraining(SHIPPED);
    (void)state;
    for (size_t b = 0; b < COUNT(bounds); b++) {
        char schema[128], text[16];
        snprintf(schema, sizeof schema, "{\"type\":\"integer\",\"minimum\":%d,\"maximum\":%d}",
                 bounds[b][0], bounds[b][1]);
        nib_constraint *constraint = open_constraint(&c, schema);
        for (int n = -1200; n <= 1200; n++) {
            snprintf(text, sizeof text, "%d", n);
            if (accepts(&c, constraint, text) != (n >= bounds[b][0] && n <= bounds[b][1]))
                fail_msg("%s and %s", text, schema);
        }
        nib__constraint_close(constraint);
    }
    close_constraining(&c);
}

static void test_formats(void **state)
{
    (void)state;
    expect_texts("{\"type\":\"string\",\"format\":\"date\"}",
                 TEXTS("\"2024-02-29\"", "\"2000-02-29\"", "\"1999-12-31\"", "\"0001-01-01\""),
                 TEXTS("\"2023-02-29\"", "\"1900-02-29\"", "\"2024-04-31\"", "\"2024-13-01\"",
                       "\"2024-00-10\"", "\"2024-01-00\"", "\"0000-01-01\"", "\"2024-1-1\"", "\"\"",
                       "\"2024-01-01T\"", "\"2024-01-3\\u0031\""));
    expect_texts("{\"type\":\"string\",\"format\":\"time\"}",
                 TEXTS("\"23:59:59Z\"", "\"00:00:00.123456789+05:30\"", "\"12:00:00-23:59\""),
                 TEXTS("\"24:00:00Z\"", "\"12:60:00Z\"", "\"12:00:60Z\"", "\"12:00:00\"",
                       "\"12:00:00.Z\"", "\"12:00:00+24:00\"", "\"12:00:00+5:00\"",
                       "\"12:00:00.1234567890Z\""));
    expect_texts("{\"type\":\"string\",\"format\":\"date-time\"}",
                 TEXTS("\"2024-02-29T12:30:00Z\"", "\"2024-02-28T12:30:00.5-01:00\""),
                 TEXTS("\"2024-02-30T12:30:00Z\"", "\"2024-02-28 12:30:00Z\"", "\"2024-02-28\""));
    expect_texts("{\"type\":\"string\",\"format\":\"uuid\"}",
                 TEXTS("\"123e4567-e89b-12d3-A456-426614174000\""),
                 TEXTS("\"123e4567e89b12d3a456426614174000\"",
                       "\"123e4567-e89b-12d3-a456-42661417400\"",
                       "\"123e4567-e89b-12d3-a456-42661417400g\""));
}

static void test_objects(void **state)
{
    (void)state;
    /* Keys in the order of the schema; optional ones may be left out. */
    expect_texts(
        "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"null\"},\"b\":{\"type\":\"null\"},"
        "\"c\":{\"type\":\"null\"}},\"required\":[\"b\"],\"additionalProperties\":false}",
        TEXTS("{\"b\":null}", "{\"a\":null,\"b\":null}", "{\"b\":null,\"c\":null}",
              "{\"a\":null,\"b\":null,\"c\":null}"),
        TEXTS("{}", "{\"a\":null}", "{\"c\":null}", "{\"b\":null,\"a\":null}",
              "{\"b\":null,\"b\":null}", "{\"b\":null,}", "{\"b\":null \"c\":null}", "{\"d\":null}",
              "{\"b\":1}", "{b:null}", "{\"a\":null,\"c\":null}", "{\"\\u0062\":null}",
              "{\"bb\":null}"));
    /* Additional keys come last and may not repeat a declared name in any spelling. */
    expect_texts("{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"null\"},\"\\u0001\\/"
                 "\":{\"type\":\"null\"}},"
                 "\"additionalProperties\":{\"type\":\"integer\"}}",
                 TEXTS("{}", "{\"x\":1}", "{\"a\":null,\"x\":1}", "{\"aa\":1}", "{\"\":1}",
                       "{\"x\\n\":1}", "{\"\\u0001/\":null,\"\\u0001x\":1}", "{\"\\u0001\":1}"),
                 TEXTS("{\"a\":1}", "{\"x\":1,\"a\":null}", "{\"x\":1,\"a\":1}", "{\"\\u0061\":1}",
                       "{\"x\":null}", "{\"\\u0001\\/\":1}", "{\"\\u0002\":1}", "{\"\\/\":1}"));
    expect_texts("{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"null\"}}}",
                 TEXTS("{}", "{\"a\":null}"), TEXTS("{\"b\":1}"));
    expect_texts("{\"type\":\"object\",\"properties\":{},\"additionalProperties\":false}",
                 TEXTS("{}"), TEXTS("{\"b\":1}"));
}

static void test_arrays(void **state)
{
    (void)state;
    expect_texts(
        "{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"minItems\":2,\"maxItems\":3}",
        TEXTS("[1,2]", "[1,2,3]"), TEXTS("[]", "[1]", "[1,2,3,4]", "[1,]", "[1 2]", "[1,2"));
    expect_texts(
        "{\"type\":\"array\",\"prefixItems\":[{\"const\":\"a\"},{\"type\":\"null\"}],\"items\":"
        "{\"type\":\"integer\"}}",
        TEXTS("[]", "[\"a\"]", "[\"a\",null]", "[\"a\",null,1,2]"),
        TEXTS("[null]", "[\"a\",1]", "[\"a\",null,null]"));
    /* Values that match two alternatives. */
    expect_texts(
        "{\"anyOf\":[{\"type\":\"array\",\"items\":{\"$ref\":\"#/$defs/x\"},\"minItems\":2},"
        "{\"type\":\"array\",\"items\":{\"$ref\":\"#/$defs/x\"},\"maxItems\":1}],"
        "\"$defs\":{\"x\":{\"type\":\"array\",\"items\":{\"type\":\"null\"}}}}",
        TEXTS("[]", "[[]]", "[[null]]", "[[],[null]]"), TEXTS("[[[]]]", "[null]"));
    expect_texts("{\"type\":\"array\",\"maxItems\":0}", TEXTS("[]", "[ ]"), TEXTS("[1]"));
}

static void test_whitespace(void **state)
{
    (void)state;
    expect_texts("{\"type\":\"object\"}",
                 TEXTS("{}", " {}", "\n{}", "{ }", "{\n}", "{\n    \"a\": 1\n}",
                       "{ \"a\": [ 1, 2 ] }", "{\n\t\"a\": {\n        \"b\": []\n    }\n}"),
                 TEXTS("  {}", "\t{}", "{} ", "{  }", "{\"a\" :1}", "{\"a\":\n1}", "{\"a\":  1}",
                       "{\"a\":1 ,\"b\":2}", "{\n\n}", "{\n     }", "{\r\n}", "{\t}", "\n\n{}"));
}

/* ---- limits ---- */

static size_t nested(const constraining *c, const char *schema, const char *open, int times)
{
    nib_constraint *constraint = open_constraint(c, schema);
    nib_constraint_state state;
    size_t n = 0;
    nib__constraint_start(&state, constraint);
    for (int i = 0; i < times && taken(c, &state, open, strlen(open)) == strlen(open); i++)
        n++;
    nib__constraint_close(constraint);
    return n;
}

/* Nesting ends at 64, and every accepted beginning can be completed. */
static void test_depth(void **state)
{
    constraining c = open_constraining(SHIPPED);
    (void)state;
    assert_int_equal(nested(&c, "{}", "[", 1000), 64);
    assert_int_equal(nested(&c, "{\"type\":\"object\"}", "{\"a\":", 1000), 64);
    /* Each list needs two more levels to end. */
    assert_int_equal(
        nested(&c,
               "{\"type\":\"array\",\"items\":{\"$ref\":\"#\"},\"prefixItems\":[{\"anyOf\":["
               "{\"$ref\":\"#\"},{\"const\":[[1]]}]}],\"minItems\":1}",
               "[", 1000),
        62 + 2);
    /* 15 alternatives, each containing all of them again. */
    nib_text text;
    const nib_allocator a = nib__allocator_default();
    nib__text_init(&text, &a);
    nib__text_str(&text, "{\"anyOf\":[{\"type\":\"null\"}");
    for (int i = 0; i < 15; i++)
        nib__text_format(&text, ",{\"type\":\"array\",\"items\":{\"$ref\":\"#\"},\"minItems\":%d}",
                         i % 3);
    nib__text_str(&text, "]}");
    assert_true(nested(&c, text.at, "[", 1000) == 64);
    assert_true(walk_schema(&c, text.at, 5) > 0);
    /* More alternatives at one nesting than the limit: 4 lists of lists of 12 kinds. */
    nib__text_clear(&text);
    nib__text_str(&text, "{\"anyOf\":[{\"type\":\"null\"}");
    for (int i = 0; i < 4; i++) {
        nib__text_str(
            &text, ",{\"type\":\"array\",\"minItems\":2,\"items\":{\"anyOf\":[{\"type\":\"null\"}");
        for (int j = 0; j < 12; j++)
            nib__text_format(&text,
                             ",{\"type\":\"array\",\"items\":{\"const\":%d},\"minItems\":%d}",
                             12 * i + j, j % 4);
        nib__text_str(&text, "]}}");
    }
    nib__text_str(&text, "]}");
    assert_true(walk_schema(&c, text.at, 60) > 0);
    nib__text_free(&text);
    close_constraining(&c);
}

/* A number that cannot get longer, and one that is complete but may continue. */
static void test_complete_and_ended_numbers(void **state)
{
    constraining c = open_constraining(SHIPPED);
    nib_constraint *constraint = open_constraint(&c, "{\"enum\":[1,12,[]]}");
    nib_constraint_state s, copy;
    (void)state;
    nib__constraint_start(&s, constraint);
    assert_false(nib__constraint_complete(&s));
    assert_int_equal(taken(&c, &s, "1", 1), 1);
    assert_true(nib__constraint_complete(&s) && !nib__constraint_ended(&s));
    nib__constraint_copy(&copy, &s);
    assert_int_equal(taken(&c, &copy, "2", 1), 1);
    assert_true(nib__constraint_complete(&copy) && nib__constraint_ended(&copy));
    assert_false(nib__constraint_ended(&s));
    assert_false(nib__constraint_accept(&copy, c.bytes['3']));
    nib__constraint_start(&s, constraint);
    assert_int_equal(taken(&c, &s, "[]", 2), 2);
    assert_true(nib__constraint_complete(&s) && nib__constraint_ended(&s));
    assert_false(nib__constraint_accept(&s, c.bytes[' ']));
    nib__constraint_close(constraint);
    close_constraining(&c);
}

/* Special tokens, ids without a token and ids outside the vocabulary are never allowed. */
static void test_special_and_unknown_ids_are_refused(void **state)
{
    const nib_allocator a = nib__allocator_default();
    constraining c = open_constraining(BYTES);
    nib_constraint *constraint = open_constraint(&c, "{\"type\":\"string\"}");
    walking w = open_walking(&c, 1);
    nib_constraint_state s;
    size_t specials = 0;
    (void)state;
    nib__constraint_start(&s, constraint);
    assert_int_equal(taken(&c, &s, "\"", 1), 1);
    assert_int_equal(nib__masks_open(&w.masks, constraint, &a, NULL), NIB_OK);
    nib__constraint_mask(w.masks, &s, w.allowed);
    for (size_t id = 0; id < c.trie->vocab; id++) {
        if (!nib__tokenizer_is_special(c.tokenizer, (int32_t)id))
            continue;
        specials++;
        assert_false(walking_allows(&w, (int32_t)id));
        assert_false(nib__constraint_accept(&s, (int32_t)id));
    }
    assert_true(specials != 0);
    assert_false(nib__constraint_accept(&s, -1));
    assert_false(nib__constraint_accept(&s, (int32_t)c.trie->vocab));
    assert_false(nib__constraint_accept(&s, INT32_MAX));
    nib__masks_close(w.masks);
    free(w.allowed);
    nib__constraint_close(constraint);
    close_constraining(&c);
}

/* A vocabulary that cannot spell JSON is refused when opened. */
static void test_vocabulary_must_spell_json(void **state)
{
    const nib_allocator a = nib__allocator_default();
    nib_tokenizer *t = parse_text(
        "{\"model\":{\"vocab\":{\"a\":0,\"{\":1,\"}\":2,\"\\\"\":3},\"merges\":[]}}", NULL);
    const nib_named_text schema = {"response_format", NULL, 0};
    nib_token_trie *trie = NULL;
    nib_constraint *c = NULL;
    nib_err err = {.status = NIB_OK};
    (void)state;
    assert_int_equal(nib__token_trie_open(&trie, t, &a, &err), NIB_OK);
    refused(NIB_UNSUPPORTED, nib__constraint_open(&c, trie, &schema, &a, &err), &err);
    assert_null(c);
    nib__token_trie_close(trie);
    nib__tokenizer_close(t);
}

/* ---- memory ---- */

static void test_failing_allocations(void **state)
{
    constraining c = open_constraining(BYTES);
    bool done = false;
    (void)state;
    for (int n = 0; !done; n++) {
        failing f = {.left = n};
        const nib_allocator a = failing_allocator(&f);
        nib_token_trie *trie = NULL;
        nib_constraint *constraint = NULL;
        nib_masks *masks = NULL;
        nib_err err = {.status = NIB_OK};
        const nib_named_text schema = {"schema", schemas[18], strlen(schemas[18])};
        nib_status status = nib__token_trie_open(&trie, c.tokenizer, &a, &err);
        if (status == NIB_OK)
            status = nib__constraint_open(&constraint, trie, &schema, &a, &err);
        if (status == NIB_OK)
            status = nib__masks_open(&masks, constraint, &a, &err);
        done = status == NIB_OK;
        if (!done) {
            assert_int_equal(status, NIB_NO_MEMORY);
            assert_true(err.text[0] != 0);
        }
        nib__masks_close(masks);
        nib__constraint_close(constraint);
        nib__token_trie_close(trie);
        assert_int_equal(f.live, 0);
    }
    close_constraining(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_walks),
        cmocka_unit_test(test_walks_of_known_tokenizers),
        cmocka_unit_test(test_masks),
        cmocka_unit_test(test_strings),
        cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_integer_bounds),
        cmocka_unit_test(test_formats),
        cmocka_unit_test(test_objects),
        cmocka_unit_test(test_arrays),
        cmocka_unit_test(test_whitespace),
        cmocka_unit_test(test_depth),
        cmocka_unit_test(test_complete_and_ended_numbers),
        cmocka_unit_test(test_special_and_unknown_ids_are_refused),
        cmocka_unit_test(test_vocabulary_must_spell_json),
        cmocka_unit_test(test_failing_allocations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
