/* SPDX-License-Identifier: Apache-2.0
 *
 * The common sizes of every family, with the values of their published config.json: each parses
 * without a ledger line, its matrices have as many weights as the model card says, and it is
 * planned as asked. Phi, GLM and the largest models of Cohere and StableLM are in
 * test_config_families.c.
 */
#include "published.h"
#include "skipping.h"

#define LLAMA                                                                                      \
    "\"attention_bias\":false,\"attention_dropout\":0.0,\"hidden_act\":\"silu\",\"mlp_bias\":"     \
    "false,\"pretraining_tp\":1,\"rms_norm_eps\":1e-05,\"rope_theta\":500000.0"
#define LLAMA3(factor)                                                                             \
    "\"rope_scaling\":{\"factor\":" #factor ",\"high_freq_factor\":4.0,\"low_freq_factor\":1.0,"   \
    "\"original_max_position_embeddings\":8192,\"rope_type\":\"llama3\"}"
#define MISTRAL "\"attention_dropout\":0.0,\"hidden_act\":\"silu\",\"rms_norm_eps\":1e-05"
#define QWEN                                                                                       \
    "\"attention_dropout\":0.0,\"hidden_act\":\"silu\",\"rms_norm_eps\":1e-06,\"rope_theta\":"     \
    "1000000.0,\"use_sliding_window\":false"
#define QWEN3                                                                                      \
    QWEN ",\"attention_bias\":false,\"head_dim\":128,\"rope_scaling\":null,\"sliding_window\":"    \
         "null"
#define OLMO                                                                                       \
    "\"attention_bias\":false,\"attention_dropout\":0.0,\"hidden_act\":\"silu\",\"rms_norm_eps\":" \
    "1e-06,\"rope_scaling\":null,\"rope_theta\":500000,\"tie_word_embeddings\":false"
#define EXAONE                                                                                     \
    "\"attention_dropout\":0.0,\"hidden_act\":\"silu\",\"rms_norm_eps\":1e-05,\"rope_theta\":"     \
    "1000000," LLAMA3(16.0)
#define GRANITE                                                                                    \
    "\"attention_bias\":false,\"attention_dropout\":0.0,\"hidden_act\":\"silu\",\"mlp_bias\":"     \
    "false,\"rms_norm_eps\":1e-05,\"rope_scaling\":null,\"rope_theta\":10000000.0,"                \
    "\"tie_word_embeddings\":true,\"embedding_multiplier\":12.0,\"residual_multiplier\":0.22"
#define GEMMA                                                                                      \
    "\"attention_bias\":false,\"attention_dropout\":0.0,\"rms_norm_eps\":1e-06,\"head_dim\":256"
#define GEMMA2                                                                                     \
    "\"attention_bias\":false,\"attention_dropout\":0.0,\"rms_norm_eps\":1e-06,\"hidden_act\":"    \
    "\"gelu_pytorch_tanh\",\"hidden_activation\":\"gelu_pytorch_tanh\",\"rope_theta\":10000.0,"    \
    "\"attn_logit_softcapping\":50.0,\"final_logit_softcapping\":30.0,\"sliding_window\":4096,"    \
    "\"cache_implementation\":\"hybrid\""
#define GEMMA3                                                                                     \
    "\"attention_bias\":false,\"attention_dropout\":0.0,\"rms_norm_eps\":1e-06,"                   \
    "\"hidden_activation\":\"gelu_pytorch_tanh\",\"rope_theta\":1000000,\"rope_local_base_freq\":" \
    "10000,\"attn_logit_softcapping\":null,\"final_logit_softcapping\":null,"                      \
    "\"sliding_window_pattern\":6,\"cache_implementation\":\"hybrid\""
#define GEMMA3_LONG GEMMA3 ",\"rope_scaling\":{\"factor\":8.0,\"rope_type\":\"linear\"}"
#define GEMMA4                                                                                     \
    "\"attention_bias\":false,\"attention_dropout\":0.0,\"attention_k_eq_v\":true,"                \
    "\"bos_token_id\":2,\"dtype\":\"bfloat16\",\"eos_token_id\":1,\"final_logit_softcapping\":"    \
    "30.0,\"global_head_dim\":512,\"head_dim\":256,\"hidden_activation\":\"gelu_pytorch_tanh\","   \
    "\"hidden_size_per_layer_input\":0,\"num_kv_shared_layers\":0,\"pad_token_id\":0,"             \
    "\"rms_norm_eps\":1e-06,\"rope_parameters\":{\"full_attention\":{\"partial_rotary_factor\":"   \
    "0.25,\"rope_theta\":1000000.0,\"rope_type\":\"proportional\"},\"sliding_attention\":{"        \
    "\"rope_theta\":10000.0,\"rope_type\":\"default\"}},\"sliding_window\":1024,"                  \
    "\"tie_word_embeddings\":true,\"use_bidirectional_attention\":\"vision\","                     \
    "\"use_double_wide_mlp\":false,\"vocab_size_per_layer_input\":262144"
