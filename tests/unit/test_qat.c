/* SPDX-License-Identifier: Apache-2.0
 *
 * Quantization-aware training: quantizing a tiny model raises its loss less than half as much after
 * QAT as after plain training of the same length. tools/measure_qat measures larger models.
 */
#include "train_runs.h"

/* The loss on the training text. */
static double loss_of(const char *name, const char *recipe)
{
    const nib_engine_options one = {.threads = 1};
    nib_engine *engine;
    nib_model *model;
    nib_plan *plan;
    nib_session *session;
    nib_eval_result result = {.size = sizeof result};
    nib_err err = {.status = NIB_OK};
    char text[256];
    snprintf(text, sizeof text, "%s", in_root("text.jsonl"));
    const nib_eval_options options = {.text_path = text, .window = 24};
    const nib_request request = {.recipe = recipe, .dtype = "f32"};
    assert_int_equal(nib_engine_open(&engine, &one, &err), NIB_OK);
    engine->measured = true;
    if (nib_model_open(&model, engine, in_root(name), NULL, &err) != NIB_OK ||
        nib_plan_open(&plan, model, &request, &err) != NIB_OK ||
        nib_session_open(&session, model, plan, 1, &err) != NIB_OK ||
        nib_eval(session, NULL, &options, &result, &err) != NIB_OK)
        fail_msg("%s", err.text);
    nib_session_close(session);
    nib_plan_close(plan);
    nib_model_close(model);
    nib_engine_close(engine);
    return result.loss;
}

static void test_qat_recovers_half_of_the_loss(void **state)
{
    static const char *const recipes[] = {"8da4w-g32", "int4wo-g32"};
    char base[256];
    (void)state;
    job j = {.folder = "base", .steps = 150, .export_last = true, .unsaved = true};
    must_train(&j);
    snprintf(base, sizeof base, "%s", in_root("base/model"));
    j = (job){.folder = "floats",
              .steps = 150,
              .initial_load = base,
              .export_last = true,
              .unsaved = true};
    must_train(&j);
    const double floats = loss_of("floats/model", NULL);
    for (size_t i = 0; i < COUNT(recipes); i++) {
        j.folder = "codes";
        j.qat = recipes[i];
        must_train(&j);
        const double rounded = loss_of("floats/model", recipes[i]),
                     trained = loss_of("codes/model-quantized", NULL);
        assert_true(rounded > floats);
        if (!(rounded - trained > (rounded - floats) / 2))
            fail_msg("%s: floats %.5f, rounded %.5f, trained %.5f", recipes[i], floats, rounded,
                     trained);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_qat_recovers_half_of_the_loss)};
    return cmocka_run_group_tests(tests, make_root, remove_root);
}
