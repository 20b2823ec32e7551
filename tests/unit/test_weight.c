/* SPDX-License-Identifier: Apache-2.0
 *
 * Weights of a module: torchao's files give torchao's values; plain and nibble weights; biases;
 * conversions are reported, and errors are named.
 */
#include "checkpoint_build.h"
#include "dialects.h"
#include "golden_scheme.h"
#include "metered.h"

#include <float.h>
#include <math.h>

/* ---- torchao's own files ---- */

static void test_torchao_golden(void **state)
{
    (void)state;
    nib_checkpoint *cp = open_ok("tests/golden/torchao_weights.safetensors");
    nib_err err;
    size_t seen = 0;
    for (size_t i = 0; i < nib__checkpoint_module_count(cp); i++) {
        const char *module = nib__checkpoint_module(cp, i);
        char name[200], scheme[64], wanted[64];
        nib_weight w;
        float row[160];
        if (nib__checkpoint_weight(&w, NULL, cp, module, NULL, &err) != NIB_OK)
            fail_msg("%s", err.text);
        assert_string_equal(nib__checkpoint_dialect(cp, module), "torchao");
        assert_int_equal(w.n, 3);
        assert_int_equal(w.k, 160);
        assert_non_null(w.bias);
        assert_int_equal(nib__weight_check_codes(&w, module, &err), NIB_OK);
        /* The scheme is the one in the generator's name; 4-bit activations are not tested here. */
        snprintf(wanted, sizeof wanted, "%.*s", (int)strcspn(module, ":."), module);
        nib__scheme_name(scheme, &w.scheme);
        if (golden_scales(module) != NIB_TYPE_NONE)
            assert_int_equal(w.scale_type, golden_scales(module));
        if (strcmp(wanted, "8da4w-row") == 0)
            snprintf(wanted, sizeof wanted, "8da4w-g160"); /* a row of 160 is one group of 160 */
        assert_string_equal(scheme, wanted);
        snprintf(name, sizeof name, "%s.dequantized", module);
        const nib_tensor *values = nib__checkpoint_find(cp, name);
        assert_non_null(values);
        for (int64_t r = 0; r < w.n; r++) {
            nib__weight_row(&w, r, row);
            if (memcmp(row, values->data + (size_t)r * sizeof row, sizeof row) != 0)
                fail_msg("%s: row %d is not torchao's", module, (int)r);
        }
        seen++;
    }
    assert_int_equal(seen, 42);
    nib__checkpoint_close(cp);
}

/* ---- plain weights and biases ---- */

static void test_plain(void **state)
{
    (void)state;
    static const struct {
        const char *type;
        nib_code code;
    } types[] = {{"F32", NIB_CODE_F32}, {"F16", NIB_CODE_F16}, {"BF16", NIB_CODE_BF16}};
    for (size_t i = 0; i < COUNT(types); i++) {
        const part parts[] = {{"m.weight", types[i].type, 2, {2, 3}, NULL},
                              {"m.bias", "F32", 1, {2}, NULL}};
        made m;
        nib_weight w;
        open_parts(&m, "", parts, 2);
        assert_int_equal(nib__checkpoint_weight(&w, NULL, m.cp, "m", NULL, NULL), NIB_OK);
        assert_int_equal(w.scheme.code, types[i].code);
        assert_int_equal(w.layout, NIB_LAYOUT_FLOAT);
        assert_int_equal(w.n, 2);
        assert_int_equal(w.k, 3);
        assert_int_equal(w.bias_type, NIB_TYPE_F32);
        assert_string_equal(nib__checkpoint_dialect(m.cp, "m"), "safetensors");
        bool found = true;
        assert_int_equal(nib__checkpoint_weight(&w, &found, m.cp, "other", NULL, NULL), NIB_OK);
        assert_false(found);
        assert_null(nib__checkpoint_dialect(m.cp, "other"));
        drop_checkpoint(&m);
    }
}

/* f64 is read in place, rounded at each read, and reported with the largest change. */
static void test_f64(void **state)
{
    (void)state;
    const double values[] = {0.5, 0.1, -1.0 / 3, 2, 1e-300, 7};
    const part parts[] = {{"m.weight", "F64", 2, {2, 3}, values},
                          {"m.bias", "F64", 1, {2}, values}};
    made m;
    nib_weight w;
    nib_ledger ledger;
    open_parts(&m, "", parts, 2);
    nib__ledger_init(&ledger, &m.allocator);
    assert_int_equal(nib__checkpoint_weight(&w, NULL, m.cp, "m", &ledger, NULL), NIB_OK);
    float row[3];
    nib__weight_row(&w, 0, row);
    assert_true(row[1] == 0.1f && row[2] == -1.0f / 3);
    assert_int_equal(ledger.tensor_count, 2);
    assert_string_equal(ledger.tensors[0].name, "m.weight");
    assert_string_equal(ledger.tensors[0].asked, "f64");
    assert_string_equal(ledger.tensors[0].done, "f32");
    assert_true(ledger.tensors[0].max_rel_change == 1); /* 1e-300 became 0 */
    assert_string_equal(ledger.tensors[1].name, "m.bias");
    assert_true(ledger.tensors[1].max_rel_change > 1e-9 && ledger.tensors[1].max_rel_change < 6e-8);
    assert_int_equal(w.scheme.code, NIB_CODE_F32);
    assert_int_equal(w.layout, NIB_LAYOUT_F64);
    assert_ptr_equal(w.codes, nib__checkpoint_find(m.cp, "m.weight")->data);
    nib__ledger_free(&ledger);
    drop_checkpoint(&m);
}

/* Values that overflow f32 are found when the codes are checked. */
static void test_f64_too_large(void **state)
{
    (void)state;
    static const struct {
        double value;
        nib_status status;
    } cases[] = {{(double)FLT_MAX, NIB_OK},
                 {-0x1.fffffefffffffp127, NIB_OK}, /* the last value that rounds to FLT_MAX */
                 {0x1.ffffffp127, NIB_BAD_INPUT},  /* the first that does not */
                 {1e300, NIB_BAD_INPUT},
                 {-INFINITY, NIB_BAD_INPUT},
                 {NAN, NIB_BAD_INPUT}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        double values[2 * 300] = {0};
        values[300 + 290] = cases[i].value;
        const part parts[] = {{"m.weight", "F64", 2, {2, 300}, values}};
        made m;
        nib_weight w;
        nib_err err = {NIB_OK, ""};
        open_parts(&m, "", parts, 1);
        assert_int_equal(nib__checkpoint_weight(&w, NULL, m.cp, "m", NULL, NULL), NIB_OK);
        const nib_status got = nib__weight_check_codes(&w, "m", &err);
        if (cases[i].status == NIB_OK)
            assert_int_equal(got, NIB_OK);
        else
            refused(cases[i].status, got, &err);
        drop_checkpoint(&m);
    }
}

