/* SPDX-License-Identifier: Apache-2.0
 *
 * The HTTP server in front of a service of this file: its addresses and keys, its end, which
 * connections yield to others, and every call to the system, the allocator, libmicrohttpd and the
 * service failing once, while the server starts and while it answers. Names http_*.c, serve_keys.c.
 *
 * The functions of WRAPPED fail one by one.
 */
#include "http.h"
#include "library_leaks.h"
#include "skipping.h"
#include "wrapped.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "refused.h"

/* ---- calls that fail ---- */

WRAPPED(void *, malloc, (size_t size), (size), NULL)
WRAPPED(void *, calloc, (size_t count, size_t size), (count, size), NULL)
WRAPPED(void *, realloc, (void *old, size_t size), (old, size), NULL)
WRAPPED(char *, strdup, (const char *text), (text), NULL)
WRAPPED(int, pipe, (int fds[2]), (fds), -1)
WRAPPED(int, fstat, (int fd, struct stat *info), (fd, info), -1)
WRAPPED(int, fcntl, (int fd, int what, int flags), (fd, what, flags), -1)
WRAPPED(int, socket, (int family, int type, int protocol), (family, type, protocol), -1)
WRAPPED(int, setsockopt, (int fd, int level, int name, const void *value, socklen_t size),
        (fd, level, name, value, size), -1)
WRAPPED(int, listen, (int fd, int backlog), (fd, backlog), -1)
WRAPPED(int, getsockname, (int fd, struct sockaddr *out, socklen_t *size), (fd, out, size), -1)
WRAPPED(int, pthread_mutex_init, (pthread_mutex_t * m, const pthread_mutexattr_t *a), (m, a),
        ENOMEM)
WRAPPED(int, pthread_create,
        (pthread_t * t, const pthread_attr_t *a, void *(*run)(void *), void *ctx), (t, a, run, ctx),
        EAGAIN)
WRAPPED(struct MHD_Response *, MHD_create_response_from_callback,
        (uint64_t size, size_t block, MHD_ContentReaderCallback read, void *ctx,
         MHD_ContentReaderFreeCallback release),
        (size, block, read, ctx, release), NULL)
WRAPPED(struct MHD_Response *, MHD_create_response_from_buffer,
        (size_t size, void *bytes, enum MHD_ResponseMemoryMode mode), (size, bytes, mode), NULL)

/* ---- the service ---- */

/* The body decides: "wait" has no answer until the call is closed; "busy" is refused; for others it
 * is the body. */
struct nib_call {
    nib_service *service;
    nib_call_options options;
    char text[4000];
    size_t size, read;
};

struct nib_service {
    pthread_mutex_t lock;
    pthread_cond_t change;
    bool running;
    int stops, wanted; /* it ends at this many stops */
    atomic_int calls, closed;
};

nib_status nib_call_open(nib_call **out, nib_service *s, const nib_call_options *options,
                         nib_err *err)
{
    (void)err;
    nib_call *call = fails() ? NULL : __real_calloc(1, sizeof *call);
    if (call == NULL)
        return NIB_NO_MEMORY;
    assert_true(options->body_size < sizeof call->text);
    call->service = s;
    call->options = *options;
    call->size = options->body_size;
    memcpy(call->text, options->body, options->body_size);
    atomic_fetch_add(&s->calls, 1);
    *out = call;
    return NIB_OK;
}

void nib_call_close(nib_call *call)
{
    if (call != NULL)
        atomic_fetch_add(&call->service->closed, 1);
    free(call);
}

void nib_call_look(nib_call *call, nib_call_state *out)
{
    *out = (nib_call_state){.size = sizeof *out};
    if (strcmp(call->text, "wait") == 0)
        return;
    const bool busy = strcmp(call->text, "busy") == 0;
    out->http = busy ? 429 : 200;
    out->stream = busy;
    out->retry_s = busy ? 3 : 0;
    out->left = call->size - call->read;
    out->over = true;
}

