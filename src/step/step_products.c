/* SPDX-License-Identifier: Apache-2.0
 *
 * The operations that run on either side (products and the preparation of their operands), and
 * transfers between the sides: buffers, weights and their gradients.
 */
#include "step.h"

#include "portable_math.h"

/* ---- addresses ---- */

/* For scratch of a worker in a chain, returns the address that row 0 would have. */
char *nib__step_at(const nib_step *s, int buffer)
{
    const nib_step_buffer *p = &s->buffers[buffer];
    const uint64_t room = s->rows.is_part ? p->scratch_at[s->rows.list] : NIB_CHAIN_NONE;
    const nib_step_side *side = &s->sides[p->side];
    if (room != NIB_CHAIN_NONE)
        return s->rows.scratch + room - (uint64_t)(s->rows.first * p->columns) * sizeof(float);
    return p->beside_weight != NULL ? p->beside_weight : side->block + side->buffers_at + p->at;
}

char *nib__step_region(const nib_step *s, int side, nib_step_region region)
{
    return s->sides[side].block + s->sides[side].region_at[region];
}

static float *amax_of(const nib_step *s, int side)
{
    return (float *)(void *)nib__step_region(s, side, NIB_REGION_AMAX);
}

/* ---- between the sides ---- */

nib_status nib__step_move(nib_step *s, const nib_train_node *n, nib_err *err)
{
    const uint64_t bytes = (uint64_t)(s->m * n->columns) * sizeof(float);
    char *from = nib__step_at(s, n->in[0]), *to = nib__step_at(s, n->out[0]);
    return n->side == NIB_SIDE_GPU ? nib__gpu_write(s->workers.gpu, to, from, bytes, err)
                                   : nib__gpu_read(s->workers.gpu, to, from, bytes, err);
}

nib_status nib__step_read_buffer(const nib_step *s, int buffer, const float **out, nib_err *err)
{
    const nib_step_buffer *p = &s->buffers[buffer];
    *out = nib__step_rows(s, buffer);
    if (p->side == NIB_SIDE_CPU)
        return NIB_OK;
    float *host = (float *)(void *)nib__step_region(s, NIB_SIDE_CPU, NIB_REGION_OBSERVED);
    NIB_TRY(nib__gpu_read(s->workers.gpu, host, *out, (uint64_t)(s->m * p->columns) * sizeof(float),
                          err));
    *out = host;
    return NIB_OK;
}

/* ---- operations ---- */

/* f32 rows, from the first row to run. */
static float *rows_of(const nib_step *s, int buffer)
{
    return nib__step_rows(s, buffer) + s->rows.first * nib__step_ld(s, buffer);
}

/* In a chain each worker has its own input memory, since encoded rows of other products have other
 * lengths. */
static nib_input input_of(const nib_step *s, const nib_train_node *n)
{
    const nib_product *p = &s->products[n->site][n->product];
    const int64_t all = nib__product_rows(s->plan->layers[n->site].layer, n->product, s->m);
    char *const room = s->rows.is_part ? s->workers.scratch + s->rows_input
                                       : nib__step_region(s, n->side, NIB_REGION_INPUT);
    nib_input x =
        nib__product_input(p, s->rows.is_part ? s->rows.end - s->rows.first : all, room, NULL);
    if (p->quant == NULL) {
        x.f32 = rows_of(s, n->in[0]);
        x.ld = nib__step_ld(s, n->in[0]);
    }
    return x;
}

/* The bias [n] on the side of the product, or NULL. */
static const float *bias_of(const nib_step *s, const nib_train_node *n)
{
    const size_t bias = s->params->bias[n->site];
    if (n->product != NIB_PRODUCT_Y || bias == SIZE_MAX)
        return NULL;
    if (n->side == NIB_SIDE_CPU)
        return s->weights + s->params->items[bias].at;
    return (const float *)(const void *)s->packed[n->site][NIB_PACKED_BIAS];
}

static float *weight_region(const nib_step *s, int side)
{
    return (float *)(void *)nib__step_region(s, side, NIB_REGION_WEIGHT);
}

/* Adds a second gradient of a weight to the first. */
static void add_gradient(const nib_step *s, const nib_param *w, const float *x)
{
    const nib_add a = {.x = x,
                       .y = s->gradients + w->at,
                       .m = w->rows,
                       .width = w->columns,
                       .ldx = w->columns,
                       .ldy = w->columns};
    nib__step_run_parts(s, nib__plan_operation(s->plan, NIB_OP_ADD)->row, &a, a.m, 1);
}

static nib_status run_product(nib_step *s, const nib_train_node *n, nib_err *err)
{
    const nib_product *p = &s->products[n->site][n->product];
    const nib_input x = input_of(s, n);
    if (n->product != NIB_PRODUCT_DW)
        return nib__product_run(p, &s->workers, &x, s->packed[n->site][n->product], bias_of(s, n),
                                rows_of(s, n->out[0]), nib__step_ld(s, n->out[0]), err);
    const nib_param *w = &s->params->items[n->param];
    const bool on_host = n->side == NIB_SIDE_CPU;
    float *const own = n->adds ? weight_region(s, NIB_SIDE_CPU) : s->gradients + w->at,
                 *to = on_host ? own : weight_region(s, n->side);
    NIB_TRY(
        nib__product_run(p, &s->workers, &x, nib__step_at(s, n->in[1]), NULL, to, p->shape.n, err));
    if (s->workers.refused != NULL)
        return NIB_OK;
    if (!on_host)
        NIB_TRY(nib__gpu_read(s->workers.gpu, own, to, nib__param_size(w) * sizeof(float), err));
    if (n->adds)
        add_gradient(s, w, own);
    return NIB_OK;
}

