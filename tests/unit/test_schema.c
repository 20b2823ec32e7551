/* SPDX-License-Identifier: Apache-2.0
 *
 * Refused schemas: each with an error that names the place, and none is enforced only in part.
 * docs/schemas.md names every keyword.
 */
#include "constraining.h"
#include "failing.h"
#include "refused.h"
#include "schema.h"

#include <stdio.h>

static void expect_refused(const char *text, size_t size, nib_status status)
{
    const nib_allocator a = nib__allocator_default();
    const nib_named_text named = {"schema", text, size};
    nib_schema schema;
    nib_err err = {.status = NIB_OK};
    const nib_status got = nib__schema_read(&schema, &named, &a, &err);
    if (got != status)
        print_error("%.200s\n", text);
    refused(status, got, &err);
}

static void expect_error(const char *text, nib_status status)
{
    expect_refused(text, strlen(text), status);
}

static void expect_unsupported(const char *text) { expect_error(text, NIB_UNSUPPORTED); }

static void expect_bad(const char *text) { expect_error(text, NIB_BAD_INPUT); }

static void expect_accepted(const char *text)
{
    const nib_allocator a = nib__allocator_default();
    const nib_named_text named = {"schema", text, strlen(text)};
    nib_schema schema;
    nib_err err = {.status = NIB_OK};
    if (nib__schema_read(&schema, &named, &a, &err) != NIB_OK)
        fail_msg("%.200s: %s", text, err.text);
    nib__schema_close(&schema);
}

/* `before`, then `part` count times, then `middle`, then `after` count times, then `end`. */
static nib_text repeated(const char *before, const char *part, const char *middle,
                         const char *after, const char *end, int times)
{
    static nib_allocator a; /* the text points to it */
    nib_text text;
    a = nib__allocator_default();
    nib__text_init(&text, &a);
    nib__text_str(&text, before);
    for (int i = 0; i < times; i++)
        nib__text_str(&text, part);
    nib__text_str(&text, middle);
    for (int i = 0; i < times; i++)
        nib__text_str(&text, after);
    nib__text_str(&text, end);
    assert_false(text.failed);
    return text;
}

static void test_depth(void **state)
{
    static const char *const nests[][3] = {
        {"{\"type\":\"array\",\"items\":", "{}", "}"},
        {"{\"type\":\"object\",\"properties\":{\"a\":", "{}", "}}"},
        {"{\"anyOf\":[", "{}", "]}"},
        {"{\"allOf\":[", "{}", "]}"},
        {"{\"const\":[", "1", "]}"},
        {"[", "", "]"},
    };
    (void)state;
    for (size_t i = 0; i < 4; i++) {
        nib_text deep = repeated("", nests[i][0], nests[i][1], nests[i][2], "", 20000);
        expect_refused(deep.at, deep.size, NIB_BAD_INPUT);
        nib__text_free(&deep);
        deep = repeated("", nests[i][0], nests[i][1], nests[i][2], "", 63);
        expect_accepted(deep.at);
        nib__text_free(&deep);
    }
    nib_text value = repeated("{\"const\":", "[", "1", "]", "}", 100000);
    expect_refused(value.at, value.size, NIB_BAD_INPUT);
    nib__text_free(&value);
    value = repeated("{\"default\":", "[", "1", "]", "}", 100000);
    expect_refused(value.at, value.size, NIB_BAD_INPUT);
    nib__text_free(&value);
}

