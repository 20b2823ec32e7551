/* SPDX-License-Identifier: Apache-2.0
 *
 * Tools and calls in request bodies, as a template sees them: arguments as objects, and as text.
 * tests/serve/check_answers covers refusals.
 */
#include "api_request.h"

#include "failing.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <time.h>

#include <cmocka.h>

#include "refused_body.h"

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
        CALLED("\"{\\\"a\\\": 1e999}\"") "}",
        CALLED("\"{\\\"a\\\": -1.5E400}\"") "}",
    };
    const nib_allocator a = nib__allocator_default();
    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        nib_api_request q;
        nib_api_error error;
        nib_arena arena;
        nib__arena_init(&arena, &a, 0);
        assert_false(read(&q, cases[i], &arena, &error));
        refused_body(&error, "messages[1].tool_calls[0].function.arguments");
        nib__arena_free(&arena);
    }
}

#define CALL(id)                                                                                   \
    "{\"id\": \"" id                                                                               \
    "\", \"type\": \"function\", \"function\": {\"name\": \"f\", \"arguments\": \"{}\"}}"
#define CALLS(calls) "{\"role\": \"assistant\", \"tool_calls\": [" calls "]}"
#define ANSWER(id) "{\"role\": \"tool\", \"content\": \"\", \"tool_call_id\": \"" id "\"}"

/* A tool answer names a call of an earlier message, whatever follows. */
static void test_answers_name_earlier_calls(void **state)
{
    static const struct {
        const char *messages, *param; /* NULL: accepted */
    } cases[] = {
        {CALLS(CALL("b") ", " CALL("a")) ", " ANSWER("a") ", " ANSWER("b"), NULL},
        {CALLS(CALL("a")) ", " ANSWER("a") ", " CALLS(CALL("a")) ", " ANSWER("a"), NULL},
        {CALLS(CALL("a")) ", " ANSWER("b") ", " CALLS(CALL("b")), "messages[1].tool_call_id"},
        {CALLS(CALL("a")) ", " CALLS(CALL("ab")) ", " ANSWER("ab") ", " ANSWER("abc"),
         "messages[3].tool_call_id"},
        {ANSWER(""), "messages[0].tool_call_id"},
        {CALLS(CALL("")) ", " ANSWER(""), NULL},
    };
    const nib_allocator a = nib__allocator_default();
    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        nib_api_request q;
        nib_api_error error;
        nib_arena arena;
        char body[1024];
        nib__arena_init(&arena, &a, 0);
        snprintf(body, sizeof body, "{\"messages\": [%s]}", cases[i].messages);
        assert_int_equal(read(&q, body, &arena, &error), cases[i].param == NULL);
        if (cases[i].param == NULL)
            assert_int_equal(error.http, 0);
        else
            refused_body(&error, cases[i].param);
        nib__arena_free(&arena);
    }
}

/* As many calls and answers as fit in a body of 8 MB, each answering the first call. */
static void test_many_answers(void **state)
{
    enum { COUNT_OF_EACH = 60000 };
    const nib_allocator a = nib__allocator_default();
    nib_api_request q;
    nib_api_error error;
    nib_arena arena;
    nib_text body;
    (void)state;
    nib__text_init(&body, &a);
    nib__text_format(&body, "{\"messages\": [{\"role\": \"assistant\", \"tool_calls\": [");
    for (int i = 0; i < COUNT_OF_EACH; i++)
        nib__text_format(&body, "%s" CALL("%d"), i > 0 ? ", " : "", i);
    nib__text_format(&body, "]}");
    for (int i = 0; i < COUNT_OF_EACH; i++)
        nib__text_format(&body, ", " ANSWER("0"));
    nib__text_format(&body, "]}");
    assert_false(body.failed);
    nib__arena_init(&arena, &a, 0);
    const clock_t began = clock();
    assert_true(read(&q, body.at, &arena, &error));
    assert_true((double)(clock() - began) / CLOCKS_PER_SEC < 4);
    nib__arena_free(&arena);
    nib__text_free(&body);
}

/* Reading stops at text too long for any context: the invalid JSON at its end is never seen. */
static void test_stops_reading_past_the_context(void **state)
{
    static const nib_api_limits limits = {
        .model = "m", .vocab = 100, .context = 10, .token_longest = 20};
    static const char body[] =
        "{\"messages\": [{\"role\": \"user\", \"content\": \""
        "0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567"
        "0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567"
        "\"}, {\"role\": \"user\", \"content\": \"a\"}, nothing";
    const nib_allocator a = nib__allocator_default();
    nib_api_request q;
    nib_api_error error;
    nib_arena arena;
    (void)state;
    nib__arena_init(&arena, &a, 0);
    assert_false(
        nib__api_request_read(&q, NIB_ROUTE_CHAT, body, strlen(body), &limits, &arena, &error));
    refused_body(&error, "messages");
    assert_string_equal(error.code, "context_length_exceeded");
    nib__arena_free(&arena);
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
        cmocka_unit_test(test_answers_name_earlier_calls),
        cmocka_unit_test(test_many_answers),
        cmocka_unit_test(test_stops_reading_past_the_context),
        cmocka_unit_test(test_tools),
        cmocka_unit_test(test_failing_allocations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