size_t nib_call_read(nib_call *call, char *out, size_t size)
{
    const size_t left = call->size - call->read, count = left < size ? left : size;
    memcpy(out, call->text + call->read, count);
    call->read += count;
    return count;
}

void nib_call_stats_get(nib_call *call, nib_call_stats *out)
{
    (void)call;
    *out = (nib_call_stats){.id = "x", .finish = "stop"};
}

const char *nib_service_name(const nib_service *s)
{
    (void)s;
    return "tales/one";
}

void nib_service_run(nib_service *s)
{
    pthread_mutex_lock(&s->lock);
    s->running = true;
    pthread_cond_broadcast(&s->change);
    while (s->stops < s->wanted)
        pthread_cond_wait(&s->change, &s->lock);
    pthread_mutex_unlock(&s->lock);
}

void nib_service_stop(nib_service *s)
{
    pthread_mutex_lock(&s->lock);
    s->stops++;
    pthread_cond_broadcast(&s->change);
    pthread_mutex_unlock(&s->lock);
}

nib_status nib_service_status(nib_service *s, nib_err *err)
{
    (void)s;
    (void)err;
    return NIB_OK;
}

nib_status nib_service_write(nib_service *s, nib_report report, const nib_sink *sink, nib_err *err)
{
    (void)s;
    (void)err;
    return fails() ? NIB_NO_MEMORY
                   : sink->write(sink->ctx, "report", report == NIB_REPORT_HEALTH ? 3 : 6);
}

nib_status nib_error_write(int http, const char *message, const char *param, const char *code,
                           const nib_sink *sink, nib_err *err)
{
    (void)param;
    (void)code;
    (void)err;
    assert_true(http >= 400 && message[0] != 0);
    return fails() ? NIB_NO_MEMORY : sink->write(sink->ctx, message, strlen(message));
}

/* ---- a running server ---- */

static const serve_keys no_keys = {0};

static serve_options options_for(const char *host)
{
    return (serve_options){.host = host,
                           .keys = &no_keys,
                           .body_limit = 1000,
                           .connections = 8,
                           .header_s = 60,
                           .body_s = 60,
                           .idle_s = 60,
                           .stall_s = 60,
                           .quiet = true};
}

typedef struct running {
    serve_options options;
    server *http;
    nib_service service;
    pthread_t thread;
    nib_status status;
    nib_err err;
} running;

static void *run(void *ctx)
{
    running *r = ctx;
    r->status = serve(r->http, &r->service, &r->err);
    pthread_mutex_lock(&r->service.lock);
    r->service.wanted = 0; /* it has ended */
    pthread_cond_broadcast(&r->service.change);
    pthread_mutex_unlock(&r->service.lock);
    return NULL;
}

/* False: the server cannot start, and says why. */
static bool start(running *r, const serve_options *options, int stops)
{
    *r = (running){.options = *options, .service = {.wanted = stops}};
    atomic_init(&r->service.calls, 0);
    atomic_init(&r->service.closed, 0);
    __real_pthread_mutex_init(&r->service.lock, NULL);
    pthread_cond_init(&r->service.change, NULL);
    r->status = serve_open(&r->http, &r->options, &r->err);
    if (r->status != NIB_OK)
        return false;
    assert_int_equal(__real_pthread_create(&r->thread, NULL, run, r), 0);
    pthread_mutex_lock(&r->service.lock);
    while (!r->service.running && r->service.wanted != 0)
        pthread_cond_wait(&r->service.change, &r->service.lock);
    const bool good = r->service.running;
    pthread_mutex_unlock(&r->service.lock);
    if (!good) {
        pthread_join(r->thread, NULL);
        serve_close(r->http);
    }
    return good;
}

/* Ends the server by so many signals. */
static void stop(running *r, int signals)
{
    for (int i = 0; i < signals; i++)
        raise(SIGTERM);
    pthread_join(r->thread, NULL);
    serve_close(r->http);
    if (r->status != NIB_OK)
        fail_msg("%s", r->err.text);
}

