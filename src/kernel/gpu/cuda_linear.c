/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows of CUDA for linear products of few tokens, which take any number: matvec.cu. Those of tensor
 * cores for many are declared (declared.c). Their weights lie in the layout "rows" of
 * gpu_pack.h, at a multiple of 64 bytes.
 */
#include "cuda_programs.h"
#include "gpu_pack.h"

#include "kernel.h"

enum {
    ROWS = 4, /* outputs of a block, and */
    THREADS = 128,
    TOKENS = 4, /* tokens of a block, unless there is one */
};

/* ---- what cuda_linear.cuh calls codes and types ---- */

static int weight_number(nib_code code)
{
    switch (code) {
    case NIB_CODE_F32: return 0;
    case NIB_CODE_F16: return 1;
    case NIB_CODE_BF16: return 2;
    case NIB_CODE_I8: return 3;
    case NIB_CODE_I4: return 4;
    case NIB_CODE_MX4:
    case NIB_CODE_NV4: return 7;
    default: return 5; /* e4m3 codes: E4M3, MX8 */
    }
}

static int value_number(nib_type type)
{
    switch (type) {
    case NIB_TYPE_F32: return 0;
    case NIB_TYPE_F16: return 1;
    case NIB_TYPE_BF16: return 2;
    case NIB_TYPE_E8M0: return 3;
    case NIB_TYPE_E4M3: return 4;
    case NIB_TYPE_I8: return 5;
    case NIB_TYPE_I32: return 6;
    default: return -1;
    }
}

enum { INPUT_F32, INPUT_BF16, INPUT_I8, INPUT_E4M3 };

static int input_number(const nib_input *x, nib_act act)
{
    if (x->bf16 != NULL)
        return INPUT_BF16;
    if (x->codes == NULL || act == NIB_ACT_FLOAT)
        return INPUT_F32;
    return nib__act_is_mx(act) ? INPUT_E4M3 : INPUT_I8;
}

static const void *values_of(const nib_input *x, int number)
{
    return number == INPUT_BF16  ? (const void *)x->bf16
           : number == INPUT_F32 ? (const void *)x->f32
                                 : x->codes;
}

static const void *part(const void *packed, uint64_t at, nib_type type)
{
    return type != NIB_TYPE_NONE ? (const char *)packed + at : NULL;
}

/* In the order of PRODUCT_ARGS. */
static void product_args(nib_launch *out, const nib_linear *a, const nib_gpu_rows *l, int number)
{
    const nib_input *x = &a->x;
    const nib_act act = a->w->scheme.act;
    const int64_t block = nib__act_block(act);
    nib__launch_memory(out, a->packed);
    nib__launch_memory(out, part(a->packed, l->scale_at, l->scale_type));
    nib__launch_memory(out, part(a->packed, l->zero_at, l->zero_type));
    nib__launch_memory(out, values_of(x, number));
    nib__launch_memory(out, x->scale);
    nib__launch_memory(out, x->zero);
    nib__launch_memory(out, a->bias);
    nib__launch_memory(out, a->int_bias);
    nib__launch_memory(out, a->y);
    nib__launch_int(out, x->m);
    nib__launch_int(out, a->w->n);
    nib__launch_int(out, a->w->k);
    nib__launch_int(out, l->ldk);
    nib__launch_int(out, nib__scheme_group_size(&a->w->scheme, a->w->k));
    nib__launch_int(out, l->groups);
    nib__launch_int(out, value_number(l->scale_type));
    nib__launch_int(out, value_number(l->zero_type));
    nib__launch_int(out, x->ld);
    nib__launch_int(out, block);
    nib__launch_int(out, a->ldy);
    nib__launch_int(out, (uintptr_t)x->f32 % 16 == 0 && x->ld % 4 == 0);
    nib__launch_int(out, act != NIB_ACT_FLOAT && block == 0);
    nib__launch_float(out, a->w->tensor_scale != 0 ? nib__weight_factor(a->w) : 1);
}

/* Codes of a row that a thread takes at a time: STEP of matvec.cu. */
static int64_t step_of(nib_code code)
{
    const int number = weight_number(code);
    if (code == NIB_CODE_NV4)
        return 16; /* its groups */
    return number == 4 || number == 7 ? 32 : number == 3 || number == 5 ? 16 : 8;
}

