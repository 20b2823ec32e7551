/* SPDX-License-Identifier: Apache-2.0
 *
 * CUDA rows for linear products, forward and backward: matvec.cu for few tokens, of any shape and
 * group; tile.cu, wgmma.cu and tcgen05.cu for many tokens, on the matrix units. And for the
 * embedding. Weights have the layout "rows" of gpu_pack.h, at a multiple of 64 bytes.
 */
#include "cuda_linear.h"
#include "cuda_programs.h"

#include "kernel.h"

enum {
    ROWS = 4,      /* matvec: outputs per block */
    TOKENS = 4,    /* matvec: tokens per block, if m > 1 */
    TILE = 128,    /* tiles: outputs and tokens per block */
    THREADS = 128, /* threads per block; tile_wgmma has twice as many */
    LOOK_UP = 128, /* embedding: threads per token */
};

/* Whether the activations have no zero point. */
static bool is_centred(const nib_weight *w)
{
    const nib_act act = w->scheme.act;
    return w->scheme.act_symmetric || act == NIB_ACT_FLOAT || act == NIB_ACT_E4M3_TOKEN ||
           nib__act_block(act) > 0;
}

void nib__cuda_product_args(nib_launch *out, const nib_linear *a, const nib_gpu_layout *l)
{
    const nib_input *x = &a->x;
    const nib_act act = a->w->scheme.act;
    const int64_t block = nib__act_block(act);
    nib__gpu_weight_memory(out, l, a->packed);
    nib__launch_memory(out, nib__gpu_input_values(x));
    nib__launch_memory(out, x->scale);
    nib__launch_memory(out, is_centred(a->w) ? NULL : x->zero);
    nib__launch_memory(out, a->bias);
    nib__launch_memory(out, a->int_bias);
    nib__launch_memory(out, a->y);
    nib__launch_int(out, x->m);
    nib__launch_int(out, a->w->n);
    nib__launch_int(out, a->w->k);
    nib__launch_int(out, l->ldk);
    nib__launch_int(out, nib__scheme_group_size(&a->w->scheme, a->w->k));
    nib__launch_int(out, l->groups);
    nib__launch_int(out, nib__gpu_value_number(l->scale_type));
    nib__launch_int(out, nib__gpu_value_number(l->zero_type));
    nib__launch_int(out, x->ld);
    nib__launch_int(out, block);
    nib__launch_int(out, a->ldy);
    nib__launch_int(out, (uintptr_t)x->f32 % 16 == 0 && x->ld % 4 == 0);
    nib__launch_int(out, act != NIB_ACT_FLOAT && block == 0);
    nib__launch_float(out, nib__gpu_weight_factor(a->w));
    nib__gpu_expert_args(out, a);
}

/* Codes of a row that a thread loads at a time: STEP of matvec.cu. Half as many of 4 bits if all
 * threads would not have any, or if groups are that small. */
static int64_t matvec_step(const nib_weight *w)
{
    const nib_code code = w->scheme.code;
    const int bits = nib__code_bits(code);
    if (bits == 4)
        return nib__codes[code].group == 16 || w->k < THREADS * 32 ? 16 : 32;
    return bits > 8 ? 8 : 16;
}

static int launch_matvec(const void *args, nib_launch out[])
{
    const nib_linear *a = args;
    const nib_gpu_layout l = nib__gpu_layout(a->w);
    const int number = nib__gpu_input_number(&a->x, a->w->scheme.act),
              tokens = nib__gpu_tokens(a) == 1 ? 1 : TOKENS;
    const int64_t step = matvec_step(a->w);
    const bool is_whole = l.groups <= 1 || a->w->scheme.group % step == 0;
    nib__launch_init(out, is_whole ? "matvec" : "matvec_any",
                     nib__ceil_div(a->w->n, (int64_t)ROWS) * nib__gpu_token_tiles(a, tokens, true),
                     THREADS);
    nib__launch_option(out, "-DW=%d -DX=%d -DTOKENS=%d", (int)nib__codes[a->w->scheme.code].element,
                       number, tokens);
    if (nib__code_bits(a->w->scheme.code) == 4)
        nib__launch_option(out, " -DSTEP=%d", (int)step);
    nib__cuda_product_args(out, a, &l);
    return 1;
}