static void must_start(running *r, const serve_options *options, int stops)
{
    if (!start(r, options, stops))
        fail_msg("%s", r->err.text);
}

/* A connection from this address of the loopback network; NULL: over IPv6. */
static int connect_from(const running *r, const char *from)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)r->http->port)};
    struct sockaddr_in own = {.sin_family = AF_INET};
    struct sockaddr_in6 six = {.sin6_family = AF_INET6,
                               .sin6_port = htons((uint16_t)r->http->port),
                               .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    const int fd = __real_socket(from != NULL ? AF_INET : AF_INET6, SOCK_STREAM, 0);
    assert_true(fd >= 0);
    inet_pton(AF_INET, "127.0.0.1", &to.sin_addr);
    if (from != NULL) {
        inet_pton(AF_INET, from, &own.sin_addr);
        assert_int_equal(bind(fd, (struct sockaddr *)&own, sizeof own), 0);
        assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    } else {
        assert_int_equal(connect(fd, (struct sockaddr *)&six, sizeof six), 0);
    }
    return fd;
}

static void send_text(int fd, const char *text)
{
    for (size_t size = strlen(text); size > 0;) {
        const ssize_t sent = send(fd, text, size, MSG_NOSIGNAL);
        if (sent <= 0)
            return; /* the server has closed it */
        text += sent;
        size -= (size_t)sent;
    }
}

/* Reads to the end of the connection, and closes it. Returns the status of the answer; 0: none. */
static int read_status(int fd, char *out, size_t size)
{
    size_t count = 0;
    ssize_t got;
    int status = 0;
    while ((got = recv(fd, out + count, size - 1 - count, 0)) > 0)
        count += (size_t)got;
    close(fd);
    out[count] = 0;
    return sscanf(out, "HTTP/1.1 %d", &status) == 1 ? status : 0;
}

static int ask(const running *r, const char *text)
{
    static char answer[1 << 16];
    const int fd = connect_from(r, "127.0.0.1");
    send_text(fd, text);
    return read_status(fd, answer, sizeof answer);
}

#define REQUEST(line, headers)                                                                     \
    line " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n" headers "\r\n"

static const struct {
    const char *request;
    int status;
} requests[] = {
    {REQUEST("GET /health", ""), 200},
    {REQUEST("GET /", ""), 200},
    {REQUEST("GET /nosuch", ""), 404},
    {REQUEST("DELETE /v1/models", ""), 405},
    {REQUEST("GET /v1/models/tales%2fone", ""), 200},
    {REQUEST("GET /v1/models/tales%2Fone", ""), 200},
    {REQUEST("GET /v1/models/tales%2gone", ""), 404},
    {REQUEST("GET /v1/models/tales%:fone", ""), 404},
    {REQUEST("GET /v1/models/tales%", ""), 404},
    {REQUEST("OPTIONS /v1/completions", ""), 204},
    {REQUEST("POST /v1/completions", "Content-Length: 4\r\n") "body", 200},
    {REQUEST("POST /v1/completions", "Content-Length: 4\r\n") "busy", 429},
    {REQUEST("POST /v1/completions", "Content-Length: 2000\r\n"), 413},
    {REQUEST("POST /v1/completions", "Content-Length: 1\r\nContent-Length: 1\r\n") "a", 400},
    {REQUEST("GET /health", "Host: evil.example\r\n"), 400},
    {"GET /health HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n", 403},
    {"GET /health HTTP/1.0\r\nOrigin: http://evil.example\r\n\r\n", 403},
};

/* ---- tests ---- */

static void test_answers(void **state)
{
    const serve_options options = options_for(NULL);
    running r;
    (void)state;
    must_start(&r, &options, 1);
    for (size_t i = 0; i < COUNT(requests); i++)
        if (ask(&r, requests[i].request) != requests[i].status)
            fail_msg("%s: not %d", requests[i].request, requests[i].status);
    stop(&r, 1);
}

