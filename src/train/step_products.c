/* SPDX-License-Identifier: Apache-2.0
 *
 * The products of a micro-batch and what makes their operands, on the side of their rows; and what
 * crosses between the sides: buffers, and of the device's layers weights and their gradients.
 */
#include "step.h"

/* ---- places ---- */

char *nib__step_place(const nib_step *s, int side, int buffer, int64_t layer)
{
    const nib_step_side *of = &s->sides[side];
    const uint64_t before = nib__step_is_kept(s, buffer) ? (uint64_t)layer * of->each[buffer] : 0;
    return of->block + of->at[buffer] + before;
}

static float *values(const nib_step *s, int side, int buffer, int64_t layer)
{
    return (float *)(void *)nib__step_place(s, side, buffer, layer);
}

float *nib__step_values(const nib_step *s, int buffer, int64_t layer)
{
    return values(s, NIB_SIDE_CPU, buffer, layer);
}

static float *amax_of(const nib_step *s, int side) { return values(s, side, NIB_HELD_AMAX, 0); }

/* ---- between the sides ---- */

nib_status nib__step_move(nib_step *s, const nib_train_node *n, nib_err *err)
{
    float *here = values(s, NIB_SIDE_CPU, n->from, n->layer),
          *there = values(s, NIB_SIDE_GPU, n->from, n->layer);
    const uint64_t bytes = (uint64_t)(s->m * n->columns) * sizeof(float);
    return n->side == NIB_SIDE_GPU ? nib__gpu_write(s->workers.gpu, there, here, bytes, err)
                                   : nib__gpu_read(s->workers.gpu, here, there, bytes, err);
}

/* What the CPU has there is not newer, as the node just read or wrote it. */
nib_status nib__step_look(const nib_step *s, const nib_train_node *n, int buffer, int64_t layer,
                          const float **out, nib_err *err)
{
    float *here = values(s, NIB_SIDE_CPU, buffer, layer);
    *out = here;
    if (n->side == NIB_SIDE_CPU)
        return NIB_OK;
    return nib__gpu_read(s->workers.gpu, here, values(s, NIB_SIDE_GPU, buffer, layer),
                         (uint64_t)(s->m * nib__step_ld(s, n, buffer)) * sizeof(float), err);
}

/* ---- operations ---- */

/* f32 rows on the node's side, from the first one that it runs on. */
static float *rows_of(const nib_step *s, const nib_train_node *n, int buffer, int64_t layer)
{
    return values(s, n->side, buffer, layer) + s->rows.first * nib__step_ld(s, n, buffer);
}

/* A worker in a chain has its own room for its rows: forms of other products have other lengths. */
static nib_input input_of(const nib_step *s, const nib_train_node *n)
{
    const nib_product *p = &s->products[n->site][n->product];
    const int64_t all = nib__product_rows(s->plan->layers[n->site].layer, n->product, s->m);
    char *const room = s->rows.some ? s->workers.scratch + s->rows_input
                                    : nib__step_place(s, n->side, NIB_HELD_INPUT, 0);
    nib_input x =
        nib__product_input(p, s->rows.some ? s->rows.end - s->rows.first : all, room, NULL);
    if (p->quant == NULL) {
        x.f32 = rows_of(s, n, n->from, n->layer);
        x.ld = nib__step_ld(s, n, n->from);
    }
    return x;
}

/* [n] where the product runs, or NULL. */
static const float *bias_of(const nib_step *s, const nib_train_node *n)
{
    const size_t bias = s->params->bias[n->site];
    if (n->product != NIB_PRODUCT_Y || bias == SIZE_MAX)
        return NULL;
    if (n->side == NIB_SIDE_CPU)
        return s->weights + s->params->items[bias].at;
    return (const float *)(const void *)s->packed[n->site][NIB_PACKED_BIAS];
}

static nib_status run_product(nib_step *s, const nib_train_node *n, nib_err *err)
{
    const nib_product *p = &s->products[n->site][n->product];
    const nib_input x = input_of(s, n);
    if (n->product != NIB_PRODUCT_DW)
        return nib__product_run(p, &s->workers, &x, s->packed[n->site][n->product], bias_of(s, n),
                                rows_of(s, n, n->to, n->layer + n->next), s->ld[n->to], err);
    const nib_param *w = &s->params->items[n->param];
    const bool here = n->side == NIB_SIDE_CPU;
    float *to = here ? s->gradients + w->at : values(s, n->side, NIB_HELD_WEIGHT, 0);
    NIB_TRY(nib__product_run(p, &s->workers, &x, s->inputs[n->site], NULL, to, p->shape.n, err));
    return here || s->workers.refused != NULL
               ? NIB_OK
               : nib__gpu_read(s->workers.gpu, s->gradients + w->at, to,
                               nib__param_size(w) * sizeof(float), err);
}

static nib_status run_quant(nib_step *s, const nib_train_node *n, nib_err *err)
{
    const nib_input x = input_of(s, n);
    return nib__product_quant(&s->products[n->site][n->product], &s->workers,
                              rows_of(s, n, n->from, n->layer), nib__step_ld(s, n, n->from),
                              amax_of(s, n->side), &x, err);
}

static nib_status run_cast(nib_step *s, const nib_train_node *n, nib_err *err)
{
    return nib__product_cast(&s->products[n->site][n->product], &s->workers,
                             values(s, n->side, n->from, n->layer), nib__step_ld(s, n, n->from),
                             amax_of(s, n->side), s->inputs[n->site], err);
}

/* Of gradients that the device made. */
static nib_status run_add(nib_step *s, const nib_train_node *n, nib_err *err)
{
    const nib_add a = {.x = values(s, n->side, n->from, n->layer),
                       .y = values(s, n->side, n->to, n->layer),
                       .m = s->m,
                       .width = n->columns,
                       .ldx = s->ld[n->from],
                       .ldy = s->ld[n->to]};
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
        return nib__product_amax(n->row, &s->workers, values(s, n->side, n->from, n->layer), s->m,
                                 n->columns, nib__step_ld(s, n, n->from), amax_of(s, n->side), err);
    default: return run_product(s, n, err);
    }
}

/* ---- weights ---- */

/* A weight where its products run. */
static nib_status bring_weight(nib_step *s, size_t site, const float *weights, const float **x,
                               nib_err *err)
{
    const nib_param *w = &s->params->items[s->params->weight[site]];
    const size_t bias = s->params->bias[site];
    if (nib__step_side(s, site) == NIB_SIDE_CPU)
        return NIB_OK;
    float *to = values(s, NIB_SIDE_GPU, NIB_HELD_WEIGHT, 0);
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

nib_status nib__step_cast(nib_step *s, const float *weights, nib_err *err)
{
    for (size_t i = 1; i < s->net->site_count; i++) {
        const float *x = weights + s->params->items[s->params->weight[i]].at;
        if (nib__step_fake_at(s, i))
            x = nib__step_fake_weight(s, i, x);
        NIB_TRY(bring_weight(s, i, weights, &x, err));
        NIB_TRY(nib__step_cast_site(s, i, x, err));
    }
    return NIB_OK;
}
