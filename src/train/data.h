/* SPDX-License-Identifier: Apache-2.0
 *
 * Packed sequences of a data set: documents become ids one after the other, each with BOS and EOS
 * where the tokenizer has them, and the stream is cut into sequences of length + 1 ids: what is
 * read, and what is predicted one place later. There is one stream, whoever reads it: its position
 * is a number of sequences, so that any number of ranks takes turns on it and goes on from a saved
 * place.
 */
#ifndef NIB_DATA_H
#define NIB_DATA_H

#include "documents.h"
#include "engine.h"
#include "tokenizer.h"

typedef struct nib_data_options {
    const char *path; /* a text, or JSON lines (.jsonl) */
    const nib_tokenizer *tokenizer;
    int64_t vocab;  /* ids of the model; a larger one is an error */
    int64_t length; /* tokens that are read per sequence */
} nib_data_options;

/* Where a stream stands: enough to go on. */
typedef struct nib_data_place {
    int64_t sequences; /* taken so far */
    int64_t pass;      /* over the file, from 0 */
    int64_t begin;     /* byte of the document that is being read */
    int64_t line;      /* its line */
    int64_t used;      /* ids of it that were taken */
} nib_data_place;

typedef struct nib_data {
    const nib_engine *engine;
    nib_data_options options;
    nib_documents documents;
    nib_data_place place;
    int32_t *ids; /* of the document that is being read: the tokenizer's */
    int64_t count;
    int32_t *framed; /* [count + 2] with BOS and EOS */
    bool open;       /* a document is being read */
    bool any;        /* a pass gave ids */
} nib_data;

nib_status nib__data_open(nib_data *out, const nib_engine *engine, const nib_data_options *options,
                          nib_err *err);
void nib__data_close(nib_data *data);

/* ids [length + 1]; first [length + 1]: whether a document begins there. At the end of the file the
 * stream begins again, which is logged. NIB_BAD_INPUT: no ids in the whole file, or one that the
 * model lacks. */
nib_status nib__data_next(nib_data *data, int32_t *ids, bool *first, nib_err *err);
/* Reads past `count` sequences. */
nib_status nib__data_skip(nib_data *data, int64_t count, nib_err *err);
nib_status nib__data_seek(nib_data *data, const nib_data_place *place, nib_err *err);

#endif
