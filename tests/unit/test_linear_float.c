/* SPDX-License-Identifier: Apache-2.0
 *
 * Every linear row with float, fp8 or MX activations against its reference, bit for bit: shapes,
 * groups, zero points, scale types, hard values; guards around y, poisoned scratch, parts equal to
 * the whole. The reference against sums in double. The CPU's vdpbf16ps against two fused
 * multiply-adds.
 */
#include "kernel.h"
#include "machine.h"
#include "pool.h"
#include "skipping.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

/* ---- values ---- */

typedef struct rng {
    uint64_t state;
} rng;

static uint32_t rng_next(rng *r)
{
    r->state = r->state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(r->state >> 33) * 2654435761U ^ (uint32_t)(r->state >> 20);
}

static float rng_unit(rng *r) { return (float)(int32_t)rng_next(r) * 0x1p-31F; }

typedef enum pattern {
    RANDOM,
    EQUAL,
    ZERO,
    LARGEST,
    DENORMAL,
    RATIO,
    NOT_FINITE,
    PATTERNS
} pattern;

static float value(rng *r, pattern p)
{
    const float u = rng_unit(r);
    switch (p) {
    case RANDOM: return u;
    case EQUAL: return 0.3F;
    case ZERO: return u < 0 ? -0.0F : 0.0F;
    case LARGEST: return u < 0 ? -3.3e38F : 3.3e38F;
    case DENORMAL: return u * 0x1p-124F;
    case RATIO: return ldexpf(u, (int)(rng_next(r) % 200) - 100);
    case NOT_FINITE: return u > 0.99F ? INFINITY : u < -0.99F ? NAN : u;
    default: return 0;
    }
}

/* ---- a product ---- */

typedef struct shape {
    nib_code code;
    nib_act act;
    nib_type input;
    int64_t group;
    nib_zero zero;
    nib_type scale_type, zero_type;
    int64_t m, n, k;
    pattern pattern;
    bool bias, nibbles;
} shape;

enum { GUARD = 5 };

typedef struct product {
    nib_weight w;
    nib_linear a;
    float *y; /* [m][ldy] between guards of ldy values */
    int64_t y_size;
    void *owned[12];
    int count;
} product;

static void *take(product *p, size_t bytes)
{
    void *piece = malloc(bytes > 0 ? bytes : 1);
    assert_non_null(piece);
    memset(piece, 0xff, bytes);
    p->owned[p->count++] = piece;
    return piece;
}

static void product_free(product *p)
{
    for (int i = 0; i < p->count; i++)
        free(p->owned[i]);
}

static uint8_t f8_code(rng *r, const shape *s)
{
    const bool is_e5m2 = s->code == NIB_CODE_E5M2;
    for (;;) {
        const uint8_t code = (uint8_t)rng_next(r);
        const float f = is_e5m2 ? nib__e5m2_to_f32(code) : nib__e4m3_to_f32(code);
        if (isfinite(f) || s->pattern == NOT_FINITE)
            return s->pattern == ZERO       ? (uint8_t)(code & 0x80)
                   : s->pattern == DENORMAL ? (uint8_t)(code & 0x87)
                                            : code;
    }
}

static void make_codes(product *p, const shape *s, rng *r)
{
    const int64_t count = s->n * s->k;
    p->w.layout = s->code <= NIB_CODE_BF16 ? NIB_LAYOUT_FLOAT
                  : s->nibbles             ? NIB_LAYOUT_NIBBLE
                                           : NIB_LAYOUT_BYTE;
    if (p->w.layout == NIB_LAYOUT_FLOAT) {
        static const nib_type types[] = {NIB_TYPE_F32, NIB_TYPE_F16, NIB_TYPE_BF16};
        float *values = take(p, (size_t)count * 4);
        char *codes = take(p, (size_t)count * 4 + 1);
        for (int64_t i = 0; i < count; i++)
            values[i] = value(r, s->pattern);
        nib__from_f32(codes, types[s->code], values, count);
        p->w.codes = codes;
        return;
    }
    int8_t *codes = take(p, (size_t)count);
    for (int64_t i = 0; i < count; i++) {
        if (s->code == NIB_CODE_I8 || s->code == NIB_CODE_I4) {
            const int low = s->code == NIB_CODE_I8 ? -128 : -8;
            const int any = low + (int)(rng_next(r) % (unsigned)(-2 * low));
            codes[i] = (int8_t)(s->pattern == ZERO      ? 0
                                : s->pattern == LARGEST ? low
                                : s->pattern == EQUAL   ? 3
                                                        : any);
        } else if (s->code == NIB_CODE_MX4 || s->code == NIB_CODE_NV4)
            codes[i] = (int8_t)(rng_next(r) & 15);
        else
            codes[i] = (int8_t)f8_code(r, s);
    }
    p->w.codes = codes;
    if (p->w.layout == NIB_LAYOUT_NIBBLE) {
        const int64_t row = nib__ceil_div(s->k, 2);
        uint8_t *bytes = take(p, (size_t)(s->n * row));
        for (int64_t i = 0; i < s->n; i++)
            nib__pack_i4(bytes + i * row, codes + i * s->k, s->k);
        p->w.codes = bytes;
    }
}

