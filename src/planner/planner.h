/* SPDX-License-Identifier: Apache-2.0
 *
 * The planner: layers x machine x policy -> which row runs each layer, why not another, at what
 * cost. Making a plan runs nothing and opens no file.
 */
#ifndef NIB_PLANNER_H
#define NIB_PLANNER_H

#include "plan.h"
#include "training.h"

/* A row that the driver of its device refused when a run was opened, in the driver's words. */
typedef struct nib_refused {
    const char *kernel, *words;
    bool with_device; /* as every row of its device was, at once */
} nib_refused;

typedef struct nib_policy {
    const nib_graph *graph; /* whose matrices the layers are; NULL: layers that make no model */
    nib_type dtype;         /* F32, F16, BF16: activations */
    nib_type cache;         /* of keys and values: F32, F16, BF16, I8; NONE: dtype */
    nib_strings allow, kernel, place;
    nib_strings without; /* names of rows that are not to be taken, the refused ones among them */
    const nib_refused *refused;
    size_t refused_count;
    /* What a run holds on a device beside the weights: keys and values where attention runs, and
     * buffers. */
    uint64_t cache_bytes, step_bytes;
    /* Weights that the device was found to have room for, and how that was found; words NULL: it
     * was not tried. */
    uint64_t room;
    const char *room_words;
    /* Devices that --place may name beside the plan's own and its host. */
    const nib_machine *const *others;
    size_t other_count;
    bool strict;
    const char *engine;   /* explain against this peer; NULL */
    const char *detail;   /* pattern of layers that get every candidate; NULL: none */
    bool training;        /* plan forward and backward with m exact */
    int64_t m;            /* training: tokens per micro-batch */
    bool wgrad_with_hp;   /* training: weights' gradients of quantized layers in bf16 */
    nib_ac checkpointing; /* training */
    bool declared;        /* a machine that is not here: plan rows that are not built */
    double weights;       /* of all layers, which take turns in the caches; 0: not known */
} nib_policy;

NIB_INLINE nib_type nib__policy_cache(const nib_policy *policy)
{
    return policy->cache != NIB_TYPE_NONE ? policy->cache : policy->dtype;
}

/* layers and machine must outlive the plan. Errors only for wrong patterns, names, memory. */
nib_status nib__plan_layers(nib_assignment *out, const nib_layer *layers, size_t count,
                            const nib_machine *machine, const nib_policy *policy,
                            const nib_allocator *a, nib_err *err);
void nib__assignment_free(nib_assignment *plan);

/* Bytes of the layer's weight where it is done, as gpu_bytes counts them. */
uint64_t nib__plan_layer_bytes(const nib_layer_plan *plan);

/* Predicted seconds of a step of inference, with all that is done besides linear layers, but for
 * drawing tokens: m tokens, of which so many have an output, each with so many positions to attend
 * to. NaN: not all of the plan runs. */
double nib__plan_step_seconds(const nib_assignment *plan, const nib_policy *policy, int64_t m,
                              int64_t outputs, double positions);

/* Where logits of the plan's last layer lie, the best row that draws a token for a request of these
 * facts; NULL: they are read, and the CPU draws it. why (NULL allowed) gets what each row of the
 * device lacks. */
const nib_kernel *nib__plan_sampler(const nib_assignment *plan, const nib_policy *policy,
                                    int64_t top_k, bool penalty, nib_text *why);
/* What a request of these facts draws tokens with, and what that takes. here: why the CPU has to;
 * NULL: it need not. */
nib_draw_plan nib__plan_draw(const nib_assignment *plan, const nib_policy *policy, int64_t top_k,
                             bool penalty, const char *here, nib_text *why);
/* The best built row of an op without weights (norm, attn, ...) on this machine, but for those
 * that are left out (NULL: none). */
const nib_kernel *nib__plan_op(nib_op op, nib_type input, const nib_machine *machine,
                               const nib_strings *without);
/* The same of what makes an operand of a product in this scheme: QUANT, QUANT_T; CAST and CAST_T
 * for a product of this packing. NULL: there is none. */
const nib_kernel *nib__plan_operand(nib_op op, const nib_scheme *scheme, nib_type input,
                                    const nib_packing *packing, const nib_machine *machine,
                                    const nib_strings *without);

/* Facts of one layer on one machine for `op` at m: what every row is asked. */
void nib__plan_query(nib_query *out, const nib_layer *layer, const nib_scheme *scheme,
                     const nib_machine *machine, const nib_policy *policy, nib_op op,
                     nib_phase phase, int64_t m);

/* Which kernel does each bare recipe on each machine, in Markdown: from the planner, for a layer
 * without odd sizes. */
void nib__support_render(const nib_machines *known, nib_text *out);

/* Text of the plan for people: header with machine and totals, the layers (folded, or one with
 * every candidate), advice, cost. JSON members likewise come from the ledger. */
void nib__plan_render(const nib_assignment *plan, const nib_policy *policy, nib_text *out);

#endif
