/* SPDX-License-Identifier: Apache-2.0
 *
 * Arguments that no call may take: NULL, values that no enum has, negative counts, NaN. And every
 * public struct as applications of other versions pass it: options without a size, shorter, longer,
 * and with members that this version does not have; results that are shorter than today's. Each
 * lies in memory of exactly its size, so that sanitizers see a byte too far.
 */
#include "session.h"

#include "opening.h"
#include "skipping.h"

#include <limits.h>
#include <math.h>

enum { CONTEXT = 16 };

static opened on; /* the shipped model, with a session of CONTEXT positions */
static nib_model *training;
static nib_service *service;
static nib_err err;

static nib_status drop(void *ctx, const char *bytes, size_t size)
{
    (void)ctx, (void)bytes, (void)size;
    return NIB_OK;
}

static const nib_sink nowhere = {drop, NULL};

static void expect_ok(nib_status status)
{
    if (status != NIB_OK)
        fail_msg("%s", err.text);
}

static int open_all(void **state)
{
    (void)state;
    on = must_open(&(open_how){.path = "models/nibble-tales", .context = CONTEXT});
    expect_ok(nib_model_open(&training, on.engine, "configs/llama3_debugmodel.json", NULL, &err));
    return 0;
}

static int close_all(void **state)
{
    (void)state;
    nib_service_close(service);
    nib_model_close(training);
    close_opened(&on);
    return 0;
}

/* ---- options ---- */

static nib_status call_engine(const void *options)
{
    nib_engine *engine = NULL;
    const nib_status status = nib_engine_open(&engine, options, &err);
    nib_engine_close(engine);
    return status;
}

static nib_status call_model(const void *options)
{
    nib_model *model = NULL;
    const nib_status status =
        nib_model_open(&model, on.engine, "models/nibble-tales", options, &err);
    nib_model_close(model);
    return status;
}

static nib_status call_chat_write(const void *options)
{
    return nib_chat_write(on.model, options, &nowhere, &err);
}

static nib_status call_chat_encode(const void *options)
{
    int32_t *ids = NULL;
    size_t count;
    const nib_status status = nib_chat_encode(on.model, options, &ids, &count, &err);
    nib_tokens_free(on.engine, ids);
    return status;
}

static nib_status call_plan(const void *options)
{
    nib_plan *plan = NULL;
    const nib_status status = nib_plan_open(&plan, on.model, options, &err);
    nib_plan_close(plan);
    return status;
}

static nib_status call_plan_generation(const void *options)
{
    return call_plan(&(nib_request){.generation = options});
}

static nib_status call_generate(const void *options)
{
    return nib_generate(on.session, options, &nowhere, NULL, &err);
}

static nib_status call_generator(const void *options)
{
    nib_generator *generator = NULL;
    const nib_status status = nib_generator_open(&generator, on.session, options, &err);
    nib_generator_close(generator);
    return status;
}

static nib_status call_quantize(const void *options)
{
    return nib_quantize(on.model, options, NIB_FORM_TEXT, &nowhere, &err);
}

static nib_status call_quantize_budget(const void *options)
{
    return call_quantize(
        &(nib_quantize_options){.request = &(nib_request){0}, .out = "never", .budget = options});
}

static nib_status call_quantize_request(const void *options)
{
    return call_quantize(&(nib_quantize_options){.request = options, .out = "never"});
}

static nib_status call_convert(const void *options)
{
    return nib_convert(on.model, options, NIB_FORM_TEXT, &nowhere, &err);
}

static nib_status call_verify_from(const void *options)
{
    return nib_verify_from(on.model, options, NIB_FORM_TEXT, &nowhere, &err);
}

static nib_status call_verify_with(const void *options)
{
    return nib_verify_with(on.model, options, NIB_FORM_TEXT, &nowhere, &err);
}

static nib_status call_signature(const void *options)
{
    return nib_signature_write(on.engine, "never", options, NIB_FORM_TEXT, &nowhere, &err);
}

