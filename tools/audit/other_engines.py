# SPDX-License-Identifier: Apache-2.0
"""torchao, llama.cpp and compressed-tensors: called as their users call them, and judged like Nibble.

An engine's function gives (verdict, words):
  done     every requested layer has the requested scheme, its values are within tolerance, and a forward pass runs
  said     not done, and the engine's text names a layer (or the pattern) and a value
  silent   not done, and nothing says so
  values   the scheme is right but its values are not, and nothing says so: also counted as silent
  died     an error that names no layer
  -        it cannot be requested, or a GPU kernel library is missing
"""
import collections
import logging
import math
import re
import subprocess
import warnings

warnings.filterwarnings("ignore", category=DeprecationWarning)
import gguf
import numpy
import torch
import torchao
import transformers
from compressed_tensors.compressors import ModelCompressor
from compressed_tensors.quantization import (QuantizationArgs, QuantizationConfig, QuantizationScheme, apply_quantization_config)
from compressed_tensors.quantization.utils import calculate_qparams
from loguru import logger
from safetensors import safe_open
from safetensors.torch import save_file
from torchao.quantization import (Float8WeightOnlyConfig, FqnToConfig, Int8DynamicActivationInt8WeightConfig,
                                  Int8DynamicActivationIntxWeightConfig, Int8WeightOnlyConfig, IntxWeightOnlyConfig, quantize_)
from torchao.quantization.granularity import PerGroup

import ask_values
import formulas
import forward
from gguf_names import PARTS, gguf_name

transformers.logging.disable_progress_bar()
PARTS.update({"self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm", "mlp.gate": "ffn_gate_inp"})
DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
VERSIONS = {"torchao": torchao.__version__, "torch": torch.__version__, "transformers": transformers.__version__}

# llama-quantize's types, with the least SQNR (dB) of normal values that each reaches; None: needs an importance matrix, and
# must say so.
LLAMA_TYPES = {
    "Q4_0": 18, "Q4_1": 18, "Q5_0": 24, "Q5_1": 24, "Q8_0": 40, "Q2_K": 5, "Q3_K_S": 10, "Q3_K_M": 10, "Q3_K_L": 10, "Q4_K_S": 17,
    "Q4_K_M": 17, "Q5_K_S": 23, "Q5_K_M": 23, "Q6_K": 28, "IQ4_NL": 18, "IQ4_XS": 17, "IQ3_S": 9, "IQ3_M": 9, "IQ3_XXS": 7,
    "IQ3_XS": 7, "TQ1_0": 1, "TQ2_0": 1, "F16": 60, "BF16": 45, "IQ1_S": None, "IQ1_M": None, "IQ2_XXS": None, "IQ2_XS": None,
    "IQ2_S": None, "IQ2_M": None, "Q2_K_S": None,
}
# With --pure a mixture uses its main type throughout.
PURE = {"Q3_K_S": "Q3_K", "Q3_K_M": "Q3_K", "Q3_K_L": "Q3_K", "Q4_K_S": "Q4_K", "Q4_K_M": "Q4_K", "Q5_K_S": "Q5_K", "Q5_K_M": "Q5_K",
        "Q2_K_S": "Q2_K", "IQ3_M": "IQ3_S", "IQ3_XS": "IQ3_S", "IQ2_M": "IQ2_S"}
NO_MATCH = "re:.*self_attn\\.query"


class Messages(list):
    """Collects what an engine logs and warns, which counts as reported."""

    def __enter__(self):
        self.handler = logging.Handler(logging.INFO)
        self.handler.emit = lambda record: self.append(record.getMessage())
        logging.getLogger().addHandler(self.handler)
        for name in ("torchao", "transformers", "compressed_tensors"):
            logging.getLogger(name).addHandler(self.handler)
        logging.getLogger("torchao").setLevel(logging.INFO)
        self.sink = logger.add(lambda message: self.append(str(message)), level="INFO")
        self.caught = warnings.catch_warnings(record=True)
        self.warned = self.caught.__enter__()
        warnings.simplefilter("always")
        return self

    def __exit__(self, *_):
        for name in ("", "torchao", "transformers", "compressed_tensors"):
            logging.getLogger(name or None).removeHandler(self.handler)
        logger.remove(self.sink)
        self.extend(str(w.message) for w in self.warned)
        self.caught.__exit__(None, None, None)

    def text(self):
        return "\n".join(self)


