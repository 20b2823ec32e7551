#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the training casts and the three products of one linear layer by torchao 0.18:
tests/golden/train_casts.txt and, with --linear, tests/golden/train_linear.txt.

Usage: python3 tools/golden/make_train_golden.py > tests/golden/train_casts.txt
       python3 tools/golden/make_train_golden.py --linear > tests/golden/train_linear.txt
Needs: torch, torchao==0.18.0, numpy. Runs on the CPU.

Inputs are not in the files: both sides make them, value i of a tensor from splitmix64 of SEED + TENSOR * 2^32 + i
(see values()).

train_casts:   WHO mx8 ROUNDING DIM CLASS TENSOR ROWS COLUMNS RESULT...
               WHO FORMAT GRANULARITY DIM CLASS TENSOR ROWS COLUMNS RESULT...
  WHO          torchao: its results; numpy: shapes that it refuses, by the formulas below (which are compared with torchao's
               results where these exist)
  FORMAT       e4m3, e5m2; GRANULARITY row, row2 (scales are powers of two), tensor, tensor2
  DIM          0: blocks and scales along rows; 1: along columns, with codes and scales of the transpose
  RESULT       hex CODES SCALES for some, sum CODES SCALES (see checksum()) for the others. Scales of mx8 are e8m0 bytes; other
               scales are f32, the inverse of torchao's factor
train_linear:  DTYPE ROUNDING CLASS M N K RESULT of y, dx, dW: sum of f32 values whose sums are exact in any order, or hex
               of f32. Inputs are tensors 0 (x), 1 (W), 2 (dy)
