/* SPDX-License-Identifier: Apache-2.0
 *
 * The method rotate: orthogonal matrices merged into weights, so that the model computes the same
 * function of floats, and its codes by `search` lose less.
 */
#ifndef NIB_ROTATE_H
#define NIB_ROTATE_H

#include "convert.h"
#include "quantize.h"
#include "rotate_graph.h"
#include "rotation.h"

#define NIB_ROTATE_SEED UINT64_C(0) /* of new outputs; receipts name it */

/* What to do, and what came of it. */
typedef struct nib_rotating {
    nib_quantize_layer *layers; /* [site_count] get their turns */
    const nib_quantize_options *options;
    uint64_t seed;
    nib_ledger *ledger;
    nib_arena *arena;
    nib_vector *vectors; /* result: norms and biases with new values */
    size_t vector_count;
    nib_rotate_graph graph; /* result: what is done; sites NULL: no layer has the method */
    nib_rotation *residual; /* result; NULL: the stream keeps its basis */
    nib_rotation **values;  /* result: [layers] likewise */
} nib_rotating;

/* Norms whose weights went into the layers after them. */
typedef struct nib_rotate_norms {
    const float **stored; /* [operations] their weights as stored; NULL: of other operations */
    float *ones;          /* [width] */
} nib_rotate_norms;

/* Whether the method of a layer is rotate. */
bool nib__rotate_is_turned(const nib_quantize_layer *layer);
/* Gives weights their turns, which takes no arithmetic on them. Does nothing if no layer has the
 * method. NIB_UNSUPPORTED: other methods change the same weights, some layers of the residual
 * stream have other methods, the model is a GGUF, or no rotation can go into it. */
nib_status nib__rotate(nib_rotating *job, nib_model *model, nib_err *err);
/* Notes what is done, and why not. */
void nib__rotate_note(const nib_rotating *job, const nib_model *model);
/* Compares the logits of turned weights with those of stored ones, both in f32, on a few tokens,
 * and notes the difference. NIB_CHECK_FAILED: it is larger than f32 arithmetic explains. */
nib_status nib__rotate_check(const nib_rotating *job, nib_model *model, nib_err *err);
/* Finds the norms among a runner's operations. */
nib_status nib__rotate_find_norms(nib_rotate_norms *out, const nib_rotating *job,
                                  const nib_runner *runner, nib_arena *arena, nib_err *err);
/* Gives them weights of 1, or those that are stored. */
void nib__rotate_set_norms(const nib_rotate_norms *norms, nib_runner *runner, bool are_ones);

#endif
