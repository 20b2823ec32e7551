/* SPDX-License-Identifier: Apache-2.0
 *
 * Names and sizes of stored element types, packing of int4, and the error of f64 as f32.
 * float_formats.c converts between number formats.
 */
#include "type.h"

#include <math.h>

typedef struct type_row {
    const char *name, *stored;
    int bits;
    int block, block_bytes;
} type_row;

#define X(id, stored, name, bits) {name, stored, bits, 1, (bits) / 8},
#define Y(id, stored, name, elements, bytes) {name, stored, 0, elements, bytes},
static const type_row types[NIB_TYPE_COUNT] = {NIB_TYPES(X) NIB_BLOCK_TYPES(Y)};
#undef X
#undef Y

static const type_row *row_of(nib_type type)
{
    const size_t at = (size_t)type;
    return &types[at < NIB_TYPE_COUNT ? at : NIB_TYPE_NONE];
}

const char *nib__type_name(nib_type type) { return row_of(type)->name; }

const char *nib__type_stored_name(nib_type type) { return row_of(type)->stored; }

int nib__type_bits(nib_type type) { return row_of(type)->bits; }

bool nib__type_is_block(nib_type type) { return row_of(type)->block > 1; }

int64_t nib__type_block_elements(nib_type type) { return row_of(type)->block; }

int64_t nib__type_block_bytes(nib_type type) { return row_of(type)->block_bytes; }

bool nib__tensor_bytes(uint64_t *out, nib_type type, const int64_t *shape, int rank)
{
    const type_row *row = row_of(type);
    uint64_t size = 1;
    for (int i = 0; i < rank; i++)
        if (!nib__mul(&size, size, (uint64_t)shape[i]))
            return false;
    if (row->block > 1) {
        if (rank < 1 || shape[rank - 1] % row->block != 0)
            return false;
        return nib__mul(out, size / (uint64_t)row->block, (uint64_t)row->block_bytes);
    }
    if (!nib__mul(&size, size, (uint64_t)row->bits) || size % 8 != 0)
        return false;
    *out = size / 8;
    return true;
}

nib_type nib__type_find(const char *stored_name, size_t size)
{
    for (int i = NIB_TYPE_NONE + 1; i < NIB_TYPE_COUNT && types[i].block == 1; i++)
        if (strlen(types[i].stored) == size && memcmp(types[i].stored, stored_name, size) == 0)
            return (nib_type)i;
    return NIB_TYPE_NONE;
}

bool nib__type_is_float(nib_type type)
{
    return type == NIB_TYPE_F16 || type == NIB_TYPE_BF16 || type == NIB_TYPE_F32 ||
           type == NIB_TYPE_F64;
}

double nib__measure_f64_to_f32_error(const void *from, int64_t count)
{
    const char *at = from;
    double worst = 0;
    for (int64_t i = 0; i < count; i++) {
        double x;
        memcpy(&x, at + i * (int64_t)sizeof x, sizeof x);
        const double change = fabs(x - (double)(float)x) / fabs(x);
        if (change > worst) /* false for 0/0, and for NaN and infinities, which f32 keeps */
            worst = change;
    }
    return worst;
}

NIB_INLINE int8_t sign_extend_4(unsigned nibble) { return (int8_t)((int)(nibble ^ 8U) - 8); }

void nib__unpack_i4(int8_t *out, const uint8_t *bytes, int64_t first, int64_t count)
{
    const uint8_t *at = bytes + first / 2;
    int64_t i = 0;
    if (first % 2 != 0 && count > 0)
        out[i++] = sign_extend_4((unsigned)*at++ >> 4);
    for (; i + 2 <= count; i += 2, at++) {
        out[i] = sign_extend_4(*at & 15U);
        out[i + 1] = sign_extend_4((unsigned)*at >> 4);
    }
    if (i < count)
        out[i] = sign_extend_4(*at & 15U);
}

void nib__pack_i4(uint8_t *bytes, const int8_t *codes, int64_t count)
{
    for (int64_t i = 0; i + 2 <= count; i += 2)
        bytes[i / 2] = (uint8_t)(((unsigned)codes[i] & 15U) | ((unsigned)codes[i + 1] & 15U) << 4);
    if (count % 2 != 0)
        bytes[count / 2] = (uint8_t)((unsigned)codes[count - 1] & 15U);
}

void nib__pack_bits(uint8_t *bytes, const int8_t *codes, int64_t count, int bits)
{
    uint32_t held = 0;
    int filled = 0;
    for (int64_t j = 0; j < count; j++) {
        const uint32_t code = (uint32_t)(codes[j] + (1 << (bits - 1))) & ((1U << bits) - 1);
        held |= code << filled;
        filled += bits;
        if (filled < 8)
            continue;
        *bytes++ = (uint8_t)held;
        held >>= 8;
        filled -= 8;
    }
    if (filled > 0)
        *bytes = (uint8_t)held;
}
