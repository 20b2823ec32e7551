/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs the calibration text a decoder layer at a time: once with the layer's weights as stored, to
 * sum the second moments of their inputs, then, with the codes that those give, to what the next
 * layer reads. Memory holds the text's hidden states, and the moments of one layer.
 */
#include "gptq.h"

#include "convert.h"
#include "moments_factor.h"
#include "plan_handle.h"
#include "quantizer.h"

#include <math.h>

enum { WINDOW = 2048, TEXT_MAX = 64 << 20, TRIES = 4 };

static const double damping = 0.01; /* of the mean of H's diagonal */

/* The second moments of one input, which several layers may share. */
typedef struct input {
    double *h; /* [k][k]; NULL: nothing was seen yet */
    int64_t k, tokens;
} input;

typedef struct gptq {
    const nib_gptq *job;
    nib_model *model;
    nib_runner runner;
    const nib_moments_rows *rows;
    size_t *first;  /* [layers + 1] first operation of each layer */
    input *inputs;  /* [site_count]; of sites that share one, the first's */
    int64_t window; /* tokens */
    const int32_t *ids;
    int64_t count;
    float *state;   /* [windows][chunks] what lives between layers */
    int64_t width;  /* floats per token of `state` */
    float *scratch; /* [threads] */
    /* Inputs that saw fewer tokens than they have columns, and the one with the fewest. */
    size_t few;
    size_t fewest;     /* site; of `few` */
    nib_status status; /* of the observer */
    nib_err err;
} gptq;

static bool is_coded(const gptq *g, size_t site)
{
    const nib_quantize_layer *l = &g->job->layers[site];
    return l->choice.method == NIB_PTQ_GPTQ && nib__layer_is_quantized(l) && !l->recode &&
           l->role != NIB_ROLE_EMBED;
}

static bool shares_input(const gptq *g, size_t site)
{
    return g->model->net.sites[site].shares_input;
}

/* Whether a site that reads this input is coded. */
static bool is_wanted(const gptq *g, size_t owner)
{
    size_t site = owner;
    do {
        if (is_coded(g, site))
            return true;
    } while (++site < g->model->net.site_count && shares_input(g, site));
    return false;
}

/* ---- moments ---- */

typedef struct adding {
    const gptq *g;
    nib_moments_add add;
} adding;

static void add_tiles(void *ctx, int worker, int64_t begin, int64_t end)
{
    const adding *a = ctx;
    a->g->rows->add(&a->add, begin, end,
                    a->g->scratch + (size_t)worker * (NIB_MOMENTS_SCRATCH / sizeof(float)));
}

static void add_tokens(gptq *g, input *in, const float *x, int64_t ld, int64_t m)
{
    for (int64_t t = 0; t < m; t += NIB_MOMENTS_TOKENS) {
        adding a = {g, {.h = in->h, .k = in->k, .ld = ld}};
        a.add.x = x + t * ld;
        a.add.m = nib__min(NIB_MOMENTS_TOKENS, m - t);
        nib__pool_run(g->model->engine->pool, nib__moments_tiles(in->k), 1, false, add_tiles, &a);
    }
    in->tokens += m;
}

static void observe(void *ctx, size_t site, const float *x, int64_t ld, int64_t m, int64_t k)
{
    gptq *g = ctx;
    input *in = &g->inputs[site];
    if (g->status != NIB_OK || shares_input(g, site) || !is_wanted(g, site))
        return;
    if (in->h == NULL) {
        in->h = nib__calloc(&g->model->engine->allocator, (uint64_t)k * (uint64_t)k, sizeof *in->h);
        in->k = k;
        if (in->h == NULL) {
            g->status = nib__fail_memory(&g->err, (uint64_t)k * (uint64_t)k * sizeof *in->h,
                                         "the second moments of an input");
            return;
        }
    }
    add_tokens(g, in, x, ld, m);
}

/* ---- their factor ---- */

