/* SPDX-License-Identifier: Apache-2.0
 *
 * Any bytes from a client of the HTTP server: libmicrohttpd and all handlers of src/serve over a
 * socket pair, polled on this thread, in front of a service that answers with the size of the body.
 * The first byte chooses keys, origins, limits, how the service answers and how the bytes arrive.
 * What is sent must be whole HTTP answers; requests that a strict parser reads without doubt must
 * reach the service in order with exactly their bodies; without the key nothing may reach it.
 */
#include "http.h"

#include "../library_leaks.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum {
    MODE_KEY = 1,
    MODE_ORIGIN = 2,
    MODE_SMALL = 4, /* bodies of at most SMALL bytes */
    MODE_LATE = 8,  /* the service answers after the connection was suspended */
    MODE_STREAM = 16,
    MODE_PIECES = 5, /* shift: bytes per write 2^(2n); 0: all at once */
    SMALL = 40,
    LARGE = 1 << 16,
    CALLS = 64, /* compared; more are only answered */
    ROUNDS = 6  /* polls without progress that end an exchange */
};

static const char key[] = "sesame-0123456789", own_name[] = "tales";

static void require(bool holds)
{
    if (!holds)
        abort();
}

/* ---- the service ---- */

struct nib_call {
    nib_call_options options;
    char text[64];
    size_t size, read;
    int looks; /* until the answer is ready */
};

struct nib_service {
    unsigned mode;
    size_t calls, open;
    struct {
        nib_route route;
        char *body;
        size_t size;
    } seen[CALLS];
};

nib_status nib_call_open(nib_call **out, nib_service *s, const nib_call_options *options,
                         nib_err *err)
{
    nib_call *call = calloc(1, sizeof *call);
    (void)err;
    require(call != NULL && options->body_size <= LARGE);
    call->options = *options;
    call->looks = (s->mode & MODE_LATE) != 0 ? 2 : 0;
    call->size =
        (size_t)snprintf(call->text, sizeof call->text, "{\"size\": %zu}", options->body_size);
    if (s->calls < CALLS) {
        char *body = malloc(options->body_size + 1);
        require(body != NULL);
        memcpy(body, options->body, options->body_size);
        s->seen[s->calls].route = options->route;
        s->seen[s->calls].body = body;
        s->seen[s->calls].size = options->body_size;
    }
    s->calls++;
    s->open++;
    *out = call;
    return NIB_OK;
}

static nib_service service;

void nib_call_close(nib_call *call)
{
    service.open -= call != NULL;
    free(call);
}

void nib_call_look(nib_call *call, nib_call_state *out)
{
    if (call->looks > 0 && --call->looks == 0)
        call->options.ready(call->options.ctx);
    const bool known = call->looks == 0, over = known && call->read == call->size;
    *out = (nib_call_state){.http = !known                         ? 0
                                    : call->options.body_size == 7 ? 429
                                                                   : 200,
                            .stream = (service.mode & MODE_STREAM) != 0,
                            .retry_s = call->options.body_size == 7 ? 3 : 0,
                            .left = known ? call->size - call->read : 0,
                            .over = over || (known && (service.mode & MODE_STREAM) == 0)};
}

size_t nib_call_read(nib_call *call, char *out, size_t size)
{
    const size_t left = call->size - call->read,
                 most = (service.mode & MODE_STREAM) != 0 ? 5 : size;
    const size_t count = left < most ? left : most;
    memcpy(out, call->text + call->read, count);
    call->read += count;
    return count;
}

void nib_call_stats_get(nib_call *call, nib_call_stats *out)
{
    (void)call;
    *out = (nib_call_stats){.id = "x", .finish = "stop", .prompt_tokens = 1, .settings = 2};
}

const char *nib_service_name(const nib_service *s)
{
    (void)s;
    return own_name;
}

void nib_service_run(nib_service *s) { (void)s; }

nib_status nib_service_status(nib_service *s, nib_err *err)
{
    (void)s;
    (void)err;
    return NIB_OK;
}

