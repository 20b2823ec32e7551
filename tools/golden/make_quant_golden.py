#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes codes and scales of torchao 0.18 for small weights (tests/golden/quant_torchao.txt); with
--activations for f32 activations (tests/golden/quant_activations.txt), with --fp4 for 4-bit floats
(tests/golden/quant_fp4.txt), with --intx for integers of 1, 2, 3, 5, 6 and 7 bits (tests/golden/quant_intx.txt).

Usage: python3 tools/golden/make_quant_golden.py > tests/golden/quant_torchao.txt
       python3 tools/golden/make_quant_golden.py --activations > tests/golden/quant_activations.txt
       python3 tools/golden/make_quant_golden.py --fp4 > tests/golden/quant_fp4.txt
       python3 tools/golden/make_quant_golden.py --intx > tests/golden/quant_intx.txt
Needs: torch, torchao==0.18.0. Runs on the CPU.

Lines:  input NAME TYPE N K HEX             values, little endian
        case SCHEME INPUT CODES SCALES ZEROS   hex; codes one byte each, scales and zeros in their own
                                             type, [n][groups]; "-" for no zeros; nvfp4: the
                                             tensor's scale, f32; nvfp4dq's activations:
                                             f32 scales, the block's times the token's. SCHEME:TYPE is
                                             a config whose scale_dtype is TYPE
