/* SPDX-License-Identifier: Apache-2.0
 *
 * Linear rows with integer activations: the reference against sums in double, every other row
 * against the reference, bit for bit, over shapes, groups, scale types, zero points and value
 * patterns.
 */
#include "kernel.h"
#include "machine.h"
#include "pool.h"
#include "skipping.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

typedef enum values { RANDOM, EQUAL, ZERO_GROUPS, MOST, LEAST, HUGE_RATIO, VALUES_COUNT } values;

typedef struct shape {
    int64_t m, n, k, group;
    nib_code code;
    nib_type scale_type;
    nib_zero zero;
    nib_type zero_type;
    bool act_symmetric, nibbles, bias, int_bias;
    values values;
    nib_act act; /* FLOAT: I8_TOKEN */
} shape;

/* A problem: a weight, activations and where outputs go. */
typedef struct problem {
    shape s;
    nib_weight w;
    nib_linear a;
    int64_t groups, ld, ldy;
    float *y; /* [m][ldy] between guards */
} problem;

enum { GUARD = 64, POISON = 0xa5 };

static uint64_t seed = 20261120;

static uint32_t any(void)
{
    seed = seed * 6364136223846793005U + 1442695040888963407U;
    return (uint32_t)(seed >> 33);
}

static int64_t between(int64_t least, int64_t most)
{
    return least + (int64_t)(any() % (uint64_t)(most - least + 1));
}

static void *take(size_t bytes)
{
    void *p = aligned_alloc(64, (bytes + 127) / 64 * 64);
    assert_non_null(p);
    memset(p, POISON, (bytes + 127) / 64 * 64);
    return p;
}

static int code_of(const shape *s, int64_t i, int64_t j)
{
    const int least = s->code == NIB_CODE_I4 ? -8 : -128, most = -least - 1;
    switch (s->values) {
    case EQUAL: return 3;
    case ZERO_GROUPS: return (i + j / 32) % 2 ? 0 : (int)between(least, most);
    case MOST: return most;
    case LEAST: return least;
    default: return (int)between(least, most);
    }
}

static void make_weight(problem *p)
{
    const shape *s = &p->s;
    nib_weight *w = &p->w;
    *w = (nib_weight){.scheme = {.code = s->code,
                                 .group = s->group,
                                 .zero = s->zero,
                                 .act = s->act == NIB_ACT_FLOAT ? NIB_ACT_I8_TOKEN : s->act,
                                 .symmetric = s->zero == NIB_ZERO_NONE,
                                 .act_symmetric = s->act_symmetric},
                      .n = s->n,
                      .k = s->k,
                      .scale_type = s->scale_type,
                      .zero_type = s->zero_type};
    p->groups = nib__scheme_groups(&w->scheme, s->k);
    int8_t *codes = take((size_t)(s->n * s->k));
    for (int64_t i = 0; i < s->n; i++)
        for (int64_t j = 0; j < s->k; j++)
            codes[i * s->k + j] = (int8_t)code_of(s, i, j);
    w->layout = NIB_LAYOUT_BYTE;
    w->codes = codes;
    if (s->nibbles && s->code == NIB_CODE_I4) {
        const int64_t row = (s->k + 1) / 2;
        uint8_t *packed = take((size_t)(s->n * row));
        for (int64_t i = 0; i < s->n; i++)
            nib__pack_i4(packed + i * row, codes + i * s->k, s->k);
        free(codes);
        w->layout = NIB_LAYOUT_NIBBLE;
        w->codes = packed;
    }
    const bool one = s->group == NIB_GROUP_TENSOR;
    const int64_t count = one ? 1 : s->n * p->groups;
    w->scale_stride_n = one ? 0 : p->groups;
    w->scale_stride_g = one ? 0 : 1;
    char *scales = take((size_t)count * 8), *zeros = take((size_t)count * 8);
    for (int64_t i = 0; i < count; i++) {
        float scale = (float)between(1, 2000) * 1e-4F;
        if (s->values == HUGE_RATIO)
            scale *= ldexpf(1, (int)between(-12, 12));
        const int least = s->code == NIB_CODE_I4 ? -8 : -128, most = -least - 1;
        const int8_t zero8 =
            (int8_t)(s->values == LEAST ? most
                                        : between(least, most)); /* farthest from the codes */
        const int32_t zero32 = zero8 * 3;
        const float zero_float = (float)zero8 * scale;
        if (s->scale_type == NIB_TYPE_F64)
            ((double *)scales)[i] = scale * 1.0000000001;
        else
            nib__from_f32(scales + i * (nib__type_bits(s->scale_type) / 8), s->scale_type, &scale,
                          1);
        if (s->zero == NIB_ZERO_FLOAT)
            nib__from_f32(zeros + i * (nib__type_bits(s->zero_type) / 8), s->zero_type, &zero_float,
                          1);
        else if (s->zero_type == NIB_TYPE_I32)
            ((int32_t *)zeros)[i] = zero32;
        else
            ((int8_t *)zeros)[i] = zero8;
    }
    w->scales = scales;
    w->zeros = zeros;
}

