/* SPDX-License-Identifier: Apache-2.0
 *
 * Layer by layer: as asked where a row does it; else the ladder, rung by rung, each to be allowed;
 * else denied, with every reason, what would do and what it costs. The ledger gets one line per
 * layer.
 */
#include "options.h"
#include "way.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

typedef struct planner {
    nib_layers_plan *out;
    const nib_machine *machine;
    const nib_policy *policy;
    nib_plan_options options;
    const nib_allocator *a;
    double bf16_prefill_s;
    size_t slow_decode, slow_prefill; /* quantized layers that own bf16 outdoes */
    double slow_loss_s;               /* the largest loss of one of them, and whose */
    size_t slowest;
} planner;

/* What is decided of one layer, before it is written down. */
typedef struct decision {
    const nib_layer *layer;
    nib_way asked, done; /* done is set where it runs */
    const nib_machine *machine;
    const nib_kernel *bound;
    const nib_plan_option *binding;
    nib_rung rung;
    bool denied;
    bool refused; /* a faster row than the one that runs refused */
    const char *allowed;
} decision;

enum { PREFILL_TOKENS = 512, NAME_ROOM = 256 };

/* ---- words ---- */

static const char *say_done(nib_ledger *ledger, const nib_scheme *scheme,
                            const nib_machine *machine)
{
    char name[64];
    return nib__ledger_text(ledger, "%s@%s", nib__scheme_name(name, scheme), machine->name);
}

static int64_t decode_m(const nib_policy *policy)
{
    return policy->training ? nib__max(policy->m, 1) : 1;
}

static const char *per(const nib_policy *policy)
{
    return policy->training ? "micro-batch" : "token";
}

/* ---- rungs ---- */

static const nib_plan_option *allowance(const planner *p, const nib_layer *layer, nib_rung rung)
{
    for (size_t i = 0; i < p->options.allow_count; i++)
        if (p->options.allow[i].rung == rung &&
            nib__plan_option_find(&p->options.allow[i], 1, layer->name) != NULL)
            return &p->options.allow[i];
    return NULL;
}

static bool is_allowed(const planner *p, decision *d, nib_rung rung)
{
    const nib_plan_option *option = allowance(p, d->layer, rung);
    if (option != NULL)
        d->allowed = nib__ledger_text(&p->out->ledger, "by --allow %s", option->text);
    else if (rung == NIB_RUNG_KERNEL)
        d->allowed = "by default";
    return option != NULL || rung == NIB_RUNG_KERNEL;
}

/* The layer as this rung would do it; false where there is no such way. */
static bool rung_way(const planner *p, const decision *d, nib_rung rung, nib_way *way)
{
    const nib_layer *layer = d->layer;
    nib_scheme scheme = layer->asked;
    const nib_machine *machine = d->machine;
    if (rung == NIB_RUNG_DEVICE) {
        if (machine->host == NULL)
            return false;
        machine = machine->host;
    } else if (rung == NIB_RUNG_DEQUANT) {
        if (!nib__scheme_is_quantized(&layer->asked))
            return false;
        scheme = (nib_scheme){.code = p->policy->dtype == NIB_TYPE_F16    ? NIB_CODE_F16
                                      : p->policy->dtype == NIB_TYPE_BF16 ? NIB_CODE_BF16
                                                                          : NIB_CODE_F32,
                              .symmetric = true};
    } else {
        if (nib__scheme_is_quantized(&layer->stored) ||
            nib__scheme_equal(&layer->stored, &layer->asked))
            return false;
        scheme = layer->stored;
    }
    nib__way_find(way, layer, &scheme, machine, p->policy, NULL);
    return way->runs;
}

/* A rung that would do. Its option is written when all layers are planned: with a pattern if few
 * need it. */
