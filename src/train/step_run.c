/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs a micro-batch: for each operation fills in pointers and sizes, and shares its parts among
 * the threads. Which thread computes what changes no bit: rows see to that.
 */
#include "step.h"

#include <inttypes.h>
#include <math.h>

/* Of the CPU: operations without weights run there. */
static char *place(const nib_step *s, int buffer, int64_t layer)
{
    return nib__step_place(s, NIB_SIDE_CPU, buffer, layer);
}

static float *values(const nib_step *s, int buffer, int64_t layer)
{
    return nib__step_values(s, buffer, layer);
}

static nib_cache cache_of(const nib_step *s, int64_t layer)
{
    const nib_config *c = &s->net->config;
    const uint64_t at = s->options.checkpointing == NIB_AC_FULL ? 0 : (uint64_t)layer;
    char *keys = s->cache + at * 2 * s->cache_side;
    return (nib_cache){.keys = keys,
                       .values = keys + s->cache_side,
                       .type = s->plan->dtype,
                       .tables = s->tables,
                       .table_ld = s->table_ld,
                       .kv_heads = c->kv_heads,
                       .head_dim = c->head_dim,
                       .block_heads = c->kv_heads};
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
    const nib_run *run = &p->row->run;
    switch (p->row->op) {
    case NIB_OP_EMBED: run->embed(p->args, begin, end); break;
    case NIB_OP_NORM: run->norm(p->args, begin, end); break;
    case NIB_OP_ROPE: run->rope(p->args, begin, end); break;
    case NIB_OP_COPY: run->store_kv(p->args, begin, end); break;
    case NIB_OP_SWIGLU: run->swiglu(p->args, begin, end); break;
    case NIB_OP_ADD: run->add(p->args, begin, end); break;
    case NIB_OP_ATTN: run->attn(p->args, begin, end, scratch_of(p->s, worker)); break;
    case NIB_OP_NORM_DX: run->norm_dx(p->args, begin, end); break;
    case NIB_OP_NORM_DW: run->norm_dw(p->args, begin, end); break;
    case NIB_OP_SWIGLU_DX: run->swiglu_dx(p->args, begin, end); break;
    case NIB_OP_ATTN_DX: run->attn_dx(p->args, begin, end, scratch_of(p->s, worker)); break;
    case NIB_OP_EMBED_DW: run->embed_dw(p->args, begin, end); break;
    case NIB_OP_BIAS_DW: run->bias_dw(p->args, begin, end); break;
    case NIB_OP_XENT: run->xent(p->args, begin, end); break;
    default: break; /* lowering makes no other; products are product.c's */
    }
}

enum { LINE = 16 /* f32 in a cache line: columns of a part */ };

static void run_parts(const nib_step *s, const nib_kernel *row, const void *args, int64_t count,
                      int64_t step, bool flush)
{
    part p = {s, row, args};
    if (s->rows.some)
        job_part(&p, 0, s->rows.first, s->rows.end);
    else
        nib__pool_run(s->engine->pool, count, nib__parts_grain(&s->workers, count, step), flush,
                      job_part, &p);
}

/* ---- one operation ---- */

static void run_fake(nib_step *s, const nib_train_node *n)
{
    const nib_param *w = &s->params->items[s->params->weight[n->site]];
    uint8_t *mask = (uint8_t *)place(s, NIB_KEPT_MASKS, 0) + s->fake[n->site].mask_at;
    if (n->op == NIB_OP_FAKE)
        nib__step_fake_input(s, n->site, values(s, n->from, n->layer), s->ld[n->from],
                             place(s, NIB_HELD_INPUT, 0), values(s, n->to, 0),
                             nib__step_ld(s, n, n->to), mask);
    else if (n->op == NIB_OP_FAKE_DX)
        nib__step_fake_dx(s, n->site, mask, values(s, n->to, n->layer), s->ld[n->to]);
    else
        nib__step_fake_dw(s, n->site, s->weights + w->at, s->gradients + w->at);
}

static void run_embed(nib_step *s, const nib_train_node *n)
{
    const nib_param *p = &s->params->items[n->param];
    const nib_weight table = {.scheme = {.code = NIB_CODE_F32},
                              .n = p->rows,
                              .k = p->columns,
                              .store = NIB_STORE_FLOAT,
                              .codes = s->weights + p->at};
    const nib_embed a = {
        .table = &table, .ids = s->batch->ids, .out = values(s, n->to, 0), .m = s->m};
    run_parts(s, n->row, &a, s->m, 1, false);
}

