/* SPDX-License-Identifier: Apache-2.0
 *
 * A pool of pinned threads that share loops. The caller's thread is worker 0.
 *
 * Workers spin for a few microseconds after a job, then sleep. With more threads than cores in the
 * process's affinity mask, no worker spins or is pinned. During a job every worker has the
 * floating-point control word of linear and attention rows (round to nearest, denormals flushed) if
 * the job asks for it, else the default (denormals kept); the caller's own word is restored before
 * nib__pool_run returns. One thread at a time may run jobs on a pool, and a job may not start
 * another. Workers are pinned to the cores of the mask, except the core that the caller ran on at
 * nib__pool_open; the caller's thread is not pinned.
 */
#ifndef NIB_POOL_H
#define NIB_POOL_H

#include "hash.h"
#include "memory.h"

typedef struct nib_pool nib_pool;

/* This process's share of the cores if several processes share a machine: `slice` of `slices`. With
 * more slices than cores, all processes share all cores. */
typedef struct nib_share {
    int slice, slices; /* slices below 2: all cores */
} nib_share;

/* threads 0: one per core that this process may run on. With a share, one per core of the share, to
 * which the calling thread moves; or one thread if all processes share all cores. */
nib_status nib__pool_open(nib_pool **out, int threads, const nib_allocator *a, nib_err *err);
nib_status nib__pool_open_share(nib_pool **out, int threads, nib_share share,
                                const nib_allocator *a, nib_err *err);
void nib__pool_close(nib_pool *pool);
/* Whether this process was forked from the one that opened the pool. It has no workers: it may only
 * close the pool. */
bool nib__pool_forked(const nib_pool *pool);
int nib__pool_threads(const nib_pool *pool);
bool nib__pool_pinned(const nib_pool *pool);
int nib__cores_allowed(void);
nib_hash nib__cores_hash(void); /* of the set of cores: processes with equal ones share them */

/* Calls job(ctx, worker, begin, end) for parts of [0, count), all multiples of `grain` but the
 * last. Free workers get the parts in ascending order; every index is covered exactly once. How the
 * range is cut depends on the number of threads; kernels ensure that this does not change
 * results. */
typedef void (*nib_pool_job)(void *ctx, int worker, int64_t begin, int64_t end);
void nib__pool_run(nib_pool *pool, int64_t count, int64_t grain, bool flush_denormals,
                   nib_pool_job job, void *ctx);

/* The same, but each worker starts with its own range and takes parts of it in ascending order,
 * smaller ones towards the end; a worker that is done steals from the end of the fullest range. So
 * each reads one stream of memory, and no worker waits for more than a grain. */
void nib__pool_share_out(nib_pool *pool, int64_t count, int64_t grain, bool flush_denormals,
                         nib_pool_job job, void *ctx);

/* One piece per worker, all at once: job(ctx, worker, worker, worker + 1). */
void nib__pool_each(nib_pool *pool, bool flush_denormals, nib_pool_job job, void *ctx);

/* Monotonic clock in nanoseconds. */
uint64_t nib__now_ns(void);
/* Processor time of this thread in nanoseconds: for limits on work, which must not depend on the
 * load of the machine. */
uint64_t nib__worked_ns(void);
/* Sorts the values. */
double nib__median(double *values, int count);

/* The control word alone, for code that runs a row outside the pool. */
typedef struct nib_float_mode {
    unsigned long word;
} nib_float_mode;
nib_float_mode nib__float_mode_flush(void); /* sets; returns the old one */
void nib__float_mode_restore(nib_float_mode old);

#endif
