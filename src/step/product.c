/* SPDX-License-Identifier: Apache-2.0
 *
 * Chooses rows for products and runs them in parts. Rows of x and outputs are independent, so
 * splitting a product does not change a bit.
 */
#include "product.h"

#include "cast.h"
#include "lower.h"
#include "operation.h"

/* ---- choosing ---- */

/* The scheme of a product's sides: the layer's, but bf16 for the weight's gradient if the config
 * wants it in high precision. Then fp8 with a scale per row uses one scale for the whole weight in
 * dx (torchao's rowwise_with_gw_hp). */
static nib_scheme side_scheme(const nib_scheme *done, int which, bool wgrad_with_hp)
{
    nib_scheme scheme = *done;
    if (!wgrad_with_hp || !nib__scheme_is_quantized(done))
        return scheme;
    if (which == NIB_PRODUCT_DW)
        return (nib_scheme){.code = NIB_CODE_BF16, .symmetric = true, .act_symmetric = true};
    if (which == NIB_PRODUCT_DX && scheme.code == NIB_CODE_E4M3)
        scheme.group = NIB_GROUP_TENSOR;
    return scheme;
}

/* torchao's fp8 recipes: tensorwise has e5m2 gradients; rowwise has scales that are powers of
 * two. */
static void set_fp8(nib_product *p, const nib_scheme *done, int which)
{
    const bool tensorwise = done->group == NIB_GROUP_TENSOR;
    if (p->shape.scheme.code != NIB_CODE_E4M3)
        return;
    p->x_amax = tensorwise;
    p->w_amax = p->shape.scheme.group == NIB_GROUP_TENSOR;
    p->e5m2 = tensorwise && which != NIB_PRODUCT_Y;
    p->two_power = !tensorwise;
}

static nib_type scale_type(nib_code code)
{
    return code == NIB_CODE_E4M3  ? NIB_TYPE_F32
           : code == NIB_CODE_MX8 ? NIB_TYPE_E8M0
                                  : NIB_TYPE_NONE;
}

nib_status nib__product_find(nib_product *out, const nib_assignment *plan,
                             const nib_layer_plan *uses, int which, int64_t m, bool wgrad_with_hp,
                             nib_err *err)
{
    const nib_machine *machine = nib__plan_place(plan, uses->uses[which].kernel);
    const nib_layer *layer = uses->layer;
    const nib_scheme scheme = side_scheme(&uses->done, which, wgrad_with_hp);
    const bool y = which == NIB_PRODUCT_Y, dw = which == NIB_PRODUCT_DW;
    *out = (nib_product){.row = uses->uses[which].kernel, /* of a step: y, dx, dw */
                         .input = scheme.code == NIB_CODE_F32 ? NIB_TYPE_F32 : NIB_TYPE_BF16};
    out->shape = (nib_weight){.scheme = scheme,
                              .n = y ? layer->n : layer->k,
                              .k = y    ? layer->k
                                   : dw ? m
                                        : layer->n,
                              .scale_type = scale_type(scheme.code)};
    set_fp8(out, &uses->done, which);
    const bool made = dw || out->input != NIB_TYPE_F32 || scheme.act != NIB_ACT_FLOAT;
    if (made)
        out->quant = nib__plan_operand(dw ? NIB_OP_QUANT_T : NIB_OP_QUANT, &scheme, out->input,
                                       NULL, machine, &plan->without);
    out->cast = nib__plan_operand(y ? NIB_OP_CAST : NIB_OP_CAST_T, &scheme, out->input,
                                  out->row->packing, machine, &plan->without);
    out->amax = nib__plan_op(NIB_OP_AMAX, NIB_TYPE_F32, machine, &plan->without);
    return out->cast != NULL && (out->quant != NULL || !made) &&
                   (out->amax != NULL || (!out->x_amax && !out->w_amax))
               ? NIB_OK
               : nib__fail(err, NIB_NOT_AS_ASKED, "%s: no kernel prepares the operands of %s",
                           layer->name, out->row->name);
}

int64_t nib__product_rows(const nib_layer *layer, int which, int64_t m)
{
    return which == NIB_PRODUCT_DW ? layer->n : m;
}

nib_input nib__product_input(const nib_product *p, int64_t rows, char *at, uint64_t *bytes)
{
    nib_input x;
    nib__input_place(&x, &p->shape.scheme, p->input, rows, p->shape.k, at, bytes);
    x.e5m2 = p->e5m2;
    return x;
}

