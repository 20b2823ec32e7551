/* SPDX-License-Identifier: Apache-2.0
 *
 * Training configs: every key is parsed within its limits; options override the file; an
 * unsupported key that would change the result is refused, and one that changes nothing is noted.
 */
#include "ledger_lines.h"
#include "train_keys.h"

#include "failing.h"
#include "safetensors_build.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#include "refused.h"

#define SIZES "\"dim\":256,\"n_layers\":6,\"n_heads\":16,\"vocab_size\":2256"
#define MODEL "\"model\":{" SIZES "}"

enum { OPTIONS_MAX = 8 };

static nib_ledger notes; /* settings of the last parse */

/* options: words up to NULL. */
static nib_status parse_with(nib_train_config *out, nib_config *model, const char *text,
                             const char *const *options, nib_err *err)
{
    static nib_allocator a;
    static nib_arena arena; /* owns what *out points to until the next call */
    static bool used;
    if (used) {
        nib__arena_free(&arena);
        nib__ledger_free(&notes);
    }
    used = true;
    a = nib__allocator_default();
    nib__arena_init(&arena, &a, 0);
    nib__ledger_init(&notes, &a);
    nib_train_source source = {.name = "configs/train.json",
                               .text = text,
                               .size = strlen(text),
                               .arena = &arena,
                               .notes = &notes};
    while (options && options[source.options.count])
        source.options.count++;
    source.options.items = options;
    return nib__train_config_parse(out, model, &source, err);
}

static nib_train_config train;
static nib_config model;

static void expect_accepted(const char *text, const char *const *options)
{
    nib_err err;
    if (parse_with(&train, &model, text, options, &err) != NIB_OK)
        fail_msg("%s: %s", text, err.text);
}

static void expect_refused_with(const char *text, const char *option, nib_status status)
{
    const char *const options[] = {option, NULL};
    nib_train_config out;
    nib_config sizes;
    nib_err err;
    refused(status, parse_with(&out, &sizes, text, options, &err), &err);
}

static void expect_refused(const char *text) { expect_refused_with(text, NULL, NIB_BAD_INPUT); }

static void expect_option_refused(const char *option)
{
    expect_refused_with("{" MODEL "}", option, NIB_USAGE);
}

static size_t count_notes(const char *words)
{
    return count_settings(&notes, "training-key", words);
}

static void test_recognizes_configs(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        bool is;
    } cases[] = {
        {"{\"training\":{},\"model\":{}}", true},
        {"{\"model\":\"llama\"}", false},
        {"{\"model_type\":\"llama\"}", false},
        {"[{\"model\":{}}]", false},
        /* sizes may come from options */
        {"{\"training\":{\"steps\":3}}", true},
        {"{\"training\":{},\"model\":\"llama\"}", true},
        {"{\"training\":{},\"modle\":", true},
        {"{\"training\":{},\"model_type\":\"llama\"}", false},
        {"{\"training\":3,\"modle\":{}}", false},
        {"{\"quantize.linear\":{}}", true},
        {"", false},
    };
    for (size_t i = 0; i < COUNT(cases); i++)
        assert_int_equal(nib__train_config_is(cases[i].text, strlen(cases[i].text)), cases[i].is);
}

static void test_sizes(void **state)
{
    (void)state;
    expect_accepted("{\"model\":{\"name\":\"llama3\"," SIZES
                    ",\"n_kv_heads\":4,\"multiple_of\":256,"
                    "\"norm_eps\":1e-6,\"max_seq_len\":2048},"
                    "\"training\":{\"local_batch_size\":2,\"seq_len\":64,\"steps\":10},"
                    "\"quantize\": {\"recipe_name\":\"mxfp8\"}}",
                    NULL);
    assert_true(train.batch == 2 && train.sequence == 64 && train.steps == 10);
    assert_string_equal(train.recipe, "{\"recipe_name\": \"mxfp8\"}");
    assert_true(model.width == 256 && model.layers == 6 && model.heads == 16);
    assert_true(model.kv_heads == 4 && model.head_dim == 16 && model.vocab == 2256);
    assert_true(model.norm_eps == 1e-6 && model.context == 2048 && !model.tied);
    /* two thirds of 1,024 are 682, the next multiple of 256 is 768 */
    assert_int_equal(model.ffn, 768);
    expect_accepted("{\"model\":{" SIZES ",\"ffn_dim_multiplier\":1.3,\"multiple_of\":1}}", NULL);
    assert_int_equal(model.ffn, 886);
    assert_true(model.kv_heads == 16 && train.batch == 8 && train.sequence == 2048);
    assert_true(model.context == 2048 && train.recipe == NULL);
    expect_accepted("{\"model\":{" SIZES ",\"hidden_dim\":600,\"enable_weight_tying\":true}}",
                    NULL);
    assert_true(model.ffn == 600 && model.tied);
    /* a dotted key enters two sections, and its end leaves both */
    static const char *const seven[] = {"training.steps=7", NULL};
    expect_accepted("{\"quantize.linear\":{\"mx\":{\"recipe_name\":\"mxfp8\"}}," MODEL
                    ",\"training\":{\"seq_len\":64}}",
                    seven);
    assert_true(train.sequence == 64 && train.steps == 7);
}

