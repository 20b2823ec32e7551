/* SPDX-License-Identifier: Apache-2.0
 *
 * The functions of nibble.h that need an open tokenizer alone. src/handle opens it.
 */
#include "tokenizer_parts.h"

#include "public_struct.h"

void nib_tokenizer_close(nib_tokenizer *tokenizer) { nib__tokenizer_close(tokenizer); }

void nib_tokenizer_facts_get(const nib_tokenizer *t, nib_tokenizer_facts *out)
{
    if (t == NULL)
        return;
    const nib_tokenizer_facts facts = {.vocab = nib__tokenizer_vocab_size(t),
                                       .bos = t->bos,
                                       .eos = t->eos,
                                       .adds_bos = nib__tokenizer_adds_bos(t)};
    NIB_RESULT(out, facts);
}

nib_status nib_tokenize(const nib_tokenizer *t, const char *text, size_t size, uint32_t flags,
                        int32_t **ids, size_t *count, nib_err *err)
{
    NIB_NEED(err, "tokenizer, text, ids, count", t, size > 0 ? (const void *)text : "", ids, count);
    const uint32_t known = NIB_TOKENIZE_ADD_SPECIAL | NIB_TOKENIZE_PARSE_SPECIAL;
    int32_t *made;
    size_t made_count;
    if ((flags & ~known) != 0)
        return nib__fail(err, NIB_USAGE,
                         "the flags of nib_tokenize are 0x%x, but 0x%x is not one of them; use "
                         "NIB_TOKENIZE_ADD_SPECIAL and NIB_TOKENIZE_PARSE_SPECIAL",
                         (unsigned)flags, (unsigned)(flags & ~known));
    NIB_TRY(nib__tokenizer_encode(t, text, size, flags, &made, &made_count, err));
    const nib_status status = nib__tokenizer_read(t, NIB_OK, err);
    if (status != NIB_OK) {
        nib__tokenizer_ids_free(t, made);
        return status;
    }
    *ids = made;
    *count = made_count;
    return NIB_OK;
}

nib_status nib_detokenize(const nib_tokenizer *t, const int32_t *ids, size_t count,
                          const nib_sink *sink, nib_err *err)
{
    NIB_NEED(err, "tokenizer, ids", t, count > 0 ? (const void *)ids : "");
    NIB_TRY(nib__sink_check(sink, err));
    nib_text text;
    nib__text_init(&text, &t->allocator);
    nib_status status =
        nib__tokenizer_read(t, nib__tokenizer_decode(t, ids, count, false, &text, err), err);
    if (status == NIB_OK)
        status = nib__text_flush(&text, sink, err);
    nib__text_free(&text);
    return status;
}
