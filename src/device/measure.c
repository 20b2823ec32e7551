/* SPDX-License-Identifier: Apache-2.0
 *
 * What this machine can do, measured in about 0.2 s with all threads of the pool: bytes read from
 * memory, and operations per second of the units that rows name. Loops of independent accumulators,
 * long enough to hide latency; nothing here is a kernel. The result is kept as JSON, keyed by
 * processor, isa and threads.
 */
#include "file.h"
#include "json.h"
#include "machine.h"
#include "pool.h"

#include <stdatomic.h>
#include <stdio.h>
#include <time.h>

#if defined(__x86_64__)
#define ON_X86 1
#include <immintrin.h>
#define TARGET(isa) __attribute__((target(isa)))
#else
#define ON_X86 0
#endif

enum {
    CHAINS = 12,           /* independent accumulators: latency times throughput of any unit here */
    READ_BYTES = 64 << 20, /* of all threads; larger than a core's share of the last cache */
    READ_PASSES = 12,
    CACHE_LIMIT = 1 << 20, /* bytes of the file */
};

static const double unit_seconds = 0.02; /* each unit is measured for so long */

/* ---- one thread's loops: `rounds` rounds; the sum keeps the compiler from dropping them ---- */

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

/* As the AVX2 rows do it: 16-bit products added in pairs. */
TARGET("avx2") static double i8_avx2_loop(int64_t rounds)
{
    __m256i sum[CHAINS];
    __m256i x = _mm256_set1_epi16(3);
    for (int c = 0; c < CHAINS; c++)
        sum[c] = _mm256_set1_epi32(c);
    for (int64_t r = 0; r < rounds; r++) {
        x = _mm256_xor_si256(x, sum[0]); /* depends on the round: the product is not hoisted */
        for (int c = 0; c < CHAINS; c++)
            sum[c] = _mm256_add_epi32(sum[c], _mm256_madd_epi16(x, sum[c]));
    }
    for (int c = 1; c < CHAINS; c++)
        sum[0] = _mm256_add_epi32(sum[0], sum[c]);
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

#endif

/* The loop that stands for a unit under `isa`. loop NULL: made of another unit. */
static unit_work work_of(nib_unit unit, int64_t isa)
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
        if ((isa & NIB_ISA_AVX512VNNI) != 0)
            return (unit_work){i8_vnni_loop, 2.0 * 64 * CHAINS};
        return avx2 ? (unit_work){i8_avx2_loop, 2.0 * 16 * CHAINS} : none;
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
    const uint64_t *bytes; /* READ_BYTES */
    _Atomic double sink;   /* whoever writes last: only that it is written matters */
} job;

static void run_loop(void *ctx, int worker, int64_t begin, int64_t end)
{
    job *j = ctx;
    (void)worker, (void)begin, (void)end;
    atomic_store_explicit(&j->sink, j->work.loop(j->rounds), memory_order_relaxed);
}

static void run_read(void *ctx, int worker, int64_t begin, int64_t end)
{
    job *j = ctx;
    uint64_t sums[8] = {0};
    (void)worker;
    for (int64_t i = begin; i + 8 <= end; i += 8)
        for (int c = 0; c < 8; c++)
            sums[c] += j->bytes[i + c];
    for (int c = 1; c < 8; c++)
        sums[0] += sums[c];
    atomic_store_explicit(&j->sink, (double)sums[0], memory_order_relaxed);
}

/* What was measured, and whether others used the cores meanwhile: then the mean lies far below the
 * best. */
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
    const double most_s = 10 * unit_seconds; /* where others use the cores, too */
    job j = {.work = work, .rounds = 1000};
    samples timed = {0, 0, 0};
    double spent_s = 0;
    /* Doubled until a run is long enough to time, then the best of a few. */
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

static samples read_rate(nib_pool *pool, const uint64_t *bytes)
{
    const int64_t count = READ_BYTES / (int64_t)sizeof *bytes, grain = 1 << 15;
    job j = {.bytes = bytes};
    samples timed = {0, 0, 0};
    for (int pass = 0; pass < READ_PASSES; pass++) {
        const uint64_t start = nib__now_ns();
        nib__pool_run(pool, count, grain, false, run_read, &j);
        add_sample(&timed, READ_BYTES / ((double)(nib__now_ns() - start + 1) * 1e-9));
    }
    return timed;
}

/* An empty job: what starting one costs. */
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

