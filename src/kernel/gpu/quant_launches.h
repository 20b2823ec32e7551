/* SPDX-License-Identifier: Apache-2.0
 *
 * Launches of quant.cl, shared by the OpenCL and CUDA rows: nib_gpu_code.launches for each form of
 * activations (ocl_quant.c).
 */
#ifndef NIB_QUANT_LAUNCHES_H
#define NIB_QUANT_LAUNCHES_H

#include "launch.h"

int nib__launch_quant_a8b32(const void *args, nib_launch out[]);
int nib__launch_quant_a8b256(const void *args, nib_launch out[]);
int nib__launch_quant_mx8(const void *args, nib_launch out[]);
int nib__launch_quant_mx4(const void *args, nib_launch out[]);
int nib__launch_quant_bf16(const void *args, nib_launch out[]);
int nib__launch_quant_f16(const void *args, nib_launch out[]);
int nib__launch_quant_f32(const void *args, nib_launch out[]);

/* Forms that need a token as a whole: one work-group of `items`, a power of two, per token. */
int nib__launch_quant_a8t(const nib_quant *a, nib_launch out[], int items);
int nib__launch_quant_a8s(const nib_quant *a, nib_launch out[], int items);
int nib__launch_quant_a4t(const nib_quant *a, nib_launch out[], int items);
int nib__launch_quant_e4m3t(const nib_quant *a, nib_launch out[], int items);
int nib__launch_quant_nv4(const nib_quant *a, nib_launch out[], int items);

#endif
