/* SPDX-License-Identifier: Apache-2.0
 *
 * The method learn: gradients of a model cut into layers equal those of a training step, scales
 * move against theirs, and the levels among which codes are tuned are those that codes stand for.
 */
#include "families.h"
#include "learn_scales.h"
#include "learn_slice.h"
#include "quantizer.h"
#include "step_fixture.h"

/* A model as a chain of slices. */
typedef struct chain {
    float *to;         /* [m][columns] what the slice that runs leaves */
    const float *from; /* its gradient */
} chain;

static float pass(void *ctx, int64_t t, float *out, int64_t columns, float scale, bool gradient)
{
    const chain *c = ctx;
    (void)scale;
    for (int64_t i = 0; i < columns; i++)
        if (gradient)
            out[i] = c->from[t * columns + i];
        else
            c->to[t * columns + i] = out[i];
    return 0;
}

/* The sum of the logits, each times a number of its own. */
static float weigh(void *ctx, int64_t t, float *out, int64_t columns, float scale, bool gradient)
{
    double sum = 0;
    (void)ctx;
    for (int64_t i = 0; i < columns; i++) {
        const float by = (float)((t * 7 + i * 3) % 11 - 5);
        sum += (double)out[i] * (double)by;
        if (gradient)
            out[i] = scale * by;
    }
    return (float)sum;
}

enum { TOKENS = ROWS * LENGTH, WIDTH_MAX = 128, LAYERS_MAX = 8 };

static float states[LAYERS_MAX + 1][TOKENS * WIDTH_MAX], gradient[TOKENS * WIDTH_MAX];

/* The values that the first layer reads: what a step computes before it. */
static nib_status see_first(void *ctx, const nib_train_node *node, bool done, nib_err *err)
{
    fixture *f = ctx;
    const float *rows;
    if (!done || node->layer >= 0 || node->out[0] < 0 || f->step.loss < 0 ||
        f->step.buffers[node->out[0]].columns != f->model->net.config.width)
        return NIB_OK;
    if (node->op != NIB_OP_EMBED && node->op != NIB_OP_SCALE)
        return NIB_OK;
    NIB_TRY(nib__step_read_buffer(&f->step, node->out[0], &rows, err));
    memcpy(states[0], rows, sizeof(float) * (size_t)(TOKENS * f->model->net.config.width));
    return NIB_OK;
}

static void open_whole(fixture *f, const char *name, const nib_step_loss *loss)
{
    static const int32_t start[] = {0, LENGTH, TOKENS};
    nib_refusal refusal;
    nib_err err;
    open_fixture(f, &(setting){.name = name, .threads = 2});
    memcpy(f->start, start, sizeof start);
    f->batch.documents = ROWS;
    for (size_t i = 0; i < f->model->net.graph.node_count; i++) /* slices have no other loss */
        if (f->model->net.graph.nodes[i].op == NIB_OP_ROUTE)
            ((nib_routing *)(uintptr_t)f->model->net.graph.nodes[i].routing)->balance = 0;
    f->params = (nib_params){0};
    ok(nib__params_list(&f->params, &f->model->net, &f->arena, &err), &err);
    nib__step_close(&f->step);
    const nib_step_options options = {
        .batch = ROWS, .length = LENGTH, .checkpointing = NIB_AC_SELECTIVE, .loss = *loss};
    ok(nib__step_open(&f->step, &f->model->net, &f->plan->assignment, &f->params, &options,
                      &refusal, &err),
       &err);
    ok(nib__step_cast(&f->step, f->weights, &err), &err);
}

/* Compares a slice's gradients with those of the step. */
static void compare(const fixture *f, const nib_slice *s, const char *family)
{
    for (size_t i = 1; i < s->net.site_count; i++) {
        const size_t site = s->site + i - 1;
        const nib_param *p = &f->params.items[f->params.weight[site]];
        if (site + 1 == f->model->net.site_count && f->model->net.tied)
            continue; /* the step adds that of the embedding */
        if (memcmp(nib__slice_gradient(s, site), f->gradients + p->at,
                   nib__param_size(p) * sizeof(float)) != 0)
            fail_msg("%s: another gradient of %s", family, p->name);
    }
}

static void run_slice(nib_slice *s, const fixture *f, int64_t layer, const nib_step_loss *loss,
                      bool wants_gradient, double *sum)
{
    nib_err err;
    const int64_t width = f->model->net.config.width;
    ok(nib__slice_open(s, &f->model->net, &f->plan->assignment, layer, ROWS, LENGTH, loss, &err),
       &err);
    memcpy(nib__slice_inputs(s), states[layer], (size_t)(TOKENS * width) * sizeof(float));
    ok(nib__step_cast(&s->step, s->weights, &err), &err);
    ok(nib__slice_run(s, 0.5F, wants_gradient, sum, &err), &err);
    if (wants_gradient)
        memcpy(gradient, nib__slice_inputs_gradient(s), (size_t)(TOKENS * width) * sizeof(float));
}

