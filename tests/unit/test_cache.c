/* SPDX-License-Identifier: Apache-2.0
 *
 * The KV cache: blocks are allocated as sequences grow and freed as they shrink, shared only on
 * request and never leaked; limits are errors. The int8 cache: its codes, and attention over them.
 */
#include "cache.h"
#include "kernel.h"

#include "failing.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "refused.h"

static nib_allocator allocator;

static nib_kv open_shape(const nib_kv_shape *shape)
{
    nib_kv kv;
    allocator = nib__allocator_default();
    assert_int_equal(nib__kv_open(&kv, shape, NULL, &allocator, NULL), NIB_OK);
    return kv;
}

static nib_kv_shape shape_of(int64_t sequences, int64_t context, nib_type type)
{
    return (nib_kv_shape){.layers = 3,
                          .kv_heads = 2,
                          .head_dim = 20,
                          .sequences = sequences,
                          .context = context,
                          .types = nib__kv_both(type)};
}

static nib_kv open_cache(int64_t sequences, int64_t context, nib_type type)
{
    const nib_kv_shape shape = shape_of(sequences, context, type);
    return open_shape(&shape);
}

/* Three layers; the first and the last have a window. */
static const bool around[] = {true, false, true};

static nib_kv_shape windowed_shape(int64_t sequences, int64_t context, int64_t window)
{
    nib_kv_shape shape = shape_of(sequences, context, NIB_TYPE_BF16);
    shape.window = window;
    shape.window_layers = around;
    return shape;
}

static void check_group(const nib_kv *kv, const nib_kv_group *g)
{
    int *owners = calloc((size_t)g->blocks, sizeof *owners);
    for (int64_t i = 0; i < g->free_count; i++) {
        owners[g->free[i]]++;
        assert_int_equal(g->uses[g->free[i]], 0);
    }
    for (int64_t s = 0; s < kv->sequences; s++) {
        const int64_t used = nib__ceil_div(kv->lengths[s], NIB_CACHE_BLOCK);
        if (g->window == 0 || kv->lengths[s] == 0)
            assert_int_equal(g->firsts[s], 0);
        else
            assert_true(g->firsts[s] * NIB_CACHE_BLOCK <=
                        nib__max(0, kv->lengths[s] + 1 - g->window));
        for (int64_t i = 0; i < kv->table_ld; i++) {
            const int32_t block = g->tables[s * kv->table_ld + i];
            assert_int_equal(block >= 0, i >= g->firsts[s] && i < used);
            if (block >= 0)
                owners[block]++;
        }
    }
    for (int64_t i = 0; i < g->blocks; i++)
        assert_int_equal(owners[i], nib__max(g->uses[i], 1));
    free(owners);
}

/* Every block is either free, listed once, or in as many table entries as its use count. Tables
 * have entries up to each length and no further; windows have all of theirs. */
static void check(const nib_kv *kv)
{
    for (int64_t g = 0; g < kv->group_count; g++)
        check_group(kv, &kv->groups[g]);
}

/* Once a pass is placed, its first slot still has every block that it sees. */
static void check_seen(const nib_kv *kv, int64_t sequence, int64_t position)
{
    for (int64_t i = 0; i < kv->group_count; i++) {
        const nib_kv_group *g = &kv->groups[i];
        const int32_t *table = g->tables + sequence * kv->table_ld;
        const int64_t seen = g->window > 0 ? nib__max(0, position + 1 - g->window) : 0;
        for (int64_t b = seen / NIB_CACHE_BLOCK; b <= position / NIB_CACHE_BLOCK; b++)
            assert_true(table[b] >= 0);
    }
}

/* Grows a sequence as a step does: extends it by all slots, then places them pass by pass. */
static void extend_by(nib_kv *kv, int64_t sequence, int64_t count, int64_t pass)
{
    const int64_t from = kv->lengths[sequence];
    for (int64_t i = 0; i < count; i++)
        assert_int_equal(nib__kv_extend(kv, sequence, from + i, NULL), NIB_OK);
    for (int64_t begin = 0; begin < count; begin += pass) {
        for (int64_t i = begin; i < nib__min(begin + pass, count); i++)
            nib__kv_place(kv, sequence, from + i);
        check_seen(kv, sequence, from + begin);
    }
}

static void extend(nib_kv *kv, int64_t sequence, int64_t count)
{
    extend_by(kv, sequence, count, NIB_CACHE_SPARE);
}

