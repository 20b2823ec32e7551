/* SPDX-License-Identifier: Apache-2.0
 *
 * For the kernel checker: choosing experts, listing their rows, copying tokens to them and adding
 * what they return. A choice is also held against its definition, computed in f64.
 */
#ifndef NIB_CHECK_EXPERTS_H
#define NIB_CHECK_EXPERTS_H

#include "check_recurrence.h"

/* ---- route ---- */

static result run_route(const nib_kernel *row, memory *m, nib_route_tokens a, int64_t part)
{
    const int64_t count = a.m * a.ldo;
    a.out = take(m, (size_t)count * sizeof *a.out);
    if (runs_on_gpu(m, row, &a))
        return (result){a.out, count};
    for (int64_t i = 0; i < a.m; i += part)
        row->run.route(&a, i, nib__min(a.m, i + part));
    return (result){a.out, count};
}

static double score_of(const nib_route_tokens *a, const float *logits, int64_t e)
{
    double most = logits[0], sum = 0;
    if (a->rule->score == NIB_SCORE_SIGMOID)
        return 1 / (1 + exp(-(double)logits[e]));
    if (a->rule->score == NIB_SCORE_CHOSEN || a->rule->score == NIB_SCORE_CHOSEN_SIGMOID)
        return logits[e];
    for (int64_t i = 0; i < a->rule->experts; i++)
        most = fmax(most, logits[i]);
    for (int64_t i = 0; i < a->rule->experts; i++)
        sum += exp(logits[i] - most);
    return exp(logits[e] - most) / sum;
}

/* The experts of one token against the definition: ascending, none that was left out is better (by
 * more than rounding) unless its group may be, and few enough groups. */
static bool is_choice(const nib_route_tokens *a, const float *logits, const float *out)
{
    const nib_routing *rule = a->rule;
    const int64_t size = rule->experts / rule->groups;
    double least = INFINITY;
    int64_t groups = 0, last_group = -1;
    bool taken[NIB_EXPERTS_MAX] = {false};
    for (int64_t i = 0; i < rule->top_k; i++) {
        const int64_t e = (int64_t)out[i];
        if (e < 0 || e >= rule->experts || (i > 0 && out[i] <= out[i - 1]))
            return false;
        taken[e] = true;
        least = fmin(least, score_of(a, logits, e) + (a->bias != NULL ? a->bias[e] : 0));
        groups += e / size != last_group;
        last_group = e / size;
    }
    for (int64_t e = 0; e < rule->experts && rule->groups == 1; e++) {
        const double own = score_of(a, logits, e) + (a->bias != NULL ? a->bias[e] : 0);
        if (!taken[e] && own > least + 1e-6 * fmax(1, fabs(least)))
            return false;
    }
    return groups <= rule->top_groups || rule->groups == 1;
}

/* The weights of one token against their formula. */
static bool are_weights(const nib_route_tokens *a, const float *logits, const float *out)
{
    const nib_routing *rule = a->rule;
    const bool chosen = rule->score == NIB_SCORE_CHOSEN,
               sigmoid = rule->score == NIB_SCORE_CHOSEN_SIGMOID;
    double most = -INFINITY, own[NIB_TOP_K_MAX], exps = 0, sum = 0;
    for (int64_t i = 0; i < rule->top_k; i++)
        most = fmax(most, logits[(int64_t)out[i]]);
    for (int64_t i = 0; i < rule->top_k; i++)
        exps += exp(logits[(int64_t)out[i]] - most);
    for (int64_t i = 0; i < rule->top_k; i++) {
        own[i] = chosen    ? exp(logits[(int64_t)out[i]] - most) / exps
                 : sigmoid ? 1 / (1 + exp(-(double)logits[(int64_t)out[i]]))
                           : score_of(a, logits, (int64_t)out[i]);
        sum += own[i];
    }
    for (int64_t i = 0; i < rule->top_k; i++) {
        const double factor = a->weight_scales != NULL ? a->weight_scales[(int64_t)out[i]] : 1,
                     want = (rule->normalize ? own[i] / (sum + rule->floor) : own[i]) * rule->scale,
                     bound = 2e-6 * fmax(1e-30, fabs(want)) + 1e-30; /* before the factor */
        if (fabs(out[rule->top_k + i] - want * factor) > bound * fabs(factor))
            return false;
    }
    return true;
}

