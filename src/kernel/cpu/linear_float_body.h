/* SPDX-License-Identifier: Apache-2.0
 *
 * The linear rows with float accumulators, written once for every instruction set. Each
 * linear_float__<isa>.c defines the types and operations listed below, includes this file, and then
 * defines the functions of its rows. The arithmetic is defined in linear_float_ref.c, the packed
 * layout in linear_float.h. Lanes are outputs, so no sum over k is ever split or reordered.
 *
 * How a part runs. For up to WIDE_MAX_M tokens, or WIDE_M if codes cannot be read as packed, WIDE_P
 * panels at a time stream past tiles of WIDE_M tokens, and codes are decoded in registers. More
 * tokens are processed NIB_FLOAT_ROWS at a time by NIB_FLOAT_CHUNK panels, in pieces of SPAN k:
 * tokens are staged as pairs of k, weights are converted to the native form if necessary, and tiles
 * of TILE_M x TILE_P run with both in the L1 cache. Between pieces their sums wait in memory. y
 * holds the totals between the blocks of k after which sums restart.
 *
 * BF16 sums without vdpbf16ps are F32 sums over pairs that are staged and unpacked odd k first.
 *
 * What the including file defines (vec: 16 f32 lanes, ivec: 16 i32, pair: the weights of two k in
 * 16 lanes, raw: 8 k of 4 bits, x_pair: two staged activations, x_value: an x_pair in all lanes):
 *   NATIVE (the form that tiles read), SWAPS (pairs in memory are in summing order),
 *   SPAN and WIDE_SPAN (k per piece), TILE_M (tokens of a tile), GROUP_M (the same with groups),
 *   HOLDS (with groups, totals stay in registers beside the sums), TILE_P, WIDE_M, WIDE_P,
 *   WIDE_MAX_M,
 *   vec_zero vec_set vec_load vec_store vec_load_part vec_store_part vec_add vec_mul vec_fma,
 *   vec_values ivec_load_i8 raw_load pair_get pair_native pair_store pair_fma,
 *   x_get x_put_f32 x_put_bf16
 */

enum {
    /* Prefetch distance in bytes, per panel: int8 reaches 86 % instead of 76 % of one core's read
     * bandwidth (Zen 5, 2026-11-22). 4096 is no better, and 1024 was enough for a Xeon 6/207. */
    AHEAD = 2048,
    BLOCK_PAIRS = NIB_SUM_BLOCK / 2, /* pairs per staged token if a block is one piece, */
    SPAN_PAIRS = SPAN / 2 + 8,       /* or otherwise; the 8 spread rows over cache sets */
    PART_STEPS = 8,                  /* steps per part of a streaming product; each prefetches */
};

/* A piece of k of some panels and tokens. */
typedef struct job {
    const nib_linear *a;
    nib_float_layout l;
    const uint8_t *panel[WIDE_P]; /* scales and zeros; past the part's end, its last panel again */
    const uint8_t *codes[WIDE_P]; /* codes of the piece, packed or in native form */
    const x_pair *x;              /* [rows][BLOCK_PAIRS or SPAN_PAIRS] */
    float *acc;                   /* [rows][panels][16]: sums over the block up to this piece */
    int64_t row, n;               /* the first token, the first output */
    int64_t n_end;                /* end of this part's outputs */
    int64_t k0, k1;               /* the piece */
    nib_element f;                /* element of the packed codes */
    bool has_zeros;               /* codes have integer zeros */
    bool swap;                    /* the odd k of a pair is staged and summed first */
    bool opens, closes;           /* the piece is the first, the last of its block */
    bool first, last;             /* the block is the first, the last of the row */
    bool bias_only;               /* a final total needs only a bias */
} job;

typedef vec vec_tile[TILE_M][WIDE_P];

/* ---- a tile: rows x panels sums in registers ---- */

/* A tile of `rows` tokens, `x_stride` pairs apart, by `panels` panels of weights in form `f`.
 * NATIVE allows any tile, the other forms up to WIDE_M rows by WIDE_P panels. `swap`: the odd k of
 * a pair is summed first. `streams`: the weights come from memory. `holds`: totals of groups stay
 * in variables, in registers if there is room. */
typedef struct tile_form {
    nib_element f;
    bool swap, streams, holds;
    int rows, panels;
    int64_t x_stride;
} tile_form;

/* How far ahead to prefetch the piece's codes at offset `at`. Past the end of their panels, the
 * distance skips to the next panels, since everything between has been read. Prefetching past the
 * last panel is harmless. */
NIB_INLINE size_t prefetch_distance(const job *j, size_t at, const tile_form t)
{
    const size_t left = (size_t)(j->panel[0] + j->l.bytes - j->codes[0]),
                 ahead = nib__fetch_distance(AHEAD);
    const bool passes = ahead > 0 && t.f == j->f && at + ahead >= left;
    return passes ? ahead + (size_t)(t.panels - 1) * j->l.bytes + j->l.code_at : ahead;
}

