/* SPDX-License-Identifier: Apache-2.0
 *
 * Activation quantizers: the reference against the formulas written out, torchao's own codes and
 * base's casts; every other row against the reference, bit for bit.
 */
#include "kernel.h"
#include "machine.h"

#include <inttypes.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

enum { POISON = 0xa5, GUARD = 64 };

static uint64_t seed = 20261120;

static uint32_t next_random(void)
{
    seed = seed * 6364136223846793005U + 1442695040888963407U;
    return (uint32_t)(seed >> 33);
}

static void *allocate(size_t bytes)
{
    void *p = aligned_alloc(64, (bytes + GUARD + 63) / 64 * 64);
    assert_non_null(p);
    memset(p, POISON, (bytes + GUARD + 63) / 64 * 64);
    return p;
}

static const nib_kernel *row_named(const char *name)
{
    for (size_t i = 0; i < nib__family_quant.count; i++)
        if (strcmp(nib__family_quant.rows[i].name, name) == 0)
            return &nib__family_quant.rows[i];
    fail_msg("no row %s", name);
    return NULL;
}

static bool runs_here(const nib_kernel *row)
{
    nib_query here = {.fact = {[NIB_FACT_ISA] = nib__cpu_isa()}};
    return row->run.any != NULL && nib__kernel_holds(row, &here, true);
}

/* ---- one job with its own buffers ---- */

typedef struct job {
    nib_quant q;
    int64_t m;
    size_t values_size, scale_size, sums_size; /* bytes of each output */
    void *values, *scale, *zero, *sums;
} job;

static job make_job(const nib_kernel *row, const float *x, int64_t m, int64_t k, int64_t ldx,
                    int64_t group)
{
    const bool is_codes = row->act == NIB_ACT_I8_TOKEN || row->act == NIB_ACT_I8_STATIC ||
                          row->act == NIB_ACT_I4_TOKEN || nib__act_block((nib_act)row->act) > 0;
    const int64_t block = nib__act_block((nib_act)row->act);
    const bool is_f32 = row->act == NIB_ACT_FLOAT && row->input != NIB_TYPE_BF16;
    const size_t size = is_codes ? 1 : is_f32 ? 4 : 2;
    job j = {.m = m};
    nib_input *out = &j.q.out;
    out->m = m;
    out->k = k;
    out->ld = nib__round_up(k, NIB_CODES_PAD);
    out->group = nib__act_is_f8_blocks((nib_act)row->act) ? block : group;
    out->groups = nib__ceil_div(k, out->group);
    j.values_size = (size_t)(m * out->ld) * size;
    j.scale_size = (size_t)(m * (block > 0 ? nib__ceil_div(k, block) : 1)) * 4;
    j.sums_size = (size_t)(m * out->groups) * 4;
    j.values = allocate(j.values_size);
    j.scale = allocate(j.scale_size);
    j.zero = allocate((size_t)m * 4);
    j.sums = allocate(j.sums_size);
    out->codes = is_codes ? j.values : NULL;
    out->f32 = is_f32 ? j.values : NULL;
    out->bf16 = !is_codes && !is_f32 ? j.values : NULL;
    out->scale = j.scale;
    out->zero = j.zero;
    out->sums = j.sums;
    out->fsums = row->act == NIB_ACT_FLOAT ? j.sums : NULL;
    j.q.x = x;
    j.q.ldx = ldx;
    return j;
}

static void free_job(job *j)
{
    free(j->values);
    free(j->scale);
    free(j->zero);
    free(j->sums);
}

static void check_guard(const void *p, size_t bytes)
{
    for (size_t i = bytes; i < bytes + GUARD; i++)
        assert_int_equal(((const uint8_t *)p)[i], POISON);
}

static void run(const nib_kernel *row, job *j, bool in_parts)
{
    if (!in_parts)
        row->run.quant(&j->q, 0, j->m);
    for (int64_t r = 0; in_parts && r < j->m; r++)
        row->run.quant(&j->q, r, r + 1);
    check_guard(j->values, j->values_size);
    check_guard(j->scale, j->scale_size);
    check_guard(j->zero, (size_t)j->m * 4);
    check_guard(j->sums, j->sums_size);
}

