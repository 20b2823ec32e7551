# SPDX-License-Identifier: Apache-2.0
"""Checkpoints whose files disagree: tensors too many, too few or twice, keys of config.json and generation_config.json."""
import json
import shutil
import struct

import forward
import tensor_files
from ask_values import IDS, logits, vectors
from asking import Ask, Deviation
from number_types import f32
from tensor_files import Tensor

# Keys of config.json: (key, value, what becomes of it). "said" and "idle": a setting names it, and it has no effect;
# "refused": an error names it; "quiet": it changes no forward pass, and nothing need be said.
KEYS = [
    ("mood", 3, "said"), ("use_mup", True, "said"), ("auto_map", {"AutoModel": "x.Y"}, "said"), ("_attn_implementation", "other/kernels", "said"),
    ("_attn_implementation", "eager", "quiet"), ("architectures", ["OtherModel"], "said"), ("task_specific_params", {"x": {}}, "said"),
    ("rope_scaling", {"factor": 4.0}, "said"),
    ("num_experts", 8, "refused"), ("logit_scale", 0.5, "refused"), ("attn_logit_softcapping", 30.0, "refused"),
    ("final_logit_softcapping", 30.0, "refused"), ("clip_qkv", 8, "refused"), ("hidden_act", "gelu", "refused"),
    ("rope_scaling", {"rope_type": "dynamic", "factor": 4.0}, "refused"), ("rope_scaling", {"rope_type": "llama3", "mood": 1}, "refused"),
    ("partial_rotary_factor", 0.5, "refused"), ("attention_chunk_size", 8, "refused"),
    ("attention_dropout", 0.1, "quiet"), ("initializer_range", 0.5, "quiet"), ("use_cache", False, "quiet"),
    ("transformers_version", "9.9", "quiet"), ("model_type", "mamba", "refused"),
    ("quantization_config", {"quant_method": "bitsandbytes", "load_in_4bit": True}, "refused"),
    ("quantization_config", {"quant_method": "torchao", "quant_type": {"default": {}}}, "refused"),
]
# Keys that change the forward pass: the run must show it.
LIVE = [("rms_norm_eps", 0.05), ("rope_theta", 10.0)]
# generation_config.json: (key, value, the same as options of generate, or None: it must be said; max_length counts the prompt, too)
GENERATION = [
    ("num_beams", 4, None), ("penalty_alpha", 0.6, None), ("no_repeat_ngram_size", 2, None), ("typical_p", 0.5, None),
    ("epsilon_cutoff", 3e-4, None), ("forced_eos_token_id", 2, None), ("suppress_tokens", [5], None), ("min_new_tokens", 4, None),
    ("guidance_scale", 1.5, None), ("cache_implementation", "quantized", None), ("max_new_tokens", 3, ["-n", "3"]),
    ("max_length", 7, ["-n"]), ("assistant_model", "x", None), ("encoder_repetition_penalty", 1.5, None), ("num_return_sequences", 3, None),
    ("temperature", 0.3, ["--temp", "0.3"]), ("top_k", 2, ["--top-k", "2"]), ("top_p", 0.4, ["--top-p", "0.4"]),
    ("min_p", 0.5, ["--min-p", "0.5"]), ("repetition_penalty", 3.0, ["--repeat-penalty", "3"]), ("do_sample", False, ["--temp", "0"]),
]


def rewrite(model, folder):
    if folder.exists():
        shutil.rmtree(folder)
    return model.write(folder)


def plan(path):
    return ["plan", path]


def some_command(path, folder, turn):
    """(arguments, has --strict): what every command has to say, each says in its turn."""
    file = folder / "words.txt"
    file.write_text("abc def abc")
    return [
        (["plan", path], True),
        (["generate", path, "-p", "ab", "-n", "1"], True),
        (["eval", path, "--text", file, "--window", "8"], True),
        (["quantize", path, folder / "dry", "--recipe", "int8wo", "--format", "nibble", "--dry-run"], True),
        (["convert", path, folder / "dry", "--format", "safetensors", "--dry-run"], False),
        (["bench", path, "--prompt-tokens", "4", "-n", "1", "--repeats", "1", "--alone"], True),
    ][turn % 6]


