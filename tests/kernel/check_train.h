/* SPDX-License-Identifier: Apache-2.0
 *
 * For the kernel checker: training operations without weights. Sums over tokens are also checked
 * around NIB_TRAIN_ROWS tokens, with columns in parts; everything else row by row.
 */
#ifndef NIB_CHECK_TRAIN_H
#define NIB_CHECK_TRAIN_H

#include "check_token.h"

/* A number of tokens around the block of a sum over tokens, or the given `few`. */
static int64_t many_tokens(int64_t few, rng *r)
{
    static const int64_t around[] = {NIB_TRAIN_ROWS - 1, NIB_TRAIN_ROWS, NIB_TRAIN_ROWS + 1,
                                     2 * NIB_TRAIN_ROWS + 19};
    return below(r, 3) == 0 ? around[below(r, COUNT(around))] : few;
}

/* A part size that is not a multiple of the lanes or of a strip, so that strips begin anywhere. */
static int64_t odd_part(rng *r) { return 1 + below(r, 90); }

static float *copy_of(memory *m, const float *values, int64_t count)
{
    float *out = take(m, (size_t)count * sizeof *out);
    memcpy(out, values, (size_t)count * sizeof *out);
    return out;
}

/* ---- gradients of the norm ---- */

/* dx, then r and the mean of every row. */
static result run_norm_dx(const nib_kernel *row, memory *m, nib_norm_dx a, int64_t part)
{
    const int64_t count = a.rows * a.lddx;
    float *values = take(m, (size_t)(count + 2 * a.rows) * sizeof *values);
    memcpy(values, a.dx, (size_t)count * sizeof *values);
    a.sum = a.sum != NULL ? values : NULL;
    a.dx = values, a.inverse = values + count;
    a.mean = a.centered ? a.inverse + a.rows : NULL;
    for (int64_t i = 0; i < a.rows; i += part)
        row->run.norm_dx(&a, i, nib__min(a.rows, i + part));
    return (result){values, count + 2 * a.rows};
}

static bool check_norm_dx(verdict *v, const nib_kernel *row, const nib_kernel *ref, int64_t rows,
                          int64_t width, value_class class, rng *r)
{
    memory m = {.count = 0};
    nib_norm_dx a = {.rows = rows, .width = width, .eps = 1e-5F, .weights = below(r, 4)};
    a.ldx = width + below(r, 3), a.ldy = width + below(r, 3), a.lddx = width + below(r, 3);
    a.x = floats(&m, rows * a.ldx, r, class);
    a.dy = floats(&m, rows * a.ldy, r, class);
    a.weight = floats(&m, width * nib__max(1, a.weights), r, VALUES_RANDOM);
    a.dx = floats(&m, rows * a.lddx, r, VALUES_RANDOM);
    a.sum = below(r, 2) == 0 ? a.dx : NULL;
    a.centered = below(r, 2) != 0;
    const result want = run_norm_dx(ref, &m, a, rows), got = run_norm_dx(row, &m, a, rows);
    const result parts = run_norm_dx(row, &m, a, 1);
    return check_results(v, &m, row, want, got, parts, "row by row");
}

static result run_norm_dw(const nib_kernel *row, memory *m, nib_norm_dw a, int64_t part)
{
    const int64_t columns = a.width * nib__max(1, a.weights);
    a.dw = take(m, (size_t)columns * sizeof *a.dw);
    for (int64_t j = 0; j < columns; j += part)
        row->run.norm_dw(&a, j, nib__min(columns, j + part));
    return (result){a.dw, columns};
}

static bool check_norm_dw(verdict *v, const nib_kernel *row, const nib_kernel *ref, int64_t rows,
                          int64_t width, value_class class, rng *r)
{
    memory m = {.count = 0};
    nib_norm_dw a = {.rows = many_tokens(rows, r), .width = width, .weights = below(r, 4)};
    a.rows *= nib__max(1, a.weights);
    a.ldx = width + below(r, 3), a.ldy = width + below(r, 3);
    a.x = floats(&m, a.rows * a.ldx, r, class);
    a.dy = floats(&m, a.rows * a.ldy, r, class);
    a.inverse = floats(&m, a.rows, r, VALUES_RANDOM);
    a.mean = floats_or_none(&m, a.rows, r);
    const int64_t all = width * nib__max(1, a.weights);
    const result want = run_norm_dw(ref, &m, a, all), got = run_norm_dw(row, &m, a, all);
    const result parts = run_norm_dw(row, &m, a, odd_part(r));
    return check_results(v, &m, row, want, got, parts, "in parts of columns");
}

