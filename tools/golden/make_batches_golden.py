#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Packs documents into sequences with PyPI's tokenizers, as src/train/data.c must.

    make_batches_golden.py OUT

OUT is tests/golden/train and gets documents.jsonl, a few difficult documents, and batches.txt. There "@ FILE AS LENGTH"
opens a data set, FILE read as JSON lines or as one text, and each line after it is a sequence of LENGTH + 1 ids:

    PASS STARTS IDS

PASS: the pass over the file, from 0, in which the sequence ends; STARTS: where documents begin, comma-separated, or -;
IDS, or = and their hash: FNV-1a of 64 bits over the ids' four bytes each, low byte first.
"""
import itertools
import json
import pathlib
import sys

import tokenizers

PIECE = 256 * 1024
FOLDER = "configs/tokenizer"
SPACE = (0x20, 0x09, 0x0d, 0x0a)

# File bytes: both kinds of line ends, blank lines, empty texts, unused members.
DOCUMENTS = b"\xef\xbb\xbf" + b"".join([
    b'{"text": "Once upon a time there was a king."}\n',
    b'\r\n',
    b'{"title": "escapes", "text": "a\\tb\\u0000c\\n\\n\\ud83d\\ude00 \\"q\\" \\u00e9", "n": [1, {"text": "no"}]}\r\n',
    b'{"text": ""}\n',
    b'   \t\n',
    b'{"text": "x", "after": null}\n',
    '{"text": "<|begin_of_text|>The end.<|end_of_text|>"}\n'.encode(),
    '{"text": "Füße, 中文 and 123456 тысяч — “so”"}\n'.encode(),
    b'{"text": " \\n \\n\\n"}\n',
    b'{"text": "' + b"The wolf went on and on. " * 9 + b'", "text": "the last member counts"}\n',
    b'{"text": "no line end after this"}',
])


def texts_of(path, how):
    content = pathlib.Path(path).read_bytes()
    if how == "text":
        return [content]
    if content.startswith(b"\xef\xbb\xbf"):
        content = content[3:]
    return [json.loads(line)["text"].encode() for line in content.split(b"\n") if line.strip(b" \t\r")]


def pieces(text):
    """Splits a long text into pieces that end after a line, or a word, in their second half."""
    while len(text) > PIECE:
        half = range(PIECE, PIECE // 2, -1)
        lines = [n for n in half if text[n - 1] == 0x0a and text[n] not in (*SPACE, 0)]
        words = [n for n in half if text[n] == 0x20 and text[n - 1] != 0x20]
        end = (lines or words or [n for n in half if text[n] & 0xc0 != 0x80])[0]
        yield text[:end]
        text = text[end:]
    yield text


def stream(tokenizer, begin, end, texts):
    """Yields (id, whether a document begins with it, pass) forever."""
    whole = []
    for text in texts:
        if not text:
            continue
        ids = [begin]
        for piece in pieces(text):
            ids += tokenizer.encode(piece.decode(), add_special_tokens=False).ids
        whole += [(i, n == 0) for n, i in enumerate([*ids, end])]
    for number in itertools.count():
        for i, first in whole:
            yield i, first, number


def hash_of(ids):
    h = 0xcbf29ce484222325
    for byte in b"".join(i.to_bytes(4, "little") for i in ids):
        h = (h ^ byte) * 0x100000001b3 & 0xffffffffffffffff
    return h


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    out = pathlib.Path(sys.argv[1])
    (out / "documents.jsonl").write_bytes(DOCUMENTS)
    whole = json.loads(pathlib.Path(FOLDER, "tokenizer.json").read_text(encoding="utf-8"))
    begin, end = (token["id"] for token in whole["added_tokens"])
    whole["added_tokens"] = []  # in a text they are plain characters; only packing inserts their ids
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(whole))
    lines = [f"# tools/golden/make_batches_golden.py {out}, tokenizers {tokenizers.__version__}, no seed"]
    small, corpus, held_out = str(out / "documents.jsonl"), "tests/data/corpus.jsonl", "tests/data/heldout.jsonl"
    for path, how, length, count in ((small, "lines", 15, 60), (small, "lines", 1, 300), (small, "text", 500, 4),
                                     (corpus, "lines", 2048, 150), (corpus, "text", 4096, 90), (held_out, "lines", 256, 70)):
        lines.append(f"@ {path} {how} {length}")
        ids = stream(tokenizer, begin, end, texts_of(path, how))
        for _ in range(count):
            row = list(itertools.islice(ids, length + 1))
            starts = ",".join(str(n) for n, (_, first, _) in enumerate(row) if first) or "-"
            text = " ".join(str(i) for i, _, _ in row) if length == 15 else f"={hash_of([i for i, _, _ in row]):016x}"
            lines.append(f"{row[-1][2]} {starts} {text}")
    (out / "batches.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
