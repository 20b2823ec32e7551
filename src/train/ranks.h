/* SPDX-License-Identifier: Apache-2.0
 *
 * The processes of one run: Open MPI, loaded when it is asked for, so that one program runs with
 * and without it. Every wait has a limit and names the rank that it waits for.
 */
#ifndef NIB_RANKS_H
#define NIB_RANKS_H

#include "base.h"
#include "memory.h"

typedef struct nib_ranks nib_ranks;

/* Joins the run that mpirun started. NIB_NOT_AS_ASKED: there is no Open MPI here, and what to
 * install. */
nib_status nib__ranks_open(nib_ranks **out, double timeout_s, const nib_allocator *a, nib_err *err);
void nib__ranks_close(nib_ranks *ranks);
int nib__ranks_rank(const nib_ranks *ranks);  /* 0 for NULL: one process */
int nib__ranks_count(const nib_ranks *ranks); /* 1 for NULL */

/* what names the data in the error: "the gradient of step 12". NIB_FAILED: the other rank did not
 * answer within the limit. */
nib_status nib__ranks_send(nib_ranks *ranks, const void *bytes, size_t size, int to,
                           const char *what, nib_err *err);
nib_status nib__ranks_receive(nib_ranks *ranks, void *bytes, size_t size, int from,
                              const char *what, nib_err *err);
/* From rank 0 to all. */
nib_status nib__ranks_share(nib_ranks *ranks, void *bytes, size_t size, const char *what,
                            nib_err *err);
/* Every rank gives its status and sentence and learns the first rank's that failed: NIB_OK if none
 * did. So a run ends everywhere with the sentence of the rank that ended it. */
nib_status nib__ranks_agree(nib_ranks *ranks, nib_status mine, nib_err *err);
/* Ends every process of the run at once, when agreeing is no longer possible. */
void nib__ranks_abort(nib_ranks *ranks, int exit_status);

#endif
