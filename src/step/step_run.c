/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs a micro-batch: fills in pointers and sizes of each operation and shares its parts among the
 * threads. Kernels give the same bits whichever thread computes which part.
 */
#include "step_experts.h"
#include "step_states.h"

#include "operation.h"

#include <inttypes.h>
#include <math.h>

static float *rows(const nib_step *s, int buffer) { return nib__step_rows(s, buffer); }
static int64_t ld(const nib_step *s, int buffer) { return nib__step_ld(s, buffer); }

static nib_cache cache_of(const nib_step *s, const nib_train_node *n, int buffer)
{
    nib_cache cache = nib__step_cache(s, n->layer);
    char *keys = s->cache + s->buffers[buffer].at * (cache.value_dim > 0 ? 1 : 2) * s->cache_side;
    cache.keys = keys;
    cache.values = cache.value_dim > 0 ? NULL : keys + s->cache_side;
    return cache;
}

/* ---- parts, as jobs of the pool ---- */

typedef struct part {
    const nib_step *s;
    const nib_kernel *row;
    const void *args;
} part;

static void *scratch_of(const nib_step *s, int worker)
{
    return s->workers.scratch + (uint64_t)worker * s->workers.scratch_bytes;
}

static void job_part(void *ctx, int worker, int64_t begin, int64_t end)
{
    const part *p = ctx;
    nib__ops[p->row->op].run(p->row, p->args, begin, end, scratch_of(p->s, worker));
}

enum { LINE = 16 /* f32 in a cache line: granularity of parts by column */ };

void nib__step_run_parts(const nib_step *s, const nib_kernel *row, const void *args, int64_t count,
                         int64_t multiple)
{
    part p = {s, row, args};
    nib__pool_run(s->engine->pool, count, nib__parts_grain(&s->workers, count, multiple), false,
                  job_part, &p);
}

void nib__step_run_items(const nib_step *s, const nib_kernel *row, const void *args, int64_t count)
{
    part p = {s, row, args};
    nib__pool_run(s->engine->pool, count, 1, true, job_part, &p);
}

void nib__step_clear_others(const nib_step *s, int buffer, int64_t first, int64_t count)
{
    const int64_t from = s->rows.is_part ? s->rows.first : 0,
                  to = s->rows.is_part ? s->rows.end : s->m, all = ld(s, buffer);
    for (int64_t i = from; i < to; i++) {
        float *row = rows(s, buffer) + i * all;
        memset(row, 0, (size_t)first * sizeof *row);
        memset(row + first + count, 0, (size_t)(all - first - count) * sizeof *row);
    }
}

void nib__step_run_tokens(const nib_step *s, const nib_kernel *row, const void *args, int64_t each)
{
    part p = {s, row, args};
    if (s->rows.is_part)
        job_part(&p, 0, s->rows.first * each, s->rows.end * each);
    else
        nib__step_run_parts(s, row, args, s->m * each, 1);
}

static void run_tokens(const nib_step *s, const nib_train_node *n, const void *args, int64_t each)
{
    nib__step_run_tokens(s, n->row, args, each);
}

static float *gradient_of(const nib_step *s, const nib_train_node *n)
{
    return s->gradients + s->params->items[n->param].at;
}

static const float *weight_of(const nib_step *s, const nib_train_node *n)
{
    return s->weights + s->params->items[n->param].at;
}

/* ---- one operation ---- */

static void run_fake(nib_step *s, const nib_train_node *n)
{
    nib__step_fake_input(s, n->site, s->m, rows(s, n->in[0]), ld(s, n->in[0]),
                         nib__step_region(s, NIB_SIDE_CPU, NIB_REGION_INPUT), rows(s, n->out[0]),
                         ld(s, n->out[0]), (uint8_t *)nib__step_at(s, n->out[1]));
}

static void run_fake_dx(nib_step *s, const nib_train_node *n)
{
    nib__step_fake_dx(s, n->site, s->m, (const uint8_t *)nib__step_at(s, n->in[1]),
                      rows(s, n->out[0]), ld(s, n->out[0]));
}

static void run_fake_dw(nib_step *s, const nib_train_node *n)
{
    nib__step_fake_dw(s, n->site, weight_of(s, n), gradient_of(s, n));
}

