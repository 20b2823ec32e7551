/* SPDX-License-Identifier: Apache-2.0
 *
 * The rows of training and the forward rows that they differentiate: gradients against central
 * differences of f64 forward functions written here, both against PyTorch's
 * (tests/golden/train_gradients.txt), AdamW against PyTorch's steps (tests/golden/adamw.txt), the
 * loss against f64, and sums against their definition for any split. Every check runs on every row
 * of the operation that this machine can run.
 */
#include "kernel.h"
#include "machine.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

enum { VALUES_MAX = 8192, LINE_BYTES = 1 << 16 };

static uint64_t seed = 20261120;

static float next_random(void)
{
    seed = seed * 6364136223846793005U + 1442695040888963407U;
    return (float)(int32_t)(seed >> 32) * 0x1p-31F;
}

static void fill(float *x, int64_t count, float scale)
{
    for (int64_t i = 0; i < count; i++)
        x[i] = next_random() * scale;
}

/* The next row of an operation after `last` that runs on this machine; NULL after the last. */
static const nib_kernel *next_row(nib_op op, const nib_kernel *last)
{
    const nib_query here = {.fact = {[NIB_FACT_OP] = op, [NIB_FACT_ISA] = nib__cpu_isa()}};
    const nib_family *family = op < NIB_OP_QUANT_T ? &nib__family_token : &nib__family_train;
    const nib_kernel *end = family->rows + family->count;
    for (const nib_kernel *row = last == NULL ? family->rows : last + 1; row < end; row++)
        if (row->op == op && row->run.any != NULL && nib__kernel_holds(row, &here, true))
            return row;
    return NULL;
}

#define EACH_ROW(row, op)                                                                          \
    const nib_kernel *row = next_row(op, NULL);                                                    \
    row != NULL;                                                                                   \
    row = next_row(op, row)

/* Each value is within `relative` of itself plus `floor`. */
static void assert_near(const char *what, const float *got, const double *want, int64_t count,
                        double relative, double floor)
{
    for (int64_t i = 0; i < count; i++)
        if (!(fabs((double)got[i] - want[i]) <= relative * fabs(want[i]) + floor))
            fail_msg("%s: value %d is %.9g, not %.9g", what, (int)i, (double)got[i], want[i]);
}

/* The floor is a hundredth of the largest value's tolerance, as terms of that size cancel in
 * smaller values. */
static void assert_close(const char *what, const float *got, const double *want, int64_t count,
                         double relative)
{
    double largest = 0;
    for (int64_t i = 0; i < count; i++)
        largest = fmax(largest, fabs(want[i]));
    assert_near(what, got, want, count, relative, 0.01 * relative * largest);
}

/* ---- central differences ---- */

typedef struct shape {
    int64_t rows, width;
    const float *dy;    /* the loss is the sum of dy * output; NULL: the output is the loss */
    const void *others; /* other inputs of the forward step */
} shape;

typedef double (*forward)(const shape *s, const double *x);

static void differences(forward f, const shape *s, const float *at, int64_t count, double *out)
{
    static double x[VALUES_MAX];
    const double h = 1e-4;
    assert_true(count <= VALUES_MAX);
    for (int64_t i = 0; i < count; i++)
        x[i] = (double)at[i];
    for (int64_t i = 0; i < count; i++) {
        x[i] = (double)at[i] + h;
        const double above = f(s, x);
        x[i] = (double)at[i] - h;
        out[i] = (above - f(s, x)) / (2 * h);
        x[i] = (double)at[i];
    }
}

/* One row; bias NULL: none. */
static void norm_values(const double *x, const double *weight, const double *bias, int64_t width,
                        bool centered, double *out)
{
    double mean = 0, squares = 0;
    for (int64_t i = 0; i < width && centered; i++)
        mean += x[i] / (double)width;
    for (int64_t i = 0; i < width; i++)
        squares += (x[i] - mean) * (x[i] - mean);
    const double r = 1 / sqrt(squares / (double)width + (double)1e-5F);
    for (int64_t i = 0; i < width; i++)
        out[i] = (x[i] - mean) * r * weight[i] + (bias != NULL ? bias[i] : 0);
}

/* x, then the weight; others: whether it is centered. */
static double norm_loss(const shape *s, const double *x)
{
    static double y[VALUES_MAX];
    const double *weight = x + s->rows * s->width;
    double loss = 0;
    for (int64_t row = 0; row < s->rows; row++, x += s->width) {
        norm_values(x, weight, NULL, s->width, *(const bool *)s->others, y);
        for (int64_t i = 0; i < s->width; i++)
            loss += (double)s->dy[row * s->width + i] * y[i];
    }
    return loss;
}

