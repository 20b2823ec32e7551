#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes Nibble's own dialect, version 1, from its specification (docs/formats.md), independently of Nibble:
tests/golden/formats/nibble_1.safetensors, and with quantized biases nibble_1_biases.safetensors.

Usage: python3 tools/golden/make_nibble_files.py
Needs: torch, safetensors.

One tiny weight per code, granularity, zero and activation: SCHEME.VARIANT._weight_qdata and its other tensors with
random codes and scales, n 3, k 35 (odd, a short last group), and SCHEME.VARIANT.dequantized, their f32 values. With biases n
is 35, so that the last group of 32 is short, and SCHEME.VARIANT.bias_values has the values of the bias.
"""
import json
import sys

import torch
from safetensors.torch import save_file

N, K, SEED = 3, 35, 20261122
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
MADE_BY = f"torch {torch.__version__}, seed {SEED}, python3 tools/golden/make_nibble_files.py"
BF16, F32, I8 = torch.bfloat16, torch.float32, torch.int8

# name: code, group (0 row, -1 tensor), zero, act, scale type, further description members
CASES = {
    "8da4w-g32.f": ("i4", 32, "none", "i8_token", BF16, {}),
    "8da4w-g32-actsym.f": ("i4", 32, "none", "i8_token", F32, {"act_symmetric": True}),
    "8da4w-g7-asym-ao017.f": ("i4", 7, "int", "i8_token", BF16, {"formula": "ao017"}),
    "8da4w-g32-static.f": ("i4", 32, "none", "i8_static", F32, {}),
    "4da4w-g64.f": ("i4", 64, "none", "i4_token", BF16, {}),
    "int4wo-g32.f": ("i4", 32, "float", "float", BF16, {}),
    "int4wo-row-tinygemm.f": ("i4", 0, "float", "float", F32, {"formula": "tinygemm"}),
    "int8wo.f": ("i8", 0, "none", "float", F32, {}),
    "int8wo-tensor-asym.f": ("i8", -1, "int", "float", BF16, {}),
    "int8dq-g32.f": ("i8", 32, "none", "i8_token", F32, {"act_symmetric": True}),
    "fp8wo.f": ("e4m3", 0, "none", "float", F32, {}),
    "fp8dq-tensor.f": ("e4m3", -1, "none", "e4m3_token", F32, {"act_symmetric": True}),
    "e5m2+float.f": ("e5m2", 0, "none", "float", F32, {}),
    "mxfp8-floor.f": ("mx8", 32, "none", "mx8", None, {"rounding": "floor", "act_symmetric": True}),
    "mxfp4.f": ("mx4", 32, "none", "float", None, {}),
    "mxfp4dq.f": ("mx4", 32, "none", "mx4", None, {"act_symmetric": True}),
    "nvfp4.f": ("nv4", 16, "none", "float", None, {"whole": "scale"}),
    "nvfp4.divisor": ("nv4", 16, "none", "float", None, {"whole": "divisor"}),
    "nvfp4-block.f": ("nv4", 16, "none", "float", None, {}),
    "nvfp4dq.f": ("nv4", 16, "none", "nv4", None, {"whole": "scale", "act_symmetric": True}),
}


def pack(codes):
    codes = torch.nn.functional.pad(codes.to(torch.uint8) & 15, (0, K % 2))
    return codes[:, 0::2] | codes[:, 1::2] << 4


def weight(code, group, zero, scale_type, whole):
    """The stored tensors and the values."""
    rows, size = (1 if group < 0 else N), (group if group > 0 else K)
    groups = -(-K // size)
    spread = lambda t: t.float().repeat_interleave(size, 1)[:, :K]
    parts = {}
    if code in ("i4", "i8"):
        top = 8 if code == "i4" else 128
        codes = torch.randint(-top, top, (N, K))
        parts["_weight_qdata"] = pack(codes) if code == "i4" else codes.to(I8)
        values = codes.float()
    elif code in ("mx4", "nv4"):
        codes = torch.randint(0, 16, (N, K))
        parts["_weight_qdata"] = pack(codes)
        values = E2M1[codes]
    else:
        codes = torch.randn(N, K).to(torch.float8_e5m2 if code == "e5m2" else torch.float8_e4m3fn)
        parts["_weight_qdata"] = codes
        values = codes.float()
    if code in ("mx8", "mx4"):
        scale = torch.randint(110, 130, (rows, groups), dtype=torch.uint8).view(torch.float8_e8m0fnu)
    elif code == "nv4":
        scale = (torch.rand(rows, groups) * 300 + 1).to(torch.float8_e4m3fn)
    else:
        scale = (torch.rand(rows, groups) * 0.02 + 0.001).to(scale_type)
    parts["_weight_scale"] = scale
    factor = scale.float()
    if whole == "scale":
        parts["_weight_per_tensor_scale"] = torch.tensor(6.25e-5)
        factor = factor * parts["_weight_per_tensor_scale"]
    elif whole == "divisor":
        parts["_weight_per_tensor_divisor"] = torch.tensor(15999.0)
        factor = factor / parts["_weight_per_tensor_divisor"]
    if zero == "int":
        parts["_weight_zero_point"] = torch.randint(-8, 8, (rows, groups)).to(I8)
        return parts, (values - spread(parts["_weight_zero_point"])) * spread(factor)
    if zero == "float":
        parts["_weight_zero_point"] = (torch.randn(rows, groups) * 0.02).to(scale_type)
        return parts, values * spread(factor) + spread(parts["_weight_zero_point"])
    return parts, values * spread(factor)


BIASES = {"int8wo.int8": ("int8", "none", "float"), "int8wo-asym.int8": ("int8", "int", "float"),
          "int8dq-static.int32": ("int32", "none", "i8_static")}


def bias(form, symmetric, act_scale, row_scales):
    """The stored tensors, the description and the values."""
    n = len(row_scales)
    if form == "int32":
        codes = torch.randint(-100000, 100000, (n,), dtype=torch.int32)
        values = (codes.double() * (act_scale.double() * row_scales.double())).float()
        return {"_bias_qdata": codes}, {"form": form, "shape": [n]}, values
    codes, scales = torch.randint(-128, 128, (n,)).to(I8), torch.rand(-(-n // 32)) * 0.1 + 0.001
    zeros = torch.randint(-128, 128, scales.shape).to(I8) * (not symmetric)
    spread = lambda t: t.float().repeat_interleave(32)[:n]
    parts = {"_bias_qdata": codes, "_bias_scale": scales} | ({} if symmetric else {"_bias_zero_point": zeros})
    about = {"form": form, "group": 32, "symmetric": symmetric, "shape": [n]}
    return parts, about, (codes.float() - spread(zeros)) * spread(scales)


def biases():
    tensors, metadata, n, k = {}, {"nibble": "1"}, 35, 6
    for name, (form, zero, act) in BIASES.items():
        codes, scales = torch.randint(-128, 128, (n, k)).to(I8), torch.rand(n, 1) * 0.02 + 0.001
        zeros = torch.randint(-8, 8, (n, 1)).to(I8) * (zero == "int")
        act_scale = torch.tensor([0.0125])
        parts, about, values = bias(form, zero == "none", act_scale, scales[:, 0])
        parts |= {"_weight_qdata": codes, "_weight_scale": scales, "dequantized": (codes.float() - zeros) * scales,
                  "bias_values": values}
        if zero == "int":
            parts["_weight_zero_point"] = zeros
        if act == "i8_static":
            parts["input_scale"] = act_scale
        metadata[f"{name}.weight"] = json.dumps(
            {"scheme": name.rsplit(".", 1)[0], "code": "i8", "granularity": "row", "symmetric": zero == "none", "zero": zero,
             "act": act, "act_symmetric": True, "rounding": "rceil", "formula": "torchao", "shape": [n, k]})
        metadata[f"{name}.bias"] = json.dumps(about)
        tensors |= {f"{name}.{part}": t.contiguous() for part, t in parts.items()}
    metadata["made_by"] = MADE_BY
    save_file(tensors, "tests/golden/formats/nibble_1_biases.safetensors", metadata=metadata)


def main():
    torch.manual_seed(SEED)
    tensors, metadata = {}, {"nibble": "1"}
    for name, (code, group, zero, act, scale_type, more) in CASES.items():
        parts, values = weight(code, group, zero, scale_type, more.get("whole"))
        about = {"scheme": name.rsplit(".", 1)[0], "code": code,
                 "granularity": "group" if group > 0 else "row" if group == 0 else "tensor"}
        if group > 0:
            about["group"] = group
        about |= {"symmetric": zero == "none", "zero": zero, "act": act, "act_symmetric": more.get("act_symmetric", False),
                  "rounding": more.get("rounding", "rceil"), "formula": more.get("formula", "torchao"), "shape": [N, K]}
        metadata[f"{name}.weight"] = json.dumps(about)
        tensors |= {f"{name}.{part}": t.contiguous() for part, t in parts.items()}
        if act == "i8_static":
            tensors[f"{name}.input_scale"] = torch.tensor([0.0125])
            tensors[f"{name}.input_zero_point"] = torch.tensor([-3], dtype=torch.int32)
        tensors[f"{name}.bias"] = torch.randn(N)
        tensors[f"{name}.dequantized"] = values.contiguous()
    metadata["made_by"] = MADE_BY
    save_file(tensors, "tests/golden/formats/nibble_1.safetensors", metadata=metadata)
    biases()


if __name__ == "__main__":
    sys.exit(main())
