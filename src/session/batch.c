/* SPDX-License-Identifier: Apache-2.0
 *
 * Which tokens a step takes, where the tokens of each job start, how many drafted tokens it checks,
 * and what happens to the tokens it draws.
 */
#include "batch.h"

#include <math.h>

enum {
    /* Rows of logits for prompts and drafts in a step, besides one row per job: a row of 128,000 is
     * half a megabyte. */
    MORE_ROWS = 32,
    /* A prompt longer than a step leaves this part of the step to the shortest other prompt. */
    SHORT_SHARE = NIB_CHUNK / 4,
};

/* A sequence: what its cache holds, and for which job. */
typedef struct sequence {
    int32_t *tokens;   /* [context] of its job: prompt and new tokens; without a job: the cached
                          tokens */
    int64_t held;      /* in the cache */
    nib_job *job;      /* NULL: idle */
    uint64_t tenant;   /* of its last job */
    uint64_t used;     /* time of last use */
    nib_lookup lookup; /* index of its job's tokens, once the job drafts */
} sequence;

/* Chooses how many tokens of each draft a step checks, so that tokens come fastest: a drafted token
 * costs what it adds to the step, and the time of a step depends on its number of tokens, whichever
 * job they belong to. */
typedef struct drafter {
    nib_session *session; /* with the times of its steps */
    nib_draft *drafts;    /* [sequences] */
} drafter;

/* Draws the tokens of a step. */
typedef struct drawer {
    nib_session *session;
    nib_sample_work *samplers; /* [threads] */
    int threads;
    int32_t ends[NIB_EOS_MAX];
    int end_count;
} drawer;

struct nib_batch {
    nib_session *session;
    drawer drawer;
    drafter drafter;
    nib_job *jobs; /* in order of arrival */
    int64_t job_count, count;
    sequence *sequences; /* [count] */
    int64_t rows_most;
    nib_new_token *tokens; /* [rows_most] */
    nib_top_token *tops;   /* [rows_most][NIB_LOGPROBS_MOST] */
    uint64_t clock;
    nib_batch_counts counts;
    /* the current step */
    nib_slot *slots; /* [slots_most] */
    int64_t slots_most;
    size_t slot_count;
    int64_t rows;
    nib_job **stepped;   /* [count] jobs with slots in the step; NULL: ended since */
    nib_job **drawn;     /* [count] jobs with logits */
    int32_t **drawn_ids; /* [count] tokens of their sequences */
    size_t stepped_count, drawn_count;
};

_Static_assert((int)NIB_LOOKUP_MOST < (int)NIB_CACHE_SPARE, "any draft can be rolled back");

/* ---- drafts ---- */

static nib_status open_drafter(drafter *out, nib_session *session, int64_t sequences, nib_err *err)
{
    const size_t count = (size_t)sequences;
    *out = (drafter){.session = session};
    out->drafts = nib__calloc(&session->model->engine->allocator, count, sizeof *out->drafts);
    return out->drafts != NULL ? NIB_OK
                               : nib__fail_memory(err, count * sizeof *out->drafts, "drafts");
}

static void close_drafter(drafter *d)
{
    if (d->session != NULL)
        nib__release(&d->session->model->engine->allocator, d->drafts);
    *d = (drafter){0};
}

static void choose_draft_lengths(drafter *d, size_t count, size_t tokens, size_t most)
{
    nib_step_times *times = &d->session->times;
    const nib_plan *plan = d->session->plan;
    double seconds[COUNT(times->measured)];
    const size_t top = COUNT(seconds) - 1; /* the largest timed step */
    for (size_t i = 0; i < count; i++)
        d->drafts[i].count = 0;
    if (count == 0 || tokens >= top || times->measured[tokens] == 0)
        return;
    most = most < top - tokens ? most : top - tokens;
    for (size_t m = 1; m <= tokens + most; m++)
        if (times->predicted[m] == 0)
            times->predicted[m] =
                nib__plan_step_seconds(&plan->assignment, &plan->policy, (int64_t)m, (int64_t)m,
                                       (double)d->drafts[0].lookup->count);
    nib__step_times_fill(times, tokens, tokens + most, seconds);
    nib__lookup_choose(d->drafts, count, tokens, seconds, most);
}

