/* SPDX-License-Identifier: Apache-2.0
 *
 * The gradients of recurrences over matrices, their gates, copied columns (recurrence_dx_rows.c)
 * and short convolutions (conv_rows.c) against central differences of f64 forward functions written
 * here, over two documents, the first longer than a chunk. Every check runs on every row that this
 * machine can run.
 */
#include "kernel.h"
#include "machine.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { M = 40, DOCUMENTS = 2, CHANNELS = 19, TAPS = 3 };
/* Two heads of values share one of keys, and are wider than a block of columns. */
enum { KEY_HEADS = 2, HEADS = 4, KEYS = 5, VALUES = 34, OUT = HEADS * VALUES };
enum { X = 2 * KEY_HEADS * KEYS + OUT, GATES = 2 * HEADS };

static const int32_t start[DOCUMENTS + 1] = {0, 36, M};

static uint64_t seed = 20261130;

static void fill(float *x, int64_t count, float low, float high)
{
    for (int64_t i = 0; i < count; i++) {
        seed = seed * 6364136223846793005U + 1442695040888963407U;
        x[i] = low + (high - low) * (float)(seed >> 40) * 0x1p-24F;
    }
}

static const nib_kernel *next_row(const nib_family *family, nib_op op, const nib_kernel *last)
{
    const nib_query here = {.fact = {[NIB_FACT_OP] = op, [NIB_FACT_ISA] = nib__cpu_isa()}};
    const nib_kernel *end = family->rows + family->count;
    for (const nib_kernel *row = last == NULL ? family->rows : last + 1; row < end; row++)
        if (row->op == op && row->run.any != NULL && nib__kernel_holds(row, &here, true))
            return row;
    return NULL;
}

#define EACH_ROW(row, family, op)                                                                  \
    const nib_kernel *row = next_row(&(family), op, NULL);                                         \
    row != NULL;                                                                                   \
    row = next_row(&(family), op, row)

typedef double (*loss_of)(void);

/* Compares every `step`-th gradient with the central difference by its input. */
static void check_differences(const char *what, loss_of loss, double *inputs, int64_t count,
                              int64_t step, const float *got)
{
    const double h = 1e-5;
    double largest = 0;
    for (int64_t i = 0; i < count; i++)
        largest = fmax(largest, fabs((double)got[i]));
    assert_true(largest > 0);
    for (int64_t i = 0; i < count; i += step) {
        const double at = inputs[i];
        inputs[i] = at + h;
        const double above = loss();
        inputs[i] = at - h;
        const double want = (above - loss()) / (2 * h);
        inputs[i] = at;
        if (!(fabs((double)got[i] - want) <= 1e-5 * largest))
            fail_msg("%s: gradient %d is %.9g, not %.9g", what, (int)i, (double)got[i], want);
    }
}

/* ---- recurrences ---- */

static nib_matrix_size size = {
    .key_heads = KEY_HEADS, .heads = HEADS, .key_dim = KEYS, .value_dim = VALUES};
static bool is_delta;
static float x[M * X], gates[M * GATES], skip[HEADS], dy[M * OUT];
static double wide_x[M * X], wide_gates[M * GATES], wide_skip[HEADS];

static void normalize(double *out, const double *row, double scale)
{
    double squares = 1e-6;
    for (int i = 0; i < KEYS; i++)
        squares += row[i] * row[i];
    for (int i = 0; i < KEYS; i++)
        out[i] = row[i] * scale / sqrt(squares);
}

