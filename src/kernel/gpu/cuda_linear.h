/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by the hosts of CUDA products (cuda_linear.c, cuda_few.c).
 */
#ifndef NIB_CUDA_LINEAR_H
#define NIB_CUDA_LINEAR_H

#include "gpu_args.h"

#include "kernel.h"

/* Conditions of rows on the matrix unit of sm_80. In the second, scales cover a multiple of 32
 * codes, or all of them. */
extern const nib_cond nib__cuda_mma[], nib__cuda_groups_of_32[];

/* Adds the arguments in the order of PRODUCT_ARGS (cuda_linear.cuh). */
void nib__cuda_product_args(nib_launch *out, const nib_linear *a, const nib_gpu_layout *l);

/* Codes that a matrix unit sums under one scale: 16, 32, or 0 for all of k, if the sums are floats
 * or cannot overflow 32-bit integers. input: nib__gpu_input_number(). */
int nib__cuda_group(const nib_linear *a, const nib_gpu_layout *l, int input);

#endif
