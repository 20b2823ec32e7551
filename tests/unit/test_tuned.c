/* SPDX-License-Identifier: Apache-2.0
 *
 * Measured kernel orders: a plan uses them within the layer's arithmetic contract, with the same
 * bits; the saved file is read back, and one that does not apply is ignored with a note.
 */
#include "session.h"
#include "tuned.h"

#include <setjmp.h>
#include <stdarg.h>
#include <unistd.h>

#include <cmocka.h>

static const char tales[] = "models/nibble-tales";

static nib_query query_of(const nib_plan *p, const nib_layer_plan *layer, int64_t m)
{
    nib_query q;
    nib__plan_query(&q, layer->layer, &layer->done, &p->machine, &p->policy, NIB_OP_LINEAR,
                    NIB_PHASE_INFER, m);
    return q;
}

/* All rows that could run the query, with the chosen one last; `other`: rows of another contract.
 */
static nib_tuned_line slowest_first(const nib_query *q, const nib_kernel *chosen, bool other)
{
    nib_tuned_line line = {.count = 0};
    for (size_t i = 0; i < NIB_TUNED_KEY; i++)
        line.key[i] = q->fact[nib__tuned_facts[i]];
    for (size_t i = 0; i < nib__kernel_count() && line.count + 1 < NIB_TUNED_ROWS; i++) {
        const nib_kernel *row = nib__kernel_at(i);
        const bool same = row->arithmetic == chosen->arithmetic;
        if (row != chosen && row->peer == NULL && same != other && row->op == NIB_OP_LINEAR &&
            (other || (nib__kernel_keyed(row, q) && nib__kernel_holds(row, q, true))))
            line.rows[line.count++] = (nib_tuned_row){row, 1e-6 * (line.count + 1)};
    }
    line.rows[line.count++] = (nib_tuned_row){chosen, 1e-3};
    return line;
}

static void add_slowest_first(nib_tuned *t, const nib_plan *p, bool other)
{
    for (size_t i = 1; i < p->assignment.count; i++)
        for (int u = 0; u < p->assignment.layers[i].use_count; u++) {
            const nib_use *use = &p->assignment.layers[i].uses[u];
            const nib_query q = query_of(p, &p->assignment.layers[i], use->m_min);
            const nib_tuned_line line = slowest_first(&q, use->kernel, other);
            assert_true(nib__tuned_add(t, &line));
        }
}

/* Logits of a prompt and of one more token; the caller frees them. */
static float *logits_of(nib_model *model, const nib_plan *plan, size_t *size)
{
    enum { PROMPT = 20 };
    nib_session *s;
    nib_err err;
    nib_slot slots[PROMPT];
    const float *logits;
    if (nib_session_open(&s, model, plan, 1, &err) != NIB_OK)
        fail_msg("%s", err.text);
    *size = (size_t)nib_session_vocab(s) * sizeof(float);
    float *kept = malloc(2 * *size);
    for (int i = 0; i < PROMPT; i++)
        slots[i] = (nib_slot){
            .position = i, .token = 3 * i + 1, .outputs = i + 1 == PROMPT ? NIB_SLOT_LOGITS : 0};
    assert_int_equal(nib_session_step(s, slots, PROMPT, &logits, &err), NIB_OK);
    memcpy(kept, logits, *size);
    slots[0] = (nib_slot){.position = PROMPT, .token = 7, .outputs = NIB_SLOT_LOGITS};
    assert_int_equal(nib_session_step(s, slots, 1, &logits, &err), NIB_OK);
    memcpy((char *)kept + *size, logits, *size);
    nib_session_close(s);
    return kept;
}

/* The number of linear layers that run another row than in the ranked plan. */
static size_t count_changed_rows(const nib_plan *a, const nib_plan *b)
{
    size_t count = 0;
    for (size_t i = 1; i < a->assignment.count; i++)
        count += a->assignment.layers[i].uses[0].kernel != b->assignment.layers[i].uses[0].kernel;
    return count;
}

