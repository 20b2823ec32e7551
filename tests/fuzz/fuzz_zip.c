/* SPDX-License-Identifier: Apache-2.0
 *
 * Any bytes as a zip file of PyTorch: accepted files are read to their ends, and refusals have an
 * error text.
 */
#include "mutate_zip.h"
#include "torch_zip.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds)
{
    if (!holds)
        abort();
}

static volatile unsigned sum; /* keeps reads from being optimized out */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const nib_allocator a = nib__allocator_default();
    nib_arena arena;
    nib_container contents = {0};
    nib_err err = {NIB_OK, ""};
    nib__arena_init(&arena, &a, 2 * size + (64 << 20));
    const nib_status status = nib__torch_parse(&contents, data, size, "x.pt", 0, &arena, &err);
    require(status == NIB_OK || (err.status == status && err.text[0] != 0));
    for (size_t i = 0; i < contents.count; i++) {
        const nib_tensor *t = contents.tensors[i];
        uint64_t count = 1;
        require(t->rank >= 0 && t->rank <= NIB_RANK_MAX && t->name != NULL);
        for (int d = 0; d < t->rank; d++)
            count *= (uint64_t)t->shape[d];
        require(count * (uint64_t)nib__type_bits(t->type) == 8 * t->bytes);
        for (uint64_t b = 0; b < t->bytes; b++)
            sum += t->data[b];
    }
    for (size_t i = 0; i < contents.meta_count; i++)
        require(contents.metas[i]->key != NULL && contents.metas[i]->value != NULL);
    nib__arena_free(&arena);
    return 0;
}
