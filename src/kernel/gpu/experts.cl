/* SPDX-License-Identifier: Apache-2.0
 *
 * Mixtures of experts: choosing the experts of each token, listing the rows of each expert, copying
 * tokens to them, and adding what they return. Arguments and shapes are those of ops.h. The choice
 * and its weights are the CPU's arithmetic in the CPU's order (experts_body.h), so that equal logits
 * choose equal experts on a device that rounds divisions.
 */
#ifndef NIB_CUDA /* CUDA: a compiler option does this */
#pragma OPENCL FP_CONTRACT OFF
#endif

#define EXPERTS_MAX 1024
#define TOP_K_MAX 64
#define LANES 16 /* of sums */
#define SOFTMAX 0 /* of nib_score */
#define CHOSEN 1
#define SIGMOID 2
#define CHOSEN_SIGMOID 3

/* nib__lanes_exp (lanes.h), operation by operation. */
static float exact_exp(float value)
{
    const float round = 12582912.0f, x = fmin(88.37f, fmax(-87.33f, value));
    const float n = fma(x, 1.44269504f, round) - round;
    const float r = fma(n, 2.12194442e-4f, fma(n, -0.693359375f, x));
    float p = 1.3926184e-3f;
    p = fma(p, r, 8.36317893e-3f);
    p = fma(p, r, 4.16665561e-2f);
    p = fma(p, r, 1.66665763e-1f);
    p = fma(p, r, 0.5f);
    p = fma(p, r, 1.0f);
    p = fma(p, r, 1.0f);
    return p * as_float((uint)((int)n + 127) << 23);
}

static float sigmoid(float x) { return 1.0f / (1.0f + exact_exp(0.0f - x)); }

/* values = softmax(values) if `wanted`, summed in lanes and one tree; published by a barrier. No
 * barrier is conditional: PoCL would copy all that follows one. */
INLINED void softmax_if(int wanted, LOCAL float *values, int count, LOCAL float *scratch)
{
    const int id = (int)get_local_id(0), used = wanted != 0 ? count : 0;
    float most = -INFINITY, sum = 0, lanes[LANES];
    for (int i = id; i < used; i += GROUP)
        most = fmax(most, values[i]);
    most = group_max(most, scratch);
    for (int i = id; i < used; i += GROUP)
        values[i] = exact_exp(values[i] - most);
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int i = id; id < LANES && i < used; i += LANES)
        sum += values[i];
    scratch[id] = sum;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int i = 0; i < LANES; i++)
        lanes[i] = scratch[i];
    for (int step = LANES / 2; step > 0; step /= 2)
        for (int i = 0; i < step; i++)
            lanes[i] += lanes[i + step];
    for (int i = id; i < used; i += GROUP)
        values[i] = values[i] / lanes[0];
    barrier(CLK_LOCAL_MEM_FENCE);
}

/* How many entries come before entry i: larger ones, and equal ones with a lower index. */
INLINED int rank_of(const LOCAL float *values, int i, int count)
{
    int before = 0;
    for (int j = 0; j < count; j++)
        before += values[j] > values[i] || (values[j] == values[i] && j < i);
    return before;
}

/* Takes every expert outside of the best groups out of the choice, if there are groups. */
INLINED void keep_groups(LOCAL float *choice, LOCAL float *of_group, LOCAL int *keeps, int experts,
                         int groups, int top_groups, int pairs)
{
    const int id = (int)get_local_id(0), size = experts / groups, used = groups > 1 ? groups : 0;
    for (int g = id; g < used; g += GROUP) {
        float most = choice[g * size], next = -INFINITY;
        for (int i = 1; i < size; i++) {
            const float other = choice[g * size + i];
            next = fmax(next, fmin(most, other));
            most = fmax(most, other);
        }
        of_group[g] = pairs != 0 && size > 1 ? most + next : most;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int g = id; g < used; g += GROUP)
        keeps[g] = rank_of(of_group, g, groups) < top_groups;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int i = id; i < experts; i += GROUP)
        if (groups > 1 && keeps[i / size] == 0)
            choice[i] = -INFINITY;
    barrier(CLK_LOCAL_MEM_FENCE);
}

