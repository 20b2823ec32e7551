/* SPDX-License-Identifier: Apache-2.0
 *
 * Opens a runner's memory on each side, and runs a step: its slots in passes of NIB_CHUNK,
 * operation by operation.
 */
#include "runner_parts.h"

#include <inttypes.h>

/* ---- opening ---- */

static uint64_t aligned(uint64_t bytes) { return (bytes + 63) & ~UINT64_C(63); }

/* The largest scratch that the rows of a product need. */
static uint64_t product_scratch(const nib_runner *r, const nib_layer_plan *uses, size_t site)
{
    uint64_t most = 0;
    nib_linear args = {.w = &r->weights[site].w};
    nib__input_place(&args.x, &args.w->scheme, r->plan->dtype, NIB_CHUNK, args.w->k, NULL, NULL);
    for (int u = 0; u < uses->use_count; u++) {
        const nib_kernel *row = uses->uses[u].kernel;
        const uint64_t want = row->scratch != NULL ? row->scratch(&args) : 0;
        most = want > most ? want : most;
    }
    return most;
}

/* The largest scratch that any row needs, for the largest m. */
static uint64_t scratch_of(const nib_runner *r)
{
    uint64_t most = 0;
    for (size_t i = 0; i < r->ops.count; i++) {
        const nib_node *node = &r->ops.nodes[i];
        uint64_t want = 0;
        if (node->op == NIB_OP_ATTN && node->row->scratch) {
            const nib_attn args = {.cache = nib__kv_layer(&r->kv, node->layer),
                                   .heads = node->of->heads};
            want = node->row->scratch(&args);
        }
        if (node->op == NIB_OP_LINEAR)
            want = product_scratch(r, node->uses, node->site);
        for (int64_t e = 0; e < node->weight_count; e++) {
            const uint64_t own =
                product_scratch(r, node->weights[e], node->site + (size_t)(e * node->site_step));
            want = own > want ? own : want;
        }
        most = want > most ? want : most;
    }
    return aligned(most);
}

/* Computes the offset of each buffer in a block; returns the total bytes. */
static uint64_t lay_out(const nib_lowered *ops, uint64_t offset[NIB_BUFFERS_MAX])
{
    uint64_t total = 0;
    for (int i = 0; i < ops->buffer_count; i++) {
        offset[i] = total;
        if (i != NIB_BUFFER_LOGITS) /* logits outlive the pass, for the caller */
            total += aligned(ops->token_bytes[i] * NIB_CHUNK);
    }
    return total;
}

enum { SLOT_BYTES = 3 * NIB_CHUNK * sizeof(int32_t) };

static void assign_buffers(nib_side *side, const nib_lowered *ops,
                           const uint64_t offset[NIB_BUFFERS_MAX], uint64_t slots)
{
    for (int i = 0; i < ops->buffer_count; i++)
        side->at[i] = side->block + offset[i];
    side->ids = (int32_t *)(void *)(side->block + slots);
    side->sequences = side->ids + NIB_CHUNK;
    side->positions = side->sequences + NIB_CHUNK;
}

/* Extends the CPU's RoPE tables to a position and a few more; computing all of them would take
 * longer than many a prompt. */
static void extend_rope(nib_runner *r, int64_t position)
{
    enum { STEP = 256 };
    const int64_t count = nib__min(nib__round_up(position + 1, STEP), r->kv.context);
    if (position < r->rope_count)
        return;
    for (int i = 0; i < nib__config_ropes(&r->net->config); i++)
        nib__rope_table(r->sides[NIB_SIDE_CPU].rope + (uint64_t)i * r->rope_size, &r->net->config,
                        i, r->kv.context, r->rope_count, count);
    r->rope_count = count;
}

static nib_status open_cpu(nib_runner *r, nib_err *err)
{
    nib_side *side = &r->sides[NIB_SIDE_CPU];
    uint64_t offset[NIB_BUFFERS_MAX];
    const uint64_t buffers = lay_out(&r->ops, offset);
    r->scratch_bytes = scratch_of(r);
    const uint64_t scratch = r->scratch_bytes * (uint64_t)nib__pool_threads(r->engine->pool);
    side->block_bytes = buffers + scratch + SLOT_BYTES;
    side->block = nib__block_take(side->block_bytes);
    side->rope = nib__block_take(r->rope_bytes);
    if (!side->block || !side->rope)
        return nib__fail_memory(err, (uint64_t)(side->block_bytes + r->rope_bytes),
                                "the buffers of a step");
    assign_buffers(side, &r->ops, offset, buffers + scratch);
    r->scratch = side->block + buffers;
    return NIB_OK;
}

/* Values that a node on the GPU reads besides buffers and packed weights: a norm's weight and bias,
 * the bias of a choice, sinks, or a column order. */
