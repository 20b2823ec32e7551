/* SPDX-License-Identifier: Apache-2.0
 *
 * The part of cmocka that kernel tests use, for programs that run under qemu, as a host has the
 * library only for its own architecture. The first failed assertion ends the program.
 */
#ifndef CMOCKA_H
#define CMOCKA_H

#include <setjmp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define assert_true(condition)                                                                     \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            printf("%s:%d: %s\n", __FILE__, __LINE__, #condition);                                 \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)
#define assert_false(condition) assert_true(!(condition))
#define assert_null(pointer) assert_true((pointer) == NULL)
#define assert_non_null(pointer) assert_true((pointer) != NULL)
#define assert_ptr_equal(a, b) assert_true((a) == (b))
#define assert_int_equal(a, b) assert_true((intmax_t)(a) == (intmax_t)(b))
#define assert_int_not_equal(a, b) assert_true((intmax_t)(a) != (intmax_t)(b))
#define assert_in_range(value, least, most)                                                        \
    assert_true((intmax_t)(value) >= (least) && (intmax_t)(value) <= (most))
#define assert_string_equal(a, b) assert_true(strcmp(a, b) == 0)
#define assert_memory_equal(a, b, size) assert_true(memcmp(a, b, size) == 0)
#define fail_msg(...)                                                                              \
    do {                                                                                           \
        printf(__VA_ARGS__);                                                                       \
        printf("\n");                                                                              \
        exit(1);                                                                                   \
    } while (0)
#define skip() longjmp(skipped, 1)
#define print_message printf

static jmp_buf skipped; /* where a skipped test returns to */

struct CMUnitTest {
    const char *name;
    void (*run)(void **state);
};
#define cmocka_unit_test(function)                                                                 \
    {                                                                                              \
#function, function                                                                        \
    }

typedef int (*fixture)(void **state); /* 0: success */

#define cmocka_run_group_tests(tests, setup, teardown)                                             \
    run_group(tests, sizeof(tests) / sizeof *(tests), setup, teardown)
static int run_group(const struct CMUnitTest *tests, size_t count, fixture setup, fixture teardown)
{
    void *state = NULL;
    if (setup != NULL && setup(&state) != 0) {
        printf("the setup failed\n");
        return 1;
    }
    for (volatile size_t i = 0; i < count; i++) { /* volatile: survives longjmp */
        const bool ran = setjmp(skipped) == 0;
        if (ran)
            tests[i].run(&state);
        printf("[  %s ] %s\n", ran ? "     OK" : "SKIPPED", tests[i].name);
        fflush(stdout);
    }
    return teardown != NULL ? teardown(&state) : 0;
}

#endif