/* ---- gradients of swiglu, scale, the table and a bias ---- */

/* dgate, then dup, if there is one. */
static result run_swiglu_dx(const nib_kernel *row, memory *m, nib_swiglu_dx a, bool in_place,
                            int64_t part)
{
    const int64_t count = a.m * a.ld, ups = a.up != NULL ? a.m * a.ldu : 0;
    float *values = take(m, (size_t)(count + ups) * sizeof *values);
    memcpy(values, a.gate, (size_t)count * sizeof *values);
    if (a.up != NULL)
        memcpy(values + count, a.up, (size_t)ups * sizeof *values);
    a.dgate = values, a.dup = a.up != NULL ? values + count : NULL;
    if (in_place)
        a.gate = a.dgate, a.up = a.dup;
    for (int64_t i = 0; i < a.m; i += part)
        row->run.swiglu_dx(&a, i, nib__min(a.m, i + part));
    return (result){values, count + ups};
}

static bool check_swiglu_dx(verdict *v, const nib_kernel *row, const nib_kernel *ref, int64_t rows,
                            int64_t width, value_class class, rng *r)
{
    memory m = {.count = 0};
    static const nib_activation activations[] = {NIB_SILU, NIB_GELU_TANH, NIB_SIGMOID};
    nib_swiglu_dx a = {.m = rows, .width = width};
    a.ld = width + below(r, 3), a.ldu = width + below(r, 3), a.ldy = width + below(r, 3);
    a.gate = floats(&m, rows * a.ld, r, class);
    a.up = floats_or_none(&m, rows * a.ldu, r);
    a.activation = activations[below(r, COUNT(activations))];
    a.one_gate = a.up != NULL && below(r, 3) == 0;
    if (a.up != NULL && !a.one_gate && below(r, 3) == 0)
        a.activation = NIB_SWIGLU_CLAMPED, a.alpha = 1.702F, a.limit = fabsf(unit(r)) + 0.1F;
    a.dy = floats(&m, rows * a.ldy, r, VALUES_RANDOM);
    const result want = run_swiglu_dx(ref, &m, a, false, rows),
                 got = run_swiglu_dx(row, &m, a, false, rows),
                 placed = run_swiglu_dx(row, &m, a, true, rows),
                 parts = run_swiglu_dx(row, &m, a, false, 1);
    const bool in_place = same_floats(v, "in place", placed.values, got.values, got.count);
    return check_results(v, &m, row, want, got, parts, "row by row") && in_place;
}

static result run_scale_dx(const nib_kernel *row, memory *m, nib_scale_dx a, bool in_place,
                           int64_t part)
{
    const int64_t count = a.m * a.lddx;
    a.dx = take(m, (size_t)count * sizeof *a.dx);
    if (in_place) {
        for (int64_t i = 0; i < a.m; i++)
            memcpy(a.dx + i * a.lddx, a.dy + i * a.ldy, (size_t)a.width * sizeof *a.dx);
        a.dy = a.dx, a.ldy = a.lddx;
    }
    for (int64_t i = 0; i < a.m; i += part)
        row->run.scale_dx(&a, i, nib__min(a.m, i + part));
    return (result){a.dx, count};
}

static bool check_scale_dx(verdict *v, const nib_kernel *row, const nib_kernel *ref, int64_t rows,
                           int64_t width, value_class class, rng *r)
{
    memory m = {.count = 0};
    nib_scale_dx a = {.m = rows, .width = width, .scale = 4 * unit(r)};
    a.ldx = width + below(r, 3), a.ldy = width + below(r, 3), a.lddx = width + below(r, 3);
    if (below(r, 3) != 0)
        a.cap = (float)(1 + below(r, 50)), a.x = floats(&m, rows * a.ldx, r, class);
    a.dy = floats(&m, rows * a.ldy, r, VALUES_RANDOM);
    const result want = run_scale_dx(ref, &m, a, false, rows),
                 got = run_scale_dx(row, &m, a, false, rows),
                 placed = run_scale_dx(row, &m, a, true, rows),
                 parts = run_scale_dx(row, &m, a, false, 1);
    const bool in_place = same_floats(v, "in place", placed.values, got.values, got.count);
    return check_results(v, &m, row, want, got, parts, "row by row") && in_place;
}

