/* SPDX-License-Identifier: Apache-2.0
 *
 * The row of OpenCL that packs weights where they will run (pack.cl).
 */
#include "gpu_pack.h"
#include "sources.h"

#include "kernel.h"

enum { GROUP = 64 };

static void init(nib_launch *out, const char *function, int64_t columns, const nib_weight *w,
                 int code_bits, int value_bytes)
{
    nib__launch_init(out, function, nib__ceil_div(columns, GROUP), GROUP);
    out->groups[1] = w->n;
    nib__launch_option(out, "-DBITS=%d -DFROM=%d -DBYTES=%d", code_bits,
                       code_bits == 4 && w->store == NIB_STORE_BYTE ? 8 : code_bits, value_bytes);
}

/* Scales or zeros into their place of `out`; 0: the weight has none. */
static int add_values(nib_launch *out, const nib_weight *w, const nib_gpu_rows *l, const void *from,
                      void *to, nib_type type)
{
    if (type == NIB_TYPE_NONE)
        return 0;
    init(out, "pack_values", l->groups, w, 8, nib__type_bits(type) / 8);
    nib__launch_memory(out, from);
    nib__launch_memory(out, to);
    nib__launch_int(out, l->groups);
    nib__launch_int(out, w->scale_stride_n);
    nib__launch_int(out, w->scale_stride_g);
    nib__launch_int(out, nib__max(w->scale_rows, 1));
    return 1;
}

static int launch_pack(const void *args, nib_launch out[])
{
    const nib_pack_rows *a = args;
    const nib_weight *w = a->w;
    const nib_gpu_rows l = nib__gpu_rows(w);
    char *to = a->out;
    int count = 1;
    init(out, "pack_codes", (int64_t)(l.row_bytes / 4), w, (int)(8 * (int64_t)l.row_bytes / l.ldk),
         1);
    nib__launch_memory(out, w->codes);
    nib__launch_memory(out, to);
    nib__launch_int(out, w->k);
    nib__launch_int(out, (int64_t)(l.row_bytes / 4));
    count += add_values(out + count, w, &l, w->scales, to + l.scale_at, l.scale_type);
    count += add_values(out + count, w, &l, w->zeros, to + l.zero_at, l.zero_type);
    return count;
}

static const nib_cond plain[] = {
    NIB_IS(PLAIN, 1, "it copies rows; words, blocks and tiles are unpacked by the CPU"),
    NIB_COND_END,
};

static const nib_kernel rows[] = {
    {.name = "pack__ocl",
     .op = NIB_OP_PACK,
     .code = NIB_ANY,
     .act = NIB_ANY,
     .input = NIB_ANY,
     .device = NIB_DEVICE_OPENCL,
     .conds = plain,
     .numbers = NIB_NUMBERS_EXACT,
     .reference = "pack__ref",
     .rank = 40,
     .unit = NIB_UNIT_SCALAR,
     .packing = &nib__packing_rows,
     .gpu = &(const nib_gpu_code){&nib__source_pack, launch_pack},
     .note = "a work-item four bytes of a row"},
};

const nib_family nib__family_ocl_pack = {rows, COUNT(rows)};
