/* SPDX-License-Identifier: Apache-2.0
 *
 * Schemas that are refused: each by a sentence with its place, and none is followed in part. And
 * that docs/schemas.md names every keyword.
 */
#include "constraining.h"
#include "failing.h"
#include "schema.h"

#include <stdio.h>

static void expect_refused(const char *text, size_t size, nib_status status, const char *part)
{
    const nib_allocator a = nib__allocator_default();
    const nib_named_text named = {"schema", text, size};
    nib_schema schema;
    nib_err err = {.status = NIB_OK};
    if (nib__schema_read(&schema, &named, &a, &err) == NIB_OK)
        fail_msg("%.200s is not refused", text);
    if (strstr(err.text, part) == NULL)
        fail_msg("%.200s: \"%s\" lacks \"%s\"", text, err.text, part);
    assert_int_equal(err.status, status);
    assert_memory_equal(err.text, "schema", 6);
}

static void refused(const char *text, nib_status status, const char *part)
{
    expect_refused(text, strlen(text), status, part);
}

static void unsupported(const char *text, const char *part)
{
    refused(text, NIB_UNSUPPORTED, part);
}

static void bad(const char *text, const char *part) { refused(text, NIB_BAD_INPUT, part); }

static void opens(const char *text)
{
    const nib_allocator a = nib__allocator_default();
    const nib_named_text named = {"schema", text, strlen(text)};
    nib_schema schema;
    nib_err err = {.status = NIB_OK};
    if (nib__schema_read(&schema, &named, &a, &err) != NIB_OK)
        fail_msg("%.200s: %s", text, err.text);
    nib__schema_close(&schema);
}

/* `before`, then `part` so many times, then `middle`, then `after` as many times, then `end`. */
static nib_text repeated(const char *before, const char *part, const char *middle,
                         const char *after, const char *end, int times)
{
    static nib_allocator a; /* which the text refers to */
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
        expect_refused(deep.at, deep.size, NIB_BAD_INPUT, "nested deeper than 64");
        nib__text_free(&deep);
        deep = repeated("", nests[i][0], nests[i][1], nests[i][2], "", 63);
        opens(deep.at);
        nib__text_free(&deep);
    }
    nib_text value = repeated("{\"const\":", "[", "1", "]", "}", 100000);
    expect_refused(value.at, value.size, NIB_BAD_INPUT, "nested deeper than 64");
    nib__text_free(&value);
    value = repeated("{\"default\":", "[", "1", "]", "}", 100000);
    expect_refused(value.at, value.size, NIB_BAD_INPUT, "nested deeper than");
    nib__text_free(&value);
}

static void test_references(void **state)
{
    (void)state;
    /* Cycles without a value inside, and with one that never ends. */
    bad("{\"$ref\":\"#\"}", "schema.$ref: the reference leads only to itself");
    bad("{\"$ref\":\"#/$defs/a\",\"$defs\":{\"a\":{\"$ref\":\"#/$defs/"
        "b\"},\"b\":{\"anyOf\":[{\"$ref\":"
        "\"#/$defs/a\"},{\"$ref\":\"#\"}]}}}",
        "leads only to itself");
    opens("{\"anyOf\":[{\"$ref\":\"#\"},{\"type\":\"null\"}]}");
    /* Never fetched, never guessed. */
    unsupported(
        "{\"$ref\":\"https://example.com/a.json\"}",
        "schema.$ref: \"https://example.com/a.json\" is not supported, and nothing is fetched");
    unsupported("{\"$ref\":\"file:///etc/passwd\"}", "is not supported, and nothing is fetched");
    unsupported("{\"$ref\":\"other.json#/$defs/a\"}", "is not supported, and nothing is fetched");
    unsupported("{\"$ref\":\"#/properties/a\"}", "is not supported, and nothing is fetched");
    unsupported("{\"$ref\":\"#/$defs/a%2Fb\"}", "is not supported, and nothing is fetched");
    unsupported("{\"$ref\":\"#/$defs/a/b\"}", "is not supported, and nothing is fetched");
    unsupported("{\"$ref\":\"\"}", "is not supported, and nothing is fetched");
    bad("{\"$ref\":\"#/$defs/none\"}", "schema.$ref: there is no \"#/$defs/none\" in the schema");
    bad("{\"$ref\":1}", "schema.$ref: expected a reference");
    bad("{\"$defs\":{\"a\":{},\"a\":{}}}", "\"#/$defs/a\" is defined twice");
    unsupported("{\"properties\":{\"a\":{\"$defs\":{}}}}",
                "schema.properties.a.$defs: it is only allowed at the root of the schema");
    unsupported("{\"properties\":{\"a\":{\"$id\":\"x\"}}}", "schema.properties.a.$id");
    unsupported("{\"$ref\":\"#/$defs/a\",\"type\":\"null\",\"$defs\":{\"a\":{}}}",
                "\"type\" beside a reference");
    unsupported("{\"$ref\":\"#/$defs/a\",\"minLength\":1,\"$defs\":{\"a\":{}}}",
                "\"$ref\" beside other keywords");
    opens("{\"$ref\":\"#/$defs/a~1b~0\",\"$defs\":{\"a/b~\":{\"type\":\"null\"}}}");
}

