/* SPDX-License-Identifier: Apache-2.0
 *
 * Number formats: every code decoded against a definition by ldexp; encoding at every boundary
 * (each value, each midpoint and its two neighbours, overflow, subnormals, NaN) and for a sample of
 * all f32; codes and values against ml_dtypes and ONNX's reference (tests/golden/number_casts.txt);
 * ONNX's node tests.
 */
#include "file.h"
#include "onnx_tensor.h"
#include "skipping.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

static uint32_t bits_of(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static float float_of(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

/* The definition of a small float: sign, exponent, mantissa. `top` is the exponent of infinity and
 * NaN, or 0 if all codes except `nan` are finite. */
typedef struct format {
    const char *name;
    int bits, mantissa, bias;
    uint32_t top, nan;             /* nan: the one magnitude that is NaN if top is 0; 0: none */
    uint32_t largest;              /* magnitude of the largest finite value */
    uint32_t over, over_saturated; /* code of larger values */
    float (*decode)(uint32_t code);
    uint32_t (*encode)(float f);
    uint32_t (*encode_saturated)(float f); /* NULL: none */
} format;

static float f16_d(uint32_t c) { return nib__f16_to_f32((uint16_t)c); }
static uint32_t f16_e(float f) { return nib__f32_to_f16(f); }
static float bf16_d(uint32_t c) { return nib__bf16_to_f32((uint16_t)c); }
static uint32_t bf16_e(float f) { return nib__f32_to_bf16(f); }
static float e4m3_d(uint32_t c) { return nib__e4m3_to_f32((uint8_t)c); }
static uint32_t e4m3_e(float f) { return nib__f32_to_e4m3(f); }
static uint32_t e4m3_s(float f) { return nib__f32_to_e4m3_saturated(f); }
static float e5m2_d(uint32_t c) { return nib__e5m2_to_f32((uint8_t)c); }
static uint32_t e5m2_e(float f) { return nib__f32_to_e5m2(f); }
static uint32_t e5m2_s(float f) { return nib__f32_to_e5m2_saturated(f); }
static float e2m1_d(uint32_t c) { return nib__e2m1_to_f32((uint8_t)c); }
static uint32_t e2m1_e(float f) { return nib__f32_to_e2m1(f); }

static const format formats[] = {
    {"f16", 16, 10, 15, 31, 0, 0x7bff, 0x7c00, 0, f16_d, f16_e, NULL},
    {"bf16", 16, 7, 127, 255, 0, 0x7f7f, 0x7f80, 0, bf16_d, bf16_e, NULL},
    {"e4m3", 8, 3, 7, 0, 0x7f, 0x7e, 0x7f, 0x7e, e4m3_d, e4m3_e, e4m3_s},
    {"e5m2", 8, 2, 15, 31, 0, 0x7b, 0x7c, 0x7b, e5m2_d, e5m2_e, e5m2_s},
    {"e2m1", 4, 1, 1, 0, 0, 7, 7, 0, e2m1_d, e2m1_e, NULL},
};

static double defined(const format *f, uint32_t magnitude)
{
    const uint32_t exponent = magnitude >> f->mantissa,
                   mantissa = magnitude & ((1U << f->mantissa) - 1);
    if ((f->top != 0 && exponent == f->top && mantissa != 0) ||
        (f->nan != 0 && magnitude == f->nan))
        return NAN;
    if (f->top != 0 && exponent == f->top)
        return INFINITY;
    if (exponent == 0)
        return ldexp((double)mantissa, 1 - f->bias - f->mantissa);
    return ldexp((double)(mantissa | 1U << f->mantissa), (int)exponent - f->bias - f->mantissa);
}

static void test_decode_every_code(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(formats); i++) {
        const format *f = &formats[i];
        const uint32_t sign = 1U << (f->bits - 1);
        for (uint32_t code = 0; code < 2 * sign; code++) {
            const double want = defined(f, code & (sign - 1));
            const float got = f->decode(code);
            if (isnan(want)) {
                assert_true(isnan(got));
                continue;
            }
            assert_true((double)fabsf(got) == want);
            assert_int_equal(signbit(got) != 0, code >= sign);
        }
    }
}

static void check_encode(const format *f, float x, uint32_t want, uint32_t want_saturated)
{
    const uint32_t sign = 1U << (f->bits - 1);
    for (int negative = 0; negative < 2; negative++) {
        const float y = negative ? -x : x;
        const uint32_t s = negative ? sign : 0;
        if (f->encode(y) != (want | s))
            fail_msg("%s: %a became 0x%x, not 0x%x", f->name, (double)y, f->encode(y), want | s);
        if (f->encode_saturated != NULL && f->encode_saturated(y) != (want_saturated | s))
            fail_msg("%s saturated: %a became 0x%x, not 0x%x", f->name, (double)y,
                     f->encode_saturated(y), want_saturated | s);
    }
}

static void test_encode_every_boundary(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(formats); i++) {
        const format *f = &formats[i];
        for (uint32_t code = 0; code <= f->largest; code++) {
            const float x = (float)defined(f, code);
            check_encode(f, x, code, code);
            const double next = code < f->largest ? defined(f, code + 1)
                                                  : 2 * defined(f, code) - defined(f, code - 1);
            if (code == f->largest && f->bias == 127)
                break; /* the midpoint above the largest bf16 is not an f32; tested below */
            const float middle = (float)((defined(f, code) + next) / 2);
            const uint32_t up = code < f->largest ? code + 1 : f->over;
            const uint32_t up_saturated = code < f->largest ? code + 1 : f->over_saturated;
            const bool to_even = code % 2 == 0;
            check_encode(f, middle, to_even ? code : up, to_even ? code : up_saturated);
            check_encode(f, nextafterf(middle, 0), code, code);
            check_encode(f, nextafterf(middle, INFINITY), up, up_saturated);
        }
        check_encode(f, FLT_MAX, f->over, f->over_saturated);
        check_encode(f, INFINITY, f->over, f->over_saturated);
    }
    check_encode(&formats[1], float_of(0x7f7f7fff), 0x7f7f, 0);
    check_encode(&formats[1], float_of(0x7f7f8000), 0x7f80, 0);
}

