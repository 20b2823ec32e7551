/* SPDX-License-Identifier: Apache-2.0
 *
 * The OpenCL row that quantizes weights (quant_w.cl), to the same codes, scales, zeros and sums as
 * the CPU. The CUDA row makes the same launches.
 */
#include "gpu_args.h"
#include "quant_w_launches.h"
#include "sources.h"

#include "kernel.h"
#include "quant_w.h"

enum { GROUP = NIB_QUANT_LANES, LEAST_SPAN = 16 /* also in quant_w.cl */ };

static void init(nib_launch *out, const char *function, int64_t groups)
{
    nib__launch_init(out, function, groups, GROUP);
    nib__launch_option(out, "-DGROUP=%d", GROUP);
}

static int launch_ranges(const nib_quant_w *a, nib_launch *out)
{
    init(out, "row_ranges", a->count);
    nib__launch_memory(out, a->rows);
    nib__launch_memory(out, a->ranges);
    nib__launch_memory(out, a->failed);
    nib__launch_int(out, nib__gpu_value_number(a->type));
    nib__launch_int(out, a->q->k);
    return 1;
}

static void launch_codes(const nib_quant_w *a, nib_launch *out)
{
    const nib_quantizer *q = a->q;
    const nib_scheme *s = &q->scheme;
    const int64_t group = nib__scheme_group_size(s, q->k), total = a->count * q->groups;
    const bool is_int8 = nib__quant_family(s) == NIB_QUANT_INT8;
    int64_t span = GROUP;
    while (span > LEAST_SPAN && span / 2 >= group) /* lanes past the group add 0 */
        span /= 2;
    init(out, "weight_codes", nib__ceil_div(total, GROUP / span));
    nib__launch_option(out, " -DFAMILY=%d", (int)nib__quant_family(s));
    nib__launch_memory(out, a->rows);
    nib__launch_memory(out, a->codes);
    nib__launch_memory(out, a->scales);
    nib__launch_memory(out, a->zeros);
    nib__launch_memory(out, a->room);
    nib__launch_int(out, nib__gpu_value_number(a->type));
    nib__launch_int(out, nib__gpu_value_number(q->source));
    nib__launch_int(out, q->k);
    nib__launch_int(out, group);
    nib__launch_int(out, q->groups);
    nib__launch_int(out, total);
    nib__launch_int(out, span);
    nib__launch_int(out, nib__code_bits(s->code));
    nib__launch_int(out, s->symmetric);
    nib__launch_int(out, nib__gpu_value_number(q->scale_type));
    nib__launch_int(out, nib__gpu_value_number(q->zero_type));
    nib__launch_int(out, s->zero == NIB_ZERO_NONE ? 0 : s->zero == NIB_ZERO_INT ? 1 : 2);
    nib__launch_int(out, nib__quantizer_is_one(q));
    nib__launch_int(out, s->mx_floor);
    nib__launch_float(out, is_int8 ? 0x1p-23F : nib__quant_smallest(q));
    nib__launch_float(out, q->tensor_scale);
    nib__launch_float(out, nib__quant_inverse(q));
    nib__launch_float(out, q->scale);
    nib__launch_float(out, q->zero);
    nib__launch_float(out, q->factor);
}

static void launch_sums(const nib_quant_w *a, nib_launch *out)
{
    init(out, "row_sums", nib__ceil_div(a->count, GROUP));
    nib__launch_memory(out, a->room);
    nib__launch_memory(out, a->sums);
    nib__launch_memory(out, a->failed);
    nib__launch_int(out, a->count);
    nib__launch_int(out, a->q->groups);
}

int nib__launch_quant_w(const void *args, nib_launch out[])
{
    const nib_quant_w *a = args;
    if (a->codes == NULL)
        return launch_ranges(a, out);
    launch_codes(a, &out[0]);
    launch_sums(a, &out[1]);
    return 2;
}

static const nib_cond exact[] = {
    NIB_IS(FP64, 1, "it rounds quotients and sums errors in double"),
    NIB_IS(DENORMALS, 1, "weights and scales may be denormal"),
    NIB_IS(METHOD, NIB_PTQ_RTN, "other methods run on the CPU"),
    NIB_COND_END,
};

static const nib_kernel rows[] = {
    {.name = "quant_w__ocl",
     .op = NIB_OP_QUANT_W,
     .code = NIB_ANY,
     .act = NIB_ANY,
     .input = NIB_ANY,
     .device = NIB_DEVICE_OPENCL,
     .conds = exact,
     .arithmetic = NIB_ARITHMETIC_EXACT,
     .reference = "quant_w__ref",
     .rank = 40,
     .unit = NIB_UNIT_F32,
     .gpu = &(const nib_gpu_code){&nib__source_quant_w, nib__launch_quant_w},
     .note = "16 to 64 work-items per group; the same bits as the CPU"},
};

const nib_family nib__family_ocl_quant_w = {rows, COUNT(rows)};
