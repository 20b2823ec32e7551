/* SPDX-License-Identifier: Apache-2.0
 *
 * The service under threads: calls are opened, read and closed while another thread runs them;
 * scheduling; every failing allocation. tests/serve checks the contents of answers.
 */
#include "service.h"

#include "failing.h"
#include "metered.h"
#include "session.h"
#include "skipping.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <time.h>

#include <cmocka.h>

static failing memory;
static pthread_mutex_t memory_lock = PTHREAD_MUTEX_INITIALIZER;

/* An allocator shared by threads. */
static void *resize_locked(void *ctx, void *old, size_t size)
{
    pthread_mutex_lock(&memory_lock);
    void *p = failing_resize(ctx, old, size);
    pthread_mutex_unlock(&memory_lock);
    return p;
}

static meter metered;

static void *meter_locked(void *ctx, void *old, size_t size)
{
    (void)ctx;
    pthread_mutex_lock(&memory_lock);
    void *p = metered_resize(&metered, old, size);
    pthread_mutex_unlock(&memory_lock);
    return p;
}

/* Blocks the thread that prepares requests in the middle of one, or releases it. */
static struct {
    nib_service *service;
    pthread_mutex_t lock;
    pthread_cond_t change;
    bool closed;
} gate = {.lock = PTHREAD_MUTEX_INITIALIZER, .change = PTHREAD_COND_INITIALIZER};

static void *resize_behind_gate(void *ctx, void *old, size_t size)
{
    (void)ctx;
    pthread_mutex_lock(&gate.lock);
    while (gate.closed && size > 0 && pthread_equal(pthread_self(), gate.service->preparer))
        pthread_cond_wait(&gate.change, &gate.lock);
    pthread_mutex_unlock(&gate.lock);
    if (size > 0)
        return realloc(old, size);
    free(old);
    return NULL;
}

static void set_gate(nib_service *s, bool closed)
{
    pthread_mutex_lock(&gate.lock);
    gate.service = s;
    gate.closed = closed;
    pthread_cond_broadcast(&gate.change);
    pthread_mutex_unlock(&gate.lock);
}

static void set_left(int left)
{
    pthread_mutex_lock(&memory_lock);
    memory.left = left;
    pthread_mutex_unlock(&memory_lock);
}

static const char once[] =
    "{\"prompt\": \"Once upon a time\", \"max_tokens\": 9, \"seed\": 3, \"logprobs\": 2}";

#define OF_USER(NAME)                                                                              \
    "{\"prompt\": \"Once\", \"max_tokens\": 9, \"ignore_eos\": true, \"user\": \"" NAME "\"}"
static const char of_user_a[] = OF_USER("a"), of_user_b[] = OF_USER("b"),
                  of_user_c[] = OF_USER("c");

typedef struct served {
    opened o;
    nib_service *service;
    pthread_t thread;
} served;

static void *run(void *ctx)
{
    served *s = ctx;
    nib_service_run(s->service);
    return NULL;
}

static void open_served(served *s, const nib_service_options *options, const nib_allocator *a,
                        int sequences)
{
    const open_how how = {.path = "models/nibble-tales",
                          .recipe = "8da4w",
                          .threads = 2,
                          .sequences = sequences,
                          .allocator = a};
    nib_err err;
    s->o = must_open(&how);
    if (nib_service_open(&s->service, s->o.session, options, &err) != NIB_OK)
        fail_msg("%s", err.text);
}

static void start(served *s) { assert_int_equal(pthread_create(&s->thread, NULL, run, s), 0); }

static void stop(served *s)
{
    nib_service_stop(s->service);
    assert_int_equal(pthread_join(s->thread, NULL), 0);
}

static void close_served(served *s)
{
    nib_service_close(s->service);
    close_opened(&s->o);
}

static nib_call *post_to(served *s, nib_route route, const char *body, uint64_t client)
{
    const nib_call_options options = {.route = route,
                                      .body = body,
                                      .body_size = strlen(body),
                                      .client = client,
                                      .now = 1700000000};
    nib_call *call = NULL;
    return nib_call_open(&call, s->service, &options, NULL) == NIB_OK ? call : NULL;
}

