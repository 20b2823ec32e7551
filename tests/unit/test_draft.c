/* SPDX-License-Identifier: Apache-2.0
 *
 * Draft models (draft.c, draft_model.c, draft_length.c, plan_draft.c): the same text with any draft
 * model of the same vocabulary as without, the length of its drafts, the bound on what drafts in
 * vain may cost, and what is refused.
 */
#include "draft.h"

#include "nibble_tools.h"
#include "session.h"
#include "skipping.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "refused.h"

#include "kept.h"

#define TALES "models/nibble-tales"

/* ---- length and bound ---- */

/* A token of the draft model costs a tenth of a step. */
static double tenth(const void *ctx, int64_t m)
{
    (void)ctx;
    return 0.1 * (double)m;
}

static void flat_seconds(double *seconds)
{
    for (size_t m = 0; m < NIB_LOOKUP_MOST + 2; m++)
        seconds[m] = 1 + 0.01 * (double)m;
}

static size_t length_of(double rate, int64_t unread, double left)
{
    double seconds[NIB_LOOKUP_MOST + 2];
    flat_seconds(seconds);
    const nib_draft_costs costs = {
        .tokens = 1, .seconds = seconds, .model_step = tenth, .left = left};
    nib_draft draft = {.rate = rate, .unread = unread, .most = 15};
    const double model_s = nib__draft_lengths(&draft, 1, &costs, 32);
    const double want = draft.count == 0 ? 0 : 0.1 * (double)(unread + (int64_t)draft.count - 1);
    assert_true(fabs(model_s - want) < 1e-9);
    return draft.count;
}

static void test_draft_length_of_a_model(void **state)
{
    (void)state;
    assert_int_equal(length_of(1, 1, INFINITY), 15);
    assert_int_equal(length_of(0.05, 1, INFINITY), 0);
    assert_in_range(length_of(0.5, 1, INFINITY), 1, 4);
    assert_in_range(length_of(0.8, 1, INFINITY), 4, 9);
    assert_in_range(length_of(0.5, 20, INFINITY), 1, 4); /* reading is paid once */
    assert_int_equal(length_of(0.5, 20, 1.9), 0);        /* but counts for what may be lost */
    assert_int_equal(length_of(1, 1, 0.35), 3);          /* what may be lost limits the length */
    assert_int_equal(length_of(1, 1, 0.05), 0);
    assert_int_equal(length_of(1, 30, 0.5), 0);
}

/* Two texts: the likelier guesses come first, and a step of the model serves both. */
static void test_draft_lengths_of_two_texts(void **state)
{
    (void)state;
    double seconds[NIB_LOOKUP_MOST + 2];
    flat_seconds(seconds);
    const nib_draft_costs costs = {
        .tokens = 2, .seconds = seconds, .model_step = tenth, .left = INFINITY};
    nib_draft drafts[] = {{.rate = 0.3, .unread = 1, .most = 15},
                          {.rate = 0.9, .unread = 2, .most = 15}};
    const double model_s = nib__draft_lengths(drafts, 2, &costs, 32);
    assert_true(drafts[0].count < drafts[1].count && drafts[1].count >= 3);
    assert_true(model_s > 0.1 * (double)drafts[1].count);
}

/* Whatever drafts cost and gain, at most 3 % of the time without them is in vain, as long as no
 * step loses more than it may. */
static void test_bound_on_drafts_in_vain(void **state)
{
    (void)state;
    for (uint32_t chance = 0; chance <= 100; chance += 10) { /* of a right draft */
        nib_draft_budget b = {0};
        uint32_t random = chance + 1;
        double total = 0;
        for (int i = 0; i < 20000; i++) {
            random = random * 1664525u + 1013904223u;
            const double lost = 0.01 * (double)((random >> 8) % 300);
            const bool drafts = lost <= nib__draft_budget_left(&b, i % 2 == 0);
            const bool right = (random >> 20) % 100 < chance;
            const double without = drafts && right ? 3 : 1, taken = drafts ? 1 + lost : 1;
            nib__draft_budget_add(&b, taken, without, 1);
            total += taken;
            assert_true(b.vain_s <= 0.03 * b.without_s + 1e-9);
            assert_true(total <= 1.03 * b.without_s + 1e-6);
        }
        if (chance == 0)
            assert_true(b.vain_s > 0.02 * b.without_s); /* the bound is what stops them */
    }
}

