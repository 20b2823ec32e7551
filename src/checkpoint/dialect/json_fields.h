/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads a small JSON description into the fields of a struct. A field's path is its keys joined by
 * dots, with [i] for array items: "_data.act_quant_kwargs._data.granularity._type". Every scalar in
 * the JSON must have a field, so that nothing that changes the meaning of a weight is ignored.
 */
#ifndef NIB_JSON_FIELDS_H
#define NIB_JSON_FIELDS_H

#include "json.h"

enum { NIB_FIELD_TEXT = 40 }; /* bytes of a text field */

typedef enum nib_field_kind {
    NIB_FIELD_STRING, /* char [NIB_FIELD_TEXT] */
    NIB_FIELD_INT,    /* int64_t, 0 or more */
    NIB_FIELD_BOOL,   /* bool */
    NIB_FIELD_ANY,    /* any scalar; ignored */
} nib_field_kind;

typedef struct nib_field {
    const char *path;
    nib_field_kind kind;
    size_t offset; /* of the value in the struct */
} nib_field;

/* Fills the members of `out`; missing and null fields are left unchanged. name: of the text, for
 * messages. */
nib_status nib__fields_read(void *out, const nib_field *fields, size_t count, const char *name,
                            const char *text, nib_err *err);

#endif
