/* SPDX-License-Identifier: Apache-2.0
 *
 * Curves of runs: reads points from metrics files and draws them as one SVG. Numbers are written
 * independently of the locale, so the same runs give the same bytes everywhere.
 */
#ifndef NIB_PLOT_H
#define NIB_PLOT_H

#include "engine.h"
#include "text.h"

enum { NIB_PLOT_RUNS = 24, NIB_PLOT_SMOOTH = 10000 };

typedef struct nib_curve {
    const char *name; /* for the legend */
    double *x, *y;    /* [count]: steps, and the value at each */
    size_t count;
} nib_curve;

/* Reads the points of a metrics file, or of metrics.jsonl in a directory; allocates in the
 * arena. */
nib_status nib__curve_read(nib_curve *out, const char *path, const char *value,
                           const nib_engine *engine, nib_arena *arena, nib_err *err);
/* Appends the SVG. Every curve needs at least one point. */
nib_status nib__plot_draw(nib_text *out, const nib_curve *curves, size_t count, const char *value,
                          int64_t smooth, nib_arena *arena, nib_err *err);

#endif
