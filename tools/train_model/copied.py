#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Looks for training text that a model repeats word for word.

    python tools/train_model/copied.py models/nibble-tales-moe --data tales/training.jsonl --nibble build/release/nibble

Continues the beginnings of training documents, greedily and sampled, and finds the longest run of written tokens that
occurs in one document. Exit status 1: a run has --most tokens or more. The prompt itself does not count.
"""
import argparse
import json
import subprocess
import sys

from tokenizers import Tokenizer


def grams(ids, length):
    """Every run of `length` tokens in ids."""
    return (tuple(ids[i:i + length]) for i in range(len(ids) - length + 1))


def longest(ids, documents, found, most):
    """The length of the longest run in ids that a document has; `found` keeps the runs of a length that documents have."""
    length = 0
    while length < most:
        runs = found.setdefault(length + 1, None)
        if runs is None:
            runs = found[length + 1] = {run for d in documents for run in grams(d, length + 1)}
        if not any(run in runs for run in grams(ids, length + 1)):
            break
        length += 1
    return length


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("model", help="model folder")
    ap.add_argument("--data", required=True, help="training.jsonl of prepare.py")
    ap.add_argument("--nibble", default="build/release/nibble", help="the program")
    ap.add_argument("--samples", type=int, default=60, help="documents to continue, each greedily and sampled")
    ap.add_argument("--prompt", type=int, default=24, help="tokens of each that the model is given")
    ap.add_argument("--tokens", type=int, default=256, help="tokens to write")
    ap.add_argument("--most", type=int, default=32, help="a copied run of this length is too long")
    args = ap.parse_args()

    tokenizer = Tokenizer.from_file(f"{args.model}/tokenizer.json")
    with open(args.data, encoding="utf-8") as f:
        texts = [json.loads(line)["text"] for line in f]
    documents = [e.ids for e in tokenizer.encode_batch(texts, add_special_tokens=False)]
    found, worst = {}, (0, "")
    for document in documents[::max(1, len(documents) // args.samples)][:args.samples]:
        prompt = tokenizer.decode(document[:args.prompt])
        for how in (["--temp", "0"], ["--temp", "0.8", "--top-p", "0.95", "--seed", "1"]):
            text = subprocess.run([args.nibble, "generate", args.model, "-p", prompt, "-n", str(args.tokens), "--quiet", *how],
                                  check=True, capture_output=True, text=True).stdout
            ids = tokenizer.encode(text, add_special_tokens=False).ids
            length = longest(ids, documents, found, args.most)
            if length > worst[0]:
                worst = (length, prompt)
    print(f"longest run copied: {worst[0]} tokens of {2 * args.samples} texts, after {worst[1]!r}")
    sys.exit(worst[0] >= args.most)


if __name__ == "__main__":
    main()
