#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains small tokenizers on a public-domain text and writes how PyPI's `tokenizers` encodes difficult texts.

    make_tokenizer_golden.py TEXT OUT

TEXT is Grimm's fairy tales (grimms_fairy_tales.txt of Project Gutenberg), OUT is tests/golden. Writes
tokenizer_bytes.json (byte-level), tokenizer_words.json (SentencePiece-style, byte fallback, words), tokenizer_free.json
(the same without words: tokens cross spaces, so every cut of a pre-tokenizer shows in the ids), tokenizer_texts.txt and
tokenizer_components.txt.

A line of the two .txt files is: a letter for the flags (s: special tokens parsed and added; p: neither),
the text as JSON, the ids, the decoded text as JSON or = if it is the text. A line "@ MODEL JSON" gives the
tokenizer of the next lines and, for components, the parts that replace its own.
"""
import collections
import json
import pathlib
import sys

import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
          r"\s*[\r\n]+|\s+(?!\S)|\s+")
KIMI = (r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*"
        r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
        r"\s*[\r\n]+|\s+(?!\S)|\s+")

TEXTS = [
    "", " ", "  ", "\n", "\t\n ", "a", "The king's daughter", " The  king said:   'I'LL go!'  ", "Hello, world!",
    "\u0000", "a\u0000b", "don't DON'T they'Ve", "12345 3.14 ٣٤ Ⅷ½ 1234567890123", "x\r\ny\r\n\r\nz\n \n",
    "trailing   \n\n   ", "\u00a0no\u3000break\u2003", "é e\u0301 \u00c5 \u212b ﬁ ½ ①",
    "q\u0323\u0307 q\u0307\u0323 \u0301\u0301\u0323", "한국어 \u1112\u1161\u11ab", "日本語のテキスト", "ภาษาไทย", "עברית \u202eأهلا",
    "🦙 👩\u200d👩\u200d👧 🏳️\u200d🌈 \u200d", "\ufeffBOM", "<s>a</s>", "a <s> b", "  <s>  ", "<sep>x<sep>", "a <mask>  b", "<mask>",
    "word wordy words keyword word", "<unk> <0x41> <0xZZ>", "▁▁a▁b", "Ġa ĠĠ", "if (x == 1) {\n\treturn ++y;\n}\n",
    "https://example.org/a?b=c&d=%20#e_f", "ooooooooooooooooooooooooooooooooooooooooo", " " * 30 + "x", "____a__b",
    "Straße İstanbul ΑΣ", "𝔘𝔫𝔦 ﷺ ㎏", "a\u0898\u0301 \U00011938",
]
SHORT = [" The  king's:  'I'LL go!' ", "a-b--c!! __d ?", "ab12cd345 6½ aBC", "\n x \u3000", "é e\u0301 ﬁ ① \u212b İ q\u0323\u0307",
         "日本 a\u0300\u0323", "a <s>a THE  <sep> e\u0301 the", "▁▁a▁", "🦙"]


def special(content, **flags):
    return AddedToken(content, special=True, normalized=False, **flags)


def train_bytes(lines):
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(LLAMA3), "isolated"),
                                               pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    t.normalizer = normalizers.NFC()
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator(lines, trainers.BpeTrainer(
        vocab_size=900, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False))
    t.add_special_tokens([special("<s>"), special("</s>"), special("<mask>", lstrip=True)])
    t.add_tokens([AddedToken("<sep>", rstrip=True), AddedToken("word", single_word=True)])
    bos = ("<s>", t.token_to_id("<s>"))
    t.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s> $B", special_tokens=[bos])])
    return t


def train_pieces(lines, words):
    t = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    replace = normalizers.Replace(" ", "▁")
    if words:
        t.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=True)
    else:
        t.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), replace])
    tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{i:02X}>" for i in range(256)]
    # The trainer breaks ties between characters at random.
    counts = collections.Counter("▁" + "".join(lines).replace(" ", "▁"))
    alphabet = sorted(counts, key=lambda c: (-counts[c], c))[:70]
    t.train_from_iterator(["".join(c for c in line if c in alphabet or c == " ") for line in lines],
                          trainers.BpeTrainer(vocab_size=900, special_tokens=tokens, show_progress=False,
                                              initial_alphabet=alphabet, max_token_length=12))
    whole = json.loads(t.to_str())
    whole["added_tokens"] = [a for a in whole["added_tokens"] if a["id"] < 3]
    if words:  # a split before each space is then only an optimization of the encoder
        whole["pre_tokenizer"] = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}
    t = Tokenizer.from_str(json.dumps(whole))
    t.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
                                   decoders.Strip(" ", 1, 0)])
    t.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)])
    return t


def split(pattern, behavior="Isolated", invert=False):
    return {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert}


def sequence(key, *items):
    return {"type": "Sequence", key: list(items)}


def metaspace(scheme, cut):
    return {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": cut}


def components():
    """(model, parts) for components that not all decoder-only models use."""
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    whole = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": False}
    for pre in (level, dict(level, add_prefix_space=True), whole,
                sequence("pretokenizers", split({"Regex": KIMI}), dict(whole, add_prefix_space=False)),
                sequence("pretokenizers", {"type": "Digits", "individual_digits": True}, level),
                sequence("pretokenizers", split({"Regex": r"\p{N}{1,3}+"}), split({"Regex": r"(?<=[a-z])(?=[A-Z])"}), level)):
        yield "bytes", {"pre_tokenizer": pre}
    for behavior in ("Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"):
        for pattern in ({"String": "▁"}, {"Regex": "[aeio]|▁+"}):
            for invert in (False, True):
                yield "free", {"pre_tokenizer": split(pattern, behavior, invert)}
        yield "free", {"pre_tokenizer": {"type": "Punctuation", "behavior": behavior}, "normalizer": None}
    for one in (True, False):
        yield "free", {"pre_tokenizer": {"type": "Digits", "individual_digits": one}}
    for kind in ("Whitespace", "WhitespaceSplit"):
        yield "free", {"pre_tokenizer": {"type": kind}, "normalizer": None}
    for scheme in ("always", "first", "never"):
        for cut in (True, False):
            yield "free", {"pre_tokenizer": metaspace(scheme, cut), "normalizer": None,
                           "decoder": metaspace(scheme, cut)}
    for normal in ({"type": "NFC"}, {"type": "NFD"}, {"type": "NFKC"}, {"type": "NFKD"}, {"type": "Lowercase"},
                   sequence("normalizers", {"type": "NFD"}, {"type": "StripAccents"}), {"type": "ByteLevel"},
                   {"type": "Strip", "strip_left": True, "strip_right": False},
                   {"type": "Strip", "strip_left": False, "strip_right": True},
                   {"type": "Strip", "strip_left": True, "strip_right": True},
                   {"type": "Replace", "pattern": {"Regex": r"\s+"}, "content": "▁"},
                   {"type": "Replace", "pattern": {"Regex": "x*"}, "content": "-"},
                   {"type": "Replace", "pattern": {"String": "a"}, "content": ""}):
        yield "free", {"normalizer": normal}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": True, "special": False}
    base = [dict(flags, id=i, content=c, special=True) for i, c in enumerate(("<unk>", "<s>", "</s>"))]
    extra = [dict(flags, id=2000, content="a", single_word=True), dict(flags, id=2001, content="<sep>", lstrip=True, rstrip=True),
             dict(flags, id=2002, content="<s>a", normalized=False), dict(flags, id=2003, content="THE", normalized=True),
             dict(flags, id=2004, content="  ", normalized=False), dict(flags, id=2005, content="e\u0301", normalized=True)]
    yield "free", {"added_tokens": base + extra}
    yield "free", {"added_tokens": base + extra, "normalizer": sequence("normalizers", {"type": "NFC"}, {"type": "Lowercase"})}
    for post in ({"type": "RobertaProcessing", "sep": ["</s>", 2], "cls": ["<s>", 1], "trim_offsets": True,
                  "add_prefix_space": False}, {"type": "BertProcessing", "sep": ["</s>", 2], "cls": ["<s>", 1]}, None):
        yield "free", {"post_processor": post, "decoder": None}
    for decoder in ({"type": "Fuse"}, {"type": "Strip", "content": "▁", "start": 2, "stop": 0},
                    sequence("decoders", {"type": "Fuse"}, {"type": "Strip", "content": "▁", "start": 0, "stop": 1})):
        yield "free", {"decoder": decoder}


def lines_of(t, texts, letters):
    specials = {i for i, a in t.get_added_tokens_decoder().items() if a.special}
    for text in texts:
        for letter in letters:
            t.encode_special_tokens = letter == "p"
            ids = t.encode(text, add_special_tokens=letter == "s").ids
            # tokenizers 0.23 does not skip special tokens that are normalized, so remove them first.
            try:
                back = t.decode([i for i in ids if i not in specials], skip_special_tokens=False)
            except BaseException:  # Strip panics on a text shorter than its stop
                back = None
            shown = "?" if back is None else "=" if back == text else json.dumps(back)
            yield f"{letter}\t{json.dumps(text)}\t{' '.join(map(str, ids))}\t{shown}"


def header(command):
    return f"# tokenizers {tokenizers.__version__}, no seed: python3 tools/golden/make_tokenizer_golden.py {command}"


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    text, out = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    lines = [line for line in text.read_text(encoding="utf-8").split("\n") if line]
    made = {"bytes": train_bytes(lines), "words": train_pieces(lines, True), "free": train_pieces(lines, False)}
    first = header(f"{text.name} tests/golden")
    texts = [first]
    for name, t in made.items():
        whole = json.loads(t.to_str())
        if name == "bytes":
            whole["model"]["ignore_merges"] = True
        elif name == "words":  # cover both forms of merges
            whole["model"]["merges"] = [" ".join(m) for m in whole["model"]["merges"]]
        assert list(whole)[-1] == "model"
        body = json.dumps(whole, ensure_ascii=False, separators=(",", ":"))
        (out / f"tokenizer_{name}.json").write_text(body + "\n", encoding="utf-8")
        texts += [f"@ {name} {{}}"] + list(lines_of(Tokenizer.from_str(body), TEXTS, "sp"))
    (out / "tokenizer_texts.txt").write_text("\n".join(texts) + "\n", encoding="ascii")
    parts_lines = [first]
    for name, parts in components():
        whole = json.loads((out / f"tokenizer_{name}.json").read_text(encoding="utf-8"))
        whole.update(parts)
        if isinstance(parts.get("added_tokens"), list):  # ids come from the order, not from the file
            vocab = whole["model"]["vocab"]
            fresh = iter(range(len(vocab), len(vocab) + 100))
            for token in whole["added_tokens"]:
                token["id"] = vocab[token["content"]] if token["content"] in vocab else next(fresh)
        t = Tokenizer.from_str(json.dumps(whole))
        parts_lines += [f"@ {name} {json.dumps({k: whole[k] for k in parts})}"]
        parts_lines += lines_of(t, SHORT, "sp" if "added_tokens" in parts else "s")
    (out / "tokenizer_components.txt").write_text("\n".join(parts_lines) + "\n", encoding="ascii")


if __name__ == "__main__":
    main()
