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
#define TYPE(t) NIB_TYPE_##t

/* ---- what a target asks ---- */

static const nib_cond sm80[] = {NIB_AT_LEAST(SM, 80, "its mma is of sm_80"), NIB_COND_END};
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

#define LINEAR(types, code_, act_, input_, unit_)                                                  \
    DECLARED("linear_" types "_f32__sm80", LINEAR, code_, act_, input_, CUDA, sm80, OTHER,         \
             "linear_" types "_f32__ref", 30, unit_, "tensor cores of sm_80 and later")

#define QUANT(types, act_, input_)                                                                 \
    DECLARED("quant_f32_" types "__sm80", QUANT, NIB_ANY, act_, input_, CUDA, sm80, OTHER,         \
             "quant_f32_" types "__ref", 30, F32, "one block of threads per token")

#define BACKWARD_CUDA(op_, name_, types, target, code_, act_, input_, conds_, rank_, unit_)        \
    DECLARED(name_ types "_f32__" target, op_, code_, act_, input_, CUDA, conds_, OTHER,           \
             name_ types "_f32__ref", rank_, unit_,                                                \
             "tensor cores; short last blocks are padded in shared memory")

static const nib_kernel rows[] = {
    /* ---- linear on GPUs ---- */
    LINEAR("f32_f32", CODE(F32), ACT(FLOAT), TYPE(F32), F32),
    LINEAR("f16_f16", CODE(F16), ACT(FLOAT), TYPE(F16), BF16),
    LINEAR("bf16_bf16", CODE(BF16), ACT(FLOAT), TYPE(BF16), BF16),
    LINEAR("f32_bf16", CODE(BF16), ACT(FLOAT), TYPE(F32), F32),
    LINEAR("bf16_w8g", CODE(I8), ACT(FLOAT), TYPE(BF16), BF16),
    LINEAR("f16_w8g", CODE(I8), ACT(FLOAT), TYPE(F16), BF16),
    LINEAR("f32_w8g", CODE(I8), ACT(FLOAT), TYPE(F32), F32),
    LINEAR("bf16_w4g", CODE(I4), ACT(FLOAT), TYPE(BF16), BF16),
    LINEAR("f16_w4g", CODE(I4), ACT(FLOAT), TYPE(F16), BF16),
    LINEAR("f32_w4g", CODE(I4), ACT(FLOAT), TYPE(F32), F32),
    LINEAR("bf16_e4m3c", CODE(E4M3), ACT(FLOAT), TYPE(BF16), BF16),
    LINEAR("f32_e4m3c", CODE(E4M3), ACT(FLOAT), TYPE(F32), F32),
    LINEAR("bf16_mx4", CODE(MX4), ACT(FLOAT), TYPE(BF16), BF16),
    LINEAR("f32_mx4", CODE(MX4), ACT(FLOAT), TYPE(F32), F32),
    LINEAR("bf16_nv4", CODE(NV4), ACT(FLOAT), TYPE(BF16), BF16),
    LINEAR("f32_nv4", CODE(NV4), ACT(FLOAT), TYPE(F32), F32),
    LINEAR("a8t_w8g", CODE(I8), ACT(I8_TOKEN), NIB_ANY, I8),
    LINEAR("a8s_w8g", CODE(I8), ACT(I8_STATIC), NIB_ANY, I8),
    LINEAR("a8t_w4g", CODE(I4), ACT(I8_TOKEN), NIB_ANY, I8),
    LINEAR("a8s_w4g", CODE(I4), ACT(I8_STATIC), NIB_ANY, I8),
    LINEAR("a8b32_w8g", CODE(I8), ACT(I8_BLOCK32), NIB_ANY, I8),
    LINEAR("a8b32_w4g", CODE(I4), ACT(I8_BLOCK32), NIB_ANY, I8),
    LINEAR("a8b256_w8g", CODE(I8), ACT(I8_BLOCK256), NIB_ANY, I8),
    LINEAR("a8b256_w4g", CODE(I4), ACT(I8_BLOCK256), NIB_ANY, I8),
    LINEAR("a4t_w4g", CODE(I4), ACT(I4_TOKEN), NIB_ANY, I8),
    LINEAR("e4m3t_e4m3c", CODE(E4M3), ACT(E4M3_TOKEN), NIB_ANY, BF16),
    LINEAR("mx8_mx8", CODE(MX8), ACT(MX8), NIB_ANY, BF16),
    LINEAR("mx4_mx4", CODE(MX4), ACT(MX4), NIB_ANY, BF16),
    DECLARED("linear_e4m3t_e4m3c_f32__sm90", LINEAR, CODE(E4M3), ACT(E4M3_TOKEN), NIB_ANY, CUDA,
             sm90, OTHER, "linear_e4m3t_e4m3c_f32__ref", 20, FP8, "fp8 tensor cores"),
    DECLARED("linear_e4m3t_e4m3c_f32__sm100", LINEAR, CODE(E4M3), ACT(E4M3_TOKEN), NIB_ANY, CUDA,
             sm100_fp8, OTHER, "linear_e4m3t_e4m3c_f32__ref", 10, FP8, "fp8 tensor cores"),
    DECLARED("linear_mx8_mx8_f32__sm100", LINEAR, CODE(MX8), ACT(MX8), NIB_ANY, CUDA, sm100, OTHER,
             "linear_mx8_mx8_f32__ref", 10, MX8,
             "block-scaled tensor cores; tails are padded in shared memory"),

    /* ---- activation quantizers and the embedding on GPUs ---- */
    QUANT("a8t", ACT(I8_TOKEN), NIB_ANY),
    QUANT("a8s", ACT(I8_STATIC), NIB_ANY),
    QUANT("a4t", ACT(I4_TOKEN), NIB_ANY),
    QUANT("a8b32", ACT(I8_BLOCK32), NIB_ANY),
    QUANT("a8b256", ACT(I8_BLOCK256), NIB_ANY),
    QUANT("e4m3t", ACT(E4M3_TOKEN), NIB_ANY),
    QUANT("mx8", ACT(MX8), NIB_ANY),
    QUANT("mx4", ACT(MX4), NIB_ANY),
    DECLARED("embed_f32__sm80", EMBED, NIB_ANY, NIB_ANY, NIB_ANY, CUDA, sm80, OTHER,
             "embed_f32__ref", 30, F32, "copies rows of the table, dequantized"),

    /* ---- the backward products on GPUs ---- */
    BACKWARD_CUDA(LINEAR_DX, "linear_dx_", "bf16_bf16", "sm80", CODE(BF16), ACT(FLOAT), TYPE(BF16),
                  sm80, 30, BF16),
    BACKWARD_CUDA(LINEAR_DW, "linear_dw_", "bf16_bf16", "sm80", CODE(BF16), ACT(FLOAT), TYPE(BF16),
                  sm80, 30, BF16),
    BACKWARD_CUDA(LINEAR_DX, "linear_dx_", "e4m3t_e4m3c", "sm90", CODE(E4M3), ACT(E4M3_TOKEN),
                  NIB_ANY, sm90, 20, FP8),
    BACKWARD_CUDA(LINEAR_DW, "linear_dw_", "e4m3t_e4m3c", "sm90", CODE(E4M3), ACT(E4M3_TOKEN),
                  NIB_ANY, sm90, 20, FP8),
    BACKWARD_CUDA(LINEAR_DX, "linear_dx_", "e4m3t_e4m3c", "sm100", CODE(E4M3), ACT(E4M3_TOKEN),
                  NIB_ANY, sm100_fp8, 10, FP8),
    BACKWARD_CUDA(LINEAR_DW, "linear_dw_", "e4m3t_e4m3c", "sm100", CODE(E4M3), ACT(E4M3_TOKEN),
                  NIB_ANY, sm100_fp8, 10, FP8),
    BACKWARD_CUDA(LINEAR_DX, "linear_dx_", "mx8_mx8", "sm80", CODE(MX8), ACT(MX8), NIB_ANY, sm80,
                  30, BF16),
    BACKWARD_CUDA(LINEAR_DW, "linear_dw_", "mx8_mx8", "sm80", CODE(MX8), ACT(MX8), NIB_ANY, sm80,
                  30, BF16),
    BACKWARD_CUDA(LINEAR_DX, "linear_dx_", "mx8_mx8", "sm100", CODE(MX8), ACT(MX8), NIB_ANY, sm100,
                  10, MX8),
    BACKWARD_CUDA(LINEAR_DW, "linear_dw_", "mx8_mx8", "sm100", CODE(MX8), ACT(MX8), NIB_ANY, sm100,
                  10, MX8),
};

const nib_family nib__family_declared = {rows, COUNT(rows)};