static nib_call *post(served *s, const char *body, uint64_t client)
{
    return post_to(s, NIB_ROUTE_COMPLETIONS, body, client);
}

static void sleep_briefly(void) { nanosleep(&(struct timespec){.tv_nsec = 200 * 1000}, NULL); }

/* Waits until every accepted request is prepared. */
static void wait_prepared(nib_service *s)
{
    bool idle = false;
    while (!idle) {
        pthread_mutex_lock(&s->lock);
        idle = s->unprepared == NULL && s->preparing == NULL;
        pthread_mutex_unlock(&s->lock);
        if (!idle)
            sleep_briefly();
    }
}

static nib_call_state look(nib_call *call)
{
    nib_call_state state = {.size = sizeof state};
    nib_call_look(call, &state);
    return state;
}

/* Reads the whole answer, truncated to `size`. */
static int read_answer(nib_call *call, char *out, size_t size)
{
    size_t count = 0;
    nib_call_state state;
    do {
        state = look(call);
        const size_t got = nib_call_read(call, out + count, size - 1 - count);
        count += got;
        if (got == 0)
            sleep_briefly();
    } while (!state.over || look(call).left > 0);
    out[count] = 0;
    return state.http;
}

/* The answer after its id and time, which differ each time. */
static const char *body_of(const char *answer)
{
    const char *at = strstr(answer, "\"choices\"");
    return at != NULL ? at : answer;
}

typedef struct caller {
    served *served;
    const char *want;
    uint32_t random;
    int wrong;
    pthread_t thread;
} caller;

static void *call_and_disconnect(void *ctx)
{
    caller *c = ctx;
    char *answer = malloc(1 << 16);
    for (int i = 0; i < 30; i++) {
        c->random = c->random * 1664525u + 1013904223u;
        nib_call *call = post(c->served, once, c->random >> 30);
        const uint32_t how = c->random >> 20 & 3;
        if (call == NULL) {
            c->wrong++;
        } else if (how != 0) { /* one in four disconnects early */
            const int http = read_answer(call, answer, 1 << 16);
            if (http != 200 || strncmp(body_of(answer), c->want, strlen(c->want)) != 0)
                c->wrong++;
        } else if (c->random >> 18 & 1) {
            sleep_briefly();
        }
        nib_call_close(call);
    }
    free(answer);
    return NULL;
}

static nib_status drop(void *ctx, const char *bytes, size_t size)
{
    (void)bytes;
    *(size_t *)ctx += size;
    return NIB_OK;
}

static void test_threads_get_the_same_answers(void **state)
{
    enum { CALLERS = 4 };
    served s;
    caller callers[CALLERS];
    static char want[1 << 16];
    size_t told = 0;
    const nib_sink sink = {drop, &told};
    (void)state;
    open_served(&s, NULL, NULL, 3);
    start(&s);
    nib_call *call = post(&s, once, 0);
    assert_int_equal(read_answer(call, want, sizeof want), 200);
    nib_call_close(call);
    char *usage =
        strstr(want, "\"prompt_tokens_details\""); /* the number of cached tokens varies */
    assert_non_null(usage);
    *usage = 0;
    for (int i = 0; i < CALLERS; i++) {
        callers[i] = (caller){.served = &s, .want = body_of(want), .random = (uint32_t)i};
        assert_int_equal(pthread_create(&callers[i].thread, NULL, call_and_disconnect, &callers[i]),
                         0);
    }
    for (int i = 0; i < 50; i++) { /* reports while it runs */
        for (int r = NIB_REPORT_MODELS; r <= NIB_REPORT_PLAN; r++)
            assert_int_equal(nib_service_write(s.service, (nib_report)r, &sink, NULL), NIB_OK);
        sleep_briefly();
    }
    for (int i = 0; i < CALLERS; i++) {
        assert_int_equal(pthread_join(callers[i].thread, NULL), 0);
        assert_int_equal(callers[i].wrong, 0);
    }
    assert_true(told > 10000);
    stop(&s);
    assert_int_equal(nib__batch_counts(s.service->batch).jobs, 0);
    assert_null(s.service->calls);
    assert_int_equal(s.service->waiting, 0);
    close_served(&s);
}

typedef struct asking {
    const char *body;
    uint64_t client;
} asking;