static void test_flavors(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        int64_t width, layers, heads, kv_heads, ffn, vocab;
    } cases[] = {
        {"debugmodel", 256, 6, 16, 16, 768, 2048},
        {"8B", 4096, 32, 32, 8, 14336, 128256},
        {"70B", 8192, 80, 64, 8, 28672, 128256},
        {"405B", 16384, 126, 128, 8, 53248, 128256},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        char text[80];
        snprintf(text, sizeof text, "{\"model\":{\"flavor\":\"%s\"}}", cases[i].name);
        expect_accepted(text, NULL);
        assert_true(model.width == cases[i].width && model.layers == cases[i].layers);
        assert_true(model.heads == cases[i].heads && model.kv_heads == cases[i].kv_heads);
        assert_true(model.ffn == cases[i].ffn && model.vocab == cases[i].vocab);
        assert_true(model.rope_theta == 500000 && model.norm_eps == 1e-5);
    }
    expect_accepted("{\"model\":{\"flavor\":\"debugmodel\",\"vocab_size\":2256,\"n_layers\":2}}",
                    NULL);
    assert_true(model.vocab == 2256 && model.layers == 2 && model.width == 256);
    expect_accepted("{\"model\":{\"flavor\":\"8B\",\"ffn_dim_multiplier\":1}}", NULL);
    assert_true(model.ffn == 11264); /* two thirds of 16,384, to a multiple of 1,024 */
    expect_refused("{\"model\":{\"flavor\":\"debugmodell\"}}");
    expect_refused("{\"model\":{\"flavor\":\"of_tomorrow\"}}"); /* near none */
    expect_refused("{\"model\":{}}");
}

/* Paths in the file are relative to its folder; paths of options and of outputs to the current
 * directory. */
static void test_paths(void **state)
{
    (void)state;
    static const char text[] =
        "{" MODEL ",\"job\":{\"dump_folder\":\"out\"},\"metrics\":{\"path\":\"m.jsonl\"},"
        "\"training\":{\"dataset_path\":\"../data.txt\"}}";
    const char *const options[] = {"training.dataset_path=here.txt",
                                   "model.tokenizer_path=/tok/t.json", NULL};
    expect_accepted(text, NULL);
    assert_string_equal(train.dataset, "configs/../data.txt");
    assert_string_equal(train.dump_folder, "out");
    assert_string_equal(train.metrics, "out/m.jsonl");
    assert_null(train.tokenizer);
    expect_accepted(text, options);
    assert_string_equal(train.dataset, "here.txt");
    assert_string_equal(train.tokenizer, "/tok/t.json");
    expect_accepted("{\"model\":{" SIZES ",\"hf_assets_path\":\"tok\"}}", NULL);
    assert_string_equal(train.tokenizer, "configs/tok");
}

static void test_values(void **state)
{
    (void)state;
    expect_accepted(
        "{" MODEL ",\"optimizer\":{\"name\":\"AdamW\",\"lr\":0.001,\"weight_decay\":0},"
        "\"lr_scheduler\":{\"warmup_steps\":5,\"decay_ratio\":null,\"decay_type\":\"cosine\","
        "\"lr_min\":0.1},\"training\":{\"batch_size\":4,\"global_batch_size\":-1,\"seed\":null,"
        "\"mixed_precision_param\":\"float32\",\"max_norm\":0},"
        "\"checkpoint\":{\"enable_checkpoint\":true,\"export_dtype\":\"bfloat16\","
        "\"keep_latest_k\":0},\"activation_checkpoint\":{\"mode\":\"full\"},"
        "\"comm\":{\"train_timeout_seconds\":7}}",
        NULL);
    assert_true(train.rate == 0.001 && train.weight_decay == 0 && train.warmup == 5);
    assert_true(train.decay_ratio < 0 && train.decay == NIB_DECAY_COSINE);
    assert_true(train.min_factor == 0.1);
    assert_true(train.batch == 4 && train.global_batch == 0 && train.seed == 0);
    assert_true(train.dtype == NIB_TYPE_F32 && model.dtype == NIB_TYPE_F32 && train.max_norm == 0);
    assert_true(train.save && train.export_dtype == NIB_TYPE_BF16 && train.keep == 0);
    assert_true(train.checkpointing == NIB_AC_FULL && train.timeout_s == 7 && train.document_mask);
    expect_accepted("{" MODEL "}", NULL);
    assert_true(train.dtype == NIB_TYPE_BF16 && train.checkpointing == NIB_AC_SELECTIVE);
    assert_true(train.decay_ratio == 0.8 && !train.save && train.rate == 8e-4);
}

/* Options as run_train.sh passes them on. */
static void test_options(void **state)
{
    (void)state;
    static const char text[] = "{" MODEL ",\"training\":{\"steps\":10},"
                               "\"mx\":{\"filter_fqns\":[\"w1\"]}}";
    const char *const line[] = {"model.print_after_conversion",
                                "training.compile",
                                "training.steps=50",
                                "model.converters=mx",
                                "mx.recipe_name=mxfp8",
                                "mx.filter_fqns=output",
                                NULL};
    const char *const lists[] = {"model.converters=mx", "mx.filter_fqns=a,b", "mx.filter_fqns=c",
                                 NULL};
    const char *const values[] = {"training.steps=6",
                                  "training.steps=6",
                                  "training.compile=false",
                                  "checkpoint.enable=true",
                                  "checkpoint.load_step=-1",
                                  "lr_scheduler.decay_ratio=null",
                                  "model.attn_mask_type=causal",
                                  NULL};
    expect_accepted(text, line);
    assert_true(train.print_after_conversion && train.steps == 50);
    assert_string_equal(train.recipe,
                        "{\"recipe_name\": \"mxfp8\", \"filter_fqns\": [\"output\"]}");
    assert_int_equal(count_notes("training.compile true (option): every kernel is compiled"), 1);
    expect_accepted(text, lists);
    assert_string_equal(train.recipe,
                        "{\"recipe_name\": \"mxfp8\", \"filter_fqns\": [\"a\", \"b\", \"c\"]}");
    expect_accepted(text, values);
    assert_true(train.steps == 6 && train.save && train.load_step == -1);
    assert_true(train.decay_ratio < 0 && !train.document_mask && !train.recipe);
    assert_int_equal(count_notes("training.compile"), 0);
    assert_int_equal(count_notes("mx.filter_fqns (config): model.converters does not name mx"), 1);

    expect_option_refused("training.step=5");
    expect_option_refused("trainin.steps=5");
    expect_option_refused("training.lr=5");
    /* not near enough to a key to suggest it */
    expect_option_refused("checkpoint.dir=x");
    expect_option_refused("optimizer.rate=1");
    expect_option_refused("optimizer.beta1=1");
    expect_option_refused("training.steps=ten");
    expect_option_refused("training.steps");
    expect_option_refused("training.steps=0");
    expect_option_refused("training.steps=1e3");
    expect_option_refused("training.compile=yes");
    expect_option_refused("optimizer.lr=fast");
    expect_option_refused("optimizer.lr=inf");
    expect_option_refused("optimizer.lr=null");
    expect_option_refused("optimizer.beta2=1");
    expect_option_refused("lr_scheduler.decay_type=steep");
    expect_option_refused("training.steps=5 5");
    expect_option_refused("checkpoint.load_step=-2");
    expect_option_refused("optimizer.lr");
    expect_option_refused("mx.filter_fqns");
    expect_option_refused("model.tokenizer_path=");
}

