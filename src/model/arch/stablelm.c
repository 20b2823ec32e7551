/* SPDX-License-Identifier: Apache-2.0
 *
 * StableLM: Llama's order with LayerNorms; RoPE rotates a quarter of each head's channels. StableLM
 * 2 12B has Cohere's order, and a norm without bias for each head of q and k, which its checkpoints
 * store as one tensor per head (head_norms.h).
 */
#include "arch.h"

#include "fused.h"

static void build(nib_build *b, const nib_config *c)
{
    if (c->parallel)
        nib__build_parallel(b, c);
    else
        nib__build_llama(b, c);
}

static const nib_family_key keys[] = {
    {.key = "use_qkv_bias",
     .at = offsetof(nib_config, qkv_bias),
     .is = NIB_OWN_FLAG,
     .absent = 0,
     .least = 0,
     .most = 1},
    {.key = "qk_layernorm",
     .at = offsetof(nib_config, qk_norm),
     .is = NIB_OWN_FLAG,
     .absent = 0,
     .least = 0,
     .most = 1},
    {.key = "use_parallel_residual",
     .at = offsetof(nib_config, parallel),
     .is = NIB_OWN_FLAG,
     .absent = 0,
     .least = 0,
     .most = 1},
    {.key = NULL},
};

const nib_family_row nib__family_stablelm = {
    .name = "stablelm",
    .class_name = "StableLmForCausalLM",
    .title = "StableLM 2 1.6B and 12B, StableLM 3B, Stable Code 3B",
    .gguf = "stablelm",
    .own_head_norms = true,
    .norm = {.centered = true, .bias = true},
    .keys = keys,
    .biases = NIB_BIASES_OWN,
    .fused = NIB_APART_HEAD_NORMS,
    .eps = NIB_EPS_LAYER,
    .partial = true,
    .window = NIB_WINDOW_IGNORED,
    .absent = {.kv_heads = 32,
               .context = 4096,
               .norm_eps = 1e-5,
               .rope_theta = 10000,
               .rope_partial = 0.25},
    .build = build,
};