/* One work-group per token. */
__kernel void route(GLOBAL_ARG(float, logits), GLOBAL_ARG(float, bias),
                    GLOBAL_ARG(float, factors), GLOBAL_ARG(float, out), int ldx, int ldo,
                    int experts, int top_k, int score, int groups, int top_groups, int pairs,
                    int has_bias, int has_factors, int normalize, float plus, float by)
{
    __local float scores[EXPERTS_MAX], choice[EXPERTS_MAX], of_group[EXPERTS_MAX];
    __local float own[TOP_K_MAX], factor[TOP_K_MAX], scratch[GROUP];
    __local int taken[EXPERTS_MAX];
    GLOBAL_CONST_PTR(float, logits);
    GLOBAL_CONST_PTR(float, bias);
    GLOBAL_CONST_PTR(float, factors);
    GLOBAL_PTR(float, out);
    const int id = (int)get_local_id(0);
    float wrong = -INFINITY; /* minus the first logit that is not finite */
    logits += (size_t)get_group_id(0) * (size_t)ldx;
    out += (size_t)get_group_id(0) * (size_t)ldo;
    for (int i = id; i < experts; i += GROUP)
        if (!IS_FINITE(as_int(logits[i])))
            wrong = fmax(wrong, -(float)i);
    wrong = group_max(wrong, scratch); /* then the rest is computed, but not written */
    for (int i = id; i < experts; i += GROUP)
        scores[i] = score == SIGMOID ? sigmoid(logits[i]) : logits[i];
    barrier(CLK_LOCAL_MEM_FENCE);
    softmax_if(score == SOFTMAX, scores, experts, scratch);
    for (int i = id; i < experts; i += GROUP)
        choice[i] = has_bias != 0 ? scores[i] + bias[i] : scores[i];
    barrier(CLK_LOCAL_MEM_FENCE);
    keep_groups(choice, of_group, taken, experts, groups, top_groups, pairs);
    for (int i = id; i < experts; i += GROUP)
        taken[i] = rank_of(choice, i, experts) < top_k;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int i = id; i < experts; i += GROUP) {
        int place = 0;
        for (int j = 0; taken[i] != 0 && j < i; j++)
            place += taken[j];
        if (taken[i] != 0 && place < top_k) { /* a NaN is taken, too */
            own[place] = score == CHOSEN_SIGMOID ? sigmoid(scores[i]) : scores[i];
            factor[place] = has_factors != 0 ? factors[i] : 1.0f;
            if (wrong == -INFINITY)
                out[place] = (float)i;
        }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    softmax_if(score == CHOSEN, own, top_k, scratch);
    float sum = 0;
    for (int i = 0; i < top_k; i++)
        sum += own[i];
    sum += plus;
    for (int i = id; i < top_k && wrong == -INFINITY; i += GROUP)
        out[top_k + i] = (normalize != 0 ? own[i] / sum : own[i]) * by * factor[i];
    if (id == 0 && wrong > -INFINITY)
        out[0] = wrong - 1.0f;
}

/* One work-group per expert: counts the rows before its own, then lists its own, tokens
 * ascending. A token whose choice failed counts under experts 0 to top_k - 1. */
