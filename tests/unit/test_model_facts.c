/* SPDX-License-Identifier: Apache-2.0
 *
 * What a model is: the same facts from every kind of model, with weights and without, with a
 * tokenizer and a template or neither; and files that cannot be read.
 */
#include "session_handle.h"
#include "tokenizing.h"

#include "failing.h"
#include "refused.h"

#include <sys/stat.h>
#include <unistd.h>

static char folder[] = "/tmp/nibble-facts-XXXXXX";
static nib_engine *engine;

static const char *path_of(const char *name)
{
    static char path[4][256];
    static int next;
    char *out = path[next++ % 4];
    snprintf(out, sizeof path[0], "%s/%s", folder, name);
    return out;
}

static void put_file(const char *name, const char *content)
{
    if (content == NULL) {
        (void)unlink(path_of(name));
        return;
    }
    FILE *file = fopen(path_of(name), "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(content, 1, strlen(content), file), strlen(content));
    assert_int_equal(fclose(file), 0);
}

static const char *const files[] = {"config.json", "model.safetensors", "tokenizer.json",
                                    "tokenizer_config.json", "generation_config.json"};

/* The shipped model with a chat template. */
static int setup(void **state)
{
    const nib_engine_options options = {.threads = 1};
    char here[256], from[512];
    (void)state;
    assert_int_equal(nib_engine_open(&engine, &options, NULL), NIB_OK);
    assert_non_null(mkdtemp(folder));
    assert_non_null(getcwd(here, sizeof here));
    for (size_t i = 0; i < COUNT(files); i++) {
        snprintf(from, sizeof from, "%s/models/nibble-tales/%s", here, files[i]);
        assert_int_equal(symlink(from, path_of(files[i])), 0);
    }
    put_file("chat_template.jinja", "{{ messages[0].content }}");
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    nib_engine_close(engine);
    for (size_t i = 0; i < COUNT(files); i++)
        put_file(files[i], NULL);
    put_file("chat_template.jinja", NULL);
    put_file("alone/model.gguf", NULL);
    put_file("alone/model.gguf.nibble.json", NULL);
    assert_int_equal(rmdir(path_of("alone")), 0);
    return rmdir(folder);
}

static nib_model *open_model(const char *path, nib_model_options options)
{
    nib_model *model = NULL;
    nib_err err;
    if (nib_model_open(&model, engine, path, &options, &err) != NIB_OK)
        fail_msg("%s", err.text);
    return model;
}

static nib_model_facts facts_of(nib_model *model)
{
    nib_model_facts f = {.size = sizeof f};
    nib_err err;
    if (nib_model_facts_get(model, &f, &err) != NIB_OK)
        fail_msg("%s", err.text);
    return f;
}

/* The shipped model's; architecture and template differ with the file. */
static void expect_tales(const char *path, nib_model_options options, const char *architecture,
                         const char *template)
{
    nib_model *model = open_model(path, options);
    const nib_model_facts f = facts_of(model);
    assert_string_equal(f.architecture, architecture);
    assert_true(f.context == 512 && f.vocab == 2256 && f.width == 224 && f.layers == 5);
    assert_true(f.heads == 14 && f.kv_heads == 2 && f.head_dim == 16);
    assert_true(f.end_count == 1 && f.ends[0] == 2255);
    if (template == NULL)
        assert_null(f.chat_template);
    else
        assert_string_equal(f.chat_template, template);
    nib_model_close(model);
}

static void test_directory(void **state)
{
    const nib_model_options whole = {.size = sizeof whole}, bare = {.config_only = true};
    static const char template[] = "{{ messages[0].content }}";
    (void)state;
    expect_tales(folder, whole, "Qwen2ForCausalLM", template);
    expect_tales(folder, bare, "Qwen2ForCausalLM", template);
    expect_tales(path_of("config.json"), whole, "Qwen2ForCausalLM", template);
    expect_tales(path_of("model.safetensors"), whole, "Qwen2ForCausalLM", template);
    expect_tales("models/nibble-tales", whole, "Qwen2ForCausalLM", NULL);
    expect_tales("models/nibble-tales", (nib_model_options){.tokenizer = folder},
                 "Qwen2ForCausalLM", template);
    expect_tales("configs/nibble_tales.json", whole, "Qwen2ForCausalLM", NULL);
}

static nib_status drop(void *ctx, const char *bytes, size_t size)
{
    (void)ctx, (void)bytes, (void)size;
    return NIB_OK;
}

/* The GGUF has its own tokenizer and template, also if only its keys are read. */
static void test_gguf(void **state)
{
    static const char template[] = "{{ messages[0].content }}";
    nib_err err;
    (void)state;
    assert_int_equal(mkdir(path_of("alone"), 0700), 0);
    const nib_convert_options options = {.out = path_of("alone/model.gguf"), .format = "gguf"};
    nib_model *model = open_model(folder, (nib_model_options){.size = 0});
    if (nib_convert(model, &options, NIB_FORM_TEXT, &(nib_sink){drop, NULL}, &err) != NIB_OK)
        fail_msg("%s", err.text);
    nib_model_close(model);
    expect_tales(options.out, (nib_model_options){.size = 0}, "qwen2", template);
    expect_tales(options.out, (nib_model_options){.config_only = true}, "qwen2", template);
    nib_model *keys = open_model(options.out, (nib_model_options){.config_only = true});
    nib_plan *plan;
    assert_int_equal(nib_plan_open(&plan, keys, NULL, &err), NIB_OK);
    nib_session *session;
    refused(NIB_USAGE, nib_session_open(&session, keys, plan, 1, &err), &err);
    nib_plan_close(plan);
    nib_model_close(keys);
}

/* Most of these have no tokenizer: the config says how texts end. */
static void test_other_kinds(void **state)
{
    static const struct {
        const char *path, *architecture;
        int64_t vocab, layers;
        int32_t end;
    } cases[] = {
        {"tests/golden/models/gemma2", "Gemma2ForCausalLM", 140, 3, 1},
        {"tests/golden/gguf/llama.gguf", "llama", 272, 3, 257},
        {"tests/golden/torch/meta", "LlamaForCausalLM", 64, 1, 2},
        {"tests/golden/torch/meta/consolidated.00.pth", "LlamaForCausalLM", 64, 1, 2},
        {"configs/shapes/llama-3.2-1b/config.json", "LlamaForCausalLM", 128256, 16, 128001},
        {"configs/llama3.1_8b.json", "LlamaForCausalLM", 128256, 32, 128001},
        {"configs/llama3_debugmodel.json", "LlamaForCausalLM", 2048, 6, 2047},
    };
    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        nib_model *model = open_model(cases[i].path, (nib_model_options){.size = 0});
        const nib_model_facts f = facts_of(model);
        const nib_config *c = &model->net.config;
        assert_string_equal(f.architecture, cases[i].architecture);
        assert_true(f.vocab == cases[i].vocab && f.layers == cases[i].layers);
        assert_true(f.heads == c->heads && f.kv_heads == c->kv_heads && f.head_dim == c->head_dim);
        assert_true(f.context == c->context && f.width == c->width);
        assert_true(f.end_count == 1 && f.ends[0] == cases[i].end);
        assert_null(f.chat_template);
        nib_model_close(model);
    }
}

