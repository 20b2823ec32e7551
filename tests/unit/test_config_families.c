/* SPDX-License-Identifier: Apache-2.0
 *
 * What families read from config.json beyond sizes: windows and rotation per layer, their own
 * numbers and flags, transformers' defaults for absent keys, and refusals.
 */
#include "ledger_lines.h"
#include "published.h"
#include "refused.h"

static void expect_refused(const char *arch, const char *more, nib_status status)
{
    parsed p;
    open_config(&p, arch, more);
    refused(status, p.status, &p.err);
    close_parsed(&p);
}

/* Which layers of SmolLM3 use rope: "1" and "0". */
static void expect_rope(const char *more, const char *layers, bool overruled)
{
    parsed p;
    open_config(&p, "smollm3", more);
    assert_int_equal(p.status, NIB_OK);
    for (int64_t i = 0; i < p.config.layers; i++)
        assert_int_equal(nib__config_has_rope(&p.config, i), layers[i] == '1');
    assert_int_equal(count_settings(&p.ledger, "config-key", "no_rope_layer_interval"), overruled);
    close_parsed(&p);
}

static void test_layers_without_rope(void **state)
{
    (void)state;
    expect_rope("\"num_hidden_layers\":9", "111011101", false);
    expect_rope("\"num_hidden_layers\":5,\"no_rope_layer_interval\":2", "10101", false);
    expect_rope("\"no_rope_layers\":[0,1]", "01", false);
    expect_rope("\"no_rope_layers\":[1,0],\"no_rope_layer_interval\":2", "10", false);
    expect_rope("\"no_rope_layers\":[1,1],\"no_rope_layer_interval\":2", "11", true);
    expect_refused("smollm3", "\"no_rope_layers\":[1]", NIB_BAD_INPUT); /* of two layers */
    expect_refused("smollm3", "\"no_rope_layer_interval\":0", NIB_BAD_INPUT);
    parsed p;
    open_config(&p, "llama", "\"no_rope_layer_interval\":0");
    assert_int_equal(count_settings(&p.ledger, "config-key", "no_rope_layer_interval"), 1);
    close_parsed(&p);
    open_config(&p, "llama", "\"no_rope_layer_interval\":4");
    assert_int_equal(p.status, NIB_OK);
    assert_null(p.config.rope_layers);
    assert_int_equal(count_settings(&p.ledger, "config-key", "no_rope_layer_interval"), 1);
    close_parsed(&p);
}

/* Absent keys have transformers' defaults. */
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
    open_config(&p, "phi3", "");
    assert_true(!p.config.tied && p.config.norm_eps == 1e-5 && p.config.window == 0);
    assert_true(!p.config.qkv_bias && nib__config_rope_dims(&p.config) == 16);
    close_parsed(&p);
    open_config(&p, "glm4", "");
    assert_true(p.config.norm_eps == 1.5625e-7 && p.config.rope_interleaved);
    assert_true(p.config.qkv_bias && !p.config.o_bias);
    assert_true(p.config.head_dim == 128 && nib__config_rope_dims(&p.config) == 64);
    close_parsed(&p);
    open_config(&p, "glm", "\"attention_bias\":false,\"partial_rotary_factor\":1.0");
    assert_true(!p.config.qkv_bias && nib__config_rope_dims(&p.config) == 128);
    close_parsed(&p);
}

/* Older names of longrope, and the context from which its values are derived. */
static void test_longrope(void **state)
{
    (void)state;
#define LISTS "\"short_factor\":[1,1.5,2,2.5,3,3.5,4,4.5],\"long_factor\":[1,2,3,4,5,6,7,8]"
    static const char *const types[] = {"longrope", "su", "yarn"};
    char more[400];
    parsed p;
    for (size_t i = 0; i < COUNT(types); i++) {
        snprintf(more, sizeof more,
                 "\"original_max_position_embeddings\":256,\"rope_scaling\":{\"type\":\"%s\"," LISTS
                 "}",
                 types[i]);
        open_config(&p, "phi3", more);
        assert_int_equal(p.status, NIB_OK);
        assert_true(p.config.rope == NIB_ROPE_LONGROPE && p.config.rope_original == 256);
        /* sqrt(1 + ln(1024 / 256) / ln 256) */
        assert_true(p.config.rope_factor == 4 && fabs(p.config.rope_gain - sqrt(1.25)) < 1e-12);
        close_parsed(&p);
    }
    open_config(&p, "phi3", "\"rope_scaling\":{\"type\":\"longrope\"," LISTS "}");
    assert_int_equal(p.config.rope_original, 4096); /* if no key gives it */
    close_parsed(&p);
    expect_refused("phi3", "\"rope_scaling\":{\"type\":\"linear\",\"factor\":2}", NIB_UNSUPPORTED);
    /* 6 channels rotate, in lists of 8 */
    expect_refused(
        "phi3", "\"partial_rotary_factor\":0.75,\"rope_scaling\":{\"type\":\"longrope\"," LISTS "}",
        NIB_BAD_INPUT);
}

/* ---- as published ---- */

#define PHI3                                                                                       \
    "\"architectures\":[\"Phi3ForCausalLM\"],\"model_type\":\"phi3\",\"attention_bias\":false,"    \
    "\"attention_dropout\":0.0,\"embd_pdrop\":0.0,\"resid_pdrop\":0.0,\"hidden_act\":\"silu\","    \
    "\"initializer_range\":0.02,\"rms_norm_eps\":1e-05,\"torch_dtype\":\"bfloat16\","              \
    "\"use_cache\":true,"
#define PHI_MINI                                                                                   \
    PHI3 "\"hidden_size\":3072,\"intermediate_size\":8192,\"num_hidden_layers\":32,"               \
         "\"bos_token_id\":1,\"eos_token_id\":32000,\"pad_token_id\":32000,\"vocab_size\":32064,"  \
         "\"num_attention_heads\":32,\"num_key_value_heads\":32,\"tie_word_embeddings\":false,"    \
         "\"rope_theta\":10000.0,\"original_max_position_embeddings\":4096,"
#define PHI_14B                                                                                    \
    PHI3 "\"hidden_size\":5120,\"intermediate_size\":17920,\"num_hidden_layers\":40,"              \
         "\"num_attention_heads\":40,\"num_key_value_heads\":10,\"tie_word_embeddings\":false,"
