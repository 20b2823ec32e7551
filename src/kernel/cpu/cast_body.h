/* SPDX-License-Identifier: Apache-2.0
 *
 * The casts of training, written once for every instruction set. The arithmetic is defined in
 * cast_ref.c, the packed layout in linear_float.h. Include this with NIB_CAST(name) naming the
 * functions of one instruction set, and these defined:
 *
 *   LANES           32-bit lanes of a vec: 8 or 16
 *   vec_load vec_store vec_store_16 vec_store_8 (the low bits of each lane)
 *   vec_set vec_add vec_sub vec_and vec_or vec_min vec_max (signed) vec_right vec_left
 *   vec_less(a, b, yes, no) (signed)   vec_equal(a, b, yes, no)   vec_any_less(a, b)
 *   vec_largest (of all lanes, signed)
 *   vec_mul_f vec_add_f vec_sub_f vec_div_f (the lanes are f32)
 *   vec_transpose(rows) of LANES x LANES
 *
 * Work proceeds in patches: STRIP elements of the sums of PANEL outputs or tokens; a vector holds
 * one element of LANES sums. Where x is laid out like this (the _T forms), patches are read in
 * place; otherwise they are transposed into the L1 cache. Patches at the ends of either direction
 * are copied there too, padded with zeros. Weights are written in patch order; codes of QUANT_T are
 * transposed back.
 */
#include "cast_rows.h"

enum {
    PANEL = NIB_FLOAT_PANEL,
    STRIP = 32, /* elements of a sum: an MX block */
    CHUNK = 16, /* panels whose columns are read side by side */
};

/* x as sums: element j of sum i is x[i][j], or x[j][i] if the sums run `across` rows of x. */
typedef struct source {
    const float *x;
    int64_t ld, sums, length;
    bool across;
} source;

/* Element j of the patch's sums is at x + j * ld. */
typedef struct patch {
    const float *x;
    int64_t ld;
} patch;

typedef float patch_buffer[STRIP * PANEL];

/* ---- patches ---- */

static void copy_part(const source *s, int64_t i0, int64_t j0, float *buffer)
{
    const int64_t columns = nib__min(PANEL, s->sums - i0);
    memset(buffer, 0, sizeof(patch_buffer));
    for (int64_t j = 0; j < nib__min(STRIP, s->length - j0); j++)
        for (int64_t i = 0; i < columns; i++)
            buffer[j * PANEL + i] =
                s->across ? s->x[(j0 + j) * s->ld + i0 + i] : s->x[(i0 + i) * s->ld + j0 + j];
}

NIB_INLINE void transpose_patch(const float *x, int64_t ld, float *buffer)
{
    for (int64_t j = 0; j < STRIP; j += LANES)
        for (int64_t i = 0; i < PANEL; i += LANES) {
            vec rows[LANES];
#pragma GCC unroll 16
            for (int r = 0; r < LANES; r++)
                rows[r] = vec_load(x + (i + r) * ld + j);
            vec_transpose(rows);
#pragma GCC unroll 16
            for (int r = 0; r < LANES; r++)
                vec_store(buffer + (j + r) * PANEL + i, rows[r]);
        }
}

/* Elements j0.. of sums i0..; zeros past the ends. */
NIB_INLINE patch patch_at(const source *s, int64_t i0, int64_t j0, const bool across, float *buffer)
{
    const bool whole = s->sums - i0 >= PANEL && s->length - j0 >= STRIP;
    if (whole && across)
        return (patch){s->x + j0 * s->ld + i0, s->ld};
    if (whole)
        transpose_patch(s->x + i0 * s->ld + j0, s->ld, buffer);
    else
        copy_part(s, i0, j0, buffer);
    return (patch){buffer, PANEL};
}

/* Prefetches `rows` elements of panel i from j on or, if i is past the chunk's `end`, the elements
 * after them of the chunk's first panel c. Rows of sums that run across x are too far apart for the
 * hardware prefetcher. */
NIB_INLINE void fetch_next(const source *s, int64_t c, int64_t end, int64_t i, int64_t j,
                           const int64_t rows)
{
    const int64_t column = i < end ? i : c, first = i < end ? j : j + rows;
    for (int64_t r = first; r < nib__min(s->length, first + rows); r++)
        __builtin_prefetch(s->x + r * s->ld + column, 0, 3);
}

