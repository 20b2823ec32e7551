/* SPDX-License-Identifier: Apache-2.0
 *
 * Route and combine for avx512; experts_body.h is the code, experts_rows.c the table.
 */
#include "x86.h"

#if NIB_BUILT_X86
#include "experts_rows.h"

#define NIB_EXPERTS(name) nib__experts_##name##__avx512
#include "experts_body.h"
#endif
