/* SPDX-License-Identifier: Apache-2.0
 *
 * A model as a GGUF describes it, for whoever writes one.
 */
#ifndef NIB_CONVERT_GGUF_H
#define NIB_CONVERT_GGUF_H

#include "convert.h"
#include "quantize.h"

/* Fills head, and the job's members for GGUF, which stay in the arena. first: of the first linear
 * layer as it is written. A tokenizer that is not there is a note. */
nib_status nib__convert_gguf(nib_quantize_job *job, nib_gguf_head *head, nib_model *model,
                             const nib_scheme *first, nib_arena *arena, nib_ledger *ledger,
                             nib_err *err);

#endif