/* Of the small models, whose layers have inputs of their own. */
#define GEMMA4_SMALL                                                                               \
    "\"attention_bias\":false,\"attention_dropout\":0.0,\"attention_k_eq_v\":false,"               \
    "\"bos_token_id\":2,\"dtype\":\"bfloat16\",\"enable_moe_block\":false,\"eos_token_id\":1,"     \
    "\"final_logit_softcapping\":30.0,\"global_head_dim\":512,\"head_dim\":256,"                   \
    "\"hidden_activation\":\"gelu_pytorch_tanh\",\"hidden_size_per_layer_input\":256,"             \
    "\"moe_intermediate_size\":null,\"num_experts\":null,\"num_global_key_value_heads\":null,"     \
    "\"pad_token_id\":0,\"rms_norm_eps\":1e-06,\"rope_parameters\":{\"full_attention\":{"          \
    "\"partial_rotary_factor\":0.25,\"rope_theta\":1000000.0,\"rope_type\":\"proportional\"},"     \
    "\"sliding_attention\":{\"rope_theta\":10000.0,\"rope_type\":\"default\"}},"                   \
    "\"sliding_window\":512,\"tie_word_embeddings\":true,\"top_k_experts\":null,"                  \
    "\"use_bidirectional_attention\":null,\"vocab_size_per_layer_input\":262144"
#define COHERE                                                                                     \
    "\"attention_bias\":false,\"attention_dropout\":0.0,\"hidden_act\":\"silu\","                  \
    "\"layer_norm_eps\":1e-05,\"use_qk_norm\":false"
#define COHERE2                                                                                    \
    "\"attention_bias\":false,\"attention_dropout\":0.0,\"hidden_act\":\"silu\",\"head_dim\":128," \
    "\"layer_norm_eps\":1e-05,\"layer_switch\":4,\"order_of_interleaved_layers\":"                 \
    "\"local_attn_first\",\"position_embedding_type\":\"rope_gptj\",\"rotary_pct\":1.0,"           \
    "\"sliding_window\":4096,\"sliding_window_pattern\":4,\"use_embedding_sharing\":true,"         \
    "\"use_gated_activation\":true,\"use_parallel_block\":true,\"use_parallel_embedding\":true,"   \
    "\"logit_scale\":0.25,\"rope_theta\":50000"
#define STARCODER                                                                                  \
    "\"attention_dropout\":0.1,\"embedding_dropout\":0.1,\"residual_dropout\":0.1,\"hidden_act\":" \
    "\"gelu_pytorch_tanh\",\"mlp_type\":\"default\",\"norm_epsilon\":1e-05,\"norm_type\":"         \
    "\"layer_norm\",\"sliding_window\":4096,\"use_bias\":true"
#define STABLELM                                                                                   \
    "\"hidden_act\":\"silu\",\"layer_norm_eps\":1e-05,\"partial_rotary_factor\":0.25,"             \
    "\"rope_theta\":10000,\"tie_word_embeddings\":false"
#define MINISTRAL3                                                                                 \
    "\"attention_dropout\":0.0,\"hidden_act\":\"silu\",\"head_dim\":128,\"rms_norm_eps\":1e-05,"   \
    "\"sliding_window\":null,\"rope_parameters\":{\"beta_fast\":32.0,\"beta_slow\":1.0,"           \
    "\"factor\":16.0,\"llama_4_scaling_beta\":0.1,\"mscale\":1.0,\"mscale_all_dim\":1.0,"          \
    "\"original_max_position_embeddings\":16384,\"rope_theta\":1000000.0,\"rope_type\":\"yarn\","  \
    "\"type\":\"yarn\"}"
#define QWEN3_MOE                                                                                  \
    "\"attention_bias\":false,\"attention_dropout\":0.0,\"decoder_sparse_step\":1,\"head_dim\":"   \
    "128,"                                                                                         \
    "\"hidden_act\":\"silu\",\"mlp_only_layers\":[],\"norm_topk_prob\":true,\"num_experts\":128,"  \
    "\"num_experts_per_tok\":8,\"output_router_logits\":false,\"rms_norm_eps\":1e-06,"             \
    "\"rope_scaling\":null,\"router_aux_loss_coef\":0.001,\"sliding_window\":null,"                \
    "\"use_sliding_window\":false,\"tie_word_embeddings\":false"
#define MIXTRAL                                                                                    \
    "\"attention_dropout\":0.0,\"hidden_act\":\"silu\",\"num_experts_per_tok\":2,"                 \
    "\"num_local_experts\":8,\"output_router_logits\":false,\"rms_norm_eps\":1e-05,"               \
    "\"rope_theta\":1000000.0,\"sliding_window\":null,\"tie_word_embeddings\":false"
#define GRANITE_MOE                                                                                \
    GRANITE ",\"attention_multiplier\":0.015625,\"logits_scaling\":6.0,\"num_experts_per_tok\":8," \
            "\"output_router_logits\":false,\"router_aux_loss_coef\":0.0"
#define GLM4_MOE                                                                                   \
    "\"attention_bias\":true,\"attention_dropout\":0.0,\"head_dim\":128,\"hidden_act\":\"silu\","  \
    "\"n_group\":1,\"topk_group\":1,\"n_shared_experts\":1,\"norm_topk_prob\":true,"               \
    "\"num_experts_per_tok\":8,\"partial_rotary_factor\":0.5,\"rms_norm_eps\":1e-05,"              \
    "\"rope_scaling\":null,\"rope_theta\":1000000,\"num_nextn_predict_layers\":1,"                 \
    "\"tie_word_embeddings\":false"
