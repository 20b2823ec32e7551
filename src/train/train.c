/* SPDX-License-Identifier: Apache-2.0
 *
 * nib_train: opens a run, runs its steps and logs each as torchtitan does.
 */
#include "cast_losses.h"
#include "dry_run.h"
#include "metrics.h"
#include "public_struct.h"
#include "ranks.h"
#include "train_checkpoint.h"
#include "train_export.h"
#include "train_settings.h"
#include "validate.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

typedef struct run {
    nib_trainer trainer;
    nib_saves saves;
    nib_metrics metrics;
    nib_export_paths paths;
    nib_validation validation;
    nib_cast_losses casts;
    const nib_train_options *options;
    const nib_sink *sink;
    nib_text text;
    uint64_t since; /* time of the last line */
    int64_t tokens; /* tokens since then */
} run;

static bool is_rank_0(const run *r) { return nib_ranks_rank(r->trainer.ranks) == 0; }

/* A rate as "12,345". */
static const char *round_count(char out[32], double value)
{
    return nib__format_count(out, (uint64_t)fmax(0, nearbyint(value)));
}

/* Speed of the steps since the last line. */
static nib_speed measure(run *r)
{
    const nib_trainer *t = &r->trainer;
    const nib_kernel *row = t->plan->assignment.layers[1].uses[0].kernel;
    const nib_machine *machine = nib__plan_place(&t->plan->assignment, row);
    const uint64_t now = nib__now_ns();
    const double tps = (double)r->tokens / ((double)(now - r->since) * 1e-9);
    const double flops = tps * nib__trainer_flops(t);
    /* the peak of the unit that runs the products, times the ranks, all taken to be alike */
    const double peak = nib_ranks_count(t->ranks) * machine->rate[row->unit];
    r->since = now;
    r->tokens = 0;
    return (nib_speed){tps, flops, flops / peak, nib__peak_bytes()};
}

/* Whether a step gets a line even if nothing is wrong. */
static bool is_logged(const nib_train_config *c, int64_t step)
{
    return step % nib__max(1, c->log_every) == 0 || step == 1 || step == c->steps;
}

/* A line on the experts of a step. */
static void write_load(run *r, const nib_step_report *report)
{
    const nib_load *load = &r->trainer.params.load;
    const nib_load_extremes x = nib__load_extremes(load, report->load);
    nib__text_format(&r->text,
                     "experts: %.1f tokens each; most %.2f times the mean (layer %" PRId64
                     "), least %.2f times (layer %" PRId64 ")",
                     x.mean, x.most, x.most_layer, x.least, x.least_layer);
    if (load->balances)
        nib__text_format(&r->text, "  balance_loss: %.4f", report->balance);
    nib__text_str(&r->text, "\n");
}

/* "  draft_loss: 5.12345", or "" without a draft head. */
static const char *format_draft(char out[32], const nib_trainer *t, double loss, int digits)
{
    out[0] = '\0';
    if (t->config->draft_weight > 0)
        nib__format(out, 32, "  draft_loss: %*.*f", digits + 3, digits, loss);
    return out;
}

static nib_status write_step(run *r, const nib_step_report *report, nib_err *err)
{
    const nib_trainer *t = &r->trainer;
    const nib_train_config *c = t->config;
    r->tokens += report->tokens;
    if (!(is_logged(c, report->step) || report->skipped) || !is_rank_0(r))
        return NIB_OK;
    const nib_speed speed = measure(r);
    char count[32], draft[32];
    nib__text_format(
        &r->text,
        "step: %2" PRId64 "  loss: %8.5f%s  grad_norm: %7.4f  memory: %5.2fGiB(%.2f%%)  "
        "tps: %s  tflops: %.2f  mfu: %.2f%%%s\n",
        report->step, report->loss, format_draft(draft, t, report->draft_loss, 5), report->norm,
        (double)speed.memory / 0x1p30,
        100 * (double)speed.memory / (double)nib__plan_host(&t->plan->assignment)->memory,
        round_count(count, speed.tokens_per_s), speed.flops * 1e-12, 100 * speed.share,
        report->skipped ? "  skipped" : "");
    if (report->load != NULL)
        write_load(r, report);
    const bool counted = r->casts.trainer && is_logged(c, report->step);
    if (counted)
        nib__cast_losses_write(&r->text, &r->casts, report->step);
    NIB_TRY(nib__text_flush(&r->text, r->sink, err));
    NIB_TRY(nib__metrics_step(&r->metrics, report, &speed, err));
    return counted ? nib__metrics_casts(&r->metrics, &r->casts, report->step, err) : NIB_OK;
}

