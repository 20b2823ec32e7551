/* SPDX-License-Identifier: Apache-2.0
 *
 * Many generations at once: each gets the same tokens and log-probabilities as alone, whatever
 * other jobs come and go, whatever part of its prompt was cached, and with drafts or without.
 */
#include "batch.h"

#include "file.h"
#include "session.h"
#include "skipping.h"

#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

enum { MOST = SANITIZED ? 16 : 64, CONTEXT = 512 };

/* A job and its results. */
typedef struct given {
    nib_job job;
    int32_t prompt[CONTEXT];
    int32_t ids[CONTEXT];
    double logprobs[CONTEXT], tops[CONTEXT];
    int64_t count, prompt_seen, stop_after;
    bool ended, failed, end_token;
    nib_finish finish;
    nib_err err;
} given;

static bool take(void *ctx, const nib_new_token *t)
{
    given *g = ctx;
    assert_false(g->ended);
    assert_true(g->count < CONTEXT);
    g->ids[g->count] = t->id;
    g->logprobs[g->count] = t->logprob;
    g->tops[g->count] = t->top_count > 0 ? t->top[t->top_count - 1].logprob : 0;
    for (int i = 1; i < t->top_count; i++)
        assert_true(t->top[i].logprob <= t->top[i - 1].logprob);
    g->count++;
    g->prompt_seen += t->of_prompt;
    g->end_token = t->end;
    return g->stop_after == 0 || g->count < g->stop_after;
}

static void ended(void *ctx, nib_finish finish, const nib_err *err)
{
    given *g = ctx;
    assert_false(g->ended);
    g->ended = true;
    g->finish = finish;
    g->failed = err != NULL;
    if (err != NULL)
        g->err = *err;
}

static const nib_job_calls calls = {take, ended};

/* Prompts begin with one of three texts, so some share long prefixes and others none. */
static void ask(given *g, int number)
{
    *g = (given){0};
    const int base = number % 3;
    const int64_t length = 1 + (number * 37) % 150;
    for (int64_t i = 0; i < length; i++)
        g->prompt[i] = (int32_t)((i * (base + 3) + (i > 100 ? number : 0)) % 500 + 5);
    g->job = (nib_job){
        .prompt = g->prompt,
        .prompt_count = length,
        .max_tokens = 1 + number % 23,
        .sampling = {.temperature = number % 4 == 0 ? 0 : 0.9,
                     .top_p = 0.95,
                     .repeat_penalty = number % 5 == 0 ? 1.3 : 1,
                     .top_k = number % 2 ? 40 : 0,
                     .seed = (uint64_t)number / 2},
        .adjust = {.presence_penalty = number % 6 == 0 ? 0.7 : 0,
                   .frequency_penalty = number % 7 == 0 ? 0.4 : 0},
        .top = number % 3 == 0 ? number % 6 : -1,
        .prompt_logprobs = number % 12 == 3,
        .ignore_ends = true,
        .choice = number % 2,
        .calls = calls,
        .ctx = g,
    };
    if (number % 12 == 3 && number % 8 == 3)
        g->job.max_tokens = 0;
}

static void finish_all(nib_batch *b)
{
    nib_err err;
    for (int i = 0; nib__batch_counts(b).jobs > 0; i++) {
        if (nib__batch_step(b, &err) != NIB_OK)
            fail_msg("%s", err.text);
        assert_true(i < 10000);
    }
}

static void assert_same(const given *a, const given *b, int number)
{
    if (!b->ended || b->failed || a->count != b->count || a->finish != b->finish ||
        memcmp(a->ids, b->ids, sizeof a->ids) != 0)
        fail_msg("job %d: other tokens than alone", number);
    for (int64_t i = 0; i < a->count; i++)
        if ((a->logprobs[i] != b->logprobs[i] && !isnan(a->logprobs[i])) ||
            a->tops[i] != b->tops[i])
            fail_msg("job %d: other logarithms than alone at %d", number, (int)i);
}

static const open_how tales = {
    .path = "models/nibble-tales", .recipe = "8da4w", .context = CONTEXT};
/* Layers with short convolutions, which keep no more than a draft needs. */
static const open_how convolving = {
    .path = "tests/golden/models/lfm2", .recipe = "8da4w-g16", .context = CONTEXT};
/* Layers with the gated delta rule, whose matrices are not taken back. */
static const open_how recurrent = {
    .path = "tests/golden/models/qwen3_5", .recipe = "8da4w-g16", .context = CONTEXT};