static result run_sinks_dw(const nib_kernel *row, memory *m, nib_sinks_dw a, int64_t part)
{
    a.dw = take(m, (size_t)a.heads * sizeof *a.dw);
    for (int64_t h = 0; h < a.heads; h += part)
        row->run.sinks_dw(&a, h, nib__min(a.heads, h + part));
    return (result){a.dw, a.heads};
}

static bool check_sinks_dw(verdict *v, const nib_kernel *row, const nib_kernel *ref, int64_t rows,
                           int64_t width, value_class class, rng *r)
{
    memory m = {.count = 0};
    nib_sinks_dw a = {.m = rows, .heads = 1 + below(r, 5), .dim = width};
    a.ldo = a.heads * width + below(r, 3), a.ldd = a.heads * width + below(r, 3);
    a.sinks = floats(&m, a.heads, r, VALUES_RANDOM);
    a.out = floats(&m, rows * a.ldo, r, class);
    a.dout = floats(&m, rows * a.ldd, r, VALUES_RANDOM);
    a.lse = floats(&m, rows * a.heads, r, VALUES_RANDOM);
    const result want = run_sinks_dw(ref, &m, a, a.heads), got = run_sinks_dw(row, &m, a, a.heads);
    return check_results(v, &m, row, want, got, run_sinks_dw(row, &m, a, 1), "head by head");
}

/* The choice and weights of a random router. */
static float *routed(memory *m, const nib_routing *rule, const float *logits, int64_t ldx,
                     int64_t rows)
{
    const int64_t ld = 2 * rule->top_k;
    float *out = take(m, (size_t)(rows * ld) * sizeof *out);
    const nib_route_tokens a = {
        .rule = rule, .logits = logits, .out = out, .m = rows, .ldx = ldx, .ldo = ld};
    nib__kernel_find("route_f32__ref")->run.route(&a, 0, rows);
    return out;
}

static result run_route_dx(const nib_kernel *row, memory *m, nib_route_dx a, int64_t part)
{
    const int64_t count = a.m * a.lddx, weights = a.m * a.rule->top_k;
    a.dx = take(m, (size_t)(count + weights) * sizeof *a.dx);
    a.weights = a.dx + count;
    for (int64_t i = 0; i < a.m; i += part)
        row->run.route_dx(&a, i, nib__min(a.m, i + part));
    return (result){a.dx, count + weights};
}

static bool is_sigmoid(const nib_routing *rule)
{
    return rule->score == NIB_SCORE_SIGMOID || rule->score == NIB_SCORE_CHOSEN_SIGMOID;
}

/* The sum of softmax weights is constant, so their gradients add up to 0; a sigmoid has no such
 * rule. */
static bool adds_up(const nib_route_dx *a, const float *dx)
{
    for (int64_t i = 0; i < a->m && !is_sigmoid(a->rule); i++) {
        double sum = 0, size = 0;
        for (int64_t e = 0; e < a->rule->experts; e++) {
            sum += (double)dx[i * a->lddx + e];
            size += fabs((double)dx[i * a->lddx + e]);
        }
        if (!(fabs(sum) <= 1e-5 * size + 1e-6))
            return false;
    }
    return true;
}

