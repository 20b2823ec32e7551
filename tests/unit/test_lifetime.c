/* SPDX-License-Identifier: Apache-2.0
 *
 * How long objects live and who may use them: closing in any order, callbacks that fail, call the
 * library or never return, two engines at once, and processes that fork.
 */
#include "failing.h"
#include "session.h"

#include "failing_gpu.h"
#include "kept.h"
#include "refused.h"

#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

static const char tales[] = "models/nibble-tales";
static const nib_generate_options greedy = {
    .prompt = "Once upon a time", .max_tokens = 12, .temperature = -1};
static const nib_generate_options reply = {.max_tokens = 12, .temperature = -1};

static void expect_ok(nib_status status, const nib_err *err)
{
    if (status != NIB_OK)
        fail_msg("%s", err->text);
}

/* What the shipped model writes for these options. */
static const char *expected(void)
{
    static kept text;
    if (text.size == 0) {
        nib_err err = {NIB_OK, ""};
        opened o = must_open(&(open_how){.path = tales, .context = 64});
        expect_ok(nib_generate(o.session, &greedy, &(nib_sink){keep, &text}, NULL, &err), &err);
        close_opened(&o);
    }
    return text.text;
}

static void expect_generates(nib_session *session)
{
    kept text = {.size = 0};
    nib_err err = {NIB_OK, ""};
    expect_ok(nib_generate(session, &greedy, &(nib_sink){keep, &text}, NULL, &err), &err);
    assert_string_equal(text.text, expected());
}

/* ---- closing ---- */

static void take_all(nib_generator *g)
{
    nib_piece p = {.size = sizeof p};
    kept text = {.size = 0};
    nib_err err = {NIB_OK, ""};
    do {
        expect_ok(nib_generator_next(g, &p, &err), &err);
        assert_int_equal(keep(&text, p.text, p.text_size), NIB_OK);
    } while (!p.over);
    assert_string_equal(text.text, expected());
}

/* Engine, model, plan, session and generator, closed in order number `order` of 120; the generator
 * still writes its text when the others are closed. */
static void close_in_order(int order)
{
    enum { GENERATOR, COUNT_CLOSED = 5 };
    failing f = {.left = -1};
    const nib_allocator a = failing_allocator(&f);
    opened o = must_open(&(open_how){.path = tales, .context = 64, .threads = 2, .allocator = &a});
    nib_generator *g;
    nib_err err = {NIB_OK, ""};
    bool closed[COUNT_CLOSED] = {false};
    expect_ok(nib_generator_open(&g, o.session, &greedy, &err), &err);
    for (int left = COUNT_CLOSED; left > 0; order /= left, left--) {
        int at = 0;
        for (int skip = order % left; closed[at] || skip > 0; at++)
            skip -= !closed[at];
        closed[at] = true;
        switch (at) {
        case GENERATOR:
            take_all(g);
            nib_generator_close(g);
            break;
        case 1: nib_session_close(o.session); break;
        case 2: nib_plan_close(o.plan); break;
        case 3: nib_model_close(o.model); break;
        default: nib_engine_close(o.engine); break;
        }
    }
    assert_int_equal(f.live, 0);
}

static void test_any_order(void **state)
{
    (void)state;
    for (int order = 0; order < 120; order += 7)
        close_in_order(order);
}

/* A conversation, a service and its call outlive what they were made from. */
static void test_users_of_sessions(void **state)
{
    nib_chat_session *chat;
    nib_service *service;
    nib_call *call;
    nib_call_state look = {.size = sizeof look};
    nib_call_stats stats = {.size = sizeof stats};
    kept text = {.size = 0};
    nib_err err = {NIB_OK, ""};
    (void)state;
    opened o = must_open(&(open_how){.path = tales, .context = 64});
    expect_ok(nib_chat_session_open(&chat, o.session, "{{ messages[0].content }}", &err), &err);
    refused(NIB_USAGE, nib_service_open(&service, o.session, NULL, &err), &err);
    close_opened(&o);
    expect_ok(nib_chat_session_say(chat, "Once upon a time", &reply, 0, &(nib_sink){keep, &text},
                                   NULL, &err),
              &err);
    assert_true(text.size > 0);
    nib_chat_session_close(chat);
    o = must_open(&(open_how){.path = tales, .context = 64});
    expect_ok(nib_service_open(&service, o.session, NULL, &err), &err);
    expect_ok(nib_call_open(&call, service, &(nib_call_options){.body = "{", .body_size = 1}, &err),
              &err);
    close_opened(&o);
    nib_service_close(service);
    for (int i = 0; i < 1000 && !look.over; i++) {
        nib_call_look(call, &look);
        usleep(1000);
    }
    assert_int_equal(look.http, 400);
    char answer[512];
    assert_true(nib_call_read(call, answer, sizeof answer) > 0);
    nib_call_stats_get(call, &stats);
    assert_string_equal(stats.finish, "error");
    nib_call_close(call);
}

