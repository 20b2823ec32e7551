/* SPDX-License-Identifier: Apache-2.0
 *
 * Replaces and adds members; everything else stays byte for byte.
 */
#include "json_edit.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

static void test_edit(void **state)
{
    (void)state;
    static const nib_json_edit edits[] = {{.key = "q", .value = "{\"a\": 1}"},
                                          {.key = "tie", .value = "false"},
                                          {.key = "type", .value = "2", .only_if_present = true}};
    static const struct {
        const char *from, *to;
    } cases[] = {
        {"{}", "{\n  \"q\": {\"a\": 1},\n  \"tie\": false}"},
        {"{\n  \"x\": 1e-05,\n  \"tie\" :  true\n}\n",
         "{\n  \"x\": 1e-05,\n  \"tie\" :  false,\n  \"q\": {\"a\": 1}\n}\n"},
        {"{\"q\":{\"old\":[1,{\"tie\":3}]},\"y\":NaN,\"tie\":null}",
         "{\"q\":{\"a\": 1},\"y\":NaN,\"tie\":false}"},
        {"\xef\xbb\xbf{\"t\\u0069e\":\"no\",\"\\u0071\":\"}\"}",
         "\xef\xbb\xbf{\"t\\u0069e\":false,\"\\u0071\":{\"a\": 1}}"},
        {"{\"type\":1,\"q\":0,\"tie\":0}", "{\"type\":2,\"q\":{\"a\": 1},\"tie\":false}"},
        {"{\"a\":[[],{}],\"q\":-1.50e+3}", "{\"a\":[[],{}],\"q\":{\"a\": 1},\n  \"tie\": false}"},
    };
    const nib_allocator a = nib__allocator_default();
    for (size_t i = 0; i < COUNT(cases); i++) {
        nib_text out;
        nib_err err;
        nib__text_init(&out, &a);
        if (nib__json_edit(&out, "config.json", cases[i].from, strlen(cases[i].from), edits,
                           COUNT(edits), &err) != NIB_OK)
            fail_msg("%s: %s", cases[i].from, err.text);
        assert_string_equal(out.at, cases[i].to);
        nib__text_free(&out);
    }
}

/* Without a value a member is removed with one comma, and never added. */
static void test_removes_members(void **state)
{
    (void)state;
    static const nib_json_edit edit = {.key = "q"};
    static const char *const cases[][2] = {
        {"{\"a\": 1, \"q\": {\"old\": [1]} }", "{\"a\": 1 }"},
        {"{\n  \"a\": 1,\n  \"q\": 2,\n  \"b\": 3\n}", "{\n  \"a\": 1,\n  \"b\": 3\n}"},
        {"{ \"q\": 2,  \"b\": 3}", "{ \"b\": 3}"},
        {"{ \"q\": 2 }", "{  }"},
        {"{\"a\": 1}", "{\"a\": 1}"},
        {"{}", "{}"}};
    const nib_allocator a = nib__allocator_default();
    for (size_t i = 0; i < COUNT(cases); i++) {
        nib_text out;
        nib__text_init(&out, &a);
        assert_int_equal(
            nib__json_edit(&out, "x", cases[i][0], strlen(cases[i][0]), &edit, 1, NULL), NIB_OK);
        assert_string_equal(out.at, cases[i][1]);
        nib__text_free(&out);
    }
}

static void test_refuses_bad_text(void **state)
{
    (void)state;
    static const nib_json_edit edit = {.key = "q", .value = "1"};
    static const char *const texts[] = {"", "[]", "{\"a\":1", "{\"a\" 1}", "{} x", "{\"q\":}"};
    const nib_allocator a = nib__allocator_default();
    for (size_t i = 0; i < COUNT(texts); i++) {
        nib_text out;
        nib_err err;
        nib__text_init(&out, &a);
        assert_int_equal(
            nib__json_edit(&out, "config.json", texts[i], strlen(texts[i]), &edit, 1, &err),
            NIB_BAD_INPUT);
        nib__text_free(&out);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_edit),
                                       cmocka_unit_test(test_removes_members),
                                       cmocka_unit_test(test_refuses_bad_text)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
