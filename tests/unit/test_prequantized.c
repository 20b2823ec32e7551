/* SPDX-License-Identifier: Apache-2.0
 *
 * Models in other tools' dialects give the logits of the same values stored as f32, for any order
 * of columns, instruction set and prompt chunk size.
 */
#include "opening.h"
#include "safetensors_build.h"
#include "session.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "refused.h"

enum { TOKENS = 24, VOCAB = 257, DATA_MOST = 1 << 20 };

/* ---- the same values as f32 ---- */

typedef struct copy {
    nib_text header;
    uint8_t *data;
    size_t size;
} copy;

/* Allocates a tensor; k 0: a vector of n. */
static void *add_tensor(copy *c, const char *name, nib_type type, int64_t n, int64_t k)
{
    const size_t bits = (size_t)(n * nib__max(1, k)) * (size_t)nib__type_bits(type), at = c->size;
    nib__text_format(&c->header, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%d", at == 0 ? "" : ",",
                     name, nib__type_stored_name(type), (int)n);
    if (k != 0)
        nib__text_format(&c->header, ",%d", (int)k);
    nib__text_format(&c->header, "],\"data_offsets\":[%zu,%zu]}", at, at + bits / 8);
    c->size += bits / 8;
    assert_true(c->size <= DATA_MOST);
    return c->data + at;
}

static void *add_part(copy *c, const char *module, const char *suffix, nib_type type, int64_t n,
                      int64_t k)
{
    char name[200];
    snprintf(name, sizeof name, "%s%s", module, suffix);
    return add_tensor(c, name, type, n, k);
}

static void add_floats(copy *c, const char *name, const void *from, nib_type type, int64_t n)
{
    float value;
    uint8_t *to = add_tensor(c, name, NIB_TYPE_F32, n, 0);
    for (int64_t i = 0; i < n; i++) { /* both sides may be unaligned */
        nib__to_f32(&value, (const uint8_t *)from + i * nib__type_bits(type) / 8, type, 1);
        memcpy(to + 4 * i, &value, sizeof value);
    }
}

/* Writes a weight with these values [n][k]. */
typedef void put_weight(copy *c, const char *module, const float *values, int64_t n, int64_t k);

static void put_float(copy *c, const char *module, const float *values, int64_t n, int64_t k)
{
    memcpy(add_part(c, module, ".weight", NIB_TYPE_F32, n, k), values,
           (size_t)(n * k) * sizeof *values);
}

static void add_weight(copy *c, const nib_checkpoint *cp, const char *module, put_weight *put)
{
    char name[200];
    nib_weight w;
    nib_err err;
    if (nib__checkpoint_weight(&w, NULL, cp, module, NULL, &err) != NIB_OK)
        fail_msg("%s", err.text);
    float *values = calloc((size_t)(w.n * w.k), sizeof *values);
    assert_non_null(values);
    for (int64_t i = 0; i < w.n; i++)
        nib__weight_row(&w, i, values + i * w.k);
    put(c, module, values, w.n, w.k);
    free(values);
    if (w.bias == NULL)
        return;
    snprintf(name, sizeof name, "%s.bias", module);
    add_floats(c, name, w.bias, w.bias_type, w.n);
}

static bool ends_with(const char *text, const char *end)
{
    const size_t size = strlen(text), end_size = strlen(end);
    return size >= end_size && strcmp(text + size - end_size, end) == 0;
}

