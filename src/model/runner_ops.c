/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs one operation of a step: fills in pointers and sizes, and shares its parts among the threads
 * or launches it on the GPU.
 */
#include "operation.h"
#include "runner_parts.h"

#include <math.h>

/* ---- parts of an operation, as jobs of the pool ---- */

nib_part nib__part_of(const nib_runner *r, const nib_kernel *row, const void *args, int64_t step,
                      int64_t end)
{
    return (nib_part){.row = row,
                      .args = args,
                      .step = step,
                      .end = end,
                      .scratch = r->scratch,
                      .scratch_bytes = r->scratch_bytes};
}

static void run_part(const nib_part *p, int worker, int64_t begin, int64_t end)
{
    nib__ops[p->row->op].run(p->row, p->args, begin, end,
                             p->scratch + (uint64_t)worker * p->scratch_bytes);
}

void nib__job_part(void *ctx, int worker, int64_t begin, int64_t end)
{
    run_part(ctx, worker, begin, end);
}

void nib__job_parts(void *ctx, int worker, int64_t begin, int64_t end)
{
    const nib_parts *all = ctx;
    size_t low = 0, high = all->count; /* the first part that ends after `begin` */
    while (low < high) {
        const size_t middle = (low + high) / 2;
        if (all->first[middle + 1] <= begin)
            low = middle + 1;
        else
            high = middle;
    }
    for (size_t i = low; i < all->count && all->first[i] < end; i++) {
        const int64_t from = nib__max(begin, all->first[i]), to = nib__min(end, all->first[i + 1]);
        const nib_part *p = &all->parts[i];
        if (from < to)
            run_part(p, worker, (from - all->first[i]) * p->step,
                     nib__min((to - all->first[i]) * p->step, p->end));
    }
}

enum { PARTS_PER_WORKER = 4 };

int64_t nib__grain_for(const nib_runner *r, int64_t count)
{
    return nib__max(
        1, nib__ceil_div(count, (int64_t)nib__pool_threads(r->engine->pool) * PARTS_PER_WORKER));
}

/* Outputs that a worker takes at once, for few tokens: several panels of most rows, fewer where a
 * worker's share is small. */
enum { FEW_OUTPUTS = 64, FEW_OUTPUTS_LEAST = 16, TAKES_PER_WORKER = 4 };

static int64_t few_grain(int64_t count, int64_t step, int threads)
{
    const int64_t share = count * step / ((int64_t)threads * TAKES_PER_WORKER);
    return nib__ceil_div(nib__max(FEW_OUTPUTS_LEAST, nib__min(FEW_OUTPUTS, share)), step);
}

/* Few parts, because each prepares the inputs for itself, of a size that keeps all workers busy
 * until the end. */
static int64_t many_grain(int64_t count, int threads)
{
    const int64_t most = nib__ceil_div(count, (int64_t)threads * PARTS_PER_WORKER);
    int64_t best = most, least = INT64_MAX;
    for (int64_t grain = most; grain >= nib__max(1, most / 2); grain--) {
        const int64_t busy = nib__ceil_div(nib__ceil_div(count, grain), threads) * grain;
        if (busy < least)
            best = grain, least = busy;
    }
    return best;
}

void nib__share_outputs(nib_pool *pool, int64_t count, int64_t step, int64_t m, nib_pool_job job,
                        void *ctx)
{
    if (m > NIB_FEW_TOKENS)
        nib__pool_run(pool, count, many_grain(count, nib__pool_threads(pool)), true, job, ctx);
    else
        nib__pool_share_out(pool, count, few_grain(count, step, nib__pool_threads(pool)), true, job,
                            ctx);
}

nib_status nib__run_on_gpu(nib_runner *r, const nib_kernel *row, const void *args, nib_err *err)
{
    if (!r->preparing)
        return nib__gpu_run(r->gpu, row, args, err);
    const nib_status status = nib__gpu_prepare(r->gpu, row, args, err);
    if (status != NIB_OK)
        r->refusal = (nib_refusal){.what = NIB_REFUSED_ROW, .row = row};
    return status;
}

