/* SPDX-License-Identifier: Apache-2.0
 *
 * GPTQ and AWQ: errors in their tensors and config.json, neutral zero points, and the order of
 * columns. test_dialects.c compares values with independent unpackers.
 */
#include "checkpoint_build.h"

#include <math.h>

static const float ones[64] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
                               1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
                               1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
static const float not_finite[6] = {1, 1, 1, NAN, 1, 1};

/* ---- errors ---- */

#define GPTQ_CONFIG(rest)                                                                          \
    "{\"quantization_config\":{\"quant_method\":\"gptq\",\"bits\":4," rest "}}"

static void test_gptq_hostile(void **state)
{
    (void)state;
    static const char config[] = GPTQ_CONFIG("\"group_size\":8,\"desc_act\":true");
    static const int32_t order[16] = {1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0},
                         beyond[16] = {0, 0, 9}, uneven[16] = {0, 0, 1};
    static const int64_t wide[16] = {1, 1, 1, 1, 1, 1, 1, 1};
    static const part parts[] = {
        {"m.qweight", "I32", 2, {2, 3}, NULL}, {"m.qzeros", "I32", 2, {2, 1}, NULL},
        {"m.scales", "F32", 2, {2, 3}, ones},  {"m.g_idx", "I32", 1, {16}, order},
        {"m.bias", "F16", 1, {3}, NULL},
    };
    static const change changes[] = {
        {0, {0}, NIB_BAD_INPUT},
        {0, {"m.qweight", "I32", 2, {3, 3}, NULL}, NIB_BAD_INPUT},
        {0, {"m.qweight", "I32", 1, {6}, NULL}, NIB_BAD_INPUT},
        {0, {"m.qweight", "I32", 2, {0, 3}, NULL}, NIB_BAD_INPUT},
        {0, {"m.qweight", "U8", 2, {2, 3}, NULL}, NIB_BAD_INPUT},
        {1, {0}, NIB_BAD_INPUT},
        {1, {"m.qzeros", "I32", 2, {1, 1}, NULL}, NIB_BAD_INPUT},
        {1, {"m.qzeros", "F32", 2, {2, 1}, NULL}, NIB_BAD_INPUT},
        {2, {0}, NIB_BAD_INPUT},
        {2, {"m.scales", "F32", 2, {3, 2}, ones}, NIB_BAD_INPUT},
        {2, {"m.scales", "F32", 2, {2, 3}, not_finite}, NIB_BAD_INPUT},
        {2, {"m.scales", "I32", 2, {2, 3}, NULL}, NIB_BAD_INPUT},
        {3, {0}, NIB_OK},
        {3, {"m.g_idx", "I64", 1, {16}, wide}, NIB_OK},
        {3, {"m.g_idx", "F16", 1, {16}, NULL}, NIB_BAD_INPUT},
        {3, {"m.g_idx", "I32", 1, {16}, beyond}, NIB_BAD_INPUT}, /* of 2 groups */
        {3, {"m.g_idx", "I32", 1, {16}, uneven}, NIB_UNSUPPORTED},
        {3, {"m.g_idx", "I32", 1, {17}, NULL}, NIB_BAD_INPUT}, /* of 16 inputs */
        {3, {"m.g_idx", "I32", 2, {4, 4}, order}, NIB_BAD_INPUT},
        {4, {"m.bias", "F16", 1, {2}, NULL}, NIB_BAD_INPUT},
    };
    static const struct {
        const char *config;
        nib_status status;
    } configs[] = {
        {GPTQ_CONFIG("\"group_size\":4"), NIB_BAD_INPUT}, /* 2 rows of scales, not 4 */
        {GPTQ_CONFIG("\"group_size\":0"), NIB_BAD_INPUT},
        {GPTQ_CONFIG("\"group_size\":-2"), NIB_BAD_INPUT},
        {GPTQ_CONFIG("\"group_size\":8,\"bits\":3"), NIB_UNSUPPORTED},
        {GPTQ_CONFIG("\"group_size\":8,\"bits\":2"), NIB_UNSUPPORTED},
        {GPTQ_CONFIG("\"group_size\":8,\"bits\":8"), NIB_BAD_INPUT}, /* 2 rows of codes, not 4 */
        {GPTQ_CONFIG("\"group_size\":8,\"checkpoint_format\":\"marlin\""), NIB_UNSUPPORTED},
        {GPTQ_CONFIG("\"group_size\":8,\"is_marlin_format\":true"), NIB_UNSUPPORTED},
        {GPTQ_CONFIG("\"group_size\":8,\"pack_dtype\":\"int16\""), NIB_UNSUPPORTED},
        {GPTQ_CONFIG("\"group_size\":8,\"dynamic\":{\"+:.*\":{\"bits\":8}}"), NIB_UNSUPPORTED},
        {GPTQ_CONFIG("\"group_size\":8,\"dynamic\":{\"-:.*head\":{}}"), NIB_OK},
        {"{}", NIB_UNSUPPORTED}, /* no quantization_config */
    };
    expect_changes(config, parts, COUNT(parts), changes, COUNT(changes));
    for (size_t i = 0; i < COUNT(configs); i++)
        expect_module(configs[i].config, parts, COUNT(parts), configs[i].status);
}

