/* SPDX-License-Identifier: Apache-2.0
 *
 * What the parts of the method learn share: learn_rounding.c tunes codes, a decoder layer at a
 * time, then learn.c moves scales.
 */
#ifndef NIB_LEARN_RUN_H
#define NIB_LEARN_RUN_H

#include "learn.h"

/* The text as batches of whole windows; what is left at its end is not used. */
typedef struct nib_learn_text {
    int64_t length, sequences, tokens; /* of a batch; tokens: of all its sequences */
    int64_t batches;
} nib_learn_text;
nib_learn_text nib__learn_text(const nib_gptq_run *run);
/* What the first layer reads of a batch, into out [tokens][width]. */
nib_status nib__learn_embed(nib_gptq_run *run, const nib_learn_text *text, int64_t batch,
                            float *out, nib_err *err);
/* Whether a site is coded by learn. */
bool nib__learn_is_learned(const nib_gptq_run *run, size_t site);

/* Tunes the codes of a decoder layer, with the sites [begin, end), into a part of the store, if it
 * is not there, and gives them to the layer if its error is smaller with them. run->coded has the
 * text before the layer, run->stored behind it. */
nib_status nib__rounding_tune(nib_gptq_run *run, size_t layer, size_t begin, size_t end,
                              nib_err *err);
/* Multiply-adds that this takes for all layers, without attention. */
double nib__rounding_cost(const nib_gptq_run *run);
/* Adds to a note what the store has of it: nothing, or "; ...". */
void nib__rounding_found(nib_text *out, const nib_gptq_run *run);
/* Notes in how many layers the codes were tuned, and what that did to their errors. */
void nib__rounding_note(const nib_gptq_run *run);

#endif
