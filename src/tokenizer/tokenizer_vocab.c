/* SPDX-License-Identifier: Apache-2.0
 *
 * The reverse of tokenizer_gguf.c: writes an open tokenizer as the arrays and flags of a GGUF. A
 * GGUF only names the way words are split, so the stages are looked up in the table of pre_names.c;
 * merges of pieces become scores. What a GGUF has no key for is an error, or a ledger line if only
 * rare texts differ.
 */
#include "tokenizer_parts.h"

#include <stdio.h>

enum { NORMAL = 1, UNKNOWN = 2, CONTROL = 3, USER_DEFINED = 4, UNUSED = 5, BYTE = 6 };

static const char SPACE[] = "\xe2\x96\x81"; /* U+2581, a space in SentencePiece */

typedef struct writer {
    const nib_tokenizer *t;
    const char *name;
    nib_vocab_source *out;
    nib_arena *arena;
    nib_ledger *ledger;
    nib_err *err;
    size_t count; /* of tokens, padding included */
    nib_vocab_text *tokens;
    int32_t *types;
    nib_merge *merges; /* [merge_count] by rank */
    size_t merge_count;
} writer;

static nib_status fail_memory(const writer *m, size_t size)
{
    return nib__fail_memory(m->err, size, "the vocabulary");
}

/* Adds a ledger line about what the GGUF cannot express. */
NIB_PRINTF(2, 3) static void add_loss(const writer *m, const char *format, ...)
{
    char text[256];
    va_list args;
    va_start(args, format);
    nib__vformat(text, sizeof text, format, args);
    va_end(args);
    nib__ledger_add_setting(m->ledger,
                            &(nib_ledger_setting){.code = "tokenizer",
                                                  .name = m->name,
                                                  .by = NIB_BY_CHECKPOINT,
                                                  .relation = NIB_SETTING_OTHER},
                            "%s", text);
}

/* ---- the model and pre-tokenizer ---- */

/* Does the stage split at exactly this pattern of the table? */
static bool stage_is(const nib_stage *stage, const char *pattern)
{
    if (stage->kind != NIB_STAGE_SPLIT || stage->behavior != NIB_SPLIT_ISOLATED || stage->invert)
        return false;
    if (stage->finder.kind == NIB_FIND_NUMERIC)
        return strcmp(pattern, "\\p{N}") == 0;
    return stage->finder.kind == NIB_FIND_REGEX &&
           strcmp(stage->finder.regex.pattern, pattern) == 0;
}

static bool pre_fits(const nib_tokenizer *t, const nib_pre *pre)
{
    const bool nfc = t->normalizer_count == 1 && t->normalizers[0].kind == NIB_NORMAL_NFC;
    size_t i = 0;
    if (t->normalizer_count != (nfc ? 1 : 0) || nfc != ((pre->flags & NIB_PRE_NFC) != 0) ||
        t->bpe.ignore_merges != ((pre->flags & NIB_PRE_IGNORE_MERGES) != 0))
        return false;
    for (; pre->patterns[i] != NULL; i++)
        if (i >= t->stage_count || !stage_is(&t->stages[i], pre->patterns[i]))
            return false;
    return i + 1 == t->stage_count && t->stages[i].kind == NIB_STAGE_BYTES;
}

static nib_status write_model_and_pre(const writer *m)
{
    for (size_t i = 0; nib__pre_at(i) != NULL; i++) {
        const nib_pre *pre = nib__pre_at(i);
        if (!pre_fits(m->t, pre))
            continue;
        m->out->model = (nib_vocab_text){"gpt2", 4};
        m->out->pre = (nib_vocab_text){pre->name, strlen(pre->name)};
        return NIB_OK;
    }
    return nib__fail(m->err, NIB_UNSUPPORTED,
                     "%s: a GGUF stores only a name for how words are split, and no name matches "
                     "this pre-tokenizer, normalizer and ignore_merges; keep the tokenizer.json "
                     "beside the GGUF and name it with --tokenizer",
                     m->name);
}

static bool is_space(const char *content, size_t size)
{
    return size == sizeof SPACE - 1 && memcmp(content, SPACE, size) == 0;
}

static bool replaces_spaces(const nib_normalizer *n)
{
    return n->kind == NIB_NORMAL_REPLACE && n->finder.kind == NIB_FIND_STRING &&
           n->finder.size == 1 && n->finder.string[0] == ' ' &&
           is_space(n->content, n->content_size);
}

static bool cuts_at_spaces(const nib_stage *s)
{
    return s->kind == NIB_STAGE_SPLIT && s->finder.kind == NIB_FIND_STRING && s->finder.size == 1 &&
           s->finder.string[0] == ' ';
}