static void run_norm(nib_step *s, const nib_train_node *n)
{
    const nib_norm a = {.x = values(s, n->from, n->layer),
                        .out = values(s, n->to, n->layer),
                        .weight = s->weights + s->params->items[n->param].at,
                        .rows = s->m,
                        .width = n->columns,
                        .ldx = s->ld[n->from],
                        .ldo = s->ld[n->to],
                        .eps = (float)s->net->config.norm_eps};
    run_parts(s, n->row, &a, s->m, 1, false);
}

static void run_rope(nib_step *s, const nib_train_node *n)
{
    const int64_t head_dim = s->net->config.head_dim;
    const nib_rope a = {.x = values(s, n->to, n->layer),
                        .position = s->position,
                        .cos_sin = s->rope,
                        .m = s->m,
                        .heads = n->columns,
                        .head_dim = head_dim,
                        .dims = head_dim,
                        .ldx = s->ld[n->to],
                        .inverse = n->backward};
    run_parts(s, n->row, &a, s->m, 1, false);
}

static void run_copy(nib_step *s, const nib_train_node *n)
{
    const nib_store_kv a = {.k = values(s, n->from, n->layer),
                            .v = values(s, n->other, n->layer),
                            .ld = s->ld[n->from],
                            .m = s->m,
                            .sequence = s->sequence,
                            .position = s->position,
                            .cache = cache_of(s, n->layer)};
    run_parts(s, n->row, &a, s->m, 1, false);
}

static float attention_scale(const nib_step *s)
{
    return 1.0f / sqrtf((float)s->net->config.head_dim);
}

static void run_attn(nib_step *s, const nib_train_node *n)
{
    const nib_config *c = &s->net->config;
    const nib_attn a = {.q = values(s, n->from, n->layer),
                        .out = values(s, n->to, n->layer),
                        .ldq = s->ld[n->from],
                        .ldo = s->ld[n->to],
                        .m = s->m,
                        .heads = c->heads,
                        .sequence = s->sequence,
                        .position = s->position,
                        .cache = cache_of(s, n->layer),
                        .scale = attention_scale(s),
                        .lse = values(s, NIB_KEPT_LSE, n->layer)};
    /* heads that share keys stay together, and tokens enough to share what is read of them */
    enum { TOKENS = 32 };
    const int64_t step = TOKENS * c->heads;
    part p = {s, n->row, &a};
    nib__pool_run(s->engine->pool, s->m * c->heads, step, true, job_part, &p);
}

static void run_attn_dx(nib_step *s, const nib_train_node *n)
{
    const nib_config *c = &s->net->config;
    const nib_attn_dx a = {.q = values(s, NIB_KEPT_Q, n->layer),
                           .out = values(s, NIB_KEPT_ATTN, n->layer),
                           .dout = values(s, n->from, n->layer),
                           .lse = values(s, NIB_KEPT_LSE, n->layer),
                           .dq = values(s, NIB_HELD_DQ, n->layer),
                           .dk = values(s, NIB_HELD_DK, n->layer),
                           .dv = values(s, NIB_HELD_DV, n->layer),
                           .ldq = s->ld[NIB_KEPT_Q],
                           .ldo = s->ld[NIB_KEPT_ATTN],
                           .ldkv = s->ld[NIB_HELD_DK],
                           .m = s->m,
                           .heads = c->heads,
                           .documents = s->batch->documents,
                           .start = s->batch->start,
                           .cache = cache_of(s, n->layer),
                           .scale = attention_scale(s)};
    part p = {s, n->row, &a};
    nib__pool_run(s->engine->pool, a.documents * c->kv_heads, 1, true, job_part, &p);
}

static void run_swiglu(nib_step *s, const nib_train_node *n)
{
    const nib_swiglu a = {.gate = values(s, n->from, n->layer),
                          .up = values(s, n->other, n->layer),
                          .out = values(s, n->to, n->layer),
                          .m = s->m,
                          .width = n->columns,
                          .ld = s->ld[n->from],
                          .ldo = s->ld[n->to]};
    run_parts(s, n->row, &a, s->m, 1, false);
}

