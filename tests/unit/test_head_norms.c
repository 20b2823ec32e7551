/* SPDX-License-Identifier: Apache-2.0
 *
 * Norms stored as one tensor per head: joined when a checkpoint is opened, and split again when
 * written, in one file and in shards.
 */
#include "head_norms.h"
#include "writer.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "checkpoint_build.h"
#include "failing.h"

#define ATTENTION "model.layers.12.self_attn."
#define Q ATTENTION "q_layernorm.norms."
#define K ATTENTION "k_layernorm.norms."

static const float rows[] = {1, 2, 3, 4, 5, 6, 7, 8, 9};

static void test_names(void **state)
{
    (void)state;
    char name[NIB_FUSED_NAME], longest[NIB_FUSED_NAME + 8];
    assert_true(nib__head_norm_name(name, ATTENTION "q_norm.weight", 31));
    assert_string_equal(name, Q "31.weight");
    assert_true(nib__head_norm_name(name, ATTENTION "k_norm.weight", 0));
    assert_string_equal(name, K "0.weight");
    assert_false(nib__head_norm_name(name, ATTENTION "q_norm.bias", 0));
    assert_false(nib__head_norm_name(name, ATTENTION "q_proj.weight", 0));
    assert_false(nib__head_norm_name(name, "model.layers.self_attn.q_norm.weight", 0));
    assert_false(nib__head_norm_name(name, "blk.0.attn_q_norm.weight", 0));
    memset(longest, '1', sizeof longest);
    memcpy(longest, "model.layers.", 13);
    strcpy(longest + sizeof longest - 25, ".self_attn.q_norm.weight");
    assert_false(nib__head_norm_name(name, longest, 0));
}

static const nib_tensor *expect_joined(const made *m, const char *name, int rank, int64_t n)
{
    const nib_tensor *t = nib__checkpoint_find(m->cp, name);
    assert_non_null(t);
    assert_int_equal(t->rank, rank);
    assert_int_equal(t->shape[0], n);
    assert_int_equal(nib__checkpoint_fused(m->cp), NIB_APART_HEAD_NORMS);
    return t;
}

/* Parts are joined in any stored order; tensors that do not fit stay separate. */
static void test_joins_in_any_order(void **state)
{
    static const char described[] = "\"" Q "0.weight\":\"first\",\"" Q "1.weight\":\"second\"";
    const part parts[] = {{Q "1.weight", "F32", 1, {3}, rows + 3},
                          {Q "0.weight", "F32", 1, {3}, rows},
                          {Q "2.weight", "F32", 1, {3}, rows + 6},
                          {Q "4.weight", "F32", 1, {3}, NULL},
                          {Q "02.weight", "F32", 1, {3}, NULL},
                          {Q "x.weight", "F32", 1, {3}, NULL},
                          {Q "0.bias", "F32", 1, {3}, NULL},
                          {K "0.weight", "F32", 1, {2}, rows},
                          {K "1.weight", "F16", 1, {2}, NULL},
                          {K "2.weight", "F32", 1, {2}, NULL},
                          {"layers.0." Q "0.weight", "F32", 1, {3}, NULL}};
    made m;
    (void)state;
    open_parts(&m, described, parts, COUNT(parts));
    const nib_tensor *q = expect_joined(&m, ATTENTION "q_norm.weight", 2, 3);
    assert_int_equal(q->shape[1], 3);
    assert_int_equal(q->bytes, sizeof rows);
    assert_memory_equal(q->data, rows, sizeof rows);
    const nib_tensor *k = expect_joined(&m, ATTENTION "k_norm.weight", 1, 2);
    assert_memory_equal(k->data, rows, 2 * sizeof *rows);
    assert_int_equal(nib__checkpoint_count(m.cp), 9); /* three became one, the rest stayed */
    for (size_t i = 0; i < COUNT(parts); i++) {
        const bool joined = i < 3 || i == 7;
        assert_true((nib__checkpoint_find(m.cp, parts[i].name) == NULL) == joined);
    }
    assert_int_equal(nib__checkpoint_meta_count(m.cp), 1);
    assert_string_equal(nib__checkpoint_meta_at(m.cp, 0)->key, ATTENTION "q_norm.weight");
    check_memory_of_reading(m.dir);
    drop_checkpoint(&m);
}