What torchao cannot run on a CPU is computed here by its formula: int4wo (MSLK's int4_row_quantize_zp, which
Int4Tensor calls). -ao017 is 0.18 with the default eps of 0.17; compared with 0.17.0 itself on 2026-11-20
(22 cases, all equal). 4-bit activations are Nibble's: torchao's formula at 4 bits. Where torchao's fp8 scale is 0
its codes are NaN: there the codes are 0 and the scale 1.
"""
import sys

import torch
import torchao
from torchao.prototype.mx_formats.inference_workflow import NVFP4WeightOnlyConfig
from torchao.prototype.mx_formats.kernels import unpack_uint4
from torchao.prototype.mx_formats.mx_tensor import ScaleCalculationMode, to_mx
from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor, per_tensor_amax_to_scale
from torchao.prototype.mx_formats.utils import from_blocked
from torchao.quantization import (
    Int8DynamicActivationInt8WeightConfig,
    Int8DynamicActivationIntxWeightConfig,
    Int8WeightOnlyConfig,
    IntxWeightOnlyConfig,
    PerAxis,
    PerGroup,
    PerRow,
    PerTensor,
    quantize_,
)
from torchao.quantization.quant_primitives import (
    MappingType,
    _choose_qparams_affine_tinygemm,
    _quantize_affine_tinygemm,
    choose_qparams_affine,
    quantize_affine,
)
from torchao.quantization.quantize_.workflows import Float8Tensor

SEED = 20261120
SYM, ASYM = MappingType.SYMMETRIC, MappingType.ASYMMETRIC
NAMES = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}


def hexed(t):
    return t.contiguous().view(torch.uint8).flatten().numpy().tobytes().hex()


def special(dtype):
    """Rows of 64 = two groups of 32 that cover corner cases of the formulas."""
    g = torch.Generator().manual_seed(SEED + 1)
    noise = torch.randn(10, 64, generator=g)
    w = noise.clone()
    w[0] = 0
    w[1] = 0.37
    w[2] = -2
    w[3] = noise[3] * 1e-3  # bf16 scales under 0.17's eps
    w[4, 17] = 6e4 if dtype == torch.float16 else 3e38
    w[5] = noise[5] * (3e-7 if dtype == torch.float16 else 1e-40)  # denormals
    w[6, :32] = 0
    w[7] = torch.where(noise[7] > 0, 0.0, -0.0)
    w[8] = 1 + noise[8].abs() * 0.01  # one-sided, far from 0
    w[9] = -noise[9].abs()
    return w.to(dtype)


def linear(w):
    layer = torch.nn.Linear(w.shape[1], w.shape[0], bias=False, dtype=w.dtype)
    layer.weight = torch.nn.Parameter(w.clone(), requires_grad=False)
    return layer


def by_config(config):
    def run(w):
        layer = linear(w)
        quantize_(layer, config)
        q = layer.weight
        return q.qdata, q.scale, getattr(q, "zero_point", None)

    return run


def intx(bits, group, mapping, scales=None):
    granularity = PerGroup(group) if group else PerAxis(0)
    return by_config(
        IntxWeightOnlyConfig(getattr(torch, f"int{bits}"), granularity, mapping, scales)
    )


def da_intx(bits, group, mapping, scales=None):
    granularity = PerGroup(group) if group else PerAxis(0)
    return by_config(
        Int8DynamicActivationIntxWeightConfig(
            getattr(torch, f"int{bits}"), granularity, mapping, scales
        )
    )


def old_eps(bits, group, mapping):
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1

    def run(w):
        block = (1, group or w.shape[1])
        scale, zero = choose_qparams_affine(
            w, mapping, block, torch.int8, low, high, eps=torch.finfo(w.dtype).eps,
            zero_point_dtype=torch.int8, keepdim=True,
        )
        return quantize_affine(w, block, scale, zero, torch.int8, low, high), scale, zero

    return run


def int4_plain(group):
    def run(w):
        x = w.reshape(-1, group or w.shape[1]).float()
        most, least = x.amax(1, keepdim=True), x.amin(1, keepdim=True)
        scale = (most - least).clamp(min=1e-6) / 15
        zero = least + scale * 8
        codes = ((x - least) / scale).round().clamp(0, 15) - 8
        shape = (w.shape[0], -1)
        return codes.to(torch.int8), scale.to(w.dtype).view(shape), zero.to(w.dtype).view(shape)

    return run


def tinygemm(group):
    def run(w):
        block = (1, group)
        scale, zero = _choose_qparams_affine_tinygemm(
            w, ASYM, block, torch.int32, 0, 15, scale_dtype=w.dtype, zero_point_dtype=w.dtype
        )
        q = _quantize_affine_tinygemm(w, block, scale, zero, torch.int32, 0, 15)
        return (q - 8).to(torch.int8), scale, zero

    return run


def fp8(granularity):
    def run(w):
        q = Float8Tensor.from_hp(w, granularity=granularity)
        scale, codes = q.scale.clone(), q.qdata.view(torch.uint8).clone()
        codes[(scale == 0).expand(codes.shape)] = 0
        scale[scale == 0] = 1
        return codes, scale, None

    return run


def mx(mode):
    def run(w):
        scale, codes = to_mx(w, torch.float8_e4m3fn, 32, mode)
        return codes.view(torch.uint8), scale.view(torch.uint8), None

    return run


def mx4(mode):
    def run(w):
        scale, codes = to_mx(w, torch.float4_e2m1fn_x2, 32, mode)
        return unpack_uint4(codes), scale.view(torch.uint8), None

    return run


def nv4(two_levels):
    """NVFP4WeightOnlyConfig if it supports the shape (n a multiple of 16), else the function that it calls."""

    def run(w):
        n, k = w.shape
        if n % 16 == 0:
            layer = linear(w)
            quantize_(layer, NVFP4WeightOnlyConfig(use_dynamic_per_tensor_scale=two_levels))
            q = layer.weight.data
        else:
            whole = per_tensor_amax_to_scale(w.abs().max()) if two_levels else None
            q = NVFP4Tensor.to_nvfp4(w, per_tensor_scale=whole, is_swizzled_scales=True)
        scales = from_blocked(q.scale, n, k // 16)
        return unpack_uint4(q.qdata), scales.view(torch.uint8), q.per_tensor_scale

    return run


# scheme, function, whether its zeros are written
CASES = [
    ("int8wo", by_config(Int8WeightOnlyConfig(granularity=PerRow())), False),
    ("int8wo-tensor", by_config(Int8WeightOnlyConfig(granularity=PerTensor())), False),
    ("int8dq", by_config(Int8DynamicActivationInt8WeightConfig(granularity=PerRow())), False),
    ("int8dq-tensor", by_config(Int8DynamicActivationInt8WeightConfig(granularity=PerTensor())), False),
    ("int8wo-g32", intx(8, 32, SYM), False),
    ("int8wo-g32-asym", intx(8, 32, ASYM), True),
    ("int8wo-asym", intx(8, 0, ASYM), True),
    ("int8wo-g32-ao017", old_eps(8, 32, SYM), False),
    ("int8dq-g32-actasym", da_intx(8, 32, SYM), False),
    ("int4wo-g32-sym", intx(4, 32, SYM), False),
    ("int4wo-row-sym", intx(4, 0, SYM), False),
    ("int4wo-g32-sym-ao017", old_eps(4, 32, SYM), False),
    ("8da4w-g32", da_intx(4, 32, SYM), False),
    ("8da4w-g16", da_intx(4, 16, SYM), False),
    ("8da4w-row", da_intx(4, 0, SYM), False),
    ("8da4w-g32-asym", da_intx(4, 32, ASYM), True),
    ("8da4w-g32-ao017", old_eps(4, 32, SYM), False),
    ("8da4w-g32-asym-ao017", old_eps(4, 32, ASYM), True),
    ("4da4w-g32", da_intx(4, 32, SYM), False),
    ("int4wo-g32-intzero", intx(4, 32, ASYM), True),
    ("int4wo-row-intzero", intx(4, 0, ASYM), True),
    ("int4wo-g32-intzero-ao017", old_eps(4, 32, ASYM), True),
    ("int4wo-g32-intzero:f32", intx(4, 32, ASYM, torch.float32), True),
    ("int4wo-g32-intzero:bf16", intx(4, 32, ASYM, torch.bfloat16), True),
    ("int4wo-g32-intzero:f16", intx(4, 32, ASYM, torch.float16), True),
    ("int8wo-g32-asym:f32", intx(8, 32, ASYM, torch.float32), True),
    ("int8wo-g32-asym:bf16", intx(8, 32, ASYM, torch.bfloat16), True),
    ("int8wo-g32:bf16", intx(8, 32, SYM, torch.bfloat16), False),
    ("8da4w-g32:f32", da_intx(4, 32, SYM, torch.float32), False),
    ("int4wo-g32", int4_plain(32), True),
    ("int4wo-row", int4_plain(0), True),
    ("int4wo-g32-tinygemm", tinygemm(32), True),
    ("fp8wo", fp8(PerRow()), False),
    ("fp8wo-tensor", fp8(PerTensor()), False),
    ("fp8dq", fp8(PerRow()), False),
    ("mxfp8", mx(ScaleCalculationMode.RCEIL), False),
    ("mxfp8-floor", mx(ScaleCalculationMode.FLOOR), False),
]


def per_token(bits, mapping, eps=None):
    """torchao's dynamic activations: IntxUnpackedToInt8Tensor's without eps, Int8Tensor's with f32's eps."""
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1

    def run(x):
        scale, zero = choose_qparams_affine(
            x, mapping, (1, x.shape[1]), torch.int8, low, high, eps=eps, zero_point_dtype=torch.int8,
            keepdim=True,
        )
        codes = quantize_affine(x, (1, x.shape[1]), scale, zero, torch.int8, low, high)
        return codes, scale, zero

    return run


def nv4_tokens(two_levels):
    """NVFP4DynamicActivationNVFP4WeightConfig's activations, with each token as its own
    batch, as torchao has one scale per batch. If the scale is 0 or its inverse infinite, torchao's codes are NaN."""

    def run(x):
        tokens = []
        for token in x:
            whole = per_tensor_amax_to_scale(token.abs().max()) if two_levels else None
            q = NVFP4Tensor.to_nvfp4(token[None], per_tensor_scale=whole)
            codes, scale = unpack_uint4(q.qdata), q.scale.float()
            if two_levels:
                scale = whole * scale
                if not torch.isfinite(64 / whole):
                    codes, scale = torch.zeros_like(codes), torch.ones_like(scale)
            tokens.append((codes, scale))
        return torch.cat([codes for codes, _ in tokens]), torch.cat([scale for _, scale in tokens]), None

    return run


