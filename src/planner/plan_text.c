/* SPDX-License-Identifier: Apache-2.0
 *
 * The plan as text: the machine, the layers (folded, or single ones with every candidate and
 * reason), the kernels that run them, what another engine would have done, and the cost.
 */
#include "variant.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

enum { WIDTH = 100, KERNEL_WIDTH = 46, NAME_ROOM = 256 };

static bool same_text(const char *a, const char *b)
{
    return a == b || (a != NULL && b != NULL && strcmp(a, b) == 0);
}

/* ---- the machine ---- */

static void say_rate(nib_text *out, const char *name, double rate)
{
    if (rate <= 0)
        nib__text_format(out, ", %s none", name);
    else if (rate >= 1e15)
        nib__text_format(out, ", %s %.2f P", name, rate / 1e15);
    else if (rate >= 1e12)
        nib__text_format(out, ", %s %.3g T", name, rate / 1e12);
    else
        nib__text_format(out, ", %s %.3g G", name, rate / 1e9);
}

static void render_machine(const nib_machine *m, nib_text *out)
{
    const bool is_cpu = m->facts.fact[NIB_FACT_DEVICE] == NIB_DEVICE_CPU;
    nib__text_format(out, "machine  %s: %s", m->name, nib__machine_title(m));
    if (is_cpu)
        nib__text_format(out, ", %s", nib__cpu_isa_name(m->facts.fact[NIB_FACT_ISA]));
    if (m->threads > 0)
        nib__text_format(out, ", %d thread%s", m->threads, m->threads == 1 ? "" : "s");
    if (!m->here)
        nib__text_str(out, " (not here)");
    nib__text_format(out, "\nrates    %.*f GB/s", m->bytes_per_s < 100e9 ? 1 : 0,
                     m->bytes_per_s / 1e9);
    say_rate(out, "int8", m->rate[NIB_UNIT_I8]);
    say_rate(out, "bf16", m->rate[NIB_UNIT_BF16]);
    say_rate(out, "f32", m->rate[NIB_UNIT_F32]);
    if (!is_cpu) {
        say_rate(out, "fp8", m->rate[NIB_UNIT_FP8]);
        say_rate(out, "mx8", m->rate[NIB_UNIT_MX8]);
    }
    if (m->measured)
        nib__text_format(out, " operations/s (measured here, %s%s)\n", m->measured_on,
                         m->disturbed ? ", while others ran" : "");
    else
        nib__text_format(out, " operations/s (%s)\n",
                         m->here ? "cautious, not measured" : "published peaks");
}

static void render_totals(const nib_assignment *plan, const nib_policy *policy, nib_text *out)
{
    char bytes[32], bf16[32];
    uint64_t now = 0;
    for (size_t i = 0; i < plan->ledger.layer_count; i++)
        now += plan->ledger.layers[i].bytes;
    now -= policy->shared_bytes;
    nib__text_format(
        out, "weights  %s as planned (%.2f bits per weight), %s in bf16; activations %s",
        nib__format_bytes(bytes, now), 8.0 * (double)now / (double)policy->weight_count,
        nib__format_bytes(bf16, 2 * policy->weight_count), nib__type_name(policy->dtype));
    if (policy->training)
        nib__text_format(out, "; training, %" PRId64 " tokens per micro-batch", policy->m);
    nib__text_str(out, "\n\n");
}

/* ---- kernels in use ---- */

typedef struct kernel_line {
    const char *name, *phase;
    size_t layers;
    double us;       /* at the smallest m of each layer's uses */
    double tuned_us; /* the same, measured alone; 0: not measured for every layer */
    char ms[64];     /* "1, 2-16, 17+" */
} kernel_line;

static void add_range(kernel_line *line, const nib_ledger_use *use)
{
    char range[32];
    if (use->m_max == 0)
        snprintf(range, sizeof range, "%" PRId64 "+", use->m_min);
    else if (use->m_max == use->m_min)
        snprintf(range, sizeof range, "%" PRId64, use->m_min);
    else
        snprintf(range, sizeof range, "%" PRId64 "-%" PRId64, use->m_min, use->m_max);
    for (const char *at = line->ms; *at != 0; at += strcspn(at, ",")) {
        at += strspn(at, ", ");
        if (strcspn(at, ",") == strlen(range) && strncmp(at, range, strlen(range)) == 0)
            return;
    }
    const size_t used = strlen(line->ms);
    snprintf(line->ms + used, sizeof line->ms - used, "%s%s", used == 0 ? "" : ", ", range);
}