static void advise_rung(const planner *p, nib_ledger_layer *line, const decision *d, nib_rung rung,
                        const nib_way *way)
{
    char then[32], bf16[32];
    nib_ledger *ledger = &p->out->ledger;
    const int64_t m = decode_m(p->policy);
    const double own = nib__bf16_seconds(d->layer, d->machine, p->policy, m);
    nib__say_seconds(then, nib__way_seconds(way, d->layer, p->policy, m));
    nib__ledger_add_advice(
        ledger, line, nib__rung_names[rung],
        nib__ledger_text(ledger, "done %s, %s per %s predicted; %s%s",
                         say_done(ledger, &way->scheme, way->machine), then, per(p->policy),
                         isnan(own) ? d->machine->name : "in bf16 ",
                         isnan(own) ? " cannot do bf16 either" : nib__say_seconds(bf16, own)));
}

/* "device" -> "--allow 'lm_head=device'", or "--allow device" where layers of several names need
 * it. */
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
                    if (line->advice[j].code != nib__rung_names[rung])
                        continue;
                    nib__ledger_fold_name(name, sizeof name, line->name);
                    if (pass == 0) {
                        lines++;
                        names += names == 0 || strcmp(name, first) != 0;
                        snprintf(first, sizeof first, "%s", name);
                        continue;
                    }
                    line->advice[j].code =
                        names > 1 ? nib__ledger_text(ledger, "--allow %s", nib__rung_names[rung])
                                  : nib__ledger_text(ledger, "--allow '%s=%s'",
                                                     lines > 1 ? name : line->name,
                                                     nib__rung_names[rung]);
                }
            }
        }
    }
}

static void climb(const planner *p, nib_ledger_layer *line, decision *d)
{
    nib_way ways[NIB_RUNG_COUNT];
    bool there[NIB_RUNG_COUNT] = {false};
    for (int rung = NIB_RUNG_DEVICE; rung < NIB_RUNG_COUNT; rung++) {
        there[rung] = rung_way(p, d, (nib_rung)rung, &ways[rung]);
        if (there[rung] && is_allowed(p, d, (nib_rung)rung)) {
            d->rung = (nib_rung)rung;
            d->done = ways[rung];
            return;
        }
    }
    d->denied = true;
    for (int rung = NIB_RUNG_DEVICE; rung < NIB_RUNG_COUNT; rung++)
        if (there[rung])
            advise_rung(p, line, d, (nib_rung)rung, &ways[rung]);
}

/* ---- rung `kernel`: the layer is as asked, but not with the row that was wished or expected ----
 */

static bool asks_wish(const nib_kernel *row, nib_wish wish)
{
    for (const nib_cond *c = row->conds; c->relation != NIB_REL_END; c++)
        if (c->fact == NIB_FACT_WISH && c->relation == NIB_REL_IS && c->arg == (int64_t)wish)
            return true;
    return false;
}

static void answer_wish(const planner *p, nib_ledger_layer *line, const decision *d)
{
    nib_ledger *ledger = &p->out->ledger;
    const nib_layer *layer = d->layer;
    const char *wish = layer->wish_text != NULL ? layer->wish_text : nib__wish_names[layer->wish];
    nib_query query;
    nib__ledger_add_reason(
        ledger, line, "layout",
        nib__ledger_text(ledger,
                         "the layout %s is another engine's; weights are packed for %s instead",
                         wish, d->done.uses[0].kernel->name));
    nib__plan_query(&query, layer, &layer->asked, d->machine, p->policy, NIB_OP_LINEAR,
                    d->done.uses[0].phase, decode_m(p->policy));
    for (size_t i = 0; i < nib__kernel_count(); i++) {
        const nib_kernel *row = nib__kernel_at(i);
        if (row->peer != NULL && asks_wish(row, layer->wish) && nib__kernel_keyed(row, &query))
            nib__explain_row(ledger, line, row, &query, false);
    }
}

