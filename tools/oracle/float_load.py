#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that PyPI's transformers load what `nibble convert --format safetensors` and `nibble train --export` write.

    float_load.py PROGRAM

Every model of tests/golden/models and tests/golden/gguf is converted. All tensors must be found under the names that the
family publishes, none may be left over, and a model of floats must keep its logits, bit for bit.
So must mixtures of experts that were trained for two steps: their loss is the one that nibble measures, to 1e-4.
Prints a line per case; exits 1 if anything differs.
"""
import json
import pathlib
import subprocess
import sys
import tempfile
import warnings

warnings.filterwarnings("ignore")
import torch
import transformers

ROOT = pathlib.Path(__file__).resolve().parents[2]
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
# what transformers cannot load, wherever it comes from: a family of its own code; defaults outside a tiny vocabulary
NOT_LOADED = {"kimi_k2", "glm4.gguf", "phi3.gguf", "smollm3.gguf"}
# refused by convert: RoPE frequencies of no published model
NOT_WRITTEN = {"llama.gguf", "exaone4.gguf"}
# tensors that a family publishes and transformers do not read: layers that predict further tokens
UNREAD = {"glm4moe.gguf"}


def load(folder):
    """The model, and the names of tensors that are missing, left over or of another shape."""
    model, found = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    return model.eval(), {kind: sorted(found[kind]) for kind in ("missing_keys", "unexpected_keys", "mismatched_keys") if found[kind]}


@torch.no_grad()
def logits(model):
    return model(torch.arange(3, 60)[None] % model.config.vocab_size).logits


def check(program, source, out):
    """What is wrong; empty: nothing."""
    done = subprocess.run([program, "convert", source, out, "--format", "safetensors", "--quiet"], capture_output=True, text=True)
    if done.returncode != 0:
        return done.stderr.strip()
    model, found = load(out)
    if found and not (source.name in UNREAD and found.keys() == {"unexpected_keys"}):
        return str(found)
    plain = source.is_dir() and "quantization_config" not in json.loads((source / "config.json").read_text())
    if plain and not torch.equal(logits(model), logits(load(source)[0])):
        return "other logits than the source's"
    return ""


def check_trained(program, name, folder):
    config = ROOT / f"configs/{name}_debugmodel.json"
    words = ["--training.steps=2", "--export", folder, "--checkpoint.export_dtype=float32"]
    subprocess.run([program, "train", config, *words], check=True, capture_output=True)
    text = folder / "text.txt"
    text.write_text("Once upon a time there was a king who had three daughters.")
    done = subprocess.run([program, "eval", folder, "--text", text, "--json", "--quiet", "--dtype", "f32"], check=True, capture_output=True, text=True)
    model, found = load(folder)
    ids = transformers.AutoTokenizer.from_pretrained(folder)(text.read_text(), return_tensors="pt").input_ids
    with torch.no_grad():
        loss = model(ids, labels=ids).loss.item()
    measured = json.loads(done.stdout)["loss"]
    return str(found) if found else "" if abs(loss - measured) < 1e-4 else f"loss {loss}, nibble measures {measured}"


def main():
    program = pathlib.Path(sys.argv[1]).resolve()
    failed = 0
    sources = sorted((ROOT / "tests/golden/models").iterdir()) + sorted((ROOT / "tests/golden/gguf").glob("*.gguf"))
    with tempfile.TemporaryDirectory() as work:
        cases = [(s.name, lambda s=s: check(program, s, pathlib.Path(work) / s.name.replace(".", "-")))
                 for s in sources if s.name not in NOT_LOADED | NOT_WRITTEN]
        for name in ("qwen3_moe", "gemma4"):
            cases.append((f"trained {name}", lambda name=name: check_trained(program, name, pathlib.Path(work) / f"trained-{name}")))
        for name, run in cases:
            wrong = run()
            failed += wrong != ""
            print(f"{name}: {wrong or 'as written'}", flush=True)
    print(f"{len(cases) - failed} passed, {failed} failed")
    sys.exit(failed != 0)


if __name__ == "__main__":
    main()
