/* SPDX-License-Identifier: Apache-2.0
 *
 * Checks steps, and finds the first operation that gave a value that is not finite.
 */
#include "finite_check.h"

#include "ranks.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

/* ---- the first bad operation ---- */

/* What the watch of a micro-batch found. */
typedef struct search {
    const nib_trainer *trainer;
    const nib_train_node *node; /* NULL: nothing found yet */
    bool backward;
    int64_t token, channel; /* of the value; channel -1: a parameter's gradient */
    float value;
} search;

/* Index of the first value that is not finite, or count. */
static int64_t first_bad(const float *x, int64_t count)
{
    int64_t i = 0;
    while (i < count && isfinite(x[i]))
        i++;
    return i;
}

static nib_status check_outputs(void *ctx, const nib_train_node *n, bool done, nib_err *err)
{
    search *f = ctx;
    const nib_step *s = &f->trainer->step;
    if (!done || f->node)
        return NIB_OK;
    f->backward = n - s->nodes >= (ptrdiff_t)s->forward_end;
    for (int i = n->op == NIB_OP_XENT; i < NIB_TRAINING_OUTPUTS && !f->node; i++) {
        const int64_t width = n->out[i] >= 0 ? nib__step_ld(s, n->out[i]) : 0;
        const float *x;
        if (width == 0 ||
            n->op == NIB_OP_MOVE) /* encoded values show up in the operations that read them */
            continue;
        NIB_TRY(nib__step_read_buffer(s, n->out[i], &x, err));
        for (int64_t token = 0; token < s->m && !f->node; token++) {
            const int64_t at = first_bad(x + token * width, width);
            if (at < width)
                f->node = n, f->token = token, f->channel = at, f->value = x[token * width + at];
        }
    }
    if (f->node == NULL && n->out[0] < 0 && n->param != SIZE_MAX) { /* the node writes a gradient */
        const nib_param *p = &s->params->items[n->param];
        const float *x = s->gradients + p->at;
        const int64_t count = (int64_t)nib__param_size(p), at = first_bad(x, count);
        if (at < count)
            f->node = n, f->channel = -1, f->value = x[at];
    }
    return NIB_OK;
}

static const char *activation_name(const nib_train_node *n)
{
    const char *const names[] = {[NIB_SILU] = "silu(gate) * up",
                                 [NIB_GELU_TANH] = "gelu(gate) * up",
                                 [NIB_SWIGLU_CLAMPED] = "(up + 1) * gate * sigmoid(gate)"};
    return n->of->in[1] >= 0 ? names[n->of->activation] : "the activation";
}

/* "the output of model.layers.1.mlp.down_proj" */
static void describe_node(char out[256], const search *f)
{
    const nib_train_node *n = f->node;
    const nib_params *params = &f->trainer->params;
    const char *side = f->backward && n->op != NIB_OP_LINEAR ? "the gradient" : "the output";
    if (f->channel < 0)
        snprintf(out, 256, "the gradient of %s", params->items[n->param].name);
    else if (n->op == NIB_OP_FAKE)
        snprintf(out, 256, "the rounded input of %s", f->trainer->model->net.sites[n->site].name);
    else if (n->site != SIZE_MAX)
        snprintf(out, 256, "%s of %s%s", side, n->op == NIB_OP_LINEAR_DX ? "the input of " : "",
                 f->trainer->model->net.sites[n->site].name);
    else if ((n->op == NIB_OP_NORM || n->op == NIB_OP_NORM_DX) && n->param != SIZE_MAX)
        snprintf(out, 256, "%s of %sthe norm %s", side, f->backward ? "the input of " : "",
                 params->items[n->param].name);
    else if (n->op == NIB_OP_EMBED)
        snprintf(out, 256, "the output of %s", f->trainer->model->net.sites[0].name);
    else if (n->op == NIB_OP_XENT)
        snprintf(out, 256, "the loss itself%s", n->ahead ? " of the draft head" : "");
    else
        snprintf(out, 256, "%s of %s in layer %" PRId64, side,
                 n->op == NIB_OP_ROPE                               ? "rotary positions"
                 : n->op == NIB_OP_HIDDEN                           ? "the draft head's input"
                 : n->op == NIB_OP_ATTN || n->op == NIB_OP_ATTN_DX  ? "attention"
                 : n->of != NULL && n->of->op == NIB_OP_SHORT_CONV  ? "the short convolution"
                 : n->of != NULL && n->of->op == NIB_OP_GATED_DELTA ? "the gated delta rule"
                 : n->of != NULL && n->of->op == NIB_OP_SSM         ? "the recurrence"
                 : n->of != NULL &&
                         (n->of->op == NIB_OP_DELTA_GATES || n->of->op == NIB_OP_SSM_GATES)
                     ? "the gates"
                 : n->of != NULL && n->of->op == NIB_OP_GATHER         ? "copied columns"
                 : n->op == NIB_OP_NORM || n->op == NIB_OP_NORM_DX     ? "a norm without a weight"
                 : n->op == NIB_OP_SCALE || n->op == NIB_OP_SCALE_DX   ? "a scaled value"
                 : n->op == NIB_OP_SWIGLU || n->op == NIB_OP_SWIGLU_DX ? activation_name(n)
                 : n->of != NULL && n->of->routing != NULL             ? "the choice of experts"
                                                                       : "the sum of the residual",
                 n->layer);
}