static void test_grows_and_shrinks(void **state)
{
    (void)state;
    nib_kv kv = open_cache(3, 200, NIB_TYPE_BF16);
    assert_int_equal(kv.table_ld, 4);
    assert_int_equal(kv.groups->blocks, 12);
    check(&kv);
    assert_int_equal(nib__kv_used_bytes(&kv), 0);
    extend(&kv, 1, 65);
    check(&kv);
    assert_int_equal(kv.groups->free_count, 10);
    /* bf16, both sides of all layers */
    assert_int_equal(nib__kv_used_bytes(&kv), 2 * 2 * 3 * 2 * 2 * NIB_CACHE_BLOCK * 20);
    extend(&kv, 0, 200);
    extend(&kv, 2, 1);
    check(&kv);
    nib__kv_truncate(&kv, 1, 64);
    assert_int_equal(kv.lengths[1], 64);
    check(&kv);
    nib__kv_truncate(&kv, 1, 64);
    nib__kv_truncate(&kv, 1, 100); /* past the end: no change */
    assert_int_equal(kv.lengths[1], 64);
    extend(&kv, 1, 136);
    nib__kv_truncate(&kv, 0, 63);
    nib__kv_truncate(&kv, 2, 0);
    check(&kv);
    nib__kv_truncate(&kv, 0, 0);
    nib__kv_truncate(&kv, 1, 0);
    check(&kv);
    assert_int_equal(kv.groups->free_count, kv.groups->blocks);
    nib__kv_close(&kv);
}

/* Nobody writes a shared block, neither a sequence that grows past it nor one truncated within it.
 */
static void test_shared_blocks_are_not_written(void **state)
{
    (void)state;
    nib_kv kv = open_cache(3, 200, NIB_TYPE_BF16);
    const int32_t *second = kv.groups->tables + kv.table_ld;
    extend(&kv, 0, 150);
    nib__kv_share(&kv, 0, 1, 128);
    nib__kv_share(&kv, 1, 2, 64);
    check(&kv);
    assert_int_equal(kv.lengths[1], 128);
    assert_int_equal(kv.groups->free_count, kv.groups->blocks - 3);
    assert_memory_equal(kv.groups->tables, second, 2 * sizeof *second);
    extend(&kv, 1, 10);
    assert_int_not_equal(second[2], kv.groups->tables[2]);
    check(&kv);
    assert_int_equal(nib__kv_keep(&kv, 1, 137), 137); /* its own block */
    assert_int_equal(nib__kv_keep(&kv, 1, 100), 64);
    assert_int_equal(nib__kv_keep(&kv, 0, 100), 100); /* no other sequence has it now */
    assert_int_equal(nib__kv_keep(&kv, 0, 500), 100);
    assert_int_equal(nib__kv_keep(&kv, 0, 30), 0);
    check(&kv);
    nib__kv_truncate(&kv, 1, 0);
    assert_int_equal(nib__kv_keep(&kv, 2, 30), 30);
    nib__kv_truncate(&kv, 2, 0);
    check(&kv);
    assert_int_equal(kv.groups->free_count, kv.groups->blocks);
    nib__kv_close(&kv);
}

/* Many random extensions, truncations and shares; then all sequences can be full at once. */
static void walk(nib_kv *kv, int64_t most)
{
    uint32_t random = 1;
    for (int i = 0; i < 4000; i++) {
        random = random * 1664525u + 1013904223u;
        const int64_t sequence = random >> 8 & 3, amount = (random >> 12 & 127) * most / 128,
                      other = random >> 20 & 3;
        const int64_t held = kv->lengths[sequence], room = kv->context - held;
        if (held == 0 && other != sequence)
            nib__kv_share(
                kv, other, sequence,
                nib__kv_cut(kv, other, nib__round_down(kv->lengths[other], NIB_CACHE_BLOCK)));
        else if (random >> 30)
            extend_by(kv, sequence, nib__min(amount, room), 1 + amount % NIB_CACHE_SPARE);
        else if (random >> 29 == 0)
            nib__kv_keep(kv, sequence, held - amount % nib__max(held, 1));
        else
            assert_true(nib__kv_keep(kv, sequence, amount) <= amount);
        if (i % 50 == 0)
            check(kv);
    }
    for (int64_t s = 0; s < 4; s++)
        extend(kv, s, kv->context - kv->lengths[s]);
    check(kv);
}