static void find_rung_kernel(const planner *p, nib_ledger_layer *line, decision *d)
{
    const bool wished = d->layer->wish != NIB_WISH_NONE && d->layer->wish != NIB_WISH_PLAIN;
    const nib_kernel *refused = NULL, *before = NULL;
    if (wished)
        answer_wish(p, line, d);
    for (int i = 0; i < d->done.use_count && d->bound == NULL; i++) {
        const nib_use *use = &d->done.uses[i];
        nib_query query;
        refused = nib__way_refused(&d->done, d->layer, p->policy, i);
        if (refused == NULL || refused == before)
            continue;
        nib__plan_query(&query, d->layer, &d->done.scheme, d->done.machine, p->policy, use->op,
                        use->phase, use->m_min);
        nib__explain_row(&p->out->ledger, line, refused, &query, !p->policy->declared);
        before = refused;
    }
    d->refused = before != NULL;
    if (wished || d->refused) {
        d->rung = NIB_RUNG_KERNEL;
        is_allowed(p, d, NIB_RUNG_KERNEL);
    }
}

/* ---- one layer ---- */

static void find_binding(const planner *p, decision *d)
{
    const nib_op op = d->layer->role == NIB_ROLE_EMBED ? NIB_OP_EMBED : NIB_OP_LINEAR;
    for (size_t i = 0; i < p->options.kernel_count; i++) {
        const nib_plan_option *option = &p->options.kernel[i];
        /* without a pattern it speaks of the layers that have such a product */
        const bool backward =
            option->kernel->op == NIB_OP_LINEAR_DX || option->kernel->op == NIB_OP_LINEAR_DW;
        const bool has_op =
            option->kernel->op == op || (backward && op == NIB_OP_LINEAR && p->policy->training);
        if (option->pattern == NULL ? !has_op
                                    : !nib__pattern_matches(option->pattern, d->layer->name, NULL))
            continue;
        d->binding = option;
        d->bound = option->kernel;
        return;
    }
}

/* The row that was bound cannot be given: its own reasons, no one else's. */
static void deny_bound(const planner *p, nib_ledger_layer *line, decision *d)
{
    nib_ledger *ledger = &p->out->ledger;
    bool said = false;
    for (int i = 0; i < d->asked.use_count && !said; i++) {
        const nib_use *use = &d->asked.uses[i];
        nib_query query;
        if (use->op != d->bound->op && (i + 1 < d->asked.use_count))
            continue;
        nib__plan_query(&query, d->layer, &d->layer->asked, d->machine, p->policy, use->op,
                        use->phase, use->m_min);
        const size_t before = line->reason_count;
        nib__explain_row(ledger, line, d->bound, &query, !p->policy->declared);
        said = line->reason_count != before;
    }
    if (!said)
        nib__explain_missing(ledger, line, &d->asked, d->layer, p->policy);
    d->denied = true;
}

static void decide(const planner *p, nib_ledger_layer *line, decision *d)
{
    const nib_layer *layer = d->layer;
    nib__way_find(&d->asked, layer, &layer->asked, d->machine, p->policy, d->bound);
    if (d->asked.runs) {
        d->done = d->asked;
        bool used = d->bound == NULL;
        for (int i = 0; i < d->done.use_count; i++)
            used = used || d->done.uses[i].kernel == d->bound;
        if (!used) { /* a pattern names a layer without such a product */
            deny_bound(p, line, d);
            return;
        }
        find_rung_kernel(p, line, d);
    } else if (d->bound != NULL) {
        deny_bound(p, line, d);
    } else {
        nib__explain_missing(&p->out->ledger, line, &d->asked, layer, p->policy);
        climb(p, line, d);
    }
    if (p->policy->strict && d->rung != NIB_RUNG_NONE)
        d->denied = true;
}

