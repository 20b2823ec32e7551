/* SPDX-License-Identifier: Apache-2.0
 *
 * A panel: its own rows, which one worker finishes, then the rows before it, shared among all.
 */
#include "moments_factor.h"

#include <math.h>

typedef struct factoring {
    const nib_moments_rows *rows;
    nib_moments_panel panel;
    bool is_first; /* subtracts, of the panel's own rows */
} factoring;

static void run_panel(void *ctx, int worker, int64_t begin, int64_t end)
{
    const factoring *f = ctx;
    (void)worker;
    if (f->is_first) {
        f->rows->subtract(&f->panel, f->panel.first + begin, f->panel.first + end);
        return;
    }
    f->rows->subtract(&f->panel, begin, end);
    f->rows->solve(&f->panel, begin, end);
}

typedef struct transposing {
    const nib_moments_panel *panel;
    double *after;
} transposing;

/* Copies the panel's rows, of columns [begin, end) after it, to `after`. */
static void transpose_columns(void *ctx, int worker, int64_t begin, int64_t end)
{
    const transposing *t = ctx;
    const nib_moments_panel *p = t->panel;
    const int64_t columns = p->k - p->end;
    (void)worker;
    for (int64_t j = 0; j < NIB_MOMENTS_PANEL; j++) {
        const double *from = p->h + (p->first + j) * p->k + p->end;
        double *to =
            t->after + j / NIB_MOMENTS_STRIP * columns * NIB_MOMENTS_STRIP + j % NIB_MOMENTS_STRIP;
        for (int64_t l = begin; l < end; l++)
            to[l * NIB_MOMENTS_STRIP] = p->first + j < p->end ? from[l] : 0;
    }
}

/* The panel's own rows; false: H is not positive definite. */
static bool factor_corner(const nib_moments_panel *p)
{
    for (int64_t j = p->end - 1; j >= p->first; j--) {
        double *s = p->h + j * p->k, pivot = s[j];
        for (int64_t l = j + 1; l < p->end; l++)
            pivot -= s[l] * s[l];
        if (!(pivot > 0))
            return false;
        s[j] = sqrt(pivot);
        for (int64_t i = p->first; i < j; i++) {
            double *r = p->h + i * p->k, value = r[j];
            for (int64_t l = j + 1; l < p->end; l++)
                value -= r[l] * s[l];
            r[j] = value / s[j];
        }
    }
    return true;
}

bool nib__moments_factor(double *h, int64_t k, double *after, const nib_moments_rows *rows,
                         nib_pool *pool)
{
    for (int64_t end = k; end > 0;) {
        const int64_t first = nib__max(0, end - NIB_MOMENTS_PANEL);
        factoring f = {.rows = rows,
                       .panel = {.h = h, .k = k, .first = first, .end = end, .after = after},
                       .is_first = true};
        nib__pool_run(pool, k - end, 64, false, transpose_columns, &(transposing){&f.panel, after});
        nib__pool_run(pool, end - first, 16, false, run_panel, &f);
        if (!factor_corner(&f.panel))
            return false;
        f.is_first = false;
        nib__pool_run(pool, first, 16, false, run_panel, &f);
        end = first;
    }
    return true;
}
