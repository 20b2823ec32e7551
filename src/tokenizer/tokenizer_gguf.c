/* SPDX-License-Identifier: Apache-2.0
 *
 * Opens a tokenizer from the vocabulary of a GGUF: fills the same tables as a tokenizer.json, so
 * that the same code encodes with both. gguf_vocab.c reads the arrays from the file.
 *
 * If two ids have the same text, as in some vendors' vocabularies, the first one encodes it and the
 * others only decode.
 */
#include "tokenizer_parts.h"

#include <math.h>
#include <stdlib.h>

enum {
    NONE = -1,
    /* Bytes of a token whose splits into two pieces are all tried. SentencePiece makes at most 16
     * characters by default, and there are runs of some dozens of spaces. */
    LONGEST_PIECE = 256,
    /* Limits on the splits of pieces into two others. Published vocabularies have 2 per piece;
     * SPLITS_MAX of them take 64 MB. */
    SPLITS_PER_PIECE = 4,
    SPLITS_BASE = 64 * 1024,
    SPLITS_MAX = 1250 * 1000,
    ADDED_MAX = 128 * 1024, /* special and user-defined tokens; speech models have some 30,000 */
};

static const char SPACE[] = "\xe2\x96\x81"; /* U+2581, a space in SentencePiece */

/* tokenizer.ggml.token_type */
typedef enum token_type {
    TYPE_UNDEFINED,
    TYPE_NORMAL,
    TYPE_UNKNOWN,
    TYPE_CONTROL,
    TYPE_USER_DEFINED,
    TYPE_UNUSED,
    TYPE_BYTE,
    TYPES
} token_type;

typedef struct reader {
    nib_loader loader;
    const nib_vocab_source *source;
    nib_model_part m;
    bool pieces;   /* "llama" or "gemma4", not "gpt2" */
    bool listed;   /* "gemma4": pieces that merge as listed, not by score */
    uint8_t *type; /* [token_count] token_type */
} reader;

static nib_status fail_inner(const reader *r, const nib_err *inner)
{
    return nib__fail(r->loader.err, inner->status, "%s: %s", r->source->name, inner->text);
}

/* ---- which tokenizer ---- */

static bool text_equals(const nib_vocab_text *text, const char *string)
{
    return text->at != NULL && text->size == strlen(string) &&
           memcmp(text->at, string, text->size) == 0;
}

static nib_status check_model(reader *r)
{
    static const struct {
        const char *model, *what;
    } refused[] = {
        {"bert", "WordPiece"},       {"t5", "unigram"},         {"rwkv", "a trie of words"},
        {"plamo2", "PLaMo 2's own"}, {"none", "no vocabulary"}, {"no_vocab", "no vocabulary"},
    };
    const nib_vocab_text *model = &r->source->model;
    const char *what = "not known";
    char name[80];
    r->listed = text_equals(model, "gemma4");
    r->pieces = r->listed || text_equals(model, "llama");
    if (r->pieces || text_equals(model, "gpt2"))
        return NIB_OK;
    if (model->at == NULL)
        return nib__fail(r->loader.err, NIB_BAD_INPUT,
                         "%s: tokenizer.ggml.model is missing; name a tokenizer with --tokenizer "
                         "FILE or DIR",
                         r->source->name);
    for (size_t i = 0; i < COUNT(refused); i++)
        what = text_equals(model, refused[i].model) ? refused[i].what : what;
    return nib__loader_unsupported(&r->loader,
                                   "tokenizer.ggml.model \"%s\" is %s; supported are gpt2, llama "
                                   "and gemma4, or name the model's "
                                   "tokenizer.json with --tokenizer FILE or DIR",
                                   nib__escape_name(name, sizeof name, model->at, model->size),
                                   what);
}

static nib_status fail_pre(reader *r)
{
    const nib_vocab_text *pre = &r->source->pre;
    char name[40];
    if (pre->at == NULL)
        return nib__loader_unsupported(
            &r->loader, "tokenizer.ggml.pre is missing, and it says how to split words; name the "
                        "model's tokenizer.json with --tokenizer FILE or DIR");
    nib_text known;
    nib__text_init(&known, &r->loader.t->allocator);
    for (size_t i = 0; nib__pre_at(i) != NULL; i++)
        nib__text_format(&known, "%s%s", i == 0 ? "" : " ", nib__pre_at(i)->name);
    const nib_status status = nib__loader_unsupported(
        &r->loader,
        "tokenizer.ggml.pre \"%s\" is not known; name the model's tokenizer.json with --tokenizer "
        "FILE or DIR (known: %s)",
        nib__escape_name(name, sizeof name, pre->at, pre->size), known.failed ? "" : known.at);
    nib__text_free(&known);
    return status;
}

