/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads curves; implements nib_plot.
 */
#include "plot.h"
#include "public_struct.h"

#include "file.h"
#include "json.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

enum { METRICS_MAX = 1 << 30 };

/* Larger values are not drawn, nor are infinities and NaN. */
#define LARGEST 1e300

typedef struct reader {
    const nib_engine *engine;
    const char *path, *value;
    nib_curve *out;
    size_t capacity; /* of both arrays */
} reader;

/* Reads a line; *step 0 or *y NaN: the line does not have it. */
static nib_status read_line(int64_t *step, double *y, const reader *r, int64_t number,
                            const char *line, size_t size, nib_err *err)
{
    char shown[NIB_SHOWN];
    nib_json json;
    nib__json_init(&json, nib__escape_string(shown, r->path), line, size, NULL);
    json.line = (uint64_t)number;
    *step = 0;
    *y = NAN;
    bool ok = nib__json_expect(&json, NIB_JSON_OBJECT);
    while (ok && nib__json_next(&json) == NIB_JSON_KEY) {
        if (nib__json_is(&json, "step")) {
            ok = nib__json_read_int64(&json, 0, INT64_C(1) << 50, step);
        } else if (!nib__json_is(&json, r->value)) {
            ok = nib__json_skip(&json);
        } else if (nib__json_next(&json) != NIB_JSON_NULL) {
            if (json.event != NIB_JSON_NUMBER)
                nib__json_fail(&json, "the value is not a number");
            ok = json.event != NIB_JSON_ERROR && nib__json_double(&json, y);
        }
    }
    if (json.event == NIB_JSON_OBJECT_END)
        nib__json_next(&json);
    return nib__json_status(&json, err);
}

/* An upper bound of the points in a text: one per line, and no line is shorter than this one. */
static size_t max_points(const char *text, size_t size)
{
    static const char shortest[] = "{\"step\":1,\"\":1}\n";
    size_t lines = 1;
    for (size_t i = 0; i < size; i++)
        lines += text[i] == '\n';
    const size_t fit = (size + 1) / (sizeof shortest - 1);
    return lines < fit ? lines : fit;
}

/* Logs a torn last line, which a running or killed process may leave. */
static void log_torn(const reader *r, int64_t number)
{
    char line[NIB_SHOWN + 96], shown[NIB_SHOWN];
    snprintf(line, sizeof line, "%s: line %" PRId64 ", the last, is incomplete and was skipped",
             nib__escape_string(shown, r->path), number);
    if (r->engine->callbacks.log)
        r->engine->callbacks.log(r->engine->callbacks.ctx, line);
}

static nib_status read_lines(reader *r, const char *text, size_t size, nib_err *err)
{
    int64_t number = 0;
    for (size_t at = 0; at < size;) {
        const char *end = memchr(text + at, '\n', size - at);
        const size_t length = (end ? (size_t)(end - text) : size) - at;
        int64_t step;
        double y;
        const nib_status status = read_line(&step, &y, r, ++number, text + at, length, err);
        if (status != NIB_OK && end)
            return status;
        if (status != NIB_OK)
            log_torn(r, number);
        if (status == NIB_OK && step > 0 && fabs(y) < LARGEST && r->out->count < r->capacity) {
            r->out->x[r->out->count] = (double)step;
            r->out->y[r->out->count++] = y;
        }
        at += length + 1;
    }
    return NIB_OK;
}

/* The name of a run: its path without the usual file name. */
static const char *copy_run_name(const char *path, nib_arena *arena)
{
    static const char usual[] = "/metrics.jsonl";
    size_t size = strlen(path);
    if (nib__ends_with(path, usual))
        size -= sizeof usual - 1;
    while (size > 1 && path[size - 1] == '/')
        size--;
    return nib__arena_copy(arena, path, size);
}

