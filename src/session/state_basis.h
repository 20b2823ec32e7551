/* SPDX-License-Identifier: Apache-2.0
 *
 * What the keys and values of a session depend on besides its tokens and its model
 * (nib__network_hash): how a plan computes, as lines that an error can quote.
 * docs/formats.md says what is compared.
 */
#ifndef NIB_STATE_BASIS_H
#define NIB_STATE_BASIS_H

#include "session_handle.h"

/* A line for each part that a plan may compute in several ways: its name, how, and the arithmetic
 * contract, separated by tabs. */
void nib__basis_write(nib_text *out, const nib_session *session);
/* NIB_NOT_AS_ASKED: keys and values that were computed by the lines `saved` [size] are not what a
 * session with the lines `own` computes; err names the first part with both. A device's own
 * arithmetic accepts any other contract, because it promises no bits. */
nib_status nib__basis_check(const char *saved, size_t size, const nib_text *own, nib_err *err);

#endif
