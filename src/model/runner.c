/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs a forward step: for each operation fills in pointers and sizes, and shares its parts among
 * the threads.
 */
#include "runner.h"

#include <inttypes.h>
#include <math.h>

/* ---- opening ---- */

static uint64_t aligned(uint64_t bytes) { return (bytes + 63) & ~UINT64_C(63); }

/* The most scratch any row wants, asked with the largest m. */
static uint64_t scratch_of(const nib_runner *r)
{
    uint64_t most = 0;
    for (size_t i = 0; i < r->ops.count; i++) {
        const nib_node *node = &r->ops.nodes[i];
        uint64_t want = 0;
        if (node->op == NIB_OP_ATTN && node->row->scratch) {
            const nib_attn args = {.cache = nib__kv_layer(&r->kv, 0),
                                   .heads = r->net->config.heads};
            want = node->row->scratch(&args);
        }
        for (int u = 0; node->op == NIB_OP_LINEAR && u < node->uses->use_count; u++) {
            const nib_kernel *row = node->uses->uses[u].kernel;
            nib_linear args = {.w = &r->weights[node->site].w};
            nib__input_place(&args.x, &args.w->scheme, r->plan->dtype, NIB_CHUNK, args.w->k, NULL,
                             NULL);
            if (row->scratch)
                want = (uint64_t)nib__max((int64_t)want, (int64_t)row->scratch(&args));
        }
        most = want > most ? want : most;
    }
    return aligned(most);
}

static nib_status open_buffers(nib_runner *r, int64_t context, nib_err *err)
{
    uint64_t offset[NIB_BUFFER_COUNT], total = 0;
    for (int i = 0; i < NIB_BUFFER_COUNT; i++) {
        offset[i] = total;
        if (i != NIB_BUFFER_LOGITS) /* those live as long as the caller looks at them */
            total += aligned(r->ops.token_bytes[i] * NIB_CHUNK);
    }
    r->scratch_bytes = scratch_of(r);
    r->block_bytes = total + r->scratch_bytes * (uint64_t)nib__pool_threads(r->engine->pool) +
                     3 * NIB_CHUNK * sizeof(int32_t);
    r->block = nib__block_take((size_t)r->block_bytes);
    r->rope_bytes = (uint64_t)context * (uint64_t)r->net->config.head_dim * sizeof *r->rope;
    r->rope = nib__block_take((size_t)r->rope_bytes);
    if (!r->block || !r->rope)
        return nib__fail_memory(err, (size_t)(r->block_bytes + r->rope_bytes),
                                "the buffers of a step");
    for (int i = 0; i < NIB_BUFFER_COUNT; i++)
        r->at[i] = r->block + offset[i];
    r->scratch = r->block + total;
    r->ids = (int32_t *)(void *)(r->scratch +
                                 r->scratch_bytes * (uint64_t)nib__pool_threads(r->engine->pool));
    r->sequences = r->ids + NIB_CHUNK;
    r->positions = r->sequences + NIB_CHUNK;
    nib__rope_table(r->rope, &r->net->config, context);
    return NIB_OK;
}

static nib_status load_weights(nib_runner *r, nib_err *err)
{
    const size_t count = r->net->site_count;
    r->weights = nib__arena_take(&r->arena, count, sizeof *r->weights);
    if (!r->weights)
        return nib__fail_memory(err, count * sizeof *r->weights, "the list of weights");
    for (size_t i = 0; i < count; i++) {
        if (!nib__engine_progress(r->engine, "load", i, count))
            return nib__fail(err, NIB_CANCELLED, "loading was cancelled");
        NIB_TRY(nib__weight_load(&r->weights[i], r->net, &r->plan->layers[i], i, err));
        if (i != 0) /* of the embedding one row is read */
            r->weight_bytes += r->weights[i].bytes;
    }
    nib__engine_progress(r->engine, "load", count, count);
    return NIB_OK;
}

static nib_status open_parts(nib_runner *r, int64_t sequences, int64_t context, nib_err *err)
{
    const nib_config *c = &r->net->config;
    NIB_TRY(load_weights(r, err));
    NIB_TRY(nib__lower(&r->ops, r->net, r->plan, &r->arena, err));
    NIB_TRY(nib__kv_open(&r->kv, c->layers, c->kv_heads, c->head_dim, sequences, context,
                         r->plan->dtype, &r->engine->allocator, err));
    return open_buffers(r, context, err);
}

nib_status nib__runner_open(nib_runner *out, const nib_network *net, const nib_layers_plan *plan,
                            int64_t sequences, int64_t context, nib_err *err)
{
    *out = (nib_runner){.net = net, .plan = plan, .engine = net->engine};
    nib__arena_init(&out->arena, &net->engine->allocator, 0);
    const nib_status status = open_parts(out, sequences, context, err);
    if (status != NIB_OK)
        nib__runner_close(out);
    return status;
}

