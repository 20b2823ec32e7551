/* SPDX-License-Identifier: Apache-2.0
 *
 * Measures this machine in about 0.3 s with all threads of the pool: bytes per second read from
 * memory, and operations per second of the arithmetic units. Loops have enough independent
 * accumulators to hide latency; none of them is a kernel. src/measure/measure_products.c times the
 * matmuls of kernels on request.
 */
#include "machine.h"
#include "pool.h"

#include <stdatomic.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#if defined(__x86_64__)
#define ON_X86 1
#include <immintrin.h>
#define TARGET(isa) __attribute__((target(isa)))
#else
#define ON_X86 0
#endif

enum {
    CHAINS = 12, /* independent accumulators: at least latency times throughput of any unit */
    READ_LEAST = 64 << 20,   /* bytes read by all threads: enough to miss the last-level cache, */
    READ_MOST = 512 << 20,   /* within these bounds */
    READ_TOTAL = 1536 << 20, /* bytes of all passes, at most */
    PASSES_MOST = 12,
};

static const double unit_seconds = 0.02; /* time to measure each unit */

/* ---- one thread's loops; returning the sum keeps the compiler from removing them ---- */

typedef double (*unit_loop)(int64_t rounds);

typedef struct unit_work {
    unit_loop loop;
    double operations; /* of one round */
} unit_work;

static double scalar_loop(int64_t rounds)
{
    volatile float seed = 1.0F; /* volatile: neither folded nor vectorized */
    float sum[CHAINS];
    for (int c = 0; c < CHAINS; c++)
        sum[c] = seed + (float)c;
    for (int64_t r = 0; r < rounds; r++) {
        const float x = seed;
        for (int c = 0; c < CHAINS; c++)
            sum[c] = sum[c] * 0.999F + x;
    }
    double total = 0;
    for (int c = 0; c < CHAINS; c++)
        total += (double)sum[c];
    return total;
}

#if ON_X86

TARGET("avx2,fma") static double f32_avx2_loop(int64_t rounds)
{
    __m256 sum[CHAINS];
    const __m256 x = _mm256_set1_ps(0.999F);
    for (int c = 0; c < CHAINS; c++)
        sum[c] = _mm256_set1_ps((float)c);
    for (int64_t r = 0; r < rounds; r++)
        for (int c = 0; c < CHAINS; c++)
            sum[c] = _mm256_fmadd_ps(sum[c], x, x);
    for (int c = 1; c < CHAINS; c++)
        sum[0] = _mm256_add_ps(sum[0], sum[c]);
    return (double)_mm256_cvtss_f32(sum[0]);
}

TARGET("avx512f") static double f32_avx512_loop(int64_t rounds)
{
    __m512 sum[CHAINS];
    const __m512 x = _mm512_set1_ps(0.999F);
    for (int c = 0; c < CHAINS; c++)
        sum[c] = _mm512_set1_ps((float)c);
    for (int64_t r = 0; r < rounds; r++)
        for (int c = 0; c < CHAINS; c++)
            sum[c] = _mm512_fmadd_ps(sum[c], x, x);
    for (int c = 1; c < CHAINS; c++)
        sum[0] = _mm512_add_ps(sum[0], sum[c]);
    return (double)_mm512_cvtss_f32(sum[0]);
}

TARGET("avx512f,avx512bf16") static double bf16_avx512_loop(int64_t rounds)
{
    __m512 sum[CHAINS];
    const __m512bh x = (__m512bh)_mm512_set1_epi16(0x3f7f);
    for (int c = 0; c < CHAINS; c++)
        sum[c] = _mm512_set1_ps((float)c);
    for (int64_t r = 0; r < rounds; r++)
        for (int c = 0; c < CHAINS; c++)
            sum[c] = _mm512_dpbf16_ps(sum[c], x, x);
    for (int c = 1; c < CHAINS; c++)
        sum[0] = _mm512_add_ps(sum[0], sum[c]);
    return (double)_mm512_cvtss_f32(sum[0]);
}

