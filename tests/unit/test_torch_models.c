/* SPDX-License-Identifier: Apache-2.0
 *
 * Quantized models as PyTorch programs store them: the logits that torchao and transformers compute
 * from the same state dict, int4 as aten packs it for each machine, and errors.
 */
#include "checkpoint_build.h"
#include "failing.h"
#include "session.h"

#include <math.h>

/* ---- logits ---- */

/* The largest max|a - b| / max|b| over positions, except for `flips` positions, where sums in
 * another order round an activation's code the other way: those stay below 2e-2. */
static double check_sequence(nib_session *s, const nib_checkpoint *golden, int i, int flips)
{
    char name[32];
    const nib_tensor *parts[2];
    for (int p = 0; p < 2; p++) {
        snprintf(name, sizeof name, "%s.%d", p == 0 ? "tokens" : "logits", i);
        parts[p] = nib__checkpoint_find(golden, name);
        assert_non_null(parts[p]);
    }
    const int32_t *tokens = (const void *)parts[0]->data;
    const float *want = (const void *)parts[1]->data, *got;
    const int64_t count = parts[1]->shape[0], vocab = parts[1]->shape[1];
    double worst = 0;
    nib_err err;
    nib_slot slots[64];
    assert_true(count <= 64);
    for (int64_t t = 0; t < count; t++)
        slots[t] = (nib_slot){0, (int32_t)t, tokens[t], NIB_SLOT_LOGITS};
    assert_int_equal(nib_session_truncate(s, 0, 0, NULL), NIB_OK);
    assert_int_equal(nib_session_step(s, slots, (size_t)count, &got, &err), NIB_OK);
    for (int64_t t = 0; t < count; t++) {
        double off = 0, size = 0;
        for (int64_t v = 0; v < vocab; v++) {
            off = fmax(off, fabs((double)got[t * vocab + v] - (double)want[t * vocab + v]));
            size = fmax(size, fabs((double)want[t * vocab + v]));
        }
        if (off / size > 1e-5 && off / size < 2e-2 && flips > 0)
            flips--;
        else
            worst = fmax(worst, off / size);
    }
    return worst;
}

static void test_logits(void **state)
{
    (void)state;
    static const struct {
        const char *directory, *file;
        int flips;
    } cases[] = {{"8da4w_bias", "", 0},
                 {"8da4w_plain", "", 0},
                 {"meta", "", 1},
                 {"meta", "/consolidated.00.pth", 1},
                 {"meta_float", "", 0},
                 {"gptfast_int8", "/model_int8.pth", 0},
                 {"gptfast_int4", "/model_int4.g32.pth", 0}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        char path[200];
        snprintf(path, sizeof path, "tests/golden/torch/%s/logits.safetensors", cases[i].directory);
        nib_checkpoint *golden = open_ok(path);
        snprintf(path, sizeof path, "tests/golden/torch/%s%s", cases[i].directory, cases[i].file);
        opened o = must_open(&(open_how){.path = path, .dtype = "f32"});
        for (int s = 0; s < 2; s++) {
            const double error = check_sequence(o.session, golden, s, cases[i].flips);
            if (!(error <= 1e-5))
                fail_msg("%s, sequence %d: relative error %g", path, s, error);
        }
        close_opened(&o);
        nib__checkpoint_close(golden);
    }
}

/* ---- shards ---- */

static void test_shards(void **state)
{
    (void)state;
    nib_checkpoint *cp = open_ok("tests/golden/torch/shards");
    assert_int_equal(nib__checkpoint_count(cp), 2);
    assert_int_equal(nib__checkpoint_ledger(cp)->note_count, 0);
    assert_string_equal(nib__checkpoint_container(cp), "pytorch");
    assert_string_equal(nib__checkpoint_alias(cp, "lm_head.weight")->value,
                        "model.embed_tokens.weight");
    assert_int_equal(nib__checkpoint_find(cp, "model.norm.weight")->file, 1);
    nib__checkpoint_close(cp);
}

