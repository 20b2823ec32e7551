/* SPDX-License-Identifier: Apache-2.0
 *
 * Activation quantizers compiled for AVX-512: see quant_body.h.
 */
#include "x86.h"

#if NIB_BUILT_X86
#define NIB_QUANT(name) nib__quant_##name##__avx512
#include "norm_quant_body.h"
#endif