static void test_references(void **state)
{
    (void)state;
    /* Cycles without a value inside, and one with an endless value. */
    expect_bad("{\"$ref\":\"#\"}");
    expect_bad("{\"$ref\":\"#/$defs/a\",\"$defs\":{\"a\":{\"$ref\":\"#/$defs/"
               "b\"},\"b\":{\"anyOf\":[{\"$ref\":"
               "\"#/$defs/a\"},{\"$ref\":\"#\"}]}}}");
    expect_accepted("{\"anyOf\":[{\"$ref\":\"#\"},{\"type\":\"null\"}]}");
    /* Neither fetched nor guessed. */
    expect_unsupported("{\"$ref\":\"https://example.com/a.json\"}");
    expect_unsupported("{\"$ref\":\"file:///etc/passwd\"}");
    expect_unsupported("{\"$ref\":\"other.json#/$defs/a\"}");
    expect_unsupported("{\"$ref\":\"#/properties/a\"}");
    expect_unsupported("{\"$ref\":\"#/$defs/a%2Fb\"}");
    expect_unsupported("{\"$ref\":\"#/$defs/a/b\"}");
    expect_unsupported("{\"$ref\":\"\"}");
    expect_bad("{\"$ref\":\"#/$defs/none\"}");
    expect_bad("{\"$ref\":1}");
    expect_bad("{\"$defs\":{\"a\":{},\"a\":{}}}");
    expect_unsupported("{\"properties\":{\"a\":{\"$defs\":{}}}}");
    expect_unsupported("{\"properties\":{\"a\":{\"$id\":\"x\"}}}");
    expect_unsupported("{\"$ref\":\"#/$defs/a\",\"type\":\"null\",\"$defs\":{\"a\":{}}}");
    expect_unsupported("{\"$ref\":\"#/$defs/a\",\"minLength\":1,\"$defs\":{\"a\":{}}}");
    expect_accepted("{\"$ref\":\"#/$defs/a~1b~0\",\"$defs\":{\"a/b~\":{\"type\":\"null\"}}}");
}

/* A required reference to itself, directly or through others. */
static void test_endless_values(void **state)
{
    (void)state;
    expect_bad(
        "{\"type\":\"object\",\"properties\":{\"n\":{\"$ref\":\"#\"}},\"required\":[\"n\"]}");
    expect_bad("{\"type\":\"array\",\"items\":{\"$ref\":\"#\"},\"minItems\":1}");
    expect_bad("{\"$ref\":\"#/$defs/"
               "a\",\"$defs\":{\"a\":{\"type\":\"array\",\"prefixItems\":[{\"anyOf\":[{\"$ref\":"
               "\"#/$defs/a\"},{\"$ref\":\"#/$defs/"
               "b\"}]}],\"minItems\":1},\"b\":{\"type\":\"object\",\"required\":"
               "[\"x\"],\"additionalProperties\":{\"$ref\":\"#/$defs/a\"}}}}");
    expect_accepted("{\"type\":\"array\",\"items\":{\"$ref\":\"#\"}}");
    /* Accepted while it fits the limits. */
    nib_text long_way = repeated("{\"const\":", "[", "", "]", "}", 63);
    expect_accepted(long_way.at);
    nib__text_free(&long_way);
}

static void test_budgets(void **state)
{
    (void)state;
    nib_text text = repeated("{\"enum\":[0", ",\"x\"", "", "", "]}", 100000);
    expect_refused(text.at, text.size, NIB_BAD_INPUT);
    nib__text_free(&text);
    text = repeated("{\"enum\":[0", ",\"x\"", "", "", "]}", 8191);
    expect_accepted(text.at);
    nib__text_free(&text);
    text = repeated("{\"title\":\"", "0123456789abcdef", "", "", "\"}", 1 << 16);
    expect_refused(text.at, text.size, NIB_BAD_INPUT);
    assert_true(text.size > NIB_SCHEMA_BYTES);
    nib__text_free(&text);
    text = repeated("{\"anyOf\":[{}", ",{\"type\":\"null\"}", "", "", "]}", 9000);
    expect_refused(text.at, text.size, NIB_BAD_INPUT);
    nib__text_free(&text);
    text =
        repeated("{\"anyOf\":[{\"type\":\"object\"}", ",{\"type\":\"object\"}", "", "", "]}", 15);
    expect_refused(text.at, text.size, NIB_UNSUPPORTED);
    nib__text_free(&text);
    text = repeated("{\"prefixItems\":[true", ",true", "", "", "]}", 1 << 16);
    expect_refused(text.at, text.size, NIB_BAD_INPUT);
    nib__text_free(&text);
    /* Many equal constants count as one. */
    text = repeated("{\"anyOf\":[{\"const\":1}", ",{\"const\":\"a\"}", "", "", "]}", 1000);
    expect_accepted(text.at);
    nib__text_free(&text);
    expect_bad("{\"type\":\"array\",\"minItems\":1000000000}");
    expect_bad("{\"type\":\"string\",\"maxLength\":1e9}");
    expect_bad("{\"type\":\"array\",\"maxItems\":-1}");
    expect_bad("{\"type\":\"array\",\"maxItems\":1.5}");
    expect_unsupported("{\"type\":\"integer\",\"minimum\":1e3}");
    expect_unsupported("{\"type\":\"integer\",\"maximum\":1234567890123456789}");
    expect_unsupported("{\"type\":\"number\",\"maximum\":0.1234567891}"); /* 10 digits */
    expect_unsupported("{\"type\":\"number\",\"maximum\":1234567890}");
    expect_unsupported("{\"type\":\"number\",\"maximum\":1E3}");
    expect_accepted("{\"type\":\"number\",\"minimum\":-0.12345678900,\"maximum\":0.5}");
    expect_accepted("{\"type\":\"integer\",\"minimum\":5.00}");
    expect_unsupported("{\"type\":\"integer\",\"minimum\":5.01}");
    text = repeated("{\"properties\":{", "\"a\":true,", "\"b\":true", "", "}}", NIB_SCHEMA_NODES);
    expect_refused(text.at, text.size, NIB_BAD_INPUT);
    nib__text_free(&text);
}

