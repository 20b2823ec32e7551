/* SPDX-License-Identifier: Apache-2.0
 *
 * Notes on the plan as a whole, once its layers are decided: predicted times, units of the machine
 * that stay idle, and the error sentence of the first denied layer.
 */
#include "options.h"
#include "tuned.h"
#include "variant.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

/* ---- 4-bit dot products: used, or why not ---- */

static bool uses_dot4(const nib_variant *variant)
{
    for (const nib_cond *c = variant->uses[0].kernel->conds; c->relation != NIB_REL_END; c++)
        if (c->fact == NIB_FACT_DOT4)
            return true;
    return false;
}

/* "v_dot8_i32_i4 multiplies eight 4-bit pairs" */
static const char *describe_dot4(const nib_machine *machine)
{
    for (size_t i = 0; i < machine->source_count; i++)
        if (machine->sources[i].fact == NIB_FACT_DOT4 && machine->sources[i].words != NULL)
            return machine->sources[i].words;
    return "published";
}

/* Without this note, a machine's 4-bit products would seem to speed up every recipe with a 4 in its
 * name. */
static void note_dot4(nib_assignment *out, const nib_policy *policy)
{
    const nib_machine *m = out->machine;
    const nib_layer *idle = NULL;
    size_t used = 0, idle_count = 0;
    for (size_t i = 0; i < out->count && m->facts.fact[NIB_FACT_DOT4]; i++) {
        const nib_layer_plan *plan = &out->layers[i];
        nib_variant variant = {.use_count = plan->use_count};
        if (plan->denied || plan->done.code != NIB_CODE_I4 || plan->layer->role == NIB_ROLE_EMBED)
            continue;
        memcpy(variant.uses, plan->uses, sizeof variant.uses);
        const bool is_used = uses_dot4(&variant);
        used += is_used;
        idle_count += !is_used;
        idle = is_used ? idle : plan->layer;
    }
    if (used != 0)
        nib__ledger_add_note(&out->ledger, "dot4",
                             "%s has 4-bit dot products (%s): %zu layers use them", m->name,
                             describe_dot4(m), used);
    if (idle == NULL)
        return;
    static const char recipe[] = "4da4w-g32";
    nib_scheme scheme;
    nib_variant variant;
    char remedy[192] = "no kernel in the table can use them here", then[32], now[32];
    const int64_t m_tokens = nib__policy_m(policy);
    if (nib__scheme_parse(&scheme, recipe, sizeof recipe - 1, NULL) != NIB_OK)
        return;
    nib__variant_find(&variant, idle, &scheme, m, policy, NULL);
    if (variant.runs && uses_dot4(&variant)) {
        nib__format_seconds(then, nib__variant_seconds(&variant, idle, policy, m_tokens));
        nib__variant_find(&variant, idle, &idle->asked, m, policy, NULL);
        nib__format_seconds(now, nib__variant_seconds(&variant, idle, policy, m_tokens));
        snprintf(remedy, sizeof remedy, "--recipe %s does (%.40s: %s per %s, now %s)", recipe,
                 idle->name, then, nib__policy_unit(policy), now);
    }
    nib__ledger_add_note(
        &out->ledger, "dot4",
        "%s has 4-bit dot products (%s); %zu int4 layers do not use them because their activations "
        "are %s: %s",
        m->name, describe_dot4(m), idle_count,
        idle->asked.act == NIB_ACT_FLOAT ? "float" : nib__act_names[idle->asked.act], remedy);
}

/* ---- fp8 without an fp8 unit ---- */

static bool is_widened(const nib_layer_plan *plan)
{
    for (int i = 0; i < plan->use_count; i++)
        if (plan->uses[i].kernel->unit == NIB_UNIT_FP8 ||
            plan->uses[i].kernel->unit == NIB_UNIT_MX8)
            return false;
    return plan->layer->role != NIB_ROLE_EMBED;
}

/* Users choose fp8 on a GPU for speed, so a note says if no fp8 unit multiplies it. A weight-only
 * recipe asks for float products; then only a machine without the unit is worth a note. */
static void note_widened(nib_assignment *out)
{
    const nib_machine *m = out->machine;
    const bool has_fp8 = m->facts.fact[NIB_FACT_FP8_UNIT] != 0;
    size_t layers = 0, blocks = 0;
    for (size_t i = 0; i < out->count; i++) {
        const nib_layer_plan *plan = &out->layers[i];
        const bool asked = !has_fp8 || plan->done.act != NIB_ACT_FLOAT;
        if (plan->denied || !nib__code_is_f8(plan->done.code) || !asked || !is_widened(plan))
            continue;
        layers++;
        blocks += plan->done.code == NIB_CODE_MX8;
    }
    if (layers == 0 || m->facts.fact[NIB_FACT_DEVICE] == NIB_DEVICE_CPU)
        return;
    const char *lacks = !has_fp8 ? "has no fp8 matrix unit"
                        : blocks == layers && !m->facts.fact[NIB_FACT_MX_UNIT]
                            ? "has no block-scaled matrix unit"
                            : "has an fp8 matrix unit, but the table has no kernel for it";
    nib__ledger_add_note(
        &out->ledger, "widened",
        "%s %s: the codes of %zu fp8 layer%s are widened to bf16 and multiplied as bf16", m->name,
        lacks, layers, layers == 1 ? "" : "s");
}