/* Layers with Mamba-2, likewise. */
static const open_how ssm = {
    .path = "tests/golden/models/granite_hybrid_moe", .recipe = "8da4w-g16", .context = CONTEXT};
static const open_how *tested = &tales;

static nib_batch *open_batch(opened *o, int sequences)
{
    open_how how = *tested;
    nib_batch *b;
    how.sequences = sequences;
    how.threads = 2;
    *o = must_open(&how);
    assert_int_equal(nib__batch_open(&b, o->session, sequences, NULL), NIB_OK);
    return b;
}

/* Runs every job alone, from an empty cache. */
static given *alone(int count)
{
    opened o;
    nib_batch *b = open_batch(&o, 1);
    given *all = calloc((size_t)count, sizeof *all);
    for (int i = 0; i < count; i++) {
        ask(&all[i], i);
        nib__kv_truncate(&o.session->runner.kv, 0, 0);
        nib__batch_close(b);
        assert_int_equal(nib__batch_open(&b, o.session, 1, NULL), NIB_OK);
        nib__batch_add(b, &all[i].job);
        finish_all(b);
        assert_true(all[i].ended && !all[i].failed);
        assert_int_equal(all[i].job.cached, 0);
    }
    nib__batch_close(b);
    close_opened(&o);
    return all;
}

static void test_same_as_alone(void **state)
{
    (void)state;
    given *want = alone(MOST), *got = calloc(MOST, sizeof *got);
    for (int sequences = sparse(4); sequences <= 7; sequences += 3 * sampled(2)) {
        opened o;
        nib_batch *b = open_batch(&o, sequences);
        uint32_t random = (uint32_t)sequences;
        for (int next = 0; next < MOST;) {
            random = random * 1664525u + 1013904223u;
            const int64_t comes = nib__min((int64_t)(random >> 28) + 1, nib__batch_room(b));
            for (int64_t i = 0; i < comes && next < MOST; i++, next++) {
                ask(&got[next], next);
                nib__batch_add(b, &got[next].job);
            }
            assert_int_equal(nib__batch_step(b, NULL), NIB_OK);
        }
        finish_all(b);
        for (int i = 0; i < MOST; i++)
            assert_same(&want[i], &got[i], i);
        if (sequences > 1)
            assert_true(nib__batch_counts(b).reused > 0);
        nib__batch_close(b);
        close_opened(&o);
    }
    free(want);
    free(got);
}

static void test_job_options(void **state)
{
    opened o;
    nib_batch *b = open_batch(&o, 2);
    given g;
    (void)state;
    ask(&g, 3); /* the prompt's log-probabilities */
    g.job.max_tokens = 0;
    nib__batch_add(b, &g.job);
    finish_all(b);
    assert_int_equal(g.count, g.job.prompt_count - 1);
    assert_int_equal(g.prompt_seen, g.count);
    assert_memory_equal(g.ids, g.prompt + 1, (size_t)g.count * sizeof *g.ids);
    assert_int_equal(g.finish, NIB_FINISH_LENGTH);
    ask(&g, 1); /* the caller stops it */
    g.job.max_tokens = 20;
    g.stop_after = 4;
    nib__batch_add(b, &g.job);
    finish_all(b);
    assert_int_equal(g.count, 4);
    assert_int_equal(g.finish, NIB_FINISH_STOP);
    const nib_logit_bias only = {.id = 77, .bias = 100};
    ask(&g, 1);
    g.job.adjust = (nib_adjust){.bias = &only, .bias_count = 1};
    nib__batch_add(b, &g.job);
    finish_all(b);
    for (int64_t i = 0; i < g.count; i++)
        assert_int_equal(g.ids[i], 77);
    g.job.adjust.frequency_penalty = 2; /* lowers its logit again with each use */
    g.job.adjust.presence_penalty = 110;
    g.job.max_tokens = 12;
    g.count = 0, g.ended = false;
    nib__batch_add(b, &g.job);
    finish_all(b);
    assert_int_equal(g.ids[0], 77);
    assert_int_not_equal(g.ids[11], 77);
    nib__batch_close(b);
    close_opened(&o);
}

