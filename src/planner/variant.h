/* SPDX-License-Identifier: Apache-2.0
 *
 * Inside the planner: one way of doing a layer (a scheme on a machine), its rows and its cost.
 */
#ifndef NIB_VARIANT_H
#define NIB_VARIANT_H

#include "planner.h"

/* A scheme on a machine: rows for every bucket or phase, or the first that has none. */
typedef struct nib_variant {
    nib_scheme scheme;
    const nib_machine *machine;
    nib_use uses[NIB_USES_MAX];
    int use_count;
    const nib_kernel *bound; /* the only row asked for, or NULL */
    bool runs;               /* every use has its rows */
    int missing;             /* the use that has none, if it does not run */
    nib_op lacks;            /* there: its own operation, or one that makes an operand of it */
    bool no_common;          /* every use has a row, but none of one arithmetic contract */
    bool own_input;          /* the form of its input is made for it alone, see cost.c */
    const char *apart;       /* why the form is not made with the norm; NULL */
} nib_variant;

/* bound: the only row for its operation; NULL: the best. */
void nib__variant_find(nib_variant *variant, const nib_layer *layer, const nib_scheme *scheme,
                       const nib_machine *machine, const nib_policy *policy,
                       const nib_kernel *bound);

/* The way that a plan took. */
nib_variant nib__variant_of(const nib_layer_plan *layer);
/* The use that has m tokens in its range. */
const nib_use *nib__variant_use(const nib_variant *variant, int64_t m);

/* Facts of an operation without weights, and the best row of them: on a machine
 * that is here, the best built one. */
void nib__plan_op_query(nib_query *out, nib_op op, nib_type input, const nib_machine *machine);
/* The same of f32 rows, as a policy asks: with its cache, and without what it leaves out. */
void nib__plan_op_ask(nib_query *out, nib_op op, const nib_policy *policy,
                      const nib_machine *machine);
const nib_kernel *nib__plan_op_best(const nib_query *query, const nib_machine *machine);

/* The row at `use` that would run if not for its conditions: built (or declared), keyed, faster
 * than the one chosen, its instruction set present. NULL: the chosen row is as good as any here. */
const nib_kernel *nib__variant_refused(const nib_variant *variant, const nib_layer *layer,
                                       const nib_policy *policy, int use);

/* What the driver said when it refused the row; NULL: it did not. */
const char *nib__driver_words(const nib_policy *policy, const nib_kernel *kernel);
/* The row that would run in place of `chosen`, had the driver not refused it; NULL: none. */
const nib_kernel *nib__driver_refused(const nib_kernel *chosen, const nib_query *query,
                                      const nib_policy *policy);
/* The same of the row, or of the activation quantizer, at `use`; what was asked goes to *query. */
const nib_kernel *nib__variant_driver_refused(const nib_variant *variant, const nib_layer *layer,
                                              const nib_policy *policy, int use, nib_query *query);

/* Advice that a rung would do it: with `text`, what is then done and at what cost. Its option is
 * the rung's name until all layers are planned; --strict allows none. */
void nib__plan_advise_rung(nib_ledger *ledger, nib_ledger_layer *line, const nib_policy *policy,
                           nib_rung rung, const char *text);

/* With many tokens, a's arithmetic unit was measured to be clearly faster than b's, and the bits
 * are the same. */
bool nib__variant_outpaces(const nib_kernel *a, const nib_kernel *b, const nib_machine *machine,
                           int64_t m);

/* ---- costs ---- */

/* Weight bytes in the layout that the row reads: packed, or as stored. */
uint64_t nib__row_bytes(const nib_kernel *kernel, const nib_layer *layer, const nib_scheme *scheme);
/* Bytes of the layer's weight on the way's machine, in each layout that its rows read, and of its
 * bias. */
uint64_t nib__variant_bytes(const nib_variant *variant, const nib_layer *layer);
/* Bytes that a machine has for weights; UINT64_MAX: no limit is known. `own`: the plan's machine,
 * where keys and values lie if attention runs there. */
uint64_t nib__plan_room(const nib_policy *policy, const nib_machine *own,
                        const nib_machine *machine);
