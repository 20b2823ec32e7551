/* SPDX-License-Identifier: Apache-2.0
 *
 * For programs that link libmicrohttpd: a leak of its libraries, which sanitizers leave out.
 */
#ifndef NIB_TESTS_LIBRARY_LEAKS_H
#define NIB_TESTS_LIBRARY_LEAKS_H

/* newlocale of glibc 2.36 loses a copy of LOCPATH. p11-kit, which libmicrohttpd brings along, calls
 * it before main; stacks without frame pointers end below newlocale. */
__attribute__((visibility("default"))) const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void) { return "leak:argz_add_sep\n"; }

#endif
