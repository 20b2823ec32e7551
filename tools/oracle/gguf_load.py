#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that PyPI's gguf and llama.cpp load the GGUF files of `nibble convert` and read the same values.

    gguf_load.py PROGRAM MODEL TEXT

MODEL is a Hugging Face directory with its tokenizer. It is converted unquantized, and after quantization (Q8_0, Q4_0, Q4_1).
  gguf        every tensor, dequantized by gguf-py, equals nibble's conversion of the same model to plain f32, except that
              GGUF's llama stores rows of q and k in pairs
  llama.cpp   the same ids for TEXT, and a loss on them within 0.02 nats of nibble's (its products have int8 activations,
              nibble's floats; for float files within 0.003); $LLAMA_CPP names the folder of llama-cpp-python's
              sources with its built libraries in vendor/llama.cpp/build/bin; skipped without it
Prints a line per file; exits 1 if anything differs.
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import gguf
import numpy
from gguf_names import gguf_name
from safetensors.numpy import load_file

FILES = [("as it is", None), ("Q8_0", "int8wo-g32+head"), ("Q4_0", "int4wo-sym+head"), ("Q4_1", "int4wo+head")]
WINDOW = 256


def run(*command):
    return subprocess.run([str(c) for c in command], capture_output=True, check=True, text=True).stdout


def check_values(file, floats, config):
    tensors = {t.name: t for t in gguf.GGUFReader(file).tensors}
    wanted = load_file(floats / "model.safetensors")
    for name, want in wanted.items():
        tensor = tensors.pop(gguf_name(name))
        got = gguf.quants.dequantize(tensor.data, tensor.tensor_type).reshape(want.shape)
        if config["model_type"] == "llama" and ("q_proj" in name or "k_proj" in name):
            heads = config["num_attention_heads" if "q_proj" in name else "num_key_value_heads"]
            got = got.reshape(heads, -1, 2, *got.shape[1:]).swapaxes(1, 2).reshape(want.shape)
        assert numpy.array_equal(got, want), f"{name}: gguf-py reads other values"
    assert set(tensors) <= {"rope_freqs.weight"}, f"surplus: {sorted(tensors)}"
    return len(wanted)


def llama_loss(file, text):
    from llama_cpp import Llama
    model = Llama(str(file), n_ctx=WINDOW, logits_all=True, verbose=False, n_threads=1)
    ids = model.tokenize(text.encode(), add_bos=False)
    total = predicted = 0
    for at in range(0, len(ids), WINDOW):
        part = ids[at:at + WINDOW]
        model.reset()
        model.eval(part)
        logits = model.scores[:len(part)].astype(numpy.float64)
        logits -= logits.max(1, keepdims=True)
        log_p = logits - numpy.log(numpy.exp(logits).sum(1, keepdims=True))
        total -= log_p[numpy.arange(len(part) - 1), part[1:]].sum()
        predicted += len(part) - 1
    return total / predicted, predicted


def main():
    program, model, text_file = (pathlib.Path(a).resolve() for a in sys.argv[1:4])
    peer, failed = os.environ.get("LLAMA_CPP"), 0
    if peer:
        sys.path.insert(0, peer)
        os.environ["LLAMA_CPP_LIB_PATH"] = str(pathlib.Path(peer) / "vendor/llama.cpp/build/bin")
    else:
        print("skipped: llama.cpp (LLAMA_CPP is not set)")
    config = json.loads((model / "config.json").read_text())
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        text = folder / "text.txt"
        text.write_text(text_file.read_text()[:8000])
        for label, recipe in FILES:
            try:
                source, file, floats = model, folder / "model.gguf", folder / "floats"
                if recipe:
                    source = folder / "quantized"
                    run(program, "quantize", model, source, "--recipe", recipe, "--force")
                run(program, "convert", source, file, "--format", "gguf", "--force")
                run(program, "convert", file, floats, "--format", "safetensors", "--dtype", "f32", "--force")
                said = f"{check_values(file, floats, config)} tensors"
                if peer:
                    ours = json.loads(run(program, "eval", file, "--text", text, "--window", WINDOW, "--dtype", "f32",
                                          "--json", "--quiet"))
                    theirs, predicted = llama_loss(file, text.read_text())
                    assert predicted == ours["predicted"], f"{predicted} ids, nibble has {ours['predicted']}"
                    apart = abs(theirs - ours["loss"])
                    assert apart <= (0.02 if recipe else 0.003), f"losses are {apart:.4f} apart"
                    said += f"; loss {theirs:.4f} in llama.cpp, {ours['loss']:.4f} here, {predicted} ids"
                print(f"ok    {label:10} {said}")
            except Exception as error:
                more = getattr(error, "stderr", "") or ""
                print(f"FAIL  {label:10} {type(error).__name__}: {error} {more}")
                failed += 1
    print(f"{failed} failed")
    return failed != 0


if __name__ == "__main__":
    sys.exit(main())
