/* SPDX-License-Identifier: Apache-2.0
 *
 * Second moments of inputs and their factor: moments.h. Include this with NIB_MOMENTS naming the
 * functions of one instruction set.
 */
#include "lanes.h"
#include "moments.h"
#include "ops.h"

enum { TILE_ROWS = 6, PANEL_ROWS = 4, PANEL_COLUMNS = 8 };

/* ---- H ---- */

/* Columns [c, c + NIB_MOMENTS_TILE) of x, zeros past k. */
static void pack_columns(float *out, const nib_moments_add *a, int64_t c)
{
    const int64_t count = nib__min(NIB_MOMENTS_TILE, a->k - c);
    for (int64_t t = 0; t < a->m; t++, out += NIB_MOMENTS_TILE) {
        memcpy(out, a->x + t * a->ld + c, (size_t)count * sizeof *out);
        memset(out + count, 0, (size_t)(NIB_MOMENTS_TILE - count) * sizeof *out);
    }
}

/* Adds TILE_ROWS x NIB_LANES products; rows from i0, columns from j0. */
NIB_INLINE void add_block(const nib_moments_add *a, const float *x, const float *y, int64_t i0,
                          int64_t j0)
{
    nib_lanes sum[TILE_ROWS];
    for (int r = 0; r < TILE_ROWS; r++)
        sum[r] = nib__lanes_set(0);
    for (int64_t t = 0; t < a->m; t++, x += NIB_MOMENTS_TILE, y += NIB_MOMENTS_TILE) {
        const nib_lanes v = nib__lanes_load(y);
        for (int r = 0; r < TILE_ROWS; r++)
            sum[r] = nib__lanes_fma(nib__lanes_set(x[r]), v, sum[r]);
    }
    for (int64_t r = 0; r < TILE_ROWS && i0 + r < a->k; r++) {
        float each[NIB_LANES];
        double *h = a->h + (i0 + r) * a->k + j0;
        const int64_t count = nib__min(NIB_LANES, a->k - j0);
        nib__lanes_store(each, sum[r]);
        for (int64_t l = nib__max(i0 + r - j0, 0); l < count; l++)
            h[l] += (double)each[l];
    }
}

static void moments_add(const nib_moments_add *a, int64_t tile0, int64_t tile1, float *scratch)
{
    const int64_t side = nib__ceil_div(a->k, NIB_MOMENTS_TILE);
    float *x = scratch, *y = scratch + NIB_MOMENTS_TOKENS * NIB_MOMENTS_TILE;
    int64_t row = 0, before = 0; /* tiles of the rows before `row` */
    for (int64_t tile = tile0; tile < tile1; tile++) {
        while (tile - before >= side - row)
            before += side - row++;
        const int64_t i0 = row * NIB_MOMENTS_TILE, j0 = (row + tile - before) * NIB_MOMENTS_TILE;
        pack_columns(x, a, i0);
        pack_columns(y, a, j0);
        for (int64_t j = 0; j < NIB_MOMENTS_TILE && j0 + j < a->k; j += NIB_LANES)
            for (int64_t i = 0; i < NIB_MOMENTS_TILE && i0 + i < a->k; i += TILE_ROWS)
                if (i0 + i < j0 + j + NIB_LANES)
                    add_block(a, x + i, y + j, i0 + i, j0 + j);
    }
}

/* ---- R ---- */

NIB_INLINE void subtract_from(const nib_moments_panel *a, int64_t row, int rows, int64_t column)
{
    double sum[PANEL_ROWS][PANEL_COLUMNS] = {{0}};
    const int64_t count = nib__min(PANEL_COLUMNS, a->end - a->first - column);
    const double *r = a->h + row * a->k, *s = a->after + column;
    for (int64_t l = a->end; l < a->k; l++, s += NIB_MOMENTS_PANEL)
        for (int i = 0; i < rows; i++)
            for (int j = 0; j < PANEL_COLUMNS; j++)
                sum[i][j] += r[i * a->k + l] * s[j];
    for (int i = 0; i < rows; i++)
        for (int64_t j = 0; j < count; j++)
            a->h[(row + i) * a->k + a->first + column + j] -= sum[i][j];
}

static void moments_subtract(const nib_moments_panel *a, int64_t row0, int64_t row1)
{
    for (int64_t column = 0; column < a->end - a->first; column += PANEL_COLUMNS) {
        int64_t i = row0;
        for (; i + PANEL_ROWS <= row1; i += PANEL_ROWS)
            subtract_from(a, i, PANEL_ROWS, column);
        for (; i < row1; i++)
            subtract_from(a, i, 1, column);
    }
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