/* Adds to the diagonal, after taking the upper triangle from the lower one. */
static void damp(double *h, const double *diagonal, int64_t k, double add)
{
    for (int64_t i = 0; i < k; i++) {
        for (int64_t j = i + 1; j < k; j++)
            h[i * k + j] = h[j * k + i];
        h[i * k + i] = diagonal[i] + add;
    }
}

/* What a sweep needs of an input. */
typedef struct factored {
    float *factor;     /* [k][k] */
    double *diagonal;  /* [k] */
    float *importance; /* [k] */
    double damped;     /* share of the mean diagonal that was added */
} factored;

static void divide_rows(const double *h, int64_t k, factored *out)
{
    for (int64_t j = 0; j < k; j++)
        out->diagonal[j] = h[j * k + j];
    for (int64_t i = 0; i < k; i++)
        for (int64_t j = i + 1; j < k; j++)
            out->factor[i * k + j] = (float)(h[i * k + j] / out->diagonal[j]);
    for (int64_t j = 0; j < k; j++)
        out->diagonal[j] *= out->diagonal[j];
}

static nib_status factor_input(const gptq *g, const input *in, const char *name, factored *out,
                               nib_arena *arena, nib_err *err)
{
    const int64_t k = in->k;
    const size_t n = (size_t)k;
    double mean = 0, *h = in->h;
    double *diagonal = nib__arena_take(arena, n, sizeof *diagonal),
           *after = nib__arena_take(arena, n * NIB_MOMENTS_PANEL, sizeof *after);
    *out = (factored){.factor = nib__arena_take(arena, n * n, sizeof *out->factor),
                      .diagonal = nib__arena_take(arena, n, sizeof *out->diagonal),
                      .importance = nib__arena_take(arena, n, sizeof *out->importance),
                      .damped = damping};
    if (!diagonal || !after || !out->factor || !out->diagonal || !out->importance)
        return nib__fail_memory(err, n * n * sizeof *out->factor, name);
    for (int64_t i = 0; i < k; i++) {
        diagonal[i] = h[i * k + i];
        mean += diagonal[i] / (double)k;
        for (int64_t j = i + 1; j < k; j++)
            h[j * k + i] = h[i * k + j];
    }
    if (!isfinite(mean))
        return nib__fail(err, NIB_CHECK_FAILED,
                         "%s: its input is not finite on the calibration text; `nibble verify` "
                         "finds the tensor that holds NaN or Inf",
                         name);
    if (!(mean > 0)) { /* all inputs are 0: any codes are as good */
        out->factor = NULL;
        return NIB_OK;
    }
    for (int64_t j = 0; j < k; j++)
        out->importance[j] = (float)fmax(diagonal[j] / mean, 0x1p-20);
    for (int i = 0; i < TRIES; i++, out->damped *= 10) {
        damp(h, diagonal, k, out->damped * mean);
        if (nib__moments_factor(h, k, after, g->rows, g->model->engine->pool)) {
            divide_rows(h, k, out);
            return NIB_OK;
        }
    }
    return nib__fail(err, NIB_CHECK_FAILED,
                     "%s: the second moments of its input are not positive definite, even with %g "
                     "times their mean added to the diagonal",
                     name, out->damped / 10);
}

/* ---- codes ---- */

typedef struct sweeping {
    const nib_weight *from;
    float *weights; /* [n][k] */
    nib_quant_sweep sweep;
    nib_quant_sweep_run run;
    char *scratch;
    uint64_t scratch_bytes;
} sweeping;

static void read_rows(void *ctx, int worker, int64_t begin, int64_t end)
{
    const sweeping *s = ctx;
    (void)worker;
    for (int64_t i = begin; i < end; i++)
        nib__weight_row(s->from, i, s->weights + i * s->from->k);
}

static void sweep_rows(void *ctx, int worker, int64_t begin, int64_t end)
{
    const sweeping *s = ctx;
    s->run(&s->sweep, begin, end, s->scratch + (uint64_t)worker * s->scratch_bytes);
}