/* Every row of the reference's form gives its bits. */
static void compare(const nib_kernel *ref, const job *want)
{
    for (size_t i = 0; i < nib__family_quant.count; i++) {
        const nib_kernel *row = &nib__family_quant.rows[i];
        if (row->reference == NULL || strcmp(row->reference, ref->name) != 0 || !runs_here(row))
            continue;
        job j = make_job(row, want->q.x, want->m, want->q.out.k, want->q.ldx, want->q.out.group);
        j.q.symmetric = want->q.symmetric;
        j.q.mx_floor = want->q.mx_floor;
        j.q.block_only = want->q.block_only;
        j.q.formula = want->q.formula;
        j.q.static_scale = want->q.static_scale;
        j.q.static_zero = want->q.static_zero;
        run(row, &j, true);
        assert_memory_equal(j.values, want->values, j.values_size);
        assert_memory_equal(j.scale, want->scale, j.scale_size);
        assert_memory_equal(j.zero, want->zero, (size_t)j.m * 4);
        assert_memory_equal(j.sums, want->sums, j.sums_size);
        free_job(&j);
    }
}

/* ---- inputs ---- */

enum { KINDS = 13 };

static void fill(float *x, int64_t k, int kind)
{
    for (int64_t j = 0; j < k; j++) {
        const float u = (float)next_random() / 2147483648.0F * 2 - 1;
        switch (kind) {
        case 0: x[j] = u; break;
        case 1: x[j] = 0; break;
        case 2: x[j] = u * 1e-40F; break; /* denormal */
        case 3: x[j] = u * 3e38F; break;  /* its range overflows */
        case 4: x[j] = fabsf(u) * 7; break;
        case 5: x[j] = -fabsf(u) * 7; break;
        case 6: x[j] = u * 1e-30F; break;
        case 7: x[j] = 0.375F; break;
        case 8: x[j] = ldexpf(u, (int)(next_random() % 60) - 30); break;
        case 9: x[j] = j == k / 2 ? NAN : u; break;
        case 10: x[j] = j == k / 2 ? -INFINITY : u; break;
        case 11: x[j] = u * 1e-34F; break; /* 64 / NVFP4's token scale is infinite */
        default: x[j] = j % 2 ? -0.0F : 0.0F; break;
        }
    }
}

/* ---- formulas written out ---- */

static float rne(float v) { return nearbyintf(v); }
static float between(float v, float low, float high) { return v < low ? low : v > high ? high : v; }

static void check_integer(const job *j, int bits, bool is_static)
{
    const float steps = bits == 8 ? 255 : 15, qmin = bits == 8 ? -128 : -8, qmax = -qmin - 1;
    const nib_input *out = &j->q.out;
    for (int64_t r = 0; r < j->m; r++) {
        const float *x = j->q.x + r * j->q.ldx;
        float low = 0, high = 0, scale, zero = 0;
        bool is_finite = true;
        for (int64_t i = 0; i < out->k; i++) {
            low = fminf(low, x[i]);
            high = fmaxf(high, x[i]);
            is_finite = is_finite && isfinite(x[i]);
        }
        const float eps =
            j->q.symmetric || j->q.formula == NIB_FORMULA_AO017 ? 1.1920929e-07F : 1.17549435e-38F;
        if (is_static) {
            scale = *j->q.static_scale;
            zero = (float)*j->q.static_zero;
        } else if (j->q.symmetric) {
            scale = fmaxf(fmaxf(-low, high) / (steps / 2), eps);
        } else {
            scale = fmaxf((high - low) / steps, eps);
            zero = between(qmin - rne(low / scale), qmin, qmax);
        }
        assert_true(is_finite ? out->scale[r] == scale : isnan(out->scale[r]));
        assert_int_equal(out->zero[r], is_finite ? (int)zero : 0);
        for (int64_t g = 0; g < out->groups; g++) {
            int sum = 0;
            for (int64_t i = g * out->group; i < nib__min(out->k, (g + 1) * out->group); i++) {
                const float code = between(rne(x[i] * (1 / scale)) + zero, qmin, qmax);
                assert_int_equal(out->codes[r * out->ld + i], is_finite ? (int)code : 0);
                sum += out->codes[r * out->ld + i];
            }
            assert_int_equal(out->sums[r * out->groups + g], sum);
        }
        for (int64_t i = out->k; i < out->ld; i++)
            assert_int_equal(out->codes[r * out->ld + i], 0);
    }
}

