/* SPDX-License-Identifier: Apache-2.0
 *
 * Latent attention (src/model/arch/deepseek.c, src/checkpoint/latent.c): the published sizes, the
 * cache, and how kv_b_proj is read.
 */
#include "published.h"

#include "cache.h"
#include "refused.h"

#define DEEPSEEK                                                                                   \
    "\"attention_bias\":false,\"attention_dropout\":0.0,\"aux_loss_alpha\":0.001,"                 \
    "\"hidden_act\":\"silu\",\"initializer_range\":0.02,\"kv_lora_rank\":512,"                     \
    "\"moe_layer_freq\":1,\"pretraining_tp\":1,\"qk_nope_head_dim\":128,"                          \
    "\"qk_rope_head_dim\":64,\"seq_aux\":true,\"tie_word_embeddings\":false,"                      \
    "\"torch_dtype\":\"bfloat16\",\"use_cache\":true,\"v_head_dim\":128"
#define YARN(beta_fast, factor, mscale)                                                            \
    ",\"rope_scaling\":{\"beta_fast\":" #beta_fast ",\"beta_slow\":1,\"factor\":" #factor          \
    ",\"mscale\":" #mscale ",\"mscale_all_dim\":" #mscale                                          \
    ",\"original_max_position_embeddings\":4096,\"type\":\"yarn\"}"
#define V2                                                                                         \
    DEEPSEEK YARN(                                                                                 \
        32, 40,                                                                                    \
        0.707) ",\"architectures\":[\"DeepseekV2ForCausalLM\"],\"model_type\":\"deepseek_v2\","    \
               "\"bos_token_id\":100000,\"eos_token_id\":100001,\"first_k_dense_replace\":1,"      \
               "\"max_position_embeddings\":163840,\"n_shared_experts\":2,\"norm_topk_prob\":"     \
               "false,"                                                                            \
               "\"num_experts_per_tok\":6,\"rms_norm_eps\":1e-06,\"rope_theta\":10000,"            \
               "\"scoring_func\":\"softmax\",\"vocab_size\":102400"
#define V3                                                                                         \
    DEEPSEEK ",\"architectures\":[\"DeepseekV3ForCausalLM\"],\"ep_size\":1,\"hidden_size\":7168,"  \
             "\"intermediate_size\":18432,\"moe_intermediate_size\":2048,"                         \
             "\"n_shared_experts\":1,\"norm_topk_prob\":true,\"num_experts_per_tok\":8,"           \
             "\"num_hidden_layers\":61,\"q_lora_rank\":1536,\"rms_norm_eps\":1e-06,"               \
             "\"scoring_func\":\"sigmoid\",\"topk_method\":\"noaux_tc\""
#define V3_SIZES                                                                                   \
    YARN(32, 40, 1.0)                                                                              \
    ",\"model_type\":\"deepseek_v3\",\"bos_token_id\":0,\"eos_token_id\":1,"                       \
    "\"first_k_dense_replace\":3,\"max_position_embeddings\":163840,\"n_group\":8,"                \
    "\"n_routed_experts\":256,\"num_attention_heads\":128,\"num_key_value_heads\":128,"            \
    "\"num_nextn_predict_layers\":1,\"rope_theta\":10000,\"routed_scaling_factor\":2.5,"           \
    "\"topk_group\":4,\"vocab_size\":129280"

#define V2_SIZES                                                                                   \
    ",\"hidden_size\":5120,\"intermediate_size\":12288,\"moe_intermediate_size\":1536,"            \
    "\"n_group\":8,\"n_routed_experts\":160,\"num_attention_heads\":128,"                          \
    "\"num_hidden_layers\":60,\"num_key_value_heads\":128,\"q_lora_rank\":1536,"                   \
    "\"routed_scaling_factor\":16.0,\"topk_group\":3,\"topk_method\":\"group_limited_greedy\""

static const struct {
    const char *name, *text;
    double billions;
    nib_latent latent;
    double scale; /* of scores */
} models[] = {
    {"DeepSeek-V2-Lite",
     "{" V2 ",\"hidden_size\":2048,\"intermediate_size\":10944,\"moe_intermediate_size\":1408,"
     "\"n_group\":1,\"n_routed_experts\":64,\"num_attention_heads\":16,\"num_hidden_layers\":27,"
     "\"num_key_value_heads\":16,\"q_lora_rank\":null,\"routed_scaling_factor\":1.0,"
     "\"topk_group\":1,\"topk_method\":\"greedy\"}",
     15.706,
     {.rank = 512, .nope = 128, .rope = 64, .value = 128},
     0.11472138679292611},
    {"DeepSeek-V2",
     "{" V2 V2_SIZES "}",
     235.741,
     {.rank = 512, .query_rank = 1536, .nope = 128, .rope = 64, .value = 128},
     0.11472138679292611},
    {"DeepSeek-V3",
     "{" V3 V3_SIZES "}",
     671.025,
     {.rank = 512, .query_rank = 1536, .nope = 128, .rope = 64, .value = 128},
     0.1352337788608801},
    {"DeepSeek-R1",
     "{" V3 V3_SIZES ",\"transformers_version\":\"4.46.3\"}",
     671.025,
     {.rank = 512, .query_rank = 1536, .nope = 128, .rope = 64, .value = 128},
     0.1352337788608801},
    {"Kimi-K2-Instruct",
     "{" V3 YARN(
         1.0, 32.0,
         1.0) ",\"model_type\":\"kimi_k2\",\"bos_token_id\":163584,"
              "\"eos_token_id\":163585,\"first_k_dense_replace\":1,\"max_position_embeddings\":"
              "131072,"
              "\"n_group\":1,\"n_routed_experts\":384,\"num_attention_heads\":64,"
              "\"num_key_value_heads\":64,\"num_nextn_predict_layers\":0,\"rope_theta\":50000.0,"
              "\"routed_scaling_factor\":2.827,\"topk_group\":1,\"vocab_size\":163840}",
     1026.407,
     {.rank = 512, .query_rank = 1536, .nope = 128, .rope = 64, .value = 128},
     0.13086079996295005},
};

