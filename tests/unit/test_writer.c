/* SPDX-License-Identifier: Apache-2.0
 *
 * The streaming writer: the strict reader reads back its output, aligned, in one file or in shards;
 * too few or too many bytes and a full disk are errors.
 */
#include "writer.h"

#include "failing.h"
#include "fused.h"
#include "safetensors_build.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/resource.h>
#include <cmocka.h>

#include "refused.h"

static const struct {
    const char *name;
    nib_type type;
    int rank;
    int64_t shape[2];
    size_t unit;
} parts[] = {
    {"a._weight_qdata", NIB_TYPE_I8, 2, {3, 5}, 0},
    {"a._weight_scale", NIB_TYPE_F32, 2, {3, 1}, 0},
    {"a.bias", NIB_TYPE_BF16, 1, {3}, 0},
    {"empty", NIB_TYPE_F32, 1, {0}, 1},
    {"scalar", NIB_TYPE_F64, 0, {0}, 2},
    {"norm \"x\"", NIB_TYPE_F16, 1, {7}, 3},
};

static nib_writer *make_writer(const nib_allocator *a, uint64_t limit, nib_status *status,
                               nib_err *err)
{
    nib_writer *w = NULL;
    *status = nib__writer_make(&w, a, err);
    if (*status != NIB_OK)
        return NULL;
    nib__writer_add_meta(w, "format", "pt");
    nib__writer_add_meta(w, "a.weight", "{\"_type\": \"Int8Tensor\"}");
    for (size_t i = 0; i < COUNT(parts); i++)
        (void)nib__writer_add_tensor(w, parts[i].name, parts[i].type, parts[i].shape, parts[i].rank,
                                     parts[i].unit);
    *status = nib__writer_layout(w, limit, err);
    return w;
}

static uint8_t byte_of(size_t tensor, size_t at) { return (uint8_t)(17 * tensor + at + 1); }

/* Tensors in reverse, each in pieces of 1, 2, 3, ... bytes. */
static nib_status put_all(nib_writer *w, const size_t *sizes, nib_err *err)
{
    for (size_t t = COUNT(parts); t-- > 0;) {
        size_t at = 0;
        for (size_t piece = 1; at < sizes[t]; piece++) {
            uint8_t bytes[64];
            const size_t some = sizes[t] - at < piece ? sizes[t] - at : piece;
            for (size_t i = 0; i < some; i++)
                bytes[i] = byte_of(t, at + i);
            NIB_TRY(nib__writer_put(w, t, bytes, some, err));
            at += some;
        }
    }
    return NIB_OK;
}

static const size_t sizes[] = {15, 12, 6, 0, 8, 14};

static void expect_read_back(const char *path, const nib_writer *w, int files)
{
    const nib_allocator a = nib__allocator_default();
    nib_checkpoint *cp = NULL;
    nib_err err;
    int seen = 0;
    if (nib__checkpoint_open(&cp, path, &a, &err) != NIB_OK)
        fail_msg("%s", err.text);
    assert_int_equal(nib__checkpoint_count(cp), COUNT(parts));
    assert_int_equal(nib__checkpoint_meta_count(cp), 2);
    assert_int_equal(nib__checkpoint_ledger(cp)->note_count, 0);
    for (size_t t = 0; t < COUNT(parts); t++) {
        const nib_tensor *tensor = nib__checkpoint_find(cp, parts[t].name);
        assert_non_null(tensor);
        assert_int_equal(tensor->type, parts[t].type);
        assert_int_equal(tensor->rank, parts[t].rank);
        for (int i = 0; i < parts[t].rank; i++)
            assert_int_equal(tensor->shape[i], parts[t].shape[i]);
        assert_int_equal(tensor->bytes, sizes[t]);
        for (size_t i = 0; i < sizes[t]; i++)
            assert_int_equal(tensor->data[i], byte_of(t, i));
        /* Maps begin at a page boundary, so this is the file offset modulo alignment. */
        if (tensor->bytes != 0)
            assert_int_equal((uintptr_t)tensor->data % (size_t)(nib__type_bits(tensor->type) / 8),
                             0);
        assert_true(
            nib__hash_equal(nib__writer_hash(w, t), nib__hash_bytes(tensor->data, tensor->bytes)));
        seen = tensor->file + 1 > seen ? tensor->file + 1 : seen;
    }
    assert_int_equal(seen, files);
    nib__checkpoint_close(cp);
}