static void add_step_time(drafter *d, size_t tokens, double seconds)
{
    nib_step_times *times = &d->session->times;
    if (tokens < COUNT(times->measured))
        nib__step_times_add(times, tokens, seconds);
}

/* ---- drawing ---- */

static void close_drawer(drawer *d)
{
    for (int i = 0; i < d->threads; i++)
        nib__sample_work_close(&d->samplers[i]);
    if (d->session != NULL)
        nib__release(&d->session->model->engine->allocator, d->samplers);
    *d = (drawer){0};
}

static nib_status open_drawer(drawer *out, nib_session *session, int64_t jobs, nib_err *err)
{
    const nib_engine *engine = session->model->engine;
    /* a single job is drawn on the calling thread */
    const int threads = jobs > 1 ? nib__pool_threads(engine->pool) : 1;
    drawer d = {.session = session};
    d.samplers = nib__calloc(&engine->allocator, (uint64_t)threads, sizeof *d.samplers);
    if (d.samplers == NULL)
        return nib__fail_memory(err, (uint64_t)threads * sizeof *d.samplers, "samplers");
    nib_status status = NIB_OK;
    for (; d.threads < threads && status == NIB_OK; d.threads += status == NIB_OK)
        status = nib__sample_work_open(&d.samplers[d.threads], nib_session_vocab(session),
                                       &engine->allocator, err);
    if (status != NIB_OK) {
        close_drawer(&d);
        return status;
    }
    d.end_count = nib__model_ends(session->model, d.ends);
    *out = d;
    return NIB_OK;
}

/* Why the CPU must draw the tokens of a job; NULL: the device may. */
static const char *why_cpu(const nib_job *job)
{
    const nib_adjust *a = &job->adjust;
    if (job->state != NULL)
        return "the tokens that a schema allows are chosen on the CPU";
    if (job->top >= 0)
        return "log-probabilities are computed on the CPU";
    if (a->bias_count > 0 || a->presence_penalty != 0 || a->frequency_penalty != 0)
        return "biases and penalties are added on the CPU";
    return NULL;
}

nib_draw_plan nib__job_draw_plan(const nib_plan *plan, const nib_job *job, nib_text *why)
{
    return nib__plan_draw(&plan->assignment, &plan->policy, nib__sampling_top_k(&job->sampling),
                          job->sampling.repeat_penalty != 1.0, why_cpu(job), why);
}

/* The likeliest tokens; ties go to the smaller id. */
static int find_tops(nib_top_token *tops, int most, const float *logits, int64_t vocab, double all)
{
    int count = 0;
    for (int64_t i = 0; i < vocab && most > 0; i++) {
        const double logprob = (double)logits[i] - all;
        if (count == most && !(logprob > tops[count - 1].logprob))
            continue;
        int at = count < most ? count++ : count - 1;
        for (; at > 0 && logprob > tops[at - 1].logprob; at--)
            tops[at] = tops[at - 1];
        tops[at] = (nib_top_token){.id = (int32_t)i, .logprob = logprob};
    }
    return count;
}

/* Fills in the log-probabilities of token t, in the model's own distribution, before any
 * adjustment. */
static void fill_logprobs(const nib_job *job, nib_new_token *t, nib_top_token *tops,
                          const float *logits, int64_t vocab)
{
    int64_t best;
    t->logprob = NAN;
    if (job->top < 0)
        return;
    const double all = nib__log_sum(logits, vocab, &best);
    t->logprob = (double)logits[t->id] - all;
    t->top = tops;
    t->top_count = find_tops(tops, job->top, logits, vocab, all);
}

static bool is_end(const drawer *d, const nib_job *job, int32_t id)
{
    for (int i = 0; i < d->end_count && !(job->ignore_ends && job->state == NULL); i++)
        if (d->ends[i] == id)
            return true;
    return false;
}