/* Prefetches a group's scales of the next panels. Doing so for float zeros gains nothing. */
NIB_INLINE void prefetch_scales(const job *j, int64_t g, const tile_form t)
{
    const size_t next = (size_t)t.panels * j->l.bytes;
    const size_t at = (size_t)(g * NIB_FLOAT_PANEL) * nib__value_size(j->l.scale_type);
#pragma GCC unroll 32
    for (int p = 0; p < t.panels; p++)
        __builtin_prefetch(j->panel[p] + next + at, 0, 3);
}

NIB_INLINE void sum_native(vec_tile sums, const uint8_t *const *codes, size_t at, const x_pair *x,
                           int64_t steps, size_t ahead, const tile_form t)
{
    const size_t pair_bytes = form_step(NATIVE) / (NIB_FLOAT_STEP / 2),
                 end = at + (size_t)steps * form_step(NATIVE);
    for (; at < end; at += pair_bytes, x++) {
        pair w[WIDE_P];
#pragma GCC unroll 32
        for (int p = 0; p < t.panels; p++) {
            w[p] = pair_native(codes[p] + at);
            if (t.streams)
                __builtin_prefetch(codes[p] + at + ahead, 0, 3);
        }
#pragma GCC unroll 32
        for (int r = 0; r < t.rows; r++) {
            const x_value v = x_get(x + r * t.x_stride);
#pragma GCC unroll 32
            for (int p = 0; p < t.panels; p++)
                sums[r][p] = pair_fma(w[p], v, sums[r][p]);
        }
    }
}

NIB_INLINE void sum_direct(vec_tile sums, const uint8_t *const *codes, size_t at, const x_pair *x,
                           int64_t steps, size_t ahead, const tile_form t)
{
    const size_t end = at + (size_t)steps * form_step(t.f);
    for (; at < end; at += form_step(t.f), x += NIB_FLOAT_STEP / 2) {
        raw held[WIDE_P];
#pragma GCC unroll 32
        for (int p = 0; p < WIDE_P; p++) {
            held[p] = raw_load(t.f, codes[p] + at);
#pragma GCC unroll 32
            for (size_t line = 0; line < form_step(t.f); line += 64)
                __builtin_prefetch(codes[p] + at + line + ahead, 0, 3);
        }
#pragma GCC unroll 32
        for (int i = 0; i < NIB_FLOAT_STEP / 2; i++) {
#pragma GCC unroll 32
            for (int p = 0; p < WIDE_P; p++) {
                const pair w =
                    pair_get(t.f, false, t.swap, codes[p] + at, held[p], i, ivec_load_i8(NULL));
#pragma GCC unroll 32
                for (int r = 0; r < t.rows; r++)
                    sums[r][p] = pair_fma(w, x_get(x + r * t.x_stride + i), sums[r][p]);
            }
        }
    }
}

NIB_INLINE void sum_steps(vec_tile sums, const uint8_t *const *codes, size_t at, const x_pair *x,
                          int64_t steps, size_t ahead, const tile_form t)
{
    if (t.f == NATIVE)
        sum_native(sums, codes, at, x, steps, ahead, t);
    else
        sum_direct(sums, codes, at, x, steps, ahead, t);
}

NIB_INLINE vec group_scale(const job *j, int p, int64_t g)
{
    const size_t size = nib__value_size(j->l.scale_type);
    return vec_values(j->panel[p] + (size_t)(g * NIB_FLOAT_PANEL) * size, j->l.scale_type);
}

NIB_INLINE vec group_zero(const job *j, int p, int64_t g)
{
    const size_t size = nib__value_size(j->l.zero_type);
    return vec_values(j->panel[p] + j->l.zero_at + (size_t)(g * NIB_FLOAT_PANEL) * size,
                      j->l.zero_type);
}

/* sums = fma(scale, sums, totals). Totals are zero if the group `opens` a block, else those held,
 * else those in j->acc. */
NIB_INLINE void apply_scale(const job *j, vec_tile sums, vec_tile totals, int64_t g,
                            const bool opens, const tile_form t)
{
    const bool scaled_x = nib__act_is_f8_blocks(j->a->w->scheme.act);
    const int64_t groups = j->a->x.groups;
    const float *x_scale = scaled_x ? j->a->x.scale + j->row * groups + g : NULL;
#pragma GCC unroll 32
    for (int p = 0; p < t.panels; p++) {
        const vec scale = group_scale(j, p, g);
#pragma GCC unroll 32
        for (int r = 0; r < t.rows; r++) {
            const float *acc = j->acc + (r * t.panels + p) * NIB_FLOAT_PANEL;
            const vec both = scaled_x ? vec_mul(vec_set(x_scale[r * groups]), scale) : scale;
            const vec total = opens ? vec_zero() : t.holds ? totals[r][p] : vec_load(acc);
            sums[r][p] = vec_fma(both, sums[r][p], total);
        }
    }
}

/* total = fma(zero, sum of x over the group, total), for float zeros. */
NIB_INLINE vec add_zero(const job *j, int64_t g, int r, vec zero, vec total)
{
    const nib_input *x = &j->a->x;
    return vec_fma(zero, vec_set(x->fsums[(j->row + r) * x->groups + g]), total);
}

