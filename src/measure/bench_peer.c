/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs a peer's benchmark and parses its JSON: a list with an object for each test. Unknown members
 * are ignored, and wanted ones may be missing, since forks write others.
 */
#include "bench_peer.h"

#include "checkpoint.h"
#include "file.h"
#include "json.h"
#include "process.h"

#include <inttypes.h>
#include <stdio.h>

enum { OUTPUT_LIMIT = 4 << 20 };

/* ---- its JSON ---- */

typedef struct peer_test {
    double prompt, fresh; /* tokens */
    double tokens_per_s, ns;
} peer_test;

/* Reads a number; skips any other value. */
static bool read_number(nib_json *json, double *out)
{
    const nib_json_event event = nib__json_next(json);
    if (event == NIB_JSON_NUMBER)
        return nib__json_double(json, out);
    return event != NIB_JSON_ERROR && nib__json_skip(json);
}

static bool read_string(nib_json *json, nib_arena *arena, char *out, size_t size)
{
    const nib_json_event event = nib__json_next(json);
    if (event != NIB_JSON_STRING)
        return event != NIB_JSON_ERROR && nib__json_skip(json);
    const char *words = nib__json_string(json, arena, NULL);
    if (words != NULL)
        snprintf(out, size, "%s", words);
    return words != NULL;
}

static bool read_member(nib_json *json, nib_arena *arena, peer_test *test, nib_peer_run *out)
{
    const struct {
        const char *name;
        double *at;
    } numbers[] = {{"n_prompt", &test->prompt},
                   {"n_gen", &test->fresh},
                   {"avg_ts", &test->tokens_per_s},
                   {"avg_ns", &test->ns}};
    double bytes = 0;
    for (size_t i = 0; i < COUNT(numbers); i++)
        if (nib__json_is(json, numbers[i].name))
            return read_number(json, numbers[i].at);
    if (nib__json_is(json, "build_commit"))
        return read_string(json, arena, out->build, sizeof out->build);
    if (nib__json_is(json, "model_type"))
        return read_string(json, arena, out->type, sizeof out->type);
    if (!nib__json_is(json, "model_size"))
        return nib__json_skip(json);
    const bool ok = read_number(json, &bytes);
    if (bytes > 0 && bytes < 0x1p53)
        out->model_bytes = (uint64_t)bytes;
    return ok;
}

/* Stores the speed of a test with only a prompt, or with only new tokens. */
static void store_test(const peer_test *test, nib_peer_run *out)
{
    const double tokens = test->prompt + test->fresh;
    const double rate = test->tokens_per_s > 0 ? test->tokens_per_s
                        : test->ns > 0         ? tokens / (test->ns * 1e-9)
                                               : 0;
    if (test->prompt > 0 && test->fresh == 0)
        out->speeds.prefill_tokens_per_s = rate;
    if (test->fresh > 0 && test->prompt == 0)
        out->speeds.decode_tokens_per_s = rate;
}

static bool read_tests(nib_json *json, nib_arena *arena, nib_peer_run *out)
{
    nib_json_event event;
    if (!nib__json_expect(json, NIB_JSON_ARRAY))
        return false;
    while ((event = nib__json_next(json)) == NIB_JSON_OBJECT) {
        peer_test test = {.prompt = 0};
        while ((event = nib__json_next(json)) == NIB_JSON_KEY)
            if (!read_member(json, arena, &test, out))
                return false;
        if (event != NIB_JSON_OBJECT_END)
            return false;
        store_test(&test, out);
    }
    return event == NIB_JSON_ARRAY_END;
}

/* The start of the JSON list: a bracket at the start of a line, after other output. */
static const char *find_list(const char *text, size_t size)
{
    for (size_t i = 0; i < size; i++)
        if (text[i] == '[' && (i == 0 || text[i - 1] == '\n'))
            return text + i;
    return NULL;
}

