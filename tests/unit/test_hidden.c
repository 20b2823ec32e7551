/* SPDX-License-Identifier: Apache-2.0
 *
 * Hidden states of a step (runner.c): times the output layer they are the logits, in every family;
 * and both have the same bits, whichever slots ask for one, the other, both or neither.
 */
#include "session.h"

#include "failing.h"
#include "failing_gpu.h"
#include "skipping.h"

#include <math.h>

#include "refused.h"

enum { LONG = 700 /* slots: more than one pass */ };

static const char *const families[] = {
    "llama2", "llama3",  "llama_bias", "qwen2",      "qwen3",        "mistral",       "smollm3",
    "olmo2",  "granite", "gemma",      "gemma2",     "gemma3",       "cohere",        "cohere2",
    "phi3",   "glm",     "glm4",       "starcoder2", "cohere_norms", "stablelm_norms"};

static opened open_model(const char *name, const char *recipe, const char *dtype,
                         const char *device)
{
    char path[64];
    snprintf(path, sizeof path, "tests/golden/models/%s", name);
    return must_open(&(open_how){
        .path = path, .recipe = recipe, .dtype = dtype, .device = device, .threads = 2});
}

static void must_step(nib_session *s, const nib_slot *slots, size_t count, const float **logits)
{
    nib_err err;
    if (nib_session_step(s, slots, count, logits, &err) != NIB_OK)
        fail_msg("%s", err.text);
}

static nib_slot slot_at(int64_t i, int64_t vocab, uint32_t outputs)
{
    return (nib_slot){0, (int32_t)i, (int32_t)((7 * i + i / 50 + 3) % vocab), outputs};
}

/* ---- what a hidden state is ---- */

/* The output layer's weight as f32 [vocab][width]. */
static float *read_head(const nib_network *net)
{
    const nib_tensor *t = nib__checkpoint_find(
        net->checkpoint, net->tied ? "model.embed_tokens.weight" : "lm_head.weight");
    assert_non_null(t);
    const int64_t count = t->shape[0] * t->shape[1];
    float *out = calloc((size_t)count, sizeof *out);
    assert_non_null(out);
    nib__to_f32(out, t->data, t->type, count);
    return out;
}

static void test_logits_are_of_hidden(void **state)
{
    enum { COUNT_OF_SLOTS = 5 };
    (void)state;
    for (size_t f = 0; f < COUNT(families); f++) {
        opened o = open_model(families[f], NULL, "f32", NULL);
        const nib_config *c = &o.model->net.config;
        const int64_t vocab = nib_session_vocab(o.session);
        float *head = read_head(&o.model->net);
        nib_slot slots[COUNT_OF_SLOTS];
        const float *logits;
        double off = 0, most = 0;
        for (int64_t i = 0; i < COUNT_OF_SLOTS; i++)
            slots[i] = slot_at(i, vocab, NIB_SLOT_LOGITS | NIB_SLOT_HIDDEN);
        must_step(o.session, slots, COUNT_OF_SLOTS, &logits);
        const float *hidden = nib_session_hidden(o.session);
        assert_non_null(hidden);
        for (int64_t i = 0; i < COUNT_OF_SLOTS; i++)
            for (int64_t v = 0; v < vocab; v++) {
                double sum = 0;
                for (int64_t k = 0; k < c->width; k++)
                    sum += (double)hidden[i * c->width + k] * (double)head[v * c->width + k];
                sum *= c->logits_scale > 0 ? c->logits_scale : 1;
                if (c->logits_cap > 0)
                    sum = c->logits_cap * tanh(sum / c->logits_cap);
                off = fmax(off, fabs(sum - (double)logits[i * vocab + v]));
                most = fmax(most, fabs(sum));
            }
        if (!(off <= 1e-5 * most) || most == 0)
            fail_msg("%s: off by %g of %g", families[f], off, most);
        free(head);
        close_opened(&o);
    }
}

