/* SPDX-License-Identifier: Apache-2.0
 *
 * Factors second moments: H = R R^T, R upper triangular, panel by panel from the last column.
 */
#ifndef NIB_MOMENTS_FACTOR_H
#define NIB_MOMENTS_FACTOR_H

#include "moments.h"
#include "pool.h"

/* Replaces the upper triangle of h [k][k] by R; the lower one is neither read nor written. after:
 * room for [k][NIB_MOMENTS_PANEL]. false: H is not positive definite, and its upper triangle is
 * lost. */
bool nib__moments_factor(double *h, int64_t k, double *after, const nib_moments_rows *rows,
                         nib_pool *pool);

#endif
