/* SPDX-License-Identifier: Apache-2.0
 *
 * config.json of Llama 4: which layers have chunks, RoPE, experts and scaled queries; and the text
 * model inside of a model that also reads images.
 */
#include "ledger_lines.h"
#include "parsed_config.h"
#include "refused.h"

#define WIDTHS                                                                                     \
    "\"hidden_size\":64,\"num_hidden_layers\":4,\"num_attention_heads\":4,"                        \
    "\"num_key_value_heads\":2,\"head_dim\":16,\"vocab_size\":256,\"intermediate_size\":32,"       \
    "\"intermediate_size_mlp\":48,\"max_position_embeddings\":1024"

static void open_llama4(parsed *p, const char *more)
{
    char text[1024];
    snprintf(text, sizeof text, "{\"model_type\":\"llama4_text\"," WIDTHS "%s%s}",
             more[0] != 0 ? "," : "", more);
    open_text(p, text);
}

/* Of each of four layers: C chunks, R RoPE, E experts, S scaled queries. */
static void test_layers(void **state)
{
    (void)state;
    static const struct {
        const char *more, *layers[4];
        int64_t chunk;
    } cases[] = {
        {"", {"CRE", "CRE", "CRE", "ES"}, 8192},
        {"\"attention_chunk_size\":16", {"CRE", "CRE", "CRE", "ES"}, 16},
        {"\"attention_chunk_size\":null", {"RE", "RE", "RE", "ES"}, 0},
        {"\"no_rope_layers\":[0,1,1,1]", {"ES", "CRE", "CRE", "CRE"}, 8192},
        {"\"no_rope_layer_interval\":2", {"CRE", "ES", "CRE", "ES"}, 8192},
        {"\"no_rope_layers\":[1,1,1,1],\"layer_types\":[\"chunked_attention\",\"full_attention\","
         "\"full_attention\",\"full_attention\"]",
         {"CRE", "RE", "RE", "RE"},
         8192},
        {"\"interleave_moe_layer_step\":2", {"CR", "CRE", "CR", "ES"}, 8192},
        {"\"interleave_moe_layer_step\":2,\"moe_layers\":[0,2]", {"CRE", "CR", "CRE", "S"}, 8192},
        {"\"moe_layers\":[]", {"CR", "CR", "CR", "S"}, 8192},
        {"\"moe_layers\":null", {"CRE", "CRE", "CRE", "ES"}, 8192},
        {"\"attn_temperature_tuning\":false", {"CRE", "CRE", "CRE", "E"}, 8192},
        {"\"attn_temperature_tuning\":4", {"CRE", "CRE", "CRE", "ES"}, 8192},
        {"\"attn_temperature_tuning\":0", {"CRE", "CRE", "CRE", "E"}, 8192},
        {"\"attn_scale\":0", {"CRE", "CRE", "CRE", "E"}, 8192},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        parsed p;
        open_llama4(&p, cases[i].more);
        if (p.status != NIB_OK || p.ledger.setting_count != 0)
            fail_msg("%s: %s", cases[i].more, p.err.text);
        const nib_config *c = &p.config;
        assert_int_equal(c->window, cases[i].chunk);
        assert_int_equal(c->chunked, cases[i].chunk > 0);
        assert_int_equal(c->ffn, 48);
        assert_int_equal(c->moe.ffn, 32);
        for (int64_t l = 0; l < c->layers; l++) {
            char got[8];
            const bool rope = nib__config_has_rope(c, l);
            snprintf(got, sizeof got, "%s%s%s%s", nib__config_window(c, l) > 0 ? "C" : "",
                     rope ? "R" : "", nib__config_has_experts(c, l) ? "E" : "",
                     !rope && c->query_unrotated && c->query_beta > 0 ? "S" : "");
            if (strcmp(got, cases[i].layers[l]) != 0)
                fail_msg("%s: layer %d is %s", cases[i].more, (int)l, got);
        }
        close_parsed(&p);
    }
}