/* Finds the nearest code by searching the list of values. */
static uint32_t nearest(const format *f, double x)
{
    uint32_t low = 0, high = f->largest;
    while (low < high) {
        const uint32_t middle = (low + high + 1) / 2;
        if (defined(f, middle) <= x)
            low = middle;
        else
            high = middle - 1;
    }
    if (low == f->largest)
        return x - defined(f, low) >= (defined(f, low) - defined(f, low - 1)) / 2 ? UINT32_MAX
                                                                                  : low;
    const double below = x - defined(f, low), above = defined(f, low + 1) - x;
    return below < above || (below == above && low % 2 == 0) ? low : low + 1;
}

static void test_encode_sampled(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(formats); i++) {
        const format *f = &formats[i];
        for (uint64_t u = 0; u < 0x7f800000U; u += 15013) {
            const float x = float_of((uint32_t)u);
            const uint32_t want = nearest(f, (double)x);
            if (want != UINT32_MAX) /* ties and larger values are boundaries, tested there */
                check_encode(f, x, want, want);
        }
    }
}

static void test_encode_nan(void **state)
{
    (void)state;
    static const uint32_t nans[] = {0x7f800001, 0x7fc00000, 0x7fffffff, 0x7f900000};
    for (size_t i = 0; i < COUNT(nans); i++) {
        const float x = float_of(nans[i]);
        assert_true(isnan(nib__f16_to_f32(nib__f32_to_f16(x))));
        assert_int_equal(nib__f32_to_f16(x) & 0x200, 0x200); /* quiet */
        assert_int_equal(nib__f32_to_bf16(x), 0x7fc0);
        assert_int_equal(nib__f32_to_e4m3(x), 0x7f);
        assert_int_equal(nib__f32_to_e4m3_saturated(x), 0x7f);
        assert_true(isnan(nib__e5m2_to_f32(nib__f32_to_e5m2(x))));
        assert_true(isnan(nib__e5m2_to_f32(nib__f32_to_e5m2_saturated(x))));
        assert_int_equal(nib__f32_to_e2m1(x), 8);
        assert_int_equal(nib__f32_to_e8m0_up(x), 255);
    }
}