/* ---- many tokens ---- */

/* Whether activations are f8 stored as bf16, which the kernel narrows to f8 again. */
static bool is_f8(int input)
{
    return input == NIB_INPUT_WIDE_E4M3 || input == NIB_INPUT_WIDE_E5M2;
}

/* Bytes of shared memory, counted as in tile.cu. group: codes under one scale; 0: all of k. */
static int32_t tile_shared(int weight, int input, int group)
{
    enum { MOST = 99 << 10, TOTALS = TILE * (TILE + 8) * 4 };
    const bool is_short = is_f8(input) || input == NIB_INPUT_F16;
    const int32_t row = is_short ? 64 : 128;
    const int32_t step = input == NIB_INPUT_I8 ? 128 : input == NIB_INPUT_F16 ? 32 : 64;
    const int32_t w_bits = weight == 4 || weight == 7 ? 4 : weight == 1 || weight == 2 ? 16 : 8;
    const int32_t x_bits = input == NIB_INPUT_F16                    ? 32
                           : input == NIB_INPUT_BF16 || is_f8(input) ? 16
                                                                     : 8;
    const int32_t raw_x = step * x_bits / 8, raw_w = step * w_bits / 8;
    const int32_t stage = TILE * (raw_x + raw_w);
    const int32_t wide = TILE * row * ((raw_x != row) + (raw_w != row));
    const int32_t declared = (8 * (group > 0 ? step / group : 1) + 1) * TILE * 4;
    const int32_t stages = 3 * stage + wide + declared > MOST ? 2 : 3;
    return (int32_t)nib__max(stages * stage + wide, TOTALS);
}

int nib__cuda_group(const nib_linear *a, const nib_gpu_layout *l, int input)
{
    enum { INTEGERS_MOST = 32768 };
    const bool is_one = l->groups <= 1 && nib__act_block(a->w->scheme.act) == 0 &&
                        (input != NIB_INPUT_I8 || a->w->k <= INTEGERS_MOST);
    return is_one ? 0 : nib__codes[a->w->scheme.code].group == 16 ? 16 : 32;
}

/* The same for f8: the unit's sums keep few bits, so they are at most a step long (tile.cu). */
static int f8_group(const nib_linear *a, const nib_gpu_layout *l)
{
    enum { STEP = 64 };
    return l->groups <= 1 || a->w->scheme.group % STEP == 0 ? STEP : 32;
}

static int launch_tile_of(const nib_linear *a, nib_launch out[], int input)
{
    const nib_gpu_layout l = nib__gpu_layout(a->w);
    const int weight = (int)nib__codes[a->w->scheme.code].element;
    nib__launch_init(out, "tile",
                     nib__ceil_div(a->w->n, (int64_t)TILE) * nib__gpu_token_tiles(a, TILE, false),
                     THREADS);
    const int group = is_f8(input) ? f8_group(a, &l) : nib__cuda_group(a, &l, input);
    nib__launch_option(out, "-DW=%d -DX=%d -DGROUPED=%d", weight, input, group);
    if (group > 0)
        nib__launch_option(out, " -DZERO=%d -DBLOCKS=%d", l.zero_type != NIB_TYPE_NONE,
                           nib__act_block(a->w->scheme.act) > 0);
    out->shared = tile_shared(weight, input, group);
    nib__cuda_product_args(out, a, &l);
    return 1;
}

static int launch_tile(const void *args, nib_launch out[])
{
    const nib_linear *a = args;
    return launch_tile_of(a, out, nib__gpu_input_number(&a->x, a->w->scheme.act));
}