/* ---- activations that the format sets ---- */

static void note_format_activations(nib_assignment *out)
{
    size_t layers = 0;
    for (size_t i = 0; i < out->count; i++) {
        const nib_act act = out->layers[i].done.act;
        layers += !out->layers[i].denied && nib__act_block(act) > 0 &&
                  !nib__act_is_f8_blocks(act) && out->layers[i].layer->stored.act == NIB_ACT_FLOAT;
    }
    if (layers != 0)
        nib__ledger_add_note(&out->ledger, "activations",
                             "%zu layer%s int8 activations in blocks, as the tools of their format "
                             "do; --recipe weight-only uses floats",
                             layers, layers == 1 ? " uses" : "s use");
}

/* ---- quantizing that makes a layer slower ---- */

/* Seconds of the linear layers for m tokens if all quantized ones used this scheme; NaN: one of
 * them cannot. */
static double seconds_in(const nib_assignment *out, const nib_policy *policy,
                         const nib_scheme *scheme, int64_t m)
{
    double sum = 0;
    for (size_t i = 0; i < out->count; i++) {
        const nib_layer_plan *plan = &out->layers[i];
        const bool quantized = nib__scheme_is_quantized(&plan->done);
        nib_variant variant;
        if (plan->layer->role == NIB_ROLE_EMBED)
            continue;
        if (quantized && nib__scheme_is_quantized(&plan->layer->stored))
            return NAN;
        nib__variant_find(&variant, plan->layer, quantized ? scheme : &plan->done, out->machine,
                          policy, NULL);
        sum += nib__variant_seconds(&variant, plan->layer, policy,
                                    nib__layer_tokens(plan->layer, policy, m));
    }
    return sum;
}

/* Writes which recipe, or bf16, is faster than the plan for m tokens. Each recipe is tried for all
 * quantized layers. beside_s: seconds of everything but linear layers. */
static void say_fastest(const nib_assignment *out, const nib_policy *policy, int64_t m,
                        double planned_s, double bf16_s, double beside_s, char *to, size_t size)
{
    const char *recipe, *best = NULL;
    double best_s = bf16_s;
    nib_scheme scheme;
    char time[32];
    to[0] = 0;
    if (policy->place.count != 0 || isnan(bf16_s))
        return;
    for (size_t i = 0; (recipe = nib__suggest_recipe(&scheme, i)) != NULL; i++) {
        const double seconds = beside_s + seconds_in(out, policy, &scheme, m);
        if (seconds < best_s) /* false for NaN */
            best = recipe, best_s = seconds;
    }
    if (best != NULL && best_s < planned_s)
        snprintf(to, size, "; --recipe %s is fastest there, %s", best,
                 nib__format_seconds(time, best_s));
    else if (bf16_s < planned_s)
        snprintf(to, size, "; bf16 is fastest there, %s", nib__format_seconds(time, bf16_s));
}

/* Decode and prefill get a note each: what is faster for one token may be slower for a prompt. */
static void note_slower(nib_assignment *out, const nib_policy *policy,
                        const nib_plan_totals *totals)
{
    char fastest[96], prompt[64];
    const int64_t m = nib__policy_m(policy);
    snprintf(prompt, sizeof prompt, "in a prompt of %d tokens", NIB_PREFILL_TOKENS);
    for (int prefill = 0; prefill < (policy->training ? 1 : 2); prefill++) {
        const size_t slow = prefill ? totals->slow_prefill : totals->slow_decode;
        if (slow == 0)
            continue;
        const double planned_s = prefill ? out->predicted_prefill_s : out->predicted_token_s;
        say_fastest(out, policy, prefill ? NIB_PREFILL_TOKENS : m, planned_s,
                    prefill ? out->predicted_bf16_prefill_s : out->predicted_bf16_token_s,
                    planned_s - (prefill ? out->linear_prefill_s : out->linear_token_s), fastest,
                    sizeof fastest);
        nib__ledger_add_note(&out->ledger, "slower-than-bf16",
                             "slower than bf16 %s%s: %zu quantized layer%s%s",
                             prefill ? "" : "per ", prefill ? prompt : nib__policy_unit(policy),
                             slow, slow == 1 ? "" : "s", fastest);
    }
}

/* ---- kernels chosen by measured times ---- */

static void note_tuned(nib_assignment *out)
{
    const nib_tuned *tuned = out->machine->tuned;
    size_t layers = 0;
    if (tuned == NULL)
        return;
    for (size_t i = 0; i < out->count; i++)
        layers += !out->layers[i].denied && out->layers[i].uses[0].tuned_s > 0;
    if (layers > 0)
        nib__ledger_add_note(&out->ledger, "tuned",
                             "the kernels of %zu layer%s are ordered by times measured here, %s",
                             layers, layers == 1 ? "" : "s", tuned->measured_on);
    if (tuned->why[0] != 0)
        nib__ledger_add_note(&out->ledger, "tuned", "%s; `nibble tune MODEL` measures again",
                             tuned->why);
}

