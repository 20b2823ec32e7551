/* SPDX-License-Identifier: Apache-2.0
 *
 * Tunes how weights round, for the method learn. A weight has a place among the levels of its code,
 * first where its stored value lies under the scale of qronos, and its code is the nearest level.
 * Steps move places against the sign of the gradient of the layer's squared error, by half of the
 * distance of two levels in all, so that a weight rounds up or down.
 */
#include "learn_run.h"

#include "learn_slice.h"

#include <inttypes.h>
#include <math.h>

enum { WITH_GRADIENT = 3 }; /* passes over the weights */

/* A weight with codes. */
typedef struct coded {
    nib_weight weight; /* its codes are `codes` */
    const nib_codes *before;
    nib_code_levels levels;
    float *place;  /* [n][k] 0: the lowest level, 1: the next; NULL: its codes stay */
    int8_t *codes; /* [n][k] */
} coded;

typedef struct rounding {
    nib_gptq_run *g;
    nib_learn_text text;
    nib_arena arena;
    size_t layer, begin, end; /* sites [begin, end) */
    coded *weights;           /* [end - begin] */
    const float *target;      /* [tokens][width] what the layer as stored leaves of the batch */
    nib_slice slice;
} rounding;

/* ---- the store ---- */

static size_t part_of(const nib_gptq_run *g, size_t layer)
{
    return nib__learn_part(g) + 2 + layer; /* behind the result and the steps */
}

static bool has_part(const nib_gptq_run *g, size_t layer)
{
    return nib__gptq_store_has(g->store, part_of(g, layer), NULL);
}

/* A record has the layer's errors, before and after, and no codes if they stay. */
static nib_status store(const rounding *r, const double error[2], nib_err *err)
{
    nib_gptq_run *g = r->g;
    const bool is_kept = error[1] < error[0];
    NIB_TRY(nib__gptq_store_begin(g->store, part_of(g, r->layer), err));
    for (size_t i = r->begin; i < r->end; i++) {
        const coded *w = &r->weights[i - r->begin];
        const nib_gptq_codes codes = {
            .site = i,
            .n = w->weight.n,
            .k = is_kept ? w->weight.k : 0,
            .codes = {.codes = w->codes, .objective = {error[0], error[1]}}};
        if (w->place != NULL)
            NIB_TRY(nib__gptq_store_put(g->store, &codes, err));
    }
    return nib__gptq_store_end(g->store, err);
}

static bool is_of_layer(const nib_gptq_run *g, const nib_gptq_codes *c, size_t begin, size_t end)
{
    if (c->site < begin || c->site >= end || !nib__learn_is_learned(g, (size_t)c->site))
        return false;
    const nib_site *at = &g->model->net.sites[c->site];
    return c->n == at->n && (c->k == at->k || c->k == 0) && c->scale_bytes + c->zero_bytes == 0;
}

/* Gives the sites [begin, end) of a layer the codes of its part. */
static nib_status use_part(const nib_gptq_run *g, size_t layer, size_t begin, size_t end,
                           nib_err *err)
{
    const size_t part = part_of(g, layer);
    nib_gptq_codes c;
    for (uint64_t offset = 0; nib__gptq_store_next(g->store, part, &offset, &c);) {
        if (!is_of_layer(g, &c, begin, end))
            return nib__gptq_fail_part(g, part, err);
        if (c.k == 0)
            continue;
        nib_codes *codes = nib__arena_take(g->job->arena, 1, sizeof *codes);
        if (codes == NULL)
            return nib__fail_memory(err, sizeof *codes, "codes");
        *codes = *g->job->layers[c.site].codes;
        codes->codes = c.codes.codes;
        g->job->layers[c.site].codes = codes;
    }
    return NIB_OK;
}

