/* SPDX-License-Identifier: Apache-2.0
 *
 * Allocates and frees cache blocks.
 */
#include "cache.h"

#include <inttypes.h>

/* ---- sizes ---- */

nib_kv_shape nib__kv_shape(const nib_config *c, int64_t sequences, int64_t context,
                           nib_kv_types types)
{
    const bool latent = c->latent.rank > 0;
    return (nib_kv_shape){.layers = c->layers - c->shared_layers,
                          .kv_heads = latent ? 1 : c->kv_heads,
                          .head_dim = latent ? nib__config_latent_key(c) : c->head_dim,
                          .value_dim = c->latent.rank,
                          .global_kv_heads = c->global_kv_heads,
                          .global_head_dim = c->global_head_dim,
                          .sequences = sequences,
                          .context = context,
                          .types = types,
                          .window = c->window,
                          .window_layers = c->window_layers,
                          .states = {.layers = c->layers,
                                     .has = c->conv_layers,
                                     .channels = nib__config_conv_channels(c),
                                     .taps = c->conv_taps,
                                     .matrix = c->matrix,
                                     .slots = NIB_CACHE_SPARE}};
}

static bool has_keys(const nib_kv_shape *s, int64_t layer)
{
    return s->states.has == NULL || !s->states.has[layer];
}

/* Keys and values, or keys alone. */
static int64_t sides_of(const nib_kv_shape *s) { return s->value_dim > 0 ? 1 : 2; }

/* The number of positions that a layer with a window keeps. 0: all of them, if the model has no
 * window or one nearly as long as the context. */
static int64_t kept_window(const nib_kv_shape *s)
{
    return s->window > 0 && s->window < s->context - NIB_CACHE_SPARE ? s->window : 0;
}

/* Whether layers without the window have other heads than those with it. */
static bool has_own_heads(const nib_kv_shape *s)
{
    return s->global_head_dim > 0 || s->global_kv_heads > 0;
}

/* Whether the layer is in the group of layers with the window: they keep other positions than the
 * others, or have other heads. */
static bool is_windowed(const nib_kv_shape *s, int64_t layer)
{
    return has_keys(s, layer) && s->window > 0 &&
           (s->window_layers == NULL || s->window_layers[layer]) &&
           (kept_window(s) > 0 || has_own_heads(s));
}

/* Blocks per sequence: the window and the spare positions, which may begin anywhere in a block. */
static int64_t blocks_per_sequence(const nib_kv_shape *s, int64_t window)
{
    const int64_t all = nib__ceil_div(s->context, NIB_CACHE_BLOCK);
    const int64_t positions = window + NIB_CACHE_SPARE - 1;
    return window == 0 ? all : nib__min(all, nib__ceil_div(positions - 1, NIB_CACHE_BLOCK) + 1);
}

/* Layers with the window, or without it. */
static int64_t count_layers(const nib_kv_shape *s, bool windowed)
{
    int64_t count = 0;
    for (int64_t i = 0; i < s->layers; i++)
        count += has_keys(s, i) && is_windowed(s, i) == windowed;
    return count;
}

/* Bytes of the keys of a head for `positions` positions, and of its values; 0: it has none. */
static int64_t key_bytes(const nib_kv_shape *s, int64_t head_dim, int64_t positions)
{
    return nib__cache_bytes(s->types.keys.type, head_dim, positions);
}
static int64_t value_bytes(const nib_kv_shape *s, int64_t head_dim, int64_t positions)
{
    return sides_of(s) == 1 ? 0 : nib__cache_bytes(s->types.values.type, head_dim, positions);
}

