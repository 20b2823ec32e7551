/* SPDX-License-Identifier: Apache-2.0
 *
 * Every file of the fuzz corpora that people named, with each allocation failing once: opened, its
 * weights read, described. Without memory the status says so; otherwise the result is that with
 * memory; nothing leaks. Names containers and dialects: checkpoint_open.c, checkpoint.c,
 * dialect_*.c, torch_zip.c, safetensors.c, gguf.c, info.c.
 */
#include "info.h"

#include "corpus.h"
#include "failing.h"

#include <stdarg.h>
#include <stdio.h>
#include <setjmp.h>
#include <cmocka.h>

/* The first failure of opening, of a weight or of the description; NIB_OK: none. */
static nib_status use_file(const char *path, const nib_allocator *a)
{
    nib_checkpoint *cp = NULL;
    nib_err err = {NIB_OK, ""};
    nib_text text;
    nib_status status = nib__checkpoint_open(&cp, path, a, &err);
    for (size_t i = 0; status == NIB_OK && i < nib__checkpoint_module_count(cp); i++) {
        nib_weight w;
        bool found;
        status = nib__checkpoint_weight(&w, &found, cp, nib__checkpoint_module(cp, i), NULL, &err);
    }
    nib__text_init(&text, a);
    if (status == NIB_OK)
        status = nib__info_render(cp, a, NIB_FORM_JSON, &text, &err);
    nib__text_free(&text);
    nib__checkpoint_close(cp);
    assert_int_equal(status, err.status);
    return status;
}

static void fail_each_allocation(const char *path)
{
    const nib_allocator heap = nib__allocator_default();
    const nib_status with_memory = use_file(path, &heap);
    bool failed = true;
    for (int left = 0; failed; left++) {
        failing f = {left, 0};
        const nib_allocator a = failing_allocator(&f);
        const nib_status status = use_file(path, &a);
        failed = f.left == 0;
        if (status != with_memory && !(failed && status == NIB_NO_MEMORY))
            fail_msg("%s: status %d after %d allocations, %d with memory", path, status, left,
                     with_memory);
        if (f.live != 0)
            fail_msg("%s: %d allocations leak after %d", path, f.live, left);
    }
}

static void fail_file(void *context, const char *path)
{
    (void)context;
    fail_each_allocation(path);
}

static void fail_in_folder(const char *folder)
{
    assert_true(each_named_file(folder, fail_file, NULL) > 5);
}

static void test_safetensors(void **state)
{
    (void)state;
    fail_in_folder("tests/fuzz/corpus/safetensors");
}

static void test_gguf(void **state)
{
    (void)state;
    fail_in_folder("tests/fuzz/corpus/gguf");
}

static void test_torch(void **state)
{
    (void)state;
    fail_in_folder("tests/fuzz/corpus/zip");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_safetensors),
        cmocka_unit_test(test_gguf),
        cmocka_unit_test(test_torch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
