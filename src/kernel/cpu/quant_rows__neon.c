/* SPDX-License-Identifier: Apache-2.0
 *
 * Activation quantizers compiled for NEON: see quant_body.h.
 */
#include "arm.h"

#if NIB_BUILT_ARM
#define NIB_QUANT(name) nib__quant_##name##__neon
#include "norm_quant_body.h"
#endif
