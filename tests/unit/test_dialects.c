/* SPDX-License-Identifier: Apache-2.0
 *
 * Weights as other tools store them: every golden module gives the values of its own tool, or of an
 * unpacker of the published layout; errors name tensors that are missing, misshapen or out of
 * range.
 */
#include "checkpoint_build.h"
#include "failing.h"
#include "kernel.h"
#include "ledger_lines.h"

#include <math.h>

/* ---- golden files ---- */

typedef struct golden {
    const char *module, *scheme;
    int64_t n, k, step; /* the file has every step-th column of the values */
    bool bias;
} golden;

static nib_checkpoint *open_golden(const char *name)
{
    char path[256];
    snprintf(path, sizeof path, "tests/golden/dialects/%s", name);
    return open_ok(path);
}

static const nib_tensor *find_values(const nib_checkpoint *cp, const char *module)
{
    char name[200];
    snprintf(name, sizeof name, "%s.dequantized", module);
    const nib_tensor *values = nib__checkpoint_find(cp, name);
    assert_non_null(values);
    return values;
}

static void expect_rows(const nib_weight *w, const golden *g, const uint8_t *values)
{
    float row[512], wanted[512];
    const int64_t count = nib__ceil_div(g->k, g->step);
    assert_true(g->k <= (int64_t)COUNT(row));
    for (int64_t i = 0; i < w->n; i++) {
        nib__weight_row(w, i, row);
        memcpy(wanted, values + i * count * 4, (size_t)count * 4);
        for (int64_t j = 0; j < count; j++)
            if (memcmp(&row[j * g->step], &wanted[j], 4) != 0)
                fail_msg("%s: row %d, column %d is %.9g, not %.9g", g->module, (int)i,
                         (int)(j * g->step), (double)row[j * g->step], (double)wanted[j]);
    }
}

/* A reference row accepts the weight with activations of each type. */
static void expect_rows_here(const char *module, const nib_weight *w)
{
    static const nib_type inputs[] = {NIB_TYPE_F32, NIB_TYPE_F16, NIB_TYPE_BF16};
    for (size_t i = 0; i < COUNT(inputs); i++) {
        nib_query query = {.fact = {[NIB_FACT_OP] = NIB_OP_LINEAR,
                                    [NIB_FACT_CODE] = w->scheme.code,
                                    [NIB_FACT_ACT] = w->scheme.act,
                                    [NIB_FACT_INPUT] = inputs[i],
                                    [NIB_FACT_DEVICE] = NIB_DEVICE_CPU}};
        bool found = false;
        for (size_t row = 0; row < nib__kernel_count() && !found; row++)
            found = nib__kernel_is_ref(nib__kernel_at(row)) &&
                    nib__kernel_built(nib__kernel_at(row)) &&
                    nib__kernel_keyed(nib__kernel_at(row), &query);
        if (!found)
            fail_msg("%s: no row takes it with %s", module, nib__type_name(inputs[i]));
    }
}

static void expect_golden(const nib_checkpoint *cp, const char *dialect, const golden *g,
                          const uint8_t *values)
{
    char scheme[64];
    nib_weight w;
    nib_err err;
    if (nib__checkpoint_weight(&w, NULL, cp, g->module, NULL, &err) != NIB_OK)
        fail_msg("%s", err.text);
    assert_string_equal(nib__checkpoint_dialect(cp, g->module), dialect);
    assert_string_equal(nib__scheme_name(scheme, &w.scheme), g->scheme);
    assert_int_equal(w.n, g->n);
    assert_int_equal(w.k, g->k);
    assert_int_equal(w.bias != NULL, g->bias);
    assert_int_equal(nib__weight_check_codes(&w, g->module, &err), NIB_OK);
    expect_rows(&w, g, values);
    expect_rows_here(g->module, &w);
}

static void expect_all(const char *name, const char *dialect, const golden *list, size_t count)
{
    nib_checkpoint *cp = open_golden(name);
    for (size_t i = 0; i < count; i++)
        expect_golden(cp, dialect, &list[i], find_values(cp, list[i].module)->data);
    nib__checkpoint_close(cp);
}

