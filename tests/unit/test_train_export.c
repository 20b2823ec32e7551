/* SPDX-License-Identifier: Apache-2.0
 *
 * The outputs of a run: a model that opens, verifies and generates, in the requested type or
 * quantized; and metrics that continue where an interrupted run's ended.
 */
#include "train_export.h"
#include "train_runs.h"

static nib_status drop(void *ctx, const char *bytes, size_t size)
{
    (void)ctx, (void)bytes, (void)size;
    return NIB_OK;
}

static const nib_sink nowhere = {drop, NULL};

/* Opens, verifies and runs the model there. */
static void expect_model(const char *name, const char *recipe, nib_type type)
{
    const nib_generate_options options = {
        .prompt = "w1 and", .max_tokens = 4, .temperature = -1, .ignore_eos = true};
    nib_engine *engine;
    nib_model *model;
    nib_plan *plan;
    nib_session *session;
    nib_err err = {.status = NIB_OK};
    const nib_engine_options one = {.threads = 1};
    assert_int_equal(nib_engine_open(&engine, &one, &err), NIB_OK);
    engine->measured = true;
    if (nib_model_open(&model, engine, in_root(name), NULL, &err) != NIB_OK ||
        nib_verify(model, NULL, NIB_FORM_TEXT, &nowhere, &err) != NIB_OK)
        fail_msg("%s", err.text);
    assert_int_equal(model->net.config.dtype, type);
    const nib_request request = {.recipe = recipe};
    if (nib_plan_open(&plan, model, &request, &err) != NIB_OK ||
        nib_session_open(&session, model, plan, 1, &err) != NIB_OK ||
        nib_generate(session, &options, &nowhere, NULL, &err) != NIB_OK)
        fail_msg("%s", err.text);
    nib_session_close(session);
    nib_plan_close(plan);
    nib_model_close(model);
    nib_engine_close(engine);
}

static void test_exports(void **state)
{
    char out[256];
    (void)state;
    job j = {.folder = "first", .steps = 3, .export_last = true};
    must_train(&j);
    expect_model("first/model", NULL, NIB_TYPE_F32);
    assert_true(exists("first/model/generation_config.json"));
    must_train(&j); /* replaces the existing model */
    assert_false(exists("first/model.part"));
    j = (job){.folder = "only", .steps = 1, .export_last = true, .unsaved = true};
    must_train(&j);
    expect_model("only/model", NULL, NIB_TYPE_F32);
    snprintf(out, sizeof out, "%s", in_root("given"));
    j = (job){.folder = "first", .steps = 3, .out = out, .export_dtype = NIB_TYPE_BF16};
    must_train(&j);
    expect_model("given", NULL, NIB_TYPE_BF16);
    expect_refused(&j, NIB_EXISTS);
    assert_string_equal(j.lines, ""); /* reported before the first step */
}

/* A checkpoint directory opens as a model. */
static void test_checkpoint_is_a_model(void **state)
{
    nib_engine *engine;
    nib_model *model;
    nib_err err = {.status = NIB_OK};
    job j = {.folder = "steps", .steps = 2};
    (void)state;
    must_train(&j);
    assert_int_equal(nib_engine_open(&engine, NULL, &err), NIB_OK);
    if (nib_model_open(&model, engine, in_root("steps/step-00000002"), NULL, &err) != NIB_OK ||
        nib_verify(model, NULL, NIB_FORM_TEXT, &nowhere, &err) != NIB_OK)
        fail_msg("%s", err.text);
    nib_model_close(model);
    nib_engine_close(engine);
}

static int count_words(const char *name, const char *words)
{
    size_t size;
    int count = 0;
    char *text = read_file(name, &size);
    const char *at = nib__ends_with(name, ".safetensors") ? text + 8 : text; /* its header */
    for (; (at = strstr(at, words)) != NULL; at++)
        count++;
    free(text);
    return count;
}

/* Trains the model, stopped and resumed, and exports it. Its checkpoint and its export have the
 * tensor `whole` in layer 1 and none with `part` in its name, and another run starts from them. */
