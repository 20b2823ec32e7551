/* SPDX-License-Identifier: Apache-2.0
 *
 * The three products of a linear layer in training, y = x W^T, dx = dy W and dW = dy^T x: chooses
 * the row of each and the rows that encode its two sides, and runs them. A product sums over k, n
 * or m; blocks and scales of both sides run along that sum.
 */
#ifndef NIB_PRODUCT_H
#define NIB_PRODUCT_H

#include "gpu.h"
#include "planner.h"
#include "pool.h"

enum { NIB_PRODUCT_Y, NIB_PRODUCT_DX, NIB_PRODUCT_DW, NIB_PRODUCTS };

typedef struct nib_product {
    const nib_kernel *row, *quant, *cast; /* quant NULL: reads f32 rows */
    const nib_kernel *amax;
    nib_weight shape;    /* the W side, without data */
    nib_type input;      /* type of a float x side */
    bool x_amax, w_amax; /* e4m3: one scale for the whole side, from its largest magnitude */
    bool e5m2;           /* e4m3: codes of the x side are e5m2 */
    bool two_power;      /* e4m3: scales are powers of two */
} nib_product;

/* Where a product runs: on threads with `scratch_bytes` of scratch each, or on a device, whose
 * memory then holds all addresses of the product. Its rows decide which. */
typedef struct nib_workers {
    nib_pool *pool; /* NULL: only the calling thread, which is a worker of a pool */
    nib_gpu *gpu;   /* NULL: no device */
    char *scratch;
    uint64_t scratch_bytes;
    /* Not NULL: device rows are only compiled, and *refused is the one that cannot be */
    const nib_kernel **refused;
} nib_workers;

/* The product of a planned layer with m tokens. NIB_NOT_AS_ASKED: no row encodes a side. */
nib_status nib__product_find(nib_product *out, const nib_assignment *plan,
                             const nib_layer_plan *uses, int which, int64_t m, bool wgrad_with_hp,
                             nib_err *err);
/* Rows of the x side: m, m, n. */
int64_t nib__product_rows(const nib_layer *layer, int which, int64_t m);
uint64_t nib__product_scratch(const nib_product *p, int64_t rows);

/* The encoded x side of `rows` rows at `at`; *bytes (NULL allowed): its size. */
nib_input nib__product_input(const nib_product *p, int64_t rows, char *at, uint64_t *bytes);
/* Rows first..end of an x side. */
nib_input nib__product_input_rows(const nib_product *p, const nib_input *x, int64_t first,
                                  int64_t end);
/* The arguments of the rows that encode the x side and the W side, as below. `args.w` of a cast is
 * p->shape. */
nib_quant nib__product_quant_args(const nib_product *p, const float *x, int64_t ldx,
                                  const float *amax, const nib_input *out);
nib_cast nib__product_cast_args(const nib_product *p, const float *x, int64_t ldx,
                                const float *amax, void *to);
/* Outputs n0..n1 of all rows of x on the calling thread of the CPU, which flushes denormals. y: of
 * output 0. n0 is a multiple of the row's n_step. */
void nib__product_part(const nib_product *p, const nib_input *x, const void *packed,
                       const float *bias, float *y, int64_t ldy, int64_t n0, int64_t n1,
                       void *scratch);

/* The functions below can fail on a device only. */

/* Encodes the x side: rows of x, or columns for dW. */
nib_status nib__product_quant(const nib_product *p, const nib_workers *w, const float *x,
                              int64_t ldx, const float *amax, const nib_input *out, nib_err *err);
/* Encodes the W side: nib__cast_bytes at `to`. */
nib_status nib__product_cast(const nib_product *p, const nib_workers *w, const float *x,
                             int64_t ldx, const float *amax, void *to, nib_err *err);
/* y [rows][ldy] = x side times W side, plus bias [n] unless NULL. */
nib_status nib__product_run(const nib_product *p, const nib_workers *w, const nib_input *x,
                            const void *packed, const float *bias, float *y, int64_t ldy,
                            nib_err *err);

/* The largest magnitude of x [rows][ldx] into *parts, which needs ceil(rows / NIB_TRAIN_ROWS) + 1
 * elements. */
nib_status nib__product_amax(const nib_kernel *row, const nib_workers *w, const float *x,
                             int64_t rows, int64_t width, int64_t ldx, float *parts, nib_err *err);

/* Launches a device row, or only compiles it: see `refused`. */
nib_status nib__workers_launch(const nib_workers *w, const nib_kernel *row, const void *args,
                               nib_err *err);
/* The size of parts of a loop over `count` elements, a multiple of `step`. */
int64_t nib__parts_grain(const nib_workers *w, int64_t count, int64_t step);

#endif
