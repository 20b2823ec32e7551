/* SPDX-License-Identifier: Apache-2.0
 *
 * A micro-batch against transformers in float64 (tools/golden/make_step_golden.py): the loss and
 * the gradient of every parameter, in documents, with biases, tied and untied; the same of
 * quantization-aware training against torchao (make_qat_golden.py); and that threads, instruction
 * sets and checkpointing change no bit.
 */
#include "checkpoint_build.h"
#include "library.h"
#include "step.h"

#include <math.h>
#include <stdio.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum { LENGTH = 20, ROWS = 2 };

/* A golden model, opened as a training config would be. */
typedef struct fixture {
    nib_engine *engine;
    nib_model *model;
    nib_checkpoint *golden;
    nib_plan *plan;
    nib_arena arena;
    nib_params params;
    nib_step step;
    float *weights, *gradients;
    int32_t ids[ROWS * LENGTH], targets[ROWS * LENGTH], start[ROWS * LENGTH + 1];
    nib_batch batch;
} fixture;

typedef struct setting {
    const char *name, *isa, *dtype, *recipe;
    int threads;
    nib_ac checkpointing;
    bool wgrad_with_hp;
    const char *qat; /* the golden file of gradients in quantization-aware training */
} setting;

static void ok(nib_status status, const nib_err *err)
{
    if (status != NIB_OK)
        fail_msg("%s", err->text);
}

/* A golden tensor's values; they may lie unaligned in the file. */
static int64_t values(const fixture *f, const char *name, void *to, size_t room)
{
    const nib_tensor *t = nib__checkpoint_find(f->golden, name);
    if (t == NULL)
        fail_msg("%s is missing", name);
    assert_true(t->bytes <= room);
    memcpy(to, t->data, t->bytes);
    return t->shape[0];
}

static void read_batch(fixture *f)
{
    int32_t ids[ROWS * (LENGTH + 1)];
    values(f, "rows", ids, sizeof ids);
    const int64_t documents = values(f, "starts", f->start, sizeof f->start);
    for (int r = 0; r < ROWS; r++)
        for (int i = 0; i < LENGTH; i++) {
            f->ids[r * LENGTH + i] = ids[r * (LENGTH + 1) + i];
            f->targets[r * LENGTH + i] = ids[r * (LENGTH + 1) + i + 1];
        }
    f->start[documents] = ROWS * LENGTH;
    f->batch = (nib_batch){ROWS * LENGTH, documents, f->ids, f->targets, f->start};
}

static void open_golden(fixture *f, const char *name)
{
    nib_err err;
    char path[256];
    nib__checkpoint_close(f->golden);
    snprintf(path, sizeof path, "tests/golden/train/%s.safetensors", name);
    ok(nib__checkpoint_open(&f->golden, path, &f->engine->allocator, &err), &err);
}

static void open_fixture(fixture *f, const setting *s)
{
    nib_err err;
    char path[256];
    *f = (fixture){0};
    snprintf(path, sizeof path, "tests/golden/train/%s", s->name);
    const nib_engine_options options = {.threads = s->threads ? s->threads : 1, .isa = s->isa};
    ok(nib_engine_open(&f->engine, &options, &err), &err);
    ok(nib_model_open(&f->model, f->engine, path, NULL, &err), &err);
    f->model->net.training = true;
    f->model->net.train = (nib_train_config){.batch = ROWS,
                                             .sequence = LENGTH,
                                             .wgrad_with_hp = s->wgrad_with_hp,
                                             .qat = s->qat != NULL};
    const nib_request request = {.dtype = s->dtype ? s->dtype : "f32", .recipe = s->recipe};
    ok(nib_plan_make(&f->plan, f->model, &request, &err), &err);
    ok(nib_plan_status(f->plan, &err), &err);
    nib__arena_init(&f->arena, &f->engine->allocator, 0);
    ok(nib__params_list(&f->params, &f->model->net, &f->arena, &err), &err);
    f->weights = nib__arena_take(&f->arena, f->params.total, sizeof *f->weights);
    f->gradients = nib__arena_take(&f->arena, f->params.total, sizeof *f->gradients);
    ok(nib__params_load(f->weights, &f->params, &f->model->net, &err), &err);
    const nib_step_options step = {
        .batch = ROWS, .length = LENGTH, .checkpointing = s->checkpointing};
    ok(nib__step_open(&f->step, &f->model->net, &f->plan->plan, &f->params, &step, &err), &err);
    snprintf(path, sizeof path, "%s_gradients", s->name);
    open_golden(f, path);
    read_batch(f);
    if (s->qat)
        open_golden(f, s->qat);
}

