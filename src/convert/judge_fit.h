/* SPDX-License-Identifier: Apache-2.0
 *
 * Relations of a weight to a source other than rounding: factors of its rows and columns, as AWQ
 * and SmoothQuant leave them, and rotations. Private to judge.c.
 */
#ifndef NIB_JUDGE_FIT_H
#define NIB_JUDGE_FIT_H

#include "judge.h"

typedef struct nib_fit {
    double plain;      /* correlation of all values with the source's */
    double scaled;     /* the same, with the best factors of rows and columns */
    double columns[2]; /* their smallest and largest, with the mean of the columns' 1 */
    double rows[2];
    /* Correlations of the inner products of pairs of rows, and of pairs of columns, with the
     * source's: rotations keep one of them. 0: too few of them. */
    double row_products, column_products;
} nib_fit;

/* Reads both weights a few times. */
nib_status nib__fit_source(nib_fit *out, const nib_judge_pair *pair, nib_arena *arena,
                           nib_err *err);

#endif
