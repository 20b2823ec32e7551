#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Builds tokenizer.json files that may not be redistributed, from data outside the project.

    make_tokenizers.py DATA OUT

DATA is the folder that NIBBLE_TEST_DATA names; OUT, outside the tree, gets llama-bpe/tokenizer.json (Llama 3's
vocabulary), qwen2/tokenizer.json and llama2/tokenizer.json (the file in DATA with three merges that contain spaces
written as pairs, so that Hugging Face's tokenizers accepts it). The first two also get a vocab.gguf of the same
vocabulary. test_tokenizer_golden, test_gguf_vocab and test_gguf_describe read OUT through NIBBLE_TOKENIZERS; tests/run
makes it if the data is there.
"""
import json
import pathlib
import struct
import sys

CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3_NAMED = {4: "finetune_right_pad_id", 6: "start_header_id", 7: "end_header_id", 8: "eom_id", 9: "eot_id",
                10: "python_tag"}


def added(token_id, content, special=True):
    return {"id": token_id, "content": content, "single_word": False, "lstrip": False, "rstrip": False,
            "normalized": False, "special": special}


def byte_level():
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}


def tokenizer(vocab, merges, pattern, added_tokens, normalizer, processor, ignore_merges):
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added_tokens,
        "normalizer": normalizer,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level()]},
        "post_processor": processor, "decoder": byte_level(),
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
                  "ignore_merges": ignore_merges, "vocab": vocab, "merges": merges},
    }


def read_merges(path):
    lines = path.read_text(encoding="utf-8").split("\n")
    return [line for line in lines if line and not line.startswith("#version")]


def llama3(data):
    vocab = json.loads((data / "llama3/encoder.json").read_text(encoding="utf-8"))
    vocab = {token: i for token, i in vocab.items() if i < 128000}
    reserved = iter(range(256))
    names = ["begin_of_text", "end_of_text"]
    names += [LLAMA3_NAMED.get(i) or f"reserved_special_token_{next(reserved)}" for i in range(2, 256)]
    specials = [added(128000 + i, f"<|{name}|>") for i, name in enumerate(names)]
    bos = {"SpecialToken": {"id": "<|begin_of_text|>", "type_id": 0}}
    template = {
        "type": "TemplateProcessing", "single": [bos, {"Sequence": {"id": "A", "type_id": 0}}], "pair": [],
        "special_tokens": {"<|begin_of_text|>": {"id": "<|begin_of_text|>", "ids": [128000],
                                                 "tokens": ["<|begin_of_text|>"]}},
    }
    template["pair"] = template["single"] + [{"Sequence": {"id": "B", "type_id": 1}}]
    pattern = CONTRACTIONS + r"\p{N}{1,3}" + REST
    merges = read_merges(data / "llama3/vocab.bpe")
    return tokenizer(vocab, merges, pattern, specials, None,
                     {"type": "Sequence", "processors": [byte_level(), template]}, True)


def qwen2(data):
    vocab = json.loads((data / "qwen2/vocab.json").read_text(encoding="utf-8"))
    config = json.loads((data / "qwen2/qwen2.5_tokenizer_config.json").read_text(encoding="utf-8"))
    specials = [added(int(i), t["content"], t["special"]) for i, t in config["added_tokens_decoder"].items()]
    pattern = CONTRACTIONS + r"\p{N}" + REST
    merges = read_merges(data / "qwen2/merges.txt")
    return tokenizer(vocab, merges, pattern, specials, {"type": "NFC"}, byte_level(), False)


def llama2(data):
    whole = json.loads((data / "llama2/hf/tokenizer.json").read_text(encoding="utf-8"))
    vocab = whole["model"]["vocab"]

    def pair(merge):
        cuts = [k for k, c in enumerate(merge) if c == " " and merge[:k] in vocab and merge[k + 1:] in vocab
                and merge[:k] + merge[k + 1:] in vocab]
        assert len(cuts) == 1, merge
        return [merge[:cuts[0]], merge[cuts[0] + 1:]]

    whole["model"]["merges"] = [pair(merge) for merge in whole["model"]["merges"]]
    return whole


def number(kind, form, value):
    """A GGUF value: its type and its bytes."""
    return kind, struct.pack(form, value)


def string(text):
    data = text.encode()
    return 8, struct.pack("<Q", len(data)) + data


def array(values):
    return 9, struct.pack("<IQ", values[0][0], len(values)) + b"".join(data for _, data in values)


def write_gguf(path, whole, architecture, pre):
    """As llama.cpp's converter writes it: every id has a token, and gaps have unused ones."""
    vocab = whole["model"]["vocab"]
    extra = {t["id"]: t for t in whole["added_tokens"]}
    by_id = {i: token for token, i in vocab.items()}
    count = max(list(by_id) + list(extra)) + 1
    types = [(3 if extra[i]["special"] else 4) if i in extra else 1 if i in by_id else 5 for i in range(count)]
    keys = [("general.architecture", string(architecture)), ("tokenizer.ggml.model", string("gpt2")),
            ("tokenizer.ggml.pre", string(pre)),
            ("tokenizer.ggml.tokens", array([string(extra[i]["content"] if i in extra else by_id.get(i, f"[PAD{i}]"))
                                             for i in range(count)])),
            ("tokenizer.ggml.token_type", array([number(5, "<i", t) for t in types])),
            ("tokenizer.ggml.merges", array([string(m if isinstance(m, str) else " ".join(m)) for m in whole["model"]["merges"]]))]
    bos = {"llama-bpe": 128000}.get(pre)
    if bos:
        keys.append(("tokenizer.ggml.bos_token_id", number(4, "<I", bos)))
    keys.append(("tokenizer.ggml.add_bos_token", number(7, "<?", bos is not None)))
    with open(path, "wb") as f:
        f.write(struct.pack("<4sIQQ", b"GGUF", 3, 0, len(keys)))
        for key, (kind, value) in keys:
            f.write(string(key)[1] + struct.pack("<I", kind) + value)
    print(path)


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    data, out = pathlib.Path(sys.argv[1]) / "tokenizers", pathlib.Path(sys.argv[2])
    for name, build in (("llama-bpe", llama3), ("qwen2", qwen2), ("llama2", llama2)):
        folder = out / name
        folder.mkdir(parents=True, exist_ok=True)
        whole = build(data)
        text = json.dumps(whole, ensure_ascii=False, indent=2)
        (folder / "tokenizer.json").write_text(text + "\n", encoding="utf-8")
        print(folder / "tokenizer.json")
        if name != "llama2":
            write_gguf(folder / "vocab.gguf", whole, "llama" if name == "llama-bpe" else name, name)


if __name__ == "__main__":
    main()