static double run(fixture *f, float *gradients)
{
    nib_err err;
    double loss;
    nib__step_cast(&f->step, f->weights);
    ok(nib__step_run(&f->step, f->weights, &f->batch, 1.0f / (ROWS * LENGTH), gradients, &loss,
                     &err),
       &err);
    return loss;
}

static void close_fixture(fixture *f)
{
    nib__step_close(&f->step);
    nib__arena_free(&f->arena);
    nib_plan_free(f->plan);
    nib__checkpoint_close(f->golden);
    nib_model_close(f->model);
    nib_engine_close(f->engine);
}

/* max |a - b| / max |b| over a parameter */
static double distance(const float *a, const float *b, size_t count)
{
    double most = 0, scale = 0;
    for (size_t i = 0; i < count; i++) {
        most = fmax(most, fabs((double)a[i] - (double)b[i]));
        scale = fmax(scale, fabs((double)b[i]));
    }
    return most / scale;
}

static void check_golden(const setting *s, double limit)
{
    fixture f;
    open_fixture(&f, s);
    static float golden[4096];
    double wanted;
    values(&f, "loss", &wanted, sizeof wanted);
    const double loss = run(&f, f.gradients);
    if (!(fabs(loss - wanted) < limit * wanted))
        fail_msg("%s %s %s: loss %.9g, not %.9g", s->name, s->dtype ? s->dtype : "f32",
                 s->recipe ? s->recipe : "", loss, wanted);
    assert_true(fabs(run(&f, NULL) - loss) == 0);
    for (size_t i = 0; i < f.params.count; i++) {
        const nib_param *p = &f.params.items[i];
        values(&f, p->name, golden, sizeof golden);
        const double off = distance(f.gradients + p->at, golden, nib__param_size(p));
        if (!(off < limit))
            fail_msg("%s %s %s, %s: %g", s->name, s->dtype ? s->dtype : "f32",
                     s->recipe ? s->recipe : "", p->name, off);
    }
    close_fixture(&f);
}

static void test_golden_f32(void **state)
{
    (void)state;
    check_golden(&(setting){.name = "llama"}, 1e-4);
    check_golden(&(setting){.name = "qwen2"}, 1e-4);
    check_golden(&(setting){.name = "qwen2", .isa = "ref"}, 1e-4);
}

/* The cosine between the gradient of a model and the golden one. */
static double cosine(const setting *s)
{
    fixture f;
    static float golden[4096];
    double both = 0, own = 0, other = 0;
    open_fixture(&f, s);
    run(&f, f.gradients);
    for (size_t i = 0; i < f.params.count; i++) {
        const nib_param *p = &f.params.items[i];
        values(&f, p->name, golden, sizeof golden);
        for (size_t j = 0; j < nib__param_size(p); j++) {
            const double a = (double)f.gradients[p->at + j], b = (double)golden[j];
            both += a * b, own += a * a, other += b * b;
        }
    }
    close_fixture(&f);
    return both / sqrt(own * other);
}

/* Layers that read one input are of several forms: k and up are kept as they are. */
#define KEPT(scheme)                                                                               \
    "{\"rules\": [{\"match\": \"*k_proj\", \"scheme\": \"bf16\"}, "                                \
    "{\"match\": \"*up_proj\", \"scheme\": \"bf16\"}], "                                           \
    "\"else\": \"" scheme "\"}"