/* Posts four requests in this order; queued_s: seconds that each waited. */
static void serve_four(const asking four[4], int sequences, double queued_s[4])
{
    served s;
    nib_call *calls[4];
    static char answer[1 << 16];
    open_served(&s, NULL, NULL, sequences);
    for (int i = 0; i < 4; i++)
        calls[i] = post(&s, four[i].body, four[i].client);
    wait_prepared(s.service);
    start(&s);
    for (int i = 0; i < 4; i++) {
        nib_call_stats stats = {.size = sizeof stats};
        assert_int_equal(read_answer(calls[i], answer, sizeof answer), 200);
        nib_call_stats_get(calls[i], &stats);
        assert_int_equal(stats.new_tokens, 9);
        assert_string_equal(stats.finish, "length");
        queued_s[i] = stats.queued_s;
        nib_call_close(calls[i]);
    }
    stop(&s);
    close_served(&s);
}

/* The next request comes from the client with the fewest running requests, and among its users from
 * the one with the fewest; ties go to the earliest. A client gains nothing from many users. */
static void test_fair_scheduling(void **state)
{
    static const asking clients[] = {{once, 7}, {once, 7}, {once, 7}, {once, 8}},
                        users[] = {{of_user_a, 7}, {of_user_a, 7}, {of_user_a, 7}, {of_user_b, 7}},
                        many[] = {{of_user_a, 7}, {of_user_b, 7}, {of_user_c, 7}, {once, 8}};
    double queued_s[4];
    (void)state;
    serve_four(clients, 1, queued_s);
    assert_true(queued_s[0] < queued_s[1] && queued_s[1] < queued_s[2]);
    serve_four(clients, 2, queued_s);
    assert_true(queued_s[3] < queued_s[1]);
    serve_four(users, 2, queued_s);
    assert_true(queued_s[3] < queued_s[1]);
    serve_four(many, 2, queued_s);
    assert_true(queued_s[3] < queued_s[1] && queued_s[3] < queued_s[2]);
}

enum { ASKED = 8 };
static int told[ASKED], told_count;
static int numbers[ASKED] = {0, 1, 2, 3, 4, 5, 6, 7};

static void record_ready(void *ctx) { told[told_count++] = *(int *)ctx; }

/* Posts requests while the first is held in its preparation. */
static void post_held(served *s, const asking *asked, int count, nib_call **calls)
{
    bool in = false;
    told_count = 0;
    set_gate(s->service, true);
    for (int i = 0; i < count; i++) {
        const nib_call_options options = {.route = NIB_ROUTE_COMPLETIONS,
                                          .body = asked[i].body,
                                          .body_size = strlen(asked[i].body),
                                          .client = asked[i].client,
                                          .now = 1700000000,
                                          .ready = record_ready,
                                          .ctx = &numbers[i]};
        assert_int_equal(nib_call_open(&calls[i], s->service, &options, NULL), NIB_OK);
        while (!in) {
            pthread_mutex_lock(&s->service->lock);
            in = s->service->preparing == calls[0];
            pthread_mutex_unlock(&s->service->lock);
            sleep_briefly();
        }
    }
}

/* Clients take turns in preparation too, for valid and for refused requests. */
static void test_clients_take_turns_in_preparation(void **state)
{
    static const char good[] = "{\"prompt\": \"Once\", \"max_tokens\": 1, \"stream\": true}",
                      bad[] = "{\"prompt\": \"Once\", \"max_tokens\": -1}";
    static const asking asked[] = {{good, 7}, {good, 7}, {bad, 7},  {good, 7},
                                   {good, 8}, {good, 9}, {good, 8}, {bad, 9}};
    static const int wanted[] = {0, 4, 5, 1, 6, 7, 2, 3};
    const nib_allocator a = {resize_behind_gate, NULL};
    nib_call *calls[ASKED];
    served s;
    (void)state;
    open_served(&s, NULL, &a, 1);
    for (int round = 0; round < 2; round++) {
        post_held(&s, asked, ASKED, calls);
        set_gate(s.service, false);
        wait_prepared(s.service);
        assert_int_equal(told_count, ASKED);
        assert_memory_equal(told, wanted, sizeof wanted);
        for (int i = 0; i < ASKED; i++)
            nib_call_close(calls[i]);
    }
    assert_int_equal(s.service->waiting, 0);
    close_served(&s);
}

