/* SPDX-License-Identifier: Apache-2.0
 *
 * Inside the planner: one variant of a layer (a scheme on a machine), its rows and its cost.
 */
#ifndef NIB_VARIANT_H
#define NIB_VARIANT_H

#include "planner.h"

/* A scheme on a machine, with a row for every range of m or phase. */
typedef struct nib_variant {
    nib_scheme scheme;
    const nib_machine *machine;
    nib_use uses[NIB_USES_MAX];
    int use_count;
    const nib_kernel *bound; /* the only row allowed, or NULL */
    bool runs;               /* every use has its rows */
    int missing;             /* the first use without a row, if !runs */
    nib_op lacks;            /* the operation without a row at that use: the product, or one that
                                makes its operand */
    bool no_common;          /* every use has a row, but no one contract covers all uses */
    bool own_input;          /* its input is quantized for this layer alone, see cost.c */
    bool alone;              /* an expert or head that no launch for all of them takes */
    const char *apart;       /* why quantizing is not fused with the norm; NULL */
} nib_variant;

/* The latest variants of a plan, see nib_policy.memo. */
enum { NIB_FOUND_VARIANTS = 24 };
typedef struct nib_found_variant {
    nib_layer layer;
    nib_policy policy;
    nib_variant variant;
} nib_found_variant;
typedef struct nib_variant_memo {
    nib_found_variant found[NIB_FOUND_VARIANTS];
    int count, next;
} nib_variant_memo;

/* bound: the only row allowed for its operation; NULL: any. */
void nib__variant_find(nib_variant *variant, const nib_layer *layer, const nib_scheme *scheme,
                       const nib_machine *machine, const nib_policy *policy,
                       const nib_kernel *bound);

/* The variant that a plan chose. */
nib_variant nib__variant_of(const nib_layer_plan *layer);
/* The use that has m tokens in its range. */
const nib_use *nib__variant_use(const nib_variant *variant, int64_t m);

/* Facts of an operation without weights; and the best row for them, on this machine only among
 * built rows. */
void nib__plan_op_query(nib_query *out, nib_op op, nib_type input, const nib_machine *machine);
/* The same with f32 input, the policy's cache type and its excluded rows. */
void nib__plan_op_ask(nib_query *out, nib_op op, const nib_policy *policy,
                      const nib_machine *machine);
const nib_kernel *nib__plan_op_best(const nib_query *query, const nib_machine *machine);

/* The row at `use` that only its conditions keep from running: built (or declared), with a matching
 * key, faster than the chosen row, its instruction set present. NULL: no such row. */
const nib_kernel *nib__variant_refused(const nib_variant *variant, const nib_layer *layer,
                                       const nib_policy *policy, int use);

/* The driver's message when it refused the row; NULL: not refused. */
const char *nib__driver_words(const nib_policy *policy, const nib_kernel *kernel);
/* The row that would run instead of `chosen` if the driver had not refused it; NULL: none. */
const nib_kernel *nib__driver_refused(const nib_kernel *chosen, const nib_query *query,
                                      const nib_policy *policy);
/* The same for the row, or the activation quantizer, at `use`; its query goes to *query. */
const nib_kernel *nib__variant_driver_refused(const nib_variant *variant, const nib_layer *layer,
                                              const nib_policy *policy, int use, nib_query *query);

/* Advice to allow a rung; `text` says what would then run and at what cost. The option is the
 * rung's name until all layers are planned; with --strict there is none. */
void nib__plan_advise_rung(nib_ledger *ledger, nib_ledger_layer *line, const nib_policy *policy,
                           nib_rung rung, const char *text);

/* With many tokens: a's arithmetic unit was measured clearly faster than b's, and both give the
 * same bits. */
bool nib__variant_outpaces(const nib_kernel *a, const nib_kernel *b, const nib_machine *machine,
                           int64_t m);

/* ---- costs ---- */

/* Weight bytes in the layout that the row reads: packed or as stored. */
uint64_t nib__row_bytes(const nib_kernel *kernel, const nib_layer *layer, const nib_scheme *scheme);
/* Bytes of the layer's weight on the variant's machine, in each layout that its rows read, and of
 * its bias. */
uint64_t nib__variant_bytes(const nib_variant *variant, const nib_layer *layer);
/* Bytes that a machine has for weights; UINT64_MAX: no known limit. `own`: the plan's machine,
 * which holds the KV cache if attention runs there. */
uint64_t nib__plan_room(const nib_policy *policy, const nib_machine *own,
                        const nib_machine *machine);
/* How many of m tokens the layer multiplies: in inference, only the last token of a prompt has an
 * output. */
