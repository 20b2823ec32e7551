/* SPDX-License-Identifier: Apache-2.0
 *
 * Biases in a rewrite: quantized and back, while all other tensors keep their bytes; formats
 * without quantized biases; named errors.
 */
#include "rewriting_build.h"

#include "failing.h"
#include "refused.h"

/* n of 35 has a short last group; one bias is f64, one belongs to a layer that is kept. */
static const source_tensor biased[] = {
    {"a.bias", NIB_TYPE_BF16, {35}, 1},     {"a.weight", NIB_TYPE_BF16, {35, 64}, 2},
    {"b.weight", NIB_TYPE_F32, {3, 64}, 2}, {"b.bias", NIB_TYPE_F64, {3}, 1},
    {"kept.bias", NIB_TYPE_F32, {4}, 1},    {"kept.weight", NIB_TYPE_F32, {4, 64}, 2},
    {"other.bias", NIB_TYPE_F32, {5}, 1},
};

enum { BIASED = 3 };

static void list_biased(nib_quantize_layer layers[BIASED], const char *scheme)
{
    layers[0] = layer("a", scheme);
    layers[1] = layer("b", scheme);
    layers[2] = layer("kept", NULL);
    for (int l = 0; l < BIASED; l++)
        layers[l].act_scale = 0.0625f;
}

/* The same weights, kept as stored, for a conversion. */
static void list_stored(nib_quantize_layer layers[BIASED], const char *scheme)
{
    list_biased(layers, scheme);
    layers[0].recode = layers[1].recode = true;
}

/* Checks the form of every bias and that its values are within `limit` of the source's. */
static void expect_biases(const char *out, nib_bias form, double limit)
{
    static const char *const modules[] = {"a", "b", "kept"};
    static const size_t tensors[] = {0, 3, 4};
    nib_checkpoint *cp = open_ok(out);
    for (int l = 0; l < BIASED; l++) {
        nib_weight w;
        nib_err err;
        float values[35];
        if (nib__checkpoint_weight(&w, NULL, cp, modules[l], NULL, &err) != NIB_OK)
            fail_msg("%s", err.text);
        assert_int_equal(nib__weight_bias_form(&w), l == 2 ? NIB_BIAS_FLOAT : form);
        nib__weight_bias(&w, values);
        for (int64_t i = 0; i < w.n; i++)
            if (!(fabsf(values[i] - value_of(tensors[l], i)) <= (l == 2 ? 0 : (float)limit)))
                fail_msg("%s: bias %d is %g", modules[l], (int)i, (double)values[i]);
    }
    nib__checkpoint_close(cp);
}

/* Every tensor of `before` except biases is in `after` with the same bytes; `parts`: the number of
 * bias tensors in `after`. */
static void expect_others_same(const char *before, const char *after, size_t parts)
{
    nib_checkpoint *a = open_ok(before), *b = open_ok(after);
    size_t others = 0;
    for (size_t i = 0; i < nib__checkpoint_count(a); i++) {
        const nib_tensor *t = nib__checkpoint_at(a, i);
        if (strcmp(t->name, "a.bias") == 0 || strcmp(t->name, "b.bias") == 0)
            continue;
        const nib_tensor *same = nib__checkpoint_find(b, t->name);
        assert_non_null(same);
        assert_int_equal(same->bytes, t->bytes);
        assert_memory_equal(same->data, t->data, (size_t)t->bytes);
        others++;
    }
    assert_int_equal(nib__checkpoint_count(b), others + parts);
    nib__checkpoint_close(a);
    nib__checkpoint_close(b);
}