/* Computes the sizes of a group from its window and layers. */
static nib_status size_group(nib_kv_group *g, const nib_kv_shape *s, bool on_gpu, nib_err *err)
{
    uint64_t heads = 0, all = 0;
    const int64_t keys = key_bytes(s, g->head_dim, NIB_CACHE_BLOCK),
                  both = keys + value_bytes(s, g->head_dim, NIB_CACHE_BLOCK);
    const int64_t each = blocks_per_sequence(s, g->window);
    if (each > INT32_MAX / s->sequences)
        return nib__fail(err, NIB_NO_MEMORY,
                         "%" PRId64 " sequences of %" PRId64
                         " cache blocks are over the limit of %d; ask for a shorter context or "
                         "fewer sequences",
                         s->sequences, each, INT32_MAX);
    g->blocks = each * s->sequences;
    if (!nib__mul(&heads, (uint64_t)g->kv_heads, (uint64_t)g->layers) ||
        !nib__mul(&all, heads, (uint64_t)g->blocks) ||
        !nib__mul(&g->block_bytes, all, (uint64_t)both) || g->block_bytes > INT64_MAX / 2)
        return nib__fail(err, NIB_NO_MEMORY,
                         "a KV cache for %" PRId64 " sequences of %" PRId64
                         " positions does not fit; ask for a shorter context",
                         s->sequences, s->context);
    const int64_t blocks = on_gpu ? g->blocks : 1;
    g->stride = g->kv_heads * (on_gpu ? keys : both * g->layers);
    g->key_bytes = (uint64_t)(g->kv_heads * keys * blocks);
    g->layer_bytes = (uint64_t)(g->kv_heads * both * blocks);
    return NIB_OK;
}

/* Lists the groups that have layers; returns how many. */
static int64_t list_groups(nib_kv_group groups[NIB_KV_GROUPS], const nib_kv_shape *s)
{
    const int64_t windowed = count_layers(s, true), others = count_layers(s, false);
    /* without own heads, layers with a window that is not kept are in this group, too */
    const int64_t kv_heads = s->global_kv_heads > 0 ? s->global_kv_heads : s->kv_heads,
                  head_dim = s->global_head_dim > 0 ? s->global_head_dim : s->head_dim;
    int64_t count = 0;
    if (others > 0)
        groups[count++] =
            (nib_kv_group){.layers = others, .kv_heads = kv_heads, .head_dim = head_dim};
    if (windowed > 0)
        groups[count++] = (nib_kv_group){.window = kept_window(s),
                                         .layers = windowed,
                                         .kv_heads = s->kv_heads,
                                         .head_dim = s->head_dim};
    return count;
}

/* States of sequences, and of their snapshots. */
static nib_state_shape states_of(const nib_kv_shape *s, int64_t sequences)
{
    nib_state_shape states = s->states;
    states.sequences = sequences;
    return states;
}

static int64_t count_snapshots(const nib_kv_shape *s)
{
    return nib__states_count(&s->states) > 0 ? s->snapshots : 0;
}

uint64_t nib__kv_shape_bytes(const nib_kv_shape *s)
{
    nib_kv_group groups[NIB_KV_GROUPS];
    int64_t sum = 0;
    for (int64_t g = list_groups(groups, s); g-- > 0;)
        sum += groups[g].layers * groups[g].kv_heads *
               (key_bytes(s, groups[g].head_dim, 1) + value_bytes(s, groups[g].head_dim, 1));
    return (uint64_t)sum;
}

/* Lists the groups, with their sizes. */
static nib_status find_groups(nib_kv_group groups[NIB_KV_GROUPS], int64_t *count,
                              const nib_kv_shape *s, bool on_gpu, nib_err *err)
{
    *count = list_groups(groups, s);
    for (int64_t g = 0; g < *count; g++)
        NIB_TRY(size_group(&groups[g], s, on_gpu, err));
    return NIB_OK;
}