NIB_INLINE void apply_zero_held(const job *j, vec_tile totals, int64_t g, const tile_form t)
{
#pragma GCC unroll 32
    for (int p = 0; p < t.panels; p++) {
        const vec zero = group_zero(j, p, g);
#pragma GCC unroll 32
        for (int r = 0; r < t.rows; r++)
            totals[r][p] = add_zero(j, g, r, zero, totals[r][p]);
    }
}

static void apply_zero(const job *j, int64_t g, int rows, int panels)
{
    for (int p = 0; p < panels; p++) {
        const vec zero = group_zero(j, p, g);
        for (int r = 0; r < rows; r++) {
            float *acc = j->acc + (r * panels + p) * NIB_FLOAT_PANEL;
            vec_store(acc, add_zero(j, g, r, zero, vec_load(acc)));
        }
    }
}

NIB_INLINE void load_sums(vec_tile sums, const float *from, const tile_form t)
{
#pragma GCC unroll 32
    for (int r = 0; r < t.rows; r++)
#pragma GCC unroll 32
        for (int p = 0; p < t.panels; p++)
            sums[r][p] =
                from != NULL ? vec_load(from + (r * t.panels + p) * NIB_FLOAT_PANEL) : vec_zero();
}

/* Whether a tile writes its sums into y itself (put_sums) rather than leaving them to put_tile. */
NIB_INLINE bool puts_sums(const job *j, int panels)
{
    return j->bias_only && j->closes && j->n_end - j->n >= panels * NIB_FLOAT_PANEL;
}

/* put_tile from registers: products of few k gain a tenth (Xeon 6/207, 2026-11-20). Without a bias,
 * and before the last block, 0 is added: a total of -0 becomes 0, as y must in the end. */
NIB_INLINE void put_sums(const job *j, vec_tile sums, const tile_form t)
{
    static const float zeros[WIDE_P * NIB_FLOAT_PANEL] = {0};
    const nib_linear *a = j->a;
    const float *bias = j->last && a->bias != NULL ? a->bias + j->n : zeros;
    const int64_t ld = a->ldy;
    float *y = a->y + j->row * ld + j->n;
    vec after[WIDE_P];
#pragma GCC unroll 32
    for (int p = 0; p < t.panels; p++)
        after[p] = vec_add(vec_load(bias + p * NIB_FLOAT_PANEL), vec_zero());
    if (!j->first)
#pragma GCC unroll 32
        for (int r = 0; r < t.rows; r++)
#pragma GCC unroll 32
            for (int p = 0; p < t.panels; p++)
                sums[r][p] = vec_add(vec_load(y + r * ld + p * NIB_FLOAT_PANEL), sums[r][p]);
#pragma GCC unroll 32
    for (int r = 0; r < t.rows; r++)
#pragma GCC unroll 32
        for (int p = 0; p < t.panels; p++)
            vec_store(y + r * ld + p * NIB_FLOAT_PANEL, vec_add(sums[r][p], after[p]));
}

/* Prefetches what put_sums will write while the sums are computed: y of a prompt or a batch is not
 * in a near cache. With k = 256, n = 768, 2048 tokens and two threads this gives 152 instead of 142
 * GFLOP/s each (Xeon 6/207, 2026-11-22). */
NIB_INLINE void prefetch_sums(const job *j, const tile_form t)
{
    const float *y = j->a->y + j->row * j->a->ldy + j->n;
#pragma GCC unroll 32
    for (int r = 0; r < t.rows; r++)
#pragma GCC unroll 32
        for (int p = 0; p < t.panels; p++)
            __builtin_prefetch(y + r * j->a->ldy + p * NIB_FLOAT_PANEL, 1, 3);
}

/* All steps of the piece; a part prefetches at one distance. */
NIB_INLINE void sum_piece(const job *j, vec_tile sums, const tile_form t)
{
    const int64_t steps = nib__ceil_div(j->k1 - j->k0, NIB_FLOAT_STEP);
    const int64_t part = t.streams ? PART_STEPS : steps;
    for (int64_t i = 0; i < steps; i += part) {
        const size_t at = (size_t)i * form_step(t.f);
        sum_steps(sums, j->codes, at, j->x + i * (NIB_FLOAT_STEP / 2), nib__min(part, steps - i),
                  prefetch_distance(j, at, t), t);
    }
}

NIB_INLINE void copy_sums(vec_tile to, vec_tile from, const tile_form t)
{
#pragma GCC unroll 32
    for (int r = 0; r < t.rows; r++)
#pragma GCC unroll 32
        for (int p = 0; p < t.panels; p++)
            to[r][p] = from[r][p];
}

NIB_INLINE void store_sums(float *to, vec_tile sums, const tile_form t)
{
#pragma GCC unroll 32
    for (int r = 0; r < t.rows; r++)
#pragma GCC unroll 32
        for (int p = 0; p < t.panels; p++)
            vec_store(to + (r * t.panels + p) * NIB_FLOAT_PANEL, sums[r][p]);
}

/* Loads the sums over the block up to this piece. */
NIB_INLINE void open_sums(const job *j, vec_tile sums, const tile_form t)
{
    if (j->opens)
        load_sums(sums, NULL, t);
    else
        load_sums(sums, j->acc, t);
}