/* A prompt that fills the context yields one token; a removed job does not affect the other. */
static void test_full_context_and_removal(void **state)
{
    opened o;
    nib_batch *b = open_batch(&o, 2);
    static given g, other;
    (void)state;
    ask(&g, 1);
    for (int64_t i = 0; i < CONTEXT; i++)
        g.prompt[i] = (int32_t)(i % 400 + 7);
    g.job.prompt_count = CONTEXT;
    g.job.max_tokens = 100;
    nib__batch_add(b, &g.job);
    finish_all(b);
    assert_int_equal(g.count, 1);
    assert_int_equal(g.finish, NIB_FINISH_CONTEXT);
    ask(&other, 4);
    other.job.max_tokens = 300;
    ask(&g, 2);
    g.job.max_tokens = 300;
    nib__batch_add(b, &other.job);
    nib__batch_add(b, &g.job);
    assert_int_equal(nib__batch_room(b), 0);
    for (int i = 0; i < 5; i++)
        assert_int_equal(nib__batch_step(b, NULL), NIB_OK);
    nib__batch_remove(b, &g.job);
    assert_int_equal(nib__batch_room(b), 1);
    finish_all(b);
    assert_false(g.ended);
    assert_int_equal(other.finish, NIB_FINISH_LENGTH);
    assert_int_equal(other.count, 300);
    nib__batch_close(b);
    close_opened(&o);
}

/* Prompts with a common prefix that arrive together: the first prefills it, the others wait and
 * prefill only their own rest. */
static void test_prefills_a_common_prefix_once(void **state)
{
    opened o;
    nib_batch *b = open_batch(&o, 4);
    static given g[3];
    (void)state;
    for (int j = 0; j < 3; j++) {
        ask(&g[j], 1);
        for (int64_t i = 0; i < 300; i++)
            g[j].prompt[i] = (int32_t)(i < 280 ? i % 300 + 9 : 40 + j);
        g[j].job.prompt_count = 300;
        g[j].job.max_tokens = 3;
        nib__batch_add(b, &g[j].job);
    }
    finish_all(b);
    assert_int_equal(g[0].job.cached, 0);
    for (int j = 1; j < 3; j++)
        assert_int_equal(g[j].job.cached, 280 / NIB_CACHE_BLOCK * NIB_CACHE_BLOCK);
    assert_int_equal(nib__batch_counts(b).prefilled, 300 + 2 * (300 - 256));
    /* a second turn continues its own first turn, whatever other sequences hold */
    static given more;
    more = g[2];
    more.count = 0, more.ended = false;
    memcpy(more.prompt + 300, g[2].ids, 2 * sizeof *g[2].ids);
    more.job.prompt = more.prompt;
    more.job.prompt_count = 310;
    more.job.ctx = &more;
    nib__batch_add(b, &more.job);
    finish_all(b);
    assert_int_equal(more.job.cached, 302);
    nib__batch_close(b);
    close_opened(&o);
}

/* A short prompt does not wait for one too long for a step. */
static void test_short_prompts_do_not_wait(void **state)
{
    opened o;
    nib_batch *b = open_batch(&o, 3);
    static given making, slow, g;
    (void)state;
    ask(&making, 4);
    making.job.max_tokens = 50;
    nib__batch_add(b, &making.job);
    assert_int_equal(nib__batch_step(b, NULL), NIB_OK);
    ask(&slow, 1);
    for (int i = 0; i < CONTEXT; i++)
        slow.prompt[i] = i * 7 % 1000 + 3;
    slow.job.prompt_count = CONTEXT;
    ask(&g, 2);
    nib__batch_add(b, &slow.job);
    nib__batch_add(b, &g.job);
    assert_int_equal(nib__batch_step(b, NULL), NIB_OK);
    assert_int_equal(making.count, 2);
    assert_int_equal(g.count, 1);
    assert_int_equal(slow.job.done, NIB_CHUNK - 1 - g.job.prompt_count);
    finish_all(b);
    assert_int_equal(slow.count, 1);
    assert_int_equal(making.count, 50);
    nib__batch_close(b);
    close_opened(&o);
}

/* More jobs than a step usually holds: each still gets a token per step, and prefill continues. */
static void test_more_jobs_than_a_step_holds(void **state)
{
    enum { SEQUENCES = NIB_CHUNK + 88 };
    const open_how how = {.path = "models/nibble-tales",
                          .recipe = "8da4w",
                          .threads = 2,
                          .sequences = SEQUENCES,
                          .context = 64};
    opened o = must_open(&how);
    nib_batch *b;
    given *all = calloc(SEQUENCES, sizeof *all);
    (void)state;
    assert_int_equal(nib__batch_open(&b, o.session, SEQUENCES, NULL), NIB_OK);
    for (int i = 0; i < SEQUENCES; i++) {
        ask(&all[i], 1);
        all[i].prompt[0] = 5 + i;
        all[i].job.prompt_count = 1;
        all[i].job.max_tokens = i == SEQUENCES - 1 ? 1 : 6;
        nib__batch_add(b, &all[i].job);
    }
    for (int i = 0; i < 2; i++)
        assert_int_equal(nib__batch_step(b, NULL), NIB_OK);
    assert_int_equal(all[0].count, 2);
    assert_true(all[SEQUENCES - 1].ended); /* while all others still generate */
    assert_int_equal(nib__batch_counts(b).jobs, SEQUENCES - 1);
    finish_all(b);
    for (int i = 0; i < SEQUENCES - 1; i++)
        assert_int_equal(all[i].count, 6);
    nib__batch_close(b);
    close_opened(&o);
    free(all);
}

