/* SPDX-License-Identifier: Apache-2.0
 *
 * Compares what plans predict with what is measured, layer by layer, for one token and for a
 * prompt: for the distinct linear layers of a plan, or for three shapes of an 8B model in four
 * recipes. With one token, each run reads other weights, as a layer of a large model does. Times
 * are medians of a few turns.
 */
#include "bench.h"
#include "public_struct.h"
#include "timing.h"
#include "variant.h"

#include <stdio.h>

static const struct {
    int64_t n, k;
} shapes[] = {{4096, 4096}, {14336, 4096}, {1024, 4096}};

static const char *const recipes[] = {"bf16", "int8wo", "8da4w", "int4wo"};

enum {
    PROMPT = 512,
    PROMPT_MOST = 8192,
    TURNS = 3,   /* over all layers: disturbances last longer than one layer */
    BATCHES = 2, /* one token, and a prompt */
};

typedef struct predicted_layer {
    char scheme[64];
    nib_layer layer;
    nib_variant variant;
    double measured[BATCHES][TURNS];
} predicted_layer;

typedef struct prediction {
    nib_engine *engine;
    const nib_machine *machine;
    nib_timed timed;
    nib_policy policy;
    int64_t prompt;
    predicted_layer *layers; /* [count] */
    size_t count;
    double worst; /* the ratio furthest from 1 */
} prediction;

static int64_t tokens_of(const prediction *p, int batch) { return batch == 0 ? 1 : p->prompt; }

/* ---- which layers ---- */

/* Lists the usual layers, without those that the machine cannot run. */
static nib_status list_usual(prediction *p, nib_err *err)
{
    for (size_t i = 0; i < COUNT(shapes) * COUNT(recipes); i++) {
        predicted_layer *l = &p->layers[p->count];
        const char *recipe = recipes[i % COUNT(recipes)];
        nib_scheme scheme;
        NIB_TRY(nib__scheme_parse(&scheme, recipe, strlen(recipe), err));
        snprintf(l->scheme, sizeof l->scheme, "%s", recipe);
        l->layer = (nib_layer){.name = recipe,
                               .role = NIB_ROLE_O,
                               .n = shapes[i / COUNT(recipes)].n,
                               .k = shapes[i / COUNT(recipes)].k,
                               .asked = scheme,
                               .stored = {.code = NIB_CODE_BF16, .symmetric = true},
                               .scale_type = NIB_TYPE_BF16,
                               .act_scale_type = NIB_TYPE_F32};
        nib__variant_find(&l->variant, &l->layer, &scheme, p->machine, &p->policy, NULL);
        p->count += l->variant.runs;
    }
    return NIB_OK;
}

static bool is_same(const predicted_layer *a, const nib_layer_plan *b)
{
    return a->layer.n == b->layer->n && a->layer.k == b->layer->k &&
           nib__scheme_equal(&a->variant.scheme, &b->done) &&
           a->variant.uses[0].kernel == b->uses[0].kernel;
}

/* Lists the layers of a plan that run on its machine, one of each shape, scheme and kernel. */
static void list_planned(prediction *p, const nib_assignment *plan)
{
    for (size_t i = 0; i < plan->count; i++) {
        const nib_layer_plan *from = &plan->layers[i];
        bool seen = from->machine != p->machine || from->uses[0].op != NIB_OP_LINEAR;
        for (size_t j = 0; j < p->count && !seen; j++)
            seen = is_same(&p->layers[j], from);
        if (seen)
            continue;
        predicted_layer *l = &p->layers[p->count++];
        nib__scheme_name(l->scheme, &from->done);
        l->layer = *from->layer;
        l->layer.role = NIB_ROLE_O; /* its input is quantized for it alone */
        l->variant = nib__variant_of(from);
    }
}

/* ---- measuring ---- */

static nib_status measure(prediction *p, const predicted_layer *l, int64_t m, double *seconds,
                          nib_err *err)
{
    const nib_use *use = nib__variant_use(&l->variant, m);
    NIB_TRY(nib__timed_linear(&p->timed, use->kernel, l->layer.n, m, m == 1, seconds, err));
    if (use->quant == NULL || nib__input_is_plain(&l->variant.scheme, p->policy.dtype))
        return NIB_OK;
    double quant_s;
    NIB_TRY(nib__timed_quant(&p->timed, use->quant, m, &quant_s, err));
    *seconds += quant_s;
    return NIB_OK;
}

