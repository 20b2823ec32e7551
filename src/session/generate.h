/* SPDX-License-Identifier: Apache-2.0
 *
 * Text after a prompt of tokens, by one job of a batch: what nib_generate and a turn of a chat do.
 */
#ifndef NIB_GENERATE_H
#define NIB_GENERATE_H

#include "batch.h"

typedef struct nib_prompt {
    const int32_t *ids; /* [count] */
    size_t count;
    bool continues; /* the new text continues text at the end of the prompt */
} nib_prompt;

/* Ignores the prompt and the conversation of the options. The batch belongs to the session and must
 * have no other jobs. A cancelled run succeeds, with NIB_FINISH_CANCELLED. Fills stats, which must
 * be zero, on failure, too. ledger (NULL allowed) gets a note if cached tokens were computed
 * again. */
nib_status nib__generate(nib_session *session, nib_batch *batch, const nib_prompt *prompt,
                         const nib_generate_options *options, const nib_sink *sink,
                         nib_generate_stats *stats, nib_ledger *ledger, nib_err *err);

/* Logs the settings for what the template leaves out of a conversation, before its answer is
 * generated, and adds them to `said`, which has those logged before. A strict request refuses
 * them. */
nib_status nib__chat_log_settings(nib_session *session, nib_ledger *said,
                                  const nib_chat_options *prompt, nib_err *err);

#endif
