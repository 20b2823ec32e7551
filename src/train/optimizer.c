/* SPDX-License-Identifier: Apache-2.0
 *
 * The optimizer's state and steps.
 */
#include "optimizer.h"

#include "portable_math.h"

#include <math.h>

static uint64_t block_bytes(const nib_params *p) { return p->total * sizeof(float); }
static uint64_t parts_bytes(const nib_params *p)
{
    return (p->total / NIB_TRAIN_PART + 1) * sizeof(double);
}

nib_status nib__optimizer_open(nib_optimizer *out, const nib_train_config *config,
                               const nib_params *params, const nib_assignment *plan,
                               nib_engine *engine, nib_err *err)
{
    *out = (nib_optimizer){.config = config,
                           .params = params,
                           .pool = engine->pool,
                           .adamw = nib__plan_operation(plan, NIB_OP_ADAMW)->row,
                           .squares = nib__plan_operation(plan, NIB_OP_SQUARES)->row};
    const uint64_t bytes = block_bytes(params);
    out->m = nib__block_take(bytes);
    out->v = nib__block_take(bytes);
    out->parts = nib__block_take(parts_bytes(params));
    if (out->m && out->v && out->parts)
        return NIB_OK;
    nib__optimizer_close(out);
    return nib__fail_memory(err, 2 * bytes, "the optimizer's moments");
}

void nib__optimizer_close(nib_optimizer *o)
{
    if (!o->params)
        return;
    nib__block_free(o->m, block_bytes(o->params));
    nib__block_free(o->v, block_bytes(o->params));
    nib__block_free(o->parts, parts_bytes(o->params));
    *o = (nib_optimizer){0};
}

uint64_t nib__optimizer_bytes(const nib_params *p) { return 2 * block_bytes(p) + parts_bytes(p); }

/* ---- schedule ---- */

double nib__rate_factor(const nib_train_config *c, int64_t step)
{
    const nib_train_stages s = nib__train_stages(c);
    const int64_t falls = c->steps + 1 - s.decay;
    if (step < s.warmup)
        return (double)(step + 1) / (double)s.warmup;
    if (step < falls || s.decay == 0)
        return 1;
    const double pi = 3.141592653589793;
    const double progress = fmin(1, (double)(step + 1 - falls) / (double)s.decay);
    const double left = c->decay == NIB_DECAY_LINEAR ? 1 - progress
                        : c->decay == NIB_DECAY_SQRT ? 1 - sqrt(progress)
                                                     : 0.5 * (1 + nib__cos(pi * progress));
    return c->min_factor + (1 - c->min_factor) * left;
}

/* ---- norm ---- */

typedef struct squares_part {
    const nib_kernel *row;
    const nib_squares *args;
} squares_part;

static void job_part(void *ctx, int worker, int64_t begin, int64_t end)
{
    const squares_part *p = ctx;
    (void)worker;
    p->row->run.squares(p->args, begin, end);
}

double nib__gradient_squares(nib_optimizer *o, const float *gradient, size_t param)
{
    const nib_param *p = &o->params->items[param];
    const int64_t count = (int64_t)nib__param_size(p), parts = nib__ceil_div(count, NIB_TRAIN_PART);
    const nib_squares a = {.x = gradient + p->at, .count = count, .out = o->parts};
    squares_part part = {o->squares, &a};
    nib__pool_run(o->pool, parts, 1, false, job_part, &part);
    double sum = 0;
    for (int64_t i = 0; i < parts; i++)
        sum += o->parts[i];
    return sum;
}

double nib__gradient_norm(nib_optimizer *o, const float *gradient, size_t *bad)
{
    double sum = 0;
    size_t first = o->params->count;
    for (size_t i = 0; i < o->params->count; i++) {
        const double own = nib__gradient_squares(o, gradient, i);
        if (!isfinite(own) && first == o->params->count)
            first = i;
        sum += own;
    }
    if (bad)
        *bad = first;
    return sqrt(sum);
}

/* ---- a step ---- */

typedef struct adamw_part {
    const nib_kernel *row;
    const nib_adamw *args;
} adamw_part;

static void job_adamw(void *ctx, int worker, int64_t begin, int64_t end)
{
    const adamw_part *p = ctx;
    (void)worker;
    p->row->run.adamw(p->args, begin, end);
}

/* The parameters from `first` on that are next to each other and have gradients; or one that has
 * none. */
static size_t range_end(const nib_optimizer *o, size_t first)
{
    const nib_param *items = o->params->items;
    size_t end = first + 1;
    while (nib__param_has_gradient(&items[first]) && end < o->params->count &&
           nib__param_has_gradient(&items[end]))
        end++;
    return end;
}

static void update_range(nib_optimizer *o, const nib_adamw *all, size_t first, size_t end)
{
    const nib_params *params = o->params;
    const uint64_t at = params->items[first].at,
                   past = end < params->count ? params->items[end].at : params->total;
    nib_adamw a = *all;
    if (!nib__param_has_gradient(&params->items[first]))
        return;
    a.p += at, a.m += at, a.v += at, a.g += at;
    a.count = (int64_t)(past - at);
    adamw_part part = {o->adamw, &a};
    nib__pool_run(o->pool, a.count, NIB_TRAIN_PART, false, job_adamw, &part);
}

/* x^n by squaring: the same bits on every system. */
static double power(double x, int64_t n)
{
    double result = 1;
    for (; n > 0; n >>= 1, x *= x)
        if (n & 1)
            result *= x;
    return result;
}

void nib__optimizer_skip(nib_optimizer *o)
{
    o->steps++;
    o->skipped++;
}

double nib__optimizer_step(nib_optimizer *o, float *weights, const float *gradient, double clip)
{
    const nib_train_config *c = o->config;
    const double rate = c->rate * nib__rate_factor(c, o->steps);
    o->steps++;
    const int64_t taken = o->steps - o->skipped;
    const nib_adamw a = {.p = weights,
                         .m = o->m,
                         .v = o->v,
                         .g = gradient,
                         .count = (int64_t)o->params->total,
                         .clip = (float)clip,
                         .shrink = (float)(1 - rate * c->weight_decay),
                         .rest1 = (float)(1 - c->beta1),
                         .beta2 = (float)c->beta2,
                         .rest2 = (float)(1 - c->beta2),
                         .step = (float)(rate / (1 - power(c->beta1, taken))),
                         .root = (float)sqrt(1 - power(c->beta2, taken)),
                         .eps = (float)c->eps};
    for (size_t i = 0, end; i < o->params->count; i = end) {
        end = range_end(o, i);
        update_range(o, &a, i, end);
    }
    return rate;
}
