/* SPDX-License-Identifier: Apache-2.0
 *
 * Models whose layers keep states in other files (src/model/config_gguf_heads.c,
 * src/checkpoint/renames.c): what Nibble converts, and what it refuses.
 */
#include "safetensors.h"
#include "session.h"

#include "nibble_tools.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "last_logits.h"
#include "refused.h"
#include "safetensors_build.h"

/* LFM2 as a GGUF has the same logits, and the same tensors when it is converted back. */
static void test_convert(void **state)
{
    enum { ROOM = 256 };
    static const char path[] = "tests/golden/models/lfm2",
                      taps[] = "model.layers.0.conv.conv.weight";
    float want[ROOM] = {0}, got[ROOM] = {0};
    char directory[256], file[300], back[300];
    (void)state;
    make_directory(directory);
    snprintf(file, sizeof file, "%s/out.gguf", directory);
    snprintf(back, sizeof back, "%s/back", directory);
    must_convert(path, file, "gguf");
    must_convert(file, back, "safetensors");
    run_model(want, &(open_how){.path = path, .dtype = "f32"}, ROOM);
    run_model(got, &(open_how){.path = file, .dtype = "f32"}, ROOM);
    assert_close("lfm2", "a GGUF", want, got, ROOM);
    run_model(got, &(open_how){.path = back, .dtype = "f32"}, ROOM);
    assert_close("lfm2", "safetensors of a GGUF", want, got, ROOM);
    opened o = must_open(&(open_how){.path = back});
    const nib_tensor *t = nib__checkpoint_find(o.model->net.checkpoint, taps);
    assert_non_null(t);
    assert_true(t->rank == 3 && t->shape[0] == 48 && t->shape[1] == 1 && t->shape[2] == 3);
    close_opened(&o);
    drop_directory(back);
    drop_directory(directory);
}

/* The order of DeltaNet's weights in a GGUF is neither made nor undone. */
static void test_refused(void **state)
{
    static const struct {
        const char *path, *format;
    } cases[] = {
        {"tests/golden/models/qwen3_5", "gguf"},
        {"tests/golden/models/qwen3_next", "gguf"},
        {"tests/golden/gguf/qwen35.gguf", "nibble"},
        {"tests/golden/gguf/qwen3next.gguf", "gguf"},
    };
    char directory[256], out[300];
    (void)state;
    make_directory(directory);
    snprintf(out, sizeof out, "%s/out", directory);
    for (size_t i = 0; i < COUNT(cases); i++) {
        nib_err err;
        const nib_sink sink = {ignore, NULL};
        opened o = must_open(&(open_how){.path = cases[i].path});
        const nib_convert_options options = {.out = out, .format = cases[i].format};
        refused(NIB_UNSUPPORTED, nib_convert(o.model, &options, NIB_FORM_JSON, &sink, &err), &err);
        close_opened(&o);
    }
    drop_directory(directory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_convert),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
