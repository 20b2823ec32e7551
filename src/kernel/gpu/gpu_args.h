/* SPDX-License-Identifier: Apache-2.0
 *
 * What launches of linear products and look-ups tell a device's function, whatever the driver: the
 * numbers that prelude.cl has for codes and types, and a weight in the layout of gpu_pack.h.
 */
#ifndef NIB_GPU_ARGS_H
#define NIB_GPU_ARGS_H

#include "gpu_pack.h"
#include "launch.h"

/* INPUT_* of prelude.cl */
enum {
    NIB_INPUT_F32,
    NIB_INPUT_BF16,
    NIB_INPUT_I8,
    NIB_INPUT_E4M3,
    NIB_INPUT_F16,
    NIB_INPUT_WIDE_E4M3,
    NIB_INPUT_WIDE_E5M2
};

int nib__gpu_weight_number(nib_code code); /* WEIGHT_* */
int nib__gpu_value_number(nib_type type);  /* VALUE_* */
int nib__gpu_input_number(const nib_input *x, nib_act act);
const void *nib__gpu_input_values(const nib_input *x);

/* The addresses of codes, scales and zero points, NULL where there are none. */
void nib__gpu_weight_memory(nib_launch *out, const nib_gpu_rows *l, const void *packed);
/* What every value of the weight is multiplied with beside its scale. */
float nib__gpu_weight_factor(const nib_weight *w);

#endif