static const int32_t *ids_of(const nib_step *s, const nib_train_node *n)
{
    return n->of->ahead ? s->ids_ahead : s->batch->ids;
}

static void run_embed(nib_step *s, const nib_train_node *n)
{
    const nib_param *p = &s->params->items[n->param];
    const nib_weight table = {.scheme = {.code = NIB_CODE_F32},
                              .n = p->rows,
                              .k = p->columns,
                              .layout = NIB_LAYOUT_FLOAT,
                              .codes = weight_of(s, n)};
    const nib_embed a = {
        .table = &table, .ids = ids_of(s, n), .out = rows(s, n->out[0]), .m = s->m};
    run_tokens(s, n, &a, 1);
}

/* A norm over heads has one row per head, contiguous. */
static int64_t row_ld(const nib_step *s, const nib_train_node *n, int buffer)
{
    return n->rows > 1 ? n->columns / n->rows : ld(s, buffer);
}

static const nib_graph_weight *norm_of(const nib_step *s, const nib_train_node *n)
{
    static const nib_graph_weight none = {.heads = 1};
    if (n->of->weight == NIB_NO_ID)
        return &none;
    return &s->net->graph.weights[n->of->weight];
}

/* A norm's weight, plus its offset if it has one. A norm without a weight gets ones. */
static const float *norm_weight(const nib_step *s, const nib_train_node *n)
{
    return n->of->weight == NIB_NO_ID ? s->ones : nib__step_vector(s, n->of->weight);
}

static int64_t norm_width(const nib_step *s, const nib_train_node *n)
{
    return n->of->part ? norm_of(s, n)->n : n->columns / n->rows;
}

static float norm_eps(const nib_step *s, const nib_train_node *n)
{
    const double own = norm_of(s, n)->eps;
    return (float)(own > 0 ? own : s->net->config.norm_eps);
}

/* Columns that a norm of the first ones passes on: x, plus `sum` if there is one. */
static void pass_columns(const nib_step *s, const nib_train_node *n, const float *x, int64_t ldx,
                         const float *sum, float *out, int64_t ldo)
{
    const int64_t first = s->rows.is_part ? s->rows.first : 0,
                  end = s->rows.is_part ? s->rows.end : s->m;
    for (int64_t i = first; n->of->part && i < end; i++)
        for (int64_t j = norm_width(s, n); j < n->columns; j++)
            out[i * ldo + j] = sum != NULL ? x[i * ldx + j] + sum[i * ldo + j] : x[i * ldx + j];
}

static void run_norm(nib_step *s, const nib_train_node *n)
{
    const size_t bias =
        n->of->weight != NIB_NO_ID ? s->params->norm_bias[norm_of(s, n)->index] : SIZE_MAX;
    const nib_norm a = {.x = rows(s, n->in[0]),
                        .out = rows(s, n->out[0]),
                        .weight = norm_weight(s, n),
                        .bias = bias != SIZE_MAX ? s->weights + s->params->items[bias].at : NULL,
                        .centered = norm_of(s, n)->centered,
                        .weights = norm_of(s, n)->heads,
                        .rows = s->m * n->rows,
                        .width = norm_width(s, n),
                        .ldx = row_ld(s, n, n->in[0]),
                        .ldo = row_ld(s, n, n->out[0]),
                        .eps = norm_eps(s, n)};
    run_tokens(s, n, &a, n->rows);
    pass_columns(s, n, a.x, a.ldx, NULL, a.out, a.ldo);
}

static void run_rope(nib_step *s, const nib_train_node *n)
{
    const nib_config *c = &s->net->config;
    const nib_rope a = {.x = rows(s, n->out[0]) + n->of->channel,
                        .position = s->position,
                        .cos_sin = s->rope + (uint64_t)n->of->table * s->rope_size,
                        .m = s->m,
                        .heads = n->rows,
                        .head_dim = n->columns / n->rows,
                        .dims = nib__config_table_dims(c, n->of->table),
                        .interleaved = c->rope_interleaved,
                        .ldx = ld(s, n->out[0]),
                        .inverse = n->inverse};
    run_tokens(s, n, &a, 1);
}