/* Runs the micro-batches of this rank once more, until one shows the first bad value. */
static nib_status search_step(search *f, nib_trainer *t, const nib_data_position *from,
                              bool forward, int64_t *micro_batch, nib_err *err)
{
    const int rank = nib_ranks_rank(t->ranks), ranks = nib_ranks_count(t->ranks);
    const int64_t first = nib__tree_first(t->micro_batches, rank, ranks),
                  end = nib__tree_first(t->micro_batches, rank + 1, ranks);
    const float scale = (float)(1 / (double)(t->micro_batches * t->step.m));
    NIB_TRY(nib__data_seek(&t->data, from, err));
    NIB_TRY(nib__data_skip(&t->data, first * t->config->batch, err));
    for (int64_t i = first; i < end && !f->node; i++) {
        nib_micro_batch batch;
        nib_losses losses;
        float *gradient = NULL;
        *micro_batch = i;
        NIB_TRY(nib__trainer_batch(t, &t->data, &batch, err));
        if (!forward)
            NIB_TRY(nib__tree_block(&t->tree, &gradient, err));
        const nib_status ran =
            nib__step_run(&t->step, t->weights, &batch, scale, gradient, &losses, err);
        if (gradient)
            nib__tree_release_block(&t->tree, gradient);
        NIB_TRY(ran);
    }
    return NIB_OK;
}

/* ---- messages ---- */

/* The first parameter with a value that is not finite, or count. */
static size_t find_bad_weight(const nib_trainer *t)
{
    size_t i = 0;
    for (; i < t->params.count; i++) {
        const nib_param *p = &t->params.items[i];
        const int64_t count = (int64_t)nib__param_size(p);
        if (first_bad(t->weights + p->at, count) < count)
            break;
    }
    return i;
}

/* Writes the end of the message: the state of the weights. */
static void describe_weights(char out[256], const nib_trainer *t, size_t bad)
{
    if (bad < t->params.count)
        snprintf(out, 256,
                 "%s was not finite before the step; resume from the last checkpoint with a lower "
                 "optimizer.lr",
                 t->params.items[bad].name);
    else
        snprintf(out, 256, "the weights are unchanged");
}

/* Checks this rank; NIB_OK: its micro-batches are good. */
/* The sign of a NaN depends on the machine. */
static const char *what_of(double value)
{
    return isnan(value) ? "NaN" : value > 0 ? "infinity" : "-infinity";
}

