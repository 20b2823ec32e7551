#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Train the model that is shipped in models/nibble-tales, from public-domain text to safetensors.

    python tools/train_model/train.py --data DIR --out models/nibble-tales

DIR holds war_and_peace.txt, grimms_fairy_tales.txt and tinyshakespeare.txt. The script cleans the texts,
splits off the last 4 % of each as held-out text (written as heldout.txt, never trained upon), trains a
byte-level BPE tokenizer and then a small Qwen2 on the CPU, and writes a Hugging Face folder. One seed fixes
the data order, the initial weights and the dropout; another thread count or library version may still
round differently. What it needs is in requirements.txt beside it.

With glibc, MALLOC_TOP_PAD_=268435456 MALLOC_TRIM_THRESHOLD_=8589934592 MALLOC_MMAP_THRESHOLD_=4294967296 in
the environment make it a third faster: the buffers that one step frees are then kept for the next.
"""
import argparse
import json
import math
import os
import re
import time
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F
from safetensors.torch import save_file
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

EOT = "<|endoftext|>"
HELD_OUT = 0.04

# How Qwen2 cuts text before the merges. The transformers library uses this for every model of type qwen2,
# whatever tokenizer.json says, so only a tokenizer trained with it means the same everywhere.
SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
         r"|\s+(?!\S)|\s+")

CONFIG = {
    "architectures": ["Qwen2ForCausalLM"],
    "attention_dropout": 0.0,
    "bos_token_id": 2255,
    "eos_token_id": 2255,
    "hidden_act": "silu",
    "hidden_size": 224,
    "initializer_range": 0.02,
    "intermediate_size": 608,
    "max_position_embeddings": 512,
    "max_window_layers": 5,
    "model_type": "qwen2",
    "num_attention_heads": 14,
    "num_hidden_layers": 5,
    "num_key_value_heads": 2,
    "pad_token_id": 2255,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 10000.0,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": 2256,
}


# ---------------------------------------------------------------- text

def strip_gutenberg(text):
    """Cut the Project Gutenberg header and footer off, where a copy has them."""
    text = text.replace("\r\n", "\n").lstrip("\ufeff")
    start = re.search(r"^\*\*\* ?START OF.*$", text, re.M)
    end = re.search(r"^\*\*\* ?END OF.*$", text, re.M)
    return text[start.end() if start else 0: end.start() if end else len(text)]


def plain_quotes(text):
    """British curly quotes to the plain American ones that the other texts have; apostrophes stay."""
    text = text.replace("\u201c", "'").replace("\u201d", "'").replace("\u2018", '"')
    text = re.sub(r"(?<=[,.!?;:)\-'])\u2019", '"', text)  # after punctuation it closes a speech
    return text.replace("\u2019", "'")


def paragraphs(text):
    """Join the hard-wrapped lines of each paragraph; indented ones (verse) keep their lines."""
    out = []
    for block in re.split(r"\n\s*\n", text.strip("\n")):
        lines = block.split("\n")
        if re.match(r"\s*(\*|\[\*\])", block):  # a footnote
            continue
        verse = any(line[:1] == " " for line in lines)
        out.append(("\n" if verse else " ").join(line.strip() for line in lines if line.strip()))
    text = "\n\n".join(p for p in out if p)
    text = re.sub(r" ?\*(\(\d+\))?|\[\*\]", "", text).replace("_", "")  # footnote marks, italics
    return re.sub(r" {2,}", " ", re.sub(r"-{2,}", "\u2014", text))


def war_and_peace(text):
    text = re.sub(r"^(BOOK [A-Z]+: .*|FIRST EPILOGUE.*|SECOND EPILOGUE.*)$", "", strip_gutenberg(text), flags=re.M)
    return [paragraphs(part) for part in re.split(r"^(?=CHAPTER [IVXL]+$)", text, flags=re.M) if part.strip()]


def grimm(text):
    """A tale begins at a line of capitals that stands after three or more empty lines (or opens the file)."""
    title = r"\n{3,}(?!FIRST STORY|SECOND STORY)(?=[A-Z][A-Z' ,\-]+(?: \[.*\])?\n)"
    parts = re.split(title, strip_gutenberg(plain_quotes(text)))
    return [paragraphs(part) for part in parts if part.strip()]


def shakespeare(text):
    """Verse with speakers' names: the layout is the text, so it stays; one document."""
    return [re.sub(r"-{2,}", "\u2014", strip_gutenberg(text)).strip()]


