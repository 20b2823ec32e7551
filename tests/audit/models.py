# SPDX-License-Identifier: Apache-2.0
"""Random small models: config, tensors and a tokenizer, as a Hugging Face directory."""
import json
import string

import tensor_files
from forward import linear_names
from tensor_files import Tensor

# One token each, as byte-level BPE spells them: a space is U+0120, a new line U+010A.
LETTERS = string.ascii_lowercase + "\u0120\u010a" + string.ascii_uppercase + string.digits + string.punctuation


class Model:
    def __init__(self, config, tensors, dtype):
        self.config, self.tensors, self.dtype = config, tensors, dtype
        self.generation = {"eos_token_id": 2}

    @property
    def tied(self):
        return "lm_head.weight" not in self.tensors

    def copy(self):
        return Model(json.loads(json.dumps(self.config)), dict(self.tensors), self.dtype)

    def linears(self):
        """Linear layers, with the output where it has a tensor of its own."""
        return linear_names(self.config) + ([] if self.tied else ["lm_head"])

    def write(self, folder):
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(self.config))
        (folder / "generation_config.json").write_text(json.dumps(self.generation))
        (folder / "tokenizer.json").write_text(json.dumps(tokenizer(self.config["vocab_size"])))
        tensor_files.write(folder / "model.safetensors", self.tensors, {"format": "pt"})
        return folder

    def rows(self, module):
        return self.tensors[module + ".weight"].rows()

    def shape_words(self):
        c = self.config
        return f"{c['model_type']} {c['hidden_size']}/{c['intermediate_size']}/{c['vocab_size']} {self.dtype.lower()}"


def tokenizer(size):
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2, **{c: i + 3 for i, c in enumerate(LETTERS[:size - 3])}}
    special = [{"id": i, "content": t, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
               for t, i in vocab.items() if i < 3]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": special, "normalizer": None,
            "pre_tokenizer": level, "post_processor": None, "decoder": level,
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                      "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "vocab": vocab, "merges": []}}


def random_model(r, family=None, dtype=None, tied=None, aligned=False, width=0):
    """A model of r's choice; aligned: widths that every format's groups of 32 divide; width: all of its widths."""
    heads, head_dim = r.choice([1, 2, 3]), r.choice([8, 10, 16, 24])
    if aligned:
        heads, head_dim = r.choice([(1, 32), (2, 16), (2, 32), (4, 8)])
    if width:
        heads, head_dim = width // 32, 32
    family = family or r.choice(["llama", "llama-bias", "qwen2", "qwen3"])
    dtype = dtype or r.choice(["F32", "BF16", "F16"])
    hidden, vocab = heads * head_dim, r.choice([64, 96]) if aligned else r.randrange(33, 96)
    ffn = r.choice([32, 64, 96]) if aligned else r.randrange(5, 130)
    ffn = width or ffn
    kv_heads = r.choice([k for k in range(1, heads + 1) if heads % k == 0])
    tied = r.random() < 0.3 if tied is None else tied
    model_type = family.split("-")[0]
    config = {
        "model_type": model_type, "architectures": [model_type.capitalize() + "ForCausalLM"], "hidden_size": hidden, "intermediate_size": ffn,
        "num_hidden_layers": 1 if width else r.choice([1, 1, 2]), "num_attention_heads": heads, "num_key_value_heads": kv_heads,
        "head_dim": head_dim, "vocab_size": vocab, "max_position_embeddings": 64, "rms_norm_eps": 1e-6, "hidden_act": "silu",
        "rope_theta": 10000.0, "tie_word_embeddings": tied, "bos_token_id": 1, "eos_token_id": 2,
        "torch_dtype": {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}[dtype],
    }
    if family.startswith("llama"):
        config["attention_bias"] = config["mlp_bias"] = family == "llama-bias"
    if family == "qwen2":
        del config["head_dim"]
    biases = {"llama-bias": ("self_attn", "mlp"), "qwen2": ("q_proj", "k_proj", "v_proj")}.get(family, ())
    shapes = {"self_attn.q_proj": (hidden, hidden), "self_attn.k_proj": (kv_heads * head_dim, hidden),
              "self_attn.v_proj": (kv_heads * head_dim, hidden), "self_attn.o_proj": (hidden, hidden),
              "mlp.gate_proj": (ffn, hidden), "mlp.up_proj": (ffn, hidden), "mlp.down_proj": (hidden, ffn)}
    tensors = {}

    def put(name, *shape, spread=0.3, middle=0.0):
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        tensors[name] = Tensor.of(dtype, shape, [r.gauss(middle, spread) for _ in range(count)])

    put("model.embed_tokens.weight", vocab, hidden, spread=1.0)
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        for part, shape in shapes.items():
            put(at + part + ".weight", *shape)
            if any(b in part for b in biases):
                put(at + part + ".bias", shape[0])
        for norm in ("input_layernorm", "post_attention_layernorm"):
            put(f"{at}{norm}.weight", hidden, spread=0.1, middle=1.0)
        if family == "qwen3":
            for norm in ("q_norm", "k_norm"):
                put(f"{at}self_attn.{norm}.weight", head_dim, spread=0.1, middle=1.0)
    put("model.norm.weight", hidden, spread=0.1, middle=1.0)
    if not tied:
        put("lm_head.weight", vocab, hidden)
    return Model(config, tensors, dtype)
