/* SPDX-License-Identifier: Apache-2.0
 *
 * The linear rows with float accumulators, written once for every x86 instruction set. Each
 * linear_float__<isa>.c defines the types and operations listed below, includes this file, and then names
 * its runs. The arithmetic is that of linear_float_ref.c, the packed layout that of linear_float.h; lanes are
 * outputs, so no sum over k is ever split or reordered.
 *
 * How a part runs: panels are taken CHUNK at a time; for each block of k the weights of the chunk are brought
 * into the native form in `scratch`, once for all tokens (not when they are native already); tokens are staged
 * TILE_M at a time into contiguous pairs of k; a tile of tokens x panels is summed in registers. With one token
 * codes are decoded in registers instead. y holds the totals between blocks.
 *
 * BF16 sums without vdpbf16ps are F32 sums over pairs staged and unpacked odd k first.
 *
 * What the including file defines (vec: 16 f32 lanes, ivec: 16 i32, pair: the weights of two k in 16 lanes,
 * * raw: 8 k of int4, x_pair: two staged activations, x_value: an x_pair in all lanes):
 *   NATIVE, SWAPS (pairs in memory are in the order of the sum), TILE_M, TILE_P, WIDE_M, WIDE_P, CHUNK
 *   vec_zero vec_set vec_load vec_store vec_load_part vec_store_part vec_add vec_mul vec_fma vec_values
 *   ivec_load_i8 raw_load pair_get pair_native pair_store pair_fma x_get x_put_f32 x_put_bf16 x_put_e4m3 x_clear x_swap
 */

/* A block of k of some panels and tokens. */
typedef struct job {
    const nib_linear *a;
    nib__panels l;
    const uint8_t *panel; /* the first panel: scales and zeros */
    const uint8_t *codes; /* of the block in the first panel, packed or in scratch */
    size_t stride;        /* bytes from a panel's codes to the next panel's */
    const x_pair *x;      /* [rows][STAGE_PAIRS] */
    float *acc;           /* [rows][panels][16]: a tile's sums over the block */
    int64_t row, n;       /* the first token, the first output */
    int64_t n_end;        /* outputs from here on are not this part's */
    int64_t k0, k1;
    bool first, last;     /* block */
} job;

typedef vec vec_tile[TILE_M][WIDE_P];

/* ---- a tile: rows x panels sums in registers ---- */

NIB_INLINE void clear(vec_tile sums, const int rows, const int panels)
{
#pragma GCC unroll 32
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 32
        for (int p = 0; p < panels; p++)
            sums[r][p] = vec_zero();
}

NIB_INLINE void sum_native(vec_tile sums, const uint8_t *codes, size_t stride, const x_pair *x, int64_t steps,
                           const int rows, const int panels)
{
    const size_t pair_bytes = form_step(NATIVE) / (NIB__STEP / 2);
    for (int64_t i = 0; i < steps * (NIB__STEP / 2); i++, codes += pair_bytes, x++) {
        pair w[WIDE_P];
#pragma GCC unroll 32
        for (int p = 0; p < panels; p++)
            w[p] = pair_native(codes + (size_t)p * stride);
#pragma GCC unroll 32
        for (int r = 0; r < rows; r++) {
            const x_value v = x_get(x + r * STAGE_PAIRS);
#pragma GCC unroll 32
            for (int p = 0; p < panels; p++)
                sums[r][p] = pair_fma(w[p], v, sums[r][p]);
        }
    }
}

/* One token, codes decoded on the way. */
NIB_INLINE void sum_direct(vec_tile sums, const uint8_t *codes, size_t stride, const x_pair *x, int64_t steps,
                           const form f, const bool swap)
{
    for (int64_t s = 0; s < steps; s++, codes += form_step(f), x += NIB__STEP / 2) {
        raw held[WIDE_P];
#pragma GCC unroll 32
        for (int p = 0; p < WIDE_P; p++)
            held[p] = raw_load(f, codes + (size_t)p * stride);
#pragma GCC unroll 32
        for (int i = 0; i < NIB__STEP / 2; i++) {
            const x_value v = x_get(x + i);
#pragma GCC unroll 32
            for (int p = 0; p < WIDE_P; p++) {
                const pair w = pair_get(f, false, swap, codes + (size_t)p * stride, held[p], i, ivec_load_i8(NULL));
                sums[0][p] = pair_fma(w, v, sums[0][p]);
            }
        }
    }
}

/* NATIVE: weights in native form; any other form: one row, WIDE_P panels. */
NIB_INLINE void sum_steps(vec_tile sums, const uint8_t *codes, size_t stride, const x_pair *x, int64_t steps,
                          const form f, const bool swap, const int rows, const int panels)
{
    if (f == NATIVE)
        sum_native(sums, codes, stride, x, steps, rows, panels);
    else
        sum_direct(sums, codes, stride, x, steps, f, swap);
}