/* Makes count values of `type`; F64 ones have more bits than f32, E8M0 any exponent that the
 * pattern allows. */
static void *make_values(product *p, nib_type type, int64_t count, pattern pat, rng *r)
{
    uint8_t *out = take(p, (size_t)(count * nib__type_bits(type) / 8));
    for (int64_t i = 0; i < count; i++) {
        const pattern kind = pat == LARGEST || pat == NOT_FINITE ? RANDOM : pat;
        const float v = value(r, kind);
        const double wide = (double)v * 1.000000001;
        if (type == NIB_TYPE_F64)
            memcpy(out + i * 8, &wide, 8);
        else if (type == NIB_TYPE_E8M0)
            out[i] = (uint8_t)(pat == RATIO      ? rng_next(r)
                               : pat == DENORMAL ? rng_next(r) % 3
                                                 : 120 + rng_next(r) % 12);
        else if (type == NIB_TYPE_I8)
            out[i] = (uint8_t)rng_next(r);
        else if (type == NIB_TYPE_I32) {
            const int32_t zero = (int32_t)(rng_next(r) % 1000) - 500;
            memcpy(out + i * 4, &zero, 4);
        } else
            nib__from_f32(out + i * (nib__type_bits(type) / 8), type, &v, 1);
    }
    return out;
}

static void make_weight(product *p, const shape *s, rng *r)
{
    p->w.scheme = (nib_scheme){.code = s->code,
                               .group = s->group,
                               .symmetric = s->zero == NIB_ZERO_NONE,
                               .zero = s->zero,
                               .act = s->act};
    p->w.n = s->n;
    p->w.k = s->k;
    make_codes(p, s, r);
    if (!nib__scheme_is_quantized(&p->w.scheme))
        return;
    const int64_t groups = nib__scheme_groups(&p->w.scheme, s->k);
    const bool one = s->group == NIB_GROUP_TENSOR;
    p->w.scale_stride_n = one ? 0 : groups;
    p->w.scale_stride_g = one ? 0 : 1;
    p->w.scale_type = s->scale_type;
    p->w.scales = make_values(p, s->scale_type, one ? 1 : s->n * groups, s->pattern, r);
    p->w.zero_type = s->zero == NIB_ZERO_NONE ? NIB_TYPE_NONE : s->zero_type;
    if (s->zero != NIB_ZERO_NONE)
        p->w.zeros = make_values(p, s->zero_type, one ? 1 : s->n * groups, s->pattern, r);
}

/* e4m3 activation codes, finite except with NOT_FINITE. */
static uint8_t x_code(rng *r, const shape *s)
{
    const shape e4m3 = {.code = NIB_CODE_E4M3, .pattern = s->pattern};
    return f8_code(r, &e4m3);
}