/* With and without a bias, centered or not; far from 0, where the variance needs two passes. */
static void test_norm_values(void **state)
{
    (void)state;
    enum { ROWS = 3, WIDTH = 37, ALL = ROWS * WIDTH };
    float x[ALL], parameters[2 * WIDTH], y[ALL];
    double wide[ALL], weight[2 * WIDTH], want[ALL];
    fill(x, ALL, 2), fill(parameters, 2 * WIDTH, 1);
    for (int i = 0; i < ALL; i++)
        x[i] += 100, wide[i] = (double)x[i];
    for (int i = 0; i < 2 * WIDTH; i++)
        weight[i] = (double)parameters[i];
    for (int form = 0; form < 4; form++) {
        const bool centered = form % 2 != 0, biased = form / 2 != 0;
        for (int row = 0; row < ROWS; row++)
            norm_values(wide + row * WIDTH, weight, biased ? weight + WIDTH : NULL, WIDTH, centered,
                        want + row * WIDTH);
        for (EACH_ROW(row, NIB_OP_NORM)) {
            const nib_norm a = {
                x,     y,     parameters, ROWS,     WIDTH,
                WIDTH, WIDTH, 1e-5F,      centered, biased ? parameters + WIDTH : NULL,
                1};
            row->run.norm(&a, 0, ROWS);
            assert_near(row->name, y, want, ALL, 1e-5, 1e-5);
        }
    }
}

static void check_norm_differences(bool centered)
{
    enum { ROWS = 4, WIDTH = 37, ALL = ROWS * WIDTH };
    float x[ALL + WIDTH], dy[ALL], dx[ALL], dw[WIDTH], inverse[ROWS], mean[ROWS];
    double want[ALL + WIDTH];
    fill(x, ALL + WIDTH, 2), fill(dy, ALL, 1);
    for (int i = 0; i < ALL && centered; i++)
        x[i] += 3;
    const shape s = {ROWS, WIDTH, dy, &centered};
    differences(norm_loss, &s, x, ALL + WIDTH, want);
    for (EACH_ROW(row, NIB_OP_NORM_DX)) {
        nib_norm_dx a = {x,     dy,    x + ALL, dx,   inverse,  ROWS, WIDTH, WIDTH,
                         WIDTH, WIDTH, 1e-5F,   NULL, centered, mean, 1};
        row->run.norm_dx(&a, 0, ROWS);
        assert_close(row->name, dx, want, ALL, 1e-4);
        for (int i = 0; i < ALL; i++)
            dx[i] = 1;
        a.sum = dx;
        row->run.norm_dx(&a, 0, ROWS);
        for (int i = 0; i < ALL; i++)
            dx[i] -= 1; /* dx was added to */
        assert_close(row->name, dx, want, ALL, 1e-4);
    }
    for (EACH_ROW(row, NIB_OP_NORM_DW)) {
        const nib_norm_dw a = {
            x, dy, inverse, dw, ROWS, WIDTH, WIDTH, WIDTH, centered ? mean : NULL, 1};
        row->run.norm_dw(&a, 0, WIDTH);
        assert_close(row->name, dw, want + ALL, WIDTH, 1e-5);
    }
}

static void test_norm_differences(void **state)
{
    (void)state;
    check_norm_differences(false);
    check_norm_differences(true);
}

typedef struct gating {
    nib_activation activation;
    bool gated;
} gating;

static double activated(nib_activation activation, double x)
{
    const double half_root = 0.79788456080286535588; /* sqrt(2 / pi) */
    return activation == NIB_SIGMOID ? 1 / (1 + exp(-x))
           : activation == NIB_SILU  ? x / (1 + exp(-x))
                                     : x / 2 * (1 + tanh(half_root * (x + 0.044715 * x * x * x)));
}

/* gates, then ups. */
static double swiglu_loss(const shape *s, const double *x)
{
    const gating *g = s->others;
    double loss = 0;
    for (int64_t i = 0; i < s->width; i++)
        loss +=
            (double)s->dy[i] * activated(g->activation, x[i]) * (g->gated ? x[s->width + i] : 1);
    return loss;
}

static void check_swiglu_differences(gating g)
{
    enum { LENGTH = 211 };
    float x[2 * LENGTH], dy[LENGTH], d[2 * LENGTH];
    double want[2 * LENGTH];
    fill(x, 2 * LENGTH, 8), fill(dy, LENGTH, 1);
    const shape s = {1, LENGTH, dy, &g};
    differences(swiglu_loss, &s, x, 2 * LENGTH, want);
    for (EACH_ROW(row, NIB_OP_SWIGLU_DX)) {
        const nib_swiglu_dx a = {.gate = x,
                                 .up = g.gated ? x + LENGTH : NULL,
                                 .dy = dy,
                                 .dgate = d,
                                 .dup = g.gated ? d + LENGTH : NULL,
                                 .m = 1,
                                 .width = LENGTH,
                                 .ld = LENGTH,
                                 .ldu = LENGTH,
                                 .ldy = LENGTH,
                                 .activation = g.activation};
        row->run.swiglu_dx(&a, 0, 1);
        assert_close(row->name, d, want, LENGTH, 1e-5);
        if (g.gated)
            assert_close(row->name, d + LENGTH, want + LENGTH, LENGTH, 1e-5);
    }
}

/* The gate, then ups. */
static double one_gate_loss(const shape *s, const double *x)
{
    double loss = 0;
    for (int64_t i = 0; i < s->width; i++)
        loss += (double)s->dy[i] * activated(NIB_SIGMOID, x[0]) * x[1 + i];
    return loss;
}

