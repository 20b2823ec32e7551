/* SPDX-License-Identifier: Apache-2.0
 *
 * Test helper: opens a golden model as a training config would, with the golden batch, and runs its
 * micro-batch.
 */
#ifndef NIB_TESTS_STEP_FIXTURE_H
#define NIB_TESTS_STEP_FIXTURE_H

#include "checkpoint_build.h"
#include "session_handle.h"
#include "step.h"

#include <math.h>
#include <stdio.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum { LENGTH = 20, ROWS = 2 };

/* A golden model, opened as a training config would. */
typedef struct fixture {
    nib_engine *engine, *own; /* own: the engine opened here, or NULL if the setting has one */
    nib_model *model;
    nib_checkpoint *golden;
    nib_plan *plan;
    nib_arena arena;
    nib_params params;
    nib_step step;
    float *weights, *gradients;
    int32_t ids[ROWS * LENGTH], targets[ROWS * LENGTH], start[ROWS * LENGTH + 1];
    nib_micro_batch batch;
} fixture;

typedef struct setting {
    const char *name, *isa, *dtype, *recipe;
    int threads;
    nib_ac checkpointing;
    bool wgrad_with_hp;
    bool watched;            /* runs operations one by one, not in chains */
    const char *qat;         /* golden gradients of quantization-aware training */
    bool whole_batches;      /* DeepSeek's load-balancing loss is not over sequences */
    bool no_head, idle_head; /* of a model with a draft head: without it; its loss has no weight */
    const char *device, *place; /* of the request; NULL: the CPU */
    nib_engine *engine;         /* reused, with its compiled kernels; NULL: a new one */
} setting;

static inline void ok(nib_status status, const nib_err *err)
{
    if (status != NIB_OK)
        fail_msg("%s", err->text);
}

/* A golden tensor's values, which may be unaligned in the file. */
static inline int64_t values(const fixture *f, const char *name, void *to, size_t room)
{
    const nib_tensor *t = nib__checkpoint_find(f->golden, name);
    if (t == NULL)
        fail_msg("%s is missing", name);
    assert_true(t->bytes <= room);
    memcpy(to, t->data, t->bytes);
    return t->shape[0];
}

static inline void read_batch(fixture *f)
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
    f->batch = (nib_micro_batch){ROWS * LENGTH, documents, f->ids, f->targets, f->start};
}

static inline void open_golden(fixture *f, const char *name)
{
    nib_err err;
    char path[320];
    nib__checkpoint_close(f->golden);
    snprintf(path, sizeof path, "tests/golden/train/%s.safetensors", name);
    ok(nib__checkpoint_open(&f->golden, path, &f->engine->allocator, &err), &err);
}

/* Sets the coefficient of the load-balancing loss, as a training config does. */
static inline void set_balance(fixture *f, bool whole_batches)
{
    const nib_graph *g = &f->model->net.graph;
    double aux = 0;
    if (nib__checkpoint_find(f->golden, "aux") == NULL)
        return;
    values(f, "aux", &aux, sizeof aux);
    for (size_t i = 0; i < g->node_count; i++) {
        nib_routing *rule = (nib_routing *)(uintptr_t)g->nodes[i].routing;
        if (g->nodes[i].op != NIB_OP_ROUTE)
            continue;
        rule->balance = (float)aux;
        rule->balance_over = whole_batches ? NIB_BALANCE_MICRO_BATCH : rule->balance_over;
    }
}

/* Opens the network with its draft head, if the golden gradients are with one. */
static inline void open_head(fixture *f, const char *path, double *weight)
{
    nib_err err;
    nib_network *net = &f->model->net;
    if (nib__checkpoint_find(f->golden, "draft_weight") == NULL)
        return;
    values(f, "draft_weight", weight, sizeof *weight);
    nib__network_close(net);
    ok(nib__network_open(net, f->engine, path, NIB_NETWORK_TRAINED, &err), &err);
}

