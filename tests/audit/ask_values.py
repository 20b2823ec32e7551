# SPDX-License-Identifier: Apache-2.0
"""Recipes by name, conversions to every format, and a forward pass: values against formulas of our own."""
import dataclasses
import math
import shutil
import struct
import subprocess

import forward
import formulas
import models
import stored
from asking import Ask, Deviation

RECIPES = ["int8wo", "int8wo-asym", "int8wo-g32", "int8wo-tensor", "int8dq", "int8dq-actasym", "int8dq-g32", "int8dq-tensor",
           "int4wo", "int4wo-g8", "int4wo-sym", "int4wo-intzero", "int4wo-tinygemm", "int4wo-row-sym", "8da4w", "8da4w-g16",
           "8da4w-asym", "8da4w-actsym", "8da4w-ao017", "4da4w", "4da4w-actsym", "fp8wo", "fp8wo-tensor", "fp8dq",
           "fp8dq-tensor", "mxfp8", "mxfp8-floor", "mxfp4", "mxfp4dq", "mxfp4-floor", "nvfp4", "nvfp4-block", "nvfp4dq",
           "nvfp4dq-block"]
FORMATS = ["torchao", "nibble", "8da4w", "compressed-tensors", "gguf", "safetensors"]
IDS = [1, 5, 9, 3, 20]
UP, TIES_TRIED = 2.0 ** -21, 300  # a scale so much smaller decides a tie, one so much larger the other way


def fields(spec):
    out = {"code": spec.code, "size": spec.size, "zero": spec.zero, "act": spec.act}
    if spec.act in ("i8", "i4"):
        out["act_symmetric"] = spec.act_symmetric
    return out


def same_rows(a, b, tolerance):
    """Equal but for the last bits of what a product and a sum in f32 give."""
    return all(abs(x - y) <= tolerance * max(map(abs, r)) for r, s in zip(a, b) for x, y in zip(r, s))


def scale_type_of(spec, dtype):
    if spec.code in ("mx8", "mx4", "nv4"):
        return ""
    if spec.is_rows() or spec.code == "e4m3":
        return "f32"
    return (spec.scale_type or dtype).lower()


def see_weight(name, got, spec, rows, dtype, needles):
    """What differs between a stored weight and the scheme that was asked for it."""
    if spec is None:
        if got.code != "float":
            return [Deviation(f"{name}: was to be kept, is {got.code}", needles)]
        return [] if got.values == rows else [Deviation(f"{name}: was to be kept, has other values", needles)]
    if got.code == "float":
        return [Deviation(f"{name}: {spec.code} asked, stored as floats", needles)]
    asked = fields(spec)
    if all(z == 0 for row in got.zeros or [] for z in row) and spec.zero == "int":
        asked["zero"] = got.zero  # no zero point is one of 0
    if spec.size != "tensor" and spec.size != "row" and spec.size >= len(rows[0]):
        asked["size"] = got.size  # one group a row
    for key, value in asked.items():
        if getattr(got, key) != value:
            return [Deviation(f"{name}: {key} {value} asked, {getattr(got, key)} stored", needles)]
    if got.scale_type != scale_type_of(spec, dtype):
        return [Deviation(f"{name}: scales in {scale_type_of(spec, dtype)} asked, {got.scale_type} stored", needles)]
    want = formulas.quantize(rows, spec, dtype)
    if got.codes != want.codes:
        return [Deviation(f"{name}: other codes than the formula's", needles)]
    if spec.code != "nv4" and got.scales != want.scales:
        return [Deviation(f"{name}: other scales than the formula's", needles)]
    if spec.zero != "none" and got.zeros != want.zeros:
        return [Deviation(f"{name}: other zeros than the formula's", needles)]
    if not same_rows(want.values, got.values, 1e-6):
        return [Deviation(f"{name}: other values than the formula's", needles)]
    return []


def see_others(model, directory, quantized, needles=()):
    """Biases, norms and the embedding: bytes as they were."""
    for name, tensor in model.tensors.items():
        if name in quantized:
            continue
        got = directory.tensors.get(name)
        if got is None or got.data != tensor.data or got.dtype != tensor.dtype or got.shape != tensor.shape:
            return [Deviation(f"{name}: not as it was", needles or (name,))]
    return []


def see_stored(model, out, wanted, needles=()):
    """wanted: {module: Spec or None}; every other tensor stays what it was."""
    directory = stored.Directory(out)
    found = []
    for name, spec in wanted.items():
        got = directory.weight(name)
        if got is None:
            found.append(Deviation(f"{name}: not stored", needles or (name,)))
            continue
        found += see_weight(name, got, spec, model.rows(name), model.dtype, needles or (name,))
    found += see_others(model, directory, {n + ".weight" for n in wanted})
    return found


def wanted_by(model, spec):
    return {n: None if spec.keeps_head and n == "lm_head" else spec for n in model.linears()}


# ---- running it ----