nib_status nib__run_rows(nib_runner *r, const nib_kernel *row, const void *args, int64_t count,
                         nib_err *err)
{
    nib_part p = nib__part_of(r, row, args, 0, count);
    if (row->gpu != NULL)
        return nib__run_on_gpu(r, row, args, err);
    nib__pool_run(r->engine->pool, count, nib__grain_for(r, count), false, nib__job_part, &p);
    return NIB_OK;
}

/* ---- one operation ---- */

/* The input of `w` for m tokens, whose form is at `at`, or f32 rows that are read directly; x NULL:
 * none are. */
static nib_input input_at(const nib_runner *r, const nib_weight *w, int side, const float *x,
                          int64_t ldx, char *at, int64_t m)
{
    nib_input input;
    nib__input_place(&input, &w->scheme, r->plan->dtype, m, w->k, at, NULL);
    if (x != NULL && w->scheme.act == NIB_ACT_FLOAT && r->plan->dtype == NIB_TYPE_F32) {
        input.f32 = (float *)(uintptr_t)x; /* products only read it */
        input.ld = ldx;
    }
    if (side == NIB_SIDE_GPU) /* no GPU product reads sums, so none are computed */
        input.sums = NULL, input.fsums = NULL;
    return input;
}

nib_quant nib__quant_of(const nib_runner *r, const nib_weight *w, int side, const float *x,
                        int64_t ldx, char *at, int64_t m)
{
    return (nib_quant){.x = x,
                       .ldx = ldx,
                       .out = input_at(r, w, side, x, ldx, at, m),
                       .symmetric = w->scheme.act_symmetric,
                       .mx_floor = w->scheme.mx_floor,
                       .block_only = w->scheme.block_only,
                       .formula = w->scheme.formula,
                       .static_scale = w->act_scale,
                       .static_zero = w->act_zero};
}

static nib_quant quant_of(const nib_runner *r, const nib_node *node, int64_t m)
{
    return nib__quant_of(r, &r->weights[node->site].w, node->side,
                         nib__node_values(r, node, node->from), r->ops.ld[node->from],
                         r->sides[node->side].at[NIB_BUFFER_INPUT], m);
}

static nib_status run_quant(nib_runner *r, const nib_node *node, int64_t m, nib_err *err)
{
    const nib_kernel *row = nib__use_at(node->uses, m)->quant;
    if (!row)
        return NIB_OK;
    const nib_quant args = quant_of(r, node, m);
    return nib__run_rows(r, row, &args, m, err);
}

/* The input of a linear layer, which an observer may replace. */
static nib_input input_of(nib_runner *r, const nib_node *node, int64_t m)
{
    nib_input input = quant_of(r, node, m).out;
    const nib_observer *o = &r->observer;
    if (o->replace == NULL || node->side != NIB_SIDE_CPU || r->plan->dtype != NIB_TYPE_F32)
        return input;
    const float *other = o->replace(o->ctx, node->site, nib__node_values(r, node, node->from),
                                    r->ops.ld[node->from], m, input.k);
    if (other != NULL) {
        input.f32 = (float *)(uintptr_t)other; /* products only read it */
        input.ld = input.k;
    }
    return input;
}

static nib_linear linear_of(nib_runner *r, const nib_node *node, const nib_kernel *row, int64_t m)
{
    const nib_loaded *loaded = &r->weights[node->site];
    if (r->observer.see && node->side == NIB_SIDE_CPU)
        r->observer.see(r->observer.ctx, node->site, nib__node_values(r, node, node->from),
                        r->ops.ld[node->from], m, loaded->w.k);
    return (nib_linear){.w = &loaded->w,
                        .packed = nib__weight_packed(loaded, row),
                        .x = input_of(r, node, m),
                        .y = nib__node_values(r, node, node->to),
                        .ldy = r->ops.ld[node->to],
                        .bias = loaded->bias,
                        .int_bias = loaded->int_bias};
}

enum { JOINED = 3 };

size_t nib__runner_joined(const nib_node *node, size_t left, int64_t m)
{
    size_t count = 1;
    if (node->op == NIB_OP_LINEAR_EXPERTS)
        return left > 1 && node[1].joins && node[1].op == node->op ? 2 : 1;
    if (node->op != NIB_OP_LINEAR || node->side != NIB_SIDE_CPU || m > NIB_FEW_TOKENS)
        return 1; /* in prefill they take long enough that nobody waits much */
    while (count < left && count < JOINED && node[count].op == NIB_OP_LINEAR && node[count].joins)
        count++;
    return count;
}