static void write_uses(planner *p, nib_ledger_layer *line, const nib_way *way)
{
    nib_ledger *ledger = &p->out->ledger;
    line->uses = nib__arena_take(&ledger->arena, NIB_USES_MAX, sizeof *line->uses);
    if (line->uses == NULL) {
        ledger->failed = true;
        return;
    }
    for (int i = 0; i < way->use_count; i++) {
        const nib_use *use = &way->uses[i];
        line->uses[i] = (nib_ledger_use){
            .phase = nib__phase_names[use->phase],
            .m_min = use->m_min,
            .m_max = use->m_max,
            .kernel = use->kernel->name,
            .quant = use->quant != NULL ? use->quant->name : NULL,
            .device = way->machine->name,
            .predicted_us = use->predicted_s * 1e6,
        };
        line->bytes = i == 0 || line->bytes < use->bytes ? use->bytes : line->bytes;
    }
    line->use_count = (size_t)way->use_count;
}

static void note_speed(planner *p, const decision *d)
{
    const nib_layer *layer = d->layer;
    nib_layers_plan *out = p->out;
    const int64_t m = decode_m(p->policy), prefill = p->policy->training ? m : PREFILL_TOKENS;
    if (layer->role == NIB_ROLE_EMBED)
        return;
    const double decode_s = nib__way_seconds(&d->done, layer, p->policy, m);
    const double prefill_s = nib__way_seconds(&d->done, layer, p->policy, prefill);
    const double bf16_s = nib__bf16_seconds(layer, d->machine, p->policy, m);
    const double bf16_prefill_s = nib__bf16_seconds(layer, d->machine, p->policy, prefill);
    out->predicted_token_s += d->denied ? NAN : decode_s;
    out->predicted_prefill_s += d->denied ? NAN : prefill_s;
    out->predicted_bf16_token_s += bf16_s;
    p->bf16_prefill_s += bf16_prefill_s;
    if (d->denied || !nib__scheme_is_quantized(&d->done.scheme))
        return;
    p->slow_prefill += prefill_s > bf16_prefill_s;
    p->slow_decode += decode_s > bf16_s;
    if (decode_s - bf16_s > p->slow_loss_s) {
        p->slow_loss_s = decode_s - bf16_s;
        p->slowest = out->ledger.layer_count - 1;
    }
}

/* A bound row that cannot be given would be refused with any other recipe, too. */
static void advise_unbound(planner *p, nib_ledger_layer *line, const decision *d)
{
    nib_ledger *ledger = &p->out->ledger;
    const nib_layer *layer = d->layer;
    nib_way way;
    char then[32];
    if (!d->denied)
        return;
    nib__way_find(&way, layer, &layer->asked, d->machine, p->policy, NULL);
    if (!way.runs)
        return;
    nib__say_seconds(then, nib__way_seconds(&way, layer, p->policy, decode_m(p->policy)));
    nib__ledger_add_advice(ledger, line, "without --kernel",
                           nib__ledger_text(ledger, "%s, %s per %s predicted",
                                            way.uses[0].kernel->name, then, per(p->policy)));
}

/* Advice where the layer is not done as asked with the best row. */
static void advise(planner *p, nib_ledger_layer *line, const decision *d)
{
    const int64_t m = decode_m(p->policy);
    const double now = d->denied ? NAN : nib__way_seconds(&d->done, d->layer, p->policy, m);
    if (d->bound != NULL) {
        advise_unbound(p, line, d);
        return;
    }
    const bool can_do_better = d->refused || d->denied || d->rung > NIB_RUNG_KERNEL;
    if (d->layer->role != NIB_ROLE_EMBED && can_do_better)
        nib__suggest(&p->out->ledger, line, d->layer, d->machine, p->policy, now);
}

