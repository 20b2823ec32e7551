/* SPDX-License-Identifier: Apache-2.0
 *
 * What the ranks of a run say to each other, beyond nibble.h. Every wait has a limit and names the
 * rank that it waits for; after it the run is broken: no rank can be told anything any more.
 */
#ifndef NIB_RANKS_H
#define NIB_RANKS_H

#include "base.h"
#include "memory.h"

/* The limit is timeout_s and the longest time that this rank itself was busy between two exchanges:
 * a rank may take as long again as this one did. */
void nib__ranks_limit(nib_ranks *ranks, double timeout_s);

/* what names the data in the error: "the gradient of step 12". NIB_FAILED: the other rank did not
 * answer within the limit. */
nib_status nib__ranks_send(nib_ranks *ranks, const void *bytes, size_t size, int to,
                           const char *what, nib_err *err);
nib_status nib__ranks_receive(nib_ranks *ranks, void *bytes, size_t size, int from,
                              const char *what, nib_err *err);
/* From rank 0 to all. */
nib_status nib__ranks_share(nib_ranks *ranks, void *bytes, size_t size, const char *what,
                            nib_err *err);
/* As nib_ranks_agree, of a failure that need not end the run: ranks that go on agree again. */
nib_status nib__ranks_verdict(nib_ranks *ranks, nib_status mine, nib_err *err);
/* This rank cannot go on and the others wait for it in an exchange. */
void nib__ranks_break(nib_ranks *ranks);

#endif
