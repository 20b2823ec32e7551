/* SPDX-License-Identifier: Apache-2.0
 *
 * Second moments of inputs in plain C, and the choice among instruction sets.
 */
#define NIB_MOMENTS nib__moments__ref
#include "moments_body.h"
#include "arm.h"
#include "fact.h"
#include "x86.h"

const nib_moments_rows *nib__moments_best(int64_t isa)
{
#if NIB_BUILT_X86
    if (isa & NIB_ISA_AVX512)
        return &nib__moments__avx512;
    if (isa & NIB_ISA_AVX2)
        return &nib__moments__avx2;
#elif NIB_BUILT_ARM
    if (isa & NIB_ISA_NEON)
        return &nib__moments__neon;
#endif
    (void)isa;
    return &nib__moments__ref;
}
