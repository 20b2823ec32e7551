/* SPDX-License-Identifier: Apache-2.0
 *
 * Skips tests that cannot run on this machine. Such a test prints "skipped: TEST: REASON" and ends
 * as skipped. tests/run lists these lines at the end and fails a program that skips without one.
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
#define SKIP_LOCALE "no German or Turkish locale (apt-get install locales)"
#define SKIP_OPENCL "no OpenCL device"
#define SKIP_ROWS "this processor has only the reference kernels"
#define SKIP_SANITIZED "not under sanitizers"

/* Driver compilers do not run under the sanitizers. */
#if defined(__SANITIZE_ADDRESS__)
enum { SANITIZED = 1 };
#else
enum { SANITIZED = 0 };
#endif

/* So are emulated kernels (by tests/arm), and processors that have only the reference kernels. */
#if defined(EMULATED) || !(defined(__x86_64__) || defined(__aarch64__))
enum { SLOW = 1 };
#define SKIP_SLOW "left to NIBBLE_TEST_ALL=1, because it is slow with reference kernels"
#else
enum { SLOW = SANITIZED };
#define SKIP_SLOW "left to make matrix, because it is slow under sanitizers"
#endif

/* Whether kernels for x86-64 are compiled in. Plans for this machine need them where a test expects
 * one by name, packed weights, or another speed than that of the reference. */
#if defined(__x86_64__)
enum { X86_ROWS = 1 };
#else
enum { X86_ROWS = 0 };
#endif

/* Step width for loops over so many cases that `make test` runs only some; with NIBBLE_TEST_ALL
 * (`make matrix`), the step is 1. */
static inline int sampled(int step)
{
    const char *all = getenv("NIBBLE_TEST_ALL");
    return all == NULL || all[0] == 0 ? step : 1;
}

/* The same where kernels are slow (instrumented, emulated or reference ones: forty times);
 * elsewhere, the step is 1. */
static inline int sparse(int step) { return SLOW ? sampled(step) : 1; }

/* Ends the running test as skipped. */
#define skip_test(test, reason)                                                                    \
    do {                                                                                           \
        printf("skipped: %s: %s\n", test, reason);                                                 \
        skip();                                                                                    \
        abort(); /* not reached: skip() jumps, which compilers cannot see */                       \
    } while (0)

#define skip_without_x86_rows()                                                                    \
    do {                                                                                           \
        if (!X86_ROWS)                                                                             \
            skip_test(__func__, SKIP_ROWS);                                                        \
    } while (0)

/* Skips a test of devices (session.h) where there is none, and under the sanitizers. */
#define skip_without_device()                                                                      \
    do {                                                                                           \
        if (SANITIZED)                                                                             \
            skip_test(__func__, SKIP_SANITIZED);                                                   \
        if (!device_is_here())                                                                     \
            skip_test(__func__, SKIP_OPENCL);                                                      \
    } while (0)

/* Skips a test where kernels are slow; NIBBLE_TEST_ALL runs it. */
#define skip_slow()                                                                                \
    do {                                                                                           \
        if (sparse(2) != 1)                                                                        \
            skip_test(__func__, SKIP_SLOW);                                                        \
    } while (0)

/* Returns the folder named by the environment variable; skips the test if it is unset. */
static inline const char *folder_or_skip(const char *variable, const char *test)
{
    const char *folder = getenv(variable);
    if (folder == NULL || folder[0] == 0)
        skip_test(test, SKIP_DATA);
    return folder;
}

/* Third-party data that we cannot ship. tests/data/README.md lists every test that reads it, beside
 * the test that covers the same code without it. */
#define test_data() folder_or_skip("NIBBLE_TEST_DATA", __func__)

/* Tokenizers built from that data by tools/golden/make_tokenizers.py. */
#define test_tokenizers() folder_or_skip("NIBBLE_TOKENIZERS", __func__)

#endif