/* ---- the same bits whatever is asked ---- */

/* Logits and hidden states of all positions [LONG]. */
typedef struct whole {
    float *logits, *hidden;
} whole;

/* Runs all positions in steps of `chunk` slots, where slot i asks for asked[i % count], and checks
 * or, if `fill`, writes the rows of `all`. */
static void run_all(opened *o, int64_t chunk, const uint32_t *asked, size_t count, bool fill,
                    const whole *all)
{
    const int64_t vocab = nib_session_vocab(o->session), width = o->model->net.config.width;
    const size_t row = (size_t)vocab * sizeof(float), state = (size_t)width * sizeof(float);
    nib_slot slots[LONG];
    assert_int_equal(nib_session_truncate(o->session, 0, 0, NULL), NIB_OK);
    for (int64_t from = 0; from < LONG; from += chunk) {
        const int64_t end = nib__min(from + chunk, LONG);
        int64_t logits_at = 0, hidden_at = 0;
        const float *logits = NULL;
        for (int64_t i = from; i < end; i++)
            slots[i - from] = slot_at(i, vocab, asked[(size_t)i % count]);
        must_step(o->session, slots, (size_t)(end - from), &logits);
        const float *hidden = nib_session_hidden(o->session);
        for (int64_t i = from; i < end; i++) {
            float *own = all->logits + i * vocab, *own_hidden = all->hidden + i * width;
            const uint32_t outputs = slots[i - from].outputs;
            if ((outputs & NIB_SLOT_LOGITS) != 0 && fill)
                memcpy(own, logits + logits_at++ * vocab, row);
            else if ((outputs & NIB_SLOT_LOGITS) != 0)
                assert_memory_equal(logits + logits_at++ * vocab, own, row);
            if ((outputs & NIB_SLOT_HIDDEN) != 0 && fill)
                memcpy(own_hidden, hidden + hidden_at++ * width, state);
            else if ((outputs & NIB_SLOT_HIDDEN) != 0)
                assert_memory_equal(hidden + hidden_at++ * width, own_hidden, state);
        }
        assert_int_equal(logits != NULL, logits_at > 0);
        assert_int_equal(hidden != NULL, hidden_at > 0);
    }
}

static void check_bits(const char *name, const char *recipe, const char *dtype)
{
    enum { NONE = 0, LOGITS = NIB_SLOT_LOGITS, HIDDEN = NIB_SLOT_HIDDEN, BOTH = LOGITS | HIDDEN };
    static const uint32_t both[] = {BOTH}, logits[] = {LOGITS}, hidden[] = {HIDDEN}, none[] = {0},
                          mixed[] = {HIDDEN, NONE, LOGITS, LOGITS, BOTH, HIDDEN, HIDDEN},
                          rare[] = {NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE, HIDDEN};
    opened o = open_model(name, recipe, dtype, NULL);
    const size_t vocab = (size_t)nib_session_vocab(o.session),
                 width = (size_t)o.model->net.config.width;
    const whole all = {calloc(LONG * vocab, sizeof(float)), calloc(LONG * width, sizeof(float))};
    assert_true(all.logits != NULL && all.hidden != NULL);
    run_all(&o, 1, both, 1, true, &all);
    run_all(&o, LONG, both, 1, false, &all);
    run_all(&o, LONG, logits, 1, false, &all);
    run_all(&o, LONG, hidden, 1, false, &all);
    run_all(&o, LONG, none, 1, false, &all);
    run_all(&o, LONG, mixed, COUNT(mixed), false, &all);
    run_all(&o, 17, mixed, COUNT(mixed), false, &all);
    run_all(&o, 3, mixed, COUNT(mixed), false, &all);
    run_all(&o, 513, rare, COUNT(rare), false, &all);
    free(all.logits);
    free(all.hidden);
    close_opened(&o);
}

