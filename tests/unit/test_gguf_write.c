/* SPDX-License-Identifier: Apache-2.0
 *
 * Writing GGUF files: the reader gives back every key and tensor, and values that the format cannot
 * hold are errors.
 */
#include "failing.h"
#include "safetensors_build.h"
#include "writer.h"

#include <stdio.h>
#include <stdlib.h>

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "refused.h"

static void put_keys(nib_gguf_head *head)
{
    nib__gguf_put_string(head, "general.architecture", "llama", 5);
    nib__gguf_put_int(head, "a.u32", NIB_GGUF_U32, 4000000000);
    nib__gguf_put_int(head, "a.i8", NIB_GGUF_I8, -3);
    nib__gguf_put_int(head, "a.u64", NIB_GGUF_U64, INT64_MAX);
    nib__gguf_put_double(head, "a.f32", NIB_GGUF_F32, 0.5);
    nib__gguf_put_double(head, "a.f64", NIB_GGUF_F64, 0.1);
    nib__gguf_put_bool(head, "a.bool", true);
    nib__gguf_put_array(head, "a.strings", NIB_GGUF_STRING, 3);
    nib__gguf_item_string(head, "one", 3);
    nib__gguf_item_string(head, "", 0);
    nib__gguf_item_string(head, "a\0b", 3);
    nib__gguf_put_array(head, "a.ints", NIB_GGUF_I32, 2);
    nib__gguf_item_int(head, NIB_GGUF_I32, -1);
    nib__gguf_item_int(head, NIB_GGUF_I32, 7);
    nib__gguf_put_array(head, "a.floats", NIB_GGUF_F32, 1);
    nib__gguf_item_double(head, NIB_GGUF_F32, -2.25);
    nib__gguf_put_array(head, "a.none", NIB_GGUF_I32, 0);
}

/* Writes three tensors, one with a size that needs padding, in another order than they were added.
 */
static nib_status write_file(const char *path, const nib_allocator *a, nib_err *err)
{
    static const int64_t bias_shape[] = {3}, block_shape[] = {2, 32}, half_shape[] = {1, 2, 3};
    static const float bias[] = {1, 2, 3};
    uint8_t blocks[68], halves[12];
    nib_gguf_head head;
    nib_writer *w = NULL;
    memset(blocks, 0x5a, sizeof blocks);
    memset(halves, 0x3c, sizeof halves);
    nib__gguf_head_init(&head, a);
    put_keys(&head);
    nib_status status = nib__writer_make(&w, a, err);
    if (status == NIB_OK) {
        const size_t x = nib__writer_add_tensor(w, "x.bias", NIB_TYPE_F32, bias_shape, 1, 0);
        const size_t y = nib__writer_add_tensor(w, "y.weight", NIB_TYPE_Q8_0, block_shape, 2, 1);
        const size_t z = nib__writer_add_tensor(w, "z", NIB_TYPE_F16, half_shape, 3, 2);
        nib__writer_use_gguf(w, &head);
        status = nib__writer_layout(w, 10, err);
        if (status == NIB_OK)
            status = nib__writer_begin(w, NULL, path, err);
        if (status == NIB_OK)
            status = nib__writer_put(w, z, halves, sizeof halves, err);
        if (status == NIB_OK)
            status = nib__writer_put(w, y, blocks, 34, err);
        if (status == NIB_OK)
            status = nib__writer_put(w, x, bias, sizeof bias, err);
        if (status == NIB_OK)
            status = nib__writer_put(w, y, blocks + 34, 34, err);
        if (status == NIB_OK)
            status = nib__writer_finish(w, err);
    }
    nib__writer_free(w);
    nib__gguf_head_free(&head);
    return status;
}

static void check_keys(const nib_gguf *gguf)
{
    nib_gguf_array array;
    const char *text;
    size_t size;
    int64_t whole;
    double real;
    bool flag;
    assert_int_equal(gguf->version, 3);
    assert_int_equal(gguf->count, 11);
    assert_string_equal(gguf->arch, "llama");
    assert_int_equal(nib__gguf_int(&whole, NULL, gguf, "a.u32", NULL), NIB_OK);
    assert_int_equal(whole, 4000000000);
    assert_int_equal(nib__gguf_int(&whole, NULL, gguf, "a.i8", NULL), NIB_OK);
    assert_int_equal(whole, -3);
    assert_int_equal(nib__gguf_int(&whole, NULL, gguf, "a.u64", NULL), NIB_OK);
    assert_int_equal(whole, INT64_MAX);
    assert_int_equal(nib__gguf_double(&real, NULL, gguf, "a.f32", NULL), NIB_OK);
    assert_true(real == 0.5);
    assert_int_equal(nib__gguf_double(&real, NULL, gguf, "a.f64", NULL), NIB_OK);
    assert_true(real == 0.1);
    assert_int_equal(nib__gguf_bool(&flag, NULL, gguf, "a.bool", NULL), NIB_OK);
    assert_true(flag);
    assert_int_equal(nib__gguf_array_of(&array, NULL, gguf, "a.strings", NIB_GGUF_STRING, NULL),
                     NIB_OK);
    assert_int_equal(array.count, 3);
    for (int i = 0; i < 3; i++)
        assert_true(nib__gguf_next_string(&array, &text, &size));
    assert_int_equal(size, 3);
    assert_memory_equal(text, "a\0b", 3);
    assert_int_equal(nib__gguf_array_of(&array, NULL, gguf, "a.ints", NIB_GGUF_I64, NULL), NIB_OK);
    assert_true(nib__gguf_next_int(&array, &whole));
    assert_int_equal(whole, -1);
    assert_int_equal(nib__gguf_array_of(&array, NULL, gguf, "a.floats", NIB_GGUF_F64, NULL),
                     NIB_OK);
    assert_true(nib__gguf_next_double(&array, &real));
    assert_true(real == -2.25);
}

