/* SPDX-License-Identifier: Apache-2.0
 *
 * Linear rows with integer activations and int8 or Q6_K weights, AVX-512 VNNI: see
 * linear_int_vnni.h.
 */
#include "linear_int.h"

#if NIB_BUILT_X86
#include "linear_int_vnni.h"

void nib__linear_w8_avx512vnni(const nib_linear *a, int64_t n0, int64_t n1, void *scratch)
{
    run_linear(a, n0, n1, scratch, 8);
}

void nib__linear_w8_blocks_avx512vnni(const nib_linear *a, int64_t n0, int64_t n1, void *scratch)
{
    run_blocks(a, n0, n1, scratch, 8, DECODE_BLOCKS);
}

void nib__linear_w6_blocks_avx512vnni(const nib_linear *a, int64_t n0, int64_t n1, void *scratch)
{
    run_blocks(a, n0, n1, scratch, 6, DECODE_BLOCKS_HALF);
}

#endif