static void test_random_operations(void **state)
{
    (void)state;
    static const int64_t windows[] = {0, 1, 2, 63, 64, 65, 200, 700};
    for (size_t i = 0; i < COUNT(windows); i++) {
        const nib_kv_shape shape = windowed_shape(4, windows[i] == 0 ? 300 : 3000, windows[i]);
        nib_kv kv = open_shape(&shape);
        walk(&kv, windows[i] == 0 ? 128 : 900);
        nib__kv_close(&kv);
    }
}

/* ---- windows ---- */

/* Windowed layers hold the window and the spare positions, whatever the context; nib__kv_measure
 * returns what is allocated. */
static void test_window_bytes(void **state)
{
    (void)state;
    const uint64_t block =
        2 * 2 * NIB_CACHE_BLOCK * 20 * 2; /* bytes of a layer's block: keys and values */
    for (int64_t window = 1; window < 400; window += 7) {
        const nib_kv_shape shape = windowed_shape(2, 10000, window);
        const int64_t each = nib__ceil_div(window + NIB_CACHE_SPARE - 2, NIB_CACHE_BLOCK) + 1;
        nib_kv kv = open_shape(&shape);
        nib_kv_size size;
        assert_int_equal(kv.group_count, 2);
        assert_int_equal(kv.groups[1].blocks, 2 * each);
        assert_int_equal(nib__kv_bytes(&kv), 2 * block * (uint64_t)(157 + 2 * each));
        assert_int_equal(nib__kv_measure(&size, &shape, NULL), NIB_OK);
        assert_int_equal(size.bytes, nib__kv_bytes(&kv));
        assert_int_equal(size.window_layers, 2);
        assert_int_equal(size.window_positions, each * NIB_CACHE_BLOCK);
        extend(&kv, 0, 10000);
        extend_by(&kv, 1, 10000, 1);
        check(&kv);
        assert_int_equal(nib__kv_blocks(&kv), 2 * (157 + each));
        assert_true(nib__kv_used_blocks(&kv) >= 2 * (157 + each - 1));
        assert_true(nib__kv_used_bytes(&kv) <= nib__kv_bytes(&kv));
        nib__kv_close(&kv);
    }
    /* a window that covers the context needs no group of its own; a group without layers is dropped
     */
    nib_kv_shape shape = windowed_shape(1, NIB_CACHE_SPARE + 100, 100);
    nib_kv kv = open_shape(&shape);
    assert_int_equal(kv.group_count, 1);
    nib__kv_close(&kv);
    shape.context++;
    shape.window_layers = NULL; /* all layers */
    kv = open_shape(&shape);
    assert_int_equal(kv.group_count, 1);
    assert_int_equal(kv.groups->window, 100);
    assert_int_equal(kv.groups->layers, 3);
    nib__kv_close(&kv);
}

/* A pass's worth of positions can always be rolled back, more only as far as the window's blocks
 * reach; beyond that everything is dropped. */
static void test_window_rollback(void **state)
{
    (void)state;
    static const int64_t passes[] = {1, 64, 100, NIB_CACHE_SPARE};
    for (size_t i = 0; i < COUNT(passes); i++) {
        const nib_kv_shape shape = windowed_shape(1, 4000, 100);
        nib_kv kv = open_shape(&shape);
        extend_by(&kv, 0, 2000, passes[i]);
        assert_int_equal(nib__kv_cut(&kv, 0, 2000), 2000);
        assert_int_equal(nib__kv_cut(&kv, 0, 2000 - NIB_CACHE_SPARE), 2000 - NIB_CACHE_SPARE);
        assert_int_equal(nib__kv_cut(&kv, 0, 1400), 0);
        assert_int_equal(nib__kv_cut(&kv, 0, 50), 0);
        assert_int_equal(nib__kv_truncate(&kv, 0, 1500), 1500);
        check(&kv);
        extend_by(&kv, 0, 800, passes[i]);
        assert_int_equal(nib__kv_keep(&kv, 0, 1900), 1900);
        assert_int_equal(nib__kv_truncate(&kv, 0, 70), 0);
        check(&kv);
        assert_int_equal(nib__kv_used_bytes(&kv), 0);
        extend_by(&kv, 0, 300, passes[i]); /* no window has moved yet */
        assert_int_equal(nib__kv_truncate(&kv, 0, 70), 70);
        check(&kv);
        nib__kv_close(&kv);
    }
}

