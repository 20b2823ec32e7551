/* SPDX-License-Identifier: Apache-2.0
 *
 * The checkpoints of a run: directories DUMP_FOLDER/FOLDER/step-00000010, each of which appears
 * complete or not at all, the last few of them kept. What lies in one is train_state.h's.
 *
 * One that has no nibble.json is no checkpoint: it was being copied or removed when the process
 * ended, and is passed over with a line in the log. One that has it and does not hold what it says
 * is an error.
 */
#ifndef NIB_TRAIN_CHECKPOINT_H
#define NIB_TRAIN_CHECKPOINT_H

#include "trainer.h"

typedef struct nib_saves {
    nib_trainer *trainer; /* NULL: not open */
    const char *folder, *lock_path;
    int lock;                  /* of rank 0; negative: none */
    int64_t saved;             /* step of the checkpoint that was read or written last; 0: none */
    int64_t stays, part_stays; /* the newest old one and part that cannot be removed; 0: none */
} nib_saves;

/* Where a run's checkpoints lie: below job.dump_folder, unless checkpoint.folder is absolute. */
nib_status nib__saves_folder(const char **out, nib_trainer *trainer, nib_err *err);
/* Every rank calls this. It takes the folder for this process and reads what
 * checkpoint.load_step names. NIB_EXISTS: another process writes there. */
nib_status nib__saves_open(nib_saves *out, nib_trainer *trainer, nib_err *err);
void nib__saves_close(nib_saves *saves);
/* After a step: rank 0 writes a checkpoint if the interval or the run ends with it, and removes the
 * oldest. The others learn of a failure when they agree on the next step. */
nib_status nib__saves_step(nib_saves *saves, nib_err *err);
/* What the trainer holds, now, unless that is saved already. For rank 0 alone, too: a run that is
 * being cancelled waits for nobody. */
nib_status nib__saves_now(nib_saves *saves, nib_err *err);

#endif
