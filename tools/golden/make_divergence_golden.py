#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the divergence of the shipped model in int4 from its float32, in PyTorch: tests/golden/eval_divergences.txt.

Usage: python3 tools/golden/make_divergence_golden.py > tests/golden/eval_divergences.txt
Needs: torch, transformers 5. Runs on the CPU, in seconds.

A line is: MODEL FILE WINDOW RECIPE PREDICTED, then as NAME=VALUE what `nibble eval --against` reports. Every linear layer, the head
too, has the weights of RECIPE by the formula of docs/quantization.md; embeddings stay. The KL divergence is computed in float64 from
float32 logits, token by token; percentiles are numpy's inverted_cdf. Windows are those of make_eval_golden.py.
"""
import copy
import sys

import numpy
import torch
import transformers
from make_eval_golden import CASES, MODEL, windows_of

RECIPE = "int4wo-g32"
BEGINS = [0, 8, 32, 128, 512, 2048]


def rounded(weight, group=32):
    """int4 with a float zero; the stored scale and zero have the weight's type."""
    w = weight.float().reshape(weight.shape[0], -1, group)
    least, largest = w.amin(-1, keepdim=True), w.amax(-1, keepdim=True)
    scale = (largest - least).clamp(min=1e-6) / 15
    zero = least + 8 * scale
    codes = ((w - least) / scale).round().clamp(0, 15) - 8
    scale, zero = (x.to(weight.dtype).float() for x in (scale, zero))
    return (codes * scale + zero).reshape(weight.shape)


def quantized(model, stored):
    """A copy of the model in float32 with the rounded weights of the stored one."""
    other = copy.deepcopy(model)
    for name, linear in other.named_modules():
        if isinstance(linear, torch.nn.Linear):
            linear.weight = torch.nn.Parameter(rounded(stored.get_submodule(name).weight.data))
    return other


def log_probabilities(model, ids):
    with torch.no_grad():
        logits = model(ids[None]).logits[0, :-1].double()
    return logits - torch.logsumexp(logits, -1, keepdim=True)


def divergence(model, other, windows):
    kl, losses, references, same, position = [], [], [], [], []
    for ids in windows:
        ref, log_p = log_probabilities(model, ids), log_probabilities(other, ids)
        kl.append((ref.exp() * (ref - log_p)).sum(-1))
        references.append(-ref.gather(-1, ids[1:, None])[:, 0])
        losses.append(-log_p.gather(-1, ids[1:, None])[:, 0])
        same.append(ref.argmax(-1) == log_p.argmax(-1))
        position.append(torch.arange(len(ids) - 1))
    kl, losses, references, same, position = (torch.cat(x).numpy() for x in (kl, losses, references, same, position))
    values = {"kl": kl.mean(), "largest": kl.max(), "largest_position": position[kl.argmax()], "top1": same.mean(),
              "against_loss": references.mean(), "ratio": numpy.exp((losses - references).mean())}
    for name, share in (("median", 0.5), ("p99", 0.99), ("p999", 0.999)):
        values[name] = numpy.quantile(kl, share, method="inverted_cdf")
    for i, begin in enumerate(BEGINS):
        inside = kl[(position >= begin) & (position < (BEGINS + [1 << 60])[i + 1])]
        if len(inside):
            values[f"from{begin}"] = inside.mean()
    return len(kl), values


def main():
    if len(sys.argv) != 1:
        sys.exit(__doc__)
    torch.set_num_threads(1)
    tokenizer = transformers.AutoTokenizer.from_pretrained(MODEL)
    stored = transformers.AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.bfloat16)
    model = transformers.AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32, attn_implementation="eager").eval()
    other = quantized(model, stored)
    print(f"# transformers {transformers.__version__}, torch {torch.__version__.split('+')[0]}, float32, no seed: "
          "python3 tools/golden/make_divergence_golden.py")
    for path, window in CASES:
        predicted, values = divergence(model, other, windows_of(tokenizer, path, window))
        print(MODEL, path, window, RECIPE, predicted, *(f"{name}={value:.8g}" for name, value in values.items()))


if __name__ == "__main__":
    main()