static void run_swiglu_dx(nib_step *s, const nib_train_node *n)
{
    float *gate = values(s, NIB_KEPT_GATE, n->layer), *up = values(s, NIB_KEPT_UP, n->layer);
    const nib_swiglu_dx a = {.gate = gate,
                             .up = up,
                             .dy = values(s, n->from, n->layer),
                             .dgate = gate,
                             .dup = up,
                             .m = s->m,
                             .width = n->columns,
                             .ld = s->ld[NIB_KEPT_GATE],
                             .ldy = s->ld[n->from]};
    run_parts(s, n->row, &a, s->m, 1, false);
}

static void run_add(nib_step *s, const nib_train_node *n)
{
    const nib_add a = {.x = values(s, n->from, n->layer),
                       .y = values(s, n->to, n->layer + n->next),
                       .m = s->m,
                       .width = n->columns,
                       .ldx = s->ld[n->from],
                       .ldy = s->ld[n->to]};
    run_parts(s, n->row, &a, s->m, 1, false);
}

static void run_norm_dx(nib_step *s, const nib_train_node *n)
{
    const nib_norm_dx a = {.x = values(s, n->from, n->layer),
                           .dy = values(s, n->other, n->layer),
                           .weight = s->weights + s->params->items[n->param].at,
                           .dx = values(s, n->to, n->layer),
                           .inverse = values(s, NIB_HELD_INVERSE, n->layer),
                           .rows = s->m,
                           .width = n->columns,
                           .ldx = s->ld[n->from],
                           .ldy = s->ld[n->other],
                           .lddx = s->ld[n->to],
                           .eps = (float)s->net->config.norm_eps};
    run_parts(s, n->row, &a, s->m, 1, false);
}

static void run_norm_dw(nib_step *s, const nib_train_node *n)
{
    const nib_norm_dw a = {.x = values(s, n->from, n->layer),
                           .dy = values(s, n->other, n->layer),
                           .inverse = values(s, NIB_HELD_INVERSE, n->layer),
                           .dw = s->gradients + s->params->items[n->param].at,
                           .rows = s->m,
                           .width = n->columns,
                           .ldx = s->ld[n->from],
                           .ldy = s->ld[n->other]};
    run_parts(s, n->row, &a, n->columns, LINE, false);
}

static void run_bias_dw(nib_step *s, const nib_train_node *n)
{
    const nib_bias_dw a = {.dy = values(s, n->from, n->layer),
                           .db = s->gradients + s->params->items[n->param].at,
                           .m = s->m,
                           .n = n->columns,
                           .ldy = s->ld[n->from]};
    run_parts(s, n->row, &a, n->columns, LINE, false);
}

static void run_embed_dw(nib_step *s, const nib_train_node *n)
{
    const nib_embed_dw a = {.ids = s->batch->ids,
                            .dx = values(s, n->from, n->layer),
                            .d = s->gradients + s->params->items[n->param].at,
                            .m = s->m,
                            .width = n->columns};
    run_parts(s, n->row, &a, n->columns, LINE, false);
}

static void run_xent(nib_step *s, const nib_train_node *n)
{
    const nib_xent a = {.x = values(s, n->from, n->layer),
                        .target = s->batch->targets,
                        .loss = values(s, NIB_HELD_LOSS, n->layer),
                        .m = s->m,
                        .vocab = n->columns,
                        .ldx = s->ld[n->from],
                        .scale = s->scale,
                        .gradient = s->gradients != NULL};
    run_parts(s, n->row, &a, s->m, 1, false);
}

nib_status nib__step_node(nib_step *s, const nib_train_node *n, nib_err *err)
{
    if (n->side == NIB_SIDE_GPU && n->op != NIB_OP_MOVE)
        return nib__step_product(s, n, err);
    switch (n->op) {
    case NIB_OP_AMAX:
    case NIB_OP_QUANT:
    case NIB_OP_QUANT_T:
    case NIB_OP_CAST_T:
    case NIB_OP_LINEAR:
    case NIB_OP_LINEAR_DX:
    case NIB_OP_LINEAR_DW: return nib__step_product(s, n, err);
    case NIB_OP_MOVE: return nib__step_move(s, n, err);
    case NIB_OP_EMBED: run_embed(s, n); break;
    case NIB_OP_NORM: run_norm(s, n); break;
    case NIB_OP_FAKE:
    case NIB_OP_FAKE_DX:
    case NIB_OP_FAKE_DW: run_fake(s, n); break;
    case NIB_OP_ROPE: run_rope(s, n); break;
    case NIB_OP_COPY: run_copy(s, n); break;
    case NIB_OP_ATTN: run_attn(s, n); break;
    case NIB_OP_ATTN_DX: run_attn_dx(s, n); break;
    case NIB_OP_SWIGLU: run_swiglu(s, n); break;
    case NIB_OP_SWIGLU_DX: run_swiglu_dx(s, n); break;
    case NIB_OP_ADD: run_add(s, n); break;
    case NIB_OP_NORM_DX: run_norm_dx(s, n); break;
    case NIB_OP_NORM_DW: run_norm_dw(s, n); break;
    case NIB_OP_BIAS_DW: run_bias_dw(s, n); break;
    case NIB_OP_EMBED_DW: run_embed_dw(s, n); break;
    case NIB_OP_XENT: run_xent(s, n); break;
    default: break; /* lowering makes no other */
    }
    return NIB_OK;
}