nib_status nib__runner_products(nib_runner *r, const nib_node *nodes, size_t count, int64_t m,
                                nib_err *err)
{
    nib_linear args[JOINED];
    nib_part parts[JOINED];
    int64_t first[JOINED + 1] = {0}, least = INT64_MAX;
    nib_parts all = {.parts = parts, .first = first, .count = count};
    if (nodes->weight_count > 0)
        return nib__run_experts(r, nodes, count, m, err);
    for (size_t i = 0; i < count; i++) {
        const nib_kernel *row = nib__use_at(nodes[i].uses, m)->kernel;
        args[i] = linear_of(r, &nodes[i], row, m);
        if (row->gpu != NULL)
            return nib__run_on_gpu(r, row, &args[i], err);
        const int64_t step = nib__max(1, row->n_step);
        parts[i] = nib__part_of(r, row, &args[i], step, args[i].w->n);
        first[i + 1] = first[i] + nib__ceil_div(args[i].w->n, step);
        least = nib__min(least, step);
    }
    nib__share_outputs(r->engine->pool, first[count], least, m, nib__job_parts, &all);
    return NIB_OK;
}

static nib_status run_attn(nib_runner *r, const nib_node *node, int64_t m, nib_err *err)
{
    const nib_attn args = {.q = nib__node_values(r, node, node->from),
                           .out = nib__node_values(r, node, node->to),
                           .ldq = r->ops.ld[node->from],
                           .ldo = r->ops.ld[node->to],
                           .m = m,
                           .heads = node->of->heads,
                           .sequence = r->sides[node->side].sequences,
                           .position = r->sides[node->side].positions,
                           .cache = nib__kv_layer(&r->kv, node->layer),
                           .scale = (float)node->of->scale,
                           .cap = (float)node->of->cap,
                           .window = node->of->window,
                           .chunked = node->of->chunked,
                           .sinks = node->weight};
    if (node->row->gpu != NULL)
        return nib__run_on_gpu(r, node->row, &args, err);
    if (r->key_check != NULL && nib__stores_keys(&node[-1]))
        nib__key_check_see(r->key_check, node->layer, &args,
                           nib__node_values(r, &node[-1], node[-1].from), r->ops.ld[node[-1].from]);
    nib_part p = nib__part_of(r, node->row, &args, 0, m * args.heads);
    /* heads that share keys stay in one part, unless they fill several tiles */
    const int64_t share = args.heads / args.cache.kv_heads,
                  group = share % NIB_ATTN_ROWS == 0 ? NIB_ATTN_ROWS : share;
    const int64_t grain = nib__round_up(nib__grain_for(r, m * args.heads), group);
    nib__pool_run(r->engine->pool, m * args.heads, grain, true, nib__job_part, &p);
    return NIB_OK;
}

static nib_status run_short_conv(nib_runner *r, const nib_node *node, int64_t m, nib_err *err)
{
    (void)err; /* no row runs on a GPU */
    const int64_t channels = node->width;
    const bool gated = node->of->gated;
    const float *columns = nib__node_values(r, node, node->from) + node->of->channel;
    const int64_t taps = r->kv.states.shape.taps;
    const nib_short_conv args = {.x = gated ? columns + 2 * channels : columns,
                                 .before = gated ? columns : NULL,
                                 .after = gated ? columns + channels : NULL,
                                 .weight = node->weight,
                                 .bias = node->of->biased ? node->weight + taps * channels : NULL,
                                 .silu = !gated,
                                 .out = nib__node_values(r, node, node->to),
                                 .m = m,
                                 .channels = channels,
                                 .taps = taps,
                                 .ldx = r->ops.ld[node->from],
                                 .ldo = r->ops.ld[node->to],
                                 .sequence = r->sides[node->side].sequences,
                                 .position = r->sides[node->side].positions,
                                 .state = nib__states_layer(&r->kv.states, node->layer),
                                 .room = r->kv.states.room};
    nib_part p = nib__part_of(r, node->row, &args, 0, channels);
    const int64_t grain = nib__round_up(nib__grain_for(r, channels), NIB_LANES);
    nib__pool_run(r->engine->pool, channels, grain, false, nib__job_part, &p);
    return NIB_OK;
}