static void test_tokenizer_alone(void **state)
{
    nib_engine *engine;
    nib_tokenizer *t;
    nib_tokenizer_facts facts = {.size = sizeof facts};
    nib_err err = {NIB_OK, ""};
    (void)state;
    expect_ok(nib_engine_open(&engine, &(nib_engine_options){.threads = 1}, &err), &err);
    expect_ok(nib_tokenizer_open(&t, engine, tales, &err), &err);
    nib_engine_close(engine);
    nib_tokenizer_facts_get(t, &facts);
    assert_int_equal(facts.vocab, 2256);
    nib_tokenizer_close(t);
}

/* What a failed call took hold of is released. */
static void test_failed_open(void **state)
{
    failing f = {.left = -1};
    const nib_allocator a = failing_allocator(&f);
    nib_model *other;
    nib_session *none = NULL;
    nib_err err = {NIB_OK, ""};
    (void)state;
    opened o = must_open(&(open_how){.path = tales, .context = 64, .allocator = &a});
    expect_ok(nib_model_open(&other, o.engine, "tests/golden/models/gemma2", NULL, &err), &err);
    refused(NIB_USAGE, nib_session_open(&none, other, o.plan, 1, &err), &err);
    nib_model_close(other);
    nib_status status = NIB_NO_MEMORY;
    for (int n = 0; status == NIB_NO_MEMORY; n++) {
        const int before = f.live;
        f.left = n;
        status = nib_session_open(&none, o.model, o.plan, 1, &err);
        f.left = -1;
        nib_session_close(none);
        none = NULL;
        assert_int_equal(f.live, before);
    }
    expect_ok(status, &err);
    close_opened(&o);
    assert_int_equal(f.live, 0);
}

/* ---- a session in use ---- */

static void test_in_use(void **state)
{
    nib_generator *g, *second;
    nib_eval_result result = {.size = sizeof result};
    nib_bench_result bench = {.size = sizeof bench};
    const nib_bench_options few = {.prompt_tokens = 2, .new_tokens = 1, .repeats = 1};
    const float *logits = NULL;
    kept text = {.size = 0};
    const nib_sink sink = {keep, &text};
    nib_err err = {NIB_OK, ""};
    (void)state;
    opened o = must_open(&(open_how){.path = tales, .context = 64});
    expect_ok(nib_generator_open(&g, o.session, &greedy, &err), &err);
    refused(NIB_USAGE, nib_generator_open(&second, o.session, &greedy, &err), &err);
    refused(NIB_USAGE, nib_generate(o.session, &greedy, &sink, NULL, &err), &err);
    refused(NIB_USAGE, nib_session_step(o.session, &(nib_slot){0}, 1, &logits, &err), &err);
    refused(NIB_USAGE, nib_session_truncate(o.session, 0, 0, &err), &err);
    refused(NIB_USAGE,
            nib_eval(o.session, NULL, &(nib_eval_options){.text_path = "README.md"}, &result, &err),
            &err);
    refused(NIB_USAGE, nib_bench(o.session, &few, &bench, &err), &err);
    refused(NIB_USAGE, nib_bench_operations(o.session, &few, NIB_FORM_TEXT, &sink, &err), &err);
    take_all(g);
    nib_generator_close(g);
    expect_generates(o.session);
    close_opened(&o);
}

/* ---- callbacks that fail ---- */

static nib_status refuse(void *ctx, const char *bytes, size_t size)
{
    (void)ctx, (void)bytes, (void)size;
    return NIB_EXISTS;
}