static void test_refused(void **state)
{
    (void)state;
    static const char *const cases[] = {
        "\"moe_layers\":[4]",
        "\"moe_layers\":[-1]",
        "\"moe_layers\":[0.5]",
        "\"moe_layers\":{}",
        "\"attention_chunk_size\":0",
        "\"attention_chunk_size\":-8",
        "\"attention_chunk_size\":\"8\"",
        "\"attention_chunk_size\":null,\"layer_types\":[\"chunked_attention\",\"full_attention\","
        "\"full_attention\",\"full_attention\"]",
        "\"floor_scale\":0",
        "\"floor_scale\":1.5",
        "\"attn_scale\":-1",
        "\"attn_temperature_tuning\":0.5",
        "\"attn_temperature_tuning\":-1",
        "\"use_qk_norm\":2",
        "\"num_experts_per_tok\":17",
        "\"intermediate_size\":0",
        "\"intermediate_size_mlp\":-3",
        "\"norm_topk_prob\":true",
    };
    parsed p;
    for (size_t i = 0; i < COUNT(cases); i++) {
        open_llama4(&p, cases[i]);
        refused(NIB_BAD_INPUT, p.status, &p.err);
        close_parsed(&p);
    }
    open_llama4(&p, "\"layer_types\":[\"sliding_attention\",\"full_attention\",\"full_attention\","
                    "\"full_attention\"]");
    refused(NIB_UNSUPPORTED, p.status, &p.err);
    close_parsed(&p);
    /* a key that other families read, and that does nothing here */
    open_llama4(&p, "\"sliding_window\":512");
    assert_int_equal(p.status, NIB_OK);
    assert_int_equal(count_settings(&p.ledger, "config-key", "sliding_window"), 1);
    close_parsed(&p);
}

/* Written, and read again: the same layers. */
static void test_written(void **state)
{
    (void)state;
    static const char *const cases[] = {
        "\"attention_chunk_size\":16,\"no_rope_layers\":[0,1,1,1],\"use_qk_norm\":false",
        "\"attention_chunk_size\":null,\"attn_temperature_tuning\":false",
        "\"interleave_moe_layer_step\":2,\"floor_scale\":64,\"attn_scale\":0.25",
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        parsed p, q;
        nib_text text;
        nib__text_init(&text, &allocator);
        open_llama4(&p, cases[i]);
        assert_int_equal(nib__config_write(&text, &p.config, &p.err), NIB_OK);
        open_text(&q, text.at);
        if (q.status != NIB_OK || q.ledger.setting_count != 0)
            fail_msg("%s: %s", text.at, q.err.text);
        const nib_config *a = &p.config, *b = &q.config;
        assert_true(a->query_beta == b->query_beta && a->query_step == b->query_step);
        assert_true(a->window == b->window && a->chunked == b->chunked);
        assert_true(a->ffn == b->ffn && a->moe.ffn == b->moe.ffn && a->qk_norm == b->qk_norm);
        for (int64_t l = 0; l < a->layers; l++)
            assert_true(nib__config_has_rope(a, l) == nib__config_has_rope(b, l) &&
                        nib__config_has_experts(a, l) == nib__config_has_experts(b, l) &&
                        nib__config_window(a, l) == nib__config_window(b, l));
        nib__text_free(&text);
        close_parsed(&p);
        close_parsed(&q);
    }
}

/* A model with images: its text model is read, and a line says what is not. */
static void test_text_config(void **state)
{
    (void)state;
    parsed p;
    open_text(&p, "{\"architectures\":[\"Llama4ForConditionalGeneration\"],\"model_type\":"
                  "\"llama4\",\"boi_token_index\":5,\"torch_dtype\":\"bfloat16\",\"eos_token_id\":"
                  "7,\"vision_config\":{\"hidden_size\":1408},\"text_config\":{\"model_type\":"
                  "\"llama4_text\",\"eos_token_id\":[1,2]," WIDTHS "},\"of_tomorrow\":3}");
    if (p.status != NIB_OK)
        fail_msg("%s", p.err.text);
    assert_string_equal(nib__arch_name(p.config.arch), "llama4_text");
    assert_int_equal(p.config.dtype, NIB_TYPE_BF16);
    assert_true(p.config.eos_count == 1 && p.config.eos[0] == 7);
    assert_int_equal(p.ledger.setting_count, 2);
    assert_int_equal(count_settings(&p.ledger, "config-key", "vision_config"), 1);
    assert_int_equal(count_settings(&p.ledger, "config-key", "of_tomorrow"), 1);
    assert_int_equal(p.ledger.settings[0].relation, NIB_SETTING_NARROWER);
    close_parsed(&p);
    static const struct {
        const char *text;
        nib_status status;
    } cases[] = {
        {"{\"model_type\":\"llama4\"," WIDTHS "}", NIB_UNSUPPORTED},
        {"{\"model_type\":\"llama4\",\"text_config\":5}", NIB_UNSUPPORTED},
        {"{\"model_type\":\"llama4\",\"text_config\":{\"hidden_size\":64}}", NIB_BAD_INPUT},
        {"{\"model_type\":\"llama4\",\"text_config\":{\"model_type\":\"llama\"," WIDTHS "}}",
         NIB_UNSUPPORTED},
        {"{\"model_type\":\"llava\",\"text_config\":{\"model_type\":\"llama4_text\"," WIDTHS "}}",
         NIB_UNSUPPORTED},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        open_text(&p, cases[i].text);
        refused(cases[i].status, p.status, &p.err);
        close_parsed(&p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layers),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_written),
        cmocka_unit_test(test_text_config),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
