#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/golden/train/FAMILY, tiny models, and FAMILY_gradients.safetensors: a micro-batch in documents, its loss and every
parameter's gradient, from transformers in float64. Documents see only themselves, as in packed training.

A fused weight's gradient is written part by part, as Nibble trains it.

usage: make_step_golden.py OUT_FOLDER [FAMILY...]"""
import json
import os
import sys

import torch
import transformers
from safetensors.torch import save_file

SEED = 1
COMMON = dict(vocab_size=37, hidden_size=24, intermediate_size=40, num_hidden_layers=2, num_attention_heads=4,
              num_key_value_heads=2, max_position_embeddings=64, rms_norm_eps=1e-5, rope_theta=10000.0,
              attn_implementation="eager")
# lengths: [rows of a micro-batch][documents]; a row has 20 tokens
ROWS = [[20], [1, 7, 12]]


# Class, and config members besides COMMON. The embedding row of a pad_token_id would get no gradient.
FAMILIES = {
    "llama": ("Llama", dict(tie_word_embeddings=True)),
    "qwen2": ("Qwen2", dict(tie_word_embeddings=False)),
    "qwen3": ("Qwen3", dict(tie_word_embeddings=True, head_dim=10)),
    "mistral": ("Mistral", dict(tie_word_embeddings=False, sliding_window=5)),
    "smollm3": ("SmolLM3", dict(tie_word_embeddings=True, no_rope_layers=[1, 0], pad_token_id=None)),
    "olmo2": ("Olmo2", dict(tie_word_embeddings=False, pad_token_id=None)),
    "exaone4": ("Exaone4", dict(tie_word_embeddings=False, sliding_window=None,
                                layer_types=["full_attention", "full_attention"])),
    "granite": ("Granite", dict(tie_word_embeddings=True, embedding_multiplier=6.0, attention_multiplier=0.3,
                                residual_multiplier=0.4, logits_scaling=2.0)),
    "gemma": ("Gemma", dict(tie_word_embeddings=True, head_dim=8, hidden_act="gelu_pytorch_tanh", pad_token_id=None)),
    "gemma2": ("Gemma2", dict(tie_word_embeddings=True, head_dim=8, hidden_activation="gelu_pytorch_tanh",
                              query_pre_attn_scalar=12, sliding_window=6,
                              attn_logit_softcapping=2.0, final_logit_softcapping=3.0, pad_token_id=None,
                              layer_types=["sliding_attention", "full_attention"])),
    "gemma3": ("Gemma3Text", dict(tie_word_embeddings=True, head_dim=8, hidden_activation="gelu_pytorch_tanh",
                                  query_pre_attn_scalar=8, sliding_window=4,
                                  pad_token_id=None, layer_types=["sliding_attention", "full_attention"])),
    "cohere": ("Cohere", dict(tie_word_embeddings=True, logit_scale=0.5, pad_token_id=None, layer_norm_eps=1e-5)),
    "cohere_norms": ("Cohere", dict(tie_word_embeddings=True, logit_scale=0.5, pad_token_id=None, layer_norm_eps=1e-5,
                                    use_qk_norm=True)),
    "cohere2": ("Cohere2", dict(tie_word_embeddings=True, logit_scale=0.5, sliding_window=6, pad_token_id=None,
                                layer_norm_eps=1e-5, layer_types=["sliding_attention", "full_attention"])),
    "starcoder2": ("Starcoder2", dict(tie_word_embeddings=True, sliding_window=7, norm_epsilon=1e-5,
                                      hidden_act="gelu_pytorch_tanh")),
    "ministral": ("Ministral", dict(tie_word_embeddings=False, head_dim=6, sliding_window=6,
                                    layer_types=["sliding_attention", "full_attention"])),
    "ministral3": ("Ministral3", dict(tie_word_embeddings=True, head_dim=8, rope_parameters={
        "rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "original_max_position_embeddings": 5,
        "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 0.5, "llama_4_scaling_beta": 0.2})),
    "phi3": ("Phi3", dict(tie_word_embeddings=False, sliding_window=6, pad_token_id=None)),
    "glm": ("Glm", dict(tie_word_embeddings=False, head_dim=8, pad_token_id=None, attention_bias=True,
                        partial_rotary_factor=0.5)),
    "glm4": ("Glm4", dict(tie_word_embeddings=True, head_dim=8, pad_token_id=None, attention_bias=False,
                          partial_rotary_factor=0.5)),
    "stablelm": ("StableLm", dict(tie_word_embeddings=False, use_qkv_bias=True, layer_norm_eps=1e-5,
                                  partial_rotary_factor=0.7)),
    "stablelm_norms": ("StableLm", dict(tie_word_embeddings=False, layer_norm_eps=1e-5, partial_rotary_factor=0.7,
                                        qk_layernorm=True, use_parallel_residual=True)),
}


def build(arch):
    name, own = FAMILIES[arch]
    config = getattr(transformers, f"{name}Config")(**dict(COMMON, **own))
    return getattr(transformers, name.removesuffix("Text") + "ForCausalLM")(config)


def parts(name, value, config):
    """Splits rows of q, k and v, or of gate and up, into named parts. For norms per head see join_heads."""
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    kv = config.num_key_value_heads * head
    if "qkv_proj" in name:
        rows = value.split([config.num_attention_heads * head, kv, kv])
        return [(name.replace("qkv_proj", f"{part}_proj"), r) for part, r in zip("qkv", rows)]
    if "gate_up_proj" in name:
        return [(name.replace("gate_up_proj", f"{part}_proj"), r) for part, r in zip(("gate", "up"), value.chunk(2))]
    return [(name, value)]


def join_heads(tensors):
    """Joins StableLM's norms per head, which are separate tensors, as Nibble trains them as one."""
    for name in [n for n in tensors if n.endswith("_layernorm.norms.0.weight")]:
        apart = name.removesuffix("0.weight")
        heads = [tensors.pop(f"{apart}{h}.weight") for h in range(sum(n.startswith(apart) for n in tensors))]
        tensors[name.replace("_layernorm.norms.0", "_norm")] = torch.stack(heads)