static void test_sinks(void **state)
{
    const nib_sink full = {refuse, NULL};
    nib_chat_session *chat;
    nib_err err = {NIB_OK, ""};
    (void)state;
    opened o = must_open(&(open_how){.path = tales, .context = 64});
    refused(NIB_EXISTS, nib_generate(o.session, &greedy, &full, NULL, &err), &err);
    expect_generates(o.session);
    refused(NIB_EXISTS, nib_plan_write(o.plan, NIB_FORM_JSON, &full, &err), &err);
    refused(NIB_EXISTS, nib_plan_ledger_write(o.plan, NIB_FORM_JSON, &full, &err), &err);
    refused(NIB_EXISTS, nib_plan_summary(o.plan, &full, &err), &err);
    refused(NIB_EXISTS, nib_info_write(o.model, NIB_FORM_TEXT, &full, &err), &err);
    refused(NIB_EXISTS, nib_verify(o.model, NULL, NIB_FORM_TEXT, &full, &err), &err);
    refused(NIB_EXISTS, nib_recipes_write(o.engine, NIB_FORM_TEXT, &full, &err), &err);
    expect_ok(nib_chat_session_open(&chat, o.session, "{{ messages[0].content }}", &err), &err);
    refused(NIB_EXISTS, nib_chat_session_say(chat, "Hi", &reply, 0, &full, NULL, &err), &err);
    refused(NIB_EXISTS, nib_chat_session_save(chat, &full, &err), &err);
    nib_chat_session_close(chat);
    expect_generates(o.session);
    close_opened(&o);
}

static bool cancel(void *ctx, const char *what, uint64_t done, uint64_t total)
{
    (void)done, (void)total;
    return strcmp(what, ctx) != 0;
}

static void test_progress(void **state)
{
    nib_eval_result result = {.size = sizeof result};
    nib_generate_stats stats = {.size = sizeof stats};
    nib_session *none = NULL;
    kept text = {.size = 0};
    const nib_sink sink = {keep, &text};
    nib_err err = {NIB_OK, ""};
    (void)state;
    opened o = must_open(&(open_how){.path = tales, .context = 64});
    o.engine->callbacks = (nib_callbacks){.progress = cancel, .ctx = "load"};
    refused(NIB_CANCELLED, nib_session_open(&none, o.model, o.plan, 1, &err), &err);
    assert_null(none);
    o.engine->callbacks.ctx = "evaluate";
    refused(NIB_CANCELLED,
            nib_eval(o.session, NULL, &(nib_eval_options){.text_path = "README.md"}, &result, &err),
            &err);
    o.engine->callbacks.ctx = "prompt";
    refused(NIB_CANCELLED, nib_generate(o.session, &greedy, &sink, NULL, &err), &err);
    o.engine->callbacks.ctx = "generate";
    expect_ok(nib_generate(o.session, &greedy, &sink, &stats, &err), &err);
    assert_true(stats.finish == NIB_FINISH_CANCELLED && stats.new_tokens == 1);
    o.engine->callbacks = (nib_callbacks){.ctx = NULL};
    expect_generates(o.session);
    close_opened(&o);
}

/* ---- callbacks that call the library ---- */

typedef struct caller {
    nib_session *session;
    const nib_tokenizer *tokenizer;
    int calls;
} caller;

static nib_status call_again(void *ctx, const char *bytes, size_t size)
{
    caller *c = ctx;
    const float *logits;
    int32_t *ids;
    size_t count;
    kept text = {.size = 0};
    nib_plan_facts facts = {.size = sizeof facts};
    nib_err err = {NIB_OK, ""};
    if (c->calls++ > 0)
        return NIB_OK;
    refused(NIB_USAGE, nib_generate(c->session, &greedy, &(nib_sink){keep, &text}, NULL, &err),
            &err);
    refused(NIB_USAGE, nib_session_step(c->session, &(nib_slot){0}, 1, &logits, &err), &err);
    refused(NIB_USAGE, nib_session_truncate(c->session, 0, 0, &err), &err);
    nib_plan_facts_get(nib_session_plan(c->session), &facts);
    expect_ok(nib_tokenize(c->tokenizer, bytes, size, 0, &ids, &count, &err), &err);
    nib_tokens_free(c->session->model->engine, ids);
    return NIB_OK;
}

