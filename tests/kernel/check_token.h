/* SPDX-License-Identifier: Apache-2.0
 *
 * For the kernel checker: the operations without weights, and the embedding. Widths around the 16
 * lanes and the softmax block; the whole against parts, twice, and in place where allowed.
 */
#ifndef NIB_CHECK_TOKEN_H
#define NIB_CHECK_TOKEN_H

#include "check_linear.h"

static const int64_t token_counts[] = {1, 2, 3, 5, 8, 17};
static const int64_t widths[] = {1, 2, 15, 16, 17, 32, 48, 64, 100, 224, 608};

/* The output of one call of a row. */
typedef struct result {
    float *values;
    int64_t count;
} result;

/* Checks what every operation promises: the reference's bits (on a GPU, its values within a
 * tolerance), the same bits in parts (`how`: their size), and no writes outside. Releases the
 * case's memory. */
static bool check_results(verdict *v, memory *m, const nib_kernel *row, result want, result got,
                          result parts, const char *how)
{
    const bool good = gpu_held(v) &&
                      near_floats(v, "against the reference", got.values, want.values, want.count,
                                  tolerance_of(row), largest_of(want.values, want.count)) &&
                      same_floats(v, how, parts.values, got.values, got.count) &&
                      (guards_hold(m) || broken(v, "wrote outside its output"));
    release(m);
    return good;
}

/* `count` random values, or NULL. */
static float *floats_or_none(memory *m, int64_t count, rng *r)
{
    return below(r, 2) != 0 ? floats(m, count, r, VALUES_RANDOM) : NULL;
}

/* ---- norm, swiglu, scale, add ---- */

static result run_norm(const nib_kernel *row, memory *m, nib_norm a, bool in_place, int64_t part)
{
    const int64_t count = a.rows * a.ldo;
    float *out = take(m, (size_t)count * sizeof *out);
    if (in_place) {
        for (int64_t i = 0; i < a.rows; i++)
            memcpy(out + i * a.ldo, a.x + i * a.ldx, (size_t)a.width * sizeof *out);
        a.x = out, a.ldx = a.ldo;
    }
    a.out = out;
    if (runs_on_gpu(m, row, &a))
        return (result){out, count};
    for (int64_t i = 0; i < a.rows; i += part)
        row->run.norm(&a, i, nib__min(a.rows, i + part));
    return (result){out, count};
}

static bool check_norm(verdict *v, const nib_kernel *row, const nib_kernel *ref, int64_t rows,
                       int64_t width, value_class class, rng *r)
{
    memory m = {.count = 0};
    const int64_t ldx = width + below(r, 3), ldo = width + below(r, 3);
    const int64_t weights = below(r, 2) != 0 ? 1 + below(r, 4) : 0;
    const nib_norm a = {.x = floats(&m, rows * ldx, r, class),
                        .weight = floats(&m, width * nib__max(1, weights), r, VALUES_RANDOM),
                        .weights = weights,
                        .rows = rows,
                        .width = width,
                        .ldx = ldx,
                        .ldo = ldo,
                        .eps = 1e-5F,
                        .centered = below(r, 2) != 0,
                        .bias = floats_or_none(&m, width, r)};
    const result want = run_norm(ref, &m, a, false, rows), got = run_norm(row, &m, a, false, rows);
    const result parts = run_norm(row, &m, a, false, 1), placed = run_norm(row, &m, a, true, rows);
    const bool in_place = same_floats(v, "in place", placed.values, got.values, got.count);
    return check_results(v, &m, row, want, got, parts, "row by row") && in_place;
}

/* In place, the output has the row stride of the gates. */
static result run_swiglu(const nib_kernel *row, memory *m, nib_swiglu a, bool in_place,
                         int64_t part)
{
    const int64_t count = a.m * a.ldo;
    a.out = take(m, (size_t)count * sizeof *a.out);
    if (in_place) {
        memcpy(a.out, a.gate, (size_t)count * sizeof *a.out);
        a.gate = a.out;
    }
    if (runs_on_gpu(m, row, &a))
        return (result){a.out, count};
    for (int64_t i = 0; i < a.m; i += part)
        row->run.swiglu(&a, i, nib__min(a.m, i + part));
    return (result){a.out, count};
}

