/* SPDX-License-Identifier: Apache-2.0
 *
 * Helpers for tests of constrained decoding: a tokenizer with its trie, and texts accepted byte by
 * byte.
 */
#ifndef NIB_TESTS_CONSTRAINING_H
#define NIB_TESTS_CONSTRAINING_H

#include "tokenizing.h"
#include "walking.h"

#include <stddef.h>

typedef struct constraining {
    nib_tokenizer *tokenizer;
    nib_token_trie *trie;
    int32_t bytes[256]; /* id of the token that is this one byte; -1: none */
} constraining;

static inline constraining open_constraining(const char *path)
{
    const nib_allocator a = nib__allocator_default();
    constraining c = {.tokenizer = open_path(path, NULL)};
    nib_err err = {.status = NIB_OK};
    if (nib__token_trie_open(&c.trie, c.tokenizer, &a, &err) != NIB_OK)
        fail_msg("%s", err.text);
    memset(c.bytes, 0xff, sizeof c.bytes);
    for (size_t id = 0; id < c.trie->vocab; id++) {
        size_t size;
        const uint8_t *at = nib__token_spelling(c.trie, (int32_t)id, &size);
        if (size == 1)
            c.bytes[*at] = (int32_t)id;
    }
    return c;
}

static inline void close_constraining(constraining *c)
{
    nib__token_trie_close(c->trie);
    nib__tokenizer_close(c->tokenizer);
}

static inline nib_status constraint_status(const constraining *c, nib_constraint **out,
                                           const char *schema, nib_err *err)
{
    const nib_allocator a = nib__allocator_default();
    const nib_named_text text = {"schema", schema, schema == NULL ? 0 : strlen(schema)};
    return nib__constraint_open(out, c->trie, &text, &a, err);
}

static inline nib_constraint *open_constraint(const constraining *c, const char *schema)
{
    nib_constraint *constraint = NULL;
    nib_err err = {.status = NIB_OK};
    if (constraint_status(c, &constraint, schema, &err) != NIB_OK)
        fail_msg("%s", err.text);
    return constraint;
}

/* Accepts the text one byte token at a time; returns how many bytes were accepted. */
static inline size_t taken(const constraining *c, nib_constraint_state *state, const char *text,
                           size_t size)
{
    size_t n = 0;
    while (n < size && nib__constraint_accept(state, c->bytes[(uint8_t)text[n]]))
        n++;
    return n;
}

/* True if the constraint accepts the text as a complete value. */
static inline bool accepts(const constraining *c, const nib_constraint *constraint,
                           const char *text)
{
    nib_constraint_state state;
    nib__constraint_start(&state, constraint);
    return taken(c, &state, text, strlen(text)) == strlen(text) && nib__constraint_complete(&state);
}

static inline walking open_walking(const constraining *c, uint64_t seed)
{
    walking w = {.tokenizer = c->tokenizer, .trie = c->trie, .random = seed, .soft = 40};
    w.hard = 3000;
    w.allowed = calloc(c->trie->words + 1, sizeof *w.allowed);
    assert_non_null(w.allowed);
    return w;
}

/* The mask allows exactly the tokens that the constraint accepts. */
static inline void expect_mask(walking *w, const nib_constraint_state *state)
{
    bool some = nib__constraint_complete(state);
    nib__constraint_mask(w->masks, state, w->allowed);
    for (size_t id = 0; id < w->trie->vocab; id++) {
        nib_constraint_state next;
        nib__constraint_copy(&next, state);
        const bool may = nib__constraint_accept(&next, (int32_t)id);
        if (may != walking_allows(w, (int32_t)id)) {
            size_t size;
            const uint8_t *at = nib__token_spelling(w->trie, (int32_t)id, &size);
            fail_msg("token %zu \"%.*s\" is %s, and the mask says otherwise", id, (int)size,
                     (const char *)at, may ? "taken" : "not taken");
        }
        some |= may;
        if (!may)
            assert_memory_equal(&next, state, offsetof(nib_constraint_state, items));
    }
    assert_true(some);
    for (size_t id = w->trie->vocab; id < w->trie->words * 32; id++)
        assert_false(walking_allows(w, (int32_t)id));
}

/* Random walks through allowed tokens; every step checks the mask first. */
static inline void expect_masks(const constraining *c, const nib_constraint *constraint,
                                uint64_t seed, const char *first, int walks, int steps)
{
    const nib_allocator a = nib__allocator_default();
    walking w = open_walking(c, seed);
    assert_int_equal(nib__masks_open(&w.masks, constraint, &a, NULL), NIB_OK);
    for (int n = 0; n < walks; n++) {
        nib_constraint_state state;
        nib__constraint_start(&state, constraint);
        assert_int_equal(taken(c, &state, first, strlen(first)), strlen(first));
        for (int step = 0; step < steps && !nib__constraint_ended(&state); step++) {
            expect_mask(&w, &state);
            assert_true(nib__constraint_accept(&state, walking_choose(&w, step)));
        }
    }
    nib__masks_close(w.masks);
    free(w.allowed);
}

#endif
