/* SPDX-License-Identifier: Apache-2.0
 *
 * Measured against predicted layer times: a call that is refused, cancelled or out of memory ends
 * before timing anything. tests/cli/bench.sh checks the output.
 */
#include "session_handle.h"

#include "failing.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#include "kept.h"
#include "refused.h"
#include "skipping.h"

static failing memory;
static kept printed;
static int calls;

static bool stop(void *ctx, const char *what, uint64_t done, uint64_t total)
{
    (void)ctx, (void)what, (void)done, (void)total;
    calls++;
    return false;
}

static nib_status predict(bool cancels, int allocations, const char *device, int64_t prompt,
                          nib_err *err)
{
    const nib_allocator a = failing_allocator(&memory);
    const nib_engine_options options = {.threads = 1, .allocator = &a};
    const nib_sink sink = {keep, &printed};
    nib_engine *engine;
    memory = (failing){.left = -1};
    printed = (kept){.size = 0};
    calls = 0;
    assert_int_equal(nib_engine_open(&engine, &options, err), NIB_OK);
    engine->measured = true; /* skip measuring: rates do not matter here */
    if (cancels)
        engine->callbacks.progress = stop;
    memory.left = allocations;
    const nib_status status = nib_bench_predict(engine, device, prompt, NIB_FORM_TEXT, &sink, err);
    memory.left = -1;
    nib_engine_close(engine);
    assert_int_equal(memory.live, 0);
    assert_int_equal(printed.size, 0);
    return status;
}

static void impossible_requests_are_refused(void **state)
{
    nib_err err;
    (void)state;
    refused(NIB_USAGE, predict(false, -1, "mi210", 0, &err), &err);
    refused(NIB_USAGE, predict(false, -1, "cpu", 9000, &err), &err);
}

static void cancelling_ends_before_the_first_layer(void **state)
{
    nib_err err;
    (void)state;
    refused(NIB_CANCELLED, predict(true, -1, NULL, 16, &err), &err);
    assert_int_equal(calls, 1);
}

static void running_out_of_memory_is_an_error(void **state)
{
    nib_err err;
    (void)state;
    refused(NIB_NO_MEMORY, predict(false, 0, NULL, 16, &err), &err); /* the layers to time */
    refused(NIB_NO_MEMORY, predict(false, 1, NULL, 16 / sparse(8), &err), &err); /* the output */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(impossible_requests_are_refused),
        cmocka_unit_test(cancelling_ends_before_the_first_layer),
        cmocka_unit_test(running_out_of_memory_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
