/* SPDX-License-Identifier: Apache-2.0
 *
 * Used by schema_read.c to build nodes (schema_build.c): the path in the schema, lists, values as
 * written in JSON, properties, bounds.
 */
#ifndef NIB_SCHEMA_PARTS_H
#define NIB_SCHEMA_PARTS_H

#include "schema.h"

/* Types of JSON Schema, in the order of schema_read.c's type_names. */
enum {
    NIB_IS_OBJECT = 1,
    NIB_IS_ARRAY = 2,
    NIB_IS_STRING = 4,
    NIB_IS_NUMBER = 8,
    NIB_IS_INTEGER = 16,
    NIB_IS_BOOLEAN = 32,
    NIB_IS_NULL = 64,
};

/* A name or written value, a node, or both. */
typedef struct nib_schema_item nib_schema_item;
struct nib_schema_item {
    nib_schema_item *next;
    nib_schema_text text;
    uint16_t node;
    bool required;
};

typedef struct nib_schema_list {
    nib_schema_item *first, *last;
    size_t count;
} nib_schema_list;

typedef struct nib_schema_reader {
    nib_schema *s;
    nib_json json;
    nib_text path, spelled;
    nib_arena scratch;
    nib_schema_list definitions[2]; /* of $defs and of definitions */
    size_t values;                  /* values of enums so far */
    int depth;
    nib_err *err;
} nib_schema_reader;

nib_status nib__schema_refuse(nib_schema_reader *r, nib_status status, const char *format, ...)
    NIB_PRINTF(3, 4);
/* Appends to the path of messages; returns the old length, for nib__schema_leave. */
size_t nib__schema_enter(nib_schema_reader *r, const char *before, const char *name, size_t size);
void nib__schema_leave(nib_schema_reader *r, size_t before);
/* Reads the next event, which must be this one. */
nib_status nib__schema_expect(nib_schema_reader *r, nib_json_event event, const char *what);

nib_status nib__schema_append(nib_schema_reader *r, nib_schema_list *list, nib_schema_item **item);
/* Appends the KEY or STRING just read, as written in JSON, without quotes. */
nib_status nib__schema_name(nib_schema_reader *r, nib_schema_list *list, nib_schema_item **item);
/* Appends true, false or null. */
nib_status nib__schema_word(nib_schema_reader *r, const char *word, nib_schema_list *list);
/* Reads the rest of the value whose first event was just read: appends a scalar as written in JSON,
 * or an object or array as a node, and adds its type to *types. */
nib_status nib__schema_value(nib_schema_reader *r, nib_schema_list *scalars, nib_schema_list *nodes,
                             unsigned *types);

/* Adds a node with its path, for later messages. */
nib_status nib__schema_add_placed(nib_schema_reader *r, nib_schema_node *node, uint16_t *out);
nib_status nib__schema_any(nib_schema_reader *r, uint16_t *out);
nib_status nib__schema_reference(nib_schema_reader *r, const char *target, size_t size,
                                 uint16_t *out);
nib_status nib__schema_members(nib_schema_reader *r, const nib_schema_list *list,
                               const uint16_t **out);
/* Appends a node of the values, sorted and without duplicates. */
nib_status nib__schema_literals(nib_schema_reader *r, const nib_schema_list *values,
                                nib_schema_list *out);
/* Marks properties as required. Names without a property become properties with the node `other`;
 * if that is NONE, they are an error. */
nib_status nib__schema_require(nib_schema_reader *r, nib_schema_list *properties,
                               const nib_schema_list *names, uint16_t other);
nib_status nib__schema_properties(nib_schema_reader *r, const nib_schema_list *properties,
                                  nib_schema_node *object);
/* Parses a bound in units of 1 (integer) or 10^-9. */
nib_status nib__schema_bound(nib_schema_reader *r, const char *keyword, const nib_schema_text *text,
                             bool integer, int64_t *out);
/* Sorts the definitions by name and calls nib__schema_check. */
nib_status nib__schema_finish(nib_schema_reader *r);

#endif
