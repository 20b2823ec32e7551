/* SPDX-License-Identifier: Apache-2.0
 *
 * Granite: Llama with four factors, of the embedding, of the scores of attention, of what a layer
 * adds to the residual, and one that logits are divided by.
 */
#include "arch.h"

static const nib_family_key keys[] = {
    {"embedding_multiplier", "embedding_scale", offsetof(nib_config, embed_scale), NIB_KEY_AS_IS, 1,
     1e-6, 1e6},
    {"attention_multiplier", "attention.scale", offsetof(nib_config, attention_scale),
     NIB_KEY_AS_IS, 1, 1e-6, 1e6},
    {"residual_multiplier", "residual_scale", offsetof(nib_config, residual_scale), NIB_KEY_AS_IS,
     1, 1e-6, 1e6},
    {"logits_scaling", "logit_scale", offsetof(nib_config, logits_scale), NIB_KEY_INVERSE, 1, 1e-6,
     1e6},
    {NULL},
};

const nib_family_row nib__family_granite = {
    .name = "granite",
    .class_name = "GraniteForCausalLM",
    .title = "Granite 3 and 4 (dense)",
    .gguf = "granite",
    .keys = keys,
    .window = NIB_WINDOW_IGNORED,
    .absent = {.context = 2048, .norm_eps = 1e-6, .rope_theta = 10000},
    .build = nib__build_llama,
};