/* For a tokenizer that only turns spaces into U+2581 and may put one before the text. */
static nib_status write_model_and_spaces(const writer *m, bool listed)
{
    const nib_tokenizer *t = m->t;
    const nib_normalizer *n = t->normalizers;
    const nib_stage *s = t->stages;
    nib_vocab_flag prefix = NIB_VOCAB_FLAG_UNSET;
    /* Gemma's tokenizers cut at spaces once there are none */
    const bool uncut = t->stage_count == 0 || (t->stage_count == 1 && cuts_at_spaces(&s[0]));
    if (uncut && t->normalizer_count == 1 && replaces_spaces(&n[0])) {
        prefix = NIB_VOCAB_FLAG_FALSE;
    } else if (t->stage_count == 0 && t->normalizer_count == 2 && replaces_spaces(&n[1]) &&
               n[0].kind == NIB_NORMAL_PREPEND && is_space(n[0].content, n[0].content_size)) {
        prefix = NIB_VOCAB_FLAG_TRUE;
    } else if (t->normalizer_count == 0 && t->stage_count == 1 &&
               s[0].kind == NIB_STAGE_METASPACE && is_space(s[0].content, s[0].content_size)) {
        prefix = s[0].prepend == NIB_PREPEND_NEVER ? NIB_VOCAB_FLAG_FALSE : NIB_VOCAB_FLAG_TRUE;
        if (s[0].prepend == NIB_PREPEND_FIRST)
            add_loss(m, "it puts a space only before a text that does not begin with one; a reader "
                        "of the GGUF puts one before any text and after every special token");
    }
    m->out->model = listed ? (nib_vocab_text){"gemma4", 6} : (nib_vocab_text){"llama", 5};
    m->out->pre = (nib_vocab_text){"default", 7};
    m->out->add_space_prefix = prefix;
    if (prefix != NIB_VOCAB_FLAG_UNSET)
        return NIB_OK;
    return nib__fail(m->err, NIB_UNSUPPORTED,
                     "%s: a GGUF cannot express how this tokenizer normalizes a text (only "
                     "SentencePiece's way: spaces become U+2581); keep the tokenizer.json beside "
                     "the GGUF and name it with --tokenizer",
                     m->name);
}

/* ---- tokens ---- */

static int32_t type_of(const writer *m, int64_t id, const nib_vocab_text *text)
{
    const nib_vocab *v = &m->t->vocab;
    if (id == m->t->bpe.unk)
        return UNKNOWN;
    if (nib__vocab_special(v, id))
        return CONTROL;
    if (nib__vocab_find(v, &v->added, text->at, text->size) == id)
        return USER_DEFINED;
    for (int i = 0; m->t->bpe.byte_fallback && i < 256; i++)
        if (m->t->bpe.bytes[i] == id)
            return BYTE;
    return NORMAL;
}

/* A GGUF has no key for lstrip, rstrip, single_word and for matching in normalized text. */
static void note_added(const writer *m)
{
    const nib_tokenizer *t = m->t;
    size_t count = 0;
    const nib_added *first = NULL;
    for (size_t i = t->added_count; i-- > 0;) {
        const nib_added *added = &t->added[i];
        const bool normal = (t->vocab.texts[added->id].size & NIB_TOKEN_NORMAL) != 0;
        if (!added->lstrip && !added->rstrip && !added->single_word && !normal)
            continue;
        first = added;
        count++;
    }
    if (count != 0)
        add_loss(m,
                 "%zu added tokens (the first is %lld) use lstrip, rstrip, single_word or "
                 "normalized, for which a GGUF has no key",
                 count, (long long)first->id);
}

/* Every row of the model needs a token; ids without one get a placeholder name. */
static nib_status write_tokens(writer *m)
{
    char name[24];
    m->tokens = nib__arena_take(m->arena, m->count, sizeof *m->tokens);
    m->types = nib__arena_take(m->arena, m->count, sizeof *m->types);
    if (m->tokens == NULL || m->types == NULL)
        return fail_memory(m, m->count * sizeof *m->tokens);
    for (size_t i = 0; i < m->count; i++) {
        nib_vocab_text *text = &m->tokens[i];
        text->at = nib__vocab_text(&m->t->vocab, (int64_t)i, &text->size);
        m->types[i] = text->at == NULL ? UNUSED : type_of(m, (int64_t)i, text);
        if (text->at != NULL)
            continue;
        text->size = (size_t)snprintf(name, sizeof name, "[PAD%zu]", i);
        text->at = nib__arena_copy(m->arena, name, text->size);
        if (text->at == NULL)
            return fail_memory(m, text->size);
    }
    m->out->tokens = m->tokens;
    m->out->types = m->types;
    m->out->token_count = m->out->type_count = m->count;
    note_added(m);
    return NIB_OK;
}

/* ---- merges ---- */

