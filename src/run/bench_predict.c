/* SPDX-License-Identifier: Apache-2.0
 *
 * What plans predict beside what is measured, layer by layer, on the CPU or a device: three shapes
 * of an 8B model, four recipes, one token and a prompt. A layer of one token reads other weights
 * each time, as one of a large model does. Times are medians of a few turns.
 */
#include "library.h"
#include "timing.h"
#include "way.h"

static const struct {
    int64_t n, k;
} shapes[] = {{4096, 4096}, {14336, 4096}, {1024, 4096}};

static const char *const recipes[] = {"bf16", "int8wo", "8da4w", "int4wo"};

enum {
    PROMPT = 512,
    PROMPT_MOST = 8192,
    TURNS = 3, /* of all layers: what disturbs a machine lasts longer than one of them */
    SHAPES = COUNT(shapes),
    RECIPES = COUNT(recipes),
    BATCHES = 2, /* one token, and a prompt */
};

typedef struct prediction {
    const nib_machine *machine;
    nib_timed timed;
    nib_policy policy;
    nib_layer layer;
    nib_way way;
    double measured[SHAPES][RECIPES][BATCHES][TURNS];
    double worst; /* of the ratios: how far from 1 */
    size_t lines; /* that were written */
} prediction;

static nib_status measure(prediction *p, int64_t m, double *seconds, nib_err *err)
{
    const nib_use *use = nib__way_use(&p->way, m);
    NIB_TRY(nib__timed_linear(&p->timed, use->kernel, p->layer.n, m, m == 1, seconds, err));
    if (use->quant == NULL)
        return NIB_OK;
    double quant_s;
    NIB_TRY(nib__timed_quant(&p->timed, use->quant, m, &quant_s, err));
    *seconds += quant_s;
    return NIB_OK;
}

/* The plan is of a model whose weights are those that are gone through. */
static double predict(prediction *p, int64_t m)
{
    const double weights = (double)p->layer.n * (double)p->layer.k;
    const uint64_t bytes = nib__row_bytes(p->way.uses[0].kernel, &p->layer, &p->layer.asked);
    p->policy.weights = weights * (double)p->timed.weight_bytes / (double)bytes;
    return nib__way_seconds(&p->way, &p->layer, &p->policy, m);
}

static void write_line(const char *recipe, int64_t m, prediction *p, double predicted,
                       double measured, nib_form form, nib_text *out)
{
    const bool first = p->lines++ == 0;
    if (form == NIB_FORM_JSON)
        nib__text_format(out,
                         "%s\n    {\"recipe\": \"%s\", \"n\": %lld, \"k\": %lld, \"m\": %lld, "
                         "\"predicted_us\": %.4g, \"measured_us\": %.4g}",
                         first ? "" : ",", recipe, (long long)p->layer.n, (long long)p->layer.k,
                         (long long)m, predicted * 1e6, measured * 1e6);
    else
        nib__text_format(out,
                         form == NIB_FORM_MARKDOWN
                             ? "| %lld x %lld | %s | %lld | %.4g | %.4g | %.2f |\n"
                             : "%6lld x %-6lld %-8s %6lld %12.4g %12.4g %7.2f\n",
                         (long long)p->layer.n, (long long)p->layer.k, recipe, (long long)m,
                         predicted * 1e6, measured * 1e6, predicted / measured);
}

static nib_status set_layer(prediction *p, size_t shape, const char *recipe, nib_err *err)
{
    nib_scheme scheme;
    NIB_TRY(nib__scheme_parse(&scheme, recipe, strlen(recipe), err));
    p->layer = (nib_layer){.name = recipe,
                           .role = NIB_ROLE_O,
                           .n = shapes[shape].n,
                           .k = shapes[shape].k,
                           .asked = scheme,
                           .stored = {.code = NIB_CODE_BF16, .symmetric = true},
                           .scale_type = NIB_TYPE_BF16,
                           .act_scale_type = NIB_TYPE_F32};
    nib__way_find(&p->way, &p->layer, &scheme, p->machine, &p->policy, NULL);
    return NIB_OK;
}

static int64_t tokens_of(int batch, int64_t prompt) { return batch == 0 ? 1 : prompt; }

