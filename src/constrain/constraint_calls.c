/* SPDX-License-Identifier: Apache-2.0
 *
 * The automaton around the JSON of calls. Its texts are lists of symbols: bytes, special tokens and
 * letters of an id. The arguments of each tool have a constraint of their own: while they are
 * written, the state belongs to it and constraint.c advances it; afterwards this file takes over
 * again.
 *
 * A state here has one item: `at` is the position in a text; low, high and size are the range of
 * names that match so far; between a name and its arguments, low is the tool.
 */
#include "constraint_calls.h"

#include "constraint_parts.h"

#include <stdlib.h>

enum {
    ID_LETTER = 256, /* any letter or digit */
    SPECIAL,         /* SPECIAL + a token's id */
    /* The part that the state is in (state.sub). */
    FREE = 0,
    BEFORE,
    NAME,
    MIDDLE,
    AFTER,
    /* Which of `next` and `last` the text so far can be (state.key). */
    EITHER = 0,
    THE_NEXT,
    THE_LAST,
};
/* `at` of free text that can no longer begin a call */
static const uint32_t NEVER_OPENS = UINT32_MAX - 1;

typedef struct symbols {
    int32_t *at; /* [count] */
    size_t count;
} symbols;

struct nib_calls {
    nib_arena arena;
    const nib_constraint *outer;
    nib_constraint **members; /* [count] constraints of the arguments, in the order of names */
    nib_schema_text *names;   /* [count] sorted; index: the tool in the options */
    size_t count;
    symbols before, middle, next, last;
    bool free, several;
    /* How a call begins in free text: with a special token, or with the `opening` bytes of `before`
     * that end at `resume`. */
    int32_t special; /* a symbol; 0: bytes */
    bool anchored;   /* only at the start of the text */
    size_t opening, resume;
    size_t *fallback; /* [opening] bytes that still match after a mismatch (Knuth-Morris-Pratt) */
};

/* ---- symbols ---- */

static bool is_letter(int32_t symbol)
{
    const int32_t lower = symbol | 0x20;
    return (lower >= 'a' && lower <= 'z' && symbol < 0x80) || (symbol >= '0' && symbol <= '9');
}

static bool is_name_letter(int32_t symbol)
{
    return is_letter(symbol) || symbol == '_' || symbol == '-';
}

static bool is_blank(int32_t symbol) { return symbol == ' ' || symbol == '\n' || symbol == '\t'; }

static bool matches(int32_t wanted, int32_t symbol)
{
    return wanted == symbol || (wanted == ID_LETTER && is_letter(symbol));
}

static bool matches_at(const symbols *text, size_t at, int32_t symbol)
{
    return at < text->count && matches(text->at[at], symbol);
}

/* ---- steps ---- */

static const nib_calls *calls_of(const nib_constraint_state *s) { return s->constraint->calls; }

static void enter_part(nib_constraint_state *s, int sub, const nib_calls *calls)
{
    const uint16_t tool = s->items[0].low;
    s->sub = (uint8_t)sub;
    s->items[0] = (nib_constraint_item){.node = 0};
    if (sub == NAME)
        s->items[0].high = (uint16_t)calls->count;
    else if (sub == MIDDLE)
        s->items[0].low = tool;
}

/* Continues after the arguments of a call. */
static void leave_arguments(nib_constraint_state *s)
{
    const nib_calls *calls = calls_of(s);
    nib__constraint_start(s, calls->outer);
    enter_part(s, AFTER, calls);
    s->key = calls->several && calls->next.count > 0 ? EITHER : THE_LAST;
}

