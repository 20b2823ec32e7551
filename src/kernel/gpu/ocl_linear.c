/* SPDX-License-Identifier: Apache-2.0
 *
 * OpenCL rows for linear products and the embedding (linear.cl), for any OpenCL 1.2 device and any
 * shape. Weights have the layout "rows" of gpu_pack.h, at a multiple of 64 bytes.
 */
#include "gpu_args.h"
#include "ocl_linear.h"
#include "sources.h"

#include "kernel.h"

enum {
    FEW = 16,         /* the most tokens for "matvec" */
    TOKENS_MOST = 8,  /* matvec: the most tokens per work-group */
    ROWS = 4,         /* matvec: outputs per work-group */
    ITEMS = 64,       /* matvec, embed: work-items per work-group */
    TILE = 64,        /* tile: outputs and tokens per work-group */
    TILE_ITEMS = 256, /* tile: work-items per work-group */
};

/* log2 of the group size, -1 if it is not a power of two; 31 if there is only one group. */
static int group_shift(int64_t group, int64_t groups)
{
    if (groups <= 1)
        return 31;
    int shift = 0;
    while (INT64_C(1) << shift < group)
        shift++;
    return INT64_C(1) << shift == group ? shift : -1;
}

static void add_weight_numbers(nib_launch *out, const nib_gpu_layout *l, const nib_weight *w)
{
    nib__launch_int(out, l->ldk);
    nib__launch_int(out, nib__scheme_group_size(&w->scheme, w->k));
    nib__launch_int(out, l->groups);
    nib__launch_int(out, group_shift(w->scheme.group, l->groups));
}

static void add_weight_options(nib_launch *out, const nib_gpu_layout *l, const nib_weight *w)
{
    nib__launch_option(out, "-DW=%d -DSCALE=%d -DZERO=%d", (int)nib__codes[w->scheme.code].element,
                       nib__gpu_value_number(l->scale_type), nib__gpu_value_number(l->zero_type));
}

/* ---- products ---- */

/* Tokens per work-group of "matvec": a power of two. */
static int matvec_tokens(int64_t m)
{
    int tokens = 1;
    while (tokens < m && tokens < TOKENS_MOST)
        tokens *= 2;
    return tokens;
}

bool nib__ocl_steps_whole(const nib_weight *w)
{
    return nib__gpu_layout(w).groups <= 1 || w->scheme.group % NIB_OCL_STEP == 0;
}

bool nib__ocl_is_tile(const nib_launch *launch) { return strcmp(launch->function, "tile") == 0; }

static void init_product(nib_launch *out, const nib_linear *a, const nib_gpu_layout *l)
{
    const nib_scheme *s = &a->w->scheme;
    const int64_t m = nib__gpu_tokens(a);
    const bool is_few = m <= FEW;
    const int tokens = matvec_tokens(m);
    const int x = nib__gpu_input_number(&a->x, s->act);
    const bool is_integer =
        x == NIB_INPUT_I8 && nib__code_is_int(s->code) && nib__ocl_steps_whole(a->w);
    const int block = (int)nib__act_block(s->act);
    nib__launch_init(out, is_few ? "matvec" : "tile",
                     nib__ceil_div(a->w->n, is_few ? (int64_t)ROWS : TILE),
                     is_few ? ITEMS : TILE_ITEMS);
    out->groups[1] = nib__gpu_token_tiles(a, is_few ? (int64_t)tokens : TILE, is_few);
    add_weight_options(out, l, a->w);
    nib__launch_option(out, " -DX=%d -DXBLOCK=%d -DTOKEN_SCALE=%d", x, block,
                       s->act != NIB_ACT_FLOAT && block == 0);
    if (is_few)
        nib__launch_option(out, " -DTOKENS=%d -DROWS=%d -DITEMS=%d", tokens, ROWS, ITEMS);
    else if (is_integer)
        nib__launch_option(out, " -DSUM_INTEGERS");
}

