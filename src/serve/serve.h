/* SPDX-License-Identifier: Apache-2.0
 *
 * The HTTP server of `nibble serve`: passes bytes between sockets and a service and enforces
 * limits. It includes only nibble.h of the library; libmicrohttpd implements HTTP.
 */
#ifndef NIB_SERVE_H
#define NIB_SERVE_H

#include "nibble_tools.h"

/* API keys. */
typedef struct serve_keys {
    char **items;
    size_t count;
} serve_keys;

typedef struct serve_options {
    const char *host; /* an address; NULL: 127.0.0.1 */
    int port;         /* 0: any free port */
    const serve_keys *keys;
    nib_strings origins; /* other origins whose pages may send requests; none by default */
    size_t body_limit;   /* bytes of a request's body */
    int connections;     /* maximum */
    int header_s, body_s, idle_s, stall_s; /* time limits of a client in seconds */
    bool insecure;                         /* allow other hosts without a key */
    bool share_prefixes;                   /* share cached prompt prefixes between keys */
    bool quiet;                            /* no line per request */
} serve_options;

typedef struct server server;

/* Binds the address, so that a wrong one is an error before a model is loaded. Connections are
 * refused until `serve`. The options must outlive the server. */
nib_status serve_open(server **out, const serve_options *options, nib_err *err);
void serve_close(server *server);
/* Serves requests until SIGTERM or SIGINT, then lets running requests finish; a second signal ends
 * them at once. Runs the service on the calling thread. Call once. */
nib_status serve(server *server, nib_service *service, nib_err *err);

/* Reads keys, one per line, from a file that others cannot read. Skips blank lines and lines that
 * begin with #. */
nib_status serve_keys_read(serve_keys *out, const char *path, nib_err *err);
void serve_keys_free(serve_keys *keys);
/* The number of the key in a header "Authorization: Bearer KEY" (NULL: no header), 1 for the first;
 * 0: none of them. Takes constant time. */
size_t serve_keys_find(const serve_keys *keys, const char *authorization);

/* Fills in err, which is not NULL, and returns the status. */
nib_status serve_fail(nib_err *err, nib_status status, const char *format, ...) NIB_PRINTF(3, 4);

#endif
