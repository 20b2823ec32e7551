/* SPDX-License-Identifier: Apache-2.0
 *
 * Checkpoints written from stacks of experts (experts.c). Codes are written expert by expert, and
 * equal those written from a checkpoint that stores them so. Floats of a known family get its
 * stacks and names again, whatever the source's form.
 */
#include "experts.h"
#include "verify.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "checkpoint_build.h"
#include "rewriting_build.h"

#define EXPERTS "model.layers.0.mlp.experts."

enum { E = 2, I = 32, D = 64, MOST = 8 }; /* experts, rows of gate and of up, inputs */

static float value(int e, int leaf, int row, int k)
{
    return value_of((size_t)(e * 3 + leaf), row * 100 + k);
}

/* Stored forms: rows, transposed halves, transposed columns in turn, and one by one. */
typedef enum form { ROWS, HALVES, TURNS, ONE_BY_ONE, FORMS } form;

static const char *const configs[FORMS] = {
    "{\"model_type\":\"qwen3_5_moe\"}", "{\"model_type\":\"llama4_text\"}",
    "{\"model_type\":\"gpt_oss\"}", "{\"model_type\":\"qwen3_5_moe\"}"};
static const char *const leaves[] = {"gate_proj", "up_proj", "down_proj"};

static float up[E * 2 * I * D], down[E * D * I], bias[E * 2 * I]; /* as the last form stores them */

/* Writes and opens a checkpoint of this form. All have the same values. */
static void make_form(made *m, form f)
{
    static float one[3 * E][2 * I * D];
    static char names[3 * E][2][100];
    part parts[6 * E] = {{NULL}};
    size_t count = 0;
    for (int e = 0; e < E; e++) {
        for (int i = 0; i < 2 * I * D; i++) {
            const int row = i / D, k = i % D, p = row / I;
            const int at = f == TURNS ? row % I * 2 + p : row;
            const float v = value(e, p, row % I, k);
            up[e * 2 * I * D + (f == ROWS ? i : k * 2 * I + at)] = v;
            one[3 * e + p][row % I * D + k] = v;
            bias[e * 2 * I + at] = value(e, p, row % I, 99);
        }
        for (int i = 0; i < D * I; i++) {
            const int row = i / I, k = i % I;
            down[e * D * I + (f == ROWS ? i : k * D + row)] = one[3 * e + 2][i] =
                value(e, 2, row, k);
        }
    }
    for (int i = 0; i < 3 * E && f == ONE_BY_ONE; i++) {
        const int64_t n = i % 3 == 2 ? D : I, k = i % 3 == 2 ? I : D;
        snprintf(names[i][0], sizeof names[i][0], EXPERTS "%d.%s.weight", i / 3, leaves[i % 3]);
        parts[count++] = (part){names[i][0], "F32", 2, {n, k}, one[i]};
    }
    const bool rows = f == ROWS;
    const char *prefix = f == HALVES ? "model.layers.0.feed_forward.experts." : EXPERTS;
    if (f != ONE_BY_ONE) {
        snprintf(names[0][0], sizeof names[0][0], "%sgate_up_proj", prefix);
        snprintf(names[0][1], sizeof names[0][1], "%sdown_proj", prefix);
        parts[count++] = (part){names[0][0], "F32", 3, {E, rows ? 2 * I : D, rows ? D : 2 * I}, up};
        parts[count++] = (part){names[0][1], "F32", 3, {E, rows ? D : I, rows ? I : D}, down};
    }
    if (f == TURNS)
        parts[count++] = (part){EXPERTS "gate_up_proj_bias", "F32", 2, {E, 2 * I}, bias};
    if (make_checkpoint(m, configs[f], parts, count) != NIB_OK)
        fail_msg("%s", m->err.text);
}

