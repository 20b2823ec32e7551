/* SPDX-License-Identifier: Apache-2.0
 *
 * What a tokenizer is made of, for the files of this folder only.
 *
 * Encoding goes one way: text, split at added tokens (added_tokens.c), normalized (normalize.c),
 * cut into words by a chain of stages (pretokenize.c), each word merged into ids (bpe.c), and what
 * the post-processor adds put around them (tokenizer.c). Decoding is detokenize.c. The tables are
 * filled once by tokenizer_load.c and components_load.c and do not change afterwards; what a call
 * needs besides is in its nib_encoder.
 */
#ifndef NIB_TOKENIZER_PARTS_H
#define NIB_TOKENIZER_PARTS_H

#include "file.h"
#include "json.h"
#include "tokenizer.h"

#include <oniguruma.h>

enum {
    NIB_TOKENIZER_MERGES = 4 * 1024 * 1024,
    NIB_TOKENIZER_PARTS = 64,       /* components of one kind, Sequences flattened */
    NIB_TOKENIZER_NESTING = 16,     /* Sequences inside Sequences */
    NIB_TOKENIZER_PATTERNS = 32768, /* bytes of all regular expressions of a file */
    NIB_TOKENIZER_ADDED = 512,      /* bytes of one added token, which bounds the search for them */
    /* Slots looked at before a hash table counts as attacked: with an honest hash, 4 M entries and
     * a load of at most 2/3, the longest run is near 200. */
    NIB_TOKENIZER_RUN = 1024,
};

/* ---- vocabulary (vocab.c) ---- */

/* Where the text of an id lies in nib_vocab.bytes; the top bits of `size` are flags. 0: no such id.
 */
typedef struct nib_token_text {
    uint32_t offset, size;
} nib_token_text;

#define NIB_TOKEN_PRESENT UINT32_C(0x80000000)
#define NIB_TOKEN_SPECIAL UINT32_C(0x40000000)
#define NIB_TOKEN_NORMAL                                                                           \
    UINT32_C(0x20000000)                        /* an added token whose normalized text is another \
                                                 */
#define NIB_TOKEN_VERBATIM UINT32_C(0x10000000) /* no characters that stand for bytes */
#define NIB_TOKEN_SIZE UINT32_C(0x0fffffff)

/* Open addressing from text to id; slots hold 32 bits of the hash and id + 1, 0 where empty. */
typedef struct nib_token_slot {
    uint32_t hash, id_1;
} nib_token_slot;

typedef struct nib_token_index {
    nib_token_slot *slots; /* [capacity], a power of two */
    size_t capacity, count;
} nib_token_index;

typedef struct nib_vocab {
    char *bytes; /* all texts, one after the other */
    size_t bytes_size, bytes_capacity;
    nib_token_text *texts; /* [text_count] by id */
    size_t text_count, text_capacity;
    nib_token_index model, added; /* kept apart: an added token is no word of the model's */
    bool mapped; /* bytes and model.slots lie in a file of tables: nothing can be added to them */
} nib_vocab;

/* A text that is in both indexes gets one id; without an index (NULL) it can be decoded and not be
 * found. NIB_BAD_INPUT: the id or the text is taken. */
nib_status nib__vocab_put(nib_vocab *v, nib_token_index *index, const char *text, size_t size,
                          int64_t id, const nib_allocator *a, nib_err *err);
int32_t nib__vocab_find(const nib_vocab *v, const nib_token_index *index, const char *text,
                        size_t size);
const char *nib__vocab_text(const nib_vocab *v, int64_t id, size_t *size); /* NULL: no such id */
void nib__vocab_free(nib_vocab *v, const nib_allocator *a);

NIB_INLINE bool nib__vocab_special(const nib_vocab *v, int64_t id)
{
    return (v->texts[id].size & NIB_TOKEN_SPECIAL) != 0;
}

/* ---- merges (bpe.c) ---- */

typedef struct nib_merge {
    uint32_t left, right, rank, id; /* left UINT32_MAX: an empty slot */
} nib_merge;

