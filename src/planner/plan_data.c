/* SPDX-License-Identifier: Apache-2.0
 *
 * A plan as structs for applications: what nib_plan_write renders, entry by entry.
 */
#include "plan_handle.h"
#include "public_struct.h"

static const char *name_in(const char *const *names, size_t count, int value)
{
    return value >= 0 && (size_t)value < count ? names[value] : "unknown";
}

const char *nib_rung_name(nib_rung rung)
{
    return name_in(nib__rung_names, NIB_RUNG_COUNT, (int)rung);
}

const char *nib_verdict_name(nib_verdict verdict)
{
    return name_in(nib__verdict_names, NIB_VERDICT_COUNT, (int)verdict);
}

const char *nib_setting_relation_name(nib_setting_relation relation)
{
    return name_in(nib__setting_relation_names, NIB_SETTING_COUNT, (int)relation);
}

const char *nib_asker_name(nib_asker asker)
{
    return name_in(nib__asker_names, NIB_ASKER_COUNT, (int)asker);
}

const nib_plan *nib_plan_draft(const nib_plan *plan) { return plan != NULL ? plan->draft : NULL; }

void nib_plan_facts_get(const nib_plan *plan, nib_plan_facts *out)
{
    if (plan == NULL)
        return;
    const nib_assignment *a = &plan->assignment;
    const nib_ledger_counts counts = nib__ledger_count(&a->ledger);
    const nib_plan_facts facts = {.recipe = nib__recipe_text(plan->recipe),
                                  .device = plan->machine.name,
                                  .dtype = nib__type_name(plan->policy.dtype),
                                  .cache = plan->cache_name,
                                  .context = plan->context,
                                  .sequences = plan->sequences,
                                  .lookup = plan->lookup,
                                  .weight_bytes = plan->weight_bytes,
                                  .cache_bytes = plan->cache.bytes,
                                  .token_s = a->predicted_token_s,
                                  .bf16_token_s = a->predicted_bf16_token_s,
                                  .prefill_s = a->predicted_prefill_s,
                                  .layers = a->ledger.layer_count,
                                  .settings = a->ledger.setting_count,
                                  .notes = a->ledger.note_count,
                                  .asked = counts.asked,
                                  .done = counts.done,
                                  .substituted = counts.substituted,
                                  .denied = counts.denied};
    NIB_RESULT(out, facts);
}

static nib_status check_index(size_t index, size_t count, const char *what, nib_err *err)
{
    return index < count
               ? NIB_OK
               : nib__fail(err, NIB_USAGE, "%s %zu of a plan that has %zu", what, index, count);
}

static nib_status find_layer(const nib_plan *plan, size_t layer, const nib_ledger_layer **out,
                             nib_err *err)
{
    const nib_ledger *ledger = &plan->assignment.ledger;
    NIB_TRY(check_index(layer, ledger->layer_count, "layer", err));
    *out = &ledger->layers[layer];
    return NIB_OK;
}

nib_status nib_plan_layer_get(const nib_plan *plan, size_t layer, nib_plan_layer *out, nib_err *err)
{
    NIB_NEED(err, "plan, out", plan, out);
    const nib_ledger_layer *l;
    NIB_TRY(find_layer(plan, layer, &l, err));
    const nib_plan_layer line = {.name = l->name,
                                 .role = l->role,
                                 .asked = l->asked,
                                 .done = l->denied ? NULL : l->done,
                                 .rule = l->rule,
                                 .allowed = l->allowed,
                                 .rung = l->rung,
                                 .denied = l->denied,
                                 .bias = l->bias,
                                 .bias_form = l->bias_form,
                                 .n = l->n,
                                 .k = l->k,
                                 .bytes = l->bytes,
                                 .reasons = l->reasons,
                                 .reason_count = l->reason_count,
                                 .uses = l->use_count,
                                 .advice = l->advice_count,
                                 .candidates = l->candidate_count};
    NIB_RESULT(out, line);
    return NIB_OK;
}

nib_status nib_plan_use_get(const nib_plan *plan, size_t layer, size_t use, nib_plan_use *out,
                            nib_err *err)
{
    NIB_NEED(err, "plan, out", plan, out);
    const nib_ledger_layer *l;
    NIB_TRY(find_layer(plan, layer, &l, err));
    NIB_TRY(check_index(use, l->use_count, "use", err));
    const nib_ledger_use *u = &l->uses[use];
    const nib_plan_use line = {.phase = u->phase,
                               .m_min = u->m_min,
                               .m_max = u->m_max,
                               .kernel = u->kernel,
                               .device = u->device,
                               .quant = u->quant,
                               .predicted_us = u->predicted_us,
                               .tuned_us = u->tuned_us};
    NIB_RESULT(out, line);
    return NIB_OK;
}

nib_status nib_plan_advice_get(const nib_plan *plan, size_t layer, size_t advice,
                               nib_plan_advice *out, nib_err *err)
{
    NIB_NEED(err, "plan, out", plan, out);
    const nib_ledger_layer *l;
    NIB_TRY(find_layer(plan, layer, &l, err));
    NIB_TRY(check_index(advice, l->advice_count, "advice", err));
    const nib_ledger_advice *a = &l->advice[advice];
    const nib_plan_advice line = {.code = a->code, .option = a->option, .text = a->text};
    NIB_RESULT(out, line);
    return NIB_OK;
}

nib_status nib_plan_candidate_get(const nib_plan *plan, size_t layer, size_t candidate,
                                  nib_plan_candidate *out, nib_err *err)
{
    NIB_NEED(err, "plan, out", plan, out);
    const nib_ledger_layer *l;
    NIB_TRY(find_layer(plan, layer, &l, err));
    NIB_TRY(check_index(candidate, l->candidate_count, "candidate", err));
    const nib_candidate *c = &l->candidates[candidate];
    const nib_plan_candidate line = {.kernel = c->kernel,
                                     .phase = c->phase,
                                     .engine = c->engine,
                                     .verdict = c->verdict,
                                     .reasons = c->reasons,
                                     .reason_count = c->reason_count,
                                     .consequence = c->consequence,
                                     .source = c->source};
    NIB_RESULT(out, line);
    return NIB_OK;
}

nib_status nib_plan_setting_get(const nib_plan *plan, size_t setting, nib_plan_setting *out,
                                nib_err *err)
{
    NIB_NEED(err, "plan, out", plan, out);
    const nib_ledger *ledger = &plan->assignment.ledger;
    NIB_TRY(check_index(setting, ledger->setting_count, "setting", err));
    const nib_ledger_setting *s = &ledger->settings[setting];
    const nib_plan_setting line = {.code = s->code,
                                   .name = s->name,
                                   .asked = s->asked,
                                   .done = s->done,
                                   .by = s->by,
                                   .relation = s->relation,
                                   .text = s->text,
                                   .allowed = s->allowed};
    NIB_RESULT(out, line);
    return NIB_OK;
}

nib_status nib_plan_note_get(const nib_plan *plan, size_t note, nib_reason *out, nib_err *err)
{
    NIB_NEED(err, "plan, out", plan, out);
    const nib_ledger *ledger = &plan->assignment.ledger;
    NIB_TRY(check_index(note, ledger->note_count, "note", err));
    *out = ledger->notes[note];
    return NIB_OK;
}
