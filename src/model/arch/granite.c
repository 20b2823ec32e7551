/* SPDX-License-Identifier: Apache-2.0
 *
 * Granite: Llama with four factors: of the embedding, of attention scores, of what a layer adds to
 * the residual, and a divisor of the logits. Granite MoE has experts in place of the MLP.
 */
#include "arch.h"

#define FACTORS                                                                                    \
    {.key = "embedding_multiplier",                                                                \
     .gguf = "embedding_scale",                                                                    \
     .at = offsetof(nib_config, embed_scale),                                                      \
     .absent = 1,                                                                                  \
     .least = 1e-6,                                                                                \
     .most = 1e6,                                                                                  \
     .elsewhere = 1},                                                                              \
        {.key = "attention_multiplier",                                                            \
         .gguf = "attention.scale",                                                                \
         .at = offsetof(nib_config, attention_scale),                                              \
         .absent = 1,                                                                              \
         .least = 1e-6,                                                                            \
         .most = 1e6},                                                                             \
        {.key = "residual_multiplier",                                                             \
         .gguf = "residual_scale",                                                                 \
         .at = offsetof(nib_config, residual_scale),                                               \
         .absent = 1,                                                                              \
         .least = 1e-6,                                                                            \
         .most = 1e6,                                                                              \
         .elsewhere = 1},                                                                          \
    {                                                                                              \
        .key = "logits_scaling", .gguf = "logit_scale", .at = offsetof(nib_config, logits_scale),  \
        .is = NIB_OWN_INVERSE, .absent = 1, .least = 1e-6, .most = 1e6, .elsewhere = 1             \
    }

static const nib_family_key keys[] = {FACTORS, {.key = NULL}};

static const nib_family_key keys_of_mixture[] = {
    FACTORS,
    NIB_EXPERTS_KEY("num_local_experts", 8),
    NIB_TOP_K_KEY(2),
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

static const nib_expert_names experts = {NIB_USUAL_EXPERTS, .balance = 0.001};

/* Every layer is a mixture of MLPs of the usual width. */
static void complete_mixture(nib_config *c)
{
    c->moe.ffn = c->ffn;
    c->moe.interval = 1;
    c->moe.chosen_softmax = true;
    c->moe.normalize = true; /* as softmax over the chosen ones does */
}

const nib_family_row nib__family_granite_moe = {
    .name = "granitemoe",
    .class_name = "GraniteMoeForCausalLM",
    .title = "Granite 3 1B-A400M and 3B-A800M",
    .gguf = "granitemoe",
    .keys = keys_of_mixture,
    .experts = &experts,
    .window = NIB_WINDOW_IGNORED,
    .absent = {.context = 2048, .norm_eps = 1e-6, .rope_theta = 10000},
    .complete = complete_mixture,
    .build = nib__build_llama,
};
