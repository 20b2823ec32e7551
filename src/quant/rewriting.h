/* SPDX-License-Identifier: Apache-2.0
 *
 * The list behind a rewrite: which stored tensor becomes which written ones, under which names, in
 * which dialect. Nothing of the data is read here. Inside of quantize only.
 */
#ifndef NIB_REWRITING_H
#define NIB_REWRITING_H

#include "name_index.h"
#include "stream.h"

/* What a layer is made from, and what becomes of it. */
typedef struct nib_origin {
    const nib_tensor *from;   /* that stores it, or the first of several */
    nib_weight weight;        /* of a recoded layer */
    nib_quantizer quantizer;  /* of a layer to quantize */
    nib_output_weight stored; /* of either; its types are the dialect's once that is chosen */
    bool listed;              /* a rewrite writes it */
    nib_weight bias;    /* all of a recoded layer, else only n and k: with the bias as stored */
    nib_bias bias_form; /* as written */
    bool bias_listed;
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
    nib_name_index by_name;
    size_t unit;
    size_t extras[NIB_EXTRAS]; /* places of the job's in the writer */
    nib_text last_module;      /* of the unit */
    bool directory;            /* the output is one */
    bool fuses;                /* parts of fused weights are written as one tensor */
} nib_rewriting;

/* origins.c. A line per layer, with what it is made from; then the dialect. */
nib_status nib__origins_find(nib_rewriting *r);
/* The asked one, which has to hold every layer; else torchao's if it does, else our own. */
nib_status nib__origins_choose(nib_rewriting *r);
/* The layer's stored form in the chosen dialect. */
void nib__origins_fit(const nib_rewriting *r, size_t layer, nib_output_weight *stored);

void nib__rewriting_init(nib_rewriting *r, const nib_quantize_job *job, nib_ledger *ledger,
                         nib_err *err);
void nib__rewriting_free(nib_rewriting *r);
/* Checks what is asked of every layer, chooses the dialect, lists the rewrites in the order of the
 * source and lays the output out; a line per layer goes to the ledger. shard_limit: bytes of a
 * file; 0: one file. */
nib_status nib__rewriting_list(nib_rewriting *r, uint64_t shard_limit);
/* Once all is written: a layer whose tensor is another's is as well kept as that one. */
void nib__rewriting_share(nib_rewriting *r);

/* What the list is made with: a rewrite of `from`, without any part; NULL: no memory. */
nib_rewrite *nib__rewriting_add(nib_rewriting *r, const nib_tensor *from);
/* Tensors of one module follow each other and share a shard. */
void nib__rewriting_begin_unit(nib_rewriting *r, const char *tensor);
/* SIZE_MAX for a part that is not stored. */
size_t nib__rewriting_part(nib_rewriting *r, const char *module, const nib_output_part *part);
/* A name with its description, NULL for none: torchao lists them all. */
nib_status nib__rewriting_describe(nib_rewriting *r, const char *name, const char *description);

/* For every written row of q or k the row of ours, where the format keeps pairs together; NULL
 * where rows stay. */
nib_status nib__rewriting_pair_rows(nib_rewriting *r, const int32_t **out, nib_role role,
                                    int64_t n);

/* rewriting_bias.c: the biases among them. First what is stored of layer i, and the form that is
 * asked; once the dialect is chosen, the form that it can hold. */
nib_status nib__rewriting_find_bias(nib_rewriting *r, size_t i, const nib_scheme *scheme);
size_t nib__rewriting_coded_biases(const nib_rewriting *r);
/* Writes nibble's dialect instead of the default, and says so; why: what torchao's format lacks, as
 * the end of a sentence. */
void nib__rewriting_take_nibble(nib_rewriting *r, const char *why);
nib_status nib__rewriting_settle_biases(nib_rewriting *r);
/* The layer whose bias tensor t is a part of, if that is not copied as it is; SIZE_MAX: none. */
size_t nib__rewriting_bias_of(const nib_rewriting *r, size_t t);
/* True for the name under which the source describes a bias in codes. */
bool nib__rewriting_describes_bias(const nib_rewriting *r, const char *name);
/* Its rewrite. */
nib_status nib__rewriting_write_bias(nib_rewriting *r, size_t i, const nib_tensor *from);
/* Adds an int32 bias to the rewrite of the weight that its steps are made with. */
nib_status nib__rewriting_bias_with(nib_rewriting *r, size_t i, nib_rewrite *weight);

#endif
