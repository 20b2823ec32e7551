/* SPDX-License-Identifier: Apache-2.0
 *
 * Random walks through a constraint's masks: the texts of an untrained model.
 */
#ifndef NIB_TESTS_WALKING_H
#define NIB_TESTS_WALKING_H

#include "constraint.h"

typedef struct walking {
    const nib_tokenizer *tokenizer;
    const nib_token_trie *trie;
    nib_masks *masks;
    uint32_t *allowed; /* [words] */
    uint64_t random;
    int soft, hard; /* steps after which it closes what it can; gives up */
} walking;

static inline uint64_t walking_random(walking *w)
{
    w->random = w->random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return w->random >> 33;
}

static inline bool walking_allows(const walking *w, int32_t id)
{
    return id >= 0 && w->allowed[id / 32] >> (id % 32) & 1;
}

/* The first allowed token that is this byte; -1: none. */
static inline int32_t walking_byte(const walking *w, uint8_t byte)
{
    for (size_t id = 0; id < w->trie->vocab; id++) {
        size_t size;
        const uint8_t *at = nib__token_spelling(w->trie, (int32_t)id, &size);
        if (size == 1 && *at == byte && walking_allows(w, (int32_t)id))
            return (int32_t)id;
    }
    return -1;
}

/* Chooses an allowed token, past `soft` preferably one that closes something; -1: none is allowed.
 */
static inline int32_t walking_choose(walking *w, int step)
{
    int64_t count = 0;
    for (size_t i = 0; i < w->trie->words; i++)
        count += __builtin_popcount(w->allowed[i]);
    if (count == 0)
        return -1;
    /* Most tokens are letters, so strings would hardly ever end without this. */
    const bool end = step >= w->soft || walking_random(w) % 4 == 0;
    for (const char *c = "\"}],:"; end && *c != 0; c++) {
        const int32_t id = walking_byte(w, (uint8_t)*c);
        if (id >= 0 && (step >= w->soft || walking_random(w) % 2 == 0))
            return id;
    }
    int64_t left = (int64_t)(walking_random(w) % (uint64_t)count);
    for (size_t id = 0; id < w->trie->vocab; id++)
        if (walking_allows(w, (int32_t)id) && left-- == 0)
            return (int32_t)id;
    return -1;
}

typedef enum walked { WALK_ENDED, WALK_LONG, WALK_STUCK } walked;

/* Appends the text of one random walk. */
static inline walked walk_once(walking *w, const nib_constraint *c, nib_text *out)
{
    nib_constraint_state state;
    nib_constraint_state *s = &state;
    nib__constraint_start(s, c);
    for (int step = 0; step < w->hard; step++) {
        size_t size;
        if (nib__constraint_ended(s))
            return WALK_ENDED;
        if (nib__constraint_complete(s) && (step >= w->soft || walking_random(w) % 4 == 0))
            return WALK_ENDED;
        nib__constraint_mask(w->masks, s, w->allowed);
        const int32_t id = walking_choose(w, step);
        if (id < 0 || !nib__constraint_accept(s, id))
            return WALK_STUCK;
        const uint8_t *at = nib__token_spelling(w->trie, id, &size);
        nib__text_put(out, (const char *)at, size);
    }
    return nib__constraint_complete(s) ? WALK_ENDED : WALK_LONG;
}

#endif
