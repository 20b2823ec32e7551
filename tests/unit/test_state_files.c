/* SPDX-License-Identifier: Apache-2.0
 *
 * Models whose layers keep states in other files (src/model/config_gguf_states.c,
 * src/checkpoint/renames.c): what Nibble converts, and what it refuses.
 */
#include "safetensors.h"
#include "session.h"

#include "nibble_tools.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "last_logits.h"
#include "refused.h"
#include "safetensors_build.h"

/* Compares all tensors of two models; floats of other types as f32, and A_log, which a GGUF has as
 * -e^A_log, to its last bits. */
static void same_tensors(const char *a, const char *b)
{
    opened one = must_open(&(open_how){.path = a}), two = must_open(&(open_how){.path = b});
    const nib_checkpoint *cp = one.model->net.checkpoint, *other = two.model->net.checkpoint;
    assert_int_equal(nib__checkpoint_count(cp), nib__checkpoint_count(other));
    for (size_t i = 0; i < nib__checkpoint_count(cp); i++) {
        const nib_tensor *t = nib__checkpoint_at(cp, i), *u = nib__checkpoint_find(other, t->name);
        if (u == NULL || u->rank != t->rank || memcmp(u->shape, t->shape, sizeof t->shape) != 0)
            fail_msg("%s: %s differs, or its shape", b, t->name);
        if (t->type == u->type) {
            assert_memory_equal(t->data, u->data, t->bytes);
            continue;
        }
        const int64_t n = (int64_t)(8 * t->bytes / (uint64_t)nib__type_bits(t->type));
        float *values = malloc(2 * (size_t)n * sizeof *values);
        nib__to_f32(values, t->data, t->type, n);
        nib__to_f32(values + n, u->data, u->type, n);
        const bool log = strstr(t->name, "linear_attn.A_log") != NULL;
        for (int64_t e = 0; log && e < n; e++)
            if (fabsf(values[e] - values[n + e]) > 4e-7F)
                fail_msg("%s: %s is %g, not %g", b, t->name, (double)values[n + e],
                         (double)values[e]);
        if (!log && memcmp(values, values + n, (size_t)n * sizeof *values) != 0)
            fail_msg("%s: %s has other values", b, t->name);
        free(values);
    }
    close_opened(&one);
    close_opened(&two);
}

/* As a GGUF a model has the same logits, and the same tensors when it is converted back. */
static void test_convert(void **state)
{
    enum { ROOM = 256 };
    static const char *const models[] = {"lfm2", "lfm2_moe", "granite_hybrid", "qwen3_5_draft"};
    float want[ROOM] = {0}, got[ROOM] = {0};
    (void)state;
    for (size_t i = 0; i < COUNT(models); i++) {
        char path[256], directory[256], file[300], back[300];
        snprintf(path, sizeof path, "tests/golden/models/%s", models[i]);
        make_directory(directory);
        snprintf(file, sizeof file, "%s/out.gguf", directory);
        snprintf(back, sizeof back, "%s/back", directory);
        must_convert(path, file, "gguf");
        must_convert(file, back, "safetensors");
        run_model(want, &(open_how){.path = path, .dtype = "f32"}, ROOM);
        run_model(got, &(open_how){.path = file, .dtype = "f32"}, ROOM);
        assert_memory_equal(want, got, sizeof want);
        run_model(got, &(open_how){.path = back, .dtype = "f32"}, ROOM);
        assert_memory_equal(want, got, sizeof want);
        same_tensors(path, back);
        drop_directory(back);
        drop_directory(directory);
    }
}

/* From GGUF to GGUF nothing changes. A rate that no A_log has is off by less than 1e-6 elsewhere.
 */