static void run_store_kv(nib_step *s, const nib_train_node *n)
{
    const nib_store_kv a = {.k = rows(s, n->in[0]),
                            .v = n->in[1] >= 0 ? rows(s, n->in[1]) : NULL,
                            .ld = ld(s, n->in[0]),
                            .m = s->m,
                            .sequence = s->sequence,
                            .position = s->position,
                            .cache = cache_of(s, n, n->out[0])};
    run_tokens(s, n, &a, 1);
}

static void run_attn(nib_step *s, const nib_train_node *n)
{
    const nib_attn a = {.q = rows(s, n->in[0]),
                        .out = rows(s, n->out[0]),
                        .ldq = ld(s, n->in[0]),
                        .ldo = ld(s, n->out[0]),
                        .m = s->m,
                        .heads = n->rows,
                        .sequence = s->sequence,
                        .position = s->position,
                        .cache = cache_of(s, n, n->in[1]),
                        .scale = (float)n->of->scale,
                        .cap = (float)n->of->cap,
                        .window = n->of->window,
                        .chunked = n->of->chunked,
                        .sinks = n->param != SIZE_MAX ? weight_of(s, n) : NULL,
                        .lse = rows(s, n->out[1])};
    /* heads that share keys stay together, with enough tokens to reuse what is read of them */
    enum { TOKENS = 32 };
    part p = {s, n->row, &a};
    nib__pool_run(s->engine->pool, s->m * a.heads, TOKENS * a.heads, true, job_part, &p);
}

static void run_attn_dx(nib_step *s, const nib_train_node *n)
{
    const nib_attn_dx a = {.q = rows(s, n->in[1]),
                           .out = rows(s, n->in[2]),
                           .dout = rows(s, n->in[0]),
                           .lse = rows(s, n->in[3]),
                           .dq = rows(s, n->out[0]),
                           .dk = rows(s, n->out[1]),
                           .dv = n->out[2] >= 0 ? rows(s, n->out[2]) : NULL,
                           .ldq = ld(s, n->in[1]),
                           .ldo = ld(s, n->in[2]),
                           .ldkv = ld(s, n->out[1]),
                           .m = s->m,
                           .heads = n->rows,
                           .documents = s->batch->documents,
                           .start = s->batch->start,
                           .cache = cache_of(s, n, n->in[4]),
                           .scale = (float)n->of->scale,
                           .cap = (float)n->of->cap,
                           .window = n->of->window,
                           .chunked = n->of->chunked};
    nib__step_run_items(s, n->row, &a, a.documents * a.cache.kv_heads);
}

static void run_sinks_dw(nib_step *s, const nib_train_node *n)
{
    const nib_sinks_dw a = {.sinks = weight_of(s, n),
                            .dout = rows(s, n->in[0]),
                            .out = rows(s, n->in[1]),
                            .lse = rows(s, n->in[2]),
                            .dw = gradient_of(s, n),
                            .m = s->m,
                            .heads = n->rows,
                            .dim = n->columns / n->rows,
                            .ldo = ld(s, n->in[1]),
                            .ldd = ld(s, n->in[0])};
    nib__step_run_parts(s, n->row, &a, a.heads, 1);
}

/* Whether the gate of a token is that of all its columns. */
static bool has_one_gate(const nib_step *s, const nib_train_node *n)
{
    const nib_graph_value *values = s->net->graph.values;
    return n->of->in[1] >= 0 && values[n->of->in[0]].columns < values[n->of->out].columns;
}

static void run_swiglu(nib_step *s, const nib_train_node *n)
{
    const nib_swiglu a = {.gate = rows(s, n->in[0]),
                          .up = n->in[1] >= 0 ? rows(s, n->in[1]) : NULL,
                          .activation = n->of->activation,
                          .alpha = (float)n->of->scale,
                          .limit = (float)n->of->cap,
                          .out = rows(s, n->out[0]),
                          .m = s->m,
                          .width = n->columns,
                          .one_gate = has_one_gate(s, n),
                          .ld = ld(s, n->in[0]),
                          .ldu = n->in[1] >= 0 ? ld(s, n->in[1]) : 0,
                          .ldo = ld(s, n->out[0])};
    run_tokens(s, n, &a, 1);
}