def names_layer(text, names, pattern=None):
    """True if the text names a layer (or the pattern) and a value."""
    if pattern is not None and pattern in text:
        return True
    return any(n in text or n.replace("model.", "") in text for n in names) and re.search(r"\d", text) is not None


def body(model):
    """The requested layers: all linear ones but the output."""
    return forward.linear_names(model.config)


def load(source, model):
    return transformers.AutoModelForCausalLM.from_pretrained(source, dtype=DTYPES[model.dtype])


def see_logits(model, spec, weights, logits, seen=None):
    """Checks logits as for Nibble, with the scheme's activations. In f32 only, as other types add noise."""
    if model.dtype != "F32":
        return []
    return ask_values.see_forward(model, logits[0].float().tolist(), weights, spec, seen=seen)


def see_inputs(engine, names):
    """{module: tokens}, filled with the inputs of these layers whenever the engine runs."""
    seen = {}
    for name, module in engine.named_modules():
        if name in names:
            module.register_forward_pre_hook(lambda _, given, name=name: seen.update({name: given[0][0].float().tolist()}))
    return seen


def all_weights(model, spec, quantized):
    out = {n: model.rows(n) for n in ["model.embed_tokens", *model.linears()]}
    out.update({n: formulas.quantize(model.rows(n), spec, model.dtype).values for n in quantized})
    return out


# ---- torchao ----

def torchao_config(case):
    group = PerGroup(case.group) if case.group else None
    return {"int8wo": lambda: Int8WeightOnlyConfig(version=2),
            "int8dq": lambda: Int8DynamicActivationInt8WeightConfig(version=2),
            "int4wo-sym": lambda: IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=group),
            "8da4w": lambda: Int8DynamicActivationIntxWeightConfig(weight_dtype=torch.int4, weight_granularity=group),
            "fp8wo": lambda: Float8WeightOnlyConfig(version=2)}[case.scheme]()


def is_quantized(weight):
    return type(weight.data).__module__.startswith("torchao")


def with_f64_scales(judge, case, source, folder):
    """The model in torchao's format with scales stored as f64; None: the format cannot hold it."""
    out = folder / "prequantized"
    if judge.run("quantize", source, out, "--recipe", case.recipe, "--skip", "lm_head", "--format", "torchao", "--force",
                 "--quiet").status != 0:
        return None
    file = out / "model.safetensors"
    with safe_open(file, "pt") as f:
        metadata, tensors = f.metadata(), {n: f.get_tensor(n) for n in f.keys()}
    save_file({n: t.double() * (1 + 1e-12) if n.endswith("_weight_scale") else t for n, t in tensors.items()}, file, metadata)
    (out / "nibble.json").unlink()
    return out