static void test_awq_hostile(void **state)
{
    (void)state;
#define AWQ_CONFIG(rest)                                                                           \
    "{\"quantization_config\":{\"quant_method\":\"awq\",\"bits\":4,\"group_size\":8" rest "}}"
    static const part parts[] = {{"m.qweight", "I32", 2, {16, 2}, NULL},
                                 {"m.qzeros", "I32", 2, {2, 2}, NULL},
                                 {"m.scales", "F32", 2, {2, 16}, ones}};
    static const change changes[] = {
        {0, {"m.qweight", "I32", 2, {16, 3}, NULL}, NIB_BAD_INPUT}, /* 16 outputs */
        {0, {"m.qweight", "I32", 2, {0, 2}, NULL}, NIB_BAD_INPUT},
        {0, {"m.qweight", "I16", 2, {16, 2}, NULL}, NIB_BAD_INPUT},
        {1, {0}, NIB_BAD_INPUT},
        {1, {"m.qzeros", "I32", 2, {2, 1}, NULL}, NIB_BAD_INPUT},
        {2, {0}, NIB_BAD_INPUT},
        {2, {"m.scales", "F32", 2, {1, 16}, ones}, NIB_BAD_INPUT},
    };
    expect_changes(AWQ_CONFIG(""), parts, COUNT(parts), changes, COUNT(changes));
    expect_module(AWQ_CONFIG(",\"version\":\"GEMM\""), parts, COUNT(parts), NIB_OK);
    expect_module(AWQ_CONFIG(",\"version\":\"gemv\""), parts, COUNT(parts), NIB_UNSUPPORTED);
    expect_module(AWQ_CONFIG(",\"format\":\"gemv\""), parts, COUNT(parts), NIB_UNSUPPORTED);
    expect_module(AWQ_CONFIG(",\"format\":\"gemv\",\"version\":\"gemm\""), parts, COUNT(parts),
                  NIB_OK);
    expect_module(AWQ_CONFIG(",\"format\":\"gemm\""), parts, COUNT(parts), NIB_OK);
    expect_module(AWQ_CONFIG(",\"w_bit\":8"), parts, COUNT(parts), NIB_UNSUPPORTED);
}

/* ---- zero points and order ---- */

/* A stored 15, the zero point less 1, wraps to 0 and gets a ledger line; a weight without one gets
 * none. */
static void test_wrapped_zeros(void **state)
{
    (void)state;
    static const struct {
        const char *module;
        size_t lines;
    } rows[] = {{"order", 1}, {"plain", 0}};
    const nib_allocator a = nib__allocator_default();
    nib_checkpoint *cp = open_ok("tests/golden/dialects/gptq");
    nib_ledger ledger;
    nib_weight w;
    nib_err err;
    for (size_t i = 0; i < COUNT(rows); i++) {
        nib__ledger_init(&ledger, &a);
        assert_int_equal(nib__checkpoint_weight(&w, NULL, cp, rows[i].module, &ledger, &err),
                         NIB_OK);
        assert_int_equal(ledger.tensor_count, rows[i].lines);
        if (rows[i].lines != 0)
            assert_string_equal(ledger.tensors[0].name, "order.qzeros");
        nib__ledger_free(&ledger);
    }
    nib__checkpoint_close(cp);
}

