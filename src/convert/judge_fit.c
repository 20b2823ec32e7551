/* SPDX-License-Identifier: Apache-2.0
 *
 * Factors are fitted by alternating least squares: w_ij = r_i c_j x_ij. Rows are summed in BLOCKS
 * parts, whatever the number of threads, and the parts in order.
 */
#include "judge_fit.h"

#include <math.h>

enum {
    BLOCKS = 16,
    ROUNDS = 3,
    PRODUCTS = 48 /* rows, and columns, whose products are compared */
};

typedef struct fitting {
    const nib_judge_pair *pair;
    float *rows;                /* [threads][2][k] */
    double *row, *column;       /* [n] and [k] factors */
    double *up, *down;          /* [BLOCKS][k] sums for the columns */
    double (*sums)[3];          /* [BLOCKS] products of the weight with the source, and squares */
    double *gram, *source_gram; /* [BLOCKS][PRODUCTS][PRODUCTS] of columns */
} fitting;

static void fit_row(const fitting *f, int64_t block, int64_t i, const float *w, const float *x)
{
    const int64_t k = f->pair->weight->k;
    double *up = f->up + block * k, *down = f->down + block * k, *sums = f->sums[block];
    double product = 0, square = 0;
    for (int64_t j = 0; j < k; j++) {
        const double fitted = f->column[j] * (double)x[j];
        product += (double)w[j] * fitted;
        square += fitted * fitted;
    }
    f->row[i] = square > 0 ? product / square : 0;
    for (int64_t j = 0; j < k; j++) {
        const double fitted = f->row[i] * (double)x[j];
        up[j] += (double)w[j] * fitted;
        down[j] += fitted * fitted;
        sums[0] += (double)w[j] * f->column[j] * fitted;
        sums[1] += (double)w[j] * (double)w[j];
        sums[2] += f->column[j] * fitted * f->column[j] * fitted;
    }
}

/* Adds the products of the chosen columns. */
static void add_products(double *gram, const float *x, int64_t k)
{
    const int64_t count = nib__min(k, PRODUCTS), step = k / count;
    for (int64_t a = 0; a < count; a++)
        for (int64_t b = 0; b < a; b++)
            gram[a * PRODUCTS + b] += (double)x[a * step] * (double)x[b * step];
}

static void fit_blocks(void *ctx, int worker, int64_t begin, int64_t end)
{
    const fitting *f = ctx;
    const nib_weight *w = f->pair->weight;
    float *a = f->rows + 2 * worker * w->k, *b = a + w->k;
    for (int64_t block = begin; block < end; block++)
        for (int64_t i = w->n * block / BLOCKS; i < w->n * (block + 1) / BLOCKS; i++) {
            nib__weight_row(w, i, a);
            nib__weight_row(f->pair->source, i, b);
            fit_row(f, block, i, a, b);
            if (f->gram != NULL) {
                add_products(f->gram + block * PRODUCTS * PRODUCTS, a, w->k);
                add_products(f->source_gram + block * PRODUCTS * PRODUCTS, b, w->k);
            }
        }
}

static double correlate(double product, double a, double b)
{
    return a > 0 && b > 0 ? product / sqrt(a * b) : 0;
}

/* One round; returns the correlation under the factors that it began with, rows refitted. */
static double run_round(fitting *f)
{
    const int64_t k = f->pair->weight->k;
    double sums[3] = {0, 0, 0};
    memset(f->up, 0, (size_t)(BLOCKS * k) * sizeof *f->up);
    memset(f->down, 0, (size_t)(BLOCKS * k) * sizeof *f->down);
    memset(f->sums, 0, BLOCKS * sizeof *f->sums);
    nib__pool_run(f->pair->pool, BLOCKS, 1, false, fit_blocks, f);
    for (int64_t j = 0; j < k; j++) {
        double up = 0, down = 0;
        for (int64_t block = 0; block < BLOCKS; block++) {
            up += f->up[block * k + j];
            down += f->down[block * k + j];
        }
        f->column[j] = down > 0 ? up / down : 0;
    }
    for (int64_t block = 0; block < BLOCKS; block++)
        for (int s = 0; s < 3; s++)
            sums[s] += f->sums[block][s];
    return correlate(sums[0], sums[1], sums[2]);
}