/* For f32 activations whose values f16 holds. */
static int launch_tile_f16(const void *args, nib_launch out[])
{
    return launch_tile_of(args, out, NIB_INPUT_F16);
}

static int launch_tile_f8(const void *args, nib_launch out[])
{
    const nib_linear *a = args;
    return launch_tile_of(a, out, a->x.e5m2 ? NIB_INPUT_WIDE_E5M2 : NIB_INPUT_WIDE_E4M3);
}

/* ---- matrix units that read shared memory: one scale for all of k, or MX blocks ---- */

enum {
    ASYNC_TILE = TILE * 128, /* bytes of a step's codes */
    ASYNC_STAGES = 3,
    ASYNC_WIDE = 2 * ASYNC_TILE, /* f8 before narrowing, as bf16 */
    ASYNC_ALIGNED = 1024,        /* alignment, and the most bytes lost to it */
    ASYNC_REST = 4096,           /* upper bound for scales, biases and barriers */
    ASYNC_MX = ASYNC_STAGES * 2 * ASYNC_TILE + ASYNC_ALIGNED + ASYNC_REST,
    ASYNC_F8 =
        ASYNC_STAGES * (ASYNC_TILE + ASYNC_WIDE) + 2 * ASYNC_TILE + ASYNC_ALIGNED + ASYNC_REST,
};

static int launch_async(const nib_linear *a, nib_launch out[], const char *function,
                        int32_t threads)
{
    const nib_gpu_layout l = nib__gpu_layout(a->w);
    const bool is_mx = nib__act_is_mx(a->w->scheme.act);
    nib__launch_init(out, function,
                     nib__ceil_div(a->w->n, (int64_t)TILE) * nib__ceil_div(a->x.m, (int64_t)TILE),
                     threads);
    nib__launch_option(out, "-DW=%d -DX=%d", (int)nib__codes[a->w->scheme.code].element,
                       is_mx       ? NIB_INPUT_E4M3
                       : a->x.e5m2 ? NIB_INPUT_WIDE_E5M2
                                   : NIB_INPUT_WIDE_E4M3);
    out->shared = is_mx ? ASYNC_MX : ASYNC_F8;
    nib__cuda_product_args(out, a, &l);
    return 1;
}

static int launch_wgmma(const void *args, nib_launch out[])
{
    return launch_async(args, out, "tile_wgmma", 2 * THREADS);
}

static int launch_tcgen05(const void *args, nib_launch out[])
{
    return launch_async(args, out, "tile_tcgen05", THREADS);
}

/* ---- the embedding ---- */

static int launch_embed(const void *args, nib_launch out[])
{
    const nib_embed *a = args;
    const nib_gpu_layout l = nib__gpu_layout(a->table);
    nib__launch_init(out, "embed", a->m, LOOK_UP);
    nib__launch_option(out, "-DW=%d", (int)nib__codes[a->table->scheme.code].element);
    nib__gpu_weight_memory(out, &l, a->packed);
    nib__launch_memory(out, a->ids);
    nib__launch_memory(out, a->out);
    nib__launch_int(out, a->table->k);
    nib__launch_int(out, l.ldk);
    nib__launch_int(out, nib__scheme_group_size(&a->table->scheme, a->table->k));
    nib__launch_int(out, l.groups);
    nib__launch_int(out, nib__gpu_value_number(l.scale_type));
    nib__launch_int(out, nib__gpu_value_number(l.zero_type));
    nib__launch_float(out, nib__gpu_weight_factor(a->table));
    return 1;
}

/* ---- rows ---- */

