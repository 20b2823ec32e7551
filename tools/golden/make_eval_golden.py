#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes transformers' float32 loss of the shipped model on the held-out text: tests/golden/eval_losses.txt.

Usage: python3 tools/golden/make_eval_golden.py > tests/golden/eval_losses.txt
Needs: torch, transformers 5. Runs on the CPU, in seconds.

A line is: MODEL FILE WINDOW PREDICTED LOSS. The first WINDOW ids of each document of FILE are read, and all but the first are
predicted; LOSS is the mean of -log p over all documents, summed in double, in nats per token.
"""
import json
import sys

import torch
import transformers

MODEL = "models/nibble-tales"
CASES = [("tests/data/heldout.jsonl", 64), ("tests/data/heldout.jsonl", 512)]


def windows_of(tokenizer, path, window):
    """The first ids of each document."""
    with open(path, encoding="utf-8") as lines:
        return [torch.tensor(tokenizer(json.loads(line)["text"])["input_ids"][:window]) for line in lines]


def loss_of(model, tokenizer, path, window):
    total, predicted = 0.0, 0
    for ids in windows_of(tokenizer, path, window):
        with torch.no_grad():
            logits = model(ids[None]).logits[0, :-1].double()
        total += float(torch.nn.functional.cross_entropy(logits, ids[1:], reduction="sum"))
        predicted += len(ids) - 1
    return predicted, total / predicted


def main():
    if len(sys.argv) != 1:
        sys.exit(__doc__)
    torch.set_num_threads(1)
    tokenizer = transformers.AutoTokenizer.from_pretrained(MODEL)
    model = transformers.AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32, attn_implementation="eager").eval()
    print(f"# transformers {transformers.__version__}, torch {torch.__version__.split('+')[0]}, float32, no seed: "
          "python3 tools/golden/make_eval_golden.py")
    for path, window in CASES:
        predicted, loss = loss_of(model, tokenizer, path, window)
        print(f"{MODEL} {path} {window} {predicted} {loss:.5f}")


if __name__ == "__main__":
    main()
