/* SPDX-License-Identifier: Apache-2.0
 *
 * Quantizes weights, compiled for NEON: see quant_w_body.h.
 */
#include "arm.h"

#if NIB_BUILT_ARM
#define NIB_LANES_NEON
#define NIB_QUANT_W nib__quant_w__neon
#define NIB_QUANT_SWEEP nib__quant_sweep__neon
#include "quant_w_body.h"
#endif
