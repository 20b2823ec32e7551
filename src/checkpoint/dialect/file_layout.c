/* SPDX-License-Identifier: Apache-2.0
 *
 * Turns the plain output of a quantizer into the bytes of a dialect's tensors, and has the table of
 * the dialects that can be written.
 */
#include "dialects.h"

#include "gguf_blocks.h"
#include "safetensors.h"

/* ---- codes ---- */

uint64_t nib__output_part_bytes(const nib_output_part *part)
{
    uint64_t bytes;
    if (part->suffix == NULL)
        return 0;
    return nib__tensor_bytes(&bytes, part->type, part->shape, part->rank) ? bytes : UINT64_MAX;
}

int64_t nib__file_layout_row_bytes(const nib_file_layout *layout, int64_t k)
{
    switch (layout->pieces) {
    case NIB_PIECES_NIBBLES: return nib__ceil_div(k, 2);
    case NIB_PIECES_WORDS: return nib__ceil_div(k * layout->bits, 32) * 4;
    case NIB_PIECES_BLOCKS:
        return k / nib__type_block_elements(layout->codes.type) *
               nib__type_block_bytes(layout->codes.type);
    case NIB_PIECES_FLOATS: return k * nib__type_bits(layout->codes.type) / 8;
    default: return k;
    }
}

void nib__file_layout_row(const nib_file_layout *layout, const int8_t *codes, int64_t k,
                          uint8_t *out)
{
    switch (layout->pieces) {
    case NIB_PIECES_NIBBLES: nib__pack_i4(out, codes, k); return;
    case NIB_PIECES_WORDS:
        memset(out, 0, (size_t)nib__file_layout_row_bytes(layout, k));
        nib__pack_bits(out, codes, k, layout->bits);
        return;
    default: memcpy(out, codes, (size_t)k); return;
    }
}

/* Reads back the rounded scale and zero of a block. */
static void read_block(const uint8_t *block, nib_type type, float *scale, float *zero)
{
    float low;
    if (type == NIB_TYPE_MXFP4)
        return; /* a power of two, stored exactly */
    nib__to_f32(scale, block, NIB_TYPE_F16, 1);
    if (type != NIB_TYPE_Q4_1)
        return;
    nib__to_f32(&low, block + 2, NIB_TYPE_F16, 1);
    *zero = low + 8 * *scale;
}

/* Writes super-blocks; false if one does not hold its scales and zeros exactly. */
static bool put_supers(nib_type type, const int8_t *codes, const float *scales, const float *zeros,
                       int64_t k, uint8_t *out)
{
    const int64_t groups = nib__super_block_groups(type);
    bool same = true;
    for (int64_t at = 0; at < k; at += NIB_SUPER_ELEMENTS) {
        const int64_t g = at / NIB_SUPER_ELEMENTS * groups;
        same = nib__super_block_put(out, type, codes + at, scales + g, zeros + g) && same;
        out += nib__type_block_bytes(type);
    }
    return same;
}

bool nib__file_layout_blocks(const nib_file_layout *layout, const int8_t *codes, float *scales,
                             float *zeros, int64_t k, uint8_t *out)
{
    const nib_type type = layout->codes.type;
    const int64_t size = nib__type_block_elements(type);
    bool same = true;
    if (size == NIB_SUPER_ELEMENTS)
        return put_supers(type, codes, scales, zeros, k, out);
    for (int64_t g = 0; g < k / size; g++, out += nib__type_block_bytes(type)) {
        const float scale = scales[g], zero = zeros[g];
        (void)nib__block_put(out, type, codes + g * size, scale, zero - 8 * scale);
        read_block(out, type, &scales[g], &zeros[g]);
        same = same && scales[g] == scale && zeros[g] == zero;
    }
    return same;
}

/* ---- scales and zeros ---- */

/* Transposes one tile of elements of `width` bytes. */
NIB_INLINE void transpose_tile(uint8_t *to, const uint8_t *from, int64_t n, int64_t groups,
                               int64_t rows, int64_t columns, size_t width)
{
    for (int64_t g = 0; g < columns; g++)
        for (int64_t i = 0; i < rows; i++)
            memcpy(to + (size_t)(g * n + i) * width, from + (size_t)(i * groups + g) * width,
                   width);
}

/* Transposes [n][groups] to [groups][n], in tiles that fit the L1 cache. */
static void transpose(uint8_t *to, const uint8_t *from, int64_t n, int64_t groups, int64_t width)
{
    enum { TILE = 64 };
    for (int64_t i = 0; i < n; i += TILE)
        for (int64_t g = 0; g < groups; g += TILE) {
            uint8_t *at = to + (g * n + i) * width;
            const uint8_t *tile = from + (i * groups + g) * width;
            const int64_t rows = nib__min(TILE, n - i), columns = nib__min(TILE, groups - g);
            if (width == 2)
                transpose_tile(at, tile, n, groups, rows, columns, 2);
            else
                transpose_tile(at, tile, n, groups, rows, columns, (size_t)width);
        }
}

/* Sets bits of a word. */
static void add_bits(uint8_t *at, uint32_t bits)
{
    uint32_t word;
    memcpy(&word, at, sizeof word);
    word |= bits;
    memcpy(at, &word, sizeof word);
}

/* Packs int8 zeros [n][groups] along n, into [ceil(n*bits/32)][groups]. */
static void pack_zeros(uint8_t *to, const uint8_t *from, int64_t n, int64_t groups, int bits)
{
    const uint32_t offset = 1U << (bits - 1), mask = (1U << bits) - 1;
    for (int64_t i = 0; i < n; i++)
        for (int64_t g = 0; g < groups; g++) {
            const uint64_t zero = ((uint32_t)(int8_t)from[i * groups + g] + offset) & mask;
            const uint64_t both = zero << (i * bits % 32);
            uint8_t *at = to + (i * bits / 32 * groups + g) * 4;
            add_bits(at, (uint32_t)both);
            if (both >> 32 != 0)
                add_bits(at + 4 * groups, (uint32_t)(both >> 32));
        }
}

void nib__file_layout_values(nib_order order, int bits, const nib_output_part *part, uint8_t *to,
                             const uint8_t *from, int64_t n, int64_t groups)
{
    const int64_t width = nib__type_bits(part->type) / 8;
    switch (order) {
    case NIB_ORDER_GROUPS: transpose(to, from, n, groups, width); return;
    case NIB_ORDER_TILES: nib__tile_scales(to, from, n, groups); return;
    case NIB_ORDER_WORDS: pack_zeros(to, from, n, groups, bits); return;
    default: memcpy(to, from, (size_t)(n * groups * width)); return;
    }
}

void nib__tile_scales(uint8_t *to, const uint8_t *from, int64_t n, int64_t groups)
{
    for (int64_t i = 0; i < n; i++)
        for (int64_t g = 0; g < groups; g++)
            to[nib__scale_tile(i, g, groups)] = from[i * groups + g];
}
