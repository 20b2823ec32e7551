/* SPDX-License-Identifier: Apache-2.0
 *
 * Any bytes as a training config and, after a NUL, as lines of options. An accepted config is
 * within what the trainer relies on, and every refusal has an error text.
 */
#include "train_config.h"

#include <math.h>
#include <stdlib.h>

enum { OPTIONS_MAX = 16 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds)
{
    if (!holds)
        abort();
}

static void require_train(const nib_train_config *c, const nib_config *m)
{
    require(c->batch > 0 && c->sequence > 0 && c->batch <= (INT64_C(1) << 31) / c->sequence);
    require(c->steps > 0 && c->interval > 0 && c->log_every > 0 && c->validation_every > 0);
    require(c->global_batch >= 0 && c->warmup >= 0 && c->keep >= 0 && c->load_step >= -1);
    require(isfinite(c->rate) && c->beta1 < 1 && c->beta2 < 1 && c->timeout_s > 0);
    require(c->decay_ratio <= 1 && c->min_factor >= 0 && c->min_factor <= 1);
    require(c->dtype == NIB_TYPE_F32 || c->dtype == NIB_TYPE_BF16);
    require(c->dump_folder && c->folder);
    require(m->width > 0 && m->ffn > 0 && m->layers > 0 && m->vocab > 0);
    require(m->heads % m->kv_heads == 0 && m->head_dim % 2 == 0 && m->context >= c->sequence);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const nib_allocator a = nib__allocator_default();
    nib_arena arena;
    nib_ledger ledger;
    nib_train_config config;
    nib_config model;
    nib_err err = {.status = NIB_OK};
    const char *items[OPTIONS_MAX];
    nib__arena_init(&arena, &a, 1 << 20);
    nib__ledger_init(&ledger, &a);
    char *text = nib__arena_copy(&arena, (const char *)data, size);
    require(text != NULL || size >= 1 << 19);
    const size_t file = text ? strlen(text) : 0;
    nib_train_source source = {
        .name = "fuzz/train.json", .text = text, .size = file, .arena = &arena, .notes = &ledger};
    source.options.items = items;
    for (char *at = text + file + 1; text && at < text + size;) {
        char *end = at + strcspn(at, "\n");
        const bool last = *end == '\0';
        if (source.options.count == OPTIONS_MAX)
            break;
        *end = '\0';
        items[source.options.count++] = at;
        at = last ? text + size : end + 1;
    }
    if (text)
        (void)nib__train_config_is(text, file);
    if (text && nib__train_config_parse(&config, &model, &source, &err) == NIB_OK)
        require_train(&config, &model);
    else
        require(!text || (err.status != NIB_OK && err.text[0] != 0));
    nib__ledger_free(&ledger);
    nib__arena_free(&arena);
    return 0;
}
