/* SPDX-License-Identifier: Apache-2.0
 *
 * Advice: the Pareto frontier with ties, near-equal times and unknown values; the choice from it;
 * the estimated error against explicit formulas; rows with a method; and whole calls: cancelled,
 * out of memory, refused.
 */
#include "advise.h"

#include "failing.h"
#include "failing_gpu.h"
#include "file.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <cmocka.h>

#include "kept.h"
#include "refused.h"

/* ---- the frontier ---- */

static void expect_beaten_by(const nib_merit *merits, size_t count, const int *wanted)
{
    int beaten_by[8];
    assert_true(count <= COUNT(beaten_by));
    nib__frontier(beaten_by, merits, count);
    for (size_t i = 0; i < count; i++)
        if (beaten_by[i] != wanted[i])
            fail_msg("%zu is beaten by %d, wanted %d", i, beaten_by[i], wanted[i]);
}

static void test_frontier_names_the_unbeaten(void **state)
{
    (void)state;
    /* each is best in one merit; the last is best in none */
    const nib_merit merits[] = {{true, 1, 9, 9}, {true, 9, 1, 9}, {true, 9, 9, 1}, {true, 9, 9, 9}};
    expect_beaten_by(merits, 3, (int[]){-1, -1, -1});
    expect_beaten_by(merits, 4, (int[]){-1, -1, -1, 0});
    /* if the winner is itself beaten, the unbeaten one is named */
    const nib_merit chain[] = {{true, 3, 3, 3}, {true, 2, 2, 2}, {true, 1, 1, 1}};
    expect_beaten_by(chain, 3, (int[]){2, 2, -1});
}

static void test_frontier_ties(void **state)
{
    (void)state;
    const nib_merit equal[] = {{true, 1, 1, 1}, {true, 1, 1, 1}};
    expect_beaten_by(equal, 2, (int[]){-1, -1});
    const nib_merit tied[] = {{true, 1, 1, 2}, {true, 1, 1, 1}};
    expect_beaten_by(tied, 2, (int[]){1, -1});
    /* 4 % slower counts as equally fast, so lower cost wins; 6 % counts as slower */
    const nib_merit near[] = {{true, 2, 1.00, 1}, {true, 1, 1.04, 1}};
    expect_beaten_by(near, 2, (int[]){1, -1});
    const nib_merit slower[] = {{true, 2, 1.00, 1}, {true, 1, 1.06, 1}};
    expect_beaten_by(slower, 2, (int[]){-1, -1});
    /* neighbours count as equally fast, the ends do not: no cycle, and one stays unbeaten */
    const nib_merit stairs[] = {{true, 1, 1.00, 1}, {true, 1, 1.04, 1}, {true, 1, 1.08, 1}};
    expect_beaten_by(stairs, 3, (int[]){-1, -1, 0});
}

static void test_frontier_with_unknown_merits(void **state)
{
    (void)state;
    const nib_merit merits[] = {{true, NAN, 1, 1}, {true, 5, 1, 1}, {true, 5, NAN, 1}};
    expect_beaten_by(merits, 3, (int[]){1, -1, 1});
    const nib_merit nothing[] = {{true, NAN, NAN, 2}, {true, NAN, NAN, 1}};
    expect_beaten_by(nothing, 2, (int[]){1, -1});
    /* unknown cost, but the fastest: it stays unbeaten */
    const nib_merit fast[] = {{true, NAN, 1, 1}, {true, 5, 2, 1}};
    expect_beaten_by(fast, 2, (int[]){-1, -1});
    /* a recipe not done as asked, or too large, beats nothing and is not ranked */
    const nib_merit out[] = {{false, 0, 0, 0}, {true, 5, 5, 5}, {false, 9, 9, 9}};
    expect_beaten_by(out, 3, (int[]){-1, -1, -1});
}

static void expect_taken(const nib_merit *merits, size_t count, double most, int wanted,
                         bool wanted_within)
{
    bool within;
    const int taken = nib__frontier_choose(&within, merits, count, most);
    if (taken != wanted || within != wanted_within)
        fail_msg("took %d, %s; wanted %d", taken, within ? "within" : "over", wanted);
}

