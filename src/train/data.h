/* SPDX-License-Identifier: Apache-2.0
 *
 * Packed sequences of a data set. Documents are tokenized one after the other, each with BOS and
 * EOS where the tokenizer has them, and the stream of ids is cut into sequences of length + 1:
 * inputs, and the same ids one position later as targets. All readers share one stream. Its
 * position is a number of sequences, so any number of ranks can take turns on it and resume from a
 * saved position.
 *
 * A document of more than NIB_DATA_PIECE bytes is tokenized piece by piece, each piece
 * independently. So the ids of a large file are never held at once, and resuming in its middle does
 * not tokenize it from the start. Pieces end at a line end where possible.
 */
#ifndef NIB_DATA_H
#define NIB_DATA_H

#include "documents.h"
#include "engine.h"
#include "tokenizer.h"

enum { NIB_DATA_PIECE = 256 * 1024 };

typedef struct nib_data_options {
    const char *path; /* a text file, or JSON lines (.jsonl) */
    const nib_tokenizer *tokenizer;
    int64_t vocab;  /* number of ids of the model; an id outside is an error */
    int64_t length; /* input tokens per sequence */
    bool quiet;     /* do not log that the stream begins again */
} nib_data_options;

/* The position of a stream: enough to resume. */
typedef struct nib_data_position {
    int64_t sequences; /* read so far */
    int64_t pass;      /* over the file, from 0 */
    int64_t begin;     /* offset of the current document in the file */
    int64_t line;      /* line of the current document */
    int64_t piece;     /* offset of the current piece in its text */
    int64_t used;      /* ids of the piece read so far */
} nib_data_position;

typedef struct nib_data {
    const nib_engine *engine;
    nib_data_options options;
    nib_documents documents;
    nib_data_position position;
    nib_document document; /* current document */
    size_t piece_end;      /* end of the piece in the text; the size of the text: the last piece */
    int32_t *ids;          /* [count] of the piece, with BOS and EOS; NULL: no piece is open */
    int64_t count;
    bool any; /* the file has yielded ids */
} nib_data;

/* Reads the whole file once, so that bad documents are reported before training and not during it.
 * NIB_BAD_INPUT: the file has no text, is not UTF-8, or has a line that is not a document; or the
 * tokenizer has a text token, BOS or EOS that the model lacks. */
nib_status nib__data_open(nib_data *out, const nib_engine *engine, const nib_data_options *options,
                          nib_err *err);
void nib__data_close(nib_data *data);

/* Reads one sequence: ids [length + 1], and first [length + 1], whether a document begins at each
 * id. At the end of the file the stream begins again, which is logged (of many passes: the 2nd,
 * 3rd, 5th, 9th and so on). NIB_BAD_INPUT: an id that the model lacks. */
nib_status nib__data_next(nib_data *data, int32_t *ids, bool *first, nib_err *err);
/* Skips `count` sequences. They are tokenized all the same, to find where they end. */
nib_status nib__data_skip(nib_data *data, int64_t count, nib_err *err);
/* Seeks to a position that a stream of the same file and tokenizer had. NIB_BAD_INPUT: it cannot
 * have been there. */
nib_status nib__data_seek(nib_data *data, const nib_data_position *position, nib_err *err);

#endif
