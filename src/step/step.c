/* SPDX-License-Identifier: Apache-2.0
 *
 * Allocates the memory of a micro-batch: buffers, packed weights, the cache, scratch of each
 * worker.
 */
#include "step_experts.h"
#include "step_states.h"

#include "cast.h"

#include <inttypes.h>

static uint64_t aligned(uint64_t bytes) { return (bytes + 63) & ~UINT64_C(63); }
static uint64_t larger(uint64_t a, uint64_t b) { return a > b ? a : b; }

static uint64_t product_scratch(const nib_step *s)
{
    uint64_t most = 0;
    for (size_t i = 1; i < s->net->site_count; i++)
        for (int p = 0; p < NIB_PRODUCTS; p++) {
            const int64_t rows = nib__product_rows(s->plan->layers[i].layer, p, s->m);
            const uint64_t want = nib__product_scratch(&s->products[i][p], rows);
            most = want > most ? want : most;
        }
    return most;
}

/* The encoded x side of the rows that a worker takes through a chain. */
static uint64_t rows_input_bytes(const nib_step *s)
{
    uint64_t most = 0;
    for (size_t i = 1; i < s->net->site_count; i++)
        for (int p = NIB_PRODUCT_Y; p <= NIB_PRODUCT_DX; p++) {
            uint64_t bytes;
            nib__product_input(&s->products[i][p], nib__min(s->m, NIB_CHAIN_ROWS), NULL, &bytes);
            most = bytes > most ? bytes : most;
        }
    return most;
}

nib_cache nib__step_cache(const nib_step *s, int64_t layer)
{
    const nib_config *c = &s->net->config;
    nib_kv_shape shape =
        nib__kv_shape(c, s->documents, s->options.length, nib__kv_both(s->plan->dtype));
    if (shape.value_dim == 0) {
        shape.kv_heads = nib__config_kv_heads(c, layer);
        shape.head_dim = nib__config_head_dim(c, layer);
    }
    const int64_t head = nib__cache_bytes(s->plan->dtype, shape.head_dim, NIB_CACHE_BLOCK);
    return (nib_cache){.types = shape.types,
                       .tables = s->tables,
                       .table_ld = s->table_ld,
                       .kv_heads = shape.kv_heads,
                       .head_dim = shape.head_dim,
                       .value_dim = shape.value_dim,
                       .block_bytes = shape.kv_heads * head};
}

static uint64_t attention_scratch(const nib_step *s)
{
    const int64_t heads = s->net->config.heads;
    uint64_t most = 0;
    for (size_t i = 0; i < s->count; i++) {
        const nib_train_node *n = &s->nodes[i];
        if (n->op != NIB_OP_ATTN && n->op != NIB_OP_ATTN_DX)
            continue;
        nib_cache cache = nib__step_cache(s, n->layer);
        cache.values = cache.value_dim > 0 ? NULL : &cache; /* only sizes are asked */
        const nib_attn forward = {.cache = cache, .heads = heads};
        const nib_attn_dx backward = {.cache = cache, .heads = heads, .m = s->m};
        const void *args = n->op == NIB_OP_ATTN ? (const void *)&forward : (const void *)&backward;
        if (n->row->scratch)
            most = (uint64_t)nib__max((int64_t)most, (int64_t)n->row->scratch(args));
    }
    return most;
}

/* ---- memory ---- */

static nib_status fail_memory(const nib_step *s, uint64_t bytes, const char *what, nib_err *err)
{
    static const char *const modes[] = {
        [NIB_AC_NONE] = ", or set activation_checkpoint.mode to selective or full",
        [NIB_AC_SELECTIVE] = ", or set activation_checkpoint.mode to full",
        [NIB_AC_FULL] = ""};
    char size[32];
    return nib__fail(err, NIB_NO_MEMORY,
                     "out of memory: cannot allocate %s for the %s of a micro-batch of %" PRId64
                     " x %" PRId64 " tokens; lower training.local_batch_size or training.seq_len%s",
                     nib__format_bytes(size, bytes), what, s->options.batch, s->options.length,
                     modes[s->options.checkpointing]);
}