def nv4_ties(g):
    """Values halfway between two codes at their scales, where the order of roundings decides."""
    halves = torch.tensor([6, 0.25, -0.75, 1.25, -1.75, 2.5, -3.5, 5, 0.25, 0.75, -1.25, 1.75, -2.5, 3.5, -5, 0.75])
    x = torch.rand(8, 4, 1, generator=g) * torch.tensor([1e-3, 1, 30, 1e4]).repeat(2).reshape(8, 1, 1) * halves
    for _ in range(2):
        whole = per_tensor_amax_to_scale(x.abs().amax((1, 2), keepdim=True))
        scale = (x.abs().amax(2, keepdim=True) / 6 / whole).clamp(2**-6, 448).to(torch.float8_e4m3fn).float()
        x[:, :, 1:] = (halves * (scale * whole))[:, :, 1:]
    return x.reshape(8, 64)


F32_EPS = torch.finfo(torch.float32).eps

ACTIVATIONS = [
    ("8da4w", per_token(8, ASYM)),
    ("8da4w-actsym", per_token(8, SYM)),
    ("8da4w-ao017", per_token(8, ASYM, F32_EPS)),
    ("8da4w-actsym-ao017", per_token(8, SYM, F32_EPS)),
    ("int8dq", per_token(8, SYM, F32_EPS)),
    ("int8dq-actasym", per_token(8, ASYM, F32_EPS)),
    ("4da4w", per_token(4, ASYM)),
    ("4da4w-actsym", per_token(4, SYM)),
    ("fp8dq", fp8(PerRow())),
    ("mxfp8", mx(ScaleCalculationMode.RCEIL)),
    ("mxfp8-floor", mx(ScaleCalculationMode.FLOOR)),
    ("nvfp4dq", nv4_tokens(True)),
    ("nvfp4dq-block", nv4_tokens(False)),
]


