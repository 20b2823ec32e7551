#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks GPTQ and AWQ checkpoints against the tools that write and read them, on the CPU.

    gptq_load.py PROGRAM DRIVER

GPTQModel quantizes a small random Qwen2 with biases (GPTQ by calibration: both versions, 4 and 8 bits,
act-order; AWQ), and so does AutoRound if installed (its auto_gptq and auto_awq exports). GPTQModel loads,
unpacks and runs each result. Then, per checkpoint:
  info      nibble shows every quantized layer in the format, with its bias
  weights   nibble's values equal GPTQModel's, bit for bit in f32, and so do the biases; act-order
            also equals what compressed-tensors up to 0.18, if installed, unpacks after `nibble convert` (0.19 and
            later must refuse it)
  logits    within 1e-5 of GPTQModel's model in f32, relative to the largest
Prints a line per checkpoint; exits 1 if anything differs.
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import traceback
import warnings

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
os.environ.setdefault("GPTQMODEL_CPU_WORKERS", "2")  # its pool for loading needs two
warnings.filterwarnings("ignore")
import numpy
import torch

SEED, VOCAB, TOKENS = 20261120, 320, 48
MODEL = dict(hidden_size=128, intermediate_size=192, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2,
             vocab_size=VOCAB, max_position_embeddings=128, tie_word_embeddings=False, bos_token_id=1, eos_token_id=2)
GPTQMODEL = {  # name: arguments of QuantizeConfig
    "gptq-order": dict(bits=4, group_size=32, desc_act=True, sym=False),
    "gptq-8-order": dict(bits=8, group_size=32, desc_act=True, sym=False),
    "gptq-8-row": dict(bits=8, group_size=-1, desc_act=False, sym=True, act_group_aware=False),
    "gptq-v2-order": dict(bits=4, group_size=32, desc_act=True, sym=False, format="gptq_v2"),
    "awq": dict(bits=4, group_size=32, sym=False, quant_method="awq", format="gemm"),
}
AUTOROUND = {  # name: the export, arguments of AutoRound
    "auto_gptq": ("auto_gptq", dict(bits=4, group_size=32, sym=False)),
    "auto_gptq-8": ("auto_gptq", dict(bits=8, group_size=-1, sym=True)),
    "auto_awq": ("auto_awq", dict(bits=4, group_size=32, sym=False)),
}