/* ---- tinygemm ---- */

static void test_tinygemm(void **state)
{
    (void)state;
    static const struct {
        const char *module;
        nib_code_layout layout;
    } cases[] = {
        {"plain.cuda", NIB_LAYOUT_TINYGEMM_CUDA},      {"plain.rocm", NIB_LAYOUT_TINYGEMM_ROCM},
        {"plain.avx512", NIB_LAYOUT_TINYGEMM_AVX512},  {"plain.avx2", NIB_LAYOUT_TINYGEMM_AVX2},
        {"plain.default", NIB_LAYOUT_TINYGEMM_SCALAR}, {"small.cuda", NIB_LAYOUT_TINYGEMM_CUDA},
        {"small.rocm", NIB_LAYOUT_TINYGEMM_ROCM},      {"small.avx512", NIB_LAYOUT_COUNT},
        {"small.avx2", NIB_LAYOUT_TINYGEMM_AVX2},      {"small.default", NIB_LAYOUT_COUNT},
        {"middle.cuda", NIB_LAYOUT_TINYGEMM_CUDA},     {"middle.rocm", NIB_LAYOUT_TINYGEMM_ROCM},
    };
    nib_checkpoint *cp = open_ok("tests/golden/torch/tinygemm.safetensors");
    nib_err err;
    for (size_t i = 0; i < COUNT(cases); i++) {
        nib_weight w;
        char name[32];
        snprintf(name, sizeof name, "%.*s.value", (int)strcspn(cases[i].module, "."),
                 cases[i].module);
        const nib_tensor *value = nib__checkpoint_find(cp, name);
        if (nib__checkpoint_weight(&w, NULL, cp, cases[i].module, NULL, &err) != NIB_OK)
            fail_msg("%s", err.text);
        assert_string_equal(nib__checkpoint_dialect(cp, cases[i].module), "gpt-fast");
        if (cases[i].layout != NIB_LAYOUT_COUNT)
            assert_int_equal(w.layout, cases[i].layout);
        assert_int_equal(w.n, value->shape[0]);
        assert_int_equal(w.k, value->shape[1]);
        assert_int_equal(w.scheme.group, 32);
        assert_int_equal(w.scheme.zero, NIB_ZERO_FLOAT);
        for (int64_t r = 0; r < w.n; r++) {
            float row[128];
            nib__weight_row(&w, r, row);
            assert_memory_equal(row, value->data + (size_t)(r * w.k) * sizeof *row,
                                (size_t)w.k * sizeof *row);
        }
    }
    nib_weight w;
    refused(NIB_UNSUPPORTED, nib__checkpoint_weight(&w, NULL, cp, "noise", NULL, &err), &err);
    nib__checkpoint_close(cp);
}

/* ---- errors ---- */

