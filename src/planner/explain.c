/* SPDX-License-Identifier: Apache-2.0
 *
 * Reasons: failed conditions as ledger lines, the candidates of a layer with their verdicts, and
 * the verdicts of another engine's kernels.
 */
#include "peers.h"
#include "tuned.h"
#include "variant.h"

#include <stdio.h>

static const char *const packing_phase = "pack";

const char *nib__driver_words(const nib_policy *policy, const nib_kernel *kernel)
{
    for (size_t i = 0; i < policy->refused_count; i++)
        if (strcmp(policy->refused[i].kernel, kernel->name) == 0)
            return policy->refused[i].message;
    return NULL;
}

/* The code and the sentence of one condition of a row, allocated in the ledger. */
static nib_reason make_reason(nib_ledger *ledger, const nib_cond *cond, const nib_kernel *kernel,
                              const nib_query *query, const nib_policy *policy)
{
    const char *words = cond->fact == NIB_FACT_OFFERED ? nib__driver_words(policy, kernel) : NULL;
    nib_text text;
    nib_reason reason;
    if (words != NULL)
        return (nib_reason){"refused", nib__ledger_text(ledger, "%s", words)};
    nib__text_init(&text, ledger->arena.allocator);
    nib__cond_code(cond, &text);
    reason.code = nib__ledger_text(ledger, "%s", text.at != NULL ? text.at : "");
    nib__text_clear(&text);
    nib__cond_say(cond, query, &text);
    reason.text = nib__ledger_text(ledger, "%s", text.at != NULL ? text.at : "");
    if (text.failed)
        ledger->failed = true;
    nib__text_free(&text);
    return reason;
}

enum { CONDS_MAX = 32 };

/* The query as a peer's engine would see it: some facts of a layer depend on the engine. */
static nib_query peer_query(const nib_kernel *kernel, const nib_query *query)
{
    nib_query own = *query;
    if (kernel->peer != NULL && kernel->peer->act_scale_type != NIB_TYPE_NONE &&
        !own.fact[NIB_FACT_ACT_SYMMETRIC])
        own.fact[NIB_FACT_ACT_SCALE_TYPE] = kernel->peer->act_scale_type;
    return own;
}

/* The conditions that refuse a row; with ask_key, those of its key, too, as for a row named by an
 * option. */
static size_t find_refusals(const nib_kernel *kernel, const nib_query *query, bool ask_built,
                            bool ask_key, nib_cond out[CONDS_MAX])
{
    const nib_cond *failed[CONDS_MAX];
    nib_cond key[NIB_KEY_CONDS];
    size_t count = 0;
    const int keys = ask_key ? nib__kernel_key_conds(kernel, key) : 0;
    for (int i = 0; i < keys; i++)
        if (!nib__cond_holds(&key[i], query))
            out[count++] = key[i];
    size_t more = nib__kernel_failed(kernel, query, ask_built, failed, CONDS_MAX);
    if (more > CONDS_MAX - count)
        more = CONDS_MAX - count;
    for (size_t i = 0; i < more; i++)
        out[count++] = *failed[i];
    return count;
}

void nib__explain_row(nib_ledger *ledger, nib_ledger_layer *line, const nib_kernel *kernel,
                      const nib_query *query, const nib_policy *policy, bool ask_built)
{
    nib_cond conds[CONDS_MAX];
    const nib_query own = peer_query(kernel, query);
    const size_t count = find_refusals(kernel, &own, ask_built, true, conds);
    for (size_t i = 0; i < count; i++) {
        const nib_reason reason = make_reason(ledger, &conds[i], kernel, &own, policy);
        nib__ledger_add_reason(ledger, line, reason.code,
                               nib__ledger_text(ledger, "%s: %s", kernel->name, reason.text));
    }
}

