/* SPDX-License-Identifier: Apache-2.0
 *
 * Quantized models as PyTorch's programs keep them: the logits that torchao and transformers
 * compute from the same state dict, int4 as aten packs it for each machine, and what is refused.
 */
#include "checkpoint.h"
#include "failing.h"
#include "safetensors_build.h"
#include "session.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

static nib_checkpoint *open_ok(const char *path)
{
    const nib_allocator a = nib__allocator_default();
    nib_checkpoint *cp = NULL;
    nib_err err;
    if (nib__checkpoint_open(&cp, path, &a, &err) != NIB_OK)
        fail_msg("%s", err.text);
    return cp;
}

/* ---- logits ---- */

/* Worst over positions of max|a - b| / max|b|, but for `flips` positions, where a code of an
 * activation rounds the other way after sums in another order: those stay below 2e-2. */
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
        slots[t] = (nib_slot){0, (int32_t)t, tokens[t], true};
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
    assert_int_equal(nib__checkpoint_note_count(cp), 0);
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
        nib_store store;
    } cases[] = {
        {"plain.cuda", NIB_STORE_TINYGEMM_CUDA},      {"plain.rocm", NIB_STORE_TINYGEMM_ROCM},
        {"plain.avx512", NIB_STORE_TINYGEMM_AVX512},  {"plain.avx2", NIB_STORE_TINYGEMM_AVX2},
        {"plain.default", NIB_STORE_TINYGEMM_SCALAR}, {"small.cuda", NIB_STORE_TINYGEMM_CUDA},
        {"small.rocm", NIB_STORE_TINYGEMM_ROCM},      {"small.avx512", NIB_STORE_COUNT},
        {"small.avx2", NIB_STORE_TINYGEMM_AVX2},      {"small.default", NIB_STORE_COUNT},
    };
    nib_checkpoint *cp = open_ok("tests/golden/torch/tinygemm.safetensors");
    nib_err err;
    for (size_t i = 0; i < COUNT(cases); i++) {
        nib_weight w;
        const nib_tensor *value =
            nib__checkpoint_find(cp, cases[i].module[0] == 'p' ? "plain.value" : "small.value");
        if (nib__checkpoint_weight(&w, NULL, cp, cases[i].module, NULL, &err) != NIB_OK)
            fail_msg("%s", err.text);
        assert_string_equal(nib__checkpoint_dialect(cp, cases[i].module), "gpt-fast");
        if (cases[i].store != NIB_STORE_COUNT)
            assert_int_equal(w.store, cases[i].store);
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
    assert_int_equal(nib__checkpoint_weight(&w, NULL, cp, "noise", NULL, &err), NIB_UNSUPPORTED);
    assert_non_null(strstr(err.text, "fit none of CUDA, ROCm and the CPU's layouts"));
    nib__checkpoint_close(cp);
}

/* ---- what is refused ---- */

/* A file of one module "m": weight I8 [4][64] of zeros, then `more`, and its data. */
static nib_status read_module(nib_weight *w, const char *more, const void *data, size_t size,
                              nib_err *err)
{
    char dir[256], path[300], header[1000];
    uint8_t all[2000] = {0};
    memcpy(all + 256, data, size);
    make_directory(dir);
    snprintf(header, sizeof header,
             "{\"m.weight\":{\"dtype\":\"I8\",\"shape\":[4,64],\"data_offsets\":[0,256]},%s}",
             more);
    write_safetensors(dir, "m.safetensors", header, all, 256 + size);
    snprintf(path, sizeof path, "%s/m.safetensors", dir);
    nib_checkpoint *cp = open_ok(path);
    const nib_status status = nib__checkpoint_weight(w, NULL, cp, "m", NULL, err);
    nib__checkpoint_close(cp);
    drop_directory(dir);
    return status;
}