static void test_rate_of_accepted_tokens(void **state)
{
    (void)state;
    nib_draft_rate r = {.accepted = 0.7};
    for (int i = 0; i < 100; i++)
        nib__draft_rate_add(&r, 0, 1, false);
    assert_true(r.accepted < 0.01);
    for (int i = 0; i < 4; i++) /* few probes tell that drafts are right again */
        nib__draft_rate_add(&r, 1, 1, true);
    assert_true(r.accepted > 0.5);
    for (int i = 0; i < 100; i++)
        nib__draft_rate_add(&r, 4, 5, false);
    assert_true(r.accepted > 0.7 && r.accepted < 0.9);
}

/* ---- models ---- */

static char root[] = "/tmp/nibble-draft-XXXXXX", other[64], wrong[64], letters[64];

static void copy(const char *to, const char *name, bool scramble)
{
    char path[256];
    snprintf(path, sizeof path, TALES "/%s", name);
    FILE *from = fopen(path, "rb");
    snprintf(path, sizeof path, "%s/%s", to, name);
    FILE *out = fopen(path, "wb");
    uint8_t bytes[4096];
    uint64_t head = 0, at = 0;
    uint32_t random = 3;
    assert_true(from != NULL && out != NULL);
    for (size_t n; (n = fread(bytes, 1, sizeof bytes, from)) > 0; at += n) {
        if (at == 0)
            memcpy(&head, bytes, sizeof head);
        for (size_t i = 0; scramble && i < n; i++) {
            random = random * 1664525u + 1013904223u;
            if (at + i < head + 8) /* the header of a safetensors file */
                continue;
            /* bf16: any sign and mantissa, a small exponent */
            bytes[i] = (at + i) % 2 == head % 2 ? (uint8_t)(random >> 24)
                                                : (uint8_t)((random >> 24 & 0x80) | 0x3c);
        }
        assert_int_equal(fwrite(bytes, 1, n, out), n);
    }
    fclose(from);
    assert_int_equal(fclose(out), 0);
}

/* Copies of nibble-tales: one with random weights, one whose tokens 1000 and 1001 are swapped. And
 * a tokenizer of two letters, for models of the tree that have none. */
static int make_models(void **state)
{
    (void)state;
    static const char *const names[] = {"config.json", "generation_config.json", "tokenizer.json",
                                        "tokenizer_config.json"};
    char command[256];
    if (mkdtemp(root) == NULL)
        return 1;
    snprintf(other, sizeof other, "%s/other", root);
    snprintf(wrong, sizeof wrong, "%s/wrong", root);
    snprintf(letters, sizeof letters, "%s/tokenizer.json", root);
    snprintf(command, sizeof command, "mkdir %s %s", other, wrong);
    if (system(command) != 0)
        return 1;
    for (size_t i = 0; i < COUNT(names); i++) {
        copy(other, names[i], false);
        copy(wrong, names[i], false);
    }
    FILE *out = fopen(letters, "wb");
    assert_non_null(out);
    fputs("{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0, \"b\": 1}, \"merges\": []}}", out);
    assert_int_equal(fclose(out), 0);
    copy(other, "model.safetensors", true);
    copy(wrong, "model.safetensors", false);
    snprintf(command, sizeof command,
             "sed -i 's/words\": 1000,/words\": 1001,/; s/\"ting\": 1001,/\"ting\": 1000,/' "
             "%s/tokenizer.json",
             wrong);
    return system(command);
}

static int remove_models(void **state)
{
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -r %s", root);
    return system(command);
}

/* A session with a draft model; draft NULL: none. */
typedef struct drafting {
    opened o;
    nib_model *draft;
} drafting;