/* For a module m with codes [4][64] of zeros, in groups of 32. */
static void test_rejects_bad_tensors(void **state)
{
    (void)state;
    static const float ones[12] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}, half[8] = {0.5F},
                       nine[8] = {9}, negative[8] = {0, 0, 0, -9}, nan_zero[8] = {NAN},
                       beyond[8] = {0, 128};
    static const part parts[] = {{"m.weight", "I8", 2, {4, 64}, NULL},
                                 {"m.scales", "F32", 2, {4, 2}, ones},
                                 {NULL},
                                 {"n.zeros", "F32", 2, {4, 2}, NULL}};
    static const change changes[] = {
        {2, {"m.zeros", "F32", 2, {4, 2}, half}, NIB_BAD_INPUT},
        {2, {"m.zeros", "F32", 2, {4, 2}, nine}, NIB_BAD_INPUT},
        {2, {"m.zeros", "F32", 2, {4, 2}, negative}, NIB_BAD_INPUT},
        {2, {"m.zeros", "F32", 2, {4, 2}, nan_zero}, NIB_BAD_INPUT},
        {2, {"m.zeros", "F32", 2, {4, 2}, beyond}, NIB_BAD_INPUT},
        {2, {"m.zeros", "F32", 1, {8}, NULL}, NIB_BAD_INPUT},
        {2, {"m.zeros", "I64", 2, {4, 2}, NULL}, NIB_BAD_INPUT},
        {2, {"m.bias", "I32", 1, {4}, NULL}, NIB_BAD_INPUT},
        {2, {"m.bias", "F32", 1, {3}, NULL}, NIB_BAD_INPUT},
        {2, {"m.adaptor.A.weight", "F32", 2, {1, 64}, NULL}, NIB_UNSUPPORTED},
        {2, {"m.adaptor.B.weight", "F32", 2, {4, 1}, NULL}, NIB_UNSUPPORTED},
        {2, {"m.lora_a.weight", "F32", 2, {1, 64}, NULL}, NIB_UNSUPPORTED},
        {2, {"m.lora_b.weight", "F32", 2, {4, 1}, NULL}, NIB_UNSUPPORTED},
        {1, {"m.scales", "F32", 2, {4, 3}, ones}, NIB_BAD_INPUT},
        {1, {"m.scales", "F32", 2, {2, 4}, ones}, NIB_BAD_INPUT},
        {1, {"m.scales", "I8", 2, {4, 2}, NULL}, NIB_BAD_INPUT},
        {1, {"m.scales", "F32", 1, {5}, ones}, NIB_BAD_INPUT},
        {1, {"m.scales", "F32", 3, {4, 2, 1}, ones}, NIB_BAD_INPUT},
        {1, {"m.scales", "F32", 0, {0}, ones}, NIB_BAD_INPUT},
    };
    expect_changes(NULL, parts, COUNT(parts), changes, COUNT(changes));
}

/* The activations of each layer of Meta's model: the embedding has none. */
static void test_meta_activations(void **state)
{
    (void)state;
    static const struct {
        const char *module;
        nib_code code;
        nib_act act;
    } rows[] = {{"model.embed_tokens", NIB_CODE_I8, NIB_ACT_FLOAT},
                {"model.layers.0.mlp.up_proj", NIB_CODE_I4, NIB_ACT_I8_TOKEN},
                {"lm_head", NIB_CODE_I8, NIB_ACT_I8_TOKEN}};
    nib_checkpoint *cp = open_ok("tests/golden/torch/meta");
    for (size_t i = 0; i < COUNT(rows); i++) {
        nib_weight w;
        nib_err err;
        if (nib__checkpoint_weight(&w, NULL, cp, rows[i].module, NULL, &err) != NIB_OK)
            fail_msg("%s", err.text);
        assert_int_equal(w.scheme.code, rows[i].code);
        assert_int_equal(w.scheme.act, rows[i].act);
    }
    nib__checkpoint_close(cp);
}

/* Scales, zero points and bias of f64 are read by value. */
static void test_f64(void **state)
{
    (void)state;
    int8_t codes[4 * 64];
    double scales[8], zeros[8], bias[4] = {16, -17, 0.5, 1};
    for (int i = 0; i < 4 * 64; i++)
        codes[i] = (int8_t)(i % 16 - 8);
    for (int i = 0; i < 8; i++)
        scales[i] = 0.25 * (i + 1), zeros[i] = i - 4;
    const part parts[] = {{"m.weight", "I8", 2, {4, 64}, codes},
                          {"m.scales", "F64", 2, {4, 2}, scales},
                          {"m.zeros", "F64", 2, {4, 2}, zeros},
                          {"m.bias", "F64", 1, {4}, bias}};
    made m;
    nib_weight w;
    float row[64], values[4];
    assert_int_equal(make_checkpoint(&m, NULL, parts, COUNT(parts)), NIB_OK);
    if (nib__checkpoint_weight(&w, NULL, m.cp, "m", NULL, &m.err) != NIB_OK)
        fail_msg("%s", m.err.text);
    assert_int_equal(w.scheme.zero, NIB_ZERO_INT);
    assert_int_equal(w.zero_type, NIB_TYPE_I8);
    assert_int_equal(w.float_zeros, NIB_TYPE_F64); /* read in place */
    assert_int_equal(w.scheme.group, 32);
    assert_int_equal(w.scheme.act, NIB_ACT_I8_TOKEN);
    for (int i = 0; i < 4; i++) {
        nib__weight_row(&w, i, row);
        for (int j = 0; j < 64; j++) {
            const int g = 2 * i + j / 32;
            assert_true(row[j] == (float)((codes[i * 64 + j] - zeros[g]) * scales[g]));
        }
    }
    nib__weight_bias(&w, values);
    for (int i = 0; i < 4; i++)
        assert_true(values[i] == (float)bias[i]);
    drop_checkpoint(&m);
}

