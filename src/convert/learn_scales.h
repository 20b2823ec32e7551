/* SPDX-License-Identifier: Apache-2.0
 *
 * Scales, and float zeros, of a coded weight that move against their gradients, for the method
 * learn. Codes stay. Each step moves a scale by a share of itself, against the sign of its
 * gradient.
 */
#ifndef NIB_LEARN_SCALES_H
#define NIB_LEARN_SCALES_H

#include "gptq_store.h"
#include "quant_w.h"

typedef struct nib_scales {
    nib_quantizer q;
    int64_t n, k, group;
    uint64_t scale_bytes, zero_bytes; /* of all rows */
    nib_codes codes;                  /* scales and zeros are its own; codes are borrowed */
    const nib_codes *first;           /* borrowed: what it started from */
    float *scale, *zero;              /* [n][groups] before they are rounded to their stored types;
                                         zero NULL: none, or integers */
} nib_scales;

/* Whether the scales of a scheme can move: powers of two are too far apart. */
bool nib__scales_move_in(const nib_quantizer *q);
/* Starts at codes of n rows, which must outlive it. Allocates in the arena. */
nib_status nib__scales_open(nib_scales *out, const nib_quantizer *q, int64_t n,
                            const nib_codes *codes, nib_arena *arena, nib_err *err);
/* Gives it scales [n][groups] and, if it has float zeros, zeros that it had after some steps. */
void nib__scales_set(nib_scales *t, const float *scale, const float *zero);
/* Moves rows [begin, end) against the gradient [n][k] of their values. rate: a share of the scales
 * at the start. */
void nib__scales_move(nib_scales *t, const float *gradient, float rate, int64_t begin, int64_t end);
/* The values of rows [begin, end), into out [n][k]. */
void nib__scales_values(const nib_scales *t, float *out, int64_t begin, int64_t end);

#endif