def see_logits(judge, model, path, weights):
    """A Deviation unless a run has the logits of these weights."""
    got, error = logits(judge, path, model.config["vocab_size"])
    if got is None:
        return [Deviation(error, ("never",))]
    want = forward.Model(model.config, weights, vectors(model)).logits(IDS)
    size = forward.distance(want, [[0.0] * len(want[0])] * len(want))
    far = forward.distance(got, want)
    return [] if far <= 1e-3 * size else [Deviation(f"logits are {far:.2g} of {size:.2g} from those asked", ("never",))]


def weights_of(model):
    return {n: model.rows(n) for n in ["model.embed_tokens", *model.linears()]}


def missing(judge, r, model, folder, turn):
    name = r.choice(sorted(n for n in model.tensors if n != "lm_head.weight"))
    other = model.copy()
    del other.tensors[name]
    path = rewrite(other, folder / "odd")
    module = name.rsplit(".", 1)[0]
    see = lambda ran: [Deviation(f"{name} is not there, and it runs", (module,))]
    return Ask("missing tensors", name, plan(path), see, (module,))


def extra(judge, r, model, folder, turn):
    other = model.copy()
    name = r.choice(["model.layers.0.self_attn.q_norm.weight", "model.mood.weight", "model.layers.0.mlp.router.weight"])
    if other.config["model_type"] == "qwen3" and "q_norm" in name:
        name = "model.layers.0.self_attn.v_norm.weight"
    other.tensors[name] = Tensor.of(model.dtype, [8], [1.0] * 8)
    path = rewrite(other, folder / "odd")
    see = lambda ran: see_logits(judge, model, path, weights_of(model)) + [Deviation(f"{name} is not read", (name,))]
    command, strict = some_command(path, folder, turn // 3)
    return Ask("extra tensors", f"{command[0]}: {name}", command, see, (name,), strict)


def extra_layer(judge, r, model, folder, turn):
    other = model.copy()
    other.config["num_hidden_layers"] += r.choice([-1, 1])
    if other.config["num_hidden_layers"] == 0:
        other.config["num_hidden_layers"] = 3
    path = rewrite(other, folder / "odd")
    see = lambda ran: [Deviation("num_hidden_layers is other than the layers stored", ("num_hidden_layers",))]
    return Ask("extra tensors" if other.config["num_hidden_layers"] < model.config["num_hidden_layers"] else "missing tensors",
               f"num_hidden_layers {other.config['num_hidden_layers']}", plan(path), see, ("num_hidden_layers", "model.layers"))


def tie(judge, r, model, folder, turn):
    other = model.copy()
    other.config["tie_word_embeddings"] = not model.tied
    path = rewrite(other, folder / "odd")

    def see(ran):
        return see_logits(judge, other, path, weights_of(model)) + [
            Deviation("tie_word_embeddings is other than the tensors", ("tie_word_embeddings",))]

    command, strict = some_command(path, folder, turn // 3)
    return Ask("doubled tensors", f"{command[0]}: tie_word_embeddings {not model.tied}", command, see,
               ("tie_word_embeddings", "lm_head"), strict)


def twice(judge, r, model, folder, turn):
    """One name in two shards, or twice in one header."""
    path = rewrite(model, folder / "odd")
    name = "model.norm.weight"
    if r.random() < 0.5:
        data = (path / "model.safetensors").read_bytes()
        size = struct.unpack("<Q", data[:8])[0]
        header = data[8:8 + size].decode().rstrip()
        entry = json.dumps(json.loads(header)[name])
        header = header[:-1] + f', "{name}": {entry}' + "}"
        header += " " * (-len(header) % 8)
        (path / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header.encode() + data[8 + size:])
    else:
        tensors = dict(model.tensors)
        (path / "model.safetensors").unlink()
        tensor_files.write(path / "model-00001-of-00002.safetensors", tensors)
        tensor_files.write(path / "model-00002-of-00002.safetensors", {name: tensors[name]})
        index = {"metadata": {}, "weight_map": {n: "model-00001-of-00002.safetensors" for n in tensors}}
        index["weight_map"][name] = "model-00002-of-00002.safetensors"
        (path / "model.safetensors.index.json").write_text(json.dumps(index))
    see = lambda ran: [Deviation(f"{name} is stored twice, and it runs", (name,))]
    return Ask("doubled tensors", f"{name} twice", plan(path), see, (name,))


def biases(judge, r, model, folder, turn):
    other = model.copy()
    name = "model.layers.0.self_attn.o_proj.bias"
    if name in other.tensors:
        del other.tensors[name]
        path = rewrite(other, folder / "odd")
        see = lambda ran: [Deviation(f"{name} is not there, and it runs", (name,))]
        return Ask("missing tensors", name, plan(path), see, (name,))
    width = model.config["hidden_size"]
    other.tensors[name] = Tensor.of(model.dtype, [width], [r.gauss(0, 1) for _ in range(width)])
    path = rewrite(other, folder / "odd")
    see = lambda ran: see_logits(judge, other, path, weights_of(model)) + [
        Deviation(f"{name} is not implied by the config", ("bias", "o_proj"))]
    return Ask("extra tensors", name, plan(path), see, (name, "o_proj"))


def wide(judge, r, model, folder, turn):
    """A tensor in float64, with values that float32 does not hold."""
    other = model.copy()
    name = r.choice(sorted(n for n in model.tensors if "embed" not in n))
    exact = r.random() < 0.3
    other.tensors[name] = model.tensors[name].as_type("F64", lambda v: v if exact else v * (1 + 1e-12))
    path = rewrite(other, folder / "odd")

    def see(ran):
        found = see_logits(judge, model, path, weights_of(model))
        changes = any(f32(v) != v for v in other.tensors[name].values())
        return found + ([Deviation(f"{name} is rounded", ("f64",), False)] if changes else [])

    return Ask("float64 tensors", name, plan(path) + ["--dtype", "f32"], see, (name,))


def wide_scales(judge, r, model, folder, turn):
    """A checkpoint of torchao's whose scales are float64."""
    path = rewrite(model, folder / "odd")
    out = folder / "wide"
    shutil.rmtree(out, ignore_errors=True)
    made = judge.run("quantize", path, out, "--recipe", "int4wo-row-sym", "--quiet")
    if made.status != 0:
        return None
    tensors, metadata = tensor_files.read(out / "model.safetensors")
    tensors = {n: t.as_type("F64", lambda v: v * (1 + 1e-12)) if n.endswith("_weight_scale") else t for n, t in tensors.items()}
    tensor_files.write(out / "model.safetensors", tensors, metadata)
    (out / "nibble.json").unlink()
    see = lambda ran: [Deviation("scales in float64 are rounded", ("f64",), False)]
    return Ask("float64 tensors", "scales", plan(out), see, ("f64",))


def stored_type(judge, r, model, folder, turn):
    other = model.copy()
    name = {"F32": "bfloat16", "BF16": "float16", "F16": "float32"}[model.dtype]
    other.config["torch_dtype"] = name
    path = rewrite(other, folder / "odd")

    def see(ran):
        asked = {"bfloat16": "bf16", "float16": "f16", "float32": "f32"}[name]
        return [] if ran.json["dtype"] == asked else [Deviation(f"{asked} asked, {ran.json['dtype']} done", ("torch_dtype",))]

    return Ask("keys of config.json", f"torch_dtype {name}", plan(path), see, ("torch_dtype",))


def key(judge, model, folder, turn, name, value, fate):
    other = model.copy()
    other.config[name] = value
    path = rewrite(other, folder / "odd")

    def see(ran):
        if fate == "quiet":
            return see_logits(judge, model, path, weights_of(model))
        return [Deviation(f"{name} {json.dumps(value)} has no effect", (name,))]

    command, strict = some_command(path, folder, turn if fate == "said" else 0)
    return Ask("keys of config.json", f"{command[0]}: {name} {json.dumps(value)}", command, see,
               (name, name.replace("_", " "), str(value)) if fate == "refused" else (), strict)


def live_key(judge, model, folder, name, value):
    other = model.copy()
    other.config[name] = value
    path = rewrite(other, folder / "odd")
    see = lambda ran: see_logits(judge, other, path, weights_of(model))
    return Ask("keys of config.json", f"{name} {value}", plan(path), see)


def generation(judge, model, folder, name, value, same):
    other, plain = model.copy(), model.copy()
    options = ["-p", "abc", "--seed", "5", "-n", "12", "--ignore-eos"]
    other.generation = {"eos_token_id": 2, name: value}
    path, clean = rewrite(other, folder / "odd"), rewrite(plain, folder / "clean")

    def see(ran):
        if same is None:
            return [Deviation(f"{name} has no effect", (name,))]
        asked = list(same)
        if name == "max_length":
            prompt = judge.run("generate", clean, *options, "-n", "1", "--json", "--quiet", has_json=True).json["prompt_tokens"]
            asked.append(str(value - prompt))
        want = judge.run("generate", clean, *options, *asked, "--json", "--quiet", has_json=True)
        return [] if ran.json["text"] == want.json["text"] else [Deviation(f"{name} is not as {' '.join(same)}", (name,))]

    if name in ("max_new_tokens", "max_length"):
        options[options.index("-n"):options.index("-n") + 2] = []
    return Ask("keys of generation_config.json", f"{name} {json.dumps(value)}", ["generate", path, *options], see, (name,))


def described(judge, r, model, folder, turn):
    """A compressed-tensors checkpoint whose config says something else of itself."""
    path, out, to = rewrite(model, folder / "odd"), folder / "codes", folder / "described"
    for p in (out, to):
        shutil.rmtree(p, ignore_errors=True)
    if judge.run("quantize", path, out, "--recipe", "int8dq", "--quiet").status != 0 or \
            judge.run("convert", out, to, "--format", "compressed-tensors", "--quiet").status != 0:
        return None
    config = json.loads((to / "config.json").read_text())
    said = config["quantization_config"]
    group = next(iter(said["config_groups"].values()))
    name, change = [
        ("kv_cache_scheme", lambda: said.update(kv_cache_scheme={"num_bits": 8, "type": "float", "symmetric": True})),
        ("targets", lambda: said["config_groups"].update(group_1={**group, "targets": ["re:.*experts.*"]})),
        ("output_activations", lambda: group.update(output_activations={"num_bits": 8, "type": "int", "symmetric": True,
                                                                        "strategy": "token", "dynamic": True})),
        ("strategy", lambda: group["input_activations"].update(strategy="tensor")),
        ("ignore", lambda: said.update(ignore=["model.layers.0.mlp.up_proj"])),
        ("quant_method", lambda: said.update(quant_method="quark")),
        ("format", lambda: (said.update(format="marlin-24"), group.pop("format"))),
        ("transform_config", lambda: said.update(transform_config={"config_groups": {"a": {"type": "hadamard", "apply": []}}})),
    ][turn % 8]
    change()
    (to / "config.json").write_text(json.dumps(config))
    (to / "nibble.json").unlink(missing_ok=True)
    needles = {"targets": ("group_1", "experts"), "strategy": ("activations", "strategy", "per token"),
               "ignore": ("mlp.up_proj",), "quant_method": ("quark",),
               "format": ("marlin-24",)}.get(name, (name, name.replace("_", " ")))
    see = lambda ran: [Deviation(f"{name} is passed over", needles)]
    if name == "format":
        needles += ("format",)
    return Ask("what config.json says of codes", name, plan(to), see, needles)


def make_asks(judge, r, model, source, folder, turn):
    twists = [missing, extra, extra_layer, tie, twice, biases, wide, wide_scales, stored_type]
    for i in range(3):
        ask = twists[(3 * turn + i) % len(twists)](judge, r, model, folder, turn)
        if ask is not None:
            yield ask
    for i in range(2):
        yield key(judge, model, folder, turn, *KEYS[(2 * turn + i) % len(KEYS)])
        yield generation(judge, model, folder, *GENERATION[(2 * turn + i) % len(GENERATION)])
    yield live_key(judge, model, folder, *LIVE[turn % len(LIVE)])
    ask = described(judge, r, model, folder, turn)
    if ask is not None:
        yield ask