static void run_swiglu_dx(nib_step *s, const nib_train_node *n)
{
    const nib_swiglu_dx a = {.gate = rows(s, n->in[1]),
                             .up = n->in[2] >= 0 ? rows(s, n->in[2]) : NULL,
                             .dy = rows(s, n->in[0]),
                             .dgate = rows(s, n->out[0]),
                             .dup = n->out[1] >= 0 ? rows(s, n->out[1]) : NULL,
                             .activation = n->of->activation,
                             .alpha = (float)n->of->scale,
                             .limit = (float)n->of->cap,
                             .one_gate = has_one_gate(s, n),
                             .m = s->m,
                             .width = ld(s, n->in[0]),
                             .ld = ld(s, n->in[1]),
                             .ldu = n->in[2] >= 0 ? ld(s, n->in[2]) : 0,
                             .ldy = ld(s, n->in[0])};
    run_tokens(s, n, &a, 1);
    if (a.ld > a.width)
        nib__step_clear_others(s, n->out[0], 0, a.width);
}

static void run_gather(nib_step *s, const nib_train_node *n)
{
    const nib_gather a = {.x = rows(s, n->in[0]),
                          .out = rows(s, n->out[0]),
                          .order = n->of->order,
                          .m = s->m,
                          .width = n->columns,
                          .ldx = ld(s, n->in[0]),
                          .ldo = ld(s, n->out[0])};
    run_tokens(s, n, &a, 1);
}

static void run_gather_dx(nib_step *s, const nib_train_node *n)
{
    const nib_gather_dx a = {.dy = rows(s, n->in[0]),
                             .order = n->of->order,
                             .sum = n->in[1] >= 0 ? rows(s, n->in[1]) : NULL,
                             .dx = rows(s, n->out[0]),
                             .m = s->m,
                             .width = ld(s, n->in[0]),
                             .ldy = ld(s, n->in[0]),
                             .lddx = ld(s, n->out[0])};
    run_tokens(s, n, &a, 1);
}

/* Joins two rows of each token, or splits the gradient of both. */
static void run_hidden(nib_step *s, const nib_train_node *n)
{
    const int joined = n->inverse ? n->in[0] : n->out[0];
    const int *const halves = n->inverse ? n->out : n->in;
    for (int half = 0, at = 0; half < 2; at += (int)ld(s, halves[half]), half++)
        for (int64_t i = 0; i < s->m; i++) {
            float *both = rows(s, joined) + i * ld(s, joined) + at,
                  *one = rows(s, halves[half]) + i * ld(s, halves[half]);
            memcpy(n->inverse ? one : both, n->inverse ? both : one,
                   (size_t)ld(s, halves[half]) * sizeof *one);
        }
}

static void run_add(nib_step *s, const nib_train_node *n)
{
    const nib_add a = {.x = rows(s, n->in[0]),
                       .y = rows(s, n->out[0]),
                       .m = s->m,
                       .width = n->columns,
                       .ldx = ld(s, n->in[0]),
                       .ldy = ld(s, n->out[0])};
    run_tokens(s, n, &a, 1);
}

/* The factor of a scale, times the number of its layer if it has one. */
static float scale_factor(const nib_step *s, const nib_train_node *n)
{
    return (float)n->of->scale * (n->param != SIZE_MAX ? *weight_of(s, n) : 1.0f);
}

static void run_scale(nib_step *s, const nib_train_node *n)
{
    const nib_scale a = {.x = rows(s, n->in[0]),
                         .out = rows(s, n->out[0]),
                         .m = s->m,
                         .width = n->columns,
                         .ldx = ld(s, n->in[0]),
                         .ldo = ld(s, n->out[0]),
                         .scale = scale_factor(s, n),
                         .cap = (float)n->of->cap};
    run_tokens(s, n, &a, 1);
}

static void run_scale_dx(nib_step *s, const nib_train_node *n)
{
    const nib_scale_dx a = {.x = n->in[1] >= 0 ? rows(s, n->in[1]) : NULL,
                            .dy = rows(s, n->in[0]),
                            .dx = rows(s, n->out[0]),
                            .m = s->m,
                            .width = n->columns,
                            .ldx = n->in[1] >= 0 ? ld(s, n->in[1]) : 0,
                            .ldy = ld(s, n->in[0]),
                            .lddx = ld(s, n->out[0]),
                            .scale = scale_factor(s, n),
                            .cap = (float)n->of->cap};
    run_tokens(s, n, &a, 1);
}

