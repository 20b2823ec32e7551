/* SPDX-License-Identifier: Apache-2.0
 *
 * Whole rewrites: the tensors equal torchao's byte for byte; what torchao cannot hold is written as
 * nibble, with a note; names that shared a tensor are separated if they must be; any failure leaves
 * no output.
 */
#include "ledger_lines.h"
#include "rewriting_build.h"

#include "failing.h"
#include "refused.h"

#include <fcntl.h>
#include <signal.h>

/* Two layers, a norm, an embedding and an untied output. */
static const source_tensor usual[] = {
    {"model.embed_tokens.weight", NIB_TYPE_BF16, {10, 64}, 2},
    {"model.layers.0.self_attn.q_proj.weight", NIB_TYPE_BF16, {6, 64}, 2},
    {"model.layers.0.self_attn.q_proj.bias", NIB_TYPE_BF16, {6}, 1},
    {"model.layers.0.mlp.up_proj.weight", NIB_TYPE_BF16, {7, 64}, 2},
    {"model.norm.weight", NIB_TYPE_BF16, {64}, 1},
    {"lm_head.weight", NIB_TYPE_BF16, {10, 64}, 2},
};

static char *read_text(const char *directory, const char *name)
{
    char path[700];
    char *text;
    size_t size;
    snprintf(path, sizeof path, "%s/%s", directory, name);
    if (nib__file_read(&text, &size, path, 1 << 20, &heap, NULL) != NIB_OK)
        fail_msg("%s is not there", path);
    return text;
}

static void expect_text(const char *directory, const char *name, const char *fragment)
{
    char *text = read_text(directory, name);
    if (strstr(text, fragment) == NULL)
        fail_msg("%s has no %s:\n%s", name, fragment, text);
    nib__release(&heap, text);
}

/* ---- torchao, byte for byte ---- */

/* The golden file's originals as one checkpoint, each quantized to its own scheme: all tensors
 * equal torchao's. */
static void test_torchao_parts(void **state)
{
    (void)state;
    char from[512], out[512];
    nib_err err;
    nib_checkpoint *golden = open_ok("tests/golden/torchao_weights.safetensors");
    nib_quantize_layer layers[42];
    char schemes[42][64];
    size_t count = 0;
    nib_writer *w;
    assert_int_equal(nib__writer_make(&w, &heap, &err), NIB_OK);
    const nib_tensor *originals[84];
    size_t tensors = 0;
    for (size_t i = 0; i < nib__checkpoint_module_count(golden); i++) {
        char name[100];
        const char *module = nib__checkpoint_module(golden, i);
        snprintf(schemes[count], 64, "%.*s", (int)(strrchr(module, '.') - module), module);
        layers[count] = layer(module, schemes[count]);
        count++;
        for (int bias = 0; bias < 2; bias++) {
            snprintf(name, sizeof name, "%s.%s", module, bias ? "bias" : "original");
            const nib_tensor *t = nib__checkpoint_find(golden, name);
            snprintf(name, sizeof name, "%s.%s", module, bias ? "bias" : "weight");
            originals[tensors++] = t;
            (void)nib__writer_add_tensor(w, name, t->type, t->shape, t->rank, count);
        }
    }
    assert_int_equal(count, 42);
    assert_int_equal(nib__writer_layout(w, 0, &err), NIB_OK);
    assert_int_equal(nib__writer_begin(w, NULL, at(from, "golden"), &err), NIB_OK);
    for (size_t t = 0; t < tensors; t++)
        assert_int_equal(
            nib__writer_put(w, t, originals[t]->data, (size_t)originals[t]->bytes, &err), NIB_OK);
    assert_int_equal(nib__writer_finish(w, &err), NIB_OK);
    nib__writer_free(w);
    done d;
    quantize(&d, from, layers, count, at(out, "out"), "torchao", false);
    expect(&d, NIB_OK);
    nib_checkpoint *cp = open_ok(out);
    size_t compared = 0;
    for (size_t i = 0; i < nib__checkpoint_count(cp); i++) {
        const nib_tensor *ours = nib__checkpoint_at(cp, i);
        const nib_tensor *theirs = nib__checkpoint_find(golden, ours->name);
        assert_non_null(theirs);
        assert_int_equal(ours->type, theirs->type);
        assert_int_equal(ours->bytes, theirs->bytes);
        if (memcmp(ours->data, theirs->data, (size_t)ours->bytes) != 0)
            fail_msg("%s is not torchao's", ours->name);
        compared++;
    }
    assert_int_equal(compared, 42 * 3 + 42 - 12); /* codes, scales, bias; zeros but for floats */
    nib__checkpoint_close(cp);
    nib__checkpoint_close(golden);
    free_done(&d);
    assert_true(exists(at(out, "out.nibble.json")));
    drop(out);
    drop(at(out, "out"));
    drop(from);
}

/* Layers with different schemes are named: those with codes, and no others. */
static void test_named_configs(void **state)
{
    (void)state;
    char from[512], out[512];
    done d;
    const nib_quantize_layer layers[] = {
        layer("model.embed_tokens", NULL), layer("model.layers.0.self_attn.q_proj", "8da4w-g32"),
        layer("model.layers.0.mlp.up_proj", "int8wo"), layer("lm_head", NULL)};
    write_source(at(from, "src"), config, usual, COUNT(usual), NULL, 0);
    quantize(&d, from, layers, COUNT(layers), at(out, "out"), "torchao", false);
    expect(&d, NIB_OK);
    free_done(&d);
    char *text = read_text(out, "config.json");
    assert_non_null(strstr(text, "\"module_fqn_to_config\""));
    assert_non_null(strstr(text, "\"model.layers.0.self_attn.q_proj\": {"));
    assert_non_null(strstr(text, "\"model.layers.0.mlp.up_proj\": {"));
    assert_null(strstr(text, "\"lm_head\": {"));
    assert_null(strstr(text, "\"model.embed_tokens\": {"));
    nib__release(&heap, text);
    drop(out);
    quantize(&d, from, layers, COUNT(layers), at(out, "out"), "compressed-tensors", false);
    expect(&d, NIB_OK);
    free_done(&d);
    expect_text(out, "config.json", "\"group_0\": {");
    expect_text(out, "config.json", "\"group_1\": {");
    expect_text(out, "config.json", "\"ignore\": [\n      \"lm_head\"\n    ]"); /* no embedding */
    drop(out);
    drop(from);
}

