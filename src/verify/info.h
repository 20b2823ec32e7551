/* SPDX-License-Identifier: Apache-2.0
 *
 * Looks at a checkpoint without running it: info lists what is stored, verify reads every byte and
 * says what is wrong. Both render text or JSON.
 */
#ifndef NIB_INSPECT_H
#define NIB_INSPECT_H

#include "checkpoint.h"
#include "pool.h"

/* One line: a weight with all its parts and its bias, or a tensor that is neither. */
typedef struct nib_entry {
    const char *name; /* "M.weight", or the tensor's */
    int rank;
    int64_t shape[NIB_RANK_MAX]; /* of a weight: n, k, however it is packed */
    const char *format;          /* "safetensors", "torchao", "nibble" */
    const char *scheme;          /* "8da4w-g32"; of a plain tensor its type, "bf16" */
    int64_t group;               /* 0: none */
    bool bias;
    uint64_t bytes;           /* all parts */
    const char *module;       /* NULL: no weight */
    nib_weight weight;        /* of a module */
    const nib_tensor *tensor; /* of a plain tensor that is no weight */
    /* Why a module's weight could not be read; its parts are then listed singly, with part_of. */
    const char *problem, *part_of;
} nib_entry;

/* What looking at a checkpoint may cost in memory: twice its size and 64 MiB. */
size_t nib__inspect_limit(const nib_checkpoint *cp);

/* In file order. The entries lie in the arena; a ledger gets what reading the weights converts. */
nib_status nib__entries_list(nib_entry **out, size_t *count, const nib_checkpoint *cp,
                             nib_arena *arena, nib_ledger *ledger, nib_err *err);

/* "608x224"; returned for use in an argument list. */
const char *nib__entry_shape(char out[256], const nib_entry *entry);
/* The pinned members of an entry into the open object of w. */
void nib__entry_json(nib_jsonw *w, const nib_entry *entry);

nib_status nib__info_render(const nib_checkpoint *cp, const nib_allocator *a, nib_form form,
                            nib_text *out, nib_err *err);

/* A weight that config.json implies. */
typedef struct nib_expected {
    const char *name; /* module */
    int64_t n, k;     /* k 0: a vector of n, such as a norm */
    bool bias;
    bool optional; /* may be absent: a tied head */
} nib_expected;

/* How far apart two checkpoints are as models, over ids that are the same for both. */
typedef struct nib_model_distance {
    const char *why_not; /* they were not run; NULL: they were */
    int64_t tokens;      /* predicted */
    double kl;           /* nats per token, of the other from this */
    double agreement;    /* how often the likeliest token is the same, of 1 */
} nib_model_distance;

typedef struct nib_verify_job {
    const nib_checkpoint *checkpoint, *against; /* against: NULL, or compared tensor by tensor */
    const nib_expected *expected;
    size_t expected_count; /* 0: completeness is not checked */
    /* The module `head` is `against_head` there: an output that was tied and is stored by itself
     * now. NULL: every module has its own name in both. */
    const char *head, *against_head;
    /* The other way round: `lone_head` there is `tied_head` here. NULL: as above. */
    const char *lone_head, *tied_head;
    const nib_model_distance *models; /* NULL: not asked */
    nib_pool *pool;
    const nib_callbacks *callbacks; /* NULL allowed */
    const nib_allocator *allocator;
} nib_verify_job;

/* Hashes against the manifest, ranges of codes, NaN and infinities by tensor and index,
 * completeness. *problems counts what was found; the call itself fails only where it could not
 * look. */
nib_status nib__verify_render(const nib_verify_job *job, nib_form form, nib_text *out,
                              size_t *problems, nib_err *err);

#endif