static void test_compressed_golden(void **state)
{
    (void)state;
    static const golden list[] = {
        {"pack4-g32", "int4wo-g32-sym", 11, 96, 1, true},
        {"pack4-row", "int4wo-row-sym", 11, 75, 1, true},
        {"pack4-tensor", "int4wo-tensor-sym", 5, 33, 1, true},
        {"pack4-g32-asym", "int4wo-g32-intzero", 11, 96, 1, true},
        {"pack4-row-asym", "int4wo-row-intzero", 9, 75, 1, true},
        {"pack8-g32", "int8wo-g32", 11, 96, 1, true},
        {"pack8-row-asym", "int8wo-asym", 7, 75, 1, true},
        {"pack4-a8", "8da4w-g32-actsym", 11, 96, 1, true},
        {"pack4-order", "int4wo-g16-sym", 9, 64, 1, true},
        {"int8-row", "int8dq", 11, 75, 1, true},
        {"int8-tensor", "int8wo-tensor", 5, 33, 1, true},
        {"int8-row-asym", "int8dq-asym-actasym", 7, 75, 1, true},
        {"int8-static", "int8dq-static", 7, 75, 1, true},
        {"fp8-row", "fp8dq", 11, 75, 1, true},
        {"fp8-tensor", "fp8wo-tensor", 5, 33, 1, true},
        {"fp8-block", "fp8wo-g32", 11, 75, 1, true},
        {"naive8-row", "int8wo", 5, 33, 1, true},
        {"mxfp4", "mxfp4", 11, 64, 1, true},
        {"mxfp8", "mxfp8", 11, 64, 1, true},
        {"nvfp4", "nvfp4", 11, 64, 1, true},
    };
    expect_all("compressed", "compressed-tensors", list, COUNT(list));
}

static void test_gptq_golden(void **state)
{
    (void)state;
    static const golden first[] = {
        {"order", "int4wo-g32-intzero", 24, 96, 1, true},
        {"plain", "int4wo-g32-sym", 16, 64, 1, true},
        {"short", "int4wo-g32-intzero", 11, 75, 1, true},
    };
    static const golden second[] = {{"row", "int8wo-asym", 12, 64, 1, true}};
    static const golden awq[] = {{"m", "int4wo-g32-intzero", 24, 96, 1, true}};
    expect_all("gptq", "gptq", first, COUNT(first));
    expect_all("gptq8", "gptq", second, COUNT(second));
    expect_all("awq", "awq", awq, COUNT(awq));
}

/* Packed and unpacked by GPTQModel itself. */
static void test_gptqmodel_golden(void **state)
{
    (void)state;
    static const golden four[] = {
        {"model.layers.0.self_attn.k_proj", "int4wo-g32-intzero", 64, 64, 3, true},
        {"model.layers.0.mlp.down_proj", "int4wo-g32-intzero", 64, 128, 3, false},
    };
    static const golden eight[] = {
        {"model.layers.0.self_attn.k_proj", "int8wo-g32-asym", 64, 64, 3, true},
        {"model.layers.0.mlp.down_proj", "int8wo-g32-asym", 64, 128, 3, false},
    };
    expect_all("gptqmodel", "gptq", four, COUNT(four));
    expect_all("gptqmodel_v2", "gptq", eight, COUNT(eight));
    expect_all("gptqmodel_awq", "awq", four, COUNT(four));
}

static void test_fp8_golden(void **state)
{
    (void)state;
    static const golden block[] = {{"m", "fp8wo-g128", 150, 300, 4, true}};
    static const golden plain[] = {{"tensor", "fp8wo-tensor", 7, 33, 1, true},
                                   {"row", "fp8wo", 7, 33, 1, false}};
    expect_all("fp8_block", "fp8", block, COUNT(block));
    expect_all("fp8", "fp8", plain, COUNT(plain));
}

/* Bit for bit. */
static void expect_bias(const nib_checkpoint *cp, const char *module, const void *bits, size_t size)
{
    nib_weight w;
    nib_err err;
    assert_int_equal(nib__checkpoint_weight(&w, NULL, cp, module, NULL, &err), NIB_OK);
    assert_int_equal(w.bias_type, NIB_TYPE_BF16);
    assert_memory_equal(w.bias, bits, size);
}