static nib_status call_imatrix(const void *options)
{
    return nib_imatrix_write(on.model, options, NIB_FORM_TEXT, &nowhere, &err);
}

static nib_status call_eval(const void *options)
{
    nib_eval_result result = {.size = sizeof result};
    return nib_eval(on.session, NULL, options, &result, &err);
}

static nib_status call_bench(const void *options)
{
    nib_bench_result result = {.size = sizeof result};
    return nib_bench(on.session, options, &result, &err);
}

static nib_status call_bench_peer(const void *options)
{
    return call_bench(&(nib_bench_options){.peer = options});
}

static nib_status call_bench_operations(const void *options)
{
    return nib_bench_operations(on.session, options, NIB_FORM_TEXT, &nowhere, &err);
}

static nib_status call_tune(const void *options)
{
    return nib_tune(on.model, options, NIB_FORM_TEXT, &nowhere, &err);
}

static nib_status call_advise(const void *options)
{
    return nib_advise(training, options, NIB_FORM_TEXT, &nowhere, &err);
}

static nib_status call_advise_methods(const void *options)
{
    return call_advise(&(nib_advise_options){.methods = options});
}

static nib_status call_advise_request(const void *options)
{
    return call_advise(&(nib_advise_options){.request = options});
}

static nib_status call_service(const void *options)
{
    nib_service *own = NULL;
    const nib_status status = nib_service_open(&own, on.session, options, &err);
    nib_service_close(own);
    return status;
}

static nib_status call_call(const void *options)
{
    nib_call *call = NULL;
    const nib_status status = nib_call_open(&call, service, options, &err);
    nib_call_close(call);
    return status;
}

static nib_status call_train(const void *options)
{
    return nib_train(on.model, on.plan, options, &nowhere, &err);
}

static nib_status call_plot(const void *options)
{
    return nib_plot(on.engine, options, &nowhere, &err);
}

/* A process may open ranks once, and this one must not: only what is refused before. */
static nib_status call_ranks(const void *options)
{
    nib_ranks *ranks = NULL;
    const nib_status status = nib_ranks_open(&ranks, options, &err);
    assert_null(ranks);
    return status;
}

typedef struct options_case {
    const char *type;
    size_t size, reserved; /* bytes; where `reserved` begins */
    nib_status (*call)(const void *options);
    nib_status zeroed; /* of the defaults */
} options_case;

#define OPTIONS(type, call, zeroed)                                                                \
    {                                                                                              \
#type, sizeof(type), offsetof(type, reserved), call, zeroed                                \
    }

static const options_case cases[] = {
    OPTIONS(nib_engine_options, call_engine, NIB_OK),
    OPTIONS(nib_model_options, call_model, NIB_OK),
    OPTIONS(nib_chat_options, call_chat_write, NIB_BAD_INPUT), /* no messages */
    OPTIONS(nib_chat_options, call_chat_encode, NIB_BAD_INPUT),
    OPTIONS(nib_request, call_plan, NIB_OK),
    OPTIONS(nib_generate_options, call_plan_generation, NIB_OK),
    OPTIONS(nib_generate_options, call_generate, NIB_OK),
    OPTIONS(nib_generate_options, call_generator, NIB_OK),
    OPTIONS(nib_quantize_options, call_quantize, NIB_USAGE), /* no output */
    OPTIONS(nib_budget, call_quantize_budget, NIB_USAGE),    /* no number */
    OPTIONS(nib_request, call_quantize_request, NIB_USAGE),  /* no recipe */
    OPTIONS(nib_convert_options, call_convert, NIB_USAGE),   /* no output */
    OPTIONS(nib_verify_options, call_verify_with, NIB_OK),
    OPTIONS(nib_verify_from_options, call_verify_from, NIB_USAGE), /* no source */
    OPTIONS(nib_signature_options, call_signature, NIB_USAGE),     /* no key */
    OPTIONS(nib_imatrix_options, call_imatrix, NIB_USAGE),         /* no output */
    OPTIONS(nib_eval_options, call_eval, NIB_USAGE),               /* no text */
    OPTIONS(nib_bench_options, call_bench, NIB_USAGE), /* more tokens than the context */
    OPTIONS(nib_bench_peer, call_bench_peer, NIB_USAGE),
    OPTIONS(nib_bench_options, call_bench_operations, NIB_USAGE),
    OPTIONS(nib_request, call_tune, NIB_USAGE),          /* nowhere to save */
    OPTIONS(nib_advise_options, call_advise, NIB_USAGE), /* a training config */
    OPTIONS(nib_request, call_advise_request, NIB_USAGE),
    OPTIONS(nib_advise_methods, call_advise_methods, NIB_USAGE), /* no method */
    OPTIONS(nib_train_options, call_train, NIB_USAGE),           /* a model */
    OPTIONS(nib_plot_options, call_plot, NIB_USAGE),             /* no run */
    OPTIONS(nib_service_options, call_service, NIB_OK),
    OPTIONS(nib_call_options, call_call, NIB_OK),
};

