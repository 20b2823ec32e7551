#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Quantizes a model with another tool, for tools/compare_methods, with that tool's interpreter.

usage: PYTHON tools/compare_peers.py gptqmodel|torchao MODEL OUT TEXT RECIPE

gptqmodel: GPTQ with groups of 32, calibrated on TEXT in rows of 256 tokens; RECIPE int4wo-sym or int4wo-g32-intzero, without the output
layer. torchao: scales by HQQ, without a text; RECIPE int4wo-sym.
"""
import os
import pathlib
import sys


def gptqmodel(model, out, text, recipe):
    os.environ.setdefault("GPTQMODEL_CPU_WORKERS", "2")  # its default on two cores is fewer than it needs
    from gptqmodel import GPTQModel, QuantizeConfig
    from transformers import AutoTokenizer

    ids = AutoTokenizer.from_pretrained(model)(pathlib.Path(text).read_text(encoding="utf-8"))["input_ids"]
    rows = [{"input_ids": ids[i:i + 256], "attention_mask": [1] * 256} for i in range(0, len(ids) - 255, 256)]
    config = QuantizeConfig(bits=4, group_size=32, sym=recipe == "int4wo-sym", pack_impl="original")
    quantizer = GPTQModel.load(model, config, device="cpu")
    quantizer.quantize(rows, batch_size=8)
    quantizer.save(out)


def torchao(model, out, _text, _recipe):
    import torch
    from torchao.quantization import IntxWeightOnlyConfig, PerGroup
    from transformers import AutoModelForCausalLM, TorchAoConfig

    config = IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(32), intx_choose_qparams_algorithm="hqq_scale_only")
    quantized = AutoModelForCausalLM.from_pretrained(model, quantization_config=TorchAoConfig(config, modules_to_not_convert=["lm_head"]))
    quantized.save_pretrained(out)


def main():
    if len(sys.argv) != 6 or sys.argv[1] not in ("gptqmodel", "torchao"):
        raise SystemExit(__doc__.split("usage: ")[1].split("\n")[0])
    {"gptqmodel": gptqmodel, "torchao": torchao}[sys.argv[1]](*sys.argv[2:])


main()