static double head_loss(int64_t head, int64_t first, int64_t end)
{
    static double state[KEYS][VALUES];
    const int64_t key_head = (size.by_turns ? head % KEY_HEADS : head / (HEADS / KEY_HEADS)) * KEYS;
    double loss = 0;
    memset(state, 0, sizeof state);
    for (int64_t t = first; t < end; t++) {
        const double *row = wide_x + t * X, *q = row + OUT + KEY_HEADS * KEYS + key_head,
                     *k = row + OUT + key_head, *v = row + head * VALUES;
        const double beta = wide_gates[t * GATES + head],
                     decay = wide_gates[t * GATES + HEADS + head];
        double own_q[KEYS], own_k[KEYS];
        if (is_delta) {
            normalize(own_q, row + key_head, 1 / sqrt(KEYS));
            normalize(own_k, row + KEY_HEADS * KEYS + key_head, 1);
            q = own_q, k = own_k, v = row + 2 * KEY_HEADS * KEYS + head * VALUES;
        }
        for (int j = 0; j < VALUES; j++) {
            double r = 0, out = is_delta ? 0 : wide_skip[head] * v[j];
            for (int i = 0; i < KEYS; i++)
                r += decay * state[i][j] * k[i];
            for (int i = 0; i < KEYS; i++) {
                state[i][j] = decay * state[i][j] + k[i] * beta * (v[j] - (is_delta ? r : 0));
                out += state[i][j] * q[i];
            }
            loss += (double)dy[t * OUT + head * VALUES + j] * out;
        }
    }
    return loss;
}

static double recurrence_loss(void)
{
    double loss = 0;
    for (int64_t d = 0; d < DOCUMENTS; d++)
        for (int64_t head = 0; head < HEADS; head++)
            loss += head_loss(head, start[d], start[d + 1]);
    return loss;
}

static void check_recurrence(const nib_kernel *row)
{
    static float dx[M * X], dgates[M * GATES], dskip[M * HEADS], sums[HEADS];
    const nib_recurrence_dx a = {.x = x,
                                 .gates = gates,
                                 .skip = skip,
                                 .dy = dy,
                                 .dx = dx,
                                 .dgates = dgates,
                                 .dskip = dskip,
                                 .ldx = X,
                                 .ldg = GATES,
                                 .ldy = OUT,
                                 .lddx = X,
                                 .lddg = GATES,
                                 .documents = DOCUMENTS,
                                 .longest = M,
                                 .start = start,
                                 .size = size};
    void *scratch = aligned_alloc(64, (row->scratch(&a) + 63) / 64 * 64);
    assert_non_null(scratch);
    row->run.recurrence_dx(&a, 0, (int64_t)DOCUMENTS * KEY_HEADS, scratch);
    free(scratch);
    check_differences(row->name, recurrence_loss, wide_x, (int64_t)M * X, 7, dx);
    check_differences(row->name, recurrence_loss, wide_gates, (int64_t)M * GATES, 3, dgates);
    if (is_delta)
        return;
    memset(sums, 0, sizeof sums);
    for (int64_t t = 0; t < M; t++)
        for (int h = 0; h < HEADS; h++)
            sums[h] += dskip[t * HEADS + h];
    check_differences(row->name, recurrence_loss, wide_skip, HEADS, 1, sums);
}

static void test_recurrences(void **state)
{
    (void)state;
    fill(x, (int64_t)M * X, -1, 1), fill(skip, HEADS, -1, 1), fill(dy, (int64_t)M * OUT, -1, 1);
    for (int64_t t = 0; t < M; t++) {
        fill(gates + t * GATES, HEADS, 0.1F, 1);
        fill(gates + t * GATES + HEADS, HEADS, 0.5F, 1);
    }
    for (int64_t i = 0; i < (int64_t)M * X; i++)
        wide_x[i] = (double)x[i];
    for (int64_t i = 0; i < (int64_t)M * GATES; i++)
        wide_gates[i] = (double)gates[i];
    for (int h = 0; h < HEADS; h++)
        wide_skip[h] = (double)skip[h];
    for (int form = 0; form < 3; form++) {
        const nib_op op = form < 2 ? NIB_OP_GATED_DELTA_DX : NIB_OP_SSM_DX;
        is_delta = form < 2;
        size.by_turns = form == 1;
        for (EACH_ROW(row, nib__family_recurrence_dx, op))
            check_recurrence(row);
    }
}

/* ---- gates ---- */

static double gate_in[4 * HEADS]; /* b or x, a, A_log, dt_bias */
static float gate_dy[GATES];
static double least, most;

static double delta_gates_loss(void)
{
    double loss = 0;
    for (int h = 0; h < HEADS; h++) {
        const double soft = log1p(exp(gate_in[HEADS + h] + gate_in[3 * HEADS + h]));
        loss += (double)gate_dy[h] / (1 + exp(-gate_in[h]));
        loss += (double)gate_dy[HEADS + h] * exp(-exp(gate_in[2 * HEADS + h]) * soft);
    }
    return loss;
}

