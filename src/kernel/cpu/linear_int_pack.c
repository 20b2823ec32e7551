/* SPDX-License-Identifier: Apache-2.0
 *
 * Packs int4, Q6_K and int8 weights into the panels of linear_int.h, and computes what the zero
 * points of a call add to each group. Defines the three packed layouts.
 */
#include "linear_int.h"

enum {
    SPAN = 1024, /* codes of one output that are read at a time */
    FOUR = 4,    /* outputs whose words are written to a panel together */
    SUPER = NIB_SIX_GROUPS * NIB_INT_HALF_UNIT, /* k of a super-block of Q6_K */
};

nib_int_layout nib__int_layout(const nib_weight *w)
{
    nib_int_layout l;
    const bool is_nibble = nib__code_bits(w->scheme.code) == 4;
    l.k = w->k;
    l.heads = 0;
    l.group = nib__scheme_group_size(&w->scheme, w->k);
    l.groups = nib__scheme_groups(&w->scheme, w->k);
    l.unit = l.groups > 1 && l.group % NIB_INT_UNIT != 0 ? NIB_INT_HALF_UNIT : NIB_INT_UNIT;
    l.units = nib__ceil_div(nib__min(l.group, w->k), l.unit);
    l.last_units = nib__ceil_div(w->k - (l.groups - 1) * l.group, l.unit);
    l.per_block = nib__max(1, NIB_SUM_BLOCK / l.group);
    /* Products are f32: a wider scale is rounded once, here, as the reference does when it reads
     * it. */
    l.scale_type = w->scale_type == NIB_TYPE_F64 ? NIB_TYPE_F32 : w->scale_type;
    l.scale_bytes = (size_t)nib__type_bits(l.scale_type) / 8;
    l.has_zeros = w->scheme.zero == NIB_ZERO_INT;
    l.has_float_zeros = w->scheme.zero == NIB_ZERO_FLOAT;
    l.zeros = NIB_INT_PANEL * (l.scale_bytes + (l.has_zeros ? sizeof(int16_t) : 0));
    l.header = l.zeros + (l.has_float_zeros ? NIB_INT_PANEL * sizeof(float) : 0);
    l.unit_bytes = NIB_INT_PANEL * (size_t)l.unit / (is_nibble ? 2 : 1);
    l.group_bytes = l.header + (size_t)l.units * l.unit_bytes;
    l.panel_bytes =
        (size_t)(l.groups - 1) * l.group_bytes + l.header + (size_t)l.last_units * l.unit_bytes;
    l.doubled = w->scheme.code == NIB_CODE_MX4;
    l.bits = is_nibble ? 4 : 8;
    l.offset = l.doubled ? 12 : is_nibble ? 8 : 128;
    return l;
}

nib_int_layout nib__int_layout_six(const nib_weight *w)
{
    nib_int_layout l = nib__int_layout(w);
    l.heads = (size_t)nib__ceil_div(l.groups, NIB_SIX_GROUPS) * NIB_SIX_HEAD;
    l.scale_bytes = l.zeros = l.header = 0;
    l.bits = 6, l.offset = 32;
    l.unit_bytes = NIB_INT_PANEL * NIB_INT_HALF_UNIT * 6 / 8;
    l.group_bytes = l.unit_bytes;
    l.panel_bytes = nib__int_group(&l, l.groups);
    return l;
}

static uint64_t panels_bytes(const nib_weight *w, const nib_int_layout *l)
{
    uint64_t bytes;
    return nib__mul(&bytes, (uint64_t)nib__ceil_div(w->n, NIB_INT_PANEL), l->panel_bytes)
               ? bytes
               : UINT64_MAX;
}

static uint64_t packed_bytes(const nib_weight *w)
{
    const nib_int_layout l = nib__int_layout(w);
    return panels_bytes(w, &l);
}

static uint64_t packed_bytes_six(const nib_weight *w)
{
    const nib_int_layout l = nib__int_layout_six(w);
    return panels_bytes(w, &l);
}

/* ---- packing ---- */

/* Writes scales, offsets and zeros of output i to column `column` of a panel. */
static void pack_headers(const nib_weight *w, const nib_int_layout *l, int64_t i, int64_t column,
                         uint8_t *panel)
{
    nib__weight_put_scales(w, i, 0, l->groups, panel + (size_t)column * l->scale_bytes,
                           l->group_bytes);
    for (int64_t g = 0; g < l->groups && (l->has_zeros || l->has_float_zeros); g++) {
        uint8_t *header = panel + (size_t)g * l->group_bytes;
        if (l->has_zeros) {
            const int16_t offset = (int16_t)(l->offset + nib__weight_int_zero(w, i, g));
            memcpy(header + NIB_INT_PANEL * l->scale_bytes + (size_t)column * sizeof offset,
                   &offset, sizeof offset);
        }
        if (l->has_float_zeros) {
            const float zero = nib__weight_zero(w, i, g);
            memcpy(header + l->zeros + (size_t)column * sizeof zero, &zero, sizeof zero);
        }
    }
}