/* Nested alternatives: their total is limited too. */
static void test_exponential_schemas(void **state)
{
    const nib_allocator a = nib__allocator_default();
    nib_text text;
    (void)state;
    nib__text_init(&text, &a);
    nib__text_str(&text, "{\"$defs\":{\"all\":{\"enum\":[0");
    for (int i = 1; i < 8000; i++)
        nib__text_format(&text, ",%d", i);
    nib__text_str(&text, "]}},\"anyOf\":[{}");
    for (int i = 0; i < 1000; i++)
        nib__text_str(&text, ",{\"anyOf\":[{\"$ref\":\"#/$defs/all\"},{\"type\":\"null\"}]}");
    nib__text_str(&text, "]}");
    expect_refused(text.at, text.size, NIB_BAD_INPUT);
    nib__text_clear(&text);
    /* A chain of references, the last one first. */
    nib__text_str(&text, "{\"$ref\":\"#/$defs/0\",\"$defs\":{\"4000\":{\"type\":\"null\"}");
    for (int i = 0; i < 4000; i++)
        nib__text_format(&text, ",\"%d\":{\"$ref\":\"#/$defs/%d\"}", i, i + 1);
    nib__text_str(&text, "}}");
    expect_accepted(text.at);
    nib__text_free(&text);
}

static void test_patterns(void **state)
{
    (void)state;
    /* No regular expression of a request is ever compiled. */
    expect_unsupported("{\"type\":\"string\",\"pattern\":\"(a+)+$\"}");
    expect_unsupported("{\"type\":\"string\",\"pattern\":\"(?<=x)*\"}");
    expect_unsupported("{\"type\":\"object\",\"patternProperties\":{\"*\":{}}}");
    expect_unsupported("{\"properties\":{\"a\":{\"type\":\"string\",\"format\":\"regex\"}}}");
}

static void test_contradictions(void **state)
{
    (void)state;
    expect_bad("{\"type\":\"array\",\"minItems\":3,\"maxItems\":2}");
    expect_bad("{\"type\":\"array\",\"minItems\":1,\"items\":false}");
    expect_bad("{\"type\":\"string\",\"minLength\":3,\"maxLength\":2}");
    expect_bad("{\"type\":\"integer\",\"minimum\":3,\"maximum\":2}");
    expect_bad("{\"type\":\"integer\",\"exclusiveMinimum\":3,\"exclusiveMaximum\":4}");
    expect_bad("{\"type\":\"object\",\"properties\":{\"a\":{}},\"required\":[\"b\"],"
               "\"additionalProperties\":"
               "false}");
    expect_bad("{\"enum\":[]}");
    expect_bad("{\"anyOf\":[]}");
    expect_bad("{\"type\":\"string\",\"enum\":[\"a\",1]}");
    expect_bad("{\"type\":\"integer\",\"const\":1.5}");
    expect_bad("{\"type\":\"null\",\"const\":{}}");
    expect_bad("{\"properties\":{\"a\":false}}");
    expect_bad("{\"type\":\"string\",\"minimum\":1}");
    expect_bad("{\"minimum\":1,\"minLength\":1}");
    expect_bad("{\"type\":\"text\"}");
    expect_bad("{\"type\":[\"string\",\"string\"]}");
    expect_bad("{\"type\":[]}");
    expect_bad("{\"type\":\"string\",\"type\":\"string\"}");
    expect_bad("{\"properties\":{\"a\":{},\"\\u0061\":{}}}");
    expect_bad("{\"exclusiveMinimum\":true}");
    expect_bad("{\"required\":[1]}");
    expect_bad("{\"items\":1}");
    expect_bad("7");
    expect_bad("");
    expect_bad("{\"type\":\"null\"");
    expect_bad("{} {}");
    expect_bad("{\"const\":\"\\ud800\"}");
}

