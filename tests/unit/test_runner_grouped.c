/* SPDX-License-Identifier: Apache-2.0
 *
 * Mixtures of experts on a device (src/model/runner_grouped.c): any of their operations may run on
 * the host, the plan counts the copies that are made, and a choice that fails is the same error.
 */
#include "session.h"
#include "skipping.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#define MODEL "tests/golden/models/qwen3_moe"
enum { VOCAB_MAX = 256 };

typedef struct how {
    const char *name, *device, *recipe;
    const char *without, *allow, *place; /* at most one of each */
} how;

static opened open_on(const how *h, nib_err *err)
{
    const nib_engine_options options = {.threads = 1};
    const nib_request request = {.dtype = "f32",
                                 .recipe = h->recipe,
                                 .device = h->device,
                                 .without = {&h->without, h->without != NULL},
                                 .allow = {&h->allow, h->allow != NULL},
                                 .place = {&h->place, h->place != NULL}};
    opened o = {0};
    nib_status status = nib_engine_open(&o.engine, &options, err);
    if (status == NIB_OK) {
        o.engine->measured = true;
        status = nib_model_open(&o.model, o.engine, MODEL, NULL, err);
    }
    if (status == NIB_OK)
        status = nib_plan_open(&o.plan, o.model, &request, err);
    if (status == NIB_OK)
        status = nib_session_open(&o.session, o.model, o.plan, 1, err);
    if (status != NIB_OK)
        fail_msg("%s: %s", h->name, err->text);
    return o;
}

static const char *note_of(const opened *o, const char *code)
{
    const nib_ledger *ledger = &o->plan->assignment.ledger;
    for (size_t i = 0; i < ledger->note_count; i++)
        if (strcmp(ledger->notes[i].code, code) == 0)
            return ledger->notes[i].text;
    return "";
}

/* Logits of the last of a few tokens, then of one more. */
static void read_logits(const opened *o, float out[2][VOCAB_MAX])
{
    static const nib_slot prompt[] = {
        {0, 0, 5, 0}, {0, 1, 60, 0}, {0, 2, 7, 0}, {0, 3, 11, 0}, {0, 4, 9, NIB_SLOT_LOGITS}};
    static const nib_slot next = {0, 5, 20, NIB_SLOT_LOGITS};
    const size_t vocab = (size_t)nib_session_vocab(o->session);
    const float *logits;
    nib_err err;
    assert_true(vocab <= VOCAB_MAX);
    if (nib_session_step(o->session, prompt, COUNT(prompt), &logits, &err) != NIB_OK)
        fail_msg("%s", err.text);
    memcpy(out[0], logits, vocab * sizeof *logits);
    if (nib_session_step(o->session, &next, 1, &logits, &err) != NIB_OK)
        fail_msg("%s", err.text);
    memcpy(out[1], logits, vocab * sizeof *logits);
}

/* Copies of a step: moves, what failed, and the token that was drawn or its logits. */
static int count_copies(const opened *o)
{
    const nib_runner *r = &o->session->runner;
    int copies = r->failed != NULL;
    for (size_t i = 0; i < r->ops.count; i++)
        copies += r->ops.nodes[i].op == NIB_OP_MOVE;
    return copies + (r->ops.nodes[r->ops.count - 1].side == NIB_SIDE_GPU);
}

#define RULES                                                                                      \
    "{\"schema\": 1, \"rules\": [{\"match\": \"*.experts.1.*\", \"scheme\": \"int8dq\"}, "         \
    "{\"match\": \"*\", \"scheme\": \"8da4w-g32\"}]}"

static void every_operation_may_run_on_the_host(void **state)
{
    static const char *const ops[] = {"route", "sort", "dispatch", "combine"};
    char rows[COUNT(ops)][32], others[64];
    const bool cuda = strncmp(tested_device(), "cuda", 4) == 0;
    for (size_t i = 0; i < COUNT(ops); i++)
        snprintf(rows[i], sizeof rows[i], "%s_f32__%s", ops[i], cuda ? "sm80" : "ocl");
    snprintf(others, sizeof others, "*experts*=%s", tested_device());
    const how cases[] = {
        {"all on the device", tested_device(), NULL, NULL, NULL, NULL},
        {"the choice", tested_device(), NULL, rows[0], "device", NULL},
        {"sorting", tested_device(), NULL, rows[1], "device", NULL},
        {"dispatch", tested_device(), NULL, rows[2], "device", NULL},
        {"combine", tested_device(), NULL, rows[3], "device", NULL},
        {"the experts", tested_device(), NULL, NULL, NULL, "*experts*=cpu"},
        {"all but the experts", NULL, NULL, NULL, NULL, others},
        {"quantized experts", tested_device(), "8da4w-g32", NULL, NULL, NULL},
        {"experts that differ", tested_device(), RULES, NULL, NULL, NULL},
    };
    (void)state;
    skip_without_device();
    for (size_t i = 0; i < COUNT(cases); i++) {
        const how host = {.name = "the host", .recipe = cases[i].recipe};
        float want[2][VOCAB_MAX] = {{0}}, got[2][VOCAB_MAX] = {{0}};
        double off = 0, size = 0;
        nib_err err;
        opened o = open_on(&host, &err);
        read_logits(&o, want);
        close_opened(&o);
        o = open_on(&cases[i], &err);
        read_logits(&o, got);
        for (int v = 0; v < 2 * VOCAB_MAX; v++) {
            off = fmax(off, fabs((double)(&got[0][0])[v] - (double)(&want[0][0])[v]));
            size = fmax(size, fabs((double)(&want[0][0])[v]));
        }
        if (!(off < 1e-4 * size))
            fail_msg("%s: off by %g of %g", cases[i].name, off, size);
        int copies = 0;
        assert_int_equal(sscanf(note_of(&o, "moves"), "%d cop", &copies), 1);
        if (copies != count_copies(&o))
            fail_msg("%s: %d copies planned, %d made", cases[i].name, copies, count_copies(&o));
        close_opened(&o);
    }
}

/* Says whether a matrix takes one launch. */
static void the_plan_says_how_experts_run(void **state)
{
    const how same = {.name = "alike", .device = tested_device()},
              differ = {.name = "different", .device = tested_device(), .recipe = RULES};
    nib_err err;
    (void)state;
    skip_without_device();
    opened o = open_on(&same, &err);
    assert_non_null(strstr(note_of(&o, "experts"), "; one launch multiplies all experts"));
    close_opened(&o);
    o = open_on(&differ, &err);
    assert_non_null(strstr(note_of(&o, "experts"),
                           "; in 6 of 6 matrices each expert that has rows takes a launch, after a "
                           "copy of their numbers to the host: their experts differ"));
    close_opened(&o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_operation_may_run_on_the_host),
        cmocka_unit_test(the_plan_says_how_experts_run),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
