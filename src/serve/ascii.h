/* SPDX-License-Identifier: Apache-2.0
 *
 * Comparisons of words of a protocol or of the command line, which do not depend on the locale.
 */
#ifndef NIB_ASCII_H
#define NIB_ASCII_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

static inline char ascii_lower(char c)
{
    return c >= 'A' && c <= 'Z' ? (char)(c + ('a' - 'A')) : c;
}

/* Equal but for the case of ASCII letters in the first `size` bytes, as strncmp compares.
 * strncasecmp would let a Turkish locale decide, in which I is not the upper case of i. */
static inline bool same_start_ignoring_case(const char *a, const char *b, size_t size)
{
    for (size_t i = 0; i < size; i++) {
        if (ascii_lower(a[i]) != ascii_lower(b[i]))
            return false;
        if (a[i] == 0)
            break;
    }
    return true;
}

static inline bool same_ignoring_case(const char *a, const char *b)
{
    return same_start_ignoring_case(a, b, SIZE_MAX);
}

#endif