static int launch_linear(const void *args, nib_launch out[])
{
    const nib_linear *a = args;
    const nib_gpu_rows l = nib__gpu_rows(a->w);
    const int number = input_number(&a->x, a->w->scheme.act), tokens = a->x.m == 1 ? 1 : TOKENS;
    const int64_t step = step_of(a->w->scheme.code);
    const bool is_whole = l.groups <= 1 || a->w->scheme.group % step == 0;
    nib__launch_init(out, is_whole ? "matvec" : "matvec_any", nib__ceil_div(a->w->n, (int64_t)ROWS),
                     THREADS);
    out->groups[1] = nib__ceil_div(a->x.m, (int64_t)tokens);
    nib__launch_option(out, "-DW=%d -DX=%d -DTOKENS=%d", weight_number(a->w->scheme.code), number,
                       tokens);
    if (a->w->scheme.code == NIB_CODE_NV4)
        nib__launch_option(out, " -DSTEP=%d", (int)step);
    product_args(out, a, &l, number);
    return 1;
}

/* ---- rows ---- */

static const nib_gpu_source source_matvec = {.name = "matvec.cu"};

static const nib_cond sm80[] = {
    NIB_AT_LEAST(SM, 80, "its machine code begins at sm_80"),
    NIB_COND_END,
};

#define LINEAR(types, code_, act_, input_, unit_)                                                  \
    {                                                                                              \
        .name = "linear_" types "_f32__sm80_4x4", .op = NIB_OP_LINEAR, .code = NIB_CODE_##code_,   \
        .act = NIB_ACT_##act_, .input = input_, .device = NIB_DEVICE_CUDA, .conds = sm80,          \
        .numbers = NIB_NUMBERS_OTHER, .reference = "linear_" types "_f32__ref", .rank = 35,        \
        .unit = NIB_UNIT_##unit_, .n_step = 1, .packing = &nib__packing_rows,                      \
        .gpu = NIB_CUDA_CODE(&source_matvec, launch_linear),                                       \
        .note = "any shape, group and scale, for few tokens; compiled only, not yet run on a "     \
                "device"                                                                           \
    }
#define F32(word, code) LINEAR("f32_" word, code, FLOAT, NIB_TYPE_F32, F32)
#define F16(word, code) LINEAR("f16_" word, code, FLOAT, NIB_TYPE_F16, F32)
#define BF16(word, code) LINEAR("bf16_" word, code, FLOAT, NIB_TYPE_BF16, F32)

static const nib_kernel rows[] = {
    F32("f32", F32),
    F32("bf16", BF16),
    F32("w8g", I8),
    F32("w4g", I4),
    F32("e4m3c", E4M3),
    F32("mx4", MX4),
    F32("nv4", NV4),
    F16("f16", F16),
    F16("w8g", I8),
    F16("w4g", I4),
    BF16("bf16", BF16),
    BF16("w8g", I8),
    BF16("w4g", I4),
    BF16("e4m3c", E4M3),
    BF16("mx4", MX4),
    BF16("nv4", NV4),
    LINEAR("a8t_w8g", I8, I8_TOKEN, NIB_ANY, I8),
    LINEAR("a8s_w8g", I8, I8_STATIC, NIB_ANY, I8),
    LINEAR("a8t_w4g", I4, I8_TOKEN, NIB_ANY, I8),
    LINEAR("a8s_w4g", I4, I8_STATIC, NIB_ANY, I8),
    LINEAR("a8b32_w8g", I8, I8_BLOCK32, NIB_ANY, I8),
    LINEAR("a8b32_w4g", I4, I8_BLOCK32, NIB_ANY, I8),
    LINEAR("a8b256_w8g", I8, I8_BLOCK256, NIB_ANY, I8),
    LINEAR("a8b256_w4g", I4, I8_BLOCK256, NIB_ANY, I8),
    LINEAR("a4t_w4g", I4, I4_TOKEN, NIB_ANY, I8),
    LINEAR("e4m3t_e4m3c", E4M3, E4M3_TOKEN, NIB_ANY, F32),
    LINEAR("mx8_mx8", MX8, MX8, NIB_ANY, F32),
    LINEAR("mx4_mx4", MX4, MX4, NIB_ANY, F32),
};

const nib_family nib__family_cuda_linear = {rows, COUNT(rows)};
