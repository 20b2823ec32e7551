/* SPDX-License-Identifier: Apache-2.0
 *
 * The checkpoints of a run: directories DUMP_FOLDER/FOLDER/step-00000010, each of which appears
 * complete or not at all. The last few are kept. train_state.h defines their content.
 *
 * A directory without nibble.json is not a checkpoint: it was being copied or removed when the
 * process ended. It is skipped with a line in the log. A directory with nibble.json whose content
 * does not match is an error.
 */
#ifndef NIB_TRAIN_CHECKPOINT_H
#define NIB_TRAIN_CHECKPOINT_H

#include "trainer.h"

typedef struct nib_saves {
    nib_trainer *trainer; /* NULL: not open */
    const char *folder, *lock_path;
    int lock;      /* held by rank 0; negative: none */
    int64_t saved; /* step of the checkpoint last read or written; 0: none */
    int64_t stays,
        part_stays; /* newest old checkpoint, and newest part, that cannot be removed; 0: none */
} nib_saves;

/* The folder of a run's checkpoints: below job.dump_folder, unless checkpoint.folder is
 * absolute. */
nib_status nib__saves_folder(const char **out, nib_trainer *trainer, nib_err *err);
/* Call on every rank. Locks the folder for this process and reads the checkpoint that
 * checkpoint.load_step names. NIB_EXISTS: another process writes there. */
nib_status nib__saves_open(nib_saves *out, nib_trainer *trainer, nib_err *err);
void nib__saves_close(nib_saves *saves);
/* Does the interval or the run end with this step? */
bool nib__saves_due(const nib_saves *saves);
/* Writes a checkpoint now, unless this step is saved already or the run saves none, and removes the
 * oldest. Rank 0 may call it alone: a cancelled run waits for no other rank. */
nib_status nib__saves_now(nib_saves *saves, nib_err *err);

#endif
