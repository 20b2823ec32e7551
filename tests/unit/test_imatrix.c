/* SPDX-License-Identifier: Apache-2.0
 *
 * llama.cpp's importance matrices, in both forms, of plain weights, fused ones and experts; damaged
 * files and those of other models; written ones read back.
 */
#include "imatrix.h"

#include "file.h"
#include "fused.h"
#include "memory.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>
#include <cmocka.h>

#include "gguf_build.h"
#include "refused.h"
#include "safetensors_build.h"

enum { K = 4, EXPERTS = 3, F32 = 0 };

static char folder[256], before[4096];
static nib_allocator allocator;

typedef struct matrix {
    const char *name;
    uint64_t matrices;
    const float *values, *counts;
} matrix;

static const float plain[K] = {1, 2, 3, 4}, count_of_8[] = {8};
static const float experts[EXPERTS * K] = {1, 1, 1, 1, 2, 4, 6, 8, 0, 0, 0, 0};
static const float expert_counts[EXPERTS] = {1, 2, 0};
static const matrix usual[] = {{"blk.0.attn_q.weight", 1, plain, count_of_8},
                               {"blk.1.attn_qkv.weight", 1, plain, count_of_8},
                               {"blk.0.ffn_up_exps.weight", EXPERTS, experts, expert_counts}};

static void save(const char *name, const gguf_file *f) { write_bytes(name, f->bytes, f->size); }

/* A GGUF with `count` matrices, whose general.type is `type`. */
static void build_gguf(gguf_file *f, const char *type, const matrix *all, size_t count)
{
    char name[64];
    uint64_t offset = 0;
    put_header(f, 3, 2 * count, 1);
    put_key_text(f, "general.type", type);
    for (size_t i = 0; i < count; i++) {
        snprintf(name, sizeof name, "%s.in_sum2", all[i].name);
        put_tensor(f, name, F32, K, all[i].matrices, offset);
        offset += (4 * K * all[i].matrices + 31) / 32 * 32;
        snprintf(name, sizeof name, "%s.counts", all[i].name);
        put_tensor(f, name, F32, 1, all[i].matrices, offset);
        offset += (4 * all[i].matrices + 31) / 32 * 32;
    }
    put_padding(f, 32);
    for (size_t i = 0; i < count; i++) {
        put_bytes(f, all[i].values, 4 * K * (size_t)all[i].matrices);
        put_padding(f, 32);
        put_bytes(f, all[i].counts, 4 * (size_t)all[i].matrices);
        put_padding(f, 32);
    }
}

static void build_older(gguf_file *f, const matrix *all, size_t count)
{
    f->size = 0;
    put_int(f, count, 4);
    for (size_t i = 0; i < count; i++) {
        put_int(f, strlen(all[i].name), 4);
        put_bytes(f, all[i].name, strlen(all[i].name));
        put_int(f, 5, 4);
        put_int(f, K * all[i].matrices, 4);
        put_bytes(f, all[i].values, 4 * K * (size_t)all[i].matrices);
    }
}

static void check_layer(const nib_imatrix *m, const char *arch, const char *layer,
                        const float *want)
{
    double squares[K];
    nib_err err;
    bool found;
    assert_int_equal(nib__imatrix_read(squares, &found, m, arch, layer, K, &err), NIB_OK);
    assert_int_equal(found, want != NULL);
    for (int j = 0; j < K && want != NULL; j++)
        assert_true(squares[j] == (double)want[j]);
}

static void test_both_forms(void **state)
{
    static gguf_file f;
    nib_err err;
    (void)state;
    for (int older = 0; older < 2; older++) {
        nib_imatrix *m = NULL;
        if (older)
            build_older(&f, usual, COUNT(usual));
        else
            build_gguf(&f, "imatrix", usual, COUNT(usual));
        save("m", &f);
        assert_int_equal(nib__imatrix_open(&m, "m", &allocator, &err), NIB_OK);
        assert_int_equal(nib__imatrix_count(m), COUNT(usual));
        check_layer(m, "qwen3moe", "model.layers.0.self_attn.q_proj", plain);
        check_layer(m, "qwen3moe", "model.layers.0.mlp.experts.0.up_proj", experts);
        check_layer(m, "qwen3moe", "model.layers.0.mlp.experts.1.up_proj", experts + K);
        /* the older form has no counts of experts */
        check_layer(m, "qwen3moe", "model.layers.0.mlp.experts.2.up_proj",
                    older ? experts + 2 * K : NULL);
        check_layer(m, "qwen3moe", "model.layers.0.self_attn.o_proj", NULL);
        check_layer(m, "phi3", "model.layers.1.self_attn.k_proj", plain);
        check_layer(m, "phi3", "no such layer", NULL);
        nib__imatrix_close(m);
    }
}