/* Rows of the weight that its codes stand for, instead of the stored ones. */
static void decode_rows(const nib_weight *coded, float *weights)
{
    for (int64_t i = 0; i < coded->n; i++)
        nib__weight_row(coded, i, weights + i * coded->k);
}

static nib_status make_quantizer(nib_quantizer *out, const gptq *g, size_t site, nib_err *err)
{
    const nib_choice *choice = &g->job->layers[site].choice;
    const nib_site *at = &g->model->net.sites[site];
    NIB_TRY(nib__quantizer_init(out, &choice->scheme, nib__float_type(at->weight.scheme.code),
                                at->k, err));
    return nib__quantizer_scales(out, choice->scale_type, err);
}

static nib_status code_site(gptq *g, size_t site, const factored *f, nib_arena *arena, nib_err *err)
{
    nib_engine *engine = g->model->engine;
    nib_quantize_layer *l = &g->job->layers[site];
    nib_site *at = &g->model->net.sites[site];
    const int64_t n = at->n, k = at->k;
    const size_t threads = (size_t)nib__pool_threads(engine->pool);
    nib_quantizer q;
    NIB_TRY(make_quantizer(&q, g, site, err));
    NIB_TRY(nib__quantizer_method(&q, NIB_PTQ_SEARCH, f->importance, err));
    const uint64_t count = (uint64_t)n * (uint64_t)k, scales = (uint64_t)n * (uint64_t)q.groups;
    nib_codes *codes = nib__arena_take(g->job->arena, 1, sizeof *codes);
    sweeping s = {.from = &at->weight,
                  .weights = nib__arena_take(arena, count, sizeof(float)),
                  .run = nib__quant_sweep_best(engine->isa),
                  .scratch_bytes = (nib__quant_sweep_scratch(&q) + 63) & ~UINT64_C(63)};
    double *objective = nib__arena_take(arena, 2 * (uint64_t)n, sizeof *objective);
    int32_t *failed = nib__arena_take(arena, (uint64_t)n, sizeof *failed);
    s.scratch = nib__arena_take(arena, threads * s.scratch_bytes + 64, 1);
    if (!codes || !s.weights || !objective || !failed || !s.scratch)
        return nib__fail_memory(err, count * sizeof(float), l->name);
    s.scratch += (64 - (uintptr_t)s.scratch % 64) % 64;
    *codes = (nib_codes){.codes = nib__arena_take(g->job->arena, count, 1),
                         .scales = nib__arena_take(g->job->arena, scales,
                                                   (uint64_t)nib__type_bits(q.scale_type) / 8),
                         .zeros = q.zero_type == NIB_TYPE_NONE
                                      ? NULL
                                      : nib__arena_take(g->job->arena, scales,
                                                        (uint64_t)nib__type_bits(q.zero_type) / 8)};
    if (!codes->codes || !codes->scales || (!codes->zeros && q.zero_type != NIB_TYPE_NONE))
        return nib__fail_memory(err, count, l->name);
    nib__pool_run(engine->pool, n, 4, false, read_rows, &s);
    if (nib__quantizer_needs_scan(&q)) {
        float range[2] = {0, 0};
        NIB_TRY(nib__quantizer_scan(&q, s.weights, 0, n, range, err));
        NIB_TRY(nib__quantizer_set_range(&q, range, err));
    }
    s.sweep = (nib_quant_sweep){.q = &q,
                                .rows = s.weights,
                                .n = n,
                                .k = k,
                                .factor = f->factor,
                                .diagonal = f->diagonal,
                                .codes = codes->codes,
                                .scales = codes->scales,
                                .zeros = codes->zeros,
                                .objective = objective,
                                .failed = failed};
    nib__pool_run(engine->pool, n, 16, false, sweep_rows, &s);
    for (int64_t i = 0; i < n; i++) {
        if (failed[i] != 0)
            return nib__fail_in(
                err, nib__quantizer_fail_row(&q, s.weights + i * k, i, failed[i], err), l->name);
        codes->objective[0] += objective[2 * i];
        codes->objective[1] += objective[2 * i + 1];
    }
    codes->tensor_scale = q.tensor_scale;
    l->codes = codes;
    return NIB_OK;
}

