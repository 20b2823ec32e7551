/* SPDX-License-Identifier: Apache-2.0
 *
 * Which tokens a step takes, where the tokens of each job start, how many drafted tokens it checks,
 * and what happens to the tokens it draws.
 */
#include "draft.h"

#include <inttypes.h>
#include <stdio.h>

enum {
    /* Rows of logits for prompts and drafts in a step, besides one row per job: a row of 128,000 is
     * half a megabyte. */
    MORE_ROWS = 32,
    /* A prompt longer than a step leaves this part of the step to the shortest other prompt. */
    SHORT_SHARE = NIB_CHUNK / 4,
    /* The last snapshot of a prompt is at least so many tokens before its end: the next turn's
     * prompt often lacks the last ones, which open the answer. */
    PROMPT_TAIL = 16,
};

const char *const nib__recompute_names[NIB_RECOMPUTE_COUNT] = {
    [NIB_RECOMPUTE_NONE] = "none",     [NIB_RECOMPUTE_STATE] = "state",
    [NIB_RECOMPUTE_WINDOW] = "window", [NIB_RECOMPUTE_BLOCK] = "block",
    [NIB_RECOMPUTE_DISK] = "disk",
};

void nib__note_recomputed(nib_ledger *ledger, int64_t prompt, int64_t cached, int64_t recomputed,
                          nib_recompute why)
{
    static const char *const reasons[NIB_RECOMPUTE_COUNT] = {
        [NIB_RECOMPUTE_NONE] = "",
        [NIB_RECOMPUTE_STATE] = "layers with a state keep it at a few positions only (--snapshots)",
        [NIB_RECOMPUTE_WINDOW] = "layers with a window no longer have the positions before them",
        [NIB_RECOMPUTE_BLOCK] = "another text is still writing the last block of 64 positions",
        [NIB_RECOMPUTE_DISK] = "their state on disk could not be read",
    };
    if (recomputed > 0)
        nib__ledger_add_note(ledger, "recomputed",
                             "the cache had %" PRId64 " of the %" PRId64
                             " prompt tokens, and %" PRId64 " of these were computed again: %s",
                             cached + recomputed, prompt, recomputed, reasons[why]);
}

/* A sequence: what its cache holds, and for which job. */
typedef struct sequence {
    int32_t *tokens; /* [context] of its job: prompt and new tokens; without a job: the cached
                          tokens */
    int64_t held;    /* in the cache */
    nib_job *job;    /* NULL: idle */
    uint64_t tenant; /* of its last job */
    uint64_t used;   /* time of last use */
} sequence;