typedef struct nib_bpe {
    nib_merge *slots; /* [1 << bits], open addressing by (left, right) */
    int bits;
    bool mapped; /* slots lie in a file of tables */
    int32_t unk; /* -1: none */
    bool fuse_unk, byte_fallback, ignore_merges;
    bool cut;                  /* words are long, so they are cut where no merge can reach across */
    bool makes_special;        /* some merge gives a special token */
    int32_t characters[0x800]; /* id of a code point of up to two bytes, -1: none */
    int32_t bytes[256];        /* id of <0xHH> */
    uint64_t joins[4096];      /* bits by hash of two characters: some merge joins them */
} nib_bpe;

/* list[count] in order of rank; a pair that comes twice has the later rank. long_words: no stage
 * cuts a text into words. */
nib_status nib__bpe_build(nib_bpe *b, const nib_vocab *v, const nib_merge *list, size_t count,
                          bool long_words, const nib_allocator *a, nib_err *err);
/* The same from a table of merges that was built before, which stays where it is, and with its
 * joins; NIB_BAD_INPUT: it leads out of the vocabulary, or has no end. */
nib_status nib__bpe_adopt(nib_bpe *b, const nib_vocab *v, const nib_merge *slots, int bits,
                          const uint64_t *joins, bool long_words, nib_err *err);
void nib__bpe_free(nib_bpe *b, const nib_allocator *a);

/* ---- pre-tokenizers by name (pre_names.c) ---- */

enum {
    NIB_PRE_NFC = 1,           /* the text is normalized first */
    NIB_PRE_IGNORE_MERGES = 2, /* a word that is a token is not merged together */
    NIB_PRE_ADD_BOS = 4,       /* unless the file says */
};

typedef struct nib_pre {
    const char *name;
    const char *const *patterns; /* each cuts what the one before left; NULL ends them */
    unsigned flags;
} nib_pre;

const nib_pre *nib__pre_find(const char *name, size_t size); /* NULL: not known */
const nib_pre *nib__pre_at(size_t i);                        /* NULL after the last */
extern const char nib__gpt2_pattern[];

/* ---- regular expressions (text_regex.c) ---- */

typedef struct nib_text_regex {
    regex_t *compiled;
    char *pattern; /* for messages */
} nib_text_regex;

nib_status nib__text_regex_open(nib_text_regex *out, const char *pattern, size_t size,
                                nib_arena *arena, nib_err *err);
void nib__text_regex_close(nib_text_regex *regex);

/* What searches of one call share. */
typedef struct nib_regex_run {
    OnigMatchParam *param;
    OnigRegion *region;
    uint64_t deadline, searches;
    size_t max_word; /* bytes; 0: no limit */
} nib_regex_run;

nib_status nib__regex_run_open(nib_regex_run *run, size_t text_size, size_t max_word, nib_err *err);
void nib__regex_run_close(nib_regex_run *run);

/* A way to find matches in a text: a regular expression, a string, or a class of characters, each
 * of which is then a match of its own. */
typedef enum nib_finder_kind {
    NIB_FIND_REGEX,
    NIB_FIND_STRING,
    NIB_FIND_NUMERIC,
    NIB_FIND_PUNCTUATION,
    NIB_FIND_SPACE,
    NIB_FIND_WORDS, /* runs of word characters, and runs of what is neither word nor space */
} nib_finder_kind;

typedef struct nib_finder {
    nib_finder_kind kind;
    nib_text_regex regex;
    const char *string;
    size_t size;
} nib_finder;

typedef struct nib_match {
    size_t start, end;
} nib_match;

/* Walks over the matches in order: *from and *last are the caller's, 0 and SIZE_MAX before the
 * first. An empty match right after the last match is passed over. *found false: no more. */
nib_status nib__find_next(const nib_finder *finder, nib_regex_run *run, const char *text,
                          size_t size, size_t *from, size_t *last, nib_match *match, bool *found,
                          nib_err *err);

bool nib__is_space(uint32_t point);     /* Unicode White_Space */
bool nib__is_word_char(uint32_t point); /* what \w is in Unicode regular expressions */

/* ---- components ---- */

typedef enum nib_normalizer_kind {
    NIB_NORMAL_NFC,
    NIB_NORMAL_NFD,
    NIB_NORMAL_NFKC,
    NIB_NORMAL_NFKD,
    NIB_NORMAL_LOWERCASE,
    NIB_NORMAL_STRIP,
    NIB_NORMAL_STRIP_ACCENTS,
    NIB_NORMAL_PREPEND,
    NIB_NORMAL_REPLACE,
    NIB_NORMAL_BYTES,
} nib_normalizer_kind;

