/* SPDX-License-Identifier: Apache-2.0
 *
 * The thread pool. Owns the workers, their cores, the distribution of parts and the floating-point
 * control word.
 *
 * One 64-bit word, the gate, holds the state of the current job: its number, whether workers may
 * still join, and how many are inside. A worker joins by adding itself to an open gate. The caller
 * runs parts like every worker, closes the gate when none is left, and waits only for the workers
 * inside, so a worker that wakes up late delays nobody. Job fields are written while the gate is
 * closed and empty.
 *
 *   gate = number << 17 | open << 16 | workers inside
 */
#include "pool.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#if defined(__linux__)
#include <sched.h>
#endif
#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

enum {
    MOST_THREADS = 1024,
    /* Few enough that the shared counter is not contended, many enough that workers finish
     * together. */
    PARTS_PER_THREAD = 8,
    /* A decode step starts its next job within this time; sleeping would cost more. */
    SPIN_NS = 30000,
    SPIN_TRIES = 32, /* between readings of the clock */
    LINE = 64,
};

static const uint64_t INSIDE = 0xffff, OPEN = 1u << 16, NUMBER = 1u << 17;

/* Grains of a shared job that no worker has taken: first << 32 | end. On a cache line of its
 * own. */
typedef struct range {
    atomic_uint_fast64_t left;
    char pad[LINE - sizeof(uint64_t)];
} range;

typedef struct worker {
    range range;
    nib_pool *pool;
    int index;
    pthread_t thread;
} worker;

/* How parts are distributed to the workers. */
typedef enum distribution { BY_QUEUE, BY_WORKER, BY_RANGE } distribution;

struct nib_pool {
    nib_allocator allocator;
    worker *workers; /* [threads]; 0 is the caller */
    int threads;
    pid_t process; /* that the workers belong to */
    bool spin, pinned;
    /* The job. Padding keeps fields that are written often on cache lines of their own. */
    nib_pool_job job;
    void *ctx;
    int64_t count, part, parts; /* part: elements per part */
    bool flush;
    distribution distribution;
    char pad0[LINE];
    atomic_uint_fast64_t gate;
    char pad1[LINE];
    atomic_int_fast64_t next; /* the next part */
    char pad2[LINE];
    atomic_uint_fast64_t pieces; /* finished by workers, in nib__pool_each */
    char pad3[LINE];
    atomic_int sleepers;
    atomic_bool stop;
    pthread_mutex_t lock;
    pthread_cond_t changed;
};

