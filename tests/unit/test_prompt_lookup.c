/* SPDX-License-Identifier: Apache-2.0
 *
 * Prompt lookup: what the index finds in texts, how long a draft is at which step times, and that
 * generation with right and wrong drafts writes the same text as without.
 */
#include "prompt_lookup.h"

#include "draft_length.h"
#include "failing.h"
#include "session.h"
#include "skipping.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "refused.h"

#include "kept.h"

enum { TEXT = 4000 };

static uint32_t next_random(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

static nib_lookup open_lookup(void)
{
    static nib_allocator a;
    nib_lookup l;
    a = nib__allocator_default();
    nib__lookup_open(&l, &a);
    return l;
}

static void must_add(nib_lookup *l, const int32_t *ids, size_t count)
{
    nib_err err;
    if (nib__lookup_put(l, ids, count, &err) != NIB_OK)
        fail_msg("%s", err.text);
}

/* The longest suffix of the text, up to 32 tokens, that occurred before; by brute force. */
static size_t longest_match(const int32_t *ids, size_t count)
{
    size_t best = 0;
    for (size_t end = 1; end < count; end++) {
        size_t n = 0;
        while (n < 32 && n < end && ids[end - 1 - n] == ids[count - 1 - n])
            n++;
        best = n > best ? n : best;
    }
    return best;
}

static size_t same_end(const int32_t *ids, size_t a, size_t b)
{
    size_t n = 0;
    while (n < 32 && n < a && n < b && ids[a - 1 - n] == ids[b - 1 - n])
        n++;
    return n;
}

/* Returns the length of the draft after a text, in a step without other sequences. */
static size_t choose(const nib_lookup *l, int32_t *ids, const double *seconds, size_t most)
{
    nib_draft draft = {.lookup = l, .most = most};
    const nib_draft_costs costs = {.tokens = 1, .seconds = seconds, .left = INFINITY};
    assert_true(nib__draft_lengths(&draft, 1, &costs, NIB_LOOKUP_MOST) == 0);
    nib__lookup_copy(l, ids, draft.count);
    return draft.count;
}

/* ---- the index ---- */

static void test_index_finds_the_longest_match(void **state)
{
    (void)state;
    const int32_t ids[] = {1, 2, 3, 4, 5, 6, 7, 3, 4, 8, 2, 3, 4};
    nib_lookup l = open_lookup();
    must_add(&l, ids, 9); /* 3 4 occurred before, followed by 5 */
    assert_int_equal(l.next, 4);
    assert_int_equal(l.length, 2);
    must_add(&l, ids, 10); /* 4 8 did not */
    assert_int_equal(l.next, 0);
    must_add(&l, ids, 12); /* 2 3 did */
    assert_int_equal(l.next, 3);
    must_add(&l, ids, 13); /* 2 3 4 rather than the later 3 4 */
    assert_int_equal(l.next, 4);
    assert_int_equal(l.length, 3);
    nib__lookup_close(&l);
}

/* Of equal matches the latest wins; a match near the end continues into the draft itself. */
static void test_repeating_text(void **state)
{
    (void)state;
    int32_t ids[32] = {9, 1, 2, 3, 1, 2, 3, 1};
    double flat[NIB_LOOKUP_MOST + 2];
    for (size_t i = 0; i < COUNT(flat); i++)
        flat[i] = 1;
    nib_lookup l = open_lookup();
    must_add(&l, ids, 8);
    assert_int_equal(l.next, 5);
    assert_int_equal(l.length, 4);
    assert_int_equal(choose(&l, ids, flat, 10), 10);
    for (int i = 8; i < 18; i++)
        assert_int_equal(ids[i], 1 + (i - 1) % 3);
    nib__lookup_close(&l);
}

/* Texts with few and with many different tokens, long enough to grow the index: all its matches are
 * real, and it finds nearly all of them. */
static void test_index_against_brute_force(void **state)
{
    (void)state;
    static int32_t ids[TEXT];
    static const uint32_t kinds[] = {2, 20, 300, 100000};
    uint32_t random = 7;
    for (size_t k = 0; k < COUNT(kinds); k++) {
        nib_lookup l = open_lookup();
        size_t there = 0, found = 0, shorter = 0;
        for (size_t i = 0; i < TEXT; i++) {
            const bool again = i > 600 && i % 200 < 100; /* half of the text repeats */
            ids[i] = again ? ids[i - 571] : (int32_t)(next_random(&random) % kinds[k]);
        }
        for (size_t count = 1; count <= TEXT; count++) {
            must_add(&l, ids, count);
            assert_true(l.next < count);
            const size_t most = longest_match(ids, count);
            there += most >= 2;
            found += l.next > 0;
            if (l.next == 0)
                continue;
            assert_int_equal(l.length, same_end(ids, l.next, count));
            assert_in_range(l.length, 2, most);
            shorter += l.length < (most < 4 ? most : 4);
        }
        assert_true(there > 0 && found <= there);
        if (found + there / 20 < there || shorter > there / 20)
            fail_msg("%u kinds: %zu of %zu found, %zu of them shorter", kinds[k], found, there,
                     shorter);
        nib__lookup_close(&l);
    }
}

static void test_no_memory(void **state)
{
    (void)state;
    static int32_t ids[TEXT];
    for (int left = 0; left < 3; left++) {
        failing f = {.left = left};
        const nib_allocator a = failing_allocator(&f);
        nib_lookup l;
        nib_err err;
        nib__lookup_open(&l, &a);
        nib_status status = NIB_OK;
        for (size_t count = 1; count <= 1000 && status == NIB_OK; count++)
            status = nib__lookup_put(&l, ids, count, &err);
        refused(NIB_NO_MEMORY, status, &err);
        nib__lookup_close(&l);
        assert_int_equal(f.live, 0);
    }
}

/* ---- length of a draft ---- */

/* Draft length for a match of 40 tokens, where matches were right with this probability. */
static size_t drafted(double right, const double *seconds, size_t most)
{
    int32_t ids[128] = {0};
    nib_lookup l = {.count = 60, .next = 50, .length = 40};
    for (int i = 0; i < NIB_LOOKUP_CLASSES; i++)
        l.right[i] = right;
    return choose(&l, ids, seconds, most);
}

static void test_draft_length_by_step_times(void **state)
{
    (void)state;
    double flat[34], linear[34], slow[34], steps[34];
    for (size_t m = 1; m < COUNT(flat); m++) {
        flat[m] = 1;
        linear[m] = (double)m;
        slow[m] = 1 + 0.2 * (double)(m - 1);
        steps[m] = m <= 4 ? 1.2 : 3; /* a kernel for 4 tokens */
    }
    assert_int_equal(drafted(1, flat, 32), 32);
    assert_int_equal(drafted(1, flat, 5), 5);
    assert_int_equal(drafted(1, flat, 0), 0);
    assert_int_equal(drafted(1, linear, 32), 0); /* no length pays off */
    assert_int_equal(drafted(1, slow, 32), 32);
    assert_int_equal(drafted(0, flat, 32), 0);
    assert_int_equal(drafted(0.1, slow, 32), 0);
    assert_int_equal(drafted(0.9, steps, 15), 3);
    assert_in_range(drafted(0.6, slow, 32), 1, 4);
    steps[1] = 2;
    assert_int_equal(drafted(0, steps, 15), 1); /* two tokens cost less than one */
}

/* Drafting soon stops when matches prove wrong, and resumes when they are right again. */
static void test_wrong_drafts_stop_drafting(void **state)
{
    (void)state;
    static int32_t ids[TEXT];
    double seconds[NIB_LOOKUP_MOST + 2];
    size_t count = 0, wrong = 0;
    for (size_t m = 1; m < COUNT(seconds); m++)
        seconds[m] = 1 + 0.1 * (double)m;
    nib_lookup l = open_lookup();
    for (int32_t i = 0; count < TEXT - 200; i++) { /* 1 2 3 4, then a new token */
        for (int32_t j = 1; j <= 4; j++)
            ids[count++] = j;
        must_add(&l, ids, count);
        wrong += choose(&l, ids, seconds, 15) > 0;
        ids[count++] = 1000 + i;
        must_add(&l, ids, count);
    }
    assert_in_range(wrong, 1, 60);
    for (int i = 0; i < 100; i++, count++)
        ids[count] = ids[count - 5];
    must_add(&l, ids, count);
    assert_int_equal(choose(&l, ids, seconds, 15), 15);
    nib__lookup_close(&l);
}

static bool near(double a, double b) { return a > 0.99 * b && a < 1.01 * b; }

static void test_measured_step_times(void **state)
{
    (void)state;
    nib_step_times t = {0};
    double s[NIB_LOOKUP_MOST + 2];
    for (size_t m = 1; m < COUNT(t.predicted); m++)
        t.predicted[m] = (double)m;
    nib__step_times_add(&t, 1, 2);
    nib__step_times_fill(&t, 1, 4, s); /* twice the prediction, plus a fifth for uncertainty */
    assert_true(near(s[1], 2) && near(s[2], 1.2 * 4) && near(s[4], 1.2 * 8));
    nib__step_times_add(&t, 5, 3);
    nib__step_times_fill(&t, 1, NIB_LOOKUP_MOST + 1, s);
    assert_true(near(s[1], 2) && near(s[2], 1.2 * 2.25) && near(s[4], 1.2 * 2.75));
    assert_true(near(s[5], 3) && near(s[6], 1.2 * 6 * 0.6) && near(s[65], 1.2 * 65 * 0.6));
    nib__step_times_fill(&t, 1, 3, s); /* as above */
    assert_true(near(s[2], 1.2 * 2.25) && near(s[3], 1.2 * 2.5));
    nib__step_times_add(&t, 5, 300); /* an outlier */
    nib__step_times_fill(&t, 1, 5, s);
    assert_true(s[5] < 3.1);
    for (int i = 0; i < 400; i++) /* it stays slow */
        nib__step_times_add(&t, 5, 300);
    nib__step_times_fill(&t, 1, 5, s);
    assert_true(s[5] == 300);
    for (int i = 0; i < 30000; i++) /* stale times expire */
        nib__step_times_add(&t, 1, 2);
    nib__step_times_fill(&t, 1, 5, s);
    assert_true(s[5] < 0.1 && s[1] > 1.9);
}

/* ---- generation ---- */

/* A rejected draft of any length, on either side of a cache block boundary, leaves no trace: later
 * logits have the bits of a session without drafts. */
static void test_rejected_draft_leaves_no_trace(void **state)
{
    (void)state;
    enum { LENGTH = 70, TOKENS = 100 /* valid in every model */ };
    static const struct {
        const char *path, *recipe;
    } cases[] = {{"models/nibble-tales", NULL},
                 {"models/nibble-tales", "8da4w"},
                 {"models/nibble-tales", "int4wo"},
                 {"tests/golden/models/llama2", NULL},
                 {"tests/golden/models/llama3", "int8wo"},
                 {"tests/golden/models/llama_bias", "8da4w"},
                 {"tests/golden/models/mistral", NULL},
                 {"tests/golden/models/qwen2", NULL},
                 {"tests/golden/models/qwen3", "int8dq"},
                 {"tests/golden/models/smollm3", "8da4w"},
                 {"tests/golden/models/olmo2", "int8wo"},
                 {"tests/golden/models/exaone4", NULL},
                 {"tests/golden/gguf/llama.gguf", NULL}};
    for (size_t c = 0; c < COUNT(cases); c += (size_t)sparse(2)) {
        const open_how how = {.path = cases[c].path, .recipe = cases[c].recipe, .context = 96};
        opened plain = must_open(&how), o = must_open(&how);
        const int64_t vocab = nib_session_vocab(o.session);
        uint32_t random = 5;
        for (int32_t at = 0; at < LENGTH; at++) {
            const int32_t token = (int32_t)(next_random(&random) % TOKENS);
            const int drafts = at % 16;
            const float *want, *got;
            const nib_slot one = {0, at, token, NIB_SLOT_LOGITS};
            nib_slot slots[16];
            for (int i = 0; i <= drafts; i++)
                slots[i] = (nib_slot){0, at + i, (token + i) % TOKENS, NIB_SLOT_LOGITS};
            nib_err err;
            if (nib_session_step(plain.session, &one, 1, &want, &err) != NIB_OK ||
                nib_session_step(o.session, slots, (size_t)drafts + 1, &got, &err) != NIB_OK ||
                nib_session_truncate(o.session, 0, at + 1, &err) != NIB_OK)
                fail_msg("%s", err.text);
            assert_memory_equal(got, want, (size_t)vocab * sizeof *want);
        }
        close_opened(&o);
        close_opened(&plain);
    }
}

static nib_generate_stats generate(const opened *o, const nib_generate_options *options, kept *out)
{
    *out = (kept){.size = 0};
    const nib_sink sink = {keep, out};
    nib_generate_stats stats = {.size = sizeof stats};
    nib_err err;
    if (nib_generate(o->session, options, &sink, &stats, &err) != NIB_OK)
        fail_msg("%s", err.text);
    return stats;
}

/* Times for which every draft pays: measured ones are longer and hardly change them. */
static void draft_always(nib_session *s)
{
    for (size_t m = 1; m < COUNT(s->times.measured); m++)
        s->times.measured[m] = 1e-6 / (double)(m * m);
}

static opened open_with(int64_t lookup, const char *recipe, int64_t context)
{
    const nib_request request = {.recipe = recipe, .context = context, .lookup = lookup};
    const nib_engine_options options = {.threads = 1};
    opened o = {0};
    nib_err err;
    bool ok = nib_engine_open(&o.engine, &options, &err) == NIB_OK;
    if (ok)
        o.engine->measured = true; /* skip measuring: times are set below */
    ok = ok && nib_model_open(&o.model, o.engine, "models/nibble-tales", NULL, &err) == NIB_OK &&
         nib_plan_open(&o.plan, o.model, &request, &err) == NIB_OK &&
         nib_session_open(&o.session, o.model, o.plan, 1, &err) == NIB_OK;
    if (!ok)
        fail_msg("%s", err.text);
    draft_always(o.session);
    return o;
}

#define REPEATED "The wolf said to the king, I will come. The wolf said to the king, I will come. "

/* The same text with any drafts: greedy and sampled, with stop strings and limits. */
static void test_drafts_do_not_change_the_text(void **state)
{
    (void)state;
    static const char *const stop[] = {"wolf", "said"};
    static const struct {
        const char *recipe, *prompt;
        nib_generate_options options;
    } cases[] = {
        {NULL, REPEATED "The wolf", {.temperature = -1, .ignore_eos = true}},
        {"8da4w", REPEATED "The wolf", {.temperature = -1, .ignore_eos = true, .max_tokens = 77}},
        {"int8wo", REPEATED "The wolf", {.temperature = 0.8, .seed = 1, .max_tokens = 150}},
        {NULL, REPEATED "The king", {.temperature = 0.8, .seed = 2, .ignore_eos = true}},
        {NULL, REPEATED, {.temperature = 0.3, .seed = 3, .repeat_penalty = 1.1}},
        {NULL, REPEATED, {.temperature = 1, .seed = 4, .stop = {stop, 2}}},
        {NULL, "Once upon a time", {.temperature = 1, .seed = 5}},
        {NULL, "Once upon a time", {.temperature = -1, .ignore_eos = true}},
    };
    int64_t drafts = 0, wrong = 0, faster = 0;
    for (size_t i = 0; i < COUNT(cases); i += (size_t)sparse(3)) {
        kept without, with;
        nib_generate_options options = cases[i].options;
        options.prompt = cases[i].prompt;
        if (sparse(2) > 1 && (options.max_tokens == 0 || options.max_tokens > 60))
            options.max_tokens = 60;
        options.top_k = 40, options.top_p = 0.95, options.min_p = 0.05;
        opened o = open_with(-1, cases[i].recipe, 300);
        const nib_generate_stats a = generate(&o, &options, &without);
        const int32_t held = o.session->runner.kv.lengths[0];
        close_opened(&o);
        assert_true(a.lookup == 0 && a.drafted == 0 && a.accepted == 0);
        const int64_t most[] = {0, 1, 7, NIB_LOOKUP_MOST};
        for (size_t m = 0; m < COUNT(most); m += (size_t)sparse(3)) {
            o = open_with(most[m], cases[i].recipe, 300);
            const nib_generate_stats b = generate(&o, &options, &with);
            assert_int_equal(o.session->runner.kv.lengths[0], held);
            close_opened(&o);
            assert_string_equal(with.text, without.text);
            assert_int_equal(b.finish, a.finish);
            assert_int_equal(b.new_tokens, a.new_tokens);
            assert_int_equal(b.cache_bytes, a.cache_bytes);
            assert_int_equal(b.lookup, most[m] > 0 ? most[m] : NIB_LOOKUP_USUAL);
            assert_true(b.accepted <= b.drafted && b.steps <= a.steps);
            drafts += b.drafted;
            wrong += b.drafted - b.accepted;
            faster += a.steps - b.steps;
        }
    }
    assert_true(drafts > 0 && wrong > 0 && faster > 0);
}

/* Cancels after the nth token, which may be inside a draft. */
static bool cancel_at(void *ctx, const char *what, uint64_t done, uint64_t total)
{
    (void)total;
    return strcmp(what, "generate") != 0 || done < *(const uint64_t *)ctx;
}

static void test_cancelling_inside_a_draft(void **state)
{
    (void)state;
    uint64_t at;
    const nib_callbacks back = {.progress = cancel_at, .ctx = &at};
    const nib_generate_options options = {.prompt = REPEATED "The wolf",
                                          .temperature = -1,
                                          .top_p = 1,
                                          .repeat_penalty = 1,
                                          .ignore_eos = true};
    opened plain = open_with(-1, NULL, 300), o = open_with(7, NULL, 300);
    int64_t accepted = 0;
    plain.engine->callbacks = o.engine->callbacks = back;
    for (at = 1; at < 40; at += (uint64_t)sparse(4)) {
        kept without, with;
        draft_always(o.session);
        const nib_generate_stats a = generate(&plain, &options, &without);
        const nib_generate_stats b = generate(&o, &options, &with);
        assert_string_equal(with.text, without.text);
        assert_int_equal(a.finish, NIB_FINISH_CANCELLED);
        assert_int_equal(b.finish, NIB_FINISH_CANCELLED);
        assert_true(a.new_tokens == (int64_t)at && b.new_tokens == (int64_t)at);
        assert_int_equal(o.session->runner.kv.lengths[0], plain.session->runner.kv.lengths[0]);
        accepted += b.accepted;
    }
    assert_true(accepted > 0);
    close_opened(&o);
    close_opened(&plain);
}

static void test_lookup_requests(void **state)
{
    (void)state;
    opened o = open_with(NIB_LOOKUP_MOST, NULL, 100);
    nib_plan *plan;
    nib_err err;
    const nib_request over = {.lookup = NIB_LOOKUP_MOST + 1};
    refused(NIB_USAGE, nib_plan_open(&plan, o.model, &over, &err), &err);
    /* a device's rows round differently */
    for (int strict = 0; strict < 2; strict++) {
        const nib_request there = {.device = "h200", .lookup = 8, .strict = strict};
        assert_int_equal(nib_plan_open(&plan, o.model, &there, &err), NIB_OK);
        assert_int_equal(plan->lookup, 0);
        assert_int_equal(nib_plan_status(plan, &err), strict ? NIB_NOT_AS_ASKED : NIB_OK);
        nib_plan_close(plan);
    }
    close_opened(&o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_index_finds_the_longest_match),
        cmocka_unit_test(test_repeating_text),
        cmocka_unit_test(test_index_against_brute_force),
        cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_draft_length_by_step_times),
        cmocka_unit_test(test_wrong_drafts_stop_drafting),
        cmocka_unit_test(test_measured_step_times),
        cmocka_unit_test(test_rejected_draft_leaves_no_trace),
        cmocka_unit_test(test_drafts_do_not_change_the_text),
        cmocka_unit_test(test_cancelling_inside_a_draft),
        cmocka_unit_test(test_lookup_requests),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