static void test_convert_gguf(void **state)
{
    enum { ROOM = 512 };
    static const char *const models[] = {"lfm2moe", "granitehybrid", "granitehybrid_moe",
                                         "qwen35",  "qwen35moe",     "qwen3next"};
    float want[ROOM] = {0}, got[ROOM] = {0};
    (void)state;
    for (size_t i = 0; i < COUNT(models); i++) {
        char path[256], directory[256], file[300], back[300];
        snprintf(path, sizeof path, "tests/golden/gguf/%s.gguf", models[i]);
        make_directory(directory);
        snprintf(file, sizeof file, "%s/out.gguf", directory);
        snprintf(back, sizeof back, "%s/back", directory);
        must_convert(path, file, "gguf");
        same_tensors(path, file);
        must_convert(file, back, "nibble");
        open_how how = {.path = path, .dtype = "f32", .recipe = "weight-only"};
        run_model(want, &how, ROOM);
        how.path = file;
        run_model(got, &how, ROOM);
        assert_memory_equal(want, got, sizeof want);
        how.path = back;
        run_model(got, &how, ROOM);
        assert_close(models[i], "a directory", want, got, ROOM);
        drop_directory(back);
        drop_directory(directory);
    }
}

/* A rate that is not -e^A_log of any A_log is refused when A_log is written. */
static void test_bad_rate(void **state)
{
    static const char path[] = "tests/golden/gguf/granitehybrid.gguf",
                      rates[] = "model.layers.2.mamba.A_log";
    static const float bad[] = {1, 0}; /* others cannot be run */
    const nib_allocator a = nib__allocator_default();
    const nib_sink sink = {ignore, NULL};
    char directory[256], file[300], out[300], *bytes;
    size_t size, at = 0;
    nib_err err;
    (void)state;
    make_directory(directory);
    snprintf(file, sizeof file, "%s/in.gguf", directory);
    snprintf(out, sizeof out, "%s/out", directory);
    assert_int_equal(nib__file_read(&bytes, &size, path, 1 << 20, &a, &err), NIB_OK);
    opened o = must_open(&(open_how){.path = path});
    const nib_tensor *t = nib__checkpoint_find(o.model->net.checkpoint, rates);
    while (memcmp(bytes + at, t->data, t->bytes) != 0)
        at++;
    close_opened(&o);
    for (size_t i = 0; i < COUNT(bad); i++) {
        memcpy(bytes + at, &bad[i], sizeof bad[i]);
        write_bytes(file, bytes, size);
        o = must_open(&(open_how){.path = file});
        const nib_convert_options options = {.out = out, .format = "nibble"};
        refused(NIB_BAD_INPUT, nib_convert(o.model, &options, NIB_FORM_JSON, &sink, &err), &err);
        close_opened(&o);
    }
    nib__release(&a, bytes);
    drop_directory(directory);
}

