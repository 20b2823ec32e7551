/* SPDX-License-Identifier: Apache-2.0
 *
 * The code of the token rows, written once on lanes and compiled per instruction set: norm, rope,
 * swiglu, scale, add, storing keys and values, and rope with storing. Each including file names its
 * functions through NIB_TOKEN(name).
 */
#include "hadamard.h"
#include "norm_lanes.h"
#include "ops.h"

#include <float.h>

void NIB_TOKEN(norm)(const nib_norm *a, int64_t row0, int64_t row1)
{
    for (int64_t row = row0; row < row1; row++)
        nib__norm_values(a->out + row * a->ldo, a, row, nib__norm_row(a, row), 0, a->width);
}

/* ---- rope ---- */

/* Loads up to 16 pairs of channels (2i, 2i + 1) as their first and second channels; store_pairs is
 * the inverse. */
NIB_INLINE void load_pairs(const float *x, int64_t count, nib_lanes *first, nib_lanes *second)
{
    const nib_lanes a = nib__lanes_load_at(x, 0, 2 * count);
    const bool is_one = count <= NIB_LANES / 2;
    nib__lanes_unzip(a, is_one ? nib__lanes_set(0.0f) : nib__lanes_load_at(x, NIB_LANES, 2 * count),
                     first, second);
}

NIB_INLINE void store_pairs(float *x, int64_t count, nib_lanes first, nib_lanes second)
{
    nib_lanes a, b;
    nib__lanes_zip(first, second, &a, &b);
    nib__lanes_store_at(x, 0, 2 * count, a);
    if (count > NIB_LANES / 2)
        nib__lanes_store_at(x, NIB_LANES, 2 * count, b);
}

NIB_INLINE void rope_as(const nib_rope *a, int64_t m0, int64_t m1, bool interleaved)
{
    const int64_t half = a->dims / 2;
    const nib_lanes turn = nib__lanes_set(a->inverse ? -1.0f : 1.0f); /* exact */
    for (int64_t m = m0; m < m1; m++) {
        const float *cosine = a->cos_sin + (int64_t)a->position[m] * a->dims;
        const float *sine = cosine + half;
        for (int64_t h = 0; h < a->heads; h++) {
            float *x = a->x + m * a->ldx + h * a->head_dim;
            for (int64_t i = 0; i < half; i += NIB_LANES) {
                const nib_lanes c = nib__lanes_load_at(cosine, i, half),
                                s = nib__lanes_mul(nib__lanes_load_at(sine, i, half), turn);
                const int64_t count = nib__min(NIB_LANES, half - i);
                nib_lanes u, v;
                if (interleaved)
                    load_pairs(x + 2 * i, count, &u, &v);
                else
                    u = nib__lanes_load_at(x, i, half), v = nib__lanes_load_at(x + half, i, half);
                const nib_lanes us = nib__lanes_mul(u, s), vs = nib__lanes_mul(v, s);
                u = nib__lanes_sub(nib__lanes_mul(u, c), vs);
                v = nib__lanes_add(nib__lanes_mul(v, c), us);
                if (interleaved)
                    store_pairs(x + 2 * i, count, u, v);
                else
                    nib__lanes_store_at(x, i, half, u), nib__lanes_store_at(x + half, i, half, v);
            }
        }
    }
}

void NIB_TOKEN(rope)(const nib_rope *a, int64_t m0, int64_t m1)
{
    if (a->interleaved)
        rope_as(a, m0, m1, true);
    else
        rope_as(a, m0, m1, false);
}

/* ---- element by element ---- */

NIB_INLINE nib_lanes activate(nib_lanes g, const nib_activation as)
{
    nib_lanes sigmoid;
    switch (as) {
    case NIB_GELU_TANH: return nib__lanes_gelu(g, &sigmoid);
    case NIB_SIGMOID: return nib__lanes_sigmoid(g);
    default: return nib__lanes_silu(g, &sigmoid);
    }
}

NIB_INLINE void swiglu_as(const nib_swiglu *a, int64_t m0, int64_t m1, const nib_activation as,
                          const bool gated)
{
    for (int64_t m = m0; m < m1; m++) {
        const float *gate = a->gate + m * a->ld, *up = gated ? a->up + m * a->ldu : NULL;
        float *out = a->out + m * a->ldo;
        const nib_lanes all = nib__lanes_set(gate[0]);
        for (int64_t i = 0; i < a->width; i += NIB_LANES) {
            const nib_lanes y =
                activate(a->one_gate ? all : nib__lanes_load_at(gate, i, a->width), as);
            nib__lanes_store_at(out, i, a->width,
                                gated ? nib__lanes_mul(y, nib__lanes_load_at(up, i, a->width)) : y);
        }
    }
}

