/* SPDX-License-Identifier: Apache-2.0
 *
 * Plans layer by layer. A layer runs as asked if a row does it; else the planner tries the rungs of
 * the ladder, each of which must be allowed; else the layer is denied, with every reason, what
 * would do it and at what cost. The ledger gets one line per layer.
 */
#include "options.h"
#include "variant.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

typedef struct planner {
    nib_assignment *out;
    const nib_machine *machine;
    const nib_policy *policy;
    nib_plan_options options;
    nib_plan_totals totals;
    size_t slowest; /* the layer that loses most against bf16; SIZE_MAX: none */
    double slowest_s, slowest_bf16_s;
} planner;

/* The decision for one layer, before it goes into plan and ledger. */
typedef struct decision {
    const nib_layer *layer;
    nib_variant asked, done; /* done is valid if the layer runs */
    const nib_machine *machine;
    const nib_kernel *bound;
    nib_rung rung;
    bool denied;
    bool refused; /* a row faster than the chosen one was refused */
    const char *allowed;
} decision;

enum { NAME_ROOM = 256 };

/* ---- words ---- */

static const char *format_done(nib_ledger *ledger, const nib_scheme *scheme,
                               const nib_machine *machine)
{
    char name[64];
    return nib__ledger_text(ledger, "%s@%s", nib__scheme_name(name, scheme), machine->name);
}

/* "qat 8da4w-g32@cpu" for a layer in quantization-aware training. */
static const char *format_layer(nib_ledger *ledger, const nib_layer *layer,
                                const nib_scheme *scheme, const nib_machine *machine)
{
    char name[64];
    if (!nib__scheme_is_quantized(&layer->qat) || layer->role == NIB_ROLE_EMBED)
        return format_done(ledger, scheme, machine);
    return nib__ledger_text(ledger, "qat %s@%s", nib__scheme_name(name, &layer->qat),
                            machine->name);
}

/* ---- rungs ---- */

static const nib_plan_option *find_allowance(const planner *p, const nib_layer *layer,
                                             nib_rung rung)
{
    for (size_t i = 0; i < p->options.allow_count; i++)
        if (p->options.allow[i].rung == rung &&
            nib__plan_option_find(&p->options.allow[i], 1, layer->name) != NULL)
            return &p->options.allow[i];
    return NULL;
}

static bool is_allowed(const planner *p, decision *d, nib_rung rung)
{
    const nib_plan_option *option = find_allowance(p, d->layer, rung);
    if (option != NULL)
        d->allowed = nib__ledger_text(&p->out->ledger, "by --allow %s", option->text);
    else if (rung == NIB_RUNG_KERNEL)
        d->allowed = "by default";
    return option != NULL || rung == NIB_RUNG_KERNEL;
}

/* Codes of one scheme cannot become another's: what the first quantizer lost is lost. The same
 * codes may be multiplied with float activations or with those of their format. */
static bool asks_requantizing(const nib_layer *layer)
{
    const nib_act act = layer->asked.act;
    const bool as_format = act == layer->act && nib__act_block(act) > 0;
    if (!nib__scheme_is_quantized(&layer->stored) || !nib__scheme_is_quantized(&layer->asked))
        return false;
    return act == NIB_ACT_FLOAT || as_format
               ? !nib__scheme_same_weight(&layer->stored, &layer->asked)
               : !nib__scheme_equal(&layer->stored, &layer->asked);
}

/* The layer as this rung would run it; false if the rung cannot. */
static bool find_rung_variant(const planner *p, const decision *d, nib_rung rung,
                              nib_variant *variant)
{
    const nib_layer *layer = d->layer;
    nib_scheme scheme = layer->asked;
    const nib_machine *machine = d->machine;
    if (rung == NIB_RUNG_DEVICE) {
        if (machine->host == NULL || asks_requantizing(layer))
            return false;
        machine = machine->host;
    } else if (rung == NIB_RUNG_DEQUANT) {
        if (!nib__scheme_is_quantized(&layer->asked))
            return false;
        scheme = (nib_scheme){.code = nib__float_code(p->policy->dtype), .symmetric = true};
    } else {
        if (nib__scheme_is_quantized(&layer->stored) ||
            nib__scheme_equal(&layer->stored, &layer->asked))
            return false;
        scheme = layer->stored;
    }
    nib__variant_find(variant, layer, &scheme, machine, p->policy, NULL);
    return variant->runs;
}

