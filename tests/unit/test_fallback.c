/* SPDX-License-Identifier: Apache-2.0
 *
 * Device failures while a run is opened, on the shipped model: each leads to another allowed plan,
 * or to an error with the driver's message, the costs and the option to type. Later failures end
 * the run with an error that names the launch.
 */
#include "session.h"

#include "failing_gpu.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "refused.h"

#define MODEL "models/nibble-tales"

/* An engine whose only device is the failing one, and a session on it. */
typedef struct run {
    failing_gpu device;
    opened o;
    nib_err err;
} run;

typedef struct how {
    const char *allow, *recipe, *place;
    bool strict;
    uint64_t memory;
} how;

static nib_status try_run(run *r, const how *h)
{
    const nib_engine_options options = {.threads = 1};
    const nib_request request = {.device = h->place != NULL ? NULL : "opencl",
                                 .recipe = h->recipe,
                                 .allow = {&h->allow, h->allow != NULL},
                                 .place = {&h->place, h->place != NULL},
                                 .strict = h->strict,
                                 .context = 64,
                                 .memory = h->memory};
    r->o = (opened){0};
    r->err = (nib_err){NIB_OK, ""};
    if (nib_engine_open(&r->o.engine, &options, &r->err) != NIB_OK ||
        !failing_offer(r->o.engine, &r->device))
        fail_msg("%s", r->err.text);
    r->o.engine->measured = true;
    if (nib_model_open(&r->o.model, r->o.engine, MODEL, NULL, &r->err) != NIB_OK ||
        nib_plan_open(&r->o.plan, r->o.model, &request, &r->err) != NIB_OK)
        fail_msg("%s", r->err.text);
    return nib_session_open(&r->o.session, r->o.model, r->o.plan, 1, &r->err);
}

static void end_run(run *r)
{
    close_opened(&r->o);
    assert_int_equal(r->device.live, 0); /* memory, programs, functions and events */
    assert_int_equal(r->device.held, 0);
}

/* Runs before each test, and within one before the next run. */
static int begin(void **state)
{
    static run r;
    failing_init(&r.device);
    r.o = (opened){0};
    *state = &r;
    return 0;
}

static int end(void **state)
{
    end_run(*state);
    return 0;
}

static void begin_again(run *r)
{
    end_run(r);
    failing_init(&r->device);
}

static void must_run(run *r, const how *h)
{
    if (try_run(r, h) != NIB_OK)
        fail_msg("%s", r->err.text);
}

static void says(const char *text, const char *words)
{
    if (strstr(text, words) == NULL)
        fail_msg("\"%s\" lacks \"%s\"", text, words);
}

static const nib_ledger *ledger_of(const run *r) { return &r->o.session->plan->assignment.ledger; }

/* The text of the n-th note about a refusal; NULL: there are fewer. */
static const char *refusal_note(const run *r, size_t n)
{
    const nib_ledger *l = ledger_of(r);
    for (size_t i = 0; i < l->note_count; i++)
        if (strcmp(l->notes[i].code, NIB_NOTE_REFUSED) == 0 && n-- == 0)
            return l->notes[i].text;
    return NULL;
}

/* True if weights were refused. Refused packing does not count: the host then packs the weight. */
static bool weights_refused(const run *r)
{
    for (size_t i = 0; refusal_note(r, i) != NULL; i++)
        if (strstr(refusal_note(r, i), "without pack__ocl: ") == NULL)
            return true;
    return false;
}

static const nib_ledger_layer *line_of(const run *r, const char *name)
{
    const nib_ledger *l = ledger_of(r);
    for (size_t i = 0; i < l->layer_count; i++)
        if (strcmp(l->layers[i].name, name) == 0)
            return &l->layers[i];
    return NULL;
}

static size_t layers_on_host(const run *r)
{
    const nib_assignment *plan = &r->o.session->plan->assignment;
    size_t count = 0;
    for (size_t i = 0; i < plan->count; i++)
        count += plan->layers[i].rung == NIB_RUNG_DEVICE;
    return count;
}

static nib_status step(run *r)
{
    const nib_slot slot = {
        .position = r->o.session->runner.kv.lengths[0], .token = 1, .outputs = NIB_SLOT_LOGITS};
    const float *logits;
    r->err = (nib_err){NIB_OK, ""};
    return nib_session_step(r->o.session, &slot, 1, &logits, &r->err);
}

/* ---- a device that refuses nothing ---- */