NIB_INLINE int64_t nib__layer_tokens(const nib_layer *layer, const nib_policy *policy, int64_t m)
{
    return policy->training || layer->role != NIB_ROLE_HEAD ? m : 1;
}
/* The row reads the f32 input directly, without a conversion. */
NIB_INLINE bool nib__input_is_plain(const nib_scheme *scheme, nib_type dtype)
{
    return scheme->act == NIB_ACT_FLOAT && dtype == NIB_TYPE_F32 && scheme->zero != NIB_ZERO_FLOAT;
}
/* Fills in the predicted seconds and bytes of the variant's uses. */
void nib__variant_price(nib_variant *variant, const nib_layer *layer, const nib_policy *policy);
/* Seconds for m tokens: of the use whose range has m; in training, of all phases together. */
double nib__variant_seconds(const nib_variant *variant, const nib_layer *layer,
                            const nib_policy *policy, int64_t m);
/* The same for the layer in bf16, unquantized; NaN: no row on this machine does it. */
double nib__bf16_seconds(const nib_layer *layer, const nib_machine *machine,
                         const nib_policy *policy, int64_t m);
/* The number of tokens that a predicted time covers: one, or a micro-batch in training; and the
 * word for them. */
int64_t nib__policy_m(const nib_policy *policy);
const char *nib__policy_unit(const nib_policy *policy);

/* ---- the plan as a whole ---- */

enum { NIB_PREFILL_TOKENS = 512 };

/* Collected while layers are planned. */
typedef struct nib_plan_totals {
    size_t slow_decode, slow_prefill; /* quantized layers that would be faster in bf16 */
} nib_plan_totals;

/* Fills in the predicted times of whole inference steps, after everything is planned. */
void nib__plan_whole_steps(nib_assignment *plan, const nib_policy *policy);
/* Seconds of copies between host and device in a step of m tokens. */
double nib__plan_moves_seconds(const nib_assignment *plan, const nib_policy *policy, int64_t m);
/* plan_experts.c: whether one launch could multiply the rows of all experts or heads. */
bool nib__variant_groups(const nib_variant *variant, const nib_layer *layer);
/* Decides which matrices of experts and heads take one launch. */
void nib__plan_group_experts(nib_assignment *plan);
/* A note on the weights that a mixture reads per step, and on its launches. */
void nib__plan_note_experts(nib_assignment *plan, const nib_policy *policy);
void nib__plan_notes(nib_assignment *plan, const nib_policy *policy, const nib_plan_totals *totals);
/* Fills plan->denied. */
void nib__plan_say_denied(nib_assignment *plan, const nib_policy *policy);

/* ---- words ---- */

/* Why the variant does not run: one reason per row and failed condition. */
void nib__explain_missing(nib_ledger *ledger, nib_ledger_layer *line, const nib_variant *variant,
                          const nib_layer *layer, const nib_policy *policy);
/* The failed conditions of one row as reasons, each after the row's name. */
void nib__explain_row(nib_ledger *ledger, nib_ledger_layer *line, const nib_kernel *kernel,
                      const nib_query *query, const nib_policy *policy, bool ask_built);
/* The rows of a machine for an operation without weights, each with the conditions that refuse it;
 * or that it has none. */
void nib__explain_operation(nib_ledger *ledger, nib_ledger_layer *line, const nib_query *query,
                            const nib_policy *policy, const nib_machine *machine);
/* Every candidate row of the variant, chosen or not. */
void nib__explain_candidates(nib_ledger *ledger, nib_ledger_layer *line, const nib_variant *variant,
                             const nib_layer *layer, const nib_policy *policy);
/* After those: the rows that fuse the norm with quantizing the input. `row` runs, instead of the
 * quantizer; NULL: none does, because of `why` (NULL: each row's conditions). */
void nib__explain_normed(nib_ledger *ledger, nib_ledger_layer *line, const nib_layer_plan *plan,
                         const nib_policy *policy, const nib_kernel *row, const char *why);
/* The rows of policy->engine for this layer, with their verdicts. */
void nib__explain_engine(nib_ledger *ledger, nib_ledger_layer *line, const nib_variant *variant,
                         const nib_layer *layer, const nib_policy *policy);

/* Recipe i of those that advice tries; NULL past the last. */
const char *nib__suggest_recipe(nib_scheme *scheme, size_t i);

/* Plans the layer again with one change at a time, and adds those that work as advice, fastest
 * first. `now`: predicted seconds of one token in the current plan, NaN if denied. */
void nib__suggest(nib_ledger *ledger, nib_ledger_layer *line, const nib_layer *layer,
                  const nib_machine *machine, const nib_policy *policy, double now);

#endif