static bool check_swiglu(verdict *v, const nib_kernel *row, const nib_kernel *ref, int64_t rows,
                         int64_t width, value_class class, rng *r)
{
    memory m = {.count = 0};
    const int64_t ld = width + below(r, 3), ldu = width + below(r, 5);
    nib_swiglu a = {.gate = floats(&m, rows * ld, r, class),
                    .up = floats_or_none(&m, rows * ldu, r),
                    .m = rows,
                    .width = width,
                    .ld = ld,
                    .ldu = ldu,
                    .ldo = width + below(r, 3),
                    .alpha = 1.702F,
                    .limit = 0.5F,
                    .activation = below(r, 2) != 0 ? NIB_GELU_TANH : NIB_SILU};
    if (a.up != NULL && below(r, 3) == 0)
        a.activation = NIB_SWIGLU_CLAMPED;
    else if (below(r, 3) == 0)
        a.activation = NIB_SIGMOID;
    a.one_gate = a.activation != NIB_SWIGLU_CLAMPED && below(r, 3) == 0;
    const result want = run_swiglu(ref, &m, a, false, rows),
                 got = run_swiglu(row, &m, a, false, rows),
                 parts = run_swiglu(row, &m, a, false, 1);
    a.ldo = a.ld;
    const result apart = run_swiglu(row, &m, a, false, rows),
                 placed = run_swiglu(row, &m, a, true, rows);
    bool in_place = true;
    for (int64_t i = 0; i < rows && !a.one_gate; i++)
        in_place = in_place &&
                   same_floats(v, "in place", placed.values + i * ld, apart.values + i * ld, width);
    return check_results(v, &m, row, want, got, parts, "row by row") && in_place;
}

static result run_scale(const nib_kernel *row, memory *m, nib_scale a, bool in_place, int64_t part)
{
    const int64_t count = a.m * a.ldo;
    a.out = take(m, (size_t)count * sizeof *a.out);
    if (in_place) {
        for (int64_t i = 0; i < a.m; i++)
            memcpy(a.out + i * a.ldo, a.x + i * a.ldx, (size_t)a.width * sizeof *a.out);
        a.x = a.out, a.ldx = a.ldo;
    }
    if (runs_on_gpu(m, row, &a))
        return (result){a.out, count};
    for (int64_t i = 0; i < a.m; i += part)
        row->run.scale(&a, i, nib__min(a.m, i + part));
    return (result){a.out, count};
}

static bool check_scale(verdict *v, const nib_kernel *row, const nib_kernel *ref, int64_t rows,
                        int64_t width, value_class class, rng *r)
{
    memory m = {.count = 0};
    nib_scale a = {.m = rows,
                   .width = width,
                   .ldx = width + below(r, 3),
                   .ldo = width + below(r, 3),
                   .scale = 4 * unit(r),
                   .cap = below(r, 3) != 0 ? (float)(1 + below(r, 50)) : 0};
    a.x = floats(&m, rows * a.ldx, r, class);
    const result want = run_scale(ref, &m, a, false, rows),
                 got = run_scale(row, &m, a, false, rows), parts = run_scale(row, &m, a, false, 1),
                 placed = run_scale(row, &m, a, true, rows);
    const bool in_place = same_floats(v, "in place", placed.values, got.values, got.count);
    nib_scale many = a;
    many.m = MANY_ROWS;
    return check_results(v, &m, row, want, got, parts, "row by row") && in_place &&
           takes_many_rows(v, row, &many);
}

static result run_add(const nib_kernel *row, memory *m, nib_add a, const float *start, int64_t part)
{
    const int64_t count = a.m * a.ldy;
    a.y = take(m, (size_t)count * sizeof *a.y);
    memcpy(a.y, start, (size_t)count * sizeof *a.y);
    if (runs_on_gpu(m, row, &a))
        return (result){a.y, count};
    for (int64_t i = 0; i < a.m; i += part)
        row->run.add(&a, i, nib__min(a.m, i + part));
    return (result){a.y, count};
}

static bool check_add(verdict *v, const nib_kernel *row, const nib_kernel *ref, int64_t rows,
                      int64_t width, value_class class, rng *r)
{
    memory m = {.count = 0};
    const int64_t ldx = width + below(r, 3), ldy = width + below(r, 3);
    const nib_add a = {
        .x = floats(&m, rows * ldx, r, class), .m = rows, .width = width, .ldx = ldx, .ldy = ldy};
    const float *start = floats(&m, rows * ldy, r, VALUES_RANDOM);
    const result want = run_add(ref, &m, a, start, rows), got = run_add(row, &m, a, start, rows);
    const result parts = run_add(row, &m, a, start, 1);
    nib_add many = a;
    many.m = MANY_ROWS;
    return check_results(v, &m, row, want, got, parts, "row by row") &&
           takes_many_rows(v, row, &many);
}

/* ---- gather ---- */