nib_status nib__peer_parse(nib_peer_run *out, const char *name, const char *text, size_t size,
                           const nib_allocator *a, nib_err *err)
{
    const nib_json_limits limits = {.depth = 16, .events = 100000, .literals = true};
    const char *list = find_list(text, size);
    nib_arena arena;
    nib_json json;
    *out = (nib_peer_run){.model_bytes = 0};
    if (list == NULL)
        return nib__fail(err, NIB_BAD_INPUT,
                         "%s: its output has no JSON list; is it llama-bench, which takes -o json?",
                         name);
    nib__arena_init(&arena, a, OUTPUT_LIMIT);
    nib__json_init(&json, name, list, size - (size_t)(list - text), &limits);
    const bool ok = read_tests(&json, &arena, out);
    nib__arena_free(&arena);
    if (!ok && json.err.status == NIB_OK)
        return nib__fail(err, NIB_BAD_INPUT, "%s: its JSON is not a list of objects", name);
    if (!ok)
        return nib__json_status(&json, err);
    if (out->speeds.prefill_tokens_per_s > 0 && out->speeds.decode_tokens_per_s > 0)
        return NIB_OK;
    return nib__fail(
        err, NIB_BAD_INPUT,
        "%s: its JSON has no %s: expected a test with only n_prompt or only n_gen, and with "
        "avg_ts or avg_ns",
        name, out->speeds.prefill_tokens_per_s > 0 ? "speed of new tokens" : "speed of a prompt");
}

/* ---- a run ---- */

static bool report_progress(void *ctx) { return nib__engine_progress(ctx, "peer", 0, 1); }

nib_status nib__peer_run(nib_peer_run *out, const nib_engine *engine, const nib_bench_peer *peer,
                         int64_t prompt_tokens, int64_t new_tokens, nib_err *err)
{
    char threads[16], prompt[24], fresh[24];
    const char *const arguments[] = {peer->program, "-m",   peer->model, "-t",  threads,
                                     "-p",          prompt, "-n",        fresh, "-r",
                                     "1",           "-o",   "json",      NULL};
    nib_process p;
    snprintf(threads, sizeof threads, "%d", nib__pool_threads(engine->pool));
    snprintf(prompt, sizeof prompt, "%" PRId64, prompt_tokens);
    snprintf(fresh, sizeof fresh, "%" PRId64, new_tokens);
    const nib_process_job job = {.arguments = arguments,
                                 .environment = peer->environment,
                                 .limit = OUTPUT_LIMIT,
                                 .keep_going = report_progress,
                                 .ctx = (void *)engine};
    NIB_TRY(nib__process_run(&p, &job, &engine->allocator, err));
    nib_status status =
        p.status == 0 ? nib__peer_parse(out, peer->program, p.out, p.size, &engine->allocator, err)
                      : nib__fail(err, NIB_FAILED, "%s ended with status %d: %s", peer->program,
                                  p.status, p.last_line[0] ? p.last_line : "no error output");
    nib__release(&engine->allocator, p.out);
    return status;
}

/* ---- its file ---- */

void nib__peer_file(uint64_t *file_bytes, uint64_t *token_bytes, const char *path,
                    double expert_share, const nib_allocator *a)
{
    double bytes = 0;
    nib_checkpoint *cp;
    nib_map map;
    *file_bytes = *token_bytes = 0;
    if (nib__checkpoint_open(&cp, path, a, NULL) != NIB_OK) {
        if (nib__map_open(&map, path, NULL) != NIB_OK)
            return;
        *file_bytes = map.size;
        nib__map_close(&map);
        return;
    }
    *file_bytes = nib__checkpoint_bytes(cp);
    /* a table that is also the output is read whole; else only a row of it */
    const bool has_head = nib__checkpoint_find(cp, "lm_head.weight") != NULL &&
                          nib__checkpoint_alias(cp, "lm_head.weight") == NULL;
    for (size_t i = 0; i < nib__checkpoint_count(cp); i++) {
        const nib_tensor *t = nib__checkpoint_at(cp, i);
        const double share = strstr(t->name, ".experts.") != NULL ? expert_share : 1;
        if (!has_head || strcmp(t->name, "model.embed_tokens.weight") != 0)
            bytes += share * (double)t->bytes;
    }
    *token_bytes = (uint64_t)bytes;
    nib__checkpoint_close(cp);
}
