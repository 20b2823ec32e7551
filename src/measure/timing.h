/* SPDX-License-Identifier: Apache-2.0
 *
 * Times single products, on the CPU with all threads of the pool or on an available device. Weights
 * and inputs are arbitrary, in the layout that a row reads. Times do not depend on values, except
 * for denormals, which are avoided, and for a zero point of 0, which has a path of its own and is
 * avoided, too. The kernel checker tests that rows are correct.
 */
#ifndef NIB_TIMING_H
#define NIB_TIMING_H

#include "runner.h"

typedef struct nib_timed {
    nib_engine *engine;
    nib_gpu *gpu;    /* NULL: the CPU */
    nib_layer layer; /* its k and the types of scales and zeros are used, not its n */
    nib_scheme scheme;
    nib_type dtype;
    int64_t n_most, m_most;
    bool in_turns; /* everything is timed again later: one batch each */
    bool compiled; /* kernels were launched before */
    char *weights; /* several weights, one after the other */
    char *x;       /* f32 [m_most][k] */
    char *input;   /* [m_most] quantized as in the scheme */
    char *y;       /* f32 [m_most][n_most] */
    char *scratch; /* CPU only, per worker */
    uint64_t weight_bytes, x_bytes, input_bytes, y_bytes, scratch_bytes;
} nib_timed;

/* weight_bytes: how much to read in turn where weights come from memory, not caches; at least one
 * weight of n_most outputs is held. */
nib_status nib__timed_open(nib_timed *t, nib_engine *engine, nib_gpu *gpu, uint64_t weight_bytes,
                           nib_err *err);
void nib__timed_close(nib_timed *t);
/* The bytes of weights that exceed all caches of the machine, limited by its memory. */
uint64_t nib__timed_weights(const nib_machine *machine);
/* Sets the layer and scheme to time from now on. */
nib_status nib__timed_set(nib_timed *t, const nib_layer *layer, const nib_scheme *scheme,
                          nib_type dtype, int64_t n_most, int64_t m_most, nib_err *err);

/* Bytes of the weight of n outputs, as the row reads them. */
uint64_t nib__timed_bytes(const nib_timed *t, const nib_kernel *row, int64_t n);
/* Seconds of one product of n outputs and m tokens, the best of a few batches. far: each run reads
 * other weights than the one before. */
nib_status nib__timed_linear(nib_timed *t, const nib_kernel *row, int64_t n, int64_t m, bool far,
                             double *seconds, nib_err *err);
/* Seconds to quantize m tokens. */
nib_status nib__timed_quant(nib_timed *t, const nib_kernel *row, int64_t m, double *seconds,
                            nib_err *err);

/* Subtracts the launch from a measured time; never 0. */
double nib__seconds_without_launch(double seconds, double launch_s);

#endif