static result run_gather(const nib_kernel *row, memory *m, nib_gather a, int64_t part)
{
    const int64_t count = a.m * a.ldo;
    a.out = take(m, (size_t)count * sizeof *a.out);
    if (runs_on_gpu(m, row, &a))
        return (result){a.out, count};
    for (int64_t i = 0; i < a.m; i += part)
        row->run.gather(&a, i, nib__min(a.m, i + part));
    return (result){a.out, count};
}

static bool check_gather(verdict *v, const nib_kernel *row, const nib_kernel *ref, int64_t rows,
                         int64_t width, value_class class, rng *r)
{
    memory m = {.count = 0};
    int32_t *order = take(&m, (size_t)width * sizeof *order);
    for (int64_t j = 0; j < width; j++) { /* a random permutation, grown by one */
        const int64_t at = below(r, j + 1);
        order[j] = order[at];
        order[at] = (int32_t)j;
    }
    nib_gather a = {.ldx = width + below(r, 3),
                    .ldo = width + below(r, 3),
                    .m = rows,
                    .width = width,
                    .order = order};
    a.x = floats(&m, rows * a.ldx, r, class);
    const result want = run_gather(ref, &m, a, rows), got = run_gather(row, &m, a, rows);
    const result parts = run_gather(row, &m, a, 1);
    bool right = true;
    for (int64_t i = 0; i < rows && right; i++)
        for (int64_t j = 0; j < width && right; j++)
            right = memcmp(&got.values[i * a.ldo + j], &a.x[i * a.ldx + order[j]], 4) == 0;
    right = right || broken(v, "a value is not the one that the order names");
    return check_results(v, &m, row, want, got, parts, "row by row") && right;
}

/* ---- rope ---- */

static result run_rope(const nib_kernel *row, memory *m, nib_rope a, const float *start,
                       int64_t part)
{
    const int64_t count = a.m * a.ldx;
    a.x = take(m, (size_t)count * sizeof *a.x);
    memcpy(a.x, start, (size_t)count * sizeof *a.x);
    if (runs_on_gpu(m, row, &a))
        return (result){a.x, count};
    for (int64_t i = 0; i < a.m; i += part)
        row->run.rope(&a, i, nib__min(a.m, i + part));
    return (result){a.x, count};
}

static bool check_rope(verdict *v, const nib_kernel *row, const nib_kernel *ref, int64_t rows,
                       int64_t width, value_class class, rng *r)
{
    enum { POSITIONS = 40 };
    memory m = {.count = 0};
    nib_rope a = {.m = rows, .heads = 1 + below(r, 3), .head_dim = 2 * nib__ceil_div(width, 2)};
    a.inverse = below(r, 2) != 0, a.interleaved = below(r, 2) != 0;
    a.dims = a.head_dim > 4 && below(r, 3) == 0 ? a.head_dim / 4 * 2 : a.head_dim;
    a.ldx = a.heads * a.head_dim + below(r, 3);
    a.cos_sin = floats(&m, POSITIONS * a.dims, r, VALUES_RANDOM);
    int32_t *position = take(&m, (size_t)rows * sizeof *position);
    for (int64_t i = 0; i < rows; i++)
        position[i] = (int32_t)below(r, POSITIONS);
    a.position = position;
    const float *start = floats(&m, rows * a.ldx, r, class);
    const result want = run_rope(ref, &m, a, start, rows), got = run_rope(row, &m, a, start, rows);
    const result parts = run_rope(row, &m, a, start, 1);
    return check_results(v, &m, row, want, got, parts, "row by row");
}

/* ---- embedding ---- */

static result run_embed(const nib_kernel *row, memory *m, nib_embed a, int64_t part)
{
    const int64_t count = a.m * a.table->k;
    a.packed = pack_weight(m, row, a.table);
    a.out = take(m, (size_t)count * sizeof *a.out);
    if (runs_on_gpu(m, row, &a))
        return (result){a.out, count};
    for (int64_t i = 0; i < a.m; i += part)
        row->run.embed(&a, i, nib__min(a.m, i + part));
    return (result){a.out, count};
}