static nib_status measure_all(prediction *p, nib_err *err)
{
    for (size_t i = 0; i < TURNS * p->count; i++) {
        const size_t turn = i / p->count;
        predicted_layer *l = &p->layers[i % p->count];
        p->timed.compiled = turn > 0;
        if (!nib__engine_progress(p->engine, "bench", i, TURNS * p->count))
            return nib__fail(err, NIB_CANCELLED, "the bench was cancelled");
        NIB_TRY(nib__timed_set(&p->timed, &l->layer, &l->variant.scheme, p->policy.dtype,
                               l->layer.n, p->prompt, err));
        for (int batch = 0; batch < BATCHES; batch++)
            NIB_TRY(measure(p, l, tokens_of(p, batch), &l->measured[batch][turn], err));
    }
    return NIB_OK;
}

/* Predicts for a model with as many weights as the measurement reads. */
static double predict(prediction *p, const predicted_layer *l, int64_t m)
{
    const double weights = (double)l->layer.n * (double)l->layer.k;
    const uint64_t bytes = nib__row_bytes(l->variant.uses[0].kernel, &l->layer, &l->variant.scheme);
    p->policy.weights = weights * (double)p->timed.weight_bytes / (double)bytes;
    return nib__variant_seconds(&l->variant, &l->layer, &p->policy, m);
}

/* ---- output ---- */

/* A line: one layer at one number of tokens. */
typedef struct compared {
    int64_t m;
    double predicted, measured; /* seconds */
} compared;

static compared compare(prediction *p, const predicted_layer *l, int batch)
{
    double of_turns[TURNS];
    memcpy(of_turns, l->measured[batch], sizeof of_turns);
    const int64_t m = tokens_of(p, batch);
    const compared c = {m, predict(p, l, m), nib__median(of_turns, TURNS)};
    const double ratio = c.predicted / c.measured, off = ratio < 1 ? 1 / ratio : ratio;
    p->worst = off > p->worst ? off : p->worst;
    return c;
}

static void write_json(prediction *p, const nib_plan *plan, nib_text *out)
{
    nib_jsonw w;
    nib__jsonw_report(&w, out);
    nib__jsonw_pair_string(&w, "device", p->machine->name);
    nib__jsonw_pair_string(&w, "from", nib__machine_rates(p->machine));
    nib__jsonw_key(&w, "times"); /* "layers" is a key of the ledger */
    nib__jsonw_array(&w);
    for (size_t i = 0; i < p->count * BATCHES; i++) {
        const predicted_layer *l = &p->layers[i / BATCHES];
        const compared c = compare(p, l, (int)(i % BATCHES));
        nib__jsonw_object(&w);
        nib__jsonw_pair_string(&w, "recipe", l->scheme);
        nib__jsonw_pair_int(&w, "n", l->layer.n);
        nib__jsonw_pair_int(&w, "k", l->layer.k);
        nib__jsonw_pair_int(&w, "m", c.m);
        nib__jsonw_pair_string(&w, "kernel", nib__variant_use(&l->variant, c.m)->kernel->name);
        nib__jsonw_pair_double(&w, "predicted_us", c.predicted * 1e6);
        nib__jsonw_pair_double(&w, "measured_us", c.measured * 1e6);
        nib__jsonw_object_end(&w);
    }
    nib__jsonw_array_end(&w);
    nib__jsonw_pair_double(&w, "worst", p->worst);
    if (plan != NULL)
        nib__ledger_json(&plan->assignment.ledger, &w);
    nib__jsonw_report_end(&w);
}

