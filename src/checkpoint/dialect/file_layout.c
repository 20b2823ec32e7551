/* SPDX-License-Identifier: Apache-2.0
 *
 * From the plain results of a quantizer to the bytes of a dialect's tensors, and the list of the
 * dialects that are written.
 */
#include "dialects.h"

#include "gguf_blocks.h"
#include "safetensors.h"

/* ---- the dialects ---- */

static const nib_dialect_writer *const writers[NIB_DIALECT_COUNT] = {
    [NIB_DIALECT_TORCHAO] = &nib__write_torchao, [NIB_DIALECT_NIBBLE] = &nib__write_nibble,
    [NIB_DIALECT_8DA4W] = &nib__write_8da4w,     [NIB_DIALECT_COMPRESSED] = &nib__write_compressed,
    [NIB_DIALECT_GGUF] = &nib__write_gguf,       [NIB_DIALECT_FLOAT] = &nib__write_float,
};

const nib_dialect_writer *nib__dialect_writer(nib_dialect dialect) { return writers[dialect]; }

bool nib__dialect_find(nib_dialect *out, const char *name)
{
    for (int i = 0; i < NIB_DIALECT_COUNT; i++)
        if (strcmp(writers[i]->name, name) == 0) {
            *out = (nib_dialect)i;
            return true;
        }
    return false;
}

bool nib__scheme_has_tensor_scale(const nib_scheme *s)
{
    return s->code == NIB_CODE_NV4 && !s->block_only;
}

/* ---- codes ---- */

uint64_t nib__output_part_bytes(const nib_output_part *part)
{
    uint64_t bytes;
    if (part->suffix == NULL)
        return 0;
    return nib__tensor_bytes(&bytes, part->type, part->shape, part->rank) ? bytes : UINT64_MAX;
}

int64_t nib__file_layout_row_bytes(const nib_file_layout *storage, int64_t k)
{
    switch (storage->pieces) {
    case NIB_PIECES_NIBBLES: return nib__ceil_div(k, 2);
    case NIB_PIECES_WORDS4: return nib__ceil_div(k, 8) * 4;
    case NIB_PIECES_WORDS8: return nib__ceil_div(k, 4) * 4;
    case NIB_PIECES_BLOCKS:
        return k / nib__type_block(storage->codes.type) *
               nib__type_block_bytes(storage->codes.type);
    case NIB_PIECES_FLOATS: return k * nib__type_bits(storage->codes.type) / 8;
    default: return k;
    }
}

/* Codes with an offset, `bits` each, from the lowest bit on; what is left of the last byte is 0,
 * which is how the least code is written: nobody reads it. */
static void pack_offset(uint8_t *out, const int8_t *codes, int64_t count, int bits)
{
    for (int64_t j = 0; j < count; j++) {
        if (bits == 8)
            out[j] = (uint8_t)(codes[j] + 128);
        else if (j % 2 == 0)
            out[j / 2] = (uint8_t)(codes[j] + 8);
        else
            out[j / 2] |= (uint8_t)((codes[j] + 8) << 4);
    }
}

void nib__file_layout_row(const nib_file_layout *storage, const int8_t *codes, int64_t k,
                          uint8_t *out)
{
    switch (storage->pieces) {
    case NIB_PIECES_NIBBLES: nib__pack_i4(out, codes, k); return;
    case NIB_PIECES_WORDS4:
    case NIB_PIECES_WORDS8:
        memset(out, 0, (size_t)nib__file_layout_row_bytes(storage, k));
        pack_offset(out, codes, k, storage->pieces == NIB_PIECES_WORDS4 ? 4 : 8);
        return;
    default: memcpy(out, codes, (size_t)k); return;
    }
}

/* What the scale and the least value of a block became, from its first bytes. */
static void read_block(const uint8_t *block, nib_type type, float *scale, float *zero)
{
    float low;
    if (type == NIB_TYPE_MXFP4)
        return; /* a power of two, which stays */
    nib__to_f32(scale, block, NIB_TYPE_F16, 1);
    if (type != NIB_TYPE_Q4_1)
        return;
    nib__to_f32(&low, block + 2, NIB_TYPE_F16, 1);
    *zero = low + 8 * *scale;
}

bool nib__file_layout_blocks(const nib_file_layout *storage, const int8_t *codes, float *scales,
                             float *zeros, int64_t k, uint8_t *out)
{
    const nib_type type = storage->codes.type;
    const int64_t size = nib__type_block(type);
    bool same = true;
    for (int64_t g = 0; g < k / size; g++, out += nib__type_block_bytes(type)) {
        const float scale = scales[g], zero = zeros[g];
        (void)nib__block_put(out, type, codes + g * size, scale, zero - 8 * scale);
        read_block(out, type, &scales[g], &zeros[g]);
        same = same && scales[g] == scale && zeros[g] == zero;
    }
    return same;
}

/* ---- scales and zeros ---- */

/* Rows and groups of a tile: [TILE][TILE] of elements of `width` bytes. */
NIB_INLINE void transpose_tile(uint8_t *to, const uint8_t *from, int64_t n, int64_t groups,
                               int64_t rows, int64_t columns, size_t width)
{
    for (int64_t g = 0; g < columns; g++)
        for (int64_t i = 0; i < rows; i++)
            memcpy(to + (size_t)(g * n + i) * width, from + (size_t)(i * groups + g) * width,
                   width);
}

/* [n][groups] of elements of `width` bytes into [groups][n], in tiles that stay in the first
 * cache. */
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

/* int8 zeros [n][groups], `per` rows in each int32 of [ceil(n/per)][groups]. */
static void pack_zeros(uint8_t *to, const uint8_t *from, int64_t n, int64_t groups, int per)
{
    const int bits = 32 / per;
    const uint32_t offset = 1U << (bits - 1), mask = (1U << bits) - 1;
    for (int64_t i = 0; i < n; i++)
        for (int64_t g = 0; g < groups; g++) {
            uint8_t *at = to + (i / per * groups + g) * 4;
            uint32_t word;
            memcpy(&word, at, sizeof word);
            word |= (((uint32_t)(int8_t)from[i * groups + g] + offset) & mask) << (i % per * bits);
            memcpy(at, &word, sizeof word);
        }
}

void nib__file_layout_values(nib_order order, const nib_output_part *part, uint8_t *to,
                             const uint8_t *from, int64_t n, int64_t groups)
{
    const int64_t width = nib__type_bits(part->type) / 8;
    switch (order) {
    case NIB_ORDER_GROUPS: transpose(to, from, n, groups, width); return;
    case NIB_ORDER_TILES: nib__tile_scales(to, from, n, groups); return;
    case NIB_ORDER_WORDS4: pack_zeros(to, from, n, groups, 8); return;
    case NIB_ORDER_WORDS8: pack_zeros(to, from, n, groups, 4); return;
    default: memcpy(to, from, (size_t)(n * groups * width)); return;
    }
}

void nib__tile_scales(uint8_t *to, const uint8_t *from, int64_t n, int64_t groups)
{
    for (int64_t i = 0; i < n; i++)
        for (int64_t g = 0; g < groups; g++)
            to[nib__scale_tile(i, g, groups)] = from[i * groups + g];
}
