/* SPDX-License-Identifier: Apache-2.0
 *
 * Device failures in a training run. Before the first step, each failure leads to another allowed
 * plan, or to an error with the driver's text and the option. A later failure ends the step with an
 * error that names the operation, and changes no weight.
 */
#include "dry_run.h"
#include "trainer.h"

#include "failing_gpu.h"

#include <math.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#include "kept.h"
#include "refused.h"

/* An engine whose one device is the failing one, and a run on it. */
typedef struct run {
    failing_gpu device;
    nib_engine *engine;
    nib_model *model;
    nib_plan *plan;
    nib_trainer trainer;
    nib_err err;
    char log[4096];
} run;

typedef struct how {
    const char *config; /* a config of configs/; NULL: MXFP8 */
    const char *allow, *place, *mode;
    bool strict;
    uint64_t memory;
} how;

static void expect_words(const char *text, const char *words)
{
    assert_non_null(text);
    if (strstr(text, words) == NULL)
        fail_msg("\"%s\" lacks \"%s\"", text, words);
}

static void must(nib_status status, const run *r)
{
    if (status != NIB_OK)
        fail_msg("%s", r->err.text);
}

static void on_log(void *ctx, const char *line)
{
    run *r = ctx;
    const size_t used = strlen(r->log);
    snprintf(r->log + used, sizeof r->log - used, "%s\n", line);
}

static void start(run *r, const how *h)
{
    static const char *small[] = {"model.n_layers=2",       "model.dim=64",
                                  "model.n_heads=4",        "model.n_kv_heads=2",
                                  "training.seq_len=48",    "training.local_batch_size=1",
                                  "training.dataset_path=", "activation_checkpoint.mode="};
    static char config[128], mode[64]; /* the model reads `mode` */
    const char *name = h->config != NULL ? h->config : "mxfp8";
    snprintf(config, sizeof config, "configs/llama3_debugmodel%s%s.json",
             strcmp(name, "bf16") != 0 ? "_" : "", strcmp(name, "bf16") != 0 ? name : "");
    snprintf(mode, sizeof mode, "activation_checkpoint.mode=%s",
             h->mode != NULL ? h->mode : "none");
    small[6] = "training.dataset_path=tests/data/heldout.jsonl", small[7] = mode;
    const nib_engine_options engine = {.threads = 1, .callbacks = {NULL, on_log, r}};
    const nib_model_options model = {.overrides = {small, COUNT(small)}};
    const nib_request request = {.device = h->place != NULL ? NULL : "opencl",
                                 .allow = {&h->allow, h->allow != NULL},
                                 .place = {&h->place, h->place != NULL},
                                 .strict = h->strict,
                                 .memory = h->memory};
    r->err = (nib_err){NIB_OK, ""};
    r->log[0] = '\0';
    must(nib_engine_open(&r->engine, &engine, &r->err), r);
    assert_true(failing_offer(r->engine, &r->device));
    r->engine->measured = true;
    must(nib_model_open(&r->model, r->engine, config, &model, &r->err), r);
    must(nib_plan_open(&r->plan, r->model, &request, &r->err), r);
    must(nib_plan_status(r->plan, &r->err), r);
}

static nib_status try_run(run *r, const how *h)
{
    start(r, h);
    return nib__trainer_open(&r->trainer, r->model, r->plan, NULL, &r->err);
}

static void must_run(run *r, const how *h) { must(try_run(r, h), r); }

static void end_run(run *r)
{
    nib__trainer_close(&r->trainer);
    nib_plan_close(r->plan);
    nib_model_close(r->model);
    nib_engine_close(r->engine);
    assert_int_equal(r->device.live, 0); /* all memory, programs, functions and events */
    assert_int_equal(r->device.held, 0);
}

static const nib_ledger *ledger_of(const run *r) { return &r->trainer.plan->assignment.ledger; }

/* The text of the n-th note with this code, or NULL. */
static const char *note(const run *r, const char *code, size_t n)
{
    const nib_ledger *l = ledger_of(r);
    for (size_t i = 0; i < l->note_count; i++)
        if (strcmp(l->notes[i].code, code) == 0 && n-- == 0)
            return l->notes[i].text;
    return NULL;
}

static const char *refusal_note(const run *r, size_t n) { return note(r, NIB_NOTE_REFUSED, n); }

