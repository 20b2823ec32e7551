/* SPDX-License-Identifier: Apache-2.0
 *
 * The state-space recurrence for neon; ssm_body.h is the code, ssm_rows.c the table.
 */
#include "arm.h"

#if NIB_BUILT_ARM
#include "ssm_rows.h"

#define NIB_LANES_NEON
#define NIB_SSM(name) nib__ssm_##name##__neon
#include "ssm_body.h"
#endif
