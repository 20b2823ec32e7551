/* SPDX-License-Identifier: Apache-2.0
 *
 * Any bytes as a GGUF with a vocabulary. If it opens, it must encode and decode, give valid UTF-8,
 * and keep every id in range.
 */
#include "gguf_vocab.h"
#include "use_tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void use(const nib_gguf *gguf)
{
    static const char text[] =
        " Hello <s>world</s>,  e\xcc\x81\xc3\xa9 12345\n\n\xf0\x9f\xa6\x99 aab_\xe2\x96\x81x";
    const nib_allocator a = nib__allocator_default();
    nib_err err = {.status = NIB_OK};
    nib_tokenizer *t = NULL;
    const char *template;
    size_t template_size;
    if (nib__gguf_chat_template(&template, &template_size, gguf, &err) != NIB_OK)
        require(err.status != NIB_OK && err.text[0] != 0);
    if (nib__gguf_tokenizer(&t, gguf, &a, &err) != NIB_OK) {
        require(err.status != NIB_OK && err.text[0] != 0 && t == NULL);
        return;
    }
    for (unsigned flags = 0; flags < 8; flags += 3)
        encode(t, text, sizeof text - 1, flags);
    nib__tokenizer_close(t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const nib_allocator a = nib__allocator_default();
    nib_err err = {.status = NIB_OK};
    nib_container contents;
    nib_arena arena;
    nib__arena_init(&arena, &a, 0);
    if (nib__gguf_parse(&contents, data, size, "x.gguf", 0, &arena, &err) == NIB_OK)
        use(contents.gguf);
    else
        require(err.status != NIB_OK && err.text[0] != 0);
    nib__arena_free(&arena);
    return 0;
}