def logits(judge, path, vocab, *, words="f32", ids=IDS):
    ran = subprocess.run([judge.logits_of, str(path), words, *map(str, ids)], capture_output=True, timeout=120)
    if ran.returncode != 0:
        return None, ran.stderr.decode() or f"logits_of ended with {ran.returncode}"
    flat = struct.unpack(f"<{len(ids) * vocab}f", ran.stdout)
    return [list(flat[i:i + vocab]) for i in range(0, len(flat), vocab)], ""


def vectors(model):
    return {n: t.values() for n, t in model.tensors.items() if len(t.shape) == 1}


def alternatives(spec):
    """What the activations could be instead of what is asked."""
    out = {} if spec.act == "float" else {"float": dataclasses.replace(spec, act="float")}
    if spec.act in ("i8", "i4"):
        out["the other mapping"] = dataclasses.replace(spec, act_symmetric=not spec.act_symmetric)
        out["the other width"] = dataclasses.replace(spec, act="i4" if spec.act == "i8" else "i8")
    if spec.act == "float":
        out["int8"] = dataclasses.replace(spec, act="i8")
    if spec.act == "e4m3":
        out["int8"] = dataclasses.replace(spec, act="i8")
    return out


def input_of(module):
    """Products of the same input see its ties the same way."""
    for name, shared in (("q_proj", "qkv"), ("k_proj", "qkv"), ("v_proj", "qkv"), ("gate_proj", "gate_up"), ("up_proj", "gate_up")):
        module = module.replace(name, shared)
    return module


def decide_ties(row_far, enough):
    """Codes of activations that lie between two integers are ties, which a last bit decides: the distance where those of a token go
    the way that is nearest. Tokens come one after the other, as none sees those behind it."""
    decided, rows = {}, []
    for row in range(len(IDS)):
        best, open_choices, tried = None, [{}], 0
        while open_choices and tried < TIES_TRIED and (best is None or best[0] > enough):
            chosen, met = open_choices.pop(), []

            def decide(module, t):
                if t < row:
                    return decided.get((module, t), UP)
                if module not in met:
                    met.append(module)
                return chosen.get(module, UP)

            distance, tried = row_far(row, decide), tried + 1
            if best is None or distance < best[0]:
                best = distance, {(m, row): chosen.get(m, UP) for m in met}
            fresh = [m for m in met if m not in chosen]
            open_choices += [{**chosen, **dict.fromkeys(fresh[:i], UP), m: -UP} for i, m in enumerate(fresh)]
        decided.update(best[1])
        rows.append(best[0])
    return math.sqrt(sum(d * d for d in rows) / len(rows))


def see_forward(model, got, weights, spec, needles=(), seen=None):
    """Are these logits those of the scheme's activations, and of no others? seen: {module: tokens}, inputs of products as the engine
    computed them, if they are known; they decide ties that are too many to try."""
    keeps = lambda module: spec.keeps_head and module == "lm_head"

    def far(scheme, one_scale=False):
        act = lambda module, x: x if keeps(module) else formulas.activations(x, scheme, one_scale)
        return forward.distance(got, forward.Model(model.config, weights, vectors(model), act).logits(IDS))

    def row_far(row, decide):
        """Of one token, whose ties go as decide(input of the product, token) says."""
        act = lambda module, x: x if keeps(module) else formulas.activations(x, spec, nudge=lambda t: decide(input_of(module), t))
        return forward.distance([got[row]], [forward.Model(model.config, weights, vectors(model), act).logits(IDS[:row + 1])[row]])

    asked = far(spec)
    size = forward.distance(got, [[0.0] * len(got[0])] * len(got))
    others = {words: far(s) for words, s in alternatives(spec).items()}
    if spec.act in ("i8", "i4", "e4m3"):
        others["one scale for all tokens"] = far(spec, True)
    nearest = min(others, key=others.get)
    if asked > 1e-3 * size and spec.act in formulas.HALF:
        asked = min(asked, decide_ties(row_far, 1e-3 * size))
        if asked > 1e-3 * size and seen is not None:
            act = lambda module, x: formulas.activations_of(x, seen[module], spec) if module in seen else x
            asked = min(asked, forward.distance(got, forward.Model(model.config, weights, vectors(model), act).logits(IDS)))
    worst = 0.75 * others[nearest]
    if asked > 1e-3 * size and (others[nearest] < 0.2 * asked or asked > worst):
        return [Deviation(f"activations: logits are {asked:.2g} from those of {spec.act} per token, {others[nearest]:.2g} from "
                          f"those of {nearest}", needles or ("activations",))]
    if asked > 0.3 * size:
        return [Deviation(f"logits are {asked:.2g} of {size:.2g} from those of the scheme", needles or ("activations",))]
    return []


def dequantized(model, wanted):
    """{module: rows}, by formula, and the embedding."""
    out = {n: model.rows(n) if s is None else formulas.quantize(model.rows(n), s, model.dtype).values for n, s in wanted.items()}
    out["model.embed_tokens"] = model.rows("model.embed_tokens")
    return out


