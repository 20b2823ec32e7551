#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains the tokenizer of the training examples on tests/data/corpus.jsonl with PyPI's tokenizers.

    make_train_tokenizer.py CORPUS OUT

OUT is configs/tokenizer and gets tokenizer.json and tokenizer_config.json: byte-level BPE of 2048 ids that cuts text
as Llama 3 does, with <|begin_of_text|> and <|end_of_text|> as its last two. The same corpus gives the same bytes.
"""
import json
import pathlib
import sys

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

IDS = 2048
BEGIN, END = "<|begin_of_text|>", "<|end_of_text|>"
WORDS = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
         r"|\s*[\r\n]+|\s+(?!\S)|\s+")


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    corpus, out = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    texts = [json.loads(line)["text"] for line in corpus.read_text(encoding="utf-8").splitlines()]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(WORDS), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    # Without special tokens, which a trainer would put first: as in Llama 3, the text's ids come first.
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=IDS - 2, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False))
    tokenizer.add_special_tokens([BEGIN, END])
    begin = tokenizer.token_to_id(BEGIN)
    assert tokenizer.get_vocab_size() == IDS and begin == IDS - 2 and tokenizer.token_to_id(END) == IDS - 1
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BEGIN} $A", pair=f"{BEGIN} $A $B:1", special_tokens=[(BEGIN, begin)])
    tokenizer.save(str(out / "tokenizer.json"))
    special = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}
    config = {"added_tokens_decoder": {str(begin): {"content": BEGIN, **special}, str(begin + 1): {"content": END, **special}},
              "bos_token": BEGIN, "clean_up_tokenization_spaces": False, "eos_token": END,
              "model_input_names": ["input_ids", "attention_mask"], "model_max_length": 131072,
              "tokenizer_class": "PreTrainedTokenizerFast"}
    (out / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    ids = sum(len(tokenizer.encode(text).ids) + 1 for text in texts)
    print(f"{out}: {IDS} ids; the corpus has {ids} tokens, with both ends of {len(texts)} documents")


if __name__ == "__main__":
    main()