static void test_another_model(void **state)
{
    static gguf_file f;
    nib_imatrix *m = NULL;
    nib_err err;
    double squares[2 * K];
    bool found;
    (void)state;
    build_gguf(&f, "imatrix", usual, COUNT(usual));
    save("m", &f);
    assert_int_equal(nib__imatrix_open(&m, "m", &allocator, &err), NIB_OK);
    refused(NIB_BAD_INPUT,
            nib__imatrix_read(squares, &found, m, "qwen3moe", "model.layers.0.self_attn.q_proj",
                              2 * K, &err),
            &err);
    refused(NIB_BAD_INPUT,
            nib__imatrix_read(squares, &found, m, "qwen3moe",
                              "model.layers.0.mlp.experts.3.up_proj", K, &err),
            &err);
    nib__imatrix_close(m);
}

static void refuse(const char *name, const char *words)
{
    nib_imatrix *m = NULL;
    nib_err err;
    refused(NIB_BAD_INPUT, nib__imatrix_open(&m, name, &allocator, &err), &err);
    if (strstr(err.text, words) == NULL)
        fail_msg("%s does not say %s", err.text, words);
}

static void test_damaged(void **state)
{
    static gguf_file f;
    const float negative[K] = {1, -1, 0, 0}, not_finite[K] = {1, NAN, 0, 0};
    const matrix twice[] = {usual[0], usual[0]};
    (void)state;
    build_older(&f, usual, COUNT(usual));
    const size_t whole = f.size;
    for (f.size = 0; f.size < whole; f.size++) {
        save("m", &f);
        refuse("m", f.size == 0 ? "" : "cut short");
    }
    build_older(&f, twice, 2);
    save("m", &f);
    refuse("m", "occurs twice");
    build_gguf(&f, "model", usual, 1);
    save("m", &f);
    refuse("m", "general.type is not \"imatrix\"");
    build_gguf(&f, "imatrix", &(matrix){"blk.0.attn_q.weight", 1, negative, count_of_8}, 1);
    save("m", &f);
    refuse("m", "value 1 of blk.0.attn_q.weight is -1");
    build_gguf(&f, "imatrix", &(matrix){"blk.0.attn_q.weight", 1, not_finite, count_of_8}, 1);
    save("m", &f);
    refuse("m", "value 1 of blk.0.attn_q.weight is nan");
}

enum { WRITTEN = 7 };

/* Squares of seven layers: 1 .. K times the layer's number, of 10 times as many tokens. */
typedef struct written {
    nib_imatrix_layer layers[WRITTEN];
    nib_input_stats stats[WRITTEN];
    double squares[WRITTEN][K];
    nib_imatrix_job job;
} written;

static void make_job(written *w, const char *arch, unsigned fused, const char *const *names,
                     size_t count)
{
    memset(w, 0, sizeof *w);
    for (size_t i = 0; i < count; i++) {
        for (int j = 0; j < K; j++)
            w->squares[i][j] = (double)((i + 1) * (size_t)(j + 1));
        w->stats[i] = (nib_input_stats){.tokens = 10 * (int64_t)(i + 1), .squares = w->squares[i]};
        w->layers[i] = (nib_imatrix_layer){names[i], K, &w->stats[i]};
    }
    w->job = (nib_imatrix_job){.arch = arch,
                               .fused = fused,
                               .layers = w->layers,
                               .count = count,
                               .text = "book.txt",
                               .run = {.tokens = 1000, .window = 300}};
}

/* Writes the job as "m"; its number of entries. */
static size_t write_job(const written *w)
{
    nib_text file;
    nib_err err;
    size_t entries = 0;
    nib__text_init(&file, &allocator);
    assert_int_equal(nib__imatrix_build(&file, &entries, &w->job, &allocator, &err), NIB_OK);
    write_bytes("m", file.at, file.size);
    nib__text_free(&file);
    return entries;
}

static void check_written(const written *w, const nib_imatrix *m, size_t i, const char *layer)
{
    float want[K];
    for (int j = 0; j < K; j++)
        want[j] = (float)w->squares[i][j];
    check_layer(m, w->job.arch, layer, want);
}

