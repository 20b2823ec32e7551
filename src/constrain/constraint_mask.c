/* SPDX-License-Identifier: Apache-2.0
 *
 * Opening a constraint, and the masks of its states: walks over the trie of the tokens that leave
 * a subtree as soon as its bytes may not come. Inside a string, where almost all may, the tokens
 * that are plain characters are taken as a whole, and only what closes the string or escapes is
 * walked; and, beside texts that are given, the few tokens that begin like one of those.
 */
#include "constraint_parts.h"

#include <stddef.h>

enum { KEPT = 8 }; /* masks: a string in several depths, and what is around it */

typedef struct kept_mask {
    nib_constraint_state state;
    uint32_t *mask; /* [words] */
    bool set;
} kept_mask;

struct nib_masks {
    nib_allocator allocator;
    const nib_constraint *constraint;
    nib_constraint_state *states; /* [longest + 2] of the way down the trie */
    nib_constraint_state free;    /* the items of a string that take any characters */
    uint32_t *words;              /* [KEPT][words] */
    kept_mask kept[KEPT];
    size_t next; /* to be replaced */
};

/* ---- the constraint ---- */

/* With each byte of its own, whatever has to be written can be. */
static nib_status check_spelling(const nib_constraint *c, const char *name, nib_err *err)
{
    for (int byte = 0x20; byte < 0x100; byte++) {
        const bool needed = byte < 0x7f || c->schema.literal_bytes[byte];
        if (needed && !c->trie->spelled[byte])
            return nib__fail(err, NIB_UNSUPPORTED,
                             "%s: the tokenizer has no token that is the byte 0x%02x and nothing "
                             "else, so JSON cannot be enforced with it",
                             name, (unsigned)byte);
    }
    return NIB_OK;
}

nib_status nib__constraint_open(nib_constraint **out, const nib_token_trie *trie,
                                const nib_named_text *schema, const nib_allocator *a, nib_err *err)
{
    nib_constraint *c = nib__calloc(a, 1, sizeof *c);
    if (c == NULL)
        return nib__fail_memory(err, sizeof *c, "a constraint");
    c->allocator = *a;
    c->trie = trie;
    nib_status status = nib__schema_read(&c->schema, schema, &c->allocator, err);
    if (status == NIB_OK)
        status = check_spelling(c, schema->name, err);
    if (status != NIB_OK)
        nib__constraint_close(c);
    else
        *out = c;
    return status;
}

void nib__constraint_close(nib_constraint *c)
{
    if (c == NULL)
        return;
    const nib_allocator a = c->allocator;
    nib__calls_close(c);
    nib__schema_close(&c->schema);
    nib__release(&a, c);
}

/* ---- room ---- */

nib_status nib__masks_open(nib_masks **out, const nib_constraint *c, const nib_allocator *a,
                           nib_err *err)
{
    const nib_token_trie *trie = c->trie;
    const size_t states = (size_t)trie->longest + 2;
    nib_masks *m = nib__calloc(a, 1, sizeof *m);
    if (m == NULL)
        return nib__fail_memory(err, sizeof *m, "masks of tokens");
    m->allocator = *a;
    m->constraint = c;
    m->states = nib__calloc(a, states, sizeof *m->states);
    m->words = nib__calloc(a, trie->words * KEPT, sizeof *m->words);
    if (m->states == NULL || m->words == NULL) {
        nib__masks_close(m);
        return nib__fail_memory(err, states * sizeof *m->states, "masks of tokens");
    }
    for (size_t i = 0; i < KEPT; i++)
        m->kept[i].mask = m->words + i * trie->words;
    *out = m;
    return NIB_OK;
}

void nib__masks_close(nib_masks *masks)
{
    if (masks == NULL)
        return;
    const nib_allocator a = masks->allocator;
    nib__release(&a, masks->states);
    nib__release(&a, masks->words);
    nib__release(&a, masks);
}

/* ---- walks ---- */

/* Characters that some item takes whatever they are; -1: none does. */
static int64_t room_of(const nib_constraint_state *s)
{
    int64_t most = -1;
    for (int i = s->start[s->levels - 1]; i < s->used; i++)
        most = nib__max(most, nib__constraint_room(s, &s->items[i]));
    return most;
}

static void allow(const int32_t *ids, size_t from, size_t to, uint32_t *allowed)
{
    for (size_t i = from; i < to; i++)
        allowed[ids[i] / 32] |= UINT32_C(1) << (ids[i] % 32);
}

static void forbid(const int32_t *ids, size_t from, size_t to, uint32_t *allowed)
{
    for (size_t i = from; i < to; i++)
        allowed[ids[i] / 32] &= ~(UINT32_C(1) << (ids[i] % 32));
}

/* Tokens below node `group`, whose state is that of its depth. */
static void walk(nib_masks *m, const nib_token_tree *tree, size_t group, uint32_t *allowed)
{
    const nib_token_node *nodes = tree->nodes;
    for (size_t i = group + 1; i < nodes[group].skip;) {
        const nib_token_node *node = &nodes[i];
        nib_constraint_state *s = &m->states[node->depth];
        nib__constraint_copy(s, s - 1);
        if (!nib__constraint_step(s, node->byte)) {
            i = node->skip;
        } else if (s->mode == NIB_IN_STRING && s->sub < NIB_CONTENT_BAD &&
                   node->plain >> s->sub & 1 && room_of(s) >= node->chars) {
            allow(tree->ids, node->first, nodes[node->skip].first, allowed);
            i = node->skip;
        } else {
            allow(tree->ids, node->first, nodes[i + 1].first, allowed);
            i++;
        }
    }
}