/* As asked, but own bf16 is faster: said once, of the layer that loses most. */
static void advise_slowest(planner *p)
{
    char now[32], bf16[32];
    nib_ledger *ledger = &p->out->ledger;
    if (p->slow_loss_s <= 0)
        return;
    nib_ledger_layer *line = &ledger->layers[p->slowest];
    const nib_layer_plan *plan = &p->out->layers[p->slowest];
    const int64_t m = decode_m(p->policy);
    nib_way way = {
        .scheme = plan->done, .machine = p->machine, .use_count = plan->use_count, .runs = true};
    memcpy(way.uses, plan->uses, sizeof way.uses);
    const double seconds = nib__way_seconds(&way, plan->layer, p->policy, m);
    nib__say_seconds(now, seconds);
    nib__say_seconds(bf16, nib__bf16_seconds(plan->layer, p->machine, p->policy, m));
    nib__ledger_add_advice(
        ledger, line, "slower than bf16",
        nib__ledger_text(ledger, "%s per %s predicted, in bf16 %s", now, per(p->policy), bf16));
    if (line->advice_count == 1)
        nib__suggest(ledger, line, plan->layer, p->machine, p->policy, seconds);
}

static void plan_layer(planner *p, const nib_layer *layer, nib_layer_plan *out)
{
    nib_ledger *ledger = &p->out->ledger;
    decision d = {.layer = layer, .machine = p->machine};
    nib_ledger_layer *line = nib__ledger_add_layer(ledger, layer->name);
    if (line == NULL)
        return;
    const nib_plan_option *place =
        nib__plan_option_find(p->options.place, p->options.place_count, layer->name);
    if (place != NULL)
        d.machine = place->machine;
    line->role = nib__role_name(layer->role);
    line->rule = layer->rule != NULL ? nib__ledger_text(ledger, "%s", layer->rule) : NULL;
    line->n = layer->n, line->k = layer->k, line->bias = layer->bias;
    line->asked = say_done(ledger, &layer->asked, d.machine);
    find_binding(p, &d);
    decide(p, line, &d);
    const nib_way *way = d.done.runs ? &d.done : &d.asked;
    line->rung = d.rung;
    line->denied = d.denied;
    line->allowed = d.denied ? NULL : d.allowed;
    line->done = d.denied ? NULL : say_done(ledger, &way->scheme, way->machine);
    const nib_weight weight = nib__layer_weight(layer, &way->scheme);
    line->bytes = nib__weight_bytes(&weight);
    if (!d.denied)
        write_uses(p, line, way);
    advise(p, line, &d);
    note_speed(p, &d);
    line->detailed =
        p->options.detail != NULL && nib__pattern_matches(p->options.detail, layer->name, NULL);
    if (line->detailed)
        nib__explain_candidates(ledger, line, &d.asked, layer, p->policy);
    if (line->detailed && d.rung > NIB_RUNG_KERNEL)
        nib__explain_candidates(ledger, line, &d.done, layer, p->policy);
    if (p->policy->engine != NULL)
        nib__explain_engine(ledger, line, &d.asked, layer, p->policy);
    *out =
        (nib_layer_plan){.layer = layer, .done = way->scheme, .rung = d.rung, .denied = d.denied};
    memcpy(out->uses, way->uses, sizeof out->uses);
    out->use_count = d.denied ? 0 : way->use_count;
}

/* ---- a unit that is there: used, or why not ---- */

static bool asks_dot4(const nib_way *way)
{
    for (const nib_cond *c = way->uses[0].kernel->conds; c->relation != NIB_REL_END; c++)
        if (c->fact == NIB_FACT_DOT4)
            return true;
    return false;
}

/* "v_dot8_i32_i4 multiplies eight 4-bit pairs" of the machine's "yes: ..." */
static const char *what_dot4(const nib_machine *machine)
{
    for (size_t i = 0; i < machine->source_count; i++)
        if (machine->sources[i].fact == NIB_FACT_DOT4 &&
            strncmp(machine->sources[i].value, "yes: ", 5) == 0)
            return machine->sources[i].value + 5;
    return "published";
}

/* Without it a machine's 4-bit products would look as if they sped up every recipe with a 4 in its
 * name. */
