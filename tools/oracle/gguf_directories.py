#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Opens with transformers what `nibble convert X.gguf DIR --format safetensors` writes beside the weights.

    gguf_directories.py NIBBLE RENDER DATA [TOKENIZERS]

RENDER: the program of `make build/release/oracle/render_templates`; DATA: the folder that NIBBLE_TEST_DATA names;
TOKENIZERS: that of tools/golden/make_tokenizers.py. Each vocabulary there becomes a GGUF with a tiny model, a chat
template and settings for sampling. AutoTokenizer must give llama.cpp's ids for its 46 texts and decode them,
apply_chat_template the text that Nibble renders, and GenerationConfig and AutoConfig the values of the GGUF.
Prints a line per vocabulary and `N ok, N failed`. Needs: gguf, numpy, transformers.
"""
import json
import pathlib
import subprocess
import sys
import tempfile

import gguf
import numpy as np
from transformers import AutoConfig, AutoTokenizer, GenerationConfig

TEMPLATE = ("{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>\n{{ m.content | trim }}{{ eos_token }}\n{% endfor %}"
            "{% if add_generation_prompt %}<|assistant|>\n{% endif %}")
MESSAGES = [{"role": "user", "content": " Wie heißt der Führer? "}, {"role": "assistant", "content": "I don't know.\n"},
            {"role": "user", "content": "1 < 2 && \"quoted\" 🦙"}]
SEPARATOR = "\n__ggml_vocab_test__\n"
EPS, TEMPERATURE, TOP_P, TOP_K = 1e-5, 0.7, 0.95, 40
WIDTH = 32


def copy_field(writer, field):
    """A key of the vocabulary; False: it is not the tokenizer's."""
    if not field.name.startswith("tokenizer."):
        return
    kind = field.types[0]
    writer.add_key_value(field.name, field.contents(), kind, field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None)


def write_model(path, vocabulary):
    fields = gguf.GGUFReader(vocabulary).fields
    tokens = len(fields["tokenizer.ggml.tokens"].data)
    w = gguf.GGUFWriter(path, "llama")
    w.add_context_length(64)
    w.add_embedding_length(WIDTH)
    w.add_block_count(1)
    w.add_feed_forward_length(WIDTH)
    w.add_head_count(1)
    w.add_layer_norm_rms_eps(EPS)
    w.add_vocab_size(tokens)
    w.add_chat_template(TEMPLATE)
    w.add_float32("general.sampling.temp", TEMPERATURE)
    w.add_float32("general.sampling.top_p", TOP_P)
    w.add_int32("general.sampling.top_k", TOP_K)
    for field in fields.values():
        if field.name != "tokenizer.chat_template":
            copy_field(w, field)
    random = np.random.default_rng(1)
    for name, shape in {"token_embd": (tokens, WIDTH), "output_norm": (WIDTH,), "blk.0.attn_norm": (WIDTH,),
                        "blk.0.ffn_norm": (WIDTH,), **{f"blk.0.{n}": (WIDTH, WIDTH) for n in (
                            "attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")}}.items():
        w.add_tensor(f"{name}.weight", random.standard_normal(shape, dtype=np.float32))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def rendered(program, tokenizer):
    names = {k: str(v) for k, v in tokenizer.special_tokens_map.items()}
    request = {"template": TEMPLATE, "values": {"messages": MESSAGES, "add_generation_prompt": True}, "tokens": names}
    out = subprocess.run([program], input=json.dumps(request, ensure_ascii=False) + "\n", capture_output=True, text=True, check=True)
    return json.loads(out.stdout)["text"]


def check(nibble, render, vocabulary, cases, work):
    write_model(work / "x.gguf", vocabulary)
    run = subprocess.run([nibble, "convert", work / "x.gguf", work / "out", "--format", "safetensors"], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    tokenizer = AutoTokenizer.from_pretrained(work / "out")
    texts = pathlib.Path(f"{cases}.inp").read_bytes().decode().split(SEPARATOR)
    lines = pathlib.Path(f"{cases}.out").read_text().split("\n")[:46]
    assert len(texts) >= 46, len(texts)
    undecoded = 0
    for text, line in zip(texts, lines):
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert ids == [int(i) for i in line.split()], f"{text!r} gives {ids} instead of {line}"
        undecoded += tokenizer.decode(ids) != text
    said = "added tokens to other bytes" in run.stdout + run.stderr
    assert undecoded == 0 or said, f"{undecoded} texts do not decode, and nothing says so"
    prompt = tokenizer.apply_chat_template(MESSAGES, add_generation_prompt=True, tokenize=False)
    assert prompt == rendered(render, tokenizer), prompt
    generation, config = GenerationConfig.from_pretrained(work / "out"), AutoConfig.from_pretrained(work / "out")
    assert (generation.temperature, generation.top_p, generation.top_k, generation.do_sample) == (TEMPERATURE, TOP_P, TOP_K, True)
    assert tokenizer.eos_token_id in np.atleast_1d(generation.eos_token_id), generation.eos_token_id
    assert config.rms_norm_eps == EPS and tokenizer.bos_token_id == config.bos_token_id
    return f"46 texts, {undecoded} decoded otherwise, as is said" if undecoded else "46 texts"


def main():
    nibble, render, data = (pathlib.Path(a).absolute() for a in sys.argv[1:4])
    vocabularies = data / "tokenizers/llama.cpp-vocab"
    found = {p: p for p in sorted(vocabularies.glob("*.gguf"))}
    if len(sys.argv) > 4:
        for name in ("llama-bpe", "qwen2"):
            found[pathlib.Path(sys.argv[4]) / name / "vocab.gguf"] = vocabularies / f"ggml-vocab-{name}.gguf"
    ok = 0
    for path, cases in found.items():
        with tempfile.TemporaryDirectory() as work:
            try:
                print(f"{cases.stem}: {check(nibble, render, path, cases, pathlib.Path(work))}")
                ok += 1
            except (AssertionError, ValueError, OSError) as problem:
                print(f"{cases.stem}: FAILED: {problem}")
    print(f"{ok} ok, {len(found) - ok} failed")
    return ok < len(found)


if __name__ == "__main__":
    sys.exit(main())