static void test_e8m0(void **state)
{
    (void)state;
    for (int code = 0; code < 255; code++) {
        const float value = nib__e8m0_to_f32((uint8_t)code);
        assert_true((double)value == ldexp(1, code - 127));
        assert_int_equal(nib__f32_to_e8m0_up(value), code);
        assert_int_equal(nib__f32_to_e8m0_up(-value), code);
        assert_int_equal(nib__f32_to_e8m0_up(nextafterf(value, INFINITY)),
                         code < 254 ? code + 1 : 254);
        assert_int_equal(nib__f32_to_e8m0_up(nextafterf(value, 0)), code);
    }
    assert_true(isnan(nib__e8m0_to_f32(255)));
    assert_int_equal(nib__f32_to_e8m0_up(0), 0);
    assert_int_equal(nib__f32_to_e8m0_up(INFINITY), 254);
}

/* Converting arrays equals converting single values, at any alignment and count. */
static void test_arrays(void **state)
{
    (void)state;
    enum { N = 256 };
    static const nib_type types[] = {NIB_TYPE_F16,  NIB_TYPE_BF16, NIB_TYPE_E4M3,
                                     NIB_TYPE_E5M2, NIB_TYPE_E8M0, NIB_TYPE_F32};
    float from[N];
    uint8_t bytes[4 * N + 1];
    float back[N];
    for (int i = 0; i < N; i++)
        from[i] = (float)(i - 100) * 0.37f + (i % 7 == 0 ? 1e-6f : 0);
    for (size_t t = 0; t < COUNT(types); t++) {
        for (int64_t count = 0; count <= N; count = count * 2 + 1) {
            nib__from_f32(bytes + 1, types[t], from, count);
            nib__to_f32(back, bytes + 1, types[t], count);
            for (int64_t i = 0; i < count; i++) {
                const float x = from[i];
                const float want =
                    types[t] == NIB_TYPE_F16    ? nib__f16_to_f32(nib__f32_to_f16(x))
                    : types[t] == NIB_TYPE_BF16 ? nib__bf16_to_f32(nib__f32_to_bf16(x))
                    : types[t] == NIB_TYPE_E4M3 ? nib__e4m3_to_f32(nib__f32_to_e4m3(x))
                    : types[t] == NIB_TYPE_E5M2 ? nib__e5m2_to_f32(nib__f32_to_e5m2(x))
                    : types[t] == NIB_TYPE_E8M0 ? nib__e8m0_to_f32(nib__f32_to_e8m0_up(x))
                                                : x;
                assert_int_equal(bits_of(back[i]), bits_of(want));
            }
        }
    }
}

static void test_integer_arrays(void **state)
{
    (void)state;
    float out[2];
    const int8_t i8[] = {-128, 127};
    const uint8_t u8[] = {0, 255};
    const int16_t i16[] = {-32768, 32767};
    const uint16_t u16[] = {1, 65535};
    const int32_t i32[] = {INT32_MIN, 16777217};
    const uint32_t u32[] = {0, UINT32_MAX};
    const int64_t i64[] = {INT64_MIN, (1LL << 60) + 1};
    const uint64_t u64[] = {0, UINT64_MAX};
    const double f64[] = {0.1, -1e300};
    const struct {
        nib_type type;
        const void *from;
        float want[2];
    } cases[] = {
        {NIB_TYPE_BOOL, (const uint8_t[]){0, 1}, {0, 1}},
        {NIB_TYPE_I8, i8, {-128, 127}},
        {NIB_TYPE_U8, u8, {0, 255}},
        {NIB_TYPE_I16, i16, {-32768, 32767}},
        {NIB_TYPE_U16, u16, {1, 65535}},
        {NIB_TYPE_I32, i32, {-2147483648.0f, 16777216.0f}},
        {NIB_TYPE_U32, u32, {0, 4294967296.0f}},
        {NIB_TYPE_I64, i64, {-0x1p63f, 0x1p60f}},
        {NIB_TYPE_U64, u64, {0, 0x1p64f}},
        {NIB_TYPE_F64, f64, {0.1f, -INFINITY}},
        {NIB_TYPE_E8M0, (const uint8_t[]){127, 0}, {1, 0x1p-127f}},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        nib__to_f32(out, cases[i].from, cases[i].type, 2);
        assert_true(out[0] == cases[i].want[0] && out[1] == cases[i].want[1]);
    }
    nib__to_f32(out, u8, NIB_TYPE_E2M1, 1);
    assert_true(isnan(out[0]));
}

