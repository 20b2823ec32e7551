/* SPDX-License-Identifier: Apache-2.0
 *
 * The rows of linear products with float activations. Their sums are defined in linear_float_ref.c,
 * their packed layout in linear_float.h. f16 activations are f32 values that were rounded to f16.
 *
 * bf16 activations with f32 or f16 weights use F32 sums: such weights are not exact in bf16.
 */
#include "linear_float.h"

/* Enough for the largest tiles, forms and pairs of any instruction set: see linear_float_body.h. */
nib_float_room nib__float_room(const nib_linear *a)
{
    enum { WIDE_ROWS = 6, WIDE_PANELS = 4, PAIR_BYTES = 8, NATIVE_BYTES = 4, LINE = 64 };
    const nib_float_layout l = nib__float_layout(a->w);
    const int64_t span = nib__float_span(&l, NIB_FLOAT_SPAN),
                  rows = nib__min(nib__round_up(a->x.m, 2), NIB_FLOAT_ROWS);
    const int64_t few = WIDE_ROWS * NIB_SUM_BLOCK / 2, many = rows * (NIB_FLOAT_SPAN / 2 + 8);
    nib_float_room room;
    room.acc = (size_t)nib__max(rows * NIB_FLOAT_CHUNK, WIDE_ROWS * WIDE_PANELS) * NIB_FLOAT_PANEL *
               sizeof(float);
    room.x = (size_t)nib__round_up(nib__max(few, many) * PAIR_BYTES, LINE);
    room.weights = (size_t)(WIDE_PANELS * NIB_FLOAT_PANEL * span * NATIVE_BYTES);
    return room;
}

size_t nib__linear_float_scratch(const void *args)
{
    const nib_float_room room = nib__float_room(args);
    return room.acc + room.x + room.weights;
}

/* f32, f16 and bf16 weights have no groups, so the group conditions hold for them. */
#define FAST_CONDS(isa)                                                                            \
    NIB_CONDS(NIB_HAS(ISA, isa, NULL),                                                             \
              NIB_MULTIPLE(GROUP, NIB_FLOAT_STEP, "weights are decoded 8 inputs at a time"),       \
              NIB_AT_MOST(GROUP, NIB_SUM_BLOCK, "a group lies within one block of a sum"),         \
              NIB_ONE_OF(ZERO_TYPE,                                                                \
                         NIB_BIT(NIB_TYPE_NONE) | NIB_BIT(NIB_TYPE_I8) | NIB_BIT(NIB_TYPE_F32) |   \
                             NIB_BIT(NIB_TYPE_F16) | NIB_BIT(NIB_TYPE_BF16) |                      \
                             NIB_BIT(NIB_TYPE_F64),                                                \
                         "integer zero points are packed as int8"))