nib_status nib__curve_read(nib_curve *out, const char *path, const char *value,
                           const nib_engine *engine, nib_arena *arena, nib_err *err)
{
    const nib_allocator *a = &engine->allocator;
    reader r = {.engine = engine, .path = path, .value = value, .out = out};
    char *text, shown[NIB_SHOWN];
    size_t size;
    *out = (nib_curve){.name = copy_run_name(path, arena)};
    if (nib__path_kind(path) == NIB_PATH_DIRECTORY)
        r.path = nib__path_join(arena, path, "metrics.jsonl");
    if (!out->name || !r.path)
        return nib__fail_memory(err, strlen(path), "a path");
    NIB_TRY(nib__file_read(&text, &size, r.path, METRICS_MAX, a, err));
    r.capacity = max_points(text, size);
    out->x = nib__arena_take(arena, r.capacity, sizeof *out->x);
    out->y = nib__arena_take(arena, r.capacity, sizeof *out->y);
    const nib_status status = out->x && out->y
                                  ? read_lines(&r, text, size, err)
                                  : nib__fail_memory(err, r.capacity * sizeof *out->x, r.path);
    nib__release(a, text);
    if (status == NIB_OK && out->count == 0)
        return nib__fail(err, NIB_BAD_INPUT, "%s: no line has a step and a number \"%s\"",
                         nib__escape_string(shown, r.path), value);
    return status;
}

/* ---- the call ---- */

/* Checks that the plot does not replace a run that it shows. */
static nib_status check_out(const nib_plot_options *o, nib_arena *arena, nib_err *err)
{
    char shown[NIB_SHOWN];
    for (size_t i = 0; o->out && i < o->runs.count; i++) {
        const char *run = o->runs.items[i], *inside = nib__path_join(arena, run, "metrics.jsonl");
        if (!inside)
            return nib__fail_memory(err, strlen(run), "a path");
        if (nib__path_same(o->out, run) || nib__path_same(o->out, inside))
            return nib__fail(err, NIB_EXISTS,
                             "%s: the plot would overwrite a run that it shows; name another file",
                             nib__escape_string(shown, o->out));
    }
    return NIB_OK;
}

static nib_status draw(nib_text *svg, nib_engine *engine, const nib_plot_options *o,
                       nib_arena *arena, nib_err *err)
{
    nib_curve curves[NIB_PLOT_RUNS];
    const char *value = o->value ? o->value : "loss";
    for (size_t i = 0; i < o->runs.count; i++)
        NIB_TRY(nib__curve_read(&curves[i], o->runs.items[i], value, engine, arena, err));
    return nib__plot_draw(svg, curves, o->runs.count, value, o->smooth, arena, err);
}

nib_status nib_plot(nib_engine *engine, const nib_plot_options *options, const nib_sink *sink,
                    nib_err *err)
{
    NIB_NEED(err, "engine", engine);
    NIB_TRY(nib__sink_check(sink, err));
    NIB_OPTIONS(nib_plot_options, o, options, err);
    NIB_TRY(nib__strings_check("nib_plot_options.runs", &o.runs, err));
    nib_arena arena;
    nib_text svg;
    if (o.runs.count < 1 || o.runs.count > NIB_PLOT_RUNS)
        return nib__fail(err, NIB_USAGE, "%zu runs; a plot takes 1 to %d", o.runs.count,
                         NIB_PLOT_RUNS);
    if (o.smooth < 0 || o.smooth > NIB_PLOT_SMOOTH)
        return nib__fail(err, NIB_USAGE,
                         "smooth is %" PRId64 "; a mean over 0 to %d points is drawn", o.smooth,
                         NIB_PLOT_SMOOTH);
    nib__arena_init(&arena, &engine->allocator, 0);
    nib__text_init(&svg, &engine->allocator);
    nib_status status = check_out(&o, &arena, err);
    if (status == NIB_OK)
        status = draw(&svg, engine, &o, &arena, err);
    if (status == NIB_OK)
        status = o.out ? nib__file_replace(o.out, svg.at, svg.size, &engine->allocator, err)
                       : nib__text_flush(&svg, sink, err);
    nib__text_free(&svg);
    nib__arena_free(&arena);
    return status;
}