static void test_written(void **state)
{
    static written w;
    static const char *const names[] = {"model.layers.0.self_attn.q_proj",
                                        "model.layers.0.self_attn.k_proj",
                                        "model.layers.0.mlp.experts.0.up_proj",
                                        "model.layers.0.mlp.experts.2.up_proj",
                                        "model.layers.11.mlp.experts.1.down_proj",
                                        "model.layers.0.mlp.gate",
                                        "lm_head"};
    nib_imatrix *m = NULL;
    nib_err err;
    (void)state;
    make_job(&w, "qwen3moe", 0, names, COUNT(names));
    assert_int_equal(write_job(&w), 6); /* two of the layers are experts of one stack */
    assert_int_equal(nib__imatrix_open(&m, "m", &allocator, &err), NIB_OK);
    assert_int_equal(nib__imatrix_count(m), 6);
    for (size_t i = 0; i < COUNT(names); i++)
        check_written(&w, m, i, names[i]);
    /* experts between those given have no tokens */
    check_layer(m, "qwen3moe", "model.layers.0.mlp.experts.1.up_proj", NULL);
    check_layer(m, "qwen3moe", "model.layers.11.mlp.experts.0.down_proj", NULL);
    nib__imatrix_close(m);
}

static void test_written_fused(void **state)
{
    static written w;
    static const char *const phi[] = {
        "model.layers.0.self_attn.q_proj", "model.layers.0.self_attn.k_proj",
        "model.layers.0.self_attn.v_proj", "model.layers.0.mlp.gate_proj",
        "model.layers.0.mlp.up_proj",      "model.layers.0.mlp.down_proj"};
    static const char *const heads[] = {"model.layers.0.self_attn.k_b_proj.0",
                                        "model.layers.0.self_attn.k_b_proj.1",
                                        "model.layers.0.self_attn.q_b_proj"};
    nib_imatrix *m = NULL;
    nib_err err;
    (void)state;
    make_job(&w, "phi3", NIB_FUSED_QKV | NIB_FUSED_GATE_UP, phi, COUNT(phi));
    for (size_t i = 1; i < 5; i++) /* parts read the same inputs */
        memcpy(w.squares[i], w.squares[i < 3 ? 0 : 3], sizeof w.squares[i]);
    assert_int_equal(write_job(&w), 3); /* attn_qkv, ffn_up, ffn_down */
    assert_int_equal(nib__imatrix_open(&m, "m", &allocator, &err), NIB_OK);
    for (size_t i = 0; i < COUNT(phi); i++)
        check_written(&w, m, i, phi[i]);
    nib__imatrix_close(m);
    make_job(&w, "deepseek2", 0, heads, COUNT(heads));
    assert_int_equal(write_job(&w), 2);
    assert_int_equal(nib__imatrix_open(&m, "m", &allocator, &err), NIB_OK);
    for (size_t i = 0; i < COUNT(heads); i++)
        check_written(&w, m, i, heads[i]);
    nib__imatrix_close(m);
}

static void test_not_written(void **state)
{
    static written w;
    static const char *const names[] = {"model.layers.0.self_attn.q_proj", "model.layers.0.odd"};
    nib_text file;
    nib_err err;
    size_t entries;
    (void)state;
    nib__text_init(&file, &allocator);
    make_job(&w, "llama", 0, names, COUNT(names));
    refused(NIB_UNSUPPORTED, nib__imatrix_build(&file, &entries, &w.job, &allocator, &err), &err);
    make_job(&w, "llama", 0, names, 1);
    w.squares[0][2] = 1e39;
    refused(NIB_UNSUPPORTED, nib__imatrix_build(&file, &entries, &w.job, &allocator, &err), &err);
    nib__text_free(&file);
}

static int make_folder(void **state)
{
    (void)state;
    allocator = nib__allocator_default();
    assert_non_null(getcwd(before, sizeof before));
    return chdir(make_directory(folder)); /* so that messages name files without their folder */
}

static int remove_folder(void **state)
{
    (void)state;
    assert_int_equal(chdir(before), 0);
    drop_directory(folder);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_both_forms),    cmocka_unit_test(test_another_model),
        cmocka_unit_test(test_damaged),       cmocka_unit_test(test_written),
        cmocka_unit_test(test_written_fused), cmocka_unit_test(test_not_written),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