/* Loads the weight that the site's codes stand for, for the layers after it. */
static nib_status load_coded(gptq *g, size_t site, nib_arena *arena, nib_err *err)
{
    nib_runner *r = &g->runner;
    const nib_allocator *a = &g->model->engine->allocator;
    nib_site *at = &g->model->net.sites[site];
    const nib_quantize_layer *l = &g->job->layers[site];
    const nib_weight stored = at->weight;
    nib_quantizer q;
    nib_weight coded;
    NIB_TRY(make_quantizer(&q, g, site, err));
    nib__quantizer_describe_weight(&coded, &q, at->n, l->codes->codes, l->codes->scales,
                                   l->codes->zeros);
    coded.tensor_scale = l->codes->tensor_scale;
    float *weights = nib__arena_take(arena, (uint64_t)at->n * (uint64_t)at->k, sizeof *weights);
    if (weights == NULL)
        return nib__fail_memory(err, (uint64_t)at->n * (uint64_t)at->k * sizeof *weights, l->name);
    decode_rows(&coded, weights);
    at->weight = (nib_weight){.scheme = {.code = NIB_CODE_F32},
                              .n = at->n,
                              .k = at->k,
                              .layout = NIB_LAYOUT_FLOAT,
                              .codes = weights,
                              .bias = stored.bias,
                              .bias_type = stored.bias_type};
    nib__weight_unload(&r->weights[site], a);
    const nib_status status =
        nib__weight_load(&r->weights[site], &g->model->net, &g->runner.plan->layers[site], site,
                         &r->staging, NULL, err);
    at->weight = stored;
    return status;
}

/* Codes the sites [begin, end) from the moments of their inputs, and releases those. */
static nib_status code_sites(gptq *g, size_t begin, size_t end, bool loads, nib_err *err)
{
    nib_status status = NIB_OK;
    for (size_t owner = begin; owner < end && status == NIB_OK; owner++) {
        factored f;
        nib_arena arena;
        input *in = &g->inputs[owner];
        if (in->h == NULL)
            continue;
        if (in->tokens < in->k && (g->few++ == 0 || in->tokens < g->inputs[g->fewest].tokens))
            g->fewest = owner;
        nib__arena_init(&arena, &g->model->engine->allocator, 0);
        status = factor_input(g, in, g->job->layers[owner].name, &f, &arena, err);
        for (size_t site = owner; status == NIB_OK && f.factor != NULL; site++) {
            if (site > owner && (site == end || !shares_input(g, site)))
                break;
            if (is_coded(g, site))
                status = code_site(g, site, &f, &arena, err);
            if (status == NIB_OK && loads && is_coded(g, site))
                status = load_coded(g, site, &arena, err);
        }
        nib__arena_free(&arena);
        nib__release(&g->model->engine->allocator, in->h);
        in->h = NULL;
    }
    return status;
}

/* ---- the text, a layer at a time ---- */

/* Calls nib__runner_part on every chunk; `stays`: without keeping what comes out. */
static nib_status run_layer(gptq *g, size_t layer, bool stays, nib_err *err)
{
    nib_slot slots[NIB_CHUNK];
    const size_t begin = layer == 0 ? 0 : g->first[layer];
    for (int64_t done = 0; done < g->count;) {
        const int64_t at = done % g->window;
        const int64_t part = nib__min(nib__min(NIB_CHUNK, g->window - at), g->count - done);
        float *state = g->state + done * g->width;
        if (at == 0)
            nib__kv_truncate(&g->runner.kv, 0, 0);
        for (int64_t i = 0; i < part; i++)
            slots[i] = (nib_slot){.position = (int32_t)(at + i), .token = g->ids[done + i]};
        NIB_TRY(nib__runner_part(&g->runner, slots, part, begin, g->first[layer + 1],
                                 begin == 0 ? NULL : state, stays ? NULL : state, err));
        if (g->status != NIB_OK)
            return nib__fail(err, g->status, "%s", g->err.text);
        done += part;
    }
    return NIB_OK;
}

