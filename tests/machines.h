/* SPDX-License-Identifier: Apache-2.0
 *
 * Test helper: the known machines, opened once for all tests of a file. Include it after cmocka.h.
 */
#ifndef NIB_TESTS_MACHINES_H
#define NIB_TESTS_MACHINES_H

#include "machine.h"
#include "memory.h"

static nib_allocator allocator;
static nib_machines machines;

static int open_machines(void **state)
{
    (void)state;
    allocator = nib__allocator_default();
    return nib__machines_open(&machines, &allocator, NULL) == NIB_OK ? 0 : -1;
}

static int close_machines(void **state)
{
    (void)state;
    nib__machines_close(&machines);
    return 0;
}

/* Runs an array of tests with the machines open; main returns its value. */
#define RUN_WITH_MACHINES(tests) cmocka_run_group_tests(tests, open_machines, close_machines)

#endif