#define GLM                                                                                        \
    "\"attention_dropout\":0.0,\"hidden_act\":\"silu\",\"initializer_range\":0.02,"                \
    "\"head_dim\":128,\"rope_theta\":10000.0,\"tie_word_embeddings\":false,\"use_cache\":true,"    \
    "\"torch_dtype\":\"bfloat16\","
#define GLM4                                                                                       \
    "\"architectures\":[\"Glm4ForCausalLM\"],\"model_type\":\"glm4\"," GLM                         \
    "\"partial_rotary_factor\":0.5,\"rms_norm_eps\":1e-05,\"max_position_embeddings\":32768,"      \
    "\"eos_token_id\":[151329,151336,151338],\"pad_token_id\":151329,\"vocab_size\":151552,"

/* Published models: every key is read, the number of weights matches the model card, and the plan
 * is as asked. */
static void test_published(void **state)
{
    static const struct {
        const char *name, *json; /* %s: 48 factors */
        double billions;
        int64_t window, rotated;
    } cases[] = {
        {"Phi-3-mini-4k",
         PHI_MINI "\"max_position_embeddings\":4096,\"rope_scaling\":null,\"sliding_window\":2047",
         3.821, 2047, 96},
        {"Phi-3-mini-128k",
         PHI_MINI
         "\"max_position_embeddings\":131072,\"sliding_window\":262144,"
         "\"rope_scaling\":{\"type\":\"longrope\",\"long_factor\":[%s],\"short_factor\":[%s]}",
         3.821, 262144, 96},
        {"Phi-3-medium-4k",
         PHI_14B
         "\"bos_token_id\":1,\"eos_token_id\":32000,\"pad_token_id\":32000,\"vocab_size\":32064,"
         "\"max_position_embeddings\":4096,\"original_max_position_embeddings\":4096,"
         "\"rope_theta\":10000.0,\"rope_scaling\":null,\"sliding_window\":2047",
         13.960, 2047, 128},
        {"Phi-4",
         PHI_14B "\"bos_token_id\":100257,\"eos_token_id\":100265,\"pad_token_id\":100349,"
                 "\"vocab_size\":100352,\"max_position_embeddings\":16384,"
                 "\"original_max_position_embeddings\":16384,\"rope_theta\":250000,"
                 "\"rope_scaling\":null,\"sliding_window\":null",
         14.659, 0, 128},
        {"Phi-4-mini",
         PHI3 "\"hidden_size\":3072,\"intermediate_size\":8192,\"num_hidden_layers\":32,"
              "\"num_attention_heads\":24,\"num_key_value_heads\":8,\"tie_word_embeddings\":true,"
              "\"bos_token_id\":199999,\"eos_token_id\":199999,\"pad_token_id\":199999,"
              "\"vocab_size\":200064,\"full_attn_mod\":1,\"interpolate_factor\":1,"
              "\"lm_head_bias\":false,\"mlp_bias\":false,\"partial_rotary_factor\":0.75,"
              "\"max_position_embeddings\":131072,\"original_max_position_embeddings\":4096,"
              "\"rope_theta\":10000.0,\"sliding_window\":262144,"
              "\"rope_scaling\":{\"type\":\"longrope\",\"long_factor\":[%s],\"short_factor\":[%s]}",
         3.836, 262144, 96},
        {"glm-4-9b-chat-hf",
         "\"architectures\":[\"GlmForCausalLM\"],\"model_type\":\"glm\"," GLM
         "\"hidden_size\":4096,\"intermediate_size\":13696,\"num_hidden_layers\":40,"
         "\"num_attention_heads\":32,\"num_key_value_heads\":2,\"attention_bias\":true,"
         "\"max_position_embeddings\":131072,\"rms_norm_eps\":1.5625e-07,"
         "\"eos_token_id\":[151329,151336,151338],\"pad_token_id\":151329,\"vocab_size\":151552",
         9.400, 0, 64},
        {"glm-edge-1.5b-chat",
         "\"architectures\":[\"GlmForCausalLM\"],\"model_type\":\"glm\"," GLM
         "\"hidden_size\":2048,\"intermediate_size\":6144,\"num_hidden_layers\":28,"
         "\"num_attention_heads\":16,\"num_key_value_heads\":4,\"attention_bias\":false,"
         "\"max_position_embeddings\":8192,\"rms_norm_eps\":1e-05,\"partial_rotary_factor\":1.0,"
         "\"eos_token_id\":[59246,59253,59255],\"pad_token_id\":59246,\"vocab_size\":59264",
         1.593, 0, 128},
        {"c4ai-command-r-plus",
         "\"architectures\":[\"CohereForCausalLM\"],\"model_type\":\"cohere\",\"attention_bias\":"
         "false,"
         "\"attention_dropout\":0.0,\"bos_token_id\":5,\"eos_token_id\":255001,\"pad_token_id\":0,"
         "\"hidden_act\":\"silu\",\"hidden_size\":12288,\"initializer_range\":0.02,"
         "\"intermediate_size\":33792,\"layer_norm_eps\":1e-05,\"logit_scale\":0.8333333333333334,"
         "\"max_position_embeddings\":131072,\"num_attention_heads\":96,\"num_hidden_layers\":64,"
         "\"num_key_value_heads\":8,\"rope_theta\":75000000.0,\"torch_dtype\":\"float16\","
         "\"use_cache\":true,\"use_qk_norm\":true,\"vocab_size\":256000",
         103.809, 0, 128},
        {"stablelm-2-12b",
         "\"architectures\":[\"StableLmForCausalLM\"],\"model_type\":\"stablelm\","
         "\"attention_dropout\":0.0,\"bos_token_id\":100257,\"eos_token_id\":100257,"
         "\"hidden_act\":\"silu\",\"hidden_dropout\":0.0,\"hidden_size\":5120,"
         "\"initializer_range\":0.02,\"intermediate_size\":13824,\"layer_norm_eps\":1e-05,"
         "\"max_position_embeddings\":4096,\"num_attention_heads\":32,\"num_hidden_layers\":40,"
         "\"num_key_value_heads\":8,\"partial_rotary_factor\":0.25,\"qk_layernorm\":true,"
         "\"rope_scaling\":null,\"rope_theta\":10000,\"tie_word_embeddings\":false,"
         "\"torch_dtype\":\"bfloat16\",\"use_cache\":true,\"use_parallel_residual\":true,"
         "\"use_qkv_bias\":false,\"vocab_size\":100352",
         12.143, 0, 40},
        {"GLM-4-9B-0414",
         GLM4 "\"hidden_size\":4096,\"intermediate_size\":13696,\"num_hidden_layers\":40,"
              "\"num_attention_heads\":32,\"num_key_value_heads\":2,\"attention_bias\":true",
         9.400, 0, 64},
        {"GLM-4-32B-0414",
         GLM4 "\"hidden_size\":6144,\"intermediate_size\":23040,\"num_hidden_layers\":61,"
              "\"num_attention_heads\":48,\"num_key_value_heads\":2,\"attention_bias\":false",
         32.565, 0, 64},
    };
    char factors[48 * 4 + 1] = "1.0", text[4096];
    (void)state;
    for (int i = 1; i < 48; i++)
        strcat(factors, ",1.5");
    for (size_t i = 0; i < COUNT(cases); i++) {
        parsed p;
        size_t used = (size_t)snprintf(text, sizeof text, "{");
        for (const char *at = cases[i].json; *at != '\0'; at++)
            if (at[0] == '%')
                used += (size_t)snprintf(text + used, sizeof text - used, "%s", factors), at++;
            else
                text[used++] = *at;
        snprintf(text + used, sizeof text - used, "}");
        open_as_published(&p, cases[i].name, text, cases[i].billions);
        assert_int_equal(p.config.window, cases[i].window);
        assert_int_equal(nib__config_rope_dims(&p.config), cases[i].rotated);
        close_parsed(&p);
    }
}