static int64_t count_constants(const nib_runner *r, const nib_node *node)
{
    if (node->side != NIB_SIDE_GPU)
        return 0;
    switch (node->op) {
    case NIB_OP_NORM: return node->entry->n * (node->entry->bias ? 2 : 1);
    case NIB_OP_GATHER: return node->width;
    case NIB_OP_ATTN:
    case NIB_OP_ROUTE: return node->weight != NULL ? r->net->graph.weights[node->of->weight].n : 0;
    default: return 0;
    }
}

/* Copies what a node reads besides buffers to the GPU. */
static nib_status move_constants(nib_runner *r, nib_node *node, nib_err *err)
{
    const bool is_order = node->op == NIB_OP_GATHER;
    const void *from = is_order ? (const void *)node->order : node->weight;
    const uint64_t bytes = (uint64_t)count_constants(r, node) * sizeof(float);
    void *to = NULL;
    if (bytes == 0)
        return NIB_OK;
    NIB_TRY(nib__gpu_alloc(r->gpu, bytes, "the constants of an operation", &to, err));
    if (is_order)
        node->order = to;
    else
        node->weight = to;
    return nib__gpu_write(r->gpu, to, from, bytes, err);
}

/* Allocates room on the GPU for the logits of m slots. */
static nib_status reserve_logits(nib_runner *r, int64_t m, nib_err *err)
{
    char **at = &r->sides[NIB_SIDE_GPU].at[NIB_BUFFER_LOGITS];
    void *address = NULL;
    if ((size_t)m <= r->gpu_logits)
        return NIB_OK;
    nib__gpu_free(r->gpu, *at);
    *at = NULL, r->gpu_logits = 0;
    NIB_TRY(nib__gpu_alloc(r->gpu, (uint64_t)m * r->ops.token_bytes[NIB_BUFFER_LOGITS], "logits",
                           &address, err));
    *at = address, r->gpu_logits = (size_t)m;
    return NIB_OK;
}

/* Allocates the GPU's buffers of a step, with logits for `rows` slots. */
static nib_status allocate_gpu_buffers(nib_runner *r, int64_t rows, nib_err *err)
{
    nib_side *side = &r->sides[NIB_SIDE_GPU];
    uint64_t offset[NIB_BUFFERS_MAX];
    void *at = NULL;
    const uint64_t buffers = lay_out(&r->ops, offset);
    side->block_bytes = buffers + SLOT_BYTES;
    NIB_TRY(nib__gpu_alloc(r->gpu, side->block_bytes, "the buffers of a step", &at, err));
    side->block = at;
    assign_buffers(side, &r->ops, offset, buffers);
    side->at[NIB_BUFFER_LOGITS] = NULL;
    NIB_TRY(nib__gpu_alloc(r->gpu, r->rope_bytes, "the RoPE tables", &at, err));
    side->rope = at;
    for (size_t i = 0; i < r->ops.count; i++)
        NIB_TRY(move_constants(r, &r->ops.nodes[i], err));
    NIB_TRY(nib__experts_watch(r, err));
    if (r->plan->samplers[0] != NULL || r->plan->samplers[1] != NULL) {
        NIB_TRY(nib__gpu_alloc(r->gpu, sizeof *r->drawn, "a token", &at, err));
        r->drawn = at;
    }
    return reserve_logits(r, rows, err);
}

static void close_gpu(nib_runner *r)
{
    nib_side *side = &r->sides[NIB_SIDE_GPU];
    for (size_t i = 0; side->block && i < r->ops.count; i++) {
        const nib_node *node = &r->ops.nodes[i];
        if (count_constants(r, node) != 0)
            nib__gpu_free(r->gpu, node->op == NIB_OP_GATHER ? (void *)(uintptr_t)node->order
                                                            : (void *)(uintptr_t)node->weight);
    }
    if (r->gpu == NULL)
        return;
    nib__staging_give(&r->staging);
    nib__experts_close(r);
    nib__gpu_free(r->gpu, r->drawn);
    nib__gpu_free(r->gpu, side->at[NIB_BUFFER_LOGITS]);
    nib__gpu_free(r->gpu, side->rope);
    nib__gpu_free(r->gpu, side->block);
}

/* ---- before loading weights: what the device may refuse ---- */

static nib_status record_refusal(nib_runner *r, nib_status status, nib_refusal refusal)
{
    if (status != NIB_OK)
        r->refusal = refusal;
    return status;
}

static nib_status reserve_weights(nib_runner *r, nib_err *err)
{
    const uint64_t before = nib__gpu_held(r->gpu);
    uint64_t room = 0;
    nib_status status = NIB_OK;
    for (size_t i = 0; i < r->ops.count && status == NIB_OK; i++) {
        room = nib__gpu_held(r->gpu) - before;
        status = nib__experts_reserve(r, &r->ops.nodes[i], err);
    }
    for (size_t i = 0; i < r->net->site_count && status == NIB_OK; i++) {
        room = nib__gpu_held(r->gpu) - before;
        if (!r->weights[i].in_room)
            status = nib__weight_reserve(&r->weights[i], &r->plan->layers[i], r->gpu, NULL, err);
    }
    if (status == NIB_NO_MEMORY)
        record_refusal(r, status, (nib_refusal){.what = NIB_REFUSED_MEMORY, .room = room});
    return status;
}