void nib__runner_close(nib_runner *r)
{
    const nib_allocator *a = &r->engine->allocator;
    for (size_t i = 0; r->weights && i < r->net->site_count; i++)
        nib__weight_unload(&r->weights[i], a);
    if (r->kv.allocator)
        nib__kv_close(&r->kv);
    nib__block_free(r->block, (size_t)r->block_bytes);
    nib__block_free(r->rope, (size_t)r->rope_bytes);
    nib__release(a, r->logits);
    nib__arena_free(&r->arena);
    *r = (nib_runner){0};
}

/* ---- parts of an operation, as jobs of the pool ---- */

typedef struct part {
    const nib_kernel *row;
    const void *args;
    int64_t step, end; /* LINEAR: outputs per index, and all of them */
    char *scratch;
    uint64_t scratch_bytes;
} part;

static void job_linear(void *ctx, int worker, int64_t begin, int64_t end)
{
    const part *p = ctx;
    p->row->run.linear(p->args, begin * p->step, nib__min(end * p->step, p->end),
                       p->scratch + (uint64_t)worker * p->scratch_bytes);
}

static void job_attn(void *ctx, int worker, int64_t begin, int64_t end)
{
    const part *p = ctx;
    p->row->run.attn(p->args, begin, end, p->scratch + (uint64_t)worker * p->scratch_bytes);
}

static void job_quant(void *ctx, int worker, int64_t begin, int64_t end)
{
    (void)worker;
    ((const part *)ctx)->row->run.quant(((const part *)ctx)->args, begin, end);
}

/* The operations whose parts are ranges of tokens or rows. */
static void job_rows(void *ctx, int worker, int64_t begin, int64_t end)
{
    const part *p = ctx;
    (void)worker;
    switch (p->row->op) {
    case NIB_OP_EMBED: p->row->run.embed(p->args, begin, end); break;
    case NIB_OP_NORM: p->row->run.norm(p->args, begin, end); break;
    case NIB_OP_ROPE: p->row->run.rope(p->args, begin, end); break;
    case NIB_OP_COPY: p->row->run.store_kv(p->args, begin, end); break;
    case NIB_OP_SWIGLU: p->row->run.swiglu(p->args, begin, end); break;
    case NIB_OP_ADD: p->row->run.add(p->args, begin, end); break;
    case NIB_OP_GATHER: p->row->run.gather(p->args, begin, end); break;
    default: break;
    }
}

/* Parts per worker: enough that a worker which was interrupted holds nobody up for long. */
enum { PARTS_PER_WORKER = 4 };

static int64_t grain_for(const nib_runner *r, int64_t count)
{
    return nib__max(
        1, nib__ceil_div(count, (int64_t)nib__pool_threads(r->engine->pool) * PARTS_PER_WORKER));
}

static void run_rows(nib_runner *r, const nib_kernel *row, const void *args, int64_t count)
{
    part p = {.row = row, .args = args};
    nib__pool_run(r->engine->pool, count, grain_for(r, count), false, job_rows, &p);
}

/* ---- one operation ---- */

/* A float pointer: every buffer but INPUT holds f32. */
static float *values(const nib_runner *r, nib_buffer b) { return (float *)(void *)r->at[b]; }

static nib_input input_of(const nib_runner *r, const nib_node *node, int64_t m)
{
    nib_input input;
    const nib_weight *w = &r->weights[node->site].w;
    nib__input_place(&input, &w->scheme, r->plan->dtype, m, w->k, r->at[NIB_BUFFER_INPUT], NULL);
    if (w->scheme.act == NIB_ACT_FLOAT && r->plan->dtype == NIB_TYPE_F32) {
        input.f32 = values(r, node->from); /* taken as it is */
        input.ld = r->ops.ld[node->from];
    }
    return input;
}

static void run_quant(nib_runner *r, const nib_node *node, int64_t m)
{
    const nib_kernel *row = nib__use_at(node->uses, m)->quant;
    if (!row)
        return;
    const nib_weight *w = &r->weights[node->site].w;
    const nib_quant args = {.x = values(r, node->from),
                            .ldx = r->ops.ld[node->from],
                            .out = input_of(r, node, m),
                            .symmetric = w->scheme.act_symmetric,
                            .mx_floor = w->scheme.mx_floor,
                            .formula = w->scheme.formula,
                            .static_scale = w->act_scale,
                            .static_zero = w->act_zero};
    part p = {.row = row, .args = &args};
    nib__pool_run(r->engine->pool, m, grain_for(r, m), false, job_quant, &p);
}

