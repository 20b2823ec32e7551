/* SPDX-License-Identifier: Apache-2.0
 *
 * A dry run of a shipped config cut down in size: it reports memory first, with the numbers of a
 * real run, tries each distinct shape, and the progress callback can cancel it between two pieces.
 */
#include "dry_run.h"

#include <stdio.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#include "kept.h"
#include "refused.h"

typedef struct job {
    nib_engine *engine;
    nib_model *model;
    nib_plan *plan;
    kept out;
    int calls, last; /* progress calls; the call that cancels, 0: none */
    uint64_t done;
    bool whole; /* some layer was completed */
} job;

static bool on_progress(void *ctx, const char *what, uint64_t done, uint64_t total)
{
    job *j = ctx;
    assert_string_equal(what, "try");
    assert_true(done <= total && (done == 0 || done >= j->done));
    j->done = done;
    j->whole |= done == total;
    return ++j->calls != j->last;
}

static void open_job(job *j, int last)
{
    static const char *const small[] = {"model.n_layers=2",
                                        "model.dim=64",
                                        "model.n_heads=4",
                                        "model.n_kv_heads=2",
                                        "training.local_batch_size=2",
                                        "training.seq_len=48",
                                        "training.global_batch_size=4"};
    *j = (job){.last = last};
    const nib_engine_options engine = {.threads = 1, .callbacks = {on_progress, NULL, j}};
    const nib_model_options model = {.overrides = {small, COUNT(small)}};
    const nib_request request = {0};
    nib_err err;
    if (nib_engine_open(&j->engine, &engine, &err) ||
        nib_model_open(&j->model, j->engine, "configs/llama3_debugmodel_mxfp8.json", &model, &err))
        fail_msg("%s", err.text);
    j->engine->measured = true;
    if (nib_plan_open(&j->plan, j->model, &request, &err))
        fail_msg("%s", err.text);
}

static nib_status dry_run(job *j, nib_err *err)
{
    const nib_sink sink = {keep, &j->out};
    j->calls = 0;
    return nib__dry_run(j->model, j->plan, NULL, NULL, &sink, err);
}

static void close_job(job *j)
{
    nib_plan_close(j->plan);
    nib_model_close(j->model);
    nib_engine_close(j->engine);
}

static void test_tries_each_shape(void **state)
{
    static job j;
    nib_err err;
    nib_trainer trainer;
    char memory[64], size[32];
    (void)state;
    open_job(&j, 0);
    if (dry_run(&j, &err) != NIB_OK)
        fail_msg("%s", err.text);
    assert_true(j.whole);
    assert_int_equal(nib__trainer_open(&trainer, j.model, j.plan, NULL, &err), NIB_OK);
    snprintf(memory, sizeof memory, "memory of a run: %s (",
             nib__format_bytes(size, nib__trainer_bytes(&trainer)));
    nib__trainer_close(&trainer);
    assert_true(strncmp(j.out.text, memory, strlen(memory)) == 0);
    assert_non_null(strstr(j.out.text, "two moments and 2 sums of gradients"));
    assert_non_null(
        strstr(j.out.text, "model.layers.0.self_attn.q_proj: 4 of n 64, k 64, m 96, mxfp8"));
    assert_non_null(strstr(j.out.text, "lm_head: 1 of n 2048, k 64, m 96, bf16"));
    assert_non_null(strstr(j.out.text, "linear layers of a micro-batch: "));
    close_job(&j);
}

static void test_is_cancelled(void **state)
{
    static job j;
    nib_err err;
    (void)state;
    for (int last = 1; last < 40; last += 9) {
        open_job(&j, last);
        refused(NIB_CANCELLED, dry_run(&j, &err), &err);
        assert_int_equal(j.calls, last);
        close_job(&j);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tries_each_shape),
        cmocka_unit_test(test_is_cancelled),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