static void make_input(product *p, const shape *s, rng *r)
{
    nib_input *x = &p->a.x;
    const int64_t groups = nib__scheme_groups(&p->w.scheme, s->k),
                  padded = nib__round_up(s->k, NIB_CODES_PAD);
    x->m = s->m;
    x->k = s->k;
    x->groups = groups;
    x->group = nib__scheme_group_size(&p->w.scheme, s->k);
    const bool is_float = s->act == NIB_ACT_FLOAT;
    x->ld = is_float && s->input != NIB_TYPE_BF16 ? s->k + 3 : padded;
    x->f32 = is_float && s->input != NIB_TYPE_BF16 ? take(p, (size_t)(s->m * x->ld) * 4) : NULL;
    x->bf16 = x->f32 == NULL && !nib__act_is_f8_blocks(s->act) ? take(p, (size_t)(s->m * x->ld) * 2)
                                                               : NULL;
    x->codes = nib__act_is_f8_blocks(s->act) ? take(p, (size_t)(s->m * x->ld)) : NULL;
    for (int64_t i = 0; i < s->m; i++)
        for (int64_t j = 0; j < x->ld; j++) {
            const bool in = j < s->k;
            const float v = is_float ? value(r, s->pattern) : nib__e4m3_to_f32(x_code(r, s));
            if (x->codes != NULL)
                x->codes[i * x->ld + j] = (int8_t)(in ? x_code(r, s) : 0);
            else if (x->bf16 != NULL)
                x->bf16[i * x->ld + j] = in ? nib__f32_to_bf16(v) : 0;
            else
                x->f32[i * x->ld + j] = !in ? NAN
                                        : s->input == NIB_TYPE_F16
                                            ? nib__f16_to_f32(nib__f32_to_f16(v))
                                            : v;
        }
    x->scale = take(p, (size_t)(s->m * groups) * 4);
    x->fsums = take(p, (size_t)(s->m * groups) * 4);
    for (int64_t i = 0; i < s->m * groups; i++) {
        x->scale[i] = nib__act_is_mx(s->act) ? nib__e8m0_to_f32((uint8_t)(110 + rng_next(r) % 30))
                                             : value(r, RANDOM);
        x->fsums[i] = value(r, RANDOM) * 10;
    }
}

static product make(const shape *s, uint64_t seed)
{
    product p = {0};
    rng r = {seed};
    make_weight(&p, s, &r);
    make_input(&p, s, &r);
    p.a.ldy = s->n + 3;
    p.y_size = (s->m + 2) * p.a.ldy;
    p.y = take(&p, (size_t)p.y_size * 4);
    p.a.y = p.y + p.a.ldy;
    if (s->bias) {
        float *bias = take(&p, (size_t)s->n * 4);
        for (int64_t i = 0; i < s->n; i++)
            bias[i] = i % 5 == 0 ? -0.0F : value(&r, RANDOM);
        p.a.bias = bias;
    }
    return p;
}

/* ---- running a row ---- */

/* A row with its packed weights and scratch; once packed, it cannot see the plain weights. */
typedef struct bench {
    const nib_kernel *row;
    void *packed, *scratch;
    size_t scratch_bytes;
    nib_weight plain;
} bench;

static bench row_open(const nib_kernel *row, product *p)
{
    bench b = {.row = row, .plain = p->w};
    if (row->packing != NULL) {
        const size_t bytes = (size_t)row->packing->bytes(&p->w);
        const int64_t step = row->packing->step;
        assert_int_equal(posix_memalign(&b.packed, 64, bytes > 0 ? bytes : 64), 0);
        memset(b.packed, 0xff, bytes);
        for (int64_t n = 0; n < p->w.n; n += step)
            row->packing->pack(&p->w, b.packed, n, nib__min(p->w.n, n + step));
        p->w.codes = p->w.scales = p->w.zeros = NULL;
    }
    p->a.w = &p->w;
    p->a.packed = b.packed;
    b.scratch_bytes = row->scratch != NULL ? row->scratch(&p->a) : 0;
    assert_int_equal(posix_memalign(&b.scratch, 64, b.scratch_bytes > 0 ? b.scratch_bytes : 64), 0);
    memset(b.scratch, 0xff, b.scratch_bytes);
    return b;
}

static void row_run(const bench *b, product *p, int64_t part)
{
    memset(p->y, 0xff, (size_t)p->y_size * 4);
    const nib_float_mode mode = nib__float_mode_flush();
    for (int64_t n = 0; n < p->w.n; n += part)
        b->row->run.linear(&p->a, n, nib__min(p->w.n, n + part), b->scratch);
    nib__float_mode_restore(mode);
}

