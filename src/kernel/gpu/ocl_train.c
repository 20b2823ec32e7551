/* SPDX-License-Identifier: Apache-2.0
 *
 * OpenCL rows for training, for any OpenCL 1.2 device and any shape. The gradients of a linear
 * layer are forward products with other operands (train_ops.h), so they run the functions of the
 * forward rows (linear.cl) on weights that the casts here wrote (cast.cl). The CUDA rows make the
 * same launches of casts.
 */
#include "cast_launches.h"
#include "gpu_pack.h"
#include "ocl_linear.h"
#include "sources.h"

#include "cast.h"

enum { FORM_F32, FORM_BF16, FORM_E4M3, FORM_WIDE, FORM_MX8 };
enum {
    TILE = 32,
    ITEMS = 256,
    TURNS = 64 /* the most work-groups that share the tiles of a sum */
};

/* ---- casts ---- */

/* One matrix to cast. */
typedef struct casting {
    const float *x;
    const void *to, *scales;
    const float *amax;
    int64_t sums, length, ldx, ld, width, blocks;
    int form;
    bool across, is_weight, two_power, e5m2, mx_floor;
} casting;

static int launch_tiles(const casting *c, nib_launch out[])
{
    const float most = c->e5m2 ? 57344 : 448;
    const bool is_f8 = c->form == FORM_E4M3 || c->form == FORM_WIDE;
    nib__launch_init(out, "cast_tiles", nib__ceil_div(c->sums, TILE), ITEMS);
    if (!is_f8 || c->amax != NULL)
        out->groups[1] = nib__min(TURNS, nib__ceil_div(c->width, TILE));
    nib__launch_option(out, "-DFORM=%d -DACROSS=%d", c->form, c->across);
    nib__launch_memory(out, c->x);
    nib__launch_memory(out, c->to);
    nib__launch_memory(out, c->scales);
    nib__launch_memory(out, c->amax);
    nib__launch_int(out, c->sums);
    nib__launch_int(out, c->length);
    nib__launch_int(out, c->ldx);
    nib__launch_int(out, c->ld);
    nib__launch_int(out, c->width);
    nib__launch_int(out, c->blocks);
    nib__launch_int(out, c->is_weight);
    nib__launch_int(out, c->amax != NULL);
    nib__launch_int(out, c->two_power);
    nib__launch_int(out, c->e5m2);
    nib__launch_int(out, c->mx_floor);
    nib__launch_float(out, most);
    nib__launch_float(out, (float)((double)most / 1e-12)); /* nib__cast_factor of 0 */
    return 1;
}

static int form_of(nib_code code)
{
    switch (code) {
    case NIB_CODE_F32: return FORM_F32;
    case NIB_CODE_BF16: return FORM_BF16;
    case NIB_CODE_E4M3: return FORM_E4M3;
    default: return FORM_MX8;
    }
}

static int launch_weight(const nib_cast *a, nib_launch out[], bool across)
{
    const nib_gpu_layout l = nib__gpu_layout(a->w);
    const casting c = {.x = a->x,
                       .to = a->packed,
                       .scales = l.groups > 0 ? (const char *)a->packed + l.scale_offset : NULL,
                       .amax = a->amax,
                       .sums = a->w->n,
                       .length = a->w->k,
                       .ldx = a->ldx,
                       .ld = l.ldk,
                       .width = l.ldk,
                       .blocks = l.groups,
                       .form = form_of(a->w->scheme.code),
                       .across = across,
                       .is_weight = true,
                       .two_power = a->two_power,
                       .mx_floor = a->w->scheme.mx_floor};
    return launch_tiles(&c, out);
}

int nib__launch_cast(const void *args, nib_launch out[]) { return launch_weight(args, out, false); }
int nib__launch_cast_t(const void *args, nib_launch out[])
{
    return launch_weight(args, out, true);
}

/* Activations whose sums are columns of x. */
static int launch_input(const nib_quant *a, nib_launch out[], int form, const void *to)
{
    const casting c = {.x = a->x,
                       .to = to,
                       .scales = a->out.scale,
                       .amax = a->amax,
                       .sums = a->out.m,
                       .length = a->out.k,
                       .ldx = a->ldx,
                       .ld = a->out.ld,
                       .width = form == FORM_F32 ? a->out.k : a->out.ld,
                       .blocks = a->out.groups,
                       .form = form,
                       .across = true,
                       .two_power = a->two_power,
                       .e5m2 = a->e5m2,
                       .mx_floor = a->mx_floor};
    return launch_tiles(&c, out);
}