/* If the GPU packs weights itself: allocates room for the largest stored weight, and compiles the
 * packing row. */
static nib_status reserve_staging(nib_runner *r, nib_err *err)
{
    nib_status status = NIB_OK;
    r->staging.gpu = r->gpu;
    for (size_t i = 0; i < r->net->site_count && status == NIB_OK; i++) {
        const nib_layer_plan *plan = &r->plan->layers[i];
        const nib_pack_rows args = {.w = &r->weights[i].w, .out = r->weights[i].packs[0].at};
        if (plan->pack == NULL)
            continue;
        status =
            nib__staging_reserve(&r->staging, nib__staging_bytes(plan->layer, &plan->done), err);
        if (status == NIB_OK)
            status = nib__gpu_prepare(r->gpu, plan->pack, &args, err);
        record_refusal(r, status, (nib_refusal){.what = NIB_REFUSED_ROW, .row = plan->pack});
    }
    return status;
}

/* Compiles the rows that draw tokens; a request chooses among them. */
static nib_status prepare_samplers(nib_runner *r, nib_err *err)
{
    nib_status status = NIB_OK;
    for (size_t i = 0; i < COUNT(r->plan->samplers) && status == NIB_OK; i++) {
        const nib_kernel *row = r->plan->samplers[i];
        const nib_draw draw = {.vocab = r->ops.ld[NIB_BUFFER_LOGITS], .top_k = 1, .temperature = 1};
        if (row != NULL)
            status = record_refusal(r, nib__gpu_prepare(r->gpu, row, &draw, err),
                                    (nib_refusal){.what = NIB_REFUSED_ROW, .row = row});
    }
    return status;
}

/* Compiles every operation for all small numbers of tokens and for those that fill tiles, since the
 * code may depend on the number. */
static nib_status prepare(nib_runner *r, nib_err *err)
{
    enum { EVERY = 32, STEP = 16 };
    nib_status status = NIB_OK;
    r->preparing = true;
    for (size_t i = 0; i < r->ops.count && status == NIB_OK; i++) {
        const nib_node *node = &r->ops.nodes[i];
        const bool compiles = node->side == NIB_SIDE_GPU && node->op != NIB_OP_MOVE;
        for (int64_t m = 1; compiles && m <= NIB_CHUNK && status == NIB_OK;
             m += m < EVERY ? 1 : STEP)
            status = nib__runner_node(r, node, m, err);
    }
    r->preparing = false;
    return status;
}

/* Keys in int8 or int4 are checked on the first text. */
static nib_status open_key_check(nib_runner *r, nib_err *err)
{
    const nib_type type = r->kv.types.keys.type;
    const int64_t layers = r->net->config.layers;
    int64_t widest = 0;
    bool any = false;
    if (type != NIB_TYPE_I8 && type != NIB_TYPE_Q4_1)
        return NIB_OK;
    bool *has = nib__arena_take(&r->arena, (uint64_t)layers, sizeof *has);
    if (has == NULL)
        return nib__fail_memory(err, (uint64_t)layers, "a check of keys");
    memset(has, 0, (size_t)layers * sizeof *has);
    for (size_t i = 1; i < r->ops.count; i++) {
        const nib_node *node = &r->ops.nodes[i];
        if (node->op == NIB_OP_ATTN && nib__stores_keys(&node[-1]))
            any = has[node->layer] = true;
    }
    for (int64_t g = 0; g < r->kv.group_count; g++)
        widest = nib__max(widest, r->kv.groups[g].head_dim);
    return any ? nib__key_check_open(&r->key_check, has, layers, widest, r->kv.allocator, err)
               : NIB_OK;
}

static nib_status open_cache(nib_runner *r, int64_t sequences, int64_t context, nib_err *err)
{
    nib_kv_shape shape = nib__kv_shape(&r->net->config, sequences, context, r->plan->cache);
    shape.snapshots = r->plan->snapshots * sequences;
    const bool on_gpu = r->ops.cache_side == NIB_SIDE_GPU;
    const nib_status status =
        nib__kv_open(&r->kv, &shape, on_gpu ? r->gpu : NULL, &r->engine->allocator, err);
    const nib_op_plan *attention = nib__plan_operation(r->plan, NIB_OP_ATTN);
    if (status == NIB_OK)
        return open_key_check(r, err);
    return status == NIB_NO_MEMORY && on_gpu
               ? record_refusal(r, status,
                                (nib_refusal){.what = NIB_REFUSED_ROW, .row = attention->row})
               : status;
}

