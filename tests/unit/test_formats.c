/* SPDX-License-Identifier: Apache-2.0
 *
 * Every format and version that was ever readable stays readable. The table below has one small
 * file of each; every run opens it and compares its weights with the values of its own tool. A new
 * format or version adds a file and a row; rows are never removed.
 */
#include "opening.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct format {
    const char *path;
    const char *dialect; /* of every quantized weight */
    size_t weights;      /* number of quantized weights */
    /* M.dequantized holds the f32 values (else a test of that format compares them). M is the
     * scheme's name, a colon and the scale type if requested, a dot, the variant. */
    bool valued, named;
} format;

static const format formats[] = {
    {"tests/golden/formats/nibble_1.safetensors", "nibble", 20, true, true},
    {"tests/golden/formats/nibble_1_biases.safetensors", "nibble", 3, true, true},
    {"tests/golden/formats/torchao_0_15.safetensors", "torchao", 10, true, true},
    {"tests/golden/formats/torchao_0_16.safetensors", "torchao", 13, true, true},
    {"tests/golden/formats/torchao_0_17.safetensors", "torchao", 25, true, true},
    {"tests/golden/formats/torchao_0_18.safetensors", "torchao", 25, true, true},
    {"tests/golden/torchao_weights.safetensors", "torchao", 42, true, true},
    {"tests/golden/dialects/compressed", "compressed-tensors", 20, false, false},
    {"tests/golden/dialects/gptq", "gptq", 3, false, false},
    {"tests/golden/dialects/gptq8", "gptq", 1, false, false},
    {"tests/golden/dialects/awq", "awq", 1, false, false},
    {"tests/golden/dialects/fp8", "fp8", 2, false, false},
    {"tests/golden/dialects/fp8_block", "fp8", 1, false, false},
    {"tests/golden/dialects/gpt_oss", "mxfp4", 9, false, false},
    {"tests/golden/gguf/llama.gguf", "gguf", 19, false, false},
    {"tests/golden/torch/8da4w_bias", "8da4w", 7, false, false},
    {"tests/golden/torch/8da4w_plain", "8da4w", 7, false, false},
    {"tests/golden/torch/gptfast_int8/model_int8.pth", "gpt-fast", 8, false, false},
    {"tests/golden/torch/gptfast_int4/model_int4.g32.pth", "gpt-fast", 8, false, false},
    {"tests/golden/torch/meta", "8da4w", 9, false, false},
};

static void expect_values(const nib_checkpoint *cp, const char *module, const nib_weight *w)
{
    char name[200];
    snprintf(name, sizeof name, "%s.dequantized", module);
    const nib_tensor *values = nib__checkpoint_find(cp, name);
    float row[512];
    assert_non_null(values);
    assert_true(w->k <= 512 && values->bytes == (uint64_t)(w->n * w->k) * sizeof *row);
    for (int64_t i = 0; i < w->n; i++) {
        nib__weight_row(w, i, row);
        if (memcmp(row, values->data + i * w->k * (int64_t)sizeof *row,
                   (size_t)w->k * sizeof *row) != 0)
            fail_msg("%s: row %d is not its tool's", module, (int)i);
    }
}

/* M.bias_values exist if a file has quantized biases. */
static void expect_bias(const nib_checkpoint *cp, const char *module, const nib_weight *w)
{
    char name[200];
    snprintf(name, sizeof name, "%s.bias_values", module);
    const nib_tensor *values = nib__checkpoint_find(cp, name);
    float bias[64];
    if (values == NULL)
        return;
    assert_true(w->n <= 64 && values->bytes == (uint64_t)w->n * sizeof *bias);
    assert_true(nib__weight_bias_form(w) == NIB_BIAS_INT8 ||
                nib__weight_bias_form(w) == NIB_BIAS_INT32);
    nib__weight_bias(w, bias);
    assert_memory_equal(bias, values->data, (size_t)values->bytes);
}

static void expect_name(const char *module, const nib_weight *w)
{
    /* Read as int4 and int8 before these widths were schemes. */
    static const char *const narrow[][2] = {{"int4wo-g32-sym.int2", "int2wo-g32"},
                                            {"int8wo-g32-asym.int6", "int6wo-g32-asym"}};
    char wanted[64], scheme[64];
    snprintf(wanted, sizeof wanted, "%.*s", (int)strcspn(module, ":."), module);
    if (strcmp(wanted, "8da4w-row") == 0)
        snprintf(wanted, sizeof wanted, "8da4w-g160"); /* a row of 160 is one group */
    for (size_t i = 0; i < COUNT(narrow); i++)
        if (strcmp(module, narrow[i][0]) == 0)
            snprintf(wanted, sizeof wanted, "%s", narrow[i][1]);
    assert_string_equal(nib__scheme_name(scheme, &w->scheme), wanted);
}

static void read_format(const format *f)
{
    nib_checkpoint *cp = open_ok(f->path);
    nib_err err = {NIB_OK, ""};
    size_t seen = 0;
    for (size_t i = 0; i < nib__checkpoint_module_count(cp); i++) {
        const char *module = nib__checkpoint_module(cp, i);
        nib_weight w;
        if (nib__checkpoint_weight(&w, NULL, cp, module, NULL, &err) != NIB_OK)
            fail_msg("%s: %s", f->path, err.text);
        if (nib__weight_check_codes(&w, module, &err) != NIB_OK)
            fail_msg("%s: %s", f->path, err.text);
        if (!nib__scheme_is_quantized(&w.scheme))
            continue;
        assert_string_equal(nib__checkpoint_dialect(cp, module), f->dialect);
        if (f->valued)
            expect_values(cp, module, &w);
        expect_bias(cp, module, &w);
        if (f->named)
            expect_name(module, &w);
        seen++;
    }
    if (seen != f->weights)
        fail_msg("%s has %zu quantized weights, not %zu", f->path, seen, f->weights);
    nib__checkpoint_close(cp);
}

static void test_formats(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(formats); i++)
        read_format(&formats[i]);
}

/* Each weight gets a ledger line on how torchao handles activations of 4-bit floats differently. */
static void test_nvfp4_activations(void **state)
{
    (void)state;
    static const struct {
        const char *module, *asked;
    } cases[] = {
        {"nvfp4dq.dynamic", "nvfp4 activations with block scales and a scale per batch"},
        {"nvfp4dq.static", "nvfp4 activations with block scales and a fixed scale"},
        {"nvfp4dq-block.dynamic", NULL},
        {"nvfp4.f", NULL},
    };
    const nib_allocator a = nib__allocator_default();
    nib_checkpoint *cp = open_ok("tests/golden/formats/torchao_0_18.safetensors");
    for (size_t i = 0; i < COUNT(cases); i++) {
        nib_weight w;
        nib_ledger ledger;
        nib__ledger_init(&ledger, &a);
        assert_int_equal(nib__checkpoint_weight(&w, NULL, cp, cases[i].module, &ledger, NULL),
                         NIB_OK);
        assert_int_equal(ledger.tensor_count, cases[i].asked != NULL);
        if (cases[i].asked != NULL) {
            assert_string_equal(ledger.tensors[0].asked, cases[i].asked);
            assert_string_equal(ledger.tensors[0].done,
                                "nvfp4 activations with block scales and a scale per token");
        }
        nib__ledger_free(&ledger);
    }
    nib__checkpoint_close(cp);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_formats),
                                       cmocka_unit_test(test_nvfp4_activations)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
