/* SPDX-License-Identifier: Apache-2.0
 *
 * Which tokens a step takes, where each job's begin, and what becomes of what was drawn.
 */
#include "batch.h"

enum {
    /* Logits that a step gives of prompts and drafts, beside one row of each job: a row of 128,000
     * is half a megabyte. */
    MORE_ROWS = 32,
    /* A prompt longer than a step leaves this part of it to the shortest of the others. */
    SHORT_SHARE = NIB_CHUNK / 4,
};

/* What the cache holds of a sequence, and for whom. */
typedef struct sequence {
    int32_t *tokens;   /* [context] of its job: prompt and new ones; else of what it holds */
    int64_t held;      /* in the cache */
    nib_job *job;      /* NULL: nobody's */
    uint64_t tenant;   /* of the job that had it last */
    uint64_t used;     /* when */
    nib_lookup lookup; /* of its job's tokens, once some are drafted */
} sequence;

struct nib_batch {
    nib_session *session;
    nib_drawer drawer;
    nib_drafter drafter;
    nib_job *jobs; /* in the order in which they came */
    int64_t job_count, count;
    sequence *sequences; /* [count] */
    int64_t rows_most;
    nib_new_token *tokens; /* [rows_most] */
    nib_top_token *tops;   /* [rows_most][NIB_LOGPROBS_MOST] */
    uint64_t clock;
    nib_batch_counts counts;
    /* of a step */
    nib_slot *slots; /* [slots_most] */
    int64_t slots_most;
    size_t slot_count;
    int64_t rows;
    nib_job **stepped;   /* [count] jobs with slots in it; NULL: ended meanwhile */
    nib_job **drawn;     /* [count] those with logits */
    int32_t **drawn_ids; /* [count] the tokens of their sequences */
    size_t stepped_count, drawn_count;
};

_Static_assert((int)NIB_LOOKUP_MOST < (int)NIB_CACHE_SPARE, "what was drafted can be cut off");

/* Cuts a sequence back to so many positions: by a draft, or all. */
static void cut(nib_batch *b, int64_t which, int64_t positions)
{
    b->sequences[which].held = nib__kv_truncate(&b->session->runner.kv, which, positions);
}

/* ---- opening ---- */

static nib_status take_memory(nib_batch *b, nib_err *err)
{
    const nib_allocator *a = &b->session->model->engine->allocator;
    const size_t count = (size_t)b->count, context = (size_t)b->session->plan->context;
    bool whole = true;
    b->sequences = nib__calloc(a, count, sizeof *b->sequences);
    for (size_t i = 0; b->sequences != NULL && i < count; i++) {
        b->sequences[i].tokens = nib__calloc(a, context, sizeof(int32_t));
        whole = whole && b->sequences[i].tokens != NULL;
    }
    b->slots = nib__calloc(a, (size_t)b->slots_most, sizeof *b->slots);
    b->tokens = nib__calloc(a, (size_t)b->rows_most, sizeof *b->tokens);
    b->tops = nib__calloc(a, (size_t)b->rows_most * NIB_LOGPROBS_MOST, sizeof *b->tops);
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
    nib_batch *b = nib__calloc(a, 1, sizeof *b);
    if (b == NULL)
        return nib__fail_memory(err, sizeof *b, "a batch");
    b->session = session;
    b->count = sequences;
    b->rows_most = b->count + nib__max(MORE_ROWS, session->plan->lookup);
    /* a token of each, and prompts go on beside them however many there are */
    b->slots_most = nib__max(NIB_CHUNK, b->count + SHORT_SHARE);
    nib_status status = take_memory(b, err);
    if (status == NIB_OK)
        status = nib__drawer_open(&b->drawer, session, b->count, err);
    if (status == NIB_OK)
        status = nib__drafter_open(&b->drafter, session, b->count, err);
    if (status != NIB_OK) {
        nib__batch_close(b);
        return status;
    }
    for (int64_t i = 0; i < b->count; i++)
        cut(b, i, 0);
    *out = b;
    return NIB_OK;
}

