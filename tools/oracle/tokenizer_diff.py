#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares token ids and decoded text with PyPI's `tokenizers` on real and difficult texts.

    tokenizer_diff.py DRIVER DATA TOKENIZER.json...

DRIVER is the program that `make build/release/oracle/tokenize_lines` builds, DATA the folder that
NIBBLE_TEST_DATA names.
Each text is encoded as a whole and by lines, with and without parsing special tokens, and decoded.
Prints a line per tokenizer and the first differences; exits 1 if there are any.
"""
import json
import pathlib
import random
import subprocess
import sys

import tokenizers

ADD, PARSE, DROP = 1, 2, 4
SHOWN = 5


def valid(data):
    """The valid UTF-8 lines of a file."""
    out = []
    for line in data.split(b"\n"):
        try:
            out.append(line.decode("utf-8"))
        except UnicodeDecodeError:
            pass
    return out


def blocks():
    """Characters of every assigned Unicode block, 64 to a line."""
    points = [p for p in range(1, 0x110000) if not 0xD800 <= p <= 0xDFFF]
    points = points[:0x3000] + points[0x3000:0x20000:7] + points[0x20000::997]
    return ["".join(map(chr, points[i:i + 64])) for i in range(0, len(points), 64)]


def mixed(seed, count):
    rng = random.Random(seed)
    atoms = [" ", "  ", "\n", "\r\n", "\t", "\u00a0", "\u3000", "a", "Hello", "world's", "don't", "I'LL", "x" * 40,
             "0", "12", "1234567", "٣", "Ⅷ", "½", "!", "...", "—", "$%^", "é", "e\u0301", "\u0323\u0301", "ﬁ", "Å",
             "한국", "\u1112\u1161\u11ab", "日本", "ไทย", "עברית", "\u202e", "🦙", "👩‍👩‍👧", "🏳️‍🌈", "\u200d", "\ufeff",
             "<s>", "</s>", "<unk>", "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|eot_id|>",
             "<|begin_of_text|>", "[INST]", "[/INST]", "▁", "▁▁", "Ġ", "<0x41>", "\u0000", "\u0001", "\u007f", "_"]
    return ["".join(rng.choices(atoms, k=rng.randint(1, 40))) for _ in range(count)]


def texts(data):
    # The llama.cpp cases, and the valid UTF-8 lines of stress texts.
    inp = (data / "tokenizers/llama.cpp-vocab/ggml-vocab-gpt-2.gguf.inp").read_text(encoding="utf-8")
    yield "cases", inp.split("\n__ggml_vocab_test__\n")
    for path in sorted((data / "robustness/text").iterdir()):
        lines = valid(path.read_bytes())
        yield path.name, lines + ["\n".join(lines)]
    for path in sorted((data / "text/wikitext-2-raw").iterdir()):
        lines = valid(path.read_bytes())
        yield path.name, lines + ["\n".join(lines)]
    stories = json.loads((data / "text/tinystories_1000.json").read_text(encoding="utf-8"))
    yield "tinystories", [s if isinstance(s, str) else json.dumps(s, ensure_ascii=False) for s in stories]
    for name in ("grimms_fairy_tales.txt", "tinyshakespeare.txt"):
        text = (data / "text" / name).read_text(encoding="utf-8")
        yield name, [text[i:i + 20000] for i in range(0, len(text), 20000)]
    yield "blocks", blocks()
    yield "mixed", mixed(1, 4000)
    yield "runs", [c * n for c in ("a", " ", "\n", "é", "🦙", "1", "!", "▁", "\u0301") for n in (2, 255, 1000, 9000)]


def ours(driver, tokenizer, config, items, flags):
    payload = b"".join(b"%d\n%s" % (len(b), b) for b in (t.encode("utf-8") for t in items))
    out = subprocess.run([driver, str(tokenizer), config, str(flags)], input=payload, stdout=subprocess.PIPE,
                         check=True).stdout
    at, results = 0, []
    for _ in items:
        end = out.index(b"\n", at)
        ids = out[at:end]
        at = end + 1
        end = out.index(b"\n", at)
        size = int(out[at:end])
        text = out[end + 1:end + 1 + size]
        at = end + 1 + size
        results.append((ids.decode("utf-8"), text.decode("utf-8")))
    return results


def compare(driver, path, data):
    theirs = tokenizers.Tokenizer.from_file(str(path))
    theirs.no_truncation()
    theirs.no_padding()
    special = {i for i, t in theirs.get_added_tokens_decoder().items() if t.special}
    total = different = decoded = 0
    for name, items in texts(data):
        for flags in (ADD | PARSE | DROP, DROP):
            theirs.encode_special_tokens = not flags & PARSE
            got = ours(driver, path, "-", items, flags)
            for text, (ids, back) in zip(items, got):
                expected = theirs.encode(text, add_special_tokens=bool(flags & ADD)).ids
                total += 1
                if ids != " ".join(map(str, expected)):
                    different += 1
                    if different <= SHOWN:
                        print(f"  ids {name} {flags}: {text[:60]!r}\n    ours {ids[:200]}\n    theirs {expected[:40]}")
                    continue
                # tokenizers 0.23 does not skip special tokens that are normalized, so remove them first.
                there = theirs.decode([i for i in expected if i not in special], skip_special_tokens=False)
                if back != there:
                    decoded += 1
                    if decoded <= SHOWN:
                        k = next((k for k, (a, b) in enumerate(zip(back, there)) if a != b), min(len(back), len(there)))
                        print(f"  text {name} {flags} at {k}: {back[k - 10:k + 30]!r} / {there[k - 10:k + 30]!r}")
    print(f"{path}: {total} texts, {different} with other ids, {decoded} with other decoded text")
    return different + decoded


def main():
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    data = pathlib.Path(sys.argv[2])
    print(f"tokenizers {tokenizers.__version__}")
    failed = sum(compare(sys.argv[1], pathlib.Path(path), data) for path in sys.argv[3:])
    sys.exit(failed != 0)


if __name__ == "__main__":
    main()