/* Sharing covers the positions that the source still has; afterwards each grows alone. */
static void test_window_shares(void **state)
{
    (void)state;
    const nib_kv_shape shape = windowed_shape(2, 4000, 100);
    nib_kv kv = open_shape(&shape);
    extend(&kv, 0, 2000);
    assert_int_equal(nib__kv_cut(&kv, 0, 1792), 1792);
    nib__kv_share(&kv, 0, 1, 1792);
    check(&kv);
    assert_int_equal(nib__kv_keep(&kv, 0, 1790), 1728); /* a shared block is not written */
    check(&kv);
    extend(&kv, 1, 2208);
    extend(&kv, 0, 2272);
    check(&kv);
    assert_int_equal(nib__kv_truncate(&kv, 0, 0), 0);
    assert_int_equal(nib__kv_truncate(&kv, 1, 0), 0);
    check(&kv);
    assert_int_equal(nib__kv_used_blocks(&kv), 0);
    nib__kv_close(&kv);
}

/* Layers, and the keys and values of a layer, do not overlap and are in bounds; those of a block
 * are adjacent. */
static void test_views(void **state)
{
    (void)state;
    nib_kv kv = open_cache(2, 130, NIB_TYPE_F16);
    const uint64_t side = 2 * NIB_CACHE_BLOCK * 20 * 2;
    for (int64_t layer = 0; layer < 3; layer++) {
        const nib_cache c = nib__kv_layer(&kv, layer);
        assert_ptr_equal(c.keys, kv.groups->block + (uint64_t)(2 * layer) * side);
        assert_ptr_equal(c.values, kv.groups->block + (uint64_t)(2 * layer + 1) * side);
        assert_ptr_equal(c.tables, kv.groups->tables);
        assert_int_equal(c.types.keys.type, NIB_TYPE_F16);
        assert_int_equal(c.kv_heads, 2);
        assert_int_equal(c.head_dim, 20);
        assert_int_equal(c.block_bytes, 3 * 2 * 2 * nib__cache_bytes(NIB_TYPE_BF16, 20, 64));
    }
    assert_int_equal(kv.groups->block_bytes, (uint64_t)kv.groups->blocks * 6 * side);
    nib__kv_close(&kv);
}

static void assert_refused(nib_kv *kv, int64_t sequence, int64_t position, nib_status status)
{
    nib_err err;
    const int64_t before = kv->groups->free_count;
    refused(status, nib__kv_extend(kv, sequence, position, &err), &err);
    assert_int_equal(kv->groups->free_count, before);
    check(kv);
}

static void test_errors(void **state)
{
    (void)state;
    nib_kv kv = open_cache(2, 70, NIB_TYPE_BF16);
    extend(&kv, 0, 70);
    assert_refused(&kv, 0, 70, NIB_NO_MEMORY);
    assert_refused(&kv, 1, 1, NIB_USAGE);
    assert_refused(&kv, 0, 69, NIB_USAGE);
    assert_refused(&kv, 2, 0, NIB_USAGE);
    assert_refused(&kv, -1, 0, NIB_USAGE);
    nib__kv_close(&kv);
    nib_kv untouched = {.layers = 77};
    nib_err err;
    nib_kv_shape shape = {.layers = 4096,
                          .kv_heads = 65536,
                          .head_dim = 65536,
                          .sequences = 1000,
                          .context = 1 << 30,
                          .types = nib__kv_both(NIB_TYPE_F32)};
    refused(NIB_NO_MEMORY, nib__kv_open(&untouched, &shape, NULL, &allocator, &err), &err);
    assert_int_equal(untouched.layers, 77);
    /* many small blocks */
    shape = (nib_kv_shape){.layers = 1,
                           .kv_heads = 1,
                           .head_dim = 2,
                           .sequences = 1 << 20,
                           .context = 1 << 30,
                           .types = nib__kv_both(NIB_TYPE_BF16)};
    refused(NIB_NO_MEMORY, nib__kv_open(&untouched, &shape, NULL, &allocator, &err), &err);
}

static void test_memory(void **state)
{
    (void)state;
    const nib_kv_shape shape = windowed_shape(2, 1000, 100);
    nib_status status = NIB_NO_MEMORY;
    int n = 0;
    for (; status != NIB_OK; n++) {
        failing f = {.left = n};
        const nib_allocator a = failing_allocator(&f);
        nib_kv kv;
        nib_err err;
        status = nib__kv_open(&kv, &shape, NULL, &a, &err);
        if (status == NIB_OK)
            nib__kv_close(&kv);
        else
            assert_int_equal(status, NIB_NO_MEMORY);
        assert_int_equal(f.live, 0);
    }
    assert_true(n > 3);
}