static const nib_gpu_source source_matvec = {.name = "matvec.cu"};
static const nib_gpu_source source_tile = {.name = "tile.cu"};
static const nib_gpu_source source_wgmma = {.name = "wgmma.cu"};
static const nib_gpu_source source_tcgen05 = {.name = "tcgen05.cu"};
static const nib_gpu_source source_embed = {.name = "embed.cu"};
static const nib_gpu_code code_f8 = {&source_tile, launch_tile_f8};
static const nib_gpu_code code_wgmma = {&source_wgmma, launch_wgmma};
static const nib_gpu_code code_tcgen05 = {&source_tcgen05, launch_tcgen05};

static const nib_cond sm80[] = {
    NIB_AT_LEAST(SM, 80, "its machine code begins at sm_80"),
    NIB_COND_END,
};

/* Scales that cover a multiple of 32 codes, or all of them. */
const nib_cond nib__cuda_groups_of_32[] = {
    NIB_AT_LEAST(SM, 80, "its mma needs sm_80"),
    NIB_MULTIPLE(GROUP, 32, "the matrix unit sums 32 codes under one scale"),
    NIB_COND_END,
};
const nib_cond nib__cuda_mma[] = {
    NIB_AT_LEAST(SM, 80, "its mma needs sm_80"),
    NIB_COND_END,
};
static const nib_cond sm89[] = {
    NIB_AT_LEAST(SM, 89, "its fp8 mma needs sm_89"),
    NIB_MULTIPLE(GROUP, 32, "the matrix unit sums 32 codes under one scale"),
    NIB_COND_END,
};
#define ONE_SCALE NIB_AT_MOST(GROUP, NIB_GROUP_ROW, "the matrix unit sums all of k under one scale")
static const nib_cond sm90a[] = {
    NIB_IS(SM, 90, "its machine code is for sm_90a only"),
    ONE_SCALE,
    NIB_COND_END,
};
static const nib_cond sm100a_f8[] = {
    NIB_IS(SM, 100, "its machine code is for sm_100a only"),
    ONE_SCALE,
    NIB_COND_END,
};
static const nib_cond sm100a[] = {
    NIB_IS(SM, 100, "its machine code is for sm_100a only"),
    NIB_COND_END,
};

/* Relative to the sum of magnitudes: the error of fp8 units that keep 13 bits, which grows with the
 * spread of the magnitudes. */
#define F8_TOLERANCE (1.0 / 1024)

/* Products of experts are not compiled for blocks of small floats, X=3. */
#define GROUPED(act) ((act) != NIB_ACT_MX8 && (act) != NIB_ACT_MX4 && (act) != NIB_ACT_NV4)
#define PROMPT 17 /* tokens from which on arithmetic, not memory, bounds a product */
#define TILE_ROW(op_, name_, types, code_, act_, input_, unit_, conds_, function, grouped_)        \
    {                                                                                              \
        .name = name_ types "_f32__sm80", .op = NIB_OP_##op_, .code = NIB_CODE_##code_,            \
        .act = NIB_ACT_##act_, .input = input_, .device = NIB_DEVICE_CUDA, .conds = conds_,        \
        .arithmetic = NIB_ARITHMETIC_OTHER, .reference = name_ types "_f32__ref", .rank = 30,      \
        .unit = NIB_UNIT_##unit_, .n_step = 1, .m_best = PROMPT, .grouped = grouped_,              \
        .packing = &nib__packing_rows, .gpu = NIB_CUDA_CODE(&source_tile, function),               \
        .note = "tensor cores of sm_80 and later, for many tokens"                                 \
    }
/* Rows for fp8 matrix units. */
#define F8_ROW(op_, name_, types, target, code_, act_, conds_, tolerance_, rank_, unit_, gpu_,     \
               note_)                                                                              \
    {                                                                                              \
        .name = name_ types "_f32__" target, .op = NIB_OP_##op_, .code = NIB_CODE_##code_,         \
        .act = NIB_ACT_##act_, .input = NIB_ANY, .device = NIB_DEVICE_CUDA, .conds = conds_,       \
        .arithmetic = NIB_ARITHMETIC_OTHER, .tolerance = tolerance_,                               \
        .reference = name_ types "_f32__ref", .rank = rank_, .unit = NIB_UNIT_##unit_,             \
        .n_step = 1, .m_best = PROMPT, .packing = &nib__packing_rows, .gpu = gpu_, .note = note_   \
    }