NIB_INLINE vec group_scale(const job *j, int p, int64_t g)
{
    const size_t size = nib__value_size(j->l.scale_type);
    return vec_values(j->panel + (size_t)p * j->l.bytes + (size_t)(g * NIB__PANEL) * size, j->l.scale_type);
}

NIB_INLINE vec group_zero(const job *j, int p, int64_t g)
{
    const size_t size = nib__value_size(j->l.zero_type);
    return vec_values(j->panel + (size_t)p * j->l.bytes + j->l.zero_at + (size_t)(g * NIB__PANEL) * size,
                      j->l.zero_type);
}

/* acc += factor[p] * values, in one rounding; or by each row's own x_scale[r * groups] too. */
NIB_INLINE void apply_scale(const job *j, vec_tile sums, int64_t g, const int rows, const int panels)
{
    const bool scaled_x = j->a->w->scheme.act == NIB_ACT_MX8;
    const int64_t groups = j->a->x.groups;
    const float *x_scale = scaled_x ? j->a->x.scale + j->row * groups + g : NULL;
#pragma GCC unroll 32
    for (int p = 0; p < panels; p++) {
        const vec scale = group_scale(j, p, g);
#pragma GCC unroll 32
        for (int r = 0; r < rows; r++) {
            float *acc = j->acc + (r * panels + p) * NIB__PANEL;
            const vec both = scaled_x ? vec_mul(vec_set(x_scale[r * groups]), scale) : scale;
            vec_store(acc, vec_fma(both, sums[r][p], vec_load(acc)));
        }
    }
}

/* acc += zero * (sum of x over the group), for float zeros. */
static void apply_zero(const job *j, int64_t g, int rows, int panels)
{
    const int64_t groups = j->a->x.groups;
    const float *x_sum = j->a->x.fsums + j->row * groups + g;
    for (int p = 0; p < panels; p++) {
        const vec zero = group_zero(j, p, g);
        for (int r = 0; r < rows; r++) {
            float *acc = j->acc + (r * panels + p) * NIB__PANEL;
            vec_store(acc, vec_fma(zero, vec_set(x_sum[r * groups]), vec_load(acc)));
        }
    }
}

NIB_INLINE void tile_plain(const job *j, const form f, const bool swap, const int rows, const int panels)
{
    vec_tile sums;
    clear(sums, rows, panels);
    const int64_t steps = nib__ceil_div(j->k1 - j->k0, NIB__STEP);
    sum_steps(sums, j->codes, j->stride, j->x, steps, f, swap, rows, panels);
#pragma GCC unroll 32
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 32
        for (int p = 0; p < panels; p++)
            vec_store(j->acc + (r * panels + p) * NIB__PANEL, sums[r][p]);
}

NIB_INLINE void tile_groups(const job *j, const form f, const bool swap, const int rows, const int panels)
{
    memset(j->acc, 0, sizeof(float) * (size_t)(rows * panels * NIB__PANEL));
    const bool has_zero = j->a->w->scheme.zero == NIB_ZERO_FLOAT;
    const uint8_t *codes = j->codes;
    const x_pair *x = j->x;
    int64_t g = j->k0 / j->l.group;
    for (int64_t k = j->k0; k < j->k1; k += j->l.group, g++) {
        vec_tile sums;
        clear(sums, rows, panels);
        const int64_t steps = nib__ceil_div(nib__min(j->l.group, j->k1 - k), NIB__STEP);
        sum_steps(sums, codes, j->stride, x, steps, f, swap, rows, panels);
        codes += (size_t)steps * form_step(f);
        x += steps * (NIB__STEP / 2);
        apply_scale(j, sums, g, rows, panels);
        if (has_zero)
            apply_zero(j, g, rows, panels);
    }
}

NIB_INLINE void tile(const job *j, const form f, const bool swap, const int rows, const int panels)
{
    if (j->l.group > 0)
        tile_groups(j, f, swap, rows, panels);
    else
        tile_plain(j, f, swap, rows, panels);
}

/* ---- what follows a tile ---- */

