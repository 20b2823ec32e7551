/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads the documents of a text file, for evaluation and training: the `text` member of each line
 * if the name ends in .jsonl or .json, else the whole file.
 */
#ifndef NIB_DOCUMENTS_H
#define NIB_DOCUMENTS_H

#include "file.h"

typedef struct nib_documents {
    const char *path; /* the caller's */
    const nib_allocator *allocator;
    char *text;
    size_t size;
    bool lines;      /* JSON lines */
    size_t next;     /* byte offset of the next document */
    int64_t number;  /* of the last line read, from 1 */
    nib_arena arena; /* of the last document read */
} nib_documents;

typedef struct nib_document {
    const char *text; /* valid until the next call */
    size_t size;
    size_t begin;   /* its byte offset in the file */
    char name[192]; /* file and line, for messages */
} nib_document;

nib_status nib__documents_open(nib_documents *out, const char *path, const nib_allocator *a,
                               nib_err *err);
void nib__documents_close(nib_documents *documents);
/* *found false: none is left. NIB_BAD_INPUT: a line is not an object with a "text". */
nib_status nib__documents_next(nib_documents *documents, nib_document *out, bool *found,
                               nib_err *err);
/* Continues at the document that begins at this byte offset, on this line (from 1). */
void nib__documents_seek(nib_documents *documents, size_t begin, int64_t line);

#endif
