/* SPDX-License-Identifier: Apache-2.0
 *
 * Gemma 4 in config.c: the text model of a model with images, heads that differ by layer,
 * proportional RoPE, experts, and what is refused, by name.
 */
#include "ledger_lines.h"
#include "arch.h"
#include "parsed_config.h"
#include "refused.h"

#include <math.h>

/* Keys without which transformers would give the text model embeddings for each layer. */
#define TEXT "\"hidden_size_per_layer_input\":0,\"head_dim\":16,\"global_head_dim\":32"
#define MOE "\"enable_moe_block\":true,\"num_experts\":8,\"top_k_experts\":2"
#define SLIDING "\"sliding_attention\""
#define FULL "\"full_attention\""
#define ENCODERS                                                                                   \
    "\"vision_config\":{\"model_type\":\"gemma4_vision\",\"hidden_size\":1152},\"audio_config\":"  \
    "null,\"image_token_id\":258880,\"boi_token_id\":255999,\"eoi_token_id\":258882,"              \
    "\"audio_token_id\":258881,\"vision_soft_tokens_per_image\":280,\"initializer_range\":0.02"

static void open_gemma(parsed *p, const char *more)
{
    char keys[2048];
    snprintf(keys, sizeof keys, TEXT "%s%s", *more ? "," : "", more);
    open_config(p, "gemma4_text", keys);
}

static void expect_refused(const char *more, nib_status status)
{
    parsed p;
    open_gemma(&p, more);
    refused(status, p.status, &p.err);
    close_parsed(&p);
}

static void test_defaults(void **state)
{
    (void)state;
    parsed p;
    open_gemma(&p, "\"num_hidden_layers\":7,\"global_head_dim\":null");
    assert_int_equal(p.status, NIB_OK);
    const nib_config *c = &p.config;
    assert_int_equal(p.ledger.setting_count, 0);
    assert_true(c->tied && c->window == 512 && c->logits_cap == 0 && c->attention_scale == 1);
    assert_true(c->rope == NIB_ROPE_PROPORTIONAL && c->rope_theta == 1e6 && c->local_theta == 1e4);
    assert_true(c->rope_pairs == 64 && c->moe.experts == 0 && c->embed_scale == 8);
    for (int64_t i = 0; i < 7; i++) { /* the last layer has no window, whatever the pattern */
        assert_int_equal(nib__config_window(c, i), i < 5 ? 512 : 0);
        assert_int_equal(nib__config_head_dim(c, i), i < 5 ? 16 : 512);
        assert_int_equal(nib__config_kv_heads(c, i), 2);
    }
    close_parsed(&p);
}

static void test_layers(void **state)
{
    (void)state;
    parsed p;
    open_gemma(&p, "\"layer_types\":[\"full_attention\",\"sliding_attention\"],"
                   "\"attention_k_eq_v\":true,\"num_global_key_value_heads\":1");
    assert_int_equal(p.status, NIB_OK);
    assert_null(p.config.window_layers);
    assert_int_equal(p.config.window, 0); /* transformers makes the last layer see all positions */
    assert_int_equal(count_settings(&p.ledger, "config-key", "layer_types"), 1);
    assert_int_equal(nib__config_kv_heads(&p.config, 1), 1);
    assert_true(p.config.keys_are_values);
    close_parsed(&p);
    open_gemma(&p, "\"num_global_key_value_heads\":1");
    assert_int_equal(p.status, NIB_OK);
    assert_int_equal(nib__config_kv_heads(&p.config, 1), 2);
    assert_int_equal(count_settings(&p.ledger, "config-key", "num_global_key_value_heads"), 1);
    close_parsed(&p);
    expect_refused("\"global_head_dim\":33", NIB_BAD_INPUT);
    expect_refused("\"attention_k_eq_v\":true,\"num_global_key_value_heads\":3", NIB_BAD_INPUT);
}

/* Pairs that do not rotate have a frequency of 0; layers with a window have a table of their own
 * width. */
