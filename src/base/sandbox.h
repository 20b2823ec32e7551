/* SPDX-License-Identifier: Apache-2.0
 *
 * The sandbox: once a program has opened its files, it gives up what it no longer needs, so that
 * an error in reading hostile input cannot reach files, programs or the network. Linux only:
 * Landlock and a seccomp filter, by their system calls.
 */
#ifndef NIB_SANDBOX_H
#define NIB_SANDBOX_H

#include "pool.h"

typedef enum nib_sandbox_task {
    NIB_SANDBOX_READER, /* works on open files and maps, and writes to open descriptors */
    NIB_SANDBOX_SERVER  /* also accepts connections on an open socket and answers them */
} nib_sandbox_task;

enum { NIB_SANDBOX_TEXT = 768, NIB_SANDBOX_NEWEST = 1000 };

typedef struct nib_sandbox_result {
    bool landlock, seccomp;      /* what is in force */
    char text[NIB_SANDBOX_TEXT]; /* a sentence: what is forbidden and how, and what is missing and
                                    why */
} nib_sandbox_result;

/* Restricts this process for good: no file, program, device or connection can be opened, no memory
 * can become executable, and no other process be signalled or traced. Calls that a library may try
 * fail with EPERM; those that only an attacker makes, such as execve and ptrace, end the process
 * with SIGSYS. Files, sockets and maps that are open stay usable; threads may be started.
 *
 * The filter covers every thread of the process. Landlock covers the calling thread, the workers of
 * the pool, and threads that these start later; `text` counts others. What the system lacks is left
 * out. newest: the highest version of Landlock to use, NIB_SANDBOX_NEWEST but in tests. */
void nib__sandbox_enter(nib_sandbox_result *out, nib_sandbox_task task, nib_pool *pool, int newest);

#endif
