/* SPDX-License-Identifier: Apache-2.0
 *
 * Values are summed within each row, then over the rows in order, so that the result does not
 * depend on the number of threads.
 */
#include "sqnr.h"

#include <math.h>

enum { BLOCK = 1 << 20 }; /* values compared before their pages are released */

typedef struct comparison {
    const nib_weight *a, *b;
    int64_t first;          /* first row of the current block */
    float *rows;            /* [threads][2][k] */
    double *signal, *error; /* [n] */
} comparison;

static double to_decibels(double signal, double error)
{
    return error == 0 ? (double)INFINITY : 10 * log10(signal / error);
}

/* Adds to the sums over `count` values. */
static void add_values(double *signal, double *error, const float *a, const float *b, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        const double difference = (double)a[i] - (double)b[i];
        *signal += (double)b[i] * (double)b[i];
        *error += difference * difference;
    }
}

static void compare_rows(void *ctx, int worker, int64_t begin, int64_t end)
{
    comparison *c = ctx;
    const int64_t k = c->a->k;
    float *a = c->rows + 2 * worker * k, *b = a + k;
    for (int64_t i = c->first + begin; i < c->first + end; i++) {
        nib__weight_row(c->a, i, a);
        nib__weight_row(c->b, i, b);
        add_values(&c->signal[i], &c->error[i], a, b, k);
    }
}

static void compare_blocks(comparison *c, const nib_weight_source *a, const nib_weight_source *b,
                           nib_pool *pool)
{
    const int64_t n = c->a->n, block = nib__max(1, BLOCK / c->a->k);
    for (c->first = 0; c->first < n; c->first += block) {
        const int64_t some = nib__min(block, n - c->first);
        nib__pool_run(pool, some, 4, false, compare_rows, c);
        nib__checkpoint_release_rows(a->checkpoint, a->weight, c->first, some);
        nib__checkpoint_release_rows(b->checkpoint, b->weight, c->first, some);
    }
}

nib_status nib__weight_distance(double *sqnr_db, const nib_weight_source *a,
                                const nib_weight_source *b, nib_pool *pool,
                                const nib_allocator *allocator, nib_err *err)
{
    nib_arena arena;
    comparison c = {.a = a->weight, .b = b->weight};
    const size_t n = (size_t)c.a->n, k = (size_t)c.a->k, threads = (size_t)nib__pool_threads(pool);
    nib__arena_init(&arena, allocator, 0);
    c.rows = nib__arena_take(&arena, 2 * threads * k, sizeof *c.rows);
    c.signal = nib__arena_take(&arena, n, sizeof *c.signal);
    c.error = nib__arena_take(&arena, n, sizeof *c.error);
    const bool allocated = c.rows != NULL && c.signal != NULL && c.error != NULL;
    if (allocated) {
        double signal = 0, error = 0;
        compare_blocks(&c, a, b, pool);
        for (size_t i = 0; i < n; i++) {
            signal += c.signal[i];
            error += c.error[i];
        }
        *sqnr_db = to_decibels(signal, error);
    }
    nib__arena_free(&arena);
    return allocated ? NIB_OK : nib__fail_memory(err, 2 * n * sizeof(double), "a comparison");
}

nib_status nib__bias_distance(double *sqnr_db, const nib_weight *a, const nib_weight *b,
                              const nib_allocator *allocator, nib_err *err)
{
    double signal = 0, error = 0;
    float *values = nib__calloc(allocator, 2 * (uint64_t)a->n, sizeof *values);
    if (values == NULL)
        return nib__fail_memory(err, 2 * (uint64_t)a->n * sizeof *values, "a comparison");
    nib__weight_bias(a, values);
    nib__weight_bias(b, values + a->n);
    add_values(&signal, &error, values, values + a->n, a->n);
    *sqnr_db = to_decibels(signal, error);
    nib__release(allocator, values);
    return NIB_OK;
}

double nib__tensor_distance(const nib_tensor *a, const nib_tensor *b)
{
    float x[256], y[256];
    double signal = 0, error = 0;
    const int64_t a_bytes = nib__type_bits(a->type) / 8, b_bytes = nib__type_bits(b->type) / 8;
    const int64_t count = (int64_t)a->bytes / a_bytes;
    for (int64_t at = 0; at < count; at += (int64_t)COUNT(x)) {
        const int64_t some = nib__min((int64_t)COUNT(x), count - at);
        nib__to_f32(x, a->data + at * a_bytes, a->type, some);
        nib__to_f32(y, b->data + at * b_bytes, b->type, some);
        add_values(&signal, &error, x, y, some);
    }
    return to_decibels(signal, error);
}