static void test_round_trip(void **state)
{
    const nib_allocator a = nib__allocator_default();
    nib_err err = {.status = NIB_OK};
    nib_container contents;
    nib_arena arena;
    nib_map map = {0};
    char directory[256], path[300];
    (void)state;
    make_directory(directory);
    snprintf(path, sizeof path, "%s/x.gguf", directory);
    if (write_file(path, &a, &err) != NIB_OK)
        fail_msg("%s", err.text);
    nib__arena_init(&arena, &a, 0);
    if (nib__map_open(&map, path, &err) != NIB_OK ||
        nib__gguf_parse(&contents, map.at, map.size, path, 0, &arena, &err) != NIB_OK)
        fail_msg("%s", err.text);
    check_keys(contents.gguf);
    assert_int_equal(contents.count, 3);
    const nib_tensor *x = contents.tensors[0], *y = contents.tensors[1], *z = contents.tensors[2];
    assert_string_equal(x->name, "x.bias");
    assert_int_equal(x->shape[0], 3);
    assert_memory_equal(x->data + 4, "\0\0\0\x40", 4);
    assert_int_equal(y->type, NIB_TYPE_Q8_0);
    assert_int_equal(y->shape[0], 2);
    assert_int_equal(y->shape[1], 32);
    assert_int_equal(y->data[0], 0x5a);
    assert_int_equal(y->data[67], 0x5a);
    assert_int_equal(z->rank, 3);
    assert_int_equal(z->shape[1], 2);
    assert_int_equal(z->data[11], 0x3c);
    assert_int_equal((y->data - map.at) % NIB_GGUF_ALIGNMENT, 0);
    assert_int_equal(map.size % NIB_GGUF_ALIGNMENT, 0);
    for (const uint8_t *gap = x->data + 12; gap < y->data; gap++)
        assert_int_equal(*gap, 0);
    nib__map_close(&map);
    nib__arena_free(&arena);
    drop_directory(directory);
}

static void expect_refused(const char *name, nib_type type, int rank)
{
    static const int64_t shape[] = {1, 1, 1, 1, 32};
    const nib_allocator a = nib__allocator_default();
    nib_err err = {.status = NIB_OK};
    nib_gguf_head head;
    nib_writer *w = NULL;
    nib__gguf_head_init(&head, &a);
    assert_int_equal(nib__writer_make(&w, &a, &err), NIB_OK);
    nib__writer_add_tensor(w, name, type, shape + 5 - rank, rank, 0);
    nib__writer_use_gguf(w, &head);
    refused(NIB_UNSUPPORTED, nib__writer_layout(w, 0, &err), &err);
    nib__writer_free(w);
    nib__gguf_head_free(&head);
}

/* A tensor without elements, which no GGUF reader accepts. */
static void test_no_elements(void **state)
{
    (void)state;
    static const int64_t shape[] = {0, 32};
    const nib_allocator a = nib__allocator_default();
    nib_err err = {.status = NIB_OK};
    nib_gguf_head head;
    nib_writer *w = NULL;
    nib__gguf_head_init(&head, &a);
    assert_int_equal(nib__writer_make(&w, &a, &err), NIB_OK);
    nib__writer_add_tensor(w, "w", NIB_TYPE_F32, shape, 2, 0);
    nib__writer_use_gguf(w, &head);
    refused(NIB_UNSUPPORTED, nib__writer_layout(w, 0, &err), &err);
    nib__writer_free(w);
    nib__gguf_head_free(&head);
}

static void test_refused(void **state)
{
    (void)state;
    expect_refused("w", NIB_TYPE_E4M3, 2);
    expect_refused("w", NIB_TYPE_U8, 1);
    expect_refused("w", NIB_TYPE_F32, 5);
    expect_refused("a.name.that.is.longer.than.the.sixty.three.bytes.that.the.format.has.for.it",
                   NIB_TYPE_F32, 1);
    assert_true(nib__gguf_holds(NIB_TYPE_MXFP4));
    assert_true(nib__gguf_holds(NIB_TYPE_BF16));
    assert_false(nib__gguf_holds(NIB_TYPE_NONE));
}

static void test_memory(void **state)
{
    nib_status status = NIB_NO_MEMORY;
    char directory[256], path[300];
    (void)state;
    make_directory(directory);
    snprintf(path, sizeof path, "%s/x.gguf", directory);
    for (int n = 0; status != NIB_OK; n++) {
        failing f = {.left = n};
        const nib_allocator a = failing_allocator(&f);
        nib_err err = {.status = NIB_OK};
        assert_true(n < 200);
        (void)nib__path_remove(path, NULL);
        status = write_file(path, &a, &err);
        assert_true(status == NIB_OK || status == NIB_NO_MEMORY);
        assert_int_equal(f.live, 0);
    }
    drop_directory(directory);
    /* keys that did not fit are not left out */
    failing none = {.left = 0};
    const nib_allocator empty = failing_allocator(&none), heap = nib__allocator_default();
    nib_gguf_head head;
    nib_text text;
    nib__gguf_head_init(&head, &empty);
    nib__text_init(&text, &heap);
    nib__gguf_put_bool(&head, "x.y", true);
    nib__gguf_begin(&text, &head, 0);
    assert_true(text.failed);
    nib__text_free(&text);
    nib__gguf_head_free(&head);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_no_elements),
        cmocka_unit_test(test_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