def quantize_ask(judge, model, source, folder, recipe):
    """A recipe by its name, stored and run."""
    spec, out = formulas.spec_of(recipe), folder / "out"
    wanted = wanted_by(model, spec)

    def see(ran):
        found = see_stored(model, out, wanted)
        verified = judge.run("verify", out)
        if verified.status != 0:
            found.append(Deviation(f"verify: {verified.last_error()}", ("verify",)))
        got, error = logits(judge, out, model.config["vocab_size"])
        found += see_forward(model, got, dequantized(model, wanted), spec) if got else [Deviation(error, ("forward",))]
        return found

    return Ask("recipe by name", recipe, ["quantize", source, out, "--recipe", recipe], see, tuple(model.linears()), out=out)


def run_ask(judge, model, source, recipe):
    """The same recipe applied as the model is loaded: the plan, and a run."""
    spec = formulas.spec_of(recipe)
    wanted = wanted_by(model, spec)

    def see(ran):
        found = []
        done = {layer["name"]: layer["done"] for layer in ran.json["layers"]}
        got, error = logits(judge, source, model.config["vocab_size"], words="f32:" + recipe)
        if got is None:
            return [Deviation(error, ("forward",))]
        found += see_forward(model, got, dequantized(model, wanted), spec)
        for name in wanted:
            if name not in done:
                found.append(Deviation(f"{name}: no line in the plan", (name,)))
        return found

    return Ask("recipe by name", f"run with {recipe}", ["plan", source, "--recipe", recipe, "--dtype", "f32"], see,
               tuple(model.linears()))


# ---- conversions ----

def gguf_name(module):
    parts = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
             "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
             "mlp.down_proj": "ffn_down"}
    if module == "lm_head":
        return "output.weight"
    layer, part = module.split(".", 3)[2:]
    return f"blk.{layer}.{parts[part]}.weight"


def unpaired(rows, heads):
    """Rows of q or k of llama in GGUF's order, back in Hugging Face's."""
    size = len(rows) // heads
    out = []
    for h in range(heads):
        head = rows[h * size:(h + 1) * size]
        out += head[0::2] + head[1::2]
    return out


def converted_values(model, to, format):
    """{module: rows} that a conversion holds."""
    if format != "gguf":
        directory = stored.Directory(to)
        return {n: directory.weight(n).values for n in model.linears() if directory.weight(n) is not None}
    tensors, config = stored.read_gguf(to), model.config
    out = {}
    for n in model.linears():
        rows = tensors[gguf_name(n)][1]
        if config["model_type"] == "llama" and n.endswith(("q_proj", "k_proj")):
            rows = unpaired(rows, config["num_attention_heads" if n.endswith("q_proj") else "num_key_value_heads"])
        out[n] = rows
    return out


def convert_ask(judge, model, source, folder, format):
    """source: a quantized checkpoint. Values that change are called lossy, and no others."""
    to = folder / ("converted.gguf" if format == "gguf" else "converted")
    before = stored.Directory(source)

    def see(ran):
        kept = {layer["name"]: layer.get("kept") for layer in ran.json["layers"]}
        after = converted_values(model, to, format)
        found = []
        for name in model.linears():
            weight = before.weight(name)
            if name not in after or kept.get(name) is None:
                found.append(Deviation(f"{name}: not in the output, or no line", (name,)))
            elif not same_rows(weight.values, after[name], 2.0 ** -22) and kept[name] != "lossy":
                found.append(Deviation(f"{name}: values change, and it says {kept[name]}", ("never",)))
            if name not in after or weight.act == "float" or format == "safetensors":
                continue
            notes = " ".join(n["text"] for n in ran.json.get("notes", [])) + " ".join(ran.lines())
            holds = format == "gguf" or stored.Directory(to).weight(name).act == weight.act
            if (format == "gguf" or not holds) and "activation" not in notes:
                found.append(Deviation(f"{name}: activations are not kept", ("activation",)))
        return found

    if to.is_dir():
        shutil.rmtree(to)
    return Ask("conversion", format, ["convert", source, to, "--format", format, "--force"], see,
               ("model.layers", "lm_head", "model.embed"), strict=False, alarms=False)


def rounding_asks(judge, r, folder, turn):
    """Groups of 32 in f32, whose scales other formats round."""
    model = models.random_model(r, aligned=True, dtype="F32")
    source, out = model.write(folder / "aligned"), folder / "codes"
    recipe = ["int8wo-g32", "int4wo-sym", "int4wo", "int8wo-g32-ggml"][turn % 4]
    if judge.run("quantize", source, out, "--recipe", recipe, "--format", "nibble", "--quiet").status == 0:
        for format in ("gguf", "compressed-tensors"):
            ask = convert_ask(judge, model, out, folder, format)
            ask.words = f"{recipe} to {format}, {model.shape_words()}"
            yield ask


def make_asks(judge, r, model, source, folder, turn):
    recipe = RECIPES[turn % len(RECIPES)]
    yield quantize_ask(judge, model, source, folder, recipe)
    shutil.rmtree(folder / "out", ignore_errors=True)
    if judge.run("quantize", source, folder / "out", "--recipe", recipe, "--quiet").status == 0:
        for format in FORMATS[turn % 2::2]:
            yield convert_ask(judge, model, folder / "out", folder, format)
    yield run_ask(judge, model, source, recipe)
    if turn % 3 == 0:
        yield from rounding_asks(judge, r, folder, turn)
