#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""docs/audit.md from what audit.py found.

    page.py --seed N --mutants FILE [--llama-version NAME] RESULTS.jsonl...
"""
import argparse
import collections
import datetime
import importlib.metadata
import json
import pathlib
import sys

ENGINES = ("torchao", "llama.cpp", "compressed-tensors", "Nibble")
VERDICTS = (("done",), ("said",), ("silent", "untrue"), ("values",), ("died",))
PACKAGES = ("torchao", "torch", "transformers", "compressed-tensors", "gguf")

INTRO = """# Audit

Was done what was asked, and if not, was it said? `make audit` writes this page; `tests/audit/run` asks a part of it in every
`make test`; `make audit-mutants` shows that the audit finds what is silent.

## What is asked

Random small models (Llama with and without biases, Qwen2, Qwen3; odd and even widths, tied and untied heads, f32, bf16 and f16).
Every engine is asked as its users ask it:

| engine | is asked for |
|---|---|
| torchao | int8wo, int8dq, int4wo-sym, 8da4w and fp8wo by `quantize_`; by `FqnToConfig` with a pattern that matches nothing, or a rule behind another that decides; loading its own format with scales in f64 |
| llama.cpp | every type of `llama-quantize` by `--pure`, also those that want an importance matrix; `--tensor-type` that matches nothing, or behind another that decides |
| compressed-tensors | the recipes of torchao by `apply_quantization_config`, its own ranges and `ModelCompressor`; targets that match nothing, or behind others |
| Nibble | recipes by name, stored and run; every format by `convert`; the classes of twists below, by `plan`, `quantize`, `convert`, `generate`, `eval` and `train`, in JSON, in text and with `--strict` |

## How it is judged

No engine is believed: files and tensors are read, and what was asked is computed by formulas written from the documentation.

- **done**: every layer that was asked for is in the asked scheme, group, kind of zero points and type of scales; its values are
  those of the formula (compressed-tensors: within half a step; llama.cpp: within the noise that a type is known for); in f32 the
  logits of a forward pass are those of the asked activations, and not of others. A token's largest magnitude is a tie where
  activations are symmetric (half a step beyond the last code), which the last bit of a sum decides: either way is right.
- **said**: something is not, and the engine's words name the layer, the pattern or the setting. Of Nibble a line is wanted in
  JSON and in text; `--strict` has to refuse it, and `--allow` to accept it.
- **silent**: something is not, and nothing says so. A line that says so where nothing was changed counts here, too.
- **other values**: as asked by its own description, with other values, and nothing says so.
- **died**: an error that names no layer, pattern or setting.

`-` (not counted) is what an engine has no way to be asked.

"""


def read(paths):
    for path in paths:
        with open(path, encoding="utf-8") as lines:
            yield from map(json.loads, lines)


def counts_of(rows):
    counts = collections.Counter(r["verdict"] for r in rows)
    return [sum(counts[v] for v in group) for group in VERDICTS]


def line(*cells):
    return "| " + " | ".join(str(c) for c in cells) + " |"


def cut(words, size):
    words = " ".join(words.split()).replace("|", "/")
    return words if len(words) <= size else words[:size].rsplit(" ", 1)[0] + " ..."


def tables(rows):
    out = [line("engine", "models", "questions", "done", "said", "silent", "other values", "died"), "|---" * 8 + "|"]
    for engine in ENGINES:
        of = [r for r in rows if r["engine"] == engine and r["verdict"] != "-"]
        out.append(line(engine, len({r["turn"] for r in of}), len(of), *counts_of(of)))
    out += ["", "By what was asked of the other engines (none: no twist):", "",
            line("engine", "twist", "done", "said", "silent", "other values", "died"), "|---" * 7 + "|"]
    for engine in ENGINES[:-1]:
        for twist in ("none", "no-match", "dead-rule", "f64"):
            of = [r for r in rows if r["engine"] == engine and r["class"] == twist and r["verdict"] != "-"]
            if of:
                out.append(line(engine, twist, *counts_of(of)))
    out += ["", "Nibble, by class:", "", line("class", "done", "said", "silent", "other values", "died"), "|---" * 6 + "|"]
    nibble = [r for r in rows if r["engine"] == "Nibble"]
    for klass in sorted({r["class"] for r in nibble}):
        out.append(line(klass, *counts_of([r for r in nibble if r["class"] == klass])))
    return out


def examples(rows):
    out, seen = ["", "The first case of each kind:", ""], set()
    for r in sorted(rows, key=lambda r: r["turn"]):
        kind = (r["engine"], r["class"] if r["engine"] != "Nibble" else "", r["verdict"])
        if r["verdict"] in ("done", "-") or kind in seen:
            continue
        seen.add(kind)
        twist = "" if r["class"] == "none" else f", {r['class']}"
        out.append(f"- {r['engine']}, {r['verdict']}: model {r['turn']}, {cut(r['asked'], 90)}{twist}: {cut(r['words'], 200)}")
    return out[:3] + sorted(out[3:])


def mutants(path):
    text = path.read_text(encoding="utf-8").rstrip("\n")
    rows = text.splitlines()[2:]
    found = sum(not r.endswith("| not found |") for r in rows)
    return ["", "## Mutants", "", f"{len(rows)} changes of one line make the program silent (`tools/audit/mutants.txt`). Each is built, and "
            f"Nibble's part of", f"the audit finds {found} of them:", "", text]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("results", nargs="+", type=pathlib.Path)
    parser.add_argument("--seed", required=True)
    parser.add_argument("--asked", type=int, default=2000, help="models that were to be asked about")
    parser.add_argument("--mutants", type=pathlib.Path, required=True)
    parser.add_argument("--llama-version", default="of a version that was not named")
    options = parser.parse_args()
    rows = list(read(options.results))
    models = len({r["turn"] for r in rows})
    versions = ", ".join(f"{p} {importlib.metadata.version(p)}" for p in PACKAGES)
    today = datetime.datetime.now(datetime.timezone.utc).date()
    print(INTRO + f"## Last run\n\n{today}: {models:,} models, seed {options.seed}; {versions}, llama-quantize {options.llama_version}."
          + (f" {options.asked:,} were planned; the run was ended by its limit of time." if models < options.asked else "") + "\n")
    print("\n".join(tables(rows) + examples(rows) + mutants(options.mutants)))
    return any(r["engine"] == "Nibble" and r["verdict"] not in ("done", "said") for r in rows)


if __name__ == "__main__":
    sys.exit(main())