/* Starts a server, asks it and ends it, while the nth call fails. Returns whether there is one. */
static bool fail_call(int n)
{
    const serve_options options = options_for(NULL);
    running r;
    atomic_store(&countdown, n);
    if (!start(&r, &options, 1)) {
        assert_true(atomic_load(&countdown) <= 0);
        assert_int_equal(r.err.status, r.status);
        assert_true(r.err.text[0] != 0);
        return true;
    }
    for (size_t i = 0; i < COUNT(requests); i++) {
        const int status = ask(&r, requests[i].request);
        if (status != requests[i].status && status != 0 && status != 503)
            fail_msg("%s: %d after %d calls", requests[i].request, status, n);
    }
    const bool failed = atomic_load(&countdown) <= 0;
    atomic_store(&countdown, 0);
    for (size_t i = 0; failed && i < COUNT(requests); i++)
        if (ask(&r, requests[i].request) != requests[i].status)
            fail_msg("%s: not %d later", requests[i].request, requests[i].status);
    stop(&r, 1);
    return failed;
}

static void test_calls_fail(void **state)
{
    int n = 1;
    (void)state;
    while (fail_call(n))
        n++;
    assert_true(n > 40);
}

/* Descriptors run out at each place in turn, in libmicrohttpd too. */
static void test_no_descriptors(void **state)
{
    struct rlimit before, few;
    running r;
    const serve_options options = options_for("127.0.0.1");
    bool started = false, by_library = false;
    (void)state;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    const int next = dup(0);
    assert_true(next > 0);
    close(next);
    for (rlim_t more = 0; !started && more < 32; more++) {
        few = before;
        few.rlim_cur = (rlim_t)next + more;
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
        started = start(&r, &options, 1);
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
        if (!started) {
            assert_int_equal(r.err.status, r.status);
            assert_non_null(strstr(r.err.text, strerror(EMFILE)));
            by_library |= strstr(r.err.text, "cannot start the HTTP server") != NULL;
        }
    }
    assert_true(started && by_library);
    stop(&r, 1);
}

static void expect_refused(const serve_options *options, nib_status wanted)
{
    server *http = NULL;
    nib_err err;
    refused(wanted, serve_open(&http, options, &err), &err);
    assert_null(http);
}

/* Only this machine may come without a key. */
static void test_addresses(void **state)
{
    static const char *const others[] = {
        "0.0.0.0", "126.255.255.255", "128.0.0.1", "::",         "::2",
        "1::1",    "0:1::1",          "::1:0:1",   "::1:1:0:0:1"};
    char *one = "a-key-of-mine";
    const serve_keys keys = {&one, 1};
    char long_name[300] = "";
    server *http;
    nib_err err;
    (void)state;
    for (size_t i = 0; i < COUNT(others); i++) {
        const serve_options options = options_for(others[i]);
        expect_refused(&options, NIB_USAGE);
    }
    memset(long_name, 'a', sizeof long_name - 1);
    serve_options options = options_for(long_name);
    expect_refused(&options, NIB_USAGE);
    for (int i = 0; i < 2; i++) {
        options = options_for("0.0.0.0");
        options.insecure = i == 0;
        options.keys = i == 0 ? &no_keys : &keys;
        assert_int_equal(serve_open(&http, &options, &err), NIB_OK);
        serve_close(http);
    }
    struct sockaddr_in taken = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof taken;
    const int fd = __real_socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&taken, sizeof taken), 0);
    assert_int_equal(__real_listen(fd, 1), 0);
    assert_int_equal(__real_getsockname(fd, (struct sockaddr *)&taken, &size), 0);
    options = options_for(NULL);
    options.port = ntohs(taken.sin_port);
    assert_int_equal(serve_open(&http, &options, &err), NIB_IO);
    close(fd);
    options = options_for("203.0.113.1"); /* of no machine */
    options.insecure = true;
    expect_refused(&options, NIB_IO);
    serve_close(NULL);
}

