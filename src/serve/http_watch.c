/* SPDX-License-Identifier: Apache-2.0
 *
 * The thread that watches connections. libmicrohttpd times out silent connections, but not
 * suspended ones or those that send a byte a second, and it does not notice when a suspended one
 * hangs up.
 */
#include "http.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#ifndef POLLRDHUP /* Linux and FreeBSD; elsewhere POLLHUP, which poll always reports, must do */
#define POLLRDHUP 0
#endif

enum { TICK_MS = 200 /* how often limits are checked */ };

uint64_t now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

void wake_watcher(const server *s)
{
    const int before = errno;
    /* if the pipe is full, the watcher wakes anyway */
    if (write(s->wake[1], "", 1) < 0)
        errno = before;
}

/* ---- connections ---- */

static void name_peer(char *out, size_t size, const struct sockaddr *address)
{
    const void *bytes = &((const struct sockaddr_in *)(const void *)address)->sin_addr;
    if (address->sa_family == AF_INET6)
        bytes = &((const struct sockaddr_in6 *)(const void *)address)->sin6_addr;
    inet_ntop(address->sa_family, bytes, out, (socklen_t)size);
}

/* FNV-1a. */
uint64_t hash_bytes(uint64_t before, const void *bytes, size_t size)
{
    uint64_t hash = before ^ 14695981039346656037U;
    for (size_t i = 0; i < size; i++)
        hash = (hash ^ ((const unsigned char *)bytes)[i]) * 1099511628211U;
    return hash;
}

/* Closes a connection. The lock is held. */
static void hang_up(server *s, connection *c)
{
    c->gone = true;
    s->connected--;
    s->held[c->owner]--;
    shutdown(c->fd, SHUT_RDWR); /* libmicrohttpd notices */
}

/* Whether a is closed before b: a has no key, its owner holds more connections, it is in an earlier
 * phase, or it is older. */
static bool yields_before(const server *s, const connection *a, const connection *b)
{
    if (a->has_key != b->has_key)
        return b->has_key;
    if (s->held[a->owner] != s->held[b->owner])
        return s->held[a->owner] > s->held[b->owner];
    if (a->phase != b->phase)
        return a->phase < b->phase;
    return a->since_ms < b->since_ms;
}

/* Over the limit, closes a connection without a running answer to admit the new one. The lock is
 * held. */
static void make_room(server *s, const connection *came)
{
    connection *first = NULL;
    if (s->connected <= s->options->connections)
        return;
    for (connection *c = s->connections; c != NULL; c = c->next)
        if (c != came && !c->gone && c->phase != PHASE_ANSWER &&
            (first == NULL || yields_before(s, c, first)))
            first = c;
    if (first != NULL)
        hang_up(s, first);
}

void note_key(connection *c, size_t key)
{
    server *s = c->server;
    if (key == 0)
        return;
    pthread_mutex_lock(&s->lock);
    s->held[c->owner] -= !c->gone;
    c->owner = (unsigned)(hash_bytes(1, &key, sizeof key) % OWNERS);
    c->has_key = true;
    s->held[c->owner] += !c->gone;
    pthread_mutex_unlock(&s->lock);
}

static void add_connection(server *s, struct MHD_Connection *mhd, void **socket_ctx)
{
    const union MHD_ConnectionInfo *fd =
        MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_CONNECTION_FD);
    const union MHD_ConnectionInfo *address =
        MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    connection *c = calloc(1, sizeof *c);
    *socket_ctx = c;
    if (c == NULL)
        return; /* handle_request refuses it */
    c->server = s;
    c->mhd = mhd;
    c->fd = fd->connect_fd;
    c->phase = PHASE_HEADERS; /* a new connection should send a request at once */
    c->since_ms = now_ms();
    snprintf(c->peer, sizeof c->peer, "-");
    if (address != NULL)
        name_peer(c->peer, sizeof c->peer, address->client_addr);
    c->owner = (unsigned)(hash_bytes(0, c->peer, strlen(c->peer)) % OWNERS);
    pthread_mutex_lock(&s->lock);
    c->next = s->connections;
    s->connections = c;
    s->connected++;
    s->held[c->owner]++;
    make_room(s, c);
    pthread_mutex_unlock(&s->lock);
}

static void drop_connection(server *s, connection *c)
{
    if (c == NULL)
        return;
    pthread_mutex_lock(&s->lock);
    connection **at = &s->connections;
    while (*at != c)
        at = &(*at)->next;
    *at = c->next;
    s->connected -= !c->gone;
    s->held[c->owner] -= !c->gone;
    pthread_mutex_unlock(&s->lock);
    free(c);
}

void on_connection(void *ctx, struct MHD_Connection *mhd, void **socket_ctx,
                   enum MHD_ConnectionNotificationCode what)
{
    server *s = ctx;
    if (what == MHD_CONNECTION_NOTIFY_STARTED) {
        add_connection(s, mhd, socket_ctx);
    } else {
        drop_connection(s, *socket_ctx);
        *socket_ctx = NULL;
    }
}

void set_phase(connection *c, phase p)
{
    pthread_mutex_lock(&c->server->lock);
    c->phase = p;
    c->since_ms = now_ms();
    pthread_mutex_unlock(&c->server->lock);
}