static void test_choose_within_a_loss_budget(void **state)
{
    (void)state;
    const nib_merit merits[] = {
        {true, 1, 10, 9}, {true, 2, 5, 5}, {true, 3, 4.9, 4}, {true, 9, 1, 1}, {false, 0, 0, 0}};
    expect_taken(merits, 5, 1.5, 0, true);
    expect_taken(merits, 5, 3, 1, true); /* as fast as 2, lower cost */
    expect_taken(merits, 5, 9, 3, true);
    expect_taken(merits, 5, 0.5, 0, false); /* none is within it: the lowest cost */
    const nib_merit bytes[] = {{true, 1, 1, 2}, {true, 1, 1, 1}, {true, 1, 1, 1}};
    expect_taken(bytes, 3, 1, 1, true);
    const nib_merit unknown[] = {{true, NAN, 1, 1}, {true, 7, NAN, 1}, {true, 8, 3, 1}};
    expect_taken(unknown, 3, 5, 1, false);
    expect_taken(unknown, 3, 10, 2, true);
    expect_taken(unknown, 2, 10, 1, true);
    expect_taken(unknown, 1, 10, 0, false);
    expect_taken(merits + 4, 1, 10, -1, false);
    expect_taken(NULL, 0, 10, -1, false);
}

/* ---- the estimated error ---- */

typedef struct planned {
    nib_engine *engine;
    nib_model *model;
} planned;

static nib_status on_status; /* status of the last call */

static planned open_model(const char *path, const nib_allocator *a)
{
    planned p = {0};
    nib_err err;
    const nib_engine_options options = {.threads = 1, .allocator = a};
    if (nib_engine_open(&p.engine, &options, &err) != NIB_OK)
        fail_msg("%s", err.text);
    p.engine->measured = true; /* skip measuring: rates do not matter here */
    if (nib_model_open(&p.model, p.engine, path, NULL, &err) != NIB_OK)
        fail_msg("%s", err.text);
    return p;
}

static void close_model(planned *p)
{
    nib_model_close(p->model);
    nib_engine_close(p->engine);
}

/* Estimated error of a plan of one recipe that quantizes only the layers of `only`. */
static double estimated(const planned *p, const char *recipe, const char *only)
{
    nib_plan *plan;
    nib_err err;
    double error = NAN;
    const nib_request r = {.recipe = recipe, .only = {&only, only ? 1 : 0}};
    if (nib_plan_open(&plan, p->model, &r, &err) != NIB_OK ||
        nib__advise_error(&error, plan, &err) != NIB_OK)
        fail_msg("%s: %s", recipe, err.text);
    nib_plan_close(plan);
    return error;
}

/* Reference error of one layer's codes: symmetric, `most` steps each way, one scale per `group`. */
static double by_hand(const planned *p, size_t site, double most, int64_t group)
{
    const nib_network *net = &p->model->net;
    const nib_weight w = net->sites[site].weight;
    double signal = 0, error = 0, all = 0;
    static float row[4096];
    assert_true(w.k <= (int64_t)COUNT(row));
    for (int64_t i = 0; i < w.n; i++) {
        nib__weight_row(&w, i, row);
        for (int64_t from = 0; from < w.k; from += group) {
            const int64_t end = nib__min(from + group, w.k);
            double amax = 0;
            for (int64_t j = from; j < end; j++)
                amax = fmax(amax, fabs((double)row[j]));
            const double s = amax / (most + 0.5);
            for (int64_t j = from; j < end; j++) {
                const double x = row[j];
                const double q = fmin(most, fmax(-most - 1, nearbyint(x / s)));
                signal += x * x;
                error += (x - q * s) * (x - q * s);
            }
        }
    }
    for (size_t i = 1; i < net->site_count; i++)
        all += (double)net->sites[i].n * (double)net->sites[i].k;
    return sqrt(error / signal * (double)w.n * (double)w.k / all);
}

static void expect_near(double got, double wanted, double share)
{
    if (!(fabs(got - wanted) <= share * wanted))
        fail_msg("%g is not near %g", got, wanted);
}

