# SPDX-License-Identifier: Apache-2.0
"""The models of make_gguf_golden.py whose layers keep states: their configs, keys and tensors.

llama.cpp's converter stores the convolution's weight without its dimension of 1, -e^A_log in place of A_log, and norms but that of
the gated delta rule 1 larger. Heads of values take turns (qwen35), so that head h has the head of keys h % groups; qwen3next keeps
the order of Hugging Face, but z apart from q, k and v. Vectors of Mamba-2 have a second dimension: of 1, and the groups of its norm.
"""
import numpy as np
import transformers
from gguf import ExpertGatingFuncType
from gguf import GGMLQuantizationType as T

TOKENS = {"vocab_size": 272, "max_position_embeddings": 256, "bos_token_id": 256, "eos_token_id": 257, "pad_token_id": None}
DELTA = dict(TOKENS, hidden_size=32, num_attention_heads=4, num_key_value_heads=2, head_dim=16, rms_norm_eps=1e-6, hidden_act="silu",
             intermediate_size=64, num_hidden_layers=4, linear_conv_kernel_dim=4, linear_key_head_dim=16, linear_num_key_heads=2,
             linear_num_value_heads=4, linear_value_head_dim=32)
MROPE = {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25, "mrope_section": [1, 1, 0],
         "mrope_interleaved": True}
EXPERTS = {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 64}
GRANITE = dict(TOKENS, hidden_size=32, num_attention_heads=4, num_key_value_heads=2, rms_norm_eps=1e-5, hidden_act="silu",
               embedding_multiplier=6.0, attention_multiplier=0.0625, residual_multiplier=0.25, logits_scaling=4.0, mamba_d_conv=4,
               mamba_expand=2, mamba_conv_bias=True, mamba_proj_bias=False, rope_theta=1e4, tie_word_embeddings=True)
FLOATS = {"conv1d": [T.F32], "conv.conv": [T.F32], "mlp.gate.": [T.F32], "shared_expert_gate": [T.F32]}

FAMILIES = {
    "lfm2": {
        "config": transformers.Lfm2Config,
        "model": transformers.Lfm2ForCausalLM,
        "keys": dict(TOKENS, hidden_size=32, num_attention_heads=4, num_key_value_heads=2, norm_eps=1e-5, intermediate_size=64,
                     block_auto_adjust_ff_dim=False, num_hidden_layers=4, conv_L_cache=3, layer_types=["conv", "full_attention"] * 2,
                     rope_theta=1e6, tie_word_embeddings=True),
        "types": {"": [T.Q8_0], "conv.in_proj": [T.Q4_0, T.F16], "feed_forward.w1": [T.Q5_1], **FLOATS},
    },
    "lfm2moe": {
        "config": transformers.Lfm2MoeConfig,
        "model": transformers.Lfm2MoeForCausalLM,
        "keys": dict(TOKENS, hidden_size=32, num_attention_heads=4, num_key_value_heads=2, norm_eps=1e-5, intermediate_size=64,
                     num_hidden_layers=4, conv_L_cache=3, layer_types=["conv", "full_attention", "conv", "conv"], rope_theta=1e6,
                     moe_intermediate_size=32, num_dense_layers=1, num_experts=5, num_experts_per_tok=2, norm_topk_prob=True,
                     routed_scaling_factor=1.0, use_expert_bias=True, tie_word_embeddings=True),
        "types": {"": [T.Q8_0], "up_proj": [T.Q5_1], "feed_forward.w1": [T.Q4_0], "feed_forward.gate.": [T.F32], **FLOATS},
    },
    "qwen35": {
        "config": transformers.Qwen3_5TextConfig,
        "model": transformers.Qwen3_5ForCausalLM,
        "keys": dict(DELTA, rope_parameters=MROPE, tie_word_embeddings=True),
        "types": {"": [T.Q8_0], "out_proj": [T.Q4_0], "in_proj_a": [T.F32], **FLOATS},
    },
    "qwen35moe": {
        "config": transformers.Qwen3_5MoeTextConfig,
        "model": transformers.Qwen3_5MoeForCausalLM,
        "keys": dict(DELTA, **EXPERTS, rope_parameters=MROPE, tie_word_embeddings=False),
        "types": {"": [T.Q8_0], "up_proj": [T.Q4_1], **FLOATS},
    },
    "qwen3next": {
        "config": transformers.Qwen3NextConfig,
        "model": transformers.Qwen3NextForCausalLM,
        "keys": dict(DELTA, **EXPERTS, decoder_sparse_step=1, norm_topk_prob=True, partial_rotary_factor=0.25, rope_theta=1e7,
                     tie_word_embeddings=False),
        "types": {"": [T.Q8_0], "in_proj_qkv": [T.F16], **FLOATS},
    },
    "granitehybrid": {
        "config": transformers.GraniteMoeHybridConfig,
        "model": transformers.GraniteMoeHybridForCausalLM,
        "keys": dict(GRANITE, intermediate_size=64, shared_intermediate_size=64, num_hidden_layers=3, num_local_experts=0,
                     num_experts_per_tok=0, layer_types=["mamba", "attention", "mamba"], mamba_n_heads=2, mamba_d_head=32,
                     mamba_d_state=16, mamba_n_groups=1, position_embedding_type="nope"),
        "types": {"": [T.Q8_0], "in_proj": [T.Q5_0, T.Q4_0], "k_proj": [T.F16], **FLOATS},
    },
    "granitehybrid_moe": {
        "arch": "granitehybrid",
        "config": transformers.GraniteMoeHybridConfig,
        "model": transformers.GraniteMoeHybridForCausalLM,
        "keys": dict(GRANITE, intermediate_size=32, shared_intermediate_size=64, num_hidden_layers=3, num_local_experts=5,
                     num_experts_per_tok=2, layer_types=["mamba", "mamba", "attention"], mamba_n_heads=4, mamba_d_head=16,
                     mamba_d_state=12, mamba_n_groups=2, position_embedding_type="rope"),
        "types": {"": [T.Q8_0], "up_proj": [T.Q4_1], "router": [T.F32], **FLOATS},
    },
}
NAMES = {"operator_norm": "attn_norm", "ffn_norm": "ffn_norm", "self_attn.out_proj": "attn_output", "mlp.w1": "ffn_gate",
         "mlp.w2": "ffn_down", "mlp.w3": "ffn_up", "conv.conv": "shortconv.conv", "conv.in_proj": "shortconv.in_proj",
         "conv.out_proj": "shortconv.out_proj", "linear_attn.in_proj_qkv": "attn_qkv", "linear_attn.in_proj_z": "attn_gate",
         "linear_attn.in_proj_a": "ssm_alpha", "linear_attn.in_proj_b": "ssm_beta", "linear_attn.in_proj_ba": "ssm_ba",
         "linear_attn.conv1d": "ssm_conv1d", "linear_attn.norm": "ssm_norm", "linear_attn.out_proj": "ssm_out",
         "mlp.shared_expert_gate": "ffn_gate_inp_shexp", "mamba.in_proj": "ssm_in", "mamba.conv1d": "ssm_conv1d",
         "mamba.norm": "ssm_norm", "mamba.out_proj": "ssm_out"}
