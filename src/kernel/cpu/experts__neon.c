/* SPDX-License-Identifier: Apache-2.0
 *
 * Mixtures of experts for neon; experts_body.h and experts_dx_body.h are the code,
 * experts_rows.c is the table.
 */
#include "arm.h"

#if NIB_BUILT_ARM
#include "experts_rows.h"

#define NIB_LANES_NEON
#define NIB_EXPERTS(name) nib__experts_##name##__neon
#include "experts_body.h"
#include "experts_dx_body.h"
#endif