/* Sums the uses of kernel `name` in `phase`, in the ledger's order. */
static kernel_line sum_uses(const nib_ledger *ledger, const char *name, const char *phase)
{
    kernel_line line = {.name = name, .phase = phase};
    bool all_tuned = true;
    for (size_t i = 0; i < ledger->layer_count; i++) {
        const nib_ledger_layer *layer = &ledger->layers[i];
        bool counted = false;
        for (size_t u = 0; u < layer->use_count; u++) {
            const nib_ledger_use *use = &layer->uses[u];
            if (!same_text(use->kernel, name) || !same_text(use->phase, phase))
                continue;
            if (!counted) {
                line.us += use->predicted_us;
                line.tuned_us += use->tuned_us;
                all_tuned = all_tuned && use->tuned_us > 0;
            }
            line.layers += !counted;
            counted = true;
            add_range(&line, use);
        }
    }
    line.tuned_us = all_tuned ? line.tuned_us : 0;
    return line;
}

static bool seen_before(const nib_ledger *ledger, size_t layer, size_t use)
{
    const nib_ledger_use *wanted = &ledger->layers[layer].uses[use];
    for (size_t i = 0; i <= layer; i++) {
        const size_t count = i == layer ? use : ledger->layers[i].use_count;
        for (size_t u = 0; u < count; u++)
            if (same_text(ledger->layers[i].uses[u].kernel, wanted->kernel) &&
                same_text(ledger->layers[i].uses[u].phase, wanted->phase))
                return true;
    }
    return false;
}

static void render_kernels(const nib_ledger *ledger, nib_text *out)
{
    bool any = false;
    for (size_t i = 0; i < ledger->layer_count; i++) {
        for (size_t u = 0; u < ledger->layers[i].use_count; u++) {
            char time[32], tuned[64] = "";
            if (seen_before(ledger, i, u))
                continue;
            const nib_ledger_use *use = &ledger->layers[i].uses[u];
            const kernel_line line = sum_uses(ledger, use->kernel, use->phase);
            const nib_kernel *kernel = nib__kernel_find(line.name);
            if (!any)
                nib__text_format(out, "\n%7s  %-*s  %-8s  %-12s  %s\n", "layers", KERNEL_WIDTH,
                                 "kernel", "phase", "tokens", "predicted");
            any = true;
            if (line.tuned_us > 0)
                snprintf(tuned, sizeof tuned, ", tuned: %s",
                         nib__format_seconds(time, line.tuned_us * 1e-6));
            nib__text_format(out, "%7zu  %-*s  %-8s  %-12s  %s%s%s\n", line.layers, KERNEL_WIDTH,
                             line.name, line.phase, line.ms,
                             nib__format_seconds(time, line.us * 1e-6), tuned,
                             kernel != NULL && nib__kernel_built(kernel) ? "" : ", not built");
        }
    }
}

/* ---- candidates ---- */

static const char *const verdicts[] = {"RUNS", "could", "no"};

static void render_reasons(const nib_candidate *c, const char *first, const char *rest,
                           nib_text *out)
{
    for (size_t i = 0; i < c->reason_count; i++)
        nib__ledger_wrap(out, i == 0 ? first : rest, rest, WIDTH, c->reasons[i].text);
    if (c->reason_count == 0 && *first != 0)
        nib__text_format(out, "%s\n", first);
}

static void render_candidate(const nib_candidate *c, int width, bool with_source, nib_text *out)
{
    char first[128], rest[128];
    snprintf(rest, sizeof rest, "  %-5s  %-*s  ", "", width, "");
    if ((int)strlen(c->kernel) > width) {
        nib__text_format(out, "  %-5s  %s\n", verdicts[c->verdict], c->kernel);
        render_reasons(c, c->reason_count == 0 ? "" : rest, rest, out);
    } else {
        snprintf(first, sizeof first, "  %-5s  %-*s  ", verdicts[c->verdict], width, c->kernel);
        render_reasons(c, first, rest, out);
    }
    if (c->engine == NULL)
        return;
    char words[512];
    if (c->consequence != NULL) {
        snprintf(words, sizeof words, "%s%s", c->verdict == NIB_VERDICT_NO ? "then " : "",
                 c->consequence);
        nib__ledger_wrap(out, "         ", "         ", WIDTH, words);
    }
    if (with_source)
        nib__text_format(out, "         %s, %s\n", c->engine, c->source);
}

