/* SPDX-License-Identifier: Apache-2.0
 *
 * The settings of a run, to be recorded and compared: with those of the run whose checkpoint it
 * resumes from, and with those of the other ranks.
 */
#ifndef NIB_TRAIN_SETTINGS_H
#define NIB_TRAIN_SETTINGS_H

#include "trainer.h"

/* Writes the config as one flat object with torchtitan's names: {"training.seq_len": 2048, ...};
 * values that program options replace are those of the plan. "schemes" is a hash. */
void nib__trainer_settings(nib_jsonw *w, const nib_trainer *trainer);
/* Hash of the schemes of all layers. */
nib_hash nib__trainer_schemes(const nib_trainer *trainer);
/* Hash of the bytes of a text. */
nib_hash nib__text_hash(const nib_documents *text);

/* Call on every rank. Fails if ranks have different settings: they would train something that
 * nobody asked for, or wait for messages that others do not send. exports: a directory for the
 * model was asked for. */
nib_status nib__ranks_same_settings(const nib_trainer *trainer, bool exports, nib_err *err);
/* The same for the initial state, after a checkpoint was read, and for the validation text (NULL:
 * none). */
nib_status nib__ranks_same_start(const nib_trainer *trainer, const nib_documents *validation,
                                 nib_err *err);

/* Logs each setting that differs from `saved`, the "config" of a nibble.json (NULL: it has none).
 * Settings without effect on a resumed run are refused if the plan is strict. */
nib_status nib__log_changed_settings(const nib_trainer *trainer, const char *saved,
                                     nib_arena *arena, nib_err *err);

#endif
