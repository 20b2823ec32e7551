/* SPDX-License-Identifier: Apache-2.0
 *
 * OpenCL rows for AMD CDNA2 and later: linear products with its dot products of 4 and 8 bits and,
 * for many tokens, on its matrix unit (gfx90a.cl after linear.cl). f32 and f16 activations have no
 * row here: the unit multiplies bf16, and treats f16 denormals as 0.
 */
#include "gpu_pack.h"
#include "ocl_linear.h"
#include "sources.h"

#include "kernel.h"

/* If a step can cross groups, the tile of linear.cl runs instead. */
static int launch_products(const void *args, nib_launch out[], const char *dot)
{
    const nib_linear *a = args;
    const bool scale_in_product = nib__codes[a->w->scheme.code].scale_type ==
                                  NIB_TYPE_E4M3; /* its codes include their scales */
    const int count = nib__ocl_linear(args, out);
    nib__launch_option(out, "%s", dot);
    if (nib__ocl_is_tile(out) && (scale_in_product || nib__ocl_steps_whole(a->w))) {
        out->function = "tile_matrix";
        nib__launch_option(out, " -DMATRIX_AMD");
    }
    return count;
}

static int launch_linear(const void *args, nib_launch out[])
{
    return launch_products(args, out, " -DDOT_AMD");
}

/* For many tokens, the matrix unit on bytes is as fast on CDNA2 and faster on CDNA3. */
static int launch_nibbles(const void *args, nib_launch out[])
{
    const int count = nib__ocl_linear(args, out);
    if (nib__ocl_is_tile(out))
        return launch_linear(args, out);
    nib__launch_option(out, " -DDOT_NIBBLES");
    return count;
}

static const nib_cond gfx90a[] = {
    NIB_IS(MAKER, NIB_MAKER_AMD, "it is written for gfx90a"),
    NIB_AT_LEAST(CDNA, 2, "its matrix instructions need CDNA2"),
    NIB_COND_END,
};
static const nib_cond gfx90a_dot4[] = {
    NIB_IS(MAKER, NIB_MAKER_AMD, "it is written for gfx90a"),
    NIB_AT_LEAST(CDNA, 2, "v_dot8_i32_i4 needs CDNA2"),
    NIB_IS(DOT4, 1, "it multiplies eight pairs of 4-bit codes at a time"),
    NIB_COND_END,
};

#define PRODUCT(op_, name_, types, tile, code_, act_, input_, conds_, rank_, unit_, function,      \
                words)                                                                             \
    {                                                                                              \
        .name = name_ types "_f32__ocl_gfx90a" tile, .op = NIB_OP_##op_, .code = NIB_CODE_##code_, \
        .act = NIB_ACT_##act_, .input = input_, .device = NIB_DEVICE_OPENCL, .conds = conds_,      \
        .arithmetic = NIB_ARITHMETIC_OTHER, .reference = name_ types "_f32__ref", .rank = rank_,   \
        .unit = NIB_UNIT_##unit_, .n_step = 1, .grouped = NIB_OP_##op_ == NIB_OP_LINEAR,           \
        .packing = &nib__packing_rows,                                                             \
        .gpu = &(const nib_gpu_code){&nib__source_gfx90a, function},                               \
        .note = words "; emulated and compiled only, not yet run on a device"                      \
    }
#define ROW(types, tile, code, act, input, conds, rank, unit, function, words)                     \
    PRODUCT(LINEAR, "linear_", types, tile, code, act, input, conds, rank, unit, function, words)
#define MATRIX_BF16 "v_mfma_f32_16x16x16bf16_1k for many tokens"
#define BF16(types, code, act, input)                                                              \
    ROW(types, "", code, act, input, gfx90a, 20, BF16, launch_linear, MATRIX_BF16)
/* Gradients are forward products with other operands (train_ops.h). */
#define GRADIENTS(types, code, act, input)                                                         \
    PRODUCT(LINEAR_DX, "linear_dx_", types, "", code, act, input, gfx90a, 20, BF16, launch_linear, \
            MATRIX_BF16),                                                                          \
        PRODUCT(LINEAR_DW, "linear_dw_", types, "", code, act, input, gfx90a, 20, BF16,            \
                launch_linear, MATRIX_BF16)
#define I8(types, code, act)                                                                       \
    ROW(types, "", code, act, NIB_ANY, gfx90a, 20, I8, launch_linear,                              \
        "v_dot4_i32_i8, and v_mfma_i32_16x16x16i8 for many tokens")

static const nib_kernel rows[] = {
    BF16("bf16_bf16", BF16, FLOAT, NIB_TYPE_BF16),
    BF16("bf16_w8g", I8, FLOAT, NIB_TYPE_BF16),
    BF16("bf16_w4g", I4, FLOAT, NIB_TYPE_BF16),
    BF16("bf16_e4m3c", E4M3, FLOAT, NIB_TYPE_BF16),
    BF16("bf16_e5m2c", E5M2, FLOAT, NIB_TYPE_BF16),
    BF16("bf16_mx8", MX8, FLOAT, NIB_TYPE_BF16),
    BF16("bf16_mx4", MX4, FLOAT, NIB_TYPE_BF16),
    BF16("bf16_nv4", NV4, FLOAT, NIB_TYPE_BF16),
    I8("a8t_w8g", I8, I8_TOKEN),
    I8("a8s_w8g", I8, I8_STATIC),
    I8("a8b32_w8g", I8, I8_BLOCK32),
    I8("a8b256_w8g", I8, I8_BLOCK256),
    I8("a8t_w4g", I4, I8_TOKEN),
    I8("a8s_w4g", I4, I8_STATIC),
    I8("a8b32_w4g", I4, I8_BLOCK32),
    I8("a8b256_w4g", I4, I8_BLOCK256),
    I8("a4t_w4g", I4, I4_TOKEN),
    BF16("e4m3t_e4m3c", E4M3, E4M3_TOKEN, NIB_ANY),
    BF16("mx8_mx8", MX8, MX8, NIB_ANY),
    BF16("mx8_mx4", MX4, MX8, NIB_ANY),
    BF16("mx4_mx4", MX4, MX4, NIB_ANY),
    BF16("nv4_nv4", NV4, NV4, NIB_ANY),
    ROW("a4t_w4g", "_1x64", I4, I4_TOKEN, NIB_ANY, gfx90a_dot4, 10, I8, launch_nibbles,
        "v_dot8_i32_i4 for few tokens: 4-bit codes are multiplied as stored"),
    GRADIENTS("bf16_bf16", BF16, FLOAT, NIB_TYPE_BF16),
    GRADIENTS("e4m3t_e4m3c", E4M3, E4M3_TOKEN, NIB_ANY),
    GRADIENTS("mx8_mx8", MX8, MX8, NIB_ANY),
};

const nib_family nib__family_ocl_gfx90a = {rows, COUNT(rows)};