static nib_status run_delta_gates(nib_runner *r, const nib_node *node, int64_t m, nib_err *err)
{
    const nib_delta_gates args = {.b = nib__node_values(r, node, node->from),
                                  .a = nib__node_values(r, node, node->other),
                                  .a_log = node->weight,
                                  .dt_bias = node->weight + node->width,
                                  .rates = node->of->rates,
                                  .out = nib__node_values(r, node, node->to),
                                  .m = m,
                                  .heads = node->width,
                                  .ldb = r->ops.ld[node->from],
                                  .lda = r->ops.ld[node->other],
                                  .ldo = r->ops.ld[node->to]};
    return nib__run_rows(r, node->row, &args, m, err);
}

static nib_status run_ssm_gates(nib_runner *r, const nib_node *node, int64_t m, nib_err *err)
{
    const nib_ssm_gates args = {.x = nib__node_values(r, node, node->from) + node->of->channel,
                                .rate = node->weight,
                                .dt_bias = node->weight + node->width,
                                .out = nib__node_values(r, node, node->to),
                                .least = node->of->scale,
                                .most = node->of->cap,
                                .m = m,
                                .heads = node->width,
                                .ldx = r->ops.ld[node->from],
                                .ldo = r->ops.ld[node->to]};
    return nib__run_rows(r, node->row, &args, m, err);
}

static nib_status run_recurrence(nib_runner *r, const nib_node *node, int64_t m, nib_err *err)
{
    (void)err; /* no row runs on a GPU */
    const nib_matrix_size *size = &node->of->matrix;
    const bool ssm = node->op == NIB_OP_SSM;
    nib_states *states = &r->kv.states;
    const nib_side *side = &r->sides[node->side];
    const nib_recurrence args = {
        .x = nib__node_values(r, node, node->from),
        .gates = nib__node_values(r, node, node->other),
        .out = nib__node_values(r, node, node->to),
        .ldx = r->ops.ld[node->from],
        .ldg = r->ops.ld[node->other],
        .ldo = r->ops.ld[node->to],
        .skip = node->weight,
        .logged = ssm ? 0 : size->key_heads * size->key_dim,
        .size = *size,
        .slots = states->slots,
        .runs = states->runs,
        .count = nib__states_list(states, node->layer, side->sequences, side->positions, m)};
    const int64_t parts =
        size->heads * nib__matrix_blocks(size, ssm ? NIB_SSM_COLUMNS : NIB_DELTA_COLUMNS);
    nib_part p = nib__part_of(r, node->row, &args, 0, parts);
    nib__pool_run(r->engine->pool, parts, nib__grain_for(r, parts), false, nib__job_part, &p);
    nib__states_keep(states, node->layer, &args, side->sequences);
    return NIB_OK;
}

static nib_status run_embed(nib_runner *r, const nib_node *node, int64_t m, nib_err *err)
{
    const nib_loaded *table = &r->weights[node->site];
    const nib_embed args = {.table = &table->w,
                            .packed = nib__weight_packed(table, node->row),
                            .ids = r->sides[node->side].ids,
                            .out = nib__node_values(r, node, node->to),
                            .m = m};
    NIB_TRY(nib__run_rows(r, node->row, &args, m, err));
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
    const int64_t first = node->of->channel; /* of a part */
    return (nib_norm){
        .x = nib__node_values(r, node, node->from) + first,
        .out = nib__node_values(r, node, to) + first,
        .weight = node->weight,
        .rows = m * node->rows_per_token,
        .width = node->width,
        .ldx = r->ops.ld[node->from] / node->rows_per_token,
        .ldo = r->ops.ld[to] / node->rows_per_token,
        .eps = (float)(node->entry->eps > 0 ? node->entry->eps : r->net->config.norm_eps),
        .centered = node->entry->centered,
        .weights = node->entry->heads,
        .bias = node->entry->bias ? node->weight + node->entry->n : NULL};
}