/* The estimate samples 16 rows of a weight, so it is within a few percent. */
static void test_error_of_weights(void **state)
{
    planned p = open_model("models/nibble-tales", NULL);
    const size_t head = p.model->net.site_count - 1, up = 6;
    (void)state;
    assert_string_equal(p.model->net.sites[up].name, "model.layers.0.mlp.up_proj");
    expect_near(estimated(&p, "int4wo-sym", "lm_head"), by_hand(&p, head, 7, 32), 0.1);
    expect_near(estimated(&p, "int4wo-sym", "model.layers.0.mlp.up_proj"), by_hand(&p, up, 7, 32),
                0.1);
    expect_near(estimated(&p, "int8wo", "lm_head"), by_hand(&p, head, 127, 1 << 20), 0.1);
    assert_true(estimated(&p, "bf16", NULL) == 0); /* as stored */
    close_model(&p);
}

/* Normal activations have the error of normal weights, and squared errors add. */
static void test_error_of_inputs(void **state)
{
    planned p = open_model("configs/shapes/llama-3.2-1b/config.json", NULL);
    const double weights = estimated(&p, "int8wo", NULL), both = estimated(&p, "int8dq", NULL);
    (void)state;
    expect_near(both, weights * sqrt(2.0), 0.01);
    /* uniform within a step: s / sqrt(12), s from the largest of 2048 normal values, about 3.5 */
    expect_near(weights, 3.5 / 127.5 / sqrt(12.0), 0.15);
    /* half a unit in the last of three mantissa bits, uniform: at most 2^-4 / sqrt(3) */
    const double fp8 = estimated(&p, "fp8wo", NULL);
    assert_true(fp8 < 0.0361 && fp8 > 0.0361 / 2);
    static const char *const ascending[] = {"int8wo",      "int8dq", "fp8dq", "int4wo",
                                            "int4wo-g128", "mxfp4",  "4da4w"};
    for (size_t i = 0; i + 1 < COUNT(ascending); i++)
        if (!(estimated(&p, ascending[i], NULL) < estimated(&p, ascending[i + 1], NULL)))
            fail_msg("%s is estimated worse than %s", ascending[i], ascending[i + 1]);
    close_model(&p);
}

/* ---- the call ---- */

static kept report;

static nib_status advise(const planned *p, const nib_advise_options *o, nib_form form, nib_err *err)
{
    const nib_sink sink = {keep, &report};
    report = (kept){0};
    on_status = nib_advise(p->model, o, form, &sink, err);
    return on_status;
}

static void test_reports_all_recipes(void **state)
{
    planned p = open_model("configs/shapes/llama-3.2-1b/config.json", NULL);
    const nib_advise_options o = {.request = &(nib_request){.device = "h200"}};
    nib_err err;
    (void)state;
    if (advise(&p, &o, NIB_FORM_TEXT, &err) != NIB_OK)
        fail_msg("%s", err.text);
    assert_non_null(strstr(report.text, "none (bf16)"));
    assert_non_null(strstr(report.text, "frontier, taken"));
    assert_non_null(
        strstr(report.text, "nibble quantize configs/shapes/llama-3.2-1b/ llama-3.2-1b-"));
    /* every base of `nibble recipes` is tried, but not GGUF's own blocks and integers of other
     * widths than 4 and 8 */
    const nib_scheme_base *base;
    for (size_t i = 0; (base = nib__scheme_base(i)) != NULL; i++)
        if (nib__scheme_is_quantized(&base->scheme))
            assert_true((strstr(report.text, base->name) != NULL) ==
                        (!nib__scheme_is_gguf_block(&base->scheme) &&
                         !nib__code_is_odd_int(base->scheme.code)));
    close_model(&p);
}

static void expect_refused(const planned *p, nib_advise_options o, nib_status status)
{
    nib_err err = {NIB_OK, ""};
    refused(status, advise(p, &o, NIB_FORM_TEXT, &err), &err);
}

