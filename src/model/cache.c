/* SPDX-License-Identifier: Apache-2.0
 *
 * Hands out cache blocks.
 */
#include "cache.h"

#include <inttypes.h>

static nib_status size_of(nib_kv *kv, nib_err *err)
{
    uint64_t heads = 0, all = 0;
    const int64_t head = nib__cache_bytes(kv->type, kv->head_dim, NIB_CACHE_BLOCK);
    if (!nib__mul(&heads, (uint64_t)kv->kv_heads, (uint64_t)(2 * kv->layers)) ||
        !nib__mul(&all, heads, (uint64_t)kv->blocks) ||
        !nib__mul(&kv->block_bytes, all, (uint64_t)head) || kv->block_bytes > SIZE_MAX / 2)
        return nib__fail(err, NIB_NO_MEMORY,
                         "a cache for %" PRId64 " sequences of %" PRId64
                         " positions does not fit; ask for a shorter context",
                         kv->sequences, kv->context);
    kv->block_heads = kv->gpu != NULL ? kv->kv_heads : (int64_t)heads;
    kv->side_bytes = (uint64_t)(kv->kv_heads * head) * (uint64_t)(kv->gpu != NULL ? kv->blocks : 1);
    return NIB_OK;
}

#define WHAT "the cache of keys and values; ask for a shorter context"

static nib_status take_block(nib_kv *kv, nib_err *err)
{
    void *block = NULL;
    if (kv->gpu != NULL) {
        NIB_TRY(nib__gpu_take(kv->gpu, kv->block_bytes, WHAT, &block, err));
        kv->block = block;
        kv->stale = true;
        return nib__gpu_take(kv->gpu, (uint64_t)kv->blocks * sizeof *kv->tables, WHAT,
                             &kv->gpu_tables, err);
    }
    kv->block = nib__block_take((size_t)kv->block_bytes);
    return kv->block != NULL ? NIB_OK : nib__fail_memory(err, (size_t)kv->block_bytes, WHAT);
}

nib_status nib__kv_open(nib_kv *out, int64_t layers, int64_t kv_heads, int64_t head_dim,
                        int64_t sequences, int64_t context, nib_type type, nib_gpu *gpu,
                        const nib_allocator *a, nib_err *err)
{
    nib_kv kv = {.allocator = a,
                 .gpu = gpu,
                 .layers = layers,
                 .kv_heads = kv_heads,
                 .head_dim = head_dim,
                 .sequences = sequences,
                 .context = context,
                 .type = type};
    kv.table_ld = nib__ceil_div(context, NIB_CACHE_BLOCK);
    kv.blocks = kv.table_ld * sequences;
    if (kv.blocks > INT32_MAX)
        return nib__fail(err, NIB_NO_MEMORY,
                         "%" PRId64 " cache blocks are over the limit of %d; ask for a shorter "
                         "context or fewer sequences",
                         kv.blocks, INT32_MAX);
    NIB_TRY(size_of(&kv, err));
    kv.tables = nib__calloc(a, (size_t)kv.blocks, sizeof *kv.tables);
    kv.free = nib__calloc(a, (size_t)kv.blocks, sizeof *kv.free);
    kv.uses = nib__calloc(a, (size_t)kv.blocks, sizeof *kv.uses);
    kv.lengths = nib__calloc(a, (size_t)sequences, sizeof *kv.lengths);
    const nib_status status = take_block(&kv, err);
    if (status != NIB_OK || !kv.tables || !kv.free || !kv.uses || !kv.lengths) {
        nib__kv_close(&kv);
        return status != NIB_OK
                   ? status
                   : nib__fail_memory(err, (size_t)kv.blocks * 3 * sizeof *kv.tables, WHAT);
    }
    for (int64_t i = 0; i < kv.blocks; i++) {
        kv.tables[i] = -1;
        kv.free[i] = (int32_t)(kv.blocks - 1 - i);
    }
    kv.free_count = kv.blocks;
    *out = kv;
    return NIB_OK;
}