/* A request that waits for preparation ends at its time limit or when the service stops, even while
 * another is being prepared; the one being prepared ends after its current part. */
static void test_waiting_for_preparation_ends(void **state)
{
    static const asking asked[] = {{once, 7}, {once, 7}, {once, 8}};
    static const char *const codes[] = {"\"timeout\"", "\"stopping\""};
    const nib_allocator a = {resize_behind_gate, NULL};
    static char answer[1 << 16];
    (void)state;
    for (int i = 0; i < 2; i++) {
        const nib_service_options options = {.limit_s = i == 0 ? 0.05 : 0};
        served s;
        nib_call *calls[3];
        open_served(&s, &options, &a, 1);
        start(&s);
        sleep_briefly(); /* the run loop is idle */
        post_held(&s, asked, 3, calls);
        if (i == 1) {
            nib_service_stop(s.service);
            nib_service_stop(s.service);
        }
        for (int c = 2; c >= 0; c--) {
            if (c == 0)
                set_gate(s.service, false);
            assert_int_equal(read_answer(calls[c], answer, sizeof answer), 503);
            assert_non_null(strstr(answer, codes[i]));
        }
        if (i == 0)
            nib_service_stop(s.service);
        assert_int_equal(pthread_join(s.thread, NULL), 0);
        for (int c = 0; c < 3; c++)
            nib_call_close(calls[c]);
        assert_int_equal(s.service->waiting, 0);
        close_served(&s);
    }
}

/* A client that has filled the queue is refused; a client without a queued request gets one place.
 */
static void test_queue_keeps_room(void **state)
{
    static const uint64_t clients[] = {7, 7, 7, 7, 7, 8, 8, 9};
    static const int wanted[] = {0, 0, 0, 0, 429, 0, 429, 429}; /* 4 places, and 1 extra */
    const nib_service_options options = {.name = "x", .queue = 4};
    served s;
    nib_call *calls[COUNT(clients)];
    (void)state;
    open_served(&s, &options, NULL, 1);
    for (size_t i = 0; i < COUNT(clients); i++) {
        calls[i] = post(&s, of_user_a, clients[i]);
        const int http = look(calls[i]).http;
        assert_int_equal(http, wanted[i]);
    }
    for (size_t i = 0; i < COUNT(clients); i++)
        nib_call_close(calls[i]);
    assert_int_equal(s.service->waiting, 0); /* even while one is being prepared */
    wait_prepared(s.service);
    assert_int_equal(s.service->waiting, 0);
    close_served(&s);
}

/* A stream that nobody reads is ended, and its buffer stays small. */
static void test_unread_stream_is_ended(void **state)
{
    served s;
    static char body[8192], answer[8 << 20];
    size_t size = (size_t)snprintf(body, sizeof body,
                                   "{\"stream\": true, \"echo\": true, \"logprobs\": 5, \"n\": "
                                   "80, \"max_tokens\": 1, \"prompt\": [5");
    (void)state;
    skip_slow();
    for (int i = 0; i < 480; i++)
        size += (size_t)snprintf(body + size, sizeof body - size, ", %d", 300 + i % 7);
    snprintf(body + size, sizeof body - size, "]}");
    open_served(&s, NULL, NULL, 2);
    start(&s);
    nib_call *call = post(&s, body, 0);
    while (!look(call).over)
        sleep_briefly();
    assert_in_range(look(call).left, 4 << 20, 5 << 20);
    assert_int_equal(read_answer(call, answer, sizeof answer), 200);
    assert_non_null(strstr(answer, "event: error"));
    assert_non_null(strstr(answer, "\"unread\""));
    assert_null(strstr(answer, "[DONE]"));
    nib_call_close(call);
    call = post(&s, once, 0);
    assert_int_equal(read_answer(call, answer, sizeof answer), 200);
    nib_call_close(call);
    stop(&s);
    close_served(&s);
}

