#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes GGUF files of the small models with latent attention, from make_model_golden.py's directories.

Usage: python3 tools/golden/make_latent_gguf.py [DIRECTORY]       (tests/golden)
Needs: gguf, numpy, safetensors, torch.

DIRECTORY/gguf/deepseek_v3.gguf      bf16; attention in its absorbed form: attn_k_b, attn_v_b
DIRECTORY/gguf/deepseek_v2.gguf      f32; as older converters wrote it: attn_kv_b
The values are those of DIRECTORY/models/NAME, so their logits are, too. No vocabulary.
"""
import json
import os
import sys

import gguf
import numpy as np
import torch
from safetensors.torch import load_file

T = gguf.GGMLQuantizationType
MAP = gguf.get_tensor_name_map(gguf.MODEL_ARCH.DEEPSEEK2, 8)


def add_keys(writer, c, absorbed):
    lora, rope, nope, value = c["kv_lora_rank"], c["qk_rope_head_dim"], c["qk_nope_head_dim"], c["v_head_dim"]
    heads = c["num_attention_heads"]
    writer.add_block_count(c["num_hidden_layers"])
    writer.add_context_length(c["max_position_embeddings"])
    writer.add_embedding_length(c["hidden_size"])
    writer.add_feed_forward_length(c["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(1 if absorbed else heads)
    writer.add_key_length(lora + rope if absorbed else nope + rope)
    writer.add_value_length(lora if absorbed else value)
    if absorbed:
        writer.add_key_length_mla(nope + rope)
        writer.add_value_length_mla(value)
    writer.add_layer_norm_rms_eps(c["rms_norm_eps"])
    writer.add_rope_freq_base(float(c["rope_theta"]))
    writer.add_rope_dimension_count(rope)
    writer.add_vocab_size(c["vocab_size"])
    writer.add_kv_lora_rank(lora)
    if c["q_lora_rank"]:
        writer.add_q_lora_rank(c["q_lora_rank"])
    writer.add_leading_dense_block_count(c["first_k_dense_replace"])
    writer.add_expert_count(c["n_routed_experts"])
    writer.add_expert_used_count(c["num_experts_per_tok"])
    writer.add_expert_shared_count(c["n_shared_experts"])
    writer.add_expert_feed_forward_length(c["moe_intermediate_size"])
    writer.add_expert_weights_scale(c["routed_scaling_factor"])
    if c["scoring_func"] == "sigmoid":
        writer.add_expert_weights_norm(c["norm_topk_prob"])
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
        writer.add_expert_group_count(c["n_group"])
        writer.add_expert_group_used_count(c["topk_group"])
    yarn = c["rope_scaling"]
    writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    writer.add_rope_scaling_factor(float(yarn["factor"]))
    writer.add_rope_scaling_orig_ctx_len(yarn["original_max_position_embeddings"])
    writer.add_rope_scaling_yarn_log_mul(0.1 * yarn["mscale_all_dim"])


def tensors(state, c, absorbed):
    """(Hugging Face's name, value), with experts stacked, and halves of kv_b_proj if absorbed."""
    stacks = {}
    for name, value in state.items():
        layer, _, rest = name.partition(".mlp.experts.")
        if rest:
            number, part = rest.split(".")[:2]
            stacks.setdefault(f"{layer}.mlp.experts.{part}", {})[int(number)] = value
        elif absorbed and "kv_b_proj" in name:
            heads = value.view(c["num_attention_heads"], -1, c["kv_lora_rank"])
            keys, values = heads.split([c["qk_nope_head_dim"], c["v_head_dim"]], dim=1)
            yield name.replace("kv_b", "k_b"), keys.transpose(1, 2).contiguous()
            yield name.replace("kv_b", "v_b"), values.contiguous()
        else:
            yield name, value
    for name, parts in stacks.items():
        yield f"{name}.weight", torch.stack([parts[i] for i in range(len(parts))])


def write(root, name, kind, absorbed):
    source = os.path.join(root, "models", name)
    with open(os.path.join(source, "config.json")) as file:
        c = json.load(file)
    writer = gguf.GGUFWriter(os.path.join(root, "gguf", f"{name}.gguf"), "deepseek2")
    writer.add_name(f"{name} of tests/golden/models")
    writer.add_quantization_version(2)
    add_keys(writer, c, absorbed)
    for key, value in tensors(load_file(os.path.join(source, "model.safetensors")), c, absorbed):
        base, _, end = key.rpartition(".")
        if end not in ("weight", "bias"):
            base, end = key, "bias"  # e_score_correction_bias
        out = MAP.get_name(base) or MAP.get_name(base.replace("mlp.gate.e_score_correction_bias", "mlp.gate.e_score_correction"))
        assert out, key
        plain = value.dim() == 1 or "norm" in key
        data = value.to(torch.float32).numpy()
        if plain or kind == T.F32:
            writer.add_tensor(f"{out}.{end}", np.ascontiguousarray(data, np.float32))
        else:
            writer.add_tensor(f"{out}.{end}", gguf.quants.quantize(np.ascontiguousarray(data), kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main():
    root = sys.argv[1] if len(sys.argv) > 1 else "tests/golden"
    write(root, "deepseek_v3", T.BF16, True)
    write(root, "deepseek_v2", T.F32, False)


main()