void nib__batch_close(nib_batch *b)
{
    if (b == NULL)
        return;
    const nib_allocator *a = &b->session->model->engine->allocator;
    nib__drawer_close(&b->drawer);
    nib__drafter_close(&b->drafter);
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
    job->there = draw.row != NULL && draw.row->gpu != NULL ? draw.row : NULL;
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

/* The job's memory may be gone after this. */
static void end(nib_batch *b, nib_job *job, nib_finish finish, const nib_err *err)
{
    nib__batch_remove(b, job);
    for (size_t j = 0; j < b->stepped_count; j++)
        if (b->stepped[j] == job)
            b->stepped[j] = NULL;
    job->calls.end(job->ctx, finish, err);
}

/* ---- where a job begins ---- */

/* How much of the prompt the first `count` tokens are; the last token of a prompt always runs, as
 * its logits are wanted, and where those of all are, all of them do. */
static int64_t common(const nib_job *job, const int32_t *tokens, int64_t count)
{
    const int64_t most = job->prompt_logprobs ? 0 : nib__min(count, job->prompt_count - 1);
    int64_t i = 0;
    while (i < most && tokens[i] == job->prompt[i])
        i++;
    return i;
}

/* The sequence that holds the most of the prompt, as far as its windows let it go on from there. */
static int64_t find_source(const nib_batch *b, const nib_job *job, int64_t *shared)
{
    int64_t best = -1;
    *shared = 0;
    for (int64_t i = 0; i < b->count; i++) {
        const sequence *s = &b->sequences[i];
        const int64_t alike = s->tenant == job->tenant ? common(job, s->tokens, s->held) : 0;
        const int64_t same = nib__kv_cut(&b->session->runner.kv, i, alike);
        const bool idle = s->job == NULL;
        if (same > *shared || (same == *shared && same > 0 && idle && b->sequences[best].job)) {
            *shared = same;
            best = i;
        }
    }
    return best;
}

/* Will a job that came earlier soon hold more of the prompt, in whole blocks, than any does now? */
static bool waits(const nib_batch *b, const nib_job *job, int64_t shared)
{
    for (const nib_job *other = b->jobs; other != job; other = other->next) {
        const int64_t same =
            other->tenant == job->tenant ? common(job, other->prompt, other->prompt_count) : 0;
        if (other->done < same && same >= shared + NIB_CACHE_BLOCK)
            return true;
    }
    return false;
}

/* Nobody's sequence that was not used for longest. */
static int64_t find_idle(const nib_batch *b)
{
    int64_t best = -1;
    for (int64_t i = 0; i < b->count; i++)
        if (b->sequences[i].job == NULL &&
            (best < 0 || b->sequences[i].used < b->sequences[best].used))
            best = i;
    return best;
}

/* Takes a sequence: the source itself if the job goes on from most of it, which leaves the others
 * what they hold; else one that begins with the source's blocks. */
static void begin(nib_batch *b, nib_job *job, int64_t source, int64_t shared)
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

/* ---- what a step takes ---- */

static bool is_reading(const nib_job *job) { return job->done < job->prompt_count; }

static int64_t left(const nib_job *job) { return job->prompt_count - job->done; }

/* Whether the logits behind this position are wanted. */
static bool wanted(const nib_job *job, int64_t position)
{
    return position + 1 < job->prompt_count ? job->prompt_logprobs : job->max_tokens > 0;
}

/* The next `count` tokens of a job, as far as rows of logits go. */
static void add_slots(nib_batch *b, nib_job *job, int64_t count)
{
    const sequence *s = &b->sequences[job->sequence];
    job->row = b->rows;
    job->rows = 0;
    int64_t taken = 0;
    for (; taken < count; taken++) {
        const int64_t position = job->done + taken;
        const bool logits = wanted(job, position);
        if (logits && b->rows == b->rows_most)
            break;
        if (logits && job->rows++ == 0)
            job->first = position;
        b->rows += logits;
        b->slots[b->slot_count++] = (nib_slot){.sequence = (int32_t)job->sequence,
                                               .position = (int32_t)position,
                                               .token = s->tokens[position],
                                               .logits = logits};
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
    if (waits(b, job, shared))
        return false;
    begin(b, job, source, shared);
    return true;
}

/* The job with the least left to read among those behind `first`; NULL: none may. */
static nib_job *find_short(nib_batch *b, nib_job *first)
{
    nib_job *found = NULL;
    for (nib_job *job = first->next; job != NULL; job = job->next)
        if (can_read(b, job) && (found == NULL || left(job) < left(found)))
            found = job;
    return found;
}

/* Prompts in the order in which they came; but a long one does not keep short ones waiting. */
static void add_prompts(nib_batch *b)
{
    nib_job *early = NULL; /* read ahead of its turn */
    bool first = true;
    for (nib_job *job = b->jobs; job != NULL && (int64_t)b->slot_count < b->slots_most;
         job = job->next) {
        int64_t room = b->slots_most - (int64_t)b->slot_count;
        if (job == early || !can_read(b, job))
            continue;
        if (first && left(job) > room && (early = find_short(b, job)) != NULL) {
            const int64_t share = nib__min(nib__min(SHORT_SHARE, room), left(early));
            add_slots(b, early, share);
            room -= share;
        }
        first = false;
        add_slots(b, job, nib__min(room, left(job)));
    }
}

/* What a draft of a job may have besides the token that comes in any case. */
static int64_t draft_room(const nib_batch *b, const nib_job *job)
{
    const int64_t context = b->session->plan->context - job->prompt_count - job->made - 1;
    const int64_t wanted = job->max_tokens - job->made - 1;
    return nib__max(0, nib__min(job->lookup, nib__min(context, wanted)));
}

/* Drafts of jobs [count] that are making text, which all that are in the batch are. A job whose
 * index has no memory ends. */
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
            end(b, job, NIB_FINISH_STOP, &err);
            continue;
        }
        drafts[asked++] =
            (nib_draft){.lookup = &s->lookup, .ids = s->tokens, .most = (size_t)draft_room(b, job)};
    }
    nib__drafter_choose(&b->drafter, asked, (size_t)count, (size_t)(b->rows_most - b->count));
    for (nib_job *job = b->jobs; job != NULL; job = job->next)
        if (job->lookup > 0)
            job->draft = (int64_t)(drafts++)->count;
}