static nib_status run_quant(nib_step *s, const nib_train_node *n, nib_err *err)
{
    const nib_input x = input_of(s, n);
    return nib__product_quant(&s->products[n->site][n->product], &s->workers, rows_of(s, n->in[0]),
                              nib__step_ld(s, n->in[0]), amax_of(s, n->side), &x, err);
}

static nib_status run_cast(nib_step *s, const nib_train_node *n, nib_err *err)
{
    return nib__product_cast(&s->products[n->site][n->product], &s->workers,
                             nib__step_rows(s, n->in[0]), nib__step_ld(s, n->in[0]),
                             amax_of(s, n->side), nib__step_at(s, n->out[0]), err);
}

/* Adds gradients on the device. */
static nib_status run_add(nib_step *s, const nib_train_node *n, nib_err *err)
{
    const nib_add a = {.x = nib__step_rows(s, n->in[0]),
                       .y = nib__step_rows(s, n->out[0]),
                       .m = s->m,
                       .width = n->columns,
                       .ldx = nib__step_ld(s, n->in[0]),
                       .ldy = nib__step_ld(s, n->out[0])};
    return nib__workers_launch(&s->workers, n->row, &a, err);
}

nib_status nib__step_product(nib_step *s, const nib_train_node *n, nib_err *err)
{
    switch (n->op) {
    case NIB_OP_ADD: return run_add(s, n, err);
    case NIB_OP_QUANT:
    case NIB_OP_QUANT_T: return run_quant(s, n, err);
    case NIB_OP_CAST_T: return run_cast(s, n, err);
    case NIB_OP_AMAX:
        return nib__product_amax(n->row, &s->workers, nib__step_rows(s, n->in[0]), s->m, n->columns,
                                 nib__step_ld(s, n->in[0]), amax_of(s, n->side), err);
    default: return run_product(s, n, err);
    }
}

/* ---- weights ---- */

/* Uploads a weight and its bias if the products run on the device; *x then points there. */
static nib_status upload_weight(nib_step *s, size_t site, const float *weights, const float **x,
                                nib_err *err)
{
    const nib_param *w = &s->params->items[s->params->weight[site]];
    const size_t bias = s->params->bias[site];
    if (nib__step_side(s, site) == NIB_SIDE_CPU)
        return NIB_OK;
    float *to = (float *)(void *)nib__step_region(s, NIB_SIDE_GPU, NIB_REGION_WEIGHT);
    NIB_TRY(nib__gpu_write(s->workers.gpu, to, *x, nib__param_size(w) * sizeof(float), err));
    *x = to;
    if (bias == SIZE_MAX)
        return NIB_OK;
    const nib_param *b = &s->params->items[bias];
    return nib__gpu_write(s->workers.gpu, s->packed[site][NIB_PACKED_BIAS], weights + b->at,
                          nib__param_size(b) * sizeof(float), err);
}

nib_status nib__step_cast_site(nib_step *s, size_t site, const float *x, nib_err *err)
{
    const nib_product *products = s->products[site];
    const nib_param *w = &s->params->items[s->params->weight[site]];
    float *amax = amax_of(s, nib__step_side(s, site));
    if (products[NIB_PRODUCT_Y].w_amax || products[NIB_PRODUCT_DX].w_amax)
        NIB_TRY(nib__product_amax(products[0].amax, &s->workers, x, w->rows, w->columns, w->columns,
                                  amax, err));
    for (int p = NIB_PRODUCT_Y; p <= NIB_PRODUCT_DX; p++)
        NIB_TRY(nib__product_cast(&products[p], &s->workers, x, w->columns, amax,
                                  s->packed[site][p], err));
    return NIB_OK;
}

static void form_vectors(nib_step *s, const float *weights)
{
    const nib_graph *g = &s->net->graph;
    for (size_t i = 0; i < g->kind_count[NIB_WEIGHT_NORM]; i++) {
        const nib_graph_weight *norm = nib__graph_weight(g, NIB_WEIGHT_NORM, i);
        const float *from = weights + s->params->items[s->params->norm[i]].at;
        float *to = s->formed + s->formed_at[i];
        const int64_t channels = norm->taps > 0 ? norm->n / norm->taps : 0;
        for (int64_t j = 0; norm->offset != 0 && j < norm->n; j++)
            to[j] = from[j] + (float)norm->offset;
        for (int64_t j = 0; norm->exponential && j < norm->n; j++)
            to[j] = (float)nib__exp((double)from[j]);
        for (int64_t j = 0; norm->taps > 0 && j < norm->n; j++)
            to[j % norm->taps * channels + j / norm->taps] = from[j];
    }
}

const float *nib__step_vector(const nib_step *s, int weight)
{
    const nib_graph_weight *vector = &s->net->graph.weights[weight];
    return nib__step_forms(vector)
               ? s->formed + s->formed_at[vector->index]
               : s->weights + s->params->items[s->params->norm[vector->index]].at;
}

nib_status nib__step_cast(nib_step *s, const float *weights, nib_err *err)
{
    form_vectors(s, weights);
    for (size_t i = 1; i < s->net->site_count; i++) {
        const float *x = weights + s->params->items[s->params->weight[i]].at;
        if (nib__step_fake_at(s, i))
            x = nib__step_fake_weight(s, i, x);
        NIB_TRY(upload_weight(s, i, weights, &x, err));
        NIB_TRY(nib__step_cast_site(s, i, x, err));
    }
    return NIB_OK;
}