def make(arch, folder):
    os.makedirs(f"{folder}/{arch}", exist_ok=True)
    torch.manual_seed(SEED)
    model = build(arch).double()
    with torch.no_grad():
        for name, p in model.named_parameters():
            scale = 1.0 if "norm" in name and name.endswith("weight") and not arch.startswith("gemma") else 0.0
            p.copy_((scale + 0.15 * torch.randn(p.shape)).float().double())
    rows = torch.randint(0, COMMON["vocab_size"], (len(ROWS), 21))
    count = rows.shape[0] * 20
    total = 0.0
    for row, lengths in zip(rows, ROWS):
        at = 0
        for length in lengths:
            ids, targets = row[at:at + length], row[at + 1:at + length + 1]
            logits = model(ids[None]).logits[0]
            total = total + torch.nn.functional.cross_entropy(logits, targets, reduction="sum")
            at += length
    (total / count).backward()
    weights, tensors = {}, {"rows": rows.to(torch.int32)}
    tensors["starts"] = torch.tensor([r * 20 + sum(l[:i]) for r, l in enumerate(ROWS) for i in range(len(l))],
                                     dtype=torch.int32)
    tensors["loss"] = total.detach().reshape(1)
    for name, p in model.named_parameters():
        weights[name] = p.detach().float().contiguous()
        for part, grad in parts(name, p.grad.float(), model.config):
            tensors[part] = grad.contiguous()
    join_heads(tensors)
    about = {"tool": f"transformers {transformers.__version__}, torch {torch.__version__}", "seed": str(SEED),
             "command": "tools/golden/make_step_golden.py tests/golden/train"}
    save_file(weights, f"{folder}/{arch}/model.safetensors", about)
    save_file(tensors, f"{folder}/{arch}_gradients.safetensors", about)
    with open(f"{folder}/{arch}/config.json", "w") as f:
        config = {"model_type": model.config.model_type, "architectures": [type(model).__name__], "torch_dtype": "float32",
                  "hidden_act": "silu", "tie_word_embeddings": FAMILIES[arch][1]["tie_word_embeddings"],
                  **{k: v for k, v in COMMON.items() if k != "attn_implementation"},
                  **{k: v for k, v in FAMILIES[arch][1].items() if k != "tie_word_embeddings"}}
        json.dump(config, f, indent=1)
        f.write("\n")


if __name__ == "__main__":
    for arch in sys.argv[2:] or FAMILIES:
        make(arch, sys.argv[1])