static void compose(nib_batch *b)
{
    int64_t making = 0;
    b->slot_count = b->stepped_count = b->drawn_count = 0;
    b->rows = 0;
    for (nib_job *job = b->jobs; job != NULL; job = job->next) {
        job->rows = job->draft = 0;
        making += !is_reading(job);
    }
    if (making == b->job_count) /* a step that reads a prompt takes its time from that */
        choose_drafts(b, making);
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

/* ---- what becomes of it ---- */

/* True: the job goes on. */
static bool take_token(nib_batch *b, nib_job *job, const nib_new_token *t)
{
    const int64_t context = b->session->plan->context;
    const bool on = job->calls.token(job->ctx, t);
    if (t->of_prompt) {
        if (!on)
            end(b, job, NIB_FINISH_STOP, NULL);
        return on;
    }
    b->counts.made++;
    job->made++;
    if (!on || t->end || t->last) {
        end(b, job, NIB_FINISH_STOP, NULL);
        return false;
    }
    const int64_t count = job->prompt_count + job->made;
    if (job->made == job->max_tokens || count > context - 1) {
        end(b, job, job->made == job->max_tokens ? NIB_FINISH_LENGTH : NIB_FINISH_CONTEXT, NULL);
        return false;
    }
    b->sequences[job->sequence].tokens[count - 1] = t->id;
    return true;
}

/* Hands out what was drawn; of the cache then stays what is right. */
static void take_all(nib_batch *b)
{
    for (size_t j = 0; j < b->drawn_count; j++) {
        nib_job *job = b->drawn[j];
        const int64_t which = job->sequence, first = job->first, rows = job->rows;
        const bool drafted = job->draft > 0;
        bool on = true;
        int64_t i = 0;
        for (; on && i < rows; i++) {
            b->counts.accepted += i > 0 && drafted;
            job->accepted += i > 0 && drafted;
            on = i + 1 < rows || job->failed.status == NIB_OK;
            if (on)
                on = take_token(b, job, &job->tokens[i]);
            else
                end(b, job, NIB_FINISH_STOP, &job->failed);
        }
        if (drafted)
            cut(b, which, first + i);
        if (drafted && on)
            job->done = first + i;
    }
}

static void fail_all(nib_batch *b, const nib_err *err)
{
    for (size_t j = 0; j < b->stepped_count; j++)
        if (b->stepped[j] != NULL)
            end(b, b->stepped[j], NIB_FINISH_STOP, err);
}

/* The slots are in the cache. */
static void move_on(nib_batch *b)
{
    for (size_t i = 0; i < b->slot_count; i++) {
        sequence *s = &b->sequences[b->slots[i].sequence];
        const bool reading = is_reading(s->job);
        s->held++;
        s->job->done++;
        b->counts.prefilled += reading;
    }
}

/* Jobs of which nothing but the prompt was asked, and that has run. */
static void end_read(nib_batch *b)
{
    for (size_t j = 0; j < b->stepped_count; j++) {
        nib_job *job = b->stepped[j];
        if (job != NULL && job->max_tokens == 0 && !is_reading(job))
            end(b, job, NIB_FINISH_LENGTH, NULL);
    }
}

/* Are the tokens of this step drawn on the device? There are logits of one pass. */
static bool draws_there(const nib_batch *b)
{
    for (size_t j = 0; j < b->drawn_count; j++)
        if (b->drawn[j]->there == NULL)
            return false;
    return b->drawn_count > 0 && b->slot_count <= NIB_CHUNK;
}

nib_status nib__batch_step(nib_batch *b, nib_err *err)
{
    nib_runner *runner = &b->session->runner;
    const float *logits;
    nib_err own;
    compose(b);
    if (b->slot_count == 0)
        return NIB_OK;
    const uint64_t start = nib__now_ns();
    const bool there = draws_there(b), reads = is_reading(b->stepped[b->stepped_count - 1]);
    runner->keeps_logits = there;
    const nib_status status = nib__model_read(
        b->session->model, nib__runner_step(runner, b->slots, b->slot_count, &logits, &own), &own);
    runner->keeps_logits = false;
    if (status != NIB_OK) {
        fail_all(b, &own);
        if (err != NULL)
            *err = own;
        return status;
    }
    if (!reads)
        nib__drafter_time(&b->drafter, b->slot_count, (double)(nib__now_ns() - start) * 1e-9);
    b->counts.steps++;
    move_on(b);
    nib__drawer_draw(&b->drawer, b->drawn, b->drawn_ids, b->drawn_count, there ? NULL : logits);
    take_all(b);
    end_read(b);
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
