/* SPDX-License-Identifier: Apache-2.0
 *
 * Text of new tokens as they come: whole code points only, with what may begin a stop string held
 * back until it is sure that it does not.
 */
#ifndef NIB_TEXT_OUT_H
#define NIB_TEXT_OUT_H

#include "tokenizer.h"

typedef struct nib_text_out {
    nib_strings stop; /* not empty, valid UTF-8 */
    nib_detok detok;
    nib_text held; /* decoded, not yet taken */
    bool stopped;  /* a stop string stands behind what is ready */
} nib_text_out;

/* Text is matched by code points: a stop string that cuts one in half could never be. */
nib_status nib__text_out_check(const nib_strings *stop, nib_err *err);
void nib__text_out_open(nib_text_out *out, const nib_tokenizer *t, nib_strings stop,
                        const nib_allocator *a);
void nib__text_out_close(nib_text_out *out);
void nib__text_out_put(nib_text_out *out, int32_t id);
/* No token comes any more: all that is held is ready, unless a stop string came. */
void nib__text_out_finish(nib_text_out *out);
/* How many bytes of `held` are ready; `all`: nothing is held back. Looks for stop strings. */
size_t nib__text_out_ready(nib_text_out *out, bool all);
/* The first bytes of `held` were used. */
void nib__text_out_take(nib_text_out *out, size_t size);

#endif