static void check_one_gate(void)
{
    enum { LENGTH = 211 };
    float x[1 + LENGTH], dy[LENGTH], d[1 + LENGTH];
    double want[1 + LENGTH];
    fill(x, 1 + LENGTH, 1), fill(dy, LENGTH, 1);
    const shape s = {1, LENGTH, dy, NULL};
    differences(one_gate_loss, &s, x, 1 + LENGTH, want);
    for (EACH_ROW(row, NIB_OP_SWIGLU_DX)) {
        const nib_swiglu_dx a = {.gate = x,
                                 .up = x + 1,
                                 .dy = dy,
                                 .dgate = d,
                                 .dup = d + 1,
                                 .m = 1,
                                 .width = LENGTH,
                                 .ld = 1,
                                 .ldu = LENGTH,
                                 .ldy = LENGTH,
                                 .activation = NIB_SIGMOID,
                                 .one_gate = true};
        row->run.swiglu_dx(&a, 0, 1);
        assert_close(row->name, d, want, 1 + LENGTH, 1e-5);
    }
}

static void test_swiglu_differences(void **state)
{
    (void)state;
    check_swiglu_differences((gating){NIB_SILU, true});
    check_swiglu_differences((gating){NIB_SILU, false});
    check_swiglu_differences((gating){NIB_GELU_TANH, true});
    check_swiglu_differences((gating){NIB_GELU_TANH, false});
    check_swiglu_differences((gating){NIB_SIGMOID, true});
    check_swiglu_differences((gating){NIB_SIGMOID, false});
    check_one_gate();
}

/* Where gelu is 0 or equals its gate, exact to the last bit of f32. */
static void test_gelu_of_edges(void **state)
{
    (void)state;
    static const float gates[] = {0,     1e-30F, 100,     3e38F, INFINITY, -100,
                                  -1e6F, NAN,    -1e-30F, 1e6F,  20};
    enum { LENGTH = COUNT(gates) };
    float y[LENGTH];
    for (EACH_ROW(row, NIB_OP_SWIGLU)) {
        const nib_swiglu a = {.gate = gates,
                              .out = y,
                              .m = 1,
                              .width = LENGTH,
                              .ld = LENGTH,
                              .ldo = LENGTH,
                              .activation = NIB_GELU_TANH};
        row->run.swiglu(&a, 0, 1);
        for (size_t i = 0; i < LENGTH; i++) {
            const float x = gates[i], want = fabsf(x) < 1 ? x / 2 : x < 0 ? 0 : x;
            if (!(isnan(x) ? isnan(y[i]) : y[i] == want || fabsf(y[i] - want) <= 1e-30F))
                fail_msg("%s: gelu of %g is %g", row->name, (double)x, (double)y[i]);
        }
    }
}

static double scale_loss(const shape *s, const double *x)
{
    const nib_scale *a = s->others;
    double loss = 0;
    for (int64_t i = 0; i < s->width; i++) {
        const double y = (double)a->scale * x[i], cap = (double)a->cap;
        loss += (double)s->dy[i] * (cap > 0 ? cap * tanh(y / cap) : y);
    }
    return loss;
}

static void test_scale_differences(void **state)
{
    (void)state;
    enum { LENGTH = 83 };
    float x[LENGTH], dy[LENGTH], dx[LENGTH];
    double want[LENGTH];
    fill(x, LENGTH, 6), fill(dy, LENGTH, 1);
    for (int capped = 0; capped < 2; capped++) {
        const nib_scale times = {.scale = 1.25F, .cap = capped != 0 ? 4 : 0};
        const shape s = {1, LENGTH, dy, &times};
        differences(scale_loss, &s, x, LENGTH, want);
        for (EACH_ROW(row, NIB_OP_SCALE_DX)) {
            const nib_scale_dx a = {capped != 0 ? x : NULL,
                                    dy,
                                    dx,
                                    1,
                                    LENGTH,
                                    LENGTH,
                                    LENGTH,
                                    LENGTH,
                                    times.scale,
                                    times.cap};
            row->run.scale_dx(&a, 0, 1);
            assert_close(row->name, dx, want, LENGTH, 1e-5);
        }
    }
}

/* The loss as a function of the table, over the rows of the tokens. */
static double embed_loss(const shape *s, const double *table)
{
    const int32_t *ids = s->others;
    double loss = 0;
    for (int64_t m = 0; m < s->rows; m++)
        for (int64_t j = 0; j < s->width; j++)
            loss += (double)s->dy[m * s->width + j] * table[ids[m] * s->width + j];
    return loss;
}

static double bias_loss(const shape *s, const double *bias)
{
    double loss = 0;
    for (int64_t m = 0; m < s->rows; m++)
        for (int64_t j = 0; j < s->width; j++)
            loss += (double)s->dy[m * s->width + j] * bias[j];
    return loss;
}

static void test_table_and_bias_differences(void **state)
{
    (void)state;
    enum { ROWS = 6, WIDTH = 19, VOCABULARY = 4 };
    static const int32_t ids[ROWS] = {2, 0, 2, 3, 2, 0};
    float table[VOCABULARY * WIDTH], dy[ROWS * WIDTH], d[VOCABULARY * WIDTH];
    double want[VOCABULARY * WIDTH];
    fill(table, VOCABULARY * WIDTH, 1), fill(dy, ROWS * WIDTH, 1);
    const shape s = {ROWS, WIDTH, dy, ids};
    differences(embed_loss, &s, table, VOCABULARY * WIDTH, want);
    for (EACH_ROW(row, NIB_OP_EMBED_DW)) {
        const nib_embed_dw a = {ids, dy, d, ROWS, WIDTH};
        memset(d, 0, sizeof d);
        row->run.embed_dw(&a, 0, WIDTH);
        assert_close(row->name, d, want, VOCABULARY * WIDTH, 1e-5);
    }
    differences(bias_loss, &s, table, WIDTH, want);
    for (EACH_ROW(row, NIB_OP_BIAS_DW)) {
        const nib_bias_dw a = {dy, d, ROWS, WIDTH, WIDTH};
        row->run.bias_dw(&a, 0, WIDTH);
        assert_close(row->name, d, want, WIDTH, 1e-5);
    }
}

