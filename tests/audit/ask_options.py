# SPDX-License-Identifier: Apache-2.0
"""Options of runs, conversions and quantizing, by themselves and against what a recipe or a config says."""
import json
import math
import shutil

import forward
import formulas
import stored
from ask_values import dequantized, logits, same_rows, vectors, wanted_by
from asking import Ask, Deviation
from models import LETTERS
from number_types import NAMES, ROUND

TEXT = "abcabd fghij abc xyz"  # letters that the smallest vocabulary has


def ids_of(text):
    spelled = text.replace(" ", "\u0120")
    return [LETTERS.index(c) + 3 for c in spelled]


def reference(model):
    weights = {n: model.rows(n) for n in ["model.embed_tokens", *model.linears()]}
    return forward.Model(model.config, weights, vectors(model))


def greedy(judge, model, source):
    """--temp 0 gives the likeliest tokens of a forward pass of our own."""
    count = 5

    def see(ran):
        ids, run = ids_of("abc"), reference(model)
        for _ in range(count):
            last = run.logits(ids)[-1]
            order = sorted(range(len(last)), key=last.__getitem__, reverse=True)
            if last[order[0]] - last[order[1]] < 1e-3:
                return []  # a tie that a last bit decides
            ids.append(order[0])
        want = "".join(LETTERS[i - 3] if i > 2 else "" for i in ids[3:]).replace("\u0120", " ").replace("\u010a", "\n")
        got = ran.json["text"]
        return [] if got == want else [Deviation(f"greedy text is {got!r}, not {want!r}", ("never",))]

    return Ask("options of runs", "--temp 0", ["generate", source, "-p", "abc", "-n", count, "--temp", "0", "--ignore-eos",
                                               "--dtype", "f32"], see)


def loss(judge, r, model, source, folder):
    """eval: the mean loss of windows, computed here."""
    window = r.choice([8, 12])
    file = folder / "text.txt"
    file.write_text(TEXT)

    def see(ran):
        ids, run, total, count = ids_of(TEXT), reference(model), 0.0, 0
        for at in range(0, len(ids), window):
            part = ids[at:at + window]
            rows = run.logits(part)
            for row, wanted in zip(rows, part[1:]):
                most = max(row)
                total += most + math.log(sum(math.exp(v - most) for v in row)) - row[wanted]
                count += 1
        want, got = total / count, ran.json["loss"]
        return [] if abs(got - want) < 1e-3 * max(1, want) and ran.json["predicted"] == count else [
            Deviation(f"loss is {got} of {ran.json['predicted']}, not {want} of {count}", ("never",))]

    return Ask("options of runs", f"eval --window {window}", ["eval", source, "--text", file, "--window", window, "--dtype", "f32"], see)


def seed(judge, model, source):
    options = ["generate", source, "-p", "ab", "-n", "16", "--temp", "1.5", "--top-k", "0", "--top-p", "1", "--min-p", "0",
               "--ignore-eos"]

    def see(ran):
        texts = {judge.run(*options, "--seed", s, "--json", "--quiet", has_json=True).json["text"] for s in range(1, 6)}
        again = judge.run(*options, "--seed", 7, "--json", "--quiet", has_json=True).json["text"]
        found = [] if len(texts) > 1 else [Deviation("five seeds give one text", ("never",))]
        if again != ran.json["text"]:
            found.append(Deviation("one seed gives two texts", ("never",)))
        return found if ran.json["seed"] == 7 else found + [Deviation(f"seed is {ran.json['seed']}", ("never",))]

    return Ask("options of runs", "--seed 7", [*options, "--seed", "7"], see)


def unused_sampling(judge, r, model, source):
    """What shapes the draw, where nothing is drawn; and more tokens than the context holds."""
    if r.random() < 0.5:
        option, value = r.choice([("--top-k", "3"), ("--top-p", "0.5"), ("--min-p", "0.2")])
        words = ["--temp", "0", option, value]
    else:
        option, words = "--max-tokens", ["--max-tokens", "100000", "--context", "16"]
    see = lambda ran: [Deviation(f"{option} has no effect, or not all of it", (option,), option != "--max-tokens")]
    return Ask("options of runs", " ".join(words), ["generate", source, "-p", "ab", *(["-n", "2"] if "--temp" in words else []), *words], see)


def length(judge, r, model, source):
    n = r.choice([1, 3, 9])
    see = lambda ran: [] if ran.json["new_tokens"] == n else [Deviation(f"-n {n} gives {ran.json['new_tokens']}", ("never",))]
    return Ask("options of runs", f"-n {n}", ["generate", source, "-p", "ab", "-n", n, "--ignore-eos"], see)