typedef struct nib_normalizer {
    nib_normalizer_kind kind;
    nib_finder finder;   /* REPLACE */
    const char *content; /* PREPEND, REPLACE */
    size_t content_size;
    bool left, right; /* STRIP */
} nib_normalizer;

typedef enum nib_stage_kind {
    NIB_STAGE_SPLIT,
    NIB_STAGE_PREFIX,    /* a space before the text, unless it has one */
    NIB_STAGE_METASPACE, /* spaces become `content`; the same before the text, as `prepend` says */
    NIB_STAGE_BYTES,     /* each byte becomes the character that stands for it */
} nib_stage_kind;

typedef enum nib_behavior {
    NIB_SPLIT_ISOLATED,
    NIB_SPLIT_REMOVED,
    NIB_SPLIT_MERGED_WITH_PREVIOUS,
    NIB_SPLIT_MERGED_WITH_NEXT,
    NIB_SPLIT_CONTIGUOUS,
} nib_behavior;

typedef enum nib_prepend { NIB_PREPEND_ALWAYS, NIB_PREPEND_FIRST, NIB_PREPEND_NEVER } nib_prepend;

typedef struct nib_stage {
    nib_stage_kind kind;
    nib_finder finder; /* SPLIT */
    nib_behavior behavior;
    bool invert;
    const char *content; /* METASPACE */
    size_t content_size;
    nib_prepend prepend;
} nib_stage;

typedef enum nib_decoder_kind {
    NIB_DECODE_BYTES,
    NIB_DECODE_FALLBACK,
    NIB_DECODE_METASPACE,
    NIB_DECODE_FUSE,
    NIB_DECODE_REPLACE,
    NIB_DECODE_STRIP,
} nib_decoder_kind;

typedef struct nib_decoder {
    nib_decoder_kind kind;
    nib_finder finder;   /* REPLACE */
    const char *content; /* REPLACE; METASPACE and STRIP: the character */
    size_t content_size;
    size_t start, stop; /* STRIP */
    bool whole;         /* STRIP: of the whole text, after Fuse, not of each token */
    bool prepended;     /* METASPACE: the first token's is not part of the text */
} nib_decoder;

/* ---- added tokens (added_tokens.c) ---- */

typedef struct nib_added {
    const char *content; /* as written */
    size_t size;
    const char *match; /* what is looked for: normalized if `normalized` */
    size_t match_size;
    int64_t id;
    bool special, single_word, lstrip, rstrip, normalized;
} nib_added;

/* A trie over bytes; edges in open addressing by (node, byte). */
typedef struct nib_trie_edge {
    uint32_t key_1; /* (node << 8 | byte) + 1; 0: empty */
    uint32_t node;
} nib_trie_edge;

typedef struct nib_trie {
    nib_trie_edge *edges;
    size_t capacity, count;
    uint32_t *tokens; /* [node_count]: index in added + 1; 0: no token ends here */
    size_t node_count, node_capacity;
    bool starts[256];
} nib_trie;

/* The text of an added token as it was found in a text, by which it is decoded. */
const char *nib__added_match(const nib_tokenizer *t, int64_t id, size_t *size);

nib_status nib__trie_build(nib_trie *trie, const nib_added *added, size_t count, bool normalized,
                           const nib_allocator *a, nib_err *err);
void nib__trie_free(nib_trie *trie, const nib_allocator *a);

/* ---- the whole ---- */

struct nib_tokenizer {
    nib_allocator allocator;
    nib_arena arena;
    nib_map map; /* of tables that were built before; empty: they were built here */
    const char *map_path;
    nib_vocab vocab;
    nib_bpe bpe;
    nib_added *added; /* [added_count] */
    size_t added_count, added_capacity;
    nib_trie plain, normal; /* of tokens looked for before and after the normalizer */
    nib_normalizer normalizers[NIB_TOKENIZER_PARTS];
    nib_stage stages[NIB_TOKENIZER_PARTS];
    nib_decoder decoders[NIB_TOKENIZER_PARTS];
    size_t normalizer_count, stage_count, decoder_count;
    bool has_decoder, has_processor;
    int32_t *before, *after; /* what the post-processor adds */
    size_t before_count, after_count;
    int32_t bos, eos;
};

