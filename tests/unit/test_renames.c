/* SPDX-License-Identifier: Apache-2.0
 *
 * Names of tensors in GGUF files. In families that normalize after attention and the MLP, the same
 * name means another norm.
 */
#include "renames.h"

#include "arch.h"
#include "fused.h"
#include "parsed_config.h"

static void test_both_ways(void **state)
{
    static const struct {
        const char *arch, *gguf, *ours;
    } cases[] = {
        {"llama", "token_embd.weight", "model.embed_tokens.weight"},
        {"llama", "blk.3.attn_norm.weight", "model.layers.3.input_layernorm.weight"},
        {"qwen3", "blk.12.ffn_norm.weight", "model.layers.12.post_attention_layernorm.weight"},
        {"smollm3", "blk.0.ffn_norm.weight", "model.layers.0.post_attention_layernorm.weight"},
        {"olmo2", "blk.0.post_attention_norm.weight",
         "model.layers.0.post_attention_layernorm.weight"},
        {"exaone4", "blk.1.post_ffw_norm.weight",
         "model.layers.1.post_feedforward_layernorm.weight"},
        {"olmo2", "blk.1.attn_q_norm.weight", "model.layers.1.self_attn.q_norm.weight"},
        {"gemma2", "blk.2.ffn_norm.weight", "model.layers.2.pre_feedforward_layernorm.weight"},
        {"starcoder2", "blk.1.ffn_up.bias", "model.layers.1.mlp.c_fc.bias"},
        {"qwen2", "blk.7.attn_q.bias", "model.layers.7.self_attn.q_proj.bias"},
        {"qwen3moe", "blk.7.ffn_gate_exps.weight", "model.layers.7.mlp.experts.gate_proj.weight"},
        {"qwen3moe", "blk.7.ffn_gate_inp.weight", "model.layers.7.mlp.gate.weight"},
        {"qwen2moe", "blk.7.ffn_gate_inp_shexp.weight",
         "model.layers.7.mlp.shared_expert_gate.weight"},
        {"qwen2moe", "blk.7.ffn_up_shexp.weight",
         "model.layers.7.mlp.shared_expert.up_proj.weight"},
        {"llama", "blk.1.ffn_down_exps.weight",
         "model.layers.1.block_sparse_moe.experts.w2.weight"},
        {"llama", "blk.1.ffn_gate_inp.weight", "model.layers.1.block_sparse_moe.gate.weight"},
        {"gpt-oss", "blk.1.ffn_gate_inp.bias", "model.layers.1.mlp.gate.bias"},
        {"gpt-oss", "blk.1.ffn_up_exps.bias", "model.layers.1.mlp.experts.up_proj.bias"},
        {"gpt-oss", "blk.1.attn_sinks.weight", "model.layers.1.self_attn.sinks"},
        {"gpt-oss", "blk.1.post_attention_norm.weight",
         "model.layers.1.post_attention_layernorm.weight"},
        {"deepseek2", "blk.4.exp_probs_b.bias", "model.layers.4.mlp.gate.e_score_correction_bias"},
        {"deepseek2", "blk.4.ffn_down_shexp.weight",
         "model.layers.4.mlp.shared_experts.down_proj.weight"},
        {"deepseek2", "blk.4.attn_kv_a_mqa.weight",
         "model.layers.4.self_attn.kv_a_proj_with_mqa.weight"},
        {"deepseek2", "blk.0.ffn_gate.weight", "model.layers.0.mlp.gate_proj.weight"},
        {"glm4moe", "blk.4.exp_probs_b.bias", "model.layers.4.mlp.gate.e_score_correction_bias"},
        {"glm4moe", "blk.4.post_attention_norm.weight",
         "model.layers.4.post_attention_layernorm.weight"},
        {"qwen3moe", "blk.7.ffn_gate_exps.12.weight",
         "model.layers.7.mlp.experts.12.gate_proj.weight"},
        {"llama", "blk.7.ffn_down_exps.0.weight",
         "model.layers.7.block_sparse_moe.experts.0.w2.weight"},
        {"gpt-oss", "blk.7.ffn_down_exps.3.bias", "model.layers.7.mlp.experts.3.down_proj.bias"},
        {"llama4", "blk.4.ffn_gate_up_exps.weight",
         "model.layers.4.mlp.experts.gate_up_proj.weight"},
        {"granitemoe", "blk.4.ffn_up_shexp.weight",
         "model.layers.4.mlp.shared_expert.up_proj.weight"},
        {"granitehybrid", "blk.4.ffn_up_shexp.weight",
         "model.layers.4.mlp.shared_expert.up_proj.weight"},
        {NIB_RENAME_DENSE_HYBRID, "blk.4.ffn_up.weight",
         "model.layers.4.mlp.shared_expert.up_proj.weight"},
        {"granitehybrid", "blk.4.ssm_in.weight", "model.layers.4.mamba.in_proj.weight"},
        {"granitehybrid", "blk.4.ssm_conv1d.bias", "model.layers.4.mamba.conv1d.bias"},
        {"lfm2moe", "blk.4.exp_probs_b.bias", "model.layers.4.feed_forward.expert_bias"},
        {"lfm2moe", "blk.4.ffn_gate_exps.3.weight",
         "model.layers.4.feed_forward.experts.3.w1.weight"},
        {"granitehybrid", "blk.4.ssm_d", "model.layers.4.mamba.D"},
        {"granitehybrid", "blk.4.ssm_dt.bias", "model.layers.4.mamba.dt_bias"},
    };
    char out[NIB_RENAME_MAX];
    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        assert_true(nib__rename_from_gguf(out, cases[i].arch, cases[i].gguf));
        assert_string_equal(out, cases[i].ours);
        assert_true(nib__rename_to_gguf(out, cases[i].arch, cases[i].ours));
        assert_string_equal(out, cases[i].gguf);
    }
}