/* One config for all layers that have it: a pattern for those whose names differ in numbers alone,
 * unless one of them has another scheme. */
static void test_config_patterns(void **state)
{
    static const source_tensor tensors[] = {
        {"model.embed_tokens.weight", NIB_TYPE_BF16, {10, 64}, 2},
        {"model.layers.0.mlp.up_proj.weight", NIB_TYPE_BF16, {7, 64}, 2},
        {"model.layers.1.mlp.up_proj.weight", NIB_TYPE_BF16, {7, 64}, 2},
        {"model.layers.0.self_attn.q_proj.weight", NIB_TYPE_BF16, {7, 64}, 2},
        {"model.layers.1.self_attn.q_proj.weight", NIB_TYPE_BF16, {7, 64}, 2},
        {"model.layers.10.self_attn.k_proj.weight", NIB_TYPE_BF16, {7, 64}, 2},
        {"model.layers.11.self_attn.k_proj.weight", NIB_TYPE_BF16, {7, 64}, 2},
        {"model.layers.0.mlp.down_proj.weight", NIB_TYPE_BF16, {7, 64}, 2},
        {"model.layers.1.mlp.down_proj.weight", NIB_TYPE_BF16, {7, 64}, 2},
        {"model.layers.12.mlp.down_proj.weight", NIB_TYPE_BF16, {7, 64}, 2}, /* no layer's */
        {"lm_head.weight", NIB_TYPE_BF16, {10, 64}, 2},
    };
    const nib_quantize_layer layers[] = {layer("model.embed_tokens", NULL),
                                         layer("model.layers.0.mlp.down_proj", "8da4w-g32"),
                                         layer("model.layers.1.mlp.down_proj", "8da4w-g32"),
                                         layer("model.layers.0.mlp.up_proj", "8da4w-g32"),
                                         layer("model.layers.1.mlp.up_proj", "8da4w-g32"),
                                         layer("model.layers.0.self_attn.q_proj", "8da4w-g32"),
                                         layer("model.layers.1.self_attn.q_proj", "int8wo"),
                                         layer("model.layers.10.self_attn.k_proj", "8da4w-g32"),
                                         layer("model.layers.11.self_attn.k_proj", "8da4w-g32"),
                                         layer("lm_head", NULL)};
    char from[512], out[512];
    done d;
    (void)state;
    write_source(at(from, "src"), config, tensors, COUNT(tensors), NULL, 0);
    quantize(&d, from, layers, COUNT(layers), at(out, "out"), "torchao", false);
    expect(&d, NIB_OK);
    free_done(&d);
    char *text = read_text(out, "config.json");
    assert_non_null(strstr(text, "\"re:model\\\\.layers\\\\.\\\\d+\\\\.mlp\\\\.up_proj|"
                                 "model\\\\.layers\\\\.\\\\d+\\\\.self_attn\\\\.k_proj\": {"));
    assert_non_null(strstr(text, "\"model.layers.0.self_attn.q_proj\": {"));
    assert_non_null(strstr(text, "\"model.layers.1.self_attn.q_proj\": {"));
    assert_null(strstr(text, "\"model.layers.0.mlp.up_proj\""));
    assert_non_null(strstr(text, "\"model.layers.1.mlp.down_proj\": {"));
    assert_null(strstr(text, "\"model.layers.12.mlp.down_proj\""));
    assert_null(strstr(text, "lm_head\": {"));
    nib__release(&heap, text);
    drop(out);
    drop(from);
}

/* ---- directories ---- */