/* Allocates everything else before weights, because some of the weights can be moved elsewhere. */
static nib_status reserve_gpu(nib_runner *r, int64_t sequences, nib_err *err)
{
    const nib_refusal device = {.what = NIB_REFUSED_DEVICE,
                                .device = r->plan->gpu->facts.fact[NIB_FACT_DEVICE]};
    const nib_status status = allocate_gpu_buffers(r, nib__min(sequences, NIB_CHUNK), err);
    if (status != NIB_OK)
        return record_refusal(r, status, device);
    NIB_TRY(reserve_weights(r, err));
    NIB_TRY(reserve_staging(r, err));
    NIB_TRY(prepare_samplers(r, err));
    return prepare(r, err);
}

/* Whether a weight of an unloaded runner stays loaded: it belongs to no decoder layer. */
static bool is_resident(const nib_runner *r, size_t site)
{
    return nib__graph_weight(&r->net->graph, NIB_WEIGHT_MATRIX, site)->layer < 0 &&
           r->net->sites[site].role != NIB_ROLE_HEAD;
}

/* Reads weight i where the lender has it, if it is packed there for the same rows. */
static bool borrow(nib_runner *r, size_t i)
{
    const nib_runner *from = r->lender;
    const size_t at = from != NULL ? nib__plan_lent(r->plan, i, from->plan) : SIZE_MAX;
    if (at == SIZE_MAX)
        return false;
    r->weights[i] = from->weights[at];
    r->weights[i].borrowed = true;
    return true;
}

static nib_status load_weights(nib_runner *r, nib_err *err)
{
    const size_t count = r->net->site_count;
    for (size_t i = 0; i < count; i++) {
        if (r->unloaded && !is_resident(r, i)) {
            const nib_layer_plan *plan = &r->plan->layers[i];
            r->weights[i].w = nib__layer_weight(plan->layer, &plan->done); /* sizes of scratch */
            continue;
        }
        if (borrow(r, i))
            continue;
        if (!nib__engine_progress(r->engine, "load", i, count))
            return nib__fail(err, NIB_CANCELLED, "loading was cancelled");
        const nib_status status = nib__weight_load(&r->weights[i], r->net, &r->plan->layers[i], i,
                                                   &r->staging, &r->slab, err);
        if (status != NIB_OK && r->staging.refused != NULL)
            record_refusal(r, status,
                           (nib_refusal){.what = NIB_REFUSED_ROW, .row = r->staging.refused});
        NIB_TRY(status);
        if (r->net->sites[i].role != NIB_ROLE_EMBED) /* one row is read per token */
            r->weight_bytes += (uint64_t)((double)r->weights[i].bytes *
                                          nib__layer_share(r->plan->layers[i].layer));
    }
    nib__engine_progress(r->engine, "load", count, count);
    nib__staging_give(&r->staging);
    return NIB_OK;
}

static nib_status open_gpu(nib_runner *r, nib_err *err)
{
    const nib_machine *gpu = r->plan->gpu;
    const nib_refusal device = {.what = NIB_REFUSED_DEVICE,
                                .device = gpu->facts.fact[NIB_FACT_DEVICE]};
    NIB_TRY(record_refusal(r, nib__engine_gpu(&r->gpu, r->engine, gpu, err), device));
    nib__gpu_limit(r->gpu, gpu->memory);
    return NIB_OK;
}

static nib_status open_parts(nib_runner *r, int64_t sequences, int64_t context, nib_err *err)
{
    const size_t count = r->net->site_count;
    r->weights = nib__arena_take(&r->arena, count, sizeof *r->weights);
    if (!r->weights)
        return nib__fail_memory(err, count * sizeof *r->weights, "the list of weights");
    r->rope_size = nib__rope_size(&r->net->config, context);
    r->rope_bytes = r->rope_size * (uint64_t)nib__config_ropes(&r->net->config) * sizeof(float);
    NIB_TRY(nib__lower(&r->ops, r->net, r->plan, &r->arena, err));
    NIB_TRY(nib__experts_open(r, err));
    if (r->ops.uses_gpu) /* a plan for a device may run nothing there */
        NIB_TRY(open_gpu(r, err));
    NIB_TRY(open_cache(r, sequences, context, err));
    if (r->ops.uses_gpu)
        NIB_TRY(reserve_gpu(r, sequences, err));
    NIB_TRY(load_weights(r, err));
    NIB_TRY(open_cpu(r, err));
    if (!r->ops.uses_gpu)
        return NIB_OK;
    NIB_TRY(nib__experts_describe(r, err));
    extend_rope(r, context - 1);
    NIB_TRY(nib__gpu_write(r->gpu, r->sides[NIB_SIDE_GPU].rope, r->sides[NIB_SIDE_CPU].rope,
                           r->rope_bytes, err));
    return prepare(r, err); /* with the loaded weights; normally nothing is left to compile */
}

nib_status nib__runner_open(nib_runner *out, const nib_network *net, const nib_assignment *plan,
                            int64_t sequences, int64_t context, const nib_runner *lender,
                            nib_refusal *refusal, nib_err *err)
{
    *out = (nib_runner){.net = net, .plan = plan, .engine = net->engine, .lender = lender};
    nib__arena_init(&out->arena, &net->engine->allocator, 0);
    const nib_status status = open_parts(out, sequences, context, err);
    *refusal = out->refusal;
    if (status != NIB_OK)
        nib__runner_close(out);
    return status;
}