static bool step_free(nib_constraint_state *s, const nib_calls *calls, int32_t symbol)
{
    nib_constraint_item *item = &s->items[0];
    size_t at = item->at;
    if (at == NEVER_OPENS)
        return true;
    if (calls->special != 0) {
        if (symbol != calls->special)
            return true;
    } else {
        const int32_t *opening = calls->before.at + (calls->resume - calls->opening);
        while (at > 0 && opening[at] != symbol && !calls->anchored)
            at = calls->fallback[at - 1];
        const bool on = opening[at] == symbol;
        item->at = on ? (uint32_t)at + 1 : calls->anchored ? NEVER_OPENS : 0;
        if (item->at != calls->opening)
            return true;
    }
    enter_part(s, calls->resume < calls->before.count ? BEFORE : NAME, calls);
    if (s->sub == BEFORE)
        item->at = (uint32_t)calls->resume;
    return true;
}

static bool step_middle(nib_constraint_state *s, const nib_calls *calls, int32_t symbol)
{
    nib_constraint_item *item = &s->items[0];
    if (!matches_at(&calls->middle, item->at, symbol))
        return false;
    if (++item->at == calls->middle.count)
        nib__constraint_start(s, calls->members[item->low]);
    return true;
}

static bool step_name(nib_constraint_state *s, const nib_calls *calls, int32_t symbol)
{
    nib_constraint_item *item = &s->items[0];
    if (is_name_letter(symbol)) {
        nib__texts_narrow(calls->names, item, (uint8_t)symbol);
        return item->low < item->high;
    }
    if (calls->names[item->low].size != item->size)
        return false;
    enter_part(s, MIDDLE, calls);
    return step_middle(s, calls, symbol);
}

static bool step_after(nib_constraint_state *s, const nib_calls *calls, int32_t symbol)
{
    nib_constraint_item *item = &s->items[0];
    const bool next = s->key != THE_LAST && matches_at(&calls->next, item->at, symbol),
               last = s->key != THE_NEXT && matches_at(&calls->last, item->at, symbol);
    if (!next && !last)
        return false;
    s->key = next && last ? EITHER : next ? THE_NEXT : THE_LAST;
    item->at++;
    if (next && item->at == calls->next.count) {
        s->key = 0;
        enter_part(s, NAME, calls);
    }
    return true;
}

static bool step(nib_constraint_state *s, int32_t symbol)
{
    const nib_calls *calls = calls_of(s);
    if (s->mode == NIB_AT_END)
        leave_arguments(s);
    switch (s->sub) {
    case FREE: return step_free(s, calls, symbol);
    case BEFORE:
        if (!matches_at(&calls->before, s->items[0].at, symbol))
            return false;
        if (++s->items[0].at == calls->before.count)
            enter_part(s, NAME, calls);
        return true;
    case NAME: return step_name(s, calls, symbol);
    case MIDDLE: return step_middle(s, calls, symbol);
    default: return step_after(s, calls, symbol);
    }
}

bool nib__calls_step(nib_constraint_state *s, uint8_t byte) { return step(s, byte); }

static bool is_around_values(const nib_constraint_state *s)
{
    return s->mode == NIB_IN_CALLS || s->mode == NIB_AT_END;
}

bool nib__calls_accept_special(nib_constraint_state *s, int32_t id)
{
    nib_constraint_state next;
    if (!is_around_values(s))
        return false;
    nib__constraint_copy(&next, s);
    if (!step(&next, SPECIAL + id))
        return false;
    nib__constraint_copy(s, &next);
    return true;
}

void nib__calls_start(nib_constraint_state *s)
{
    const nib_calls *calls = calls_of(s);
    s->mode = NIB_IN_CALLS;
    enter_part(s, calls->free ? FREE : calls->before.count > 0 ? BEFORE : NAME, calls);
}

/* ---- properties of a state ---- */

bool nib__calls_complete(const nib_constraint_state *s)
{
    const nib_calls *calls = calls_of(s);
    if (s->mode == NIB_AT_END)
        return calls->last.count == 0;
    if (s->mode != NIB_IN_CALLS)
        return false;
    return s->sub == FREE ||
           (s->sub == AFTER && s->key != THE_NEXT && s->items[0].at == calls->last.count);
}

