/* SPDX-License-Identifier: Apache-2.0
 *
 * Launches of the functions of cast.cl, which rows of OpenCL and of CUDA share:
 * nib_gpu_code.launches of what makes training's operands (ocl_train.c).
 */
#ifndef NIB_CAST_LAUNCHES_H
#define NIB_CAST_LAUNCHES_H

#include "launch.h"

int nib__launch_cast(const void *args, nib_launch out[]);
int nib__launch_cast_t(const void *args, nib_launch out[]);
int nib__launch_quant_t_f32(const void *args, nib_launch out[]);
int nib__launch_quant_t_bf16(const void *args, nib_launch out[]);
int nib__launch_quant_t_e4m3t(const void *args, nib_launch out[]);
int nib__launch_quant_t_mx8(const void *args, nib_launch out[]);
int nib__launch_amax(const void *args, nib_launch out[]);

#endif