static void test_type_names(void **state)
{
    (void)state;
    for (int t = NIB_TYPE_NONE + 1; t < NIB_TYPE_COUNT; t++) {
        const char *stored = nib__type_stored_name((nib_type)t);
        /* GGUF's block types are not types of safetensors */
        assert_int_equal(nib__type_find(stored, strlen(stored)),
                         nib__type_is_block((nib_type)t) ? NIB_TYPE_NONE : t);
        assert_int_equal(nib__type_find(stored, strlen(stored) - 1), NIB_TYPE_NONE);
    }
    assert_int_equal(nib__type_find("", 0), NIB_TYPE_NONE);
    assert_int_equal(nib__type_find("BF16X", 4), NIB_TYPE_BF16);
    assert_string_equal(nib__type_name(NIB_TYPE_BF16), "bf16");
    assert_string_equal(nib__type_name((nib_type)99), "none");
    assert_int_equal(nib__type_bits(NIB_TYPE_E2M1), 4);
    assert_true(nib__type_is_float(NIB_TYPE_F64) && !nib__type_is_float(NIB_TYPE_E4M3));
}

static void test_f64_change(void **state)
{
    (void)state;
    const double same[] = {1.5, 0, -0.0, NAN, INFINITY};
    assert_true(nib__measure_f64_to_f32_error(same, 5) == 0);
    const double values[] = {1.0, 1.0 + 0x1p-25};
    assert_true(nib__measure_f64_to_f32_error(values, 2) == 0x1p-25 / (1.0 + 0x1p-25));
    const double tiny[] = {1e-60};
    assert_true(nib__measure_f64_to_f32_error(tiny, 1) == 1);
}

static void test_int4_packing(void **state)
{
    (void)state;
    int8_t codes[33], back[33];
    uint8_t bytes[17];
    for (int i = 0; i < 33; i++)
        codes[i] = (int8_t)(i * 5 % 16 - 8);
    for (int64_t count = 0; count <= 33; count++) {
        memset(bytes, 0xa5, sizeof bytes);
        nib__pack_i4(bytes, codes, count);
        if (count % 2 != 0)
            assert_int_equal(bytes[count / 2] >> 4, 0);
        for (int64_t first = 0; first <= count; first++) {
            memset(back, 99, sizeof back);
            nib__unpack_i4(back, bytes, first, count - first);
            assert_memory_equal(back, codes + first, (size_t)(count - first));
            if (count - first < 33)
                assert_int_equal(back[count - first], 99); /* not written past the end */
        }
    }
    const int8_t two[] = {-3, 7};
    nib__pack_i4(bytes, two, 2);
    assert_int_equal(bytes[0], 0x7d); /* low nibble first */
}

/* ---- ONNX ---- */

static nib_type type_of(int onnx)
{
    switch (onnx) {
    case ONNX_FLOAT: return NIB_TYPE_F32;
    case ONNX_DOUBLE: return NIB_TYPE_F64;
    case ONNX_FLOAT16: return NIB_TYPE_F16;
    case ONNX_BFLOAT16: return NIB_TYPE_BF16;
    case ONNX_E4M3FN: return NIB_TYPE_E4M3;
    case ONNX_E5M2: return NIB_TYPE_E5M2;
    case ONNX_E8M0: return NIB_TYPE_E8M0;
    case ONNX_INT8: return NIB_TYPE_I8;
    case ONNX_UINT8: return NIB_TYPE_U8;
    default: return NIB_TYPE_NONE;
    }
}

static void onnx_values(float *out, const onnx_tensor *t)
{
    int8_t codes[256];
    if (t->type == ONNX_E2M1) {
        for (int64_t i = 0; i < t->count; i++)
            out[i] = nib__e2m1_to_f32((uint8_t)(t->bytes[i / 2] >> (i % 2 * 4)));
    } else if (t->type == ONNX_INT4) {
        nib__unpack_i4(codes, t->bytes, 0, t->count);
        nib__to_f32(out, codes, NIB_TYPE_I8, t->count);
    } else {
        nib__to_f32(out, t->bytes, type_of(t->type), t->count);
    }
}