#define GPT_OSS                                                                                    \
    "\"attention_bias\":true,\"attention_dropout\":0.0,\"experts_per_token\":4,\"head_dim\":64,"   \
    "\"hidden_act\":\"silu\",\"initial_context_length\":4096,\"num_experts_per_tok\":4,"           \
    "\"output_router_logits\":false,\"rms_norm_eps\":1e-05,\"rope_scaling\":{\"beta_fast\":32.0,"  \
    "\"beta_slow\":1.0,\"factor\":32.0,\"original_max_position_embeddings\":4096,\"rope_type\":"   \
    "\"yarn\",\"truncate\":false},\"rope_theta\":150000,\"router_aux_loss_coef\":0.9,"             \
    "\"sliding_window\":128,\"swiglu_limit\":7.0,\"tie_word_embeddings\":false,"                   \
    "\"quantization_config\":{\"modules_to_not_convert\":[\"model.layers.*.self_attn\",\"model."   \
    "layers.*.mlp.router\",\"model.embed_tokens\",\"lm_head\"],\"quant_method\":\"mxfp4\"}"
#define UNTIED ",\"tie_word_embeddings\":false"
#define TIED ",\"tie_word_embeddings\":true"

#define LLAMA4                                                                                     \
    "\"attention_bias\":false,\"attention_chunk_size\":8192,\"attention_dropout\":0.0,"            \
    "\"attn_scale\":0.1,\"attn_temperature_tuning\":4,\"floor_scale\":8192,"                       \
    "\"for_llm_compressor\":false,\"head_dim\":128,\"hidden_act\":\"silu\","                       \
    "\"intermediate_size_mlp\":16384,\"num_experts_per_tok\":1,\"output_router_logits\":false,"    \
    "\"rms_norm_eps\":1e-05,\"rope_theta\":500000.0,\"router_aux_loss_coef\":0.001,"               \
    "\"router_jitter_noise\":0.0,\"tie_word_embeddings\":false,\"no_rope_layers\":[]"
#define MAVERICK                                                                                   \
    ",\"interleave_moe_layer_step\":2,\"num_local_experts\":128,\"use_qk_norm\":false,"            \
    "\"rope_scaling\":null"

#define LFM2                                                                                       \
    "\"block_auto_adjust_ff_dim\":true,\"block_ffn_dim_multiplier\":1.0,\"block_mlp_init_scale\":" \
    "1.0,\"block_multiple_of\":256,\"block_norm_eps\":1e-05,\"block_out_init_scale\":1.0,"         \
    "\"block_use_swiglu\":true,\"block_use_xavier_init\":true,\"bos_token_id\":1,"                 \
    "\"conv_L_cache\":3,\"conv_bias\":false,\"conv_use_xavier_init\":true,\"eos_token_id\":7,"     \
    "\"full_attn_idxs\":[2,5,8,10,12,14],\"norm_eps\":1e-05,\"pad_token_id\":0,\"rope_theta\":"    \
    "1000000.0,\"tie_embedding\":true,\"use_pos_enc\":true"
#define LFM2_MOE                                                                                   \
    "\"bos_token_id\":1,\"conv_L_cache\":3,\"conv_bias\":false,\"eos_token_id\":7,\"layer_"        \
    "types\":"                                                                                     \
    "[\"conv\",\"conv\",\"full_attention\",\"conv\",\"conv\",\"conv\",\"full_attention\","         \
    "\"conv\","                                                                                    \
    "\"conv\",\"conv\",\"full_attention\",\"conv\",\"conv\",\"conv\",\"full_attention\",\"conv\"," \
    "\"conv\",\"conv\",\"full_attention\",\"conv\",\"conv\",\"full_attention\",\"conv\",\"conv\"]" \
    ","                                                                                            \
    "\"moe_intermediate_size\":1792,\"norm_eps\":1e-05,\"norm_topk_prob\":true,"                   \
    "\"num_dense_layers\":2,\"num_experts\":32,\"num_experts_per_tok\":4,\"pad_token_id\":0,"      \
    "\"rope_theta\":1000000.0,\"routed_scaling_factor\":1.0,\"use_expert_bias\":true"
#define LFM2_SIZES(width) ",\"block_dim\":" width ",\"conv_dim\":" width ",\"conv_dim_out\":" width

/* Of layers with the gated delta rule. */
#define DELTA(heads)                                                                               \
    "\"attention_bias\":false,\"attention_dropout\":0.0,\"full_attention_interval\":4,"            \
    "\"head_dim\":256,\"hidden_act\":\"silu\",\"linear_conv_kernel_dim\":4,"                       \
    "\"linear_key_head_dim\":128,\"linear_num_key_heads\":16,\"linear_num_value_heads\":" #heads   \
    ",\"linear_value_head_dim\":128,\"rms_norm_eps\":1e-06,\"tie_word_embeddings\":false"
#define DELTA_MIXTURE(experts, top_k)                                                              \
    ",\"moe_intermediate_size\":512,\"num_experts\":" #experts ",\"num_experts_per_tok\":" #top_k  \
    ",\"output_router_logits\":false,\"router_aux_loss_coef\":0.001,"                              \
    "\"shared_expert_intermediate_size\":512"
