/* SPDX-License-Identifier: Apache-2.0
 *
 * The engine: what every call of one user shares. Allocator, threads, this machine, callbacks.
 */
#ifndef NIB_ENGINE_H
#define NIB_ENGINE_H

#include "machine.h"
#include "pool.h"

struct nib_engine {
    nib_allocator allocator;
    nib_callbacks callbacks;
    nib_pool *pool;
    int64_t isa;
    nib_machine here;
    char *cache_path; /* NULL: none */
    bool measured;    /* here.rate and here.bytes_per_s were measured or read back */
};

/* Measures this machine once; later calls cost nothing. */
nib_status nib__engine_measure(nib_engine *engine, nib_err *err);
/* False: the user wants to stop. */
bool nib__engine_progress(const nib_engine *engine, const char *what, uint64_t done,
                          uint64_t total);

#endif
