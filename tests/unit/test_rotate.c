/* SPDX-License-Identifier: Apache-2.0
 *
 * Rotations merged into weights: for each family, which can be, why not, and that the logits stay;
 * and that the check sees a wrong one.
 */
#include "folding.h"
#include "refused.h"
#include "rotate.h"

static const char mean[] = "a norm subtracts the mean (LayerNorm)",
                  after[] = "a norm with weights is between a linear layer and the stream",
                  latent[] = "attention is latent";

/* Why the residual stream, and the values of the first layer, are not rotated; NULL: they are. */
static const struct {
    const char *family, *residual, *values;
} families[] = {
    {"llama3", NULL, NULL},        {"llama_bias", NULL, NULL}, {"qwen2", NULL, NULL},
    {"qwen3", NULL, NULL},         {"gemma", NULL, NULL},      {"gemma2", after, NULL},
    {"gemma3", after, NULL},       {"phi3", NULL, NULL},       {"cohere", mean, NULL},
    {"stablelm", mean, NULL},      {"glm4", after, NULL},      {"olmo2", after, NULL},
    {"starcoder2", mean, NULL},    {"granite", NULL, NULL},    {"granitemoe", NULL, NULL},
    {"mixtral", NULL, NULL},       {"qwen3_moe", NULL, NULL},  {"smollm3", NULL, NULL},
    {"deepseek_v2", NULL, latent}, {"glm4_moe", NULL, NULL},   {"exaone4", after, NULL},
    {"gpt_oss", NULL, NULL},
};

typedef struct rotating {
    folding f;
    nib_rotating job;
    nib_ledger ledger;
    nib_arena arena;
    nib_request request;
    nib_quantize_options options;
} rotating;

static void open_rotating(rotating *r, nib_engine *engine, const char *path)
{
    static nib_allocator a;
    const nib_scheme scheme = {.code = NIB_CODE_I4, .symmetric = true};
    a = nib__allocator_default();
    *r = (rotating){.request = {.size = sizeof r->request}};
    open_folding(&r->f, engine, path, NIB_PTQ_ROTATE, &scheme);
    nib__ledger_init(&r->ledger, &a);
    nib__arena_init(&r->arena, &a, 0);
    r->options = (nib_quantize_options){.size = sizeof r->options, .request = &r->request};
    r->job = (nib_rotating){.layers = r->f.layers,
                            .options = &r->options,
                            .seed = 5,
                            .ledger = &r->ledger,
                            .arena = &r->arena};
}

static void close_rotating(rotating *r)
{
    close_folding(&r->f);
    nib__ledger_free(&r->ledger);
    nib__arena_free(&r->arena);
}

static void check_reason(const char *family, const char *what, const char *got, const char *want)
{
    if ((got == NULL) != (want == NULL) || (got != NULL && strcmp(got, want) != 0))
        fail_msg("%s: the %s: %s", family, what, got != NULL ? got : "is rotated");
}

