/* SPDX-License-Identifier: Apache-2.0
 *
 * Handles requests: access checks, the body, and the answer as a libmicrohttpd response.
 */
#include "http.h"
#include "ascii.h"
#include "kept_text.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    BLOCK = 4096,     /* bytes of an answer per read */
    PACE = 64 * 1024, /* bytes that a client must read per stall_s while more are ready */
    REST = 64 * 1024  /* bytes read of a body that is too long before the connection is closed */
};

/* ---- routes ---- */

typedef enum target { TARGET_CALL, TARGET_REPORT } target;

typedef struct route {
    const char *path, *method;
    target target;
    int what; /* nib_route or nib_report */
    const char *type;
    bool open; /* needs no key */
} route;

static const route routes[] = {
    {"/v1/chat/completions", "POST", TARGET_CALL, NIB_ROUTE_CHAT, NULL, false},
    {"/v1/completions", "POST", TARGET_CALL, NIB_ROUTE_COMPLETIONS, NULL, false},
    {"/v1/models", "GET", TARGET_REPORT, NIB_REPORT_MODELS, "application/json", false},
    {"/v1/plan", "GET", TARGET_REPORT, NIB_REPORT_PLAN, "application/json", false},
    {"/health", "GET", TARGET_REPORT, NIB_REPORT_HEALTH, "application/json", true},
    {"/metrics", "GET", TARGET_REPORT, NIB_REPORT_METRICS, "text/plain; version=0.0.4", false},
};

static const char models_of[] = "/v1/models/";

static bool is_get(const request *r)
{
    return strcmp(r->method, "GET") == 0 || strcmp(r->method, "HEAD") == 0;
}

static const route *find_route(const request *r)
{
    static const route one = {models_of,          "GET", TARGET_REPORT, NIB_REPORT_MODEL,
                              "application/json", false};
    for (size_t i = 0; i < sizeof routes / sizeof *routes; i++)
        if (strcmp(routes[i].path, r->url) == 0)
            return &routes[i];
    return strncmp(r->url, models_of, sizeof models_of - 1) == 0 ? &one : NULL;
}

/* ---- answers ---- */

static void add_headers(struct MHD_Response *response, const request *r, const char *type)
{
    MHD_add_response_header(response, "Content-Type", type);
    MHD_add_response_header(response, "X-Content-Type-Options", "nosniff");
    MHD_add_response_header(response, "Cache-Control", "no-store");
    if (r->http == 401)
        MHD_add_response_header(response, "WWW-Authenticate", "Bearer");
}

static bool is_listed(const nib_strings *origins, const char *origin)
{
    for (size_t i = 0; i < origins->count; i++)
        if (strcmp(origins->items[i], origin) == 0)
            return true;
    return false;
}

/* Adds CORS headers: an allowed origin, and Vary if answers depend on the origin. */
static void add_origin(struct MHD_Response *response, const request *r)
{
    const char *origin = MHD_lookup_connection_value(r->connection->mhd, MHD_HEADER_KIND, "Origin");
    const nib_strings *allowed = &r->connection->server->options->origins;
    if (origin != NULL && is_listed(allowed, origin))
        MHD_add_response_header(response, "Access-Control-Allow-Origin", origin);
    const bool is_preflight = strcmp(r->method, "OPTIONS") == 0;
    if (allowed->count > 0 || is_preflight) /* caches then keep an answer per origin */
        MHD_add_response_header(response, "Vary",
                                is_preflight ? "Origin, Access-Control-Request-Headers" : "Origin");
}

static enum MHD_Result queue(request *r, struct MHD_Response *response)
{
    if (response == NULL)
        return MHD_NO;
    add_origin(response, r);
    if (r->closing)
        MHD_add_response_header(response, "Connection", "close");
    const enum MHD_Result queued =
        MHD_queue_response(r->connection->mhd, (unsigned)r->http, response);
    MHD_destroy_response(response);
    return queued;
}

/* Counts `count` bytes as sent. Restarts the client's time limit if nothing waited, or if it has
 * read PACE bytes since the last restart. */
static void track_pace(request *r, size_t count)
{
    if (atomic_load(&r->stalled_ms) == 0 || r->sent - r->paced >= PACE) {
        atomic_store(&r->stalled_ms, now_ms());
        r->paced = r->sent;
    }
    r->sent += count;
}