uint64_t nib__product_scratch(const nib_product *p, int64_t rows)
{
    const nib_linear args = {.w = &p->shape, .x = nib__product_input(p, rows, NULL, NULL)};
    return p->row->scratch ? p->row->scratch(&args) : 0;
}

/* ---- running ---- */

typedef struct part {
    const nib_kernel *row;
    const void *args;
} part;

static void job_part(void *ctx, int worker, int64_t begin, int64_t end)
{
    const part *p = ctx;
    (void)worker;
    nib__ops[p->row->op].run(p->row, p->args, begin, end, NULL);
}

int64_t nib__parts_grain(const nib_workers *w, int64_t count, int64_t step)
{
    enum { PARTS_PER_WORKER = 4 }; /* so that an interrupted worker delays the others little */
    const int64_t parts = (int64_t)nib__pool_threads(w->pool) * PARTS_PER_WORKER;
    return nib__round_up(nib__max(1, nib__ceil_div(count, parts)), step);
}

nib_status nib__workers_launch(const nib_workers *w, const nib_kernel *row, const void *args,
                               nib_err *err)
{
    if (w->refused == NULL)
        return nib__gpu_run(w->gpu, row, args, err);
    const nib_status status = nib__gpu_prepare(w->gpu, row, args, err);
    if (status != NIB_OK)
        *w->refused = row;
    return status;
}

/* Runs on all threads, on this one, or on the device. */
static nib_status run_parts(const nib_kernel *row, const nib_workers *w, const void *args,
                            int64_t count, int64_t step, nib_err *err)
{
    part p = {row, args};
    if (row->gpu != NULL)
        return nib__workers_launch(w, row, args, err);
    if (w->pool == NULL)
        job_part(&p, 0, 0, count);
    else
        nib__pool_run(w->pool, count, nib__parts_grain(w, count, step), false, job_part, &p);
    return NIB_OK;
}

/* First the maxima of parts of the rows, then the maximum of these. */
nib_status nib__product_amax(const nib_kernel *row, const nib_workers *w, const float *x,
                             int64_t rows, int64_t width, int64_t ldx, float *parts, nib_err *err)
{
    const int64_t count = nib__ceil_div(rows, NIB_TRAIN_ROWS);
    const nib_amax each = {.x = x, .rows = rows, .width = width, .ldx = ldx, .out = parts + 1},
                   all = {.x = parts + 1, .rows = 1, .width = count, .ldx = count, .out = parts};
    NIB_TRY(run_parts(row, w, &each, count, 1, err));
    return run_parts(row, w, &all, 1, 1, err);
}

enum { PANEL = 16 /* parts of columns begin at multiples of this many tokens or outputs */ };

nib_quant nib__product_quant_args(const nib_product *p, const float *x, int64_t ldx,
                                  const float *amax, const nib_input *out)
{
    return (nib_quant){.x = x,
                       .ldx = ldx,
                       .out = *out,
                       .symmetric = true,
                       .mx_floor = p->shape.scheme.mx_floor,
                       .e5m2 = p->e5m2,
                       .two_power = p->two_power,
                       .amax = p->x_amax ? amax : NULL};
}

nib_cast nib__product_cast_args(const nib_product *p, const float *x, int64_t ldx,
                                const float *amax, void *to)
{
    return (nib_cast){.x = x,
                      .ldx = ldx,
                      .w = &p->shape,
                      .packed = to,
                      .amax = p->w_amax ? amax : NULL,
                      .two_power = p->two_power};
}

nib_status nib__product_quant(const nib_product *p, const nib_workers *w, const float *x,
                              int64_t ldx, const float *amax, const nib_input *out, nib_err *err)
{
    const nib_quant a = nib__product_quant_args(p, x, ldx, amax, out);
    return run_parts(p->quant, w, &a, out->m, p->quant->op == NIB_OP_QUANT_T ? PANEL : 1, err);
}

nib_status nib__product_cast(const nib_product *p, const nib_workers *w, const float *x,
                             int64_t ldx, const float *amax, void *to, nib_err *err)
{
    const nib_cast a = nib__product_cast_args(p, x, ldx, amax, to);
    return run_parts(p->cast, w, &a, p->shape.n, PANEL, err);
}