static void row_close(bench *b, product *p)
{
    p->w = b->plain;
    free(b->packed);
    free(b->scratch);
}

static void run_row(const nib_kernel *row, product *p)
{
    bench b = row_open(row, p);
    row_run(&b, p, p->w.n);
    row_close(&b, p);
}

static void check_guards(const product *p, const char *name)
{
    for (int64_t i = 0; i < p->y_size; i++) {
        const int64_t r = i / p->a.ldy - 1, c = i % p->a.ldy;
        uint32_t bits;
        memcpy(&bits, &p->y[i], 4);
        const bool inside = r >= 0 && r < p->a.x.m && c < p->w.n;
        if (!inside && bits != 0xffffffffU)
            fail_msg("%s wrote outside its output at (%d, %d)", name, (int)r, (int)c);
        if (inside && bits == 0xffffffffU)
            fail_msg("%s did not write (%d, %d)", name, (int)r, (int)c);
    }
}

/* Equal bits; any NaN equals any other. */
static void check_equal(const product *p, const float *want, const char *name, const shape *s)
{
    for (int64_t i = 0; i < p->a.x.m; i++)
        for (int64_t j = 0; j < p->w.n; j++) {
            const float got = p->a.y[i * p->a.ldy + j], ref = want[i * p->w.n + j];
            uint32_t bits[2];
            memcpy(&bits[0], &got, 4);
            memcpy(&bits[1], &ref, 4);
            if (bits[0] != bits[1] && !(isnan(got) && isnan(ref)))
                fail_msg("%s: m %d n %d k %d group %d zero %d scales %d pattern %d: y(%d, %d) is "
                         "%a, not %a",
                         name, (int)s->m, (int)s->n, (int)s->k, (int)s->group, (int)s->zero,
                         (int)s->scale_type, (int)s->pattern, (int)i, (int)j, (double)got,
                         (double)ref);
        }
}

static bool allowed(const nib_kernel *row, const shape *s)
{
    nib_query q = {.fact = {0}};
    q.fact[NIB_FACT_ISA] = nib__cpu_isa();
    q.fact[NIB_FACT_GROUP] = s->code <= NIB_CODE_BF16 ? 0 : s->group;
    q.fact[NIB_FACT_K] = s->k;
    q.fact[NIB_FACT_N] = s->n;
    q.fact[NIB_FACT_M] = s->m;
    q.fact[NIB_FACT_SCALE_TYPE] = s->scale_type;
    q.fact[NIB_FACT_ZERO] = s->zero;
    q.fact[NIB_FACT_ZERO_TYPE] = s->zero == NIB_ZERO_NONE ? NIB_TYPE_NONE : s->zero_type;
    const bool keyed = row->code == (int64_t)s->code && row->act == (int64_t)s->act &&
                       (row->input == NIB_ANY || row->input == (int64_t)s->input);
    bool holds = keyed && row->run.any != NULL;
    for (const nib_cond *c = row->conds; holds && c->relation != NIB_REL_END; c++)
        holds = nib__cond_holds(c, &q);
    return holds;
}

static const nib_family *const families[] = {&nib__family_linear_float, &nib__family_linear_fp8};

/* Compares all rows that accept the shape with the reference; returns their number. */
static int check_shape(const shape *s, uint64_t seed)
{
    product p = make(s, seed);
    float *want = malloc((size_t)(s->m * s->n) * 4);
    assert_non_null(want);
    const nib_kernel *ref = NULL;
    int rows = 0;
    for (size_t f = 0; f < COUNT(families); f++)
        for (size_t i = 0; i < families[f]->count; i++)
            if (families[f]->rows[i].reference == NULL && allowed(&families[f]->rows[i], s))
                ref = &families[f]->rows[i];
    assert_non_null(ref);
    run_row(ref, &p);
    check_guards(&p, ref->name);
    for (int64_t i = 0; i < s->m; i++)
        memcpy(want + i * s->n, p.a.y + i * p.a.ldy, (size_t)s->n * 4);
    for (size_t f = 0; f < COUNT(families); f++)
        for (size_t i = 0; i < families[f]->count; i++) {
            const nib_kernel *row = &families[f]->rows[i];
            if (!allowed(row, s))
                continue;
            assert_true(row->arithmetic == ref->arithmetic);
            const int64_t parts[] = {s->n, row->n_step,
                                     nib__round_up(nib__ceil_div(s->n, 2), row->n_step)};
            bench b = row_open(row, &p);
            for (size_t part = 0; part < COUNT(parts); part++) {
                row_run(&b, &p, parts[part]);
                check_guards(&p, row->name);
                check_equal(&p, want, row->name, s);
            }
            row_close(&b, &p);
            rows++;
        }
    free(want);
    product_free(&p);
    return rows;
}