static void make_input(problem *p)
{
    const shape *s = &p->s;
    nib_input *in = &p->a.x;
    const int64_t group = nib__scheme_group_size(&p->w.scheme, s->k);
    p->ld = nib__round_up(s->k, NIB_CODES_PAD);
    *in = (nib_input){.m = s->m, .k = s->k, .ld = p->ld, .groups = p->groups, .group = group};
    in->codes = take((size_t)(s->m * p->ld));
    const int64_t block = nib__act_block(s->act),
                  scales = block > 0 ? nib__ceil_div(s->k, block) : 1;
    in->scale = take((size_t)(s->m * scales) * 4);
    in->zero = take((size_t)s->m * 4);
    in->sums = take((size_t)(s->m * p->groups) * 4);
    memset(in->codes, 0, (size_t)(s->m * p->ld));
    memset(in->sums, 0, (size_t)(s->m * p->groups) * 4);
    for (int64_t r = 0; r < s->m; r++) {
        for (int64_t b = 0; b < scales; b++)
            in->scale[r * scales + b] = (float)between(1, 1000) * 1e-3F;
        in->zero[r] = s->act_symmetric ? 0 : s->values == LEAST ? 127 : (int32_t)between(-128, 127);
        for (int64_t j = 0; j < s->k; j++) {
            const int64_t x = s->values == LEAST  ? -128
                              : s->values == MOST ? 127
                                                  : between(-128, 127);
            in->codes[r * p->ld + j] = (int8_t)x;
            in->sums[r * p->groups + j / group] += (int32_t)x;
        }
    }
}

static problem *make_problem(shape s)
{
    problem *p = take(sizeof *p);
    *p = (problem){.s = s};
    make_weight(p);
    make_input(p);
    p->ldy = s.n + (int64_t)(any() % 5);
    p->y = take((size_t)(s.m * p->ldy + 2 * GUARD) * 4);
    p->a.w = &p->w;
    p->a.ldy = p->ldy;
    p->a.y = p->y + GUARD;
    if (s.bias) {
        float *bias = take((size_t)s.n * 4);
        for (int64_t i = 0; i < s.n; i++)
            bias[i] = (float)between(-1000, 1000) * 1e-2F;
        p->a.bias = bias;
    }
    if (s.int_bias) {
        const int64_t padded = nib__round_up(s.n, NIB_CODES_PAD);
        const int64_t most = nib__bias_int32_most(&p->w.scheme, s.k);
        int32_t *bias = take((size_t)padded * sizeof *bias);
        for (int64_t i = 0; i < padded; i++)
            bias[i] = i >= s.n ? 0 : (int32_t)(i % 3 == 0 ? most : between(-most, most));
        p->a.int_bias = bias;
    }
    return p;
}

static void free_problem(problem *p)
{
    const void *const all[] = {p->w.codes,  p->w.scales, p->w.zeros, p->a.x.codes, p->a.x.scale,
                               p->a.x.zero, p->a.x.sums, p->a.bias,  p->y,         p->a.int_bias};
    for (size_t i = 0; i < COUNT(all); i++)
        free((void *)(uintptr_t)all[i]);
    free(p);
}

/* ---- running a row ---- */