/* Keys of one family, given and absent. */
static void test_keys_of_one_family(void **state)
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
    /* as written by transformers 5 */
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
    assert_false(p.config.qk_norm || p.config.parallel);
    close_parsed(&p);
    open_config(&p, "stablelm", "\"qk_layernorm\":true,\"use_parallel_residual\":true");
    assert_true(p.config.qk_norm && p.config.parallel && !p.config.qkv_bias);
    close_parsed(&p);
}

static void expect_conv(const char *more, const char *layers, int64_t ffn, bool overruled)
{
    parsed p;
    open_config(&p, "lfm2", more);
    assert_int_equal(p.status, NIB_OK);
    for (int64_t i = 0; i < p.config.layers; i++)
        assert_int_equal(nib__config_has_conv(&p.config, i), layers[i] == '1');
    assert_int_equal(p.config.ffn, ffn);
    assert_int_equal(count_settings(&p.ledger, "config-key", "full_attn_idxs"), overruled);
    close_parsed(&p);
}

/* LFM2: layers with a convolution, and the width of the MLPs as transformers computes it. */
static void test_convolutions(void **state)
{
    (void)state;
    expect_conv("", "00", 256, false); /* 172 * 2 / 3, rounded up to a multiple of 256 */
    expect_conv("\"layer_types\":[\"conv\",\"full_attention\"],\"block_multiple_of\":1", "10", 114,
                false);
    expect_conv("\"full_attn_idxs\":[0],\"block_auto_adjust_ff_dim\":false", "01", 172, false);
    expect_conv("\"full_attn_idxs\":[1],\"block_ffn_dim_multiplier\":1.25,\"block_multiple_of\":8",
                "10", 144, false); /* 142, rounded up */
    expect_conv("\"full_attn_idxs\":[1],\"block_ffn_dim_multiplier\":null", "10", 114, false);
    expect_conv("\"layer_types\":[\"conv\",\"full_attention\"],\"full_attn_idxs\":[0,1],"
                "\"block_ff_dim\":300,\"block_multiple_of\":1",
                "10", 200, true);
    parsed p;
    open_config(&p, "lfm2", "\"tie_embedding\":false");
    assert_false(p.config.tied);
    assert_true(p.config.conv_taps == 3 && p.config.norm_eps == 1e-5 && p.config.qk_norm);
    close_parsed(&p);
    open_config(&p, "lfm2", "\"conv_dim\":64,\"use_pos_enc\":true,\"num_heads\":4");
    assert_int_equal(p.ledger.setting_count, 0);
    close_parsed(&p);
    open_config(&p, "lfm2_moe",
                "\"layer_types\":[\"conv\",\"full_attention\"],\"num_dense_layers\":1");
    assert_true(nib__config_has_conv(&p.config, 0) && p.config.ffn == 172);
    assert_true(!nib__config_has_experts(&p.config, 0) && nib__config_has_experts(&p.config, 1));
    assert_true(p.config.moe.experts == 32 && p.config.moe.sigmoid && p.config.moe.normalize);
    close_parsed(&p);
    open_config(&p, "llama", "\"full_attn_idxs\":[1]");
    assert_int_equal(count_settings(&p.ledger, "config-key", "full_attn_idxs"), 1);
    close_parsed(&p);
    static const struct {
        const char *json;
        nib_status status;
    } cases[] = {
        {"\"layer_types\":[\"conv\"]", NIB_BAD_INPUT},
        {"\"layer_types\":[\"conv\",\"sliding_attention\"]", NIB_UNSUPPORTED},
        {"\"layer_types\":[\"conv\",\"conv\"]", NIB_UNSUPPORTED},
        {"\"full_attn_idxs\":[]", NIB_UNSUPPORTED},
        {"\"full_attn_idxs\":[2]", NIB_BAD_INPUT},
        {"\"full_attn_idxs\":[-1]", NIB_BAD_INPUT},
        {"\"conv_bias\":true", NIB_BAD_INPUT},
        {"\"conv_L_cache\":1", NIB_BAD_INPUT},
        {"\"conv_L_cache\":65", NIB_BAD_INPUT},
        {"\"block_ffn_dim_multiplier\":-1", NIB_BAD_INPUT},
        {"\"block_multiple_of\":0", NIB_BAD_INPUT},
    };
    for (size_t i = 0; i < COUNT(cases); i++)
        expect_refused("lfm2", cases[i].json, cases[i].status);
    expect_refused("lfm2_moe",
                   "\"layer_types\":[\"conv\",\"full_attention\"],\"use_expert_bias\":false",
                   NIB_BAD_INPUT);
}