nib_status nib__runner_open_unloaded(nib_runner *out, const nib_network *net,
                                     const nib_assignment *plan, int64_t context, nib_err *err)
{
    *out = (nib_runner){.net = net, .plan = plan, .engine = net->engine, .unloaded = true};
    nib__arena_init(&out->arena, &net->engine->allocator, 0);
    const nib_status status = open_parts(out, 1, context, err);
    if (status != NIB_OK)
        nib__runner_close(out);
    return status;
}

nib_status nib__runner_gpu_bytes(uint64_t *out, const nib_network *net, const nib_layer *layers,
                                 nib_type dtype, int64_t context, nib_err *err)
{
    nib_arena arena;
    nib_lowered ops = {0};
    nib_graph_buffers buffers;
    uint64_t offset[NIB_BUFFERS_MAX];
    uint64_t constants =
        nib__rope_size(&net->config, context) * (uint64_t)nib__config_ropes(&net->config);
    nib__arena_init(&arena, &net->engine->allocator, 0);
    const nib_status status = nib__lower_sizes(&ops, &buffers, net, &arena, err);
    nib__arena_free(&arena);
    for (size_t i = 1; i < net->site_count; i++) { /* without the embedding, which reads ids */
        nib_input form;
        uint64_t bytes = 0;
        nib__input_place(&form, &layers[i].asked, dtype, 1, layers[i].k, NULL, &bytes);
        bytes *= (uint64_t)nib__layer_rows(&layers[i]);
        if (bytes > ops.token_bytes[NIB_BUFFER_INPUT])
            ops.token_bytes[NIB_BUFFER_INPUT] = bytes;
    }
    for (size_t i = 0; i < net->graph.kind_count[NIB_WEIGHT_NORM]; i++) {
        const nib_graph_weight *norm = nib__graph_weight(&net->graph, NIB_WEIGHT_NORM, i);
        constants += (uint64_t)norm->n * (norm->bias ? 2 : 1);
    }
    for (size_t i = 0; i < net->graph.node_count; i++) {
        const nib_graph_node *node = &net->graph.nodes[i];
        if (node->op == NIB_OP_NORM && node->weight == NIB_NO_ID) /* ones */
            constants += (uint64_t)(net->graph.values[node->out].columns / node->heads);
    }
    *out = lay_out(&ops, offset) + SLOT_BYTES + ops.token_bytes[NIB_BUFFER_LOGITS] +
           constants * sizeof(float) + nib__experts_table_bytes(&net->graph);
    return status;
}

void nib__runner_close(nib_runner *r)
{
    const nib_allocator *a = &r->engine->allocator;
    for (size_t i = 0; r->weights && i < r->net->site_count; i++)
        nib__weight_unload(&r->weights[i], a);
    nib__slab_free(&r->slab);
    if (r->kv.allocator)
        nib__kv_close(&r->kv);
    nib__key_check_close(r->key_check);
    close_gpu(r);
    nib__block_free(r->sides[NIB_SIDE_CPU].block, r->sides[NIB_SIDE_CPU].block_bytes);
    nib__block_free(r->sides[NIB_SIDE_CPU].rope, r->rope_bytes);
    nib__release(a, r->logits);
    nib__release(a, r->hidden);
    nib__arena_free(&r->arena);
    *r = (nib_runner){0};
}

/* ---- a step ---- */

/* Writes the hidden states of the slots that ask for them to r->hidden, from the input of the final
 * norm. Rows that ask for logits as well are normed again with the others, so that the output layer
 * reads the same rows whatever else was asked. */
static nib_status keep_hidden(nib_runner *r, const nib_node *norm, const nib_slot *slots,
                              int64_t count, nib_err *err)
{
    const bool on_gpu = norm->side == NIB_SIDE_GPU;
    const size_t before = r->hidden_rows, width = (size_t)norm->width;
    /* on the GPU nothing else is in this buffer, which has room for a chunk, until the norm ran */
    float *const gathered = (float *)(void *)r->sides[NIB_SIDE_GPU].at[NIB_BUFFER_GATHERED];
    for (int64_t i = 0, end; i < count; i = end) {
        end = i + 1;
        if ((slots[i].outputs & NIB_SLOT_HIDDEN) == 0)
            continue;
        while (end < count && (slots[end].outputs & NIB_SLOT_HIDDEN) != 0)
            end++;
        float *const to = on_gpu ? gathered + (r->hidden_rows - before) * width
                                 : r->hidden + r->hidden_rows * width;
        NIB_TRY(nib__runner_hidden(r, norm, i, end - i, to, err));
        r->hidden_rows += (size_t)(end - i);
    }
    const uint64_t values = (uint64_t)(r->hidden_rows - before) * width;
    if (!on_gpu || values == 0)
        return NIB_OK;
    return nib__gpu_read(r->gpu, r->hidden + before * width, gathered, values * sizeof *gathered,
                         err);
}

