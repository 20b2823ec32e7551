/* SPDX-License-Identifier: Apache-2.0
 *
 * The internals of a tokenizer, for the files of this folder only.
 *
 * Encoding is a pipeline: the text is split at added tokens (added_tokens.c), normalized
 * (normalize.c) and cut into words by a chain of stages (pretokenize.c); each word is merged into
 * ids (bpe.c), and the tokens of the post-processor are added around them (tokenizer.c). Decoding
 * is detokenize.c. tokenizer_load.c and components_load.c fill the tables, which never change
 * afterwards; the state of one call is its nib_encoder.
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
    NIB_TOKENIZER_ADDED = 512,      /* bytes of one added token; bounds the cost of finding it */
    /* Longest probe before a hash table counts as attacked. With a good hash, 4 M entries and a
     * load of at most 2/3, the longest run is near 200. */
    NIB_TOKENIZER_RUN = 1024,
};

/* ---- vocabulary (vocab.c) ---- */

/* The text of an id in nib_vocab.bytes; the top bits of `size` are flags. size 0: no such id. */
typedef struct nib_token_text {
    uint32_t offset, size;
} nib_token_text;

#define NIB_TOKEN_PRESENT UINT32_C(0x80000000)
#define NIB_TOKEN_SPECIAL UINT32_C(0x40000000)
#define NIB_TOKEN_NORMAL UINT32_C(0x20000000)   /* an added token changed by normalization */
#define NIB_TOKEN_VERBATIM UINT32_C(0x10000000) /* its characters do not stand for bytes */
#define NIB_TOKEN_SIZE UINT32_C(0x0fffffff)

/* Open addressing from text to id. A slot holds 32 bits of the hash, and id + 1 or 0 if empty. */
typedef struct nib_token_slot {
    uint32_t hash, id_1;
} nib_token_slot;

typedef struct nib_token_index {
    nib_token_slot *slots; /* [capacity], a power of two */
    size_t capacity, count;
} nib_token_index;

typedef struct nib_vocab {
    char *bytes; /* all texts, concatenated */
    size_t bytes_size, bytes_capacity;
    nib_token_text *texts; /* [text_count] by id */
    size_t text_count, text_capacity;
    nib_token_index model, added; /* separate: the model must not merge into an added token */
    bool mapped; /* bytes and model.slots are in a mapped file of tables and cannot grow */
} nib_vocab;

/* A text in both indexes must have the same id. index NULL: the id only decodes; the text is not
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
    bool mapped; /* slots are in a mapped file of tables */
    int32_t unk; /* -1: none */
    bool fuse_unk, byte_fallback, ignore_merges;
    bool cut;                  /* words are long: cut them where no merge can join the sides */
    bool makes_special;        /* some merge makes a special token */
    int32_t characters[0x800]; /* id of a code point of up to two bytes, -1: none */
    int32_t bytes[256];        /* id of <0xHH> */
    uint64_t joins[4096];      /* bits by hash of two characters: some merge joins them */
} nib_bpe;

/* list[count] in order of rank; a repeated pair gets its last rank. long_words: no stage splits a
 * text into words. */
nib_status nib__bpe_build(nib_bpe *b, const nib_vocab *v, const nib_merge *list, size_t count,
                          bool long_words, const nib_allocator *a, nib_err *err);
/* The same from a prebuilt table of merges, which is used in place, and its joins. NIB_BAD_INPUT:
 * an id is out of range, or a probe would not end. */
nib_status nib__bpe_use_table(nib_bpe *b, const nib_vocab *v, const nib_merge *slots, int bits,
                              const uint64_t *joins, bool long_words, nib_err *err);
void nib__bpe_free(nib_bpe *b, const nib_allocator *a);
/* All merges by rank, of one rank by their left side. */
nib_status nib__bpe_list(nib_merge **out, size_t *count, const nib_bpe *b, nib_arena *arena,
                         nib_err *err);