static bool is_nan_code(int onnx, uint32_t code)
{
    switch (onnx) {
    case ONNX_FLOAT16: return (code & 0x7fff) > 0x7c00;
    case ONNX_BFLOAT16: return (code & 0x7fff) > 0x7f80;
    case ONNX_E4M3FN: return (code & 0x7f) == 0x7f;
    case ONNX_E5M2: return (code & 0x7f) > 0x7c;
    default: return false;
    }
}

/* The code of x in an ONNX type; ONNX casts saturate unless told not to. */
static uint32_t onnx_encode(int onnx, float x, bool saturate)
{
    switch (onnx) {
    case ONNX_FLOAT: return bits_of(x);
    case ONNX_FLOAT16: return nib__f32_to_f16(x);
    case ONNX_BFLOAT16: return nib__f32_to_bf16(x);
    case ONNX_E4M3FN: return saturate ? nib__f32_to_e4m3_saturated(x) : nib__f32_to_e4m3(x);
    case ONNX_E5M2: return saturate ? nib__f32_to_e5m2_saturated(x) : nib__f32_to_e5m2(x);
    case ONNX_E8M0: return nib__f32_to_e8m0_up(x);
    case ONNX_E2M1: return nib__f32_to_e2m1(x);
    case ONNX_INT8: return (uint8_t)(int8_t)x;
    case ONNX_INT4: return (uint32_t)(int)x & 15U; /* these casts wrap */
    default: fail_msg("type %d", onnx); return 0;
    }
}

static uint8_t hex_byte(const char *digits)
{
    const char two[3] = {digits[0], digits[1], 0};
    return (uint8_t)strtoul(two, NULL, 16);
}

static uint32_t onnx_code(const onnx_tensor *t, int64_t i)
{
    uint32_t code = 0;
    const int bits = onnx_bits(t->type);
    if (bits == 4)
        return t->bytes[i / 2] >> (i % 2 * 4) & 15U;
    memcpy(&code, t->bytes + i * bits / 8, (size_t)bits / 8);
    return code;
}

static int check_onnx(const char *name, const onnx_tensor *want, const float *x, bool saturate)
{
    for (int64_t i = 0; i < want->count; i++) {
        const uint32_t code = onnx_code(want, i), got = onnx_encode(want->type, x[i], saturate);
        if (want->type == ONNX_FLOAT && isnan(float_of(code))) {
            assert_true(isnan(x[i]));
        } else if (is_nan_code(want->type, code)) {
            assert_true(is_nan_code(want->type, got));
        } else if (got != code) {
            fail_msg("%s: value %d (%a) became 0x%x, not 0x%x", name, (int)i, (double)x[i], got,
                     code);
        }
    }
    return 1;
}

/* ---- codes and values from other libraries ---- */

static int onnx_type(const char *name)
{
    static const struct {
        const char *name;
        int type;
    } types[] = {{"f16", ONNX_FLOAT16}, {"bf16", ONNX_BFLOAT16}, {"e4m3", ONNX_E4M3FN},
                 {"e5m2", ONNX_E5M2},   {"e8m0", ONNX_E8M0},     {"e2m1", ONNX_E2M1},
                 {"f64", ONNX_DOUBLE}};
    for (size_t i = 0; i < COUNT(types); i++)
        if (strcmp(types[i].name, name) == 0)
            return types[i].type;
    fail_msg("no type is named %s", name);
    return 0;
}

/* CODE=F32 */
static void check_decoded(const char *name, const char *item)
{
    char *end;
    const uint64_t code = strtoull(item, &end, 16);
    assert_true(*end == '=');
    const float want = float_of((uint32_t)strtoul(end + 1, NULL, 16));
    float got;
    if (strcmp(name, "e2m1") == 0)
        got = nib__e2m1_to_f32((uint8_t)code);
    else
        nib__to_f32(&got, &code, type_of(onnx_type(name)), 1); /* little-endian */
    if (isnan(want) ? !isnan(got) : bits_of(got) != bits_of(want))
        fail_msg("%s: 0x%" PRIx64 " became %a, not %a", name, code, (double)got, (double)want);
}