void nib__plan_advise_rung(nib_ledger *ledger, nib_ledger_layer *line, const nib_policy *policy,
                           nib_rung rung, const char *text)
{
    const char *name = nib__rung_names[rung];
    nib__ledger_add_advice(
        ledger, line,
        &(nib_ledger_advice){
            .code = "allow",
            .option = policy->strict ? NULL : name,
            .text = policy->strict
                        ? nib__ledger_text(ledger, "--allow %s without --strict: %s", name, text)
                        : text});
}

static void advise_rung(const planner *p, nib_ledger_layer *line, const decision *d, nib_rung rung,
                        const nib_variant *variant)
{
    char then[32], bf16[32];
    nib_ledger *ledger = &p->out->ledger;
    const int64_t m = nib__policy_m(p->policy);
    const double bf16_s = nib__bf16_seconds(d->layer, d->machine, p->policy, m);
    nib__format_seconds(then, nib__variant_seconds(variant, d->layer, p->policy, m));
    nib__plan_advise_rung(ledger, line, p->policy, rung,
                          nib__ledger_text(ledger, "done %s, %s per %s predicted; %s%s",
                                           format_done(ledger, &variant->scheme, variant->machine),
                                           then, nib__policy_unit(p->policy),
                                           isnan(bf16_s) ? d->machine->name : "in bf16 ",
                                           isnan(bf16_s) ? " cannot do bf16 either"
                                                         : nib__format_seconds(bf16, bf16_s)));
}

/* Turns the advice "device" into "--allow 'lm_head=device'", or into "--allow device" if layers of
 * several names need it. */
static void write_rung_options(planner *p)
{
    nib_ledger *ledger = &p->out->ledger;
    for (int rung = NIB_RUNG_DEVICE; rung < NIB_RUNG_COUNT; rung++) {
        char first[NAME_ROOM] = "", name[NAME_ROOM];
        size_t lines = 0, names = 0;
        for (int pass = 0; pass < 2; pass++) {
            for (size_t i = 0; i < ledger->layer_count; i++) {
                nib_ledger_layer *line = &ledger->layers[i];
                for (size_t j = 0; j < line->advice_count; j++) {
                    if (line->advice[j].option != nib__rung_names[rung])
                        continue;
                    nib__ledger_fold_name(name, sizeof name, line->name);
                    if (pass == 0) {
                        lines++;
                        names += names == 0 || strcmp(name, first) != 0;
                        snprintf(first, sizeof first, "%s", name);
                        continue;
                    }
                    line->advice[j].option =
                        names > 1 ? nib__ledger_text(ledger, "--allow %s", nib__rung_names[rung])
                                  : nib__ledger_text(ledger, "--allow '%s=%s'",
                                                     lines > 1 ? name : line->name,
                                                     nib__rung_names[rung]);
                }
            }
        }
    }
}

static void try_rungs(const planner *p, nib_ledger_layer *line, decision *d)
{
    nib_variant variants[NIB_RUNG_COUNT];
    bool runs[NIB_RUNG_COUNT] = {false};
    for (int rung = NIB_RUNG_DEVICE; rung < NIB_RUNG_COUNT; rung++) {
        runs[rung] = find_rung_variant(p, d, (nib_rung)rung, &variants[rung]);
        if (runs[rung] && is_allowed(p, d, (nib_rung)rung)) {
            d->rung = (nib_rung)rung;
            d->done = variants[rung];
            return;
        }
    }
    d->denied = true;
    for (int rung = NIB_RUNG_DEVICE; rung < NIB_RUNG_COUNT; rung++)
        if (runs[rung])
            advise_rung(p, line, d, (nib_rung)rung, &variants[rung]);
}

/* ---- rung `kernel`: as asked, but with another row than hinted or expected ---- */

static bool has_hint(const nib_kernel *row, nib_layout_hint hint)
{
    for (const nib_cond *c = row->conds; c->relation != NIB_REL_END; c++)
        if (c->fact == NIB_FACT_LAYOUT_HINT && c->relation == NIB_REL_IS && c->arg == (int64_t)hint)
            return true;
    return false;
}