def context(judge, r, model, source):
    n = r.choice([16, 40])
    see = lambda ran: [] if ran.json["context"] == n else [Deviation(f"--context {n} gives {ran.json['context']}", ("never",))]
    return Ask("options of runs", f"--context {n}", ["plan", source, "--context", n], see)


def threads(judge, model, source):
    see = lambda ran: [Deviation("more threads than processors", ("--threads",), False)]
    return Ask("options of runs", "--threads 64", ["plan", source, "--threads", "64"], see)


def isa(judge, model, source):
    def see(ran):
        kernels = {u["kernel"] for layer in ran.json["layers"] for u in layer["uses"]}
        wrong = [k for k in kernels if "avx512" in k]
        return [Deviation(f"--isa avx2 takes {wrong[0]}", ("never",))] if wrong else []

    return Ask("options of runs", "--isa avx2", ["plan", source, "--isa", "avx2"], see, alarms=False)


def without(judge, model, source):
    def see(ran):
        kernels = {u["kernel"] for layer in ran.json["layers"] for u in layer["uses"]}
        return [Deviation("--without 'linear*avx512*' takes one", ("never",))] if any(
            k.startswith("linear") and "avx512" in k for k in kernels) else []

    return Ask("options of runs", "--without", ["plan", source, "--without", "linear*avx512*"], see, ("matches",), alarms=False)


def cache_type(judge, r, model, source):
    kind = r.choice(["int8", "f32", "f16"])
    c = model.config
    size = c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]
    heads = c["num_key_value_heads"]
    per = {"int8": size + 4, "f32": 4 * size, "f16": 2 * size}[kind]

    def see(ran):
        found = [] if ran.json["cache_type"] == kind else [Deviation(f"{kind} asked, {ran.json['cache_type']} done", ("never",))]
        least = 2 * c["num_hidden_layers"] * heads * per * ran.json["context"]
        if not least <= ran.json["cache_bytes"] <= 2 * least:
            found.append(Deviation(f"{ran.json['cache_bytes']} bytes of keys and values, {least} are wanted", ("never",)))
        return found

    return Ask("options of runs", f"--cache-type {kind}", ["plan", source, "--cache-type", kind], see)


def dtype(judge, r, model, source):
    kind = r.choice(["f32", "bf16", "f16"])

    def see(ran):
        got, error = logits(judge, source, model.config["vocab_size"], words=kind)
        if got is None:
            return [Deviation(error, ("never",))]
        want = reference(model).logits([1, 5, 9, 3, 20])
        size = forward.distance(want, [[0.0] * len(want[0])] * len(want))
        far = forward.distance(got, want) / size
        low, high = {"f32": (0, 1e-4), "f16": (1e-6, 2e-2), "bf16": (1e-5, 1e-1)}[kind]
        found = [] if low <= far <= high else [Deviation(f"logits are {far:.2g} from those of f32", ("never",))]
        return found if ran.json["dtype"] == kind else found + [Deviation(f"{ran.json['dtype']} is planned", ("never",))]

    return Ask("options of runs", f"--dtype {kind}", ["plan", source, "--dtype", kind], see)


def overruled(judge, r, model, source, folder, turn):
    """An option against what a recipe's file says."""
    file = folder / "chat.json"
    if turn % 2 == 0:
        file.write_text(json.dumps({"precision": {"dtype": "fp32"}, "linear:int8": {"groupsize": 0}}))
        see = lambda ran: [Deviation("precision fp32 is overruled", ("precision",))] if ran.json["dtype"] == "bf16" else [
            Deviation("--dtype bf16 is overruled", ("--dtype",))]
        return Ask("conflicting options", "--dtype bf16, precision fp32", ["plan", source, "--recipe", file, "--dtype", "bf16"], see)
    file.write_text(json.dumps({"executor": {"accelerator": "cuda"}, "linear:int8": {"groupsize": 0}}))
    see = lambda ran: [Deviation("executor cuda is overruled", ("executor",))]
    return Ask("conflicting options", "--device cpu, executor cuda", ["plan", source, "--recipe", file, "--device", "cpu"], see)


def given_twice(judge, r, model, source):
    option, one, other = r.choice([("--recipe", "int8wo", "8da4w"), ("--dtype", "f32", "bf16"), ("--context", "16", "32"),
                                   ("--seed", "1", "2"), ("--threads", "1", "2")])
    command = ["generate", source, "-n", "1"] if option == "--seed" else ["plan", source]
    see = lambda ran: [Deviation(f"{option} twice, and it runs", ("twice",))]
    return Ask("conflicting options", f"{option} {one} {option} {other}", [*command, option, one, option, other], see, (option,))