static void swiglu_clamped(const nib_swiglu *a, int64_t m0, int64_t m1)
{
    const nib_lanes most = nib__lanes_set(a->limit), least = nib__lanes_set(-a->limit),
                    one = nib__lanes_set(1.0f), slope = nib__lanes_set(-a->alpha);
    for (int64_t m = m0; m < m1; m++) {
        const float *gate = a->gate + m * a->ld, *up = a->up + m * a->ldu;
        float *out = a->out + m * a->ldo;
        for (int64_t i = 0; i < a->width; i += NIB_LANES) {
            const nib_lanes g = nib__lanes_min(most, nib__lanes_load_at(gate, i, a->width));
            const nib_lanes u =
                nib__lanes_max(least, nib__lanes_min(most, nib__lanes_load_at(up, i, a->width)));
            const nib_lanes e = nib__lanes_exp(nib__lanes_mul(g, slope));
            const nib_lanes y = nib__lanes_div(g, nib__lanes_add(one, e));
            nib__lanes_store_at(out, i, a->width, nib__lanes_mul(nib__lanes_add(u, one), y));
        }
    }
}

void NIB_TOKEN(swiglu)(const nib_swiglu *a, int64_t m0, int64_t m1)
{
    if (a->activation == NIB_SWIGLU_CLAMPED) {
        swiglu_clamped(a, m0, m1);
        return;
    }
    const bool gelu = a->activation == NIB_GELU_TANH, sigmoid = a->activation == NIB_SIGMOID;
    if (gelu && a->up != NULL)
        swiglu_as(a, m0, m1, NIB_GELU_TANH, true);
    else if (gelu)
        swiglu_as(a, m0, m1, NIB_GELU_TANH, false);
    else if (sigmoid && a->up != NULL)
        swiglu_as(a, m0, m1, NIB_SIGMOID, true);
    else if (sigmoid)
        swiglu_as(a, m0, m1, NIB_SIGMOID, false);
    else if (a->up != NULL)
        swiglu_as(a, m0, m1, NIB_SILU, true);
    else
        swiglu_as(a, m0, m1, NIB_SILU, false);
}

NIB_INLINE void scale_as(const nib_scale *a, int64_t m0, int64_t m1, bool capped)
{
    const nib_lanes scale = nib__lanes_set(a->scale), cap = nib__lanes_set(a->cap);
    for (int64_t m = m0; m < m1; m++) {
        const float *x = a->x + m * a->ldx;
        float *out = a->out + m * a->ldo;
        for (int64_t i = 0; i < a->width; i += NIB_LANES) {
            const nib_lanes v = nib__lanes_mul(nib__lanes_load_at(x, i, a->width), scale);
            nib__lanes_store_at(out, i, a->width, capped ? nib__lanes_softcap(v, cap) : v);
        }
    }
}

void NIB_TOKEN(scale)(const nib_scale *a, int64_t m0, int64_t m1)
{
    if (a->cap != 0.0f)
        scale_as(a, m0, m1, true);
    else
        scale_as(a, m0, m1, false);
}

void NIB_TOKEN(add)(const nib_add *a, int64_t m0, int64_t m1)
{
    for (int64_t m = m0; m < m1; m++) {
        const float *x = a->x + m * a->ldx;
        float *y = a->y + m * a->ldy;
        for (int64_t i = 0; i < a->width; i += NIB_LANES)
            nib__lanes_store_at(y, i, a->width,
                                nib__lanes_add(nib__lanes_load_at(y, i, a->width),
                                               nib__lanes_load_at(x, i, a->width)));
    }
}

/* ---- storing keys and values in the KV cache ---- */

/* Like nib__from_f32, but compiled for this instruction set for bf16, which training stores. */
static void round_values(void *to, nib_type type, const float *from, int64_t count)
{
    if (type == NIB_TYPE_BF16)
        nib__convert_to_bf16(to, from, count);
    else
        nib__from_f32(to, type, from, count);
}

/* The scale of an int8 vector, as nib_cache defines it. */
static float scale_of(const float *x, int64_t count)
{
    const nib_lanes zero = nib__lanes_set(0.0f);
    nib_lanes most = zero, wrong = zero; /* wrong: NaN if some v is not finite, else 0 */
    for (int64_t i = 0; i < count; i += NIB_LANES) {
        const nib_lanes v = nib__lanes_load_at(x, i, count);
        most = nib__lanes_max(nib__lanes_max(v, nib__lanes_sub(zero, v)), most);
        wrong = nib__lanes_fma(v, zero, wrong);
    }
    const float scale = nib__lanes_reduce_max(most) / 127.0f, or_nan = nib__lanes_sum(wrong);
    return or_nan != or_nan ? NAN : scale < FLT_MIN ? 1.0f : scale;
}

