/* SPDX-License-Identifier: Apache-2.0
 *
 * The list of formats against what is read and written, and the tests that it names.
 */
#include "formats.h"

#include "checkpoint_inside.h"
#include "dialects.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <cmocka.h>

static const nib_format *find(const char *name)
{
    for (size_t i = 0; nib__format_at(i) != NULL; i++)
        if (strcmp(nib__format_at(i)->name, name) == 0)
            return nib__format_at(i);
    fail_msg("no format \"%s\" is listed", name);
    return NULL;
}

static void test_read(void **state)
{
    (void)state;
    for (size_t i = 0; nib__dialect_reader_at(i) != NULL; i++)
        if (find(nib__dialect_reader_at(i))->read == NULL)
            fail_msg("%s is read, but the list says no", nib__dialect_reader_at(i));
}

static void test_written(void **state)
{
    (void)state;
    for (int i = 0; i < NIB_DIALECT_COUNT; i++) {
        const char *name = nib__dialect_writer((nib_dialect)i)->name;
        if (find(name)->written == NULL)
            fail_msg("%s is written, but the list says no", name);
    }
    for (size_t i = 0; nib__format_at(i) != NULL; i++) {
        nib_dialect dialect;
        const nib_format *f = nib__format_at(i);
        if (f->written != NULL && !nib__dialect_find(&dialect, f->name))
            fail_msg("the list says that %s is written, but nothing writes it", f->name);
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
    for (size_t i = 0; nib__format_at(i) != NULL; i++) {
        expect_test(nib__format_at(i)->read);
        expect_test(nib__format_at(i)->written);
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
