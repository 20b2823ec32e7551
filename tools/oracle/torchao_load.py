#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that transformers and torchao load the files of `nibble quantize` and read the same values.

    torchao_load.py PROGRAM DRIVER

PROGRAM is nibble, DRIVER the program that `make build/release/oracle/logits_of` builds. nibble quantizes small random
models of several shapes with every recipe that torchao's format can hold, and AutoModelForCausalLM.from_pretrained
loads the results. Then, per recipe:
  weights   every quantized weight, dequantized by torchao, equals the formula of its class on the codes and
            scales of the file, and the result of torchao's quantize_ on the unquantized model (if that runs on a CPU)
  logits    weight-only recipes: within 1e-4 of nibble's, relative to the largest, in f32; recipes with quantized
            activations: the loss on the same ids within 1e-3 nats (torchao may flip a code by another order
            of summation); f32 models only; "-" where torchao has no CPU path
Prints a line per model and recipe; exits 1 if anything differs.
"""
import json
import pathlib
import subprocess
import sys
import tempfile
import warnings

warnings.filterwarnings("ignore")
import numpy
import torch
import transformers
from safetensors import safe_open
from torchao.core.config import config_from_dict
from torchao.prototype.mx_formats.mx_tensor import MXTensor
from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor
from torchao.quantization import Int4Tensor, quantize_

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

SEED, TOKENS = 20260801, 48
RECIPES = [
    "int8wo", "int8wo-tensor", "int8wo-asym", "int8wo-g32", "int8wo-g32-asym", "int8wo-g32-ao017", "int8dq",
    "int8dq-tensor", "int8dq-actasym", "8da4w", "8da4w-g64", "8da4w-row", "8da4w-asym", "int4wo-sym",
    "int4wo-g64-sym", "int1wo-asym", "int2wo", "int3wo-g64-asym", "int5wo-row", "int6wo-asym", "int7wo", "int4wo",
    "int4wo-tinygemm", "fp8wo", "fp8wo-tensor", "fp8dq", "mxfp8", "mxfp8-floor",
    "mxfp4dq", "mxfp4dq-floor", "nvfp4", "nvfp4-block", "nvfp4+head",
    "8da4w+head", "int8wo+head+embed-int8wo-g32", "int8wo --skip *.mlp.*", "8da4w+head-int8wo",
]
WEIGHT_ONLY = (*(f"int{bits}wo" for bits in range(1, 9)), "fp8wo", "nvfp4")


def models(folder):
    """Makes directories of random models: tied and untied, with biases, f32, bf16 and f16."""
    common = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
                  num_key_value_heads=2, vocab_size=96, max_position_embeddings=128, bos_token_id=1, eos_token_id=2)
    shapes = {
        "llama-f32": (transformers.LlamaConfig, torch.float32, dict(tie_word_embeddings=False)),
        "llama-tied-bf16": (transformers.LlamaConfig, torch.bfloat16, dict(tie_word_embeddings=True)),
        "qwen2-f32": (transformers.Qwen2Config, torch.float32, dict(tie_word_embeddings=False)),
        "qwen2-tied-f16": (transformers.Qwen2Config, torch.float16, dict(tie_word_embeddings=True)),
    }
    for name, (config, dtype, more) in shapes.items():
        torch.manual_seed(SEED)
        model = transformers.AutoModelForCausalLM.from_config(config(**common, **more)).to(dtype)
        for parameter in model.parameters():
            parameter.data = (torch.randn_like(parameter, dtype=torch.float32) * 0.05).to(dtype)
            if parameter.ndim == 1:
                parameter.data += torch.tensor(1.0, dtype=dtype)
        path = folder / name
        model.save_pretrained(path)
        yield name, path, dtype


def run(*command):
    return subprocess.run([str(c) for c in command], capture_output=True, check=True).stdout


def by_formula(tensors, metadata, name):
    """Dequantizes a weight of the file by its class's formula, in f32."""
    described = json.loads(metadata[name])
    module = name.rsplit(".", 1)[0]
    get = lambda part: tensors.get(f"{module}._weight_{part}")
    codes, scale, zero = get("qdata"), get("scale"), get("zero_point")
    kind, data = described["_type"], described["_data"]
    if kind == "Int4Tensor":
        n, k = data["shape"]
        low, high = codes << 4 >> 4, codes >> 4
        codes = torch.stack([low, high], 2).reshape(n, k).float()
        blocks = codes.reshape(n, scale.shape[0], -1)
        return (blocks * scale.t().float()[..., None] + zero.t().float()[..., None]).reshape(n, k)
    if kind in ("MXTensor", "NVFP4Tensor"):
        if codes.dtype == torch.uint8:
            values = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
            codes = values[torch.stack([codes & 15, codes >> 4], 2).reshape(codes.shape[0], -1).long()]
        (n, k), size = codes.shape, data["block_size"]
        across = -(-(k // size) // 4)
        row, group = torch.arange(n)[:, None], torch.arange(k // size)[None]
        place = (row // 128 * across + group // 4) * 512 + row % 32 * 16 + row % 128 // 32 * 4 + group % 4
        scale = scale.view(torch.uint8).flatten()[place.flatten()].reshape(n, -1)
        if kind == "NVFP4Tensor":
            scale = scale.view(torch.float8_e4m3fn).float() * (1 if get("per_tensor_scale") is None else get("per_tensor_scale"))
        else:
            scale = torch.ldexp(torch.ones(()), scale.float() - 127)
        return (codes.float().reshape(n, k // size, size) * scale[..., None]).reshape(n, k)
    blocks = codes.float().reshape(codes.shape[0], scale.shape[1] if scale.shape[0] > 1 else 1, -1)
    if zero is not None:
        blocks = blocks - zero.float()[..., None]
    return (blocks * scale.float()[..., None]).reshape(codes.shape)


def plain(weight):
    """torchao's dequantization in f32; Int4Tensor has none without its kernel package."""
    if isinstance(weight, Int4Tensor):
        return None
    if isinstance(weight, (MXTensor, NVFP4Tensor)):
        return weight.dequantize(torch.float32)
    if type(weight).__name__ == "IntxUnpackedToInt8Tensor":
        weight = weight.to(torch.float32)
    return weight.dequantize() if weight.dtype == torch.float32 else weight.dequantize(torch.float32)


def same(a, b):
    return torch.equal(a.float(), b.float())


def quantized(model):
    return {name: p for name, p in model.named_parameters() if type(p.data).__name__.endswith("Tensor")
            and type(p.data) is not torch.Tensor}


def own(source, out):
    """torchao's quantize_ on the unquantized model, with nibble's config; None: no CPU path."""
    config = json.loads((out / "config.json").read_text())["quantization_config"]
    wanted = config_from_dict(config["quant_type"]["default"])
    if type(wanted).__name__ == "FqnToConfig":
        return None
    model = transformers.AutoModelForCausalLM.from_pretrained(source, dtype="auto")
    keep = config["modules_to_not_convert"]
    try:
        quantize_(model, wanted, filter_fn=lambda m, n: isinstance(m, torch.nn.Linear) and n not in keep)
    except (ImportError, AssertionError):
        return None
    return model


def check_weights(model, source, out, recipe):
    tensors, metadata = {}, {}
    for file in out.glob("*.safetensors"):
        with safe_open(file, "pt") as f:
            metadata.update(f.metadata())
            tensors.update({name: f.get_tensor(name) for name in f.keys()})
    reference = None if "ao017" in recipe else own(source, out)  # the formula of an older torchao
    references = dict(reference.named_parameters()) if reference is not None else {}
    found = quantized(model)
    described = [n for n in json.loads(metadata["tensor_names"]) if json.loads(metadata[n])["_type"] != "Tensor"]
    assert sorted(found) == sorted(described), f"loaded {sorted(found)}, written {sorted(described)}"
    compared = 0
    for name, weight in found.items():
        formula = by_formula(tensors, metadata, name)
        loaded = plain(weight.data)
        assert loaded is None or same(loaded, formula), f"{name}: torchao's values are not the formula's"
        if name in references and type(references[name].data) is type(weight.data):
            theirs = references[name].data
            assert same(theirs.qdata, weight.qdata) and same(theirs.scale, weight.scale), f"{name}: torchao's differs"
            whole = getattr(theirs, "per_tensor_scale", None)
            assert whole is None or same(whole, weight.per_tensor_scale), f"{name}: the scale of the tensor differs"
            compared += 1
    return len(found), compared


def nibble_logits(driver, out, ids, vocab):
    raw = run(driver, out, "f32", *ids)
    return torch.from_numpy(numpy.frombuffer(raw, dtype=numpy.float32).reshape(len(ids), vocab).copy())


def loss_of(logits, ids):
    return torch.nn.functional.cross_entropy(logits[:-1].float(), torch.tensor(ids[1:])).item()


def check_logits(model, driver, out, recipe):
    ids = [1 + (7 * i * i + 3 * i) % 90 for i in range(TOKENS)]
    weight_only = recipe.startswith(WEIGHT_ONLY)
    if model.dtype != torch.float32:
        return ""
    try:
        with torch.no_grad():
            theirs = model(torch.tensor([ids])).logits[0].float()
    except (NotImplementedError, RuntimeError, ImportError, AttributeError, ValueError) as error:
        return f"-  ({type(error).__name__})"
    ours = nibble_logits(driver, out, ids, theirs.shape[1])
    worst = ((ours - theirs).abs().amax(1) / theirs.abs().amax(1)).max().item()
    apart = abs(loss_of(ours, ids) - loss_of(theirs, ids))
    assert apart <= 1e-3, f"losses are {apart:.2e} nats apart"
    assert not weight_only or worst <= 1e-4, f"logits differ by {worst:.2e}"
    return f"logits {worst:.1e}, loss {apart:.1e}"


def main():
    program, driver = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        for name, source, dtype in models(pathlib.Path(folder)):
            for recipe in RECIPES:
                out = pathlib.Path(folder) / "out"
                words = recipe.split()
                try:
                    run(program, "quantize", source, out, "--recipe", words[0], *words[1:], "--format", "torchao",
                        "--force")
                    model = transformers.AutoModelForCausalLM.from_pretrained(out, dtype=dtype)
                    count, compared = check_weights(model, source, out, recipe)
                    print(f"ok    {name:16} {recipe:32} {count} weights, {compared} as torchao's own; "
                          f"{check_logits(model, driver, out, recipe)}")
                except subprocess.CalledProcessError as error:
                    failed += 1
                    print(f"FAIL  {name:16} {recipe:32} {error.stderr.decode().strip()}")
                except Exception as error:
                    failed += 1
                    print(f"FAIL  {name:16} {recipe:32} {type(error).__name__}: {error}")
    print(f"{failed} failed")
    return failed != 0


if __name__ == "__main__":
    sys.exit(main())
