#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Small random models of each family, with the logits that transformers computes in float32.

Usage: python3 tools/golden/make_model_golden.py [DIRECTORY [FAMILY...]]       (tests/golden/models, all)
Needs: torch, transformers 5, safetensors. Runs on the CPU, in seconds.

DIRECTORY/FAMILY/config.json, model.safetensors    a Hugging Face directory
DIRECTORY/FAMILY/logits.safetensors                tokens.I  [count]      ids of sequence I
                                                   positions.I [kept]     where logits were kept
                                                   logits.I  [kept][vocab] f32
Weights are random, but scaled so that logits and attention have spread: a model whose attention is uniform would
not notice a wrong rotation. Half of the configs are written as transformers 4 wrote them, half as 5 does.
"""
import json
import os
import sys

import safetensors
import torch
import transformers
from safetensors.torch import save_file

SEED = 20261120
COMMAND = "python3 tools/golden/make_model_golden.py"

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 512,
}

# Widths that are no multiple of 32, several groups' last ones short, heads of 12 to 32.
FAMILIES = {
    "llama2": {
        "type": torch.float32,
        "config": {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_size": 48,
            "intermediate_size": 76,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "hidden_act": "silu",
            "vocab_size": 160,
            "max_position_embeddings": 256,
            "rms_norm_eps": 1e-5,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "pretraining_tp": 1,
            "rope_scaling": None,
            "tie_word_embeddings": False,
            "torch_dtype": "float32",
        },
        "lengths": [40, 23],
    },
    "llama3": {
        "type": torch.bfloat16,
        "config": {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "attention_bias": False,
            "mlp_bias": False,
            "hidden_size": 64,
            "intermediate_size": 172,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "hidden_act": "silu",
            "vocab_size": 211,
            "max_position_embeddings": 4096,
            "rms_norm_eps": 1e-5,
            "bos_token_id": 200,
            "eos_token_id": [201, 205, 206],
            "rope_theta": 10000.0,
            "rope_scaling": LLAMA3,
            "tie_word_embeddings": True,
            "torch_dtype": "bfloat16",
        },
        "lengths": [40, 700],
    },
    "llama_bias": {
        "type": torch.bfloat16,
        "config": {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "attention_bias": True,
            "mlp_bias": True,
            "hidden_size": 72,
            "intermediate_size": 100,
            "num_hidden_layers": 2,
            "num_attention_heads": 6,
            "num_key_value_heads": 3,
            "hidden_act": "silu",
            "vocab_size": 131,
            "max_position_embeddings": 256,
            "rms_norm_eps": 1e-6,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "rope_parameters": {"rope_theta": 5000.0, "rope_type": "default"},
            "tie_word_embeddings": False,
            "dtype": "bfloat16",
        },
        "lengths": [40, 17],
    },
    "qwen2": {
        "type": torch.bfloat16,
        "config": {
            "architectures": ["Qwen2ForCausalLM"],
            "model_type": "qwen2",
            "hidden_size": 64,
            "intermediate_size": 140,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 1,
            "hidden_act": "silu",
            "vocab_size": 257,
            "max_position_embeddings": 1024,
            "max_window_layers": 2,
            "rms_norm_eps": 1e-6,
            "bos_token_id": 250,
            "eos_token_id": 251,
            "rope_theta": 1000000.0,
            "sliding_window": 128,
            "use_sliding_window": False,
            "tie_word_embeddings": False,
            "torch_dtype": "bfloat16",
        },
        "lengths": [40, 29],
    },
    "qwen3": {
        "type": torch.bfloat16,
        "config": {
            "architectures": ["Qwen3ForCausalLM"],
            "model_type": "qwen3",
            "attention_bias": False,
            "hidden_size": 64,
            "head_dim": 24,
            "intermediate_size": 116,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "hidden_act": "silu",
            "vocab_size": 230,
            "max_position_embeddings": 512,
            "layer_types": ["full_attention", "full_attention"],
            "rms_norm_eps": 1e-6,
            "bos_token_id": None,
            "eos_token_id": 2,
            "rope_parameters": {"rope_theta": 1000000.0, "rope_type": "default"},
            "sliding_window": None,
            "use_sliding_window": False,
            "tie_word_embeddings": True,
            "dtype": "bfloat16",
        },
        "lengths": [40, 33],
    },
    "mistral": {
        "type": torch.float16,
        "config": {
            "architectures": ["MistralForCausalLM"],
            "model_type": "mistral",
            "hidden_size": 64,
            "intermediate_size": 84,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "head_dim": 32,
            "hidden_act": "silu",
            "vocab_size": 150,
            "max_position_embeddings": 8192,
            "rms_norm_eps": 1e-5,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "rope_theta": 1000000.0,
            "sliding_window": None,
            "tie_word_embeddings": False,
            "torch_dtype": "float16",
        },
        "lengths": [40, 21],
    },
    # as published: no tie_word_embeddings, which is true where it is absent; every second layer here without positions
    "smollm3": {
        "type": torch.bfloat16,
        "tied": True,
        "config": {
            "architectures": ["SmolLM3ForCausalLM"],
            "model_type": "smollm3",
            "attention_bias": False,
            "hidden_size": 64,
            "intermediate_size": 132,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "hidden_act": "silu",
            "vocab_size": 190,
            "max_position_embeddings": 512,
            "max_window_layers": 28,
            "mlp_bias": False,
            "no_rope_layer_interval": 2,
            "no_rope_layers": [1, 0, 1],
            "rms_norm_eps": 1e-6,
            "bos_token_id": 180,
            "eos_token_id": 181,
            "pad_token_id": 182,
            "pretraining_tp": 2,
            "rope_scaling": None,
            "rope_theta": 5000000.0,
            "sliding_window": None,
            "use_sliding_window": False,
            "torch_dtype": "bfloat16",
        },
        "lengths": [40, 31],
    },
    "olmo2": {
        "type": torch.bfloat16,
        "config": {
            "architectures": ["Olmo2ForCausalLM"],
            "model_type": "olmo2",
            "attention_bias": False,
            "hidden_size": 72,
            "intermediate_size": 120,
            "num_hidden_layers": 2,
            "num_attention_heads": 6,
            "num_key_value_heads": 3,
            "hidden_act": "silu",
            "vocab_size": 170,
            "max_position_embeddings": 512,
            "rms_norm_eps": 1e-6,
            "eos_token_id": 160,
            "pad_token_id": 161,
            "rope_scaling": None,
            "rope_theta": 500000,
            "tie_word_embeddings": False,
            "torch_dtype": "bfloat16",
        },
        "lengths": [40, 25],
    },
    "exaone4": {
        "type": torch.float32,
        "config": {
            "architectures": ["Exaone4ForCausalLM"],
            "model_type": "exaone4",
            "head_dim": 24,
            "hidden_size": 64,
            "intermediate_size": 100,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "hidden_act": "silu",
            "layer_types": ["full_attention", "full_attention"],
            "vocab_size": 140,
            "max_position_embeddings": 4096,
            "rms_norm_eps": 1e-5,
            "bos_token_id": 1,
            "eos_token_id": 139,
            "rope_scaling": LLAMA3,
            "rope_theta": 1000000,
            "sliding_window": None,
            "sliding_window_pattern": None,
            "tie_word_embeddings": True,
            "torch_dtype": "float32",
        },
        "lengths": [40, 600],
    },
    "mistral_window": {
        "type": torch.float32,
        "config": {
            "architectures": ["MistralForCausalLM"],
            "model_type": "mistral",
            "hidden_size": 48,
            "intermediate_size": 68,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "hidden_act": "silu",
            "vocab_size": 120,
            "max_position_embeddings": 1024,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0,
            "sliding_window": 37,
            "tie_word_embeddings": False,
            "torch_dtype": "float32",
        },
        "lengths": [40, 900],
    },
    "exaone4_window": {
        "type": torch.bfloat16,
        "config": {
            "architectures": ["Exaone4ForCausalLM"],
            "model_type": "exaone4",
            "head_dim": 16,
            "hidden_size": 48,
            "intermediate_size": 80,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "hidden_act": "silu",
            "vocab_size": 110,
            "max_position_embeddings": 1024,
            "rms_norm_eps": 1e-5,
            "bos_token_id": 1,
            "eos_token_id": 109,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
            "sliding_window": 20,
            "sliding_window_pattern": "LLLG",
            "layer_types": ["sliding_attention"] * 3 + ["full_attention"],
            "tie_word_embeddings": False,
            "dtype": "bfloat16",
        },
        "lengths": [40, 800],
    },
    "granite": {
        "type": torch.bfloat16,
        "config": {
            "architectures": ["GraniteForCausalLM"],
            "model_type": "granite",
            "attention_bias": False,
            "attention_multiplier": 0.0625,
            "embedding_multiplier": 12.0,
            "logits_scaling": 2.0,
            "residual_multiplier": 0.22,
            "hidden_size": 64,
            "intermediate_size": 100,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "hidden_act": "silu",
            "mlp_bias": False,
            "vocab_size": 150,
            "max_position_embeddings": 512,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0,
            "tie_word_embeddings": True,
            "torch_dtype": "bfloat16",
        },
        "lengths": [40, 27],
    },
    "gemma": {
        "type": torch.bfloat16,
        "tied": True,
        "norm": 0,
        "config": {
            "architectures": ["GemmaForCausalLM"],
            "model_type": "gemma",
            "attention_bias": False,
            "head_dim": 24,
            "hidden_act": "gelu",
            "hidden_size": 64,
            "intermediate_size": 140,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 1,
            "vocab_size": 130,
            "max_position_embeddings": 512,
            "rms_norm_eps": 1e-6,
            "rope_theta": 10000.0,
            "bos_token_id": 2,
            "eos_token_id": 1,
            "torch_dtype": "bfloat16",
        },
        "lengths": [40, 30],
    },
    "gemma2": {
        "type": torch.bfloat16,
        "tied": True,
        "norm": 0,
        "config": {
            "architectures": ["Gemma2ForCausalLM"],
            "model_type": "gemma2",
            "attention_bias": False,
            "attn_logit_softcapping": 20.0,
            "final_logit_softcapping": 9.0,
            "query_pre_attn_scalar": 40,
            "head_dim": 32,
            "hidden_act": "gelu_pytorch_tanh",
            "hidden_activation": "gelu_pytorch_tanh",
            "hidden_size": 64,
            "intermediate_size": 108,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "vocab_size": 140,
            "max_position_embeddings": 1024,
            "rms_norm_eps": 1e-6,
            "rope_theta": 10000.0,
            "sliding_window": 33,
            "bos_token_id": 2,
            "eos_token_id": 1,
            "torch_dtype": "bfloat16",
        },
        "lengths": [40, 300],
    },
    "gemma3": {
        "type": torch.bfloat16,
        "tied": True,
        "norm": 0,
        "config": {
            "architectures": ["Gemma3ForCausalLM"],
            "model_type": "gemma3_text",
            "attention_bias": False,
            "attn_logit_softcapping": None,
            "final_logit_softcapping": None,
            "query_pre_attn_scalar": 24,
            "head_dim": 24,
            "hidden_activation": "gelu_pytorch_tanh",
            "hidden_size": 64,
            "intermediate_size": 100,
            "num_hidden_layers": 7,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "vocab_size": 145,
            "max_position_embeddings": 2048,
            "rms_norm_eps": 1e-6,
            "rope_theta": 1000000,
            "rope_local_base_freq": 10000,
            "rope_scaling": {"rope_type": "linear", "factor": 8.0},
            "sliding_window": 26,
            "sliding_window_pattern": 6,
            "bos_token_id": 2,
            "eos_token_id": 1,
            "torch_dtype": "bfloat16",
        },
        "lengths": [40, 300],
    },
    "cohere": {
        "type": torch.bfloat16,
        "tied": True,
        "config": {
            "architectures": ["CohereForCausalLM"],
            "model_type": "cohere",
            "attention_bias": False,
            "hidden_act": "silu",
            "hidden_size": 64,
            "intermediate_size": 112,
            "layer_norm_eps": 1e-5,
            "logit_scale": 0.25,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "vocab_size": 135,
            "max_position_embeddings": 512,
            "rope_theta": 8000000.0,
            "use_qk_norm": False,
            "bos_token_id": 5,
            "eos_token_id": 6,
            "torch_dtype": "bfloat16",
        },
        "lengths": [40, 29],
    },
    "cohere2": {
        "type": torch.bfloat16,
        "tied": True,
        "config": {
            "architectures": ["Cohere2ForCausalLM"],
            "model_type": "cohere2",
            "attention_bias": False,
            "head_dim": 20,
            "hidden_act": "silu",
            "hidden_size": 64,
            "intermediate_size": 96,
            "layer_norm_eps": 1e-5,
            "logit_scale": 0.25,
            "num_hidden_layers": 5,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "vocab_size": 125,
            "max_position_embeddings": 1024,
            "rope_theta": 50000,
            "sliding_window": 24,
            "sliding_window_pattern": 4,
            "bos_token_id": 5,
            "eos_token_id": 6,
            "torch_dtype": "bfloat16",
        },
        "lengths": [40, 300],
    },
    "starcoder2": {
        "type": torch.bfloat16,
        "tied": True,
        "config": {
            "architectures": ["Starcoder2ForCausalLM"],
            "model_type": "starcoder2",
            "attention_dropout": 0.1,
            "hidden_act": "gelu_pytorch_tanh",
            "hidden_size": 60,
            "intermediate_size": 132,
            "mlp_type": "default",
            "norm_epsilon": 1e-5,
            "norm_type": "layer_norm",
            "num_hidden_layers": 2,
            "num_attention_heads": 6,
            "num_key_value_heads": 2,
            "vocab_size": 155,
            "max_position_embeddings": 1024,
            "rope_theta": 100000,
            "sliding_window": 30,
            "use_bias": True,
            "torch_dtype": "bfloat16",
        },
        "lengths": [40, 300],
    },
    "stablelm": {
        "type": torch.bfloat16,
        "config": {
            "architectures": ["StableLmForCausalLM"],
            "model_type": "stablelm",
            "hidden_act": "silu",
            "hidden_size": 64,
            "intermediate_size": 88,
            "layer_norm_eps": 1e-5,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "partial_rotary_factor": 0.25,
            "qk_layernorm": False,
            "use_parallel_residual": False,
            "use_qkv_bias": True,
            "vocab_size": 115,
            "max_position_embeddings": 512,
            "rope_theta": 10000,
            "tie_word_embeddings": False,
            "torch_dtype": "bfloat16",
        },
        "lengths": [40, 28],
    },
    "ministral": {
        "type": torch.bfloat16,
        "config": {
            "architectures": ["MinistralForCausalLM"],
            "model_type": "ministral",
            "hidden_size": 48,
            "head_dim": 16,
            "intermediate_size": 68,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "hidden_act": "silu",
            "vocab_size": 120,
            "max_position_embeddings": 1024,
            "rms_norm_eps": 1e-5,
            "rope_parameters": {"rope_theta": 100000.0, "rope_type": "default"},
            "sliding_window": 29,
            "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
            "tie_word_embeddings": False,
            "dtype": "bfloat16",
        },
        "lengths": [40, 300],
    },
    "ministral3": {
        "type": torch.bfloat16,
        "config": {
            "architectures": ["Ministral3ForCausalLM"],
            "model_type": "ministral3",
            "hidden_size": 48,
            "head_dim": 16,
            "intermediate_size": 68,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "hidden_act": "silu",
            "vocab_size": 120,
            "max_position_embeddings": 1024,
            "rms_norm_eps": 1e-5,
            "rope_parameters": {
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "factor": 16.0,
                "llama_4_scaling_beta": 0.1,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
                "original_max_position_embeddings": 64,
                "rope_theta": 10000.0,
                "rope_type": "yarn",
                "type": "yarn",
            },
            "sliding_window": None,
            "tie_word_embeddings": True,
            "dtype": "bfloat16",
        },
        "lengths": [40, 500],
    },
    "llama_yarn": {
        "type": torch.bfloat16,
        "config": {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_size": 48,
            "intermediate_size": 68,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "hidden_act": "silu",
            "vocab_size": 120,
            "max_position_embeddings": 1024,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0,
            "rope_scaling": {"type": "yarn", "factor": 8.0, "original_max_position_embeddings": 128},
            "tie_word_embeddings": True,
            "torch_dtype": "bfloat16",
        },
        "lengths": [40, 300],
    },
}


def fill(name, shape, generator, offset):
    noise = torch.randn(shape, generator=generator)
    if name.endswith(".bias"):
        return 0.5 * noise
    if "norm" in name:
        return offset + 0.25 * noise
    if "embed_tokens" in name:
        return 0.35 * noise
    gain = 2.0 if "q_proj" in name or "k_proj" in name or "lm_head" in name else 1.0
    return noise * gain / shape[-1] ** 0.5


def kept(length):
    return list(range(length)) if length <= 64 else sorted({*range(0, length, 37), length - 1})


def make(directory, family, what):
    generator = torch.Generator().manual_seed(SEED)
    os.makedirs(directory, exist_ok=True)
    with open(f"{directory}/config.json", "w") as file:
        json.dump(what["config"], file, indent=2)
        file.write("\n")
    config = transformers.AutoConfig.from_pretrained(directory)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    model = model.to(torch.float32).eval()
    stored = {}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            value = fill(name, parameter.shape, generator, what.get("norm", 1)).to(what["type"])
            stored[name] = value
            parameter.copy_(value.to(torch.float32))
    assert ("lm_head.weight" in stored) != what["config"].get("tie_word_embeddings", what.get("tied"))
    made = (f"torch {torch.__version__}, transformers {transformers.__version__}, safetensors "
            f"{safetensors.__version__}; seed {SEED}; {COMMAND}")
    save_file(stored, f"{directory}/model.safetensors", {"format": "pt", "made": made})
    out = {}
    for i, length in enumerate(what["lengths"]):
        tokens = torch.randint(config.vocab_size, (1, length), generator=generator)
        with torch.no_grad():
            logits = model(tokens).logits[0]
        positions = kept(length)
        out[f"tokens.{i}"] = tokens[0].to(torch.int32)
        out[f"positions.{i}"] = torch.tensor(positions, dtype=torch.int32)
        out[f"logits.{i}"] = logits[positions].to(torch.float32).contiguous()
    save_file(out, f"{directory}/logits.safetensors", {"made": made})
    size = sum(os.path.getsize(f"{directory}/{f}") for f in os.listdir(directory))
    spread = torch.cat([out[k] for k in out if k.startswith("logits")]).std().item()
    print(f"{family}: {size} bytes, logits with a standard deviation of {spread:.2f}")


def main():
    at = sys.argv[1] if len(sys.argv) > 1 else "tests/golden/models"
    torch.set_num_threads(1)
    for family in sys.argv[2:] or FAMILIES:
        make(f"{at}/{family}", family, FAMILIES[family])


if __name__ == "__main__":
    main()