static void test_directory(void **state)
{
    (void)state;
    char from[512], out[512], path[600];
    done d;
    const nib_quantize_layer layers[] = {
        layer("model.embed_tokens", NULL), layer("model.layers.0.self_attn.q_proj", "8da4w-g32"),
        layer("model.layers.0.mlp.up_proj", "8da4w-g32"), layer("lm_head", NULL)};
    write_source(at(from, "src"), config, usual, COUNT(usual), NULL, 0);
    write_text(from, "tokenizer.json", "{}");
    write_text(from, "secret.txt", "not to be copied");
    quantize(&d, from, layers, COUNT(layers), at(out, "out"), "torchao", false);
    expect(&d, NIB_OK);
    assert_string_equal(d.report.format, "torchao");
    assert_int_equal(d.ledger.layer_count, 4);
    assert_string_equal(d.ledger.layers[1].done, "8da4w-g32");
    assert_true(d.ledger.layers[1].bias);
    assert_true(d.ledger.layers[1].sqnr_db > 15 && d.ledger.layers[1].sqnr_db < 40);
    assert_int_equal(d.ledger.layers[1].bytes, 6 * 64 + 2 * 6 * 2 + 6 * 2);
    assert_string_equal(d.ledger.layers[0].done, "bf16");
    expect_text(out, "config.json", "\"quant_method\": \"torchao\"");
    expect_text(out, "config.json", "Int8DynamicActivationIntxWeightConfig");
    expect_text(out, "config.json", "\"lm_head\"");
    expect_text(out, "config.json", "\"model_type\": \"llama\"");
    expect_text(out, "nibble.json", "\"recipe\": \"test\"");
    expect_text(out, "nibble.json", "\"tokenizer.json\": \"");
    snprintf(path, sizeof path, "%s/secret.txt", out);
    assert_false(exists(path));
    nib_checkpoint *cp = open_ok(out);
    nib_weight w;
    assert_int_equal(nib__checkpoint_count(cp), 10);
    assert_int_equal(nib__checkpoint_weight(&w, NULL, cp, layers[1].name, NULL, NULL), NIB_OK);
    char name[64];
    assert_string_equal(nib__scheme_name(name, &w.scheme), "8da4w-g32");
    assert_non_null(w.bias);
    float row[64];
    nib__weight_row(&w, 3, row);
    for (int64_t k = 0; k < 64; k++)
        assert_true(fabsf(row[k] - value_of(1, 3 * 64 + k)) < 0.08f);
    nib__checkpoint_close(cp);
    free_done(&d);
    /* The output exists now. force replaces it, and the same input gives the same bytes. */
    char *first = read_text(out, "nibble.json");
    quantize(&d, from, layers, COUNT(layers), out, "torchao", false);
    refused(NIB_EXISTS, d.status, &d.err);
    free_done(&d);
    quantize(&d, from, layers, COUNT(layers), out, "torchao", true);
    expect(&d, NIB_OK);
    free_done(&d);
    char *second = read_text(out, "nibble.json");
    assert_string_equal(first, second);
    nib__release(&heap, first);
    nib__release(&heap, second);
    /* Quantized weights are not quantized again. */
    quantize(&d, out, layers, COUNT(layers), at(path, "again"), NULL, false);
    refused(NIB_UNSUPPORTED, d.status, &d.err);
    assert_false(exists(path));
    free_done(&d);
    drop(out);
    drop(from);
}

/* Without a format the smallest that holds the result is chosen: where torchao's does not, a note
 * says why. */
static void test_what_torchao_cannot_hold(void **state)
{
    (void)state;
    static const source_tensor odd[] = {{"a.weight", NIB_TYPE_F32, {5, 35}, 2},
                                        {"b.weight", NIB_TYPE_F64, {3, 64}, 2},
                                        {"b.bias", NIB_TYPE_F64, {3}, 1}};
    static const char *const schemes[] = {
        "8da4w-g32",   "8da4w-g32-asym", "8da4w-g32-actsym",   "8da4w-g32-static",    "4da4w-g16",
        "int8dq-g32",  "int8dq-static",  "int4wo-g32",         "int4wo-row-tinygemm", "mxfp8",
        "mxfp8-floor", "fp8dq-tensor",   "int8wo-tensor-asym", "8da4w-row-ao017"};
    char from[512], out[512];
    write_source(at(from, "src"), config, odd, COUNT(odd), NULL, 0);
    for (size_t i = 0; i < COUNT(schemes); i++) {
        done d;
        nib_quantize_layer layers[] = {layer("a", schemes[i]), layer("b", schemes[i])};
        layers[0].act_scale = layers[1].act_scale = 0.25f;
        layers[0].act_zero = layers[1].act_zero = -3;
        quantize(&d, from, layers, 2, at(out, "out"), "torchao", false);
        refused(NIB_NOT_AS_ASKED, d.status, &d.err);
        assert_false(exists(out));
        free_done(&d);
        quantize(&d, from, layers, 2, out, NULL, false);
        expect(&d, NIB_OK);
        const bool compressed =
            strcmp(schemes[i], "int8dq-static") == 0 || strcmp(schemes[i], "fp8dq-tensor") == 0;
        assert_string_equal(d.report.format, compressed ? "compressed-tensors" : "nibble");
        assert_int_equal(d.ledger.note_count, 1);
        assert_string_equal(d.ledger.notes[0].code, "format");
        assert_non_null(strstr(d.ledger.notes[0].text, "torchao's format cannot hold "));
        assert_int_equal(count_settings(&d.ledger, NULL, ""), 0);
        expect_text(out, "config.json",
                    compressed ? "\"quant_method\": \"compressed-tensors\""
                               : "\"quant_method\": \"nibble\"");
        /* f64 is reported: for the bias when layers are listed, for the weight when it is streamed.
         */
        assert_int_equal(d.ledger.tensor_count, 2);
        free_done(&d);
        nib_checkpoint *cp = open_ok(out);
        for (int l = 0; l < 2; l++) {
            nib_weight w;
            nib_err err;
            char name[64];
            float row[64];
            if (nib__checkpoint_weight(&w, NULL, cp, l == 0 ? "a" : "b", NULL, &err) != NIB_OK)
                fail_msg("%s: %s", schemes[i], err.text);
            assert_string_equal(nib__scheme_name(name, &w.scheme), schemes[i]);
            assert_true(l == 0 || w.bias_type == NIB_TYPE_F64);
            if (w.scheme.act == NIB_ACT_I8_STATIC) {
                assert_true(*w.act_scale == 0.25f);
                assert_true((w.act_zero != NULL) == !w.scheme.act_symmetric);
            }
            nib__weight_row(&w, 2, row);
            for (int64_t k = 0; k < w.k; k++)
                if (!(fabsf(row[k] - value_of((size_t)l, 2 * w.k + k)) < 0.1f))
                    fail_msg("%s: layer %d, column %d", schemes[i], l, (int)k);
        }
        nib__checkpoint_close(cp);
        drop(out);
    }
    drop(from);
}