/* True if the row's conditions accept the shape on this machine. */
static bool takes(const nib_kernel *row, const shape *s)
{
    nib_query q = {.fact = {0}};
    q.fact[NIB_FACT_ISA] = nib__cpu_isa();
    q.fact[NIB_FACT_N] = s->n;
    q.fact[NIB_FACT_K] = s->k;
    q.fact[NIB_FACT_M] = s->m;
    q.fact[NIB_FACT_GROUP] = s->group;
    q.fact[NIB_FACT_SCALE_TYPE] = s->scale_type;
    q.fact[NIB_FACT_ZERO] = s->zero;
    q.fact[NIB_FACT_ZERO_TYPE] = s->zero == NIB_ZERO_NONE ? NIB_TYPE_NONE : s->zero_type;
    bool holds = row->run.any != NULL;
    for (const nib_cond *c = row->conds; c->relation != NIB_REL_END; c++)
        holds = holds && nib__cond_holds(c, &q);
    return holds;
}

static void *pack(const nib_kernel *row, const nib_weight *w, bool in_parts)
{
    if (row->packing == NULL)
        return NULL;
    const size_t bytes = (size_t)row->packing->bytes(w);
    uint8_t *packed = take(bytes + GUARD);
    const int64_t step = in_parts ? row->packing->step : nib__round_up(w->n, row->packing->step);
    for (int64_t n0 = 0; n0 < w->n; n0 += step)
        row->packing->pack(w, packed, n0, nib__min(n0 + step, w->n));
    for (size_t i = 0; i < GUARD; i++)
        assert_int_equal(packed[bytes + i], POISON);
    return packed;
}

/* Computes the whole product in parts of `part` outputs into p->y, which is poisoned first. */
static void run(const nib_kernel *row, problem *p, int64_t part)
{
    const size_t bytes = row->scratch == NULL ? 0 : row->scratch(&p->a),
                 floats = (size_t)(p->s.m * p->ldy);
    uint8_t *scratch = take(bytes + GUARD);
    void *packed = pack(row, &p->w, part < p->s.n);
    p->a.packed = packed;
    memset(p->y, POISON, (floats + 2 * GUARD) * 4);
    for (int64_t n0 = 0; n0 < p->s.n; n0 += part) {
        memset(scratch, POISON, bytes);
        row->run.linear(&p->a, n0, nib__min(n0 + part, p->s.n), scratch);
    }
    for (size_t i = 0; i < GUARD; i++)
        assert_int_equal(scratch[bytes + i], POISON);
    const uint8_t *y = (const uint8_t *)p->y;
    for (size_t i = 0; i < GUARD * 4; i++) {
        assert_int_equal(y[i], POISON);
        assert_int_equal(y[(floats + GUARD) * 4 + i], POISON);
    }
    for (int64_t r = 0; r < p->s.m; r++)
        for (int64_t i = p->s.n; i < p->ldy; i++) {
            uint32_t bits;
            memcpy(&bits, &p->a.y[r * p->ldy + i], 4);
            assert_int_equal(bits, 0xa5a5a5a5U);
        }
    free(scratch);
    free(packed);
}

static const nib_kernel *row_named(const char *name)
{
    for (size_t i = 0; i < nib__family_linear_int.count; i++)
        if (strcmp(nib__family_linear_int.rows[i].name, name) == 0)
            return &nib__family_linear_int.rows[i];
    fail_msg("no row %s", name);
    return NULL;
}

static void say(const shape *s, const char *row)
{
    print_message(
        "%s: m %d n %d k %d group %d code %d scale %s zero %d/%s actsym %d values %d bias %d\n",
        row, (int)s->m, (int)s->n, (int)s->k, (int)s->group, (int)s->code,
        nib__type_name(s->scale_type), (int)s->zero, nib__type_name(s->zero_type), s->act_symmetric,
        (int)s->values, s->bias);
}

static int compared;