static bool check_embed(verdict *v, const nib_kernel *row, const nib_kernel *ref, int64_t rows,
                        int64_t width, value_class class, rng *r)
{
    enum { VOCABULARY = 13 };
    memory m = {.count = 0};
    static const linear_case kinds[] = {
        {.scheme = {.code = NIB_CODE_BF16}},
        {.scheme = {.code = NIB_CODE_F32}},
        {.scheme = {.code = NIB_CODE_I8, .group = 32}, .scale_type = NIB_TYPE_F32},
        {.scheme = {.code = NIB_CODE_I4, .group = 7, .zero = NIB_ZERO_INT},
         .scale_type = NIB_TYPE_BF16,
         .zero_type = NIB_TYPE_I8},
        {.scheme = {.code = NIB_CODE_I4, .group = 64, .zero = NIB_ZERO_FLOAT},
         .scale_type = NIB_TYPE_F16,
         .zero_type = NIB_TYPE_F16},
        {.scheme = {.code = NIB_CODE_I3, .group = 64, .zero = NIB_ZERO_FLOAT},
         .scale_type = NIB_TYPE_F16,
         .zero_type = NIB_TYPE_F16},
        {.scheme = {.code = NIB_CODE_E4M3}, .scale_type = NIB_TYPE_F32},
        {.scheme = {.code = NIB_CODE_NV4, .group = 16}, .scale_type = NIB_TYPE_E4M3},
    };
    linear_case c = kinds[below(r, COUNT(kinds))];
    nib_weight table;
    c.n = VOCABULARY, c.k = width, c.values = class;
    make_weight(&table, &m, &c, r);
    int32_t *ids = take(&m, (size_t)rows * sizeof *ids);
    for (int64_t i = 0; i < rows; i++)
        ids[i] = (int32_t)below(r, VOCABULARY);
    const nib_embed a = {.table = &table, .ids = ids, .m = rows};
    const result want = run_embed(ref, &m, a, rows), got = run_embed(row, &m, a, rows);
    const result parts = run_embed(row, &m, a, 1);
    return check_results(v, &m, row, want, got, parts, "row by row");
}

/* ---- the KV cache: store and attention ---- */

enum { SEQUENCES = 3, BLOCKS = 8 /* of each sequence */ };

static void fill_floats(void *to, nib_type type, int64_t count, rng *r)
{
    for (int64_t i = 0; i < count; i++) {
        const float x = unit(r);
        nib__from_f32((uint8_t *)to + i * nib__cache_value_bytes(type), type, &x, 1);
    }
}

/* Fills the keys, or values, of one block and head. A few scales are NaN. */
static void fill_head(char *to, nib_type type, int64_t head_dim, rng *r)
{
    const nib_kv_vector v = nib__kv_vector(type, head_dim);
    const int64_t codes = NIB_CACHE_BLOCK * v.elements;
    if (v.others == 0) {
        fill_floats(to, type, codes, r);
        return;
    }
    for (int64_t i = 0; i < codes; i++)
        to[i] = (char)(type == NIB_TYPE_I8 ? below(r, 255) - 127 : below(r, 256));
    for (int64_t i = 0; i < NIB_CACHE_BLOCK * v.others; i++) {
        const float scale = below(r, 2000) == 0 ? NAN : (float)(1 + below(r, 1000)) * 1e-5F;
        nib__from_f32(to + codes + i * v.other_bytes,
                      v.other_bytes == 4 ? NIB_TYPE_F32 : NIB_TYPE_F16, &scale, 1);
    }
}

/* Block tables in shuffled order, to catch a row that ignores them. */
static nib_cache make_cache(memory *m, const nib_kernel *row, int64_t kv_heads, int64_t head_dim,
                            nib_kv_types types, rng *r)
{
    const int64_t between = kv_heads + (row->device == NIB_DEVICE_CPU ? below(r, 3) : 0);
    const int64_t key = nib__cache_bytes(types.keys.type, head_dim, NIB_CACHE_BLOCK),
                  value = nib__cache_bytes(types.values.type, head_dim, NIB_CACHE_BLOCK),
                  stride = between * nib__max(key, value);
    int32_t *tables = take(m, SEQUENCES * BLOCKS * sizeof *tables);
    for (int i = 0; i < SEQUENCES * BLOCKS; i++) {
        const int j = (int)below(r, i + 1);
        tables[i] = tables[j], tables[j] = i;
    }
    nib_cache cache = {.types = types,
                       .tables = tables,
                       .table_ld = BLOCKS,
                       .kv_heads = kv_heads,
                       .head_dim = head_dim,
                       .block_bytes = stride};
    cache.keys = take(m, (size_t)(SEQUENCES * BLOCKS * stride));
    cache.values = take(m, (size_t)(SEQUENCES * BLOCKS * stride));
    for (int64_t i = 0; i < SEQUENCES * BLOCKS * kv_heads; i++) {
        const int64_t at = i / kv_heads * stride, head = i % kv_heads;
        fill_head((char *)cache.keys + at + head * key, types.keys.type, head_dim, r);
        fill_head((char *)cache.values + at + head * value, types.values.type, head_dim, r);
    }
    return cache;
}