bool nib__calls_ended(const nib_constraint_state *s)
{
    const nib_calls *calls = calls_of(s);
    if (!nib__calls_complete(s) || (s->mode == NIB_IN_CALLS && s->sub == FREE))
        return false;
    return s->mode == NIB_AT_END ? !calls->several || calls->next.count == 0 : s->key == THE_LAST;
}

/* Allows the next symbol of a text if it is a special token. */
static void allow_next(const symbols *text, size_t at, uint32_t *allowed)
{
    if (at >= text->count || text->at[at] < SPECIAL)
        return;
    const int32_t id = text->at[at] - SPECIAL;
    allowed[id / 32] |= UINT32_C(1) << (id % 32);
}

bool nib__calls_mask(const nib_constraint_state *s, uint32_t *allowed)
{
    const nib_calls *calls = calls_of(s);
    const nib_token_trie *trie = calls->outer->trie;
    const nib_constraint_item *item = &s->items[0];
    if (!is_around_values(s))
        return true;
    if (s->mode == NIB_AT_END) {
        allow_next(&calls->last, 0, allowed);
        if (calls->several)
            allow_next(&calls->next, 0, allowed);
    } else if (s->sub == FREE) { /* all tokens but those that go wrong after an opening */
        for (size_t id = 0; id < trie->vocab; id++)
            allowed[id / 32] |= UINT32_C(1) << (id % 32);
        if (calls->special != 0 || item->at == NEVER_OPENS)
            return false;
        for (size_t i = 0; i < trie->all.id_count; i++)
            allowed[trie->all.ids[i] / 32] &= ~(UINT32_C(1) << (trie->all.ids[i] % 32));
    } else if (s->sub == BEFORE || s->sub == MIDDLE) {
        allow_next(s->sub == BEFORE ? &calls->before : &calls->middle, item->at, allowed);
    } else if (s->sub == NAME) {
        if (calls->names[item->low].size == item->size)
            allow_next(&calls->middle, 0, allowed);
    } else {
        if (s->key != THE_LAST)
            allow_next(&calls->next, item->at, allowed);
        if (s->key != THE_NEXT)
            allow_next(&calls->last, item->at, allowed);
    }
    return true;
}

nib_call_part nib__calls_part(const nib_constraint_state *s)
{
    if (!is_around_values(s))
        return NIB_CALL_ARGUMENTS;
    if (s->mode == NIB_IN_CALLS && s->sub == FREE)
        return NIB_CALL_FREE;
    const bool name = s->mode == NIB_IN_CALLS && s->sub == NAME && s->items[0].size > 0;
    return name ? NIB_CALL_NAME : NIB_CALL_AROUND;
}

size_t nib__calls_held(const nib_constraint_state *s)
{
    return nib__calls_part(s) == NIB_CALL_FREE && s->items[0].at != NEVER_OPENS ? s->items[0].at
                                                                                : 0;
}

size_t nib__calls_opening(const nib_constraint *c)
{
    return c->calls->special != 0 ? 0 : c->calls->opening;
}

/* ---- opening: texts to symbols ---- */

static nib_status no_memory(nib_err *err, size_t size)
{
    return nib__fail_memory(err, size, "a constraint to calls");
}

/* The special tokens of a text, in order. */
static nib_status find_specials(const nib_calls *calls, const nib_tokenizer *t,
                                const nib_call_text *text, symbols *out, nib_err *err)
{
    const nib_token_trie *trie = calls->outer->trie;
    int32_t *ids;
    size_t count, kept = 0, size;
    NIB_TRY(nib__tokenizer_encode(t, text->at, text->size, NIB_ENCODE_PARSE_SPECIAL, &ids, &count,
                                  err));
    for (size_t i = 0; i < count; i++) {
        (void)nib__token_spelling(trie, ids[i], &size);
        if (size == 0 && nib__tokenizer_is_special(t, ids[i]))
            ids[kept++] = ids[i];
    }
    *out = (symbols){ids, kept};
    return NIB_OK;
}

