/* SPDX-License-Identifier: Apache-2.0
 *
 * A plan as data: which row runs each layer and operation, where, and what the ledger says about
 * it. The planner makes a plan, and the runner executes it: the runner takes rows only from here.
 */
#ifndef NIB_PLAN_H
#define NIB_PLAN_H

#include "graph.h"
#include "kernel.h"
#include "ledger.h"
#include "machine.h"
#include "recipe.h"

/* One linear layer (or embedding), as input to the planner. */
typedef struct nib_layer {
    const char *name; /* module name, without .weight */
    nib_role role;
    int64_t n, k;
    int64_t experts, top_k; /* one of `experts`, of which a token chooses top_k; 0 or 1: none */
    int64_t heads;          /* one of `heads`, each with rows of its own; 0 or 1: none */
    nib_scheme stored;      /* as in the checkpoint */
    nib_scheme asked;       /* after the recipe; equal to stored if the recipe keeps it */
    nib_act act;            /* activations unless a recipe says otherwise: nib__weight_act */
    const char *rule;       /* the recipe's rule that decided */
    bool bias;
    nib_bias bias_form;             /* as stored, or as quantized at load */
    nib_type scale_type, zero_type; /* as stored, or as the quantizer will store them */
    nib_ptq_method method;          /* how loading chooses codes */
    nib_type asked_scales;          /* the type that the recipe sets; NONE: any */
    nib_type act_scale_type;        /* F32, or F64 as in a founding case (docs/cases.md) */
    uint64_t stored_bytes;          /* nib__weight_bytes of the stored weight; 0: none stored */
    bool plain;                     /* nib__weight_is_plain of the stored weight */
    bool q6_k;                      /* stored in GGUF's Q6_K blocks */
    bool ordered;                   /* the stored columns are in act-order */
    bool shares_input;              /* reads the same values as the layer before it */
    bool kept_act;                  /* the recipe leaves the activations to the checkpoint */
    nib_layout_hint hint;
    const char *hint_text; /* as written in the recipe; NULL */
    nib_scheme qat; /* training: operands are rounded to this scheme before a float product of
                       `asked`, and an embedding at the end; a float code: no rounding */
} nib_layer;

enum { NIB_USES_MAX = 3 };

typedef struct nib_use {
    nib_phase phase;
    nib_op op;
    int64_t m_min, m_max;    /* m_max 0: no limit */
    const nib_kernel *quant; /* quantizes the input; NULL: not needed */
    /* Fuses `quant` with the norm whose output only this layer and those that share its input read.
     * NULL: norm and quant run separately, or an earlier layer has done it. */
    const nib_kernel *normed;
    const nib_kernel *kernel;
    double predicted_s; /* at m_min */
    double tuned_s;     /* of the row alone, measured for this shape; 0: not measured */
    uint64_t bytes;
} nib_use;

typedef struct nib_layer_plan {
    const nib_layer *layer;
    nib_scheme done;
    nib_rung rung;
    bool denied;
    nib_use uses[NIB_USES_MAX];
    int use_count;
    const nib_kernel *pack; /* packs the weight on the device of the uses; NULL: the host packs */
    const nib_machine *machine;
    bool own_input; /* its input is quantized for this layer alone, see cost.c */
    bool grouped;   /* on a device: one launch multiplies the rows of all experts, or all heads */
} nib_layer_plan;

/* An operation without weights, the same in every decoder layer. */
typedef struct nib_op_plan {
    nib_op op;
    const nib_kernel *row; /* NULL: denied */
    const nib_machine *machine;
} nib_op_plan;

enum { NIB_OPS_MAX = 48 };

/* Drawing a token from the logits: on their device, or on the CPU after a copy. */
typedef struct nib_draw_plan {
    const nib_kernel *row; /* NULL: none */
    const nib_machine *machine;
    uint64_t bytes;        /* copied per token: the logits, or the token; 0: no copy */
    double move_s, draw_s; /* predicted */
} nib_draw_plan;

enum { NIB_TOP_K = 40 /* of a request that sets no other */ };

