# SPDX-License-Identifier: Apache-2.0
"""Writes tests/golden/attn_dx.txt: causal attention and its gradients by PyTorch, in float64.

A case: `case heads kv_heads head_dim documents lengths...`, then `window W cap C` where it has either, then a line per tensor,
tokens in order, heads side by side.
Inputs are multiples of 1/64, so that few digits hold them exactly.
"""
import sys

import torch
import torch.nn.functional as F

SEED = 20261120
CASES = [(4, 2, 3, (1, 6, 9), 0, 0.0), (3, 1, 2, (70,), 0, 0.0), (2, 1, 2, (3, 20), 7, 0.0), (1, 1, 2, (90,), 65, 0.0),
         (2, 1, 2, (3, 20), 0, 0.75), (2, 1, 1, (80,), 30, 1.5), (2, 1, 2, (1, 9), 1, 2.0), (1, 1, 1, (290,), 258, 0.5)]


def grouped(x, share):
    """Repeats [tokens][kv_heads][dim] for the heads that share them: [heads][tokens][dim]."""
    return x.transpose(0, 1).repeat_interleave(share, 0)


def attend(q, k, v, window, cap):
    """transformers' eager attention of Gemma 2, [heads][tokens][dim], and the log-sum-exp of the softmax inputs."""
    length, dim = q.shape[1:]
    scores = q @ k.transpose(1, 2) / dim**0.5
    if cap:
        scores = torch.tanh(scores / cap) * cap
    distance = torch.arange(length)[:, None] - torch.arange(length)[None, :]
    scores = scores.masked_fill((distance < 0) | (distance >= (window or length)), float("-inf"))
    return torch.softmax(scores, -1) @ v, torch.logsumexp(scores, -1)


def case(heads, kv_heads, dim, lengths, window, cap, generator):
    m, share = sum(lengths), heads // kv_heads

    def values(count):
        x = torch.randint(-96, 97, (m, count, dim), generator=generator).double() / 64
        return x.requires_grad_(True)

    q, k, v = values(heads), values(kv_heads), values(kv_heads)
    dout = values(heads).detach()
    outs, lses, first = [], [], 0
    for length in lengths:
        rows = slice(first, first + length)
        a, b, c = q[rows].transpose(0, 1), grouped(k[rows], share), grouped(v[rows], share)
        out, lse = attend(a, b, c, window, cap)
        if not window and not cap:
            out = F.scaled_dot_product_attention(a[None], b[None], c[None], is_causal=True)[0]
        outs.append(out.transpose(0, 1))
        lses.append(lse.transpose(0, 1))
        first += length
    out = torch.cat(outs)
    out.backward(dout)
    return {"q": q, "k": k, "v": v, "dout": dout, "out": out, "lse": torch.cat(lses), "dq": q.grad, "dk": k.grad, "dv": v.grad}


def main(path):
    generator = torch.Generator().manual_seed(SEED)
    with open(path, "w") as out:
        out.write(f"# torch {torch.__version__} float64, seed {SEED}: tools/golden/make_attn_golden.py\n")
        for heads, kv_heads, dim, lengths, window, cap in CASES:
            out.write(f"case {heads} {kv_heads} {dim} {len(lengths)} {' '.join(map(str, lengths))}\n")
            if window or cap:
                out.write(f"window {window} cap {cap:g}\n")
            for name, x in case(heads, kv_heads, dim, lengths, window, cap, generator).items():
                out.write(f"{name} {' '.join(f'{value:.8g}' for value in x.detach().flatten().tolist())}\n")


main(sys.argv[1] if len(sys.argv) > 1 else "tests/golden/attn_dx.txt")
