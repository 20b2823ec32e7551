/* SPDX-License-Identifier: Apache-2.0
 *
 * Gemma: norms whose stored weights lack an offset of 1, a GELU gate, and an embedding scaled by
 * the root of its width, rounded to the weights' type. Gemma 2 has a norm before and after
 * attention and the MLP, caps on scores and logits, and a sliding window in every other layer.
 * Gemma 3 normalizes the heads of q and k instead of using caps, and has a window in five of six
 * layers, which use RoPE frequencies of their own.
 */
#include "arch.h"

#include "type.h"

#include <math.h>

static void build_sandwich(nib_build *b, const nib_config *c)
{
    const nib_qk_norm norm = nib__block_qk_norm(c);
    int x = nib__block_embed(b, c);
    for (int64_t layer = 0; layer < c->layers; layer++) {
        int y = nib__block_norm(b, c, layer, "input_layernorm", x);
        y = nib__block_attention(b, c, layer, y, norm);
        x = nib__block_add(b, c, x, nib__block_norm(b, c, layer, "post_attention_layernorm", y));
        y = nib__block_norm(b, c, layer, "pre_feedforward_layernorm", x);
        y = nib__block_gated_mlp(b, c, layer, y);
        x = nib__block_add(b, c, x, nib__block_norm(b, c, layer, "post_feedforward_layernorm", y));
    }
    nib__block_head(b, c, x);
}

/* The root, rounded to the weights' type. */
static double rounded_root(const nib_config *c, int64_t width)
{
    const float root = sqrtf((float)width);
    return (double)(c->dtype == NIB_TYPE_BF16  ? nib__bf16_to_f32(nib__f32_to_bf16(root))
                    : c->dtype == NIB_TYPE_F16 ? nib__f16_to_f32(nib__f32_to_f16(root))
                                               : root);
}

void nib__gemma_complete(nib_config *c)
{
    c->embed_scale = rounded_root(c, c->width);
    c->layer_embed_scale = rounded_root(c, c->layer_inputs);
}

/* Scales scores by the width of a head; for the largest model of each version by width / heads. */
static void scale_by_head(nib_config *c, int64_t largest)
{
    const double own = (double)c->width / (double)c->heads;
    c->attention_scale = 1 / sqrt(c->layers == largest ? own : (double)c->head_dim);
}
static void complete_gguf2(nib_config *c) { scale_by_head(c, 46); }
static void complete_gguf3(nib_config *c) { scale_by_head(c, 62); }

static const nib_family_key keys2[] = {
    {.key = "query_pre_attn_scalar",
     .at = offsetof(nib_config, attention_scale),
     .is = NIB_OWN_INVERSE_ROOT,
     .absent = 256,
     .least = 1,
     .most = 1e6},
    {.key = "attn_logit_softcapping",
     .gguf = "attn_logit_softcapping",
     .at = offsetof(nib_config, attention_cap),
     .absent = 50,
     .least = 0,
     .most = 1e6},
    {.key = "final_logit_softcapping",
     .gguf = "final_logit_softcapping",
     .at = offsetof(nib_config, logits_cap),
     .absent = 30,
     .least = 0,
     .most = 1e6},
    {.key = NULL},
};

static const nib_family_key keys3[] = {
    {.key = "query_pre_attn_scalar",
     .at = offsetof(nib_config, attention_scale),
     .is = NIB_OWN_INVERSE_ROOT,
     .absent = 256,
     .least = 1,
     .most = 1e6},
    {.key = "rope_local_base_freq",
     .gguf = "rope.freq_base_swa",
     .at = offsetof(nib_config, local_theta),
     .absent = 10000,
     .least = 1,
     .most = 1e18},
    {.key = NULL},
};

const nib_family_row nib__family_gemma = {
    .name = "gemma",
    .class_name = "GemmaForCausalLM",
    .title = "Gemma 1 and CodeGemma",
    .gguf = "gemma",
    .norm = {.offset = 1},
    .activation = NIB_GELU_TANH,
    .act = "gelu_pytorch_tanh",
    .older_act = "gelu", /* which transformers treats as the same for Gemma */
    .window = NIB_WINDOW_IGNORED,
    .absent = {.heads = 16,
               .kv_heads = 16,
               .head_dim = 256,
               .vocab = 256000,
               .context = 8192,
               .norm_eps = 1e-6,
               .rope_theta = 10000,
               .tied = true},
    .complete = nib__gemma_complete,
    .build = nib__build_llama,
};

const nib_family_row nib__family_gemma2 = {
    .name = "gemma2",
    .class_name = "Gemma2ForCausalLM",
    .title = "Gemma 2",
    .gguf = "gemma2",
    .norm = {.offset = 1},
    .activation = NIB_GELU_TANH,
    .act = "gelu_pytorch_tanh",
    .newer_act = true,
    .keys = keys2,
    .window = NIB_WINDOW_PATTERN,
    .layer_types = true,
    .pattern = 2,
    .absent = {.heads = 8,
               .kv_heads = 4,
               .head_dim = 256,
               .vocab = 256000,
               .context = 8192,
               .window = 4096,
               .norm_eps = 1e-6,
               .rope_theta = 10000,
               .tied = true},
    .complete = nib__gemma_complete,
    .complete_gguf = complete_gguf2,
    .build = build_sandwich,
};

const nib_family_row nib__family_gemma3 = {
    .name = "gemma3_text",
    .class_name = "Gemma3ForCausalLM",
    .title = "Gemma 3 (text)",
    .gguf = "gemma3",
    .head_norms = true,
    .norm = {.offset = 1},
    .activation = NIB_GELU_TANH,
    .act = "gelu_pytorch_tanh",
    .newer_act = true,
    .keys = keys3,
    .window = NIB_WINDOW_PATTERN,
    .layer_types = true,
    .pattern = 6,
    .absent = {.heads = 8,
               .kv_heads = 4,
               .head_dim = 256,
               .vocab = 262208,
               .context = 131072,
               .window = 4096,
               .norm_eps = 1e-6,
               .rope_theta = 1000000,
               .tied = true},
    .complete = nib__gemma_complete,
    .complete_gguf = complete_gguf3,
    .build = build_sandwich,
};