static void run_linear(nib_runner *r, const nib_node *node, int64_t m)
{
    const nib_kernel *row = nib__use_at(node->uses, m)->kernel;
    const nib_loaded *loaded = &r->weights[node->site];
    if (r->observer.see)
        r->observer.see(r->observer.ctx, node->site, values(r, node->from), r->ops.ld[node->from],
                        m, loaded->w.k);
    const nib_linear args = {.w = &loaded->w,
                             .packed = nib__weight_packed(loaded, row),
                             .x = input_of(r, node, m),
                             .y = values(r, node->to),
                             .ldy = r->ops.ld[node->to],
                             .bias = loaded->bias,
                             .int_bias = loaded->int_bias};
    const int64_t step = nib__max(1, row->n_step), count = nib__ceil_div(loaded->w.n, step);
    part p = {.row = row,
              .args = &args,
              .step = step,
              .end = loaded->w.n,
              .scratch = r->scratch,
              .scratch_bytes = r->scratch_bytes};
    nib__pool_run(r->engine->pool, count, grain_for(r, count), true, job_linear, &p);
}

static void run_attn(nib_runner *r, const nib_node *node, int64_t m)
{
    const nib_config *c = &r->net->config;
    const nib_attn args = {.q = values(r, node->from),
                           .out = values(r, node->to),
                           .ldq = r->ops.ld[node->from],
                           .ldo = r->ops.ld[node->to],
                           .m = m,
                           .heads = c->heads,
                           .sequence = r->sequences,
                           .position = r->positions,
                           .cache = nib__kv_layer(&r->kv, node->layer),
                           .scale = 1.0f / sqrtf((float)c->head_dim)};
    part p = {
        .row = node->row, .args = &args, .scratch = r->scratch, .scratch_bytes = r->scratch_bytes};
    /* heads that share keys stay together */
    const int64_t share = c->heads / c->kv_heads;
    const int64_t grain = nib__round_up(grain_for(r, m * c->heads), share);
    nib__pool_run(r->engine->pool, m * c->heads, grain, true, job_attn, &p);
}

static void run_embed(nib_runner *r, const nib_node *node, int64_t m)
{
    const nib_embed args = {
        .table = &r->weights[0].w, .ids = r->ids, .out = values(r, node->to), .m = m};
    run_rows(r, node->row, &args, m);
}

static void run_norm(nib_runner *r, const nib_node *node, int64_t m)
{
    const int64_t rows = m * node->rows_per_token;
    const nib_norm args = {.x = values(r, node->from),
                           .out = values(r, node->to),
                           .weight = node->weight,
                           .rows = rows,
                           .width = node->width,
                           .ldx = r->ops.ld[node->from] / node->rows_per_token,
                           .ldo = r->ops.ld[node->to] / node->rows_per_token,
                           .eps = (float)r->net->config.norm_eps};
    run_rows(r, node->row, &args, rows);
}

static void run_rope(nib_runner *r, const nib_node *node, int64_t m)
{
    const int64_t head_dim = r->net->config.head_dim;
    const nib_rope args = {.x = values(r, node->to),
                           .position = r->positions,
                           .cos_sin = r->rope,
                           .m = m,
                           .heads = node->width,
                           .head_dim = head_dim,
                           .dims = head_dim,
                           .ldx = r->ops.ld[node->to]};
    run_rows(r, node->row, &args, m);
}

static void run_store_kv(nib_runner *r, const nib_node *node, int64_t m)
{
    const nib_store_kv args = {.k = values(r, node->from),
                               .v = values(r, node->other),
                               .ld = r->ops.ld[node->from],
                               .m = m,
                               .sequence = r->sequences,
                               .position = r->positions,
                               .cache = nib__kv_layer(&r->kv, node->layer)};
    run_rows(r, node->row, &args, m);
}

static void run_swiglu(nib_runner *r, const nib_node *node, int64_t m)
{
    const nib_swiglu args = {.gate = values(r, node->from),
                             .up = values(r, node->other),
                             .out = values(r, node->to),
                             .m = m,
                             .width = node->width,
                             .ld = r->ops.ld[node->from],
                             .ldo = r->ops.ld[node->to]};
    run_rows(r, node->row, &args, m);
}

static void run_add(nib_runner *r, const nib_node *node, int64_t m)
{
    const nib_add args = {.x = values(r, node->from),
                          .y = values(r, node->to),
                          .m = m,
                          .width = node->width,
                          .ldx = r->ops.ld[node->from],
                          .ldy = r->ops.ld[node->to]};
    run_rows(r, node->row, &args, m);
}

static void run_gather(nib_runner *r, const nib_node *node, int64_t m)
{
    const nib_gather args = {.x = values(r, node->from),
                             .out = values(r, node->to),
                             .order = r->net->sites[node->site].order,
                             .m = m,
                             .width = node->width,
                             .ldx = r->ops.ld[node->from],
                             .ldo = r->ops.ld[node->to]};
    run_rows(r, node->row, &args, m);
}