/* ---- limits ---- */

/* `then` may be later than `now` if another thread recorded it. */
static uint64_t since(uint64_t then, uint64_t now) { return now > then ? now - then : 0; }

/* Whether the connection has exceeded the time limit of its phase. */
static bool is_slow(const server *s, const connection *c, uint64_t now)
{
    const serve_options *o = s->options;
    const uint64_t took = since(c->since_ms, now);
    const int most_s[] = {
        [PHASE_IDLE] = o->idle_s, [PHASE_HEADERS] = o->header_s, [PHASE_BODY] = o->body_s};
    if (c->phase != PHASE_ANSWER)
        return took > 1000 * (uint64_t)most_s[c->phase];
    const uint64_t stalled = atomic_load(&c->request->stalled_ms);
    return stalled != 0 && since(stalled, now) > 1000 * (uint64_t)o->stall_s;
}

/* Whether the client has closed its end, even if data it sent before is unread. */
static bool hung_up(const connection *c)
{
    struct pollfd fd = {.fd = c->fd, .events = POLLRDHUP};
    return c->phase == PHASE_ANSWER && poll(&fd, 1, 0) > 0;
}

/* Whether a stream has been silent for PING_MS. */
static bool needs_ping(const request *r, uint64_t now)
{
    return r->streamed && since(atomic_load(&r->pinged_ms), now) > PING_MS;
}

enum { AT_ONCE = 64 /* connections resumed per scan */ };

/* Closes slow connections and those that hung up, and lists up to AT_ONCE connections to resume. */
static int scan_connections(server *s, struct MHD_Connection *resume[AT_ONCE])
{
    const uint64_t now = now_ms();
    int count = 0;
    pthread_mutex_lock(&s->lock);
    for (connection *c = s->connections; c != NULL; c = c->next) {
        if (!c->gone && (is_slow(s, c, now) || hung_up(c)))
            hang_up(s, c);
        if (count == AT_ONCE || !c->suspended)
            continue;
        request *r = c->request; /* neither can be freed before the connection is resumed */
        if (!atomic_load(&r->ready) && !c->gone && !needs_ping(r, now))
            continue;
        c->suspended = false;
        atomic_store(&r->ready, false);
        resume[count++] = c->mhd;
    }
    pthread_mutex_unlock(&s->lock);
    return count;
}

/* Lists the wake pipe, and the sockets that are being answered, to notice hang-ups. */
static nfds_t list_sockets(server *s, struct pollfd *fds, nfds_t most)
{
    nfds_t count = 1;
    fds[0] = (struct pollfd){.fd = s->wake[0], .events = POLLIN};
    pthread_mutex_lock(&s->lock);
    for (const connection *c = s->connections; c != NULL && count < most; c = c->next)
        if (c->phase == PHASE_ANSWER && !c->gone)
            fds[count++] = (struct pollfd){.fd = c->fd, .events = POLLRDHUP};
    pthread_mutex_unlock(&s->lock);
    return count;
}

/* ---- signals ---- */

static atomic_int received;
static server *signalled_server;

static void on_signal(int number)
{
    (void)number;
    atomic_fetch_add(&received, 1);
    wake_watcher(signalled_server);
}

static struct sigaction before[2];

void watch_signals(server *s)
{
    struct sigaction action = {.sa_handler = on_signal};
    atomic_store(&received, 0);
    signalled_server = s;
    sigemptyset(&action.sa_mask);
    sigaction(SIGTERM, &action, &before[0]);
    sigaction(SIGINT, &action, &before[1]);
    signal(SIGPIPE, SIG_IGN);
}

void restore_signals(void)
{
    sigaction(SIGTERM, &before[0], NULL);
    sigaction(SIGINT, &before[1], NULL);
}

static void handle_signals(server *s)
{
    while (atomic_load(&s->signals) < atomic_load(&received)) {
        if (atomic_fetch_add(&s->signals, 1) == 0) {
            const MHD_socket listening = MHD_quiesce_daemon(s->daemon);
            (void)shutdown(listening, SHUT_RDWR); /* the system refuses new connections */
            s->socket = listening; /* closed after the daemon, whose thread may still use it */
            if (!s->options->quiet)
                fputs("nibble: stopping after running requests finish; signal again to stop at "
                      "once\n",
                      stderr);
        }
        nib_service_stop(s->service);
    }
}

void *run_watcher(void *ctx)
{
    server *s = ctx;
    const nfds_t most = (nfds_t)s->options->connections + SPARE + 1;
    struct pollfd *fds = calloc(most, sizeof *fds);
    struct MHD_Connection *resume[AT_ONCE];
    char bytes[256];
    while (!atomic_load(&s->over)) {
        struct pollfd one;
        nfds_t count = fds != NULL ? list_sockets(s, fds, most) : list_sockets(s, &one, 1);
        poll(fds != NULL ? fds : &one, count, TICK_MS);
        while (read(s->wake[0], bytes, sizeof bytes) == sizeof bytes)
            ;
        handle_signals(s);
        for (int n = AT_ONCE; n == AT_ONCE;) {
            n = scan_connections(s, resume);
            for (int i = 0; i < n; i++)
                MHD_resume_connection(resume[i]);
        }
    }
    free(fds);
    return NULL;
}