/* After the last block: row scale, row zero, the token's scale, bias. */
NIB_INLINE vec finish(const job *j, vec total, int64_t row, int p, int count)
{
    const nib_linear *a = j->a;
    if (j->l.group == 0 && j->l.groups == 1) {
        total = vec_mul(total, group_scale(j, p, 0));
        if (a->w->scheme.zero == NIB_ZERO_FLOAT)
            total = vec_fma(group_zero(j, p, 0), vec_set(a->x.fsums[row * a->x.groups]), total);
    }
    if (a->w->scheme.act == NIB_ACT_E4M3_TOKEN)
        total = vec_mul(total, vec_set(a->x.scale[row]));
    vec bias = vec_zero();
    if (a->bias != NULL)
        bias = vec_add(vec_load_part(a->bias + j->n + p * NIB__PANEL, count), bias);
    return vec_add(total, bias);
}

/* Adds the tile's sums to y; outputs past the part are dropped. */
static void put_tile(const job *j, int64_t rows, int panels)
{
    for (int p = 0; p < panels; p++) {
        const int count = (int)nib__min(NIB__PANEL, j->n_end - j->n - p * NIB__PANEL);
        for (int64_t r = 0; r < rows && count > 0; r++) {
            float *y = j->a->y + (j->row + r) * j->a->ldy + j->n + p * NIB__PANEL;
            vec total = vec_load(j->acc + (r * panels + p) * NIB__PANEL);
            if (!j->first)
                total = vec_add(vec_load_part(y, count), total);
            if (j->last)
                total = finish(j, total, j->row + r, p, count);
            vec_store_part(y, total, count);
        }
    }
}

/* Tiles of 1..TILE_M rows; cases above TILE_M vanish. */
static void native_tile(const job *j, int64_t rows)
{
#define CASE(count)                                                                                \
    case count:                                                                                    \
        tile(j, NATIVE, false, (count) <= TILE_M ? (count) : 1, TILE_P);                           \
        break
    switch (rows) {
        CASE(1);
        CASE(2);
        CASE(3);
        CASE(4);
        CASE(5);
        CASE(6);
#if TILE_M > 6
        CASE(7);
        CASE(8);
        CASE(9);
        CASE(10);
        CASE(11);
        CASE(12);
#endif
    default: break;
    }
#undef CASE
    put_tile(j, rows, TILE_P);
}

/* Few rows, more panels: enough independent sums to keep the multipliers busy. */
static void native_wide_tile(const job *j, int64_t rows)
{
    if (rows == 1)
        tile(j, NATIVE, false, 1, WIDE_P);
    else if (rows == 2)
        tile(j, NATIVE, false, 2, WIDE_P);
    else if (rows == 3)
        tile(j, NATIVE, false, WIDE_M >= 3 ? 3 : 1, WIDE_P);
    else
        tile(j, NATIVE, false, WIDE_M >= 4 ? 4 : 1, WIDE_P);
    put_tile(j, rows, WIDE_P);
}

NIB_INLINE void skip_panels(job *j, int64_t panels)
{
    j->panel += (size_t)panels * j->l.bytes;
    j->codes += (size_t)panels * j->stride;
    j->n += panels * NIB__PANEL;
}

static void native_tiles(job j, int64_t rows, int64_t panels)
{
    for (; rows <= WIDE_M && panels >= WIDE_P; panels -= WIDE_P, skip_panels(&j, WIDE_P))
        native_wide_tile(&j, rows);
    for (; panels >= TILE_P; panels -= TILE_P, skip_panels(&j, TILE_P))
        native_tile(&j, rows);
    if (panels > 0) { /* the last panel of an odd number: computed twice, stored once */
        j.stride = 0;
        j.l.bytes = 0;
        native_tile(&j, rows);
    }
}

/* ---- around the tiles ---- */

/* Brings the job's block of `panels` panels into native form at `out`. */
NIB_INLINE void unpack(const job *j, int64_t panels, uint8_t *out, const form f, const bool shifted,
                       const bool swap)
{
    const int64_t group = j->l.group > 0 ? j->l.group : j->a->w->k;
    for (int64_t p = 0; p < panels; p++) {
        const uint8_t *codes = j->codes + (size_t)p * j->stride;
        const uint8_t *zeros = j->panel + (size_t)p * j->l.bytes + j->l.zero_at;
        ivec zero = ivec_load_i8(NULL);
        for (int64_t k = j->k0; k < j->k1; k += NIB__STEP) {
            if (shifted && (k % group == 0 || k == j->k0))
                zero = ivec_load_i8(zeros + k / group * NIB__PANEL);
            const raw held = raw_load(f, codes);
#pragma GCC unroll 32
            for (int i = 0; i < NIB__STEP / 2; i++)
                pair_store(out + (size_t)i * (form_step(NATIVE) / (NIB__STEP / 2)),
                           pair_get(f, shifted, swap, codes, held, i, zero));
            codes += form_step(f);
            out += form_step(NATIVE);
        }
    }
}

