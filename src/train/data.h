/* SPDX-License-Identifier: Apache-2.0
 *
 * Packed sequences of a data set: documents become ids one after the other, each with BOS and EOS
 * where the tokenizer has them, and the stream is cut into sequences of length + 1 ids: what is
 * read, and what is predicted one place later. There is one stream, whoever reads it: its position
 * is a number of sequences, so that any number of ranks takes turns on it and goes on from a saved
 * place.
 *
 * A document of more than NIB_DATA_PIECE bytes becomes ids a piece at a time, each tokenized for
 * itself, so that neither the ids of a large file are held at once nor is it tokenized anew from
 * its beginning when a run goes on in the middle. Pieces end with a line where there is one.
 */
#ifndef NIB_DATA_H
#define NIB_DATA_H

#include "documents.h"
#include "engine.h"
#include "tokenizer.h"

enum { NIB_DATA_PIECE = 256 * 1024 };

typedef struct nib_data_options {
    const char *path; /* a text, or JSON lines (.jsonl) */
    const nib_tokenizer *tokenizer;
    int64_t vocab;  /* ids of the model; a larger one is an error */
    int64_t length; /* tokens that are read per sequence */
    bool quiet;     /* that the stream begins again is not logged */
} nib_data_options;

/* Where a stream stands: enough to go on. */
typedef struct nib_data_place {
    int64_t sequences; /* taken so far */
    int64_t pass;      /* over the file, from 0 */
    int64_t begin;     /* byte of the document that is being read */
    int64_t line;      /* its line */
    int64_t piece;     /* byte of its text where the piece begins that is being read */
    int64_t used;      /* ids of the piece that were taken */
} nib_data_place;

typedef struct nib_data {
    const nib_engine *engine;
    nib_data_options options;
    nib_documents documents;
    nib_data_place place;
    nib_document document; /* that is being read */
    size_t piece_end;      /* byte of its text; its size: no piece is left */
    int32_t *ids;          /* [count] of the piece, with BOS and EOS; NULL: none is being read */
    int64_t count;
    bool any; /* ids were found since the file was opened */
} nib_data;

/* Reads the whole file once, so that what is no document is said before training and not in its
 * middle. NIB_BAD_INPUT: it holds no text, is not UTF-8, has a line that is no document; or the
 * tokenizer has a token of text, BOS or EOS that the model lacks. */
nib_status nib__data_open(nib_data *out, const nib_engine *engine, const nib_data_options *options,
                          nib_err *err);
void nib__data_close(nib_data *data);

/* ids [length + 1]; first [length + 1]: whether a document begins there. At the end of the file the
 * stream begins again, which is logged (of many passes: the 2nd, 3rd, 5th, 9th and so on).
 * NIB_BAD_INPUT: an id that the model lacks. */
nib_status nib__data_next(nib_data *data, int32_t *ids, bool *first, nib_err *err);
/* Reads past `count` sequences. They are tokenized as if they were read: only so is known where
 * they end. */
nib_status nib__data_skip(nib_data *data, int64_t count, nib_err *err);
/* Goes on at a place that was data->place of a stream of the same file and tokenizer. NIB_BAD_INPUT
 * where it cannot have been. */
nib_status nib__data_seek(nib_data *data, const nib_data_place *place, nib_err *err);

#endif