/* Writes the source's values as a model: projections with `put`, the rest as f32. */
static void write_weights(const char *dir, const char *source, put_weight *put)
{
    const nib_allocator a = nib__allocator_default();
    nib_checkpoint *cp = open_ok(source);
    copy c = {.data = calloc(1, DATA_MOST)};
    assert_non_null(c.data);
    nib__text_init(&c.header, &a);
    nib__text_str(&c.header, "{");
    for (size_t i = 0; i < nib__checkpoint_module_count(cp); i++) {
        const char *module = nib__checkpoint_module(cp, i);
        add_weight(&c, cp, module, ends_with(module, "proj") ? put : put_float);
    }
    for (size_t i = 0; i < nib__checkpoint_count(cp); i++) {
        const nib_tensor *t = nib__checkpoint_at(cp, i);
        if (t->rank == 1 && ends_with(t->name, "norm.weight"))
            add_floats(&c, t->name, t->data, t->type, t->shape[0]);
    }
    nib__text_str(&c.header, "}");
    write_safetensors(dir, "model.safetensors", c.header.at, c.data, c.size);
    nib__text_free(&c.header);
    nib__checkpoint_close(cp);
    free(c.data);
}

/* Writes the source's config.json with this quantization_config, or without one. */
static void write_config(const char *dir, const char *source, const char *quantization)
{
    const nib_allocator a = nib__allocator_default();
    char path[256], *text;
    size_t size;
    nib_text out;
    nib__text_init(&out, &a);
    snprintf(path, sizeof path, "%s/config.json", source);
    assert_int_equal(nib__file_read(&text, &size, path, 1 << 16, &a, NULL), NIB_OK);
    char *end = strstr(text, "\"quantization_config\""); /* the last member */
    while (end != NULL && *end != ',')
        end--;
    if (end == NULL)
        end = strrchr(text, '}');
    nib__text_put(&out, text, (size_t)(end - text));
    if (quantization != NULL)
        nib__text_format(&out, ",\"quantization_config\":%s", quantization);
    nib__text_str(&out, "}");
    write_text(dir, "config.json", out.at);
    nib__text_free(&out);
    nib__release(&a, text);
}

/* ---- the codes of some dialects, rounded to nearest ---- */

static float largest(const float *values, int64_t ld, int64_t rows, int64_t columns)
{
    float most = 1e-6F;
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j++)
            most = fmaxf(most, fabsf(values[i * ld + j]));
    return most;
}

enum { SIDE = 48 }; /* of a block of FP8: neither 64 nor 140 is a multiple */

static void put_fp8(copy *c, const char *module, const float *values, int64_t n, int64_t k)
{
    const int64_t rows = nib__ceil_div(n, SIDE), columns = nib__ceil_div(k, SIDE);
    uint8_t *scales = add_part(c, module, ".weight_scale_inv", NIB_TYPE_F32, rows, columns);
    uint8_t *codes = add_part(c, module, ".weight", NIB_TYPE_E4M3, n, k);
    for (int64_t b = 0; b < rows * columns; b++) {
        const int64_t i0 = b / columns * SIDE, j0 = b % columns * SIDE;
        const int64_t i1 = nib__min(n, i0 + SIDE), j1 = nib__min(k, j0 + SIDE);
        const float scale = largest(values + i0 * k + j0, k, i1 - i0, j1 - j0) / 448;
        memcpy(scales + 4 * b, &scale, sizeof scale);
        for (int64_t i = i0; i < i1; i++)
            for (int64_t j = j0; j < j1; j++)
                codes[i * k + j] = nib__f32_to_e4m3_saturated(values[i * k + j] / scale);
    }
}

/* Two 4-bit codes a byte, divided by `scale`. */
static void put_e2m1(uint8_t *packed, const float *values, int64_t count, float scale)
{
    for (int64_t j = 0; j < count; j++)
        packed[j / 2] |= (uint8_t)(nib__f32_to_e2m1(values[j] / scale) << j % 2 * 4);
}