/* Moves the rows of slots that ask for logits to the front of the node's input; nothing reads the
 * others any more. */
static nib_status keep_wanted(nib_runner *r, const nib_node *node, const nib_slot *slots,
                              int64_t count, int64_t *kept, nib_err *err)
{
    const int side = node->side;
    const uint64_t row = (uint64_t)r->ops.ld[node->from] * sizeof(float);
    char *residual = r->sides[side].at[node->from];
    *kept = 0;
    for (int64_t i = 0; i < count; i++) {
        char *to = residual + (uint64_t)*kept * row, *from = residual + (uint64_t)i * row;
        if ((slots[i].outputs & NIB_SLOT_LOGITS) == 0)
            continue;
        if (to != from && side == NIB_SIDE_GPU)
            NIB_TRY(nib__gpu_copy(r->gpu, to, from, row, err));
        else if (to != from)
            memcpy(to, from, (size_t)row);
        ++*kept;
    }
    return NIB_OK;
}

/* Writes tokens and positions to the buffers of each side and allocates cache blocks; also updates
 * the cache's tables on the GPU. */
static nib_status write_slots(nib_runner *r, const nib_slot *slots, int64_t count, nib_err *err)
{
    const nib_side *cpu = &r->sides[NIB_SIDE_CPU];
    for (int64_t i = 0; i < count; i++) {
        cpu->ids[i] = slots[i].token;
        cpu->sequences[i] = slots[i].sequence;
        cpu->positions[i] = slots[i].position;
        extend_rope(r, slots[i].position);
        nib__kv_place(&r->kv, slots[i].sequence, slots[i].position);
    }
    if (!r->ops.uses_gpu)
        return NIB_OK;
    NIB_TRY(nib__gpu_write(r->gpu, r->sides[NIB_SIDE_GPU].ids, cpu->ids, SLOT_BYTES, err));
    return nib__kv_sync(&r->kv, err);
}

static nib_status record_time(nib_runner *r, size_t node, uint64_t from, nib_err *err)
{
    if (r->ops.nodes[node].side == NIB_SIDE_GPU)
        NIB_TRY(nib__gpu_finish(r->gpu, err));
    r->node_ns[node] += nib__now_ns() - from;
    return NIB_OK;
}

/* Runs operations [*at, end) for m tokens, up to the first that is for wanted slots only if `cut`
 * is false; *at: the first that has not run. */
static nib_status run_nodes(nib_runner *r, size_t *at, size_t end, int64_t m, bool cut,
                            nib_err *err)
{
    for (; *at < end; ++*at) {
        const nib_node *node = &r->ops.nodes[*at];
        if (node->wanted_only && !cut)
            return NIB_OK;
        if (node->to == NIB_BUFFER_LOGITS && node->side == NIB_SIDE_GPU)
            NIB_TRY(reserve_logits(r, m, err));
        const uint64_t from = r->node_ns != NULL ? nib__now_ns() : 0;
        const size_t joined = nib__runner_joined(node, end - *at, m);
        NIB_TRY(joined > 1 ? nib__runner_products(r, node, joined, m, err)
                           : nib__runner_node(r, node, m, err));
        if (r->node_ns != NULL)
            NIB_TRY(record_time(r, *at, from, err));
        *at += joined - 1;
    }
    return NIB_OK;
}

/* Runs up to NIB_CHUNK slots and writes the logits of those that ask for them to `logits`; *wanted:
 * how many. Adds hidden states to r->hidden. */
static nib_status run_chunk(nib_runner *r, const nib_slot *slots, int64_t count, float *logits,
                            int64_t *wanted, nib_err *err)
{
    const nib_node *last = &r->ops.nodes[r->ops.count - 1];
    int64_t m = count;
    size_t at = 0;
    NIB_TRY(write_slots(r, slots, count, err));
    r->sides[NIB_SIDE_CPU].at[NIB_BUFFER_LOGITS] = (char *)logits;
    NIB_TRY(run_nodes(r, &at, r->ops.count, m, false, err));
    if (at < r->ops.count) {
        NIB_TRY(keep_hidden(r, &r->ops.nodes[at], slots, count, err));
        NIB_TRY(keep_wanted(r, &r->ops.nodes[at], slots, count, &m, err));
        if (m != 0)
            NIB_TRY(run_nodes(r, &at, r->ops.count, m, true, err));
    }
    *wanted = m;
    NIB_TRY(nib__experts_check(r, err));
    if (m != 0 && last->side == NIB_SIDE_GPU && !r->keeps_logits)
        return nib__gpu_read(r->gpu, logits, r->sides[NIB_SIDE_GPU].at[NIB_BUFFER_LOGITS],
                             (uint64_t)m * r->ops.token_bytes[NIB_BUFFER_LOGITS], err);
    return r->ops.uses_gpu ? nib__gpu_finish(r->gpu, err) : NIB_OK;
}

