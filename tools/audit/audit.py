#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Random small models through torchao, llama.cpp and Nibble: was done what was asked, and if not, was it said?

    audit.py PROGRAM LOGITS_OF [--llama-quantize PATH --llama-version NAME] [--count 1000] [--seed 20261120] [--verbose]

`make audit` runs it and writes docs/audit.md. Each case is a model (Llama, Llama with biases, or Qwen2; odd shapes, tied
or not; f32, bf16 or f16) and a recipe, and sometimes a twist: a group that does not divide, a pattern that matches
no layer, or scales stored as f64. Each engine is asked for the same and judged alike:
  done        every layer that was asked for is in the asked scheme, and a forward pass runs
  said        it is not, and the engine's words name a layer (or the pattern) and a value
  silent      it is not, and nothing says so: the exit status is 0, no exception
  died        an error that names no layer
"-" counts cases that an engine has no way to be asked for (a scheme it lacks, a kernel library for a GPU).
"""
import argparse
import collections
import json
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import warnings

warnings.filterwarnings("ignore")
import gguf
import numpy
import torch
import torchao
import transformers
from safetensors import safe_open
from safetensors.torch import save_file
from torchao.quantization import (Int8DynamicActivationInt8WeightConfig, Int8DynamicActivationIntxWeightConfig,
                                  Int8WeightOnlyConfig, IntxWeightOnlyConfig, quantize_)
from torchao.quantization.granularity import PerGroup

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "oracle"))
from gguf_names import gguf_name

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

VERDICTS = ("done", "said", "silent", "died")
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


# ---- cases ----

def random_case(seed):
    r = random.Random(seed)
    head_dim, heads = r.choice([8, 16, 24, 32]), r.choice([1, 2, 3, 4])
    aligned = r.random() < 0.4
    case = {
        "seed": seed,
        "family": r.choice(["llama", "llama-bias", "qwen2"]),
        "hidden": heads * head_dim,
        "heads": heads,
        "kv_heads": r.choice([k for k in range(1, heads + 1) if heads % k == 0]),
        "ffn": r.choice([32, 64, 128, 256, 512]) if aligned else r.randrange(9, 200),
        "vocab": r.choice([64, 96, 256]) if aligned else r.randrange(33, 200),
        "layers": r.choice([1, 1, 2]),
        "tied": r.random() < 0.3,
        "dtype": r.choice(list(DTYPES)),
        "scheme": r.choice(["int8wo", "int8dq", "int4wo", "8da4w"]),
        "group": r.choice([8, 32, 64, 128]),
        "twist": r.choice(["none", "none", "none", "no-match", "f64"]),
    }
    if case["scheme"].startswith("int8"):
        case["group"] = 0
    if case["twist"] == "f64" and case["scheme"] != "8da4w":
        case["twist"] = "none"
    return case


def recipe_of(case):
    """int4wo is the symmetric one: torchao's asymmetric int4 needs a GPU's kernel library."""
    scheme, group = case["scheme"], case["group"]
    return scheme if group == 0 else f"{scheme}-g{group}" + ("-sym" if scheme == "int4wo" else "")


def pattern_of(case):
    return "*.self_attn.query" if case["twist"] == "no-match" else None


def make_model(case):
    common = dict(hidden_size=case["hidden"], intermediate_size=case["ffn"], num_hidden_layers=case["layers"],
                  num_attention_heads=case["heads"], num_key_value_heads=case["kv_heads"], vocab_size=case["vocab"],
                  max_position_embeddings=64, bos_token_id=1, eos_token_id=2, tie_word_embeddings=case["tied"])
    if case["family"] == "qwen2":
        config = transformers.Qwen2Config(**common)
    else:
        biased = case["family"] == "llama-bias"
        config = transformers.LlamaConfig(**common, attention_bias=biased, mlp_bias=biased,
                                          head_dim=case["hidden"] // case["heads"])
    torch.manual_seed(case["seed"])
    model = transformers.AutoModelForCausalLM.from_config(config).to(DTYPES[case["dtype"]])
    for p in model.parameters():
        p.data = (torch.randn(p.shape) * 0.1 + (p.ndim == 1)).to(p.dtype)
    return model.eval()


def linear_names(model, case):
    """Layers that the recipe asks for: all linear ones but the output."""
    return [n for n, m in model.named_modules() if isinstance(m, torch.nn.Linear) and n != "lm_head"]


def names_layer(text, names, case):
    """Do these words name a layer (or the pattern that found none), and a value?"""
    named = any(n in text or n.replace("model.", "") in text for n in names)
    pattern = pattern_of(case)
    if pattern is not None and pattern in text:
        return True
    return named and re.search(r"\d", text) is not None


# ---- torchao ----

class Messages(list):
    """What torchao logs while it works counts as said."""

    def __enter__(self):
        import logging
        self.handler = logging.Handler()
        self.handler.emit = lambda record: self.append(record.getMessage())
        logging.getLogger("torchao").addHandler(self.handler)
        return self

    def __exit__(self, *_):
        import logging
        logging.getLogger("torchao").removeHandler(self.handler)


def torchao_config(case):
    group = PerGroup(case["group"]) if case["group"] else None
    return {"int8wo": lambda: Int8WeightOnlyConfig(version=2),
            "int8dq": lambda: Int8DynamicActivationInt8WeightConfig(version=2),
            "int4wo": lambda: IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=group),
            "8da4w": lambda: Int8DynamicActivationIntxWeightConfig(weight_dtype=torch.int4, weight_granularity=group),
            }[case["scheme"]]()


def is_quantized(weight):
    return type(weight.data).__module__.startswith("torchao")


def judge_torchao(case, model, prequantized):
    names = linear_names(model, case)
    wanted = set(names)
    pattern = pattern_of(case)
    ids = torch.tensor([[1, 5, 9, 3]])
    with Messages() as messages:
        try:
            if prequantized is not None:
                model = transformers.AutoModelForCausalLM.from_pretrained(prequantized, dtype=DTYPES[case["dtype"]])
            else:
                chosen = set() if pattern is not None else wanted
                quantize_(model, torchao_config(case), filter_fn=lambda m, n: n in chosen)
            with torch.no_grad():
                logits = model(ids).logits
        except ImportError as error:
            return "-", str(error)
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            return ("said" if names_layer(text, names, case) else "died"), text
    missing = [n for n, m in model.named_modules() if n in wanted and not is_quantized(m.weight)]
    if not missing and torch.isfinite(logits).all():
        scales = [m.weight.scale.dtype for n, m in model.named_modules() if n in wanted and hasattr(m.weight, "scale")]
        if case["twist"] == "f64" and any(d != torch.float64 for d in scales):
            text = " ".join(messages)
            return ("said" if names_layer(text, names, case) else "silent"), f"scales became {scales[0]}"
        return "done", ""
    text = " ".join(messages)
    return ("said" if names_layer(text, missing, case) else "silent"), f"{len(missing)} of {len(names)} layers as before"


# ---- llama.cpp ----

def write_gguf(model, case, path):
    writer = gguf.GGUFWriter(path, "qwen2" if case["family"] == "qwen2" else "llama")
    writer.add_block_count(case["layers"])
    writer.add_context_length(64)
    writer.add_embedding_length(case["hidden"])
    writer.add_feed_forward_length(case["ffn"])
    writer.add_head_count(case["heads"])
    writer.add_head_count_kv(case["kv_heads"])
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_vocab_size(case["vocab"])
    for name, p in model.state_dict().items():
        if not (name == "lm_head.weight" and case["tied"]):
            writer.add_tensor(gguf_name(name), p.float().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def judge_llama(case, model, folder, quantize):
    """Q8_0 for int8, Q4_0 for int4 in groups of 32: what it has that comes nearest."""
    if quantize is None or case["twist"] == "f64" or case["scheme"] in ("int8dq", "8da4w") or case["group"] not in (0, 32):
        return "-", ""
    asked = "Q8_0" if case["group"] == 0 else "Q4_0"
    source, out = folder / "model.gguf", folder / "quantized.gguf"
    write_gguf(model, case, source)
    command = [quantize, "--pure"]
    pattern = pattern_of(case)
    if pattern is not None:
        command += ["--tensor-type", f"attn_query={asked.lower()}", source, out, "COPY"]
    else:
        command += [source, out, asked]
    ran = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    text = ran.stdout + ran.stderr
    names = [gguf_name(n + ".weight") for n in linear_names(model, case)]
    if ran.returncode != 0:
        lines = [l for l in text.splitlines() if "failed" in l or "error" in l.lower()]
        return ("said" if any(n in l for l in lines for n in names) else "died"), " ".join(lines)[-300:]
    if pattern is not None:
        return ("said" if "attn_query" in text else "silent"), "a pattern without a match"
    types = {t.name: t.tensor_type.name for t in gguf.GGUFReader(out).tensors}
    other = [n for n in names if types[n] != asked]
    if not other:
        return "done", ""
    told = all(any(n in l and "not divisible" in l for l in text.splitlines()) for n in other)
    return ("said" if told else "silent"), f"{len(other)} of {len(names)} tensors became {types[other[0]]}"


# ---- Nibble ----

def judge_nibble(case, model, source, folder, program, logits_of, prequantized):
    names = linear_names(model, case)
    out = folder / "nibble"
    command = [program, "quantize", source, out, "--recipe", recipe_of(case), "--force", "--json", "--quiet"]
    if pattern_of(case) is not None:
        command += ["--only", pattern_of(case)]
    if prequantized is not None:
        out, ran = prequantized, subprocess.run([str(program), "plan", str(prequantized), "--json", "--quiet"],
                                                capture_output=True, text=True)
    else:
        ran = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    if ran.returncode < 0:
        return "died", f"signal {-ran.returncode}"
    if ran.returncode != 0:
        return ("said" if names_layer(ran.stderr, names, case) else "died"), ran.stderr.strip()
    ledger = json.loads(ran.stdout)
    info = json.loads(subprocess.run([str(program), "info", str(out), "--json"], capture_output=True, text=True).stdout)
    schemes = {t["name"]: t["scheme"] for t in info["tensors"]}
    asked = {l["name"]: l["asked"].split("@")[0] for l in ledger["layers"]}
    wrong = [n for n in names if n not in asked or schemes.get(n + ".weight") != asked[n] or
             not asked[n].startswith(case["scheme"])]
    biases = {n[:-5] for n in model.state_dict() if n.endswith(".bias")}
    wrong += [n for n in names if n in biases and not any(l["name"] == n and l["bias"] for l in ledger["layers"])]
    runs = subprocess.run([str(logits_of), str(out), "f32", "1", "5", "9", "3"], capture_output=True)
    if runs.returncode != 0:
        return "died", runs.stderr.decode()
    logits = numpy.frombuffer(runs.stdout, dtype=numpy.float32)
    if wrong or not numpy.isfinite(logits).all():
        told = [l["name"] for l in ledger["layers"] if l["rung"] != "none" or l["denied"]]
        return ("said" if set(wrong) <= set(told) else "silent"), f"{wrong[:2]}"
    if case["twist"] == "f64" and not any(t["asked"] == "f64" for t in ledger["tensors"]):
        return "silent", "f64 scales are not in the ledger"
    return "done", ""


def with_f64_scales(case, source, folder, program):
    """The model as Nibble quantizes it in torchao's format, its scales stored as f64."""
    out = folder / "prequantized"
    ran = subprocess.run([str(program), "quantize", str(source), str(out), "--recipe", recipe_of(case), "--format",
                          "torchao", "--force", "--quiet"], capture_output=True, text=True)
    if ran.returncode != 0:
        return None
    file = out / "model.safetensors"
    with safe_open(file, "pt") as f:
        metadata, tensors = f.metadata(), {n: f.get_tensor(n) for n in f.keys()}
    save_file({n: t.double() if n.endswith("_weight_scale") else t for n, t in tensors.items()}, file, metadata)
    (out / "nibble.json").unlink()
    return out


