/* SPDX-License-Identifier: Apache-2.0
 *
 * The OpenCL row that packs weights on the device (pack.cl). The CUDA row makes the same launches.
 */
#include "gpu_pack.h"
#include "sources.h"
#include "token_launches.h"

#include "kernel.h"

enum { GROUP = 64 };

static void init(nib_launch *out, const char *function, int64_t columns, const nib_weight *w)
{
    nib__launch_init(out, function, w->n, GROUP);
    out->groups[1] = nib__ceil_div(columns, GROUP);
    nib__launch_option(out, "-DGROUP=%d", GROUP);
}

/* Adds the launch that packs scales or zeros. Returns how many it adds: 0 if there are none. */
static int add_pack_values(nib_launch *out, const nib_weight *w, const nib_gpu_layout *l,
                           const void *from, void *to, nib_type type)
{
    if (type == NIB_TYPE_NONE)
        return 0;
    init(out, "pack_values", l->groups, w);
    nib__launch_memory(out, from);
    nib__launch_memory(out, to);
    nib__launch_int(out, l->groups);
    nib__launch_int(out, w->scale_stride_n);
    nib__launch_int(out, w->scale_stride_g);
    nib__launch_int(out, nib__max(w->scale_rows, 1));
    nib__launch_int(out, nib__type_bits(type) / 8);
    return 1;
}

int nib__launch_pack(const void *args, nib_launch out[])
{
    const nib_pack_rows *a = args;
    const nib_weight *w = a->w;
    const nib_gpu_layout l = nib__gpu_layout(w);
    const int64_t words = (int64_t)(l.row_bytes / 4), bits = 8 * (int64_t)l.row_bytes / l.ldk;
    const bool are_nibbles = bits == 4 && w->layout == NIB_LAYOUT_BYTE;
    char *to = a->out;
    int count = 1;
    init(out, are_nibbles ? "pack_nibbles" : "pack_codes", words, w);
    nib__launch_memory(out, w->codes);
    nib__launch_memory(out, to);
    nib__launch_int(out, w->k);
    nib__launch_int(out, words);
    if (!are_nibbles)
        nib__launch_int(out, bits);
    count += add_pack_values(out + count, w, &l, w->scales, to + l.scale_offset, l.scale_type);
    count += add_pack_values(out + count, w, &l, w->zeros, to + l.zero_offset, l.zero_type);
    return count;
}

static const nib_cond plain[] = {
    NIB_IS(PLAIN, 1, "it copies rows; the CPU unpacks words, blocks and tiles"),
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
     .arithmetic = NIB_ARITHMETIC_EXACT,
     .reference = "pack__ref",
     .rank = 40,
     .unit = NIB_UNIT_SCALAR,
     .packing = &nib__packing_rows,
     .gpu = &(const nib_gpu_code){&nib__source_pack, nib__launch_pack},
     .note = "one work-item per four bytes of a row"},
};

const nib_family nib__family_ocl_pack = {rows, COUNT(rows)};