static void test_biases(void **state)
{
    (void)state;
    static const struct {
        const char *scheme;
        nib_bias form;
        size_t parts; /* tensors of both biases */
    } cases[] = {{"8da4w-g32", NIB_BIAS_INT8, 4},
                 {"8da4w-g32-asym", NIB_BIAS_INT8, 6},
                 {"fp8dq", NIB_BIAS_INT8, 4},
                 {"mxfp8", NIB_BIAS_INT8, 4},
                 {"int8dq-static", NIB_BIAS_INT32, 2},
                 {"8da4w-row-static-asym", NIB_BIAS_INT32, 2},
                 {"int8dq-tensor-static", NIB_BIAS_INT32, 2}};
    char from[512], plain[512], coded[512], back[512];
    write_source(at(from, "src"), config, biased, COUNT(biased), NULL, 0);
    for (size_t i = 0; i < COUNT(cases); i++) {
        nib_quantize_layer layers[BIASED];
        done d;
        list_biased(layers, cases[i].scheme);
        nib_quantize_job job = {
            .layers = layers, .count = BIASED, .out = at(plain, "plain"), .format = "nibble"};
        run_job(&d, from, job);
        expect(&d, NIB_OK);
        assert_true(d.report.biases == 3 && d.report.biases_changed == 0);
        free_done(&d);
        job.out = at(coded, "coded");
        job.format = NULL; /* torchao cannot hold it */
        job.bias = cases[i].form;
        run_job(&d, from, job);
        expect(&d, NIB_OK);
        assert_string_equal(d.report.format, "nibble");
        assert_int_equal(d.report.biases_changed, 2);
        assert_string_equal(d.ledger.layers[0].bias_form, nib__bias_names[cases[i].form]);
        assert_string_equal(d.ledger.layers[2].bias_form, "float");
        free_done(&d);
        expect_biases(coded, cases[i].form, 0.004);
        expect_others_same(plain, coded, cases[i].parts);
        /* as stored; then back to floats, which are the values of the codes */
        list_stored(layers, cases[i].scheme);
        job = (nib_quantize_job){.layers = layers,
                                 .count = BIASED,
                                 .out = at(back, "back"),
                                 .format = "nibble",
                                 .convert = true};
        run_job(&d, coded, job);
        expect(&d, NIB_OK);
        assert_int_equal(d.report.biases_changed, 0);
        free_done(&d);
        expect_others_same(coded, back, 0);
        expect_biases(back, cases[i].form, 0.004);
        drop(back);
        job.bias = NIB_BIAS_FLOAT;
        run_job(&d, coded, job);
        expect(&d, NIB_OK);
        assert_int_equal(d.ledger.tensor_count, 2);
        assert_true(d.ledger.tensors[0].max_rel_change == 0);
        free_done(&d);
        expect_biases(back, NIB_BIAS_FLOAT, 0.004);
        expect_others_same(plain, back, 2);
        drop(back);
        drop(coded);
        drop(plain);
    }
    drop(from);
}

/* int8 biases of float weights stay int8 on request, and become int32 when the weights are
 * quantized. */
static void test_biases_of_floats(void **state)
{
    (void)state;
    char from[512], coded[512], floats[512], out[512];
    nib_quantize_layer layers[BIASED];
    done d;
    write_source(at(from, "src"), config, biased, COUNT(biased), NULL, 0);
    list_biased(layers, "8da4w-g32-asym");
    nib_quantize_job job = {.layers = layers,
                            .count = BIASED,
                            .out = at(coded, "coded"),
                            .format = "nibble",
                            .bias = NIB_BIAS_INT8};
    run_job(&d, from, job);
    expect(&d, NIB_OK);
    free_done(&d);
    list_stored(layers, "f32");
    job.out = at(floats, "floats");
    job.convert = true;
    run_job(&d, coded, job);
    expect(&d, NIB_OK);
    assert_int_equal(d.report.biases_changed, 0);
    free_done(&d);
    expect_biases(floats, NIB_BIAS_INT8, 0.004);
    list_biased(layers, "int8dq-static");
    job.out = at(out, "out");
    job.convert = false;
    job.bias = NIB_BIAS_INT32;
    run_job(&d, floats, job);
    expect(&d, NIB_OK);
    free_done(&d);
    expect_biases(out, NIB_BIAS_INT32, 0.005);
    drop(from);
    drop(coded);
    drop(floats);
    drop(out);
}

