/* SPDX-License-Identifier: Apache-2.0
 *
 * Text behind a prompt of tokens, by one job of a batch: what nib_generate and a turn of a chat do.
 */
#ifndef NIB_GENERATE_H
#define NIB_GENERATE_H

#include "batch.h"

typedef struct nib_prompt {
    const int32_t *ids; /* [count] */
    size_t count;
    bool continues; /* the text goes on behind one that the prompt ends with */
} nib_prompt;

/* options->prompt is not read. The batch is the session's, and has no other jobs. A run that is
 * cancelled succeeds, with NIB_FINISH_CANCELLED. Fills stats, which are zero, on failure, too. */
nib_status nib__generate(nib_session *session, nib_batch *batch, const nib_prompt *prompt,
                         const nib_generate_options *options, const nib_sink *sink,
                         nib_generate_stats *stats, nib_err *err);

#endif