static void put_nvfp4(copy *c, const char *module, const float *values, int64_t n, int64_t k)
{
    const int64_t groups = nib__ceil_div(k, 16);
    const float whole = 448 * 6 / largest(values, k, n, k);
    memcpy(add_part(c, module, ".weight_global_scale", NIB_TYPE_F32, 1, 0), &whole, sizeof whole);
    uint8_t *packed = add_part(c, module, ".weight_packed", NIB_TYPE_U8, n, k / 2);
    uint8_t *scales = add_part(c, module, ".weight_scale", NIB_TYPE_E4M3, n, groups);
    for (int64_t i = 0; i < n; i++)
        for (int64_t g = 0; g < groups; g++) {
            const float *from = values + i * k + g * 16;
            const int64_t count = nib__min(16, k - g * 16);
            const float scale = largest(from, 0, 1, count) / 6 * whole;
            scales[i * groups + g] = nib__f32_to_e4m3_saturated(fmaxf(scale, 0x1p-6F));
            put_e2m1(packed + i * (k / 2) + g * 8, from, count,
                     nib__e4m3_to_f32(scales[i * groups + g]) / whole);
        }
}

static void put_int8(copy *c, const char *module, const float *values, int64_t n, int64_t k)
{
    uint8_t *scales = add_part(c, module, ".weight_scale", NIB_TYPE_F32, n, 1);
    int8_t *codes = add_part(c, module, ".weight", NIB_TYPE_I8, n, k);
    for (int64_t i = 0; i < n; i++) {
        const float scale = largest(values + i * k, k, 1, k) / 127;
        memcpy(scales + 4 * i, &scale, sizeof scale);
        for (int64_t j = 0; j < k; j++)
            codes[i * k + j] = (int8_t)lrintf(values[i * k + j] / scale);
    }
}

/* Projections in act-order. put_int4 writes groups of 32; in an ordered projection, input j belongs
 * to group j mod the number of groups. */
static const char *ordered;

static bool is_ordered(const char *module) { return strstr(ordered, strrchr(module, '.') + 1); }

static void put_int4(copy *c, const char *module, const float *values, int64_t n, int64_t k)
{
    enum { GROUP = 32, GROUPS_MOST = 8, PER_WORD = 8 };
    const int64_t groups = nib__ceil_div(k, GROUP), words = nib__ceil_div(k, PER_WORD);
    const int64_t shape[] = {n, k};
    const bool mixed = is_ordered(module);
    memcpy(add_part(c, module, ".weight_shape", NIB_TYPE_I64, 2, 0), shape, sizeof shape);
    uint8_t *scales = add_part(c, module, ".weight_scale", NIB_TYPE_F32, n, groups);
    uint8_t *packed = add_part(c, module, ".weight_packed", NIB_TYPE_I32, n, words);
    uint8_t *index = mixed ? add_part(c, module, ".weight_g_idx", NIB_TYPE_I32, k, 0) : NULL;
    assert_true(groups <= GROUPS_MOST && (!mixed || k % (groups * GROUP) == 0));
    for (int64_t j = 0; mixed && j < k; j++)
        memcpy(index + 4 * j, &(int32_t){(int32_t)(j % groups)}, 4);
    for (int64_t i = 0; i < n; i++) {
        float scale[GROUPS_MOST] = {0};
        for (int64_t j = 0; j < k; j++) {
            float *s = &scale[mixed ? j % groups : j / GROUP];
            *s = fmaxf(*s, fmaxf(fabsf(values[i * k + j]), 1e-6F) / 7);
        }
        memcpy(scales + 4 * i * groups, scale, (size_t)groups * sizeof *scale);
        for (int64_t j = 0; j < k; j++) {
            const float s = scale[mixed ? j % groups : j / GROUP];
            const int code = 8 + (int)lrintf(values[i * k + j] / s);
            packed[4 * i * words + j / 2] |= (uint8_t)(code << j % 2 * 4);
        }
    }
}

/* ---- logits ---- */

