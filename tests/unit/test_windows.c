/* SPDX-License-Identifier: Apache-2.0
 *
 * Generation with sliding-window layers gives the same tokens alone without drafts as in a batch
 * with shared prefixes and rejected drafts; also the number of cached prompt tokens.
 */
#include "batch.h"

#include "session.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

enum { CONTEXT = 1024, NEW = 24 };

typedef struct given {
    nib_job job;
    int32_t prompt[CONTEXT];
    int32_t ids[CONTEXT];
    int64_t count, cached, drafted, accepted;
    bool ended;
} given;

static bool keep_token(void *ctx, const nib_new_token *t)
{
    given *g = ctx;
    g->ids[g->count++] = t->id;
    return true;
}

static void keep_end(void *ctx, nib_finish finish, const nib_err *err)
{
    given *g = ctx;
    (void)finish;
    assert_null(err);
    g->cached = g->job.cached, g->drafted = g->job.drafted, g->accepted = g->job.accepted;
    g->ended = true;
}

/* A prompt whose first `common` tokens all prompts share. */
static void ask(given *g, int64_t length, int64_t common, int number)
{
    *g = (given){0};
    for (int64_t i = 0; i < length; i++)
        g->prompt[i] = (int32_t)((i * 7 + i / 50 + (i < common ? 0 : number)) % 100 + 2);
    g->job = (nib_job){.prompt = g->prompt,
                       .prompt_count = length,
                       .max_tokens = NEW,
                       .sampling = {.temperature = number % 2 ? 0 : 0.8,
                                    .top_p = 1,
                                    .repeat_penalty = 1,
                                    .seed = (uint64_t)number},
                       .lookup = 15,
                       .top = -1,
                       .ignore_ends = true,
                       .calls = {keep_token, keep_end},
                       .ctx = g};
}

static nib_batch *open_batch(opened *o, int sequences)
{
    nib_batch *b;
    *o = must_open(&(open_how){.path = "tests/golden/models/exaone4_window",
                               .dtype = "f32",
                               .threads = 2,
                               .sequences = sequences});
    assert_int_equal(nib__batch_open(&b, o->session, sequences, NULL), NIB_OK);
    for (size_t m = 1; m < COUNT(o->session->times.measured); m++) /* all drafts pay off */
        o->session->times.measured[m] = 1e-6 / (double)(m * m);
    return b;
}

static void finish_all(nib_batch *b)
{
    nib_err err;
    while (nib__batch_counts(b).jobs > 0)
        if (nib__batch_step(b, &err) != NIB_OK)
            fail_msg("%s", err.text);
}

static void assert_as_alone(const given *g)
{
    opened o;
    nib_batch *b = open_batch(&o, 1);
    given *again = calloc(1, sizeof *again);
    *again = *g;
    again->count = 0;
    again->job.ctx = again;
    again->job.prompt = again->prompt;
    again->job.lookup = 0;
    nib__batch_add(b, &again->job);
    finish_all(b);
    assert_int_equal(again->cached, 0);
    assert_int_equal(g->count, NEW);
    assert_memory_equal(g->ids, again->ids, NEW * sizeof *g->ids);
    free(again);
    nib__batch_close(b);
    close_opened(&o);
}

static void test_shared_prompts(void **state)
{
    static given all[4];
    static const int64_t lengths[] = {900, 720, 650, 980};
    opened o;
    nib_batch *b = open_batch(&o, 4);
    (void)state;
    for (int i = 0; i < 4; i++) {
        ask(&all[i], lengths[i], 600, i);
        nib__batch_add(b, &all[i].job);
    }
    finish_all(b);
    int64_t wrong = 0;
    for (int i = 0; i < 4; i++) {
        wrong += all[i].drafted - all[i].accepted;
        /* whole blocks, after the first request has read them */
        assert_int_equal(all[i].cached, i == 0 ? 0 : 600 / NIB_CACHE_BLOCK * NIB_CACHE_BLOCK);
        assert_as_alone(&all[i]);
    }
    assert_true(wrong > 0); /* some drafts were rolled back */
    nib__batch_close(b);
    close_opened(&o);
}

/* A conversation continues from the cache; a prompt that diverges far back does not, as the windows
 * have moved on. */
static void test_continued_conversation(void **state)
{
    static given first, later, before;
    opened o;
    nib_batch *b = open_batch(&o, 1);
    (void)state;
    ask(&first, 800, 800, 0);
    nib__batch_add(b, &first.job);
    finish_all(b);
    ask(&later, 900, 800, 1);
    memcpy(later.prompt + 800, first.ids, NEW * sizeof *first.ids);
    nib__batch_add(b, &later.job);
    finish_all(b);
    assert_int_equal(later.cached, 800 + NEW - 1);
    assert_as_alone(&later);
    ask(&before, 300, 200, 2);
    nib__batch_add(b, &before.job);
    finish_all(b);
    assert_int_equal(before.cached, 0);
    assert_as_alone(&before);
    nib__batch_close(b);
    close_opened(&o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shared_prompts),
        cmocka_unit_test(test_continued_conversation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