void nib_service_stop(nib_service *s) { (void)s; }

nib_status nib_service_write(nib_service *s, nib_report report, const nib_sink *sink, nib_err *err)
{
    (void)s;
    (void)err;
    return sink->write(sink->ctx, "report", report == NIB_REPORT_HEALTH ? 3 : 6);
}

nib_status nib_error_write(int http, const char *message, const char *param, const char *code,
                           const nib_sink *sink, nib_err *err)
{
    (void)param;
    (void)code;
    (void)err;
    require(http >= 400 && message[0] != 0);
    return sink->write(sink->ctx, message, strlen(message));
}

/* ---- the server ---- */

static serve_options options;
static server *http;

static void start_server(void)
{
    static const serve_keys none = {0};
    nib_err err;
    options = (serve_options){.keys = &none,
                              .connections = 8,
                              .header_s = 60,
                              .body_s = 60,
                              .idle_s = 60,
                              .stall_s = 60,
                              .quiet = true};
    if (serve_open(&http, &options, &err) != NIB_OK || start_daemon(http, 0, &err) != NIB_OK) {
        fprintf(stderr, "%s\n", err.text);
        abort();
    }
    http->service = &service;
    signal(SIGPIPE, SIG_IGN);
}

static void set_mode(unsigned mode)
{
    static char text[sizeof key], *items[] = {text};
    static const serve_keys keys = {items, 1}, none = {0};
    static const char *origins[] = {"http://page.example"};
    memcpy(text, key, sizeof key);
    options.keys = (mode & MODE_KEY) != 0 ? &keys : &none;
    options.origins = (nib_strings){origins, (mode & MODE_ORIGIN) != 0};
    options.body_limit = (mode & MODE_SMALL) != 0 ? SMALL : LARGE;
    service.mode = mode;
}

/* What the watcher does without its time limits. */
static void resume_connections(void)
{
    for (connection *c = http->connections; c != NULL; c = c->next)
        if (c->suspended) {
            c->suspended = false;
            if (c->request != NULL)
                atomic_store(&c->request->ready, false);
            MHD_resume_connection(c->mhd);
        }
}

typedef struct answer {
    char *text;
    size_t size, capacity;
} answer;

/* Lets the server run until nothing changes; true: it has closed the connection. */
static bool exchange(int fd, answer *out)
{
    for (int idle = 0; idle < ROUNDS; idle++) {
        MHD_run(http->daemon);
        resume_connections();
        if (out->capacity - out->size < 4096) {
            out->capacity = 2 * out->capacity + 4096;
            out->text = realloc(out->text, out->capacity);
            require(out->text != NULL);
        }
        const ssize_t got = read(fd, out->text + out->size, out->capacity - out->size);
        if (got == 0 || (got < 0 && errno == ECONNRESET))
            return true;
        if (got > 0) {
            out->size += (size_t)got;
            idle = 0;
        }
    }
    return false;
}

/* Sends the bytes in pieces; true: the server closed the connection. */
static bool converse(int fd, const uint8_t *data, size_t size, unsigned mode, answer *out)
{
    const size_t piece = mode >> MODE_PIECES == 0 ? size : (size_t)1 << 2 * (mode >> MODE_PIECES);
    while (size > 0) {
        const ssize_t sent = write(fd, data, piece < size ? piece : size);
        if (sent < 0 && errno != EAGAIN)
            return exchange(fd, out);
        data += sent > 0 ? sent : 0;
        size -= sent > 0 ? (size_t)sent : 0;
        if (exchange(fd, out))
            return true;
        require(sent >= 0); /* the server reads all that is sent, or closes */
    }
    return false;
}

/* ---- answers ---- */

typedef struct cursor {
    const char *at, *end;
} cursor;

static bool skip_past(cursor *c, const char *mark)
{
    const size_t size = strlen(mark);
    for (; (size_t)(c->end - c->at) >= size; c->at++)
        if (memcmp(c->at, mark, size) == 0) {
            c->at += size;
            return true;
        }
    return false;
}