static uint64_t read_clock(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

uint64_t nib__now_ns(void) { return read_clock(CLOCK_MONOTONIC); }

uint64_t nib__worked_ns(void) { return read_clock(CLOCK_THREAD_CPUTIME_ID); }

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

double nib__median(double *values, int count)
{
    qsort(values, (size_t)count, sizeof *values, by_value);
    return count % 2 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

/* ---- control word ---- */

static nib_float_mode get_mode(void)
{
    nib_float_mode mode = {0};
#if defined(__SSE2__)
    mode.word = _mm_getcsr();
#elif defined(__aarch64__)
    __asm__ volatile("mrs %0, fpcr" : "=r"(mode.word));
#endif
    return mode;
}

void nib__float_mode_restore(nib_float_mode old)
{
#if defined(__SSE2__)
    _mm_setcsr((unsigned)old.word);
#elif defined(__aarch64__)
    __asm__ volatile("msr fpcr, %0" : : "r"(old.word));
#else
    (void)old;
#endif
}

/* Round to nearest, no traps; denormal inputs and results flushed or kept. */
static nib_float_mode mode_of(bool flush)
{
#if defined(__SSE2__)
    return (nib_float_mode){flush ? 0x1f80ul | 0x8040ul : 0x1f80ul}; /* masks | FTZ, DAZ */
#elif defined(__aarch64__)
    return (nib_float_mode){flush ? 1ul << 24 : 0};
#else
    (void)flush;
    return (nib_float_mode){0};
#endif
}

nib_float_mode nib__float_mode_flush(void)
{
    const nib_float_mode old = get_mode();
    nib__float_mode_restore(mode_of(true));
    return old;
}

/* ---- waiting ---- */

static inline void relax(void)
{
#if defined(__SSE2__)
    _mm_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Returns once *word differs from `old`: spins for a while, then sleeps. The sleeper increments the
 * count of sleepers before it reads the word for the last time, and a thread that changes the word
 * reads the count afterwards (all memory_order_seq_cst), so one of the two sees the other. */
static void wait_change(nib_pool *pool, atomic_uint_fast64_t *word, uint64_t old)
{
    if (pool->spin) {
        const uint64_t start = nib__now_ns();
        do {
            for (int i = 0; i < SPIN_TRIES; i++) {
                if (atomic_load_explicit(word, memory_order_acquire) != old)
                    return;
                relax();
            }
        } while (nib__now_ns() - start < SPIN_NS);
    }
    pthread_mutex_lock(&pool->lock);
    atomic_fetch_add(&pool->sleepers, 1);
    while (atomic_load(word) == old)
        pthread_cond_wait(&pool->changed, &pool->lock);
    atomic_fetch_sub(&pool->sleepers, 1);
    pthread_mutex_unlock(&pool->lock);
}

/* Call after changing a word (memory_order_seq_cst). */
static void wake(nib_pool *pool)
{
    if (atomic_load(&pool->sleepers) == 0)
        return;
    pthread_mutex_lock(&pool->lock);
    pthread_cond_broadcast(&pool->changed);
    pthread_mutex_unlock(&pool->lock);
}

/* ---- jobs ---- */

static void run_parts(nib_pool *pool, int index, uint64_t first, uint64_t end)
{
    const int64_t last = (int64_t)end == pool->parts ? pool->count : (int64_t)end * pool->part;
    pool->job(pool->ctx, index, (int64_t)first * pool->part, last);
}

/* Takes at most half of the rest of a range, from its front or its back. False: it is empty. */
static bool take_parts(const nib_pool *pool, range *r, bool from_back, uint64_t *first,
                       uint64_t *end)
{
    const uint64_t most =
        (uint64_t)nib__max(1, pool->parts / ((int64_t)pool->threads * PARTS_PER_THREAD));
    uint64_t left = atomic_load_explicit(&r->left, memory_order_relaxed), rest;
    do {
        const uint64_t from = left >> 32, to = left & UINT32_MAX;
        if (from == to)
            return false;
        const uint64_t half = (to - from + 1) / 2, some = half < most ? half : most;
        *first = from_back ? to - some : from;
        *end = *first + some;
        rest = from_back ? from << 32 | *first : *end << 32 | to;
    } while (!atomic_compare_exchange_weak_explicit(&r->left, &left, rest, memory_order_relaxed,
                                                    memory_order_relaxed));
    return true;
}

static range *find_fullest(const nib_pool *pool)
{
    range *most = NULL;
    uint64_t of_most = 0;
    for (int i = 0; i < pool->threads; i++) {
        const uint64_t left =
            atomic_load_explicit(&pool->workers[i].range.left, memory_order_relaxed);
        const uint64_t size = (left & UINT32_MAX) - (left >> 32);
        if (size > of_most) {
            of_most = size;
            most = &pool->workers[i].range;
        }
    }
    return most;
}

static void run_ranges(nib_pool *pool, int index)
{
    uint64_t first, end;
    range *r = &pool->workers[index].range;
    while (take_parts(pool, r, false, &first, &end))
        run_parts(pool, index, first, end);
    while ((r = find_fullest(pool)) != NULL)
        if (take_parts(pool, r, true, &first, &end))
            run_parts(pool, index, first, end);
}

static void work(nib_pool *pool, int index)
{
    if (pool->distribution == BY_WORKER) {
        pool->job(pool->ctx, index, index, index + 1);
        return;
    }
    if (pool->distribution == BY_RANGE) {
        run_ranges(pool, index);
        return;
    }
    for (;;) {
        const int64_t i = atomic_fetch_add_explicit(&pool->next, 1, memory_order_relaxed);
        if (i >= pool->parts)
            return;
        const int64_t begin = i * pool->part;
        pool->job(pool->ctx, index, begin, i + 1 == pool->parts ? pool->count : begin + pool->part);
    }
}

static void *worker_main(void *arg)
{
    const worker *self = arg;
    nib_pool *pool = self->pool;
    uint64_t seen = 0; /* number of the last job joined */
    while (!atomic_load(&pool->stop)) {
        uint64_t gate = atomic_load_explicit(&pool->gate, memory_order_acquire);
        if (!(gate & OPEN) || gate / NUMBER == seen) {
            if (!atomic_load(&pool->stop))
                wait_change(pool, &pool->gate, gate);
            continue;
        }
        if (!atomic_compare_exchange_weak_explicit(&pool->gate, &gate, gate + 1,
                                                   memory_order_acquire, memory_order_relaxed))
            continue;
        seen = gate / NUMBER;
        nib__float_mode_restore(mode_of(pool->flush));
        work(pool, self->index);
        if (pool->distribution == BY_WORKER &&
            (int)atomic_fetch_add(&pool->pieces, 1) + 1 == pool->threads - 1)
            wake(pool);
        if ((atomic_fetch_sub(&pool->gate, 1) & (INSIDE | OPEN)) == 1)
            wake(pool); /* the last worker to leave a closed gate */
    }
    return NULL;
}

static void run_job(nib_pool *pool, distribution how)
{
    const nib_float_mode old = get_mode();
    nib__float_mode_restore(mode_of(pool->flush));
    pool->distribution = how;
    atomic_store_explicit(&pool->next, 0, memory_order_relaxed);
    atomic_store_explicit(&pool->pieces, 0, memory_order_relaxed);
    uint64_t gate = atomic_load_explicit(&pool->gate, memory_order_relaxed);
    atomic_store(&pool->gate, (gate / NUMBER + 1) * NUMBER | OPEN);
    wake(pool);
    work(pool, 0);
    if (how == BY_WORKER) {
        uint64_t pieces;
        while ((pieces = atomic_load(&pool->pieces)) != (uint64_t)pool->threads - 1)
            wait_change(pool, &pool->pieces, pieces);
    }
    gate = atomic_fetch_and(&pool->gate, ~OPEN) & ~OPEN;
    while (gate & INSIDE) {
        wait_change(pool, &pool->gate, gate);
        gate = atomic_load_explicit(&pool->gate, memory_order_acquire);
    }
    nib__float_mode_restore(old);
}

/* Runs the job here if it is one part; false: it is not. */
static bool run_alone(nib_pool *pool, int64_t count, int64_t grain, bool flush, nib_pool_job job,
                      void *ctx)
{
    if (count > grain && pool->threads > 1)
        return false;
    const nib_float_mode old = get_mode();
    nib__float_mode_restore(mode_of(flush));
    if (count > 0)
        job(ctx, 0, 0, count);
    nib__float_mode_restore(old);
    return true;
}

/* Sets a job with parts of `part` elements. */
static void set_job(nib_pool *pool, int64_t count, int64_t part, bool flush, nib_pool_job job,
                    void *ctx)
{
    pool->job = job;
    pool->ctx = ctx;
    pool->count = count;
    pool->part = part;
    pool->parts = nib__ceil_div(count, part);
    pool->flush = flush;
}

void nib__pool_run(nib_pool *pool, int64_t count, int64_t grain, bool flush_denormals,
                   nib_pool_job job, void *ctx)
{
    grain = nib__max(1, grain);
    if (run_alone(pool, count, grain, flush_denormals, job, ctx))
        return;
    const int64_t per_part =
        nib__ceil_div(count, grain) / ((int64_t)pool->threads * PARTS_PER_THREAD);
    set_job(pool, count, nib__max(1, per_part) * grain, flush_denormals, job, ctx);
    run_job(pool, BY_QUEUE);
}

void nib__pool_share_out(nib_pool *pool, int64_t count, int64_t grain, bool flush_denormals,
                         nib_pool_job job, void *ctx)
{
    const int64_t least = nib__ceil_div(count, UINT32_MAX); /* parts are counted in 32 bits */
    grain = nib__max(nib__max(1, grain), least);
    if (run_alone(pool, count, grain, flush_denormals, job, ctx))
        return;
    set_job(pool, count, grain, flush_denormals, job, ctx);
    for (int i = 0; i < pool->threads; i++) {
        const uint64_t first = (uint64_t)(pool->parts * i / pool->threads),
                       end = (uint64_t)(pool->parts * (i + 1) / pool->threads);
        atomic_store_explicit(&pool->workers[i].range.left, first << 32 | end,
                              memory_order_relaxed);
    }
    run_job(pool, BY_RANGE);
}

void nib__pool_each(nib_pool *pool, bool flush_denormals, nib_pool_job job, void *ctx)
{
    if (pool->threads == 1) {
        nib__pool_run(pool, 1, 1, flush_denormals, job, ctx);
        return;
    }
    pool->job = job;
    pool->ctx = ctx;
    pool->flush = flush_denormals;
    run_job(pool, BY_WORKER);
}

/* ---- cores ---- */

#if defined(__linux__)
enum { SETS = 16 }; /* of 1,024 cores each */

int nib__cores_allowed(void)
{
    cpu_set_t mask[SETS];
    if (sched_getaffinity(0, sizeof mask, mask) == 0) {
        const int count = CPU_COUNT_S(sizeof mask, mask);
        if (count > 0)
            return count;
    }
    const long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 ? (int)online : 1;
}

nib_hash nib__cores_hash(void)
{
    cpu_set_t mask[SETS];
    memset(mask, 0, sizeof mask); /* the kernel may write less */
    (void)sched_getaffinity(0, sizeof mask, mask);
    return nib__hash_bytes(mask, sizeof mask);
}

/* Moves the calling thread, and every thread that it starts later, to its share of the cores.
 * Returns the number of cores there; 0 if the system does not allow it. */
static int pin_to_share(nib_share share, int cores)
{
    cpu_set_t allowed[SETS], own[SETS];
    const int first = (int)((int64_t)cores * share.slice / share.slices),
              end = (int)((int64_t)cores * (share.slice + 1) / share.slices);
    if (sched_getaffinity(0, sizeof allowed, allowed) != 0)
        return 0;
    CPU_ZERO_S(sizeof own, own);
    int index = 0;
    for (size_t cpu = 0; cpu < SETS * CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET_S(cpu, sizeof allowed, allowed))
            continue;
        if (index >= first && index < end)
            CPU_SET_S(cpu, sizeof own, own);
        index++;
    }
    return sched_setaffinity(0, sizeof own, own) == 0 ? end - first : 0;
}

/* Pins each worker to one core of the caller's mask. The core that the caller runs on stays free
 * for it; the caller's own mask is not changed. */
static bool pin_workers(nib_pool *pool)
{
    cpu_set_t allowed[SETS], one[SETS];
    if (sched_getaffinity(0, sizeof allowed, allowed) != 0)
        return false;
    const int caller_cpu = sched_getcpu();
    int index = 1;
    for (size_t cpu = 0; cpu < SETS * CPU_SETSIZE && index < pool->threads; cpu++) {
        if ((int)cpu == caller_cpu || !CPU_ISSET_S(cpu, sizeof allowed, allowed))
            continue;
        CPU_ZERO_S(sizeof one, one);
        CPU_SET_S(cpu, sizeof one, one);
        if (pthread_setaffinity_np(pool->workers[index].thread, sizeof one, one) != 0)
            return false;
        index++;
    }
    return index == pool->threads;
}
#else
int nib__cores_allowed(void)
{
    const long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 ? (int)online : 1;
}

nib_hash nib__cores_hash(void)
{
    const int cores = nib__cores_allowed();
    return nib__hash_bytes(&cores, sizeof cores);
}

static int pin_to_share(nib_share share, int cores)
{
    return (int)((int64_t)cores * (share.slice + 1) / share.slices -
                 (int64_t)cores * share.slice / share.slices);
}

static bool pin_workers(nib_pool *pool)
{
    (void)pool;
    return false;
}
#endif

/* ---- life ---- */

/* Stops the workers and frees the pool; `started` counts running workers and the caller. */
static void free_pool(nib_pool *pool)
{
    const nib_allocator a = pool->allocator;
    nib__release(&a, pool->workers);
    nib__release(&a, pool);
}

static void stop_and_free(nib_pool *pool, int started)
{
    atomic_store(&pool->stop, true);
    atomic_fetch_add(&pool->gate, NUMBER); /* closed but changed: waiters look again */
    wake(pool);
    for (int i = 1; i < started; i++)
        pthread_join(pool->workers[i].thread, NULL);
    pthread_cond_destroy(&pool->changed);
    pthread_mutex_destroy(&pool->lock);
    free_pool(pool);
}

/* Starts the workers with signals blocked, because signals are for the program's own threads.
 * Faults stay unblocked: if a worker reads a file that was truncated, a blocked SIGBUS would kill
 * the program whatever handler it has. */
static int start_workers(nib_pool *pool)
{
    static const int faults[] = {SIGBUS, SIGSEGV, SIGFPE, SIGILL};
    sigset_t all, old;
    sigfillset(&all);
    for (size_t i = 0; i < COUNT(faults); i++)
        sigdelset(&all, faults[i]);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int started = 1;
    while (started < pool->threads) {
        worker *w = &pool->workers[started];
        *w = (worker){.pool = pool, .index = started};
        if (pthread_create(&w->thread, NULL, worker_main, w) != 0)
            break;
        started++;
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return started;
}

/* The number of cores that only this process uses; 0: all are shared. */
static int count_own_cores(nib_share share)
{
    const int cores = nib__cores_allowed();
    if (share.slices < 2)
        return cores;
    return share.slices <= cores ? pin_to_share(share, cores) : 0;
}

nib_status nib__pool_open(nib_pool **out, int threads, const nib_allocator *a, nib_err *err)
{
    return nib__pool_open_share(out, threads, (nib_share){0}, a, err);
}

nib_status nib__pool_open_share(nib_pool **out, int threads, nib_share share,
                                const nib_allocator *a, nib_err *err)
{
    const int cores = count_own_cores(share);
    if (threads < 0 || threads > MOST_THREADS)
        return nib__fail(err, NIB_USAGE, "%d threads: must be 0 (all cores) to %d", threads,
                         MOST_THREADS);
    if (threads == 0)
        threads = (int)nib__max(1, nib__min(cores, MOST_THREADS));
    nib_pool *pool = nib__calloc(a, 1, sizeof *pool);
    worker *workers = nib__calloc(a, (uint64_t)threads, sizeof *workers);
    if (pool == NULL || workers == NULL) {
        nib__release(a, pool);
        nib__release(a, workers);
        return nib__fail_memory(err, sizeof *pool, "the thread pool");
    }
    pool->allocator = *a;
    pool->workers = workers;
    pool->threads = threads;
    pool->process = getpid();
    pool->spin = threads <= cores;
    /* Start at job 1: workers begin with 0 as the last job seen. */
    atomic_init(&pool->gate, NUMBER);
    atomic_init(&pool->next, 0);
    atomic_init(&pool->pieces, 0);
    atomic_init(&pool->sleepers, 0);
    atomic_init(&pool->stop, false);
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->changed, NULL);
    const int started = start_workers(pool);
    if (started < threads) {
        stop_and_free(pool, started);
        return nib__fail(err, NIB_NO_MEMORY, "the system started only %d of %d threads; use fewer",
                         started, threads);
    }
    pool->pinned = pool->spin && threads > 1 && pin_workers(pool);
    *out = pool;
    return NIB_OK;
}

bool nib__pool_forked(const nib_pool *pool) { return pool->process != getpid(); }

void nib__pool_close(nib_pool *pool)
{
    if (pool == NULL)
        return;
    if (nib__pool_forked(pool))
        free_pool(pool); /* the workers, who wait for `changed`, are in another process */
    else
        stop_and_free(pool, pool->threads);
}

int nib__pool_threads(const nib_pool *pool) { return pool->threads; }

bool nib__pool_pinned(const nib_pool *pool) { return pool->pinned; }