static void test_rope(void **state)
{
    (void)state;
    float table[2 * 32];
    parsed p;
    open_gemma(&p, "\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"proportional\","
                   "\"rope_theta\":100,\"partial_rotary_factor\":0.4},\"sliding_attention\":{"
                   "\"rope_type\":\"default\",\"rope_theta\":777}}");
    assert_int_equal(p.status, NIB_OK);
    assert_int_equal(p.config.rope_pairs, 6); /* of 16, rounded down */
    assert_int_equal(nib__rope_size(&p.config, 3), 3 * 32);
    assert_int_equal(nib__config_table_dims(&p.config, 0), 32);
    assert_int_equal(nib__config_table_dims(&p.config, 1), 16);
    nib__rope_table(table, &p.config, 0, 8, 0, 2);
    for (int i = 0; i < 16; i++) {
        const double angle = i < 6 ? pow(100, -2.0 * i / 32) : 0;
        assert_true(fabs(cos(angle) - (double)table[32 + i]) < 1e-6);
        assert_true(fabs(sin(angle) - (double)table[32 + 16 + i]) < 1e-6);
    }
    nib__rope_table(table, &p.config, 1, 8, 0, 2);
    for (int i = 0; i < 8; i++)
        assert_true(fabs(sin(pow(777, -2.0 * i / 16)) - (double)table[16 + 8 + i]) < 1e-6);
    close_parsed(&p);
    /* given, but without the part that rotates: all of it, as in transformers */
    open_gemma(&p, "\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"proportional\","
                   "\"rope_theta\":100},\"sliding_attention\":{\"rope_theta\":777}}");
    assert_int_equal(p.config.rope_pairs, 16);
    close_parsed(&p);
    expect_refused("\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"proportional\","
                   "\"rope_theta\":100,\"partial_rotary_factor\":1.5}}",
                   NIB_BAD_INPUT);
    open_config(&p, "llama", "\"rope_scaling\":{\"rope_type\":\"proportional\"}");
    refused(NIB_UNSUPPORTED, p.status, &p.err);
    close_parsed(&p);
}

static void test_experts(void **state)
{
    (void)state;
    parsed p;
    open_gemma(&p, MOE ",\"moe_intermediate_size\":24");
    assert_int_equal(p.status, NIB_OK);
    assert_true(p.config.moe.experts == 8 && p.config.moe.top_k == 2 && p.config.moe.ffn == 24 &&
                p.config.moe.normalize && nib__config_has_experts(&p.config, 0));
    close_parsed(&p);
    expect_refused(MOE, NIB_BAD_INPUT); /* without a width */
    expect_refused("\"enable_moe_block\":true,\"num_experts\":8,\"moe_intermediate_size\":24",
                   NIB_BAD_INPUT);
    expect_refused(MOE ",\"moe_intermediate_size\":24,\"top_k_experts\":9", NIB_BAD_INPUT);
}

/* The last layers share the keys and values of the last layer of their kind before them, and may
 * have wider MLPs; layers have inputs of their own. */
static void test_shared(void **state)
{
    (void)state;
    parsed p;
    open_gemma(&p,
               "\"num_hidden_layers\":8,\"layer_types\":[" SLIDING "," FULL "," SLIDING "," SLIDING
               "," FULL "," SLIDING "," SLIDING "," FULL "],\"num_kv_shared_layers\":4,"
               "\"use_double_wide_mlp\":true");
    assert_int_equal(p.status, NIB_OK);
    static const int sources[] = {0, 1, 2, 3, 1, 3, 3, 1};
    for (int64_t i = 0; i < 8; i++) {
        assert_int_equal(nib__config_kv_layer(&p.config, i), sources[i]);
        assert_int_equal(nib__config_ffn(&p.config, i), (i < 4 ? 1 : 2) * p.config.ffn);
    }
    close_parsed(&p);
    open_config(&p, "gemma4_text", ""); /* transformers' defaults */
    assert_int_equal(p.status, NIB_OK);
    assert_true(p.config.layer_inputs == 256 && p.config.layer_vocab == 262144 &&
                p.config.layer_embed_scale == 16 && p.config.shared_layers == 0 &&
                nib__config_ffn(&p.config, 1) == p.config.ffn);
    close_parsed(&p);
    expect_refused("\"num_kv_shared_layers\":2", NIB_BAD_INPUT); /* of two layers */
    expect_refused("\"num_kv_shared_layers\":1,\"layer_types\":[" SLIDING "," FULL "]",
                   NIB_BAD_INPUT); /* none before it has no window */
    expect_refused("\"hidden_size_per_layer_input\":8,\"vocab_size_per_layer_input\":9",
                   NIB_UNSUPPORTED);
    expect_refused("\"hidden_size_per_layer_input\":65536,\"num_hidden_layers\":257",
                   NIB_BAD_INPUT);
}

/* Attention to later positions. */
static void test_refused(void **state)
{
    (void)state;
    expect_refused("\"use_bidirectional_attention\":\"all\"", NIB_UNSUPPORTED);
}

static void open_outer(parsed *p, const char *type, const char *inner, const char *outer)
{
    char text[4096];
    snprintf(text, sizeof text,
             "{\"architectures\":[\"Gemma4ForConditionalGeneration\"],\"model_type\":\"%s\","
             "\"text_config\":%s%s}",
             type, inner, outer);
    open_text(p, text);
}