/* Writes Granite 4 without Mamba-2: a layer of random weights. more: keys of config.json. */
static void write_granite(const char *directory, const char *more)
{
    enum { WIDTH = 32, FFN = 64, VOCAB = 40, KV = 16 };
    static const struct {
        const char *name;
        int64_t n, k; /* k 0: a vector */
    } tensors[] = {{"model.embed_tokens.weight", VOCAB, WIDTH},
                   {"model.norm.weight", WIDTH, 0},
                   {"model.layers.0.input_layernorm.weight", WIDTH, 0},
                   {"model.layers.0.post_attention_layernorm.weight", WIDTH, 0},
                   {"model.layers.0.self_attn.q_proj.weight", WIDTH, WIDTH},
                   {"model.layers.0.self_attn.k_proj.weight", KV, WIDTH},
                   {"model.layers.0.self_attn.v_proj.weight", KV, WIDTH},
                   {"model.layers.0.self_attn.o_proj.weight", WIDTH, WIDTH},
                   {"model.layers.0.shared_mlp.input_linear.weight", 2 * FFN, WIDTH},
                   {"model.layers.0.shared_mlp.output_linear.weight", WIDTH, FFN}};
    static float data[16384];
    char header[2048] = "{", config[1024];
    int64_t at = 0;
    for (size_t i = 0; i < COUNT(tensors); i++) {
        const int64_t n = tensors[i].n, k = tensors[i].k, count = n * nib__max(k, 1);
        const size_t size = strlen(header);
        char shape[32];
        snprintf(shape, sizeof shape, k > 0 ? "%d,%d" : "%d", (int)n, (int)k);
        snprintf(header + size, sizeof header - size,
                 "%s\"%s\":{\"dtype\":\"F32\",\"shape\":[%s],\"data_offsets\":[%d,%d]}",
                 i > 0 ? "," : "", tensors[i].name, shape, (int)(4 * at), (int)(4 * (at + count)));
        assert_true(at + count <= (int64_t)COUNT(data));
        for (int64_t end = at + count; at < end; at++)
            data[at] = (float)nib__random_normal(1, (int64_t)i, at) * (k > 0 ? 0.3F : 1);
    }
    strcat(header, "}");
    snprintf(config, sizeof config,
             "{\"model_type\":\"granitemoehybrid\",\"hidden_size\":%d,\"vocab_size\":%d,"
             "\"num_hidden_layers\":1,\"num_attention_heads\":4,\"num_key_value_heads\":2,"
             "\"intermediate_size\":%d,\"shared_intermediate_size\":%d,\"num_local_experts\":0,"
             "\"embedding_multiplier\":3,\"attention_multiplier\":0.25,\"logits_scaling\":2,"
             "\"residual_multiplier\":0.5,\"mamba_n_heads\":2,\"tie_word_embeddings\":true,"
             "\"layer_types\":[\"attention\"],%s}",
             WIDTH, VOCAB, FFN, FFN, more);
    write_text(directory, "config.json", config);
    write_safetensors(directory, "model.safetensors", header, data, 4 * (size_t)at);
}

/* Without Mamba-2 Granite 4 is Granite in a GGUF, which needs RoPE. */
static void test_attention_alone(void **state)
{
    enum { ROOM = 64 };
    char directory[256], file[300];
    float want[ROOM] = {0}, got[ROOM] = {0};
    nib_err err;
    const nib_sink sink = {ignore, NULL};
    (void)state;
    make_directory(directory);
    snprintf(file, sizeof file, "%s/out.gguf", directory);
    write_granite(directory, "\"position_embedding_type\":\"rope\"");
    must_convert(directory, file, "gguf");
    run_model(want, &(open_how){.path = directory, .dtype = "f32"}, ROOM);
    run_model(got, &(open_how){.path = file, .dtype = "f32"}, ROOM);
    assert_memory_equal(want, got, sizeof want);
    opened o = must_open(&(open_how){.path = file});
    assert_int_equal(o.model->net.config.arch, NIB_ARCH_GRANITE);
    close_opened(&o);
    write_granite(directory, "\"position_embedding_type\":\"nope\"");
    o = must_open(&(open_how){.path = directory});
    const nib_convert_options options = {.out = file, .format = "gguf", .force = true};
    refused(NIB_UNSUPPORTED, nib_convert(o.model, &options, NIB_FORM_JSON, &sink, &err), &err);
    close_opened(&o);
    drop_directory(directory);
}

/* Fills out with the logits of a directory's model in the order that a GGUF has, as run_model. */
static void run_ordered(float *out, const char *path, const char *recipe, size_t room)
{
    opened o = must_open(&(open_how){.path = path, .dtype = "f32"});
    nib_model *own;
    nib_err err;
    const nib_request request = {
        .dtype = "f32", .recipe = recipe, .context = o.model->net.config.context, .lookup = -1};
    assert_int_equal(nib__model_ordered(&own, o.model, true, &err), NIB_OK);
    assert_non_null(own);
    nib_session_close(o.session);
    nib_plan_close(o.plan);
    nib_model_close(o.model);
    o.model = own;
    if (nib_plan_open(&o.plan, own, &request, &err) != NIB_OK ||
        nib_session_open(&o.session, own, o.plan, 1, &err) != NIB_OK)
        fail_msg("%s: %s", path, err.text);
    run_opened(out, &o, room);
    close_opened(&o);
}

