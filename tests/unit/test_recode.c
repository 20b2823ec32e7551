/* SPDX-License-Identifier: Apache-2.0
 *
 * How a conversion rates a weight that it kept: lossless, exact after a change of layout, or lossy.
 * Cases for each, with weights read from files made here.
 */
#include "checkpoint_build.h"
#include "quantize.h"

/* Converts module `name` as it is stored to a format, in `out`, and checks the rating. */
static void convert(const char *what, const nib_checkpoint *cp, const char *name,
                    const char *format, const char *out, const char *kept)
{
    const nib_allocator a = nib__allocator_default();
    nib_pool *pool;
    nib_ledger ledger;
    nib_quantize_report report;
    nib_weight w;
    nib_err err = {NIB_OK, ""};
    if (nib__checkpoint_weight(&w, NULL, cp, name, NULL, &err) != NIB_OK ||
        nib__pool_open(&pool, 1, &a, &err) != NIB_OK)
        fail_msg("%s: %s", what, err.text);
    nib__ledger_init(&ledger, &a);
    const nib_quantize_layer layer = {
        .name = name, .role = NIB_ROLE_OTHER, .recode = true, .choice = {.scheme = w.scheme}};
    const nib_quantize_job job = {.checkpoint = cp,
                                  .layers = &layer,
                                  .count = 1,
                                  .recipe = "test",
                                  .out = out,
                                  .format = format,
                                  .convert = true,
                                  .pool = pool,
                                  .allocator = &a};
    if (nib__quantize(&ledger, &report, &job, &err) != NIB_OK)
        fail_msg("%s: %s", what, err.text);
    assert_int_equal(ledger.layer_count, 1);
    if (strcmp(ledger.layers[0].kept, kept) != 0)
        fail_msg("%s to %s: %s, not %s", what, format, ledger.layers[0].kept, kept);
    nib__ledger_free(&ledger);
    nib__pool_close(pool);
}

/* Checks the ledger's rating of module m of a checkpoint made of parts. */
static void expect_kept(const char *what, const char *metadata, const char *config,
                        const part *parts, size_t count, const char *format, const char *kept)
{
    char dir[256], out[300];
    made m;
    if (make_described(&m, metadata, config, parts, count) != NIB_OK)
        fail_msg("%s: %s", what, m.err.text);
    make_directory(dir);
    snprintf(out, sizeof out, "%s/out", dir);
    convert(what, m.cp, "m", format, out, kept);
    drop_directory(out);
    drop_directory(dir);
    drop_checkpoint(&m);
}

static const char lossless[] = "lossless", exact[] = "exact after a change of layout",
                  lossy[] = "lossy";

/* ---- blocks, tensors ---- */

static void test_blocks(void **state)
{
    (void)state;
    static const char config[] =
        "{\"quantization_config\":{\"quant_method\":\"fp8\",\"weight_block_size\":[2,32]}}";
    static const float scales[2 * 2] = {1, 0.3F, 3, 0.7F};
    const part parts[] = {{"m.weight", "F8_E4M3", 2, {3, 64}, NULL},
                          {"m.weight_scale_inv", "F32", 2, {2, 2}, scales}};
    expect_kept("blocks of 2 x 32", NULL, config, parts, 2, "nibble", exact);
}

/* The tensor scale of NVFP4, which one format divides by and another multiplies by: exact if 1/t
 * is. */
static void test_divisor(void **state)
{
    (void)state;
    static const char config[] =
        "{\"quantization_config\":{\"quant_method\":\"compressed-tensors\",\"format\":"
        "\"nvfp4-pack-quantized\",\"config_groups\":{\"g\":{\"targets\":[\"Linear\"],\"weights\":{"
        "\"num_bits\":4,\"type\":\"float\",\"group_size\":16}}}}}";
    static const float four[1] = {4}, seven[1] = {7};
    uint8_t scales[2 * 2] = {0x38, 0x39, 0x3b, 0x3d}, codes[2 * 16];
    for (int j = 0; j < 32; j++)
        codes[j] = (uint8_t)(j * 7 + 1);
    part parts[] = {{"m.weight_packed", "U8", 2, {2, 16}, codes},
                    {"m.weight_scale", "F8_E4M3", 2, {2, 2}, scales},
                    {"m.weight_global_scale", "F32", 1, {1}, four}};
    expect_kept("divided by 4", NULL, config, parts, COUNT(parts), "nibble", lossless);
    expect_kept("divided by 4", NULL, config, parts, COUNT(parts), "torchao", exact);
    parts[2].data = seven;
    expect_kept("divided by 7", NULL, config, parts, COUNT(parts), "nibble", lossless);
    expect_kept("divided by 7", NULL, config, parts, COUNT(parts), "torchao", lossy);
}

/* ---- types ---- */

