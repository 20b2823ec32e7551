/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention for neon; attn_body.h is the code, attn_rows.c the table.
 */
#include "arm.h"

#if NIB_BUILT_ARM
#include "token_rows.h"

#define NIB_LANES_NEON
#define NIB_ATTN nib__attn__neon
#define NIB_ATTN_REGISTERS 16
#include "attn_body.h"
#endif
