#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes small random models of each family, with transformers' float32 logits.

Usage: python3 tools/golden/make_model_golden.py [DIRECTORY [FAMILY...]]       (tests/golden/models, all)
Needs: torch, transformers 5, safetensors. Runs on the CPU, in seconds.

DIRECTORY/FAMILY/config.json, model.safetensors    a Hugging Face directory
DIRECTORY/FAMILY/logits.safetensors                tokens.I  [count]      ids of sequence I
                                                   positions.I [kept]     where logits were kept
                                                   logits.I  [kept][vocab] f32
FAMILY/draft.safetensors                           the same of a draft head: logits.I [count - 1][vocab], in which row p is of
                                                   tokens p and p + 1, and guess.I [count][vocab]: after all tokens, the head
                                                   reads the likeliest next one beside its own hidden state
Weights are random, scaled so that logits and attention have spread: uniform attention would hide a wrong rotation. Half
of the configs are written as transformers 4 wrote them, half as 5 does.
"""
import json
import os
import sys

import safetensors
import torch
import transformers
from safetensors.torch import save_file

import draft_heads
from delta_families import DELTA
from latent_families import LATENT
from mixture_families import MIXTURES
from model_families import FAMILIES as DENSE
from ssm_families import SSM

FAMILIES = {**DENSE, **MIXTURES, **LATENT, **DELTA, **SSM}
FAMILIES.update(draft_heads.models(FAMILIES))

SEED = 20261120
COMMAND = "python3 tools/golden/make_model_golden.py"


def fill(name, shape, generator, offset):
    noise = torch.randn(shape, generator=generator)
    if name.endswith(".bias"):
        return 0.5 * noise
    if name.endswith(("router.scale", "per_expert_scale", "layer_scalar")):
        return 1 + 0.25 * noise
    if name.endswith("linear_attn.norm.weight"):  # that of the gated delta rule adds no offset
        return 1 + 0.25 * noise
    if name.endswith("A_log"):  # so slow that a matrix remembers many tokens
        return noise - 2
    if "norm" in name or name.endswith("dt_bias"):
        return offset + 0.25 * noise
    if "embed_tokens" in name:
        return 0.35 * noise
    gain = 2.0 if any(part in name for part in ("q_proj", "k_proj", "q_b_proj", "kv_b_proj", "qkv_proj", "lm_head", "mlp.gate.", "router.", "experts.gate_up")) else 1.0
    return noise * gain / shape[-1] ** 0.5


# Experts that transformers keeps in one tensor, [experts][n][k], are stored one by one, as they are published.
EXPERTS = {
    "qwen3_moe": ("mlp.experts.", "gate_proj", "up_proj", "down_proj"),
    "mixtral": ("block_sparse_moe.experts.", "w1", "w3", "w2"),
    "lfm2_moe": ("feed_forward.experts.", "w1", "w3", "w2"),
    "glm4_moe": ("mlp.experts.", "gate_proj", "up_proj", "down_proj"),
    "deepseek_v2": ("mlp.experts.", "gate_proj", "up_proj", "down_proj"),
    "deepseek_v3": ("mlp.experts.", "gate_proj", "up_proj", "down_proj"),
    "kimi_k2": ("mlp.experts.", "gate_proj", "up_proj", "down_proj"),
    "qwen3_next": ("mlp.experts.", "gate_proj", "up_proj", "down_proj"),
}


def published(model_type, name, value):
    """The tensors of a checkpoint for one parameter: (name, value) pairs."""
    if model_type.startswith("granitemoe"):  # stacks, under older names
        for new, old in (("router.", "router.layer."), ("experts.gate_up_proj", "input_linear.weight"),
                         ("experts.down_proj", "output_linear.weight")):
            name = name.replace(f"block_sparse_moe.{new}", f"block_sparse_moe.{old}")
        return [(name, value)]
    if model_type not in EXPERTS:
        return [(name, value)]
    prefix, gate, up, down = EXPERTS[model_type]
    layer, _, part = name.partition(".feed_forward." if model_type == "lfm2_moe" else ".mlp.")
    if part == "experts.gate_up_proj":
        half = value.shape[1] // 2
        return [(f"{layer}.{prefix}{e}.{which}.weight", value[e][rows].contiguous())
                for e in range(len(value)) for which, rows in ((gate, slice(half)), (up, slice(half, None)))]
    if part == "experts.down_proj":
        return [(f"{layer}.{prefix}{e}.{down}.weight", value[e].contiguous()) for e in range(len(value))]
    if part and model_type == "mixtral":
        return [(f"{layer}.block_sparse_moe.{part}", value)]
    return [(name, value)]


def to_fp8(value, block):
    """DeepSeek's FP8: e4m3 codes and a scale for each square block. Returns both, and the values that they stand for."""
    rows, columns = (-(-size // block) for size in value.shape)
    padded = torch.zeros(rows * block, columns * block)
    padded[:value.shape[0], :value.shape[1]] = value
    blocks = padded.view(rows, block, columns, block)
    scale = blocks.abs().amax(dim=(1, 3), keepdim=True).clamp(min=1e-12) / 448
    codes = (blocks / scale).to(torch.float8_e4m3fn)
    values = (codes.to(torch.float32) * scale).view(padded.shape)[:value.shape[0], :value.shape[1]]
    codes = codes.view(padded.shape)[:value.shape[0], :value.shape[1]].contiguous()
    return codes, scale.view(rows, columns), values.contiguous()


def kept(length):
    return list(range(length)) if length <= 64 else sorted({*range(0, length, 37), length - 1})


def load_as(what):
    """The config of a model_type that transformers runs with the code of another."""
    others = {key: value for key, value in what["config"].items() if key != "model_type"}
    return transformers.AutoConfig.for_model(what["as"], **others)


def store_fp8(stored, pairs, value, block):
    """Stores the tensors of a parameter; returns its value as read back."""
    read = []
    for name, part in pairs:
        if part.dim() == 2 and "_proj" in name:
            codes, scale, values = to_fp8(part.to(torch.float32), block)
            stored[name], stored[f"{name}_scale_inv"] = codes, scale
            read.append(values)
        else:
            stored[name] = part
            read.append(part)
    if len(read) == 1:
        return read[0]
    parts = value.shape[0]  # of experts: gate and up of each, or down
    return torch.stack([torch.cat(read[e * len(read) // parts:(e + 1) * len(read) // parts]) for e in range(parts)])


def draft_golden(model, head, out, count):
    """What a draft head gives for the golden sequences."""
    drafts = {}
    for i in range(count):
        tokens = out[f"tokens.{i}"].to(torch.int64)
        with torch.no_grad():
            hidden = model.model(tokens[None]).last_hidden_state[0]
            logits, own = head(tokens, hidden)
            guess = logits[-1].argmax()
            longer, _ = head(torch.cat([tokens, guess[None]]), torch.cat([hidden[:-1], own[-1:], own[-1:]]))
        drafts[f"tokens.{i}"], drafts[f"logits.{i}"] = out[f"tokens.{i}"], logits.contiguous()
        drafts[f"guess.{i}"] = longer[-1].contiguous()
    return drafts


def make(directory, family, what):
    generator = torch.Generator().manual_seed(SEED)
    os.makedirs(directory, exist_ok=True)
    with open(f"{directory}/config.json", "w") as file:
        json.dump(what["config"], file, indent=2)
        file.write("\n")
    config = (transformers.AutoConfig.from_pretrained(directory) if "as" not in what else load_as(what)).get_text_config()
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    model = model.to(torch.float32).eval()
    stored = {}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            value = fill(name, parameter.shape, generator, what.get("norm", 1)).to(what["type"])
            pairs = [(what.get("prefix", "") + n, v) for n, v in published(what["config"]["model_type"], name, value)]
            if "images" in what:
                pairs = [(n.replace("model.", "model.language_model.", 1), v) for n, v in pairs]
            if "fp8" in what:
                value = store_fp8(stored, pairs, value, what["fp8"])
            else:
                stored.update(pairs)
            parameter.copy_(value.to(torch.float32))
        for name, buffer in model.named_buffers():
            if name.endswith(("e_score_correction_bias", "expert_bias")):  # large enough to change choices
                stored[name] = 0.2 * torch.randn(buffer.shape, generator=generator)
                buffer.copy_(stored[name])
            if "layer_scalar" in name:
                stored[name] = fill(name, buffer.shape, generator, 0).to(what["type"])
                buffer.copy_(stored[name].to(torch.float32))
    first = config.num_hidden_layers - getattr(config, "num_kv_shared_layers", 0)
    for layer in range(first, config.num_hidden_layers):  # stored as the layers before store them, but not read
        for name in (f"layers.{{}}.self_attn.{part}.weight" for part in what.get("unread", ())):
            like = stored["model." + name.format(config.layer_types.index(config.layer_types[layer]))]
            stored["model." + name.format(layer)] = fill(name, like.shape, generator, 1).to(what["type"])
    assert (what.get("prefix", "") + "lm_head.weight" in stored) != what["config"].get("tie_word_embeddings", what.get("tied"))
    head = None
    if what.get("draft"):
        def fill_head(name, shape):
            return fill(name, shape, generator, what.get("norm", 1)).to(what["type"])
        tensors, head = draft_heads.add(model, config, fill_head)
        for name, value in tensors.items():
            stored.update(published(what["config"]["model_type"], name, value))
    made = (f"torch {torch.__version__}, transformers {transformers.__version__}, safetensors "
            f"{safetensors.__version__}; seed {SEED}; {COMMAND}")
    save_file(stored, f"{directory}/model.safetensors", {"format": "pt", "made": made})
    out = {}
    for i, length in enumerate(what["lengths"]):
        tokens = torch.randint(config.vocab_size, (1, length), generator=generator)
        with torch.no_grad():
            logits = model(tokens).logits[0]
        positions = kept(length)
        out[f"tokens.{i}"] = tokens[0].to(torch.int32)
        out[f"positions.{i}"] = torch.tensor(positions, dtype=torch.int32)
        out[f"logits.{i}"] = logits[positions].to(torch.float32).contiguous()
    save_file(out, f"{directory}/logits.safetensors", {"made": made})
    if head is not None:
        save_file(draft_golden(model, head, out, len(what["lengths"])), f"{directory}/draft.safetensors", {"made": made})
    size = sum(os.path.getsize(f"{directory}/{f}") for f in os.listdir(directory))
    spread = torch.cat([out[k] for k in out if k.startswith("logits")]).std().item()
    print(f"{family}: {size} bytes, logits with a standard deviation of {spread:.2f}")


def main():
    at = sys.argv[1] if len(sys.argv) > 1 else "tests/golden/models"
    torch.set_num_threads(1)
    for family in sys.argv[2:] or FAMILIES:
        make(f"{at}/{family}", family, FAMILIES[family])


if __name__ == "__main__":
    main()
