/* SPDX-License-Identifier: Apache-2.0
 *
 * Tokenizers from a Hugging Face tokenizer.json, or from the vocabulary inside a GGUF: text to
 * token ids and back. Byte-level BPE and SentencePiece-style BPE with byte fallback, with the
 * normalizers, pre-tokenizers, post-processors and decoders that the file names; a component that
 * is not known is an error that names it. Chat templates, stop strings and the end-of-text ids of
 * generation_config.json are not here.
 *
 * An open tokenizer never changes, so any number of threads may use one at the same time.
 */
#ifndef NIB_TOKENIZER_H
#define NIB_TOKENIZER_H

#include "hash.h"
#include "ledger.h"
#include "text.h"

typedef struct nib_tokenizer nib_tokenizer;

enum {
    /* No token id and no vocabulary size is larger, whatever the file says. */
    NIB_TOKENIZER_IDS = 4 * 1024 * 1024,
};

enum {
    /* Put what the post-processor adds around the text: BOS, EOS. */
    NIB_ENCODE_ADD_SPECIAL = 1,
    /* A special token written in the text becomes its id. For what the program writes itself, such
     * as a chat template's text: without it, "</s>" in a user's words stays the characters it is.
     */
    NIB_ENCODE_PARSE_SPECIAL = 2,
    /* Leave out characters that the tokenizer cannot write, as Hugging Face's tokenizers do;
     * without it they are an error. */
    NIB_ENCODE_DROP_UNKNOWN = 4,
};

/* Bytes [start, end) of a text. */
typedef struct nib_byte_range {
    size_t start, end;
} nib_byte_range;

/* Opens tokenizer.json; tokenizer_config.json beside it, which names BOS and EOS, may be NULL. */
nib_status nib__tokenizer_open(nib_tokenizer **out, const char *path, const char *config_path,
                               const nib_allocator *a, nib_err *err);

typedef struct nib_named_text {
    const char *name; /* of the file, for messages */
    const char *text;
    size_t size;
} nib_named_text;

/* The same from memory, which need not stay; config may be NULL. */
nib_status nib__tokenizer_parse(nib_tokenizer **out, const nib_named_text *json,
                                const nib_named_text *config, const nib_allocator *a, nib_err *err);
void nib__tokenizer_close(nib_tokenizer *t);
/* What the two files ask for and is not done, without opening a tokenizer; config may be NULL. */
void nib__tokenizer_say(nib_ledger *ledger, const char *path, const char *config);

/* ---- tables that were built before ---- */

#define NIB_TABLES_NAME "nibble.tokens"

/* Vocabulary and merges of an open tokenizer in the form in which they are used, with the small
 * parts of the tokenizer.json that it was opened from: what parse_tables reads. docs/formats.md has
 * the layout. */
nib_status nib__tokenizer_tables(nib_text *out, const nib_tokenizer *t, const nib_named_text *json,
                                 nib_err *err);
/* Opens them: the same tokenizer in a tenth of the time. The bytes must stay; *source: the hash of
 * the tokenizer.json that counts (NULL: any). NIB_BAD_INPUT: they are not whole, lead out of
 * themselves or were made from another file. */
nib_status nib__tokenizer_parse_tables(nib_tokenizer **out, const nib_named_text *tables,
                                       const nib_hash *source, const nib_named_text *config,
                                       const nib_allocator *a, nib_err *err);
/* The same from the files, which the tokenizer then keeps mapped: `path` is the tokenizer.json. */
nib_status nib__tokenizer_open_tables(nib_tokenizer **out, const char *tables, const char *path,
                                      const char *config, const nib_allocator *a, nib_err *err);
/* Returns `status`, or NIB_IO if another process changed the file of the tables. */
nib_status nib__tokenizer_read(const nib_tokenizer *t, nib_status status, nib_err *err);
/* Builds the tables of a tokenizer.json and writes them; *bytes: how large they are. */
nib_status nib__tokenizer_write_tables(const char *tables, const char *path, const char *config,
                                       uint64_t *bytes, const nib_allocator *a, nib_err *err);

/* ---- a vocabulary as GGUF files hold it ---- */

typedef struct nib_vocab_text {
    const char *at; /* NULL: the key is not there */
    size_t size;
} nib_vocab_text;

typedef enum nib_said { NIB_UNSAID, NIB_SAID_NO, NIB_SAID_YES } nib_said;

/* Values of the keys "tokenizer.ggml.*" that ids depend on; none need stay. An array that is not
 * there is NULL, an id -1. */
typedef struct nib_vocab_source {
    const char *name; /* of the file, for messages */
    nib_vocab_text model, pre;
    const nib_vocab_text *tokens; /* [token_count] by id */
    const float *scores;          /* [score_count] by id */
    const int32_t *types;         /* [type_count] by id: token_type */
    const nib_vocab_text *merges; /* [merge_count] "left right" in order of rank */
    size_t token_count, score_count, type_count, merge_count;
    int64_t bos, eos, unk; /* as stored: 4294967295 is none, too */
    nib_said add_bos, add_eos, add_space_prefix, remove_extra_whitespaces;
    bool has_charsmap; /* precompiled_charsmap */
} nib_vocab_source;

/* Opens what encodes and decodes as the tokenizer.json of the same vocabulary. Models "gpt2"
 * (byte-level, cut into words as `pre` names) and "llama" (pieces by score, byte fallback); others
 * are NIB_UNSUPPORTED by name, and so is a `pre` that is not known or, for "gpt2", not there. */