static size_t layers_on_host(const run *r)
{
    const nib_assignment *plan = &r->trainer.plan->assignment;
    size_t count = 0;
    for (size_t i = 0; i < plan->count; i++)
        count += plan->layers[i].rung == NIB_RUNG_DEVICE;
    return count;
}

/* The fake device computes nothing, so the loss of a step is meaningless. */
static nib_status step(run *r)
{
    nib_step_report report;
    r->err = (nib_err){NIB_OK, ""};
    return nib__trainer_step(&r->trainer, &report, &r->err);
}

static void must_step(run *r) { must(step(r), r); }

/* ---- a device that refuses nothing ---- */

static void opening_compiles_and_allocates_everything(void **state)
{
    static const how hows[] = {{.config = "mxfp8"},
                               {.config = "mxfp8", .mode = "selective"},
                               {.config = "mxfp8", .mode = "full"},
                               {.config = "fp8"},
                               {.config = "fp8", .mode = "full"},
                               {.config = "qat_8da4w"},
                               {.config = "qat_8da4w", .mode = "selective"},
                               {.place = "*k_proj=opencl"}};
    (void)state;
    for (size_t i = 0; i < COUNT(hows); i++) {
        run r;
        failing_init(&r.device);
        must_run(&r, &hows[i]);
        assert_ptr_equal(r.trainer.plan, r.plan);
        assert_string_equal(r.log, "");
        const nib_gpu *gpu = r.trainer.step.workers.gpu;
        const size_t compiled = gpu->loaded_count;
        const uint64_t held = r.device.held;
        assert_true(compiled > 0 && r.device.launches == 0);
        assert_int_equal(held, nib__step_device_bytes(&r.trainer.step));
        r.device.takes_left = 0;
        r.device.refuse_option = "";
        for (int j = 0; j < 2; j++)
            must_step(&r);
        assert_true(r.device.launches > 0);
        assert_int_equal(gpu->loaded_count, compiled);
        assert_int_equal(r.device.held, held);
        end_run(&r);
    }
}

/* The driver copies what the plan's note reports, in a step of one micro-batch. */
static void the_plan_counts_the_copies(void **state)
{
    static const how hows[] = {
        {.config = "bf16"},
        {.config = "bf16", .mode = "selective"},
        {.config = "bf16", .mode = "full"},
        {.config = "mxfp8"},
        {.config = "mxfp8", .mode = "selective"},
        {.config = "mxfp8", .mode = "full"},
        {.config = "qat_8da4w"},
        {.config = "qat_8da4w", .mode = "selective"},
        {.config = "qat_8da4w", .mode = "full"},
        {.config = "qat_8da4w", .place = "*down_proj=opencl"},
    };
    (void)state;
    for (size_t i = 0; i < COUNT(hows); i++) {
        run r;
        char said[192], bytes[32], weights[32];
        failing_init(&r.device);
        must_run(&r, &hows[i]);
        must(nib__step_cast(&r.trainer.step, r.trainer.weights, &r.err), &r);
        const uint64_t of_weights = r.device.copied;
        const int casts = r.device.copies;
        must_step(&r);
        snprintf(said, sizeof said, "%d copies of %s per micro-batch", r.device.copies - 2 * casts,
                 nib__format_bytes(bytes, r.device.copied - 2 * of_weights));
        expect_words(note(&r, "moves", 0), said);
        snprintf(said, sizeof said, "weights: %s per step", nib__format_bytes(weights, of_weights));
        expect_words(note(&r, "moves", 0), said);
        end_run(&r);
    }
}

/* ---- a kernel that the driver does not compile ---- */

static void a_refused_kernel_is_an_error_with_the_option(void **state)
{
    static const char *const functions[] = {"tile", "cast_tiles", "mx_blocks"};
    (void)state;
    for (size_t i = 0; i < COUNT(functions); i++) {
        run r;
        failing_init(&r.device);
        r.device.refuse_function = functions[i];
        refused(NIB_NOT_AS_ASKED, try_run(&r, &(how){0}), &r.err);
        assert_int_equal(nib_status_exit(NIB_NOT_AS_ASKED), 4);
        assert_int_equal(r.device.launches, 0);
        end_run(&r);
    }
}

