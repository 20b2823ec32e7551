/* SPDX-License-Identifier: Apache-2.0
 *
 * Short convolutions for neon; conv_body.h is the code, conv_rows.c the table.
 */
#include "arm.h"

#if NIB_BUILT_ARM
#include "conv_rows.h"

#define NIB_LANES_NEON
#define NIB_CONV(name) nib__conv_##name##__neon
#include "conv_body.h"
#endif