/* ---- drafts ---- */

/* Pretends that steps with more tokens are faster, so that drafts are as long as possible, right or
 * wrong. */
static void draft_always(nib_session *s)
{
    for (size_t m = 1; m < COUNT(s->times.measured); m++)
        s->times.measured[m] = 1e-6 / (double)(m * m);
}

/* A constraint whose texts repeat themselves. */
typedef struct listing {
    nib_token_trie *trie;
    nib_constraint *constraint;
} listing;

static listing open_listing(const opened *o)
{
    static const nib_allocator *a;
    static const char text[] = "{\"type\": \"array\", \"minItems\": 4, \"maxItems\": 9, \"items\": "
                               "{\"enum\": [\"wolf\", \"king\", \"daughter\"]}}";
    const nib_named_text schema = {"schema", text, sizeof text - 1};
    const nib_tokenizer *tokenizer;
    listing l = {0};
    nib_err err;
    a = &o->engine->allocator;
    if (nib_model_tokenizer(&tokenizer, o->model, &err) != NIB_OK ||
        nib__token_trie_open(&l.trie, tokenizer, a, &err) != NIB_OK ||
        nib__constraint_open(&l.constraint, l.trie, &schema, a, &err) != NIB_OK)
        fail_msg("%s", err.text);
    return l;
}

static void close_listing(listing *l)
{
    nib__constraint_close(l->constraint);
    nib__token_trie_close(l->trie);
}

/* Like `ask`, with a repetitive prompt; some texts are constrained to lists. */
static void ask_again(given *g, int number, const opened *o, const listing *l)
{
    ask(g, number);
    g->job.prompt_count = 20 + (number * 37) % 150;
    g->job.max_tokens = 1 + (number * 29) % 90;
    for (int64_t i = 0; i < g->job.prompt_count; i++)
        g->prompt[i] = (int32_t)(i % (7 + number % 3) * 31 + 40 + (i > 120 ? number % 5 : 0));
    if (number % 4 != 2)
        return;
    g->job.state = calloc(1, sizeof *g->job.state);
    g->job.allowed = calloc(((size_t)nib_session_vocab(o->session) + 31) / 32, sizeof(uint32_t));
    assert_int_equal(nib__masks_open(&g->job.masks, l->constraint, &o->engine->allocator, NULL),
                     NIB_OK);
    nib__constraint_start(g->job.state, l->constraint);
}

static void release(given *g)
{
    nib__masks_close(g->job.masks);
    free(g->job.state);
    free(g->job.allowed);
}

static void test_drafts_change_nothing(void **state)
{
    (void)state;
    const int64_t enough = SANITIZED ? MOST : 100;
    static const int64_t lookups[] = {1, 3, NIB_LOOKUP_USUAL, NIB_LOOKUP_MOST};
    given *want = calloc(MOST, sizeof *want), *got = calloc(MOST, sizeof *got);
    for (int sequences = 0; sequences <= 7;
         sequences += sequences == 0 ? sparse(4) : 3 * sampled(2)) {
        opened o;
        nib_batch *b = open_batch(&o, sequences > 0 ? sequences : 1);
        listing l = open_listing(&o);
        given *all = sequences > 0 ? got : want; /* sequences 0: no drafts, one job at a time */
        uint32_t random = (uint32_t)sequences;
        for (int next = 0; next < MOST;) {
            random = random * 1664525u + 1013904223u;
            const int64_t comes = nib__min((int64_t)(random >> 28) + 1, nib__batch_room(b));
            for (int64_t i = 0; i < comes && next < MOST; i++, next++) {
                ask_again(&all[next], next, &o, &l);
                all[next].job.lookup = sequences > 0 && next % 7 ? lookups[next % 4] : 0;
                nib__batch_add(b, &all[next].job);
            }
            draft_always(o.session);
            assert_int_equal(nib__batch_step(b, NULL), NIB_OK);
        }
        finish_all(b);
        const nib_batch_counts counts = nib__batch_counts(b);
        for (int i = 0; i < MOST; i++) {
            if (sequences > 0)
                assert_same(&want[i], &got[i], i);
            assert_true(all[i].job.accepted <= all[i].job.drafted);
            assert_int_equal(all[i].job.made, all[i].job.max_tokens > 0
                                                  ? 1 + all[i].job.steps + all[i].job.accepted
                                                  : 0);
            release(&all[i]);
        }
        assert_true(sequences > 0
                        ? counts.accepted > enough && counts.drafted > counts.accepted + enough
                        : counts.drafted == 0);
        nib__batch_close(b);
        close_listing(&l);
        close_opened(&o);
    }
    free(want);
    free(got);
}

