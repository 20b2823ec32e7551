/* SPDX-License-Identifier: Apache-2.0
 *
 * The thread pool: every index runs once, ascending; every worker runs once; float control words,
 * sleep and wake, cores. The latency of an empty job is printed, not asserted, as it depends on the
 * machine.
 */
#include "failing.h"
#include "pool.h"
#include "skipping.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "refused.h"

static nib_allocator heap_of(void) { return nib__allocator_default(); }

static nib_pool *open_pool(int threads)
{
    const nib_allocator a = heap_of();
    nib_pool *pool = NULL;
    nib_err err = {0};
    assert_int_equal(nib__pool_open(&pool, threads, &a, &err), NIB_OK);
    return pool;
}

/* ---- parts ---- */

enum { MOST = 5000, THREADS = 9 };

typedef struct cover {
    unsigned char hits[MOST];
    int64_t count, grain;
    int threads;
    atomic_bool bad;
    int64_t last[THREADS]; /* begin of each worker's latest part */
} cover;

static void mark(void *ctx, int worker, int64_t begin, int64_t end)
{
    cover *c = ctx;
    if (worker < 0 || worker >= c->threads || begin >= end || end > c->count ||
        begin % c->grain != 0 || (end % c->grain != 0 && end != c->count) ||
        begin <= c->last[worker]) {
        atomic_store(&c->bad, true);
        return;
    }
    c->last[worker] = begin;
    for (int64_t i = begin; i < end; i++)
        c->hits[i]++; /* every index belongs to one part: no lock */
}

static void test_every_index_once(void **state)
{
    static const int64_t counts[] = {0, 1, 2, 3, 7, 8, 64, 65, 1000, 4999},
                         grains[] = {1, 2, 7, 64, 5000};
    (void)state;
    for (int threads = 1; threads <= THREADS; threads += threads < 4 ? 1 : 5) {
        nib_pool *pool = open_pool(threads);
        assert_int_equal(nib__pool_threads(pool), threads);
        for (size_t i = 0; i < COUNT(counts); i++) {
            for (size_t g = 0; g < COUNT(grains); g++) {
                cover *c = calloc(1, sizeof *c);
                assert_non_null(c);
                *c = (cover){.count = counts[i], .grain = grains[g], .threads = threads};
                for (int t = 0; t < THREADS; t++)
                    c->last[t] = -1;
                nib__pool_run(pool, counts[i], grains[g], false, mark, c);
                assert_false(atomic_load(&c->bad));
                for (int64_t k = 0; k < MOST; k++)
                    assert_int_equal(c->hits[k], k < counts[i]);
                free(c);
            }
        }
        nib__pool_close(pool);
    }
}

/* In a shared job a worker's own parts ascend; parts that it steals need not. */
static void mark_shared(void *ctx, int worker, int64_t begin, int64_t end)
{
    cover *c = ctx;
    if (worker >= 0 && worker < c->threads)
        c->last[worker] = -1;
    mark(ctx, worker, begin, end);
}

static void test_shared_job_runs_every_index_once(void **state)
{
    static const int64_t counts[] = {0, 1, 2, 3, 7, 8, 64, 65, 1000, 4999},
                         grains[] = {1, 2, 7, 64, 5000};
    (void)state;
    for (int threads = 1; threads <= THREADS; threads += threads < 4 ? 1 : 5) {
        nib_pool *pool = open_pool(threads);
        for (size_t i = 0; i < COUNT(counts) * COUNT(grains); i++) {
            const int64_t count = counts[i / COUNT(grains)], grain = grains[i % COUNT(grains)];
            cover *c = calloc(1, sizeof *c);
            assert_non_null(c);
            *c = (cover){.count = count, .grain = grain, .threads = threads};
            nib__pool_share_out(pool, count, grain, false, mark_shared, c);
            assert_false(atomic_load(&c->bad));
            for (int64_t k = 0; k < MOST; k++)
                assert_int_equal(c->hits[k], k < count);
            free(c);
        }
        nib__pool_close(pool);
    }
}

typedef struct stuck {
    atomic_int done;
    int64_t parts;
} stuck;

/* The worker with the first part finishes only after all other parts are done. */
static void wait_for_others(void *ctx, int worker, int64_t begin, int64_t end)
{
    stuck *s = ctx;
    (void)worker;
    for (int64_t i = begin; i < end; i++)
        atomic_fetch_add(&s->done, 1);
    while (begin == 0 && atomic_load(&s->done) < s->parts)
        ;
}

static void test_other_workers_steal_from_a_slow_worker(void **state)
{
    (void)state;
    stuck s = {.parts = 1000};
    nib_pool *pool = open_pool(2);
    nib__pool_share_out(pool, s.parts, 1, false, wait_for_others, &s);
    assert_int_equal(atomic_load(&s.done), s.parts);
    nib__pool_close(pool);
}

static void set_largest(void *ctx, int worker, int64_t begin, int64_t end)
{
    (void)worker;
    int64_t *ends = ctx;
    if (begin == 0)
        ends[0] = end;
    if (end == INT64_MAX)
        ends[1] = begin;
}