static bool is_routed(const nib_route_tokens *a, const float *out)
{
    for (int64_t i = 0; i < a->m; i++) {
        const float *logits = a->logits + i * a->ldx, *own = out + i * a->ldo;
        int64_t wrong = 0;
        while (wrong < a->rule->experts && isfinite(logits[wrong]))
            wrong++;
        if (wrong < a->rule->experts ? own[0] != (float)(-1 - wrong)
                                     : !is_choice(a, logits, own) || !are_weights(a, logits, own))
            return false;
    }
    return true;
}

static bool check_route(verdict *v, const nib_kernel *row, const nib_kernel *ref, int64_t rows,
                        int64_t width, value_class class, rng *r)
{
    memory m = {.count = 0};
    const int64_t groups = width % 16 == 0 && width > 16 ? 1 + 3 * below(r, 2) : 1;
    nib_routing rule = {.experts = width,
                        .top_k = 1 + below(r, nib__min(width / groups, 8)),
                        .score = (nib_score)below(r, 4),
                        .groups = groups,
                        .top_groups = 1 + below(r, groups),
                        .group_pairs = below(r, 2) != 0,
                        .normalize = below(r, 2) != 0,
                        .floor = below(r, 2) != 0 ? 1e-20F : 0,
                        .scale = below(r, 2) != 0 ? 2.5F : 1};
    nib_route_tokens a = {
        .rule = &rule, .m = rows, .ldx = width + below(r, 3), .ldo = 2 * rule.top_k + below(r, 3)};
    a.logits = floats(&m, rows * a.ldx, r, class);
    a.bias = floats_or_none(&m, width, r);
    rng factors = *r; /* so that the other values are those of a rule without factors */
    a.weight_scales = floats_or_none(&m, width, &factors);
    const result want = run_route(ref, &m, a, rows), got = run_route(row, &m, a, rows);
    const result parts = run_route(row, &m, a, 1);
    const bool right =
        is_routed(&a, got.values) || broken(v, "the choice or its weights are not as defined");
    return check_results(v, &m, row, want, got, parts, "token by token") && right;
}

/* ---- sort ---- */

/* All results one after the other, as bits: first, token, expert, weight, row, failed. */
static result run_sort(const nib_kernel *row, memory *m, nib_sort_rows a)
{
    const int64_t experts = a.rule->experts, rows = a.m * a.rule->top_k;
    const int64_t count = experts + 1 + 4 * rows + 1;
    int32_t *at = take(m, (size_t)count * sizeof *at), *lists = at + experts + 1;
    a.to = (nib_expert_rows){.first = at,
                             .token = lists,
                             .expert = lists + rows,
                             .weight = (float *)(void *)(lists + 2 * rows),
                             .row = lists + 3 * rows};
    a.failed = lists + 4 * rows;
    if (!runs_on_gpu(m, row, &a))
        row->run.sort(&a);
    return (result){(float *)(void *)at, count};
}

/* A token's choice: the expert of its j-th row, and the weight. */
static int64_t chosen_by(const nib_sort_rows *a, int64_t i, int64_t j, float *weight)
{
    const float *choice = a->choice + i * a->ldc;
    *weight = choice[0] < 0 ? 0 : choice[a->rule->top_k + j];
    return choice[0] < 0 ? j : (int64_t)choice[j];
}

/* Every row is one of its token's, in the order of experts, then tokens, and found from it. */
static bool is_sorted(const nib_sort_rows *a, const result *got)
{
    const int64_t experts = a->rule->experts, top_k = a->rule->top_k, rows = a->m * top_k;
    const int32_t *first = (const int32_t *)(const void *)got->values, *token = first + experts + 1,
                  *expert = token + rows, *row = token + 3 * rows;
    const float *weight = got->values + experts + 1 + 2 * rows;
    if (first[0] != 0 || first[experts] != rows)
        return false;
    for (int64_t i = 0; i < rows; i++)
        if (expert[i] < 0 || expert[i] >= experts || first[expert[i]] > i ||
            first[expert[i] + 1] <= i ||
            (i > 0 && expert[i] == expert[i - 1] && token[i] <= token[i - 1]))
            return false;
    int32_t failed = 0;
    for (int64_t i = a->m; i-- > 0;) {
        const float mark = a->choice[i * a->ldc];
        if (mark < 0)
            failed = (int32_t)(1 + i * NIB_EXPERTS_MAX - 1 - (int64_t)mark);
        for (int64_t j = 0; j < top_k; j++) {
            float want;
            const int32_t at = row[i * top_k + j];
            if (at < 0 || at >= rows || token[at] != i || expert[at] != chosen_by(a, i, j, &want) ||
                weight[at] != want)
                return false;
        }
    }
    return token[4 * rows] == failed;
}