/* Like `ask`, with few tokens, again and again. */
static void ask_looping(given *g, int number)
{
    ask(g, number);
    g->job.prompt_count = 20 + (number * 37) % 150;
    g->job.max_tokens = 60;
    g->job.sampling.temperature = number % 3 == 0 ? 0.9 : 0;
    for (int64_t i = 0; i < g->job.prompt_count; i++)
        g->prompt[i] = (int32_t)(i % (7 + number % 3) * 13 + 5 + (i > 120 ? number % 5 : 0));
}

/* A state that cannot be cut far back changes no token: drafts are rolled back, prompts share what
 * there is, and what there is not is read again. */
static void check_states(const open_how *how)
{
    enum { JOBS = 30 };
    static given all[2][JOBS], more;
    tested = how;
    for (int drafts = 0; drafts < 2; drafts++) {
        opened o;
        nib_batch *b = open_batch(&o, drafts ? 3 : 1);
        for (int next = 0; next < JOBS;) {
            for (; next < JOBS && nib__batch_room(b) > 0; next++) {
                ask_looping(&all[drafts][next], next);
                all[drafts][next].job.lookup = drafts && next % 5 != 0 ? NIB_LOOKUP_MOST : 0;
                nib__batch_add(b, &all[drafts][next].job);
            }
            draft_always(o.session);
            assert_int_equal(nib__batch_step(b, NULL), NIB_OK);
        }
        finish_all(b);
        const nib_batch_counts counts = nib__batch_counts(b);
        assert_true(drafts ? counts.drafted > counts.accepted && counts.accepted > 0
                           : counts.drafted == 0);
        const given *last = &all[drafts][JOBS - 1];
        ask_looping(&more, JOBS - 1); /* its sequence goes on with what it has read and made */
        memcpy(more.prompt + last->job.prompt_count, last->ids,
               (size_t)last->count * sizeof *more.prompt);
        more.job.prompt_count += last->count;
        nib__batch_add(b, &more.job);
        finish_all(b);
        assert_int_equal(more.job.cached, more.job.prompt_count - 1);
        assert_int_equal(more.job.recomputed, 0);
        nib__batch_close(b);
        close_opened(&o);
    }
    for (int i = 0; i < JOBS; i++)
        assert_same(&all[0][i], &all[1][i], i);
    tested = &tales;
}

static void test_convolutions(void **state)
{
    (void)state;
    check_states(&convolving);
}

static void test_gated_delta(void **state)
{
    (void)state;
    check_states(&recurrent);
}

static void test_mamba(void **state)
{
    (void)state;
    check_states(&ssm);
}

/* Keys and values in few bits, of two types, rotated, with windows and beside states. */
static void test_cache_types(void **state)
{
    static const open_how types[] = {
        {.path = "tests/golden/models/qwen3", .cache = "int8:int4", .context = CONTEXT},
        {.path = "tests/golden/models/gemma3", .cache = "int4-hadamard", .context = CONTEXT},
        {.path = "tests/golden/models/lfm2", .cache = "int4", .context = CONTEXT},
    };
    (void)state;
    for (size_t i = 0; i < COUNT(types); i++)
        check_states(&types[i]);
}

/* A prompt of `same` tokens that are the same in all prompts, then others. */
static void ask_turn(given *g, int64_t same, int64_t count, int number)
{
    ask(g, 1);
    g->job.prompt_count = count;
    g->job.max_tokens = 100;
    for (int64_t i = 0; i < count; i++)
        g->prompt[i] = (int32_t)((i * 7 + i / 11 + (i >= same ? number : 0)) % 90 + 5);
}

static void run_turn(nib_batch *b, given *g, int64_t same, int64_t count, int number)
{
    ask_turn(g, same, count, number);
    nib__batch_add(b, &g->job);
    finish_all(b);
}