struct nib_batch {
    nib_session *session;
    nib_drawer drawer;
    nib_drafter drafter;
    nib_state_cache *disk; /* NULL: none */
    nib_job *jobs;         /* in order of arrival */
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

_Static_assert((int)NIB_LOOKUP_MOST < (int)NIB_CACHE_SPARE &&
                   (int)NIB_LOOKUP_MOST <= (int)NIB_STATE_SPARE,
               "any draft can be rolled back");

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
    b->rows_most =
        b->count + nib__max(MORE_ROWS, nib__max(session->plan->lookup, session->plan->drafts));
    /* one token per job, and prompts always make progress besides */
    b->slots_most = nib__max(NIB_CHUNK, b->count + SHORT_SHARE);
    nib_status status = allocate(b, err);
    if (status == NIB_OK)
        status = nib__drawer_open(&b->drawer, session, nib_session_vocab(session), b->count, err);
    if (status == NIB_OK)
        status = nib__drafter_open(&b->drafter, session, b->count, err);
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
    nib__drawer_close(&b->drawer);
    nib__drafter_close(&b->drafter);
    for (int64_t i = 0; b->sequences != NULL && i < b->count; i++)
        nib__release(a, b->sequences[i].tokens);
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
    job->done = job->cached = job->made = job->steps = job->recomputed = job->lost = 0;
    job->why = NIB_RECOMPUTE_NONE;
    job->draft = job->drafted = job->accepted = job->guessed = job->guessed_right = 0;
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
    nib__drafter_end(&b->drafter, job->sequence);
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

/* ---- snapshots of states ---- */

static bool has_snapshots(const nib_batch *b) { return b->session->runner.kv.snapshots.count > 0; }

/* The last snapshot of a prompt: a whole block, so that other sequences can share it. */
static int64_t last_snapshot(const nib_job *job)
{
    return nib__round_down(nib__max(job->prompt_count - PROMPT_TAIL, 0), NIB_CACHE_BLOCK);
}

/* Where a job that reads its prompt must end a step, to keep states there. */
static int64_t next_stop(const nib_batch *b, const nib_job *job)
{
    const int64_t last = last_snapshot(job);
    const int64_t next = nib__round_down(job->done, NIB_CHUNK) + NIB_CHUNK;
    if (!has_snapshots(b) && b->disk == NULL)
        return job->prompt_count;
    return nib__min(job->done < last ? nib__min(last, next) : next, job->prompt_count);
}

static void log_disk(const nib_batch *b, const char *what, const nib_err *err)
{
    const nib_callbacks *c = &b->session->model->engine->callbacks;
    char line[sizeof err->text + 64];
    snprintf(line, sizeof line, "state cache: %s: %s", what, err->text);
    if (c->log != NULL)
        c->log(c->ctx, line);
}

/* Keeps the states of a job that has come to a place for that, in memory and on disk. */
static void keep_states(nib_batch *b, const nib_job *job)
{
    const bool turn = job->done == last_snapshot(job);
    nib_err err;
    if (has_snapshots(b) && (turn || job->done % NIB_CHUNK == 0))
        nib__kv_snapshot(&b->session->runner.kv, job->sequence,
                         turn ? NIB_SNAPSHOT_TURN : NIB_SNAPSHOT_PASSING);
    if (!turn || b->disk == NULL)
        return;
    if (nib__state_cache_save(b->disk, job->sequence, job->tenant, job->prompt, job->done, &err) ==
        NIB_OK)
        b->counts.disk_saved++;
    else
        log_disk(b, "a state is not kept", &err);
}

/* The last position at or before `same` that another job can continue from, once this one has come
 * there. */
static int64_t reusable(const nib_batch *b, const nib_job *job, int64_t same)
{
    const int64_t last = last_snapshot(job), chunks = nib__round_down(same, NIB_CHUNK);
    if (b->session->runner.kv.states.count == 0)
        return same;
    return !has_snapshots(b) ? 0 : last <= same ? nib__max(last, chunks) : chunks;
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

/* The sequence that caches the longest prefix of the prompt from which its windows and states allow
 * continuing. most: the longest prefix that any caches. */
static int64_t find_source(const nib_batch *b, const nib_job *job, int64_t *shared, int64_t *most)
{
    int64_t best = -1;
    *shared = *most = 0;
    for (int64_t i = 0; i < b->count; i++) {
        const sequence *s = &b->sequences[i];
        const int64_t alike = s->tenant == job->tenant ? common_prefix(job, s->tokens, s->held) : 0;
        const int64_t usable = nib__kv_cut(&b->session->runner.kv, i, alike);
        *most = nib__max(*most, alike);
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
        const int64_t alike = other->tenant == job->tenant
                                  ? common_prefix(job, other->prompt, other->prompt_count)
                                  : 0;
        const int64_t same = reusable(b, other, alike);
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

/* The job reads on in a sequence that has the first `shared` tokens of its prompt. alike: as many
 * the cache had in memory. */
static void begin_job(nib_batch *b, nib_job *job, int64_t taken, int64_t shared, int64_t alike,
                      nib_recompute why)
{
    nib_kv *kv = &b->session->runner.kv;
    sequence *s = &b->sequences[taken];
    nib__drafter_begin(&b->drafter, taken);
    memcpy(s->tokens, job->prompt, (size_t)job->prompt_count * sizeof *s->tokens);
    s->held = shared;
    s->job = job;
    s->tenant = job->tenant;
    job->sequence = taken;
    job->done = job->cached = shared;
    job->recomputed = nib__max(nib__max(alike, job->lost) - shared, 0);
    job->why = job->recomputed == 0 ? NIB_RECOMPUTE_NONE
               : job->lost > alike  ? NIB_RECOMPUTE_DISK
                                    : why;
    b->counts.reused += shared;
    b->counts.recomputed[job->why] += job->recomputed;
    if (shared > 0)
        nib__kv_snapshot(kv, taken, NIB_SNAPSHOT_TURN);
}

/* Gives the job a sequence: the source itself if it is idle and the job continues from at least
 * half of its cache, or if the source would be reused anyway; else the least recently used one,
 * which shares the source's blocks, so the source keeps its cache. */
static void start_job(nib_batch *b, nib_job *job, int64_t source, int64_t usable, int64_t alike)
{
    nib_kv *kv = &b->session->runner.kv;
    int64_t taken = find_idle(b), shared;
    if (source >= 0 && b->sequences[source].job == NULL &&
        (2 * usable >= b->sequences[source].held || taken == source)) {
        taken = source;
        shared = nib__kv_keep(kv, taken, usable);
    } else {
        shared = source < 0 ? 0 : nib__kv_shareable(kv, source, usable);
        nib__kv_truncate(kv, taken, 0);
        if (shared > 0)
            nib__kv_share(kv, source, taken, shared);
    }
    begin_job(b, job, taken, shared, alike,
              usable == alike        ? NIB_RECOMPUTE_BLOCK
              : kv->states.count > 0 ? NIB_RECOMPUTE_STATE
                                     : NIB_RECOMPUTE_WINDOW);
}

/* Starts the job from a state on disk if that has at least a block more of its prompt than memory
 * has. A state that cannot be read is logged, and the job starts without it. */
static bool start_from_disk(nib_batch *b, nib_job *job, int64_t usable, int64_t alike)
{
    const int64_t most = job->prompt_logprobs ? 0 : job->prompt_count - 1, taken = find_idle(b);
    nib_err err;
    if (b->disk == NULL)
        return false;
    const int64_t found = nib__state_cache_find(b->disk, job->tenant, job->prompt, most,
                                                usable + NIB_CACHE_BLOCK - 1);
    if (found == 0)
        return false;
    if (nib__state_cache_load(b->disk, taken, job->tenant, job->prompt, found, &err) != NIB_OK) {
        log_disk(b, "a state cannot be used", &err);
        job->lost = found;
        return false;
    }
    b->counts.disk_tokens += found;
    begin_job(b, job, taken, found, alike, NIB_RECOMPUTE_STATE);
    return true;
}

/* ---- composing a step ---- */

static bool is_reading(const nib_job *job) { return job->done < job->prompt_count; }

static int64_t prompt_left(const nib_job *job) { return job->prompt_count - job->done; }

/* Most tokens of its prompt that a step reads. */
static int64_t to_read(const nib_batch *b, const nib_job *job)
{
    return next_stop(b, job) - job->done;
}

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
        const uint32_t drafts =
            nib__draft_model_outputs(b->drafter.model, job->prompt_count - 1 - position);
        if (logits && b->rows == b->rows_most)
            break;
        if (logits && job->rows++ == 0)
            job->first = position;
        b->rows += logits;
        b->slots[b->slot_count++] = (nib_slot){.sequence = (int32_t)job->sequence,
                                               .position = (int32_t)position,
                                               .token = s->tokens[position],
                                               .outputs = drafts | (logits ? NIB_SLOT_LOGITS : 0)};
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
    int64_t shared, alike;
    if (!is_reading(job))
        return false;
    if (job->sequence >= 0)
        return true;
    const int64_t source = find_source(b, job, &shared, &alike);
    if (must_wait(b, job, shared))
        return false;
    if (!start_from_disk(b, job, shared, alike))
        start_job(b, job, source, shared, alike);
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
            const int64_t share = nib__min(nib__min(SHORT_SHARE, room), to_read(b, early));
            add_slots(b, early, share);
            room -= share;
        }
        first = false;
        add_slots(b, job, nib__min(room, to_read(b, job)));
    }
}

/* Most tokens of a job's draft, besides the one token that every step draws. */
static int64_t draft_room(const nib_batch *b, const nib_job *job)
{
    const int64_t context = b->session->plan->context - job->prompt_count - job->made - 1;
    const int64_t limit = job->max_tokens - job->made - 1;
    return nib__max(0, nib__min(context, limit));
}

/* Makes drafts when all `count` jobs of the batch are generating. A job whose index cannot be
 * allocated ends. */
static nib_status choose_drafts(nib_batch *b, int64_t count, nib_err *err)
{
    for (nib_job *job = b->jobs, *next; job != NULL; job = next) {
        nib_err failed;
        next = job->next;
        if (nib__drafter_add(&b->drafter, job, b->sequences[job->sequence].tokens,
                             draft_room(b, job), &failed) != NIB_OK) {
            count--;
            end_job(b, job, NIB_FINISH_STOP, &failed);
        }
    }
    return nib__drafter_draft(&b->drafter, (size_t)count, (size_t)(b->rows_most - b->count), err);
}

static nib_status compose_step(nib_batch *b, nib_err *err)
{
    int64_t generating = 0;
    b->slot_count = b->stepped_count = b->drawn_count = 0;
    b->rows = 0;
    for (nib_job *job = b->jobs; job != NULL; job = job->next) {
        job->rows = job->draft = 0;
        generating += !is_reading(job);
    }
    if (generating == b->job_count) /* reading a prompt decides a step's time: no drafts then */
        NIB_TRY(choose_drafts(b, generating, err));
    for (nib_job *job = b->jobs; job != NULL; job = job->next) {
        if (is_reading(job))
            continue;
        add_slots(b, job, 1 + job->draft);
        job->steps++;
        job->drafted += job->draft;
        job->guessed += job->guesses ? job->draft : 0;
        b->counts.drafted += job->draft;
        b->counts.guessed += job->guesses ? job->draft : 0;
    }
    add_prompts(b);
    return NIB_OK;
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
        const int64_t draft = job->draft;
        const bool drafted = draft > 0, guesses = job->guesses;
        bool continues = true;
        int64_t i = 0;
        for (; continues && i < rows; i++) {
            const bool right = i > 0 && drafted;
            b->counts.accepted += right;
            b->counts.guessed_right += right && guesses;
            job->accepted += right;
            job->guessed_right += right && guesses;
            continues = i + 1 < rows || job->failed.status == NIB_OK;
            if (continues)
                continues = accept_token(b, job, &job->tokens[i]);
            else
                end_job(b, job, NIB_FINISH_STOP, &job->failed);
        }
        if (drafted)
            roll_back(b, which, first + i);
        if (drafted && guesses)
            nib__drafter_learn(&b->drafter, which, draft, i - 1, continues);
        if (drafted && continues)
            job->done = first + i;
    }
}