static void test_refuses_bad_requests(void **state)
{
    planned p = open_model("configs/shapes/llama-3.2-1b/config.json", NULL);
    static const char *const recipes[] = {"int5"};
    const nib_advise_options plain = {0};
    nib_advise_options o = plain;
    (void)state;
    o.request = &(nib_request){.device = "h2000"};
    expect_refused(&p, o, NIB_USAGE);
    assert_string_equal(report.text, "");
    o.request = &(nib_request){.device = "auto"}; /* advice is for one device */
    expect_refused(&p, o, NIB_USAGE);
    o = plain, o.recipes = (nib_strings){recipes, 1};
    expect_refused(&p, o, NIB_USAGE);
    o = plain, o.text_path = "models/nibble-tales/heldout.txt";
    expect_refused(&p, o, NIB_USAGE);
    o = plain, o.loss_budget = 0.1;
    expect_refused(&p, o, NIB_USAGE);
    /* nothing fits: the report still comes, and says by how much */
    o = plain, o.memory = 1000000, o.request = &(nib_request){.device = "h200"};
    expect_refused(&p, o, NIB_NO_MEMORY);
    assert_non_null(strstr(report.text, "too large"));
    close_model(&p);
    p = open_model("configs/llama3_debugmodel.json", NULL);
    expect_refused(&p, plain, NIB_USAGE);
    close_model(&p);
}

/* --memory lowers the limit; it cannot exceed the device's memory. */
static void test_memory_option_lowers_the_limit(void **state)
{
    planned p = open_model("configs/shapes/llama-3.2-1b/config.json", NULL);
    nib_advise_options o = {.request = &(nib_request){.device = "rtx4090"}};
    nib_err err;
    (void)state;
    assert_int_equal(advise(&p, &o, NIB_FORM_TEXT, &err), NIB_OK);
    assert_non_null(strstr(report.text, "memory  25.8 GB (the device's) for"));
    o.memory = UINT64_C(1000000000000);
    assert_int_equal(advise(&p, &o, NIB_FORM_TEXT, &err), NIB_OK);
    assert_non_null(strstr(report.text, "memory  25.8 GB (the device's) for"));
    o.memory = UINT64_C(2500000000);
    assert_int_equal(advise(&p, &o, NIB_FORM_TEXT, &err), NIB_OK);
    assert_non_null(strstr(report.text, "memory  2.5 GB (--memory) for"));
    assert_non_null(strstr(report.text, "too large"));
    close_model(&p);
}

/* A recipe said to fit also fits as a plan, which counts the device's buffers. */
static void test_fits_as_planned(void **state)
{
    static const char *const recipes[] = {"int8wo"};
    planned p = open_model("configs/shapes/llama-3.2-1b/config.json", NULL);
    nib_advise_options o = {.request = &(nib_request){.device = "rtx4090"},
                            .recipes = {recipes, 1}};
    nib_request r = {.device = "rtx4090", .recipe = "int8wo"};
    nib_plan *plan;
    nib_err err;
    (void)state;
    assert_int_equal(nib_plan_open(&plan, p.model, &r, &err), NIB_OK);
    const uint64_t needs = nib__plan_needs(plan);
    assert_true(needs > plan->weight_bytes + plan->cache.bytes);
    nib_plan_close(plan);
    for (int less = 0; less < 2; less++) {
        o.memory = r.memory = needs - (uint64_t)less;
        assert_int_equal(nib_plan_open(&plan, p.model, &r, &err), NIB_OK);
        const nib_status status = nib_plan_status(plan, &err);
        assert_int_equal(status, less ? NIB_NO_MEMORY : NIB_OK);
        assert_int_equal(advise(&p, &o, NIB_FORM_TEXT, &err), status);
        nib_plan_close(plan);
    }
    close_model(&p);
}

/* The printed command names the output after the recipe's file; JSON is quoted in the command. */
static void test_commands(void **state)
{
    static const char json[] = "{\"rules\": [],\n \"else\": \"int8wo\"}";
    char directory[] = "/tmp/nib-advise-XXXXXX", path[64], command[160];
    const char *recipes[] = {path};
    planned p = open_model("configs/shapes/llama-3.2-1b/config.json", NULL);
    const nib_advise_options o = {.request = &(nib_request){.device = "h200"},
                                  .recipes = {recipes, 1}};
    nib_err err;
    (void)state;
    assert_non_null(mkdtemp(directory));
    snprintf(path, sizeof path, "%s/mine.json", directory);
    assert_int_equal(nib__file_write(path, json, strlen(json), &p.model->engine->allocator, &err),
                     NIB_OK);
    assert_int_equal(advise(&p, &o, NIB_FORM_TEXT, &err), NIB_OK);
    snprintf(command, sizeof command, "shapes/llama-3.2-1b/ llama-3.2-1b-mine --recipe %s\n", path);
    assert_non_null(strstr(report.text, command));
    recipes[0] = json;
    assert_int_equal(advise(&p, &o, NIB_FORM_TEXT, &err), NIB_OK);
    assert_non_null(strstr(report.text, " llama-3.2-1b-quantized --recipe '{\"rules\""));
    /* a row of the table is one line */
    assert_null(strstr(report.text, ",\n \"else\": \"int8wo\"}  "));
    assert_int_equal(nib__path_remove(directory, NULL), NIB_OK);
    close_model(&p);
}

