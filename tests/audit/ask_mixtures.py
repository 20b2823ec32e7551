# SPDX-License-Identifier: Apache-2.0
"""Mixtures of experts: run, quantized and converted as asked; experts that are missing, sizes that disagree, and lists of
modules to leave alone that name nothing."""
import json
import random
import shutil

import ask_checkpoints
import models
from asking import Ask, Deviation
from tensor_files import Tensor

LEAVES = ("gate_proj", "up_proj", "down_proj")
RECIPES = ("int8wo", "int4wo-g32", "8da4w-g32", "fp8wo", "int8dq")
# What a list of modules to leave alone may say by mistake: none of these matches a weight.
WRONG = ("model.layers.0.mlp.gat", "re:.*mlp.router", "re:.*experts.99.*", "model.layers.7.mlp.gate", "re:.*mlp.gate_projx")


def mixture(r):
    """A Qwen3-MoE with the attention of a random Qwen3."""
    model = models.random_model(r, "qwen3", aligned=True, tied=False)
    count, width = r.choice([3, 4, 6]), r.choice([32, 64])
    config = model.config
    config.update(model_type="qwen3_moe", architectures=["Qwen3MoeForCausalLM"], num_experts=count, num_experts_per_tok=r.randrange(1, count),
                  moe_intermediate_size=width, norm_topk_prob=r.random() < 0.7, decoder_sparse_step=1, mlp_only_layers=[])
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}.mlp."
        for leaf in LEAVES:
            del model.tensors[f"{at}{leaf}.weight"]
        shapes = {"gate": (count, config["hidden_size"])}
        for e in range(count):
            for leaf in LEAVES:
                shapes[f"experts.{e}.{leaf}"] = (config["hidden_size"], width) if leaf == "down_proj" else (width, config["hidden_size"])
        for part, shape in shapes.items():
            values = [r.gauss(0, 0.3) for _ in range(shape[0] * shape[1])]
            model.tensors[f"{at}{part}.weight"] = Tensor.of(model.dtype, shape, values)
    return model


def matrices(model):
    return {n[:-len(".weight")]: model.rows(n[:-len(".weight")]) for n, t in model.tensors.items() if len(t.shape) == 2}


def see_run(judge, model, path):
    return ask_checkpoints.see_logits(judge, model, path, matrices(model))


def runs(judge, r, model, folder, turn):
    path = ask_checkpoints.rewrite(model, folder / "mixture")
    return Ask("mixtures", "plan", ["plan", path, "--dtype", "f32"], lambda ran: see_run(judge, model, path), alarms=False)


def quantized(judge, r, model, folder, turn):
    """Experts get codes and the router keeps its values, unless the recipe says +router."""
    path, out = ask_checkpoints.rewrite(model, folder / "mixture"), folder / "mixture-codes"
    recipe, router = RECIPES[turn % len(RECIPES)], turn % 2 == 1
    command = ["quantize", path, out, "--recipe", recipe + ("+router" if router else ""), "--format", "nibble"]

    def see(ran):
        found = {t["name"].removesuffix(".weight"): t for t in json.loads(judge.run("info", out, "--json").out)["tensors"]}
        bad = [n for n, w in found.items() if ".experts." in n and w["scheme"] in ("f32", "f16", "bf16")]
        bad += [n for n, w in found.items() if n.endswith(".mlp.gate") and (w["scheme"] in ("f32", "f16", "bf16")) == router]
        return [Deviation(f"{n} is stored as {found[n]['scheme']}", (n,)) for n in bad[:1]]

    return Ask("mixtures", f"quantize {command[4]}", command, see, out=out)


def missing(judge, r, model, folder, turn):
    other = model.copy()
    name = r.choice(sorted(n for n in model.tensors if ".mlp." in n))
    del other.tensors[name]
    path = ask_checkpoints.rewrite(other, folder / "mixture")
    module = name[:-len(".weight")]
    return Ask("missing experts", name, ["plan", path], lambda ran: [Deviation(f"{name} is not there, and it runs", (module,))], (module,))


def sizes(judge, r, model, folder, turn):
    """A config whose numbers are not those of the tensors."""
    other = model.copy()
    key, change = [("num_experts", 1), ("num_experts", -1), ("num_experts_per_tok", model.config["num_experts"]),
                   ("moe_intermediate_size", 8)][turn % 4]
    other.config[key] += change
    path = ask_checkpoints.rewrite(other, folder / "mixture")
    names = {"num_experts": ("mlp.gate",), "moe_intermediate_size": ("experts.0",)}.get(key, ("experts, but there are only",))
    return Ask("missing experts", f"{key} {other.config[key]}", ["plan", path],
               lambda ran: [Deviation(f"{key} is other than what is stored, and it runs", (key,))], names)


def ignored(judge, r, model, folder, turn):
    """A list of modules to leave alone with an entry that names nothing: a note names it. The others hold."""
    path, codes, to = ask_checkpoints.rewrite(model, folder / "mixture"), folder / "mixture-8", folder / "mixture-ct"
    for p in (codes, to):
        shutil.rmtree(p, ignore_errors=True)
    if judge.run("quantize", path, codes, "--recipe", "int8wo", "--format", "compressed-tensors", "--quiet").status != 0:
        return None
    file = codes / "config.json"
    config = json.loads(file.read_text())
    wrong = WRONG[turn % len(WRONG)]
    config["quantization_config"].setdefault("ignore", []).append(wrong)
    file.write_text(json.dumps(config))
    return Ask("wrong ignore lists", wrong, ["plan", codes], lambda ran: [Deviation(f"{wrong} is passed over", (wrong,))], json=False,
               strict=False)


def make_asks(judge, r, model, source, folder, turn):
    own = random.Random(turn * 7 + 11)  # the other classes keep their models
    model = mixture(own)
    yield runs(judge, own, model, folder, turn)
    for twist in (quantized, missing, sizes, ignored):
        ask = twist(judge, own, model, folder, turn)
        if ask is not None:
            yield ask