/* Without a rule the name stays, and out is untouched. */
static void test_no_rule(void **state)
{
    static const struct {
        const char *arch, *gguf;
    } cases[] = {
        {"olmo2", "blk.0.ffn_norm.weight"},
        {"olmo2", "blk.0.attn_norm.weight"},
        {"llama", "blk.0.post_ffw_norm.weight"},
        {"mamba", "blk.0.attn_q.weight"},
        {NULL, "blk.0.attn_q.weight"},
        {"llama", "blk.00.attn_q.weight"},
        {"llama", "blk.1234567890.attn_q.weight"},
        {"llama", "blk.attn_q.weight"},
        {"llama", "blk.0.weight"},
        {"llama", "attn_q.weight"},
        {"llama", "blk.0.attn_q"},
        {"llama", "blk.0.attn_sinks.weight"},
        {"qwen3", "blk.0.ffn_gate_exps.weight"},
        {"qwen3moe", "blk.0.exp_probs_b.weight"},
        {"qwen3moe", "blk.0.ffn_gate_exps.01.weight"},
        {"qwen3moe", "blk.0.ffn_gate_exps.1.2.weight"},
        {"qwen3moe", "blk.0.ffn_gate_exps..weight"},
        {"qwen3moe", "blk.0.attn_exps.1.weight"},
    };
    char out[NIB_RENAME_MAX] = "before";
    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        assert_false(nib__rename_from_gguf(out, cases[i].arch, cases[i].gguf));
        assert_string_equal(out, "before");
    }
    assert_false(nib__rename_to_gguf(out, "olmo2", "model.layers.0.input_layernorm.weight"));
    assert_false(nib__rename_to_gguf(out, "qwen3moe", "model.layers.0.mlp.experts.1.weight"));
    assert_false(
        nib__rename_to_gguf(out, "qwen3moe", "model.layers.0.mlp.experts.x.up_proj.weight"));
}

static void test_archs(void **state)
{
    (void)state;
    assert_true(nib__rename_knows("olmo2") && nib__rename_knows("llama"));
    assert_false(nib__rename_knows("mamba") || nib__rename_knows(NULL));
    assert_true(nib__rename_pairs("llama") && nib__rename_pairs("smollm3"));
    assert_false(nib__rename_pairs("qwen2") || nib__rename_pairs("olmo2") ||
                 nib__rename_pairs(NULL));
    assert_true(nib__rename_norm_offset("mamba") == 0);
}

/* What a config of the family needs besides the usual keys: layers of both kinds, if there are. */
static const char *keys_for(const nib_family_row *family)
{
    if (strcmp(family->name, "gemma4_text") == 0)
        return "\"hidden_size_per_layer_input\":0";
    if (strncmp(family->name, "lfm2", 4) == 0)
        return "\"layer_types\":[\"conv\",\"full_attention\"]";
    if (family->mamba)
        return "\"layer_types\":[\"mamba\",\"attention\"]";
    return family->full_interval > 0 ? "\"full_attention_interval\":2" : "";
}

/* For every family with a name in GGUF, each weight's name round-trips, and norms are stored as the
 * family's row says. Not for those with latent attention, whose weights of heads
 * test_latent_files converts, and for Qwen3-Next, whose in_proj_qkvz GGUF has in two parts. */
static void test_families(void **state)
{
    (void)state;
    for (size_t f = 0; nib__family_at(f) != NULL; f++) {
        const nib_family_row *family = nib__family_at(f);
        parsed p;
        nib_graph graph;
        if (family->gguf == NULL || strcmp(family->gguf, "deepseek2") == 0 || family->joined_delta)
            continue;
        assert_true(nib__rename_knows(family->gguf));
        assert_true(nib__rename_norm_offset(family->gguf) == family->norm.offset);
        open_config(&p, family->name, keys_for(family));
        if (p.status != NIB_OK)
            fail_msg("%s: %s", family->name, p.err.text);
        assert_int_equal(nib__arch_build(&graph, &p.config, &p.arena, &allocator, &p.err), NIB_OK);
        for (int kind = 0; kind < NIB_WEIGHT_KINDS; kind++)
            for (size_t i = 0; i < graph.kind_count[kind]; i++) {
                char ours[NIB_RENAME_MAX], there[NIB_RENAME_MAX], again[NIB_RENAME_MAX];
                const nib_graph_weight *w =
                    nib__graph_weight(&graph, (nib_graph_weight_kind)kind, i);
                snprintf(ours, sizeof ours, "%s%s", w->name, w->bare ? "" : ".weight");
                if (!nib__rename_to_gguf(there, family->gguf, ours) ||
                    !nib__rename_from_gguf(again, family->gguf, there))
                    fail_msg("%s: %s has no name in GGUF", family->name, ours);
                /* up is written under a name that readers use for both */
                if ((family->fused & NIB_FUSED_GATE_UP) == 0 || strstr(ours, ".up_proj.") == NULL)
                    assert_string_equal(again, ours);
            }
        close_parsed(&p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_both_ways),
        cmocka_unit_test(test_no_rule),
        cmocka_unit_test(test_archs),
        cmocka_unit_test(test_families),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