/* Every row that accepts the shape gives the reference's bits. */
static void check(shape s)
{
    problem *p = make_problem(s);
    const size_t bytes = (size_t)(s.m * p->ldy) * 4;
    const nib_kernel *ref =
        row_named(s.code == NIB_CODE_I4 ? "linear_a8t_w4g_f32__ref" : "linear_a8t_w8g_f32__ref");
    run(ref, p, s.n);
    float *want = take(bytes);
    memcpy(want, p->a.y, bytes);
    for (size_t i = 0; i < nib__family_linear_int.count; i++) {
        const nib_kernel *row = &nib__family_linear_int.rows[i];
        if (row->code != (int64_t)s.code || row->act != NIB_ACT_I8_TOKEN || row == ref ||
            !takes(row, &s))
            continue;
        for (int pass = 0; pass < 2; pass++) {
            if (pass == 1 && s.n <= row->n_step)
                continue;
            run(row, p, pass == 0 ? s.n : row->n_step);
            if (memcmp(p->a.y, want, bytes) != 0) {
                say(&s, row->name);
                for (int64_t e = 0; e < s.m * p->ldy; e++)
                    if (memcmp(&p->a.y[e], &want[e], 4) != 0) {
                        fail_msg("token %d output %d: %.9g, reference %.9g", (int)(e / p->ldy),
                                 (int)(e % p->ldy), (double)p->a.y[e], (double)want[e]);
                    }
            }
            compared++;
        }
    }
    free(want);
    free_problem(p);
}

/* ---- tests ---- */

static const int64_t ms[] = {1, 2, 3, 5, 6, 7, 8, 17, 33};
static const int64_t ns[] = {1, 7, 16, 31, 32, 33, 100};
static const int64_t ks[] = {1, 31, 32, 33, 64, 172, 224, 608, 2048, 2080, 4100};
static const int64_t groups[] = {
    32, 64, 96, 128, 160, 256, 1024, 1056, 3072, NIB_GROUP_ROW, NIB_GROUP_TENSOR};

/* Each (k, group, code) with all value patterns; the other properties cycle. */
static void test_shapes(void **state)
{
    (void)state;
    static const nib_type scale_types[] = {NIB_TYPE_F32, NIB_TYPE_BF16, NIB_TYPE_F16, NIB_TYPE_F64};
    unsigned turn = 0;
    for (size_t k = 0; k < COUNT(ks); k++)
        for (size_t g = 0; g < COUNT(groups); g++)
            for (int v = 0; v < VALUES_COUNT; v++)
                for (int code = 0; code < 2; code++, turn++) {
                    if ((turn + g) % (unsigned)sparse(12) != 0) /* one of each k and group */
                        continue;
                    const bool big = ks[k] > 1000;
                    const shape s = {.m = ms[turn % (big ? 7 : COUNT(ms))],
                                     .n = ns[turn / 3 % COUNT(ns)],
                                     .k = ks[k],
                                     .group = groups[g],
                                     .code = code ? NIB_CODE_I8 : NIB_CODE_I4,
                                     .scale_type = scale_types[turn / 5 % 4],
                                     .zero = turn % 5 == 1 ? NIB_ZERO_INT : NIB_ZERO_NONE,
                                     .zero_type = NIB_TYPE_I8,
                                     .act_symmetric = turn / 2 % 2 != 0,
                                     .nibbles = turn % 3 != 0,
                                     .bias = turn % 4 != 0,
                                     .values = (values)v};
                    check(s);
                }
    assert_true(compared > 0 || (nib__cpu_isa() & NIB_ISA_AVX2) == 0);
}

/* Each m and n with int4 in groups of 32 and with int8 by row. */
static void test_sizes(void **state)
{
    (void)state;
    unsigned turn = 0;
    for (size_t m = 0; m < COUNT(ms); m++)
        for (size_t n = 0; n < COUNT(ns); n++)
            for (int variant = 0; variant < 4; variant++) {
                if (turn++ % (unsigned)sparse(3) != 0)
                    continue;
                const bool int8 = variant >= 2;
                const shape s = {.m = ms[m],
                                 .n = ns[n],
                                 .k = 224,
                                 .group = int8 ? NIB_GROUP_ROW : 32,
                                 .code = int8 ? NIB_CODE_I8 : NIB_CODE_I4,
                                 .scale_type = NIB_TYPE_BF16,
                                 .act_symmetric = variant % 2 != 0,
                                 .bias = true};
                check(s);
            }
}