static const nib_type cache_types[] = {NIB_TYPE_F32, NIB_TYPE_F16, NIB_TYPE_BF16, NIB_TYPE_I8,
                                       NIB_TYPE_Q4_1};

/* Whether the row's conditions on this fact accept the value. */
static bool accepts(const nib_kernel *row, nib_fact fact, int64_t value)
{
    bool takes = true;
    nib_query query = {.fact = {0}};
    query.fact[fact] = value;
    for (const nib_cond *c = row->conds; c->relation != NIB_REL_END; c++)
        takes = takes && (c->fact != fact || nib__cond_holds(c, &query));
    return takes;
}

/* Types of keys and values that the row accepts: often one for both. */
static nib_kv_types any_cache(const nib_kernel *row, rng *r)
{
    nib_kv_types t;
    do
        t = nib__kv_both(cache_types[below(r, COUNT(cache_types))]);
    while (!accepts(row, NIB_FACT_CACHE, nib__kv_kind(t.keys.type)));
    if (accepts(row, NIB_FACT_CACHE_MIXED, 1) && below(r, 2) == 0)
        t.values.type = cache_types[below(r, COUNT(cache_types))];
    if (accepts(row, NIB_FACT_CACHE_HADAMARD, 1)) {
        t.keys.hadamard = below(r, 3) == 0;
        t.values.hadamard = below(r, 3) == 0;
    }
    return t;
}

static void run_store(const nib_kernel *row, memory *m, const nib_store_kv *a, int64_t part)
{
    if (runs_on_gpu(m, row, a))
        return;
    for (int64_t i = 0; i < a->m; i += part)
        row->run.store_kv(a, i, nib__min(a->m, i + part));
}

/* A store into three equal caches. */
typedef struct storing {
    nib_cache caches[3];
    size_t bytes; /* of the keys, and of the values */
    nib_store_kv a;
} storing;

static storing make_storing(memory *m, const nib_kernel *row, int64_t rows, int64_t width,
                            value_class class, rng *r)
{
    const int64_t kv_heads = 1 + below(r, 2), ld = kv_heads * width + below(r, 3);
    storing s = {.bytes = 0};
    s.caches[0] = make_cache(m, row, kv_heads, width, any_cache(row, r), r);
    s.bytes = (size_t)(SEQUENCES * BLOCKS * s.caches[0].block_bytes);
    for (int i = 1; i < 3; i++) {
        s.caches[i] = s.caches[0];
        s.caches[i].keys = take(m, s.bytes), s.caches[i].values = take(m, s.bytes);
        memcpy(s.caches[i].keys, s.caches[0].keys, s.bytes),
            memcpy(s.caches[i].values, s.caches[0].values, s.bytes);
    }
    int32_t *sequence = take(m, (size_t)rows * sizeof *sequence),
            *position = take(m, (size_t)rows * sizeof *position);
    for (int64_t i = 0; i < rows; i++)
        sequence[i] = (int32_t)(i % SEQUENCES),
        position[i] = (int32_t)(i * 29 % (BLOCKS * NIB_CACHE_BLOCK));
    s.a = (nib_store_kv){.k = floats(m, rows * ld, r, class),
                         .v = floats(m, rows * ld, r, class),
                         .ld = ld,
                         .m = rows,
                         .sequence = sequence,
                         .position = position};
    return s;
}

/* The three caches are still equal: the reference's, the row's, and the row's slot by slot. */
static bool stored_alike(verdict *v, memory *m, const storing *s)
{
    const nib_cache *c = s->caches;
    bool good = gpu_held(v);
    good = good && (guards_hold(m) || broken(v, "wrote outside the cache"));
    for (int i = 1; i < 3 && good; i++)
        good = (memcmp(c[0].keys, c[i].keys, s->bytes) == 0 &&
                (c[0].values == NULL || memcmp(c[0].values, c[i].values, s->bytes) == 0)) ||
               broken(v, i == 1 ? "the cache differs from the reference's"
                                : "slot by slot the cache differs");
    return good;
}

static bool check_store(verdict *v, const nib_kernel *row, const nib_kernel *ref, int64_t rows,
                        int64_t width, value_class class, rng *r)
{
    memory m = {.count = 0};
    storing s = make_storing(&m, row, rows, width, class, r);
    if (below(r, 4) == 0) { /* keys alone */
        s.a.v = NULL;
        for (int i = 0; i < 3; i++)
            s.caches[i].values = NULL;
    }
    s.a.cache = s.caches[0], run_store(ref, &m, &s.a, rows);
    s.a.cache = s.caches[1], run_store(row, &m, &s.a, rows);
    s.a.cache = s.caches[2], run_store(row, &m, &s.a, 1);
    const bool good = stored_alike(v, &m, &s);
    release(&m);
    return good;
}