static void patch(const char *path, size_t place, const void *bytes, size_t size)
{
    FILE *file = fopen(path, "r+b");
    assert_non_null(file);
    assert_int_equal(fseek(file, (long)place, SEEK_SET), 0);
    assert_int_equal(fwrite(bytes, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
}

/* A sparse file of 92 MB is cheap to open and to read from: neither f64 weights nor float zero
 * points are copied. */
static void test_large_f64(void **state)
{
    enum { N = 1024, K = 8192, GROUPS = K / 8 };
    static const char header[] = "{\"a.weight\":{\"dtype\":\"F64\",\"shape\":[1024,8192],"
                                 "\"data_offsets\":[0,67108864]},"
                                 "\"b.scales\":{\"dtype\":\"F64\",\"shape\":[1024,1024],"
                                 "\"data_offsets\":[67108864,75497472]},"
                                 "\"b.weight\":{\"dtype\":\"I8\",\"shape\":[1024,8192],"
                                 "\"data_offsets\":[75497472,83886080]},"
                                 "\"b.zeros\":{\"dtype\":\"F64\",\"shape\":[1024,1024],"
                                 "\"data_offsets\":[83886080,92274688]}}";
    const double third = 1.0 / 3, three = 3;
    char dir[256], path[300];
    meter held = {0, 0};
    const nib_allocator a = metered_allocator(&held), plain = nib__allocator_default();
    nib_checkpoint *cp;
    nib_weight w;
    nib_err err;
    nib_ledger ledger;
    float row[K];
    (void)state;
    make_directory(dir);
    write_safetensors(dir, "m.safetensors", header, NULL, 0);
    snprintf(path, sizeof path, "%s/m.safetensors", dir);
    const size_t start = 8 + strlen(header), end = (size_t)8 * N * (K + 2 * GROUPS) + (size_t)N * K;
    assert_int_equal(truncate(path, (off_t)(start + end)), 0);
    patch(path, start + 8 * (size_t)(N - 1) * K, &third, sizeof third); /* the last row of a */
    patch(path, start + end - 8, &three, sizeof three);                 /* the last zero of b */
    nib__ledger_init(&ledger, &plain);
    if (nib__checkpoint_open(&cp, path, &a, &err) != NIB_OK ||
        nib__checkpoint_weight(&w, NULL, cp, "a", &ledger, &err) != NIB_OK)
        fail_msg("%s", err.text);
    nib__weight_row(&w, N - 1, row);
    assert_true(row[0] == 1.0F / 3 && row[1] == 0);
    if (nib__checkpoint_weight(&w, NULL, cp, "b", &ledger, &err) != NIB_OK)
        fail_msg("%s", err.text);
    assert_int_equal(w.scheme.zero, NIB_ZERO_INT);
    assert_int_equal(nib__weight_int_zero(&w, N - 1, GROUPS - 1), 3);
    assert_int_equal(nib__weight_int_zero(&w, N - 1, GROUPS - 2), 0);
    assert_int_equal(ledger.tensor_count, 3); /* a.weight, b.scales, b.zeros */
    assert_true(ledger.tensors[0].max_rel_change > 1e-9);
    nib__ledger_free(&ledger);
    nib__checkpoint_close(cp);
    assert_int_equal(held.now, 0);
    assert_true(held.peak < 256 << 10);
    drop_directory(dir);
}

static void test_alias(void **state)
{
    (void)state;
    const part parts[] = {{"head.weight", "F32", 2, {2, 3}, NULL}};
    made m;
    nib_weight w, head;
    nib_ledger ledger;
    open_parts(&m, "\"m.weight\":\"head.weight\"", parts, 1);
    nib__ledger_init(&ledger, &m.allocator);
    assert_int_equal(nib__checkpoint_weight(&w, NULL, m.cp, "m", &ledger, NULL), NIB_OK);
    assert_int_equal(nib__checkpoint_weight(&head, NULL, m.cp, "head", NULL, NULL), NIB_OK);
    assert_ptr_equal(w.codes, head.codes);
    assert_int_equal(ledger.tensor_count, 1);
    assert_string_equal(ledger.tensors[0].done, "head.weight");
    nib__ledger_free(&ledger);
    drop_checkpoint(&m);
}

/* Names as long as a module's and longer: what does not fit is not found. */
static void test_long_names(void **state)
{
    (void)state;
    for (int size = 490; size < 520; size++) {
        char name[600], module[560];
        const part parts[] = {{name, "F32", 2, {2, 3}, NULL}};
        made m;
        nib_weight w;
        nib_err err;
        bool found = false;
        snprintf(module, sizeof module, "%0*d", size, 0);
        snprintf(name, sizeof name, "%s.weight", module);
        open_parts(&m, "", parts, 1);
        assert_int_equal(nib__checkpoint_weight(&w, &found, m.cp, module, NULL, &err), NIB_OK);
        assert_int_equal(found, size + 7 < 512);
        if (!found)
            refused(NIB_BAD_INPUT, nib__checkpoint_weight(&w, NULL, m.cp, module, NULL, &err),
                    &err);
        drop_checkpoint(&m);
    }
    const part other[] = {{"x", "F32", 2, {2, 3}, NULL}}; /* an alias of a tensor of another name */
    made m;
    nib_weight w;
    open_parts(&m, "\"m.weight\":\"x\"", other, 1);
    assert_int_equal(nib__checkpoint_weight(&w, NULL, m.cp, "m", NULL, NULL), NIB_OK);
    assert_int_equal(w.k, 3);
    drop_checkpoint(&m);
}

static void test_bad_plain(void **state)
{
    (void)state;
    const float nan_bias[] = {1, NAN}, inf_bias[] = {INFINITY, 0};
    const double huge[] = {0, 1e300};
    const struct {
        part parts[3];
        size_t count;
        nib_status status;
    } cases[] = {
        {{{"x", "U8", 1, {1}, NULL}}, 1, NIB_BAD_INPUT}, /* no weight */
        {{{"m.weight", "F32", 1, {4}, NULL}}, 1, NIB_BAD_INPUT},
        {{{"m.weight", "F32", 3, {1, 2, 2}, NULL}}, 1, NIB_BAD_INPUT},
        {{{"m.weight", "F32", 2, {0, 2}, NULL}}, 1, NIB_BAD_INPUT},
        {{{"m.weight", "I8", 2, {2, 2}, NULL}}, 1, NIB_UNSUPPORTED}, /* codes without metadata */
        {{{"m.weight", "F8_E4M3", 2, {2, 2}, NULL}}, 1, NIB_UNSUPPORTED},
        {{{"m.weight_packed", "I32", 2, {2, 2}, NULL}},
         1,
         NIB_UNSUPPORTED},                                             /* compressed-tensors */
        {{{"m.qweight", "I32", 2, {2, 2}, NULL}}, 1, NIB_UNSUPPORTED}, /* GPTQ or AWQ */
        {{{"m._weight_qdata", "I8", 2, {2, 2}, NULL}},
         1,
         NIB_BAD_INPUT}, /* not described in __metadata__ */
        {{{"m.weight", "F32", 2, {2, 2}, NULL}, {"m._weight_qdata", "I8", 2, {2, 2}, NULL}},
         2,
         NIB_BAD_INPUT}, /* stored twice */
        {{{"m.weight", "F32", 2, {2, 2}, NULL}, {"m.bias", "I32", 1, {2}, NULL}}, 2, NIB_BAD_INPUT},
        {{{"m.weight", "F32", 2, {2, 2}, NULL}, {"m.bias", "F32", 1, {3}, NULL}}, 2, NIB_BAD_INPUT},
        {{{"m.weight", "F32", 2, {2, 2}, NULL}, {"m.bias", "F32", 2, {1, 2}, NULL}},
         2,
         NIB_BAD_INPUT},
        {{{"m.weight", "F32", 2, {2, 2}, NULL}, {"m.bias", "F32", 1, {2}, nan_bias}},
         2,
         NIB_BAD_INPUT},
        {{{"m.weight", "F32", 2, {2, 2}, NULL}, {"m.bias", "F32", 1, {2}, inf_bias}},
         2,
         NIB_BAD_INPUT},
        {{{"m.weight", "F32", 2, {2, 2}, NULL}, {"m.bias", "F64", 1, {2}, huge}},
         2,
         NIB_BAD_INPUT}, /* overflows f32 */
        {{{"m.weight", "F32", 2, {2, 2}, NULL}, {"m._bias_qdata", "I8", 1, {2}, NULL}},
         2,
         NIB_UNSUPPORTED}, /* for the nibble dialect only */
        {{{"m.weight", "F32", 2, {2, 2}, NULL}, {"m.bias_scale", "F32", 1, {1}, NULL}},
         2,
         NIB_UNSUPPORTED}, /* without codes */
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        made m;
        open_parts(&m, "", cases[i].parts, cases[i].count);
        expect_weight(&m, cases[i].status);
        drop_checkpoint(&m);
    }
}

/* ---- torchao: variants and errors ---- */

#define DTYPE(t) "{\\\"_type\\\":\\\"torch.dtype\\\",\\\"_data\\\":\\\"" t "\\\"}"
#define DESCRIBED(class, data, names)                                                              \
    "\"m.weight\":\"{\\\"_type\\\":\\\"" class "\\\",\\\"_data\\\":{" data                         \
                                               "},\\\"_tensor_data_names\\\":[" names "]}\""
#define INTX(target, block, act)                                                                   \
    DESCRIBED(                                                                                     \
        "IntxUnpackedToInt8Tensor",                                                                \
        "\\\"target_dtype\\\":" DTYPE(                                                             \
            target) ",\\\"block_size\\\":" block                                                   \
                    ",\\\"dtype\\\":" DTYPE("float32") ",\\\"activation_quantization\\\":" act,    \
        "\\\"qdata\\\",\\\"scale\\\",\\\"zero_point\\\"")
#define INT8(data)                                                                                 \
    DESCRIBED("Int8Tensor", "\\\"block_size\\\":[1,4],\\\"dtype\\\":" DTYPE("float32") data,       \
              "\\\"qdata\\\",\\\"scale\\\"")
#define ACT8(mapping)                                                                              \
    ",\\\"act_quant_kwargs\\\":{\\\"_type\\\":\\\"QuantizeTensorToInt8Kwargs\\\",\\\"_data\\\":{"  \
    "\\\"granularity\\\":{\\\"_type\\\":\\\"PerRow\\\",\\\"_data\\\":{\\\"dim\\\":-1}},"           \
    "\\\"mapping_type\\\":{\\\"_type\\\":\\\"MappingType\\\",\\\"_data\\\":\\\"" mapping "\\\"}}}"
#define FLOAT8 DESCRIBED("Float8Tensor", "\\\"block_size\\\":[1,4]", "\\\"qdata\\\",\\\"scale\\\"")
#define INT4(block, shape)                                                                         \
    DESCRIBED("Int4Tensor", "\\\"block_size\\\":" block ",\\\"shape\\\":" shape, "\\\"qdata\\\"")
#define MX(data)                                                                                   \
    DESCRIBED("MXTensor", "\\\"elem_dtype\\\":" DTYPE("float8_e4m3fn") data,                       \
              "\\\"qdata\\\",\\\"scale\\\"")

#define NV(block, data, names)                                                                     \
    DESCRIBED("NVFP4Tensor",                                                                       \
              "\\\"block_size\\\":" block ",\\\"orig_dtype\\\":" DTYPE("bfloat16") data,           \
              names "\\\"qdata\\\",\\\"scale\\\"")
#define TILES(shape, block)                                                                        \
    DESCRIBED("Int4TilePackedTo4dTensor", "\\\"block_size\\\":" block ",\\\"shape\\\":" shape,     \
              "\\\"qdata\\\",\\\"scale_and_zero\\\"")
#define NV_WHOLE NV("16", "", "\\\"per_tensor_scale\\\",")

static const float ones[64] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};

static void test_torchao_scales(void **state)
{
    (void)state;
    const double f64_scales[] = {0.1, 0.25, 1, 2};
    const part parts[] = {{"m._weight_qdata", "I8", 2, {2, 4}, NULL},
                          {"m._weight_scale", "F64", 2, {2, 2}, f64_scales},
                          {"m._weight_zero_point", "I8", 2, {2, 2}, "\0\1\0\0"}};
    made m;
    nib_weight w;
    nib_ledger ledger;
    open_parts(&m, INTX("int4", "[1,2]", "\\\"int8_asym_per_token\\\""), parts, 3);
    nib__ledger_init(&ledger, &m.allocator);
    assert_int_equal(nib__checkpoint_weight(&w, NULL, m.cp, "m", &ledger, NULL), NIB_OK);
    /* One zero point that is not 0 makes the weight asymmetric. */
    assert_int_equal(w.scheme.zero, NIB_ZERO_INT);
    assert_false(w.scheme.symmetric);
    assert_int_equal(w.scheme.act, NIB_ACT_I8_TOKEN);
    assert_int_equal(w.scheme.group, 2);
    assert_true(nib__weight_scale(&w, 1, 1) == 2 && nib__weight_scale(&w, 0, 0) == 0.1f);
    assert_true(nib__weight_zero(&w, 0, 1) == 1);
    assert_int_equal(ledger.tensor_count, 1);
    assert_string_equal(ledger.tensors[0].name, "m._weight_scale");
    assert_true(ledger.tensors[0].max_rel_change > 1e-9);
    nib__ledger_free(&ledger);
    drop_checkpoint(&m);
}

static void test_static(void **state)
{
    (void)state;
    const part parts[] = {{"m.bias", "F32", 1, {2}, NULL},
                          {"m._weight_qdata", "I8", 2, {2, 4}, NULL},
                          {"odd", "U8", 1, {1}, NULL}, /* makes what follows unaligned */
                          {"m._weight_scale", "F32", 2, {2, 1}, ones},
                          {"m._weight_act_quant_scale", "F32", 2, {1, 1}, ones},
                          {"m._weight_act_quant_zero_point", "I8", 2, {1, 1}, "\xfd"}};
    made m;
    nib_weight w;
    open_parts(&m, INT8(""), parts, 6);
    assert_int_equal(nib__checkpoint_weight(&w, NULL, m.cp, "m", NULL, NULL), NIB_OK);
    assert_int_equal(w.scheme.act, NIB_ACT_I8_STATIC);
    assert_false(w.scheme.act_symmetric);
    assert_true(*w.act_scale == 1);
    assert_int_equal(*w.act_zero, -3);
    assert_int_equal((uintptr_t)w.act_scale % sizeof(float), 0);
    drop_checkpoint(&m);
}

static void test_bad_torchao(void **state)
{
    (void)state;
    const float nan_scale[] = {1, 1, NAN, 1}, inf_scale[] = {1, 1, 1, -INFINITY};
    static const uint16_t bf16_nan[4] = {0x3f80, 0x3f80, 0x7f81, 0x3f80},
                          f16_inf[4] = {0x3c00, 0x3c00, 0x3c00, 0xfc00};
    const double wide[] = {1, 1e39, 1, 1};
    const part q = {"m._weight_qdata", "I8", 2, {2, 4}, NULL},
               z = {"m._weight_zero_point", "I8", 2, {2, 2}, NULL};
    const part s = {"m._weight_scale", "F32", 2, {2, 2}, ones},
               row = {"m._weight_scale", "F32", 2, {2, 1}, ones};
    const part mx = {"m._weight_qdata", "F8_E4M3", 2, {1, 64}, NULL};
    const part nv = {"m._weight_qdata", "U8", 2, {2, 16}, NULL},
               nvs = {"m._weight_scale", "F8_E4M3", 2, {2, 2}, NULL};
    const part tiles = {"m._weight_qdata", "I32", 4, {1, 8, 32, 4}, NULL},
               pairs = {"m._weight_scale_and_zero", "BF16", 3, {32, 8, 2}, NULL};
    const char *g2 = INTX("int4", "[1,2]", "null");
    const struct {
        const char *metadata;
        part parts[4];
        size_t count;
        nib_status status;
    } cases[] = {
        {g2, {q, s, z}, 3, NIB_OK},
        {g2, {q, {"m._weight_scale", "F32", 2, {2, 2}, nan_scale}, z}, 3, NIB_BAD_INPUT},
        {g2, {q, {"m._weight_scale", "F32", 2, {2, 2}, inf_scale}, z}, 3, NIB_BAD_INPUT},
        {g2, {q, {"m._weight_scale", "BF16", 2, {2, 2}, bf16_nan}, z}, 3, NIB_BAD_INPUT},
        {g2, {q, {"m._weight_scale", "F16", 2, {2, 2}, f16_inf}, z}, 3, NIB_BAD_INPUT},
        {g2,
         {q, {"m._weight_scale", "F64", 2, {2, 2}, wide}, z},
         3,
         NIB_BAD_INPUT}, /* overflows f32 */
        {g2, {q, {"m._weight_scale", "I32", 2, {2, 2}, NULL}, z}, 3, NIB_BAD_INPUT},
        {g2, {q, {"m._weight_scale", "F8_E4M3", 2, {2, 2}, NULL}, z}, 3, NIB_BAD_INPUT},
        {g2, {q, {"m._weight_scale", "F32", 2, {2, 1}, NULL}, z}, 3, NIB_BAD_INPUT},
        {g2, {q, {"m._weight_scale", "F32", 1, {4}, NULL}, z}, 3, NIB_BAD_INPUT},
        {g2, {q, s}, 2, NIB_BAD_INPUT}, /* zero points are missing */
        {DESCRIBED("Int8Tensor", "\\\"block_size\\\":[1,4],\\\"dtype\\\":" DTYPE("float32"),
                   "\\\"qdata\\\",\\\"scale\\\",\\\"of_tomorrow\\\""),
         {q, row},
         2,
         NIB_UNSUPPORTED},
        {g2, {s, z, {"m._weight_qdata", "I8", 2, {0, 4}, NULL}}, 3, NIB_BAD_INPUT},
        {g2,
         {q, s, {"m._weight_zero_point", "I8", 2, {2, 2}, "\0\0\x08\0"}},
         3,
         NIB_BAD_INPUT}, /* above 7 */
        {g2, {q, s, {"m._weight_zero_point", "I16", 2, {2, 2}, NULL}}, 3, NIB_BAD_INPUT},
        {g2, {q, s, {"m._weight_zero_point", "F32", 2, {2, 2}, NULL}}, 3, NIB_UNSUPPORTED},
        {g2,
         {q, s, z, {"m._weight_act_pre_scale", "F32", 1, {4}, NULL}},
         4,
         NIB_UNSUPPORTED}, /* AWQ */
        {g2, {{"m._weight_qdata", "F32", 2, {2, 4}, NULL}, s, z}, 3, NIB_BAD_INPUT},
        {INTX("int4", "[1,3]", "null"), {q, s, z}, 3, NIB_BAD_INPUT}, /* k is 4 */
        {INTX("int4", "[1,0]", "null"), {q, s, z}, 3, NIB_UNSUPPORTED},
        {INTX("int4", "[2,2]", "null"), {q, s, z}, 3, NIB_UNSUPPORTED},
        {INTX("int4", "[1,-2]", "null"), {q, s, z}, 3, NIB_BAD_INPUT},
        {INTX("int9", "[1,2]", "null"), {q, s, z}, 3, NIB_UNSUPPORTED},
        {INTX("int4", "[1,2]", "\\\"int4_sym\\\""), {q, s, z}, 3, NIB_UNSUPPORTED},
        {INTX("int4", "[1,2]", "null,\\\"new\\\":1"), {q, s, z}, 3, NIB_BAD_INPUT},
        {"\"m.weight\":\"[]\"", {q, s, z}, 3, NIB_UNSUPPORTED}, /* not an object */
        {"\"m.weight\":\"{\"", {q, s, z}, 3, NIB_BAD_INPUT},    /* not JSON */
        {DESCRIBED("Int2Tensor", "", ""), {q, s, z}, 3, NIB_UNSUPPORTED},
        {DESCRIBED("AffineQuantizedTensor", "", ""), /* torchao's first version */
         {q, s, z},
         3,
         NIB_UNSUPPORTED},
        {DESCRIBED("Float8Tensor", "\\\"block_size\\\":[1,4]", "\\\"qdata\\\",\\\"scale\\\""),
         {{"m._weight_qdata", "F8_E4M3FNUZ", 2, {2, 4}, NULL}, row},
         2,
         NIB_BAD_INPUT},
        {g2, {q, {"m._weight_scale", "F16", 2, {2, 2}, NULL}, z}, 3, NIB_OK},
        {g2, {q, {"m._weight_scale", "BF16", 2, {2, 2}, NULL}, z}, 3, NIB_OK},
        {DESCRIBED("Int4TilePackedTo4dTensor", "", ""), {q, s, z}, 3, NIB_BAD_INPUT}, /* not I32 */
        {TILES("[2,64]", "[1,32]"), {tiles, pairs}, 2, NIB_UNSUPPORTED}, /* all 0 fits no layout */
        {TILES("[9,64]", "[1,32]"), {tiles, pairs}, 2, NIB_BAD_INPUT},   /* padded to 8 x 1024 */
        {TILES("[2,1025]", "[1,32]"), {tiles, pairs}, 2, NIB_BAD_INPUT},
        {TILES("[2,64]", "[1,64]"), {tiles, pairs}, 2, NIB_BAD_INPUT}, /* 32 groups per row */
        {TILES("[2,64]", "[1,32]"), {tiles, s}, 2, NIB_BAD_INPUT},     /* no scale_and_zero */
        {INT8(""), {q, row}, 2, NIB_OK},
        {INT8(""), {q, {"m._weight_scale", "F32", 1, {2}, ones}}, 2, NIB_OK}, /* [n] for [n, 1] */
        {INT8(""), {q, {"m._weight_scale", "F32", 2, {1, 2}, ones}}, 2, NIB_BAD_INPUT},
        {INT8(ACT8("SYMMETRIC")), {q, row}, 2, NIB_OK},
        {INT8(ACT8("ASYMMETRIC")), {q, row}, 2, NIB_OK},
        {INT8(ACT8("SYMMETRIC_NO_CLIPPING_ERR")), {q, row}, 2, NIB_UNSUPPORTED},
        {FLOAT8,
         {{"m._weight_qdata", "F8_E4M3", 2, {2, 4}, NULL},
          row,
          {"m._weight_zero_point", "I8", 2, {2, 1}, "\1\0"}},
         3,
         NIB_UNSUPPORTED},
        {INT8(""), {q, row, {"m._weight_act_quant_scale", "F32", 1, {2}, ones}}, 3, NIB_BAD_INPUT},
        {INT8(""), {q, row, {"m._weight_act_quant_scale", "F32", 1, {1}, NULL}}, 3, NIB_BAD_INPUT},
        {MX(",\\\"block_size\\\":32,\\\"is_swizzled_scales\\\":false"),
         {mx, {"m._weight_scale", "F8_E8M0", 2, {1, 2}, NULL}},
         2,
         NIB_OK},
        {MX(",\\\"block_size\\\":32,\\\"is_swizzled_scales\\\":false"),
         {mx, {"m._weight_scale", "F8_E8M0", 2, {1, 2}, "\1\xff"}},
         2,
         NIB_BAD_INPUT},
        {MX(",\\\"block_size\\\":32,\\\"is_swizzled_scales\\\":false"),
         {mx, {"m._weight_scale", "U8", 2, {1, 2}, NULL}},
         2,
         NIB_BAD_INPUT},
        {MX(",\\\"block_size\\\":32,\\\"is_swizzled_scales\\\":true"),
         {mx, {"m._weight_scale", "F8_E8M0", 2, {1, 2}, NULL}},
         2,
         NIB_BAD_INPUT}, /* not the swizzled shape */
        {MX(",\\\"block_size\\\":16,\\\"is_swizzled_scales\\\":false"),
         {mx, {"m._weight_scale", "F8_E8M0", 2, {1, 4}, NULL}},
         2,
         NIB_UNSUPPORTED},
        {NV("16", "", ""), {nv, nvs}, 2, NIB_OK},
        {NV("32", "", ""), {nv, nvs}, 2, NIB_UNSUPPORTED},
        {NV("16", "", ""), {mx, nvs}, 2, NIB_BAD_INPUT}, /* not U8 */
        {NV("16", "", ""),
         {{"m._weight_qdata", "U8", 2, {2, 12}, NULL}, nvs},
         2,
         NIB_BAD_INPUT}, /* k is 24 */
        {NV("16", ",\\\"is_swizzled_scales\\\":true", ""),
         {nv, nvs},
         2,
         NIB_BAD_INPUT}, /* not the swizzled shape */
        {NV("16", "", ""),
         {nv, {"m._weight_scale", "F8_E4M3", 2, {2, 2}, "\1\1\1\x7f"}},
         2,
         NIB_BAD_INPUT},
        {NV("16", ",\\\"act_quant_kwargs\\\":{\\\"_type\\\":\\\"Other\\\",\\\"_data\\\":{}}", ""),
         {nv, nvs},
         2,
         NIB_UNSUPPORTED},
        {NV("16",
            ",\\\"act_quant_kwargs\\\":{\\\"_type\\\":\\\"QuantizeTensorToNVFP4Kwargs\\\","
            "\\\"_data\\\":{\\\"block_size\\\":32}}",
            ""),
         {nv, nvs},
         2,
         NIB_UNSUPPORTED},
        {NV_WHOLE, {nv, nvs}, 2, NIB_BAD_INPUT}, /* no per_tensor_scale */
        {NV_WHOLE, {nv, nvs, {"m._weight_per_tensor_scale", "F32", 1, {1}, ones}}, 3, NIB_OK},
        {NV_WHOLE,
         {nv, nvs, {"m._weight_per_tensor_scale", "F32", 1, {2}, ones}},
         3,
         NIB_BAD_INPUT},
        {NV_WHOLE,
         {nv, nvs, {"m._weight_per_tensor_scale", "F32", 1, {1}, NULL}},
         3,
         NIB_BAD_INPUT},
        {INT4("[1,2]", "[2,8]"),
         {q,
          {"m._weight_scale", "F32", 2, {4, 2}, ones},
          {"m._weight_zero_point", "F32", 2, {4, 2}, NULL}},
         3,
         NIB_OK},
        {INT4("[1,4]", "[2,8]"),
         {q, s, {"m._weight_zero_point", "F32", 2, {2, 2}, nan_scale}},
         3,
         NIB_BAD_INPUT},
        {INT4("[1,2]", "[2,4]"), {q, s, z}, 3, NIB_BAD_INPUT},
        {INT4("[1,2]", "[9223372036854775807,9223372036854775807]"),
         {q, s, z},
         3,
         NIB_BAD_INPUT}, /* overflows */
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        made m;
        open_parts(&m, cases[i].metadata, cases[i].parts, cases[i].count);
        expect_weight(&m, cases[i].status);
        drop_checkpoint(&m);
    }
}

static void test_codes_out_of_range(void **state)
{
    (void)state;
    static const struct {
        const char *bytes;
        bool valid;
    } cases[] = {{"\1\7\xf8\0\1\2\3\4", true},
                 {"\1\7\xf8\0\1\2\3\x09", false},
                 {"\1\7\xf7\0\1\2\3\4", false},
                 {"\x80\7\xf8\0\1\2\3\4", false}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        const part parts[] = {{"m._weight_qdata", "I8", 2, {2, 4}, cases[i].bytes},
                              {"m._weight_scale", "F32", 2, {2, 2}, ones},
                              {"m._weight_zero_point", "I8", 2, {2, 2}, NULL}};
        made m;
        nib_weight w;
        nib_err err = {NIB_OK, ""};
        open_parts(&m, INTX("int4", "[1,2]", "null"), parts, 3);
        assert_int_equal(nib__checkpoint_weight(&w, NULL, m.cp, "m", NULL, NULL), NIB_OK);
        const nib_status got = nib__weight_check_codes(&w, "m", &err);
        if (cases[i].valid)
            assert_int_equal(got, NIB_OK);
        else
            refused(NIB_BAD_INPUT, got, &err);
        drop_checkpoint(&m);
    }
}

/* NaN and infinity in every float type, at every place of a short row; -0 and the largest are fine.
 */
static void test_not_finite(void **state)
{
    (void)state;
    static const struct {
        const char *type;
        int bytes;
        uint32_t bad[3], good[3];
    } cases[] = {
        {"F32", 4, {0x7fc00000, 0xff800000, 0x7f800001}, {0x7f7fffff, 0x80000000, 1}},
        {"F16", 2, {0x7e00, 0xfc00, 0x7c01}, {0x7bff, 0x8000, 1}},
        {"BF16", 2, {0x7fc0, 0xff80, 0x7f81}, {0x7f7f, 0x8000, 1}},
    };
    for (int at = 0; at < 6; at++)
        for (size_t i = 0; i < COUNT(cases); i++)
            for (int v = 0; v < 6; v++) {
                uint8_t data[24] = {0};
                const uint32_t bits = v < 3 ? cases[i].bad[v] : cases[i].good[v - 3];
                for (int b = 0; b < cases[i].bytes; b++)
                    data[at * cases[i].bytes + b] = (uint8_t)(bits >> (8 * b));
                const part parts[] = {{"m.weight", cases[i].type, 2, {2, 3}, data}};
                made m;
                nib_weight w;
                nib_err err = {NIB_OK, ""};
                open_parts(&m, "", parts, 1);
                assert_int_equal(nib__checkpoint_weight(&w, NULL, m.cp, "m", NULL, NULL), NIB_OK);
                const nib_status got = nib__weight_check_codes(&w, "m", &err);
                if (v < 3)
                    refused(NIB_BAD_INPUT, got, &err);
                else
                    assert_int_equal(got, NIB_OK);
                drop_checkpoint(&m);
            }
}

/* NaN codes of e4m3; e5m2 also has infinities. */
static void test_not_finite_fp8(void **state)
{
    (void)state;
    for (int e5m2 = 0; e5m2 < 2; e5m2++)
        for (int code = 0; code < 256; code++) {
            const uint8_t data[4] = {0, 0, (uint8_t)code, 0};
            const part parts[] = {
                {"m._weight_qdata", e5m2 ? "F8_E5M2" : "F8_E4M3", 2, {2, 2}, data},
                {"m._weight_scale", "F32", 2, {2, 1}, ones}};
            made m;
            nib_weight w;
            nib_err err = {NIB_OK, ""};
            open_parts(&m,
                       DESCRIBED("Float8Tensor", "\\\"block_size\\\":[1,2]",
                                 "\\\"qdata\\\",\\\"scale\\\""),
                       parts, 2);
            assert_int_equal(nib__checkpoint_weight(&w, NULL, m.cp, "m", NULL, &err), NIB_OK);
            const float value =
                e5m2 ? nib__e5m2_to_f32((uint8_t)code) : nib__e4m3_to_f32((uint8_t)code);
            assert_int_equal(nib__weight_check_codes(&w, "m", &err),
                             isfinite(value) ? NIB_OK : NIB_BAD_INPUT);
            drop_checkpoint(&m);
        }
}

/* Codes in one shard, scales in another, the description in a third. */
static void test_parts_in_shards(void **state)
{
    (void)state;
    char dir[256];
    nib_weight w;
    nib_err err = {NIB_OK, ""};
    make_directory(dir);
    write_safetensors(
        dir, "a", "{\"m._weight_qdata\":{\"dtype\":\"I8\",\"shape\":[2,4],\"data_offsets\":[0,8]}}",
        NULL, 8);
    write_safetensors(
        dir, "b",
        "{\"m._weight_scale\":{\"dtype\":\"F32\",\"shape\":[2,1],\"data_offsets\":[0,8]}}", ones,
        8);
    write_safetensors(
        dir, "c",
        "{\"__metadata__\":{" INT8(
            "") "},\"m.bias\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}",
        ones, 8);
    write_text(
        dir, "model.safetensors.index.json",
        "{\"weight_map\":{\"m._weight_qdata\":\"a\",\"m._weight_scale\":\"b\",\"m.bias\":\"c\"}}");
    nib_checkpoint *cp = open_ok(dir);
    if (nib__checkpoint_weight(&w, NULL, cp, "m", NULL, &err) != NIB_OK)
        fail_msg("%s", err.text);
    assert_non_null(w.bias);
    assert_true(nib__weight_scale(&w, 1, 0) == 1);
    nib__checkpoint_close(cp);
    drop_directory(dir);
}

/* ---- nibble ---- */

static void test_nibble(void **state)
{
    (void)state;
    static const struct {
        const char *scheme, *codes;
        int64_t row_bytes;
        const char *scales;
        int64_t groups;
        const char *zeros;
    } cases[] = {
        {"8da4w-g32-actsym", "U8", 18, "BF16", 2,
         NULL}, /* 35 = 32 + 3: odd k, a short last group */
        {"8da4w-g32-asym", "U8", 18, "F32", 2, "I8"},
        {"4da4w-g64", "U8", 18, "F32", 1, NULL},
        {"int4wo-g32", "U8", 18, "F32", 2, "F32"},
        {"int4wo-row-tinygemm", "U8", 18, "F32", 1, "F32"},
        {"int8dq-g32", "I8", 35, "F32", 2, NULL},
        {"int8wo-tensor", "I8", 35, "F32", 1, NULL},
        {"8da4w-g32-static", "U8", 18, "F32", 2, NULL},
        {"fp8wo", "F8_E4M3", 35, "F32", 1, NULL},
        {"mxfp8-floor", "F8_E4M3", 35, "F8_E8M0", 2, NULL},
        {"8da4w-g32-ao017", "U8", 18, "F32", 2, NULL},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        char metadata[1024], name[64];
        uint8_t scales[64];
        memset(scales, 1, sizeof scales);
        const bool one = strstr(cases[i].scheme, "-tensor") != NULL;
        part parts[5] = {
            {"m._weight_scale", cases[i].scales, 2, {one ? 1 : 2, cases[i].groups}, scales},
            {"m._weight_qdata", cases[i].codes, 2, {2, cases[i].row_bytes}, "\x21\x43\xf8"},
            {"m.input_scale", "F32", 1, {1}, ones},
            {"m.input_zero_point", "I32", 1, {1}, NULL}};
        uint8_t codes[80] = {0x21, 0x43, 0xf8};
        parts[1].data = codes;
        const float float_zeros[4] = {1, 2, 3, 4};
        if (cases[i].zeros != NULL)
            parts[4] = (part){"m._weight_zero_point",
                              cases[i].zeros,
                              2,
                              {2, cases[i].groups},
                              cases[i].zeros[0] == 'F' ? (const void *)float_zeros
                                                       : (const void *)"\1\2\3\4"};
        made m;
        nib_weight w;
        nib_err err = {NIB_OK, ""};
        describe_nibble(metadata, cases[i].scheme, 2, 35);
        open_parts(&m, metadata, parts, cases[i].zeros == NULL ? 4 : 5);
        if (nib__checkpoint_weight(&w, NULL, m.cp, "m", NULL, &err) != NIB_OK)
            fail_msg("%s: %s", cases[i].scheme, err.text);
        assert_string_equal(nib__scheme_name(name, &w.scheme), cases[i].scheme);
        assert_string_equal(nib__checkpoint_dialect(m.cp, "m"), "nibble");
        assert_int_equal(w.k, 35);
        int8_t first[4];
        nib__weight_codes(&w, 0, 0, 4, first);
        if (cases[i].row_bytes == 18) { /* the low nibble first */
            assert_int_equal(first[0], 1);
            assert_int_equal(first[1], 2);
            assert_int_equal(first[3], 4);
        }
        assert_true((w.act_scale != NULL) == (w.scheme.act == NIB_ACT_I8_STATIC));
        drop_checkpoint(&m);
    }
}

static void test_bad_nibble(void **state)
{
    (void)state;
    static const struct {
        const char *from, *to;
        nib_status status;
    } cases[] = {
        {"\\\"i4\\\"", "\\\"i9\\\"", NIB_UNSUPPORTED},
        {"\\\"i4\\\"", "\\\"nv4\\\"", NIB_BAD_INPUT}, /* in groups of 32, not 16 */
        {"\\\"group\\\": 32", "\\\"group\\\": 0", NIB_BAD_INPUT},
        {"\\\"none\\\"", "\\\"int\\\"", NIB_BAD_INPUT}, /* zero points are missing */
        {"[2, 35]", "[2, 37]", NIB_BAD_INPUT},
        {"[2, 35]", "[0, 35]", NIB_BAD_INPUT},
        {"[2, 35]", "[2, 0]", NIB_BAD_INPUT},
        {"\\\"i4\\\"", "\\\"f32\\\"", NIB_UNSUPPORTED}, /* not a quantized code */
        {"\\\"i4\\\"", "\\\"e4m3\\\"", NIB_BAD_INPUT},  /* the codes are U8 */
        {"[2, 35]", "[2, 9223372036854775807]", NIB_BAD_INPUT},
        {"\\\"act\\\"", "\\\"acts\\\"", NIB_BAD_INPUT},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        char metadata[1024], changed[1100];
        const part parts[] = {{"m._weight_scale", "F32", 2, {2, 2}, ones},
                              {"m._weight_qdata", "U8", 2, {2, 18}, NULL}};
        made m;
        describe_nibble(metadata, "8da4w-g32-actsym", 2, 35);
        const char *at = strstr(metadata, cases[i].from);
        assert_non_null(at);
        snprintf(changed, sizeof changed, "%.*s%s%s", (int)(at - metadata), metadata, cases[i].to,
                 at + strlen(cases[i].from));
        open_parts(&m, changed, parts, 2);
        expect_weight(&m, cases[i].status);
        drop_checkpoint(&m);
    }
}

/* Tensors beside the codes that the description has or lacks. */
static void test_nibble_parts(void **state)
{
    (void)state;
    const float nan_scale[] = {NAN};
    const part nv[] = {{"m._weight_qdata", "U8", 2, {2, 16}, NULL},
                       {"m._weight_scale", "F8_E4M3", 2, {2, 2}, NULL}},
               fp8[] = {{"m._weight_qdata", "F8_E4M3", 2, {2, 32}, NULL},
                        {"m._weight_scale", "F32", 2, {2, 1}, ones}},
               int8[] = {{"m._weight_qdata", "I8", 2, {2, 32}, NULL},
                         {"m._weight_scale", "F32", 2, {2, 1}, ones}};
    const part times = {"m._weight_per_tensor_scale", "F32", 1, {1}, ones},
               divides = {"m._weight_per_tensor_divisor", "F32", 1, {1}, ones},
               not_finite = {"m._weight_per_tensor_scale", "F32", 1, {1}, nan_scale},
               zeros = {"m._weight_zero_point", "I8", 2, {2, 1}, NULL},
               flat_zeros = {"m._weight_zero_point", "I8", 1, {2}, NULL};
    const struct {
        const char *scheme;
        part parts[4];
        size_t count;
        nib_status status;
    } rows[] = {
        {"nvfp4", {nv[0], nv[1], times}, 3, NIB_OK},
        {"nvfp4", {nv[0], nv[1], divides}, 3, NIB_OK},
        {"nvfp4", {nv[0], nv[1]}, 2, NIB_OK}, /* block scales only */
        {"nvfp4", {nv[0], nv[1], times, divides}, 4, NIB_BAD_INPUT},
        {"nvfp4", {nv[0], nv[1], not_finite}, 3, NIB_BAD_INPUT},
        {"fp8wo", {fp8[0], fp8[1]}, 2, NIB_OK},
        {"fp8wo", {fp8[0], fp8[1], times}, 3, NIB_BAD_INPUT},
        {"fp8wo", {fp8[0], fp8[1], divides}, 3, NIB_BAD_INPUT},
        {"int8wo", {int8[0], int8[1], zeros}, 3, NIB_BAD_INPUT},
        {"int8wo-asym", {int8[0], int8[1], zeros}, 3, NIB_OK},
        {"int8wo-asym", {int8[0], int8[1], flat_zeros}, 3, NIB_BAD_INPUT},
        {"int8wo-asym", {int8[0], int8[1]}, 2, NIB_BAD_INPUT},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        char metadata[1024];
        made m;
        describe_nibble(metadata, rows[i].scheme, 2, 32);
        open_parts(&m, metadata, rows[i].parts, rows[i].count);
        expect_weight(&m, rows[i].status);
        drop_checkpoint(&m);
    }
}

/* f64 scales and zero points are written as f32. */
static void test_nibble_types(void **state)
{
    (void)state;
    char why[160];
    nib_output_weight w = {.scheme = {.code = NIB_CODE_I4, .zero = NIB_ZERO_FLOAT, .group = 32},
                           .scale_type = NIB_TYPE_F64,
                           .zero_type = NIB_TYPE_F64};
    assert_null(nib__write_nibble.fit(why, &w));
    assert_true(w.scale_type == NIB_TYPE_F32 && w.zero_type == NIB_TYPE_F32);
    nib_file_layout layout;
    w.scheme = (nib_scheme){.code = NIB_CODE_NV4, .group = 16};
    for (int divides = 0; divides < 2; divides++) {
        w.tensor_divides = divides != 0;
        nib__write_nibble.layout(&layout, &w);
        assert_string_equal(layout.tensor.suffix,
                            divides ? "._weight_per_tensor_divisor" : "._weight_per_tensor_scale");
    }
}

/* Columns in act-order: every input occurs once, and the description records the order. */
static void test_nibble_order(void **state)
{
    (void)state;
    static const int32_t good[5] = {4, 2, 0, 1, 3}, twice[5] = {4, 2, 0, 2, 3},
                         beyond[5] = {4, 2, 5, 1, 3}, before[5] = {4, 2, -1, 1, 3};
    static const struct {
        const int32_t *order;
        int64_t count;
        bool said;
        nib_status status;
    } rows[] = {
        {good, 5, true, NIB_OK},
        {good, 5, false, NIB_BAD_INPUT}, /* not described as ordered */
        {good, 4, true, NIB_BAD_INPUT},
        {NULL, 0, true, NIB_BAD_INPUT},
        {twice, 5, true, NIB_BAD_INPUT},
        {beyond, 5, true, NIB_BAD_INPUT},
        {before, 5, true, NIB_BAD_INPUT},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        char metadata[1024], changed[1100];
        made m;
        describe_nibble(metadata, "int8wo-g4", 1, 5);
        const char *at = strstr(metadata, "\\\"shape");
        assert_non_null(at);
        snprintf(changed, sizeof changed, "%.*s%s%s", (int)(at - metadata), metadata,
                 rows[i].said ? "\\\"act_order\\\": true, " : "", at);
        const part parts[] = {
            {"m._weight_qdata", "I8", 2, {1, 5}, "\1\2\3\4\5"},
            {"m._weight_scale", "F32", 2, {1, 2}, ones},
            {"m._weight_input_order", "I32", 1, {rows[i].count}, rows[i].order},
        };
        open_parts(&m, changed, parts, rows[i].order == NULL ? 2 : 3);
        expect_weight(&m, rows[i].status);
        drop_checkpoint(&m);
    }
}

/* Scales and zeros are checked with the same result by any number of workers. */
static void test_workers(void **state)
{
    (void)state;
    enum { N = 20000, K = 4, GROUPS = 2 };
    const nib_allocator a = nib__allocator_default();
    float *scales = malloc(N * GROUPS * sizeof *scales);
    int8_t *zeros = calloc(N * GROUPS, 1);
    assert_true(scales != NULL && zeros != NULL);
    for (int i = 0; i < N * GROUPS; i++)
        scales[i] = 1;
    nib_pool *pool;
    assert_int_equal(nib__pool_open(&pool, 2, &a, NULL), NIB_OK);
    for (int i = 0; i < 3; i++) { /* valid; then a zero point, then a NaN, at the end */
        if (i == 1)
            zeros[N * GROUPS - 1] = 3;
        else if (i == 2)
            scales[N * GROUPS - 2] = NAN;
        const part parts[] = {{"m._weight_qdata", "I8", 2, {N, K}, NULL},
                              {"m._weight_scale", "F32", 2, {N, GROUPS}, scales},
                              {"m._weight_zero_point", "I8", 2, {N, GROUPS}, zeros}};
        for (int workers = 0; workers < 2; workers++) {
            made m;
            nib_weight w;
            nib_err err;
            open_parts(&m, INTX("int4", "[1,2]", "null"), parts, 3);
            nib__checkpoint_use_pool(m.cp, workers != 0 ? pool : NULL);
            const nib_status got = nib__checkpoint_weight(&w, NULL, m.cp, "m", NULL, &err);
            if (i < 2) {
                assert_int_equal(got, NIB_OK);
                assert_int_equal(w.scheme.zero, i == 0 ? NIB_ZERO_NONE : NIB_ZERO_INT);
            } else
                refused(NIB_BAD_INPUT, got, &err);
            drop_checkpoint(&m);
        }
    }
    nib__pool_close(pool);
    free(scales);
    free(zeros);
}

static void test_nibble_version(void **state)
{
    (void)state;
    const nib_allocator a = nib__allocator_default();
    char dir[256], path[300];
    nib_checkpoint *cp;
    nib_err err;
    make_directory(dir);
    write_safetensors(dir, "x", "{\"__metadata__\":{\"nibble\":\"2\"}}", NULL, 0);
    snprintf(path, sizeof path, "%s/x", dir);
    refused(NIB_UNSUPPORTED, nib__checkpoint_open(&cp, path, &a, &err), &err);
    drop_directory(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_workers),
        cmocka_unit_test(test_torchao_golden),
        cmocka_unit_test(test_plain),
        cmocka_unit_test(test_f64),
        cmocka_unit_test(test_f64_too_large),
        cmocka_unit_test(test_large_f64),
        cmocka_unit_test(test_alias),
        cmocka_unit_test(test_bad_plain),
        cmocka_unit_test(test_long_names),
        cmocka_unit_test(test_torchao_scales),
        cmocka_unit_test(test_static),
        cmocka_unit_test(test_bad_torchao),
        cmocka_unit_test(test_codes_out_of_range),
        cmocka_unit_test(test_not_finite),
        cmocka_unit_test(test_not_finite_fp8),
        cmocka_unit_test(test_parts_in_shards),
        cmocka_unit_test(test_nibble),
        cmocka_unit_test(test_nibble_parts),
        cmocka_unit_test(test_nibble_types),
        cmocka_unit_test(test_bad_nibble),
        cmocka_unit_test(test_nibble_order),
        cmocka_unit_test(test_nibble_version),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