static void check_against_double(shape s);

/* Sums that start at an int32 bias, up to the largest allowed: every kind of zero point, decode and
 * prefill, groups of one chunk and of several. */
static void test_int_bias(void **state)
{
    (void)state;
    static const int64_t sizes[] = {1, 40, 100, 224, 1024, 1056, 4128, 8000};
    unsigned turn = 0;
    for (size_t m = 0; m < COUNT(ms); m++)
        for (size_t k = 0; k < COUNT(sizes); k++, turn++) {
            if (turn % (unsigned)sparse(7) != 0) /* another k for each m */
                continue;
            const shape s = {.m = ms[m],
                             .n = sizes[k] > 1000 ? 33 : ns[turn % COUNT(ns)],
                             .k = sizes[k],
                             .group = turn % 5 == 0 ? NIB_GROUP_TENSOR : NIB_GROUP_ROW,
                             .code = turn / 2 % 2 ? NIB_CODE_I8 : NIB_CODE_I4,
                             .scale_type = NIB_TYPE_F32,
                             .zero = turn / 3 % 2 ? NIB_ZERO_INT : NIB_ZERO_NONE,
                             .zero_type = NIB_TYPE_I8,
                             .act_symmetric = turn % 3 == 0,
                             .int_bias = true,
                             .values = (values)(turn % VALUES_COUNT)};
            check(s);
            check_against_double(s);
        }
}

/* More tokens than one block of rows, sums over several chunks and blocks. */
static void test_row_blocks(void **state)
{
    (void)state;
    check((shape){.m = 250,
                  .n = 40,
                  .k = 2080,
                  .group = 32,
                  .code = NIB_CODE_I4,
                  .scale_type = NIB_TYPE_F32});
    check((shape){.m = 55,
                  .n = 33,
                  .k = 24000,
                  .group = NIB_GROUP_ROW,
                  .code = NIB_CODE_I8,
                  .scale_type = NIB_TYPE_F32});
    check((shape){.m = 7,
                  .n = 32,
                  .k = 65536,
                  .group = NIB_GROUP_ROW,
                  .code = NIB_CODE_I8,
                  .scale_type = NIB_TYPE_F32,
                  .values = LEAST});
    check((shape){.m = 2,
                  .n = 32,
                  .k = 65536,
                  .group = NIB_GROUP_ROW,
                  .code = NIB_CODE_I8,
                  .scale_type = NIB_TYPE_F32,
                  .values = LEAST});
}

/* Zero points of weight and activation at opposite ends of their codes: products of 255 by 255,
 * whose sum over a row exceeds 32 bits. */
static void test_widest_sums(void **state)
{
    (void)state;
    for (int64_t m = 1; m < 30; m = 3 * m + 1)
        for (int64_t k = 33024; k <= 65536; k += 16256 * sparse(2))
            for (int code = 0; code < 2; code++)
                check((shape){.m = m,
                              .n = 9,
                              .k = k,
                              .group = NIB_GROUP_ROW,
                              .code = code ? NIB_CODE_I8 : NIB_CODE_I4,
                              .scale_type = NIB_TYPE_F32,
                              .zero = NIB_ZERO_INT,
                              .zero_type = NIB_TYPE_I8,
                              .values = LEAST});
}

/* With denormals flushed, as in real runs, and sums that would be denormal. */
static void test_flushed_denormals(void **state)
{
    (void)state;
    const nib_float_mode old = nib__float_mode_flush();
    for (int64_t m = 1; m < 9; m++)
        check((shape){.m = m,
                      .n = 33,
                      .k = 608,
                      .group = 32,
                      .code = NIB_CODE_I4,
                      .scale_type = NIB_TYPE_F16,
                      .values = HUGE_RATIO});
    nib__float_mode_restore(old);
}