static void explain_hint(const planner *p, nib_ledger_layer *line, const decision *d)
{
    nib_ledger *ledger = &p->out->ledger;
    const nib_layer *layer = d->layer;
    const char *hint =
        layer->hint_text != NULL ? layer->hint_text : nib__layout_hint_names[layer->hint];
    nib_query query;
    nib__ledger_add_reason(
        ledger, line, "layout",
        nib__ledger_text(
            ledger, "the layout %s belongs to another engine; weights are packed for %s instead",
            hint, d->done.uses[0].kernel->name));
    nib__plan_query(&query, layer, &layer->asked, d->machine, p->policy, NIB_OP_LINEAR,
                    d->done.uses[0].phase, nib__policy_m(p->policy));
    for (size_t i = 0; i < nib__kernel_count(); i++) {
        const nib_kernel *row = nib__kernel_at(i);
        if (row->peer != NULL && has_hint(row, layer->hint) && nib__kernel_keyed(row, &query))
            nib__explain_row(ledger, line, row, &query, p->policy, false);
    }
}

/* True if the driver refused rows that would have run. */
static bool explain_driver(const planner *p, nib_ledger_layer *line, const decision *d)
{
    const nib_kernel *before = NULL;
    for (int i = 0; i < d->done.use_count; i++) {
        nib_query query;
        const nib_kernel *row =
            nib__variant_driver_refused(&d->done, d->layer, p->policy, i, &query);
        if (row != NULL && row != before)
            nib__explain_row(&p->out->ledger, line, row, &query, p->policy, true);
        before = row != NULL ? row : before;
    }
    return before != NULL;
}

static void find_rung_kernel(const planner *p, nib_ledger_layer *line, decision *d)
{
    const bool hinted = d->layer->hint != NIB_HINT_NONE && d->layer->hint != NIB_HINT_PLAIN;
    const nib_kernel *refused = NULL, *before = NULL;
    if (hinted)
        explain_hint(p, line, d);
    for (int i = 0; i < d->done.use_count && d->bound == NULL; i++) {
        const nib_use *use = &d->done.uses[i];
        nib_query query;
        refused = nib__variant_refused(&d->done, d->layer, p->policy, i);
        if (refused == NULL || refused == before)
            continue;
        nib__plan_query(&query, d->layer, &d->done.scheme, d->done.machine, p->policy, use->op,
                        use->phase, use->m_min);
        nib__explain_row(&p->out->ledger, line, refused, &query, p->policy, !p->policy->declared);
        before = refused;
    }
    d->refused = before != NULL;
    if (explain_driver(p, line, d) || hinted || d->refused) {
        d->rung = NIB_RUNG_KERNEL;
        is_allowed(p, d, NIB_RUNG_KERNEL);
    }
}

/* ---- a device without enough memory ---- */

/* True if the layer does not fit on its device and may go to the host. If it may not, it stays, and
 * the plan as a whole is too large, which names what would fit. */
static bool moves_to_host(const planner *p, nib_ledger_layer *line, decision *d)
{
    nib_ledger *ledger = &p->out->ledger;
    const uint64_t held = p->out->gpu_bytes, bytes = nib__variant_bytes(&d->asked, d->layer),
                   room = nib__plan_room(p->policy, p->machine, d->machine);
    const char *words = p->policy->limit_message;
    const char *beside = p->policy->training ? "buffers" : "keys, values and buffers";
    nib_variant variant;
    char all[32];
    if (d->bound != NULL || (bytes <= room && held <= room - bytes))
        return false;
    if (!find_rung_variant(p, d, NIB_RUNG_DEVICE, &variant) || !is_allowed(p, d, NIB_RUNG_DEVICE))
        return false;
    d->rung = NIB_RUNG_DEVICE;
    d->done = variant;
    nib__ledger_add_reason(
        ledger, line, "memory",
        nib__ledger_text(ledger,
                         "%s has room for %s of weights beside %s, not enough to add this one%s%s",
                         d->machine->name, nib__format_bytes(all, room), beside,
                         words != NULL ? ": " : "", words != NULL ? words : ""));
    return true;
}

/* ---- one layer ---- */