static bool next_again(void *ctx, const char *what, uint64_t done, uint64_t total)
{
    nib_generator **g = ctx, *open = *g;
    nib_piece piece = {.size = sizeof piece};
    nib_err err = {NIB_OK, ""};
    (void)what, (void)done, (void)total;
    *g = NULL; /* once */
    if (open != NULL)
        refused(NIB_USAGE, nib_generator_next(open, &piece, &err), &err);
    return true;
}

static void test_calls_from_callbacks(void **state)
{
    nib_generator *g, *for_callback;
    nib_chat_session *chat;
    nib_err err = {NIB_OK, ""};
    (void)state;
    opened o = must_open(&(open_how){.path = tales, .context = 64});
    caller c = {.session = o.session};
    expect_ok(nib_model_tokenizer(&c.tokenizer, o.model, &err), &err);
    expect_ok(nib_generate(o.session, &greedy, &(nib_sink){call_again, &c}, NULL, &err), &err);
    assert_true(c.calls > 1);
    c.calls = 0;
    expect_ok(nib_chat_session_open(&chat, o.session, "{{ messages[0].content }}", &err), &err);
    expect_ok(nib_chat_session_say(chat, "Hi", &reply, 0, &(nib_sink){call_again, &c}, NULL, &err),
              &err);
    nib_chat_session_close(chat);
    expect_ok(nib_generator_open(&g, o.session, &greedy, &err), &err);
    for_callback = g;
    o.engine->callbacks = (nib_callbacks){.progress = next_again, .ctx = &for_callback};
    take_all(g);
    assert_null(for_callback);
    nib_generator_close(g);
    o.engine->callbacks = (nib_callbacks){.ctx = NULL};
    expect_generates(o.session);
    close_opened(&o);
}

/* ---- callbacks that do not return ---- */

/* An allocator that remembers its blocks, so that a test can free what a jump lost. */
typedef struct remembered {
    struct remembered *before, *after;
    max_align_t bytes[];
} remembered;

static void *remember(void *ctx, void *old, size_t size)
{
    remembered *list = ctx, *block = NULL;
    if (old != NULL) {
        block = (remembered *)(void *)((char *)old - offsetof(remembered, bytes));
        block->before->after = block->after;
        block->after->before = block->before;
    }
    if (size == 0) {
        free(block);
        return NULL;
    }
    block = realloc(block, sizeof *block + size);
    assert_non_null(block);
    block->before = list;
    block->after = list->after;
    list->after->before = block;
    list->after = block;
    return block->bytes;
}

static jmp_buf outside;

static nib_status jump(void *ctx, const char *bytes, size_t size)
{
    (void)ctx, (void)bytes, (void)size;
    longjmp(outside, 1);
}

/* The session that it leaves can only be closed, and then everything else is as before. */
static void check_jump(bool in_chat)
{
    static remembered list;
    static opened o;
    static nib_chat_session *chat;
    const nib_allocator a = {remember, &list};
    const nib_sink jumping = {jump, NULL};
    kept text = {.size = 0};
    const float *logits;
    nib_generator *g;
    nib_session *second;
    nib_err err = {NIB_OK, ""};
    list.before = list.after = &list;
    chat = NULL;
    o = must_open(&(open_how){.path = tales, .context = 64, .allocator = &a});
    if (in_chat)
        expect_ok(nib_chat_session_open(&chat, o.session, "{{ messages[0].content }}", &err), &err);
    if (setjmp(outside) == 0) {
        const nib_status status =
            in_chat ? nib_chat_session_say(chat, "Hi", &reply, 0, &jumping, NULL, &err)
                    : nib_generate(o.session, &greedy, &jumping, NULL, &err);
        fail_msg("the call returned %s", nib_status_name(status));
    }
    if (in_chat)
        refused(NIB_USAGE,
                nib_chat_session_say(chat, "Hi", &reply, 0, &(nib_sink){keep, &text}, NULL, &err),
                &err);
    refused(NIB_USAGE, nib_generate(o.session, &greedy, &(nib_sink){keep, &text}, NULL, &err),
            &err);
    refused(NIB_USAGE, nib_generator_open(&g, o.session, &greedy, &err), &err);
    refused(NIB_USAGE, nib_session_step(o.session, &(nib_slot){0}, 1, &logits, &err), &err);
    nib_chat_session_close(chat);
    expect_ok(nib_session_open(&second, o.model, o.plan, 1, &err), &err);
    expect_generates(second);
    nib_session_close(second);
    close_opened(&o);
    while (list.after != &list)
        remember(&list, list.after->bytes, 0);
}

