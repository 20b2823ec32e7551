/* SPDX-License-Identifier: Apache-2.0
 *
 * Status names and exit codes; how error texts are built, cut and prefixed.
 */
#include "base.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "refused.h"

static void test_table(void **state)
{
    (void)state;
    assert_int_equal(NIB_OK, 0);
    assert_string_equal(nib_status_name(NIB_OK), "OK");
    assert_string_equal(nib_status_name(NIB_NOT_AS_ASKED), "NOT_AS_ASKED");
    assert_string_equal(nib_status_text(NIB_CANCELLED), "cancelled");
    assert_int_equal(nib_status_exit(NIB_OK), 0);
    assert_int_equal(nib_status_exit(NIB_USAGE), 2);
    assert_int_equal(nib_status_exit(NIB_NOT_AS_ASKED), 4);
    assert_int_equal(nib_status_exit(NIB_CANCELLED), 130);
    for (int s = 0; s <= NIB_CANCELLED; s++) {
        assert_true(nib_status_name((nib_status)s)[0] != 0);
        assert_true(nib_status_text((nib_status)s)[0] != 0);
        assert_true((nib_status_exit((nib_status)s) == 0) == (s == NIB_OK));
    }
}

static void test_outside(void **state)
{
    (void)state;
    assert_string_equal(nib_status_name((nib_status)(NIB_CANCELLED + 1)), "UNKNOWN");
    assert_string_equal(nib_status_text((nib_status)-1), "an unknown status");
    assert_int_equal(nib_status_exit((nib_status)1000), 1);
}

static void test_version(void **state)
{
    (void)state;
    assert_string_equal(nib_version(), NIB_VERSION);
}

static void test_fail(void **state)
{
    (void)state;
    nib_err err;
    memset(&err, 0x55, sizeof err);
    assert_int_equal(nib__fail(&err, NIB_IO, "%s: %d of %d", "file", 3, 7), NIB_IO);
    assert_int_equal(err.status, NIB_IO);
    assert_string_equal(err.text, "file: 3 of 7");
    assert_int_equal(nib__fail(NULL, NIB_USAGE, "%s", "nobody listens"), NIB_USAGE);
    assert_int_equal(nib__fail(&err, NIB_FAILED, "%s", ""), NIB_FAILED);
    assert_string_equal(err.text, "");
}

static void test_fail_with_itself(void **state)
{
    (void)state;
    nib_err err = {0};
    (void)nib__fail(&err, NIB_IO, "inner");
    assert_int_equal(nib__fail(&err, NIB_BAD_INPUT, "outer: %s and %s", err.text, err.text),
                     NIB_BAD_INPUT);
    assert_string_equal(err.text, "outer: inner and inner");
    assert_int_equal(nib__fail_in(&err, NIB_BAD_INPUT, "model"), NIB_BAD_INPUT);
    assert_string_equal(err.text, "model: outer: inner and inner");
    assert_int_equal(nib__fail_in(NULL, NIB_IO, "model"), NIB_IO);
}

static void test_cut(void **state)
{
    (void)state;
    nib_err err = {0};
    char text[2000];
    memset(text, 'x', sizeof text);
    text[sizeof err.text - 1] = 0; /* fits exactly */
    (void)nib__fail(&err, NIB_IO, "%s", text);
    assert_string_equal(err.text, text);
    text[sizeof err.text - 1] = 'x';
    text[sizeof text - 1] = 0;
    (void)nib__fail(&err, NIB_IO, "%s", text);
    assert_int_equal(strlen(err.text), sizeof err.text - 1);
    assert_string_equal(err.text + sizeof err.text - 5, "x...");
    /* The cut never leaves part of a code point before the dots. */
    for (size_t shift = 0; shift < 4; shift++) {
        memset(text, 'x', shift);
        for (size_t i = shift; i + 4 < sizeof text; i += 3)
            memcpy(text + i, "\xe2\x82\xac", 4);
        (void)nib__fail(&err, NIB_IO, "%s", text);
        const size_t size = strlen(err.text);
        assert_true(size >= sizeof err.text - 4 && size < sizeof err.text);
        assert_string_equal(err.text + size - 3, "...");
        assert_int_equal((size - 3 - shift) % 3, 0);
    }
}

static void test_fail_memory(void **state)
{
    (void)state;
    nib_err err = {0};
    refused(NIB_NO_MEMORY, nib__fail_memory(&err, 1500000, "the cache"), &err);
    assert_int_equal(nib__fail_memory(NULL, 1, "x"), NIB_NO_MEMORY);
}

static void test_float_formats(void **state)
{
    (void)state;
    uint64_t out = 7;
    assert_false(nib__mul(&out, UINT64_C(1) << 32, UINT64_C(1) << 32));
    assert_false(nib__add(&out, UINT64_MAX, 1));
    assert_int_equal(out, 7);
    assert_true(nib__mul(&out, UINT64_MAX, 0));
    assert_int_equal(out, 0);
    assert_true(nib__mul(&out, UINT64_MAX / 3, 3));
    assert_true(out == UINT64_MAX);
    assert_true(nib__add(&out, UINT64_MAX - 1, 1));
    assert_true(out == UINT64_MAX);
    assert_int_equal(nib__ceil_div(0, 32), 0);
    assert_int_equal(nib__ceil_div(33, 32), 2);
    assert_true(nib__ceil_div(INT64_MAX, 2) == INT64_MAX / 2 + 1);
    assert_int_equal(nib__round_up(33, 32), 64);
    assert_int_equal(nib__round_up(64, 32), 64);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table),       cmocka_unit_test(test_outside),
        cmocka_unit_test(test_version),     cmocka_unit_test(test_fail),
        cmocka_unit_test(test_cut),         cmocka_unit_test(test_fail_with_itself),
        cmocka_unit_test(test_fail_memory), cmocka_unit_test(test_float_formats),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
