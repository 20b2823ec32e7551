/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads a small JSON description into named fields. A member's path is its keys joined by dots,
 * items of arrays with [i]: "_data.act_quant_kwargs._data.granularity._type". Every scalar that the
 * description holds must have a field, so that nothing which changes a weight's meaning is passed
 * over.
 */
#ifndef NIB_FIELDS_H
#define NIB_FIELDS_H

#include "json.h"

enum { NIB_FIELD_TEXT = 40 }; /* bytes of a text field */

typedef enum nib_field_kind {
    NIB_FIELD_STRING, /* char [NIB_FIELD_TEXT] */
    NIB_FIELD_INT,    /* int64_t, 0 or more */
    NIB_FIELD_BOOL,   /* bool */
    NIB_FIELD_ANY,    /* a scalar that changes nothing */
} nib_field_kind;

typedef struct nib_field {
    const char *path;
    nib_field_kind kind;
    size_t offset; /* of the value in the struct */
} nib_field;

/* Fills the members of `out`; a field that is absent or null stays as it is. err: where, what. */
nib_status nib__fields_read(void *out, const nib_field *fields, size_t count, const char *name,
                            const char *text, nib_err *err);

#endif
