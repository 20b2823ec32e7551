/* SPDX-License-Identifier: Apache-2.0
 *
 * Second moments of inputs, compiled for AVX-512: see moments_body.h.
 */
#include "x86.h"

#if NIB_BUILT_X86
#define NIB_MOMENTS nib__moments__avx512
#include "moments_body.h"
#endif