static void nothing_is_compiled_or_allocated_after_opening(void **state)
{
    run *r = *state;
    must_run(r, &(how){.recipe = "8da4w"});
    assert_ptr_equal(nib_session_plan(r->o.session), r->o.plan);
    assert_null(refusal_note(r, 0));
    const size_t compiled = r->o.session->runner.gpu->loaded_count;
    const uint64_t held = r->device.held;
    const int packed = r->device.launches;
    r->device.takes_left = 0;
    r->device.refuse_option = "";
    nib_slot slots[40];
    for (int i = 0; i < 40; i++)
        slots[i] = (nib_slot){.position = i,
                              .token = i,
                              .outputs = i == 39  ? NIB_SLOT_LOGITS | NIB_SLOT_HIDDEN
                                         : i > 30 ? NIB_SLOT_HIDDEN
                                                  : 0};
    const float *logits;
    if (nib_session_step(r->o.session, slots, 40, &logits, &r->err) != NIB_OK)
        fail_msg("%s", r->err.text);
    assert_non_null(nib_session_hidden(r->o.session));
    for (int i = 0; i < 3; i++)
        assert_int_equal(step(r), NIB_OK);
    assert_int_equal(r->o.session->runner.gpu->loaded_count, compiled);
    assert_int_equal(r->device.held, held);
    assert_true(r->device.launches > packed);
}

/* ---- a kernel that the driver cannot compile ---- */

static void a_refused_operation_is_an_error_with_reason_cost_and_option(void **state)
{
    run *r = *state;
    r->device.refuse_function = "attention";
    refused(NIB_NOT_AS_ASKED, try_run(r, &(how){.recipe = "8da4w"}), &r->err);
    assert_int_equal(r->device.launches, 0);
}

static void a_refused_operation_moves_if_allowed(void **state)
{
    run *r = *state;
    static const char *const allowances[] = {"device", "attn=device", "a*n=device"};
    for (size_t i = 0; i < COUNT(allowances); i++) {
        begin_again(r);
        r->device.refuse_function = "attention";
        must_run(r, &(how){.recipe = "8da4w", .allow = allowances[i]});
        assert_ptr_not_equal(nib_session_plan(r->o.session), r->o.plan);
        const nib_ledger_layer *line = line_of(r, "attn");
        assert_non_null(line);
        assert_int_equal(line->rung, NIB_RUNG_DEVICE);
        assert_string_equal(line->asked, "f32@opencl");
        assert_string_equal(line->done, "f32@cpu");
        says(line->allowed, allowances[i]);
        says(line->reasons[0].text, "too many registers");
        says(refusal_note(r, 0), "planned again without attn_f32__ocl: the driver 7.5");
        assert_null(refusal_note(r, 1));
        assert_int_equal(layers_on_host(r), 0);
        assert_int_equal(step(r), NIB_OK);
    }
}

static void strict_makes_a_refused_operation_an_error(void **state)
{
    run *r = *state;
    r->device.refuse_function = "attention";
    refused(NIB_NOT_AS_ASKED, try_run(r, &(how){.allow = "device", .strict = true}), &r->err);
}

/* Opening tries launches for every number of tokens; only long prompts use this one. */
static void a_kernel_of_long_prompts_is_refused_before_the_first_token(void **state)
{
    run *r = *state;
    r->device.refuse_function = "tile";
    refused(NIB_NOT_AS_ASKED, try_run(r, &(how){.recipe = "8da4w"}), &r->err);
    begin_again(r);
    r->device.refuse_function = "tile";
    must_run(r, &(how){.recipe = "8da4w", .allow = "device"});
    assert_int_equal(layers_on_host(r),
                     r->o.session->plan->assignment.count - 1); /* all but the embedding */
    assert_int_equal(step(r), NIB_OK);
}

/* Packing and sampling run on the device if it compiles them, otherwise on the CPU. */
static void packing_and_sampling_rows_can_be_refused(void **state)
{
    run *r = *state;
    static const struct {
        const char *function, *row;
    } refusals[] = {{"pack_codes", "pack__ocl"}, {"sample", "sample_f32__ocl_1x1"}};
    for (size_t i = 0; i < COUNT(refusals); i++) {
        char words[96];
        begin_again(r);
        r->device.refuse_function = refusals[i].function;
        must_run(r, &(how){.recipe = "8da4w"});
        snprintf(words, sizeof words, "planned again without %s: ", refusals[i].row);
        says(refusal_note(r, 0), words);
        says(refusal_note(r, 0), "too many registers");
        assert_null(refusal_note(r, 1));
        assert_int_equal(layers_on_host(r), 0);
        assert_int_equal(step(r), NIB_OK);
    }
}

/* Two rows may be refused with the same message: that is not a failure of the whole device. */
static void rows_refused_with_one_message_are_distinct(void **state)
{
    run *r = *state;
    r->device.subgroups = true;
    r->device.refuse_function = "attention";
    must_run(r, &(how){.recipe = "8da4w", .allow = "device"});
    says(refusal_note(r, 0), "planned again without attn_f32__ocl_sg: the driver 7.5");
    says(refusal_note(r, 1), "planned again without attn_f32__ocl: the driver 7.5");
    assert_null(refusal_note(r, 2));
    assert_int_equal(layers_on_host(r), 0);
}

