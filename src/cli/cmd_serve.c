/* SPDX-License-Identifier: Apache-2.0
 *
 * nibble serve: serves a model over HTTP.
 */
#include "cli.h"
#include "serve.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    PARALLEL = 8,
    PARALLEL_MOST = 1024,
    QUEUE_MOST = 1000000,
    PORT = 8080,
    PORT_MOST = 65535,
    CONNECTIONS = 512
};

/* As a browser sends it, since it is compared byte by byte: https://example.org:8443, or null. */
static bool is_origin(const char *text)
{
    const char *name = strstr(text, "://");
    return strcmp(text, "null") == 0 ||
           (name != NULL && name > text && name[3] != '\0' && strpbrk(name + 3, "/?# ") == NULL);
}

/* Takes --state-cache DIR:SIZE apart; *directory is allocated, NULL: it was not given. */
static int split_state_cache(const char *value, char **directory, unsigned long long *bytes)
{
    *directory = NULL;
    *bytes = 0;
    if (value == NULL)
        return 0;
    const char *colon = strrchr(value, ':');
    if (colon == NULL || colon == value || !parse_bytes(bytes, colon + 1))
        return fail_usage("--state-cache: \"%s\" is not a directory and a size, such as "
                          "/var/cache/nibble:20GB",
                          value);
    *directory = strndup(value, (size_t)(colon - value));
    return *directory != NULL ? 0
                              : fail(&(nib_err){NIB_NO_MEMORY, "out of memory while reading "
                                                               "options"});
}

static int check_settings(const settings *s)
{
    for (size_t i = 0; i < s->origins.count; i++)
        if (!is_origin(s->origins.items[i]))
            return fail_usage("--allow-origin: \"%s\" is not an origin, such as "
                              "https://example.org or http://localhost:3000, without a path",
                              s->origins.items[i]);
    if (s->parallel == 0 || s->parallel > PARALLEL_MOST)
        return fail_usage("--parallel: %lld is not between 1 and %d", s->parallel, PARALLEL_MOST);
    if (s->queue == 0)
        return fail_usage("--queue: 0 is not between 1 and %d: every request waits until its text "
                          "is tokenized",
                          QUEUE_MOST);
    if (s->queue > QUEUE_MOST)
        return fail_usage("--queue: %lld is not between 1 and %d", s->queue, QUEUE_MOST);
    if (s->port > PORT_MOST)
        return fail_usage("--port: %lld is over %d", s->port, PORT_MOST);
    if (s->connections == 0 || s->connections > 100000)
        return fail_usage("--connections: %lld is not between 1 and 100000", s->connections);
    char *directory;
    unsigned long long bytes;
    const int status = split_state_cache(s->state_cache, &directory, &bytes);
    free(directory);
    return status;
}

/* Requests without a seed get one derived from this, which differs between servers. */
static uint64_t draw_seed(void)
{
    uint64_t seed = 0;
    FILE *random = fopen("/dev/urandom", "rb");
    if (random != NULL) {
        if (fread(&seed, sizeof seed, 1, random) != 1)
            seed = 0;
        fclose(random);
    }
    return seed;
}

static serve_options serve_options_of(const settings *s, const serve_keys *keys)
{
    return (serve_options){
        .host = s->host,
        .port = s->port < 0 ? PORT : (int)s->port,
        .keys = keys,
        .origins = {.items = s->origins.items, .count = s->origins.count},
        .body_limit = s->body_limit != 0 ? (size_t)s->body_limit : 8000000,
        .connections = s->connections < 0 ? CONNECTIONS : (int)s->connections,
        .header_s = 10,
        .body_s = 30,
        .idle_s = 60,
        .stall_s = 30,
        .insecure = s->insecure,
        .share_prefixes = s->share_prefixes,
        .quiet = s->quiet,
    };
}

static int run_service(const run_context *r, const settings *s, server *http,
                       const char *template_text)
{
    char *directory;
    unsigned long long bytes;
    const int refused = split_state_cache(s->state_cache, &directory, &bytes);
    if (refused != 0)
        return refused;
    const nib_service_options options = {.name = s->name,
                                         .chat_template = template_text,
                                         .queue = s->queue < 0 ? 0 : s->queue, /* 0: the default */
                                         .limit_s = s->time_limit,
                                         .seed = draw_seed(),
                                         .state_cache = directory,
                                         .state_cache_bytes = bytes};
    nib_service *service;
    nib_err err;
    nib_status status = nib_service_open(&service, r->session, &options, &err);
    free(directory);
    if (status == NIB_OK) {
        print_chat_note(r, s);
        status = serve(http, service, &err);
        nib_service_close(service);
    }
    return status == NIB_OK ? 0 : fail(&err);
}

static int open_and_run(const settings *s, const char *path, server *http,
                        const char *template_text)
{
    nib_engine *engine;
    run_context r;
    int status = open_engine(&engine, s);
    if (status != 0)
        return status;
    nib_request request = request_of(s);
    request.sequences = s->parallel < 0 ? PARALLEL : s->parallel;
    status = open_run(&r, engine, s, path, &request);
    if (status == 0) {
        clear_progress();
        const int ended = run_service(&r, s, http, template_text);
        const int said = print_summary(&r, s);
        status = ended != 0 ? ended : said;
        close_run(&r);
    }
    nib_engine_close(engine);
    return status;
}

int run_serve(const settings *s)
{
    const char *path = model_path(s);
    serve_keys keys = {0};
    server *http = NULL;
    nib_err err;
    if (path == NULL)
        return fail_usage("`nibble serve` needs MODEL");
    int status = check_settings(s);
    if (status == 0 && s->key_file != NULL && serve_keys_read(&keys, s->key_file, &err) != NIB_OK)
        status = fail(&err);
    char *template_text = NULL;
    if (status == 0 && s->chat_template != NULL)
        status = read_file(&template_text, s->chat_template, "the chat template");
    const serve_options options = serve_options_of(s, &keys);
    if (status == 0 && serve_open(&http, &options, &err) != NIB_OK)
        status = fail(&err);
    if (status == 0)
        status = open_and_run(s, path, http, template_text);
    serve_close(http);
    free(template_text);
    serve_keys_free(&keys);
    return status;
}