/* ---- tokens ---- */

static nib_status check_arrays(const reader *r)
{
    const nib_vocab_source *s = r->source;
    const struct {
        const char *key;
        const void *at;
        size_t count;
    } arrays[] = {{"scores", s->scores, s->score_count}, {"token_type", s->types, s->type_count}};
    if (s->token_count == 0)
        return nib__fail(r->loader.err, NIB_BAD_INPUT, "%s: tokenizer.ggml.tokens is %s", s->name,
                         s->tokens == NULL ? "missing" : "empty");
    if (s->token_count > NIB_TOKENIZER_IDS)
        return nib__fail(r->loader.err, NIB_UNSUPPORTED,
                         "%s: tokenizer.ggml.tokens has %zu tokens; the limit is %d", s->name,
                         s->token_count, NIB_TOKENIZER_IDS);
    for (size_t i = 0; i < COUNT(arrays); i++)
        if (arrays[i].at != NULL && arrays[i].count < s->token_count)
            return nib__fail(r->loader.err, NIB_BAD_INPUT,
                             "%s: tokenizer.ggml.%s has %zu values for %zu tokens; the file is "
                             "damaged",
                             s->name, arrays[i].key, arrays[i].count, s->token_count);
    return NIB_OK;
}

/* "<0x0A>" */
static bool names_byte(const nib_vocab_text *text)
{
    static const char digits[] = "0123456789ABCDEF";
    return text->size == 6 && memcmp(text->at, "<0x", 3) == 0 && text->at[5] == '>' &&
           memchr(digits, text->at[3], 16) != NULL && memchr(digits, text->at[4], 16) != NULL;
}

static nib_status read_types(reader *r)
{
    const nib_vocab_source *s = r->source;
    r->type = nib__arena_take(&r->loader.scratch, s->token_count, 1);
    if (r->type == NULL)
        return nib__fail_memory(r->loader.err, s->token_count, "the vocabulary");
    for (size_t i = 0; i < s->token_count; i++) {
        const int32_t type = s->types != NULL ? s->types[i] : TYPE_NORMAL;
        if (type < 0 || type >= TYPES)
            return nib__fail(r->loader.err, NIB_BAD_INPUT,
                             "%s: tokenizer.ggml.token_type is %d for token %zu, outside 0 to %d",
                             s->name, type, i, TYPES - 1);
        const bool byte = s->types == NULL && r->pieces && names_byte(&s->tokens[i]);
        r->type[i] = (uint8_t)(byte ? TYPE_BYTE : type);
    }
    return NIB_OK;
}

/* Is the token matched in a text before words are cut? */
static bool is_added(const reader *r, size_t id)
{
    return r->type[id] == TYPE_CONTROL || r->type[id] == TYPE_UNKNOWN ||
           r->type[id] == TYPE_USER_DEFINED;
}

static nib_status add_token(reader *r, size_t id)
{
    nib_tokenizer *t = r->loader.t;
    const nib_vocab_text *text = &r->source->tokens[id];
    nib_token_index *model = &t->vocab.model;
    nib_err inner;
    const size_t valid = nib__utf8_check(text->at, text->size);
    if (valid != text->size)
        return nib__fail(r->loader.err, NIB_BAD_INPUT,
                         "%s: tokenizer.ggml.tokens: token %zu is not valid UTF-8 at byte %zu; the "
                         "file is damaged",
                         r->source->name, id, valid);
    const bool first =
        text->size != 0 && nib__vocab_find(&t->vocab, model, text->at, text->size) < 0;
    if (nib__vocab_put(&t->vocab, first ? model : NULL, text->at, text->size, (int64_t)id,
                       &t->allocator, &inner) != NIB_OK)
        return fail_inner(r, &inner);
    if (!is_added(r, id))
        return NIB_OK;
    const bool special = r->type[id] != TYPE_USER_DEFINED;
    /* DeepSeek Coder adds letters outside the byte alphabet; they stand for themselves. */
    t->vocab.texts[id].size |= NIB_TOKEN_VERBATIM | (special ? NIB_TOKEN_SPECIAL : 0);
    if (!first)
        return NIB_OK;
    if (t->added_count == ADDED_MAX)
        return nib__loader_unsupported(&r->loader,
                                       "tokenizer.ggml.token_type: more than %d tokens are special "
                                       "or user-defined",
                                       ADDED_MAX);
    const nib_added added = {.content = nib__arena_copy(&t->arena, text->at, text->size),
                             .size = text->size,
                             .id = (int64_t)id,
                             .special = special};
    if (added.content == NULL)
        return nib__fail_memory(r->loader.err, text->size, "an added token");
    return nib__loader_add(&r->loader, &added);
}

