/* SPDX-License-Identifier: Apache-2.0
 *
 * Tokenizers: text to token ids and back, loaded from a Hugging Face tokenizer.json or from the
 * vocabulary inside a GGUF. Supports byte-level BPE and SentencePiece-style BPE with byte fallback,
 * with the normalizers, pre-tokenizers, post-processors and decoders that the file lists. An
 * unknown component is an error that names it. Chat templates, stop strings and the end-of-text
 * ids of generation_config.json are handled elsewhere.
 *
 * An open tokenizer never changes, so any number of threads may use one at the same time.
 */
#ifndef NIB_TOKENIZER_H
#define NIB_TOKENIZER_H

#include "hash.h"
#include "ledger.h"
#include "text.h"

enum {
    /* Limit on the vocabulary size; ids are smaller. */
    NIB_TOKENIZER_IDS = 4 * 1024 * 1024,
};

enum {
    /* Add the tokens of the post-processor, such as BOS and EOS. */
    NIB_ENCODE_ADD_SPECIAL = NIB_TOKENIZE_ADD_SPECIAL,
    /* Map a special token written in the text to its id. For text that the program writes, such as
     * the output of a chat template. Without it, "</s>" in user text is encoded as plain text. */
    NIB_ENCODE_PARSE_SPECIAL = NIB_TOKENIZE_PARSE_SPECIAL,
    /* Drop characters that the tokenizer cannot encode, as Hugging Face's tokenizers do. Without it
     * they are an error. */
    NIB_ENCODE_DROP_UNKNOWN = 4,
};

/* Bytes [start, end) of a text. */
typedef struct nib_byte_range {
    size_t start, end;
} nib_byte_range;

/* Opens a tokenizer.json. config_path: tokenizer_config.json, which names BOS and EOS, or NULL. */
nib_status nib__tokenizer_open(nib_tokenizer **out, const char *path, const char *config_path,
                               const nib_allocator *a, nib_err *err);

typedef struct nib_named_text {
    const char *name; /* of the file, for messages */
    const char *text;
    size_t size;
} nib_named_text;

/* The same from memory, which may be freed afterwards; config may be NULL. */
nib_status nib__tokenizer_parse(nib_tokenizer **out, const nib_named_text *json,
                                const nib_named_text *config, const nib_allocator *a, nib_err *err);
void nib__tokenizer_close(nib_tokenizer *t);
/* Adds to the ledger what the two files ask for and Nibble does not do. Opens no tokenizer; config
 * may be NULL. */
void nib__tokenizer_report(nib_ledger *ledger, const char *path, const char *config);

/* ---- prebuilt tables ---- */

#define NIB_TABLES_NAME "nibble.tokens"

/* Serializes an open tokenizer for nib__tokenizer_parse_tables: its vocabulary and merges as they
 * are used in memory, and the small parts of the tokenizer.json it was opened from.
 * docs/formats.md has the layout. */
nib_status nib__tokenizer_tables(nib_text *out, const nib_tokenizer *t, const nib_named_text *json,
                                 nib_err *err);
/* Opens such tables: the same tokenizer in a tenth of the time. The bytes must outlive the
 * tokenizer. *source: the expected hash of the tokenizer.json (NULL: any). NIB_BAD_INPUT: the
 * tables are incomplete, hold an index out of range or were made from another file. */
nib_status nib__tokenizer_parse_tables(nib_tokenizer **out, const nib_named_text *tables,
                                       const nib_hash *source, const nib_named_text *config,
                                       const nib_allocator *a, nib_err *err);
/* The same from files; `path` is the tokenizer.json. The tokenizer keeps the tables mapped. */
nib_status nib__tokenizer_open_tables(nib_tokenizer **out, const char *tables, const char *path,
                                      const char *config, const nib_allocator *a, nib_err *err);
/* Returns `status`, or NIB_IO if another process changed the file of the tables. */
nib_status nib__tokenizer_read(const nib_tokenizer *t, nib_status status, nib_err *err);
/* Builds the tables of a tokenizer.json and writes them to a file; *bytes: its size. */
nib_status nib__tokenizer_write_tables(const char *tables, const char *path, const char *config,
                                       uint64_t *bytes, const nib_allocator *a, nib_err *err);