/* A required reference to itself, directly and over others. */
static void test_endless(void **state)
{
    (void)state;
    bad("{\"type\":\"object\",\"properties\":{\"n\":{\"$ref\":\"#\"}},\"required\":[\"n\"]}",
        "schema: no value of the schema ends within 64 levels");
    bad("{\"type\":\"array\",\"items\":{\"$ref\":\"#\"},\"minItems\":1}",
        "no value of the schema ends");
    bad("{\"$ref\":\"#/$defs/"
        "a\",\"$defs\":{\"a\":{\"type\":\"array\",\"prefixItems\":[{\"anyOf\":[{\"$ref\":"
        "\"#/$defs/a\"},{\"$ref\":\"#/$defs/"
        "b\"}]}],\"minItems\":1},\"b\":{\"type\":\"object\",\"required\":"
        "[\"x\"],\"additionalProperties\":{\"$ref\":\"#/$defs/a\"}}}}",
        "no value of the schema ends");
    opens("{\"type\":\"array\",\"items\":{\"$ref\":\"#\"}}");
    /* As long as what it takes fits. */
    nib_text long_way = repeated("{\"const\":", "[", "", "]", "}", 63);
    opens(long_way.at);
    nib__text_free(&long_way);
}

static void test_budgets(void **state)
{
    (void)state;
    nib_text text = repeated("{\"enum\":[0", ",\"x\"", "", "", "]}", 100000);
    expect_refused(text.at, text.size, NIB_BAD_INPUT, "have more than 8192 values");
    nib__text_free(&text);
    text = repeated("{\"enum\":[0", ",\"x\"", "", "", "]}", 8191);
    opens(text.at);
    nib__text_free(&text);
    text = repeated("{\"title\":\"", "0123456789abcdef", "", "", "\"}", 1 << 16);
    expect_refused(text.at, text.size, NIB_BAD_INPUT, "the schema has 1,048,");
    assert_true(text.size > NIB_SCHEMA_BYTES);
    nib__text_free(&text);
    text = repeated("{\"anyOf\":[{}", ",{\"type\":\"null\"}", "", "", "]}", 9000);
    expect_refused(text.at, text.size, NIB_BAD_INPUT, "more than 8192 schemas");
    nib__text_free(&text);
    text =
        repeated("{\"anyOf\":[{\"type\":\"object\"}", ",{\"type\":\"object\"}", "", "", "]}", 15);
    expect_refused(text.at, text.size, NIB_UNSUPPORTED,
                   "schema: 16 alternatives have the same type, over the limit of 15");
    nib__text_free(&text);
    text = repeated("{\"prefixItems\":[true", ",true", "", "", "]}", 1 << 16);
    expect_refused(text.at, text.size, NIB_BAD_INPUT,
                   "schema.prefixItems: the list has more than 8192 schemas");
    nib__text_free(&text);
    /* Many small constants are one. */
    text = repeated("{\"anyOf\":[{\"const\":1}", ",{\"const\":\"a\"}", "", "", "]}", 1000);
    opens(text.at);
    nib__text_free(&text);
    bad("{\"type\":\"array\",\"minItems\":1000000000}",
        "schema.minItems: 1000000000 is not a whole number from 0 to 65535");
    bad("{\"type\":\"string\",\"maxLength\":1e9}", "schema.maxLength: 1e9 is not a whole number");
    bad("{\"type\":\"array\",\"maxItems\":-1}", "schema.maxItems: -1 is not");
    bad("{\"type\":\"array\",\"maxItems\":1.5}", "1.5 is not");
    unsupported("{\"type\":\"integer\",\"minimum\":1e3}", "minimum 1e3 is not a whole number");
    unsupported("{\"type\":\"integer\",\"maximum\":1234567890123456789}", "at most 18 digits");
    unsupported("{\"type\":\"number\",\"maximum\":0.1234567891}", "more than 9 digits");
    unsupported("{\"type\":\"number\",\"maximum\":1234567890}", "more than 9 digits");
}

/* Alternatives of alternatives: the sum is bounded, too. */
static void test_blow_up(void **state)
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
    expect_refused(text.at, text.size, NIB_BAD_INPUT, "more than 65536 alternatives");
    nib__text_clear(&text);
    /* A chain of references, the last one first. */
    nib__text_str(&text, "{\"$ref\":\"#/$defs/0\",\"$defs\":{\"4000\":{\"type\":\"null\"}");
    for (int i = 0; i < 4000; i++)
        nib__text_format(&text, ",\"%d\":{\"$ref\":\"#/$defs/%d\"}", i, i + 1);
    nib__text_str(&text, "}}");
    opens(text.at);
    nib__text_free(&text);
}