NIB_INLINE void tile_plain(const job *j, const tile_form t)
{
    const bool puts = !t.streams && puts_sums(j, t.panels);
    vec_tile sums;
    open_sums(j, sums, t);
    if (puts)
        prefetch_sums(j, t);
    sum_piece(j, sums, t);
    if (puts)
        put_sums(j, sums, t);
    else
        store_sums(j->acc, sums, t);
}

/* The piece is whole groups. Totals that are not held stay in j->acc. */
NIB_INLINE void tile_groups(const job *j, const tile_form t)
{
    const bool has_zero = j->a->w->scheme.zero == NIB_ZERO_FLOAT,
               puts = !t.streams && puts_sums(j, t.panels);
    const x_pair *x = j->x;
    size_t at = 0;
    int64_t g = j->k0 / j->l.group;
    vec_tile totals;
    if (t.holds)
        open_sums(j, totals, t);
    if (puts)
        prefetch_sums(j, t);
    for (int64_t k = j->k0; k < j->k1; k += j->l.group, g++) {
        vec_tile sums;
        load_sums(sums, NULL, t);
        const int64_t steps = nib__ceil_div(nib__min(j->l.group, j->k1 - k), NIB_FLOAT_STEP);
        if (t.streams)
            prefetch_scales(j, g, t);
        sum_steps(sums, j->codes, at, x, steps, prefetch_distance(j, at, t), t);
        at += (size_t)steps * form_step(t.f);
        x += steps * (NIB_FLOAT_STEP / 2);
        if (!t.holds && j->opens && k == j->k0)
            apply_scale(j, sums, totals, g, true, t);
        else
            apply_scale(j, sums, totals, g, false, t);
        if (t.holds)
            copy_sums(totals, sums, t);
        else
            store_sums(j->acc, sums, t);
        if (has_zero && t.holds)
            apply_zero_held(j, totals, g, t);
        else if (has_zero)
            apply_zero(j, g, t.rows, t.panels);
    }
    if (puts && !t.holds)
        load_sums(totals, j->acc, t);
    if (puts)
        put_sums(j, totals, t);
    else if (t.holds)
        store_sums(j->acc, totals, t);
}

NIB_INLINE void tile(const job *j, const tile_form t)
{
    if (j->l.group > 0)
        tile_groups(j, t);
    else
        tile_plain(j, t);
}

/* Rows past TILE_M or GROUP_M never occur. */
NIB_INLINE void tile_of(const job *j, const int rows)
{
    const tile_form t = {NATIVE, false, false, HOLDS, rows, TILE_P, SPAN_PAIRS};
    if (j->l.group == 0 && rows <= TILE_M)
        tile_plain(j, t);
    else if (j->l.group > 0 && rows <= GROUP_M)
        tile_groups(j, t);
}

static void native_tile(const job *j, int64_t rows)
{
    switch (rows) {
    case 1: tile_of(j, 1); break;
    case 2: tile_of(j, 2); break;
    case 3: tile_of(j, 3); break;
    case 4: tile_of(j, 4); break;
    case 5: tile_of(j, 5); break;
    case 6: tile_of(j, 6); break;
    case 7: tile_of(j, 7); break;
    case 8: tile_of(j, 8); break;
    case 9: tile_of(j, 9); break;
    case 10: tile_of(j, 10); break;
    case 11: tile_of(j, 11); break;
    case 12: tile_of(j, 12); break;
    default: break;
    }
}

/* WIDE_M rows or fewer by WIDE_P panels: enough independent sums for few tokens. */
NIB_INLINE void wide_tile_of(const job *j, const int rows, const bool streams)
{
    if (rows <= WIDE_M)
        tile(j, (tile_form){NATIVE, false, streams, false, rows <= WIDE_M ? rows : 1, WIDE_P,
                            BLOCK_PAIRS});
}

static void wide_tile(const job *j, int64_t rows)
{
    switch (rows) {
    case 1: wide_tile_of(j, 1, true); break;
    case 2: wide_tile_of(j, 2, true); break;
    case 3: wide_tile_of(j, 3, true); break;
    case 4: wide_tile_of(j, 4, true); break;
    case 5: wide_tile_of(j, 5, true); break;
    case 6: wide_tile_of(j, 6, true); break;
    default: break;
    }
}

/* ---- after a tile's last piece ---- */

/* After the last block: applies the scale of the row or the tensor, the row's zero, the token's
 * scale and the bias. */
NIB_INLINE vec finish_total(const job *j, vec total, int64_t row, int p, int count)
{
    const nib_linear *a = j->a;
    if (j->l.group == 0 && j->l.groups == 1) {
        total = vec_mul(total, group_scale(j, p, 0));
        if (a->w->scheme.zero == NIB_ZERO_FLOAT)
            total = vec_fma(group_zero(j, p, 0), vec_set(a->x.fsums[row * a->x.groups]), total);
    }
    if (a->w->tensor_scale != 0)
        total = vec_mul(total, vec_set(nib__weight_factor(a->w)));
    if (a->w->scheme.act == NIB_ACT_E4M3_TOKEN)
        total = vec_mul(total, vec_set(a->x.scale[row]));
    vec bias = vec_zero();
    if (a->bias != NULL)
        bias = vec_add(vec_load_part(a->bias + j->n + p * NIB_FLOAT_PANEL, count), bias);
    return vec_add(total, bias);
}