static failing_gpu device;

static bool break_second(void *ctx, const char *what, uint64_t done, uint64_t total)
{
    (void)ctx, (void)total;
    if (strcmp(what, "advise") == 0 && done > 1000) /* done counts to 2000 */
        device.fail_launch = "attention";
    return true;
}

/* A recipe fails amid its run: the others continue and the report has its error, even if the caller
 * passes no err. */
static void test_others_continue_after_a_failed_recipe(void **state)
{
    static const char *const recipes[] = {"8da4w"};
    planned p = {0};
    nib_err err;
    const nib_engine_options options = {.threads = 1};
    const nib_advise_options o = {.request = &(nib_request){.device = "opencl"},
                                  .recipes = {recipes, 1}};
    (void)state;
    failing_init(&device);
    if (nib_engine_open(&p.engine, &options, &err) != NIB_OK || !failing_offer(p.engine, &device) ||
        nib_model_open(&p.model, p.engine, "models/nibble-tales", NULL, &err) != NIB_OK)
        fail_msg("%s", err.text);
    p.engine->measured = true;
    p.engine->callbacks.progress = break_second;
    assert_int_equal(advise(&p, &o, NIB_FORM_TEXT, NULL), NIB_OK);
    assert_non_null(strstr(report.text, "  failed\n"));
    assert_non_null(strstr(report.text, "out of the device's resources"));
    assert_non_null(strstr(report.text, "take none (bf16): "));
    close_model(&p);
    assert_int_equal(device.live, 0);
}

static int calls_left;

static bool stop(void *ctx, const char *what, uint64_t done, uint64_t total)
{
    (void)ctx;
    (void)done;
    (void)total;
    return strcmp(what, "advise") != 0 || calls_left-- > 0;
}

static void test_cancelled(void **state)
{
    planned p = open_model("configs/shapes/llama-3.2-1b/config.json", NULL);
    p.engine->callbacks.progress = stop;
    calls_left = 3;
    (void)state;
    expect_refused(&p, (nib_advise_options){.request = &(nib_request){.device = "a100"}},
                   NIB_CANCELLED);
    assert_string_equal(report.text, "");
    assert_int_equal(calls_left, -1); /* three recipes were tried, and none after */
    close_model(&p);
}

/* ---- rows with a method ---- */

/* Losses are measured here, and speeds are not. */
static const nib_request elsewhere = {.device = "h200"};

static void put_file(const planned *p, const char *path, const char *text, size_t size)
{
    nib_err err;
    if (nib__file_write(path, text, size, &p->model->engine->allocator, &err) != NIB_OK)
        fail_msg("%s", err.text);
}

/* A scratch directory with texts in a directory beside it. */
typedef struct place {
    char scratch[64], inputs[64], text[80], empty[80];
} place;

static place make_place(const planned *p)
{
    place at = {"/tmp/nib-advise-XXXXXX", "/tmp/nib-advise-XXXXXX", "", ""};
    char *text;
    size_t size;
    nib_err err;
    assert_non_null(mkdtemp(at.scratch));
    assert_non_null(mkdtemp(at.inputs));
    snprintf(at.text, sizeof at.text, "%s/text.txt", at.inputs);
    snprintf(at.empty, sizeof at.empty, "%s/empty.txt", at.inputs);
    if (nib__file_read(&text, &size, "models/nibble-tales/heldout.txt", 1 << 20,
                       &p->model->engine->allocator, &err) != NIB_OK)
        fail_msg("%s", err.text);
    assert_true(size > 1500);
    put_file(p, at.text, text, 1500);
    put_file(p, at.empty, "", 0);
    nib__release(&p->model->engine->allocator, text);
    return at;
}