/* The sites of a decoder layer: [*begin, *end). */
static void find_sites(const gptq *g, int64_t layer, size_t *begin, size_t *end)
{
    const nib_network *net = &g->model->net;
    size_t i = 0;
    while (i < net->site_count &&
           nib__graph_weight(&net->graph, NIB_WEIGHT_MATRIX, i)->layer != layer)
        i++;
    *begin = i;
    while (i < net->site_count &&
           nib__graph_weight(&net->graph, NIB_WEIGHT_MATRIX, i)->layer == layer)
        i++;
    *end = i;
}

/* The output layer, from the final norm of every token. */
static nib_status code_head(gptq *g, nib_err *err)
{
    const size_t head = g->model->net.site_count - 1;
    const int64_t layers = g->model->net.config.layers, width = g->model->net.config.width;
    if (!is_coded(g, head))
        return NIB_OK;
    float *rows =
        nib__calloc(&g->model->engine->allocator, NIB_CHUNK * (uint64_t)width, sizeof *rows);
    nib_status status = rows != NULL ? NIB_OK : nib__fail_memory(err, (uint64_t)width, "a chunk");
    for (int64_t done = 0; done < g->count && status == NIB_OK;) {
        const int64_t at = done % g->window;
        const int64_t part = nib__min(nib__min(NIB_CHUNK, g->window - at), g->count - done);
        status = nib__runner_final(&g->runner, g->first[layers], part, g->state + done * g->width,
                                   rows, err);
        if (status == NIB_OK)
            observe(g, head, rows, width, part, width);
        done += part;
    }
    nib__release(&g->model->engine->allocator, rows);
    if (status == NIB_OK && g->status != NIB_OK)
        return nib__fail(err, g->status, "%s", g->err.text);
    return status == NIB_OK ? code_sites(g, head, head + 1, false, err) : status;
}

static nib_status code_layers(gptq *g, nib_err *err)
{
    nib_engine *engine = g->model->engine;
    const int64_t layers = g->model->net.config.layers;
    g->runner.observer = (nib_observer){.see = observe, .ctx = g};
    for (int64_t l = 0; l < layers; l++) {
        size_t begin, end;
        if (!nib__engine_progress(engine, "gptq", (uint64_t)l, (uint64_t)layers + 1))
            return nib__fail(err, NIB_CANCELLED, "the method gptq was cancelled");
        find_sites(g, l, &begin, &end);
        g->runner.observer.see = observe;
        NIB_TRY(run_layer(g, (size_t)l, true, err));
        NIB_TRY(code_sites(g, begin, end, true, err));
        g->runner.observer.see = NULL;
        NIB_TRY(run_layer(g, (size_t)l, false, err));
    }
    NIB_TRY(code_head(g, err));
    nib__engine_progress(engine, "gptq", (uint64_t)layers + 1, (uint64_t)layers + 1);
    return NIB_OK;
}

/* Says which layers saw too few tokens for moments of full rank. */
static void note_few(const gptq *g)
{
    const input *in = &g->inputs[g->fewest];
    char a[NIB_SHOWN];
    if (g->few > 0)
        nib__ledger_add_note(g->job->ledger, "method",
                             "gptq: %zu inputs saw fewer tokens than they have columns, so their "
                             "moments say little: %s %lld tokens, %lld columns",
                             g->few, nib__escape_string(a, g->job->layers[g->fewest].name),
                             (long long)in->tokens, (long long)in->k);
}

/* ---- opening ---- */

