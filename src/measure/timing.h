/* SPDX-License-Identifier: Apache-2.0
 *
 * Times products by themselves, on the CPU with all threads of the pool or on a device that is
 * here: weights and inputs that stand for any, in the layout that a row reads. No time here depends
 * on values but for denormals, of which there are none, and zero points, of which 0 is added in a
 * way of its own. Whether rows are right is the kernel checker's matter.
 */
#ifndef NIB_TIMING_H
#define NIB_TIMING_H

#include "runner.h"

typedef struct nib_timed {
    nib_engine *engine;
    nib_gpu *gpu;    /* NULL: the CPU */
    nib_layer layer; /* whose k and types of scales and zeros count, not its n */
    nib_scheme scheme;
    nib_type dtype;
    int64_t n_most, m_most;
    bool in_turns; /* all that is timed is timed again later: one batch each */
    bool compiled; /* and was so before */
    char *weights; /* bytes for several, one after the other */
    char *x;       /* f32 [m_most][k] */
    char *input;   /* in the scheme's form */
    char *y;       /* f32 [m_most][n_most] */
    char *scratch; /* the CPU's, per worker */
    uint64_t weight_bytes, x_bytes, input_bytes, y_bytes, scratch_bytes;
} nib_timed;

/* weight_bytes: what to go through where memory is to be read, not caches; at least one weight of
 * n_most outputs is held. */
nib_status nib__timed_open(nib_timed *t, nib_engine *engine, nib_gpu *gpu, uint64_t weight_bytes,
                           nib_err *err);
void nib__timed_close(nib_timed *t);
/* Bytes of weights that no cache of the machine holds, within its memory. */
uint64_t nib__timed_weights(const nib_machine *machine);
/* What is timed from here on: the layer done as the scheme says. */
nib_status nib__timed_set(nib_timed *t, const nib_layer *layer, const nib_scheme *scheme,
                          nib_type dtype, int64_t n_most, int64_t m_most, nib_err *err);

/* Bytes of n outputs as the row reads them. */
uint64_t nib__timed_bytes(const nib_timed *t, const nib_kernel *row, int64_t n);
/* Seconds of one product of n outputs and m tokens, the best of a few. far: each reads other
 * weights than the one before. */
nib_status nib__timed_linear(nib_timed *t, const nib_kernel *row, int64_t n, int64_t m, bool far,
                             double *seconds, nib_err *err);
/* Of bringing m tokens into the scheme's form. */
nib_status nib__timed_quant(nib_timed *t, const nib_kernel *row, int64_t m, double *seconds,
                            nib_err *err);

/* Of what was timed, without the launch in it; never nothing. */
double nib__seconds_without(double seconds, double launch_s);

#endif