static void test_patterns(void **state)
{
    (void)state;
    /* No expression of a request is ever compiled. */
    unsupported("{\"type\":\"string\",\"pattern\":\"(a+)+$\"}",
                "schema.pattern: \"pattern\" cannot be enforced, and no keyword is ignored");
    unsupported("{\"type\":\"string\",\"pattern\":\"(?<=x)*\"}", "schema.pattern");
    unsupported("{\"type\":\"object\",\"patternProperties\":{\"*\":{}}}",
                "schema.patternProperties");
    unsupported("{\"properties\":{\"a\":{\"type\":\"string\",\"format\":\"regex\"}}}",
                "schema.properties.a.format: \"regex\" cannot be enforced");
}

static void test_contradictions(void **state)
{
    (void)state;
    bad("{\"type\":\"array\",\"minItems\":3,\"maxItems\":2}", "minItems 3 is over maxItems 2");
    bad("{\"type\":\"array\",\"minItems\":1,\"items\":false}", "minItems 1 is over 0, the most");
    bad("{\"type\":\"string\",\"minLength\":3,\"maxLength\":2}", "minLength 3 is over maxLength 2");
    bad("{\"type\":\"integer\",\"minimum\":3,\"maximum\":2}", "no number lies between the bounds");
    bad("{\"type\":\"integer\",\"exclusiveMinimum\":3,\"exclusiveMaximum\":4}", "no number lies");
    bad("{\"type\":\"object\",\"properties\":{\"a\":{}},\"required\":[\"b\"],"
        "\"additionalProperties\":"
        "false}",
        "schema: \"b\" is required, but additionalProperties false forbids it");
    bad("{\"enum\":[]}", "schema.enum: the enum is empty");
    bad("{\"anyOf\":[]}", "schema.anyOf: the list of schemas is empty");
    bad("{\"type\":\"string\",\"enum\":[\"a\",1]}", "integer is one of the values");
    bad("{\"type\":\"integer\",\"const\":1.5}", "number is one of the values");
    bad("{\"type\":\"null\",\"const\":{}}", "object is one of the values");
    bad("{\"properties\":{\"a\":false}}", "schema.properties.a: false allows no value");
    bad("{\"type\":\"string\",\"minimum\":1}", "\"minimum\" does not apply to the \"type\"");
    bad("{\"minimum\":1,\"minLength\":1}", "apply to several types");
    bad("{\"type\":\"text\"}", "schema.type: \"text\" is not a type");
    bad("{\"type\":[\"string\",\"string\"]}", "\"string\" is given twice");
    bad("{\"type\":[]}", "expected the name of a type");
    bad("{\"type\":\"string\",\"type\":\"string\"}", "schema.type: it is given twice");
    bad("{\"properties\":{\"a\":{},\"\\u0061\":{}}}", "\"a\" is given twice");
    bad("{\"exclusiveMinimum\":true}", "schema.exclusiveMinimum: expected a number");
    bad("{\"required\":[1]}", "schema.required: expected a list of names");
    bad("{\"items\":1}", "schema.items: expected a schema");
    bad("7", "schema: expected a schema, which is an object");
    bad("", "schema: line 1, column 1: expected a value");
    bad("{\"type\":\"null\"", "schema: line 1");
    bad("{} {}", "nothing after the value");
    bad("{\"const\":\"\\ud800\"}", "half of a surrogate pair");
}

/* Whatever is not enforced is refused, known to JSON Schema or not. */
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
        char text[128], place[64];
        snprintf(text, sizeof text, "{\"properties\":{\"a\":{\"%s\":{}}}}", others[i]);
        snprintf(place, sizeof place, "schema.properties.a.%s: \"%s\" cannot be enforced",
                 others[i], others[i]);
        unsupported(text, place);
    }
    unsupported("{\"type\":\"array\",\"items\":[{}]}", "as \"prefixItems\"");
    unsupported("{\"allOf\":[{\"type\":\"string\"},{\"minLength\":1}]}", "allOf of 2 schemas");
    unsupported("{\"anyOf\":[{\"type\":\"null\"}],\"enum\":[1]}", "beside other keywords");
    unsupported("{\"enum\":[1],\"minimum\":0}", "beside other keywords");
    unsupported("{\"type\":\"string\",\"format\":\"email\"}", "\"email\" cannot be enforced");
    unsupported("{\"type\":\"string\",\"format\":\"date\",\"minLength\":1}", "has its own length");
    unsupported("{\"type\":\"null\",\"anyOf\":[{},{}]}", "beside a reference or alternatives");
    bad("{\"type\":\"string\",\"items\":{}}", "\"items\" does not apply");
}