static nib_status allocate(gptq *g, nib_arena *arena, nib_err *err)
{
    const size_t layers = (size_t)g->model->net.config.layers, sites = g->model->net.site_count,
                 threads = (size_t)nib__pool_threads(g->model->engine->pool);
    g->first = nib__arena_take(arena, layers + 1, sizeof *g->first);
    g->inputs = nib__arena_take(arena, sites, sizeof *g->inputs);
    g->scratch = nib__arena_take(arena, threads, NIB_MOMENTS_SCRATCH);
    if (!g->first || !g->inputs || !g->scratch)
        return nib__fail_memory(err, threads * NIB_MOMENTS_SCRATCH, "the method gptq");
    nib__runner_layers(g->first, &g->runner);
    for (size_t l = 1; l <= layers; l++)
        g->width = nib__max(g->width, nib__runner_state_width(&g->runner, g->first[l]));
    const uint64_t floats = (uint64_t)g->count * (uint64_t)g->width;
    g->state = nib__arena_take(arena, floats, sizeof *g->state);
    return g->state != NULL
               ? NIB_OK
               : nib__fail_memory(err, floats * sizeof *g->state, "the hidden states of a text");
}

static nib_status run_model(gptq *g, const nib_plan *plan, nib_err *err)
{
    nib_refusal refusal;
    nib_arena arena;
    NIB_TRY(nib__runner_open(&g->runner, &g->model->net, &plan->assignment, 1, g->window, &refusal,
                             err));
    nib__arena_init(&arena, &g->model->engine->allocator, 0);
    nib_status status = allocate(g, &arena, err);
    if (status == NIB_OK)
        status = code_layers(g, err);
    if (status == NIB_OK)
        note_few(g);
    for (size_t i = 0; g->inputs != NULL && i < g->model->net.site_count; i++)
        nib__release(&g->model->engine->allocator, g->inputs[i].h);
    nib__arena_free(&arena);
    nib__runner_close(&g->runner);
    return status;
}

static nib_status read_tokens(gptq *g, const nib_tokenizer *tokenizer, int32_t **ids, nib_err *err)
{
    const nib_allocator *a = &g->model->engine->allocator;
    char shown[NIB_SHOWN], *text;
    size_t size, count;
    NIB_TRY(nib__file_read(&text, &size, g->job->text, TEXT_MAX, a, err));
    const nib_status status =
        nib__tokenizer_encode(tokenizer, text, size, NIB_ENCODE_ADD_SPECIAL, ids, &count, err);
    nib__release(a, text);
    NIB_TRY(status);
    g->ids = *ids;
    g->count = nib__min((int64_t)count, NIB_GPTQ_TOKENS);
    if (count == 0)
        return nib__fail(err, NIB_BAD_INPUT, "%s: the calibration text is empty",
                         nib__escape_string(shown, g->job->text));
    nib__ledger_add_note(g->job->ledger, "method",
                         "gptq: %lld of the text's %zu tokens, in windows of %lld",
                         (long long)g->count, count, (long long)g->window);
    return NIB_OK;
}

nib_status nib__gptq(const nib_gptq *job, nib_model *model, nib_err *err)
{
    const nib_request as_stored = {.dtype = job->request->dtype, .context = job->request->context};
    const nib_tokenizer *tokenizer;
    nib_plan *plan = NULL;
    int32_t *ids = NULL;
    gptq g = {.job = job, .model = model, .rows = nib__moments_best(model->engine->isa)};
    if (model->net.config.shared_layers > 0)
        return nib__fail(err, NIB_UNSUPPORTED,
                         "the method gptq runs a layer at a time, and the last %lld layers of this "
                         "model read the keys of earlier ones; use the method search",
                         (long long)model->net.config.shared_layers);
    NIB_TRY(nib_model_tokenizer(&tokenizer, model, err));
    nib_status status = nib_plan_open(&plan, model, &as_stored, err);
    if (status == NIB_OK) {
        g.window = nib__min(plan->context, WINDOW);
        status = read_tokens(&g, tokenizer, &ids, err);
    }
    if (status == NIB_OK)
        status = run_model(&g, plan, err);
    nib__tokenizer_ids_free(tokenizer, ids);
    nib_plan_close(plan);
    return status;
}
