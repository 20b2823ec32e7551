/* SPDX-License-Identifier: Apache-2.0
 *
 * A decoder layer, or what follows them, as a step of src/step: for the method learn, which needs
 * gradients of its weights. Everything runs in f32 on the CPU.
 */
#ifndef NIB_LEARN_SLICE_H
#define NIB_LEARN_SLICE_H

#include "model_handle.h"
#include "step.h"

typedef struct nib_slice {
    nib_network net; /* of these operations only; borrows what the model's has */
    nib_assignment plan;
    nib_params params;
    nib_step step;
    nib_arena arena;
    size_t site;     /* of the model, for site 1 of net */
    int64_t tokens;  /* of a micro-batch */
    int32_t *rows;   /* [tokens] 0, 1, .. */
    int32_t *start;  /* [sequences + 1] */
    float *weights;  /* [params.total] */
    float *gradient; /* of one micro-batch, nib__load_block elements */
    bool is_open[2]; /* plan, step */
} nib_slice;

/* Whether a decoder layer reads nothing but what the layer before it left, one value
 * [tokens][width], and leaves one. layer: config.layers for what follows the layers. */
bool nib__slice_has(const nib_network *net, int64_t layer);
/* NIB_UNSUPPORTED, for a layer of which that is not true. */
nib_status nib__slice_fail(int64_t layer, nib_err *err);
/* Opens it with its weights as stored, for micro-batches of so many sequences. plan: of the model,
 * for its machine. loss: nib_step_options.loss, which sees what the layer leaves. net and plan must
 * outlive the slice. */
nib_status nib__slice_open(nib_slice *out, const nib_network *net, const nib_assignment *plan,
                           int64_t layer, int64_t sequences, int64_t length,
                           const nib_step_loss *loss, nib_err *err);
void nib__slice_close(nib_slice *slice);
uint64_t nib__slice_bytes(const nib_slice *slice); /* that it holds */

/* [tokens][width] what the layer reads, and its gradient */
float *nib__slice_inputs(const nib_slice *slice);
const float *nib__slice_inputs_gradient(const nib_slice *slice);
/* The values of a site's weight, and their gradient, [n][k]. site: of the model */
float *nib__slice_weight(const nib_slice *slice, size_t site);
const float *nib__slice_gradient(const nib_slice *slice, size_t site);
/* Runs a micro-batch. *loss: the sum over tokens. scale: of the gradient. Call nib__step_cast
 * first, after each change of the weights. */
nib_status nib__slice_run(nib_slice *slice, float scale, bool wants_gradient, double *loss,
                          nib_err *err);

#endif