void nib__rounding_found(nib_text *out, const nib_gptq_run *g)
{
    const size_t layers = (size_t)g->model->net.config.layers;
    size_t found = 0;
    for (size_t l = 0; l < layers; l++)
        found += has_part(g, l);
    if (found > 0 && found < layers)
        nib__text_format(out, "; the rounding of %zu of %zu decoder layers is tuned", found,
                         layers);
}

void nib__rounding_note(const nib_gptq_run *g)
{
    size_t tuned = 0, kept = 0;
    double left = 0;
    nib_gptq_codes c;
    for (size_t l = 0; l < (size_t)g->model->net.config.layers; l++) {
        uint64_t offset = 0;
        if (!has_part(g, l) || !nib__gptq_store_next(g->store, part_of(g, l), &offset, &c))
            continue;
        tuned++;
        kept += c.k != 0;
        left += c.k != 0 ? c.codes.objective[1] / c.codes.objective[0] : 0;
    }
    if (kept > 0)
        nib__ledger_add_note(g->job->ledger, "method",
                             "learn: in %zu of %zu decoder layers %d steps of rounding lower the "
                             "squared error of what the layer leaves, by %.1f %% on average%s",
                             kept, tuned, NIB_LEARN_ROUNDING, 100 * (1 - left / (double)kept),
                             kept < tuned ? "; the others keep the codes of qronos" : "");
    else if (tuned > 0)
        nib__ledger_add_note(g->job->ledger, "method",
                             "learn: %d steps of rounding lower the squared error of no decoder "
                             "layer, so all codes are those of qronos",
                             NIB_LEARN_ROUNDING);
}

/* ---- cost ---- */

static bool is_tuned(const nib_gptq_run *g, size_t begin, size_t end)
{
    while (begin < end && !nib__learn_is_learned(g, begin))
        begin++;
    return g->job->rounds && begin < end;
}

double nib__rounding_cost(const nib_gptq_run *g)
{
    const nib_learn_text text = nib__learn_text(g);
    double sum = 0;
    for (int64_t l = 0; l < g->model->net.config.layers; l++) {
        nib_gptq_cost cost;
        size_t begin, end;
        nib__gptq_find_sites(g, l, &begin, &end);
        nib__gptq_cost_of(&cost, g, begin, end);
        if (is_tuned(g, begin, end) && !has_part(g, (size_t)l))
            sum += cost.pass * (double)text.tokens *
                   (WITH_GRADIENT * NIB_LEARN_ROUNDING + 2 * (double)text.batches);
    }
    return sum;
}

/* ---- codes ---- */

/* Where a value lies among the levels; beyond the last ones, in their distance. */
static float place_of(const nib_code_levels *levels, float value)
{
    int low = 0, high = levels->count - 1;
    while (high - low > 1) {
        const int middle = (low + high) / 2;
        if (levels->value[middle] <= value)
            low = middle;
        else
            high = middle;
    }
    return (float)low + (value - levels->value[low]) / (levels->value[high] - levels->value[low]);
}

static float place_weight(const coded *w, float x, float scale, float zero)
{
    const bool is_int = w->weight.scheme.zero == NIB_ZERO_INT;
    const float value = scale != 0 ? (x - (is_int ? 0 : zero)) / scale : 0;
    return place_of(&w->levels, value + (is_int ? zero : 0));
}

typedef struct placing {
    coded *w;
    const float *stored; /* [n][k] */
} placing;

static void place_rows(void *ctx, int worker, int64_t begin, int64_t end)
{
    const placing *p = ctx;
    const nib_weight *w = &p->w->weight;
    const int64_t size = nib__scheme_group_size(&w->scheme, w->k);
    (void)worker;
    for (int64_t i = begin; i < end; i++)
        for (int64_t j = 0; j < w->k; j++)
            p->w->place[i * w->k + j] =
                place_weight(p->w, p->stored[i * w->k + j], nib__weight_scale(w, i, j / size),
                             nib__weight_zero(w, i, j / size));
}

typedef struct coding {
    coded *w;
    const float *gradient; /* [n][k]; NULL: places stay */
    float rate, *values;   /* [n][k] result: of the codes */
    bool keeps;            /* the codes stay */
} coding;

