/* SPDX-License-Identifier: Apache-2.0
 *
 * The list behind a rewrite: which stored tensor becomes which written ones, under which names, in
 * which dialect. Nothing of the data is read here. Inside of quantize only.
 */
#ifndef NIB_REWRITING_H
#define NIB_REWRITING_H

#include "names.h"
#include "stream.h"

/* What a layer is made from, and what becomes of it. */
typedef struct nib_origin {
    const nib_tensor *from;  /* that stores it, or the first of several */
    nib_weight weight;       /* of a recoded layer */
    nib_quantizer quantizer; /* of a layer to quantize */
    nib_stored stored;       /* of either; its types are the dialect's once that is chosen */
    bool listed;             /* a rewrite writes it */
} nib_origin;

typedef struct nib_rewriting {
    const nib_quantize_job *job;
    nib_ledger *ledger;
    nib_err *err;
    nib_arena arena;
    nib_dialect dialect;
    nib_writer *writer;
    nib_rewrite *rewrites; /* [count] in the order of the source */
    size_t count, capacity;
    nib_origin *origins; /* [job->count] */
    size_t *lines;       /* [job->count]: of the ledger, whose array may move */
    const char **names;  /* of the output's weights as __metadata__ lists them */
    size_t name_count, name_capacity;
    const char **separated; /* [separated_count]: names that were another tensor's in the source */
    size_t separated_count;
    const nib_quantize_layer **layers; /* [job->count], for by_name */
    nib_names by_name;
    size_t unit;
    size_t extra;         /* place in the writer; SIZE_MAX: there is none */
    nib_text last_module; /* of the unit */
    bool directory;       /* the output is one */
} nib_rewriting;

/* origins.c. A line per layer, with what it is made from; then the dialect. */
nib_status nib__origins_find(nib_rewriting *r);
/* The asked one, which has to hold every layer; else torchao's if it does, else our own. */
nib_status nib__origins_choose(nib_rewriting *r);
/* The layer's stored form in the chosen dialect. */
void nib__origins_fit(const nib_rewriting *r, size_t layer, nib_stored *stored);

void nib__rewriting_init(nib_rewriting *r, const nib_quantize_job *job, nib_ledger *ledger,
                         nib_err *err);
void nib__rewriting_free(nib_rewriting *r);
/* Checks what is asked of every layer, chooses the dialect, lists the rewrites in the order of the
 * source and lays the output out; a line per layer goes to the ledger. shard_limit: bytes of a
 * file; 0: one file. */
nib_status nib__rewriting_list(nib_rewriting *r, uint64_t shard_limit);
/* Once all is written: a layer whose tensor is another's is as well kept as that one. */
void nib__rewriting_share(nib_rewriting *r);

#endif
