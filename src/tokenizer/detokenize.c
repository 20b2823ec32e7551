/* SPDX-License-Identifier: Apache-2.0
 *
 * Decodes ids to text, one id at a time. Loading checks that the decoders come in this order: those
 * that change the text of one token (Replace, Strip, Metaspace), one that turns tokens into bytes
 * (ByteFallback or ByteLevel), Fuse, and a Strip of the whole text. So output never has to be
 * retracted: only the bytes of an incomplete code point, and characters that the last Strip may
 * remove, are held back.
 */
#include "tokenizer_parts.h"

#include <string.h>

static const char REPLACEMENT[] = "\xef\xbf\xbd"; /* U+FFFD */

void nib__detok_init(nib_detok *d, const nib_tokenizer *t, bool skip_special)
{
    *d = (nib_detok){.tokenizer = t, .skip_special = skip_special};
    nib__text_init(&d->work[0], &t->allocator);
    nib__text_init(&d->work[1], &t->allocator);
}

void nib__detok_continue(nib_detok *d) { d->begun = d->wrote = true; }

void nib__detok_free(nib_detok *d)
{
    nib__text_free(&d->work[0]);
    nib__text_free(&d->work[1]);
}

/* ---- the Strip at both ends of the whole text ---- */

/* The Strip after Fuse; NULL: none. */
static const nib_decoder *last_strip(const nib_tokenizer *t)
{
    const nib_decoder *last = t->decoder_count == 0 ? NULL : &t->decoders[t->decoder_count - 1];
    return last != NULL && last->kind == NIB_DECODE_STRIP && last->whole ? last : NULL;
}

static bool starts_with(const char *text, size_t size, const char *start, size_t start_size)
{
    return size >= start_size && memcmp(text, start, start_size) == 0;
}

static void put_stripped(nib_detok *d, const nib_decoder *strip, const char *text, size_t size,
                         nib_text *out)
{
    while (size != 0) {
        const size_t length = (size_t)nib__utf8_length(text, size);
        const bool match = starts_with(text, size, strip->content, strip->content_size);
        if (!d->wrote && match && d->stripped < strip->start) {
            d->stripped++;
        } else if (match && strip->stop != 0) {
            d->wrote = true;
            if (d->held == strip->stop)
                nib__text_put(out, text, length);
            else
                d->held++;
        } else {
            d->wrote = true;
            for (; d->held != 0; d->held--)
                nib__text_put(out, strip->content, strip->content_size);
            nib__text_put(out, text, length);
        }
        text += length;
        size -= length;
    }
}

static void put_text(nib_detok *d, const char *text, size_t size, nib_text *out)
{
    const nib_decoder *strip = d->raw ? NULL : last_strip(d->tokenizer);
    if (strip != NULL)
        put_stripped(d, strip, text, size, out);
    else
        nib__text_put(out, text, size);
}

/* ---- bytes to code points ---- */

/* Are the bytes a proper prefix of a code point? */
static bool is_prefix(const uint8_t *bytes, int count)
{
    if (bytes[0] < 0xc2 || bytes[0] > 0xf4)
        return false;
    const int length = bytes[0] < 0xe0 ? 2 : bytes[0] < 0xf0 ? 3 : 4;
    if (count >= length)
        return false;
    for (int i = 1; i < count; i++)
        if ((bytes[i] & 0xc0) != 0x80)
            return false;
    if (count < 2)
        return true;
    const uint8_t second = bytes[1];
    switch (bytes[0]) {
    case 0xe0: return second >= 0xa0;
    case 0xed: return second < 0xa0;
    case 0xf0: return second >= 0x90;
    case 0xf4: return second < 0x90;
    default: return true;
    }
}

/* `count` pending bytes are invalid: puts one U+FFFD per <0xHH> token, or a single one for other
 * tokens, as Hugging Face's decoders do. */
