/* SPDX-License-Identifier: Apache-2.0
 *
 * Tokenizes documents and cuts ids into sequences.
 */
#include "data.h"

#include <inttypes.h>
#include <stdio.h>

/* ---- opening ---- */

static nib_status fail_empty(const nib_data *d, nib_err *err)
{
    char shown[NIB_SHOWN];
    return nib__fail(err, NIB_BAD_INPUT, "%s holds no text to train on; name a file with text",
                     nib__escape_string(shown, d->options.path));
}

/* Checks every document, and that at least one has text. */
static nib_status check_documents(nib_data *d, nib_err *err)
{
    bool any = false;
    for (;;) {
        nib_document doc;
        bool found;
        NIB_TRY(nib__documents_next(&d->documents, &doc, &found, err));
        if (!found)
            break;
        const size_t valid = nib__utf8_check(doc.text, doc.size);
        if (valid < doc.size)
            return nib__fail(err, NIB_BAD_INPUT,
                             "%s: the text is not valid UTF-8: byte 0x%02x at offset %zu; convert "
                             "it to UTF-8 first",
                             doc.name, (unsigned)(unsigned char)doc.text[valid], valid);
        any = any || doc.size > 0;
    }
    nib__documents_seek(&d->documents, 0, 1);
    return any ? NIB_OK : fail_empty(d, err);
}

static nib_status fail_vocab(const nib_data *d, int32_t id, nib_err *err)
{
    size_t size;
    char shown[NIB_SHOWN];
    const char *token = nib__tokenizer_token(d->options.tokenizer, id, &size);
    return nib__fail(err, NIB_BAD_INPUT,
                     "the tokenizer has id %" PRId32 " (%s), but the model has %" PRId64
                     " ids; train with the model's tokenizer, or a model of %" PRId64 " ids",
                     id, token ? nib__escape_name(shown, sizeof shown, token, size) : "no token",
                     d->options.vocab, nib__tokenizer_vocab_size(d->options.tokenizer));
}

/* Special tokens beyond the vocabulary are common (padding) and harmless: no text produces them. */
static nib_status check_vocab(const nib_data *d, nib_err *err)
{
    const nib_tokenizer *t = d->options.tokenizer;
    const int64_t end = nib__tokenizer_vocab_size(t);
    for (int64_t i = d->options.vocab; i < end; i++) {
        const int32_t id = (int32_t)i;
        size_t size;
        const bool text = nib__tokenizer_token(t, id, &size) && !nib__tokenizer_is_special(t, id);
        if (text || id == nib__tokenizer_eos(t) ||
            (id == nib__tokenizer_bos(t) && nib__tokenizer_adds_bos(t)))
            return fail_vocab(d, id, err);
    }
    return NIB_OK;
}

nib_status nib__data_open(nib_data *out, const nib_engine *engine, const nib_data_options *options,
                          nib_err *err)
{
    *out = (nib_data){.engine = engine, .options = *options};
    nib_status status = check_vocab(out, err);
    if (status == NIB_OK)
        status = nib__documents_open(&out->documents, options->path, &engine->allocator, err);
    if (status == NIB_OK)
        status = check_documents(out, err);
    if (status != NIB_OK)
        nib__data_close(out);
    return status;
}

static void close_piece(nib_data *d)
{
    nib__release(&d->engine->allocator, d->ids);
    d->ids = NULL;
    d->count = 0;
}

void nib__data_close(nib_data *d)
{
    if (!d->engine)
        return;
    close_piece(d);
    nib__documents_close(&d->documents);
    *d = (nib_data){0};
}

/* ---- documents into ids ---- */

/* The end of the piece that begins at `from`: after the last line end in its second half that no
 * blank follows, else before its last blank, else at a character boundary. So no word is cut, and
 * tokenizers that work on words give the same ids as for the whole text. */
static size_t end_piece(const char *text, size_t size, size_t from)
{
    if (size - from <= NIB_DATA_PIECE)
        return size;
    const size_t least = from + NIB_DATA_PIECE / 2, most = from + NIB_DATA_PIECE;
    for (size_t at = most; at > least; at--)
        if (text[at - 1] == '\n' && !strchr(" \t\r\n", text[at]))
            return at;
    for (size_t at = most; at > least; at--)
        if (text[at] == ' ' && text[at - 1] != ' ')
            return at;
    size_t at = most;
    while (((unsigned char)text[at] & 0xc0) == 0x80)
        at--;
    return at;
}

static nib_status check_ids(const nib_data *d, nib_err *err)
{
    for (int64_t i = 0; i < d->count; i++)
        if (d->ids[i] < 0 || d->ids[i] >= d->options.vocab) {
            const nib_status status = fail_vocab(d, d->ids[i], err);
            return nib__fail_in(err, status, d->document.name);
        }
    return NIB_OK;
}

/* Stores the ids of a piece, with BOS and EOS where they belong. */
static nib_status store_ids(nib_data *d, const int32_t *ids, size_t count, nib_err *err)
{
    const nib_tokenizer *t = d->options.tokenizer;
    const int32_t bos = nib__tokenizer_bos(t), eos = nib__tokenizer_eos(t);
    const bool begins = d->position.piece == 0, ends = d->piece_end == d->document.size,
               empty = begins && ends && count == 0;
    d->ids = nib__calloc(&d->engine->allocator, count + 2, sizeof *d->ids);
    if (!d->ids)
        return nib__fail_memory(err, (count + 2) * sizeof *d->ids, "a document's ids");
    if (begins && !empty && bos >= 0 && nib__tokenizer_adds_bos(t))
        d->ids[d->count++] = bos;
    if (count > 0)
        memcpy(d->ids + d->count, ids, count * sizeof *ids);
    d->count += (int64_t)count;
    if (ends && !empty && eos >= 0)
        d->ids[d->count++] = eos;
    return check_ids(d, err);
}