static void test_not_joined(void **state)
{
    const part later[] = {{Q "1.weight", "F32", 1, {3}, NULL}},
               square[] = {{Q "0.weight", "F32", 2, {3, 3}, NULL}},
               mixed[] = {{Q "0.weight", "F32", 1, {3}, NULL},
                          {Q "1.weight", "F32", 2, {3, 1}, NULL},
                          {Q "2.weight", "F32", 1, {3}, NULL}},
               empty[] = {{Q "0.weight", "F32", 1, {0}, NULL}},
               twice[] = {{Q "0.weight", "F32", 1, {3}, NULL},
                          {ATTENTION "q_norm.weight", "F32", 1, {3}, NULL}};
    made m;
    (void)state;
    open_parts(&m, NULL, later, 1);
    assert_non_null(nib__checkpoint_find(m.cp, later[0].name));
    assert_int_equal(nib__checkpoint_fused(m.cp), 0);
    drop_checkpoint(&m);
    open_parts(&m, NULL, square, 1);
    assert_non_null(nib__checkpoint_find(m.cp, square[0].name));
    drop_checkpoint(&m);
    open_parts(&m, NULL, mixed, COUNT(mixed)); /* only head 0 is joined */
    expect_joined(&m, ATTENTION "q_norm.weight", 1, 3);
    assert_non_null(nib__checkpoint_find(m.cp, mixed[2].name));
    drop_checkpoint(&m);
    open_parts(&m, NULL, empty, 1);
    assert_non_null(nib__checkpoint_find(m.cp, empty[0].name));
    drop_checkpoint(&m);
    refused(NIB_BAD_INPUT, make_checkpoint(&m, NULL, twice, COUNT(twice)), &m.err);
    drop_checkpoint(&m);
}

/* Layer numbers so long that the name of head 10, or of any head, has no room: what does not fit
 * stays separate. */
static void test_long_names(void **state)
{
    (void)state;
    static const int around = sizeof "model.layers..self_attn.q_layernorm.norms.0.weight" - 1;
    char digits[NIB_FUSED_NAME], names[11][NIB_FUSED_NAME + 64];
    memset(digits, '1', sizeof digits);
    for (int past = -2; past <= 1; past++) { /* of head 0, over the limit */
        part parts[11];
        made m;
        for (int head = 0; head < 11; head++) {
            snprintf(names[head], sizeof names[head],
                     "model.layers.%.*s.self_attn.q_layernorm.norms.%d.weight",
                     NIB_FUSED_NAME - 1 - around + past, digits, head);
            parts[head] = (part){names[head], "F32", 1, {3}, NULL};
        }
        open_parts(&m, NULL, parts, 11);
        assert_int_equal(nib__checkpoint_count(m.cp), past < 0 ? 1 : past == 0 ? 2 : 11);
        drop_checkpoint(&m);
    }
}

static void test_memory(void **state)
{
    (void)state;
    check_memory_of_reading("tests/golden/models/stablelm_norms");
}

/* limit: bytes per file; 0: a single file. */
static void check_writing(uint64_t limit)
{
    const nib_allocator a = nib__allocator_default();
    const char *const name = "model.layers.0.self_attn.q_norm.weight";
    char dir[256], path[300], *text;
    size_t size;
    nib_writer *w;
    nib_checkpoint *cp;
    nib_err err;
    make_directory(dir);
    assert_int_equal(nib__writer_make(&w, &a, &err), NIB_OK);
    nib__writer_add_tensor(w, name, NIB_TYPE_F32, (const int64_t[]){3, 3}, 2, 0);
    nib__writer_add_tensor(w, "other.weight", NIB_TYPE_F32, (const int64_t[]){3, 3}, 2, 1);
    nib__writer_fuse(w, NIB_APART_HEAD_NORMS);
    assert_int_equal(nib__writer_layout(w, limit, &err), NIB_OK);
    assert_int_equal(nib__writer_file_count(w), limit == 0 ? 1 : 2);
    assert_int_equal(nib__writer_begin(w, dir, NULL, &err), NIB_OK);
    for (size_t i = 0; i < 2; i++)
        assert_int_equal(nib__writer_put(w, i, rows, sizeof rows, &err), NIB_OK);
    assert_int_equal(nib__writer_finish(w, &err), NIB_OK);
    nib__writer_free(w);
    snprintf(path, sizeof path, "%s/%s", dir,
             limit == 0 ? "model.safetensors" : "model.safetensors.index.json");
    assert_int_equal(nib__file_read(&text, &size, path, 1 << 16, &a, &err), NIB_OK);
    const char *at = limit == 0 ? text + 8 : text;
    assert_non_null(strstr(at, "\"model.layers.0.self_attn.q_layernorm.norms.0.weight\""));
    assert_non_null(strstr(at, "\"model.layers.0.self_attn.q_layernorm.norms.2.weight\""));
    assert_null(strstr(at, "norms.3"));
    assert_null(strstr(at, "q_norm"));
    nib__release(&a, text);
    assert_int_equal(nib__checkpoint_open(&cp, dir, &a, &err), NIB_OK);
    const nib_tensor *t = nib__checkpoint_find(cp, name);
    assert_non_null(t);
    assert_memory_equal(t->data, rows, sizeof rows);
    nib__checkpoint_close(cp);
    drop_directory(dir);
}

static void test_writing(void **state)
{
    (void)state;
    check_writing(0);
    check_writing(40);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names),      cmocka_unit_test(test_joins_in_any_order),
        cmocka_unit_test(test_not_joined), cmocka_unit_test(test_long_names),
        cmocka_unit_test(test_memory),     cmocka_unit_test(test_writing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