NIB_INLINE vec element(patch p, int64_t j, int half)
{
    return vec_load(p.x + j * p.ld + half * LANES);
}

/* ---- values ---- */

NIB_INLINE vec magnitude_of(vec x) { return vec_and(x, vec_set(0x7fffffff)); }

NIB_INLINE vec bits_of(float f)
{
    int32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return vec_set(bits);
}

/* bf16 in the high half of each lane; the low half is garbage. */
NIB_INLINE vec bf16_high(vec x)
{
    const vec odd = vec_and(vec_right(x, 16), vec_set(1));
    const vec rounded = vec_add(vec_add(x, vec_set(0x7fff)), odd);
    const vec nan = vec_or(vec_and(x, vec_set(INT32_MIN)), vec_set(0x7fc00000));
    return vec_less(vec_set(0x7f800000), magnitude_of(x), nan, rounded);
}

/* Two elements of a sum as a pair of bf16. */
NIB_INLINE vec bf16_pair(vec even, vec odd)
{
    return vec_or(vec_right(bf16_high(even), 16),
                  vec_and(bf16_high(odd), vec_set((int32_t)0xffff0000)));
}

/* A small float format: mantissa bits, exponent of the smallest normal, largest value. */
typedef struct small_float {
    int mantissa, least;
    float most;
} small_float;

static const small_float e4m3 = {3, -6, 448}, e5m2 = {2, -14, 57344};

