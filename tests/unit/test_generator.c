/* SPDX-License-Identifier: Apache-2.0
 *
 * Generation piece by piece: the text, tokens, probabilities and statistics of nib_generate.
 */
#include "engine.h"
#include "text.h"

#include <limits.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <time.h>

#include <cmocka.h>

#include "failing.h"
#include "refused.h"

enum { TOKENS_MAX = 160 };

typedef struct opened {
    nib_engine *engine;
    nib_model *model;
    nib_plan *plan;
    nib_session *session;
} opened;

static opened open_watched(const nib_allocator *allocator, nib_callbacks callbacks)
{
    const nib_engine_options options = {
        .size = sizeof options, .allocator = allocator, .callbacks = callbacks};
    opened o;
    nib_err err;
    if (nib_engine_open(&o.engine, &options, &err) != NIB_OK ||
        nib_model_open(&o.model, o.engine, "models/nibble-tales", NULL, &err) != NIB_OK ||
        nib_plan_open(&o.plan, o.model, &(nib_request){.recipe = "8da4w", .context = 160}, &err) !=
            NIB_OK ||
        nib_session_open(&o.session, o.model, o.plan, 1, &err) != NIB_OK)
        fail_msg("%s", err.text);
    return o;
}

static opened open_session(const nib_allocator *allocator)
{
    return open_watched(allocator, (nib_callbacks){0});
}

static void close_session(opened *o)
{
    nib_session_close(o->session);
    nib_plan_close(o->plan);
    nib_model_close(o->model);
    nib_engine_close(o->engine);
}

/* What a generation made, either way. */
typedef struct made {
    char text[4096];
    size_t size;
    int32_t tokens[TOKENS_MAX];
    double logprobs[TOKENS_MAX], best[TOKENS_MAX];
    size_t count;
    nib_generate_stats stats;
} made;

static nib_status put(void *ctx, const char *bytes, size_t size)
{
    made *m = ctx;
    assert_true(m->size + size < sizeof m->text);
    memcpy(m->text + m->size, bytes, size);
    m->size += size;
    return NIB_OK;
}

static void put_token(made *m, int32_t id, double logprob, const nib_token_logprob *likeliest,
                      size_t count)
{
    assert_true(m->count < TOKENS_MAX);
    m->tokens[m->count] = id;
    m->logprobs[m->count] = logprob;
    m->best[m->count++] = count > 0 ? likeliest[0].logprob : NAN;
}

static void on_logprobs(void *ctx, const nib_token_logprob *token,
                        const nib_token_logprob *likeliest, size_t count)
{
    put_token(ctx, token->id, token->logprob, likeliest, count);
}

static void generate(nib_session *session, nib_generate_options options, made *m)
{
    const nib_sink sink = {put, m};
    nib_err err;
    *m = (made){.size = 0};
    options.on_logprobs = options.logprobs > 0 ? on_logprobs : NULL;
    options.on_logprobs_ctx = m;
    m->stats.size = sizeof m->stats;
    if (nib_generate(session, &options, &sink, &m->stats, &err) != NIB_OK)
        fail_msg("%s", err.text);
}

static void take_pieces(nib_session *session, const nib_generate_options *options, made *m)
{
    nib_generator *g;
    nib_piece p = {.size = sizeof p};
    nib_err err;
    *m = (made){.size = 0};
    m->stats.size = sizeof m->stats;
    if (nib_generator_open(&g, session, options, &err) != NIB_OK)
        fail_msg("%s", err.text);
    do {
        if (nib_generator_next(g, &p, &err) != NIB_OK)
            fail_msg("%s", err.text);
        assert_int_equal(p.text[p.text_size], 0);
        put(m, p.text, p.text_size);
        if (p.token >= 0)
            put_token(m, p.token, p.logprob, p.likeliest, p.likeliest_count);
    } while (!p.over);
    assert_true(p.token == -1 && p.text_size == 0);
    nib_generator_stats_get(g, &m->stats);
    assert_int_equal(p.finish, m->stats.finish);
    assert_int_equal(nib_generator_next(g, &p, &err), NIB_OK);
    assert_true(p.over);
    nib_generator_close(g);
}