/* If every zero point is the middle code, the weight is symmetric, whatever the unused rest of the
 * last word. */
static void test_middle_zeros(void **state)
{
    (void)state;
#define OF(bits, format)                                                                           \
    "{\"quantization_config\":{\"quant_method\":\"gptq\",\"group_size\":-1,\"bits\":" bits         \
    ",\"checkpoint_format\":\"" format "\"}}"
    static const char first[] = OF("4", "gptq"), second[] = OF("4", "gptq_v2"),
                      first_of_8[] = OF("8", "gptq"), second_of_8[] = OF("8", "gptq_v2");
    static const struct {
        const char *config;
        uint32_t word;
        int64_t zero; /* zero point of the first output */
        bool any;
    } rows[] = {
        {first, 0x777, 0, false},
        {first, 0xfffff777, 0, false},
        {first, 0x77777777, 0, false},
        {first, 0x77777677, 0, true},
        {first, 0x678, 1, true},
        {second, 0xfffff888, 0, false},
        {second, 0x887, -1, true},
        {first_of_8, 0x7f7f7f, 0, false},
        {first_of_8, 0xff7f7f7f, 0, false},
        {first_of_8, 0x7f7f00, -127, true},
        {first_of_8, 0x807f7f, 0, true},
        {second_of_8, 0x808080, 0, false},
        {second_of_8, 0x7f8081, 1, true},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        made m;
        nib_weight w;
        const part parts[] = {{"m.qweight", "I32", 2, {1, 3}, NULL},
                              {"m.qzeros", "I32", 2, {1, 1}, &rows[i].word},
                              {"m.scales", "F32", 2, {1, 3}, ones}};
        assert_int_equal(make_checkpoint(&m, rows[i].config, parts, COUNT(parts)), NIB_OK);
        assert_int_equal(nib__checkpoint_weight(&w, NULL, m.cp, "m", NULL, &m.err), NIB_OK);
        assert_int_equal(w.scheme.zero, rows[i].any ? NIB_ZERO_INT : NIB_ZERO_NONE);
        assert_int_equal(w.scheme.symmetric, !rows[i].any);
        assert_int_equal(nib__weight_int_zero(&w, 0, 0), rows[i].zero);
        drop_checkpoint(&m);
    }
}

/* An ascending or neutral g_idx gives no order; otherwise columns are ordered by group. */
static void test_order(void **state)
{
    (void)state;
    static const int32_t ascending[16] = {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1},
                         mixed[16] = {1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1},
                         sorted[16] = {1, 2, 3, 4, 5, 6, 7, 8, 0, 9, 10, 11, 12, 13, 14, 15};
    static const int64_t none[16] = {-1, -1, -1, -1, -1, -1, -1, -1,
                                     -1, -1, -1, -1, -1, -1, -1, -1};
    const struct {
        part index;
        const int32_t *order;
    } rows[] = {{{"m.g_idx", "I32", 1, {16}, ascending}, NULL},
                {{"m.g_idx", "I64", 1, {16}, none}, NULL},
                {{"m.g_idx", "I32", 1, {16}, mixed}, sorted}};
    for (size_t i = 0; i < COUNT(rows); i++) {
        made m;
        nib_weight w;
        const part parts[] = {{"m.qweight", "I32", 2, {2, 3}, NULL},
                              {"m.qzeros", "I32", 2, {2, 1}, NULL},
                              {"m.scales", "F32", 2, {2, 3}, ones},
                              rows[i].index};
        assert_int_equal(make_checkpoint(&m, GPTQ_CONFIG("\"group_size\":8"), parts, COUNT(parts)),
                         NIB_OK);
        for (int again = 0; again < 2; again++) { /* an earlier call's order is kept */
            assert_int_equal(nib__checkpoint_weight(&w, NULL, m.cp, "m", NULL, &m.err), NIB_OK);
            assert_int_equal(w.order != NULL, rows[i].order != NULL);
            if (w.order != NULL)
                assert_memory_equal(w.order, rows[i].order, sizeof sorted);
        }
        drop_checkpoint(&m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gptq_hostile),  cmocka_unit_test(test_awq_hostile),
        cmocka_unit_test(test_wrapped_zeros), cmocka_unit_test(test_middle_zeros),
        cmocka_unit_test(test_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