/* ---- int8 ---- */

enum { DIM = 20, HEADS = 2 };

static int8_t key_code(const nib_cache *c, int64_t head, int64_t d, int64_t position)
{
    const char *block =
        (const char *)c->keys + head * nib__cache_bytes(c->types.keys.type, DIM, 64);
    return (int8_t)block[d * NIB_CACHE_BLOCK + position];
}

static float scale_at(const void *side, int64_t head, int64_t position)
{
    float scale;
    const char *block = (const char *)side + head * nib__cache_bytes(NIB_TYPE_I8, DIM, 64);
    memcpy(&scale, block + NIB_CACHE_BLOCK * DIM + position * 4, sizeof scale);
    return scale;
}

static void store(const nib_cache *c, const float *k, const float *v, int32_t position)
{
    const int32_t sequence = 0;
    const nib_store_kv args = {.k = k,
                               .v = v,
                               .ld = HEADS * DIM,
                               .m = 1,
                               .sequence = &sequence,
                               .position = &position,
                               .cache = *c};
    nib__kernel_find("copy_f32__ref")->run.store_kv(&args, 0, 1);
}

/* Codes are x / s rounded to nearest, ties to even. Values too small for a scale become 0; a head
 * with an infinity gets a NaN scale. */
static void test_int8_codes(void **state)
{
    (void)state;
    nib_kv kv = open_cache(1, 64, NIB_TYPE_I8);
    extend(&kv, 0, 1);
    const nib_cache c = nib__kv_layer(&kv, 1);
    float k[HEADS * DIM] = {127, -0.5F, 0.5F, 1.5F, -2.5F, 126.4F, -126.6F}, v[HEADS * DIM] = {0};
    v[1] = 1e-39F;         /* its scale would be subnormal */
    k[DIM + 3] = INFINITY; /* the second head */
    v[DIM] = -3, v[DIM + 19] = 1;
    store(&c, k, v, 5);
    static const int8_t want[] = {127, 0, 0, 2, -2, 126, -127, 0};
    for (size_t d = 0; d < COUNT(want); d++)
        assert_int_equal(key_code(&c, 0, (int64_t)d, 5), want[d]);
    assert_true(scale_at(c.keys, 0, 5) == 1.0F);
    assert_true(scale_at(c.values, 0, 5) == 1.0F);
    assert_true(isnan(scale_at(c.keys, 1, 5)));
    assert_int_equal(key_code(&c, 1, 3, 5), 0);
    assert_true(scale_at(c.values, 1, 5) == 3.0F / 127);
    const int8_t *value =
        (const int8_t *)c.values + nib__cache_bytes(NIB_TYPE_I8, DIM, 64) + 5 * DIM;
    assert_int_equal(value[0], -127);
    assert_int_equal(value[19], 42); /* 127 / 3 = 42.33 */
    nib__kv_close(&kv);
}

/* Attention over codes, against sums in double over the decoded values. */
static void test_int8_attention(void **state)
{
    (void)state;
    enum { POSITIONS = 300 };
    nib_kv kv = open_cache(1, POSITIONS, NIB_TYPE_I8);
    extend(&kv, 0, POSITIONS);
    nib_cache c = nib__kv_layer(&kv, 0);
    float q[DIM], k[HEADS * DIM], v[HEADS * DIM], out[HEADS * DIM];
    double sum[DIM] = {0}, all = 0;
    uint32_t random = 7;
    for (int d = 0; d < DIM; d++)
        q[d] = (float)(d % 7 - 3);
    for (int32_t i = 0; i < POSITIONS; i++) {
        double score = 0, weight;
        for (int d = 0; d < HEADS * DIM; d++) {
            random = random * 1664525u + 1013904223u;
            k[d] = (float)(int32_t)(random >> 8 & 1023) / 512 - 1;
            v[d] = (float)(int32_t)(random >> 20) / 100;
        }
        store(&c, k, v, i);
        for (int d = 0; d < DIM; d++)
            score += (double)q[d] * (double)k[d];
        all += weight = exp(score * 0.25);
        for (int d = 0; d < DIM; d++)
            sum[d] += weight * (double)v[d];
    }
    const int32_t sequence = 0, position = POSITIONS - 1;
    const nib_attn args = {.q = q,
                           .out = out,
                           .ldq = DIM,
                           .ldo = DIM,
                           .m = 1,
                           .heads = HEADS,
                           .sequence = &sequence,
                           .position = &position,
                           .cache = c,
                           .scale = 0.25F};
    const nib_kernel *row = nib__kernel_find("attn_f32__ref");
    void *scratch = nib__block_take(row->scratch(&args));
    row->run.attn(&args, 0, 1, scratch); /* first head only */
    nib__block_free(scratch, row->scratch(&args));
    for (int d = 0; d < DIM; d++)
        assert_true(fabs(out[d] - sum[d] / all) < 0.01 * 41); /* values go up to 41 */
    nib__kv_close(&kv);
}

