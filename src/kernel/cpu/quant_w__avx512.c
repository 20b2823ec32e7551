/* SPDX-License-Identifier: Apache-2.0
 *
 * Quantizes weights, compiled for AVX-512: see quant_w_body.h.
 */
#include "x86.h"

#if NIB_BUILT_X86
#define NIB_QUANT_W nib__quant_w__avx512
#define NIB_QUANT_SWEEP nib__quant_sweep__avx512
#include "quant_w_body.h"
#endif
