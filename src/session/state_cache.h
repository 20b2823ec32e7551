/* SPDX-License-Identifier: Apache-2.0
 *
 * States of sequences on disk, by their tokens: a prompt that begins like one of an earlier process
 * continues from there. A state is that of whole blocks; its key is a hash of the weights, of how
 * the session computes, of the tenant and of the tokens, so no other session finds it.
 */
#ifndef NIB_STATE_CACHE_H
#define NIB_STATE_CACHE_H

#include "session_state.h"

typedef struct nib_state_cache nib_state_cache;

/* Fails as nib__records_open does. */
nib_status nib__state_cache_open(nib_state_cache **out, nib_session *session, const char *directory,
                                 uint64_t bytes, nib_err *err);
void nib__state_cache_close(nib_state_cache *cache); /* NULL: nothing */
/* The most tokens, of the first `count` and more than `above`, whose state is there; 0: none. */
int64_t nib__state_cache_find(const nib_state_cache *cache, uint64_t tenant, const int32_t *tokens,
                              int64_t count, int64_t above);
/* Gives a sequence the state of `count` tokens, which find returned. NIB_BAD_INPUT: it is damaged;
 * it is removed, and the sequence is as it was. */
nib_status nib__state_cache_load(nib_state_cache *cache, int64_t sequence, uint64_t tenant,
                                 const int32_t *tokens, int64_t count, nib_err *err);
/* Writes the state of a sequence that holds these tokens, whole blocks of them, unless it is there.
 * NIB_USAGE: it is larger than the file. */
nib_status nib__state_cache_save(nib_state_cache *cache, int64_t sequence, uint64_t tenant,
                                 const int32_t *tokens, int64_t count, nib_err *err);

#endif