static void expect_delta(const char *more, const char *layers, bool overruled)
{
    parsed p;
    open_config(&p, "qwen3_5_text", more);
    assert_int_equal(p.status, NIB_OK);
    for (int64_t i = 0; i < p.config.layers; i++)
        assert_int_equal(nib__config_has_conv(&p.config, i), layers[i] == '1');
    assert_int_equal(count_settings(&p.ledger, "config-key", "full_attention_interval"), overruled);
    close_parsed(&p);
}

/* Qwen3-Next and Qwen3.5: layers with the gated delta rule, and its sizes. */
static void test_gated_delta(void **state)
{
    (void)state;
    expect_delta("\"full_attention_interval\":2", "10", false);
    expect_delta("\"full_attention_interval\":1", "00", false);
    expect_delta("\"layer_types\":[\"full_attention\",\"linear_attention\"]", "01", false);
    expect_delta("\"layer_types\":[\"linear_attention\",\"full_attention\"],"
                 "\"full_attention_interval\":2",
                 "10", false);
    expect_delta("\"layer_types\":[\"full_attention\",\"linear_attention\"],"
                 "\"full_attention_interval\":2",
                 "01", true);
    parsed p;
    open_config(&p, "qwen3_next", "\"full_attention_interval\":2,\"linear_num_value_heads\":48");
    const nib_matrix_size *d = &p.config.matrix;
    assert_true(d->key_heads == 16 && d->heads == 48 && d->key_dim == 128 && d->value_dim == 128);
    assert_true(p.config.conv_taps == 4 && p.config.moe.experts == 512 && p.config.moe.normalize);
    assert_int_equal(nib__config_conv_channels(&p.config), 2 * 2048 + 48 * 128);
    close_parsed(&p);
    static const struct {
        const char *json;
        nib_status status;
    } cases[] = {
        {"", NIB_UNSUPPORTED}, /* every fourth layer of two has attention */
        {"\"layer_types\":[\"conv\",\"full_attention\"]", NIB_UNSUPPORTED},
        {"\"layer_types\":[\"full_attention\"]", NIB_BAD_INPUT},
        {"\"full_attention_interval\":2,\"linear_num_key_heads\":5", NIB_BAD_INPUT},
        {"\"full_attention_interval\":2,\"linear_key_head_dim\":257", NIB_BAD_INPUT},
        {"\"full_attention_interval\":2,\"linear_value_head_dim\":0", NIB_BAD_INPUT},
        {"\"full_attention_interval\":2,\"linear_conv_kernel_dim\":65", NIB_BAD_INPUT},
        {"\"full_attention_interval\":2,\"attn_output_gate\":false", NIB_BAD_INPUT},
        {"\"full_attention_interval\":2,\"output_gate_type\":\"tanh\"", NIB_UNSUPPORTED},
        {"\"full_attention_interval\":2,\"mamba_ssm_dtype\":\"bfloat16\"", NIB_UNSUPPORTED},
        {"\"full_attention_interval\":2,\"rope_parameters\":{\"mrope_axes\":[1]}", NIB_BAD_INPUT},
    };
    for (size_t i = 0; i < COUNT(cases); i++)
        expect_refused("qwen3_5_text", cases[i].json, cases[i].status);
    expect_refused("llama", "\"rope_parameters\":{\"mrope_section\":[1,1,0]}", NIB_BAD_INPUT);
    expect_refused("llama", "\"full_attention_interval\":2", NIB_BAD_INPUT);
}

#define MAMBA "\"mamba_n_heads\":8,\"mamba_d_state\":16,"
#define MIXED MAMBA "\"layer_types\":[\"attention\",\"mamba\"]"

static void expect_mamba(const char *more, const char *layers, bool rotates)
{
    parsed p;
    open_config(&p, "granitemoehybrid", more);
    assert_int_equal(p.status, NIB_OK);
    for (int64_t i = 0; i < p.config.layers; i++)
        assert_int_equal(nib__config_has_conv(&p.config, i), layers[i] == '1');
    assert_int_equal(nib__config_has_rope(&p.config, 0), rotates);
    close_parsed(&p);
}

/* Granite 4: layers with Mamba-2, its sizes, and the MLPs. */
static void test_mamba(void **state)
{
    (void)state;
    expect_mamba(MIXED, "01", false);
    expect_mamba(MAMBA "\"layers_block_type\":[\"mamba\",\"attention\"]", "10", false);
    expect_mamba(MAMBA "\"layer_types\":[\"linear_attention\",\"full_attention\"]", "10", false);
    expect_mamba("\"layer_types\":[\"attention\",\"attention\"]", "00", false);
    expect_mamba(MIXED ",\"position_embedding_type\":\"rope\"", "01", true);
    expect_mamba(MIXED ",\"position_embedding_type\":null", "01", false);
    parsed p;
    open_config(&p, "granitemoehybrid",
                MIXED ",\"mamba_n_groups\":2,\"time_step_limit\":[0.5,Infinity]");
    const nib_matrix_size *s = &p.config.matrix;
    assert_true(s->key_heads == 2 && s->heads == 8 && s->key_dim == 16 && s->value_dim == 16);
    assert_true(p.config.conv_taps == 4 && p.config.conv_bias && !p.config.mamba_bias);
    assert_true(p.config.least_step == 0.5 && isinf(p.config.most_step));
    assert_true(p.config.moe.experts == 8 && p.config.moe.shared_ffn == 1024);
    assert_int_equal(nib__config_conv_channels(&p.config), 2 * 2 * 16 + 8 * 16);
    close_parsed(&p);
    open_config(&p, "granitemoehybrid",
                MIXED ",\"num_local_experts\":0,\"num_experts_per_tok\":0,"
                      "\"shared_intermediate_size\":96,"
                      "\"time_step_limit\":[0.0,{\"__float__\":\"Infinity\"}]");
    assert_true(p.config.ffn == 96 && p.config.moe.experts == 0);
    assert_true(p.config.least_step == 0 && isinf(p.config.most_step));
    close_parsed(&p);
    static const struct {
        const char *json;
        nib_status status;
    } cases[] = {
        {MAMBA "\"layer_types\":[\"mamba\",\"mamba\"]", NIB_UNSUPPORTED},
        {"\"mamba_n_heads\":8", NIB_UNSUPPORTED}, /* without layer_types all have Mamba-2 */
        {MAMBA "\"layer_types\":[\"mamba\",\"conv\"]", NIB_UNSUPPORTED},
        {MAMBA "\"layer_types\":[\"mamba\"]", NIB_BAD_INPUT},
        {MIXED ",\"mamba_n_groups\":3", NIB_BAD_INPUT},
        {MIXED ",\"mamba_d_head\":15", NIB_BAD_INPUT},
        {MIXED ",\"mamba_d_head\":\"wide\"", NIB_BAD_INPUT},
        {MIXED ",\"mamba_d_head\":0", NIB_BAD_INPUT},
        {MIXED ",\"mamba_expand\":3,\"mamba_d_head\":16", NIB_BAD_INPUT},
        {MIXED ",\"mamba_d_state\":257", NIB_BAD_INPUT},
        {MIXED ",\"mamba_d_conv\":1", NIB_BAD_INPUT},
        {MIXED ",\"mamba_conv_bias\":3", NIB_BAD_INPUT},
        {MIXED ",\"num_local_experts\":4,\"num_experts_per_tok\":0", NIB_BAD_INPUT},
        {MIXED ",\"position_embedding_type\":\"alibi\"", NIB_UNSUPPORTED},
        {MIXED ",\"normalization_function\":\"layernorm\"", NIB_UNSUPPORTED},
        {MIXED ",\"time_step_limit\":[0.5,0.5]", NIB_BAD_INPUT},
        {MIXED ",\"time_step_limit\":[-1,2]", NIB_BAD_INPUT},
        {MIXED ",\"time_step_limit\":[0]", NIB_BAD_INPUT},
        {MIXED ",\"time_step_limit\":[0,1,2]", NIB_BAD_INPUT},
        {MIXED ",\"time_step_limit\":[0,{\"__float__\":\"NaN\"}]", NIB_BAD_INPUT},
    };
    for (size_t i = 0; i < COUNT(cases); i++)
        expect_refused("granitemoehybrid", cases[i].json, cases[i].status);
    expect_refused("llama", "\"mamba_n_heads\":8", NIB_BAD_INPUT);
    expect_refused("llama", "\"position_embedding_type\":\"nope\"", NIB_BAD_INPUT);
}