/* Between two characters of a string that may be any of so many, as m->free says: the plain tokens,
 * and those that end it. */
static void in_content(nib_masks *m, int64_t room, uint32_t *allowed)
{
    const nib_token_trie *trie = m->constraint->trie;
    const nib_token_tree *ends = &trie->counted;
    const nib_constraint_state *state = &m->free;
    bool settled = true;
    for (int i = state->start[state->levels - 1]; i < state->used; i++)
        settled &= nib__constraint_settled(state, &state->items[i]);
    if (room >= trie->plain_longest)
        memcpy(allowed, trie->plain, trie->words * sizeof *allowed);
    else
        allow(trie->plain_ids, 0, trie->plain_from[room + 1], allowed);
    if (settled) {
        nib__constraint_copy(&m->states[1], state);
        if (trie->ends.count != 0)
            walk(m, &trie->ends, 0, allowed);
        return;
    }
    for (size_t group = 0; group < ends->count; group = ends->nodes[group].skip) {
        nib_constraint_state *s = &m->states[1];
        bool possible = true;
        nib__constraint_copy(s, state);
        for (int n = 0; n < ends->nodes[group].byte && possible; n++)
            possible = nib__constraint_step(s, 'a');
        if (possible)
            walk(m, ends, group, allowed);
    }
}

/* Keeps the items of the open string that take any characters; true: they are all. */
static bool keep_free(nib_constraint_state *s)
{
    const int first = s->start[s->levels - 1];
    int kept = first;
    for (int i = first; i < s->used; i++)
        if (nib__constraint_room(s, &s->items[i]) >= 0)
            s->items[kept++] = s->items[i];
    const bool all = kept == s->used;
    s->used = (uint8_t)kept;
    return all;
}

static bool all_free(const nib_constraint_state *s)
{
    for (int i = s->start[s->levels - 1]; i < s->used; i++)
        if (nib__constraint_room(s, &s->items[i]) < 0)
            return false;
    return true;
}

/* Of the string of states[1], `allowed` has the tokens that the free items take by themselves. Adds
 * what the other items take: along their texts every token is asked, and elsewhere they are no
 * more. */
static void beside_free(nib_masks *m, uint32_t *allowed)
{
    const nib_token_tree *tree = &m->constraint->trie->all;
    const nib_token_node *nodes = tree->nodes;
    for (size_t i = 1; i < nodes[0].skip;) {
        const nib_token_node *node = &nodes[i];
        nib_constraint_state *s = &m->states[node->depth];
        nib__constraint_copy(s, s - 1);
        const bool may = nib__constraint_step(s, node->byte), inside = s->mode == NIB_IN_STRING;
        if (may && inside && all_free(s)) {
            i = node->skip;
            continue;
        }
        const bool goes_on = may && inside;
        forbid(tree->ids, node->first, nodes[goes_on ? i + 1 : node->skip].first, allowed);
        if (may)
            allow(tree->ids, node->first, nodes[i + 1].first, allowed);
        if (may && !inside) /* the string has ended */
            walk(m, tree, i, allowed);
        i = goes_on ? i + 1 : node->skip;
    }
}

static void make(nib_masks *m, const nib_constraint_state *state, uint32_t *allowed)
{
    const nib_token_trie *trie = m->constraint->trie;
    memset(allowed, 0, trie->words * sizeof *allowed);
    if (state->constraint->calls != NULL && !nib__calls_mask(state, allowed))
        return;
    if ((state->mode == NIB_AT_END && state->constraint->calls == NULL) || trie->all.count == 0)
        return;
    const bool content = state->mode == NIB_IN_STRING && state->sub == NIB_CONTENT_START;
    const int64_t room = content ? room_of(state) : -1;
    if (room < 0) {
        nib__constraint_copy(&m->states[1], state);
        walk(m, &trie->all, 0, allowed);
        return;
    }
    nib__constraint_copy(&m->free, state);
    const bool all = keep_free(&m->free);
    in_content(m, room, allowed);
    if (!all) {
        nib__constraint_copy(&m->states[1], state);
        beside_free(m, allowed);
    }
}

static bool same(const nib_constraint_state *a, const nib_constraint_state *b)
{
    return memcmp(a, b, offsetof(nib_constraint_state, items)) == 0 &&
           memcmp(a->items, b->items, a->used * sizeof a->items[0]) == 0;
}

void nib__constraint_mask(nib_masks *masks, const nib_constraint_state *state, uint32_t *allowed)
{
    const size_t bytes = masks->constraint->trie->words * sizeof *allowed;
    for (size_t i = 0; i < KEPT; i++) {
        if (masks->kept[i].set && same(&masks->kept[i].state, state)) {
            memcpy(allowed, masks->kept[i].mask, bytes);
            return;
        }
    }
    kept_mask *kept = &masks->kept[masks->next++ % KEPT];
    make(masks, state, allowed);
    nib__constraint_copy(&kept->state, state);
    memcpy(kept->mask, allowed, bytes);
    kept->set = true;
}