/* A keyword that is not enforced is refused, known to JSON Schema or not. */
static void test_keywords(void **state)
{
    static const char *const others[] = {"not",
                                         "if",
                                         "then",
                                         "else",
                                         "pattern",
                                         "patternProperties",
                                         "propertyNames",
                                         "multipleOf",
                                         "minProperties",
                                         "maxProperties",
                                         "uniqueItems",
                                         "contains",
                                         "minContains",
                                         "maxContains",
                                         "dependentRequired",
                                         "dependentSchemas",
                                         "dependencies",
                                         "unevaluatedProperties",
                                         "unevaluatedItems",
                                         "additionalItems",
                                         "contentEncoding",
                                         "contentMediaType",
                                         "contentSchema",
                                         "$anchor",
                                         "$dynamicRef",
                                         "$dynamicAnchor",
                                         "$recursiveRef",
                                         "$vocabulary",
                                         "nullable",
                                         "discriminator",
                                         "Type",
                                         "propertes",
                                         ""};
    (void)state;
    for (size_t i = 0; i < COUNT(others); i++) {
        char text[128];
        snprintf(text, sizeof text, "{\"properties\":{\"a\":{\"%s\":{}}}}", others[i]);
        expect_unsupported(text);
    }
    expect_unsupported("{\"type\":\"array\",\"items\":[{}]}");
    expect_unsupported("{\"allOf\":[{\"type\":\"string\"},{\"minLength\":1}]}");
    expect_unsupported("{\"anyOf\":[{\"type\":\"null\"}],\"enum\":[1]}");
    expect_unsupported("{\"enum\":[1],\"minimum\":0}");
    expect_unsupported("{\"type\":\"string\",\"format\":\"email\"}");
    /* a date has its own length */
    expect_unsupported("{\"type\":\"string\",\"format\":\"date\",\"minLength\":1}");
    expect_unsupported("{\"type\":\"null\",\"anyOf\":[{},{}]}");
    expect_bad("{\"type\":\"string\",\"items\":{}}");
    expect_unsupported("{\"type\":\"string\",\"format\":\"date\",\"maxLength\":1}");
    expect_bad("{\"$id\":5}");
    expect_accepted("{\"$id\":\"a\",\"type\":\"null\"}");
    expect_bad("{\"type\":\"number\",\"minimum\":1,\"maximum\":0}");
    expect_bad("{\"type\":\"integer\",\"minimum\":1,\"exclusiveMaximum\":1}");
    expect_accepted("{\"minimum\":1}");
    expect_accepted("{\"type\":\"array\",\"items\":false,\"maxItems\":0}");
    expect_accepted("{\"type\":\"array\",\"prefixItems\":[{}],\"items\":false,\"maxItems\":9}");
    expect_bad("{\"type\":\"string\",\"enum\":[1]}");
    expect_accepted("{\"type\":\"number\",\"enum\":[1, 1.5]}");
    expect_unsupported("{\"$ref\":\"a\"}");
    expect_unsupported("{\"$ref\":\"\"}");
    expect_accepted("{\"$ref\":\"#/$defs/a~1~0~2b~\",\"$defs\":{\"a/~~2b~\":{}}}");
}

