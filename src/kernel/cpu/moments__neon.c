/* SPDX-License-Identifier: Apache-2.0
 *
 * Second moments of inputs, compiled for NEON: see moments_body.h.
 */
#include "arm.h"

#if NIB_BUILT_ARM
#define NIB_LANES_NEON
#define NIB_MOMENTS nib__moments__neon
#include "moments_body.h"
#endif
