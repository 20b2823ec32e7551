/* SPDX-License-Identifier: Apache-2.0
 *
 * OpenCL rows for devices with more than OpenCL 1.2: sub-groups (cl_khr_subgroups,
 * cl_intel_subgroups), integer dot products (cl_khr_integer_dot_product, or AMD's instruction),
 * half precision (cl_khr_fp16). Their launches are those of the 1.2 rows with one more compiler
 * option.
 */
#include "gpu_pack.h"
#include "ocl_linear.h"
#include "sources.h"
#include "token_launches.h"

#include "kernel.h"

/* ---- launches ---- */

static int add_option(nib_launch out[], int count, const char *option)
{
    nib__launch_option(out, "%s", option);
    return count;
}

static int launch_linear_sg(const void *args, nib_launch out[])
{
    const int count = nib__ocl_linear(args, out);
    return nib__ocl_is_tile(out) ? count : add_option(out, count, " -DSUBGROUPS");
}
static int launch_linear_dot8(const void *args, nib_launch out[])
{
    return add_option(out, nib__ocl_linear(args, out), " -DDOT8");
}
static int launch_linear_f16(const void *args, nib_launch out[])
{
    const int count = nib__ocl_linear(args, out);
    return nib__ocl_is_tile(out) ? add_option(out, count, " -DHALVES") : count;
}
static int launch_norm_sg(const void *args, nib_launch out[])
{
    return add_option(out, nib__launch_norm(args, out, NIB_OCL_GROUP), " -DSUBGROUPS");
}
static int launch_attention_sg(const void *args, nib_launch out[])
{
    return add_option(out, nib__ocl_attention(args, out), " -DSUBGROUPS");
}

/* ---- rows ---- */

#define SUBGROUPS NIB_IS(SUBGROUPS, 1, "they sum a work-group's values")
static const nib_cond subgroups[] = {SUBGROUPS, NIB_COND_END};
static const nib_cond attends[] = {SUBGROUPS, NIB_FLOAT_CACHE, NIB_NO_LATENT, NIB_COND_END};
static const nib_cond dot8[] = {
    NIB_IS(DOT8, 1, "it multiplies four pairs of 8-bit codes at a time"),
    NIB_COND_END,
};
static const nib_cond fp16[] = {
    NIB_IS(FP16, 1, "it stores tiles in half precision"),
    NIB_COND_END,
};

#define ROW(name_, target, op_, code_, act_, input_, conds_, rank_, unit_, packing_, file,         \
            function, words)                                                                       \
    {                                                                                              \
        .name = name_ "__" target, .op = NIB_OP_##op_, .code = code_, .act = act_,                 \
        .input = input_, .device = NIB_DEVICE_OPENCL, .conds = conds_,                             \
        .arithmetic = NIB_ARITHMETIC_OTHER, .reference = name_ "__ref", .rank = rank_,             \
        .unit = NIB_UNIT_##unit_, .n_step = 1, .grouped = NIB_OP_##op_ == NIB_OP_LINEAR,           \
        .packing = packing_, .gpu = &(const nib_gpu_code){&nib__source_##file, function},          \
        .note = words                                                                              \
    }
#define TOKEN(name, op, conds, file, function, words)                                              \
    ROW(name, "ocl_sg", op, NIB_ANY, NIB_ANY, NIB_ANY, conds, 38, F32, NULL, file, function, words)
#define LINEAR(types, code, act, input, target, conds, rank, unit, function, words)                \
    ROW("linear_" types "_f32", target, LINEAR, NIB_CODE_##code, NIB_ACT_##act, input, conds,      \
        rank, unit, &nib__packing_rows, linear, function, words)
#define SUMS(types, code, act, input)                                                              \
    LINEAR(types, code, act, input, "ocl_sg", subgroups, 38, F32, launch_linear_sg,                \
           "few tokens: sums by sub-groups"),
#define INTEGERS(types, code, act, input)                                                          \
    SUMS(types, code, act, input)                                                                  \
    LINEAR(types, code, act, input, "ocl_dot8", dot8, 36, DOT8, launch_linear_dot8,                \
           "dot products of four 8-bit codes"),

static const nib_kernel rows[] = {
    TOKEN("norm_f32", NORM, subgroups, token, launch_norm_sg, "sums by sub-groups"),
    TOKEN("attn_f32", ATTN, attends, attention, launch_attention_sg,
          "few tokens: sums by sub-groups"),
    /* clang-format off */
    NIB_OCL_FLOATS(SUMS)
    NIB_OCL_INTEGERS(INTEGERS)
    NIB_OCL_SMALL_FLOATS(SUMS)
    /* clang-format on */
    LINEAR("f16_f16", F16, FLOAT, NIB_TYPE_F16, "ocl_f16", fp16, 37, F32, launch_linear_f16,
           "many tokens: tiles in half precision, sums in f32"),
};

const nib_family nib__family_ocl_extensions = {rows, COUNT(rows)};