/* Writes a unit of codes of four outputs to their columns, which are adjacent. In two's complement,
 * flipping the highest bit of a code adds the layout's offset. Only the lowest four bits of a code
 * of 4 bits are used; `flip` is exclusively or-ed with all. */
static void put_bytes(const uint8_t *const codes[FOUR], uint8_t *columns, int64_t unit)
{
    for (int64_t q = 0; q < unit / 4; q++) {
        uint32_t words[FOUR];
        for (int c = 0; c < FOUR; c++)
            memcpy(&words[c], codes[c] + 4 * q, 4);
        for (int c = 0; c < FOUR; c++)
            words[c] ^= 0x80808080;
        memcpy(columns + q * 4 * NIB_INT_PANEL, words, sizeof words);
    }
}

static void put_nibbles(const uint8_t *const codes[FOUR], uint8_t *columns, int64_t unit,
                        uint32_t flip)
{
    for (int64_t q = 0; q < unit / 8; q++) {
        uint32_t low[FOUR], high[FOUR];
        for (int c = 0; c < FOUR; c++) {
            memcpy(&low[c], codes[c] + 8 * q, 4);
            memcpy(&high[c], codes[c] + 8 * q + 4, 4);
        }
        for (int c = 0; c < FOUR; c++)
            low[c] = ((low[c] & 0x0f0f0f0f) | (high[c] & 0x0f0f0f0f) << 4) ^ flip;
        memcpy(columns + q * 4 * NIB_INT_PANEL, low, sizeof low);
    }
}

/* Codes k0..k0+count of row i: in place if they are one byte each and fill units, else copied to
 * `buffer`. Codes past the row's end, and rows from n1 on, become bytes of 0 in the panel, which
 * add nothing to a sum. */
static const uint8_t *read_codes(const nib_weight *w, const nib_int_layout *l, int64_t i,
                                 int64_t n1, int64_t k0, int64_t count, uint8_t *buffer)
{
    const int64_t units = nib__round_up(count, l->unit);
    if (i < n1 && w->layout == NIB_LAYOUT_BYTE && count == units)
        return (const uint8_t *)w->codes + nib__weight_place(w, i) * w->k + k0;
    const int64_t present = i < n1 ? count : 0;
    if (i < n1)
        nib__weight_codes(w, i, k0, count, (int8_t *)buffer);
    memset(buffer + present, -l->offset, (size_t)(units - present));
    return buffer;
}

/* Packs outputs i..i+FOUR, as far as they are below n1, from column `column` on. */
static void pack_codes(const nib_weight *w, const nib_int_layout *l, int64_t i, int64_t n1,
                       int64_t column, uint8_t *panel)
{
    uint8_t buffers[FOUR][SPAN];
    const uint32_t flip = l->doubled ? 0 : 0x88888888; /* e2m1 keeps its bits */
    const int64_t span = l->group <= SPAN ? SPAN / l->group * l->group : SPAN;
    /* Distance to the next panel, for prefetching; in other code layouts it is elsewhere. */
    const uint64_t ahead = w->layout == NIB_LAYOUT_BYTE ? NIB_INT_PANEL * (uint64_t)w->k : 0;
    for (int64_t k0 = 0; k0 < w->k; k0 += span) {
        const int64_t count = nib__min(span, w->k - k0);
        const uint8_t *codes[FOUR];
        for (int c = 0; c < FOUR; c++)
            codes[c] = read_codes(w, l, i + c, n1, k0, count, buffers[c]);
        int64_t g = k0 / l->group, unit = k0 % l->group / l->unit;
        for (int64_t j = 0; j < count; j += l->unit) {
            uint8_t *to = panel + nib__int_unit(l, g, unit) + 4 * column;
            const uint8_t *const at[FOUR] = {codes[0] + j, codes[1] + j, codes[2] + j,
                                             codes[3] + j};
            for (int c = 0; c < FOUR; c++)
                __builtin_prefetch(nib__ahead(at[c], ahead));
            if (l->bits == 4)
                put_nibbles(at, to, l->unit, flip);
            else
                put_bytes(at, to, l->unit);
            if (++unit == l->units) /* end of the group */
                unit = 0, g++;
        }
    }
}

/* How a format writes a panel: the heads of an output, and the codes of FOUR. */
typedef struct panel_writer {
    void (*heads)(const nib_weight *w, const nib_int_layout *l, int64_t i, int64_t column,
                  uint8_t *panel);
    void (*codes)(const nib_weight *w, const nib_int_layout *l, int64_t i, int64_t n1,
                  int64_t column, uint8_t *panel);
} panel_writer;