static void a_refused_kernel_falls_back_where_allowed(void **state)
{
    static const char *const functions[] = {"tile", "cast_tiles", "mx_blocks"};
    (void)state;
    for (size_t i = 0; i < COUNT(functions); i++) {
        run r;
        failing_init(&r.device);
        r.device.refuse_function = functions[i];
        must_run(&r, &(how){.allow = "device"});
        assert_ptr_not_equal(r.trainer.plan, r.plan);
        expect_words(refusal_note(&r, 0), "planned again without ");
        expect_words(refusal_note(&r, 0), functions[i]);
        expect_words(r.log, refusal_note(&r, 0)); /* logged at once, as a run may take long */
        /* all layers have blocks of 32, except the bf16 output */
        assert_int_equal(layers_on_host(&r), i == 2 ? 14 : 15);
        const nib_ledger_layer *line = &ledger_of(&r)->layers[1];
        assert_string_equal(line->asked, "mxfp8@opencl");
        assert_string_equal(line->done, "mxfp8@cpu");
        assert_string_equal(line->allowed, "by --allow device");
        expect_words(line->reasons[0].text, "too many registers");
        must_step(&r);
        end_run(&r);
    }
}

static void strict_makes_a_refused_kernel_an_error(void **state)
{
    (void)state;
    run r;
    failing_init(&r.device);
    r.device.refuse_function = "tile";
    refused(NIB_NOT_AS_ASKED, try_run(&r, &(how){.allow = "device", .strict = true}), &r.err);
    end_run(&r);
}

/* A pattern allows what it matches and nothing else. */
static void a_pattern_allows_no_more_than_it_matches(void **state)
{
    (void)state;
    run r;
    failing_init(&r.device);
    r.device.refuse_function = "mx_blocks";
    refused(NIB_NOT_AS_ASKED, try_run(&r, &(how){.allow = "lm_head=device"}), &r.err);
    end_run(&r);
    failing_init(&r.device);
    r.device.refuse_function = "mx_blocks";
    must_run(&r, &(how){.allow = "model.layers.*=device"});
    assert_int_equal(layers_on_host(&r), 14);
    end_run(&r);
}

/* Compile options that only one of a step's casts uses. */
static void each_form_of_a_cast_is_compiled(void **state)
{
    static const struct {
        const char *config, *option;
    } forms[] = {{"mxfp8", "-DFORM=4 -DACROSS=0"},
                 {"mxfp8", "-DFORM=4 -DACROSS=1"},
                 {"fp8", "-DFORM=3 -DACROSS=1"},
                 {"qat_8da4w", "-DFORM=1 -DACROSS=1"}};
    (void)state;
    for (size_t i = 0; i < COUNT(forms); i++) {
        run r;
        failing_init(&r.device);
        r.device.refuse_option = forms[i].option;
        must_run(&r, &(how){.config = forms[i].config, .allow = "device"});
        expect_words(refusal_note(&r, 0), forms[i].option);
        assert_true(layers_on_host(&r) > 0);
        must_step(&r);
        end_run(&r);
    }
}

/* The device adds the gradients that it computed, which saves copies; if that kernel does not
 * compile, the host adds them without --allow, as no layer requested it. */
static void the_host_adds_gradients_if_the_device_cannot(void **state)
{
    (void)state;
    int there, here;
    for (int refuses = 0; refuses < 2; refuses++) {
        run r;
        failing_init(&r.device);
        r.device.refuse_function = refuses ? "add" : NULL;
        must_run(&r, &(how){0});
        assert_int_equal(layers_on_host(&r), 0);
        assert_int_equal(sscanf(note(&r, "moves", 0), "%d ", refuses ? &here : &there), 1);
        if (refuses)
            expect_words(r.log, "planned again without add_f32__ocl: the driver 7.5");
        must_step(&r);
        end_run(&r);
    }
    assert_int_equal(here - there, 6); /* k, v and up in two layers */
}