/* Runs a server that writes its log to a file, and asks it once. Returns the log. */
static void read_log(char *log, size_t size, const char *host, const char *from, const char *text)
{
    char answer[4000], path[] = "/tmp/nib-serve-XXXXXX";
    serve_options options = options_for(host);
    running r;
    const int before = dup(2), file = mkstemp(path);
    assert_true(before >= 0 && file >= 0);
    unlink(path);
    options.quiet = false;
    fflush(stderr);
    dup2(file, 2);
    const bool good = start(&r, &options, 1);
    if (good) {
        const int fd = connect_from(&r, from);
        send_text(fd, text);
        assert_int_equal(read_status(fd, answer, sizeof answer), 404);
        stop(&r, 1);
    }
    dup2(before, 2);
    const ssize_t count = pread(file, log, size - 1, 0);
    log[count > 0 ? count : 0] = 0;
    close(before);
    close(file);
}

static void test_log(void **state)
{
    char log[4000];
    (void)state;
    read_log(log, sizeof log, NULL, "127.0.0.9",
             REQUEST("GET /a\"b\\c\x80"
                     "d\x7f?e=1",
                     ""));
    assert_non_null(strstr(log, "nibble: serving tales/one at http://127.0.0.1:"));
    assert_non_null(strstr(log, " 127.0.0.9 GET /a\\x22b\\x5cc\\x80d\\x7f 404\n"));
    assert_non_null(strstr(log, "nibble: stopping after running requests finish"));
}

static void test_ipv6(void **state)
{
    const serve_options options = options_for("::1");
    char log[4000];
    server *http;
    nib_err err;
    (void)state;
    if (serve_open(&http, &options, &err) != NIB_OK)
        skip_test(__func__, "no IPv6");
    serve_close(http);
    read_log(log, sizeof log, "::1", NULL,
             "GET /nosuch HTTP/1.1\r\nHost: [::1]:80\r\nConnection: close\r\n\r\n");
    assert_non_null(strstr(log, "nibble: serving tales/one at http://[::1]:"));
    assert_non_null(strstr(log, " ::1 GET /nosuch 404\n"));
}

/* Names of this server: what --host says, and any if it is insecure. */
static void test_hosts(void **state)
{
    static const char named[] =
        "GET /health HTTP/1.1\r\nHost: 127.0.0.2:5\r\nConnection: close\r\n\r\n";
    static const char other[] =
        "GET /health HTTP/1.1\r\nHost: 127.0.0.3:5\r\nConnection: close\r\n\r\n";
    (void)state;
    for (int i = 0; i < 2; i++) {
        serve_options options = options_for("127.0.0.2");
        char answer[4000];
        running r;
        options.insecure = i == 1;
        must_start(&r, &options, 1);
        for (int k = 0; k < 2; k++) {
            struct sockaddr_in to = {.sin_family = AF_INET,
                                     .sin_port = htons((uint16_t)r.http->port)};
            const int fd = __real_socket(AF_INET, SOCK_STREAM, 0);
            inet_pton(AF_INET, "127.0.0.2", &to.sin_addr);
            assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
            send_text(fd, k == 0 ? named : other);
            assert_int_equal(read_status(fd, answer, sizeof answer), i == 0 && k == 1 ? 403 : 200);
        }
        stop(&r, 1);
    }
}

/* Whether the connection is closed within this time. */
static bool is_closed(int fd, int ms)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    char byte;
    return poll(&p, 1, ms) > 0 && recv(fd, &byte, 1, MSG_PEEK) <= 0;
}

static void wait_for(atomic_int *count, int wanted)
{
    while (atomic_load(count) < wanted)
        nanosleep(&(struct timespec){.tv_nsec = 1000 * 1000}, NULL);
}

/* Reads an answer, after which the connection stays open. */
static void read_answer(int fd)
{
    char answer[4000];
    size_t count = 0;
    do {
        const ssize_t got = recv(fd, answer + count, sizeof answer - 1 - count, 0);
        assert_true(got > 0);
        count += (size_t)got;
        answer[count] = 0;
    } while (strstr(answer, "\r\n\r\nrep") == NULL);
}