/* A pattern of --allow allows only what it matches. */
static void an_allow_pattern_allows_only_its_matches(void **state)
{
    run *r = *state;
    r->device.refuse_function = "attention";
    refused(NIB_NOT_AS_ASKED, try_run(r, &(how){.allow = "norm=device"}), &r->err);
}

/* ---- out of memory ---- */

/* However little memory the driver really has, a run opens within it. */
static void out_of_memory_moves_layers_if_allowed(void **state)
{
    run *r = *state;
    must_run(r, &(how){.recipe = "8da4w"});
    const uint64_t whole = r->device.held;
    size_t before = SIZE_MAX, partly = 0;
    for (uint64_t part = 0; part <= 8; part++) {
        begin_again(r);
        r->device.room = whole / 8 * part + (part == 8 ? 8 : 0);
        must_run(r, &(how){.recipe = "8da4w", .allow = "device"});
        assert_true(r->device.held <= r->device.room);
        const size_t moved = layers_on_host(r);
        assert_true(moved <= before); /* more memory never moves more layers */
        before = moved;
        partly += moved > 0 && moved < r->o.session->plan->assignment.count;
        assert_true(weights_refused(r) == (part < 8));
        if (part < 8)
            says(refusal_note(r, 0), "opencl is out of memory: ");
        assert_int_equal(step(r), NIB_OK);
    }
    assert_int_equal(before, 0);
    assert_true(partly > 0);
}

static void out_of_memory_is_an_error_with_remedies(void **state)
{
    run *r = *state;
    must_run(r, &(how){.recipe = "bf16"});
    const uint64_t whole = r->device.held;
    begin_again(r);
    r->device.room = whole - 100000;
    refused(NIB_NO_MEMORY, try_run(r, &(how){.recipe = "bf16"}), &r->err);
}

/* Whichever allocation the driver refuses first. */
static void any_allocation_may_be_refused_first(void **state)
{
    static const char *const allowances[] = {NULL, "device"};
    run *r = *state;
    must_run(r, &(how){.recipe = "int8wo"});
    const int pieces = (int)r->o.session->runner.gpu->count;
    for (int taken = 0; taken < pieces; taken += 3) {
        for (size_t i = 0; i < COUNT(allowances); i++) {
            begin_again(r);
            r->device.takes_left = taken;
            const nib_status status =
                try_run(r, &(how){.recipe = "int8wo", .allow = allowances[i]});
            assert_true(allowances[i] != NULL
                            ? status == NIB_OK
                            : status == NIB_NO_MEMORY || status == NIB_NOT_AS_ASKED);
            if (status == NIB_OK)
                assert_non_null(refusal_note(r, 0));
        }
    }
}

/* A --memory limit is known before opening: it is planned for once, and kept. */
static void a_memory_limit_is_planned_for_and_kept(void **state)
{
    run *r = *state;
    must_run(r, &(how){.recipe = "bf16"});
    const uint64_t whole = r->device.held;
    const uint64_t limits[] = {whole - 200000, whole - 3000000};
    for (size_t i = 0; i < COUNT(limits); i++) {
        begin_again(r);
        must_run(r, &(how){.recipe = "bf16", .allow = "device", .memory = limits[i]});
        assert_false(weights_refused(r));
        assert_true(r->device.held <= limits[i] && layers_on_host(r) > 0);
        assert_true(r->device.held >
                    limits[i] - 1500000); /* and nearly used up: no layer is larger than the rest */
        begin_again(r);
        refused(NIB_NO_MEMORY, try_run(r, &(how){.recipe = "bf16", .memory = limits[i]}), &r->err);
    }
}

static void strict_moves_no_layer_for_memory(void **state)
{
    run *r = *state;
    const how strict = {.recipe = "bf16", .allow = "device", .strict = true, .memory = 9000000};
    refused(NIB_NOT_AS_ASKED, try_run(r, &strict), &r->err);
}

/* ---- an unusable device ---- */

static void an_unusable_driver_is_named_with_its_version(void **state)
{
    static const char words[] = "the driver 7.5 is too old, 8 or later is wanted; update it";
    run *r = *state;
    r->device.open_words = words;
    refused(NIB_NOT_AS_ASKED, try_run(r, &(how){.recipe = "8da4w"}), &r->err);
    begin_again(r);
    r->device.open_words = words;
    must_run(r, &(how){.recipe = "8da4w", .allow = "device"});
    assert_int_equal(layers_on_host(r), r->o.session->plan->assignment.count);
    says(refusal_note(r, 0), "planned again without the device: opencl: the driver 7.5 is too old");
    assert_null(refusal_note(r, 1));
    assert_int_equal(step(r), NIB_OK);
}

/* ---- failures during a run ---- */