/* Options given twice, under one name or two, and over a file's. */
static void test_repeated_options(void **state)
{
    (void)state;
    static const struct {
        const char *options[3];
        bool agree;
    } cases[] = {
        {{"training.steps=6", "training.steps=7", NULL}, false},
        {{"training.batch_size=4", "training.local_batch_size=5", NULL}, false},
        {{"training.batch_size=4", "training.local_batch_size=4", NULL}, true},
        {{"training.compile=0", "training.compile=0", NULL}, true},
        {{"training.steps=5", "training.steps=5", NULL}, true},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        nib_err err = {NIB_OK, ""};
        const nib_status got = parse_with(&train, &model, "{" MODEL "}", cases[i].options, &err);
        if (cases[i].agree)
            assert_int_equal(got, NIB_OK);
        else
            refused(NIB_USAGE, got, &err);
    }
    static const char *const names[] = {"tokenizer_path", "hf_assets_path"};
    for (int i = 0; i < 2; i++) {
        char text[200], option[64];
        const char *const options[] = {option, NULL};
        snprintf(text, sizeof text, "{\"model\":{" SIZES ",\"%s\":\"/file\"}}", names[i]);
        snprintf(option, sizeof option, "model.%s=/option", names[1 - i]);
        expect_accepted(text, options);
        assert_string_equal(train.tokenizer, "/option");
        assert_string_equal(train.asked.tokenizer.key + strlen("model."), names[1 - i]);
    }
    static const char *const gaps[] = {"model.converters=mx", "mx.filter_fqns=,a,,b,", NULL};
    expect_accepted("{" MODEL "}", gaps);
    assert_string_equal(train.recipe,
                        "{\"recipe_name\": \"mxfp8\", \"filter_fqns\": [\"a\", \"b\"]}");
    /* the key that gave the value in use */
    static const char *const seed[] = {"training.seed=7", NULL};
    static const char *const debug[] = {"debug.seed=7", NULL};
    expect_accepted("{" MODEL ",\"training\":{\"seed\":5}}", seed);
    assert_true(train.seed == 7 && train.asked.seed.by == NIB_BY_OPTION);
    expect_accepted("{" MODEL ",\"training\":{\"seed\":5}}", debug);
    assert_string_equal(train.asked.seed.key, "debug.seed");
    expect_accepted("{" MODEL ",\"debug\":{\"seed\":5}}", seed);
    assert_string_equal(train.asked.seed.key, "training.seed");
}

/* Options whose values have no effect here: those that torchtitan takes are accepted. */
static void test_options_without_effect(void **state)
{
    (void)state;
    static const char *const accepted[] = {
        "parallelism.fsdp_reshard_after_forward=default",
        "comm.trace_buf_size=7",
        "parallelism.fsdp_reshard_after_forward=never",
        "validation.seq_len=2048",
        "job.config_file=",
    };
    for (size_t i = 0; i < COUNT(accepted); i++) {
        const char *const options[] = {accepted[i], NULL};
        expect_accepted("{" MODEL "}", options);
    }
    static const char *const twice[] = {"parallelism.pipeline_parallel_split_points=layers.1",
                                        "parallelism.pipeline_parallel_split_points=layers.2",
                                        NULL};
    expect_accepted("{" MODEL "}", twice);
    expect_option_refused("parallelism.fsdp_reshard_after_forward");
    expect_option_refused("comm.trace_buf_size=1099511627777");
    expect_option_refused("optimizer.weight_decay=-1");
    expect_option_refused("training.steps=");
    expect_refused_with("{" MODEL ",\"quantize\":{\"_type\":\"X\"}}", "quantize.recipe=8da4w",
                        NIB_BAD_INPUT);
}

/* Values of torchtitan that are not built. */
static void test_rejects_unimplemented_values(void **state)
{
    (void)state;
    expect_option_refused("parallelism.tensor_parallel_degree=2");
    expect_option_refused("optimizer.name=Muon");
    expect_option_refused("optimizer.early_step_in_backward");
    expect_option_refused("training.dtype=bfloat16");
    expect_option_refused("checkpoint.exclude_from_loading=lr");
    expect_option_refused("job.config_file=x.toml");
    expect_option_refused("model.name=deepseek_v3");
    expect_accepted("{" MODEL ",\"parallelism\":{\"tensor_parallel_degree\":1},"
                    "\"checkpoint\":{\"exclude_from_loading\":[],\"load_only\":false}}",
                    NULL);
}