static void note_dot4(planner *p)
{
    nib_layers_plan *out = p->out;
    const nib_machine *m = p->machine;
    const nib_layer *idle = NULL;
    size_t used = 0, idle_count = 0;
    for (size_t i = 0; i < out->count && m->facts.fact[NIB_FACT_DOT4]; i++) {
        const nib_layer_plan *plan = &out->layers[i];
        nib_way way = {.use_count = plan->use_count};
        if (plan->denied || plan->done.code != NIB_CODE_I4 || plan->layer->role == NIB_ROLE_EMBED)
            continue;
        memcpy(way.uses, plan->uses, sizeof way.uses);
        const bool uses_it = asks_dot4(&way);
        used += uses_it;
        idle_count += !uses_it;
        idle = uses_it ? idle : plan->layer;
    }
    if (used != 0)
        nib__ledger_add_note(&out->ledger, "dot4",
                             "%s has 4-bit dot products (%s): %zu layers use them", m->name,
                             what_dot4(m), used);
    if (idle == NULL)
        return;
    static const char recipe[] = "4da4w-g32";
    nib_scheme scheme;
    nib_way way;
    char remedy[192] = "no kernel of the table does here", then[32], now[32];
    const int64_t m_tokens = decode_m(p->policy);
    if (nib__scheme_parse(&scheme, recipe, sizeof recipe - 1, NULL) != NIB_OK)
        return;
    nib__way_find(&way, idle, &scheme, m, p->policy, NULL);
    if (way.runs && asks_dot4(&way)) {
        nib__say_seconds(then, nib__way_seconds(&way, idle, p->policy, m_tokens));
        nib__way_find(&way, idle, &idle->asked, m, p->policy, NULL);
        nib__say_seconds(now, nib__way_seconds(&way, idle, p->policy, m_tokens));
        snprintf(remedy, sizeof remedy, "--recipe %s does (%.40s: %s per %s, now %s)", recipe,
                 idle->name, then, per(p->policy), now);
    }
    nib__ledger_add_note(
        &out->ledger, "dot4",
        "%s has 4-bit dot products (%s); %zu int4 layers do not use them, their activations being "
        "%s: %s",
        m->name, what_dot4(m), idle_count,
        idle->asked.act == NIB_ACT_FLOAT ? "float" : nib__act_names[idle->asked.act], remedy);
}

/* ---- the whole plan ---- */

static void add_notes(planner *p)
{
    nib_layers_plan *out = p->out;
    char time[32], bf16[32], prefill[32], bf16_prefill[32];
    const char *source =
        p->machine->here ? p->machine->measured ? "measured" : "cautious" : "published";
    nib__say_seconds(time, out->predicted_token_s);
    nib__say_seconds(bf16, out->predicted_bf16_token_s);
    nib__say_seconds(prefill, out->predicted_prefill_s);
    nib__say_seconds(bf16_prefill, p->bf16_prefill_s);
    if (p->policy->training)
        nib__ledger_add_note(&out->ledger, "predicted",
                             "linear layers, forward and backward, of %" PRId64
                             " tokens: %s predicted from %s rates; in bf16 %s",
                             decode_m(p->policy), time, source, bf16);
    else
        nib__ledger_add_note(
            &out->ledger, "predicted",
            "linear layers, predicted from %s rates: %s per token (in bf16 %s), %s for a prompt of "
            "%d tokens (in bf16 %s)",
            source, time, bf16, prefill, PREFILL_TOKENS, bf16_prefill);
    if (p->slow_decode != 0)
        nib__ledger_add_note(&out->ledger, "slower-than-bf16",
                             "slower than bf16 per %s: %zu quantized layer%s", per(p->policy),
                             p->slow_decode, p->slow_decode == 1 ? "" : "s");
    if (p->slow_prefill != 0 && !p->policy->training)
        nib__ledger_add_note(&out->ledger, "slower-than-bf16",
                             "slower than bf16 in a prompt of %d tokens: %zu quantized layer%s",
                             PREFILL_TOKENS, p->slow_prefill, p->slow_prefill == 1 ? "" : "s");
    note_dot4(p);
    if (p->policy->declared)
        nib__ledger_add_note(
            &out->ledger, "declared",
            "%s is not here: kernels that are not built are planned as if they were",
            p->machine->name);
}

