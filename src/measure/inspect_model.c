/* SPDX-License-Identifier: Apache-2.0
 *
 * Implements nib_info_write and nib_verify, with what config.json implies.
 */
#include "info.h"
#include "public_struct.h"
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
    NIB_NEED(err, "model", model);
    NIB_TRY(nib__report_check(form, sink, err));
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
        const bool own = norm->heads > 1 && !norm->flat;
        list[used++] = (nib_expected){.name = norm->name,
                                      .n = own              ? norm->heads
                                           : norm->taps > 0 ? norm->n / norm->taps
                                                            : norm->n,
                                      .k = own ? norm->n / norm->heads : 0,
                                      .taps = norm->taps,
                                      .bare = norm->bare,
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
    NIB_TRY(nib_plan_open(&r->plan, r->model, &request, err));
    return nib_session_open(&r->session, r->model, r->plan, 1, err);
}

static void close_model(opened_model *r)
{
    nib_session_close(r->session);
    nib_plan_close(r->plan);
    nib_model_close(r->model);
    *r = (opened_model){0};
}

/* What nib_verify does once its files are open. */
typedef struct verify_run {
    nib_engine *engine;
    opened_model a, b;
    bool compares; /* a and b can run */
    nib_err why;   /* why not */
    nib_model_distance distance;
    char note[NIB_SANDBOX_TEXT];
} verify_run;

/* Runs both models over arbitrary ids, so that no tokenizer is needed. */
static nib_status run_both(verify_run *r, nib_err *err)
{
    int32_t ids[COMPARED];
    nib_eval_result result = {.size = sizeof result};
    const int64_t vocab =
        nib__min(nib_session_vocab(r->a.session), nib_session_vocab(r->b.session));
    for (int64_t i = 0; i < COMPARED; i++)
        ids[i] = (int32_t)((uint64_t)(i + 1) * UINT64_C(0x9e3779b97f4a7c15) % (uint64_t)vocab);
    const int64_t count = nib__min(COMPARED, nib__min(r->a.plan->context, r->b.plan->context));
    NIB_TRY(nib__eval_ids(r->a.session, r->b.session, ids, count, &result, err));
    r->distance = (nib_model_distance){
        .tokens = result.predicted, .kl = result.kl, .agreement = result.top1_agreement};
    return NIB_OK;
}

/* A model that cannot run gives a reason in the result, not an error: tensors are compared
 * anyway. */
static void open_both(verify_run *r, const nib_model *model, const nib_model *against)
{
    r->compares = open_to_run(&r->a, r->engine, nib__checkpoint_path(model->net.checkpoint),
                              &r->why) == NIB_OK &&
                  open_to_run(&r->b, r->engine, nib__checkpoint_path(against->net.checkpoint),
                              &r->why) == NIB_OK;
}

static nib_status on_files_open(void *ctx, nib_err *err)
{
    verify_run *r = ctx;
    NIB_TRY(nib__engine_sandbox(r->engine, NIB_SANDBOX_READER, r->note, err));
    if (!r->compares || run_both(r, &r->why) != NIB_OK)
        r->distance = (nib_model_distance){.why_not = r->why.text};
    close_model(&r->b);
    close_model(&r->a);
    return NIB_OK;
}

static nib_status verify(nib_model *model, const nib_verify_options *o, nib_form form,
                         const nib_sink *sink, nib_err *err)
{
    const nib_model *against = o->against;
    const nib_allocator *a = &model->engine->allocator;
    NIB_TRY(nib__engine_check(model->engine, err));
    NIB_TRY(need_weights(model, err));
    if (against)
        NIB_TRY(need_weights(against, err));
    nib_model *own = NULL;
    if (against)
        NIB_TRY(nib__model_ordered(&own, against,
                                   nib__checkpoint_gguf(model->net.checkpoint) != NULL, err));
    if (own)
        against = own;
    nib_verify_job job = {.checkpoint = model->net.checkpoint,
                          .against = against ? against->net.checkpoint : NULL,
                          .signers = o->signers,
                          .signer = o->signer,
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
    verify_run run = {.engine = model->engine};
    job.files_open = on_files_open;
    job.ctx = &run;
    job.sandbox = run.note;
    if (against) {
        open_both(&run, model, against);
        job.models = &run.distance;
    }
    nib_expected *expected = NULL;
    size_t problems = 0;
    nib_arena arena;
    nib_text text;
    nib__arena_init(&arena, a, 0);
    nib__text_init(&text, a);
    nib_status status = list_expected(&expected, &job.expected_count, &model->net, &arena, err);
    job.expected = expected;
    job.first_unread = model->net.config.layers;
    job.first_shared = job.first_unread - model->net.config.shared_layers;
    job.end_unread = job.first_unread + model->net.config.moe.unread_layers;
    if (status == NIB_OK)
        status = nib__verify_render(&job, form, &text, &problems, err);
    status = nib__checkpoint_check_files(job.checkpoint, status, err);
    if (against)
        status = nib__checkpoint_check_files(job.against, status, err);
    status = flush(&text, status, sink, err);
    nib__arena_free(&arena);
    close_model(&run.b);
    close_model(&run.a);
    nib_model_close(own);
    if (status == NIB_OK && problems != 0)
        return nib__fail(err, NIB_CHECK_FAILED, "%s: %zu problem%s found",
                         nib__checkpoint_path(model->net.checkpoint), problems,
                         problems == 1 ? " was" : "s were");
    return status;
}

nib_status nib_verify_with(nib_model *model, const nib_verify_options *options, nib_form form,
                           const nib_sink *sink, nib_err *err)
{
    NIB_NEED(err, "model", model);
    NIB_TRY(nib__report_check(form, sink, err));
    NIB_OPTIONS(nib_verify_options, o, options, err);
    return verify(model, &o, form, sink, err);
}

nib_status nib_verify(nib_model *model, nib_model *against, nib_form form, const nib_sink *sink,
                      nib_err *err)
{
    const nib_verify_options options = {.size = sizeof options, .against = against};
    return nib_verify_with(model, &options, form, sink, err);
}