static void test_rejects_bad_configs(void **state)
{
    (void)state;
    expect_refused("{" MODEL ",\"optimiser\":{}}");
    expect_refused("{\"model\":{" SIZES ",\"n_head\":4}}");
    expect_refused("{" MODEL ",\"version\":1}");
    expect_refused("{" MODEL ",\"training\":{\"optimizer\":{}}}");
    expect_refused("{" MODEL ",\"training\":4}");
    expect_refused("{" MODEL ",\"training\":{\"steps\":{}}}");
    expect_refused("{" MODEL ",\"training\":{\"steps\":\"5\"}}");
    expect_refused("{" MODEL ",\"training\":{\"steps\":true}}");
    expect_refused("{" MODEL ",\"training\":{\"compile\":1}}");
    expect_refused("{" MODEL ",\"training\":{\"batch_size\":4,\"local_batch_size\":4}}");
    expect_refused("{" MODEL ",\"training\":{\"steps\":4,\"steps\":4}}");
    expect_refused("{" MODEL ",\n \"training\":{},\"training\":{\"steps\":4}}");
    expect_refused("{" MODEL ",\"quantize\":{\"linear\":{\"mx\":{}},\"linear\":{}}}");
    expect_refused("{" MODEL ",\"quantize\":{\"_type\":\"A\"},\"quantize\":{}}");
    expect_refused("{" MODEL ",\"training\\u0000\":{}}");
    expect_refused("{" MODEL ",\"training\":{\"local_batch_size\":0}}");
    /* too many tokens of a micro-batch, and of a step */
    expect_refused("{" MODEL ",\"training\":{\"local_batch_size\":2000000}}");
    expect_refused("{" MODEL
                   ",\"training\":{\"global_batch_size\":1099511627776,\"seq_len\":65536}}");
    /* an unused id: the step of its embedding would be 0 / 0 */
    expect_refused("{" MODEL ",\"optimizer\":{\"eps\":0}}");
    expect_refused("{\"model\":{" SIZES ",\"max_seq_len\":64}}"); /* seq_len is 2048 */
    expect_refused("{" MODEL ",\"mx\":{\"filter_fqns\":\"output\"}}");
    expect_refused("{" MODEL ",\"mx\":{\"filter_fqns\":[1]}}");
    expect_refused("{" MODEL ",\"job\":{\"dump_folder\":\"a\\u0000b\"}}");
    expect_refused("{\"model\":{\"dim\":-1}}");
    expect_refused("{\"model\":{\"dim\":256}}");
    expect_refused("{\"model\":{\"dim\":250,\"n_layers\":1,\"n_heads\":16,\"vocab_size\":9}}");
    expect_refused("{\"model\":{" SIZES ",\"ffn_dim_multiplier\":-1}}");
    /* a product that overflows */
    expect_refused("{\"model\":{" SIZES ",\"ffn_dim_multiplier\":1e9}}");
    expect_refused("{" MODEL ",\"quantize\":");
    expect_refused("{" MODEL ",\"validation\":{\"enable\":true}}"); /* of no text */
    expect_refused("{" MODEL ",\"validation\":{\"steps\":0}}");
    expect_refused("{" MODEL ",\"validation\":{\"seq_len\":64}}"); /* training's is 2048 */
    expect_refused("{" MODEL ",\"validation\":{\"local_batch_size\":4}}");
    expect_accepted("{" MODEL ",\"validation\":{\"seq_len\":2048,\"local_batch_size\":8}}", NULL);
    expect_refused("{\"model\":{" SIZES ",\"hf_config\":\"x.json\"}}"); /* sizes from two places */
}

static void test_recipes(void **state)
{
    (void)state;
    static const struct {
        const char *text, *recipe;
        bool high;
    } cases[] = {
        {"\"mx\"],\"n_kv_heads\":16},\"mx\":{\"recipe_name\":\"mxfp8_rceil\"}",
         "{\"recipe_name\": \"mxfp8_rceil\"}", false},
        {"\"mx\"]},\"mx\":{\"filter_fqns\":[],\"wgrad_with_hp\":true}",
         "{\"recipe_name\": \"mxfp8\", \"filter_fqns\": []}", true},
        {"\"quantize.linear.mx\"]},\"quantize\":{\"linear\":{\"mx\":{\"filter_fqns\":[\"a\"]}}}",
         "{\"recipe_name\": \"mxfp8\", \"filter_fqns\": [\"a\"]}", false},
        {"\"float8\"]}", "{\"recipe\": \"fp8dq-tensor+head\"}", false},
        {"\"float8\"]},\"float8\":{\"recipe_name\":\"rowwise\",\"filter_fqns\":[\"output\"]}",
         "{\"recipe_name\": \"rowwise\", \"filter_fqns\": [\"output\"]}", false},
        {"\"float8\"]},\"float8\":{\"recipe_name\":\"rowwise_with_gw_hp\"}",
         "{\"recipe_name\": \"rowwise\"}", true},
        {"]},\"quantize\":{\"recipe\":\"8da4w\",\"skip\":[\"*.q_proj\"],\"qat\":true}",
         "{\"skip\": [\"*.q_proj\"], \"recipe\": \"8da4w\"}", false},
        {"]},\"quantize\":{\"rules\":[{\"match\":\"*\",\"scheme\":\"mxfp8\"}],\"else\":\"keep\"}",
         "{\"else\": \"keep\", \"rules\": [{\"match\":\"*\",\"scheme\":\"mxfp8\"}]}", false},
        {"]},\"quantize\":{\"recipe\":\"mxfp8\",\"wgrad_with_hp\":true}", "{\"recipe\": \"mxfp8\"}",
         true},
        /* mx's flag does not apply to other recipes */
        {"]},\"mx\":{\"wgrad_with_hp\":true},\"quantize\":{\"recipe\":\"mxfp8\"}",
         "{\"recipe\": \"mxfp8\"}", false},
        {"\"float8\"]},\"mx\":{\"wgrad_with_hp\":true}", "{\"recipe\": \"fp8dq-tensor+head\"}",
         false},
        {"]},\"quantize\":{\"_type\":\"X\"}", "{\"_type\":\"X\"}", false},
        {"]},\"quantize\":{\"recipe\":\"r.json\"}", "configs/r.json", false},
        {"]},\"quantize\":{\"recipe\":\"/r.json\"}", "/r.json", false},
        {"\"quantize.linear.float8\"]}", "{\"recipe\": \"fp8dq-tensor+head\"}", false},
        /* asked for twice, with the same answer */
        {"\"mx\"]},\"mx\":{\"wgrad_with_hp\":true},\"quantize\":{\"wgrad_with_hp\":true}",
         "{\"recipe_name\": \"mxfp8\"}", true},
    };
    char text[400];
    static const char *const file[] = {"quantize.recipe=r.json", NULL};
    expect_accepted("{" MODEL "}", file);
    assert_string_equal(train.recipe, "r.json"); /* an option's: of the current directory */
    for (size_t i = 0; i < COUNT(cases); i++) {
        snprintf(text, sizeof text, "{\"model\":{" SIZES ",\"converters\":[%s}", cases[i].text);
        expect_accepted(text, NULL);
        assert_string_equal(train.recipe, cases[i].recipe);
        assert_int_equal(train.wgrad_with_hp, cases[i].high);
    }
    static const char *const wrong[] = {
        "\"mx\",\"float8\"]}", "\"mxx\"]}", "\"of_tomorrow\"]}", /* near none */
        "\"mx\"]},\"quantize\":{\"recipe\":\"mxfp8\"}",          /* two recipes */
        "\"mx\"]},\"quantize\":{\"recipe_name\":\"mxfp8\"}",
        "\"mx\"]},\"quantize\":{\"else\":\"keep\"}", "\"mx\"]},\"quantize\":{\"rules\":[]}",
        "\"mx\"]},\"quantize\":{\"filter_fqns\":[]}", "\"mx\"]},\"quantize\":{\"fqns\":[\"a\"]}",
        "\"mx\"]},\"quantize\":{\"skip\":[\"a\"]}", "\"mx\"]},\"quantize\":{\"only\":[\"a\"]}",
        "\"mx\"]},\"quantize\":{\"_type\":\"X\"}",
        /* gradients in bf16, and not */
        "\"mx\"]},\"mx\":{\"wgrad_with_hp\":true},\"quantize\":{\"wgrad_with_hp\":false}",
        ("\"float8\"]},\"float8\":{\"recipe_name\":\"rowwise_with_gw_hp\"},"
         "\"quantize\":{\"wgrad_with_hp\":false}"),
        "\"float8\"]},\"float8\":{\"recipe_name\":\"x\"}",
        "]},\"quantize\":{\"recipe\":\"r.json\",\"only\":[\"a\"]}", /* what only the file may say */
        "]},\"quantize\":{\"qat\":true}",                           /* no recipe */
    };
    for (size_t i = 0; i < COUNT(wrong); i++) {
        snprintf(text, sizeof text, "{\"model\":{" SIZES ",\"converters\":[%s}", wrong[i]);
        expect_refused(text);
    }
}

