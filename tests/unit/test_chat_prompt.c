/* SPDX-License-Identifier: Apache-2.0
 *
 * Chat prompts: where the template is found, which one wins, and that user text never becomes a
 * special token. The model is the shipped one with its tokenizer in another folder.
 */
#include "session_handle.h"
#include "tokenizing.h"

#include <stdio.h>
#include <unistd.h>

#include "refused.h"

static char folder[] = "/tmp/nibble-chat-XXXXXX";

static void put_file(const char *name, const char *text)
{
    char path[200];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    if (text == NULL) {
        (void)unlink(path);
        return;
    }
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, strlen(text), file), strlen(text));
    assert_int_equal(fclose(file), 0);
}

static nib_status collect(void *ctx, const char *bytes, size_t size)
{
    nib__text_put(ctx, bytes, size);
    return NIB_OK;
}

/* Writes one conversation; a note follows on its own line. */
static nib_status write_prompt(nib_text *text, const nib_chat_options *options, nib_err *err)
{
    const nib_engine_options one = {.threads = 1};
    const nib_model_options with = {.tokenizer = folder};
    nib_engine *engine;
    nib_model *model;
    assert_int_equal(nib_engine_open(&engine, &one, err), NIB_OK);
    if (nib_model_open(&model, engine, "models/nibble-tales", &with, err) != NIB_OK ||
        nib_chat_open(model, err) != NIB_OK)
        fail_msg("%s", err->text);
    const nib_status status = nib_chat_write(model, options, &(nib_sink){collect, text}, err);
    if (nib_chat_note(model) != NULL)
        nib__text_format(text, "\n%s", nib_chat_note(model));
    nib_model_close(model);
    nib_engine_close(engine);
    return status;
}

static void expect_prompt(const nib_chat_options *options, const char *expected)
{
    const nib_allocator a = nib__allocator_default();
    nib_text text;
    nib_err err;
    nib__text_init(&text, &a);
    if (write_prompt(&text, options, &err) != NIB_OK)
        fail_msg("%s", err.text);
    if (strstr(text.at, expected) == NULL)
        fail_msg("\"%s\" lacks \"%s\"", text.at, expected);
    nib__text_free(&text);
}

static void expect_no_prompt(const nib_chat_options *options, nib_status status)
{
    const nib_allocator a = nib__allocator_default();
    nib_text text;
    nib_err err;
    nib__text_init(&text, &a);
    refused(status, write_prompt(&text, options, &err), &err);
    nib__text_free(&text);
}

#define HELLO "[{\"role\": \"user\", \"content\": \"Hi\"}]"
static const nib_chat_options hello = {.messages = HELLO, .messages_size = sizeof HELLO - 1};

static int make_folder(void **state)
{
    const nib_allocator a = nib__allocator_default();
    nib_arena arena;
    size_t size;
    (void)state;
    nib__arena_init(&arena, &a, 0);
    assert_non_null(mkdtemp(folder));
    put_file("tokenizer.json", read_text(&arena, "models/nibble-tales/tokenizer.json", &size));
    nib__arena_free(&arena);
    return 0;
}

static int remove_folder(void **state)
{
    static const char *const names[] = {"tokenizer.json", "tokenizer_config.json",
                                        "chat_template.jinja"};
    (void)state;
    for (size_t i = 0; i < COUNT(names); i++)
        put_file(names[i], NULL);
    return rmdir(folder);
}

/* J14 */
static void test_template_precedence(void **state)
{
    nib_chat_options tools = hello;
    (void)state;
    tools.tools = "[{}]";
    tools.tools_size = 4;
    expect_no_prompt(&hello, NIB_UNSUPPORTED);
    put_file("tokenizer_config.json",
             "{\"bos_token\": {\"content\": \"<|endoftext|>\"}, \"eos_token\": \"<|endoftext|>\", "
             "\"chat_template\": \"{{ bos_token }}C{{ messages[0].content }}"
             "{{ eos_token }}{{ add_generation_prompt }}{{ tools }}\"}");
    expect_prompt(&hello, "<|endoftext|>CHi<|endoftext|>TrueNone");
    put_file("tokenizer_config.json", "{\"chat_template\": [{\"name\": \"tool_use\", \"template\": "
                                      "\"T\"}, {\"name\": \"default\", "
                                      "\"template\": \"D{{ bos_token }}\"}], \"bos_token\": null}");
    expect_prompt(&hello, "D");
    expect_prompt(&tools, "T");
    put_file("chat_template.jinja", "J{{ messages[0].role }}\n");
    expect_prompt(&hello, "Juser\n");
    expect_prompt(&hello, "tokenizer_config.json has a different chat template from that of");
    expect_prompt(&tools, "Juser");
    put_file("chat_template.jinja", "{{ 1\n");
    expect_no_prompt(&hello, NIB_BAD_INPUT);
    put_file("chat_template.jinja", "{{ raise_exception('Not so') }}");
    expect_no_prompt(&hello, NIB_BAD_INPUT);
}

static void test_options(void **state)
{
    nib_chat_options o = hello;
    (void)state;
    o.template_text = "{{ x }}{{ strftime_now('%Y') }}{{ add_generation_prompt }}{{ documents }}";
    o.variables = "{\"x\": \"v\"}";
    o.variables_size = strlen(o.variables);
    o.no_generation_prompt = true;
    expect_prompt(&o, "v1970FalseNone");
    o.variables = "[]";
    o.variables_size = 2;
    expect_no_prompt(&o, NIB_BAD_INPUT);
    o.variables = NULL;
    o.messages = "{}";
    o.messages_size = 2;
    expect_no_prompt(&o, NIB_BAD_INPUT);
}

static void test_no_special_from_users(void **state)
{
    static const char messages[] =
        "[{\"role\": \"user\", \"content\": \"<|endoftext|>x\"}, {\"role\": \"assistant\", "
        "\"tool_calls\": [{\"id\": \"<|endoftext|>\", \"function\": {\"name\": \"<|endoftext|>\", "
        "\"arguments\": {\"<|endoftext|>\": \"<|endoftext|>\"}}}]}]";
    static const char tools[] = "[{\"function\": {\"description\": \"<|endoftext|>\"}}]";
    const nib_chat_options o = {
        .messages = messages,
        .messages_size = sizeof messages - 1,
        .tools = tools,
        .tools_size = sizeof tools - 1,
        .template_text =
            "{{ '<|endoftext|>' + messages[0].content }}{{ tools | tojson }}"
            "{{ tools[0].function.description }}{% set c = messages[1].tool_calls[0] %}{{ c.id }}"
            "{{ c.function.name + c.function.arguments | tojson }}<|endoftext|>",
    };
    const nib_engine_options one = {.threads = 1};
    nib_engine *engine;
    nib_model *model;
    int32_t *ids = NULL;
    size_t count = 0, special = 0;
    nib_err err = {NIB_OK, ""};
    (void)state;
    assert_int_equal(nib_engine_open(&engine, &one, &err), NIB_OK);
    assert_int_equal(nib_model_open(&model, engine, "models/nibble-tales", NULL, &err), NIB_OK);
    if (nib_chat_encode(model, &o, &ids, &count, &err) != NIB_OK)
        fail_msg("%s", err.text);
    assert_true(count > 4 && ids[0] == ids[count - 1]);
    for (size_t i = 0; i < count; i++)
        special += ids[i] == ids[0];
    assert_int_equal(special, 2);
    nib_tokens_free(engine, ids);
    nib_model_close(model);
    nib_engine_close(engine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_template_precedence),
        cmocka_unit_test(test_options),
        cmocka_unit_test(test_no_special_from_users),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
