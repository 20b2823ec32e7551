/* SPDX-License-Identifier: Apache-2.0
 *
 * What families take of config.json beyond sizes: windows and rotation by layer, numbers and flags
 * of their own, what transformers takes where a key is absent, and what is refused.
 */
#include "ledger_lines.h"
#include "parsed_config.h"

/* Which layers of SmolLM3 rotate by positions: as "1" and "0", or NULL where it is refused. */
static void expect_rope(const char *more, const char *layers, const char *says)
{
    parsed p;
    open_config(&p, "smollm3", more);
    if (layers == NULL) {
        assert_int_equal(p.status, NIB_BAD_INPUT);
        assert_says(&p, says);
    } else {
        assert_int_equal(p.status, NIB_OK);
        for (int64_t i = 0; i < p.config.layers; i++)
            assert_int_equal(nib__config_has_rope(&p.config, i), layers[i] == '1');
        assert_int_equal(count_settings(&p.ledger, "config-key", "no_rope_layer_interval"),
                         says != NULL);
    }
    close_parsed(&p);
}

static void test_layers_without_rope(void **state)
{
    (void)state;
    expect_rope("\"num_hidden_layers\":9", "111011101", NULL);
    expect_rope("\"num_hidden_layers\":5,\"no_rope_layer_interval\":2", "10101", NULL);
    expect_rope("\"no_rope_layers\":[0,1]", "01", NULL);
    expect_rope("\"no_rope_layers\":[1,0],\"no_rope_layer_interval\":2", "10", NULL);
    expect_rope("\"no_rope_layers\":[1,1],\"no_rope_layer_interval\":2", "11", "overruled");
    expect_rope("\"no_rope_layers\":[1]", NULL, "has 1 numbers, but num_hidden_layers is 2");
    parsed p;
    open_config(&p, "llama", "\"no_rope_layer_interval\":4");
    assert_int_equal(p.status, NIB_OK);
    assert_null(p.config.rope_layers);
    assert_int_equal(count_settings(&p.ledger, "config-key", "no_rope_layer_interval"), 1);
    close_parsed(&p);
}

/* What transformers takes where a key is absent. */
static void test_absent_keys(void **state)
{
    (void)state;
    parsed p;
    open_config(&p, "smollm3", "");
    assert_true(p.config.tied && p.config.rope_theta == 2000000 && p.config.norm_eps == 1e-6);
    close_parsed(&p);
    open_config(&p, "smollm3", "\"tie_word_embeddings\":false");
    assert_false(p.config.tied);
    close_parsed(&p);
    open_config(&p, "olmo2", "");
    assert_true(!p.config.tied && p.config.rope_theta == 10000 && p.config.norm_eps == 1e-5);
    close_parsed(&p);
    open_config(&p, "exaone4", "\"sliding_window\":null");
    assert_true(!p.config.tied && p.config.norm_eps == 1e-5);
    close_parsed(&p);
}

