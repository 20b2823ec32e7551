/* SPDX-License-Identifier: Apache-2.0
 *
 * Implements nib_info_write and nib_verify, with what config.json implies.
 */
#include "info.h"
#include "verify.h"
#include "bench.h"

static nib_status need_weights(const nib_model *model, nib_err *err)
{
    if (model->net.checkpoint)
        return NIB_OK;
    return nib__fail(
        err, NIB_USAGE,
        "%s: only a config was given, without weights to inspect; name the directory or "
        "the .safetensors file",
        model->net.directory);
}

static nib_status flush(nib_text *text, nib_status status, const nib_sink *sink, nib_err *err)
{
    if (status == NIB_OK)
        status = nib__text_flush(text, sink, err);
    nib__text_free(text);
    return status;
}

nib_status nib_info_write(nib_model *model, nib_form form, const nib_sink *sink, nib_err *err)
{
    const nib_allocator *a = &model->engine->allocator;
    nib_text text;
    NIB_TRY(need_weights(model, err));
    nib__text_init(&text, a);
    nib_status status = nib__info_render(model->net.checkpoint, a, form, &text, err);
    status = nib__checkpoint_check_files(model->net.checkpoint, status, err);
    return flush(&text, status, sink, err);
}

/* ---- what config.json implies ---- */

static nib_status list_expected(nib_expected **out, size_t *count, const nib_network *net,
                                nib_arena *arena, nib_err *err)
{
    const size_t norms = net->graph.kind_count[NIB_WEIGHT_NORM], most = net->site_count + norms;
    size_t used = 0;
    *count = 0;
    if (net->site_count == 0)
        return NIB_OK;
    nib_expected *list = nib__arena_take(arena, most, sizeof *list);
    if (!list)
        return nib__fail_memory(err, most * sizeof *list, "the list of weights");
    for (size_t i = 0; i < net->site_count; i++) {
        const nib_site *s = &net->sites[i];
        list[used++] = (nib_expected){.name = s->name,
                                      .n = s->n,
                                      .k = s->k,
                                      .bias = s->bias,
                                      .optional = s->role == NIB_ROLE_HEAD && net->tied};
    }
    for (size_t i = 0; i < norms; i++) {
        const nib_graph_weight *norm = nib__graph_weight(&net->graph, NIB_WEIGHT_NORM, i);
        const bool own = norm->heads > 1;
        list[used++] = (nib_expected){.name = norm->name,
                                      .n = own ? norm->heads : norm->n,
                                      .k = own ? norm->n / norm->heads : 0,
                                      .bias = norm->bias};
    }
    *out = list;
    *count = used;
    return NIB_OK;
}

/* ---- comparing models ---- */

enum { COMPARED = 64 };

/* A model opened to run. */
typedef struct opened_model {
    nib_model *model;
    nib_plan *plan;
    nib_session *session;
} opened_model;

static nib_status open_to_run(opened_model *r, nib_engine *engine, const char *path, nib_err *err)
{
    const nib_request request = {.dtype = "f32", .context = COMPARED};
    NIB_TRY(nib_model_open(&r->model, engine, path, NULL, err));
    NIB_TRY(nib_plan_make(&r->plan, r->model, &request, err));
    return nib_session_open(&r->session, r->model, r->plan, 1, err);
}

static void close_model(opened_model *r)
{
    nib_session_close(r->session);
    nib_plan_free(r->plan);
    nib_model_close(r->model);
}

/* Runs both models over arbitrary ids, so that no tokenizer is needed. */
static nib_status run_both(nib_model_distance *out, opened_model *a, opened_model *b,
                           nib_engine *engine, const char *path, const char *other, nib_err *err)
{
    int32_t ids[COMPARED];
    nib_eval_result result;
    NIB_TRY(open_to_run(a, engine, path, err));
    NIB_TRY(open_to_run(b, engine, other, err));
    const int64_t vocab = nib__min(nib_session_vocab(a->session), nib_session_vocab(b->session));
    for (int64_t i = 0; i < COMPARED; i++)
        ids[i] = (int32_t)((uint64_t)(i + 1) * UINT64_C(0x9e3779b97f4a7c15) % (uint64_t)vocab);
    const int64_t count = nib__min(COMPARED, nib__min(a->plan->context, b->plan->context));
    NIB_TRY(nib__eval_ids(a->session, b->session, ids, count, &result, err));
    *out = (nib_model_distance){
        .tokens = result.predicted, .kl = result.kl, .agreement = result.top1_agreement};
    return NIB_OK;
}

/* A model that cannot run gives a reason in the result, not an error: tensors are compared
 * anyway. */
static void compare_models(nib_model_distance *out, nib_err *why, const nib_model *model,
                           const nib_model *against)
{
    opened_model a = {0}, b = {0};
    if (run_both(out, &a, &b, model->engine, nib__checkpoint_path(model->net.checkpoint),
                 nib__checkpoint_path(against->net.checkpoint), why) != NIB_OK)
        *out = (nib_model_distance){.why_not = why->text};
    close_model(&b);
    close_model(&a);
}

nib_status nib_verify(nib_model *model, nib_model *against, nib_form form, const nib_sink *sink,
                      nib_err *err)
{
    const nib_allocator *a = &model->engine->allocator;
    NIB_TRY(need_weights(model, err));
    if (against)
        NIB_TRY(need_weights(against, err));
    nib_verify_job job = {.checkpoint = model->net.checkpoint,
                          .against = against ? against->net.checkpoint : NULL,
                          .pool = model->engine->pool,
                          .callbacks = &model->engine->callbacks,
                          .allocator = a};
    const size_t sites = model->net.site_count;
    if (against && sites > 0 && against->net.site_count > 0) {
        const char *head = nib__network_head(&model->net)->name,
                   *embed = nib__network_embed(&model->net)->name;
        if (against->net.tied && !model->net.tied)
            job.head = head, job.against_head = embed;
        if (model->net.tied && !against->net.tied)
            job.lone_head = head, job.tied_head = embed;
    }
    nib_model_distance models;
    nib_err why;
    if (against) {
        compare_models(&models, &why, model, against);
        job.models = &models;
    }
    nib_expected *expected = NULL;
    size_t problems = 0;
    nib_arena arena;
    nib_text text;
    nib__arena_init(&arena, a, 0);
    nib__text_init(&text, a);
    nib_status status = list_expected(&expected, &job.expected_count, &model->net, &arena, err);
    job.expected = expected;
    if (status == NIB_OK)
        status = nib__verify_render(&job, form, &text, &problems, err);
    status = nib__checkpoint_check_files(job.checkpoint, status, err);
    if (against)
        status = nib__checkpoint_check_files(job.against, status, err);
    status = flush(&text, status, sink, err);
    nib__arena_free(&arena);
    if (status == NIB_OK && problems != 0)
        return nib__fail(err, NIB_CHECK_FAILED, "%s: %zu problem%s found",
                         nib__checkpoint_path(model->net.checkpoint), problems,
                         problems == 1 ? " was" : "s were");
    return status;
}