/* Writes cache `which` of the three: 0 by the references of rope and store in sequence, 1 as a
 * whole, 2 slot by slot. Returns the queries. */
static result run_rope_copy(const nib_kernel *row, memory *m, const storing *s, nib_rope q,
                            int which)
{
    const float *start = q.x;
    const int64_t step = which == 2 ? 1 : q.m, cells = q.m * q.ldx, keys = q.m * s->a.ld;
    nib_rope_store_kv a = {.q = q, .k = q, .store = s->a};
    a.q.x = take(m, (size_t)cells * sizeof *a.q.x);
    a.k.x = take(m, (size_t)keys * sizeof *a.k.x);
    a.k.heads = s->caches[0].kv_heads, a.k.ldx = s->a.ld;
    memcpy(a.q.x, start, (size_t)cells * sizeof *start);
    memcpy(a.k.x, s->a.k, (size_t)keys * sizeof *start);
    a.store.k = a.k.x, a.store.cache = s->caches[which];
    if (which == 0) {
        const nib_kernel *rope = nib__kernel_find("rope_f32__ref");
        rope->run.rope(&a.q, 0, q.m);
        rope->run.rope(&a.k, 0, q.m);
        nib__kernel_find("copy_f32__ref")->run.store_kv(&a.store, 0, q.m);
    }
    for (int64_t at = 0; at < q.m && which > 0; at += step)
        row->run.rope_store_kv(&a, at, at + step);
    return (result){a.q.x, cells};
}

static bool check_rope_copy(verdict *v, const nib_kernel *row, const nib_kernel *ref, int64_t rows,
                            int64_t width, value_class class, rng *r)
{
    memory m = {.count = 0};
    const int64_t dim = 2 * nib__ceil_div(width, 2), heads = 1 + below(r, 3);
    (void)ref;
    const storing s = make_storing(&m, row, rows, dim, class, r);
    nib_rope q = {.position = s.a.position,
                  .cos_sin = floats(&m, BLOCKS * NIB_CACHE_BLOCK * dim, r, VALUES_RANDOM),
                  .m = rows,
                  .heads = heads,
                  .head_dim = dim,
                  .dims = dim,
                  .ldx = heads * dim + below(r, 3),
                  .interleaved = below(r, 2) != 0};
    q.x = floats(&m, rows * q.ldx, r, class);
    const result want = run_rope_copy(row, &m, &s, q, 0), got = run_rope_copy(row, &m, &s, q, 1),
                 parts = run_rope_copy(row, &m, &s, q, 2);
    const bool alike = stored_alike(v, &m, &s);
    return check_results(v, &m, row, want, got, parts, "slot by slot") && alike;
}

/* Slot i alone. */
static nib_attn slot_of(nib_attn a, int64_t i)
{
    a.m = 1;
    a.q += i * a.ldq, a.out += i * a.ldo, a.lse += i * a.heads;
    a.sequence += i, a.position += i;
    return a;
}

/* The output, then the log-sum-exp. In parts, a GPU row takes one slot at a time if its bits do not
 * depend on their number, which those of other GPU rows may. */
static result run_attn(const nib_kernel *row, memory *m, nib_attn a, int64_t part)
{
    const int64_t count = a.m * a.ldo, items = a.m * a.heads;
    a.out = take(m, (size_t)(count + items) * sizeof *a.out);
    a.lse = a.out + count;
    void *scratch = take(m, row->scratch != NULL ? row->scratch(&a) : 0);
    if (row->gpu != NULL && part < items && a.cache.values == NULL) {
        for (int64_t i = 0; i < a.m; i++) {
            const nib_attn alone = slot_of(a, i);
            (void)runs_on_gpu(m, row, &alone);
        }
        return (result){a.out, count + items};
    }
    if (runs_on_gpu(m, row, &a))
        return (result){a.out, count + items};
    const nib_float_mode mode = nib__float_mode_flush();
    for (int64_t i = 0; i < items; i += part)
        row->run.attn(&a, i, nib__min(items, i + part), scratch);
    nib__float_mode_restore(mode);
    return (result){a.out, count + items};
}

/* A window (one position, around the block size, beyond any context) and a cap for some of the
 * cases. */