static const options_case ranks_case = OPTIONS(nib_ranks_options, call_ranks, NIB_OK);

/* Passes `bytes` bytes, zeroed but for the size and, unless 0, the byte at `set`. */
static nib_status pass(const options_case *c, size_t bytes, size_t size, size_t set)
{
    char *options = calloc(1, bytes);
    assert_non_null(options);
    memcpy(options, &size, sizeof size);
    if (set != 0)
        options[set] = 1;
    err = (nib_err){NIB_OK, ""};
    const nib_status status = c->call(options);
    free(options);
    return status;
}

static void expect_default(const options_case *c, size_t bytes, size_t size)
{
    const nib_status status = pass(c, bytes, size, 0);
    if (status != c->zeroed)
        fail_msg("%s of %zu bytes with size %zu: %s: %s", c->type, bytes, size,
                 nib_status_name(status), err.text);
}

static void expect_refused(const options_case *c, nib_status wanted, size_t bytes, size_t size,
                           size_t set)
{
    const nib_status status = pass(c, bytes, size, set);
    if (status != wanted || strstr(err.text, c->type) == NULL)
        fail_msg("%s of %zu bytes with size %zu, set at %zu: %s: %s", c->type, bytes, size, set,
                 nib_status_name(status), err.text);
}

static void expect_bad_refused(const options_case *c)
{
    expect_refused(c, NIB_UNSUPPORTED, c->size, 0, c->reserved);
    expect_refused(c, NIB_UNSUPPORTED, c->size, c->size, c->size - 1);
    expect_refused(c, NIB_UNSUPPORTED, c->size + 24, c->size + 24, c->size);
    expect_refused(c, NIB_UNSUPPORTED, c->size + 24, c->size + 24, c->size + 23);
    expect_refused(c, NIB_USAGE, c->size, 1, 0);
    expect_refused(c, NIB_USAGE, c->size, sizeof(size_t) - 1, 0);
    expect_refused(c, NIB_USAGE, c->size, (1 << 16) + 1, 0);
    expect_refused(c, NIB_USAGE, c->size, SIZE_MAX, 0);
}

static void test_options(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        const options_case *c = &cases[i];
        if (c->call == call_call) /* the session is free until now */
            expect_ok(nib_service_open(&service, on.session, NULL, &err));
        assert_int_equal(c->call(NULL), c->zeroed);
        expect_default(c, c->size, 0);
        expect_default(c, c->size, c->size);
        expect_default(c, sizeof(size_t), sizeof(size_t));
        expect_default(c, c->reserved, c->reserved);
        expect_default(c, c->size + 24, c->size + 24);
        expect_bad_refused(c);
    }
    expect_bad_refused(&ranks_case);
}