/* Zero points that two modules share belong to both; they imply int4 where one group fills the row.
 * What is converted from a shared tensor for one module serves the other. */
static void test_shared_parts(void **state)
{
    (void)state;
    static const char shared[] =
        "{\"__metadata__\":{\"b.zeros\":\"a.zeros\"},"
        "\"a.weight\":{\"dtype\":\"I8\",\"shape\":[1,8],\"data_offsets\":[0,8]},"
        "\"b.weight\":{\"dtype\":\"I8\",\"shape\":[1,8],\"data_offsets\":[8,16]},"
        "\"a.scales\":{\"dtype\":\"F32\",\"shape\":[1,1],\"data_offsets\":[16,20]},"
        "\"a.zeros\":{\"dtype\":\"F32\",\"shape\":[1,1],\"data_offsets\":[20,24]},"
        "\"b.scales\":{\"dtype\":\"F32\",\"shape\":[1,1],\"data_offsets\":[24,28]}}";
    static const float numbers[] = {2, 3, 4}; /* scale, zero, scale */
    uint8_t data[28];
    char dir[256], path[300];
    memset(data, 5, 16);
    memcpy(data + 16, numbers, sizeof numbers);
    make_directory(dir);
    write_safetensors(dir, "m.safetensors", shared, data, sizeof data);
    snprintf(path, sizeof path, "%s/m.safetensors", dir);
    nib_checkpoint *cp = open_ok(path);
    for (int m = 0; m < 2; m++) {
        nib_weight w;
        float row[8];
        nib_err err;
        if (nib__checkpoint_weight(&w, NULL, cp, m == 0 ? "a" : "b", NULL, &err) != NIB_OK)
            fail_msg("%s", err.text);
        assert_int_equal(w.scheme.code, NIB_CODE_I4);
        assert_int_equal(w.scheme.act, NIB_ACT_I8_TOKEN);
        nib__weight_row(&w, 0, row);
        assert_float_equal(row[7], (5 - 3) * (m == 0 ? 2 : 4), 0);
    }
    nib__checkpoint_close(cp);
    drop_directory(dir);
}

/* A q without elements, whose rows times 8 overflow to -2^44, must not shift the start of k's
 * scales. */
static void test_empty_shared_tensor(void **state)
{
    (void)state;
#define K "model.layers.0.self_attn."
    static const char header[] =
        "{\"" K "q_proj.weight\":{\"dtype\":\"I32\",\"shape\":[2305840810190438400,0,32,4],"
        "\"data_offsets\":[0,0]},"
        "\"" K "k_proj.weight\":{\"dtype\":\"I32\",\"shape\":[1,1,32,4],"
        "\"data_offsets\":[0,512]},"
        "\"" K "k_proj.scales_and_zeros\":{\"dtype\":\"BF16\",\"shape\":[4,64,2],"
        "\"data_offsets\":[512,1536]}}";
    static const uint8_t data[1536] = {0};
    char dir[256], path[300];
    nib_weight w;
    nib_err err = {NIB_OK, ""};
    make_directory(dir);
    write_safetensors(dir, "m.safetensors", header, data, sizeof data);
    snprintf(path, sizeof path, "%s/m.safetensors", dir);
    nib_checkpoint *cp = open_ok(path);
    refused(NIB_UNSUPPORTED, nib__checkpoint_weight(&w, NULL, cp, K "k_proj", NULL, &err), &err);
    nib__checkpoint_close(cp);
    drop_directory(dir);
#undef K
}