static ssize_t read_text(void *ctx, uint64_t place, char *out, size_t size)
{
    request *r = ctx;
    const size_t left = r->text_size - (size_t)place, count = size < left ? size : left;
    memcpy(out, r->text + place, count);
    track_pace(r, count);
    return (ssize_t)count;
}

/* A response with the request's text. */
static struct MHD_Response *text_response(request *r, int http, const char *type)
{
    struct MHD_Response *response =
        MHD_create_response_from_callback(r->text_size, BLOCK, read_text, r, NULL);
    r->http = http;
    set_phase(r->connection, PHASE_ANSWER);
    track_pace(r, 0);
    if (response != NULL)
        add_headers(response, r, type);
    return response;
}

static enum MHD_Result answer_text(request *r, kept_text *kept, int http, const char *type,
                                   const char *allow)
{
    r->text = r->owned = kept->text;
    r->text_size = kept->size;
    struct MHD_Response *response = text_response(r, http, type);
    if (response != NULL && allow != NULL)
        MHD_add_response_header(response, "Allow", allow);
    return queue(r, response);
}

static enum MHD_Result refuse_with(request *r, int http, const char *param, const char *code,
                                   const char *message, const char *allow)
{
    kept_text g = {0};
    const nib_sink sink = {kept_write, &g};
    if (nib_error_write(http, message, param, code, &sink, NULL) != NIB_OK) {
        free(g.text);
        return MHD_NO;
    }
    return answer_text(r, &g, http, "application/json", allow);
}

static enum MHD_Result refuse(request *r, int http, const char *code, const char *message)
{
    return refuse_with(r, http, NULL, code, message, NULL);
}

