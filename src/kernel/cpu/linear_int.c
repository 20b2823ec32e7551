/* SPDX-License-Identifier: Apache-2.0
 *
 * Linear rows with integer activations: their reference in plain C and the list of all rows.
 * linear_int_pack.c packs weights; the x86 code is linear_int_*.h and linear_a8t_*__*.c, the Arm
 * code linear_int_neon*.h, linear_int__dotprod.c and linear_int__i8mm.c.
 *
 * Every row here has the arithmetic NIB_ARITHMETIC_I32. For token r and output i:
 *
 *
 *   dot_g  = sum over k of group g of (code - zero_g) * (x - z_r)     an exact integer
 *            + the int32 bias, if there is one: a row with one group
 *   sum    = fma(scale_g, float(dot_g), sum)                          groups ascending
 *   total  = total + sum, sum = 0                                     after each block of groups
 *   y      = bias + (s_r * total), or s_r * total without a bias      a product, then a sum: no fma
 *
 * A block is as many whole groups as fit in NIB_SUM_BLOCK elements, or one group if a group is
 * larger, a row or a tensor; the first block's sum is the first total. float(dot_g) rounds once, to
 * nearest even. A float zero, which only the reference supports here, adds fma(zero_g, float(sum of
 * x - z_r over the group), sum) after each group. The order does not depend on m, n, threads or the
 * instruction set, so all rows give the same bits. An int32 bias is the start value of the integer
 * sum, which costs nothing; there is no other bias then. A token that the quantizer marked with a
 * scale of NaN (it held NaN or infinity) gives NaN in every output.
 *
 * Activations in blocks have a scale s_b for each block, and no zero point. A piece of k lies
 * within one group and one block; pieces ascend:
 *   sum    = fma(scale_g * s_b, float(dot), sum)            dot as above, over the piece
 *   sum    = fma(zero_g, s_b * float(sum of x over the piece), sum)      a float zero only
 *   y      = bias + total
 * The products scale_g * s_b are exact where both are f16 (ggml's Q4_0 and Q8_0 by Q8_0). With
 * MXFP4, code is twice the e2m1 value and s_b is halved; a scale of 2^-127 counts as 0.
 *
 * Checked when a checkpoint is loaded, not here: int4 codes are in -8..7, activation zeros in
 * -128..127, and int32 biases within nib__bias_int32_most, so that the sum fits wherever it is held
 * in 32 bits.
 */
#include "linear_int.h"

#include <math.h>

/* ---- reference ---- */

/* A group of one output's weights. */
typedef struct ref_group {
    int64_t zero; /* integer zero point */
    int64_t sum;  /* of code - zero */
    float scale, float_zero;
} ref_group;

static size_t ref_scratch(const void *args)
{
    const nib_linear *a = args;
    const size_t groups = (size_t)nib__scheme_groups(&a->w->scheme, a->w->k);
    return (size_t)nib__round_up(a->w->k, 64) + groups * sizeof(ref_group);
}

/* Exact: the sum of a piece, 2^15 products of at most 2^14, fits 32 bits. */
static int64_t ref_dot(const int8_t *codes, const int8_t *x, int64_t count)
{
    enum { PIECE = 1 << 15 };
    int64_t dot = 0;
    for (int64_t at = 0; at < count; at += PIECE) {
        const int64_t end = nib__min(at + PIECE, count);
        int32_t piece = 0;
        for (int64_t j = at; j < end; j++)
            piece += codes[j] * x[j];
        dot += piece;
    }
    return dot;
}

/* Reads row i of the weight into codes [k] and groups. */
static void ref_weight(const nib_weight *w, int64_t i, int8_t *codes, ref_group *groups)
{
    const int64_t size = nib__scheme_group_size(&w->scheme, w->k);
    nib__weight_codes(w, i, 0, w->k, codes);
    for (int64_t j = 0; j < w->k && w->scheme.code == NIB_CODE_MX4; j++)
        codes[j] = (int8_t)(2 * nib__e2m1_to_f32((uint8_t)codes[j]));
    for (int64_t g = 0, k0 = 0; k0 < w->k; g++, k0 += size) {
        const int64_t count = nib__min(size, w->k - k0);
        const bool is_float = w->scheme.zero == NIB_ZERO_FLOAT;
        ref_group *to = &groups[g];
        to->scale = nib__weight_scale(w, i, g);
        to->float_zero = is_float ? nib__weight_zero(w, i, g) : 0;
        to->zero = is_float ? 0 : nib__weight_int_zero(w, i, g);
        to->sum = -to->zero * count;
        for (int64_t j = 0; j < count; j++)
            to->sum += codes[k0 + j];
    }
}

