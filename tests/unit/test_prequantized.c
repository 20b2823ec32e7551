/* SPDX-License-Identifier: Apache-2.0
 *
 * Models of other tools' dialects run: their logits are those of the same values stored as f32,
 * whatever the order of their columns, the instruction set and the chunks of the prompt.
 */
#include "safetensors_build.h"
#include "session.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

enum { TOKENS = 24, VOCAB = 257, DATA_MOST = 1 << 20 };

/* ---- the same values as f32 ---- */

typedef struct copy {
    nib_text header;
    uint8_t *data;
    size_t size;
} copy;

static float *add_tensor(copy *c, const char *name, int rank, int64_t n, int64_t k)
{
    const size_t bytes = (size_t)(n * (rank == 2 ? k : 1)) * sizeof(float), at = c->size;
    nib__text_format(&c->header, "%s\"%s\":{\"dtype\":\"F32\",\"shape\":[%d", at == 0 ? "" : ",",
                     name, (int)n);
    if (rank == 2)
        nib__text_format(&c->header, ",%d", (int)k);
    nib__text_format(&c->header, "],\"data_offsets\":[%zu,%zu]}", at, at + bytes);
    c->size += bytes;
    assert_true(c->size <= DATA_MOST);
    return (float *)(void *)(c->data + at);
}

static void add_weight(copy *c, const nib_checkpoint *cp, const char *module)
{
    char name[200];
    nib_weight w;
    nib_err err;
    if (nib__checkpoint_weight(&w, NULL, cp, module, NULL, &err) != NIB_OK)
        fail_msg("%s", err.text);
    snprintf(name, sizeof name, "%s.weight", module);
    float *to = add_tensor(c, name, 2, w.n, w.k);
    for (int64_t i = 0; i < w.n; i++)
        nib__weight_row(&w, i, to + i * w.k);
    if (w.bias == NULL)
        return;
    snprintf(name, sizeof name, "%s.bias", module);
    nib__to_f32(add_tensor(c, name, 1, w.n, 0), w.bias, w.bias_type, w.n);
}

static bool ends_with(const char *text, const char *end)
{
    const size_t size = strlen(text), end_size = strlen(end);
    return size >= end_size && strcmp(text + size - end_size, end) == 0;
}

/* Every weight dequantized, every norm widened, config.json without quantization_config. */
static void write_dequantized(const char *dir, const char *source)
{
    const nib_allocator a = nib__allocator_default();
    nib_checkpoint *cp;
    nib_err err;
    copy c = {.data = calloc(1, DATA_MOST)};
    assert_non_null(c.data);
    if (nib__checkpoint_open(&cp, source, &a, &err) != NIB_OK)
        fail_msg("%s", err.text);
    nib__text_init(&c.header, &a);
    nib__text_str(&c.header, "{");
    for (size_t i = 0; i < nib__checkpoint_module_count(cp); i++)
        add_weight(&c, cp, nib__checkpoint_module(cp, i));
    for (size_t i = 0; i < nib__checkpoint_count(cp); i++) {
        const nib_tensor *t = nib__checkpoint_at(cp, i);
        if (t->rank == 1 && ends_with(t->name, "norm.weight"))
            nib__to_f32(add_tensor(&c, t->name, 1, t->shape[0], 0), t->data, t->type, t->shape[0]);
    }
    nib__text_str(&c.header, "}");
    write_safetensors(dir, "model.safetensors", c.header.at, c.data, c.size);
    nib__text_free(&c.header);
    nib__checkpoint_close(cp);
    free(c.data);

    char path[256], *text;
    size_t size;
    snprintf(path, sizeof path, "%s/config.json", source);
    assert_int_equal(nib__file_read(&text, &size, path, 1 << 16, &a, &err), NIB_OK);
    char *cut = strstr(text, "\"quantization_config\"");
    assert_non_null(cut);
    while (*--cut != ',')
        ;
    memcpy(cut, "}\n", 3); /* it is the last member */
    write_text(dir, "config.json", text);
    nib__release(&a, text);
}

/* ---- logits ---- */

static float *run(const char *path, const char *isa, const char *dtype, int64_t chunk)
{
    opened o = must_open(&(open_how){.path = path, .dtype = dtype, .isa = isa, .threads = 2});
    float *out = calloc((size_t)TOKENS * VOCAB, sizeof *out);
    nib_slot slots[TOKENS];
    nib_err err;
    assert_non_null(out);
    assert_int_equal(nib_session_vocab(o.session), VOCAB);
    for (int i = 0; i < TOKENS; i++)
        slots[i] = (nib_slot){0, i, (i * 37 + 11) % VOCAB, true};
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

static void expect_runs(const char *source)
{
    char dir[256];
    float *stored = run(source, NULL, "f32", TOKENS);
    make_directory(dir);
    write_dequantized(dir, source);
    float *plain = run(dir, NULL, "f32", TOKENS);
    expect_near(source, stored, plain, 1e-5);
    float *single = run(source, NULL, "f32", 1), *chunks = run(source, NULL, "f32", 5);
    float *scalar = run(source, "ref", "f32", TOKENS);
    expect_equal("token by token", single, stored);
    expect_equal("in chunks", chunks, stored);
    expect_equal("without vectors", scalar, stored);
    float *half = run(source, NULL, "bf16", TOKENS), *half_scalar = run(source, "ref", "bf16", 7);
    expect_equal("bf16 without vectors", half_scalar, half);
    expect_near("bf16", half, plain, 0.05);
    drop_directory(dir);
    float *all[] = {stored, plain, single, chunks, scalar, half, half_scalar};
    for (size_t i = 0; i < COUNT(all); i++)
        free(all[i]);
}

/* q, k and v share an order and so a gather; so do gate and up; o and down have their own. */
static void test_act_order(void **state)
{
    (void)state;
    expect_runs("tests/golden/dialects/gptq_model");
}

static void test_order_is_said(void **state)
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
        cmocka_unit_test(test_order_is_said),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