/* Adds the tile's sums over the block to y. */
static void put_tile(const job *j, int64_t rows, int panels)
{
    for (int p = 0; p < panels; p++) {
        const int count = (int)nib__min(NIB_FLOAT_PANEL, j->n_end - j->n - p * NIB_FLOAT_PANEL);
        for (int64_t r = 0; r < rows && count > 0; r++) {
            float *y = j->a->y + (j->row + r) * j->a->ldy + j->n + p * NIB_FLOAT_PANEL;
            vec total = vec_load(j->acc + (r * panels + p) * NIB_FLOAT_PANEL);
            if (!j->first)
                total = vec_add(vec_load_part(y, count), total);
            if (j->last)
                total = finish_total(j, total, j->row + r, p, count);
            vec_store_part(y, total, count);
        }
    }
}

/* ---- codes of any form ---- */

/* Converts the piece of one panel to the native form. */
NIB_INLINE void unpack(const job *j, const uint8_t *panel, const uint8_t *codes, uint8_t *out,
                       const nib_element f, const bool has_zeros, const bool swap)
{
    const size_t pair_bytes = form_step(NATIVE) / (NIB_FLOAT_STEP / 2);
    const int64_t group = j->l.group > 0 ? j->l.group : j->a->w->k;
    ivec zero = ivec_load_i8(NULL);
    for (int64_t k = j->k0; k < j->k1; k += NIB_FLOAT_STEP) {
        if (has_zeros && (k % group == 0 || k == j->k0))
            zero = ivec_load_i8(panel + j->l.zero_at + k / group * NIB_FLOAT_PANEL);
        const raw held = raw_load(f, codes);
#pragma GCC unroll 32
        for (size_t line = 0; line < form_step(f); line += 64)
            __builtin_prefetch(codes + line + AHEAD, 0, 3);
#pragma GCC unroll 32
        for (int i = 0; i < NIB_FLOAT_STEP / 2; i++)
            pair_store(out + (size_t)i * pair_bytes,
                       pair_get(f, has_zeros, swap, codes, held, i, zero));
        codes += form_step(f);
        out += form_step(NATIVE);
    }
}

NIB_INLINE void unpack_form(const job *j, const uint8_t *panel, const uint8_t *codes, uint8_t *out,
                            const nib_element f, const bool swap)
{
    const bool may_shift = f == NIB_ELEMENT_I8 || f == NIB_ELEMENT_I4 || is_odd(f);
    if (may_shift && j->has_zeros)
        unpack(j, panel, codes, out, f, may_shift, swap);
    else
        unpack(j, panel, codes, out, f, false, swap);
}

/* Makes the form of the codes a compile-time constant (direct_any does so for few tokens). */
NIB_INLINE void unpack_any(const job *j, const uint8_t *panel, const uint8_t *codes, uint8_t *out,
                           const bool swap)
{
    switch (j->f) {
    case NIB_ELEMENT_F32: unpack_form(j, panel, codes, out, NIB_ELEMENT_F32, swap); break;
    case NIB_ELEMENT_F16: unpack_form(j, panel, codes, out, NIB_ELEMENT_F16, swap); break;
    case NIB_ELEMENT_BF16: unpack_form(j, panel, codes, out, NIB_ELEMENT_BF16, swap); break;
    case NIB_ELEMENT_I8: unpack_form(j, panel, codes, out, NIB_ELEMENT_I8, swap); break;
    case NIB_ELEMENT_I4: unpack_form(j, panel, codes, out, NIB_ELEMENT_I4, swap); break;
    case NIB_ELEMENT_E2M1: unpack_form(j, panel, codes, out, NIB_ELEMENT_E2M1, swap); break;
    case NIB_ELEMENT_E4M3: unpack_form(j, panel, codes, out, NIB_ELEMENT_E4M3, swap); break;
    case NIB_ELEMENT_E5M2: unpack_form(j, panel, codes, out, NIB_ELEMENT_E5M2, swap); break;
    case NIB_ELEMENT_I1: unpack_form(j, panel, codes, out, NIB_ELEMENT_I1, swap); break;
    case NIB_ELEMENT_I2: unpack_form(j, panel, codes, out, NIB_ELEMENT_I2, swap); break;
    case NIB_ELEMENT_I3: unpack_form(j, panel, codes, out, NIB_ELEMENT_I3, swap); break;
    case NIB_ELEMENT_I5: unpack_form(j, panel, codes, out, NIB_ELEMENT_I5, swap); break;
    case NIB_ELEMENT_I6: unpack_form(j, panel, codes, out, NIB_ELEMENT_I6, swap); break;
    case NIB_ELEMENT_I7: unpack_form(j, panel, codes, out, NIB_ELEMENT_I7, swap); break;
    }
}

