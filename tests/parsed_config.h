/* SPDX-License-Identifier: Apache-2.0
 *
 * Test helper: parses a config.json from text.
 */
#ifndef NIB_TESTS_PARSED_CONFIG_H
#define NIB_TESTS_PARSED_CONFIG_H

#include "config.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

typedef struct parsed {
    nib_config config;
    nib_arena arena;
    nib_ledger ledger;
    nib_err err;
    nib_status status;
} parsed;

static nib_allocator allocator;

static inline void open_text(parsed *p, const char *text)
{
    allocator = nib__allocator_default();
    *p = (parsed){0};
    nib__arena_init(&p->arena, &allocator, 0);
    nib__ledger_init(&p->ledger, &allocator);
    p->status = nib__config_parse(&p->config, "config.json", text, strlen(text), &p->arena,
                                  &p->ledger, &p->err);
}

static inline void close_parsed(parsed *p)
{
    nib__ledger_free(&p->ledger);
    nib__arena_free(&p->arena);
}

#define SIZES                                                                                      \
    "\"hidden_size\":64,\"intermediate_size\":172,\"num_hidden_layers\":2,"                        \
    "\"num_attention_heads\":4,\"vocab_size\":300,\"max_position_embeddings\":1024"

/* A complete config of one architecture. `more` comes last, so its keys override earlier ones. */
static inline void open_config(parsed *p, const char *arch, const char *more)
{
    char text[4096];
    snprintf(text, sizeof text, "{\"model_type\":\"%s\",\"num_key_value_heads\":2," SIZES "%s%s}",
             arch, *more ? "," : "", more);
    open_text(p, text);
}

#endif
