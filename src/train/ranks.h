/* SPDX-License-Identifier: Apache-2.0
 *
 * Messages between the ranks of a run, beyond nibble.h. Every wait has a limit, and its error names
 * the rank waited for. After an error the run is broken: ranks can no longer communicate.
 */
#ifndef NIB_RANKS_H
#define NIB_RANKS_H

#include "base.h"
#include "memory.h"

/* Sets the limit of a wait: timeout_s plus the longest time that this rank was busy between two
 * exchanges, since another rank may be busy as long. */
void nib__ranks_limit(nib_ranks *ranks, double timeout_s);

/* `what` names the data in errors: "the gradient of step 12". NIB_FAILED: the other rank did not
 * answer within the limit. */
nib_status nib__ranks_send(nib_ranks *ranks, const void *bytes, size_t size, int to,
                           const char *what, nib_err *err);
nib_status nib__ranks_receive(nib_ranks *ranks, void *bytes, size_t size, int from,
                              const char *what, nib_err *err);
/* Sends from rank 0 to all. */
nib_status nib__ranks_share(nib_ranks *ranks, void *bytes, size_t size, const char *what,
                            nib_err *err);
/* As nib_ranks_agree, for a failure that need not end the run: the ranks can agree again later. */
nib_status nib__ranks_verdict(nib_ranks *ranks, nib_status mine, nib_err *err);
/* Marks the run as broken: this rank cannot continue, and others wait for it in an exchange. */
void nib__ranks_break(nib_ranks *ranks);

#endif