/* The product in double: sums of (code - zero) * scale * (x - z) * s. */
static void check_against_double(shape s)
{
    problem *p = make_problem(s);
    run(row_named(s.code == NIB_CODE_I4 ? "linear_a8t_w4g_f32__ref" : "linear_a8t_w8g_f32__ref"), p,
        s.n);
    int8_t *codes = take((size_t)s.k);
    const int64_t size = nib__scheme_group_size(&p->w.scheme, s.k);
    for (int64_t i = 0; i < s.n; i++) {
        nib__weight_codes(&p->w, i, 0, s.k, codes);
        for (int64_t r = 0; r < s.m; r++) {
            double want = 0, most = 0;
            for (int64_t j = 0; j < s.k; j++) {
                const double scale = (double)nib__weight_scale(&p->w, i, j / size);
                const double zero = (double)nib__weight_zero(&p->w, i, j / size);
                const double weight =
                    s.zero == NIB_ZERO_FLOAT ? codes[j] * scale + zero : (codes[j] - zero) * scale;
                const double x = p->a.x.codes[r * p->ld + j] - p->a.x.zero[r];
                want += weight * x;
                most += (fabs(codes[j] * scale) + fabs(weight) + fabs(weight - codes[j] * scale)) *
                        fabs(x);
            }
            const double s_x = (double)p->a.x.scale[r],
                         start = p->a.int_bias != NULL ? (double)p->a.int_bias[i] *
                                                             (double)nib__weight_scale(&p->w, i, 0)
                                                       : 0,
                         bias = start * s_x + (p->a.bias != NULL ? (double)p->a.bias[i] : 0);
            const double limit = 1e-5 * (most * s_x + fabs(bias)) + 1e-30;
            if (!(fabs((double)p->a.y[r * p->ldy + i] - (want * s_x + bias)) <= limit)) {
                say(&s, "reference");
                fail_msg("token %d output %d: %.9g, in double %.9g", (int)r, (int)i,
                         (double)p->a.y[r * p->ldy + i], want * s_x + bias);
            }
        }
    }
    free(codes);
    free_problem(p);
}

static void test_reference(void **state)
{
    (void)state;
    static const int64_t odd_groups[] = {
        1, 3, 5, 17, 32, 33, 100, 128, 2047, 2049, NIB_GROUP_ROW, NIB_GROUP_TENSOR};
    static const struct {
        nib_zero zero;
        nib_type type;
    } zeros[] = {{NIB_ZERO_NONE, NIB_TYPE_NONE},
                 {NIB_ZERO_INT, NIB_TYPE_I8},
                 {NIB_ZERO_INT, NIB_TYPE_I32},
                 {NIB_ZERO_FLOAT, NIB_TYPE_F32},
                 {NIB_ZERO_FLOAT, NIB_TYPE_BF16}};
    static const nib_type scale_types[] = {NIB_TYPE_F64, NIB_TYPE_F32, NIB_TYPE_BF16, NIB_TYPE_F16};
    unsigned turn = 0;
    for (size_t g = 0; g < COUNT(odd_groups); g++)
        for (size_t z = 0; z < COUNT(zeros); z++)
            for (size_t k = 0; k < COUNT(ks); k++, turn++) {
                if (turn % (unsigned)sparse(5) != 0) /* all groups, zeros and k, in turn */
                    continue;
                check_against_double((shape){.m = ms[turn % 4],
                                             .n = ns[turn % 3],
                                             .k = ks[k],
                                             .group = odd_groups[g],
                                             .code = turn % 2 ? NIB_CODE_I8 : NIB_CODE_I4,
                                             .scale_type = scale_types[turn % 4],
                                             .zero = zeros[z].zero,
                                             .zero_type = zeros[z].type,
                                             .act_symmetric = turn % 7 == 0,
                                             .nibbles = turn % 3 == 0,
                                             .bias = turn % 2 != 0,
                                             .values = (values)(turn % VALUES_COUNT)});
            }
}

/* A token whose scale is NaN gives NaN; other tokens do not. */
static void test_nan_token(void **state)
{
    (void)state;
    for (size_t i = 0; i < nib__family_linear_int.count; i++) {
        const nib_kernel *row = &nib__family_linear_int.rows[i];
        const shape s = {.m = 9,
                         .n = 33,
                         .k = 64,
                         .group = 32,
                         .code = (nib_code)row->code,
                         .scale_type = NIB_TYPE_F32};
        if (!takes(row, &s) || nib__act_block((nib_act)row->act) > 0)
            continue; /* block scales: see test_blocks */
        problem *p = make_problem(s);
        p->a.x.scale[4] = NAN;
        run(row, p, s.n);
        for (int64_t r = 0; r < s.m; r++)
            for (int64_t j = 0; j < s.n; j++)
                assert_int_equal(isnan(p->a.y[r * p->ldy + j]) != 0, r == 4);
        free_problem(p);
    }
}