/* ---- notes ---- */

/* Times of a micro-batch: the products, and the products with the copies between device and
 * host. */
static void note_training(nib_assignment *out, const nib_policy *policy, const char *source)
{
    char linear[32], bf16[32], all[32], bf16_all[32];
    const double moves_s = out->predicted_token_s - out->linear_token_s;
    nib__format_seconds(linear, out->linear_token_s);
    nib__format_seconds(bf16, out->predicted_bf16_token_s - moves_s);
    nib__ledger_add_note(
        &out->ledger, "predicted",
        "linear layers, forward and backward, of %" PRId64 " tokens: %s predicted from %s; in "
        "bf16 %s%s",
        nib__policy_m(policy), linear, source, bf16,
        moves_s > 0 ? nib__ledger_text(&out->ledger, "; with copies %s, in bf16 %s",
                                       nib__format_seconds(all, out->predicted_token_s),
                                       nib__format_seconds(bf16_all, out->predicted_bf16_token_s))
                    : "");
}

void nib__plan_notes(nib_assignment *out, const nib_policy *policy, const nib_plan_totals *totals)
{
    const nib_machine *m = out->machine;
    char time[32], bf16[32], prefill[32], bf16_prefill[32], linear[32];
    const char *source = nib__machine_rates(m);
    nib__format_seconds(time, out->predicted_token_s);
    nib__format_seconds(bf16, out->predicted_bf16_token_s);
    nib__format_seconds(prefill, out->predicted_prefill_s);
    nib__format_seconds(bf16_prefill, out->predicted_bf16_prefill_s);
    nib__format_seconds(linear, out->linear_token_s);
    if (policy->training)
        note_training(out, policy, source);
    else
        nib__ledger_add_note(
            &out->ledger, "predicted",
            "predicted from %s: %s per token (in bf16 %s), %s for a prompt of %d tokens (in bf16 "
            "%s); linear layers are %s of a token",
            source, time, bf16, prefill, NIB_PREFILL_TOKENS, bf16_prefill, linear);
    if (m->here && !m->measured)
        nib__ledger_add_note(&out->ledger, "cautious",
                             "%s is faster than its cautious rates: `nibble devices %s "
                             "--measure` times its kernels, and later plans predict from the times",
                             m->name, m->name);
    nib__plan_note_experts(out, policy);
    note_tuned(out);
    note_slower(out, policy, totals);
    note_dot4(out, policy);
    note_widened(out);
    note_format_activations(out);
    if (!policy->declared)
        return;
    nib__ledger_add_note(
        &out->ledger, "declared",
        "%s is not this machine: kernels that are not built are planned as if they were", m->name);
}

/* The error sentence of the first denied layer: as many reasons as fit, then the remedy. */
void nib__plan_say_denied(nib_assignment *out, const nib_policy *policy)
{
    enum { REASONS_ROOM = 600 };
    size_t denied = 0;
    const nib_ledger_layer *line = NULL;
    for (size_t i = out->ledger.layer_count; i-- > 0;)
        if (out->ledger.layers[i].denied) {
            line = &out->ledger.layers[i];
            denied++;
        }
    out->denied = (nib_err){NIB_OK, ""};
    if (line == NULL)
        return;
    char reasons[REASONS_ROOM + 128] = "", more[64] = "", remedy[320] = "";
    size_t used = 0, written = 0;
    for (; written < line->reason_count && used < REASONS_ROOM; written++)
        used += (size_t)snprintf(reasons + used, sizeof reasons - used, "%s%.200s",
                                 written == 0 ? "" : "; ", line->reasons[written].text);
    if (written < line->reason_count)
        snprintf(reasons + (used < sizeof reasons ? used : sizeof reasons - 1),
                 used < sizeof reasons ? sizeof reasons - used : 1, "; and %zu more",
                 line->reason_count - written);
    if (denied > 1)
        snprintf(more, sizeof more, " (and %zu more)", denied - 1);
    if (line->advice_count != 0)
        snprintf(remedy, sizeof remedy, "; %.80s%s%.220s",
                 line->advice[0].option != NULL ? line->advice[0].option : "",
                 line->advice[0].option != NULL ? ": " : "", line->advice[0].text);
    else if (policy->strict && line->rung != NIB_RUNG_NONE)
        snprintf(remedy, sizeof remedy, "; without --strict, rung %s does it",
                 nib__rung_names[line->rung]);
    nib__fail(&out->denied, NIB_NOT_AS_ASKED, "%s: %sasked %s%s, but %s: %s%s", line->name,
              policy->strict && line->rung != NIB_RUNG_NONE ? "--strict: " : "", line->asked, more,
              line->rung != NIB_RUNG_NONE ? "something else would be done"
                                          : "nothing allowed does it",
              reasons, remedy);
}
