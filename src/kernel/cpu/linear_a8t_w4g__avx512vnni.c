/* SPDX-License-Identifier: Apache-2.0
 *
 * Linear rows with integer activations and int4 or MXFP4 weights, AVX-512 VNNI: see
 * linear_int_vnni.h.
 */
#include "linear_int.h"

#if NIB_BUILT_X86
#include "linear_int_vnni.h"

void nib__linear_w4_avx512vnni(const nib_linear *a, int64_t n0, int64_t n1, void *scratch)
{
    run_linear(a, n0, n1, scratch, 4);
}

void nib__linear_w4_blocks_avx512vnni(const nib_linear *a, int64_t n0, int64_t n1, void *scratch)
{
    run_blocks(a, n0, n1, scratch, 4, DECODE_BLOCKS);
}

void nib__linear_mx4_blocks_avx512vnni(const nib_linear *a, int64_t n0, int64_t n1, void *scratch)
{
    run_blocks(a, n0, n1, scratch, 4, DECODE_BLOCKS_E2M1);
}

#endif