static nib_status measure_all(prediction *p, int64_t prompt, nib_err *err)
{
    for (int i = 0; i < TURNS * SHAPES * RECIPES; i++) {
        const int turn = i / (SHAPES * RECIPES), shape = i / RECIPES % SHAPES, recipe = i % RECIPES;
        p->timed.compiled = turn > 0;
        if (!nib__engine_progress(p->timed.engine, "bench", (uint64_t)i, TURNS * SHAPES * RECIPES))
            return nib__fail(err, NIB_CANCELLED, "the bench was cancelled");
        NIB_TRY(set_layer(p, (size_t)shape, recipes[recipe], err));
        if (!p->way.runs)
            continue;
        NIB_TRY(nib__timed_set(&p->timed, &p->layer.asked, p->policy.dtype, p->layer.n, p->layer.k,
                               prompt, err));
        for (int batch = 0; batch < BATCHES; batch++)
            NIB_TRY(measure(p, tokens_of(batch, prompt), &p->measured[shape][recipe][batch][turn],
                            err));
    }
    return NIB_OK;
}

static nib_status write_layer(prediction *p, size_t shape, size_t recipe, int64_t prompt,
                              nib_form form, nib_text *out, nib_err *err)
{
    NIB_TRY(set_layer(p, shape, recipes[recipe], err));
    for (int batch = 0; p->way.runs && batch < BATCHES; batch++) {
        const int64_t m = tokens_of(batch, prompt);
        const double measured = nib__median(p->measured[shape][recipe][batch], TURNS);
        const double predicted = predict(p, m), ratio = predicted / measured;
        const double off = ratio < 1 ? 1 / ratio : ratio;
        p->worst = off > p->worst ? off : p->worst;
        write_line(recipes[recipe], m, p, predicted, measured, form, out);
    }
    return NIB_OK;
}

static void write_head(const prediction *p, nib_form form, nib_text *out)
{
    const nib_machine *m = p->machine;
    const char *how = nib__machine_rates(m);
    if (form == NIB_FORM_JSON)
        nib__text_format(out,
                         "{\n  \"schema\": 1,\n  \"device\": \"%s\",\n  \"from\": \"%s\",\n"
                         "  \"layers\": [",
                         m->name, how);
    else if (form == NIB_FORM_MARKDOWN)
        nib__text_format(out,
                         "| layer on %s | recipe | tokens | predicted, us | measured, us | ratio "
                         "|\n|---|---|---|---|---|---|\n",
                         m->name);
    else
        nib__text_format(out, "%s, %s, predicted from %s\n%-15s %-8s %6s %12s %12s %7s\n", m->name,
                         nib__machine_title(m), how, "layer", "recipe", "tokens", "predicted us",
                         "measured us", "ratio");
}

static nib_status run(prediction *p, int64_t prompt, nib_form form, nib_text *out, nib_err *err)
{
    write_head(p, form, out);
    if (out->failed) /* before what takes seconds */
        return nib__fail_memory(err, out->size, "the table");
    NIB_TRY(measure_all(p, prompt, err));
    for (size_t i = 0; i < SHAPES * RECIPES; i++)
        NIB_TRY(write_layer(p, i / RECIPES, i % RECIPES, prompt, form, out, err));
    if (form == NIB_FORM_JSON)
        nib__text_format(out, "\n  ],\n  \"worst\": %.4g\n}\n", p->worst);
    else
        nib__text_format(out, "%sworst: %.2f times off\n", form == NIB_FORM_MARKDOWN ? "\n" : "",
                         p->worst);
    return NIB_OK;
}

nib_status nib_bench_predict(nib_engine *engine, const char *device, int64_t prompt_tokens,
                             nib_form form, const nib_sink *sink, nib_err *err)
{
    const int64_t prompt = prompt_tokens > 0 ? prompt_tokens : PROMPT;
    nib_machine machine;
    nib_gpu *gpu;
    nib_text text;
    if (prompt > PROMPT_MOST)
        return nib__fail(err, NIB_USAGE, "a prompt of %lld tokens is over the limit of %d",
                         (long long)prompt, PROMPT_MOST);
    NIB_TRY(nib__engine_machine_here(engine, &machine, &gpu, device != NULL ? device : "cpu", err));
    prediction p = {.machine = &machine, .policy = {.dtype = NIB_TYPE_BF16}, .worst = 1};
    nib__text_init(&text, &engine->allocator);
    nib_status status = nib__timed_open(&p.timed, engine, gpu, nib__timed_weights(&machine), err);
    p.timed.in_turns = true;
    if (status == NIB_OK)
        status = run(&p, prompt, form, &text, err);
    nib__timed_close(&p.timed);
    if (status == NIB_OK)
        status = nib__text_flush(&text, sink, err);
    nib__text_free(&text);
    return status;
}
