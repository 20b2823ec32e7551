/* SPDX-License-Identifier: Apache-2.0
 *
 * Mixtures of experts for avx512; experts_body.h and experts_dx_body.h are the code,
 * experts_rows.c is the table.
 */
#include "x86.h"

#if NIB_BUILT_X86
#include "experts_rows.h"

#define NIB_EXPERTS(name) nib__experts_##name##__avx512
#include "experts_body.h"
#include "experts_dx_body.h"
#endif