/* No candidate at all: say what the table lacks. */
static void explain_no_row(nib_ledger *ledger, nib_ledger_layer *line, const nib_query *query)
{
    nib_text text;
    nib__text_init(&text, ledger->arena.allocator);
    nib__text_str(&text, "no kernel: the table has no ");
    nib__fact_say(NIB_FACT_OP, query->fact[NIB_FACT_OP], &text);
    nib__text_str(&text, " for ");
    nib__fact_say(NIB_FACT_CODE, query->fact[NIB_FACT_CODE], &text);
    nib__text_str(&text, " weights and ");
    nib__fact_say(NIB_FACT_ACT, query->fact[NIB_FACT_ACT], &text);
    nib__text_str(&text, " activations (");
    nib__fact_say(NIB_FACT_INPUT, query->fact[NIB_FACT_INPUT], &text);
    nib__text_str(&text, ") on ");
    nib__fact_say(NIB_FACT_DEVICE, query->fact[NIB_FACT_DEVICE], &text);
    nib__ledger_add_reason(ledger, line, "no-row",
                           nib__ledger_text(ledger, "%s", text.at != NULL ? text.at : ""));
    if (text.failed)
        ledger->failed = true;
    nib__text_free(&text);
}

void nib__explain_missing(nib_ledger *ledger, nib_ledger_layer *line, const nib_variant *variant,
                          const nib_layer *layer, const nib_policy *policy)
{
    const nib_use *use = &variant->uses[variant->missing];
    nib_query query;
    bool any = false;
    if (variant->no_common) {
        nib__ledger_add_reason(
            ledger, line, "numbers",
            "no single arithmetic contract has kernels for every number of tokens and phase");
        return;
    }
    nib__plan_query(&query, layer, &variant->scheme, variant->machine, policy, variant->lacks,
                    use->phase, use->m_min);
    for (size_t i = 0; i < nib__kernel_count(); i++) {
        const nib_kernel *row = nib__kernel_at(i);
        if (row->peer != NULL || !nib__kernel_keyed(row, &query))
            continue;
        any = true;
        nib__explain_row(ledger, line, row, &query, policy, !policy->declared);
    }
    if (!any)
        explain_no_row(ledger, line, &query);
}

/* ---- every candidate ---- */

typedef struct asked_row {
    nib_op op;
    nib_phase phase;
    const nib_kernel *row;
} asked_row;

static bool is_chosen(const nib_variant *variant, const nib_kernel *row)
{
    for (int i = 0; variant->runs && i < variant->use_count; i++)
        if (variant->uses[i].kernel == row || variant->uses[i].quant == row ||
            variant->uses[i].normed == row)
            return true;
    return false;
}

/* If both were measured for this shape: the row's time for each range of tokens, and that of the
 * chosen row. */
static bool explain_tuned(nib_ledger *ledger, nib_candidate *candidate, const nib_variant *variant,
                          const nib_query *query, const nib_kernel *row)
{
    char words[256] = "";
    size_t used = 0;
    if (variant->machine->tuned == NULL || row->op != NIB_OP_LINEAR)
        return false;
    for (int i = 0; i < variant->use_count && used < sizeof words; i++) {
        char own[32], chosen[32];
        nib_query at = *query;
        at.fact[NIB_FACT_M] = variant->uses[i].m_min;
        const nib_tuned_line *line = nib__tuned_find(variant->machine->tuned, &at);
        const double own_s = line != NULL ? nib__tuned_seconds(line, row) : 0;
        if (own_s == 0 || variant->uses[i].tuned_s == 0)
            return false;
        used += (size_t)snprintf(
            words + used, sizeof words - used, "%s%s against %s from m %lld on", i == 0 ? "" : "; ",
            nib__format_seconds(own, own_s), nib__format_seconds(chosen, variant->uses[i].tuned_s),
            (long long)variant->uses[i].m_min);
    }
    nib__ledger_add_candidate_reason(ledger, candidate, "tuned",
                                     nib__ledger_text(ledger, "measured: %s", words));
    return true;
}