static nib_status run_norm(nib_runner *r, const nib_node *node, int64_t m, nib_err *err)
{
    const nib_norm args = norm_of(r, node, node->to, m);
    return nib__run_rows(r, node->row, &args, args.rows, err);
}

nib_status nib__runner_hidden(nib_runner *r, const nib_node *norm, int64_t first, int64_t count,
                              float *out, nib_err *err)
{
    nib_norm args = norm_of(r, norm, norm->from, count);
    args.x += first * args.ldx;
    args.out = out;
    args.ldo = norm->width;
    return nib__run_rows(r, nib__plan_operation(r->plan, NIB_OP_NORM)->row, &args, count, err);
}

static nib_status run_norm_quant(nib_runner *r, const nib_node *node, int64_t m, nib_err *err)
{
    nib_norm_quant args = {.norm = norm_of(r, node, node->other, m), .quant = quant_of(r, node, m)};
    if (r->observer.see == NULL)
        args.norm.out = NULL;
    return nib__run_rows(r, nib__use_at(node->uses, m)->normed, &args, m, err);
}

static nib_rope rope_of(const nib_runner *r, const nib_node *node, int of, int64_t heads, int64_t m)
{
    const nib_config *c = &r->net->config;
    return (nib_rope){.x = nib__node_values(r, node, of) + node->of->channel,
                      .position = r->sides[node->side].positions,
                      .cos_sin =
                          r->sides[node->side].rope + (uint64_t)node->of->table * r->rope_size,
                      .m = m,
                      .heads = heads,
                      .head_dim = r->ops.ld[of] / heads,
                      .dims = nib__config_table_dims(c, node->of->table),
                      .ldx = r->ops.ld[of],
                      .interleaved = c->rope_interleaved};
}

static nib_status run_rope(nib_runner *r, const nib_node *node, int64_t m, nib_err *err)
{
    const nib_rope args = rope_of(r, node, node->to, node->width, m);
    return nib__run_rows(r, node->row, &args, m, err);
}

static nib_store_kv store_of(const nib_runner *r, const nib_node *node, int64_t m)
{
    const nib_cache cache = nib__kv_layer(&r->kv, node->layer);
    const bool values = cache.values != NULL;
    return (nib_store_kv){.k = nib__node_values(r, node, node->from),
                          .v = values ? nib__node_values(r, node, node->other) : NULL,
                          .ld = r->ops.ld[node->from],
                          .m = m,
                          .sequence = r->sides[node->side].sequences,
                          .position = r->sides[node->side].positions,
                          .cache = cache};
}

static nib_status run_store_kv(nib_runner *r, const nib_node *node, int64_t m, nib_err *err)
{
    const nib_store_kv args = store_of(r, node, m);
    return nib__run_rows(r, node->row, &args, m, err);
}

static nib_status run_rope_copy(nib_runner *r, const nib_node *node, int64_t m, nib_err *err)
{
    const nib_graph_node *queries = node->of, *keys = queries + 1;
    const nib_rope_store_kv args = {.q = rope_of(r, node, node->to, queries->heads, m),
                                    .k = rope_of(r, node, node->from, keys->heads, m),
                                    .store = store_of(r, node, m)};
    return nib__run_rows(r, node->row, &args, m, err);
}

static nib_status run_swiglu(nib_runner *r, const nib_node *node, int64_t m, nib_err *err)
{
    const bool gated = node->of->in[1] >= 0;
    const nib_swiglu args = {
        .gate = nib__node_values(r, node, node->from),
        .up = gated ? nib__node_values(r, node, node->other) + node->of->channel : NULL,
        .activation = node->of->activation,
        .one_gate = gated && r->ops.ld[node->from] < node->width,
        .alpha = (float)node->of->scale,
        .limit = (float)node->of->cap,
        .out = nib__node_values(r, node, node->to),
        .m = m,
        .width = node->width,
        .ld = r->ops.ld[node->from],
        .ldu = r->ops.ld[node->other],
        .ldo = r->ops.ld[node->to]};
    return nib__run_rows(r, node->row, &args, m, err);
}