#define QWEN35                                                                                     \
    ",\"attn_output_gate\":true,\"mamba_ssm_dtype\":\"float32\",\"mlp_only_layers\":[],"           \
    "\"mtp_num_hidden_layers\":1,\"mtp_use_dedicated_embeddings\":false,\"rope_parameters\":{"     \
    "\"mrope_interleaved\":true,\"mrope_section\":[11,11,10],\"partial_rotary_factor\":0.25,"      \
    "\"rope_theta\":10000000,\"rope_type\":\"default\"}"

/* Granite 4. Without experts the sizes below are those of its MLP. */
#define GRANITE4(attention_, residual, logits, embedding)                                          \
    "\"attention_bias\":false,\"attention_dropout\":0.0,\"attention_multiplier\":" attention_      \
    ",\"embedding_multiplier\":" embedding ",\"hidden_act\":\"silu\",\"init_method\":\"mup\","     \
    "\"initializer_range\":0.1,\"logits_scaling\":" logits ",\"mamba_chunk_size\":256,"            \
    "\"mamba_conv_bias\":true,\"mamba_d_conv\":4,\"mamba_d_state\":128,\"mamba_expand\":2,"        \
    "\"mamba_n_groups\":1,\"mamba_proj_bias\":false,\"normalization_function\":\"rmsnorm\","       \
    "\"output_router_logits\":false,\"residual_multiplier\":" residual                             \
    ",\"rms_norm_eps\":1e-05,\"rope_scaling\":null,\"rope_theta\":10000,\"router_aux_loss_coef\":" \
    "0.0,\"tie_word_embeddings\":true,\"bos_token_id\":100257,\"eos_token_id\":100257"
#define M5 "\"mamba\",\"mamba\",\"mamba\",\"mamba\",\"mamba\""
#define M9 M5 ",\"mamba\",\"mamba\",\"mamba\",\"mamba\""
#define LAYERS_OF_40                                                                               \
    ",\"layer_types\":[" M5 ",\"attention\"," M9 ",\"attention\"," M9 ",\"attention\"," M9         \
    ",\"attention\",\"mamba\",\"mamba\",\"mamba\",\"mamba\"],\"position_embedding_type\":\"nope\""
#define NO_EXPERTS ",\"num_local_experts\":0,\"num_experts_per_tok\":0"

typedef struct published {
    const char *name, *type, *class_name;
    int width, ffn, layers, heads, kv_heads, vocab, context;
    double billions; /* weights in matrices, a tied head counted once */
    int window;      /* 0: none */
    int period;      /* layer_types: every period-th layer has full attention; 0: key absent */
    const char *more;
} published;