/* The tokens that a constraint allows; end tokens only if the text is complete. */
static const uint32_t *make_mask(const drawer *d, nib_job *job)
{
    const int64_t vocab = nib_session_vocab(d->session);
    if (job->state == NULL)
        return NULL;
    nib__constraint_mask(job->masks, job->state, job->allowed);
    for (int i = 0; i < d->end_count; i++) {
        const uint32_t bit = UINT32_C(1) << d->ends[i] % 32;
        uint32_t *word = &job->allowed[d->ends[i] / 32];
        if (d->ends[i] < vocab)
            *word = nib__constraint_complete(job->state) ? *word | bit : *word & ~bit;
    }
    return job->allowed;
}

/* Advances the constraint by a drawn token. */
static void advance_constraint(nib_job *job, nib_new_token *t)
{
    if (job->state == NULL || t->end)
        return;
    if (nib__constraint_accept(job->state, t->id))
        t->last = nib__constraint_ended(job->state);
    else
        nib__fail(&job->failed, NIB_FAILED,
                  "no token can continue the text in the response format");
}

/* Draws the token after `count` tokens of the job, from a row of logits in host memory. */
static nib_status draw_on_cpu(const drawer *d, nib_sample_work *sampler, nib_job *job,
                              const int32_t *tokens, int64_t count, const float *logits,
                              nib_new_token *t)
{
    nib_adjust adjust = job->adjust;
    adjust.made = tokens + job->prompt_count;
    adjust.made_count = (size_t)(count - job->prompt_count);
    adjust.allowed = make_mask(d, job);
    return nib__sample(&t->id, sampler, nib__sample_adjust(sampler, logits, &adjust),
                       &job->sampling, tokens, (size_t)count, job->choice, count, &job->failed);
}

/* The same on the device. */
static nib_status draw_on_device(const drawer *d, nib_job *job, int64_t count, int64_t row,
                                 nib_new_token *t)
{
    int32_t drawn;
    const nib_draw draw =
        nib__sampling_draw(&job->sampling, nib_session_vocab(d->session), job->choice, count);
    NIB_TRY(nib__runner_draw(&d->session->runner, job->device_sampler, draw, row, &drawn,
                             &job->failed));
    return nib__sampling_token(&t->id, drawn, count, &job->failed);
}

/* Draws the tokens of a job, each from logits preceded only by accepted tokens: continues as long
 * as the drawn token equals the drafted one. */
static void draw_job(const drawer *d, nib_sample_work *sampler, nib_job *job, const int32_t *tokens,
                     const float *logits)
{
    const int64_t vocab = nib_session_vocab(d->session);
    job->failed.status = NIB_OK;
    for (int64_t i = 0; i < job->rows; i++) {
        const int64_t next = job->first + i + 1; /* position of the drawn token */
        const float *row = logits != NULL ? logits + (job->row + i) * vocab : NULL;
        nib_new_token *t = &job->tokens[i];
        *t = (nib_new_token){.of_prompt = next < job->prompt_count, .logprob = NAN};
        if (t->of_prompt) {
            t->id = tokens[next];
        } else {
            const nib_status status = row != NULL
                                          ? draw_on_cpu(d, sampler, job, tokens, next, row, t)
                                          : draw_on_device(d, job, next, job->row + i, t);
            if (status == NIB_OK) {
                t->end = is_end(d, job, t->id);
                advance_constraint(job, t);
            }
            const bool continues = job->failed.status == NIB_OK && !t->end && !t->last;
            if (i + 1 < job->rows && (!continues || tokens[next] != t->id))
                job->rows = i + 1; /* the rest of the draft is wrong */
        }
        if (job->failed.status == NIB_OK && row != NULL)
            fill_logprobs(job, t, job->tops + i * NIB_LOGPROBS_MOST, row, vocab);
    }
}

typedef struct drawing {
    const drawer *drawer;
    nib_job *const *jobs;
    int32_t *const *tokens;
    const float *logits;
} drawing;

static void draw_jobs(void *ctx, int worker, int64_t begin, int64_t end)
{
    const drawing *a = ctx;
    for (int64_t j = begin; j < end; j++)
        draw_job(a->drawer, &a->drawer->samplers[worker], a->jobs[j], a->tokens[j], a->logits);
}

