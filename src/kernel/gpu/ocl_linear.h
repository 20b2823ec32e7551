/* SPDX-License-Identifier: Apache-2.0
 *
 * The launches of linear.cl, to which rows of devices with more than OpenCL 1.2 add options.
 */
#ifndef NIB_OCL_LINEAR_H
#define NIB_OCL_LINEAR_H

#include "launch.h"

/* k that a work-group takes at a time where there are many tokens. */
enum { NIB_OCL_STEP = 32 };

/* nib_gpu_code.launches of any linear product: "matvec" of few tokens or "tile" of many. */
int nib__ocl_linear(const void *args, nib_launch out[]);
/* Whether the tokens are many. */
bool nib__ocl_is_tile(const nib_launch *launch);
/* Whether each step lies in one group of the weight. */
bool nib__ocl_steps_whole(const nib_weight *w);

#endif