/* Tokens row..row + rows of the block as pairs; zeros up to a whole step. */
static void stage_rows(const job *j, int64_t rows, x_pair *out, bool swap)
{
    const nib_input *x = &j->a->x;
    const int64_t count = j->k1 - j->k0, padded = nib__round_up(count, NIB__STEP);
    for (int64_t r = 0; r < rows; r++, out += STAGE_PAIRS) {
        const int64_t at = (j->row + r) * x->ld + j->k0;
        if (j->a->w->scheme.act == NIB_ACT_MX8)
            x_put_e4m3(out, (const uint8_t *)x->codes + at, count);
        else if (x->bf16 != NULL)
            x_put_bf16(out, x->bf16 + at, count);
        else
            x_put_f32(out, x->f32 + at, count);
        x_clear(out, count, padded);
        if (SWAPS && swap)
            x_swap(out, padded);
    }
}

/* One token, whole wide tiles. */
NIB_INLINE int64_t direct_tiles(job *j, int64_t panels, const form f, const bool swap)
{
    for (; panels >= WIDE_P; panels -= WIDE_P, skip_panels(j, WIDE_P)) {
        tile(j, f, swap, 1, WIDE_P);
        put_tile(j, 1, WIDE_P);
    }
    return panels;
}

/* The forms worth code of their own for one token; the others are unpacked first. */
NIB_INLINE bool is_direct(const form f) { return f == FORM_BF16 || f == FORM_I8 || f == FORM_I4 || f == FORM_E4M3; }

/* One block of `panels` panels. */
NIB_INLINE void run_block(job j, int64_t panels, uint8_t *stage, uint8_t *unpacked, const form f,
                          const bool shifted, const bool swap)
{
    x_pair *pairs = (x_pair *)(void *)stage;
    const bool native = f == NATIVE && !shifted;
    const int64_t m = j.a->x.m, tile_rows = nib__ceil_div(m, nib__ceil_div(m, TILE_M));
    if (m == 1 && !native && !shifted && is_direct(f)) {
        stage_rows(&j, 1, pairs, swap);
        panels = direct_tiles(&j, panels, f, swap);
    }
    if (panels == 0)
        return;
    if (!native) {
        unpack(&j, panels, unpacked, f, shifted, swap);
        j.codes = unpacked;
        j.stride = (size_t)nib__ceil_div(j.k1 - j.k0, NIB__STEP) * form_step(NATIVE);
    }
    for (; j.row < m; j.row += tile_rows) {
        const int64_t rows = nib__min(tile_rows, m - j.row);
        stage_rows(&j, rows, pairs, swap);
        native_tiles(j, rows, panels);
    }
}

NIB_INLINE void run_form(const nib_linear *a, int64_t n0, int64_t n1, uint8_t *scratch, const form f,
                         const bool shifted, const bool swap)
{
    const size_t acc_bytes = sizeof(float) * TILE_M * WIDE_P * NIB__PANEL;
    uint8_t *stage = scratch + acc_bytes, *unpacked = stage + sizeof(x_pair) * TILE_M * STAGE_PAIRS;
    job j = {.a = a, .l = nib__panels_of(a->w), .x = (const x_pair *)(void *)stage};
    j.acc = (float *)(void *)scratch;
    j.n_end = nib__min(n1, a->w->n);
    const int64_t k = a->w->k, block = nib__sum_block(a->w);
    const int64_t chunk = a->x.m <= WIDE_M ? WIDE_P : CHUNK;
    const int64_t end = nib__ceil_div(n1, NIB__PANEL);
    for (int64_t p = n0 / NIB__PANEL; p < end && a->x.m > 0; p += chunk) {
        j.panel = (const uint8_t *)a->packed + (size_t)p * j.l.bytes;
        j.n = p * NIB__PANEL;
        for (j.k0 = 0; j.k0 < k; j.k0 = j.k1) {
            j.k1 = nib__min(k, j.k0 + block);
            j.first = j.k0 == 0;
            j.last = j.k1 == k;
            j.codes = j.panel + j.l.code_at + (size_t)(j.k0 / NIB__STEP) * form_step(f);
            j.stride = j.l.bytes;
            run_block(j, nib__min(chunk, end - p), stage, unpacked, f, shifted, swap);
        }
    }
}

/* pairs: BF16 sums. */
NIB_INLINE void run(const nib_linear *a, int64_t n0, int64_t n1, void *scratch, const form f, const bool pairs)
{
    const bool may_shift = f == FORM_I8 || f == FORM_I4;
    if (may_shift && a->w->scheme.zero == NIB_ZERO_INT)
        run_form(a, n0, n1, scratch, f, may_shift, pairs && SWAPS);
    else
        run_form(a, n0, n1, scratch, f, false, pairs && SWAPS);
}
