/* SPDX-License-Identifier: Apache-2.0
 *
 * A pool of pinned threads that share loops. The caller's thread is worker 0.
 *
 * Workers spin for a few microseconds after a job, then sleep. If there are more threads than cores
 * in the process's affinity mask, nothing spins and nothing is pinned. While a job runs, every
 * worker has the floating-point control word of linear and attention rows (round to nearest,
 * denormals flushed) if the job asks for it, else the default one (nothing flushed); the caller's
 * own word is restored before nib__pool_run returns. One thread at a time may hand a pool its jobs,
 * and no job may hand it another. Workers are pinned to the cores of the mask but the one where the
 * caller was at nib__pool_open; the caller's thread is left as it is.
 */
#ifndef NIB_POOL_H
#define NIB_POOL_H

#include "hash.h"
#include "memory.h"

typedef struct nib_pool nib_pool;

/* The part of the cores that is this process's, where several share a machine: `slice` of `slices`.
 * With more slices than cores, no core is anyone's. */
typedef struct nib_share {
    int slice, slices; /* slices below 2: all cores */
} nib_share;

/* threads 0: the cores this process may run on; of a share, its cores, to which the calling thread
 * moves, or one thread if no core is anyone's. */
nib_status nib__pool_open(nib_pool **out, int threads, const nib_allocator *a, nib_err *err);
nib_status nib__pool_open_share(nib_pool **out, int threads, nib_share share,
                                const nib_allocator *a, nib_err *err);
void nib__pool_close(nib_pool *pool);
int nib__pool_threads(const nib_pool *pool);
bool nib__pool_pinned(const nib_pool *pool);
int nib__cores_allowed(void);
nib_hash nib__cores_hash(void); /* of the set of cores: processes with equal ones share them */

/* job(ctx, worker, begin, end) covers parts of [0, count), each a multiple of `grain` but the last.
 * Parts are handed out in ascending order as workers become free; every index is covered exactly
 * once. A part never depends on the number of threads in a way that changes results: kernels see to
 * that. */
typedef void (*nib_pool_job)(void *ctx, int worker, int64_t begin, int64_t end);
void nib__pool_run(nib_pool *pool, int64_t count, int64_t grain, bool flush_denormals,
                   nib_pool_job job, void *ctx);

/* The same, but each worker begins with a range of its own and takes its parts in ascending order,
 * ever smaller ones towards the end; whoever is done takes from the end of the range with the most
 * left. So each reads one stream of memory, and nobody waits for more than a grain. */
void nib__pool_share_out(nib_pool *pool, int64_t count, int64_t grain, bool flush_denormals,
                         nib_pool_job job, void *ctx);

/* One piece per worker, all at once: job(ctx, worker, worker, worker + 1). */
void nib__pool_each(nib_pool *pool, bool flush_denormals, nib_pool_job job, void *ctx);

/* Monotonic clock in nanoseconds. */
uint64_t nib__now_ns(void);
/* Processor time that this thread took, in nanoseconds: for limits on work, which must not depend
 * on who else uses the machine. */
uint64_t nib__worked_ns(void);
/* Of what it measured; sorts the values. */
double nib__median(double *values, int count);

/* The control word by itself, for code that runs a row outside the pool. */
typedef struct nib_float_mode {
    unsigned long word;
} nib_float_mode;
nib_float_mode nib__float_mode_flush(void); /* sets; returns the old one */
void nib__float_mode_restore(nib_float_mode old);

#endif
