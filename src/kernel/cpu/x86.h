/* SPDX-License-Identifier: Apache-2.0
 *
 * NIB_X86 names the x86 function of a row. On other architectures the row stays in the table
 * without a function; its fact `built` is then 0.
 */
#ifndef NIB_X86_H
#define NIB_X86_H

#include "base.h"

#if defined(__x86_64__) || defined(_M_X64)
#define NIB_X86(function) function
#define NIB_BUILT_X86 1
#else
#define NIB_X86(function) NULL
#define NIB_BUILT_X86 0
#endif

/* The prefetch distance of rows that stream weights past few tokens: `bytes`, or 0, which
 * prefetches what was just read, on the family of Zen 4. Its hardware prefetcher does this by
 * itself and is slower with requests: without them, one thread reads int4 1.3 times and bf16 1.2
 * times as fast (2026-11-23). Zen 3, of the same family, was not tested. */
NIB_INLINE size_t nib__fetch_distance(size_t bytes)
{
#if defined(__x86_64__)
    if (__builtin_cpu_is("amdfam19h"))
        return 0;
#endif
    return bytes;
}

#endif