/* Rewrites all weights; scheme NULL: converts them to floats in safetensors. */
static void rewrite(const made *m, const char *out, const char *scheme, const char *format,
                    const char *family)
{
    nib_quantize_layer layers[MOST];
    const size_t count = nib__checkpoint_module_count(m->cp);
    done d;
    assert_int_equal(count, 3 * E);
    for (size_t i = 0; i < count; i++) {
        layers[i] = layer(nib__checkpoint_module(m->cp, i), scheme != NULL ? scheme : "f32");
        layers[i].recode = scheme == NULL;
    }
    run_job(&d, m->dir,
            (nib_quantize_job){.layers = layers,
                               .count = count,
                               .out = out,
                               .format = format,
                               .convert = scheme == NULL,
                               .family = family,
                               .force = true});
    expect(&d, NIB_OK);
    bool said = false;
    for (size_t i = 0; i < d.ledger.note_count; i++)
        said = said || strstr(d.ledger.notes[i].text, "expert by expert") != NULL;
    assert_int_equal(said, nib__checkpoint_stacks(m->cp) > 0 && family == NULL);
    free_done(&d);
}

/* Every tensor of `wanted` is in `got`, with the same bytes. */
static void expect_same(const char *got, const char *wanted)
{
    nib_checkpoint *a = open_ok(got), *b = open_ok(wanted);
    for (size_t i = 0; i < nib__checkpoint_count(b); i++) {
        const nib_tensor *w = nib__checkpoint_at(b, i), *g = nib__checkpoint_find(a, w->name);
        if (g == NULL)
            fail_msg("%s is missing", w->name);
        assert_int_equal(g->type, w->type);
        assert_int_equal(g->bytes, w->bytes);
        assert_memory_equal(g->data, w->data, (size_t)w->bytes);
    }
    nib__checkpoint_close(a);
    nib__checkpoint_close(b);
}

static void test_written(void **state)
{
    (void)state;
    static const struct {
        const char *scheme, *format;
    } cases[] = {{NULL, "safetensors"},
                 {"int8wo", "torchao"},
                 {"int4wo-g32", "nibble"},
                 {"fp8wo", "compressed-tensors"}};
    for (size_t c = 0; c < COUNT(cases); c++)
        for (int f = FORMS; f-- > 0;) {
            char out[512], plain[512];
            made m;
            make_form(&m, (form)f);
            assert_int_equal(nib__checkpoint_stacks(m.cp), f == ONE_BY_ONE ? 0 : 2);
            rewrite(&m, at(f == ONE_BY_ONE ? plain : out, f == ONE_BY_ONE ? "plain" : "out"),
                    cases[c].scheme, cases[c].format, NULL);
            if (f != ONE_BY_ONE)
                expect_same(out, at(plain, "plain"));
            if (f == TURNS) {
                nib_checkpoint *cp = open_ok(out);
                const nib_tensor *t = nib__checkpoint_find(cp, EXPERTS "1.up_proj.bias");
                assert_non_null(t);
                for (int i = 0; i < I; i++) {
                    float stored;
                    memcpy(&stored, t->data + sizeof stored * (size_t)i, sizeof stored);
                    assert_true(stored == value(1, 1, i, 99));
                }
                nib__checkpoint_close(cp);
            }
            drop_checkpoint(&m);
        }
    char path[512];
    drop(at(path, "out"));
    drop(at(path, "plain"));
}

static bool holds(const char *file, size_t size, const void *bytes, size_t count)
{
    return memmem(file, size, bytes, count) != NULL;
}

