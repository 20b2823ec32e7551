#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains two small SentencePiece tokenizers and writes how Mistral's library encodes conversations with them.

    make_mistral_golden.py CORPUS OUT

CORPUS is tests/data/corpus.jsonl, OUT is tests/golden/mistral. OUT has the conversations (*.json: "messages" and
"tools") and the templates (v1.jinja, v2.jinja, v3.jinja), both written by hand. Writes tokenizer_text.json (the marks are
ordinary text, as in Mistral's first tokenizers), tokenizer_marks.json (each mark is a control token) and expected.txt.

A line of expected.txt is: VERSION, tab, NAME of the conversation, tab, the text as a JSON string, tab, the ids. Both are
those of mistral-common's InstructTokenizerV1, V2 and V3: the text is the concatenated pieces of the ids. No template is involved.
A conversation is left out for versions that refuse it.

The script stops unless transformers' rendering of our templates gives these texts, and PyPI's tokenizers gives
SentencePiece's ids with our tokenizer.json files for the text of each message.
"""
import io
import json
import pathlib
import sys
import tempfile
from importlib import metadata

import sentencepiece
from mistral_common.exceptions import MistralCommonException
from mistral_common.protocol.instruct.request import ChatCompletionRequest
from mistral_common.tokens.tokenizers.mistral import MistralTokenizer
from tokenizers import Tokenizer
from transformers.utils.chat_template_utils import _compile_jinja_template

MARKS = ["[INST]", "[/INST]", "[TOOL_CALLS]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]",
         "[/TOOL_RESULTS]"]
SPECIAL = ["<unk>", "<s>", "</s>"]
PIECES = 400  # besides bytes and control tokens
VERSIONS = {"v1": "text", "v2": "marks", "v3": "marks"}
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}


def train(corpus, marks):
    """Trains as Mistral does: no normalization, a blank before the text, separate digits, byte fallback."""
    model = io.BytesIO()
    texts = [json.loads(line)["text"] for line in corpus.read_text(encoding="utf-8").splitlines()]
    lines = [line for text in texts for line in text.split("\n") if line]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=model, model_type="bpe", control_symbols=marks,
        vocab_size=len(SPECIAL) + len(marks) + 256 + PIECES, character_coverage=0.9999, byte_fallback=True,
        split_digits=True, normalization_rule_name="identity", add_dummy_prefix=True, remove_extra_whitespaces=False,
        allow_whitespace_only_pieces=True, max_sentence_length=100000, num_threads=1, minloglevel=2)
    return model.getvalue()


def as_json(model):
    """The same as tokenizer.json: a merge for each way to split a piece, best piece first."""
    p = sentencepiece.SentencePieceProcessor(model_proto=model)
    count = p.get_piece_size()
    vocab = {p.id_to_piece(i): i for i in range(count)}
    assert len(vocab) == count
    control = [i for i in range(count) if p.is_control(i) or p.is_unknown(i)]
    whole = {i for i in range(count) if i not in control and not p.is_byte(i)}
    merges = []
    for i in sorted(whole, key=lambda i: -p.get_score(i)):
        piece = p.id_to_piece(i)
        cuts = [(piece[:k], piece[k:]) for k in range(1, len(piece))]
        merges += sorted(([a, b] for a, b in cuts if vocab.get(a) in whole and vocab.get(b) in whole),
                         key=lambda pair: (vocab[pair[0]], vocab[pair[1]]))
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    post = {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                     {"SpecialToken": {"id": "<s>", "type_id": 1}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}}
    decoders = [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"},
                {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]
    return json.dumps({
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{"id": i, "content": p.id_to_piece(i), **flags} for i in control],
        "normalizer": None,
        "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False},
        "post_processor": post, "decoder": {"type": "Sequence", "decoders": decoders},
        "model": {"type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": True, "byte_fallback": True, "ignore_merges": False,
                  "vocab": vocab, "merges": merges},
    }, ensure_ascii=False, separators=(",", ":"))


def spelled(p, ids):
    data = b""
    for i in ids:
        piece = p.id_to_piece(i)
        data += bytes([int(piece[3:5], 16)]) if p.is_byte(i) else piece.replace("▁", " ").encode()
    return data.decode()


def request_of(sample):
    """Converts a conversation; mistral-common expects the arguments of a call as text."""
    messages = json.loads(json.dumps(sample["messages"]))
    for message in messages:
        for call in message.get("tool_calls", []):
            call["function"]["arguments"] = json.dumps(call["function"]["arguments"], ensure_ascii=False)
    return ChatCompletionRequest(messages=messages, tools=sample.get("tools"))


def check_ids(p, t, sample):
    """Both must give the same ids, with tokenizers not looking for marks: unlike SentencePiece it puts no blank before one."""
    t.encode_special_tokens = True
    for message in sample["messages"]:
        text = message["content"]
        assert not text or p.encode(text) == t.encode(" " + text, add_special_tokens=False).ids, text


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    corpus, out = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    samples = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(out.glob("*.json"))
               if not path.stem.startswith("tokenizer_")}
    models = {"text": train(corpus, []), "marks": train(corpus, MARKS)}
    processors = {}
    for name, model in models.items():
        body = as_json(model)
        (out / f"tokenizer_{name}.json").write_text(body + "\n", encoding="utf-8")
        processors[name] = sentencepiece.SentencePieceProcessor(model_proto=model)
        for sample in samples.values():
            check_ids(processors[name], Tokenizer.from_str(body), sample)
    versions = " ".join(f"{package} {metadata.version(package)}," for package in ("mistral-common", "sentencepiece"))
    lines = [f"# {versions} no seed: python3 tools/golden/make_mistral_golden.py tests/data/corpus.jsonl "
             "tests/golden/mistral"]
    for version, kind in VERSIONS.items():
        template = _compile_jinja_template((out / f"{version}.jinja").read_text(encoding="utf-8"))
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, f"tokenizer.model.{version}")
            path.write_bytes(models[kind])
            mistral = MistralTokenizer.from_file(str(path))
        for name, sample in samples.items():
            try:
                ids = mistral.encode_chat_completion(request_of(sample)).tokens
            except MistralCommonException as error:
                print(f"{version} {name}: {type(error).__name__}: {error}", file=sys.stderr)
                continue
            text = spelled(processors[kind], ids)
            rendered = template.render(**TOKENS, **sample)
            assert rendered == text, f"{version} {name}:\n{rendered!r}\n{text!r}"
            lines.append("\t".join((version, name, json.dumps(text), " ".join(map(str, ids)))))
    (out / "expected.txt").write_text("\n".join(lines) + "\n", encoding="ascii")


if __name__ == "__main__":
    main()