static void test_one_of(void **state)
{
    (void)state;
    expect_unsupported("{\"oneOf\":[{\"type\":\"integer\"},{\"type\":\"number\"}]}");
    expect_unsupported("{\"oneOf\":[{\"type\":\"null\"},{\"type\":\"string\"},{\"const\":\"a\"}]}");
    expect_unsupported("{\"oneOf\":[{\"const\":1},{\"const\":1.0}]}");
    expect_unsupported("{\"oneOf\":[{\"enum\":[0.5]},{\"enum\":[1]}]}"); /* not compared */
    expect_unsupported("{\"oneOf\":[{\"enum\":[1]},{\"enum\":[\"a\",0.5]}]}");
    expect_unsupported("{\"oneOf\":[{\"enum\":[\"a\",\"b\"]},{\"enum\":[\"b\",\"c\"]}]}");
    expect_unsupported("{\"oneOf\":[{\"type\":\"object\"},{\"type\":\"object\"}]}");
    expect_unsupported("{\"oneOf\":[{\"properties\":{\"k\":{\"const\":1}}},{\"properties\":{\"k\":{"
                       "\"const\":2}}}]}");
    expect_unsupported("{\"oneOf\":[{\"type\":\"array\"},{\"type\":\"array\"}]}");
    expect_unsupported("{\"oneOf\":[{\"enum\":[1e3]},{\"enum\":[1000]}]}");
    expect_unsupported("{\"oneOf\":[{\"enum\":[-0]},{\"enum\":[0]}]}");
    expect_accepted("{\"oneOf\":[{\"enum\":[-1]},{\"enum\":[10, \"a\"]}]}");
    /* One value of the key is not enough: a schema allows two, or another type. */
    expect_unsupported(
        "{\"oneOf\":[{\"properties\":{\"k\":{\"anyOf\":[{\"const\":1},{\"type\":"
        "\"null\"},{}]}},\"required\":[\"k\"]},{\"properties\":{\"k\":{\"const\":2}}}]}");
    expect_unsupported("{\"oneOf\":[{\"properties\":{\"k\":{\"const\":2}},\"required\":[\"k\"]},"
                       "{\"properties\":{\"k\":{}}}]}");
    expect_unsupported("{\"oneOf\":[{\"properties\":{\"k\":{\"const\":2}},\"required\":[\"k\"]},"
                       "{\"properties\":{\"k\":{\"type\":\"string\"}}}]}");
    expect_unsupported("{\"oneOf\":[{\"properties\":{\"k\":{\"type\":\"string\"}}},{\"properties\":"
                       "{\"k\":{\"const\":2}},\"required\":[\"k\"]}]}");
    nib_text text = repeated("{\"oneOf\":[{\"const\":0}", "", "", "", "", 0);
    for (int i = 1; i < 4000; i++)
        nib__text_format(&text, ",{\"const\":%d}", i);
    nib__text_str(&text, "]}");
    expect_refused(text.at, text.size, NIB_UNSUPPORTED);
    nib__text_free(&text);
    expect_accepted(
        "{\"oneOf\":[{\"enum\":[\"a\",1]},{\"enum\":[\"b\",2,null]},{\"type\":\"object\"},{"
        "\"type\":"
        "\"array\"}]}");
    expect_accepted(
        "{\"oneOf\":[{\"properties\":{\"k\":{\"const\":1}},\"required\":[\"k\"]},{\"properties\":"
        "{\"k\":{\"const\":2}}}]}");
    expect_accepted("{\"$defs\":{\"one\":{\"anyOf\":[{\"const\":1}]},\"two\":{\"const\":2}},"
                    "\"oneOf\":[{\"properties\":{\"k\":{\"$ref\":\"#/$defs/one\"}},"
                    "\"required\":[\"k\"]},"
                    "{\"properties\":{\"k\":{\"$ref\":\"#/$defs/two\"}}}]}");
}

/* Names and values of any characters, in the schema and in sentences. */
static void test_unicode(void **state)
{
    (void)state;
    expect_accepted(
        "{\"properties\":{\"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\":{},\"\\u0000\":{},\"\":{}}}");
    expect_unsupported("{\"properties\":{\"\xc3\xa9\":{\"pattern\":\"a\"}}}");
    /* A long place is shortened in its middle; the rest of the sentence stays whole. */
    nib_text deep =
        repeated("", "{\"properties\":{\"0123456789\xc3\xa9\":", "{\"not\":1}", "}}", "", 50);
    expect_refused(deep.at, deep.size, NIB_UNSUPPORTED);
    nib__text_free(&deep);
    for (int i = 9; i < 14; i++) { /* wherever characters are cut */
        char before[100];
        snprintf(before, sizeof before, "{\"properties\":{\"%.*s\":", i, "0123456789abcdef");
        nib_text cut = repeated(before, "{\"properties\":{\"\xf0\x9f\x98\x80\":", "{\"format\":1}",
                                "}}", "}}", 50);
        expect_refused(cut.at, cut.size, NIB_BAD_INPUT);
        nib__text_free(&cut);
    }
    expect_unsupported("{\"properties\":{\"a\\u001b[31m\\n\":{\"pattern\":\"a\"}}}");
    expect_bad("{\"properties\":{\"\xff\":{}}}");
}