/* Why a row that could run is not chosen. */
static void explain_rank(nib_ledger *ledger, nib_candidate *candidate, const nib_variant *variant,
                         const nib_kernel *row, const nib_query *query)
{
    const nib_kernel *chosen = row->op == NIB_OP_QUANT        ? variant->uses[0].quant
                               : row->op == NIB_OP_NORM_QUANT ? variant->uses[0].normed
                                                              : NULL;
    for (int i = 0; i < variant->use_count; i++)
        if (variant->uses[i].op == row->op)
            chosen = variant->uses[i].kernel;
    if (variant->bound != NULL && row->op == variant->bound->op) {
        nib__ledger_add_candidate_reason(
            ledger, candidate, "bound",
            nib__ledger_text(ledger, "--kernel binds %s", variant->bound->name));
        return;
    }
    if (chosen == NULL && variant->apart != NULL) {
        nib__ledger_add_candidate_reason(ledger, candidate, "apart", variant->apart);
        return;
    }
    if (!variant->runs || chosen == NULL) {
        nib__ledger_add_candidate_reason(ledger, candidate, "alone",
                                         "another product of the layer has no kernel");
        return;
    }
    if (row->op != NIB_OP_QUANT && row->arithmetic != chosen->arithmetic)
        nib__ledger_add_candidate_reason(
            ledger, candidate, "numbers",
            nib__ledger_text(ledger, "its arithmetic contract is %s, but the layer's is %s",
                             nib__arithmetic_names[row->arithmetic],
                             nib__arithmetic_names[chosen->arithmetic]));
    else if (explain_tuned(ledger, candidate, variant, query, row))
        return;
    else if (nib__variant_outpaces(chosen, row, variant->machine, INT64_MAX))
        nib__ledger_add_candidate_reason(
            ledger, candidate, "rate",
            nib__ledger_text(ledger,
                             "its unit is slower here: %.0f G operations/s measured, %s has %.0f",
                             variant->machine->rate[row->unit] * 1e-9, chosen->name,
                             variant->machine->rate[chosen->unit] * 1e-9));
    else
        nib__ledger_add_candidate_reason(ledger, candidate, "rank",
                                         nib__ledger_text(ledger, "ranks below %s", chosen->name));
}

static void add_candidate(nib_ledger *ledger, nib_ledger_layer *line, const nib_variant *variant,
                          const nib_policy *policy, const asked_row *asked, const nib_query *query)
{
    nib_cond conds[CONDS_MAX];
    const nib_kernel *row = asked->row;
    nib_candidate *candidate = nib__ledger_add_candidate(ledger, line);
    if (candidate == NULL)
        return;
    const size_t failed = find_refusals(row, query, !policy->declared, false, conds);
    candidate->kernel = row->name;
    candidate->phase = nib__phase_names[asked->phase];
    if (is_chosen(variant, row)) {
        candidate->verdict = NIB_VERDICT_RUNS;
        if (!nib__kernel_built(row))
            nib__ledger_add_candidate_reason(ledger, candidate, "declared",
                                             "not compiled into this build");
        return;
    }
    candidate->verdict = failed == 0 ? NIB_VERDICT_COULD : NIB_VERDICT_NO;
    for (size_t i = 0; i < failed; i++) {
        const nib_reason reason = make_reason(ledger, &conds[i], row, query, policy);
        nib__ledger_add_candidate_reason(ledger, candidate, reason.code, reason.text);
    }
    if (failed == 0)
        explain_rank(ledger, candidate, variant, row, query);
}

/* The rows of one operation, the chosen one first, then by rank. */
static void add_candidates(nib_ledger *ledger, nib_ledger_layer *line, const nib_variant *variant,
                           const nib_layer *layer, const nib_policy *policy, const nib_use *use,
                           nib_op op)
{
    nib_query query;
    nib__plan_query(&query, layer, &variant->scheme, variant->machine, policy, op, use->phase,
                    use->m_min);
    int last_rank = -1;
    for (bool chosen = true;; chosen = false) {
        int rank = INT32_MAX; /* the next one */
        for (size_t i = 0; !chosen && i < nib__kernel_count(); i++) {
            const nib_kernel *row = nib__kernel_at(i);
            if (row->peer == NULL && row->rank > last_rank && row->rank < rank &&
                nib__kernel_keyed(row, &query))
                rank = row->rank;
        }
        if (!chosen && rank == INT32_MAX)
            return;
        for (size_t i = 0; i < nib__kernel_count(); i++) {
            const asked_row asked = {op, use->phase, nib__kernel_at(i)};
            if (asked.row->peer == NULL && nib__kernel_keyed(asked.row, &query) &&
                is_chosen(variant, asked.row) == chosen && (chosen || asked.row->rank == rank))
                add_candidate(ledger, line, variant, policy, &asked, &query);
        }
        if (!chosen)
            last_rank = rank;
    }
}

