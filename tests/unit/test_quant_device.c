/* SPDX-License-Identifier: Apache-2.0
 *
 * Quantizing the shipped model on a device. What the device lacks, refuses or fails at runs on the
 * CPU if allowed, with the same bits and a ledger line; else it is an error that leaves no output.
 * The kernel checker and tests/cli/quantize_device.sh check that a device computes the CPU's bits.
 */
#include "session.h"

#include "failing_gpu.h"
#include "file.h"

#include <setjmp.h>
#include <stdarg.h>
#include <unistd.h>

#include <cmocka.h>

#include "kept.h"
#include "refused.h"

#define MODEL "models/nibble-tales"

typedef struct run {
    failing_gpu device;
    bool exact; /* the device has double precision and denormals */
    opened o;
    char out[64]; /* the output directory */
    kept said;
    nib_err err;
} run;

static void open_model(run *r)
{
    const nib_engine_options options = {.threads = 2};
    if (nib_engine_open(&r->o.engine, &options, &r->err) != NIB_OK ||
        !failing_offer(r->o.engine, &r->device) ||
        nib_model_open(&r->o.model, r->o.engine, MODEL, NULL, &r->err) != NIB_OK)
        fail_msg("%s", r->err.text);
    r->o.engine->measured = true;
    int64_t *fact = r->o.engine->gpus[0].machine.facts.fact;
    fact[NIB_FACT_FP64] = fact[NIB_FACT_DENORMALS] = r->exact;
}

typedef struct how {
    const char *recipe, *device, *allow;
    bool strict, dry_run;
} how;

static nib_status quantize(run *r, const how *h)
{
    const char *patterns = h->allow;
    const nib_quantize_options options = {.request =
                                              &(nib_request){.recipe = h->recipe,
                                                             .device = h->device,
                                                             .allow = {&patterns, patterns != NULL},
                                                             .strict = h->strict},
                                          .out = r->out,
                                          .force = true,
                                          .dry_run = h->dry_run};
    const nib_sink sink = {keep, &r->said};
    r->said.size = 0;
    r->said.text[0] = 0;
    r->err = (nib_err){NIB_OK, ""};
    if (r->o.engine == NULL)
        open_model(r);
    return nib_quantize(r->o.model, &options, NIB_FORM_JSON, &sink, &r->err);
}

static void expect_words(const char *text, const char *words)
{
    if (strstr(text, words) == NULL)
        fail_msg("\"%s\" lacks \"%s\"", text, words);
}

static void remove_out(const run *r) { assert_int_equal(nib__path_remove(r->out, NULL), NIB_OK); }

static void close_run(run *r)
{
    close_opened(&r->o);
    assert_int_equal(r->device.live, 0); /* all memory, programs, functions and events */
    assert_int_equal(r->device.held, 0);
}

static int set_up(void **state)
{
    static run r;
    r = (run){.exact = true};
    snprintf(r.out, sizeof r.out, "/tmp/nibble-quant-device-%d", (int)getpid());
    failing_init(&r.device);
    *state = &r;
    return 0;
}

static int tear_down(void **state)
{
    run *r = *state;
    remove_out(r);
    close_run(r);
    return 0;
}

static void reset_device(run *r)
{
    close_run(r);
    failing_init(&r->device);
}

/* ---- refusals ---- */

static void read_weights(const run *r, char **bytes, size_t *size)
{
    static nib_allocator a;
    char path[128];
    nib_err err;
    a = nib__allocator_default();
    snprintf(path, sizeof path, "%s/model.safetensors", r->out);
    if (nib__file_read(bytes, size, path, 1 << 24, &a, &err) != NIB_OK)
        fail_msg("%s", err.text);
}

/* The written weights equal those of a CPU run. */
static void expect_cpu_weights(run *r, const char *recipe)
{
    const nib_allocator a = nib__allocator_default();
    char *got, *want;
    size_t got_size, want_size;
    read_weights(r, &got, &got_size);
    assert_int_equal(quantize(r, &(how){.recipe = recipe}), NIB_OK);
    read_weights(r, &want, &want_size);
    assert_int_equal(got_size, want_size);
    assert_memory_equal(got, want, want_size);
    nib__release(&a, got);
    nib__release(&a, want);
    remove_out(r);
}