/* e2m1 values are checked as e4m3. */
static void check_mx(const job *j, bool is_e2m1)
{
    const float most = is_e2m1 ? 6 : 448, power_of_most = is_e2m1 ? 4 : 256;
    const nib_input *out = &j->q.out;
    for (int64_t r = 0; r < j->m; r++)
        for (int64_t g = 0; g < out->groups; g++) {
            const int64_t count = nib__min(32, out->k - 32 * g);
            const float *x = j->q.x + r * j->q.ldx + 32 * g,
                        scale = out->scale[r * out->groups + g];
            const uint8_t *codes = (const uint8_t *)out->codes + r * out->ld + 32 * g;
            float largest = 0;
            bool is_finite = true;
            for (int64_t i = 0; i < count; i++) {
                largest = fmaxf(largest, fabsf(x[i]));
                is_finite = is_finite && isfinite(x[i]);
            }
            assert_true(is_finite == !isnan(scale));
            int power;
            if (is_finite)
                assert_true(frexpf(scale, &power) == 0.5F);
            if (is_finite && largest > 1e-30F && !j->q.mx_floor)
                assert_true(largest / most <= scale && largest / most > scale / 2);
            if (is_finite && largest > 1e-30F && j->q.mx_floor)
                assert_true(largest >= scale * power_of_most &&
                            largest < scale * 2 * power_of_most);
            for (int64_t i = 0; i < count && largest > 1e-30F; i++) {
                const uint8_t e2m1 = nib__f32_to_e2m1(x[i] / scale);
                const uint8_t code = is_e2m1 ? nib__f32_to_e4m3(nib__e2m1_to_f32(e2m1))
                                             : nib__f32_to_e4m3_saturated(x[i] / scale);
                assert_int_equal(codes[i], is_finite ? code : 0);
            }
        }
}

/* e2m1 values are checked as e4m3; a block's scale is multiplied by its token's. */
static void check_nv(const job *j)
{
    const nib_input *out = &j->q.out;
    for (int64_t r = 0; r < j->m; r++) {
        const float *x = j->q.x + r * j->q.ldx;
        float most = 0;
        bool is_token = true; /* finite, or only blocks have scales */
        for (int64_t i = 0; i < out->k; i++) {
            most = fmaxf(most, fabsf(x[i]));
            is_token = is_token && (isfinite(x[i]) || j->q.block_only);
        }
        const float token = j->q.block_only ? 1 : most / 2688;
        const bool is_zero = is_token && !isfinite(64 / token);
        for (int64_t g = 0; g < out->groups; g++) {
            const int64_t k0 = 16 * g, k1 = nib__min(out->k, k0 + 16);
            float largest = 0;
            bool is_finite = is_token;
            for (int64_t i = k0; i < k1; i++) {
                largest = fmaxf(largest, fabsf(x[i]));
                is_finite = is_finite && isfinite(x[i]);
            }
            const float scale =
                nib__e4m3_to_f32(nib__f32_to_e4m3(between(largest / 6 / token, 0.015625F, 448)));
            const float want = is_zero ? 1 : scale * token, got = out->scale[r * out->groups + g];
            assert_true(is_finite ? got == want : isnan(got));
            for (int64_t i = k0; i < k1; i++) {
                const uint8_t e2m1 = nib__f32_to_e2m1(x[i] * (1 / token / scale));
                const uint8_t code = nib__f32_to_e4m3(nib__e2m1_to_f32(e2m1));
                assert_int_equal((uint8_t)out->codes[r * out->ld + i],
                                 is_finite && !is_zero ? code : 0);
            }
        }
        for (int64_t i = out->k; i < out->ld; i++)
            assert_int_equal(out->codes[r * out->ld + i], 0);
    }
}

/* ggml's Q8_0 and Q8_K. */
static void check_blocks(const job *j, int64_t block)
{
    const nib_input *out = &j->q.out;
    for (int64_t r = 0; r < j->m; r++)
        for (int64_t b = 0, k0 = 0; k0 < out->k; b++, k0 += block) {
            const int64_t count = nib__min(block, out->k - k0);
            const float *x = j->q.x + r * j->q.ldx + k0;
            const int8_t *codes = out->codes + r * out->ld + k0;
            float largest = 0, most = 0;
            bool is_finite = true;
            for (int64_t i = 0; i < count; i++) {
                is_finite = is_finite && isfinite(x[i]);
                most = fabsf(x[i]) > largest ? x[i] : most;
                largest = fmaxf(largest, fabsf(x[i]));
            }
            const float d = largest / 127, factor = block == 32 ? 1 / d : -127 / most;
            float scale = block == 32 ? nib__f16_to_f32(nib__f32_to_f16(d)) : 1 / factor;
            if (largest == 0 || !isfinite(factor))
                scale = 0;
            const float got = out->scale[r * nib__ceil_div(out->k, block) + b];
            assert_true(is_finite ? got == scale : isnan(got));
            for (int64_t i = 0; i < count; i++) {
                const float v = x[i] * factor, code = block == 32 ? roundf(v) : fminf(rne(v), 127);
                assert_int_equal(codes[i], is_finite && scale != 0 ? (int)code : 0);
            }
        }
}