/* Activations in blocks against sums of dequantized products; a NaN block makes its token NaN. */
static void test_blocks(void **state)
{
    (void)state;
    static const int64_t sizes[] = {16, 32, 256, 40, NIB_GROUP_ROW};
    for (int t = 0; t < 200; t += sparse(3)) {
        const shape s = {.m = between(1, 20),
                         .n = between(1, 70),
                         .k = between(1, 700),
                         .group = sizes[(size_t)t % COUNT(sizes)],
                         .code = t % 2 ? NIB_CODE_I4 : NIB_CODE_I8,
                         .act = t / 2 % 2 ? NIB_ACT_I8_BLOCK32 : NIB_ACT_I8_BLOCK256,
                         .zero = (nib_zero)(t / 4 % 3),
                         .zero_type = t / 4 % 3 == NIB_ZERO_FLOAT ? NIB_TYPE_F32 : NIB_TYPE_I8,
                         .scale_type = NIB_TYPE_F32,
                         .bias = t % 3 == 0};
        problem *p = make_problem(s);
        const int64_t block = nib__act_block(s.act), blocks = nib__ceil_div(s.k, block);
        float row[700];
        p->a.x.scale[(s.m - 1) * blocks] = NAN;
        for (size_t i = 0; i < nib__family_linear_int.count; i++) {
            const nib_kernel *kernel = &nib__family_linear_int.rows[i];
            if (kernel->code != (int64_t)s.code || kernel->act != (int64_t)s.act ||
                !takes(kernel, &s))
                continue;
            run(kernel, p, s.n);
            for (int64_t n = 0; n < s.n; n++) {
                nib__weight_row(&p->w, n, row);
                for (int64_t r = 0; r < s.m; r++) {
                    double want = s.bias ? p->a.bias[n] : 0, size = fabs(want);
                    for (int64_t k = 0; k < s.k; k++) {
                        const double x = (double)p->a.x.scale[r * blocks + k / block] *
                                         p->a.x.codes[r * p->ld + k];
                        want += x * (double)row[k];
                        size += fabs(x * (double)row[k]);
                    }
                    const double got = p->a.y[r * p->ldy + n];
                    assert_true(r == s.m - 1 ? isnan(got) : fabs(got - want) <= 1e-5 * size);
                }
            }
        }
        free_problem(p);
    }
}

/* ---- ggml's own products ---- */

static uint8_t *take_hex(char **at, size_t size)
{
    uint8_t *out = take(size);
    for (size_t i = 0; i < size; i++, *at += 2)
        assert_int_equal(sscanf(*at, "%2hhx", &out[i]), 1);
    assert_true(**at == ' ' || **at == '\n');
    ++*at;
    return out;
}

/* Quantizes activations as the weight's format requires. */
static nib_input quantized(const nib_weight *w, const float *x)
{
    const int64_t count = nib__scheme_groups(&w->scheme, w->k);
    nib_quant q = {.x = x,
                   .ldx = w->k,
                   .out = {.m = 1,
                           .k = w->k,
                           .codes = take((size_t)w->k),
                           .scale = take((size_t)w->k),
                           .sums = take((size_t)count * 4),
                           .ld = w->k,
                           .groups = count,
                           .group = nib__scheme_group_size(&w->scheme, w->k)}};
    for (size_t i = 0; i < nib__family_quant.count; i++) {
        const nib_kernel *row = &nib__family_quant.rows[i];
        if (row->op == NIB_OP_QUANT && row->act == (int64_t)w->scheme.act && row->reference == NULL)
            row->run.quant(&q, 0, 1);
    }
    return q.out;
}

/* GGUF blocks by f32 activations: every row against ggml's result. ggml adds in another order and,
 * for blocks with a minimum under an f16 scale, keeps sums of activations as f16. */
