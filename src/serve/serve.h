/* SPDX-License-Identifier: Apache-2.0
 *
 * The HTTP side of `nibble serve`: bytes between sockets and a service, and the limits of both. It
 * sees nibble.h only; libmicrohttpd does the protocol.
 */
#ifndef NIB_SERVE_H
#define NIB_SERVE_H

#include "nibble.h"

/* Keys that open the routes, one line each. */
typedef struct serve_keys {
    char **items;
    size_t count;
} serve_keys;

typedef struct serve_options {
    const char *host; /* an address; NULL: 127.0.0.1 */
    int port;         /* 0: any that is free */
    const serve_keys *keys;
    nib_strings origins; /* pages of other origins that may ask; none by default */
    size_t body_limit;   /* bytes of a request's body */
    int connections;     /* at once, at most */
    int header_s, body_s, idle_s, stall_s; /* seconds that a client may take, each */
    bool insecure;                         /* any host may ask, without a key */
    bool share_prefixes;                   /* between keys, too */
    bool quiet;                            /* no line per request */
} serve_options;

typedef struct server server;

/* Takes the address, so that a wrong one is said before a model is loaded; who connects is refused
 * until `serve`. The options live as long. */
nib_status serve_open(server **out, const serve_options *options, nib_err *err);
void serve_close(server *server);
/* Takes requests until the process is asked to end (SIGTERM, SIGINT), then lets those that run
 * finish; asked again it ends at once. The calling thread runs the service. Once. */
nib_status serve(server *server, nib_service *service, nib_err *err);

/* Reads keys from a file that others cannot read: a line each, blank lines and those that begin
 * with # left out. */
nib_status serve_keys_read(serve_keys *out, const char *path, nib_err *err);
void serve_keys_free(serve_keys *keys);
/* Which of the keys a header "Authorization: Bearer KEY" has (NULL: none came): 1 for the first; 0:
 * none of them. Takes as long whichever it is. */
size_t serve_keys_find(const serve_keys *keys, const char *authorization);

/* "nibble: sentence" as an error of the program. */
nib_status serve_fail(nib_err *err, nib_status status, const char *format, ...) NIB_PRINTF(3, 4);

#endif