/* Values that no enumerator has. */
static void test_unknown_values(void **state)
{
    nib_engine *engine = NULL;
    nib_call *call = NULL;
    const nib_engine_options engine_options = {.sandbox = (nib_sandbox)3};
    const nib_call_options call_options = {.route = (nib_route)2};
    const nib_call_options no_body = {.body_size = 5};
    (void)state;
    assert_int_equal(nib_engine_open(&engine, &engine_options, &err), NIB_USAGE);
    assert_int_equal(nib_call_open(&call, service, &call_options, &err), NIB_USAGE);
    assert_int_equal(nib_call_open(&call, service, &no_body, &err), NIB_USAGE);
    assert_int_equal(nib_service_write(service, (nib_report)5, &nowhere, &err), NIB_USAGE);
    assert_true(engine == NULL && call == NULL);
}

static void test_unknown_forms(void **state)
{
    static const nib_form forms[] = {(nib_form)-1, (nib_form)3, (nib_form)INT_MAX};
    const nib_quantize_options quantize = {.request = &(nib_request){.recipe = "8da4w"},
                                           .out = "never"};
    const nib_convert_options convert = {.out = "never", .format = "nibble"};
    const nib_imatrix_options imatrix = {.out = "never", .calibrate = "never"};
    const nib_verify_from_options from = {.source = "never"};
    const nib_signature_options signature = {.key = "never"};
    (void)state;
    for (size_t i = 0; i < COUNT(forms); i++) {
        const nib_form f = forms[i];
        const nib_status got[] = {
            nib_kernels_write(on.engine, f, &nowhere, &err),
            nib_devices_write(on.engine, f, &nowhere, &err),
            nib_device_write(on.engine, "mi210", f, &nowhere, &err),
            nib_recipes_write(on.engine, f, &nowhere, &err),
            nib_models_write(on.engine, f, &nowhere, &err),
            nib_formats_write(on.engine, f, &nowhere, &err),
            nib_codes_write(on.engine, NULL, f, &nowhere, &err),
            nib_train_keys_write(on.engine, f, &nowhere, &err),
            nib_info_write(on.model, f, &nowhere, &err),
            nib_verify(on.model, NULL, f, &nowhere, &err),
            nib_verify_with(on.model, NULL, f, &nowhere, &err),
            nib_verify_from(on.model, &from, f, &nowhere, &err),
            nib_signature_write(on.engine, "never", &signature, f, &nowhere, &err),
            nib_quantize(on.model, &quantize, f, &nowhere, &err),
            nib_convert(on.model, &convert, f, &nowhere, &err),
            nib_imatrix_write(on.model, &imatrix, f, &nowhere, &err),
            nib_plan_write(on.plan, f, &nowhere, &err),
            nib_plan_ledger_write(on.plan, f, &nowhere, &err),
            nib_bench_operations(on.session, NULL, f, &nowhere, &err),
            nib_bench_kernels(on.engine, f, &nowhere, &err),
            nib_bench_predict(on.engine, NULL, 1, f, &nowhere, &err),
            nib_bench_layers(on.plan, 1, f, &nowhere, &err),
            nib_bench_train(training, on.plan, 1, f, &nowhere, &err),
            nib_tune(on.model, NULL, f, &nowhere, &err),
            nib_tune_show(on.engine, f, &nowhere, &err),
            nib_advise(on.model, NULL, f, &nowhere, &err),
        };
        assert_string_equal(nib_status_name(NIB_USAGE), nib_status_name(got[0]));
        for (size_t k = 0; k < COUNT(got); k++)
            if (got[k] != NIB_USAGE)
                fail_msg("call %zu with form %d: %s", k, (int)f, nib_status_name(got[k]));
        assert_non_null(strstr(err.text, "which is not a nib_form"));
    }
}

/* ---- NULL ---- */

static void expect_null(nib_status status, const char *what, int line)
{
    if (status != NIB_USAGE || strstr(err.text, what) == NULL || strstr(err.text, "NULL") == NULL)
        fail_msg("line %d: %s: %s", line, nib_status_name(status), err.text);
    err = (nib_err){NIB_OK, ""};
}

#define NULLS(what, call) expect_null((call), what, __LINE__)

