/* SPDX-License-Identifier: Apache-2.0
 *
 * The gradients of attention for avx512; attn_dx_body.h is the code, attn_dx_rows.c the table.
 */
#include "x86.h"

#if NIB_BUILT_X86
#include "attn_dx_rows.h"

#define NIB_ATTN_DX nib__attn_dx__avx512
#define NIB_ATTN_DX_WIDE 1
#include "attn_dx_body.h"
#endif