/* As the AVX2 rows do for int4, their fastest code: pairs of 8-bit products added in 16 bits. */
TARGET("avx2") static double i8_avx2_loop(int64_t rounds)
{
    __m256i sum[CHAINS];
    __m256i x = _mm256_set1_epi16(3);
    for (int c = 0; c < CHAINS; c++)
        sum[c] = _mm256_set1_epi16((short)c);
    for (int64_t r = 0; r < rounds; r++) {
        x = _mm256_xor_si256(x, sum[0]); /* depends on the round, so the product is not hoisted */
        for (int c = 0; c < CHAINS; c++)
            sum[c] = _mm256_add_epi16(sum[c], _mm256_maddubs_epi16(x, sum[c]));
    }
    for (int c = 1; c < CHAINS; c++)
        sum[0] = _mm256_add_epi16(sum[0], sum[c]);
    return (double)_mm_cvtsi128_si32(_mm256_castsi256_si128(sum[0]));
}

TARGET("avx512f,avx512bw,avx512vnni") static double i8_vnni_loop(int64_t rounds)
{
    __m512i sum[CHAINS];
    const __m512i x = _mm512_set1_epi8(3);
    for (int c = 0; c < CHAINS; c++)
        sum[c] = _mm512_set1_epi32(c);
    for (int64_t r = 0; r < rounds; r++)
        for (int c = 0; c < CHAINS; c++)
            sum[c] = _mm512_dpbusd_epi32(sum[c], x, x);
    for (int c = 1; c < CHAINS; c++)
        sum[0] = _mm512_add_epi32(sum[0], sum[c]);
    return (double)_mm_cvtsi128_si32(_mm512_castsi512_si128(sum[0]));
}

/* Sums of four matrix tiles, 16 x 16 of 64 products each. */
static double i8_amx_loop(int64_t rounds)
{
    enum { TILES = 8, ROWS = 16 };
    struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } config = {.palette = 1};
    for (int i = 0; i < TILES; i++)
        config.row_bytes[i] = 64, config.rows[i] = ROWS;
    __asm__ volatile("ldtilecfg %0" : : "m"(config));
    for (int64_t r = 0; r < rounds; r++)
        __asm__ volatile("tdpbsud %%tmm6, %%tmm4, %%tmm0\n\t"
                         "tdpbsud %%tmm7, %%tmm4, %%tmm1\n\t"
                         "tdpbsud %%tmm6, %%tmm5, %%tmm2\n\t"
                         "tdpbsud %%tmm7, %%tmm5, %%tmm3" ::
                             :);
    __asm__ volatile("tilerelease" : : :);
    return 0;
}

#endif

/* The loop that measures a unit under `isa`. loop NULL: the rate is derived from another unit's. */
static unit_work select_loop(nib_unit unit, int64_t isa)
{
    const unit_work none = {NULL, 0};
    if (unit == NIB_UNIT_SCALAR)
        return (unit_work){scalar_loop, 2.0 * CHAINS};
#if ON_X86
    const bool avx512 = (isa & NIB_ISA_AVX512) != 0, avx2 = (isa & NIB_ISA_AVX2) != 0;
    switch (unit) {
    case NIB_UNIT_F32:
        if (avx512)
            return (unit_work){f32_avx512_loop, 2.0 * 16 * CHAINS};
        return avx2 ? (unit_work){f32_avx2_loop, 2.0 * 8 * CHAINS} : none;
    case NIB_UNIT_BF16:
        return (isa & NIB_ISA_AVX512BF16) != 0 ? (unit_work){bf16_avx512_loop, 2.0 * 32 * CHAINS}
                                               : none;
    case NIB_UNIT_I8:
        if ((isa & NIB_ISA_AMX) != 0)
            return (unit_work){i8_amx_loop, 4 * 2.0 * 16 * 16 * 64};
        return select_loop(NIB_UNIT_DOT8, isa);
    case NIB_UNIT_DOT8:
        if ((isa & NIB_ISA_AVX512VNNI) != 0)
            return (unit_work){i8_vnni_loop, 2.0 * 64 * CHAINS};
        return avx2 ? (unit_work){i8_avx2_loop, 2.0 * 32 * CHAINS} : none;
    default: break;
    }
#else
    (void)isa;
#endif
    return none;
}

/* ---- all threads at once ---- */

typedef struct job {
    unit_work work;
    int64_t rounds;
    const uint64_t *bytes;
    _Atomic double sink; /* written only to keep the loops */
} job;

static void run_loop(void *ctx, int worker, int64_t begin, int64_t end)
{
    job *j = ctx;
    (void)worker, (void)begin, (void)end;
    atomic_store_explicit(&j->sink, j->work.loop(j->rounds), memory_order_relaxed);
}

