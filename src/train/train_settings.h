/* SPDX-License-Identifier: Apache-2.0
 *
 * What a run does, to be written down and compared: with what another run did from whose checkpoint
 * it goes on, and with what the other ranks do.
 */
#ifndef NIB_TRAIN_SETTINGS_H
#define NIB_TRAIN_SETTINGS_H

#include "trainer.h"

/* The config as one flat object with torchtitan's names: {"training.seq_len": 2048, ...}; what the
 * plan does by options of the program's in their place, and "schemes", a hash. */
void nib__trainer_settings(nib_jsonw *w, const nib_trainer *trainer);
/* Of what every layer is made in. */
nib_hash nib__trainer_schemes(const nib_trainer *trainer);
/* Of the bytes of a text. */
nib_hash nib__text_hash(const nib_documents *text);

/* Every rank calls it. Ranks with other settings would train something that none of them was asked
 * for, or wait for what the others do not send. exports: a directory for the model was asked. */
nib_status nib__ranks_same_settings(const nib_trainer *trainer, bool exports, nib_err *err);
/* The same of what they begin with, once a checkpoint was read, and of the text that is validated
 * (NULL: none). */
nib_status nib__ranks_same_start(const nib_trainer *trainer, const nib_documents *validation,
                                 nib_err *err);

#endif