/* Quantizes a vector to codes, one every `step`, and a scale. */
static void quantize_vector(int8_t *to, int64_t step, float *scale, const float *x, int64_t count)
{
    const nib_lanes round =
        nib__lanes_set(12582912.0f); /* 1.5 * 2^23: adding it rounds to integer */
    const float s = scale_of(x, count);
    const nib_lanes by = nib__lanes_set(s);
    *scale = s;
    for (int64_t i = 0; i < count; i += NIB_LANES) {
        float whole[NIB_LANES];
        const nib_lanes v = nib__lanes_div(nib__lanes_load_at(x, i, count), by);
        nib__lanes_store(whole, nib__lanes_sub(nib__lanes_add(v, round), round));
        for (int64_t j = 0; j < nib__min(NIB_LANES, count - i); j++)
            to[(i + j) * step] = s == s ? (int8_t)whole[j] : 0;
    }
}

/* Stores a key with its values NIB_CACHE_BLOCK apart: attention reads one dimension of many
 * positions. */
static void store_spread(void *to, nib_type type, const float *from, int64_t count)
{
    enum { PART = 64 };
    float f32[PART];
    uint16_t half[PART];
    for (int64_t d = 0, at = 0; d < count; d += PART) {
        const int64_t part = nib__min(PART, count - d);
        round_values(type == NIB_TYPE_F32 ? (void *)f32 : half, type, from + d, part);
        for (int64_t i = 0; i < part; i++, at += NIB_CACHE_BLOCK) {
            if (type == NIB_TYPE_F32)
                ((float *)to)[at] = f32[i];
            else
                ((uint16_t *)to)[at] = half[i];
        }
    }
}

/* The least and the greatest of up to NIB_KV_GROUP values; *wrong: NaN if some are not finite. */
static void find_range(const float *x, int64_t count, float *least, float *greatest, float *wrong)
{
    const nib_lanes zero = nib__lanes_set(0.0f);
    nib_lanes high = nib__lanes_set(-INFINITY), low = high, bad = zero; /* low: of -x */
    for (int64_t i = 0; i < count; i += NIB_LANES) {
        nib_lanes v = nib__lanes_load_at(x, i, count);
        if (count - i < NIB_LANES) { /* others would be 0 */
            float part[NIB_LANES];
            nib__lanes_store(part, nib__lanes_set(x[i]));
            memcpy(part, x + i, (size_t)(count - i) * sizeof *part);
            v = nib__lanes_load(part);
        }
        high = nib__lanes_max(v, high);
        low = nib__lanes_max(nib__lanes_sub(zero, v), low);
        bad = nib__lanes_fma(v, zero, bad);
    }
    *greatest = nib__lanes_reduce_max(high);
    *least = 0.0f - nib__lanes_reduce_max(low);
    *wrong = nib__lanes_sum(bad);
}

/* Codes 0 to 15 of a group of int4, and its scale and minimum, as nib_cache defines them. */
static void quantize_group(uint8_t *codes, uint16_t *scale, uint16_t *minimum, const float *x,
                           int64_t count)
{
    const nib_lanes round = nib__lanes_set(12582912.0f), zero = nib__lanes_set(0.0f);
    float least, greatest, wrong;
    find_range(x, count, &least, &greatest, &wrong);
    *minimum = nib__f32_to_f16(least);
    const float l = nib__f16_to_f32(*minimum);
    *scale = nib__f32_to_f16((greatest - l) / 15.0f);
    const float s = nib__f16_to_f32(*scale);
    const bool finite = wrong == wrong && s - s == 0.0f && l - l == 0.0f;
    if (!finite)
        *scale = 0x7e00, *minimum = 0; /* NaN */
    for (int64_t i = 0; i < count; i += NIB_LANES) {
        float whole[NIB_LANES] = {0};
        if (finite && s > 0.0f) {
            const nib_lanes v =
                nib__lanes_div(nib__lanes_sub(nib__lanes_load_at(x, i, count), nib__lanes_set(l)),
                               nib__lanes_set(s));
            nib__lanes_store(
                whole, nib__lanes_min(
                           nib__lanes_set(15.0f),
                           nib__lanes_max(nib__lanes_sub(nib__lanes_add(v, round), round), zero)));
        }
        for (int64_t j = 0; j < nib__min(NIB_LANES, count - i); j++)
            codes[i + j] = (uint8_t)whole[j];
    }
}

/* Stores a vector in int4: pairs of codes, a byte every `step`; then scales and minima, one every
 * NIB_CACHE_BLOCK. */