/* Experts are stacked in the file, and so are their values here. Rows of gate and up take turns. */
static void test_gpt_oss_golden(void **state)
{
    (void)state;
    static const struct {
        const char *leaf, *stack;
        int64_t n, k, first, step;
    } parts[] = {{"gate_proj", "gate_up_proj", 6, 64, 0, 2},
                 {"up_proj", "gate_up_proj", 6, 64, 1, 2},
                 {"down_proj", "down_proj", 5, 96, 0, 1}};
    nib_checkpoint *cp = open_golden("gpt_oss");
    assert_int_equal(nib__checkpoint_module_count(cp), 9);
    for (size_t s = 0; s < COUNT(parts); s++) {
        const int64_t n = parts[s].n, k = parts[s].k, stored = n * parts[s].step;
        float values[6 * 96];
        uint16_t bits[6];
        char stack[100], module[120];
        snprintf(stack, sizeof stack, "model.layers.0.mlp.experts.%s", parts[s].stack);
        const nib_tensor *all = find_values(cp, stack);
        snprintf(module, sizeof module, "%s.biases", stack);
        const nib_tensor *biases = nib__checkpoint_find(cp, module);
        assert_non_null(biases);
        for (int64_t e = 0; e < 3; e++) {
            for (int64_t i = 0; i < n; i++) {
                const int64_t row = e * stored + parts[s].first + i * parts[s].step;
                memcpy(values + i * k, all->data + row * k * 4, (size_t)k * 4);
                memcpy(&bits[i], biases->data + row * 2, 2);
            }
            snprintf(module, sizeof module, "model.layers.0.mlp.experts.%d.%s", (int)e,
                     parts[s].leaf);
            const golden g = {module, "mxfp4", n, k, 1, true};
            expect_golden(cp, "mxfp4", &g, (const uint8_t *)values);
            expect_bias(cp, module, (const uint8_t *)bits, (size_t)n * 2);
        }
    }
    nib__checkpoint_close(cp);
}

/* ---- errors ---- */

static const float ones[64] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
                               1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
                               1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
static const float infinite[6] = {1, INFINITY, 1, 1, 1, 1};

static void test_fp8_hostile(void **state)
{
    (void)state;
#define FP8_CONFIG(rest) "{\"quantization_config\":{\"quant_method\":\"fp8\"" rest "}}"
    static const char blocks[] = FP8_CONFIG(",\"weight_block_size\":[128,128]");
    static const float zero[1] = {0};
    static const uint8_t not_number[12] = {1, 2, 3, 4, 5, 6, 0x7f};
    static const part parts[] = {{"m.weight", "F8_E4M3", 2, {130, 3}, NULL},
                                 {"m.weight_scale_inv", "F32", 2, {2, 1}, ones},
                                 {"m.bias", "F32", 1, {130}, NULL}};
    static const change changes[] = {
        {0, {"m.weight", "F8_E5M2", 2, {130, 3}, NULL}, NIB_UNSUPPORTED},
        {0, {"m.weight", "F8_E4M3FNUZ", 2, {130, 3}, NULL}, NIB_UNSUPPORTED},
        {0, {"m.weight", "F8_E4M3", 2, {129, 129}, NULL}, NIB_BAD_INPUT},
        {0, {"m.weight", "F8_E4M3", 2, {0, 3}, NULL}, NIB_BAD_INPUT},
        {1, {0}, NIB_BAD_INPUT},
        {1, {"m.weight_scale_inv", "F32", 2, {1, 2}, ones}, NIB_BAD_INPUT},
        {1, {"m.weight_scale_inv", "F32", 1, {2}, ones}, NIB_OK},
        {1, {"m.weight_scale_inv", "F32", 2, {2, 1}, infinite}, NIB_BAD_INPUT},
        {1, {"m.weight_scale_inv", "U8", 2, {2, 1}, NULL}, NIB_BAD_INPUT},
        {2, {"m.bias", "F32", 1, {128}, NULL}, NIB_BAD_INPUT},
    };
    expect_changes(blocks, parts, COUNT(parts), changes, COUNT(changes));
    const part one[] = {{"m.weight", "F8_E4M3", 2, {3, 4}, not_number},
                        {"m.weight_scale", "F32", 0, {0}, zero}};
    expect_module(FP8_CONFIG(""), one, 2, NIB_BAD_INPUT);
    const part row[] = {{"m.weight", "F8_E4M3", 2, {1, 4}, NULL},
                        {"m.weight_scale", "F32", 1, {1}, ones}};
    expect_module(FP8_CONFIG(""), row, 2, NIB_OK); /* one row: its scale is also the tensor's */
    static const struct {
        const char *config;
        nib_status status;
    } configs[] = {
        {FP8_CONFIG(",\"weight_block_size\":[0,128]"), NIB_BAD_INPUT},
        {FP8_CONFIG(",\"weight_block_size\":[128,-1]"), NIB_BAD_INPUT},
        {FP8_CONFIG(",\"weight_block_size\":[128]"), NIB_BAD_INPUT},
        {FP8_CONFIG(",\"weight_block_size\":null"), NIB_BAD_INPUT},
        {FP8_CONFIG(",\"fmt\":\"e5m2\""), NIB_UNSUPPORTED},
        {FP8_CONFIG(",\"activation_scheme\":\"odd\""), NIB_UNSUPPORTED},
    };
    for (size_t i = 0; i < COUNT(configs); i++)
        expect_module(configs[i].config, parts, COUNT(parts), configs[i].status);
}

