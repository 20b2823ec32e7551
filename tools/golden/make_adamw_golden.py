#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes steps of PyTorch's AdamW (tests/golden/adamw.txt); with --gradients, autograd's gradients of norms,
activations, rope, caps and cross-entropy (tests/golden/train_gradients.txt).

Usage: python3 tools/golden/make_adamw_golden.py > tests/golden/adamw.txt
       python3 tools/golden/make_adamw_golden.py --gradients > tests/golden/train_gradients.txt
Needs: torch. Runs on the CPU.

Lines of adamw.txt:  case RATE BETA1 BETA2 EPS DECAY CLIP STEPS COUNT, then p, and per step g, p, m, v: hex of
                     f32, little endian. g is not yet multiplied by CLIP. The optimizer runs in f32.
Lines of train_gradients.txt:  NAME ROWS WIDTH, then NAME HEX for each operand, output and gradient. Computed in f64 from
                     f32 operands and rounded to f32, so that only Nibble's roundings are measured.
"""
import sys

import torch

SEED = 20261120


def hexed(t):
    return t.detach().contiguous().view(torch.uint8).flatten().numpy().tobytes().hex()


def say(name, t):
    print(name, hexed(t if t.dtype == torch.int32 else t.float()))


def adamw():
    g = torch.Generator().manual_seed(SEED)
    steps, count = 6, 37
    for rate, beta1, beta2, eps, decay, clip in (
        (1e-3, 0.9, 0.999, 1e-8, 0.0, 1.0),
        (3e-3, 0.9, 0.95, 1e-8, 0.1, 0.37),
        (2e-2, 0.8, 0.99, 1e-5, 0.5, 1.0),
    ):
        p = torch.nn.Parameter(torch.randn(count, generator=g))
        optimizer = torch.optim.AdamW([p], rate, (beta1, beta2), eps, decay, foreach=False, fused=False)
        print("case", rate, beta1, beta2, eps, decay, clip, steps, count)
        say("p", p)
        for _ in range(steps):
            gradient = torch.randn(count, generator=g) * torch.logspace(-4, 1, count)
            p.grad = gradient * clip
            optimizer.step()
            state = optimizer.state[p]
            say("g", gradient)
            say("p", p)
            say("m", state["exp_avg"])
            say("v", state["exp_avg_sq"])


def gradients():
    g = torch.Generator().manual_seed(SEED + 1)

    def leaf(*shape, scale=1.0):
        return (torch.randn(*shape, generator=g) * scale).double().requires_grad_()

    rows, width = 5, 83
    print("norm", rows, width)
    x, w, dy = leaf(rows, width, scale=2), leaf(width), leaf(rows, width)
    torch.nn.functional.rms_norm(x, (width,), w, 1e-5).backward(dy.detach())
    for name, t in (("x", x), ("weight", w), ("dy", dy), ("dx", x.grad), ("dw", w.grad)):
        say(name, t)

    print("swiglu", rows, width)
    gate, up, dy = leaf(rows, width, scale=4), leaf(rows, width), leaf(rows, width)
    (torch.nn.functional.silu(gate) * up).backward(dy.detach())
    for name, t in (("gate", gate), ("up", up), ("dy", dy), ("dgate", gate.grad), ("dup", up.grad)):
        say(name, t)

    width = 301
    print("xent", rows, width)
    x = leaf(rows, width, scale=5)
    target = torch.randint(0, width, (rows,), generator=g)
    target[2] = -1
    loss = torch.nn.functional.cross_entropy(x, target, ignore_index=-1, reduction="none")
    loss.sum().backward()
    for name, t in (("x", x), ("target", target.int()), ("loss", loss), ("dx", x.grad)):
        say(name, t)

    width = 41
    print("layernorm", rows, width)
    x = (torch.randn(rows, width, generator=g) * 2 + 3).double().requires_grad_()
    w, b, dy = leaf(width), leaf(width), leaf(rows, width)
    y = torch.nn.functional.layer_norm(x, (width,), w, b, 1e-5)
    y.backward(dy.detach())
    for name, t in (("x", x), ("weight", w), ("bias", b), ("dy", dy), ("y", y), ("dx", x.grad), ("dw", w.grad),
                    ("db", b.grad)):
        say(name, t)

    print("geglu", rows, width)
    gate, up, dy = leaf(rows, width, scale=2), leaf(rows, width), leaf(rows, width)
    y = torch.nn.functional.gelu(gate, approximate="tanh") * up
    y.backward(dy.detach())
    for name, t in (("gate", gate), ("up", up), ("dy", dy), ("y", y), ("dgate", gate.grad), ("dup", up.grad)):
        say(name, t)

    for of, name in ((lambda t: torch.nn.functional.gelu(t, approximate="tanh"), "gelu"),
                     (torch.nn.functional.silu, "silu")):
        print(name, rows, width)
        gate, dy = leaf(rows, width, scale=2), leaf(rows, width)
        y = of(gate)
        y.backward(dy.detach())
        for name, t in (("gate", gate), ("dy", dy), ("y", y), ("dgate", gate.grad)):
            say(name, t)

    heads, head_dim, dims, positions = 2, 44, 38, 7
    print("rope_pairs", rows, heads * head_dim)
    angle = torch.outer(torch.arange(positions) * 0.7, 100.0 ** (-torch.arange(0, dims, 2) / dims))
    cos, sin = angle.cos(), angle.sin()
    position = torch.randint(0, positions, (rows,), generator=g)
    x, dy = leaf(rows, heads, head_dim), leaf(rows, heads, head_dim)
    pairs = torch.view_as_complex(x[..., :dims].unflatten(-1, (-1, 2)))
    turned = pairs * torch.complex(cos.double(), sin.double())[position].unsqueeze(1)
    y = torch.cat((torch.view_as_real(turned).flatten(-2), x[..., dims:]), -1)
    y.backward(dy.detach())
    for name, t in (("position", position.int()), ("cos_sin", torch.cat((cos, sin), -1)), ("x", x), ("dy", dy),
                    ("y", y), ("dx", x.grad)):
        say(name, t)

    for name, by, cap in (("scale", 1.7, 0.0), ("cap", 1.7, 5.0)):
        print(name, rows, width)
        by, x, dy = torch.tensor([by, cap]), leaf(rows, width, scale=3), leaf(rows, width)
        y = x * by[0].double()
        if cap:
            y = cap * torch.tanh(y / cap)
        y.backward(dy.detach())
        for name, t in (("by", by), ("x", x), ("dy", dy), ("y", y), ("dx", x.grad)):
            say(name, t)


def main():
    only = sys.argv[1:] == ["--gradients"]
    print(f"# torch {torch.__version__.split('+')[0]}, seed {SEED},"
          " python3 tools/golden/make_adamw_golden.py" + (" --gradients" if only else ""))
    if only:
        gradients()
    else:
        adamw()


main()