static void quantize_groups(uint8_t *to, int64_t step, uint16_t *scales, const float *x,
                            int64_t count)
{
    const int64_t groups = nib__kv_groups(count);
    for (int64_t g = 0; g < groups; g++) {
        uint8_t codes[NIB_KV_GROUP + 1];
        const int64_t first = g * NIB_KV_GROUP, some = nib__min(NIB_KV_GROUP, count - first);
        quantize_group(codes, scales + g * NIB_CACHE_BLOCK, scales + (groups + g) * NIB_CACHE_BLOCK,
                       x + first, some);
        codes[some] = 0; /* the other half of the last byte of an odd number */
        for (int64_t i = 0; i < some; i += 2)
            to[(first + i) / 2 * step] = (uint8_t)(codes[i] | codes[i + 1] << 4);
    }
}

/* Store one head's key, and its value, at position `inside` of a block. */
static void store_key(const nib_cache *c, char *keys, int64_t inside, const float *k)
{
    const int64_t dim = c->head_dim;
    const nib_type type = c->types.keys.type;
    char *const key = keys + inside * nib__cache_value_bytes(type);
    float turned[NIB_HADAMARD_MOST];
    if (c->types.keys.hadamard)
        k = nib__hadamard(turned, k, dim, nib__cache_block(c));
    if (type == NIB_TYPE_I8)
        quantize_vector((int8_t *)key, NIB_CACHE_BLOCK,
                        (float *)(void *)(keys + NIB_CACHE_BLOCK * dim) + inside, k, dim);
    else if (type == NIB_TYPE_Q4_1)
        quantize_groups((uint8_t *)key, NIB_CACHE_BLOCK,
                        (uint16_t *)(void *)(keys + NIB_CACHE_BLOCK * ((dim + 1) / 2)) + inside, k,
                        dim);
    else
        store_spread(key, type, k, dim);
}

static void store_value(const nib_cache *c, char *values, int64_t inside, const float *v)
{
    const nib_type type = c->types.values.type;
    const int64_t dim = c->head_dim, elements = nib__kv_vector(type, dim).elements;
    char *const value = values + inside * elements * nib__cache_value_bytes(type);
    float turned[NIB_HADAMARD_MOST];
    if (c->types.values.hadamard)
        v = nib__hadamard(turned, v, dim, nib__cache_block(c));
    if (type == NIB_TYPE_I8)
        quantize_vector((int8_t *)value, 1,
                        (float *)(void *)(values + NIB_CACHE_BLOCK * dim) + inside, v, dim);
    else if (type == NIB_TYPE_Q4_1)
        quantize_groups((uint8_t *)value, 1,
                        (uint16_t *)(void *)(values + NIB_CACHE_BLOCK * elements) + inside, v, dim);
    else
        round_values(value, type, v, dim);
}

void NIB_TOKEN(store_kv)(const nib_store_kv *a, int64_t m0, int64_t m1)
{
    const nib_cache *c = &a->cache;
    const int64_t dim = c->head_dim;
    const int64_t key_bytes = nib__cache_bytes(c->types.keys.type, dim, NIB_CACHE_BLOCK),
                  value_bytes = nib__cache_bytes(c->types.values.type, dim, NIB_CACHE_BLOCK);
    /* Head by head: one dimension of neighbouring positions is one cache line, and the lines of all
     * heads would not fit in the L1 cache. */
    for (int64_t h = 0; h < c->kv_heads; h++)
        for (int64_t m = m0; m < m1; m++) {
            const int64_t position = a->position[m], from = m * a->ld + h * dim;
            const int64_t at =
                c->tables[a->sequence[m] * c->table_ld + position / NIB_CACHE_BLOCK] *
                c->block_bytes;
            store_key(c, (char *)c->keys + at + h * key_bytes, position % NIB_CACHE_BLOCK,
                      a->k + from);
            if (c->values != NULL)
                store_value(c, (char *)c->values + at + h * value_bytes, position % NIB_CACHE_BLOCK,
                            a->v + from);
        }
}

/* Works on a block of tokens at a time, so that their keys are still cached when they are stored.
 */
void NIB_TOKEN(rope_store_kv)(const nib_rope_store_kv *a, int64_t m0, int64_t m1)
{
    for (int64_t m = m0; m < m1; m += NIB_CACHE_BLOCK) {
        const int64_t end = nib__min(m + NIB_CACHE_BLOCK, m1);
        NIB_TOKEN(rope)(&a->q, m, end);
        NIB_TOKEN(rope)(&a->k, m, end);
        NIB_TOKEN(store_kv)(&a->store, m, end);
    }
}