static void test_one_of(void **state)
{
    (void)state;
    unsupported("{\"oneOf\":[{\"type\":\"integer\"},{\"type\":\"number\"}]}",
                "schema: schemas 0 and 1 of oneOf are not told apart");
    unsupported("{\"oneOf\":[{\"type\":\"null\"},{\"type\":\"string\"},{\"const\":\"a\"}]}",
                "schemas 1 and 2 of oneOf");
    unsupported("{\"oneOf\":[{\"const\":1},{\"const\":1.0}]}", "not told apart");
    unsupported("{\"oneOf\":[{\"enum\":[\"a\",\"b\"]},{\"enum\":[\"b\",\"c\"]}]}",
                "not told apart");
    unsupported("{\"oneOf\":[{\"type\":\"object\"},{\"type\":\"object\"}]}", "not told apart");
    unsupported("{\"oneOf\":[{\"properties\":{\"k\":{\"const\":1}}},{\"properties\":{\"k\":{"
                "\"const\":2}}}]}",
                "not told apart");
    unsupported("{\"oneOf\":[{\"type\":\"array\"},{\"type\":\"array\"}]}", "not told apart");
    nib_text text = repeated("{\"oneOf\":[{\"const\":0}", "", "", "", "", 0);
    for (int i = 1; i < 4000; i++)
        nib__text_format(&text, ",{\"const\":%d}", i);
    nib__text_str(&text, "]}");
    expect_refused(text.at, text.size, NIB_UNSUPPORTED, "need more than 2097152 comparisons");
    nib__text_free(&text);
    opens("{\"oneOf\":[{\"enum\":[\"a\",1]},{\"enum\":[\"b\",2,null]},{\"type\":\"object\"},{"
          "\"type\":"
          "\"array\"}]}");
    opens("{\"oneOf\":[{\"properties\":{\"k\":{\"const\":1}},\"required\":[\"k\"]},{\"properties\":"
          "{\"k\":{\"const\":2}}}]}");
}

/* Names and values of any characters, in the schema and in sentences. */
static void test_unicode(void **state)
{
    (void)state;
    opens("{\"properties\":{\"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\":{},\"\\u0000\":{},\"\":{}}}");
    unsupported("{\"properties\":{\"\xc3\xa9\":{\"pattern\":\"a\"}}}",
                "schema.properties.\xc3\xa9.pattern");
    /* Of a long place the middle is left out, never the sentence. */
    nib_text deep =
        repeated("", "{\"properties\":{\"0123456789\xc3\xa9\":", "{\"not\":1}", "}}", "", 50);
    expect_refused(deep.at, deep.size, NIB_UNSUPPORTED, "\xc3\xa9.not: \"not\" cannot be enforced");
    nib__text_free(&deep);
    unsupported("{\"properties\":{\"a\\u001b[31m\\n\":{\"pattern\":\"a\"}}}",
                "schema.properties.a\\u001b[31m\\n.pattern");
    bad("{\"properties\":{\"\xff\":{}}}", "not valid UTF-8");
}

static void test_failing_allocations(void **state)
{
    static const char text[] =
        "{\"$ref\":\"#/$defs/"
        "a\",\"$defs\":{\"a\":{\"type\":[\"object\",\"null\"],\"properties\":{\"x\":"
        "{\"enum\":[1,\"\\u0001\",[2,{\"y\":3}]]},\"z\":{\"anyOf\":[{\"const\":1},{\"const\":2},{"
        "\"type\":"
        "\"array\"}]}},\"required\":[\"x\",\"w\"]}}}";
    bool done = false;
    (void)state;
    for (int n = 0; !done; n++) {
        failing f = {.left = n};
        const nib_allocator a = failing_allocator(&f);
        const nib_named_text named = {"schema", text, sizeof text - 1};
        nib_schema schema;
        nib_err err = {.status = NIB_OK};
        done = nib__schema_read(&schema, &named, &a, &err) == NIB_OK;
        if (done)
            nib__schema_close(&schema);
        else
            assert_int_equal(err.status, NIB_NO_MEMORY);
        assert_int_equal(f.live, 0);
    }
}

/* The page has a row for each keyword. */
static void test_page(void **state)
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
        cmocka_unit_test(test_endless),
        cmocka_unit_test(test_budgets),
        cmocka_unit_test(test_blow_up),
        cmocka_unit_test(test_patterns),
        cmocka_unit_test(test_contradictions),
        cmocka_unit_test(test_keywords),
        cmocka_unit_test(test_one_of),
        cmocka_unit_test(test_unicode),
        cmocka_unit_test(test_failing_allocations),
        cmocka_unit_test(test_page),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