static void test_largest_count(void **state)
{
    (void)state;
    nib_pool *pool = open_pool(2);
    int64_t ends[2] = {0, 0};
    nib__pool_run(pool, INT64_MAX, INT64_MAX / 3, false, set_largest, ends);
    assert_true(ends[0] >= INT64_MAX / 3);
    assert_true(ends[1] > 0);
    ends[0] = ends[1] = 0;
    nib__pool_share_out(pool, INT64_MAX, 1, false, set_largest, ends);
    assert_true(ends[0] > 0);
    assert_true(ends[1] > 0);
    nib__pool_close(pool);
}

/* ---- many jobs, hot and after sleep ---- */

static void add(void *ctx, int worker, int64_t begin, int64_t end)
{
    (void)worker;
    atomic_fetch_add((atomic_llong *)ctx, end - begin);
}

static void test_many_jobs(void **state)
{
    (void)state;
    for (int threads = 2; threads <= 6;
         threads += 2) { /* also more threads than cores, where nothing spins */
        nib_pool *pool = open_pool(threads);
        atomic_llong sum = 0;
        for (int i = 0; i < 2000; i++)
            nib__pool_run(pool, 10, 1, i % 2 == 0, add, &sum);
        assert_int_equal(atomic_load(&sum), 20000);
        nib__pool_close(pool);
    }
}

static void pause_for(long ns)
{
    const struct timespec time = {0, ns};
    nanosleep(&time, NULL);
}

static void test_wakes_after_sleep(void **state)
{
    (void)state;
    nib_pool *pool = open_pool(2);
    atomic_llong sum = 0;
    for (int i = 0; i < 50; i++) {
        nib__pool_run(pool, 100, 1, false, add, &sum);
        pause_for(i % 2 == 0 ? 30000 : 300000); /* about when workers fall asleep, and long after */
    }
    assert_int_equal(atomic_load(&sum), 5000);
    pause_for(1000000);
    nib__pool_close(pool); /* workers are asleep */
}

/* ---- each ---- */

typedef struct rounds {
    int value[THREADS]; /* written by its worker only */
    atomic_int inside, threads;
    atomic_bool bad;
} rounds;

/* Returns once all pieces are running; it would hang if pieces ran one after another. */
static void meet(void *ctx, int worker, int64_t begin, int64_t end)
{
    rounds *r = ctx;
    if (begin != worker || end != worker + 1)
        atomic_store(&r->bad, true);
    r->value[worker]++;
    atomic_fetch_add(&r->inside, 1);
    while (atomic_load(&r->inside) < atomic_load(&r->threads))
        sched_yield();
}

static void test_each_worker_runs_once(void **state)
{
    (void)state;
    for (int threads = 1; threads <= 4; threads++) {
        nib_pool *pool = open_pool(threads);
        rounds r = {.threads = threads};
        for (int i = 0; i < 200; i++) {
            atomic_store(&r.inside, 0);
            nib__pool_each(pool, false, meet, &r);
        }
        assert_false(atomic_load(&r.bad));
        for (int i = 0; i < threads; i++)
            assert_int_equal(r.value[i], 200);
        nib__pool_close(pool);
    }
}

/* ---- control word ---- */

#if defined(__SSE2__) || defined(__aarch64__)
typedef struct halves {
    atomic_int flushed, kept;
} halves;

static void halve(void *ctx, int worker, int64_t begin, int64_t end)
{
    (void)worker, (void)begin, (void)end;
    halves *h = ctx;
    volatile float smallest = 0x1p-126f;
    volatile float half = smallest * 0.5f;
    atomic_fetch_add(half == 0 ? &h->flushed : &h->kept, 1);
    nib_float_mode ignored = nib__float_mode_flush(); /* must not leak to the caller */
    (void)ignored;
}

static void test_control_word(void **state)
{
    (void)state;
    for (int threads = 1; threads <= 3; threads++) {
        nib_pool *pool = open_pool(threads);
        halves h = {0};
        nib__pool_each(pool, true, halve, &h);
        assert_int_equal(atomic_load(&h.flushed), threads);
        volatile float smallest = 0x1p-126f;
        assert_true(smallest * 0.5f != 0); /* the caller's word is back */
        nib__pool_each(pool, false, halve, &h);
        assert_int_equal(atomic_load(&h.kept), threads);
        /* A caller that flushes denormals keeps its own control word, and jobs do not inherit it.
         */
        const nib_float_mode old = nib__float_mode_flush();
        nib__pool_each(pool, false, halve, &h);
        volatile float half = smallest * 0.5f;
        nib__float_mode_restore(old);
        assert_int_equal(atomic_load(&h.kept), 2 * threads);
        assert_true(half == 0);
        assert_true(smallest * 0.5f != 0);
        nib__pool_close(pool);
    }
}
#else
static void test_control_word(void **state)
{
    (void)state;
    skip_test(__func__, "needs an x86-64 processor");
}
#endif