/* Floats: the stacks of the family, byte for byte, under its names. */
static void test_joined(void **state)
{
    static const struct {
        form form;
        const char *family, *gate_up, *down;
        bool biased;
    } cases[] = {{HALVES, "llama4_text", "model.layers.0.feed_forward.experts.gate_up_proj",
                  "model.layers.0.feed_forward.experts.down_proj", false},
                 {TURNS, "gpt_oss", EXPERTS "gate_up_proj", EXPERTS "down_proj", true},
                 {ROWS, "granitemoe", "model.layers.0.block_sparse_moe.input_linear.weight",
                  "model.layers.0.block_sparse_moe.output_linear.weight", false},
                 {ONE_BY_ONE, "qwen3_moe", EXPERTS "0.gate_proj.weight",
                  EXPERTS "1.down_proj.weight", false}};
    char out[512], path[600], name[NIB_FUSED_NAME];
    (void)state;
    for (size_t c = 0; c < COUNT(cases); c++) {
        made m;
        char *file;
        size_t size;
        nib_err err;
        make_form(&m, cases[c].form);
        rewrite(&m, at(out, "out"), NULL, "safetensors", cases[c].family);
        snprintf(path, sizeof path, "%s/model.safetensors", out);
        assert_int_equal(nib__file_read(&file, &size, path, 1 << 24, &heap, &err), NIB_OK);
        for (int i = 0; i < 2; i++) {
            snprintf(name, sizeof name, "\"%s\"", i == 0 ? cases[c].gate_up : cases[c].down);
            if (!holds(file, size, name, strlen(name)))
                fail_msg("%s: %s is missing", cases[c].family, name);
        }
        const bool stacks = cases[c].form != ONE_BY_ONE;
        assert_int_equal(holds(file, size, "experts.0.", 10), !stacks);
        assert_int_equal(holds(file, size, up, sizeof up), stacks);
        assert_int_equal(holds(file, size, down, sizeof down), stacks);
        assert_int_equal(holds(file, size, bias, sizeof bias), cases[c].biased);
        nib__release(&heap, file);
        drop_checkpoint(&m);
        drop(out);
    }
    /* published as they are named here; transformers 5 has other names in memory */
    assert_false(nib__experts_written_name(name, "mixtral", false,
                                           "model.layers.0.block_sparse_moe.experts.0.w1.weight"));
}

/* Experts of different types are written one by one, with a note. */
static void test_unlike(void **state)
{
    static float gate[I * D];
    static const uint16_t half[I * D];
    const part parts[] = {{EXPERTS "0.gate_proj.weight", "F32", 2, {I, D}, gate},
                          {EXPERTS "0.up_proj.weight", "F32", 2, {I, D}, gate},
                          {EXPERTS "1.gate_proj.weight", "F32", 2, {I, D}, gate},
                          {EXPERTS "1.up_proj.weight", "BF16", 2, {I, D}, half}};
    nib_quantize_layer layers[COUNT(parts)];
    char out[512];
    made m;
    done d;
    (void)state;
    if (make_checkpoint(&m, configs[TURNS], parts, COUNT(parts)) != NIB_OK)
        fail_msg("%s", m.err.text);
    for (size_t i = 0; i < COUNT(parts); i++) {
        layers[i] = layer(nib__checkpoint_module(m.cp, i), "bf16");
        layers[i].choice.keep = true;
    }
    run_job(&d, m.dir,
            (nib_quantize_job){.layers = layers,
                               .count = COUNT(parts),
                               .out = at(out, "out"),
                               .format = "safetensors",
                               .convert = true,
                               .family = "gpt_oss",
                               .force = true});
    expect(&d, NIB_OK);
    assert_non_null(strstr(d.ledger.notes[d.ledger.note_count - 1].text,
                           "1 stack of experts is written expert by expert"));
    free_done(&d);
    drop_checkpoint(&m);
    drop(out);
}

/* verify finds a value that is not finite in the expert that it belongs to, and only there. */
static void test_verified(void **state)
{
    (void)state;
    const part parts[] = {{EXPERTS "gate_up_proj", "F32", 3, {E, D, 2 * I}, up}};
    for (int bad = 0; bad < 2; bad++) {
        made m;
        nib_err err;
        nib_text text;
        size_t problems = 7;
        up[E * 2 * I * D - 1] = bad ? NAN : 1; /* of up: the last value of the last column */
        if (make_checkpoint(&m, configs[TURNS], parts, COUNT(parts)) != NIB_OK)
            fail_msg("%s", m.err.text);
        const nib_verify_job job = {.checkpoint = m.cp, .pool = pool, .allocator = &heap};
        nib__text_init(&text, &heap);
        assert_int_equal(nib__verify_render(&job, NIB_FORM_TEXT, &text, &problems, &err), NIB_OK);
        assert_int_equal(problems, bad);
        const char *found =
            strstr(text.at, "not-finite: " EXPERTS "1.up_proj.weight: value at row 31");
        assert_int_equal(found != NULL, bad);
        nib__text_free(&text);
        drop_checkpoint(&m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_written),
                                       cmocka_unit_test(test_joined), cmocka_unit_test(test_unlike),
                                       cmocka_unit_test(test_verified)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
