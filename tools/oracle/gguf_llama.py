#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs GGUF models through llama.cpp and nibble: float types give the same logits, quantized ones the same loss within
0.002 nats. Their logits differ: rounding activations to int8 amplifies differences in the last bit from layer to layer
until the codes of two programs have little in common (tests/golden/dots_ggml.txt covers single products). Types with
blocks of 32 are made from TinyStories-656K and evaluated on its stories; types with blocks of 256 from a random model,
evaluated on the same ids.

Usage: python3 tools/oracle/gguf_llama.py LOGITS_OF DATA       (DATA: $NIBBLE_TEST_DATA)
Needs: gguf, llama-cpp-python (or its source with a built libllama: LLAMA_CPP_LIB_PATH), tokenizers, torch, safetensors.
Prints a line per file: the losses of llama.cpp, of nibble as stored, of nibble with --recipe weight-only, and the root
mean square of the logits' differences over that of the logits for both; then `N ok, N failed`.
"""
import ctypes
import json
import os
import shutil
import subprocess
import sys
import tempfile

import gguf
import llama_cpp
import numpy as np
from gguf import GGMLQuantizationType as T
from tokenizers import Tokenizer

from gguf_models import write_gguf

SEED = 20261120
WINDOW, WINDOWS = 256, 6
SMALL = [T.F32, T.Q8_0, T.Q4_0, T.Q4_1, T.Q5_0, T.Q5_1]
LARGE = ["Q2_K", "Q3_K_S", "Q4_K_S", "Q5_K_S", "Q6_K", "Q4_K_M"]
CLOSE = 0.002  # nats per token


def stories(data):
    tokenizer = Tokenizer.from_file(f"{data}/weights/TinyStories-656K/hf-f32/tokenizer.json")
    ids = []
    with open(f"{data}/text/tinystories_40.jsonl") as f:
        for line in f:
            ids += tokenizer.encode(json.loads(line)["text"]).ids
    return [ids[i * WINDOW:(i + 1) * WINDOW] for i in range(WINDOWS)]


def random_model(path):
    """Llama, 2 layers of 256, with f32 weights."""
    rng = np.random.default_rng(SEED)
    width, ffn, vocab = 256, 512, 512
    w = gguf.GGUFWriter(path, "llama")
    w.add_context_length(512)
    w.add_embedding_length(width)
    w.add_block_count(2)
    w.add_feed_forward_length(ffn)
    w.add_head_count(4)
    w.add_head_count_kv(2)
    w.add_layer_norm_rms_eps(1e-5)
    w.add_rope_freq_base(10000.0)
    w.add_vocab_size(vocab)
    w.add_tokenizer_model("no_vocab")
    shapes = {"attn_q": (256, width), "attn_k": (128, width), "attn_v": (128, width), "attn_output": (width, 256),
              "ffn_gate": (ffn, width), "ffn_up": (ffn, width), "ffn_down": (width, ffn)}
    normal = lambda shape, scale: (rng.standard_normal(shape) * scale).astype(np.float32)
    w.add_tensor("token_embd.weight", normal((vocab, width), 1))
    w.add_tensor("output.weight", normal((vocab, width), 0.1))
    w.add_tensor("output_norm.weight", np.ones(width, np.float32))
    for layer in range(2):
        for name, shape in shapes.items():
            w.add_tensor(f"blk.{layer}.{name}.weight", normal(shape, shape[1] ** -0.5))
        for name in ("attn_norm", "ffn_norm"):
            w.add_tensor(f"blk.{layer}.{name}.weight", np.ones(width, np.float32))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return [[int(i) for i in rng.integers(0, vocab, WINDOW)] for _ in range(WINDOWS)]


def quantized(source, path, name):
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{name}")
    if llama_cpp.llama_model_quantize(source.encode(), path.encode(), ctypes.byref(params)):
        sys.exit(f"{path}: llama.cpp does not quantize it")


def of_llama(path, windows):
    params = llama_cpp.llama_model_default_params()
    model = llama_cpp.llama_model_load_from_file(path.encode(), params)
    if not model:
        sys.exit(f"{path}: llama.cpp does not load it")
    c = llama_cpp.llama_context_default_params()
    c.n_ctx = c.n_batch = c.n_ubatch = WINDOW
    c.type_k = c.type_v = 0  # f32
    c.flash_attn_type = 0
    context = llama_cpp.llama_init_from_model(model, c)
    vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
    rows = []
    for ids in windows:
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context), True)
        batch = llama_cpp.llama_batch_init(len(ids), 0, 1)
        batch.n_tokens = len(ids)
        for i, token in enumerate(ids):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, i, 1, True
            batch.seq_id[i][0] = 0
        if llama_cpp.llama_decode(context, batch):
            sys.exit(f"{path}: llama.cpp does not run it")
        for i in range(len(ids)):
            rows.append(np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(context, i), (vocab,)).copy())
        llama_cpp.llama_batch_free(batch)
    llama_cpp.llama_free(context)
    llama_cpp.llama_model_free(model)
    return np.stack(rows)


def of_nibble(logits_of, path, how, windows):
    rows = []
    for ids in windows:
        out = subprocess.run([logits_of, path, how, *map(str, ids)], check=True, stdout=subprocess.PIPE).stdout
        rows.append(np.frombuffer(out, "<f4").reshape(len(ids), -1))
    return np.concatenate(rows)


def loss(logits, windows):
    x = logits.astype(np.float64).reshape(len(windows), WINDOW, -1)
    x = x - x.max(axis=-1, keepdims=True)
    x -= np.log(np.exp(x).sum(axis=-1, keepdims=True))
    return -np.mean([x[i, np.arange(WINDOW - 1), ids[1:]] for i, ids in enumerate(windows)])


def compare(logits_of, path, name, windows):
    theirs = of_llama(path, windows)
    as_stored = of_nibble(logits_of, path, "f32", windows)
    floats = of_nibble(logits_of, path, "f32:weight-only", windows)
    size = np.sqrt(np.mean(theirs.astype(np.float64) ** 2))
    off = [np.sqrt(np.mean((x.astype(np.float64) - theirs) ** 2)) / size for x in (as_stored, floats)]
    losses = [loss(x, windows) for x in (theirs, as_stored, floats)]
    ok = off[0] < 1e-5 if name == "F32" else abs(losses[1] - losses[0]) < CLOSE
    print(f"{'ok  ' if ok else 'FAIL'} {name:7} llama.cpp {losses[0]:.6f}  as stored {losses[1]:.6f}  weight-only "
          f"{losses[2]:.6f}  logits off by {off[0]:.2e} and {off[1]:.2e}", flush=True)
    return ok


def main():
    logits_of, data = sys.argv[1], sys.argv[2]
    quiet = llama_cpp.llama_log_callback(lambda level, text, ctx: None)
    llama_cpp.llama_log_set(quiet, None)
    llama_cpp.llama_backend_init()
    work = tempfile.mkdtemp()
    results = []
    windows = stories(data)
    for kind in SMALL:
        path = os.path.join(work, f"{kind.name}.gguf")
        write_gguf(path, f"{data}/weights/TinyStories-656K/hf-f32", kind)
        results.append(compare(logits_of, path, kind.name, windows))
    source = os.path.join(work, "random.gguf")
    windows = random_model(source)
    for name in LARGE:
        path = os.path.join(work, f"{name}.gguf")
        quantized(source, path, name)
        results.append(compare(logits_of, path, name, windows))
    shutil.rmtree(work)
    print(f"{sum(results)} ok, {len(results) - sum(results)} failed")
    sys.exit(not all(results))


main()