static void test_null_handles(void **state)
{
    const nib_sink no_write = {NULL, NULL};
    const int32_t id = 1;
    const nib_slot slot = {.token = 1, .outputs = NIB_SLOT_LOGITS};
    const nib_tokenizer *tokenizer;
    nib_model *model = NULL;
    nib_piece piece = {.size = sizeof piece};
    nib_generate_stats stats = {.size = sizeof stats};
    int32_t *ids = NULL, length;
    size_t size;
    (void)state;
    expect_ok(nib_model_tokenizer(&tokenizer, on.model, &err));
    NULLS("out", nib_engine_open(NULL, NULL, &err));
    NULLS("out", nib_model_open(NULL, on.engine, "x", NULL, &err));
    NULLS("engine", nib_model_open(&model, NULL, "x", NULL, &err));
    NULLS("path", nib_model_open(&model, on.engine, NULL, NULL, &err));
    NULLS("tokenizer", nib_tokenize(NULL, "a", 1, 0, &ids, &size, &err));
    NULLS("text", nib_tokenize(tokenizer, NULL, 1, 0, &ids, &size, &err));
    NULLS("count", nib_tokenize(tokenizer, "a", 1, 0, &ids, NULL, &err));
    NULLS("ids", nib_detokenize(tokenizer, NULL, 1, &nowhere, &err));
    NULLS("sink", nib_detokenize(tokenizer, &id, 1, NULL, &err));
    NULLS("sink->write", nib_detokenize(tokenizer, &id, 1, &no_write, &err));
    NULLS("messages",
          nib_chat_write(on.model, &(nib_chat_options){.messages_size = 2}, &nowhere, &err));
    NULLS("plan", nib_plan_status(NULL, &err));
    NULLS("plan", nib_plan_layer_get(NULL, 0, &(nib_plan_layer){0}, &err));
    NULLS("out", nib_plan_layer_get(on.plan, 0, NULL, &err));
    NULLS("plan", nib_session_open(&on.session, on.model, NULL, 1, &err));
    NULLS("slots", nib_session_step(on.session, NULL, 1, NULL, &err));
    NULLS("logits", nib_session_step(on.session, &slot, 1, NULL, &err));
    NULLS("bytes", nib_session_load(on.session, 0, NULL, 1, &length, &err));
    NULLS("session", nib_generate(NULL, NULL, &nowhere, NULL, &err));
    NULLS("generator", nib_generator_next(NULL, &piece, &err));
    NULLS("chat", nib_chat_session_say(NULL, "a", NULL, 0, &nowhere, NULL, &err));
    NULLS("service", nib_service_status(NULL, &err));
    NULLS("resize", nib_engine_open(&on.engine,
                                    &(nib_engine_options){.allocator = &(nib_allocator){0}}, &err));
    assert_null(nib_session_plan(NULL));
    assert_null(nib_session_hidden(NULL));
    assert_int_equal(nib_session_vocab(NULL), 0);
    nib_plan_facts_get(NULL, NULL);
    nib_generator_stats_get(NULL, &stats);
    nib_service_stop(NULL);
    nib_tokens_free(NULL, NULL);
    nib_init(NULL, 0);
    assert_true(model == NULL && ids == NULL);
}

static nib_status plan_with(const nib_request *request) { return call_plan(request); }

static void test_null_lists(void **state)
{
    static const char *const items[] = {"*", NULL};
    const nib_strings none = {NULL, 1}, half = {items, 2};
    (void)state;
    NULLS("nib_request.skip.items", plan_with(&(nib_request){.skip = none}));
    NULLS("nib_request.only.items[1]", plan_with(&(nib_request){.only = half}));
    NULLS("nib_request.allow", plan_with(&(nib_request){.allow = half}));
    NULLS("nib_request.kernel", plan_with(&(nib_request){.kernel = half}));
    NULLS("nib_request.place", plan_with(&(nib_request){.place = half}));
    NULLS("nib_request.without", plan_with(&(nib_request){.without = half}));
    NULLS("nib_model_options.overrides", call_model(&(nib_model_options){.overrides = half}));
    NULLS("nib_generate_options.stop", call_generate(&(nib_generate_options){.stop = half}));
    NULLS("nib_generate_options.stop", call_generator(&(nib_generate_options){.stop = none}));
    NULLS("nib_convert_options.allow", call_convert(&(nib_convert_options){.allow = half}));
    NULLS("nib_advise_options.recipes", call_advise(&(nib_advise_options){.recipes = half}));
    NULLS("nib_advise_methods.methods",
          call_advise_methods(&(nib_advise_methods){.methods = half}));
    NULLS("nib_plot_options.runs", call_plot(&(nib_plot_options){.runs = half}));
    NULLS("nib_bench_options.contexts", call_bench(&(nib_bench_options){.context_count = 1}));
}

