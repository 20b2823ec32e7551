/* SPDX-License-Identifier: Apache-2.0
 *
 * The gradients of recurrences for neon; recurrence_dx_body.h is the code,
 * recurrence_dx_rows.c the table.
 */
#include "arm.h"

#if NIB_BUILT_ARM
#include "recurrence_dx_rows.h"

#define NIB_LANES_NEON
#define NIB_RECURRENCE_DX(name) nib__recurrence_dx_##name##__neon
#include "recurrence_dx_body.h"
#endif
