/* SPDX-License-Identifier: Apache-2.0
 *
 * The methods that scale inputs, in a model of the same function whose inputs have outliers: some
 * channels 32 times as large, which the weights make up for. Rounding to int8 with a scale per
 * token loses much of the others; smooth moves the outliers back.
 */
#include "convert.h"
#include "folding.h"

static const char source[] = "models/nibble-tales";

/* Inputs grow where this is small. */
static float scale_of(const nib_fold_group *f, int64_t j)
{
    return nib__fold_row_of(f, j) % 37 == 5 ? 0x1p-5F : 1;
}

static void write_outliers(nib_engine *engine, char *folder)
{
    int count[2];
    const char *why = NULL;
    folding f;
    const nib_scheme scheme = {.code = NIB_CODE_I8, .symmetric = true};
    open_folding(&f, engine, source, NIB_PTQ_AWQ, &scheme);
    f.scale = scale_of;
    fold_layers(&f, count, &why);
    assert_int_equal(count[0], 4 * f.model->net.config.layers);
    assert_int_equal(count[1], 0);
    write_model(&f, folder, source);
    copy_file(source, folder, "tokenizer.json");
    copy_file(source, folder, "tokenizer_config.json");
    close_folding(&f);
}

/* Squared distance of the logits of a model from `want`. */
static double distance_of(nib_engine *engine, const char *path, const float *want)
{
    int64_t vocab;
    double sum = 0;
    nib_model *model = must_open_model(engine, path);
    float *got = logits_of(model, &vocab);
    for (int64_t i = 0; i < vocab; i++)
        sum += ((double)got[i] - (double)want[i]) * ((double)got[i] - (double)want[i]);
    free(got);
    nib_model_close(model);
    return sum;
}

static nib_status drop_text(void *ctx, const char *text, size_t size)
{
    (void)ctx;
    (void)text;
    (void)size;
    return NIB_OK;
}

/* That of a model quantized into `to`. */
static double distance_by(nib_engine *engine, const char *from, const char *to, const char *recipe,
                          const char *method, const float *want)
{
    char out[FOLD_PATH], text[FOLD_PATH];
    static const char words[] =
        "Once upon a time there was a king who had three sons. The eldest went into the forest, "
        "and the second went after him, but the youngest stayed at home and helped his mother.\n";
    const nib_allocator a = nib__allocator_default();
    const nib_request request = {.size = sizeof request, .recipe = recipe};
    const nib_sink sink = {.write = drop_text};
    nib_err err;
    snprintf(out, sizeof out, "%s/model", to);
    snprintf(text, sizeof text, "%s/text.txt", to);
    assert_int_equal(nib__file_replace(text, words, sizeof words - 1, &a, NULL), NIB_OK);
    const bool is_static = strstr(recipe, "static") != NULL;
    const nib_quantize_options options = {.size = sizeof options,
                                          .request = &request,
                                          .out = out,
                                          .method = method,
                                          .calibrate =
                                              is_static || strcmp(method, "rtn") != 0 ? text : NULL,
                                          .force = true};
    nib_model *model = must_open_model(engine, from);
    if (nib_quantize(model, &options, NIB_FORM_TEXT, &sink, &err) != NIB_OK)
        fail_msg("%s by %s: %s", recipe, method, err.text);
    nib_model_close(model);
    const double distance = distance_of(engine, out, want);
    drop_directory(out);
    return distance;
}

static void test_outliers(void **state)
{
    static const char *const recipes[] = {"int8dq", "int8dq-static", "8da4w"};
    nib_engine *engine;
    char folder[256], to[256];
    int64_t vocab;
    (void)state;
    assert_int_equal(nib_engine_open(&engine, NULL, NULL), NIB_OK);
    nib_model *model = must_open_model(engine, source);
    float *want = logits_of(model, &vocab);
    nib_model_close(model);
    write_outliers(engine, folder);
    make_directory(to);
    assert_true(distance_of(engine, folder, want) == 0);
    for (size_t i = 0; i < COUNT(recipes); i++) {
        const double rounding = distance_by(engine, folder, to, recipes[i], "rtn", want),
                     smooth = distance_by(engine, folder, to, recipes[i], "smooth", want);
        print_message("%s: %g by rounding, %g by smooth\n", recipes[i], rounding, smooth);
        assert_true(smooth < rounding / 4);
    }
    free(want);
    drop_directory(folder);
    drop_directory(to);
    nib_engine_close(engine);
}

/* Made of the first part, chosen by the second, checked by the third. */
static void test_text_parts(void **state)
{
    static const struct {
        int64_t held_out, tokens, first, third;
    } cases[] = {{NIB_HELD_OUT_DEFAULT, 3, 1, 1},
                 {NIB_HELD_OUT_DEFAULT, 448, 224, 112},
                 {NIB_HELD_OUT_DEFAULT, 100000, 100000 - 8192, 4096},
                 {5, 448, 438, 5},
                 {223, 448, 2, 223},
                 {0, 1, 1, 0}};
    nib_text_parts parts;
    nib_err err;
    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        assert_int_equal(nib__text_parts(&parts, cases[i].held_out, cases[i].tokens, NULL), NIB_OK);
        assert_int_equal(parts.first, cases[i].first);
        assert_int_equal(parts.second, cases[i].third);
        assert_int_equal(parts.third, cases[i].third);
    }
    assert_int_equal(nib__text_parts(&parts, NIB_HELD_OUT_DEFAULT, 2, &err), NIB_BAD_INPUT);
    assert_int_equal(nib__text_parts(&parts, 224, 448, &err), NIB_BAD_INPUT);
    assert_non_null(strstr(err.text, "448 tokens"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_text_parts),
                                       cmocka_unit_test(test_outliers)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