static bool check_sort(verdict *v, const nib_kernel *row, const nib_kernel *ref, int64_t rows,
                       int64_t width, value_class class, rng *r)
{
    memory m = {.count = 0};
    const nib_routing rule = {.experts = width, .top_k = 1 + below(r, nib__min(width, 8))};
    nib_sort_rows a = {.rule = &rule, .m = rows, .ldc = 2 * rule.top_k + below(r, 3)};
    float *choice = floats(&m, rows * a.ldc, r, VALUES_RANDOM);
    for (int64_t i = 0; i < rows; i++) { /* ascending, each expert at most once */
        float *own = choice + i * a.ldc;
        for (int64_t e = 0, j = 0; e < width && j < rule.top_k; e++)
            if (class == VALUES_EQUAL || below(r, width - e) < rule.top_k - j)
                own[j++] = (float)e;
        if (class == VALUES_NOT_FINITE && below(r, 3) == 0)
            own[0] = (float)(-1 - below(r, width));
    }
    a.choice = choice;
    const result want = run_sort(ref, &m, a), got = run_sort(row, &m, a),
                 again = run_sort(row, &m, a);
    const bool right = is_sorted(&a, &got) || broken(v, "the rows are not sorted by expert");
    return check_results(v, &m, row, want, got, again, "run twice") && right;
}

/* ---- dispatch and combine ---- */

static result run_dispatch(const nib_kernel *row, memory *m, nib_dispatch a, int64_t part)
{
    const int64_t count = a.rows * a.width;
    a.out = take(m, (size_t)count * sizeof *a.out);
    if (runs_on_gpu(m, row, &a))
        return (result){a.out, count};
    for (int64_t i = 0; i < a.rows; i += part)
        row->run.dispatch(&a, i, nib__min(a.rows, i + part));
    return (result){a.out, count};
}

static bool check_dispatch(verdict *v, const nib_kernel *row, const nib_kernel *ref, int64_t rows,
                           int64_t width, value_class class, rng *r)
{
    memory m = {.count = 0};
    const int64_t each = 1 + below(r, 4);
    int32_t *token = take(&m, (size_t)(rows * each) * sizeof *token);
    for (int64_t i = 0; i < rows * each; i++)
        token[i] = (int32_t)below(r, rows);
    nib_dispatch a = {.token = token, .rows = rows * each, .width = width};
    a.ldx = width + below(r, 3);
    a.x = floats(&m, rows * a.ldx, r, class);
    a.weight = floats_or_none(&m, a.rows, r);
    const result want = run_dispatch(ref, &m, a, a.rows), got = run_dispatch(row, &m, a, a.rows);
    const result parts = run_dispatch(row, &m, a, 1);
    bool right = true;
    for (int64_t i = 0; i < a.rows && right; i++)
        for (int64_t j = 0; j < width && right; j++) {
            const float x = a.x[token[i] * a.ldx + j], y = a.weight != NULL ? a.weight[i] * x : x;
            right = (y != y && got.values[i * width + j] != got.values[i * width + j]) ||
                    got.values[i * width + j] == y;
        }
    right = right || broken(v, "a row is not its token's");
    return check_results(v, &m, row, want, got, parts, "row by row") && right;
}

static result run_combine(const nib_kernel *row, memory *m, nib_combine a, int64_t part)
{
    const int64_t count = a.m * a.ldo;
    a.out = take(m, (size_t)count * sizeof *a.out);
    if (runs_on_gpu(m, row, &a))
        return (result){a.out, count};
    for (int64_t i = 0; i < a.m; i += part)
        row->run.combine(&a, i, nib__min(a.m, i + part));
    return (result){a.out, count};
}