static const char waiting[] = REQUEST("POST /v1/completions", "Content-Length: 4\r\n") "wait";

/* A client that has sent a request with these headers, and sends no other. */
static int connect_idle(const running *r, const char *from, const char *headers)
{
    const int fd = connect_from(r, from);
    send_text(fd, "GET /health HTTP/1.1\r\nHost: localhost\r\n");
    send_text(fd, headers);
    send_text(fd, "\r\n");
    read_answer(fd);
    nanosleep(&(struct timespec){.tv_nsec = 50 * 1000 * 1000}, NULL); /* its request has ended */
    return fd;
}

/* Of clients with as many connections, one between two requests yields, then one that sends
 * headers, and none that waits for its answer. */
static void test_room(void **state)
{
    serve_options options = options_for(NULL);
    running r;
    (void)state;
    options.connections = 2;
    must_start(&r, &options, 2);
    const int busy = connect_from(&r, "127.0.0.2");
    send_text(busy, "GET /hea");
    const int idle = connect_idle(&r, "127.0.0.3", "");
    const int third = connect_from(&r, "127.0.0.4");
    assert_true(is_closed(idle, 10000));
    assert_false(is_closed(busy, 0));
    send_text(third, waiting);
    wait_for(&r.service.calls, 1);
    const int fourth = connect_from(&r, "127.0.0.5");
    send_text(fourth, waiting);
    wait_for(&r.service.calls, 2);
    assert_true(is_closed(busy, 10000));
    /* All places are taken by answers: nobody yields. */
    assert_int_equal(ask(&r, requests[0].request), 200);
    assert_false(is_closed(third, 0));
    assert_false(is_closed(fourth, 0));
    stop(&r, 2); /* the second signal ends it, although two wait */
    assert_true(is_closed(third, 10000) && is_closed(fourth, 10000));
    close(busy);
    close(idle);
    close(third);
    close(fourth);
}

/* The older connection of a client with two yields before that of a client with one. */
static void test_room_of_many(void **state)
{
    serve_options options = options_for(NULL);
    running r;
    (void)state;
    options.connections = 3;
    must_start(&r, &options, 1);
    const int older = connect_from(&r, "127.0.0.3");
    const int idle = connect_idle(&r, "127.0.0.2", "");
    const int newer = connect_from(&r, "127.0.0.3");
    const int last = connect_from(&r, "127.0.0.4");
    assert_true(is_closed(older, 10000));
    assert_false(is_closed(idle, 0) || is_closed(newer, 0) || is_closed(last, 0));
    stop(&r, 1);
    close(older);
    close(idle);
    close(newer);
    close(last);
}

/* A client without a key yields before one with a key, who may hold more connections. */
static void test_room_without_key(void **state)
{
    static const char header[] = "Authorization: Bearer a-key-of-mine\r\n";
    char *one = "a-key-of-mine";
    const serve_keys keys = {&one, 1};
    serve_options options = options_for(NULL);
    running r;
    (void)state;
    options.connections = 4;
    options.keys = &keys;
    must_start(&r, &options, 1);
    const int first = connect_idle(&r, "127.0.0.2", header);
    const int none = connect_from(&r, "127.0.0.3");
    const int second = connect_idle(&r, "127.0.0.2", header);
    const int third = connect_idle(&r, "127.0.0.2", header);
    const int last = connect_from(&r, "127.0.0.4");
    assert_true(is_closed(none, 10000));
    assert_false(is_closed(first, 0) || is_closed(second, 0) || is_closed(third, 0));
    stop(&r, 1);
    close(first);
    close(none);
    close(second);
    close(third);
    close(last);
}

/* More clients than are resumed at once leave while they wait: all of their calls end. */
static void test_many_leave(void **state)
{
    enum { MANY = 150 };
    serve_options options = options_for(NULL);
    int fds[MANY];
    running r;
    (void)state;
    options.connections = MANY + 1;
    must_start(&r, &options, 1);
    for (int i = 0; i < MANY; i++) {
        fds[i] = connect_from(&r, "127.0.0.1");
        send_text(fds[i], waiting);
    }
    wait_for(&r.service.calls, MANY);
    for (int i = 0; i < MANY; i++)
        close(fds[i]);
    wait_for(&r.service.closed, MANY);
    assert_int_equal(ask(&r, requests[0].request), 200);
    stop(&r, 1);
}