void nib__explain_candidates(nib_ledger *ledger, nib_ledger_layer *line, const nib_variant *variant,
                             const nib_layer *layer, const nib_policy *policy)
{
    for (int i = 0; i < variant->use_count; i++)
        if (i == 0 || variant->uses[i].op != variant->uses[i - 1].op)
            add_candidates(ledger, line, variant, layer, policy, &variant->uses[i],
                           variant->uses[i].op);
    if (variant->uses[0].op != NIB_OP_EMBED)
        add_candidates(ledger, line, variant, layer, policy, &variant->uses[0], NIB_OP_QUANT);
}

void nib__explain_normed(nib_ledger *ledger, nib_ledger_layer *line, const nib_layer_plan *plan,
                         const nib_policy *policy, const nib_kernel *row, const char *why)
{
    nib_variant variant = nib__variant_of(plan);
    variant.apart = why;
    for (int i = 0; i < variant.use_count; i++)
        variant.uses[i].normed = row;
    for (size_t i = 0; i < line->candidate_count && row != NULL; i++) {
        nib_candidate *c = &line->candidates[i];
        if (c->verdict != NIB_VERDICT_RUNS || c->kernel != variant.uses[0].quant->name)
            continue;
        c->verdict = NIB_VERDICT_COULD;
        nib__ledger_add_candidate_reason(
            ledger, c, "normed",
            nib__ledger_text(ledger, "%s makes the same codes fused with the norm", row->name));
    }
    add_candidates(ledger, line, &variant, plan->layer, policy, &variant.uses[0],
                   NIB_OP_NORM_QUANT);
}

/* ---- another engine ---- */

static void add_engine_row(nib_ledger *ledger, nib_ledger_layer *line, const nib_kernel *row,
                           const nib_query *query, const nib_policy *policy)
{
    nib_cond conds[CONDS_MAX];
    nib_candidate *candidate = nib__ledger_add_candidate(ledger, line);
    if (candidate == NULL)
        return;
    const nib_query own = peer_query(row, query);
    const size_t failed = find_refusals(row, &own, false, false, conds);
    candidate->kernel = row->name;
    candidate->phase =
        row->op == NIB_OP_PACK ? packing_phase : nib__phase_names[query->fact[NIB_FACT_PHASE]];
    candidate->verdict = failed == 0 ? NIB_VERDICT_RUNS : NIB_VERDICT_NO;
    candidate->engine = nib__ledger_text(ledger, "%s %s", row->peer->engine, row->peer->version);
    candidate->consequence = failed == 0 ? row->peer->result : row->note;
    candidate->source = row->peer->source;
    for (size_t i = 0; i < failed; i++) {
        const nib_reason reason = make_reason(ledger, &conds[i], row, &own, policy);
        nib__ledger_add_candidate_reason(ledger, candidate, reason.code, reason.text);
    }
}

void nib__explain_engine(nib_ledger *ledger, nib_ledger_layer *line, const nib_variant *variant,
                         const nib_layer *layer, const nib_policy *policy)
{
    static const nib_op ops[] = {NIB_OP_PACK, NIB_OP_LINEAR, NIB_OP_LINEAR_EXPERTS,
                                 NIB_OP_LINEAR_DX, NIB_OP_LINEAR_DW};
    const bool expert = layer->experts > 1;
    if (layer->role == NIB_ROLE_EMBED)
        return;
    for (size_t o = 0; o < COUNT(ops); o++) {
        const bool backward = ops[o] == NIB_OP_LINEAR_DX || ops[o] == NIB_OP_LINEAR_DW;
        nib_query query;
        if ((backward && !policy->training) || (ops[o] == NIB_OP_LINEAR_EXPERTS) != expert)
            continue;
        nib__plan_query(&query, layer, &variant->scheme, variant->machine, policy, ops[o],
                        backward           ? NIB_PHASE_BACKWARD
                        : policy->training ? NIB_PHASE_FORWARD
                                           : NIB_PHASE_INFER,
                        nib__policy_m(policy));
        for (size_t i = 0; i < nib__kernel_count(); i++) {
            const nib_kernel *row = nib__kernel_at(i);
            if (nib__engine_uses(policy->engine, row) && nib__kernel_keyed(row, &query) &&
                nib__peer_takes_down(row, layer->role == NIB_ROLE_DOWN))
                add_engine_row(ledger, line, row, &query, policy);
        }
    }
}
