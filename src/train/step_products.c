/* SPDX-License-Identifier: Apache-2.0
 *
 * The products of a micro-batch and what makes their operands, on the side of their rows; and what
 * crosses between the sides: buffers, and of the device's layers weights and their gradients.
 */
#include "step.h"

/* ---- places ---- */

/* A worker in a chain sees what lies in its room as if all rows were there. */
char *nib__step_at(const nib_step *s, int place)
{
    const nib_step_place *p = &s->places[place];
    const uint64_t room = s->rows.some ? p->room_at[s->rows.list] : NIB_CHAIN_NONE;
    const nib_step_side *side = &s->sides[p->side];
    if (room != NIB_CHAIN_NONE)
        return s->rows.room + room - (uint64_t)(s->rows.first * p->columns) * sizeof(float);
    return p->apart != NULL ? p->apart : side->block + side->places_at + p->at;
}

char *nib__step_room(const nib_step *s, int side, nib_step_room room)
{
    return s->sides[side].block + s->sides[side].room_at[room];
}

static float *amax_of(const nib_step *s, int side)
{
    return (float *)(void *)nib__step_room(s, side, NIB_ROOM_AMAX);
}

/* ---- between the sides ---- */

nib_status nib__step_move(nib_step *s, const nib_train_node *n, nib_err *err)
{
    const uint64_t bytes = (uint64_t)(s->m * n->columns) * sizeof(float);
    char *from = nib__step_at(s, n->in[0]), *to = nib__step_at(s, n->out[0]);
    return n->side == NIB_SIDE_GPU ? nib__gpu_write(s->workers.gpu, to, from, bytes, err)
                                   : nib__gpu_read(s->workers.gpu, to, from, bytes, err);
}

nib_status nib__step_look(const nib_step *s, int place, const float **out, nib_err *err)
{
    const nib_step_place *p = &s->places[place];
    *out = nib__step_rows(s, place);
    if (p->side == NIB_SIDE_CPU)
        return NIB_OK;
    float *here = (float *)(void *)nib__step_room(s, NIB_SIDE_CPU, NIB_ROOM_LOOK);
    NIB_TRY(nib__gpu_read(s->workers.gpu, here, *out, (uint64_t)(s->m * p->columns) * sizeof(float),
                          err));
    *out = here;
    return NIB_OK;
}

/* ---- operations ---- */

/* f32 rows from the first one that runs. */
static float *rows_of(const nib_step *s, int place)
{
    return nib__step_rows(s, place) + s->rows.first * nib__step_ld(s, place);
}

/* A worker in a chain has its own room for its rows: forms of other products have other lengths. */
static nib_input input_of(const nib_step *s, const nib_train_node *n)
{
    const nib_product *p = &s->products[n->site][n->product];
    const int64_t all = nib__product_rows(s->plan->layers[n->site].layer, n->product, s->m);
    char *const room = s->rows.some ? s->workers.scratch + s->rows_input
                                    : nib__step_room(s, n->side, NIB_ROOM_INPUT);
    nib_input x =
        nib__product_input(p, s->rows.some ? s->rows.end - s->rows.first : all, room, NULL);
    if (p->quant == NULL) {
        x.f32 = rows_of(s, n->in[0]);
        x.ld = nib__step_ld(s, n->in[0]);
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
                                rows_of(s, n->out[0]), nib__step_ld(s, n->out[0]), err);
    const nib_param *w = &s->params->items[n->param];
    const bool here = n->side == NIB_SIDE_CPU;
    float *to =
        here ? s->gradients + w->at : (float *)(void *)nib__step_room(s, n->side, NIB_ROOM_WEIGHT);
    NIB_TRY(
        nib__product_run(p, &s->workers, &x, nib__step_at(s, n->in[1]), NULL, to, p->shape.n, err));
    return here || s->workers.refused != NULL
               ? NIB_OK
               : nib__gpu_read(s->workers.gpu, s->gradients + w->at, to,
                               nib__param_size(w) * sizeof(float), err);
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

/* Of gradients that the device made. */
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

/* A weight where its products run. */
static nib_status bring_weight(nib_step *s, size_t site, const float *weights, const float **x,
                               nib_err *err)
{
    const nib_param *w = &s->params->items[s->params->weight[site]];
    const size_t bias = s->params->bias[site];
    if (nib__step_side(s, site) == NIB_SIDE_CPU)
        return NIB_OK;
    float *to = (float *)(void *)nib__step_room(s, NIB_SIDE_GPU, NIB_ROOM_WEIGHT);
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

static void shift_norms(nib_step *s, const float *weights)
{
    const nib_graph *g = &s->net->graph;
    for (size_t i = 0; i < g->kind_count[NIB_WEIGHT_NORM]; i++) {
        const nib_graph_weight *norm = nib__graph_weight(g, NIB_WEIGHT_NORM, i);
        const float *from = weights + s->params->items[s->params->norm[i]].at;
        for (int64_t j = 0; norm->offset != 0 && j < norm->n; j++)
            s->shifted[s->shifted_at[i] + (uint64_t)j] = from[j] + (float)norm->offset;
    }
}

nib_status nib__step_cast(nib_step *s, const float *weights, nib_err *err)
{
    shift_norms(s, weights);
    for (size_t i = 1; i < s->net->site_count; i++) {
        const float *x = weights + s->params->items[s->params->weight[i]].at;
        if (nib__step_fake_at(s, i))
            x = nib__step_fake_weight(s, i, x);
        NIB_TRY(bring_weight(s, i, weights, &x, err));
        NIB_TRY(nib__step_cast_site(s, i, x, err));
    }
    return NIB_OK;
}