/* What a turn costs, and that it does not change an answer. */
static void expect_turn(const given *g, int64_t cached, int64_t recomputed, nib_recompute why,
                        int number)
{
    static given cold;
    opened o;
    nib_batch *b = open_batch(&o, 1);
    cold = (given){.job = g->job};
    memcpy(cold.prompt, g->prompt, sizeof cold.prompt);
    cold.job.prompt = cold.prompt;
    cold.job.ctx = &cold;
    nib__batch_add(b, &cold.job);
    finish_all(b);
    assert_int_equal(cold.job.cached, 0);
    assert_same(&cold, g, number);
    assert_int_equal(g->job.cached, cached);
    assert_int_equal(g->job.recomputed, recomputed);
    assert_int_equal(g->job.why, why);
    nib__batch_close(b);
    close_opened(&o);
}

/* Later turns continue from where states were kept: before the end of a prompt, where a turn
 * started, or at the end of a chunk; another sequence from whole blocks. */
static void check_turns(const open_how *how)
{
    static given g[2];
    tested = how;
    opened o;
    nib_batch *b = open_batch(&o, 2);
    run_turn(b, &g[0], 300, 300, 0);
    expect_turn(&g[0], 0, 0, NIB_RECOMPUTE_NONE, 0);
    run_turn(b, &g[0], 290, 390, 1); /* without the tokens that open the answer */
    expect_turn(&g[0], 256, 34, NIB_RECOMPUTE_STATE, 1);
    run_turn(b, &g[0], 290, 380, 2); /* another message */
    expect_turn(&g[0], 256, 34, NIB_RECOMPUTE_STATE, 2);
    run_turn(b, &g[0], 290, 385, 2); /* the same one, longer */
    expect_turn(&g[0], 320, 60, NIB_RECOMPUTE_STATE, 3);
    const nib_batch_counts before = nib__batch_counts(b);
    assert_int_equal(before.recomputed[NIB_RECOMPUTE_STATE], 34 + 34 + 60);
    for (int i = 0; i < 2; i++) { /* the second waits for the first one's snapshot */
        ask_turn(&g[i], 0, 200, 30);
        nib__batch_add(b, &g[i].job);
    }
    finish_all(b);
    expect_turn(&g[0], 0, 0, NIB_RECOMPUTE_NONE, 4);
    expect_turn(&g[1], 128, 0, NIB_RECOMPUTE_NONE, 5);
    nib__batch_close(b);
    close_opened(&o);
    tested = &tales;
}

static void test_turns_with_states(void **state)
{
    (void)state;
    check_turns(&convolving);
    check_turns(&recurrent);
}

static void test_without_snapshots(void **state)
{
    static given g;
    static open_how none;
    (void)state;
    none = convolving;
    none.snapshots = -1;
    tested = &none;
    opened o;
    nib_batch *b = open_batch(&o, 1);
    assert_int_equal(o.session->runner.kv.snapshots.count, 0);
    run_turn(b, &g, 300, 300, 0);
    run_turn(b, &g, 200, 390, 1);
    expect_turn(&g, 0, 200, NIB_RECOMPUTE_STATE, 1);
    nib__batch_close(b);
    close_opened(&o);
    tested = &tales;
}

/* A turn in a session of its own, with the states on disk of earlier ones. */
static void run_with_disk(given *g, const char *folder, uint64_t tenant, int64_t same,
                          int64_t count, int number, nib_batch_counts *counts)
{
    opened o;
    nib_batch *b = open_batch(&o, 1);
    nib_state_cache *disk;
    nib_err err;
    if (nib__state_cache_open(&disk, o.session, folder, 64 << 20, &err) != NIB_OK)
        fail_msg("%s", err.text);
    nib__batch_use_disk(b, disk);
    ask_turn(g, same, count, number);
    g->job.tenant = tenant;
    nib__batch_add(b, &g->job);
    finish_all(b);
    *counts = nib__batch_counts(b);
    nib__batch_close(b);
    nib__state_cache_close(disk);
    close_opened(&o);
}

/* A later process continues from the states of an earlier one, with the same bits; nobody else
 * does, and what is damaged is computed again. */