/* The loss of one token. */
static double xent_loss(const shape *s, const double *x)
{
    double most = x[0], sum = 0;
    for (int64_t i = 1; i < s->width; i++)
        most = fmax(most, x[i]);
    for (int64_t i = 0; i < s->width; i++)
        sum += exp(x[i] - most);
    return log(sum) + (most - x[*(const int32_t *)s->others]);
}

static void test_xent_differences(void **state)
{
    (void)state;
    enum { VOCABULARY = 333 };
    const int32_t target = 200;
    float x[VOCABULARY], dx[VOCABULARY], loss;
    double want[VOCABULARY];
    fill(x, VOCABULARY, 4);
    const shape s = {1, VOCABULARY, NULL, &target};
    differences(xent_loss, &s, x, VOCABULARY, want);
    for (int i = 0; i < VOCABULARY; i++)
        want[i] *= 0.25;
    for (EACH_ROW(row, NIB_OP_XENT)) {
        const nib_xent a = {dx, &target, &loss, 1, VOCABULARY, VOCABULARY, 0.25F, true};
        memcpy(dx, x, sizeof x);
        row->run.xent(&a, 0, 1);
        assert_close(row->name, dx, want, VOCABULARY, 1e-5);
    }
}

/* The gradient rotates back by the forward angles; interleaved: pairs (2i, 2i + 1). */
static void check_rope_inverse(bool interleaved)
{
    enum { DIMS = 38, HEADS = 2, ROWS = 3 };
    static const int32_t position[ROWS] = {5, 0, 2};
    float cos_sin[6 * DIMS], start[ROWS * HEADS * DIMS], x[ROWS * HEADS * DIMS];
    double want[ROWS * HEADS * DIMS];
    for (int p = 0; p < 6; p++)
        for (int i = 0; i < DIMS / 2; i++) {
            cos_sin[p * DIMS + i] = (float)cos(p * 0.3 * (i + 1));
            cos_sin[p * DIMS + DIMS / 2 + i] = (float)sin(p * 0.3 * (i + 1));
        }
    fill(start, ROWS * HEADS * DIMS, 1);
    for (int i = 0; i < ROWS * HEADS * DIMS; i++) {
        const int row = i / (HEADS * DIMS), at = i % DIMS, apart = interleaved ? 1 : DIMS / 2;
        const int pair = interleaved ? at / 2 : at % (DIMS / 2);
        const bool is_first = interleaved ? at % 2 == 0 : at < DIMS / 2;
        const double angle = position[row] * 0.3 * (pair + 1);
        const double other = (double)(is_first ? start[i + apart] : -start[i - apart]);
        want[i] = (double)start[i] * cos(angle) + other * sin(angle);
    }
    for (EACH_ROW(row, NIB_OP_ROPE)) {
        const nib_rope a = {x,    position, cos_sin,      ROWS, HEADS,
                            DIMS, DIMS,     HEADS * DIMS, true, interleaved};
        memcpy(x, start, sizeof x);
        row->run.rope(&a, 0, ROWS);
        assert_close(row->name, x, want, ROWS * HEADS * DIMS, 2e-5);
    }
}

static void test_rope_inverse(void **state)
{
    (void)state;
    check_rope_inverse(false);
    check_rope_inverse(true);
}

/* ---- the loss ---- */

static void test_xent_values(void **state)
{
    (void)state;
    enum { VOCABULARY = 2 * NIB_SUM_BLOCK + 21, ROWS = 5 };
    static const float scales[ROWS] = {0.01F, 3, 40, 1e3F, 1e4F};
    static float x[ROWS * VOCABULARY], start[ROWS * VOCABULARY];
    static double as_double[VOCABULARY];
    int32_t target[ROWS] = {0, VOCABULARY - 1, NIB_SUM_BLOCK, 77, 78};
    for (int m = 0; m < ROWS; m++)
        fill(start + m * VOCABULARY, VOCABULARY, scales[m]);
    for (EACH_ROW(row, NIB_OP_XENT)) {
        float loss[ROWS], only[ROWS];
        nib_xent a = {x, target, only, ROWS, VOCABULARY, VOCABULARY, 1, false};
        memcpy(x, start, sizeof x);
        row->run.xent(&a, 0, ROWS);
        assert_memory_equal(x, start, sizeof x);
        a.gradient = true, a.loss = loss;
        row->run.xent(&a, 0, ROWS);
        assert_memory_equal(loss, only, sizeof loss);
        for (int m = 0; m < ROWS; m++) {
            const shape s = {1, VOCABULARY, NULL, &target[m]};
            double sum = 0;
            for (int i = 0; i < VOCABULARY; i++) {
                as_double[i] = (double)start[m * VOCABULARY + i];
                sum += (double)x[m * VOCABULARY + i];
            }
            const double want = xent_loss(&s, as_double);
            assert_true(fabs((double)loss[m] - want) <= 2e-7 * fabs(want) + 2e-7);
            assert_true(fabs(sum) <= 1e-6); /* a token's gradients sum to 0 */
        }
    }
}

