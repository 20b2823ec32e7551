#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes docs/audit.md from the results of audit.py.

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

The audit checks whether quantization tools do what they are asked and, if not, whether they say so. `make audit` writes this
page; `tests/audit/run` runs a part of the audit in every `make test`; `make audit-mutants` checks that the audit finds silent
deviations.

## What the audit asks for

It uses random small models (Llama with and without biases, Qwen2, Qwen3, and mixtures of experts of Qwen3-MoE; odd and even widths,
tied and untied heads, f32, bf16 and f16), and asks every engine through the interface that its users have:

| engine | what it is asked for |
|---|---|
| torchao | int8wo, int8dq, int4wo-sym, 8da4w and fp8wo by `quantize_`; by `FqnToConfig` with a pattern that matches nothing, or a rule that an earlier rule overrules; loading its own format with f64 scales; a mixture by `quantize_` with its own filter |
| llama.cpp | every type of `llama-quantize` by `--pure`, including those that need an importance matrix; `--tensor-type` that matches nothing, or that an earlier one overrules; a mixture by `--pure` |
| compressed-tensors | torchao's recipes by `apply_quantization_config`, its own ranges and `ModelCompressor`; targets that match nothing, or that earlier ones overrule; every `Linear` of a mixture |
| Nibble | recipes by name, stored and run; every format by `convert`; the classes of variations (twists) below, mixtures whose experts or sizes are wrong and lists of ignored modules that name nothing among them, by `plan`, `quantize`, `convert`, `generate`, `eval` and `train`, in JSON, in text and with `--strict` |

## How it judges

The audit does not rely on what an engine says: it reads the files and tensors, and computes the expected result by formulas
written from the documentation.

- **done**: every requested layer has the requested scheme, group size, kind of zero points and type of scales; its values are
  those of the formula (compressed-tensors: within half a step; llama.cpp: within the known noise of the type); in f32 the
  logits of a forward pass match the requested activations and no others. With symmetric activations, a token's largest magnitude
  is a tie (half a step beyond the last code), decided by the last bit of a sum: either way is correct.
- **said**: something was not done as asked, and the engine's message names the layer, the pattern or the setting. Nibble must have a
  line in JSON and in text; `--strict` must refuse it, and `--allow` must accept it.
- **silent**: something was not done as asked, and nothing says so. A line about a change that did not happen counts here, too.
- **other values**: the file describes itself as asked, but has other values, and nothing says so.
- **died**: an error that names no layer, pattern or setting.

`-` (not counted) is a request that an engine has no interface for. [history/audit.md](history/audit.md) is the run of 2,000 models
before mixtures were among them.

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
    out += ["", "The other engines, by variation (none: no twist; experts: a mixture of experts):", "",
            line("engine", "twist", "done", "said", "silent", "other values", "died"), "|---" * 7 + "|"]
    for engine in ENGINES[:-1]:
        for twist in ("none", "no-match", "dead-rule", "f64", "experts"):
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
    return ["", "## Mutants", "", f"Each of {len(rows)} one-line changes makes the program silent (`tools/audit/mutants.txt`). "
            f"Each changed program is built; Nibble's part of", f"the audit finds {found} of them:", "", text]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("results", nargs="+", type=pathlib.Path)
    parser.add_argument("--seed", required=True)
    parser.add_argument("--asked", type=int, default=2000, help="number of models planned")
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
