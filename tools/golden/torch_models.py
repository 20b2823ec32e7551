#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes tests/golden/torch/*/: small quantized Llamas as other PyTorch programs store them, with their logits.

usage: tools/golden/torch_models.py     Needs PyTorch, transformers and torchao.

8da4w_bias      torchao's Int8DynActInt4WeightLinear in every layer, with biases, as pytorch_model.bin
8da4w_plain     the same without biases and with zero points, in safetensors with Meta's names
meta            Meta's quantized keys: 8da4w layers, int8 rows of embedding and output; params.json
meta_float      Meta's floats in bf16: rows of q and k interleaved for RoPE; params.json
gptfast_int8    gpt-fast's model_int8.pth: fused wqkv, scales in bf16; config.json
shards          pytorch_model-0000N-of-00002.bin with their index, which names the tied table twice
gptfast_int4    gpt-fast's model_int4.g32.pth, packed for CUDA
tinygemm.safetensors    int4 as aten packs it for each machine, and the values

logits.safetensors holds tokens, positions and logits as in make_model_golden.py. PyTorch does the packing for CPUs, at each
instruction set; the packing for GPUs is written out below, lane by lane, and compared with the operand layout of either
vendor's matrix instructions.
"""
import json
import os
import subprocess
import sys
import tempfile

import torch
import torchao
import transformers
from safetensors.torch import save_file
from torchao.quantization.linear_quant_modules import Int8DynActInt4WeightLinear
from torchao.quantization.utils import group_quantize_tensor_symmetric, per_token_dynamic_quant

OUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tests", "golden", "torch")
SEED, GROUP, WIDTH, FFN, HEADS, KV_HEADS, VOCAB = 20261120, 32, 64, 96, 4, 2, 64
MADE = {"made": f"torch {torch.__version__}, torchao {torchao.__version__}, transformers {transformers.__version__}, "
                f"seed {SEED}: tools/golden/torch_models.py"}
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": WIDTH, "intermediate_size": FFN,
    "num_hidden_layers": 1, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "vocab_size": VOCAB,
    "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": False,
    "bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "float32",
}
PARAMS = {"dim": WIDTH, "n_layers": 1, "n_heads": HEADS, "n_kv_heads": KV_HEADS, "vocab_size": VOCAB, "hidden_dim": FFN,
          "norm_eps": 1e-5, "rope_theta": 10000.0, "max_seq_len": 128}
NAMES = [("model.embed_tokens", "tok_embeddings"), ("model.norm", "norm"), ("lm_head", "output"), ("model.layers", "layers"),
         ("self_attn.q_proj", "attention.wq"), ("self_attn.k_proj", "attention.wk"), ("self_attn.v_proj", "attention.wv"),
         ("self_attn.o_proj", "attention.wo"), ("mlp.gate_proj", "feed_forward.w1"), ("mlp.down_proj", "feed_forward.w2"),
         ("mlp.up_proj", "feed_forward.w3"), ("input_layernorm", "attention_norm"), ("post_attention_layernorm", "ffn_norm")]


def llama(bias):
    config = transformers.LlamaConfig(**CONFIG, attention_bias=bias, mlp_bias=bias)
    model = transformers.LlamaForCausalLM._from_config(config, attn_implementation="eager").to(torch.float32).eval()
    generator = torch.Generator().manual_seed(SEED)
    with torch.no_grad():
        for name, p in model.named_parameters():
            noise = torch.randn(p.shape, generator=generator)
            if "norm" in name:
                p.copy_(1 + 0.25 * noise)
            elif name.endswith(".bias"):
                p.copy_(0.5 * noise)
            else:
                p.copy_(noise * (0.35 if "embed" in name else 2.0 / p.shape[-1] ** 0.5))
    return model


def each_linear(model):
    for name, module in list(model.named_modules()):
        if isinstance(module, torch.nn.Linear):
            yield name, model.get_submodule(name.rpartition(".")[0]), name.rpartition(".")[2], module


def to_8da4w(model, zero_points):
    """Quantizes every linear layer but the output."""
    generator = torch.Generator().manual_seed(SEED + 1)
    for name, parent, last, linear in each_linear(model):
        if name == "lm_head":
            continue
        new = Int8DynActInt4WeightLinear(linear.in_features, linear.out_features, bias=linear.bias is not None, groupsize=GROUP)
        q, scales, zeros = group_quantize_tensor_symmetric(linear.weight.detach(), 4, GROUP, torch.float32)
        new.weight.copy_(q)
        new.scales.copy_(scales)
        new.zeros.copy_(torch.randint(-3, 4, zeros.shape, generator=generator) if zero_points else zeros)
        if linear.bias is not None:
            new.bias.copy_(linear.bias.detach())
        setattr(parent, last, new)


def int8_rows(weight):
    scales = (weight.abs().amax(1) / 127.5).clamp(min=torch.finfo(torch.float32).eps)
    return (weight / scales[:, None]).round().clamp(-128, 127).to(torch.int8), scales


class Int8Rows(torch.nn.Module):
    """weight I8 [n][k], scales [n]: gpt-fast's layer, or with `dynamic` ExecuTorch's 8da8w output."""

    def __init__(self, weight, dynamic, dtype=torch.float32):
        super().__init__()
        q, scales = int8_rows(weight.detach())
        self.register_buffer("weight", q)
        self.register_buffer("scales", scales.to(dtype))
        self.dynamic = dynamic

    def forward(self, x):
        if self.dynamic:
            x = per_token_dynamic_quant(x, scale_dtype=torch.float32, zero_point_dtype=torch.float32,
                                        eps=torch.finfo(torch.float32).eps)
        return torch.nn.functional.linear(x, self.weight.to(x.dtype)) * self.scales.to(x.dtype)


class Int8Embedding(torch.nn.Module):
    def __init__(self, weight):
        super().__init__()
        q, scales = int8_rows(weight.detach())
        self.register_buffer("weight", q)
        self.register_buffer("scales", scales)

    def forward(self, ids):
        return self.weight[ids].to(torch.float32) * self.scales[ids][..., None]


def paired(tensor, heads):
    """Reorders rows from Hugging Face's halves of a head to Meta's pairs."""
    return tensor.view(heads, 2, tensor.shape[0] // heads // 2, *tensor.shape[1:]).transpose(1, 2).reshape(tensor.shape)


def to_meta(state, fused=False):
    out = {}
    for name, tensor in state.items():
        for ours, theirs in NAMES:
            name = name.replace(ours, theirs)
        if ".wq." in name or ".wk." in name:
            tensor = paired(tensor, HEADS if ".wq." in name else KV_HEADS)
        out[name] = tensor.contiguous()
    for name in [n for n in out if fused and ".wq." in n]:
        parts = [out.pop(name.replace(".wq.", w)) for w in (".wq.", ".wk.", ".wv.")]
        out[name.replace(".wq.", ".wqkv.")] = torch.cat(parts)
    return out


def write(name, model, file, state, configs):
    directory = os.path.join(OUT, name)
    os.makedirs(directory, exist_ok=True)
    for config, values in configs.items():
        with open(os.path.join(directory, config), "w", encoding="utf-8") as f:
            json.dump(values, f, indent=2)
            f.write("\n")
    if file.endswith(".safetensors"):
        save_file(state, os.path.join(directory, file), MADE)
    else:
        torch.save(state, os.path.join(directory, file))
    generator = torch.Generator().manual_seed(SEED + 2)
    out = {}
    for i, length in enumerate((40, 23)):
        tokens = torch.randint(VOCAB, (1, length), generator=generator)
        with torch.no_grad():
            out[f"logits.{i}"] = model(tokens).logits[0].contiguous()
        out[f"tokens.{i}"] = tokens[0].to(torch.int32)
        out[f"positions.{i}"] = torch.arange(length, dtype=torch.int32)
    save_file(out, os.path.join(directory, "logits.safetensors"), MADE)
    print(name, sum(os.path.getsize(os.path.join(directory, f)) for f in os.listdir(directory)), "bytes")


def shards():
    """Writes no logits: the test compares the tensors with sums."""
    directory = os.path.join(OUT, "shards")
    os.makedirs(directory, exist_ok=True)
    torch.manual_seed(SEED + 4)
    table = torch.randn(16, 8)
    parts = [{"model.embed_tokens.weight": table, "lm_head.weight": table}, {"model.norm.weight": torch.randn(8)}]
    names = [f"pytorch_model-0000{i + 1}-of-00002.bin" for i in range(2)]
    for name, part in zip(names, parts):
        torch.save(part, os.path.join(directory, name))
    index = {"metadata": {"total_size": 16 * 8 * 4 + 8 * 4}, "weight_map": {k: n for n, p in zip(names, parts) for k in p}}
    with open(os.path.join(directory, "pytorch_model.bin.index.json"), "w", encoding="utf-8") as f:
        json.dump(index, f, indent=2)
        f.write("\n")


def models():
    model = llama(True)
    to_8da4w(model, False)
    write("8da4w_bias", model, "pytorch_model.bin", model.state_dict(),
          {"config.json": CONFIG | {"attention_bias": True, "mlp_bias": True}})
    shards()
    model = llama(False)
    to_8da4w(model, True)
    write("8da4w_plain", model, "model.safetensors", to_meta(model.state_dict()), {"config.json": CONFIG})
    model = llama(False)
    to_8da4w(model, False)
    model.lm_head = Int8Rows(model.lm_head.weight, True)
    model.model.embed_tokens = Int8Embedding(model.model.embed_tokens.weight)
    state = {k: v for k, v in to_meta(model.state_dict()).items() if not k.endswith(".zeros")}
    write("meta", model, "consolidated.00.pth", state,
          {"params.json": PARAMS | {"quantization_args": {"scheme": "int4_weight_int8_dynamic_activation", "group_size": GROUP,
                                                          "spinquant": False}}})
    model = llama(False)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(p.to(torch.bfloat16))
    write("meta_float", model, "consolidated.00.pth", {k: v.to(torch.bfloat16) for k, v in to_meta(model.state_dict()).items()},
          {"params.json": PARAMS})
    model = llama(False)
    for _, parent, last, linear in each_linear(model):
        setattr(parent, last, Int8Rows(linear.weight, False, torch.bfloat16))
    write("gptfast_int8", model, "model_int8.pth", to_meta(model.state_dict(), fused=True), {"config.json": CONFIG})


# ---- tinygemm ----


def int4_groups(weight, group):
    """gpt-fast's: codes 0..15, scale and zero in bf16, value = (code - 8) * scale + zero."""
    w = weight.to(torch.float32).view(weight.shape[0], -1, group)
    low, high = w.amin(2, keepdim=True), w.amax(2, keepdim=True)
    scale = ((high - low).clamp(min=1e-6) / 15).to(torch.bfloat16)
    zero = (low + scale.float() * 8).to(torch.bfloat16)
    low = zero.float() - scale.float() * 8
    q = ((w - low) / scale.float()).round().clamp(0, 15)
    value = (q - 8) * scale.float() + zero.float()
    pairs = torch.cat([scale, zero], 2).transpose(0, 1).contiguous()
    return q.to(torch.int32).view(weight.shape), pairs, value.view(weight.shape)