/* Of m tokens those that the layer multiplies: in inference a prompt has one output. */
NIB_INLINE int64_t nib__layer_tokens(const nib_layer *layer, const nib_policy *policy, int64_t m)
{
    return policy->training || layer->role != NIB_ROLE_HEAD ? m : 1;
}
/* f32 that a row takes as it lies: nothing is made of it first. */
NIB_INLINE bool nib__input_is_plain(const nib_scheme *scheme, nib_type dtype)
{
    return scheme->act == NIB_ACT_FLOAT && dtype == NIB_TYPE_F32 && scheme->zero != NIB_ZERO_FLOAT;
}
/* Fills in what the way's uses are predicted to take. */
void nib__variant_price(nib_variant *variant, const nib_layer *layer, const nib_policy *policy);
/* Seconds with m tokens by the use that has m in its range; all phases together in training. */
double nib__variant_seconds(const nib_variant *variant, const nib_layer *layer,
                            const nib_policy *policy, int64_t m);
/* The same of the layer's own bf16, unquantized; NaN: no row has it on this machine. */
double nib__bf16_seconds(const nib_layer *layer, const nib_machine *machine,
                         const nib_policy *policy, int64_t m);
/* Tokens that a time is told for: one, or a micro-batch in training; and what they are called. */
int64_t nib__policy_m(const nib_policy *policy);
const char *nib__policy_unit(const nib_policy *policy);

/* ---- the plan as a whole ---- */

enum { NIB_PREFILL_TOKENS = 512 };

/* Gathered while layers are planned. */
typedef struct nib_plan_totals {
    size_t slow_decode, slow_prefill; /* quantized layers that their own bf16 outdoes */
} nib_plan_totals;

/* Fills in what whole steps of inference take, once all of it is planned. */
void nib__plan_whole_steps(nib_assignment *plan, const nib_policy *policy);
/* Seconds that copies between the devices take in a step of m tokens. */
double nib__plan_moves_seconds(const nib_assignment *plan, const nib_policy *policy, int64_t m);
void nib__plan_notes(nib_assignment *plan, const nib_policy *policy, const nib_plan_totals *totals);
/* Fills plan->denied. */
void nib__plan_say_denied(nib_assignment *plan, const nib_policy *policy);

/* ---- words ---- */

/* Why the way does not run, or why a better row was refused: one reason per condition and row. */
void nib__explain_missing(nib_ledger *ledger, nib_ledger_layer *line, const nib_variant *variant,
                          const nib_layer *layer, const nib_policy *policy);
/* The failed conditions of one row, as reasons; its name is said first. */
void nib__explain_row(nib_ledger *ledger, nib_ledger_layer *line, const nib_kernel *kernel,
                      const nib_query *query, const nib_policy *policy, bool ask_built);
/* Rows of a machine for an operation without weights, each with what refuses it; or that there are
 * none. */
void nib__explain_operation(nib_ledger *ledger, nib_ledger_layer *line, const nib_query *query,
                            const nib_policy *policy, const nib_machine *machine);
/* Every candidate row of the way, chosen or not. */
void nib__explain_candidates(nib_ledger *ledger, nib_ledger_layer *line, const nib_variant *variant,
                             const nib_layer *layer, const nib_policy *policy);
/* After those: the rows that make the form of the input with the norm. `row` does, and so the
 * quantizer does not; NULL: none, and `why` (NULL: each refuses). */
void nib__explain_normed(nib_ledger *ledger, nib_ledger_layer *line, const nib_layer_plan *plan,
                         const nib_policy *policy, const nib_kernel *row, const char *why);
/* The rows of policy->engine that the layer would have met there. */
void nib__explain_engine(nib_ledger *ledger, nib_ledger_layer *line, const nib_variant *variant,
                         const nib_layer *layer, const nib_policy *policy);

/* The recipes that are offered, one after the other; NULL past the last. */
const char *nib__suggest_recipe(nib_scheme *scheme, size_t i);

/* Plans the layer again with one thing changed, and adds what then works as advice, fastest first.
 * `now` is the predicted seconds of one token as it stands, NaN if it does not run. */
void nib__suggest(nib_ledger *ledger, nib_ledger_layer *line, const nib_layer *layer,
                  const nib_machine *machine, const nib_policy *policy, double now);

#endif