/* A family's own keys are refused with values that would change the result and are not supported.
 */
static void test_refused_keys(void **state)
{
    static const struct {
        const char *arch, *json;
        nib_status status;
    } cases[] = {
        {"phi3", "\"lm_head_bias\":true", NIB_BAD_INPUT},
        {"qwen2", "\"use_mrope\":true", NIB_BAD_INPUT},
        {"phi3", "\"sliding_window\":0", NIB_BAD_INPUT},
        {"glm4", "\"partial_rotary_factor\":0.01", NIB_BAD_INPUT},
        {"cohere", "\"use_parallel_residual\":true", NIB_BAD_INPUT},
        {"cohere", "\"qk_layernorm\":true", NIB_BAD_INPUT},
        {"stablelm", "\"use_qk_norm\":true", NIB_BAD_INPUT},
        {"stablelm", "\"qk_layernorm\":\"yes\"", NIB_BAD_INPUT},
        {"stablelm", "\"partial_rotary_factor\":0.01", NIB_BAD_INPUT},
        {"stablelm", "\"partial_rotary_factor\":1.5", NIB_BAD_INPUT},
        {"cohere2", "\"use_qk_norm\":true", NIB_BAD_INPUT},
        {"cohere2", "\"sliding_window\":null", NIB_UNSUPPORTED},
        {"gemma3_text", "\"rope_parameters\":{\"sliding_attention\":{\"factor\":8}}",
         NIB_UNSUPPORTED},
        {"cohere2", "\"use_parallel_block\":false", NIB_BAD_INPUT},
        {"cohere2", "\"position_embedding_type\":\"alibi\"", NIB_UNSUPPORTED},
        {"starcoder2", "\"mlp_type\":\"gated\"", NIB_UNSUPPORTED},
        {"granite", "\"residual_multiplier\":0", NIB_BAD_INPUT},
        {"granite", "\"logits_scaling\":\"16\"", NIB_BAD_INPUT},
        {"gemma3_text", "\"attn_logit_softcapping\":50", NIB_BAD_INPUT},
        {"gemma3_text", "\"use_bidirectional_attention\":true", NIB_BAD_INPUT},
        {"gemma2", "\"hidden_activation\":\"relu\"", NIB_UNSUPPORTED},
        {"gemma2", "\"query_pre_attn_scalar\":-1", NIB_BAD_INPUT},
    };
    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++)
        expect_refused(cases[i].arch, cases[i].json, cases[i].status);
}

#define SLIDING(more) "\"rope_parameters\":{\"sliding_attention\":{" more "}}"
#define LONG(list) "\"rope_scaling\":{\"type\":\"longrope\",\"short_factor\":" list "}"
#define YARN(more) "\"rope_scaling\":{\"type\":\"yarn\",\"factor\":2," more "}"

