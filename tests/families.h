/* SPDX-License-Identifier: Apache-2.0
 *
 * The families with a golden training step, tests/golden/train.
 */
#ifndef NIB_TESTS_FAMILIES_H
#define NIB_TESTS_FAMILIES_H

static const char *const families[] = {"llama",
                                       "qwen2",
                                       "qwen3",
                                       "smollm3",
                                       "olmo2",
                                       "exaone4",
                                       "mistral",
                                       "granite",
                                       "gemma",
                                       "gemma2",
                                       "gemma3",
                                       "cohere",
                                       "cohere2",
                                       "starcoder2",
                                       "stablelm",
                                       "ministral",
                                       "ministral3",
                                       "phi3",
                                       "glm",
                                       "glm4",
                                       "cohere_norms",
                                       "stablelm_norms",
                                       "qwen3_moe",
                                       "qwen3_moe_plain",
                                       "mixtral",
                                       "granitemoe",
                                       "glm4_moe",
                                       "gpt_oss",
                                       "llama4",
                                       "deepseek_v2",
                                       "deepseek_v3",
                                       "gemma4",
                                       "gemma4_dense",
                                       "lfm2",
                                       "qwen3_next",
                                       "qwen3_5",
                                       "granite_hybrid",
                                       "granite_hybrid_moe"};

#endif