/* Allocates a block, unless only sizes are wanted. */
static bool allocate(const nib_step *s, char **to, uint64_t bytes)
{
    if (s->options.sizes_only)
        return true;
    *to = nib__block_take(bytes);
    return *to != NULL;
}

/* Sizes below are computed without overflow checks, so sizes far below an overflow are refused
 * here. A layer has at most 64 buffers and forms, each of at most these channels. */
static nib_status check_sizes(const nib_step *s, nib_err *err)
{
    const nib_config *c = &s->net->config;
    const double channels =
        (double)c->width + (double)c->ffn +
        (double)(c->heads + 2 * nib__max(c->kv_heads, c->global_kv_heads)) *
            (double)(nib__max(c->head_dim, c->global_head_dim) + c->latent.rank) +
        (double)c->moe.top_k * ((double)c->width + (double)c->moe.ffn) + (double)c->moe.experts +
        (c->conv_layers != NULL ? 3 * (double)nib__config_conv_channels(c) : 0);
    const double layers = (double)nib__config_trained_layers(c) + 1,
                 batch = (double)s->m *
                         (layers * 64 * channels + 16 * (double)nib__network_head(s->net)->n),
                 weights = (double)s->params->total * 8;
    if ((batch + weights) * sizeof(float) < 0x1p62)
        return NIB_OK;
    return fail_memory(s, UINT64_MAX / 2, "buffers", err);
}

nib_status nib__step_reserve(nib_step *s, int64_t documents, int64_t blocks, nib_err *err)
{
    if (documents <= s->documents && blocks <= s->cache_blocks)
        return NIB_OK;
    if (s->cache_blocks > 0) { /* grow by 1/8, so that it does not grow with every batch */
        documents = nib__min(s->m, documents + documents / 8);
        blocks = nib__min(s->m, blocks + blocks / 8);
    }
    nib__block_free(s->cache, s->cache_bytes);
    nib__block_free(s->tables, s->table_bytes);
    s->cache = NULL;
    s->tables = NULL;
    s->documents = nib__max(documents, s->documents);
    s->cache_blocks = nib__max(blocks, s->cache_blocks);
    s->cache_side = 0;
    for (int64_t i = 0; i < nib__config_trained_layers(&s->net->config); i++) {
        const nib_cache cache = nib__step_cache(s, i);
        s->cache_side = larger(s->cache_side, (uint64_t)(s->cache_blocks * cache.block_bytes));
    }
    s->cache_bytes = (s->net->config.latent.rank > 0 ? 1 : 2) * s->cache_side * s->caches;
    s->table_bytes = (uint64_t)(s->documents * s->table_ld) * sizeof *s->tables;
    char *tables = NULL;
    const bool ok = allocate(s, &s->cache, s->cache_bytes) && allocate(s, &tables, s->table_bytes);
    s->tables = (int32_t *)(void *)tables;
    return ok ? NIB_OK : fail_memory(s, s->cache_bytes + s->table_bytes, "keys and values", err);
}

/* Sets the offset of each region of a side; returns the bytes of regions and buffers. */
static uint64_t lay_out_side(nib_step_side *side)
{
    uint64_t used = 0;
    for (int i = 0; i < NIB_REGIONS; i++) {
        side->region_at[i] = used;
        used += aligned(side->region_bytes[i]);
    }
    side->buffers_at = used;
    return used + side->buffer_bytes;
}