/* Values of the wrong kind, and out of range. */
static void test_wrong_values(void **state)
{
    (void)state;
    static const struct {
        const char *arch, *json;
        nib_status status;
    } cases[] = {
        {"llama", "\"rope_scaling\":{\"type\":5}", NIB_BAD_INPUT},
        {"llama", "\"rope_scaling\":{\"original_max_position_embeddings\":1073741825}",
         NIB_BAD_INPUT},
        {"llama",
         "\"rope_scaling\":{\"type\":\"llama3\",\"factor\":8,\"low_freq_factor\":1,"
         "\"high_freq_factor\":4}", /* no original context */
         NIB_BAD_INPUT},
        {"qwen2", YARN("\"original_max_position_embeddings\":1"), NIB_BAD_INPUT},
        {"phi3", LONG("null"), NIB_BAD_INPUT},
        {"phi3", LONG("5"), NIB_BAD_INPUT},
        {"phi3", LONG("[1e999]"), NIB_BAD_INPUT},
        {"phi3", LONG("[1,1,1,1,1,1,1,1e10]"), NIB_BAD_INPUT},
        {"phi3", "\"original_max_position_embeddings\":1," LONG("[1]"), NIB_BAD_INPUT},
        {"stablelm", "\"partial_rotary_factor\":0", NIB_BAD_INPUT},
        {"stablelm", "\"partial_rotary_factor\":0.1875", NIB_BAD_INPUT}, /* 3 of 16 */
        {"ministral3", "\"rope_parameters\":{\"llama_4_scaling_beta\":11}", NIB_BAD_INPUT},
        {"ministral3", "\"rope_parameters\":{\"llama_4_scaling_beta\":-1}", NIB_BAD_INPUT},
        {"gemma3_text", SLIDING("\"short_factor\":[1]"), NIB_UNSUPPORTED},
        {"gemma3_text", SLIDING("\"long_factor\":[1]"), NIB_UNSUPPORTED},
        {"gemma3_text", SLIDING("\"rope_type\":\"linear\""), NIB_UNSUPPORTED},
        {"gemma3_text", SLIDING("\"rope_theta\":0.5"), NIB_BAD_INPUT},
        {"gemma3_text", SLIDING("\"rope_theta\":1e18"), NIB_BAD_INPUT},
        {"qwen3", "\"layer_types\":5", NIB_BAD_INPUT},
        {"qwen3", "\"layer_types\":[\"\\ud800\"]", NIB_BAD_INPUT},
        {"smollm3", "\"no_rope_layers\":[1.5]", NIB_BAD_INPUT},
        {"exaone4", "\"sliding_window_pattern\":{}", NIB_BAD_INPUT},
        {"exaone4", "\"sliding_window_pattern\":1.5", NIB_BAD_INPUT},
        {"exaone4", "\"sliding_window_pattern\":\"\"", NIB_BAD_INPUT},
        {"exaone4", "\"sliding_window_pattern\":\"\\ud800\"", NIB_BAD_INPUT},
        {"stablelm", "\"use_parallel_residual\":0.5", NIB_BAD_INPUT},
        {"granite", "\"residual_multiplier\":", NIB_BAD_INPUT},
        {"granite", "\"residual_multiplier\":1e9", NIB_BAD_INPUT},
        {"llama", "\"quantization_config\":5", NIB_BAD_INPUT},
        {"llama", "\"architectures\":5", NIB_BAD_INPUT},
        {"llama", "\"architectures\":[5]", NIB_BAD_INPUT},
        {"llama", "\"of_tomorrow\":", NIB_BAD_INPUT},
    };
    for (size_t i = 0; i < COUNT(cases); i++)
        expect_refused(cases[i].arch, cases[i].json, cases[i].status);
}

/* A list of so many values, each `value`. */
static void expect_list(const char *arch, const char *key, const char *value, int count,
                        const char *words)
{
    const nib_allocator a = nib__allocator_default();
    nib_text text;
    parsed p;
    nib__text_init(&text, &a);
    nib__text_format(&text, "{\"model_type\":\"%s\",\"num_key_value_heads\":2," SIZES ",%s[", arch,
                     key);
    for (int i = 0; i < count; i++)
        nib__text_format(&text, "%s%s", i == 0 ? "" : ",", value);
    nib__text_str(&text, strchr(key, '{') != NULL ? "]}}" : "]}");
    open_text(&p, text.at);
    assert_int_equal(p.status, NIB_BAD_INPUT);
    if (strstr(p.err.text, words) == NULL)
        fail_msg("%s", p.err.text);
    close_parsed(&p);
    nib__text_free(&text);
}

