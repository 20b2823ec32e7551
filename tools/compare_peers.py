#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Quantizes a model with another tool, for tools/compare_methods, with that tool's interpreter.

usage: PYTHON tools/compare_peers.py gptqmodel|llmcompressor|autoround|torchao MODEL OUT TEXT RECIPE

gptqmodel, llmcompressor: GPTQ; autoround: AutoRound, 200 steps a block. Groups of 32, calibrated on TEXT in rows of 256 tokens; RECIPE
int4wo-sym or int4wo-g32-intzero, without the output layer. torchao: scales by HQQ, without a text; RECIPE int4wo-sym.
"""
import os
import pathlib
import sys
import tempfile

ROW = 256  # tokens


def tokenize(model, text):
    """Returns the tokenizer, and the text in rows."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    ids = tokenizer(pathlib.Path(text).read_text(encoding="utf-8"))["input_ids"]
    return tokenizer, [{"input_ids": ids[i:i + ROW], "attention_mask": [1] * ROW} for i in range(0, len(ids) - ROW + 1, ROW)]


def gptqmodel(model, out, text, recipe):
    os.environ.setdefault("GPTQMODEL_CPU_WORKERS", "2")  # its default on two cores is fewer than it needs
    from gptqmodel import GPTQModel, QuantizeConfig

    _, rows = tokenize(model, text)
    config = QuantizeConfig(bits=4, group_size=32, sym=recipe == "int4wo-sym", pack_impl="original")
    quantizer = GPTQModel.load(model, config, device="cpu")
    quantizer.quantize(rows, batch_size=8)
    quantizer.save(out)


def llmcompressor(model, out, text, recipe):
    from datasets import Dataset
    from llmcompressor import oneshot
    from llmcompressor.modifiers.gptq import GPTQModifier
    from transformers import AutoModelForCausalLM

    tokenizer, rows = tokenize(model, text)
    weights = {"num_bits": 4, "type": "int", "symmetric": recipe == "int4wo-sym", "strategy": "group", "group_size": 32}
    modifier = GPTQModifier(config_groups={"group_0": {"targets": ["Linear"], "weights": weights}}, ignore=["lm_head"])
    quantized = AutoModelForCausalLM.from_pretrained(model, dtype="auto")
    oneshot(model=quantized, tokenizer=tokenizer, dataset=Dataset.from_list(rows), recipe=modifier, max_seq_length=ROW, num_calibration_samples=len(rows))
    quantized.save_pretrained(out, save_compressed=True)


def autoround(model, out, text, recipe):
    import torch
    from auto_round import AutoRound

    tokenizer, rows = tokenize(model, text)
    data = torch.utils.data.DataLoader([{name: torch.tensor(x) for name, x in row.items()} for row in rows], batch_size=8)
    quantizer = AutoRound(model, tokenizer, bits=4, group_size=32, sym=recipe == "int4wo-sym", iters=200, seqlen=ROW, nsamples=len(rows), batch_size=8,
                          device_map="cpu", dataset=data, enable_torch_compile=False)
    with tempfile.TemporaryDirectory(dir=pathlib.Path(out).parent) as folder:
        quantizer.quantize_and_save(folder, format="auto_gptq")
        next(pathlib.Path(folder).iterdir()).rename(out)


def torchao(model, out, _text, _recipe):
    import torch
    from torchao.quantization import IntxWeightOnlyConfig, PerGroup
    from transformers import AutoModelForCausalLM, TorchAoConfig

    config = IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(32), intx_choose_qparams_algorithm="hqq_scale_only")
    quantized = AutoModelForCausalLM.from_pretrained(model, quantization_config=TorchAoConfig(config, modules_to_not_convert=["lm_head"]))
    quantized.save_pretrained(out)


PEERS = {"gptqmodel": gptqmodel, "llmcompressor": llmcompressor, "autoround": autoround, "torchao": torchao}


def main():
    if len(sys.argv) != 6 or sys.argv[1] not in PEERS:
        raise SystemExit(__doc__.split("usage: ")[1].split("\n")[0])
    PEERS[sys.argv[1]](*sys.argv[2:])


main()