/* Validates and logs the loss. Validation does not count in the next line's tokens per second. */
static nib_status validate(run *r, nib_err *err)
{
    const nib_trainer *t = &r->trainer;
    const uint64_t used = nib__peak_bytes();
    nib_validation_report report;
    char count[32], draft[32];
    NIB_TRY(nib__validation_run(&r->validation, &report, err));
    r->since += (uint64_t)(report.seconds * 1e9);
    if (!is_rank_0(r))
        return NIB_OK;
    nib__text_format(
        &r->text, "validate step: %2" PRId64 "  loss: %7.4f%s  memory: %5.2fGiB(%.2f%%)  tps: %s\n",
        report.step, report.loss, format_draft(draft, t, report.draft_loss, 4),
        (double)used / 0x1p30,
        100 * (double)used / (double)nib__plan_host(&t->plan->assignment)->memory,
        round_count(count, (double)report.tokens / report.seconds));
    NIB_TRY(nib__text_flush(&r->text, r->sink, err));
    return nib__metrics_validation(&r->metrics, &report, err);
}

/* Runs a step, and counts what its casts lose if the config asks for that. */
static nib_status run_step(run *r, nib_step_report *report, nib_err *err)
{
    nib_trainer *t = &r->trainer;
    const bool counts = r->casts.trainer && is_logged(t->config, t->optimizer.steps + 1);
    if (counts)
        nib__cast_losses_begin(&r->casts);
    NIB_TRY(nib__trainer_step(t, report, err));
    if (counts)
        NIB_TRY(nib__cast_losses_end(&r->casts, err));
    return NIB_OK;
}

/* Saves a checkpoint. Its metrics are on the disk before it is: a run that resumes from it
 * continues them. Only rank 0 writes; the others learn of a failure when they agree on the next
 * step. */
static nib_status save(run *r, nib_err *err)
{
    if (!is_rank_0(r))
        return NIB_OK;
    NIB_TRY(nib__metrics_sync(&r->metrics, err));
    return nib__saves_now(&r->saves, err);
}

/* Saves a checkpoint, so that a cancelled run can resume. */
static nib_status cancel(run *r, nib_err *err)
{
    const int64_t step = r->trainer.optimizer.steps;
    NIB_TRY(save(r, err));
    return nib__fail(err, NIB_CANCELLED, "training was cancelled after step %" PRId64 "%s", step,
                     r->saves.saved == step && step > 0 ? "; its checkpoint was written" : "");
}

/* Runs all steps. Only rank 0 writes step lines and checkpoints. A failure there, or a cancellation
 * on any rank, ends the run on all ranks before the next step. */
static nib_status run_steps(run *r, nib_err *err)
{
    nib_trainer *t = &r->trainer;
    const int64_t steps = t->config->steps;
    nib_status status = NIB_OK;
    r->since = nib__now_ns();
    while (t->optimizer.steps < steps) {
        nib_step_report report;
        if (status == NIB_OK &&
            !nib__engine_progress(t->engine, "train", (uint64_t)t->optimizer.steps,
                                  (uint64_t)steps))
            status = nib__fail(err, NIB_CANCELLED, "training was cancelled");
        status = nib_ranks_agree(t->ranks, status, err);
        if (status == NIB_CANCELLED)
            return cancel(r, err);
        NIB_TRY(status);
        NIB_TRY(run_step(r, &report, err));
        status = write_step(r, &report, err);
        if (nib__validation_due(&r->validation, report.step)) {
            NIB_TRY(nib_ranks_agree(t->ranks, status, err));
            status = validate(r, err);
        }
        if (status == NIB_OK && nib__saves_due(&r->saves))
            status = save(r, err);
    }
    if (status == NIB_OK && is_rank_0(r))
        status = nib__metrics_sync(&r->metrics, err);
    NIB_TRY(nib_ranks_agree(t->ranks, status, err));
    nib__engine_progress(t->engine, "train", (uint64_t)steps, (uint64_t)steps);
    return NIB_OK;
}

