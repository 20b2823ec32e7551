/* SPDX-License-Identifier: Apache-2.0
 *
 * nibble train: runs a training config and ends with the ledger's summary.
 * nibble plot: draws the metrics of training runs.
 */
#include "cli.h"

typedef struct job {
    nib_engine *engine;
    nib_model *model;
    nib_plan *plan;
} job;

static nib_status open_job(job *j, const settings *s, const nib_ranks *ranks, nib_err *err)
{
    const nib_model_options options = model_options_of(s, (nib_model_options){0});
    nib_request request = request_of(s);
    request.ranks = nib_ranks_count(ranks);
    request.exports = s->out != NULL;
    nib_status status = start_engine(&j->engine, s, ranks, err);
    if (status == NIB_OK)
        status = nib_model_open(&j->model, j->engine, model_path(s), &options, err);
    if (status == NIB_OK)
        status = nib_plan_open(&j->plan, j->model, &request, err);
    return status;
}

static void close_job(job *j)
{
    nib_plan_close(j->plan);
    nib_model_close(j->model);
    nib_engine_close(j->engine);
}

static nib_status train(job *j, const settings *s, nib_ranks *ranks, nib_err *err)
{
    nib_plan *ran = NULL;
    const nib_train_options options = {
        .dry_run = s->dry_run, .out = s->out, .ranks = ranks, .ran = &ran};
    const nib_sink sink = stdout_sink(), errors = stderr_sink();
    nib_status status = nib_ranks_agree(ranks, open_job(j, s, ranks, err), err);
    if (status == NIB_OK && nib_ranks_rank(ranks) == 0 && !s->quiet)
        status = nib_plan_ledger_write(j->plan, NIB_FORM_TEXT, &errors, err);
    if (status == NIB_OK)
        status = nib_train(j->model, j->plan, &options, &sink, err);
    clear_progress();
    fflush(stdout); /* the summary comes last */
    if (status == NIB_OK && !s->quiet && nib_ranks_rank(ranks) == 0)
        status = nib_plan_summary(ran != NULL ? ran : j->plan, &errors, err);
    nib_plan_close(ran);
    return status;
}

/* Refuses options that have no effect together. */
static int check_options(const settings *s)
{
    if (s->keys && model_path(s))
        return fail_usage("--keys lists the keys of any config; leave out %s, or --keys",
                          model_path(s));
    if (s->keys && (s->dry_run || s->out))
        return fail_usage("--keys trains nothing; leave out %s", s->out ? "--export" : "--dry-run");
    if (!s->keys && !model_path(s))
        return fail_usage("`nibble train` needs CONFIG: a training config (.json)");
    if (!s->keys && (s->json || s->markdown))
        return fail_usage("%s needs --keys; --metrics.path=FILE writes a run's steps as JSON lines",
                          s->json ? "--json" : "--markdown");
    if (s->dry_run && s->out)
        return fail_usage("--dry-run trains nothing to export; leave out --export");
    return 0;
}

int run_train(const settings *s)
{
    int end = check_options(s);
    if (end)
        return end;
    if (s->keys)
        return write_training_keys(s);
    nib_ranks *ranks;
    end = join_ranks(&ranks, s);
    if (end)
        return end;
    job j = {0};
    nib_err err;
    const nib_status status = train(&j, s, ranks, &err);
    end = leave_ranks(ranks, status, &err);
    close_job(&j);
    return finish_stdout(end);
}

int run_plot(const settings *s)
{
    if (s->arguments.count == 0)
        return fail_usage("`nibble plot` needs RUN: a metrics file, or a directory with a "
                          "metrics.jsonl");
    const nib_plot_options options = {.runs = {s->arguments.items, s->arguments.count},
                                      .value = s->value,
                                      .smooth = s->smooth,
                                      .out = s->out};
    const nib_sink sink = stdout_sink();
    nib_engine *engine;
    nib_err err;
    const int status = open_engine(&engine, s);
    if (status)
        return status;
    const int end =
        nib_plot(engine, &options, &sink, &err) == NIB_OK ? finish_stdout(0) : fail(&err);
    nib_engine_close(engine);
    return end;
}
