/* SPDX-License-Identifier: Apache-2.0
 *
 * The state of a sequence as bytes, for callers that own the session: nib_session_save and
 * nib_session_load are these with checks.
 */
#ifndef NIB_SESSION_STATE_H
#define NIB_SESSION_STATE_H

#include "session_handle.h"

/* Hashes what a state belongs to: the weights, and how the session computes. Two sessions with the
 * same hash can load each other's states. */
nib_status nib__state_key(nib_hash *out, nib_session *session, nib_err *err);
/* Bytes that saving a sequence writes. */
nib_status nib__state_size(uint64_t *out, nib_session *session, int64_t sequence, nib_err *err);
nib_status nib__state_save(nib_session *session, int64_t sequence, const nib_sink *sink,
                           nib_err *err);
/* Replaces the sequence; *length gets its positions. */
nib_status nib__state_load(nib_session *session, int64_t sequence, const void *bytes, size_t size,
                           int32_t *length, nib_err *err);

#endif