/* ---- shapes ---- */

static const int64_t ms[] = {1, 2, 3, 5, 8, 17, 33};
static const int64_t ns[] = {1, 7, 16, 31, 33, 100};
static const int64_t ks[] = {1, 2, 31, 33, 64, 172, 224, 608, 2048, 2049, 4100};
static const int64_t group_list[] = {32, NIB_GROUP_ROW, 64, 128, NIB_GROUP_TENSOR, 40, 7, 3000};
static const nib_type scale_list[] = {NIB_TYPE_F32, NIB_TYPE_BF16, NIB_TYPE_F16, NIB_TYPE_F64};

/* Random shapes that soon cover each value of each list; the largest products only with few tokens.
 */
static void check_code(nib_code code, nib_act act, nib_type input, int count)
{
    const int share = sampled(2) * sparse(2);
    rng r = {(uint64_t)code * 1000 + (uint64_t)act * 100 + input};
    const bool integer = code == NIB_CODE_I8 || code == NIB_CODE_I4,
               is_mx = code == NIB_CODE_MX8 || code == NIB_CODE_MX4, is_nv = code == NIB_CODE_NV4;
    int rows = 0;
    for (int t = 0; t < count; t += share) {
        shape s = {.code = code, .act = act, .input = input};
        s.m = ms[rng_next(&r) % COUNT(ms)];
        s.n = ns[rng_next(&r) % COUNT(ns)];
        s.k = ks[(size_t)(t / share) % COUNT(ks)];
        if (s.m * s.n * s.k > 400000)
            s.m = s.m % 4 + 1;
        s.group = is_mx ? 32 : is_nv ? 16 : group_list[rng_next(&r) % COUNT(group_list)];
        s.zero = integer ? (nib_zero)(rng_next(&r) % 3) : NIB_ZERO_NONE;
        s.scale_type = is_mx   ? NIB_TYPE_E8M0
                       : is_nv ? NIB_TYPE_E4M3
                               : scale_list[rng_next(&r) % COUNT(scale_list)];
        s.zero_type = s.zero == NIB_ZERO_FLOAT ? scale_list[rng_next(&r) % COUNT(scale_list)]
                      : rng_next(&r) % 4 == 0  ? NIB_TYPE_I32
                                               : NIB_TYPE_I8;
        s.pattern = t % 2 == 0 ? RANDOM : (pattern)(rng_next(&r) % PATTERNS);
        s.bias = rng_next(&r) % 2;
        s.nibbles = (code == NIB_CODE_I4 || code == NIB_CODE_MX4 || is_nv) && rng_next(&r) % 2;
        rows += check_shape(&s, (uint64_t)t + 1);
    }
    assert_true(rows >= count / share);
}

static void test_floats(void **state)
{
    (void)state;
    static const nib_type inputs[] = {NIB_TYPE_F32, NIB_TYPE_F16, NIB_TYPE_BF16};
    for (size_t i = 0; i < COUNT(inputs); i++)
        for (int code = NIB_CODE_F32; code <= NIB_CODE_BF16; code++)
            check_code((nib_code)code, NIB_ACT_FLOAT, inputs[i], 33);
}