static int64_t any_window(rng *r)
{
    static const int64_t windows[] = {0, 0, 0, 1, 2, 17, 64, 65, 100, 256, 300, 1000};
    return windows[below(r, COUNT(windows))];
}
static float any_cap(rng *r)
{
    static const float caps[] = {0, 0, 0, 0.25F, 1, 50};
    return caps[below(r, COUNT(caps))];
}

enum { POSITIONS = BLOCKS * NIB_CACHE_BLOCK };

/* A vector of keys, or of values, becomes NaN: all bits set is NaN in every float type, of scales
 * too. */
static void hide_vector(char *head, nib_type type, int64_t dim, int64_t inside, bool keys)
{
    const nib_kv_vector v = nib__kv_vector(type, dim);
    const int64_t step = keys ? NIB_CACHE_BLOCK : 1, next = keys ? 1 : v.elements;
    for (int64_t i = 0; i < v.elements && v.others == 0; i++)
        memset(head + (i * step + inside * next) * v.element_bytes, 0xff, (size_t)v.element_bytes);
    head += NIB_CACHE_BLOCK * v.elements * v.element_bytes;
    for (int64_t i = 0; i < v.others; i++)
        memset(head + (i * NIB_CACHE_BLOCK + inside) * v.other_bytes, 0xff, (size_t)v.other_bytes);
}

static void hide_position(const nib_cache *c, int64_t sequence, int64_t position)
{
    const nib_type keys = c->types.keys.type, values = c->types.values.type;
    const int64_t at =
        c->tables[sequence * c->table_ld + position / NIB_CACHE_BLOCK] * c->block_bytes;
    for (int64_t h = 0; h < c->kv_heads; h++) {
        hide_vector((char *)c->keys + at + h * nib__cache_bytes(keys, c->head_dim, NIB_CACHE_BLOCK),
                    keys, c->head_dim, position % NIB_CACHE_BLOCK, true);
        if (c->values != NULL)
            hide_vector((char *)c->values + at +
                            h * nib__cache_bytes(values, c->head_dim, NIB_CACHE_BLOCK),
                        values, c->head_dim, position % NIB_CACHE_BLOCK, false);
    }
}

/* Writes NaN to every position that none of the m queries may read. Cache blocks below all windows
 * of a sequence are unmapped. */
static void hide_unseen(const nib_cache *c, int64_t m, const int32_t *sequence,
                        const int32_t *position, int64_t window, bool chunked)
{
    enum { NOWHERE = 1 << 28 };
    bool seen[SEQUENCES][POSITIONS] = {{false}};
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j <= position[i]; j++)
            if (window == 0 ||
                (chunked ? position[i] / window == j / window : position[i] - j < window))
                seen[sequence[i]][j] = true;
    for (int s = 0; s < SEQUENCES; s++) {
        int32_t *table = (int32_t *)(intptr_t)c->tables + s * c->table_ld;
        int64_t least = 0;
        while (least < POSITIONS && !seen[s][least])
            least++;
        for (int64_t j = 0; j < POSITIONS; j++)
            if (!seen[s][j])
                hide_position(c, s, j);
        for (int64_t b = 0; b < least / NIB_CACHE_BLOCK; b++)
            table[b] = NOWHERE;
    }
}

static bool check_attn(verdict *v, const nib_kernel *row, const nib_kernel *ref, int64_t rows,
                       int64_t width, value_class class, rng *r)
{
    static const int32_t positions[] = {0, 1, 15, 16, 63, 64, 255, 256, 257, 400, 511};
    memory m = {.count = 0};
    const bool latent =
        accepts(row, NIB_FACT_LATENT, 1) && (!accepts(row, NIB_FACT_LATENT, 0) || below(r, 3) == 0);
    const int64_t kv_heads = 1 + below(r, 2),
                  dim = nib__min(width, latent && row->gpu != NULL ? 576 : 128);
    nib_attn a = {.m = rows, .heads = kv_heads * (1 + below(r, 3)), .scale = 1 / sqrtf((float)dim)};
    a.cache = make_cache(&m, row, kv_heads, dim, any_cache(row, r), r);
    if (latent) { /* values in keys; more heads than fill a tile */
        a.heads = kv_heads * (1 + below(r, 40));
        a.cache.values = NULL, a.cache.value_dim = 1 + below(r, dim);
    }
    a.ldq = a.heads * dim + below(r, 3);
    a.ldo = a.heads * nib__cache_value_dim(&a.cache) + below(r, 3);
    a.q = floats(&m, rows * a.ldq, r, class);
    a.window = any_window(r), a.cap = any_cap(r);
    a.chunked = below(r, 2) != 0;
    a.sinks = floats_or_none(&m, a.heads, r);
    int32_t *sequence = take(&m, (size_t)rows * sizeof *sequence),
            *position = take(&m, (size_t)rows * sizeof *position);
    const bool is_prompt = next(r) % 2 != 0; /* the next positions of one sequence */
    const int32_t first = (int32_t)below(r, POSITIONS - rows);
    for (int64_t i = 0; i < rows; i++) {
        sequence[i] = is_prompt ? first % SEQUENCES : (int32_t)below(r, SEQUENCES);
        position[i] = is_prompt ? first + (int32_t)i : positions[below(r, COUNT(positions))];
    }
    a.sequence = sequence, a.position = position;
    const result want = run_attn(ref, &m, a, rows * a.heads);
    hide_unseen(&a.cache, rows, sequence, position, a.window, a.chunked);
    const result got = run_attn(row, &m, a, rows * a.heads);
    const result parts = run_attn(row, &m, a, 1);
    return check_results(v, &m, row, want, got, parts, "item by item");
}