static void test_one_file(void **state)
{
    (void)state;
    char dir[256], path[512];
    const nib_allocator a = nib__allocator_default();
    nib_err err = {NIB_OK, ""};
    nib_status status;
    struct stat st;
    make_directory(dir);
    for (int lone = 0; lone < 2; lone++) {
        nib_writer *w = make_writer(&a, 0, &status, &err);
        assert_int_equal(status, NIB_OK);
        assert_int_equal(nib__writer_file_count(w), 1);
        snprintf(path, sizeof path, "%s/%s", dir, lone ? "lone" : "model.safetensors");
        assert_int_equal(nib__writer_begin(w, lone ? NULL : dir, lone ? path : NULL, &err), NIB_OK);
        assert_int_equal(put_all(w, sizes, &err), NIB_OK);
        assert_int_equal(nib__writer_finish(w, &err), NIB_OK);
        assert_int_equal(stat(path, &st), 0);
        assert_int_equal(st.st_size, nib__writer_bytes(w));
        expect_read_back(lone ? path : dir, w, 1);
        nib__writer_free(w);
    }
    drop_directory(dir);
}

static void test_shards(void **state)
{
    (void)state;
    static const struct {
        uint64_t limit;
        int files;
    } cases[] = {{1, 3}, {21, 3}, {22, 2}, {33, 2}, {41, 2}, {54, 2}, {55, 1}};
    for (size_t c = 0; c < COUNT(cases); c++) {
        char dir[256];
        const nib_allocator a = nib__allocator_default();
        nib_err err = {NIB_OK, ""};
        nib_status status;
        make_directory(dir);
        nib_writer *w = make_writer(&a, cases[c].limit, &status, &err);
        assert_int_equal(status, NIB_OK);
        assert_int_equal(nib__writer_begin(w, dir, NULL, &err), NIB_OK);
        assert_int_equal(put_all(w, sizes, &err), NIB_OK);
        assert_int_equal(nib__writer_finish(w, &err), NIB_OK);
        assert_int_equal(nib__writer_file_count(w), cases[c].files);
        expect_read_back(dir, w, cases[c].files);
        nib__writer_free(w);
        drop_directory(dir);
    }
}

static void test_wrong_bytes(void **state)
{
    (void)state;
    char dir[256];
    const nib_allocator a = nib__allocator_default();
    nib_err err = {NIB_OK, ""};
    nib_status status;
    const uint8_t bytes[32] = {0};
    make_directory(dir);
    nib_writer *w = make_writer(&a, 0, &status, &err);
    assert_int_equal(nib__writer_begin(w, dir, NULL, &err), NIB_OK);
    refused(NIB_FAILED, nib__writer_put(w, 0, bytes, 16, &err), &err);
    assert_int_equal(nib__writer_put(w, 0, bytes, 14, &err), NIB_OK);
    refused(NIB_FAILED, nib__writer_put(w, 0, bytes, 2, &err), &err);
    refused(NIB_FAILED, nib__writer_finish(w, &err), &err);
    nib__writer_free(w);
    w = make_writer(&a, 0, &status, &err);
    refused(NIB_EXISTS, nib__writer_begin(w, dir, NULL, &err), &err);
    nib__writer_free(w);
    drop_directory(dir);
    /* Two tensors with one name: the reader would refuse the file, so the writer does first. */
    assert_int_equal(nib__writer_make(&w, &a, &err), NIB_OK);
    const int64_t one = 1;
    (void)nib__writer_add_tensor(w, "x", NIB_TYPE_U8, &one, 1, 0);
    (void)nib__writer_add_tensor(w, "x", NIB_TYPE_U8, &one, 1, 1);
    refused(NIB_BAD_INPUT, nib__writer_layout(w, 0, &err), &err);
    nib__writer_free(w);
}