static void find_binding(planner *p, decision *d)
{
    const nib_op op = d->layer->role == NIB_ROLE_EMBED ? NIB_OP_EMBED : NIB_OP_LINEAR;
    for (size_t i = 0; i < p->options.kernel_count; i++) {
        nib_plan_option *option = &p->options.kernel[i];
        /* without a pattern, --kernel applies to the layers that have such a product */
        const bool backward =
            option->kernel->op == NIB_OP_LINEAR_DX || option->kernel->op == NIB_OP_LINEAR_DW;
        const bool has_op =
            option->kernel->op == op || (backward && op == NIB_OP_LINEAR && p->policy->training);
        if (option->pattern == NULL ? !has_op
                                    : !nib__layer_matches(option->pattern, d->layer->name, NULL))
            continue;
        d->bound = option->kernel;
        option->layers++;
        return;
    }
}

/* The row that --kernel binds cannot run: give only its own reasons. */
static void deny_bound(const planner *p, nib_ledger_layer *line, decision *d)
{
    nib_ledger *ledger = &p->out->ledger;
    bool explained = false;
    for (int i = 0; i < d->asked.use_count && !explained; i++) {
        const nib_use *use = &d->asked.uses[i];
        nib_query query;
        if (use->op != d->bound->op && (i + 1 < d->asked.use_count))
            continue;
        nib__plan_query(&query, d->layer, &d->layer->asked, d->machine, p->policy, use->op,
                        use->phase, use->m_min);
        const size_t before = line->reason_count;
        nib__explain_row(ledger, line, d->bound, &query, p->policy, !p->policy->declared);
        explained = line->reason_count != before;
    }
    if (!explained)
        nib__explain_missing(ledger, line, &d->asked, d->layer, p->policy);
    d->denied = true;
}

static void explain_stored(const planner *p, nib_ledger_layer *line, const nib_layer *layer)
{
    char name[64];
    nib_ledger *ledger = &p->out->ledger;
    nib__ledger_add_reason(
        ledger, line, "stored",
        nib__ledger_text(ledger,
                         "the weight is stored as %s, and codes are not quantized again: give the "
                         "unquantized checkpoint, or no recipe",
                         nib__scheme_name(name, &layer->stored)));
}

static void decide(const planner *p, nib_ledger_layer *line, decision *d)
{
    const nib_layer *layer = d->layer;
    nib__variant_find(&d->asked, layer, &layer->asked, d->machine, p->policy, d->bound);
    if (asks_requantizing(layer)) {
        d->asked.runs = false;
        explain_stored(p, line, layer);
        try_rungs(p, line, d);
    } else if (d->asked.runs) {
        d->done = d->asked;
        bool used = d->bound == NULL;
        for (int i = 0; i < d->done.use_count; i++)
            used = used || d->done.uses[i].kernel == d->bound;
        if (!used) { /* the pattern names a layer without such a product */
            deny_bound(p, line, d);
            return;
        }
        if (!moves_to_host(p, line, d))
            find_rung_kernel(p, line, d);
    } else if (d->bound != NULL) {
        deny_bound(p, line, d);
    } else {
        nib__explain_missing(&p->out->ledger, line, &d->asked, layer, p->policy);
        try_rungs(p, line, d);
    }
    if (p->policy->strict && d->rung != NIB_RUNG_NONE)
        d->denied = true;
}

static void write_uses(planner *p, nib_ledger_layer *line, const nib_variant *variant,
                       const nib_layer *layer)
{
    nib_ledger *ledger = &p->out->ledger;
    line->uses = nib__arena_take(&ledger->arena, NIB_USES_MAX, sizeof *line->uses);
    if (line->uses == NULL) {
        ledger->failed = true;
        return;
    }
    for (int i = 0; i < variant->use_count; i++) {
        const nib_use *use = &variant->uses[i];
        line->uses[i] = (nib_ledger_use){
            .phase = nib__phase_names[use->phase],
            .m_min = use->m_min,
            .m_max = use->m_max,
            .kernel = use->kernel->name,
            .quant = use->quant != NULL ? use->quant->name : NULL,
            .device = variant->machine->name,
            .predicted_us = (nib__layer_share(layer) < 1
                                 ? nib__variant_seconds(variant, layer, p->policy, use->m_min)
                                 : use->predicted_s) *
                            1e6,
            .tuned_us = use->tuned_s * 1e6,
        };
        line->bytes = i == 0 || line->bytes < use->bytes ? use->bytes : line->bytes;
    }
    line->use_count = (size_t)variant->use_count;
}