"""
import sys

import numpy
import torch
import torchao
from torchao.float8.config import ScalingGranularity
from torchao.float8.float8_scaling_utils import hp_tensor_to_float8_dynamic
from torchao.float8.float8_training_tensor import LinearMMConfig
from torchao.prototype.moe_training.mxfp8_linear import mx_mm
from torchao.prototype.mx_formats.config import (
    MXFP8Dim0CastKernelChoice,
    MXFP8Dim1CastKernelChoice,
    ScaleCalculationMode,
)
from torchao.prototype.mx_formats.mx_tensor import to_mx
from torchao.quantization.quantize_.common.kernel_preference import KernelPreference

SEED = 20261120
MODES = {"floor": ScaleCalculationMode.FLOOR, "rceil": ScaleCalculationMode.RCEIL}
DTYPES = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
#          mantissa bits, exponent of the smallest normal, largest value
FORMATS = {"e4m3": (3, -6, 448.0), "e5m2": (2, -14, 57344.0)}
F32 = numpy.float32


def mix(z):
    z = z + numpy.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> numpy.uint64(30))) * numpy.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> numpy.uint64(27))) * numpy.uint64(0x94D049BB133111EB)
    return z ^ (z >> numpy.uint64(31))


def values(tensor, rows, columns, kind):
    """plain: uniform in -1..1; wide: times 2^-20..20; hard: zeros, denormals and large ones among them; whole:
    integers in -60..60, times 1/2, 1 or 2 by row, whose products' sums f32 holds exactly."""
    i = numpy.arange(rows * columns, dtype=numpy.uint64)
    z = mix(numpy.uint64(SEED + (tensor << 32)) + i)
    unit = (z & numpy.uint64(0xFFFFFFFF)).astype(numpy.uint32).view(numpy.int32).astype(F32) * F32(2.0**-31)
    power = ((z >> numpy.uint64(32)) % numpy.uint64(41)).astype(numpy.int32) - 20
    if kind == "wide":
        unit = numpy.ldexp(unit, power)
    elif kind == "hard":
        case = (z >> numpy.uint64(40)) % numpy.uint64(16)
        row = i // numpy.uint64(columns)
        unit = numpy.select(
            [case == 0, case == 1, row % numpy.uint64(8) == 1, row % numpy.uint64(8) == 2],
            [F32(0), F32(-0.0), numpy.ldexp(unit, -130), numpy.ldexp(unit, 120)],
            numpy.ldexp(unit, power),
        )
    elif kind == "whole":
        whole = ((z >> numpy.uint64(8)) % numpy.uint64(121)).astype(numpy.int32) - 60
        row = (i // numpy.uint64(columns)).astype(numpy.int32)
        unit = numpy.ldexp(whole.astype(F32), row % 3 - 1)
    return unit.astype(F32).reshape(rows, columns)


def checksum(data):
    data = numpy.frombuffer(data, dtype=numpy.uint8).astype(numpy.uint64)
    weights = mix(numpy.arange(len(data), dtype=numpy.uint64))
    return f"{int(((data + numpy.uint64(1)) * weights).sum(dtype=numpy.uint64)):016x}"


# ---- the formulas, in double, for shapes that torchao refuses ----


def exponent_of(magnitude, least):
    return numpy.where(magnitude == 0, least, numpy.maximum(numpy.frexp(magnitude)[1] - 1, least))


def code_of(v, form):
    """The byte of the nearest value, ties to even, saturated; v is a double."""
    mantissa, least, most = FORMATS[form]
    magnitude = numpy.abs(v)
    exponent = exponent_of(magnitude, least)
    step = numpy.ldexp(1.0, exponent - mantissa)
    rounded = numpy.minimum(numpy.rint(magnitude / step) * step, most)
    exponent = exponent_of(rounded, least)
    places = numpy.ldexp(rounded, mantissa - exponent).astype(numpy.int64)  # 2^mantissa.. of a normal
    code = places + (exponent - least) * (1 << mantissa)
    return (code + numpy.where(numpy.signbit(v), 128, 0)).astype(numpy.uint8)


def mx8_by_formula(x, mode):
    rows, length = x.shape
    groups = -(-length // 32)
    padded = numpy.zeros((rows, groups * 32), F32)
    padded[:, :length] = x
    blocks = padded.reshape(rows, groups, 32)
    amax = numpy.abs(blocks).max(axis=2)
    if mode == "floor":
        exponent = (amax.view(numpy.int32) >> 23) - 127 - 8
        byte = numpy.clip(exponent, -127, 127) + 127
        power = numpy.maximum(byte, 1) - 127
    else:
        d = amax / F32(448)
        exponent = numpy.frexp(d.astype(numpy.float64))
        up = exponent[1] - (exponent[0] == 0.5)  # the least power of two that is at least d
        byte = numpy.where(d == 0, 0, numpy.clip(up + 127, 0, 254))
        power = numpy.where(byte == 0, 0, byte - 127)
    scaled = blocks.astype(numpy.float64) * numpy.ldexp(1.0, -power)[:, :, None]
    codes = code_of(scaled.astype(F32).astype(numpy.float64), "e4m3").reshape(rows, -1)[:, :length]
    return codes, byte.astype(numpy.uint8)


def f8_by_formula(x, form, granularity):
    most = FORMATS[form][2]
    amax = numpy.abs(x).max() if granularity.startswith("tensor") else numpy.abs(x).max(axis=1, keepdims=True)
    factor = (most / numpy.maximum(amax.astype(numpy.float64), 1e-12)).astype(F32)
    if granularity.endswith("2"):
        factor = numpy.ldexp(1.0, numpy.frexp(factor.astype(numpy.float64))[1] - 1).astype(F32)
    codes = code_of((x * factor).astype(numpy.float64), form)
    return codes, numpy.broadcast_to(F32(1) / factor, (x.shape[0], 1)).copy()


# ---- torchao ----


def mx8_by_torchao(x, mode):
    scale, data = to_mx(torch.from_numpy(x), torch.float8_e4m3fn, 32, MODES[mode])
    return data.view(torch.uint8).numpy(), scale.view(torch.uint8).numpy()


def f8_by_torchao(x, form, granularity):
    tensorwise = granularity.startswith("tensor")
    t = hp_tensor_to_float8_dynamic(
        torch.from_numpy(x),
        DTYPES[form],
        LinearMMConfig(),
        scaling_granularity=ScalingGranularity.TENSORWISE if tensorwise else ScalingGranularity.AXISWISE,
        axiswise_dim=None if tensorwise else -1,
        round_scales_to_power_of_2=granularity.endswith("2"),
    )
    scale = t._scale.reciprocal().reshape(-1, 1).expand(x.shape[0], 1)
    return t._data.view(torch.uint8).numpy(), scale.contiguous().numpy()


def put(who, form, how, dim, kind, tensor, shape, make):
    """Writes some results in full, to show where one differs, and a checksum of the others."""
    x = values(tensor, *shape, kind)
    codes, scales = make(numpy.ascontiguousarray(x.T if dim else x))
    codes, scales = codes.tobytes(), scales.tobytes()
    small = who == "torchao" and kind == "hard" and (form == "mx8" or how in ("row2", "tensor"))
    result = ("hex", codes.hex(), scales.hex()) if small else ("sum", checksum(codes), checksum(scales))
    print(who, form, how, dim, kind, tensor, *shape, *result)


def same(a, b):
    return all(numpy.array_equal(x, y) for x, y in zip(a, b))


def casts():
    shapes = {"hard": (32, 64), "plain": (96, 160), "wide": (256, 64)}
    odd = [(341, 256), (256, 341), (2000, 65), (33, 2256), (17, 31), (1, 2000), (2049, 1)]
    tensor = 0
    for how, form in [(m, "mx8") for m in MODES] + [
        (g, f) for f in FORMATS for g in ("row", "row2", "tensor", "tensor2")
    ]:
        official = (lambda x: mx8_by_torchao(x, how)) if form == "mx8" else (lambda x: f8_by_torchao(x, form, how))
        formula = (lambda x: mx8_by_formula(x, how)) if form == "mx8" else (lambda x: f8_by_formula(x, form, how))
        for dim in (0, 1):
            for kind, shape in shapes.items():
                tensor += 1
                x = values(tensor, *shape, kind)
                x = numpy.ascontiguousarray(x.T if dim else x)
                assert same(official(x), formula(x)), (form, how, dim, kind)
                put("torchao", form, how, dim, kind, tensor, shape, official)
            for shape in odd:
                tensor += 1
                put("numpy", form, how, dim, "wide", tensor, shape, formula)


# ---- one linear layer ----


def linear():
    for dtype, kind, shape in (
        ("f32", "whole", (96, 128, 64)),
        ("bf16", "whole", (96, 128, 64)),
        ("f32", "whole", (128, 96, 32)),
        ("f32", "plain", (32, 32, 64)),
    ):
        m, n, k = shape
        for mode, official in MODES.items():
            if kind == "plain" and mode == "floor":
                continue
            kinds = torch.float32 if dtype == "f32" else torch.bfloat16
            x = torch.from_numpy(values(0, m, k, kind)).to(kinds).requires_grad_()
            w = torch.from_numpy(values(1, n, k, kind)).to(kinds).requires_grad_()
            dy = torch.from_numpy(values(2, m, n, kind)).to(kinds)
            y = mx_mm.apply(
                x,
                w,
                *[torch.float8_e4m3fn] * 3,
                32,
                KernelPreference.EMULATED,
                MXFP8Dim0CastKernelChoice.TORCH,
                MXFP8Dim1CastKernelChoice.TORCH,
                official,
                False,
            )
            y.backward(dy)
            results = []
            for t in (y.detach(), x.grad, w.grad):
                data = (t.float().numpy() + F32(0)).tobytes()  # no minus zero
                results.append(data.hex() if kind == "plain" else checksum(data))
            print(dtype, mode, kind, *shape, "hex" if kind == "plain" else "sum", *results)


def main():
    sys.stdout.reconfigure(newline="\n")
    command = "python3 tools/golden/make_train_golden.py" + (" --linear" if "--linear" in sys.argv[1:] else "")
    versions = f"torchao {torchao.__version__}, torch {torch.__version__.split('+')[0]}, numpy {numpy.__version__}"
    print(f"# {versions}, seed {SEED}, {command}")
    with numpy.errstate(all="ignore"):
        (linear if "--linear" in sys.argv[1:] else casts)()


if __name__ == "__main__":
    main()
