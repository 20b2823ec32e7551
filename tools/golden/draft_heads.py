# SPDX-License-Identifier: Apache-2.0
"""Draft heads for the small models of make_model_golden.py: their tensors, and the logits that they give.

A head joins the embedding of a token and the model's hidden state of the token before it, each normed; a linear layer
brings both to the model's width; a decoder layer with attention, a norm and the model's own output layer follow. The
layer is transformers' own; what surrounds it follows vLLM (qwen3_next_mtp, deepseek_mtp), as transformers leaves the
tensors out.
"""
import copy

import torch


def of_qwen(config):
    """Names of a head: of what surrounds its layer, and the prefix of the layer."""
    return {"join": "mtp.fc", "embed_norm": "mtp.pre_fc_norm_embedding", "hidden_norm": "mtp.pre_fc_norm_hidden",
            "last_norm": "mtp.norm"}, "mtp.layers.0."


def of_deepseek(config):
    at = f"model.layers.{config.num_hidden_layers}."
    return {"join": at + "eh_proj", "embed_norm": at + "enorm", "hidden_norm": at + "hnorm",
            "last_norm": at + "shared_head.norm"}, at


NAMES = {"qwen3_next": of_qwen, "qwen3_5_text": of_qwen, "qwen3_5_moe_text": of_qwen, "deepseek_v3": of_deepseek, "glm4_moe": of_deepseek}

# A model that has a head besides: (name of the model that it is like, what differs)
LIKE = {
    "qwen3_5_draft": ("qwen3_5", {}),
    "qwen3_5_moe_draft": ("qwen3_5_moe", {}),
    "qwen3_next_draft": ("qwen3_next", {}),
    "deepseek_v3_draft": ("deepseek_v3", {}),
    "glm4_moe_draft": ("glm4_moe", {"num_nextn_predict_layers": 1}),
}


def models(families):
    """With heads, and shorter texts, as the models without heads have long ones."""
    return {name: {**families[base], "draft": True, "lengths": [40, 33], "config": {**families[base]["config"], **more}}
            for name, (base, more) in LIKE.items()}


def like(model, config):
    """A model with one decoder layer of the kind that a head has."""
    one = copy.deepcopy(config)
    one.num_hidden_layers = 1
    if getattr(one, "layer_types", None):
        one.layer_types = ["full_attention"]
    if hasattr(one, "mlp_layer_types"):
        one.mlp_layer_types = ["sparse"]
    if hasattr(one, "mlp_only_layers"):
        one.mlp_only_layers = []
    if hasattr(one, "first_k_dense_replace"):
        one.first_k_dense_replace = 0
    return type(model)._from_config(one, attn_implementation="eager").to(torch.float32).eval()


def add(model, config, fill):
    """fill(name, shape) -> stored tensor; returns the tensors to store, by name, and a function of tokens and hidden states
    [count][width] that gives the logits of the tokens after, [count - 1][vocab], and the head's hidden states."""
    names, prefix = NAMES[config.model_type](config)
    head, width, stored = like(model, config), config.hidden_size, {}
    around = {key: fill(names[key] + ".weight", (width, 2 * width) if key == "join" else (width,)) for key in names}
    for key, value in around.items():
        stored[names[key] + ".weight"] = value
    layer = head.model.layers[0]
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            stored[prefix + name] = fill(prefix + name, parameter.shape)
            parameter.copy_(stored[prefix + name].to(torch.float32))
        for name, buffer in layer.named_buffers():
            if "e_score_correction_bias" in name:
                stored[prefix + name] = 0.2 * fill(prefix + name + ".noise", buffer.shape).to(torch.float32)
                buffer.copy_(stored[prefix + name])

    def norm(which, x):
        with torch.no_grad():
            head.model.norm.weight.copy_(around[which].to(torch.float32))
            return head.model.norm(x)

    def run(tokens, hidden):
        with torch.no_grad():
            e = norm("embed_norm", model.model.embed_tokens(tokens[1:]))
            joined = torch.cat([e, norm("hidden_norm", hidden[:-1])], dim=-1)
            x = (joined @ around["join"].to(torch.float32).T)[None]
            positions = torch.arange(x.shape[1])[None]
            sections = config.model_type.startswith("qwen3_5")  # of images, which all have the positions of text here
            rotary = head.model.rotary_emb(x, positions[None].expand(3, 1, -1) if sections else positions)
            mask = torch.full((x.shape[1], x.shape[1]), float("-inf")).triu(1)[None, None]
            y = layer(x, attention_mask=mask, position_embeddings=rotary, position_ids=positions)
            y = norm("last_norm", (y if torch.is_tensor(y) else y[0])[0])
            return model.lm_head(y), y

    return stored, run