static void trim_line_ends(nib_text *out, size_t from)
{
    size_t to = from;
    for (size_t at = from; !out->failed && at < out->size; at++) {
        if (out->at[at] == '\n')
            while (to > from && out->at[to - 1] == ' ')
                to--;
        out->at[to++] = out->at[at];
    }
    if (out->failed || to < from)
        return;
    out->size = to;
    out->at[to] = 0;
}

static bool has_candidates(const nib_ledger_layer *layer, bool of_engine)
{
    for (size_t i = 0; i < layer->candidate_count; i++)
        if ((layer->candidates[i].engine != NULL) == of_engine)
            return true;
    return false;
}

static void render_candidates(const nib_ledger_layer *layer, bool of_engine, bool with_source,
                              nib_text *out)
{
    const size_t start = out->size;
    const int narrow = 34;
    int width = 10;
    for (size_t i = 0; i < layer->candidate_count; i++) {
        const int length = (int)strlen(layer->candidates[i].kernel);
        if (length > width)
            width = length > KERNEL_WIDTH ? KERNEL_WIDTH : length;
    }
    if (of_engine)
        width = narrow;
    for (size_t i = 0; i < layer->candidate_count; i++)
        if ((layer->candidates[i].engine != NULL) == of_engine)
            render_candidate(&layer->candidates[i], width, with_source, out);
    trim_line_ends(out, start);
}

/* A training step multiplies three times: y, dx and dW, in this order. */
static bool is_step(const nib_ledger_layer *layer)
{
    return layer->use_count == 3 && strcmp(layer->uses[2].phase, "backward") == 0;
}

static void render_products(const nib_ledger_layer *layer, nib_text *out)
{
    const int64_t m = layer->uses[0].m_min, n = layer->n, k = layer->k;
    const struct {
        const char *name;
        int64_t m, n, k;
    } products[] = {{"y", m, n, k}, {"dx", m, k, n}, {"dW", n, k, m}};
    for (size_t i = 0; i < COUNT(products); i++) {
        char time[32];
        nib__text_format(
            out, "  predicted: %s %s, M %" PRId64 ", N %" PRId64 ", K %" PRId64 ": %s\n",
            layer->uses[i].phase, products[i].name, products[i].m, products[i].n, products[i].k,
            nib__format_seconds(time, layer->uses[i].predicted_us * 1e-6));
    }
}

static void render_uses(const nib_ledger_layer *layer, nib_text *out)
{
    if (is_step(layer)) {
        render_products(layer, out);
        return;
    }
    for (size_t i = 0; i < layer->use_count; i++) {
        const nib_ledger_use *use = &layer->uses[i];
        char time[32];
        nib__text_format(out, "%s%s m %" PRId64, i == 0 ? "  predicted: " : "; ", use->phase,
                         use->m_min);
        nib__text_format(out, " %s", nib__format_seconds(time, use->predicted_us * 1e-6));
        if (use->tuned_us > 0)
            nib__text_format(out, " (tuned: %s)", nib__format_seconds(time, use->tuned_us * 1e-6));
    }
    if (layer->use_count != 0)
        nib__text_str(out, "\n");
}

static const char *bias_words(const nib_ledger_layer *layer)
{
    static const struct {
        const char *mark, *words;
    } words[] = {
        {" +b", " with a bias"}, {" +b8", " with an int8 bias"}, {" +b32", " with an int32 bias"}};
    for (size_t i = 0; i < COUNT(words); i++)
        if (strcmp(nib__ledger_bias_mark(layer), words[i].mark) == 0)
            return words[i].words;
    return "";
}

static void render_detail(const nib_ledger_layer *layer, const char *engine, nib_text *out)
{
    char bytes[32];
    nib__text_format(out, "%s  %" PRId64 "x%" PRId64 "%s, %s\n", layer->name, layer->n, layer->k,
                     bias_words(layer), nib__format_bytes(bytes, layer->bytes));
    nib__text_format(out, "  asked %s (%s); ", layer->asked,
                     layer->rule != NULL ? layer->rule : "the file");
    if (layer->denied)
        nib__text_str(out, "no allowed kernel\n");
    else if (layer->rung == NIB_RUNG_NONE)
        nib__text_str(out, "done as asked\n");
    else
        nib__text_format(out, "done %s, rung %s, allowed %s\n", layer->done,
                         nib__rung_names[layer->rung], layer->allowed);
    render_candidates(layer, false, false, out);
    render_uses(layer, out);
    const bool listed = layer->rung == NIB_RUNG_NONE && has_candidates(layer, false);
    for (size_t i = 0; !listed && i < layer->reason_count; i++) /* else each is listed with its row
                                                                   */
        nib__ledger_wrap(out, "  - ", "    ", WIDTH, layer->reasons[i].text);
    nib__ledger_render_advice(layer, out);
    if (engine != NULL) {
        nib__text_format(out, "  %s:\n", engine);
        render_candidates(layer, true, true, out);
    }
    nib__text_str(out, "\n");
}