static void test_xent_hard_values(void **state)
{
    (void)state;
    enum { VOCABULARY = 100, ROWS = 5 };
    static const int32_t target[ROWS] = {-1, 3, 99, 5, 6};
    float x[ROWS * VOCABULARY], loss[ROWS];
    for (EACH_ROW(row, NIB_OP_XENT)) {
        const nib_xent a = {x, target, loss, ROWS, VOCABULARY, VOCABULARY, 2, true};
        fill(x, ROWS * VOCABULARY, 3);
        x[50] = NAN;              /* of a token without a target */
        x[VOCABULARY + 98] = NAN; /* in the tail after the last full vector */
        x[2 * VOCABULARY] = NAN;  /* in the first vector */
        for (int i = 0; i < VOCABULARY; i++)
            x[3 * VOCABULARY + i] = 1e4F;
        x[4 * VOCABULARY + 6] = INFINITY;
        row->run.xent(&a, 0, ROWS);
        assert_true(loss[0] == 0 && isnan(loss[1]) && isnan(loss[2]) && isnan(loss[4]));
        assert_true(fabs((double)loss[3] - log(VOCABULARY)) <= 1e-6);
        for (int i = 0; i < VOCABULARY; i++) {
            assert_true(x[i] == 0 && isnan(x[VOCABULARY + i]) && isnan(x[2 * VOCABULARY + i]));
            const double want = 2 * (1.0 / VOCABULARY - (i == target[3]));
            assert_true(fabs((double)x[3 * VOCABULARY + i] - want) <= 1e-6);
        }
    }
}

/* ---- sums: their definition, and any split ---- */

enum { TOKENS = 2 * NIB_TRAIN_ROWS + 71, COLUMNS = 150, SPLIT = 67 };

static void test_sums_over_tokens(void **state)
{
    (void)state;
    static float x[TOKENS * COLUMNS], dy[TOKENS * COLUMNS], inverse[TOKENS], mean[TOKENS];
    float norm[COLUMNS], centered[COLUMNS], bias[COLUMNS], got[COLUMNS];
    fill(x, TOKENS * COLUMNS, 1), fill(dy, TOKENS * COLUMNS, 1), fill(inverse, TOKENS, 1);
    fill(mean, TOKENS, 1);
    for (int j = 0; j < COLUMNS; j++) {
        norm[j] = centered[j] = bias[j] = 0;
        for (int m = 0; m < TOKENS; m += NIB_TRAIN_ROWS) {
            float of_norm = 0, of_centered = 0, of_bias = 0;
            for (int i = m; i < TOKENS && i < m + NIB_TRAIN_ROWS; i++) {
                const float xr = x[i * COLUMNS + j] * inverse[i];
                of_norm = fmaf(dy[i * COLUMNS + j], xr, of_norm);
                const float moved = (x[i * COLUMNS + j] - mean[i]) * inverse[i];
                of_centered = fmaf(dy[i * COLUMNS + j], moved, of_centered);
                of_bias += dy[i * COLUMNS + j];
            }
            norm[j] += of_norm, centered[j] += of_centered, bias[j] += of_bias;
        }
    }
    for (int split = 0; split <= SPLIT; split += SPLIT) {
        for (EACH_ROW(row, NIB_OP_NORM_DW)) {
            nib_norm_dw a = {x, dy, inverse, got, TOKENS, COLUMNS, COLUMNS, COLUMNS, NULL, 1};
            row->run.norm_dw(&a, split, COLUMNS);
            row->run.norm_dw(&a, 0, split);
            assert_memory_equal(got, norm, sizeof got);
            a.mean = mean;
            row->run.norm_dw(&a, split, COLUMNS);
            row->run.norm_dw(&a, 0, split);
            assert_memory_equal(got, centered, sizeof got);
        }
        for (EACH_ROW(row, NIB_OP_BIAS_DW)) {
            const nib_bias_dw a = {dy, got, TOKENS, COLUMNS, COLUMNS};
            row->run.bias_dw(&a, split, COLUMNS);
            row->run.bias_dw(&a, 0, split);
            assert_memory_equal(got, bias, sizeof got);
        }
    }
}

static void test_squares(void **state)
{
    (void)state;
    enum { ALL = 2 * NIB_TRAIN_PART + 1003, PARTS = 3 };
    float *x = malloc(ALL * sizeof *x);
    double want[PARTS], got[PARTS], plain = 0;
    assert_non_null(x);
    fill(x, ALL, 1e20F); /* squares overflow f32 */
    for (int part = 0; part < PARTS; part++) {
        double lanes[NIB_LANES] = {0};
        for (int i = part * NIB_TRAIN_PART; i < ALL && i < (part + 1) * NIB_TRAIN_PART; i++) {
            lanes[i % NIB_LANES] += (double)x[i] * (double)x[i];
            plain += (double)x[i] * (double)x[i];
        }
        for (int half = NIB_LANES / 2; half > 0; half /= 2)
            for (int l = 0; l < half; l++)
                lanes[l] += lanes[l + half];
        want[part] = lanes[0];
    }
    assert_true(fabs(want[0] + want[1] + want[2] - plain) <= 1e-12 * plain);
    for (EACH_ROW(row, NIB_OP_SQUARES)) {
        const nib_squares a = {x, ALL, got};
        for (int split = 0; split <= PARTS; split++) {
            memset(got, 0xff, sizeof got);
            row->run.squares(&a, split, PARTS);
            row->run.squares(&a, 0, split);
            assert_memory_equal(got, want, sizeof got);
        }
    }
    free(x);
}

