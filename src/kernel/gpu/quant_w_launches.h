/* SPDX-License-Identifier: Apache-2.0
 *
 * Launches of quant_w.cl, shared by the OpenCL and CUDA rows.
 */
#ifndef NIB_QUANT_W_LAUNCHES_H
#define NIB_QUANT_W_LAUNCHES_H

#include "launch.h"

int nib__launch_quant_w(const void *args, nib_launch out[]);

#endif