static void test_states_on_disk(void **state)
{
    static const open_how few_bits = {.path = "models/nibble-tales",
                                      .recipe = "8da4w",
                                      .cache = "int8:int4-hadamard",
                                      .context = CONTEXT};
    static const open_how *const models[] = {&convolving, &recurrent, &tales, &few_bits};
    static given g;
    static open_how other;
    (void)state;
    for (size_t i = 0; i < COUNT(models); i++) {
        char folder[] = "/tmp/nibble-states-XXXXXX", path[64], byte = 'x';
        nib_batch_counts counts;
        assert_non_null(mkdtemp(folder));
        snprintf(path, sizeof path, "%s/records", folder);
        tested = models[i];
        run_with_disk(&g, folder, 1, 300, 300, 0, &counts);
        assert_int_equal(counts.disk_saved, 1);
        run_with_disk(&g, folder, 1, 290, 390, 1, &counts);
        assert_int_equal(counts.disk_tokens, 256);
        assert_int_equal(counts.disk_saved, 1); /* that of 320 tokens */
        expect_turn(&g, 256, 0, NIB_RECOMPUTE_NONE, 1);
        run_with_disk(&g, folder, 2, 290, 390, 1, &counts); /* another tenant */
        expect_turn(&g, 0, 0, NIB_RECOMPUTE_NONE, 2);
        other = *models[i];
        other.cache = "int8";
        tested = &other;
        run_with_disk(&g, folder, 1, 290, 390, 1, &counts); /* computed otherwise */
        assert_int_equal(counts.disk_tokens, 0);
        tested = models[i];
        const int fd = open(path, O_RDWR);
        assert_true(fd >= 0);
        for (off_t at = 4096 + 4096 * 64 + 1000; pwrite(fd, &byte, 1, at) == 1 && at < 60 << 20;)
            at += 4096; /* damages every record */
        close(fd);
        run_with_disk(&g, folder, 1, 290, 390, 1, &counts);
        expect_turn(&g, 0, 320, NIB_RECOMPUTE_DISK, 3);
        assert_int_equal(nib__path_remove(folder, NULL), NIB_OK);
    }
    tested = &tales;
}

/* Whatever ends a job amid a draft, its tokens and the cache are as without drafts. */
static void test_jobs_end_amid_drafts(void **state)
{
    static given without, with;
    int64_t accepted = 0;
    (void)state;
    for (int number = 1; number < 40; number += sampled(4) * sparse(2)) {
        int32_t held[2];
        for (int drafts = 0; drafts < 2; drafts++) {
            given *g = drafts ? &with : &without;
            opened o;
            nib_batch *b = open_batch(&o, 1);
            ask_again(g, 4, &o, NULL); /* greedy */
            g->job.lookup = drafts ? NIB_LOOKUP_USUAL : 0;
            g->job.max_tokens = number % 3 == 0 ? number : 500;
            if (number % 3 == 1)
                g->stop_after = number;
            if (number % 3 == 2)
                g->job.prompt_count = CONTEXT - number;
            for (int64_t i = 0; i < g->job.prompt_count; i++)
                g->prompt[i] = (int32_t)(i % 9 * 31 + 40);
            draft_always(o.session);
            nib__batch_add(b, &g->job);
            finish_all(b);
            held[drafts] = o.session->runner.kv.lengths[0];
            accepted += g->job.accepted;
            nib__batch_close(b);
            close_opened(&o);
        }
        assert_same(&without, &with, number);
        assert_int_equal(held[0], held[1]);
        assert_int_equal(with.finish, number % 3 == 0   ? NIB_FINISH_LENGTH
                                      : number % 3 == 1 ? NIB_FINISH_STOP
                                                        : NIB_FINISH_CONTEXT);
    }
    assert_true(accepted > 100 / sampled(4) / sparse(2));
}

/* A drafted end-of-text token is accepted: biases force the text A B A, then the end. */
static void test_end_token_in_draft(void **state)
{
    enum { A = 77, B = 78 };
    opened o;
    nib_batch *b = open_batch(&o, 1);
    static given g;
    int32_t ends[NIB_EOS_MAX];
    (void)state;
    assert_true(nib__model_ends(o.model, ends) > 0);
    const int32_t again[] = {A, B, A, ends[0], 5};
    const nib_logit_bias bias[] = {{A, 10000}, {B, 9950}, {ends[0], 9875}};
    ask(&g, 4);
    for (int i = 0; i < 20; i++)
        g.prompt[i] = again[i % 5];
    g.job.prompt_count = 20;
    g.job.max_tokens = 50;
    g.job.adjust = (nib_adjust){.bias = bias, .bias_count = 3, .frequency_penalty = 100};
    g.job.ignore_ends = false;
    g.job.lookup = 9;
    draft_always(o.session);
    nib__batch_add(b, &g.job);
    finish_all(b);
    assert_int_equal(g.finish, NIB_FINISH_STOP);
    assert_int_equal(g.count, 4);
    assert_memory_equal(g.ids, again, 4 * sizeof *again);
    assert_true(g.end_token);
    assert_int_equal(g.job.steps, 1);
    assert_int_equal(g.job.drafted, 9);
    assert_int_equal(g.job.accepted, 2);
    assert_int_equal(o.session->runner.kv.lengths[0], 20 + 3);
    nib__batch_close(b);
    close_opened(&o);
}