/* ---- BOS, EOS and unk ---- */

static nib_status read_special_id(const reader *r, const char *key, int64_t stored,
                                  int32_t otherwise, int32_t *id)
{
    const int64_t count = (int64_t)r->source->token_count;
    *id = stored < 0 ? otherwise : (int32_t)nib__min(stored, count);
    if (stored == UINT32_MAX || *id >= count)
        *id = NONE;
    if (stored < count || stored == UINT32_MAX)
        return NIB_OK;
    return nib__fail(r->loader.err, NIB_BAD_INPUT,
                     "%s: tokenizer.ggml.%s is %lld; the ids of the vocabulary are below %lld",
                     r->source->name, key, (long long)stored, (long long)count);
}

/* A model "llama" without these keys has SentencePiece's ids; "gemma4" has none. */
static nib_status read_special_ids(reader *r)
{
    const nib_vocab_source *s = r->source;
    nib_tokenizer *t = r->loader.t;
    int32_t unk;
    const bool usual = r->pieces && !r->listed;
    NIB_TRY(read_special_id(r, "bos_token_id", s->bos, usual ? 1 : NONE, &t->bos));
    NIB_TRY(read_special_id(r, "eos_token_id", s->eos, usual ? 2 : NONE, &t->eos));
    NIB_TRY(read_special_id(r, "unknown_token_id", s->unk, usual ? 0 : NONE, &unk));
    if (r->pieces)
        t->bpe.unk = unk; /* byte-level tokenizers have a token for every byte */
    if (s->types != NULL)
        return NIB_OK;
    if (t->bos >= 0)
        r->type[t->bos] = TYPE_CONTROL;
    if (t->eos >= 0)
        r->type[t->eos] = TYPE_CONTROL;
    if (r->pieces && unk >= 0)
        r->type[unk] = TYPE_UNKNOWN;
    return NIB_OK;
}

/* usual_bos: is BOS added if the file does not say? */
static nib_status add_bos_and_eos(reader *r, bool usual_bos)
{
    const nib_vocab_source *s = r->source;
    const nib_tokenizer *t = r->loader.t;
    const char *missing = NULL;
    if (s->add_eos == NIB_VOCAB_FLAG_TRUE && t->eos < 0)
        missing = "eos";
    if (s->add_bos == NIB_VOCAB_FLAG_TRUE && t->bos < 0)
        missing = "bos";
    if (missing != NULL)
        return nib__fail(r->loader.err, NIB_BAD_INPUT,
                         "%s: tokenizer.ggml.add_%s_token is true, but tokenizer.ggml.%s_token_id "
                         "is missing",
                         s->name, missing, missing);
    const bool bos =
        s->add_bos == NIB_VOCAB_FLAG_TRUE || (s->add_bos == NIB_VOCAB_FLAG_UNSET && usual_bos);
    return nib__processor_wrap(&r->loader, &t->bos, bos && t->bos >= 0, &t->eos,
                               s->add_eos == NIB_VOCAB_FLAG_TRUE);
}

/* ---- merges ---- */

static nib_status read_merges(reader *r)
{
    nib_err inner;
    for (size_t i = 0; i < r->source->merge_count; i++) {
        const nib_vocab_text *merge = &r->source->merges[i];
        if (nib__utf8_check(merge->at, merge->size) != merge->size)
            return nib__fail(r->loader.err, NIB_BAD_INPUT,
                             "%s: tokenizer.ggml.merges: merge %zu is not valid UTF-8",
                             r->source->name, i);
        if (nib__merges_add(&r->m, r->loader.t, merge->at, merge->size, &inner) != NIB_OK)
            return nib__fail(r->loader.err, inner.status, "%s: tokenizer.ggml.merges: %s",
                             r->source->name, inner.text);
    }
    return NIB_OK;
}

typedef struct scored {
    float score;
    uint32_t id;
} scored;

static int by_score(const void *left, const void *right)
{
    const scored *a = left, *b = right;
    if (a->score != b->score)
        return a->score < b->score ? 1 : -1;
    return a->id < b->id ? -1 : a->id > b->id;
}