def bias_form(judge, model, source, folder, turn):
    """--bias int8: groups of 32, torchao's formula in f32."""
    out = folder / "out"
    recipe = "int8wo" if turn % 2 else "8da4w"
    spec = formulas.Spec("i8", 32)
    biased = sorted(n for n in model.tensors if n.endswith(".bias"))

    def see(ran):
        directory = stored.Directory(out)
        if not biased:
            return [Deviation("there is no bias to quantize", ("--bias",))]
        for name in biased:
            module = name[:-5]
            codes, scales = directory.tensors.get(module + "._bias_qdata"), directory.tensors.get(module + "._bias_scale")
            if codes is None:
                return [Deviation(f"{name} is not int8", ("--bias", name))]
            want = formulas.quantize([model.tensors[name].values()], spec, "F32")
            if [codes.values()] != want.codes or [scales.values()] != want.scales:
                return [Deviation(f"{name} has other codes than the formula's", ("never",))]
        return []

    return Ask("options of quantize", f"{recipe} --bias int8", ["quantize", source, out, "--recipe", recipe, "--bias", "int8", "--format",
                                                               "nibble"], see, ("bias",), out=out)


def plain_bias(judge, r, model, source, folder):
    """A form of biases where no layer is quantized."""
    see = lambda ran: [Deviation("--bias int8 has no effect", ("--bias",))]
    return Ask("options of runs", "--bias int8 of floats", ["plan", source, "--bias", "int8"], see)


def float_conversion(judge, r, model, source, folder):
    """convert --format safetensors --dtype: values rounded to the type, and called lossy where that changes them."""
    kind = r.choice(["F32", "BF16", "F16"])
    out = folder / "floats"
    shutil.rmtree(out, ignore_errors=True)

    def see(ran):
        kept = {layer["name"]: layer.get("kept") for layer in ran.json["layers"]}
        directory, found = stored.Directory(out), []
        for n in model.linears():
            got = directory.weight(n)
            if got.dtype != kind:
                return [Deviation(f"{n}: {got.dtype} stored", ("never",))]
            rows = model.rows(n)
            if not same_rows([[ROUND[kind](v) for v in row] for row in rows], got.values, 0):
                return [Deviation(f"{n}: other values", ("never",))]
            if got.values != rows and kept[n] != "lossy":
                found.append(Deviation(f"{n}: rounded, and it says {kept[n]}", ("never",)))
        return found

    return Ask("conversion", f"safetensors --dtype {NAMES[kind]}", ["convert", source, out, "--format", "safetensors", "--dtype",
                                                                    NAMES[kind], "--force"], see, strict=False, alarms=False)


def stored_format(judge, r, model, source, folder):
    """quantize --format: the dialect asked for, or an error that names it."""
    out, kind = folder / "out", r.choice(["torchao", "compressed-tensors", "8da4w", "nibble"])
    recipe = r.choice(["int8wo", "8da4w", "int4wo-sym", "int8dq", "mxfp4", "4da4w"])
    spec = formulas.spec_of(recipe)

    def see(ran):
        directory = stored.Directory(out)
        values = dequantized(model, wanted_by(model, spec))
        is_kind = {"torchao": "tensor_names" in directory.metadata, "nibble": "nibble" in directory.metadata,
                   "compressed-tensors": directory.said.get("quant_method") == "compressed-tensors",
                   "8da4w": any(n.endswith(".scales") for n in directory.tensors)}[kind]
        found = [] if is_kind else [Deviation(f"not in the format {kind}", ("written as",))]
        for n in model.linears():
            got = directory.weight(n)
            if got is None or not same_rows(values[n], got.values, 1e-6):
                return [Deviation(f"{n}: other values than the formula's", ("never",))]
            if got.act != spec.act:
                found.append(Deviation(f"{n}: activations {got.act}, not {spec.act}", ("activations",)))
        return found

    return Ask("options of quantize", f"{recipe} --format {kind}", ["quantize", source, out, "--recipe", recipe, "--format", kind], see,
               ("format " + kind,), out=out)


def make_asks(judge, r, model, source, folder, turn):
    sets = [
        lambda: greedy(judge, model, source), lambda: loss(judge, r, model, source, folder), lambda: seed(judge, model, source),
        lambda: length(judge, r, model, source), lambda: context(judge, r, model, source), lambda: threads(judge, model, source),
        lambda: isa(judge, model, source), lambda: without(judge, model, source), lambda: cache_type(judge, r, model, source),
        lambda: dtype(judge, r, model, source), lambda: plain_bias(judge, r, model, source, folder),
        lambda: unused_sampling(judge, r, model, source),
    ]
    for i in range(3):
        yield sets[(3 * turn + i) % len(sets)]()
    yield overruled(judge, r, model, source, folder, turn) if turn % 3 else given_twice(judge, r, model, source)
    yield bias_form(judge, model, source, folder, turn) if turn % 2 else float_conversion(judge, r, model, source, folder)
    yield stored_format(judge, r, model, source, folder)
