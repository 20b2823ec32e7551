/* SPDX-License-Identifier: Apache-2.0
 *
 * Fused weights: each part's rows equal the whole's, in every form with separate rows; other forms
 * are refused; and the writer joins parts into the original tensor.
 */
#include "fused.h"
#include "writer.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "checkpoint_build.h"
#include "failing.h"

#define LAYER "model.layers.0."
#define QKV LAYER "self_attn.qkv_proj"
#define HEADS "\"num_attention_heads\":2,\"num_key_value_heads\":1"
#define COMPRESSED(format, weights)                                                                \
    "{" HEADS ",\"quantization_config\":{\"quant_method\":\"compressed-tensors\",\"format\":"      \
    "\"" format "\",\"config_groups\":{\"a\":{\"targets\":[\"m\",\"re:.*qkv_proj\"],"              \
    "\"weights\":{" weights ",\"symmetric\":true}}}}}"

/* Described as by torchao, with a scale per row. */
#define INT8                                                                                       \
    "\"{\\\"_type\\\":\\\"Int8Tensor\\\",\\\"_data\\\":{\\\"block_size\\\":[1,4],\\\"dtype\\\":"   \
    "{\\\"_type\\\":\\\"torch.dtype\\\",\\\"_data\\\":\\\"float32\\\"}},\\\"_tensor_data_"         \
    "names\\\":["                                                                                  \
    "\\\"qdata\\\",\\\"scale\\\"]}\""

/* ---- names ---- */

static void test_names(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        unsigned fused;
        const char *whole; /* NULL: the name is not that of a part */
        int part, count;
    } cases[] = {
        {LAYER "self_attn.q_proj.weight", NIB_FUSED_QKV, QKV ".weight", 0, 3},
        {"model.layers.31.self_attn.v_proj", NIB_FUSED_QKV, "model.layers.31.self_attn.qkv_proj", 2,
         3},
        {LAYER "mlp.up_proj.bias", NIB_FUSED_GATE_UP, LAYER "mlp.gate_up_proj.bias", 1, 2},
        {LAYER "mlp.up_proj.weight", NIB_FUSED_QKV, NULL, 0, 0},
        {LAYER "self_attn.q_proj.weight", NIB_FUSED_GATE_UP, NULL, 0, 0},
        {LAYER "self_attn.q_projector.weight", NIB_FUSED_QKV, NULL, 0, 0},
        {LAYER "mlp.experts.0.up_proj.weight", NIB_FUSED_GATE_UP, NULL, 0, 0},
        {"layers.0.mlp.up_proj.weight", NIB_FUSED_GATE_UP, NULL, 0, 0},
        {"blk.7.attn_k.weight", NIB_FUSED_QKV, "blk.7.attn_qkv.weight", 1, 3},
        {"blk.7.ffn_up.weight", NIB_FUSED_GATE_UP, "blk.7.ffn_up.weight", 1, 2},
        {"blk.7.ffn_gate.weight", NIB_FUSED_GATE_UP, "blk.7.ffn_up.weight", 0, 2},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        nib_fused_part found;
        char name[NIB_FUSED_NAME];
        const bool is_part = nib__fused_part(&found, cases[i].name, cases[i].fused);
        assert_int_equal(is_part, cases[i].whole != NULL);
        if (!is_part)
            continue;
        assert_string_equal(found.whole, cases[i].whole);
        assert_int_equal(found.part, cases[i].part);
        assert_int_equal(found.count, cases[i].count);
        assert_true(nib__fused_name(name, found.whole, found.part));
        assert_string_equal(name, cases[i].name);
        assert_false(nib__fused_name(name, found.whole, found.count));
    }
}

/* Names with a layer number so long that another name of the module does not fit: they are names of
 * other tensors. */
