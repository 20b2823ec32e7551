/* SPDX-License-Identifier: Apache-2.0
 *
 * Second moments of inputs and their factor: moments.h. Include this with NIB_MOMENTS naming the
 * functions of one instruction set.
 */
#include "lanes.h"
#include "moments.h"
#include "ops.h"

/* A block of products in registers: as many sums as the instruction set has room for. */
#if defined(__AVX512F__)
enum { TILE_ROWS = 12, TILE_LANES = 2 };
#else
enum { TILE_ROWS = 6, TILE_LANES = 1 };
#endif
enum { TILE_COLUMNS = TILE_LANES * NIB_LANES, PANEL_ROWS = 4 };

/* ---- H ---- */

/* Columns [c, c + NIB_MOMENTS_TILE) of x [m][ld], zeros past k. */
static void pack_columns(float *out, const nib_moments_add *a, const float *x, int64_t ld,
                         int64_t c)
{
    const int64_t count = nib__min(NIB_MOMENTS_TILE, a->k - c);
    for (int64_t t = 0; t < a->m; t++, out += NIB_MOMENTS_TILE) {
        memcpy(out, x + t * ld + c, (size_t)count * sizeof *out);
        memset(out + count, 0, (size_t)(NIB_MOMENTS_TILE - count) * sizeof *out);
    }
}

/* Asks for the part of a block's row that is added to, while its products are summed: rows of H lie
 * far apart. */
NIB_INLINE void prefetch_row(const nib_moments_add *a, int64_t i, int64_t j0)
{
    enum { LINE = 8 }; /* f64 */
    for (int64_t l = 0; l < TILE_COLUMNS; l += LINE)
        if (i < a->k && j0 + l < a->k)
            __builtin_prefetch(a->h + i * a->k + j0 + l, 1);
}

/* Adds TILE_ROWS x TILE_COLUMNS products; rows from i0, columns from j0. */
NIB_INLINE void add_block(const nib_moments_add *a, const float *x, const float *y, int64_t i0,
                          int64_t j0)
{
    nib_lanes sum[TILE_ROWS][TILE_LANES];
    const int64_t count = nib__min(TILE_COLUMNS, a->k - j0);
    for (int r = 0; r < TILE_ROWS; r++) {
        prefetch_row(a, i0 + r, j0);
        for (int c = 0; c < TILE_LANES; c++)
            sum[r][c] = nib__lanes_set(0);
    }
    for (int64_t t = 0; t < a->m; t++, x += NIB_MOMENTS_TILE, y += NIB_MOMENTS_TILE) {
        nib_lanes v[TILE_LANES];
        for (int c = 0; c < TILE_LANES; c++)
            v[c] = nib__lanes_load(y + c * NIB_LANES);
        for (int r = 0; r < TILE_ROWS; r++)
            for (int c = 0; c < TILE_LANES; c++)
                sum[r][c] = nib__lanes_fma(nib__lanes_set(x[r]), v[c], sum[r][c]);
    }
    for (int64_t r = 0; r < TILE_ROWS && i0 + r < a->k; r++) {
        float each[TILE_COLUMNS];
        double *h = a->h + (i0 + r) * a->k + j0;
        for (int c = 0; c < TILE_LANES; c++)
            nib__lanes_store(each + c * NIB_LANES, sum[r][c]);
        for (int64_t l = a->y != NULL ? 0 : nib__max(i0 + r - j0, 0); l < count; l++)
            h[l] += (double)each[l];
    }
}

static void moments_add(const nib_moments_add *a, int64_t tile0, int64_t tile1, float *scratch)
{
    const int64_t side = nib__ceil_div(a->k, NIB_MOMENTS_TILE);
    const bool all = a->y != NULL;
    float *x = scratch, *y = scratch + NIB_MOMENTS_TOKENS * NIB_MOMENTS_TILE;
    int64_t row = 0, before = 0, packed = -1; /* before: tiles of the rows before `row` */
    for (int64_t tile = tile0; tile < tile1; tile++) {
        while (tile - before >= side - (all ? 0 : row))
            before += side - (all ? 0 : row), row++;
        const int64_t i0 = row * NIB_MOMENTS_TILE,
                      j0 = ((all ? 0 : row) + tile - before) * NIB_MOMENTS_TILE;
        if (packed != row)
            pack_columns(x, a, a->x, a->ld, i0);
        packed = row;
        pack_columns(y, a, all ? a->y : a->x, all ? a->ld_y : a->ld, j0);
        for (int64_t j = 0; j < NIB_MOMENTS_TILE && j0 + j < a->k; j += TILE_COLUMNS)
            for (int64_t i = 0; i < NIB_MOMENTS_TILE && i0 + i < a->k; i += TILE_ROWS)
                if (all || i0 + i < j0 + j + TILE_COLUMNS)
                    add_block(a, x + i, y + j, i0 + i, j0 + j);
    }
}

/* ---- R ---- */

