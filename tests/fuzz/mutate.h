/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by the mutators that know a format (mutate_*.h): dice, pieces of the input, and the file
 * that is written. A mutator takes a file apart, edits one or two things, and writes it again with
 * lengths, counts and offsets that fit; with some dice one of them is wrong on purpose.
 */
#ifndef NIB_TESTS_MUTATE_H
#define NIB_TESTS_MUTATE_H

#include "text.h"

#include <stdlib.h>

size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t most); /* of libFuzzer */
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t most, unsigned seed);

/* A view of bytes of the input, or of a constant. */
typedef struct piece {
    const uint8_t *at;
    size_t size;
} piece;

static inline piece piece_of(const char *text)
{
    return (piece){(const uint8_t *)text, strlen(text)};
}

static inline bool piece_is(piece p, const char *text)
{
    return p.size == strlen(text) && memcmp(p.at, text, p.size) == 0;
}

static inline bool piece_ends(piece p, const char *text)
{
    const size_t size = strlen(text);
    return p.size >= size && memcmp(p.at + p.size - size, text, size) == 0;
}

static inline size_t smaller(uint64_t a, size_t b) { return a < b ? (size_t)a : b; }

/* What is written; `full`: it did not fit. Edited pieces are kept behind `edits`. */
typedef struct mutant {
    uint64_t dice;
    uint8_t *out, *edits;
    size_t size, most, edits_left;
    bool full;
} mutant;

/* A number below n. */
static inline size_t roll(mutant *m, size_t n)
{
    m->dice = m->dice * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (size_t)((m->dice >> 33) % n);
}

static inline void mutant_init(mutant *m, size_t most, unsigned seed)
{
    *m = (mutant){.dice = seed, .most = most, .edits_left = 4 * most};
    m->out = malloc(most);
    m->edits = malloc(m->edits_left);
    if (m->out == NULL || m->edits == NULL)
        abort();
    (void)roll(m, 2);
}

static inline void put_piece(mutant *m, const void *bytes, size_t size)
{
    m->full = m->full || size > m->most - m->size;
    if (m->full || size == 0)
        return;
    memcpy(m->out + m->size, bytes, size);
    m->size += size;
}

static inline void put_zeros(mutant *m, size_t size)
{
    m->full = m->full || size > m->most - m->size;
    if (m->full)
        return;
    memset(m->out + m->size, 0, size);
    m->size += size;
}

static inline void put_string(mutant *m, const char *text) { put_piece(m, text, strlen(text)); }

/* The low `bytes` bytes of value, little-endian. */
static inline void put_number(mutant *m, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++) {
        const uint8_t byte = (uint8_t)(value >> 8 * i);
        put_piece(m, &byte, 1);
    }
}

static inline uint64_t number_at(const uint8_t *at, int bytes)
{
    uint64_t value = 0;
    while (bytes-- > 0)
        value = value << 8 | at[bytes];
    return value;
}

/* The piece with bytes changed as libFuzzer does, at most 64 more. */
static inline piece scramble(mutant *m, piece p)
{
    uint8_t *at = m->edits;
    if (p.size + 64 > m->edits_left)
        return p;
    if (p.size > 0)
        memcpy(at, p.at, p.size);
    const size_t size = LLVMFuzzerMutate(at, p.size, p.size + 64);
    m->edits += size;
    m->edits_left -= size;
    return (piece){at, size};
}

/* a and b as one piece. */
static inline piece join_pieces(mutant *m, piece a, piece b)
{
    uint8_t *at = m->edits;
    if (a.size + b.size > m->edits_left)
        return a;
    memcpy(at, a.at, a.size);
    memcpy(at + a.size, b.at, b.size);
    m->edits += a.size + b.size;
    m->edits_left -= a.size + b.size;
    return (piece){at, a.size + b.size};
}

/* A size near `value`, or at an edge of a type. */
static inline uint64_t roll_number(mutant *m, uint64_t value)
{
    static const uint64_t edges[] = {
        0,   1,        2,         7,          16,        32,         64,         255,
        256, 1u << 20, INT32_MAX, UINT32_MAX, INT64_MAX, UINT64_MAX, UINT64_MAX, 1ull << 62};
    switch (roll(m, 4)) {
    case 0: return value + 1;
    case 1: return value - 1;
    case 2: return 2 * value;
    default: return edges[roll(m, COUNT(edges))];
    }
}

/* Suffixes of tensors in the dialects. */
static inline piece roll_suffix(mutant *m)
{
    static const char *const suffixes[] = {".weight",
                                           ".bias",
                                           ".qweight",
                                           ".qzeros",
                                           ".scales",
                                           ".g_idx",
                                           ".weight_packed",
                                           ".weight_scale",
                                           ".weight_shape",
                                           ".weight_scale_2",
                                           ".weight_zero_point",
                                           ".weight_scale_inv",
                                           ".zeros",
                                           ".scales_and_zeros",
                                           ".weight_g_idx",
                                           ".weight_qdata",
                                           ".weight_scales",
                                           ".weight_blocks",
                                           ".input_scale",
                                           ".weight_tensor_data"};
    return piece_of(suffixes[roll(m, COUNT(suffixes))]);
}

/* The name with another last part: "a.weight" becomes "a.bias". */
static inline piece roll_name(mutant *m, piece name)
{
    size_t stem = name.size;
    while (stem > 0 && name.at[stem - 1] != '.')
        stem--;
    return join_pieces(m, (piece){name.at, stem > 0 ? stem - 1 : name.size}, roll_suffix(m));
}

/* Replaces the input by what was written, if it fits; else changes bytes. */
static inline size_t mutant_done(mutant *m, uint8_t *data, size_t size, size_t most, uint8_t *edits)
{
    const bool written = !m->full && m->size > 0;
    if (written)
        memcpy(data, m->out, m->size);
    const size_t made = written ? m->size : LLVMFuzzerMutate(data, size, most);
    free(m->out);
    free(edits);
    return made;
}

#endif
