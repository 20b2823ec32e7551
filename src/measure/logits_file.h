/* SPDX-License-Identifier: Apache-2.0
 *
 * Files with the logits of a model on a text, to compare another model with (docs/formats.md has
 * the layouts). A file belongs to the windows that it was written with: both the reader and the
 * writer see all of them before the first row.
 */
#ifndef NIB_LOGITS_FILE_H
#define NIB_LOGITS_FILE_H

#include "file.h"
#include "pool.h"

typedef enum nib_logits_format { NIB_LOGITS_NIBBLE, NIB_LOGITS_LLAMA_CPP } nib_logits_format;

/* Nats. llama.cpp's codes begin this far below the largest logit, and its KL divergence leaves out
 * tokens with log-probabilities up to this. */
enum { NIB_LLAMA_CPP_LEAST = -16 };

/* *out: the format of that name, NULL: Nibble's. NIB_USAGE: an unknown name. */
nib_status nib__logits_format_parse(nib_logits_format *out, const char *name, nib_err *err);
/* The position in a window from which a format has rows; the last position has none. */
int64_t nib__logits_first(nib_logits_format format, int64_t window);

/* One window of a text. */
typedef struct nib_token_window {
    const int32_t *ids; /* [count]; with `bos` the first is BOS */
    int64_t count;
    int64_t number; /* of the window, from 1, or of the document's line */
    bool bos;
    int32_t replaced; /* with `bos`: the id of the text in its place, in windows of llama.cpp */
} nib_token_window;

/* ---- reading ---- */

typedef struct nib_logits_file {
    nib_map map;
    const char *path; /* the caller's */
    nib_logits_format format;
    int64_t vocab, window, windows, rows;
    uint64_t row_bytes;
    const uint8_t *first_row;
    nib_hash ids;       /* Nibble's: of all windows */
    nib_hasher *hasher; /* of the windows seen so far */
    int64_t seen;       /* windows */
} nib_logits_file;

/* Checks sizes, and that nothing is missing. NIB_BAD_INPUT: damaged, or not a file of logits. Close
 * the file also on failure. */
nib_status nib__logits_open(nib_logits_file *out, const char *path, nib_err *err);
void nib__logits_close(nib_logits_file *file);
/* Compares the next window of the text with the file. NIB_BAD_INPUT: another text or tokenizer. */
nib_status nib__logits_see(nib_logits_file *file, const nib_token_window *window, nib_err *err);
/* The same after the last window. */
nib_status nib__logits_see_end(nib_logits_file *file, nib_err *err);
/* Checks `count` rows. NIB_BAD_INPUT: the file is in llama.cpp's format, and a row has a
 * probability above 1 or not finite. NaN among logits is not looked for. */
nib_status nib__logits_check(const nib_logits_file *file, int64_t row, int64_t count, nib_err *err);
/* [vocab] logits, or log-probabilities of llama.cpp's format, which `space` [vocab] then gets. */
const float *nib__logits_row(const nib_logits_file *file, int64_t row, float *space);

/* ---- writing ---- */

typedef struct nib_logits_writer nib_logits_writer;

/* NIB_EXISTS: the path exists. */
nib_status nib__logits_writer_open(nib_logits_writer **out, const char *path,
                                   nib_logits_format format, int64_t vocab, int64_t window,
                                   const nib_allocator *a, nib_err *err);
nib_status nib__logits_writer_see(nib_logits_writer *writer, const nib_token_window *window,
                                  nib_err *err);
/* After the last window: allocates the whole file, so that a full disk is an error now. *bytes: its
 * size; *rows: how many rows it will get. */
nib_status nib__logits_writer_see_end(nib_logits_writer *writer, uint64_t *bytes, int64_t *rows,
                                      nib_err *err);
/* Appends rows: logits [count][vocab]. */
nib_status nib__logits_writer_add(nib_logits_writer *writer, const float *logits, int64_t count,
                                  nib_pool *pool, nib_err *err);
/* Gives the file its name, if all rows were written; frees the writer in any case. */
nib_status nib__logits_writer_finish(nib_logits_writer *writer, nib_err *err);
void nib__logits_writer_abandon(nib_logits_writer *writer); /* NULL: nothing */

#endif