/* *wanted, *hidden: how many slots ask for logits and for hidden states. */
static nib_status check_slots(nib_runner *r, const nib_slot *slots, size_t count, size_t *wanted,
                              size_t *hidden, nib_err *err)
{
    const int64_t vocab = nib__network_embed(r->net)->n;
    *wanted = *hidden = 0;
    for (size_t i = 0; i < count; i++) {
        if (slots[i].token < 0 || slots[i].token >= vocab)
            return nib__fail(err, NIB_BAD_INPUT,
                             "token %d is not one of the model's %" PRId64
                             "; does the tokenizer belong to another model?",
                             slots[i].token, vocab);
        if ((slots[i].outputs & ~(uint32_t)(NIB_SLOT_LOGITS | NIB_SLOT_HIDDEN)) != 0)
            return nib__fail(err, NIB_USAGE,
                             "slot %zu asks for outputs 0x%" PRIx32
                             "; known are NIB_SLOT_LOGITS, %d, and NIB_SLOT_HIDDEN, %d",
                             i, slots[i].outputs, NIB_SLOT_LOGITS, NIB_SLOT_HIDDEN);
        *wanted += (slots[i].outputs & NIB_SLOT_LOGITS) != 0;
        *hidden += (slots[i].outputs & NIB_SLOT_HIDDEN) != 0;
    }
    return NIB_OK;
}

/* Rolls the sequences back to before these slots, the last slot first; a sequence whose window has
 * moved on becomes empty. */
static void roll_back(nib_runner *r, const nib_slot *slots, size_t count)
{
    while (count-- > 0)
        nib__kv_truncate(&r->kv, slots[count].sequence, slots[count].position);
}

/* Extends every sequence by its slots or, if one is refused, none. */
static nib_status extend_all(nib_runner *r, const nib_slot *slots, size_t count, nib_err *err)
{
    for (size_t i = 0; i < count; i++) {
        const nib_status status = nib__kv_extend(&r->kv, slots[i].sequence, slots[i].position, err);
        if (status == NIB_OK)
            continue;
        roll_back(r, slots, i);
        return status;
    }
    return NIB_OK;
}

/* Reserves `count` rows of f32 [columns] for the caller. */
static nib_status reserve_rows(const nib_runner *r, float **rows, size_t *capacity, size_t count,
                               int64_t columns, const char *what, nib_err *err)
{
    void *at = *rows;
    const size_t row = (size_t)columns * sizeof(float);
    if (!nib__reserve(&r->engine->allocator, &at, capacity, count, row))
        return nib__fail_memory(err, count * (uint64_t)row, what);
    *rows = at;
    return NIB_OK;
}

/* Says once if the model's keys do not bear the type of the cache. */
static void judge_keys(nib_runner *r)
{
    const nib_callbacks *to = &r->engine->callbacks;
    nib_key_error e;
    char line[512], types[NIB_KV_NAME];
    const int64_t layer = nib__key_check_worst(r->key_check, &e);
    nib__key_check_close(r->key_check);
    r->key_check = NULL;
    if (nib__key_check_bears(&e))
        return;
    nib__format(
        line, sizeof line,
        "%s: the keys of layer %" PRId64 " do not bear --cache-type %s: it moves the scores of "
        "attention by %.2g (root mean square on the first %" PRId64
        " positions; they spread over %.2g, and weights change by a factor of e^%.2g); keep "
        "keys in more bits: --cache-type bf16, or bf16:int8. `nibble advise --cache` measures "
        "what each type costs",
        r->net->path, layer, nib__kv_name(types, r->kv.types), e.error, e.positions, e.spread,
        e.error);
    if (r->ledger != NULL)
        nib__ledger_add_note(r->ledger, "keys", "%s", line);
    if (to->log != NULL)
        to->log(to->ctx, line);
}

nib_status nib__runner_step(nib_runner *r, const nib_slot *slots, size_t count,
                            const float **logits, nib_err *err)
{
    const int64_t vocab = r->ops.ld[NIB_BUFFER_LOGITS], width = r->net->config.width;
    const float *given = r->given;
    size_t wanted, hidden;
    r->hidden_rows = 0;
    NIB_TRY(check_slots(r, slots, count, &wanted, &hidden, err));
    NIB_TRY(reserve_rows(r, &r->logits, &r->logits_capacity, wanted, vocab, "logits", err));
    NIB_TRY(reserve_rows(r, &r->hidden, &r->hidden_capacity, hidden, width, "hidden states", err));
    NIB_TRY(extend_all(r, slots, count, err));
    float *to = r->logits;
    for (size_t done = 0; done < count; done += NIB_CHUNK) {
        const int64_t part_count = nib__min((int64_t)(count - done), NIB_CHUNK);
        int64_t chunk_wanted = 0;
        r->given = given != NULL ? given + done * (size_t)width : NULL;
        const nib_status status = run_chunk(r, slots + done, part_count, to, &chunk_wanted, err);
        if (status != NIB_OK) {
            roll_back(r, slots, count);
            r->hidden_rows = 0;
            return status;
        }
        if (chunk_wanted > 0) /* `to` may be NULL */
            to += chunk_wanted * vocab;
    }
    if (wanted > 0)
        *logits = r->logits;
    if (r->key_check != NULL && nib__key_check_done(r->key_check))
        judge_keys(r);
    return NIB_OK;
}