static void write_text(prediction *p, bool markdown, nib_text *out)
{
    const nib_machine *m = p->machine;
    if (markdown)
        nib__text_format(out,
                         "| layer on %s | recipe | tokens | predicted, us | measured, us | ratio "
                         "|\n|---|---|---|---|---|---|\n",
                         m->name);
    else
        nib__text_format(out, "%s, %s, predicted from %s\n%-15s %-12s %6s %12s %12s %7s\n", m->name,
                         nib__machine_title(m), nib__machine_rates(m), "layer", "recipe", "tokens",
                         "predicted us", "measured us", "ratio");
    for (size_t i = 0; i < p->count * BATCHES; i++) {
        const predicted_layer *l = &p->layers[i / BATCHES];
        const compared c = compare(p, l, (int)(i % BATCHES));
        nib__text_format(out,
                         markdown ? "| %lld x %lld | %s | %lld | %.4g | %.4g | %.2f |\n"
                                  : "%6lld x %-6lld %-12s %6lld %12.4g %12.4g %7.2f\n",
                         (long long)l->layer.n, (long long)l->layer.k, l->scheme, (long long)c.m,
                         c.predicted * 1e6, c.measured * 1e6, c.predicted / c.measured);
    }
    nib__text_format(out, "%sworst: %.2f times off\n", markdown ? "\n" : "", p->worst);
}

/* ---- all of it ---- */

static nib_status measure_and_write(prediction *p, nib_gpu *gpu, const nib_plan *plan,
                                    nib_form form, const nib_sink *sink, nib_err *err)
{
    nib_text text;
    nib__text_init(&text, &p->engine->allocator);
    nib_status status =
        nib__timed_open(&p->timed, p->engine, gpu, nib__timed_weights(p->machine), err);
    p->timed.in_turns = true;
    if (status == NIB_OK)
        status = measure_all(p, err);
    if (status == NIB_OK && form == NIB_FORM_JSON)
        write_json(p, plan, &text);
    else if (status == NIB_OK)
        write_text(p, form == NIB_FORM_MARKDOWN, &text);
    nib__timed_close(&p->timed);
    if (status == NIB_OK)
        status = nib__text_flush(&text, sink, err);
    nib__text_free(&text);
    return status;
}

/* plan NULL: uses the usual layers. */
static nib_status bench_layers(nib_engine *engine, const char *device, const nib_plan *plan,
                               int64_t prompt_tokens, nib_form form, const nib_sink *sink,
                               nib_err *err)
{
    NIB_TRY(nib__number_check("prompt_tokens", prompt_tokens, err));
    const size_t most = plan != NULL ? plan->assignment.count : COUNT(shapes) * COUNT(recipes);
    nib_machine machine;
    nib_gpu *gpu;
    prediction p = {.engine = engine, .policy = {.dtype = NIB_TYPE_BF16}, .worst = 1};
    p.prompt = prompt_tokens > 0 ? prompt_tokens : PROMPT;
    if (p.prompt > PROMPT_MOST)
        return nib__fail(err, NIB_USAGE, "a prompt of %lld tokens is over the limit of %d",
                         (long long)p.prompt, PROMPT_MOST);
    NIB_TRY(nib__engine_machine_here(engine, &machine, &gpu, device, err));
    p.layers = nib__calloc(&engine->allocator, most, sizeof *p.layers);
    if (p.layers == NULL)
        return nib__fail_memory(err, most * sizeof *p.layers, "the layers to time");
    nib_status status = NIB_OK;
    p.machine = plan != NULL ? plan->assignment.machine : &machine;
    if (plan != NULL) {
        p.policy = plan->policy;
        list_planned(&p, &plan->assignment);
    } else {
        status = list_usual(&p, err);
    }
    if (status == NIB_OK)
        status = measure_and_write(&p, gpu, plan, form, sink, err);
    nib__release(&engine->allocator, p.layers);
    return status;
}

nib_status nib_bench_predict(nib_engine *engine, const char *device, int64_t prompt_tokens,
                             nib_form form, const nib_sink *sink, nib_err *err)
{
    NIB_NEED(err, "engine", engine);
    NIB_TRY(nib__report_check(form, sink, err));
    return bench_layers(engine, device != NULL ? device : "cpu", NULL, prompt_tokens, form, sink,
                        err);
}

nib_status nib_bench_layers(const nib_plan *plan, int64_t prompt_tokens, nib_form form,
                            const nib_sink *sink, nib_err *err)
{
    NIB_NEED(err, "plan", plan);
    NIB_TRY(nib__report_check(form, sink, err));
    if (plan->policy.training)
        return nib__fail(err, NIB_USAGE,
                         "layers are timed for inference, but this is the plan of a training step; "
                         "use `nibble bench --train`");
    NIB_TRY(nib_plan_status(plan, err));
    return bench_layers(plan->model->engine, plan->assignment.machine->name, plan, prompt_tokens,
                        form, sink, err);
}