static void test_long_names(void **state)
{
    (void)state;
    char digits[NIB_FUSED_NAME], name[NIB_FUSED_NAME + 64], scale[NIB_FUSED_NAME + 64],
        metadata[NIB_FUSED_NAME + 80], out[NIB_FUSED_NAME];
    nib_fused_part found;
    memset(digits, '1', sizeof digits);
    assert_false(nib__fused_name(out, LAYER "self_attn.o_proj.weight", 0));
    for (int size = NIB_FUSED_NAME - 60; size < NIB_FUSED_NAME; size++) {
        static const int around = sizeof "model.layers..self_attn.qkv_proj.weight" - 1;
        const bool fits = size + around < NIB_FUSED_NAME;
        snprintf(name, sizeof name, "model.layers.%.*s.self_attn.q_proj.weight", size, digits);
        assert_int_equal(nib__fused_part(&found, name, NIB_FUSED_QKV), fits);
        if (fits)
            assert_int_equal(strlen(found.whole), size + around);
        snprintf(name, sizeof name, "blk.%.*s.ffn_up.weight", size, digits);
        assert_int_equal(nib__fused_name(out, name, 0), /* ffn_gate */
                         size + (int)sizeof "blk..ffn_gate.weight" - 1 < NIB_FUSED_NAME);
        /* in a file, too, it does not matter which names fit */
        snprintf(name, sizeof name, "model.layers.%.*s.self_attn.qkv_proj.weight", size, digits);
        const part parts[] = {{name, "F32", 2, {8, 2}, NULL}, {scale, "F32", 1, {1}, NULL}};
        snprintf(scale, sizeof scale, "model.layers.%.*s.self_attn.qkv_proj.a_long_suffix", size,
                 digits);
        snprintf(metadata, sizeof metadata, "\"%s\":\"\"", scale);
        for (size_t count = 1; count <= 2; count++) {
            made m;
            if (make_described(&m, metadata, "{" HEADS "}", parts, count) != NIB_OK)
                fail_msg("%s", m.err.text);
            const bool both =
                size + around + 7 - 2 < NIB_FUSED_NAME; /* q_proj, the longer suffix */
            assert_int_equal(nib__checkpoint_count(m.cp),
                             count == 1 ? (fits ? 3 : 1) : (both ? 6 : 2));
            drop_checkpoint(&m);
        }
    }
}

/* ---- rows ---- */

enum { BYTES = 1 << 17 };
static uint8_t noise[BYTES];
static float scales[64];

static void make_values(void)
{
    uint32_t seed = 7;
    for (size_t i = 0; i < BYTES; i++) {
        seed = seed * 1664525 + 1013904223;
        noise[i] = (uint8_t)((seed >> 24) & 0x3b); /* finite in a float of any width */
    }
    for (size_t i = 0; i < COUNT(scales); i++)
        scales[i] = 0.5F + (float)i;
}

static nib_weight read_module(const made *m, const char *module)
{
    nib_weight w;
    nib_err err;
    if (nib__checkpoint_weight(&w, NULL, m->cp, module, NULL, &err) != NIB_OK)
        fail_msg("%s: %s", module, err.text);
    return w;
}

/* Compares the parts of qkv_proj with m, which holds the same tensors unfused. */
static void expect_rows(const char *metadata, const char *config, const part *parts, size_t count)
{
    static const struct {
        const char *name;
        int64_t first, share; /* in quarters */
    } pieces[] = {{"q_proj", 0, 2}, {"k_proj", 2, 1}, {"v_proj", 3, 1}};
    static float got[512], want[512];
    made m;
    char module[64];
    if (make_described(&m, metadata, config, parts, count) != NIB_OK)
        fail_msg("%s", m.err.text);
    const nib_weight whole = read_module(&m, "m");
    assert_true(whole.k <= 512);
    for (size_t p = 0; p < COUNT(pieces); p++) {
        snprintf(module, sizeof module, LAYER "self_attn.%s", pieces[p].name);
        const nib_weight w = read_module(&m, module);
        assert_int_equal(w.n, whole.n / 4 * pieces[p].share);
        assert_int_equal(w.k, whole.k);
        assert_true(w.scheme.code == whole.scheme.code && w.scheme.group == whole.scheme.group);
        for (int64_t i = 0; i < w.n; i++) {
            nib__weight_row(&w, i, got);
            nib__weight_row(&whole, whole.n / 4 * pieces[p].first + i, want);
            assert_memory_equal(got, want, (size_t)w.k * sizeof *got);
        }
        if (whole.bias != NULL)
            assert_memory_equal(w.bias, (const float *)whole.bias + whole.n / 4 * pieces[p].first,
                                (size_t)w.n * sizeof(float));
    }
    assert_int_equal(nib__checkpoint_fused(m.cp), NIB_FUSED_QKV);
    assert_null(nib__checkpoint_find(m.cp, QKV ".weight"));
    check_memory_of_reading(m.dir);
    drop_checkpoint(&m);
}