static void test_refused(void **state)
{
    (void)state;
#define SCALES "\"m.scales\":{\"dtype\":\"F32\",\"shape\":[4,2],\"data_offsets\":[256,288]}"
    static const struct {
        const char *more;
        float at_32; /* the ninth value: what follows eight scales */
        size_t size;
        nib_status status;
        const char *fragment;
    } cases[] = {
        {SCALES, 0, 32, NIB_OK, ""},
        {SCALES ",\"m.zeros\":{\"dtype\":\"F32\",\"shape\":[4,2],\"data_offsets\":[288,320]}", 0.5F,
         64, NIB_BAD_INPUT, "m.zeros: is 0.5 at row 0, group 0"},
        {SCALES ",\"m.zeros\":{\"dtype\":\"F32\",\"shape\":[4,2],\"data_offsets\":[288,320]}", 9,
         64, NIB_BAD_INPUT, "zero point at row 0, group 0 is 9, outside of -8 to 7"},
        {SCALES ",\"m.zeros\":{\"dtype\":\"F32\",\"shape\":[4,2],\"data_offsets\":[288,320]}", NAN,
         64, NIB_BAD_INPUT, "m.zeros: is nan"},
        {SCALES ",\"m.zeros\":{\"dtype\":\"F32\",\"shape\":[8],\"data_offsets\":[288,320]}", 0, 64,
         NIB_BAD_INPUT, "m.zeros: has shape [8], expected [4, 2]"},
        {SCALES ",\"m.zeros\":{\"dtype\":\"I64\",\"shape\":[4,2],\"data_offsets\":[288,352]}", 0,
         96, NIB_BAD_INPUT, "m.zeros: is I64"},
        {SCALES ",\"m.bias\":{\"dtype\":\"I32\",\"shape\":[4],\"data_offsets\":[288,304]}", 0, 48,
         NIB_BAD_INPUT, "m.bias: is I32"},
        {SCALES ",\"m.bias\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[288,300]}", 0, 44,
         NIB_BAD_INPUT, "m.bias: has shape [3], expected [4]"},
        {SCALES ",\"m.adaptor.A.weight\":{\"dtype\":\"F32\",\"shape\":[1,64],\"data_offsets\":[288,"
                "544]}",
         0, 288, NIB_UNSUPPORTED, "m.adaptor.A.weight: is a LoRA adaptor"},
        {"\"m.scales\":{\"dtype\":\"F32\",\"shape\":[4,3],\"data_offsets\":[256,304]}", 0, 48,
         NIB_BAD_INPUT, "3 groups, which do not divide k = 64"},
        {"\"m.scales\":{\"dtype\":\"F32\",\"shape\":[2,4],\"data_offsets\":[256,288]}", 0, 32,
         NIB_BAD_INPUT, "m.scales: has shape [2, 4], expected [4, 4]"},
        {"\"m.scales\":{\"dtype\":\"I8\",\"shape\":[4,2],\"data_offsets\":[256,264]}", 0, 8,
         NIB_BAD_INPUT, "m.scales: is I8"},
        {"\"m.scales\":{\"dtype\":\"F32\",\"shape\":[5],\"data_offsets\":[256,276]}", 0, 20,
         NIB_BAD_INPUT, "m.scales: has shape [5], expected [4]"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        float data[100] = {0};
        nib_weight w;
        nib_err err = {NIB_OK, ""};
        for (int s = 0; s < 8; s++)
            data[s] = 1;
        data[8] = cases[i].at_32;
        const nib_status status = read_module(&w, cases[i].more, data, cases[i].size, &err);
        if (status != cases[i].status || strstr(err.text, cases[i].fragment) == NULL)
            fail_msg("case %zu: %s: %s", i, nib_status_name(status), err.text);
    }
}

/* Zero points that two modules share are those of both; they show int4 where one group fills the
 * rows. What is made of a shared tensor for one module serves the other. */
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

/* A q without elements, whose rows times 8 are -2^44: k's scales do not begin there. */
static void test_no_elements(void **state)
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
    assert_int_equal(nib__checkpoint_weight(&w, NULL, cp, K "k_proj", NULL, &err), NIB_UNSUPPORTED);
    assert_non_null(strstr(err.text, "packed for one kind of machine"));
    nib__checkpoint_close(cp);
    drop_directory(dir);
#undef K
}

/* Scales, zero points and bias of f64 are taken. */
static void test_f64(void **state)
{
    (void)state;
    double data[20];
    nib_weight w;
    nib_err err;
    for (int i = 0; i < 8; i++)
        data[i] = 0.25 * (i + 1), data[8 + i] = i - 4;
    for (int i = 16; i < 20; i++)
        data[i] = i;
    const nib_status status =
        read_module(&w,
                    "\"m.scales\":{\"dtype\":\"F64\",\"shape\":[4,2],\"data_offsets\":[256,320]},"
                    "\"m.zeros\":{\"dtype\":\"F64\",\"shape\":[4,2],\"data_offsets\":[320,384]},"
                    "\"m.bias\":{\"dtype\":\"F64\",\"shape\":[4],\"data_offsets\":[384,416]}",
                    data, sizeof data, &err);
    assert_int_equal(status, NIB_OK);
    assert_int_equal(w.scale_type, NIB_TYPE_F64);
    assert_int_equal(w.bias_type, NIB_TYPE_F64);
    assert_int_equal(w.scheme.zero, NIB_ZERO_INT);
    assert_int_equal(w.zero_type, NIB_TYPE_I8);
    assert_int_equal(w.float_zeros, NIB_TYPE_F64); /* where they lie */
    assert_int_equal(w.scheme.group, 32);
    assert_int_equal(w.scheme.act, NIB_ACT_I8_TOKEN);
}

/* Every request for memory fails once, from opening to the last weight; nothing is lost. */
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
        cmocka_unit_test(test_logits),       cmocka_unit_test(test_shards),
        cmocka_unit_test(test_tinygemm),     cmocka_unit_test(test_refused),
        cmocka_unit_test(test_f64),          cmocka_unit_test(test_no_elements),
        cmocka_unit_test(test_shared_parts), cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
