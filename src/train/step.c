/* SPDX-License-Identifier: Apache-2.0
 *
 * Opens a micro-batch's buffers: what is kept per layer, what is held once, packed weights, scratch
 * of each worker.
 */
#include "step.h"

#include "cast.h"

#include <inttypes.h>

static uint64_t aligned(uint64_t bytes) { return (bytes + 63) & ~UINT64_C(63); }

/* How many of a buffer there are. */
static uint64_t copies(const nib_step *s, int buffer)
{
    const uint64_t layers = (uint64_t)s->net->config.layers;
    if (buffer == NIB_KEPT_X1)
        return layers + 1;
    return buffer >= NIB_KEPT_INPUTS || s->options.checkpointing == NIB_AC_FULL ? 1 : layers;
}

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

static uint64_t attention_scratch(const nib_step *s)
{
    const nib_config *c = &s->net->config;
    const nib_cache cache = {.type = s->plan->dtype,
                             .kv_heads = c->kv_heads,
                             .head_dim = c->head_dim,
                             .table_ld = s->table_ld};
    const nib_attn forward = {.cache = cache, .heads = c->heads};
    const nib_attn_dx backward = {.cache = cache, .heads = c->heads, .m = s->m};
    uint64_t most = 0;
    for (size_t i = 0; i < s->count; i++) {
        const nib_train_node *n = &s->nodes[i];
        const void *args = n->op == NIB_OP_ATTN      ? (const void *)&forward
                           : n->op == NIB_OP_ATTN_DX ? (const void *)&backward
                                                     : NULL;
        if (args && n->row->scratch)
            most = (uint64_t)nib__max((int64_t)most, (int64_t)n->row->scratch(args));
    }
    return most;
}

/* Room for the keys and values of all layers that are kept: `blocks` of NIB_CACHE_BLOCK positions.
 */
nib_status nib__step_take_cache(nib_step *s, int64_t blocks, nib_err *err)
{
    const nib_config *c = &s->net->config;
    const uint64_t value = s->plan->dtype == NIB_TYPE_F32 ? 4 : 2;
    const uint64_t side =
        (uint64_t)blocks * NIB_CACHE_BLOCK * (uint64_t)(c->kv_heads * c->head_dim) * value;
    const uint64_t bytes = 2 * side * copies(s, NIB_KEPT_CACHE);
    nib__block_free(s->cache, (size_t)s->cache_bytes);
    s->cache_bytes = 0;
    s->cache_blocks = 0;
    s->cache = nib__block_take((size_t)bytes);
    if (!s->cache)
        return nib__fail_memory(err, (size_t)bytes, "the keys and values of a micro-batch");
    s->cache_bytes = bytes;
    s->cache_side = side;
    s->cache_blocks = blocks;
    return NIB_OK;
}

static nib_status take_block(nib_step *s, nib_err *err)
{
    uint64_t used = 0;
    for (int i = 0; i < NIB_TRAIN_BUFFERS; i++) {
        s->at[i] = used;
        s->each[i] = aligned(s->each[i]);
        used += s->each[i] * copies(s, i);
    }
    s->workers.pool = s->engine->pool;
    s->workers.scratch_bytes =
        aligned((uint64_t)nib__max((int64_t)product_scratch(s), (int64_t)attention_scratch(s)));
    s->block_bytes = used + s->workers.scratch_bytes * (uint64_t)nib__pool_threads(s->engine->pool);
    s->block = nib__block_take((size_t)s->block_bytes);
    if (!s->block)
        return nib__fail_memory(err, (size_t)s->block_bytes, "a micro-batch's buffers");
    s->workers.scratch = s->block + used;
    return NIB_OK;
}

static nib_status take_packed(nib_step *s, nib_err *err)
{
    for (size_t i = 1; i < s->net->site_count; i++)
        for (int p = 0; p < 2; p++) {
            const nib_product *product = &s->products[i][p];
            s->packed_at[i][p] = s->packed_bytes;
            s->packed_bytes += aligned(nib__cast_bytes(product->row, &product->shape));
        }
    s->packed = nib__block_take((size_t)s->packed_bytes);
    return s->packed ? NIB_OK
                     : nib__fail_memory(err, (size_t)s->packed_bytes, "the packed weights");
}

static nib_status open_parts(nib_step *s, nib_err *err)
{
    s->table_ld = nib__ceil_div(s->options.length, NIB_CACHE_BLOCK);
    NIB_TRY(nib__step_lower(s, err));
    NIB_TRY(take_block(s, err));
    NIB_TRY(take_packed(s, err));
    /* documents as long as the sequences; shorter ones get more room when they come */
    NIB_TRY(nib__step_take_cache(s, s->table_ld * s->options.batch, err));
    s->rope_bytes =
        (uint64_t)s->options.length * (uint64_t)s->net->config.head_dim * sizeof *s->rope;
    s->rope = nib__block_take((size_t)s->rope_bytes);
    const size_t m = (size_t)s->m;
    s->sequence = nib__arena_take(&s->arena, m, sizeof *s->sequence);
    s->position = nib__arena_take(&s->arena, m, sizeof *s->position);
    s->tables = nib__arena_take(&s->arena, m * (size_t)s->table_ld, sizeof *s->tables);
    if (!s->rope || !s->sequence || !s->position || !s->tables)
        return nib__fail_memory(err, (size_t)s->rope_bytes, "a micro-batch's positions");
    nib__rope_table(s->rope, &s->net->config, s->options.length);
    return NIB_OK;
}

nib_status nib__step_open(nib_step *out, const nib_network *net, const nib_layers_plan *plan,
                          const nib_params *params, const nib_step_options *options, nib_err *err)
{
    *out = (nib_step){.engine = net->engine,
                      .net = net,
                      .plan = plan,
                      .params = params,
                      .options = *options,
                      .m = options->batch * options->length};
    nib__arena_init(&out->arena, &net->engine->allocator, 0);
    const nib_status status = open_parts(out, err);
    if (status != NIB_OK)
        nib__step_close(out);
    return status;
}

void nib__step_close(nib_step *s)
{
    nib__block_free(s->block, (size_t)s->block_bytes);
    nib__block_free(s->packed, (size_t)s->packed_bytes);
    nib__block_free(s->cache, (size_t)s->cache_bytes);
    nib__block_free(s->rope, (size_t)s->rope_bytes);
    nib__block_free(s->fake_block, (size_t)s->fake_bytes);
    nib__arena_free(&s->arena);
    *s = (nib_step){0};
}

uint64_t nib__step_bytes(const nib_step *s)
{
    return s->block_bytes + s->packed_bytes + s->cache_bytes + s->rope_bytes + s->fake_bytes;
}