static void unpack_panel(const job *j, const uint8_t *panel, const uint8_t *codes, uint8_t *out)
{
    if (SWAPS && j->swap)
        unpack_any(j, panel, codes, out, SWAPS);
    else
        unpack_any(j, panel, codes, out, false);
}

/* Rows past WIDE_M never occur. */
NIB_INLINE void direct_rows(const job *j, const nib_element f, const bool swap, const int rows)
{
    if (rows <= WIDE_M)
        tile(j, (tile_form){f, swap, true, false, rows <= WIDE_M ? rows : 1, WIDE_P, BLOCK_PAIRS});
}

NIB_INLINE void direct_of(const job *j, int64_t rows, const nib_element f, const bool swap)
{
    switch (rows) {
    case 1: direct_rows(j, f, swap, 1); break;
    case 2: direct_rows(j, f, swap, 2); break;
    case 3: direct_rows(j, f, swap, 3); break;
    case 4: direct_rows(j, f, swap, 4); break;
    case 5: direct_rows(j, f, swap, 5); break;
    case 6: direct_rows(j, f, swap, 6); break;
    default: break;
    }
}

NIB_INLINE void direct_any(const job *j, int64_t rows, const bool swap)
{
    switch (j->f) {
    case NIB_ELEMENT_BF16: direct_of(j, rows, NIB_ELEMENT_BF16, swap); break;
    case NIB_ELEMENT_I8: direct_of(j, rows, NIB_ELEMENT_I8, swap); break;
    case NIB_ELEMENT_I4: direct_of(j, rows, NIB_ELEMENT_I4, swap); break;
    case NIB_ELEMENT_E2M1: direct_of(j, rows, NIB_ELEMENT_E2M1, swap); break;
    case NIB_ELEMENT_E4M3: direct_of(j, rows, NIB_ELEMENT_E4M3, swap); break;
    case NIB_ELEMENT_I1: direct_rows(j, NIB_ELEMENT_I1, swap, 1); break;
    case NIB_ELEMENT_I2: direct_rows(j, NIB_ELEMENT_I2, swap, 1); break;
    case NIB_ELEMENT_I3: direct_rows(j, NIB_ELEMENT_I3, swap, 1); break;
    case NIB_ELEMENT_I5: direct_rows(j, NIB_ELEMENT_I5, swap, 1); break;
    case NIB_ELEMENT_I6: direct_rows(j, NIB_ELEMENT_I6, swap, 1); break;
    case NIB_ELEMENT_I7: direct_rows(j, NIB_ELEMENT_I7, swap, 1); break;
    default: break;
    }
}

/* Up to WIDE_M tokens by WIDE_P panels, with codes decoded in registers: the forms of is_direct. */
static void direct_tile(const job *j, int64_t rows)
{
    if (SWAPS && j->swap)
        direct_any(j, rows, SWAPS);
    else
        direct_any(j, rows, false);
}

/* ---- around the tiles ---- */

/* The bf16 of an e4m3 code, using only 16-bit values so that compilers vectorize it. */
NIB_INLINE uint16_t e4m3_half(uint16_t code)
{
    const uint16_t m = code & 0x7f, sign = (code & 0x80) << 8; /* m below 8 is m / 512 */
    const uint16_t one = m != 0 ? 0x3b00 : 0, two = 0x3b80 + ((m & 1) << 6);
    const uint16_t four = 0x3c00 + ((m & 3) << 5), normal = (m << 4) + (120 << 7);
    uint16_t half = m < 2 ? one : two;
    half = m < 4 ? half : four;
    half = m < 8 ? half : normal;
    half = m == 0x7f ? 0x7fc0 : half;
    return half | sign;
}

NIB_INLINE void x_put_e4m3(x_pair *out, const uint8_t *codes, int64_t count, bool swap)
{
    enum { PIECE = 256 };
    uint16_t halves[PIECE];
    for (int64_t at = 0; at < count; at += PIECE) {
        const int64_t part = nib__min(PIECE, count - at);
        for (int64_t i = 0; i < part; i++)
            halves[i] = codes[at + i];
        for (int64_t i = 0; i < part; i++)
            halves[i] = e4m3_half(halves[i]);
        x_put_bf16(out + at / 2, halves, part, swap);
    }
}

/* Stages tokens row..row + rows of the piece as pairs, zeros up to a whole step. */
static void stage_rows(const job *j, int64_t rows, x_pair *out, int64_t stride)
{
    const nib_input *x = &j->a->x;
    const bool is_f8 = nib__act_is_f8_blocks(j->a->w->scheme.act),
               is_bf16 = !is_f8 && x->bf16 != NULL;
    const char *all = is_f8     ? (const char *)x->codes
                      : is_bf16 ? (const char *)x->bf16
                                : (const char *)x->f32;
    const int64_t size = is_f8 ? 1 : is_bf16 ? 2 : 4;
    const int64_t count = j->k1 - j->k0, pairs = nib__ceil_div(count, 2);
    const int64_t padded = nib__round_up(count, NIB_FLOAT_STEP) / 2;
    for (int64_t r = 0; r < rows; r++, out += stride) {
        const char *from = all + ((j->row + r) * x->ld + j->k0) * size;
        if (is_f8)
            x_put_e4m3(out, (const void *)from, count, j->swap);
        else if (is_bf16)
            x_put_bf16(out, (const void *)from, count, j->swap);
        else
            x_put_f32(out, (const void *)from, count, j->swap);
        /* Prefetch the next piece: rows are too short for the hardware prefetcher. */
        for (int64_t ahead = 0; ahead < count * size; ahead += 64)
            __builtin_prefetch(from + count * size + ahead, 0, 2);
        memset(out + pairs, 0, (size_t)(padded - pairs) * sizeof *out);
    }
}