static void test_template_without_tokenizer(void **state)
{
    nib_err err;
    int32_t *ids;
    size_t count;
    const nib_chat_options chat = {.messages = "[]", .messages_size = 2};
    (void)state;
    put_file("tokenizer.json", NULL);
    nib_model *model = open_model(folder, (nib_model_options){.size = 0});
    const nib_model_facts f = facts_of(model);
    assert_string_equal(f.chat_template, "{{ messages[0].content }}");
    assert_int_equal(f.end_count, 1);
    assert_int_equal(nib_chat_encode(model, &chat, &ids, &count, &err), NIB_IO);
    nib_model_close(model);
}

/* What cannot be read is an error; a template that cannot be used is a fact. */
static void test_errors(void **state)
{
    nib_model_facts f = {.size = sizeof f, .layers = 99};
    nib_err err;
    (void)state;
    nib_model *model = open_model(folder, (nib_model_options){.size = 0});
    put_file("tokenizer.json", "{\"model\": 1}");
    assert_int_equal(nib_model_facts_get(model, &f, &err), NIB_BAD_INPUT);
    assert_int_equal(f.layers, 99);
    nib_model_close(model);
    put_file("tokenizer.json", NULL);
    put_file("tokenizer_config.json", NULL);
    put_file("tokenizer_config.json", "[]");
    model = open_model(folder, (nib_model_options){.size = 0});
    assert_int_equal(nib_model_facts_get(model, &f, &err), NIB_BAD_INPUT);
    assert_int_equal(nib_model_facts_get(model, &f, &err), NIB_BAD_INPUT); /* read once */
    nib_model_close(model);
    put_file("tokenizer_config.json", NULL);
    put_file("chat_template.jinja", "{{ 1");
    model = open_model(folder, (nib_model_options){.size = 0});
    assert_string_equal(facts_of(model).chat_template, "{{ 1");
    nib_model_close(model);
    model = open_model("models/nibble-tales", (nib_model_options){.inspect = true});
    refused(NIB_USAGE, nib_model_facts_get(model, &f, &err), &err);
    nib_model_close(model);
    put_file("config.json", NULL);
    put_file("config.json", "{\"model_type\": \"unheard_of\"}");
    model = open_model(folder, (nib_model_options){.convert = true});
    assert_int_equal(nib_model_facts_get(model, &f, &err), NIB_USAGE);
    nib_model_close(model);
    assert_int_equal(f.layers, 99);
}

static void test_no_memory(void **state)
{
    failing f = {.left = -1};
    const nib_allocator a = failing_allocator(&f);
    const nib_engine_options options = {.threads = 1, .allocator = &a};
    nib_engine *own;
    nib_status status = NIB_NO_MEMORY;
    (void)state;
    assert_int_equal(nib_engine_open(&own, &options, NULL), NIB_OK);
    const int before = f.live;
    for (int n = 0; status == NIB_NO_MEMORY; n++) {
        nib_model *model = NULL;
        nib_model_facts facts = {.size = sizeof facts};
        nib_err err;
        f.left = -1;
        assert_int_equal(nib_model_open(&model, own, "models/nibble-tales", NULL, &err), NIB_OK);
        f.left = n;
        status = nib_model_facts_get(model, &facts, &err);
        if (status != NIB_OK && status != NIB_NO_MEMORY)
            fail_msg("allocation %d: %s", n, err.text);
        nib_model_close(model);
        assert_int_equal(f.live, before);
    }
    nib_engine_close(own);
    assert_int_equal(f.live, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_directory),
        cmocka_unit_test(test_other_kinds),
        cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_gguf),
        cmocka_unit_test(test_template_without_tokenizer), /* takes the tokenizer away */
        cmocka_unit_test(test_errors),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
