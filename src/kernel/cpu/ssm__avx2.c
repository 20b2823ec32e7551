/* SPDX-License-Identifier: Apache-2.0
 *
 * The state-space recurrence for avx2; ssm_body.h is the code, ssm_rows.c the table.
 */
#include "x86.h"

#if NIB_BUILT_X86
#include "ssm_rows.h"

#define NIB_SSM(name) nib__ssm_##name##__avx2
#include "ssm_body.h"
#endif