static nib_status fail_first_bad(nib_trainer *t, const nib_step_report *r, const nib_evidence *e,
                                 size_t weight, nib_err *err)
{
    const bool draft = isfinite(r->loss) && !isfinite(r->draft_loss),
               forward = !isfinite(r->loss) || draft;
    const nib_data_position end = t->data.position;
    const nib_step_watch *const before = t->step.watch;
    search f = {.trainer = t};
    const nib_step_watch watch = {check_outputs, &f};
    int64_t micro_batch = 0;
    char node[256], weights[256], place[64] = "";
    t->step.watch = &watch;
    nib_status status = search_step(&f, t, &e->position, forward, &micro_batch, err);
    t->step.watch = before;
    if (status == NIB_OK)
        status = nib__data_seek(&t->data, &end, err);
    if (status != NIB_OK || !f.node)
        return status;
    describe_node(node, &f);
    describe_weights(weights, t, weight);
    if (f.channel >= 0)
        snprintf(place, sizeof place, " at token %" PRId64 ", channel %" PRId64, f.token,
                 f.channel);
    return nib__fail(err, NIB_CHECK_FAILED,
                     "step %" PRId64 ": the %s is %s: first in micro-batch %" PRId64
                     ", where %s is %s%s; %s",
                     r->step,
                     draft     ? "draft head's loss"
                     : forward ? "loss"
                               : "gradient norm",
                     what_of(draft     ? r->draft_loss
                             : forward ? r->loss
                                       : r->norm),
                     micro_batch, node, what_of((double)f.value), place, weights);
}

static nib_status fail_not_finite(nib_trainer *t, const nib_step_report *r, const nib_evidence *e,
                                  size_t weight, nib_err *err)
{
    char weights[256];
    /* not nib_ranks_agree: the ranks continue if the step is skipped */
    NIB_TRY(nib__ranks_verdict(t->ranks, fail_first_bad(t, r, e, weight, err), err));
    describe_weights(weights, t, weight);
    return nib__fail(err, NIB_CHECK_FAILED,
                     "step %" PRId64
                     ": the %s is not finite (%g), though every micro-batch is finite: their sum "
                     "overflows first in the gradient of %s; %s",
                     r->step, isfinite(r->loss) ? "gradient norm" : "loss",
                     isfinite(r->loss) ? r->norm : r->loss,
                     e->bad < t->params.count ? t->params.items[e->bad].name : "none", weights);
}

static nib_status fail_spike(nib_trainer *t, const nib_step_report *r, const nib_evidence *e,
                             nib_err *err)
{
    const bool loss = t->config->spike > 0 && t->mean_loss > 0 &&
                      r->loss > t->config->spike * t->mean_loss,
               norm = t->config->norm_spike > 0 && t->mean_norm > 0 &&
                      r->norm > t->config->norm_spike * t->mean_norm;
    if (!loss && !norm)
        return NIB_OK;
    double most = -1;
    size_t largest = 0;
    for (size_t i = 0; i < t->params.count; i++) {
        const double own = nib__gradient_squares(&t->optimizer, e->gradient, i);
        if (own > most)
            most = own, largest = i;
    }
    return nib__fail(err, NIB_CHECK_FAILED,
                     "step %" PRId64 ": the %s of %.4f is over %g times its mean of %.4f, and %s "
                     "has %.0f %% of the squared gradient; the weights are unchanged",
                     r->step, loss ? "loss" : "gradient norm", loss ? r->loss : r->norm,
                     loss ? t->config->spike : t->config->norm_spike,
                     loss ? t->mean_loss : t->mean_norm, t->params.items[largest].name,
                     r->norm > 0 ? 100 * most / (r->norm * r->norm) : 0);
}

nib_status nib__check_step(nib_trainer *t, nib_step_report *r, const nib_evidence *e, nib_err *err)
{
    const bool finite = isfinite(r->loss) && isfinite(r->draft_loss) && isfinite(r->norm);
    const size_t weight = finite ? t->params.count : find_bad_weight(t);
    nib_err why; /* for the log, even if err is NULL */
    const nib_status verdict =
        finite ? fail_spike(t, r, e, &why) : fail_not_finite(t, r, e, weight, &why);
    if (verdict == NIB_OK)
        return NIB_OK;
    if (verdict != NIB_CHECK_FAILED || !t->config->skip_bad_steps || weight < t->params.count)
        return nib__fail(err, verdict, "%s", why.text);
    r->skipped = true;
    if (t->engine->callbacks.log && nib_ranks_rank(t->ranks) == 0)
        t->engine->callbacks.log(t->engine->callbacks.ctx, why.text);
    return NIB_OK;
}
