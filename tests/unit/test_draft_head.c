/* SPDX-License-Identifier: Apache-2.0
 *
 * Draft heads (arch/draft_head.c, draft_model.c): the logits of heads equal those of golden files,
 * also behind a guess of their own; texts are the same with a head and without; and what is
 * refused.
 */
#include "draft.h"

#include "nibble_tools.h"
#include "opening.h"
#include "refused.h"
#include "session.h"

#include <math.h>

#define MODELS "tests/golden/models/"

static const char *const heads[] = {MODELS "qwen3_5_draft", MODELS "qwen3_5_moe_draft",
                                    MODELS "qwen3_next_draft", MODELS "deepseek_v3_draft",
                                    MODELS "glm4_moe_draft"};

typedef struct drafting {
    opened o;
    nib_model *head;
} drafting;

static drafting open_drafting(const char *path, bool head, int sequences, const char *recipe)
{
    const nib_engine_options options = {.threads = 1};
    const nib_model_options of_head = {.draft_head = 1};
    drafting d = {0};
    nib_err err;
    bool ok = nib_engine_open(&d.o.engine, &options, &err) == NIB_OK;
    if (ok)
        d.o.engine->measured = true; /* fixed rates */
    ok = ok && nib_model_open(&d.o.model, d.o.engine, path, NULL, &err) == NIB_OK &&
         (!head || nib_model_open(&d.head, d.o.engine, path, &of_head, &err) == NIB_OK);
    const nib_request request = {.dtype = "f32",
                                 .recipe = recipe,
                                 .context = 128,
                                 .sequences = sequences,
                                 .lookup = -1,
                                 .draft = d.head};
    ok = ok && nib_plan_open(&d.o.plan, d.o.model, &request, &err) == NIB_OK &&
         nib_session_open(&d.o.session, d.o.model, d.o.plan, sequences, &err) == NIB_OK;
    if (!ok)
        fail_msg("%s: %s", path, err.text);
    return d;
}

static void close_drafting(drafting *d)
{
    nib_model_close(d->head); /* the plan keeps it */
    close_opened(&d->o);
}

/* ---- logits ---- */

static const nib_tensor *golden_tensor(const nib_checkpoint *cp, const char *part, int i)
{
    char name[32];
    snprintf(name, sizeof name, "%s.%d", part, i);
    const nib_tensor *t = nib__checkpoint_find(cp, name);
    assert_non_null(t);
    return t;
}

static void assert_near(const char *path, const float *got, const float *want, int64_t count)
{
    double off = 0, size = 0;
    for (int64_t i = 0; i < count; i++) {
        off = fmax(off, fabs((double)got[i] - (double)want[i]));
        size = fmax(size, fabs((double)want[i]));
    }
    if (!(off <= 1e-4 * size))
        fail_msg("%s: off by %g of %g", path, off, size);
}

/* The model reads a golden text, then its head reads it, beside the hidden states. */
static void check_logits(const drafting *d, const char *path, const nib_tensor *tokens,
                         const nib_tensor *logits)
{
    nib_runner *model = &d->o.session->runner, *head = &d->o.session->draft->runner;
    const int32_t *ids = (const void *)tokens->data;
    const int64_t count = tokens->shape[0], vocab = logits->shape[1],
                  width = model->net->config.width;
    nib_slot slots[64];
    const float *got;
    nib_err err;
    assert_true(count <= 64);
    for (int64_t i = 0; i < count; i++)
        slots[i] = (nib_slot){0, (int32_t)i, ids[i], NIB_SLOT_HIDDEN};
    nib__kv_truncate(&model->kv, 0, 0);
    nib__kv_truncate(&head->kv, 0, 0);
    assert_int_equal(nib__runner_step(model, slots, (size_t)count, &got, &err), NIB_OK);
    for (int64_t i = 1; i < count; i++)
        slots[i] = (nib_slot){0, (int32_t)i - 1, ids[i], NIB_SLOT_LOGITS};
    const int64_t first = 20; /* in two steps */
    head->given = model->hidden;
    assert_int_equal(nib__runner_step(head, slots + 1, (size_t)first, &got, &err), NIB_OK);
    assert_near(path, got, (const void *)logits->data, first * vocab);
    head->given = model->hidden + first * width;
    assert_int_equal(
        nib__runner_step(head, slots + 1 + first, (size_t)(count - 1 - first), &got, &err), NIB_OK);
    assert_near(path, got, (const float *)(const void *)logits->data + first * vocab,
                (count - 1 - first) * vocab);
}