/* The same weight in f64 gives the same outputs, bit for bit. */
static void test_f64(void **state)
{
    (void)state;
    const shape s = {.code = NIB_CODE_F32,
                     .input = NIB_TYPE_F32,
                     .scale_type = NIB_TYPE_NONE,
                     .m = 3,
                     .n = 33,
                     .k = 1100, /* more than one packing step */
                     .bias = true};
    product narrow = make(&s, 1), wide = make(&s, 1);
    double *codes = take(&wide, (size_t)(s.n * s.k) * sizeof *codes);
    for (int64_t i = 0; i < s.n * s.k; i++)
        codes[i] = (double)((const float *)narrow.w.codes)[i] * (1 + 1e-12);
    wide.w.codes = codes;
    wide.w.layout = NIB_LAYOUT_F64;
    int rows = 0;
    for (size_t i = 0; i < nib__family_linear_float.count; i++) {
        const nib_kernel *row = &nib__family_linear_float.rows[i];
        if (!allowed(row, &s))
            continue;
        run_row(row, &narrow);
        run_row(row, &wide);
        for (int64_t m = 0; m < s.m; m++)
            assert_memory_equal(narrow.a.y + m * narrow.a.ldy, wide.a.y + m * wide.a.ldy,
                                (size_t)s.n * 4);
        rows++;
    }
    assert_true(rows >= 1);
    product_free(&narrow);
    product_free(&wide);
}

static void test_integers(void **state)
{
    (void)state;
    static const nib_type inputs[] = {NIB_TYPE_F32, NIB_TYPE_F16, NIB_TYPE_BF16};
    for (size_t i = 0; i < COUNT(inputs); i++) {
        check_code(NIB_CODE_I8, NIB_ACT_FLOAT, inputs[i], 88);
        check_code(NIB_CODE_I4, NIB_ACT_FLOAT, inputs[i], 132);
    }
}

static void test_fp8(void **state)
{
    (void)state;
    static const nib_type inputs[] = {NIB_TYPE_F32, NIB_TYPE_F16, NIB_TYPE_BF16};
    for (size_t i = 0; i < COUNT(inputs); i++) {
        check_code(NIB_CODE_E4M3, NIB_ACT_FLOAT, inputs[i], 66);
        check_code(NIB_CODE_E5M2, NIB_ACT_FLOAT, inputs[i], 66);
        check_code(NIB_CODE_MX8, NIB_ACT_FLOAT, inputs[i], 44);
    }
    check_code(NIB_CODE_E4M3, NIB_ACT_E4M3_TOKEN, NIB_TYPE_F32, 66);
    check_code(NIB_CODE_MX8, NIB_ACT_MX8, NIB_TYPE_F32, 66);
}

static void test_fp4(void **state)
{
    (void)state;
    static const nib_type inputs[] = {NIB_TYPE_F32, NIB_TYPE_F16, NIB_TYPE_BF16};
    for (size_t i = 0; i < COUNT(inputs); i++) {
        check_code(NIB_CODE_MX4, NIB_ACT_FLOAT, inputs[i], 44);
        check_code(NIB_CODE_NV4, NIB_ACT_FLOAT, inputs[i], 44);
    }
    check_code(NIB_CODE_MX4, NIB_ACT_MX4, NIB_TYPE_F32, 66);
    check_code(NIB_CODE_NV4, NIB_ACT_NV4, NIB_TYPE_F32, 66);
}

/* Each recipe's usual shape with each number of tokens, to cover every tile. */
static void test_tiles(void **state)
{
    (void)state;
    for (int64_t m = 1; m <= 40; m += sparse(7))
        for (int code = 0; code <= NIB_CODE_MX8; code++) {
            const bool is_mx = code == NIB_CODE_MX8;
            shape s = {.code = (nib_code)code, .input = NIB_TYPE_BF16, .m = m, .n = 80, .k = 128};
            s.group = code == NIB_CODE_I4 || is_mx ? 32 : NIB_GROUP_ROW;
            s.zero = code == NIB_CODE_I4 ? NIB_ZERO_FLOAT : NIB_ZERO_NONE;
            s.scale_type = s.zero_type = is_mx ? NIB_TYPE_E8M0 : NIB_TYPE_BF16;
            s.bias = true;
            check_shape(&s, (uint64_t)m);
            s.input = NIB_TYPE_F32;
            check_shape(&s, (uint64_t)m);
            s.act = NIB_ACT_MX8;
            for (s.bias = false; is_mx && s.k <= 608; s.k += 480, s.bias = true)
                check_shape(&s, (uint64_t)m);
        }
}

/* ---- the reference ---- */