/* Each ineffective key has a line, except those that are off or that ask for the default behaviour.
 */
static void test_notes_ineffective_keys(void **state)
{
    (void)state;
    expect_accepted("{" MODEL ",\"profiling\":{\"enable_profiling\":false,\"profile_freq\":10},"
                    "\"metrics\":{\"enable_tensorboard\":true,\"save_tb_folder\":\"tb\"},"
                    "\"job\":{\"description\":\"x\"},\"training\":{\"dataset\":\"c4_test\"}}",
                    NULL);
    assert_int_equal(
        count_notes("metrics.enable_tensorboard true (config): metrics are JSON lines"), 1);
    assert_int_equal(count_notes("metrics.save_tb_folder"), 1);
    assert_int_equal(count_notes(": no profiler is built in"), 0);
    assert_int_equal(count_notes(": there are no built-in datasets"), 1);
    assert_int_equal(count_notes("description"), 0);
    expect_accepted("{" MODEL ",\"profiling\":{\"profile_freq\":10},"
                    "\"checkpoint\":{\"async_mode\":\"disabled\"},"
                    "\"parallelism\":{\"pipeline_parallel_microbatch_size\":1}}",
                    NULL);
    assert_int_equal(count_notes("profiling.profile_freq 10 (config): no profiler is built in"), 1);
    assert_int_equal(count_notes("async_mode"), 0);
    assert_int_equal(count_notes("microbatch"), 0);
    expect_accepted("{" MODEL ",\"mx\":{\"wgrad_with_hp\":true},\"quantize\":{\"recipe\":\"mxfp8\","
                    "\"linear\":{\"mx\":{\"filter_fqns\":[]}}}}",
                    NULL);
    assert_int_equal(count_notes("mx.wgrad_with_hp (config): model.converters does not name mx"),
                     1);
    assert_int_equal(count_notes("quantize.linear.mx.filter_fqns (config): model.converters"), 1);
}

/* Of the schedule and the sizes: what the run shortens, and what another key replaces. */
static void test_notes_replaced_keys(void **state)
{
    (void)state;
    static const struct {
        const char *text, *options[3], *note; /* note: of `count` lines */
        size_t count;
    } cases[] = {
        {"\"lr_scheduler\":{\"warmup_steps\":20}", {NULL}, "shortened to the steps", 1},
        {"\"lr_scheduler\":{\"warmup_steps\":9}", {NULL}, "shortened to the steps", 0},
        {"\"lr_scheduler\":{\"warmup_steps\":5,\"decay_ratio\":0.8}",
         {NULL},
         "5 of 10 steps are left for the decay",
         1},
        {"\"lr_scheduler\":{\"warmup_steps\":5}", {NULL}, "are left for the decay", 0},
        {"\"lr_scheduler\":{\"decay_ratio\":0,\"decay_type\":\"sqrt\",\"min_lr_factor\":0.5}",
         {NULL},
         "no step of this run decays",
         2},
        {"\"lr_scheduler\":{\"decay_type\":\"sqrt\"}",
         {"lr_scheduler.decay_ratio=0", NULL}, /* later, so on purpose */
         "no step of this run decays",
         0},
        {"\"lr_scheduler\":{\"decay_ratio\":0}",
         {"lr_scheduler.decay_type=sqrt", NULL},
         "no step of this run decays",
         1},
        {"\"lr_scheduler\":{\"warmup_steps\":10,\"lr_min\":0.5}",
         {NULL},
         "no step of this run decays",
         1},
        {"\"model.hidden_dim\":600,\"model.multiple_of\":8", {NULL}, "hidden_dim is given", 1},
        {"\"model.multiple_of\":8,\"model.ffn_dim_multiplier\":2",
         {"model.hidden_dim=600", NULL},
         "hidden_dim is given",
         0},
        {"\"model.hidden_dim\":600",
         {"model.multiple_of=8", "model.ffn_dim_multiplier=2", NULL},
         "hidden_dim is given",
         2},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        char text[400];
        snprintf(text, sizeof text, "{" MODEL ",\"training\":{\"steps\":10},%s}", cases[i].text);
        expect_accepted(text, cases[i].options);
        if (count_notes(cases[i].note) != cases[i].count)
            fail_msg("%s: %zu lines of \"%s\"", text, count_notes(cases[i].note), cases[i].note);
    }
}