/* 2^power. */
NIB_INLINE float power_of_two(int power)
{
    const int32_t bits = (power + 127) << 23;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

/* |x|, capped, for rounding. `least` is 2^e of its binade, or of the smallest normal's. `step` is
 * 2^e times a power of two, such that the last place of an f32 at `step` is the last place of the
 * format. So adding `step` rounds to nearest, ties to even. */
typedef struct small_parts {
    vec magnitude, least, step;
} small_parts;

NIB_INLINE small_parts small_parts_of(vec x, const small_float f)
{
    small_parts p;
    p.magnitude = vec_min(magnitude_of(x), bits_of(f.most));
    p.least = vec_max(vec_and(p.magnitude, vec_set(0x7f800000)), bits_of(power_of_two(f.least)));
    p.step = vec_add(p.least, vec_set((23 - f.mantissa) << 23));
    return p;
}

/* |x| rounded to the format and saturated, as a code: the places left by adding `step` count units
 * of the binade; they follow the codes of all binades below. */
NIB_INLINE vec small_code(vec x, const small_float f)
{
    const small_parts p = small_parts_of(x, f);
    const vec places = vec_sub(vec_add_f(p.magnitude, p.step), p.step);
    const vec below = vec_right(p.least, 23 - f.mantissa);
    return vec_sub(vec_add(places, below), vec_set((127 + f.least) << f.mantissa));
}

/* The same rounding, but the value as f32 with the sign of x. */
NIB_INLINE vec small_value(vec x, const small_float f)
{
    const small_parts p = small_parts_of(x, f);
    const vec value = vec_sub_f(vec_add_f(p.magnitude, p.step), p.step);
    return vec_or(value, vec_and(x, vec_set(INT32_MIN)));
}

/* x * factor as an e4m3 byte. */
NIB_INLINE vec e4m3_byte(vec x, vec factor)
{
    const vec v = vec_mul_f(x, factor);
    return vec_or(small_code(v, e4m3), vec_and(vec_right(v, 24), vec_set(0x80)));
}

/* The same, recoded as panels hold it (nib__e4m3_small): sign in bit 0, no minus zero. */
NIB_INLINE vec e4m3_recoded(vec x, vec factor)
{
    const vec v = vec_mul_f(x, factor);
    const vec code = small_code(v, e4m3), zero = vec_set(0);
    return vec_equal(code, zero, zero, vec_or(vec_left(code, 1), vec_right(v, 31)));
}

/* ---- scales ---- */

NIB_INLINE vec largest_in(patch p, int half)
{
    vec most = vec_set(0);
    for (int64_t j = 0; j < STRIP; j++)
        most = vec_max(most, magnitude_of(element(p, j, half)));
    return most;
}

/* Copies one half of the patch to `buffer`, with zeros for the sums that are not finite. */
static patch zero_nonfinite(patch p, int half, vec finite, float *buffer)
{
    for (int64_t j = 0; j < STRIP; j++)
        vec_store(buffer + j * PANEL + half * LANES, vec_and(element(p, j, half), finite));
    return (patch){buffer, PANEL};
}

/* Scale bytes of LANES blocks with these largest magnitudes, and the factors for their values: see
 * mx_byte in cast_ref.c. Blocks that are not finite get 255 and 1. */
NIB_INLINE vec mx_bytes(vec most, bool is_floor, vec *factor)
{
    const vec zero = vec_set(0), one = vec_set(1), infinity = vec_set(0x7f800000);
    vec byte;
    if (is_floor) {
        byte = vec_max(vec_sub(vec_right(most, 23), vec_set(8)), zero);
    } else {
        const vec d = vec_div_f(most, bits_of(448));
        const vec mantissa = vec_and(d, vec_set(0x7fffff)), exponent = vec_right(d, 23);
        const vec over = vec_equal(exponent, zero, vec_set(0x400000), zero);
        byte = vec_add(exponent, vec_less(over, mantissa, one, zero));
    }
    const vec of_zero = is_floor ? bits_of(0x1p126F) : bits_of(1);
    *factor = vec_equal(byte, zero, of_zero, vec_left(vec_sub(vec_set(254), byte), 23));
    *factor = vec_less(most, infinity, *factor, bits_of(1));
    return vec_less(most, infinity, byte, vec_set(255));
}

/* For PANEL sums with one scale each: factors, scales, and masks of all ones where the sum is
 * finite. */
typedef struct panel_factors {
    float factor[PANEL], scale[PANEL];
    int32_t finite[PANEL];
    bool all_finite;
} panel_factors;

static void set_factors(panel_factors *p, const float *largest, int64_t count, float most,
                        bool two_power)
{
    memset(p, 0, sizeof *p);
    p->all_finite = true;
    for (int64_t i = 0; i < count; i++) {
        const float factor = nib__cast_factor(largest[i], most, two_power);
        const bool finite = factor == factor;
        p->factor[i] = finite ? factor : 1;
        p->scale[i] = 1 / factor;
        p->finite[i] = -finite;
        p->all_finite &= finite;
    }
}

/* The patch with zeros for sums that are not finite. */
NIB_INLINE patch finite_patch(patch p, const panel_factors *f, float *buffer)
{
    if (f->all_finite)
        return p;
    patch out = p;
    for (int half = 0; half < PANEL / LANES; half++) {
        const vec finite = vec_load((const float *)(const void *)(f->finite + half * LANES));
        out = zero_nonfinite(p, half, finite, buffer);
    }
    return out;
}

/* Scale bytes and factors of one half of the patch, from its largest magnitudes. A block that is
 * not finite becomes zeros. */
NIB_INLINE vec mx_half(patch *p, int half, bool is_floor, vec *factor, float *buffer)
{
    const vec most = largest_in(*p, half), infinity = vec_set(0x7f800000);
    const vec bytes = mx_bytes(most, is_floor, factor);
    if (vec_any_less(vec_sub(infinity, vec_set(1)), most))
        *p = zero_nonfinite(*p, half, vec_less(most, infinity, vec_set(-1), vec_set(0)), buffer);
    return bytes;
}

/* max |x| of `count` consecutive values. */
NIB_INLINE float largest_along(const float *x, int64_t count)
{
    vec most[4] = {vec_set(0), vec_set(0), vec_set(0), vec_set(0)};
    int32_t lanes[LANES], all = 0;
    int64_t j = 0;
    for (; j + 4 * LANES <= count; j += 4 * LANES)
#pragma GCC unroll 4
        for (int t = 0; t < 4; t++)
            most[t] = vec_max(most[t], magnitude_of(vec_load(x + j + t * LANES)));
    vec_store((float *)(void *)lanes,
              vec_max(vec_max(most[0], most[1]), vec_max(most[2], most[3])));
    for (; j < count; j++) {
        int32_t bits;
        memcpy(&bits, &x[j], sizeof bits);
        bits &= 0x7fffffff;
        all = bits > all ? bits : all;
    }
    for (int i = 0; i < LANES; i++)
        all = lanes[i] > all ? lanes[i] : all;
    float largest;
    memcpy(&largest, &all, sizeof largest);
    return largest;
}

/* max |x| of each of the sums i0..i0 + count, up to CHUNK panels. */
static void largest_of(const source *s, int64_t i0, int64_t count, float *largest)
{
    if (!s->across) {
        for (int64_t i = 0; i < count; i++)
            largest[i] = largest_along(s->x + (i0 + i) * s->ld, s->length);
        return;
    }
    memset(largest, 0, (size_t)count * sizeof *largest);
    for (int64_t j = 0; j < s->length; j++) {
        const float *x = s->x + j * s->ld + i0;
        int64_t i = 0;
        for (; i + LANES <= count; i += LANES)
            vec_store(largest + i, vec_max(vec_load(largest + i), magnitude_of(vec_load(x + i))));
        for (; i < count; i++) {
            int32_t bits, most;
            memcpy(&bits, &x[i], sizeof bits);
            memcpy(&most, &largest[i], sizeof most);
            bits &= 0x7fffffff;
            most = bits > most ? bits : most;
            memcpy(&largest[i], &most, sizeof most);
        }
    }
}

/* Factors of the panels from sum i0 on, for one format: from the tensor's largest magnitude
 * (`amax`), or from each sum's own. */
static void chunk_factors(const source *s, int64_t i0, int64_t count, const float *amax, float most,
                          bool two_power, panel_factors out[CHUNK])
{
    float largest[CHUNK * PANEL];
    if (amax == NULL)
        largest_of(s, i0, count, largest);
    for (int64_t i = 0; amax != NULL && i < count; i++)
        largest[i] = *amax;
    for (int64_t i = 0; i < count; i += PANEL)
        set_factors(&out[i / PANEL], largest + i, nib__min(PANEL, count - i), most, two_power);
}

/* ---- weights ---- */

/* Elements j0.. of one panel of weights. */
typedef struct weight_patch {
    patch from;
    uint8_t *panel, *steps; /* the panel, and its codes from j0 on */
    int64_t pairs;          /* pairs of codes, up to whole steps */
    int64_t columns, j0;
    bool mx_floor;
    const panel_factors *factors;
} weight_patch;

NIB_INLINE void put_f32(const weight_patch *w)
{
    for (int64_t j = 0; j < 2 * w->pairs; j++)
        for (int half = 0; half < PANEL / LANES; half++)
            vec_store((float *)(void *)w->steps + j * PANEL + half * LANES,
                      element(w->from, j, half));
}

NIB_INLINE void put_bf16(const weight_patch *w)
{
    for (int64_t j = 0; j < w->pairs; j++)
        for (int half = 0; half < PANEL / LANES; half++)
            vec_store((float *)(void *)w->steps + j * PANEL + half * LANES,
                      bf16_pair(element(w->from, 2 * j, half), element(w->from, 2 * j + 1, half)));
}

NIB_INLINE void put_e4m3(const weight_patch *w, patch from, int half, vec factor)
{
    for (int64_t j = 0; j < w->pairs; j++) {
        const vec even = e4m3_recoded(element(from, 2 * j, half), factor),
                  odd = e4m3_recoded(element(from, 2 * j + 1, half), factor);
        vec_store_16(w->steps + 2 * (j * PANEL + half * LANES), vec_or(even, vec_left(odd, 8)));
    }
}

NIB_INLINE void put_row_e4m3(const weight_patch *w)
{
    if (w->j0 == 0)
        memcpy(w->panel, w->factors->scale, (size_t)w->columns * sizeof(float));
    patch_buffer buffer;
    const patch from = finite_patch(w->from, w->factors, buffer);
    for (int half = 0; half < PANEL / LANES; half++)
        put_e4m3(w, from, half, vec_load(w->factors->factor + half * LANES));
}

NIB_INLINE void put_mx8(const weight_patch *w)
{
    patch_buffer buffer;
    uint8_t bytes[PANEL];
    for (int half = 0; half < PANEL / LANES; half++) {
        patch from = w->from;
        vec factor;
        vec_store_8(bytes + half * LANES, mx_half(&from, half, w->mx_floor, &factor, buffer));
        put_e4m3(w, from, half, factor);
    }
    memcpy(w->panel + w->j0 / STRIP * PANEL, bytes, (size_t)w->columns);
}

NIB_INLINE void put_weights(const weight_patch *w, const nib_code code)
{
    switch (code) {
    case NIB_CODE_F32: put_f32(w); break;
    case NIB_CODE_BF16: put_bf16(w); break;
    case NIB_CODE_E4M3: put_row_e4m3(w); break;
    default: put_mx8(w); break;
    }
}

NIB_INLINE void cast_patch(const nib_cast *a, const source *s, const nib_float_layout *l, int64_t i,
                           int64_t j, const nib_code code, const bool across,
                           const panel_factors *factors)
{
    patch_buffer buffer;
    weight_patch w = {.columns = nib__min(PANEL, s->sums - i),
                      .j0 = j,
                      .mx_floor = a->w->scheme.mx_floor,
                      .factors = factors};
    w.panel = (uint8_t *)a->packed + (size_t)(i / PANEL) * l->bytes;
    w.steps = w.panel + l->code_at + (size_t)(j / NIB_FLOAT_STEP) * l->step_bytes;
    w.pairs = nib__min(STRIP, nib__round_up(s->length - j, NIB_FLOAT_STEP)) / 2;
    if (j == 0 && w.columns < PANEL) /* scales of the columns past the end */
        memset(w.panel, 0, l->code_at);
    w.from = patch_at(s, i, j, across, buffer);
    put_weights(&w, code);
}

/* Goes strip by strip over columns side by side, or panel by panel over rows, whichever follows the
 * layout of x. */
NIB_INLINE void cast_weights(const nib_cast *a, int64_t n0, int64_t n1, const nib_code code,
                             const bool across)
{
    const source s = {a->x, a->ldx, nib__min(n1, a->w->n), a->w->k, across};
    const nib_float_layout l = nib__float_layout(a->w);
    const int64_t chunk = (across ? CHUNK : 1) * PANEL;
    panel_factors factors[CHUNK];
    for (int64_t c = n0; c < s.sums; c += chunk) {
        const int64_t end = nib__min(s.sums, c + chunk);
        if (code == NIB_CODE_E4M3)
            chunk_factors(&s, c, end - c, a->amax, 448, a->two_power, factors);
        for (int64_t j = 0; j < s.length; j += STRIP)
            for (int64_t i = c; i < end; i += PANEL) {
                if (across)
                    fetch_next(&s, c, end, i + PANEL, j, STRIP);
                cast_patch(a, &s, &l, i, j, code, across, &factors[(i - c) / PANEL]);
            }
    }
}

void NIB_CAST(cast_f32)(const nib_cast *a, int64_t n0, int64_t n1)
{
    cast_weights(a, n0, n1, NIB_CODE_F32, false);
}

void NIB_CAST(cast_bf16)(const nib_cast *a, int64_t n0, int64_t n1)
{
    cast_weights(a, n0, n1, NIB_CODE_BF16, false);
}

void NIB_CAST(cast_e4m3c)(const nib_cast *a, int64_t n0, int64_t n1)
{
    cast_weights(a, n0, n1, NIB_CODE_E4M3, false);
}

void NIB_CAST(cast_mx8)(const nib_cast *a, int64_t n0, int64_t n1)
{
    cast_weights(a, n0, n1, NIB_CODE_MX8, false);
}

void NIB_CAST(cast_t_f32)(const nib_cast *a, int64_t n0, int64_t n1)
{
    cast_weights(a, n0, n1, NIB_CODE_F32, true);
}

void NIB_CAST(cast_t_bf16)(const nib_cast *a, int64_t n0, int64_t n1)
{
    cast_weights(a, n0, n1, NIB_CODE_BF16, true);
}

void NIB_CAST(cast_t_e4m3c)(const nib_cast *a, int64_t n0, int64_t n1)
{
    cast_weights(a, n0, n1, NIB_CODE_E4M3, true);
}

void NIB_CAST(cast_t_mx8)(const nib_cast *a, int64_t n0, int64_t n1)
{
    cast_weights(a, n0, n1, NIB_CODE_MX8, true);
}

/* ---- inputs: sums are tokens ---- */

/* Writes LANES words of LANES tokens to their rows, `count` of them. */
NIB_INLINE void put_words(vec words[LANES], uint8_t *to, int64_t row_bytes, int64_t count)
{
    vec_transpose(words);
    if (count >= LANES) {
#pragma GCC unroll 16
        for (int r = 0; r < LANES; r++)
            vec_store((float *)(void *)(to + r * row_bytes), words[r]);
        return;
    }
    for (int r = 0; r < count; r++)
        vec_store((float *)(void *)(to + r * row_bytes), words[r]);
}

/* STRIP elements of PANEL tokens as f32. */
static void put_tokens_f32(patch p, float *to, int64_t ld, int64_t tokens, int64_t count)
{
    float part[LANES];
    for (int half = 0; half < PANEL / LANES; half++)
        for (int64_t j = 0; j < count; j += LANES) {
            vec words[LANES];
            for (int t = 0; t < LANES; t++)
                words[t] = element(p, j + t, half);
            vec_transpose(words);
            for (int r = 0; r < nib__min(LANES, tokens - half * LANES); r++) {
                float *row = to + (half * LANES + r) * ld + j;
                vec_store(count - j >= LANES ? row : part, words[r]);
                if (count - j < LANES)
                    memcpy(row, part, (size_t)(count - j) * sizeof *row);
            }
        }
}

/* How to write tokens: as bf16, or as e4m3 or e5m2 widened to bf16. */
typedef enum wide_form { WIDE_BF16, WIDE_E4M3, WIDE_E5M2 } wide_form;

NIB_INLINE vec wide_pair(vec even, vec odd, vec factor, const wide_form to_form)
{
    if (to_form == WIDE_BF16)
        return bf16_pair(even, odd);
    const small_float small = to_form == WIDE_E4M3 ? e4m3 : e5m2;
    const vec low = small_value(vec_mul_f(even, factor), small),
              high = small_value(vec_mul_f(odd, factor), small);
    return vec_or(vec_right(low, 16), high);
}

NIB_INLINE void put_tokens_wide(patch p, uint16_t *to, int64_t ld, int64_t tokens,
                                const panel_factors *factors, const wide_form to_form)
{
    patch_buffer buffer;
    if (to_form != WIDE_BF16)
        p = finite_patch(p, factors, buffer);
    for (int half = 0; half < PANEL / LANES; half++) {
        const vec factor =
            to_form == WIDE_BF16 ? vec_set(0) : vec_load(factors->factor + half * LANES);
        for (int j = 0; j < STRIP; j += 2 * LANES) {
            vec words[LANES];
#pragma GCC unroll 16
            for (int t = 0; t < LANES; t++)
                words[t] = wide_pair(element(p, j + 2 * t, half), element(p, j + 2 * t + 1, half),
                                     factor, to_form);
            put_words(words, (uint8_t *)(to + half * LANES * ld + j), ld * 2,
                      tokens - half * LANES);
        }
    }
}

/* MX codes of PANEL tokens: LANES words of codes cover BATCH patches. */
enum { BATCH = LANES * 4 / STRIP };

NIB_INLINE vec e8m0_values(vec bytes)
{
    const vec normal = vec_left(bytes, 23);
    const vec finite = vec_equal(bytes, vec_set(0), vec_set(0x00400000), normal);
    return vec_equal(bytes, vec_set(255), vec_set(0x7fc00000), finite);
}

NIB_INLINE void put_mx_scales(const nib_quant *a, vec bytes, int64_t token, int64_t count,
                              int64_t g)
{
    float scale[LANES];
    vec_store(scale, e8m0_values(bytes));
    for (int r = 0; r < nib__min(LANES, count); r++)
        a->out.scale[(token + r) * a->out.groups + g] = scale[r];
}

NIB_INLINE void put_tokens_mx8(const nib_quant *a, const patch p[BATCH], int64_t token,
                               int64_t tokens, int64_t j0)
{
    uint8_t *codes = (uint8_t *)a->out.codes + token * a->out.ld + j0;
    for (int half = 0; half < PANEL / LANES; half++) {
        vec words[LANES];
        for (int b = 0; b < BATCH; b++) {
            patch_buffer buffer;
            patch from = p[b];
            vec factor;
            const vec bytes = mx_half(&from, half, a->mx_floor, &factor, buffer);
            const int64_t g = j0 / STRIP + b;
            if (g < a->out.groups)
                put_mx_scales(a, bytes, token + half * LANES, tokens - half * LANES, g);
            for (int j = 0; j < STRIP; j += 4) {
                vec word = e4m3_byte(element(from, j, half), factor);
#pragma GCC unroll 4
                for (int t = 1; t < 4; t++)
                    word = vec_or(word,
                                  vec_left(e4m3_byte(element(from, j + t, half), factor), 8 * t));
                words[(b * STRIP + j) / 4] = word;
            }
        }
        put_words(words, codes + half * LANES * a->out.ld, a->out.ld, tokens - half * LANES);
    }
}

typedef enum token_form { TOKEN_F32, TOKEN_BF16, TOKEN_E4M3, TOKEN_E5M2, TOKEN_MX8 } token_form;

NIB_INLINE void quant_patch(const nib_quant *a, const source *s, int64_t i, int64_t j,
                            const token_form to_form, const panel_factors *factors)
{
    const nib_input *out = &a->out;
    const int64_t tokens = nib__min(PANEL, s->sums - i);
    patch_buffer buffers[BATCH];
    patch p[BATCH];
    for (int b = 0; b < (to_form == TOKEN_MX8 ? BATCH : 1); b++)
        p[b] = patch_at(s, i, j + b * STRIP, true, buffers[b]);
    switch (to_form) {
    case TOKEN_F32:
        put_tokens_f32(p[0], out->f32 + i * out->ld + j, out->ld, tokens,
                       nib__min(STRIP, s->length - j));
        break;
    case TOKEN_BF16:
        put_tokens_wide(p[0], out->bf16 + i * out->ld + j, out->ld, tokens, NULL, WIDE_BF16);
        break;
    case TOKEN_E4M3:
        put_tokens_wide(p[0], out->bf16 + i * out->ld + j, out->ld, tokens, factors, WIDE_E4M3);
        break;
    case TOKEN_E5M2:
        put_tokens_wide(p[0], out->bf16 + i * out->ld + j, out->ld, tokens, factors, WIDE_E5M2);
        break;
    case TOKEN_MX8: put_tokens_mx8(a, p, i, tokens, j); break;
    }
}

NIB_INLINE void quant_tokens(const nib_quant *a, int64_t m0, int64_t m1, const token_form to_form)
{
    const source s = {a->x, a->ldx, nib__min(m1, a->out.m), a->out.k, true};
    const bool is_e5m2 = to_form == TOKEN_E5M2, has_factor = is_e5m2 || to_form == TOKEN_E4M3;
    const int64_t end_j = to_form == TOKEN_F32 ? s.length : a->out.ld,
                  rows = to_form == TOKEN_MX8 ? BATCH * STRIP : STRIP;
    panel_factors factors[CHUNK];
    for (int64_t c = m0; c < s.sums; c += CHUNK * PANEL) {
        const int64_t end = nib__min(s.sums, c + CHUNK * PANEL);
        if (has_factor)
            chunk_factors(&s, c, end - c, a->amax, is_e5m2 ? e5m2.most : e4m3.most, a->two_power,
                          factors);
        for (int64_t i = c; has_factor && i < end; i++)
            a->out.scale[i] = factors[(i - c) / PANEL].scale[(i - c) % PANEL];
        for (int64_t j = 0; j < end_j; j += rows)
            for (int64_t i = c; i < end; i += PANEL) {
                fetch_next(&s, c, end, i + PANEL, j, rows);
                quant_patch(a, &s, i, j, to_form, &factors[(i - c) / PANEL]);
            }
    }
}

void NIB_CAST(quant_t_f32)(const nib_quant *a, int64_t m0, int64_t m1)
{
    quant_tokens(a, m0, m1, TOKEN_F32);
}
void NIB_CAST(quant_t_bf16)(const nib_quant *a, int64_t m0, int64_t m1)
{
    quant_tokens(a, m0, m1, TOKEN_BF16);
}
void NIB_CAST(quant_t_e4m3t)(const nib_quant *a, int64_t m0, int64_t m1)
{
    if (a->e5m2)
        quant_tokens(a, m0, m1, TOKEN_E5M2);
    else
        quant_tokens(a, m0, m1, TOKEN_E4M3);
}
void NIB_CAST(quant_t_mx8)(const nib_quant *a, int64_t m0, int64_t m1)
{
    quant_tokens(a, m0, m1, TOKEN_MX8);
}

/* ---- MX inputs along rows of x ---- */

/* LANES blocks of STRIP consecutive values, and where their codes and scales go. */
typedef struct mx_batch {
    const float *x;
    uint8_t *codes;
    float *scale;
    int64_t count;
} mx_batch;

NIB_INLINE vec block_vec(const mx_batch *b, int64_t block, int v)
{
    return vec_load(b->x + block * STRIP + v * LANES);
}

/* Writes the codes of one block to `to`. */
NIB_INLINE void put_block(const mx_batch *b, int64_t block, float factor, uint8_t *to)
{
    const vec by = bits_of(factor);
#pragma GCC unroll 4
    for (int v = 0; v < STRIP / LANES; v++)
        vec_store_8(to + v * LANES, e4m3_byte(block_vec(b, block, v), by));
}

NIB_INLINE void quant_blocks(const mx_batch *b, bool is_floor)
{
    float largest[LANES] = {0}, factors[LANES], scales[LANES];
    for (int64_t i = 0; i < b->count; i++) {
        vec most = magnitude_of(block_vec(b, i, 0));
#pragma GCC unroll 4
        for (int v = 1; v < STRIP / LANES; v++)
            most = vec_max(most, magnitude_of(block_vec(b, i, v)));
        const int32_t bits = vec_largest(most);
        memcpy(&largest[i], &bits, sizeof bits);
    }
    vec factor;
    const vec bytes = mx_bytes(vec_load(largest), is_floor, &factor);
    vec_store(factors, factor);
    vec_store(scales, e8m0_values(bytes));
    for (int64_t i = 0; i < b->count; i++) {
        b->scale[i] = scales[i];
        if (scales[i] == scales[i])
            put_block(b, i, factors[i], b->codes + i * STRIP);
        else
            memset(b->codes + i * STRIP, 0, STRIP);
    }
}

void NIB_CAST(quant_mx8)(const nib_quant *a, int64_t m0, int64_t m1)
{
    const nib_input *out = &a->out;
    const int64_t whole = out->k / STRIP;
    for (int64_t r = m0; r < m1; r++) {
        mx_batch b = {a->x + r * a->ldx, (uint8_t *)out->codes + r * out->ld,
                      out->scale + r * out->groups, 0};
        for (int64_t done = 0; done < whole; done += b.count) {
            b.x += b.count * STRIP, b.codes += b.count * STRIP, b.scale += b.count;
            b.count = nib__min(LANES, whole - done);
            quant_blocks(&b, a->mx_floor);
        }
        const int64_t rest = out->k % STRIP;
        if (rest != 0) { /* rows of codes have room for a whole block */
            float part[STRIP] = {0};
            memcpy(part, a->x + r * a->ldx + whole * STRIP, (size_t)rest * sizeof *part);
            b = (mx_batch){part, (uint8_t *)out->codes + r * out->ld + whole * STRIP,
                           out->scale + r * out->groups + whole, 1};
            quant_blocks(&b, a->mx_floor);
        }
        const int64_t end = nib__round_up(out->k, STRIP);
        memset(out->codes + r * out->ld + end, 0, (size_t)(out->ld - end));
    }
}

/* ---- the largest magnitude ---- */

void NIB_CAST(amax_f32)(const nib_amax *a, int64_t part0, int64_t part1)
{
    for (int64_t p = part0; p < part1; p++) {
        int32_t most = 0;
        for (int64_t i = p * NIB_TRAIN_ROWS; i < nib__min(a->rows, (p + 1) * NIB_TRAIN_ROWS); i++) {
            const float largest = largest_along(a->x + i * a->ldx, a->width);
            int32_t bits;
            memcpy(&bits, &largest, sizeof bits);
            most = bits > most ? bits : most;
        }
        memcpy(&a->out[p], &most, sizeof most);
    }
}