nib_status nib__kv_measure(nib_kv_size *out, const nib_kv_shape *shape, nib_err *err)
{
    nib_kv_group groups[NIB_KV_GROUPS];
    int64_t count;
    *out = (nib_kv_size){0};
    NIB_TRY(find_groups(groups, &count, shape, false, err));
    for (int64_t g = 0; g < count; g++) {
        out->bytes += groups[g].block_bytes;
        if (groups[g].window == 0)
            continue;
        out->window_layers = groups[g].layers;
        out->window_positions = groups[g].blocks / shape->sequences * NIB_CACHE_BLOCK;
    }
    out->state_layers = nib__states_count(&shape->states);
    out->snapshots = count_snapshots(shape);
    const nib_state_shape one = states_of(shape, 1),
                          all = states_of(shape, shape->sequences + out->snapshots);
    uint64_t states;
    NIB_TRY(nib__states_measure(&out->state_bytes, &one, err));
    NIB_TRY(nib__states_measure(&states, &all, err));
    out->bytes += states;
    return NIB_OK;
}

/* ---- opening ---- */

#define WHAT "the KV cache; ask for a shorter context"

static nib_status allocate_blocks(nib_kv *kv, nib_kv_group *g, nib_err *err)
{
    void *block = NULL;
    if (kv->gpu != NULL) {
        NIB_TRY(nib__gpu_alloc(kv->gpu, g->block_bytes, WHAT, &block, err));
        g->block = block;
        g->stale = true;
        return nib__gpu_alloc(kv->gpu, (uint64_t)(kv->sequences * kv->table_ld) * sizeof *g->tables,
                              WHAT, &g->gpu_tables, err);
    }
    g->block = nib__block_take(g->block_bytes);
    return g->block != NULL ? NIB_OK : nib__fail_memory(err, g->block_bytes, WHAT);
}

static nib_status open_group(nib_kv *kv, nib_kv_group *g, nib_err *err)
{
    const size_t entries = (size_t)(kv->sequences * kv->table_ld), blocks = (size_t)g->blocks;
    /* first, because too many sequences fail here before their tables take real memory */
    NIB_TRY(allocate_blocks(kv, g, err));
    g->tables = nib__calloc(kv->allocator, entries, sizeof *g->tables);
    g->firsts = nib__calloc(kv->allocator, (uint64_t)kv->sequences, sizeof *g->firsts);
    g->free = nib__calloc(kv->allocator, blocks, sizeof *g->free);
    g->uses = nib__calloc(kv->allocator, blocks, sizeof *g->uses);
    if (!g->tables || !g->firsts || !g->free || !g->uses)
        return nib__fail_memory(err, (entries + 2 * blocks) * sizeof *g->tables, WHAT);
    for (size_t i = 0; i < entries; i++)
        g->tables[i] = -1;
    for (size_t i = 0; i < blocks; i++)
        g->free[i] = (int32_t)(blocks - 1 - i);
    g->free_count = g->blocks;
    return NIB_OK;
}

static nib_status open_groups(nib_kv *kv, const nib_kv_shape *s, nib_err *err)
{
    int32_t next[NIB_KV_GROUPS] = {0};
    kv->group_of = nib__calloc(kv->allocator, (uint64_t)s->layers, sizeof *kv->group_of);
    kv->place = nib__calloc(kv->allocator, (uint64_t)s->layers, sizeof *kv->place);
    if (!kv->group_of || !kv->place)
        return nib__fail_memory(err, (uint64_t)(2 * s->layers) * sizeof(int32_t), WHAT);
    for (int64_t i = 0; i < s->layers; i++) {
        kv->group_of[i] = !has_keys(s, i)     ? -1
                          : is_windowed(s, i) ? (int32_t)kv->group_count - 1
                                              : 0;
        kv->place[i] = has_keys(s, i) ? next[kv->group_of[i]]++ : -1;
    }
    for (int64_t g = 0; g < kv->group_count; g++)
        NIB_TRY(open_group(kv, &kv->groups[g], err));
    /* last: for too many sequences, the blocks fail before this takes real memory */
    kv->lengths = nib__calloc(kv->allocator, (uint64_t)s->sequences, sizeof *kv->lengths);
    return kv->lengths != NULL
               ? NIB_OK
               : nib__fail_memory(err, (uint64_t)s->sequences * sizeof *kv->lengths, WHAT);
}

