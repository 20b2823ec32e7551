/* SPDX-License-Identifier: Apache-2.0
 *
 * For the kernel checker: rows that pack weights. Every byte must equal the reference's; bytes
 * between the parts of the layout must stay untouched.
 */
#ifndef NIB_CHECK_PACK_H
#define NIB_CHECK_PACK_H

#include "check_linear.h"

static const uint8_t *packed_by(memory *m, const nib_kernel *row, const nib_weight *w)
{
    const nib_pack_rows a = {.w = w, .out = take(m, (size_t)row->packing->bytes(w))};
    if (!runs_on_gpu(m, row, &a))
        row->run.pack(&a, 0, w->n);
    return a.out;
}

static bool check_pack(verdict *v, const nib_kernel *row, const nib_kernel *ref, int64_t rows,
                       int64_t width, value_class class, rng *r)
{
    static const int64_t codes[] = {NIB_CODE_F32, NIB_CODE_F16,  NIB_CODE_BF16, NIB_CODE_I8,
                                    NIB_CODE_I4,  NIB_CODE_E4M3, NIB_CODE_E5M2, NIB_CODE_MX8,
                                    NIB_CODE_MX4, NIB_CODE_NV4,  NIB_CODE_I1,   NIB_CODE_I3,
                                    NIB_CODE_I6};
    for (size_t i = 0; i < COUNT(codes); i++) {
        memory m = {.count = 0};
        nib_kernel keyed = *row;
        nib_weight w;
        keyed.code = codes[i];
        linear_case c = random_case(&keyed, 0, r);
        c.n = rows, c.k = width, c.values = class;
        make_weight(&w, &m, &c, r);
        nib_query q = device_facts();
        q.fact[NIB_FACT_PLAIN] = nib__weight_is_plain(&w);
        const bool takes = nib__kernel_holds(row, &q, false);
        const uint8_t *want = packed_by(&m, ref, &w);
        const uint8_t *got = takes ? packed_by(&m, row, &w) : want;
        const size_t bytes = (size_t)row->packing->bytes(&w);
        const bool good = gpu_held(v) &&
                          (memcmp(got, want, bytes) == 0 ||
                           broken(v, "bytes of %s differ (group %" PRId64 ", scales %s, zeros %s)",
                                  nib__code_names[codes[i]], c.scheme.group,
                                  nib__type_name(c.scale_type), nib__type_name(c.zero_type))) &&
                          (guards_hold(&m) || broken(v, "wrote outside its memory"));
        release(&m);
        if (!good)
            return false;
    }
    const nib_weight many = {.n = MANY_ROWS,
                             .k = 64,
                             .scheme = {.code = NIB_CODE_I8, .group = 32, .symmetric = true},
                             .scale_type = NIB_TYPE_F32};
    return takes_many_rows(v, row, &(nib_pack_rows){.w = &many});
}

#endif
