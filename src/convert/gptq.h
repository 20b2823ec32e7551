/* SPDX-License-Identifier: Apache-2.0
 *
 * The methods gptq and qronos over a model: layer by layer, on the activations that the layers
 * before it give with their new codes. Codes go to a store beside OUT, where the next run finds
 * those of a killed one.
 */
#ifndef NIB_GPTQ_H
#define NIB_GPTQ_H

#include "gptq_order.h"
#include "gptq_store.h"
#include "session_handle.h"

enum { NIB_GPTQ_TOKENS = 65536 }; /* of the text at most */

/* What to do, and what came of it. */
typedef struct nib_gptq {
    int64_t tokens;             /* of the text at most; nib__gptq sets it */
    size_t *orders;             /* [NIB_INPUTS_ORDERS] result: layers coded in each order */
    const char *dtype;          /* of the run instead of the request's; NULL: the request's */
    nib_quantize_layer *layers; /* [site_count] those of the method get their codes */
    const nib_request *request; /* dtype and context of the calibration */
    const char *text;           /* path */
    const char *out;            /* path of the output, beside which the store is */
    bool ascending;             /* inputs are coded as stored: nib__order_of */
    bool rounds;                /* learn tunes codes, too, before it moves scales */
    nib_ledger *ledger;
    nib_arena *arena;
    const char *name;      /* result: qronos if a layer has that method, else gptq; for notes */
    nib_gptq_store *store; /* result: holds the codes; to remove when OUT is complete, or close */
    bool keeps_rounding;   /* result: the model is worse with the codes than with rounding's */
    /* result, for people, not about OUT: multiply-adds, and the seconds that they were predicted to
     * take, and took */
    double multiply_adds, predicted_s, seconds;
    nib_text resumed; /* result: a note for people, on how a killed run was continued; empty:
                              it was not. It is not about OUT, whose bytes are the same. */
} nib_gptq;

/* NIB_UNSUPPORTED: the model has layers that read another layer's keys. NIB_BAD_INPUT: the text is
 * empty. NIB_EXISTS: as nib__gptq_store_open. */
nib_status nib__gptq(nib_gptq *job, nib_model *model, nib_err *err);

/* Sets only job->multiply_adds and predicted_s, as nib__gptq will on the text if no codes are
 * stored; its errors are among those. */
nib_status nib__gptq_forecast(nib_gptq *job, nib_model *model, nib_err *err);

/* The most bytes that its codes take on the disk until OUT is complete. layers: [site_count] */
uint64_t nib__gptq_store_bound(const nib_quantize_layer *layers, const nib_network *net);

#endif