static void pack_panels(const nib_weight *w, const nib_int_layout *l, const panel_writer *writer,
                        uint8_t *out, int64_t n0, int64_t n1)
{
    for (int64_t i0 = n0; i0 < n1; i0 += NIB_INT_PANEL) {
        uint8_t *panel = out + (size_t)(i0 / NIB_INT_PANEL) * l->panel_bytes;
        const int64_t columns = nib__min(NIB_INT_PANEL, n1 - i0);
        if (columns < NIB_INT_PANEL)
            memset(panel, 0, l->panel_bytes);
        for (int64_t column = 0; column < columns; column++)
            writer->heads(w, l, i0 + column, column, panel);
        for (int64_t column = 0; column < columns; column += FOUR)
            writer->codes(w, l, i0 + column, n1, column, panel);
    }
}

static void pack(const nib_weight *w, void *out, int64_t n0, int64_t n1)
{
    static const panel_writer writer = {pack_headers, pack_codes};
    const nib_int_layout l = nib__int_layout(w);
    pack_panels(w, &l, &writer, out, n0, n1);
}

/* Writes the heads of output i to column `column` of a panel. */
static void pack_heads_six(const nib_weight *w, const nib_int_layout *l, int64_t i, int64_t column,
                           uint8_t *panel)
{
    for (int64_t g = 0; g < l->groups; g += NIB_SIX_GROUPS) {
        uint16_t f16;
        int8_t scales[NIB_SIX_GROUPS];
        nib__weight_q6_k(w, i, g, &f16, scales);
        memcpy(panel + nib__six_f16(g) + (size_t)column * sizeof f16, &f16, sizeof f16);
        for (int64_t j = 0; j < NIB_SIX_GROUPS; j++)
            panel[nib__six_int8(g + j) + (size_t)column] = (uint8_t)scales[j];
    }
}

/* Writes a unit of codes of four outputs to their columns. */
static void put_six(const uint8_t *const codes[FOUR], uint8_t *columns)
{
    enum { QUADS = NIB_INT_HALF_UNIT / 4 };
    uint32_t low[2][FOUR], high[FOUR] = {0};
    for (int c = 0; c < FOUR; c++) {
        uint32_t quads[QUADS];
        memcpy(quads, codes[c], sizeof quads);
        for (int q = 0; q < QUADS; q++) {
            quads[q] ^= 0x20202020; /* adds 32 to the lowest six bits */
            high[c] |= (quads[q] >> 4 & 0x03030303) << 2 * q;
            quads[q] &= 0x0f0f0f0f;
        }
        low[0][c] = quads[0] | quads[1] << 4;
        low[1][c] = quads[2] | quads[3] << 4;
    }
    memcpy(columns, low[0], sizeof low[0]);
    memcpy(columns + 4 * NIB_INT_PANEL, low[1], sizeof low[1]);
    memcpy(columns + NIB_SIX_HIGH, high, sizeof high);
}

static void pack_codes_six(const nib_weight *w, const nib_int_layout *l, int64_t i, int64_t n1,
                           int64_t column, uint8_t *panel)
{
    uint8_t buffers[FOUR][SUPER];
    for (int64_t k0 = 0; k0 < w->k; k0 += SUPER) {
        for (int c = 0; c < FOUR && i + c < n1; c++)
            nib__weight_codes(w, i + c, k0, SUPER, (int8_t *)buffers[c]);
        for (int c = (int)nib__min(n1 - i, FOUR); c < FOUR; c++)
            memset(buffers[c], 0, SUPER);
        for (int64_t j = 0; j < SUPER; j += NIB_INT_HALF_UNIT) {
            const uint8_t *const at[FOUR] = {buffers[0] + j, buffers[1] + j, buffers[2] + j,
                                             buffers[3] + j};
            put_six(at, panel + nib__int_group(l, (k0 + j) / NIB_INT_HALF_UNIT) + 4 * column);
        }
    }
}

static void pack_six(const nib_weight *w, void *out, int64_t n0, int64_t n1)
{
    static const panel_writer writer = {pack_heads_six, pack_codes_six};
    const nib_int_layout l = nib__int_layout_six(w);
    pack_panels(w, &l, &writer, out, n0, n1);
}

const nib_packing nib__packing_w6 = {"n32k4-i6", NIB_INT_PANEL, packed_bytes_six, pack_six};
const nib_packing nib__packing_w4 = {"n32k8-i4", NIB_INT_PANEL, packed_bytes, pack};
const nib_packing nib__packing_w8 = {"n32k4-i8", NIB_INT_PANEL, packed_bytes, pack};
const nib_packing nib__packing_mx4 = {"n32k8-e2m1", NIB_INT_PANEL, packed_bytes, pack};

