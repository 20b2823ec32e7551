/* SPDX-License-Identifier: Apache-2.0
 *
 * torchao's format: descriptions, configs, names, types and shapes equal those written by torchao;
 * anything it cannot hold is refused with the reason.
 */
#include "dialects.h"
#include "golden_scheme.h"
#include "opening.h"

#include <stdio.h>
#include <stdlib.h>

static const char golden[] = "tests/golden/torchao_weights.safetensors";

/* Builds what the quantizer would give for a golden module: "int8wo-g32.bf16". */
static bool stored_named(nib_output_weight *out, const char *module)
{
    const size_t size = (size_t)(strrchr(module, '.') - module);
    const nib_type scales = golden_scales(module);
    *out = (nib_output_weight){.scheme = golden_scheme(module), .n = 3, .k = 160};
    out->source = strcmp(module + size, ".f32") == 0 ? NIB_TYPE_F32 : NIB_TYPE_BF16;
    const nib_scheme *s = &out->scheme;
    const bool f32_scales =
        (s->code == NIB_CODE_I8 && s->group <= 0 && s->symmetric) || s->code == NIB_CODE_E4M3;
    out->scale_type = nib__act_is_mx(s->act)    ? NIB_TYPE_E8M0
                      : f32_scales              ? NIB_TYPE_F32
                      : scales != NIB_TYPE_NONE ? scales
                                                : out->source;
    out->zero_type = s->zero == NIB_ZERO_INT     ? NIB_TYPE_I8
                     : s->zero == NIB_ZERO_FLOAT ? out->source
                                                 : NIB_TYPE_NONE;
    return true;
}

static const char *meta_value(const nib_checkpoint *cp, const char *key)
{
    for (size_t i = 0; i < nib__checkpoint_meta_count(cp); i++)
        if (strcmp(nib__checkpoint_meta_at(cp, i)->key, key) == 0)
            return nib__checkpoint_meta_at(cp, i)->value;
    return "";
}

static void test_descriptions(void **state)
{
    (void)state;
    nib_checkpoint *cp = open_ok(golden);
    const nib_allocator a = nib__allocator_default();
    size_t seen = 0;
    for (size_t i = 0; i < nib__checkpoint_module_count(cp); i++) {
        const char *module = nib__checkpoint_module(cp, i);
        char key[100], why[160];
        nib_output_weight stored;
        nib_text text;
        if (!stored_named(&stored, module))
            continue;
        assert_null(nib__write_torchao.fit(why, &stored));
        nib__text_init(&text, &a);
        nib__write_torchao.describe(&text, &stored);
        snprintf(key, sizeof key, "%s.weight", module);
        assert_string_equal(text.at, meta_value(cp, key));
        nib__text_free(&text);
        seen++;
    }
    assert_int_equal(seen, 42);
    nib__checkpoint_close(cp);
}

static void expect_part(const nib_checkpoint *cp, const char *module, const nib_output_part *part)
{
    char name[100];
    snprintf(name, sizeof name, "%s%s", module, part->suffix);
    const nib_tensor *tensor = nib__checkpoint_find(cp, name);
    if (tensor == NULL)
        fail_msg("torchao has no %s", name);
    assert_string_equal(nib__type_stored_name(tensor->type), nib__type_stored_name(part->type));
    assert_int_equal(tensor->rank, part->rank);
    assert_int_equal(tensor->shape[0], part->shape[0]);
    assert_int_equal(tensor->shape[1], part->shape[1]);
}

static void test_layouts(void **state)
{
    (void)state;
    nib_checkpoint *cp = open_ok(golden);
    for (size_t i = 0; i < nib__checkpoint_module_count(cp); i++) {
        const char *module = nib__checkpoint_module(cp, i);
        char name[100];
        nib_output_weight stored;
        nib_file_layout layout;
        if (!stored_named(&stored, module))
            continue;
        nib__write_torchao.layout(&layout, &stored);
        expect_part(cp, module, &layout.codes);
        expect_part(cp, module, &layout.scales);
        snprintf(name, sizeof name, "%s._weight_zero_point", module);
        if (layout.zeros.suffix != NULL)
            expect_part(cp, module, &layout.zeros);
        else
            assert_null(nib__checkpoint_find(cp, name));
    }
    nib__checkpoint_close(cp);
}

static void test_configs(void **state)
{
    (void)state;
    char line[4000];
    size_t seen = 0;
    const nib_allocator a = nib__allocator_default();
    FILE *file = fopen("tests/golden/torchao_configs.txt", "r");
    assert_non_null(file);
    while (fgets(line, sizeof line, file) != NULL) {
        char *tab = strchr(line, '\t');
        if (tab == NULL)
            continue;
        line[strcspn(line, "\n")] = 0;
        /* from a bf16 weight, or f32 if the config names bf16 */
        nib_output_weight stored = {.scheme = golden_scheme(line), .source = NIB_TYPE_BF16};
        stored.scale_type = NIB_TYPE_BF16;
        if (golden_scales(line) == NIB_TYPE_BF16)
            stored.source = NIB_TYPE_F32;
        else if (golden_scales(line) != NIB_TYPE_NONE)
            stored.scale_type = golden_scales(line);
        nib_text text;
        nib_jsonw w;
        nib__text_init(&text, &a);
        nib__jsonw_init(&w, &text, 0);
        nib__torchao_config(&w, &stored);
        assert_string_equal(text.at, tab + 1);
        nib__text_free(&text);
        seen++;
    }
    fclose(file);
    assert_int_equal(seen, 26);
}

