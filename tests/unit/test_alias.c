/* SPDX-License-Identifier: Apache-2.0
 *
 * Module names in both spellings, converted both ways.
 */
#include "alias.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

static void test_pairs(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"lm_head", "output"},
        {"lm_head.weight", "output.weight"},
        {"model.embed_tokens", "tok_embeddings"},
        {"model.norm.weight", "norm.weight"},
        {"model.layers.0.self_attn.q_proj", "layers.0.attention.wq"},
        {"model.layers.31.self_attn.k_proj.weight", "layers.31.attention.wk.weight"},
        {"model.layers.7.self_attn.v_proj.bias", "layers.7.attention.wv.bias"},
        {"model.layers.7.self_attn.o_proj", "layers.7.attention.wo"},
        {"model.layers.123456.mlp.gate_proj", "layers.123456.feed_forward.w1"},
        {"model.layers.1.mlp.down_proj", "layers.1.feed_forward.w2"},
        {"model.layers.1.mlp.up_proj", "layers.1.feed_forward.w3"},
        {"model.layers.1.input_layernorm.weight", "layers.1.attention_norm.weight"},
        {"model.layers.1.post_attention_layernorm.weight", "layers.1.ffn_norm.weight"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        char name[128];
        assert_true(nib__alias_to_meta(name, sizeof name, cases[i][0]));
        assert_string_equal(name, cases[i][1]);
        assert_true(nib__alias_from_meta(name, sizeof name, cases[i][1]));
        assert_string_equal(name, cases[i][0]);
        const size_t exact = strlen(cases[i][1]) + 1;
        assert_true(nib__alias_to_meta(name, exact, cases[i][0]));
        assert_false(nib__alias_to_meta(name, exact - 1, cases[i][0]));
    }
}

static void test_other_names_have_no_alias(void **state)
{
    (void)state;
    static const char *const names[] = {"",
                                        "model",
                                        "lm_headx",
                                        "layers.0.attention.wq",
                                        "outputs",
                                        "model.layers.",
                                        "model.layers.x.mlp.up_proj",
                                        "model.layers.1.mlp.up_projx",
                                        "model.layers.1"};
    for (size_t i = 0; i < COUNT(names); i++) {
        char name[64] = "untouched";
        assert_false(nib__alias_to_meta(name, sizeof name, names[i]));
        assert_string_equal(name, "untouched");
    }
    char name[64];
    assert_false(nib__alias_from_meta(name, sizeof name, "lm_head"));
    assert_false(nib__alias_from_meta(name, sizeof name, "layers.1.attention.wqkv"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_pairs),
                                       cmocka_unit_test(test_other_names_have_no_alias)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