/* Denied, with no output; if allowed, runs with the ledger line `done` and these words in it. */
static void check_refused(run *r, const char *recipe, nib_status status, const char *words,
                          const char *done)
{
    const failing_gpu device = r->device;
    how h = {.recipe = recipe, .device = "opencl"};
    refused(status, quantize(r, &h), &r->err);
    assert_int_equal(nib__path_kind(r->out), NIB_PATH_NONE);
    h.strict = true, h.allow = "device";
    refused(status, quantize(r, &h), &r->err);
    assert_int_equal(nib__path_kind(r->out), NIB_PATH_NONE);
    reset_device(r);
    r->device = device;
    h.strict = false;
    if (quantize(r, &h) != NIB_OK)
        fail_msg("%s", r->err.text);
    expect_words(r->said.text, "\"asked\": \"codes@opencl\"");
    expect_words(r->said.text, done);
    expect_words(r->said.text, "\"allowed\": \"by --allow device\"");
    expect_words(r->said.text, words);
    expect_cpu_weights(r, recipe);
}

static const char by_cpu[] = "\"done\": \"codes@cpu\"";

static void test_no_double_precision(void **state)
{
    run *r = *state;
    r->exact = false;
    check_refused(r, "8da4w", NIB_NOT_AS_ASKED, "quant_w__ocl", by_cpu);
}

static void test_device_does_not_open(void **state)
{
    run *r = *state;
    r->device.open_words = "the driver is asleep";
    check_refused(r, "8da4w", NIB_NOT_AS_ASKED, "the driver is asleep", by_cpu);
}

static void test_kernel_does_not_compile(void **state)
{
    run *r = *state;
    r->device.refuse_function = "weight_codes";
    check_refused(r, "int4wo", NIB_NOT_AS_ASKED, "weight_codes", by_cpu);
}

static void test_device_out_of_memory(void **state)
{
    run *r = *state;
    r->device.room = 100000;
    check_refused(r, "mxfp8", NIB_NOT_AS_ASKED, "4.3 GB", by_cpu); /* the device's memory */
}

/* ---- failures during the run ---- */

static const char by_both[] = "\"done\": \"codes@opencl, then codes@cpu\"";

static void test_launch_fails(void **state)
{
    run *r = *state;
    r->device.fail_launch = "weight_codes";
    check_refused(r, "8da4w", NIB_FAILED, "model.layers.0.self_attn.q_proj.weight", by_both);
    reset_device(r);
    r->device.fail_launch = "row_ranges";
    check_refused(r, "int8wo-tensor", NIB_FAILED, "row_ranges", by_both);
}

static void test_read_fails(void **state)
{
    run *r = *state;
    r->device.fail_read = true;
    check_refused(r, "fp8wo", NIB_FAILED, "the bus is gone", by_both);
}

/* ---- success ---- */

/* The note counts the copies; a dry run prints the same note without opening the device. */
static void test_copies_are_reported(void **state)
{
    run *r = *state;
    char note[512];
    how h = {.recipe = "int8wo", .device = "opencl"};
    if (quantize(r, &h) != NIB_OK)
        fail_msg("%s", r->err.text);
    expect_words(r->said.text, "\"done\": \"codes@opencl\"");
    const char *at = strstr(r->said.text, "codes@opencl: 36 of 36 weights by quant_w__ocl, ");
    assert_non_null(at);
    snprintf(note, sizeof note, "%.*s", (int)strcspn(at, "\""), at);
    assert_int_equal(r->device.launches, 2 * 36); /* codes, then sums of rows */
    assert_int_equal(r->device.held, 0);
    reset_device(r);
    remove_out(r);
    h.dry_run = true;
    if (quantize(r, &h) != NIB_OK)
        fail_msg("%s", r->err.text);
    expect_words(r->said.text, note);
    assert_int_equal(r->device.launches + r->device.copies + r->device.live, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_no_double_precision, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_device_does_not_open, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_kernel_does_not_compile, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_device_out_of_memory, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_launch_fails, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_read_fails, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_copies_are_reported, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
