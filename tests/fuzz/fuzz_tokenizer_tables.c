/* SPDX-License-Identifier: Apache-2.0
 *
 * A tokenizer.json, a zero byte, and changes to the tables built from it, whose hashes are then
 * recomputed. A change has four bytes: which word, how, and by what. If the tables open, they must
 * encode and decode, give valid UTF-8, and keep every id in range.
 */
#include "use_tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { HEAD = 104, REST = 72, SELF = 88, HASH = 16 };

static void change(char *at, size_t words, const uint8_t by[4])
{
    const size_t where = ((size_t)by[0] | (size_t)by[1] << 8) % words;
    uint32_t word;
    memcpy(&word, at + 4 * where, sizeof word);
    switch (by[2] & 3) {
    case 0: word ^= (uint32_t)by[3] << (by[2] >> 3); break;
    case 1: word += by[3]; break;
    case 2: word = by[3]; break;
    default: word = UINT32_MAX - by[3]; break;
    }
    memcpy(at + 4 * where, &word, sizeof word);
}

static void seal(char *at, size_t size)
{
    const nib_hash rest = nib__hash_bytes(at + HEAD, size - HEAD);
    memcpy(at + REST, &rest, HASH);
    memset(at + SELF, 0, HASH);
    const nib_hash self = nib__hash_bytes(at, HEAD);
    memcpy(at + SELF, &self, HASH);
}

/* Opens a copy of exactly this size, so that a sanitizer catches reads outside. */
static void use(const char *tables, size_t size)
{
    static const char text[] =
        " Hello <s>world</s>,  e\xcc\x81\xc3\xa9 12345\n\n\xf0\x9f\xa6\x99 aab_\xe2\x96\x81x";
    const nib_allocator a = nib__allocator_default();
    nib_err err = {.status = NIB_OK};
    nib_tokenizer *t = NULL;
    char *copy = malloc(size);
    if (copy == NULL)
        return;
    memcpy(copy, tables, size);
    const nib_named_text file = {"nibble.tokens", copy, size};
    if (nib__tokenizer_parse_tables(&t, &file, NULL, NULL, &a, &err) != NIB_OK)
        require(err.status != NIB_OK && err.text[0] != 0 && t == NULL);
    for (unsigned flags = 0; t != NULL && flags < 8; flags += 3)
        encode(t, text, sizeof text - 1, flags);
    nib__tokenizer_close(t);
    free(copy);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const nib_allocator a = nib__allocator_default();
    const uint8_t *zero = size == 0 ? NULL : memchr(data, 0, size);
    if (zero == NULL)
        return 0;
    const nib_named_text json = {"tokenizer.json", (const char *)data, (size_t)(zero - data)};
    nib_err err = {.status = NIB_OK};
    nib_tokenizer *t = NULL;
    nib_text tables;
    if (nib__tokenizer_parse(&t, &json, NULL, &a, &err) != NIB_OK)
        return 0;
    nib__text_init(&tables, &a);
    require(nib__tokenizer_tables(&tables, t, &json, &err) == NIB_OK);
    nib__tokenizer_close(t);
    for (const uint8_t *by = zero + 1; by + 4 <= data + size; by += 4)
        change(tables.at, tables.size / 4, by);
    seal(tables.at, tables.size);
    use(tables.at, tables.size);
    nib__text_free(&tables);
    return 0;
}
