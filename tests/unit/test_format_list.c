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

static void expect_file(const char *path)
{
    FILE *file = path == NULL ? NULL : fopen(path, "r");
    if (path != NULL && file == NULL)
        fail_msg("%s is named as a test and is not there", path);
    if (file != NULL)
        fclose(file);
}

static void test_shown(void **state)
{
    (void)state;
    for (size_t i = 0; nib__format_at(i) != NULL; i++) {
        expect_file(nib__format_at(i)->read);
        expect_file(nib__format_at(i)->written);
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