static void test_stacks_hostile(void **state)
{
    (void)state;
    static const part parts[] = {{"p_blocks", "U8", 4, {2, 3, 1, 16}, NULL},
                                 {"p_scales", "U8", 3, {2, 3, 1}, NULL},
                                 {"p_bias", "BF16", 2, {2, 3}, NULL},
                                 {"m.weight", "F32", 2, {1, 1}, NULL}};
    static const change changes[] = {
        {1, {"p_scales", "U8", 3, {3, 3, 1}, NULL}, NIB_BAD_INPUT}, /* of 3 experts, not 2 */
        {1, {"p_scales", "U8", 2, {2, 3}, NULL}, NIB_BAD_INPUT},
        {2, {"p_bias", "BF16", 1, {6}, NULL}, NIB_BAD_INPUT},
        {2, {"p_bias", "BF16", 2, {2, 4}, NULL}, NIB_BAD_INPUT},
        {3, {"0.p.bias", "F32", 1, {3}, NULL}, NIB_BAD_INPUT},   /* stored twice */
        {0, {"p_blocks", "U8", 4, {0, 3, 1, 16}, NULL}, NIB_OK}, /* not a stack: plain tensors */
    };
    expect_changes(NULL, parts, COUNT(parts), changes, COUNT(changes));
    static const part short_blocks[] = {{"p_blocks", "U8", 4, {2, 3, 1, 8}, NULL}};
    made other;
    assert_int_equal(make_checkpoint(&other, NULL, short_blocks, 1), NIB_OK);
    assert_int_equal(nib__checkpoint_module_count(other.cp), 0); /* not a stack either */
    drop_checkpoint(&other);
    char long_name[700];
    snprintf(long_name, sizeof long_name, "%0600d_scales", 0);
    const part loose[] = {
        {"_blocks", "U8", 4, {2, 3, 1, 16}, NULL},  {"a_blocks", "I8", 4, {2, 3, 1, 16}, NULL},
        {"b_blocks", "U8", 3, {2, 3, 16}, NULL},    {"c_blocks", "U8", 4, {65537, 1, 0, 16}, NULL},
        {"d_blocks", "U8", 4, {2, 3, 0, 16}, NULL}, {"a_scales", "U8", 3, {2, 3, 1}, NULL},
        {long_name, "U8", 3, {2, 3, 1}, NULL}};
    made apart; /* none of them is a stack of experts */
    assert_int_equal(make_checkpoint(&apart, NULL, loose, COUNT(loose)), NIB_OK);
    assert_int_equal(nib__checkpoint_count(apart.cp), COUNT(loose));
    drop_checkpoint(&apart);
    static const uint8_t nan_scale[6] = {0, 1, 2, 3, 255, 5};
    static const struct {
        part scales, bias;
    } rows[] = {
        {{0}, {"p_bias", "BF16", 2, {2, 3}, NULL}},
        {{"p_scales", "U8", 3, {2, 3, 1}, nan_scale}, {0}},
        {{"p_scales", "F32", 3, {2, 3, 1}, NULL}, {0}},
        {{"p_scales", "U8", 3, {2, 3, 1}, NULL}, {"p_bias", "U8", 2, {2, 3}, NULL}},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        made m;
        nib_weight w;
        const part some[] = {parts[0], rows[i].scales, rows[i].bias};
        assert_int_equal(make_checkpoint(&m, NULL, some, COUNT(some)), NIB_OK);
        refused(NIB_BAD_INPUT, nib__checkpoint_weight(&w, NULL, m.cp, "1.p", NULL, &m.err), &m.err);
        drop_checkpoint(&m);
    }
    made m;
    assert_int_equal(make_checkpoint(&m, NULL, parts, COUNT(parts)), NIB_OK);
    const nib_tensor *bias = nib__checkpoint_find(m.cp, "1.p.bias"),
                     *blocks = nib__checkpoint_find(m.cp, "1.p.weight_blocks");
    for (int i = 0; i < NIB_RANK_MAX; i++) { /* a view has no dimensions past its rank */
        assert_int_equal(bias->shape[i], i == 0 ? 3 : 0);
        assert_int_equal(blocks->shape[i], i == 0 ? 3 : i == 1 ? 16 : 0);
    }
    drop_checkpoint(&m);
}