/* Output i of token r, before the token's scale. */
static float ref_total(const nib_linear *a, int64_t r, int64_t i, const int8_t *codes,
                       const ref_group *groups)
{
    const int64_t k = a->w->k, size = nib__scheme_group_size(&a->w->scheme, k);
    const int64_t per_block = nib__max(1, NIB_SUM_BLOCK / size);
    const int64_t count = nib__scheme_groups(&a->w->scheme, k);
    const int64_t z = a->x.zero[r];
    const int8_t *x = a->x.codes + r * a->x.ld;
    const bool has_float_zero = a->w->scheme.zero == NIB_ZERO_FLOAT;
    float total = 0, sum = 0;
    for (int64_t g = 0; g < count; g++) {
        const ref_group *group = &groups[g];
        const int64_t k0 = g * size, n = nib__min(size, k - k0);
        const int64_t x_sum = a->x.sums[r * a->x.groups + g];
        const int64_t start = a->int_bias != NULL ? a->int_bias[i] : 0;
        const int64_t dot =
            start + ref_dot(codes + k0, x + k0, n) - group->zero * x_sum - z * group->sum;
        sum = fmaf(group->scale, (float)dot, sum);
        if (has_float_zero)
            sum = fmaf(group->float_zero, (float)(x_sum - z * n), sum);
        if ((g + 1) % per_block == 0 || g + 1 == count) {
            total = g < per_block ? sum : total + sum;
            sum = 0;
        }
    }
    return total;
}

/* One output of one token whose activations are in blocks. Pieces end wherever a group or a block
 * ends. */
static float ref_scaled(const nib_linear *a, int64_t r, const int8_t *codes,
                        const ref_group *groups)
{
    const int64_t k = a->w->k, size = nib__scheme_group_size(&a->w->scheme, k);
    const int64_t block = nib__act_block(a->w->scheme.act);
    const int64_t per_block = nib__max(1, NIB_SUM_BLOCK / size) * size;
    const int8_t *x = a->x.codes + r * a->x.ld;
    const float *scales = a->x.scale + r * nib__ceil_div(k, block);
    const float unit = a->w->scheme.code == NIB_CODE_MX4 ? 0.5F : 1; /* codes are doubled */
    float total = 0, sum = 0;
    for (int64_t k0 = 0, end; k0 < k; k0 = end) {
        const ref_group *group = &groups[k0 / size];
        const float scale = unit * scales[k0 / block];
        end = nib__min(nib__min((k0 / size + 1) * size, (k0 / block + 1) * block), k);
        int64_t x_sum = 0;
        for (int64_t j = k0; j < end; j++)
            x_sum += x[j];
        const int64_t dot = ref_dot(codes + k0, x + k0, end - k0) - group->zero * x_sum;
        sum = fmaf(group->scale * scale, (float)dot, sum);
        if (a->w->scheme.zero == NIB_ZERO_FLOAT)
            sum = fmaf(group->float_zero, scale * (float)x_sum, sum);
        if (end % per_block == 0 || end == k) {
            total = end <= per_block ? sum : total + sum;
            sum = 0;
        }
    }
    return total;
}

static void linear_ref(const nib_linear *a, int64_t n0, int64_t n1, void *scratch)
{
    int8_t *codes = scratch;
    ref_group *groups = (ref_group *)((char *)scratch + nib__round_up(a->w->k, 64));
    for (int64_t i = n0; i < n1; i++) {
        ref_weight(a->w, i, codes, groups);
        for (int64_t r = 0; r < a->x.m; r++) {
            const float scaled = nib__act_block(a->w->scheme.act) > 0
                                     ? ref_scaled(a, r, codes, groups)
                                     : a->x.scale[r] * ref_total(a, r, i, codes, groups);
            a->y[r * a->ldy + i] = a->bias != NULL ? a->bias[i] + scaled : scaled;
        }
    }
}

