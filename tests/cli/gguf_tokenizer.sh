# SPDX-License-Identifier: Apache-2.0
#
# --tokenizer with a GGUF: its vocabulary is used, and errors in it are reported.
vocab=$REPO/tests/golden/vocab_bytes.gguf broken=$REPO/tests/fuzz/corpus/gguf_vocab
run() { nibble generate "$MODEL" --quiet --temp 0 -n 4 --ignore-eos -p 'The king' "$@"; }
check 'generate with the vocabulary of a GGUF' run --tokenizer "$vocab"
cp "$vocab" vocabulary
check 'a GGUF is recognized by its first bytes, not its name' run --tokenizer vocabulary
refused 3 '*unknown_pre: tokenizer.ggml.pre "nonsense" is not known*' generate "$MODEL" -p a --tokenizer "$broken/unknown_pre"
refused 3 '*bert: tokenizer.ggml.model "bert" is WordPiece*' generate "$MODEL" -p a --tokenizer "$broken/bert"
refused 3 '*short_scores: tokenizer.ggml.scores has 2 values for 3 tokens*' generate "$MODEL" -p a \
    --tokenizer "$broken/short_scores"
refused 3 '*bos_beyond: tokenizer.ggml.bos_token_id is 9; the ids of the vocabulary are below 1' generate "$MODEL" -p a \
    --tokenizer "$broken/bos_beyond"
head -c 300 "$vocab" >cut
refused 3 'cut: *' generate "$MODEL" -p a --tokenizer cut