static void check_family(nib_engine *engine, size_t at)
{
    rotating r;
    char path[FOLD_PATH];
    nib_err err;
    const char *family = families[at].family;
    snprintf(path, sizeof path, "tests/golden/models/%s", family);
    open_rotating(&r, engine, path);
    if (nib__rotate(&r.job, r.f.model, &err) != NIB_OK)
        fail_msg("%s: %s", family, err.text);
    check_reason(family, "residual stream", r.job.graph.residual_why, families[at].residual);
    check_reason(family, "values", r.job.graph.values_why[0], families[at].values);
    if (nib__rotate_check(&r.job, r.f.model, &err) != NIB_OK)
        fail_msg("%s: %s", family, err.text);
    print_message("%s: %s\n", family, r.ledger.notes[r.ledger.note_count - 1].text);
    close_rotating(&r);
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

/* Families whose outputs are compared: tied, norms of 1 + w, fused and routed layers, biases. */
static const char *const written[] = {"llama3",  "llama_bias", "gemma",     "phi3",
                                      "granite", "mixtral",    "qwen3_moe", "granitemoe"};

static nib_status drop_text(void *ctx, const char *text, size_t size)
{
    (void)ctx;
    (void)text;
    (void)size;
    return NIB_OK;
}

/* The largest difference of the logits of an int8 checkpoint by a method, of the largest logit. */
static double quantize_by(nib_engine *engine, const char *method, const char *family,
                          const char *folder)
{
    char path[FOLD_PATH], out[FOLD_PATH];
    const nib_request request = {.size = sizeof request, .recipe = "int8wo"};
    const nib_sink sink = {.write = drop_text};
    double largest = 0, worst = 0;
    int64_t vocab;
    nib_err err;
    snprintf(path, sizeof path, "tests/golden/models/%s", family);
    snprintf(out, sizeof out, "%s/model", folder);
    const nib_quantize_options options = {
        .size = sizeof options, .request = &request, .out = out, .method = method};
    nib_model *model = must_open_model(engine, path);
    if (nib_quantize(model, &options, NIB_FORM_TEXT, &sink, &err) != NIB_OK)
        fail_msg("%s: %s", family, err.text);
    nib_model *rotated = must_open_model(engine, out);
    float *want = logits_of(model, &vocab), *got = logits_of(rotated, &vocab);
    for (int64_t i = 0; i < vocab; i++) {
        largest = fmax(largest, fabs((double)want[i]));
        worst = fmax(worst, fabs((double)want[i] - (double)got[i]));
    }
    free(want);
    free(got);
    nib_model_close(rotated);
    nib_model_close(model);
    drop_directory(out);
    return worst / largest;
}

static void test_outputs(void **state)
{
    nib_engine *engine;
    char folder[256];
    (void)state;
    assert_int_equal(nib_engine_open(&engine, NULL, NULL), NIB_OK);
    make_directory(folder);
    for (size_t i = 0; i < COUNT(written); i++) {
        const double rounded = quantize_by(engine, "rtn", written[i], folder),
                     rotated = quantize_by(engine, "rotate", written[i], folder);
        print_message("%s: logits differ by %.2g, rotated by %.2g\n", written[i], rounded, rotated);
        assert_true(rotated < 4 * rounded);
    }
    drop_directory(folder);
    nib_engine_close(engine);
}

/* A weight that turns otherwise than the others, and a norm whose weights go nowhere. */
static void test_wrong(void **state)
{
    nib_engine *engine;
    rotating r;
    nib_err err;
    (void)state;
    assert_int_equal(nib_engine_open(&engine, NULL, NULL), NIB_OK);
    for (int kind = 0; kind < 2; kind++) {
        open_rotating(&r, engine, "tests/golden/models/qwen2");
        assert_int_equal(nib__rotate(&r.job, r.f.model, &err), NIB_OK);
        nib_turn wrong = *r.f.layers[2].turn;
        if (kind == 0)
            wrong.columns = NULL;
        else
            wrong.factors = NULL;
        r.f.layers[2].turn = &wrong;
        refused(NIB_CHECK_FAILED, nib__rotate_check(&r.job, r.f.model, &err), &err);
        close_rotating(&r);
    }
    nib_engine_close(engine);
}

/* Layers of other methods, which would stay in the old basis. */
static void test_methods(void **state)
{
    static const nib_ptq_method methods[] = {NIB_PTQ_RTN, NIB_PTQ_AWQ, NIB_PTQ_GPTQ};
    nib_engine *engine;
    rotating r;
    nib_err err;
    (void)state;
    assert_int_equal(nib_engine_open(&engine, NULL, NULL), NIB_OK);
    for (size_t i = 0; i < COUNT(methods); i++) {
        open_rotating(&r, engine, "tests/golden/models/llama3");
        r.f.layers[3].choice.method = methods[i];
        refused(NIB_UNSUPPORTED, nib__rotate(&r.job, r.f.model, &err), &err);
        close_rotating(&r);
    }
    /* where the stream cannot rotate, values do without it */
    open_rotating(&r, engine, "tests/golden/models/gemma2");
    for (size_t i = 0; i < r.f.model->net.site_count; i++)
        if (r.f.layers[i].name != NULL && strstr(r.f.layers[i].name, "layers.0.") == NULL)
            r.f.layers[i].choice.method = NIB_PTQ_RTN;
    assert_int_equal(nib__rotate(&r.job, r.f.model, &err), NIB_OK);
    assert_null(r.job.graph.values_why[0]);
    assert_non_null(r.job.graph.values_why[1]);
    close_rotating(&r);
    nib_engine_close(engine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_same_function),
                                       cmocka_unit_test(test_outputs), cmocka_unit_test(test_wrong),
                                       cmocka_unit_test(test_methods)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
