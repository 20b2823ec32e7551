/* SPDX-License-Identifier: Apache-2.0
 *
 * The gated delta rule for neon; delta_body.h is the code, delta_rows.c the table.
 */
#include "arm.h"

#if NIB_BUILT_ARM
#include "delta_rows.h"

#define NIB_LANES_NEON
#define NIB_DELTA(name) nib__delta_##name##__neon
#include "delta_body.h"
#endif
