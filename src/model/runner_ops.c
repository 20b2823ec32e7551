/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs one operation of a step: fills in pointers and sizes, and shares its parts among the threads
 * or launches it on the GPU.
 */
#include "operation.h"
#include "runner.h"

#include <math.h>

/* ---- parts of an operation, as jobs of the pool ---- */

typedef struct row_part {
    const nib_kernel *row;
    const void *args;
    int64_t step, end; /* LINEAR: outputs per index, and in all */
    char *scratch;
    uint64_t scratch_bytes;
} row_part;

static void run_part(const row_part *p, int worker, int64_t begin, int64_t end)
{
    nib__ops[p->row->op].run(p->row, p->args, begin, end,
                             p->scratch + (uint64_t)worker * p->scratch_bytes);
}

static void job_part(void *ctx, int worker, int64_t begin, int64_t end)
{
    run_part(ctx, worker, begin, end);
}

enum { JOINED = 3 };

/* Several products that share one range of indexes. */
typedef struct joined_products {
    row_part parts[JOINED];
    int64_t first[JOINED + 1]; /* first index of each */
    int count;
} joined_products;

static void job_joined(void *ctx, int worker, int64_t begin, int64_t end)
{
    joined_products *j = ctx;
    for (int i = 0; i < j->count; i++) {
        const int64_t from = nib__max(begin, j->first[i]), to = nib__min(end, j->first[i + 1]);
        const row_part *p = &j->parts[i];
        if (from < to)
            run_part(p, worker, (from - j->first[i]) * p->step,
                     nib__min((to - j->first[i]) * p->step, p->end));
    }
}

/* Parts per worker: enough that the others need not wait long for an interrupted worker. */
enum { PARTS_PER_WORKER = 4 };

static int64_t grain_for(const nib_runner *r, int64_t count)
{
    return nib__max(
        1, nib__ceil_div(count, (int64_t)nib__pool_threads(r->engine->pool) * PARTS_PER_WORKER));
}

enum { FEW_TOKENS = 16, FEW_OUTPUTS = 16 };

void nib__share_outputs(nib_pool *pool, int64_t count, int64_t step, int64_t m, nib_pool_job job,
                        void *ctx)
{
    const int64_t parts = (int64_t)nib__pool_threads(pool) * PARTS_PER_WORKER;
    if (m > FEW_TOKENS) /* each part prepares the inputs for itself */
        nib__pool_run(pool, count, nib__ceil_div(count, parts), true, job, ctx);
    else
        nib__pool_share_out(pool, count, nib__ceil_div(FEW_OUTPUTS, step), true, job, ctx);
}

static nib_status run_on_gpu(nib_runner *r, const nib_kernel *row, const void *args, nib_err *err)
{
    if (!r->preparing)
        return nib__gpu_run(r->gpu, row, args, err);
    const nib_status status = nib__gpu_prepare(r->gpu, row, args, err);
    if (status != NIB_OK)
        r->refusal = (nib_refusal){.what = NIB_REFUSED_ROW, .row = row};
    return status;
}

/* Runs on the pool, or as one launch on the GPU. */
static nib_status run_rows(nib_runner *r, const nib_kernel *row, const void *args, int64_t count,
                           nib_err *err)
{
    row_part p = {
        .row = row, .args = args, .scratch = r->scratch, .scratch_bytes = r->scratch_bytes};
    if (row->gpu != NULL)
        return run_on_gpu(r, row, args, err);
    nib__pool_run(r->engine->pool, count, grain_for(r, count), false, job_part, &p);
    return NIB_OK;
}

/* ---- one operation ---- */

/* A float pointer or a GPU address; every buffer but INPUT holds f32. */
static float *values(const nib_runner *r, const nib_node *node, int b)
{
    return (float *)(void *)r->sides[node->side].at[b];
}

static nib_input input_of(const nib_runner *r, const nib_node *node, int64_t m)
{
    nib_input input;
    const nib_weight *w = &r->weights[node->site].w;
    nib__input_place(&input, &w->scheme, r->plan->dtype, m, w->k,
                     r->sides[node->side].at[NIB_BUFFER_INPUT], NULL);
    if (w->scheme.act == NIB_ACT_FLOAT && r->plan->dtype == NIB_TYPE_F32) {
        input.f32 = values(r, node, node->from); /* read directly */
        input.ld = r->ops.ld[node->from];
    }
    if (node->side == NIB_SIDE_GPU) /* no GPU product reads sums, so none are computed */
        input.sums = NULL, input.fsums = NULL;
    return input;
}