#define F8_ROWS(...)                                                                               \
    F8_ROW(LINEAR, "linear_", __VA_ARGS__), F8_ROW(LINEAR_DX, "linear_dx_", __VA_ARGS__),          \
        F8_ROW(LINEAR_DW, "linear_dw_", __VA_ARGS__)
#define TILE_LINEAR(types, code, act, input, unit, conds)                                          \
    TILE_ROW(LINEAR, "linear_", types, code, act, input, unit, conds, launch_tile,                 \
             GROUPED(NIB_ACT_##act))
#define TILE_F16(word, code, conds)                                                                \
    TILE_ROW(LINEAR, "linear_", "f16_" word, code, FLOAT, NIB_TYPE_F16, BF16, conds,               \
             launch_tile_f16, false)
#define TILE_BACKWARD(types, code, act, input)                                                     \
    TILE_ROW(LINEAR_DX, "linear_dx_", types, code, act, input, BF16, nib__cuda_groups_of_32,       \
             launch_tile, false),                                                                  \
        TILE_ROW(LINEAR_DW, "linear_dw_", types, code, act, input, BF16, nib__cuda_groups_of_32,   \
                 launch_tile, false)

#define MATVEC(op_, name_, types, code_, act_, input_, unit_)                                      \
    {                                                                                              \
        .name = name_ types "_f32__sm80_4x4", .op = NIB_OP_##op_, .code = NIB_CODE_##code_,        \
        .act = NIB_ACT_##act_, .input = input_, .device = NIB_DEVICE_CUDA, .conds = sm80,          \
        .arithmetic = NIB_ARITHMETIC_OTHER, .reference = name_ types "_f32__ref", .rank = 35,      \
        .unit = NIB_UNIT_##unit_, .n_step = 1,                                                     \
        .grouped = NIB_OP_##op_ == NIB_OP_LINEAR && GROUPED(NIB_ACT_##act_),                       \
        .packing = &nib__packing_rows, .gpu = NIB_CUDA_CODE(&source_matvec, launch_matvec),        \
        .note = "any shape, group and scale, for few tokens"                                       \
    }
#define LINEAR(types, code, act, input, unit)                                                      \
    MATVEC(LINEAR, "linear_", types, code, act, input, unit)
#define F32(word, code) LINEAR("f32_" word, code, FLOAT, NIB_TYPE_F32, F32)
#define F16(word, code) LINEAR("f16_" word, code, FLOAT, NIB_TYPE_F16, F32)
#define BF16(word, code) LINEAR("bf16_" word, code, FLOAT, NIB_TYPE_BF16, F32)

static const nib_kernel rows[] = {
    F32("f32", F32),
    F32("f16", F16),
    F32("bf16", BF16),
    F32("w8g", I8),
    F32("w4g", I4),
    F32("e4m3c", E4M3),
    F32("e5m2c", E5M2),
    F32("mx8", MX8),
    F32("mx4", MX4),
    F32("nv4", NV4),
    F16("f32", F32),
    F16("f16", F16),
    F16("bf16", BF16),
    F16("w8g", I8),
    F16("w4g", I4),
    F16("e4m3c", E4M3),
    F16("e5m2c", E5M2),
    F16("mx8", MX8),
    F16("mx4", MX4),
    F16("nv4", NV4),
    BF16("f32", F32),
    BF16("f16", F16),
    BF16("bf16", BF16),
    BF16("w8g", I8),
    BF16("w4g", I4),
    BF16("e4m3c", E4M3),
    BF16("e5m2c", E5M2),
    BF16("mx8", MX8),
    BF16("mx4", MX4),
    BF16("nv4", NV4),
    LINEAR("a8t_w8g", I8, I8_TOKEN, NIB_ANY, I8),
    LINEAR("a8s_w8g", I8, I8_STATIC, NIB_ANY, I8),
    LINEAR("a4t_w8g", I8, I4_TOKEN, NIB_ANY, I8),
    LINEAR("a8t_w4g", I4, I8_TOKEN, NIB_ANY, I8),
    LINEAR("a8s_w4g", I4, I8_STATIC, NIB_ANY, I8),
    LINEAR("a8b32_w8g", I8, I8_BLOCK32, NIB_ANY, I8),
    LINEAR("a8b32_w4g", I4, I8_BLOCK32, NIB_ANY, I8),
    LINEAR("a8b32_mx4", MX4, I8_BLOCK32, NIB_ANY, I8),
    LINEAR("a8b256_w8g", I8, I8_BLOCK256, NIB_ANY, I8),
    LINEAR("a8b256_w4g", I4, I8_BLOCK256, NIB_ANY, I8),
    LINEAR("a4t_w4g", I4, I4_TOKEN, NIB_ANY, I8),
    LINEAR("e4m3t_e4m3c", E4M3, E4M3_TOKEN, NIB_ANY, F32),
    LINEAR("mx8_mx8", MX8, MX8, NIB_ANY, F32),
    LINEAR("mx8_mx4", MX4, MX8, NIB_ANY, F32),
    LINEAR("mx4_mx4", MX4, MX4, NIB_ANY, F32),
    LINEAR("nv4_nv4", NV4, NV4, NIB_ANY, F32),
    MATVEC(LINEAR_DX, "linear_dx_", "f32_f32", F32, FLOAT, NIB_TYPE_F32, F32),
    MATVEC(LINEAR_DW, "linear_dw_", "f32_f32", F32, FLOAT, NIB_TYPE_F32, F32),
    TILE_F16("f16", F16, nib__cuda_mma),
    TILE_F16("w8g", I8, nib__cuda_groups_of_32),
    TILE_F16("w4g", I4, nib__cuda_groups_of_32),
    TILE_LINEAR("bf16_bf16", BF16, FLOAT, NIB_TYPE_BF16, BF16, nib__cuda_mma),
    TILE_LINEAR("bf16_w8g", I8, FLOAT, NIB_TYPE_BF16, BF16, nib__cuda_groups_of_32),
    TILE_LINEAR("bf16_w4g", I4, FLOAT, NIB_TYPE_BF16, BF16, nib__cuda_groups_of_32),
    TILE_LINEAR("bf16_e4m3c", E4M3, FLOAT, NIB_TYPE_BF16, BF16, nib__cuda_groups_of_32),
    TILE_LINEAR("bf16_mx8", MX8, FLOAT, NIB_TYPE_BF16, BF16, nib__cuda_mma),
    TILE_LINEAR("bf16_mx4", MX4, FLOAT, NIB_TYPE_BF16, BF16, nib__cuda_mma),
    TILE_LINEAR("bf16_nv4", NV4, FLOAT, NIB_TYPE_BF16, BF16, nib__cuda_mma),
    TILE_LINEAR("a8t_w8g", I8, I8_TOKEN, NIB_ANY, I8, nib__cuda_groups_of_32),
    TILE_LINEAR("a8s_w8g", I8, I8_STATIC, NIB_ANY, I8, nib__cuda_groups_of_32),
    TILE_LINEAR("a4t_w8g", I8, I4_TOKEN, NIB_ANY, I8, nib__cuda_groups_of_32),
    TILE_LINEAR("a8t_w4g", I4, I8_TOKEN, NIB_ANY, I8, nib__cuda_groups_of_32),
    TILE_LINEAR("a8s_w4g", I4, I8_STATIC, NIB_ANY, I8, nib__cuda_groups_of_32),
    TILE_LINEAR("a8b32_w8g", I8, I8_BLOCK32, NIB_ANY, I8, nib__cuda_groups_of_32),
    TILE_LINEAR("a8b32_w4g", I4, I8_BLOCK32, NIB_ANY, I8, nib__cuda_groups_of_32),
    TILE_LINEAR("a8b32_mx4", MX4, I8_BLOCK32, NIB_ANY, I8, nib__cuda_mma),
    TILE_LINEAR("a8b256_w8g", I8, I8_BLOCK256, NIB_ANY, I8, nib__cuda_groups_of_32),
    TILE_LINEAR("a8b256_w4g", I4, I8_BLOCK256, NIB_ANY, I8, nib__cuda_groups_of_32),
    TILE_LINEAR("a4t_w4g", I4, I4_TOKEN, NIB_ANY, I8, nib__cuda_groups_of_32),
    TILE_LINEAR("e4m3t_e4m3c", E4M3, E4M3_TOKEN, NIB_ANY, BF16, nib__cuda_groups_of_32),
    TILE_LINEAR("mx8_mx8", MX8, MX8, NIB_ANY, BF16, nib__cuda_mma),
    TILE_LINEAR("mx8_mx4", MX4, MX8, NIB_ANY, BF16, nib__cuda_mma),
    TILE_LINEAR("mx4_mx4", MX4, MX4, NIB_ANY, BF16, nib__cuda_mma),
    TILE_LINEAR("nv4_nv4", NV4, NV4, NIB_ANY, BF16, nib__cuda_mma),
    F8_ROWS(
        "e4m3t_e4m3c", "sm89", E4M3, E4M3_TOKEN, sm89, F8_TOLERANCE, 25, FP8,
        NIB_CUDA_BUILT ? &code_f8 : NULL,
        "fp8 tensor cores of sm_89: sums of 64 products, each truncated about 13 bits below the "
        "largest, are added in f32; on sm_90 and sm_100 the same instruction computes in f16"),
    F8_ROWS("e4m3t_e4m3c", "sm90", E4M3, E4M3_TOKEN, sm90a, F8_TOLERANCE, 20, FP8,
            NIB_SM90_BUILT ? &code_wgmma : NULL,
            "wgmma: sums of 128 products, each truncated about 13 bits below the largest, are "
            "added in f32"),
    F8_ROWS("e4m3t_e4m3c", "sm100", E4M3, E4M3_TOKEN, sm100a_f8, 0, 10, FP8,
            NIB_SM100_BUILT ? &code_tcgen05 : NULL,
            "tcgen05: accumulates in tensor memory; compiled only, not yet run on a device"),
    F8_ROWS("mx8_mx8", "sm100", MX8, MX8, sm100a, 0, 10, MX8,
            NIB_SM100_BUILT ? &code_tcgen05 : NULL,
            "tcgen05 with block scales: accumulates in tensor memory; tails are padded in shared "
            "memory; compiled only, not yet run on a device"),
    TILE_BACKWARD("bf16_bf16", BF16, FLOAT, NIB_TYPE_BF16),
    TILE_BACKWARD("e4m3t_e4m3c", E4M3, E4M3_TOKEN, NIB_ANY),
    TILE_BACKWARD("mx8_mx8", MX8, MX8, NIB_ANY),
    {.name = "embed_f32__sm80",
     .op = NIB_OP_EMBED,
     .code = NIB_ANY,
     .act = NIB_ANY,
     .input = NIB_ANY,
     .device = NIB_DEVICE_CUDA,
     .conds = sm80,
     .arithmetic = NIB_ARITHMETIC_OTHER,
     .reference = "embed_f32__ref",
     .rank = 30,
     .unit = NIB_UNIT_F32,
     .n_step = 1,
     .packing = &nib__packing_rows,
     .gpu = NIB_CUDA_CODE(&source_embed, launch_embed),
     .note = "dequantizes rows of the table"},
};

const nib_family nib__family_cuda_linear = {rows, COUNT(rows)};
