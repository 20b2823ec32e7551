/* SPDX-License-Identifier: Apache-2.0
 *
 * Samplers (sampler.c): a loop over steps that draws with one makes the tokens and the text of
 * nib_generate; and the options that only a whole generation can follow.
 */
#include "session.h"

#include "failing.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "kept.h"
#include "refused.h"

enum { NEW = 40, CONTEXT = 96 };

#define PROMPT "The king and the wolf. The king and the wolf. The king"

static opened open_tales(const nib_allocator *allocator)
{
    return must_open(&(open_how){.path = "models/nibble-tales",
                                 .recipe = "8da4w",
                                 .context = CONTEXT,
                                 .allocator = allocator});
}

/* Draws up to NEW tokens after ids [count] with a loop of its own; returns their number. */
static size_t run_loop(nib_session *session, const nib_generate_options *options, int32_t *ids,
                       size_t count)
{
    nib_sampler *sampler;
    const float *logits;
    nib_err err;
    size_t run = 0, made = 0;
    assert_int_equal(nib_session_truncate(session, 0, 0, NULL), NIB_OK);
    if (nib_sampler_open(&sampler, session, options, &err) != NIB_OK)
        fail_msg("%s", err.text);
    for (; made < NEW; made++) {
        nib_slot slots[CONTEXT];
        int32_t again = -1;
        const size_t all = count + made;
        for (size_t i = run; i < all; i++)
            slots[i - run] = (nib_slot){0, (int32_t)i, ids[i], i + 1 == all ? NIB_SLOT_LOGITS : 0};
        if (nib_session_step(session, slots, all - run, &logits, &err) != NIB_OK ||
            nib_sampler_draw(sampler, logits, ids, all, &ids[all], &err) != NIB_OK)
            fail_msg("%s", err.text);
        assert_int_equal(nib_sampler_draw(sampler, logits, ids, all, &again, NULL), NIB_OK);
        assert_int_equal(again, ids[all]);
        run = all;
    }
    nib_sampler_close(sampler);
    return made;
}

static void test_same_as_generate(void **state)
{
    static const nib_generate_options cases[] = {
        {.temperature = -1},
        {.seed = 7},
        {.temperature = 1.3, .top_k = -1, .top_p = -1, .min_p = -1, .seed = 1},
        {.temperature = 0.9, .top_k = 5, .seed = UINT64_MAX},
        {.temperature = 0.7, .top_p = 0.5, .min_p = 0.2, .seed = 3},
        {.temperature = -1, .repeat_penalty = 1.5},
        {.temperature = 1.1, .repeat_penalty = 1.2, .seed = 12},
    };
    opened o = open_tales(NULL);
    const nib_tokenizer *tokenizer;
    (void)state;
    assert_int_equal(nib_model_tokenizer(&tokenizer, o.model, NULL), NIB_OK);
    for (size_t i = 0; i < COUNT(cases); i++) {
        static kept want, before, all;
        int32_t ids[CONTEXT], *prompt;
        size_t count;
        nib_err err;
        nib_generate_options options = cases[i];
        options.prompt = PROMPT, options.max_tokens = NEW, options.ignore_eos = true;
        want.size = before.size = all.size = 0;
        if (nib_generate(o.session, &options, &(nib_sink){keep, &want}, NULL, &err) != NIB_OK ||
            nib_tokenize(tokenizer, PROMPT, strlen(PROMPT), NIB_TOKENIZE_ADD_SPECIAL, &prompt,
                         &count, &err) != NIB_OK)
            fail_msg("%s", err.text);
        assert_true(count + NEW <= CONTEXT);
        memcpy(ids, prompt, count * sizeof *ids);
        nib_tokens_free(o.engine, prompt);
        const size_t made = run_loop(o.session, &cases[i], ids, count);
        if (nib_detokenize(tokenizer, ids, count, &(nib_sink){keep, &before}, &err) != NIB_OK ||
            nib_detokenize(tokenizer, ids, count + made, &(nib_sink){keep, &all}, &err) != NIB_OK)
            fail_msg("%s", err.text);
        assert_true(want.size > 0);
        assert_int_equal(all.size, before.size + want.size);
        assert_string_equal(all.text + before.size, want.text);
    }
    close_opened(&o);
}

static void on_logprobs(void *ctx, const nib_token_logprob *token,
                        const nib_token_logprob *likeliest, size_t count)
{
    (void)ctx, (void)token, (void)likeliest, (void)count;
}

static void test_refused(void **state)
{
    static const char *const stops[] = {"wolf"};
    static const nib_chat_options chat = {.messages = "[]", .messages_size = 2};
    static const nib_generate_options bad[] = {
        {.prompt = ""},
        {.chat = &chat},
        {.max_tokens = 1},
        {.max_tokens = -1},
        {.stop = {stops, 1}},
        {.ignore_eos = true},
        {.schema = "{}"},
        {.logprobs = 1},
        {.on_logprobs = on_logprobs},
        {.on_logprobs_ctx = (void *)(uintptr_t)stops},
        {.temperature = 101},
        {.temperature = NAN},
        {.top_p = 1.5},
    };
    opened o = open_tales(NULL);
    nib_sampler *sampler = NULL;
    nib_err err;
    (void)state;
    for (size_t i = 0; i < COUNT(bad); i++) {
        refused(NIB_USAGE, nib_sampler_open(&sampler, o.session, &bad[i], &err), &err);
        assert_null(sampler);
    }
    const int64_t vocab = nib_session_vocab(o.session);
    float *logits = calloc((size_t)vocab, sizeof *logits);
    int32_t token = -7;
    assert_non_null(logits);
    assert_int_equal(nib_sampler_open(&sampler, o.session, NULL, NULL), NIB_OK);
    logits[vocab - 1] = NAN;
    refused(NIB_CHECK_FAILED, nib_sampler_draw(sampler, logits, NULL, 0, &token, &err), &err);
    assert_int_equal(token, -7);
    close_opened(&o); /* the sampler keeps what it needs */
    logits[vocab - 1] = 9;
    assert_int_equal(nib_sampler_draw(sampler, logits, NULL, 0, &token, NULL), NIB_OK);
    nib_sampler_close(sampler);
    nib_sampler_close(NULL);
    free(logits);
}

static void test_no_memory(void **state)
{
    failing memory = {.left = -1};
    const nib_allocator a = failing_allocator(&memory);
    opened o = open_tales(&a);
    nib_sampler *sampler = NULL;
    const int live = memory.live;
    (void)state;
    for (int left = 0; left < 3; left++) { /* the handle, logits, scratch */
        memory.left = left;
        assert_int_equal(nib_sampler_open(&sampler, o.session, NULL, NULL), NIB_NO_MEMORY);
        assert_null(sampler);
        assert_int_equal(memory.live, live);
    }
    memory.left = 3;
    assert_int_equal(nib_sampler_open(&sampler, o.session, NULL, NULL), NIB_OK);
    memory.left = -1;
    nib_sampler_close(sampler);
    close_opened(&o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_as_generate),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