static double ssm_gates_loss(void)
{
    double loss = 0;
    for (int h = 0; h < HEADS; h++) {
        const double soft = log1p(exp(gate_in[h] + gate_in[3 * HEADS + h])),
                     step = fmin(fmax(soft, least), most);
        loss += (double)gate_dy[h] * step;
        loss += (double)gate_dy[HEADS + h] * exp(-exp(gate_in[2 * HEADS + h]) * step);
    }
    return loss;
}

static void test_gates(void **state)
{
    float in[4 * HEADS], d[4 * HEADS], rate[HEADS];
    (void)state;
    fill(in, 4 * HEADS, -1, 1), fill(gate_dy, GATES, -1, 1);
    for (int i = 0; i < 4 * HEADS; i++)
        gate_in[i] = (double)in[i];
    for (int h = 0; h < HEADS; h++)
        rate[h] = (float)exp(gate_in[2 * HEADS + h]);
    for (EACH_ROW(row, nib__family_recurrence_dx, NIB_OP_DELTA_GATES_DX)) {
        const nib_delta_gates_dx a = {.dgates = gate_dy,
                                      .b = in,
                                      .a = in + HEADS,
                                      .a_log = in + 2 * HEADS,
                                      .dt_bias = in + 3 * HEADS,
                                      .db = d,
                                      .da = d + HEADS,
                                      .dlog = d + 2 * HEADS,
                                      .m = 1,
                                      .heads = HEADS,
                                      .ldg = GATES,
                                      .ldb = HEADS,
                                      .lda = HEADS};
        row->run.delta_gates_dx(&a, 0, 1);
        memcpy(d + 3 * HEADS, d + HEADS, HEADS * sizeof *d);
        check_differences(row->name, delta_gates_loss, gate_in, 4 * HEADS, 1, d);
    }
    for (EACH_ROW(row, nib__family_recurrence_dx, NIB_OP_SSM_GATES_DX))
        for (int limited = 0; limited < 2; limited++) {
            least = limited ? 0.5 : 0, most = limited ? 0.9 : (double)INFINITY;
            const nib_ssm_gates_dx a = {.dgates = gate_dy,
                                        .x = in,
                                        .rate = rate,
                                        .dt_bias = in + 3 * HEADS,
                                        .dz = d,
                                        .dlog = d + 2 * HEADS,
                                        .least = least,
                                        .most = most,
                                        .m = 1,
                                        .heads = HEADS,
                                        .ldg = GATES,
                                        .ldx = HEADS,
                                        .ldz = HEADS};
            memset(d, 0, sizeof d);
            row->run.ssm_gates_dx(&a, 0, 1);
            memcpy(d + 3 * HEADS, d, HEADS * sizeof *d);
            check_differences(row->name, ssm_gates_loss, gate_in, 4 * HEADS, 1, d);
        }
}

/* ---- short convolutions ---- */

static double conv_in[M * 3 * CHANNELS], conv_taps[TAPS * CHANNELS], conv_bias[CHANNELS];
static float conv_dy[M * CHANNELS];
static int32_t position[M];
static bool gated; /* else with a bias and silu */

/* Rows are the gates before, the gates after, then the inputs. */
static double conv_loss(void)
{
    double loss = 0;
    for (int64_t t = 0; t < M; t++)
        for (int64_t c = 0; c < CHANNELS; c++) {
            double sum = gated ? 0 : conv_bias[c];
            for (int64_t tap = 0; tap < TAPS; tap++) {
                const int64_t back = TAPS - 1 - tap;
                const double *row = conv_in + (t - back) * 3 * CHANNELS;
                if (position[t] >= back)
                    sum += conv_taps[tap * CHANNELS + c] * row[2 * CHANNELS + c] *
                           (gated ? row[c] : 1);
            }
            const double y =
                gated ? sum * conv_in[t * 3 * CHANNELS + CHANNELS + c] : sum / (1 + exp(-sum));
            loss += (double)conv_dy[t * CHANNELS + c] * y;
        }
    return loss;
}