/* The parts of the scratch: sums, staged tokens, native weights. */
typedef struct scratch_parts {
    float *acc;
    x_pair *x;
    uint8_t *weights;
} scratch_parts;

/* Points the job at `panels` panels from `first` on; those past the part's end repeat the last. */
static void select_panels(job *j, int64_t first, int panels)
{
    const int64_t last = nib__ceil_div(j->n_end, NIB_FLOAT_PANEL) - 1;
    j->n = first * NIB_FLOAT_PANEL;
    for (int p = 0; p < panels; p++)
        j->panel[p] =
            (const uint8_t *)j->a->packed + (size_t)nib__min(first + p, last) * j->l.bytes;
}

/* Points the job at the piece's codes, converted to native form unless they are read as packed. */
static void load_codes(job *j, int panels, bool as_packed, uint8_t *weights)
{
    const size_t bytes = (size_t)nib__ceil_div(j->k1 - j->k0, NIB_FLOAT_STEP) * form_step(NATIVE);
    for (int p = 0; p < panels; p++) {
        j->codes[p] =
            j->panel[p] + j->l.code_at + (size_t)(j->k0 / NIB_FLOAT_STEP) * form_step(j->f);
        if (as_packed)
            continue;
        unpack_panel(j, j->panel[p], j->codes[p], weights + (size_t)p * bytes);
        j->codes[p] = weights + (size_t)p * bytes;
    }
}

/* Whether tiles of `m` tokens, at most WIDE_M, read the codes as packed. Odd integers do so for one
 * token only: they take so many steps to decode that more tokens share what was decoded once. */
static bool is_read_packed(const job *j, int64_t m)
{
    return j->f == NATIVE || (!j->has_zeros && is_direct(j->f) && (m == 1 || !is_odd(j->f)));
}

/* `m` tokens (at most WIDE_M) by WIDE_P panels from `first` on, over one block k0..k1. */
static void run_wide(job j, int64_t m, int64_t first, const scratch_parts *parts)
{
    const bool native = j.f == NATIVE, packed = is_read_packed(&j, m);
    const int64_t end = j.k1, piece = packed ? NIB_SUM_BLOCK : nib__float_span(&j.l, WIDE_SPAN);
    select_panels(&j, first, WIDE_P);
    j.acc = parts->acc;
    j.x = parts->x;
    for (; j.k0 < end; j.k0 = j.k1, j.opens = false) {
        j.k1 = nib__min(end, j.k0 + piece);
        stage_rows(&j, m, parts->x, BLOCK_PAIRS);
        load_codes(&j, WIDE_P, packed, parts->weights);
        if (native || !packed)
            wide_tile(&j, m);
        else
            direct_tile(&j, m);
    }
    put_tile(&j, m, WIDE_P);
}

/* Many tokens: `rows` of them, `tile_rows` at a time, by `panels` panels from `first` on. */
typedef struct patch {
    int64_t rows, tile_rows, first, panels;
} patch;

/* Panels past NIB_FLOAT_CHUNK reuse the memory: they occur only if k is one piece, and then no sums
 * wait there. */
NIB_INLINE float *acc_of(const patch *at, const scratch_parts *parts, int64_t p, int64_t r)
{
    return parts->acc + (p % NIB_FLOAT_CHUNK * at->rows + r * TILE_P) * NIB_FLOAT_PANEL;
}

/* Stages the tokens of the tile that begins at `r`. */
static void stage_tile(job j, const patch *at, const scratch_parts *parts, int64_t r)
{
    const int64_t rows = nib__min(at->tile_rows, at->rows - r);
    j.row += r;
    if (rows > 0)
        stage_rows(&j, rows, parts->x + r * SPAN_PAIRS, SPAN_PAIRS);
}

/* Prefetches the piece's codes of the panels from `p` on, a share with each tile, since unpacking
 * would wait for memory. */
static void prefetch_codes(const job *j, const patch *at, int64_t p, int64_t r, int64_t rows)
{
    const size_t step = form_step(j->f), begin = (size_t)(j->k0 / NIB_FLOAT_STEP) * step;
    const size_t bytes = (size_t)nib__ceil_div(j->k1 - j->k0, NIB_FLOAT_STEP) * step,
                 lines = bytes / 64, all = (size_t)at->rows;
    for (int64_t next = p; next < nib__min(p + TILE_P, at->panels); next++) {
        const uint8_t *panel =
            (const uint8_t *)j->a->packed + (size_t)(at->first + next) * j->l.bytes;
        for (size_t i = lines * (size_t)r / all; i < lines * (size_t)(r + rows) / all; i++)
            __builtin_prefetch(panel + j->l.code_at + begin + i * 64, 0, 2);
    }
}

