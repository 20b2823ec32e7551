/* SPDX-License-Identifier: Apache-2.0
 *
 * Measures the loss of a text that is not trained on.
 */
#include "validate.h"

#include <inttypes.h>
#include <stdio.h>

/* Counts the micro-batches before the text would begin again. */
static nib_status count_batches(nib_validation *v, nib_err *err)
{
    const nib_train_config *c = v->trainer->config;
    const nib_callbacks *call = &v->trainer->engine->callbacks;
    const bool whole = c->validation_steps < 0;
    char shown[NIB_SHOWN], line[NIB_SHOWN + 160];
    nib__escape_string(shown, c->validation);
    while (whole || v->count < c->validation_steps) {
        NIB_TRY(nib__data_skip(&v->data, c->batch, err));
        if (v->data.position.pass > 0)
            break;
        v->count++;
    }
    if (v->count == 0)
        return nib__fail(err, NIB_BAD_INPUT,
                         "%s is shorter than the %" PRId64 " x %" PRId64
                         " ids of a micro-batch; validate on a longer text, or lower "
                         "training.local_batch_size or training.seq_len",
                         shown, c->batch, c->sequence + 1);
    if (!whole && v->count < c->validation_steps && call->log &&
        nib_ranks_rank(v->trainer->ranks) == 0) {
        snprintf(line, sizeof line,
                 "%s has only %" PRId64 " of the %" PRId64
                 " micro-batches of validation.steps; the loss covers those",
                 shown, v->count, c->validation_steps);
        call->log(call->ctx, line);
    }
    return NIB_OK;
}

static nib_status open_data(nib_validation *v, nib_err *err)
{
    nib_trainer *t = v->trainer;
    nib_data_options options = {.path = t->config->validation,
                                .vocab = nib__network_embed(&t->model->net)->n,
                                .length = t->config->sequence,
                                .quiet = true}; /* count_batches reads past its end */
    NIB_TRY(nib_model_tokenizer(&options.tokenizer, t->model, err));
    NIB_TRY(nib__data_open(&v->data, t->engine, &options, err));
    NIB_TRY(count_batches(v, err));
    v->losses = nib__calloc(&t->engine->allocator, (uint64_t)v->count, sizeof *v->losses);
    return v->losses ? NIB_OK
                     : nib__fail_memory(err, (uint64_t)v->count * sizeof *v->losses,
                                        "the losses of a validation");
}

nib_status nib__validation_open(nib_validation *out, nib_trainer *trainer, nib_err *err)
{
    *out = (nib_validation){0};
    if (!trainer->config->validation || trainer->config->validation_steps == 0)
        return NIB_OK;
    out->trainer = trainer;
    const nib_status status = open_data(out, err);
    if (status != NIB_OK)
        nib__validation_close(out);
    return nib_ranks_agree(trainer->ranks, status, err);
}

void nib__validation_close(nib_validation *v)
{
    if (!v->trainer)
        return;
    nib__release(&v->trainer->engine->allocator, v->losses);
    nib__data_close(&v->data);
    *v = (nib_validation){0};
}

bool nib__validation_due(const nib_validation *v, int64_t step)
{
    if (!v->trainer || v->trainer->config->validation_every < 1)
        return false;
    return step == 1 || step % v->trainer->config->validation_every == 0;
}

/* Computes this rank's losses. */
static nib_status run_local(nib_validation *v, int64_t first, int64_t end, nib_err *err)
{
    static const nib_data_position beginning = {.line = 1};
    nib_trainer *t = v->trainer;
    NIB_TRY(nib__data_seek(&v->data, &beginning, err));
    NIB_TRY(nib__data_skip(&v->data, first * t->config->batch, err));
    NIB_TRY(nib__step_cast(&t->step, t->weights, err));
    for (int64_t i = first; i < end; i++) {
        nib_micro_batch batch;
        NIB_TRY(nib__trainer_batch(t, &v->data, &batch, err));
        NIB_TRY(nib__step_run(&t->step, t->weights, &batch, 0, NULL, &v->losses[i], err));
    }
    return NIB_OK;
}

/* Sends each rank's losses to rank 0, and all of them back. */
static nib_status gather(nib_validation *v, nib_err *err)
{
    static const char what[] = "the loss of the validation";
    nib_ranks *ranks = v->trainer->ranks;
    const int me = nib_ranks_rank(ranks), count = nib_ranks_count(ranks);
    for (int rank = 1; rank < count; rank++) {
        const int64_t first = nib__tree_first(v->count, rank, count);
        const size_t bytes =
            (size_t)(nib__tree_first(v->count, rank + 1, count) - first) * sizeof *v->losses;
        if (bytes == 0)
            continue;
        if (me == 0)
            NIB_TRY(nib__ranks_receive(ranks, v->losses + first, bytes, rank, what, err));
        else if (me == rank)
            NIB_TRY(nib__ranks_send(ranks, v->losses + first, bytes, 0, what, err));
    }
    return nib__ranks_share(ranks, v->losses, (size_t)v->count * sizeof *v->losses, what, err);
}

nib_status nib__validation_run(nib_validation *v, nib_validation_report *report, nib_err *err)
{
    nib_trainer *t = v->trainer;
    const uint64_t from = nib__now_ns();
    const int rank = nib_ranks_rank(t->ranks), ranks = nib_ranks_count(t->ranks);
    const nib_status ran = run_local(v, nib__tree_first(v->count, rank, ranks),
                                     nib__tree_first(v->count, rank + 1, ranks), err);
    NIB_TRY(nib_ranks_agree(t->ranks, ran, err));
    NIB_TRY(gather(v, err));
    nib_losses sum = {0};
    for (int64_t i = 0; i < v->count; i++) {
        sum.text += v->losses[i].text;
        sum.draft += v->losses[i].draft;
    }
    *report = (nib_validation_report){.step = t->optimizer.steps,
                                      .tokens = v->count * t->step.m,
                                      .seconds = (double)(nib__now_ns() - from) * 1e-9};
    report->loss = sum.text / (double)report->tokens;
    report->draft_loss = sum.draft / (double)v->count;
    return NIB_OK;
}
