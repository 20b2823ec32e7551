#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes GGUF blocks with the values that PyPI's gguf dequantizes them to, and small GGUF models with the logits that
transformers computes in float32 from the same dequantized weights.

Usage: python3 tools/golden/make_gguf_golden.py [DIRECTORY [FAMILY...]]       (tests/golden, all and the blocks)
Needs: gguf, torch, transformers 5, safetensors. Runs on the CPU, in seconds.

DIRECTORY/gguf_blocks.txt           lines: TYPE ROWS K BLOCKS FLOATS, hex, little endian
DIRECTORY/gguf/FAMILY.gguf          llama (biases, llama3's frequencies, every type that is read, a
                                    byte-level tokenizer), qwen2, qwen3
DIRECTORY/gguf/logits.safetensors   FAMILY.tokens [count], FAMILY.logits [count][vocab] f32
Blocks have random bits, except that their scales give weights of a realistic size.
"""
import math
import os
import sys

import gguf
import gguf_states
import numpy as np
import torch
import transformers
from gguf import GGMLQuantizationType as T
from gguf import quants
from safetensors.torch import load_file, save_file

SEED = 20261120
COMMAND = "python3 tools/golden/make_gguf_golden.py"

# type: elements of a block, its bytes, offsets of f16 scales
BLOCKS = {
    T.Q4_0: (32, 18, [0]),
    T.Q4_1: (32, 20, [0, 2]),
    T.Q5_0: (32, 22, [0]),
    T.Q5_1: (32, 24, [0, 2]),
    T.Q8_0: (32, 34, [0]),
    T.Q4_K: (256, 144, [0, 2]),
    T.Q5_K: (256, 176, [0, 2]),
    T.Q6_K: (256, 210, [208]),
    T.IQ4_NL: (32, 18, [0]),
    T.MXFP4: (32, 17, []),
    T.Q2_K: (256, 84, [80, 82]),
    T.Q3_K: (256, 110, [108]),
}
# the approximate standard deviation of weights at a scale of 1
SPREAD = {T.Q4_0: 4.6, T.Q4_1: 4.6, T.Q5_0: 9.2, T.Q5_1: 9.2, T.Q8_0: 74, T.Q4_K: 170, T.Q5_K: 340,
          T.Q6_K: 1400, T.IQ4_NL: 66, T.Q2_K: 13, T.Q3_K: 43}


def random_blocks(rng, kind, rows, k, std):
    """[rows][bytes] blocks of random codes whose values have about this standard deviation."""
    elements, size, scales = BLOCKS[kind]
    blocks = rng.integers(0, 256, (rows, k // elements, size), dtype=np.uint8)
    if kind == T.MXFP4:
        blocks[..., 0] = int(np.floor(np.log2(std))) + 127 - 2
        return blocks.reshape(rows, -1)
    d = (std / SPREAD[kind] * rng.uniform(0.7, 1.4, blocks.shape[:2])).astype(np.float16)
    blocks[..., scales[0]:scales[0] + 2] = d[..., None].view(np.uint8)
    if len(scales) == 2:
        middle = {T.Q4_1: -7.5, T.Q5_1: -15.5, T.Q4_K: 7.5, T.Q5_K: 15.5, T.Q2_K: 1.5}[kind]
        least = (d.astype(np.float32) * middle).astype(np.float16)
        blocks[..., scales[1]:scales[1] + 2] = least[..., None].view(np.uint8)
    return blocks.reshape(rows, -1)


def special_blocks(kind):
    """One row of blocks whose scales are 0, negative, and denormal."""
    elements, size, scales = BLOCKS[kind]
    k = 4 * elements
    blocks = random_blocks(np.random.default_rng(SEED + 7), kind, 1, k, 0.1).reshape(4, size)
    if kind == T.MXFP4:
        blocks[:, 0] = [0, 1, 100, 130]
        return k, blocks.reshape(1, -1)
    for i, values in enumerate([(0.0, 0.0), (-0.011, 0.02), (6e-8, -1.2e-7), (0.003, 0.0)]):
        for at, value in zip(scales, values):
            blocks[i, at:at + 2] = np.array([value], np.float16).view(np.uint8)
    return k, blocks.reshape(1, -1)


def write_blocks(path):
    rng = np.random.default_rng(SEED)
    with open(path, "w") as out:
        out.write(f"# gguf {gguf_version()}, seed {SEED}, {COMMAND}\n")
        for kind in BLOCKS:
            k = max(2 * BLOCKS[kind][0], 96)
            k -= k % BLOCKS[kind][0]
            cases = [(3, k, random_blocks(rng, kind, 3, k, 0.05))]
            special = special_blocks(kind)
            cases.append((1, special[0], special[1]))
            for rows, width, blocks in cases:
                values = quants.dequantize(blocks, kind)
                assert values.shape == (rows, width) and np.isfinite(values).all()
                out.write(f"{kind.name} {rows} {width} {blocks.tobytes().hex()} "
                          f"{values.astype('<f4').tobytes().hex()}\n")


def gguf_version():
    from importlib.metadata import version
    return version("gguf")


# ---- models ----

LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 64}
COMMON = {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-5,
          "max_position_embeddings": 256, "hidden_act": "silu", "bos_token_id": 256, "eos_token_id": 257}

GEMMA = dict(COMMON, intermediate_size=64, num_hidden_layers=2, vocab_size=272, rope_theta=1e4, head_dim=16,
             hidden_activation="gelu_pytorch_tanh", pad_token_id=None, tie_word_embeddings=True)

FAMILIES = {
    "llama": {
        "config": transformers.LlamaConfig,
        "model": transformers.LlamaForCausalLM,
        "keys": dict(COMMON, intermediate_size=256, num_hidden_layers=3, vocab_size=272,
                     attention_bias=True, mlp_bias=True, rope_theta=500.0, rope_scaling=LLAMA3,
                     tie_word_embeddings=True),
        "types": {"embed_tokens": [T.Q8_0], "q_proj": [T.Q4_0, T.F16, T.Q8_0],
                  "k_proj": [T.Q5_0, T.BF16, T.IQ4_NL], "v_proj": [T.Q5_1, T.Q4_1, T.F32],
                  "o_proj": [T.Q4_1, T.Q8_0, T.MXFP4], "gate_proj": [T.Q4_0, T.MXFP4, T.IQ4_NL],
                  "up_proj": [T.Q4_1, T.Q5_0, T.Q5_1], "down_proj": [T.Q4_K, T.Q5_K, T.Q6_K]},
    },
    "qwen2": {
        "config": transformers.Qwen2Config,
        "model": transformers.Qwen2ForCausalLM,
        "keys": dict(COMMON, intermediate_size=64, num_hidden_layers=2, vocab_size=272, rope_theta=1e6,
                     tie_word_embeddings=False),
        "types": {"": [T.Q8_0]},
    },
    "qwen2_yarn": {  # of architecture qwen2; most positions are past the original context
        "arch": "qwen2",
        "config": transformers.Qwen2Config,
        "model": transformers.Qwen2ForCausalLM,
        "keys": dict(COMMON, intermediate_size=64, num_hidden_layers=2, vocab_size=272, tie_word_embeddings=False,
                     rope_parameters={"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "beta_fast": 8.0, "beta_slow": 0.5,
                                      "original_max_position_embeddings": 24, "attention_factor": 1.25}),
        "types": {"": [T.Q8_0]},
    },
    "qwen3": {
        "config": transformers.Qwen3Config,
        "model": transformers.Qwen3ForCausalLM,
        "keys": dict(COMMON, intermediate_size=64, num_hidden_layers=2, vocab_size=272, rope_theta=1e6,
                     head_dim=16, tie_word_embeddings=True),
        "types": {"": [T.F16]},
    },
    "qwen3moe": {
        "config": transformers.Qwen3MoeConfig,
        "model": transformers.Qwen3MoeForCausalLM,
        "keys": dict(COMMON, intermediate_size=96, moe_intermediate_size=32, num_hidden_layers=2, vocab_size=272, rope_theta=1e6,
                     head_dim=16, num_experts=6, num_experts_per_tok=2, norm_topk_prob=True, tie_word_embeddings=False),
        "types": {"": [T.Q8_0], "gate_proj": [T.Q4_0, T.Q5_1], "up_proj": [T.Q4_1, T.MXFP4], "mlp.gate.": [T.F32]},
    },
    "mixtral": {  # of architecture llama
        "arch": "llama",
        "config": transformers.MixtralConfig,
        "model": transformers.MixtralForCausalLM,
        "keys": dict(COMMON, intermediate_size=64, num_hidden_layers=2, vocab_size=272, rope_theta=1e6, num_local_experts=4,
                     num_experts_per_tok=2, sliding_window=None, tie_word_embeddings=False),
        "types": {"": [T.Q8_0], "down_proj": [T.Q5_0], "mlp.gate.": [T.F16]},
    },
    "smollm3": {  # the fourth layer has no rope
        "config": transformers.SmolLM3Config,
        "model": transformers.SmolLM3ForCausalLM,
        "keys": dict(COMMON, intermediate_size=64, num_hidden_layers=4, vocab_size=272, rope_theta=1e4, pad_token_id=None,
                     tie_word_embeddings=True),
        "types": {"": [T.Q8_0]},
    },
    "olmo2": {
        "config": transformers.Olmo2Config,
        "model": transformers.Olmo2ForCausalLM,
        "keys": dict(COMMON, intermediate_size=64, num_hidden_layers=2, vocab_size=272, rope_theta=5e5, pad_token_id=None,
                     tie_word_embeddings=False),
        "types": {"": [T.F16]},
    },
    "exaone4": {
        "config": transformers.Exaone4Config,
        "model": transformers.Exaone4ForCausalLM,
        "keys": dict(COMMON, intermediate_size=64, num_hidden_layers=2, vocab_size=272, rope_theta=500.0, rope_scaling=LLAMA3,
                     sliding_window=None, layer_types=["full_attention"] * 2, tie_word_embeddings=True),
        "types": {"": [T.Q8_0]},
    },
    "granite": {
        "config": transformers.GraniteConfig,
        "model": transformers.GraniteForCausalLM,
        "keys": dict(COMMON, intermediate_size=64, num_hidden_layers=2, vocab_size=272, rope_theta=1e4, embedding_multiplier=6.0,
                     attention_multiplier=0.3, residual_multiplier=0.4, logits_scaling=2.0, tie_word_embeddings=True),
        "types": {"": [T.Q8_0]},
    },
    "gemma": {
        "config": transformers.GemmaConfig,
        "model": transformers.GemmaForCausalLM,
        "keys": dict(GEMMA, hidden_act="gelu_pytorch_tanh"),
        "types": {"": [T.Q8_0]},
    },
    "gemma2": {
        "config": transformers.Gemma2Config,
        "model": transformers.Gemma2ForCausalLM,
        "keys": dict(GEMMA, query_pre_attn_scalar=16, sliding_window=20, attn_logit_softcapping=5.0,
                     final_logit_softcapping=4.0, layer_types=["sliding_attention", "full_attention"]),
        "types": {"": [T.F16]},
    },
    "gemma3": {
        "config": transformers.Gemma3TextConfig,
        "model": transformers.Gemma3ForCausalLM,
        "keys": dict(GEMMA, num_hidden_layers=6, query_pre_attn_scalar=16, sliding_window=24, rope_theta=1e6,
                     rope_local_base_freq=1e4),
        "types": {"": [T.Q8_0]},
    },
    "gemma4": {
        "config": transformers.Gemma4TextConfig,
        "model": transformers.Gemma4ForCausalLM,
        "keys": dict(GEMMA, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, head_dim=16, global_head_dim=32,
                     num_global_key_value_heads=1, attention_k_eq_v=True, sliding_window=24, hidden_size_per_layer_input=0,
                     layer_types=["sliding_attention", "full_attention"] * 2, enable_moe_block=True, num_experts=6,
                     top_k_experts=2, moe_intermediate_size=32, final_logit_softcapping=20.0),
        "types": {"": [T.Q8_0], "gate_up_proj": [T.Q4_0, T.Q8_0], "router.proj": [T.F32]},
    },
    "gemma4_shared": {  # as E2B, with the unread weights of the layers that share keys and values
        "arch": "gemma4",
        "config": transformers.Gemma4TextConfig,
        "model": transformers.Gemma4ForCausalLM,
        "keys": dict(GEMMA, num_hidden_layers=6, num_attention_heads=4, num_key_value_heads=1, head_dim=16, global_head_dim=32,
                     sliding_window=24, hidden_size_per_layer_input=32, vocab_size_per_layer_input=272,
                     layer_types=["sliding_attention", "sliding_attention", "full_attention"] * 2, num_kv_shared_layers=3,
                     use_double_wide_mlp=True, final_logit_softcapping=20.0),
        "types": {"": [T.Q8_0], "embed_tokens_per_layer": [T.Q5_0], "per_layer_model_projection": [T.F16],
                  "per_layer_input_gate": [T.F32], "mlp.up_proj": [T.Q4_0]},
    },
    "command-r": {
        "config": transformers.CohereConfig,
        "model": transformers.CohereForCausalLM,
        "keys": dict(COMMON, intermediate_size=64, num_hidden_layers=2, vocab_size=272, rope_theta=1e4, logit_scale=0.5,
                     layer_norm_eps=1e-5, pad_token_id=None, tie_word_embeddings=True),
        "types": {"": [T.F16]},
    },
    "cohere2": {
        "config": transformers.Cohere2Config,
        "model": transformers.Cohere2ForCausalLM,
        "keys": dict(COMMON, intermediate_size=64, num_hidden_layers=4, vocab_size=272, rope_theta=1e4, logit_scale=0.5,
                     layer_norm_eps=1e-5, sliding_window=18, pad_token_id=None, tie_word_embeddings=True),
        "types": {"": [T.Q8_0]},
    },
    "starcoder2": {
        "config": transformers.Starcoder2Config,
        "model": transformers.Starcoder2ForCausalLM,
        "keys": dict(COMMON, intermediate_size=64, num_hidden_layers=2, vocab_size=272, rope_theta=1e4, norm_epsilon=1e-5,
                     hidden_act="gelu_pytorch_tanh", sliding_window=None, tie_word_embeddings=True),
        "types": {"": [T.Q8_0]},
    },
    "stablelm": {
        "config": transformers.StableLmConfig,
        "model": transformers.StableLmForCausalLM,
        "keys": dict(COMMON, intermediate_size=64, num_hidden_layers=2, vocab_size=272, rope_theta=1e4, layer_norm_eps=1e-5,
                     use_qkv_bias=True, partial_rotary_factor=0.25, tie_word_embeddings=False),
        "types": {"": [T.F16]},
    },
    "stablelm_norms": {  # StableLM 2 12B
        "arch": "stablelm",
        "config": transformers.StableLmConfig,
        "model": transformers.StableLmForCausalLM,
        "keys": dict(COMMON, intermediate_size=64, num_hidden_layers=2, vocab_size=272, rope_theta=1e4, layer_norm_eps=1e-5,
                     qk_layernorm=True, use_parallel_residual=True, partial_rotary_factor=0.25,
                     tie_word_embeddings=False),
        "types": {"": [T.Q8_0]},
    },
    "phi3": {  # all positions but the first few are past the original context
        "config": transformers.Phi3Config,
        "model": transformers.Phi3ForCausalLM,
        "keys": dict(COMMON, intermediate_size=64, num_hidden_layers=2, vocab_size=272, pad_token_id=None,
                     original_max_position_embeddings=16, sliding_window=21, tie_word_embeddings=False,
                     rope_parameters={"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0, 1.0, 1.5, 2.0],
                                      "long_factor": [1.0, 2.0, 5.0, 11.0], "original_max_position_embeddings": 16}),
        "types": {"": [T.Q8_0], "qkv_proj": [T.Q8_0, T.F16], "gate_up_proj": [T.Q4_0]},
    },
    "glm4": {
        "config": transformers.Glm4Config,
        "model": transformers.Glm4ForCausalLM,
        "keys": dict(COMMON, intermediate_size=64, num_hidden_layers=2, vocab_size=272, pad_token_id=None, head_dim=16,
                     attention_bias=True, tie_word_embeddings=False,
                     rope_parameters={"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}),
        "types": {"": [T.F16], "gate_up_proj": [T.Q5_0]},
    },
    "granitemoe": {
        "config": transformers.GraniteMoeConfig,
        "model": transformers.GraniteMoeForCausalLM,
        "keys": dict(COMMON, intermediate_size=32, num_hidden_layers=2, vocab_size=272, rope_theta=1e4, num_local_experts=5,
                     num_experts_per_tok=2, embedding_multiplier=6.0, attention_multiplier=0.3, residual_multiplier=0.4,
                     logits_scaling=2.0, tie_word_embeddings=True),
        "types": {"": [T.Q8_0], "router": [T.F32], "up_proj": [T.Q4_0]},
    },
    "gpt-oss": {  # most positions are past the original context and the window
        "config": transformers.GptOssConfig,
        "model": transformers.GptOssForCausalLM,
        "keys": dict(COMMON, intermediate_size=64, num_hidden_layers=2, vocab_size=272, head_dim=8, num_local_experts=4,
                     num_experts_per_tok=2, sliding_window=20, attention_bias=True, swiglu_limit=7.0, tie_word_embeddings=False,
                     layer_types=["sliding_attention", "full_attention"],
                     rope_parameters={"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "beta_fast": 32.0,
                                      "beta_slow": 1.0, "original_max_position_embeddings": 24, "truncate": False}),
        "types": {"": [T.Q8_0], "gate_proj": [T.MXFP4], "up_proj": [T.MXFP4], "down_proj": [T.MXFP4], "router": [T.F32]},
    },
    "glm4moe": {  # the last block predicts a further token
        "config": transformers.Glm4MoeConfig,
        "model": transformers.Glm4MoeForCausalLM,
        "keys": dict(COMMON, intermediate_size=64, moe_intermediate_size=32, num_hidden_layers=3, vocab_size=272, head_dim=16,
                     pad_token_id=None, attention_bias=True, use_qk_norm=True, n_routed_experts=6, n_shared_experts=1,
                     num_experts_per_tok=2, first_k_dense_replace=1, n_group=1, topk_group=1, norm_topk_prob=True,
                     routed_scaling_factor=2.5, num_nextn_predict_layers=1, tie_word_embeddings=False,
                     rope_parameters={"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}),
        "types": {"": [T.Q8_0], "mlp.gate.": [T.F32], "up_proj": [T.Q5_0]},
    },
    "llama4": {  # the fourth layer has no rope; the second and the fourth have experts
        "config": transformers.Llama4TextConfig,
        "model": transformers.Llama4ForCausalLM,
        "keys": dict(COMMON, intermediate_size=32, intermediate_size_mlp=64, num_hidden_layers=4, vocab_size=272, head_dim=8,
                     rope_theta=500000.0, num_local_experts=4, num_experts_per_tok=1, interleave_moe_layer_step=2,
                     pad_token_id=None, rope_scaling=dict(LLAMA3, high_freq_factor=1.0, original_max_position_embeddings=8192), tie_word_embeddings=False),
        "types": {"": [T.Q8_0], "router": [T.F16], "up_proj": [T.Q4_1, T.MXFP4]},
    },
    **gguf_states.FAMILIES,
}
PAIRED = ("llama", "smollm3", "granite", "mixtral", "granitemoe", "granitehybrid", "granitehybrid_moe")
TRANSPOSED = ("gpt-oss", "llama4")  # transformers holds x @ W

NAMES = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
         "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
         "self_attn.k_norm": "attn_k_norm", "self_attn.q_layernorm": "attn_q_norm",
         "self_attn.k_layernorm": "attn_k_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
         "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm",
         "post_attention_layernorm": "ffn_norm"}
AROUND = {"post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm",
          "post_feedforward_layernorm": "post_ffw_norm"}
PLAIN = {"mlp.gate": "ffn_gate_inp", "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down"}
AFTER = {"post_attention_layernorm": "post_attention_norm", "post_feedforward_layernorm": "post_ffw_norm"}
FUSED = {"self_attn.qkv_proj": "attn_qkv", "mlp.gate_up_proj": "ffn_up"}
SPARSE = {"mlp.router": "ffn_gate_inp", "block_sparse_moe.router": "ffn_gate_inp",
          "mlp.shared_experts.gate_proj": "ffn_gate_shexp", "mlp.shared_experts.up_proj": "ffn_up_shexp",
          "mlp.shared_experts.down_proj": "ffn_down_shexp", "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
          "mlp.shared_expert.up_proj": "ffn_up_shexp", "mlp.shared_expert.down_proj": "ffn_down_shexp"}
LATE = {"post_attention_layernorm": "post_attention_norm"}
GLM = {"post_self_attn_layernorm": "post_attention_norm", "post_mlp_layernorm": "post_ffw_norm"}
GEMMA4 = {"layer_scalar": "layer_output_scale.weight", "router.scale": "ffn_gate_inp.scale",
          "router.per_expert_scale": "ffn_down_exps.scale", "router.proj.weight": "ffn_gate_inp.weight",
          "pre_feedforward_layernorm_2.weight": "pre_ffw_norm_2.weight",
          "post_feedforward_layernorm_1.weight": "post_ffw_norm_1.weight",
          "post_feedforward_layernorm_2.weight": "post_ffw_norm_2.weight",
          "per_layer_input_gate.weight": "inp_gate.weight", "per_layer_projection.weight": "proj.weight",
          "post_per_layer_input_norm.weight": "post_norm.weight"}
WHOLE = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
         "model.embed_tokens_per_layer": "per_layer_token_embd", "model.per_layer_model_projection": "per_layer_model_proj",
         "model.per_layer_projection_norm": "per_layer_proj_norm"}


def gguf_name(family, name):
    for whole, theirs in GEMMA4.items():
        if name.endswith(f".{whole}"):
            return f"blk.{layer_of(name)}.{theirs}"
    for bare, theirs in gguf_states.BARE.items():
        if name.endswith(f".{bare}"):
            return f"blk.{layer_of(name)}.{theirs}"
    module, part = name.rsplit(".", 1)
    if module == "model.embedding_norm":
        return "token_embd_norm.weight"
    if module in WHOLE:
        return f"{WHOLE[module]}.{part}"
    _, _, layer, rest = module.split(".", 3)
    if part == "sinks":
        return f"blk.{layer}.attn_sinks.weight"
    if part in ("e_score_correction_bias", "expert_bias"):
        return f"blk.{layer}.exp_probs_b.bias"
    rest = rest.replace("feed_forward.", "mlp.")
    names = dict(NAMES, **PLAIN, **FUSED, **GLM, **SPARSE, **gguf_states.NAMES)
    names.update(LATE if family in ("gpt-oss", "glm4moe", "qwen35", "qwen35moe", "qwen3next") else {})
    names.update(AFTER if family in ("olmo2", "exaone4") else AROUND if family in ("gemma2", "gemma3", "gemma4", "gemma4_shared") else {})
    return f"blk.{layer}.{names[rest]}.{part}"


def layer_of(name):
    return int(name.split(".")[2]) if name.startswith("model.layers.") else 0


def pair_rows(values, heads):
    """Puts rows j and j + width/2 of a head side by side, as GGUF's llama stores q and k."""
    width = values.shape[0] // heads
    return values.reshape(heads, 2, width // 2, -1).swapaxes(1, 2).reshape(values.shape)


def unpair_rows(values, heads):
    width = values.shape[0] // heads
    return values.reshape(heads, width // 2, 2, -1).swapaxes(1, 2).reshape(values.shape)


def heads_in(key, config):
    """Heads whose rows a projection of queries or keys has; None: another parameter."""
    heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}.get(key.split(".")[-2])
    return heads and getattr(config, heads)


def kind_of(types, name):
    for part, kinds in sorted(types.items(), reverse=True):  # the empty pattern last
        if part in name:
            return kinds[layer_of(name) % len(kinds)]
    return T.Q8_0


def stored(rng, kind, shape, std):
    """The bytes of the file, and their values."""
    if kind in (T.F32, T.F16, T.BF16):
        raw = quants.quantize((rng.standard_normal(shape) * std).astype(np.float32), kind)
    else:
        raw = random_blocks(rng, kind, shape[0], shape[1], std)
    return raw, quants.dequantize(raw, kind)


def rope_divisors(config):
    """The divisors of the frequencies by llama3's rule (Llama 3.1's published code)."""
    s = config.rope_parameters
    width = config.hidden_size // config.num_attention_heads
    freqs = 1.0 / (s["rope_theta"] ** (torch.arange(0, width, 2, dtype=torch.float64) / width))
    low = s["original_max_position_embeddings"] / s["low_freq_factor"]
    high = s["original_max_position_embeddings"] / s["high_freq_factor"]
    out = []
    for f in freqs.tolist():
        length = 2 * np.pi / f
        if length < high:
            out.append(1.0)
        elif length > low:
            out.append(s["factor"])
        else:
            smooth = (s["original_max_position_embeddings"] / length - s["low_freq_factor"]) / (
                s["high_freq_factor"] - s["low_freq_factor"])
            out.append(1 / ((1 - smooth) / s["factor"] + smooth))
    return np.array(out, np.float32)


def byte_letters():
    """GPT-2's printable letter of each byte."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters, more = {b: chr(b) for b in plain}, 256
    for b in range(256):
        if b not in letters:
            letters[b], more = chr(more), more + 1
    return [letters[b] for b in range(256)]


def add_tokenizer(writer, vocab):
    letters = byte_letters()
    space = letters[32]
    merges = [f"{space} t", "h e", "a n", "i n", f"{space}t he", "e r", f"{space} a", "o n"]
    tokens = letters + ["<|bos|>", "<|eos|>"] + ["".join(m.split(" ")) for m in merges]
    tokens += [f"<|unused{i}|>" for i in range(vocab - len(tokens))]
    types = [gguf.TokenType.NORMAL] * 256 + [gguf.TokenType.CONTROL] * 2
    types += [gguf.TokenType.NORMAL] * len(merges)
    types += [gguf.TokenType.UNUSED] * (vocab - len(types))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(merges)
    writer.add_bos_token_id(256)
    writer.add_eos_token_id(257)
    writer.add_add_bos_token(False)


def add_keys(writer, name, c):
    writer.add_name(f"random {name}, seed {SEED}, {COMMAND}")
    writer.add_quantization_version(2)
    writer.add_block_count(c.num_hidden_layers + (name == "glm4moe"))
    writer.add_context_length(c.max_position_embeddings)
    writer.add_embedding_length(c.hidden_size)
    first = c.num_hidden_layers - getattr(c, "num_kv_shared_layers", 0)
    if getattr(c, "use_double_wide_mlp", False):
        writer.add_feed_forward_length([c.intermediate_size * (1 + (i >= first)) for i in range(c.num_hidden_layers)])
    else:
        writer.add_feed_forward_length(getattr(c, "intermediate_size_mlp", c.intermediate_size))
    writer.add_head_count(c.num_attention_heads)
    if name not in ("gemma4", "lfm2", "lfm2moe", "granitehybrid"):
        writer.add_head_count_kv(c.num_key_value_heads)
    if name in ("command-r", "cohere2", "starcoder2", "stablelm"):
        writer.add_layer_norm_eps(1e-5)
    else:
        writer.add_layer_norm_rms_eps(c.norm_eps if name.startswith("lfm2") else c.rms_norm_eps)
    rope = c.rope_parameters
    writer.add_rope_freq_base(rope.get("full_attention", rope)["rope_theta"])
    if name in gguf_states.FAMILIES:
        gguf_states.add_keys(writer, name, c)
        return
    if hasattr(c, "num_experts_per_tok"):
        writer.add_expert_count(c.num_local_experts)
        writer.add_expert_used_count(c.num_experts_per_tok)
        if hasattr(c, "moe_intermediate_size"):
            writer.add_expert_feed_forward_length(c.moe_intermediate_size)
        elif name in TRANSPOSED:
            writer.add_expert_feed_forward_length(c.intermediate_size)
    if name == "llama4":
        writer.add_interleave_moe_layer_step(c.interleave_moe_layer_step)
    if name == "glm4moe":
        writer.add_expert_shared_count(c.n_shared_experts)
        writer.add_leading_dense_block_count(c.first_k_dense_replace)
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
        writer.add_expert_weights_scale(c.routed_scaling_factor)
        writer.add_expert_weights_norm(c.norm_topk_prob)
        writer.add_nextn_predict_layers(1)
    if name in ("granite", "granitemoe"):
        writer.add_embedding_scale(c.embedding_multiplier)
        writer.add_attention_scale(c.attention_multiplier)
        writer.add_residual_scale(c.residual_multiplier)
        writer.add_logit_scale(c.logits_scaling)
    if name in ("command-r", "cohere2"):
        writer.add_logit_scale(c.logit_scale)
    if name == "gemma2":
        writer.add_attn_logit_softcapping(c.attn_logit_softcapping)
        writer.add_final_logit_softcapping(c.final_logit_softcapping)
    if rope.get("rope_type") == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        writer.add_rope_scaling_yarn_beta_fast(rope["beta_fast"])
        writer.add_rope_scaling_yarn_beta_slow(rope["beta_slow"])
        if "attention_factor" in rope:  # llama.cpp multiplies it by the paper's factor
            writer.add_rope_scaling_attn_factors(rope["attention_factor"] / (1 + 0.1 * math.log(rope["factor"])))
    if name == "phi3":  # as llama.cpp's converter does: no scaling type
        original = c.original_max_position_embeddings
        writer.add_rope_scaling_orig_ctx_len(original)
        factor = c.max_position_embeddings / original
        writer.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(factor) / math.log(original)))
    if name in ("gemma2", "gemma3", "cohere2", "phi3", "gpt-oss"):
        writer.add_sliding_window(c.sliding_window)
    if name == "stablelm":
        writer.add_parallel_residual(c.use_parallel_residual)
    if name == "gemma4":
        add_gemma4_keys(writer, c)
        return
    width = getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads
    if name in ("qwen3", "qwen3moe") or name.startswith("gemma"):
        writer.add_key_length(width)
        writer.add_value_length(width)
    elif name in ("glm4", "glm4moe"):
        writer.add_key_length(width)
        writer.add_value_length(width)
        writer.add_rope_dimension_count(width // 2)
    elif name == "stablelm":
        writer.add_rope_dimension_count(width // 4)
    else:
        writer.add_rope_dimension_count(width)


def add_gemma4_keys(writer, c):
    """As llama.cpp's converter does: the usual keys are those of layers without a window."""
    swa = [kind == "sliding_attention" for kind in c.layer_types]
    wide, own = (c.per_layer_config[swa.index(False)], c.per_layer_config[swa.index(True)])
    writer.add_head_count_kv([(own if s else wide).num_key_value_heads for s in swa])
    writer.add_rope_freq_base_swa(c.rope_parameters["sliding_attention"]["rope_theta"])
    writer.add_final_logit_softcapping(c.final_logit_softcapping)
    writer.add_shared_kv_layers(c.num_kv_shared_layers)
    writer.add_embedding_length_per_layer_input(c.hidden_size_per_layer_input)
    writer.add_sliding_window(c.sliding_window)
    writer.add_sliding_window_pattern(swa)
    writer.add_key_length(wide.head_dim)
    writer.add_value_length(wide.head_dim)
    writer.add_key_length_swa(own.head_dim)
    writer.add_value_length_swa(own.head_dim)
    writer.add_rope_dimension_count(wide.head_dim)
    writer.add_rope_dimension_count_swa(own.head_dim)
    if c.enable_moe_block:
        writer.add_expert_count(c.num_experts)
        writer.add_expert_used_count(c.top_k_experts)
        writer.add_expert_feed_forward_length(c.moe_intermediate_size)


def add_unread(writer, rng, config):
    """Keys and values of the layers that share those of earlier ones, which Gemma 4's files hold nevertheless."""
    for layer in range(config.num_hidden_layers - config.num_kv_shared_layers, config.num_hidden_layers):
        width = config.per_layer_config[layer].head_dim
        for name in ("attn_k", "attn_v"):
            values = rng.standard_normal((config.num_key_value_heads * width, config.hidden_size)).astype(np.float32)
            writer.add_tensor(f"blk.{layer}.{name}.weight", values)
        writer.add_tensor(f"blk.{layer}.attn_k_norm.weight", np.ones(width, np.float32))


def proportional_divisors(config):
    """1 for the pairs that rotate, 1e30 for the others."""
    rope = config.rope_parameters["full_attention"]
    pairs = config.per_layer_config["full_attention"].head_dim // 2
    rotates = int(pairs * rope["partial_rotary_factor"])
    return np.array([1.0] * rotates + [1e30] * (pairs - rotates), np.float32)


def joined(family, parts):
    """The parameter that holds parts of [experts][n], or with [k] besides: gate and up of gpt-oss take turns."""
    if family == "gpt-oss" and len(parts) == 2:
        return np.stack(parts, axis=2).reshape(parts[0].shape[0], -1, *parts[0].shape[2:])
    return np.concatenate(parts, axis=1)


def add_expert_biases(writer, family, rng, key, shape):
    """Writes the biases of one parameter of experts, [experts][n]; returns its values."""
    parts = ["gate", "up"] if "gate_up" in key else ["down"]
    out = [0.5 * rng.standard_normal((shape[0], shape[1] // len(parts))).astype(np.float32) for _ in parts]
    for part, values in zip(parts, out):
        writer.add_tensor(f"blk.{layer_of(key)}.ffn_{part}_exps.bias", values)
    return joined(family, out)


def add_nextn(writer, rng, config):
    """A block that only predicts a further token: a few of its tensors."""
    layer, width = config.num_hidden_layers, config.hidden_size
    for name in ("attn_norm", "post_attention_norm", "nextn.enorm", "nextn.hnorm", "nextn.shared_head_norm"):
        writer.add_tensor(f"blk.{layer}.{name}.weight", np.ones(width, np.float32))
    for name, rows, columns in (("attn_v", width, width), ("nextn.eh_proj", width, 2 * width),
                                ("nextn.embed_tokens", config.vocab_size, width)):
        writer.add_tensor(f"blk.{layer}.{name}.weight", rng.standard_normal((rows, columns)).astype(np.float32))


def add_experts(writer, family, rng, types, key, shape):
    """Writes the stacks of one parameter of experts, [experts][n][k]; returns its values."""
    experts, n, k = (shape[0], shape[2], shape[1]) if family in TRANSPOSED else shape
    parts = ["gate_proj", "up_proj"] if "gate_up" in key else ["down_proj"]
    if family == "gemma4":  # its's gate and up are one stack
        parts = [key.rpartition(".")[2]]
    out = []
    for part in parts:
        rows = n // len(parts)
        kind = kind_of(types, f"{key.rpartition('.')[0]}.{part}")
        raw, values = stored(rng, kind, (experts * rows, k), k ** -0.5)
        name = f"blk.{layer_of(key)}.ffn_{part.removesuffix('_proj')}_exps.weight"
        writer.add_tensor(name, raw.reshape(experts, rows, -1), raw_dtype=kind)
        out.append(values.reshape(experts, rows, k))
    values = joined(family, out)
    return values.swapaxes(1, 2) if family in TRANSPOSED else values


def random_tensor(rng, types, key, shape):
    """The bytes of a tensor in the file, their type, and their values."""
    if len(shape) == 1:
        values = rng.standard_normal(shape).astype(np.float32)
        values = -np.exp(values) if key.endswith("A_log") else 1 + 0.25 * values if "norm" in key else 0.5 * values
        return values, T.F32, values
    kind = kind_of(types, key)
    gain = 0.5 if "embed" in key else (2.0 if "q_proj" in key or "k_proj" in key else 1.0)
    raw, values = stored(rng, kind, shape, gain if "embed" in key else gain / shape[1] ** 0.5)
    return raw, kind, values


def add_state_tensors(writer, family, rng, types, key, shape, config):
    """Writes the tensors of one parameter of a family of gguf_states; returns its values."""
    parts = []
    for part, part_shape in gguf_states.split(family, key, shape, config):
        raw, kind, values = random_tensor(rng, types, part, part_shape)
        writer.add_tensor(gguf_name(family, part), gguf_states.in_file(part, raw, config), raw_dtype=kind)
        parts.append(values)
    values = gguf_states.parameter(family, key, parts, shape, config)
    if family in PAIRED and heads_in(key, config):
        values = unpair_rows(values, heads_in(key, config))
    return torch.from_numpy(np.ascontiguousarray(values, np.float32))


def write_model(directory, name, family, logits):
    config = family["config"](**family["keys"])
    torch.manual_seed(SEED)
    model = family["model"](config).float().eval()
    rng = np.random.default_rng(SEED + len(name))
    arch = family.get("arch", name)
    writer = gguf.GGUFWriter(os.path.join(directory, f"{name}.gguf"), arch)
    add_keys(writer, arch, config)
    if name != "qwen3":
        add_tokenizer(writer, config.vocab_size)
    state, heads_of = {}, {}
    for key, value in model.state_dict().items():
        shape = tuple(value.shape)
        if len(shape) == 3 and "conv" not in key:
            values = add_experts(writer, name, rng, family["types"], key, shape)
            state[key] = torch.from_numpy(np.ascontiguousarray(values))
            continue
        if name in gguf_states.FAMILIES:
            if key != "lm_head.weight" or not config.tie_word_embeddings:
                state[key] = add_state_tensors(writer, name, rng, family["types"], key, shape, config)
            continue
        if key.endswith("proj_bias"):
            state[key] = torch.from_numpy(np.ascontiguousarray(add_expert_biases(writer, name, rng, key, shape)))
            continue
        if key == "lm_head.weight" and config.tie_word_embeddings:
            continue
        if len(shape) == 1:
            values = rng.standard_normal(shape).astype(np.float32)
            norm = "norm" in key and key.endswith("weight")
            factor = key.endswith(("layer_scalar", "router.scale", "per_expert_scale"))
            values = 1 + 0.25 * values if norm or factor else 0.5 * values
            raw, kind = values, T.F32
            if norm and name in ("gemma", "gemma2", "gemma3"):
                values = values - 1  # the stored value is 1 larger
        else:
            kind = kind_of(family["types"], key)
            sharp = any(part in key for part in ("q_proj", "k_proj", "qkv_proj"))
            gain = 0.5 if "embed" in key else (2.0 if sharp else 1.0)
            raw, values = stored(rng, kind, shape, gain if "embed" in key else gain / shape[1] ** 0.5)
        if name in PAIRED and heads_in(key, config):
            values = unpair_rows(values, heads_in(key, config))  # stored in pairs
        if ".norms." in key:  # one tensor per head: stack them as llama.cpp's converter does
            heads_of.setdefault(key.split(".norms.")[0] + ".weight", []).append(values)
        else:
            writer.add_tensor(gguf_name(name, key), raw, raw_dtype=kind)
        state[key] = torch.from_numpy(np.ascontiguousarray(values, np.float32))
    for key, values in heads_of.items():
        writer.add_tensor(gguf_name(name, key), np.stack(values).astype(np.float32))
    if name == "glm4moe":
        add_nextn(writer, rng, config)
    if name == "phi3":
        for which in ("long", "short"):
            factors = np.array(config.rope_parameters[f"{which}_factor"], np.float32)
            writer.add_tensor(f"rope_factors_{which}.weight", factors)
    if "rope_scaling" in family["keys"]:
        writer.add_tensor("rope_freqs.weight", rope_divisors(config))
    if arch == "gemma4":
        writer.add_tensor("rope_freqs.weight", proportional_divisors(config))
        add_unread(writer, rng, config)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    missing = model.load_state_dict(state, strict=False)
    assert not missing.unexpected_keys and set(missing.missing_keys) <= {"lm_head.weight"}, missing
    model.tie_weights()
    tokens = torch.from_numpy(rng.integers(0, config.vocab_size, 90, dtype=np.int32))
    with torch.no_grad():
        y = model(tokens[None].long()).logits[0]
    logits[f"{name}.tokens"] = tokens
    logits[f"{name}.positions"] = torch.tensor([0, 1, 5, 17, 40, 63, 64, 88, 89], dtype=torch.int32)
    logits[f"{name}.logits"] = y[logits[f"{name}.positions"].long()].contiguous()


def main():
    root = sys.argv[1] if len(sys.argv) > 1 else "tests/golden"
    only = sys.argv[2:]
    directory = os.path.join(root, "gguf")
    path = os.path.join(directory, "logits.safetensors")
    os.makedirs(directory, exist_ok=True)
    if not only:
        write_blocks(os.path.join(root, "gguf_blocks.txt"))
    logits = load_file(path) if only else {}
    for name in only or FAMILIES:
        write_model(directory, name, FAMILIES[name], logits)
    made = {"made_by": f"transformers {transformers.__version__}, torch {torch.__version__}, "
                       f"gguf {gguf_version()}, seed {SEED}, {COMMAND}"}
    save_file(logits, path, metadata=made)
    os.chmod(path, 0o644)


main()