/* y(i, j) and the sum of magnitudes behind it, in double from dequantized weights. */
static void naive(const product *p, int64_t i, int64_t j, float *row, double *sum, double *size)
{
    const nib_input *x = &p->a.x;
    nib__weight_row(&p->w, j, row);
    *sum = p->a.bias != NULL ? (double)p->a.bias[j] : 0;
    *size = fabs(*sum);
    for (int64_t k = 0; k < p->w.k; k++) {
        const int64_t at = i * x->ld + k;
        double v = x->codes != NULL  ? (double)nib__e4m3_to_f32((uint8_t)x->codes[at])
                   : x->bf16 != NULL ? (double)nib__bf16_to_f32(x->bf16[at])
                                     : (double)x->f32[at];
        if (nib__act_is_f8_blocks(p->w.scheme.act))
            v *= (double)x->scale[i * x->groups + k / x->group];
        if (p->w.scheme.act == NIB_ACT_E4M3_TOKEN)
            v *= (double)x->scale[i];
        *sum += v * (double)row[k];
        *size += fabs(v * (double)row[k]);
    }
}

static void check_naive(const shape *s)
{
    product p = make(s, 7);
    const nib_input *x = &p.a.x;
    for (int64_t i = 0; i < s->m * x->groups && x->f32 != NULL;
         i++) { /* exact sums of x for float zeros */
        const int64_t r = i / x->groups, k0 = i % x->groups * x->group;
        x->fsums[i] = 0;
        for (int64_t k = k0; k < nib__min(s->k, k0 + x->group); k++)
            x->fsums[i] += x->f32[r * x->ld + k];
    }
    float *row = malloc((size_t)s->k * 4);
    assert_non_null(row);
    for (size_t f = 0; f < COUNT(families); f++)
        for (size_t q = 0; q < families[f]->count; q++) {
            const nib_kernel *ref = &families[f]->rows[q];
            if (ref->reference != NULL || !allowed(ref, s))
                continue;
            run_row(ref, &p);
            for (int64_t i = 0; i < s->m; i++)
                for (int64_t j = 0; j < s->n; j++) {
                    double sum, size;
                    naive(&p, i, j, row, &sum, &size);
                    const double got = (double)p.a.y[i * p.a.ldy + j];
                    if (!(fabs(got - sum) <= 1e-5 * size + 1e-30))
                        fail_msg("%s: y(%d, %d) is %g, not %g", ref->name, (int)i, (int)j, got,
                                 sum);
                }
        }
    free(row);
    product_free(&p);
}

static void test_reference(void **state)
{
    (void)state;
    for (int code = 0; code <= NIB_CODE_NV4; code++)
        for (int zero = 0; zero < 3; zero++)
            for (size_t g = 0; g < COUNT(group_list); g++) {
                const bool integer = code == NIB_CODE_I8 || code == NIB_CODE_I4;
                const bool is_mx = code == NIB_CODE_MX8 || code == NIB_CODE_MX4;
                if ((zero != NIB_ZERO_NONE && !integer) ||
                    (g > 0 && (is_mx || code <= NIB_CODE_BF16)))
                    continue;
                shape s = {.code = (nib_code)code,
                           .input = NIB_TYPE_F32,
                           .group = group_list[g],
                           .m = 2,
                           .n = 3};
                s.zero = (nib_zero)zero;
                s.k = 4100;
                s.scale_type = is_mx ? NIB_TYPE_E8M0 : NIB_TYPE_F64;
                s.zero_type = zero == NIB_ZERO_INT ? NIB_TYPE_I32 : NIB_TYPE_F32;
                s.bias = true;
                check_naive(&s);
                s.input = NIB_TYPE_BF16;
                if (zero != NIB_ZERO_FLOAT)
                    check_naive(&s);
            }
    check_naive(&(shape){.code = NIB_CODE_E4M3,
                         .act = NIB_ACT_E4M3_TOKEN,
                         .m = 3,
                         .n = 5,
                         .k = 2050,
                         .scale_type = NIB_TYPE_F32,
                         .bias = true});
    check_naive(&(shape){.code = NIB_CODE_MX8,
                         .act = NIB_ACT_MX8,
                         .group = 32,
                         .m = 3,
                         .n = 5,
                         .k = 2050,
                         .scale_type = NIB_TYPE_E8M0});
    check_naive(&(shape){.code = NIB_CODE_MX4,
                         .act = NIB_ACT_MX8,
                         .group = 32,
                         .m = 3,
                         .n = 5,
                         .k = 100,
                         .scale_type = NIB_TYPE_E8M0});
    check_naive(&(shape){.code = NIB_CODE_NV4,
                         .act = NIB_ACT_NV4,
                         .group = 16,
                         .m = 3,
                         .n = 5,
                         .k = 2050,
                         .scale_type = NIB_TYPE_E4M3,
                         .bias = true});
}