/* The text model of a model with images: said in one line, and not a deviation. */
static void test_model_with_images(void **state)
{
    (void)state;
    static const char inner[] = "{\"model_type\":\"gemma4_text\",\"num_key_value_heads\":2," SIZES
                                "," TEXT ",\"dtype\":\"bfloat16\",\"eos_token_id\":1}";
    parsed p;
    open_outer(&p, "gemma4", inner,
               "," ENCODERS ",\"eos_token_id\":[1,106],\"dtype\":\"bfloat16\"");
    if (p.status != NIB_OK)
        fail_msg("%s", p.err.text);
    assert_string_equal(nib__arch_name(p.config.arch), "gemma4_text");
    assert_true(p.config.width == 64 && p.config.global_head_dim == 32 && p.config.eos_count == 2 &&
                p.config.dtype == NIB_TYPE_BF16);
    assert_int_equal(p.ledger.setting_count, 1);
    assert_int_equal(count_settings(&p.ledger, "config-key", "vision_config"), 1);
    assert_int_equal(p.ledger.settings[0].relation, NIB_SETTING_NARROWER);
    close_parsed(&p);
    open_outer(&p, "gemma4", inner, ",\"some_new_key\":3"); /* not read, and said */
    assert_int_equal(p.status, NIB_OK);
    assert_int_equal(count_settings(&p.ledger, "config-key", "some_new_key"), 1);
    close_parsed(&p);
    open_outer(&p, "gemma4", "{\"num_key_value_heads\":2," SIZES "," TEXT "}", "");
    assert_int_equal(p.status, NIB_OK); /* text_config need not name its model_type */
    close_parsed(&p);
    static const char *const others[][2] = {
        {"gemma4_unified", inner},
        {"gemma4", "{\"model_type\":\"gemma3_text\"," SIZES "}"},
        {"gemma4", "null"},
        {"gemma4", "[]"}};
    for (size_t i = 0; i < COUNT(others); i++) {
        open_outer(&p, others[i][0], others[i][1], "");
        refused(NIB_UNSUPPORTED, p.status, &p.err);
        close_parsed(&p);
    }
    open_outer(&p, "gemma4", "{\"model_type\":\"gemma4_text\",\"hidden_size\":-1}", "");
    refused(NIB_BAD_INPUT, p.status, &p.err);
    close_parsed(&p);
}

/* What is written is read back as the same model. */
static void test_written(void **state)
{
    (void)state;
    static const char *const cases[] = {
        "",
        "\"hidden_size_per_layer_input\":8,\"vocab_size_per_layer_input\":1000,"
        "\"num_hidden_layers\":4,\"layer_types\":[" SLIDING "," FULL "," SLIDING "," FULL "],"
        "\"num_kv_shared_layers\":2,\"use_double_wide_mlp\":true",
        MOE ",\"moe_intermediate_size\":24,\"attention_k_eq_v\":true,"
            "\"num_global_key_value_heads\":1,\"final_logit_softcapping\":30.0,"
            "\"layer_types\":[\"sliding_attention\",\"full_attention\"],\"sliding_window\":9",
        "\"attention_k_eq_v\":true"};
    for (size_t i = 0; i < COUNT(cases); i++) {
        parsed p, q;
        nib_text text;
        nib_err err;
        open_gemma(&p, cases[i]);
        assert_int_equal(p.status, NIB_OK);
        nib__text_init(&text, &allocator);
        if (nib__config_write(&text, &p.config, &err) != NIB_OK)
            fail_msg("%s", err.text);
        open_text(&q, text.at);
        if (q.status != NIB_OK)
            fail_msg("%s", q.err.text);
        const nib_config *a = &p.config, *b = &q.config;
        assert_int_equal(q.ledger.setting_count, 0);
        assert_true(a->rope == b->rope && a->rope_pairs == b->rope_pairs &&
                    a->rope_theta == b->rope_theta && a->local_theta == b->local_theta &&
                    a->logits_cap == b->logits_cap && a->window == b->window &&
                    a->keys_are_values == b->keys_are_values && a->moe.top_k == b->moe.top_k &&
                    a->moe.experts == b->moe.experts && a->moe.ffn == b->moe.ffn);
        assert_true(a->layer_inputs == b->layer_inputs && a->layer_vocab == b->layer_vocab &&
                    a->shared_layers == b->shared_layers && a->wide_mlp == b->wide_mlp);
        for (int64_t l = 0; l < a->layers; l++)
            assert_true(nib__config_head_dim(a, l) == nib__config_head_dim(b, l) &&
                        nib__config_kv_heads(a, l) == nib__config_kv_heads(b, l) &&
                        nib__config_window(a, l) == nib__config_window(b, l));
        nib__text_free(&text);
        close_parsed(&p);
        close_parsed(&q);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults), cmocka_unit_test(test_layers),
        cmocka_unit_test(test_rope),     cmocka_unit_test(test_experts),
        cmocka_unit_test(test_shared),   cmocka_unit_test(test_refused),
        cmocka_unit_test(test_written),  cmocka_unit_test(test_model_with_images),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