/* ---- the vocabulary of a GGUF ---- */

typedef struct nib_vocab_text {
    const char *at; /* NULL: no such key */
    size_t size;
} nib_vocab_text;

typedef enum nib_vocab_flag {
    NIB_VOCAB_FLAG_UNSET, /* no such key */
    NIB_VOCAB_FLAG_FALSE,
    NIB_VOCAB_FLAG_TRUE,
} nib_vocab_flag;

/* Values of the keys "tokenizer.ggml.*" that ids depend on; the tokenizer copies what it needs. A
 * missing array is NULL, a missing id -1. */
typedef struct nib_vocab_source {
    const char *name; /* of the file, for messages */
    nib_vocab_text model, pre;
    const nib_vocab_text *tokens; /* [token_count] by id */
    const float *scores;          /* [score_count] by id */
    const int32_t *types;         /* [type_count] by id: token_type */
    const nib_vocab_text *merges; /* [merge_count] "left right" in order of rank */
    size_t token_count, score_count, type_count, merge_count;
    int64_t bos, eos, unk; /* as stored: 4294967295 also means none */
    nib_vocab_flag add_bos, add_eos, add_space_prefix, remove_extra_whitespaces;
    bool has_charsmap; /* precompiled_charsmap */
} nib_vocab_source;

/* Opens a tokenizer that gives the same ids and text as the tokenizer.json of this vocabulary.
 * Supports the models "gpt2" (byte-level, words cut as `pre` names), "llama" (pieces merged by
 * score, byte fallback) and "gemma4" (the same, merged as listed). NIB_UNSUPPORTED: another model,
 * an unknown `pre`, or "gpt2" without `pre`. */
nib_status nib__tokenizer_from_vocab(nib_tokenizer **out, const nib_vocab_source *source,
                                     const nib_allocator *a, nib_err *err);
/* What a tokenizer.json cannot express of a GGUF's vocabulary. */
typedef struct nib_json_losses {
    int64_t twice;     /* an id with the text of an earlier one; -1: none */
    size_t misspelled; /* added tokens whose characters its byte-level decoder takes for bytes */
} nib_json_losses;

/* Appends such a tokenizer as a tokenizer.json; if losses->twice >= 0, the text is of no use. Its
 * merges are a list in one order, so where two ways to make one piece overlap, which a GGUF merges
 * from the left, rare texts can get other ids. */
nib_status nib__tokenizer_write(nib_text *out, const nib_tokenizer *t, nib_json_losses *losses,
                                nib_err *err);
/* The reverse: the keys of a GGUF from a tokenizer, for a model with so many rows. *out points into
 * the tokenizer and the arena. NIB_UNSUPPORTED if GGUF has no key for how this tokenizer splits or
 * normalizes a text. listed: pieces are written for the model "gemma4", with merges, instead of
 * "llama", with scores. Where only rare texts would get other ids, adds a line to the ledger (may
 * be NULL). */
nib_status nib__tokenizer_to_vocab(nib_vocab_source *out, const nib_tokenizer *t, const char *name,
                                   int64_t rows, bool listed, nib_arena *arena, nib_ledger *ledger,
                                   nib_err *err);

/* Largest id + 1, added tokens included. Some ids may have no token. */
int64_t nib__tokenizer_vocab_size(const nib_tokenizer *t);
/* Bytes it holds in memory, without compiled regular expressions. */
uint64_t nib__tokenizer_bytes(const nib_tokenizer *t);
/* Id of BOS, EOS or the unknown token; -1 if the files name none. */
int32_t nib__tokenizer_bos(const nib_tokenizer *t);
int32_t nib__tokenizer_eos(const nib_tokenizer *t);
int32_t nib__tokenizer_unk(const nib_tokenizer *t);
/* Does NIB_ENCODE_ADD_SPECIAL put BOS first? */
bool nib__tokenizer_adds_bos(const nib_tokenizer *t);
/* Number of tokens that NIB_ENCODE_ADD_SPECIAL puts before the text. */
size_t nib__tokenizer_adds_before(const nib_tokenizer *t);
/* Id of a token spelled as in the file (byte-level text for byte-level tokenizers); -1: none. */
int32_t nib__tokenizer_find(const nib_tokenizer *t, const char *token, size_t size);
/* A token spelled as in the file, not NUL-terminated; NULL: no such id. */
const char *nib__tokenizer_token(const nib_tokenizer *t, int32_t id, size_t *size);
bool nib__tokenizer_is_special(const nib_tokenizer *t, int32_t id);

