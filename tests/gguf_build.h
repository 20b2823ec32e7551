/* SPDX-License-Identifier: Apache-2.0
 *
 * Builds GGUF files in memory, valid or not: a file holds exactly what the test appends.
 */
#ifndef NIB_TESTS_GGUF_BUILD_H
#define NIB_TESTS_GGUF_BUILD_H

#include "gguf.h"

#include <stdlib.h>

typedef struct gguf_file {
    uint8_t bytes[1 << 16];
    size_t size;
} gguf_file;

static inline void put_bytes(gguf_file *f, const void *bytes, size_t size)
{
    if (size > sizeof f->bytes - f->size)
        abort();
    memcpy(f->bytes + f->size, bytes, size);
    f->size += size;
}

/* Appends the low `bytes` bytes of value, little-endian. */
static inline void put_int(gguf_file *f, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++) {
        const uint8_t byte = (uint8_t)(value >> 8 * i);
        put_bytes(f, &byte, 1);
    }
}

static inline void put_text(gguf_file *f, const char *text)
{
    put_int(f, strlen(text), 8);
    put_bytes(f, text, strlen(text));
}

static inline void put_header(gguf_file *f, uint32_t version, uint64_t tensors, uint64_t keys)
{
    f->size = 0;
    put_bytes(f, "GGUF", 4);
    put_int(f, version, 4);
    put_int(f, tensors, 8);
    put_int(f, keys, 8);
}

static inline void put_key(gguf_file *f, const char *key, uint32_t kind)
{
    put_text(f, key);
    put_int(f, kind, 4);
}

static inline void put_key_int(gguf_file *f, const char *key, uint32_t kind, uint64_t value,
                               int bytes)
{
    put_key(f, key, kind);
    put_int(f, value, bytes);
}

static inline void put_key_f32(gguf_file *f, const char *key, float value)
{
    put_key(f, key, NIB_GGUF_F32);
    put_bytes(f, &value, 4);
}

static inline void put_key_text(gguf_file *f, const char *key, const char *text)
{
    put_key(f, key, NIB_GGUF_STRING);
    put_text(f, text);
}

static inline void put_key_array(gguf_file *f, const char *key, uint32_t kind, uint64_t count)
{
    put_key(f, key, NIB_GGUF_ARRAY);
    put_int(f, kind, 4);
    put_int(f, count, 8);
}

/* type: ggml's type number; dimensions in file order, ended by 0. */
static inline void put_tensor(gguf_file *f, const char *name, uint32_t type, uint64_t d0,
                              uint64_t d1, uint64_t offset)
{
    put_text(f, name);
    put_int(f, d1 != 0 ? 2 : 1, 4);
    put_int(f, d0, 8);
    if (d1 != 0)
        put_int(f, d1, 8);
    put_int(f, type, 4);
    put_int(f, offset, 8);
}

/* The same with three dimensions. */
static inline void put_tensor_3d(gguf_file *f, const char *name, uint32_t type, uint64_t d0,
                                 uint64_t d1, uint64_t d2, uint64_t offset)
{
    put_text(f, name);
    put_int(f, 3, 4);
    put_int(f, d0, 8);
    put_int(f, d1, 8);
    put_int(f, d2, 8);
    put_int(f, type, 4);
    put_int(f, offset, 8);
}

static inline void put_padding(gguf_file *f, size_t alignment)
{
    while (f->size % alignment != 0)
        put_int(f, 0, 1);
}

#endif