/* Ends the jobs of the step, or all jobs if it could not be composed. */
static void fail_all(nib_batch *b, bool composed, const nib_err *err)
{
    while (!composed && b->jobs != NULL)
        end_job(b, b->jobs, NIB_FINISH_STOP, err);
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
    for (size_t j = 0; j < b->stepped_count; j++)
        keep_states(b, b->stepped[j]);
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

/* Runs the composed slots. */
static nib_status run_slots(nib_batch *b, bool on_device, const float **logits, nib_err *err)
{
    nib_runner *runner = &b->session->runner;
    runner->keeps_logits = on_device;
    const nib_status status = nib__model_check_files(
        b->session->model, nib__runner_step(runner, b->slots, b->slot_count, logits, err), err);
    runner->keeps_logits = false;
    return status;
}

nib_status nib__batch_step(nib_batch *b, nib_err *err)
{
    const float *logits = NULL;
    nib_err failed;
    nib_status status = compose_step(b, &failed);
    const bool composed = status == NIB_OK;
    if (composed && b->slot_count == 0)
        return NIB_OK;
    const uint64_t start = nib__now_ns();
    const bool on_device = can_draw_on_device(b);
    if (composed)
        status = run_slots(b, on_device, &logits, &failed);
    if (status != NIB_OK) {
        fail_all(b, composed, &failed);
        if (err != NULL)
            *err = failed;
        return status;
    }
    const bool reads = is_reading(b->stepped[b->stepped_count - 1]);
    const size_t jobs = b->stepped_count;
    const int64_t made = b->counts.made;
    const double seconds = (double)(nib__now_ns() - start) * 1e-9;
    b->counts.steps++;
    nib__draft_model_see(b->drafter.model, b->slots, b->slot_count);
    advance_sequences(b);
    nib__drawer_draw(&b->drawer, b->drawn, b->drawn_ids, b->drawn_count, on_device ? NULL : logits);
    hand_out_tokens(b);
    nib__drafter_count(&b->drafter, reads ? 0 : jobs, b->slot_count, b->counts.made - made,
                       seconds);
    end_prompt_jobs(b);
    return NIB_OK;
}

void nib__batch_use_disk(nib_batch *b, nib_state_cache *disk) { b->disk = disk; }

nib_batch_counts nib__batch_counts(const nib_batch *b)
{
    const nib_kv *kv = &b->session->runner.kv;
    nib_batch_counts c = b->counts;
    c.model_s = b->drafter.model_s;
    c.vain_s = b->drafter.budget.vain_s;
    c.without_s = b->drafter.budget.without_s;
    c.jobs = b->job_count;
    c.sequences = b->count;
    c.blocks = nib__kv_blocks(kv);
    c.blocks_used = nib__kv_used_blocks(kv);
    return c;
}