static void remove_place(const place *at)
{
    assert_true(nib__directory_is_empty(at->scratch)); /* whatever the calls did */
    assert_int_equal(nib__path_remove(at->scratch, NULL), NIB_OK);
    assert_int_equal(nib__path_remove(at->inputs, NULL), NIB_OK);
}

/* The number after `key` in the JSON object of a row; NaN: null. */
static double row_number(const char *name, const char *key)
{
    char begin[96];
    snprintf(begin, sizeof begin, "\"name\": \"%s\"", name);
    const char *row = strstr(report.text, begin);
    if (row == NULL)
        fail_msg("no row %s in %s", name, report.text);
    snprintf(begin, sizeof begin, "\"%s\": ", key);
    const char *at = strstr(row, begin);
    assert_non_null(at);
    return strncmp(at + strlen(begin), "null", 4) == 0 ? NAN : strtod(at + strlen(begin), NULL);
}

/* Rows by search lose less than those by rounding, in the same bytes, and what hqq cannot do has
 * the reason. Nothing is left in the scratch directory. */
static void test_rows_with_methods(void **state)
{
    static const char *const recipes[] = {"int4wo-sym", "int8wo"}, *const names[] = {"search",
                                                                                     "hqq"};
    planned p = open_model("models/nibble-tales", NULL);
    const place at = make_place(&p);
    const nib_advise_methods methods = {
        .methods = {names, 2}, .calibrate = at.text, .scratch = at.scratch};
    const nib_advise_options o = {
        .request = &elsewhere, .recipes = {recipes, 2}, .text_path = at.text, .methods = &methods};
    nib_err err;
    (void)state;
    if (advise(&p, &o, NIB_FORM_JSON, &err) != NIB_OK)
        fail_msg("%s", err.text);
    const double rounding = row_number("int4wo-sym", "loss"),
                 searched = row_number("int4wo-sym by search", "loss"),
                 stored = row_number("none (bf16)", "loss");
    assert_true(stored < searched && searched < rounding);
    assert_true(row_number("int4wo-sym", "weight_bytes") ==
                row_number("int4wo-sym by search", "weight_bytes"));
    assert_true(row_number("int4wo-sym by search", "quantize_seconds") > 0);
    assert_true(isnan(row_number("int8wo by hqq", "loss")));
    assert_true(isnan(row_number("int8wo by hqq", "bytes")));
    assert_non_null(
        strstr(report.text, ": the method hqq moves float zeros, and int8wo has none of its own"));
    assert_non_null(strstr(report.text, "\"frontier_without_methods\": ["));
    if (advise(&p, &o, NIB_FORM_TEXT, &err) != NIB_OK)
        fail_msg("%s", err.text);
    assert_non_null(strstr(report.text, "  not applicable\n"));
    assert_non_null(strstr(
        report.text, "\nint8wo by hqq: model.layers.0.self_attn.q_proj: the method hqq moves"));
    assert_non_null(strstr(report.text, "\nfrontier without methods: "));
    assert_non_null(strstr(report.text, "\nfrontier with methods: "));
    close_model(&p);
    remove_place(&at);
}

/* What a killed process left at a name is removed; a name that another process has is not. */
static void test_scratch_names(void **state)
{
    static const char *const recipes[] = {"int4wo-sym"}, *const names[] = {"search"};
    planned p = open_model("models/nibble-tales", NULL);
    const place at = make_place(&p);
    const nib_advise_methods methods = {.methods = {names, 1}, .scratch = at.scratch};
    const nib_advise_options o = {
        .request = &elsewhere, .recipes = {recipes, 1}, .text_path = at.text, .methods = &methods};
    char left[96], codes[96], lock[96];
    nib_err err;
    int fd;
    (void)state;
    snprintf(left, sizeof left, "%s/nibble-advise.part", at.scratch);
    snprintf(codes, sizeof codes, "%s/nibble-advise.verify.codes", at.scratch);
    snprintf(lock, sizeof lock, "%s/nibble-advise.lock", at.scratch);
    assert_int_equal(nib__part_directory(left, &err), NIB_OK);
    assert_int_equal(nib__part_directory(codes, &err), NIB_OK);
    assert_int_equal(nib__lock_take(&fd, lock, &err), NIB_OK);
    assert_int_equal(advise(&p, &o, NIB_FORM_TEXT, &err), NIB_OK);
    assert_int_equal(nib__path_kind(left), NIB_PATH_DIRECTORY);
    assert_int_equal(nib__path_kind(codes), NIB_PATH_DIRECTORY);
    nib__lock_release(fd, lock);
    assert_int_equal(advise(&p, &o, NIB_FORM_TEXT, &err), NIB_OK);
    close_model(&p);
    remove_place(&at);
}

