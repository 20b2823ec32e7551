/* SPDX-License-Identifier: Apache-2.0
 *
 * The draft model's cache of each sequence, and its steps: the first reads what the model has not
 * seen of every text, the others add one guess per text.
 */
#include "draft_model.h"

#include "variant.h"

#include <stdio.h>

enum {
    TEXTS_MOST = NIB_LOOKUP_MOST, /* as each has at least one guess */
    READ_MOST = 512,              /* tokens that are read of a text at once */
    READ_LEAST = 16,              /* a model that has seen less guesses badly */
    KEPT = 128,                   /* hidden states of a sequence, for a draft head */
};

/* Hidden states of the model: that of position p in row p % KEPT. */
typedef struct kept_states {
    float *rows;                         /* [KEPT][width] */
    int32_t position[KEPT], token[KEPT]; /* of each row; position -1: none */
} kept_states;

/* What the model has seen of a sequence. */
typedef struct follower {
    int32_t *seen; /* [context] tokens in its cache: seen[i] is token from + i of the text */
    int64_t count, from;
    int64_t firm; /* of these, without guesses that a head made from its own hidden states */
    kept_states kept;
    nib_draft_rate rate;
    nib_constraint_state *state; /* of the text with guesses; NULL: never needed */
} follower;

struct nib_draft_model {
    nib_session *session, *target;
    nib_drawer drawer;
    follower *followers; /* [sequences] */
    int64_t sequences, context;
    nib_slot *slots; /* [TEXTS_MOST * READ_MOST], fewer for fewer sequences */
    bool head;       /* it is the model's draft head */
    int64_t width;   /* of a hidden state */
    float *given;    /* a head's: the hidden states that the slots read, [as many][width] */
};

/* ---- opening ---- */

static nib_status allocate(nib_draft_model *m, nib_err *err)
{
    const nib_allocator *a = &m->target->model->engine->allocator;
    const size_t count = (size_t)m->sequences, context = (size_t)m->context;
    const size_t texts = count < TEXTS_MOST ? count : TEXTS_MOST;
    const size_t row = m->head ? (size_t)m->width * sizeof(float) : 0;
    m->slots = nib__calloc(a, texts * READ_MOST, sizeof *m->slots);
    m->followers = nib__calloc(a, count, sizeof *m->followers);
    bool whole = m->slots != NULL && m->followers != NULL;
    if (m->head) {
        m->given = nib__calloc(a, texts * KEPT, row);
        whole = whole && m->given != NULL;
    }
    for (size_t i = 0; whole && i < count; i++) {
        follower *f = &m->followers[i];
        f->seen = nib__calloc(a, context, sizeof(int32_t));
        f->kept.rows = m->head ? nib__calloc(a, KEPT, row) : NULL;
        memset(f->kept.position, -1, sizeof f->kept.position);
        whole = f->seen != NULL && (f->kept.rows != NULL || !m->head);
    }
    return whole ? NIB_OK
                 : nib__fail_memory(err, count * (context * sizeof(int32_t) + KEPT * row),
                                    "a draft model");
}

/* Times a token, twice as the first touches the weights: else the first guess of a text would cost
 * an unknown time. */
static nib_status time_token(nib_draft_model *m, nib_err *err)
{
    nib_runner *runner = &m->session->runner;
    nib_step_times *times = &m->session->times;
    const nib_slot slot = {.outputs = NIB_SLOT_LOGITS};
    const float *logits;
    for (int i = 0; i < 2 && times->measured[1] == 0; i++) {
        const uint64_t start = nib__now_ns();
        nib__kv_truncate(&runner->kv, 0, 0);
        runner->given = m->given;
        NIB_TRY(nib__runner_step(runner, &slot, 1, &logits, err));
        if (i == 1)
            nib__step_times_add(times, 1, (double)(nib__now_ns() - start) * 1e-9);
    }
    return NIB_OK;
}

nib_status nib__draft_model_open(nib_draft_model **out, nib_session *session, int64_t sequences,
                                 nib_err *err)
{
    nib_draft_model *m = nib__calloc(&session->model->engine->allocator, 1, sizeof *m);
    if (m == NULL)
        return nib__fail_memory(err, sizeof *m, "a draft model");
    m->session = session->draft;
    m->target = session;
    m->sequences = sequences;
    m->context = session->draft->plan->context;
    m->head = session->draft->model->net.draft_head;
    m->width = session->model->net.config.width;
    /* the logits of one model may have more padding than the other's */
    const int64_t vocab = nib__min(nib_session_vocab(session), nib_session_vocab(session->draft));
    nib_status status = allocate(m, err);
    if (status == NIB_OK)
        status = nib__drawer_open(&m->drawer, session, vocab, sequences, err);
    if (status == NIB_OK)
        status = time_token(m, err);
    if (status != NIB_OK) {
        nib__draft_model_close(m);
        return status;
    }
    for (int64_t i = 0; i < sequences; i++)
        nib__kv_truncate(&m->session->runner.kv, i, 0);
    *out = m;
    return NIB_OK;
}