/* Lists that are longer than any model needs, and lists that only do not fit this model. */
static void test_long_lists(void **state)
{
    (void)state;
    static const struct {
        const char *arch, *key, *value, *words;
    } cases[] = {
        {"phi3", "\"rope_scaling\":{\"type\":\"longrope\",\"short_factor\":", "1",
         "at most 32768 factors"},
        {"qwen3", "\"layer_types\":", "\"full_attention\"", "at most"},
        {"smollm3", "\"no_rope_layers\":", "1", "at most"},
        {"llama4_text", "\"moe_layers\":", "7", "at most"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        expect_list(cases[i].arch, cases[i].key, cases[i].value, 40000, cases[i].words);
        expect_list(cases[i].arch, cases[i].key, cases[i].value, 100, "");
    }
}

static bool lists(const nib_family_row *family, const char *key)
{
    for (const nib_family_key *k = family->keys; k != NULL && k->key != NULL; k++)
        if (strcmp(k->key, key) == 0)
            return true;
    return false;
}

static void expect_elsewhere(const nib_family_row *family, const nib_family_key *key)
{
    char more[64];
    parsed p, without;
    snprintf(more, sizeof more, "\"%s\":7", key->key);
    open_config(&p, family->name, more);
    if (p.status != NIB_BAD_INPUT || strstr(p.err.text, key->key) == NULL)
        fail_msg("%s for %s: %s: %s", more, family->name, nib_status_name(p.status), p.err.text);
    close_parsed(&p);
    if (key->elsewhere == 0)
        return;
    snprintf(more, sizeof more, "\"%s\":%g", key->key, key->elsewhere);
    open_config(&p, family->name, more);
    open_config(&without, family->name, "");
    assert_int_equal(p.status, without.status);
    assert_int_equal(p.ledger.setting_count, without.ledger.setting_count);
    close_parsed(&without);
    close_parsed(&p);
}

/* Other families refuse a family's key, unless its value is neutral, or they have a general key of
 * that name. */
static void test_keys_of_other_families_are_refused(void **state)
{
    (void)state;
    for (size_t f = 0; nib__family_at(f) != NULL; f++)
        for (size_t g = 0; nib__family_at(g) != NULL; g++)
            for (const nib_family_key *k = nib__family_at(g)->keys; k && k->key != NULL; k++)
                if (!lists(nib__family_at(f), k->key) && strcmp(k->key, "intermediate_size") != 0)
                    expect_elsewhere(nib__family_at(f), k);
}

/* Which layers of a two-layer model have a window. */
static void test_windows(void **state)
{
    (void)state;
    static const struct {
        const char *arch, *json;
        int64_t windows[2];
    } cases[] = {
        {"mistral", "\"sliding_window\":512", {512, 512}},
        {"mistral", "\"sliding_window\":null", {0, 0}},
        {"mistral", "\"vocab_size\":300", {4096, 4096}}, /* the key is absent */
        {"qwen2", "\"sliding_window\":512,\"use_sliding_window\":false", {0, 0}},
        /* from layer 28 on, as max_window_layers is absent */
        {"qwen2", "\"sliding_window\":512,\"use_sliding_window\":true", {0, 0}},
        {"qwen2",
         "\"sliding_window\":512,\"use_sliding_window\":true,\"max_window_layers\":1",
         {0, 512}},
        {"llama", "\"sliding_window\":512", {0, 0}},
        {"qwen3", "\"layer_types\":[\"full_attention\",\"full_attention\"]", {0, 0}},
        {"qwen3",
         "\"use_sliding_window\":true,\"sliding_window\":512,\"layer_types\":[\"full_attention\","
         "\"sliding_attention\"]",
         {0, 512}},
        /* layers without rope have the window */
        {"smollm3",
         "\"use_sliding_window\":true,\"sliding_window\":512,\"no_rope_layers\":[1,0]",
         {0, 512}},
        {"smollm3", "\"sliding_window\":512,\"no_rope_layers\":[1,0]", {0, 0}},
        {"olmo2",
         "\"use_sliding_window\":true,\"sliding_window\":512,\"max_window_layers\":0",
         {0, 0}},
        /* not all families read layer_types */
        {"llama",
         "\"sliding_window\":512,\"layer_types\":[\"sliding_attention\",\"sliding_attention\"]",
         {0, 0}},
        {"mistral",
         "\"sliding_window\":512,\"layer_types\":[\"full_attention\",\"sliding_attention\"]",
         {512, 512}},
        {"ministral",
         "\"sliding_window\":512,\"layer_types\":[\"full_attention\",\"sliding_attention\"]",
         {0, 512}},
        {"exaone4", "\"sliding_window\":null", {0, 0}},
        {"exaone4", "\"rope_theta\":1000000", {4096, 4096}}, /* the key is absent */
        {"exaone4", "\"sliding_window\":8,\"sliding_window_pattern\":2", {8, 0}},
        {"exaone4", "\"sliding_window\":8,\"sliding_window_pattern\":\"GL\"", {0, 8}},
        {"gemma2", "\"sliding_window\":8", {8, 0}},
        {"gemma3_text", "\"sliding_window\":8", {8, 8}},
    };
    static const struct {
        const char *arch, *json;
        nib_status status;
    } wrong[] = {
        {"qwen3",
         "\"sliding_window\":512,\"layer_types\":[\"full_attention\",\"sliding_attention\"]",
         NIB_BAD_INPUT},
        {"cohere2",
         "\"sliding_window\":512,\"layer_types\":[\"full_attention\",\"full_attention\"]",
         NIB_UNSUPPORTED},
        {"cohere2", "\"sliding_window_pattern\":1", NIB_UNSUPPORTED},
        {"cohere2", "\"sliding_window_pattern\":0", NIB_BAD_INPUT},
        {"gemma3_text", "\"sliding_window\":null", NIB_BAD_INPUT},
        {"exaone4", "\"sliding_window_pattern\":\"LX\"", NIB_BAD_INPUT},
        {"mistral", "\"sliding_window\":0", NIB_BAD_INPUT},
        {"mistral", "\"sliding_window\":-1", NIB_BAD_INPUT},
        {"qwen3", "\"layer_types\":[\"full_attention\"]", NIB_BAD_INPUT},
        {"qwen3",
         "\"use_sliding_window\":true,\"sliding_window\":null,\"layer_types\":[\"full_attention\","
         "\"sliding_attention\"]",
         NIB_BAD_INPUT},
        {"qwen3", "\"layer_types\":[\"full_attention\",\"linear_attention\"]", NIB_UNSUPPORTED},
        {"qwen3", "\"layer_types\":[1]", NIB_BAD_INPUT},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        parsed p;
        open_config(&p, cases[i].arch, cases[i].json);
        assert_int_equal(p.status, NIB_OK);
        for (int64_t l = 0; l < 2; l++)
            if (nib__config_window(&p.config, l) != cases[i].windows[l])
                fail_msg("%s %s: layer %d has a window of %d", cases[i].arch, cases[i].json, (int)l,
                         (int)nib__config_window(&p.config, l));
        close_parsed(&p);
    }
    for (size_t i = 0; i < COUNT(wrong); i++)
        expect_refused(wrong[i].arch, wrong[i].json, wrong[i].status);
}

/* Keys that choose layers get a ledger line only if they contradict the windows used; so does a
 * second activation key that is overruled. */
static void test_ignored_keys_get_a_line(void **state)
{
    static const struct {
        const char *arch, *json;
        const char *name; /* of the only line; NULL: no line */
    } cases[] = {
        {"llama", "\"max_window_layers\":1", NULL},
        {"smollm3", "\"max_window_layers\":28", NULL},
        {"mistral", "\"sliding_window\":512,\"max_window_layers\":0", NULL},
        {"mistral", "\"sliding_window\":512,\"max_window_layers\":1", "max_window_layers"},
        {"qwen2", "\"sliding_window\":512,\"max_window_layers\":1", NULL},
        {"qwen3",
         "\"use_sliding_window\":true,\"sliding_window\":512,\"max_window_layers\":1,"
         "\"layer_types\":[\"full_attention\",\"sliding_attention\"]",
         NULL},
        {"qwen3",
         "\"use_sliding_window\":true,\"sliding_window\":512,\"max_window_layers\":1,"
         "\"layer_types\":[\"sliding_attention\",\"full_attention\"]",
         "max_window_layers"},
        {"gemma2",
         "\"sliding_window\":512,\"sliding_window_pattern\":2,"
         "\"layer_types\":[\"sliding_attention\",\"full_attention\"]",
         NULL},
        {"gemma2",
         "\"sliding_window\":512,\"sliding_window_pattern\":2,"
         "\"layer_types\":[\"full_attention\",\"sliding_attention\"]",
         "sliding_window_pattern"},
        {"exaone4",
         "\"sliding_window\":512,\"sliding_window_pattern\":\"LG\","
         "\"layer_types\":[\"full_attention\",\"sliding_attention\"]",
         "sliding_window_pattern"},
        {"llama", "\"sliding_window_pattern\":\"LLLG\"", "sliding_window_pattern"},
        {"qwen2", "\"use_sliding_window\":true,\"sliding_window\":null", "use_sliding_window"},
        {"qwen2", "\"use_sliding_window\":true", "use_sliding_window"},
        {"olmo2", "\"use_sliding_window\":true", "use_sliding_window"},
        {"gemma2", "\"hidden_act\":\"silu\",\"hidden_activation\":\"gelu_pytorch_tanh\"",
         "hidden_act"},
        {"smollm3", "\"use_sliding_window\":true,\"sliding_window\":512,\"no_rope_layers\":[1,1]",
         "use_sliding_window"},
        {"qwen2", "\"use_sliding_window\":true,\"sliding_window\":512,\"max_window_layers\":2",
         "use_sliding_window"},
        {"llama", "\"sliding_window\":null,\"layer_types\":null,\"no_rope_layers\":null", NULL},
        {"qwen2", "\"attention_bias\":false", "attention_bias"},
        {"qwen2", "\"attention_bias\":true", "attention_bias"},
        {"llama", "\"rope_scaling\":{\"type\":null},\"architectures\":null", NULL},
        {"llama", "\"auto_map\":false,\"quantization_config\":false", NULL},
        {"llama", "\"auto_map\":{\"AutoModel\":\"a.B\"}", "auto_map"},
        {"llama", "\"_attn_implementation\":\"a/b\"", "_attn_implementation"},
        {"llama", "\"_attn_implementation\":5", "_attn_implementation"},
        {"llama", "\"model_max_length\":1024", NULL},
        {"llama", "\"model_max_length\":2048", "model_max_length"},
        {"llama", "\"dtype\":\"bfloat16\",\"torch_dtype\":\"bfloat16\"", NULL},
        {"llama", "\"dtype\":\"bfloat16\",\"torch_dtype\":\"float16\"", "torch_dtype"},
        /* one number in two places */
        {"llama", "\"rope_theta\":5,\"rope_parameters\":{\"rope_theta\":5}", NULL},
        {"llama", "\"rope_theta\":6,\"rope_parameters\":{\"rope_theta\":5}", "rope_theta"},
        {"ministral3", YARN("\"mscale_all_dim\":1"), "rope_scaling.mscale_all_dim"},
        {"ministral3", YARN("\"mscale_all_dim\":1,\"mscale\":1"), NULL},
        {"ministral3", YARN("\"mscale_all_dim\":1,\"attention_factor\":1"),
         "rope_scaling.mscale_all_dim"},
        {"phi3",
         "\"rope_scaling\":{\"type\":\"longrope\",\"original_max_position_embeddings\":512," LISTS
         "}",
         "rope_scaling.original_max_position_embeddings"},
        {"gemma3_text", SLIDING("\"rope_type\":\"default\""), NULL},
        /* keys of other families that say what is so here, too */
        {"llama", "\"position_embedding_type\":\"rope\",\"residual_multiplier\":1", NULL},
        {"granite", "\"residual_multiplier\":null", NULL},
        {"gemma3_text", SLIDING("\"rope_theta\":1000"), NULL},
        {"gemma2",
         "\"hidden_act\":\"gelu_pytorch_tanh\",\"hidden_activation\":\"gelu_pytorch_tanh\"", NULL},
    };
    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        parsed p;
        open_config(&p, cases[i].arch, cases[i].json);
        assert_int_equal(p.status, NIB_OK);
        const size_t lines = cases[i].name != NULL ? 1 : 0;
        if (p.ledger.setting_count != lines ||
            (lines != 0 && strcmp(p.ledger.settings[0].name, cases[i].name) != 0))
            fail_msg("%s %s has %zu lines", cases[i].arch, cases[i].json, p.ledger.setting_count);
        close_parsed(&p);
    }
}

