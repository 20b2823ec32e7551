/* SPDX-License-Identifier: Apache-2.0
 *
 * Estimates what rounding does to the products of a model's linear layers, without running the
 * model. The errors of weights and inputs are independent, so their squares add.
 */
#include "advise.h"
#include "quantizer.h"
#include "sample.h"

#include <math.h>

enum { ROWS = 16 /* sampled rows of a weight, and inputs per layer */ };

typedef struct estimate {
    const nib_plan *plan;
    float *normal, *rows; /* [ROWS][k] of the widest layer */
    nib_quantized to;
    double *weights, *inputs; /* per layer: squared error by squared signal */
    nib_err *err;
} estimate;

/* Rounding error of rows [count][k] in a scheme. */
static nib_status estimate_rounding(double *out, estimate *e, const nib_scheme *scheme,
                                    nib_type source, const float *rows, int64_t count, int64_t k)
{
    nib_quantizer q;
    float range[2] = {0, 0};
    NIB_TRY(nib__quantizer_init(&q, scheme, source, k, e->err));
    if (nib__quantizer_needs_scan(&q)) {
        NIB_TRY(nib__quantizer_scan(&q, rows, 0, count, range, e->err));
        NIB_TRY(nib__quantizer_set_range(&q, range, e->err));
    }
    e->to.signal = e->to.error = 0;
    NIB_TRY(nib__quantizer_quantize_rows(&q, rows, 0, count, &e->to, e->err));
    *out = e->to.signal > 0 ? e->to.error / e->to.signal : 0;
    return NIB_OK;
}

/* Rounding error of values in another float type. */
static double float_rounding(const float *rows, nib_code code, int64_t count)
{
    double signal = 0, error = 0;
    for (int64_t i = 0; i < count && code != NIB_CODE_F32; i++) {
        const float x = rows[i];
        const float y = code == NIB_CODE_BF16 ? nib__bf16_to_f32(nib__f32_to_bf16(x))
                                              : nib__f16_to_f32(nib__f32_to_f16(x));
        signal += (double)x * (double)x;
        error += ((double)x - (double)y) * ((double)x - (double)y);
    }
    return signal > 0 ? error / signal : 0;
}

/* Samples evenly spaced rows of the stored weight; normal values if none is stored. */
static void draw_rows(const float **rows, nib_type *source, estimate *e, size_t site, int64_t count)
{
    const nib_network *net = &e->plan->model->net;
    const nib_site *s = &net->sites[site];
    *rows = e->normal;
    *source = NIB_TYPE_F32;
    if (!net->checkpoint)
        return;
    for (int64_t i = 0; i < count; i++)
        nib__weight_row(&s->weight, i * s->n / count, e->rows + i * s->k);
    *rows = e->rows;
    *source = nib__float_type(s->stored.code);
}

static nib_status estimate_weights(estimate *e, size_t site)
{
    const nib_layer_plan *p = &e->plan->assignment.layers[site];
    const int64_t k = p->layer->k, count = nib__min(ROWS, p->layer->n);
    const float *rows;
    nib_type source;
    if (nib__scheme_same_weight(&p->done, &p->layer->stored))
        return NIB_OK;
    draw_rows(&rows, &source, e, site, count);
    if (nib__scheme_is_quantized(&p->done))
        return estimate_rounding(&e->weights[site], e, &p->done, source, rows, count, k);
    e->weights[site] = float_rounding(rows, p->done.code, count * k);
    return NIB_OK;
}

/* The scheme of inputs as if they were weights: one scale per token is one per row. */
static nib_scheme scheme_of_inputs(const nib_scheme *s)
{
    nib_scheme in = {.code = nib__acts[s->act].code, .symmetric = s->act_symmetric};
    in.group = nib__act_block(s->act) > 0 ? nib__act_block(s->act) : NIB_GROUP_ROW;
    in.zero = in.symmetric ? NIB_ZERO_NONE : NIB_ZERO_INT;
    in.mx_floor = s->mx_floor;
    in.block_only = s->block_only;
    return in;
}

static nib_status estimate_inputs(estimate *e, size_t site)
{
    const nib_layer_plan *p = &e->plan->assignment.layers[site];
    const nib_scheme in = scheme_of_inputs(&p->done);
    if (p->done.act == NIB_ACT_FLOAT)
        return NIB_OK;
    return estimate_rounding(&e->inputs[site], e, &in, NIB_TYPE_F32, e->normal, ROWS, p->layer->k);
}

/* True for layers with the same input error and, without stored weights, the same weight error. */
static bool is_alike(const nib_layer_plan *a, const nib_layer_plan *b)
{
    return a->layer->k == b->layer->k &&
           nib__min(ROWS, a->layer->n) == nib__min(ROWS, b->layer->n) &&
           nib__scheme_equal(&a->done, &b->done) &&
           nib__scheme_equal(&a->layer->stored, &b->layer->stored);
}

static nib_status estimate_all(double *out, estimate *e)
{
    const nib_layer_plan *layers = e->plan->assignment.layers;
    const bool real = e->plan->model->net.checkpoint != NULL;
    double sum = 0, all = 0;
    for (size_t i = 1; i < e->plan->assignment.count;
         i++) { /* the first, the embedding, multiplies nothing */
        const double size = (double)layers[i].layer->n * (double)layers[i].layer->k;
        size_t same = 1;
        while (same < i && !is_alike(&layers[same], &layers[i]))
            same++;
        e->inputs[i] = e->inputs[same];
        e->weights[i] = real ? 0 : e->weights[same];
        if (same == i)
            NIB_TRY(estimate_inputs(e, i));
        if (same == i || real)
            NIB_TRY(estimate_weights(e, i));
        sum += size * (e->weights[i] + e->inputs[i]);
        all += size;
    }
    *out = all > 0 ? sqrt(sum / all) : 0;
    return NIB_OK;
}

nib_status nib__advise_error(double *out, const nib_plan *plan, nib_err *err)
{
    estimate e = {.plan = plan, .err = err};
    nib_arena arena;
    size_t values = ROWS;
    for (size_t i = 0; i < plan->assignment.count; i++)
        values = (size_t)nib__max((int64_t)values, ROWS * plan->layers[i].k);
    nib__arena_init(&arena, &plan->model->engine->allocator, 0);
    e.normal = nib__arena_take(&arena, values, sizeof *e.normal);
    e.rows = nib__arena_take(&arena, values, sizeof *e.rows);
    e.to.codes = nib__arena_take(&arena, values, sizeof *e.to.codes);
    e.to.scales =
        nib__arena_take(&arena, values, sizeof(float)); /* as many as values in groups of 1 */
    e.to.zeros = nib__arena_take(&arena, values, sizeof(float));
    e.weights = nib__arena_take(&arena, plan->assignment.count, sizeof *e.weights);
    e.inputs = nib__arena_take(&arena, plan->assignment.count, sizeof *e.inputs);
    const bool ok =
        e.normal && e.rows && e.to.codes && e.to.scales && e.to.zeros && e.weights && e.inputs;
    for (size_t i = 0; ok && i < values; i++)
        e.normal[i] = (float)nib__random_normal(0, 0, (int64_t)i);
    const nib_status status =
        ok ? estimate_all(out, &e) : nib__fail_memory(err, values * 17, "rows of weights");
    nib__arena_free(&arena);
    return status;
}
