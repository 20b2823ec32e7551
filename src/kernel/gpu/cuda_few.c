/* SPDX-License-Identifier: Apache-2.0
 *
 * CUDA rows for linear products of few tokens on matrix units (few.cu). Other formats, and groups
 * that are not a multiple of 32, have matvec.cu (cuda_linear.c).
 */
#include "cuda_linear.h"
#include "cuda_programs.h"

#include "kernel.h"

enum { ROWS = 16, TOKENS = 8 /* of a block */, THREADS = 256 };

static int launch_few(const void *args, nib_launch out[])
{
    const nib_linear *a = args;
    const nib_gpu_layout l = nib__gpu_layout(a->w);
    const int input = nib__gpu_input_number(&a->x, a->w->scheme.act);
    const int group = nib__cuda_group(a, &l, input);
    nib__launch_init(out, "few",
                     nib__ceil_div(a->w->n, (int64_t)ROWS) * nib__gpu_token_tiles(a, TOKENS, true),
                     THREADS);
    nib__launch_option(out, "-DW=%d -DX=%d -DGROUPED=%d",
                       (int)nib__codes[a->w->scheme.code].element, input, group);
    if (group > 0)
        nib__launch_option(out, " -DZERO=%d", l.zero_type != NIB_TYPE_NONE);
    nib__cuda_product_args(out, a, &l);
    return 1;
}

static const nib_gpu_source source_few = {.name = "few.cu"};

/* m_best: with one token, matvec.cu was faster on an H100, except for int4 weights. */
#define LINEAR(types, code_, act_, input_, unit_, conds_, m_best_)                                 \
    {                                                                                              \
        .name = "linear_" types "_f32__sm80_16x8", .op = NIB_OP_LINEAR, .code = NIB_CODE_##code_,  \
        .act = NIB_ACT_##act_, .input = input_, .device = NIB_DEVICE_CUDA, .conds = conds_,        \
        .arithmetic = NIB_ARITHMETIC_OTHER, .reference = "linear_" types "_f32__ref", .rank = 33,  \
        .unit = NIB_UNIT_##unit_, .n_step = 1, .m_best = m_best_, .grouped = true,                 \
        .packing = &nib__packing_rows, .gpu = NIB_CUDA_CODE(&source_few, launch_few),              \
        .note = "tensor cores of sm_80 and later, for few tokens: reads a weight once per eight"   \
    }
#define BF16(word, code, conds, m_best)                                                            \
    LINEAR("bf16_" word, code, FLOAT, NIB_TYPE_BF16, BF16, conds, m_best)
#define I8(types, code, act) LINEAR(types, code, act, NIB_ANY, I8, nib__cuda_groups_of_32, 2)

static const nib_kernel rows[] = {
    BF16("bf16", BF16, nib__cuda_mma, 2),
    BF16("w8g", I8, nib__cuda_groups_of_32, 2),
    BF16("w4g", I4, nib__cuda_groups_of_32, 0),
    BF16("e4m3c", E4M3, nib__cuda_groups_of_32, 2),
    BF16("mx8", MX8, nib__cuda_mma, 2),
    BF16("mx4", MX4, nib__cuda_mma, 0),
    I8("a8t_w8g", I8, I8_TOKEN),
    I8("a8s_w8g", I8, I8_STATIC),
    I8("a4t_w8g", I8, I4_TOKEN),
    I8("a8t_w4g", I4, I8_TOKEN),
    I8("a8s_w4g", I4, I8_STATIC),
    I8("a4t_w4g", I4, I4_TOKEN),
    LINEAR("e4m3t_e4m3c", E4M3, E4M3_TOKEN, NIB_ANY, BF16, nib__cuda_groups_of_32, 2),
};

const nib_family nib__family_cuda_few = {rows, COUNT(rows)};