static bool begins_with(const cursor *c, const char *text)
{
    const size_t size = strlen(text);
    return (size_t)(c->end - c->at) >= size && strncasecmp(c->at, text, size) == 0;
}

static size_t read_number(cursor *c, int base)
{
    char digits[24] = "", *stop;
    const size_t left = (size_t)(c->end - c->at);
    memcpy(digits, c->at, left < sizeof digits - 1 ? left : sizeof digits - 1);
    const size_t value = (size_t)strtoull(digits, &stop, base);
    require(stop != digits);
    c->at += stop - digits;
    return value;
}

/* Chunks, to the last one. */
static void check_chunks(cursor *c)
{
    for (size_t size = 1; size > 0;) {
        size = read_number(c, 16);
        require(begins_with(c, "\r\n"));
        require((size_t)(c->end - c->at) >= size + 4);
        c->at += 2 + size;
        require(begins_with(c, "\r\n"));
        c->at += 2;
    }
}

/* One answer: status line, headers, and the body that they announce. libmicrohttpd's own refusals
 * come last and are not looked into: 0.9.75 sends the head of some twice. */
static void check_answer(cursor *c)
{
    require(begins_with(c, "HTTP/1.1 ") || begins_with(c, "HTTP/1.0 "));
    c->at += 9;
    const size_t status = read_number(c, 10);
    bool chunked = false, closing = false, sized = false, own = status == 100 || status == 204;
    size_t length = 0;
    require(status >= 100 && status < 600 && status != 500);
    while (skip_past(c, "\r\n") && !begins_with(c, "\r\n")) {
        own = own || begins_with(c, "X-Content-Type-Options: nosniff\r\n");
        chunked = chunked || begins_with(c, "Transfer-Encoding: chunked\r\n");
        closing = closing || begins_with(c, "Connection: close\r\n");
        if (begins_with(c, "Content-Length: ")) {
            require(!sized);
            sized = true;
            c->at += 16;
            length = read_number(c, 10);
        }
    }
    require(begins_with(c, "\r\n") && !(chunked && sized));
    c->at += 2;
    if (!own) {
        require(status >= 400 && closing);
        c->at = c->end;
    }
    const bool bare = c->at == c->end || begins_with(c, "HTTP/1."); /* of HEAD, or without a body */
    if (chunked && !bare) {
        check_chunks(c);
    } else if (sized && !bare) {
        require((size_t)(c->end - c->at) >= length);
        c->at += length;
    } else if (!chunked && !sized && closing) {
        c->at = c->end; /* the body ends with the connection */
    }
    require(!closing || c->at == c->end);
}

static void check_answers(const answer *a)
{
    cursor c = {a->text, a->text + a->size};
    while (c.at < c.end)
        check_answer(&c);
}

/* ---- requests without doubt ---- */

typedef struct plain {
    bool post, has_key;
    bool doubtful; /* its body could end in two places */
    nib_route route;
    const char *body;
    size_t size;
} plain;

/* Takes a line that ends in CR LF and has only printable ASCII. */
static bool take_line(cursor *c, cursor *line)
{
    line->at = c->at;
    while (c->at < c->end && *c->at >= ' ' && *c->at <= '~')
        c->at++;
    line->end = c->at;
    if (!begins_with(c, "\r\n"))
        return false;
    c->at += 2;
    return true;
}

static bool is_line(const cursor *c, const char *text)
{
    const size_t size = strlen(text);
    return (size_t)(c->end - c->at) == size && memcmp(c->at, text, size) == 0;
}

static bool take_request_line(cursor *c, plain *r)
{
    cursor line;
    if (!take_line(c, &line))
        return false;
    *r = (plain){.post = begins_with(&line, "POST ")};
    if (is_line(&line, "POST /v1/chat/completions HTTP/1.1"))
        r->route = NIB_ROUTE_CHAT;
    else if (is_line(&line, "POST /v1/completions HTTP/1.1"))
        r->route = NIB_ROUTE_COMPLETIONS;
    else if (!is_line(&line, "GET /health HTTP/1.1"))
        return false;
    return true;
}

