/* SPDX-License-Identifier: Apache-2.0
 *
 * Products of many tokens with panels of int4, MXFP4 and int8 (prefill), AMX. Chunks:
 * linear_int_chunks.h. Few tokens: the rows with vpdpbusd.
 *
 * A matrix tile has 16 rows of 64 bytes. A unit of a chunk is two tiles of weights as it lies: the
 * rows are quads of k, 16 outputs by 4 k each. A product of 16 tokens x 16 outputs with 32 k, or 64
 * where a group is a multiple of 64, is one instruction. Its sums go through the L1 cache to vector
 * registers, where a group's scale is applied as in the other rows, so all bits are the same.
 *
 * With groups of 32 that way back is the limit: a product takes 16 cycles, loading and storing its
 * tiles 20, and the arithmetic on its sums as much as a conversion, a multiplication and what
 * corrects them; the three hardly overlap. So int4 codes are unpacked without their offset, and the
 * zero points of activations are one more product: each token's, as two bytes that add up to it,
 * times the sums of codes. Groups larger than a chunk stay in the matrix tiles, 32 tokens x 32
 * outputs at a time.
 *
 * The instructions are written as assembly: gcc 12 leaves out stores to the configuration before
 * its intrinsic for ldtilecfg reads it.
 */
#include "linear_int.h"

#if NIB_BUILT_X86
#include "linear_int_chunks.h"
#include "transpose_x512.h"

enum {
    ROWS = 16,   /* tokens of a matrix tile */
    VECTOR = 16, /* outputs of a matrix tile */
    FIRST_A = 4, /* matrix tiles 0 to 3 hold sums, 4 and 5 activations, 6 and 7 weights */
    FIRST_B = 6,
    ZERO_A = 2, /* with signed codes, matrix tiles 2 and 3 hold zero points and sums of codes */
    SUM_B = 3,
    ZERO_BYTES = 4 * NIB_INT_PAIR_GROUP / NIB_INT_UNIT, /* of a token in ZERO_A */
    QUAD = 4 * NIB_INT_PANEL /* bytes from one row of a tile of weights to the next */
};

/* The operand of ldtilecfg. */
typedef struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} tile_config;

/* Shapes the matrix tiles for products with `depth` k, 32 or 64, and with `quads` of sums of codes
 * if there are any. */
static void set_shapes(int depth, int quads)
{
    tile_config c = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        c.rows[i] = i < FIRST_B ? ROWS : (uint8_t)(depth / 4);
        c.row_bytes[i] = (uint16_t)(i >= FIRST_A && i < FIRST_B ? depth : 64);
    }
    if (quads > 0) {
        c.row_bytes[ZERO_A] = (uint16_t)(4 * quads);
        c.rows[SUM_B] = (uint8_t)quads;
    }
    __asm__ volatile("ldtilecfg %0" : : "m"(c));
}

