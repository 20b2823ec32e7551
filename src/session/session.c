/* SPDX-License-Identifier: Apache-2.0
 *
 * Sessions of the public interface: opening, steps, closing.
 */
#include "session_handle.h"
#include "public_struct.h"

#include <inttypes.h>
#include <stdio.h>

typedef struct opening {
    nib_session *session;
    int sequences;
    const nib_runner *lender; /* of weights; NULL: none */
} opening;

/* Loads nothing until the device has accepted everything. */
static nib_status open_runner(void *ctx, const nib_plan *plan, nib_refusal *refusal, nib_err *err)
{
    const opening *o = ctx;
    return nib__runner_open(&o->session->runner, &plan->model->net, &plan->assignment, o->sequences,
                            plan->context, o->lender, refusal, err);
}

/* Logs how many mapped weights had to be packed again: the plan compares layout names, loading
 * compares bytes. */
static void log_repacked(const nib_session *s)
{
    const nib_plan *p = s->plan;
    const nib_callbacks *c = &p->model->engine->callbacks;
    size_t repacked = 0;
    char line[160];
    if (p->model->packed == NULL || c->log == NULL)
        return;
    for (size_t i = 0; i < p->assignment.count; i++) {
        const nib_loaded *w = &s->runner.weights[i];
        repacked += nib__plan_is_packed(p, i) && w->pack_count > 0 && !w->packs[0].mapped;
    }
    snprintf(line, sizeof line,
             "%zu packed weights differ from what their kernels pack now; they were packed at "
             "load. `nibble quantize --pack` writes them again",
             repacked);
    if (repacked > 0)
        c->log(c->ctx, line);
}

static nib_status open_session(nib_session **out, nib_model *model, const nib_plan *plan,
                               int sequences, const nib_runner *lender, nib_err *err)
{
    NIB_TRY(nib__engine_check(model->engine, err));
    NIB_TRY(nib_plan_status(plan, err));
    NIB_TRY(nib__plan_check_model(plan, model, err));
    if (!model->net.checkpoint)
        return nib__fail(err, NIB_USAGE,
                         "%s: only a config was given, which can be planned but not run; to run, "
                         "name the directory or the .safetensors file",
                         model->net.directory);
    if (!plan->machine.here)
        return nib__fail(err, NIB_NOT_AS_ASKED,
                         "the plan is for %s, which is not this machine, so it cannot run; "
                         "--device %s runs here",
                         plan->machine.name, model->engine->here.name);
    if (sequences < 1)
        return nib__fail(err, NIB_USAGE, "%d sequences were requested; at least 1 is needed",
                         sequences);
    const nib_allocator *a = &model->engine->allocator;
    nib_session *s = nib__calloc(a, 1, sizeof *s);
    if (!s)
        return nib__fail_memory(err, sizeof *s, "the session");
    const nib_plan *ran = plan;
    nib_plan *replacement = NULL;
    opening o = {s, sequences, lender};
    s->model = model;
    nib_status opened = nib__plan_keep(model, plan, err);
    if (opened == NIB_OK)
        opened = nib__plan_open(open_runner, &o, &ran, &replacement, err);
    s->plan = replacement != NULL ? replacement : nib__plan_hold(plan);
    nib_status status = nib__model_check_files(model, opened, err);
    const nib_plan *draft = s->plan->draft;
    if (status == NIB_OK && draft != NULL)
        status = open_session(&s->draft, draft->model, draft, sequences,
                              draft->model->net.draft_head ? &s->runner : NULL, err);
    if (status != NIB_OK) {
        nib_session_close(s);
        return status;
    }
    s->runner.ledger = &s->plan->assignment.ledger;
    log_repacked(s);
    *out = s;
    return NIB_OK;
}

nib_status nib_session_open(nib_session **out, nib_model *model, const nib_plan *plan,
                            int sequences, nib_err *err)
{
    NIB_NEED(err, "out, model, plan", out, model, plan);
    if (model->net.draft_head)
        return nib__fail(err, NIB_USAGE,
                         "%s: a draft head runs only as the draft of its model "
                         "(nib_request.draft)",
                         model->net.path);
    return open_session(out, model, plan, sequences, NULL, err);
}

const nib_plan *nib_session_plan(const nib_session *session)
{
    if (session == NULL)
        return NULL;
    return session->plan;
}

void nib__session_note_sandbox(nib_session *session, const char *text)
{
    nib__ledger_add_note(&session->plan->assignment.ledger, "sandbox", "%s", text);
}

void nib__session_hold(nib_session *session) { nib__holders_add(&session->holders); }

