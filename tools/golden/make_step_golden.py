#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/golden/train/FAMILY, tiny models, and FAMILY_gradients.safetensors: a micro-batch in documents, its loss and every
parameter's gradient, from transformers in float64. Documents see only themselves, as in packed training.

A fused weight's gradient is written part by part, as Nibble trains it.

usage: make_step_golden.py OUT_FOLDER [FAMILY...]"""
import copy
import json
import os
import re
import sys

import draft_heads
import torch
import transformers
from make_model_golden import EXPERTS, published
from safetensors.torch import save_file

SEED = 1
COMMON = dict(vocab_size=37, hidden_size=24, intermediate_size=40, num_hidden_layers=2, num_attention_heads=4,
              num_key_value_heads=2, max_position_embeddings=64, rms_norm_eps=1e-5, rope_theta=10000.0,
              attn_implementation="eager")
# lengths: [rows of a micro-batch][documents]; a row has 20 tokens
ROWS = [[20], [1, 7, 12]]
# The same for models with a draft head, which predicts nothing in a document of one token, and the weight of its loss.
HEAD_ROWS, HEAD_WEIGHT = [[20], [1, 2, 17]], 0.3


# A mixture of 5 experts of which a token has 2.
MOE = dict(tie_word_embeddings=False, head_dim=8, pad_token_id=None)

LATENT = dict(tie_word_embeddings=False, pad_token_id=None, num_key_value_heads=4, num_experts_per_tok=2,
              moe_intermediate_size=12, n_shared_experts=1, first_k_dense_replace=1)

# A layer with a window and one without, whose heads are wider and of which a quarter rotates.
GEMMA4 = dict(tie_word_embeddings=True, head_dim=6, global_head_dim=16, num_kv_shared_layers=0, hidden_size_per_layer_input=0,
              hidden_activation="gelu_pytorch_tanh", sliding_window=6, final_logit_softcapping=3.0, pad_token_id=None,
              layer_types=["sliding_attention", "full_attention"], rope_parameters={
                  "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
                  "full_attention": {"rope_type": "proportional", "rope_theta": 100.0, "partial_rotary_factor": 0.25}})

# A layer with the gated delta rule, whose heads of values are wider than a block of columns, and one with gated attention.
DELTA = dict(head_dim=12, pad_token_id=None, layer_types=["linear_attention", "full_attention"], linear_conv_kernel_dim=4,
             linear_key_head_dim=8, linear_num_key_heads=2, linear_value_head_dim=34)

# Two layers with Mamba-2 around one with attention.
MAMBA = dict(pad_token_id=None, num_hidden_layers=3, layer_types=["mamba", "attention", "mamba"], mamba_d_conv=4,
             attention_multiplier=0.3, embedding_multiplier=6.0, residual_multiplier=0.4, logits_scaling=2.0,
             shared_intermediate_size=28)

# Class, and config members besides COMMON. The embedding row of a pad_token_id would get no gradient.
FAMILIES = {
    "llama": ("Llama", dict(tie_word_embeddings=True)),
    "qwen2": ("Qwen2", dict(tie_word_embeddings=False)),
    "qwen3": ("Qwen3", dict(tie_word_embeddings=True, head_dim=10)),
    "mistral": ("Mistral", dict(tie_word_embeddings=False, sliding_window=5)),
    "smollm3": ("SmolLM3", dict(tie_word_embeddings=True, no_rope_layers=[1, 0], pad_token_id=None)),
    "olmo2": ("Olmo2", dict(tie_word_embeddings=False, pad_token_id=None)),
    "exaone4": ("Exaone4", dict(tie_word_embeddings=False, sliding_window=None,
                                layer_types=["full_attention", "full_attention"])),
    "granite": ("Granite", dict(tie_word_embeddings=True, embedding_multiplier=6.0, attention_multiplier=0.3,
                                residual_multiplier=0.4, logits_scaling=2.0)),
    "gemma": ("Gemma", dict(tie_word_embeddings=True, head_dim=8, hidden_act="gelu_pytorch_tanh", pad_token_id=None)),
    "gemma2": ("Gemma2", dict(tie_word_embeddings=True, head_dim=8, hidden_activation="gelu_pytorch_tanh",
                              query_pre_attn_scalar=12, sliding_window=6,
                              attn_logit_softcapping=2.0, final_logit_softcapping=3.0, pad_token_id=None,
                              layer_types=["sliding_attention", "full_attention"])),
    "gemma3": ("Gemma3Text", dict(tie_word_embeddings=True, head_dim=8, hidden_activation="gelu_pytorch_tanh",
                                  query_pre_attn_scalar=8, sliding_window=4,
                                  pad_token_id=None, layer_types=["sliding_attention", "full_attention"])),
    "gemma4": ("Gemma4Text", dict(GEMMA4, attention_k_eq_v=True, num_global_key_value_heads=1, enable_moe_block=True, num_experts=5,
                                  top_k_experts=3, moe_intermediate_size=12)),
    "gemma4_dense": ("Gemma4Text", GEMMA4),
    "cohere": ("Cohere", dict(tie_word_embeddings=True, logit_scale=0.5, pad_token_id=None, layer_norm_eps=1e-5)),
    "cohere_norms": ("Cohere", dict(tie_word_embeddings=True, logit_scale=0.5, pad_token_id=None, layer_norm_eps=1e-5,
                                    use_qk_norm=True)),
    "cohere2": ("Cohere2", dict(tie_word_embeddings=True, logit_scale=0.5, sliding_window=6, pad_token_id=None,
                                layer_norm_eps=1e-5, layer_types=["sliding_attention", "full_attention"])),
    "starcoder2": ("Starcoder2", dict(tie_word_embeddings=True, sliding_window=7, norm_epsilon=1e-5,
                                      hidden_act="gelu_pytorch_tanh")),
    "ministral": ("Ministral", dict(tie_word_embeddings=False, head_dim=6, sliding_window=6,
                                    layer_types=["sliding_attention", "full_attention"])),
    "ministral3": ("Ministral3", dict(tie_word_embeddings=True, head_dim=8, rope_parameters={
        "rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "original_max_position_embeddings": 5,
        "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 0.5, "llama_4_scaling_beta": 0.2})),
    "phi3": ("Phi3", dict(tie_word_embeddings=False, sliding_window=6, pad_token_id=None)),
    "glm": ("Glm", dict(tie_word_embeddings=False, head_dim=8, pad_token_id=None, attention_bias=True,
                        partial_rotary_factor=0.5)),
    "glm4": ("Glm4", dict(tie_word_embeddings=True, head_dim=8, pad_token_id=None, attention_bias=False,
                          partial_rotary_factor=0.5)),
    # aux: coefficient of the load-balancing loss, over the tokens of all documents
    "qwen3_moe": ("Qwen3Moe", dict(MOE, num_experts=5, num_experts_per_tok=2, moe_intermediate_size=12,
                                   decoder_sparse_step=1, norm_topk_prob=True), 0.3),
    "qwen3_moe_plain": ("Qwen3Moe", dict(MOE, num_experts=6, num_experts_per_tok=3, moe_intermediate_size=9,
                                         decoder_sparse_step=2, norm_topk_prob=False)),
    "mixtral": ("Mixtral", dict(MOE, num_local_experts=4, num_experts_per_tok=2, sliding_window=None), 0.2),
    "granitemoe": ("GraniteMoe", dict(tie_word_embeddings=True, pad_token_id=None, num_local_experts=5, num_experts_per_tok=2,
                                      embedding_multiplier=6.0, attention_multiplier=0.3, residual_multiplier=0.4,
                                      logits_scaling=2.0)),
    "glm4_moe": ("Glm4Moe", dict(MOE, attention_bias=True, use_qk_norm=True, partial_rotary_factor=0.5, n_routed_experts=6,
                                 num_experts_per_tok=2, moe_intermediate_size=12, n_shared_experts=1,
                                 first_k_dense_replace=1, n_group=1, topk_group=1, norm_topk_prob=True,
                                 routed_scaling_factor=1.5)),
    # latent attention: queries from the hidden state, and through a latent vector; yarn with mscale, and without
    "deepseek_v2": ("DeepseekV2", dict(LATENT, q_lora_rank=None, kv_lora_rank=14, qk_nope_head_dim=6, qk_rope_head_dim=4,
                                       v_head_dim=7, n_routed_experts=6, topk_method="group_limited_greedy", n_group=3,
                                       topk_group=2, norm_topk_prob=False, routed_scaling_factor=2.0), 0.3),
    "deepseek_v3": ("DeepseekV3", dict(LATENT, q_lora_rank=10, kv_lora_rank=18, qk_nope_head_dim=8, qk_rope_head_dim=6,
                                       v_head_dim=5, attention_bias=True, n_routed_experts=6, n_group=2, topk_group=1,
                                       norm_topk_prob=True, routed_scaling_factor=1.5, rope_parameters={
                                           "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0,
                                           "original_max_position_embeddings": 5, "beta_fast": 32.0, "beta_slow": 1.0,
                                           "mscale": 1.0, "mscale_all_dim": 0.5}), 0.2),
    "gpt_oss": ("GptOss", dict(MOE, num_local_experts=4, num_experts_per_tok=2, sliding_window=5, swiglu_limit=0.5, rope_parameters={
        "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 16,
        "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False},
        layer_types=["sliding_attention", "full_attention"]), 0.5),
    "llama4": ("Llama4Text", dict(tie_word_embeddings=False, head_dim=8, pad_token_id=None, num_local_experts=4,
                                  num_experts_per_tok=2, intermediate_size=12, intermediate_size_mlp=20, moe_layers=[1],
                                  no_rope_layers=[1, 0], attention_chunk_size=8, attn_temperature_tuning=True, floor_scale=4,
                                  attn_scale=0.3, use_qk_norm=True)),
    "lfm2": ("Lfm2", dict(tie_word_embeddings=True, pad_token_id=None, num_hidden_layers=3, norm_eps=1e-5, conv_L_cache=3,
                          conv_bias=False, block_auto_adjust_ff_dim=False, layer_types=["conv", "full_attention", "conv"])),
    "qwen3_next": ("Qwen3Next", dict(DELTA, tie_word_embeddings=False, linear_num_value_heads=4, partial_rotary_factor=0.5,
                                     full_attention_interval=2, num_experts=5, num_experts_per_tok=2, moe_intermediate_size=12,
                                     shared_expert_intermediate_size=20, decoder_sparse_step=1, mlp_only_layers=[],
                                     norm_topk_prob=True), 0.3),
    "qwen3_5": ("Qwen3_5Text", dict(DELTA, tie_word_embeddings=True, linear_num_value_heads=2, rope_parameters={
        "rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5, "mrope_interleaved": True,
        "mrope_section": [1, 1, 1]})),
    "granite_hybrid": ("GraniteMoeHybrid", dict(MAMBA, tie_word_embeddings=True, mamba_expand=3, mamba_n_heads=2, mamba_d_head=36,
                                                mamba_d_state=10, mamba_n_groups=1, mamba_conv_bias=True, mamba_proj_bias=True,
                                                num_local_experts=0, num_experts_per_tok=0, position_embedding_type="nope")),
    "granite_hybrid_moe": ("GraniteMoeHybrid", dict(MAMBA, tie_word_embeddings=False, mamba_expand=2, mamba_n_heads=4,
                                                    mamba_d_head=12, mamba_d_state=6, mamba_n_groups=2, mamba_conv_bias=False,
                                                    mamba_proj_bias=False, num_local_experts=5, num_experts_per_tok=2,
                                                    position_embedding_type="rope", time_step_limit=[0.5, 0.8])),
    "stablelm": ("StableLm", dict(tie_word_embeddings=False, use_qkv_bias=True, layer_norm_eps=1e-5,
                                  partial_rotary_factor=0.7)),
    "stablelm_norms": ("StableLm", dict(tie_word_embeddings=False, layer_norm_eps=1e-5, partial_rotary_factor=0.7,
                                        qk_layernorm=True, use_parallel_residual=True)),
}

# Models that train with a draft head: (name of the model that it is like, what differs)
HEADS = {"qwen3_5_head": ("qwen3_5", {}), "qwen3_next_head": ("qwen3_next", {}),
         "deepseek_v3_head": ("deepseek_v3", {"num_nextn_predict_layers": 1})}
FAMILIES.update({name: (FAMILIES[base][0], dict(FAMILIES[base][1], **more), *FAMILIES[base][2:])
                 for name, (base, more) in HEADS.items()})


class Head(torch.nn.Module):
    """A draft head in float64, of tensors named as they are stored (draft_heads.py)."""

    def __init__(self, model):
        super().__init__()
        config = model.config
        self.names, self.prefix = draft_heads.NAMES[config.model_type](config)
        like = draft_heads.like(model, config).double()
        like.config._experts_implementation = "eager"
        self.rotary, self.sections = like.model.rotary_emb, config.model_type.startswith("qwen3_5")
        self.layer, width = like.model.layers[0], config.hidden_size
        self.join = torch.nn.Linear(2 * width, width, bias=False, dtype=torch.float64)
        self.embed_norm, self.hidden_norm, self.last_norm = (copy.deepcopy(model.model.norm) for _ in range(3))

    def stored(self):
        """(stored name, tensor) of all parameters and of buffers that are stored."""
        result = [(self.names[key] + ".weight", getattr(self, key).weight) for key in self.names]
        result += [(self.prefix + name, p) for name, p in self.layer.named_parameters()]
        return result, [(self.prefix + name, b) for name, b in self.layer.named_buffers() if "e_score_correction_bias" in name]

    def forward(self, model, ids, hidden):
        e = self.embed_norm(model.model.embed_tokens(torch.cat([ids[1:], ids[-1:]])))
        x = self.join(torch.cat([e, self.hidden_norm(hidden)], dim=-1))[None]
        positions = torch.arange(len(ids))[None]
        rotary = self.rotary(x, positions[None].expand(3, 1, -1) if self.sections else positions)
        mask = torch.full((len(ids), len(ids)), float("-inf"), dtype=x.dtype).triu(1)[None, None]
        y = self.layer(x, attention_mask=mask, position_embeddings=rotary, position_ids=positions)
        return model.lm_head(self.last_norm((y if torch.is_tensor(y) else y[0])[0]))


def build(arch):
    name, own = FAMILIES[arch][:2]
    config = getattr(transformers, f"{name}Config")(**dict(COMMON, **own))
    return getattr(transformers, name.removesuffix("Text") + "ForCausalLM")(config)


def expert_parts(name, value, config):
    """Splits a stack [experts][rows][columns]; Llama 4 and gpt-oss have [experts][columns][rows], gpt-oss with gate and up in turn."""
    turned, in_turn = config.model_type in ("gpt_oss", "llama4_text"), config.model_type == "gpt_oss"
    kind = "bias" if name.endswith("_bias") else "weight"
    layer = re.split(r"\.(?:mlp|block_sparse_moe|feed_forward|experts)\.", name)[0]
    prefix, gate, up, down = EXPERTS.get(config.model_type, EXPERTS["qwen3_moe"])
    if config.model_type == "gemma4_text":  # experts beside the MLP
        prefix = "experts."
    result = []
    for e, part in enumerate(value):
        part = part.T if turned and kind == "weight" else part
        pairs = [(down, part)]
        if "gate_up" in name:
            pairs = zip((gate, up), (part[::2], part[1::2]) if in_turn else part.chunk(2))
        result += [(f"{layer}.{prefix}{e}.{which}.{kind}", own) for which, own in pairs]
    return result


def parts(name, value, config):
    """Splits rows of q, k and v, of gate and up, or experts, into named parts. For norms per head see join_heads."""
    if ".experts." in name:
        return expert_parts(name, value, config)
    if config.model_type != "lfm2":
        name = name.replace(".feed_forward.", ".mlp.")
    if "shared_mlp." in name:  # Granite's
        base = name.split("shared_mlp.")[0] + "mlp.shared_expert."
        if "output_linear" in name:
            return [(f"{base}down_proj.weight", value)]
        return [(f"{base}{part}_proj.weight", r) for part, r in zip(("gate", "up"), value.chunk(2))]
    if ".router." in name:  # Granite's, Llama 4's and gpt-oss's
        return [(name.replace("block_sparse_moe.router", "mlp.gate").replace("mlp.router", "mlp.gate"), value)]
    if config.model_type == "mixtral" and ".mlp.gate." in name:
        return [(name.replace(".mlp.gate.", ".block_sparse_moe.gate."), value)]
    if "qkv_proj" in name:
        head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        kv = config.num_key_value_heads * head
        rows = value.split([config.num_attention_heads * head, kv, kv])
        return [(name.replace("qkv_proj", f"{part}_proj"), r) for part, r in zip("qkv", rows)]
    if "gate_up_proj" in name:
        return [(name.replace("gate_up_proj", f"{part}_proj"), r) for part, r in zip(("gate", "up"), value.chunk(2))]
    if "kv_b_proj" in name:  # the keys' half of each head, transposed, and the values'
        heads = value.view(config.num_attention_heads, -1, config.kv_lora_rank)
        split = [head.split([config.qk_nope_head_dim, config.v_head_dim]) for head in heads]
        return [(name.replace("kv_b_proj", f"{which}_b_proj.{h}"), part)
                for h, (k, v) in enumerate(split) for which, part in (("k", k.T), ("v", v))]
    return [(name, value)]


def join_heads(tensors):
    """Joins StableLM's norms per head, which are separate tensors, as Nibble trains them as one."""
    for name in [n for n in tensors if n.endswith("_layernorm.norms.0.weight")]:
        apart = name.removesuffix("0.weight")
        heads = [tensors.pop(f"{apart}{h}.weight") for h in range(sum(n.startswith(apart) for n in tensors))]
        tensors[name.replace("_layernorm.norms.0", "_norm")] = torch.stack(heads)