/* The smallest format, the first that is within 1 % of it, and those that hold it besides. */
static void test_smallest_format(void **state)
{
    (void)state;
    static const source_tensor wide[] = {{"a.weight", NIB_TYPE_BF16, {128, 1024}, 2}};
    static const struct {
        const char *scheme, *format, *others[2];
    } cases[] = {
        {"int8wo", "torchao", {"compressed-tensors", "nibble"}},
        {"int4wo-g128", "torchao", {"nibble"}},
        {"8da4w-g128", "nibble", {"torchao", "compressed-tensors"}},
        {"int4wo-sym-g128", "compressed-tensors", {"torchao", "nibble"}},
        {"int3wo-g128", "compressed-tensors", {"torchao", "nibble"}},
        {"mxfp8", "torchao", {"nibble"}},
    };
    char from[512], out[512], file[600];
    write_source(at(from, "src"), config, wide, COUNT(wide), NULL, 0);
    for (size_t i = 0; i < COUNT(cases); i++) {
        done d;
        const nib_quantize_layer layers[] = {layer("a", cases[i].scheme)};
        quantize(&d, from, layers, 1, at(out, "out"), NULL, false);
        expect(&d, NIB_OK);
        if (strcmp(d.report.format, cases[i].format) != 0)
            fail_msg("%s: %s", cases[i].scheme, d.report.format);
        assert_int_equal(d.ledger.note_count, 0);
        size_t others = 0;
        for (; d.report.elsewhere[others].name != NULL; others++)
            assert_string_equal(d.report.elsewhere[others].name, cases[i].others[others]);
        assert_true(others == 2 || cases[i].others[others] == NULL);
        free_done(&d);
        drop(out);
    }
    /* A file without a config.json is not in a format that needs one. */
    const nib_quantize_layer layers[] = {layer("a", "int4wo-sym-g128")};
    done d;
    snprintf(file, sizeof file, "%s/model.safetensors", from);
    quantize(&d, file, layers, 1, at(out, "out.safetensors"), NULL, false);
    expect(&d, NIB_OK);
    assert_string_equal(d.report.format, "nibble");
    free_done(&d);
    drop(out);
    drop(from);
}

/* A conversion that only changes float types reports the change of each weight, and of f64 in a
 * format whose vectors are f32. */
static void test_casts_are_reported(void **state)
{
    (void)state;
    static const source_tensor tensors[] = {{"a.weight", NIB_TYPE_BF16, {3, 64}, 2},
                                            {"b.weight", NIB_TYPE_F64, {3, 64}, 2},
                                            {"model.norm.weight", NIB_TYPE_F64, {8}, 1}};
    char from[512], out[512];
    nib_gguf_head head;
    done d;
    write_source(at(from, "src"), config, tensors, COUNT(tensors), NULL, 0);
    nib_quantize_layer layers[] = {layer("a", "f32"), layer("b", "f32")};
    run_job(&d, from,
            (nib_quantize_job){.layers = layers,
                               .count = 2,
                               .out = at(out, "out"),
                               .format = "safetensors",
                               .convert = true});
    expect(&d, NIB_OK);
    assert_string_equal(d.ledger.layers[0].kept, "exact after a change of layout");
    assert_true(isnan(d.ledger.layers[0].sqnr_db));
    assert_string_equal(d.ledger.layers[1].kept, "lossy");
    assert_int_equal(d.ledger.tensor_count, 0); /* the norm is copied */
    free_done(&d);
    drop(out);
    drop(from);
    write_source(from, config, &tensors[2], 1, NULL, 0);
    nib__gguf_head_init(&head, &heap);
    nib__gguf_put_string(&head, "general.architecture", "llama", 5);
    run_job(&d, from,
            (nib_quantize_job){.layers = layers,
                               .out = at(out, "out.gguf"),
                               .format = "gguf",
                               .gguf = &head,
                               .gguf_arch = "llama",
                               .convert = true});
    expect(&d, NIB_OK);
    assert_int_equal(d.ledger.tensor_count, 1);
    assert_string_equal(d.ledger.tensors[0].name, "model.norm.weight");
    assert_string_equal(d.ledger.tensors[0].done, "f32");
    assert_true(d.ledger.tensors[0].max_rel_change > 0);
    nib__gguf_head_free(&head);
    free_done(&d);
    drop(out);
    drop(at(out, "out.gguf.nibble.json"));
    drop(from);
}

/* ---- names that share a tensor ---- */