static void add_times(planner *p, const decision *d)
{
    const nib_layer *layer = d->layer;
    nib_assignment *out = p->out;
    const int64_t m = nib__policy_m(p->policy);
    const int64_t prefill =
        p->policy->training ? m : nib__layer_tokens(layer, p->policy, NIB_PREFILL_TOKENS);
    if (layer->role == NIB_ROLE_EMBED)
        return;
    const double decode_s = nib__variant_seconds(&d->done, layer, p->policy, m);
    const double prefill_s = nib__variant_seconds(&d->done, layer, p->policy, prefill);
    const double bf16_s = nib__bf16_seconds(layer, d->machine, p->policy, m);
    const double bf16_prefill_s = nib__bf16_seconds(layer, d->machine, p->policy, prefill);
    out->linear_token_s += d->denied ? NAN : decode_s;
    out->linear_prefill_s += d->denied ? NAN : prefill_s;
    out->predicted_bf16_token_s += bf16_s;
    out->predicted_bf16_prefill_s += bf16_prefill_s;
    if (d->denied || !nib__scheme_is_quantized(&d->done.scheme))
        return;
    const double clearly = 1.01; /* launches alone differ by less */
    p->totals.slow_prefill += prefill > 1 && prefill_s > clearly * bf16_prefill_s;
    p->totals.slow_decode += decode_s > clearly * bf16_s;
    if (decode_s > clearly * bf16_s && decode_s - bf16_s > p->slowest_s - p->slowest_bf16_s) {
        p->slowest = out->ledger.layer_count - 1;
        p->slowest_s = decode_s;
        p->slowest_bf16_s = bf16_s;
    }
}

/* Other recipes would not help: only removing --kernel does. */
static void advise_unbound(planner *p, nib_ledger_layer *line, const decision *d)
{
    nib_ledger *ledger = &p->out->ledger;
    const nib_layer *layer = d->layer;
    nib_variant variant;
    char then[32];
    if (!d->denied)
        return;
    nib__variant_find(&variant, layer, &layer->asked, d->machine, p->policy, NULL);
    if (!variant.runs)
        return;
    nib__format_seconds(then,
                        nib__variant_seconds(&variant, layer, p->policy, nib__policy_m(p->policy)));
    nib__ledger_add_advice(
        ledger, line,
        &(nib_ledger_advice){.code = "kernel",
                             .option = "without --kernel",
                             .text = nib__ledger_text(ledger, "%s, %s per %s predicted",
                                                      variant.uses[0].kernel->name, then,
                                                      nib__policy_unit(p->policy))});
}

/* Advice if the layer does not run as asked with the best row. */
static void advise(planner *p, nib_ledger_layer *line, const decision *d)
{
    const int64_t m = nib__policy_m(p->policy);
    const double now = d->denied ? NAN : nib__variant_seconds(&d->done, d->layer, p->policy, m);
    if (d->bound != NULL) {
        advise_unbound(p, line, d);
        return;
    }
    const bool can_do_better =
        (d->refused || d->denied || d->rung > NIB_RUNG_KERNEL) && !asks_requantizing(d->layer);
    if (d->layer->role != NIB_ROLE_EMBED && can_do_better)
        nib__suggest(&p->out->ledger, line, d->layer, d->machine, p->policy, now);
}

/* Advice on the other activations that the same codes can be multiplied with, for readers of a
 * layer's details and for denied layers. */
static void advise_activations(const planner *p, nib_ledger_layer *line, const decision *d)
{
    nib_ledger *ledger = &p->out->ledger;
    const nib_layer *layer = d->layer;
    const bool is_float = layer->asked.act == NIB_ACT_FLOAT;
    nib_scheme other = layer->asked;
    nib_variant variant;
    char then[32], name[64];
    other.act = is_float ? layer->act : NIB_ACT_FLOAT;
    other.act_symmetric = is_float;
    if (layer->role == NIB_ROLE_EMBED || !nib__scheme_same_weight(&layer->stored, &layer->asked) ||
        (is_float ? nib__act_block(layer->act) == 0 : nib__act_block(layer->asked.act) == 0))
        return;
    nib__variant_find(&variant, layer, &other, d->machine, p->policy, NULL);
    if (!variant.runs)
        return;
    nib__format_seconds(then,
                        nib__variant_seconds(&variant, layer, p->policy, nib__policy_m(p->policy)));
    nib__ledger_add_advice(
        ledger, line,
        &(nib_ledger_advice){
            .code = "activations",
            .option = is_float ? "without --recipe weight-only" : "--recipe weight-only",
            .text =
                nib__ledger_text(ledger,
                                 "the same codes with %s activations, %s: %s, %s per %s "
                                 "predicted",
                                 nib__act_names[other.act], nib__scheme_name(name, &other),
                                 variant.uses[0].kernel->name, then, nib__policy_unit(p->policy))});
}