static int digit_of(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* Whether `path`, with %NN escapes, spells `name`. */
static bool matches_escaped(const char *path, const char *name)
{
    for (; *name != 0; name++, path++) {
        int c = (unsigned char)*path;
        if (c == '%' && digit_of(path[1]) >= 0 && digit_of(path[2]) >= 0) {
            c = 16 * digit_of(path[1]) + digit_of(path[2]);
            path += 2;
        }
        if (c != (unsigned char)*name)
            return false;
    }
    return *path == 0;
}

static enum MHD_Result answer_report(request *r, const route *to)
{
    server *s = r->connection->server;
    kept_text g = {0};
    const nib_sink sink = {kept_write, &g};
    if (to->what == NIB_REPORT_MODEL &&
        !matches_escaped(r->url + sizeof models_of - 1, nib_service_name(s->service)))
        return refuse(r, 404, "model_not_found", "no such model; see /v1/models");
    if (nib_service_write(s->service, (nib_report)to->what, &sink, NULL) != NIB_OK) {
        free(g.text);
        return MHD_NO;
    }
    const bool failed =
        to->what == NIB_REPORT_HEALTH && nib_service_status(s->service, NULL) != NIB_OK;
    return answer_text(r, &g, failed ? 503 : 200, to->type, NULL);
}

static enum MHD_Result answer_page(request *r, const page_file *file)
{
    r->text = (const char *)file->bytes;
    r->text_size = file->size;
    struct MHD_Response *response = text_response(r, 200, file->type);
    if (response != NULL) {
        MHD_add_response_header(response, "Content-Security-Policy",
                                "default-src 'none'; script-src 'self'; style-src 'self'; "
                                "connect-src 'self'; img-src 'self' data:; base-uri 'none'; "
                                "form-action 'none'; frame-ancestors 'none'");
        MHD_add_response_header(response, "Referrer-Policy", "no-referrer");
    }
    return queue(r, response);
}

/* ---- answers of the service ---- */

static bool is_gone(connection *c)
{
    pthread_mutex_lock(&c->server->lock);
    const bool gone = c->gone;
    pthread_mutex_unlock(&c->server->lock);
    return gone;
}

/* Suspends the connection until the watcher resumes it. The flag is set after suspending, so that
 * the watcher cannot resume it earlier. If data became ready in between, the watcher found nothing
 * to resume and is woken again. */
static void sleep_until_ready(request *r)
{
    connection *c = r->connection;
    MHD_suspend_connection(c->mhd);
    pthread_mutex_lock(&c->server->lock);
    c->suspended = true;
    pthread_mutex_unlock(&c->server->lock);
    if (atomic_load(&r->ready))
        wake_watcher(c->server);
}

/* The next bytes of a call's answer. If there are none, suspends the connection. */
static ssize_t read_answer(void *ctx, uint64_t place, char *out, size_t size)
{
    static const char ping[] = ": ping\n\n";
    request *r = ctx;
    connection *c = r->connection;
    (void)place;
    const size_t count = nib_call_read(r->call, out, size);
    const uint64_t now = now_ms();
    if (count > 0) {
        track_pace(r, count);
        atomic_store(&r->pinged_ms, now);
        return (ssize_t)count;
    }
    nib_call_state state = {.size = sizeof state};
    nib_call_look(r->call, &state);
    if (state.left > 0)
        return 0; /* bytes have just arrived */
    if (state.over)
        return MHD_CONTENT_READER_END_OF_STREAM;
    if (is_gone(c))
        return MHD_CONTENT_READER_END_WITH_ERROR;
    if (r->streamed && now - atomic_load(&r->pinged_ms) > PING_MS && size >= sizeof ping - 1) {
        track_pace(r, 0);
        atomic_store(&r->pinged_ms, now);
        memcpy(out, ping, sizeof ping - 1);
        return sizeof ping - 1;
    }
    atomic_store(&r->stalled_ms, 0);
    sleep_until_ready(r);
    return 0;
}

/* Called on the service's threads, under its lock. */
static void call_ready(void *ctx)
{
    request *r = ctx;
    atomic_store(&r->ready, true);
    wake_watcher(r->connection->server);
}

/* Answers once the status is known; until then suspends the connection. */
static enum MHD_Result answer_call(request *r)
{
    connection *c = r->connection;
    nib_call_state state = {.size = sizeof state};
    nib_call_look(r->call, &state);
    char seconds[16];
    if (state.http == 0) {
        if (is_gone(c))
            return MHD_NO;
        sleep_until_ready(r);
        return MHD_YES;
    }
    r->http = state.http;
    r->streamed = state.stream && state.http == 200;
    struct MHD_Response *response = MHD_create_response_from_callback(
        state.over ? (uint64_t)state.left : MHD_SIZE_UNKNOWN, BLOCK, read_answer, r, NULL);
    if (response != NULL) {
        add_headers(response, r, r->streamed ? "text/event-stream" : "application/json");
        snprintf(seconds, sizeof seconds, "%d", state.retry_s);
        if (state.retry_s > 0)
            MHD_add_response_header(response, "Retry-After", seconds);
        if (r->streamed) /* or nginx buffers the stream */
            MHD_add_response_header(response, "X-Accel-Buffering", "no");
    }
    return queue(r, response);
}

/* Identifies a client by address and key number. Behind a proxy all clients have one address, and
 * the key's number, unlike the header's text, is the same however the header is written. */
static uint64_t client_of(const request *r)
{
    return hash_bytes(hash_bytes(0, r->connection->peer, strlen(r->connection->peer)), &r->key,
                      sizeof r->key);
}

/* The same for a key in every server, whatever its number, because states on disk outlive the
 * process; 0: all share prefixes, or no key is needed. */
static uint64_t tenant_of(const request *r)
{
    const serve_options *o = r->connection->server->options;
    const char *key = r->key > 0 ? o->keys->items[r->key - 1] : NULL;
    return o->share_prefixes || key == NULL ? 0 : hash_bytes(1, key, strlen(key));
}

static enum MHD_Result open_call(request *r, const route *to)
{
    server *s = r->connection->server;
    const nib_call_options options = {.route = (nib_route)to->what,
                                      .body = r->body != NULL ? r->body : "",
                                      .body_size = r->size,
                                      .client = client_of(r),
                                      .tenant = tenant_of(r),
                                      .now = (int64_t)time(NULL),
                                      .ready = call_ready,
                                      .ctx = r};
    set_phase(r->connection, PHASE_ANSWER);
    atomic_store(&r->pinged_ms, now_ms());
    if (nib_call_open(&r->call, s->service, &options, NULL) != NIB_OK)
        return refuse(r, 503, NULL,
                      "out of memory for this request; send a shorter one, or retry later");
    free(r->body);
    r->body = NULL;
    return answer_call(r);
}

/* ---- access ---- */

static bool is_loopback_name(const char *host, size_t size)
{
    static const char *const names[] = {"localhost", "127.0.0.1", "[::1]"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strlen(names[i]) == size && same_start_ignoring_case(names[i], host, size))
            return true;
    return false;
}

/* Without keys the server is only for this machine and accepts only its own names as Host, because
 * a foreign page could use a name that resolves to this machine (DNS rebinding). */
static bool host_is_ours(const request *r, const char *host)
{
    const server *s = r->connection->server;
    if (s->options->keys->count > 0 || s->options->insecure || host == NULL)
        return true;
    const char *end = strrchr(host, ':');
    if (end == NULL || strchr(end, ']') != NULL)
        end = host + strlen(host);
    const size_t size = (size_t)(end - host);
    return is_loopback_name(host, size) ||
           (strlen(s->host) == size && strncmp(s->host, host, size) == 0);
}

/* Pages of other origins need --allow-origin. */
static bool origin_is_ours(const request *r, const char *origin, const char *host)
{
    if (origin == NULL || is_listed(&r->connection->server->options->origins, origin))
        return true;
    const char *name = strstr(origin, "://");
    return name != NULL && host != NULL && same_ignoring_case(name + 3, host);
}

/* Checks host, origin and key before the body is read. On failure, *good is false and the result
 * is that of queueing the refusal. */
static enum MHD_Result check_access(request *r, const route *to, bool page, bool *good)
{
    struct MHD_Connection *mhd = r->connection->mhd;
    const serve_options *o = r->connection->server->options;
    const char *host = MHD_lookup_connection_value(mhd, MHD_HEADER_KIND, "Host");
    const char *origin = MHD_lookup_connection_value(mhd, MHD_HEADER_KIND, "Origin");
    const char *key = MHD_lookup_connection_value(mhd, MHD_HEADER_KIND, "Authorization");
    /* a preflight request has no key, and its answer reveals only what is allowed */
    const bool is_preflight = strcmp(r->method, "OPTIONS") == 0;
    *good = false;
    if (!host_is_ours(r, host))
        return refuse(r, 403, "host_not_allowed",
                      "this server has no key and answers only to localhost; start it with "
                      "--api-key-file to use other names");
    if (!origin_is_ours(r, origin, host))
        return refuse(r, 403, "origin_not_allowed",
                      "pages of this origin may not send requests; allow them with --allow-origin");
    r->key = serve_keys_find(o->keys, key);
    note_key(r->connection, r->key);
    if (o->keys->count > 0 && !page && !is_preflight && !(to != NULL && to->open) && r->key == 0)
        return refuse(r, 401, "invalid_api_key",
                      key == NULL ? "a key is required: Authorization: Bearer KEY"
                                  : "the key is not valid for this server");
    *good = true;
    return MHD_YES;
}

/* Answers a CORS preflight request. */
static enum MHD_Result answer_preflight(request *r)
{
    struct MHD_Response *response =
        MHD_create_response_from_buffer(0, NULL, MHD_RESPMEM_PERSISTENT);
    const char *headers = MHD_lookup_connection_value(r->connection->mhd, MHD_HEADER_KIND,
                                                      "Access-Control-Request-Headers");
    r->http = 204;
    if (response != NULL) {
        MHD_add_response_header(response, "Access-Control-Allow-Methods", "GET, POST");
        /* allow all: client libraries for browsers add headers, which have no effect here */
        if (headers != NULL)
            MHD_add_response_header(response, "Access-Control-Allow-Headers", headers);
        MHD_add_response_header(response, "Access-Control-Max-Age", "600");
    }
    return queue(r, response);
}

static bool length_is_over(struct MHD_Connection *mhd, size_t limit)
{
    const char *length =
        MHD_lookup_connection_value(mhd, MHD_HEADER_KIND, MHD_HTTP_HEADER_CONTENT_LENGTH);
    return length != NULL && strtoull(length, NULL, 10) > limit;
}

static bool is_encoded(struct MHD_Connection *mhd)
{
    const char *coding =
        MHD_lookup_connection_value(mhd, MHD_HEADER_KIND, MHD_HTTP_HEADER_CONTENT_ENCODING);
    return coding != NULL && !same_ignoring_case(coding, "identity");
}

static enum MHD_Result refuse_long(request *r)
{
    char text[128];
    snprintf(text, sizeof text, "the body exceeds the limit of %zu bytes",
             r->connection->server->options->body_limit);
    return refuse(r, 413, "body_too_long", text);
}

/* Checks a request once its headers were read. */
static enum MHD_Result process_headers(request *r, const char *version)
{
    struct MHD_Connection *mhd = r->connection->mhd;
    const route *to = find_route(r);
    const page_file *file = to == NULL ? page_find(r->url) : NULL;
    bool good;
    const char *fault = framing_fault(mhd, version);
    if (fault != NULL) {
        r->closing = true;
        return refuse(r, 400, "bad_framing", fault);
    }
    const enum MHD_Result result = check_access(r, to, file != NULL, &good);
    if (!good)
        return result;
    if (to == NULL && file == NULL)
        return refuse(r, 404, NULL,
                      "no such path; there are POST /v1/chat/completions and /v1/completions, GET "
                      "/v1/models, /v1/plan, /health and /metrics");
    if (strcmp(r->method, "OPTIONS") == 0)
        return answer_preflight(r);
    const char *method = to != NULL ? to->method : "GET";
    if (strcmp(method, "GET") == 0 ? !is_get(r) : strcmp(r->method, method) != 0)
        return refuse_with(r, 405, NULL, NULL, "this path does not support that method",
                           strcmp(method, "GET") == 0 ? "GET, HEAD" : method);
    if (length_is_over(mhd, r->connection->server->options->body_limit))
        return refuse_long(r);
    if (is_encoded(mhd))
        return refuse(r, 415, "content_encoding",
                      "Content-Encoding is not supported; send the body unencoded");
    set_phase(r->connection, PHASE_BODY);
    return MHD_YES;
}

/* ---- a request ---- */

static void free_request(request *r)
{
    free(r->body);
    free(r->owned);
    free(r->url);
    free(r->method);
    free(r);
}

static connection *connection_of(struct MHD_Connection *mhd)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    return info != NULL ? info->socket_context : NULL;
}