void nib__draft_model_close(nib_draft_model *m)
{
    if (m == NULL)
        return;
    const nib_allocator *a = &m->target->model->engine->allocator;
    nib__drawer_close(&m->drawer);
    for (int64_t i = 0; m->followers != NULL && i < m->sequences; i++) {
        nib__release(a, m->followers[i].seen);
        nib__release(a, m->followers[i].state);
        nib__release(a, m->followers[i].kept.rows);
    }
    nib__release(a, m->given);
    nib__release(a, m->followers);
    nib__release(a, m->slots);
    nib__release(a, m);
}

void nib__draft_model_begin(nib_draft_model *m, int64_t sequence)
{
    const double usual = 0.7; /* before anything was measured */
    const double before = m->target->rate.accepted;
    m->followers[sequence].rate.accepted = before > 0 ? before : usual;
}

/* ---- hidden states of the model ---- */

uint32_t nib__draft_model_outputs(const nib_draft_model *m, int64_t left)
{
    return m != NULL && m->head && left < KEPT ? NIB_SLOT_HIDDEN : 0;
}

void nib__draft_model_see(nib_draft_model *m, const nib_slot *slots, size_t count)
{
    const bool sees = m != NULL && m->head;
    const float *row = sees ? m->target->runner.hidden : NULL;
    const size_t width = sees ? (size_t)m->width : 0;
    for (size_t i = 0; i < count && sees; i++) {
        kept_states *k = &m->followers[slots[i].sequence].kept;
        const size_t at = (size_t)slots[i].position % KEPT;
        if ((slots[i].outputs & NIB_SLOT_HIDDEN) == 0)
            continue;
        k->position[at] = slots[i].position, k->token[at] = slots[i].token;
        memcpy(k->rows + at * width, row, width * sizeof *row);
        row += width;
    }
}

/* The model's hidden state of token `position` of a text; NULL: it was not kept. */
static const float *hidden_of(const nib_draft_model *m, int64_t sequence, const int32_t *ids,
                              int64_t position)
{
    const kept_states *k = &m->followers[sequence].kept;
    const int64_t at = position % KEPT;
    return k->position[at] == position && k->token[at] == ids[position] ? k->rows + at * m->width
                                                                        : NULL;
}

/* How many of the last tokens a head can read: each needs the hidden state of the token before. */
static int64_t readable(const nib_draft_model *m, int64_t sequence, const int32_t *ids,
                        int64_t count)
{
    int64_t read = 0;
    while (m->head && read < count - 1 && read < KEPT &&
           hidden_of(m, sequence, ids, count - read - 2) != NULL)
        read++;
    return m->head ? read : count;
}

/* ---- following the text ---- */

static void roll_back(nib_draft_model *m, int64_t sequence, int64_t count)
{
    m->followers[sequence].count = nib__kv_truncate(&m->session->runner.kv, sequence, count);
}

/* How many of `wanted` tokens to read: all, or so many of the last that reading them takes at most
 * `left` seconds; 0: too few could be read. */
static int64_t affordable(const nib_draft_model *m, int64_t wanted, double left)
{
    const int64_t half = nib__max(1, m->context / 2), least = nib__min(READ_LEAST, half);
    if (wanted <= least)
        return wanted;
    int64_t read = nib__min(wanted, nib__min(READ_MOST, half));
    while (read > least && nib__draft_model_seconds(m, read) > left)
        read = nib__max(least, read * 3 / 4);
    return nib__draft_model_seconds(m, read) <= left ? read : 0;
}

/* Whether the model knows the tokens: the other model may have more padding. */
static bool knows(const nib_draft_model *m, const int32_t *ids, int64_t count)
{
    const int64_t vocab = nib_session_vocab(m->session);
    for (int64_t i = 0; i < count; i++)
        if (ids[i] >= vocab)
            return false;
    return true;
}