static void check_recipe(const char *recipe)
{
    opened o = must_open(&(open_how){.path = tales, .recipe = recipe, .threads = 2});
    const nib_allocator a = nib__allocator_default();
    nib_tuned tuned, others;
    nib_plan *plan;
    size_t size, with_rows = 0;
    const nib_request request = {.recipe = recipe};
    nib__tuned_init(&tuned, &a);
    nib__tuned_init(&others, &a);
    add_slowest_first(&tuned, o.plan, false);
    add_slowest_first(&others, o.plan, true);
    for (size_t i = 1; i < o.plan->assignment.count; i++) {
        const nib_query q = query_of(o.plan, &o.plan->assignment.layers[i], 1);
        with_rows += nib__tuned_find(&tuned, &q)->count > 1;
    }
    assert_true(with_rows > 0 || nib__kernel_is_ref(o.plan->assignment.layers[1].uses[0].kernel));
    float *ranked = logits_of(o.model, o.plan, &size);

    o.engine->here.tuned = &tuned;
    assert_int_equal(nib_plan_open(&plan, o.model, &request, NULL), NIB_OK);
    assert_int_equal(count_changed_rows(o.plan, plan), with_rows);
    for (size_t i = 1; i < plan->assignment.count; i++) /* one packing of the weight for all uses */
        for (int u = 0; u < plan->assignment.layers[i].use_count; u++) {
            const nib_use *uses = plan->assignment.layers[i].uses;
            assert_ptr_equal(uses[u].kernel->packing, uses[0].kernel->packing);
            assert_true(uses[u].tuned_s > 0);
        }
    float *measured = logits_of(o.model, plan, &size);
    assert_memory_equal(ranked, measured, 2 * size);
    nib_plan_close(plan);

    /* rows of another contract are ignored, whatever the file says */
    o.engine->here.tuned = &others;
    assert_int_equal(nib_plan_open(&plan, o.model, &request, NULL), NIB_OK);
    assert_int_equal(count_changed_rows(o.plan, plan), 0);
    nib_plan_close(plan);

    free(ranked);
    free(measured);
    nib__tuned_free(&tuned);
    nib__tuned_free(&others);
    close_opened(&o);
}

static void a_measured_order_changes_rows_but_no_bits(void **state)
{
    (void)state;
    check_recipe(NULL);
    check_recipe("8da4w");
    check_recipe("int4wo");
}

/* ---- the file ---- */

static const char path[] = "/tmp/nibble-test-tuned.json";

static nib_machine machine_of(int threads)
{
    nib_machine m;
    nib__machine_here(&m, 0, threads);
    return m;
}

static nib_tuned_line some_line(int64_t n)
{
    nib_tuned_line line = {.key = {1, 2, 3, n}, .count = 2};
    line.rows[0] = (nib_tuned_row){nib__kernel_at(1), 0.25};
    line.rows[1] = (nib_tuned_row){nib__kernel_at(0), 0.5};
    return line;
}

static nib_tuned load(int threads)
{
    const nib_machine m = machine_of(threads);
    static nib_allocator a;
    a = nib__allocator_default();
    nib_tuned t;
    nib__tuned_load(&t, &m, path, &a);
    return t;
}

