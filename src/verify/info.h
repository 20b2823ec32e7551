/* SPDX-License-Identifier: Apache-2.0
 *
 * info: lists the weights and tensors that a checkpoint stores, as text or JSON.
 */
#ifndef NIB_INFO_H
#define NIB_INFO_H

#include "checkpoint.h"

/* One line: a weight with all its tensors and its bias, or another tensor. */
typedef struct nib_entry {
    const char *name; /* "M.weight", or the name of the tensor */
    int rank;
    int64_t shape[NIB_RANK_MAX]; /* of a weight: n and k, even if packed */
    const char *format;          /* "safetensors", "torchao", "nibble" */
    const char *scheme;          /* "8da4w-g32"; for another tensor its type, "bf16" */
    int64_t group;               /* 0: none */
    bool bias;
    uint64_t bytes;           /* of all its tensors */
    const char *module;       /* NULL: not a weight */
    nib_weight weight;        /* if module is set */
    const nib_tensor *tensor; /* if it is not a weight */
    /* Why a module's weight could not be read; each of its tensors then has an entry with part_of,
     * the module. If it has none but aliases, one entry of 0 bytes has its name and part_of. */
    const char *problem, *part_of;
} nib_entry;

/* Memory limit for inspecting a checkpoint: twice its size plus 64 MiB. */
size_t nib__info_memory_limit(const nib_checkpoint *cp);

/* Lists all entries in file order, allocated in the arena. Conversions of weights go to `ledger`
 * (NULL allowed). */
nib_status nib__entries_list(nib_entry **out, size_t *count, const nib_checkpoint *cp,
                             nib_arena *arena, nib_ledger *ledger, nib_err *err);
/* Numbers in all entries, biases included. */
uint64_t nib__entries_weights(const nib_entry *entries, size_t count);

/* "608x224". Returns out, or a constant for a scalar. */
const char *nib__format_entry_shape(char out[256], const nib_entry *entry);
/* Writes the members of an entry into the open object of w. */
void nib__entry_json(nib_jsonw *w, const nib_entry *entry);

nib_status nib__info_render(const nib_checkpoint *cp, const nib_allocator *a, nib_form form,
                            nib_text *out, nib_err *err);

#endif