/* Gated DeltaNet, whose heads a GGUF has in another order, or whose z apart: weights stay from a
 * directory to GGUF and back. A file has the bits of the directory's model in the file's order,
 * also quantized; of heads that take turns, out_proj sums in another order than the directory's. */
static void test_orders(void **state)
{
    enum { ROOM = 512 };
    static const char *const models[] = {"qwen35", "qwen35moe", "qwen3next"};
    const nib_sink sink = {ignore, NULL};
    float want[ROOM] = {0}, got[ROOM] = {0};
    (void)state;
    for (size_t i = 0; i < COUNT(models); i++) {
        char path[256], directory[256], from[300], file[300], back[300];
        nib_err err;
        snprintf(path, sizeof path, "tests/golden/gguf/%s.gguf", models[i]);
        make_directory(directory);
        snprintf(from, sizeof from, "%s/from", directory);
        snprintf(file, sizeof file, "%s/out.gguf", directory);
        snprintf(back, sizeof back, "%s/back", directory);
        must_convert(path, from, "safetensors");
        must_convert(from, file, "gguf");
        must_convert(file, back, "safetensors");
        same_tensors(from, back);
        run_model(got, &(open_how){.path = file, .dtype = "f32"}, ROOM);
        run_ordered(want, from, NULL, ROOM);
        assert_memory_equal(want, got, sizeof want);
        run_model(want, &(open_how){.path = from, .dtype = "f32"}, ROOM);
        if (strcmp(models[i], "qwen3next") == 0)
            assert_memory_equal(want, got, sizeof want);
        assert_close(models[i], "a directory", want, got, ROOM);
        opened o = must_open(&(open_how){.path = from});
        const nib_request request = {.recipe = "int4wo-sym-ggml"};
        const nib_quantize_options options = {
            .request = &request, .out = file, .format = "gguf", .force = true};
        if (nib_quantize(o.model, &options, NIB_FORM_JSON, &sink, &err) != NIB_OK)
            fail_msg("%s: %s", models[i], err.text);
        close_opened(&o);
        run_ordered(want, from, request.recipe, ROOM);
        run_model(got, &(open_how){.path = file, .dtype = "f32", .recipe = "weight-only"}, ROOM);
        assert_memory_equal(want, got, sizeof want);
        drop_directory(back);
        drop_directory(from);
        drop_directory(directory);
    }
}

/* What no key of a GGUF says, and codes whose rows cannot be put in another order. */
static void test_refused(void **state)
{
    static const char *const models[] = {"qwen3_5_moe", "qwen3_next", "granite_hybrid_moe", NULL};
    char directory[256], path[300], out[300], codes[300];
    (void)state;
    make_directory(directory);
    snprintf(out, sizeof out, "%s/out.gguf", directory);
    snprintf(codes, sizeof codes, "%s/codes", directory);
    must_convert("tests/golden/gguf/qwen35.gguf", codes, "nibble");
    for (size_t i = 0; i < COUNT(models); i++) {
        nib_err err;
        const nib_sink sink = {ignore, NULL};
        snprintf(path, sizeof path, "%s%s", models[i] != NULL ? "tests/golden/models/" : codes,
                 models[i] != NULL ? models[i] : "");
        opened o = must_open(&(open_how){.path = path});
        const nib_convert_options options = {.out = out, .format = "gguf"};
        refused(NIB_UNSUPPORTED, nib_convert(o.model, &options, NIB_FORM_JSON, &sink, &err), &err);
        close_opened(&o);
    }
    drop_directory(codes);
    drop_directory(directory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_convert),  cmocka_unit_test(test_convert_gguf),
        cmocka_unit_test(test_bad_rate), cmocka_unit_test(test_attention_alone),
        cmocka_unit_test(test_orders),   cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