/* int4 in packed words: columns that contradict the other layers, and a NaN among this module's
 * scales in a fused weight. */
static void test_rejects_bad_packed_int4(void **state)
{
    (void)state;
    static const part padded[] = {{"model.embed_tokens.weight", "BF16", 2, {3, 40}, NULL},
                                  {"m.weight", "I32", 4, {1, 64, 32, 1}, NULL},
                                  {"m.scales_and_zeros", "F32", 3, {8, 8, 2}, NULL}};
    expect_module(NULL, padded, COUNT(padded), NIB_BAD_INPUT);
#define LARGE INT64_C(0x10000000000)
    static const part shapes[] = {{"m.weight", "I32", 4, {0, 1, 32, 1}, NULL},
                                  {"m.weight", "I32", 4, {1, 0, 32, 1}, NULL},
                                  {"m.weight", "I32", 4, {1, 1, 31, 1}, NULL},
                                  {"m.weight", "I32", 4, {1, 1, 32, 3}, NULL},
                                  {"m.weight", "U8", 2, {0, 16}, NULL},
                                  {"m.weight", "U8", 2, {24, 16}, NULL},
                                  {"m.weight", "U8", 2, {16, 0}, NULL},
                                  {"m.weight", "I32", 4, {LARGE, 0, 32, 1}, NULL},
                                  {"m.weight", "I32", 4, {1, LARGE, 0, 1}, NULL}};
    for (size_t i = 0; i < COUNT(shapes); i++) {
        const part parts[] = {shapes[i], padded[2]};
        expect_module(NULL, parts, COUNT(parts), NIB_BAD_INPUT);
    }
    static const struct { /* beside codes of 8 rows of 2,048 columns */
        part by;
        nib_status status;
    } others[] = {
        {{"m.scales_and_zeros", "F32", 2, {32, 8}, NULL}, NIB_BAD_INPUT},
        {{"m.scales_and_zeros", "F32", 3, {32, 8, 3}, NULL}, NIB_BAD_INPUT},
        {{"m.scales_and_zeros", "F32", 3, {0, 8, 2}, NULL}, NIB_BAD_INPUT},
        {{"m.scales_and_zeros", "I32", 3, {32, 8, 2}, NULL}, NIB_BAD_INPUT},
        {{"m.scales_and_zeros", "F32", 3, {32, 7, 2}, NULL}, NIB_BAD_INPUT},
        {{"m.scales_and_zeros", "F32", 3, {3, 8, 2}, NULL}, NIB_BAD_INPUT},
        {{"m.scales_and_zeros", "F32", 3, {256, 8, 2}, NULL}, NIB_UNSUPPORTED}, /* groups of 8 */
        {{"m.scales_and_zeros", "F32", 3, {4, 8, 2}, NULL}, NIB_UNSUPPORTED},   /* of 512 */
        {{"m.scales_and_zeros", "F32", 3, {32, 8, 2}, NULL}, NIB_UNSUPPORTED},  /* no layout fits */
    };
    for (size_t i = 0; i < COUNT(others); i++) {
        const part parts[] = {{"m.weight", "I32", 4, {1, 64, 32, 1}, NULL}, others[i].by};
        expect_module(NULL, parts, COUNT(parts), others[i].status);
    }
    float pairs[24 * 2];
    for (int i = 0; i < 24; i++)
        pairs[2 * i] = 1, pairs[2 * i + 1] = i == 19 ? NAN : 0; /* row 3 of v */
    const part fused[] = {{"a.q_proj.weight", "I32", 4, {1, 1, 32, 1}, NULL},
                          {"a.k_proj.weight", "I32", 4, {1, 1, 32, 1}, NULL},
                          {"a.v_proj.weight", "I32", 4, {1, 1, 32, 1}, NULL},
                          {"a.k_proj.scales_and_zeros", "F32", 3, {1, 24, 2}, pairs},
                          {"a.v_proj.scales_and_zeros", "F32", 3, {1, 24, 2}, pairs}};
    made m;
    nib_weight w;
    assert_int_equal(make_checkpoint(&m, NULL, fused, COUNT(fused)), NIB_OK);
    refused(NIB_BAD_INPUT, nib__checkpoint_weight(&w, NULL, m.cp, "a.v_proj", NULL, &m.err),
            &m.err);
    /* codes of zeros match no machine's layout */
    refused(NIB_UNSUPPORTED, nib__checkpoint_weight(&w, NULL, m.cp, "a.k_proj", NULL, &m.err),
            &m.err);
    drop_checkpoint(&m);
}