__kernel void sort_rows(GLOBAL_ARG(float, choice), GLOBAL_ARG(int, first), GLOBAL_ARG(int, token),
                        GLOBAL_ARG(int, expert), GLOBAL_ARG(float, weight), GLOBAL_ARG(int, row),
                        GLOBAL_ARG(int, failed), int m, int ldc, int experts, int top_k)
{
    __local float scratch[GROUP];
    __local int counts[GROUP];
    GLOBAL_CONST_PTR(float, choice);
    GLOBAL_PTR(int, first);
    GLOBAL_PTR(int, token);
    GLOBAL_PTR(int, expert);
    GLOBAL_PTR(float, weight);
    GLOBAL_PTR(int, row);
    GLOBAL_PTR(int, failed);
    const int id = (int)get_local_id(0), e = (int)get_group_id(0);
    const int each = (m + GROUP - 1) / GROUP, begin = min(id * each, m), end = min(begin + each, m);
    float before = 0, wrong = -INFINITY; /* minus the first token that failed */
    int count = 0;
    for (int t = begin; t < end; t++) {
        const __global float *of_token = choice + (size_t)t * (size_t)ldc;
        const bool fails = of_token[0] < 0.0f;
        wrong = fails ? fmax(wrong, -(float)t) : wrong;
        for (int j = 0; j < top_k; j++) {
            const int chosen = fails ? j : (int)of_token[j];
            before += chosen < e ? 1.0f : 0.0f;
            count += chosen == e;
        }
    }
    counts[id] = count;
    int at = (int)group_sum(before, scratch); /* its barriers also publish `counts` */
    if (id == 0)
        first[e] = at;
    if (id == 0 && e == experts - 1)
        first[experts] = m * top_k;
    for (int i = 0; i < id; i++)
        at += counts[i];
    for (int t = begin; t < end; t++) {
        const __global float *of_token = choice + (size_t)t * (size_t)ldc;
        const bool fails = of_token[0] < 0.0f;
        for (int j = 0; j < top_k; j++) {
            if ((fails ? j : (int)of_token[j]) != e)
                continue;
            token[at] = t;
            expert[at] = e;
            weight[at] = fails ? 0.0f : of_token[top_k + j];
            row[t * top_k + j] = at++;
        }
    }
    wrong = group_max(wrong, scratch);
    if (e == 0 && id == 0) {
        const int t = wrong > -INFINITY ? (int)-wrong : -1;
        failed[0] = t < 0 ? 0
                          : 1 + t * EXPERTS_MAX +
                                (int)(-1.0f - choice[(size_t)t * (size_t)ldc]);
    }
}

/* One work-item per element of a row. */
__kernel void dispatch(GLOBAL_ARG(float, x), GLOBAL_ARG(int, token), GLOBAL_ARG(float, weight),
                       GLOBAL_ARG(float, out), int width, int ldx, int has_weight)
{
    GLOBAL_CONST_PTR(float, x);
    GLOBAL_CONST_PTR(int, token);
    GLOBAL_CONST_PTR(float, weight);
    GLOBAL_PTR(float, out);
    const int i = COLUMN_OF(width);
    const size_t row = ROW_OF_GROUP(GROUPS_OF(width));
    if (i >= width)
        return;
    const float value = x[(size_t)token[row] * (size_t)ldx + (size_t)i];
    out[row * (size_t)width + (size_t)i] = has_weight != 0 ? weight[row] * value : value;
}

/* One work-item per element of a token. */
__kernel void combine(GLOBAL_ARG(float, y), GLOBAL_ARG(int, row), GLOBAL_ARG(float, weight),
                      GLOBAL_ARG(float, out), int top_k, int width, int ldw, int ldo,
                      int has_weight)
{
    GLOBAL_CONST_PTR(float, y);
    GLOBAL_CONST_PTR(int, row);
    GLOBAL_CONST_PTR(float, weight);
    GLOBAL_PTR(float, out);
    const int i = COLUMN_OF(width);
    const size_t t = ROW_OF_GROUP(GROUPS_OF(width));
    float sum = 0;
    if (i >= width)
        return;
    for (int j = 0; j < top_k; j++) {
        const size_t from = (size_t)row[t * (size_t)top_k + (size_t)j];
        const float by = has_weight != 0 ? weight[t * (size_t)ldw + (size_t)j] : 1.0f;
        sum = fma(by, y[from * (size_t)width + (size_t)i], sum);
    }
    out[t * (size_t)ldo + (size_t)i] = sum;
}
