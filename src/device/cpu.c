/* SPDX-License-Identifier: Apache-2.0
 *
 * This machine's processor: the instruction sets that it and the operating system support, the
 * level names of --isa that mask them, and cautious rates until measure.c has measured.
 */
#include "file.h"
#include "machine.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#if defined(__x86_64__) /* 32-bit programs have no vector kernels */
#define ON_X86 1
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#endif
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif
#ifndef ON_X86
#define ON_X86 0
#endif

/* ---- what the processor has ---- */

#if ON_X86

static bool has(unsigned word, int bit) { return (word >> bit & 1) != 0; }

/* The register states that the operating system saves; needs OSXSAVE. */
static unsigned saved_states(void)
{
    unsigned low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

/* Asks the operating system for matrix tiles, for all threads: it saves their 8 KB only for
 * programs that asked. */
static bool asks_for_tiles(unsigned states)
{
    enum { SAVES_TILES = 0x60000, REQUEST = 0x1023 /* ARCH_REQ_XCOMP_PERM */, TILE_DATA = 18 };
#if defined(__linux__)
    return (states & SAVES_TILES) == SAVES_TILES &&
           syscall(SYS_arch_prctl, REQUEST, TILE_DATA) == 0;
#else
    (void)states;
    return false;
#endif
}

int64_t nib__cpu_isa(void)
{
    enum { SAVES_YMM = 0x06, SAVES_ZMM = 0xe6 };
    unsigned a, b, c, d, ignored;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !has(c, 27))
        return 0;
    const unsigned states = saved_states();
    const bool fma = has(c, 12), avx = has(c, 28), f16c = has(c, 29);
    if ((states & SAVES_YMM) != SAVES_YMM || !avx || !fma || !f16c ||
        !__get_cpuid_count(7, 0, &a, &b, &c, &d))
        return 0;
    const bool bmi2 = has(b, 8), avx2 = has(b, 5);
    if (!avx2 || !bmi2)
        return 0;
    int64_t isa = NIB_ISA_AVX2;
    const bool f = has(b, 16), dq = has(b, 17), bw = has(b, 30), vl = has(b, 31);
    if ((states & SAVES_ZMM) != SAVES_ZMM || !f || !dq || !bw || !vl)
        return isa;
    isa |= NIB_ISA_AVX512;
    if (has(c, 11))
        isa |= NIB_ISA_AVX512VNNI;
    const bool amx_tile = has(d, 24), amx_int8 = has(d, 25);
    if (has(c, 11) && amx_tile && amx_int8 && asks_for_tiles(states))
        isa |= NIB_ISA_AMX;
    if (__get_cpuid_count(7, 1, &a, &ignored, &c, &d) && has(a, 5))
        isa |= NIB_ISA_AVX512BF16;
    return isa;
}

/* AMX. */
static bool has_matrix_unit(void)
{
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && has(d, 24);
}

static void cpu_model(char *out, size_t size)
{
    unsigned words[12] = {0};
    char text[sizeof words + 1] = "";
    for (unsigned i = 0; i < 3; i++)
        if (!__get_cpuid(0x80000002u + i, &words[4 * i], &words[4 * i + 1], &words[4 * i + 2],
                         &words[4 * i + 3]))
            break;
    memcpy(text, words, sizeof words);
    const char *from = text + strspn(text, " ");
    size_t length = strlen(from);
    while (length != 0 && from[length - 1] == ' ')
        length--;
    snprintf(out, size, "%.*s", (int)length, length != 0 ? from : "");
}

#else

#if defined(__APPLE__)
static bool has_feature(const char *name)
{
    int value = 0;
    size_t size = sizeof value;
    return sysctlbyname(name, &value, &size, NULL, 0) == 0 && value != 0;
}
#endif