static void test_same_bits(void **state)
{
    (void)state;
    check_bits("exaone4_window", NULL, "f32");
    check_bits("exaone4_window", NULL, "bf16");
    check_bits("gemma2", "8da4w", "f32"); /* the final norm quantizes */
    check_bits("gemma2", "int8wo", "bf16");
}

/* Slots that ask only for hidden states do not run the output layer, nor do those that ask for
 * nothing. */
static void test_hidden_without_output_layer(void **state)
{
    opened o = open_model("gemma2", NULL, "f32", NULL);
    const nib_runner *r = &o.session->runner;
    uint64_t *times = calloc(r->ops.count, sizeof *times);
    const int64_t vocab = nib_session_vocab(o.session);
    (void)state;
    assert_non_null(times);
    o.session->runner.node_ns = times;
    must_step(o.session, &(nib_slot){0, 0, 5, NIB_SLOT_HIDDEN}, 1, NULL);
    must_step(o.session, &(nib_slot){0, 1, 6, 0}, 1, NULL);
    assert_null(nib_session_hidden(o.session));
    for (size_t i = 0; i < r->ops.count; i++)
        if (r->ops.nodes[i].op == NIB_OP_LINEAR && r->ops.ld[r->ops.nodes[i].to] == vocab)
            assert_int_equal(times[i], 0);
    assert_true(times[0] > 0);
    o.session->runner.node_ns = NULL;
    free(times);
    close_opened(&o);
}

/* ---- refusals ---- */

static void test_refused(void **state)
{
    opened o = open_model("llama2", NULL, "f32", NULL);
    const float *logits = NULL;
    nib_err err;
    (void)state;
    assert_null(nib_session_hidden(o.session));
    must_step(o.session, &(nib_slot){0, 0, 5, NIB_SLOT_HIDDEN}, 1, &logits);
    assert_non_null(nib_session_hidden(o.session));
    refused(NIB_USAGE, nib_session_step(o.session, &(nib_slot){0, 1, 5, 4}, 1, &logits, &err),
            &err);
    assert_null(nib_session_hidden(o.session));
    refused(NIB_USAGE,
            nib_session_step(o.session, &(nib_slot){0, 1, 5, UINT32_MAX}, 1, &logits, &err), &err);
    assert_null(logits);
    assert_int_equal(o.session->runner.kv.lengths[0], 1);
    close_opened(&o);
}

static void test_no_memory(void **state)
{
    failing memory = {.left = -1};
    const nib_allocator a = failing_allocator(&memory);
    opened o = must_open(&(open_how){.path = "tests/golden/models/llama2", .allocator = &a});
    const nib_slot slot = {0, 0, 5, NIB_SLOT_LOGITS | NIB_SLOT_HIDDEN};
    const float *logits = NULL;
    nib_err err;
    (void)state;
    for (int left = 0; left < 2; left++) { /* logits, hidden states */
        memory.left = left;
        refused(NIB_NO_MEMORY, nib_session_step(o.session, &slot, 1, &logits, &err), &err);
        assert_null(nib_session_hidden(o.session));
        assert_int_equal(o.session->runner.kv.lengths[0], 0);
    }
    memory.left = -1;
    must_step(o.session, &slot, 1, &logits);
    assert_non_null(nib_session_hidden(o.session));
    close_opened(&o);
    assert_int_equal(memory.live, 0);
}

/* ---- on a device ---- */

/* Rows of the last step, [rows][columns]. */
static float *copy_rows(const float *rows, size_t count, size_t columns)
{
    float *copy = calloc(count * columns, sizeof *copy);
    assert_true(copy != NULL && rows != NULL);
    memcpy(copy, rows, count * columns * sizeof *copy);
    return copy;
}

static void assert_close(const char *what, const float *got, const float *want, size_t count)
{
    double off = 0, size = 0;
    for (size_t i = 0; i < count; i++) {
        off = fmax(off, fabs((double)got[i] - (double)want[i]));
        size = fmax(size, fabs((double)want[i]));
    }
    if (!(off < 0.01 * size))
        fail_msg("%s: off by %g of %g", what, off, size);
}

