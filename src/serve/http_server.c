/* SPDX-License-Identifier: Apache-2.0
 *
 * Opens, runs and closes the server: socket, libmicrohttpd's daemon, watcher, shutdown.
 */
#include "http.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum {
    CONNECTION_BYTES = 256 * 1024, /* headers (60 bytes per argument or cookie), read and write
                                      buffers of a connection */
    BACKLOG = 128,
    DRAIN_MS = 10000, /* time to send what is left when the service has ended */
    HASTE_MS = 500,   /* the same after a second signal */
};

/* ---- the socket ---- */

static bool is_loopback(const struct sockaddr *a)
{
    if (a->sa_family == AF_INET)
        return ntohl(((const struct sockaddr_in *)(const void *)a)->sin_addr.s_addr) >> 24 == 127;
    return a->sa_family == AF_INET6 &&
           IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)(const void *)a)->sin6_addr);
}

static nib_status bind_socket(int *out, const struct addrinfo *to, const char *host, int port,
                              nib_err *err)
{
    const int on = 1;
    const int fd = socket(to->ai_family, to->ai_socktype, to->ai_protocol);
    if (fd < 0 || fcntl(fd, F_SETFD, FD_CLOEXEC) < 0 || fcntl(fd, F_SETFL, O_NONBLOCK) < 0 ||
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) < 0 ||
        bind(fd, to->ai_addr, to->ai_addrlen) < 0) {
        const int why = errno;
        if (fd >= 0)
            close(fd);
        return serve_fail(err, NIB_IO, "%s, port %d: %s%s", host, port, strerror(why),
                          why == EADDRINUSE ? "; choose another one with --port" : "");
    }
    *out = fd;
    return NIB_OK;
}

/* Finds the port that the system chose for port 0. */
static nib_status find_port(server *s, nib_err *err)
{
    struct sockaddr_storage address;
    socklen_t size = sizeof address;
    if (getsockname(s->socket, (struct sockaddr *)&address, &size) != 0)
        return serve_fail(err, NIB_IO, "%s: cannot find its port: %s", s->host, strerror(errno));
    s->port = ntohs(address.ss_family == AF_INET6
                        ? ((const struct sockaddr_in6 *)(const void *)&address)->sin6_port
                        : ((const struct sockaddr_in *)(const void *)&address)->sin_port);
    return NIB_OK;
}

/* `wrong` is what getaddrinfo() returned. */
static nib_status cannot_resolve(const char *host, int wrong, nib_err *err)
{
    const bool no_memory = wrong == EAI_MEMORY || (wrong == EAI_SYSTEM && errno == ENOMEM);
    return serve_fail(err, no_memory ? NIB_NO_MEMORY : NIB_USAGE, "--host %s: %s", host,
                      wrong == EAI_SYSTEM ? strerror(errno) : gai_strerror(wrong));
}

static nib_status open_socket(server *s, nib_err *err)
{
    const serve_options *o = s->options;
    const char *host = o->host != NULL ? o->host : "127.0.0.1";
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE};
    struct addrinfo *found = NULL;
    char port[16];
    snprintf(port, sizeof port, "%d", o->port);
    snprintf(s->host, sizeof s->host, "%s", host);
    const int wrong = getaddrinfo(host, port, &hints, &found);
    if (wrong != 0)
        return cannot_resolve(host, wrong, err);
    nib_status status = NIB_OK;
    if (!is_loopback(found->ai_addr) && o->keys->count == 0 && !o->insecure)
        status = serve_fail(err, NIB_USAGE,
                            "--host %s lets other machines in, but there is no key; give "
                            "--api-key-file FILE or --insecure",
                            host);
    if (status == NIB_OK)
        status = bind_socket(&s->socket, found, host, o->port, err);
    freeaddrinfo(found);
    return status == NIB_OK ? find_port(s, err) : status;
}

/* ---- threads ---- */

/* Leaves %NN escapes in paths: no path of this server needs %2e or %00. */
static size_t keep_escapes(void *ctx, struct MHD_Connection *mhd, char *text)
{
    (void)ctx;
    (void)mhd;
    return strlen(text);
}

nib_status start_daemon(server *s, unsigned threads, nib_err *err)
{
    const serve_options *o = s->options;
    const int fd = s->socket;
    if (listen(fd, BACKLOG) < 0)
        return serve_fail(err, NIB_IO, "%s, port %d: %s", s->host, s->port, strerror(errno));
    errno = 0;
    s->daemon = MHD_start_daemon(
        threads | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ITC, 0, NULL, NULL, handle_request, s,
        MHD_OPTION_LISTEN_SOCKET, fd, MHD_OPTION_CONNECTION_LIMIT, (unsigned)o->connections + SPARE,
        MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)o->idle_s, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
        (size_t)CONNECTION_BYTES, MHD_OPTION_STRICT_FOR_CLIENT, 1, MHD_OPTION_UNESCAPE_CALLBACK,
        keep_escapes, NULL, MHD_OPTION_NOTIFY_CONNECTION, on_connection, s,
        MHD_OPTION_NOTIFY_COMPLETED, on_request_end, s, MHD_OPTION_URI_LOG_CALLBACK,
        on_request_line, s, MHD_OPTION_END);
    if (s->daemon != NULL) {
        s->socket = -1;
        return NIB_OK;
    }
    const int why = errno;
    return serve_fail(err, why == ENOMEM ? NIB_NO_MEMORY : NIB_FAILED,
                      "cannot start the HTTP server: %s",
                      why != 0 ? strerror(why) : "libmicrohttpd gives no reason");
}