int nib__launch_quant_t_f32(const void *args, nib_launch out[])
{
    const nib_quant *a = args;
    return launch_input(a, out, FORM_F32, a->out.f32);
}
int nib__launch_quant_t_bf16(const void *args, nib_launch out[])
{
    const nib_quant *a = args;
    return launch_input(a, out, FORM_BF16, a->out.bf16);
}
int nib__launch_quant_t_e4m3t(const void *args, nib_launch out[])
{
    const nib_quant *a = args;
    return launch_input(a, out, FORM_WIDE, a->out.bf16);
}
int nib__launch_quant_t_mx8(const void *args, nib_launch out[])
{
    const nib_quant *a = args;
    return launch_input(a, out, FORM_MX8, a->out.codes);
}

int nib__launch_amax(const void *args, nib_launch out[])
{
    const nib_amax *a = args;
    nib__launch_init(out, "amax_rows", nib__ceil_div(a->rows, NIB_TRAIN_ROWS), ITEMS);
    nib__launch_option(out, "-DROWS=%d", NIB_TRAIN_ROWS);
    nib__launch_memory(out, a->x);
    nib__launch_memory(out, a->out);
    nib__launch_int(out, a->rows);
    nib__launch_int(out, a->width);
    nib__launch_int(out, a->ldx);
    return 1;
}

/* ---- rows ---- */

#define ROW(name_, op_, code_, act_, input_, packing_, file, function, words)                      \
    {                                                                                              \
        .name = name_ "__ocl", .op = NIB_OP_##op_, .code = code_, .act = act_, .input = input_,    \
        .device = NIB_DEVICE_OPENCL, .conds = NIB_NO_CONDS, .arithmetic = NIB_ARITHMETIC_OTHER,    \
        .reference = name_ "__ref", .rank = 40, .unit = NIB_UNIT_F32, .n_step = 1,                 \
        .packing = packing_, .gpu = &(const nib_gpu_code){&nib__source_##file, function},          \
        .note = words                                                                              \
    }
#define PRODUCT(types, CODE, ACT, input)                                                           \
    ROW("linear_dx_" types "_f32", LINEAR_DX, NIB_CODE_##CODE, NIB_ACT_##ACT, input,               \
        &nib__packing_rows, linear, nib__ocl_linear, "any OpenCL 1.2 device, any shape"),          \
        ROW("linear_dw_" types "_f32", LINEAR_DW, NIB_CODE_##CODE, NIB_ACT_##ACT, input,           \
            &nib__packing_rows, linear, nib__ocl_linear, "any OpenCL 1.2 device, any shape")
#define CAST(form, CODE, words)                                                                    \
    ROW("cast_f32_" form, CAST, NIB_CODE_##CODE, NIB_ANY, NIB_ANY, &nib__packing_rows, cast,       \
        nib__launch_cast, words),                                                                  \
        ROW("cast_t_f32_" form, CAST_T, NIB_CODE_##CODE, NIB_ANY, NIB_ANY, &nib__packing_rows,     \
            cast, nib__launch_cast_t, words)
#define QUANT_T(form, ACT, input, words)                                                           \
    ROW("quant_t_f32_" #form, QUANT_T, NIB_ANY, NIB_ACT_##ACT, input, NULL, cast,                  \
        nib__launch_quant_t_##form, words)

static const nib_kernel rows[] = {
    PRODUCT("f32_f32", F32, FLOAT, NIB_TYPE_F32),
    PRODUCT("bf16_bf16", BF16, FLOAT, NIB_TYPE_BF16),
    PRODUCT("e4m3t_e4m3c", E4M3, E4M3_TOKEN, NIB_ANY),
    PRODUCT("mx8_mx8", MX8, MX8, NIB_ANY),
    NIB_GPU_CASTS(CAST, QUANT_T),
    ROW("amax_f32", AMAX, NIB_ANY, NIB_ANY, NIB_ANY, NULL, cast, nib__launch_amax,
        "one work-group per 256 rows"),
};

const nib_family nib__family_ocl_train = {rows, COUNT(rows)};
