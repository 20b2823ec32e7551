#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that PyPI's compressed-tensors and torchao load the files of `nibble convert` and read the same values.

    converted_load.py PROGRAM

nibble quantizes and converts small random models (made by torchao_load.py); its own conversion to plain f32 gives the expected
values. Then, per recipe and format:
  compressed-tensors  AutoModelForCausalLM.from_pretrained decompresses it: every weight and bias equals nibble's,
                      within the rounding of the type that compressed-tensors decompresses to; with several formats in
                      one file, compressed-tensors decompresses module by module. Also e4m3 in blocks, which nibble
                      does not quantize: made here in DeepSeek's format, with short last blocks
  8da4w               torchao's Int8DynActInt4WeightLinear loads the state dict strictly, with and without bias:
                      its codes, scales and zeros give nibble's weights exactly, its forward pass the linear layer's
                      product within 1e-5
Prints a line per case; exits 1 if anything differs.
"""
import json
import pathlib
import sys
import tempfile
import warnings

warnings.filterwarnings("ignore")
import torch
import transformers
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationScheme
from safetensors.torch import load_file, save_file
from torchao.quantization.linear_quant_modules import Int8DynActInt4WeightLinear

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from torchao_load import models, run

COMPRESSED = ["int4wo-sym", "int4wo-g64-sym", "int8wo", "int8wo-g32", "int8wo-asym", "int8wo-g32-asym", "int8wo-tensor",
              "int1wo-asym", "int2wo", "int3wo-g64-asym", "int5wo-row", "int6wo-asym", "int7wo",
              "int8dq", "8da4w", "fp8wo", "fp8wo-tensor", "fp8dq", "8da4w+head-int8wo"]
BLOCKS = [(32, 32), (48, 40), (128, 128), (1, 32)]
STATE_DICT = ["8da4w", "8da4w-g64", "8da4w-asym", "8da4w+head"]
ROUNDING = {torch.float32: (1e-7, 0.0), torch.bfloat16: (2.0 ** -7, 0.0), torch.float16: (2.0 ** -10, 2.0 ** -24)}


def files_of(folder):
    tensors = {}
    for file in sorted(folder.glob("*.safetensors")):
        tensors.update(load_file(file))
    return tensors


def make_blocks(source, out, rows, columns):
    """The source with e4m3 weights and a scale per block, under quant_method "fp8"."""
    tensors = files_of(source)
    for name in [n for n in tensors if n.endswith("proj.weight")]:
        w = tensors[name].float()
        n, k = w.shape
        up, along = -(-n // rows), -(-k // columns)
        padded = torch.nn.functional.pad(w, (0, along * columns - k, 0, up * rows - n))
        scale = padded.reshape(up, rows, along, columns).abs().amax((1, 3)) / 448
        spread = scale.repeat_interleave(rows, 0)[:n].repeat_interleave(columns, 1)[:, :k]
        tensors[name] = (w / spread).to(torch.float8_e4m3fn)
        tensors[name + "_scale_inv"] = scale
    config = json.loads((source / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
                                     "weight_block_size": [rows, columns]}
    out.mkdir(exist_ok=True)
    (out / "config.json").write_text(json.dumps(config))
    save_file(tensors, out / "model.safetensors")


def check_mixed(out, plain):
    """Several formats in one file, which transformers 5.23 cannot load, so checked module by module."""
    config = json.loads((out / "config.json").read_text())["quantization_config"]
    tensors, count = files_of(out), 0
    for group in config["config_groups"].values():
        scheme = QuantizationScheme.model_validate(group)
        for name in group["targets"]:
            parts = {k[len(name) + 1:]: v for k, v in tensors.items() if k.startswith(name + ".")}
            got = BaseCompressor.get_value_from_registry(str(getattr(scheme.format, "value", scheme.format))).decompress(parts, scheme)["weight"]
            want = plain[name + ".weight"]
            assert torch.allclose(got.float(), want, rtol=1e-6, atol=0), f"{name}: another weight"
            count += 1
    return f"{count} weights, {len(config['config_groups'])} groups"


def check_compressed(out, plain, dtype):
    config = transformers.CompressedTensorsConfig(run_compressed=False)
    model = transformers.AutoModelForCausalLM.from_pretrained(out, dtype=dtype, quantization_config=config)
    found = dict(model.state_dict())
    count = 0
    for name, want in plain.items():
        got = found[name]
        relative, least = ROUNDING[got.dtype]
        room = relative * want.abs() + least
        assert got.shape == want.shape, f"{name}: {tuple(got.shape)} is not {tuple(want.shape)}"
        worst = ((got.float() - want).abs() - room).max().item()
        assert worst <= 0, f"{name}: {worst:.1e} beyond the rounding of {got.dtype}"
        assert not name.endswith(".bias") or torch.equal(got, want.to(got.dtype)), f"{name}: another bias"
        count += name.endswith(".weight") and got.ndim == 2
    return f"{count} weights"


def check_state_dict(out, plain):
    tensors, count, biases = files_of(out), 0, 0
    for name in sorted(n[:-7] for n in tensors if n.endswith(".scales")):
        parts = {k[len(name) + 1:]: v for k, v in tensors.items() if k.startswith(name + ".")}
        n, k = parts["weight"].shape
        groups = parts["scales"].shape[1]
        layer = Int8DynActInt4WeightLinear(k, n, bias="bias" in parts, groupsize=k // groups,
                                           precision=torch.float32, scales_precision=parts["scales"].dtype)
        layer.load_state_dict(parts, strict=True, assign=True)
        blocks = layer.weight.float().reshape(n, groups, -1)
        weight = ((blocks - layer.zeros.float()[..., None]) * layer.scales.float()[..., None]).reshape(n, k)
        want = plain[name + ".weight"]
        assert torch.equal(weight, want), f"{name}: torchao means another weight"
        x = torch.randint(-100, 100, (5, k)) / 64.0
        x[:, 0], x[:, 1] = -2.0, 2.0 - 2.0 / 256  # makes the quantizer's range -128/64 to 127/64, which is exact
        bias = parts["bias"].float() if "bias" in parts else None
        layer.scales, layer.zeros = layer.scales.float(), layer.zeros.float()
        if bias is not None:
            layer.bias = bias
        scale = ((x.amax(1) - x.amin(1)) / 255)[:, None]
        zero = (-128 - torch.round(x.amin(1, keepdim=True) / scale)).clamp(-128, 127)
        q = (torch.round(x / scale) + zero).clamp(-128, 127)
        product = torch.nn.functional.linear((q - zero) * scale, want, bias)
        got = layer(x)
        assert (got - product).abs().max() <= 1e-5 * product.abs().max(), f"{name}: another product"
        count, biases = count + 1, biases + ("bias" in parts)
    assert count > 0, "no layer was loaded"
    return f"{count} layers, {biases} with a bias"


def cases(program, source, first):
    """Yields the format, the name of the case, and a function that writes the quantized model to `first`."""
    for rows, columns in BLOCKS:
        yield "compressed-tensors", f"e4m3 {rows} x {columns}", lambda: make_blocks(source, first, rows, columns)
    for format, recipes in (("compressed-tensors", COMPRESSED), ("8da4w", STATE_DICT)):
        for recipe in recipes:
            if "+head" not in recipe or "tied" not in source.name:
                yield format, recipe, lambda: run(program, "quantize", source, first, "--recipe", recipe, "--force")


def main():
    program, failed = pathlib.Path(sys.argv[1]).resolve(), 0
    torch.manual_seed(20261120)
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        first, out, floats = folder / "first", folder / "out", folder / "floats"
        for name, source, dtype in models(folder):
            for format, what, make in cases(program, source, first):
                try:
                    make()
                    run(program, "convert", first, out, "--format", format, "--force")
                    run(program, "convert", first, floats, "--format", "safetensors", "--dtype", "f32", "--force")
                    plain = {k: v.float() for k, v in files_of(floats).items()}
                    said = (check_state_dict(out, plain) if format == "8da4w"
                            else check_mixed(out, plain) if "+head-" in what
                            else check_compressed(out, plain, dtype))
                    print(f"ok    {name:16} {format:18} {what:20} {said}")
                except Exception as error:
                    more = getattr(error, "stderr", b"") or b""
                    print(f"FAIL  {name:16} {format:18} {what:20} {type(error).__name__}: {error} {more.decode()}")
                    failed += 1
    print(f"{failed} failed")
    return failed != 0


if __name__ == "__main__":
    sys.exit(main())