def watch_routers(model, head):
    """A list that gets (logits, chosen) of each router that runs."""
    seen = []
    for module in [*model.modules(), *(head.modules() if head else [])]:
        if type(module).__name__ in ("DeepseekV2TopkRouter", "DeepseekV3TopkRouter"):
            module.register_forward_hook(lambda _, __, out: seen.append((out[0], out[2])))
    return seen


def deepseek_balance(layers, length, config):
    """DeepSeek's load-balancing loss, which transformers lack: added over layers, of sequences of `length` tokens their mean.

    DeepSeek-AI, "DeepSeek-V2", 2024, section 2.2.3; for sigmoids "DeepSeek-V3 Technical Report", 2024, equations 17 to 20."""
    n, k = config.n_routed_experts, config.num_experts_per_tok
    total = 0.0
    for logits, chosen in layers:
        for scores, own in zip(logits.double().split(length), chosen.split(length)):
            if config.model_type == "deepseek_v3":
                own = scores.topk(k).indices
                scores = scores.sigmoid() / scores.sigmoid().sum(-1, keepdim=True)
            else:
                scores = scores.softmax(-1)
            share = torch.bincount(own.reshape(-1), minlength=n).double() * n / (k * length)
            total = total + (share * scores.mean(0)).sum() * length / len(logits)
    return total