/* Products of rounded inputs give gradients that point the same way. */
static void test_golden_low(void **state)
{
    (void)state;
    check_golden(&(setting){.name = "qwen2", .dtype = "bf16", .recipe = "bf16"}, 0.05);
    static const char *const recipes[] = {"fp8dq+head",       "fp8dq-tensor+head",  "mxfp8+head",
                                          "mxfp8-floor+head", KEPT("fp8dq-tensor"), KEPT("mxfp8")};
    for (size_t i = 0; i < COUNT(recipes); i++) {
        setting s = {.name = "qwen2", .dtype = "bf16", .recipe = recipes[i]};
        const double low = cosine(&s);
        s.wgrad_with_hp = true;
        const double high = cosine(&s);
        if (!(low > 0.97 && high > low))
            fail_msg("%s: %g, with gradients of weights in bf16 %g", recipes[i], low, high);
    }
}

/* In bf16 a value that lies between two codes may get the other one: it moves by a step, and the
 * gradients with it. */
static void test_golden_qat(void **state)
{
    static const setting settings[] = {
        {.recipe = "8da4w-g8+head", .qat = "qat_8da4w"},
        {.recipe = "int4wo-g8", .qat = "qat_int4wo"},
        {.recipe = "int8wo+head", .qat = "qat_int8wo"},
    };
    (void)state;
    for (size_t i = 0; i < COUNT(settings); i++) {
        setting s = settings[i];
        s.name = "qwen2";
        check_golden(&s, 1e-4);
        s.dtype = "bf16";
        check_golden(&s, 0.2);
    }
}

static void check_same(const setting *a, const setting *b)
{
    fixture f, g;
    open_fixture(&f, a);
    open_fixture(&g, b);
    const double loss = run(&f, f.gradients), other = run(&g, g.gradients);
    assert_true(loss == other);
    assert_memory_equal(f.gradients, g.gradients, f.params.total * sizeof(float));
    close_fixture(&f);
    close_fixture(&g);
}

/* The same bits in whatever way the step of `base` is run. */
static void check_ways(const setting *base)
{
    static const char *const isas[] = {"ref", "avx2", "avx512"};
    setting other = *base;
    other.threads = 3;
    check_same(base, &other);
    other = *base;
    other.checkpointing = NIB_AC_SELECTIVE;
    check_same(base, &other);
    other.checkpointing = NIB_AC_FULL;
    check_same(base, &other);
    for (size_t i = 0; i < COUNT(isas); i++) {
        other = *base;
        other.isa = isas[i];
        check_same(base, &other);
    }
}

static void test_same_bits(void **state)
{
    static const char *const recipes[] = {
        "bf16",       "mxfp8+head",  "fp8dq+head", "fp8dq-tensor+head", KEPT("fp8dq-tensor"),
        "mxfp8+head", KEPT("fp8dq"), "fp8dq+head"};
    (void)state;
    for (size_t r = 0; r < 1 + COUNT(recipes); r++) {
        const char *recipe = r > 0 ? recipes[r - 1] : NULL, *dtype = r > 0 ? "bf16" : "f32";
        const setting base = {
            .name = "qwen2", .dtype = dtype, .recipe = recipe, .wgrad_with_hp = r > 5};
        check_ways(&base);
    }
}

/* Groups of 10 do not divide 24; layers that read one input are of several forms. */
static void test_same_bits_qat(void **state)
{
    static const char *const recipes[] = {
        "8da4w-g10+head", "int4wo-g10",
        "{\"rules\": [{\"match\": \"*k_proj\", \"scheme\": \"bf16\"}, {\"match\": \"*up_proj\", "
        "\"scheme\": \"int8dq\"}], \"else\": \"8da4w-g8\"}"};
    (void)state;
    for (size_t r = 0; r < COUNT(recipes); r++)
        check_ways(
            &(setting){.name = "qwen2", .dtype = "bf16", .recipe = recipes[r], .qat = "qat_8da4w"});
    check_ways(&(setting){.name = "llama", .recipe = "8da4w-g8+head", .qat = "qat_8da4w"});
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden_f32),    cmocka_unit_test(test_golden_low),
        cmocka_unit_test(test_golden_qat),    cmocka_unit_test(test_same_bits),
        cmocka_unit_test(test_same_bits_qat),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
