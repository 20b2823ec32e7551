/* SPDX-License-Identifier: Apache-2.0
 *
 * The text of new tokens as they arrive: whole code points only. Text that may begin a stop string
 * is held back until it cannot.
 */
#ifndef NIB_STREAM_TEXT_H
#define NIB_STREAM_TEXT_H

#include "tokenizer.h"

typedef struct nib_text_out {
    nib_strings stop; /* none empty, valid UTF-8 */
    nib_detok detok;
    nib_text held; /* decoded, not yet taken */
    bool stopped;  /* a stop string follows the ready text */
} nib_text_out;

/* Fails for stop strings that are empty, or not valid UTF-8: text is matched by whole code
 * points. */
nib_status nib__text_out_check(const nib_strings *stop, nib_err *err);
void nib__text_out_open(nib_text_out *out, const nib_tokenizer *t, nib_strings stop,
                        const nib_allocator *a);
void nib__text_out_close(nib_text_out *out);
void nib__text_out_put(nib_text_out *out, int32_t id);
/* After the last token: all held text is ready, unless a stop string was found. */
void nib__text_out_finish(nib_text_out *out);
/* Looks for stop strings, and returns how many bytes of `held` are ready; `all`: hold nothing
 * back. */
size_t nib__text_out_ready(nib_text_out *out, bool all);
/* Removes the first `size` bytes of `held`. */
void nib__text_out_take(nib_text_out *out, size_t size);

#endif
