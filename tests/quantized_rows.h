/* SPDX-License-Identifier: Apache-2.0
 *
 * Test helper: random rows and their codes by a method. Include it after cmocka.h.
 */
#ifndef NIB_TESTS_QUANTIZED_ROWS_H
#define NIB_TESTS_QUANTIZED_ROWS_H

#include "golden_scheme.h"
#include "quantizer.h"

#include <math.h>
#include <stdlib.h>

enum { ROWS = 6, K_MAX = 160, CELLS = ROWS * K_MAX };

typedef struct result {
    nib_quantizer q;
    int8_t codes[CELLS];
    uint8_t scales[4 * CELLS], zeros[4 * CELLS];
    nib_quantized sums;
    nib_weight w;
} result;

/* Heavy tails, rows of other sizes, and a group of zeros. */
static inline void make_rows(float *x, nib_type source, int64_t k, unsigned seed)
{
    srand(seed);
    for (int64_t i = 0; i < ROWS * k; i++) {
        const float u = (float)rand() / (float)RAND_MAX - 0.5F;
        const float v = (float)rand() / (float)RAND_MAX - 0.4F;
        float value = u * v * v * powf(4, (float)(i / k) - 3) + (i / k == 2 ? 0.02F : 0);
        uint8_t stored[4];
        if (i >= 32 && i < 64)
            value = 0;
        nib__from_f32(stored, source, &value, 1);
        nib__to_f32(&x[i], stored, source, 1);
    }
}

/* Quantizes ROWS rows of k to a scheme. importance: as in nib_quantizer; run NULL: plain C. */
static inline nib_status try_quantize(result *r, const char *name, nib_type source, int64_t k,
                                      const float *x, const float *importance,
                                      nib_ptq_method method, nib_quant_w_run run)
{
    nib_err err = {0};
    const nib_scheme s = golden_scheme(name);
    float range[2] = {0, 0};
    memset(r, 0, sizeof *r);
    assert_int_equal(nib__quantizer_init(&r->q, &s, source, k, &err), NIB_OK);
    assert_int_equal(nib__quantizer_method(&r->q, method, importance, &err), NIB_OK);
    r->q.run = run;
    if (nib__quantizer_needs_scan(&r->q)) {
        NIB_TRY(nib__quantizer_scan(&r->q, x, 0, ROWS, range, &err));
        NIB_TRY(nib__quantizer_set_range(&r->q, range, &err));
    }
    r->sums = (nib_quantized){.codes = r->codes, .scales = r->scales, .zeros = r->zeros};
    NIB_TRY(nib__quantizer_quantize_rows(&r->q, x, 0, ROWS, &r->sums, &err));
    nib__quantizer_describe_weight(&r->w, &r->q, ROWS, r->codes, r->scales, r->zeros);
    return NIB_OK;
}

static inline void quantize(result *r, const char *name, nib_type source, int64_t k, const float *x,
                            const float *importance, nib_ptq_method method, nib_quant_w_run run)
{
    assert_int_equal(try_quantize(r, name, source, k, x, importance, method, run), NIB_OK);
}

#endif