nib_status nib__kv_open(nib_kv *out, const nib_kv_shape *shape, nib_gpu *gpu,
                        const nib_allocator *a, nib_err *err)
{
    nib_kv kv = {.allocator = a,
                 .gpu = gpu,
                 .layers = shape->layers,
                 .value_dim = shape->value_dim,
                 .sides = sides_of(shape),
                 .sequences = shape->sequences,
                 .context = shape->context,
                 .types = shape->types,
                 .table_ld = nib__ceil_div(shape->context, NIB_CACHE_BLOCK)};
    NIB_TRY(find_groups(kv.groups, &kv.group_count, shape, gpu != NULL, err));
    nib_status status = open_groups(&kv, shape, err);
    const int64_t snapshots = count_snapshots(shape);
    const nib_state_shape states = states_of(shape, shape->sequences + snapshots);
    if (status == NIB_OK)
        status = nib__states_open(&kv.states, &states, a, err);
    if (status == NIB_OK)
        status = nib__snapshots_open(&kv.snapshots, snapshots, shape->sequences, a, err);
    if (status != NIB_OK)
        nib__kv_close(&kv);
    else
        *out = kv;
    return status;
}

static void close_group(const nib_kv *kv, nib_kv_group *g)
{
    if (kv->gpu != NULL) {
        nib__gpu_free(kv->gpu, g->block);
        nib__gpu_free(kv->gpu, g->gpu_tables);
    } else {
        nib__block_free(g->block, g->block_bytes);
    }
    nib__release(kv->allocator, g->tables);
    nib__release(kv->allocator, g->firsts);
    nib__release(kv->allocator, g->free);
    nib__release(kv->allocator, g->uses);
}

void nib__kv_close(nib_kv *kv)
{
    for (int64_t g = 0; g < kv->group_count; g++)
        close_group(kv, &kv->groups[g]);
    nib__states_close(&kv->states);
    if (kv->snapshots.count > 0)
        nib__snapshots_close(&kv->snapshots);
    nib__release(kv->allocator, kv->group_of);
    nib__release(kv->allocator, kv->place);
    nib__release(kv->allocator, kv->lengths);
    *kv = (nib_kv){0};
}

nib_status nib__kv_sync(nib_kv *kv, nib_err *err)
{
    for (int64_t i = 0; kv->gpu != NULL && i < kv->group_count; i++) {
        nib_kv_group *g = &kv->groups[i];
        if (!g->stale)
            continue;
        g->stale = false;
        NIB_TRY(nib__gpu_write(kv->gpu, g->gpu_tables, g->tables,
                               (uint64_t)(kv->sequences * kv->table_ld) * sizeof *g->tables, err));
    }
    return NIB_OK;
}

/* ---- growing ---- */

nib_status nib__kv_extend(nib_kv *kv, int64_t sequence, int64_t position, nib_err *err)
{
    if (sequence < 0 || sequence >= kv->sequences)
        return nib__fail(err, NIB_USAGE,
                         "sequence %" PRId64 " does not exist; %" PRId64 " sequences are open",
                         sequence, kv->sequences);
    if (position != kv->lengths[sequence])
        return nib__fail(err, NIB_USAGE,
                         "position %" PRId64 " of sequence %" PRId64 " is not its next one, %d",
                         position, sequence, kv->lengths[sequence]);
    if (position >= kv->context)
        return nib__fail(err, NIB_NO_MEMORY,
                         "position %" PRId64 " of sequence %" PRId64
                         " is past the context of %" PRId64 "; open a session with a larger one",
                         position, sequence, kv->context);
    kv->lengths[sequence]++;
    return NIB_OK;
}

static void release_block(nib_kv_group *g, int32_t *entry)
{
    if (--g->uses[*entry] == 0)
        g->free[g->free_count++] = *entry;
    *entry = -1;
}

/* Frees the blocks that neither this position nor the spare ones before it see. */
static void free_before_window(nib_kv_group *g, int32_t *table, int64_t sequence, int64_t position)
{
    const int64_t seen = position + 1 - g->window - (NIB_CACHE_SPARE - 1);
    int32_t *first = &g->firsts[sequence];
    while ((int64_t)(*first + 1) * NIB_CACHE_BLOCK <= seen && table[*first] >= 0)
        release_block(g, &table[(*first)++]);
}