int64_t nib__cpu_isa(void)
{
    int64_t isa = 0;
#if defined(__aarch64__) && defined(__linux__)
    enum { ASIMD = 1 << 1, ASIMDDP = 1 << 20, I8MM = 1 << 13 }; /* of HWCAP, HWCAP, HWCAP2 */
    const unsigned long first = getauxval(AT_HWCAP), second = getauxval(AT_HWCAP2);
    isa |= (first & ASIMD) != 0 ? NIB_ISA_NEON : 0;
    isa |= (first & ASIMDDP) != 0 ? NIB_ISA_DOTPROD : 0;
    isa |= (second & I8MM) != 0 ? NIB_ISA_I8MM : 0;
#elif defined(__aarch64__) && defined(__APPLE__)
    isa |= NIB_ISA_NEON;
    isa |= has_feature("hw.optional.arm.FEAT_DotProd") ? NIB_ISA_DOTPROD : 0;
    isa |= has_feature("hw.optional.arm.FEAT_I8MM") ? NIB_ISA_I8MM : 0;
#endif
    return isa;
}

static bool has_matrix_unit(void) { return false; }

static void cpu_model(char *out, size_t size)
{
#if defined(__APPLE__)
    if (sysctlbyname("machdep.cpu.brand_string", out, &size, NULL, 0) == 0)
        return;
#endif
    snprintf(out, size, "%s", "");
}

#endif

/* ---- levels ---- */

static const struct level {
    const char *name;
    int64_t own, all; /* the bit that gives the name; that and all it builds on */
} levels[] = {
    {"ref", 0, 0},
    {"avx2", NIB_ISA_AVX2, NIB_ISA_AVX2},
    {"avx512", NIB_ISA_AVX512, NIB_ISA_AVX2 | NIB_ISA_AVX512},
    {"avx512vnni", NIB_ISA_AVX512VNNI, NIB_ISA_AVX2 | NIB_ISA_AVX512 | NIB_ISA_AVX512VNNI},
    {"avx512bf16", NIB_ISA_AVX512BF16,
     NIB_ISA_AVX2 | NIB_ISA_AVX512 | NIB_ISA_AVX512VNNI | NIB_ISA_AVX512BF16},
    {"amx", NIB_ISA_AMX,
     NIB_ISA_AVX2 | NIB_ISA_AVX512 | NIB_ISA_AVX512VNNI | NIB_ISA_AVX512BF16 | NIB_ISA_AMX},
    {"neon", NIB_ISA_NEON, NIB_ISA_NEON},
    {"dotprod", NIB_ISA_DOTPROD, NIB_ISA_NEON | NIB_ISA_DOTPROD},
    {"i8mm", NIB_ISA_I8MM, NIB_ISA_NEON | NIB_ISA_DOTPROD | NIB_ISA_I8MM},
};

const char *nib__cpu_isa_name(int64_t isa)
{
    size_t best = 0;
    for (size_t i = 0; i < COUNT(levels); i++)
        if ((isa & levels[i].own) != 0)
            best = i;
    return levels[best].name;
}

nib_status nib__cpu_isa_mask(int64_t *out, const char *level, nib_err *err)
{
    const int64_t here = nib__cpu_isa();
    if (level == NULL) {
        *out = here;
        return NIB_OK;
    }
    for (size_t i = 0; i < COUNT(levels); i++) {
        if (strcmp(levels[i].name, level) != 0)
            continue;
        if ((here & levels[i].own) != levels[i].own)
            return nib__fail(err, NIB_NOT_AS_ASKED,
                             "--isa %s: this processor or its operating system does not support "
                             "%s; the best supported is %s",
                             level, level, nib__cpu_isa_name(here));
        *out = here & levels[i].all;
        return NIB_OK;
    }
    char known[128] = "";
    size_t used = 0;
    for (size_t i = 0; i < COUNT(levels) && used < sizeof known; i++)
        used += (size_t)snprintf(known + used, sizeof known - used, "%s%s", i == 0 ? "" : ", ",
                                 levels[i].name);
    char shown[64];
    return nib__fail(err, NIB_USAGE, "--isa %s: unknown instruction set; choose one of %s",
                     nib__escape_name(shown, sizeof shown, level, strlen(level)), known);
}

/* ---- this machine ---- */