/* dq, dk and dv, one after the other. */
static result run_attn_dx(const nib_kernel *row, memory *m, nib_attn_dx a, int64_t part)
{
    const int64_t count = a.m * a.ldq + 2 * a.m * a.ldkv, items = a.documents * a.cache.kv_heads;
    a.dq = take(m, (size_t)count * sizeof *a.dq);
    a.dk = a.dq + a.m * a.ldq;
    a.dv = a.dk + a.m * a.ldkv;
    void *scratch = take(m, row->scratch != NULL ? row->scratch(&a) : 0);
    const nib_float_mode mode = nib__float_mode_flush();
    for (int64_t i = 0; i < items; i += part)
        row->run.attn_dx(&a, i, nib__min(items, i + part), scratch);
    nib__float_mode_restore(mode);
    return (result){a.dq, count};
}

/* The log-sum-exp is arbitrary, as any value gives the same bits in all rows. Positions past a
 * document's end are NaN. */
static bool check_attn_dx(verdict *v, const nib_kernel *row, const nib_kernel *ref, int64_t rows,
                          int64_t width, value_class class, rng *r)
{
    static const int32_t lengths[] = {0, 1, 15, 16, 17, 63, 64, 65, 130, 199};
    memory m = {.count = 0};
    const int64_t kv_heads = 1 + below(r, 2), dim = width > 128 ? 128 : width;
    nib_attn_dx a = {.heads = kv_heads * (1 + below(r, 3)),
                     .documents = 1 + rows % SEQUENCES,
                     .window = any_window(r),
                     .chunked = below(r, 2) != 0,
                     .cap = any_cap(r),
                     .scale = 1 / sqrtf((float)dim)};
    int32_t *start = take(&m, (size_t)(a.documents + 1) * sizeof *start);
    start[0] = 0;
    for (int64_t i = 0; i < a.documents; i++)
        start[i + 1] = start[i] + lengths[below(r, COUNT(lengths) - (dim > 48 ? 2 : 0))];
    a.start = start, a.m = start[a.documents];
    int32_t *document = take(&m, (size_t)a.m * sizeof *document),
            *position = take(&m, (size_t)a.m * sizeof *position);
    for (int64_t i = 0; i < a.documents; i++)
        for (int32_t j = start[i]; j < start[i + 1]; j++)
            document[j] = (int32_t)i, position[j] = j - start[i];
    a.cache = make_cache(&m, row, kv_heads, dim, nib__kv_both(cache_types[below(r, 3)]), r);
    if (below(r, 3) == 0)
        a.cache.values = NULL, a.cache.value_dim = 1 + below(r, dim);
    a.ldq = a.heads * dim + below(r, 3);
    a.ldo = a.heads * nib__cache_value_dim(&a.cache) + below(r, 3);
    a.ldkv = kv_heads * dim + below(r, 3);
    a.q = floats(&m, a.m * a.ldq, r, class);
    a.out = floats(&m, a.m * a.ldo, r, VALUES_RANDOM);
    a.dout = floats(&m, a.m * a.ldo, r, class);
    a.lse = floats(&m, a.m * a.heads, r, VALUES_RANDOM);
    const int64_t items = a.documents * kv_heads;
    const result want = run_attn_dx(ref, &m, a, items);
    hide_unseen(&a.cache, a.m, document, position, 0, false);
    const result got = run_attn_dx(row, &m, a, items);
    const result parts = run_attn_dx(row, &m, a, 1);
    return check_results(v, &m, row, want, got, parts, "item by item");
}

#endif