static void expect_fused(const char *folder, const char *text, const char *const whole[2],
                         const char *const part[2])
{
    static const char *const files[] = {"step-00000004/model.safetensors",
                                        "model/model.safetensors"};
    job j = {.folder = folder, .steps = 4, .stop = 2, .export_last = true};
    char path[256], next[64];
    write_text("config.json", text, strlen(text));
    expect_refused(&j, NIB_CANCELLED);
    j.stop = 0;
    must_train(&j);
    assert_non_null(strstr(j.log, "resuming from"));
    snprintf(path, sizeof path, "%s/model", folder);
    expect_model(path, NULL, NIB_TYPE_F32);
    for (size_t i = 0; i < COUNT(files); i++) {
        snprintf(path, sizeof path, "%s/%s", folder, files[i]);
        for (int w = 0; w < 2 && whole[w] != NULL; w++) {
            assert_int_equal(count_words(path, whole[w]), 1);
            assert_int_equal(count_words(path, part[w]), 0);
        }
    }
    snprintf(next, sizeof next, "%s/step-00000002", folder);
    snprintf(path, sizeof path, "%s", in_root(next));
    snprintf(next, sizeof next, "%s-next", folder);
    j = (job){.folder = next, .steps = 1, .initial_load = path};
    must_train(&j);
    write_text("config.json", config, sizeof config - 1);
}

/* Phi-3 trains q, k and v as separate weights, and is stored fused as transformers loads it. */
static void test_exports_fused_weights(void **state)
{
    static const char phi[] =
        "{\"model_type\": \"phi3\", \"hidden_size\": 32, \"intermediate_size\": 48, "
        "\"num_hidden_layers\": 2, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, "
        "\"vocab_size\": 920, \"max_position_embeddings\": 64, \"pad_token_id\": 0, "
        "\"tie_word_embeddings\": false, \"torch_dtype\": \"float32\"}";
    (void)state;
    expect_fused("phi", phi,
                 (const char *const[]){"layers.1.self_attn.qkv_proj.weight\"",
                                       "layers.1.mlp.gate_up_proj.weight\""},
                 (const char *const[]){".self_attn.q_proj", ".mlp.up_proj"});
}

/* DeepSeek-V3 trains the keys' and values' halves of each head, and is stored with kv_b_proj. */
static void test_exports_halves_of_heads(void **state)
{
    static const char deepseek[] =
        "{\"model_type\": \"deepseek_v3\", \"hidden_size\": 32, \"intermediate_size\": 48, "
        "\"num_hidden_layers\": 2, \"num_attention_heads\": 4, \"num_key_value_heads\": 4, "
        "\"kv_lora_rank\": 20, \"q_lora_rank\": 12, \"qk_nope_head_dim\": 8, "
        "\"qk_rope_head_dim\": 4, \"v_head_dim\": 6, \"n_routed_experts\": 4, \"n_group\": 1, "
        "\"topk_group\": 1, \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 16, "
        "\"first_k_dense_replace\": 1, \"num_nextn_predict_layers\": 0, \"vocab_size\": 920, "
        "\"max_position_embeddings\": 64, \"tie_word_embeddings\": false, "
        "\"torch_dtype\": \"float32\"}";
    (void)state;
    expect_fused(
        "latent", deepseek,
        (const char *const[]){"layers.1.self_attn.kv_b_proj.weight\": {\"dtype\": \"F32\", "
                              "\"shape\": [56, 20]",
                              NULL},
        (const char *const[]){"_b_proj.0.weight", NULL});
    /* transformers refuses 1 for a float */
    assert_int_equal(count_words("latent/model/config.json", "\"routed_scaling_factor\": 1.0"), 1);
}

