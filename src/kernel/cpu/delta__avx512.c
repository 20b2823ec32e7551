/* SPDX-License-Identifier: Apache-2.0
 *
 * The gated delta rule for avx512; delta_body.h is the code, delta_rows.c the table.
 */
#include "x86.h"

#if NIB_BUILT_X86
#include "delta_rows.h"

#define NIB_DELTA(name) nib__delta_##name##__avx512
#include "delta_body.h"
#endif