static void test_types(void **state)
{
    (void)state;
    static const float halves[2 * 2] = {0.5F, 0.25F, 2, 1}, whole[2 * 2] = {1, 2, 3, 4},
                                  odd[2 * 2] = {1, 1.001F, 3, 4};
    static const double wide[2 * 2] = {0.5, 0.25, 2, 1}, long_wide[2 * 2] = {0.5, 0.1, 2, 1};
    static const uint16_t scales[2 * 2] = {0x3f80, 0x3f00, 0x4000, 0x3f80}; /* of bf16 */
    const struct {
        const char *what, *scheme;
        part scales, zeros;
        const char *format, *kept;
    } rows[] = {
        {"scales of f32",
         "8da4w-g32",
         {"m._weight_scale", "F32", 2, {2, 2}, halves},
         {NULL},
         "nibble",
         lossless},
        {"scales of f32",
         "8da4w-g32",
         {"m._weight_scale", "F32", 2, {2, 2}, halves},
         {NULL},
         "torchao",
         lossless},
        {"scales of f64",
         "8da4w-g32",
         {"m._weight_scale", "F64", 2, {2, 2}, wide},
         {NULL},
         "torchao",
         exact},
        {"scales of f64",
         "8da4w-g32",
         {"m._weight_scale", "F64", 2, {2, 2}, long_wide},
         {NULL},
         "torchao",
         lossy},
        {"zeros of f32",
         "int4wo-g32",
         {"m._weight_scale", "BF16", 2, {2, 2}, scales},
         {"m._weight_zero_point", "F32", 2, {2, 2}, whole},
         "torchao",
         exact},
        {"zeros of f32",
         "int4wo-g32",
         {"m._weight_scale", "BF16", 2, {2, 2}, scales},
         {"m._weight_zero_point", "F32", 2, {2, 2}, odd},
         "torchao",
         lossy},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        char metadata[1024];
        const part parts[] = {
            {"m._weight_qdata", "U8", 2, {2, 32}, NULL}, rows[i].scales, rows[i].zeros};
        uint8_t codes[64];
        part filled[COUNT(parts)];
        for (int j = 0; j < 64; j++)
            codes[j] = (uint8_t)(j * 11 + 3);
        memcpy(filled, parts, sizeof parts);
        filled[0].data = codes;
        describe_nibble(metadata, rows[i].scheme, 2, 64);
        expect_kept(rows[i].what, metadata, "{\"model_type\":\"llama\"}", filled, COUNT(filled),
                    rows[i].format, rows[i].kept);
    }
}

/* ---- rows, biases ---- */

/* Meta's rotary pairs are reordered as in Hugging Face's layout; other rows are not. */
static void test_rows(void **state)
{
    (void)state;
    static const char *const modules[][2] = {
        {"model.layers.0.self_attn.q_proj", "exact after a change of layout"},
        {"model.layers.0.mlp.up_proj", "lossless"}};
    for (size_t i = 0; i < COUNT(modules); i++) {
        char dir[256], out[300];
        nib_checkpoint *cp = open_ok("tests/golden/torch/meta");
        make_directory(dir);
        snprintf(out, sizeof out, "%s/out", dir);
        convert(modules[i][0], cp, modules[i][0], "nibble", out, modules[i][1]);
        nib__checkpoint_close(cp);
        drop_directory(out);
        drop_directory(dir);
    }
}

/* A quantized bias is unchanged, whatever its weight's mapping and scale type. */
static void test_bias(void **state)
{
    (void)state;
    static const float scales[3] = {1, 2, 4}, bias_scale[1] = {0.5F};
    static const uint16_t half_scale[1] = {0x3800};
    static const int8_t zeros[3] = {1, 2, 3}, codes[3] = {-128, 5, 127}, bias_zero[1] = {-7};
    static const struct {
        const char *scheme; /* with the other mapping */
        bool symmetric;
        part scales;
    } rows[] = {{"8da4w-g32-asym", true, {"m._bias_scale", "F32", 1, {1}, bias_scale}},
                {"8da4w-g32", false, {"m._bias_scale", "F16", 1, {1}, half_scale}}};
    for (size_t i = 0; i < COUNT(rows); i++) {
        char described[1024], metadata[1400], dir[256], out[300];
        const bool weight_zeros = rows[i].symmetric;
        const part parts[] = {
            {"m._weight_qdata", "U8", 2, {3, 16}, NULL},
            {"m._weight_scale", "F32", 2, {3, 1}, scales},
            {weight_zeros ? "m._weight_zero_point" : NULL, "I8", 2, {3, 1}, zeros},
            {"m._bias_qdata", "I8", 1, {3}, codes},
            rows[i].scales,
            {rows[i].symmetric ? NULL : "m._bias_zero_point", "I8", 1, {1}, bias_zero}};
        made m;
        nib_weight before, after;
        describe_nibble(described, rows[i].scheme, 3, 32);
        snprintf(metadata, sizeof metadata,
                 "%s,\"m.bias\":\"{\\\"form\\\": \\\"int8\\\", \\\"group\\\": 32, "
                 "\\\"symmetric\\\": %s, \\\"shape\\\": [3]}\"",
                 described, rows[i].symmetric ? "true" : "false");
        open_parts(&m, metadata, parts, COUNT(parts));
        make_directory(dir);
        snprintf(out, sizeof out, "%s/out", dir);
        convert(rows[i].scheme, m.cp, "m", "nibble", out, "lossless");
        nib_checkpoint *cp = open_ok(out);
        assert_int_equal(nib__checkpoint_weight(&before, NULL, m.cp, "m", NULL, &m.err), NIB_OK);
        if (nib__checkpoint_weight(&after, NULL, cp, "m", NULL, &m.err) != NIB_OK)
            fail_msg("%s", m.err.text);
        assert_memory_equal(after.bias, codes, sizeof codes);
        assert_int_equal(after.bias_scale_type, before.bias_scale_type);
        assert_int_equal(after.bias_zeros != NULL, !rows[i].symmetric);
        if (after.bias_zeros != NULL)
            assert_int_equal(after.bias_zeros[0], -7);
        nib__checkpoint_close(cp);
        drop_directory(out);
        drop_directory(dir);
        drop_checkpoint(&m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_blocks), cmocka_unit_test(test_divisor), cmocka_unit_test(test_types),
        cmocka_unit_test(test_rows),   cmocka_unit_test(test_bias),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
