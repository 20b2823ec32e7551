/* SPDX-License-Identifier: Apache-2.0
 *
 * The session handle behind nibble.h: a running plan.
 */
#ifndef NIB_SESSION_HANDLE_H
#define NIB_SESSION_HANDLE_H

#include "plan_handle.h"
#include "prompt_lookup.h"
#include "runner.h"

struct nib_session {
    nib_model *model;
    const nib_plan *plan;
    nib_plan *own; /* `plan` if the device refused part of the given one, else NULL */
    nib_runner runner;
    nib_step_times times; /* of steps that read no prompt */
    bool in_use;          /* by a batch, which owns the sequences */
};

/* Adds a note on the sandbox to the ledger of the plan that runs. */
void nib__session_note_sandbox(nib_session *session, const char *text);

#endif