static void test_refusals(void **state)
{
    (void)state;
    static const struct {
        const char *scheme;
        int64_t k;
        const char *why;
    } cases[] = {
        {"8da4w-g32", 172, "k = 172 is not a multiple of the group size 32"},
        {"mxfp8", 48, "k = 48 is not a multiple of the group size 32"},
        {"int4wo-g5", 35, "k = 35 is odd"},
        {"int4wo-row", 64, "must have groups"},
        {"int8wo-tensor-asym", 64, "per row or group"},
        {"8da4w-g32-actsym", 64, "asymmetric activations only"},
        {"8da4w-g32-static", 64, "static"},
        {"int8dq-static", 64, "static"},
        {"int8dq-g32", 64, "one scale per row or tensor"},
        {"4da4w-g32", 64, "4-bit activations"},
        {"8da4w-g32-ao017", 64, "the formula of torchao 0.17"},
        {"fp8dq-tensor", 64, "also scale the activations per tensor"},
        {"mxfp4", 64, "MX activations only"},
        {"nvfp4", 24, "k = 24 is not a multiple of the group size 16"},
        {"nvfp4", 48, NULL},
        {"nvfp4dq", 64, "also scale the activations per tensor"},
        {"nvfp4dq-block", 64, NULL},
        {"int8wo-g32-ao017", 64, NULL},
        {"int4wo-g32-tinygemm", 64, NULL},
        {"int8wo", 35, NULL},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        char why[160];
        nib_output_weight stored = {
            .scheme = golden_scheme(cases[i].scheme), .n = 3, .k = cases[i].k};
        const char *said = nib__write_torchao.fit(why, &stored);
        if ((said == NULL) != (cases[i].why == NULL) ||
            (said != NULL && strstr(said, cases[i].why) == NULL))
            fail_msg("%s: %s", cases[i].scheme, said == NULL ? "held" : said);
    }
    /* Only three of its classes work as embeddings. */
    static const char *const looked_up[] = {"int8wo", "int8wo-g32", "int4wo-sym", "fp8wo"},
                             *const not_so[] = {"int4wo-g32", "nvfp4", "nvfp4-block"};
    char why[160];
    nib_output_weight stored = {.n = 3, .k = 64, .embedding = true};
    for (size_t i = 0; i < COUNT(looked_up); i++) {
        stored.scheme = golden_scheme(looked_up[i]);
        assert_null(nib__write_torchao.fit(why, &stored));
    }
    for (size_t i = 0; i < COUNT(not_so); i++) {
        stored.scheme = golden_scheme(not_so[i]);
        assert_non_null(nib__write_torchao.fit(why, &stored));
    }
}

/* The activations of NVFP4, as torchao's QuantizeTensorToNVFP4Kwargs; no golden module has them. */
static void test_nvfp4_activations(void **state)
{
    (void)state;
    const nib_allocator a = nib__allocator_default();
    char why[160];
    nib_text text;
    nib_output_weight stored = {
        .n = 3, .k = 64, .source = NIB_TYPE_BF16, .scheme = golden_scheme("nvfp4dq-block")};
    assert_null(nib__write_torchao.fit(why, &stored));
    nib__text_init(&text, &a);
    nib__write_torchao.describe(&text, &stored);
    assert_string_equal(
        text.at, "{\"_type\": \"NVFP4Tensor\", \"_data\": {\"is_swizzled_scales\": true, "
                 "\"use_triton_kernel\": false, \"act_quant_kwargs\": {\"_type\": "
                 "\"QuantizeTensorToNVFP4Kwargs\", \"_data\": {\"block_size\": 16, "
                 "\"is_swizzled_scales\": true, \"use_triton_kernel\": false, "
                 "\"use_dynamic_per_tensor_scale\": false}}, \"block_size\": 16, \"orig_dtype\": "
                 "{\"_type\": \"torch.dtype\", \"_data\": \"bfloat16\"}}, \"_tensor_data_names\": "
                 "[\"qdata\", \"scale\"]}");
    nib__text_free(&text);
}

static void test_tiles(void **state)
{
    (void)state;
    static const int64_t shapes[][2] = {{1, 1}, {3, 5}, {128, 4}, {129, 4}, {300, 9}};
    for (size_t c = 0; c < COUNT(shapes); c++) {
        const int64_t n = shapes[c][0], groups = shapes[c][1];
        const size_t plain = (size_t)(n * groups);
        const size_t tiled = (size_t)(nib__ceil_div(n, 128) * nib__ceil_div(groups, 4)) * 512;
        uint8_t *from = malloc(plain), *tiles = calloc(1, tiled), *back = malloc(plain);
        for (size_t i = 0; i < plain; i++)
            from[i] = (uint8_t)(1 + i % 251);
        nib__tile_scales(tiles, from, n, groups);
        for (int64_t i = 0; i < n; i++)
            for (int64_t g = 0; g < groups; g++)
                back[i * groups + g] = tiles[nib__scale_tile(i, g, groups)];
        assert_memory_equal(from, back, plain);
        size_t used = 0;
        for (size_t i = 0; i < tiled; i++)
            used += tiles[i] != 0;
        assert_int_equal(used, plain);
        free(from);
        free(tiles);
        free(back);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_descriptions), cmocka_unit_test(test_layouts),
        cmocka_unit_test(test_configs),      cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_tiles),        cmocka_unit_test(test_nvfp4_activations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