#define BOTH(suffix, type, rank, ...)                                                              \
    {QKV suffix, type, rank, {__VA_ARGS__}, noise}, { "m" suffix, type, rank, {__VA_ARGS__}, noise }
#define BOTH_OF(data, suffix, type, rank, ...)                                                     \
    {QKV suffix, type, rank, {__VA_ARGS__}, data}, { "m" suffix, type, rank, {__VA_ARGS__}, data }

static void test_rows(void **state)
{
    (void)state;
    make_values();
    const part f32[] = {BOTH(".weight", "F32", 2, 8, 6), BOTH_OF(scales, ".bias", "F32", 1, 8)},
               square[] = {BOTH(".weight", "BF16", 2, 8, 8)},
               f16[] = {BOTH(".weight", "F16", 2, 12, 6)};
    expect_rows(NULL, "{" HEADS "}", f32, COUNT(f32));
    expect_rows(NULL, "{" HEADS "}", square, COUNT(square));
    expect_rows(NULL, "{" HEADS "}", f16, COUNT(f16));

    static const int64_t shape[2] = {8, 16};
    const part packed[] = {BOTH(".weight_packed", "I32", 2, 8, 2),
                           BOTH_OF(scales, ".weight_scale", "F32", 2, 8, 2),
                           BOTH_OF(shape, ".weight_shape", "I64", 1, 2)};
    expect_rows(NULL,
                COMPRESSED("pack-quantized", "\"num_bits\":4,\"type\":\"int\",\"strategy\":"
                                             "\"group\",\"group_size\":8"),
                packed, COUNT(packed));
    static const int32_t unordered[16] = {-1, -1, -1, -1, -1, -1, -1, -1,
                                          -1, -1, -1, -1, -1, -1, -1, -1};
    const part ordered[] = {packed[0],
                            packed[1],
                            packed[2],
                            packed[3],
                            packed[4],
                            packed[5],
                            BOTH_OF(unordered, ".weight_g_idx", "I32", 1, 16)};
    expect_rows(NULL,
                COMPRESSED("pack-quantized", "\"num_bits\":4,\"type\":\"int\",\"strategy\":"
                                             "\"group\",\"group_size\":8"),
                ordered, COUNT(ordered));
    const part bytes[] = {BOTH(".weight", "I8", 2, 8, 6),
                          BOTH_OF(scales, ".weight_scale", "F32", 2, 8, 1)};
    expect_rows(
        NULL,
        COMPRESSED("int-quantized", "\"num_bits\":8,\"type\":\"int\",\"strategy\":\"channel\""),
        bytes, COUNT(bytes));
    const part one[] = {BOTH(".weight", "F8_E4M3", 2, 8, 6),
                        BOTH_OF(scales, ".weight_scale", "F32", 1, 1)};
    expect_rows(NULL, "{" HEADS ",\"quantization_config\":{\"quant_method\":\"fp8\"}}", one,
                COUNT(one));
    /* one scale per 128 rows: parts of 256, 128 and 128 rows start at block boundaries */
    const part blocks[] = {BOTH(".weight", "F8_E4M3", 2, 512, 130),
                           BOTH_OF(scales, ".weight_scale_inv", "F32", 2, 4, 2)};
    expect_rows(NULL,
                "{" HEADS ",\"quantization_config\":{\"quant_method\":\"fp8\","
                "\"weight_block_size\":[128,128]}}",
                blocks, COUNT(blocks));

    /* each part has the description of the whole */
    const part own[] = {BOTH("._weight_qdata", "I8", 2, 8, 4),
                        BOTH_OF(scales, "._weight_scale", "F32", 2, 8, 1)};
    expect_rows("\"" QKV ".weight\":" INT8 ",\"m.weight\":" INT8, "{" HEADS "}", own, COUNT(own));
}