/* Tokenizes the piece of the document that begins at offset `from` of its text. */
static nib_status open_piece(nib_data *d, size_t from, nib_err *err)
{
    const nib_tokenizer *t = d->options.tokenizer;
    const nib_document *doc = &d->document;
    close_piece(d);
    d->position.piece = (int64_t)from;
    d->position.used = 0;
    d->piece_end = end_piece(doc->text, doc->size, from);
    int32_t *ids;
    size_t count;
    const nib_status encoded =
        nib__tokenizer_encode(t, doc->text + from, d->piece_end - from, 0, &ids, &count, err);
    if (encoded != NIB_OK)
        return nib__fail_in(err, encoded, doc->name);
    const nib_status status = store_ids(d, ids, count, err);
    nib__tokenizer_ids_free(t, ids);
    d->any = d->any || d->count > 0;
    return status;
}

/* Opens the next document of this pass at an offset of its text; *found false: the pass has no
 * more. */
static nib_status open_document(nib_data *d, size_t from, bool *found, nib_err *err)
{
    close_piece(d);
    NIB_TRY(nib__documents_next(&d->documents, &d->document, found, err));
    if (!*found)
        return NIB_OK;
    d->position.begin = (int64_t)d->document.begin;
    d->position.line = d->documents.number;
    return open_piece(d, from < d->document.size ? from : d->document.size, err);
}

/* Logs the 2nd, 3rd, 5th, 9th pass and so on: a short text may be read thousands of times. */
static void log_pass(const nib_data *d)
{
    const nib_callbacks *call = &d->engine->callbacks;
    char shown[NIB_SHOWN], line[NIB_SHOWN + 64];
    if (!call->log || d->options.quiet || (d->position.pass & (d->position.pass - 1)) != 0)
        return;
    snprintf(line, sizeof line, "%s begins again: pass %" PRId64,
             nib__escape_string(shown, d->options.path), d->position.pass + 1);
    call->log(call->ctx, line);
}

/* Opens pieces until one has unread ids, in the next pass if necessary. */
static nib_status open_next_ids(nib_data *d, nib_err *err)
{
    while (!d->ids || d->position.used == d->count) {
        bool found = true;
        if (d->ids && d->piece_end < d->document.size)
            NIB_TRY(open_piece(d, d->piece_end, err));
        else
            NIB_TRY(open_document(d, 0, &found, err));
        if (found)
            continue;
        if (!d->any)
            return fail_empty(d, err);
        d->position.pass++;
        nib__documents_seek(&d->documents, 0, 1);
        log_pass(d);
    }
    return NIB_OK;
}

/* ---- ids into sequences ---- */

nib_status nib__data_next(nib_data *d, int32_t *ids, bool *first, nib_err *err)
{
    const int64_t wanted = d->options.length + 1;
    for (int64_t i = 0; i < wanted;) {
        NIB_TRY(open_next_ids(d, err));
        const int64_t part = nib__min(wanted - i, d->count - d->position.used);
        memcpy(ids + i, d->ids + d->position.used, (size_t)part * sizeof *ids);
        memset(first + i, 0, (size_t)part * sizeof *first);
        first[i] = d->position.piece == 0 && d->position.used == 0;
        d->position.used += part;
        i += part;
    }
    d->position.sequences++;
    return NIB_OK;
}

nib_status nib__data_skip(nib_data *d, int64_t count, nib_err *err)
{
    for (int64_t left = count * (d->options.length + 1); left > 0;) {
        NIB_TRY(open_next_ids(d, err));
        const int64_t part = nib__min(left, d->count - d->position.used);
        d->position.used += part;
        left -= part;
    }
    d->position.sequences += count;
    return NIB_OK;
}

static nib_status fail_position(const nib_data *d, const nib_data_position *p, nib_err *err)
{
    char shown[NIB_SHOWN];
    return nib__fail(err, NIB_BAD_INPUT,
                     "%s has no id %" PRId64 " in the document at byte %" PRId64 " (line %" PRId64
                     ") from byte %" PRId64
                     " of its text, the saved position; the file or the tokenizer has changed",
                     nib__escape_string(shown, d->options.path), p->used, p->begin, p->line,
                     p->piece);
}

nib_status nib__data_seek(nib_data *d, const nib_data_position *position, nib_err *err)
{
    const nib_data_position p = *position; /* position may point to d->position */
    if (p.sequences < 0 || p.pass < 0 || p.begin < 0 || p.line < 0 || p.piece < 0 || p.used < 0)
        return fail_position(d, &p, err);
    close_piece(d);
    nib__documents_seek(&d->documents, (size_t)p.begin, p.line);
    if (p.sequences > 0) {
        bool found;
        const nib_status status = open_document(d, (size_t)p.piece, &found, err);
        /* Opening checked every document, so the position must be bad. */
        if (status == NIB_BAD_INPUT ||
            (status == NIB_OK && (!found || d->position.begin != p.begin ||
                                  d->position.piece != p.piece || p.used > d->count)))
            return fail_position(d, &p, err);
        NIB_TRY(status);
    }
    d->position = p;
    return NIB_OK;
}