static void draw_tokens(drawer *d, nib_job *const *jobs, int32_t *const *tokens, size_t count,
                        const float *logits)
{
    drawing a = {d, jobs, tokens, logits};
    if (logits == NULL) /* only one thread may use a device */
        draw_jobs(&a, 0, 0, (int64_t)count);
    else
        nib__pool_run(d->session->model->engine->pool, (int64_t)count, 1, false, draw_jobs, &a);
}

/* ---- the batch ---- */

/* Rolls a sequence back to `positions`: by a draft, or to 0. */
static void roll_back(nib_batch *b, int64_t which, int64_t positions)
{
    b->sequences[which].held = nib__kv_truncate(&b->session->runner.kv, which, positions);
}

/* ---- opening ---- */

static nib_status allocate(nib_batch *b, nib_err *err)
{
    const nib_allocator *a = &b->session->model->engine->allocator;
    const size_t count = (size_t)b->count, context = (size_t)b->session->plan->context;
    bool whole = true;
    b->sequences = nib__calloc(a, count, sizeof *b->sequences);
    for (size_t i = 0; b->sequences != NULL && i < count; i++) {
        b->sequences[i].tokens = nib__calloc(a, context, sizeof(int32_t));
        whole = whole && b->sequences[i].tokens != NULL;
    }
    b->slots = nib__calloc(a, (uint64_t)b->slots_most, sizeof *b->slots);
    b->tokens = nib__calloc(a, (uint64_t)b->rows_most, sizeof *b->tokens);
    b->tops = nib__calloc(a, (uint64_t)b->rows_most * NIB_LOGPROBS_MOST, sizeof *b->tops);
    b->stepped = nib__calloc(a, count, sizeof(nib_job *));
    b->drawn = nib__calloc(a, count, sizeof(nib_job *));
    b->drawn_ids = nib__calloc(a, count, sizeof(int32_t *));
    whole = whole && b->sequences && b->slots && b->tokens && b->tops;
    if (whole && b->stepped && b->drawn && b->drawn_ids)
        return NIB_OK;
    return nib__fail_memory(err, count * context * sizeof(int32_t), "a batch");
}

nib_status nib__batch_open(nib_batch **out, nib_session *session, int64_t sequences, nib_err *err)
{
    const nib_allocator *a = &session->model->engine->allocator;
    NIB_TRY(nib__session_check_idle(session, err));
    nib_batch *b = nib__calloc(a, 1, sizeof *b);
    if (b == NULL)
        return nib__fail_memory(err, sizeof *b, "a batch");
    session->in_use = true;
    b->session = session;
    b->count = sequences;
    b->rows_most = b->count + nib__max(MORE_ROWS, session->plan->lookup);
    /* one token per job, and prompts always make progress besides */
    b->slots_most = nib__max(NIB_CHUNK, b->count + SHORT_SHARE);
    nib_status status = allocate(b, err);
    if (status == NIB_OK)
        status = open_drawer(&b->drawer, session, b->count, err);
    if (status == NIB_OK)
        status = open_drafter(&b->drafter, session, b->count, err);
    if (status != NIB_OK) {
        nib__batch_close(b);
        return status;
    }
    for (int64_t i = 0; i < b->count; i++)
        roll_back(b, i, 0);
    *out = b;
    return NIB_OK;
}

void nib__batch_close(nib_batch *b)
{
    if (b == NULL)
        return;
    const nib_allocator *a = &b->session->model->engine->allocator;
    b->session->in_use = false;
    close_drawer(&b->drawer);
    close_drafter(&b->drafter);
    for (int64_t i = 0; b->sequences != NULL && i < b->count; i++) {
        nib__lookup_close(&b->sequences[i].lookup);
        nib__release(a, b->sequences[i].tokens);
    }
    nib__release(a, b->sequences);
    nib__release(a, b->slots);
    nib__release(a, b->tokens);
    nib__release(a, b->tops);
    nib__release(a, b->stepped);
    nib__release(a, b->drawn);
    nib__release(a, b->drawn_ids);
    nib__release(a, b);
}

