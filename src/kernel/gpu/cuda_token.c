/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows of CUDA for operations on rows of tokens, attention and activation quantizers: the functions
 * and launches of OpenCL's rows (ocl_token.c, ocl_quant.c), compiled by nvcc.
 */
#include "cuda_programs.h"
#include "kernel.h"
#include "quant_launches.h"
#include "sources.h"
#include "token_launches.h"

static const nib_cond sm80[] = {
    NIB_AT_LEAST(SM, 80, "its machine code begins at sm_80"),
    NIB_COND_END,
};

#define ROW(name_, op_, numbers_, file, function, words)                                           \
    {                                                                                              \
        .name = name_ "__sm80", .op = NIB_OP_##op_, .code = NIB_ANY, .act = NIB_ANY,               \
        .input = NIB_ANY, .device = NIB_DEVICE_CUDA, .conds = sm80,                                \
        .numbers = NIB_NUMBERS_##numbers_, .reference = name_ "__ref", .rank = 30,                 \
        .unit = NIB_UNIT_F32, .n_step = 1, .gpu = NIB_CUDA_CODE(&nib__source_##file, function),    \
        .note = words "; compiled only, not yet run on a device"                                   \
    }

#define QUANT(form, act_, input_, words)                                                           \
    {                                                                                              \
        .name = "quant_f32_" #form "__sm80", .op = NIB_OP_QUANT, .code = NIB_ANY,                  \
        .act = NIB_ACT_##act_, .input = input_, .device = NIB_DEVICE_CUDA, .conds = sm80,          \
        .numbers = NIB_NUMBERS_OTHER, .reference = "quant_f32_" #form "__ref", .rank = 30,         \
        .unit = NIB_UNIT_F32, .n_step = 1,                                                         \
        .gpu = NIB_CUDA_CODE(&nib__source_quant, nib__launch_quant_##form),                        \
        .note = words "; compiled only, not yet run on a device"                                   \
    }

static const nib_kernel rows[] = {
    ROW("norm_f32", NORM, OTHER, token, nib__launch_norm, "a block of threads a row"),
    ROW("rope_f32", ROPE, OTHER, token, nib__launch_rope, "a block of threads a token"),
    ROW("copy_f32", COPY, OTHER, token, nib__launch_store_kv, "a block of threads a token"),
    ROW("swiglu_f32", SWIGLU, OTHER, token, nib__launch_swiglu, "a thread a value"),
    ROW("add_f32", ADD, LANES, token, nib__launch_add, "a thread a value"),
    ROW("attn_f32", ATTN, OTHER, attention, nib__launch_attention,
        "a block of threads a head of a token"),
    ROW("gather_f32", GATHER, LANES, token, nib__launch_gather, "a thread a value"),
    QUANT(a8t, I8_TOKEN, NIB_ANY, "a block of threads a token"),
    QUANT(a8s, I8_STATIC, NIB_ANY, "a block of threads a token"),
    QUANT(a4t, I4_TOKEN, NIB_ANY, "a block of threads a token"),
    QUANT(a8b32, I8_BLOCK32, NIB_ANY, "a block of threads a block"),
    QUANT(a8b256, I8_BLOCK256, NIB_ANY, "a block of threads a block"),
    QUANT(e4m3t, E4M3_TOKEN, NIB_ANY, "a block of threads a token"),
    QUANT(mx8, MX8, NIB_ANY, "a warp a block"),
    QUANT(mx4, MX4, NIB_ANY, "a warp a block"),
    QUANT(bf16, FLOAT, NIB_TYPE_BF16, "a thread a value"),
    QUANT(f16, FLOAT, NIB_TYPE_F16, "a thread a value"),
    QUANT(f32, FLOAT, NIB_TYPE_F32, "as it is, or a thread a value"),
};

const nib_family nib__family_cuda_token = {rows, COUNT(rows)};