static int32_t likeliest(const float *logits, int64_t vocab)
{
    int64_t best = 0;
    for (int64_t i = 1; i < vocab; i++)
        best = logits[i] > logits[best] ? i : best;
    return (int32_t)best;
}

/* Two guesses behind a golden text: the likeliest token, and after it the one that the head gives
 * beside its own hidden state. Then the text goes on with another token. */
static void check_guesses(const drafting *d, const nib_tensor *tokens, const nib_tensor *logits,
                          const nib_tensor *guess)
{
    nib_draft_model *m;
    nib_slot slots[64];
    nib_job job = {.sequence = 1, .sampling = {.top_p = 1, .repeat_penalty = 1}, .top = -1};
    int32_t ids[80];
    const int64_t count = tokens->shape[0], vocab = logits->shape[1];
    const float *last = (const float *)(const void *)logits->data + (count - 2) * vocab, *ignored;
    double seconds;
    nib_err err;
    assert_int_equal(nib__draft_model_open(&m, d->o.session, 2, &err), NIB_OK);
    memcpy(ids, tokens->data, (size_t)count * sizeof *ids);
    nib__draft_model_begin(m, 1);
    nib__kv_truncate(&d->o.session->runner.kv, 1, 0);
    /* the last token is not read by the model yet */
    for (int64_t i = 0; i < count - 1; i++)
        slots[i] = (nib_slot){1, (int32_t)i, ids[i], nib__draft_model_outputs(m, count - 2 - i)};
    assert_int_equal(
        nib__runner_step(&d->o.session->runner, slots, (size_t)count - 1, &ignored, &err), NIB_OK);
    nib__draft_model_see(m, slots, (size_t)count - 1);
    for (int again = 0; again < 2; again++) { /* what a head guessed, it reads again */
        nib_draft draft = nib__draft_model_follow(m, 1, ids, count, 10, INFINITY);
        assert_int_equal(draft.unread, again ? 1 : count - 1);
        draft.count = 2;
        const nib_guess g = {&draft, &job, ids, count};
        assert_int_equal(nib__draft_model_guess(m, &g, 1, &seconds, &err), NIB_OK);
        assert_int_equal(draft.count, 2);
        assert_int_equal(ids[count], likeliest(last, vocab));
        assert_int_equal(ids[count + 1], likeliest((const void *)guess->data, vocab));
    }
    /* tokens whose hidden states it has not been given: it drafts nothing */
    ids[count] = (ids[count] + 1) % (int32_t)vocab;
    assert_int_equal(nib__draft_model_follow(m, 1, ids, count + 1, 10, INFINITY).most, 0);
    nib__draft_model_close(m);
}

static void test_heads_equal_golden(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(heads); i++) {
        char path[96];
        snprintf(path, sizeof path, "%s/draft.safetensors", heads[i]);
        nib_checkpoint *golden = open_ok(path);
        drafting d = open_drafting(heads[i], true, 2, NULL);
        for (int text = 0; text < 2; text++) {
            const nib_tensor *tokens = golden_tensor(golden, "tokens", text),
                             *logits = golden_tensor(golden, "logits", text);
            check_logits(&d, heads[i], tokens, logits);
            check_guesses(&d, tokens, logits, golden_tensor(golden, "guess", text));
        }
        close_drafting(&d);
        nib__checkpoint_close(golden);
    }
}