/* ---- keys ---- */

static void write_keys(char path[32], const char *text, size_t size, mode_t mode)
{
    strcpy(path, "/tmp/nib-keys-XXXXXX");
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, size), size);
    assert_int_equal(fchmod(fd, mode), 0);
    close(fd);
}

static void expect_keys(const char *text, mode_t mode, nib_status wanted)
{
    char path[32];
    serve_keys keys;
    nib_err err;
    write_keys(path, text, strlen(text), mode);
    if (wanted != NIB_OK) {
        refused(wanted, serve_keys_read(&keys, path, &err), &err);
        assert_int_equal(keys.count, 0);
    } else if (serve_keys_read(&keys, path, &err) != NIB_OK) {
        fail_msg("%s", err.text);
    }
    serve_keys_free(&keys);
    unlink(path);
}

static void test_keys(void **state)
{
    static char many[1025 * 16 + 24];
    serve_keys keys;
    nib_err err;
    (void)state;
    expect_keys("a-good-key\n", 0600, NIB_OK);
    expect_keys("a-good-key\n", 0640, NIB_BAD_INPUT);
    expect_keys("a-k\xc3\xa9y-key\n", 0600, NIB_BAD_INPUT);
    expect_keys("\na-k\x7fy-key\n", 0600, NIB_BAD_INPUT);
    for (int i = 0; i < 1025; i++)
        snprintf(many + 16 * i, 36, "key-number-%04d\n", i);
    expect_keys(many, 0600, NIB_BAD_INPUT);
    expect_keys(many + 16, 0600, NIB_OK);
    refused(NIB_IO, serve_keys_read(&keys, "/nosuch", &err), &err);
    refused(NIB_IO, serve_keys_read(&keys, "/", &err), &err);
    refused(NIB_BAD_INPUT, serve_keys_read(&keys, "/dev/null", &err), &err);
    for (int i = 0; i < 2; i++) { /* no folder of credentials */
        setenv("CREDENTIALS_DIRECTORY", i == 0 ? "tmp" : "/nosuch", 1);
        expect_keys("a-good-key\n", 0440, NIB_BAD_INPUT);
        unsetenv("CREDENTIALS_DIRECTORY");
    }
}

static void test_keys_fail(void **state)
{
    static const char text[] = "a-good-key\nanother-key\n";
    char path[32];
    bool failed = true;
    int n = 0;
    (void)state;
    write_keys(path, text, sizeof text - 1, 0600);
    while (failed) {
        serve_keys keys;
        nib_err err = {.status = NIB_OK};
        atomic_store(&countdown, ++n);
        const nib_status status = serve_keys_read(&keys, path, &err);
        failed = atomic_load(&countdown) <= 0;
        atomic_store(&countdown, 0);
        assert_int_equal(err.status, status);
        assert_int_equal(keys.count, failed ? 0 : 2);
        assert_true(failed ? status == NIB_NO_MEMORY || status == NIB_IO : status == NIB_OK);
        serve_keys_free(&keys);
    }
    assert_true(n > 4); /* an array and a copy for each key */
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_answers),
        cmocka_unit_test(test_calls_fail),
        cmocka_unit_test(test_no_descriptors),
        cmocka_unit_test(test_addresses),
        cmocka_unit_test(test_log),
        cmocka_unit_test(test_ipv6),
        cmocka_unit_test(test_hosts),
        cmocka_unit_test(test_room),
        cmocka_unit_test(test_room_of_many),
        cmocka_unit_test(test_room_without_key),
        cmocka_unit_test(test_many_leave),
        cmocka_unit_test(test_keys),
        cmocka_unit_test(test_keys_fail),
    };
    signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