static void take_block(nib_kv_group *g, int32_t *entry)
{
    *entry = g->free[--g->free_count]; /* never empty: every sequence has its share of blocks */
    g->uses[*entry] = 1;
    g->stale = true;
}

void nib__kv_place(nib_kv *kv, int64_t sequence, int64_t position)
{
    nib__states_place(&kv->states, sequence, position);
    for (int64_t i = 0; i < kv->group_count; i++) {
        nib_kv_group *g = &kv->groups[i];
        int32_t *table = g->tables + sequence * kv->table_ld;
        int32_t *entry = &table[position / NIB_CACHE_BLOCK];
        if (*entry >= 0)
            continue;
        if (g->window > 0)
            free_before_window(g, table, sequence, position);
        take_block(g, entry);
    }
}

/* ---- rollback and sharing ---- */

/* Whether windows still hold what the token at `position` sees; then so it is at later ones. */
static bool windows_reach(const nib_kv *kv, int64_t sequence, int64_t position)
{
    for (int64_t i = 0; i < kv->group_count; i++) {
        const nib_kv_group *g = &kv->groups[i];
        const int64_t seen = g->window > 0 ? position + 1 - g->window : 0;
        if (nib__max(seen, 0) < (int64_t)g->firsts[sequence] * NIB_CACHE_BLOCK)
            return false;
    }
    return true;
}

int64_t nib__kv_cut(const nib_kv *kv, int64_t sequence, int64_t position)
{
    position = nib__min(position, kv->lengths[sequence]);
    if (position < nib__states_earliest(&kv->states, sequence)) {
        const int64_t slot = nib__snapshots_find(&kv->snapshots, sequence, position);
        position = slot < 0 ? 0 : kv->snapshots.list[slot].position;
    }
    return windows_reach(kv, sequence, position) ? position : 0;
}

/* Gives the sequence `to` the states that `from` had before the token at `position`. */
static void restore_states(nib_kv *kv, int64_t from, int64_t to, int64_t position)
{
    if (position >= nib__states_earliest(&kv->states, from)) {
        if (to != from)
            nib__states_copy(&kv->states, from, to);
        return;
    }
    const int64_t slot = nib__snapshots_find(&kv->snapshots, from, position);
    nib__snapshots_use(&kv->snapshots, slot);
    nib__states_copy(&kv->states, kv->sequences + slot, to);
}

void nib__kv_snapshot(nib_kv *kv, int64_t sequence, nib_snapshot_kind kind)
{
    const int64_t length = kv->lengths[sequence];
    const int64_t slot =
        length > 0 ? nib__snapshots_take(&kv->snapshots, sequence, length, kind) : -1;
    if (slot >= 0)
        nib__states_copy(&kv->states, sequence, kv->sequences + slot);
}

int64_t nib__kv_truncate(nib_kv *kv, int64_t sequence, int64_t position)
{
    position = nib__kv_cut(kv, sequence, position);
    for (int64_t i = 0; i < kv->group_count; i++) {
        nib_kv_group *g = &kv->groups[i];
        int32_t *table = g->tables + sequence * kv->table_ld;
        const int64_t end = nib__ceil_div(position, NIB_CACHE_BLOCK);
        for (int64_t b = nib__max(end, g->firsts[sequence]); b < kv->table_ld && table[b] >= 0; b++)
            release_block(g, &table[b]);
        if (position == 0)
            g->firsts[sequence] = 0;
    }
    if (position == 0)
        nib__states_clear(&kv->states, sequence);
    else
        restore_states(kv, sequence, sequence, position);
    nib__snapshots_cut(&kv->snapshots, sequence, position);
    kv->lengths[sequence] = (int32_t)position;
    return position;
}

