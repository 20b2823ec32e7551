# SPDX-License-Identifier: Apache-2.0
"""GGUF's tensor names, for scripts that write or read GGUF files with PyPI's gguf."""

PARTS = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
         "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
         "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}


def gguf_name(name):
    """The GGUF name of a tensor with this Hugging Face name."""
    if name.startswith("model.layers."):
        _, _, layer, rest = name.split(".", 3)
        base, kind = rest.rsplit(".", 1)
        return f"blk.{layer}.{PARTS[base]}.{kind}"
    return {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight",
            "lm_head.weight": "output.weight"}[name]
