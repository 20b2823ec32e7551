/* SPDX-License-Identifier: Apache-2.0
 *
 * What the casts of a step lose, on request: how many values of each side of each product of each
 * linear layer became the largest code or 0. A watch on the step counts them in f32 before the rows
 * cast them. Counting is slow and does not change the result.
 */
#ifndef NIB_CAST_LOSSES_H
#define NIB_CAST_LOSSES_H

#include "cast.h"
#include "trainer.h"

typedef struct nib_cast_losses {
    nib_trainer *trainer; /* NULL: not open */
    /* [site_count], for the x side and the W side of each product, over the tokens of the step */
    nib_cast_counts (*sites)[NIB_PRODUCTS][2];
    nib_cast_counts *workers; /* [threads] */
    nib_step_watch watch;
} nib_cast_losses;

nib_status nib__cast_losses_open(nib_cast_losses *out, nib_trainer *trainer, nib_err *err);
void nib__cast_losses_close(nib_cast_losses *losses);

/* Call before a step: resets the counts, and counts the weights. */
void nib__cast_losses_begin(nib_cast_losses *losses);
/* Call on every rank after the step. Rank 0 gets the counts of all ranks. */
nib_status nib__cast_losses_end(nib_cast_losses *losses, nib_err *err);

/* One side of one product of a layer. */
typedef struct nib_cast_line {
    const char *layer, *operand; /* "x", "w" or "dy" */
    const char *product;         /* "y", "dx" or "dw" */
    const char *code;            /* "e4m3", "e5m2", "mxfp8" */
    nib_cast_counts counts;
    uint64_t values; /* all values of the side */
} nib_cast_line;

/* The line of a site, a product and a side (0: x, 1: W); false: the side keeps 16 bits or more, and
 * so its range. */
bool nib__cast_losses_line(nib_cast_line *out, const nib_cast_losses *losses, size_t site,
                           int product, int side);
/* Writes all lines as text. */
void nib__cast_losses_write(nib_text *text, const nib_cast_losses *losses, int64_t step);

#endif