static bool check_route_dx(verdict *v, const nib_kernel *row, const nib_kernel *ref, int64_t rows,
                           int64_t width, value_class class, rng *r)
{
    memory m = {.count = 0};
    nib_routing rule = {.experts = width,
                        .top_k = 1 + below(r, nib__min(width, 8)),
                        .score = (nib_score)below(r, 4),
                        .groups = 1,
                        .top_groups = 1,
                        .normalize = below(r, 2) != 0,
                        .scale = below(r, 2) != 0 ? 2.5F : 1};
    nib_route_dx a = {.rule = &rule, .m = rows, .balance = unit(r)};
    const int64_t sequences = rows % 2 == 0 ? 1 + below(r, 2) : 1;
    a.sequence = rows / sequences;
    (void)class; /* logits are finite: others have no choice */
    a.ldx = width + below(r, 3), a.lddx = width + below(r, 3), a.ldr = 2 * rule.top_k;
    a.logits = floats(&m, rows * a.ldx, r, VALUES_RANDOM);
    a.routing = routed(&m, &rule, a.logits, a.ldx, rows);
    a.dweight = floats(&m, rows * rule.top_k, r, VALUES_RANDOM);
    a.load = floats_or_none(&m, sequences * width, r);
    a.weight_scales = floats_or_none(&m, width, r);
    const result want = run_route_dx(ref, &m, a, rows), got = run_route_dx(row, &m, a, rows);
    const bool right = adds_up(&a, got.values) || broken(v, "gradients of logits do not add up");
    return check_results(v, &m, row, want, got, run_route_dx(row, &m, a, 1), "token by token") &&
           right;
}

static result run_route_dw(const nib_kernel *row, memory *m, nib_route_dw a, int64_t experts,
                           int64_t part)
{
    a.dw = take(m, (size_t)experts * sizeof *a.dw);
    for (int64_t e = 0; e < experts; e += part)
        row->run.route_dw(&a, e, nib__min(experts, e + part));
    return (result){a.dw, experts};
}

/* Sums against sums in double. */
static bool check_route_dw(verdict *v, const nib_kernel *row, const nib_kernel *ref, int64_t rows,
                           int64_t width, value_class class, rng *r)
{
    memory m = {.count = 0};
    const nib_routing rule = {.experts = width,
                              .top_k = 1 + below(r, nib__min(width, 8)),
                              .groups = 1,
                              .top_groups = 1,
                              .scale = 1};
    nib_route_dw a = {.m = rows, .top_k = rule.top_k, .ldr = 2 * rule.top_k};
    (void)class;
    a.routing = routed(&m, &rule, floats(&m, rows * width, r, VALUES_RANDOM), width, rows);
    a.dweight = floats(&m, rows * rule.top_k, r, VALUES_RANDOM);
    a.weights = floats(&m, rows * rule.top_k, r, VALUES_RANDOM);
    const result want = run_route_dw(ref, &m, a, width, width),
                 got = run_route_dw(row, &m, a, width, width);
    bool right = true;
    for (int64_t e = 0; e < width && right; e++) {
        double sum = 0, size = 0;
        for (int64_t i = 0; i < rows; i++)
            for (int64_t j = 0; j < rule.top_k; j++) {
                const int64_t at = i * rule.top_k + j;
                const double own = (double)a.dweight[at] * (double)a.weights[at];
                if ((int64_t)a.routing[i * a.ldr + j] == e)
                    sum += own, size += fabs(own);
            }
        right = fabs((double)got.values[e] - sum) <= 1e-5 * size ||
                broken(v, "the gradient of a factor is not the sum of its tokens");
    }
    return check_results(v, &m, row, want, got, run_route_dw(row, &m, a, width, 1),
                         "expert by expert") &&
           right;
}

static result run_combine_dw(const nib_kernel *row, memory *m, nib_combine_dw a, int64_t part)
{
    a.dweight = take(m, (size_t)(a.m * a.top_k) * sizeof *a.dweight);
    for (int64_t i = 0; i < a.m; i += part)
        row->run.combine_dw(&a, i, nib__min(a.m, i + part));
    return (result){a.dweight, a.m * a.top_k};
}

static bool check_combine_dw(verdict *v, const nib_kernel *row, const nib_kernel *ref, int64_t rows,
                             int64_t width, value_class class, rng *r)
{
    memory m = {.count = 0};
    nib_combine_dw a = {.m = rows, .top_k = 1 + below(r, 4), .width = width};
    int32_t *of = take(&m, (size_t)(rows * a.top_k) * sizeof *of);
    for (int64_t i = 0; i < rows * a.top_k; i++)
        of[i] = (int32_t)(rows * a.top_k - 1 - i);
    a.row = of, a.ldy = width + below(r, 3);
    a.dy = floats(&m, rows * a.ldy, r, VALUES_RANDOM);
    a.y = floats(&m, rows * a.top_k * width, r, class);
    const result want = run_combine_dw(ref, &m, a, rows), got = run_combine_dw(row, &m, a, rows);
    return check_results(v, &m, row, want, got, run_combine_dw(row, &m, a, 1), "token by token");
}