/* ---- numbers ---- */

static void test_numbers(void **state)
{
    nib_engine_options slice = {.threads = 1, .slice = 1};
    (void)state;
    const nib_status got[] = {
        plan_with(&(nib_request){.context = -1}),
        plan_with(&(nib_request){.sequences = -1}),
        plan_with(&(nib_request){.ranks = -1}),
        plan_with(&(nib_request){.generation = &(nib_generate_options){.top_p = NAN}}),
        call_engine(&slice),
        call_engine(&(nib_engine_options){.threads = 1, .slices = -1}),
        call_generate(&(nib_generate_options){.temperature = NAN}),
        call_generate(&(nib_generate_options){.repeat_penalty = NAN}),
        call_eval(&(nib_eval_options){.text_path = "never", .window = -1}),
        call_bench(&(nib_bench_options){.prompt_tokens = -1}),
        call_bench(&(nib_bench_options){.new_tokens = -1}),
        call_bench(&(nib_bench_options){.repeats = -1}),
        call_advise(&(nib_advise_options){.window = -1}),
        call_advise(&(nib_advise_options){.loss_budget = NAN}),
        call_service(&(nib_service_options){.queue = -1}),
        call_service(&(nib_service_options){.limit_s = NAN}),
        call_ranks(&(nib_ranks_options){.timeout_s = NAN}),
        call_ranks(&(nib_ranks_options){.asked = -1}),
        nib_bench_layers(on.plan, -1, NIB_FORM_TEXT, &nowhere, &err),
        nib_bench_train(training, on.plan, -1, NIB_FORM_TEXT, &nowhere, &err),
    };
    for (size_t i = 0; i < COUNT(got); i++)
        if (got[i] != NIB_USAGE)
            fail_msg("number %zu: %s", i, nib_status_name(got[i]));
}

/* Fails before the tables of so many sequences take the memory of the machine. */
static void test_too_many_sequences(void **state)
{
    nib_session *session = NULL;
    (void)state;
    assert_int_equal(nib_session_open(&session, on.model, on.plan, INT_MAX, &err), NIB_NO_MEMORY);
    assert_null(session);
}

/* ---- conversations ---- */

/* A template that writes nothing, and text that is not UTF-8. */
static void test_chat(void **state)
{
    const nib_generate_options one = {.max_tokens = 1};
    nib_chat_session *chat;
    (void)state;
    expect_ok(nib_chat_session_open(&chat, on.session, "", &err));
    assert_int_equal(nib_chat_session_say(chat, "a", &one, 0, &nowhere, NULL, &err), NIB_USAGE);
    nib_chat_session_close(chat);
    expect_ok(nib_chat_session_open(&chat, on.session, "{{ messages[0].content }}", &err));
    assert_int_equal(nib_chat_session_say(chat, "a\xff", &one, 0, &nowhere, NULL, &err),
                     NIB_BAD_INPUT);
    assert_int_equal(nib_chat_session_system(chat, "a\xff", &err), NIB_BAD_INPUT);
    const nib_generate_options prompt = {.prompt = "a"}, other = {.chat = &(nib_chat_options){0}};
    assert_int_equal(nib_chat_session_say(chat, "a", &prompt, 0, &nowhere, NULL, &err), NIB_USAGE);
    assert_int_equal(nib_chat_session_say(chat, "a", &other, 0, &nowhere, NULL, &err), NIB_USAGE);
    expect_ok(nib_chat_session_say(chat, "a", &one, 0, &nowhere, NULL, &err));
    assert_true(nib_session_length(on.session, 0) > 0);
    nib_chat_session_close(chat);
}

