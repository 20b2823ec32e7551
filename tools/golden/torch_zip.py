#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes tests/golden/torch: small files written by torch.save, and a list of their contents.

usage: tools/golden/torch_zip.py      Needs PyTorch; versions in tests/golden/torch/contents.txt.

contents.txt has a line per tensor: file, name, dtype, shape, and the sum of the values as float64 (of the
bytes, where a type has no sum). Names are PyTorch's.
"""
import collections
import os

import torch

OUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tests", "golden", "torch")
SEED = 20261120


def random(*shape, dtype=torch.float32):
    return torch.randn(*shape).to(dtype)


def plain():
    """Every type, odd shapes, a scalar, no elements, a parameter, an OrderedDict with module versions."""
    state = collections.OrderedDict(
        f32=random(3, 5), f16=random(7, dtype=torch.float16), bf16=random(2, 3, dtype=torch.bfloat16),
        f64=random(4, dtype=torch.float64), i8=torch.arange(-8, 8, dtype=torch.int8).view(4, 4),
        u8=torch.arange(250, 256, dtype=torch.uint8), i16=torch.tensor([-300, 300], dtype=torch.int16),
        i32=torch.tensor([[1 << 30, -5]], dtype=torch.int32), i64=torch.tensor([1 << 40]), flag=torch.tensor([True, False]),
        e4m3=random(2, 8).to(torch.float8_e4m3fn), e5m2=random(9).to(torch.float8_e5m2),
        u16=torch.tensor([65535], dtype=torch.uint16), scalar=torch.tensor(2.5), none=torch.zeros(0, 4),
        parameter=torch.nn.Parameter(random(2, 2)))
    state._metadata = {"": {"version": 1}}
    return state


def views():
    """One storage for two names (tied), a transposed view, a sliced view, and parts of a storage."""
    whole = random(8, 6)
    return {"tied.a": whole, "tied.b": whole, "first": whole[:3], "rest": whole[3:], "turned": whole.t(), "column": whole[:, 2],
            "cut": whole[2:7:2, 1:4]}


def training():
    """A training checkpoint: the model under a key, its arguments, an optimizer, a number."""
    model = torch.nn.Linear(6, 4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model(random(2, 6)).sum().backward()
    optimizer.step()
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "best_loss": torch.tensor(1.5), "iter_num": 7,
            "config": {"lr": 1e-3, "name": "x", "flag": True, "none": None, "large": 1 << 80},
            "model_args": {"dim": 6, "n_layers": 1, "dropout": 0.5}}


REFUSED = {
    "sparse.pt": lambda: {"bad": torch.eye(3).to_sparse()},
    "complex.pt": lambda: {"good": torch.ones(2), "bad": torch.ones(2, dtype=torch.complex64)},
    "quantized.pt": lambda: {"bad": torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.qint8)},
    "expanded.pt": lambda: {"bad": torch.ones(2, 1).expand(2, 1000)},
    "module.pt": lambda: torch.nn.Linear(2, 2),
    "list.pt": lambda: [torch.ones(2)],
    "meta.pt": lambda: {"bad": torch.ones(2, device="meta")},
}


def describe(file, state):
    for name, t in state.items():
        t = t.detach()
        values = t.contiguous().view(torch.uint8) if t.dtype in (torch.float8_e4m3fn, torch.float8_e5m2) else t
        shape = "x".join(map(str, t.shape)) or "scalar"
        yield f"{file} {name} {str(t.dtype)[6:]} {shape} {values.to(torch.float64).sum().item():.17g}"


def main():
    torch.manual_seed(SEED)
    os.makedirs(OUT, exist_ok=True)
    lines = [f"# PyTorch {torch.__version__.split('+')[0]}, seed {SEED}: tools/golden/torch_zip.py"]
    for file, make in (("plain.pt", plain), ("views.pt", views), ("training.pt", training)):
        state = make()
        torch.save(state, os.path.join(OUT, file))
        lines += describe(file, state.get("model", state) if file == "training.pt" else state)
    state = plain()
    for protocol in (3, 4, 5):
        torch.save(state, os.path.join(OUT, f"protocol{protocol}.pt"), pickle_protocol=protocol)
        lines += describe(f"protocol{protocol}.pt", state)
    for file, make in REFUSED.items():
        torch.save(make(), os.path.join(OUT, file))
    torch.save(plain(), os.path.join(OUT, "legacy.pt"), _use_new_zipfile_serialization=False)
    torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), os.path.join(OUT, "script.pt"))
    with open(os.path.join(OUT, "contents.txt"), "w", encoding="utf-8") as f:
        f.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