/* ---- the CPU's bf16 dot product ---- */

#if defined(__x86_64__)
__attribute__((target("avx512f,avx512bf16"))) static void dot_bf16(float *sum, const uint32_t *a,
                                                                   const uint32_t *b)
{
    const __m512i x = _mm512_loadu_si512(a), y = _mm512_loadu_si512(b);
    _mm512_storeu_ps(sum, _mm512_dpbf16_ps(_mm512_loadu_ps(sum), (__m512bh)x, (__m512bh)y));
}

/* bf16 inputs and an f32 of every kind: any bits, near 1, near the smallest normal, near the
 * largest. */
static uint32_t odd_bits(rng *r, int kind)
{
    const uint32_t any = rng_next(r);
    switch (kind) {
    case 0: return any;
    case 1: return (any & 0x807fffffU) | (120 + rng_next(r) % 16) << 23;
    case 2: return (any & 0x807fffffU) | rng_next(r) % 4 << 23;
    case 3: return (any & 0x807fffffU) | (252 + rng_next(r) % 4) << 23;
    default:
        return (any & 0x807fffffU) | (58 + rng_next(r) % 12)
                                         << 23; /* products near the smallest normal */
    }
}

static float float_of(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, 4);
    return f;
}

/* One step of 16 lanes, with any control word, against fused multiply-adds that flush denormals. */
static void check_dot(rng *r, int kinds)
{
    uint32_t a[16], b[16];
    float sum[16], want[16];
    for (int i = 0; i < 16; i++) {
        a[i] = (odd_bits(r, kinds % 5) >> 16) | (odd_bits(r, kinds / 5 % 5) & 0xffff0000U);
        b[i] = (odd_bits(r, kinds / 25 % 5) >> 16) | (odd_bits(r, kinds / 125 % 5) & 0xffff0000U);
        want[i] = sum[i] = float_of(odd_bits(r, kinds / 625 % 5));
    }
    const nib_float_mode mode = nib__float_mode_flush();
    for (int i = 0; i < 16; i++) {
        want[i] = fmaf(float_of(a[i] & 0xffff0000U), float_of(b[i] & 0xffff0000U), want[i]);
        want[i] = fmaf(float_of(a[i] << 16), float_of(b[i] << 16), want[i]);
    }
    nib__float_mode_restore(mode);
    dot_bf16(sum, a, b);
    for (int i = 0; i < 16; i++)
        if (memcmp(&sum[i], &want[i], 4) != 0 && !(isnan(sum[i]) && isnan(want[i])))
            fail_msg("vdpbf16ps of %08x and %08x gives %a, not %a", a[i], b[i], (double)sum[i],
                     (double)want[i]);
}
#endif

static void test_vdpbf16ps(void **state)
{
    (void)state;
#if defined(__x86_64__)
    rng r = {42};
    if (!(nib__cpu_isa() & NIB_ISA_AVX512BF16))
        skip_test(__func__, "needs AVX512-BF16");
    for (int round = 0; round < 40; round++)
        for (int kinds = 0; kinds < 3125; kinds++)
            check_dot(&r, kinds);
#else
    skip_test(__func__, "needs AVX512-BF16");
#endif
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_vdpbf16ps), cmocka_unit_test(test_reference),
        cmocka_unit_test(test_tiles),     cmocka_unit_test(test_floats),
        cmocka_unit_test(test_f64),       cmocka_unit_test(test_integers),
        cmocka_unit_test(test_fp8),       cmocka_unit_test(test_fp4),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