/* "left right" */
static nib_status write_merges(writer *m)
{
    nib_vocab_text *texts = nib__arena_take(m->arena, m->merge_count + 1, sizeof *texts);
    if (texts == NULL)
        return fail_memory(m, m->merge_count * sizeof *texts);
    for (size_t i = 0; i < m->merge_count; i++) {
        const nib_vocab_text *left = &m->tokens[m->merges[i].left];
        const nib_vocab_text *right = &m->tokens[m->merges[i].right];
        char *at = nib__arena_take(m->arena, left->size + right->size + 1, 1);
        if (at == NULL)
            return fail_memory(m, left->size + right->size + 1);
        memcpy(at, left->at, left->size);
        at[left->size] = ' ';
        memcpy(at + left->size + 1, right->at, right->size);
        texts[i] = (nib_vocab_text){at, left->size + right->size + 1};
    }
    m->out->merges = texts;
    m->out->merge_count = m->merge_count;
    return NIB_OK;
}

/* In how many ways is the piece the concatenation of two others? */
static size_t count_splits(const writer *m, size_t id)
{
    const nib_vocab *v = &m->t->vocab;
    const nib_vocab_text *text = &m->tokens[id];
    size_t count = 0;
    if (m->types[id] != NORMAL && m->types[id] != USER_DEFINED)
        return 0;
    for (const char *cut = text->at, *const end = cut + text->size;
         text->size != 0 && (nib__utf8_next(&cut), cut < end);) {
        const size_t size = (size_t)(cut - text->at);
        const int32_t left = nib__vocab_find(v, &v->model, text->at, size);
        const int32_t right = nib__vocab_find(v, &v->model, cut, text->size - size);
        count += left >= 0 && right >= 0 && m->types[left] != BYTE && m->types[right] != BYTE;
    }
    return count;
}

/* The score of a piece falls with the rank of the first merge into it. With scores, any two pieces
 * that make a third one merge; if the tokenizer has fewer merges, a ledger line says so. */
static nib_status write_scores(writer *m)
{
    float *scores = nib__arena_take(m->arena, m->count, sizeof *scores);
    size_t splits = 0;
    if (scores == NULL)
        return fail_memory(m, m->count * sizeof *scores);
    for (size_t i = m->merge_count; i-- > 0;)
        scores[m->merges[i].id] = -1 - (float)m->merges[i].rank;
    const float last = m->merge_count == 0 ? -1 : -2 - (float)m->merges[m->merge_count - 1].rank;
    for (size_t i = 0; i < m->count; i++) {
        if (scores[i] == 0 && m->types[i] == NORMAL)
            scores[i] = last;
        splits += count_splits(m, i);
    }
    if (splits > m->merge_count)
        add_loss(m,
                 "it lists %zu merges; with the scores of a GGUF, %zu pairs of pieces merge, so "
                 "rare texts can get other ids",
                 m->merge_count, splits);
    m->out->scores = scores;
    m->out->score_count = m->count;
    return NIB_OK;
}

/* ---- BOS and EOS ---- */

static nib_vocab_flag flag_for(size_t count, const int32_t *ids, int32_t id)
{
    return count == 1 && ids[0] == id ? NIB_VOCAB_FLAG_TRUE : NIB_VOCAB_FLAG_FALSE;
}

static void write_bos_and_eos(const writer *m)
{
    const nib_tokenizer *t = m->t;
    nib_vocab_source *out = m->out;
    /* A single token added before or after texts is BOS or EOS, even if the files do not say so. */
    out->bos = t->bos < 0 && t->before_count == 1 ? t->before[0] : t->bos;
    out->eos = t->eos < 0 && t->after_count == 1 ? t->after[0] : t->eos;
    out->add_bos = flag_for(t->before_count, t->before, (int32_t)out->bos);
    out->add_eos = flag_for(t->after_count, t->after, (int32_t)out->eos);
    const bool bos = out->add_bos == NIB_VOCAB_FLAG_TRUE, eos = out->add_eos == NIB_VOCAB_FLAG_TRUE;
    if (t->before_count + t->after_count != (size_t)bos + (size_t)eos)
        add_loss(m, "it adds %zu tokens around a text; a GGUF can express only BOS and EOS",
                 t->before_count + t->after_count);
}

nib_status nib__tokenizer_to_vocab(nib_vocab_source *out, const nib_tokenizer *t, const char *name,
                                   int64_t rows, bool listed, nib_arena *arena, nib_ledger *ledger,
                                   nib_err *err)
{
    const bool pieces = t->bpe.byte_fallback;
    writer m = {.t = t, .name = name, .out = out, .arena = arena, .ledger = ledger, .err = err};
    *out = (nib_vocab_source){.name = name, .bos = -1, .eos = -1, .unk = -1};
    m.count = (size_t)nib__max(rows, nib__tokenizer_vocab_size(t));
    NIB_TRY(pieces ? write_model_and_spaces(&m, listed) : write_model_and_pre(&m));
    NIB_TRY(write_tokens(&m));
    NIB_TRY(nib__bpe_list(&m.merges, &m.merge_count, &t->bpe, arena, err));
    NIB_TRY(pieces && !listed ? write_scores(&m) : write_merges(&m));
    if (pieces)
        out->unk = t->bpe.unk;
    write_bos_and_eos(&m);
    return NIB_OK;
}
