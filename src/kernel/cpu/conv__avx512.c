/* SPDX-License-Identifier: Apache-2.0
 *
 * Short convolutions for avx512; conv_body.h is the code, conv_rows.c the table.
 */
#include "x86.h"

#if NIB_BUILT_X86
#include "conv_rows.h"

#define NIB_CONV(name) nib__conv_##name##__avx512
#include "conv_body.h"
#endif