/* Encodes a text, which must be valid UTF-8 (else NIB_BAD_INPUT names the byte). U+0000 is an
 * ordinary character. *ids comes from the tokenizer's allocator; release it with
 * nib__tokenizer_ids_free. */
nib_status nib__tokenizer_encode(const nib_tokenizer *t, const char *text, size_t size,
                                 unsigned flags, int32_t **ids, size_t *count, nib_err *err);
void nib__tokenizer_ids_free(const nib_tokenizer *t, int32_t *ids);
typedef struct nib_encoding {
    unsigned flags;
    /* User text: no special token is recognized inside, whatever the flags say. [marked_count] in
     * order, not touching; words may span their ends. */
    const nib_byte_range *marked;
    size_t marked_count;
    size_t max_ids;  /* encoding stops at max_ids + 1 ids; 0: no limit */
    size_t max_word; /* bytes; a longer word or run of spaces is NIB_BAD_INPUT; 0: no limit */
} nib_encoding;

/* nib__tokenizer_encode with limits. A word needs up to 44 bytes of memory per byte; max_word
 * bounds that and max_ids bounds the ids, so only the normalized text grows with the text. */
nib_status nib__tokenizer_encode_as(const nib_tokenizer *t, const char *text, size_t size,
                                    const nib_encoding *how, int32_t **ids, size_t *count,
                                    nib_err *err);
/* nib__tokenizer_encode that also counts the candidate merges it examined (for tests of cost). */
nib_status nib__tokenizer_encode_steps(const nib_tokenizer *t, const char *text, size_t size,
                                       unsigned flags, int32_t **ids, size_t *count,
                                       uint64_t *steps, nib_err *err);

/* Appends the text of the ids, always valid UTF-8: invalid bytes and ids without a token become
 * U+FFFD. skip_special: omit special tokens. */
nib_status nib__tokenizer_decode(const nib_tokenizer *t, const int32_t *ids, size_t count,
                                 bool skip_special, nib_text *out, nib_err *err);

/* Appends the bytes that an id stands for inside a text, which may split a code point. Appends
 * nothing for a special token or an id without a token. */
nib_status nib__tokenizer_spell(const nib_tokenizer *t, int32_t id, nib_text *out, nib_err *err);

/* ---- incremental decoding, in whole code points ---- */

/* The concatenation of all that _put and _finish append equals nib__tokenizer_decode. */
typedef struct nib_detok {
    const nib_tokenizer *tokenizer;
    bool skip_special;
    bool begun;         /* a token was put */
    bool wrote;         /* the start of the text is no longer stripped */
    size_t stripped;    /* characters removed from the start so far */
    size_t held;        /* trailing characters that may still be stripped */
    uint8_t pending[4]; /* bytes of an incomplete code point */
    int pending_count;
    bool pending_fallback; /* they came from <0xHH> tokens */
    bool raw;              /* emit bytes unchecked, strip nothing */
    nib_text work[2];
} nib_detok;

void nib__detok_init(nib_detok *d, const nib_tokenizer *t, bool skip_special);
/* The ids continue earlier text: keep the space that decoders strip from the start of a text. */
void nib__detok_continue(nib_detok *d);
void nib__detok_put(nib_detok *d, int32_t id, nib_text *out);
/* Ends the text: pending bytes become U+FFFD. The next id begins a new text. */
void nib__detok_finish(nib_detok *d, nib_text *out);
void nib__detok_free(nib_detok *d);
/* Appends the text of a token in mid-text, with the space that it may lose at the start. */
void nib__token_text(const nib_tokenizer *t, int32_t id, nib_text *out);

#endif