#define REF(in, IN, word, CODE, NUMBERS, function)                                                 \
    {                                                                                              \
        .name = "linear_" in "_" word "_f32__ref", .op = NIB_OP_LINEAR, .code = NIB_CODE_##CODE,   \
        .act = NIB_ACT_FLOAT, .input = NIB_TYPE_##IN, .device = NIB_DEVICE_CPU,                    \
        .conds = NIB_NO_CONDS, .arithmetic = NIB_ARITHMETIC_##NUMBERS, .rank = 90,                 \
        .unit = NIB_UNIT_SCALAR, .n_step = 1, .scratch = nib__linear_float_ref_scratch,            \
        .run = {.linear = nib__linear_##function##_ref},                                           \
        .note = "plain C, any shape, group, scale and zero point"                                  \
    }

/* `arch`: NIB_X86 or NIB_ARM. */
#define FAST(in, IN, word, CODE, NUMBERS, target, tile, isa, arch, rank_, unit_, function, words)  \
    {                                                                                              \
        .name = "linear_" in "_" word "_f32__" #target "_" tile, .op = NIB_OP_LINEAR,              \
        .code = NIB_CODE_##CODE, .act = NIB_ACT_FLOAT, .input = NIB_TYPE_##IN,                     \
        .device = NIB_DEVICE_CPU, .conds = FAST_CONDS(isa),                                        \
        .arithmetic = NIB_ARITHMETIC_##NUMBERS, .reference = "linear_" in "_" word "_f32__ref",    \
        .rank = rank_, .unit = NIB_UNIT_##unit_, .n_step = 2 * NIB_FLOAT_PANEL,                    \
        .packing = &nib__packing_n16, .scratch = nib__linear_float_scratch,                        \
        .run = {.linear = arch(nib__linear_##function##_##target)}, .note = words                  \
    }

#define AVX2(in, IN, word, CODE, NUMBERS, function)                                                \
    FAST(in, IN, word, CODE, NUMBERS, avx2, "6x16", NIB_ISA_AVX2, NIB_X86, 30, F32, function,      \
         "f32 multiply-adds, 16 outputs in two registers")
#define AVX512(in, IN, word, CODE, NUMBERS, function)                                              \
    FAST(in, IN, word, CODE, NUMBERS, avx512, "12x32", NIB_ISA_AVX512, NIB_X86, 20, F32, function, \
         "f32 multiply-adds, 16 outputs in a register")
#define NEON(in, IN, word, CODE, NUMBERS, function)                                                \
    FAST(in, IN, word, CODE, NUMBERS, neon, "4x16", NIB_ISA_NEON, NIB_ARM, 30, F32, function,      \
         "f32 multiply-adds by element, 16 outputs in four registers")
#define BF16(word, CODE)                                                                           \
    FAST("bf16", BF16, word, CODE, BF16, avx512bf16, "12x32", NIB_ISA_AVX512 | NIB_ISA_AVX512BF16, \
         NIB_X86, 10, BF16, bf16, "vdpbf16ps on pairs of k, 16 outputs in a register")

/* Every row of one input type and code, except the AVX-512 BF16 rows. */
#define ROWS(in, IN, word, CODE, NUMBERS, sums)                                                    \
    AVX512(in, IN, word, CODE, NUMBERS, sums), AVX2(in, IN, word, CODE, NUMBERS, sums),            \
        NEON(in, IN, word, CODE, NUMBERS, sums), REF(in, IN, word, CODE, NUMBERS, sums)

/* Integers of other widths than 4 and 8. */
#define ODD(in, IN, NUMBERS, sums)                                                                 \
    ROWS(in, IN, "w1g", I1, NUMBERS, sums), ROWS(in, IN, "w2g", I2, NUMBERS, sums),                \
        ROWS(in, IN, "w3g", I3, NUMBERS, sums), ROWS(in, IN, "w5g", I5, NUMBERS, sums),            \
        ROWS(in, IN, "w6g", I6, NUMBERS, sums), ROWS(in, IN, "w7g", I7, NUMBERS, sums)

static const nib_kernel rows[] = {
    ROWS("f32", F32, "f32", F32, F32, f32),
    ROWS("f32", F32, "f16", F16, F32, f32),
    ROWS("f32", F32, "bf16", BF16, F32, f32),
    ROWS("f32", F32, "w8g", I8, F32, f32),
    ROWS("f32", F32, "w4g", I4, F32, f32),
    ROWS("f32", F32, "e4m3c", E4M3, F32, f32),
    ROWS("f32", F32, "e5m2c", E5M2, F32, f32),
    ROWS("f32", F32, "mx8", MX8, F32, f32),
    ROWS("f32", F32, "mx4", MX4, F32, f32),
    ROWS("f32", F32, "nv4", NV4, F32, f32),
    ODD("f32", F32, F32, f32),

    ROWS("f16", F16, "f32", F32, F32, f32),
    ROWS("f16", F16, "f16", F16, F32, f32),
    ROWS("f16", F16, "bf16", BF16, F32, f32),
    ROWS("f16", F16, "w8g", I8, F32, f32),
    ROWS("f16", F16, "w4g", I4, F32, f32),
    ROWS("f16", F16, "e4m3c", E4M3, F32, f32),
    ROWS("f16", F16, "e5m2c", E5M2, F32, f32),
    ROWS("f16", F16, "mx8", MX8, F32, f32),
    ROWS("f16", F16, "mx4", MX4, F32, f32),
    ROWS("f16", F16, "nv4", NV4, F32, f32),
    ODD("f16", F16, F32, f32),

    ROWS("bf16", BF16, "f32", F32, F32, f32),
    ROWS("bf16", BF16, "f16", F16, F32, f32),
    BF16("bf16", BF16),
    ROWS("bf16", BF16, "bf16", BF16, BF16, bf16),
    BF16("w8g", I8),
    ROWS("bf16", BF16, "w8g", I8, BF16, bf16),
    BF16("w4g", I4),
    ROWS("bf16", BF16, "w4g", I4, BF16, bf16),
    BF16("e4m3c", E4M3),
    ROWS("bf16", BF16, "e4m3c", E4M3, BF16, bf16),
    BF16("e5m2c", E5M2),
    ROWS("bf16", BF16, "e5m2c", E5M2, BF16, bf16),
    BF16("mx8", MX8),
    ROWS("bf16", BF16, "mx8", MX8, BF16, bf16),
    BF16("mx4", MX4),
    ROWS("bf16", BF16, "mx4", MX4, BF16, bf16),
    BF16("nv4", NV4),
    ROWS("bf16", BF16, "nv4", NV4, BF16, bf16),
    BF16("w1g", I1),
    BF16("w2g", I2),
    BF16("w3g", I3),
    BF16("w5g", I5),
    BF16("w6g", I6),
    BF16("w7g", I7),
    ODD("bf16", BF16, BF16, bf16),
};

const nib_family nib__family_linear_float = {rows, COUNT(rows)};
