/* SPDX-License-Identifier: Apache-2.0
 *
 * Models with latent attention in other files (src/checkpoint/latent.c, src/model/config_gguf.c):
 * the logits of a GGUF, and of what Nibble converts.
 */
#include "safetensors.h"
#include "session.h"

#include "nibble_tools.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "last_logits.h"
#include "safetensors_build.h"

/* GGUF files of llama.cpp's names have the logits of the checkpoints that they were made from:
 * attn_k_b and attn_v_b, and attn_kv_b as in older files. */
static void test_gguf(void **state)
{
    static const char *const names[] = {"deepseek_v3", "deepseek_v2"};
    static const nib_arch archs[] = {NIB_ARCH_DEEPSEEK_V3, NIB_ARCH_DEEPSEEK_V2};
    enum { ROOM = 256 };
    (void)state;
    for (size_t i = 0; i < COUNT(names); i++) {
        float want[ROOM] = {0}, got[ROOM] = {0};
        char path[2][80];
        snprintf(path[0], sizeof path[0], "tests/golden/models/%s", names[i]);
        snprintf(path[1], sizeof path[1], "tests/golden/gguf/%s.gguf", names[i]);
        run_model(want, &(open_how){.path = path[0], .dtype = "f32"}, ROOM);
        run_model(got, &(open_how){.path = path[1], .dtype = "f32"}, ROOM);
        assert_close(names[i], "a GGUF", want, got, ROOM);
        opened o = must_open(&(open_how){.path = path[1], .dtype = "f32"});
        assert_int_equal(o.model->net.config.arch, archs[i]);
        close_opened(&o);
    }
}

/* A tensor of a safetensors file, in its stored form. */
typedef struct stored {
    nib_map map;
    nib_allocator allocator;
    nib_arena arena;
    const nib_tensor *tensor;
} stored;

static void must_find(stored *out, const char *directory, const char *name)
{
    char path[400];
    nib_container file = {.count = 0};
    nib_err err;
    *out = (stored){.tensor = NULL};
    snprintf(path, sizeof path, "%s/model.safetensors", directory);
    out->allocator = nib__allocator_default();
    nib__arena_init(&out->arena, &out->allocator, 0);
    assert_int_equal(nib__map_open(&out->map, path, &err), NIB_OK);
    assert_int_equal(
        nib__safetensors_parse(&file, out->map.at, out->map.size, path, 0, &out->arena, &err),
        NIB_OK);
    for (size_t i = 0; i < file.count; i++)
        if (strcmp(file.tensors[i]->name, name) == 0)
            out->tensor = file.tensors[i];
    if (out->tensor == NULL)
        fail_msg("%s has no %s", path, name);
}

static void drop_stored(stored *s)
{
    nib__arena_free(&s->arena);
    nib__map_close(&s->map);
}

/* The halves of heads are joined again, as transformers loads them. */
static void assert_joined(const char *directory, const char *source)
{
    static const char name[] = "model.layers.1.self_attn.kv_b_proj.weight";
    stored want, got;
    must_find(&want, source, name);
    must_find(&got, directory, name);
    assert_int_equal(got.tensor->type, want.tensor->type);
    assert_memory_equal(got.tensor->shape, want.tensor->shape, sizeof want.tensor->shape);
    assert_int_equal(got.tensor->bytes, want.tensor->bytes);
    assert_memory_equal(got.tensor->data, want.tensor->data, want.tensor->bytes);
    drop_stored(&want);
    drop_stored(&got);
}

/* A converted model has the same logits: halves are written as GGUF's stacks, and as kv_b_proj. */
static void test_convert(void **state)
{
    static const char *const formats[] = {"gguf", "safetensors", "nibble"};
    static const char *const models_of[] = {"deepseek_v3", "deepseek_v2_groups", "kimi_k2"};
    enum { ROOM = 256 };
    char directory[256];
    (void)state;
    make_directory(directory);
    for (size_t m = 0; m < COUNT(models_of); m++)
        for (size_t f = 0; f < COUNT(formats); f++) {
            float want[ROOM] = {0}, got[ROOM] = {0};
            char path[80], out[300];
            snprintf(path, sizeof path, "tests/golden/models/%s", models_of[m]);
            snprintf(out, sizeof out, "%s/out%s", directory, f == 0 ? ".gguf" : "");
            must_convert(path, out, formats[f]);
            run_model(want, &(open_how){.path = path, .dtype = "f32"}, ROOM);
            run_model(got, &(open_how){.path = out, .dtype = "f32"}, ROOM);
            assert_close(models_of[m], formats[f], want, got, ROOM);
            if (f == 0)
                continue;
            assert_joined(out, path);
            drop_directory(out);
        }
    drop_directory(directory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gguf),
        cmocka_unit_test(test_convert),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