typedef struct linear_part {
    const nib_kernel *row;
    const nib_workers *workers;
    const nib_linear *whole;
    int64_t tiles, row_parts; /* tiles of x rows, divided evenly among row_parts */
    int64_t columns;          /* outputs of a part */
} linear_part;

/* Rows r0..r1 of an input. */
static nib_input input_rows(const nib_input *x, const nib_scheme *scheme, int64_t r0, int64_t r1)
{
    nib_input out = *x;
    out.m = r1 - r0;
    if (x->f32)
        out.f32 = x->f32 + r0 * x->ld;
    if (x->bf16)
        out.bf16 = x->bf16 + r0 * x->ld;
    if (x->codes)
        out.codes = x->codes + r0 * x->ld;
    if (x->scale)
        out.scale = x->scale + r0 * (nib__act_is_f8_blocks(scheme->act) ? x->groups : 1);
    return out;
}

enum { TILE = 12, ROWS = 240 }; /* as in linear_float.h; affect speed only */

static void job_linear(void *ctx, int worker, int64_t begin, int64_t end)
{
    const linear_part *p = ctx;
    for (int64_t i = begin; i < end; i++) {
        const int64_t of = i % p->row_parts, n0 = i / p->row_parts * p->columns;
        const int64_t r0 = of * p->tiles / p->row_parts * TILE,
                      r1 = (of + 1) * p->tiles / p->row_parts * TILE;
        nib_linear a = *p->whole;
        a.x = input_rows(&p->whole->x, &a.w->scheme, r0, nib__min(r1, p->whole->x.m));
        a.y = p->whole->y + r0 * a.ldy;
        p->row->run.linear(&a, n0, nib__min(n0 + p->columns, a.w->n),
                           p->workers->scratch + (uint64_t)worker * p->workers->scratch_bytes);
    }
}

nib_input nib__product_input_rows(const nib_product *p, const nib_input *x, int64_t first,
                                  int64_t end)
{
    return input_rows(x, &p->shape.scheme, first, end);
}

void nib__product_part(const nib_product *p, const nib_input *x, const void *packed,
                       const float *bias, float *y, int64_t ldy, int64_t n0, int64_t n1,
                       void *scratch)
{
    nib_weight weight;
    nib__cast_view(&weight, p->row, &p->shape, packed);
    const nib_linear a = {
        .w = &weight, .packed = packed, .x = *x, .y = y, .ldy = ldy, .bias = bias};
    p->row->run.linear(&a, n0, n1, scratch);
}

/* Parts are ranges of rows of x with all outputs, as long as there are enough rows: a part reorders
 * its rows into tiles once, and converts all weights. So there are as few parts as possible, but of
 * equal size and a multiple of the threads, so that all threads end together. */
nib_status nib__product_run(const nib_product *p, const nib_workers *w, const nib_input *x,
                            const void *packed, const float *bias, float *y, int64_t ldy,
                            nib_err *err)
{
    nib_weight weight;
    nib__cast_view(&weight, p->row, &p->shape, packed);
    const nib_linear a = {
        .w = &weight, .packed = packed, .x = *x, .y = y, .ldy = ldy, .bias = bias};
    if (p->row->gpu != NULL)
        return nib__workers_launch(w, p->row, &a, err);
    if (w->pool == NULL) {
        const nib_float_mode old = nib__float_mode_flush();
        p->row->run.linear(&a, 0, weight.n, w->scratch);
        nib__float_mode_restore(old);
        return NIB_OK;
    }
    const int64_t threads = nib__pool_threads(w->pool);
    linear_part l = {.row = p->row, .workers = w, .whole = &a};
    l.tiles = nib__ceil_div(x->m, TILE);
    l.row_parts = nib__min(l.tiles, nib__round_up(nib__ceil_div(x->m, ROWS), threads));
    const int64_t step = nib__max(1, p->row->n_step), steps = nib__ceil_div(weight.n, step);
    const int64_t wanted = nib__max(1, nib__ceil_div(threads, nib__max(1, l.row_parts)));
    l.columns = nib__ceil_div(steps, nib__min(steps, wanted)) * step;
    const int64_t count = l.row_parts * nib__ceil_div(weight.n, l.columns);
    nib__pool_run(w->pool, count, 1, true, job_linear, &l);
    return NIB_OK;
}
