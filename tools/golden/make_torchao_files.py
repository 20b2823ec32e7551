#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Golden files of torchao's safetensors dialect.

Writes tests/golden/torchao_weights.safetensors: one tiny linear per scheme and weight type, quantized by torchao,
flattened by its own safetensors support, with the original weight (NAME.original) and the dequantized values
(NAME.dequantized, f32, computed here in plain arithmetic); and tests/golden/torchao_configs.txt: the JSON of the config
that torchao writes for each scheme. SCHEME:TYPE is a config with scales of TYPE; its weights have only the other type.
make_torchao_versions.py covers weight-only 4-bit floats and the classes of older versions.

Int4Tensor needs a kernel package that has no CPU build, and the float8 config requires a GPU, so these two
are built from their classes, with codes computed here by the formula of the class.
"""
import json
import sys
import warnings

warnings.filterwarnings("ignore")
import torch
import torchao
from safetensors.torch import save_file
from torchao.core.config import config_to_dict
from torchao.prototype.mx_formats import (
    MXDynamicActivationMXWeightConfig,
    NVFP4DynamicActivationNVFP4WeightConfig,
    NVFP4WeightOnlyConfig,
)
from torchao.prototype.mx_formats.config import ScaleCalculationMode
from torchao.prototype.mx_formats.mx_tensor import MXTensor, QuantizeTensorToMXKwargs
from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict
from torchao.quantization import (
    Float8DynamicActivationFloat8WeightConfig,
    Float8Tensor,
    Float8WeightOnlyConfig,
    Int4Tensor,
    Int4WeightOnlyConfig,
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
from torchao.quantization.quant_primitives import MappingType
from torchao.quantization.quantize_.common import KernelPreference
from torchao.quantization.quantize_.workflows import QuantizeTensorToFloat8Kwargs

N, K, SEED = 3, 160, 20260801
SYM, ASYM = MappingType.SYMMETRIC, MappingType.ASYMMETRIC
F32, BF16 = torch.float32, torch.bfloat16


def intx(dtype, size, mapping=SYM, scales=None):
    return IntxWeightOnlyConfig(
        weight_dtype=dtype, granularity=size, mapping_type=mapping, scale_dtype=scales
    )


def a8w4(size, mapping=SYM, scales=None):
    return Int8DynamicActivationIntxWeightConfig(
        weight_dtype=torch.int4, weight_granularity=size, weight_mapping_type=mapping,
        weight_scale_dtype=scales,
    )


def fp8dq(size):
    return Float8DynamicActivationFloat8WeightConfig(granularity=size)


def mx(rounding, elem=torch.float8_e4m3fn):
    return MXDynamicActivationMXWeightConfig(activation_dtype=elem, weight_dtype=elem, scaling_mode=rounding)


RCEIL, FLOOR = ScaleCalculationMode.RCEIL, ScaleCalculationMode.FLOOR
CONFIGS_ALONE = {
    "nvfp4": NVFP4WeightOnlyConfig(),
    "nvfp4-block": NVFP4WeightOnlyConfig(use_dynamic_per_tensor_scale=False),
    "nvfp4dq": NVFP4DynamicActivationNVFP4WeightConfig(),
    "nvfp4dq-block": NVFP4DynamicActivationNVFP4WeightConfig(use_dynamic_per_tensor_scale=False),
}
CONFIGS = {
    "int8wo": Int8WeightOnlyConfig(),
    "int8wo-tensor": Int8WeightOnlyConfig(granularity=PerTensor()),
    "int8wo-g32": intx(torch.int8, PerGroup(32)),
    "int8wo-asym": intx(torch.int8, PerAxis(0), ASYM),
    "int8wo-g32-asym": intx(torch.int8, PerGroup(32), ASYM),
    "int8dq": Int8DynamicActivationInt8WeightConfig(),
    "int8dq-tensor": Int8DynamicActivationInt8WeightConfig(granularity=[PerRow(), PerTensor()]),
    "int8dq-actasym": Int8DynamicActivationInt8WeightConfig(act_mapping_type=ASYM),
    "8da4w-g32": a8w4(PerGroup(32)),
    "8da4w-row": a8w4(PerAxis(0)),
    "8da4w-g32-asym": a8w4(PerGroup(32), ASYM),
    "int4wo-g32-sym": intx(torch.int4, PerGroup(32)),
    "int4wo-g32": Int4WeightOnlyConfig(group_size=32),
    "fp8wo": Float8WeightOnlyConfig(),
    "fp8wo-tensor": Float8WeightOnlyConfig(granularity=PerTensor()),
    "fp8dq": fp8dq(PerRow()),
    "mxfp8": mx(RCEIL),
    "mxfp8-floor": mx(FLOOR),
    "mxfp4dq": mx(RCEIL, torch.float4_e2m1fn_x2),
    "int4wo-g32-intzero": intx(torch.int4, PerGroup(32), ASYM),
    "int4wo-g32-intzero:bf16": intx(torch.int4, PerGroup(32), ASYM, BF16),
    "8da4w-g32:f32": a8w4(PerGroup(32), SYM, F32),
}


def int4_tensor(w, g):
    """The formula of Int4Tensor: codes -8..7, scale and float zero per group, transposed."""
    x = w.float().reshape(N, K // g, g)
    low, high = x.amin(2), x.amax(2)
    scale = (high - low).clamp(min=1e-6) / 15
    zero = low + scale * 8
    codes = ((x - low[..., None]) / scale[..., None]).round().clamp(0, 15).to(torch.int8) - 8
    codes = codes.reshape(N, K)
    packed = (codes[:, 0::2] & 0xF) | (codes[:, 1::2] << 4)
    scale, zero = scale.to(w.dtype), zero.to(w.dtype)
    tensor = Int4Tensor(packed, scale.t().contiguous(), zero.t().contiguous(), [1, g], w.shape)
    return tensor, codes, scale.float(), zero.float()


def fp8_tensor(w, size):
    act = QuantizeTensorToFloat8Kwargs(torch.float8_e4m3fn, size, kernel_preference=KernelPreference.AUTO)
    config = fp8dq(size)
    return Float8Tensor.from_hp(
        w, granularity=size, mm_config=config.mm_config, kernel_preference=KernelPreference.AUTO, act_quant_kwargs=act
    )


def mx_tensor(w, elem, rounding):
    act = QuantizeTensorToMXKwargs(
        elem_dtype=elem, block_size=32, kernel_preference=KernelPreference.AUTO, is_swizzled_scales=True,
        scaling_mode=rounding,
    )
    return MXTensor.to_mx(
        w, elem, block_size=32, kernel_preference=KernelPreference.AUTO, act_quant_kwargs=act, is_swizzled_scales=True,
        scaling_mode=rounding,
    )


def quantize(name, w):
    if name == "int4wo-g32":
        tensor, codes, scale, zero = int4_tensor(w, 32)
        values = codes.float().reshape(N, -1, 32) * scale[..., None] + zero[..., None]
        return tensor, values.reshape(N, K)
    if name == "fp8dq":
        tensor = fp8_tensor(w, PerRow())
    elif name.startswith("mx"):
        elem = torch.float4_e2m1fn_x2 if name == "mxfp4dq" else torch.float8_e4m3fn
        tensor = mx_tensor(w, elem, FLOOR if name == "mxfp8-floor" else RCEIL)
        return tensor, tensor.dequantize(F32)
    else:
        linear = torch.nn.Linear(K, N, bias=False, dtype=w.dtype)
        linear.weight = torch.nn.Parameter(w.clone(), requires_grad=False)
        quantize_(linear, CONFIGS[name])
        tensor = linear.weight.data
    scale = tensor.scale.float()
    zero = getattr(tensor, "zero_point", None)
    codes = tensor.qdata.float().reshape(N, scale.shape[1] if scale.shape[0] == N else 1, -1)
    values = (codes - zero.float()[..., None] if zero is not None else codes) * scale[..., None]
    return tensor, values.reshape(N, K)


def main():
    torch.manual_seed(SEED)
    state, configs = {}, []
    alone = [f"{name}\t{json.dumps(config_to_dict(config))}" for name, config in CONFIGS_ALONE.items()]
    for name, config in CONFIGS.items():
        configs.append(f"{name}\t{json.dumps(config_to_dict(config))}")
        for dtype, suffix in ((F32, "f32"), (BF16, "bf16")):
            w = (torch.randn(N, K) * 0.05).to(dtype)
            if name.endswith(":" + suffix):
                continue  # the same as without TYPE
            if "asym" in name or "intzero" in name:
                w = (w.float() + 0.03).to(dtype)
            tensor, values = quantize(name, w)
            module = f"{name}.{suffix}"
            state[f"{module}.weight"] = tensor
            state[f"{module}.bias"] = torch.randn(N).to(dtype)
            state[f"{module}.original"] = w
            state[f"{module}.dequantized"] = values.contiguous()
    tensors, metadata = flatten_tensor_state_dict(state)
    made = f"torchao {torchao.__version__}, torch {torch.__version__}, seed {SEED}, python3 tools/golden/make_torchao_files.py"
    metadata["made_by"] = made
    save_file(tensors, "tests/golden/torchao_weights.safetensors", metadata=metadata)
    with open("tests/golden/torchao_configs.txt", "w") as out:
        out.write(f"# {made}\n" + "".join(line + "\n" for line in configs + alone))


if __name__ == "__main__":
    sys.exit(main())