def load_texts(data):
    """-> {name: (training documents, held-out text)}; the last 4 % of each text is held out."""
    sources = {"war_and_peace": war_and_peace, "grimms_fairy_tales": grimm, "tinyshakespeare": shakespeare}
    texts = {}
    for name, split in sources.items():
        docs = split(Path(data, name + ".txt").read_text(encoding="utf-8"))
        left = HELD_OUT * sum(map(len, docs))
        held = []
        while left > 0:  # whole documents from the end, then the tail of one, cut between paragraphs
            doc = docs.pop()
            cut = doc.rfind("\n\n", 0, len(doc) - int(left)) if len(doc) > left else -1
            if cut > 0:
                docs.append(doc[:cut])
                doc = doc[cut:].strip()
            held.insert(0, doc)
            left -= len(doc)
        texts[name] = (docs, "\n\n".join(held) + "\n")
    return texts


def train_tokenizer(texts, out):
    tok = Tokenizer(models.BPE())
    tok.normalizer = normalizers.NFC()
    tok.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(SPLIT), behavior="isolated", invert=False),
        pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)])
    tok.decoder = decoders.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    tok.post_processor = processors.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    trainer = trainers.BpeTrainer(vocab_size=CONFIG["vocab_size"] - 1, show_progress=False,
                                  initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()))
    tok.train_from_iterator((doc for docs, _ in texts.values() for doc in docs), trainer)
    tok.add_special_tokens([EOT])
    assert tok.get_vocab_size() == CONFIG["vocab_size"] and tok.token_to_id(EOT) == CONFIG["eos_token_id"]
    tok.save(os.path.join(out, "tokenizer.json"))
    return tok


# ---------------------------------------------------------------- model (parameter names as in transformers)

def rotate(x, cos, sin):
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