/* A layer that runs as asked but would be faster in bf16: only the one that loses most gets this
 * advice. */
static void advise_slowest(planner *p)
{
    char now[32], bf16[32];
    nib_ledger *ledger = &p->out->ledger;
    if (p->slowest == SIZE_MAX)
        return;
    nib_ledger_layer *line = &ledger->layers[p->slowest];
    nib__format_seconds(now, p->slowest_s);
    nib__format_seconds(bf16, p->slowest_bf16_s);
    nib__ledger_add_advice(
        ledger, line,
        &(nib_ledger_advice){.code = "slower",
                             .text = nib__ledger_text(ledger,
                                                      "slower than bf16: %s per %s predicted, in "
                                                      "bf16 %s",
                                                      now, nib__policy_unit(p->policy), bf16)});
    if (line->advice_count == 1)
        nib__suggest(ledger, line, p->out->layers[p->slowest].layer, p->machine, p->policy,
                     p->slowest_s);
}

uint64_t nib__plan_layer_bytes(const nib_layer_plan *plan)
{
    nib_variant variant = {.scheme = plan->done, .use_count = plan->use_count};
    memcpy(variant.uses, plan->uses, sizeof variant.uses);
    return nib__variant_bytes(&variant, plan->layer);
}

/* Reprices the layer: if the layer before it quantizes the shared input differently, this layer
 * makes its own form. */
static void price_input(const planner *p, decision *d, const nib_layer_plan *out)
{
    nib_layer_plan planned = {
        .layer = d->layer, .done = d->done.scheme, .use_count = d->done.use_count};
    if (d->denied)
        return;
    memcpy(planned.uses, d->done.uses, sizeof planned.uses);
    d->done.own_input = out == p->out->layers || !nib__plan_same_form(out - 1, &planned);
    nib__variant_price(&d->done, d->layer, p->policy);
}

static void plan_layer(planner *p, const nib_layer *layer, nib_layer_plan *out)
{
    nib_ledger *ledger = &p->out->ledger;
    decision d = {.layer = layer, .machine = p->machine};
    nib_ledger_layer *line = nib__ledger_add_layer(ledger, layer->name);
    if (line == NULL)
        return;
    /* training looks up embedding rows and adds their gradients on the CPU */
    const bool on_host =
        p->policy->training && !p->policy->declared && layer->role == NIB_ROLE_EMBED;
    nib_plan_option *place =
        nib__plan_option_find(p->options.place, p->options.place_count, layer->name);
    if (on_host) {
        d.machine = nib__plan_host(p->out);
    } else if (place != NULL) {
        d.machine = place->machine;
        place->layers++;
    }
    line->role = nib__role_name(layer->role);
    line->rule = layer->rule != NULL ? nib__ledger_text(ledger, "%s", layer->rule) : NULL;
    line->n = layer->n, line->k = layer->k, line->bias = layer->bias;
    line->asked = format_layer(ledger, layer, &layer->asked, d.machine);
    line->method = layer->method != NIB_PTQ_RTN ? nib__ptq_names[layer->method] : NULL;
    find_binding(p, &d);
    decide(p, line, &d);
    price_input(p, &d, out);
    const nib_variant *variant = d.done.runs ? &d.done : &d.asked;
    line->rung = d.rung;
    line->denied = d.denied;
    line->allowed = d.denied ? NULL : d.allowed;
    line->done = d.denied ? NULL : format_layer(ledger, layer, &variant->scheme, variant->machine);
    line->bias_form =
        layer->bias ? nib__bias_names[nib__layer_bias(layer, &variant->scheme)] : NULL;
    const nib_weight weight = nib__layer_weight(layer, &variant->scheme);
    line->bytes = nib__weight_bytes(&weight);
    if (!d.denied)
        write_uses(p, line, variant, layer);
    advise(p, line, &d);
    add_times(p, &d);
    line->detailed =
        p->options.detail != NULL && nib__layer_matches(p->options.detail, layer->name, NULL);
    if (line->detailed && !asks_requantizing(layer)) /* a layer that asks for requantizing has no
                                                        candidates */
        nib__explain_candidates(ledger, line, &d.asked, layer, p->policy);
    if (line->detailed || d.denied)
        advise_activations(p, line, &d);
    if (line->detailed && d.rung > NIB_RUNG_KERNEL)
        nib__explain_candidates(ledger, line, &d.done, layer, p->policy);
    if (p->policy->engine != NULL)
        nib__explain_engine(ledger, line, &d.asked, layer, p->policy);
    *out = (nib_layer_plan){
        .layer = layer, .done = variant->scheme, .rung = d.rung, .denied = d.denied};
    if (!d.denied && variant->machine->facts.fact[NIB_FACT_DEVICE] != NIB_DEVICE_CPU) {
        p->out->gpu = variant->machine;
        p->out->gpu_bytes += nib__variant_bytes(variant, layer);
    }
    memcpy(out->uses, variant->uses, sizeof out->uses);
    out->machine = variant->machine;
    out->own_input = variant->own_input;
    out->use_count = d.denied ? 0 : variant->use_count;
}

