/* SPDX-License-Identifier: Apache-2.0
 *
 * Request bodies with errors in nested members, and which member the error names.
 * tests/serve checks whole answers.
 */
#include "api_request.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "refused_body.h"

typedef struct wrong {
    const char *body, *param;
} wrong;

static const nib_api_limits limits = {.model = "tales", .vocab = 2256};

#define USER "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], "

static bool read_body(nib_api_request *out, const char *body, nib_arena *arena,
                      nib_api_error *error)
{
    return nib__api_request_read(out, NIB_ROUTE_CHAT, body, strlen(body), &limits, arena, error);
}

static void expect_wrong(const wrong *cases, size_t count)
{
    const nib_allocator a = nib__allocator_default();
    for (size_t i = 0; i < count; i++) {
        nib_api_request request;
        nib_api_error error;
        nib_arena arena;
        nib__arena_init(&arena, &a, 0);
        if (read_body(&request, cases[i].body, &arena, &error))
            fail_msg("%s: read", cases[i].body);
        refused_body(&error, cases[i].param);
        nib__arena_free(&arena);
    }
}

/* A duplicate key is refused: one of its values would be ignored. */
static void test_rejects_duplicate_keys(void **state)
{
    static const wrong cases[] = {
        {"{\"messages\": [{\"role\": \"user\", \"content\": \"x\", \"role\": \"system\"}]}",
         "messages[0].role"},
        {"{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}, {\"content\": \"a\", "
         "\"c\\u006fntent\": \"b\", \"role\": \"user\"}]}",
         "messages[1].content"},
        {"{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"a\", "
         "\"text\": \"b\"}]}]}",
         "messages[0].content.text"},
        {"{\"messages\": [{\"role\": \"assistant\", \"tool_calls\": null, \"tool_calls\": []}]}",
         "messages[0].tool_calls"},
        {USER "\"response_format\": {\"type\": \"text\", \"type\": \"json_object\"}}",
         "response_format.type"},
        {USER "\"response_format\": {\"type\": \"json_schema\", \"json_schema\": {\"schema\": {}, "
              "\"schema\": {\"type\": \"null\"}}}}",
         "response_format.json_schema.schema"},
        {USER "\"stream\": true, \"stream_options\": {\"include_usage\": true, \"include_usage\": "
              "false}}",
         "stream_options.include_usage"},
        {USER "\"chat_template_kwargs\": {\"a\": {\"b\": 1}, \"\\u0061\": 2}}",
         "chat_template_kwargs"},
    };
    (void)state;
    expect_wrong(cases, COUNT(cases));
}

static void test_rejects_wrong_members(void **state)
{
    static const wrong cases[] = {
        {USER "\"stream_options\": {\"include_usage\": tru}}", ""},
        {USER "\"stream_options\": {\"include_usage\"}}", ""},
        {USER "\"response_format\": {\"type\": }}", ""},
        {USER "\"response_format\": {\"json_schema\": {\"strict\": nul}}}", ""},
        {USER "\"response_format\": {\"json_schema\": {\"strict\": 1}}}",
         "response_format.json_schema.strict"},
        {USER "\"response_format\": {\"json_schema\": {\"name\": null}}}",
         "response_format.json_schema.name"},
        {USER "\"response_format\": {\"json_schema\": {\"description\": 1}}}",
         "response_format.json_schema.description"},
        {USER "\"response_format\": {\"json_schema\": {\"shema\": {}}}}",
         "response_format.json_schema.shema"},
        {USER "\"response_format\": {\"json_schema\": {\"schema\": []}}}",
         "response_format.json_schema.schema"},
        {USER "\"response_format\": {}}", "response_format.type"},
        {"{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"text\"}]}]}",
         "messages[0].content"},
        {"{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"a\", "
         "\"mood\": \"sad\"}]}]}",
         "messages[0].content.mood"},
        {"{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"a\", "
         "\"file\": {}}]}]}",
         "messages[0].content"},
        {USER "\"chat_template_kwargs\": {\"a\": 1, \"messages\": []}}", "chat_template_kwargs"},
        {USER "\"chat_template_kwargs\": {\"tools\": null}}", "chat_template_kwargs"},
        {USER "\"ignore_eos\": true, \"response_format\": {\"type\": \"json_object\"}}",
         "ignore_eos"},
    };
    (void)state;
    expect_wrong(cases, COUNT(cases));
}

