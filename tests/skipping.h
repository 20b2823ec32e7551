/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests that cannot run here. Such a test prints "skipped: TEST: REASON" and ends as skipped.
 * tests/run lists these lines at the end of a run and fails a program that skips without one.
 */
#ifndef NIB_TESTS_SKIPPING_H
#define NIB_TESTS_SKIPPING_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#define SKIP_DATA "data not at hand, see tests/data/README.md"
#define SKIP_LOCALE "no German locale (apt-get install locales)"
#define SKIP_OPENCL "no OpenCL device"
#define SKIP_SANITIZED "not under sanitizers"
#define SKIP_SLOW "left to make matrix, because it is slow under sanitizers"

/* A driver's compiler is not made for the sanitizers. */
#if defined(__SANITIZE_ADDRESS__)
enum { SANITIZED = 1 };
#else
enum { SANITIZED = 0 };
#endif

#if defined(EMULATED) /* by tests/arm */
enum { SLOW = 1 };
#else
enum { SLOW = SANITIZED };
#endif

/* The step through many cases where kernels are instrumented or emulated, and so forty times as
 * slow; 1 elsewhere, and where NIBBLE_TEST_ALL asks for all cases, as `make matrix` does. */
static inline int sparse(int step)
{
    const char *all = getenv("NIBBLE_TEST_ALL");
    return SLOW && (all == NULL || all[0] == 0) ? step : 1;
}

/* Ends the calling test, or the one that called the helper, as skipped. */
#define skip_test(test, reason)                                                                    \
    do {                                                                                           \
        printf("skipped: %s: %s\n", test, reason);                                                 \
        skip();                                                                                    \
        abort(); /* not reached: skip() jumps, and compilers cannot know it */                     \
    } while (0)

/* Leaves a test that is slow where kernels are instrumented or emulated to `make matrix`. */
#define skip_slow()                                                                                \
    do {                                                                                           \
        if (sparse(2) != 1)                                                                        \
            skip_test(__func__, SKIP_SLOW);                                                        \
    } while (0)

/* Skips the test unless the environment variable is set; its value is a folder. */
static inline const char *folder_or_skip(const char *variable, const char *test)
{
    const char *folder = getenv(variable);
    if (folder == NULL || folder[0] == 0)
        skip_test(test, SKIP_DATA);
    return folder;
}

/* Data of others that cannot ship: a test that reads it stands in tests/data/README.md, beside the
 * test that covers the same part without it. */
#define test_data() folder_or_skip("NIBBLE_TEST_DATA", __func__)

/* Tokenizers that tools/golden/make_tokenizers.py builds from that data. */
#define test_tokenizers() folder_or_skip("NIBBLE_TOKENIZERS", __func__)

#endif