/* The model's own config, as a file and in its folder. */
static void test_model_of_another_config(void **state)
{
    (void)state;
    static const char config[] =
        "{\"model_type\":\"llama\",\"hidden_size\":64,\"intermediate_size\":172,"
        "\"num_hidden_layers\":2,\"num_attention_heads\":4,\"vocab_size\":300,"
        "\"max_position_embeddings\":1024,%s}";
    static const struct {
        const char *keys;
        size_t notes; /* without the weights of a model */
    } cases[] = {
        {"\"attention_dropout\":0.0", 0},
        {"\"attention_dropout\":null", 0},
        {"\"attention_dropout\":0.1,\"resid_pdrop\":0.5", 2},
        {"\"initializer_range\":0.02", 1},
        {"\"torch_dtype\":\"bfloat16\"", 0},
    };
    char dir[256], path[300], text[500], option[300];
    const char *const options[] = {option, NULL};
    make_directory(dir);
    for (size_t i = 0; i < 2 * COUNT(cases); i++) {
        const bool folder = i % 2 != 0;
        snprintf(text, sizeof text, config, cases[i / 2].keys);
        write_text(dir, "config.json", text);
        snprintf(option, sizeof option, "model.hf_config=%s%s", dir, folder ? "" : "/config.json");
        expect_accepted("{\"training\":{\"seq_len\":1024}}", options);
        assert_true(model.width == 64 && model.layers == 2 && model.context == 1024);
        assert_int_equal(count_settings(&notes, "config-key", ""), cases[i / 2].notes);
        if (folder)
            assert_string_equal(train.tokenizer, dir);
        else
            assert_null(train.tokenizer);
    }
    expect_accepted("{\"training\":{\"seq_len\":8},\"checkpoint\":{\"initial_load_path\":\"x\"},"
                    "\"model\":{\"tokenizer_path\":\"/t\"}}",
                    options);
    assert_string_equal(train.tokenizer, "/t");
    expect_refused_with("{\"training\":{\"seq_len\":1025}}", option, NIB_BAD_INPUT);
    snprintf(path, sizeof path, "%s/config.json", dir);
    write_bytes(path, "{", 1);
    expect_refused_with("{}", option, NIB_BAD_INPUT);
    snprintf(option, sizeof option, "model.hf_config=%s/none", dir);
    expect_refused_with("{}", option, NIB_IO);
    drop_directory(dir);
}

/* DeepSeek's load-balancing loss: its coefficient, what it is over, and which key decides. */
static void test_balance_of_sequences(void **state)
{
    (void)state;
    static const char config[] =
        "{\"model_type\":\"deepseek_v3\",\"hidden_size\":64,\"intermediate_size\":96,"
        "\"num_hidden_layers\":2,\"num_attention_heads\":2,\"num_key_value_heads\":2,"
        "\"kv_lora_rank\":12,\"q_lora_rank\":null,\"qk_nope_head_dim\":6,"
        "\"qk_rope_head_dim\":4,\"v_head_dim\":8,\"n_routed_experts\":4,\"n_group\":1,"
        "\"topk_group\":1,\"num_experts_per_tok\":2,\"moe_intermediate_size\":24,"
        "\"first_k_dense_replace\":1,\"num_nextn_predict_layers\":0,\"vocab_size\":300,"
        "\"max_position_embeddings\":1024%s}";
    static const struct {
        const char *keys, *option, *note; /* note: NULL: no line */
        double balance;
        bool whole_batches;
    } cases[] = {
        {"", NULL, NULL, 0, false},
        {",\"aux_loss_alpha\":null", NULL, NULL, 0, false},
        {",\"aux_loss_alpha\":0.0,\"seq_aux\":true", NULL, NULL, 0, false},
        {",\"aux_loss_alpha\":0.01", NULL,
         "0.01 (config): the load-balancing loss of each sequence", 0.01, false},
        {",\"seq_aux\":false,\"aux_loss_alpha\":1", NULL, "loss of each micro-batch has", 1, true},
        {",\"aux_loss_alpha\":0.01", "model.router_aux_loss_coef=0.5", "which is 0.5, decides", 0.5,
         false},
        {",\"aux_loss_alpha\":0.01", "model.router_aux_loss_coef=0", "which is 0, decides", 0,
         false},
        {"", "model.router_aux_loss_coef=0.5", NULL, 0.5, false},
    };
    static const char *const bad[] = {",\"aux_loss_alpha\":\"x\"", ",\"aux_loss_alpha\":-1",
                                      ",\"aux_loss_alpha\":1001", ",\"seq_aux\":1",
                                      ",\"aux_loss_alpha\":[0]"};
    char dir[256], text[900], option[300];
    make_directory(dir);
    snprintf(option, sizeof option, "model.hf_config=%s", dir);
    for (size_t i = 0; i < COUNT(cases); i++) {
        const char *const options[] = {option, cases[i].option, NULL};
        snprintf(text, sizeof text, config, cases[i].keys);
        write_text(dir, "config.json", text);
        expect_accepted("{\"training\":{\"seq_len\":8}}", options);
        assert_true(model.moe.balance == cases[i].balance);
        assert_true(model.moe.whole_batches == cases[i].whole_batches);
        assert_int_equal(count_settings(&notes, "config-key", "aux_loss_alpha"),
                         cases[i].note != NULL);
        if (cases[i].note != NULL && count_settings(&notes, "config-key", cases[i].note) != 1)
            fail_msg("%s: no line with \"%s\"", cases[i].keys, cases[i].note);
    }
    for (size_t i = 0; i < COUNT(bad); i++) {
        snprintf(text, sizeof text, config, bad[i]);
        write_text(dir, "config.json", text);
        expect_refused_with("{\"training\":{\"seq_len\":8}}", option, NIB_BAD_INPUT);
    }
    drop_directory(dir);
}