static nib_status open_pipe(server *s, nib_err *err)
{
    if (pipe(s->wake) != 0)
        return serve_fail(err, NIB_NO_MEMORY, "cannot open a pipe: %s", strerror(errno));
    for (int i = 0; i < 2; i++) {
        fcntl(s->wake[i], F_SETFL, O_NONBLOCK);
        fcntl(s->wake[i], F_SETFD, FD_CLOEXEC);
    }
    return NIB_OK;
}

/* Gives finished answers, and the errors of interrupted streams, a little time to be sent. */
static void drain(server *s)
{
    const uint64_t began = now_ms();
    bool busy = true;
    while (busy &&
           now_ms() - began < (uint64_t)(atomic_load(&s->signals) < 2 ? DRAIN_MS : HASTE_MS)) {
        const struct timespec moment = {.tv_nsec = 20 * 1000 * 1000};
        busy = false;
        pthread_mutex_lock(&s->lock);
        for (const connection *c = s->connections; c != NULL; c = c->next)
            busy = busy || c->phase == PHASE_ANSWER;
        pthread_mutex_unlock(&s->lock);
        if (busy)
            nanosleep(&moment, NULL);
    }
}

/* Resumes all suspended connections, as libmicrohttpd requires before it stops. */
static void resume_all(server *s)
{
    for (;;) {
        struct MHD_Connection *mhd = NULL;
        pthread_mutex_lock(&s->lock);
        for (connection *c = s->connections; c != NULL && mhd == NULL; c = c->next) {
            c->gone = true;
            if (c->suspended)
                mhd = c->mhd;
            c->suspended = false;
        }
        pthread_mutex_unlock(&s->lock);
        if (mhd == NULL)
            return;
        MHD_resume_connection(mhd);
    }
}

static void print_address(const server *s)
{
    const bool six = strchr(s->host, ':') != NULL;
    if (!s->options->quiet)
        fprintf(stderr, "nibble: serving %s at http://%s%s%s:%d/\n", nib_service_name(s->service),
                six ? "[" : "", s->host, six ? "]" : "", s->port);
}

nib_status serve(server *s, nib_service *service, nib_err *err)
{
    s->service = service;
    const nib_status status = start_daemon(s, MHD_USE_AUTO | MHD_USE_INTERNAL_POLLING_THREAD, err);
    if (status != NIB_OK)
        return status;
    watch_signals(s);
    const int wrong = pthread_create(&s->watcher, NULL, run_watcher, s);
    if (wrong == 0) {
        print_address(s);
        nib_service_run(s->service);
        drain(s);
        atomic_store(&s->over, true);
        wake_watcher(s);
        pthread_join(s->watcher, NULL);
        resume_all(s);
    }
    MHD_stop_daemon(s->daemon);
    restore_signals();
    return wrong == 0
               ? nib_service_status(service, err)
               : serve_fail(err, NIB_NO_MEMORY, "cannot create a thread: %s", strerror(wrong));
}

nib_status serve_open(server **out, const serve_options *options, nib_err *err)
{
    server *s = calloc(1, sizeof *s);
    if (s == NULL)
        return serve_fail(err, NIB_NO_MEMORY, "cannot allocate the server");
    s->options = options;
    s->socket = s->wake[0] = s->wake[1] = -1;
    atomic_init(&s->over, false);
    atomic_init(&s->signals, 0);
    s->locked = pthread_mutex_init(&s->lock, NULL) == 0;
    nib_status status =
        s->locked ? open_pipe(s, err) : serve_fail(err, NIB_NO_MEMORY, "cannot create a lock");
    if (status == NIB_OK)
        status = open_socket(s, err);
    if (status != NIB_OK) {
        serve_close(s);
        return status;
    }
    *out = s;
    return NIB_OK;
}

void serve_close(server *s)
{
    if (s == NULL)
        return;
    const int fds[] = {s->socket, s->wake[0], s->wake[1]};
    for (size_t i = 0; i < sizeof fds / sizeof *fds; i++)
        if (fds[i] >= 0)
            close(fds[i]);
    if (s->locked)
        pthread_mutex_destroy(&s->lock);
    free(s);
}
