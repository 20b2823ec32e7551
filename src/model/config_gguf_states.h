/* SPDX-License-Identifier: Apache-2.0
 *
 * GGUF keys of families some of whose layers keep a state in place of keys and values.
 */
#ifndef NIB_CONFIG_GGUF_STATES_H
#define NIB_CONFIG_GGUF_STATES_H

#include "config.h"

#include "gguf.h"

/* Whether a key, without its architecture, is read here for the family. */
bool nib__gguf_is_of_states(const nib_config *config, const char *name);
/* Reads which layers keep a state, and sizes of recurrences that are not keys of the family; also
 * the widths of MLPs beside Mamba-2. Other families: nothing. NIB_BAD_INPUT: a size that cannot be;
 * NIB_UNSUPPORTED: no layer has attention. */
nib_status nib__gguf_read_states(nib_config *config, const nib_gguf *gguf, const char *arch,
                                 nib_arena *arena, nib_err *err);

/* Every how many layers one has attention; 0: not so, which a GGUF of these families cannot say. */
int64_t nib__gguf_full_interval(const nib_config *config);
/* The row of renames.h whose names a GGUF of this model has. */
const char *nib__gguf_names(const nib_config *config);

#endif
