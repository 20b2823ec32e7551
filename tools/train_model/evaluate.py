#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Loads a model folder with transformers, prints its held-out loss in f32 and bf16, and generates some text.

    python tools/train_model/evaluate.py models/nibble-tales

The held-out file is tokenized as a whole and cut into consecutive windows of 512 tokens. In each window every token except
the first is scored. No state is carried over between windows.
"""
import argparse
import math
import os

import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM, AutoTokenizer


@torch.no_grad()
def loss(model, ids, length):
    total = count = 0
    for i in range(0, len(ids) - 1, length):
        w = ids[i:i + length][None]
        if w.shape[1] > 1:
            total += F.cross_entropy(model(w).logits[0, :-1].float(), w[0, 1:], reduction="sum").item()
            count += w.shape[1] - 1
    return total / count, count


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("model", help="model folder")
    ap.add_argument("--text", help="text to score (default: heldout.txt in the folder)")
    ap.add_argument("--length", type=int, default=512, help="tokens per window")
    ap.add_argument("--prompt", action="append", help="text to continue (may be given again)")
    ap.add_argument("--tokens", type=int, default=110, help="tokens to write")
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--threads", type=int, default=2)
    args = ap.parse_args()
    torch.set_num_threads(args.threads)

    tok = AutoTokenizer.from_pretrained(args.model)
    with open(args.text or os.path.join(args.model, "heldout.txt"), encoding="utf-8") as f:
        text = f.read()
    ids = torch.tensor(tok(text, add_special_tokens=False, verbose=False)["input_ids"])
    assert tok.decode(ids) == text, "the tokenizer does not give its text back"
    print(f"{len(ids)} tokens, {len(text.encode())} bytes")
    for dtype in (torch.bfloat16, torch.float32):
        model = AutoModelForCausalLM.from_pretrained(args.model, dtype=dtype).eval()
        nats, count = loss(model, ids, args.length)
        print(f"{str(dtype)[6:]}: {nats:.4f} nats/token over {count} scored tokens (perplexity {math.exp(nats):.2f}), "
              f"{nats * len(ids) / len(text.encode()):.4f} nats/byte")

    tensors = list(model.parameters())
    print(f"{sum(p.numel() for p in tensors)} parameters in {len(tensors)} tensors")
    for name, p in model.named_parameters():
        if name.endswith("bias"):
            rms = p.detach().square().mean().sqrt()
            print(f"{name}: root mean square {rms:.4f}, {int((p != 0).sum())} of {p.numel()} nonzero")
    for prompt in args.prompt or ["Once upon a time", "Prince Andrew", "KING RICHARD II:\n"]:
        ids = tok(prompt, return_tensors="pt")
        for how in (dict(do_sample=False, temperature=None, top_p=None), dict(do_sample=True)):
            torch.manual_seed(args.seed)
            out = model.generate(**ids, max_new_tokens=args.tokens, **how)
            print(f"--- {'sampled' if how['do_sample'] else 'greedy'}\n{tok.decode(out[0])}")


if __name__ == "__main__":
    main()