/* ---- rows ---- */

/* Limit for the sum over a row of stored codes by activation codes: 255 * 128 * 2^16 < 2^31. */
enum { K_MAX = 1 << 16 };
#define FAST_CONDS(isa, why)                                                                       \
    NIB_CONDS(                                                                                     \
        NIB_HAS(ISA, isa, why),                                                                    \
        NIB_MULTIPLE(GROUP, NIB_INT_UNIT, "32 inputs at a time are multiplied under one scale"),   \
        NIB_AT_MOST(K, K_MAX, "sums are held in 32 bits"),                                         \
        NIB_ONE_OF(SCALE_TYPE,                                                                     \
                   NIB_BIT(NIB_TYPE_F32) | NIB_BIT(NIB_TYPE_F16) | NIB_BIT(NIB_TYPE_BF16) |        \
                       NIB_BIT(NIB_TYPE_F64),                                                      \
                   "a scale is a float; f64 is rounded to f32 when it is packed"),                 \
        NIB_ONE_OF(ZERO, NIB_BIT(NIB_ZERO_NONE) | NIB_BIT(NIB_ZERO_INT),                           \
                   "zero points enter an integer sum"),                                            \
        NIB_ONE_OF(ZERO_TYPE, NIB_BIT(NIB_TYPE_NONE) | NIB_BIT(NIB_TYPE_I8),                       \
                   "zero points are packed in 16 bits"))

/* Groups that work with activations in blocks of `block`: one activation scale covers whole groups.
 */
#define BLOCK_CONDS(isa, why, groups, block)                                                       \
    NIB_CONDS(NIB_HAS(ISA, isa, why),                                                              \
              NIB_ONE_OF(GROUP, groups,                                                            \
                         "a block of " block                                                       \
                         " activations is multiplied under whole groups, 16 or 32 "                \
                         "inputs at a time"),                                                      \
              NIB_AT_MOST(K, K_MAX, "sums are held in 32 bits"),                                   \
              NIB_ONE_OF(SCALE_TYPE,                                                               \
                         NIB_BIT(NIB_TYPE_F32) | NIB_BIT(NIB_TYPE_F16) | NIB_BIT(NIB_TYPE_BF16) |  \
                             NIB_BIT(NIB_TYPE_F64),                                                \
                         "a scale is a float; f64 is rounded to f32 when it is packed"),           \
              NIB_ONE_OF(ZERO, NIB_BIT(NIB_ZERO_NONE) | NIB_BIT(NIB_ZERO_FLOAT),                   \
                         "a zero point is added as a float"))

#define REF(type, code_, act_)                                                                     \
    {                                                                                              \
        .name = "linear_" type "_f32__ref", .op = NIB_OP_LINEAR, .code = NIB_CODE_##code_,         \
        .act = NIB_ACT_##act_, .input = NIB_ANY, .device = NIB_DEVICE_CPU, .conds = NIB_NO_CONDS,  \
        .arithmetic = NIB_ARITHMETIC_I32, .rank = 90, .unit = NIB_UNIT_SCALAR, .n_step = 1,        \
        .scratch = ref_scratch, .run = {.linear = linear_ref},                                     \
        .note = "plain C, any shape, group, scale and zero point"                                  \
    }
