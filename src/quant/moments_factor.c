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
        for (int64_t l = end; l < k; l++)
            for (int64_t j = 0; j < NIB_MOMENTS_PANEL; j++)
                after[(l - end) * NIB_MOMENTS_PANEL + j] =
                    first + j < end ? h[(first + j) * k + l] : 0;
        nib__pool_run(pool, end - first, 16, false, run_panel, &f);
        if (!factor_corner(&f.panel))
            return false;
        f.is_first = false;
        nib__pool_run(pool, first, 16, false, run_panel, &f);
        end = first;
    }
    return true;
}
