/* SPDX-License-Identifier: Apache-2.0
 *
 * OpenCL rows that quantize f32 activations to the form that a linear row reads (quant.cl). Sums
 * over groups are separate launches, made only if memory for them is given: the products of
 * linear.cl need none. The CUDA rows make the same launches.
 */
#include "quant_launches.h"
#include "sources.h"

#include "kernel.h"

enum { GROUP = 64, MX_BLOCK = 32 };

/* One work-group of `items` for each of `columns` parts of each token. */
static void init(nib_launch *out, const char *function, int64_t columns, int64_t m, int items)
{
    nib__launch_init(out, function, columns * m, items);
    nib__launch_option(out, "-DGROUP=%d", items);
}

/* Adds k and where rows begin, which every function takes. */
static void add_shape(nib_launch *out, const nib_quant *a)
{
    nib__launch_int(out, a->out.k);
    nib__launch_int(out, a->ldx);
    nib__launch_int(out, a->out.ld);
    nib__launch_int(out, a->per_head > 0 ? a->per_head : nib__max(1, a->out.m));
    nib__launch_int(out, a->head_step);
}

/* ---- sums; both functions return how many launches they add ---- */

static int add_code_sums(const nib_quant *a, nib_launch *out)
{
    if (a->out.sums == NULL)
        return 0;
    init(out, "code_sums", a->out.groups, a->out.m, GROUP);
    nib__launch_memory(out, a->out.codes);
    nib__launch_memory(out, a->out.sums);
    nib__launch_int(out, a->out.k);
    nib__launch_int(out, a->out.ld);
    nib__launch_int(out, a->out.group);
    return 1;
}

static int add_float_sums(const nib_quant *a, nib_launch *out)
{
    enum { TYPE_F32 = 0, TYPE_BF16 = 2 }; /* of prelude.cl */
    const bool is_bf16 = a->out.bf16 != NULL;
    if (a->out.fsums == NULL)
        return 0;
    init(out, "float_sums", a->out.groups, a->out.m, GROUP);
    nib__launch_memory(out, is_bf16 ? (const void *)a->out.bf16 : a->out.f32);
    nib__launch_memory(out, a->out.fsums);
    nib__launch_int(out, a->out.k);
    nib__launch_int(out, a->out.ld);
    nib__launch_int(out, a->out.group);
    nib__launch_int(out, is_bf16 ? TYPE_BF16 : TYPE_F32);
    return 1;
}

/* ---- integers ---- */

static int launch_integers(const nib_quant *a, nib_launch out[], int items, int qmin, int qmax,
                           bool is_static)
{
    const bool wide_eps = a->symmetric || a->formula == NIB_FORMULA_AO017;
    init(out, "integers", 1, a->out.m, items);
    nib__launch_memory(out, a->x);
    nib__launch_memory(out, a->out.codes);
    nib__launch_memory(out, a->out.scale);
    nib__launch_memory(out, a->out.zero);
    add_shape(out, a);
    nib__launch_int(out, qmin);
    nib__launch_int(out, qmax);
    nib__launch_int(out, a->symmetric);
    nib__launch_int(out, is_static);
    nib__launch_int(out, is_static && a->static_zero != NULL ? *a->static_zero : 0);
    nib__launch_float(out, wide_eps ? 0x1p-23F : 0x1p-126F);
    nib__launch_float(out, is_static ? *a->static_scale : 1);
    return 1 + add_code_sums(a, out + 1);
}

int nib__launch_quant_a8t(const nib_quant *a, nib_launch out[], int items)
{
    return launch_integers(a, out, items, -128, 127, false);
}
int nib__launch_quant_a4t(const nib_quant *a, nib_launch out[], int items)
{
    return launch_integers(a, out, items, -8, 7, false);
}
int nib__launch_quant_a8s(const nib_quant *a, nib_launch out[], int items)
{
    return launch_integers(a, out, items, -128, 127, true);
}

static int launch_blocks(const nib_quant *a, nib_launch out[], int block)
{
    init(out, "blocks", nib__ceil_div(a->out.k, block), a->out.m, block < GROUP ? block : GROUP);
    nib__launch_option(out, " -DBLOCK=%d", block);
    nib__launch_memory(out, a->x);
    nib__launch_memory(out, a->out.codes);
    nib__launch_memory(out, a->out.scale);
    add_shape(out, a);
    return 1 + add_code_sums(a, out + 1);
}

int nib__launch_quant_a8b32(const void *args, nib_launch out[])
{
    return launch_blocks(args, out, 32);
}
int nib__launch_quant_a8b256(const void *args, nib_launch out[])
{
    return launch_blocks(args, out, 256);
}

/* ---- small floats ---- */

int nib__launch_quant_e4m3t(const nib_quant *a, nib_launch out[], int items)
{
    const float most = a->e5m2 ? 57344 : 448;
    init(out, "f8_tokens", 1, a->out.m, items);
    nib__launch_memory(out, a->x);
    nib__launch_memory(out, a->out.bf16);
    nib__launch_memory(out, a->out.scale);
    nib__launch_memory(out, a->amax);
    add_shape(out, a);
    nib__launch_int(out, a->e5m2 || a->two_power || a->amax != NULL);
    nib__launch_int(out, a->amax != NULL);
    nib__launch_int(out, a->e5m2);
    nib__launch_int(out, a->two_power);
    nib__launch_float(out, most);
    nib__launch_float(out, (float)((double)most / 1e-12)); /* nib__cast_factor of 0 */
    return 1;
}

