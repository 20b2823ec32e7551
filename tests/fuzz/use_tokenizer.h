/* SPDX-License-Identifier: Apache-2.0
 *
 * Uses a tokenizer that opened, from any source: its ids must be in range and their text valid
 * UTF-8.
 */
#ifndef NIB_USE_TOKENIZER_H
#define NIB_USE_TOKENIZER_H

#include "tokenizer.h"

#include <stdlib.h>

static void require(bool holds)
{
    if (!holds)
        abort();
}

static void encode(const nib_tokenizer *t, const char *text, size_t size, unsigned flags)
{
    const nib_allocator a = nib__allocator_default();
    nib_err err = {.status = NIB_OK};
    int32_t *ids = NULL;
    size_t count = 0;
    if (nib__tokenizer_encode(t, text, size, flags, &ids, &count, &err) != NIB_OK) {
        require(err.status != NIB_OK && err.text[0] != 0 && ids == NULL);
        return;
    }
    for (size_t i = 0; i < count; i++)
        require(ids[i] >= 0 && ids[i] < nib__tokenizer_vocab_size(t));
    nib_text out;
    nib__text_init(&out, &a);
    require(nib__tokenizer_decode(t, ids, count, (flags & 1) != 0, &out, &err) == NIB_OK);
    require(out.size == 0 || nib__utf8_check(out.at, out.size) == out.size);
    nib__text_free(&out);
    nib__tokenizer_ids_free(t, ids);
}

#endif