static void a_failed_launch_is_named(void **state)
{
    run *r = *state;
    must_run(r, &(how){.recipe = "8da4w"});
    assert_int_equal(step(r), NIB_OK);
    r->device.fail_launch = "attention";
    refused(NIB_FAILED, step(r), &r->err);
    assert_int_equal(r->o.session->runner.kv.lengths[0], 1); /* as before the failed step */
    r->device.fail_launch = NULL;
    assert_int_equal(step(r), NIB_OK);
}

static void a_hung_launch_is_named(void **state)
{
    run *r = *state;
    must_run(r, &(how){.recipe = "8da4w"});
    r->o.session->runner.gpu->limit_s = 0.01;
    r->device.hangs = true;
    refused(NIB_FAILED, step(r), &r->err);
    assert_int_equal(r->o.session->runner.kv.lengths[0], 0);
    r->device.hangs = false;
}

/* Launches under one event cannot be told apart: any of them may have hung. */
static void a_hung_batch_names_its_first_and_last_launch(void **state)
{
    static const char *const operations[] = {"norm_f32__ocl", "add_f32__ocl", "norm_f32__ocl"};
    run *r = *state;
    must_run(r, &(how){.recipe = "8da4w"});
    nib_gpu *gpu = r->o.session->runner.gpu;
    const nib_norm norm = {.rows = 1, .width = 64, .ldx = 64, .ldo = 64};
    const nib_add add = {.m = 1, .width = 64, .ldx = 64, .ldy = 64};
    gpu->limit_s = 0.01;
    r->device.hangs = true;
    for (size_t i = 0; i < COUNT(operations); i++)
        assert_int_equal(nib__gpu_run(gpu, nib__kernel_find(operations[i]),
                                      i == 1 ? (const void *)&add : &norm, &r->err),
                         NIB_OK);
    refused(NIB_FAILED, nib__gpu_finish(gpu, &r->err), &r->err);
    r->device.hangs = false;
}

static void a_failed_read_ends_the_step(void **state)
{
    run *r = *state;
    must_run(r, &(how){.recipe = "8da4w"});
    r->device.fail_read = true;
    refused(NIB_FAILED, step(r), &r->err);
}

/* ---- a device that computes nothing ---- */

/* Without measured device rates, bench shows no shares of peak, nor the CPU's instead. */
static void bench_shows_no_shares_of_unmeasured_rates(void **state)
{
    const nib_bench_options options = {.prompt_tokens = 16, .new_tokens = 2, .repeats = 1};
    run *r = *state;
    nib_bench_result result = {.size = sizeof result};
    must_run(r, &(how){.recipe = "8da4w"});
    assert_int_equal(nib_bench(r->o.session, &options, &result, &r->err), NIB_OK);
    assert_true(result.decode_tokens_per_s > 0 && result.device_bytes > 0);
    assert_true(result.copy_gb_per_s == 0 && result.peak_gop_per_s == 0);
    assert_true(result.bandwidth_share == 0 && result.arithmetic_share == 0);
}

/* ---- layers on device and CPU ---- */

static void placed_layers_move_back_if_allowed(void **state)
{
    run *r = *state;
    r->device.room = 1000;
    refused(NIB_NOT_AS_ASKED, try_run(r, &(how){.place = "*down_proj=opencl"}), &r->err);
    begin_again(r);
    r->device.room = 1000;
    must_run(r, &(how){.place = "*down_proj=opencl", .allow = "device"});
    assert_int_equal(layers_on_host(r), 5);
    assert_int_equal(step(r), NIB_OK);
}

#define TEST(test) cmocka_unit_test_setup_teardown(test, begin, end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(nothing_is_compiled_or_allocated_after_opening),
        TEST(a_refused_operation_is_an_error_with_reason_cost_and_option),
        TEST(a_refused_operation_moves_if_allowed),
        TEST(strict_makes_a_refused_operation_an_error),
        TEST(a_kernel_of_long_prompts_is_refused_before_the_first_token),
        TEST(packing_and_sampling_rows_can_be_refused),
        TEST(rows_refused_with_one_message_are_distinct),
        TEST(an_allow_pattern_allows_only_its_matches),
        TEST(out_of_memory_moves_layers_if_allowed),
        TEST(out_of_memory_is_an_error_with_remedies),
        TEST(any_allocation_may_be_refused_first),
        TEST(a_memory_limit_is_planned_for_and_kept),
        TEST(strict_moves_no_layer_for_memory),
        TEST(an_unusable_driver_is_named_with_its_version),
        TEST(a_failed_launch_is_named),
        TEST(a_hung_launch_is_named),
        TEST(a_hung_batch_names_its_first_and_last_launch),
        TEST(a_failed_read_ends_the_step),
        TEST(bench_shows_no_shares_of_unmeasured_rates),
        TEST(placed_layers_move_back_if_allowed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
