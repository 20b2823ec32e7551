/* SPDX-License-Identifier: Apache-2.0
 *
 * The training rows for avx512; train_body.h is the code, train_rows.c the table.
 */
#include "x86.h"

#if NIB_BUILT_X86
#include "train_rows.h"

#define NIB_TRAIN(name) nib__train_##name##__avx512
#include "train_body.h"
#endif
