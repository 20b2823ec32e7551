/* SPDX-License-Identifier: Apache-2.0
 *
 * Plots: two small runs against a golden file (`test_plot --write` rewrites it), names and values
 * that are awkward in XML or on an axis, and lines that are not metrics.
 */
#include "plot.h"

#include "file.h"
#include "metered.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#include "refused.h"

static const char golden[] = "tests/golden/plot/two_runs.svg";
static const char *const two[] = {"tests/golden/plot/bf16.jsonl", "tests/golden/plot/mxfp8.jsonl"};

static nib_engine *engine;
static char *drawn; /* what the sink received */
static size_t drawn_size;
static char logged[512];
static char scratch[] = "/tmp/nibble-test-plot-XXXXXX"; /* a file of this process */

static nib_status receive(void *ctx, const char *bytes, size_t size)
{
    (void)ctx;
    free(drawn);
    drawn = malloc(size + 1);
    assert_non_null(drawn);
    memcpy(drawn, bytes, size);
    drawn[size] = '\0';
    drawn_size = size;
    return NIB_OK;
}

static void on_log(void *ctx, const char *line)
{
    (void)ctx;
    snprintf(logged, sizeof logged, "%s", line);
}

static nib_status plot(const nib_plot_options *options, nib_err *err)
{
    const nib_sink sink = {receive, NULL};
    logged[0] = '\0';
    return nib_plot(engine, options, &sink, err);
}

static const char *draw_text(const char *path, const char *text)
{
    nib_err err;
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
    const nib_plot_options options = {.runs = {&path, 1}};
    if (plot(&options, &err) != NIB_OK)
        fail_msg("%s", err.text);
    return drawn;
}

static void expect_refused(const char *text, nib_status status)
{
    nib_err err;
    const char *path = scratch;
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
    const nib_plot_options options = {.runs = {&path, 1}};
    refused(status, plot(&options, &err), &err);
}

/* Every tag is closed, every attribute is quoted, and the text has no other markup: all the XML
 * that plots use. */
static void expect_xml(const char *text)
{
    char open[16][32];
    size_t depth = 0;
    for (const char *at = text; *at; at++) {
        if (*at == '&')
            assert_true(strncmp(at, "&amp;", 5) == 0 || strncmp(at, "&lt;", 4) == 0 ||
                        strncmp(at, "&gt;", 4) == 0);
        assert_true((unsigned char)*at >= 0x20 || *at == '\n');
        assert_true(*at != '>');
        if (*at != '<')
            continue;
        const bool closes = at[1] == '/';
        const char *name = at + 1 + closes;
        const size_t size = strspn(name, "abcdefghijklmnopqrstuvwxyz");
        bool quoted = false;
        assert_true(size > 0 && size < sizeof open[0]);
        for (at = name + size; *at != '>' || quoted; at++) {
            assert_true(*at != '\0' && *at != '<');
            quoted ^= *at == '"';
        }
        if (closes) {
            assert_true(depth > 0);
            depth--;
            assert_true(strncmp(open[depth], name, size) == 0 && open[depth][size] == '\0');
        } else if (at[-1] != '/') {
            assert_true(depth < COUNT(open));
            memcpy(open[depth], name, size);
            open[depth++][size] = '\0';
        }
    }
    assert_int_equal(depth, 0);
}

static void test_golden(void **state)
{
    const nib_plot_options options = {.runs = {two, 2}, .smooth = 5};
    const nib_allocator a = nib__allocator_default();
    nib_err err;
    char *text = NULL;
    size_t size = 0;
    (void)state;
    if (plot(&options, &err) != NIB_OK ||
        nib__file_read(&text, &size, golden, 1 << 20, &a, &err) != NIB_OK)
        fail_msg("%s", err.text);
    expect_xml(drawn);
    assert_int_equal(size, drawn_size);
    assert_memory_equal(text, drawn, size);
    free(text);
}

static void test_awkward_names_and_values(void **state)
{
    (void)state;
    const char *svg =
        draw_text("/tmp/nibble-<a>&\"b\x01\xff.jsonl", "{\"step\": 1, \"loss\": 3}\n");
    remove("/tmp/nibble-<a>&\"b\x01\xff.jsonl");
    expect_xml(svg);
    assert_non_null(strstr(svg, "nibble-&lt;a&gt;&amp;\"b\xef\xbf\xbd\xef\xbf\xbd.jsonl: 3 at"));
    static const char *const texts[] = {
        "{\"step\": 1, \"loss\": 0}\n{\"step\": 9007199254740991, \"loss\": 1e-320}",
        "{\"step\": 5, \"loss\": -1e299}\n{\"step\": 6, \"loss\": 1e299}\n"
        "{\"step\": 7, \"loss\": "
        "1e308}",
        "{\"step\": 100000001, \"loss\": 1e-9}\n{\"step\": 100000009, \"loss\": 2e-9}\n",
        "{\"step\": 1, \"loss\": 2}\n{\"step\": 2, \"loss\": null}\n{\"step\": 3, \"other\": 1}\n",
    };
    for (size_t i = 0; i < COUNT(texts); i++) {
        svg = draw_text(scratch, texts[i]);
        expect_xml(svg);
        assert_null(strstr(svg, "nan"));
        assert_null(strstr(svg, "inf"));
    }
    assert_string_equal(logged, "");
    /* a run still being written */
    draw_text(scratch, "{\"step\": 1, \"loss\": 2}\n{\"step\": 2, \"lo");
    assert_non_null(strstr(logged, "line 2, the last, is incomplete"));
}