static nib_status drop(void *ctx, const char *text, size_t size)
{
    (void)ctx, (void)text, (void)size;
    return NIB_OK;
}

/* A head is written to GGUF as a layer after the model's, wherever it was. */
static void test_heads_in_gguf(void **state)
{
    (void)state;
    static const size_t numbered[] = {0, 3, 4}; /* of heads */
    char root[] = "/tmp/nibble-draft-head-XXXXXX", out[64], path[96];
    const nib_sink sink = {drop, NULL};
    nib_err err;
    assert_non_null(mkdtemp(root));
    snprintf(out, sizeof out, "%s/model.gguf", root);
    for (size_t i = 0; i < COUNT(numbered); i++) {
        const char *name = heads[numbered[i]];
        opened o = must_open(&(open_how){.path = name, .dtype = "f32"});
        const nib_convert_options options = {.out = out, .format = "gguf", .force = true};
        if (nib_convert(o.model, &options, NIB_FORM_JSON, &sink, &err) != NIB_OK)
            fail_msg("%s: %s", name, err.text);
        close_opened(&o);
        snprintf(path, sizeof path, "%s/draft.safetensors", name);
        nib_checkpoint *golden = open_ok(path);
        drafting d = open_drafting(out, true, 1, NULL);
        check_logits(&d, name, golden_tensor(golden, "tokens", 0),
                     golden_tensor(golden, "logits", 0));
        close_drafting(&d);
        nib__checkpoint_close(golden);
    }
    snprintf(path, sizeof path, "rm -r %s", root);
    assert_int_equal(system(path), 0);
}

/* ---- the same texts ---- */

enum { TEXTS = 5, MADE = 40 };

typedef struct text {
    nib_job job;
    int32_t prompt[60], ids[MADE];
    int64_t count;
} text;

static bool take(void *ctx, const nib_new_token *t)
{
    text *x = ctx;
    x->ids[x->count++] = t->id;
    return true;
}

static void ended(void *ctx, nib_finish finish, const nib_err *err)
{
    (void)ctx, (void)finish;
    if (err != NULL)
        fail_msg("%s", err->text);
}

/* Draws texts two at a time, in steps before each of which every draft pays. */
static nib_batch_counts draw(text *texts, const drafting *d)
{
    nib_session *s = d->o.session;
    nib_batch *b;
    nib_err err;
    const int64_t vocab = nib_session_vocab(s);
    assert_int_equal(nib__batch_open(&b, s, 2, &err), NIB_OK);
    for (int next = 0; next < TEXTS || nib__batch_counts(b).jobs > 0;) {
        for (; next < TEXTS && nib__batch_room(b) > 0; next++) {
            text *x = &texts[next];
            *x = (text){.job = {.prompt = x->prompt,
                                .prompt_count = 1 + next * 13,
                                .max_tokens = MADE - 5 * next,
                                .sampling = {.temperature = next % 2 == 0 ? 0 : 0.7,
                                             .top_p = 1,
                                             .repeat_penalty = 1,
                                             .seed = (uint64_t)next},
                                .top = -1,
                                .ignore_ends = true,
                                .calls = {take, ended},
                                .ctx = x}};
            for (int64_t i = 0; i < x->job.prompt_count; i++)
                x->prompt[i] = (int32_t)((7 * i + next) % vocab);
            nib__batch_add(b, &x->job);
        }
        for (size_t m = 1; m < COUNT(s->times.measured); m++) {
            s->times.measured[m] = 1e-3 / (double)m;
            if (s->draft != NULL)
                s->draft->times.measured[m] = 1e-9;
        }
        s->rate.accepted = 0.9;
        if (nib__batch_step(b, &err) != NIB_OK)
            fail_msg("%s", err.text);
    }
    const nib_batch_counts counts = nib__batch_counts(b);
    nib__batch_close(b);
    return counts;
}

