/* SPDX-License-Identifier: Apache-2.0
 *
 * JSON files of what was measured: {"schema": number, NAME: [entries]}.
 */
#ifndef NIB_KEPT_LIST_H
#define NIB_KEPT_LIST_H

#include "json.h"

typedef struct nib_kept_list {
    const char *name; /* of the list */
    int64_t schema;   /* files with another one are not read */
    size_t limit;     /* most bytes of a file */
    int depth;        /* of JSON */
    int indent;       /* nib__jsonw_init's */
} nib_kept_list;

/* Reads the list, at whose value the parser is. False: it is damaged. */
typedef bool (*nib_kept_read)(nib_json *json, nib_arena *arena, void *ctx);
typedef void (*nib_kept_write)(nib_jsonw *w, const void *ctx, size_t entry);

/* False: the file exists but is damaged or of another schema, and what was read is of no use. */
bool nib__kept_list_read(const nib_kept_list *list, const char *path, nib_kept_read read, void *ctx,
                         const nib_allocator *a);
/* Replaces the file. */
nib_status nib__kept_list_write(const nib_kept_list *list, const char *path, size_t count,
                                nib_kept_write write, const void *ctx, const nib_allocator *a,
                                nib_err *err);

#endif
