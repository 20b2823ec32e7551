/* SPDX-License-Identifier: Apache-2.0
 *
 * The token rows for neon; token_body.h is the code, token_rows.c the table.
 */
#include "arm.h"

#if NIB_BUILT_ARM
#include "token_rows.h"

#define NIB_LANES_NEON
#define NIB_TOKEN(name) nib__token_##name##__neon
#include "token_body.h"
#endif
