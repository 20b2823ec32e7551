#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes two layers of a tiny model, quantized and stored by GPTQModel, to tests/golden/dialects.

usage: tools/golden/make_gptq_golden.py     Needs gptqmodel, torch, transformers; runs on the CPU.

gptqmodel      GPTQ, first version, 4 bits, act-order, asymmetric
gptqmodel_v2   GPTQ, second version, 8 bits, act-order, asymmetric
gptqmodel_awq  AWQ's gemm version, with inputs scaled in the previous layers

Each module M also has M.dequantized: GPTQModel's values of every third input, in f32. config.json has GPTQModel's description of
the quantization, without its "meta".
"""
import json
import os
import pathlib
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "oracle"))
import gptq_load
import torch

SMALL = dict(hidden_size=64, intermediate_size=128, num_attention_heads=2, num_key_value_heads=2)  # AWQ's tool: rows by 64
LAYERS = ["model.layers.0.self_attn.k_proj", "model.layers.0.mlp.down_proj"]
CASES = {
    "gptqmodel": dict(bits=4, group_size=32, desc_act=True, sym=False),
    "gptqmodel_v2": dict(bits=8, group_size=32, desc_act=True, sym=False, format="gptq_v2"),
    "gptqmodel_awq": dict(bits=4, group_size=32, sym=False, quant_method="awq", format="gemm"),
}


def main():
    import gptqmodel
    from safetensors.torch import save_file
    made_by = (f"GPTQModel {gptqmodel.__version__}, torch {torch.__version__}, seed {gptq_load.SEED}, "
               "python3 tools/golden/make_gptq_golden.py")
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # GPTQModel writes logs there
        folder = pathlib.Path(folder)
        source = gptq_load.make_source(folder / "source", **SMALL)
        for name, told in CASES.items():
            made = gptq_load.by_gptqmodel(source, folder / name, told)
            _, values = gptq_load.load(made)
            tensors = {k: v for k, v in gptq_load.files_of(made).items() if k.startswith(tuple(l + "." for l in LAYERS))}
            tensors.update({f"{layer}.dequantized": values[layer][:, ::3].contiguous() for layer in LAYERS})
            config = json.loads((made / "config.json").read_text())["quantization_config"]
            config.pop("meta")
            out = ROOT / "tests" / "golden" / "dialects" / name
            os.makedirs(out, exist_ok=True)
            save_file(tensors, out / "model.safetensors", metadata={"made_by": made_by})
            with open(out / "config.json", "w") as f:
                json.dump({"quantization_config": config}, f, indent=1)
                f.write("\n")


if __name__ == "__main__":
    main()