static void test_jumps(void **state)
{
    (void)state;
    check_jump(false);
    check_jump(true);
}

/* ---- two engines ---- */

static void *run_engine(void *ctx)
{
    kept *text = ctx;
    nib_err err;
    opened o = must_open(&(open_how){.path = tales, .threads = 2, .context = 64});
    if (nib_generate(o.session, &greedy, &(nib_sink){keep, text}, NULL, &err) != NIB_OK)
        text->size = 0;
    close_opened(&o);
    return NULL;
}

static void test_two_engines(void **state)
{
    static kept texts[2];
    pthread_t threads[2];
    (void)state;
    const char *alone = expected();
    for (size_t i = 0; i < COUNT(threads); i++)
        assert_int_equal(pthread_create(&threads[i], NULL, run_engine, &texts[i]), 0);
    for (size_t i = 0; i < COUNT(threads); i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_string_equal(texts[i].text, alone);
    }
}

/* ---- fork ---- */

/* Everything that a process may have open when it forks. */
typedef struct family {
    opened o;
    nib_model *training;
    nib_plan *training_plan;
    nib_session *free;
    nib_generator *generator;
    nib_chat_session *chat;
    nib_service *service;
    nib_call *call;
} family;

/* In the child: a wrong status ends it with the line. */
#define CHILD_GETS(wanted, call)                                                                   \
    do {                                                                                           \
        const nib_status got = (call);                                                             \
        if (got != (wanted)) {                                                                     \
            fprintf(stderr, "line %d: %s\n", __LINE__, nib_status_name(got));                      \
            return false;                                                                          \
        }                                                                                          \
    } while (0)