/* Can merges make the token, and merge it further? */
static bool is_piece(const reader *r, size_t id)
{
    return r->type[id] == TYPE_NORMAL || r->type[id] == TYPE_UNUSED ||
           r->type[id] == TYPE_UNDEFINED || r->type[id] == TYPE_USER_DEFINED;
}

static int32_t find_piece(const reader *r, const char *text, size_t size)
{
    const nib_vocab *v = &r->loader.t->vocab;
    const int32_t id = nib__vocab_find(v, &v->model, text, size);
    return id >= 0 && is_piece(r, (size_t)id) ? id : -1;
}

/* Adds a merge for every two pieces that make this one. */
static nib_status add_merges_into(reader *r, uint32_t id, uint32_t rank)
{
    const size_t limit = (size_t)nib__min(
        SPLITS_MAX, SPLITS_BASE + SPLITS_PER_PIECE * (int64_t)r->source->token_count);
    const nib_vocab_text *text = &r->source->tokens[id];
    nib_err inner;
    if (text->size > LONGEST_PIECE)
        return nib__loader_unsupported(&r->loader,
                                       "tokenizer.ggml.tokens: token %u has %zu bytes; the limit "
                                       "for a token made by merging is %d",
                                       id, text->size, LONGEST_PIECE);
    for (const char *cut = text->at, *const end = cut + text->size;
         nib__utf8_next(&cut), cut < end;) {
        const size_t left_size = (size_t)(cut - text->at);
        const int32_t left = find_piece(r, text->at, left_size);
        const int32_t right = left < 0 ? -1 : find_piece(r, cut, text->size - left_size);
        if (right < 0)
            continue;
        const nib_merge merge = {(uint32_t)left, (uint32_t)right, rank, id};
        if (r->m.merges.count >= limit)
            return nib__loader_unsupported(&r->loader,
                                           "tokenizer.ggml.tokens: tokens split into two others "
                                           "in more than %zu ways; this vocabulary is made to be "
                                           "slow",
                                           limit);
        if (nib__merges_push(&r->m, r->loader.t, &merge, &inner) != NIB_OK)
            return fail_inner(r, &inner);
    }
    return NIB_OK;
}

/* Of all adjacent pairs, SentencePiece merges the one that makes the piece with the highest score,
 * leftmost first. So the rank of a merge is the place of its piece when sorted by score, and equal
 * scores share a rank. If all scores are equal, a converter without scores wrote them (llama.cpp's
 * writes -1000 for a tokenizer.json); then the rank follows the ids, because trainers number pieces
 * in the order in which they merge. */
static nib_status merge_by_scores(reader *r)
{
    const nib_vocab_source *s = r->source;
    scored *list = nib__arena_take(&r->loader.scratch, s->token_count, sizeof *list);
    size_t count = 0;
    if (list == NULL)
        return nib__fail_memory(r->loader.err, s->token_count * sizeof *list, "the vocabulary");
    for (size_t i = 0; i < s->token_count; i++) {
        const nib_vocab_text *text = &s->tokens[i];
        if (text->size < 2 || !is_piece(r, i) || find_piece(r, text->at, text->size) != (int32_t)i)
            continue;
        if (isnan(s->scores[i]))
            return nib__fail(r->loader.err, NIB_BAD_INPUT,
                             "%s: tokenizer.ggml.scores: the score of token %zu is not a number",
                             s->name, i);
        list[count++] = (scored){s->scores[i], (uint32_t)i};
    }
    qsort(list, count, sizeof *list, by_score);
    const bool unscored = count != 0 && list[0].score == list[count - 1].score;
    for (size_t i = 0, rank = 0; i < count; i++) {
        rank = !unscored && i != 0 && list[i].score == list[i - 1].score ? rank : i;
        NIB_TRY(add_merges_into(r, list[i].id, (uint32_t)rank));
    }
    return NIB_OK;
}

/* ---- the two models ---- */

static nib_status build_bytes(reader *r)
{
    nib_tokenizer *t = r->loader.t;
    const nib_stage bytes = {.kind = NIB_STAGE_BYTES};
    const nib_pre *pre = nib__pre_find(r->source->pre.at, r->source->pre.size);
    if (pre == NULL)
        return fail_pre(r);
    if (r->source->merges == NULL)
        return nib__fail(r->loader.err, NIB_BAD_INPUT, "%s: tokenizer.ggml.merges is missing",
                         r->source->name);
    if ((pre->flags & NIB_PRE_NFC) != 0)
        t->normalizers[t->normalizer_count++].kind = NIB_NORMAL_NFC;
    for (const char *const *pattern = pre->patterns; *pattern != NULL; pattern++)
        NIB_TRY(nib__loader_split(&r->loader, *pattern));
    NIB_TRY(nib__loader_stage(&r->loader, &bytes));
    t->decoders[t->decoder_count++].kind = NIB_DECODE_BYTES;
    t->bpe.ignore_merges = (pre->flags & NIB_PRE_IGNORE_MERGES) != 0;
    NIB_TRY(read_merges(r));
    return add_bos_and_eos(r, (pre->flags & NIB_PRE_ADD_BOS) != 0);
}

