/* SPDX-License-Identifier: Apache-2.0
 *
 * What a signature of a checkpoint covers: a list of its files with their SHA-256, as the in-toto
 * statement that OpenSSF model-signing 1.1 writes (predicate https://model_signing/signature/v1.0).
 * A checkpoint in a directory has all files below it in the list, a single file itself and its
 * manifest.
 */
#ifndef NIB_SIGNED_FILES_H
#define NIB_SIGNED_FILES_H

#include "digests.h"
#include "file.h"

#define NIB_STATEMENT_TYPE "application/vnd.in-toto+json"

/* Where the files of a signature are. */
typedef struct nib_signed_place {
    const char *directory; /* names in a statement are relative to it */
    const char *file;      /* the name of a single file; NULL: the whole directory */
    const char *names[3];  /* of the three paths below, in the directory */
    const char *statement; /* DIR/model.intoto.json or FILE.intoto.json */
    const char *signature; /* of ssh-keygen, on the statement: its path + ".sig" */
    const char *bundle;    /* of model-signing, with a statement in it: DIR/model.sig or FILE.sig */
} nib_signed_place;

/* path: of a checkpoint, a directory or a file. NIB_UNSUPPORTED: one of several files. */
nib_status nib__signed_place(nib_signed_place *out, const char *path, nib_arena *arena,
                             nib_err *err);

typedef struct nib_signed_statement {
    nib_digests files;   /* sorted; free with nib__digests_free */
    nib_strings ignored; /* paths that may hold anything */
} nib_signed_statement;

/* Hashes all files of a place. *links: some are symbolic links. NIB_BAD_INPUT: a name that a
 * statement cannot hold, or a link to a directory. progress: called with "sign"; NULL allowed. */
nib_status nib__signed_files_hash(nib_digests *out, bool *links, const nib_signed_place *place,
                                  const nib_callbacks *callbacks, nib_arena *arena,
                                  const nib_allocator *a, nib_err *err);

/* The statement on sorted files, as JSON. */
void nib__signed_statement_put(nib_text *out, const nib_signed_place *place,
                               const nib_digests *files, bool links);
/* Reads one on this place; name: for messages. NIB_BAD_INPUT: it contradicts itself or names a path
 * outside of the checkpoint; NIB_UNSUPPORTED: another predicate, or hashes other than SHA-256 of
 * files. */
nib_status nib__signed_statement_read(nib_signed_statement *out, const nib_signed_place *place,
                                      const char *name, const char *text, size_t size,
                                      nib_arena *arena, const nib_allocator *a, nib_err *err);

/* Called with what is wrong with a file. */
typedef struct nib_signed_report {
    nib_status (*add)(void *ctx, const char *code, const char *name, const char *text);
    void *ctx;
} nib_signed_report;

/* Compares the files of a place with a statement: reports those that changed, are missing, or were
 * not signed. */
nib_status nib__signed_files_compare(const nib_signed_statement *statement,
                                     const nib_signed_place *place, const nib_signed_report *report,
                                     const nib_callbacks *callbacks, nib_arena *arena,
                                     const nib_allocator *a, nib_err *err);

#endif