static nib_status allocate_block(nib_step *s, nib_err *err)
{
    nib_step_side *here = &s->sides[NIB_SIDE_CPU];
    const uint64_t used = lay_out_side(here);
    s->workers.pool = s->engine->pool;
    s->rows_input = aligned(
        larger(larger(product_scratch(s), attention_scratch(s)), nib__step_states_scratch(s)));
    s->rows_scratch = s->rows_input + aligned(rows_input_bytes(s));
    s->experts.scratch_at = s->rows_scratch + nib__step_chain_scratch(s);
    s->workers.scratch_bytes = s->experts.scratch_at + nib__step_experts_scratch(s);
    here->block_bytes =
        used + s->workers.scratch_bytes * (uint64_t)nib__pool_threads(s->engine->pool);
    if (!allocate(s, &here->block, here->block_bytes))
        return fail_memory(s, here->block_bytes, "buffers", err);
    s->workers.scratch = here->block ? here->block + used : NULL;
    return NIB_OK;
}

uint64_t nib__step_packed_bytes(const nib_step *s, size_t site, uint64_t at[NIB_PACKED_COUNT])
{
    const bool has_bias = nib__step_side(s, site) == NIB_SIDE_GPU && s->net->sites[site].bias;
    uint64_t used = 0;
    for (int p = NIB_PACKED_Y; p <= NIB_PACKED_DX; p++) {
        const nib_product *product = &s->products[site][p];
        at[p] = used;
        used += aligned(nib__cast_bytes(product->row, &product->shape));
    }
    at[NIB_PACKED_BIAS] = used;
    return used + (has_bias ? aligned((uint64_t)s->net->sites[site].n * sizeof(float)) : 0);
}

/* Allocates the CPU's packed weights and points its layers to them. */
static nib_status allocate_packed(nib_step *s, nib_err *err)
{
    nib_step_side *here = &s->sides[NIB_SIDE_CPU];
    uint64_t at[NIB_PACKED_COUNT];
    for (size_t i = 1; i < s->net->site_count; i++)
        if (nib__step_side(s, i) == NIB_SIDE_CPU)
            here->packed_bytes += nib__step_packed_bytes(s, i, at);
    if (!allocate(s, &here->packed, here->packed_bytes))
        return nib__fail_memory(err, here->packed_bytes, "the packed weights");
    char *next = here->packed;
    for (size_t i = 1; next != NULL && i < s->net->site_count; i++) {
        if (nib__step_side(s, i) != NIB_SIDE_CPU)
            continue;
        const uint64_t bytes = nib__step_packed_bytes(s, i, at);
        for (int p = 0; p < NIB_PACKED_COUNT; p++)
            s->packed[i][p] = next + at[p];
        next += bytes;
    }
    return NIB_OK;
}

/* Positions and sequences of tokens, and rotation tables. */
static nib_status allocate_positions(nib_step *s, nib_err *err)
{
    const size_t m = (size_t)s->m;
    const nib_config *c = &s->net->config;
    s->rope_size = nib__rope_size(c, s->options.length);
    s->rope_bytes = s->rope_size * (uint64_t)nib__config_ropes(c) * sizeof *s->rope;
    s->position_bytes = m * (c->trains_head ? 4 : 2) * sizeof *s->sequence;
    char *rope = NULL, *positions = NULL;
    const bool ok = allocate(s, &rope, s->rope_bytes) && allocate(s, &positions, s->position_bytes);
    s->rope = (float *)(void *)rope;
    s->sequence = (int32_t *)(void *)positions;
    if (!ok)
        return fail_memory(s, s->rope_bytes + s->position_bytes, "positions", err);
    if (s->options.sizes_only)
        return NIB_OK;
    s->position = s->sequence + m;
    if (c->trains_head)
        s->ids_ahead = s->position + m, s->targets_ahead = s->ids_ahead + m;
    for (int i = 0; i < nib__config_ropes(c); i++)
        nib__rope_table(s->rope + (uint64_t)i * s->rope_size, c, i, s->options.length, 0,
                        s->options.length);
    return NIB_OK;
}

