/* SPDX-License-Identifier: Apache-2.0
 *
 * A model with images, of which the text model runs: config.c reads its text_config, and experts.c
 * the names of its tensors. It gives the same bits as the text model alone; its encoder is not
 * read, and the ledger says so.
 */
#include "ledger_lines.h"
#include "session.h"

#include "safetensors_build.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "refused.h"

#define MODELS "tests/golden/models/"

enum { TOKENS = 40, VOCAB_MAX = 256 };

static char *read_whole(const char *model, const char *name, size_t *size)
{
    const nib_allocator a = nib__allocator_default();
    char path[128], *text;
    nib_err err;
    snprintf(path, sizeof path, "%s/%s", model, name);
    if (nib__file_read(&text, size, path, 1 << 24, &a, &err) != NIB_OK)
        fail_msg("%s", err.text);
    return text;
}

/* The same weights under other names, and a bias of an encoder, which the text model lacks. */
static void write_weights(const char *directory, const char *model)
{
    static const char from[] = "\"model.", to[] = "\"model.language_model.",
                      encoder[] = "\"model.vision_tower.a.bias\":{\"dtype\":\"F32\",\"shape\":[0],"
                                  "\"data_offsets\":[0,0]},";
    const nib_allocator a = nib__allocator_default();
    char path[300];
    size_t size, used = 0;
    char *file = read_whole(model, "model.safetensors", &size);
    uint64_t header;
    memcpy(&header, file, 8);
    uint8_t *out = malloc(2 * size + sizeof encoder);
    assert_non_null(out);
    char *text = (char *)out + 8;
    text[used++] = '{';
    memcpy(text + used, encoder, sizeof encoder - 1);
    used += sizeof encoder - 1;
    for (size_t i = 1; i < header; i++)
        if (strncmp(file + 8 + i, from, sizeof from - 1) == 0) {
            memcpy(text + used, to, sizeof to - 1);
            used += sizeof to - 1;
            i += sizeof from - 2;
        } else {
            text[used++] = file[8 + i];
        }
    while (used % 8 != 0)
        text[used++] = ' ';
    for (int i = 0; i < 8; i++)
        out[i] = (uint8_t)((uint64_t)used >> 8 * i);
    memcpy(text + used, file + 8 + header, size - 8 - (size_t)header);
    snprintf(path, sizeof path, "%s/model.safetensors", directory);
    write_bytes(path, out, 8 + used + size - 8 - (size_t)header);
    free(out);
    nib__release(&a, file);
}

static void write_config(const char *directory, const char *model)
{
    const nib_allocator a = nib__allocator_default();
    char path[300], text[4096];
    size_t size;
    char *config = read_whole(model, "config.json", &size);
    const int used =
        snprintf(text, sizeof text,
                 "{\"architectures\":[\"Gemma4ForConditionalGeneration\"],\"model_type\":"
                 "\"gemma4\",\"vision_config\":{\"model_type\":\"gemma4_vision\"},"
                 "\"text_config\":%.*s}",
                 (int)size, config);
    assert_true(used < (int)sizeof text);
    snprintf(path, sizeof path, "%s/config.json", directory);
    write_bytes(path, (const uint8_t *)text, (size_t)used);
    nib__release(&a, config);
}

/* Writes the last token's logits to out; returns how many settings of the plan are not equivalent
 * to what was asked. */
static size_t run(const char *path, float *out)
{
    opened o = must_open(&(open_how){.path = path, .dtype = "f32"});
    nib_slot slots[TOKENS];
    const float *logits;
    nib_err err;
    const size_t vocab = (size_t)nib_session_vocab(o.session);
    assert_true(vocab <= VOCAB_MAX);
    for (int32_t i = 0; i < TOKENS; i++)
        slots[i] =
            (nib_slot){0, i, (i * 37 + 5) % (int32_t)vocab, i == TOKENS - 1 ? NIB_SLOT_LOGITS : 0};
    if (nib_session_step(o.session, slots, TOKENS, &logits, &err) != NIB_OK)
        fail_msg("%s", err.text);
    memcpy(out, logits, vocab * sizeof *out);
    const nib_ledger *notes = &o.model->net.notes;
    const size_t encoders = count_settings(notes, "config-key", "vision_config"),
                 tensors = count_settings(notes, "extra-tensor", "model.vision_tower");
    assert_int_equal(encoders, tensors);
    close_opened(&o);
    return encoders;
}

static void test_same_bits(void **state)
{
    static const char *const models[] = {MODELS "gemma4", MODELS "gemma4_shared"};
    (void)state;
    for (size_t i = 0; i < COUNT(models); i++) {
        char directory[256];
        float alone[VOCAB_MAX] = {0}, within[VOCAB_MAX] = {0};
        make_directory(directory);
        write_weights(directory, models[i]);
        write_config(directory, models[i]);
        assert_int_equal(run(models[i], alone), 0);
        assert_int_equal(run(directory, within), 1);
        assert_memory_equal(alone, within, sizeof alone);
        drop_directory(directory);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_same_bits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
