/* SPDX-License-Identifier: Apache-2.0
 *
 * docs/kernels.md matches the table; the other formats have every row and every machine. Every
 * operation with rows is in the table of operations.
 */
#include "machine.h"
#include "operation.h"
#include "planner.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

#include "machines.h"
#include "skipping.h"

static void document_matches_the_table(void **state)
{
    (void)state;
    enum { ROOM = 1 << 20 };
    nib_text text;
    char *stored = calloc(1, ROOM);
    FILE *f = fopen("docs/kernels.md", "r");
    if (!nib__kernel_built(nib__kernel_find("linear_a8t_w4g_f32__avx2_4x16"))) {
        skip_test(__func__, "needs an x86-64 build");
    }
    assert_non_null(f);
    assert_non_null(stored);
    assert_true(fread(stored, 1, ROOM - 1, f) > 0);
    fclose(f);
    nib__text_init(&text, &allocator);
    nib__kernels_render(NIB_FORM_MARKDOWN, &text);
    nib__support_render(&machines, &text);
    if (strcmp(stored, text.at) != 0)
        fail_msg(
            "docs/kernels.md differs from the table: nibble kernels --markdown > docs/kernels.md");
    nib__text_free(&text);
    free(stored);
}

static void lists_every_row(void **state)
{
    (void)state;
    for (int form = NIB_FORM_TEXT; form <= NIB_FORM_MARKDOWN; form++) {
        nib_text text;
        nib__text_init(&text, &allocator);
        nib__kernels_render((nib_form)form, &text);
        assert_false(text.failed);
        for (size_t i = 0; i < nib__kernel_count(); i++)
            assert_non_null(strstr(text.at, nib__kernel_at(i)->name));
        nib__text_free(&text);
    }
}

static void lists_every_machine(void **state)
{
    (void)state;
    nib_machine here;
    nib__machine_here(&here, nib__cpu_isa(), 1);
    for (int form = NIB_FORM_TEXT; form <= NIB_FORM_MARKDOWN; form++) {
        nib_text text, line;
        nib__text_init(&text, &allocator);
        nib__text_init(&line, &allocator);
        const nib_machines_here all = {.items = {&here}, .count = 1, .missing = "CUDA: none\n"};
        nib__devices_render((nib_form)form, &all, &machines, &text);
        assert_int_equal(strstr(text.at, all.missing) != NULL, form == NIB_FORM_TEXT);
        assert_false(text.failed);
        for (size_t i = 0; i < machines.count; i++) {
            const nib_machine *m = &machines.items[i];
            assert_non_null(strstr(text.at, m->name));
            for (size_t s = 0; s < m->source_count; s++) {
                nib__text_clear(&line);
                nib__line_say(&m->sources[s], m, &line);
                assert_non_null(strstr(text.at, line.at));
                assert_non_null(strstr(text.at, m->sources[s].source->date));
                assert_non_null(strstr(text.at, m->sources[s].source->title));
            }
        }
        nib__text_free(&line);
        nib__text_free(&text);
    }
}

/* An operation that has CPU rows can be run in parts. The listed ones are not nodes of a graph:
 * quantizers, the sampler and the optimizer run them. */
static void every_operation_can_run(void **state)
{
    static const nib_op apart[] = {NIB_OP_QUANT_W, NIB_OP_PACK, NIB_OP_SAMPLE, NIB_OP_SQUARES,
                                   NIB_OP_ADAMW};
    (void)state;
    size_t checked = 0;
    for (size_t i = 0; i < nib__kernel_count(); i++) {
        const nib_kernel *row = nib__kernel_at(i);
        bool skip = row->peer != NULL || row->device != NIB_DEVICE_CPU;
        for (size_t j = 0; j < COUNT(apart); j++)
            skip = skip || row->op == apart[j];
        if (skip)
            continue;
        if (nib__ops[row->op].run == NULL)
            fail_msg("%s: operation.c has no line that runs %s", row->name, nib__op_names[row->op]);
        checked++;
    }
    assert_true(checked > 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(document_matches_the_table),
        cmocka_unit_test(lists_every_row),
        cmocka_unit_test(lists_every_machine),
        cmocka_unit_test(every_operation_can_run),
    };
    return RUN_WITH_MACHINES(tests);
}