int nib__ocl_linear(const void *args, nib_launch out[])
{
    const nib_linear *a = args;
    const nib_input *x = &a->x;
    const nib_gpu_layout l = nib__gpu_layout(a->w);
    const int64_t block = nib__act_block(a->w->scheme.act);
    init_product(out, a, &l);
    nib__gpu_weight_memory(out, &l, a->packed);
    nib__launch_memory(out, nib__gpu_input_values(x));
    nib__launch_memory(out, x->scale);
    nib__launch_memory(out, x->zero);
    nib__launch_memory(out, a->bias);
    nib__launch_memory(out, a->int_bias);
    nib__launch_memory(out, a->y);
    nib__launch_int(out, x->m);
    nib__launch_int(out, a->w->n);
    nib__launch_int(out, a->w->k);
    add_weight_numbers(out, &l, a->w);
    nib__launch_int(out, x->ld);
    nib__launch_int(out, block > 0 ? nib__ceil_div(a->w->k, block) : 1);
    nib__launch_int(out, x->f32 != NULL && (uintptr_t)x->f32 % 16 == 0 && x->ld % 4 == 0);
    nib__launch_int(out, a->ldy);
    nib__launch_int(out, a->bias != NULL);
    nib__launch_int(out, a->int_bias != NULL);
    nib__launch_float(out, nib__gpu_weight_factor(a->w));
    nib__gpu_expert_args(out, a);
    return 1;
}

/* ---- the embedding ---- */

static int launch_embed(const void *args, nib_launch out[])
{
    const nib_embed *a = args;
    const nib_gpu_layout l = nib__gpu_layout(a->table);
    nib__launch_init(out, "embed", a->m, ITEMS);
    add_weight_options(out, &l, a->table);
    nib__launch_option(out, " -DITEMS=%d -DEMBED", ITEMS);
    nib__gpu_weight_memory(out, &l, a->packed);
    nib__launch_memory(out, a->ids);
    nib__launch_memory(out, a->out);
    nib__launch_int(out, a->table->k);
    add_weight_numbers(out, &l, a->table);
    nib__launch_float(out, nib__gpu_weight_factor(a->table));
    return 1;
}

/* ---- rows ---- */

#define LINEAR(types, code_, act_, input_)                                                         \
    {                                                                                              \
        .name = "linear_" types "_f32__ocl", .op = NIB_OP_LINEAR, .code = NIB_CODE_##code_,        \
        .act = NIB_ACT_##act_, .input = input_, .device = NIB_DEVICE_OPENCL,                       \
        .conds = NIB_NO_CONDS, .arithmetic = NIB_ARITHMETIC_OTHER,                                 \
        .reference = "linear_" types "_f32__ref", .rank = 40, .unit = NIB_UNIT_F32, .n_step = 1,   \
        .grouped = true, .packing = &nib__packing_rows,                                            \
        .gpu = &(const nib_gpu_code){&nib__source_linear, nib__ocl_linear},                        \
        .note = "any OpenCL 1.2 device, any shape, group, scale and zero point"                    \
    }
#define ROW(types, code, act, input) LINEAR(types, code, act, input),

static const nib_kernel rows[] = {
    /* clang-format off */
    NIB_OCL_FLOATS(ROW)
    NIB_OCL_INTEGERS(ROW)
    NIB_OCL_SMALL_FLOATS(ROW)
    /* clang-format on */
    {.name = "embed_f32__ocl",
     .op = NIB_OP_EMBED,
     .code = NIB_ANY,
     .act = NIB_ANY,
     .input = NIB_ANY,
     .device = NIB_DEVICE_OPENCL,
     .conds = NIB_NO_CONDS,
     .arithmetic = NIB_ARITHMETIC_OTHER,
     .reference = "embed_f32__ref",
     .rank = 40,
     .unit = NIB_UNIT_F32,
     .n_step = 1,
     .packing = &nib__packing_rows,
     .gpu = &(const nib_gpu_code){&nib__source_linear, launch_embed},
     .note = "dequantizes rows of the table"},
};

const nib_family nib__family_ocl_linear = {rows, COUNT(rows)};