#define TILE_CLEAR(t) __asm__ volatile("tilezero %%tmm" #t : : :)
#define TILE_LOAD(t, p, ld)                                                                        \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #t : : "r"(p), "r"((int64_t)(ld)) : "memory")
#define TILE_STORE(t, p, ld)                                                                       \
    __asm__ volatile("tilestored %%tmm" #t ",(%0,%1,1)" : : "r"(p), "r"((int64_t)(ld)) : "memory")
/* sums += activations * weights, signed by unsigned bytes, or signed by signed */
#define TILE_PRODUCT(sums, x, w)                                                                   \
    __asm__ volatile("tdpbsud %%tmm" #w ", %%tmm" #x ", %%tmm" #sums : : :)
#define TILE_PRODUCT_SIGNED(sums, x, w)                                                            \
    __asm__ volatile("tdpbssd %%tmm" #w ", %%tmm" #x ", %%tmm" #sums : : :)

/* ---- groups within a chunk ---- */

/* The tokens of a block as tiles read them. Past the last token, all is 0. */
typedef struct amx_tokens {
    const int8_t *tail;         /* codes of the last tokens if they fill no tile: [ROWS][ld of x] */
    const int32_t *terms;       /* [tiles][groups][ROWS] */
    const float *scales, *sums; /* activations in blocks: the same */
    const int8_t *zeros;        /* signed codes: [tiles][ROWS][ZERO_BYTES] */
} amx_tokens;

/* What a tile of ROWS tokens reads and writes. Rows of x are `ld` apart. */
typedef struct amx_tile {
    const int8_t *x; /* codes of the first token, at the chunk's first k */
    int64_t ld;
    const int32_t *terms;                   /* [the chunk's groups][ROWS] */
    const float *token_scales, *token_sums; /* activations in blocks: the same */
    const int8_t *zeros;
    int32_t zero[ROWS];
    float *sums;   /* [ROWS][32] */
    bool is_first; /* of its block: sums start at 0 */
} amx_tile;

/* A group with ROWS tokens. */
typedef struct amx_group {
    const int8_t *x; /* codes of the first token, rows `ld` apart */
    int64_t ld, k;
    int64_t depth; /* k of one product */
    const uint8_t *codes;
    const int32_t *quads;
    form f;
    bool is_signed;
} amx_group;

/* k of one product of a chunk's groups. */
NIB_INLINE int depth_of(const int_chunk *chunk) { return chunk->units % 2 == 0 ? 64 : 32; }

/* Products of group g, in the matrix tile `sums_tile` and from there to `to` [ROWS][VECTOR]. */
#define PRODUCTS(sums_tile, x_tile, w_tile, g, to)                                                 \
    do {                                                                                           \
        TILE_CLEAR(sums_tile);                                                                     \
        for (int64_t at = 0; at < (g).k; at += (g).depth) {                                        \
            TILE_LOAD(x_tile, (g).x + at, (g).ld);                                                 \
            TILE_LOAD(w_tile, (g).codes + at * NIB_INT_PANEL, QUAD);                               \
            if ((g).is_signed)                                                                     \
                TILE_PRODUCT_SIGNED(sums_tile, x_tile, w_tile);                                    \
            else                                                                                   \
                TILE_PRODUCT(sums_tile, x_tile, w_tile);                                           \
        }                                                                                          \
        if ((g).is_signed && (g).f == FORM_PAIR) {                                                 \
            TILE_LOAD(3, (g).quads, QUAD);                                                         \
            TILE_PRODUCT_SIGNED(sums_tile, 2, 3);                                                  \
        }                                                                                          \
        TILE_STORE(sums_tile, to, 4 * VECTOR);                                                     \
    } while (false)

/* The integer sum of one token and the group of `head`, from its products. */
NIB_INLINE __m512i amx_dot(const int_block *b, const int_head *head, const amx_tile *t, int r,
                           int64_t i, int c, __m512i dot, form f)
{
    const __m512i term = broadcast4(t->terms + i * ROWS + r);
    const __m512i sum = _mm512_loadu_si512(head->fix[0] + VECTOR * c);
    if (f == FORM_PAIR)
        return _mm512_dpwssd_epi32(dot, sum, term);
    if (f == FORM_WIDE || f == FORM_WIDE_BIAS) {
        const __m512i offset = _mm512_loadu_si512(head->fix[1] + VECTOR * c);
        const __m512i zero = _mm512_set1_epi32(t->zero[r]);
        dot = _mm512_add_epi32(
            dot, _mm512_sub_epi32(_mm512_mullo_epi32(offset, term), _mm512_mullo_epi32(sum, zero)));
    } else {
        dot = _mm512_add_epi32(dot, term);
    }
    if (f == FORM_PLAIN_BIAS || f == FORM_WIDE_BIAS)
        dot = _mm512_add_epi32(dot, _mm512_loadu_si512(b->a->int_bias + b->n0 + VECTOR * c));
    return dot;
}

/* sums += scale * dot of group i of the chunk, whose products are at `from`. */
NIB_INLINE void amx_end(const int_block *b, const int_chunk *chunk, const amx_tile *t, int64_t i,
                        int c, const int32_t *from, __m512 sums[ROWS], form f, bool is_signed)
{
    const int_head *head = &chunk->heads[i];
    const __m512 scale = _mm512_loadu_ps(head->scale + VECTOR * c);
#pragma GCC unroll 16
    for (int r = 0; r < ROWS; r++) {
        const __m512i products = _mm512_loadu_si512(from + VECTOR * r);
        const __m512 dot =
            _mm512_cvtepi32_ps(is_signed ? products : amx_dot(b, head, t, r, i, c, products, f));
        const int64_t at = i * ROWS + r;
        __m512 both = scale;
        if (is_blocks(f))
            both = _mm512_mul_ps(both, _mm512_set1_ps(t->token_scales[at]));
        sums[r] = _mm512_fmadd_ps(both, dot, sums[r]);
        if (is_blocks(f) && b->l->has_float_zeros)
            sums[r] =
                _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_loadu_si512(head->fix[0] + VECTOR * c)),
                                _mm512_set1_ps(t->token_sums[at]), sums[r]);
    }
}

/* All groups of a chunk for column vector c. A group's sums are read one group later, when they
 * have reached the cache. */
NIB_INLINE void amx_groups(const int_block *b, const int_chunk *chunk, const amx_tile *t, int c,
                           form f, bool is_signed)
{
    int32_t products[2][ROWS * VECTOR] __attribute__((aligned(64)));
    const int64_t k = chunk->units * NIB_INT_UNIT;
    amx_group g = {.x = t->x,
                   .ld = t->ld,
                   .k = k,
                   .depth = depth_of(chunk),
                   .codes = chunk->codes + 64 * c,
                   .quads = chunk->quads + VECTOR * c,
                   .f = f,
                   .is_signed = is_signed};
    __m512 sums[ROWS];
#pragma GCC unroll 16
    for (int r = 0; r < ROWS; r++)
        sums[r] = t->is_first ? _mm512_setzero_ps()
                              : _mm512_loadu_ps(t->sums + r * NIB_INT_PANEL + VECTOR * c);
    if (is_signed && f == FORM_PAIR)
        TILE_LOAD(2, t->zeros, ZERO_BYTES);
    PRODUCTS(0, 4, 6, g, products[0]);
    for (int64_t i = 1; i < chunk->groups; i++) {
        g.x += k;
        g.codes += chunk->stride;
        g.quads += chunk->units * NIB_INT_PANEL;
        if (i % 2 != 0)
            PRODUCTS(1, 5, 7, g, products[1]);
        else
            PRODUCTS(0, 4, 6, g, products[0]);
        amx_end(b, chunk, t, i - 1, c, products[(i - 1) % 2], sums, f, is_signed);
    }
    amx_end(b, chunk, t, chunk->groups - 1, c, products[(chunk->groups - 1) % 2], sums, f,
            is_signed);
#pragma GCC unroll 16
    for (int r = 0; r < ROWS; r++)
        _mm512_storeu_ps(t->sums + r * NIB_INT_PANEL + VECTOR * c, sums[r]);
}

/* Both column vectors, signed codes. */
static void amx_signed(const int_block *b, const int_chunk *chunk, const amx_tile *t)
{
    for (int c = 0; c < 2; c++)
        switch (b->f) {
        case FORM_PLAIN: amx_groups(b, chunk, t, c, FORM_PLAIN, true); break;
        case FORM_PAIR: amx_groups(b, chunk, t, c, FORM_PAIR, true); break;
        default: amx_groups(b, chunk, t, c, FORM_BLOCKS, true); break;
        }
}

static void amx_unsigned(const int_block *b, const int_chunk *chunk, const amx_tile *t)
{
    for (int c = 0; c < 2; c++)
        switch (b->f) {
        case FORM_PLAIN: amx_groups(b, chunk, t, c, FORM_PLAIN, false); break;
        case FORM_PAIR: amx_groups(b, chunk, t, c, FORM_PAIR, false); break;
        case FORM_WIDE: amx_groups(b, chunk, t, c, FORM_WIDE, false); break;
        case FORM_PLAIN_BIAS: amx_groups(b, chunk, t, c, FORM_PLAIN_BIAS, false); break;
        case FORM_WIDE_BIAS: amx_groups(b, chunk, t, c, FORM_WIDE_BIAS, false); break;
        default: amx_groups(b, chunk, t, c, FORM_BLOCKS, false); break;
        }
}

/* ---- part of a group that is larger than a chunk ---- */

/* Where the tile of tokens that begins at row r of the block has its codes, at k0. */
NIB_INLINE const int8_t *codes_of(const int_block *b, int64_t r, int64_t k0)
{
    const amx_tokens *tokens = b->prepared;
    const bool is_whole = r + ROWS <= b->rows;
    return (is_whole ? b->a->x.codes + (b->r0 + r) * b->a->x.ld : tokens->tail) + k0;
}

static void start_parts(const int_block *b, int64_t r0, int64_t rows)
{
    __m512i start[2] = {_mm512_setzero_si512(), _mm512_setzero_si512()};
    if (b->a->int_bias != NULL)
        add_int_bias(b->a, b->n0, start);
    for (int64_t r = r0; r < r0 + rows; r++)
        for (int c = 0; c < 2; c++)
            _mm512_storeu_si512(b->parts + r * NIB_INT_PANEL + VECTOR * c, start[c]);
}

/* Integer sums of the rows from r0 on += products, one tile of tokens or two. */
static void amx_part(const int_block *b, const int_chunk *chunk, int64_t k0, int64_t r0,
                     bool is_double)
{
    enum { LD = 4 * NIB_INT_PANEL };
    const int64_t k = chunk->units * NIB_INT_UNIT, depth = depth_of(chunk);
    const uint8_t *w = chunk->codes;
    int32_t *first = b->parts + r0 * NIB_INT_PANEL, *second = first + ROWS * NIB_INT_PANEL;
    const int64_t ld = b->a->x.ld;
    const int8_t *x0 = codes_of(b, r0, k0), *x1 = is_double ? codes_of(b, r0 + ROWS, k0) : NULL;
    TILE_LOAD(0, first, LD);
    TILE_LOAD(1, first + VECTOR, LD);
    if (is_double) {
        TILE_LOAD(2, second, LD);
        TILE_LOAD(3, second + VECTOR, LD);
    }
    for (int64_t at = 0; at < k; at += depth, w += depth * NIB_INT_PANEL) {
        TILE_LOAD(4, x0 + at, ld);
        TILE_LOAD(6, w, QUAD);
        TILE_LOAD(7, w + 64, QUAD);
        TILE_PRODUCT(0, 4, 6);
        TILE_PRODUCT(1, 4, 7);
        if (is_double) {
            TILE_LOAD(5, x1 + at, ld);
            TILE_PRODUCT(2, 5, 6);
            TILE_PRODUCT(3, 5, 7);
        }
    }
    TILE_STORE(0, first, LD);
    TILE_STORE(1, first + VECTOR, LD);
    if (is_double) {
        TILE_STORE(2, second, LD);
        TILE_STORE(3, second + VECTOR, LD);
    }
}

/* ---- all tokens of the block over one chunk ---- */

/* From [rows][groups] to [tiles][groups][ROWS]. */
static void by_tile(const void *from, int64_t rows, int64_t groups, int32_t *to)
{
    for (int64_t r0 = 0; r0 < rows; r0 += ROWS, to += groups * ROWS)
        for (int64_t g = 0; g < groups; g += VECTOR) {
            const int32_t *at = (const int32_t *)from + r0 * groups + g;
            const int64_t some = nib__min(groups - g, VECTOR);
            const __mmask16 mask = (__mmask16)((1U << some) - 1);
            __m512i words[ROWS];
#pragma GCC unroll 16
            for (int r = 0; r < ROWS; r++)
                words[r] = r0 + r < rows ? _mm512_maskz_loadu_epi32(mask, at + r * groups)
                                         : _mm512_setzero_si512();
            nib__transpose_x512(words);
            for (int i = 0; i < some; i++)
                _mm512_storeu_si512(to + (g + i) * ROWS, words[i]);
        }
}

/* Bytes of one array by tiles. */
static size_t by_tile_bytes(const nib_linear *a, const nib_int_layout *l)
{
    const int64_t most = nib__round_up(nib__int_row_block_most(a->x.m, a->w->k), ROWS);
    return (size_t)(most * l->groups) * sizeof(int32_t);
}

static size_t prepared_bytes(const nib_linear *a, const nib_int_layout *l)
{
    const int64_t most = nib__round_up(nib__int_row_block_most(a->x.m, a->w->k), ROWS);
    return (size_t)nib__round_up(sizeof(amx_tokens), 64) + 3 * by_tile_bytes(a, l) +
           (size_t)(ROWS * a->x.ld + most * ZERO_BYTES);
}

/* Pairs of bytes that add up to -zero, of each of `rows` tokens, to [tiles][ROWS][ZERO_BYTES]. */
static void zeros_by_tile(const int32_t *zero, int64_t rows, int8_t *to)
{
    memset(to, 0, (size_t)(nib__round_up(rows, ROWS) * ZERO_BYTES));
    for (int64_t r = 0; r < rows; r++)
        for (int i = 0; i < ZERO_BYTES; i++) {
            const int half = -zero[r] / 2;
            to[r * ZERO_BYTES + i] = (int8_t)(i % 2 == 0 ? half : -zero[r] - half);
        }
}

static void prepare(int_block *b, void *room)
{
    const nib_input *in = &b->a->x;
    const int64_t first = b->rows / ROWS * ROWS, rest = b->rows - first, groups = b->l->groups;
    const size_t bytes = by_tile_bytes(b->a, b->l);
    char *arrays = (char *)room + nib__round_up(sizeof(amx_tokens), 64);
    int32_t *terms = (int32_t *)(void *)arrays, *scales = terms + bytes / 4,
            *sums = scales + bytes / 4;
    int8_t *tail = (int8_t *)(arrays + 3 * bytes), *zeros = tail + ROWS * in->ld;
    if (is_blocks(b->f)) {
        by_tile(b->scaled.terms, b->rows, groups, terms);
        by_tile(b->scaled.scales, b->rows, groups, scales);
        if (b->l->has_float_zeros)
            by_tile(b->scaled.sums, b->rows, groups, sums);
    } else if (b->f != FORM_PART) {
        by_tile(b->terms, b->rows, groups, terms);
    }
    memcpy(tail, in->codes + (b->r0 + first) * in->ld, (size_t)(rest * in->ld));
    memset(tail + rest * in->ld, 0, (size_t)((ROWS - rest) * in->ld));
    if (b->is_signed && b->f == FORM_PAIR)
        zeros_by_tile(in->zero + b->r0, b->rows, zeros);
    *(amx_tokens *)room =
        (amx_tokens){tail, terms, (const float *)scales, (const float *)sums, zeros};
    b->prepared = room;
}

static void multiply_groups(const int_block *b, const int_chunk *chunk, const int_place *at,
                            int64_t r)
{
    const amx_tokens *tokens = b->prepared;
    const int64_t cell = r * b->l->groups + at->g * ROWS;
    amx_tile t = {.x = codes_of(b, r, at->k0),
                  .ld = b->a->x.ld,
                  .terms = tokens->terms + cell,
                  .token_scales = tokens->scales + cell,
                  .token_sums = tokens->sums + cell,
                  .zeros = tokens->zeros + r * ZERO_BYTES,
                  .sums = b->sums + r * NIB_INT_PANEL,
                  .is_first = at->opens};
    if (!is_blocks(b->f))
        memcpy(t.zero, b->a->x.zero + b->r0 + r,
               (size_t)nib__min(ROWS, b->rows - r) * sizeof *t.zero);
    if (b->is_signed)
        amx_signed(b, chunk, &t);
    else
        amx_unsigned(b, chunk, &t);
}

static void multiply_part(const int_block *b, const int_chunk *chunk, const int_place *at,
                          int64_t r, int64_t m)
{
    if (at->opens)
        start_parts(b, r, nib__round_up(m, ROWS));
    amx_part(b, chunk, at->k0, r, m > ROWS);
}

static void multiply(const int_block *b, const int_chunk *chunk, const int_place *at)
{
    const int64_t step = b->f == FORM_PART ? 2 * ROWS : ROWS;
    const int64_t lines = (int64_t)chunk->bytes / 64 + 1, tiles = nib__ceil_div(b->rows, step);
    const int64_t quads = b->is_signed && b->f == FORM_PAIR ? chunk->units : 0;
    set_shapes(depth_of(chunk), (int)quads);
    for (int64_t r = 0; r < b->rows; r += step) {
        const int64_t m = nib__min(step, b->rows - r), tile = r / step;
        for (int64_t i = lines * tile / tiles; i < lines * (tile + 1) / tiles; i++)
            _mm_prefetch(nib__ahead(chunk->packed, chunk->bytes + 64 * (size_t)i), _MM_HINT_T1);
        if (at->last)
            prefetch_y(b, r, m);
        if (b->f == FORM_PART)
            multiply_part(b, chunk, at, r, m);
        else
            multiply_groups(b, chunk, at, r);
        if (at->ends)
            finish_parts(b, chunk, at->g, r, m);
        if (at->closes)
            close_tile(b, at, r, m);
    }
}

/* ---- the rows ---- */

static void prefill_amx(const nib_linear *a, const nib_int_layout *l, nib_int_kind kind, int64_t n0,
                        int64_t n1, void *scratch)
{
    prefill(a, l, kind, n0, n1, ROWS, l->bits == 4 && !l->has_zeros, scratch);
    __asm__ volatile("tilerelease" : : :);
}

/* Outputs n0..n1: many tokens here, few by `few`, the row with vpdpbusd. */
static void run(const nib_linear *a, int64_t n0, int64_t n1, void *scratch,
                void (*few)(const nib_linear *a, int64_t n0, int64_t n1, void *scratch))
{
    const nib_int_layout l = nib__int_layout(a->w);
    const bool in_blocks = nib__act_block(a->w->scheme.act) > 0;
    if (is_direct(&l, a->x.m))
        few(a, n0, n1, scratch);
    else
        prefill_amx(a, &l, in_blocks ? NIB_INT_PLAIN : nib__int_kind(a, &l), n0, n1, scratch);
}

void nib__linear_w4_amx(const nib_linear *a, int64_t n0, int64_t n1, void *scratch)
{
    run(a, n0, n1, scratch, nib__linear_w4_avx512vnni);
}

void nib__linear_w8_amx(const nib_linear *a, int64_t n0, int64_t n1, void *scratch)
{
    run(a, n0, n1, scratch, nib__linear_w8_avx512vnni);
}

void nib__linear_w4_blocks_amx(const nib_linear *a, int64_t n0, int64_t n1, void *scratch)
{
    run(a, n0, n1, scratch, nib__linear_w4_blocks_avx512vnni);
}

void nib__linear_w8_blocks_amx(const nib_linear *a, int64_t n0, int64_t n1, void *scratch)
{
    run(a, n0, n1, scratch, nib__linear_w8_blocks_avx512vnni);
}

void nib__linear_mx4_blocks_amx(const nib_linear *a, int64_t n0, int64_t n1, void *scratch)
{
    run(a, n0, n1, scratch, nib__linear_mx4_blocks_avx512vnni);
}

size_t nib__linear_int_scratch_amx(const void *args)
{
    const nib_linear *a = args;
    const nib_int_layout l = nib__int_layout(a->w);
    const size_t terms = terms_bytes(a, &l);
    return is_direct(&l, a->x.m) ? terms : prefill_bytes(a, terms, ROWS, prepared_bytes(a, &l));
}

size_t nib__linear_blocks_scratch_amx(const void *args)
{
    const nib_linear *a = args;
    const nib_int_layout l = nib__int_layout(a->w);
    const size_t scaled = nib__int_scaled_bytes(a, &l);
    return is_direct(&l, a->x.m) ? scaled : prefill_bytes(a, scaled, ROWS, prepared_bytes(a, &l));
}

#endif