/* Moves the places of a group's weights in row i, columns [from, to), against their gradients. */
static void move_group(const coding *c, int64_t i, int64_t from, int64_t to, float scale)
{
    const float step = scale < 0 ? -c->rate : c->rate;
    for (int64_t at = i * c->w->weight.k + from; at < i * c->w->weight.k + to; at++)
        c->w->place[at] -= c->gradient[at] > 0 ? step : c->gradient[at] < 0 ? -step : 0;
}

static void code_row(const coding *c, int64_t i)
{
    const nib_weight *w = &c->w->weight;
    const int64_t size = nib__scheme_group_size(&w->scheme, w->k);
    const float last = (float)(c->w->levels.count - 1);
    for (int64_t j = 0; j < w->k && c->gradient != NULL; j += size)
        move_group(c, i, j, nib__min(j + size, w->k), nib__weight_scale(w, i, j / size));
    for (int64_t at = i * w->k; at < (i + 1) * w->k; at++)
        c->w->codes[at] = c->w->levels.code[(int)fminf(fmaxf(rintf(c->w->place[at]), 0), last)];
}

static void code_rows(void *ctx, int worker, int64_t begin, int64_t end)
{
    const coding *c = ctx;
    (void)worker;
    for (int64_t i = begin; i < end; i++) {
        if (!c->keeps)
            code_row(c, i);
        nib__weight_row(&c->w->weight, i, c->values + i * c->w->weight.k);
    }
}

/* How set_codes chooses them. */
typedef enum how {
    AS_BEFORE, /* those of qronos */
    BY_PLACE,
    MOVED, /* by places that the last gradients move first */
} how;

/* Gives the slice the values of codes. */
static nib_status set_codes(rounding *r, how by, float rate, nib_err *err)
{
    for (size_t i = r->begin; i < r->end; i++) {
        coded *w = &r->weights[i - r->begin];
        coding c = {.w = w,
                    .gradient = by == MOVED ? nib__slice_gradient(&r->slice, i) : NULL,
                    .rate = rate,
                    .values = nib__slice_weight(&r->slice, i),
                    .keeps = by == AS_BEFORE};
        if (w->before == NULL || (by != AS_BEFORE && w->place == NULL))
            continue;
        nib__pool_run(r->g->model->engine->pool, w->weight.n, 8, false, code_rows, &c);
    }
    return nib__step_cast(&r->slice.step, r->slice.weights, err);
}

/* ---- errors ---- */

/* The squared error of a token. */
static float miss(void *ctx, int64_t t, float *out, int64_t columns, float scale, bool gradient)
{
    const rounding *r = ctx;
    const float *target = r->target + t * columns;
    double sum = 0;
    for (int64_t i = 0; i < columns; i++) {
        const float apart = out[i] - target[i];
        sum += (double)apart * (double)apart;
        if (gradient)
            out[i] = 2 * scale * apart;
    }
    return (float)sum;
}

/* Runs a batch through the layer; *error: the sum over its tokens. */
static nib_status run_batch(rounding *r, int64_t batch, bool wants_gradient, double *error,
                            nib_err *err)
{
    const int64_t floats = r->text.tokens * r->g->model->net.config.width;
    float *inputs = nib__slice_inputs(&r->slice);
    r->target = r->g->stored.state + batch * floats;
    if (r->layer == 0)
        NIB_TRY(nib__learn_embed(r->g, &r->text, batch, inputs, err));
    else
        memcpy(inputs, r->g->coded.state + batch * floats, (size_t)floats * sizeof *inputs);
    NIB_TRY(nib__slice_run(&r->slice, 1, wants_gradient, error, err));
    return nib__gptq_count(
        r->g, r->g->cost.pass * (double)r->text.tokens * (wants_gradient ? WITH_GRADIENT : 1), err);
}