/* ---- the whole plan ---- */

/* The number of weights multiplied per token. */
static double count_weights(const nib_layer *layers, size_t count)
{
    double sum = 0;
    for (size_t i = 0; i < count; i++)
        if (layers[i].role != NIB_ROLE_EMBED)
            sum += (double)layers[i].n * (double)layers[i].k;
    return sum;
}

nib_status nib__plan_layers(nib_assignment *out, const nib_layer *layers, size_t count,
                            const nib_machine *machine, const nib_policy *asked,
                            const nib_allocator *a, nib_err *err)
{
    nib_policy copy = *asked;
    nib_variant_memo memo = {.count = 0};
    const nib_policy *policy = &copy;
    planner p = {.out = out, .machine = machine, .policy = policy, .slowest = SIZE_MAX};
    copy.weights = count_weights(layers, count);
    copy.memo = &memo;
    NIB_TRY(nib__plan_options_read(&p.options, policy, machine, layers, count, a, err));
    *out = (nib_assignment){.machine = machine,
                            .graph = policy->graph,
                            .dtype = policy->dtype,
                            .cache = nib__policy_cache(policy),
                            .snapshots = policy->snapshots,
                            .without = policy->without,
                            .count = count,
                            .weights = copy.weights};
    if (machine->facts.fact[NIB_FACT_DEVICE] != NIB_DEVICE_CPU)
        out->gpu = machine;
    nib__ledger_init(&out->ledger, a);
    out->layers = nib__arena_take(&out->ledger.arena, count, sizeof *out->layers);
    out->held = nib__arena_take(
        &out->ledger.arena, out->graph != NULL ? out->graph->value_count : 1, sizeof *out->held);
    if (out->layers == NULL || out->held == NULL)
        out->ledger.failed = true;
    for (size_t i = 0; i < count && !out->ledger.failed; i++)
        plan_layer(&p, &layers[i], &out->layers[i]);
    out->predicted_token_s = out->linear_token_s;
    out->predicted_prefill_s = out->linear_prefill_s;
    if (!out->ledger.failed) {
        nib__plan_packing(out, layers, count, policy);
        if (!policy->training)
            nib__plan_group_experts(out);
        nib__plan_operations(out, &p.options, layers, count, policy);
        if (!policy->training)
            nib__plan_whole_steps(out, policy);
        advise_slowest(&p);
        write_rung_options(&p);
        nib__plan_notes(out, policy, &p.totals);
        nib__plan_say_denied(out, policy);
    }
    nib_status status =
        out->ledger.failed
            ? nib__fail(err, NIB_NO_MEMORY, "out of memory while planning %zu layers", count)
            : nib__plan_options_used(&p.options, err);
    nib__plan_options_free(&p.options);
    if (status != NIB_OK)
        nib__assignment_free(out);
    return status;
}

void nib__assignment_free(nib_assignment *plan)
{
    nib__ledger_free(&plan->ledger);
    *plan = (nib_assignment){.ledger = plan->ledger};
}
