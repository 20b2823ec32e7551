/* SPDX-License-Identifier: Apache-2.0
 *
 * The gradients of recurrences for avx2; recurrence_dx_body.h is the code,
 * recurrence_dx_rows.c the table.
 */
#include "x86.h"

#if NIB_BUILT_X86
#include "recurrence_dx_rows.h"

#define NIB_RECURRENCE_DX(name) nib__recurrence_dx_##name##__avx2
#include "recurrence_dx_body.h"
#endif
