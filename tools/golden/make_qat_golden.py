#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes quantization-aware training by torchao 0.18: its fake quantizers on single matrices, and a micro-batch of the tiny Qwen2
of make_step_golden.py prepared by QATConfig.

Usage: python3 tools/golden/make_qat_golden.py tests/golden/train
Writes OUT/qat.txt and OUT/qat_{8da4w,int4wo,int8wo}.safetensors. Needs: torch, torchao==0.18.0, transformers; CPU.

qat.txt:   SIDE SCHEME CLASS TENSOR ROWS COLUMNS VALUES GRADIENT
  SIDE     weight or input, of this scheme
  CLASS    as in make_train_golden.py, whose values() makes matrix TENSOR and, plain, the incoming gradient TENSOR + 1;
           flat: rows of one value
  VALUES   hex of f32: the matrix after the fake quantizer
  GRADIENT hex of f32: the incoming gradient after its backward pass
Gradients pass a clamp at its bounds, as in PyTorch before 2.15: see Clamp.
*.safetensors: loss and gradients in f32 for the weights and documents of qwen2 and qwen2_gradients.safetensors
"""
import sys
import warnings

import numpy
import torch
import torchao
import transformers
from make_step_golden import ROWS, build
from make_train_golden import SEED, values
from safetensors.torch import load_file, save_file
from torchao.quantization import (
    Int8DynamicActivationIntxWeightConfig,
    IntxWeightOnlyConfig,
    PerAxis,
    PerGroup,
    quantize_,
)
from torchao.quantization.qat import QATConfig
from torchao.quantization.qat.fake_quantize_config import Int4WeightFakeQuantizeConfig, IntxFakeQuantizeConfig
from torchao.quantization.qat.fake_quantizer import FakeQuantizerBase

GROUP = 8  # group size of the model's layers
QUANTIZERS = {
    ("weight", "8da4w-g32"): IntxFakeQuantizeConfig(torch.int4, group_size=32, is_symmetric=True),
    ("input", "8da4w-g32"): IntxFakeQuantizeConfig(torch.int8, "per_token", is_symmetric=False),
    ("weight", "int8wo"): IntxFakeQuantizeConfig(torch.int8, "per_channel", is_symmetric=True),
    ("weight", "int4wo-g32"): Int4WeightFakeQuantizeConfig(group_size=32, activation_dtype=torch.bfloat16),
}
CLASSES = {"8da4w-g32": ["plain", "wide", "whole", "hard", "flat"], "int8wo": ["plain", "wide", "whole", "flat"],
           "int4wo-g32": ["plain", "wide", "whole", "flat"]}
SHAPES = {"weight": (3, 64), "input": (4, 44)}
MODELS = {  # every linear layer, including the head
    "8da4w": QATConfig(Int8DynamicActivationIntxWeightConfig(weight_dtype=torch.int4, weight_granularity=PerGroup(GROUP)),
                       step="prepare"),
    # Int4WeightOnlyConfig has no groups of 8
    "int4wo": QATConfig(weight_config=Int4WeightFakeQuantizeConfig(group_size=GROUP, activation_dtype=torch.bfloat16),
                        step="prepare"),
    "int8wo": QATConfig(IntxWeightOnlyConfig(weight_dtype=torch.int8, granularity=PerAxis(0)), step="prepare"),
}


class Clamp(torch.autograd.Function):
    """torch.clamp with its gradient before PyTorch 2.15, which also passes at the bounds."""

    @staticmethod
    def forward(ctx, x, low, high):
        ctx.save_for_backward((x >= (low if low is not None else x)) & (x <= (high if high is not None else x)))
        return ORIGINAL(x, low, high)

    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[0], None, None


ORIGINAL = torch.clamp


def clamp(x, min=None, max=None):
    numbers = all(v is None or isinstance(v, (int, float)) for v in (min, max))
    return Clamp.apply(x, min, max) if numbers and x.requires_grad else ORIGINAL(x, min, max)


def matrix(tensor, rows, columns, kind):
    if kind == "flat":
        return numpy.repeat(values(tensor, rows, columns, "plain")[:, :1], columns, axis=1)
    return values(tensor, rows, columns, kind)


def write_quantizers(path, about):
    with open(path, "w") as f:
        f.write(f"# {about}, seed {SEED}, python3 tools/golden/make_qat_golden.py tests/golden/train\n")
        tensor = 0
        for (side, scheme), config in QUANTIZERS.items():
            for kind in CLASSES[scheme]:
                rows, columns = SHAPES[side]
                x = torch.from_numpy(matrix(tensor, rows, columns, kind)).requires_grad_()
                y = FakeQuantizerBase.from_config(config)(x)
                y.backward(torch.from_numpy(values(tensor + 1, rows, columns, "plain")))
                line = [side, scheme, kind, tensor, rows, columns]
                line += [t.detach().numpy().astype("<f4").tobytes().hex() for t in (y, x.grad)]
                f.write(" ".join(map(str, line)) + "\n")
                tensor += 2


def write_model(folder, name, config, about):
    model = build("qwen2").float()
    model.load_state_dict(load_file(f"{folder}/qwen2/model.safetensors"))
    quantize_(model, config)
    rows = load_file(f"{folder}/qwen2_gradients.safetensors")["rows"].long()
    total, count = 0.0, 0
    for row, lengths in zip(rows, ROWS):
        at = 0
        for length in lengths:
            logits = model(row[at:at + length][None]).logits[0]
            total = total + torch.nn.functional.cross_entropy(logits, row[at + 1:at + length + 1], reduction="sum")
            at += length
            count += length
    (total / count).backward()
    tensors = {n: p.grad.contiguous() for n, p in model.named_parameters()}
    tensors["loss"] = total.detach().double().reshape(1)
    save_file(tensors, f"{folder}/qat_{name}.safetensors", about)


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    torch.use_deterministic_algorithms(True)
    torch.clamp = torch.Tensor.clamp = clamp
    tools = f"torchao {torchao.__version__}, torch {torch.__version__.split('+')[0]}, numpy {numpy.__version__}"
    write_quantizers(f"{sys.argv[1]}/qat.txt", tools)
    for name, config in MODELS.items():
        write_model(sys.argv[1], name, config,
                    {"tool": f"{tools}, transformers {transformers.__version__}", "seed": "none",
                     "command": "tools/golden/make_qat_golden.py tests/golden/train"})