/* model, and draft unless it is NULL: with the tokenizer, or their own if it is NULL. */
static drafting open_pair(const char *model, const char *draft, const char *tokenizer,
                          nib_request request, int sequences)
{
    const nib_engine_options options = {.threads = 1};
    const nib_model_options named = {.tokenizer = tokenizer};
    drafting d = {0};
    nib_err err;
    bool ok = nib_engine_open(&d.o.engine, &options, &err) == NIB_OK;
    if (ok)
        d.o.engine->measured = true; /* fixed rates */
    ok = ok && nib_model_open(&d.o.model, d.o.engine, model, &named, &err) == NIB_OK &&
         (draft == NULL || nib_model_open(&d.draft, d.o.engine, draft, &named, &err) == NIB_OK);
    request.sequences = sequences;
    request.draft = d.draft;
    ok = ok && nib_plan_open(&d.o.plan, d.o.model, &request, &err) == NIB_OK &&
         nib_session_open(&d.o.session, d.o.model, d.o.plan, sequences, &err) == NIB_OK;
    if (!ok)
        fail_msg("%s", err.text);
    assert_int_equal(d.draft != NULL, nib_plan_draft(d.o.plan) != NULL);
    return d;
}

static drafting open_drafting(const char *draft, const char *recipe, int64_t lookup,
                              int64_t context, int sequences)
{
    return open_pair(TALES, draft, NULL,
                     (nib_request){.context = context, .lookup = lookup, .draft_recipe = recipe},
                     sequences);
}

static void close_drafting(drafting *d)
{
    nib_model_close(d->draft); /* the plan keeps it */
    close_opened(&d->o);
}

/* Times for which every draft pays. */
static void draft_always(const drafting *d)
{
    nib_session *s = d->o.session;
    for (size_t m = 1; m < COUNT(s->times.measured); m++) {
        s->times.measured[m] = 1e-3 / (double)m;
        if (s->draft != NULL)
            s->draft->times.measured[m] = 1e-9;
    }
    s->rate.accepted = 0.9;
}

/* Draws one text in steps, before each of which every draft pays. */
static nib_generate_stats generate(const drafting *d, const nib_generate_options *options,
                                   kept *out)
{
    nib_generate_stats stats = {.size = sizeof stats};
    nib_generator *g;
    nib_err err;
    *out = (kept){.size = 0};
    if (nib_generator_open(&g, d->o.session, options, &err) != NIB_OK)
        fail_msg("%s", err.text);
    for (nib_piece piece = {.size = sizeof piece}; !piece.over;) {
        draft_always(d);
        if (nib_generator_next(g, &piece, &err) != NIB_OK)
            fail_msg("%s", err.text);
        assert_int_equal(keep(out, piece.text, piece.text_size), NIB_OK);
        for (size_t i = 0; i < piece.likeliest_count; i++) {
            char line[64];
            snprintf(line, sizeof line, "%.17g ", piece.likeliest[i].logprob);
            assert_int_equal(keep(out, line, strlen(line)), NIB_OK);
        }
    }
    nib_generator_stats_get(g, &stats);
    nib_generator_close(g);
    return stats;
}

/* ---- the same text ---- */

#define REPEATED "The wolf said to the king, I will come. The wolf said to the king, I will come. "