/* Two machines' layouts that fit equally well: neither is guessed. Every word has both extremes and
 * one mean for 16 rows, so its row among them does not matter. */
static void test_ambiguous_machine(void **state)
{
    (void)state;
    enum { ROWS = 32, WORDS = ROWS / 8 * 32 };
    uint32_t words[WORDS];
    float pairs[ROWS * 2];
    for (int row = 0; row < ROWS; row++) {
        pairs[2 * row] = 1;
        pairs[2 * row + 1] = row < 16 ? -3 : 3; /* the value of code 8 */
    }
    for (int i = 0; i < WORDS; i++) { /* the byte with the extremes varies */
        const uint32_t middle = i < WORDS / 2 ? 0xbbbbbbbbU : 0x44444444U;
        const int shift = i % 3 * 8;
        words[i] = (middle & ~(0xffU << shift)) | 0xf0U << shift;
    }
    const part parts[] = {{"m.weight", "I32", 4, {ROWS / 8, 1, 32, 1}, words},
                          {"m.scales_and_zeros", "F32", 3, {1, ROWS, 2}, pairs}};
    expect_module(NULL, parts, COUNT(parts), NIB_UNSUPPORTED);
    for (int i = 0; i < WORDS; i++) /* now some means differ */
        words[i] ^= i % 7 == 0 ? 0x10000000U : 0;
    expect_module(NULL, parts, COUNT(parts), NIB_UNSUPPORTED);
}

/* Each allocation from opening to the last weight fails once; nothing leaks. */
static void test_no_memory(void **state)
{
    (void)state;
    static const char *const paths[] = {"tests/golden/torch/8da4w_plain",
                                        "tests/golden/torch/gptfast_int4/model_int4.g32.pth"};
    for (size_t p = 0; p < COUNT(paths); p++) {
        nib_status status = NIB_NO_MEMORY;
        for (int left = 0; status != NIB_OK; left++) {
            failing f = {left, 0};
            const nib_allocator a = failing_allocator(&f);
            nib_checkpoint *cp = NULL;
            nib_err err;
            status = nib__checkpoint_open(&cp, paths[p], &a, &err);
            for (size_t i = 0; cp != NULL && i < nib__checkpoint_module_count(cp); i++) {
                nib_weight w;
                if (status == NIB_OK)
                    status = nib__checkpoint_weight(&w, NULL, cp, nib__checkpoint_module(cp, i),
                                                    NULL, &err);
            }
            if (status != NIB_OK && status != NIB_NO_MEMORY)
                fail_msg("%s", err.text);
            nib__checkpoint_close(cp);
            assert_int_equal(f.live, 0);
            assert_true(left < 5000);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_logits),
        cmocka_unit_test(test_shards),
        cmocka_unit_test(test_tinygemm),
        cmocka_unit_test(test_rejects_bad_tensors),
        cmocka_unit_test(test_f64),
        cmocka_unit_test(test_empty_shared_tensor),
        cmocka_unit_test(test_shared_parts),
        cmocka_unit_test(test_meta_activations),
        cmocka_unit_test(test_rejects_bad_packed_int4),
        cmocka_unit_test(test_ambiguous_machine),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