/* ---- int4, and keys and values of different types ---- */

static nib_kv open_types(nib_kv_types types)
{
    nib_kv_shape shape = shape_of(1, 300, types.keys.type);
    shape.head_dim = 40; /* a group, and one of 8 channels */
    shape.types = types;
    return open_shape(&shape);
}

/* Codes of a group are (x - l) / s under its rounded scale and minimum, ties to even. */
static void test_int4_codes(void **state)
{
    (void)state;
    enum { WIDE = 40, ROWS = WIDE / 2, SCALES = 64 * ROWS };
    nib_kv kv = open_types(nib__kv_both(NIB_TYPE_Q4_1));
    extend(&kv, 0, 1);
    const nib_cache c = nib__kv_layer(&kv, 1);
    float k[2 * WIDE] = {0}, v[2 * WIDE] = {0};
    const float first[] = {-1, 14, 0.5F, 1.5F, 13.4F}; /* l = -1, s = 1 */
    memcpy(k, first, sizeof first);
    for (int i = 32; i < WIDE; i++)
        k[i] = 3; /* all equal: s is 0 */
    k[WIDE] = NAN;
    const int32_t sequence = 0, position = 5;
    const nib_store_kv args = {.k = k,
                               .v = v,
                               .ld = 2 * WIDE,
                               .m = 1,
                               .sequence = &sequence,
                               .position = &position,
                               .cache = c};
    nib__kernel_find("copy_f32__ref")->run.store_kv(&args, 0, 1);
    const uint8_t *keys = c.keys;
    const uint16_t *scales = (const uint16_t *)(const void *)(keys + SCALES) + 5;
    assert_int_equal(keys[0 * 64 + 5], 0 | 15 << 4);
    assert_int_equal(keys[1 * 64 + 5], 2 | 2 << 4); /* 1.5 and 2.5, ties to even */
    assert_int_equal(keys[2 * 64 + 5], 14 | 1 << 4);
    assert_int_equal(keys[16 * 64 + 5], 0);
    assert_true(nib__f16_to_f32(scales[0]) == 1.0F && nib__f16_to_f32(scales[64]) == 0.0F);
    assert_true(nib__f16_to_f32(scales[128]) == -1.0F && nib__f16_to_f32(scales[192]) == 3.0F);
    scales = (const uint16_t *)(const void *)(keys + nib__cache_bytes(NIB_TYPE_Q4_1, WIDE, 64) +
                                              SCALES) +
             5;
    assert_true(isnan(nib__f16_to_f32(scales[0])) && !isnan(nib__f16_to_f32(scales[64])));
    nib__kv_close(&kv);
}

/* The cached vector of a position, head 0, as floats. */
static void widen(float *out, const nib_cache *c, bool keys, int64_t dim, int64_t position)
{
    const nib_type type = keys ? c->types.keys.type : c->types.values.type;
    const nib_kv_vector v = nib__kv_vector(type, dim);
    const char *head =
        (const char *)(keys ? c->keys : c->values) + c->tables[position / 64] * c->block_bytes;
    const int64_t at = position % 64, next = keys ? 1 : v.elements, step = keys ? 64 : 1;
    const char *codes = head + at * next * v.element_bytes,
               *others = head + 64 * v.elements * v.element_bytes + at * v.other_bytes;
    for (int64_t d = 0; d < dim; d++) {
        const char *code = codes + (type == NIB_TYPE_Q4_1 ? d / 2 : d) * step * v.element_bytes;
        float by[2] = {1, 0};
        if (type == NIB_TYPE_Q4_1) {
            nib__to_f32(&by[0], others + d / 32 * 64 * 2, NIB_TYPE_F16, 1);
            nib__to_f32(&by[1], others + (d / 32 + v.others / 2) * 64 * 2, NIB_TYPE_F16, 1);
            out[d] = fmaf((float)((uint8_t)*code >> d % 2 * 4 & 15), by[0], by[1]);
        } else if (type == NIB_TYPE_I8) {
            memcpy(by, others, sizeof *by);
            out[d] = (float)(int8_t)*code * by[0];
        } else {
            nib__to_f32(&out[d], code, type, 1);
        }
    }
}