typedef struct nib_assignment {
    const nib_machine *machine;
    const nib_graph *graph; /* the policy's */
    uint8_t *held; /* [graph->value_count] bits: sides (host, device) that hold a value; used to
                      count copies */
    const nib_machine *gpu;       /* the one device besides the CPU that the plan uses; NULL */
    uint64_t gpu_bytes;           /* of weights on it */
    nib_op_plan ops[NIB_OPS_MAX]; /* of inference, or of a training step */
    int op_count;
    /* Rows that draw tokens on the device, for a greedy and for the usual request; NULL: none */
    const nib_kernel *samplers[2];
    nib_draw_plan draw; /* of the usual request */
    nib_type dtype;
    nib_kv_types cache;     /* nib__policy_cache */
    int64_t snapshots;      /* of states, per sequence */
    nib_strings without;    /* the policy's */
    nib_layer_plan *layers; /* [count], in the order given; in the ledger's arena */
    size_t count;
    nib_ledger ledger;
    nib_err denied; /* NIB_NOT_AS_ASKED and its sentence if a layer is denied, else NIB_OK */
    /* Whole inference steps: one token after a prompt, drawing included, and a prompt of 512 tokens
     * with logits for the last of them. In training: linear layers and copies of a micro-batch. */
    double predicted_token_s, predicted_prefill_s;
    double linear_token_s, linear_prefill_s;                 /* linear layers alone */
    double predicted_bf16_token_s, predicted_bf16_prefill_s; /* the same layers unquantized */
    double weights; /* multiplied per token: policy.weights */
} nib_assignment;

/* The share of tokens that choose a layer's expert if all are chosen equally often; else 1. */
NIB_INLINE double nib__layer_share(const nib_layer *layer)
{
    return layer->experts > 1 ? (double)layer->top_k / (double)layer->experts : 1;
}

/* Rows of its input per token, of all experts or heads. */
NIB_INLINE int64_t nib__layer_rows(const nib_layer *layer)
{
    return layer->experts > 1 ? layer->top_k : nib__max(1, layer->heads);
}

/* Matrices of one shape that a launch of a device can take together; 1: the layer's alone. */
NIB_INLINE int64_t nib__layer_peers(const nib_layer *layer)
{
    return nib__max(1, nib__max(layer->experts, layer->heads));
}

/* Whether two consecutive layers of the plan multiply the same quantized form of an input that they
 * share. Then it is made once. */
bool nib__plan_same_form(const nib_layer_plan *a, const nib_layer_plan *b);

/* The layer of `from`, a plan for the same checkpoint, whose packed weight layer i of `plan` can
 * read: of the same name, on the CPU, in the same scheme and for the same rows. SIZE_MAX: none. */
size_t nib__plan_lent(const nib_assignment *plan, size_t i, const nib_assignment *from);

/* Whether the layer multiplies columns in act-order. A converted weight has none. */
bool nib__plan_ordered(const nib_layer_plan *plan);

/* The form of a layer's bias when its weight runs in `done`: an int32 bias belongs to the sums of
 * one scheme, and any other scheme needs a float bias. */
nib_bias nib__layer_bias(const nib_layer *layer, const nib_scheme *done);

/* The plan's CPU: its machine, or the host of its machine; NULL: none. */
NIB_INLINE const nib_machine *nib__plan_host(const nib_assignment *plan)
{
    const bool is_cpu = plan->machine->facts.fact[NIB_FACT_DEVICE] == NIB_DEVICE_CPU;
    return is_cpu ? plan->machine : plan->machine->host;
}
/* The machine that a row of the plan runs on. */
NIB_INLINE const nib_machine *nib__plan_place(const nib_assignment *plan, const nib_kernel *row)
{
    return row->device == NIB_DEVICE_CPU ? nib__plan_host(plan) : plan->gpu;
}

/* The plan's entry for an operation without weights; NULL: none. */
const nib_op_plan *nib__plan_operation(const nib_assignment *plan, nib_op op);

/* Types of the weight's scales and zero points in this scheme: as stored if the layer says so, else
 * as a quantizer makes them. NONE for floats, and for a scheme without zero points. */
nib_type nib__layer_scale_type(const nib_layer *layer, const nib_scheme *scheme);
nib_type nib__layer_zero_type(const nib_layer *layer, const nib_scheme *scheme);

/* The weight's shape, types and layout, without data. */
nib_weight nib__layer_weight(const nib_layer *layer, const nib_scheme *scheme);

/* Bytes uploaded to pack the weight on its device: as stored, or as quantized at load. */
uint64_t nib__upload_bytes(const nib_layer *layer, const nib_scheme *done);
/* Bytes of device memory that hold the upload until it is packed. */
uint64_t nib__staging_bytes(const nib_layer *layer, const nib_scheme *done);

#endif