static void test_shared_tensors(void **state)
{
    (void)state;
    static const source_tensor embed_only[] =
        {{"model.embed_tokens.weight", NIB_TYPE_F32, {4, 32}, 2}},
                               head_only[] = {{"lm_head.weight", NIB_TYPE_F32, {4, 32}, 2}};
    static const nib_meta alias = {"model.embed_tokens.weight", "lm_head.weight"};
    static const struct {
        bool alias; /* the file stores the head; its metadata alias the embedding */
        const char *embed, *head;
        const char *written[3];
        bool untied;
    } cases[] = {
        {false, NULL, NULL, {"model.embed_tokens.weight"}, false},
        {false, NULL, "int8wo", {"model.embed_tokens.weight", "lm_head._weight_qdata"}, true},
        {false, "int8wo", NULL, {"model.embed_tokens._weight_qdata", "lm_head.weight"}, true},
        {false, "int8wo", "int8wo", {"model.embed_tokens._weight_qdata"}, false},
        {true, NULL, NULL, {"lm_head.weight"}, false},
        {true, NULL, "int8wo", {"lm_head._weight_qdata", "model.embed_tokens.weight"}, true},
        {true, "int8wo", NULL, {"lm_head.weight", "model.embed_tokens._weight_qdata"}, true},
        /* casting one does not cast the other */
        {true, NULL, "bf16", {"lm_head.weight", "model.embed_tokens.weight"}, true},
        {false, NULL, "bf16", {"model.embed_tokens.weight", "lm_head.weight"}, true},
        {false, "bf16", NULL, {"model.embed_tokens.weight", "lm_head.weight"}, true},
        {false, "bf16", "bf16", {"model.embed_tokens.weight"}, false},
        {true, "f16", "f16", {"lm_head.weight"}, false},
    };
    char from[512], out[512];
    for (size_t i = 0; i < COUNT(cases); i++) {
        done d;
        nib_quantize_layer layers[] = {layer("model.embed_tokens", cases[i].embed),
                                       layer("lm_head", cases[i].head)};
        if (!cases[i].alias)
            layers[1].source = "model.embed_tokens";
        write_source(at(from, "src"), config, cases[i].alias ? head_only : embed_only, 1, &alias,
                     cases[i].alias);
        quantize(&d, from, layers, 2, at(out, "out"), "torchao", false);
        expect(&d, NIB_OK);
        free_done(&d);
        nib_checkpoint *cp = open_ok(out);
        for (size_t n = 0; n < 3 && cases[i].written[n] != NULL; n++)
            if (nib__checkpoint_find(cp, cases[i].written[n]) == NULL)
                fail_msg("case %zu: %s is missing", i, cases[i].written[n]);
        /* The alias remains only if the names were not separated. */
        assert_true((nib__checkpoint_alias(cp, alias.key) != NULL) ==
                    (cases[i].alias && !cases[i].untied));
        expect_text(out, "config.json",
                    cases[i].untied ? "\"tie_word_embeddings\": false"
                                    : "\"tie_word_embeddings\": true");
        for (int l = 0; l < 2; l++) {
            nib_weight w;
            bool found = false;
            nib_err err;
            if (nib__checkpoint_weight(&w, &found, cp, layers[l].name, NULL, &err) != NIB_OK)
                fail_msg("case %zu: %s", i, err.text);
            assert_true(found == (cases[i].untied || cases[i].alias || l == 0));
            char name[64];
            const char *asked = l == 0 ? cases[i].embed : cases[i].head;
            if (found)
                assert_string_equal(nib__scheme_name(name, &w.scheme),
                                    asked == NULL ? "f32" : asked);
        }
        nib__checkpoint_close(cp);
        drop(out);
        drop(from);
    }
}

/* The embedding and the head may have the same codes. Formats that can store them once do, with the
 * activations of the head. The others store them twice, and the ledger says so. */
static void test_shared_codes(void **state)
{
    (void)state;
    static const source_tensor embed_only[] =
        {{"model.embed_tokens.weight", NIB_TYPE_F32, {4, 64}, 2}},
                               head_only[] = {{"lm_head.weight", NIB_TYPE_F32, {4, 64}, 2}};
    static const nib_meta alias = {"model.embed_tokens.weight", "lm_head.weight"};
    static const struct {
        bool alias; /* as in test_shared_tensors */
        const char *embed, *head, *format, *note;
        bool once, alike; /* stored once; both names have the same values */
    } cases[] = {
        {false, "int4wo-g32-sym", "8da4w-g32", NULL, NULL, true, true},
        {true, "int4wo-g32-sym", "8da4w-g32", NULL, "a tensor of its own", false, true},
        {false, "int8wo", "int8wo", "nibble", NULL, true, true},
        {false, "int4wo-g32-sym", "8da4w-g32", "torchao", NULL, true, true},
        {false, "int8wo", "int8wo", "compressed-tensors", "--format nibble stores them once", false,
         true},
        {false, "int8wo", "int4wo-g32-sym", "nibble", "a tensor of its own", false, false},
        {true, "int4wo-g32-sym", "int4wo-g64-sym", "nibble", "a tensor of its own", false, false},
    };
    char from[512], out[512], name[64];
    for (size_t i = 0; i < COUNT(cases); i++) {
        done d;
        nib_quantize_layer layers[] = {layer("model.embed_tokens", cases[i].embed),
                                       layer("lm_head", cases[i].head)};
        nib_weight w;
        nib_err err;
        float a[64], b[64];
        bool found;
        if (!cases[i].alias)
            layers[1].source = "model.embed_tokens";
        write_source(at(from, "src"), config, cases[i].alias ? head_only : embed_only, 1, &alias,
                     cases[i].alias);
        quantize(&d, from, layers, 2, at(out, "out"), cases[i].format, false);
        expect(&d, NIB_OK);
        assert_int_equal(count_settings(&d.ledger, "untied", cases[i].note), !cases[i].once);
        assert_true((d.ledger.layers[0].bytes == 0 || d.ledger.layers[1].bytes == 0) ==
                    cases[i].once);
        assert_true(d.ledger.layers[0].sqnr_db > 10 && d.ledger.layers[1].sqnr_db > 10);
        free_done(&d);
        expect_text(out, "config.json",
                    cases[i].once ? "\"tie_word_embeddings\": true"
                                  : "\"tie_word_embeddings\": false");
        nib_checkpoint *cp = open_ok(out);
        if (nib__checkpoint_weight(&w, NULL, cp, "model.embed_tokens", NULL, &err) != NIB_OK)
            fail_msg("case %zu: %s", i, err.text);
        assert_string_equal(nib__scheme_name(name, &w.scheme),
                            cases[i].once ? cases[i].head : cases[i].embed);
        nib__weight_row(&w, 3, a);
        assert_int_equal(nib__checkpoint_weight(&w, &found, cp, "lm_head", NULL, NULL), NIB_OK);
        assert_true(found == !cases[i].once);
        if (found) {
            assert_string_equal(nib__scheme_name(name, &w.scheme), cases[i].head);
            nib__weight_row(&w, 3, b);
            assert_true((memcmp(a, b, sizeof a) == 0) == cases[i].alike);
        }
        nib__checkpoint_close(cp);
        drop(out);
        drop(from);
    }
}

