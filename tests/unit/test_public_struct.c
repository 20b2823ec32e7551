/* SPDX-License-Identifier: Apache-2.0
 *
 * Options and results of other versions, and of applications that set no size.
 */
#include "public_struct.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#include "refused.h"

/* What a library of today knows of its options, and those of an earlier and a later one. */
typedef struct now {
    size_t size;
    int64_t a, b;
    uint64_t reserved[2];
} now;

typedef struct earlier {
    size_t size;
    int64_t a;
} earlier;

typedef struct later {
    size_t size;
    int64_t a, b, c, d, e;
} later;

static nib_status take(now *out, const void *given, nib_err *err)
{
    NIB_OPTIONS(now, o, given, err);
    *out = o;
    return NIB_OK;
}

static void test_read(void **state)
{
    now o;
    (void)state;
    assert_int_equal(take(&o, NULL, NULL), NIB_OK);
    assert_true(o.size == sizeof o && o.a == 0 && o.b == 0);
    assert_int_equal(take(&o, &(now){.a = 1, .b = 2}, NULL), NIB_OK); /* no size */
    assert_true(o.size == sizeof o && o.a == 1 && o.b == 2);
    assert_int_equal(take(&o, &(now){.size = sizeof(now), .b = 3}, NULL), NIB_OK);
    assert_true(o.a == 0 && o.b == 3);
    assert_int_equal(take(&o, &(earlier){.size = sizeof(earlier), .a = 4}, NULL), NIB_OK);
    assert_true(o.size == sizeof o && o.a == 4 && o.b == 0);
    assert_int_equal(take(&o, &(later){.size = sizeof(later), .a = 5, .b = 6}, NULL), NIB_OK);
    assert_true(o.a == 5 && o.b == 6 && o.reserved[0] == 0);
}

static void test_refused(void **state)
{
    nib_err err;
    now o = {.a = 9};
    (void)state;
    refused(NIB_UNSUPPORTED, take(&o, &(later){.size = sizeof(later), .e = 1}, &err), &err);
    refused(NIB_UNSUPPORTED, take(&o, &(later){.size = sizeof(later), .c = 1}, &err), &err);
    refused(NIB_UNSUPPORTED, take(&o, &(now){.reserved = {0, 1}}, &err), &err);
    refused(NIB_USAGE, take(&o, &(now){.size = sizeof(size_t) - 1}, &err), &err);
    refused(NIB_USAGE, take(&o, &(now){.size = sizeof(size_t) + 1, .a = 3}, &err), &err);
    refused(NIB_USAGE, take(&o, &(now){.size = SIZE_MAX}, &err), &err);
    assert_int_equal(o.a, 9);
}

static void test_written(void **state)
{
    const now result = {.size = 1, .a = 2, .b = 3};
    earlier old = {.size = sizeof old};
    now zeroed = {0};
    later newer = {.size = sizeof newer, .e = 8};
    (void)state;
    nib__result_write(&old, &result, sizeof result, offsetof(now, reserved));
    assert_true(old.size == sizeof old && old.a == 2);
    nib__result_write(&zeroed, &result, sizeof result, offsetof(now, reserved));
    assert_true(zeroed.size == 0 && zeroed.a == 2 && zeroed.b == 3);
    nib__result_write(&newer, &result, sizeof result, offsetof(now, reserved));
    assert_true(newer.size == sizeof newer && newer.b == 3 && newer.e == 8);
    nib__result_write(NULL, &result, sizeof result, offsetof(now, reserved));
    old = (earlier){.size = 3, .a = 7};
    nib__result_write(&old, &result, sizeof result, offsetof(now, reserved));
    assert_int_equal(old.a, 7);
}

static void test_init(void **state)
{
    nib_generate_options o;
    (void)state;
    memset(&o, 0xaa, sizeof o);
    nib_init(&o, sizeof o);
    assert_true(o.size == sizeof o && o.prompt == NULL && o.top_p == 0 && o.reserved[3] == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_read),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_written),
        cmocka_unit_test(test_init),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