/* gpt-oss, Llama 4 and Gemma 4 train expert by expert, and are stored in stacks. */
static void test_exports_stacks(void **state)
{
    static const char
        gpt_oss[] =
            "{\"model_type\": \"gpt_oss\", \"hidden_size\": 32, \"intermediate_size\": 48, "
            "\"num_hidden_layers\": 2, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, "
            "\"head_dim\": 8, \"num_local_experts\": 4, \"num_experts_per_tok\": 2, "
            "\"sliding_window\": 8, \"swiglu_limit\": 7.0, \"rope_scaling\": null, "
            "\"vocab_size\": 920, \"max_position_embeddings\": 64, "
            "\"tie_word_embeddings\": false, \"torch_dtype\": \"float32\"}",
        llama4[] =
            "{\"model_type\": \"llama4_text\", \"hidden_size\": 32, \"intermediate_size\": 48, "
            "\"intermediate_size_mlp\": 40, \"num_hidden_layers\": 2, \"num_attention_heads\": 4, "
            "\"num_key_value_heads\": 2, \"head_dim\": 8, \"num_local_experts\": 4, "
            "\"num_experts_per_tok\": 1, \"interleave_moe_layer_step\": 1, "
            "\"attention_chunk_size\": 16, \"vocab_size\": 920, \"max_position_embeddings\": 64, "
            "\"tie_word_embeddings\": false, \"torch_dtype\": \"float32\"}",
        gemma4[] =
            "{\"model_type\": \"gemma4_text\", \"hidden_size\": 32, \"intermediate_size\": 40, "
            "\"num_hidden_layers\": 2, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, "
            "\"head_dim\": 8, \"global_head_dim\": 16, \"num_global_key_value_heads\": 1, "
            "\"attention_k_eq_v\": true, \"enable_moe_block\": true, \"num_experts\": 4, "
            "\"top_k_experts\": 2, \"moe_intermediate_size\": 24, \"num_kv_shared_layers\": 0, "
            "\"hidden_size_per_layer_input\": 0, \"sliding_window\": 8, \"layer_types\": "
            "[\"sliding_attention\", \"full_attention\"], \"vocab_size\": 920, "
            "\"max_position_embeddings\": 64, \"tie_word_embeddings\": true, "
            "\"torch_dtype\": \"float32\"}";
    (void)state;
    expect_fused("gpt_oss", gpt_oss,
                 (const char *const[]){"layers.1.mlp.experts.gate_up_proj\": {\"dtype\": \"F32\", "
                                       "\"shape\": [4, 32, 96]",
                                       "layers.1.mlp.experts.gate_up_proj_bias\""},
                 (const char *const[]){".experts.0.", ".mlp.gate."});
    expect_fused("llama4", llama4,
                 (const char *const[]){"layers.1.feed_forward.experts.gate_up_proj\": {\"dtype\": "
                                       "\"F32\", \"shape\": [4, 32, 96]",
                                       "layers.1.feed_forward.router.weight\""},
                 (const char *const[]){".experts.0.", ".mlp.gate."});
    expect_fused("gemma4", gemma4,
                 (const char *const[]){"layers.1.experts.gate_up_proj\": {\"dtype\": \"F32\", "
                                       "\"shape\": [4, 48, 32]",
                                       "layers.1.self_attn.k_proj.weight\": {\"dtype\": "
                                       "\"F32\", \"shape\": [16, 32]"},
                 (const char *const[]){".experts.0.", "layers.1.self_attn.v_proj"});
    assert_int_equal(count_words("gemma4/model/model.safetensors",
                                 "layers.1.layer_scalar\": {\"dtype\": \"F32\", \"shape\": [1]"),
                     1);
}

/* A norm with a weight per head is a matrix, as in transformers. */
static void test_exports_head_norms_as_matrix(void **state)
{
    static const char cohere[] =
        "{\"model_type\": \"cohere\", \"hidden_size\": 32, \"intermediate_size\": 48, "
        "\"num_hidden_layers\": 2, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, "
        "\"vocab_size\": 920, \"max_position_embeddings\": 64, \"use_qk_norm\": true, "
        "\"torch_dtype\": \"float32\"}";
    job j = {.folder = "heads", .steps = 2, .export_last = true};
    (void)state;
    write_text("config.json", cohere, sizeof cohere - 1);
    must_train(&j);
    expect_model("heads/model", NULL, NIB_TYPE_F32);
    assert_int_equal(count_words("heads/model/model.safetensors",
                                 ".q_norm.weight\": {\"dtype\": \"F32\", \"shape\": [4, 8]"),
                     2);
    write_text("config.json", config, sizeof config - 1);
}

/* StableLM's norms per head are trained as one weight, and stored separately as transformers loads
 * them. */
