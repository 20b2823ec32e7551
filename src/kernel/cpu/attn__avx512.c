/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention for avx512; attn_body.h is the code, attn_rows.c the table.
 */
#include "x86.h"

#if NIB_BUILT_X86
#include "token_rows.h"

#define NIB_ATTN nib__attn__avx512
#define NIB_ATTN_REGISTERS 32
#include "attn_body.h"
#endif