static void test_drafts_do_not_change_the_text(void **state)
{
    static const char *const stop[] = {"wolf", "said"};
    static const char list[] =
        "{\"type\": \"array\", \"items\": {\"enum\": [\"wolf\", \"king\"]}, \"minItems\": 9}";
    static const nib_generate_options cases[] = {
        {.temperature = -1, .ignore_eos = true},
        {.temperature = 0.8, .seed = 1, .max_tokens = 150},
        {.temperature = 1, .top_k = -1, .top_p = 1, .min_p = -1, .seed = 2, .ignore_eos = true},
        {.temperature = 0.6, .seed = 3, .repeat_penalty = 1.2, .max_tokens = 100},
        {.temperature = 1, .seed = 4, .stop = {stop, 2}},
        {.temperature = 0.9, .seed = 5, .schema = list, .max_tokens = 120},
        {.temperature = 0.5, .seed = 6, .logprobs = 2, .max_tokens = 60},
    };
    static const struct {
        const char *draft, *recipe;
        int64_t lookup;
    } drafts[] = {{TALES, NULL, -1}, {TALES, "int4wo", -1}, {TALES, "8da4w", 15}, {NULL, NULL, -1}};
    static kept without, with;
    int64_t drafted[COUNT(drafts)] = {0}, accepted[COUNT(drafts)] = {0};
    (void)state;
    for (size_t i = 0; i < COUNT(cases); i += (size_t)sparse(3)) {
        nib_generate_options options = cases[i];
        options.prompt = i % 2 == 0 ? "Once upon a time" : REPEATED;
        if (sparse(2) > 1 && (options.max_tokens == 0 || options.max_tokens > 40))
            options.max_tokens = 40;
        drafting plain = open_drafting(NULL, NULL, -1, 256, 1);
        const nib_generate_stats a = generate(&plain, &options, &without);
        const int32_t held = plain.o.session->runner.kv.lengths[0];
        close_drafting(&plain);
        assert_true(a.drafts == 0 && a.model_drafted == 0 && a.model_s == 0);
        for (size_t j = i % (size_t)sampled(2); j < COUNT(drafts);
             j += (size_t)(sparse(2) > 1 ? 3 : sampled(2))) {
            const char *draft = drafts[j].draft != NULL ? drafts[j].draft : other;
            drafting d = open_drafting(draft, drafts[j].recipe, drafts[j].lookup, 256, 1);
            const nib_generate_stats b = generate(&d, &options, &with);
            assert_int_equal(d.o.session->runner.kv.lengths[0], held);
            close_drafting(&d);
            assert_string_equal(with.text, without.text);
            assert_int_equal(b.finish, a.finish);
            assert_int_equal(b.new_tokens, a.new_tokens);
            assert_int_equal(b.drafts, NIB_LOOKUP_USUAL);
            assert_true(b.model_accepted <= b.model_drafted && b.model_drafted <= b.drafted);
            assert_true((b.model_drafted > 0) == (b.model_s > 0));
            drafted[j] += b.model_drafted, accepted[j] += b.model_accepted;
            if (j == 0 && cases[i].stop.count == 0) /* the model itself guesses what it draws */
                assert_int_equal(b.model_accepted, b.model_drafted);
        }
    }
    const int64_t part = sparse(5) * sampled(2);
    assert_true(accepted[0] > 300 / part && drafted[3] > 100 / part);
    if (part == 1)
        assert_true(accepted[1] > 200 && accepted[2] > 100 && drafted[1] > accepted[1]);
    assert_true(accepted[3] < drafted[3] / 10);
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
    const nib_generate_options options = {
        .prompt = "Once upon a time", .temperature = -1, .ignore_eos = true};
    drafting d = open_drafting(TALES, NULL, -1, 256, 1),
             plain = open_drafting(NULL, NULL, -1, 256, 1);
    static kept texts[2];
    int64_t accepted = 0;
    d.o.engine->callbacks = plain.o.engine->callbacks = back;
    for (at = 1; at < 40; at += 3 * (uint64_t)(sparse(3) * sampled(2))) {
        nib_generate_stats stats[2] = {{.size = sizeof stats[0]}, {.size = sizeof stats[0]}};
        for (int i = 0; i < 2; i++) {
            const nib_sink sink = {keep, &texts[i]};
            nib_err err;
            texts[i] = (kept){.size = 0};
            draft_always(i ? &d : &plain);
            if (nib_generate((i ? &d : &plain)->o.session, &options, &sink, &stats[i], &err) !=
                NIB_OK)
                fail_msg("%s", err.text);
        }
        assert_string_equal(texts[0].text, texts[1].text);
        assert_true(stats[1].new_tokens == (int64_t)at);
        assert_int_equal(stats[1].finish, NIB_FINISH_CANCELLED);
        assert_int_equal(d.o.session->runner.kv.lengths[0], plain.o.session->runner.kv.lengths[0]);
        accepted += stats[1].model_accepted;
    }
    assert_true(accepted > 0);
    close_drafting(&plain);
    close_drafting(&d);
}

/* ---- several jobs ---- */

enum { JOBS = 12, TOKENS = 512 };

typedef struct text {
    nib_job job;
    int32_t prompt[160], ids[TOKENS];
    int64_t count;
    bool over;
} text;

static bool take(void *ctx, const nib_new_token *t)
{
    text *x = ctx;
    x->ids[x->count++] = t->id;
    return x->count < 61;
}

static void ended(void *ctx, nib_finish finish, const nib_err *err)
{
    text *x = ctx;
    (void)finish;
    x->over = true;
    if (err != NULL)
        fail_msg("%s", err->text);
}

