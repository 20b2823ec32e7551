/* SPDX-License-Identifier: Apache-2.0
 *
 * Test helper: functions that fail once, also where no allocator of the test's decides. The
 * Makefile lets the linker replace the functions that a unit test lists with WRAPPED.
 */
#ifndef NIB_TESTS_WRAPPED_H
#define NIB_TESTS_WRAPPED_H

#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>

static atomic_int countdown; /* the call that takes it from 1 to 0 fails; 0 and below: none */

static inline bool fails(void) { return atomic_fetch_sub(&countdown, 1) == 1; }

/* result NAME(parameters), which returns `failed` with errno set if it fails */
#define WRAPPED(result, name, parameters, arguments, failed)                                       \
    result __real_##name parameters;                                                               \
    result __wrap_##name parameters;                                                               \
    result __wrap_##name parameters                                                                \
    {                                                                                              \
        if (!fails())                                                                              \
            return __real_##name arguments;                                                        \
        errno = ENOMEM;                                                                            \
        return failed;                                                                             \
    }

#endif