int64_t nib__kv_keep(nib_kv *kv, int64_t sequence, int64_t position)
{
    position = nib__kv_cut(kv, sequence, position);
    const int64_t last = position / NIB_CACHE_BLOCK; /* block of the next position */
    bool shared = false;
    for (int64_t i = 0; i < kv->group_count && position % NIB_CACHE_BLOCK != 0; i++) {
        const nib_kv_group *g = &kv->groups[i];
        shared = shared || g->uses[g->tables[sequence * kv->table_ld + last]] > 1;
    }
    return nib__kv_truncate(kv, sequence,
                            shared ? nib__kv_shareable(kv, sequence, position) : position);
}

int64_t nib__kv_shareable(const nib_kv *kv, int64_t sequence, int64_t positions)
{
    do
        positions = nib__kv_cut(kv, sequence, nib__round_down(positions, NIB_CACHE_BLOCK));
    while (positions % NIB_CACHE_BLOCK != 0);
    return positions;
}

void nib__kv_share(nib_kv *kv, int64_t from, int64_t to, int64_t positions)
{
    for (int64_t i = 0; i < kv->group_count; i++) {
        nib_kv_group *g = &kv->groups[i];
        const int32_t *source = g->tables + from * kv->table_ld;
        int32_t *target = g->tables + to * kv->table_ld;
        for (int64_t b = g->firsts[from]; b < positions / NIB_CACHE_BLOCK; b++) {
            target[b] = source[b];
            g->uses[source[b]]++;
        }
        g->firsts[to] = positions > 0 ? g->firsts[from] : 0;
        g->stale = true;
    }
    if (positions > 0)
        restore_states(kv, from, to, positions);
    nib__snapshots_share(&kv->snapshots, from, to, positions);
    kv->lengths[to] = (int32_t)positions;
}

/* ---- queries ---- */

static const nib_kv_group *group_of(const nib_kv *kv, int64_t layer)
{
    return &kv->groups[kv->group_of[layer]];
}

nib_cache nib__kv_layer(const nib_kv *kv, int64_t layer)
{
    const nib_kv_group *g = group_of(kv, layer);
    char *keys = g->block + (uint64_t)kv->place[layer] * g->layer_bytes;
    return (nib_cache){.keys = keys,
                       .values = kv->sides > 1 ? keys + g->key_bytes : NULL,
                       .value_dim = kv->value_dim,
                       .types = kv->types,
                       .tables = kv->gpu != NULL ? g->gpu_tables : g->tables,
                       .table_ld = kv->table_ld,
                       .kv_heads = g->kv_heads,
                       .head_dim = g->head_dim,
                       .block_bytes = g->stride};
}

uint64_t nib__kv_bytes(const nib_kv *kv)
{
    uint64_t sum = 0;
    for (int64_t g = 0; g < kv->group_count; g++)
        sum += kv->groups[g].block_bytes;
    return sum + kv->states.bytes;
}

uint64_t nib__kv_used_bytes(const nib_kv *kv)
{
    uint64_t sum = 0;
    for (int64_t i = 0; i < kv->group_count; i++) {
        const nib_kv_group *g = &kv->groups[i];
        sum += g->block_bytes / (uint64_t)g->blocks * (uint64_t)(g->blocks - g->free_count);
    }
    int64_t states = nib__snapshots_used(&kv->snapshots);
    for (int64_t s = 0; s < kv->sequences; s++)
        states += kv->lengths[s] > 0;
    const uint64_t slots = (uint64_t)(kv->sequences + kv->snapshots.count);
    return sum + kv->states.bytes / slots * (uint64_t)states;
}

int64_t nib__kv_blocks(const nib_kv *kv)
{
    int64_t sum = 0;
    for (int64_t g = 0; g < kv->group_count; g++)
        sum += kv->groups[g].blocks;
    return sum;
}

int64_t nib__kv_used_blocks(const nib_kv *kv)
{
    int64_t sum = nib__kv_blocks(kv);
    for (int64_t g = 0; g < kv->group_count; g++)
        sum -= kv->groups[g].free_count;
    return sum;
}