class Norm(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(n))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + CONFIG["rms_norm_eps"]) * self.weight


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        n, self.heads, self.kv = c["hidden_size"], c["num_attention_heads"], c["num_key_value_heads"]
        self.dim = n // self.heads
        self.q_proj = nn.Linear(n, n)
        self.k_proj = nn.Linear(n, self.kv * self.dim)
        self.v_proj = nn.Linear(n, self.kv * self.dim)
        self.o_proj = nn.Linear(n, n, bias=False)

    def forward(self, x, cos, sin):
        b, t, n = x.shape
        q = self.q_proj(x).view(b, t, self.heads, self.dim).transpose(1, 2)
        k = self.k_proj(x).view(b, t, self.kv, self.dim).transpose(1, 2)
        v = self.v_proj(x).view(b, t, self.kv, self.dim).transpose(1, 2)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        k, v = (y.repeat_interleave(self.heads // self.kv, 1) for y in (k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(y.transpose(1, 2).reshape(b, t, n))


class MLP(nn.Module):
    def __init__(self, c):
        super().__init__()
        n, m = c["hidden_size"], c["intermediate_size"]
        self.gate_proj = nn.Linear(n, m, bias=False)
        self.up_proj = nn.Linear(n, m, bias=False)
        self.down_proj = nn.Linear(m, n, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, c, dropout):
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = Norm(c["hidden_size"]), Norm(c["hidden_size"])
        self.self_attn, self.mlp, self.dropout = Attention(c), MLP(c), dropout

    def forward(self, x, cos, sin):
        x = x + F.dropout(self.self_attn(self.input_layernorm(x), cos, sin), self.dropout, self.training)
        return x + F.dropout(self.mlp(self.post_attention_layernorm(x)), self.dropout, self.training)


class Body(nn.Module):
    def __init__(self, c, dropout):
        super().__init__()
        self.embed_tokens = nn.Embedding(c["vocab_size"], c["hidden_size"])
        self.layers = nn.ModuleList(Layer(c, dropout) for _ in range(c["num_hidden_layers"]))
        self.norm = Norm(c["hidden_size"])


class Qwen2(nn.Module):
    def __init__(self, c, dropout=0.0):
        super().__init__()
        self.model = Body(c, dropout)
        self.lm_head = nn.Linear(c["hidden_size"], c["vocab_size"], bias=False)
        half = c["hidden_size"] // c["num_attention_heads"] // 2
        angle = torch.arange(c["max_position_embeddings"])[:, None] * c["rope_theta"] ** (-torch.arange(half) / half)
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)
        for name, p in self.named_parameters():
            if name.endswith("bias") or name.endswith(("o_proj.weight", "down_proj.weight")):
                nn.init.zeros_(p)
            elif p.dim() == 2:
                table = "embed_tokens" in name or "lm_head" in name
                nn.init.normal_(p, std=c["initializer_range"] if table else p.shape[1] ** -0.5)

    def forward(self, ids):
        t = ids.shape[1]
        x = self.model.embed_tokens(ids)
        for layer in self.model.layers:
            x = layer(x, self.cos[:t], self.sin[:t])
        return self.lm_head(self.model.norm(x))


# ---------------------------------------------------------------- training

class Muon(torch.optim.Optimizer):
    """Momentum whose step is made orthogonal (Newton-Schulz): for the weight matrices of the layers."""

    def __init__(self, params, **options):
        super().__init__(params, options)

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                buf = self.state[p].setdefault("momentum", torch.zeros_like(p))
                buf.lerp_(p.grad, 1 - group["momentum"])
                g = p.grad.lerp(buf, group["momentum"])
                x = (g.T if g.shape[0] > g.shape[1] else g) / (g.norm() + 1e-7)
                for _ in range(5):
                    a = x @ x.T
                    x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
                x = x.T if g.shape[0] > g.shape[1] else x
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(x, alpha=-group["lr"] * max(1, g.shape[0] / g.shape[1]) ** 0.5)


def batches(ids, batch, length, generator):
    """Endless: each epoch cuts the token stream into windows at a fresh offset and shuffles them."""
    while True:
        start = int(torch.randint(length, (1,), generator=generator))
        count = (len(ids) - start - 1) // length
        order = torch.randperm(count, generator=generator)
        for i in range(0, count - batch + 1, batch):
            at = start + order[i:i + batch] * length
            window = torch.stack([ids[a:a + length + 1] for a in at.tolist()])
            yield window[:, :-1], window[:, 1:]


@torch.no_grad()
def held_out_loss(model, ids, length):
    """Mean nats per token over consecutive windows of `length` tokens (the first of each is not scored)."""
    model.eval()
    total = count = 0
    for i in range(0, len(ids) - 1, length):
        w = ids[i:i + length][None]
        if w.shape[1] > 1:
            total += F.cross_entropy(model(w[:, :-1])[0].float(), w[0, 1:], reduction="sum").item()
            count += w.shape[1] - 1
    model.train()
    return total / count


def save(model, out):
    weights = {k: v.detach().to(torch.bfloat16).contiguous() for k, v in model.state_dict().items()}
    save_file(weights, os.path.join(out, "model.safetensors"), metadata={"format": "pt"})
    os.chmod(os.path.join(out, "model.safetensors"), 0o644)


def write_json(out, name, value):
    Path(out, name).write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--data", required=True, help="folder with the three texts")
    ap.add_argument("--out", required=True, help="folder to write the model to")
    ap.add_argument("--steps", type=int, default=1600)
    ap.add_argument("--batch", type=int, default=8, help="windows per step")
    ap.add_argument("--length", type=int, default=CONFIG["max_position_embeddings"], help="tokens per window")
    ap.add_argument("--lr-muon", type=float, default=0.02, help="for the weight matrices of the layers")
    ap.add_argument("--lr-adam", type=float, default=0.006, help="for the embedding, output, norms and biases")
    ap.add_argument("--decay", type=float, default=0.1, help="weight decay")
    ap.add_argument("--dropout", type=float, default=0.1)
    ap.add_argument("--stop", type=int, help="stop after this step, to go on from --state with another --steps")
    ap.add_argument("--cooldown", type=int, default=800, help="last steps, over which the rate falls to 0")
    ap.add_argument("--every", type=int, default=100, help="steps between two held-out losses")
    ap.add_argument("--threads", type=int, default=2)
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--state", help="file to keep the whole state in, and to go on from where it exists")
    args = ap.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    os.makedirs(args.out, exist_ok=True)

    texts = load_texts(args.data)
    tok = train_tokenizer(texts, args.out)
    eot = CONFIG["eos_token_id"]
    stream = []
    for name, (docs, held) in texts.items():
        n = len(stream)
        stream += [i for doc in docs for i in [eot] + tok.encode(doc).ids]
        print(f"{name}: {len(docs)} documents, {len(stream) - n} training tokens, {len(held.encode())} bytes held out")
    stream = torch.tensor(stream + [eot])
    heldout = "\n".join(held for _, held in texts.values())
    Path(args.out, "heldout.txt").write_text(heldout, encoding="utf-8")
    held_ids = torch.tensor(tok.encode(heldout).ids)
    print(f"{len(stream)} training tokens, {len(held_ids)} held-out tokens, {len(heldout.encode())} held-out bytes")

    write_json(args.out, "config.json", CONFIG)
    write_json(args.out, "generation_config.json", {
        "bos_token_id": eot, "eos_token_id": eot, "pad_token_id": eot,
        "do_sample": True, "temperature": 0.8, "top_p": 0.95})
    special = {"content": EOT, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False,
               "special": True}
    write_json(args.out, "tokenizer_config.json", {
        "add_prefix_space": False, "added_tokens_decoder": {str(eot): special},
        "bos_token": EOT, "clean_up_tokenization_spaces": False, "eos_token": EOT,
        "model_max_length": CONFIG["max_position_embeddings"], "pad_token": EOT,
        "tokenizer_class": "Qwen2Tokenizer", "unk_token": None})

    model = Qwen2(CONFIG, args.dropout)
    print(f"{sum(p.numel() for p in model.parameters())} parameters")
    matrices = [p for name, p in model.named_parameters() if p.dim() == 2 and "layers" in name]
    tables = [model.model.embed_tokens.weight, model.lm_head.weight]
    vectors = [p for p in model.parameters() if p.dim() == 1]
    muon = Muon(matrices, lr=args.lr_muon, momentum=0.95, weight_decay=args.decay)
    adam = torch.optim.AdamW([{"params": tables, "weight_decay": args.decay}, {"params": vectors, "weight_decay": 0.0}],
                             lr=args.lr_adam, betas=(0.9, 0.95))
    data = batches(stream, args.batch, args.length, torch.Generator().manual_seed(args.seed))
    first, best = 0, math.inf
    if args.state and os.path.exists(args.state):
        kept = torch.load(args.state)
        first, best = kept["step"], kept["best"]
        for thing, value in zip((model, muon, adam), kept["parts"]):
            thing.load_state_dict(value)
        for _ in range(first):
            next(data)
        torch.set_rng_state(kept["rng"])
    begun = time.time()
    for step in range(first, min(args.steps, args.stop or args.steps)):
        rate = min(1, (step + 1) / 50, (args.steps - step) / args.cooldown)
        for opt, lr in ((muon, args.lr_muon), (adam, args.lr_adam)):
            for group in opt.param_groups:
                group["lr"] = lr * rate
        x, y = next(data)
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for opt in (muon, adam):
            opt.step()
            opt.zero_grad()
        if (step + 1) % 20 == 0:
            pace = (time.time() - begun) / (step + 1 - first)
            print(f"step {step + 1} loss {loss.item():.3f} {pace:.2f} s/step", flush=True)
        if (step + 1) % args.every == 0 or step + 1 == args.steps:
            held = held_out_loss(model, held_ids, args.length)
            print(f"step {step + 1} held-out {held:.4f} nats/token", flush=True)
            if held < best:  # the file is always the best so far
                best = held
                save(model, args.out)
            if args.state:
                torch.save({"step": step + 1, "best": best, "rng": torch.get_rng_state(),
                            "parts": [part.state_dict() for part in (model, muon, adam)]}, args.state + ".new")
                os.replace(args.state + ".new", args.state)


if __name__ == "__main__":
    main()