/* ---- PyTorch ---- */

static FILE *open_golden(const char *path)
{
    static char line[LINE_BYTES];
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    assert_non_null(fgets(line, sizeof line, file));
    assert_int_equal(line[0], '#');
    return file;
}

/* The line "NAME HEX" of count 4-byte values. */
static void read_values(FILE *file, const char *name, void *out, int64_t count)
{
    static char line[LINE_BYTES];
    const size_t prefix = strlen(name);
    assert_non_null(fgets(line, sizeof line, file));
    assert_true(strncmp(line, name, prefix) == 0 && line[prefix] == ' ');
    assert_int_equal(strcspn(line + prefix + 1, "\n"), 8 * count);
    for (int64_t i = 0; i < 4 * count; i++) {
        unsigned byte;
        assert_int_equal(sscanf(line + prefix + 1 + 2 * i, "%2x", &byte), 1);
        ((uint8_t *)out)[i] = (uint8_t)byte;
    }
}

static void read_doubles(FILE *file, const char *name, double *out, int64_t count)
{
    static float values[VALUES_MAX];
    assert_true(count <= VALUES_MAX);
    read_values(file, name, values, count);
    for (int64_t i = 0; i < count; i++)
        out[i] = (double)values[i];
}

enum { GOLDEN_MAX = 2048 };

static float operand[4][GOLDEN_MAX], gradient[2][GOLDEN_MAX];
static double wanted[4][GOLDEN_MAX];

static void check_norm_golden(FILE *file, int64_t rows, int64_t width)
{
    const int64_t all = rows * width;
    float inverse[16];
    assert_true(rows <= 16);
    read_values(file, "x", operand[0], all), read_values(file, "weight", operand[1], width);
    read_values(file, "dy", operand[2], all);
    read_doubles(file, "dx", wanted[0], all), read_doubles(file, "dw", wanted[1], width);
    for (EACH_ROW(row, NIB_OP_NORM_DX)) {
        const nib_norm_dx a = {operand[0], operand[2], operand[1], gradient[0], inverse,
                               rows,       width,      width,      width,       width,
                               1e-5F,      NULL,       false,      NULL,        1};
        row->run.norm_dx(&a, 0, rows);
        assert_close(row->name, gradient[0], wanted[0], all, 1e-5);
    }
    for (EACH_ROW(row, NIB_OP_NORM_DW)) {
        const nib_norm_dw a = {operand[0], operand[2], inverse, gradient[1], rows,
                               width,      width,      width,   NULL,        1};
        row->run.norm_dw(&a, 0, width);
        assert_close(row->name, gradient[1], wanted[1], width, 1e-5);
    }
}

static void check_swiglu_golden(FILE *file, int64_t rows, int64_t width)
{
    const int64_t all = rows * width;
    read_values(file, "gate", operand[0], all), read_values(file, "up", operand[1], all);
    read_values(file, "dy", operand[2], all);
    read_doubles(file, "dgate", wanted[0], all), read_doubles(file, "dup", wanted[1], all);
    for (EACH_ROW(row, NIB_OP_SWIGLU_DX)) {
        const nib_swiglu_dx a = {.gate = operand[0],
                                 .up = operand[1],
                                 .dy = operand[2],
                                 .dgate = gradient[0],
                                 .dup = gradient[1],
                                 .m = rows,
                                 .width = width,
                                 .ld = width,
                                 .ldu = width,
                                 .ldy = width,
                                 .activation = NIB_SILU};
        row->run.swiglu_dx(&a, 0, rows);
        assert_close(row->name, gradient[0], wanted[0], all, 1e-5);
        assert_close(row->name, gradient[1], wanted[1], all, 1e-5);
    }
}

static void check_layernorm_golden(FILE *file, int64_t rows, int64_t width)
{
    const int64_t all = rows * width;
    float inverse[16], mean[16];
    assert_true(rows <= 16);
    read_values(file, "x", operand[0], all), read_values(file, "weight", operand[1], width);
    read_values(file, "bias", operand[2], width), read_values(file, "dy", operand[3], all);
    read_doubles(file, "y", wanted[0], all), read_doubles(file, "dx", wanted[1], all);
    read_doubles(file, "dw", wanted[2], width), read_doubles(file, "db", wanted[3], width);
    for (EACH_ROW(row, NIB_OP_NORM)) {
        const nib_norm a = {operand[0], gradient[0], operand[1], rows,       width, width,
                            width,      1e-5F,       true,       operand[2], 1};
        row->run.norm(&a, 0, rows);
        assert_close(row->name, gradient[0], wanted[0], all, 1e-5);
    }
    for (EACH_ROW(row, NIB_OP_NORM_DX)) {
        const nib_norm_dx a = {operand[0], operand[3], operand[1], gradient[0], inverse,
                               rows,       width,      width,      width,       width,
                               1e-5F,      NULL,       true,       mean,        1};
        row->run.norm_dx(&a, 0, rows);
        assert_close(row->name, gradient[0], wanted[1], all, 1e-5);
    }
    for (EACH_ROW(row, NIB_OP_NORM_DW)) {
        const nib_norm_dw a = {operand[0], operand[3], inverse, gradient[0], rows,
                               width,      width,      width,   mean,        1};
        row->run.norm_dw(&a, 0, width);
        assert_close(row->name, gradient[0], wanted[2], width, 1e-5);
    }
    for (EACH_ROW(row, NIB_OP_BIAS_DW)) {
        const nib_bias_dw a = {operand[3], gradient[0], rows, width, width};
        row->run.bias_dw(&a, 0, width);
        assert_close(row->name, gradient[0], wanted[3], width, 1e-5);
    }
}

