/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of dialects: every dialect names a read test, and a write test exactly if it has a
 * writer; it is printed in every form.
 */
#include "dialect_table.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <cmocka.h>

/* checkpoint_open.c reads containers without codes of their own. */
static void test_every_dialect_has_a_read_test(void **state)
{
    (void)state;
    for (int i = 0; i < NIB_DIALECT_COUNT; i++) {
        const nib_dialect_row *row = &nib__dialects[i];
        assert_non_null(row->read_test);
        assert_true((row->read != NULL) == (row->codes[0] != NULL));
    }
}

static void test_every_writer_has_a_test(void **state)
{
    (void)state;
    for (int i = 0; i < NIB_DIALECT_COUNT; i++) {
        const nib_dialect_row *row = &nib__dialects[i];
        nib_dialect dialect = NIB_DIALECT_COUNT;
        assert_true((row->writer != NULL) == (row->write_test != NULL));
        assert_true(nib__dialect_find(&dialect, row->name) == (row->writer != NULL));
        assert_int_equal(dialect, row->writer != NULL ? i : NIB_DIALECT_COUNT);
    }
}

/* "FILE:FUNCTION": the file must run that function as a test. */
static void expect_test(const char *name)
{
    char path[200], line[300], wanted[200];
    const char *colon = name == NULL ? NULL : strchr(name, ':');
    bool found = false;
    if (name == NULL)
        return;
    if (colon == NULL)
        fail_msg("%s names no function", name);
    snprintf(path, sizeof path, "tests/unit/%.*s", (int)(colon - name), name);
    snprintf(wanted, sizeof wanted, "cmocka_unit_test(%s)", colon + 1);
    FILE *file = fopen(path, "r");
    if (file == NULL)
        fail_msg("%s is named as a test and is not there", path);
    while (!found && fgets(line, sizeof line, file) != NULL)
        found = strstr(line, wanted) != NULL;
    fclose(file);
    if (!found)
        fail_msg("%s has no %s", path, wanted);
}

static void test_named_tests_exist(void **state)
{
    (void)state;
    for (int i = 0; i < NIB_DIALECT_COUNT; i++) {
        expect_test(nib__dialects[i].read_test);
        expect_test(nib__dialects[i].write_test);
    }
}

/* Every form names every dialect; only the Markdown table names the tests. */
static void test_rendering(void **state)
{
    (void)state;
    const nib_allocator a = nib__allocator_default();
    for (int form = NIB_FORM_TEXT; form <= NIB_FORM_MARKDOWN; form++) {
        nib_text text;
        nib__text_init(&text, &a);
        nib__dialects_render((nib_form)form, &text);
        assert_false(text.failed);
        for (int i = 0; i < NIB_DIALECT_COUNT; i++) {
            const nib_dialect_row *row = &nib__dialects[i];
            assert_non_null(strstr(text.at, row->name));
            assert_true((strstr(text.at, row->read_test) != NULL) == (form == NIB_FORM_MARKDOWN));
        }
        assert_true((strstr(text.at, "\"schema\"") != NULL) == (form == NIB_FORM_JSON));
        nib__text_free(&text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_dialect_has_a_read_test),
        cmocka_unit_test(test_every_writer_has_a_test),
        cmocka_unit_test(test_named_tests_exist),
        cmocka_unit_test(test_rendering),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
