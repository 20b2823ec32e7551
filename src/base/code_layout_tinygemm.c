/* SPDX-License-Identifier: Apache-2.0
 *
 * The layouts into which PyTorch packs int4 for the machine it runs on (aten's
 * _convert_weight_to_int4pack), as gpt-fast and torchao's WeightOnlyInt4Linear store them. Stored
 * codes are 0 to 15; reading subtracts 8. k is a multiple of 16 * tiles, n of 8 (CUDA) or 16.
 *
 *   CUDA   a word is what lane t of a warp gives to two products of 16 columns: row t / 4 of 8, and
 *          in each the columns 2 (t % 4) and 8 more, each with its odd neighbour
 *   ROCm   the same of 64 lanes: row t % 16 of 16, columns 4 (t / 16) to 4 (t / 16) + 3
 *   CPU    blocks of 64 (AVX-512) or 32 rows, column by column; byte d has rows d and d + half a
 *          block. The last block, if shorter, and every block without AVX2: rows 2d and 2d + 1
 *
 * In a CUDA or ROCm word, the low half holds the even columns, the high half the odd ones.
 */
#include "code_layout.h"

enum { TILE = 16, CUDA_LANES = 32, CUDA_ROWS = 8, ROCM_LANES = 64, ROCM_ROWS = 16 };

static int8_t centered(unsigned code) { return (int8_t)((int)(code & 15U) - 8); }

/* The code of `lane` and tile `inner` in the words of one row block and column group; pair: the
 * first or second pair of columns there. */
static int8_t word_code(const uint8_t *words, int64_t lane, int64_t tiles, int64_t inner,
                        int64_t pair, bool odd)
{
    uint32_t word;
    memcpy(&word, words + 4 * (lane * (tiles / 2) + inner / 2), sizeof word);
    return centered(word >> (4 * (pair + 2 * (inner % 2)) + (odd ? 16 : 0)));
}

void nib__tinygemm_cuda_codes(const nib_weight *w, int64_t row, int64_t k0, int64_t count,
                              int8_t *out)
{
    const int64_t tiles = w->inner_tiles, groups = w->stored_k / (TILE * tiles),
                  step = 4 * CUDA_LANES * (tiles / 2);
    const uint8_t *block = (const uint8_t *)w->codes + row / CUDA_ROWS * groups * step;
    for (int64_t j = 0; j < count; j++) {
        const int64_t k = k0 + j, tile = k / TILE, at = k % TILE / 2;
        out[j] = word_code(block + tile / tiles * step, row % CUDA_ROWS * 4 + at % 4, tiles,
                           tile % tiles, at / 4, k % 2 != 0);
    }
}

void nib__tinygemm_rocm_codes(const nib_weight *w, int64_t row, int64_t k0, int64_t count,
                              int8_t *out)
{
    const int64_t tiles = w->inner_tiles, groups = w->stored_k / (TILE * tiles),
                  step = 4 * ROCM_LANES * (tiles / 2);
    const uint8_t *block = (const uint8_t *)w->codes + row / ROCM_ROWS * groups * step;
    for (int64_t j = 0; j < count; j++) {
        const int64_t k = k0 + j, tile = k / TILE, at = k % TILE / 2;
        out[j] = word_code(block + tile / tiles * step, at / 2 * ROCM_ROWS + row % ROCM_ROWS, tiles,
                           tile % tiles, at % 2, k % 2 != 0);
    }
}

void nib__tinygemm_cpu_codes(const nib_weight *w, int64_t row, int64_t k0, int64_t count,
                             int8_t *out)
{
    const int64_t block = w->layout == NIB_LAYOUT_TINYGEMM_AVX512 ? 64 : 32,
                  first = row / block * block, rows = nib__min(block, w->stored_n - first),
                  in = row - first;
    const bool pairs = w->layout == NIB_LAYOUT_TINYGEMM_SCALAR || rows < block;
    const int64_t at = pairs ? in / 2 : in % (rows / 2);
    const int shift = (pairs ? in % 2 != 0 : in >= rows / 2) ? 4 : 0;
    const uint8_t *bytes = (const uint8_t *)w->codes + first * w->stored_k / 2 + at;
    for (int64_t j = 0; j < count; j++)
        out[j] = centered((unsigned)bytes[(k0 + j) * (rows / 2)] >> shift);
}

uint64_t nib__tinygemm_bytes(const nib_weight *w)
{
    return (uint64_t)w->stored_n * (uint64_t)w->stored_k / 2;
}