#define PROMPT "The king and the wolf. The king and the wolf. The king"

static const char *const stops[] = {"wolf", "said"};
static const char schema[] = "{\"type\": \"object\", \"properties\": {\"age\": {\"type\": "
                             "\"integer\"}}, \"required\": [\"age\"]}";
static const nib_generate_options cases[] = {
    {.prompt = "Once upon", .max_tokens = 24, .temperature = -1},
    {.prompt = "Once upon", .max_tokens = 24, .seed = 7, .logprobs = 3},
    {.prompt = PROMPT, .max_tokens = 60, .temperature = -1, .ignore_eos = true},
    {.prompt = PROMPT, .max_tokens = 60, .temperature = 0.3, .seed = 2, .logprobs = 1},
    {.prompt = PROMPT, .max_tokens = 60, .temperature = -1, .stop = {stops, 2}},
    {.prompt = "{", .max_tokens = 60, .schema = schema, .seed = 3},
    {.prompt = "Once", .max_tokens = 1},
    {.prompt = "Once", .max_tokens = -1, .ignore_eos = true, .seed = 9}, /* to the full context */
};

static void test_same_as_generate(void **state)
{
    static made a, b;
    opened o = open_session(NULL);
    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        generate(o.session, cases[i], &a);
        take_pieces(o.session, &cases[i], &b);
        assert_string_equal(b.text, a.text);
        assert_int_equal(b.size, a.size);
        assert_int_equal(b.stats.new_tokens, a.stats.new_tokens);
        assert_int_equal(b.stats.finish, a.stats.finish);
        assert_int_equal(b.stats.prompt_tokens, a.stats.prompt_tokens);
        assert_int_equal(b.stats.seed, a.stats.seed);
        assert_int_equal(b.count, b.stats.new_tokens);
        if (cases[i].logprobs > 0) {
            assert_int_equal(b.count, a.count);
            assert_memory_equal(b.tokens, a.tokens, a.count * sizeof *a.tokens);
            assert_memory_equal(b.logprobs, a.logprobs, a.count * sizeof *a.logprobs);
            assert_memory_equal(b.best, a.best, a.count * sizeof *a.best);
        } else if (b.count > 0) {
            assert_true(isnan(b.logprobs[0]));
        }
    }
    close_session(&o);
}

/* A generator may be left at any piece; then the session is free again. */
static void test_closed_early(void **state)
{
    static made whole, again;
    opened o = open_session(NULL);
    nib_generator *g, *other = NULL;
    nib_piece p = {.size = sizeof p};
    nib_err err;
    (void)state;
    generate(o.session, cases[2], &whole);
    for (int taken = 0; taken < 5; taken++) {
        size_t size = 0;
        assert_int_equal(nib_generator_open(&g, o.session, &cases[2], NULL), NIB_OK);
        for (int i = 0; i < taken; i++) {
            assert_int_equal(nib_generator_next(g, &p, NULL), NIB_OK);
            assert_memory_equal(p.text, whole.text + size, p.text_size);
            size += p.text_size;
        }
        refused(NIB_USAGE, nib_generator_open(&other, o.session, &cases[0], &err), &err);
        assert_null(other);
        nib_generator_close(g);
        take_pieces(o.session, &cases[2], &again);
        assert_string_equal(again.text, whole.text);
    }
    nib_generator_close(NULL);
    close_session(&o);
}

/* Ends the reading of a prompt after some of it; counts other stages. */
typedef struct watched {
    int prompts, left, others;
} watched;

static bool watch(void *ctx, const char *what, uint64_t done, uint64_t total)
{
    watched *w = ctx;
    (void)done, (void)total;
    w->others += strcmp(what, "generate") == 0;
    return strcmp(what, "prompt") != 0 || w->prompts++ < w->left;
}