def pack_gpu(q, tiles, rows, lanes):
    """The words that lane t of a warp holds of a block of `rows` rows and 16 * tiles columns."""
    n, k = q.shape
    q = q.tolist()
    words = []
    for block in range(n // rows):
        for group in range(k // (16 * tiles)):
            for lane in range(lanes):
                for word in range(tiles // 2):
                    row = block * rows + (lane // 4 if lanes == 32 else lane % 16)
                    value = 0
                    for tile in range(2):
                        first = (group * tiles + word * 2 + tile) * 16
                        columns = [first + lane % 4 * 2, first + lane % 4 * 2 + 8] if lanes == 32 else \
                                  [first + lane // 16 * 4, first + lane // 16 * 4 + 2]
                        for i, column in enumerate(columns):
                            value |= q[row][column] << 4 * (2 * tile + i) | q[row][column + 1] << 16 + 4 * (2 * tile + i)
                    words.append(value - (1 << 32) if value >= 1 << 31 else value)
    return torch.tensor(words, dtype=torch.int32).view(n // 8, k // (16 * tiles), 32, tiles // 2)


def read_gpu(packed, n, k, tiles, rows, lanes):
    """Reads the codes as the product does: half i of register j is nibble j + 4 i, and tile t of a word has the registers
    2 t and 2 t + 1. Those are the operand B of mma.m16n8k16 (PTX), or of v_mfma_f32_16x16x16_bf16 (CDNA)."""
    words = packed.flatten().tolist()
    q = torch.full((n, k), -1, dtype=torch.int32)
    for tile in range(k // 16):
        for block in range(n // rows):
            for lane in range(lanes):
                at = ((block * (k // 16 // tiles) + tile // tiles) * lanes + lane) * (tiles // 2) + tile % tiles // 2
                for element in range(4):  # of B, two per register
                    register, half = tile % 2 * 2 + element // 2, element % 2
                    if lanes == 32:
                        row, column = lane // 4, lane % 4 * 2 + half + 8 * (element // 2)
                    else:
                        row, column = lane % 16, lane // 16 * 4 + element
                    q[block * rows + row, tile * 16 + column] = words[at] >> 4 * (register + 4 * half) & 15
    return q


PACK = """import sys, torch
torch.save(torch.ops.aten._convert_weight_to_int4pack_for_cpu(torch.load(sys.argv[1]), 1), sys.argv[2])
print(torch.backends.cpu.get_cpu_capability())"""


def pack_cpu(q, capability):
    """Packs with PyTorch, in a process limited to the given instruction set."""
    with tempfile.TemporaryDirectory() as directory:
        paths = [os.path.join(directory, name) for name in ("codes.pt", "packed.pt")]
        torch.save(q, paths[0])
        run = subprocess.run([sys.executable, "-c", PACK, *paths], env=os.environ | {"ATEN_CPU_CAPABILITY": capability},
                             check=True, capture_output=True, text=True)
        assert run.stdout.strip().lower() == capability, f"{capability} is not to be had here: {run.stdout}"
        return torch.load(paths[1])


class Int4Groups(torch.nn.Module):
    """Computes with the values; `state` has what gpt-fast stores instead."""

    def __init__(self, weight):
        super().__init__()
        self.q, self.pairs, self.value = int4_groups(weight.detach(), GROUP)

    def forward(self, x):
        return torch.nn.functional.linear(x, self.value)


def gptfast_int4():
    """Rows of q and k are reordered and the three joined before packing, as gpt-fast does."""
    wide = CONFIG | {"hidden_size": 128, "intermediate_size": 128}
    config = transformers.LlamaConfig(**wide)
    model = transformers.LlamaForCausalLM._from_config(config, attn_implementation="eager").to(torch.float32).eval()
    generator = torch.Generator().manual_seed(SEED + 3)
    with torch.no_grad():
        for name, p in model.named_parameters():
            noise = torch.randn(p.shape, generator=generator)
            p.copy_((1 + 0.25 * noise if "norm" in name else noise * 0.35).to(torch.bfloat16))
    state, codes, pairs = {k: v for k, v in model.state_dict().items() if "proj" not in k and "lm_head" not in k}, {}, {}
    for name, parent, last, linear in each_linear(model):
        new = Int4Groups(linear.weight * 0.5)
        setattr(parent, last, new)
        codes[f"{name}.weight"] = new.q
        pairs[f"{name}.weight"] = new.pairs.transpose(0, 1).contiguous()
    out = {k: v.to(torch.bfloat16) for k, v in to_meta(state).items()}
    pairs = to_meta(pairs, fused=True)
    for name, q in to_meta(codes, fused=True).items():
        out[name] = pack_gpu(q, 8, 8, 32)
        out[name.replace(".weight", ".scales_and_zeros")] = pairs[name].transpose(0, 1).contiguous()
    write("gptfast_int4", model, "model_int4.g32.pth", out, {"config.json": wide})


def tinygemm():
    torch.manual_seed(SEED)
    out = {}
    for name, (n, k, tiles) in {"plain": (80, 128, 8), "small": (32, 64, 2), "middle": (16, 64, 4)}.items():
        q, pairs, value = int4_groups(torch.randn(n, k), GROUP)
        out[f"{name}.value"] = value.contiguous()
        for machine, rows, lanes in (("cuda", 8, 32), ("rocm", 16, 64)):
            packed = pack_gpu(q, tiles, rows, lanes)
            assert torch.equal(read_gpu(packed, n, k, tiles, rows, lanes), q)
            out[f"{name}.{machine}.weight"] = packed
            out[f"{name}.{machine}.scales_and_zeros"] = pairs.clone()
        for capability in ("avx512", "avx2", "default") if name != "middle" else ():
            out[f"{name}.{capability}.weight"] = pack_cpu(q, capability)
            out[f"{name}.{capability}.scales_and_zeros"] = pairs.clone()
    # PyTorch's product with the identity gives the values, rounded to bf16 once
    best = torch.backends.cpu.get_cpu_capability().lower()
    eye = torch.eye(128, dtype=torch.bfloat16)
    product = torch.ops.aten._weight_int4pack_mm_for_cpu(eye, out[f"plain.{best}.weight"], GROUP,
                                                         out[f"plain.{best}.scales_and_zeros"])
    assert torch.allclose(product.t().float(), out["plain.value"], rtol=8e-3, atol=1e-6)
    # codes that match no layout
    out["noise.weight"] = torch.full((2, 4, 32, 1), 0x33333333, dtype=torch.int32)
    out["noise.scales_and_zeros"] = torch.ones(4, 16, 2)
    save_file(out, os.path.join(OUT, "tinygemm.safetensors"), MADE)
    print("tinygemm", os.path.getsize(os.path.join(OUT, "tinygemm.safetensors")), "bytes")


if __name__ == "__main__":
    torch.set_num_threads(1)
    models()
    gptfast_int4()
    tinygemm()
