#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prepares the inputs of `nibble train` for the model in models/nibble-tales.

    python tools/train_model/prepare.py --data DIR --out OUT

DIR holds war_and_peace.txt, grimms_fairy_tales.txt and tinyshakespeare.txt. The script cleans the texts, splits
off the last 4 % of each as held-out text (OUT/heldout.txt, never trained on), trains a byte-level BPE tokenizer, and
writes it with the model's config and the documents, ordered by hash (OUT/training.jsonl). The same texts give the
same bytes. Needs the packages in requirements.txt beside it.
"""
import argparse
import hashlib
import json
import os
import re
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

EOT = "<|endoftext|>"
HELD_OUT = 0.04
LONG = 20_000  # characters

# How Qwen2 cuts text before the merges. The transformers library uses this for every model of type qwen2,
# whatever tokenizer.json says, so only a tokenizer trained with it works the same everywhere.
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
    """Removes the Project Gutenberg header and footer, if present."""
    text = text.replace("\r\n", "\n").lstrip("\ufeff")
    start = re.search(r"^\*\*\* ?START OF.*$", text, re.M)
    end = re.search(r"^\*\*\* ?END OF.*$", text, re.M)
    return text[start.end() if start else 0: end.start() if end else len(text)]


def plain_quotes(text):
    """Replaces British curly quotes by the plain American ones of the other texts; keeps apostrophes."""
    text = text.replace("\u201c", "'").replace("\u201d", "'").replace("\u2018", '"')
    text = re.sub(r"(?<=[,.!?;:)\-'])\u2019", '"', text)  # after punctuation it closes a quotation
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
    """Splits into tales: one begins at a line of capitals after three or more empty lines (or at the start)."""
    title = r"\n{3,}(?!FIRST STORY|SECOND STORY)(?=[A-Z][A-Z' ,\-]+(?: \[.*\])?\n)"
    parts = re.split(title, strip_gutenberg(plain_quotes(text)))
    return [paragraphs(part) for part in parts if part.strip()]


def shakespeare(text):
    """Verse with speakers' names as one document; keeps the layout, which is part of the text."""
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


def pieces(doc):
    """Splits a long document (all of Shakespeare is one) at paragraphs, so that
    the order by hash mixes it with the others."""
    while len(doc) > LONG:
        cut = doc.rfind("\n\n", 0, LONG)
        yield doc[:cut]
        doc = doc[cut:].strip()
    yield doc


def write_json(out, name, value):
    Path(out, name).write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--data", required=True, help="folder with the three texts")
    ap.add_argument("--out", required=True, help="folder to write to")
    args = ap.parse_args()
    os.makedirs(args.out, exist_ok=True)

    texts = load_texts(args.data)
    tok = train_tokenizer(texts, args.out)
    eot = CONFIG["eos_token_id"]
    docs = [doc for parts, _ in texts.values() for doc in parts]
    docs = [piece for doc in docs for piece in pieces(doc)]
    docs.sort(key=lambda doc: hashlib.sha256(doc.encode()).digest())  # any part of the file has all three texts
    with open(Path(args.out, "training.jsonl"), "w", encoding="utf-8") as out:
        for doc in docs:
            out.write(json.dumps({"text": doc}, ensure_ascii=False) + "\n")
    heldout = "\n".join(held for _, held in texts.values())
    Path(args.out, "heldout.txt").write_text(heldout, encoding="utf-8")
    print(f"{len(docs)} documents, {sum(len(tok.encode(doc).ids) for doc in docs)} training tokens, "
          f"{len(tok.encode(heldout).ids)} held-out tokens of {len(heldout.encode())} bytes")

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


if __name__ == "__main__":
    main()