/* The table of keys: names are unique, sections known, limits ordered, every used row explained. */
static void test_key_table_is_consistent(void **state)
{
    (void)state;
    for (size_t i = 0; i < nib__train_key_count; i++) {
        const nib_train_key *k = &nib__train_keys[i];
        char section[128];
        assert_true(nib__train_key_find(k->name) == i);
        snprintf(section, sizeof section, "%s", k->name);
        *strrchr(section, '.') = '\0';
        assert_true(nib__train_section_find(section) != SIZE_MAX);
        assert_true(k->least <= k->most);
        assert_true((k->type == NIB_KEY_WORD) <= (k->words != NULL));
        bool explained = k->means || k->instead || k->at == NIB_KEY_NOWHERE;
        for (size_t j = 0; j < i && !explained; j++)
            explained = nib__train_keys[j].at == k->at && nib__train_keys[j].means;
        if (!explained)
            fail_msg("%s is not explained", k->name);
    }
}

/* Limits print exactly. */
static void test_printed_limits(void **state)
{
    const nib_allocator a = nib__allocator_default();
    nib_text text;
    (void)state;
    nib__text_init(&text, &a);
    nib__train_keys_render(NIB_FORM_TEXT, &text);
    assert_non_null(text.at);
    assert_non_null(strstr(text.at, "training.seed: 0 to 9007199254740992; default 0\n"));
    assert_non_null(strstr(text.at, "optimizer.beta1: 0 to 0.9999999; default 0.9\n"));
    nib__text_free(&text);
}

/* Every key is in each form; with too little memory the text has failed. */
static void test_printed_keys(void **state)
{
    (void)state;
    static const nib_form forms[] = {NIB_FORM_TEXT, NIB_FORM_JSON, NIB_FORM_MARKDOWN};
    for (size_t f = 0; f < COUNT(forms); f++) {
        bool done = false;
        for (int n = 0; !done; n++) {
            failing left = {.left = n};
            const nib_allocator a = failing_allocator(&left);
            nib_text text;
            nib__text_init(&text, &a);
            nib__train_keys_render(forms[f], &text);
            done = !text.failed;
            for (size_t i = 0; done && i < nib__train_key_count; i++)
                assert_non_null(strstr(text.at, nib__train_keys[i].name));
            nib__text_free(&text);
            assert_int_equal(left.live, 0);
        }
    }
}

/* What a checkpoint records about a run's config. */
static void test_recorded_config(void **state)
{
    (void)state;
    static const struct {
        const char *keys, *recorded[4]; /* up to NULL */
    } cases[] = {
        {"\"quantize\":{\"recipe\":\"8da4w\"}",
         {"\"quantize.qat\": false", "\"model.attn_mask_type\": \"block_causal\"", NULL}},
        {"\"quantize\":{\"recipe\":\"8da4w\",\"qat\":true}",
         {"\"quantize.qat\": true", "\"checkpoint.export_dtype\": \"float32\"", NULL}},
        {"\"quantize\":{\"recipe\":\"8da4w\",\"qat\":true},"
         "\"checkpoint\":{\"export_dtype\":\"float16\"}",
         {"\"checkpoint.export_dtype\": \"float16\"", NULL}},
        {"\"lr_scheduler\":{\"decay_ratio\":null},\"model.attn_mask_type\":\"causal\"",
         {"\"lr_scheduler.decay_ratio\": null", "\"model.attn_mask_type\": \"causal\"", NULL}},
        {"\"lr_scheduler\":{\"decay_ratio\":0.5}", {"\"lr_scheduler.decay_ratio\": 0.5", NULL}},
    };
    const nib_allocator a = nib__allocator_default();
    for (size_t i = 0; i < COUNT(cases); i++) {
        char config[300];
        nib_text text;
        nib_jsonw w;
        snprintf(config, sizeof config, "{" MODEL ",%s}", cases[i].keys);
        expect_accepted(config, NULL);
        nib__text_init(&text, &a);
        nib__jsonw_init(&w, &text, 0);
        nib__jsonw_object(&w);
        nib__train_config_put(&w, &train);
        nib__jsonw_object_end(&w);
        for (int j = 0; cases[i].recorded[j] != NULL; j++)
            if (strstr(text.at, cases[i].recorded[j]) == NULL)
                fail_msg("no %s in %s", cases[i].recorded[j], text.at);
        assert_int_equal(strstr(text.at, "\"checkpoint.export_dtype\"") != NULL, train.qat);
        nib__text_free(&text);
    }
}

/* Each allocation fails once: NIB_NO_MEMORY, or `wanted` in the end, and nothing leaks. */
static void fail_each_allocation(const char *text, const char *option, nib_status wanted)
{
    bool done = false;
    for (int n = 0; !done; n++) {
        failing f = {.left = n};
        const nib_allocator a = failing_allocator(&f);
        nib_arena arena;
        nib_ledger ledger;
        nib_err err = {NIB_OK, ""};
        nib__arena_init(&arena, &a, 0);
        nib__ledger_init(&ledger, &a);
        const nib_train_source source = {.name = "a/train.json",
                                         .text = text,
                                         .size = strlen(text),
                                         .options = {.items = &option, .count = option != NULL},
                                         .arena = &arena,
                                         .notes = &ledger};
        const nib_status status = nib__train_config_parse(&train, &model, &source, &err);
        done = f.left != 0 && status == wanted && !ledger.failed;
        if (status != wanted && status != NIB_NO_MEMORY)
            fail_msg("%s: %s after %d allocations: %s", text, nib_status_name(status), n, err.text);
        nib__ledger_free(&ledger);
        nib__arena_free(&arena);
        assert_int_equal(f.live, 0);
        assert_true(n < 200);
    }
}