/* ---- a micro-batch ---- */

nib_status nib__step_make_room(nib_step *s, const nib_batch *b, nib_err *err)
{
    int64_t blocks = 0;
    for (int64_t d = 0; d < b->documents; d++)
        blocks += nib__ceil_div(b->start[d + 1] - b->start[d], NIB_CACHE_BLOCK);
    return nib__step_reserve(s, b->documents, blocks, err);
}

/* Which document and position each token has, and which cache blocks the documents get. */
static nib_status place_documents(nib_step *s, const nib_batch *b, nib_err *err)
{
    NIB_TRY(nib__step_make_room(s, b, err));
    int32_t next = 0;
    for (int64_t d = 0; d < b->documents; d++) {
        const int32_t first = b->start[d];
        for (int32_t i = first; i < b->start[d + 1]; i++) {
            s->sequence[i] = (int32_t)d;
            s->position[i] = i - first;
            if (s->position[i] % NIB_CACHE_BLOCK == 0)
                s->tables[d * s->table_ld + s->position[i] / NIB_CACHE_BLOCK] = next++;
        }
    }
    return NIB_OK;
}

static double sum_losses(const nib_step *s)
{
    const float *loss = values(s, NIB_HELD_LOSS, 0);
    double sum = 0;
    for (int64_t i = 0; i < s->m; i++)
        sum += (double)loss[i];
    return sum;
}

/* What is added to starts from zero: the gradient of the residual, that of an embedding which is
 * no head. */
static void clear_sums(nib_step *s)
{
    const nib_param *table = &s->params->items[s->params->weight[0]];
    memset(place(s, NIB_HELD_D, 0), 0, (size_t)s->sides[NIB_SIDE_CPU].each[NIB_HELD_D]);
    if (!s->net->tied)
        memset(s->gradients + table->at, 0, nib__param_size(table) * sizeof(float));
}

static nib_status see(const nib_step *s, const nib_train_node *n, bool done, nib_err *err)
{
    return s->watch ? s->watch->see(s->watch->ctx, n, done, err) : NIB_OK;
}

static nib_status run_alone(nib_step *s, size_t at, nib_err *err)
{
    const nib_train_node *n = &s->nodes[at];
    NIB_TRY(see(s, n, false, err));
    const uint64_t from = nib__now_ns();
    NIB_TRY(nib__step_node(s, n, err));
    if (s->timed && n->side == NIB_SIDE_GPU)
        NIB_TRY(nib__gpu_finish(s->workers.gpu, err));
    s->node_ns[at] += nib__now_ns() - from;
    return see(s, n, true, err);
}

nib_status nib__step_run(nib_step *s, const float *weights, const nib_batch *batch, float scale,
                         float *gradients, double *loss, nib_err *err)
{
    NIB_TRY(place_documents(s, batch, err));
    s->batch = batch;
    s->weights = weights;
    s->gradients = gradients;
    s->scale = scale;
    const nib_chains *chains = &s->chains[gradients != NULL];
    if (gradients)
        clear_sums(s);
    for (size_t i = 0; i < chains->count; i++) {
        const nib_chain *c = &chains->items[i];
        if (c->end - c->first > 1 && !s->watch)
            nib__step_chain(s, c);
        else
            for (size_t at = c->first; at < c->end; at++)
                NIB_TRY(run_alone(s, at, err));
    }
    if (s->workers.gpu)
        NIB_TRY(nib__gpu_finish(s->workers.gpu, err));
    *loss = sum_losses(s);
    return NIB_OK;
}
