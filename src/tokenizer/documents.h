/* SPDX-License-Identifier: Apache-2.0
 *
 * The documents of a text file: each line's `text` member where the name ends in .jsonl or .json,
 * else the whole file. What evaluation and training read.
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
    size_t next;     /* byte where the next document begins */
    int64_t number;  /* of the line that was read last, from 1 */
    nib_arena arena; /* of the document that was read last */
} nib_documents;

typedef struct nib_document {
    const char *text; /* until the next call */
    size_t size;
    size_t begin;   /* byte of the file where it begins */
    char name[192]; /* where it stands, for messages */
} nib_document;

nib_status nib__documents_open(nib_documents *out, const char *path, const nib_allocator *a,
                               nib_err *err);
void nib__documents_close(nib_documents *documents);
/* found false: there is none left. NIB_BAD_INPUT: a line that is no object with a text. */
nib_status nib__documents_next(nib_documents *documents, nib_document *out, bool *found,
                               nib_err *err);
/* Goes on from the document that begins at this byte; 0: the first. */
void nib__documents_seek(nib_documents *documents, size_t begin, int64_t line);

#endif