/* NIB_MOMENTS_STRIP sums in f64: sum + x * y, both rounded. */
#if defined(__AVX512F__)
typedef struct strip {
    __m512d v;
} strip;
NIB_INLINE strip strip_zero(void) { return (strip){_mm512_setzero_pd()}; }
NIB_INLINE strip strip_add(strip sum, double x, const double *y)
{
    return (strip){_mm512_add_pd(sum.v, _mm512_mul_pd(_mm512_set1_pd(x), _mm512_loadu_pd(y)))};
}
NIB_INLINE void strip_store(double *to, strip sum) { _mm512_storeu_pd(to, sum.v); }
#elif defined(__AVX2__)
typedef struct strip {
    __m256d v[2];
} strip;
NIB_INLINE strip strip_zero(void) { return (strip){{_mm256_setzero_pd(), _mm256_setzero_pd()}}; }
NIB_INLINE strip strip_add(strip sum, double x, const double *y)
{
    const __m256d all = _mm256_set1_pd(x);
    for (int i = 0; i < 2; i++)
        sum.v[i] = _mm256_add_pd(sum.v[i], _mm256_mul_pd(all, _mm256_loadu_pd(y + 4 * i)));
    return sum;
}
NIB_INLINE void strip_store(double *to, strip sum)
{
    _mm256_storeu_pd(to, sum.v[0]);
    _mm256_storeu_pd(to + 4, sum.v[1]);
}
#elif defined(NIB_LANES_NEON)
typedef struct strip {
    float64x2_t v[4];
} strip;
NIB_INLINE strip strip_zero(void)
{
    const float64x2_t zero = vdupq_n_f64(0);
    return (strip){{zero, zero, zero, zero}};
}
NIB_INLINE strip strip_add(strip sum, double x, const double *y)
{
    for (int i = 0; i < 4; i++)
        sum.v[i] = vaddq_f64(sum.v[i], vmulq_n_f64(vld1q_f64(y + 2 * i), x));
    return sum;
}
NIB_INLINE void strip_store(double *to, strip sum)
{
    for (int i = 0; i < 4; i++)
        vst1q_f64(to + 2 * i, sum.v[i]);
}
#else
typedef struct strip {
    double v[NIB_MOMENTS_STRIP];
} strip;
NIB_INLINE strip strip_zero(void) { return (strip){{0}}; }
NIB_INLINE strip strip_add(strip sum, double x, const double *y)
{
    for (int i = 0; i < NIB_MOMENTS_STRIP; i++)
        sum.v[i] += x * y[i];
    return sum;
}
NIB_INLINE void strip_store(double *to, strip sum) { memcpy(to, sum.v, sizeof sum.v); }
#endif

/* Subtracts from a strip of the panel's columns, for `rows` rows. Of the panel's own rows, what is
 * below the diagonal stays. */
NIB_INLINE void subtract_from(const nib_moments_panel *a, int64_t row, int rows, int64_t column)
{
    strip sum[PANEL_ROWS];
    const int64_t count = nib__min(NIB_MOMENTS_STRIP, a->end - a->first - column);
    const double *r = a->h + row * a->k, *s = a->after + column * (a->k - a->end);
    for (int i = 0; i < rows; i++)
        sum[i] = strip_zero();
    for (int64_t l = a->end; l < a->k; l++, s += NIB_MOMENTS_STRIP)
        for (int i = 0; i < rows; i++)
            sum[i] = strip_add(sum[i], r[i * a->k + l], s);
    for (int i = 0; i < rows; i++) {
        double each[NIB_MOMENTS_STRIP];
        double *h = a->h + (row + i) * a->k + a->first + column;
        strip_store(each, sum[i]);
        for (int64_t j = nib__max(0, row + i - a->first - column); j < count; j++)
            h[j] -= each[j];
    }
}

static void moments_subtract(const nib_moments_panel *a, int64_t row0, int64_t row1)
{
    int64_t i = row0;
    for (; i + PANEL_ROWS <= row1; i += PANEL_ROWS)
        for (int64_t c = 0; c < a->end - a->first; c += NIB_MOMENTS_STRIP)
            subtract_from(a, i, PANEL_ROWS, c);
    for (; i < row1; i++)
        for (int64_t c = 0; c < a->end - a->first; c += NIB_MOMENTS_STRIP)
            subtract_from(a, i, 1, c);
}

static void moments_solve(const nib_moments_panel *a, int64_t row0, int64_t row1)
{
    for (int64_t i = row0; i < row1; i++) {
        double *r = a->h + i * a->k;
        for (int64_t j = a->end - 1; j >= a->first; j--) {
            const double *s = a->h + j * a->k;
            double value = r[j];
            for (int64_t l = j + 1; l < a->end; l++)
                value -= r[l] * s[l];
            r[j] = value / s[j];
        }
    }
}

const nib_moments_rows NIB_MOMENTS = {moments_add, moments_subtract, moments_solve};