/* The sentence of the first layer that has no allowed way: reasons until the room is used, remedy
 * last. */
static void say_denied(planner *p)
{
    enum { REASONS_ROOM = 600 };
    nib_layers_plan *out = p->out;
    const size_t denied = nib__ledger_denied(&out->ledger);
    const nib_ledger_layer *line = NULL;
    for (size_t i = 0; i < out->ledger.layer_count && line == NULL; i++)
        if (out->ledger.layers[i].denied)
            line = &out->ledger.layers[i];
    out->denied = (nib_err){NIB_OK, ""};
    if (line == NULL)
        return;
    char reasons[REASONS_ROOM + 128] = "", more[64] = "", remedy[320] = "";
    size_t used = 0, said = 0;
    for (; said < line->reason_count && used < REASONS_ROOM; said++)
        used += (size_t)snprintf(reasons + used, sizeof reasons - used, "%s%.200s",
                                 said == 0 ? "" : "; ", line->reasons[said].text);
    if (said < line->reason_count)
        snprintf(reasons + (used < sizeof reasons ? used : sizeof reasons - 1),
                 used < sizeof reasons ? sizeof reasons - used : 1, "; and %zu more",
                 line->reason_count - said);
    if (denied > 1)
        snprintf(more, sizeof more, " (and %zu more layers)", denied - 1);
    if (line->advice_count != 0)
        snprintf(remedy, sizeof remedy, "; %.80s: %.220s", line->advice[0].code,
                 line->advice[0].text);
    else if (p->policy->strict && line->rung != NIB_RUNG_NONE)
        snprintf(remedy, sizeof remedy, "; without --strict rung %s does it",
                 nib__rung_names[line->rung]);
    nib__fail(
        &out->denied, NIB_NOT_AS_ASKED, "%s: %sasked %s%s, and %s: %s%s", line->name,
        p->policy->strict && line->rung != NIB_RUNG_NONE ? "--strict: " : "", line->asked, more,
        line->rung != NIB_RUNG_NONE ? "something else would be done" : "nothing allowed does it",
        reasons, remedy);
}

nib_status nib__plan_layers(nib_layers_plan *out, const nib_layer *layers, size_t count,
                            const nib_machine *machine, const nib_policy *policy,
                            const nib_allocator *a, nib_err *err)
{
    planner p = {.out = out, .machine = machine, .policy = policy, .a = a};
    NIB_TRY(nib__plan_options_read(&p.options, policy, machine, layers, count, a, err));
    *out = (nib_layers_plan){.machine = machine, .dtype = policy->dtype, .count = count};
    nib__ledger_init(&out->ledger, a);
    out->layers = nib__arena_take(&out->ledger.arena, count, sizeof *out->layers);
    if (out->layers == NULL)
        out->ledger.failed = true;
    for (size_t i = 0; i < count && !out->ledger.failed; i++)
        plan_layer(&p, &layers[i], &out->layers[i]);
    if (!out->ledger.failed) {
        advise_slowest(&p);
        write_rung_options(&p);
        add_notes(&p);
    }
    nib__plan_options_free(&p.options);
    if (out->ledger.failed) {
        nib__plan_layers_free(out);
        return nib__fail(err, NIB_NO_MEMORY, "memory ran out while %zu layers were planned", count);
    }
    say_denied(&p);
    return NIB_OK;
}

void nib__plan_layers_free(nib_layers_plan *plan)
{
    nib__ledger_free(&plan->ledger);
    *plan = (nib_layers_plan){.ledger = plan->ledger};
}