static nib_quant quant_of(const nib_runner *r, const nib_node *node, int64_t m)
{
    const nib_weight *w = &r->weights[node->site].w;
    return (nib_quant){.x = values(r, node, node->from),
                       .ldx = r->ops.ld[node->from],
                       .out = input_of(r, node, m),
                       .symmetric = w->scheme.act_symmetric,
                       .mx_floor = w->scheme.mx_floor,
                       .block_only = w->scheme.block_only,
                       .formula = w->scheme.formula,
                       .static_scale = w->act_scale,
                       .static_zero = w->act_zero};
}

static nib_status run_quant(nib_runner *r, const nib_node *node, int64_t m, nib_err *err)
{
    const nib_kernel *row = nib__use_at(node->uses, m)->quant;
    if (!row)
        return NIB_OK;
    const nib_quant args = quant_of(r, node, m);
    return run_rows(r, row, &args, m, err);
}

static nib_linear linear_of(nib_runner *r, const nib_node *node, const nib_kernel *row, int64_t m)
{
    const nib_loaded *loaded = &r->weights[node->site];
    if (r->observer.see && node->side == NIB_SIDE_CPU)
        r->observer.see(r->observer.ctx, node->site, values(r, node, node->from),
                        r->ops.ld[node->from], m, loaded->w.k);
    return (nib_linear){.w = &loaded->w,
                        .packed = nib__weight_packed(loaded, row),
                        .x = input_of(r, node, m),
                        .y = values(r, node, node->to),
                        .ldy = r->ops.ld[node->to],
                        .bias = loaded->bias,
                        .int_bias = loaded->int_bias};
}

size_t nib__runner_joined(const nib_node *node, size_t left, int64_t m)
{
    size_t count = 1;
    if (node->op != NIB_OP_LINEAR || node->side != NIB_SIDE_CPU || m > FEW_TOKENS)
        return 1; /* in prefill they take long enough that nobody waits much */
    while (count < left && count < JOINED && node[count].op == NIB_OP_LINEAR && node[count].joins)
        count++;
    return count;
}

nib_status nib__runner_products(nib_runner *r, const nib_node *nodes, size_t count, int64_t m,
                                nib_err *err)
{
    nib_linear args[JOINED];
    joined_products j = {.count = (int)count};
    int64_t least = INT64_MAX;
    for (size_t i = 0; i < count; i++) {
        const nib_kernel *row = nib__use_at(nodes[i].uses, m)->kernel;
        args[i] = linear_of(r, &nodes[i], row, m);
        if (row->gpu != NULL)
            return run_on_gpu(r, row, &args[i], err);
        const int64_t step = nib__max(1, row->n_step);
        j.parts[i] = (row_part){.row = row,
                                .args = &args[i],
                                .step = step,
                                .end = args[i].w->n,
                                .scratch = r->scratch,
                                .scratch_bytes = r->scratch_bytes};
        j.first[i + 1] = j.first[i] + nib__ceil_div(args[i].w->n, step);
        least = nib__min(least, step);
    }
    nib__share_outputs(r->engine->pool, j.first[count], least, m, job_joined, &j);
    return NIB_OK;
}

static nib_status run_attn(nib_runner *r, const nib_node *node, int64_t m, nib_err *err)
{
    const nib_config *c = &r->net->config;
    const nib_attn args = {.q = values(r, node, node->from),
                           .out = values(r, node, node->to),
                           .ldq = r->ops.ld[node->from],
                           .ldo = r->ops.ld[node->to],
                           .m = m,
                           .heads = c->heads,
                           .sequence = r->sides[node->side].sequences,
                           .position = r->sides[node->side].positions,
                           .cache = nib__kv_layer(&r->kv, node->layer),
                           .scale = (float)node->of->scale,
                           .cap = (float)node->of->cap,
                           .window = node->of->window};
    if (node->row->gpu != NULL)
        return run_on_gpu(r, node->row, &args, err);
    row_part p = {
        .row = node->row, .args = &args, .scratch = r->scratch, .scratch_bytes = r->scratch_bytes};
    /* heads that share keys stay in one part */
    const int64_t group = c->heads / c->kv_heads;
    const int64_t grain = nib__round_up(grain_for(r, m * c->heads), group);
    nib__pool_run(r->engine->pool, m * c->heads, grain, true, job_part, &p);
    return NIB_OK;
}