nib_draft nib__draft_model_follow(nib_draft_model *m, int64_t sequence, const int32_t *ids,
                                  int64_t count, int64_t room, double left)
{
    follower *f = &m->followers[sequence];
    int64_t most = nib__min(room, m->target->plan->drafts), alike = 0;
    const int64_t whole = readable(m, sequence, ids, count);
    /* the last token is always read again, for its logits */
    while (alike < f->count && (alike < f->firm || !m->head) && f->from + alike < count - 1 &&
           f->seen[alike] == ids[f->from + alike])
        alike++;
    if (alike < f->count)
        roll_back(m, sequence, alike);
    if (f->count > 0 && count - f->from + most > m->context)
        roll_back(m, sequence, 0); /* full */
    if (f->count == 0)
        f->from = 0;
    const int64_t unread = count - f->from - f->count;
    int64_t read = affordable(m, nib__min(unread, whole), left);
    if (f->from >
        0) { /* it began with the last tokens: once that costs little, read more of them */
        const int64_t more = affordable(m, whole, left / 4);
        read = more >= 2 * (count - f->from) ? more : read;
    }
    most = nib__min(most, m->context - (read == unread ? f->count : 0) - read);
    if (read == 0 || most < 0 || !knows(m, ids + count - read, read))
        most = 0;
    return (nib_draft){.rate = f->rate.accepted, .unread = read, .most = (size_t)most};
}

double nib__draft_model_seconds(const void *model, int64_t tokens)
{
    const nib_draft_model *m = model;
    nib_step_times *times = &m->session->times;
    const nib_plan *plan = m->session->plan;
    const size_t top = COUNT(times->measured) - 1;
    double seconds[COUNT(times->measured)];
    if (times->predicted[1] == 0)
        for (size_t i = 1; i <= top; i++)
            times->predicted[i] = nib__plan_step_seconds(&plan->assignment, &plan->policy,
                                                         (int64_t)i, 1, NIB_PREFILL_TOKENS);
    const size_t near = tokens < (int64_t)top ? (size_t)tokens : top;
    nib__step_times_fill(times, 1, near, seconds);
    if ((int64_t)near == tokens)
        return seconds[near];
    return seconds[near] *
           nib__plan_step_seconds(&plan->assignment, &plan->policy, tokens, 1, NIB_PREFILL_TOKENS) /
           times->predicted[near];
}

/* ---- guessing ---- */

/* The texts of a step, and how many guesses are made. */
typedef struct guessing {
    nib_draft_model *model;
    const nib_guess **texts; /* [count] */
    size_t count, made;
    const float *logits;
    nib_err *failed; /* [count] */
} guessing;

/* Appends a token of a text to its follower and to the step. hidden: what a head reads beside it.
 */
static void add_slot(nib_draft_model *m, const nib_guess *g, int32_t id, const float *hidden,
                     bool last, size_t *slots)
{
    follower *f = &m->followers[g->job->sequence];
    const uint32_t outputs = NIB_SLOT_LOGITS | (m->head ? NIB_SLOT_HIDDEN : 0);
    if (m->head)
        memcpy(m->given + *slots * (size_t)m->width, hidden, (size_t)m->width * sizeof *hidden);
    m->slots[(*slots)++] = (nib_slot){.sequence = (int32_t)g->job->sequence,
                                      .position = (int32_t)f->count,
                                      .token = id,
                                      .outputs = last ? outputs : 0};
    f->seen[f->count++] = id;
}

/* Starts again with the last tokens, if not all unread ones are to be read. */
static void add_unread(nib_draft_model *m, const nib_guess *g, size_t *slots)
{
    follower *f = &m->followers[g->job->sequence];
    const int64_t read = g->draft->unread;
    if (f->from + f->count + read != g->count) {
        roll_back(m, g->job->sequence, 0);
        f->from = g->count - read;
    }
    for (int64_t at = g->count - read; at < g->count; at++)
        add_slot(m, g, g->ids[at], m->head ? hidden_of(m, g->job->sequence, g->ids, at - 1) : NULL,
                 at + 1 == g->count, slots);
    f->firm = f->count;
    /* the guesses are rolled back together, and the last token is read again */
    nib__states_hold(&m->session->runner.kv.states, g->job->sequence, f->count - 1);
}

static void guess_tokens(void *ctx, int worker, int64_t begin, int64_t end)
{
    const guessing *s = ctx;
    const int64_t ld = nib_session_vocab(s->model->session);
    for (int64_t i = begin; i < end; i++) {
        const nib_guess *g = s->texts[i];
        nib_constraint_state *state =
            g->job->state != NULL ? s->model->followers[g->job->sequence].state : NULL;
        s->failed[i].status = NIB_OK;
        (void)nib__drawer_guess(&s->model->drawer, worker, g->job, state, g->ids,
                                g->count + (int64_t)s->made, s->logits + i * ld,
                                &g->ids[g->count + (int64_t)s->made], &s->failed[i]);
    }
}