/* An activation of gates, with or without ups: forward, then its gradients. */
static void check_activation_golden(FILE *file, int64_t rows, int64_t width, gating g)
{
    const int64_t all = rows * width;
    read_values(file, "gate", operand[0], all);
    if (g.gated)
        read_values(file, "up", operand[1], all);
    read_values(file, "dy", operand[2], all);
    read_doubles(file, "y", wanted[0], all), read_doubles(file, "dgate", wanted[1], all);
    if (g.gated)
        read_doubles(file, "dup", wanted[2], all);
    const float *up = g.gated ? operand[1] : NULL;
    for (EACH_ROW(row, NIB_OP_SWIGLU)) {
        const nib_swiglu a = {.gate = operand[0],
                              .up = up,
                              .out = gradient[0],
                              .m = rows,
                              .width = width,
                              .ld = width,
                              .ldu = width,
                              .ldo = width,
                              .activation = g.activation};
        row->run.swiglu(&a, 0, rows);
        assert_close(row->name, gradient[0], wanted[0], all, 1e-5);
    }
    for (EACH_ROW(row, NIB_OP_SWIGLU_DX)) {
        const nib_swiglu_dx a = {.gate = operand[0],
                                 .up = up,
                                 .dy = operand[2],
                                 .dgate = gradient[0],
                                 .dup = g.gated ? gradient[1] : NULL,
                                 .m = rows,
                                 .width = width,
                                 .ld = width,
                                 .ldu = width,
                                 .ldy = width,
                                 .activation = g.activation};
        row->run.swiglu_dx(&a, 0, rows);
        assert_close(row->name, gradient[0], wanted[1], all, 1e-5);
        if (g.gated)
            assert_close(row->name, gradient[1], wanted[2], all, 1e-5);
    }
}

/* Two heads of 44 channels, 38 of which are rotated. */
static void check_rope_golden(FILE *file, int64_t rows, int64_t width)
{
    enum { HEADS = 2, HEAD_DIM = 44, DIMS = 38, POSITIONS = 7 };
    const int64_t all = rows * width;
    int32_t position[16];
    assert_true(rows <= 16 && width == HEADS * HEAD_DIM);
    read_values(file, "position", position, rows);
    read_values(file, "cos_sin", operand[0], POSITIONS * DIMS);
    read_values(file, "x", operand[1], all), read_values(file, "dy", operand[2], all);
    read_doubles(file, "y", wanted[0], all), read_doubles(file, "dx", wanted[1], all);
    for (EACH_ROW(row, NIB_OP_ROPE)) {
        for (int back = 0; back < 2; back++) {
            const nib_rope a = {gradient[0], position, operand[0], rows,      HEADS,
                                HEAD_DIM,    DIMS,     width,      back != 0, true};
            memcpy(gradient[0], operand[1 + back], (size_t)all * sizeof(float));
            row->run.rope(&a, 0, rows);
            assert_close(row->name, gradient[0], wanted[back], all, 1e-5);
        }
    }
}

static void check_scale_golden(FILE *file, int64_t rows, int64_t width)
{
    const int64_t all = rows * width;
    float by[2]; /* the scale and the cap */
    read_values(file, "by", by, 2);
    read_values(file, "x", operand[0], all), read_values(file, "dy", operand[1], all);
    read_doubles(file, "y", wanted[0], all), read_doubles(file, "dx", wanted[1], all);
    for (EACH_ROW(row, NIB_OP_SCALE)) {
        const nib_scale a = {operand[0], gradient[0], rows, width, width, width, by[0], by[1]};
        row->run.scale(&a, 0, rows);
        assert_close(row->name, gradient[0], wanted[0], all, 1e-5);
    }
    for (EACH_ROW(row, NIB_OP_SCALE_DX)) {
        const nib_scale_dx a = {by[1] > 0 ? operand[0] : NULL,
                                operand[1],
                                gradient[0],
                                rows,
                                width,
                                width,
                                width,
                                width,
                                by[0],
                                by[1]};
        row->run.scale_dx(&a, 0, rows);
        assert_close(row->name, gradient[0], wanted[1], all, 1e-5);
    }
}