/* ---- errors and ledger lines ---- */

static void test_unread_methods(void **state)
{
    (void)state;
    static const char *const methods[] = {
        "bitsandbytes", "hqq",   "quanto",   "eetq",       "spqr",       "vptq",
        "aqlm",         "higgs", "fp_quant", "bitnet",     "quark",      "auto-round",
        "sinq",         "exl2",  "exl3",     "squeezellm", "of tomorrow"};
    static const part parts[] = {{"m.weight", "F32", 2, {1, 1}, NULL}};
    char config[200];
    for (size_t i = 0; i < COUNT(methods); i++) {
        snprintf(config, sizeof config, "{\"quantization_config\":{\"quant_method\":\"%s\"}}",
                 methods[i]);
        expect_module(config, parts, 1, NIB_UNSUPPORTED);
    }
    expect_module("{\"quantization_config\":{\"quant_method\":7}}", parts, 1, NIB_BAD_INPUT);
    expect_module("{\"quantization_config\":{}}", parts, 1, NIB_OK);
}

static void test_foreign_weights(void **state)
{
    (void)state;
    static const char *const names[] = {
        "m.qweight",          "m.SCB",           "m.W_q",
        "m.weight._data",     "m.codebooks",     "m.dense_weights",
        "m.centroids.weight", "m.weight_scales", "m.activation_scale_ub"};
    for (size_t i = 0; i < COUNT(names); i++) {
        const part parts[] = {{names[i], "U8", 2, {1, 1}, NULL},
                              {"m.weight", "U8", 2, {1, 1}, NULL}};
        expect_module(NULL, parts, 1, NIB_UNSUPPORTED);
        if (i != 0)
            expect_module(NULL, parts, 2, NIB_UNSUPPORTED);
    }
}

static bool has_note(const nib_checkpoint *cp, const char *fragment)
{
    for (size_t i = 0; i < nib__checkpoint_ledger(cp)->note_count; i++)
        if (strstr(nib__checkpoint_ledger(cp)->notes[i].text, fragment) != NULL)
            return true;
    return count_settings(nib__checkpoint_ledger(cp), NULL, fragment) != 0;
}

static void test_differences_get_a_line(void **state)
{
    (void)state;
    nib_checkpoint *cp = open_golden("compressed");
    nib_ledger ledger;
    nib_weight w;
    nib_err err;
    assert_true(has_note(cp, "group_nowhere (config): "));
    assert_false(has_note(cp, "group_order"));
    static const struct {
        const char *module, *asked, *done;
    } rows[] = {
        {"nvfp4", "float activations of 4 bits in groups of 16 with a static per-tensor scale",
         "float activations"},
        {"fp8-tensor", "float activations of 8 bits per tensor with a static scale",
         "float activations"},
        {"mxfp8", "e4m3 activations, scales rounded to the nearest power of 2",
         "scales rounded up"},
        {"int8-row", NULL, NULL},
        {"pack4-g32", NULL, NULL},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        const nib_allocator a = nib__allocator_default();
        nib__ledger_init(&ledger, &a);
        assert_int_equal(nib__checkpoint_weight(&w, NULL, cp, rows[i].module, &ledger, &err),
                         NIB_OK);
        assert_int_equal(ledger.tensor_count, rows[i].asked != NULL);
        if (rows[i].asked != NULL) {
            assert_string_equal(ledger.tensors[0].asked, rows[i].asked);
            assert_string_equal(ledger.tensors[0].done, rows[i].done);
        }
        nib__ledger_free(&ledger);
    }
    nib__checkpoint_close(cp);
}