static void test_refuses_bad_methods(void **state)
{
    static const char *const recipes[] = {"int4wo-sym"};
    static const char *const names[] = {"search", "gptq", "gtpq", "rtn", "search", "hqq"};
    planned p = open_model("models/nibble-tales", NULL);
    const place at = make_place(&p);
    const nib_advise_methods good = {
        .methods = {names, 1}, .calibrate = at.text, .scratch = at.scratch};
    nib_advise_methods m = good;
    nib_advise_options o = {.recipes = {recipes, 1}, .text_path = at.text, .methods = &m};
    (void)state;
    m.methods = (nib_strings){names + 2, 1};
    expect_refused(&p, o, NIB_USAGE); /* unknown */
    m.methods = (nib_strings){names + 3, 1};
    expect_refused(&p, o, NIB_USAGE); /* rtn */
    const char *const twice[] = {names[0], names[4]};
    m.methods = (nib_strings){twice, 2};
    expect_refused(&p, o, NIB_USAGE);
    m = good, m.methods = (nib_strings){names + 1, 1}, m.calibrate = NULL;
    expect_refused(&p, o, NIB_USAGE); /* gptq without a text */
    m = good, m.methods = (nib_strings){names + 5, 1}, m.imatrix = at.text;
    expect_refused(&p, o, NIB_USAGE); /* hqq with an imatrix */
    m = good, m.methods = (nib_strings){names + 1, 1}, m.imatrix = at.text;
    expect_refused(&p, o, NIB_USAGE); /* gptq with an imatrix */
    m = good, m.calibrate = at.empty;
    expect_refused(&p, o, NIB_BAD_INPUT);
    m = good, m.calibrate = "/nowhere/text.txt";
    expect_refused(&p, o, NIB_IO);
    m = good, m.scratch = at.text;
    expect_refused(&p, o, NIB_IO);
    m = good, m.scratch = "models/nibble-tales";
    expect_refused(&p, o, NIB_USAGE);
    m = good, o.text_path = NULL;
    expect_refused(&p, o, NIB_USAGE);
    o.dry_run = true;
    expect_refused(&p, o, NIB_USAGE);
    close_model(&p);
    remove_place(&at);
}

static int stage_calls;

/* Cancels in the rows with a method, after some calls. */
static bool stop_late(void *ctx, const char *what, uint64_t done, uint64_t total)
{
    (void)ctx;
    return strcmp(what, "advise") != 0 || done * 3 <= total * 2 || stage_calls-- > 0;
}

/* Wherever it is cancelled, nothing is left. */
static void test_cancelled_in_a_method(void **state)
{
    static const char *const recipes[] = {"int4wo-sym"}, *const names[] = {"gptq"};
    planned p = open_model("models/nibble-tales", NULL);
    const place at = make_place(&p);
    const nib_advise_methods methods = {
        .methods = {names, 1}, .calibrate = at.text, .scratch = at.scratch};
    const nib_advise_options o = {
        .request = &elsewhere, .recipes = {recipes, 1}, .text_path = at.text, .methods = &methods};
    nib_err err;
    int cancelled = 0;
    (void)state;
    p.engine->callbacks.progress = stop_late;
    for (int calls = 0;; calls += 1 + calls / 2, cancelled++) {
        stage_calls = calls;
        const nib_status status = advise(&p, &o, NIB_FORM_TEXT, &err);
        assert_true(nib__directory_is_empty(at.scratch));
        if (status == NIB_OK)
            break;
        assert_int_equal(status, NIB_CANCELLED);
        assert_string_equal(report.text, "");
    }
    assert_true(cancelled >= 3);
    close_model(&p);
    remove_place(&at);
}