/* Numbers that a family reads, given and absent. */
static void test_own_keys(void **state)
{
    (void)state;
    parsed p;
    open_config(&p, "granite",
                "\"embedding_multiplier\":12,\"attention_multiplier\":0.0078125,"
                "\"residual_multiplier\":0.22,\"logits_scaling\":16");
    assert_true(p.config.embed_scale == 12 && p.config.attention_scale == 0.0078125 &&
                p.config.residual_scale == 0.22 && p.config.logits_scale == 0.0625);
    close_parsed(&p);
    open_config(&p, "gemma2", "\"torch_dtype\":\"bfloat16\",\"hidden_size\":48");
    assert_true(p.config.attention_scale == 0.0625 && p.config.attention_cap == 50 &&
                p.config.logits_cap == 30);
    assert_true(p.config.embed_scale == 6.9375); /* sqrt(48) = 6.9282 in bf16 */
    close_parsed(&p);
    open_config(&p, "gemma2", "\"attn_logit_softcapping\":null");
    assert_true(p.config.attention_cap == 0 && p.config.logits_cap == 30);
    close_parsed(&p);
    open_config(&p, "gemma3_text", "\"rope_local_base_freq\":5000");
    assert_true(p.config.local_theta == 5000 && nib__config_ropes(&p.config) == 2);
    assert_true(p.config.qk_norm && p.config.embed_scale == 8);
    close_parsed(&p);
    /* as transformers 5 writes it */
    open_config(&p, "gemma3_text",
                "\"rope_parameters\":{\"sliding_attention\":{\"rope_type\":\"default\","
                "\"rope_theta\":777},\"full_attention\":{\"rope_type\":\"linear\",\"factor\":8,"
                "\"rope_theta\":500}}");
    assert_int_equal(p.status, NIB_OK);
    assert_true(p.config.local_theta == 777 && p.config.rope_theta == 500 &&
                p.config.rope_factor == 8 && p.config.rope == NIB_ROPE_LINEAR);
    close_parsed(&p);
    open_config(&p, "cohere", "\"layer_norm_eps\":1e-6,\"rms_norm_eps\":1e-4");
    assert_true(p.config.logits_scale == 0.0625 && p.config.norm_eps == 1e-6);
    assert_true(p.config.rope_interleaved);
    close_parsed(&p);
    open_config(&p, "starcoder2", "\"use_bias\":false");
    assert_false(p.config.qkv_bias || p.config.o_bias || p.config.mlp_bias);
    close_parsed(&p);
    open_config(&p, "stablelm", "\"use_qkv_bias\":true,\"num_key_value_heads\":4");
    assert_true(p.config.qkv_bias && !p.config.o_bias && nib__config_rope_dims(&p.config) == 4);
    close_parsed(&p);
}

/* What changes the result and is not built, of a family that has such keys. */
static void test_refused_keys(void **state)
{
    static const struct {
        const char *arch, *json, *says;
    } cases[] = {
        {"stablelm", "\"use_parallel_residual\":true", "not built for stablelm"},
        {"stablelm", "\"qk_layernorm\":true", "(in \"qk_layernorm\")"},
        {"stablelm", "\"partial_rotary_factor\":0.01", "an even number of at least 2 is wanted"},
        {"stablelm", "\"partial_rotary_factor\":1.5", "an even number of at least 2 is wanted"},
        {"cohere", "\"use_qk_norm\":true", "not built for cohere"},
        {"cohere2", "\"sliding_window\":null", "would rotate by positions"},
        {"gemma3_text", "\"rope_parameters\":{\"sliding_attention\":{\"factor\":8}}",
         "rope_parameters scales sliding_attention"},
        {"cohere2", "\"use_parallel_block\":false", "use_parallel_block is 0"},
        {"cohere2", "\"position_embedding_type\":\"alibi\"", "only rope_gptj is built"},
        {"starcoder2", "\"mlp_type\":\"gated\"", "only default is built for starcoder2"},
        {"granite", "\"residual_multiplier\":0", "residual_multiplier is 0; a value from"},
        {"granite", "\"logits_scaling\":\"16\"", "logits_scaling is"},
        {"gemma3_text", "\"attn_logit_softcapping\":50", "not built for gemma3_text"},
        {"gemma3_text", "\"use_bidirectional_attention\":true", "not built for gemma3_text"},
        {"gemma2", "\"hidden_activation\":\"relu\"", "only gelu_pytorch_tanh is built"},
        {"gemma2", "\"query_pre_attn_scalar\":-1", "query_pre_attn_scalar is -1"},
    };
    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        parsed p;
        open_config(&p, cases[i].arch, cases[i].json);
        if (p.status == NIB_OK)
            fail_msg("taken: %s %s", cases[i].arch, cases[i].json);
        assert_says(&p, cases[i].says);
        close_parsed(&p);
    }
}