void nib__kv_close(nib_kv *kv)
{
    if (kv->gpu != NULL) {
        nib__gpu_give(kv->gpu, kv->block);
        nib__gpu_give(kv->gpu, kv->gpu_tables);
    } else {
        nib__block_free(kv->block, (size_t)kv->block_bytes);
    }
    nib__release(kv->allocator, kv->tables);
    nib__release(kv->allocator, kv->free);
    nib__release(kv->allocator, kv->uses);
    nib__release(kv->allocator, kv->lengths);
    *kv = (nib_kv){0};
}

nib_status nib__kv_sync(nib_kv *kv, nib_err *err)
{
    if (kv->gpu == NULL || !kv->stale)
        return NIB_OK;
    kv->stale = false;
    return nib__gpu_write(kv->gpu, kv->gpu_tables, kv->tables,
                          (uint64_t)kv->blocks * sizeof *kv->tables, err);
}

nib_status nib__kv_extend(nib_kv *kv, int64_t sequence, int64_t position, nib_err *err)
{
    if (sequence < 0 || sequence >= kv->sequences)
        return nib__fail(err, NIB_USAGE,
                         "sequence %" PRId64 " is not one of the %" PRId64 " that were opened",
                         sequence, kv->sequences);
    if (position != kv->lengths[sequence])
        return nib__fail(err, NIB_USAGE,
                         "position %" PRId64 " of sequence %" PRId64 " is not its next, %d",
                         position, sequence, kv->lengths[sequence]);
    if (position >= kv->context)
        return nib__fail(err, NIB_NO_MEMORY,
                         "position %" PRId64 " of sequence %" PRId64
                         " is past the context of %" PRId64,
                         position, sequence, kv->context);
    int32_t *entry = &kv->tables[sequence * kv->table_ld + position / NIB_CACHE_BLOCK];
    if (*entry < 0) {
        *entry = kv->free[--kv->free_count]; /* never empty: there is a block for every entry */
        kv->uses[*entry] = 1;
        kv->stale = true;
    }
    kv->lengths[sequence]++;
    return NIB_OK;
}

void nib__kv_truncate(nib_kv *kv, int64_t sequence, int64_t position)
{
    if (position >= kv->lengths[sequence])
        return;
    int32_t *table = kv->tables + sequence * kv->table_ld;
    for (int64_t i = nib__ceil_div(position, NIB_CACHE_BLOCK); i < kv->table_ld && table[i] >= 0;
         i++) {
        if (--kv->uses[table[i]] == 0)
            kv->free[kv->free_count++] = table[i];
        table[i] = -1;
    }
    kv->lengths[sequence] = (int32_t)position;
}

int64_t nib__kv_keep(nib_kv *kv, int64_t sequence, int64_t position)
{
    position = nib__min(position, kv->lengths[sequence]);
    const int64_t last = position / NIB_CACHE_BLOCK; /* the block that the next position is in */
    if (position % NIB_CACHE_BLOCK != 0 && kv->uses[kv->tables[sequence * kv->table_ld + last]] > 1)
        position = last * NIB_CACHE_BLOCK;
    nib__kv_truncate(kv, sequence, position);
    return position;
}

void nib__kv_share(nib_kv *kv, int64_t from, int64_t to, int64_t positions)
{
    const int32_t *source = kv->tables + from * kv->table_ld;
    int32_t *target = kv->tables + to * kv->table_ld;
    for (int64_t i = 0; i < positions / NIB_CACHE_BLOCK; i++) {
        target[i] = source[i];
        kv->uses[source[i]]++;
    }
    kv->lengths[to] = (int32_t)positions;
    kv->stale = true;
}

nib_cache nib__kv_layer(const nib_kv *kv, int64_t layer)
{
    char *keys = kv->block + (uint64_t)(2 * layer) * kv->side_bytes;
    return (nib_cache){.keys = keys,
                       .values = keys + kv->side_bytes,
                       .type = kv->type,
                       .tables = kv->gpu != NULL ? kv->gpu_tables : kv->tables,
                       .table_ld = kv->table_ld,
                       .kv_heads = kv->kv_heads,
                       .head_dim = kv->head_dim,
                       .block_heads = kv->block_heads};
}

uint64_t nib__kv_used_bytes(const nib_kv *kv)
{
    const uint64_t used = (uint64_t)(kv->blocks - kv->free_count);
    return kv->blocks == 0 ? 0 : kv->block_bytes / (uint64_t)kv->blocks * used;
}