/* Whichever allocation fails, the call returns NIB_NO_MEMORY and leaks nothing. */
static void expect_no_memory(const planned *p, failing *f, nib_form form)
{
    static const char *const recipes[] = {"4da4w"};
    const nib_advise_options o = {.request = &(nib_request){.device = "mi210"},
                                  .recipes = {recipes, 1}};
    nib_err err;
    if (advise(p, &o, form, &err) != NIB_OK) /* reads the known machines, once */
        fail_msg("%s", err.text);
    const int live = f->live;
    int failures = 0;
    for (int n = 0;; n += 1 + n / 40) {
        f->left = n;
        const nib_status status = advise(p, &o, form, &err);
        assert_int_equal(f->live, live);
        if (status == NIB_OK)
            break;
        if (status != NIB_NO_MEMORY)
            fail_msg("allocation %d: %s", n, err.text);
        failures++;
    }
    assert_true(failures > 20);
    f->left = -1;
}

static void test_no_memory(void **state)
{
    failing f = {.left = -1};
    const nib_allocator a = failing_allocator(&f);
    planned p = open_model("configs/shapes/llama-3.2-1b/config.json", &a);
    (void)state;
    expect_no_memory(&p, &f, NIB_FORM_TEXT);
    expect_no_memory(&p, &f, NIB_FORM_JSON);
    close_model(&p);
    assert_int_equal(f.live, 0);
}

/* Wherever memory ends while rows are made, nothing is leaked or left on the disk. */
static void test_no_memory_in_a_method(void **state)
{
    static const char *const recipes[] = {"int4wo-sym"}, *const names[] = {"search"};
    failing f = {.left = -1};
    const nib_allocator a = failing_allocator(&f);
    planned p = open_model("models/nibble-tales", &a);
    const place at = make_place(&p);
    const nib_advise_methods methods = {
        .methods = {names, 1}, .calibrate = at.text, .scratch = at.scratch};
    const nib_advise_options o = {
        .request = &elsewhere, .recipes = {recipes, 1}, .text_path = at.text, .methods = &methods};
    nib_err err;
    (void)state;
    if (advise(&p, &o, NIB_FORM_TEXT, &err) != NIB_OK) /* reads the tokenizer and machines, once */
        fail_msg("%s", err.text);
    const int live = f.live;
    int failures = 0;
    for (int n = 0;; n += 1 + n / 2, failures++) {
        f.left = n;
        const nib_status status = advise(&p, &o, NIB_FORM_TEXT, &err);
        assert_int_equal(f.live, live);
        assert_true(nib__directory_is_empty(at.scratch));
        if (status == NIB_OK)
            break;
        if (status != NIB_NO_MEMORY)
            fail_msg("allocation %d: %s", n, err.text);
    }
    assert_true(failures > 10);
    f.left = -1;
    close_model(&p);
    remove_place(&at);
    assert_int_equal(f.live, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_frontier_names_the_unbeaten),
        cmocka_unit_test(test_frontier_ties),
        cmocka_unit_test(test_frontier_with_unknown_merits),
        cmocka_unit_test(test_choose_within_a_loss_budget),
        cmocka_unit_test(test_error_of_weights),
        cmocka_unit_test(test_error_of_inputs),
        cmocka_unit_test(test_reports_all_recipes),
        cmocka_unit_test(test_refuses_bad_requests),
        cmocka_unit_test(test_memory_option_lowers_the_limit),
        cmocka_unit_test(test_fits_as_planned),
        cmocka_unit_test(test_commands),
        cmocka_unit_test(test_others_continue_after_a_failed_recipe),
        cmocka_unit_test(test_cancelled),
        cmocka_unit_test(test_rows_with_methods),
        cmocka_unit_test(test_scratch_names),
        cmocka_unit_test(test_refuses_bad_methods),
        cmocka_unit_test(test_cancelled_in_a_method),
        cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_no_memory_in_a_method),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