static void check_e4m3(const job *j)
{
    const nib_input *out = &j->q.out;
    for (int64_t r = 0; r < j->m; r++) {
        const float *x = j->q.x + r * j->q.ldx;
        float largest = 0;
        bool is_finite = true;
        for (int64_t i = 0; i < out->k; i++) {
            largest = fmaxf(largest, fabsf(x[i]));
            is_finite = is_finite && isfinite(x[i]);
        }
        const float scale = largest / 448;
        assert_true(!is_finite ? isnan(out->scale[r]) : out->scale[r] == (scale > 0 ? scale : 1));
        for (int64_t i = 0; i < out->ld; i++) {
            const bool coded = is_finite && scale > 0 && i < out->k;
            const float value =
                coded ? nib__e4m3_to_f32(nib__f32_to_e4m3_saturated(x[i] / scale)) : 0;
            assert_int_equal(out->bf16[r * out->ld + i], nib__f32_to_bf16(value));
        }
    }
}

/* Sums by group in the order of a product with ones. */
static void check_floats(const job *j, nib_type type)
{
    const nib_input *out = &j->q.out;
    for (int64_t r = 0; r < j->m; r++)
        for (int64_t g = 0; g < out->groups; g++) {
            float total = 0, sum = 0, values[2 * NIB_SUM_BLOCK];
            const int64_t k0 = g * out->group, k1 = nib__min(out->k, k0 + out->group);
            int64_t begin = k0;
            for (int64_t i = k0; i < k1; i++) {
                const float x = j->q.x[r * j->q.ldx + i];
                if (type == NIB_TYPE_BF16) {
                    assert_int_equal(out->bf16[r * out->ld + i], nib__f32_to_bf16(x));
                    values[i - begin] = nib__bf16_to_f32(nib__f32_to_bf16(x));
                } else {
                    const float want =
                        type == NIB_TYPE_F16 ? nib__f16_to_f32(nib__f32_to_f16(x)) : x;
                    assert_memory_equal(&out->f32[r * out->ld + i], &want, 4);
                    values[i - begin] = want;
                }
                if (i + 1 < k1 && (out->group <= NIB_SUM_BLOCK || (i + 1) % NIB_SUM_BLOCK != 0))
                    continue;
                sum = 0;
                int64_t at = 0;
                for (; type == NIB_TYPE_BF16 && at + 2 <= i + 1 - begin; at += 2) {
                    sum = fmaf(values[at + 1], 1, sum);
                    sum = fmaf(values[at], 1, sum);
                }
                for (; at < i + 1 - begin; at++)
                    sum = fmaf(values[at], 1, sum);
                total += sum;
                begin = i + 1;
            }
            const float got = out->fsums[r * out->groups + g];
            if (memcmp(&got, &total, 4) != 0 && !(isnan(got) && isnan(total)))
                fail_msg("%s k %d token %d group %d of %d: sum %a, not %a", nib__type_name(type),
                         (int)out->k, (int)r, (int)g, (int)out->group, (double)got, (double)total);
        }
}

/* ---- tests ---- */

static const int64_t ks[] = {1, 31, 32, 33, 64, 172, 224, 608, 2048, 2080, 4100};