static float *run_as(const open_how *how, int64_t chunk)
{
    opened o = must_open(how);
    float *out = calloc((size_t)TOKENS * VOCAB, sizeof *out);
    nib_slot slots[TOKENS];
    nib_err err;
    assert_non_null(out);
    assert_int_equal(nib_session_vocab(o.session), VOCAB);
    for (int i = 0; i < TOKENS; i++)
        slots[i] = (nib_slot){0, i, (i * 37 + 11) % VOCAB, NIB_SLOT_LOGITS};
    for (int64_t at = 0; at < TOKENS; at += chunk) {
        const int64_t count = nib__min(chunk, TOKENS - at);
        const float *logits;
        if (nib_session_step(o.session, slots + at, (size_t)count, &logits, &err) != NIB_OK)
            fail_msg("%s", err.text);
        memcpy(out + at * VOCAB, logits, (size_t)(count * VOCAB) * sizeof *out);
    }
    close_opened(&o);
    return out;
}

static float *run(const char *path, const char *isa, const char *dtype, int64_t chunk)
{
    return run_as(&(open_how){.path = path, .dtype = dtype, .isa = isa, .threads = 2}, chunk);
}

static void expect_near(const char *what, const float *a, const float *b, double tolerance)
{
    double off = 0, size = 0;
    for (int i = 0; i < TOKENS * VOCAB; i++) {
        off = fmax(off, fabs((double)a[i] - (double)b[i]));
        size = fmax(size, fabs((double)b[i]));
    }
    if (!(off <= tolerance * size))
        fail_msg("%s: logits differ by %g of %g", what, off, size);
}

static void expect_equal(const char *what, const float *a, const float *b)
{
    if (memcmp(a, b, (size_t)TOKENS * VOCAB * sizeof *a) != 0)
        fail_msg("%s: the logits have other bits", what);
}

/* tolerance: 1e-5 where activations are float. */
static void expect_runs(const char *source, double tolerance)
{
    char dir[256];
    float *stored = run(source, NULL, "f32", TOKENS);
    make_directory(dir);
    write_weights(dir, source, put_float);
    write_config(dir, source, NULL);
    float *plain = run(dir, NULL, "f32", TOKENS);
    expect_near(source, stored, plain, tolerance);
    float *single = run(source, NULL, "f32", 1), *chunks = run(source, NULL, "f32", 5);
    float *scalar = run(source, "ref", "f32", TOKENS);
    expect_equal("token by token", single, stored);
    expect_equal("in chunks", chunks, stored);
    expect_equal("without vectors", scalar, stored);
    float *half = run(source, NULL, "bf16", TOKENS), *half_scalar = run(source, "ref", "bf16", 7);
    expect_equal("bf16 without vectors", half_scalar, half);
    expect_near("bf16", half, plain, 0.1);
    drop_directory(dir);
    float *all[] = {stored, plain, single, chunks, scalar, half, half_scalar};
    for (size_t i = 0; i < COUNT(all); i++)
        free(all[i]);
}

/* q, k and v share an order and so one gather; gate and up share another; o and down have their
 * own. */
static void test_act_order(void **state)
{
    (void)state;
    expect_runs("tests/golden/dialects/gptq_model", 1e-5);
}

static void make_int4(char dir[256], const char *source, const char *names)
{
    ordered = names;
    make_directory(dir);
    write_weights(dir, source, put_int4);
    write_config(dir, source,
                 "{\"quant_method\":\"compressed-tensors\",\"format\":\"pack-quantized\","
                 "\"config_groups\":{\"a\":{\"targets\":[\"Linear\"],\"weights\":{"
                 "\"num_bits\":4,\"type\":\"int\",\"strategy\":\"group\",\"group_size\":32,"
                 "\"actorder\":\"group\"},\"input_activations\":{\"num_bits\":8,"
                 "\"type\":\"int\",\"strategy\":\"token\",\"dynamic\":true}}}}");
}

