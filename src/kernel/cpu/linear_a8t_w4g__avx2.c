/* SPDX-License-Identifier: Apache-2.0
 *
 * Linear rows with integer activations and int4 or MXFP4 weights, AVX2: see linear_int_avx2_run.h.
 */
#include "linear_int.h"

#if NIB_BUILT_X86
#include "linear_int_avx2_run.h"

static NIB_NOINLINE void plain4(const int_block *b, const uint8_t *panel, int64_t n)
{
    run_panel(b, panel, n, true, TILE_PLAIN, 4);
}

static NIB_NOINLINE void part4(const int_block *b, const uint8_t *panel, int64_t n)
{
    run_panel(b, panel, n, false, TILE_PLAIN, 4);
}

static NIB_NOINLINE void pair4(const int_block *b, const uint8_t *panel, int64_t n)
{
    run_panel(b, panel, n, true, TILE_PAIR, 4);
}

static NIB_NOINLINE void wide4(const int_block *b, const uint8_t *panel, int64_t n)
{
    run_panel(b, panel, n, false, TILE_WIDE, 4);
}

static NIB_NOINLINE void blocks4(const int_block *b, const uint8_t *panel, int64_t n)
{
    run_panel(b, panel, n, true, TILE_BLOCKS, 4);
}

static NIB_NOINLINE void half4(const int_block *b, const uint8_t *panel, int64_t n)
{
    run_panel(b, panel, n, true, TILE_BLOCKS_HALF, 4);
}

static NIB_NOINLINE void blocks_mx4(const int_block *b, const uint8_t *panel, int64_t n)
{
    run_panel(b, panel, n, true, TILE_BLOCKS_E2M1, 4);
}

static const code_runs runs = {plain4, part4, pair4, wide4, blocks4, half4};
static const code_runs runs_mx4 = {.blocks = blocks_mx4};

void nib__linear_w4_avx2(const nib_linear *a, int64_t n0, int64_t n1, void *scratch)
{
    run_linear(a, n0, n1, scratch, 4, &runs);
}

void nib__linear_w4_blocks_avx2(const nib_linear *a, int64_t n0, int64_t n1, void *scratch)
{
    run_blocks(a, n0, n1, scratch, 4, &runs);
}

void nib__linear_mx4_blocks_avx2(const nib_linear *a, int64_t n0, int64_t n1, void *scratch)
{
    run_blocks(a, n0, n1, scratch, 4, &runs_mx4);
}

#endif