static void test_forms(void **state)
{
    (void)state;
    static const char *const refs[] = {
        "quant_f32_a8t__ref",    "quant_f32_a4t__ref", "quant_f32_a8s__ref",
        "quant_f32_e4m3t__ref",  "quant_f32_mx8__ref", "quant_f32_bf16__ref",
        "quant_f32_f16__ref",    "quant_f32_f32__ref", "quant_f32_a8b32__ref",
        "quant_f32_a8b256__ref", "quant_f32_mx4__ref", "quant_f32_nv4__ref"};
    static const int64_t groups[] = {32, 64, 7, 3000, 0};
    const float scales[] = {0.01F, 1e-30F, 3e38F, 0.0F};
    const int32_t zeros[] = {0, 5, -128, 127};
    for (size_t f = 0; f < COUNT(refs); f++)
        for (size_t i = 0; i < COUNT(ks); i++)
            for (int variant = 0; variant < 8; variant++) {
                const nib_kernel *ref = row_named(refs[f]);
                const int64_t k = ks[i], m = KINDS, ldx = k + variant % 3;
                const int64_t group = groups[(size_t)(variant + (int)i) % COUNT(groups)];
                float *x = allocate((size_t)(m * ldx) * 4);
                for (int64_t r = 0; r < m; r++)
                    fill(x + r * ldx, k, (int)r);
                job j = make_job(ref, x, m, k, ldx, group > 0 ? group : k);
                j.q.symmetric = variant % 2 != 0;
                j.q.mx_floor = variant % 2 != 0;
                j.q.block_only = variant % 2 != 0;
                j.q.formula = variant / 2 % 2 ? NIB_FORMULA_AO017 : NIB_FORMULA_TORCHAO;
                j.q.static_scale = &scales[variant % 4];
                j.q.static_zero = &zeros[variant % 4];
                run(ref, &j, false);
                if (ref->act == NIB_ACT_I8_TOKEN || ref->act == NIB_ACT_I4_TOKEN)
                    check_integer(&j, ref->act == NIB_ACT_I8_TOKEN ? 8 : 4, false);
                else if (ref->act == NIB_ACT_I8_STATIC && scales[variant % 4] != 0)
                    check_integer(&j, 8, true);
                else if (nib__act_is_mx((nib_act)ref->act))
                    check_mx(&j, ref->act == NIB_ACT_MX4);
                else if (ref->act == NIB_ACT_NV4)
                    check_nv(&j);
                else if (nib__act_block((nib_act)ref->act) > 0)
                    check_blocks(&j, nib__act_block((nib_act)ref->act));
                else if (ref->act == NIB_ACT_E4M3_TOKEN)
                    check_e4m3(&j);
                else if (ref->act == NIB_ACT_FLOAT)
                    check_floats(&j, (nib_type)ref->input);
                compare(ref, &j);
                free_job(&j);
                free(x);
            }
}

/* Every e4m3 code boundary, against base's cast. */
static void test_e4m3_exhaustive(void **state)
{
    (void)state;
    const nib_kernel *ref = row_named("quant_f32_e4m3t__ref");
    enum { K = 1 << 12 };
    float *x = allocate(K * 4);
    for (uint32_t part = 0; part < 16; part++) {
        for (uint32_t i = 0; i < K; i++) { /* 448 makes the scale 1 */
            const uint32_t bits = 0x30000000U + ((part * K + i) << 13) + next_random() % 3 - 1;
            memcpy(&x[i], &bits, 4);
            x[i] = x[i] > 448 ? -448 : i % 2 ? x[i] : -x[i];
        }
        x[0] = 448;
        job j = make_job(ref, x, 1, K, K, K);
        run(ref, &j, false);
        check_e4m3(&j);
        free_job(&j);
    }
    free(x);
}

/* torchao's codes: lines "mapping eps scale zero | x... | q...", floats in hexadecimal. */
static void test_torchao(void **state)
{
    (void)state;
    FILE *file = fopen("tests/golden/act_int8.txt", "r");
    assert_non_null(file);
    static char line[1 << 16];
    int cases = 0;
    while (fgets(line, sizeof line, file) != NULL) {
        if (line[0] == '#')
            continue;
        float x[128], scale;
        int q[128];
        int count = 0, zero;
        char *at = line;
        const bool symmetric = *at == 's';
        const nib_formula formula = at[1] == '7' ? NIB_FORMULA_AO017 : NIB_FORMULA_TORCHAO;
        at += 2;
        scale = strtof(at, &at);
        zero = (int)strtol(at, &at, 10);
        for (at = strchr(at, '|') + 1; *at != '|'; count++) {
            x[count] = strtof(at, &at);
            at += strspn(at, " ");
        }
        at++;
        for (int i = 0; i < count; i++)
            q[i] = (int)strtol(at, &at, 10);
        const nib_kernel *ref = row_named("quant_f32_a8t__ref");
        job j = make_job(ref, x, 1, count, count, count);
        j.q.symmetric = symmetric;
        j.q.formula = formula;
        run(ref, &j, false);
        assert_memory_equal(j.q.out.scale, &scale, 4);
        assert_int_equal(j.q.out.zero[0], zero);
        for (int i = 0; i < count; i++)
            assert_int_equal(j.q.out.codes[i], q[i]);
        free_job(&j);
        cases++;
    }
    fclose(file);
    assert_true(cases >= 30);
}

