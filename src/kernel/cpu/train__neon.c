/* SPDX-License-Identifier: Apache-2.0
 *
 * The training rows for neon; train_body.h is the code, train_rows.c the table.
 */
#include "arm.h"

#if NIB_BUILT_ARM
#include "train_rows.h"

#define NIB_LANES_NEON
#define NIB_TRAIN(name) nib__train_##name##__neon
#include "train_body.h"
#endif