static void check_xent_golden(FILE *file, int64_t rows, int64_t width)
{
    int32_t target[16];
    assert_true(rows <= 16);
    read_values(file, "x", operand[0], rows * width), read_values(file, "target", target, rows);
    read_doubles(file, "loss", wanted[1], rows), read_doubles(file, "dx", wanted[0], rows * width);
    for (EACH_ROW(row, NIB_OP_XENT)) {
        memcpy(gradient[0], operand[0], sizeof gradient[0]);
        const nib_xent a = {gradient[0], target, gradient[1], rows, width, width, 1, true};
        row->run.xent(&a, 0, rows);
        assert_close(row->name, gradient[0], wanted[0], rows * width, 1e-5);
        assert_close(row->name, gradient[1], wanted[1], rows, 1e-6);
    }
}

static void test_torch_gradients(void **state)
{
    (void)state;
    FILE *file = open_golden("tests/golden/train_gradients.txt");
    char name[16];
    int rows, width, count = 0;
    while (fscanf(file, "%15s %d %d\n", name, &rows, &width) == 3) {
        assert_true(rows * width <= GOLDEN_MAX);
        if (strcmp(name, "norm") == 0)
            check_norm_golden(file, rows, width);
        else if (strcmp(name, "swiglu") == 0)
            check_swiglu_golden(file, rows, width);
        else if (strcmp(name, "xent") == 0)
            check_xent_golden(file, rows, width);
        else if (strcmp(name, "layernorm") == 0)
            check_layernorm_golden(file, rows, width);
        else if (strcmp(name, "geglu") == 0)
            check_activation_golden(file, rows, width, (gating){NIB_GELU_TANH, true});
        else if (strcmp(name, "gelu") == 0)
            check_activation_golden(file, rows, width, (gating){NIB_GELU_TANH, false});
        else if (strcmp(name, "silu") == 0)
            check_activation_golden(file, rows, width, (gating){NIB_SILU, false});
        else if (strcmp(name, "rope_pairs") == 0)
            check_rope_golden(file, rows, width);
        else if (strcmp(name, "scale") == 0 || strcmp(name, "cap") == 0)
            check_scale_golden(file, rows, width);
        else
            fail_msg("train_gradients.txt has no %s", name);
        count++;
    }
    assert_int_equal(count, 10);
    fclose(file);
}

typedef struct recipe {
    double rate, beta1, beta2, eps, decay, clip;
    int steps, count;
} recipe;

static bool read_recipe(FILE *file, recipe *r)
{
    return fscanf(file, "case %lf %lf %lf %lf %lf %lf %d %d\n", &r->rate, &r->beta1, &r->beta2,
                  &r->eps, &r->decay, &r->clip, &r->steps, &r->count) == 8;
}

/* Runs the steps of one case; `split`: in two parts. */
static void check_steps(FILE *file, const nib_kernel *row, const recipe *r, int split)
{
    static float p[GOLDEN_MAX], m[GOLDEN_MAX], v[GOLDEN_MAX], g[GOLDEN_MAX];
    assert_true(r->count <= GOLDEN_MAX);
    read_values(file, "p", p, r->count);
    memset(m, 0, sizeof m), memset(v, 0, sizeof v);
    for (int t = 1; t <= r->steps; t++) {
        const nib_adamw a = {.p = p,
                             .m = m,
                             .v = v,
                             .g = g,
                             .count = r->count,
                             .clip = (float)r->clip,
                             .shrink = (float)(1 - r->rate * r->decay),
                             .rest1 = (float)(1 - r->beta1),
                             .beta2 = (float)r->beta2,
                             .rest2 = (float)(1 - r->beta2),
                             .step = (float)(r->rate / (1 - pow(r->beta1, t))),
                             .root = (float)sqrt(1 - pow(r->beta2, t)),
                             .eps = (float)r->eps};
        read_values(file, "g", g, r->count);
        row->run.adamw(&a, split, r->count);
        row->run.adamw(&a, 0, split);
        read_doubles(file, "p", wanted[0], r->count);
        assert_near("p", p, wanted[0], r->count, 1e-6, 0);
        read_doubles(file, "m", wanted[0], r->count);
        assert_near("m", m, wanted[0], r->count, 1e-6, 0);
        read_doubles(file, "v", wanted[0], r->count);
        assert_near("v", v, wanted[0], r->count, 1e-6, 0);
    }
}

static void test_torch_adamw(void **state)
{
    (void)state;
    for (EACH_ROW(row, NIB_OP_ADAMW)) {
        for (int split = 0; split < 20; split += 19) {
            FILE *file = open_golden("tests/golden/adamw.txt");
            recipe r;
            int count = 0;
            for (; read_recipe(file, &r); count++)
                check_steps(file, row, &r, split);
            assert_int_equal(count, 3);
            fclose(file);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_norm_values),
        cmocka_unit_test(test_norm_differences),
        cmocka_unit_test(test_swiglu_differences),
        cmocka_unit_test(test_gelu_of_edges),
        cmocka_unit_test(test_scale_differences),
        cmocka_unit_test(test_table_and_bias_differences),
        cmocka_unit_test(test_xent_differences),
        cmocka_unit_test(test_rope_inverse),
        cmocka_unit_test(test_xent_values),
        cmocka_unit_test(test_xent_hard_values),
        cmocka_unit_test(test_sums_over_tokens),
        cmocka_unit_test(test_squares),
        cmocka_unit_test(test_torch_gradients),
        cmocka_unit_test(test_torch_adamw),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