/* ---- one call ---- */

typedef struct nib_symbol {
    uint32_t id; /* UINT32_MAX: merged into the one before */
    int32_t previous, next;
} nib_symbol;

/* A pair that could be merged: rank << 32 | position, so that the least comes first. */
typedef struct nib_next_merge {
    uint64_t key;
    uint32_t id;
} nib_next_merge;

typedef struct nib_word nib_word;

typedef struct nib_encoder {
    const nib_tokenizer *t;
    nib_err *err;
    bool parse_special, drop_unknown;
    bool special_words; /* the model itself may make special tokens, too: of no user's bytes */
    nib_regex_run run;
    uint64_t made, made_limit; /* bytes that normalizers and stages wrote */
    nib_text normal[2];
    /* Of a text with parts from a user: 1 for each such byte; NULL: none. marks is of the whole
     * text, piece_marks of the piece that is encoded, normalized once it is. */
    char *marks;
    const char *piece_marks;
    nib_text normal_marks[2];
    nib_text stage[NIB_TOKENIZER_PARTS];
    int32_t *ids;
    size_t count, capacity, max_ids; /* 0: no limit */
    bool full;                       /* NIB_CANCELLED came from this limit */
    size_t max_word;                 /* bytes; 0: no limit */
    nib_symbol *symbols;
    size_t symbol_count, symbol_capacity;
    nib_next_merge *heap;
    size_t heap_count, heap_capacity;
    nib_word *words; /* [word_count] of recent words, a power of two; NULL: none */
    size_t word_count;
    uint64_t steps;
} nib_encoder;

nib_status nib__encoder_open(nib_encoder *e, const nib_tokenizer *t, size_t text_size,
                             const nib_encoding *how, nib_err *err);
void nib__encoder_close(nib_encoder *e);
/* Appends; NIB_CANCELLED: that was one more than max_ids. */
nib_status nib__encoder_id(nib_encoder *e, int64_t id);
nib_status nib__fail_word(size_t most, nib_err *err);
/* A stage or normalizer wrote text: counts it, and sees that memory sufficed. */
nib_status nib__encoder_made(nib_encoder *e, const nib_text *text, size_t size, const char *what);

/* Room for the recent words of a text of that many bytes. */
nib_status nib__bpe_cache_open(nib_encoder *e, size_t text_size);
/* Ids of one word. */
nib_status nib__bpe_word(nib_encoder *e, const char *text, size_t size);

/* *out is text itself, or lies in e->normal; e->piece_marks follows it. */
nib_status nib__normalize(nib_encoder *e, const char *text, size_t size, const char **out,
                          size_t *out_size);
/* Puts a byte as the character that stands for it in byte-level tokenizers (1 or 2 bytes). */
void nib__byte_level_put(nib_text *out, const char *text, size_t size);
/* The byte that a code point stands for; -1: none. */
int nib__byte_level_byte(uint32_t point);

/* Cuts the text into words, from stage `first` on; at_start: it is where the whole text starts. */
nib_status nib__pretokenize(nib_encoder *e, const char *text, size_t size, bool at_start);

/* The next added token at or after *from: its index, and the bytes it takes with its spaces; -1:
 * none. No special token has a byte that is marked; marks NULL: none is. */
int64_t nib__added_next(const nib_tokenizer *t, const nib_trie *trie, const char *text, size_t size,
                        bool parse_special, const char *marks, size_t done, size_t *from,
                        nib_match *match);

/* ---- loading ---- */

typedef struct nib_json_slice {
    const char *at; /* NULL: none */
    size_t size;
} nib_json_slice;

typedef struct nib_loader {
    nib_tokenizer *t;
    nib_named_text file;
    nib_arena scratch;    /* until the tokenizer is whole */
    size_t pattern_bytes; /* of the regular expressions so far */
    unsigned parts_seen;  /* a bit for each component of the file */
    nib_err *err;
} nib_loader;

