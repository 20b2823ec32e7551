/* SPDX-License-Identifier: Apache-2.0
 *
 * Request bodies with errors in nested members, and which member the error names.
 * tests/serve checks whole answers.
 */
#include "api_request.h"

#include "failing.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#include "refused_body.h"

typedef struct wrong {
    const char *body, *param;
} wrong;

static const nib_api_limits limits = {.model = "tales", .vocab = 2256};

#define USER "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], "
#define PROMPT "{\"prompt\": \"x\", "

/* A body that begins with a prompt is a completion's. */
static bool read_body(nib_api_request *out, const char *body, nib_arena *arena,
                      nib_api_error *error)
{
    const bool text = strncmp(body, PROMPT, strlen("{\"prompt\"")) == 0;
    return nib__api_request_read(out, text ? NIB_ROUTE_COMPLETIONS : NIB_ROUTE_CHAT, body,
                                 strlen(body), &limits, arena, error);
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
        {USER "\"stream_options\": 1}", "stream_options"},
        {USER "\"stream\": true, \"stream_options\": {\"include_obfuscation\": true}}",
         "stream_options.include_obfuscation"},
        {USER "\"stream\": true, \"stream_options\": {\"include_obfuscation\": 1}}",
         "stream_options.include_obfuscation"},
        {USER "\"chat_template_kwargs\": []}", "chat_template_kwargs"},
        {USER "\"chat_template_kwargs\": {\"a\": 1", ""},
        {USER "\"response_format\": {\"type\": \"text\", \"json_schema\": {\"schema\": {}}}}",
         "response_format.json_schema"},
        {USER "\"response_format\": {\"type\": \"json_schema\"}}", "response_format.json_schema"},
        {USER "\"user\": 5}", "user"},
        {USER "\"prompt_cache_key\": 5}", "prompt_cache_key"},
        {USER "\"store\": true}", "store"},
        {USER "\"store\": 1}", "store"},
        {USER "\"functions\": [{}]}", "functions"},
        {USER "\"functions\": {}}", "functions"},
        {USER "\"function_call\": \"auto\"}", "function_call"},
        {USER "\"function_call\": 1}", "function_call"},
        {USER "\"service_tier\": \"flex\"}", "service_tier"},
        {USER "\"modalities\": [\"audio\"]}", "modalities"},
        {USER "\"modalities\": [\"text\", \"audio\"]}", "modalities"},
        {USER "\"modalities\": []}", "modalities"},
        {USER "\"modalities\": \"text\"}", "modalities"},
        {USER "\"max_tokens\": 0}", "max_tokens"},
        {USER "\"max_tokens\": 2, \"max_completion_tokens\": 3}", "max_tokens"},
        {USER "\"temperature\": 1e999}", ""},
        {USER "\"n\": 1.5}", "n"},
        {USER "\"n\": 129}", "n"},
        {USER "\"logit_bias\": []}", "logit_bias"},
        {USER "\"logit_bias\": {\"a\": 1}}", "logit_bias"},
        {USER "\"logit_bias\": {\"1.5\": 1}}", "logit_bias"},
        {USER "\"logit_bias\": {\"-1\": 1}}", "logit_bias"},
        {USER "\"logit_bias\": {\"2256\": 1}}", "logit_bias"},
        {USER "\"logit_bias\": {\"1\": \"x\"}}", "logit_bias"},
        {USER "\"logit_bias\": {\"1\": 1e999}}", ""},
        {USER "\"logit_bias\": {\"1\": 101}}", "logit_bias"},
        {USER "\"logit_bias\": {\"1\": -101}}", "logit_bias"},
        {USER "\"logit_bias\": {\"0\": 1, \"-0\": 2}}", "logit_bias"},
        {USER "\"logit_bias\": {\"1\": 1", ""},
        {USER "\"tools\": {}}", "tools"},
        {USER "\"tools\": [5]}", "tools[0]"},
        {USER "\"tools\": [{\"type\": \"function\", \"function\": 5}]}", "tools[0].function"},
        {USER "\"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"f\", "
              "\"description\": 5}}]}",
         "tools[0].function.description"},
        {USER "\"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"f\", "
              "\"parameters\": 5}}]}",
         "tools[0].function.parameters"},
        {USER "\"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"f\", "
              "\"strict\": 5}}]}",
         "tools[0].function.strict"},
        {USER "\"tools\": [{\"type\": 5, \"function\": {\"name\": \"f\"}}]}", "tools[0].type"},
        {USER "\"tool_choice\": 5}", "tool_choice"},
        {USER "\"tool_choice\": \"required\"}", "tool_choice"},
        {USER "\"tool_choice\": \"none\", \"tool_choice\": null}", "tool_choice"},
        {USER "\"tool_choice\": {\"type\": \"function\", \"function\": 5}}",
         "tool_choice.function"},
        {USER "\"tool_choice\": {\"type\": \"function\", \"function\": {}}}",
         "tool_choice.function.name"},
        {USER "\"tool_choice\": {\"type\": \"function\", \"function\": {\"name\": \"f\"", ""},
        {USER "\"tool_choice\": {\"type\": \"function\"", ""},
        {PROMPT "\"max_tokens\": 0}", "max_tokens"},
        {PROMPT "\"best_of\": 2}", "best_of"},
        {"{\"prompt\": []}", "prompt"},
        {"{\"prompt\": [[]]}", "prompt"},
        {"{\"prompt\": {}}", "prompt"},
        {"{\"prompt\": [\"a\", \"b\"], \"n\": 65}", "n"},
        {"{\"prompt\": [1, \"a\"]}", "prompt"},
    };
    (void)state;
    expect_wrong(cases, COUNT(cases));
}