/* Rates of one thread, low enough that any processor of the level exceeds them. */
static void cautious_rates(double rate[NIB_UNIT_COUNT], int64_t isa)
{
    const double scalar = 2e9;
    double f32 = scalar, i8 = scalar;
    if ((isa & NIB_ISA_AVX512) != 0)
        f32 = 100e9, i8 = 200e9;
    else if ((isa & NIB_ISA_AVX2) != 0)
        f32 = 50e9, i8 = 100e9;
    else if ((isa & NIB_ISA_NEON) != 0)
        f32 = 25e9, i8 = 50e9;
    if ((isa & NIB_ISA_AVX512VNNI) != 0)
        i8 = 400e9;
    if ((isa & NIB_ISA_DOTPROD) != 0)
        i8 = 100e9;
    if ((isa & NIB_ISA_I8MM) != 0)
        i8 = 200e9;
    const double bf16 = (isa & NIB_ISA_AVX512BF16) != 0 ? 200e9 : f32;
    rate[NIB_UNIT_SCALAR] = scalar;
    rate[NIB_UNIT_F32] = f32;
    rate[NIB_UNIT_BF16] = bf16;
    rate[NIB_UNIT_I8] = (isa & NIB_ISA_AMX) != 0 ? 1500e9 : i8;
    rate[NIB_UNIT_FP8] = bf16; /* codes are widened to bf16 */
    rate[NIB_UNIT_MX8] = bf16;
    rate[NIB_UNIT_DOT8] = i8;
}

/* Reads a size such as "32768K" from a Linux file. 0: missing, or not a size. */
static int64_t size_in(const char *path, const nib_allocator *a)
{
    enum { LIMIT = 64, UNIT = 1024 };
    char *text, *end;
    size_t size;
    if (nib__file_read(&text, &size, path, LIMIT, a, NULL) != NIB_OK)
        return 0;
    const long value = strtol(text, &end, 10);
    const bool right = *end == 'K' && value > 0 && value < INT32_MAX;
    nib__release(a, text);
    return right ? (int64_t)value * UNIT : 0;
}

int64_t nib__cpu_cache_bytes(const nib_allocator *a)
{
    const int64_t third = size_in("/sys/devices/system/cpu/cpu0/cache/index3/size", a);
    if (third > 0)
        return third;
#if defined(_SC_LEVEL3_CACHE_SIZE)
    const long l3 = sysconf(_SC_LEVEL3_CACHE_SIZE), l2 = sysconf(_SC_LEVEL2_CACHE_SIZE);
    return l3 > 0 ? l3 : l2 > 0 ? l2 : 0;
#else
    return 0;
#endif
}

void nib__machine_here(nib_machine *out, int64_t isa, int threads)
{
    const double thread_bytes_per_s = 10e9;
    const int bandwidth_threads = 4; /* more threads rarely read more on small machines */
    *out = (nib_machine){.name = "cpu", .title = "this machine", .here = true};
    out->threads = threads < 1 ? 1 : threads;
    cpu_model(out->cpu, sizeof out->cpu);
    if (out->cpu[0] == 0)
        snprintf(out->cpu, sizeof out->cpu, "unknown processor");
    out->facts.fact[NIB_FACT_DEVICE] = NIB_DEVICE_CPU;
    out->facts.fact[NIB_FACT_MAKER] = ON_X86 ? NIB_MAKER_X86 : NIB_MAKER_ARM;
    out->facts.fact[NIB_FACT_ISA] = isa;
    out->facts.fact[NIB_FACT_DOT8] = (isa & (NIB_ISA_AVX512VNNI | NIB_ISA_DOTPROD)) != 0;
    out->facts.fact[NIB_FACT_MATRIX_UNIT] = has_matrix_unit();
    cautious_rates(out->rate, isa);
    for (int unit = 0; unit < NIB_UNIT_COUNT; unit++)
        out->rate[unit] *= out->threads;
    out->bytes_per_s =
        thread_bytes_per_s * (out->threads < bandwidth_threads ? out->threads : bandwidth_threads);
    out->launch_s = 2e-6; /* waking a pool that spins */
    const long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    out->memory = pages > 0 && page > 0 ? (uint64_t)pages * (uint64_t)page : 0;
}