static void run_norm_dx(nib_step *s, const nib_train_node *n)
{
    const nib_norm_dx a = {.x = rows(s, n->in[0]),
                           .dy = rows(s, n->in[1]),
                           .weight = norm_weight(s, n),
                           .centered = n->out[2] >= 0,
                           .weights = norm_of(s, n)->heads,
                           .mean = n->out[2] >= 0 ? rows(s, n->out[2]) : NULL,
                           .sum = n->in[2] >= 0 ? rows(s, n->in[2]) : NULL,
                           .dx = rows(s, n->out[0]),
                           .inverse = rows(s, n->out[1]),
                           .rows = s->m * n->rows,
                           .width = norm_width(s, n),
                           .ldx = row_ld(s, n, n->in[0]),
                           .ldy = row_ld(s, n, n->in[1]),
                           .lddx = row_ld(s, n, n->out[0]),
                           .eps = norm_eps(s, n)};
    run_tokens(s, n, &a, n->rows);
    pass_columns(s, n, a.dy, a.ldy, a.sum, a.dx, a.lddx);
}

static void run_norm_dw(nib_step *s, const nib_train_node *n)
{
    const nib_norm_dw a = {.x = rows(s, n->in[0]),
                           .dy = rows(s, n->in[1]),
                           .inverse = rows(s, n->in[2]),
                           .mean = n->in[3] >= 0 ? rows(s, n->in[3]) : NULL,
                           .dw = gradient_of(s, n),
                           .weights = norm_of(s, n)->heads,
                           .rows = s->m * n->rows,
                           .width = norm_width(s, n),
                           .ldx = row_ld(s, n, n->in[0]),
                           .ldy = row_ld(s, n, n->in[1])};
    nib__step_run_parts(s, n->row, &a, a.width * a.weights, LINE);
}

static void run_bias_dw(nib_step *s, const nib_train_node *n)
{
    const nib_bias_dw a = {.dy = rows(s, n->in[0]),
                           .db = gradient_of(s, n),
                           .m = s->m * n->rows,
                           .n = n->columns / n->rows,
                           .ldy = row_ld(s, n, n->in[0])};
    nib__step_run_parts(s, n->row, &a, a.n, LINE);
}

static void run_embed_dw(nib_step *s, const nib_train_node *n)
{
    const nib_embed_dw a = {.ids = ids_of(s, n),
                            .dx = rows(s, n->in[0]),
                            .d = gradient_of(s, n),
                            .m = s->m,
                            .width = n->columns};
    nib__step_run_parts(s, n->row, &a, n->columns, LINE);
}

typedef struct own_loss {
    const nib_step *s;
    const nib_train_node *n;
} own_loss;

static void job_own_loss(void *ctx, int worker, int64_t begin, int64_t end)
{
    const own_loss *l = ctx;
    const nib_step *s = l->s;
    const nib_step_loss *loss = &s->options.loss;
    (void)worker;
    for (int64_t t = begin; t < end; t++)
        rows(s, l->n->out[1])[t] =
            loss->of_token(loss->ctx, t, rows(s, l->n->out[0]) + t * ld(s, l->n->out[0]),
                           l->n->columns, s->scale, s->gradients != NULL);
}

static void run_own_loss(nib_step *s, const nib_train_node *n)
{
    own_loss l = {s, n};
    if (s->rows.is_part)
        job_own_loss(&l, 0, s->rows.first, s->rows.end);
    else
        nib__pool_run(s->engine->pool, s->m, 1, false, job_own_loss, &l);
}

/* Of the sum over the draft head's targets, so that its mean counts as that of the text does. */
static float draft_scale(const nib_step *s)
{
    const double each = (double)s->m / (double)nib__max(s->drafts, 1);
    return (float)(s->net->train.draft_weight * each * (double)s->scale);
}

