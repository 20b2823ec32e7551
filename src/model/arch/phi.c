/* SPDX-License-Identifier: Apache-2.0
 *
 * Phi-3 and Phi-4: Llama's order. q, k and v are stored as one tensor, and so are gate and up
 * (fused.h). RoPE may be scaled by longrope; Phi-4 mini rotates three quarters of a head.
 */
#include "arch.h"

#include "fused.h"

const nib_family_row nib__family_phi3 = {
    .name = "phi3",
    .class_name = "Phi3ForCausalLM",
    .title = "Phi-3 mini and medium, Phi-3.5 mini, Phi-4, Phi-4 mini",
    .gguf = "phi3",
    .gguf_window = true,
    .fused = NIB_FUSED_QKV | NIB_FUSED_GATE_UP,
    .partial = true,
    .only_longrope = true,
    .window = NIB_WINDOW_ALWAYS,
    .absent = {.heads = 32,
               .vocab = 32064,
               .context = 4096,
               .original = 4096,
               .norm_eps = 1e-5,
               .rope_theta = 10000},
    .build = nib__build_llama,
};