/* The rows that make inputs are those in the plan's ledger. */
static void expect_recorded(const char *path)
{
    opened o = must_open(&(open_how){.path = path, .dtype = "f32"});
    const nib_lowered *ops = &o.session->runner.ops;
    const nib_kernel *maker = NULL;
    for (size_t i = 0; i < ops->count; i++) {
        const nib_node *node = &ops->nodes[i];
        if (node->op == NIB_OP_QUANT || node->op == NIB_OP_NORM_QUANT)
            maker =
                node->op == NIB_OP_QUANT ? node->uses->uses[0].quant : node->uses->uses[0].normed;
        const char *name = maker != NULL ? maker->name : "none";
        const char *said = o.plan->assignment.ledger.layers[node->site].uses[0].quant;
        if (node->op == NIB_OP_LINEAR && strcmp(name, said != NULL ? said : "none") != 0)
            fail_msg("%s: %s makes its input, not %s", node->uses->layer->name, name, said);
    }
    close_opened(&o);
}

/* If some of the layers that share a norm have act-order, no fused row may skip the norm's output,
 * as these layers gather from it. */
static void test_partial_act_order(void **state)
{
    (void)state;
    static const char source[] = "tests/golden/models/qwen2";
    static const char *const orders[] = {
        "none",      "q_proj",  "k_proj",        "v_proj",
        "gate_proj", "up_proj", "k_proj v_proj", "q_proj k_proj v_proj gate_proj up_proj"};
    static const char *const one_pass[] = {"norm_quant*"};
    for (size_t i = 0; i < COUNT(orders); i++) {
        char dir[256], floats[256];
        make_int4(dir, source, orders[i]);
        make_directory(floats);
        write_weights(floats, dir, put_float);
        write_config(floats, source, NULL);
        open_how how = {.path = dir, .dtype = "f32", .threads = 2};
        float *plain = run(floats, NULL, "f32", TOKENS), *all = run_as(&how, TOKENS);
        how.without = (nib_strings){one_pass, COUNT(one_pass)};
        float *apart = run_as(&how, TOKENS);
        how.recipe = "weight-only";
        float *wide = run_as(&how, TOKENS);
        expect_equal(orders[i], all, apart);
        expect_near(orders[i], all, plain, 0.1);
        expect_near("with float activations", wide, plain, 1e-5);
        expect_recorded(dir);
        free(plain), free(all), free(apart), free(wide);
        drop_directory(floats);
        drop_directory(dir);
    }
}

/* A plan that skips the norm's output while a layer gathers from it is refused at lowering. */
static void test_skipped_norm_output_is_refused(void **state)
{
    (void)state;
    enum { WIDTH = 64 };
    char dir[256];
    int32_t order[WIDTH];
    nib_lowered out;
    nib_err err;
    make_int4(dir, "tests/golden/models/qwen2", "none");
    opened o = must_open(&(open_how){.path = dir, .dtype = "f32"});
    nib_network *net = &o.model->net;
    nib_arena arena;
    size_t key = 0;
    nib__arena_init(&arena, &o.engine->allocator, 0);
    assert_int_equal(nib__lower(&out, net, &o.plan->assignment, &arena, &err), NIB_OK);
    for (int32_t i = 0; i < WIDTH; i++)
        order[i] = WIDTH - 1 - i;
    while (net->sites[key].role != NIB_ROLE_K)
        key++;
    net->sites[key].order = order;
    o.plan->layers[key].ordered = true;
    refused(NIB_FAILED, nib__lower(&out, net, &o.plan->assignment, &arena, &err), &err);
    net->sites[key].order = NULL;
    nib__arena_free(&arena);
    close_opened(&o);
    drop_directory(dir);
}

static nib_status write_nothing(void *ctx, const char *bytes, size_t size)
{
    (void)ctx, (void)bytes, (void)size;
    return NIB_OK;
}