def make_source(folder, **more):
    """Makes a model with biases and a byte tokenizer, which the tools require."""
    import transformers
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    torch.manual_seed(SEED)
    model = transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**{**MODEL, **more})).to(torch.float16)
    for name, p in model.named_parameters():
        if name.endswith(".bias"):
            p.data.copy_(torch.randn(p.shape) * 0.5)
    model.save_pretrained(folder)
    words = sorted(pre_tokenizers.ByteLevel.alphabet()) + [f"<{i}>" for i in range(VOCAB - 256)]
    tokenizer = Tokenizer(models.BPE(vocab={word: i for i, word in enumerate(words)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<0>", eos_token="<1>",
                                         pad_token="<2>").save_pretrained(folder)
    return folder


def by_gptqmodel(source, out, told):
    from gptqmodel import GPTQModel, QuantizeConfig
    generator = torch.Generator().manual_seed(SEED)
    texts = [torch.randint(0, 256, (64,), generator=generator).tolist() for _ in range(16)]
    model = GPTQModel.load(str(source), QuantizeConfig(pack_impl="original", **told), device="cpu")
    model.quantize([{"input_ids": ids, "attention_mask": [1] * len(ids)} for ids in texts], batch_size=1)
    model.save(str(out))
    return out


def by_autoround(source, out, export, told):
    import transformers
    from auto_round import AutoRound
    model = transformers.AutoModelForCausalLM.from_pretrained(source, dtype=torch.float16)
    tokenizer = transformers.AutoTokenizer.from_pretrained(source)
    AutoRound(model, tokenizer, iters=0, disable_opt_rtn=True, device_map="cpu", **told).quantize_and_save(
        output_dir=str(out), format=export)
    made = next(out.rglob("config.json")).parent
    config = json.loads((made / "config.json").read_text())
    if export == "auto_gptq":  # GPTQModel reads version 1 zero points only from its own files
        config["quantization_config"]["meta"] = {"quantizer": ["gptqmodel:7.7.0"]}
        (made / "config.json").write_text(json.dumps(config))
    return made


def files_of(folder):
    from safetensors.torch import load_file
    tensors = {}
    for file in sorted(folder.glob("*.safetensors")):
        tensors.update(load_file(file))
    return tensors


def load(folder):
    """Loads the checkpoint in GPTQModel with all floats in f32; also returns the values of its quantized weights."""
    from gptqmodel import BACKEND, GPTQModel
    from gptqmodel.nn_modules.qlinear.torch import TorchLinear
    from gptqmodel.nn_modules.qlinear.torch_awq import AwqTorchLinear
    from gptqmodel.quantization.awq.utils.packing_utils import dequantize_gemm
    tensors = files_of(folder)
    awq = json.loads((folder / "config.json").read_text())["quantization_config"]["quant_method"] == "awq"
    backend = BACKEND.AWQ_TORCH if awq else BACKEND.TORCH
    model = GPTQModel.load(str(folder), device="cpu", backend=backend, dtype=torch.float16).model.float()
    values = {}
    for name, p in [*model.named_parameters(), *model.named_buffers()]:
        if name in tensors and p.is_floating_point():  # use the stored values, as loading rounds some to f16
            p.data = tensors[name].float()
    for name, module in list(model.named_modules()):
        if isinstance(module, TorchLinear):
            values[name] = module.dequantize_weight().t().contiguous()
        elif isinstance(module, AwqTorchLinear):  # runs in 16 bits only, so use its unpacked values in f32
            values[name] = dequantize_gemm(module.qweight, module.qzeros, module.scales, module.bits, module.group_size).t()
            linear = torch.nn.Linear(module.in_features, module.out_features, bias=module.bias is not None)
            linear.weight.data = values[name].contiguous()
            if module.bias is not None:
                linear.bias.data = module.bias.data
            parent, _, last = name.rpartition(".")
            setattr(model.get_submodule(parent), last, linear)
    assert values and all(v.dtype == torch.float32 for v in values.values()), "no layer is quantized, or not in f32"
    return model.eval(), values


def run(*command):
    return subprocess.run([str(c) for c in command], capture_output=True, check=True).stdout


def check_info(program, folder, values):
    config = json.loads((folder / "config.json").read_text())["quantization_config"]
    biased = {name[:-5] for name in files_of(folder) if name.endswith(".bias")}
    shown = {t["name"][:-7]: t for t in json.loads(run(program, "info", folder, "--json"))["tensors"]}
    for name in values:
        assert shown[name]["format"] == config["quant_method"], f"{name}: shown as {shown[name]['format']}"
        assert shown[name]["bias"] == (name in biased), f"{name}: another bias is shown"


def check_weights(plain, folder, values):
    tensors = files_of(folder)
    for name, want in values.items():
        got = plain[name + ".weight"]
        assert torch.equal(got, want), f"{name}: {(got - want).abs().max().item():.1e} apart"
    biases = [name for name in tensors if name.endswith(".bias")]
    for name in biases:
        assert torch.equal(plain[name], tensors[name].float()), f"{name}: another bias"
    return f"{len(values)} weights, {len(biases)} biases"


def check_compressed(folder, plain):
    """Compares act-order with compressed-tensors; its later versions must refuse the config."""
    import compressed_tensors
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationScheme
    (group,) = json.loads((folder / "config.json").read_text())["quantization_config"]["config_groups"].values()
    version = tuple(int(x) for x in compressed_tensors.__version__.split(".")[:2])
    try:
        scheme = QuantizationScheme.model_validate(group)
    except ValueError as error:
        assert version >= (0, 19) and "actorder" in str(error), error
        return f", refused by compressed-tensors {compressed_tensors.__version__}"
    assert version < (0, 19), "compressed-tensors reads act-order again"
    tensors, end = files_of(folder), ".weight_packed"
    for name in [n[:-len(end)] for n in tensors if n.endswith(end)]:
        parts = {k[len(name) + 1:]: v for k, v in tensors.items() if k.startswith(name + ".")}
        parts["weight_scale"] = parts["weight_scale"].float()
        got = BaseCompressor.get_value_from_registry("pack-quantized").decompress(parts, scheme)["weight"]
        assert torch.equal(got.float(), plain[name + ".weight"]), f"{name}: another weight in compressed-tensors"
    return f", as by compressed-tensors {compressed_tensors.__version__}"


def check_logits(model, driver, folder):
    ids = [1 + (7 * i * i + 3 * i) % 250 for i in range(TOKENS)]
    with torch.no_grad():
        theirs = model(torch.tensor([ids])).logits[0]
    assert theirs.dtype == torch.float32
    raw = run(driver, folder, "f32", *ids)
    ours = torch.from_numpy(numpy.frombuffer(raw, dtype=numpy.float32).reshape(theirs.shape).copy())
    worst = ((ours - theirs).abs().amax(1) / theirs.abs().amax(1)).max().item()
    assert worst <= 1e-5, f"logits differ by {worst:.2e}"
    return f"logits {worst:.1e}"


def check(program, driver, folder, work):
    model, values = load(folder)
    check_info(program, folder, values)
    run(program, "convert", folder, work / "floats", "--format", "safetensors", "--dtype", "f32", "--force")
    plain = {name: t.float() for name, t in files_of(work / "floats").items()}
    said = check_weights(plain, folder, values)
    if json.loads((folder / "config.json").read_text())["quantization_config"].get("desc_act"):
        run(program, "convert", folder, work / "ct", "--format", "compressed-tensors", "--force")
        said += check_compressed(work / "ct", plain)
    return f"{said}; {check_logits(model, driver, folder)}"


def tools():
    """Yields (name, function that makes it) for every checkpoint that the installed tools can make."""
    for name, told in GPTQMODEL.items():
        yield "gptqmodel", name, lambda source, out, told=told: by_gptqmodel(source, out, told)
    try:
        import auto_round  # noqa: F401
    except ImportError:
        return
    for name, (export, told) in AUTOROUND.items():
        yield "auto-round", name, lambda source, out, e=export, told=told: by_autoround(source, out, e, told)


def main():
    program, driver, failed = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve(), 0
    said = os.fdopen(os.dup(1), "w")
    log = tempfile.TemporaryFile("w+")  # the tools print a lot
    os.dup2(log.fileno(), 1)
    os.dup2(log.fileno(), 2)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # GPTQModel keeps logs there
        folder = pathlib.Path(folder)
        source = make_source(folder / "source")
        for tool, name, make in tools():
            try:
                made = make(source, folder / name)
                print(f"ok    {tool:10} {name:16} {check(program, driver, made, folder)}", file=said, flush=True)
            except Exception as error:
                more = getattr(error, "stderr", b"") or b""
                place = traceback.extract_tb(error.__traceback__)[-1]
                print(f"FAIL  {tool:10} {name:16} {type(error).__name__}: {error} {more.decode()}"
                      f"({place.name}, line {place.lineno})", file=said, flush=True)
                failed += 1
    print(f"{failed} failed", file=said, flush=True)
    return failed != 0


if __name__ == "__main__":
    sys.exit(main())
