/* SPDX-License-Identifier: Apache-2.0
 *
 * Another program: started, waited for, and what it wrote.
 */
#ifndef NIB_PROCESS_H
#define NIB_PROCESS_H

#include "memory.h"

enum { NIB_PROCESS_LINE = 256 };

typedef struct nib_process {
    char *out; /* what it wrote to its standard output, NUL-terminated; nib__release */
    size_t size;
    int status;                       /* its exit status; of a signal 128 and its number */
    char last_line[NIB_PROCESS_LINE]; /* of its standard error, that is not blank; may be cut */
} nib_process;

/* Runs a program, found as a shell finds it, with nothing on its standard input, on the cores that
 * the calling thread may use. arguments and environment end in NULL; arguments[0] is the program.
 * An exit status that is not 0 is no failure here. NIB_CANCELLED: `goes_on` (NULL allowed), asked
 * a few times a second, said no, and the program was ended. NIB_IO: it cannot be started, or writes
 * more than `limit` bytes. */
nib_status nib__process_run(nib_process *out, const char *const *arguments,
                            const char *const *environment, size_t limit,
                            bool (*goes_on)(void *ctx), void *ctx, const nib_allocator *a,
                            nib_err *err);

#endif