/* ---- opening ---- */

static void test_open(void **state)
{
    (void)state;
    const nib_allocator a = heap_of();
    nib_pool *pool = NULL;
    nib_err err = {0};
    const int cores = nib__cores_allowed();
    assert_true(cores >= 1);
    refused(NIB_USAGE, nib__pool_open(&pool, -1, &a, &err), &err);
    refused(NIB_USAGE, nib__pool_open(&pool, 1 << 20, &a, &err), &err);
    assert_null(pool);
    pool = open_pool(0);
    assert_int_equal(nib__pool_threads(pool), cores);
    nib__pool_close(pool);
    pool = open_pool(cores + 1);
    assert_false(nib__pool_pinned(pool));
    nib__pool_close(pool);
    assert_int_equal(nib__cores_allowed(), cores); /* the caller was not pinned */
    nib__pool_close(NULL);
}

/* Two threads stand in for two processes that share the cores, as each thread has its own mask. */
static void *open_slice(void *to)
{
    nib_share *share = to;
    const nib_allocator a = heap_of();
    nib_pool *pool;
    if (nib__pool_open_share(&pool, 0, *share, &a, NULL) != NIB_OK)
        return NULL;
    share->slice = nib__pool_threads(pool);
    share->slices = nib__cores_allowed();
    if (nib__pool_pinned(pool) && share->slices == 1)
        share->slice = -1;
    nib__pool_close(pool);
    return to;
}

static nib_share slice_of(int slice, int slices)
{
    nib_share share = {slice, slices};
    pthread_t thread;
    void *opened = NULL;
    assert_int_equal(pthread_create(&thread, NULL, open_slice, &share), 0);
    pthread_join(thread, &opened);
    assert_non_null(opened);
    return share; /* threads, cores */
}

static void test_share(void **state)
{
    (void)state;
    const int cores = nib__cores_allowed();
    int sum = 0;
    for (int i = 0; cores > 1 && i < 2; i++) {
        const nib_share got = slice_of(i, 2);
        assert_int_equal(got.slice, got.slices);
        sum += got.slices;
    }
    if (cores > 1)
        assert_int_equal(sum, cores);
    const nib_share crowded = slice_of(cores, cores + 1);
    assert_int_equal(crowded.slice, 1);      /* thread */
    assert_int_equal(crowded.slices, cores); /* where it may run */
    assert_int_equal(nib__cores_allowed(), cores);
}

static void test_memory_fails(void **state)
{
    (void)state;
    for (int n = 0;; n++) {
        failing f = {.left = n};
        const nib_allocator a = failing_allocator(&f);
        nib_pool *pool = NULL;
        nib_err err = {0};
        const nib_status status = nib__pool_open(&pool, 2, &a, &err);
        if (status == NIB_OK)
            nib__pool_close(pool);
        assert_int_equal(f.live, 0);
        if (status == NIB_OK) {
            assert_true(n > 0);
            return;
        }
        assert_int_equal(status, NIB_NO_MEMORY);
        assert_null(pool);
    }
}

static void test_clock(void **state)
{
    (void)state;
    const uint64_t before = nib__now_ns();
    pause_for(2000000);
    const uint64_t passed = nib__now_ns() - before;
    assert_true(passed >= 2000000 && passed < 60u * 1000000000u);
}

static void nothing(void *ctx, int worker, int64_t begin, int64_t end)
{
    (void)ctx, (void)worker, (void)begin, (void)end;
}

static void test_latency(void **state)
{
    (void)state;
    nib_pool *pool = open_pool(2);
    int64_t best_run = INT64_MAX, best_each = INT64_MAX;
    for (int round = 0; round < 20; round++) {
        uint64_t start = nib__now_ns();
        for (int i = 0; i < 200; i++)
            nib__pool_run(pool, 2, 1, true, nothing, NULL);
        best_run = nib__min(best_run, (int64_t)(nib__now_ns() - start) / 200);
        start = nib__now_ns();
        for (int i = 0; i < 200; i++)
            nib__pool_each(pool, true, nothing, NULL);
        best_each = nib__min(best_each, (int64_t)(nib__now_ns() - start) / 200);
    }
    print_message("an empty job of 2 threads: run %d ns, each %d ns\n", (int)best_run,
                  (int)best_each);
    nib__pool_close(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_open),
        cmocka_unit_test(test_share),
        cmocka_unit_test(test_memory_fails),
        cmocka_unit_test(test_every_index_once),
        cmocka_unit_test(test_shared_job_runs_every_index_once),
        cmocka_unit_test(test_other_workers_steal_from_a_slow_worker),
        cmocka_unit_test(test_largest_count),
        cmocka_unit_test(test_many_jobs),
        cmocka_unit_test(test_wakes_after_sleep),
        cmocka_unit_test(test_each_worker_runs_once),
        cmocka_unit_test(test_control_word),
        cmocka_unit_test(test_clock),
        cmocka_unit_test(test_latency),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