static void check_family(const char *family)
{
    const nib_step_loss own = {.of_token = weigh};
    chain c = {.from = gradient};
    const nib_step_loss through = {.of_token = pass, .ctx = &c};
    fixture f;
    nib_slice s;
    nib_err err;
    nib_losses losses;
    double sum, none;
    open_whole(&f, family, &own);
    const int64_t layers = f.model->net.config.layers;
    const nib_step_watch watch = {.observe = see_first, .ctx = &f};
    f.step.watch = &watch;
    ok(nib__step_run(&f.step, f.weights, &f.batch, 0.5F, f.gradients, &losses, &err), &err);
    const double loss = losses.text;
    assert_true(layers <= LAYERS_MAX && f.model->net.config.width <= WIDTH_MAX);
    for (int64_t l = 0; l < layers; l++) {
        c.to = states[l + 1];
        run_slice(&s, &f, l, &through, false, &none);
        nib__slice_close(&s);
    }
    run_slice(&s, &f, layers, &own, true, &sum);
    if (!(fabs(sum - loss) == 0))
        fail_msg("%s: a loss of %.9g, not %.9g", family, sum, loss);
    compare(&f, &s, family);
    nib__slice_close(&s);
    for (int64_t l = layers - 1; l >= 0; l--) {
        run_slice(&s, &f, l, &through, true, &none);
        compare(&f, &s, family);
        nib__slice_close(&s);
    }
    close_fixture(&f);
}

static void test_slices(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(families); i++)
        check_family(families[i]);
}

/* ---- scales ---- */

enum { N = 3, K = 96, GROUPS = 3 };

static void test_scales(void **state)
{
    static const char *const schemes[] = {"int4wo-sym", "int4wo", "int4wo-g32-intzero", "nvfp4"};
    float weight[N * K], values[N * K], toward[N * K];
    (void)state;
    for (int i = 0; i < N * K; i++)
        weight[i] = (float)((i * 37) % 101 - 50) / 64;
    for (size_t r = 0; r < COUNT(schemes); r++) {
        int8_t codes[N * K];
        float scales[2 * N * K], zeros[2 * N * K], range[2] = {0, 0};
        nib_scheme scheme;
        nib_quantizer q;
        nib_scales t;
        nib_err err;
        nib_arena arena;
        const nib_allocator a = nib__allocator_default();
        nib__arena_init(&arena, &a, 0);
        ok(nib__scheme_parse(&scheme, schemes[r], strlen(schemes[r]), &err), &err);
        ok(nib__quantizer_init(&q, &scheme, NIB_TYPE_F32, K, &err), &err);
        if (nib__quantizer_needs_scan(&q)) {
            ok(nib__quantizer_scan(&q, weight, 0, N, range, &err), &err);
            ok(nib__quantizer_set_range(&q, range, &err), &err);
        }
        nib_quantized result = {.codes = codes, .scales = scales, .zeros = zeros};
        ok(nib__quantizer_quantize_rows(&q, weight, 0, N, &result, &err), &err);
        const nib_codes from = {
            .codes = codes, .scales = scales, .zeros = zeros, .tensor_scale = q.tensor_scale};
        ok(nib__scales_open(&t, &q, N, &from, &arena, &err), &err);
        double before = 0, after = 0;
        /* values of a group are to grow by a share; the gradient of half the squared distance */
        nib__scales_values(&t, values, 0, N);
        for (int i = 0; i < N * K; i++)
            toward[i] = 1.05F * values[i];
        for (int step = 0; step < 40; step++) {
            float g[N * K];
            nib__scales_values(&t, values, 0, N);
            for (int i = 0; i < N * K; i++) {
                g[i] = values[i] - toward[i];
                before += step == 0 ? (double)(g[i] * g[i]) : 0;
            }
            nib__scales_move(&t, g, 0.002F, 0, 2); /* in parts, as threads do */
            nib__scales_move(&t, g, 0.002F, 2, N);
        }
        nib__scales_values(&t, values, 0, N);
        for (int i = 0; i < N * K; i++)
            after += (double)((values[i] - toward[i]) * (values[i] - toward[i]));
        /* scales of nvfp4 are e4m3, further apart than they should move */
        if (!(after < (strcmp(schemes[r], "nvfp4") == 0 ? 0.9 : 0.2) * before))
            fail_msg("%s: the distance is %g after, %g before", schemes[r], after, before);
        nib__arena_free(&arena);
    }
}

/* ---- levels ---- */

/* Rounding gives each level its code, and nothing below the first or above the last. */
static void check_levels(const char *name, int count, float low, float high)
{
    enum { MANY = 256 };
    nib_code_levels levels;
    nib_scheme scheme;
    nib_quantizer q;
    nib_weight w = {0};
    nib_err err;
    ok(nib__scheme_parse(&scheme, name, strlen(name), &err), &err);
    ok(nib__quantizer_init(&q, &scheme, NIB_TYPE_F32, MANY, &err), &err);
    nib__quant_levels(&levels, &q);
    w.scheme = scheme;
    assert_int_equal(levels.count, count);
    assert_true(levels.value[0] == low && levels.value[count - 1] == high);
    for (int i = 0; i < count; i++) {
        assert_true(i == 0 || levels.value[i] > levels.value[i - 1]);
        assert_true(nib__weight_value(&w, levels.code[i], 1, 0) == levels.value[i]);
    }
}

static void test_levels(void **state)
{
    (void)state;
    check_levels("int4wo-sym", 16, -8, 7);
    check_levels("int4wo-g32-intzero", 16, -8, 7);
    check_levels("int2wo", 4, -2, 1);
    check_levels("int8wo-g32-ggml", 255, -127, 127);
    check_levels("iq4_nl", 16, -127, 113);
    check_levels("mxfp4", 15, -6, 6);
    check_levels("nvfp4", 15, -6, 6);
    check_levels("fp8wo", 253, -448, 448);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_slices),
        cmocka_unit_test(test_scales),
        cmocka_unit_test(test_levels),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