def activations():
    g = torch.Generator().manual_seed(SEED + 2)
    wide = torch.randn(4, 96, generator=g) * torch.tensor([[1e-3], [1.0], [30.0], [1e-20]])
    print(f"# torchao {torchao.__version__}, torch {torch.__version__.split('+')[0]}, seed {SEED},"
          " python3 tools/golden/make_quant_golden.py --activations")
    for title, x in (("wide", wide), ("special", special(torch.float32)), ("ties", nv4_ties(g))):
        print("input", title, "f32", *x.shape, hexed(x))
        for scheme, run in ACTIVATIONS:
            if title == "ties" and not scheme.startswith("nvfp4"):
                continue
            codes, scales, zeros = run(x)
            print("case", scheme, title, hexed(codes), hexed(scales),
                  "-" if zeros is None else hexed(zeros))


FP4 = [
    ("mxfp4", mx4(ScaleCalculationMode.RCEIL)),
    ("mxfp4-floor", mx4(ScaleCalculationMode.FLOOR)),
    ("nvfp4", nv4(True)),
    ("nvfp4-block", nv4(False)),
]


def fp4():
    g = torch.Generator().manual_seed(SEED + 3)
    small, tall = torch.randn(3, 64, generator=g), torch.randn(16, 64, generator=g) * 0.05
    print(f"# torchao {torchao.__version__}, torch {torch.__version__.split('+')[0]}, seed {SEED},"
          " python3 tools/golden/make_quant_golden.py --fp4")
    for name, make in (
        ("small", lambda d: small.to(d)),
        ("tall", lambda d: tall.to(d)),  # a shape that NVFP4WeightOnlyConfig supports
        ("special", special),
    ):
        for dtype in (torch.float32, torch.bfloat16):
            w = make(dtype)
            title = f"{name}_{NAMES[dtype]}"
            print("input", title, NAMES[dtype], *w.shape, hexed(w))
            for scheme, run in FP4:
                codes, scales, whole = run(w)
                print("case", scheme, title, hexed(codes), hexed(scales),
                      "-" if whole is None else hexed(whole.reshape(1)))