static nib_status run_embed(nib_runner *r, const nib_node *node, int64_t m, nib_err *err)
{
    const nib_loaded *table = &r->weights[node->site];
    const nib_embed args = {.table = &table->w,
                            .packed = nib__weight_packed(table, node->row),
                            .ids = r->sides[node->side].ids,
                            .out = values(r, node, node->to),
                            .m = m};
    NIB_TRY(run_rows(r, node->row, &args, m, err));
    /* Looking up a row also maps the pages around it into this process. */
    r->looked_up += node->side == NIB_SIDE_CPU ? m : 0;
    if (r->looked_up >= NIB_CHUNK) {
        nib__checkpoint_release_rows(r->net->checkpoint, args.table, 0, args.table->n);
        r->looked_up = 0;
    }
    return NIB_OK;
}

static nib_norm norm_of(const nib_runner *r, const nib_node *node, int to, int64_t m)
{
    return (nib_norm){.x = values(r, node, node->from),
                      .out = values(r, node, to),
                      .weight = node->weight,
                      .rows = m * node->rows_per_token,
                      .width = node->width,
                      .ldx = r->ops.ld[node->from] / node->rows_per_token,
                      .ldo = r->ops.ld[to] / node->rows_per_token,
                      .eps = (float)r->net->config.norm_eps,
                      .centered = node->entry->centered,
                      .weights = node->entry->heads,
                      .bias = node->entry->bias ? node->weight + node->entry->n : NULL};
}

static nib_status run_norm(nib_runner *r, const nib_node *node, int64_t m, nib_err *err)
{
    const nib_norm args = norm_of(r, node, node->to, m);
    return run_rows(r, node->row, &args, args.rows, err);
}

nib_status nib__runner_hidden(nib_runner *r, const nib_node *norm, int64_t first, int64_t count,
                              float *out, nib_err *err)
{
    nib_norm args = norm_of(r, norm, norm->from, count);
    args.x += first * args.ldx;
    args.out = out;
    args.ldo = norm->width;
    return run_rows(r, nib__plan_operation(r->plan, NIB_OP_NORM)->row, &args, count, err);
}

static nib_status run_norm_quant(nib_runner *r, const nib_node *node, int64_t m, nib_err *err)
{
    nib_norm_quant args = {.norm = norm_of(r, node, node->other, m), .quant = quant_of(r, node, m)};
    if (r->observer.see == NULL)
        args.norm.out = NULL;
    return run_rows(r, nib__use_at(node->uses, m)->normed, &args, m, err);
}

static nib_rope rope_of(const nib_runner *r, const nib_node *node, int of, int64_t heads, int64_t m)
{
    const nib_config *c = &r->net->config;
    return (nib_rope){.x = values(r, node, of),
                      .position = r->sides[node->side].positions,
                      .cos_sin =
                          r->sides[node->side].rope + (uint64_t)node->of->table * r->rope_size,
                      .m = m,
                      .heads = heads,
                      .head_dim = c->head_dim,
                      .dims = nib__config_rope_dims(c),
                      .ldx = r->ops.ld[of],
                      .interleaved = c->rope_interleaved};
}

static nib_status run_rope(nib_runner *r, const nib_node *node, int64_t m, nib_err *err)
{
    const nib_rope args = rope_of(r, node, node->to, node->width, m);
    return run_rows(r, node->row, &args, m, err);
}

static nib_store_kv store_of(const nib_runner *r, const nib_node *node, int64_t m)
{
    return (nib_store_kv){.k = values(r, node, node->from),
                          .v = values(r, node, node->other),
                          .ld = r->ops.ld[node->from],
                          .m = m,
                          .sequence = r->sides[node->side].sequences,
                          .position = r->sides[node->side].positions,
                          .cache = nib__kv_layer(&r->kv, node->layer)};
}

static nib_status run_store_kv(nib_runner *r, const nib_node *node, int64_t m, nib_err *err)
{
    const nib_store_kv args = store_of(r, node, m);
    return run_rows(r, node->row, &args, m, err);
}