/* A job removed between drafts leaves only accepted tokens in the cache: another job continues from
 * them. */
static void test_job_removed_between_drafts(void **state)
{
    enum { LENGTH = 150 };
    static given first, whole, rest;
    opened o;
    nib_batch *b = open_batch(&o, 1);
    (void)state;
    ask_again(&whole, 4, &o, NULL);
    whole.job.max_tokens = LENGTH;
    nib__batch_add(b, &whole.job);
    finish_all(b);
    nib__batch_close(b);
    assert_int_equal(nib__batch_open(&b, o.session, 1, NULL), NIB_OK);
    ask_again(&first, 4, &o, NULL);
    first.job.max_tokens = LENGTH;
    first.job.lookup = 5;
    draft_always(o.session);
    nib__batch_add(b, &first.job);
    while (first.job.accepted < 3 && !first.ended)
        assert_int_equal(nib__batch_step(b, NULL), NIB_OK);
    assert_false(first.ended);
    nib__batch_remove(b, &first.job);
    assert_memory_equal(first.ids, whole.ids, (size_t)first.count * sizeof *first.ids);
    ask_again(&rest, 4, &o, NULL);
    memcpy(rest.prompt + rest.job.prompt_count, first.ids, (size_t)first.count * sizeof(int32_t));
    rest.job.prompt_count += first.count;
    rest.job.max_tokens = LENGTH - first.count;
    nib__batch_add(b, &rest.job);
    finish_all(b);
    assert_int_equal(rest.job.cached, rest.job.prompt_count - 1);
    assert_int_equal(rest.count, LENGTH - first.count);
    assert_memory_equal(rest.ids, whole.ids + first.count, (size_t)rest.count * sizeof *rest.ids);
    nib__batch_close(b);
    close_opened(&o);
}

/* A device samples the same tokens as the CPU from the same logits. Sampled on the CPU: no job, the
 * second, or all. */
static void test_device_samples_as_the_cpu(void **state)
{
    enum { JOBS = 3 };
    const open_how how = {.path = "models/nibble-tales",
                          .context = 128,
                          .sequences = JOBS,
                          .device = tested_device()};
    static given all[3][JOBS];
    opened o;
    (void)state;
    skip_without_device();
    o = must_open(&how);
    for (int here = 0; here < 3; here++) { /* jobs sampled on the CPU: none, the second, all */
        nib_batch *b;
        assert_int_equal(nib__batch_open(&b, o.session, JOBS, NULL), NIB_OK);
        for (int j = 0; j < JOBS; j++) {
            given *g = &all[here][j];
            ask(g, 1 + 2 * j);
            g->job.sampling = (nib_sampling){
                .temperature = 0.9, .top_p = 0.95, .repeat_penalty = 1, .top_k = 40, .seed = 7};
            g->job.prompt_count = 20;
            g->job.max_tokens = 12;
            g->job.prompt_logprobs = false;
            g->job.top = here == 2 || (here == 1 && j == 1) ? 0 : -1;
            nib__batch_add(b, &g->job);
            assert_int_equal(g->job.device_sampler == NULL, g->job.top >= 0);
        }
        finish_all(b);
        for (int j = 0; j < JOBS; j++) {
            assert_int_equal(all[here][j].count, 12);
            assert_memory_equal(all[here][j].ids, all[0][j].ids, sizeof all[0][j].ids);
        }
        nib__batch_close(b);
    }
    close_opened(&o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_as_alone),
        cmocka_unit_test(test_job_options),
        cmocka_unit_test(test_full_context_and_removal),
        cmocka_unit_test(test_prefills_a_common_prefix_once),
        cmocka_unit_test(test_short_prompts_do_not_wait),
        cmocka_unit_test(test_more_jobs_than_a_step_holds),
        cmocka_unit_test(test_drafts_change_nothing),
        cmocka_unit_test(test_convolutions),
        cmocka_unit_test(test_gated_delta),
        cmocka_unit_test(test_mamba),
        cmocka_unit_test(test_cache_types),
        cmocka_unit_test(test_turns_with_states),
        cmocka_unit_test(test_without_snapshots),
        cmocka_unit_test(test_states_on_disk),
        cmocka_unit_test(test_jobs_end_amid_drafts),
        cmocka_unit_test(test_end_token_in_draft),
        cmocka_unit_test(test_job_removed_between_drafts),
        cmocka_unit_test(test_device_samples_as_the_cpu),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
