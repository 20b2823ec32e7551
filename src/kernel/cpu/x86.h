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

/* How many bytes ahead to prefetch in rows that stream weights past few tokens: `bytes`, but 0 on
 * AMD family 19h (Zen 3 and 4), which turns the prefetch into one of data just read. On Zen 4 the
 * hardware prefetcher does better without software prefetches: one thread reads int4 1.3x and bf16
 * 1.2x as fast (2026-11-23). Zen 3 was not tested. */
NIB_INLINE size_t nib__fetch_distance(size_t bytes)
{
#if defined(__x86_64__)
    if (__builtin_cpu_is("amdfam19h"))
        return 0;
#endif
    return bytes;
}

/* Whether rows that stream int4 and int8 past one token read two panels at once, and prefetch less
 * than a kilobyte ahead: on Intel processors. A core of Granite Rapids has 48 reads from memory
 * under way, and its prefetcher extends each stream by itself, so a longer distance only delays
 * what is needed next: two threads read int4 at 20.8 GB/s with 8 KiB, 25.4 with 2 KiB, and 28 with
 * two streams (2026-11-29). */
NIB_INLINE bool nib__fetches_near(void)
{
#if defined(__x86_64__)
    return __builtin_cpu_is("intel") != 0;
#else
    return false;
#endif
}

#endif