/* ---- pre-tokenizers by name (pre_names.c) ---- */

enum {
    NIB_PRE_NFC = 1,           /* normalize the text to NFC first */
    NIB_PRE_IGNORE_MERGES = 2, /* a word that is a token becomes it without merging */
    NIB_PRE_ADD_BOS = 4,       /* unless the file decides */
};

typedef struct nib_pre {
    const char *name;
    const char *const *patterns; /* each splits the pieces of the previous one; NULL-terminated */
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

/* State that the searches of one call share. */
typedef struct nib_regex_run {
    OnigMatchParam *param;
    OnigRegion *region;
    uint64_t deadline, searches;
    size_t max_word; /* bytes; 0: no limit */
} nib_regex_run;

nib_status nib__regex_run_open(nib_regex_run *run, size_t text_size, size_t max_word, nib_err *err);
void nib__regex_run_close(nib_regex_run *run);

/* Finds matches in a text: of a regular expression, of a string, or of a class of characters, where
 * each character is one match. */
typedef enum nib_finder_kind {
    NIB_FIND_REGEX,
    NIB_FIND_STRING,
    NIB_FIND_NUMERIC,
    NIB_FIND_PUNCTUATION,
    NIB_FIND_SPACE,
    NIB_FIND_WORDS, /* runs of word characters, and runs of other characters but spaces */
} nib_finder_kind;

typedef struct nib_finder {
    nib_finder_kind kind;
    nib_text_regex regex;
    const char *string;
    size_t size;
} nib_finder;

typedef struct nib_text_range {
    size_t start, end;
} nib_text_range;

/* Iterates over the matches in order. The caller keeps *from and *last, initially 0 and SIZE_MAX.
 * Skips an empty match right after the previous match. *found false: no more. */
nib_status nib__find_next(const nib_finder *finder, nib_regex_run *run, const char *text,
                          size_t size, size_t *from, size_t *last, nib_text_range *match,
                          bool *found, nib_err *err);

bool nib__is_space(uint32_t point);     /* Unicode White_Space */
bool nib__is_word_char(uint32_t point); /* \w of Unicode regular expressions */

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
    NIB_STAGE_PREFIX,    /* put a space before the text unless it starts with one */
    NIB_STAGE_METASPACE, /* replace spaces by `content`; put one before the text per `prepend` */
    NIB_STAGE_BYTES,     /* replace each byte by the character that stands for it */
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
    bool prepended;     /* METASPACE: the encoder added the space of the first token; remove it */
} nib_decoder;

/* ---- added tokens (added_tokens.c) ---- */

