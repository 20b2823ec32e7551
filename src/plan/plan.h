/* SPDX-License-Identifier: Apache-2.0
 *
 * A plan as data: which row runs each layer and operation, where, and what was said about it. The
 * planner makes one, and the runner executes it: it takes rows only from here.
 */
#ifndef NIB_PLAN_H
#define NIB_PLAN_H

#include "graph.h"
#include "kernel.h"
#include "ledger.h"
#include "machine.h"
#include "recipe.h"

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
    nib_layout_hint hint;
    const char *hint_text; /* as written in the recipe; NULL */
    nib_scheme qat; /* training: what operands are rounded to before a product of `asked`, which is
                       float, and an embedding at the end; a float code: nothing */
} nib_layer;

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

typedef struct nib_assignment {
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
} nib_assignment;

/* Do both layers, one after the other in the plan, multiply the same form of the input that they
 * share? Then it is made once. */
bool nib__plan_same_form(const nib_layer_plan *a, const nib_layer_plan *b);

/* Are the columns that it multiplies in act-order? Those of a weight that is converted are not. */
bool nib__plan_ordered(const nib_layer_plan *plan);

/* The form of a layer's bias once its weight is done in `done`: sums of another scheme than that
 * of an int32 bias do not take it as it is. */
nib_bias nib__layer_bias(const nib_layer *layer, const nib_scheme *done);

/* The CPU of the plan: its machine, or that one's host; NULL: the machine has none. */
NIB_INLINE const nib_machine *nib__plan_host(const nib_assignment *plan)
{
    const bool is_cpu = plan->machine->facts.fact[NIB_FACT_DEVICE] == NIB_DEVICE_CPU;
    return is_cpu ? plan->machine : plan->machine->host;
}
/* Where a row of the plan runs. */
NIB_INLINE const nib_machine *nib__plan_place(const nib_assignment *plan, const nib_kernel *row)
{
    return row->device == NIB_DEVICE_CPU ? nib__plan_host(plan) : plan->gpu;
}

/* What the plan does an operation without weights with; NULL: it has none. */
const nib_op_plan *nib__plan_operation(const nib_assignment *plan, nib_op op);

/* Of the weight in this scheme: as stored where the layer says so, else as a quantizer makes them;
 * NONE for floats, and for a scheme without zeros. */
nib_type nib__layer_scale_type(const nib_layer *layer, const nib_scheme *scheme);
nib_type nib__layer_zero_type(const nib_layer *layer, const nib_scheme *scheme);

/* The weight as it would lie in memory: shapes and types, no data. */
nib_weight nib__layer_weight(const nib_layer *layer, const nib_scheme *scheme);

/* Bytes that are uploaded to pack the weight on its device: as stored, or as it was quantized when
 * it was loaded. */
uint64_t nib__upload_bytes(const nib_layer *layer, const nib_scheme *done);
/* Bytes of the device's memory that hold them meanwhile. */
uint64_t nib__staging_bytes(const nib_layer *layer, const nib_scheme *done);

#endif
