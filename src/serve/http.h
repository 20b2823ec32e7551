/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of the HTTP side share: connections, the request that each one has, and the thread
 * that watches them.
 *
 * Four threads. libmicrohttpd's reads and writes sockets and is in every handler; the watcher wakes
 * connections for which there is something to send, ends those that are too slow, and notices those
 * that hung up; the main thread runs the service, which has one of its own that prepares requests;
 * both of these say when there is something to send. The server's lock guards the list of
 * connections and their marks. It is never held while the service or libmicrohttpd is called, which
 * have locks of their own.
 */
#ifndef NIB_HTTP_H
#define NIB_HTTP_H

#include "serve.h"

#include <microhttpd.h>
#include <pthread.h>
#include <stdatomic.h>

enum {
    SPARE = 64,   /* connections over the limit, of which as many are being closed */
    OWNERS = 4096 /* that are told apart; two that share a hash count as one */
};

typedef struct connection connection;
typedef struct request request;

typedef enum phase {
    PHASE_IDLE,    /* nothing is asked */
    PHASE_HEADERS, /* they come */
    PHASE_BODY,    /* headers are there, the body comes */
    PHASE_ANSWER,  /* the request is being answered */
} phase;

struct connection {
    connection *next;
    server *server;
    struct MHD_Connection *mhd;
    int fd;
    char peer[64];
    unsigned owner; /* whose it is: a hash of the key, or while none was shown, of the peer */
    bool has_key;   /* a request on it came with one */
    phase phase;
    uint64_t since_ms; /* of the phase */
    bool suspended;    /* by its handler; the watcher resumes it */
    bool gone;         /* it hung up, or was too slow */
    request *request;  /* NULL: none */
};

/* What is asked on a connection, from its headers to the end of its answer. */
struct request {
    connection *connection;
    char *method, *url; /* as they came */
    char *body;
    size_t size, capacity;
    bool too_long, failed;
    size_t key;    /* the one that it came with, from 1 on; 0: none, or none is wanted */
    bool unlogged; /* someone probes health, or reads metrics */
    bool closing;  /* nothing that comes behind it is a request */
    int http;
    size_t sent, paced; /* bytes of the answer; of them, when it was last as fast as it must be */
    nib_call *call;     /* NULL: answered from `text` */
    const char *text;   /* [text_size] */
    size_t text_size;
    char *owned;       /* the text, where it is the request's */
    atomic_bool ready; /* set by the service: there is more to send */
    /* of the watcher, in milliseconds: when something to send began to wait, 0: nothing does */
    _Atomic uint64_t stalled_ms, pinged_ms;
    bool streamed;
};

struct server {
    nib_service *service;
    const serve_options *options;
    int socket; /* bound, or shut down; -1: the daemon's */
    struct MHD_Daemon *daemon;
    bool locked; /* there is a lock */
    pthread_mutex_t lock;
    pthread_t watcher;
    connection *connections;
    int connected;    /* of them, those that are not gone */
    int held[OWNERS]; /* of these, by owner */
    int wake[2];      /* a pipe to the watcher */
    char host[64];
    int port;
    atomic_bool over;   /* the service has ended */
    atomic_int signals; /* how often the process was asked to end, so far seen */
};

enum { PING_MS = 15000 /* a stream that has nothing to say says so, so that proxies keep it */ };

uint64_t now_ms(void);
uint64_t hash_bytes(uint64_t before, const void *bytes, size_t size);
/* Wakes the watcher; from any thread and from a signal's handler. */
void wake_watcher(const server *s);

/* ---- http_watch.c ---- */

void *watch(void *ctx);
/* SIGTERM and SIGINT end the server from now on. */
void watch_signals(server *s);
/* They are again what they were: the server goes. */
void leave_signals(void);
/* libmicrohttpd tells of connections. */
void note_connection(void *ctx, struct MHD_Connection *mhd, void **socket_ctx,
                     enum MHD_ConnectionNotificationCode what);
void set_phase(connection *c, phase p);
/* From now on the connection counts as this key's (1 is the first key); 0: no change. */
void note_key(connection *c, size_t key);

/* ---- http_handle.c ---- */

/* libmicrohttpd tells of a request's first line, the headers of which follow. */
void *note_line(void *ctx, const char *uri, struct MHD_Connection *mhd);
enum MHD_Result handle(void *ctx, struct MHD_Connection *mhd, const char *url, const char *method,
                       const char *version, const char *data, size_t *size, void **request_ctx);
void note_end(void *ctx, struct MHD_Connection *mhd, void **request_ctx,
              enum MHD_RequestTerminationCode why);

/* ---- http_framing.c ---- */

/* Why the end of the request's body is ambiguous; NULL: it is not. */
const char *framing_fault(struct MHD_Connection *mhd, const char *version);

/* ---- page.c ---- */

/* A file of the page, by its path; NULL: there is none. */
typedef struct page_file {
    const char *path, *type;
    const unsigned char *bytes;
    size_t size;
} page_file;
/* Made from web/ when the program is built. */
extern const page_file page_files[];
extern const size_t page_count;
const page_file *page_find(const char *path);

#endif