/* ---- weights that stay whole ---- */

static void expect_whole(const char *config, const part *parts, size_t count)
{
    made m;
    nib_weight w;
    nib_err err;
    if (make_checkpoint(&m, config, parts, count) != NIB_OK)
        fail_msg("%s", m.err.text);
    assert_non_null(nib__checkpoint_find(m.cp, parts[0].name));
    assert_int_equal(nib__checkpoint_fused(m.cp), 0);
    refused(NIB_UNSUPPORTED,
            nib__checkpoint_weight(&w, NULL, m.cp, LAYER "self_attn.k_proj", NULL, &err), &err);
    drop_checkpoint(&m);
}

static void test_some_forms_stay_whole(void **state)
{
    (void)state;
    make_values();
    const char *const fp8 = "{" HEADS ",\"quantization_config\":{\"quant_method\":\"fp8\","
                            "\"weight_block_size\":[128,128]}}";
    const part columns[] = {{QKV ".qweight", "I32", 2, {2, 8}, noise},
                            {QKV ".scales", "F16", 2, {1, 8}, noise}},
               groups[] = {{QKV "._weight_qdata", "U8", 2, {8, 16}, noise},
                           {QKV "._weight_scale", "F32", 2, {4, 8}, scales}},
               blocks[] = {{QKV ".weight", "F8_E4M3", 2, {256, 16}, noise},
                           {QKV ".weight_scale_inv", "F32", 2, {2, 1}, scales}},
               odd[] = {{QKV ".weight", "F32", 2, {6, 4}, noise}},
               empty[] = {{QKV ".weight", "F32", 2, {0, 4}, noise}},
               flat[] = {{QKV ".weight", "F32", 1, {8}, noise}},
               shape[] = {{QKV ".weight_packed", "I32", 2, {8, 2}, noise},
                          {QKV ".weight_shape", "I32", 1, {2}, noise}},
               sizes[] = {{QKV ".weight_packed", "I32", 2, {8, 2}, noise},
                          {QKV ".weight_shape", "I64", 1, {3}, noise}},
               none[] = {{QKV ".bias", "F32", 1, {0}, noise},
                         {QKV ".weight", "F32", 2, {8, 4}, noise}},
               square[] = {{QKV ".weight_packed", "I32", 2, {8, 2}, noise},
                           {QKV ".weight_scale", "F32", 2, {8, 8}, scales}},
               turned[] = {{QKV ".weight_packed", "I32", 2, {8, 2}, noise},
                           {QKV ".weight_scale", "F32", 2, {4, 8}, scales}},
               cubes[] = {{QKV ".weight", "F8_E4M3", 2, {8, 16}, noise},
                          {QKV ".weight_scale", "F32", 3, {4, 2, 1}, scales}},
               apart[] = {{QKV ".weight", "F8_E4M3", 2, {8, 16}, noise},
                          {QKV ".weight_scale", "F32", 2, {3, 2}, scales}};
    expect_whole("{" HEADS "}", columns, COUNT(columns));
    expect_whole("{" HEADS "}", groups, COUNT(groups));
    expect_whole(fp8, blocks, COUNT(blocks));
    expect_whole("{" HEADS "}", odd, COUNT(odd));
    expect_whole("{" HEADS "}", empty, COUNT(empty));
    expect_whole("{" HEADS "}", flat, COUNT(flat));
    expect_whole("{" HEADS "}", shape, COUNT(shape));
    expect_whole("{" HEADS "}", sizes, COUNT(sizes));
    expect_whole("{" HEADS "}", none, COUNT(none));
    expect_whole("{" HEADS "}", square, COUNT(square));
    expect_whole("{" HEADS "}", turned, COUNT(turned));
    expect_whole("{" HEADS "}", cubes, COUNT(cubes));
    expect_whole("{" HEADS "}", apart, COUNT(apart));
    expect_whole("{\"num_attention_heads\":0}", odd, COUNT(odd));
    expect_whole("{\"num_attention_heads\":65537}", odd, COUNT(odd));
    expect_whole("{\"num_attention_heads\":[2]}", odd, COUNT(odd)); /* number of heads unknown */
}

