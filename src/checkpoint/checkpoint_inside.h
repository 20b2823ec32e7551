/* SPDX-License-Identifier: Apache-2.0
 *
 * What an open checkpoint is inside, for the files of this folder: checkpoint.c fills it, weight.c and
 * the dialects read it.
 */
#ifndef NIB_CHECKPOINT_INSIDE_H
#define NIB_CHECKPOINT_INSIDE_H

#include "checkpoint.h"
#include "names.h"

/* A buffer that replaces stored bytes where a view cannot serve: swizzled scales in rows, f64 weights as
 * f32, scalars aligned. Made once per key and kept, so that asking again costs nothing. */
typedef struct nib_copy {
    const void *key; /* the stored bytes it stands for */
    void *bytes;
    size_t size;
    struct nib_copy *next;
} nib_copy;

struct nib_checkpoint {
    nib_allocator allocator;
    nib_arena arena;
    const char *path, *directory;
    nib_map *maps; /* [file_count] */
    const char **files; /* [file_count] paths */
    int file_count;
    const nib_tensor **tensors; /* [count], by file, then by place */
    size_t count;
    nib_names by_name;
    const nib_meta **metas; /* [meta_count], keys unique */
    size_t meta_count;
    nib_names by_key;
    const char **modules; /* [module_count] */
    size_t module_count;
    const char **notes; /* [note_count] */
    size_t note_count, note_capacity;
    uint64_t bytes;
    bool nibble;      /* __metadata__ says that the file is of our own dialect */
    nib_copy **copies; /* the list's head, reachable through a const checkpoint */
};

/* ---- shared by the dialects ---- */

enum { NIB_SHOWN = 160 }; /* bytes of a name in a message */

/* What a dialect is asked for: the module, where its values go, where conversions are told. */
typedef struct nib_weight_query {
    const nib_checkpoint *cp;
    const char *module;
    char shown[NIB_SHOWN]; /* the module, safe for messages */
    nib_weight *out;
    nib_ledger *ledger; /* NULL allowed */
    nib_err *err;
} nib_weight_query;

/* The stored tensor module + suffix, or NULL. */
const nib_tensor *nib__weight_part(const nib_weight_query *q, const char *suffix);
/* "module.suffix: sentence". */
nib_status nib__weight_fail(const nib_weight_query *q, nib_status status, const char *suffix, const char *format, ...)
    NIB_PRINTF(4, 5);
/* Fails unless the tensor has this type (NONE: any) and shape. suffix names it in messages. */
nib_status nib__weight_expect(const nib_weight_query *q, const char *suffix, const nib_tensor *tensor, nib_type type,
                              int rank, const int64_t *shape);
/* A ledger line about a part, if there is a ledger. */
void nib__weight_say(const nib_weight_query *q, const char *suffix, const char *asked, const char *done,
                     double max_rel_change, const char *reason);
/* `size` zeroed bytes, or those made before for this key (*fresh = false). NULL: memory ran out. */
void *nib__checkpoint_copy(const nib_checkpoint *cp, const void *key, size_t size, bool *fresh);

/* Checks and takes scales that were placed in out->scales and their strides: float type, finite in f32;
 * an f64 scale is a ledger line. Likewise zeros; integer zeros that are all 0 become NIB_ZERO_NONE. */
nib_status nib__weight_take_scales(const nib_weight_query *q, const char *suffix);
nib_status nib__weight_take_zeros(const nib_weight_query *q, const char *suffix);

nib_status nib__weight_torchao(const nib_weight_query *q, const char *description);
nib_status nib__weight_nibble(const nib_weight_query *q, const char *description);

#endif