static void check_code(const char *name, float x, uint32_t want, bool saturate)
{
    const int type = onnx_type(name);
    const uint32_t got = onnx_encode(type, x, saturate);
    if (is_nan_code(type, want) ? !is_nan_code(type, got) : got != want)
        fail_msg("%s%s: %a became 0x%x, not 0x%x", name, saturate ? " saturated" : "", (double)x,
                 got, want);
}

/* F32=CODE or F32=CODE/SATURATED; of a quantized value, the saturated code alone. */
static void check_encoded(const char *name, const char *item, float scale)
{
    char *end;
    const float x = float_of((uint32_t)strtoul(item, &end, 16));
    assert_true(*end == '=');
    const uint32_t want = (uint32_t)strtoul(end + 1, &end, 16);
    check_code(name, x / scale, want, scale != 1);
    if (*end == '/')
        check_code(name, x, (uint32_t)strtoul(end + 1, NULL, 16), true);
}

/* BYTES=VALUES, both in hexadecimal */
static void check_packed(int count, const char *item)
{
    const char *values = strchr(item, '=');
    assert_true(values != NULL && count <= 64);
    uint8_t bytes[32], packed[32];
    int8_t codes[64], back[64];
    const size_t size = ((size_t)count + 1) / 2;
    for (size_t i = 0; i < size; i++)
        bytes[i] = hex_byte(item + 2 * i);
    for (int i = 0; i < count; i++)
        codes[i] = (int8_t)hex_byte(values + 1 + 2 * i);
    nib__unpack_i4(back, bytes, 0, count);
    assert_memory_equal(back, codes, (size_t)count);
    nib__pack_i4(packed, codes, count);
    assert_memory_equal(packed, bytes, size);
}

/* tools/golden/make_number_golden.py describes the lines. */
static void test_same_as_other_libraries(void **state)
{
    (void)state;
    const nib_allocator a = nib__allocator_default();
    char *text, *lines, *words;
    size_t size;
    int decoded = 0, encoded = 0, quantized = 0, packed = 0;
    assert_int_equal(
        nib__file_read(&text, &size, "tests/golden/number_casts.txt", 1 << 20, &a, NULL), NIB_OK);
    for (char *line = strtok_r(text, "\n", &lines); line; line = strtok_r(NULL, "\n", &lines)) {
        const char *what = strtok_r(line, " ", &words), *name = strtok_r(NULL, " ", &words);
        float scale = 1;
        int count = 0;
        if (strcmp(what, "quantize") == 0)
            scale = float_of((uint32_t)strtoul(strtok_r(NULL, " ", &words), NULL, 16));
        else if (strcmp(what, "pack") == 0)
            count = (int)strtol(strtok_r(NULL, " ", &words), NULL, 10);
        else if (strcmp(what, "decode") != 0 && strcmp(what, "encode") != 0)
            continue;
        for (char *item; (item = strtok_r(NULL, " ", &words)) != NULL;) {
            if (count > 0) {
                check_packed(count, item);
                packed++;
            } else if (what[0] == 'd') {
                check_decoded(name, item);
                decoded++;
            } else {
                check_encoded(name, item, scale);
                *(scale == 1 ? &encoded : &quantized) += 1;
            }
        }
    }
    nib__release(&a, text);
    assert_true(decoded == 1073 && encoded == 1020 && quantized == 186 && packed == 4);
}

