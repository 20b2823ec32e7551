/* SPDX-License-Identifier: Apache-2.0
 *
 * StableLM: Llama's order with LayerNorms, and a quarter of each head's channels rotate.
 */
#include "arch.h"

static const nib_family_key keys[] = {
    {.key = "use_qkv_bias",
     .at = offsetof(nib_config, qkv_bias),
     .is = NIB_OWN_FLAG,
     .absent = 0,
     .least = 0,
     .most = 1},
    {.key = NULL},
};

const nib_family_row nib__family_stablelm = {
    .name = "stablelm",
    .class_name = "StableLmForCausalLM",
    .title = "StableLM 2 1.6B, StableLM 3B, Stable Code 3B",
    .limits = "norms of q and k or both halves of a layer side by side (StableLM 2 12B)",
    .gguf = "stablelm",
    .norm = {.centered = true, .bias = true},
    .keys = keys,
    .eps = NIB_EPS_LAYER,
    .partial = true,
    .window = NIB_WINDOW_IGNORED,
    .absent = {.kv_heads = 32,
               .context = 4096,
               .norm_eps = 1e-5,
               .rope_theta = 10000,
               .rope_partial = 0.25},
    .build = nib__build_llama,
};