static const published models[] = {
    {"Llama-3.2-1B", "llama", "Llama", 2048, 8192, 16, 32, 8, 128256, 131072, 1.236, 0, 0,
     LLAMA ",\"head_dim\":64," LLAMA3(32.0) TIED},
    {"Llama-3.1-8B", "llama", "Llama", 4096, 14336, 32, 32, 8, 128256, 131072, 8.030, 0, 0,
     LLAMA "," LLAMA3(8.0) UNTIED},
    {"Llama-3.3-70B-Instruct", "llama", "Llama", 8192, 28672, 80, 64, 8, 128256, 131072, 70.552, 0,
     0, LLAMA "," LLAMA3(8.0) UNTIED},
    {"Mistral-7B-v0.1", "mistral", "Mistral", 4096, 14336, 32, 32, 8, 32000, 32768, 7.241, 4096, 0,
     MISTRAL ",\"rope_theta\":10000.0,\"sliding_window\":4096" UNTIED},
    {"Mistral-7B-v0.3", "mistral", "Mistral", 4096, 14336, 32, 32, 8, 32768, 32768, 7.248, 0, 0,
     MISTRAL ",\"rope_theta\":1000000.0,\"sliding_window\":null" UNTIED},
    {"Mistral-Nemo-Instruct-2407", "mistral", "Mistral", 5120, 14336, 40, 32, 8, 131072, 1024000,
     12.247, 0, 0,
     MISTRAL ",\"head_dim\":128,\"rope_theta\":1000000.0,\"sliding_window\":null" UNTIED},
    {"Mistral-Small-24B-2501", "mistral", "Mistral", 5120, 32768, 40, 32, 8, 131072, 32768, 23.572,
     0, 0, MISTRAL ",\"head_dim\":128,\"rope_theta\":100000000.0,\"sliding_window\":null" UNTIED},
    {"Qwen2.5-0.5B", "qwen2", "Qwen2", 896, 4864, 24, 14, 2, 151936, 32768, 0.494, 0, 0,
     QWEN ",\"max_window_layers\":24,\"sliding_window\":32768,\"use_mrope\":false" TIED},
    {"Qwen2.5-7B", "qwen2", "Qwen2", 3584, 18944, 28, 28, 4, 152064, 131072, 7.615, 0, 0,
     QWEN ",\"max_window_layers\":28,\"sliding_window\":131072,\"use_mrope\":false" UNTIED},
    {"Qwen2.5-72B", "qwen2", "Qwen2", 8192, 29568, 80, 64, 8, 152064, 131072, 72.704, 0, 0,
     QWEN ",\"max_window_layers\":80,\"sliding_window\":131072,\"use_mrope\":false" UNTIED},
    {"Qwen3-0.6B", "qwen3", "Qwen3", 1024, 3072, 28, 16, 8, 151936, 40960, 0.596, 0, 0,
     QWEN3 ",\"max_window_layers\":28" TIED},
    {"Qwen3-8B", "qwen3", "Qwen3", 4096, 12288, 36, 32, 8, 151936, 40960, 8.190, 0, 0,
     QWEN3 ",\"max_window_layers\":36" UNTIED},
    {"Qwen3-32B", "qwen3", "Qwen3", 5120, 25600, 64, 64, 8, 151936, 40960, 32.761, 0, 0,
     QWEN3 ",\"max_window_layers\":64" UNTIED},
    {"SmolLM3-3B", "smollm3", "SmolLM3", 2048, 11008, 36, 16, 4, 128256, 65536, 3.075, 0, 0,
     "\"attention_bias\":false,\"attention_dropout\":0.0,\"hidden_act\":\"silu\",\"mlp_bias\":"
     "false,\"max_window_layers\":28,\"no_rope_layer_interval\":4,\"pretraining_tp\":2,"
     "\"rms_norm_eps\":1e-06,\"rope_scaling\":null,\"rope_theta\":5000000.0,\"sliding_window\":"
     "null,\"use_sliding_window\":false"},
    {"OLMo-2-0425-1B", "olmo2", "Olmo2", 2048, 8192, 16, 16, 16, 100352, 4096, 1.485, 0, 0, OLMO},
    {"OLMo-2-1124-7B", "olmo2", "Olmo2", 4096, 11008, 32, 32, 32, 100352, 4096, 7.298, 0, 0, OLMO},
    {"OLMo-2-1124-13B", "olmo2", "Olmo2", 5120, 13824, 40, 40, 40, 100352, 4096, 13.715, 0, 0,
     OLMO},
    {"EXAONE-4.0-1.2B", "exaone4", "Exaone4", 2048, 4096, 30, 32, 8, 102400, 65536, 1.279, 0, 0,
     EXAONE ",\"head_dim\":64,\"sliding_window\":null" TIED},
    {"EXAONE-4.0-32B", "exaone4", "Exaone4", 5120, 27392, 64, 40, 8, 102400, 131072, 32.003, 4096,
     4,
     EXAONE ",\"head_dim\":128,\"sliding_window\":4096,\"sliding_window_pattern\":\"LLLG\"" UNTIED},
    {"granite-3.3-2b-instruct", "granite", "Granite", 2048, 8192, 40, 32, 8, 49159, 131072, 2.533,
     0, 0, GRANITE ",\"attention_multiplier\":0.015625,\"logits_scaling\":8.0"},
    {"granite-3.3-8b-instruct", "granite", "Granite", 4096, 12800, 40, 32, 8, 49159, 131072, 8.170,
     0, 0, GRANITE ",\"attention_multiplier\":0.0078125,\"logits_scaling\":16.0"},
    {"gemma-2b", "gemma", "Gemma", 2048, 16384, 18, 8, 1, 256000, 8192, 2.506, 0, 0,
     GEMMA ",\"hidden_act\":\"gelu\",\"rope_scaling\":null,\"rope_theta\":10000.0"},
    {"gemma-7b", "gemma", "Gemma", 3072, 24576, 28, 16, 16, 256000, 8192, 8.538, 0, 0,
     GEMMA ",\"hidden_act\":\"gelu\",\"rope_scaling\":null,\"rope_theta\":10000.0"},
    {"gemma-2-2b", "gemma2", "Gemma2", 2304, 9216, 26, 8, 4, 256000, 8192, 2.614, 4096, 0,
     GEMMA2 ",\"head_dim\":256,\"query_pre_attn_scalar\":256"},
    {"gemma-2-9b", "gemma2", "Gemma2", 3584, 14336, 42, 16, 8, 256000, 8192, 9.241, 4096, 0,
     GEMMA2 ",\"head_dim\":256,\"query_pre_attn_scalar\":256"},
    {"gemma-2-27b", "gemma2", "Gemma2", 4608, 36864, 46, 32, 16, 256000, 8192, 27.226, 4096, 0,
     GEMMA2 ",\"head_dim\":128,\"query_pre_attn_scalar\":144"},
    {"gemma-3-1b-pt", "gemma3_text", "Gemma3", 1152, 6912, 26, 4, 1, 262144, 32768, 1.000, 512, 0,
     GEMMA3 ",\"head_dim\":256,\"query_pre_attn_scalar\":256,\"sliding_window\":512"},
    {"the text part of gemma-3-4b-pt", "gemma3_text", "Gemma3", 2560, 10240, 34, 8, 4, 262208,
     131072, 3.880, 1024, 0,
     GEMMA3_LONG ",\"head_dim\":256,\"query_pre_attn_scalar\":256,\"sliding_window\":1024"},
    {"the text part of gemma-3-27b-pt", "gemma3_text", "Gemma3", 5376, 21504, 62, 32, 16, 262208,
     131072, 27.008, 1024, 6,
     GEMMA3_LONG ",\"head_dim\":128,\"query_pre_attn_scalar\":168,\"sliding_window\":1024"},
    {"aya-23-8B", "cohere", "Cohere", 4096, 14336, 32, 32, 8, 256000, 8192, 8.028, 0, 0,
     COHERE ",\"logit_scale\":0.0625,\"rope_theta\":10000"},
    {"aya-23-35B", "cohere", "Cohere", 8192, 22528, 40, 64, 64, 256000, 8192, 34.980, 0, 0,
     COHERE ",\"logit_scale\":0.0625,\"rope_theta\":8000000.0"},
    {"aya-expanse-8b", "cohere", "Cohere", 4096, 14336, 32, 32, 8, 256000, 8192, 8.028, 0, 0,
     COHERE ",\"logit_scale\":0.125,\"rope_theta\":10000"},
    {"c4ai-command-r-v01", "cohere", "Cohere", 8192, 22528, 40, 64, 64, 256000, 131072, 34.980, 0,
     0, COHERE ",\"logit_scale\":0.0625,\"rope_theta\":8000000.0"},
    {"c4ai-command-r7b-12-2024", "cohere2", "Cohere2", 4096, 14336, 32, 32, 8, 256000, 132096,
     8.028, 4096, 0, COHERE2},
    {"c4ai-command-a-03-2025", "cohere2", "Cohere2", 12288, 36864, 64, 96, 8, 256000, 131072,
     111.057, 4096, 4, COHERE2},
    {"starcoder2-3b", "starcoder2", "Starcoder2", 3072, 12288, 30, 24, 2, 49152, 16384, 3.029, 4096,
     0, STARCODER ",\"rope_theta\":999999.4420358813"},
    {"starcoder2-7b", "starcoder2", "Starcoder2", 4608, 18432, 32, 36, 4, 49152, 16384, 7.173, 4096,
     0, STARCODER ",\"rope_theta\":1000000"},
    {"starcoder2-15b", "starcoder2", "Starcoder2", 6144, 24576, 40, 48, 4, 49152, 16384, 15.955,
     4096, 0, STARCODER ",\"rope_theta\":100000" UNTIED},
    {"stablelm-3b-4e1t", "stablelm", "StableLm", 2560, 6912, 32, 32, 32, 50304, 4096, 2.795, 0, 0,
     STABLELM},
    {"stablelm-2-1_6b", "stablelm", "StableLm", 2048, 5632, 24, 32, 32, 100352, 4096, 1.644, 0, 0,
     STABLELM ",\"qk_layernorm\":false,\"use_parallel_residual\":false,\"use_qkv_bias\":true"},
    {"Ministral-8B-Instruct-2410", "ministral", "Ministral", 4096, 12288, 36, 32, 8, 131072, 131072,
     8.020, 32768, 4,
     MISTRAL ",\"head_dim\":128,\"rope_theta\":100000000.0,\"sliding_window\":32768" UNTIED},
    {"the text part of Ministral-3-3B", "ministral3", "Ministral3", 3072, 9216, 26, 32, 8, 131072,
     262144, 3.429, 0, 0, MINISTRAL3 TIED},
    {"the text part of Ministral-3-8B", "ministral3", "Ministral3", 4096, 14336, 34, 32, 8, 131072,
     262144, 8.489, 0, 0, MINISTRAL3 UNTIED},
    {"the text part of Ministral-3-14B", "ministral3", "Ministral3", 5120, 16384, 40, 32, 8, 131072,
     262144, 13.506, 0, 0, MINISTRAL3 UNTIED},
    {"Qwen3-30B-A3B", "qwen3_moe", "Qwen3Moe", 2048, 6144, 48, 32, 4, 151936, 40960, 30.532, 0, 0,
     QWEN3_MOE ",\"max_window_layers\":48,\"moe_intermediate_size\":768,\"rope_theta\":1000000.0"},
    {"gemma-4-26B-A4B-it", "gemma4_text", "Gemma4", 2816, 2112, 30, 16, 8, 262144, 262144, 25.232,
     1024, 6,
     GEMMA4 ",\"enable_moe_block\":true,\"moe_intermediate_size\":704,\"num_experts\":128,"
            "\"num_global_key_value_heads\":2,\"top_k_experts\":8"},
    {"gemma-4-31B-it", "gemma4_text", "Gemma4", 5376, 21504, 60, 32, 16, 262144, 262144, 30.696,
     1024, 6,
     GEMMA4 ",\"enable_moe_block\":false,\"moe_intermediate_size\":null,\"num_experts\":null,"
            "\"num_global_key_value_heads\":4,\"top_k_experts\":null"},
    {"the text part of gemma-4-E2B-it", "gemma4_text", "Gemma4", 1536, 6144, 35, 8, 1, 262144,
     131072, 4.628, 512, 5,
     GEMMA4_SMALL ",\"num_kv_shared_layers\":20,\"use_double_wide_mlp\":true"},
    {"the text part of gemma-4-E4B-it", "gemma4_text", "Gemma4", 2560, 10240, 42, 8, 2, 262144,
     131072, 7.462, 512, 6,
     GEMMA4_SMALL ",\"num_kv_shared_layers\":18,\"use_double_wide_mlp\":false"},
    {"Qwen3-Coder-30B-A3B-Instruct", "qwen3_moe", "Qwen3Moe", 2048, 5472, 48, 32, 4, 151936, 262144,
     30.532, 0, 0,
     QWEN3_MOE ",\"max_window_layers\":28,\"moe_intermediate_size\":768,\"rope_theta\":10000000"},
    {"Qwen3-235B-A22B", "qwen3_moe", "Qwen3Moe", 4096, 12288, 94, 64, 4, 151936, 40960, 235.093, 0,
     0,
     QWEN3_MOE ",\"max_window_layers\":94,\"moe_intermediate_size\":1536,\"rope_theta\":1000000.0"},
    {"Mixtral-8x7B-v0.1", "mixtral", "Mixtral", 4096, 14336, 32, 32, 8, 32000, 32768, 46.703, 0, 0,
     MIXTRAL ",\"router_aux_loss_coef\":0.02"},
    {"Mixtral-8x22B-v0.1", "mixtral", "Mixtral", 6144, 16384, 56, 48, 8, 32000, 65536, 140.620, 0,
     0, MIXTRAL ",\"router_aux_loss_coef\":0.001,\"router_jitter_noise\":0.0"},
    {"granite-3.1-1b-a400m-base", "granitemoe", "GraniteMoe", 1024, 512, 24, 16, 8, 49155, 131072,
     1.334, 0, 0, GRANITE_MOE ",\"num_local_experts\":32"},
    {"granite-3.1-3b-a800m-base", "granitemoe", "GraniteMoe", 1536, 512, 32, 24, 8, 49155, 131072,
     3.299, 0, 0, GRANITE_MOE ",\"num_local_experts\":40"},
    {"GLM-4.5-Air", "glm4_moe", "Glm4Moe", 4096, 10944, 46, 96, 8, 151552, 131072, 106.852, 0, 0,
     GLM4_MOE
     ",\"first_k_dense_replace\":1,\"moe_intermediate_size\":1408,\"n_routed_experts\":128,"
     "\"routed_scaling_factor\":1.0,\"use_qk_norm\":false"},
    {"GLM-4.5", "glm4_moe", "Glm4Moe", 5120, 12288, 92, 96, 8, 151552, 131072, 352.796, 0, 0,
     GLM4_MOE
     ",\"first_k_dense_replace\":3,\"moe_intermediate_size\":1536,\"n_routed_experts\":160,"
     "\"routed_scaling_factor\":2.5,\"use_qk_norm\":true"},
    {"GLM-4.6", "glm4_moe", "Glm4Moe", 5120, 12288, 92, 96, 8, 151552, 202752, 352.796, 0, 0,
     GLM4_MOE
     ",\"first_k_dense_replace\":3,\"moe_intermediate_size\":1536,\"n_routed_experts\":160,"
     "\"routed_scaling_factor\":2.5,\"use_qk_norm\":true"},
    {"gpt-oss-20b", "gpt_oss", "GptOss", 2880, 2880, 24, 64, 8, 201088, 131072, 20.908, 128, 2,
     GPT_OSS ",\"num_local_experts\":32"},
    {"gpt-oss-120b", "gpt_oss", "GptOss", 2880, 2880, 36, 64, 8, 201088, 131072, 116.789, 128, 2,
     GPT_OSS ",\"num_local_experts\":128"},
    {"the text part of Llama-4-Scout-17B-16E-Instruct", "llama4_text", "Llama4", 5120, 8192, 48, 40,
     8, 202048, 10485760, 107.770, 8192, 0,
     LLAMA4 ",\"interleave_moe_layer_step\":1,\"num_local_experts\":16,\"use_qk_norm\":true,"
            "\"rope_scaling\":{\"factor\":16.0,\"high_freq_factor\":1.0,\"low_freq_factor\":1.0,"
            "\"original_max_position_embeddings\":8192,\"rope_type\":\"llama3\"}"},
    {"the text part of Llama-4-Maverick-17B-128E-Instruct", "llama4_text", "Llama4", 5120, 8192, 48,
     40, 8, 202048, 1048576, 400.712, 8192, 0, LLAMA4 MAVERICK},
    {"the text part of Llama-4-Maverick-17B-128E", "llama4_text", "Llama4", 5120, 8192, 48, 40, 8,
     202048, 262144, 400.712, 8192, 0, LLAMA4 MAVERICK},
    {"LFM2-350M", "lfm2", "Lfm2", 1024, 6656, 16, 16, 8, 65536, 128000, 0.354, 0, 0,
     LFM2 LFM2_SIZES("1024")},
    {"LFM2-700M", "lfm2", "Lfm2", 1536, 10240, 16, 24, 8, 65536, 128000, 0.742, 0, 0,
     LFM2 LFM2_SIZES("1536")},
    {"LFM2-1.2B", "lfm2", "Lfm2", 2048, 12288, 16, 32, 8, 65536, 128000, 1.170, 0, 0,
     LFM2 LFM2_SIZES("2048")},
    {"LFM2-8B-A1B", "lfm2_moe", "Lfm2Moe", 2048, 7168, 24, 32, 8, 65536, 128000, 8.340, 0, 0,
     LFM2_MOE},
    {"Qwen3-Next-80B-A3B-Instruct", "qwen3_next", "Qwen3Next", 2048, 5120, 48, 16, 2, 151936,
     262144, 79.673, 0, 0,
     DELTA(32) DELTA_MIXTURE(512, 10) ",\"bos_token_id\":151643,\"decoder_sparse_step\":1,"
                                      "\"eos_token_id\":151645,\"mlp_only_layers\":[],"
                                      "\"norm_topk_prob\":true,\"partial_rotary_factor\":0.25,"
                                      "\"rope_scaling\":null,\"rope_theta\":10000000"},
    {"the text part of Qwen3.5-9B", "qwen3_5_text", "Qwen3_5", 4096, 12288, 32, 16, 4, 248320,
     262144, 8.953, 0, 0, DELTA(32) QWEN35},
    {"the text part of Qwen3.5-27B", "qwen3_5_text", "Qwen3_5", 5120, 17408, 64, 24, 4, 248320,
     262144, 26.893, 0, 0, DELTA(48) QWEN35},
    {"the text part of Qwen3.5-35B-A3B", "qwen3_5_moe_text", "Qwen3_5Moe", 2048, 512, 40, 16, 2,
     248320, 262144, 34.659, 0, 0, DELTA(32) DELTA_MIXTURE(256, 8) QWEN35},
    {"granite-4.0-h-small", "granitemoehybrid", "GraniteMoeHybrid", 4096, 768, 40, 32, 8, 100352,
     131072, 32.205, 0, 0,
     GRANITE4("0.0078125", "0.22", "16", "12") LAYERS_OF_40
     ",\"mamba_d_head\":64,\"mamba_n_heads\":128,\"num_experts_per_tok\":10,"
     "\"num_local_experts\":72,\"shared_intermediate_size\":1536"},
    {"granite-4.0-h-tiny", "granitemoehybrid", "GraniteMoeHybrid", 1536, 512, 40, 12, 4, 100352,
     131072, 6.938, 0, 0,
     GRANITE4("0.0078125", "0.22", "6", "12") LAYERS_OF_40
     ",\"mamba_d_head\":64,\"mamba_n_heads\":48,\"num_experts_per_tok\":6,"
     "\"num_local_experts\":64,\"shared_intermediate_size\":1024"},
    {"granite-4.0-h-micro", "granitemoehybrid", "GraniteMoeHybrid", 2048, 8192, 40, 32, 8, 100352,
     131072, 3.190, 0, 0,
     GRANITE4("0.015625", "0.22", "8", "12") LAYERS_OF_40 NO_EXPERTS
     ",\"mamba_d_head\":64,\"mamba_n_heads\":64,\"shared_intermediate_size\":8192"},
};