BARE = {"linear_attn.A_log": "ssm_a", "linear_attn.dt_bias": "ssm_dt.bias", "mamba.A_log": "ssm_a", "mamba.D": "ssm_d",
        "mamba.dt_bias": "ssm_dt.bias"}


def add_keys(writer, arch, c):
    """The keys besides those of all families."""
    if arch in ("lfm2", "lfm2moe"):
        writer.add_head_count_kv([c.num_key_value_heads * (kind == "full_attention") for kind in c.layer_types])
        writer.add_shortconv_l_cache(c.conv_L_cache)
        if arch == "lfm2moe":
            writer.add_expert_count(c.num_experts)
            writer.add_expert_used_count(c.num_experts_per_tok)
            writer.add_expert_feed_forward_length(c.moe_intermediate_size)
            writer.add_leading_dense_block_count(c.num_dense_layers)
            writer.add_expert_gating_func(ExpertGatingFuncType.SIGMOID)
        return
    if arch == "granitehybrid":
        add_granite_keys(writer, c)
        return
    writer.add_ssm_conv_kernel(c.linear_conv_kernel_dim)
    writer.add_ssm_state_size(c.linear_key_head_dim)
    writer.add_ssm_group_count(c.linear_num_key_heads)
    writer.add_ssm_time_step_rank(c.linear_num_value_heads)
    writer.add_ssm_inner_size(c.linear_num_value_heads * c.linear_value_head_dim)
    writer.add_full_attention_interval(4)
    writer.add_key_length(c.head_dim)
    writer.add_value_length(c.head_dim)
    writer.add_rope_dimension_count(c.head_dim // 4)
    if arch != "qwen3next":
        writer.add_rope_dimension_sections([1, 1, 0, 0])
    if arch != "qwen35":
        writer.add_expert_count(c.num_experts)
        writer.add_expert_used_count(c.num_experts_per_tok)
        writer.add_expert_feed_forward_length(c.moe_intermediate_size)
        writer.add_expert_shared_feed_forward_length(c.shared_expert_intermediate_size)


def add_granite_keys(writer, c):
    """Those of Granite 4: llama.cpp's converter says by rope.scaling.finetuned whether there is RoPE."""
    writer.add_head_count_kv([c.num_key_value_heads * (kind == "full_attention") for kind in c.layer_types])
    writer.add_embedding_scale(c.embedding_multiplier)
    writer.add_attention_scale(c.attention_multiplier)
    writer.add_residual_scale(c.residual_multiplier)
    writer.add_logit_scale(c.logits_scaling)
    writer.add_expert_count(c.num_local_experts)
    writer.add_expert_used_count(c.num_experts_per_tok)
    writer.add_expert_shared_feed_forward_length(c.shared_intermediate_size)
    writer.add_ssm_conv_kernel(c.mamba_d_conv)
    writer.add_ssm_state_size(c.mamba_d_state)
    writer.add_ssm_group_count(c.mamba_n_groups)
    writer.add_ssm_inner_size(c.mamba_expand * c.hidden_size)
    writer.add_ssm_time_step_rank(c.mamba_n_heads)
    writer.add_rope_dimension_count(c.hidden_size // c.num_attention_heads)
    writer.add_rope_scaling_finetuned(c.position_embedding_type == "rope")


def in_file(key, raw, c):
    """The bytes of a tensor in its shape in the file: some vectors have two dimensions there, and one matrix only one."""
    if key.endswith("shared_expert_gate.weight"):
        return raw.reshape(-1)
    if key.endswith("mamba.norm.weight"):
        return raw.reshape(c.mamba_n_groups, -1)
    return raw.reshape(-1, 1) if key.endswith(("mamba.A_log", "mamba.D")) else raw


def in_groups(values, c, axis, width):
    """Heads of values that take turns, in the order of Hugging Face: those of a head of keys one after the other."""
    groups, shape = c.linear_num_key_heads, values.shape
    each = shape[axis] // width // groups
    return values.reshape(*shape[:axis], each, groups, width, *shape[axis + 1:]).swapaxes(axis, axis + 1).reshape(shape)


def split(arch, key, shape, c):
    """The tensors of a parameter in the file: (name, shape)."""
    if arch == "qwen3next" and key.endswith("in_proj_qkvz.weight"):
        z = c.linear_num_value_heads * c.linear_value_head_dim
        return [(key.replace("qkvz", "qkv"), (shape[0] - z, shape[1])), (key.replace("qkvz", "z"), (z, shape[1]))]
    if key.endswith("shared_mlp.input_linear.weight"):
        module = "mlp.shared_expert" if c.num_local_experts > 0 else "mlp"
        return [(key.replace("shared_mlp.input_linear", f"{module}.{part}_proj"), (shape[0] // 2, shape[1])) for part in ("gate", "up")]
    if key.endswith("shared_mlp.output_linear.weight"):
        module = "mlp.shared_expert" if c.num_local_experts > 0 else "mlp"
        return [(key.replace("shared_mlp.output_linear", f"{module}.down_proj"), shape)]
    return [(key, (shape[0], shape[2]) if len(shape) == 3 else shape)]


def parameter(arch, key, parts, shape, c):
    """The parameter that transformers has for the values in the file."""
    part, width = key.split("linear_attn.")[-1], getattr(c, "linear_value_head_dim", 0)
    values = parts[0]
    if key.endswith("norm.weight") and part != "norm.weight" and arch.startswith("qwen3"):
        values = values - 1
    if key.endswith("A_log"):
        values = np.log(-values.astype(np.float64))
    if arch.startswith("granite"):
        values = np.concatenate(parts) if len(parts) == 2 else values
    elif len(parts) == 2:  # by head of keys: q, k, v, z
        keys, groups = c.linear_num_key_heads * c.linear_key_head_dim, c.linear_num_key_heads
        rows = [*np.split(values, [keys, 2 * keys]), parts[1]]
        values = np.concatenate([r.reshape(groups, -1, shape[1]) for r in rows], axis=1)
    elif arch in ("qwen35", "qwen35moe") and "linear_attn." in key:
        before = 2 * c.linear_num_key_heads * c.linear_key_head_dim
        if part in ("in_proj_qkv.weight", "conv1d.weight"):
            values = np.concatenate([values[:before], in_groups(values[before:], c, 0, width)])
        elif part in ("in_proj_z.weight", "out_proj.weight"):
            values = in_groups(values, c, part == "out_proj.weight" and 1 or 0, width)
        elif part != "norm.weight":
            values = in_groups(values, c, 0, 1)
    return values.reshape(shape)