static uint32_t any_bits(uint32_t *random)
{
    *random = *random * 1664525u + 1013904223u;
    return *random >> 8;
}

/* Attention over int4 has the bits of attention over f32 with the widened values; the same for int4
 * beside another type whose values widen exactly. */
static void test_int4_attention(void **state)
{
    (void)state;
    enum { WIDE = 40, POSITIONS = 290 };
    static const nib_type others[] = {NIB_TYPE_Q4_1, NIB_TYPE_BF16, NIB_TYPE_F32};
    for (int i = 0; i < 2 * (int)COUNT(others); i++) {
        nib_kv_types types = nib__kv_both(NIB_TYPE_Q4_1);
        *(i % 2 == 0 ? &types.keys.type : &types.values.type) = others[i / 2];
        nib_kv kv = open_types(types), exact = open_types(nib__kv_both(NIB_TYPE_F32));
        extend(&kv, 0, POSITIONS), extend(&exact, 0, POSITIONS);
        const nib_cache c = nib__kv_layer(&kv, 0), f = nib__kv_layer(&exact, 0);
        float q[2 * WIDE], k[2 * WIDE] = {0}, v[2 * WIDE] = {0}, out[2][WIDE];
        uint32_t random = 7;
        for (int d = 0; d < 2 * WIDE; d++)
            q[d] = (float)(d % 7 - 3);
        for (int32_t p = 0; p < POSITIONS; p++) {
            const int32_t sequence = 0;
            for (int d = 0; d < 2 * WIDE; d++) {
                k[d] = (float)(any_bits(&random) & 1023) / 512 - 1;
                v[d] = (float)(any_bits(&random) & 4095) / 100;
            }
            nib_store_kv args = {.k = k,
                                 .v = v,
                                 .ld = 2 * WIDE,
                                 .m = 1,
                                 .sequence = &sequence,
                                 .position = &p,
                                 .cache = c};
            nib__kernel_find("copy_f32__ref")->run.store_kv(&args, 0, 1);
            widen(k, &c, true, WIDE, p), widen(v, &c, false, WIDE, p);
            args.cache = f;
            nib__kernel_find("copy_f32__ref")->run.store_kv(&args, 0, 1);
        }
        for (int which = 0; which < 2; which++) {
            const int32_t sequence = 0, position = POSITIONS - 1;
            const nib_attn args = {.q = q,
                                   .out = out[which],
                                   .ldq = 2 * WIDE,
                                   .ldo = 2 * WIDE,
                                   .m = 1,
                                   .heads = 2,
                                   .sequence = &sequence,
                                   .position = &position,
                                   .cache = which == 0 ? c : f,
                                   .scale = 0.25F};
            const nib_kernel *row = nib__kernel_find("attn_f32__ref");
            void *scratch = nib__block_take(row->scratch(&args));
            row->run.attn(&args, 0, 1, scratch); /* first head only */
            nib__block_free(scratch, row->scratch(&args));
        }
        assert_memory_equal(out[0], out[1], sizeof *out);
        nib__kv_close(&kv), nib__kv_close(&exact);
    }
}

