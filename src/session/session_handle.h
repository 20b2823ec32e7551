/* SPDX-License-Identifier: Apache-2.0
 *
 * The session handle behind nibble.h: a running plan.
 */
#ifndef NIB_SESSION_HANDLE_H
#define NIB_SESSION_HANDLE_H

#include "draft_length.h"
#include "plan_handle.h"
#include "runner.h"

struct nib_session {
    nib_holders holders; /* the application, generators, conversations, services */
    nib_model *model;
    nib_plan *plan; /* the given one, or its replacement if the device refused part of it */
    nib_runner runner;
    nib_step_times times; /* of steps that read no prompt */
    nib_session *draft;   /* of the plan's draft model; NULL: none */
    nib_draft_rate rate;  /* of its tokens, in all texts so far */
    bool in_use;          /* by a batch, which owns the sequences */
    bool running;         /* in a call with callbacks */
    bool hashed;
    nib_hash weights; /* nib__network_hash, once hashed */
};

/* Keeps the session until nib_session_close is called once more. */
void nib__session_hold(nib_session *session);
/* NIB_USAGE if a batch has the sequences, or as nib__session_enter. */
nib_status nib__session_check_idle(const nib_session *session, nib_err *err);
/* Also NIB_USAGE if the session does not have this sequence. */
nib_status nib__session_check_sequence(const nib_session *session, int32_t sequence, nib_err *err);
/* Begins a call that runs the session and its callbacks; nib__session_leave ends it. NIB_USAGE: one
 * is running, because a callback called the library or left it without returning; or the process
 * was forked. */
nib_status nib__session_enter(nib_session *session, nib_err *err);
void nib__session_leave(nib_session *session);

/* Adds a note on the sandbox to the ledger of the plan that runs. */
void nib__session_note_sandbox(nib_session *session, const char *text);

#endif