static request *begin_request(struct MHD_Connection *mhd, const char *url, const char *method)
{
    connection *c = connection_of(mhd);
    request *r = c != NULL ? calloc(1, sizeof *r) : NULL;
    if (r == NULL)
        return NULL;
    r->connection = c;
    r->url = strdup(url);
    r->method = strdup(method);
    if (r->url == NULL || r->method == NULL) {
        free_request(r);
        return NULL;
    }
    atomic_init(&r->ready, false);
    atomic_init(&r->stalled_ms, 0);
    atomic_init(&r->pinged_ms, 0);
    pthread_mutex_lock(&c->server->lock);
    c->request = r;
    pthread_mutex_unlock(&c->server->lock);
    return r;
}

static enum MHD_Result append_body(request *r, const char *data, size_t *size)
{
    const size_t limit = r->connection->server->options->body_limit;
    const size_t part = *size;
    *size = 0;
    if (r->too_long || part > limit - r->size) {
        /* Drops the rest, because the refusal can be sent only after it. Closes the connection if
         * the rest exceeds the limit again, or REST if that is larger. */
        r->size = r->too_long ? r->size + part : 0;
        r->too_long = true;
        free(r->body);
        r->body = NULL;
        r->capacity = 0;
        return r->size > (limit > REST ? limit : REST) ? MHD_NO : MHD_YES;
    }
    kept_text g = {r->body, r->size, r->capacity};
    r->failed = r->failed || kept_write(&g, data, part) != NIB_OK;
    r->body = g.text, r->size = g.size, r->capacity = g.capacity;
    return MHD_YES;
}