static void put_invalid(nib_detok *d, int count, nib_text *out)
{
    for (int i = 0; i < (d->pending_fallback ? count : 1); i++)
        put_text(d, REPLACEMENT, 3, out);
}

static void flush_pending(nib_detok *d, nib_text *out)
{
    if (d->pending_count != 0)
        put_invalid(d, d->pending_count, out);
    d->pending_count = 0;
}

static void put_byte(nib_detok *d, uint8_t byte, nib_text *out)
{
    if (d->raw) {
        nib__text_put(out, (const char *)&byte, 1);
        return;
    }
    d->pending[d->pending_count++] = byte;
    if (d->pending_count > 1 && !is_prefix(d->pending, d->pending_count) &&
        nib__utf8_length((const char *)d->pending, (size_t)d->pending_count) == 0) {
        /* The bytes before this one are the longest prefix of a code point. */
        put_invalid(d, d->pending_count - 1, out);
        d->pending[0] = byte;
        d->pending_count = 1;
    }
    if (is_prefix(d->pending, d->pending_count))
        return;
    if (nib__utf8_length((const char *)d->pending, (size_t)d->pending_count) != 0)
        put_text(d, (const char *)d->pending, (size_t)d->pending_count, out);
    else
        put_invalid(d, 1, out);
    d->pending_count = 0;
}

/* ---- one token ---- */

static void decode_replace(const nib_decoder *r, const char *text, size_t size, nib_text *out)
{
    while (size != 0) {
        const char *found = nib__find_bytes(text, size, r->finder.string, r->finder.size);
        const size_t before = found == NULL ? size : (size_t)(found - text);
        nib__text_put(out, text, before);
        if (found == NULL)
            return;
        nib__text_put(out, r->content, r->content_size);
        text = found + r->finder.size;
        size -= before + r->finder.size;
    }
}

static void decode_metaspace(const nib_decoder *m, const char *text, size_t size, bool first,
                             nib_text *out)
{
    while (size != 0) {
        const size_t length = (size_t)nib__utf8_length(text, size);
        if (!starts_with(text, size, m->content, m->content_size))
            nib__text_put(out, text, length);
        else if (!first || !m->prepended)
            nib__text_put(out, " ", 1);
        text += length;
        size -= length;
    }
}

static void strip_token(const nib_decoder *s, const char **text, size_t *size)
{
    for (size_t i = 0; i < s->start && starts_with(*text, *size, s->content, s->content_size);
         i++) {
        *text += s->content_size;
        *size -= s->content_size;
    }
    for (size_t i = 0; i < s->stop && *size >= s->content_size &&
                       memcmp(*text + *size - s->content_size, s->content, s->content_size) == 0;
         i++)
        *size -= s->content_size;
}

/* The byte that "<0xHH>" names; -1: another token. */
static int fallback_byte(const char *text, size_t size)
{
    int value = 0;
    if (size != 6 || memcmp(text, "<0x", 3) != 0 || text[5] != '>')
        return -1;
    for (int i = 3; i < 5; i++) {
        const char c = text[i];
        const char lower = (char)(c | 0x20);
        if (c >= '0' && c <= '9')
            value = value * 16 + (c - '0');
        else if (lower >= 'a' && lower <= 'f')
            value = value * 16 + (lower - 'a' + 10);
        else
            return -1;
    }
    return value;
}

/* Puts the bytes that the characters stand for, or the text itself if a character stands for none.
 */
static void put_byte_level(nib_detok *d, const char *text, size_t size, bool verbatim,
                           nib_text *out)
{
    const char *const end = text + size;
    bool all = !verbatim;
    for (const char *at = text; at < end && all;)
        all = nib__byte_level_byte(nib__utf8_next(&at)) >= 0;
    for (const char *at = text; at < end;) {
        if (all)
            put_byte(d, (uint8_t)nib__byte_level_byte(nib__utf8_next(&at)), out);
        else
            put_byte(d, (uint8_t)*at++, out);
    }
}

