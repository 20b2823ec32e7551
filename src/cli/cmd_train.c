/* SPDX-License-Identifier: Apache-2.0
 *
 * nibble train: runs a training config. It ends with the ledger's line, as commands that run do.
 * nibble plot: draws what runs measured.
 */
#include "cli.h"

static int write_keys(const settings *s)
{
    nib_engine *engine;
    const int status = open_engine(&engine, s);
    if (status)
        return status;
    nib_err err;
    const nib_sink sink = report_sink(s);
    const int end = nib_train_keys_write(engine, form_of(s), &sink, &err) == NIB_OK
                        ? finish_stdout(0)
                        : fail(&err);
    nib_engine_close(engine);
    return end;
}

static int train(nib_model *model, nib_engine *engine, const settings *s)
{
    const nib_train_options options = {.dry_run = s->dry_run, .out = s->out};
    const nib_request request = request_of(s);
    const nib_sink sink = stdout_sink(), errors = stderr_sink();
    nib_plan *plan = NULL;
    nib_err err;
    (void)engine;
    nib_status status = nib_plan_make(&plan, model, &request, &err);
    if (status == NIB_OK)
        status = nib_train(model, plan, &options, &sink, &err);
    clear_progress();
    fflush(stdout); /* the ledger's line comes last */
    int end = status == NIB_OK ? 0 : fail(&err);
    if (status == NIB_OK && !s->quiet && nib_plan_summary(plan, &errors, &err) != NIB_OK)
        end = fail(&err);
    nib_plan_free(plan);
    return finish_stdout(end);
}

int run_train(const settings *s)
{
    if (s->keys && model_path(s))
        return fail_usage("--keys lists the keys of any config; leave out %s, or --keys",
                          model_path(s));
    if (s->keys)
        return write_keys(s);
    return with_model(s, "`nibble train` wants CONFIG: a training config (.json)",
                      (nib_model_options){0}, train);
}

int run_plot(const settings *s)
{
    if (s->arguments.count == 0)
        return fail_usage("`nibble plot` wants RUN: a file of metrics, or a directory with a "
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