#define FUNCTION_F "\"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"f\"}}], "

/* What tools forbid is allowed where there is no call. */
static void test_tools_and_text(void **state)
{
    static const wrong cases[] = {
        {USER FUNCTION_F "\"ignore_eos\": true}", "ignore_eos"},
        {USER FUNCTION_F "\"ignore_eos\": true, \"tool_choice\": \"none\"}", NULL},
        {USER FUNCTION_F "\"response_format\": {\"type\": \"json_object\"}}", "response_format"},
        {USER FUNCTION_F "\"response_format\": {\"type\": \"json_object\"}, \"tool_choice\": "
                         "\"none\"}",
         NULL},
        {USER "\"tool_choice\": \"none\", \"tools\": []}", NULL},
        {USER "\"max_tokens\": 2, \"max_completion_tokens\": 2, \"functions\": [], \"store\": "
              "false, \"service_tier\": \"default\", \"function_call\": \"none\", "
              "\"modalities\": [\"text\"], \"stream\": true, \"stream_options\": "
              "{\"include_obfuscation\": false, \"include_usage\": true}}",
         NULL},
    };
    const nib_allocator a = nib__allocator_default();
    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        nib_api_request request;
        nib_api_error error;
        nib_arena arena;
        nib__arena_init(&arena, &a, 0);
        if (read_body(&request, cases[i].body, &arena, &error) != (cases[i].param == NULL))
            fail_msg("%s: %s", cases[i].body, error.text);
        if (cases[i].param != NULL)
            refused_body(&error, cases[i].param);
        nib__arena_free(&arena);
    }
}