/* Draws the texts of all jobs, which come and go, and returns the counts of the batch. */
static nib_batch_counts draw_all(text *texts, const drafting *d, int sequences)
{
    nib_batch *b;
    nib_err err;
    assert_int_equal(nib__batch_open(&b, d->o.session, sequences, &err), NIB_OK);
    const int64_t ids = nib__min(nib_session_vocab(d->o.session) - 5, 500);
    for (int i = 0; i < JOBS; i++) {
        text *x = &texts[i];
        *x = (text){.count = 0};
        x->job = (nib_job){.prompt = x->prompt,
                           .prompt_count = 3 + i * 11 % 150,
                           .max_tokens = (20 + i * 7) / sparse(3),
                           .sampling = {.temperature = i % 3 == 0 ? 0 : 0.8,
                                        .top_p = 0.95,
                                        .repeat_penalty = i % 4 == 0 ? 1.2 : 1,
                                        .top_k = 40,
                                        .seed = (uint64_t)i},
                           .adjust = {.presence_penalty = i % 5 == 0 ? 0.5 : 0},
                           .top = -1,
                           .ignore_ends = true,
                           .choice = i % 2,
                           .calls = {take, ended},
                           .ctx = x};
        for (int64_t j = 0; j < x->job.prompt_count; j++)
            x->prompt[j] = (int32_t)((j * (i % 3 + 3)) % ids + 5);
    }
    for (int next = 0; next < JOBS || nib__batch_counts(b).jobs > 0;) {
        for (int i = 0; i < 2 && next < JOBS && nib__batch_room(b) > 0; i++)
            nib__batch_add(b, &texts[next++].job);
        draft_always(d);
        if (nib__batch_step(b, &err) != NIB_OK)
            fail_msg("%s", err.text);
    }
    const nib_batch_counts counts = nib__batch_counts(b);
    nib__batch_close(b);
    return counts;
}

static void test_several_jobs_share_the_steps(void **state)
{
    (void)state;
    static text want[JOBS], got[JOBS];
    drafting plain = open_drafting(NULL, NULL, -1, TOKENS, 1);
    (void)draw_all(want, &plain, 1);
    close_drafting(&plain);
    static const struct {
        const char *draft, *recipe;
    } drafts[] = {{TALES, NULL}, {TALES, "int4wo"}, {NULL, NULL}};
    for (size_t j = 0; j < COUNT(drafts); j += (size_t)sparse(2))
        for (int sequences = sparse(5); sequences <= 5; sequences += 2 * sampled(2)) {
            drafting d = open_drafting(drafts[j].draft != NULL ? drafts[j].draft : other,
                                       drafts[j].recipe, -1, TOKENS, sequences);
            const nib_batch_counts c = draw_all(got, &d, sequences);
            for (int i = 0; i < JOBS; i++) {
                assert_true(got[i].over && got[i].count == want[i].count);
                assert_memory_equal(got[i].ids, want[i].ids, sizeof want[i].ids);
            }
            assert_true(c.guessed > 50 && c.guessed == c.drafted);
            assert_true(j == 2 ? c.guessed_right < c.guessed / 10 : c.guessed_right > 50);
            close_drafting(&d);
        }
}

/* Models with convolutions, DeltaNet or Mamba-2, and draft models with them: what is guessed wrong
 * leaves no trace in states either. Some keep keys and values in few bits. */
static void test_states_and_cache_types(void **state)
{
    (void)state;
    static const struct {
        const char *model, *draft, *cache;
        bool same;
    } cases[] = {{"granite_hybrid", "granite_hybrid", NULL, true},
                 {"qwen3_5", "qwen3_5", "int8:int4", true},
                 {"lfm2", "granite_hybrid", "int4-hadamard", false},
                 {"qwen3_next", "granite_hybrid_moe", NULL, false},
                 {"granite_hybrid", "lfm2", "int4", false},
                 {"qwen3_5", "lfm2", NULL, false},
                 {"qwen3", "qwen3", "int4-hadamard", true}};
    static text want[JOBS], got[JOBS];
    for (size_t i = 0; i < COUNT(cases); i++) {
        char model[64], draft[64];
        const nib_request request = {.context = TOKENS, .lookup = -1, .cache = cases[i].cache};
        snprintf(model, sizeof model, "tests/golden/models/%s", cases[i].model);
        snprintf(draft, sizeof draft, "tests/golden/models/%s", cases[i].draft);
        drafting plain = open_pair(model, NULL, letters, request, 1);
        (void)draw_all(want, &plain, 1);
        close_drafting(&plain);
        drafting d = open_pair(model, draft, letters, request, 3);
        const nib_batch_counts c = draw_all(got, &d, 3);
        close_drafting(&d);
        for (int j = 0; j < JOBS; j++) {
            assert_int_equal(got[j].count, want[j].count);
            assert_memory_equal(got[j].ids, want[j].ids, sizeof want[j].ids);
        }
        assert_true(c.guessed > 30 && c.guessed_right < c.guessed);
        assert_true(!cases[i].same || c.guessed_right > 30);
    }
}

