/* SPDX-License-Identifier: Apache-2.0
 *
 * sysctl(3) of macOS, for tests/portable/apple.h.
 */
#ifndef NIB_TESTS_SYSCTL_H
#define NIB_TESTS_SYSCTL_H

#include <stddef.h>

int sysctlbyname(const char *name, void *old, size_t *old_size, void *fresh, size_t fresh_size);

#endif