static nib_status fail_guess(const nib_draft_model *m, const nib_err *failed, nib_err *err)
{
    return nib__fail(err, failed->status, "the draft model %s: %s", m->session->model->net.path,
                     failed->text);
}

/* One step: *seconds grows by its time. */
static nib_status run_step(guessing *s, size_t slots, double *seconds, nib_err *err)
{
    nib_draft_model *m = s->model;
    nib_step_times *times = &m->session->times;
    nib_err failed;
    const uint64_t start = nib__now_ns();
    m->session->runner.given = m->given;
    const nib_status status = nib__model_check_files(
        m->session->model,
        nib__runner_step(&m->session->runner, m->slots, slots, &s->logits, &failed), &failed);
    if (status != NIB_OK)
        return fail_guess(m, &failed, err);
    nib__pool_run(m->target->model->engine->pool, (int64_t)s->count, 1, false, guess_tokens, s);
    double taken = (double)(nib__now_ns() - start) * 1e-9;
    if (slots < COUNT(times->measured)) {
        nib__step_times_add(times, slots, taken);
        taken = times->measured[slots];
    }
    *seconds += taken;
    for (size_t i = 0; i < s->count; i++)
        if (s->failed[i].status != NIB_OK)
            return fail_guess(m, &s->failed[i], err);
    return NIB_OK;
}

/* A copy of the constraint's state, which guesses advance. */
static nib_status copy_states(nib_draft_model *m, const nib_guess *guesses, size_t count,
                              nib_err *err)
{
    for (size_t i = 0; i < count; i++) {
        const nib_job *job = guesses[i].job;
        follower *f = &m->followers[job->sequence];
        if (job->state == NULL)
            continue;
        if (f->state == NULL)
            f->state = nib__calloc(&m->target->model->engine->allocator, 1, sizeof *f->state);
        if (f->state == NULL)
            return nib__fail_memory(err, sizeof *f->state, "a constrained draft");
        nib__constraint_copy(f->state, job->state);
    }
    return NIB_OK;
}

/* Composes step s->made. A head reads a guess beside its own hidden state that it came from, in the
 * row of its text among those of the step before. */
static size_t add_texts(guessing *s, const nib_guess *guesses, size_t count)
{
    nib_draft_model *m = s->model;
    const float *hidden = m->session->runner.hidden;
    const size_t before = s->count;
    size_t slots = 0, row = 0;
    s->count = 0; /* texts that go on are a part of those before, in order */
    for (size_t i = 0; i < count; i++) {
        const nib_guess *g = &guesses[i];
        const bool guessed = row < before && s->texts[row] == g;
        const float *own = guessed && m->head ? hidden + row * (size_t)m->width : NULL;
        row += guessed;
        if (g->draft->count <= s->made)
            continue;
        if (s->made == 0)
            add_unread(m, g, &slots);
        else
            add_slot(m, g, g->ids[g->count + (int64_t)s->made - 1], own, true, &slots);
        s->texts[s->count++] = g;
    }
    return slots;
}

nib_status nib__draft_model_guess(nib_draft_model *m, const nib_guess *guesses, size_t count,
                                  double *seconds, nib_err *err)
{
    const nib_guess *texts[TEXTS_MOST];
    nib_err failed[TEXTS_MOST];
    guessing s = {.model = m, .texts = texts, .failed = failed};
    size_t slots;
    *seconds = 0;
    nib_status status = copy_states(m, guesses, count, err);
    for (; status == NIB_OK && (slots = add_texts(&s, guesses, count)) > 0; s.made++) {
        status = run_step(&s, slots, seconds, err);
        for (size_t i = 0; status == NIB_OK && i < s.count; i++)
            if (texts[i]->ids[texts[i]->count + (int64_t)s.made] < 0)
                texts[i]->draft->count = s.made;
    }
    for (size_t i = 0; status != NIB_OK && i < count; i++)
        roll_back(m, guesses[i].job->sequence, 0); /* what the cache holds is not known */
    return status;
}

void nib__draft_model_learn(nib_draft_model *m, int64_t sequence, int64_t accepted, int64_t tested,
                            bool probe)
{
    nib__draft_rate_add(&m->followers[sequence].rate, accepted, tested, probe);
    if (m->target->rate.accepted == 0)
        m->target->rate.accepted = m->followers[sequence].rate.accepted;
    nib__draft_rate_add(&m->target->rate, accepted, tested, probe);
}
