/* SPDX-License-Identifier: Apache-2.0
 *
 * Launches of experts.cl, shared by the OpenCL and CUDA rows: nib_gpu_code.launches for each
 * operation (ocl_experts.c).
 */
#ifndef NIB_EXPERTS_LAUNCHES_H
#define NIB_EXPERTS_LAUNCHES_H

#include "launch.h"

int nib__launch_route(const void *args, nib_launch out[]);
int nib__launch_sort(const void *args, nib_launch out[]);
int nib__launch_dispatch(const void *args, nib_launch out[]);
int nib__launch_combine(const void *args, nib_launch out[]);

#endif