void nib_session_close(nib_session *session)
{
    if (!session || !nib__holders_leave(&session->holders))
        return;
    nib_plan *plan = session->plan; /* keeps the model */
    nib_session_close(session->draft);
    if (session->runner.engine) /* NULL: it did not open */
        nib__runner_close(&session->runner);
    nib__release(&plan->model->engine->allocator, session);
    nib_plan_close(plan);
}

/* ---- use ---- */

static nib_status check_running(const nib_session *session, nib_err *err)
{
    NIB_TRY(nib__engine_check(session->model->engine, err));
    if (!session->running)
        return NIB_OK;
    return nib__fail(err, NIB_USAGE,
                     "the session is in the middle of a call: a callback called the library, or "
                     "left it by an exception or longjmp, after which the session can only be "
                     "closed");
}

nib_status nib__session_check_idle(const nib_session *session, nib_err *err)
{
    NIB_TRY(check_running(session, err));
    if (session->in_use)
        return nib__fail(err, NIB_USAGE,
                         "the session is in use; close its generator, chat or service first");
    return NIB_OK;
}

nib_status nib__session_enter(nib_session *session, nib_err *err)
{
    NIB_TRY(check_running(session, err));
    session->running = true;
    return NIB_OK;
}

void nib__session_leave(nib_session *session) { session->running = false; }

static bool want_logits(const nib_slot *slots, size_t count)
{
    size_t i = 0;
    while (i < count && (slots[i].outputs & NIB_SLOT_LOGITS) == 0)
        i++;
    return i < count;
}

nib_status nib_session_step(nib_session *session, const nib_slot *slots, size_t count,
                            const float **logits, nib_err *err)
{
    NIB_NEED(err, "session, slots", session, count > 0 ? (const void *)slots : "");
    NIB_TRY(nib__session_check_idle(session, err));
    if (logits == NULL && want_logits(slots, count))
        return nib__fail(err, NIB_USAGE, "a slot asks for logits, but logits is NULL");
    return nib__model_check_files(
        session->model, nib__runner_step(&session->runner, slots, count, logits, err), err);
}

const float *nib_session_hidden(const nib_session *session)
{
    if (session == NULL)
        return NULL;
    return session->runner.hidden_rows > 0 ? session->runner.hidden : NULL;
}

nib_status nib__session_check_sequence(const nib_session *session, int32_t sequence, nib_err *err)
{
    NIB_TRY(nib__session_check_idle(session, err));
    return sequence < 0 || sequence >= session->runner.kv.sequences
               ? nib__fail(err, NIB_USAGE,
                           "sequence %d is not one of the %" PRId64 " that were opened", sequence,
                           session->runner.kv.sequences)
               : NIB_OK;
}

nib_status nib_session_truncate(nib_session *session, int32_t sequence, int32_t position,
                                nib_err *err)
{
    NIB_NEED(err, "session", session);
    NIB_TRY(nib__session_check_sequence(session, sequence, err));
    if (position < 0)
        return nib__fail(err, NIB_USAGE, "position %d of sequence %d is negative", position,
                         sequence);
    nib_kv *kv = &session->runner.kv;
    const int64_t wanted = nib__min(position, kv->lengths[sequence]);
    if (nib__kv_cut(kv, sequence, wanted) != wanted && kv->states.count > 0)
        return nib__fail(
            err, NIB_USAGE,
            "sequence %d cannot be cut to position %d: of its %d positions, layers without keys "
            "keep only what those from %" PRId64 " on need; cut it to 0 and run its tokens again",
            sequence, position, kv->lengths[sequence], nib__states_earliest(&kv->states, sequence));
    if (nib__kv_cut(kv, sequence, wanted) != wanted)
        return nib__fail(
            err, NIB_USAGE,
            "sequence %d cannot be cut to position %d: of its %d positions, layers "
            "with a window of %" PRId64 " keep the last ones; cut it to 0 and run its tokens again",
            sequence, position, kv->lengths[sequence], session->model->net.config.window);
    nib__kv_truncate(kv, sequence, wanted);
    return NIB_OK;
}

int32_t nib_session_length(const nib_session *session, int32_t sequence)
{
    const bool known = session != NULL && sequence >= 0 && sequence < session->runner.kv.sequences;
    return known ? (int32_t)session->runner.kv.lengths[sequence] : -1;
}

int64_t nib_session_vocab(const nib_session *session)
{
    if (session == NULL)
        return 0;
    return session->runner.ops.ld[NIB_BUFFER_LOGITS];
}