/* Runs the decoders that see one token. */
static void put_token(nib_detok *d, const char *text, size_t size, bool verbatim, nib_text *out)
{
    const nib_tokenizer *t = d->tokenizer;
    for (size_t i = 0; i < t->decoder_count; i++) {
        const nib_decoder *decoder = &t->decoders[i];
        nib_text *work = &d->work[i % 2];
        int byte;
        switch (decoder->kind) {
        case NIB_DECODE_REPLACE:
        case NIB_DECODE_METASPACE:
            nib__text_clear(work);
            if (decoder->kind == NIB_DECODE_REPLACE)
                decode_replace(decoder, text, size, work);
            else
                decode_metaspace(decoder, text, size, !d->begun, work);
            out->failed = out->failed || work->failed;
            text = work->at == NULL ? "" : work->at;
            size = work->size;
            break;
        case NIB_DECODE_FALLBACK:
            byte = fallback_byte(text, size);
            if (byte >= 0) {
                d->pending_fallback = true;
                put_byte(d, (uint8_t)byte, out);
                return;
            }
            break;
        case NIB_DECODE_BYTES: put_byte_level(d, text, size, verbatim, out); return;
        case NIB_DECODE_STRIP:
            if (!decoder->whole)
                strip_token(decoder, &text, &size);
            break;
        default: break;
        }
    }
    flush_pending(d, out);
    put_text(d, text, size, out);
}

void nib__detok_put(nib_detok *d, int32_t id, nib_text *out)
{
    const nib_tokenizer *t = d->tokenizer;
    size_t size;
    const char *text = nib__vocab_text(&t->vocab, id, &size);
    if (text == NULL) {
        flush_pending(d, out);
        put_text(d, REPLACEMENT, 3, out);
        d->begun = true;
        return;
    }
    if (d->skip_special && nib__vocab_special(&t->vocab, id))
        return;
    /* A normalizer may have put a space before the text; the token matched with it. */
    if (t->vocab.texts[id].size & NIB_TOKEN_NORMAL)
        text = nib__added_match(t, id, &size);
    if (!t->has_decoder && d->begun)
        put_text(d, " ", 1, out);
    put_token(d, text, size, (t->vocab.texts[id].size & NIB_TOKEN_VERBATIM) != 0, out);
    d->begun = true;
}

void nib__detok_finish(nib_detok *d, nib_text *out)
{
    flush_pending(d, out);
    d->begun = d->wrote = d->pending_fallback = false;
    d->stripped = d->held = 0;
}

void nib__token_text(const nib_tokenizer *t, int32_t id, nib_text *out)
{
    nib_detok d;
    nib__detok_init(&d, t, false);
    nib__detok_continue(&d);
    nib__detok_put(&d, id, out);
    nib__detok_finish(&d, out);
    nib__detok_free(&d);
}

nib_status nib__tokenizer_spell(const nib_tokenizer *t, int32_t id, nib_text *out, nib_err *err)
{
    nib_detok d;
    nib__detok_init(&d, t, true);
    d.raw = d.begun = true;
    if (nib__tokenizer_token(t, id, &(size_t){0}) != NULL)
        nib__detok_put(&d, id, out);
    nib__detok_free(&d);
    return out->failed ? nib__fail_memory(err, out->size, "the text of a token") : NIB_OK;
}

nib_status nib__tokenizer_decode(const nib_tokenizer *t, const int32_t *ids, size_t count,
                                 bool skip_special, nib_text *out, nib_err *err)
{
    nib_detok d;
    nib__detok_init(&d, t, skip_special);
    for (size_t i = 0; i < count; i++)
        nib__detok_put(&d, ids[i], out);
    nib__detok_finish(&d, out);
    nib__detok_free(&d);
    return out->failed ? nib__fail_memory(err, out->size, "the text of the tokens") : NIB_OK;
}