static void test_cancelled(void **state)
{
    static made whole, again;
    watched w = {.left = INT_MAX};
    opened o = open_watched(NULL, (nib_callbacks){.progress = watch, .ctx = &w});
    nib_generator *g;
    nib_piece p = {.size = sizeof p, .token = 7};
    nib_err err;
    (void)state;
    generate(o.session, cases[0], &whole);
    const int before = w.others;
    w.left = 0;
    assert_int_equal(nib_generator_open(&g, o.session, &cases[0], NULL), NIB_OK);
    for (int i = 0; i < 2; i++)
        refused(NIB_CANCELLED, nib_generator_next(g, &p, &err), &err);
    assert_int_equal(p.token, 7);
    nib_generator_stats_get(g, &again.stats);
    assert_int_equal(again.stats.finish, NIB_FINISH_CANCELLED);
    nib_generator_close(g);
    w.left = INT_MAX;
    take_pieces(o.session, &cases[0], &again);
    assert_string_equal(again.text, whole.text);
    assert_int_equal(w.others, before); /* the caller decides how far a text goes */
    close_session(&o);
}

/* What the caller does between pieces is not the model's time. */
static void test_pauses(void **state)
{
    const struct timespec pause = {.tv_nsec = 20000000};
    opened o = open_session(NULL);
    nib_generator *g;
    nib_piece p = {.size = sizeof p};
    nib_generate_stats before = {.size = sizeof before}, after = before;
    (void)state;
    assert_int_equal(nib_generator_open(&g, o.session, &cases[0], NULL), NIB_OK);
    for (int i = 0; i < 4; i++) {
        nanosleep(&pause, NULL);
        nib_generator_stats_get(g, &before);
        const uint64_t start = nib__now_ns();
        assert_int_equal(nib_generator_next(g, &p, NULL), NIB_OK);
        const double inside = (double)(nib__now_ns() - start) * 1e-9;
        nib_generator_stats_get(g, &after);
        const double first = after.prefill_s - before.prefill_s,
                     rest = after.decode_s - before.decode_s;
        assert_true(first >= 0 && rest >= 0 && first + rest <= inside + 1e-6);
        assert_true(i > 0 || first > 0);
    }
    nib_generator_close(g);
    close_session(&o);
}

/* A conversation in place of a prompt. */
#define TEMPLATE                                                                                   \
    "{% for m in messages %}{% if m.role != 'system' %}{{ m.role }}: {{ m.content }}\n{% endif %}" \
    "{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
#define MESSAGES(text) .messages = (text), .messages_size = sizeof(text) - 1
static const nib_chat_options hello = {
    MESSAGES("[{\"role\": \"user\", \"content\": \"Tell me of the wolf.\"}]"),
    .template_text = TEMPLATE};

static void test_conversation(void **state)
{
    static made said, whole, pieces;
    opened o = open_session(NULL);
    nib_chat_session *chat;
    const nib_sink sink = {put, &said};
    nib_generate_options options = {.max_tokens = 24, .temperature = -1};
    nib_err err;
    (void)state;
    assert_int_equal(nib_chat_session_open(&chat, o.session, TEMPLATE, NULL), NIB_OK);
    assert_int_equal(
        nib_chat_session_say(chat, "Tell me of the wolf.", &options, 0, &sink, &said.stats, NULL),
        NIB_OK);
    nib_chat_session_close(chat);
    options.chat = &hello;
    generate(o.session, options, &whole);
    take_pieces(o.session, &options, &pieces);
    assert_true(said.size > 0);
    assert_string_equal(whole.text, said.text);
    assert_string_equal(pieces.text, said.text);
    assert_int_equal(whole.stats.prompt_tokens, pieces.stats.prompt_tokens);

    nib_generator *g = NULL;
    options.prompt = "Once";
    refused(NIB_USAGE, nib_generator_open(&g, o.session, &options, &err), &err);
    options.prompt = NULL;
    options.chat = &(nib_chat_options){MESSAGES("[{"), .template_text = TEMPLATE};
    refused(NIB_BAD_INPUT, nib_generator_open(&g, o.session, &options, &err), &err);
    options.chat = &(nib_chat_options){MESSAGES("[]"), .template_text = "{{ 'wolf ' * 500 }}"};
    refused(NIB_USAGE, nib_generator_open(&g, o.session, &options, &err), &err);
    assert_null(g);
    close_session(&o);
}

