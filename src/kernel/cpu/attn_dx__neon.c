/* SPDX-License-Identifier: Apache-2.0
 *
 * Gradients of attention for neon; attn_dx_body.h is the code, attn_dx_rows.c the table.
 */
#include "arm.h"

#if NIB_BUILT_ARM
#include "attn_dx_rows.h"

#define NIB_LANES_NEON
#define NIB_ATTN_DX nib__attn_dx__neon
#define NIB_ATTN_DX_WIDE 0
#include "attn_dx_body.h"
#endif