/* Turns the bytes of a text into symbols, one for each special token. */
static nib_status fill_symbols(nib_calls *calls, const nib_tokenizer *t, const nib_call_text *text,
                               const symbols *specials, symbols *out, nib_err *err)
{
    size_t at = 0, size = 0;
    const char *token = NULL;
    out->at = nib__arena_take(&calls->arena, text->size + 1, sizeof *out->at);
    if (out->at == NULL)
        return no_memory(err, text->size * sizeof *out->at);
    for (size_t next = 0; at < text->size;) {
        if (next < specials->count)
            token = nib__tokenizer_token(t, specials->at[next], &size);
        if (next < specials->count && size <= text->size - at &&
            memcmp(text->at + at, token, size) == 0) {
            out->at[out->count++] = SPECIAL + specials->at[next++];
            at += size;
            continue;
        }
        const bool id = at >= text->id_at && at - text->id_at < text->id_size;
        const uint8_t byte = (uint8_t)text->at[at++];
        out->at[out->count++] = id ? ID_LETTER : byte;
        if (!calls->outer->trie->spelled[byte])
            return nib__fail(
                err, NIB_UNSUPPORTED,
                "the tokenizer has no token for the single byte 0x%02x, which the text "
                "around calls needs, so calls cannot be enforced with it",
                (unsigned)byte);
    }
    return NIB_OK;
}

static nib_status make_symbols(nib_calls *calls, const nib_tokenizer *t, const nib_call_text *text,
                               symbols *out, nib_err *err)
{
    symbols specials;
    if (text->at == NULL || text->size == 0)
        return NIB_OK;
    NIB_TRY(find_specials(calls, t, text, &specials, err));
    const nib_status status = fill_symbols(calls, t, text, &specials, out, err);
    nib__tokenizer_ids_free(t, specials.at);
    return status;
}

/* Finds how a call begins in free text: with a special token, with "<...>", or only at the start of
 * the text. */
static nib_status find_opening(nib_calls *calls, nib_err *err)
{
    const symbols *b = &calls->before;
    size_t from = 0, end;
    while (from < b->count && is_blank(b->at[from]))
        from++;
    if (from < b->count && b->at[from] >= SPECIAL) {
        calls->special = b->at[from];
        calls->resume = from + 1;
        return NIB_OK;
    }
    calls->anchored = from == b->count || b->at[from] != '<';
    for (end = calls->anchored ? 0 : from; end < b->count && b->at[end] < ID_LETTER; end++)
        if (!calls->anchored && b->at[end] == '>')
            break;
    if (!calls->anchored && end < b->count)
        end++;
    calls->resume = end;
    calls->opening = calls->anchored ? end : end - from;
    if (calls->opening == 0)
        return nib__fail(err, NIB_UNSUPPORTED,
                         "this model's template does not mark where a call begins in a text; use "
                         "tool_choice \"required\" or \"none\"");
    calls->fallback = nib__arena_take(&calls->arena, calls->opening, sizeof *calls->fallback);
    if (calls->fallback == NULL)
        return no_memory(err, calls->opening * sizeof *calls->fallback);
    const int32_t *opening = b->at + (calls->resume - calls->opening);
    for (size_t i = 1, k = 0; i < calls->opening; i++) {
        while (k > 0 && opening[i] != opening[k])
            k = calls->fallback[k - 1];
        k += opening[i] == opening[k];
        calls->fallback[i] = k;
    }
    return NIB_OK;
}