/* Which layers have a window, of a model of two. */
static void test_windows(void **state)
{
    (void)state;
    static const struct {
        const char *arch, *json;
        int64_t windows[2];
        const char *says; /* NULL: taken */
    } cases[] = {
        {"mistral", "\"sliding_window\":512", {512, 512}, NULL},
        {"mistral", "\"sliding_window\":null", {0, 0}, NULL},
        {"mistral", "\"vocab_size\":300", {4096, 4096}, NULL}, /* where the key is absent */
        {"qwen2", "\"sliding_window\":512,\"use_sliding_window\":false", {0, 0}, NULL},
        /* from layer 28 on, where max_window_layers is absent */
        {"qwen2", "\"sliding_window\":512,\"use_sliding_window\":true", {0, 0}, NULL},
        {"qwen2",
         "\"sliding_window\":512,\"use_sliding_window\":true,\"max_window_layers\":1",
         {0, 512},
         NULL},
        {"llama", "\"sliding_window\":512", {0, 0}, NULL},
        {"qwen3", "\"layer_types\":[\"full_attention\",\"full_attention\"]", {0, 0}, NULL},
        {"qwen3",
         "\"sliding_window\":512,\"layer_types\":[\"full_attention\",\"sliding_attention\"]",
         {0, 512},
         NULL},
        {"smollm3",
         "\"sliding_window\":512,\"use_sliding_window\":true,\"max_window_layers\":0",
         {512, 512},
         NULL},
        {"exaone4", "\"sliding_window\":null", {0, 0}, NULL},
        {"exaone4", "\"rope_theta\":1000000", {4096, 4096}, NULL}, /* where the key is absent */
        {"exaone4", "\"sliding_window\":8,\"sliding_window_pattern\":2", {8, 0}, NULL},
        {"exaone4", "\"sliding_window\":8,\"sliding_window_pattern\":\"GL\"", {0, 8}, NULL},
        {"gemma2", "\"sliding_window\":8", {8, 0}, NULL},
        {"gemma3_text", "\"sliding_window\":8", {8, 8}, NULL},
        {"exaone4", "\"sliding_window_pattern\":\"LX\"", {0}, "letters L, with a window"},
        {"mistral", "\"sliding_window\":0", {0}, "at least 1 position is wanted, or null"},
        {"mistral", "\"sliding_window\":-1", {0}, "-1 is negative"},
        {"qwen3",
         "\"layer_types\":[\"full_attention\"]",
         {0},
         "layer_types has 1 names, but num_hidden_layers is 2"},
        {"qwen3",
         "\"sliding_window\":null,\"layer_types\":[\"full_attention\",\"sliding_attention\"]",
         {0},
         "but sliding_window is not given"},
        {"qwen3",
         "\"layer_types\":[\"full_attention\",\"linear_attention\"]",
         {0},
         "layer_types names \"linear_attention\""},
        {"qwen3", "\"layer_types\":[1]", {0}, "layer_types"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        parsed p;
        open_config(&p, cases[i].arch, cases[i].json);
        if (cases[i].says)
            assert_says(&p, cases[i].says);
        else
            assert_int_equal(p.status, NIB_OK);
        for (int64_t l = 0; l < 2 && !cases[i].says; l++)
            if (nib__config_window(&p.config, l) != cases[i].windows[l])
                fail_msg("%s %s: layer %d has a window of %d", cases[i].arch, cases[i].json, (int)l,
                         (int)nib__config_window(&p.config, l));
        close_parsed(&p);
    }
}

/* Layers of EXAONE 4 rotate by positions where they have a window, and all do without windows. */
static void test_rotating_windows(void **state)
{
    (void)state;
    parsed p;
    open_config(&p, "exaone4", "\"sliding_window\":8,\"sliding_window_pattern\":2");
    assert_true(nib__config_has_rope(&p.config, 0) && !nib__config_has_rope(&p.config, 1));
    close_parsed(&p);
    open_config(&p, "exaone4", "\"sliding_window\":null");
    assert_true(nib__config_has_rope(&p.config, 0) && nib__config_has_rope(&p.config, 1));
    close_parsed(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layers_without_rope),
        cmocka_unit_test(test_absent_keys),
        cmocka_unit_test(test_own_keys),
        cmocka_unit_test(test_refused_keys),
        cmocka_unit_test(test_windows),
        cmocka_unit_test(test_rotating_windows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