static void check_conv(const nib_kernel *row, const float *in, const float *taps, const float *bias)
{
    static float dx[M * 3 * CHANNELS], dsum[M * CHANNELS], dw[TAPS * CHANNELS],
        by_tap[TAPS * CHANNELS];
    const nib_short_conv_dx a = {.x = in + 2 * CHANNELS,
                                 .before = gated ? in : NULL,
                                 .after = gated ? in + CHANNELS : NULL,
                                 .weight = taps,
                                 .bias = gated ? NULL : bias,
                                 .silu = !gated,
                                 .dy = conv_dy,
                                 .dx = dx + 2 * CHANNELS,
                                 .dbefore = gated ? dx : NULL,
                                 .dafter = gated ? dx + CHANNELS : NULL,
                                 .dsum = dsum,
                                 .m = M,
                                 .channels = CHANNELS,
                                 .taps = TAPS,
                                 .ldx = 3 * CHANNELS,
                                 .ldy = CHANNELS,
                                 .lddx = 3 * CHANNELS,
                                 .ldd = CHANNELS,
                                 .position = position};
    memset(dx, 0, sizeof dx);
    row->run.short_conv_dx(&a, 0, CHANNELS);
    check_differences(row->name, conv_loss, conv_in, (int64_t)M * 3 * CHANNELS, 5, dx);
    for (EACH_ROW(sums, nib__family_conv, NIB_OP_SHORT_CONV_DW)) {
        const nib_short_conv_dw b = {.x = a.x,
                                     .before = a.before,
                                     .dsum = dsum,
                                     .dw = dw,
                                     .m = M,
                                     .channels = CHANNELS,
                                     .taps = TAPS,
                                     .ldx = a.ldx,
                                     .ldd = CHANNELS,
                                     .position = position};
        sums->run.short_conv_dw(&b, 0, CHANNELS);
        for (int64_t c = 0; c < CHANNELS; c++)
            for (int64_t tap = 0; tap < TAPS; tap++)
                by_tap[tap * CHANNELS + c] = dw[c * TAPS + tap];
        check_differences(sums->name, conv_loss, conv_taps, (int64_t)TAPS * CHANNELS, 1, by_tap);
    }
}

static void test_short_convolutions(void **state)
{
    static float in[M * 3 * CHANNELS], taps[TAPS * CHANNELS], bias[CHANNELS];
    (void)state;
    fill(in, (int64_t)M * 3 * CHANNELS, -1, 1), fill(taps, (int64_t)TAPS * CHANNELS, -1, 1);
    fill(bias, CHANNELS, -1, 1), fill(conv_dy, (int64_t)M * CHANNELS, -1, 1);
    for (int64_t i = 0; i < (int64_t)M * 3 * CHANNELS; i++)
        conv_in[i] = (double)in[i];
    for (int64_t i = 0; i < (int64_t)TAPS * CHANNELS; i++)
        conv_taps[i] = (double)taps[i];
    for (int64_t c = 0; c < CHANNELS; c++)
        conv_bias[c] = (double)bias[c];
    for (int d = 0; d < DOCUMENTS; d++)
        for (int32_t t = start[d]; t < start[d + 1]; t++)
            position[t] = t - start[d];
    for (int form = 0; form < 2; form++) {
        gated = form == 0;
        for (EACH_ROW(row, nib__family_conv, NIB_OP_SHORT_CONV_DX))
            check_conv(row, in, taps, bias);
    }
}

static void test_copied_columns(void **state)
{
    static const int32_t order[] = {3, 0};
    const float gradient[] = {1, 2}, so_far[] = {5, 6, 7, 8};
    float dx[4];
    nib_gather_dx a = {.dy = gradient, .order = order, .dx = dx, .m = 1, .width = 2, .lddx = 4};
    (void)state;
    for (EACH_ROW(row, nib__family_recurrence_dx, NIB_OP_GATHER_DX)) {
        a.sum = NULL;
        row->run.gather_dx(&a, 0, 1);
        assert_true(dx[0] == 2 && dx[1] == 0 && dx[2] == 0 && dx[3] == 1);
        a.sum = so_far;
        row->run.gather_dx(&a, 0, 1);
        assert_true(dx[0] == 7 && dx[1] == 6 && dx[2] == 7 && dx[3] == 9);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_recurrences),
        cmocka_unit_test(test_gates),
        cmocka_unit_test(test_short_convolutions),
        cmocka_unit_test(test_copied_columns),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
