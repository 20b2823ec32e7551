/* SPDX-License-Identifier: Apache-2.0
 *
 * Describes a model for a GGUF that is written.
 */
#ifndef NIB_CONVERT_GGUF_H
#define NIB_CONVERT_GGUF_H

#include "convert.h"
#include "quantize.h"

/* Fills head and the job's members for GGUF, which live in the arena. first: scheme of the first
 * linear layer as written. A missing tokenizer is a note. */
nib_status nib__convert_gguf(nib_quantize_job *job, nib_gguf_head *head, nib_model *model,
                             const nib_scheme *first, nib_arena *arena, nib_ledger *ledger,
                             nib_err *err);

#endif