static void run_xent(nib_step *s, const nib_train_node *n)
{
    if (s->options.loss.of_token != NULL) {
        run_own_loss(s, n);
        return;
    }
    const nib_xent a = {.x = rows(s, n->out[0]),
                        .target = n->ahead ? s->targets_ahead : s->batch->targets,
                        .loss = rows(s, n->out[1]),
                        .m = s->m,
                        .vocab = n->columns,
                        .ldx = ld(s, n->out[0]),
                        .scale = n->ahead ? draft_scale(s) : s->scale,
                        .gradient = s->gradients != NULL};
    run_tokens(s, n, &a, 1);
}

nib_status nib__step_node(nib_step *s, const nib_train_node *n, nib_err *err)
{
    static void (*const runs[NIB_OP_COUNT])(nib_step *, const nib_train_node *) = {
        [NIB_OP_EMBED] = run_embed,
        [NIB_OP_NORM] = run_norm,
        [NIB_OP_FAKE] = run_fake,
        [NIB_OP_FAKE_DX] = run_fake_dx,
        [NIB_OP_FAKE_DW] = run_fake_dw,
        [NIB_OP_ROPE] = run_rope,
        [NIB_OP_STORE_KV] = run_store_kv,
        [NIB_OP_ATTN] = run_attn,
        [NIB_OP_ATTN_DX] = run_attn_dx,
        [NIB_OP_SWIGLU] = run_swiglu,
        [NIB_OP_ADD] = run_add,
        [NIB_OP_SWIGLU_DX] = run_swiglu_dx,
        [NIB_OP_XENT] = run_xent,
        [NIB_OP_NORM_DX] = run_norm_dx,
        [NIB_OP_NORM_DW] = run_norm_dw,
        [NIB_OP_BIAS_DW] = run_bias_dw,
        [NIB_OP_SCALE] = run_scale,
        [NIB_OP_SCALE_DX] = run_scale_dx,
        [NIB_OP_EMBED_DW] = run_embed_dw,
        [NIB_OP_SINKS_DW] = run_sinks_dw,
        [NIB_OP_GATHER] = run_gather,
        [NIB_OP_HIDDEN] = run_hidden,
        [NIB_OP_GATHER_DX] = run_gather_dx,
        [NIB_OP_DELTA_GATES] = nib__step_delta_gates,
        [NIB_OP_DELTA_GATES_DX] = nib__step_delta_gates_dx,
        [NIB_OP_SSM_GATES] = nib__step_ssm_gates,
        [NIB_OP_SSM_GATES_DX] = nib__step_ssm_gates_dx,
        [NIB_OP_GATED_DELTA] = nib__step_recurrence,
        [NIB_OP_GATED_DELTA_DX] = nib__step_recurrence_dx,
        [NIB_OP_SSM] = nib__step_recurrence,
        [NIB_OP_SSM_DX] = nib__step_recurrence_dx,
        [NIB_OP_SHORT_CONV] = nib__step_short_conv,
        [NIB_OP_SHORT_CONV_DX] = nib__step_short_conv_dx,
        [NIB_OP_SHORT_CONV_DW] = nib__step_short_conv_dw,
        [NIB_OP_ROUTE] = nib__step_route,
        [NIB_OP_DISPATCH] = nib__step_dispatch,
        [NIB_OP_COMBINE] = nib__step_combine,
        [NIB_OP_ROUTE_DX] = nib__step_route_dx,
        [NIB_OP_ROUTE_DW] = nib__step_route_dw,
        [NIB_OP_COMBINE_DW] = nib__step_combine_dw,
        [NIB_OP_ROUTE_SUMS] = nib__step_route_sums,
        [NIB_OP_BALANCE] = nib__step_balance};
    if (n->op == NIB_OP_MOVE)
        return nib__step_move(s, n, err);
    if (nib__step_of_experts(n->of)) {
        nib__step_experts(s, n);
        return NIB_OK;
    }
    if (n->side == NIB_SIDE_GPU || runs[n->op] == NULL)
        return nib__step_product(s, n, err);
    runs[n->op](s, n);
    return NIB_OK;
}

/* ---- a micro-batch ---- */

nib_status nib__step_reserve_batch(nib_step *s, const nib_micro_batch *b, nib_err *err)
{
    int64_t blocks = 0;
    for (int64_t d = 0; d < b->documents; d++)
        blocks += nib__ceil_div(b->start[d + 1] - b->start[d], NIB_CACHE_BLOCK);
    return nib__step_reserve(s, b->documents, blocks, err);
}