/* A body with as many elements as allowed, and with one more. */
static void test_most_elements(void **state)
{
    static const struct {
        const char *before, *element, *after, *param;
        int most;
    } cases[] = {
        {USER "\"logit_bias\": {", "\"%d\": 1", "}}", "logit_bias", NIB_API_BIASES},
        {"{\"prompt\": [", "\"a%d\"", "]}", "prompt", NIB_API_PROMPTS},
        {USER "\"stop\": [", "\"a%d\"", "]}", "stop", NIB_API_STOPS},
        {USER "\"tools\": [", "{\"type\": \"function\", \"function\": {\"name\": \"f%d\"}}", "]}",
         "tools", NIB_API_TOOLS},
        {USER "\"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"f\", "
              "\"parameters\": {",
         "\"%016d\": [                                        ]", "}}}]}", "tools",
         NIB_API_TOOLS_BYTES / 64 - 2},
    };
    const nib_allocator a = nib__allocator_default();
    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++)
        for (int count = cases[i].most; count <= cases[i].most + 1; count++) {
            nib_api_request request;
            nib_api_error error;
            nib_arena arena;
            nib_text body;
            nib__arena_init(&arena, &a, 0);
            nib__text_init(&body, &a);
            nib__text_str(&body, cases[i].before);
            for (int k = 0; k < count; k++) {
                char element[100];
                snprintf(element, sizeof element, cases[i].element, k);
                nib__text_format(&body, "%s%s", k == 0 ? "" : ", ", element);
            }
            nib__text_str(&body, cases[i].after);
            const bool good = read_body(&request, body.at, &arena, &error);
            if (good != (count == cases[i].most))
                fail_msg("%d of %s: %s", count, cases[i].element, error.text);
            if (!good)
                refused_body(&error, cases[i].param);
            nib__text_free(&body);
            nib__arena_free(&arena);
        }
}

/* Reads a body while the allocation after `left` others fails; true: none was left to fail. */
static bool read_failing(const char *body, size_t size, nib_route route, int left, int with_memory)
{
    failing f = {.left = left};
    const nib_allocator a = failing_allocator(&f);
    nib_api_request request;
    nib_api_error error;
    nib_arena arena;
    nib__arena_init(&arena, &a, 0);
    const bool good = nib__api_request_read(&request, route, body, size, &limits, &arena, &error);
    if (error.http != with_memory && error.http != 503)
        fail_msg("%.*s: status %d, %d with memory", (int)size, body, error.http, with_memory);
    assert_int_equal(good, error.http == 0);
    nib__arena_free(&arena);
    assert_int_equal(f.live, 0);
    return f.left != 0;
}

/* Every body of the fuzz corpus that people named, with each allocation failing. */
static void test_memory_runs_out(void **state)
{
    static char body[1 << 16];
    const nib_allocator a = nib__allocator_default();
    DIR *directory = opendir("tests/fuzz/corpus/request");
    int files = 0;
    (void)state;
    assert_non_null(directory);
    for (const struct dirent *entry; (entry = readdir(directory)) != NULL;) {
        char path[300];
        if (entry->d_name[0] == '.' || strlen(entry->d_name) == 40)
            continue;
        snprintf(path, sizeof path, "tests/fuzz/corpus/request/%s", entry->d_name);
        FILE *file = fopen(path, "rb");
        assert_non_null(file);
        const size_t size = fread(body, 1, sizeof body, file);
        fclose(file);
        for (int route = 0; route < NIB_ROUTES; route++) {
            nib_api_request request;
            nib_api_error error;
            nib_arena arena;
            int left = 0;
            nib__arena_init(&arena, &a, 0);
            nib__api_request_read(&request, (nib_route)route, body, size, &limits, &arena, &error);
            nib__arena_free(&arena);
            while (!read_failing(body, size, (nib_route)route, left, error.http))
                left += 1 + left / 64;
        }
        files++;
    }
    closedir(directory);
    assert_true(files > 5);
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
    assert_true(request.sampling.temperature == -1 && request.sampling.top_p == -1 &&
                request.sampling.min_p == -1 && request.sampling.repeat_penalty == -1);
    assert_int_equal(request.sampling.top_k, -1);
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
        cmocka_unit_test(test_tools_and_text),
        cmocka_unit_test(test_most_elements),
        cmocka_unit_test(test_memory_runs_out),
        cmocka_unit_test(test_safety_identifier_overrides_user),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