static nib_status measure(rounding *r, double *error, nib_err *err)
{
    *error = 0;
    for (int64_t i = 0; i < r->text.batches; i++) {
        double sum;
        NIB_TRY(run_batch(r, i, false, &sum, err));
        *error += sum;
    }
    return NIB_OK;
}

/* ---- a layer ---- */

static nib_status open_weight(rounding *r, size_t site, nib_err *err)
{
    const nib_gptq_run *g = r->g;
    coded *w = &r->weights[site - r->begin];
    nib_quantizer q;
    const nib_codes *before = g->job->layers[site].codes;
    const nib_site *at = &g->model->net.sites[site];
    const uint64_t count = (uint64_t)at->n * (uint64_t)at->k;
    if (before == NULL)
        return NIB_OK;
    NIB_TRY(nib__gptq_quantizer(&q, g, site, err));
    w->before = before;
    w->codes = nib__arena_take(&r->arena, count, 1);
    if (nib__learn_is_learned(g, site))
        w->place = nib__arena_take(&r->arena, count, sizeof *w->place);
    if (w->codes == NULL || (w->place == NULL && nib__learn_is_learned(g, site)))
        return nib__fail_memory(err, count * (1 + sizeof *w->place), "how a weight rounds");
    memcpy(w->codes, before->codes, (size_t)count);
    nib__quantizer_describe_weight(&w->weight, &q, at->n, w->codes, before->scales, before->zeros);
    w->weight.tensor_scale = before->tensor_scale;
    if (w->place == NULL)
        return NIB_OK;
    placing p = {.w = w, .stored = nib__slice_weight(&r->slice, site)};
    nib__quant_levels(&w->levels, &q);
    nib__pool_run(g->model->engine->pool, at->n, 8, false, place_rows, &p);
    return NIB_OK;
}

static nib_status tune_opened(rounding *r, nib_err *err)
{
    double error[2], none;
    r->weights = nib__arena_take(&r->arena, r->end - r->begin, sizeof *r->weights);
    if (r->weights == NULL)
        return nib__fail_memory(err, (r->end - r->begin) * sizeof *r->weights, "a layer");
    for (size_t i = r->begin; i < r->end; i++)
        NIB_TRY(open_weight(r, i, err));
    NIB_TRY(set_codes(r, AS_BEFORE, 0, err));
    NIB_TRY(measure(r, &error[0], err));
    NIB_TRY(set_codes(r, BY_PLACE, 0, err));
    for (int step = 0; step < NIB_LEARN_ROUNDING; step++) {
        const float rate =
            (1 - (float)step / NIB_LEARN_ROUNDING) / NIB_LEARN_ROUNDING; /* falls to 0 */
        NIB_TRY(run_batch(r, step % r->text.batches, true, &none, err));
        NIB_TRY(set_codes(r, MOVED, rate, err));
    }
    NIB_TRY(measure(r, &error[1], err));
    return store(r, error, err);
}

static nib_status tune_layer(rounding *r, nib_err *err)
{
    const nib_step_loss loss = {.of_token = miss, .ctx = r};
    const nib_gptq_run *g = r->g;
    NIB_TRY(nib__slice_open(&r->slice, &g->model->net, g->runner.plan, (int64_t)r->layer,
                            r->text.sequences, r->text.length, &loss, err));
    nib__arena_init(&r->arena, &g->model->engine->allocator, 0);
    const nib_status status = tune_opened(r, err);
    nib__arena_free(&r->arena);
    nib__slice_close(&r->slice);
    return status;
}

nib_status nib__rounding_tune(nib_gptq_run *g, size_t layer, size_t begin, size_t end, nib_err *err)
{
    rounding r = {.g = g, .text = nib__learn_text(g), .layer = layer, .begin = begin, .end = end};
    if (!is_tuned(g, begin, end))
        return NIB_OK;
    if (!has_part(g, layer))
        NIB_TRY(tune_layer(&r, err));
    return use_part(g, layer, begin, end, err);
}