/* ---- the content of a sequence ---- */

static nib_type type_of(const nib_kv *kv, bool keys)
{
    return keys ? kv->types.keys.type : kv->types.values.type;
}

/* Bytes of a position's keys, or values. */
static uint64_t side_bytes(const nib_kv *kv, const nib_kv_group *g, bool keys)
{
    return (uint64_t)(g->kv_heads * nib__cache_bytes(type_of(kv, keys), g->head_dim, 1));
}

static uint64_t position_bytes(const nib_kv *kv, const nib_kv_group *g)
{
    return side_bytes(kv, g, true) + (kv->sides > 1 ? side_bytes(kv, g, false) : 0);
}

bool nib__kv_keeps_keys(const nib_kv *kv, int64_t layer) { return kv->group_of[layer] >= 0; }

uint64_t nib__kv_position_bytes(const nib_kv *kv, int64_t layer)
{
    return position_bytes(kv, group_of(kv, layer));
}

uint64_t nib__kv_widest_bytes(const nib_kv *kv)
{
    uint64_t most = 0;
    for (int64_t i = 0; i < kv->group_count; i++) {
        const uint64_t bytes = position_bytes(kv, &kv->groups[i]);
        most = bytes > most ? bytes : most;
    }
    return most;
}

bool nib__kv_has_window(const nib_kv *kv, int64_t layer) { return group_of(kv, layer)->window > 0; }

int64_t nib__kv_first(const nib_kv *kv, int64_t sequence)
{
    int64_t first = 0;
    for (int64_t i = 0; i < kv->group_count; i++)
        first = nib__max(first, kv->groups[i].firsts[sequence]);
    return first * NIB_CACHE_BLOCK;
}

/* Room for a block's keys, or its values. */
uint64_t nib__kv_scratch_bytes(const nib_kv *kv)
{
    return kv->gpu != NULL ? nib__kv_widest_bytes(kv) * NIB_CACHE_BLOCK : 0;
}

/* Copies `dim` elements that are `step_from` and `step_to` elements apart. */
NIB_INLINE void copy_spread(char *to, int64_t step_to, const char *from, int64_t step_from,
                            int64_t dim, const size_t bytes)
{
    for (int64_t d = 0; d < dim; d++)
        memcpy(to + (size_t)(d * step_to) * bytes, from + (size_t)(d * step_from) * bytes, bytes);
}

static void copy_elements(char *to, int64_t step_to, const char *from, int64_t step_from,
                          int64_t dim, int64_t bytes)
{
    if (step_to == 1 && step_from == 1)
        memcpy(to, from, (size_t)(dim * bytes));
    else if (bytes == 4)
        copy_spread(to, step_to, from, step_from, dim, 4);
    else if (bytes == 2)
        copy_spread(to, step_to, from, step_from, dim, 2);
    else
        copy_spread(to, step_to, from, step_from, dim, 1);
}

/* Copies between a vector of the common order and its elements in the cache, one every `step`. */
static void copy_vector(char *common, char *cached, int64_t step, int64_t count, int64_t bytes,
                        bool out)
{
    if (out)
        copy_elements(common, 1, cached, step, count, bytes);
    else
        copy_elements(cached, step, common, 1, count, bytes);
}

/* Copies one side of `count` positions between a block [kv_heads] and rows of the common order,
 * which begin at this side. */
static void copy_side(const nib_kv *kv, int64_t layer, bool keys, bool out, char *block, char *rows,
                      int64_t count)
{
    const nib_kv_group *g = group_of(kv, layer);
    const nib_kv_vector v = nib__kv_vector(type_of(kv, keys), g->head_dim);
    const int64_t bytes = nib__cache_bytes(type_of(kv, keys), g->head_dim, 1),
                  codes = v.elements * v.element_bytes, row = (int64_t)position_bytes(kv, g),
                  step = keys ? NIB_CACHE_BLOCK : 1, next = keys ? 1 : v.elements;
    for (int64_t h = 0; h < g->kv_heads; h++, rows += bytes) {
        char *const head = block + h * NIB_CACHE_BLOCK * bytes,
                    *others = head + NIB_CACHE_BLOCK * codes;
        for (int64_t i = 0; i < count; i++) {
            copy_vector(rows + i * row, head + i * next * v.element_bytes, step, v.elements,
                        v.element_bytes, out);
            copy_vector(rows + i * row + codes, others + i * v.other_bytes, NIB_CACHE_BLOCK,
                        v.others, v.other_bytes, out);
        }
    }
}

