/* SPDX-License-Identifier: Apache-2.0
 *
 * Launches of the functions of quant_w.cl, which rows of OpenCL and of CUDA share.
 */
#ifndef NIB_QUANT_W_LAUNCHES_H
#define NIB_QUANT_W_LAUNCHES_H

#include "launch.h"

int nib__launch_quant_w(const void *args, nib_launch out[]);

#endif