static void test_onnx_casts(void **state)
{
    (void)state;
    static const char *const cases[] = {
        "BFLOAT16_to_FLOAT",
        "DOUBLE_to_FLOAT",
        "DOUBLE_to_FLOAT16",
        "FLOAT16_to_FLOAT",
        "FLOAT16_to_FLOAT4E2M1",
        "FLOAT16_to_FLOAT8E4M3FN",
        "FLOAT16_to_FLOAT8E5M2",
        "FLOAT16_to_INT4",
        "FLOAT4E2M1_to_FLOAT",
        "FLOAT4E2M1_to_FLOAT16",
        "FLOAT8E4M3FN_to_FLOAT",
        "FLOAT8E4M3FN_to_FLOAT16",
        "FLOAT8E5M2_to_FLOAT",
        "FLOAT8E5M2_to_FLOAT16",
        "FLOAT_to_BFLOAT16",
        "FLOAT_to_FLOAT16",
        "FLOAT_to_FLOAT4E2M1",
        "FLOAT_to_FLOAT8E4M3FN",
        "FLOAT_to_FLOAT8E5M2",
        "FLOAT_to_INT4",
        "INT4_to_FLOAT",
        "INT4_to_FLOAT16",
        "INT4_to_INT8",
        "e8m0_FLOAT16_to_FLOAT8E8M0",
        "e8m0_FLOAT8E8M0_to_FLOAT",
        "e8m0_FLOAT8E8M0_to_FLOAT16",
        "e8m0_FLOAT_to_FLOAT8E8M0",
        "no_saturate_FLOAT16_to_FLOAT8E4M3FN",
        "no_saturate_FLOAT16_to_FLOAT8E5M2",
        "no_saturate_FLOAT_to_FLOAT8E4M3FN",
        "no_saturate_FLOAT_to_FLOAT8E5M2",
    };
    const char *data = test_data();
    int done = 0;
    for (size_t i = 0; i < COUNT(cases); i++) {
        char name[128];
        static onnx_tensor in, out;
        float x[256];
        snprintf(name, sizeof name, "test_cast_%s", cases[i]);
        assert_true(onnx_read(&in, data, name, "input_0") &&
                    onnx_read(&out, data, name, "output_0"));
        assert_true(in.count == out.count && in.count > 0 && in.count <= 256);
        onnx_values(x, &in);
        done += check_onnx(name, &out, x, strncmp(cases[i], "no_saturate", 11) != 0);
    }
    assert_int_equal(done, COUNT(cases));
}

/* y = saturate(round(x / scale) + 0), which makes -0 positive; x = y * scale. */
static void test_onnx_quantize_linear(void **state)
{
    (void)state;
    static const char *const cases[] = {
        "quantizelinear_e4m3fn",           "quantizelinear_e5m2",
        "quantizelinear_float4e2m1",       "dequantizelinear_e4m3fn",
        "dequantizelinear_e4m3fn_float16", "dequantizelinear_e4m3fn_zero_point",
        "dequantizelinear_e5m2",           "dequantizelinear_float4e2m1",
    };
    const char *data = test_data();
    for (size_t i = 0; i < COUNT(cases); i++) {
        char name[128];
        static onnx_tensor in, scale, out;
        float x[256], s[256];
        snprintf(name, sizeof name, "test_%s", cases[i]);
        assert_true(onnx_read(&in, data, name, "input_0") &&
                    onnx_read(&scale, data, name, "input_1"));
        assert_true(onnx_read(&out, data, name, "output_0"));
        assert_true(in.count == out.count && in.count > 0 && scale.count > 0);
        onnx_values(x, &in);
        onnx_values(s, &scale);
        const int64_t block = in.count / scale.count; /* one scale, or one per row */
        for (int64_t j = 0; j < in.count; j++)
            x[j] = cases[i][0] == 'q' ? x[j] / s[j / block] + 0.0f : x[j] * s[j / block];
        check_onnx(name, &out, x, true);
    }
}

static void test_all_finite(void **state)
{
    (void)state;
    static const float bad[] = {NAN, -NAN, INFINITY, -INFINITY};
    float x[37];
    for (int i = 0; i < 37; i++)
        x[i] = i % 2 == 0 ? FLT_MAX : -FLT_MIN;
    assert_true(nib__all_finite(x, 37) && nib__all_finite(x, 0));
    for (int i = 0; i < 37; i++)
        for (size_t b = 0; b < COUNT(bad); b++) {
            const float kept = x[i];
            x[i] = bad[b];
            assert_false(nib__all_finite(x, 37));
            assert_true(nib__all_finite(x, i));
            x[i] = kept;
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_decode_every_code),
        cmocka_unit_test(test_encode_every_boundary),
        cmocka_unit_test(test_encode_sampled),
        cmocka_unit_test(test_encode_nan),
        cmocka_unit_test(test_e8m0),
        cmocka_unit_test(test_arrays),
        cmocka_unit_test(test_integer_arrays),
        cmocka_unit_test(test_type_names),
        cmocka_unit_test(test_f64_change),
        cmocka_unit_test(test_all_finite),
        cmocka_unit_test(test_int4_packing),
        cmocka_unit_test(test_same_as_other_libraries),
        cmocka_unit_test(test_onnx_casts),
        cmocka_unit_test(test_onnx_quantize_linear),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
