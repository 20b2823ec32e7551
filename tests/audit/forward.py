# SPDX-License-Identifier: Apache-2.0
"""The forward pass of a Llama, Qwen2 or Qwen3 model in plain Python, with activations quantized as a scheme says.

What a run computes is compared with it. `act` is a function (module, tokens) -> tokens that quantizes the inputs of a
product; values are doubles, so results agree with a run in f32 but for rounding.
"""
import math

BODY = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj",
        "mlp.down_proj")


def linear_names(config):
    """The linear layers, without the output."""
    return [f"model.layers.{i}.{p}" for i in range(config["num_hidden_layers"]) for p in BODY]


def normed(x, weight, eps):
    scale = 1 / math.sqrt(sum(v * v for v in x) / len(x) + eps)
    return [v * scale * w for v, w in zip(x, weight)]


def rotated(head, position, theta):
    half = len(head) // 2
    out = head[:]
    for i in range(half):
        angle = position * theta ** (-2 * i / len(head))
        c, s = math.cos(angle), math.sin(angle)
        out[i], out[i + half] = head[i] * c - head[i + half] * s, head[i + half] * c + head[i] * s
    return out


def softmax(scores):
    most = max(scores)
    out = [math.exp(s - most) for s in scores]
    total = sum(out)
    return [v / total for v in out]


class Model:
    """weights: {module: rows}, vectors: {name: values} of norms and biases."""

    def __init__(self, config, weights, vectors, act=lambda module, tokens: tokens):
        self.config, self.weights, self.vectors, self.act = config, weights, vectors, act

    def product(self, module, inputs):
        bias = self.vectors.get(module + ".bias")
        out = []
        for x in inputs:
            y = [sum(map(float.__mul__, row, x)) for row in self.weights[module]]
            out.append([a + b for a, b in zip(y, bias)] if bias else y)
        return out

    def linear(self, module, tokens):
        return self.product(module, self.act(module, tokens))

    def attention(self, prefix, tokens):
        c = self.config
        heads, kv_heads = c["num_attention_heads"], c["num_key_value_heads"]
        size = c.get("head_dim") or c["hidden_size"] // heads
        q, k, v = (self.linear(f"{prefix}.{p}_proj", tokens) for p in "qkv")
        parts = lambda row: [row[i:i + size] for i in range(0, len(row), size)]
        ready = []
        for kind, rows in (("q", q), ("k", k)):
            norm = self.vectors.get(f"{prefix}.{kind}_norm.weight") if c["model_type"].startswith("qwen3") else None
            ready.append([[rotated(normed(h, norm, c["rms_norm_eps"]) if norm else h, t, c["rope_theta"])
                           for h in parts(row)] for t, row in enumerate(rows)])
        q, k, v = ready[0], ready[1], [parts(row) for row in v]
        out = []
        for t in range(len(tokens)):
            row = []
            for h in range(heads):
                g = h * kv_heads // heads
                p = softmax([sum(map(float.__mul__, q[t][h], k[u][g])) / math.sqrt(size) for u in range(t + 1)])
                row += [sum(p[u] * v[u][g][d] for u in range(t + 1)) for d in range(size)]
            out.append(row)
        return self.linear(f"{prefix}.o_proj", out)

    def mlp(self, at, tokens):
        gate, up = self.linear(at + ".gate_proj", tokens), self.linear(at + ".up_proj", tokens)
        return self.linear(at + ".down_proj", [[g / (1 + math.exp(-g)) * u for g, u in zip(a, b)] for a, b in zip(gate, up)])

    def experts(self, at, tokens):
        """Qwen3-MoE: softmax over all experts, the largest of them, divided by their sum if the config says so."""
        out = []
        for token, router in zip(tokens, self.product(at + ".gate", tokens)):
            weights = softmax(router)
            chosen = sorted(range(len(weights)), key=lambda e: (-weights[e], e))[:self.config["num_experts_per_tok"]]
            total = sum(weights[e] for e in chosen) if self.config["norm_topk_prob"] else 1
            rows = [self.mlp(f"{at}.experts.{e}", [token])[0] for e in chosen]
            out.append([sum(weights[e] / total * row[i] for e, row in zip(chosen, rows)) for i in range(len(token))])
        return out

    def logits(self, ids):
        c, eps = self.config, self.config["rms_norm_eps"]
        x = [list(map(float, self.weights["model.embed_tokens"][i])) for i in ids]
        add = lambda a, b: [[u + w for u, w in zip(r, s)] for r, s in zip(a, b)]
        for layer in range(c["num_hidden_layers"]):
            at = f"model.layers.{layer}"
            norm = self.vectors[at + ".input_layernorm.weight"]
            x = add(x, self.attention(at + ".self_attn", [normed(t, norm, eps) for t in x]))
            norm = self.vectors[at + ".post_attention_layernorm.weight"]
            inner = [normed(t, norm, eps) for t in x]
            x = add(x, self.experts(at + ".mlp", inner) if "num_experts" in c else self.mlp(at + ".mlp", inner))
        x = [normed(t, self.vectors["model.norm.weight"], eps) for t in x]
        return self.linear("lm_head", x) if "lm_head" in self.weights else self.product("model.embed_tokens", x)


def distance(a, b):
    """Root of the mean square of the difference, over all logits."""
    total = count = 0
    for r, s in zip(a, b):
        total += sum((u - v) ** 2 for u, v in zip(r, s))
        count += len(r)
    return math.sqrt(total / count)