/* ---- jobs ---- */

int64_t nib__batch_room(const nib_batch *b) { return b->count - b->job_count; }

void nib__batch_add(nib_batch *b, nib_job *job)
{
    nib_job **last = &b->jobs;
    while (*last != NULL)
        last = &(*last)->next;
    *last = job;
    job->next = NULL;
    job->sequence = -1;
    job->done = job->cached = job->made = job->steps = 0;
    job->draft = job->drafted = job->accepted = 0;
    const nib_draw_plan draw = nib__job_draw_plan(b->session->plan, job, NULL);
    job->device_sampler = draw.row != NULL && draw.row->gpu != NULL ? draw.row : NULL;
    b->job_count++;
}

void nib__batch_remove(nib_batch *b, nib_job *job)
{
    nib_job **at = &b->jobs;
    while (*at != NULL && *at != job)
        at = &(*at)->next;
    if (*at == NULL)
        return;
    *at = job->next;
    b->job_count--;
    if (job->sequence < 0)
        return;
    sequence *s = &b->sequences[job->sequence];
    s->job = NULL;
    s->used = ++b->clock;
    nib__lookup_close(&s->lookup);
}

nib_status nib__job_constrain(nib_job *job, const nib_session *session, const nib_constraint *c,
                              nib_err *err)
{
    const nib_allocator *a = &session->model->engine->allocator;
    const size_t words = ((size_t)nib_session_vocab(session) + 31) / 32;
    job->state = nib__calloc(a, 1, sizeof *job->state);
    job->allowed = nib__calloc(a, words, sizeof *job->allowed);
    const nib_status status =
        job->state == NULL || job->allowed == NULL
            ? nib__fail_memory(err, words * sizeof *job->allowed, "a constrained text")
            : nib__masks_open(&job->masks, c, a, err);
    if (status == NIB_OK)
        nib__constraint_start(job->state, c);
    else
        nib__job_release(job, session);
    return status;
}

void nib__job_release(nib_job *job, const nib_session *session)
{
    const nib_allocator *a = &session->model->engine->allocator;
    nib__masks_close(job->masks);
    nib__release(a, job->state);
    nib__release(a, job->allowed);
    job->masks = NULL;
    job->state = NULL;
    job->allowed = NULL;
}

/* The job's memory may be freed when this returns. */
static void end_job(nib_batch *b, nib_job *job, nib_finish finish, const nib_err *err)
{
    nib__batch_remove(b, job);
    for (size_t j = 0; j < b->stepped_count; j++)
        if (b->stepped[j] == job)
            b->stepped[j] = NULL;
    job->calls.end(job->ctx, finish, err);
}

/* ---- where a job starts ---- */

/* How many of the first `count` tokens equal the prompt. The last token of a prompt always runs,
 * for its logits; with prompt_logprobs every token runs. */
static int64_t common_prefix(const nib_job *job, const int32_t *tokens, int64_t count)
{
    const int64_t most = job->prompt_logprobs ? 0 : nib__min(count, job->prompt_count - 1);
    int64_t i = 0;
    while (i < most && tokens[i] == job->prompt[i])
        i++;
    return i;
}

/* The sequence that caches the longest prefix of the prompt from which its windows still allow
 * continuing. */
static int64_t find_source(const nib_batch *b, const nib_job *job, int64_t *shared)
{
    int64_t best = -1;
    *shared = 0;
    for (int64_t i = 0; i < b->count; i++) {
        const sequence *s = &b->sequences[i];
        const int64_t alike = s->tenant == job->tenant ? common_prefix(job, s->tokens, s->held) : 0;
        const int64_t usable = nib__kv_cut(&b->session->runner.kv, i, alike);
        const bool idle = s->job == NULL;
        if (usable > *shared ||
            (usable == *shared && usable > 0 && idle && b->sequences[best].job)) {
            *shared = usable;
            best = i;
        }
    }
    return best;
}

/* Whether an earlier job will soon cache more of the prompt, by at least a block, than any sequence
 * does now. */
