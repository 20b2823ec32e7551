#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Codes, scales and values of torchao 0.18 for biases, as tests/golden/bias_int8.txt.

Usage: python3 tools/golden/make_bias_golden.py > tests/golden/bias_int8.txt
Needs: torch, torchao==0.18.0. Runs on the CPU.

torchao does not quantize biases. Each is passed as the only row of an f32 weight in groups of 32, and the rest after the last
whole group as a row of one short group.

Lines:  MAPPING N VALUES CODES SCALES ZEROS DEQUANTIZED   hex, little endian: f32, int8, f32, int8, f32
"""
import torch
import torchao
from torchao.quantization import IntxWeightOnlyConfig, PerGroup, quantize_
from torchao.quantization.quant_primitives import MappingType

SEED = 20261120


def hexed(t):
    return t.contiguous().view(torch.uint8).flatten().numpy().tobytes().hex()


def quantized(values, group, mapping):
    layer = torch.nn.Linear(len(values), 1, bias=False, dtype=torch.float32)
    layer.weight = torch.nn.Parameter(values.view(1, -1).clone(), requires_grad=False)
    quantize_(layer, IntxWeightOnlyConfig(weight_dtype=torch.int8, granularity=PerGroup(group), mapping_type=mapping))
    w = layer.weight
    return w.qdata.flatten(), w.scale.float().flatten(), w.zero_point.to(torch.int8).flatten(), w.dequantize().float().flatten()


def biases():
    g = torch.Generator().manual_seed(SEED)
    yield torch.randn(32, generator=g)
    yield torch.randn(96, generator=g) * 10
    yield torch.randn(70, generator=g) * 1e-3
    yield torch.randn(5, generator=g)
    corners = torch.randn(65, generator=g)
    corners[:32] = 0
    corners[32:64] = 1 + corners[32:64].abs() * 0.01  # one-sided, far from 0
    corners[64] = -3
    yield corners


def main():
    print(f"# torchao {torchao.__version__}, torch {torch.__version__.split('+')[0]}, seed {SEED}, "
          "python3 tools/golden/make_bias_golden.py")
    for values in biases():
        whole = len(values) // 32 * 32
        for mapping in (MappingType.SYMMETRIC, MappingType.ASYMMETRIC):
            pieces = [quantized(part, min(32, len(part)), mapping)
                      for part in (values[:whole], values[whole:]) if len(part) > 0]
            joined = [torch.cat(parts) for parts in zip(*pieces)]
            print(mapping.name.lower(), len(values), hexed(values), *(hexed(t) for t in joined))


if __name__ == "__main__":
    main()