/* `arch`: NIB_X86 or NIB_ARM. */
#define FAST(type, code_, act_, target, tile, isa, why, arch, rank_, unit_, layout, words)         \
    {                                                                                              \
        .name = "linear_" type "_f32__" #target "_" tile, .op = NIB_OP_LINEAR,                     \
        .code = NIB_CODE_##code_, .act = NIB_ACT_##act_, .input = NIB_ANY,                         \
        .device = NIB_DEVICE_CPU, .conds = FAST_CONDS(isa, why), .arithmetic = NIB_ARITHMETIC_I32, \
        .reference = "linear_" type "_f32__ref", .rank = rank_, .unit = NIB_UNIT_##unit_,          \
        .n_step = NIB_INT_PANEL, .packing = &nib__packing_##layout,                                \
        .scratch = arch(nib__linear_int_scratch_##target),                                         \
        .run = {.linear = arch(nib__linear_##layout##_##target)}, .note = words                    \
    }
#define BLOCKS(type, code_, act_, target, tile, isa, why, arch, rank_, unit_, layout, groups,      \
               block)                                                                              \
    {                                                                                              \
        .name = "linear_" type "_f32__" #target "_" tile, .op = NIB_OP_LINEAR,                     \
        .code = NIB_CODE_##code_, .act = NIB_ACT_##act_, .input = NIB_ANY,                         \
        .device = NIB_DEVICE_CPU, .conds = BLOCK_CONDS(isa, why, groups, block),                   \
        .arithmetic = NIB_ARITHMETIC_I32, .reference = "linear_" type "_f32__ref", .rank = rank_,  \
        .unit = NIB_UNIT_##unit_, .n_step = NIB_INT_PANEL, .packing = &nib__packing_##layout,      \
        .scratch = arch(nib__linear_blocks_scratch_##target),                                      \
        .run = {.linear = arch(nib__linear_##layout##_blocks_##target)},                           \
        .note = "panels of 32 outputs; a scale for each " block " activations, as ggml has them"   \
    }
/* MXFP4: blocks of 32 inputs whose scales are powers of two, and no zero points. */
#define MX4(target, tile, isa, why, arch, rank_, unit_)                                            \
    {                                                                                              \
        .name = "linear_a8b32_mx4_f32__" #target "_" tile, .op = NIB_OP_LINEAR,                    \
        .code = NIB_CODE_MX4, .act = NIB_ACT_I8_BLOCK32, .input = NIB_ANY,                         \
        .device = NIB_DEVICE_CPU,                                                                  \
        .conds =                                                                                   \
            NIB_CONDS(NIB_HAS(ISA, isa, why), NIB_AT_MOST(K, K_MAX, "sums are held in 32 bits")),  \
        .arithmetic = NIB_ARITHMETIC_I32, .reference = "linear_a8b32_mx4_f32__ref", .rank = rank_, \
        .unit = NIB_UNIT_##unit_, .n_step = NIB_INT_PANEL, .packing = &nib__packing_mx4,           \
        .scratch = arch(nib__linear_blocks_scratch_##target),                                      \
        .run = {.linear = arch(nib__linear_mx4_blocks_##target)},                                  \
        .note = "twice the values of e2m1 as integers; a scale for each 32 activations, as ggml "  \
                "has them"                                                                         \
    }
/* Q6_K's own bits: the condition Q6_K implies shapes and scales that only its blocks have. K has no
 * limit: a term covers a group of 16, and no sum of a whole row is held in 32 bits. */
#define SIX(target, tile, isa, rank_, unit_)                                                       \
    {                                                                                              \
        .name = "linear_a8b256_q6k_f32__" #target "_" tile, .op = NIB_OP_LINEAR,                   \
        .code = NIB_CODE_I8, .act = NIB_ACT_I8_BLOCK256, .input = NIB_ANY,                         \
        .device = NIB_DEVICE_CPU,                                                                  \
        .conds = NIB_CONDS(NIB_HAS(ISA, isa, NULL),                                                \
                           NIB_IS(Q6_K, 1, "6-bit codes and 8-bit scales are kept as stored")),    \
        .arithmetic = NIB_ARITHMETIC_I32, .reference = "linear_a8b256_w8g_f32__ref",               \
        .rank = rank_, .unit = NIB_UNIT_##unit_, .n_step = NIB_INT_PANEL,                          \
        .packing = &nib__packing_w6, .scratch = NIB_X86(nib__linear_six_scratch_##target),         \
        .run = {.linear = NIB_X86(nib__linear_w6_blocks_##target)},                                \
        .note = "Q6_K in its 6.6 bits; panels of 32 outputs, a scale for each 256 activations"     \
    }
#define BLOCKS_VNNI(type, code, act, layout, groups, block)                                        \
    BLOCKS(type, code, act, avx512vnni, "6x32", NIB_ISA_AVX512 | NIB_ISA_AVX512VNNI, NULL,         \
           NIB_X86, 10, DOT8, layout, groups, block)
#define BLOCKS_AVX2(type, code, act, layout, groups, block)                                        \
    BLOCKS(type, code, act, avx2, "4x16", NIB_ISA_AVX2, NULL, NIB_X86, 20, DOT8, layout, groups,   \
           block)
#define VNNI(type, code, act, layout)                                                              \
    FAST(type, code, act, avx512vnni, "6x32", NIB_ISA_AVX512 | NIB_ISA_AVX512VNNI, NULL, NIB_X86,  \
         10, DOT8, layout, "vpdpbusd on unsigned codes; one stream of panels of 32 outputs")
#define AMX_ISA NIB_ISA_AVX512 | NIB_ISA_AVX512VNNI | NIB_ISA_AMX
#define AMX(type, code, act, layout)                                                               \
    FAST(type, code, act, amx, "16x32", AMX_ISA, NULL, NIB_X86, 5, I8, layout,                     \
         "tdpbsud for many tokens, vpdpbusd for few, on the same panels")
#define BLOCKS_AMX(type, code, act, layout, groups, block)                                         \
    BLOCKS(type, code, act, amx, "16x32", AMX_ISA, NULL, NIB_X86, 5, I8, layout, groups, block)
#define AVX2(type, code, act, layout, tile)                                                        \
    FAST(type, code, act, avx2, tile, NIB_ISA_AVX2, NULL, NIB_X86, 20, DOT8, layout,               \
         "16-bit products of the same panels")
#define SDOT NIB_ISA_NEON | NIB_ISA_DOTPROD, "it uses sdot", NIB_ARM
#define SMMLA NIB_ISA_NEON | NIB_ISA_DOTPROD | NIB_ISA_I8MM, "it uses smmla", NIB_ARM
/* Both Arm rows. They go through a second macro so that SDOT and SMMLA become three arguments. */
#define FAST_(...) FAST(__VA_ARGS__)
#define BLOCKS_(...) BLOCKS(__VA_ARGS__)
#define MX4_(...) MX4(__VA_ARGS__)
#define ARM(type, code, act, layout)                                                               \
    FAST_(type, code, act, i8mm, "8x8", SMMLA, 20, I8, layout,                                     \
          "smmla on the same panels, unpacked"),                                                   \
        FAST_(type, code, act, neon, "8x8", SDOT, 30, I8, layout, "sdot on the same panels")
#define BLOCKS_ARM(type, code, act, layout, groups, block)                                         \
    BLOCKS_(type, code, act, i8mm, "8x8", SMMLA, 20, I8, layout, groups, block),                   \
        BLOCKS_(type, code, act, neon, "8x8", SDOT, 30, I8, layout, groups, block)

static const nib_kernel rows[] = {
    AMX("a8t_w4g", I4, I8_TOKEN, w4),
    AMX("a8s_w4g", I4, I8_STATIC, w4),
    AMX("a4t_w4g", I4, I4_TOKEN, w4),
    AMX("a8t_w8g", I8, I8_TOKEN, w8),
    AMX("a8s_w8g", I8, I8_STATIC, w8),
    AMX("a4t_w8g", I8, I4_TOKEN, w8),
    MX4(amx, "16x32", AMX_ISA, NULL, NIB_X86, 5, I8),
    BLOCKS_AMX("a8b32_w4g", I4, I8_BLOCK32, w4, 32, "32"),
    BLOCKS_AMX("a8b32_w8g", I8, I8_BLOCK32, w8, 32, "32"),
    BLOCKS_AMX("a8b256_w4g", I4, I8_BLOCK256, w4, 32 | 64 | 128 | 256, "256"),
    BLOCKS_AMX("a8b256_w8g", I8, I8_BLOCK256, w8, 32 | 64 | 128 | 256, "256"),
    VNNI("a8t_w4g", I4, I8_TOKEN, w4),
    VNNI("a8s_w4g", I4, I8_STATIC, w4),
    VNNI("a4t_w4g", I4, I4_TOKEN, w4),
    VNNI("a8t_w8g", I8, I8_TOKEN, w8),
    VNNI("a8s_w8g", I8, I8_STATIC, w8),
    VNNI("a4t_w8g", I8, I4_TOKEN, w8),
    AVX2("a8t_w4g", I4, I8_TOKEN, w4, "4x16"),
    AVX2("a8s_w4g", I4, I8_STATIC, w4, "4x16"),
    AVX2("a4t_w4g", I4, I4_TOKEN, w4, "4x16"),
    AVX2("a8t_w8g", I8, I8_TOKEN, w8, "4x16"),
    AVX2("a8s_w8g", I8, I8_STATIC, w8, "4x16"),
    AVX2("a4t_w8g", I8, I4_TOKEN, w8, "4x16"),
    ARM("a8t_w4g", I4, I8_TOKEN, w4),
    ARM("a8s_w4g", I4, I8_STATIC, w4),
    ARM("a4t_w4g", I4, I4_TOKEN, w4),
    ARM("a8t_w8g", I8, I8_TOKEN, w8),
    ARM("a8s_w8g", I8, I8_STATIC, w8),
    ARM("a4t_w8g", I8, I4_TOKEN, w8),
    MX4(avx512vnni, "6x32", NIB_ISA_AVX512 | NIB_ISA_AVX512VNNI, NULL, NIB_X86, 10, DOT8),
    BLOCKS_VNNI("a8b32_w4g", I4, I8_BLOCK32, w4, 32, "32"),
    BLOCKS_VNNI("a8b32_w8g", I8, I8_BLOCK32, w8, 16 | 32, "32"),
    BLOCKS_VNNI("a8b256_w4g", I4, I8_BLOCK256, w4, 16 | 32 | 64 | 128 | 256, "256"),
    BLOCKS_VNNI("a8b256_w8g", I8, I8_BLOCK256, w8, 16 | 32 | 64 | 128 | 256, "256"),
    SIX(avx512vnni, "6x32", NIB_ISA_AVX512 | NIB_ISA_AVX512VNNI, 5, DOT8),
    SIX(avx2, "4x16", NIB_ISA_AVX2, 15, DOT8),
    MX4(avx2, "4x16", NIB_ISA_AVX2, NULL, NIB_X86, 20, DOT8),
    BLOCKS_AVX2("a8b32_w4g", I4, I8_BLOCK32, w4, 32, "32"),
    BLOCKS_AVX2("a8b32_w8g", I8, I8_BLOCK32, w8, 16 | 32, "32"),
    BLOCKS_AVX2("a8b256_w4g", I4, I8_BLOCK256, w4, 16 | 32 | 64 | 128 | 256, "256"),
    BLOCKS_AVX2("a8b256_w8g", I8, I8_BLOCK256, w8, 16 | 32 | 64 | 128 | 256, "256"),
    MX4_(i8mm, "8x8", SMMLA, 20, I8),
    MX4_(neon, "8x8", SDOT, 30, I8),
    BLOCKS_ARM("a8b32_w4g", I4, I8_BLOCK32, w4, 32, "32"),
    BLOCKS_ARM("a8b32_w8g", I8, I8_BLOCK32, w8, 16 | 32, "32"),
    BLOCKS_ARM("a8b256_w4g", I4, I8_BLOCK256, w4, 16 | 32 | 64 | 128 | 256, "256"),
    BLOCKS_ARM("a8b256_w8g", I8, I8_BLOCK256, w8, 16 | 32 | 64 | 128 | 256, "256"),
    REF("a8b32_mx4", MX4, I8_BLOCK32),
    REF("a8b32_w4g", I4, I8_BLOCK32),
    REF("a8b32_w8g", I8, I8_BLOCK32),
    REF("a8b256_w4g", I4, I8_BLOCK256),
    REF("a8b256_w8g", I8, I8_BLOCK256),
    REF("a8t_w4g", I4, I8_TOKEN),
    REF("a8s_w4g", I4, I8_STATIC),
    REF("a4t_w4g", I4, I4_TOKEN),
    REF("a8t_w8g", I8, I8_TOKEN),
    REF("a8s_w8g", I8, I8_STATIC),
    REF("a4t_w8g", I8, I4_TOKEN),
};

const nib_family nib__family_linear_int = {rows, COUNT(rows)};