# ---- the table ----

def run_case(case, options, folder):
    model = make_model(case)
    source = folder / "source"
    model.save_pretrained(source)
    prequantized = with_f64_scales(case, source, folder, options.program) if case["twist"] == "f64" else None
    if case["twist"] == "f64" and prequantized is None:
        case["twist"] = "none"  # torchao's format cannot hold it: the plain case
    return {"llama.cpp": judge_llama(case, model, folder, options.llama_quantize),
            "Nibble": judge_nibble(case, model, source, folder, options.program, options.logits_of, prequantized),
            "torchao": judge_torchao(case, model, prequantized)}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program", type=pathlib.Path)
    parser.add_argument("logits_of", type=pathlib.Path)
    parser.add_argument("--llama-quantize", type=pathlib.Path)
    parser.add_argument("--llama-version", default="of a version that was not named")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=20261120)
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    options.program, options.logits_of = options.program.resolve(), options.logits_of.resolve()
    table = collections.defaultdict(collections.Counter)
    examples = {}
    with tempfile.TemporaryDirectory() as root:
        for i in range(options.count):
            folder = pathlib.Path(root) / "case"
            folder.mkdir()
            case = random_case(options.seed + i)
            for engine, (verdict, words) in run_case(case, options, folder).items():
                table[engine][verdict] += 1
                examples.setdefault((engine, verdict), (case, words))
                if options.verbose or (engine == "Nibble" and verdict in ("silent", "died")):
                    print(engine, verdict, json.dumps(case), words.replace("\n", " ")[:400], file=sys.stderr)
            subprocess.run(["rm", "-rf", str(folder)], check=True)
    print(f"{options.count} models, seed {options.seed}; torchao {torchao.__version__}, torch {torch.__version__}, "
          f"transformers {transformers.__version__}"
          + (f", llama.cpp's llama-quantize {options.llama_version}" if options.llama_quantize else "") + ".\n")
    print("| engine | asked | done as asked | said, with layer and values | silently changed | "
          "died without naming the layer |\n|---|---|---|---|---|---|")
    for engine in ("torchao", "llama.cpp", "Nibble"):
        counts = [table[engine][v] for v in VERDICTS]
        print(f"| {engine} | {sum(counts)} | " + " | ".join(map(str, counts)) + " |")
    print("\nThe first case of each kind:\n")
    for (engine, verdict), (case, words) in sorted(examples.items()):
        if verdict in ("silent", "died", "said"):
            shape = f"{case['family']} {case['hidden']}/{case['ffn']}/{case['vocab']} {case['dtype']}"
            words = " ".join(words.split())[:240]
            print(f"- {engine}, {verdict}: seed {case['seed']}, {recipe_of(case)}, {shape}, twist {case['twist']}: "
                  f"{words}")
    return sum(table["Nibble"][v] for v in ("silent", "died")) != 0


if __name__ == "__main__":
    sys.exit(main())
