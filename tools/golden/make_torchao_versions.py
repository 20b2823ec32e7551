#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes files with each version of torchao: tests/golden/formats/torchao_VERSION.safetensors.

Usage: python3 tools/golden/make_torchao_versions.py        with that torchao importable
Needs: torch, safetensors, torchao 0.15 to 0.18. Runs on the CPU.

One tiny linear per class and variant that this version serializes, quantized by torchao and flattened by its own
safetensors support: SCHEME.VARIANT.weight, with Nibble's scheme name, and SCHEME.VARIANT.dequantized, the f32 values,
computed here in plain arithmetic from torchao's tensors. What needs a GPU to quantize is built from its class: the
codes of Int4TilePackedTo4dTensor are packed by torch_models.py, as CUDA's kernel does for 0.18 and ROCm's for 0.17. The
float8 blocks are 4 x 32 to keep the file small; torchao's are 128 x 128.
"""
import sys
import warnings

warnings.filterwarnings("ignore")
import torch
import torchao
from safetensors.torch import save_file
from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict
from torchao.quantization import (
    Float8Tensor,
    Float8WeightOnlyConfig,
    Int4Tensor,
    Int8DynamicActivationIntxWeightConfig,
    IntxWeightOnlyConfig,
    PerAxis,
    PerGroup,
    PerRow,
    PerTensor,
    quantize_,
)
from torchao.quantization.quant_primitives import MappingType

N, K, SEED = 4, 96, 20261121
SYM, ASYM = MappingType.SYMMETRIC, MappingType.ASYMMETRIC
VERSION = tuple(int(x) for x in torchao.__version__.split("+")[0].split(".")[:2])


def by_config(config):
    def run(w):
        layer = torch.nn.Linear(w.shape[1], w.shape[0], bias=False, dtype=w.dtype)
        layer.weight = torch.nn.Parameter(w.clone(), requires_grad=False)
        quantize_(layer, config)
        return layer.weight.data

    return run


def intx(bits, size, mapping=SYM):
    return by_config(IntxWeightOnlyConfig(weight_dtype=getattr(torch, f"int{bits}"), granularity=size, mapping_type=mapping))


def a8w4(size, mapping=SYM):
    return by_config(Int8DynamicActivationIntxWeightConfig(
        weight_dtype=torch.int4, weight_granularity=size, weight_mapping_type=mapping))


def int4_tensor(g):
    def run(w):
        x = w.float().reshape(N, K // g, g)
        low, high = x.amin(2), x.amax(2)
        scale = (high - low).clamp(min=1e-6) / 15
        codes = ((x - low[..., None]) / scale[..., None]).round().clamp(0, 15).to(torch.int8) - 8
        codes = codes.reshape(N, K)
        packed = (codes[:, 0::2] & 0xF) | (codes[:, 1::2] << 4)
        scale, zero = scale.to(w.dtype), (low + scale * 8).to(w.dtype)
        return Int4Tensor(packed, scale.t().contiguous(), zero.t().contiguous(), [1, g], w.shape)

    return run


def tile_packed(machine):
    """16 x 64, padded to 16 x 1024; the tensor and its values."""
    from torch_models import pack_gpu
    from torchao.quantization import Int4TilePackedTo4dTensor
    from torchao.quantization.quant_primitives import (
        _choose_qparams_affine_tinygemm,
        _quantize_affine_tinygemm,
    )

    n, k, g = 16, 64, 32
    w = torch.nn.functional.pad(torch.randn(n, k) * 0.05, (0, 1024 - k)).to(torch.bfloat16)
    scale, zero = _choose_qparams_affine_tinygemm(
        w, ASYM, (1, g), torch.int32, 0, 15, scale_dtype=w.dtype, zero_point_dtype=w.dtype)
    q = _quantize_affine_tinygemm(w, (1, g), scale, zero, torch.int32, 0, 15)
    codes = pack_gpu(q, 8, *((8, 32) if machine == "cuda" else (16, 64)))
    pairs = torch.stack([scale.reshape(n, -1).t(), zero.reshape(n, -1).t()], dim=2).contiguous()
    spread = lambda t: t.reshape(n, -1).float().repeat_interleave(g, 1)
    values = (q.float() - 8) * spread(scale) + spread(zero)
    return Int4TilePackedTo4dTensor(codes, pairs, [1, g], torch.Size([n, k])), values[:, :k]


def fp8_blocks(w):
    x = w.float().reshape(N // 4, 4, K // 32, 32)
    scale = x.abs().amax(dim=(1, 3)) / 448
    codes = (x / scale[:, None, :, None]).clamp(-448, 448).reshape(N, K).to(torch.float8_e4m3fn)
    return Float8Tensor(codes, scale, block_size=[4, 32], dtype=w.dtype)


def cases():
    yield "int8wo-g32.f", intx(8, PerGroup(32))
    yield "int8wo-asym.f", intx(8, PerAxis(0), ASYM)
    yield "int4wo-g32-sym.f", intx(4, PerGroup(32))
    yield "int4wo-g32-sym.int2", intx(2, PerGroup(32))
    yield "int8wo-g32-asym.int6", intx(6, PerGroup(32), ASYM)
    yield "8da4w-g32.f", a8w4(PerGroup(32))
    yield "8da4w-g32-asym.f", a8w4(PerGroup(32), ASYM)
    yield "int4wo-g32.f", int4_tensor(32)
    yield "fp8wo.f", by_config(Float8WeightOnlyConfig())
    yield "fp8wo-g32.blocks", fp8_blocks
    if VERSION >= (0, 16):
        from torchao.quantization import Int8DynamicActivationInt8WeightConfig, Int8WeightOnlyConfig

        yield "int8wo.f", by_config(Int8WeightOnlyConfig(version=2))
        yield "int8wo-tensor.f", by_config(Int8WeightOnlyConfig(granularity=PerTensor(), version=2))
        yield "int8dq.f", by_config(Int8DynamicActivationInt8WeightConfig(granularity=PerRow(), version=2))
    if VERSION >= (0, 17):
        from torchao.prototype.mx_formats.config import ScaleCalculationMode
        from torchao.prototype.mx_formats.mx_tensor import MXTensor, QuantizeTensorToMXKwargs
        from torchao.prototype.mx_formats.nvfp4_tensor import (
            NVFP4Tensor,
            QuantizeTensorToNVFP4Kwargs,
            per_tensor_amax_to_scale,
        )

        def mx(elem, mode, swizzled, dynamic):
            def run(w):
                act = QuantizeTensorToMXKwargs(elem_dtype=elem, is_swizzled_scales=True, scaling_mode=mode)
                return MXTensor.to_mx(w, elem, act_quant_kwargs=act if dynamic else None,
                                      is_swizzled_scales=swizzled, scaling_mode=mode)

            return run

        def nv(two_levels, swizzled=True, dynamic=False, static=False):
            def run(w):
                whole = per_tensor_amax_to_scale(w.abs().max()) if two_levels else None
                act = QuantizeTensorToNVFP4Kwargs(is_swizzled_scales=True,
                                                  use_dynamic_per_tensor_scale=two_levels and not static)
                fixed = per_tensor_amax_to_scale(torch.tensor(3.5)) if static else None
                return NVFP4Tensor.to_nvfp4(w, per_tensor_scale=whole, act_per_tensor_scale=fixed,
                                            is_swizzled_scales=swizzled, act_quant_kwargs=act if dynamic else None)

            return run

        rceil, floor = ScaleCalculationMode.RCEIL, ScaleCalculationMode.FLOOR
        e4m3, e2m1 = torch.float8_e4m3fn, torch.float4_e2m1fn_x2
        yield "mxfp8.f", mx(e4m3, rceil, True, True)
        yield "mxfp8-floor.rows", mx(e4m3, floor, False, True)
        yield "mxfp4.f", mx(e2m1, rceil, True, False)
        yield "mxfp4dq.dynamic", mx(e2m1, rceil, True, True)
        yield "mxfp4.rows", mx(e2m1, rceil, False, False)
        yield "nvfp4.f", nv(True)
        yield "nvfp4.rows", nv(True, swizzled=False)
        yield "nvfp4dq.dynamic", nv(True, dynamic=True)
        yield "nvfp4dq.static", nv(True, dynamic=True, static=True)
        yield "nvfp4-block.f", nv(False)
        yield "nvfp4dq-block.dynamic", nv(False, dynamic=True)


def values_of(tensor):
    name = type(tensor).__name__
    if name == "MXTensor":
        return tensor.dequantize(torch.float32)
    if name == "NVFP4Tensor":  # 0.17's own dequantize rounds the product of both scales to bf16
        from torchao.prototype.mx_formats.kernels import f4_unpacked_to_f32, unpack_uint4
        from torchao.prototype.mx_formats.utils import from_blocked

        scale = from_blocked(tensor.scale, N, K // 16) if tensor.is_swizzled_scales else tensor.scale
        scale = scale.float() if tensor.per_tensor_scale is None else tensor.per_tensor_scale * scale.float()
        codes = f4_unpacked_to_f32(unpack_uint4(tensor.qdata))
        return (codes.reshape(N, K // 16, 16) * scale[..., None]).reshape(N, K)
    if name == "Int4Tensor":
        low = (tensor.qdata << 4) >> 4
        codes = torch.stack([low, tensor.qdata >> 4], dim=2).reshape(N, K).float()
        g = tensor.block_size[1]
        scale, zero = tensor.scale.t().float(), tensor.zero_point.t().float()
        return (codes.reshape(N, -1, g) * scale[..., None] + zero[..., None]).reshape(N, K)
    rows, g = tensor.block_size
    scale, zero = tensor.scale.float(), getattr(tensor, "zero_point", None)
    codes = tensor.qdata.float().reshape(N // rows, rows, K // g, g)
    if zero is not None:
        codes = codes - zero.float().reshape(N // rows, 1, K // g, 1)
    return (codes * scale.reshape(N // rows, 1, K // g, 1)).reshape(N, K)


def main():
    torch.manual_seed(SEED)
    state = {}
    for name, run in cases():
        w = torch.randn(N, K) * 0.05
        if "asym" in name:
            w = w + 0.03
        w = w.to(torch.bfloat16)
        tensor = run(w)
        state[f"{name}.weight"] = tensor
        state[f"{name}.bias"] = torch.randn(N).to(torch.bfloat16)
        state[f"{name}.dequantized"] = values_of(tensor).contiguous()
    if VERSION >= (0, 17):
        name = "int4wo-g32.rocm" if VERSION == (0, 17) else "int4wo-g32.cuda"
        tensor, values = tile_packed(name.rsplit(".", 1)[1])
        state |= {f"{name}.weight": tensor, f"{name}.bias": torch.randn(16), f"{name}.dequantized": values.contiguous()}
    tensors, metadata = flatten_tensor_state_dict(state)
    metadata["made_by"] = (f"torchao {torchao.__version__}, torch {torch.__version__}, seed {SEED}, "
                           "python3 tools/golden/make_torchao_versions.py")
    path = "tests/golden/formats/torchao_%d_%d.safetensors" % VERSION
    save_file(tensors, path, metadata=metadata)
    print(path, len(state) // 3, "weights")


if __name__ == "__main__":
    sys.exit(main())
