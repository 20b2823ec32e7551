/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows of the operations around a mixture's experts: choosing them, listing their rows, copying
 * tokens to them, adding what they return, their gradients, and the balance of their load. The
 * plain C is experts_body.h and experts_dx_body.h, as for every instruction set; sort and dispatch
 * only move data and have one version. The experts' own products are rows of LINEAR, LINEAR_DX and
 * LINEAR_DW, a row for each expert.
 */
#include "experts_rows.h"

#include "arm.h"
#include "x86.h"

#define NIB_EXPERTS(name) nib__experts_##name##__ref
#include "experts_body.h"
#include "experts_dx_body.h"

static void sort_ref(const nib_sort_rows *a)
{
    const int64_t experts = a->rule->experts, top_k = a->rule->top_k;
    int32_t next[NIB_EXPERTS_MAX] = {0}; /* the next row of each expert */
    *a->failed = 0;
    for (int64_t i = a->m; i-- > 0;) {
        const float *choice = a->choice + i * a->ldc;
        if (choice[0] < 0.0f)
            *a->failed = (int32_t)(1 + i * NIB_EXPERTS_MAX + (int64_t)(-1.0f - choice[0]));
        for (int64_t j = 0; j < top_k; j++)
            next[choice[0] < 0.0f ? j : (int64_t)choice[j]]++;
    }
    int32_t all = 0;
    for (int64_t e = 0; e < experts; e++) {
        const int32_t count = next[e];
        a->to.first[e] = next[e] = all;
        all += count;
    }
    a->to.first[experts] = all;
    for (int64_t i = 0; i < a->m; i++) {
        const float *choice = a->choice + i * a->ldc;
        const bool failed = choice[0] < 0.0f;
        for (int64_t j = 0; j < top_k; j++) {
            const int32_t e = failed ? (int32_t)j : (int32_t)choice[j], row = next[e]++;
            a->to.token[row] = (int32_t)i;
            a->to.expert[row] = e;
            a->to.weight[row] = failed ? 0.0f : choice[top_k + j];
            a->to.row[i * top_k + j] = row;
        }
    }
}

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

static void route_dw_ref(const nib_route_dw *a, int64_t expert0, int64_t expert1)
{
    float sum[NIB_EXPERTS_MAX];
    for (int64_t first = 0; first < a->m; first += NIB_TRAIN_ROWS) {
        memset(sum, 0, (size_t)(expert1 - expert0) * sizeof *sum);
        for (int64_t m = first; m < nib__min(a->m, first + NIB_TRAIN_ROWS); m++)
            for (int64_t j = 0; j < a->top_k; j++) {
                const int64_t e = (int64_t)a->routing[m * a->ldr + j], i = m * a->top_k + j;
                if (e >= expert0 && e < expert1)
                    sum[e - expert0] = fmaf(a->dweight[i], a->weights[i], sum[e - expert0]);
            }
        for (int64_t e = expert0; e < expert1; e++)
            a->dw[e] = first == 0 ? sum[e - expert0] : a->dw[e] + sum[e - expert0];
    }
}

static void balance_ref(const nib_balance *a)
{
    const float tokens = (float)a->tokens;
    double sum = 0;
    for (int64_t e = 0; e < a->experts; e++) {
        float count = 0, probability = 0;
        for (int64_t l = 0; l < a->layers; l++) {
            count += a->counts[l * a->experts + e];
            probability += a->sums[l * a->experts + e];
        }
        a->load[e] = count / tokens;
        sum += (double)a->load[e] * (double)(probability / tokens);
    }
    *a->loss = (float)((double)a->experts * sum);
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
    ROW(sort_f32, SORT, ref, 90, EXACT, NIB_NO_CONDS, NULL, sort, sort_ref,
        "lists the rows of each expert, tokens ascending"),
    ROW(dispatch_f32, DISPATCH, ref, 90, EXACT, NIB_NO_CONDS, NULL, dispatch, dispatch_ref,
        "copies each token to the rows of its experts, which lie together"),
    EACH_ISA(combine_f32, COMBINE, EXACT, combine,
             "adds the outputs of a token's experts times their weights, experts ascending"),
    EACH_ISA(route_dx_f32, ROUTE_DX, LANES, route_dx,
             "gradient of the router's logits, and of the load-balancing loss"),
    ROW(route_dw_f32, ROUTE_DW, ref, 90, EXACT, NIB_NO_CONDS, NULL, route_dw, route_dw_ref,
        "gradients of the factors of the experts' weights"),
    EACH_ISA(combine_dw_f32, COMBINE_DW, LANES, combine_dw,
             "gradients of the weights of a token's experts"),
    EACH_ISA(route_sums_f32, ROUTE_SUMS, LANES, route_sums,
             "sums of the experts' probabilities over blocks of 256 tokens"),
    ROW(balance_f32, BALANCE, ref, 90, EXACT, NIB_NO_CONDS, NULL, balance, balance_ref,
        "the load-balancing loss, from counts and sums of layers"),
};

const nib_family nib__family_experts = {rows, COUNT(rows)};