static nib_status open_run(run *r, nib_model *model, const nib_plan *plan, nib_err *err)
{
    nib_ranks *ranks = r->options ? r->options->ranks : NULL;
    const char *out = r->options ? r->options->out : NULL;
    nib__ranks_limit(ranks, model->net.train.timeout_s);
    nib_status status = nib__trainer_open(&r->trainer, model, plan, ranks, err);
    if (status == NIB_OK)
        status = nib__export_paths(&r->paths, &r->trainer, out, err);
    NIB_TRY(nib_ranks_agree(ranks, status, err));
    NIB_TRY(nib__ranks_same_settings(&r->trainer, out != NULL, err));
    NIB_TRY(nib__validation_open(&r->validation, &r->trainer, err));
    if (model->net.train.count_casts)
        status = nib__cast_losses_open(&r->casts, &r->trainer, err);
    NIB_TRY(nib_ranks_agree(ranks, status, err));
    NIB_TRY(nib__saves_open(&r->saves, &r->trainer, err));
    NIB_TRY(nib__ranks_same_start(
        &r->trainer, r->validation.trainer ? &r->validation.data.documents : NULL, err));
    return nib_ranks_agree(ranks, nib__metrics_open(&r->metrics, &r->trainer, err), err);
}

/* Writes the line that names an exported model. */
static nib_status write_exported(run *r, const char *what, const char *path, nib_err *err)
{
    if (!is_rank_0(r))
        return NIB_OK;
    nib__text_format(&r->text, "%s: %s\n", what, path);
    return nib__text_flush(&r->text, r->sink, err);
}

static nib_status export_model(run *r, nib_err *err)
{
    const nib_export_paths *paths = &r->paths;
    if (!paths->model)
        return NIB_OK;
    NIB_TRY(nib__export(&r->trainer, paths->model, paths->replace, err));
    NIB_TRY(write_exported(r, "model", paths->model, err));
    if (!paths->quantized)
        return NIB_OK;
    NIB_TRY(nib__export_quantized(&r->trainer, paths, r->sink, err));
    return write_exported(r, "quantized model", paths->quantized, err);
}

nib_status nib_train(nib_model *model, const nib_plan *plan, const nib_train_options *options,
                     const nib_sink *sink, nib_err *err)
{
    NIB_NEED(err, "model, plan", model, plan);
    NIB_TRY(nib__sink_check(sink, err));
    NIB_OPTIONS(nib_train_options, o, options, err);
    run r = {.options = &o, .sink = sink};
    const int ranks = nib_ranks_count(o.ranks);
    const int planned = plan->request.ranks > 0 ? plan->request.ranks : 1;
    if (o.ran)
        *o.ran = NULL;
    NIB_TRY(nib__engine_check(model->engine, err));
    if (!model->net.training)
        return nib__fail(err, NIB_USAGE, "%s is a model, not a training config",
                         model->net.directory);
    NIB_TRY(nib__plan_check_model(plan, model, err));
    NIB_TRY(nib_plan_status(plan, err));
    NIB_TRY(nib__train_check_machine(plan, err));
    if (planned != ranks)
        return nib__fail(err, NIB_USAGE,
                         "the plan is for %d rank%s, but the run has %d; set nib_request.ranks",
                         planned, planned == 1 ? "" : "s", ranks);
    if (o.dry_run)
        return nib__dry_run(model, plan, o.ranks, o.ran, sink, err);
    const bool prints = model->net.train.print_after_conversion && nib_ranks_rank(o.ranks) == 0;
    nib_status status = prints ? nib_plan_write(plan, NIB_FORM_TEXT, sink, err) : NIB_OK;
    NIB_TRY(nib_ranks_agree(o.ranks, status, err));
    nib__text_init(&r.text, &model->engine->allocator);
    status = open_run(&r, model, plan, err);
    if (status == NIB_OK) {
        if (prints && r.trainer.own != NULL)
            status = nib_plan_write(r.trainer.own, NIB_FORM_TEXT, sink, err);
        status = nib_ranks_agree(r.trainer.ranks, status, err);
    }
    if (status == NIB_OK)
        status = run_steps(&r, err);
    if (status == NIB_OK)
        status = export_model(&r, err);
    nib__metrics_close(&r.metrics);
    nib__saves_close(&r.saves);
    nib__cast_losses_close(&r.casts);
    nib__validation_close(&r.validation);
    nib__text_free(&r.text);
    if (status == NIB_OK)
        nib__trainer_give_plan(&r.trainer, o.ran);
    nib__trainer_close(&r.trainer);
    return status;
}
