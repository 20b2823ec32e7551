/* SPDX-License-Identifier: Apache-2.0
 *
 * Linear rows with integer activations and int8 or Q6_K weights, AVX2: see linear_int_avx2_run.h.
 */
#include "linear_int.h"

#if NIB_BUILT_X86
#include "linear_int_avx2_run.h"

static NIB_NOINLINE void plain8(const int_block *b, const uint8_t *panel, int64_t n)
{
    run_panel(b, panel, n, true, TILE_PLAIN, 8);
}

static NIB_NOINLINE void part8(const int_block *b, const uint8_t *panel, int64_t n)
{
    run_panel(b, panel, n, false, TILE_PLAIN, 8);
}

static NIB_NOINLINE void pair8(const int_block *b, const uint8_t *panel, int64_t n)
{
    run_panel(b, panel, n, true, TILE_PAIR, 8);
}

static NIB_NOINLINE void wide8(const int_block *b, const uint8_t *panel, int64_t n)
{
    run_panel(b, panel, n, false, TILE_WIDE, 8);
}

static NIB_NOINLINE void blocks8(const int_block *b, const uint8_t *panel, int64_t n)
{
    run_panel(b, panel, n, true, TILE_BLOCKS, 8);
}

static NIB_NOINLINE void half8(const int_block *b, const uint8_t *panel, int64_t n)
{
    run_panel(b, panel, n, true, TILE_BLOCKS_HALF, 8);
}

static NIB_NOINLINE void half6(const int_block *b, const uint8_t *panel, int64_t n)
{
    run_panel(b, panel, n, true, TILE_BLOCKS_HALF, 6);
}

static const code_runs runs8 = {plain8, part8, pair8, wide8, blocks8, half8};
static const code_runs runs6 = {.half = half6};

void nib__linear_w8_avx2(const nib_linear *a, int64_t n0, int64_t n1, void *scratch)
{
    run_linear(a, n0, n1, scratch, 8, &runs8);
}

void nib__linear_w8_blocks_avx2(const nib_linear *a, int64_t n0, int64_t n1, void *scratch)
{
    run_blocks(a, n0, n1, scratch, 8, &runs8);
}

void nib__linear_w6_blocks_avx2(const nib_linear *a, int64_t n0, int64_t n1, void *scratch)
{
    run_blocks(a, n0, n1, scratch, 6, &runs6);
}

#endif
