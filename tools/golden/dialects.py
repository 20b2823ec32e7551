#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Golden checkpoints of other tools' dialects, under tests/golden/dialects.

compressed  every format of compressed-tensors, compressed by its own compressors; one config group per module
gptq        GPTQ, first version: zeros stored minus 1, act-order, a zero of 0 that wraps around
gptq8       GPTQ, second version, 8 bits
awq         AWQ's gemm version
fp8_block   FP8 in blocks of 128 x 128 with ragged edges, as DeepSeek writes it
fp8         FP8 with one scale per tensor or row
gpt_oss     stacked experts in MXFP4 with biases
gptq_model  one layer of the golden Qwen2 model in GPTQ with act-order, which can run

Each module M also has M.dequantized (f32). For compressed-tensors these values come from its decompressor; for the others
they are computed here in plain numpy from the codes before packing.
"""
import json
import os
import sys

import compressed_tensors
import numpy as np
import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
from compressed_tensors.quantization import QuantizationArgs, QuantizationConfig, QuantizationScheme
from compressed_tensors.quantization.lifecycle.forward import dequantize
from compressed_tensors.quantization.utils import calculate_qparams
from safetensors.torch import load_file, save_file

SEED = 20261120
OUT = "tests/golden/dialects"
MADE = f"compressed-tensors {compressed_tensors.__version__}, torch {torch.__version__}, numpy {np.__version__}, seed {SEED}, python3 tools/golden/dialects.py"
rng = np.random.default_rng(SEED)


def write(name, tensors, quantization, config=None):
    folder = f"{OUT}/{name}"
    os.makedirs(folder, exist_ok=True)
    save_file({k: v.contiguous() for k, v in tensors.items()}, f"{folder}/model.safetensors", metadata={"made_by": MADE})
    with open(f"{folder}/config.json", "w") as out:
        json.dump({**(config or {}), "quantization_config": quantization}, out, indent=1)
        out.write("\n")


def floats(*shape, spread=0.05):
    return (rng.standard_normal(shape) * spread).astype(np.float32)


def t(array, dtype=None):
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    return tensor if dtype is None else tensor.to(dtype)


# ---- compressed-tensors ----

def ct(bits, kind="int", strategy="group", group=None, symmetric=True, **more):
    return QuantizationArgs(num_bits=bits, type=kind, strategy=strategy, group_size=group, symmetric=symmetric, **more)


TOKEN8 = dict(num_bits=8, type="int", strategy="token", symmetric=True, dynamic=True)
TOKENF = dict(num_bits=8, type="float", strategy="token", symmetric=True, dynamic=True)
PACK, INTS, FLOATS = "pack-quantized", "int-quantized", "float-quantized"
CASES = {  # name: format, n, k, weights, inputs, scales' type
    "pack4-g32": (PACK, 11, 96, ct(4, group=32), None, torch.bfloat16),
    "pack4-row": (PACK, 11, 75, ct(4, strategy="channel"), None, torch.float32),
    "pack4-tensor": (PACK, 5, 33, ct(4, strategy="tensor"), None, torch.float32),
    "pack4-g32-asym": (PACK, 11, 96, ct(4, group=32, symmetric=False), None, torch.float16),
    "pack4-row-asym": (PACK, 9, 75, ct(4, strategy="channel", symmetric=False), None, torch.float32),
    "pack8-g32": (PACK, 11, 96, ct(8, group=32), None, torch.bfloat16),
    "pack8-row-asym": (PACK, 7, 75, ct(8, strategy="channel", symmetric=False), None, torch.float32),
    "pack4-a8": (PACK, 11, 96, ct(4, group=32), TOKEN8, torch.float32),
    "int8-row": (INTS, 11, 75, ct(8, strategy="channel"), TOKEN8, torch.bfloat16),
    "int8-tensor": (INTS, 5, 33, ct(8, strategy="tensor"), None, torch.float32),
    "int8-row-asym": (INTS, 7, 75, ct(8, strategy="channel", symmetric=False), dict(TOKEN8, symmetric=False), torch.float32),
    "int8-static": (INTS, 7, 75, ct(8, strategy="channel"), dict(num_bits=8, type="int", strategy="tensor", symmetric=True), torch.float32),
    "fp8-row": (FLOATS, 11, 75, ct(8, "float", "channel"), TOKENF, torch.bfloat16),
    "fp8-tensor": (FLOATS, 5, 33, ct(8, "float", "tensor"), dict(num_bits=8, type="float", strategy="tensor", symmetric=True), torch.float32),
    "fp8-block": (FLOATS, 11, 75, ct(8, "float", "block", block_structure=[8, 32]), None, torch.float32),
    "naive8-row": ("naive-quantized", 5, 33, ct(8, strategy="channel"), None, torch.float32),
    "mxfp4": ("mxfp4-pack-quantized", 11, 64, ct(4, "float", "group", 32, scale_dtype=torch.uint8), None, torch.float32),
    "mxfp8": ("mxfp8-quantized", 11, 64, ct(8, "float", "group", 32, scale_dtype=torch.uint8), dict(num_bits=8, type="float", strategy="group", group_size=32, symmetric=True, dynamic=True), torch.float32),
    "nvfp4": ("nvfp4-pack-quantized", 11, 64, ct(4, "float", "tensor_group", 16), dict(num_bits=4, type="float", strategy="tensor_group", group_size=16, symmetric=True, dynamic="local"), torch.float32),
}


def blocks_of(w, args):
    """Reshapes to rows, groups and elements that share a scale, as far as a shape allows."""
    n, k = w.shape
    if args.strategy == "tensor":
        return w.reshape(1, 1, -1)
    if args.strategy == "channel":
        return w.reshape(n, 1, k)
    if args.strategy == "block":
        rows, columns = args.block_structure
        padded = torch.zeros(-(-n // rows) * rows, -(-k // columns) * columns)
        padded[:n, :k] = w
        return padded.reshape(padded.shape[0] // rows, rows, -1, columns).transpose(1, 2).flatten(2)
    return w.reshape(n, k // args.group_size, args.group_size)


def parameters(w, args, scale_type):
    blocks = blocks_of(w, args)
    if args.scale_dtype == torch.uint8:  # MX: a power of two from the largest value of a block
        scale = torch.exp2(torch.ceil(torch.log2(blocks.abs().amax(2) / (6 if args.num_bits == 4 else 448))))
        return {"weight_scale": scale}
    if args.strategy == "tensor_group":
        whole = (448 * 6 / w.abs().max()).reshape(1)
        scale = (blocks.abs().amax(2) / 6 * whole).clamp(2**-6, 448).to(torch.float8_e4m3fn)
        return {"weight_scale": scale.float(), "weight_global_scale": whole}
    scale, zero = calculate_qparams(blocks.amin(2), blocks.amax(2), args)
    out = {"weight_scale": scale.to(scale_type)}
    if args.strategy == "tensor":
        out["weight_scale"] = out["weight_scale"].reshape(1)
    if not args.symmetric:
        out["weight_zero_point"] = zero.round().to(torch.int8)
    return out


def decompress(compressor, state, scheme):
    """Decompresses in f32 throughout."""
    state = {k: v.float() if v.dtype in (torch.bfloat16, torch.float16) else v for k, v in state.items()}
    if "weight_global_scale" in state:
        n, half = state["weight_packed"].shape
        codes = unpack_fp4_from_uint8(state["weight_packed"], n, 2 * half, dtype=torch.float32)
        return dequantize(codes, state["weight_scale"].float(), args=scheme.weights, dtype=torch.float32, global_scale=state["weight_global_scale"])
    return compressor.decompress(state, scheme)["weight"].float()


def compressed():
    torch.manual_seed(SEED)
    tensors, groups = {}, {}
    for i, (name, (form, n, k, weights, inputs, scale_type)) in enumerate(CASES.items()):
        scheme = QuantizationScheme(targets=[name], weights=weights, format=form, input_activations=QuantizationArgs(**inputs) if inputs else None)
        w = torch.randn(n, k) * 0.05 + (0.02 if not weights.symmetric else 0)
        compressor = BaseCompressor.get_value_from_registry(form)
        state = compressor.compress({"weight": w, **parameters(w, weights, scale_type)}, scheme)
        values = decompress(compressor, state, scheme)
        assert (values - w).abs().max() < 0.05, name
        tensors.update({f"{name}.{k}": v for k, v in state.items()})
        tensors[f"{name}.bias"] = torch.randn(n).to(torch.bfloat16)
        tensors[f"{name}.dequantized"] = values
        if name == "int8-static":
            tensors[f"{name}.input_scale"] = torch.tensor([0.03125])
        groups[f"group_{i}"] = scheme
    # Before July 2026 it also wrote act-order: the group of each input beside codes in input order.
    n, k, g = 9, 64, 16
    order = rng.permutation(k)
    index = np.empty(k, np.int32)
    index[order] = np.arange(k) // g
    codes = rng.integers(-8, 8, (n, k))
    scale = np.abs(floats(n, k // g)) + 0.01
    packed = BaseCompressor.get_value_from_registry(PACK)
    words = sys.modules[packed.__module__].pack_to_int32(t(codes, torch.int8), 4)
    tensors.update({
        "pack4-order.weight_packed": words, "pack4-order.weight_scale": t(scale), "pack4-order.weight_shape": torch.tensor([n, k]),
        "pack4-order.weight_g_idx": t(index), "pack4-order.dequantized": t(codes.astype(np.float32) * scale[:, index]),
        "pack4-order.bias": t(floats(n)),
    })
    groups["group_order"] = QuantizationScheme(targets=["re:pack4-ord"], weights=ct(4, group=g), format=PACK)
    groups["group_nowhere"] = QuantizationScheme(targets=["re:.*experts.*"], weights=ct(4, group=g), format=PACK)
    tensors["plain.weight"] = torch.randn(3, 8)
    config = QuantizationConfig(config_groups=groups, format="mixed-precision", ignore=["plain", "re:.*gate$"]).to_dict()
    config = json.loads(json.dumps(config, default=str))
    write("compressed", tensors, config)


# ---- GPTQ and AWQ ----

def words_along_rows(codes, bits):
    """[k][n] unsigned codes -> int32 [ceil(k*bits/32)][n], the first row in the lowest bits."""
    per = 32 // bits
    padded = np.zeros((-(-codes.shape[0] // per) * per, codes.shape[1]), np.uint32)
    padded[: codes.shape[0]] = codes
    out = np.zeros((padded.shape[0] // per, codes.shape[1]), np.uint32)
    for i in range(per):
        out |= padded[i::per] << np.uint32(bits * i)
    return out.view(np.int32)


def gptq(name, n, k, g, bits, first, ordered, symmetric, scale_type=torch.float16):
    groups = -(-k // g) if g > 0 else 1
    size = g if g > 0 else k
    top = 1 << bits
    index = np.arange(k) // size
    if ordered:
        index = index[rng.permutation(k)]
    codes = rng.integers(0, top, (k, n))
    zeros = np.full((groups, n), top // 2) if symmetric else rng.integers(0, top, (groups, n))
    scales = t(np.abs(floats(groups, n)) + 0.01, scale_type)
    values = (codes - zeros[index]) * scales.float().numpy()[index]
    stored = (zeros - 1) % top if first else zeros
    return {
        f"{name}.qweight": t(words_along_rows(codes, bits)),
        f"{name}.qzeros": t(words_along_rows(stored.T, bits).T),
        f"{name}.scales": scales, f"{name}.g_idx": t(index.astype(np.int32)), f"{name}.bias": t(floats(n), torch.float16),
        f"{name}.dequantized": t(values.T.astype(np.float32)),
    }


AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]  # column of each nibble


def awq_words(codes):
    out = np.zeros((codes.shape[0], codes.shape[1] // 8), np.uint32)
    for i, column in enumerate(AWQ_ORDER):
        out |= codes[:, column::8].astype(np.uint32) << np.uint32(4 * i)
    return t(out.view(np.int32))


def awq(name, n, k, g):
    codes = rng.integers(0, 16, (k, n))
    zeros = rng.integers(0, 16, (k // g, n))
    scales = t(np.abs(floats(k // g, n)) + 0.01, torch.float16)
    values = (codes - zeros.repeat(g, 0)) * scales.float().numpy().repeat(g, 0)
    return {
        f"{name}.qweight": awq_words(codes), f"{name}.qzeros": awq_words(zeros), f"{name}.scales": scales,
        f"{name}.bias": t(floats(n), torch.float16), f"{name}.dequantized": t(values.T.astype(np.float32)),
    }


def others():
    write("gptq", {
        **gptq("order", 24, 96, 32, 4, True, True, False),
        **gptq("plain", 16, 64, 32, 4, True, False, True),
        **gptq("short", 11, 75, 32, 4, True, True, False),  # short last group, short last word
    }, {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": True, "sym": False, "checkpoint_format": "gptq"})
    write("gptq8", {**gptq("row", 12, 64, -1, 8, False, False, False)}, {"quant_method": "gptq", "bits": 8, "group_size": -1, "desc_act": False, "sym": False, "checkpoint_format": "gptq_v2"})
    write("awq", {**awq("m", 24, 96, 32)}, {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"})

    codes = t(floats(150, 300, spread=100)).to(torch.float8_e4m3fn)
    scale = np.abs(floats(2, 3)) + 0.01
    values = codes.float().numpy() * scale.repeat(128, 0)[:150].repeat(128, 1)[:, :300]
    write("fp8_block", {"m.weight": codes, "m.weight_scale_inv": t(scale), "m.bias": t(floats(150), torch.bfloat16), "m.dequantized": t(values[:, ::4])},
          {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]})

    codes = t(floats(7, 33, spread=100)).to(torch.float8_e4m3fn)
    rows = np.abs(floats(7, 1)) + 0.01
    write("fp8", {
        "tensor.weight": codes, "tensor.weight_scale": torch.tensor(0.03), "tensor.input_scale": torch.tensor(0.5), "tensor.bias": t(floats(7)),
        "tensor.dequantized": codes.float() * torch.tensor(0.03),
        "row.weight": codes.clone(), "row.weight_scale": t(rows), "row.dequantized": codes.float() * t(rows),
    }, {"quant_method": "fp8", "activation_scheme": "static"})

    experts, tensors = 3, {}
    table = np.array([0, .5, 1, 1.5, 2, 3, 4, 6, -0., -.5, -1, -1.5, -2, -3, -4, -6], np.float32)
    for name, n, k in (("gate_up_proj", 12, 64), ("down_proj", 5, 96)):
        module = f"model.layers.0.mlp.experts.{name}"
        codes = rng.integers(0, 16, (experts, n, k))
        scales = rng.integers(118, 126, (experts, n, k // 32)).astype(np.uint8)
        packed = (codes[:, :, 0::2] | codes[:, :, 1::2] << 4).astype(np.uint8)
        values = table[codes] * np.exp2(scales.astype(np.float32) - 127).repeat(32, 2)
        tensors[f"{module}_blocks"] = t(packed.reshape(experts, n, k // 32, 16))
        tensors[f"{module}_scales"] = t(scales)
        tensors[f"{module}_bias"] = t(floats(experts, n), torch.bfloat16)
        tensors[f"{module}.biases"] = tensors[f"{module}_bias"].clone()
        tensors[f"{module}.dequantized"] = t(values)
    write("gpt_oss", tensors, {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]}, {"model_type": "gpt_oss"})


def model():
    """Layers with the same input share an order, as in GPTQ: q, k and v; gate and up."""
    with open("tests/golden/models/qwen2/config.json") as f:
        config = {**json.load(f), "num_hidden_layers": 1}
    source = load_file("tests/golden/models/qwen2/model.safetensors")
    out, orders, g = {}, {}, 32
    for name, w in source.items():
        if name.startswith("model.layers.1."):
            continue
        if not name.endswith("proj.weight"):
            out[name] = w
            continue
        module = name[: -len(".weight")]
        w = w.float().numpy()
        n, k = w.shape
        shared = module.rsplit(".", 1)[0] + ("in" if module.endswith(("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")) else "out")
        index = orders.setdefault(shared, (np.arange(k) // g)[rng.permutation(k)])
        codes, scales, zeros = np.empty((k, n), np.int64), np.empty((-(-k // g), n), np.float32), np.empty((-(-k // g), n), np.int64)
        for i in range(scales.shape[0]):
            part = w[:, index == i]
            low, high = np.minimum(part.min(1), 0), np.maximum(part.max(1), 0)
            scales[i] = ((high - low) / 15).astype(np.float16)
            zeros[i] = np.clip(np.rint(-low / scales[i]), 1, 15)
            codes[index == i] = np.clip(np.rint(part / scales[i][:, None]) + zeros[i][:, None], 0, 15).T
        out.update({
            f"{module}.qweight": t(words_along_rows(codes, 4)), f"{module}.qzeros": t(words_along_rows(zeros.T - 1, 4).T),
            f"{module}.scales": t(scales, torch.float16), f"{module}.g_idx": t(index.astype(np.int32)),
        })
    write("gptq_model", out, {"quant_method": "gptq", "bits": 4, "group_size": g, "desc_act": True, "sym": False, "checkpoint_format": "gptq"}, config)


def main():
    compressed()
    others()
    model()


if __name__ == "__main__":
    sys.exit(main())
