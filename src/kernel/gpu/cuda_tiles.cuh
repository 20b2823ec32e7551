/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by products for many tokens (tile.cu, wgmma.cu, tcgen05.cu): the tile of a block, and
 * tiles in shared memory, of TILE rows of ROW bytes, copied by THREADS threads. The 16-byte parts
 * of a row are swizzled: the index of a part is XORed with that of its row (of 128 bytes), so that
 * eight rows are read without bank conflicts.
 */
#ifndef NIB_CUDA_TILES_CUH
#define NIB_CUDA_TILES_CUH

#include "cuda_wide.cuh"

#define BAND 16 /* tiles of tokens that run together, so that x stays in the L2 cache */
#define TURNED(row, part) ((part) ^ ((row)*ROW / 128 & (ROW / 16 - 1)))

/* The first token and the first output of the block's tile. */
static inline int2 tile_here(int m, int n)
{
    const int token_tiles = (m + TILE - 1) / TILE, row_tiles = (n + TILE - 1) / TILE;
    const int in_band = BAND * row_tiles, band = (int)blockIdx.x / in_band * BAND;
    const int height = min(token_tiles - band, BAND), place = (int)blockIdx.x % in_band;
    return make_int2((band + place % height) * TILE, place / height * TILE);
}

/* Defines token0 and row0 of the block's tile. */
#ifndef EXPERTS
#define TILE_HERE                                                                                  \
    const int2 corner = tile_here(m, n);                                                           \
    const int token0 = corner.x, row0 = corner.y
#else
#define TILE_HERE                                                                                  \
    const int row_tiles = (n + TILE - 1) / TILE, row0 = (int)blockIdx.x % row_tiles * TILE;        \
    TOKENS_OF_MANY((int)blockIdx.x / row_tiles, TILE)
#endif

/* A thread's share of copying a tile: the same 16-byte part of its first row and of every row that
 * is a multiple of the block's rows per pass further. */
typedef struct copies {
    const uchar *from;
    size_t further; /* bytes from one of its rows to the next */
    int to, rows;   /* offset in the tile; rows that exist from its first row on */
} copies;

template <int BYTES>
static __forceinline__ copies copies_of(const uchar *from, size_t stride, int first, int rows)
{
    const int parts = BYTES / 16, row = (int)threadIdx.x / parts, part = (int)threadIdx.x % parts;
    copies c;
    c.from = from + (size_t)(first + row) * stride + (size_t)part * 16;
    c.further = stride * (size_t)(THREADS / parts);
    c.to = row * BYTES + (BYTES == ROW ? TURNED(row, part) : part) * 16;
    c.rows = rows - first - row;
    return c;
}

/* Copies a step from byte `at` of the rows on; zeros past the last row and past byte `end`. */
template <int BYTES>
static __forceinline__ void fetch(uchar *tile, const copies *c, int at, int end)
{
    const int parts = BYTES / 16;
    const uchar *from = c->from + at;
    const bool is_there = at + (int)threadIdx.x % parts * 16 < end;
#pragma unroll
    for (int i = 0; i < TILE * parts / THREADS; i++) {
        copy_async(tile + c->to + i * THREADS * 16, from,
                   is_there && i * (THREADS / parts) < c->rows);
        from += c->further;
    }
}

/* The same for rows not aligned to 16 bytes: f32 activations that no quantizer wrote. */
template <int BYTES>
static __forceinline__ void fetch_words(uchar *tile, const copies *c, int at, int end)
{
    const int parts = BYTES / 16, part = (int)threadIdx.x % parts;
    for (int i = 0; i < TILE * parts / THREADS; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
            copy_async_word(tile + c->to + i * THREADS * 16 + 4 * j,
                            c->from + at + (size_t)i * c->further + 4 * j,
                            at + part * 16 + 4 * j < end && i * (THREADS / parts) < c->rows);
}

static inline const uchar *part_of(const uchar *tile, int row, int part)
{
    return tile + row * ROW + TURNED(row, part) * 16;
}

static inline void put_words(uchar *tile, int row, int part, const uint words[4])
{
    *(uint4 *)(tile + row * ROW + TURNED(row, part) * 16) =
        make_uint4(words[0], words[1], words[2], words[3]);
}

static inline void get_words(const uchar *from, uint words[4])
{
    const uint4 four = *(const uint4 *)from;
    words[0] = four.x, words[1] = four.y, words[2] = four.z, words[3] = four.w;
}

#if ROW == 128 && (X == INPUT_WIDE_E4M3 || X == INPUT_WIDE_E5M2)

/* A step of x that is narrowed to f8: each thread copies the 2 x 16 bytes that it narrows to a
 * place that no other thread reads, so it waits for no other thread. */
#define RAW_PAIRS (TILE * 2 * ROW)
#define PAIRS_EACH (TILE * ROW / 16 / THREADS)

static __forceinline__ copies pairs_of(const uchar *from, size_t stride, int first, int rows)
{
    const int row = (int)threadIdx.x / 8, part = (int)threadIdx.x % 8;
    copies c;
    c.from = from + (size_t)(first + row) * stride + (size_t)part * 32;
    c.further = stride * (size_t)(THREADS / 8);
    c.to = (int)threadIdx.x * 16;
    c.rows = rows - first - row;
    return c;
}

static __forceinline__ void fetch_pairs(uchar *raw, const copies *c, int at, int end)
{
    const uchar *from = c->from + at;
    const bool is_there = at + (int)threadIdx.x % 8 * 32 < end;
#pragma unroll
    for (int i = 0; i < PAIRS_EACH; i++) {
        const bool valid = is_there && i * (THREADS / 8) < c->rows;
        copy_async(raw + c->to + 2 * i * THREADS * 16, from, valid);
        copy_async(raw + c->to + (2 * i + 1) * THREADS * 16, from + 16, valid);
        from += c->further;
    }
}

static __forceinline__ void narrow_pairs(uchar *tile, const uchar *raw, const copies *c)
{
#pragma unroll
    for (int i = 0; i < PAIRS_EACH; i++) {
        const uchar *own = raw + c->to + 2 * i * THREADS * 16;
        uint out[4];
        narrow_f8(own, own + THREADS * 16, out);
        put_words(tile, (int)threadIdx.x / 8 + i * (THREADS / 8), (int)threadIdx.x % 8, out);
    }
}

#endif

#endif