static inline nib_status see_nothing(void *ctx, const nib_train_node *node, bool done, nib_err *err)
{
    (void)ctx, (void)node, (void)done, (void)err;
    return NIB_OK;
}

static inline void open_fixture(fixture *f, const setting *s)
{
    static const nib_step_watch watch = {.observe = see_nothing};
    nib_err err;
    char path[256], model[256];
    double draft_weight = 0;
    *f = (fixture){0};
    snprintf(model, sizeof model, "tests/golden/train/%s", s->name);
    const nib_engine_options options = {.threads = s->threads ? s->threads : 1, .isa = s->isa};
    if (s->engine == NULL)
        ok(nib_engine_open(&f->own, &options, &err), &err);
    f->engine = s->engine != NULL ? s->engine : f->own;
    f->engine->measured = true; /* skip measuring: rates cannot change a bit */
    ok(nib_model_open(&f->model, f->engine, model, NULL, &err), &err);
    snprintf(path, sizeof path, "%s_gradients", s->name);
    open_golden(f, path);
    if (!s->no_head)
        open_head(f, model, &draft_weight);
    set_balance(f, s->whole_batches);
    f->model->net.training = true;
    f->model->net.train = (nib_train_config){.batch = ROWS,
                                             .sequence = LENGTH,
                                             .checkpointing = s->checkpointing,
                                             .wgrad_with_hp = s->wgrad_with_hp,
                                             .qat = s->qat != NULL,
                                             .draft_weight = s->idle_head ? 0 : draft_weight};
    const nib_request request = {.dtype = s->dtype ? s->dtype : "f32",
                                 .recipe = s->recipe,
                                 .device = s->device,
                                 .place = {&s->place, s->place != NULL}};
    ok(nib_plan_open(&f->plan, f->model, &request, &err), &err);
    ok(nib_plan_status(f->plan, &err), &err);
    nib__arena_init(&f->arena, &f->engine->allocator, 0);
    ok(nib__params_list(&f->params, &f->model->net, &f->arena, &err), &err);
    f->weights = nib__arena_take(&f->arena, f->params.total, sizeof *f->weights);
    f->gradients =
        nib__arena_take(&f->arena, nib__load_block(&f->params.load), sizeof *f->gradients);
    ok(nib__params_load(f->weights, &f->params, &f->model->net, &err), &err);
    const nib_step_options step = {
        .batch = ROWS, .length = LENGTH, .checkpointing = s->checkpointing};
    nib_refusal refusal;
    ok(nib__step_open(&f->step, &f->model->net, &f->plan->assignment, &f->params, &step, &refusal,
                      &err),
       &err);
    f->step.watch = s->watched ? &watch : NULL;
    read_batch(f);
    if (s->qat)
        open_golden(f, s->qat);
}

static inline nib_losses run_losses(fixture *f, float *gradients)
{
    nib_err err;
    nib_losses losses;
    ok(nib__step_cast(&f->step, f->weights, &err), &err);
    ok(nib__step_run(&f->step, f->weights, &f->batch, 1.0f / (ROWS * LENGTH), gradients, &losses,
                     &err),
       &err);
    return losses;
}

static inline double run(fixture *f, float *gradients) { return run_losses(f, gradients).text; }

static inline void close_fixture(fixture *f)
{
    nib__step_close(&f->step);
    nib__arena_free(&f->arena);
    nib_plan_close(f->plan);
    nib__checkpoint_close(f->golden);
    nib_model_close(f->model);
    nib_engine_close(f->own);
}

/* max |a - b| / max |b| over a parameter; NaN if either has one */
static inline double distance(const float *a, const float *b, size_t count)
{
    double most = 0, scale = 0;
    for (size_t i = 0; i < count; i++) {
        const double off = fabs((double)a[i] - (double)b[i]);
        if (!(off <= most)) /* fmax would drop a NaN */
            most = off;
        if (isnan(most))
            return NAN;
        scale = fmax(scale, fabs((double)b[i]));
    }
    return scale > 0 ? most / scale : most; /* an expert without tokens */
}

#endif