/* Sums, then counts. */
static result run_route_sums(const nib_kernel *row, memory *m, nib_route_sums a, int64_t part)
{
    const int64_t blocks = a.m / a.sequence * nib__ceil_div(a.sequence, NIB_TRAIN_ROWS),
                  values = blocks * a.rule->experts;
    a.out = take(m, (size_t)(2 * values) * sizeof *a.out);
    a.counts = a.out + values;
    for (int64_t b = 0; b < blocks; b += part)
        row->run.route_sums(&a, b, nib__min(blocks, b + part));
    return (result){a.out, 2 * values};
}

/* What an expert's token adds: the probabilities of a token add up to 1; each counts `top_k`
 * experts, those of its choice, or its largest scores. */
static bool check_route_sums(verdict *v, const nib_kernel *row, const nib_kernel *ref, int64_t rows,
                             int64_t width, value_class class, rng *r)
{
    memory m = {.count = 0};
    const nib_routing rule = {.experts = width,
                              .top_k = 1 + below(r, nib__min(width, 8)),
                              .score = (nib_score)below(r, 4),
                              .groups = 1,
                              .top_groups = 1,
                              .scale = 1};
    nib_route_sums a = {.rule = &rule,
                        .m = rows,
                        .ldx = width + below(r, 3),
                        .ldr = 2 * rule.top_k,
                        .sequence = rows / (rows % 2 == 0 ? 1 + below(r, 2) : 1)};
    (void)class;
    a.logits = floats(&m, rows * a.ldx, r, VALUES_RANDOM);
    a.routing = routed(&m, &rule, a.logits, a.ldx, rows);
    const result want = run_route_sums(ref, &m, a, rows), got = run_route_sums(row, &m, a, rows);
    double sum = 0, count = 0;
    for (int64_t i = 0; i < got.count / 2; i++)
        sum += (double)got.values[i], count += (double)got.values[got.count / 2 + i];
    const bool right =
        (fabs(sum - (double)rows) < 1e-4 * (double)rows ||
         broken(v, "probabilities do not add up to 1")) &&
        (count == (double)(rows * rule.top_k) || broken(v, "a token does not count top_k experts"));
    return check_results(v, &m, row, want, got, run_route_sums(row, &m, a, 1), "block by block") &&
           right;
}

/* f, then the loss, against sums in double. */
static bool check_balance(verdict *v, const nib_kernel *row, const nib_kernel *ref, int64_t rows,
                          int64_t width, value_class class, rng *r)
{
    memory m = {.count = 0};
    const int64_t layers = 1 + below(r, 4);
    float *counts = take(&m, (size_t)(layers * width) * sizeof *counts);
    float *sums = take(&m, (size_t)(layers * width) * sizeof *sums);
    nib_balance a = {.counts = counts,
                     .sums = sums,
                     .layers = layers,
                     .experts = width,
                     .tokens = layers * rows,
                     .load = take(&m, (size_t)width * sizeof(float)),
                     .loss = take(&m, sizeof(float))};
    double wanted = 0;
    (void)class, (void)ref;
    for (int64_t i = 0; i < layers * width; i++)
        counts[i] = (float)below(r, rows + 1), sums[i] = fabsf(unit(r));
    row->run.balance(&a);
    for (int64_t e = 0; e < width; e++) {
        double f = 0, p = 0;
        for (int64_t l = 0; l < layers; l++)
            f += (double)counts[l * width + e], p += (double)sums[l * width + e];
        wanted += f * p / (double)(a.tokens * a.tokens);
        if (fabs((double)a.load[e] - f / (double)a.tokens) > 1e-6 * f)
            return broken(v, "f is not the share of tokens");
    }
    wanted *= (double)width;
    return fabs((double)*a.loss - wanted) <= 1e-5 * wanted + 1e-12 ||
           broken(v, "the load-balancing loss is not as defined");
}

