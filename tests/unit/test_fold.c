/* SPDX-License-Identifier: Apache-2.0
 *
 * Scales of inputs folded into what makes them: for each family, a model with folded scales, powers
 * of two, gives the logits of the model without; and which inputs have no place for scales.
 */
#include "folding.h"

static const char routed[] = "more than linear layers reads its input";

/* Inputs of all layers that are folded, and those that are not, with the reason of the last one. */
static const struct {
    const char *family;
    int folded, others;
    const char *why;
    /* Of the largest logit: norms of 1 + w in bf16 round, and so do the weights after them. */
    double tolerance;
} families[] = {
    {"llama3", 8, 0, NULL, 0},
    {"llama_bias", 8, 0, NULL, 0},
    {"qwen2", 8, 0, NULL, 0},
    {"qwen3", 8, 0, NULL, 0},
    {"gemma", 8, 0, NULL, 0.005},
    {"gemma2", 12, 0, NULL, 0.005},
    {"gemma3", 28, 0, NULL, 0.005},
    {"phi3", 8, 0, NULL, 0},
    {"cohere", 6, 0, NULL, 0},
    {"stablelm", 8, 0, NULL, 0},
    {"glm4", 8, 0, NULL, 0},
    {"olmo2", 4, 4, routed, 0},
    {"starcoder2", 6, 2, "the activation before it is not linear, and has no gate", 0},
    {"gpt_oss", 4, 2, routed, 0},
    {"deepseek_v2", 7, 5, routed, 0},
};

/* Power of two for input j, the same for inputs that read one row. */
static float scale_of(const nib_fold_group *f, int64_t j)
{
    return ldexpf(1, (int)(nib__fold_row_of(f, j) * 7 % 5) - 2);
}

static void check_family(nib_engine *engine, size_t at)
{
    char path[FOLD_PATH], folder[256];
    const char *why = NULL;
    int count[2];
    int64_t vocab;
    double largest = 0, worst = 0;
    folding f;
    const nib_scheme scheme = {.code = NIB_CODE_I4, .symmetric = true};
    snprintf(path, sizeof path, "tests/golden/models/%s", families[at].family);
    open_folding(&f, engine, path, NIB_PTQ_AWQ, &scheme);
    f.scale = scale_of;
    fold_layers(&f, count, &why);
    assert_int_equal(count[0], families[at].folded);
    assert_int_equal(count[1], families[at].others);
    if (families[at].why != NULL)
        assert_string_equal(why, families[at].why);
    else
        assert_null(why);
    write_model(&f, folder, path);
    nib_model *folded = must_open_model(engine, folder);
    float *want = logits_of(f.model, &vocab), *got = logits_of(folded, &vocab);
    for (int64_t i = 0; i < vocab; i++) {
        largest = fmax(largest, fabs((double)want[i]));
        worst = fmax(worst, fabs((double)want[i] - (double)got[i]));
    }
    if (!(worst <= families[at].tolerance * largest) || !(largest > 1))
        fail_msg("%s: logits differ by %g, the largest is %g", families[at].family, worst, largest);
    free(want);
    free(got);
    nib_model_close(folded);
    close_folding(&f);
    drop_directory(folder);
}

static void test_same_function(void **state)
{
    nib_engine *engine;
    (void)state;
    assert_int_equal(nib_engine_open(&engine, NULL, NULL), NIB_OK);
    for (size_t i = 0; i < COUNT(families); i++)
        check_family(engine, i);
    nib_engine_close(engine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_same_function)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
