/* SPDX-License-Identifier: Apache-2.0
 *
 * The planner: layers x machine x policy -> which row runs each layer, why not another, at what
 * cost. A plan is data; making one runs nothing and opens no file. What it says is what the runner
 * executes: the runner takes rows only from here.
 */
#ifndef NIB_PLAN_H
#define NIB_PLAN_H

#include "graph.h"
#include "kernel.h"
#include "ledger.h"
#include "machine.h"
#include "recipe.h"
#include "training.h"

/* One linear layer (or embedding), as the planner is told of it. */
typedef struct nib_layer {
    const char *name; /* module name, without .weight */
    nib_role role;
    int64_t n, k;
    nib_scheme stored; /* as the checkpoint has it */
    nib_scheme asked;  /* after the recipe; equal to stored where it is kept */
    nib_act act;       /* what it runs with where no recipe says otherwise: nib__weight_act */
    const char *rule;  /* which rule decided */
    bool bias;
    nib_bias bias_form;             /* as stored, or as it is quantized when it is loaded */
    nib_type scale_type, zero_type; /* as stored, or as the quantizer will store them */
    nib_type asked_scales;          /* the type that the recipe asks for; NONE: any */
    nib_type act_scale_type;        /* F32; what a founding case turned into F64 */
    uint64_t stored_bytes;          /* nib__weight_bytes as it is stored; 0: it is not */
    bool plain;                     /* nib__weight_is_plain of what is stored */
    bool q6_k;                      /* it is stored in GGUF's blocks of Q6_K */
    bool ordered;                   /* its stored columns are in act-order */
    bool shares_input;              /* it reads the same values as the layer before it */
    nib_wish wish;
    const char *wish_text; /* as written in the recipe; NULL */
    nib_scheme qat; /* training: what operands are rounded to before a product of `asked`, which is
                       float, and an embedding at the end; a float code: nothing */
} nib_layer;

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
    const char *engine; /* explain against this peer; NULL */
    const char *detail; /* pattern of layers that get every candidate; NULL: none */
    bool training;      /* plan forward and backward with m exact */
    int64_t m;          /* training: tokens per micro-batch */
    bool wgrad_with_hp; /* training: weights' gradients of quantized layers in bf16 */
    nib_ac checkpointing; /* training */
    bool declared;      /* a machine that is not here: plan rows that are not built */
    double weights;     /* of all layers, which take turns in the caches; 0: not known */
} nib_policy;

NIB_INLINE nib_type nib__policy_cache(const nib_policy *policy)
{
    return policy->cache != NIB_TYPE_NONE ? policy->cache : policy->dtype;
}

enum { NIB_USES_MAX = 3 };

typedef struct nib_use {
    nib_phase phase;
    nib_op op;
    int64_t m_min, m_max;    /* m_max 0: no limit */
    const nib_kernel *quant; /* makes the input's form; NULL: none needed */
    /* Makes it straight from the norm whose rows nothing else reads, for this layer and those after
     * it that share it; NULL: the norm's row and quant do, or a layer before this one has. */
    const nib_kernel *normed;
    const nib_kernel *kernel;
    double predicted_s; /* at m_min */
    double tuned_s;     /* of the row by itself, measured for this shape; 0: it was not */
    uint64_t bytes;
} nib_use;

typedef struct nib_layer_plan {
    const nib_layer *layer;
    nib_scheme done;
    nib_rung rung;
    bool denied;
    nib_use uses[NIB_USES_MAX];
    int use_count;
    const nib_kernel
        *pack; /* packs the weight on the device of the uses; NULL: it is packed here */
    const nib_machine *machine;
    bool own_input; /* the form of its input is made for it alone, see cost.c */
} nib_layer_plan;

/* An operation without weights, the same in every decoder layer. */
typedef struct nib_op_plan {
    nib_op op;
    const nib_kernel *row; /* NULL: nothing allowed does it */
    const nib_machine *machine;
} nib_op_plan;

enum { NIB_OPS_MAX = 20 };

/* Drawing a token from the logits: where they are, or by the CPU, where they then move. */
typedef struct nib_draw_plan {
    const nib_kernel *row; /* NULL: there is none */
    const nib_machine *machine;
    uint64_t bytes;        /* that move for a token: logits, or the token; 0: nothing does */
    double move_s, draw_s; /* predicted */
} nib_draw_plan;

enum { NIB_TOP_K = 40 /* of a request that says nothing else */ };