/* ---- a layer at a time ---- */

/* The decoder layer of an operation's weight; -1: it has none, or one outside of the layers. */
static int64_t layer_of(const nib_runner *r, const nib_node *node)
{
    switch (node->op) {
    case NIB_OP_QUANT:
    case NIB_OP_GATHER:
    case NIB_OP_LINEAR:
        return nib__graph_weight(&r->net->graph, NIB_WEIGHT_MATRIX, node->site)->layer;
    case NIB_OP_NORM:
    case NIB_OP_NORM_QUANT: return node->entry != NULL ? node->entry->layer : -1;
    default: return -1;
    }
}

void nib__runner_layers(size_t *first, const nib_runner *r)
{
    const int64_t layers = r->net->config.layers;
    int64_t next = 0;
    for (size_t i = 0; i < r->ops.count && next <= layers; i++) {
        const bool begins =
            next < layers ? layer_of(r, &r->ops.nodes[i]) == next : r->ops.nodes[i].wanted_only;
        if (begins)
            first[next++] = i;
    }
}

int64_t nib__runner_state_width(const nib_runner *r, size_t at)
{
    bool live[NIB_BUFFERS_MAX];
    int64_t width = 0;
    nib__lowered_live(live, &r->ops, at);
    for (int i = 0; i < r->ops.buffer_count; i++)
        width += live[i] ? r->ops.ld[i] : 0;
    return width;
}

static void copy_state(const nib_runner *r, size_t at, int64_t count, float *state, bool restores)
{
    bool live[NIB_BUFFERS_MAX];
    nib__lowered_live(live, &r->ops, at);
    for (int i = 0; i < r->ops.buffer_count; i++) {
        const size_t bytes = (size_t)(live[i] ? count * r->ops.ld[i] : 0) * sizeof *state;
        char *buffer = r->sides[NIB_SIDE_CPU].at[i];
        if (bytes != 0)
            memcpy(restores ? buffer : (char *)state, restores ? (char *)state : buffer, bytes);
        state += bytes / sizeof *state;
    }
}

nib_status nib__runner_part(nib_runner *r, const nib_slot *slots, int64_t count, size_t first,
                            size_t end, const float *from, float *to, nib_err *err)
{
    size_t at = first;
    NIB_TRY(extend_all(r, slots, (size_t)count, err));
    NIB_TRY(write_slots(r, slots, count, err));
    if (from != NULL)
        copy_state(r, first, count, (float *)(uintptr_t)from, true);
    NIB_TRY(run_nodes(r, &at, end, count, false, err));
    if (to != NULL)
        copy_state(r, end, count, to, false);
    return NIB_OK;
}

nib_status nib__runner_final(nib_runner *r, size_t at, int64_t count, const float *from, float *out,
                             nib_err *err)
{
    copy_state(r, at, count, (float *)(uintptr_t)from, true);
    return nib__runner_hidden(r, &r->ops.nodes[at], 0, count, out, err);
}

nib_status nib__runner_logits(nib_runner *r, size_t at, int64_t count, const float *from,
                              float *logits, nib_err *err)
{
    copy_state(r, at, count, (float *)(uintptr_t)from, true);
    r->sides[NIB_SIDE_CPU].at[NIB_BUFFER_LOGITS] = (char *)logits;
    return run_nodes(r, &at, r->ops.count, count, true, err);
}

bool nib__runner_logits_on_device(const nib_runner *r)
{
    return r->ops.nodes[r->ops.count - 1].side == NIB_SIDE_GPU;
}

nib_status nib__runner_draw(nib_runner *r, const nib_kernel *row, nib_draw draw, int64_t wanted,
                            int32_t *token, nib_err *err)
{
    void *drawn = r->drawn;
    if (drawn == NULL)
        NIB_TRY(nib__gpu_alloc(r->gpu, sizeof *token, "a token", &drawn, err));
    r->drawn = drawn;
    draw.token = r->drawn;
    draw.logits =
        (const float *)(const void *)(r->sides[NIB_SIDE_GPU].at[NIB_BUFFER_LOGITS] +
                                      (uint64_t)wanted * r->ops.token_bytes[NIB_BUFFER_LOGITS]);
    NIB_TRY(nib__gpu_run(r->gpu, row, &draw, err));
    return nib__gpu_read(r->gpu, token, r->drawn, sizeof *token, err);
}
