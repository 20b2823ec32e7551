/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs another program and collects its output.
 */
#ifndef NIB_PROCESS_H
#define NIB_PROCESS_H

#include "memory.h"

enum { NIB_PROCESS_LINE = 256, NIB_SECOND_MAX = 512 /* what any pipe holds */ };

/* For programs that read two files: names the second in a program's arguments. */
#define NIB_SECOND_PATH "/dev/fd/3"

typedef struct nib_process {
    char *out; /* its standard output, NUL-terminated; free with nib__release */
    size_t size;
    int status;                       /* exit status; 128 + N if signal N ended it */
    char last_line[NIB_PROCESS_LINE]; /* last non-blank line of its standard error; may be cut */
} nib_process;

typedef struct nib_process_job {
    const char *const *arguments;   /* end in NULL; the first is the program, found in PATH */
    const char *const *environment; /* ends in NULL; NULL: empty, unless inherits */
    bool inherits;                  /* this process's environment, for programs of the user */
    const void *input;              /* its standard input, [input_size]; NULL: empty */
    size_t input_size;
    const void *second; /* [second_size] what it reads from NIB_SECOND_PATH; NULL: nothing */
    size_t second_size; /* at most NIB_SECOND_MAX */
    size_t limit;       /* most bytes that it may write */
    /* Called a few times a second; if it returns false, the program is killed. NULL: never */
    bool (*keep_going)(void *ctx);
    void *ctx;
} nib_process_job;

/* Runs a program on the cores that the calling thread may use. A nonzero exit status is not an
 * error here, nor a program that does not read all of its input. NIB_UNSUPPORTED: there is no
 * program of that name in PATH; NIB_CANCELLED: keep_going; NIB_IO: it cannot be started, or writes
 * more than `limit` bytes. */
nib_status nib__process_run(nib_process *out, const nib_process_job *job, const nib_allocator *a,
                            nib_err *err);

#endif
