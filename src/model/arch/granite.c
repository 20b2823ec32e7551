/* SPDX-License-Identifier: Apache-2.0
 *
 * Granite: Llama with four factors: of the embedding, of attention scores, of what a layer adds to
 * the residual, and a divisor of the logits.
 */
#include "arch.h"

static const nib_family_key keys[] = {
    {.key = "embedding_multiplier",
     .gguf = "embedding_scale",
     .at = offsetof(nib_config, embed_scale),
     .absent = 1,
     .least = 1e-6,
     .most = 1e6,
     .elsewhere = 1},
    {.key = "attention_multiplier",
     .gguf = "attention.scale",
     .at = offsetof(nib_config, attention_scale),
     .absent = 1,
     .least = 1e-6,
     .most = 1e6},
    {.key = "residual_multiplier",
     .gguf = "residual_scale",
     .at = offsetof(nib_config, residual_scale),
     .absent = 1,
     .least = 1e-6,
     .most = 1e6,
     .elsewhere = 1},
    {.key = "logits_scaling",
     .gguf = "logit_scale",
     .at = offsetof(nib_config, logits_scale),
     .is = NIB_OWN_INVERSE,
     .absent = 1,
     .least = 1e-6,
     .most = 1e6,
     .elsewhere = 1},
    {.key = NULL},
};

const nib_family_row nib__family_granite = {
    .name = "granite",
    .class_name = "GraniteForCausalLM",
    .title = "Granite 3 (dense)",
    .gguf = "granite",
    .keys = keys,
    .window = NIB_WINDOW_IGNORED,
    .absent = {.context = 2048, .norm_eps = 1e-6, .rope_theta = 10000},
    .build = nib__build_llama,
};
