#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes small GGUF vocabularies and the ids that llama.cpp gives for difficult texts with them.

    make_gguf_tokenizers.py OUT

OUT is tests/golden, after a run of make_tokenizer_golden.py. Writes vocab_bytes.gguf (model gpt2; its merges cross
spaces, digits and line ends, so that every cut of a pre-tokenizer shows in the ids), vocab_pieces.gguf (model llama;
scores with ties), both by PyPI's `gguf`, and tokenizer_gguf.txt with llama.cpp's ids. llama.cpp comes from PyPI's
`llama-cpp-python`; if that is an uninstalled folder, LLAMA_CPP_PYTHON names it, and LLAMA_CPP_LIB_PATH the folder of
its libraries.

A line of the .txt file is: the text as JSON, a tab, the ids, or = if they equal those of the first section. A line
"@ FILE PRE..." gives the file and the values of tokenizer.ggml.pre for the next lines. Texts for which llama.cpp deviates
from the models' tokenizer.json files are left out: it does not normalize (rows of Qwen2, GPT-NeoX and Command R), and
its regular expressions know letter case only in ASCII (tekken, gpt-4o and similar).
"""
import ctypes
import json
import os
import pathlib
import re
import sys
import types
import unicodedata
from importlib import metadata

import gguf
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from make_tokenizer_golden import TEXTS

MORE = [
    "1234567 12,345.678 1a22b333c4444", "x  =  1;\n\n\n   y\t\t= 2;  \r\n z", "I'm he's THEY'RE we'Ll can't'd've",
    "snake_case CamelCase HTTPServer iPhone aB Ab AB", "a.b,c!d?e;f:g (h) [i] {j} <k> $l ^m ~n |o `p` +q =r",
    "中文字符，测试。日本語カタカナ ひらがな 한국어 mixed中12", "Füße Ωμέγα Привет мир ЖАБА straße", "e\u0301a\u0308 हिन्दी বাংলা ไทยคำ",
    "a" + " " * 7 + "b" + " " * 70 + "c\n" + " " * 3, "/path/to/file.txt//x\n//y", "¿Qué? «oui» “yes”—no… 5€ £3 ½ ² Ⅷ",
    " 's 't 're", "!hello #tag @user $var %x", "\n \n\n  \n\t\n x", "१२३४५ ٣٤٥", "a\u00a0b\u3000c\u2003d", "।a،b۔c、d。e，f",
]
CASED = {"tekken", "gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"}
NORMALIZED = {"qwen2", "deepseek-r1-qwen", "qwen35", "mpt", "olmo", "command-r"}
CONTROL, USER_DEFINED, NORMAL, UNKNOWN, BYTE, UNUSED = 3, 4, 1, 2, 6, 5


def llama_cpp():
    folder = os.environ.get("LLAMA_CPP_PYTHON")
    if folder:  # import only its bindings, as the package needs more
        package = types.ModuleType("llama_cpp")
        package.__path__ = [os.path.join(folder, "llama_cpp")]
        sys.modules["llama_cpp"] = package
        version = re.search(r'__version__ = "(.+)"', pathlib.Path(folder, "llama_cpp/__init__.py").read_text())[1]
    else:
        import llama_cpp as whole
        version = whole.__version__
    import llama_cpp.llama_cpp as bindings
    quiet = bindings.llama_log_callback(lambda level, text, data: None)
    bindings.llama_log_set(quiet, None)
    bindings.llama_backend_init()
    return bindings, version, quiet


def ids_of(bindings, path, texts):
    params = bindings.llama_model_default_params()
    params.vocab_only = True
    model = bindings.llama_model_load_from_file(str(path).encode(), params)
    assert model, path
    vocab = bindings.llama_model_get_vocab(model)
    for text in texts:
        data = text.encode()
        room = (ctypes.c_int32 * (len(data) + 8))()
        count = bindings.llama_tokenize(vocab, data, len(data), room, len(room), False, False)
        assert count >= 0
        yield list(room[:count])
    bindings.llama_model_free(model)


def writer(path, model, pre):
    w = gguf.GGUFWriter(path, "llama")
    w.add_context_length(64)
    w.add_embedding_length(8)
    w.add_block_count(1)
    w.add_feed_forward_length(8)
    w.add_head_count(1)
    w.add_layer_norm_rms_eps(1e-5)
    w.add_tokenizer_model(model)
    w.add_tokenizer_pre(pre)
    return w


def close(w):
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def train_bytes():
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    texts = [text for text in TEXTS + MORE if text and "s>" not in text]
    t.train_from_iterator(texts * 2, trainers.BpeTrainer(
        vocab_size=1400, min_frequency=2, max_token_length=6, show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet())))
    whole = json.loads(t.to_str())["model"]
    return sorted(whole["vocab"], key=whole["vocab"].get), [" ".join(pair) for pair in whole["merges"]]


def write_bytes(path, pre, tokens, merges):
    """Adds to the trained tokens special ones, a user-defined one, a gap, and a duplicate."""
    more = [("<s>", CONTROL), ("</s>", CONTROL), ("    ", USER_DEFINED), ("[PAD]", UNUSED), ("a b", USER_DEFINED)]
    w = writer(path, "gpt2", pre)
    w.add_token_list(tokens + [text for text, _ in more])
    w.add_token_types([NORMAL] * len(tokens) + [kind for _, kind in more])
    w.add_token_merges(merges)
    w.add_bos_token_id(len(tokens))
    w.add_eos_token_id(len(tokens) + 1)
    w.add_chat_template("{{ messages }}")
    close(w)


def write_pieces(path, whole):
    """Scores fall by merge, and every third piece has the score of the one before it."""
    vocab = whole["model"]["vocab"]
    tokens = sorted(vocab, key=vocab.get)
    rank = {"".join(pair): i for i, pair in reversed(list(enumerate(whole["model"]["merges"])))}
    scores, kinds = [], []
    for token in tokens:
        byte = re.fullmatch("<0x..>", token) is not None
        kind = UNKNOWN if token == "<unk>" else CONTROL if token in ("<s>", "</s>") else BYTE if byte else NORMAL
        place = rank.get(token, 1000) if kind == NORMAL else 0
        scores.append(float(-(place - place % 3)))
        kinds.append(kind)
    w = writer(path, "llama", "default")
    w.add_token_list(tokens)
    w.add_token_scores(scores)
    w.add_token_types(kinds)
    w.add_bos_token_id(1)
    w.add_eos_token_id(2)
    w.add_unk_token_id(0)
    w.add_add_bos_token(True)
    close(w)


def names():
    source = pathlib.Path("src/tokenizer/pre_names.c").read_text(encoding="utf-8")
    return re.findall(r'^    \{"([^"]+)", ', source, re.MULTILINE)


def usable(pre, text):
    if pre in NORMALIZED and unicodedata.normalize("NFC", text) != text:
        return False
    return pre not in CASED or text.isascii()


def line(text, ids, first):
    words = " ".join(map(str, ids))
    known = first.setdefault(text, words)
    return f"{json.dumps(text)}\t{'=' if known == words and known is not words else words}"


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    out = pathlib.Path(sys.argv[1])
    bindings, version, _quiet = llama_cpp()
    tokens, merges = train_bytes()
    texts = [text for text in TEXTS + MORE if "\0" not in text]
    lines = [f"# llama-cpp-python {version}, gguf {metadata.version('gguf')}, tokenizers {metadata.version('tokenizers')}, "
             "no seed: python3 tools/golden/make_gguf_tokenizers.py tests/golden"]
    scratch = out / "vocab_scratch.gguf"
    sections, first = {}, {}
    for pre in names():
        chosen = [text for text in texts if usable(pre, text)]
        write_bytes(scratch, pre, tokens, merges)
        section = [line(text, ids, first) for text, ids in zip(chosen, ids_of(bindings, scratch, chosen))]
        sections.setdefault("\n".join(section), []).append(pre)
    scratch.unlink()
    for section, shared in sections.items():
        lines += [f"@ vocab_bytes.gguf {' '.join(shared)}", section]
    write_bytes(out / "vocab_bytes.gguf", "gpt-2", tokens, merges)
    write_pieces(out / "vocab_pieces.gguf", json.loads((out / "tokenizer_free.json").read_text(encoding="utf-8")))
    lines.append("@ vocab_pieces.gguf default")
    lines += [line(text, ids, {}) for text, ids in zip(texts, ids_of(bindings, out / "vocab_pieces.gguf", texts))]
    (out / "tokenizer_gguf.txt").write_text("\n".join(lines) + "\n", encoding="ascii")


if __name__ == "__main__":
    main()