/* Reads like a matmul of one token: a stream per worker, with prefetch. */
static void run_read(void *ctx, int worker, int64_t begin, int64_t end)
{
    enum { AHEAD = 4096 / sizeof(uint64_t) };
    job *j = ctx;
    uint64_t sums[8] = {0};
    (void)worker;
    for (int64_t i = begin; i + 8 <= end; i += 8) {
        __builtin_prefetch(&j->bytes[i + AHEAD]);
        for (int c = 0; c < 8; c++)
            sums[c] += j->bytes[i + c];
    }
    for (int c = 1; c < 8; c++)
        sums[0] += sums[c];
    atomic_store_explicit(&j->sink, (double)sums[0], memory_order_relaxed);
}

/* Measured rates. If other processes used the cores, the mean is far below the best. */
typedef struct samples {
    double best, sum;
    int count;
} samples;

static void add_sample(samples *s, double rate)
{
    s->best = rate > s->best ? rate : s->best;
    s->sum += rate;
    s->count++;
}

static bool was_disturbed(const samples *s)
{
    const double quiet = 0.75; /* of the best; on an idle machine the mean is above 0.9 of it */
    return s->count == 0 || s->sum < quiet * s->best * s->count;
}

static samples unit_rate(nib_pool *pool, unit_work work)
{
    enum { RUNS_MIN = 5 };
    const uint64_t run_ns = 2000000;
    const double most_s = 10 * unit_seconds; /* if other processes use the cores too */
    job j = {.work = work, .rounds = 1000};
    samples timed = {0, 0, 0};
    double spent_s = 0;
    /* Doubles the rounds until a run is long enough to time, then takes the best of a few. */
    while (timed.count == 0 ||
           ((spent_s < unit_seconds || timed.count < RUNS_MIN) && spent_s < most_s)) {
        const uint64_t start = nib__now_ns();
        nib__pool_each(pool, true, run_loop, &j);
        const uint64_t ns = nib__now_ns() - start + 1;
        const double operations = work.operations * (double)j.rounds * nib__pool_threads(pool);
        const double rate = operations / ((double)ns * 1e-9);
        spent_s += (double)ns * 1e-9;
        if (ns >= run_ns) {
            add_sample(&timed, rate);
            continue;
        }
        timed.best = rate > timed.best ? rate : timed.best;
        j.rounds *= 2;
    }
    return timed;
}

static samples read_rate(nib_pool *pool, const uint64_t *bytes, int64_t size)
{
    const int64_t count = size / (int64_t)sizeof *bytes, grain = 1 << 15;
    const int64_t passes = nib__min(PASSES_MOST, READ_TOTAL / nib__max(size, 1));
    job j = {.bytes = bytes};
    samples timed = {0, 0, 0};
    for (int64_t pass = 0; pass < passes; pass++) {
        const uint64_t start = nib__now_ns();
        nib__pool_share_out(pool, count, grain, false, run_read, &j);
        add_sample(&timed, (double)size / ((double)(nib__now_ns() - start + 1) * 1e-9));
    }
    return timed;
}

/* Bytes to read so that caches do not hold them, bounded by the machine's memory. */
static int64_t far_bytes(const nib_machine *m, int64_t cache)
{
    enum { SHARE = 16 /* of the memory, at most */ };
    const int64_t most = nib__min(READ_MOST, (int64_t)(m->memory / SHARE));
    return nib__max(READ_LEAST, nib__min(NIB_CACHE_REACH * cache, most));
}

static nib_status allocate_bytes(uint64_t **out, int64_t size, nib_err *err)
{
    uint64_t *bytes = nib__block_take((uint64_t)size);
    if (bytes == NULL)
        return nib__fail_memory(err, (uint64_t)size, "measuring this machine");
    memset(bytes, 1, (size_t)size); /* unwritten pages would all map to one page of zeros */
    *out = bytes;
    return NIB_OK;
}

nib_status nib__machine_read_rate(double *bytes_per_s, const nib_machine *machine,
                                  struct nib_pool *pool, const nib_allocator *a, nib_err *err)
{
    const int64_t size = far_bytes(machine, nib__cpu_cache_bytes(a));
    uint64_t *bytes = NULL;
    NIB_TRY(allocate_bytes(&bytes, size, err));
    *bytes_per_s = read_rate(pool, bytes, size).best;
    nib__block_free(bytes, (uint64_t)size);
    return NIB_OK;
}