/* Tokens are staged one tile ahead, so that storing them overlaps with the tile's sums. */
static void run_piece(job j, const patch *at, const scratch_parts *parts)
{
    const job whole = j;
    stage_tile(whole, at, parts, 0);
    for (int64_t p = 0; p < at->panels; p += TILE_P) {
        select_panels(&j, at->first + p, TILE_P);
        load_codes(&j, TILE_P, j.f == NATIVE, parts->weights);
        for (int64_t r = 0; r < at->rows; r += at->tile_rows) {
            const int64_t rows = nib__min(at->tile_rows, at->rows - r);
            if (p == 0)
                stage_tile(whole, at, parts, r + at->tile_rows);
            j.row = whole.row + r;
            j.x = parts->x + r * SPAN_PAIRS;
            j.acc = acc_of(at, parts, p, r);
            prefetch_codes(&j, at, p + TILE_P, r, rows);
            native_tile(&j, rows);
            if (j.closes && !puts_sums(&j, TILE_P))
                put_tile(&j, rows, TILE_P);
        }
    }
}

/* One block k0..k1. */
static void run_block(job j, const patch *at, const scratch_parts *parts)
{
    const int64_t end = j.k1;
    for (; j.k0 < end; j.k0 = j.k1, j.opens = false) {
        j.k1 = nib__min(end, j.k0 + nib__float_span(&j.l, SPAN));
        j.closes = j.k1 == end;
        run_piece(j, at, parts);
    }
}

/* The block of k that begins at k0. */
static void open_block(job *j, int64_t k0)
{
    const int64_t k = j->a->w->k;
    j->k0 = k0;
    j->k1 = nib__min(k, k0 + nib__sum_block(j->a->w));
    j->first = k0 == 0;
    j->last = j->k1 == k;
    j->opens = true;
}

/* Tiles of few tokens: all of them read a block of WIDE_P panels while it is in the L2 cache. */
static void run_few(job j, int64_t begin, int64_t end, const scratch_parts *parts)
{
    const int64_t m = j.a->x.m, k = j.a->w->k, block = nib__sum_block(j.a->w);
    const int64_t rows = m > 0 ? nib__ceil_div(m, nib__ceil_div(m, WIDE_M)) : 1;
    for (int64_t p = begin; p < end; p += WIDE_P)
        for (int64_t k0 = 0; k0 < k; k0 += block) {
            open_block(&j, k0);
            for (j.row = 0; j.row < m; j.row += rows)
                run_wide(j, nib__min(rows, m - j.row), p, parts);
        }
}

static void run_many(job j, int64_t begin, int64_t end, const scratch_parts *parts)
{
    const int64_t m = j.a->x.m, k = j.a->w->k, block = nib__sum_block(j.a->w);
    const int64_t tiles = nib__max(1, nib__ceil_div(m, j.l.group > 0 ? GROUP_M : TILE_M)),
                  tile_rows = nib__max(1, nib__ceil_div(m, tiles)),
                  pieces = nib__ceil_div(tiles, NIB_FLOAT_ROWS / tile_rows),
                  rows = nib__ceil_div(tiles, pieces) * tile_rows;
    const bool once = k <= nib__float_span(&j.l, SPAN); /* one piece: tokens are staged once */
    const int64_t chunk = once ? nib__max(1, end) : NIB_FLOAT_CHUNK;
    for (j.row = 0; j.row < m; j.row += rows)
        for (int64_t p = begin; p < end; p += chunk)
            for (int64_t k0 = 0; k0 < k; k0 += block) {
                const patch at = {nib__min(rows, m - j.row), tile_rows, p,
                                  nib__min(chunk, end - p)};
                open_block(&j, k0);
                run_block(j, &at, parts);
            }
}

/* `pairs`: BF16 sums. */
static void run_linear(const nib_linear *a, int64_t n0, int64_t n1, void *scratch, bool pairs)
{
    const nib_float_room sizes = nib__float_room(a);
    const scratch_parts parts = {scratch, (x_pair *)(void *)((uint8_t *)scratch + sizes.acc),
                                 (uint8_t *)scratch + sizes.acc + sizes.x};
    job j = {.a = a,
             .l = nib__float_layout(a->w),
             .f = nib__codes[a->w->scheme.code].element,
             .swap = pairs && SWAPS};
    j.n_end = nib__min(n1, a->w->n);
    j.has_zeros = a->w->scheme.zero == NIB_ZERO_INT;
    j.bias_only = (j.l.groups == 0 || j.l.group > 0) && a->w->tensor_scale == 0 &&
                  a->w->scheme.act != NIB_ACT_E4M3_TOKEN;
    const int64_t end = nib__ceil_div(j.n_end, NIB_FLOAT_PANEL);
    if (a->x.m <= (is_read_packed(&j, a->x.m) ? WIDE_MAX_M : WIDE_M) || j.l.group > SPAN)
        run_few(j, n0 / NIB_FLOAT_PANEL, end, &parts);
    else
        run_many(j, n0 / NIB_FLOAT_PANEL, end, &parts);
}
