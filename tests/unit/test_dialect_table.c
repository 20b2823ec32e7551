/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of dialects: what is read and written has a test, and only that.
 */
#include "dialect_table.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <cmocka.h>

/* A container without codes of its own is read by checkpoint_open.c. */
static void test_read(void **state)
{
    (void)state;
    for (int i = 0; i < NIB_DIALECT_COUNT; i++) {
        const nib_dialect_row *row = &nib__dialects[i];
        assert_non_null(row->read_test);
        assert_true((row->read != NULL) == (row->codes[0] != NULL));
    }
}

static void test_written(void **state)
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

/* "FILE:FUNCTION": the file runs that function as a test. */
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

static void test_shown(void **state)
{
    (void)state;
    for (int i = 0; i < NIB_DIALECT_COUNT; i++) {
        expect_test(nib__dialects[i].read_test);
        expect_test(nib__dialects[i].write_test);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_read),
        cmocka_unit_test(test_written),
        cmocka_unit_test(test_shown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