/* After an error no more tokens of the answer are generated. */
static void test_an_error_ends_all_choices(void **state)
{
    static const char body[] = "{\"prompt\": \"Once\", \"max_tokens\": 480, \"ignore_eos\": true, "
                               "\"n\": 4}";
    static char answer[1 << 16];
    bool begun = false;
    nib_call_stats stats = {.size = sizeof stats};
    served s;
    (void)state;
    open_served(&s, NULL, NULL, 2);
    start(&s);
    nib_call *call = post(&s, body, 0);
    while (!begun) {
        pthread_mutex_lock(&s.service->lock);
        begun = call->begun > 0;
        if (begun) /* as if one choice had failed */
            nib__call_refuse(call, 500, "", NULL, "it failed");
        pthread_mutex_unlock(&s.service->lock);
        sleep_briefly();
    }
    assert_int_equal(read_answer(call, answer, sizeof answer), 500);
    assert_non_null(strstr(answer, "it failed"));
    nib_call_stats_get(call, &stats);
    assert_true(stats.new_tokens < 480);
    nib_call_close(call);
    stop(&s);
    assert_int_equal(nib__batch_counts(s.service->batch).jobs, 0);
    close_served(&s);
}

/* A template that recurses to its limit, on threads with small stacks. */
static void test_deep_template(void **state)
{
#ifdef __GLIBC__
    static const char body[] = "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}]}";
    const nib_service_options options = {
        .chat_template = "{% macro m(x) %}{{ [x]|map('string')|list|join(m([x])|upper) }}"
                         "{% endmacro %}{{ m(1) }}"};
    const nib_call_options asked = {
        .route = NIB_ROUTE_CHAT, .body = body, .body_size = sizeof body - 1, .now = 1700000000};
    static char answer[1 << 16];
    pthread_attr_t before, little;
    nib_call *call = NULL;
    served s;
    nib_err err;
    (void)state;
    const open_how how = {
        .path = "models/nibble-tales", .recipe = "8da4w", .threads = 1, .sequences = 1};
    s.o = must_open(&how);
    assert_int_equal(pthread_getattr_default_np(&before), 0);
    pthread_attr_init(&little);
    assert_int_equal(pthread_attr_setstacksize(&little, 96 << 10), 0);
    assert_int_equal(pthread_setattr_default_np(&little), 0);
    if (nib_service_open(&s.service, s.o.session, &options, &err) != NIB_OK)
        fail_msg("%s", err.text);
    assert_int_equal(pthread_setattr_default_np(&before), 0);
    pthread_attr_destroy(&little);
    pthread_attr_destroy(&before);
    start(&s);
    assert_int_equal(nib_call_open(&call, s.service, &asked, NULL), NIB_OK);
    assert_int_equal(read_answer(call, answer, sizeof answer), 503);
    assert_non_null(strstr(answer, "\"param\": \"messages\"")); /* no other reason of a 503 */
    nib_call_close(call);
    stop(&s);
    close_served(&s);
#else
    (void)state;
    skip_test(__func__, "needs glibc");
#endif
}

/* A full queue, a time limit, stopping with requests queued, a service that never ran. */
static void test_refuses_when_full_late_or_stopped(void **state)
{
    served s;
    const nib_service_options options = {.name = "x", .queue = 2, .limit_s = 0.02};
    static char answer[1 << 16];
    (void)state;
    open_served(&s, &options, NULL, 1);
    nib_call *one = post(&s, once, 0), *two = post(&s, once, 0), *three = post(&s, once, 0);
    const nib_call_state full = look(three);
    assert_int_equal(full.http, 429);
    assert_true(full.over && full.retry_s > 0);
    nib_call_close(three);
    nib_call_close(two); /* before the service runs */
    assert_int_equal(s.service->waiting, 1);
    nanosleep(&(struct timespec){.tv_nsec = 30 * 1000 * 1000}, NULL);
    start(&s);
    assert_int_equal(read_answer(one, answer, sizeof answer), 503);
    assert_non_null(strstr(answer, "\"timeout\""));
    nib_call_close(one);
    stop(&s);
    one = post(&s, once, 0);
    assert_int_equal(look(one).http, 503);
    nib_call_close(one);
    close_served(&s);
}

/* The nth allocation fails: the answer is 503 or the call does not open; nothing leaks, and the
 * next request is served. */