/* A value of the file as a reader of its own; its errors still name the line of the file. */
void nib__loader_reader(const nib_loader *loader, nib_json *json, nib_json_slice slice);
/* The value that comes next, skipped; false: json->err says why. */
bool nib__loader_slice(nib_json *json, nib_json_slice *slice);
nib_status nib__loader_unsupported(const nib_loader *loader, const char *format, ...)
    NIB_PRINTF(2, 3);

/* Appends one stage; for _split, one that cuts at the matches of a regular expression. */
nib_status nib__loader_stage(nib_loader *loader, const nib_stage *stage);
nib_status nib__loader_split(nib_loader *loader, const char *pattern);

/* One component and, for a Sequence, all inside it (components_load.c, processor_load.c). */
nib_status nib__load_normalizer(nib_loader *loader, nib_json_slice slice, int nesting);
nib_status nib__load_pre_tokenizer(nib_loader *loader, nib_json_slice slice, int nesting);
nib_status nib__load_decoder(nib_loader *loader, nib_json_slice slice, int nesting);
nib_status nib__load_processor(nib_loader *loader, nib_json_slice slice, int nesting);
/* Puts ids before and after what the post-processors so far give. */
nib_status nib__processor_wrap(nib_loader *loader, const int32_t *before, size_t before_count,
                               const int32_t *after, size_t after_count);

/* What merges are joined from: a list in order of rank, or a table that was built of one. */
typedef struct nib_merge_source {
    const nib_merge *list; /* [count] */
    size_t count;
    const nib_merge *slots; /* [1 << bits]; NULL: the list counts */
    int bits;
    const uint64_t *joins;
} nib_merge_source;

/* Added tokens, merges and all else that was loaded, joined into what encodes (tokenizer_load.c).
 */
nib_status nib__loader_join(nib_loader *loader, const nib_merge_source *merges);

/* The model of the file (bpe_load.c). */
typedef struct nib_merge_list {
    nib_merge *at; /* [count] in order of rank */
    size_t count, capacity;
} nib_merge_list;

typedef struct nib_model_part {
    char *unk; /* NULL: none */
    size_t unk_size;
    bool has_vocab, has_merges;
    nib_json_slice late_merges; /* merges that came before the vocabulary */
    nib_merge_list merges;
    nib_text joined; /* the token that a merge makes */
} nib_model_part;

nib_status nib__load_model_part(nib_loader *loader, nib_json *json, nib_model_part *m);
/* The whole file, part by part; then all of it joined, with the configuration (NULL: none). */
nib_status nib__load_file(nib_loader *loader, nib_model_part *m);
nib_status nib__loader_build(nib_loader *loader, const nib_named_text *config,
                             const nib_model_part *m, const nib_merge_source *merges);
/* Appends one, or the one that is written "left right" with the next rank; err gets a sentence
 * without the file's name. */
nib_status nib__merges_push(nib_model_part *m, const nib_tokenizer *t, const nib_merge *merge,
                            nib_err *err);
nib_status nib__merges_add(nib_model_part *m, const nib_tokenizer *t, const char *text, size_t size,
                           nib_err *err);
/* What went wrong: the reader's error, or one that is in loader->err already. */
nib_status nib__loader_status(nib_loader *loader, const nib_json *json);

/* An empty tokenizer and what loading it needs; closing gives it away, or frees it if status says
 * that it is not whole. */
nib_status nib__loader_open(nib_loader *loader, nib_model_part *m, const nib_named_text *file,
                            const nib_allocator *a, nib_err *err);
nib_status nib__loader_close(nib_loader *loader, nib_model_part *m, nib_status status,
                             nib_tokenizer **out);

/* What tokenizer_config.json says, for the end of loading (tokenizer_config.c). */
typedef struct nib_tokenizer_config {
    const char *bos, *eos; /* NULL: not named */
    size_t bos_size, eos_size;
    bool add_bos, add_eos;
} nib_tokenizer_config;

nib_status nib__load_tokenizer_config(nib_loader *loader, nib_tokenizer_config *config);
/* Reads the fields of one added token; the reader is past its `{`. */
nib_status nib__load_added_token(nib_loader *loader, nib_json *json, nib_added *added);
nib_status nib__loader_add(nib_loader *loader, const nib_added *added);

#endif