static nib_status allocate_vectors(nib_step *s, nib_err *err)
{
    const nib_graph *g = &s->net->graph;
    const size_t norms = g->kind_count[NIB_WEIGHT_NORM];
    uint64_t count = 0;
    s->formed_at = nib__arena_take(&s->arena, norms, sizeof *s->formed_at);
    for (size_t i = 0; s->formed_at != NULL && i < norms; i++) {
        const nib_graph_weight *norm = nib__graph_weight(g, NIB_WEIGHT_NORM, i);
        s->formed_at[i] = count;
        count += nib__step_forms(norm) ? (uint64_t)norm->n : 0;
    }
    int64_t widest = 0;
    for (size_t i = 0; i < g->node_count; i++)
        if (g->nodes[i].op == NIB_OP_NORM && g->nodes[i].weight == NIB_NO_ID)
            widest = nib__max(widest, g->values[g->nodes[i].out].columns / g->nodes[i].heads);
    s->formed = nib__arena_take(&s->arena, count, sizeof *s->formed);
    s->ones = nib__arena_take(&s->arena, (uint64_t)widest, sizeof *s->ones);
    for (int64_t i = 0; s->ones != NULL && i < widest; i++)
        s->ones[i] = 1.0f;
    return s->formed_at != NULL && s->formed != NULL && s->ones != NULL
               ? NIB_OK
               : nib__fail_memory(err, (count + (uint64_t)widest) * sizeof *s->formed,
                                  "norm weights");
}

static nib_status open_step(nib_step *s, nib_err *err)
{
    s->table_ld = nib__ceil_div(s->options.length, NIB_CACHE_BLOCK);
    NIB_TRY(check_sizes(s, err));
    NIB_TRY(nib__step_lower(s, err));
    NIB_TRY(nib__step_make_chains(s, err));
    s->sides[NIB_SIDE_GPU].block_bytes = lay_out_side(&s->sides[NIB_SIDE_GPU]);
    NIB_TRY(nib__step_open_device(s, err));
    NIB_TRY(allocate_block(s, err));
    NIB_TRY(allocate_packed(s, err));
    NIB_TRY(allocate_vectors(s, err));
    NIB_TRY(nib__step_open_states(s, err));
    NIB_TRY(allocate_positions(s, err));
    /* for documents as long as the sequences; shorter ones grow it on demand */
    return nib__step_reserve(s, s->options.batch, s->table_ld * s->options.batch, err);
}

nib_status nib__step_open(nib_step *out, const nib_network *net, const nib_assignment *plan,
                          const nib_params *params, const nib_step_options *options,
                          nib_refusal *refusal, nib_err *err)
{
    *out = (nib_step){.engine = net->engine,
                      .net = net,
                      .plan = plan,
                      .params = params,
                      .options = *options,
                      .m = options->batch * options->length};
    nib__arena_init(&out->arena, &net->engine->allocator, 0);
    const nib_status status = open_step(out, err);
    *refusal = out->refusal;
    if (status != NIB_OK)
        nib__step_close(out);
    return status;
}

void nib__step_close(nib_step *s)
{
    const nib_step_side *here = &s->sides[NIB_SIDE_CPU];
    nib__step_close_device(s);
    nib__block_free(here->block, here->block_bytes);
    nib__block_free(here->packed, here->packed_bytes);
    nib__block_free(s->cache, s->cache_bytes);
    nib__block_free(s->tables, s->table_bytes);
    nib__block_free(s->rope, s->rope_bytes);
    nib__block_free(s->sequence, s->position_bytes);
    nib__block_free(s->fake_block, s->fake_bytes);
    nib__arena_free(&s->arena);
    *s = (nib_step){0};
}

uint64_t nib__step_bytes(const nib_step *s)
{
    const nib_step_side *here = &s->sides[NIB_SIDE_CPU];
    return here->block_bytes + here->packed_bytes + s->cache_bytes + s->table_bytes +
           s->rope_bytes + s->position_bytes + s->fake_bytes + s->arena.total;
}

uint64_t nib__step_device_bytes(const nib_step *s)
{
    return s->sides[NIB_SIDE_GPU].block_bytes + s->sides[NIB_SIDE_GPU].packed_bytes;
}