static void expect_in_child(bool (*run)(family *f), family *f)
{
    int status = 0;
    fflush(NULL);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        alarm(60); /* ends a child that hangs */
        _exit(run(f) ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        fail_msg("the child ended with %s %d", WIFEXITED(status) ? "status" : "signal",
                 WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
}

static bool runs_nothing(family *f)
{
    static kept text;
    const nib_sink sink = {keep, &text};
    const nib_bench_options few = {.prompt_tokens = 2, .new_tokens = 1, .repeats = 1};
    const nib_request recipe = {.recipe = "8da4w"};
    nib_engine *engine = f->o.engine;
    nib_model *model = f->o.model;
    nib_session *session = f->free;
    nib_model *m;
    nib_plan *p;
    nib_session *s;
    nib_generator *g;
    nib_chat_session *c;
    nib_service *v;
    nib_call *call;
    nib_piece piece = {.size = sizeof piece};
    nib_eval_result evaluated = {.size = sizeof evaluated};
    nib_bench_result bench = {.size = sizeof bench};
    const float *logits;
    nib_err err;
    CHILD_GETS(NIB_USAGE, nib_model_open(&m, engine, tales, NULL, &err));
    CHILD_GETS(NIB_USAGE, nib_plan_open(&p, model, NULL, &err));
    CHILD_GETS(NIB_USAGE, nib_session_open(&s, model, f->o.plan, 1, &err));
    CHILD_GETS(NIB_USAGE, nib_session_step(session, &(nib_slot){0}, 1, &logits, &err));
    CHILD_GETS(NIB_USAGE, nib_session_truncate(session, 0, 0, &err));
    CHILD_GETS(NIB_USAGE, nib_generate(session, &greedy, &sink, NULL, &err));
    CHILD_GETS(NIB_USAGE, nib_generator_open(&g, session, &greedy, &err));
    CHILD_GETS(NIB_USAGE, nib_generator_next(f->generator, &piece, &err));
    CHILD_GETS(NIB_USAGE, nib_chat_session_open(&c, session, "", &err));
    CHILD_GETS(NIB_USAGE, nib_chat_session_say(f->chat, "Hi", &reply, 0, &sink, NULL, &err));
    CHILD_GETS(NIB_USAGE, nib_service_open(&v, session, NULL, &err));
    CHILD_GETS(NIB_USAGE, nib_call_open(&call, f->service, NULL, &err));
    /* the service's thread may have held its lock when the process was forked */
    nib_call_state call_state = {.size = sizeof call_state};
    char byte;
    nib_call_look(f->call, &call_state);
    if (!call_state.over || nib_call_read(f->call, &byte, 1) != 0)
        return false;
    nib_service_run(f->service);
    nib_service_stop(f->service);
    CHILD_GETS(NIB_USAGE, nib_service_status(f->service, &err));
    CHILD_GETS(NIB_USAGE, nib_service_write(f->service, NIB_REPORT_HEALTH, &sink, &err));
    CHILD_GETS(NIB_USAGE, nib_devices_write(engine, NIB_FORM_TEXT, &sink, &err));
    CHILD_GETS(NIB_USAGE, nib_device_write(engine, "cpu", NIB_FORM_TEXT, &sink, &err));
    CHILD_GETS(NIB_USAGE, nib_devices_measure(engine, NULL, &err));
    CHILD_GETS(NIB_USAGE, nib_verify(model, NULL, NIB_FORM_TEXT, &sink, &err));
    CHILD_GETS(NIB_USAGE,
               nib_quantize(model, &(nib_quantize_options){.request = &recipe, .out = "never"},
                            NIB_FORM_TEXT, &sink, &err));
    CHILD_GETS(NIB_USAGE,
               nib_convert(model, &(nib_convert_options){.format = "gguf", .out = "never"},
                           NIB_FORM_TEXT, &sink, &err));
    CHILD_GETS(NIB_USAGE, nib_eval(session, NULL, &(nib_eval_options){.text_path = "README.md"},
                                   &evaluated, &err));
    CHILD_GETS(NIB_USAGE, nib_bench(session, &few, &bench, &err));
    CHILD_GETS(NIB_USAGE, nib_bench_operations(session, &few, NIB_FORM_TEXT, &sink, &err));
    CHILD_GETS(NIB_USAGE, nib_bench_kernels(engine, NIB_FORM_TEXT, &sink, &err));
    CHILD_GETS(NIB_USAGE, nib_bench_predict(engine, NULL, 0, NIB_FORM_TEXT, &sink, &err));
    CHILD_GETS(NIB_USAGE, nib_bench_layers(f->o.plan, 0, NIB_FORM_TEXT, &sink, &err));
    CHILD_GETS(NIB_USAGE,
               nib_bench_train(f->training, f->training_plan, 1, NIB_FORM_TEXT, &sink, &err));
    CHILD_GETS(NIB_USAGE, nib_train(f->training, f->training_plan,
                                    &(nib_train_options){.dry_run = true}, &sink, &err));
    CHILD_GETS(NIB_USAGE, nib_tune(model, NULL, NIB_FORM_TEXT, &sink, &err));
    CHILD_GETS(NIB_USAGE, nib_advise(model, NULL, NIB_FORM_TEXT, &sink, &err));
    return strstr(err.text, "open an engine after the fork") != NULL;
}

static bool reads(family *f)
{
    static kept text;
    const nib_sink sink = {keep, &text};
    const nib_tokenizer *tokenizer;
    nib_model_facts facts = {.size = sizeof facts};
    nib_plan_facts plan = {.size = sizeof plan};
    int32_t *ids;
    size_t count;
    nib_err err;
    CHILD_GETS(NIB_OK, nib_model_facts_get(f->o.model, &facts, &err));
    CHILD_GETS(NIB_OK, nib_model_tokenizer(&tokenizer, f->o.model, &err));
    CHILD_GETS(NIB_OK, nib_tokenize(tokenizer, "Once", 4, 0, &ids, &count, &err));
    CHILD_GETS(NIB_OK, nib_detokenize(tokenizer, ids, count, &sink, &err));
    nib_tokens_free(f->o.engine, ids);
    nib_plan_facts_get(f->o.plan, &plan);
    CHILD_GETS(NIB_OK, nib_plan_summary(f->o.plan, &sink, &err));
    return facts.layers == 5 && plan.layers > 0 && strncmp(text.text, "Once", 4) == 0;
}

static void close_family(family *f)
{
    nib_call_close(f->call);
    nib_service_close(f->service);
    nib_chat_session_close(f->chat);
    nib_generator_close(f->generator);
    nib_session_close(f->free);
    nib_plan_close(f->training_plan);
    nib_model_close(f->training);
    close_opened(&f->o);
}

static bool closes(family *f)
{
    close_family(f);
    return true;
}

/* One thread, as the sanitizer of threads wants it after a fork. */
static bool opens_its_own(family *f)
{
    kept text = {.size = 0};
    nib_err err;
    (void)f;
    opened o = must_open(&(open_how){.path = tales, .context = 64, .threads = 1});
    CHILD_GETS(NIB_OK, nib_generate(o.session, &greedy, &(nib_sink){keep, &text}, NULL, &err));
    close_opened(&o);
    return strcmp(text.text, expected()) == 0;
}

static nib_session *another_session(const family *f)
{
    nib_session *session;
    nib_err err = {NIB_OK, ""};
    expect_ok(nib_session_open(&session, f->o.model, f->o.plan, 1, &err), &err);
    return session;
}

static void test_fork(void **state)
{
    family f = {.o = must_open(&(open_how){.path = tales, .context = 64, .threads = 4})};
    nib_err err = {NIB_OK, ""};
    (void)state;
    (void)expected();
    f.free = another_session(&f);
    nib_session *others[] = {another_session(&f), another_session(&f), another_session(&f)};
    expect_ok(nib_generator_open(&f.generator, others[0], &greedy, &err), &err);
    expect_ok(nib_chat_session_open(&f.chat, others[1], "", &err), &err);
    expect_ok(nib_service_open(&f.service, others[2], NULL, &err), &err);
    expect_ok(nib_call_open(&f.call, f.service, NULL, &err), &err);
    for (size_t i = 0; i < COUNT(others); i++)
        nib_session_close(others[i]);
    expect_ok(nib_model_open(&f.training, f.o.engine, "configs/llama3_debugmodel.json", NULL, &err),
              &err);
    expect_ok(nib_plan_open(&f.training_plan, f.training, NULL, &err), &err);
    expect_generates(f.free); /* its workers wait for the next job */
    expect_in_child(runs_nothing, &f);
    expect_in_child(reads, &f);
    expect_in_child(closes, &f);
    expect_in_child(opens_its_own, &f);
    take_all(f.generator);
    expect_generates(f.free);
    close_family(&f);
}

static failing_gpu device;

static bool leaves_the_device(family *f)
{
    const int live = device.live;
    closes(f);
    return device.live == live;
}

/* The driver's state belongs to the parent. */
static void test_fork_with_device(void **state)
{
    const nib_request request = {.recipe = "8da4w", .device = "opencl", .context = 64};
    family f = {.o = {.engine = NULL}};
    nib_err err = {NIB_OK, ""};
    (void)state;
    failing_init(&device);
    expect_ok(nib_engine_open(&f.o.engine, &(nib_engine_options){.threads = 2}, &err), &err);
    f.o.engine->measured = true;
    assert_true(failing_offer(f.o.engine, &device));
    expect_ok(nib_model_open(&f.o.model, f.o.engine, tales, NULL, &err), &err);
    expect_ok(nib_plan_open(&f.o.plan, f.o.model, &request, &err), &err);
    expect_ok(nib_session_open(&f.o.session, f.o.model, f.o.plan, 1, &err), &err);
    assert_true(device.live > 0);
    expect_in_child(leaves_the_device, &f);
    close_family(&f);
    assert_int_equal(device.live, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_any_order),
        cmocka_unit_test(test_users_of_sessions),
        cmocka_unit_test(test_tokenizer_alone),
        cmocka_unit_test(test_failed_open),
        cmocka_unit_test(test_in_use),
        cmocka_unit_test(test_sinks),
        cmocka_unit_test(test_progress),
        cmocka_unit_test(test_calls_from_callbacks),
        cmocka_unit_test(test_jumps),
        cmocka_unit_test(test_two_engines),
        cmocka_unit_test(test_fork),
        cmocka_unit_test(test_fork_with_device),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