/* Measures reading from memory, and from the caches, where weights of small models stay between
 * tokens. */
static nib_status measure_reading(nib_machine *m, nib_pool *pool, const nib_allocator *a,
                                  nib_err *err)
{
    const int64_t cache = nib__cpu_cache_bytes(a), size = far_bytes(m, cache);
    uint64_t *bytes = NULL;
    NIB_TRY(allocate_bytes(&bytes, size, err));
    const samples far = read_rate(pool, bytes, size);
    m->bytes_per_s = far.best;
    m->cache_bytes = (double)cache;
    m->disturbed = was_disturbed(&far);
    if (cache > 0) {
        const samples near = read_rate(pool, bytes, nib__min(READ_LEAST, cache / 4));
        m->cache_bytes_per_s = near.best > far.best ? near.best : far.best;
        m->disturbed = m->disturbed || was_disturbed(&near);
    }
    nib__block_free(bytes, (uint64_t)size);
    return NIB_OK;
}

/* An empty job, to time how long starting one takes. */
static void run_nothing(void *ctx, int worker, int64_t begin, int64_t end)
{
    (void)ctx, (void)worker, (void)begin, (void)end;
}

static double launch_time(nib_pool *pool)
{
    enum { JOBS = 200 };
    const uint64_t start = nib__now_ns();
    for (int i = 0; i < JOBS; i++)
        nib__pool_run(pool, nib__pool_threads(pool), 1, false, run_nothing, NULL);
    return (double)(nib__now_ns() - start) * 1e-9 / JOBS;
}

void nib__today(char out[16])
{
    const time_t now = time(NULL);
    struct tm day;
    if (gmtime_r(&now, &day) == NULL || strftime(out, 16, "%Y-%m-%d", &day) == 0)
        snprintf(out, 16, "1970-01-01");
}

static nib_status measure(nib_machine *m, nib_pool *pool, const nib_allocator *a, nib_err *err)
{
    const int64_t isa = m->facts.fact[NIB_FACT_ISA];
    NIB_TRY(measure_reading(m, pool, a, err));
    m->launch_s = launch_time(pool);
    for (int unit = 0; unit < NIB_UNIT_COUNT; unit++) {
        const unit_work work = select_loop((nib_unit)unit, isa);
        m->rate[unit] = 0;
        if (work.loop == NULL)
            continue;
        const samples timed = unit_rate(pool, work);
        m->rate[unit] = timed.best;
        m->disturbed = m->disturbed || was_disturbed(&timed);
    }
    if (m->rate[NIB_UNIT_F32] <= 0)
        m->rate[NIB_UNIT_F32] = m->rate[NIB_UNIT_SCALAR];
    if (m->rate[NIB_UNIT_I8] <= 0)
        m->rate[NIB_UNIT_I8] = m->rate[NIB_UNIT_SCALAR];
    if (m->rate[NIB_UNIT_BF16] <= 0) /* a bf16 pair takes two f32 multiply-adds */
        m->rate[NIB_UNIT_BF16] = m->rate[NIB_UNIT_F32];
    m->rate[NIB_UNIT_FP8] = m->rate[NIB_UNIT_BF16]; /* codes are widened to bf16 */
    m->rate[NIB_UNIT_MX8] = m->rate[NIB_UNIT_BF16];
    if (m->rate[NIB_UNIT_DOT8] <= 0)
        m->rate[NIB_UNIT_DOT8] = m->rate[NIB_UNIT_I8];
    m->measured = true;
    nib__today(m->measured_on);
    return NIB_OK;
}

/* ---- from the cache, or measured now ---- */

nib_status nib__machine_measure(nib_machine *machine, struct nib_pool *pool, const char *cache_path,
                                const nib_allocator *a, nib_err *err)
{
    if (cache_path != NULL && nib__measured_find(machine, "", cache_path, a))
        return NIB_OK;
    NIB_TRY(measure(machine, pool, a, err));
    /* Rates of a busy machine are used but not stored, so the next run measures again. */
    if (cache_path != NULL && !machine->disturbed)
        (void)nib__measured_keep(machine, "", cache_path, a, NULL);
    return NIB_OK;
}