static enum MHD_Result answer_request(request *r)
{
    const route *to = find_route(r);
    if (r->too_long)
        return refuse_long(r);
    if (r->failed)
        return refuse(r, 503, NULL,
                      "out of memory for this request; send a shorter one, or retry later");
    if (to == NULL)
        return answer_page(r, page_find(r->url));
    /* health and metrics are polled every few seconds */
    r->unlogged = to->open || (to->target == TARGET_REPORT && to->what == NIB_REPORT_METRICS);
    return to->target == TARGET_CALL ? open_call(r, to) : answer_report(r, to);
}

void *on_request_line(void *ctx, const char *uri, struct MHD_Connection *mhd)
{
    connection *c = connection_of(mhd);
    (void)ctx;
    (void)uri;
    if (c != NULL && c->phase == PHASE_IDLE)
        set_phase(c, PHASE_HEADERS);
    return NULL;
}

enum MHD_Result handle_request(void *ctx, struct MHD_Connection *mhd, const char *url,
                               const char *method, const char *version, const char *data,
                               size_t *size, void **request_ctx)
{
    request *r = *request_ctx;
    (void)ctx;
    if (r == NULL) {
        *request_ctx = r = begin_request(mhd, url, method);
        return r != NULL ? process_headers(r, version) : MHD_NO;
    }
    if (*size > 0)
        return append_body(r, data, size);
    return r->call != NULL ? answer_call(r) : answer_request(r);
}