static result run_embed_dw(const nib_kernel *row, memory *m, nib_embed_dw a, int64_t vocabulary,
                           int64_t part)
{
    a.d = copy_of(m, a.d, vocabulary * a.width);
    for (int64_t j = 0; j < a.width; j += part)
        row->run.embed_dw(&a, j, nib__min(a.width, j + part));
    return (result){a.d, vocabulary * a.width};
}

static bool check_embed_dw(verdict *v, const nib_kernel *row, const nib_kernel *ref, int64_t rows,
                           int64_t width, value_class class, rng *r)
{
    enum { VOCABULARY = 7 }; /* few, so that tokens repeat */
    memory m = {.count = 0};
    nib_embed_dw a = {.m = many_tokens(rows, r), .width = width};
    int32_t *ids = take(&m, (size_t)a.m * sizeof *ids);
    for (int64_t i = 0; i < a.m; i++)
        ids[i] = (int32_t)below(r, VOCABULARY);
    a.ids = ids;
    a.dx = floats(&m, a.m * width, r, class);
    a.d = floats(&m, VOCABULARY * width, r, VALUES_RANDOM);
    const result want = run_embed_dw(ref, &m, a, VOCABULARY, width),
                 got = run_embed_dw(row, &m, a, VOCABULARY, width),
                 parts = run_embed_dw(row, &m, a, VOCABULARY, odd_part(r));
    return check_results(v, &m, row, want, got, parts, "in parts of columns");
}

static result run_bias_dw(const nib_kernel *row, memory *m, nib_bias_dw a, int64_t part)
{
    a.db = take(m, (size_t)a.n * sizeof *a.db);
    for (int64_t j = 0; j < a.n; j += part)
        row->run.bias_dw(&a, j, nib__min(a.n, j + part));
    return (result){a.db, a.n};
}

static bool check_bias_dw(verdict *v, const nib_kernel *row, const nib_kernel *ref, int64_t rows,
                          int64_t width, value_class class, rng *r)
{
    memory m = {.count = 0};
    nib_bias_dw a = {.m = many_tokens(rows, r), .n = width, .ldy = width + below(r, 3)};
    a.dy = floats(&m, a.m * a.ldy, r, class);
    const result want = run_bias_dw(ref, &m, a, width), got = run_bias_dw(row, &m, a, width);
    const result parts = run_bias_dw(row, &m, a, odd_part(r));
    return check_results(v, &m, row, want, got, parts, "in parts of columns");
}

/* ---- loss and optimizer ---- */

/* The gradients, then the losses. */
static result run_xent(const nib_kernel *row, memory *m, nib_xent a, int64_t part)
{
    const int64_t count = a.m * a.ldx;
    float *values = take(m, (size_t)(count + a.m) * sizeof *values);
    memcpy(values, a.x, (size_t)count * sizeof *values);
    a.x = values, a.loss = values + count;
    const nib_float_mode mode = nib__float_mode_flush();
    for (int64_t i = 0; i < a.m; i += part)
        row->run.xent(&a, i, nib__min(a.m, i + part));
    nib__float_mode_restore(mode);
    return (result){values, count + a.m};
}

static bool check_xent(verdict *v, const nib_kernel *row, const nib_kernel *ref, int64_t rows,
                       int64_t width, value_class class, rng *r)
{
    memory m = {.count = 0};
    nib_xent a = {.m = rows, .scale = unit(r), .gradient = below(r, 4) != 0};
    a.vocab = below(r, 3) == 0 ? width + 2 * NIB_SUM_BLOCK - 8 : width;
    a.ldx = a.vocab + below(r, 3);
    a.x = floats(&m, rows * a.ldx, r, class);
    int32_t *target = take(&m, (size_t)rows * sizeof *target);
    for (int64_t i = 0; i < rows; i++)
        target[i] = (int32_t)(below(r, a.vocab + 1) - 1);
    a.target = target;
    const result want = run_xent(ref, &m, a, rows), got = run_xent(row, &m, a, rows);
    const result parts = run_xent(row, &m, a, 1);
    const bool kept =
        a.gradient || same_floats(v, "the logits that were to stay", got.values, a.x, rows * a.ldx);
    return check_results(v, &m, row, want, got, parts, "row by row") && kept;
}