static void test_published(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(models); i++) {
        parsed p;
        machine = "epyc-turin"; /* has room for DeepSeek-V3 in int8, for Kimi K2 only in int4 */
        recipes[1] = models[i].billions < 1000 ? "int8wo" : "int4wo";
        open_as_published(&p, models[i].name, models[i].text, models[i].billions);
        const nib_latent *l = &p.config.latent, *want = &models[i].latent;
        if (l->rank != want->rank || l->query_rank != want->query_rank || l->nope != want->nope ||
            l->rope != want->rope || l->value != want->value)
            fail_msg("%s: other sizes", models[i].name);
        if (fabs(p.config.attention_scale / models[i].scale - 1) > 1e-9)
            fail_msg("%s: scores are scaled by %.16g", models[i].name, p.config.attention_scale);
        close_parsed(&p);
    }
}

/* A token takes rank + rope numbers in each layer, and the plan says what is allocated. */
static void test_cache_bytes(void **state)
{
    static const nib_type types[] = {NIB_TYPE_F32, NIB_TYPE_BF16, NIB_TYPE_I8};
    static const uint64_t wanted[] = {576 * 4, 576 * 2, 576 + 4};
    enum { CONTEXT = 128, SEQUENCES = 2 };
    (void)state;
    for (size_t i = 0; i < COUNT(types); i++) {
        parsed p;
        nib_kv kv;
        nib_kv_size size;
        nib_err err;
        open_text(&p, models[0].text);
        assert_int_equal(p.status, NIB_OK);
        const nib_kv_shape shape =
            nib__kv_shape(&p.config, SEQUENCES, CONTEXT, nib__kv_both(types[i]));
        const uint64_t layers = (uint64_t)p.config.layers;
        assert_int_equal(nib__kv_shape_bytes(&shape), layers * wanted[i]);
        assert_int_equal(nib__kv_measure(&size, &shape, &err), NIB_OK);
        assert_int_equal(size.bytes, layers * wanted[i] * CONTEXT * SEQUENCES);
        assert_int_equal(nib__kv_open(&kv, &shape, NULL, &allocator, &err), NIB_OK);
        assert_int_equal(nib__kv_bytes(&kv), size.bytes);
        assert_int_equal(nib__kv_position_bytes(&kv, 3), wanted[i]);
        assert_null(nib__kv_layer(&kv, 3).values);
        nib__kv_close(&kv);
        close_parsed(&p);
    }
}

/* head_dim of a config.json that transformers wrote is not the width of a query's head. */
static void test_head_dim(void **state)
{
    static const struct {
        const char *value;
        int lines;
    } cases[] = {{"64", 0}, {"192", 0}, {"128", 1}};
    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        char text[4096];
        parsed p;
        snprintf(text, sizeof text, "{" V3 V3_SIZES ",\"qk_head_dim\":192,\"head_dim\":%s}",
                 cases[i].value);
        open_text(&p, text);
        assert_int_equal(p.status, NIB_OK);
        assert_int_equal(p.config.head_dim, 192);
        assert_int_equal(p.ledger.setting_count, cases[i].lines);
        close_parsed(&p);
    }
}

/* What is not built is refused by name. */
static void test_refused(void **state)
{
    static const struct {
        const char *text;
        nib_status status;
    } cases[] = {
        {"{" V2 V2_SIZES ",\"norm_topk_prob\":true}", NIB_BAD_INPUT},
        {"{" V2 V2_SIZES ",\"topk_method\":\"noaux_tc\"}", NIB_UNSUPPORTED},
        {"{" V3 V3_SIZES ",\"scoring_func\":\"softmax\"}", NIB_UNSUPPORTED},
        {"{" V3 V3_SIZES ",\"topk_method\":\"greedy\"}", NIB_UNSUPPORTED},
        {"{" V3 V3_SIZES ",\"moe_layer_freq\":2}", NIB_BAD_INPUT},
        {"{" V3 V3_SIZES ",\"kv_lora_rank\":0}", NIB_BAD_INPUT},
        {"{" V3 V3_SIZES ",\"n_group\":7}", NIB_BAD_INPUT},
    };
    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        parsed p;
        open_text(&p, cases[i].text);
        refused(cases[i].status, p.status, &p.err);
        close_parsed(&p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_published),
        cmocka_unit_test(test_cache_bytes),
        cmocka_unit_test(test_head_dim),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, open_published, close_published);
}