/* The 65th variable of a template is refused. */
static void test_many_variables(void **state)
{
    (void)state;
    const nib_allocator a = nib__allocator_default();
    for (int count = NIB_API_VARIABLES; count <= NIB_API_VARIABLES + 1; count++) {
        nib_api_request request;
        nib_api_error error;
        nib_arena arena;
        nib_text body;
        nib__arena_init(&arena, &a, 0);
        nib__text_init(&body, &a);
        nib__text_str(&body, USER "\"chat_template_kwargs\": {");
        for (int i = 0; i < count; i++)
            nib__text_format(&body, "%s\"v%d\": 1", i == 0 ? "" : ", ", i);
        nib__text_format(&body, "}}%c", 0);
        assert_int_equal(read_body(&request, body.at, &arena, &error), count == NIB_API_VARIABLES);
        if (count > NIB_API_VARIABLES)
            refused_body(&error, "chat_template_kwargs");
        nib__text_free(&body);
        nib__arena_free(&arena);
    }
}

/* null counts as absent, both where OpenAI's reference allows it and in answers that a client sends
 * back. */
static void test_null_counts_as_absent(void **state)
{
    static const char body[] =
        "{\"messages\": [{\"role\": \"user\", \"content\": \"x\", \"name\": null}, "
        "{\"role\": \"assistant\", \"content\": \"y\", \"refusal\": null, \"audio\": null}], "
        "\"response_format\": {\"type\": \"json_schema\", \"json_schema\": {\"name\": \"a\", "
        "\"description\": null, \"strict\": null, \"schema\": {\"type\": \"null\"}}}}";
    static const char messages[] = "[{\"role\": \"user\", \"content\": \"x\"}, "
                                   "{\"role\": \"assistant\", \"content\": \"y\"}]";
    const nib_allocator a = nib__allocator_default();
    nib_api_request request;
    nib_api_error error;
    nib_arena arena;
    (void)state;
    nib__arena_init(&arena, &a, 0);
    if (!read_body(&request, body, &arena, &error))
        fail_msg("%s", error.text);
    assert_string_equal(request.messages, messages);
    assert_int_equal(request.format, NIB_API_SCHEMA);
    assert_int_equal(request.schema_size, strlen("{\"type\": \"null\"}"));
    nib__arena_free(&arena);
}

/* safety_identifier overrides its older name, user, in either order. */
/* Negative: the model's generation_config.json, then Nibble's own defaults. */
static void test_absent_members(void **state)
{
    (void)state;
    const nib_allocator a = nib__allocator_default();
    nib_api_request request;
    nib_api_error error;
    nib_arena arena;
    nib__arena_init(&arena, &a, 0);
    assert_true(read_body(&request, "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}]}",
                          &arena, &error));
    assert_true(request.temperature == -1 && request.top_p == -1 && request.min_p == -1 &&
                request.repeat_penalty == -1);
    assert_int_equal(request.top_k, -1);
    assert_int_equal(request.max_tokens, -1);
    assert_int_equal(request.top, -1);
    assert_int_equal(request.n, 1);
    assert_int_equal(request.tool_choice, NIB_TOOLS_UNSET);
    assert_true(request.parallel_calls);
    nib__arena_free(&arena);
}

static void test_safety_identifier_overrides_user(void **state)
{
    static const struct {
        const char *body, *user;
    } cases[] = {{USER "\"user\": \"a\"}", "a"},
                 {USER "\"safety_identifier\": \"b\"}", "b"},
                 {USER "\"user\": \"a\", \"safety_identifier\": \"b\"}", "b"},
                 {USER "\"safety_identifier\": \"b\", \"user\": \"a\"}", "b"},
                 {USER "\"safety_identifier\": null, \"user\": \"a\"}", "a"}};
    const nib_allocator a = nib__allocator_default();
    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        nib_api_request request;
        nib_api_error error;
        nib_arena arena;
        nib__arena_init(&arena, &a, 0);
        if (!read_body(&request, cases[i].body, &arena, &error))
            fail_msg("%s", error.text);
        assert_string_equal(request.user, cases[i].user);
        nib__arena_free(&arena);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rejects_duplicate_keys),
        cmocka_unit_test(test_rejects_wrong_members),
        cmocka_unit_test(test_null_counts_as_absent),
        cmocka_unit_test(test_absent_members),
        cmocka_unit_test(test_many_variables),
        cmocka_unit_test(test_safety_identifier_overrides_user),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
