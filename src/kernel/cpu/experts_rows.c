/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows of the operations around a mixture's experts: choosing them, copying tokens to them, and
 * adding what they return. The plain C of route and combine is experts_body.h, as for every
 * instruction set; dispatch only moves data and has one version. The experts' own products are rows
 * of LINEAR, a row for each expert.
 */
#include "experts_rows.h"

#include "arm.h"
#include "x86.h"

#define NIB_EXPERTS(name) nib__experts_##name##__ref
#include "experts_body.h"

static void dispatch_ref(const nib_dispatch *a, int64_t row0, int64_t row1)
{
    for (int64_t row = row0; row < row1; row++) {
        const float *x = a->x + a->token[row] * a->ldx;
        float *out = a->out + row * a->width;
        if (a->weight == NULL)
            memcpy(out, x, (size_t)a->width * sizeof *out);
        for (int64_t i = 0; i < a->width && a->weight != NULL; i++)
            out[i] = a->weight[row] * x[i];
    }
}

#define ROW(kernel, operation, target, rank_, kind, conditions, ref, member, function, words)      \
    {                                                                                              \
        .name = #kernel "__" #target, .op = NIB_OP_##operation, .code = NIB_ANY, .act = NIB_ANY,   \
        .input = NIB_ANY, .device = NIB_DEVICE_CPU, .conds = conditions,                           \
        .arithmetic = NIB_ARITHMETIC_##kind, .reference = ref, .rank = rank_,                      \
        .unit = NIB_UNIT_F32, .run = {.member = function}, .note = words                           \
    }

#define EACH_ISA(kernel, operation, kind, member, words)                                           \
    ROW(kernel, operation, avx512, 10, kind, NIB_CONDS(NIB_HAS(ISA, NIB_ISA_AVX512, NULL)),        \
        #kernel "__ref", member, NIB_X86(nib__experts_##member##__avx512), words),                 \
        ROW(kernel, operation, avx2, 20, kind, NIB_CONDS(NIB_HAS(ISA, NIB_ISA_AVX2, NULL)),        \
            #kernel "__ref", member, NIB_X86(nib__experts_##member##__avx2), "the same"),          \
        ROW(kernel, operation, neon, 20, kind, NIB_CONDS(NIB_HAS(ISA, NIB_ISA_NEON, NULL)),        \
            #kernel "__ref", member, NIB_ARM(nib__experts_##member##__neon), "the same"),          \
        ROW(kernel, operation, ref, 90, kind, NIB_NO_CONDS, NULL, member,                          \
            nib__experts_##member##__ref, "the same in plain C")

static const nib_kernel rows[] = {
    EACH_ISA(route_f32, ROUTE, LANES, route,
             "softmax or sigmoid of the router's logits, groups, top-k, weights"),
    ROW(dispatch_f32, DISPATCH, ref, 90, EXACT, NIB_NO_CONDS, NULL, dispatch, dispatch_ref,
        "copies each token to the rows of its experts, which lie together"),
    EACH_ISA(combine_f32, COMBINE, EXACT, combine,
             "adds the outputs of a token's experts times their weights, experts ascending"),
};

const nib_family nib__family_experts = {rows, COUNT(rows)};