static nib_status run_add(nib_runner *r, const nib_node *node, int64_t m, nib_err *err)
{
    const nib_add args = {.x = nib__node_values(r, node, node->from),
                          .y = nib__node_values(r, node, node->to),
                          .m = m,
                          .width = node->width,
                          .ldx = r->ops.ld[node->from],
                          .ldy = r->ops.ld[node->to]};
    return nib__run_rows(r, node->row, &args, m, err);
}

static nib_status run_scale(nib_runner *r, const nib_node *node, int64_t m, nib_err *err)
{
    const nib_scale args = {.x = nib__node_values(r, node, node->from),
                            .out = nib__node_values(r, node, node->to),
                            .m = m,
                            .width = node->width,
                            .ldx = r->ops.ld[node->from],
                            .ldo = r->ops.ld[node->to],
                            .scale = (float)node->of->scale *
                                     (node->weight != NULL ? node->weight[0] : 1.0f),
                            .cap = (float)node->of->cap};
    return nib__run_rows(r, node->row, &args, m, err);
}

static nib_status run_gather(nib_runner *r, const nib_node *node, int64_t m, nib_err *err)
{
    const int64_t rows = nib__max(node->rows_per_token, 1);
    const nib_gather args = {.x = nib__node_values(r, node, node->from) + node->from_column,
                             .out = nib__node_values(r, node, node->to) + node->to_column,
                             .order = node->order,
                             .m = m * rows,
                             .width = node->width,
                             .ldx = r->ops.ld[node->from] / rows,
                             .ldo = r->ops.ld[node->to] / rows};
    return nib__run_rows(r, node->row, &args, args.m, err);
}

/* Copies the rows of a buffer from the other side. */
static nib_status run_move(nib_runner *r, const nib_node *node, int64_t m, nib_err *err)
{
    const uint64_t bytes = node->from == NIB_BUFFER_ROUTED
                               ? nib__routed_bytes(node->of->routing, m)
                               : (uint64_t)m * (uint64_t)r->ops.ld[node->from] * sizeof(float);
    char *cpu = r->sides[NIB_SIDE_CPU].at[node->from], *gpu = r->sides[NIB_SIDE_GPU].at[node->from];
    return node->side == NIB_SIDE_GPU ? nib__gpu_write(r->gpu, gpu, cpu, bytes, err)
                                      : nib__gpu_read(r->gpu, cpu, gpu, bytes, err);
}

static nib_status run_hidden(nib_runner *r, const nib_node *node, int64_t m, nib_err *err)
{
    (void)err;
    const int64_t ldx = r->ops.ld[node->from], ldo = r->ops.ld[node->to], width = node->width;
    const float *x = nib__node_values(r, node, node->from);
    float *out = nib__node_values(r, node, node->to);
    for (int64_t i = 0; i < m; i++) {
        memcpy(out + i * ldo, x + i * ldx, (size_t)width * sizeof *out);
        memcpy(out + i * ldo + width, r->given + i * width, (size_t)width * sizeof *out);
    }
    return NIB_OK;
}

static nib_status run_products(nib_runner *r, const nib_node *node, int64_t m, nib_err *err)
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
    [NIB_OP_SHORT_CONV] = run_short_conv,
    [NIB_OP_DELTA_GATES] = run_delta_gates,
    [NIB_OP_GATED_DELTA] = run_recurrence,
    [NIB_OP_SSM_GATES] = run_ssm_gates,
    [NIB_OP_SSM] = run_recurrence,
    [NIB_OP_GATHER] = run_gather,
    [NIB_OP_ATTN] = run_attn,
    [NIB_OP_QUANT] = run_quant,
    [NIB_OP_LINEAR] = run_products,
    [NIB_OP_LINEAR_EXPERTS] = run_products,
    [NIB_OP_LINEAR_HEADS] = run_products,
    [NIB_OP_ROUTE] = nib__run_route,
    [NIB_OP_SORT] = nib__run_sort,
    [NIB_OP_DISPATCH] = nib__run_dispatch,
    [NIB_OP_COMBINE] = nib__run_combine,
    [NIB_OP_MOVE] = run_move,
    [NIB_OP_HIDDEN] = run_hidden,
};

nib_status nib__runner_node(nib_runner *r, const nib_node *node, int64_t m, nib_err *err)
{
    return runs[node->op](r, node, m, err);
}