/* ---- what zero points add to a sum ---- */

nib_int_kind nib__int_kind(const nib_linear *a, const nib_int_layout *l)
{
    bool plain = !l->has_zeros;
    for (int64_t r = 0; r < a->x.m && plain; r++)
        plain = a->x.zero[r] == 0;
    const bool pair = l->group <= NIB_INT_PAIR_GROUP && a->int_bias == NULL;
    return plain ? NIB_INT_PLAIN : pair ? NIB_INT_PAIR : NIB_INT_WIDE;
}

enum { ROW_TILE = 48 }; /* whole tiles of 6, 8 and 16 tokens */

/* Rows of activations that stay in a core's cache. */
static int64_t rows_that_fit(int64_t k)
{
    enum { CACHED = 1 << 20, LEAST = 48 };
    return nib__max(LEAST,
                    nib__min(CACHED / nib__max(1, k) / ROW_TILE * ROW_TILE, NIB_INT_ROWS_MOST));
}

int64_t nib__int_row_block(int64_t m, int64_t k)
{
    const int64_t blocks = nib__ceil_div(nib__max(1, m), rows_that_fit(k));
    return nib__round_up(nib__ceil_div(m, blocks), ROW_TILE); /* of nearly equal size */
}

int64_t nib__int_row_block_most(int64_t m, int64_t k)
{
    return nib__round_up(nib__min(m, rows_that_fit(k)), ROW_TILE);
}

/* For fewer tokens than `least`, unpacking a chunk costs more than it saves. */
size_t nib__int_many_bytes(const nib_linear *a, const nib_int_layout *l)
{
    const int64_t least = l->bits == 4 && nib__act_block(a->w->scheme.act) > 0 ? 9 : 4;
    return a->x.m >= least ? sizeof(nib_int_many) : 0;
}

/* Scratch of the AVX2 rows: a nib_int_many, `bytes` and the 16-bit codes of int8 rows. */
static size_t avx2_scratch(const nib_linear *a, const nib_int_layout *l, size_t bytes)
{
    const size_t rows = (size_t)nib__int_row_block_most(a->x.m, a->w->k);
    const size_t wide = rows * (size_t)nib__round_up(a->w->k, NIB_CODES_PAD) * sizeof(int16_t);
    return nib__int_many_bytes(a, l) + (size_t)nib__round_up((int64_t)bytes, 64) +
           (l->bits == 8 ? wide : 0);
}

size_t nib__linear_int_scratch_avx2(const void *args)
{
    const nib_linear *a = args;
    const nib_int_layout l = nib__int_layout(a->w);
    const size_t rows = (size_t)nib__int_row_block_most(a->x.m, a->w->k);
    return avx2_scratch(a, &l, rows * (size_t)l.groups * sizeof(int32_t));
}

/* ---- activations in blocks ---- */

size_t nib__int_scaled_bytes(const nib_linear *a, const nib_int_layout *l)
{
    const size_t rows = (size_t)nib__int_row_block_most(a->x.m, a->w->k);
    return 3 * rows * (size_t)l->groups * sizeof(float);
}

nib_int_scaled nib__int_scaled(const nib_linear *a, const nib_int_layout *l, int64_t r0,
                               int64_t rows, void *scratch)
{
    const int64_t cells = nib__int_row_block_most(a->x.m, a->w->k) * l->groups;
    const int64_t block = nib__act_block(a->w->scheme.act), blocks = nib__ceil_div(a->w->k, block);
    const int64_t per_block = nib__max(1, block / l->group);
    const float unit = l->doubled ? 0.5F : 1;
    const nib_int_scaled out = {scratch, (float *)scratch + cells, (float *)scratch + 2 * cells};
    for (int64_t r = 0; r < rows; r++) {
        const int32_t *sums = a->x.sums + (r0 + r) * a->x.groups;
        const float *scale = a->x.scale + (r0 + r) * blocks;
        const int64_t at = r * l->groups;
        for (int64_t g = 0; g < l->groups; g++)
            out.scales[at + g] = unit * scale[g / per_block];
        for (int64_t g = 0; g < l->groups; g++) {
            out.terms[at + g] = -l->offset * sums[g];
            out.sums[at + g] = out.scales[at + g] * (float)sums[g];
        }
    }
    return out;
}

size_t nib__linear_blocks_scratch_avx2(const void *args)
{
    const nib_linear *a = args;
    const nib_int_layout l = nib__int_layout(a->w);
    return avx2_scratch(a, &l, nib__int_scaled_bytes(a, &l));
}

size_t nib__linear_six_scratch_avx2(const void *args)
{
    const nib_linear *a = args;
    const nib_int_layout l = nib__int_layout_six(a->w);
    return avx2_scratch(a, &l, nib__int_scaled_bytes(a, &l));
}