/* Refuses settings that converters never write for models "llama", because their SentencePiece
 * files do not use them. */
static nib_status check_normalizer(reader *r)
{
    if (r->source->has_charsmap)
        return nib__loader_unsupported(
            &r->loader, "tokenizer.ggml.precompiled_charsmap is not supported; name the model's "
                        "tokenizer.json with --tokenizer FILE or DIR");
    if (r->source->remove_extra_whitespaces == NIB_VOCAB_FLAG_TRUE)
        return nib__loader_unsupported(
            &r->loader, "tokenizer.ggml.remove_extra_whitespaces is true, which is not supported; "
                        "name the model's tokenizer.json with --tokenizer FILE or DIR");
    return NIB_OK;
}

static nib_status build_pieces(reader *r)
{
    nib_tokenizer *t = r->loader.t;
    const nib_vocab_flag given = r->source->add_space_prefix;
    const bool prefix =
        given == NIB_VOCAB_FLAG_TRUE || (given == NIB_VOCAB_FLAG_UNSET && !r->listed);
    const nib_finder space = {.kind = NIB_FIND_STRING, .string = " ", .size = 1};
    const nib_finder symbol = {.kind = NIB_FIND_STRING, .string = SPACE, .size = sizeof SPACE - 1};
    NIB_TRY(check_normalizer(r));
    if (prefix)
        t->normalizers[t->normalizer_count++] = (nib_normalizer){
            .kind = NIB_NORMAL_PREPEND, .content = SPACE, .content_size = sizeof SPACE - 1};
    t->normalizers[t->normalizer_count++] = (nib_normalizer){.kind = NIB_NORMAL_REPLACE,
                                                             .finder = space,
                                                             .content = SPACE,
                                                             .content_size = sizeof SPACE - 1};
    t->decoders[t->decoder_count++] = (nib_decoder){
        .kind = NIB_DECODE_REPLACE, .finder = symbol, .content = " ", .content_size = 1};
    t->decoders[t->decoder_count++].kind = NIB_DECODE_FALLBACK;
    t->decoders[t->decoder_count++].kind = NIB_DECODE_FUSE;
    if (prefix)
        t->decoders[t->decoder_count++] = (nib_decoder){
            .kind = NIB_DECODE_STRIP, .content = " ", .content_size = 1, .start = 1, .whole = true};
    t->bpe.byte_fallback = t->bpe.fuse_unk = true;
    if (r->listed && r->source->merges == NULL)
        return nib__fail(r->loader.err, NIB_BAD_INPUT, "%s: tokenizer.ggml.merges is missing",
                         r->source->name);
    if (r->source->scores != NULL && !r->listed)
        NIB_TRY(merge_by_scores(r));
    else if (r->source->merges != NULL)
        NIB_TRY(read_merges(r));
    else
        return nib__fail(r->loader.err, NIB_BAD_INPUT,
                         "%s: tokenizer.ggml.scores and tokenizer.ggml.merges are both missing",
                         r->source->name);
    return add_bos_and_eos(r, true);
}

static nib_status read_vocab(reader *r)
{
    NIB_TRY(check_model(r));
    NIB_TRY(check_arrays(r));
    NIB_TRY(read_types(r));
    NIB_TRY(read_special_ids(r));
    for (size_t i = 0; i < r->source->token_count; i++)
        NIB_TRY(add_token(r, i));
    r->loader.t->has_decoder = true;
    NIB_TRY(r->pieces ? build_pieces(r) : build_bytes(r));
    const nib_merge_source merges = {.list = r->m.merges.at, .count = r->m.merges.count};
    return nib__loader_join(&r->loader, &merges);
}

nib_status nib__tokenizer_from_vocab(nib_tokenizer **out, const nib_vocab_source *source,
                                     const nib_allocator *a, nib_err *err)
{
    const nib_named_text file = {source->name, NULL, 0};
    reader r = {.source = source};
    NIB_TRY(nib__loader_open(&r.loader, &r.m, &file, a, err));
    return nib__loader_close(&r.loader, &r.m, read_vocab(&r), out);
}