nib_status nib__tokenizer_from_vocab(nib_tokenizer **out, const nib_vocab_source *source,
                                     const nib_allocator *a, nib_err *err);
/* The way back, for a model of so many rows: views into the tokenizer and the arena. Unsupported
 * where GGUF's keys cannot say how this tokenizer cuts or prepares a text; notes (ledger may be
 * NULL) where only marginal texts would get other ids. */
nib_status nib__tokenizer_to_vocab(nib_vocab_source *out, const nib_tokenizer *t, const char *name,
                                   int64_t rows, nib_arena *arena, nib_ledger *ledger,
                                   nib_err *err);

/* Largest id + 1, added tokens included. There may be gaps: ids without a token. */
int64_t nib__tokenizer_vocab_size(const nib_tokenizer *t);
/* What it holds in memory, but for compiled expressions. */
uint64_t nib__tokenizer_bytes(const nib_tokenizer *t);
/* Id of BOS or EOS; -1: the files name none. */
int32_t nib__tokenizer_bos(const nib_tokenizer *t);
int32_t nib__tokenizer_eos(const nib_tokenizer *t);
/* True if NIB_ENCODE_ADD_SPECIAL puts BOS first. */
bool nib__tokenizer_adds_bos(const nib_tokenizer *t);
/* How many tokens NIB_ENCODE_ADD_SPECIAL puts before the text. */
size_t nib__tokenizer_adds_before(const nib_tokenizer *t);
/* Id of a token as the file writes it (byte-level text for byte-level tokenizers); -1: none. */
int32_t nib__tokenizer_find(const nib_tokenizer *t, const char *token, size_t size);
/* A token as the file writes it, not NUL-terminated; NULL: no such id. */
const char *nib__tokenizer_token(const nib_tokenizer *t, int32_t id, size_t *size);
bool nib__tokenizer_is_special(const nib_tokenizer *t, int32_t id);

/* Ids of a text, which must be valid UTF-8 (else NIB_BAD_INPUT names the byte); U+0000 is a
 * character like others. *ids comes from the tokenizer's allocator and is released by
 * nib__tokenizer_ids_free. */
nib_status nib__tokenizer_encode(const nib_tokenizer *t, const char *text, size_t size,
                                 unsigned flags, int32_t **ids, size_t *count, nib_err *err);
void nib__tokenizer_ids_free(const nib_tokenizer *t, int32_t *ids);
typedef struct nib_encoding {
    unsigned flags;
    /* Parts that came from a user: there no special token is recognized, whatever the flags say.
     * [marked_count] in order, apart; the text is not cut where they end. */
    const nib_byte_range *marked;
    size_t marked_count;
    size_t max_ids;  /* encoding stops at one id more than this; 0: no limit */
    size_t max_word; /* bytes; a longer word or run of spaces is NIB_BAD_INPUT; 0: no limit */
} nib_encoding;

/* As nib__tokenizer_encode, with limits. A word needs up to 44 bytes of memory per byte; max_word
 * bounds that and max_ids the ids, so only the normalized text still grows with the text. */
nib_status nib__tokenizer_encode_as(const nib_tokenizer *t, const char *text, size_t size,
                                    const nib_encoding *how, int32_t **ids, size_t *count,
                                    nib_err *err);
/* As nib__tokenizer_encode, and how many candidate merges were looked at (for tests of cost). */
nib_status nib__tokenizer_encode_steps(const nib_tokenizer *t, const char *text, size_t size,
                                       unsigned flags, int32_t **ids, size_t *count,
                                       uint64_t *steps, nib_err *err);

/* Appends the text of the ids. It is always valid UTF-8: bytes that make no code point, and ids
 * without a token, become U+FFFD. With skip_special, special tokens give nothing. */
nib_status nib__tokenizer_decode(const nib_tokenizer *t, const int32_t *ids, size_t count,
                                 bool skip_special, nib_text *out, nib_err *err);

/* Appends the bytes that one id stands for inside a text, which need be no whole code points;
 * nothing for a special token and for an id without a token. */
nib_status nib__tokenizer_spell(const nib_tokenizer *t, int32_t id, nib_text *out, nib_err *err);

/* ---- decoding as ids come: whole code points only ---- */

/* All pieces that _put and _finish append, one after the other, are what nib__tokenizer_decode
 * gives. */
typedef struct nib_detok {
    const nib_tokenizer *tokenizer;
    bool skip_special;
    bool begun;         /* a token was put */
    bool wrote;         /* the strip at the start of the text is over */
    size_t stripped;    /* characters taken from the start so far */
    size_t held;        /* characters at the end that may yet have to be stripped */
    uint8_t pending[4]; /* bytes of a code point that is not complete */
    int pending_count;
    bool pending_fallback; /* they came from <0xHH> tokens */
    bool raw;              /* bytes go out as they are, no strip at the ends */
    nib_text work[2];
} nib_detok;

void nib__detok_init(nib_detok *d, const nib_tokenizer *t, bool skip_special);
/* What comes stands behind other text: the space that decoders take from the start of one stays. */
void nib__detok_continue(nib_detok *d);
void nib__detok_put(nib_detok *d, int32_t id, nib_text *out);
/* Ends the text: what is pending becomes U+FFFD. The next id begins a new text. */
void nib__detok_finish(nib_detok *d, nib_text *out);
void nib__detok_free(nib_detok *d);
/* A token as it is behind others: with the space that the first one of a text may lose. */
void nib__token_text(const nib_tokenizer *t, int32_t id, nib_text *out);

#endif