static void test_rejects_bad_metrics(void **state)
{
    nib_err err;
    const char *many[NIB_PLOT_RUNS + 1];
    (void)state;
    expect_refused("", NIB_BAD_INPUT);
    expect_refused("{\"step\": 1}\n", NIB_BAD_INPUT);
    expect_refused("{\"step\": 1, \"loss\": 2}\nstep 2\n", NIB_BAD_INPUT);
    expect_refused("{\"step\": 1.5, \"loss\": 2}\n", NIB_BAD_INPUT);
    expect_refused("{\"step\": 1, \"loss\": \"2\"}\n", NIB_BAD_INPUT);
    expect_refused("{\"step\": 1, \"loss\": 2} {}\n", NIB_BAD_INPUT);
    for (size_t i = 0; i < COUNT(many); i++)
        many[i] = two[0];
    nib_plot_options options = {.runs = {many, COUNT(many)}};
    refused(NIB_USAGE, plot(&options, &err), &err);
    options.runs.count = NIB_PLOT_RUNS;
    assert_int_equal(plot(&options, &err), NIB_OK);
    expect_xml(drawn);
    options.runs.count = 0;
    refused(NIB_USAGE, plot(&options, &err), &err);
    const nib_plot_options smooth = {.runs = {two, 2}, .smooth = -1};
    refused(NIB_USAGE, plot(&smooth, &err), &err);
    const char *missing = "tests/golden/plot/none";
    const nib_plot_options none = {.runs = {&missing, 1}};
    refused(NIB_IO, plot(&none, &err), &err);
}

/* Plots into a file, replacing it atomically; a run is named after its directory. */
static void test_writes_a_file(void **state)
{
    char folder[] = "/tmp/nibble-test-plot-XXXXXX", path[64], out[64];
    const nib_allocator a = nib__allocator_default();
    nib_err err;
    char *text;
    size_t size;
    (void)state;
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/metrics.jsonl", folder);
    snprintf(out, sizeof out, "%s/loss.svg", folder);
    draw_text(path, "{\"step\": 1, \"loss\": 2, \"rate\": 0.5}\n{\"step\": 2, \"rate\": 0.1}\n");
    const char *run = folder;
    const nib_plot_options options = {.runs = {&run, 1}, .out = out, .value = "rate"};
    for (int i = 0; i < 2; i++)
        if (plot(&options, &err) != NIB_OK)
            fail_msg("%s", err.text);
    assert_int_equal(nib__file_read(&text, &size, out, 1 << 20, &a, &err), NIB_OK);
    assert_non_null(strstr(text, ": 0.1 at step 2</text>"));
    assert_null(strstr(text, "metrics.jsonl"));
    free(text);
    /* a plot overwrites neither its own input nor a directory named like its temporary file */
    nib_plot_options over = options;
    for (int i = 0; i < 2; i++) {
        over.out = path;
        run = i == 0 ? folder : path;
        refused(NIB_EXISTS, plot(&over, &err), &err);
    }
    char part[80], kept[96];
    snprintf(part, sizeof part, "%s.part", out);
    snprintf(kept, sizeof kept, "%s/kept", part);
    assert_true(mkdir(part, 0777) == 0 && mkdir(kept, 0777) == 0);
    assert_int_equal(plot(&options, &err), NIB_OK);
    assert_true(rmdir(kept) == 0 && rmdir(part) == 0);
    /* a small value does not print as 0 */
    assert_non_null(strstr(draw_text(path, "{\"step\": 7, \"loss\": 3.14159e-5}\n"),
                           ": 3.142e-05 at step 7</text>"));
    assert_int_equal(nib__path_remove(folder, &err), NIB_OK);
}

/* Points take no more memory than the file, whatever its lines are. */
static void test_points_take_bounded_memory(void **state)
{
    char path[] = "/tmp/nibble-test-plot-XXXXXX";
    static const char point[] = "{\"step\":1,\"\":1}\n";
    meter m = {0};
    nib_arena arena;
    nib_curve curve;
    nib_err err;
    (void)state;
    const int fd = mkstemp(path);
    FILE *f = fdopen(fd, "wb");
    assert_non_null(f);
    for (int i = 0; i < 100; i++)
        fputs(point, f);
    fflush(f);
    nib_engine metered = *engine;
    metered.allocator = metered_allocator(&m);
    nib__arena_init(&arena, &metered.allocator, 0);
    assert_int_equal(nib__curve_read(&curve, path, "", &metered, &arena, &err), NIB_OK);
    assert_int_equal(curve.count, 100);
    nib__arena_free(&arena);
    for (int i = 0; i < 1 << 20; i++)
        fputc('\n', f);
    fclose(f);
    nib__arena_init(&arena, &metered.allocator, 0);
    m.peak = m.now;
    refused(NIB_BAD_INPUT, nib__curve_read(&curve, path, "", &metered, &arena, &err), &err);
    assert_true(m.peak < 4 << 20);
    nib__arena_free(&arena);
    remove(path);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden),
        cmocka_unit_test(test_awkward_names_and_values),
        cmocka_unit_test(test_rejects_bad_metrics),
        cmocka_unit_test(test_writes_a_file),
        cmocka_unit_test(test_points_take_bounded_memory),
    };
    const nib_engine_options options = {.threads = 1, .callbacks = {.log = on_log}};
    nib_err err;
    const int fd = mkstemp(scratch);
    if (fd < 0 || close(fd) != 0 || nib_engine_open(&engine, &options, &err) != NIB_OK)
        return 1;
    const nib_plot_options write = {.runs = {two, 2}, .smooth = 5, .out = golden};
    const bool renew = argc == 2 && strcmp(argv[1], "--write") == 0;
    const int failed = renew ? nib_plot(engine, &write, NULL, &err) != NIB_OK
                             : cmocka_run_group_tests(tests, NULL, NULL);
    free(drawn);
    remove(scratch);
    nib_engine_close(engine);
    return failed;
}