/* Tensors that GGUF, or one of our files, cannot hold. */
static void test_refused_tensors(void **state)
{
    (void)state;
    typedef struct tensor {
        const char *name;
        nib_type type;
        int rank;
    } tensor;
    static const struct {
        tensor tensors[2];
        bool gguf;
        nib_status status;
    } cases[] = {
        {{{"x", NIB_TYPE_F32, 4}, {"y", NIB_TYPE_F32, 1}}, true, NIB_OK},
        {{{"x", NIB_TYPE_F32, 5}, {"y", NIB_TYPE_F32, 1}}, true, NIB_UNSUPPORTED},
        {{{"x", NIB_TYPE_F32, 0}, {"y", NIB_TYPE_F32, 1}}, true, NIB_UNSUPPORTED},
        {{{"x", NIB_TYPE_E4M3, 2}, {"y", NIB_TYPE_F32, 1}}, true, NIB_UNSUPPORTED},
        {{{"__metadata__", NIB_TYPE_F32, 1}, {"y", NIB_TYPE_F32, 1}}, false, NIB_BAD_INPUT},
        /* one tensor in a GGUF, which has one type and one shape of rows */
        {{{"blk.0.ffn_gate.weight", NIB_TYPE_F32, 2}, {"blk.0.ffn_up.weight", NIB_TYPE_F32, 2}},
         true,
         NIB_OK},
        {{{"blk.0.ffn_gate.weight", NIB_TYPE_F32, 2}, {"blk.0.ffn_up.weight", NIB_TYPE_F16, 2}},
         true,
         NIB_NOT_AS_ASKED},
        {{{"blk.0.ffn_gate.weight", NIB_TYPE_F32, 2}, {"blk.0.ffn_up.weight", NIB_TYPE_F32, 1}},
         true,
         NIB_NOT_AS_ASKED},
        {{{"blk.0.ffn_gate.weight", NIB_TYPE_F32, 2}, {"x", NIB_TYPE_F32, 1}},
         true,
         NIB_NOT_AS_ASKED},
        /* so are the experts of a layer */
        {{{"blk.0.ffn_up_exps.1.weight", NIB_TYPE_F32, 2},
          {"blk.0.ffn_up_exps.0.weight", NIB_TYPE_F32, 2}},
         true,
         NIB_OK},
        {{{"blk.0.ffn_up_exps.0.weight", NIB_TYPE_F32, 2},
          {"blk.0.ffn_up_exps.1.weight", NIB_TYPE_F16, 2}},
         true,
         NIB_NOT_AS_ASKED},
        {{{"blk.0.ffn_up_exps.0.weight", NIB_TYPE_F32, 2},
          {"blk.0.ffn_up_exps.2.weight", NIB_TYPE_F32, 2}},
         true,
         NIB_BAD_INPUT},
        {{{"blk.0.ffn_up_exps.0.weight", NIB_TYPE_F32, 4}, {"y", NIB_TYPE_F32, 1}},
         true,
         NIB_UNSUPPORTED},
        {{{"model.layers.0.mlp.gate_proj.weight", NIB_TYPE_F32, 2}, {"x", NIB_TYPE_F32, 1}},
         false,
         NIB_OK},
    };
    static const int64_t shape[5] = {2, 1, 1, 1, 1};
    for (size_t i = 0; i < COUNT(cases); i++) {
        bool failed = false;
        for (int left = -1; left <= 0 || failed; left++) { /* at first nothing fails */
            failing f = {left, 0};
            const nib_allocator a = failing_allocator(&f);
            nib_writer *w = NULL;
            nib_gguf_head head;
            nib_err err = {NIB_OK, ""};
            nib__gguf_head_init(&head, &a);
            nib__gguf_put_bool(&head, "x.y", true);
            nib_status status = nib__writer_make(&w, &a, &err);
            for (size_t t = 0; t < 2 && status == NIB_OK; t++)
                (void)nib__writer_add_tensor(w, cases[i].tensors[t].name, cases[i].tensors[t].type,
                                             shape, cases[i].tensors[t].rank, t);
            if (cases[i].gguf && status == NIB_OK)
                nib__writer_use_gguf(w, &head);
            if (status == NIB_OK) {
                nib__writer_fuse(w, NIB_FUSED_GATE_UP);
                status = nib__writer_layout(w, 0, &err);
            }
            failed = f.left == 0;
            if (left >= 0 && status != cases[i].status)
                assert_true(failed && status == NIB_NO_MEMORY);
            else if (cases[i].status == NIB_OK)
                assert_int_equal(status, NIB_OK);
            else if (left < 0)
                refused(cases[i].status, status, &err);
            nib__writer_free(w);
            nib__gguf_head_free(&head);
            assert_int_equal(f.live, 0);
        }
    }
}

/* A file that may not grow fails at once, as a full disk does, before any work is lost. */
static void test_full_disk(void **state)
{
    (void)state;
    char dir[256];
    const nib_allocator a = nib__allocator_default();
    nib_err err = {NIB_OK, ""};
    nib_status status;
    struct rlimit old, small = {0};
    make_directory(dir);
    nib_writer *w = make_writer(&a, 0, &status, &err);
    getrlimit(RLIMIT_FSIZE, &old);
    signal(SIGXFSZ, SIG_IGN);
    small = old;
    small.rlim_cur = 100;
    setrlimit(RLIMIT_FSIZE, &small);
    status = nib__writer_begin(w, dir, NULL, &err);
    setrlimit(RLIMIT_FSIZE, &old);
    refused(NIB_IO, status, &err);
    nib__writer_free(w);
    drop_directory(dir);
}

static void test_no_memory(void **state)
{
    (void)state;
    nib_status status = NIB_NO_MEMORY;
    for (int n = 0; status != NIB_OK; n++) {
        char dir[256];
        failing f = {n, 0};
        const nib_allocator a = failing_allocator(&f);
        nib_err err = {NIB_OK, ""};
        make_directory(dir);
        nib_writer *w = make_writer(&a, 40, &status, &err);
        if (status == NIB_OK)
            status = nib__writer_begin(w, dir, NULL, &err);
        if (status == NIB_OK)
            status = put_all(w, sizes, &err);
        if (status == NIB_OK)
            status = nib__writer_finish(w, &err);
        assert_true(status == NIB_OK || status == NIB_NO_MEMORY);
        nib__writer_free(w);
        assert_int_equal(f.live, 0);
        drop_directory(dir);
        assert_true(n < 1000);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_file),        cmocka_unit_test(test_shards),
        cmocka_unit_test(test_wrong_bytes),     cmocka_unit_test(test_full_disk),
        cmocka_unit_test(test_refused_tensors), cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