/* The next word of hex, as `size` bytes. */
static char *unhex(char *at, void *to, size_t size)
{
    uint8_t *byte = to;
    for (size_t i = 0; i < size; i++, at += 2) {
        const char two[3] = {at[0], at[1], 0};
        byte[i] = (uint8_t)strtoul(two, NULL, 16);
    }
    assert_true(*at == ' ' || *at == '\n');
    return at + 1;
}

/* The codes of ggml's reference quantizers. */
static void test_ggml(void **state)
{
    (void)state;
    enum { K = 512, LINE = 2 * (K * 4 + (K / 32 + K / 256) * 4 + 2 * K) + 16 };
    static const char *const refs[] = {"quant_f32_a8b32__ref", "quant_f32_a8b256__ref"};
    FILE *file = fopen("tests/golden/act_ggml.txt", "r");
    assert_non_null(file);
    static char line[LINE];
    int cases = 0;
    while (fgets(line, sizeof line, file) != NULL) {
        if (line[0] == '#')
            continue;
        float x[K], scales[K / 32];
        int8_t codes[K];
        char *at = unhex(line, x, sizeof x);
        for (size_t f = 0; f < COUNT(refs); f++) {
            const nib_kernel *ref = row_named(refs[f]);
            job j = make_job(ref, x, 1, K, K, 32);
            at = unhex(at, scales, j.scale_size);
            at = unhex(at, codes, sizeof codes);
            run(ref, &j, false);
            assert_memory_equal(j.scale, scales, j.scale_size);
            assert_memory_equal(j.values, codes, sizeof codes);
            free_job(&j);
            cases++;
        }
    }
    fclose(file);
    assert_int_equal(cases, 20);
}

/* torchao's NVFP4 of single tokens: e2m1 codes, and block scales times the token's scale. */
static void test_torchao_nv(void **state)
{
    (void)state;
    enum { M_MOST = 10, K_MOST = 96 };
    static char line[1 << 16], hex[3][1 << 15];
    static float x[M_MOST * K_MOST], scales[M_MOST * K_MOST / 16];
    static uint8_t e2m1[M_MOST * K_MOST];
    int64_t m = 0, k = 0;
    int cases = 0;
    FILE *file = fopen("tests/golden/quant_activations.txt", "r");
    assert_non_null(file);
    while (fgets(line, sizeof line, file) != NULL) {
        char scheme[32];
        if (sscanf(line, "input %*s f32 %" SCNd64 " %" SCNd64 " %32767s", &m, &k, hex[0]) == 3) {
            assert_true(m <= M_MOST && k <= K_MOST);
            unhex(strcat(hex[0], "\n"), x, (size_t)(m * k) * sizeof *x);
        }
        if (sscanf(line, "case %31s %*s %32767s %32767s", scheme, hex[1], hex[2]) != 3 ||
            strncmp(scheme, "nvfp4dq", 7) != 0)
            continue;
        job j = make_job(row_named("quant_f32_nv4__ref"), x, m, k, k, 16);
        j.q.block_only = strcmp(scheme, "nvfp4dq-block") == 0;
        run(row_named("quant_f32_nv4__ref"), &j, false);
        unhex(strcat(hex[1], "\n"), e2m1, (size_t)(m * k));
        unhex(strcat(hex[2], "\n"), scales, j.scale_size);
        assert_memory_equal(j.scale, scales, j.scale_size);
        for (int64_t i = 0; i < m * k; i++)
            assert_int_equal((uint8_t)j.q.out.codes[i / k * j.q.out.ld + i % k],
                             nib__f32_to_e4m3(nib__e2m1_to_f32(e2m1[i])));
        free_job(&j);
        cases++;
    }
    fclose(file);
    assert_int_equal(cases, 6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_forms),      cmocka_unit_test(test_e4m3_exhaustive),
        cmocka_unit_test(test_torchao),    cmocka_unit_test(test_ggml),
        cmocka_unit_test(test_torchao_nv),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