/* What the draft head reads and predicts at a token: the one after it, and the one after that, if
 * the document goes on. The last token of a document, which no other reads there, stands for the
 * next. */
static void look_ahead(nib_step *s, const nib_micro_batch *b, int32_t i, int32_t end)
{
    const bool last = i + 1 == end;
    s->ids_ahead[i] = b->ids[last ? i : i + 1];
    s->targets_ahead[i] = last ? -1 : b->targets[i + 1];
    s->drafts += s->targets_ahead[i] >= 0;
}

/* Sets the document and position of each token and the cache blocks of each document. */
static nib_status place_documents(nib_step *s, const nib_micro_batch *b, nib_err *err)
{
    NIB_TRY(nib__step_reserve_batch(s, b, err));
    int32_t next = 0;
    s->drafts = 0;
    for (int64_t d = 0; d < b->documents; d++) {
        const int32_t first = b->start[d];
        for (int32_t i = first; i < b->start[d + 1]; i++) {
            s->sequence[i] = (int32_t)d;
            s->position[i] = i - first;
            if (s->ids_ahead != NULL)
                look_ahead(s, b, i, b->start[d + 1]);
            if (s->position[i] % NIB_CACHE_BLOCK == 0)
                s->tables[d * s->table_ld + s->position[i] / NIB_CACHE_BLOCK] = next++;
        }
    }
    return NIB_OK;
}

static double sum_loss(const nib_step *s, int buffer)
{
    const float *loss = rows(s, buffer);
    double sum = 0;
    for (int64_t i = 0; i < s->m; i++)
        sum += (double)loss[i];
    return sum;
}

/* The gradient of an embedding that is not also the head is added to zeros. Some parameters have
 * none, and models with experts of unequal numbers leave gaps in their load. */
static void clear_gradients(nib_step *s)
{
    const nib_params *params = s->params;
    const uint64_t load = nib__load_block(&params->load) - params->load.at;
    for (size_t i = 0; i < params->count; i++) {
        const nib_param *p = &params->items[i];
        if (!nib__param_has_gradient(p) || (i == params->weight[0] && !s->net->tied))
            memset(s->gradients + p->at, 0, (size_t)nib__param_size(p) * sizeof(float));
    }
    memset(s->gradients + params->load.at, 0, (size_t)load * sizeof(float));
}

static nib_status notify_watch(const nib_step *s, const nib_train_node *n, bool done, nib_err *err)
{
    return s->watch ? s->watch->observe(s->watch->ctx, n, done, err) : NIB_OK;
}

static nib_status run_alone(nib_step *s, size_t at, nib_err *err)
{
    const nib_train_node *n = &s->nodes[at];
    NIB_TRY(notify_watch(s, n, false, err));
    const uint64_t from = nib__now_ns();
    NIB_TRY(nib__step_node(s, n, err));
    if (s->timed && n->side == NIB_SIDE_GPU)
        NIB_TRY(nib__gpu_finish(s->workers.gpu, err));
    s->node_ns[at] += nib__now_ns() - from;
    return notify_watch(s, n, true, err);
}

nib_status nib__step_run(nib_step *s, const float *weights, const nib_micro_batch *batch,
                         float scale, float *gradients, nib_losses *losses, nib_err *err)
{
    NIB_TRY(place_documents(s, batch, err));
    s->batch = batch;
    s->weights = weights;
    s->gradients = gradients;
    s->scale = scale;
    const int list = gradients != NULL;
    const nib_chains *chains = &s->chains[list];
    if (gradients)
        clear_gradients(s);
    for (size_t i = 0; i < chains->count; i++) {
        const nib_chain *c = &chains->items[i];
        if (c->end - c->first > 1 && !s->watch)
            nib__step_chain(s, list, i);
        else
            for (size_t at = c->first; at < c->end; at++)
                NIB_TRY(run_alone(s, at, err));
    }
    if (s->workers.gpu)
        NIB_TRY(nib__gpu_finish(s->workers.gpu, err));
    *losses = (nib_losses){.text = sum_loss(s, s->loss)};
    if (s->drafts > 0)
        losses->draft = sum_loss(s, s->draft_loss) / (double)s->drafts;
    return NIB_OK;
}