/* One side of a block of the sequence: an address on the GPU, if the cache is there. */
static char *find_side(const nib_kv *kv, int64_t sequence, int64_t layer, int64_t block, bool keys)
{
    const nib_cache cache = nib__kv_layer(kv, layer);
    const int64_t at = group_of(kv, layer)->tables[sequence * kv->table_ld + block];
    return (char *)(keys ? cache.keys : cache.values) + at * cache.block_bytes;
}

nib_status nib__kv_read(const nib_kv *kv, int64_t sequence, int64_t layer, int64_t block,
                        int64_t count, void *out, void *scratch, nib_err *err)
{
    char *rows = out;
    for (int64_t i = 0; i < kv->sides; i++) {
        const bool keys = i == 0;
        const uint64_t bytes = side_bytes(kv, group_of(kv, layer), keys);
        char *side = find_side(kv, sequence, layer, block, keys);
        if (kv->gpu != NULL)
            NIB_TRY(nib__gpu_read(kv->gpu, scratch, side, bytes * NIB_CACHE_BLOCK, err));
        copy_side(kv, layer, keys, true, kv->gpu != NULL ? scratch : side, rows, count);
        rows += bytes;
    }
    return NIB_OK;
}

nib_status nib__kv_write(nib_kv *kv, int64_t sequence, int64_t layer, int64_t block, int64_t count,
                         const void *from, void *scratch, nib_err *err)
{
    char *rows = (char *)(uintptr_t)from; /* only read */
    for (int64_t i = 0; i < kv->sides; i++) {
        const bool keys = i == 0;
        const uint64_t bytes = side_bytes(kv, group_of(kv, layer), keys);
        char *side = find_side(kv, sequence, layer, block, keys);
        copy_side(kv, layer, keys, false, kv->gpu != NULL ? scratch : side, rows, count);
        if (kv->gpu != NULL)
            NIB_TRY(nib__gpu_write(kv->gpu, side, scratch, bytes * NIB_CACHE_BLOCK, err));
        rows += bytes;
    }
    return NIB_OK;
}

bool nib__kv_can_hold(const nib_kv *kv, int64_t first, int64_t length)
{
    bool windowed = false;
    if (first < 0 || first > length || length > kv->context || first % NIB_CACHE_BLOCK != 0)
        return false;
    for (int64_t i = 0; i < kv->group_count; i++) {
        const nib_kv_group *g = &kv->groups[i];
        const int64_t blocks = nib__ceil_div(length, NIB_CACHE_BLOCK) - first / NIB_CACHE_BLOCK;
        if (g->window == 0)
            continue;
        windowed = true;
        if (blocks > g->blocks / kv->sequences || first > nib__max(length + 1 - g->window, 0))
            return false;
    }
    return windowed || first == 0;
}

void nib__kv_replace(nib_kv *kv, int64_t sequence, int64_t first, int64_t length)
{
    nib__kv_truncate(kv, sequence, 0);
    for (int64_t i = 0; i < kv->group_count; i++) {
        nib_kv_group *g = &kv->groups[i];
        int32_t *table = g->tables + sequence * kv->table_ld;
        const int64_t begin = g->window > 0 ? first / NIB_CACHE_BLOCK : 0;
        g->firsts[sequence] = (int32_t)begin;
        for (int64_t b = begin; b < nib__ceil_div(length, NIB_CACHE_BLOCK); b++)
            take_block(g, &table[b]);
    }
    kv->lengths[sequence] = (int32_t)length;
}
