/* SPDX-License-Identifier: Apache-2.0
 *
 * nib_verify on what the command-line tests cannot construct: tensors in memory instead of a file
 * are not modified.
 */
#include "info.h"
#include "verify.h"

#include "opening.h"
#include "safetensors_build.h"
#include "zip_build.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum { SIDE = 64 };

/* A float [64][64] in one storage with strides 1 and 64, which is read as a contiguous copy. */
static const char turned[] =
    "\x80\2}X\1\0\0\0wctorch._utils\n_rebuild_tensor_v2\n((X\7\0\0\0storagectorch\nFloatStorage\n"
    "X\1\0\0\0"
    "0X\3\0\0\0cpuM\0\x10tQK\0K@K@\x86K\1K@\x86\x89"
    "ccollections\nOrderedDict\n)RtRs.";

static void test_verifies_transposed_tensor(void **state)
{
    (void)state;
    float values[SIDE * SIDE];
    char root[256], path[512];
    const nib_allocator heap = nib__allocator_default();
    nib_pool *pool = NULL;
    nib_err err;
    nib_text text;
    size_t problems = 1;
    for (int i = 0; i < SIDE * SIDE; i++)
        values[i] = (float)(i + 1);
    const zip_part parts[] = {{"a/data.pkl", turned, sizeof turned - 1},
                              {"a/data/0", values, sizeof values}};
    zip_built z = build_zip(parts, 2, true, true);
    make_directory(root);
    snprintf(path, sizeof path, "%s/w.pt", root);
    assert_int_equal(nib__file_write(path, z.bytes, z.size, &heap, &err), NIB_OK);
    free(z.bytes);
    nib_checkpoint *cp = open_ok(path);
    assert_int_equal(nib__pool_open(&pool, 2, &heap, &err), NIB_OK);
    const nib_verify_job job = {.checkpoint = cp, .pool = pool, .allocator = &heap};
    nib__text_init(&text, &heap);
    assert_int_equal(nib__verify_render(&job, NIB_FORM_TEXT, &text, &problems, &err), NIB_OK);
    assert_int_equal(problems, 0);
    nib__text_free(&text);
    const uint8_t *data = nib__checkpoint_find(cp, "w")->data;
    for (int i = 0; i < SIDE * SIDE; i++) {
        float value;
        memcpy(&value, data + (size_t)i * sizeof value, sizeof value);
        assert_true(value == values[i % SIDE * SIDE + i / SIDE]);
    }
    nib__pool_close(pool);
    nib__checkpoint_close(cp);
    drop_directory(root);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_verifies_transposed_tensor)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
