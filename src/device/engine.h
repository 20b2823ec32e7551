/* SPDX-License-Identifier: Apache-2.0
 *
 * The engine: what every call of one user shares. Allocator, threads, this machine, callbacks.
 */
#ifndef NIB_ENGINE_H
#define NIB_ENGINE_H

#include "gpu.h"
#include "pool.h"
#include "tuned.h"

struct nib_engine {
    nib_allocator allocator;
    nib_callbacks callbacks;
    nib_pool *pool;
    int64_t isa;
    int asked_threads;  /* 0: as many as there are */
    char asked_isa[16]; /* empty: the highest */
    nib_machine here;
    char *cache_path;    /* NULL: none */
    nib_tuned tuned;     /* here.tuned */
    bool measured;       /* here.rate and here.bytes_per_s were measured or read back */
    nib_gpu_found *gpus; /* [NIB_GPUS_MAX]; NULL: not looked for yet */
    size_t gpu_count;
    nib_gpu *opened[NIB_GPUS_MAX]; /* beside gpus; NULL: not opened */
    nib_text no_gpus;              /* a line for each driver that is missing, or has no device */
    nib_machines machines;         /* empty until they are asked for */
};

/* Measures this machine once, and reads which kernels were measured to be fast; later calls cost
 * nothing. */
nib_status nib__engine_measure(nib_engine *engine, nib_err *err);
/* Looks for GPUs, once. */
nib_status nib__engine_find_gpus(nib_engine *engine, nib_err *err);
/* The device of this name, or NULL; after nib__engine_find_gpus. */
const nib_machine *nib__engine_gpu_find(const nib_engine *engine, const char *name);
/* The device of a machine that was found, opened by whoever asks first and closed with the
 * engine. */
nib_status nib__engine_gpu(nib_gpu **out, nib_engine *engine, const nib_machine *machine,
                           nib_err *err);
/* The machines known by name. */
nib_status nib__engine_machines(nib_engine *engine, const nib_machines **out, nib_err *err);
/* The machine that a user named: this one (measured), one of a file, whose texts go to the arena, a
 * known one, or a GPU that was found. NIB_USAGE with near names: no such machine. */
nib_status nib__engine_machine(nib_engine *engine, nib_machine *out, const char *name,
                               nib_arena *arena, nib_err *err);
/* The same, and it must be here, or it is NIB_USAGE: something is to be measured. *gpu: the device,
 * opened; NULL for the CPU. */
nib_status nib__engine_machine_here(nib_engine *engine, nib_machine *out, nib_gpu **gpu,
                                    const char *name, nib_err *err);
/* False: the user wants to stop. */
bool nib__engine_progress(const nib_engine *engine, const char *what, uint64_t done,
                          uint64_t total);

#endif