def ask_torchao(case, model, source, prequantized):
    names, wanted = body(model), set(body(model))
    pattern = NO_MATCH if case.twist == "no-match" else None
    if case.twist == "dead-rule":
        pattern = "re:.*up_proj"
    ids = torch.tensor([ask_values.IDS])
    with Messages() as messages:
        try:
            if prequantized is not None:
                engine = transformers.AutoModelForCausalLM.from_pretrained(prequantized, dtype=DTYPES[model.dtype])
            else:
                engine = load(source, model)
                config = torchao_config(case)
                if case.twist == "no-match":
                    rules = collections.OrderedDict({NO_MATCH: config})
                elif case.twist == "dead-rule":
                    rules = collections.OrderedDict({"re:.*_proj": config, pattern: Int8WeightOnlyConfig(version=2)})
                else:
                    rules = None
                if rules is None:
                    quantize_(engine, config, filter_fn=lambda m, n: n in wanted)
                else:
                    quantize_(engine, FqnToConfig(rules), filter_fn=None)
            seen = see_inputs(engine, wanted)
            with torch.no_grad():
                logits = engine(ids).logits
        except ImportError as error:
            return "-", str(error)
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            return ("said" if names_layer(messages.text() + text, names, pattern) else "died"), text
    said = lambda at: "said" if names_layer(messages.text(), at, pattern) else "silent"
    if case.twist in ("no-match", "dead-rule"):
        if case.twist == "no-match" or all(is_quantized(m.weight) for n, m in engine.named_modules() if n in wanted):
            return said([]), f"the pattern {pattern} changes nothing"
    missing = [n for n, m in engine.named_modules() if n in wanted and not is_quantized(m.weight)]
    if missing:
        return said(missing), f"{len(missing)} of {len(names)} layers as before"
    if case.twist == "f64":
        scales = [m.weight.scale.dtype for n, m in engine.named_modules() if n in wanted and hasattr(m.weight, "scale")]
        return ("done", "") if scales and scales[0] == torch.float64 else (said(names), f"scales became {scales[:1]}")
    spec = formulas.spec_of(case.recipe)
    for n, m in engine.named_modules():
        if n in wanted:
            want = formulas.quantize(model.rows(n), spec, model.dtype).values
            got = m.weight.dequantize().float().tolist()
            if not ask_values.same_rows(want, got, 2.0 ** -7 if model.dtype != "F32" else 1e-6):
                return "values", f"{n}: other values than the formula's"
    found = see_logits(model, spec, all_weights(model, spec, names), logits, seen)
    return ("values", found[0].words) if found else ("done", "")


def float_experts(engine):
    """Stacks of experts that are still floats: a mixture's, which transformers 5 keeps as one parameter per matrix and layer."""
    return [n for n, p in engine.named_parameters() if ".experts." in n and not is_quantized(p) and p.is_floating_point()]


def judge_experts(messages, engine, ids):
    """The verdict on a mixture all of whose linear layers were asked for."""
    with torch.no_grad():
        engine(ids)
    left = float_experts(engine)
    if not left:
        return "done", ""
    return ("said" if names_layer(messages.text(), left) else "silent"), f"{len(left)} stacks of experts stay floats, {left[0]} first"


def ask_torchao_experts(case, model, source):
    """quantize_ with its own filter, which users of a mixture call."""
    with Messages() as messages:
        try:
            engine = load(source, model)
            quantize_(engine, torchao_config(case))
            return judge_experts(messages, engine, torch.tensor([ask_values.IDS]))
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            return ("said" if names_layer(messages.text() + text, body(model)) else "died"), text


# ---- compressed-tensors ----

def compressed_arguments(case):
    """(weights, inputs) of a scheme."""
    int8 = dict(num_bits=8, type="int", symmetric=True, strategy="channel")
    int4 = dict(num_bits=4, type="int", symmetric=True, strategy="group", group_size=case.group)
    token = dict(num_bits=8, type="int", strategy="token", dynamic=True)
    return {"int8wo": (int8, None), "int8dq": (int8, {**token, "symmetric": True}), "int4wo-sym": (int4, None),
            "8da4w": (int4, {**token, "symmetric": False}),
            "fp8wo": (dict(num_bits=8, type="float", symmetric=True, strategy="channel"), None)}[case.scheme]


def scheme_of(targets, weights, inputs):
    return QuantizationScheme(targets=targets, weights=QuantizationArgs(**weights),
                              input_activations=QuantizationArgs(**inputs) if inputs else None)


def observe(module, args):
    """The scales of a weight's ranges, by the package's own formula."""
    w, size = module.weight.data, args.group_size if args.strategy == "group" else module.weight.shape[1]
    blocks = [w[:, i:i + size] for i in range(0, w.shape[1], size)]
    low, high = (torch.stack([f(b, dim=1) for b in blocks], dim=1) for f in (torch.amin, torch.amax))
    scale, zero = calculate_qparams(low, high, args)
    module.weight_scale.data = scale.to(module.weight_scale.dtype)
    if hasattr(module, "weight_zero_point"):
        module.weight_zero_point.data = zero.to(module.weight_zero_point.dtype)