static void test_memory_of_recipes(void **state)
{
    (void)state;
    static const char config[] =
        "{\"model_type\":\"llama\",\"hidden_size\":64,\"intermediate_size\":172,"
        "\"num_hidden_layers\":2,\"num_attention_heads\":4,\"vocab_size\":300,"
        "\"max_position_embeddings\":8192,\"initializer_range\":0.02,\"resid_pdrop\":1}";
    static const struct {
        const char *text, *option;
        nib_status status;
    } cases[] = {
        {"{\"model\":{" SIZES ",\"converters\":[\"float8\"]}}", NULL, NIB_OK},
        {"{" MODEL "}", "quantize.recipe=r.json", NIB_OK},
        {"{" MODEL ",\"quantize\":{\"recipe\":\"r.json\"}}", NULL, NIB_OK},
        {"{" MODEL ",\"quantize\":{\"_type\":\"X\"}}", NULL, NIB_OK},
        {"{" MODEL ",\"quantize\":{\"rules\":[{\"match\":\"*\"}],\"else\":\"keep\"}}", NULL,
         NIB_OK},
        {"{" MODEL ",\"quantize\":{\"recipe_name\":\"mxfp8\",\"skip\":[\"1\",\"2\",\"3\",\"4\","
         "\"5\",\"6\",\"7\",\"8\",\"9\"]}}",
         NULL, NIB_OK},
        {"{" MODEL ",\"metrics\":{\"path\":\"/m\"},\"profiling\":{\"profile_freq\":1}}", NULL,
         NIB_OK},
        {"{\"model\":{\"flavor\":\"debugmodell\"}}", NULL, NIB_BAD_INPUT},
        {"{\"model\":{" SIZES ",\"converters\":[\"mxx\"]}}", NULL, NIB_BAD_INPUT},
        {"{\"modell\":{}}", NULL, NIB_BAD_INPUT},
        {"{" MODEL "}", "training.stepps=5", NIB_USAGE},
        {"{}", NULL, NIB_OK}, /* with the model of another config, below */
    };
    char dir[256], option[300];
    make_directory(dir);
    write_text(dir, "config.json", config);
    snprintf(option, sizeof option, "model.hf_config=%s", dir);
    for (size_t i = 0; i < COUNT(cases); i++)
        fail_each_allocation(cases[i].text,
                             strcmp(cases[i].text, "{}") == 0 ? option : cases[i].option,
                             cases[i].status);
    drop_directory(dir);
}

static void test_memory(void **state)
{
    (void)state;
/* Longer than what is stored after them, which may still fit where they do not. */
#define WORD "a-word-of-64-bytes-long-enough-that-all-that-follows-is-shorter!"
#define WORDS WORD WORD WORD WORD WORD WORD WORD WORD
    static const char text[] =
        "{\"model\":{" SIZES ",\"converters\":[\"mx\"]},\"mx\":{\"filter_fqns\":[\"output\"]},"
        "\"training\":{\"dataset_path\":\"a\",\"compile\":true},\"metrics\":{\"path\":\"" WORDS
            WORDS WORDS WORDS "\"}}";
    const char *const option = "mx.filter_fqns=a," WORDS WORDS;
    bool done = false;
    for (int n = 0; !done; n++) {
        failing f = {.left = n};
        const nib_allocator a = failing_allocator(&f);
        nib_arena arena;
        nib_ledger ledger;
        nib_err err;
        nib__arena_init(&arena, &a, 0);
        nib__ledger_init(&ledger, &a);
        const nib_train_source source = {.name = "a/train.json",
                                         .text = text,
                                         .size = sizeof text - 1,
                                         .options = {.items = &option, .count = 1},
                                         .arena = &arena,
                                         .notes = &ledger};
        const nib_status status = nib__train_config_parse(&train, &model, &source, &err);
        done = status == NIB_OK;
        assert_true(done ? train.recipe && model.layers == 6 : status == NIB_NO_MEMORY);
        nib__ledger_free(&ledger);
        nib__arena_free(&arena);
        assert_int_equal(f.live, 0);
        assert_true(n < 100);
    }
    size_t needed = SIZE_MAX; /* the same for whichever piece of the arena does not fit */
    for (size_t limit = 0; limit < needed; limit += limit == 0 ? 1 : 3) { /* 0: none */
        const nib_allocator a = nib__allocator_default();
        nib_arena arena;
        nib_ledger ledger;
        nib_err err;
        nib__arena_init(&arena, &a, limit);
        nib__ledger_init(&ledger, &a);
        const nib_train_source source = {.name = "a/train.json",
                                         .text = text,
                                         .size = sizeof text - 1,
                                         .options = {.items = &option, .count = 1},
                                         .arena = &arena,
                                         .notes = &ledger};
        assert_int_equal(nib__train_config_parse(&train, &model, &source, &err),
                         limit == 0 ? NIB_OK : NIB_NO_MEMORY);
        if (limit == 0)
            needed = arena.total;
        nib__ledger_free(&ledger);
        nib__arena_free(&arena);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_recognizes_configs),
        cmocka_unit_test(test_recorded_config),
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_flavors),
        cmocka_unit_test(test_paths),
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_options),
        cmocka_unit_test(test_repeated_options),
        cmocka_unit_test(test_options_without_effect),
        cmocka_unit_test(test_rejects_unimplemented_values),
        cmocka_unit_test(test_rejects_bad_configs),
        cmocka_unit_test(test_recipes),
        cmocka_unit_test(test_notes_ineffective_keys),
        cmocka_unit_test(test_balance_of_sequences),
        cmocka_unit_test(test_key_table_is_consistent),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_printed_limits),
        cmocka_unit_test(test_printed_keys),
        cmocka_unit_test(test_notes_replaced_keys),
        cmocka_unit_test(test_model_of_another_config),
        cmocka_unit_test(test_memory_of_recipes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