def narrow(bits):
    name = f"int{bits}wo"
    return [
        (f"{name}-g32", intx(bits, 32, SYM), False),
        (f"{name}-g32-asym", intx(bits, 32, ASYM), True),
        (f"{name}-row", intx(bits, 0, SYM), False),
        (f"{name}-g32-asym-ao017", old_eps(bits, 32, ASYM), True),
        (f"{name}-g32-asym:f32", intx(bits, 32, ASYM, torch.float32), True),
    ]


def all_narrow():
    g = torch.Generator().manual_seed(SEED + 4)
    small = torch.randn(3, 64, generator=g)
    print(f"# torchao {torchao.__version__}, torch {torch.__version__.split('+')[0]}, seed {SEED},"
          " python3 tools/golden/make_quant_golden.py --intx")
    for name, make in (("small", lambda d: small.to(d)), ("special", special)):
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            w = make(dtype)
            title = f"{name}_{NAMES[dtype]}"
            print("input", title, NAMES[dtype], *w.shape, hexed(w))
            for bits in (1, 2, 3, 5, 6, 7):
                for scheme, run, has_zeros in narrow(bits):
                    if name == "special" and "g32-asym" not in scheme[-8:]:
                        continue
                    codes, scales, zeros = run(w)
                    print("case", scheme, title, hexed(codes), hexed(scales),
                          hexed(zeros) if has_zeros else "-")


def wanted(scheme, name, dtype):
    """True for all schemes on small f32 and bf16 inputs, and on other inputs for those that can differ there."""
    if dtype == torch.float16:  # torchao has no MX for f16
        return scheme.startswith(("8da4w-g32", "int8wo-g32", "fp8wo")) or scheme in (
            "int4wo-g32", "int4wo-g32-intzero", "int4wo-g32-intzero:f32")
    if name == "small":
        return True
    if scheme.endswith(":f16"):
        return False  # scales below f16's range: torchao's codes are then arbitrary
    if scheme in ("int8dq", "int8dq-tensor", "int8dq-g32-actasym", "4da4w-g32", "fp8dq", "int4wo-g32-sym"):
        return False  # duplicates other weights
    return name == "special" or (scheme != "8da4w-g16" and "ao017" not in scheme)


def main():
    if torchao.__version__ != "0.18.0":
        sys.exit(f"torchao is {torchao.__version__}, not 0.18.0")
    if sys.argv[1:] == ["--activations"]:
        return activations()
    if sys.argv[1:] == ["--fp4"]:
        return fp4()
    if sys.argv[1:] == ["--intx"]:
        return all_narrow()
    g = torch.Generator().manual_seed(SEED)
    small, wide = torch.randn(3, 64, generator=g), torch.randn(5, 96, generator=g) * 0.05
    print(f"# torchao {torchao.__version__}, torch {torch.__version__.split('+')[0]}, seed {SEED},"
          " python3 tools/golden/make_quant_golden.py; int4wo, -ao017 and zero fp8 scales: see there")
    for name, make, dtypes in (
        ("small", lambda d: small.to(d), (torch.float32, torch.bfloat16, torch.float16)),
        ("wide", lambda d: wide.to(d), (torch.bfloat16,)),
        ("special", special, (torch.float32, torch.bfloat16, torch.float16)),
    ):
        for dtype in dtypes:
            w = make(dtype)
            title = f"{name}_{NAMES[dtype]}"
            print("input", title, NAMES[dtype], *w.shape, hexed(w))
            for scheme, run, has_zeros in CASES:
                if not wanted(scheme, name, dtype):
                    continue
                codes, scales, zeros = run(w)
                print("case", scheme, title, hexed(codes), hexed(scales),
                      hexed(zeros) if has_zeros else "-")


main()