/* Metadata of a part wins over the whole's; that of a weight that stays whole keeps its name. */
static void test_metadata(void **state)
{
    (void)state;
    static const char both[] =
        "\"" LAYER "self_attn.q_proj.weight\":\"own\",\"" QKV ".weight\":\"shared\",\"other\":\"\"";
    const part parts[] = {{QKV ".weight", "F32", 2, {8, 2}, NULL}},
               odd[] = {{QKV ".weight", "F32", 2, {6, 2}, NULL}},
               other[] = {{LAYER "self_attn.qkv_projection.weight", "F32", 2, {8, 2}, NULL}};
    made m;
    nib_weight w;
    for (int split = 0; split < 2; split++) {
        if (make_described(&m, both, "{" HEADS "}", split ? parts : odd, 1) != NIB_OK)
            fail_msg("%s", m.err.text);
        assert_int_equal(nib__checkpoint_meta_count(m.cp), split ? 4 : 3);
        drop_checkpoint(&m);
    }
    /* another module whose name begins like the fused one's */
    assert_int_equal(make_checkpoint(&m, "{" HEADS "}", other, 1), NIB_OK);
    refused(NIB_BAD_INPUT,
            nib__checkpoint_weight(&w, NULL, m.cp, LAYER "self_attn.k_proj", NULL, &m.err), &m.err);
    refused(NIB_BAD_INPUT, nib__fused_heads(m.cp, "config.json", "{\"a\":", 5, &m.err), &m.err);
    drop_checkpoint(&m);
    /* a stored shape with other rows: each part's shape is wrong, too */
    static const int64_t shape[2] = {9, 16};
    const part nine[] = {{QKV ".weight_packed", "I32", 2, {8, 2}, NULL},
                         {QKV ".weight_scale", "F32", 2, {8, 2}, NULL},
                         {QKV ".weight_shape", "I64", 1, {2}, shape}};
    assert_int_equal(
        make_checkpoint(&m,
                        COMPRESSED("pack-quantized", "\"num_bits\":4,\"type\":\"int\",\"strategy\":"
                                                     "\"group\",\"group_size\":8"),
                        nine, COUNT(nine)),
        NIB_OK);
    refused(NIB_BAD_INPUT,
            nib__checkpoint_weight(&w, NULL, m.cp, LAYER "self_attn.k_proj", NULL, &m.err), &m.err);
    drop_checkpoint(&m);
}

static void test_rejects_part_and_whole(void **state)
{
    (void)state;
    made m;
    const part parts[] = {{QKV ".weight", "F32", 2, {8, 2}, NULL},
                          {LAYER "self_attn.k_proj.weight", "F32", 2, {2, 2}, NULL}};
    refused(NIB_BAD_INPUT, make_checkpoint(&m, "{" HEADS "}", parts, COUNT(parts)), &m.err);
    drop_checkpoint(&m);
}

static void test_memory(void **state)
{
    (void)state;
    check_memory_of_reading("tests/golden/models/phi3");
}

/* ---- writing ---- */

typedef struct written {
    const char *name;
    nib_type type;
    int64_t rows;
} written;

/* Writes [rows][3] tensors filled with their number; returns the status. limit: bytes per file; 0:
 * a single file. */