static bool must_wait(const nib_batch *b, const nib_job *job, int64_t shared)
{
    for (const nib_job *other = b->jobs; other != job; other = other->next) {
        const int64_t same = other->tenant == job->tenant
                                 ? common_prefix(job, other->prompt, other->prompt_count)
                                 : 0;
        if (other->done < same && same >= shared + NIB_CACHE_BLOCK)
            return true;
    }
    return false;
}

/* The least recently used idle sequence. */
static int64_t find_idle(const nib_batch *b)
{
    int64_t best = -1;
    for (int64_t i = 0; i < b->count; i++)
        if (b->sequences[i].job == NULL &&
            (best < 0 || b->sequences[i].used < b->sequences[best].used))
            best = i;
    return best;
}

/* Gives the job a sequence: the source itself if it is idle and the job continues from at least
 * half of its cache, or if the source would be reused anyway; else the least recently used one,
 * which shares the source's blocks, so the source keeps its cache. */
static void start_job(nib_batch *b, nib_job *job, int64_t source, int64_t shared)
{
    nib_kv *kv = &b->session->runner.kv;
    int64_t taken = find_idle(b);
    if (source >= 0 && b->sequences[source].job == NULL &&
        (2 * shared >= b->sequences[source].held || taken == source)) {
        taken = source;
        shared = nib__kv_keep(kv, taken, shared);
    } else {
        shared = source < 0 ? 0 : nib__kv_cut(kv, source, nib__round_down(shared, NIB_CACHE_BLOCK));
        nib__kv_truncate(kv, taken, 0);
        if (shared > 0)
            nib__kv_share(kv, source, taken, shared);
    }
    sequence *s = &b->sequences[taken];
    nib__lookup_open(&s->lookup, &b->session->model->engine->allocator);
    memcpy(s->tokens, job->prompt, (size_t)job->prompt_count * sizeof *s->tokens);
    s->held = shared;
    s->job = job;
    s->tenant = job->tenant;
    job->sequence = taken;
    job->done = job->cached = shared;
    b->counts.reused += shared;
}

/* ---- composing a step ---- */

static bool is_reading(const nib_job *job) { return job->done < job->prompt_count; }

static int64_t prompt_left(const nib_job *job) { return job->prompt_count - job->done; }

/* Whether the job needs the logits at this position. */
static bool wants_logits(const nib_job *job, int64_t position)
{
    return position + 1 < job->prompt_count ? job->prompt_logprobs : job->max_tokens > 0;
}

/* Adds the next `count` tokens of a job, as long as rows of logits are left. */
static void add_slots(nib_batch *b, nib_job *job, int64_t count)
{
    const sequence *s = &b->sequences[job->sequence];
    job->row = b->rows;
    job->rows = 0;
    int64_t taken = 0;
    for (; taken < count; taken++) {
        const int64_t position = job->done + taken;
        const bool logits = wants_logits(job, position);
        if (logits && b->rows == b->rows_most)
            break;
        if (logits && job->rows++ == 0)
            job->first = position;
        b->rows += logits;
        b->slots[b->slot_count++] = (nib_slot){.sequence = (int32_t)job->sequence,
                                               .position = (int32_t)position,
                                               .token = s->tokens[position],
                                               .outputs = logits ? NIB_SLOT_LOGITS : 0};
    }
    if (taken == 0)
        return;
    b->stepped[b->stepped_count++] = job;
    if (job->rows == 0)
        return;
    job->tokens = b->tokens + job->row;
    job->tops = b->tops + job->row * NIB_LOGPROBS_MOST;
    b->drawn_ids[b->drawn_count] = s->tokens;
    b->drawn[b->drawn_count++] = job;
}

static bool can_read(nib_batch *b, nib_job *job)
{
    int64_t shared;
    if (!is_reading(job))
        return false;
    if (job->sequence >= 0)
        return true;
    const int64_t source = find_source(b, job, &shared);
    if (must_wait(b, job, shared))
        return false;
    start_job(b, job, source, shared);
    return true;
}