/* ---- metadata of a whole file ---- */

/* Rewriting a nibble file without codes drops its "nibble" entry, and config.json has a
 * quantization only if there are codes. */
static void test_rewriting_a_nibble_file(void **state)
{
    (void)state;
    char from[512], cast[512], out[512];
    done d;
    const nib_quantize_layer plain[] = {layer("lm_head", "f32")};
    write_source(at(from, "src"), config, usual, COUNT(usual), NULL, 0);
    quantize(&d, from, plain, 1, at(cast, "cast"), "nibble", false);
    expect(&d, NIB_OK);
    free_done(&d);
    char *text = read_text(cast, "config.json");
    assert_null(strstr(text, "quantization_config"));
    nib__release(&heap, text);
    static const char *const schemes[] = {"8da4w-g32", "8da4w-g32-actsym"}, *const says[] = {
                                                                                "torchao",
                                                                                "nibble"};
    for (size_t i = 0; i < COUNT(schemes); i++) {
        const nib_quantize_layer layers[] = {layer("lm_head", schemes[i])};
        nib_weight w;
        char name[64];
        quantize(&d, cast, layers, 1, at(out, "out"), i == 0 ? "torchao" : NULL, false);
        expect(&d, NIB_OK);
        assert_string_equal(d.report.format, says[i]);
        free_done(&d);
        nib_checkpoint *cp = open_ok(out);
        assert_int_equal(nib__checkpoint_weight(&w, NULL, cp, "lm_head", NULL, NULL), NIB_OK);
        assert_string_equal(nib__scheme_name(name, &w.scheme), schemes[i]);
        assert_string_equal(nib__checkpoint_dialect(cp, "lm_head"), says[i]);
        nib__checkpoint_close(cp);
        drop(out);
    }
    drop(cast);
    drop(from);
}

/* ---- errors ---- */

/* The source's hash covers every tensor, also one at the offset of an empty one. */
static void test_source_hash(void **state)
{
    (void)state;
    static const source_tensor tensors[] = {{"empty", NIB_TYPE_F64, {0}, 1},
                                            {"a.weight", NIB_TYPE_F32, {4, 8}, 2}};
    static const char key[] = "\"xxh3_128\": \"";
    const nib_quantize_layer layers[] = {layer("a", NULL)};
    char from[512], out[512], file[600], hashes[2][33];
    for (int changed = 0; changed < 2; changed++) {
        done d;
        uint64_t n = 0;
        write_source(at(from, "src"), config, tensors, COUNT(tensors), NULL, 0);
        snprintf(file, sizeof file, "%s/model.safetensors", from);
        const int fd = open(file, O_RDWR);
        assert_int_equal(pread(fd, &n, 8, 0), 8);
        if (changed)
            assert_int_equal(pwrite(fd, "\1", 1, (off_t)(8 + n)), 1);
        close(fd);
        quantize(&d, from, layers, 1, at(out, "out"), NULL, false);
        expect(&d, NIB_OK);
        free_done(&d);
        char *manifest = read_text(out, "nibble.json");
        const char *hash = strstr(manifest, key);
        assert_non_null(hash);
        snprintf(hashes[changed], 33, "%s", hash + sizeof key - 1);
        nib__release(&heap, manifest);
        drop(out);
        drop(from);
    }
    assert_string_not_equal(hashes[0], hashes[1]);
}

/* A cast that would write an infinity is refused. */
static void test_rejects_overflowing_cast(void **state)
{
    (void)state;
    static const source_tensor one[] = {{"a.weight", NIB_TYPE_F32, {4, 8}, 2}};
    char from[512], out[512], file[600];
    done d;
    const nib_quantize_layer layers[] = {layer("a", "f16")};
    const float large = 65520; /* rounds up to 65536; 65504 is the largest */
    uint64_t n = 0;
    write_source(at(from, "src"), config, one, 1, NULL, 0);
    snprintf(file, sizeof file, "%s/model.safetensors", from);
    const int fd = open(file, O_RDWR);
    assert_int_equal(pread(fd, &n, 8, 0), 8);
    assert_int_equal(pwrite(fd, &large, 4, (off_t)(8 + n + 4 * 13)), 4);
    close(fd);
    quantize(&d, from, layers, 1, at(out, "out"), NULL, false);
    refused(NIB_BAD_INPUT, d.status, &d.err);
    free_done(&d);
    assert_false(exists(out));
    drop(from);
}