/* ---- another engine, folded ---- */

static bool same_verdicts(const nib_ledger_layer *a, const nib_ledger_layer *b)
{
    if (!same_text(a->asked, b->asked) || a->candidate_count != b->candidate_count)
        return false;
    for (size_t i = 0; i < a->candidate_count; i++) {
        const nib_candidate *x = &a->candidates[i], *y = &b->candidates[i];
        if (!same_text(x->kernel, y->kernel) || x->verdict != y->verdict ||
            x->reason_count != y->reason_count)
            return false;
        for (size_t j = 0; j < x->reason_count; j++)
            if (!same_text(x->reasons[j].text, y->reasons[j].text))
                return false;
    }
    return true;
}

static bool same_line(const nib_ledger_layer *a, const nib_ledger_layer *b)
{
    char a_name[NAME_ROOM], b_name[NAME_ROOM];
    return a->n == b->n && a->k == b->k && a->bias == b->bias &&
           same_text(a->bias_form, b->bias_form) &&
           strcmp(nib__ledger_fold_name(a_name, sizeof a_name, a->name),
                  nib__ledger_fold_name(b_name, sizeof b_name, b->name)) == 0;
}

/* The layers that share the verdicts of layer i, folded by name. */
static void render_layers_like(const nib_ledger *ledger, size_t i, nib_text *out)
{
    for (size_t j = i; j < ledger->layer_count; j++) {
        const nib_ledger_layer *layer = &ledger->layers[j];
        char name[NAME_ROOM];
        size_t count = 0;
        bool seen = !same_verdicts(&ledger->layers[i], layer);
        for (size_t l = i; l < ledger->layer_count && !seen; l++) {
            const nib_ledger_layer *other = &ledger->layers[l];
            const bool same = same_line(layer, other) && same_verdicts(layer, other);
            seen = same && l < j;
            count += same;
        }
        if (seen)
            continue;
        nib__ledger_fold_name(name, sizeof name, layer->name);
        char shape[48];
        nib__text_format(out, "%7zu  %s%s%s\n", count, count > 1 ? name : layer->name,
                         layer->n != 0 ? "  " : "", nib__ledger_shape(shape, layer));
    }
}

static void render_engine(const nib_ledger *ledger, const char *engine, nib_text *out)
{
    bool any = false;
    size_t without = 0;
    nib__text_format(out, "\n%s, the same layers\n", engine);
    for (size_t i = 0; i < ledger->layer_count; i++) {
        bool seen = !has_candidates(&ledger->layers[i], true);
        without += seen && nib__ledger_is_linear(&ledger->layers[i]);
        for (size_t j = 0; j < i && !seen; j++)
            seen = same_verdicts(&ledger->layers[i], &ledger->layers[j]);
        if (seen)
            continue;
        any = true;
        render_layers_like(ledger, i, out);
        render_candidates(&ledger->layers[i], true, false, out);
    }
    if (without > 0)
        nib__text_format(out,
                         "%7zu  %slayer%s: Nibble has no row of %s about %s; `nibble kernels` "
                         "lists its rows\n",
                         without, any ? "other " : "", without == 1 ? "" : "s", engine,
                         without == 1 ? "it" : "them");
}

void nib__plan_render(const nib_assignment *plan, const nib_policy *policy, nib_text *out)
{
    render_machine(plan->machine, out);
    render_totals(plan, policy, out);
    if (policy->detail == NULL) {
        nib__ledger_render(&plan->ledger, true, out);
        render_kernels(&plan->ledger, out);
        if (policy->engine != NULL)
            render_engine(&plan->ledger, policy->engine, out);
        return;
    }
    for (size_t i = 0; i < plan->ledger.layer_count; i++)
        if (plan->ledger.layers[i].detailed)
            render_detail(&plan->ledger.layers[i], policy->engine, out);
}