static void test_ggml_dots(void **state)
{
    (void)state;
    enum { N = 3, K = 512, LINE = 1 << 14 };
    static char line[LINE];
    char name[16];
    float row[K];
    int lines = 0, runs = 0;
    FILE *file = fopen("tests/golden/dots_ggml.txt", "r");
    assert_non_null(file);
    while (fgets(line, sizeof line, file) != NULL) {
        if (line[0] == '#')
            continue;
        nib_weight w;
        nib_type type = NIB_TYPE_NONE;
        assert_int_equal(sscanf(line, "%15s", name), 1);
        for (int t = 0; t < NIB_TYPE_COUNT; t++)
            if (strcmp(nib__type_stored_name((nib_type)t), name) == 0)
                type = (nib_type)t;
        assert_true(nib__block_weight(&w, type, N, K, NULL));
        const double most =
            w.scheme.zero != NIB_ZERO_NONE && w.scale_type == NIB_TYPE_F16 ? 1e-4 : 1e-6;
        char *at = line + strlen(name) + 1;
        float *x = (float *)take_hex(&at, K * 4);
        uint8_t *blocks = take_hex(&at, (size_t)nib__weight_code_bytes(&w));
        float *want = (float *)take_hex(&at, N * 4);
        w.codes = blocks;
        w.scheme.act = nib__weight_act(&w);
        problem p = {.s = {.m = 1,
                           .n = N,
                           .k = K,
                           .group = w.scheme.group,
                           .scale_type = w.scale_type,
                           .zero = w.scheme.zero,
                           .zero_type = w.zero_type},
                     .w = w,
                     .ldy = N,
                     .y = take((N + 2 * GUARD) * 4)};
        p.a = (nib_linear){.w = &p.w, .x = quantized(&w, x), .y = p.y + GUARD, .ldy = N};
        for (size_t i = 0; i < nib__family_linear_int.count; i++) {
            const nib_kernel *kernel = &nib__family_linear_int.rows[i];
            if (kernel->code != (int64_t)w.scheme.code || kernel->act != (int64_t)w.scheme.act ||
                !takes(kernel, &p.s))
                continue;
            run(kernel, &p, N);
            runs++;
            for (int64_t n = 0; n < N; n++) {
                double size = 0;
                nib__weight_row(&w, n, row);
                for (int64_t k = 0; k < K; k++)
                    size += fabs((double)x[k] * (double)row[k]);
                if (!(fabs((double)p.a.y[n] - (double)want[n]) <= most * size))
                    fail_msg("%s, %s: %g, but ggml has %g", name, kernel->name, (double)p.a.y[n],
                             (double)want[n]);
            }
        }
        const void *const all[] = {p.a.x.codes, p.a.x.scale, p.a.x.sums, p.y, x, blocks, want};
        for (size_t i = 0; i < COUNT(all); i++)
            free((void *)(uintptr_t)all[i]);
        lines++;
    }
    fclose(file);
    assert_int_equal(lines, 11);
    assert_true(runs >= lines);
}

/* Rows have everything that the table needs. */
static void test_rows_are_complete(void **state)
{
    (void)state;
    for (size_t i = 0; i < nib__family_linear_int.count; i++) {
        const nib_kernel *row = &nib__family_linear_int.rows[i];
        assert_non_null(row->name);
        assert_non_null(row->note);
        assert_non_null(row->conds);
        assert_int_equal(row->arithmetic, NIB_ARITHMETIC_I32);
        assert_true(row->n_step > 0);
        assert_true((row->reference == NULL) == (strstr(row->name, "__ref") != NULL));
        if (row->reference != NULL)
            assert_non_null(row_named(row->reference));
        if (row->packing != NULL)
            assert_true(row->n_step % row->packing->step == 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows_are_complete),
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_shapes),
        cmocka_unit_test(test_row_blocks),
        cmocka_unit_test(test_widest_sums),
        cmocka_unit_test(test_flushed_denormals),
        cmocka_unit_test(test_reference),
        cmocka_unit_test(test_nan_token),
        cmocka_unit_test(test_blocks),
        cmocka_unit_test(test_ggml_dots),
        cmocka_unit_test(test_int_bias),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
