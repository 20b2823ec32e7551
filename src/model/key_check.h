/* SPDX-License-Identifier: Apache-2.0
 *
 * Whether a model's keys bear the type that the cache rounds them to: on the first positions that a
 * runner reads, how far rounding moves the scores of attention. Costs nothing afterwards.
 */
#ifndef NIB_KEY_CHECK_H
#define NIB_KEY_CHECK_H

#include "memory.h"
#include "ops.h"

/* Of a layer. Scores are scaled q.k, without a cap. */
typedef struct nib_key_error {
    int64_t positions;    /* that were seen */
    double error, spread; /* root mean squares: of the error of a score, and of scores around their
                             mean */
} nib_key_error;

typedef struct nib_key_check nib_key_check;

/* has: [layers] layers that store keys before attention. */
nib_status nib__key_check_open(nib_key_check **out, const bool *has, int64_t layers,
                               int64_t head_dim, const nib_allocator *a, nib_err *err);
void nib__key_check_close(nib_key_check *check); /* NULL: nothing */
/* The keys k [m][ld] of a layer, which the cache of `args` holds already. */
void nib__key_check_see(nib_key_check *check, int64_t layer, const nib_attn *args, const float *k,
                        int64_t ld);
/* Whether every layer has seen enough. */
bool nib__key_check_done(const nib_key_check *check);
/* The layer whose scores are moved farthest; *out: how far. */
int64_t nib__key_check_worst(const nib_key_check *check, nib_key_error *out);
/* Whether keys bear such an error. */
bool nib__key_check_bears(const nib_key_error *error);

#endif
