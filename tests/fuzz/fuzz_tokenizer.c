/* SPDX-License-Identifier: Apache-2.0
 *
 * Any bytes as tokenizer.json and, after a zero byte, as tokenizer_config.json. If it opens, it
 * must encode and decode, give valid UTF-8, and keep every id in range.
 */
#include "use_tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char text[] =
        " Hello <s>world</s>,  e\xcc\x81\xc3\xa9 12345\n\n\xf0\x9f\xa6\x99 aab_\xe2\x96\x81x";
    const nib_allocator a = nib__allocator_default();
    const uint8_t *zero = size == 0 ? NULL : memchr(data, 0, size);
    const size_t first = zero == NULL ? size : (size_t)(zero - data);
    const nib_named_text json = {"tokenizer.json", (const char *)data, first};
    const nib_named_text config = {"tokenizer_config.json", (const char *)data + first + 1,
                                   zero == NULL ? 0 : size - first - 1};
    nib_err err = {.status = NIB_OK};
    nib_tokenizer *t = NULL;
    if (nib__tokenizer_parse(&t, &json, zero == NULL ? NULL : &config, &a, &err) != NIB_OK) {
        require(err.status != NIB_OK && err.text[0] != 0 && t == NULL);
        return 0;
    }
    for (unsigned flags = 0; flags < 8; flags += 3)
        encode(t, text, sizeof text - 1, flags);
    nib__tokenizer_close(t);
    return 0;
}