/* Nibble's own dialect keeps codes and order, so the logits have the same bits. */
static void test_nibble_format_keeps_act_order(void **state)
{
    (void)state;
    static const char source[] = "tests/golden/dialects/gptq_model";
    char dir[256], out[300];
    nib_err err;
    nib_engine *engine;
    nib_model *model;
    const nib_sink sink = {write_nothing, NULL};
    make_directory(dir);
    snprintf(out, sizeof out, "%s/out", dir);
    const nib_convert_options options = {.out = out, .format = "nibble"};
    assert_int_equal(nib_engine_open(&engine, NULL, &err), NIB_OK);
    assert_int_equal(nib_model_open(&model, engine, source, NULL, &err), NIB_OK);
    if (nib_convert(model, &options, NIB_FORM_TEXT, &sink, &err) != NIB_OK)
        fail_msg("%s", err.text);
    nib_model_close(model);
    nib_engine_close(engine);
    float *stored = run(source, NULL, "f32", TOKENS), *kept = run(out, NULL, "f32", TOKENS);
    expect_equal("converted", kept, stored);
    free(stored);
    free(kept);
    drop_directory(out);
    drop_directory(dir);
}

/* True if a row with packed weights runs the projections for one token. */
static bool runs_packed(const char *path)
{
    opened o = must_open(&(open_how){.path = path, .dtype = "bf16"});
    const nib_kernel *row = o.plan->assignment.layers[1].uses[0].kernel;
    const bool packed = row->packing != NULL;
    close_opened(&o);
    return packed;
}

static void test_dialects(void **state)
{
    (void)state;
    static const char source[] = "tests/golden/models/qwen2";
    static const struct {
        put_weight *put;
        const char *quantization;
        double tolerance;
        bool packed; /* packing lets a fast row run it */
    } rows[] = {
        {put_fp8, "{\"quant_method\":\"fp8\",\"weight_block_size\":[48,48]}", 1e-5, true},
        {put_nvfp4,
         "{\"quant_method\":\"compressed-tensors\",\"format\":\"nvfp4-pack-quantized\","
         "\"config_groups\":{\"a\":{\"targets\":[\"Linear\"],\"weights\":{\"num_bits\":4,"
         "\"type\":\"float\",\"strategy\":\"tensor_group\",\"group_size\":16}}}}",
         1e-5, true},
        {put_int8,
         "{\"quant_method\":\"compressed-tensors\",\"format\":\"int-quantized\","
         "\"config_groups\":{\"a\":{\"targets\":[\"Linear\"],\"weights\":{\"num_bits\":8,"
         "\"type\":\"int\",\"strategy\":\"channel\"},\"input_activations\":{\"num_bits\":8,"
         "\"type\":\"int\",\"strategy\":\"token\",\"dynamic\":true}}}}",
         0.05, true},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        char dir[256];
        make_directory(dir);
        write_weights(dir, source, rows[i].put);
        write_config(dir, source, rows[i].quantization);
        expect_runs(dir, rows[i].tolerance);
        if (rows[i].packed && nib__cpu_isa_mask(&(int64_t){0}, "avx2", NULL) == NIB_OK)
            assert_true(runs_packed(dir));
        drop_directory(dir);
    }
}

static void test_plan_lists_gathers(void **state)
{
    (void)state;
    opened o = must_open(&(open_how){.path = "tests/golden/dialects/gptq_model"});
    const nib_ledger *notes = &o.model->net.notes;
    size_t gathers = 0, linears = 0;
    const nib_lowered *ops = &o.session->runner.ops;
    for (size_t i = 0; i < ops->count; i++) {
        gathers += ops->nodes[i].op == NIB_OP_GATHER;
        linears += ops->nodes[i].op == NIB_OP_LINEAR;
    }
    assert_int_equal(linears, 8);
    assert_int_equal(gathers, 4); /* before q, o, gate and down */
    bool said = false;
    for (size_t i = 0; i < notes->note_count; i++)
        said = said || strstr(notes->notes[i].text, "7 weights have their columns in act-order");
    assert_true(said);
    close_opened(&o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_act_order),
        cmocka_unit_test(test_partial_act_order),
        cmocka_unit_test(test_skipped_norm_output_is_refused),
        cmocka_unit_test(test_plan_lists_gathers),
        cmocka_unit_test(test_nibble_format_keeps_act_order),
        cmocka_unit_test(test_dialects),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