/* Takes a request that every HTTP server reads in one way and this one must accept. */
static bool take_request(cursor *c, plain *r)
{
    cursor line;
    int hosts = 0, lengths = 0, codings = 0;
    const char *const begin = c->at;
    if (!take_request_line(c, r))
        return false;
    while (take_line(c, &line)) {
        if (line.at == line.end) {
            r->doubtful = lengths + codings > 1;
            const bool whole = hosts == 1 && codings == 0 && lengths == r->post &&
                               c->at - begin < 2000 && (size_t)(c->end - c->at) >= r->size;
            r->body = c->at;
            c->at += whole ? r->size : 0;
            return whole;
        }
        hosts += is_line(&line, "Host: localhost");
        codings += begins_with(&line, "Transfer-Encoding: ");
        r->has_key = r->has_key || is_line(&line, "Authorization: Bearer sesame-0123456789");
        if (begins_with(&line, "Content-Length: ") && line.end - line.at < 16 + 6) {
            lengths++;
            for (line.at += 16; line.at < line.end && *line.at >= '0' && *line.at <= '9'; line.at++)
                r->size = 10 * r->size + (size_t)(*line.at - '0');
            if (line.at < line.end || line.at[-1] == ' ')
                return false;
        } else if (!is_line(&line, "Host: localhost") && !begins_with(&line, "Content-Type: ") &&
                   !begins_with(&line, "Transfer-Encoding: ") &&
                   !is_line(&line, "Authorization: Bearer sesame-0123456789")) {
            return false;
        }
    }
    return false;
}

/* Requests without doubt, from the first on, must be the first calls of the service. After one
 * whose body could end in two places there must be none. */
static void check_calls(const uint8_t *data, size_t size)
{
    cursor c = {(const char *)data, (const char *)data + size};
    plain r = {.doubtful = false};
    size_t calls = 0;
    while (take_request(&c, &r) && r.size <= options.body_limit && calls < CALLS) {
        if (!r.post)
            continue;
        if ((service.mode & MODE_KEY) != 0 && !r.has_key)
            return;
        require(calls < service.calls && service.seen[calls].route == r.route);
        require(service.seen[calls].size == r.size &&
                memcmp(service.seen[calls].body, r.body, r.size) == 0);
        calls++;
    }
    require(!r.doubtful || service.calls == calls);
}

static bool has_key(const uint8_t *data, size_t size)
{
    cursor c = {(const char *)data, (const char *)data + size};
    return skip_past(&c, key);
}

/* ---- one connection ---- */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct sockaddr_in peer = {.sin_family = AF_INET,
                                            .sin_addr = {.s_addr = 0x0100007f}};
    answer out = {0};
    int fds[2];
    if (size == 0 || size > LARGE)
        return 0;
    if (http == NULL)
        start_server();
    set_mode(data[0]);
    require(socketpair(AF_UNIX, SOCK_STREAM, 0, fds) == 0);
    fcntl(fds[0], F_SETFL, O_NONBLOCK);
    fcntl(fds[1], F_SETFL, O_NONBLOCK);
    require(MHD_add_connection(http->daemon, fds[1], (const struct sockaddr *)&peer, sizeof peer) ==
            MHD_YES);
    bool closed = converse(fds[0], data + 1, size - 1, data[0], &out);
    if (!closed) {
        shutdown(fds[0], SHUT_WR);
        closed = exchange(fds[0], &out);
    }
    require(closed && http->connections == NULL && service.open == 0);
    close(fds[0]);
    check_answers(&out);
    check_calls(data + 1, size - 1);
    require((service.mode & MODE_KEY) == 0 || service.calls == 0 || has_key(data + 1, size - 1));
    for (size_t i = 0; i < service.calls && i < CALLS; i++)
        free(service.seen[i].body);
    service.calls = 0;
    free(out.text);
    return 0;
}