/* A dry run makes the same plan as the run. */
static void a_dry_run_makes_the_final_plan(void **state)
{
    static kept out;
    const nib_sink sink = {keep, &out};
    nib_plan *ran;
    run r;
    (void)state;
    failing_init(&r.device);
    r.device.refuse_function = "mx_blocks";
    start(&r, &(how){.allow = "device"});
    must(nib__dry_run(r.model, r.plan, NULL, &ran, &sink, &r.err), &r);
    expect_words(out.text, "linear_mx8_mx8_f32__");
    expect_words(out.text, "linear_bf16_bf16_f32__ocl"); /* the output layer */
    assert_null(strstr(out.text, "linear_mx8_mx8_f32__ocl"));
    expect_words(r.log, "planned again without quant_f32_mx8__ocl: the driver 7.5");
    assert_non_null(ran);
    nib_plan_close(ran);
    r.trainer = (nib_trainer){.model = NULL};
    end_run(&r);
}

/* ---- memory that runs out ---- */

/* A run fits into device memory that is smaller than reported. */
static void layers_that_do_not_fit_move_to_the_host(void **state)
{
    static const char *const modes[] = {"none", "selective", "full"};
    (void)state;
    if (only_messages())
        return; /* slow, and refuses nothing */
    for (size_t mode = 0; mode < COUNT(modes); mode++) {
        run r;
        failing_init(&r.device);
        must_run(&r, &(how){.mode = modes[mode]});
        const uint64_t whole = r.device.held;
        end_run(&r);
        size_t before = SIZE_MAX, partly = 0;
        for (uint64_t part = 0; part <= 8; part++) {
            failing_init(&r.device);
            r.device.room = whole / 8 * part + (part == 8 ? 8 : 0);
            must_run(&r, &(how){.mode = modes[mode], .allow = "device"});
            assert_true(r.device.held <= r.device.room);
            const size_t moved = layers_on_host(&r);
            assert_true(moved <= before); /* more memory never moves more layers */
            before = moved;
            partly += moved > 0 && moved < 15;
            assert_true((refusal_note(&r, 0) != NULL) == (part < 8));
            if (part < 8)
                expect_words(refusal_note(&r, 0), "opencl is out of memory: ");
            must_step(&r);
            end_run(&r);
        }
        assert_int_equal(before, 0);
        assert_true(partly > 0);
    }
}

static void out_of_memory_names_what_would_help(void **state)
{
    (void)state;
    run r;
    failing_init(&r.device);
    must_run(&r, &(how){0});
    const uint64_t whole = r.device.held;
    end_run(&r);
    failing_init(&r.device);
    r.device.room = whole - 1000;
    refused(NIB_NO_MEMORY, try_run(&r, &(how){0}), &r.err);
    end_run(&r);
    failing_init(&r.device);
    r.device.room = whole - 1000;
    refused(NIB_NOT_AS_ASKED, try_run(&r, &(how){.allow = "device", .strict = true}), &r.err);
    end_run(&r);
}

/* For every allocation at which the driver may fail. */
static void any_allocation_may_be_refused(void **state)
{
    static const char *const allowances[] = {NULL, "device"};
    run r;
    (void)state;
    if (only_messages())
        return; /* slow, and refuses nothing */
    failing_init(&r.device);
    must_run(&r, &(how){0});
    const int pieces = (int)r.trainer.step.workers.gpu->count;
    end_run(&r);
    for (int taken = 0; taken < pieces; taken += 5)
        for (size_t i = 0; i < COUNT(allowances); i++) {
            failing_init(&r.device);
            r.device.takes_left = taken;
            const nib_status status = try_run(&r, &(how){.allow = allowances[i]});
            assert_int_equal(status, allowances[i] != NULL ? NIB_OK
                                     : taken > 0           ? NIB_NO_MEMORY
                                                           : NIB_NOT_AS_ASKED);
            if (status == NIB_OK)
                assert_non_null(refusal_note(&r, 0));
            end_run(&r);
        }
}

/* --memory is respected. */
static void a_memory_limit_is_respected(void **state)
{
    (void)state;
    run r;
    failing_init(&r.device);
    must_run(&r, &(how){0});
    const uint64_t limit = r.device.held / 4 * 3;
    end_run(&r);
    failing_init(&r.device);
    must_run(&r, &(how){.allow = "device", .memory = limit});
    assert_true(r.device.held <= limit && layers_on_host(&r) > 0 && layers_on_host(&r) < 15);
    must_step(&r);
    end_run(&r);
}

/* ---- a device that cannot be used ---- */