/* Parts that the template drops are logged; a strict request refuses them. */
static void keep_line(void *ctx, const char *line) { snprintf(ctx, 512, "%s", line); }

static void test_dropped_part(void **state)
{
    const nib_chat_options chat = {
        MESSAGES("[{\"role\": \"system\", \"content\": \"Be brief.\"}, {\"role\": \"user\", "
                 "\"content\": \"Hello\"}]"),
        .template_text = TEMPLATE};
    const nib_generate_options options = {.chat = &chat, .max_tokens = 1};
    char line[512] = "";
    const nib_engine_options engine = {.callbacks = {.log = keep_line, .ctx = line}};
    (void)state;
    for (int strict = 0; strict < 2; strict++) {
        opened o = {0};
        nib_generator *g = NULL;
        nib_err err = {NIB_OK, ""};
        assert_int_equal(nib_engine_open(&o.engine, &engine, NULL), NIB_OK);
        assert_int_equal(nib_model_open(&o.model, o.engine, "models/nibble-tales", NULL, NULL),
                         NIB_OK);
        assert_int_equal(
            nib_plan_open(&o.plan, o.model, &(nib_request){.strict = strict != 0}, NULL), NIB_OK);
        assert_int_equal(nib_session_open(&o.session, o.model, o.plan, 1, NULL), NIB_OK);
        assert_int_equal(nib_generator_open(&g, o.session, &options, &err),
                         strict ? NIB_NOT_AS_ASKED : NIB_OK);
        assert_non_null(strstr(strict ? err.text : line, "Be brief."));
        nib_generator_close(g);
        close_session(&o);
    }
}

static void test_refused(void **state)
{
    opened o = open_session(NULL);
    nib_generator *g = NULL;
    nib_err err;
    const nib_generate_options bad[] = {
        {.prompt = "Once", .logprobs = 1, .on_logprobs = on_logprobs},
        {.prompt = "Once", .logprobs = 21},
        {.prompt = "Once", .schema = schema, .ignore_eos = true},
        {.size = 9, .prompt = "Once"}, /* cuts a member in two */
    };
    (void)state;
    for (size_t i = 0; i < COUNT(bad); i++)
        refused(NIB_USAGE, nib_generator_open(&g, o.session, &bad[i], &err), &err);
    refused(NIB_BAD_INPUT,
            nib_generator_open(&g, o.session, &(nib_generate_options){.schema = "{"}, &err), &err);
    assert_null(g);
    close_session(&o);
}

/* Returns how many allocations failed in turn before it succeeded. */
static int fail_each(const nib_generate_options *options)
{
    failing memory = {.left = -1};
    const nib_allocator a = failing_allocator(&memory);
    opened o = open_session(&a);
    int failed = 0;
    for (int left = 0; left < 4000; left++) {
        nib_generator *g = NULL;
        nib_piece p = {.size = sizeof p};
        nib_err err = {NIB_OK, ""};
        memory.left = left;
        nib_status status = nib_generator_open(&g, o.session, options, &err);
        while (status == NIB_OK && !p.over)
            status = nib_generator_next(g, &p, &err);
        memory.left = -1;
        if (g != NULL && status != NIB_OK) /* it fails again, and can be closed */
            assert_int_equal(nib_generator_next(g, &p, NULL), status);
        nib_generator_close(g);
        if (status == NIB_OK)
            break;
        assert_int_equal(status, NIB_NO_MEMORY);
        failed++;
    }
    close_session(&o);
    return failed;
}

static void test_no_memory(void **state)
{
    const nib_generate_options chat = {.chat = &hello, .max_tokens = 4, .logprobs = 2};
    (void)state;
    assert_in_range(fail_each(&cases[1]), 5, 399);
    assert_in_range(fail_each(&chat), 5, 3999);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_as_generate), cmocka_unit_test(test_closed_early),
        cmocka_unit_test(test_cancelled),        cmocka_unit_test(test_pauses),
        cmocka_unit_test(test_conversation),     cmocka_unit_test(test_dropped_part),
        cmocka_unit_test(test_refused),          cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