/* A format without quantized biases gets floats and a ledger line, or an error with --strict. */
static void test_biases_refused(void **state)
{
    (void)state;
    char from[512], out[512];
    nib_quantize_layer layers[BIASED];
    done d;
    write_source(at(from, "src"), config, biased, COUNT(biased), NULL, 0);
    list_biased(layers, "8da4w-g32");
    nib_quantize_job job = {.layers = layers,
                            .count = BIASED,
                            .out = at(out, "out"),
                            .format = "torchao",
                            .bias = NIB_BIAS_INT8};
    run_job(&d, from, job);
    expect(&d, NIB_OK);
    assert_int_equal(d.ledger.tensor_count, 3); /* two biases, and one of them is f64 */
    assert_true(d.report.biases_changed == 0);
    free_done(&d);
    expect_biases(out, NIB_BIAS_FLOAT, 1e-6);
    drop(out);
    job.strict = true;
    run_job(&d, from, job);
    refused(NIB_NOT_AS_ASKED, d.status, &d.err);
    free_done(&d);
    job.bias = NIB_BIAS_INT32;
    run_job(&d, from, job);
    refused(NIB_NOT_AS_ASKED, d.status, &d.err);
    free_done(&d);
    /* too large for its row's step */
    list_biased(layers, "int8dq-static");
    layers[0].act_scale = 1e-9f;
    job.format = "nibble";
    run_job(&d, from, job);
    refused(NIB_NOT_AS_ASKED, d.status, &d.err);
    free_done(&d);
    assert_false(exists(out));
    drop(from);
}

/* A bias under two names is not quantized for only one of them. */
static void test_shared_bias(void **state)
{
    (void)state;
    static const source_tensor tensors[] = {{"a.weight", NIB_TYPE_BF16, {3, 64}, 2},
                                            {"b.bias", NIB_TYPE_BF16, {3}, 1},
                                            {"b.weight", NIB_TYPE_BF16, {3, 64}, 2}};
    static const nib_meta shared[] = {{"a.bias", "b.bias"}};
    const nib_quantize_layer layers[] = {layer("a", "8da4w-g32"), layer("b", "8da4w-g32")};
    char from[512], out[512];
    done d;
    write_source(at(from, "src"), config, tensors, COUNT(tensors), shared, 1);
    nib_quantize_job job = {
        .layers = layers, .count = COUNT(layers), .out = at(out, "out"), .bias = NIB_BIAS_INT8};
    run_job(&d, from, job);
    refused(NIB_NOT_AS_ASKED, d.status, &d.err);
    free_done(&d);
    assert_false(exists(out));
    job.bias = NIB_BIAS_FLOAT;
    run_job(&d, from, job);
    expect(&d, NIB_OK);
    free_done(&d);
    drop(out);
    drop(from);
}

/* The nth allocation fails, n = 0, 1, ...: each is an error without output, until the rewrite
 * succeeds. */
static void test_no_memory(void **state)
{
    (void)state;
    static const nib_bias forms[] = {NIB_BIAS_INT8, NIB_BIAS_INT32};
    char from[512], out[512];
    write_source(at(from, "src"), config, biased, COUNT(biased), NULL, 0);
    nib_checkpoint *cp = open_ok(from);
    for (size_t i = 0; i < COUNT(forms); i++) {
        nib_quantize_layer layers[BIASED];
        nib_status status = NIB_NO_MEMORY;
        list_biased(layers, "int8dq-static");
        for (int n = 0; status != NIB_OK; n++) {
            failing f = {n, 0};
            const nib_allocator a = failing_allocator(&f);
            const nib_quantize_job job = {.checkpoint = cp,
                                          .layers = layers,
                                          .count = BIASED,
                                          .recipe = "test",
                                          .out = at(out, "out"),
                                          .bias = forms[i],
                                          .pool = pool,
                                          .allocator = &a};
            nib_ledger ledger;
            nib_quantize_report report;
            nib_err err = {NIB_OK, ""};
            nib__ledger_init(&ledger, &a);
            status = nib__quantize(&ledger, &report, &job, &err);
            nib__ledger_free(&ledger);
            if (status != NIB_OK && status != NIB_NO_MEMORY)
                fail_msg("allocation %d: %s", n, err.text);
            assert_int_equal(f.live, 0);
            assert_true(exists(out) == (status == NIB_OK));
            assert_true(n < 2000);
        }
        drop(out);
    }
    nib__checkpoint_close(cp);
    drop(from);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_biases),         cmocka_unit_test(test_biases_of_floats),
        cmocka_unit_test(test_biases_refused), cmocka_unit_test(test_shared_bias),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