/* ---- the log ---- */

/* Escapes a method or path for a log line: blanks, quotes, backslashes and non-ASCII bytes become
 * \xNN; truncates long text. */
static void escape_for_log(char *out, size_t size, const char *text)
{
    size_t n = 0;
    for (; *text != 0 && n + 8 < size; text++) {
        const unsigned char c = (unsigned char)*text;
        if (c <= ' ' || c >= 0x7f || c == '\\' || c == '"')
            n += (size_t)snprintf(out + n, size - n, "\\x%02x", c);
        else
            out[n++] = (char)c;
    }
    if (*text != 0)
        n += (size_t)snprintf(out + n, size - n, "...");
    out[n] = 0;
}

static void format_seconds(char out[48], const char *what, double seconds)
{
    out[0] = 0;
    if (!isnan(seconds))
        snprintf(out, 48, ", %s %.3f s", what, seconds);
}

static void log_request(const request *r, bool completed)
{
    char when[32], method[32], path[128], again[64] = "", tokens[224] = "", queued[48], first[48],
                                          settings[64] = "";
    const time_t now = time(NULL);
    struct tm utc;
    nib_call_stats t = {.size = sizeof t};
    gmtime_r(&now, &utc);
    strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", &utc);
    escape_for_log(method, sizeof method, r->method);
    escape_for_log(path, sizeof path, r->url);
    if (r->call == NULL) {
        fprintf(stderr, "%s %s %s %s %d\n", when, r->connection->peer, method, path, r->http);
        return;
    }
    nib_call_stats_get(r->call, &t);
    format_seconds(queued, "queued", t.queued_s);
    format_seconds(first, "first token", t.first_token_s);
    if (t.recomputed_tokens > 0)
        snprintf(again, sizeof again, ", %lld recomputed: %s", (long long)t.recomputed_tokens,
                 t.recomputed_why);
    if (t.prompt_tokens > 0)
        snprintf(tokens, sizeof tokens, ", %lld prompt tokens (%lld cached%s), %lld new",
                 (long long)t.prompt_tokens, (long long)t.cached_tokens, again,
                 (long long)t.new_tokens);
    if (t.settings > 0)
        snprintf(settings, sizeof settings, ", %lld setting%s not as asked", (long long)t.settings,
                 t.settings == 1 ? "" : "s");
    fprintf(stderr, "%s %s %s %s %d %s %s%s%s%s, %.3f s%s, seed %lld\n", when, r->connection->peer,
            method, path, r->http, t.id, completed ? t.finish : "gone", tokens, queued, first,
            t.total_s, settings, (long long)t.seed);
}

void on_request_end(void *ctx, struct MHD_Connection *mhd, void **request_ctx,
                    enum MHD_RequestTerminationCode why)
{
    request *r = *request_ctx;
    (void)ctx;
    (void)mhd;
    if (r == NULL)
        return;
    connection *c = r->connection;
    pthread_mutex_lock(&c->server->lock);
    c->phase = PHASE_IDLE; /* at once with the next line: an answer has its request */
    c->request = NULL;
    c->since_ms = now_ms();
    pthread_mutex_unlock(&c->server->lock);
    if (!c->server->options->quiet && !r->unlogged)
        log_request(r, why == MHD_REQUEST_TERMINATED_COMPLETED_OK);
    nib_call_close(r->call);
    free_request(r);
    *request_ctx = NULL;
}