static void test_exports_head_norms_separately(void **state)
{
    static const char stablelm[] =
        "{\"model_type\": \"stablelm\", \"hidden_size\": 32, \"intermediate_size\": 48, "
        "\"num_hidden_layers\": 2, \"num_attention_heads\": 4, \"num_key_value_heads\": 1, "
        "\"vocab_size\": 920, \"max_position_embeddings\": 64, \"qk_layernorm\": true, "
        "\"use_parallel_residual\": true, \"torch_dtype\": \"float32\"}";
    static const char *const files[] = {"apart/step-00000004/model.safetensors",
                                        "apart/model/model.safetensors"};
    job j = {.folder = "apart", .steps = 4, .stop = 2, .export_last = true};
    char stopped[256];
    (void)state;
    write_text("config.json", stablelm, sizeof stablelm - 1);
    expect_refused(&j, NIB_CANCELLED);
    j.stop = 0;
    must_train(&j);
    assert_non_null(strstr(j.log, "resuming from"));
    expect_model("apart/model", NULL, NIB_TYPE_F32);
    for (size_t i = 0; i < COUNT(files); i++) {
        assert_int_equal(count_words(files[i], ".q_layernorm.norms."), 2 * 4);
        assert_int_equal(count_words(files[i], "layers.1.self_attn.q_layernorm.norms.3.weight\": "
                                               "{\"dtype\": \"F32\", \"shape\": [8]"),
                         1);
        assert_int_equal(count_words(files[i], ".k_layernorm.norms.0.weight"), 2);
        assert_int_equal(count_words(files[i], ".q_norm"), 0);
        assert_int_equal(count_words(files[i], "post_attention_layernorm"), 0);
    }
    snprintf(stopped, sizeof stopped, "%s", in_root("apart/step-00000002"));
    j = (job){.folder = "apart-next", .steps = 1, .initial_load = stopped};
    must_train(&j);
    write_text("config.json", config, sizeof config - 1);
}

/* Quantization-aware training exports quantized weights. */
static void test_exports_codes(void **state)
{
    char out[256];
    (void)state;
    job j = {.folder = "codes", .steps = 2, .qat = "8da4w-g16"};
    must_train(&j);
    expect_model("codes/model", NULL, NIB_TYPE_F32);
    expect_model("codes/model-quantized", NULL, NIB_TYPE_F32);
    must_train(&j);
    snprintf(out, sizeof out, "%s", in_root("asked"));
    j = (job){.folder = "asked-codes", .steps = 2, .qat = "int4wo-g16", .unsaved = true};
    must_train(&j);
    assert_false(exists("asked-codes"));
    j.out = out;
    must_train(&j);
    expect_model("asked-quantized", NULL, NIB_TYPE_F32);
    assert_int_equal(rename(out, in_root("elsewhere")), 0);
    expect_refused(&j, NIB_EXISTS);
}

/* Metrics of a resumed run continue after its checkpoint. */
static void test_metrics_continue_after_resume(void **state)
{
    size_t size;
    char path[256];
    (void)state;
    snprintf(path, sizeof path, "%s", in_root("runs/m.jsonl"));
    job j = {.folder = "measured", .steps = 8, .interval = 2, .stop = 5, .metrics = path};
    expect_refused(&j, NIB_CANCELLED);
    assert_int_equal(count_words("runs/m.jsonl", "\"step\": "), 5);
    assert_int_equal(count_words("runs/m.jsonl", "\"training.seq_len\": 24"), 1);
    /* killed while writing step 8's line; the checkpoint is at step 5 */
    char *text = read_file("runs/m.jsonl", &size), longer[8192];
    const int length =
        snprintf(longer, sizeof longer,
                 "%s{\"step\": 6, \"loss\": 1}\n{\"step\": 7}\n{\"step\": 8, \"lo", text);
    free(text);
    write_text("runs/m.jsonl", longer, (size_t)length);
    j.stop = 0;
    must_train(&j);
    assert_int_equal(count_words("runs/m.jsonl", "\"step\": "), 8);
    assert_int_equal(count_words("runs/m.jsonl", "\"step\": 6,"), 1);
    assert_int_equal(count_words("runs/m.jsonl", "\"resumed_from\": 5"), 1);
    assert_int_equal(count_words("runs/m.jsonl", "\"tokens\": 768,"), 1); /* 8 x 4 x 24 */
    assert_int_equal(count_words("runs/m.jsonl", "\"skipped\": false}\n"), 8);
    /* a run from the start truncates its file */
    j = (job){.folder = "fresh", .steps = 2, .unsaved = true, .metrics = path};
    must_train(&j);
    assert_int_equal(count_words("runs/m.jsonl", "\n"), 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exports),
        cmocka_unit_test(test_checkpoint_is_a_model),
        cmocka_unit_test(test_exports_fused_weights),
        cmocka_unit_test(test_exports_halves_of_heads),
        cmocka_unit_test(test_exports_stacks),
        cmocka_unit_test(test_exports_head_norms_as_matrix),
        cmocka_unit_test(test_exports_head_norms_separately),
        cmocka_unit_test(test_exports_codes),
        cmocka_unit_test(test_metrics_continue_after_resume),
    };
    return cmocka_run_group_tests(tests, make_root, remove_root);
}
