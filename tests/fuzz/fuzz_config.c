/* SPDX-License-Identifier: Apache-2.0
 *
 * Any bytes as config.json and as generation_config.json. An accepted config is within the limits
 * that the rest of the library relies on, and every refusal has an error text.
 */
#include "generation_config.h"

#include <math.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds)
{
    if (!holds)
        abort();
}

static void require_config(const nib_config *c)
{
    require(c->width > 0 && c->ffn > 0 && c->layers > 0 && c->vocab > 0 && c->context > 0);
    require(c->heads > 0 && c->kv_heads > 0 && c->heads % c->kv_heads == 0);
    require(c->head_dim > 0 && c->head_dim % 2 == 0);
    require(c->heads * c->head_dim <= INT64_C(1) << 32);
    require(isfinite(c->norm_eps) && c->norm_eps > 0);
    require(isfinite(c->rope_theta) && c->rope_theta > 0);
    require(c->eos_count >= 0 && c->eos_count <= NIB_EOS_MAX);
    require(nib__arch_name(c->arch) != NULL);
    if (c->head_dim > 256)
        return;
    float table[2 * 256];
    nib__rope_table(table, c, 0, 2, 0, 2);
    for (int64_t i = 0; i < 2 * c->head_dim; i++)
        require(fabsf(table[i]) <= (c->rope_gain > 0 ? (float)c->rope_gain : 1.0f));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const nib_allocator a = nib__allocator_default();
    nib_arena arena;
    nib_ledger ledger;
    nib_config config;
    nib_generation generation;
    nib_err err = {.status = NIB_OK};
    nib__arena_init(&arena, &a, 1 << 20);
    nib__ledger_init(&ledger, &a);
    if (nib__config_parse(&config, "fuzz", (const char *)data, size, &arena, &ledger, &err) ==
        NIB_OK)
        require_config(&config);
    else
        require(err.status != NIB_OK && err.text[0] != 0);
    if (nib__generation_parse(&generation, "fuzz", (const char *)data, size, &ledger, &err) ==
        NIB_OK)
        require(generation.eos_count >= 0 && generation.eos_count <= NIB_EOS_MAX);
    else
        require(err.status != NIB_OK && err.text[0] != 0);
    nib__ledger_free(&ledger);
    nib__arena_free(&arena);
    return 0;
}