static void test_on_device(void **state)
{
    static const struct {
        const char *model, *recipe;
    } cases[] = {{"exaone4_window", NULL}, {"gemma2", NULL}, {"exaone4_window", "int8wo"}};
    (void)state;
    skip_without_device();
    for (size_t i = 0; i < COUNT(cases); i++) {
        nib_slot slots[LONG];
        size_t wanted = 0, hidden = 0;
        const float *logits;
        opened o = open_model(cases[i].model, cases[i].recipe, "f32", NULL);
        const size_t vocab = (size_t)nib_session_vocab(o.session),
                     width = (size_t)o.model->net.config.width;
        for (int64_t s = 0; s < LONG; s++) {
            slots[s] = slot_at(s, (int64_t)vocab, (uint32_t)(s % 5 % 4));
            wanted += (slots[s].outputs & NIB_SLOT_LOGITS) != 0;
            hidden += (slots[s].outputs & NIB_SLOT_HIDDEN) != 0;
        }
        must_step(o.session, slots, LONG, &logits);
        float *want = copy_rows(logits, wanted, vocab),
              *want_hidden = copy_rows(nib_session_hidden(o.session), hidden, width);
        close_opened(&o);
        o = open_model(cases[i].model, cases[i].recipe, "f32", tested_device());
        must_step(o.session, slots, LONG, &logits);
        assert_close("logits", logits, want, wanted * vocab);
        assert_close("hidden states", nib_session_hidden(o.session), want_hidden, hidden * width);
        /* alone, without logits, as among the others */
        float *among = copy_rows(nib_session_hidden(o.session), hidden, width);
        assert_int_equal(nib_session_truncate(o.session, 0, 0, NULL), NIB_OK);
        for (int64_t s = 0; s < LONG; s++)
            slots[s].outputs &= NIB_SLOT_HIDDEN;
        must_step(o.session, slots, LONG, NULL);
        assert_memory_equal(nib_session_hidden(o.session), among, hidden * width * sizeof *among);
        close_opened(&o);
        free(want);
        free(want_hidden);
        free(among);
    }
}

/* A device that cannot be read ends the step, without hidden states. */
static void test_device_fails(void **state)
{
    failing_gpu device;
    opened o = {0};
    nib_err err;
    const nib_slot slots[] = {{0, 0, 5, NIB_SLOT_HIDDEN}, {0, 1, 6, NIB_SLOT_HIDDEN}};
    (void)state;
    failing_init(&device);
    if (nib_engine_open(&o.engine, &(nib_engine_options){.threads = 1}, &err) != NIB_OK ||
        !failing_offer(o.engine, &device))
        fail_msg("%s", err.text);
    o.engine->measured = true;
    if (nib_model_open(&o.model, o.engine, "tests/golden/models/llama2", NULL, &err) != NIB_OK ||
        nib_plan_open(&o.plan, o.model, &(nib_request){.device = "opencl"}, &err) != NIB_OK ||
        nib_session_open(&o.session, o.model, o.plan, 1, &err) != NIB_OK)
        fail_msg("%s", err.text);
    device.fail_read = true;
    refused(NIB_FAILED, nib_session_step(o.session, slots, 2, NULL, &err), &err);
    assert_null(nib_session_hidden(o.session));
    assert_int_equal(o.session->runner.kv.lengths[0], 0);
    device.fail_read = false;
    must_step(o.session, slots, 2, NULL);
    assert_non_null(nib_session_hidden(o.session));
    close_opened(&o);
    assert_int_equal(device.live, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_logits_are_of_hidden),
        cmocka_unit_test(test_same_bits),
        cmocka_unit_test(test_hidden_without_output_layer),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_on_device),
        cmocka_unit_test(test_device_fails),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