/* ---- requests ---- */

static void test_requests(void **state)
{
    (void)state;
    const nib_engine_options options = {.threads = 1};
    nib_engine *engine, *second;
    nib_model *model, *draft, *foreign;
    nib_plan *plan;
    nib_err err;
    assert_int_equal(nib_engine_open(&engine, &options, &err), NIB_OK);
    engine->measured = true;
    assert_int_equal(nib_engine_open(&second, &options, &err), NIB_OK);
    assert_int_equal(nib_model_open(&model, engine, TALES, NULL, &err), NIB_OK);
    assert_int_equal(nib_model_open(&draft, engine, other, NULL, &err), NIB_OK);
    assert_int_equal(nib_model_open(&foreign, second, TALES, NULL, &err), NIB_OK);
    refused(NIB_USAGE, nib_plan_open(&plan, model, &(nib_request){.draft = foreign}, &err), &err);
    refused(NIB_USAGE, nib_plan_open(&plan, model, &(nib_request){.draft_recipe = "8da4w"}, &err),
            &err);
    refused(NIB_USAGE,
            nib_plan_open(&plan, model, &(nib_request){.draft = draft, .draft_recipe = "x9"}, &err),
            &err);
    nib_model_close(foreign);
    assert_int_equal(nib_model_open(&foreign, engine, wrong, NULL, &err), NIB_OK);
    refused(NIB_BAD_INPUT, nib_plan_open(&plan, model, &(nib_request){.draft = foreign}, &err),
            &err);
    nib_model_close(foreign);
    assert_int_equal(nib_model_open(&foreign, engine, "tests/golden/models/llama2", NULL, &err),
                     NIB_OK);
    assert_true(nib_plan_open(&plan, model, &(nib_request){.draft = foreign}, &err) != NIB_OK);
    /* memory: both models count */
    nib_request request = {.draft = draft, .memory = 1 << 30};
    assert_int_equal(nib_plan_open(&plan, model, &request, &err), NIB_OK);
    assert_int_equal(nib_plan_status(plan, &err), NIB_OK);
    const uint64_t both = plan->weight_bytes + plan->cache.bytes + plan->draft->weight_bytes +
                          plan->draft->cache.bytes;
    nib_plan_close(plan);
    for (int fits = 0; fits < 2; fits++) {
        request.memory = both - !fits;
        assert_int_equal(nib_plan_open(&plan, model, &request, &err), NIB_OK);
        assert_int_equal(nib_plan_status(plan, &err), fits ? NIB_OK : NIB_NO_MEMORY);
        nib_plan_close(plan);
    }
    /* a device's rows round differently: no drafts, and a line says so */
    for (int strict = 0; strict < 2; strict++) {
        const nib_request there = {.device = "h200", .draft = draft, .strict = strict};
        assert_int_equal(nib_plan_open(&plan, model, &there, &err), NIB_OK);
        assert_true(plan->drafts == 0 && nib_plan_draft(plan) == NULL);
        assert_int_equal(nib_plan_status(plan, &err), strict ? NIB_NOT_AS_ASKED : NIB_OK);
        nib_plan_close(plan);
    }
    nib_model_close(foreign);
    nib_model_close(draft);
    nib_model_close(model);
    nib_engine_close(second);
    nib_engine_close(engine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_draft_length_of_a_model),
        cmocka_unit_test(test_draft_lengths_of_two_texts),
        cmocka_unit_test(test_bound_on_drafts_in_vain),
        cmocka_unit_test(test_rate_of_accepted_tokens),
        cmocka_unit_test(test_drafts_do_not_change_the_text),
        cmocka_unit_test(test_cancelling_inside_a_draft),
        cmocka_unit_test(test_several_jobs_share_the_steps),
        cmocka_unit_test(test_states_and_cache_types),
        cmocka_unit_test(test_requests),
    };
    return cmocka_run_group_tests(tests, make_models, remove_models);
}