/* Correlation of the products below the diagonal. */
static double correlate_products(const double *a, const double *b, int64_t count)
{
    double product = 0, square_a = 0, square_b = 0;
    for (int64_t i = 0; i < count; i++)
        for (int64_t j = 0; j < i; j++) {
            const double x = a[i * PRODUCTS + j], y = b[i * PRODUCTS + j];
            product += x * y;
            square_a += x * x;
            square_b += y * y;
        }
    return count < PRODUCTS ? 0 : correlate(product, square_a, square_b);
}

static double compare_columns(const fitting *f)
{
    const size_t size = PRODUCTS * PRODUCTS;
    for (size_t block = 1; block < BLOCKS; block++)
        for (size_t i = 0; i < size; i++) {
            f->gram[i] += f->gram[block * size + i];
            f->source_gram[i] += f->source_gram[block * size + i];
        }
    return correlate_products(f->gram, f->source_gram, nib__min(f->pair->weight->k, PRODUCTS));
}

static nib_status compare_rows(double *out, const nib_judge_pair *pair, nib_arena *arena,
                               nib_err *err)
{
    const nib_weight *w = pair->weight;
    const int64_t count = nib__min(w->n, PRODUCTS), step = w->n / count, k = w->k;
    float *a = nib__arena_take(arena, (uint64_t)(2 * count * k), sizeof *a), *b = a + count * k;
    double *gram = nib__arena_take(arena, 2 * PRODUCTS * PRODUCTS, sizeof *gram);
    if (a == NULL || gram == NULL)
        return nib__fail_memory(err, (uint64_t)(2 * count * k) * sizeof *a, "a comparison");
    for (int64_t i = 0; i < count; i++) {
        nib__weight_row(w, i * step, a + i * k);
        nib__weight_row(pair->source, i * step, b + i * k);
        for (int64_t other = 0; other < i; other++)
            for (int64_t j = 0; j < k; j++) {
                gram[i * PRODUCTS + other] += (double)a[i * k + j] * (double)a[other * k + j];
                gram[PRODUCTS * PRODUCTS + i * PRODUCTS + other] +=
                    (double)b[i * k + j] * (double)b[other * k + j];
            }
    }
    *out = correlate_products(gram, gram + PRODUCTS * PRODUCTS, count);
    return NIB_OK;
}

static void find_range(double range[2], const double *factors, int64_t count, double unit)
{
    range[0] = INFINITY;
    range[1] = -INFINITY;
    for (int64_t i = 0; i < count; i++)
        if (factors[i] != 0) {
            range[0] = fmin(range[0], factors[i] * unit);
            range[1] = fmax(range[1], factors[i] * unit);
        }
}

nib_status nib__fit_source(nib_fit *out, const nib_judge_pair *pair, nib_arena *arena, nib_err *err)
{
    const nib_weight *w = pair->weight;
    const uint64_t n = (uint64_t)w->n, k = (uint64_t)w->k,
                   threads = (uint64_t)nib__pool_threads(pair->pool);
    fitting f = {.pair = pair,
                 .rows = nib__arena_take(arena, 2 * threads * k, sizeof *f.rows),
                 .row = nib__arena_take(arena, n, sizeof *f.row),
                 .column = nib__arena_take(arena, k, sizeof *f.column),
                 .up = nib__arena_take(arena, BLOCKS * k, sizeof *f.up),
                 .down = nib__arena_take(arena, BLOCKS * k, sizeof *f.down),
                 .sums = nib__arena_take(arena, BLOCKS, sizeof *f.sums),
                 .gram = nib__arena_take(arena, BLOCKS * PRODUCTS * PRODUCTS, sizeof *f.gram),
                 .source_gram =
                     nib__arena_take(arena, BLOCKS * PRODUCTS * PRODUCTS, sizeof *f.source_gram)};
    if (!f.rows || !f.row || !f.column || !f.up || !f.down || !f.sums || !f.gram || !f.source_gram)
        return nib__fail_memory(err, BLOCKS * k * sizeof *f.up, "a comparison");
    for (uint64_t j = 0; j < k; j++)
        f.column[j] = 1;
    out->plain = run_round(&f);
    out->column_products = compare_columns(&f);
    f.gram = NULL; /* the same in every round */
    for (int i = 0; i < ROUNDS; i++)
        out->scaled = run_round(&f);
    double mean = 0;
    for (uint64_t j = 0; j < k; j++)
        mean += f.column[j] / (double)k;
    find_range(out->columns, f.column, w->k, mean != 0 ? 1 / mean : 1);
    find_range(out->rows, f.row, w->n, mean);
    return compare_rows(&out->row_products, pair, arena, err);
}