/* quantization_config against what is stored: weights that it keeps but that are codes, and the
 * reverse, codes of another tool, quantized outputs and caches. */
static void test_config_differs(void **state)
{
    (void)state;
#define LAYER "model.layers.0.self_attn."
    static const part floats[] = {{LAYER "q_proj.weight", "F32", 2, {2, 2}, NULL},
                                  {LAYER "k_proj.weight", "F32", 2, {2, 2}, NULL},
                                  {"model.layers.0.other.weight", "F32", 2, {2, 2}, NULL}},
                      codes[] = {{LAYER "q_proj.weight", "F8_E4M3", 2, {2, 2}, NULL},
                                 {LAYER "q_proj.weight_scale", "F32", 2, {2, 1}, NULL},
                                 {LAYER "k_proj.weight", "F8_E4M3", 2, {2, 2}, NULL},
                                 {LAYER "k_proj.weight_scale", "F32", 2, {2, 1}, NULL}},
                      blocks[] = {{LAYER "q_proj.weight_blocks", "U8", 2, {2, 16}, NULL},
                                  {LAYER "q_proj.weight_scales", "U8", 2, {2, 1}, NULL},
                                  {LAYER "k_proj.weight_blocks", "U8", 2, {2, 16}, NULL},
                                  {LAYER "k_proj.weight_scales", "U8", 2, {2, 1}, NULL},
                                  {LAYER "v_proj.qweight", "I32", 2, {2, 2}, NULL}},
                      renamed[] = {{"tok_embeddings.weight", "F32", 2, {2, 4}, NULL},
                                   {"layers.0.attention.wq.weight", "F32", 2, {4, 4}, NULL}};
#define GROUPED(extra)                                                                             \
    "{\"compression_config\":{\"quant_method\":\"compressed-tensors\",\"format\":\"float-"         \
    "quantized\","                                                                                 \
    "\"config_groups\":{\"a\":{\"targets\":[\"Linear\"],\"weights\":{\"type\":\"float\","          \
    "\"strategy\":"                                                                                \
    "\"channel\"},\"output_activations\":" extra "},\"b\":{\"targets\":[\"none\"],"                \
    "\"output_activations\":{}}},\"kv_cache_scheme\":{\"num_bits\":8}}}"
    static const struct {
        const char *config;
        const part *parts;
        size_t count, settings;
        const char *line; /* NULL: none */
    } cases[] = {
        {FP8_CONFIG(""), floats, 3, 1, "2 weights are stored as floats"},
        {FP8_CONFIG(",\"modules_to_not_convert\":[\"self_attn\"]"), floats, 3, 0, NULL},
        {FP8_CONFIG(",\"modules_to_not_convert\":[\"self_attn\"]"), codes, 4, 1,
         "2 weights are stored as codes"},
        {FP8_CONFIG(""), codes, 4, 0, NULL},
        {"{\"quantization_config\":{\"quant_method\":\"gptq\",\"bits\":4,"
         "\"modules_in_block_to_quantize\":[]}}",
         floats, 3, 0, NULL},
        {"{\"quantization_config\":{\"quant_method\":\"gptq\",\"bits\":4}}", blocks, 4, 1,
         "2 weights are stored in the format of mxfp4"},
        {FP8_CONFIG(""), blocks, 5, 1, "2 weights are stored in the format of mxfp4"},
        {"{\"quantization_config\":{\"quant_method\":\"mxfp4\"}}", blocks, 4, 0, NULL},
        {"{\"dim\":4,\"n_heads\":2,\"quantization_config\":{\"quant_method\":\"torchao\"}}",
         renamed, 2, 0, NULL},
        {GROUPED("{}"), codes, 4, 3, "asks for quantized outputs"},
        {GROUPED("null"), codes, 4, 2, "quantized keys and values"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        made m;
        if (make_checkpoint(&m, cases[i].config, cases[i].parts, cases[i].count) != NIB_OK)
            fail_msg("%s: %s", cases[i].config, m.err.text);
        const nib_ledger *ledger = nib__checkpoint_ledger(m.cp);
        if (ledger->setting_count != cases[i].settings ||
            (cases[i].line != NULL && !has_note(m.cp, cases[i].line)))
            fail_msg("%s, case %zu: %zu settings, not \"%s\"", cases[i].config, i,
                     ledger->setting_count, cases[i].line);
        check_memory_of_reading(m.dir);
        drop_checkpoint(&m);
    }
    assert_null(nib__checkpoint_gguf(NULL));
}

/* An expression that would be tried for hours, and a config.json that ends in an error. */
static void test_config_refused(void **state)
{
    (void)state;
    char name[200];
    snprintf(name, sizeof name, LAYER "%0120d_proj.weight", 0);
    for (char *at = strchr(name, '0'); *at != 0; at++)
        if (*at == '0')
            *at = 'a';
    const part parts[] = {{name, "F32", 2, {2, 2}, NULL}};
    static const char *const configs[] = {
        FP8_CONFIG(",\"modules_to_not_convert\":[\"re:(.*)(.*)(.*)(.*)(.*)b\"]"),
        "{\"quantization_config\":{\"quant_method\":\"compressed-tensors\",\"config_groups\":{"
        "\"a\":"
        "{\"targets\":[\"re:(.*)(.*)(.*)(.*)(.*)b\"]}}}}",
        "{\"a\":1 7}", "{\"a\":1,}"};
    for (size_t i = 0; i < COUNT(configs); i++) {
        made m;
        refused(NIB_BAD_INPUT, make_checkpoint(&m, configs[i], parts, 1), &m.err);
        drop_checkpoint(&m);
    }
#undef LAYER
}

/* Blocks that are not square: rows and columns of a block are not swapped. */
static void test_oblong_blocks(void **state)
{
    (void)state;
    static const float scales[3 * 2] = {1, 2, 3, 4, 5, 6};
    const part parts[] = {{"m.weight", "F8_E4M3", 2, {5, 6}, NULL},
                          {"m.weight_scale_inv", "F32", 2, {3, 2}, scales}};
    made m;
    nib_weight w;
    assert_int_equal(make_checkpoint(&m, FP8_CONFIG(",\"weight_block_size\":[2,4]"), parts, 2),
                     NIB_OK);
    assert_int_equal(nib__checkpoint_weight(&w, NULL, m.cp, "m", NULL, &m.err), NIB_OK);
    for (int64_t i = 0; i < 5; i++)
        for (int64_t g = 0; g < 2; g++)
            assert_true(nib__weight_scale(&w, i, g) == scales[i / 2 * 2 + g]);
    drop_checkpoint(&m);
}

/* Whichever allocation fails, from opening to the last weight, it is an error and nothing leaks. */
static void test_no_memory(void **state)
{
    (void)state;
    static const char *const names[] = {"compressed", "gptq", "gpt_oss"};
    for (size_t i = 0; i < COUNT(names); i++) {
        char path[100];
        nib_status status = NIB_NO_MEMORY;
        snprintf(path, sizeof path, "tests/golden/dialects/%s", names[i]);
        for (int fail_at = 0; status != NIB_OK; fail_at++) {
            failing f = {.left = fail_at};
            const nib_allocator a = failing_allocator(&f);
            nib_checkpoint *cp = NULL;
            nib_err err = {NIB_OK, ""};
            status = nib__checkpoint_open(&cp, path, &a, &err);
            for (size_t j = 0; cp != NULL && j < nib__checkpoint_module_count(cp); j++) {
                nib_weight w;
                if (status == NIB_OK)
                    status = nib__checkpoint_weight(&w, NULL, cp, nib__checkpoint_module(cp, j),
                                                    NULL, &err);
            }
            nib__checkpoint_close(cp);
            assert_true(status == NIB_OK || status == NIB_NO_MEMORY);
            assert_int_equal(f.live, 0);
            assert_true(fail_at < 2000);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_compressed_golden), cmocka_unit_test(test_gptq_golden),
        cmocka_unit_test(test_gptqmodel_golden),  cmocka_unit_test(test_fp8_golden),
        cmocka_unit_test(test_gpt_oss_golden),    cmocka_unit_test(test_fp8_hostile),
        cmocka_unit_test(test_stacks_hostile),    cmocka_unit_test(test_unread_methods),
        cmocka_unit_test(test_foreign_weights),   cmocka_unit_test(test_differences_get_a_line),
        cmocka_unit_test(test_config_differs),    cmocka_unit_test(test_config_refused),
        cmocka_unit_test(test_oblong_blocks),     cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