static void test_length(void **state)
{
    const nib_slot slots[] = {{.sequence = 0, .position = 0}, {.sequence = 0, .position = 1}};
    (void)state;
    expect_ok(nib_session_truncate(on.session, 0, 0, &err));
    assert_int_equal(nib_session_length(on.session, 0), 0);
    expect_ok(nib_session_step(on.session, slots, 2, NULL, &err));
    assert_int_equal(nib_session_length(on.session, 0), 2);
    expect_ok(nib_session_truncate(on.session, 0, 1, &err));
    assert_int_equal(nib_session_length(on.session, 0), 1);
    assert_int_equal(nib_session_length(on.session, -1), -1);
    assert_int_equal(nib_session_length(on.session, INT32_MAX), -1);
    assert_int_equal(nib_session_length(NULL, 0), -1);
}

/* ---- results ---- */

static nib_plan *described; /* has settings, candidates and advice */
static nib_session *measured;

static void get_model_facts(void *out) { expect_ok(nib_model_facts_get(on.model, out, &err)); }

static void get_tokenizer_facts(void *out)
{
    const nib_tokenizer *tokenizer;
    expect_ok(nib_model_tokenizer(&tokenizer, on.model, &err));
    nib_tokenizer_facts_get(tokenizer, out);
}

static void get_plan_facts(void *out) { nib_plan_facts_get(described, out); }

static void get_layer(void *out) { expect_ok(nib_plan_layer_get(described, 0, out, &err)); }

static void get_use(void *out) { expect_ok(nib_plan_use_get(described, 0, 0, out, &err)); }

/* The first layer with the entry. */
static size_t find_layer(bool candidates)
{
    nib_plan_layer layer = {.size = sizeof layer};
    for (size_t i = 0; nib_plan_layer_get(described, i, &layer, NULL) == NIB_OK; i++)
        if ((candidates ? layer.candidates : layer.advice) > 0)
            return i;
    fail_msg("no layer has %s", candidates ? "candidates" : "advice");
    return 0;
}

static void get_advice(void *out)
{
    expect_ok(nib_plan_advice_get(described, find_layer(false), 0, out, &err));
}

static void get_candidate(void *out)
{
    expect_ok(nib_plan_candidate_get(described, find_layer(true), 0, out, &err));
}

static void get_setting(void *out) { expect_ok(nib_plan_setting_get(described, 0, out, &err)); }

static void get_stats(void *out)
{
    const nib_generate_options options = {.max_tokens = 1, .temperature = -1};
    expect_ok(nib_generate(measured, &options, &nowhere, out, &err));
}

static void get_piece(void *out)
{
    nib_generator *generator;
    expect_ok(nib_generator_open(&generator, measured, NULL, &err));
    expect_ok(nib_generator_next(generator, out, &err));
    nib_generator_close(generator);
}

static void get_eval(void *out)
{
    const nib_eval_options options = {.text_path = "tests/page/requirements.txt"};
    expect_ok(nib_eval(measured, NULL, &options, out, &err));
}

static void get_bench(void *out)
{
    const nib_bench_options options = {.prompt_tokens = 2, .new_tokens = 1, .repeats = 1};
    expect_ok(nib_bench(measured, &options, out, &err));
}

static void with_call(void *out, void (*get)(nib_call *call, void *out))
{
    nib_call *call;
    expect_ok(nib_call_open(&call, service, NULL, &err));
    get(call, out);
    nib_call_close(call);
}

static void look(nib_call *call, void *out) { nib_call_look(call, out); }

static void get_call(void *out) { with_call(out, look); }

static void count(nib_call *call, void *out) { nib_call_stats_get(call, out); }

static void get_call_stats(void *out) { with_call(out, count); }