def within(rows, got, spec):
    """True if each value is within half a step of its group (or clipped by half a step), plus the types' rounding."""
    for row, other in zip(rows, got):
        for i, piece in enumerate(formulas.pieces(row, spec.size)):
            amax = max(map(abs, piece))
            step = amax / 7.5 if spec.code == "i4" else amax / 127.5 if spec.code == "i8" else amax / 8
            at = 0 if spec.size == "row" else i * spec.size
            if any(abs(a - b) > 0.51 * step + 2.0 ** -6 * amax for a, b in zip(piece, other[at:at + len(piece)])):
                return False
    return True


def ask_compressed(case, model, source):
    if case.twist == "f64":
        return "-", ""
    names, wanted = body(model), set(body(model))
    weights, inputs = compressed_arguments(case)
    pattern = {"no-match": NO_MATCH, "dead-rule": "re:.*up_proj"}.get(case.twist)
    groups = {"group_0": scheme_of([NO_MATCH] if case.twist == "no-match" else ["Linear"], weights, inputs)}
    if case.twist == "dead-rule":
        groups = {"group_0": scheme_of(["re:.*layers.*proj"], weights, inputs), "group_1": scheme_of([pattern], dict(
            num_bits=8, type="int", symmetric=True, strategy="channel"), None)}
    ids = torch.tensor([ask_values.IDS])
    with Messages() as messages:
        try:
            engine = load(source, model)
            apply_quantization_config(engine, QuantizationConfig(config_groups=groups, ignore=["lm_head"]), show_progress=False)
            for n, m in engine.named_modules():
                if hasattr(m, "quantization_scheme") and hasattr(m, "weight_scale"):
                    observe(m, m.quantization_scheme.weights)
            with torch.no_grad():
                logits = engine(ids).logits
            quantized = {n for n, m in engine.named_modules() if hasattr(m, "quantization_scheme") and n in wanted}
            dead = not any(hasattr(m, "quantization_scheme") and m.quantization_scheme.targets == [pattern] for _, m in
                           engine.named_modules())
            if case.twist == "none":
                compressor = ModelCompressor.from_pretrained_model(engine)
                compressor.compress_model(engine)
                packed = {n for n, m in engine.named_modules() if n in wanted and (hasattr(m, "weight_packed") or m.weight.dtype in
                                                                                  (torch.int8, torch.float8_e4m3fn))}
                compressor.decompress_model(engine)
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            return ("said" if names_layer(messages.text() + text, names, pattern) else "died"), text
    said = lambda at: "said" if names_layer(messages.text(), at, pattern) else "silent"
    if case.twist == "no-match" or (case.twist == "dead-rule" and dead):
        return said([]), f"the pattern {pattern} changes nothing"
    missing = wanted - quantized
    if missing:
        return said(missing), f"{len(missing)} of {len(names)} layers as before"
    if case.twist == "dead-rule":
        return "done", ""
    if wanted - packed:
        return said(wanted - packed), f"{len(wanted - packed)} of {len(names)} layers are not packed"
    spec = formulas.spec_of(case.recipe)
    weights = {n: model.rows(n) for n in ["model.embed_tokens", *model.linears()]}
    for n, m in engine.named_modules():
        if n in wanted:
            weights[n] = m.weight.float().tolist()
            if not within(model.rows(n), weights[n], spec):
                return "values", f"{n}: values more than half a step away"
    found = see_logits(model, spec, weights, logits)
    return ("values", found[0].words) if found else ("done", "")


def ask_compressed_experts(case, model, source):
    """Every Linear but the output and the routers, as its users write it for mixtures."""
    groups = {"group_0": scheme_of(["Linear"], *compressed_arguments(case))}
    with Messages() as messages:
        try:
            engine = load(source, model)
            apply_quantization_config(engine, QuantizationConfig(config_groups=groups, ignore=["lm_head", "re:.*mlp.gate$"]),
                                      show_progress=False)
            return judge_experts(messages, engine, torch.tensor([ask_values.IDS]))
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            return ("said" if names_layer(messages.text() + text, body(model)) else "died"), text


# ---- llama.cpp ----