/* The job after `first` with the shortest rest of its prompt; NULL: none can read. */
static nib_job *find_shortest(nib_batch *b, nib_job *first)
{
    nib_job *found = NULL;
    for (nib_job *job = first->next; job != NULL; job = job->next)
        if (can_read(b, job) && (found == NULL || prompt_left(job) < prompt_left(found)))
            found = job;
    return found;
}

/* Prompts in order of arrival, but a long prompt does not keep short ones waiting. */
static void add_prompts(nib_batch *b)
{
    nib_job *early = NULL; /* read before its turn */
    bool first = true;
    for (nib_job *job = b->jobs; job != NULL && (int64_t)b->slot_count < b->slots_most;
         job = job->next) {
        int64_t room = b->slots_most - (int64_t)b->slot_count;
        if (job == early || !can_read(b, job))
            continue;
        if (first && prompt_left(job) > room && (early = find_shortest(b, job)) != NULL) {
            const int64_t share = nib__min(nib__min(SHORT_SHARE, room), prompt_left(early));
            add_slots(b, early, share);
            room -= share;
        }
        first = false;
        add_slots(b, job, nib__min(room, prompt_left(job)));
    }
}

/* Most tokens of a job's draft, besides the one token that every step draws. */
static int64_t draft_room(const nib_batch *b, const nib_job *job)
{
    const int64_t context = b->session->plan->context - job->prompt_count - job->made - 1;
    const int64_t limit = job->max_tokens - job->made - 1;
    return nib__max(0, nib__min(job->lookup, nib__min(context, limit)));
}

/* Makes drafts when all `count` jobs of the batch are generating. A job whose index cannot be
 * allocated ends. */
static void choose_drafts(nib_batch *b, int64_t count)
{
    nib_draft *drafts = b->drafter.drafts;
    nib_err err;
    size_t asked = 0;
    for (nib_job *job = b->jobs, *next; job != NULL; job = next) {
        sequence *s = &b->sequences[job->sequence];
        const int64_t tokens = job->prompt_count + job->made;
        next = job->next;
        if (job->lookup == 0)
            continue;
        if (nib__lookup_put(&s->lookup, s->tokens, (size_t)tokens, &err) != NIB_OK) {
            count--;
            end_job(b, job, NIB_FINISH_STOP, &err);
            continue;
        }
        drafts[asked++] =
            (nib_draft){.lookup = &s->lookup, .ids = s->tokens, .most = (size_t)draft_room(b, job)};
    }
    choose_draft_lengths(&b->drafter, asked, (size_t)count, (size_t)(b->rows_most - b->count));
    for (nib_job *job = b->jobs; job != NULL; job = job->next)
        if (job->lookup > 0)
            job->draft = (int64_t)(drafts++)->count;
}

static void compose_step(nib_batch *b)
{
    int64_t generating = 0;
    b->slot_count = b->stepped_count = b->drawn_count = 0;
    b->rows = 0;
    for (nib_job *job = b->jobs; job != NULL; job = job->next) {
        job->rows = job->draft = 0;
        generating += !is_reading(job);
    }
    if (generating == b->job_count) /* reading a prompt decides a step's time: no drafts then */
        choose_drafts(b, generating);
    for (nib_job *job = b->jobs; job != NULL; job = job->next) {
        if (is_reading(job))
            continue;
        add_slots(b, job, 1 + job->draft);
        job->steps++;
        job->drafted += job->draft;
        b->counts.drafted += job->draft;
    }
    add_prompts(b);
}

/* ---- after a step ---- */

/* True if the job continues. */
static bool accept_token(nib_batch *b, nib_job *job, const nib_new_token *t)
{
    const int64_t context = b->session->plan->context;
    const bool wants_more = job->calls.token(job->ctx, t);
    if (t->of_prompt) {
        if (!wants_more)
            end_job(b, job, NIB_FINISH_STOP, NULL);
        return wants_more;
    }
    b->counts.made++;
    job->made++;
    if (!wants_more || t->end || t->last) {
        end_job(b, job, NIB_FINISH_STOP, NULL);
        return false;
    }
    const int64_t count = job->prompt_count + job->made;
    if (job->made == job->max_tokens || count > context - 1) {
        end_job(b, job, job->made == job->max_tokens ? NIB_FINISH_LENGTH : NIB_FINISH_CONTEXT,
                NULL);
        return false;
    }
    b->sequences[job->sequence].tokens[count - 1] = t->id;
    return true;
}