typedef struct result_case {
    const char *type;
    size_t size;
    void (*get)(void *out);
    bool slow; /* only a few sizes */
} result_case;

static const result_case results[] = {
    {"nib_model_facts", sizeof(nib_model_facts), get_model_facts, false},
    {"nib_tokenizer_facts", sizeof(nib_tokenizer_facts), get_tokenizer_facts, false},
    {"nib_plan_facts", sizeof(nib_plan_facts), get_plan_facts, false},
    {"nib_plan_layer", sizeof(nib_plan_layer), get_layer, false},
    {"nib_plan_use", sizeof(nib_plan_use), get_use, false},
    {"nib_plan_advice", sizeof(nib_plan_advice), get_advice, false},
    {"nib_plan_candidate", sizeof(nib_plan_candidate), get_candidate, false},
    {"nib_plan_setting", sizeof(nib_plan_setting), get_setting, false},
    {"nib_generate_stats", sizeof(nib_generate_stats), get_stats, true},
    {"nib_piece", sizeof(nib_piece), get_piece, true},
    {"nib_eval_result", sizeof(nib_eval_result), get_eval, true},
    {"nib_bench_result", sizeof(nib_bench_result), get_bench, true},
    {"nib_call_state", sizeof(nib_call_state), get_call, false},
    {"nib_call_stats", sizeof(nib_call_stats), get_call_stats, true},
};

/* Calls with `bytes` bytes and a size, 0 or `bytes`: only these may be written, except the size. */
static void expect_within(const result_case *c, size_t bytes, size_t size)
{
    enum { GUARD = 64 };
    unsigned char *at = malloc(bytes + GUARD), *exact = malloc(bytes);
    assert_true(at != NULL && exact != NULL);
    memset(at, 0xa5, bytes + GUARD);
    memcpy(at, &size, sizeof size);
    c->get(at);
    bool written = false;
    for (size_t i = sizeof size; i < bytes; i++)
        written = written || at[i] != 0xa5;
    if (memcmp(at, &size, sizeof size) != 0 || written != (bytes > sizeof size))
        fail_msg("%s of %zu bytes: the size changed, or nothing was written", c->type, bytes);
    for (size_t i = bytes; i < bytes + GUARD; i++)
        if (at[i] != 0xa5)
            fail_msg("%s of %zu bytes: byte %zu was written", c->type, bytes, i);
    memset(exact, 0, bytes);
    memcpy(exact, &size, sizeof size);
    c->get(exact);
    free(exact);
    free(at);
}

static void test_results(void **state)
{
    (void)state;
    const nib_generate_options greedy = {.temperature = -1, .top_k = 3};
    const nib_request request = {
        .recipe = "int4wo-g12", .engine = "torchao", .generation = &greedy};
    nib_plan *plan;
    expect_ok(nib_plan_open(&described, on.model, &request, &err));
    expect_ok(nib_plan_open(&plan, on.model, &(nib_request){.context = CONTEXT}, &err));
    expect_ok(nib_session_open(&measured, on.model, plan, 1, &err));
    for (size_t i = 0; i < COUNT(results); i++) {
        const result_case *c = &results[i];
        if (!X86_ROWS && c->get == get_advice) { /* there is nothing to advise */
            printf("skipped: %s: %s\n", c->type, SKIP_ROWS);
            continue;
        }
        for (size_t bytes = sizeof(size_t); bytes <= c->size + 16;
             bytes += c->slow ? c->size / 3 : 1)
            expect_within(c, bytes, bytes);
        expect_within(c, c->size, 0);
    }
    nib_session_close(measured);
    nib_plan_close(plan);
    nib_plan_close(described);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_null_handles), /* before the service has the session */
        cmocka_unit_test(test_null_lists),
        cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_too_many_sequences),
        cmocka_unit_test(test_unknown_forms),
        cmocka_unit_test(test_chat),
        cmocka_unit_test(test_length),
        cmocka_unit_test(test_options),
        cmocka_unit_test(test_unknown_values), /* with the service */
        cmocka_unit_test(test_results),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