def gguf_tensors(model):
    """{GGUF's name: values as an array} of all tensors; experts are stacked."""
    out, stacks = {}, {}
    for name, t in model.tensors.items():
        values = numpy.array(t.values(), dtype=numpy.float32).reshape(t.shape)
        if ".experts." in name:
            layer, leaf = name.split(".")[2], name.split(".")[-2].removesuffix("_proj")
            stacks.setdefault(f"blk.{layer}.ffn_{leaf}_exps.weight", []).append(values)
        else:
            out[gguf_name(name)] = values
    return {**out, **{n: numpy.stack(values) for n, values in stacks.items()}}


def write_gguf(model, path):
    config = model.config
    writer = gguf.GGUFWriter(path, config["model_type"].replace("_", ""))
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(64)
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_vocab_size(config["vocab_size"])
    if "head_dim" in config:
        writer.add_key_length(config["head_dim"])
        writer.add_value_length(config["head_dim"])
    if "num_experts" in config:
        writer.add_expert_count(config["num_experts"])
        writer.add_expert_used_count(config["num_experts_per_tok"])
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    for name, values in gguf_tensors(model).items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def noise(rows, got):
    """SQNR in dB."""
    error = ((rows - got) ** 2).sum()
    return math.inf if error == 0 else 10 * math.log10((rows ** 2).sum() / error)


def ask_llama(case, model, folder, quantize):
    """Runs llama-quantize --pure with the type; a twist is a --tensor-type that matches nothing, or that an earlier one overrides."""
    if quantize is None or case.twist == "f64":
        return "-", ""
    source, out = folder / "model.gguf", folder / "quantized.gguf"
    write_gguf(model, source)
    asked = case.llama
    pattern = {"no-match": "attn_query", "dead-rule": "ffn_up"}.get(case.twist)
    command = [quantize, "--pure"]
    if case.twist == "no-match":
        command += ["--tensor-type", f"{pattern}=q8_0", source, out, asked]
    elif case.twist == "dead-rule":
        asked = "Q8_0"
        command += ["--tensor-type", "ffn=q8_0", "--tensor-type", f"{pattern}=q4_0", source, out, asked]
    else:
        command += [source, out, asked]
    ran = subprocess.run([*map(str, command), "2"], capture_output=True, text=True, errors="replace")
    text = ran.stdout + ran.stderr
    names = {n: values for n, values in gguf_tensors(model).items()
             if n.startswith("blk.") and values.ndim > 1 and "ffn_gate_inp" not in n}
    if ran.returncode != 0:
        lines = [l for l in text.splitlines() if "failed" in l or "error" in l.lower() or "missing importance" in l.lower()]
        named = any(n in l for l in lines for n in names) or re.search(r"importance matrix|imatrix", text)
        return ("said" if named else "died"), " ".join(lines)[-300:] or f"exit {ran.returncode}"
    tensors = {t.name: t for t in gguf.GGUFReader(out).tensors}
    if case.twist in ("no-match", "dead-rule"):
        decided = case.twist == "no-match" or all(tensors[t].tensor_type.name != "Q4_0" for t in names if "ffn_up" in t)
        lines = [l for l in text.splitlines() if pattern in l and "blk." not in l]
        if decided:
            return ("said" if lines else "silent"), f"--tensor-type {pattern} changes nothing"
    want = PURE.get(asked, asked)
    other = [n for n in names if tensors[n].tensor_type.name != want and not (case.twist == "dead-rule" and "ffn_up" in n)]
    if other:
        told = all(any(n in l and ("not divisible" in l or "falling back" in l or "fallback" in l) for l in text.splitlines())
                   for n in other)
        return ("said" if told else "silent"), f"{len(other)} of {len(names)} tensors became {tensors[other[0]].tensor_type.name}"
    least = LLAMA_TYPES[asked]
    for t, values in names.items():
        if least is None or case.twist == "dead-rule":
            break
        got = gguf.dequantize(tensors[t].data, tensors[t].tensor_type)
        found = noise(values, got.reshape(values.shape))
        if found < least:
            return "values", f"{t}: {found:.1f} dB, {asked} has {least} or more"
    return "done", ""
