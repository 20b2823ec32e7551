/* SPDX-License-Identifier: Apache-2.0
 *
 * The token rows for avx2; token_body.h is the code, token_rows.c the table.
 */
#include "x86.h"

#if NIB_BUILT_X86
#include "token_rows.h"

#define NIB_TOKEN(name) nib__token_##name##__avx2
#include "token_body.h"
#endif