/* Families with their own key for biases do not read attention_bias. */
static void test_families_with_their_own_bias_key(void **state)
{
    static const char *const families[] = {"stablelm", "starcoder2"};
    (void)state;
    for (size_t i = 0; i < COUNT(families); i++) {
        parsed p, q;
        open_config(&p, families[i], "\"attention_bias\":true");
        open_config(&q, families[i], "\"attention_bias\":false");
        assert_int_equal(p.status, NIB_OK);
        assert_true(p.config.o_bias == q.config.o_bias && p.config.qkv_bias == q.config.qkv_bias);
        assert_int_equal(count_settings(&p.ledger, "config-key", "attention_bias"), 1);
        assert_int_equal(count_settings(&q.ledger, "config-key", "attention_bias"), 0);
        close_parsed(&p);
        close_parsed(&q);
    }
}

/* EXAONE 4 uses rope in layers with a window, and in all layers if there are no windows. */
static void test_exaone4_rope_follows_windows(void **state)
{
    (void)state;
    parsed p;
    open_config(&p, "exaone4", "\"sliding_window\":8,\"sliding_window_pattern\":2");
    assert_true(nib__config_has_rope(&p.config, 0) && !nib__config_has_rope(&p.config, 1));
    close_parsed(&p);
    open_config(&p, "exaone4", "\"sliding_window\":null");
    assert_true(nib__config_has_rope(&p.config, 0) && nib__config_has_rope(&p.config, 1));
    close_parsed(&p);
    expect_refused("exaone4",
                   "\"sliding_window\":8,\"layer_types\":[\"full_attention\",\"full_attention\"]",
                   NIB_UNSUPPORTED);
    /* a list that is not followed gets a ledger line */
    open_config(
        &p, "llama",
        "\"sliding_window\":null,\"layer_types\":[\"sliding_attention\",\"sliding_attention\"]");
    assert_int_equal(count_settings(&p.ledger, "config-key", "layer_types"), 1);
    close_parsed(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layers_without_rope),
        cmocka_unit_test(test_absent_keys),
        cmocka_unit_test(test_longrope),
        cmocka_unit_test(test_published),
        cmocka_unit_test(test_keys_of_one_family),
        cmocka_unit_test(test_convolutions),
        cmocka_unit_test(test_gated_delta),
        cmocka_unit_test(test_mamba),
        cmocka_unit_test(test_refused_keys),
        cmocka_unit_test(test_wrong_values),
        cmocka_unit_test(test_long_lists),
        cmocka_unit_test(test_keys_of_other_families_are_refused),
        cmocka_unit_test(test_windows),
        cmocka_unit_test(test_ignored_keys_get_a_line),
        cmocka_unit_test(test_families_with_their_own_bias_key),
        cmocka_unit_test(test_exaone4_rope_follows_windows),
    };
    return cmocka_run_group_tests(tests, open_published, close_published);
}