static nib_status run_rope_copy(nib_runner *r, const nib_node *node, int64_t m, nib_err *err)
{
    const nib_config *c = &r->net->config;
    const nib_rope_store_kv args = {.q = rope_of(r, node, node->to, c->heads, m),
                                    .k = rope_of(r, node, node->from, c->kv_heads, m),
                                    .store = store_of(r, node, m)};
    return run_rows(r, node->row, &args, m, err);
}

static nib_status run_swiglu(nib_runner *r, const nib_node *node, int64_t m, nib_err *err)
{
    const bool gated = node->of->in[1] >= 0;
    const nib_swiglu args = {.gate = values(r, node, node->from),
                             .up = gated ? values(r, node, node->other) : NULL,
                             .activation = node->of->activation,
                             .out = values(r, node, node->to),
                             .m = m,
                             .width = node->width,
                             .ld = r->ops.ld[node->from],
                             .ldo = r->ops.ld[node->to]};
    return run_rows(r, node->row, &args, m, err);
}

static nib_status run_add(nib_runner *r, const nib_node *node, int64_t m, nib_err *err)
{
    const nib_add args = {.x = values(r, node, node->from),
                          .y = values(r, node, node->to),
                          .m = m,
                          .width = node->width,
                          .ldx = r->ops.ld[node->from],
                          .ldy = r->ops.ld[node->to]};
    return run_rows(r, node->row, &args, m, err);
}

static nib_status run_scale(nib_runner *r, const nib_node *node, int64_t m, nib_err *err)
{
    const nib_scale args = {.x = values(r, node, node->from),
                            .out = values(r, node, node->to),
                            .m = m,
                            .width = node->width,
                            .ldx = r->ops.ld[node->from],
                            .ldo = r->ops.ld[node->to],
                            .scale = (float)node->of->scale,
                            .cap = (float)node->of->cap};
    return run_rows(r, node->row, &args, m, err);
}

static nib_status run_gather(nib_runner *r, const nib_node *node, int64_t m, nib_err *err)
{
    const nib_gather args = {.x = values(r, node, node->from),
                             .out = values(r, node, node->to),
                             .order = node->order,
                             .m = m,
                             .width = node->width,
                             .ldx = r->ops.ld[node->from],
                             .ldo = r->ops.ld[node->to]};
    return run_rows(r, node->row, &args, m, err);
}

/* Copies the f32 rows of a buffer from the other side. */
static nib_status run_move(nib_runner *r, const nib_node *node, int64_t m, nib_err *err)
{
    const uint64_t bytes = (uint64_t)m * (uint64_t)r->ops.ld[node->from] * sizeof(float);
    char *cpu = r->sides[NIB_SIDE_CPU].at[node->from], *gpu = r->sides[NIB_SIDE_GPU].at[node->from];
    return node->side == NIB_SIDE_GPU ? nib__gpu_write(r->gpu, gpu, cpu, bytes, err)
                                      : nib__gpu_read(r->gpu, cpu, gpu, bytes, err);
}

static nib_status run_linear(nib_runner *r, const nib_node *node, int64_t m, nib_err *err)
{
    return nib__runner_products(r, node, 1, m, err);
}

/* Every operation that lowering makes. */
static nib_status (*const runs[NIB_OP_COUNT])(nib_runner *, const nib_node *, int64_t,
                                              nib_err *) = {
    [NIB_OP_EMBED] = run_embed,
    [NIB_OP_NORM] = run_norm,
    [NIB_OP_NORM_QUANT] = run_norm_quant,
    [NIB_OP_ROPE] = run_rope,
    [NIB_OP_STORE_KV] = run_store_kv,
    [NIB_OP_ROPE_COPY] = run_rope_copy,
    [NIB_OP_SWIGLU] = run_swiglu,
    [NIB_OP_ADD] = run_add,
    [NIB_OP_SCALE] = run_scale,
    [NIB_OP_GATHER] = run_gather,
    [NIB_OP_ATTN] = run_attn,
    [NIB_OP_QUANT] = run_quant,
    [NIB_OP_LINEAR] = run_linear,
    [NIB_OP_MOVE] = run_move,
};

nib_status nib__runner_node(nib_runner *r, const nib_node *node, int64_t m, nib_err *err)
{
    return runs[node->op](r, node, m, err);
}