typedef struct nib_layers_plan {
    const nib_machine *machine;
    const nib_graph *graph; /* the policy's */
    uint8_t *held; /* [graph->value_count] bits: sides that hold a value, while moves are counted */
    const nib_machine *gpu; /* the one device besides the CPU that anything is placed on; NULL */
    uint64_t gpu_bytes;     /* of weights there */
    nib_op_plan ops[NIB_OPS_MAX]; /* those of inference, or those of a training step */
    int op_count;
    /* Rows that draw tokens on the device, for a greedy request and the usual one; NULL: none */
    const nib_kernel *samplers[2];
    nib_draw_plan draw;     /* of the usual request */
    nib_type dtype, cache;  /* nib__policy_cache */
    nib_strings without;    /* the policy's */
    nib_layer_plan *layers; /* [count], in the given order; in the ledger's arena */
    size_t count;
    nib_ledger ledger;
    nib_err denied; /* status NIB_NOT_AS_ASKED and the sentence if a layer has no allowed way, else
                       NIB_OK */
    /* Whole steps of inference: one token after a prompt, drawn, and a prompt of 512 tokens with
     * the output for the last of them. In training linear layers and moves of a micro-batch. */
    double predicted_token_s, predicted_prefill_s;
    double linear_token_s, linear_prefill_s;                 /* linear layers alone */
    double predicted_bf16_token_s, predicted_bf16_prefill_s; /* the same layers unquantized */
    double weights; /* that a token is multiplied with: policy.weights */
} nib_layers_plan;

/* layers and machine must outlive the plan. Errors only for wrong patterns, names, memory. */
nib_status nib__plan_layers(nib_layers_plan *out, const nib_layer *layers, size_t count,
                            const nib_machine *machine, const nib_policy *policy,
                            const nib_allocator *a, nib_err *err);
void nib__plan_layers_free(nib_layers_plan *plan);

/* Bytes of the layer's weight where it is done, as gpu_bytes counts them. */
uint64_t nib__plan_layer_bytes(const nib_layer_plan *plan);

/* Do both layers, one after the other in the plan, multiply the same form of the input that they
 * share? Then it is made once. */
bool nib__plan_same_form(const nib_layer_plan *a, const nib_layer_plan *b);

/* Are the columns that it multiplies in act-order? Those of a weight that is converted are not. */
bool nib__plan_ordered(const nib_layer_plan *plan);

/* Predicted seconds of a step of inference, with all that is done besides linear layers, but for
 * drawing tokens: m tokens, of which so many have an output, each with so many positions to attend
 * to. NaN: not all of the plan runs. */
double nib__plan_step_seconds(const nib_layers_plan *plan, const nib_policy *policy, int64_t m,
                              int64_t outputs, double positions);

/* The form of a layer's bias once its weight is done in `done`: sums of another scheme than that
 * of an int32 bias do not take it as it is. */
nib_bias nib__layer_bias(const nib_layer *layer, const nib_scheme *done);

/* The CPU of the plan: its machine, or that one's host; NULL: the machine has none. */
NIB_INLINE const nib_machine *nib__plan_host(const nib_layers_plan *plan)
{
    const bool is_cpu = plan->machine->facts.fact[NIB_FACT_DEVICE] == NIB_DEVICE_CPU;
    return is_cpu ? plan->machine : plan->machine->host;
}
/* Where a row of the plan runs. */
NIB_INLINE const nib_machine *nib__plan_place(const nib_layers_plan *plan, const nib_kernel *row)
{
    return row->device == NIB_DEVICE_CPU ? nib__plan_host(plan) : plan->gpu;
}

/* What the plan does an operation without weights with; NULL: it has none. */
const nib_op_plan *nib__plan_operation(const nib_layers_plan *plan, nib_op op);
/* Where logits of the plan's last layer lie, the best row that draws a token for a request of these
 * facts; NULL: they are read, and the CPU draws it. why (NULL allowed) gets what each row of the
 * device lacks. */
const nib_kernel *nib__plan_sampler(const nib_layers_plan *plan, const nib_policy *policy,
                                    int64_t top_k, bool penalty, nib_text *why);
/* What a request of these facts draws tokens with, and what that takes. here: why the CPU has to;
 * NULL: it need not. */
nib_draw_plan nib__plan_draw(const nib_layers_plan *plan, const nib_policy *policy, int64_t top_k,
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
void nib__plan_render(const nib_layers_plan *plan, const nib_policy *policy, nib_text *out);

#endif