static const char *const failing_schemas[] = {
    "{\"$ref\":\"#/$defs/"
    "a\",\"$defs\":{\"a\":{\"type\":[\"object\",\"null\"],\"properties\":{\"x\":"
    "{\"enum\":[1,\"\\u0001\",[2,{\"y\":3}]]},\"z\":{\"anyOf\":[{\"const\":1},{\"const\":2},{"
    "\"type\":\"array\"}]}},\"required\":[\"x\",\"w\"]}}}",
    "{\"oneOf\":[{\"properties\":{\"k\":{\"const\":1},\"n\":{\"type\":\"integer\",\"minimum\":1}},"
    "\"required\":[\"k\"]},{\"properties\":{\"k\":{\"const\":2},\"s\":{\"format\":\"date\"}}}],"
    "\"definitions\":{\"a\":{\"prefixItems\":[{},{\"type\":\"string\"}]},\"b\":true}}",
    NULL, /* any object */
};

static void test_failing_allocations(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(failing_schemas); i++) {
        const char *text = failing_schemas[i];
        bool done = false;
        for (int n = 0; !done; n++) {
            failing f = {.left = n};
            const nib_allocator a = failing_allocator(&f);
            const nib_named_text named = {"schema", text, text == NULL ? 0 : strlen(text)};
            nib_schema schema;
            nib_err err = {.status = NIB_OK};
            done = nib__schema_read(&schema, &named, &a, &err) == NIB_OK;
            if (done)
                nib__schema_close(&schema);
            else if (err.status != NIB_NO_MEMORY)
                fail_msg("%s", err.text);
            assert_int_equal(f.live, 0);
        }
    }
}

/* The arguments of a call are an object, whatever else the schema allows. */
static void test_only_objects(void **state)
{
    static const char text[] = "{\"type\":[\"object\",\"string\"],\"properties\":{\"a\":true}}";
    const nib_named_text named = {"schema", text, sizeof text - 1};
    bool done = false;
    (void)state;
    for (int n = 0; !done; n++) {
        failing f = {.left = -1};
        const nib_allocator a = failing_allocator(&f);
        nib_schema schema;
        nib_err err = {.status = NIB_OK};
        assert_int_equal(nib__schema_read(&schema, &named, &a, &err), NIB_OK);
        f.left = n;
        done = nib__schema_only_objects(&schema, &err) == NIB_OK;
        assert_int_equal(err.status, done ? NIB_OK : NIB_NO_MEMORY);
        nib__schema_close(&schema);
        assert_int_equal(f.live, 0);
    }
}

/* The page has a row for each keyword. */
static void test_docs_list_every_keyword(void **state)
{
    const nib_allocator a = nib__allocator_default();
    nib_arena arena;
    bool annotation;
    size_t size;
    (void)state;
    nib__arena_init(&arena, &a, 0);
    const char *page = read_text(&arena, "docs/schemas.md", &size);
    const char *rest = strstr(page, "\n## Annotations");
    assert_non_null(rest);
    for (size_t i = 0; nib__schema_keyword(i, &annotation) != NULL; i++) {
        char word[64];
        snprintf(word, sizeof word, "`%s`", nib__schema_keyword(i, &annotation));
        const char *found = strstr(annotation ? rest : page, word);
        if (found == NULL || (!annotation && found > rest))
            fail_msg("docs/schemas.md does not name %s where it belongs", word);
    }
    nib__arena_free(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_depth),
        cmocka_unit_test(test_references),
        cmocka_unit_test(test_endless_values),
        cmocka_unit_test(test_budgets),
        cmocka_unit_test(test_exponential_schemas),
        cmocka_unit_test(test_patterns),
        cmocka_unit_test(test_contradictions),
        cmocka_unit_test(test_keywords),
        cmocka_unit_test(test_one_of),
        cmocka_unit_test(test_unicode),
        cmocka_unit_test(test_failing_allocations),
        cmocka_unit_test(test_only_objects),
        cmocka_unit_test(test_docs_list_every_keyword),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
