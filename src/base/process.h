/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs another program and collects its output.
 */
#ifndef NIB_PROCESS_H
#define NIB_PROCESS_H

#include "memory.h"

enum { NIB_PROCESS_LINE = 256 };

typedef struct nib_process {
    char *out; /* its standard output, NUL-terminated; free with nib__release */
    size_t size;
    int status;                       /* exit status; 128 + N if signal N ended it */
    char last_line[NIB_PROCESS_LINE]; /* last non-blank line of its standard error; may be cut */
} nib_process;

/* Runs a program, found in PATH, with an empty standard input, on the cores that the calling thread
 * may use. arguments and environment end in NULL; arguments[0] is the program. A nonzero exit
 * status is not an error here. `keep_going` (may be NULL) is called a few times a second; if it
 * returns false, the program is killed and the result is NIB_CANCELLED. NIB_IO: it cannot be
 * started, or writes more than `limit` bytes. */
nib_status nib__process_run(nib_process *out, const char *const *arguments,
                            const char *const *environment, size_t limit,
                            bool (*keep_going)(void *ctx), void *ctx, const nib_allocator *a,
                            nib_err *err);

#endif
