/* SPDX-License-Identifier: Apache-2.0
 *
 * For the kernel checker: guarded memory, random values by class, and failure texts.
 */
#ifndef NIB_CHECK_VALUES_H
#define NIB_CHECK_VALUES_H

#include "kernel.h"
#include "pool.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- the failure text of the row that this process checks ---- */

typedef struct verdict {
    char text[512];
    int cases;
} verdict;

static bool broken(verdict *v, const char *format, ...) NIB_PRINTF(2, 3);
static bool broken(verdict *v, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(v->text, sizeof v->text, format, args);
    va_end(args);
    return false;
}

/* ---- cases per row: the check's own number, or fewer with --cases ---- */

static int cases_most; /* 0: any number */

static int cases_of(int own) { return cases_most > 0 && cases_most < own ? cases_most : own; }

/* ---- random values ---- */

typedef struct rng {
    uint64_t state;
} rng;

static uint64_t next(rng *r)
{
    uint64_t z = r->state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

static int64_t below(rng *r, int64_t count) { return (int64_t)(next(r) % (uint64_t)count); }
static float unit(rng *r) { return (float)(int32_t)next(r) * 0x1p-31F; } /* -1..1 */

typedef enum value_class {
    VALUES_RANDOM,
    VALUES_EQUAL,
    VALUES_ZERO_GROUPS, /* whole groups of zeros */
    VALUES_EXTREME,     /* the largest codes of both signs */
    VALUES_RATIO,       /* scales from 2^-40 to 2^40 */
    VALUES_NOT_FINITE,  /* a few NaN and infinities among the activations */
    VALUES_COUNT
} value_class;

static const char *const class_names[] = {"random",  "equal", "zero groups",
                                          "extreme", "ratio", "not finite"};

static float value(rng *r, value_class class, int64_t index)
{
    const float u = unit(r);
    switch (class) {
    case VALUES_EQUAL: return 0.375F;
    case VALUES_ZERO_GROUPS: return index / 32 % 2 == 0 ? 0.0F : u;
    case VALUES_EXTREME: return u < 0 ? -64.0F : 64.0F;
    case VALUES_RATIO: return ldexpf(u, (int)below(r, 41) - 20);
    case VALUES_NOT_FINITE: return u > 0.98F ? INFINITY : u < -0.98F ? NAN : u;
    default: return u;
    }
}

/* ---- memory between guards, poisoned ---- */

enum { GUARD = 128, PIECES_MAX = 128, GUARD_BYTE = 0xa5 };

typedef struct memory {
    struct {
        uint8_t *base;
        size_t bytes;
    } pieces[PIECES_MAX];
    int count;
} memory;

/* 64-byte aligned; filled with 0xff: NaN as floats, -1 as integers. */
static void *take(memory *m, size_t bytes)
{
    void *base = NULL;
    if (m->count == PIECES_MAX || posix_memalign(&base, GUARD, bytes + 2 * (size_t)GUARD) != 0) {
        fprintf(stderr, "check_kernels: out of memory\n");
        exit(1);
    }
    uint8_t *at = base;
    memset(at, GUARD_BYTE, GUARD);
    memset(at + GUARD, 0xff, bytes);
    memset(at + GUARD + bytes, GUARD_BYTE, GUARD);
    m->pieces[m->count].base = at;
    m->pieces[m->count++].bytes = bytes;
    return at + GUARD;
}

static bool guards_hold(const memory *m)
{
    for (int i = 0; i < m->count; i++) {
        const uint8_t *base = m->pieces[i].base, *after = base + GUARD + m->pieces[i].bytes;
        for (int j = 0; j < GUARD; j++)
            if (base[j] != GUARD_BYTE || after[j] != GUARD_BYTE)
                return false;
    }
    return true;
}

static void release(memory *m)
{
    for (int i = 0; i < m->count; i++)
        free(m->pieces[i].base);
    m->count = 0;
}

static float *floats(memory *m, int64_t count, rng *r, value_class class)
{
    float *out = take(m, (size_t)count * sizeof *out);
    for (int64_t i = 0; i < count; i++)
        out[i] = value(r, class, i);
    return out;
}

/* ---- comparison ---- */

/* The tolerance of a row with device arithmetic, relative to the magnitude of its summands, not of
 * the sums, which may cancel. 0: the same bits. */
static double tolerance_of(const nib_kernel *row)
{
    return row->arithmetic != NIB_ARITHMETIC_OTHER ? 0
           : row->tolerance > 0                    ? row->tolerance
                                                   : NIB_TOLERANCE;
}

static double largest_of(const float *values, int64_t count)
{
    double largest = 0;
    for (int64_t i = 0; i < count; i++)
        largest = isfinite(values[i]) ? fmax(largest, fabs((double)values[i])) : largest;
    return largest;
}

/* Equal bits; any NaN equals any other. With a tolerance, values may differ by that share of
 * `size`, and a non-finite value must only be non-finite on both sides: whether a sum gives
 * infinity or NaN depends on its order. */
static bool near_floats(verdict *v, const char *what, const float *got, const float *want,
                        int64_t count, double tolerance, double size)
{
    for (int64_t i = 0; i < count; i++) {
        if (memcmp(&got[i], &want[i], sizeof *got) == 0 || (isnan(got[i]) && isnan(want[i])))
            continue;
        if (tolerance > 0 && fabs((double)got[i] - (double)want[i]) <= tolerance * size)
            continue;
        if (tolerance > 0 && !isfinite(got[i]) && !isfinite(want[i]))
            continue;
        return broken(v, "%s: value %" PRId64 " is %a, not %a", what, i, (double)got[i],
                      (double)want[i]);
    }
    return true;
}

static bool same_floats(verdict *v, const char *what, const float *got, const float *want,
                        int64_t count)
{
    return near_floats(v, what, got, want, count, 0, 0);
}

#endif
