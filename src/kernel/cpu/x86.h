/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows name their x86 functions through NIB_X86, so that on another architecture the row stays in
 * the table, without a run: the fact `built` is then 0.
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

/* How far ahead of its loads a row that streams weights past few tokens fetches: `bytes`, or 0,
 * which fetches what was just read, in the family of Zen 4. That reads ahead by itself, and slower
 * when it is asked to: one thread reads 1.3 times the int4 and 1.2 times the bf16 without
 * (2026-11-23). Zen 3, of the same family, was not at hand. */
NIB_INLINE size_t nib__fetch_distance(size_t bytes)
{
#if defined(__x86_64__)
    if (__builtin_cpu_is("amdfam19h"))
        return 0;
#endif
    return bytes;
}

#endif