static void test_heads_do_not_change_texts(void **state)
{
    (void)state;
    static const char *const recipes[] = {NULL, "8da4w"};
    static text plain[TEXTS], drafted[TEXTS];
    for (size_t i = 0; i < COUNT(heads) * COUNT(recipes); i++) {
        const char *path = heads[i / COUNT(recipes)], *recipe = recipes[i % COUNT(recipes)];
        drafting without = open_drafting(path, false, 2, recipe),
                 with = open_drafting(path, true, 2, recipe);
        const nib_batch_counts none = draw(plain, &without), some = draw(drafted, &with);
        assert_int_equal(none.guessed, 0);
        assert_true(some.guessed > 100 && some.made == none.made);
        for (int t = 0; t < TEXTS; t++) {
            assert_int_equal(drafted[t].count, plain[t].count);
            assert_memory_equal(drafted[t].ids, plain[t].ids,
                                (size_t)plain[t].count * sizeof *plain[t].ids);
        }
        close_drafting(&without);
        close_drafting(&with);
    }
}

/* The head reads the embedding and the output layer where the model has them. */
static void test_weights_are_lent(void **state)
{
    (void)state;
    drafting d = open_drafting(heads[0], true, 1, NULL);
    const nib_runner *model = &d.o.session->runner, *head = &d.o.session->draft->runner;
    const size_t last = model->net->site_count - 1, own = head->net->site_count - 1;
    assert_true(head->weights[0].borrowed && head->weights[own].borrowed);
    assert_true(!head->weights[1].borrowed && !model->weights[0].borrowed);
    assert_ptr_equal(head->weights[own].packs[0].at, model->weights[last].packs[0].at);
    assert_true(nib_plan_draft(d.o.plan)->lent_bytes > 0);
    close_drafting(&d);
}

/* ---- refusals ---- */

static void refuse_head(nib_status status, nib_engine *engine, const char *path)
{
    const nib_model_options options = {.draft_head = 1};
    nib_model *head;
    nib_err err;
    refused(status, nib_model_open(&head, engine, path, &options, &err), &err);
}

static void test_refused(void **state)
{
    (void)state;
    nib_model *head, *other, *model;
    nib_session *session;
    nib_plan *plan;
    nib_err err;
    const nib_model_options options = {.draft_head = 1};
    nib_engine *engine;
    assert_int_equal(nib_engine_open(&engine, NULL, &err), NIB_OK);
    engine->measured = true;
    refuse_head(NIB_UNSUPPORTED, engine, MODELS "llama3");
    refuse_head(NIB_BAD_INPUT, engine, MODELS "glm4_moe");    /* its config has none */
    refuse_head(NIB_BAD_INPUT, engine, MODELS "deepseek_v3"); /* not stored */
    refuse_head(NIB_BAD_INPUT, engine, MODELS "qwen3_5");
    assert_int_equal(nib_model_open(&head, engine, heads[0], &options, &err), NIB_OK);
    assert_int_equal(nib_model_open(&model, engine, heads[0], NULL, &err), NIB_OK);
    assert_int_equal(nib_model_open(&other, engine, heads[1], NULL, &err), NIB_OK);
    const nib_request request = {.draft = head};
    refused(NIB_USAGE, nib_plan_open(&plan, other, &request, &err), &err);
    assert_int_equal(nib_plan_open(&plan, head, NULL, &err), NIB_OK);
    refused(NIB_USAGE, nib_session_open(&session, head, plan, 1, &err), &err);
    nib_plan_close(plan);
    const nib_model_options second = {.draft_head = 2};
    nib_model *none;
    refused(NIB_USAGE, nib_model_open(&none, engine, heads[0], &second, &err), &err);
    nib_model_close(head);
    nib_model_close(model);
    nib_model_close(other);
    nib_engine_close(engine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_heads_equal_golden),
        cmocka_unit_test(test_heads_in_gguf),
        cmocka_unit_test(test_heads_do_not_change_texts),
        cmocka_unit_test(test_weights_are_lent),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