def make(arch, folder):
    os.makedirs(f"{folder}/{arch}", exist_ok=True)
    torch.manual_seed(SEED)
    model = build(arch).double()
    model.config._experts_implementation = "eager"  # the others have no float64
    head = Head(model) if arch in HEADS else None
    parameters, buffers = list(model.named_parameters()), list(model.named_buffers())
    if head:
        own = head.stored()
        parameters, buffers = parameters + own[0], buffers + own[1]
    with torch.no_grad():
        for name, p in parameters:
            minus = "linear_attn" not in name and arch.startswith("qwen3_") and not arch.startswith("qwen3_moe")
            stored_as_is = not minus and (not arch.startswith("gemma") or arch.startswith("gemma4"))  # else minus 1
            is_factor = "norm" in name and name.endswith("weight") or name.endswith(("router.scale", "per_expert_scale"))
            scale = 1.0 if is_factor and stored_as_is else 0.0
            p.copy_((scale + 0.15 * torch.randn(p.shape)).float().double())
            if arch.startswith("gemma4") and "q_norm" in name:  # scores have no other factor
                p.mul_(0.4).copy_(p.float().double())
            if "conv" in name and p.dim() == 3:  # taps, of which few are summed
                p.mul_(3.0).copy_(p.float().double())
            if "in_proj_qkv" in name:  # so that no key is near 0, whose direction is all that counts
                p.mul_(4.0).copy_(p.float().double())
            if "router.proj" in name:  # Gemma 4's, whose input is divided by the root of the width
                p.mul_(4.0).copy_(p.float().double())
        for name, buffer in buffers:
            if "e_score_correction_bias" in name:  # large enough to change choices
                buffer.copy_(0.2 * torch.randn(buffer.shape))
            if "layer_scalar" in name:
                buffer.copy_((1 + 0.25 * torch.randn(buffer.shape)).float().double())
    documents = HEAD_ROWS if head else ROWS
    rows = torch.randint(0, COMMON["vocab_size"], (len(documents), 21))
    count = rows.shape[0] * 20
    total, choices, deepseek, seen = 0.0, [], [], watch_routers(model, head)
    drafted, drafts, hidden, of_head = 0.0, 0, [], []
    model.model.norm.register_forward_hook(lambda _, __, out: hidden.append(out[0]))
    if head and hasattr(head.layer.mlp, "gate"):
        head.layer.mlp.gate.register_forward_hook(lambda _, __, out: of_head.append(out[0]))
    aux = FAMILIES[arch][2] if len(FAMILIES[arch]) > 2 else 0.0
    for row, lengths in zip(rows, documents):
        at = 0
        for length in lengths:
            ids, targets = row[at:at + length], row[at + 1:at + length + 1]
            out = model(ids[None], **({"output_router_logits": True} if aux else {}))
            logits = out.logits[0]
            if head:
                guesses, wanted = head(model, ids, hidden.pop()), targets[1:]
                drafted = drafted + torch.nn.functional.cross_entropy(guesses[:-1], wanted, reduction="sum")
                drafts += len(wanted)
            choices.append((*out.router_logits, *(of_head.pop() for _ in of_head[:1])) if aux else None)
            deepseek.append(seen.copy())
            seen.clear()
            total = total + torch.nn.functional.cross_entropy(logits, targets, reduction="sum")
            at += length
    loss = total / count + (HEAD_WEIGHT * drafted / drafts if head else 0)
    whole = None
    if aux and deepseek[0]:
        layers = [[torch.cat(values) for values in zip(*layer)] for layer in zip(*deepseek)]
        balance = deepseek_balance(layers, 20, model.config)
        whole = deepseek_balance(layers, count, model.config)  # seq_aux false
        gates = {name: p for name, p in model.named_parameters() if name.endswith("mlp.gate.weight")}
        of_whole = torch.autograd.grad(loss + aux * whole, list(gates.values()), retain_graph=True)
        loss = loss + aux * balance
    elif aux:
        module = sys.modules[type(model).__module__]
        pooled = tuple(torch.cat(layers) for layers in zip(*choices))
        balance = module.load_balancing_loss_func(pooled, len(pooled[0].T), model.config.num_experts_per_tok)
        loss = loss + aux * balance
    loss.backward()
    weights, tensors = {}, {"rows": rows.to(torch.int32)}
    tensors["starts"] = torch.tensor([r * 20 + sum(l[:i]) for r, l in enumerate(documents) for i in range(len(l))],
                                     dtype=torch.int32)
    tensors["loss"] = total.detach().reshape(1)
    if head:
        tensors["draft_loss"] = (drafted / drafts).detach().reshape(1)
        tensors["draft_weight"] = torch.tensor([HEAD_WEIGHT], dtype=torch.float64)
    if aux:
        tensors["balance"] = balance.detach().double().reshape(1)
        tensors["aux"] = torch.tensor([aux], dtype=torch.float64)
    if whole is not None:
        tensors["whole.balance"] = whole.detach().reshape(1)
        tensors.update({f"whole.{name}": grad.float() for name, grad in zip(gates, of_whole)})
    for name, p in parameters:
        for stored, value in published(model.config.model_type, name, p.detach().float()):
            weights[stored] = value.contiguous()
        for part, grad in parts(name, p.grad.float(), model.config):
            tensors[part] = grad.contiguous()
    for name, buffer in buffers:
        if "e_score_correction_bias" in name or "layer_scalar" in name:
            weights[name] = buffer.float()
            tensors[name] = torch.zeros_like(weights[name])
    join_heads(tensors)
    about = {"tool": f"transformers {transformers.__version__}, torch {torch.__version__}", "seed": str(SEED),
             "command": "tools/golden/make_step_golden.py tests/golden/train"}
    save_file(weights, f"{folder}/{arch}/model.safetensors", about)
    save_file(tensors, f"{folder}/{arch}_gradients.safetensors", about)
    with open(f"{folder}/{arch}/config.json", "w") as f:
        config = {"model_type": model.config.model_type, "architectures": [type(model).__name__], "torch_dtype": "float32",
                  "hidden_act": "silu", "tie_word_embeddings": FAMILIES[arch][1]["tie_word_embeddings"],
                  **{k: v for k, v in COMMON.items() if k != "attn_implementation"},
                  **{k: v for k, v in FAMILIES[arch][1].items() if k != "tie_word_embeddings"}}
        json.dump(config, f, indent=1)
        f.write("\n")


if __name__ == "__main__":
    for arch in sys.argv[2:] or FAMILIES:
        make(arch, sys.argv[1])
