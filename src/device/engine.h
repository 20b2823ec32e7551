/* SPDX-License-Identifier: Apache-2.0
 *
 * The engine: state shared by all calls: allocator, threads, this machine, callbacks.
 */
#ifndef NIB_ENGINE_H
#define NIB_ENGINE_H

#include "gpu.h"
#include "holders.h"
#include "pool.h"
#include "sandbox.h"
#include "tuned.h"

struct nib_engine {
    nib_holders holders; /* the application, and models */
    nib_allocator allocator;
    nib_callbacks callbacks;
    nib_pool *pool;
    int64_t isa;
    int asked_threads;  /* 0: all cores */
    char asked_isa[16]; /* empty: the highest */
    nib_machine here;
    char *cache_path;    /* NULL: none */
    nib_tuned tuned;     /* here.tuned */
    bool measured;       /* here.rate and here.bytes_per_s were measured or read from the cache */
    nib_gpu_found *gpus; /* [NIB_GPUS_MAX]; NULL: not searched yet */
    size_t gpu_count;
    nib_gpu *opened[NIB_GPUS_MAX]; /* parallel to gpus; NULL: not opened */
    nib_text no_gpus;              /* a line for each driver that is missing or has no device */
    nib_machines machines;         /* empty until requested */
    nib_sandbox sandbox;
};

/* Keeps the engine until nib_engine_close is called once more. */
void nib__engine_hold(nib_engine *engine);
/* NIB_USAGE in a forked child, which has no worker threads and no devices. Every call that needs
 * them begins with it. */
nib_status nib__engine_check(const nib_engine *engine, nib_err *err);
/* Measures this machine and reads the tuned kernel orders; later calls do nothing. */
nib_status nib__engine_measure(nib_engine *engine, nib_err *err);
/* Searches for GPUs; later calls do nothing. */
nib_status nib__engine_find_gpus(nib_engine *engine, nib_err *err);
/* The GPU of this name, or NULL; call nib__engine_find_gpus first. */
const nib_machine *nib__engine_gpu_find(const nib_engine *engine, const char *name);
/* The GPU of a machine that was found. The first call opens it; nib_engine_close closes it. */
nib_status nib__engine_gpu(nib_gpu **out, nib_engine *engine, const nib_machine *machine,
                           nib_err *err);
/* The machines known by name. */
nib_status nib__engine_machines(nib_engine *engine, const nib_machines **out, nib_err *err);
/* The machine that a user named: this one (measured), a file's, whose texts go to the arena, a
 * known one, or a GPU that was found. NIB_USAGE with suggestions: no such machine. */
nib_status nib__engine_machine(nib_engine *engine, nib_machine *out, const char *name,
                               nib_arena *arena, nib_err *err);
/* The same for measuring, so a machine that is not present is NIB_USAGE. *gpu: the opened device;
 * NULL for the CPU. */
nib_status nib__engine_machine_here(nib_engine *engine, nib_machine *out, nib_gpu **gpu,
                                    const char *name, nib_err *err);
/* Enters the sandbox that the engine's options ask for. note, for the ledger: what is forbidden,
 * what is missing and why; empty if none was asked for. NIB_NOT_AS_ASKED: a part of a sandbox that
 * was asked for is missing. */
nib_status nib__engine_sandbox(nib_engine *engine, nib_sandbox_task task,
                               char note[NIB_SANDBOX_TEXT], nib_err *err);
/* Reports progress; false: the user cancelled. */
bool nib__engine_progress(const nib_engine *engine, const char *what, uint64_t done,
                          uint64_t total);

#endif