static nib_status make_texts(nib_calls *calls, const nib_tokenizer *t, const nib_call_format *f,
                             nib_err *err)
{
    NIB_TRY(make_symbols(calls, t, &f->before, &calls->before, err));
    NIB_TRY(make_symbols(calls, t, &f->middle, &calls->middle, err));
    NIB_TRY(make_symbols(calls, t, &f->next, &calls->next, err));
    NIB_TRY(make_symbols(calls, t, &f->last, &calls->last, err));
    if (calls->middle.count == 0 || is_name_letter(calls->middle.at[0]) ||
        calls->middle.at[0] == ID_LETTER)
        return nib__fail(err, NIB_UNSUPPORTED,
                         "this model's template does not mark where the name of a call ends");
    return calls->free ? find_opening(calls, err) : NIB_OK;
}

/* ---- opening: tools ---- */

static nib_status open_member(nib_calls *calls, size_t place, const nib_callable *tool,
                              nib_err *err)
{
    static const char nothing[] = "{\"type\": \"object\", \"additionalProperties\": false}";
    const nib_constraint *outer = calls->outer;
    nib_named_text schema = tool->schema;
    nib_constraint **member = &calls->members[place];
    if (schema.text == NULL) {
        schema.text = nothing;
        schema.size = sizeof nothing - 1;
    }
    NIB_TRY(nib__constraint_open(member, outer->trie, &schema, &outer->allocator, err));
    (*member)->calls = calls;
    /* Clients send {} for "any arguments", but it also allows values that are not objects. */
    return nib__schema_only_objects(&(*member)->schema, err);
}

static nib_status open_members(nib_calls *calls, const nib_calls_options *o, nib_err *err)
{
    calls->names = nib__arena_take(&calls->arena, o->count, sizeof *calls->names);
    calls->members = nib__arena_take(&calls->arena, o->count, sizeof(nib_constraint *));
    if (calls->names == NULL || calls->members == NULL)
        return no_memory(err, o->count * sizeof *calls->names);
    for (size_t i = 0; i < o->count; i++) {
        const size_t size = strlen(o->tools[i].name);
        const char *name = nib__arena_copy(&calls->arena, o->tools[i].name, size);
        if (name == NULL)
            return no_memory(err, size);
        calls->names[i] = (nib_schema_text){name, (uint32_t)size, (uint32_t)i};
    }
    calls->count = o->count;
    qsort(calls->names, o->count, sizeof *calls->names, nib__schema_by_text);
    for (size_t i = 0; i < o->count; i++)
        NIB_TRY(open_member(calls, i, &o->tools[calls->names[i].index], err));
    return NIB_OK;
}

nib_status nib__calls_open(nib_constraint **out, const nib_token_trie *trie, const nib_tokenizer *t,
                           const nib_calls_options *options, const nib_allocator *a, nib_err *err)
{
    nib_constraint *c = nib__calloc(a, 1, sizeof *c);
    nib_calls *calls = nib__calloc(a, 1, sizeof *calls);
    if (c == NULL || calls == NULL) {
        nib__release(a, c);
        nib__release(a, calls);
        return no_memory(err, sizeof *c + sizeof *calls);
    }
    c->allocator = *a;
    c->schema.allocator = &c->allocator;
    nib__arena_init(&c->schema.arena, &c->allocator, 0);
    c->trie = trie;
    c->calls = calls;
    calls->outer = c;
    calls->free = options->free;
    calls->several = options->several;
    nib__arena_init(&calls->arena, &c->allocator, 0);
    nib_status status = make_texts(calls, t, options->format, err);
    if (status == NIB_OK)
        status = open_members(calls, options, err);
    if (status != NIB_OK)
        nib__constraint_close(c);
    else
        *out = c;
    return status;
}

void nib__calls_close(nib_constraint *c)
{
    nib_calls *calls = c->calls;
    if (calls == NULL || calls->outer != c)
        return;
    for (size_t i = 0; i < calls->count; i++)
        nib__constraint_close(calls->members[i]);
    nib__arena_free(&calls->arena);
    nib__release(&c->allocator, calls);
}