static void run_out(const nib_service_options *options, nib_route route, const char *body)
{
    served s;
    static char answer[1 << 16];
    const nib_allocator a = {resize_locked, &memory};
    memory = (failing){.left = -1};
    open_served(&s, options, &a, 2);
    start(&s); /* the session keeps what its first steps allocate */
    nib_call *first = post_to(&s, route, body, 0);
    if (read_answer(first, answer, sizeof answer) != 200)
        fail_msg("%s", answer);
    nib_call_close(first);
    stop(&s);
    s.service->stopping = 0;
    const int before = memory.live;
    bool served_one = false;
    for (int n = 0; n < 4000 && !served_one; n += n < 60 ? 1 : 9) {
        set_left(n);
        nib_call *call = post_to(&s, route, body, 0);
        if (call != NULL) {
            start(&s);
            const int http = read_answer(call, answer, sizeof answer);
            if (http != 200 && http != 503)
                fail_msg("%d at %d: %s", http, n, answer);
            served_one = http == 200 && strstr(answer, "[DONE]") != NULL;
            set_left(-1);
            nib_call_close(call);
            stop(&s);
            s.service->stopping = 0;
        }
        set_left(-1);
        assert_int_equal(memory.live, before);
    }
    assert_true(served_one);
    close_served(&s);
    assert_int_equal(memory.live, 0);
}

static void test_no_memory(void **state)
{
    (void)state;
    run_out(NULL, NIB_ROUTE_COMPLETIONS,
            "{\"prompt\": [\"Once\", [5, 6]], \"max_tokens\": 4, \"logprobs\": 2, \"echo\": true, "
            "\"stop\": [\"zz\"], \"logit_bias\": {\"5\": 1}, \"stream\": true}");
}

static void test_no_memory_for_calls(void **state)
{
    static const char text[] =
        "{{ tools | tojson }}{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] "
        "%}"
        "[{{ c.function.name }} {{ c.function.arguments | tojson }}]{% endfor %}\n{% endfor %}";
    const nib_service_options options = {.chat_template = text};
    (void)state;
    run_out(&options, NIB_ROUTE_CHAT,
            "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}], \"tools\": [{\"type\": "
            "\"function\", \"function\": {\"name\": \"f\", \"parameters\": {\"type\": \"object\", "
            "\"properties\": {\"a\": {\"enum\": [1, \"b\"]}}, \"required\": [\"a\"]}}}], "
            "\"tool_choice\": \"required\", \"parallel_tool_calls\": false, \"stream\": true}");
}

static size_t bytes_in_use(void)
{
    pthread_mutex_lock(&memory_lock);
    const size_t now = metered.now;
    pthread_mutex_unlock(&memory_lock);
    return now;
}

/* A waiting choice has no masks and no text yet, and a finished one has released its masks. No
 * request keeps its body or values parsed from it. */
static void test_waiting_requests_use_little_memory(void **state)
{
    enum { CHAT, SCHEMA, BLANKS, USER, LONG, ECHO, COUNT_OF };
    enum { TEXT_SIZE = 1900, BLANKS_SIZE = 4 << 20 };
    static const char chat[] = "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}], \"n\": "
                               "32, \"max_tokens\": 4";
    static char bodies[COUNT_OF][BLANKS_SIZE + 256], text[TEXT_SIZE + 1], answer[1 << 20];
    const nib_service_options options = {.chat_template = "{{ messages[0].content }}"};
    const nib_allocator a = {meter_locked, NULL};
    size_t waiting[COUNT_OF], over[COUNT_OF];
    served s;
    (void)state;
    for (int i = 0; i < TEXT_SIZE; i++)
        text[i] = "wolf "[i % 5];
    snprintf(bodies[CHAT], sizeof *bodies, "%s}", chat);
    snprintf(bodies[SCHEMA], sizeof *bodies,
             "%s, \"response_format\": {\"type\": \"json_object\"}}", chat);
    snprintf(bodies[BLANKS], sizeof *bodies, "%s%*s}", chat, BLANKS_SIZE, "");
    snprintf(bodies[USER], sizeof *bodies, "%s, \"user\": \"%*s\"}", chat, BLANKS_SIZE, "");
    for (int i = LONG; i <= ECHO; i++)
        snprintf(bodies[i], sizeof *bodies,
                 "{\"prompt\": \"%s\", \"n\": 100, \"max_tokens\": 1, \"echo\": %s}", text,
                 i == ECHO ? "true" : "false");
    open_served(&s, &options, &a, 2);
    for (int i = 0; i < COUNT_OF; i++) {
        const size_t before = bytes_in_use();
        nib_call *call =
            post_to(&s, i < LONG ? NIB_ROUTE_CHAT : NIB_ROUTE_COMPLETIONS, bodies[i], 0);
        wait_prepared(s.service);
        waiting[i] = bytes_in_use() - before;
        start(&s);
        assert_int_equal(read_answer(call, answer, sizeof answer), 200);
        stop(&s);
        s.service->stopping = 0;
        over[i] = bytes_in_use();
        nib_call_close(call);
    }
    assert_true(waiting[SCHEMA] < waiting[CHAT] + 32 * 1024);
    assert_true(over[SCHEMA] < over[CHAT] + 32 * 1024);
    assert_true(waiting[BLANKS] < waiting[CHAT] + 32 * 1024);
    assert_true(waiting[USER] < waiting[CHAT] + 32 * 1024);
    assert_true(waiting[ECHO] < waiting[LONG] + 32 * 1024);
    close_served(&s);
}