static nib_status write_parts(const char *dir, const written *tensors, size_t count, uint64_t limit,
                              nib_err *err)
{
    const nib_allocator a = nib__allocator_default();
    nib_writer *w;
    float values[64];
    char path[300];
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    unlink(path);
    assert_int_equal(nib__writer_make(&w, &a, err), NIB_OK);
    for (size_t i = 0; i < count; i++)
        nib__writer_add_tensor(w, tensors[i].name, tensors[i].type,
                               (const int64_t[]){tensors[i].rows, 3}, 2, i);
    nib__writer_fuse(w, NIB_FUSED_QKV);
    nib_status status = nib__writer_layout(w, limit, err);
    if (status == NIB_OK)
        status = nib__writer_begin(w, limit == 0 ? NULL : dir, limit == 0 ? path : NULL, err);
    for (size_t i = count; i-- > 0 && status == NIB_OK;) { /* in any order */
        for (size_t j = 0; j < COUNT(values); j++)
            values[j] = (float)i;
        const size_t bytes = (size_t)(tensors[i].rows * 3 * nib__type_bits(tensors[i].type) / 8);
        assert_true(bytes <= sizeof values);
        status = nib__writer_put(w, i, values, bytes, err);
    }
    if (status == NIB_OK)
        status = nib__writer_finish(w, err);
    assert_int_equal(nib__writer_count(w), count);
    assert_string_equal(nib__writer_name(w, 0), tensors[0].name);
    nib__writer_free(w);
    return status;
}

static void test_writing(void **state)
{
    (void)state;
    static const written tensors[] = {{LAYER "self_attn.v_proj.weight", NIB_TYPE_F32, 1},
                                      {"other.weight", NIB_TYPE_F32, 2},
                                      {LAYER "self_attn.q_proj.weight", NIB_TYPE_F32, 4},
                                      {LAYER "mlp.up_proj.weight", NIB_TYPE_F32, 2},
                                      {LAYER "self_attn.k_proj.weight", NIB_TYPE_F32, 1}};
    static const float order[] = {2, 2, 2, 2, 4, 0}; /* q's rows, then k's and v's */
    const nib_allocator a = nib__allocator_default();
    char dir[256];
    nib_err err;
    nib_checkpoint *cp;
    make_directory(dir);
    if (write_parts(dir, tensors, COUNT(tensors), 0, &err) != NIB_OK ||
        nib__checkpoint_open(&cp, dir, &a, &err) != NIB_OK)
        fail_msg("%s", err.text);
    assert_int_equal(nib__checkpoint_count(cp), 3); /* without a config the tensor stays whole */
    const nib_tensor *whole = nib__checkpoint_find(cp, QKV ".weight");
    assert_non_null(whole);
    assert_true(whole->shape[0] == 6 && whole->shape[1] == 3);
    for (size_t i = 0; i < 6; i++)
        assert_true(((const float *)(const void *)whole->data)[i * 3] == order[i]);
    assert_non_null(nib__checkpoint_find(cp, LAYER "mlp.up_proj.weight"));
    nib__checkpoint_close(cp);
    /* parts of different types are not joined */
    /* in shards: the index lists the joined tensor once */
    char shards[256];
    make_directory(shards);
    if (write_parts(shards, tensors, COUNT(tensors), 40, &err) != NIB_OK ||
        nib__checkpoint_open(&cp, shards, &a, &err) != NIB_OK)
        fail_msg("%s", err.text);
    assert_int_equal(nib__checkpoint_count(cp), 3);
    assert_int_equal(nib__checkpoint_find(cp, QKV ".weight")->shape[0], 6);
    nib__checkpoint_close(cp);
    drop_directory(shards);
    written mixed[COUNT(tensors)];
    memcpy(mixed, tensors, sizeof mixed);
    mixed[4].type = NIB_TYPE_BF16;
    if (write_parts(dir, mixed, COUNT(mixed), 0, &err) != NIB_OK ||
        nib__checkpoint_open(&cp, dir, &a, &err) != NIB_OK)
        fail_msg("%s", err.text);
    assert_int_equal(nib__checkpoint_count(cp), COUNT(mixed));
    assert_null(nib__checkpoint_find(cp, QKV ".weight"));
    nib__checkpoint_close(cp);
    drop_directory(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_long_names),
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_some_forms_stay_whole),
        cmocka_unit_test(test_rejects_part_and_whole),
        cmocka_unit_test(test_metadata),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_writing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