static void test_output_paths(void **state)
{
    (void)state;
    char from[512], out[512];
    done d;
    const nib_quantize_layer layers[] = {layer("model.layers.0.mlp.up_proj", "int8wo")};
    write_source(at(from, "src"), config, usual, COUNT(usual), NULL, 0);
    static const char *const bad[] = {"src", "src/", "src/out", "src/../src", "."};
    for (size_t i = 0; i < COUNT(bad); i++) {
        quantize(&d, from, layers, 1, at(out, bad[i]), NULL, true);
        refused(NIB_USAGE, d.status, &d.err);
        free_done(&d);
    }
    quantize(&d, from, layers, 1, at(out, "none/out"), NULL, false);
    refused(NIB_IO, d.status, &d.err);
    free_done(&d);
    quantize(&d, from, layers, 1, at(out, "out"), "zip", false);
    refused(NIB_USAGE, d.status, &d.err);
    free_done(&d);
    const nib_quantize_layer absent[] = {layer("model.layers.9.mlp.up_proj", "int8wo")};
    quantize(&d, from, absent, 1, out, NULL, false);
    refused(NIB_BAD_INPUT, d.status, &d.err);
    free_done(&d);
    const nib_quantize_layer norm[] = {layer("model.norm", "int8wo")};
    quantize(&d, from, norm, 1, out, NULL, false);
    refused(NIB_BAD_INPUT, d.status, &d.err);
    free_done(&d);
    assert_false(exists(out));
    drop(from);
}

/* A NaN in a layer or in a copied tensor is found, and no output is left. */
static void test_rejects_nan(void **state)
{
    (void)state;
    static const size_t places[] = {640 + 64 * 5 + 7, 3}; /* in q_proj, in the embedding */
    char from[512], out[512], file[600];
    done d;
    const nib_quantize_layer layers[] = {layer("model.layers.0.self_attn.q_proj", "8da4w-g32")};
    for (size_t i = 0; i < COUNT(places); i++) {
        write_source(at(from, "src"), config, usual, COUNT(usual), NULL, 0);
        snprintf(file, sizeof file, "%s/model.safetensors", from);
        const uint16_t nan = 0x7fc0;
        const int fd = open(file, O_RDWR);
        uint64_t n = 0;
        assert_int_equal(pread(fd, &n, 8, 0), 8);
        assert_int_equal(pwrite(fd, &nan, 2, (off_t)(8 + n + 2 * places[i])), 2);
        close(fd);
        quantize(&d, from, layers, 1, at(out, "out"), NULL, false);
        refused(NIB_BAD_INPUT, d.status, &d.err);
        free_done(&d);
        assert_false(exists(out));
        assert_false(exists(at(out, "out.part")));
        drop(from);
    }
}

static bool stop_at(void *ctx, const char *what, uint64_t done_bytes, uint64_t total)
{
    uint64_t *calls = ctx;
    assert_string_equal(what, "quantize");
    assert_true(done_bytes <= total);
    return ++*calls < 3;
}

static void test_cancel_and_dry_run(void **state)
{
    (void)state;
    char from[512], out[512];
    uint64_t calls = 0;
    const nib_callbacks callbacks = {.progress = stop_at, .ctx = &calls};
    const nib_quantize_layer layers[] = {layer("model.layers.0.mlp.up_proj", "int8wo")};
    write_source(at(from, "src"), config, usual, COUNT(usual), NULL, 0);
    nib_checkpoint *cp = open_ok(from);
    nib_quantize_job job = {.checkpoint = cp,
                            .layers = layers,
                            .count = 1,
                            .recipe = "int8wo",
                            .out = at(out, "out"),
                            .pool = pool,
                            .callbacks = &callbacks,
                            .allocator = &heap};
    nib_ledger ledger;
    nib_quantize_report report = {0};
    nib_err err = {NIB_OK, ""};
    nib__ledger_init(&ledger, &heap);
    refused(NIB_CANCELLED, nib__quantize(&ledger, &report, &job, &err), &err);
    assert_int_equal(calls, 3);
    nib__ledger_free(&ledger);
    char part[512];
    assert_false(exists(out) || exists(at(part, "out.part")));
    job.dry_run = true;
    nib__ledger_init(&ledger, &heap);
    assert_int_equal(nib__quantize(&ledger, &report, &job, &err), NIB_OK);
    assert_int_equal(calls, 3); /* nothing was read */
    assert_false(exists(out));
    const uint64_t predicted = report.bytes_after;
    nib_text text;
    nib__text_init(&text, &heap);
    nib__quantize_render(&ledger, &report, &text);
    assert_non_null(strstr(text.at, "would write"));
    assert_non_null(strstr(text.at, "1 linear layer: 1 asked int8wo, 1 done, 0 substituted"));
    nib__text_clear(&text);
    nib_jsonw json;
    nib__jsonw_init(&json, &text, 2);
    nib__jsonw_object(&json);
    nib__quantize_json(&ledger, &report, &json);
    nib__jsonw_object_end(&json);
    assert_non_null(strstr(text.at, "\"dry_run\": true"));
    nib__text_free(&text);
    nib__ledger_free(&ledger);
    job.dry_run = false;
    job.callbacks = NULL;
    nib__ledger_init(&ledger, &heap);
    assert_int_equal(nib__quantize(&ledger, &report, &job, &err), NIB_OK);
    assert_int_equal(report.bytes_after, predicted);
    struct stat st;
    char path[600];
    snprintf(path, sizeof path, "%s/model.safetensors", out);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_size, predicted);
    nib__ledger_free(&ledger);
    nib__checkpoint_close(cp);
    drop(out);
    drop(from);
}

/* If another process writes to the source during the read, no output is left. */
static bool append_to(void *ctx, const char *what, uint64_t done_bytes, uint64_t total)
{
    (void)what, (void)done_bytes, (void)total;
    FILE *file = fopen(ctx, "ab");
    assert_non_null(file);
    assert_int_equal(fputc('x', file), 'x');
    return fclose(file) == 0;
}