static void a_saved_order_is_read_back(void **state)
{
    (void)state;
    const nib_allocator a = nib__allocator_default();
    const nib_machine one = machine_of(1), two = machine_of(2);
    nib_tuned t;
    nib_err err;
    bool found;
    unlink(path);
    nib__tuned_init(&t, &a);
    snprintf(t.measured_on, sizeof t.measured_on, "2026-11-22");
    const nib_tuned_line lines[] = {some_line(64), some_line(128), some_line(64)};
    for (size_t i = 0; i < COUNT(lines); i++)
        assert_true(nib__tuned_add(&t, &lines[i]));
    assert_int_equal(t.count, 2); /* one line per key */
    assert_int_equal(nib__tuned_keep(&t, &one, path, &a, &err), NIB_OK);
    nib_tuned again = load(1);
    assert_int_equal(again.count, 2);
    assert_string_equal(again.measured_on, "2026-11-22");
    assert_memory_equal(again.lines, t.lines, 2 * sizeof *t.lines);
    nib__tuned_free(&again);
    /* another thread count is another machine, with a note */
    again = load(2);
    assert_int_equal(again.count, 0);
    assert_string_equal(again.why, "the measured order of kernels is for 1 thread and ref, not for "
                                   "2 and ref, so it is not used");
    /* both are kept, and forgotten together */
    assert_int_equal(nib__tuned_keep(&t, &two, path, &a, &err), NIB_OK);
    again = load(1);
    assert_int_equal(again.count, 2);
    nib__tuned_free(&again);
    again = load(2);
    assert_int_equal(again.count, 2);
    nib__tuned_free(&again);
    assert_int_equal(nib__tuned_forget(&found, &one, path, &a, &err), NIB_OK);
    assert_true(found && access(path, F_OK) != 0);
    assert_int_equal(nib__tuned_forget(&found, &one, path, &a, &err), NIB_OK);
    assert_false(found);
    again = load(1);
    assert_true(again.count == 0 && again.why[0] == 0);
    nib__tuned_free(&t);
}

static void write_text(const char *text)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0 && fclose(f) == 0);
}

static void orders_that_do_not_apply_are_ignored(void **state)
{
    (void)state;
    const nib_machine m = machine_of(1);
    const nib_allocator a = nib__allocator_default();
    const struct {
        const char *lines, *version, *why;
    } cases[] = {
        {"", "0.0.9", "is for other kernels, of version 0.0.9"},
        {"", NIB_VERSION, "is for other kernels, of version " NIB_VERSION},
        {"{\"key\": [1]}", NIB_VERSION, "/tmp/nibble-test-tuned.json cannot be parsed"},
        {"7", NIB_VERSION, "cannot be parsed"},
        {"{\"key\": [1,2,3,4,5,6,7,8,9,10], \"kernels\": "
         "[\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\","
         "\"a\",\"a\"]}",
         NIB_VERSION, "cannot be parsed"},
        {"{\"key\": [1,2,3,4,5,6,7,8,9,10], \"kernels\": [\"none\"], \"us\": [1]}", "0.0.9",
         "so it is not used"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        char text[1024];
        nib_err err;
        snprintf(text, sizeof text,
                 "{\"schema\": 1, \"machines\": [{\"name\": \"%s\", \"isa\": 0, \"threads\": 1, "
                 "\"version\": \"%s\", \"table\": \"x\", \"measured\": \"2026-11-22\", "
                 "\"lines\": [%s]}]}",
                 nib__machine_title(&m), cases[i].version, cases[i].lines);
        write_text(text);
        nib_tuned t = load(1);
        assert_int_equal(t.count, 0);
        if (strstr(t.why, cases[i].why) == NULL)
            fail_msg("case %zu: %s", i, t.why);
        /* measuring again replaces the file */
        nib_tuned right;
        nib__tuned_init(&right, &a);
        const nib_tuned_line line = some_line(64);
        assert_true(nib__tuned_add(&right, &line));
        assert_int_equal(nib__tuned_keep(&right, &m, path, &a, &err), NIB_OK);
        t = load(1);
        assert_true(t.count == 1 && t.why[0] == 0);
        nib__tuned_free(&t);
        nib__tuned_free(&right);
    }
    write_text("{\"schema\": 2, \"machines\": []}");
    nib_tuned t = load(1);
    assert_non_null(strstr(t.why, "cannot be parsed"));
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_measured_order_changes_rows_but_no_bits),
        cmocka_unit_test(a_saved_order_is_read_back),
        cmocka_unit_test(orders_that_do_not_apply_are_ignored),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