/* Like check_results, for f64. */
static bool check_squares(verdict *v, const nib_kernel *row, const nib_kernel *ref, int64_t rows,
                          int64_t width, value_class class, rng *r)
{
    enum { RUNS = 3, PARTS_MAX = 3 };
    memory m = {.count = 0};
    nib_squares a = {.count = rows * width};
    if (below(r, 4) == 0)
        a.count += below(r, 2) + (int64_t)NIB_TRAIN_PART * below(r, PARTS_MAX);
    const int64_t parts = nib__ceil_div(a.count, NIB_TRAIN_PART);
    double *sums[RUNS];
    a.x = floats(&m, a.count, r, class);
    for (int i = 0; i < RUNS; i++)
        sums[i] = take(&m, (size_t)parts * sizeof *sums[i]);
    a.out = sums[0], ref->run.squares(&a, 0, parts);
    a.out = sums[1], row->run.squares(&a, 0, parts);
    a.out = sums[2];
    for (int64_t i = 0; i < parts; i++)
        row->run.squares(&a, i, i + 1);
    bool good = guards_hold(&m) || broken(v, "wrote outside its output");
    for (int64_t i = 0; i < RUNS * parts && good; i++) {
        const double got = sums[i / parts][i % parts], want = sums[0][i % parts];
        good = memcmp(&got, &want, sizeof got) == 0 || (isnan(got) && isnan(want)) ||
               broken(v, "sum %" PRId64 " is %a, not %a", i % parts, got, want);
    }
    release(&m);
    return good;
}

/* p, m and v after two steps. */
static result run_adamw(const nib_kernel *row, memory *m, nib_adamw a, int64_t part)
{
    const int64_t count = a.count;
    float *values = take(m, (size_t)(3 * count) * sizeof *values);
    memcpy(values, a.p, (size_t)count * sizeof *values);
    memset(values + count, 0, (size_t)(2 * count) * sizeof *values);
    a.p = values, a.m = values + count, a.v = values + 2 * count;
    for (int step = 0; step < 2; step++)
        for (int64_t i = 0; i < count; i += part)
            row->run.adamw(&a, i, nib__min(count, i + part));
    return (result){values, 3 * count};
}

static bool check_adamw(verdict *v, const nib_kernel *row, const nib_kernel *ref, int64_t rows,
                        int64_t width, value_class class, rng *r)
{
    memory m = {.count = 0};
    nib_adamw a = {.count = rows * width,
                   .clip = 0.7F,
                   .shrink = 0.99F,
                   .rest1 = 0.1F,
                   .beta2 = 0.95F,
                   .rest2 = 0.05F,
                   .step = 1e-2F,
                   .root = 0.3F,
                   .eps = 1e-8F};
    a.p = floats(&m, a.count, r, VALUES_RANDOM);
    a.g = floats(&m, a.count, r, class);
    const result want = run_adamw(ref, &m, a, a.count), got = run_adamw(row, &m, a, a.count);
    const result parts = run_adamw(row, &m, a, odd_part(r));
    return check_results(v, &m, row, want, got, parts, "in parts");
}

static token_check train_check_of(nib_op op)
{
    switch (op) {
    case NIB_OP_NORM_DX: return check_norm_dx;
    case NIB_OP_NORM_DW: return check_norm_dw;
    case NIB_OP_SWIGLU_DX: return check_swiglu_dx;
    case NIB_OP_SCALE_DX: return check_scale_dx;
    case NIB_OP_SINKS_DW: return check_sinks_dw;
    case NIB_OP_ROUTE_DX: return check_route_dx;
    case NIB_OP_ROUTE_DW: return check_route_dw;
    case NIB_OP_COMBINE_DW: return check_combine_dw;
    case NIB_OP_ROUTE_SUMS: return check_route_sums;
    case NIB_OP_BALANCE: return check_balance;
    case NIB_OP_EMBED_DW: return check_embed_dw;
    case NIB_OP_BIAS_DW: return check_bias_dw;
    case NIB_OP_XENT: return check_xent;
    case NIB_OP_SQUARES: return check_squares;
    case NIB_OP_ADAMW: return check_adamw;
    default: return NULL;
    }
}

#endif