/* Hands out the drawn tokens, then rolls the cache back to the accepted ones. */
static void hand_out_tokens(nib_batch *b)
{
    for (size_t j = 0; j < b->drawn_count; j++) {
        nib_job *job = b->drawn[j];
        const int64_t which = job->sequence, first = job->first, rows = job->rows;
        const bool drafted = job->draft > 0;
        bool continues = true;
        int64_t i = 0;
        for (; continues && i < rows; i++) {
            b->counts.accepted += i > 0 && drafted;
            job->accepted += i > 0 && drafted;
            continues = i + 1 < rows || job->failed.status == NIB_OK;
            if (continues)
                continues = accept_token(b, job, &job->tokens[i]);
            else
                end_job(b, job, NIB_FINISH_STOP, &job->failed);
        }
        if (drafted)
            roll_back(b, which, first + i);
        if (drafted && continues)
            job->done = first + i;
    }
}

static void fail_all(nib_batch *b, const nib_err *err)
{
    for (size_t j = 0; j < b->stepped_count; j++)
        if (b->stepped[j] != NULL)
            end_job(b, b->stepped[j], NIB_FINISH_STOP, err);
}

/* Counts the step's slots as cached. */
static void advance_sequences(nib_batch *b)
{
    for (size_t i = 0; i < b->slot_count; i++) {
        sequence *s = &b->sequences[b->slots[i].sequence];
        const bool reading = is_reading(s->job);
        s->held++;
        s->job->done++;
        b->counts.prefilled += reading;
    }
}

/* Ends jobs that only run a prompt and have run it. */
static void end_prompt_jobs(nib_batch *b)
{
    for (size_t j = 0; j < b->stepped_count; j++) {
        nib_job *job = b->stepped[j];
        if (job != NULL && job->max_tokens == 0 && !is_reading(job))
            end_job(b, job, NIB_FINISH_LENGTH, NULL);
    }
}

/* Whether this step's tokens are drawn on the device, which keeps the logits of one pass only. */
static bool can_draw_on_device(const nib_batch *b)
{
    for (size_t j = 0; j < b->drawn_count; j++)
        if (b->drawn[j]->device_sampler == NULL)
            return false;
    return b->drawn_count > 0 && b->slot_count <= NIB_CHUNK;
}

nib_status nib__batch_step(nib_batch *b, nib_err *err)
{
    nib_runner *runner = &b->session->runner;
    const float *logits = NULL;
    nib_err failed;
    compose_step(b);
    if (b->slot_count == 0)
        return NIB_OK;
    const uint64_t start = nib__now_ns();
    const bool on_device = can_draw_on_device(b),
               reads = is_reading(b->stepped[b->stepped_count - 1]);
    runner->keeps_logits = on_device;
    const nib_status status = nib__model_check_files(
        b->session->model, nib__runner_step(runner, b->slots, b->slot_count, &logits, &failed),
        &failed);
    runner->keeps_logits = false;
    if (status != NIB_OK) {
        fail_all(b, &failed);
        if (err != NULL)
            *err = failed;
        return status;
    }
    if (!reads)
        add_step_time(&b->drafter, b->slot_count, (double)(nib__now_ns() - start) * 1e-9);
    b->counts.steps++;
    advance_sequences(b);
    draw_tokens(&b->drawer, b->drawn, b->drawn_ids, b->drawn_count, on_device ? NULL : logits);
    hand_out_tokens(b);
    end_prompt_jobs(b);
    return NIB_OK;
}

nib_batch_counts nib__batch_counts(const nib_batch *b)
{
    const nib_kv *kv = &b->session->runner.kv;
    nib_batch_counts c = b->counts;
    c.jobs = b->job_count;
    c.sequences = b->count;
    c.blocks = nib__kv_blocks(kv);
    c.blocks_used = nib__kv_used_blocks(kv);
    return c;
}
