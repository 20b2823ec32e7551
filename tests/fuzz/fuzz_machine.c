/* SPDX-License-Identifier: Apache-2.0
 *
 * Any bytes as a machine file. An accepted machine has what a plan relies on and round-trips
 * through a file; every refusal has an error text.
 */
#include "machine.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds)
{
    if (!holds)
        abort();
}

static void require_machine(const nib_machine *m, nib_arena *arena)
{
    nib_machine again;
    const char *host;
    nib_text text;
    require(m->bytes_per_s > 0 && m->memory > 0 && m->launch_s > 0);
    require(m->rate[NIB_UNIT_F32] > 0 && m->source_count >= 8);
    for (size_t i = 0; i < m->source_count; i++)
        require(m->sources[i].source != NULL);
    nib__text_init(&text, arena->allocator);
    nib__device_render(NIB_FORM_TEXT, m, &text);
    nib__text_clear(&text);
    nib__machine_write(m, &text);
    require(!text.failed);
    require(nib__machine_parse(&again, &host, "again", "again", text.at, text.size, arena, NULL) ==
            NIB_OK);
    require(memcmp(&again.facts, &m->facts, sizeof m->facts) == 0);
    require(again.source_count >= m->source_count);
    nib__text_free(&text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const nib_allocator a = nib__allocator_default();
    nib_arena arena;
    nib_machine machine;
    const char *host;
    nib_err err = {.status = NIB_OK};
    nib__arena_init(&arena, &a, 1 << 22);
    if (nib__machine_parse(&machine, &host, "fuzz", "fuzz", (const char *)data, size, &arena,
                           &err) == NIB_OK)
        require_machine(&machine, &arena);
    else
        require(err.status != NIB_OK && err.text[0] != 0);
    nib__arena_free(&arena);
    return 0;
}