static nib_status measure(nib_machine *m, nib_pool *pool, nib_err *err)
{
    const int64_t isa = m->facts.fact[NIB_FACT_ISA];
    uint64_t *bytes = nib__block_take(READ_BYTES);
    if (bytes == NULL)
        return nib__fail_memory(err, READ_BYTES, "measuring this machine");
    memset(bytes, 1, READ_BYTES); /* unwritten pages would all be the same page of zeros */
    const samples read = read_rate(pool, bytes);
    m->bytes_per_s = read.best;
    m->disturbed = was_disturbed(&read);
    nib__block_free(bytes, READ_BYTES);
    m->launch_s = launch_time(pool);
    for (int unit = 0; unit < NIB_UNIT_COUNT; unit++) {
        const unit_work work = work_of((nib_unit)unit, isa);
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
    if (m->rate[NIB_UNIT_BF16] <= 0) /* two f32 multiply-adds make a pair */
        m->rate[NIB_UNIT_BF16] = m->rate[NIB_UNIT_F32];
    m->rate[NIB_UNIT_FP8] = m->rate[NIB_UNIT_BF16]; /* codes are widened to bf16 */
    m->rate[NIB_UNIT_MX8] = m->rate[NIB_UNIT_BF16];
    m->measured = true;
    nib__today(m->measured_on);
    return NIB_OK;
}

/* ---- the cache ----
 * {"schema": 1, "machines": [{"cpu", "isa", "threads", "measured", "bytes_per_s", "launch_s",
 *                             "rates": [NIB_UNIT_COUNT numbers]}]} */

typedef struct entry {
    char cpu[64], measured[16];
    int64_t isa, threads;
    double bytes_per_s, launch_s, rate[NIB_UNIT_COUNT];
} entry;

enum { ENTRIES_MAX = 32 };

static bool read_text(nib_json *json, nib_arena *arena, char *out, size_t size)
{
    const char *text = nib__json_read_string(json, arena, NULL);
    if (text == NULL)
        return false;
    snprintf(out, size, "%s", text);
    return true;
}

static bool read_rates(nib_json *json, double rate[NIB_UNIT_COUNT])
{
    if (!nib__json_expect(json, NIB_JSON_ARRAY))
        return false;
    for (int unit = 0; unit < NIB_UNIT_COUNT; unit++)
        if (!nib__json_read_double(json, &rate[unit]))
            return false;
    return nib__json_expect(json, NIB_JSON_ARRAY_END);
}

static bool read_member(nib_json *json, nib_arena *arena, entry *e)
{
    if (nib__json_is(json, "cpu"))
        return read_text(json, arena, e->cpu, sizeof e->cpu);
    if (nib__json_is(json, "measured"))
        return read_text(json, arena, e->measured, sizeof e->measured);
    if (nib__json_is(json, "isa"))
        return nib__json_read_int64(json, 0, INT64_MAX, &e->isa);
    if (nib__json_is(json, "threads"))
        return nib__json_read_int64(json, 1, 1 << 20, &e->threads);
    if (nib__json_is(json, "bytes_per_s"))
        return nib__json_read_double(json, &e->bytes_per_s);
    if (nib__json_is(json, "launch_s"))
        return nib__json_read_double(json, &e->launch_s);
    if (nib__json_is(json, "rates"))
        return read_rates(json, e->rate);
    return nib__json_skip(json);
}

static bool read_entry(nib_json *json, nib_arena *arena, entry *e)
{
    nib_json_event event;
    while ((event = nib__json_next(json)) == NIB_JSON_KEY)
        if (!read_member(json, arena, e))
            return false;
    return event == NIB_JSON_OBJECT_END;
}

static bool is_sane(const entry *e)
{
    bool sane = e->bytes_per_s > 1e6 && e->launch_s >= 0 && e->launch_s < 1;
    for (int unit = 0; unit < NIB_UNIT_COUNT; unit++)
        sane = sane && e->rate[unit] > 1e3;
    return sane;
}

/* The entries of a cache file; a file that is not one counts as empty, and is written anew. */
static size_t read_cache(entry entries[ENTRIES_MAX], const char *path, const nib_allocator *a)
{
    const nib_json_limits limits = {.depth = 8, .events = 100000};
    char *text;
    size_t size, count = 0;
    nib_json json;
    nib_arena arena;
    if (nib__file_read(&text, &size, path, CACHE_LIMIT, a, NULL) != NIB_OK)
        return 0;
    nib__arena_init(&arena, a, CACHE_LIMIT);
    nib__json_init(&json, path, text, size, &limits);
    bool good = nib__json_expect(&json, NIB_JSON_OBJECT);
    while (good && nib__json_next(&json) == NIB_JSON_KEY) {
        if (!nib__json_is(&json, "machines")) {
            good = nib__json_skip(&json);
            continue;
        }
        good = nib__json_expect(&json, NIB_JSON_ARRAY);
        while (good && nib__json_next(&json) == NIB_JSON_OBJECT) {
            entry e = {.threads = 0};
            good = read_entry(&json, &arena, &e);
            if (good && count < ENTRIES_MAX && is_sane(&e))
                entries[count++] = e;
        }
    }
    nib__arena_free(&arena);
    nib__release(a, text);
    return good && nib__json_status(&json, NULL) == NIB_OK ? count : 0;
}

static void write_entry(nib_jsonw *w, const entry *e)
{
    nib__jsonw_object(w);
    nib__jsonw_pair_string(w, "cpu", e->cpu);
    nib__jsonw_pair_int(w, "isa", e->isa);
    nib__jsonw_pair_int(w, "threads", e->threads);
    nib__jsonw_pair_string(w, "measured", e->measured);
    nib__jsonw_pair_double(w, "bytes_per_s", e->bytes_per_s);
    nib__jsonw_pair_double(w, "launch_s", e->launch_s);
    nib__jsonw_key(w, "rates");
    nib__jsonw_array(w);
    for (int unit = 0; unit < NIB_UNIT_COUNT; unit++)
        nib__jsonw_double(w, e->rate[unit]);
    nib__jsonw_array_end(w);
    nib__jsonw_object_end(w);
}

static nib_status write_file(const char *part, const char *path, const nib_text *text,
                             const nib_allocator *a)
{
    (void)nib__path_remove(part, NULL); /* of a run that was killed */
    NIB_TRY(nib__file_write(part, text->at, text->size, a, NULL));
    return nib__publish(part, path, true, NULL);
}

/* A cache that cannot be written costs the next run 0.2 s, and no more. */
static void write_cache(const entry *entries, size_t count, const char *path,
                        const nib_allocator *a)
{
    nib_text text, part;
    nib_jsonw w;
    nib__text_init(&text, a);
    nib__text_init(&part, a);
    nib__jsonw_init(&w, &text, 2);
    nib__jsonw_object(&w);
    nib__jsonw_pair_int(&w, "schema", 1);
    nib__jsonw_key(&w, "machines");
    nib__jsonw_array(&w);
    for (size_t i = 0; i < count; i++)
        write_entry(&w, &entries[i]);
    nib__jsonw_array_end(&w);
    nib__jsonw_object_end(&w);
    nib__text_str(&text, "\n");
    nib__text_format(&part, "%s.part", path);
    if (!text.failed && !part.failed && write_file(part.at, path, &text, a) != NIB_OK)
        (void)nib__path_remove(part.at, NULL);
    nib__text_free(&part);
    nib__text_free(&text);
}

static bool same_machine(const entry *e, const nib_machine *m)
{
    return strcmp(e->cpu, m->cpu) == 0 && e->isa == m->facts.fact[NIB_FACT_ISA] &&
           e->threads == m->threads;
}

static void take_entry(nib_machine *m, const entry *e)
{
    m->bytes_per_s = e->bytes_per_s;
    m->launch_s = e->launch_s;
    memcpy(m->rate, e->rate, sizeof m->rate);
    m->measured = true;
    snprintf(m->measured_on, sizeof m->measured_on, "%s", e->measured);
}

nib_status nib__machine_measure(nib_machine *machine, struct nib_pool *pool, const char *cache_path,
                                const nib_allocator *a, nib_err *err)
{
    if (cache_path == NULL)
        return measure(machine, pool, err);
    entry *entries = nib__calloc(a, ENTRIES_MAX, sizeof *entries);
    if (entries == NULL)
        return nib__fail_memory(err, ENTRIES_MAX * sizeof *entries, "measuring this machine");
    size_t count = read_cache(entries, cache_path, a);
    for (size_t i = 0; i < count; i++) {
        if (same_machine(&entries[i], machine)) {
            take_entry(machine, &entries[i]);
            nib__release(a, entries);
            return NIB_OK;
        }
    }
    const nib_status status = measure(machine, pool, err);
    /* What a busy machine gives is used once and not kept. */
    if (status == NIB_OK && !machine->disturbed) {
        entry *e = &entries[count < ENTRIES_MAX ? count++ : 0];
        *e = (entry){.isa = machine->facts.fact[NIB_FACT_ISA], .threads = machine->threads};
        snprintf(e->cpu, sizeof e->cpu, "%s", machine->cpu);
        snprintf(e->measured, sizeof e->measured, "%s", machine->measured_on);
        e->bytes_per_s = machine->bytes_per_s;
        e->launch_s = machine->launch_s;
        memcpy(e->rate, machine->rate, sizeof e->rate);
        write_cache(entries, count, cache_path, a);
    }
    nib__release(a, entries);
    return status;
}
