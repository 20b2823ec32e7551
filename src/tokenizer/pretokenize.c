/* SPDX-License-Identifier: Apache-2.0
 *
 * Cuts a normalized text into words with a chain of stages. Each piece passes through the whole
 * chain before the next one is cut, so no list of pieces exists; each stage that changes text has
 * one buffer.
 */
#include "tokenizer_parts.h"

static nib_status run_stage(nib_encoder *e, size_t at, const char *text, size_t size,
                            bool at_start);

/* Combines matches and the text between them into pieces, according to the behavior. */
typedef struct splitter {
    nib_encoder *e;
    const nib_stage *stage;
    size_t next; /* the stage that receives the pieces */
    const char *text;
    bool at_start;
    bool has_piece;
    nib_text_range piece; /* the current piece, if has_piece */
    bool last_match;      /* the previous part was a match */
} splitter;

static nib_status emit(splitter *s, nib_text_range piece)
{
    return run_stage(s->e, s->next, s->text + piece.start, piece.end - piece.start,
                     s->at_start && piece.start == 0);
}

/* Does the part belong to the current piece? */
static bool joins(const splitter *s, bool is_match)
{
    switch (s->stage->behavior) {
    case NIB_SPLIT_CONTIGUOUS: return is_match == s->last_match;
    case NIB_SPLIT_MERGED_WITH_PREVIOUS: return is_match && !s->last_match;
    case NIB_SPLIT_MERGED_WITH_NEXT: return !is_match && s->last_match;
    default: return false;
    }
}

static nib_status add_part(splitter *s, size_t start, size_t end, bool is_match)
{
    is_match = is_match != s->stage->invert;
    if (s->stage->behavior == NIB_SPLIT_REMOVED)
        return is_match ? NIB_OK : emit(s, (nib_text_range){start, end});
    if (s->has_piece && joins(s, is_match)) {
        s->piece.end = end;
    } else {
        if (s->has_piece)
            NIB_TRY(emit(s, s->piece));
        s->piece = (nib_text_range){start, end};
        s->has_piece = true;
    }
    s->last_match = is_match;
    return NIB_OK;
}

static nib_status split(nib_encoder *e, size_t at, const char *text, size_t size, bool at_start)
{
    splitter s = {
        .e = e, .stage = &e->t->stages[at], .next = at + 1, .text = text, .at_start = at_start};
    size_t from = 0, last = SIZE_MAX, done = 0;
    for (;;) {
        nib_text_range match;
        bool found;
        NIB_TRY(nib__find_next(&s.stage->finder, &e->run, text, size, &from, &last, &match, &found,
                               e->err));
        if (!found)
            break;
        if (match.start != done)
            NIB_TRY(add_part(&s, done, match.start, false));
        NIB_TRY(add_part(&s, match.start, match.end, true));
        done = match.end;
    }
    if (done != size)
        NIB_TRY(add_part(&s, done, size, false));
    return s.has_piece ? emit(&s, s.piece) : NIB_OK;
}

static void put_metaspace(const nib_stage *stage, const char *text, size_t size, bool at_start,
                          nib_text *out)
{
    const bool wanted =
        stage->prepend == NIB_PREPEND_ALWAYS || (stage->prepend == NIB_PREPEND_FIRST && at_start);
    const bool present = text[0] == ' ' || (size >= stage->content_size &&
                                            memcmp(text, stage->content, stage->content_size) == 0);
    if (wanted && !present)
        nib__text_put(out, stage->content, stage->content_size);
    for (const char *const end = text + size; text < end;) {
        const char *space = memchr(text, ' ', (size_t)(end - text));
        nib__text_put(out, text, (size_t)((space == NULL ? end : space) - text));
        if (space == NULL)
            break;
        nib__text_put(out, stage->content, stage->content_size);
        text = space + 1;
    }
}

/* Runs a stage that changes the piece and passes it on uncut. */
static nib_status rewrite(nib_encoder *e, size_t at, const char *text, size_t size, bool at_start)
{
    const nib_stage *stage = &e->t->stages[at];
    nib_text *out = &e->stage[at];
    nib__text_clear(out);
    if (stage->kind == NIB_STAGE_METASPACE) {
        put_metaspace(stage, text, size, at_start, out);
    } else if (stage->kind == NIB_STAGE_BYTES) {
        nib__byte_level_put(out, text, size);
    } else {
        nib__text_put(out, " ", 1);
        nib__text_put(out, text, size);
    }
    NIB_TRY(nib__encoder_count_output(e, out, out->size, "the pre-tokenizers"));
    return run_stage(e, at + 1, out->at, out->size, at_start);
}

/* Each stage calls the next one: the recursion is at most NIB_TOKENIZER_PARTS deep. */
static nib_status run_stage(nib_encoder *e, size_t at, const char *text, size_t size, bool at_start)
{
    if (size == 0)
        return NIB_OK;
    if (at == e->t->stage_count)
        return nib__bpe_word(e, text, size);
    const nib_stage *stage = &e->t->stages[at];
    if (stage->kind == NIB_STAGE_SPLIT)
        return split(e, at, text, size, at_start);
    if (stage->kind == NIB_STAGE_PREFIX && text[0] == ' ')
        return run_stage(e, at + 1, text, size, at_start);
    return rewrite(e, at, text, size, at_start);
}

nib_status nib__pretokenize(nib_encoder *e, const char *text, size_t size, bool at_start)
{
    return run_stage(e, 0, text, size, at_start);
}