static int launch_mx(const nib_quant *a, nib_launch out[], bool is_e2m1)
{
    init(out, "mx_blocks", nib__ceil_div(a->out.k, MX_BLOCK), a->out.m, MX_BLOCK);
    nib__launch_memory(out, a->x);
    nib__launch_memory(out, a->out.codes);
    nib__launch_memory(out, a->out.scale);
    add_shape(out, a);
    nib__launch_int(out, is_e2m1);
    nib__launch_int(out, a->mx_floor);
    return 1;
}

int nib__launch_quant_mx8(const void *args, nib_launch out[])
{
    return launch_mx(args, out, false);
}
int nib__launch_quant_mx4(const void *args, nib_launch out[]) { return launch_mx(args, out, true); }

int nib__launch_quant_nv4(const nib_quant *a, nib_launch out[], int items)
{
    init(out, "nv_tokens", 1, a->out.m, items);
    nib__launch_memory(out, a->x);
    nib__launch_memory(out, a->out.codes);
    nib__launch_memory(out, a->out.scale);
    add_shape(out, a);
    nib__launch_int(out, a->block_only);
    return 1;
}

/* ---- floats ---- */

int nib__launch_quant_bf16(const void *args, nib_launch out[])
{
    const nib_quant *a = args;
    init(out, "to_bf16_rows", nib__ceil_div(a->out.ld, GROUP), a->out.m, GROUP);
    nib__launch_memory(out, a->x);
    nib__launch_memory(out, a->out.bf16);
    add_shape(out, a);
    return 1 + add_float_sums(a, out + 1);
}

static int launch_f32_rows(const nib_quant *a, nib_launch out[], bool is_rounded)
{
    if (!is_rounded && a->out.f32 == a->x) /* used unchanged */
        return add_float_sums(a, out);
    init(out, "to_f32_rows", nib__ceil_div(a->out.k, GROUP), a->out.m, GROUP);
    nib__launch_memory(out, a->x);
    nib__launch_memory(out, a->out.f32);
    add_shape(out, a);
    nib__launch_int(out, is_rounded);
    return 1 + add_float_sums(a, out + 1);
}

int nib__launch_quant_f16(const void *args, nib_launch out[])
{
    return launch_f32_rows(args, out, true);
}
int nib__launch_quant_f32(const void *args, nib_launch out[])
{
    return launch_f32_rows(args, out, false);
}

/* ---- rows ---- */

static int quant_a8t(const void *args, nib_launch out[])
{
    return nib__launch_quant_a8t(args, out, GROUP);
}
static int quant_a8s(const void *args, nib_launch out[])
{
    return nib__launch_quant_a8s(args, out, GROUP);
}
static int quant_a4t(const void *args, nib_launch out[])
{
    return nib__launch_quant_a4t(args, out, GROUP);
}
static int quant_e4m3t(const void *args, nib_launch out[])
{
    return nib__launch_quant_e4m3t(args, out, GROUP);
}
static int quant_nv4(const void *args, nib_launch out[])
{
    return nib__launch_quant_nv4(args, out, GROUP);
}

#define ROW(form, act_, input_, function, words)                                                   \
    {                                                                                              \
        .name = "quant_f32_" #form "__ocl", .op = NIB_OP_QUANT, .code = NIB_ANY,                   \
        .act = NIB_ACT_##act_, .input = input_, .device = NIB_DEVICE_OPENCL,                       \
        .conds = NIB_NO_CONDS, .arithmetic = NIB_ARITHMETIC_OTHER,                                 \
        .reference = "quant_f32_" #form "__ref", .rank = 40, .unit = NIB_UNIT_F32, .n_step = 1,    \
        .gpu = &(const nib_gpu_code){&nib__source_quant, function}, .note = words                  \
    }

static const nib_kernel rows[] = {
    ROW(a8t, I8_TOKEN, NIB_ANY, quant_a8t, "one work-group per token"),
    ROW(a8s, I8_STATIC, NIB_ANY, quant_a8s, "one work-group per token"),
    ROW(a4t, I4_TOKEN, NIB_ANY, quant_a4t, "one work-group per token"),
    ROW(a8b32, I8_BLOCK32, NIB_ANY, nib__launch_quant_a8b32, "one work-group per block"),
    ROW(a8b256, I8_BLOCK256, NIB_ANY, nib__launch_quant_a8b256, "one work-group per block"),
    ROW(e4m3t, E4M3_TOKEN, NIB_ANY, quant_e4m3t, "one work-group per token"),
    ROW(mx8, MX8, NIB_ANY, nib__launch_quant_mx8, "one work-group per block"),
    ROW(mx4, MX4, NIB_ANY, nib__launch_quant_mx4, "one work-group per block"),
    ROW(nv4, NV4, NIB_ANY, quant_nv4, "one work-group per token"),
    ROW(bf16, FLOAT, NIB_TYPE_BF16, nib__launch_quant_bf16, "one work-item per value"),
    ROW(f16, FLOAT, NIB_TYPE_F16, nib__launch_quant_f16, "one work-item per value"),
    ROW(f32, FLOAT, NIB_TYPE_F32, nib__launch_quant_f32,
        "used unchanged, or copied with one work-item per value"),
};

const nib_family nib__family_ocl_quant = {rows, COUNT(rows)};