static void run_node(nib_runner *r, const nib_node *node, int64_t m)
{
    switch (node->op) {
    case NIB_OP_EMBED: run_embed(r, node, m); break;
    case NIB_OP_NORM: run_norm(r, node, m); break;
    case NIB_OP_ROPE: run_rope(r, node, m); break;
    case NIB_OP_COPY: run_store_kv(r, node, m); break;
    case NIB_OP_SWIGLU: run_swiglu(r, node, m); break;
    case NIB_OP_ADD: run_add(r, node, m); break;
    case NIB_OP_GATHER: run_gather(r, node, m); break;
    case NIB_OP_ATTN: run_attn(r, node, m); break;
    case NIB_OP_QUANT: run_quant(r, node, m); break;
    case NIB_OP_LINEAR: run_linear(r, node, m); break;
    default: break; /* lowering makes no other */
    }
}

/* ---- a step ---- */

/* Moves the residual rows of wanted slots to the front; nothing reads the others any more. */
static int64_t keep_wanted(nib_runner *r, const nib_slot *slots, int64_t count)
{
    const int64_t ld = r->ops.ld[NIB_BUFFER_RESIDUAL];
    float *residual = values(r, NIB_BUFFER_RESIDUAL);
    int64_t kept = 0;
    for (int64_t i = 0; i < count; i++) {
        if (!slots[i].logits)
            continue;
        if (i != kept)
            memcpy(residual + kept * ld, residual + i * ld, (size_t)ld * sizeof *residual);
        kept++;
    }
    return kept;
}

/* Runs up to NIB_CHUNK slots; logits of the wanted ones go to `logits`. Gives how many those were.
 */
static int64_t run_chunk(nib_runner *r, const nib_slot *slots, int64_t count, float *logits)
{
    for (int64_t i = 0; i < count; i++) {
        r->ids[i] = slots[i].token;
        r->sequences[i] = slots[i].sequence;
        r->positions[i] = slots[i].position;
    }
    r->at[NIB_BUFFER_LOGITS] = (char *)logits;
    int64_t m = count;
    bool cut = false;
    for (size_t i = 0; i < r->ops.count; i++) {
        const nib_node *node = &r->ops.nodes[i];
        if (node->wanted_only && !cut) {
            m = keep_wanted(r, slots, count);
            cut = true;
            if (m == 0)
                break;
        }
        run_node(r, node, m);
    }
    return m;
}

static nib_status check_slots(nib_runner *r, const nib_slot *slots, size_t count, size_t *wanted,
                              nib_err *err)
{
    const int64_t vocab = nib__network_embed(r->net)->n;
    *wanted = 0;
    for (size_t i = 0; i < count; i++) {
        if (slots[i].token < 0 || slots[i].token >= vocab)
            return nib__fail(err, NIB_BAD_INPUT,
                             "token %d is not one of the model's %" PRId64
                             "; is the tokenizer another model's?",
                             slots[i].token, vocab);
        *wanted += slots[i].logits;
    }
    return NIB_OK;
}

/* Room for every slot, or, if one is refused, for none: the sequences are then as they were. */
static nib_status extend_all(nib_runner *r, const nib_slot *slots, size_t count, nib_err *err)
{
    for (size_t i = 0; i < count; i++) {
        const nib_status status = nib__kv_extend(&r->kv, slots[i].sequence, slots[i].position, err);
        if (status == NIB_OK)
            continue;
        while (i-- > 0)
            nib__kv_truncate(&r->kv, slots[i].sequence, slots[i].position);
        return status;
    }
    return NIB_OK;
}

nib_status nib__runner_step(nib_runner *r, const nib_slot *slots, size_t count,
                            const float **logits, nib_err *err)
{
    const int64_t vocab = r->ops.ld[NIB_BUFFER_LOGITS];
    size_t wanted;
    NIB_TRY(check_slots(r, slots, count, &wanted, err));
    void *rows = r->logits;
    if (!nib__reserve(&r->engine->allocator, &rows, &r->logits_capacity, wanted,
                      (size_t)vocab * sizeof(float)))
        return nib__fail_memory(err, wanted * (size_t)vocab * sizeof(float), "logits");
    r->logits = rows;
    NIB_TRY(extend_all(r, slots, count, err));
    float *to = r->logits;
    for (size_t done = 0; done < count; done += NIB_CHUNK) {
        const int64_t part_count = nib__min((int64_t)(count - done), NIB_CHUNK);
        to += run_chunk(r, slots + done, part_count, to) * vocab;
    }
    *logits = r->logits;
    return NIB_OK;
}
