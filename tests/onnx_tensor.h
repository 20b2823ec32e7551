/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads the tensors of ONNX's node test cases (TensorProto in protobuf), for tests only: dims,
 * data_type, and the values as raw little-endian bytes, whichever of raw_data, int32_data and
 * float_data holds them.
 */
#ifndef NIB_TESTS_ONNX_TENSOR_H
#define NIB_TESTS_ONNX_TENSOR_H

#include "type.h"

#include <stdio.h>
#include <stdlib.h>

enum { ONNX_FLOAT = 1, ONNX_UINT8 = 2, ONNX_INT8 = 3, ONNX_FLOAT16 = 10, ONNX_DOUBLE = 11 };
enum {
    ONNX_BFLOAT16 = 16,
    ONNX_E4M3FN = 17,
    ONNX_E5M2 = 19,
    ONNX_INT4 = 22,
    ONNX_E2M1 = 23,
    ONNX_E8M0 = 24
};

typedef struct onnx_tensor {
    int64_t dims[8];
    int rank;
    int type;
    int64_t count; /* number of values */
    uint8_t bytes[4096];
    size_t size;
} onnx_tensor;

/* Bits of one stored value; 0 for a type that these tests do not use. */
static inline int onnx_bits(int type)
{
    switch (type) {
    case ONNX_FLOAT: return 32;
    case ONNX_DOUBLE: return 64;
    case ONNX_FLOAT16:
    case ONNX_BFLOAT16: return 16;
    case ONNX_UINT8:
    case ONNX_INT8:
    case ONNX_E4M3FN:
    case ONNX_E5M2:
    case ONNX_E8M0: return 8;
    case ONNX_INT4:
    case ONNX_E2M1: return 4;
    default: return 0;
    }
}

static inline bool onnx_varint(const uint8_t **at, const uint8_t *end, uint64_t *out)
{
    *out = 0;
    for (int shift = 0; shift < 64 && *at < end; shift += 7) {
        const uint8_t byte = *(*at)++;
        *out |= (uint64_t)(byte & 0x7fU) << shift;
        if (byte < 0x80)
            return true;
    }
    return false;
}

/* Each int32_data entry holds one value, or two if they have 4 bits. */
static inline bool onnx_put_int32(onnx_tensor *t, uint64_t value)
{
    const size_t size = onnx_bits(t->type) <= 8 ? 1 : (size_t)onnx_bits(t->type) / 8;
    if (t->size + size > sizeof t->bytes)
        return false;
    for (size_t i = 0; i < size; i++)
        t->bytes[t->size++] = (uint8_t)(value >> (8 * i));
    return true;
}

static inline bool onnx_field(onnx_tensor *t, int field, const uint8_t *at, size_t size,
                              uint64_t value, bool packed)
{
    const uint8_t *end = at + size;
    if (field == 1 && !packed && t->rank < 8)
        t->dims[t->rank++] = (int64_t)value;
    else if (field == 1)
        while (at < end && t->rank < 8 && onnx_varint(&at, end, &value))
            t->dims[t->rank++] = (int64_t)value;
    else if (field == 2)
        t->type = (int)value;
    else if (field == 5 && !packed)
        return onnx_put_int32(t, value);
    else if (field == 5)
        while (at < end) {
            if (!onnx_varint(&at, end, &value) || !onnx_put_int32(t, value))
                return false;
        }
    else if (field == 4 || field == 9) {
        if (t->size + size > sizeof t->bytes)
            return false;
        memcpy(t->bytes + t->size, at, size);
        t->size += size;
    }
    return true;
}

static inline bool onnx_parse(onnx_tensor *t, const uint8_t *at, const uint8_t *end)
{
    memset(t, 0, sizeof *t);
    while (at < end) {
        uint64_t tag, value = 0, size = 0;
        if (!onnx_varint(&at, end, &tag))
            return false;
        const bool packed = (tag & 7) == 2;
        if ((tag & 7) == 5)
            size = 4;
        else if (!onnx_varint(&at, end, packed ? &size : &value))
            return false;
        if (size > (uint64_t)(end - at) ||
            !onnx_field(t, (int)(tag >> 3), at, (size_t)size, value, packed))
            return false;
        at += size;
    }
    t->count = 1;
    for (int i = 0; i < t->rank; i++)
        t->count *= t->dims[i];
    const int bits = onnx_bits(t->type);
    return bits == 0 || (int64_t)t->size >= (t->count * bits + 7) / 8;
}

/* DATA/quant/onnx-node/NAME/test_data_set_0/FILE.pb */
static inline bool onnx_read(onnx_tensor *t, const char *data, const char *name, const char *file)
{
    char path[1024];
    uint8_t bytes[8192];
    snprintf(path, sizeof path, "%s/quant/onnx-node/%s/test_data_set_0/%s.pb", data, name, file);
    FILE *f = fopen(path, "rb");
    if (f == NULL)
        return false;
    const size_t size = fread(bytes, 1, sizeof bytes, f);
    fclose(f);
    return size < sizeof bytes && onnx_parse(t, bytes, bytes + size);
}

#endif
