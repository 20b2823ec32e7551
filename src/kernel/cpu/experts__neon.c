/* SPDX-License-Identifier: Apache-2.0
 *
 * Route and combine for neon; experts_body.h is the code, experts_rows.c the table.
 */
#include "arm.h"

#if NIB_BUILT_ARM
#include "experts_rows.h"

#define NIB_LANES_NEON
#define NIB_EXPERTS(name) nib__experts_##name##__neon
#include "experts_body.h"
#endif
