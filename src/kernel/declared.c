/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows for kernels that are not built yet, those of GPUs. They have no run, so the fact `built`
 * refuses them here, and a plan for a machine that is not here says `declared, not built`. Their
 * conditions are only what cannot be computed: tails of n and k, odd groups and biases are
 * computed.
 */
#include "kernel.h"

#define DECLARED(name_, op_, code_, act_, input_, device_, conds_, numbers_, ref, rank_, unit_,    \
                 note_)                                                                            \
    {                                                                                              \
        .name = name_, .op = NIB_OP_##op_, .code = code_, .act = act_, .input = input_,            \
        .device = NIB_DEVICE_##device_, .conds = conds_, .numbers = NIB_NUMBERS_##numbers_,        \
        .reference = ref, .rank = rank_, .unit = NIB_UNIT_##unit_, .n_step = 1, .note = note_      \
    }

#define CODE(c) NIB_CODE_##c
#define ACT(a) NIB_ACT_##a

/* ---- what a target asks ---- */

static const nib_cond sm90[] = {
    NIB_AT_LEAST(SM, 90, "its wgmma is of sm_90"),
    NIB_AT_MOST(SM, 99, "later devices have tcgen05 in its place"),
    NIB_IS(FP8_UNIT, 1, "it multiplies fp8"),
    NIB_COND_END,
};
static const nib_cond sm100[] = {
    NIB_AT_LEAST(SM, 100, "its tcgen05 is of sm_100"),
    NIB_IS(MX_UNIT, 1, "block scales enter the product"),
    NIB_COND_END,
};
static const nib_cond sm100_fp8[] = {
    NIB_AT_LEAST(SM, 100, "its tcgen05 is of sm_100"),
    NIB_IS(FP8_UNIT, 1, "it multiplies fp8"),
    NIB_COND_END,
};

#define BACKWARD_CUDA(op_, name_, types, target, code_, act_, input_, conds_, rank_, unit_)        \
    DECLARED(name_ types "_f32__" target, op_, code_, act_, input_, CUDA, conds_, OTHER,           \
             name_ types "_f32__ref", rank_, unit_,                                                \
             "tensor cores; short last blocks are padded in shared memory")

static const nib_kernel rows[] = {
    /* ---- linear on GPUs ---- */
    DECLARED("linear_e4m3t_e4m3c_f32__sm90", LINEAR, CODE(E4M3), ACT(E4M3_TOKEN), NIB_ANY, CUDA,
             sm90, OTHER, "linear_e4m3t_e4m3c_f32__ref", 20, FP8, "fp8 tensor cores"),
    DECLARED("linear_e4m3t_e4m3c_f32__sm100", LINEAR, CODE(E4M3), ACT(E4M3_TOKEN), NIB_ANY, CUDA,
             sm100_fp8, OTHER, "linear_e4m3t_e4m3c_f32__ref", 10, FP8, "fp8 tensor cores"),
    DECLARED("linear_mx8_mx8_f32__sm100", LINEAR, CODE(MX8), ACT(MX8), NIB_ANY, CUDA, sm100, OTHER,
             "linear_mx8_mx8_f32__ref", 10, MX8,
             "block-scaled tensor cores; tails are padded in shared memory"),

    /* ---- the backward products on GPUs ---- */
    BACKWARD_CUDA(LINEAR_DX, "linear_dx_", "e4m3t_e4m3c", "sm90", CODE(E4M3), ACT(E4M3_TOKEN),
                  NIB_ANY, sm90, 20, FP8),
    BACKWARD_CUDA(LINEAR_DW, "linear_dw_", "e4m3t_e4m3c", "sm90", CODE(E4M3), ACT(E4M3_TOKEN),
                  NIB_ANY, sm90, 20, FP8),
    BACKWARD_CUDA(LINEAR_DX, "linear_dx_", "e4m3t_e4m3c", "sm100", CODE(E4M3), ACT(E4M3_TOKEN),
                  NIB_ANY, sm100_fp8, 10, FP8),
    BACKWARD_CUDA(LINEAR_DW, "linear_dw_", "e4m3t_e4m3c", "sm100", CODE(E4M3), ACT(E4M3_TOKEN),
                  NIB_ANY, sm100_fp8, 10, FP8),
    BACKWARD_CUDA(LINEAR_DX, "linear_dx_", "mx8_mx8", "sm100", CODE(MX8), ACT(MX8), NIB_ANY, sm100,
                  10, MX8),
    BACKWARD_CUDA(LINEAR_DW, "linear_dw_", "mx8_mx8", "sm100", CODE(MX8), ACT(MX8), NIB_ANY, sm100,
                  10, MX8),
};

const nib_family nib__family_declared = {rows, COUNT(rows)};