/* Statistics of a call closed before its end cover the time so far. */
static void test_stats_of_a_closed_call(void **state)
{
    served s;
    nib_call_stats stats = {.size = sizeof stats};
    (void)state;
    open_served(&s, NULL, NULL, 1);
    nib_call *call = post(&s, once, 0);
    nib_call_stats_get(call, &stats);
    assert_true(stats.total_s >= 0 && stats.total_s < 100);
    assert_true(isnan(stats.queued_s) && isnan(stats.first_token_s));
    assert_int_equal(stats.new_tokens, 0);
    nib_call_close(call);
    close_served(&s);
}

/* Memory runs out after a reader took a part: `left` never exceeds what can be read. */
static void test_no_memory_after_a_partial_read(void **state)
{
    served s;
    static char answer[1 << 16];
    static const char body[] = "{\"messages\": [{\"role\": \"user\", \"content\": \"Once\"}], "
                               "\"max_tokens\": 60, \"seed\": 1, \"ignore_eos\": true, "
                               "\"stream\": true}";
    const nib_service_options options = {.chat_template = "{{ messages[0].content }}"};
    const nib_allocator a = failing_allocator(&memory);
    int cut = 0;
    (void)state;
    memory = (failing){.left = -1};
    open_served(&s, &options, &a, 1);
    for (int n = -1; n < 12; n++) {                            /* the first without a limit */
        nib_call *call = post_to(&s, NIB_ROUTE_CHAT, body, 0); /* its role is readable at once */
        wait_prepared(s.service);
        assert_int_equal(nib_call_read(call, answer, 5), 5);
        memory.left = n;
        start(&s);
        while (!look(call).over)
            sleep_briefly();
        memory.left = -1;
        const size_t left = look(call).left;
        assert_true(left < sizeof answer);
        assert_int_equal(nib_call_read(call, answer, sizeof answer), left);
        cut += left == 0;
        nib_call_close(call);
        stop(&s);
        s.service->stopping = 0;
    }
    assert_true(cut > 0);
    close_served(&s);
    assert_int_equal(memory.live, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_threads_get_the_same_answers),
        cmocka_unit_test(test_fair_scheduling),
        cmocka_unit_test(test_clients_take_turns_in_preparation),
        cmocka_unit_test(test_waiting_for_preparation_ends),
        cmocka_unit_test(test_queue_keeps_room),
        cmocka_unit_test(test_unread_stream_is_ended),
        cmocka_unit_test(test_an_error_ends_all_choices),
        cmocka_unit_test(test_deep_template),
        cmocka_unit_test(test_refuses_when_full_late_or_stopped),
        cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_no_memory_for_calls),
        cmocka_unit_test(test_no_memory_after_a_partial_read),
        cmocka_unit_test(test_stats_of_a_closed_call),
        cmocka_unit_test(test_waiting_requests_use_little_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