/* Keys and values of different sizes lie side by side, and leave and enter the cache whole. */
static void test_mixed_types(void **state)
{
    static const char *const names[] = {"int8:int4", "int4-hadamard:f32", "f16:int8"};
    (void)state;
    for (size_t i = 0; i < COUNT(names); i++) {
        nib_kv_types types;
        assert_true(nib__kv_parse(&types, names[i]));
        nib_kv kv = open_types(types);
        extend(&kv, 0, 100);
        const int64_t key = nib__cache_bytes(types.keys.type, 40, 64),
                      value = nib__cache_bytes(types.values.type, 40, 64);
        for (int64_t layer = 0; layer < 3; layer++) {
            const nib_cache c = nib__kv_layer(&kv, layer);
            assert_ptr_equal(c.keys, kv.groups->block + layer * 2 * (key + value));
            assert_ptr_equal(c.values, (char *)c.keys + 2 * key);
            assert_int_equal(c.block_bytes, 3 * 2 * (key + value));
        }
        const uint64_t bytes = nib__kv_position_bytes(&kv, 0);
        assert_int_equal(bytes, 2 * (key + value) / 64);
        uint8_t *rows = malloc(64 * bytes), *again = malloc(64 * bytes);
        uint32_t random = 9;
        for (uint64_t b = 0; b < 36 * bytes; b++)
            rows[b] = (uint8_t)any_bits(&random);
        assert_int_equal(nib__kv_write(&kv, 0, 1, 1, 36, rows, NULL, NULL), NIB_OK);
        assert_int_equal(nib__kv_read(&kv, 0, 1, 1, 36, again, NULL, NULL), NIB_OK);
        assert_memory_equal(rows, again, 36 * bytes);
        free(rows), free(again);
        nib__kv_close(&kv);
    }
}

static void test_type_names(void **state)
{
    static const char *const good[] = {"f32",
                                       "bf16",
                                       "int4-hadamard",
                                       "int8:int4",
                                       "f16:f32",
                                       "int8-hadamard:int4",
                                       "int4:int4-hadamard"};
    static const char *const wrong[] = {
        "",     "int", "i8", "int8:", ":int8", "int8-", "q4_1", "int4-hadamard-", "int4:int4:int4",
        "int4 "};
    (void)state;
    nib_kv_types types;
    char name[NIB_KV_NAME];
    for (size_t i = 0; i < COUNT(good); i++) {
        assert_true(nib__kv_parse(&types, good[i]));
        assert_string_equal(nib__kv_name(name, types), good[i]);
    }
    for (size_t i = 0; i < COUNT(wrong); i++)
        assert_false(nib__kv_parse(&types, wrong[i]));
    assert_true(nib__kv_parse(&types, "int4:int4"));
    assert_string_equal(nib__kv_name(name, types), "int4");
}

/* Layers without a window may have other heads; then they are a group of their own, whether or not
 * the others keep only a window. */
static void test_heads_by_layer(void **state)
{
    (void)state;
    static const int64_t contexts[] = {100, 2000};
    for (size_t i = 0; i < COUNT(contexts); i++) {
        nib_kv_shape shape = windowed_shape(2, contexts[i], 60);
        nib_kv_size size;
        shape.global_head_dim = 32, shape.global_kv_heads = 1;
        nib_kv kv = open_shape(&shape);
        assert_int_equal(kv.group_count, 2);
        assert_int_equal(kv.groups[kv.group_of[0]].window, i == 0 ? 0 : 60);
        for (int64_t layer = 0; layer < 3; layer++) {
            const nib_cache cache = nib__kv_layer(&kv, layer);
            assert_int_equal(cache.head_dim, layer == 1 ? 32 : 20);
            assert_int_equal(cache.kv_heads, layer == 1 ? 1 : 2);
            assert_int_equal(nib__kv_position_bytes(&kv, layer), layer == 1 ? 128 : 160);
        }
        assert_int_equal(nib__kv_widest_bytes(&kv), 160);
        for (int64_t position = 0; position < contexts[i]; position++) {
            assert_int_equal(nib__kv_extend(&kv, 1, position, NULL), NIB_OK);
            nib__kv_place(&kv, 1, position);
        }
        check_group(&kv, &kv.groups[0]);
        check_group(&kv, &kv.groups[1]);
        assert_int_equal(nib__kv_measure(&size, &shape, NULL), NIB_OK);
        assert_int_equal(size.bytes, nib__kv_bytes(&kv));
        nib__kv_close(&kv);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_heads_by_layer),
        cmocka_unit_test(test_grows_and_shrinks),
        cmocka_unit_test(test_shared_blocks_are_not_written),
        cmocka_unit_test(test_random_operations),
        cmocka_unit_test(test_window_bytes),
        cmocka_unit_test(test_window_rollback),
        cmocka_unit_test(test_window_shares),
        cmocka_unit_test(test_views),
        cmocka_unit_test(test_errors),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_int8_codes),
        cmocka_unit_test(test_int8_attention),
        cmocka_unit_test(test_int4_codes),
        cmocka_unit_test(test_int4_attention),
        cmocka_unit_test(test_mixed_types),
        cmocka_unit_test(test_type_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
