/* SPDX-License-Identifier: Apache-2.0
 *
 * What every file may use: checked arithmetic, small macros, and failing with a sentence. No data.
 */
#ifndef NIB_BASE_H
#define NIB_BASE_H

#include "nibble_tools.h"

#include <string.h>

/* What every system must have; no file compiles without this header. */
#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "Nibble needs a little-endian processor: weights are used as files store them"
#endif
#if defined(__FLT_EVAL_METHOD__) && __FLT_EVAL_METHOD__ != 0 && __FLT_EVAL_METHOD__ != 16
#error "excess precision changes results: on 32-bit x86, compile with -msse2 -mfpmath=sse"
#endif

#if defined(__GNUC__)
#ifndef NIB_INLINE
#define NIB_INLINE static inline __attribute__((always_inline, unused))
#endif
#define NIB_NOINLINE __attribute__((noinline))
#define NIB_RESTRICT __restrict
#else
#define NIB_INLINE static inline
#define NIB_NOINLINE
#define NIB_RESTRICT
#endif

#define COUNT(array) (sizeof(array) / sizeof *(array))

/* Returns from the calling function when the call fails. */
#define NIB_TRY(call)                                                                              \
    do {                                                                                           \
        const nib_status nib_try_status = (call);                                                  \
        if (nib_try_status != NIB_OK)                                                              \
            return nib_try_status;                                                                 \
    } while (0)

/* Fills err (NULL allowed) with a printf sentence and returns status, so that a failure is one
 * line: return nib__fail(err, NIB_BAD_INPUT, "%s: header is %" PRIu64 " bytes, over ...", ...). */
nib_status nib__fail(nib_err *err, nib_status status, const char *format, ...) NIB_PRINTF(3, 4);
nib_status nib__fail_memory(nib_err *err, uint64_t bytes, const char *what);
/* Puts "prefix: " before the sentence that err already holds; returns status. */
nib_status nib__fail_in(nib_err *err, nib_status status, const char *prefix);

NIB_INLINE int64_t nib__min(int64_t a, int64_t b) { return a < b ? a : b; }
NIB_INLINE int64_t nib__max(int64_t a, int64_t b) { return a > b ? a : b; }
/* For a >= 0 and b > 0, as all dimensions are. */
NIB_INLINE int64_t nib__ceil_div(int64_t a, int64_t b) { return a / b + (a % b != 0); }
NIB_INLINE int64_t nib__round_up(int64_t a, int64_t b) { return nib__ceil_div(a, b) * b; }
NIB_INLINE int64_t nib__round_down(int64_t a, int64_t b) { return a / b * b; }

/* The address `bytes` after p, possibly past the end of p's array: only for prefetching. */
NIB_INLINE const void *nib__ahead(const void *p, uint64_t bytes)
{
    return (const void *)((uintptr_t)p + (uintptr_t)bytes);
}

/* For sizes that come from input. False: the result overflows; *out is then untouched. */
NIB_INLINE bool nib__mul(uint64_t *out, uint64_t a, uint64_t b)
{
    if (b != 0 && a > UINT64_MAX / b)
        return false;
    *out = a * b;
    return true;
}

NIB_INLINE bool nib__add(uint64_t *out, uint64_t a, uint64_t b)
{
    if (a > UINT64_MAX - b)
        return false;
    *out = a + b;
    return true;
}

#endif
