/* SPDX-License-Identifier: Apache-2.0
 *
 * Documents into ids, ids into sequences.
 */
#include "data.h"

#include <inttypes.h>
#include <stdio.h>

static void drop_document(nib_data *d)
{
    if (d->ids)
        nib__tokenizer_ids_free(d->options.tokenizer, d->ids);
    nib__release(&d->engine->allocator, d->framed);
    d->ids = NULL;
    d->framed = NULL;
    d->open = false;
}

nib_status nib__data_open(nib_data *out, const nib_engine *engine, const nib_data_options *options,
                          nib_err *err)
{
    *out = (nib_data){.engine = engine, .options = *options};
    return nib__documents_open(&out->documents, options->path, &engine->allocator, err);
}

void nib__data_close(nib_data *d)
{
    if (!d->engine)
        return;
    drop_document(d);
    nib__documents_close(&d->documents);
    *d = (nib_data){0};
}

static nib_status check_ids(const nib_data *d, const char *name, nib_err *err)
{
    for (int64_t i = 0; i < d->count; i++)
        if (d->framed[i] < 0 || d->framed[i] >= d->options.vocab)
            return nib__fail(err, NIB_BAD_INPUT,
                             "%s: the tokenizer gives id %" PRId32 ", but the model has %" PRId64
                             " ids; train with its own tokenizer, or a larger vocab_size",
                             name, d->framed[i], d->options.vocab);
    return NIB_OK;
}

static nib_status encode(nib_data *d, const nib_document *doc, nib_err *err)
{
    const nib_tokenizer *t = d->options.tokenizer;
    size_t count;
    const nib_status status =
        nib__tokenizer_encode(t, doc->text, doc->size, 0, &d->ids, &count, err);
    if (status != NIB_OK)
        return nib__fail_in(err, status, doc->name);
    d->framed = nib__calloc(&d->engine->allocator, count + 2, sizeof *d->framed);
    if (!d->framed)
        return nib__fail_memory(err, (count + 2) * sizeof *d->framed, "a document's ids");
    const int32_t bos = nib__tokenizer_bos(t), eos = nib__tokenizer_eos(t);
    d->count = 0;
    if (count > 0 && bos >= 0 && nib__tokenizer_adds_bos(t))
        d->framed[d->count++] = bos;
    memcpy(d->framed + d->count, d->ids, count * sizeof *d->ids);
    d->count += (int64_t)count;
    if (count > 0 && eos >= 0)
        d->framed[d->count++] = eos;
    d->open = true;
    return check_ids(d, doc->name, err);
}

/* The next document that has ids, in the next pass if need be. */
static nib_status open_document(nib_data *d, nib_err *err)
{
    char shown[NIB_SHOWN];
    for (;;) {
        nib_document doc;
        bool found;
        drop_document(d);
        NIB_TRY(nib__documents_next(&d->documents, &doc, &found, err));
        if (found) {
            d->place.begin = (int64_t)doc.begin;
            d->place.line = d->documents.number;
            d->place.used = 0;
            NIB_TRY(encode(d, &doc, err));
            if (d->count == 0)
                continue;
            d->any = true;
            return NIB_OK;
        }
        if (!d->any)
            return nib__fail(err, NIB_BAD_INPUT, "%s holds no text to train on",
                             nib__shown(shown, d->options.path));
        d->place.pass++;
        nib__documents_seek(&d->documents, 0, 1);
        char line[NIB_SHOWN + 64];
        snprintf(line, sizeof line, "%s begins again: pass %" PRId64,
                 nib__shown(shown, d->options.path), d->place.pass + 1);
        if (d->engine->callbacks.log)
            d->engine->callbacks.log(d->engine->callbacks.ctx, line);
    }
}

nib_status nib__data_next(nib_data *d, int32_t *ids, bool *first, nib_err *err)
{
    const int64_t wanted = d->options.length + 1;
    for (int64_t i = 0; i < wanted;) {
        if (!d->open || d->place.used == d->count)
            NIB_TRY(open_document(d, err));
        const int64_t part = nib__min(wanted - i, d->count - d->place.used);
        memcpy(ids + i, d->framed + d->place.used, (size_t)part * sizeof *ids);
        memset(first + i, 0, (size_t)part * sizeof *first);
        first[i] = d->place.used == 0;
        d->place.used += part;
        i += part;
    }
    d->place.sequences++;
    return NIB_OK;
}

nib_status nib__data_skip(nib_data *d, int64_t count, nib_err *err)
{
    const int64_t sequences = d->place.sequences + count;
    for (int64_t left = count * (d->options.length + 1); left > 0;) {
        if (!d->open || d->place.used == d->count)
            NIB_TRY(open_document(d, err));
        const int64_t part = nib__min(left, d->count - d->place.used);
        d->place.used += part;
        left -= part;
    }
    d->place.sequences = sequences;
    return NIB_OK;
}

nib_status nib__data_seek(nib_data *d, const nib_data_place *place, nib_err *err)
{
    nib__documents_seek(&d->documents, (size_t)place->begin, place->line);
    drop_document(d);
    d->any = place->pass > 0;
    if (place->sequences > 0)
        NIB_TRY(open_document(d, err));
    if (place->used < 0 || (d->open && place->used > d->count))
        return nib__fail(err, NIB_BAD_INPUT,
                         "%s: the document at byte %" PRId64 " has %" PRId64
                         " ids, fewer than the %" PRId64
                         " that were taken of it; the file or the tokenizer has changed",
                         d->options.path, place->begin, d->count, place->used);
    d->place = *place;
    return NIB_OK;
}