typedef struct nib_added {
    const char *content; /* as written */
    size_t size;
    const char *match; /* the text to search for: normalized if `normalized` */
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

/* The text that an added token matches, to which it decodes. */
const char *nib__added_match(const nib_tokenizer *t, int64_t id, size_t *size);

nib_status nib__trie_build(nib_trie *trie, const nib_added *added, size_t count, bool normalized,
                           const nib_allocator *a, nib_err *err);
void nib__trie_free(nib_trie *trie, const nib_allocator *a);

/* ---- the tokenizer ---- */

struct nib_tokenizer {
    nib_allocator allocator;
    nib_arena arena;
    nib_map map; /* of prebuilt tables; empty if the tables were built at load */
    const char *map_path;
    nib_vocab vocab;
    nib_bpe bpe;
    nib_added *added; /* [added_count] */
    size_t added_count, added_capacity;
    nib_trie plain, normal; /* added tokens matched before and after the normalizer */
    nib_normalizer normalizers[NIB_TOKENIZER_PARTS];
    nib_stage stages[NIB_TOKENIZER_PARTS];
    nib_decoder decoders[NIB_TOKENIZER_PARTS];
    size_t normalizer_count, stage_count, decoder_count;
    bool has_decoder, has_processor;
    int32_t *before, *after; /* ids that the post-processor adds */
    size_t before_count, after_count;
    int32_t bos, eos;
};

/* ---- one call ---- */

typedef struct nib_symbol {
    uint32_t id; /* UINT32_MAX: merged into the one before */
    int32_t previous, next;
} nib_symbol;

/* A candidate merge: rank << 32 | position, so that the smallest key comes first. */
typedef struct nib_next_merge {
    uint64_t key;
    uint32_t id;
} nib_next_merge;

typedef struct nib_word nib_word;

typedef struct nib_encoder {
    const nib_tokenizer *t;
    nib_err *err;
    bool parse_special, drop_unknown;
    bool special_words; /* merges may make special tokens: no byte comes from a user */
    nib_regex_run run;
    uint64_t made, made_limit; /* bytes written by normalizers and stages */
    nib_text normal[2];
    /* 1 for each byte of user text; NULL: no user text. marks covers the whole text, piece_marks
     * the piece being encoded, in its current (normalized) form. */
    char *marks;
    const char *piece_marks;
    nib_text normal_marks[2];
    nib_text stage[NIB_TOKENIZER_PARTS];
    int32_t *ids;
    size_t count, capacity, max_ids; /* 0: no limit */
    bool full;                       /* NIB_CANCELLED was returned for max_ids */
    size_t max_word;                 /* bytes; 0: no limit */
    nib_symbol *symbols;
    size_t symbol_count, symbol_capacity;
    nib_next_merge *heap;
    size_t heap_count, heap_capacity;
    nib_word *words; /* [word_count] cache of recent words, a power of two; NULL: none */
    size_t word_count;
    uint64_t steps;
} nib_encoder;

nib_status nib__encoder_open(nib_encoder *e, const nib_tokenizer *t, size_t text_size,
                             const nib_encoding *how, nib_err *err);
void nib__encoder_close(nib_encoder *e);
/* Appends an id; NIB_CANCELLED if there are now more than max_ids. */
nib_status nib__encoder_add_id(nib_encoder *e, int64_t id);
nib_status nib__fail_word(size_t most, nib_err *err);
/* Counts text that a stage or normalizer wrote; fails if memory or the limit ran out. */
nib_status nib__encoder_count_output(nib_encoder *e, const nib_text *text, size_t size,
                                     const char *what);

/* Allocates the cache of recent words for a text of that many bytes. */
nib_status nib__bpe_cache_open(nib_encoder *e, size_t text_size);
/* Appends the ids of one word. */
nib_status nib__bpe_word(nib_encoder *e, const char *text, size_t size);

/* *out is `text` itself or points into e->normal; updates e->piece_marks to match. */
nib_status nib__normalize(nib_encoder *e, const char *text, size_t size, const char **out,
                          size_t *out_size);
/* Appends each byte as the character that stands for it in byte-level tokenizers (1 or 2 bytes). */
void nib__byte_level_put(nib_text *out, const char *text, size_t size);
/* The byte that a code point stands for; -1: none. */
int nib__byte_level_byte(uint32_t point);

/* Cuts the text into words and encodes them; at_start: the whole text starts here. */
nib_status nib__pretokenize(nib_encoder *e, const char *text, size_t size, bool at_start);

/* The index of the next added token at or after *from, or -1; *match: its bytes, with the spaces it
 * takes in. A special token never includes a marked byte; marks NULL: no byte is marked. */
int64_t nib__added_next(const nib_tokenizer *t, const nib_trie *trie, const char *text, size_t size,
                        bool parse_special, const char *marks, size_t done, size_t *from,
                        nib_text_range *match);

/* ---- loading ---- */

typedef struct nib_json_slice {
    const char *at; /* NULL: none */
    size_t size;
} nib_json_slice;

typedef struct nib_loader {
    nib_tokenizer *t;
    nib_named_text file;
    nib_arena scratch;    /* freed when loading ends */
    size_t pattern_bytes; /* of the regular expressions so far */
    unsigned parts_seen;  /* one bit per kind of component */
    nib_err *err;
} nib_loader;

/* Starts a reader on a value of the file; its errors still name the line in the file. */
void nib__loader_reader(const nib_loader *loader, nib_json *json, nib_json_slice slice);
/* Skips the next value and returns its bytes; false: json->err says why. */
bool nib__loader_slice(nib_json *json, nib_json_slice *slice);
nib_status nib__loader_unsupported(const nib_loader *loader, const char *format, ...)
    NIB_PRINTF(2, 3);

/* Appends a stage; _split: one that splits at the matches of a regular expression. */
nib_status nib__loader_stage(nib_loader *loader, const nib_stage *stage);
nib_status nib__loader_split(nib_loader *loader, const char *pattern);

/* Loads a component, including the items of a Sequence (components_load.c, processor_load.c). */
nib_status nib__load_normalizer(nib_loader *loader, nib_json_slice slice, int nesting);
nib_status nib__load_pre_tokenizer(nib_loader *loader, nib_json_slice slice, int nesting);
nib_status nib__load_decoder(nib_loader *loader, nib_json_slice slice, int nesting);
nib_status nib__load_processor(nib_loader *loader, nib_json_slice slice, int nesting);
/* Adds ids outside of those that the earlier post-processors add. */
nib_status nib__processor_wrap(nib_loader *loader, const int32_t *before, size_t before_count,
                               const int32_t *after, size_t after_count);

/* The merges: a list in order of rank, or a table prebuilt from one. */
typedef struct nib_merge_source {
    const nib_merge *list; /* [count] */
    size_t count;
    const nib_merge *slots; /* [1 << bits]; NULL: use the list */
    int bits;
    const uint64_t *joins;
} nib_merge_source;

/* Builds the encoding tables from all that was loaded (tokenizer_load.c). */
nib_status nib__loader_join(nib_loader *loader, const nib_merge_source *merges);

/* The "model" of tokenizer.json (bpe.c). */
typedef struct nib_merge_list {
    nib_merge *at; /* [count] in order of rank */
    size_t count, capacity;
} nib_merge_list;

typedef struct nib_model_part {
    char *unk; /* NULL: none */
    size_t unk_size;
    bool has_vocab, has_merges;
    nib_json_slice late_merges; /* merges listed before the vocabulary, read after it */
    nib_merge_list merges;
    nib_text joined; /* the token that a merge makes */
} nib_model_part;

nib_status nib__load_model_part(nib_loader *loader, nib_json *json, nib_model_part *m);
/* Loads all parts of the file; then builds the tables, with tokenizer_config.json (NULL: none). */
nib_status nib__load_file(nib_loader *loader, nib_model_part *m);
nib_status nib__loader_build(nib_loader *loader, const nib_named_text *config,
                             const nib_model_part *m, const nib_merge_source *merges);
/* Appends a merge; _add: one written "left right", with the next rank. The text of err does not
 * name the file. */
nib_status nib__merges_push(nib_model_part *m, const nib_tokenizer *t, const nib_merge *merge,
                            nib_err *err);
nib_status nib__merges_add(nib_model_part *m, const nib_tokenizer *t, const char *text, size_t size,
                           nib_err *err);
/* The reader's error, if any, otherwise the status already in loader->err. */
nib_status nib__loader_status(nib_loader *loader, const nib_json *json);

/* Opens an empty tokenizer and the loader's state. Closing stores the tokenizer in *out, or frees
 * it if `status` is an error, and returns `status`. */
nib_status nib__loader_open(nib_loader *loader, nib_model_part *m, const nib_named_text *file,
                            const nib_allocator *a, nib_err *err);
nib_status nib__loader_close(nib_loader *loader, nib_model_part *m, nib_status status,
                             nib_tokenizer **out);

/* Appends an added token. */
nib_status nib__loader_add(nib_loader *loader, const nib_added *added);

#endif
