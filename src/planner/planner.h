/* SPDX-License-Identifier: Apache-2.0
 *
 * The planner: layers x machine x policy -> which row runs each layer, why no other row does, and
 * the cost. Planning runs nothing and opens no file.
 */
#ifndef NIB_PLANNER_H
#define NIB_PLANNER_H

#include "plan.h"
#include "training.h"

/* A row that its device's driver refused when a run was opened, with the driver's message. */
typedef struct nib_refused {
    const char *kernel, *message;
    bool with_device; /* refused together with every other row of its device */
} nib_refused;

typedef struct nib_policy {
    const nib_graph *graph; /* whose matrices are the layers; NULL: layers without a model */
    nib_type dtype;         /* F32, F16, BF16: activations */
    nib_kv_types cache;     /* of the KV cache; NONE: dtype */
    int64_t snapshots;      /* of states, per sequence */
    nib_strings allow, kernel, place;
    nib_strings without; /* names of excluded rows, the refused ones among them */
    const nib_refused *refused;
    size_t refused_count;
    /* What a run holds on a device besides the weights: the KV cache if attention runs there, and
     * buffers. */
    uint64_t cache_bytes, step_bytes;
    uint64_t weight_count; /* nib__network_weights */
    uint64_t shared_bytes; /* of an embedding whose codes are the head's, too */
    /* Bytes of weights that fit on the device, as a failed allocation showed; limit_message: the
     * driver's message, NULL: not tried. */
    uint64_t weight_bytes_limit;
    const char *limit_message;
    /* Devices that --place may name besides the plan's own and its host. */
    const nib_machine *const *others;
    size_t other_count;
    bool strict;
    const char *engine;   /* explain against this peer; NULL */
    const char *detail;   /* pattern of layers that list every candidate; NULL: none */
    bool training;        /* plan forward and backward for exactly m tokens */
    int64_t m;            /* training: tokens per micro-batch */
    bool wgrad_with_hp;   /* training: weight gradients of quantized layers in bf16 */
    nib_ac checkpointing; /* training */
    bool declared;        /* not this machine: plan rows that are not built, too */
    double weights;       /* of all layers, which compete for the CPU's caches; 0: unknown */
    struct nib_variant_memo *memo; /* variants found before in this plan; NULL: none are kept */
} nib_policy;

NIB_INLINE nib_kv_types nib__policy_cache(const nib_policy *policy)
{
    return policy->cache.keys.type != NIB_TYPE_NONE ? policy->cache : nib__kv_both(policy->dtype);
}

/* layers and machine must outlive the plan. Fails only for wrong patterns or names, and if memory
 * runs out. */
nib_status nib__plan_layers(nib_assignment *out, const nib_layer *layers, size_t count,
                            const nib_machine *machine, const nib_policy *policy,
                            const nib_allocator *a, nib_err *err);
void nib__assignment_free(nib_assignment *plan);

/* Bytes of the layer's weight on its machine, as gpu_bytes counts them. */
uint64_t nib__plan_layer_bytes(const nib_layer_plan *plan);

/* Predicted seconds of a whole inference step except drawing tokens: m tokens, `outputs` of them
 * with logits, each attending to `positions` positions. NaN: part of the plan is denied. */
double nib__plan_step_seconds(const nib_assignment *plan, const nib_policy *policy, int64_t m,
                              int64_t outputs, double positions);
/* The positions behind which a plan predicts a token: 0, 4,096, 16,384, 65,536 and the context's
 * last, as far as they are in the context. Returns how many. */
enum { NIB_PLAN_POSITIONS = 5 };
int nib__plan_positions(int64_t out[NIB_PLAN_POSITIONS], int64_t context);

/* If the logits are on a device: the best row there that draws a token for a request with these
 * facts. NULL: the logits are copied, and the CPU draws. why (NULL allowed) gets the conditions
 * that refuse each row of the device. */
const nib_kernel *nib__plan_sampler(const nib_assignment *plan, const nib_policy *policy,
                                    int64_t top_k, bool penalty, nib_text *why);
/* How a request with these facts draws tokens, with bytes and times. cpu_reason: why the CPU must
 * draw; NULL: the device may. */
nib_draw_plan nib__plan_draw(const nib_assignment *plan, const nib_policy *policy, int64_t top_k,
                             bool penalty, const char *cpu_reason, nib_text *why);
/* The best built row on this machine for an operation without weights (norm, attn, ...), except the
 * excluded ones (NULL: none). */
const nib_kernel *nib__plan_op(nib_op op, nib_type input, const nib_machine *machine,
                               const nib_strings *without);
/* The same for a row that makes an operand of a product in this scheme: QUANT, QUANT_T; CAST and
 * CAST_T for a product with this packing. NULL: none. */
const nib_kernel *nib__plan_operand(nib_op op, const nib_scheme *scheme, nib_type input,
                                    const nib_packing *packing, const nib_machine *machine,
                                    const nib_strings *without);

/* Facts of one layer on one machine for `op` at m, which the conditions of every row are tested
 * against. */
void nib__plan_query(nib_query *out, const nib_layer *layer, const nib_scheme *scheme,
                     const nib_machine *machine, const nib_policy *policy, nib_op op,
                     nib_phase phase, int64_t m);

/* The kernel of each plain recipe on each machine, in Markdown: planned for a layer without odd
 * sizes. */
void nib__support_render(const nib_machines *known, nib_text *out);

/* The plan as text: machine and totals, the layers (folded, or one with every candidate), advice,
 * cost. */
void nib__plan_render(const nib_assignment *plan, const nib_policy *policy, nib_text *out);

#endif
