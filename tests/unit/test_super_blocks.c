/* SPDX-License-Identifier: Apache-2.0
 *
 * Super-blocks of GGUF (Q2_K to Q6_K) and IQ4_NL: what is written has the values that were
 * quantized, each code is the nearest, search loses no more than rounding, and all instruction sets
 * agree.
 */
#include "dialects.h"
#include "golden_scheme.h"
#include "gguf_blocks.h"
#include "machine.h"
#include "quantizer.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <cmocka.h>

#include "refused.h"

enum { K = 512, ROWS = 8, GROUPS = K / 16, BLOCK_BYTES = 210 };

static const struct {
    const char *scheme;
    nib_type type;
    int lowest, highest; /* codes; 0: those of the table */
    double left;         /* of rounding's error, at most, after a search */
} types[] = {{"q2_k", NIB_TYPE_Q2_K, 0, 3, 0.6},     {"q3_k", NIB_TYPE_Q3_K, -4, 3, 0.9},
             {"q4_k", NIB_TYPE_Q4_K, -8, 7, 0.85},   {"q5_k", NIB_TYPE_Q5_K, 0, 31, 0.85},
             {"q6_k", NIB_TYPE_Q6_K, -32, 31, 0.85}, {"iq4_nl", NIB_TYPE_IQ4_NL, 0, 0, 0.9}};

static const int levels[] = {NIB_IQ4_NL_LEVELS};

static float x[ROWS * K], importance[K];

/* Rows of several sizes, heavy tails, and groups that are zero, equal, or of one sign. */
static void make_rows(unsigned seed)
{
    srand(seed);
    for (int i = 0; i < ROWS * K; i++) {
        const float u = (float)rand() / (float)RAND_MAX - 0.5F;
        const float v = (float)rand() / (float)RAND_MAX;
        const int row = i / K, group = i % K / 32;
        x[i] = u * v * v * powf(8, (float)row - 5);
        if (row == 2)
            x[i] += 0.001F;
        if (row == 3 && group < 4)
            x[i] = group == 0 ? 0 : group == 1 ? -0.01F : group == 2 ? 0.02F : -fabsf(x[i]);
        if (row == 4)
            x[i] = fabsf(x[i]);
    }
    memset(x + 5 * K, 0, 256 * sizeof *x); /* a super-block of zeros */
    for (int j = 0; j < K; j++)
        importance[j] = 0.01F + 4 * (float)rand() / (float)RAND_MAX;
}

typedef struct result {
    nib_quantizer q;
    int8_t codes[ROWS * K];
    float scales[ROWS * GROUPS], zeros[ROWS * GROUPS];
    nib_quantized sums;
} result;

static void quantize(result *r, const char *name, nib_ptq_method method, const float *w,
                     nib_quant_w_run run)
{
    nib_err err = {0};
    const nib_scheme s = golden_scheme(name);
    memset(r, 0, sizeof *r);
    assert_int_equal(nib__quantizer_init(&r->q, &s, NIB_TYPE_F32, K, &err), NIB_OK);
    assert_int_equal(nib__quantizer_method(&r->q, method, w, &err), NIB_OK);
    r->q.run = run;
    r->sums = (nib_quantized){.codes = r->codes, .scales = r->scales, .zeros = r->zeros};
    if (nib__quantizer_quantize_rows(&r->q, x, 0, ROWS, &r->sums, &err) != NIB_OK)
        fail_msg("%s", err.text);
}

static nib_weight weight_of(const result *r)
{
    nib_weight w;
    nib__quantizer_describe_weight(&w, &r->q, ROWS, r->codes, r->scales, r->zeros);
    return w;
}

static float value_of(const nib_weight *w, int row, int64_t j, int code)
{
    const int64_t g = j / w->scheme.group;
    return (float)code * nib__weight_scale(w, row, g) + nib__weight_zero(w, row, g);
}

static void check_blocks(const result *r, size_t t)
{
    static uint8_t blocks[K / 256 * BLOCK_BYTES];
    float row_values[K], scales[GROUPS], zeros[GROUPS];
    const nib_weight quantized = weight_of(r);
    nib_weight w;
    const nib_file_layout layout = {.codes = {".weight", types[t].type, 2, {1, K}},
                                    .pieces = NIB_PIECES_BLOCKS};
    for (int i = 0; i < ROWS; i++) {
        for (int64_t g = 0; g < r->q.groups; g++) {
            scales[g] = nib__weight_scale(&quantized, i, g);
            zeros[g] = nib__weight_zero(&quantized, i, g);
        }
        if (!nib__file_layout_blocks(&layout, r->codes + i * K, scales, zeros, K, blocks))
            fail_msg("%s, row %d: the blocks do not hold its scales", types[t].scheme, i);
        assert_true(nib__block_weight(&w, types[t].type, 1, K, blocks));
        nib__weight_row(&w, 0, row_values);
        for (int j = 0; j < K; j++)
            if (row_values[j] != value_of(&quantized, i, j, r->codes[i * K + j]))
                fail_msg("%s, row %d, column %d: read %.9g", types[t].scheme, i, j,
                         (double)row_values[j]);
    }
}

/* The codes of a type, ascending; their number. */
static int codes_of_type(int out[64], size_t t)
{
    if (types[t].lowest == types[t].highest) {
        memcpy(out, levels, sizeof levels);
        return (int)COUNT(levels);
    }
    for (int code = types[t].lowest; code <= types[t].highest; code++)
        out[code - types[t].lowest] = code;
    return types[t].highest - types[t].lowest + 1;
}

