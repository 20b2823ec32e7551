/* SPDX-License-Identifier: Apache-2.0
 *
 * Stop strings in a growing text.
 */
#include "stream_text.h"
#include "public_struct.h"

#include <string.h>

nib_status nib__text_out_check(const nib_strings *stop, nib_err *err)
{
    NIB_TRY(nib__strings_check("nib_generate_options.stop", stop, err));
    for (size_t i = 0; i < stop->count; i++) {
        const size_t size = strlen(stop->items[i]), bad = nib__utf8_check(stop->items[i], size);
        if (size == 0 || bad < size)
            return size == 0
                       ? nib__fail(err, NIB_USAGE, "stop string %zu is empty; leave it out", i + 1)
                       : nib__fail(err, NIB_USAGE, "stop string %zu is not valid UTF-8 at byte %zu",
                                   i + 1, bad);
    }
    return NIB_OK;
}

void nib__text_out_open(nib_text_out *out, const nib_tokenizer *t, nib_strings stop,
                        const nib_allocator *a)
{
    *out = (nib_text_out){.stop = stop};
    nib__detok_init(&out->detok, t, true);
    nib__text_init(&out->held, a);
}

void nib__text_out_close(nib_text_out *out)
{
    nib__text_free(&out->held);
    nib__detok_free(&out->detok);
}

void nib__text_out_put(nib_text_out *out, int32_t id)
{
    nib__detok_put(&out->detok, id, &out->held);
}

void nib__text_out_finish(nib_text_out *out)
{
    if (!out->stopped)
        nib__detok_finish(&out->detok, &out->held);
}

/* Returns the size of the longest end of the held text that begins a stop string. *at: where a
 * whole stop string starts, or -1. Of several, the one that ends first, and of those the longest,
 * so the result does not depend on how tokens split the text. */
static size_t find_stop(const nib_text_out *out, int64_t *at)
{
    size_t keep = 0, first_end = SIZE_MAX;
    *at = -1;
    for (size_t s = 0; s < out->stop.count; s++) {
        const char *stop = out->stop.items[s];
        const size_t size = strlen(stop);
        for (size_t i = 0; i < out->held.size; i++) {
            const size_t left = out->held.size - i, common = left < size ? left : size;
            if (memcmp(out->held.at + i, stop, common) != 0)
                continue;
            if (common < size) {
                keep = left > keep ? left : keep;
            } else if (i + size < first_end || (i + size == first_end && (int64_t)i < *at)) {
                first_end = i + size;
                *at = (int64_t)i;
            }
            break;
        }
    }
    return keep;
}

size_t nib__text_out_ready(nib_text_out *out, bool all)
{
    int64_t at;
    const size_t keep = find_stop(out, &at);
    out->stopped = out->stopped || at >= 0;
    return at >= 0 ? (size_t)at : all ? out->held.size : out->held.size - keep;
}

void nib__text_out_take(nib_text_out *out, size_t size)
{
    if (size == 0)
        return;
    memmove(out->held.at, out->held.at + size, out->held.size - size);
    out->held.size -= size;
}
