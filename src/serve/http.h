/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by the files of the HTTP server: connections, their requests, and the thread that watches
 * them.
 *
 * Four threads: libmicrohttpd's reads and writes sockets and runs all handlers. The watcher resumes
 * connections that have something to send, closes slow ones and notices hang-ups. The main thread
 * runs the service, whose own thread prepares requests; both signal when there is something to
 * send. The server's lock guards the list of connections and their flags. It is never held while
 * calling the service or libmicrohttpd, which have their own locks.
 */
#ifndef NIB_HTTP_H
#define NIB_HTTP_H

#include "serve.h"

#include <microhttpd.h>
#include <pthread.h>
#include <stdatomic.h>

enum {
    SPARE = 64,   /* connections over the limit, while as many others are being closed */
    OWNERS = 4096 /* owners told apart; two with the same hash count as one */
};

typedef struct connection connection;
typedef struct request request;

typedef enum phase {
    PHASE_IDLE,    /* no request */
    PHASE_HEADERS, /* receiving headers */
    PHASE_BODY,    /* receiving the body */
    PHASE_ANSWER,  /* answering the request */
} phase;

struct connection {
    connection *next;
    server *server;
    struct MHD_Connection *mhd;
    int fd;
    char peer[64];
    unsigned owner; /* hash of the key, or of the peer until a key was shown */
    bool has_key;   /* a request on it had a valid key */
    phase phase;
    uint64_t since_ms; /* start of the phase */
    bool suspended;    /* by its handler; the watcher resumes it */
    bool gone;         /* hung up, or closed for being slow */
    request *request;  /* NULL: none */
};

/* A request on a connection, from its headers to the end of its answer. */
struct request {
    connection *connection;
    char *method, *url; /* not unescaped */
    char *body;
    size_t size, capacity;
    bool too_long, failed;
    size_t key;    /* number of its key, from 1; 0: no key, or none required */
    bool unlogged; /* a health probe or metrics */
    bool closing;  /* close the connection after the answer */
    int http;
    size_t sent, paced; /* bytes of the answer sent; sent when it last kept the required pace */
    nib_call *call;     /* NULL: answered from `text` */
    const char *text;   /* [text_size] */
    size_t text_size;
    char *owned;       /* the text, if the request has to free it */
    atomic_bool ready; /* set by the service: there is more to send */
    /* when unsent data began to wait (0: none waits), and the last ping; for the watcher */
    _Atomic uint64_t stalled_ms, pinged_ms;
    bool streamed;
};

struct server {
    nib_service *service;
    const serve_options *options;
    int socket; /* bound, or shut down; -1: owned by the daemon */
    struct MHD_Daemon *daemon;
    bool locked; /* the lock was initialized */
    pthread_mutex_t lock;
    pthread_t watcher;
    connection *connections;
    int connected;    /* connections that are not gone */
    int held[OWNERS]; /* the same by owner */
    int wake[2];      /* a pipe to the watcher */
    char host[64];
    int port;
    atomic_bool over;   /* the service has ended */
    atomic_int signals; /* signals to end that were handled */
};

enum { PING_MS = 15000 /* an idle stream sends a ping, so that proxies keep it open */ };

uint64_t now_ms(void);
uint64_t hash_bytes(uint64_t before, const void *bytes, size_t size);
/* Wakes the watcher. Safe in any thread and in signal handlers. */
void wake_watcher(const server *s);

/* ---- http_server.c ---- */

/* Starts the daemon with the server's limits; it takes over the socket. threads: libmicrohttpd's
 * flags for the threads that poll; 0: the caller polls (MHD_run), as the fuzz target does. */
nib_status start_daemon(server *s, unsigned threads, nib_err *err);

/* ---- http_watch.c ---- */

void *run_watcher(void *ctx);
/* Makes SIGTERM and SIGINT end the server. */
void watch_signals(server *s);
/* Restores the previous handlers. */
void restore_signals(void);
/* libmicrohttpd's callback for opened and closed connections. */
void on_connection(void *ctx, struct MHD_Connection *mhd, void **socket_ctx,
                   enum MHD_ConnectionNotificationCode what);
void set_phase(connection *c, phase p);
/* Makes the key (1 is the first) the connection's owner; 0: no change. */
void note_key(connection *c, size_t key);

/* ---- http_handle.c ---- */

/* libmicrohttpd's callbacks: for a request line, before its headers; for headers and body; for the
 * end of a request. */
void *on_request_line(void *ctx, const char *uri, struct MHD_Connection *mhd);
enum MHD_Result handle_request(void *ctx, struct MHD_Connection *mhd, const char *url,
                               const char *method, const char *version, const char *data,
                               size_t *size, void **request_ctx);
void on_request_end(void *ctx, struct MHD_Connection *mhd, void **request_ctx,
                    enum MHD_RequestTerminationCode why);

/* ---- http_framing.c ---- */

/* Why the end of the request's body is ambiguous; NULL: it is unambiguous. */
const char *framing_fault(struct MHD_Connection *mhd, const char *version);

/* ---- page.c ---- */

/* A file of the web page. */
typedef struct page_file {
    const char *path, *type;
    const unsigned char *bytes;
    size_t size;
} page_file;
/* Generated from web/ by the build. */
extern const page_file page_files[];
extern const size_t page_count;
const page_file *page_find(const char *path); /* NULL: no such file */

#endif