/* No other code is nearer by more than rounding of f32. */
static void check_nearest(const result *r, size_t t)
{
    const nib_weight w = weight_of(r);
    int all[64];
    const int count = codes_of_type(all, t);
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < K; j++) {
            const int code = r->codes[i * K + j];
            const float lost = fabsf(x[i * K + j] - value_of(&w, i, j, code));
            bool is_known = false;
            for (int c = 0; c < count; c++) {
                is_known = is_known || all[c] == code;
                if (fabsf(x[i * K + j] - value_of(&w, i, j, all[c])) < lost * (1 - 1e-4F))
                    fail_msg("%s, row %d, column %d: %d is nearer than %d", types[t].scheme, i, j,
                             all[c], code);
            }
            if (!is_known)
                fail_msg("%s: code %d", types[t].scheme, code);
        }
}

static void test_blocks(void **state)
{
    static result r;
    (void)state;
    for (unsigned seed = 1; seed <= 3; seed++)
        for (size_t t = 0; t < COUNT(types); t++)
            for (int method = NIB_PTQ_RTN; method <= NIB_PTQ_SEARCH; method++) {
                make_rows(seed);
                quantize(&r, types[t].scheme, (nib_ptq_method)method, seed == 1 ? NULL : importance,
                         NULL);
                check_blocks(&r, t);
                check_nearest(&r, t);
            }
}

static void test_search(void **state)
{
    static result rounded, searched;
    (void)state;
    make_rows(4);
    for (size_t t = 0; t < COUNT(types); t++) {
        quantize(&searched, types[t].scheme, NIB_PTQ_SEARCH, importance, NULL);
        const double share = searched.sums.objective[1] / searched.sums.objective[0];
        if (!(share < types[t].left))
            fail_msg("%s: %.3f of rounding's error is left", types[t].scheme, share);
        quantize(&rounded, types[t].scheme, NIB_PTQ_RTN, importance, NULL);
        if (rounded.q.scheme.formula == NIB_FORMULA_SUPER) /* others measure it for a search only */
            assert_true(rounded.sums.objective[0] == searched.sums.objective[0]);
    }
}

static void test_same_bits(void **state)
{
    static result a, b;
    const nib_quant_w_run run = nib__quant_w_best(nib__cpu_isa());
    (void)state;
    make_rows(5);
    for (size_t t = 0; t < COUNT(types); t++)
        for (int method = NIB_PTQ_RTN; method <= NIB_PTQ_SEARCH; method++) {
            quantize(&a, types[t].scheme, (nib_ptq_method)method, importance, NULL);
            quantize(&b, types[t].scheme, (nib_ptq_method)method, importance, run);
            assert_memory_equal(a.codes, b.codes, sizeof a.codes);
            assert_memory_equal(a.scales, b.scales, sizeof a.scales);
            assert_memory_equal(a.zeros, b.zeros, sizeof a.zeros);
        }
}

/* Values that no super-block holds are reported. */
static void test_not_held(void **state)
{
    uint8_t block[BLOCK_BYTES];
    const int8_t codes[256] = {0};
    float scales[16], zeros[16] = {0};
    (void)state;
    for (int g = 0; g < 16; g++)
        scales[g] = 1 + 0.37F * (float)g;
    assert_false(nib__super_block_put(block, NIB_TYPE_Q6_K, codes, scales, zeros));
    assert_false(nib__super_block_put(block, NIB_TYPE_Q4_K, codes, scales, zeros));
    for (int g = 0; g < 16; g++)
        scales[g] = 0.25F * (float)(g + 1);
    assert_true(nib__super_block_put(block, NIB_TYPE_Q6_K, codes, scales, zeros));
    assert_true(nib__super_block_put(block, NIB_TYPE_Q3_K, codes, scales, zeros));
    assert_false(nib__super_block_put(block, NIB_TYPE_Q2_K, codes, scales, zeros));
    zeros[3] = 0.1F; /* above every value of Q5_K */
    assert_false(nib__super_block_put(block, NIB_TYPE_Q5_K, codes, scales, zeros));
}

static void test_refused(void **state)
{
    static result r;
    nib_quantizer q;
    nib_err err;
    const nib_scheme s = golden_scheme("q4_k");
    (void)state;
    refused(NIB_UNSUPPORTED, nib__quantizer_init(&q, &s, NIB_TYPE_F32, 224, &err), &err);
    assert_int_equal(nib__quantizer_init(&q, &s, NIB_TYPE_F32, K, &err), NIB_OK);
    refused(NIB_UNSUPPORTED, nib__quantizer_method(&q, NIB_PTQ_LEARN, NULL, &err), &err);
    make_rows(6);
    const nib_scheme nl = golden_scheme("iq4_nl");
    nib_quantizer levels_of;
    assert_int_equal(nib__quantizer_init(&levels_of, &nl, NIB_TYPE_F32, K, &err), NIB_OK);
    x[K + 300] = 1e9F;
    r.sums = (nib_quantized){.codes = r.codes, .scales = r.scales, .zeros = r.zeros};
    refused(NIB_BAD_INPUT, nib__quantizer_quantize_rows(&levels_of, x, 0, ROWS, &r.sums, &err),
            &err);
    x[K + 300] = NAN;
    r.sums = (nib_quantized){.codes = r.codes, .scales = r.scales, .zeros = r.zeros};
    refused(NIB_BAD_INPUT, nib__quantizer_quantize_rows(&q, x, 0, ROWS, &r.sums, &err), &err);
    x[K + 300] = 1e9F;
    refused(NIB_BAD_INPUT, nib__quantizer_quantize_rows(&q, x, 0, ROWS, &r.sums, &err), &err);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_blocks),    cmocka_unit_test(test_search),
        cmocka_unit_test(test_same_bits), cmocka_unit_test(test_not_held),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
