#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Evaluates TinyStories-656K as GGUF in every type that PyPI's gguf writes: float types give the loss of the
safetensors file; quantized types, with float activations, give the loss of their dequantized weights. The loss
with ggml's quantized activations, Nibble's default, is printed beside it.

Usage: python3 tools/oracle/gguf_models.py NIBBLE DATA       (DATA: $NIBBLE_TEST_DATA)
Needs: gguf, torch, safetensors. Prints a line per file and `N ok, N failed`.
"""
import json
import os
import shutil
import subprocess
import sys
import tempfile

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as T
from gguf import quants
from safetensors.torch import load_file, save_file

FLOATS = [T.F32, T.F16, T.BF16]
QUANTIZED = [T.Q8_0, T.Q4_0, T.Q4_1, T.Q5_0, T.Q5_1, T.MXFP4]
CLOSE = 1e-5  # nats per token
NAMES = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
         "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
         "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}
WHOLE = {"model.embed_tokens": "token_embd", "lm_head": "token_embd", "model.norm": "output_norm"}


def gguf_name(name):
    module = name[: -len(".weight")]
    if module in WHOLE:
        return f"{WHOLE[module]}.weight"
    _, _, layer, rest = module.split(".", 3)
    return f"blk.{layer}.{NAMES[rest]}.weight"


def pair_rows(w, heads):
    return w.reshape(heads, 2, w.shape[0] // heads // 2, -1).swapaxes(1, 2).reshape(w.shape)


def unpair_rows(w, heads):
    return w.reshape(heads, w.shape[0] // heads // 2, 2, -1).swapaxes(1, 2).reshape(w.shape)


def write_gguf(path, source, kind):
    """Writes the file and returns the state dict of its dequantized weights."""
    with open(os.path.join(source, "config.json")) as f:
        c = json.load(f)
    w = gguf.GGUFWriter(path, "llama")
    w.add_context_length(c["max_position_embeddings"])
    w.add_embedding_length(c["hidden_size"])
    w.add_block_count(c["num_hidden_layers"])
    w.add_feed_forward_length(c["intermediate_size"])
    w.add_head_count(c["num_attention_heads"])
    w.add_head_count_kv(c["num_key_value_heads"])
    w.add_layer_norm_rms_eps(c["rms_norm_eps"])
    w.add_rope_freq_base(c["rope_theta"])
    w.add_vocab_size(c["vocab_size"])
    w.add_tokenizer_model("no_vocab")
    meant = {}
    for name, tensor in load_file(os.path.join(source, "model.safetensors")).items():
        values = tensor.float().numpy()
        if values.ndim == 1:
            w.add_tensor(gguf_name(name), values)
            meant[name] = torch.from_numpy(values)
            continue
        heads = {"q_proj": c["num_attention_heads"], "k_proj": c["num_key_value_heads"]}.get(name.split(".")[-2])
        stored = pair_rows(values, heads) if heads else values
        raw = quants.quantize(np.ascontiguousarray(stored), kind)
        w.add_tensor(gguf_name(name), raw, raw_dtype=kind)
        back = quants.dequantize(raw, kind)
        back = unpair_rows(back, heads) if heads else back
        meant["model.embed_tokens.weight" if name == "lm_head.weight" else name] = torch.from_numpy(
            np.ascontiguousarray(back, np.float32))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return meant


def write_directory(path, source, meant):
    os.makedirs(path, exist_ok=True)
    with open(os.path.join(source, "config.json")) as f:
        config = json.load(f)
    config.update(torch_dtype="float32", tie_word_embeddings=True)
    with open(os.path.join(path, "config.json"), "w") as f:
        json.dump(config, f)
    save_file(meant, os.path.join(path, "model.safetensors"))


def loss_of(nibble, model, data, *options):
    run = subprocess.run(
        [nibble, "eval", model, "--text", f"{data}/text/tinystories_40.jsonl", "--window", "256", "--dtype", "f32",
         "--tokenizer", f"{data}/weights/TinyStories-656K/hf-f32", "--json", "--quiet", *options],
        capture_output=True, text=True)
    if run.returncode:
        sys.exit(f"{model}: {run.stderr.strip()}")
    return json.loads(run.stdout)["loss"]


def main():
    nibble, data = sys.argv[1], sys.argv[2]
    source = f"{data}/weights/TinyStories-656K/hf-f32"
    want = loss_of(nibble, source, data)
    failed = 0
    work = tempfile.mkdtemp()
    for kind in FLOATS + QUANTIZED:
        path = os.path.join(work, f"{kind.name}.gguf")
        meant = write_gguf(path, source, kind)
        if kind in QUANTIZED:
            directory = os.path.join(work, kind.name)
            write_directory(directory, source, meant)
            want = loss_of(nibble, directory, data)
        got = loss_of(nibble, path, data, "--recipe", "weight-only")
        ok = abs(got - want) <= CLOSE
        failed += not ok
        print(f"{'ok  ' if ok else 'FAIL'} {kind.name:6} {got:.8f} {'dequantized' if kind in QUANTIZED else 'safetensors'} "
              f"{want:.8f} default {loss_of(nibble, path, data):.8f}")
    shutil.rmtree(work)
    print(f"{len(FLOATS + QUANTIZED) - failed} ok, {failed} failed")
    sys.exit(failed != 0)


if __name__ == "__main__":
    main()