static bool check_combine(verdict *v, const nib_kernel *row, const nib_kernel *ref, int64_t rows,
                          int64_t width, value_class class, rng *r)
{
    memory m = {.count = 0};
    const int64_t top_k = 1 + below(r, 5);
    int32_t *rows_of = take(&m, (size_t)(rows * top_k) * sizeof *rows_of);
    for (int64_t i = 0; i < rows * top_k; i++) { /* a random permutation, grown by one */
        const int64_t at = below(r, i + 1);
        rows_of[i] = rows_of[at];
        rows_of[at] = (int32_t)i;
    }
    nib_combine a = {.row = rows_of, .m = rows, .top_k = top_k, .width = width};
    a.ldw = top_k + below(r, 3), a.ldo = width + below(r, 3);
    a.y = floats(&m, rows * top_k * width, r, class);
    a.weight = floats_or_none(&m, rows * a.ldw, r);
    const result want = run_combine(ref, &m, a, rows), got = run_combine(row, &m, a, rows);
    const result parts = run_combine(row, &m, a, 1);
    bool right = true;
    for (int64_t i = 0; i < rows && right; i++)
        for (int64_t j = 0; j < width && right; j++) {
            float sum = 0;
            for (int64_t e = 0; e < top_k; e++)
                sum = fmaf(a.weight != NULL ? a.weight[i * a.ldw + e] : 1,
                           a.y[rows_of[i * top_k + e] * width + j], sum);
            const float y = got.values[i * a.ldo + j];
            right = y == sum || (y != y && sum != sum) || row->arithmetic == NIB_ARITHMETIC_OTHER;
        }
    right = right || broken(v, "a sum is not the experts', ascending");
    return check_results(v, &m, row, want, got, parts, "token by token") && right;
}

/* ---- all of a row's cases ---- */

typedef bool (*token_check)(verdict *v, const nib_kernel *row, const nib_kernel *ref, int64_t rows,
                            int64_t width, value_class class, rng *r);

static token_check token_check_of(nib_op op)
{
    switch (op) {
    case NIB_OP_NORM: return check_norm;
    case NIB_OP_SWIGLU: return check_swiglu;
    case NIB_OP_SCALE: return check_scale;
    case NIB_OP_ADD: return check_add;
    case NIB_OP_GATHER: return check_gather;
    case NIB_OP_SHORT_CONV: return check_short_conv;
    case NIB_OP_DELTA_GATES: return check_delta_gates;
    case NIB_OP_SSM_GATES: return check_ssm_gates;
    case NIB_OP_SSM:
    case NIB_OP_GATED_DELTA: return check_recurrence;
    case NIB_OP_ROPE: return check_rope;
    case NIB_OP_EMBED: return check_embed;
    case NIB_OP_STORE_KV: return check_store;
    case NIB_OP_ROPE_COPY: return check_rope_copy;
    case NIB_OP_ATTN: return check_attn;
    case NIB_OP_ATTN_DX: return check_attn_dx;
    case NIB_OP_ROUTE: return check_route;
    case NIB_OP_SORT: return check_sort;
    case NIB_OP_DISPATCH: return check_dispatch;
    case NIB_OP_COMBINE: return check_combine;
    default: return NULL;
    }
}

static bool check_tokens(verdict *v, const nib_kernel *row, const nib_kernel *ref,
                         token_check check, uint64_t seed)
{
    enum { TOKENS = 3 * COUNT(widths) };
    const size_t some = (size_t)cases_of(TOKENS);
    rng r = {seed};
    for (size_t n = 0; n < some; n++) {
        /* fewer than all: others for another operation */
        const size_t i = some == TOKENS ? n : (n * TOKENS / some + row->op) % TOKENS;
        const int64_t rows = token_counts[i % COUNT(token_counts)],
                      width = widths[i % COUNT(widths)];
        const value_class class = i % 2 == 0 ? VALUES_RANDOM : (value_class)below(&r, VALUES_COUNT);
        if (!check(v, row, ref, rows, width, class, &r)) {
            char text[sizeof v->text];
            snprintf(text, sizeof text, "%s", v->text);
            return broken(v, "%.300s (%" PRId64 " tokens of width %" PRId64 ", %s values)", text,
                          rows, width, class_names[class]);
        }
        v->cases++;
    }
    return true;
}

#endif
