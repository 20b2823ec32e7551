/* SPDX-License-Identifier: Apache-2.0
 *
 * Llama, and families that differ from it only in config and weights: Mistral with a sliding
 * window, Qwen2 with biases on q, k and v, Qwen3 with norms of the heads of q and k, SmolLM3 with
 * layers without RoPE.
 */
#include "arch.h"

int nib__block_llama(nib_build *b, const nib_config *c, int64_t layer, int x)
{
    int y = nib__block_norm(b, c, layer, "input_layernorm", x);
    y = nib__block_attention(b, c, layer, y, nib__block_qk_norm(c));
    x = nib__block_add(b, c, x, y);
    y = nib__block_norm(b, c, layer, "post_attention_layernorm", x);
    return nib__block_add(b, c, x, nib__block_experts(b, c, layer, y));
}

void nib__build_llama(nib_build *b, const nib_config *c)
{
    int x = nib__block_embed(b, c);
    for (int64_t layer = 0; layer < c->layers; layer++)
        x = nib__block_llama(b, c, layer, x);
    nib__block_head(b, c, x);
}

const nib_family_row nib__family_llama = {
    .name = "llama",
    .class_name = "LlamaForCausalLM",
    .title = "Llama 2, 3, 3.1, 3.2 and 3.3 (text), TinyLlama, SmolLM 1 and 2",
    .gguf = "llama",
    .of_params = true,
    .window = NIB_WINDOW_IGNORED,
    .absent = {.context = 2048, .norm_eps = 1e-6, .rope_theta = 10000},
    .build = nib__build_llama,
};

const nib_family_row nib__family_mistral = {
    .name = "mistral",
    .class_name = "MistralForCausalLM",
    .title = "Mistral 7B, Nemo 12B, Small 3 24B",
    .gguf = "llama", /* GGUF has no name of its own for it */
    .window = NIB_WINDOW_ALWAYS,
    .absent =
        {.kv_heads = 8, .context = 131072, .window = 4096, .norm_eps = 1e-6, .rope_theta = 10000},
    .build = nib__build_llama,
};

const nib_family_row nib__family_ministral = {
    .name = "ministral",
    .class_name = "MinistralForCausalLM",
    .title = "Ministral 8B 2410",
    .window = NIB_WINDOW_ALWAYS,
    .layer_types = true,
    .absent =
        {.kv_heads = 8, .context = 131072, .window = 4096, .norm_eps = 1e-6, .rope_theta = 10000},
    .build = nib__build_llama,
};

const nib_family_row nib__family_ministral3 = {
    .name = "ministral3",
    .class_name = "Ministral3ForCausalLM",
    .title = "Ministral 3 (text)",
    .scales_queries = true,
    .window = NIB_WINDOW_ALWAYS,
    .absent = {.kv_heads = 8,
               .head_dim = 128,
               .context = 262144,
               .norm_eps = 1e-5,
               .rope_theta = 1000000},
    .build = nib__build_llama,
};

const nib_family_row nib__family_qwen2 = {
    .name = "qwen2",
    .class_name = "Qwen2ForCausalLM",
    .title = "Qwen2 and Qwen2.5 (dense)",
    .gguf = "qwen2",
    .of_params = true,
    .biases = NIB_BIASES_QKV_ALWAYS,
    .window = NIB_WINDOW_IF_USED,
    .layer_types = true,
    .absent = {.kv_heads = 32,
               .context = 32768,
               .window = 4096,
               .first_window = 28,
               .norm_eps = 1e-6,
               .rope_theta = 10000},
    .build = nib__build_llama,
};

const nib_family_row nib__family_qwen3 = {
    .name = "qwen3",
    .class_name = "Qwen3ForCausalLM",
    .title = "Qwen3 (dense)",
    .gguf = "qwen3",
    .of_params = true,
    .head_norms = true,
    .window = NIB_WINDOW_IF_USED,
    .layer_types = true,
    .absent = {.kv_heads = 32,
               .head_dim = 128,
               .context = 32768,
               .window = 4096,
               .first_window = 28,
               .norm_eps = 1e-6,
               .rope_theta = 10000},
    .build = nib__build_llama,
};

const nib_family_row nib__family_smollm3 = {
    .name = "smollm3",
    .class_name = "SmolLM3ForCausalLM",
    .title = "SmolLM3",
    .gguf = "smollm3",
    .rope_interval = 4,
    .window = NIB_WINDOW_UNROTATED,
    .layer_types = true,
    .absent =
        {.kv_heads = 4, .context = 32768, .norm_eps = 1e-6, .rope_theta = 2000000, .tied = true},
    .build = nib__build_llama,
};
