/* SPDX-License-Identifier: Apache-2.0
 *
 * Tools and calls in bodies of requests, as they reach a template: arguments as objects, and as
 * text. What is refused is tests/serve/check_answers'.
 */
#include "api_request.h"

#include "failing.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static bool read(nib_api_request *out, const char *body, nib_arena *arena, nib_api_error *error)
{
    static const nib_api_limits limits = {.model = "m", .vocab = 100};
    return nib__api_request_read(out, NIB_ROUTE_CHAT, body, strlen(body), &limits, arena, error);
}

#define CALLED(arguments)                                                                          \
    "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", "         \
    "\"content\": null, \"tool_calls\": [{\"id\": \"i\", \"type\": \"function\", \"function\": "   \
    "{\"arguments\": " arguments ", \"name\": \"f\"}}]}, {\"role\": \"tool\", \"content\": \"r\"," \
    " \"tool_call_id\": \"i\"}]"
#define WRITTEN(arguments)                                                                         \
    "[{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": null, "     \
    "\"tool_calls\": [{\"type\": \"function\", \"id\": \"i\", \"function\": {\"name\": \"f\", "    \
    "\"arguments\": " arguments "}}]}, {\"role\": \"tool\", \"content\": \"r\", "                  \
    "\"tool_call_id\": \"i\"}]"

static void test_messages(void **state)
{
    static const struct {
        const char *body, *object, *text;
    } cases[] = {
        {CALLED("\"{}\"") "}", WRITTEN("{}"), WRITTEN("\"{}\"")},
        {CALLED("\" {\\\"a\\\":1.50,\\n\\\"b\\\" :[true,null,{}, \\\"\\u00e9\\\\n\\\"]}\\n\"") "}",
         WRITTEN("{\"a\": 1.50, \"b\": [true, null, {}, \"\xc3\xa9\\n\"]}"),
         WRITTEN("\"{\\\"a\\\": 1.50, \\\"b\\\": [true, null, {}, \\\"\xc3\xa9\\\\n\\\"]}\"")},
    };
    const nib_allocator a = nib__allocator_default();
    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        nib_api_request q;
        nib_api_error error;
        nib_arena arena;
        nib__arena_init(&arena, &a, 0);
        if (!read(&q, cases[i].body, &arena, &error))
            fail_msg("%s", error.text);
        assert_string_equal(q.messages, cases[i].object);
        assert_string_equal(q.messages_text, cases[i].text);
        assert_int_equal(q.messages_size, strlen(cases[i].object));
        assert_int_equal(q.messages_text_size, strlen(cases[i].text));
        nib__arena_free(&arena);
    }
}

static void test_wrong_arguments(void **state)
{
    static const char *const cases[] = {
        CALLED("\"\"") "}",
        CALLED("\"1\"") "}",
        CALLED("\"{} {}\"") "}",
        CALLED("\"{\\\"a\\\": \\\"\\\\ud800\\\"}\"") "}",
        CALLED("\"{\\\"\\\\u0000\\\": 1}\"") "}",
    };
    const nib_allocator a = nib__allocator_default();
    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        nib_api_request q;
        nib_api_error error;
        nib_arena arena;
        nib__arena_init(&arena, &a, 0);
        assert_false(read(&q, cases[i], &arena, &error));
        assert_int_equal(error.http, 400);
        assert_string_equal(error.param, "messages[1].tool_calls[0].function.arguments");
        nib__arena_free(&arena);
    }
}

static const char with_tools[] =
    CALLED("\"{\\\"a\\\": \\\"b\\\"}\"") ", \"tools\": [{\"type\": \"function\", \"function\": "
                                         "{\"name\": \"f\", \"description\": null, "
                                         "\"parameters\": {\"type\": \"object\"}}}, {\"function\": "
                                         "{\"name\": \"g\"}, \"type\": "
                                         "\"function\"}], \"tool_choice\": {\"type\": "
                                         "\"function\", \"function\": {\"name\": \"g\"}}}";

static void test_tools(void **state)
{
    const nib_allocator a = nib__allocator_default();
    nib_api_request q;
    nib_api_error error;
    nib_arena arena;
    (void)state;
    nib__arena_init(&arena, &a, 0);
    assert_true(read(&q, with_tools, &arena, &error));
    assert_int_equal(q.tool_count, 2);
    assert_int_equal(q.tool_choice, NIB_TOOLS_NAMED);
    assert_int_equal(q.tool_named, 1);
    assert_true(q.parallel_calls && nib__api_may_call(&q));
    assert_string_equal(q.tool_list[0].name, "f");
    assert_int_equal(q.tool_list[0].parameters_size, strlen("{\"type\": \"object\"}"));
    assert_null(q.tool_list[1].parameters);
    assert_true(q.tools[0] == '[' && q.tools[q.tools_size - 1] == ']');
    nib__arena_free(&arena);
}

static void test_failing_allocations(void **state)
{
    failing memory = {.left = -1};
    const nib_allocator a = failing_allocator(&memory);
    bool whole = false;
    (void)state;
    for (int n = 0; n < 200 && !whole; n++) {
        nib_api_request q;
        nib_api_error error;
        nib_arena arena;
        nib__arena_init(&arena, &a, 0);
        memory.left = n;
        whole = read(&q, with_tools, &arena, &error);
        assert_int_equal(error.http, whole ? 0 : 503);
        nib__arena_free(&arena);
        assert_int_equal(memory.live, 0);
    }
    assert_true(whole);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_messages),
        cmocka_unit_test(test_wrong_arguments),
        cmocka_unit_test(test_tools),
        cmocka_unit_test(test_failing_allocations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