static void a_wrong_driver_is_named_with_its_version(void **state)
{
    static const char words[] = "the driver 7.5 is too old, 8 or later is wanted; update it";
    run r;
    (void)state;
    failing_init(&r.device);
    r.device.open_words = words;
    refused(NIB_NOT_AS_ASKED, try_run(&r, &(how){0}), &r.err);
    end_run(&r);
    failing_init(&r.device);
    r.device.open_words = words;
    must_run(&r, &(how){.allow = "device"});
    assert_int_equal(layers_on_host(&r), 15);
    expect_words(r.log, "planned again without the device: opencl: the driver 7.5 is too old");
    must_step(&r);
    end_run(&r);
}

/* Placed layers return to the host where allowed. */
static void placed_layers_fall_back_where_allowed(void **state)
{
    run r;
    (void)state;
    failing_init(&r.device);
    r.device.room = 1000;
    refused(NIB_NOT_AS_ASKED, try_run(&r, &(how){.place = "*down_proj=opencl"}), &r.err);
    end_run(&r);
    failing_init(&r.device);
    r.device.room = 1000;
    must_run(&r, &(how){.place = "*down_proj=opencl", .allow = "device"});
    assert_int_equal(layers_on_host(&r), 2);
    must_step(&r);
    end_run(&r);
}

/* ---- failures during a run ---- */

/* The next step fails and leaves the weights unchanged. */
static void expect_step_fails(run *r)
{
    const size_t bytes = r->trainer.params.total * sizeof(float);
    float *weights = malloc(bytes);
    assert_non_null(weights);
    memcpy(weights, r->trainer.weights, bytes);
    refused(NIB_FAILED, step(r), &r->err);
    assert_memory_equal(weights, r->trainer.weights, bytes);
    assert_int_equal(r->trainer.optimizer.steps, 1);
    free(weights);
}

static void a_failed_launch_ends_the_step_with_its_name(void **state)
{
    static const char *const functions[] = {"tile", "cast_tiles", "mx_blocks"};
    (void)state;
    for (size_t i = 0; i < COUNT(functions); i++) {
        run r;
        failing_init(&r.device);
        must_run(&r, &(how){0});
        must_step(&r);
        r.device.fail_launch = functions[i];
        expect_step_fails(&r);
        r.device.fail_launch = NULL;
        must_step(&r);
        end_run(&r);
    }
}

static void a_hanging_launch_ends_the_step_with_its_name(void **state)
{
    run r;
    (void)state;
    failing_init(&r.device);
    must_run(&r, &(how){0});
    must_step(&r);
    r.trainer.step.workers.gpu->limit_s = 0.01;
    r.device.hangs = true;
    expect_step_fails(&r);
    r.device.hangs = false;
    end_run(&r);
}

static void a_failed_read_ends_the_step(void **state)
{
    run r;
    (void)state;
    failing_init(&r.device);
    must_run(&r, &(how){0});
    must_step(&r);
    r.device.fail_read = true;
    expect_step_fails(&r);
    end_run(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(opening_compiles_and_allocates_everything),
        cmocka_unit_test(the_plan_counts_the_copies),
        cmocka_unit_test(a_refused_kernel_is_an_error_with_the_option),
        cmocka_unit_test(a_refused_kernel_falls_back_where_allowed),
        cmocka_unit_test(strict_makes_a_refused_kernel_an_error),
        cmocka_unit_test(a_pattern_allows_no_more_than_it_matches),
        cmocka_unit_test(each_form_of_a_cast_is_compiled),
        cmocka_unit_test(the_host_adds_gradients_if_the_device_cannot),
        cmocka_unit_test(a_dry_run_makes_the_final_plan),
        cmocka_unit_test(layers_that_do_not_fit_move_to_the_host),
        cmocka_unit_test(out_of_memory_names_what_would_help),
        cmocka_unit_test(any_allocation_may_be_refused),
        cmocka_unit_test(a_memory_limit_is_respected),
        cmocka_unit_test(a_wrong_driver_is_named_with_its_version),
        cmocka_unit_test(placed_layers_fall_back_where_allowed),
        cmocka_unit_test(a_failed_launch_ends_the_step_with_its_name),
        cmocka_unit_test(a_hanging_launch_ends_the_step_with_its_name),
        cmocka_unit_test(a_failed_read_ends_the_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