static void test_source_written_to(void **state)
{
    (void)state;
    char from[512], file[600], out[512], part[512];
    const nib_quantize_layer layers[] = {layer("model.layers.0.mlp.up_proj", "int8wo")};
    write_source(at(from, "src"), config, usual, COUNT(usual), NULL, 0);
    snprintf(file, sizeof file, "%s/model.safetensors", from);
    nib_checkpoint *cp = open_ok(from);
    const nib_callbacks callbacks = {.progress = append_to, .ctx = file};
    const nib_quantize_job job = {.checkpoint = cp,
                                  .layers = layers,
                                  .count = 1,
                                  .recipe = "int8wo",
                                  .out = at(out, "out"),
                                  .pool = pool,
                                  .callbacks = &callbacks,
                                  .allocator = &heap};
    nib_ledger ledger;
    nib_quantize_report report = {0};
    nib_err err = {NIB_OK, ""};
    nib__ledger_init(&ledger, &heap);
    refused(NIB_IO, nib__quantize(&ledger, &report, &job, &err), &err);
    nib__ledger_free(&ledger);
    assert_false(exists(out) || exists(at(part, "out.part")));
    nib__checkpoint_close(cp);
    drop(from);
}

/* The same bytes for any number of threads, SQNR included. */
static void test_threads(void **state)
{
    (void)state;
    static const int counts[] = {1, 2, 3, 8};
    char from[512], out[512], *first = NULL;
    const nib_quantize_layer layers[] = {layer("model.embed_tokens", "int8wo-tensor"),
                                         layer("model.layers.0.self_attn.q_proj", "8da4w-g32"),
                                         layer("model.layers.0.mlp.up_proj", "mxfp8"),
                                         layer("lm_head", "int4wo-g32")};
    write_source(at(from, "src"), config, usual, COUNT(usual), NULL, 0);
    nib_pool *const usual_pool = pool;
    for (size_t i = 0; i < COUNT(counts); i++) {
        done d;
        assert_int_equal(nib__pool_open(&pool, counts[i], &heap, NULL), NIB_OK);
        quantize(&d, from, layers, COUNT(layers), at(out, "out"), NULL, false);
        expect(&d, NIB_OK);
        free_done(&d);
        char *manifest = read_text(out, "nibble.json");
        if (first == NULL)
            first = manifest;
        else {
            assert_string_equal(first, manifest);
            nib__release(&heap, manifest);
        }
        nib__pool_close(pool);
        drop(out);
    }
    pool = usual_pool;
    nib__release(&heap, first);
    drop(from);
}

/* A full disk is an error and leaves no output. */
static void test_full_disk(void **state)
{
    (void)state;
    char from[512], out[512], part[512];
    done d;
    struct rlimit old, small;
    const nib_quantize_layer layers[] = {layer("model.layers.0.mlp.up_proj", "int8wo")};
    write_source(at(from, "src"), config, usual, COUNT(usual), NULL, 0);
    getrlimit(RLIMIT_FSIZE, &old);
    signal(SIGXFSZ, SIG_IGN);
    static const rlim_t limits[] = {0, 100, 2000, 4000};
    for (size_t i = 0; i < COUNT(limits); i++) {
        small = old;
        small.rlim_cur = limits[i];
        setrlimit(RLIMIT_FSIZE, &small);
        quantize(&d, from, layers, 1, at(out, "out"), NULL, false);
        setrlimit(RLIMIT_FSIZE, &old);
        refused(NIB_IO, d.status, &d.err);
        free_done(&d);
        assert_false(exists(out) || exists(at(part, "out.part")));
    }
    drop(from);
}

static void test_no_memory(void **state)
{
    (void)state;
    char from[512], out[512], part[512];
    const nib_quantize_layer layers[] = {layer("model.layers.0.mlp.up_proj", "8da4w-g32"),
                                         layer("lm_head", "int8wo-tensor")};
    write_source(at(from, "src"), config, usual, COUNT(usual), NULL, 0);
    nib_checkpoint *cp = open_ok(from);
    nib_status status = NIB_NO_MEMORY;
    for (int n = 0; status != NIB_OK; n++) {
        failing f = {n, 0};
        const nib_allocator a = failing_allocator(&f);
        const nib_quantize_job job = {.checkpoint = cp,
                                      .layers = layers,
                                      .count = 2,
                                      .recipe = "int8wo",
                                      .out = at(out, "out"),
                                      .pool = pool,
                                      .allocator = &a};
        nib_ledger ledger;
        nib_quantize_report report;
        nib_err err = {NIB_OK, ""};
        nib__ledger_init(&ledger, &a);
        status = nib__quantize(&ledger, &report, &job, &err);
        nib__ledger_free(&ledger);
        if (status != NIB_OK && status != NIB_NO_MEMORY)
            fail_msg("allocation %d: %s", n, err.text);
        assert_int_equal(f.live, 0);
        assert_true(exists(out) == (status == NIB_OK));
        assert_false(exists(at(part, "out.part")));
        assert_true(n < 2000);
    }
    nib__checkpoint_close(cp);
    drop(out);
    drop(from);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_torchao_parts),
        cmocka_unit_test(test_named_configs),
        cmocka_unit_test(test_config_patterns),
        cmocka_unit_test(test_directory),
        cmocka_unit_test(test_what_torchao_cannot_hold),
        cmocka_unit_test(test_smallest_format),
        cmocka_unit_test(test_casts_are_reported),
        cmocka_unit_test(test_shared_tensors),
        cmocka_unit_test(test_shared_codes),
        cmocka_unit_test(test_rewriting_a_nibble_file),
        cmocka_unit_test(test_source_hash),
        cmocka_unit_test(test_rejects_overflowing_cast),
        cmocka_unit_test(test_output_paths),
        cmocka_unit_test(test_rejects_nan),
        cmocka_unit_test(test_cancel_and_dry_run),
        cmocka_unit_test(test_source_written_to),
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_full_disk),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