static void write_config(char *out, size_t size, const published *m)
{
    size_t used = (size_t)snprintf(
        out, size,
        "{\"architectures\":[\"%sForCausalLM\"],\"model_type\":\"%s\",\"hidden_size\":%d,"
        "\"intermediate_size\":%d,\"num_hidden_layers\":%d,\"num_attention_heads\":%d,"
        "\"num_key_value_heads\":%d,\"vocab_size\":%d,\"max_position_embeddings\":%d,"
        "\"initializer_range\":0.02,\"torch_dtype\":\"bfloat16\",\"use_cache\":true,%s",
        m->class_name, m->type, m->width, m->ffn, m->layers, m->heads, m->kv_heads, m->vocab,
        m->context, m->more);
    if (m->period > 0)
        used += (size_t)snprintf(out + used, size - used, ",\"layer_types\":[");
    for (int i = 0; i < m->layers && m->period > 0; i++)
        used += (size_t)snprintf(out + used, size - used, "%s\"%s_attention\"", i == 0 ? "" : ",",
                                 (i + 1) % m->period == 0 ? "full" : "sliding");
    used += (size_t)snprintf(out + used, size - used, "%s}", m->period > 0 ? "]" : "");
    assert_true(used < size);
}

static void check(const published *m)
{
    parsed p;
    char text[8192];
    write_config(text, sizeof text, m);
    open_as_published(&p, m->name, text, m->billions);
    assert_string_equal(nib__arch_name(p.config.arch), m->type);
    if (p.config.window != m->window)
        fail_msg("%s: a window of %d", m->name, (int)p.config.window);
    close_parsed(&p);
}

static void test_published(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(models); i += (size_t)sparse(3))
        check(&models[i]);
}

/* Every family has a model here, in test_config_families.c or in test_latent.c. */
static void test_every_family_has_a_model(void **state)
{
    static const char *const elsewhere[] = {"phi3",        "glm",         "glm4",
                                            "deepseek_v2", "deepseek_v3", "kimi_k2"};
    (void)state;
    for (size_t f = 0; nib__family_at(f) != NULL; f++) {
        const char *name = nib__family_at(f)->name;
        bool found = false;
        for (size_t i = 0; i < COUNT(models); i++)
            found = found || strcmp(models[i].type, name) == 0;
        for (size_t i = 0; i < COUNT(elsewhere); i++)
            found = found || strcmp(elsewhere[i], name) == 0;
        if (!found)
            fail_msg("no published model of %s", name);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_published),
        cmocka_unit_test(test_every_family_has_a_model),
    };
    return cmocka_run_group_tests(tests, open_published, close_published);
}
