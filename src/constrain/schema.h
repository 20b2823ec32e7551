/* SPDX-License-Identifier: Apache-2.0
 *
 * A JSON schema as checked nodes, for constraint.c. Whatever the text says is enforced by the nodes
 * or refused by its place in the schema; annotations alone are passed over (docs/schemas.md).
 * schema_read.c reads the text, schema_check.c resolves references and finds contradictions.
 */
#ifndef NIB_SCHEMA_H
#define NIB_SCHEMA_H

#include "json.h"
#include "tokenizer.h"

enum {
    NIB_SCHEMA_BYTES = 1 << 20,
    NIB_SCHEMA_DEPTH = 64,         /* schemas inside schemas, and nestings of a value */
    NIB_SCHEMA_NODES = 8192,       /* schemas, and values of enums that are objects or arrays */
    NIB_SCHEMA_VALUES = 8192,      /* of all enums */
    NIB_SCHEMA_ITEMS = 65535,      /* minItems and maxItems */
    NIB_SCHEMA_LENGTH = 1 << 20,   /* minLength and maxLength */
    NIB_SCHEMA_LEAVES = 65536,     /* alternatives of all schemas */
    NIB_SCHEMA_COMPARED = 1 << 21, /* texts, to tell the schemas of oneOf apart */
    NIB_SCHEMA_ABREAST = 16,       /* alternatives of one kind, as objects, of one value */
    NIB_SCHEMA_NONE = UINT16_MAX,
    NIB_SCHEMA_ENDLESS = NIB_SCHEMA_DEPTH + 1, /* the height of what has no end */
    /* Digits of numbers. */
    NIB_INTEGER_DIGITS = 18,
    NIB_NUMBER_DIGITS = 18, /* before the point, and 17 after it, and 2 of the exponent */
    NIB_FRACTION_DIGITS = 17,
    NIB_EXPONENT_DIGITS = 2,
    NIB_BOUNDED_DIGITS = 9, /* before and after the point where there are bounds */
};

typedef enum nib_schema_kind {
    NIB_SCHEMA_OBJECT,
    NIB_SCHEMA_ARRAY,
    NIB_SCHEMA_STRING,
    NIB_SCHEMA_NUMBER,
    NIB_SCHEMA_LITERALS, /* strings, numbers, true, false and null, as they are to be written */
    NIB_SCHEMA_ANY_OF,
    NIB_SCHEMA_REF,
} nib_schema_kind;

typedef enum nib_schema_format {
    NIB_FORMAT_NONE,
    NIB_FORMAT_DATE,
    NIB_FORMAT_TIME,
    NIB_FORMAT_DATE_TIME,
    NIB_FORMAT_UUID,
} nib_schema_format;

/* Texts are sorted by bytes, so that those that begin alike are neighbours, the shortest first. */
typedef struct nib_schema_text {
    const char *at;
    uint32_t size, index; /* of the property */
} nib_schema_text;

typedef struct nib_schema_property {
    uint16_t node,
        next_required; /* the property at or after this one that must be; or their number */
    bool required;
} nib_schema_property;

typedef struct nib_schema_node {
    uint8_t kind, height;                  /* nestings that its least value has; ENDLESS */
    bool one_of;                           /* ANY_OF: its members have to be disjoint */
    bool integer, bounded;                 /* NUMBER; an integer always has bounds */
    uint8_t format;                        /* STRING */
    uint16_t other;                        /* OBJECT: values of keys that are no property; NONE */
    uint16_t items;                        /* ARRAY: those after prefix; NONE */
    uint16_t count;                        /* of what the pointer below holds */
    uint32_t leaf, leaf_count;             /* in leaves: the nodes that a value may be of */
    uint32_t min, max;                     /* ARRAY, STRING; max UINT32_MAX: none */
    int64_t least, most;                   /* NUMBER: of 1, or of 10^-9 if it is no integer */
    const char *path;                      /* where it stands, for messages; NULL */
    const nib_schema_property *properties; /* OBJECT, in order */
    const nib_schema_text
        *texts;              /* OBJECT: their names without quotes; LITERALS; REF: its target */
    const uint16_t *members; /* ARRAY: prefix; ANY_OF */
} nib_schema_node;

typedef struct nib_schema {
    const nib_allocator *allocator;
    const char *name; /* begins each sentence; while it is read */
    nib_arena arena;
    nib_schema_node *nodes;
    size_t count, capacity;
    uint16_t *leaves;
    size_t leaf_count, leaf_capacity;
    uint16_t root;           /* an array of exactly one item, the value */
    uint16_t any;            /* any value; NONE until it is asked for */
    bool literal_bytes[256]; /* that some name or value has */
} nib_schema;

/* text->at NULL: any object. The allocator must stay. On failure nothing needs closing. */
nib_status nib__schema_read(nib_schema *out, const nib_named_text *text, const nib_allocator *a,
                            nib_err *err);
void nib__schema_close(nib_schema *schema);

/* Of the values that it allows only the objects stay; nested ones are as before. NIB_BAD_INPUT:
 * there are none, or none that ends. */
nib_status nib__schema_only_objects(nib_schema *s, nib_err *err);

/* The ith keyword that is enforced, or passed over as an annotation; NULL after the last. */
const char *nib__schema_keyword(size_t i, bool *annotation);

/* ---- for schema_read.c ---- */

/* A definition: its pointer without "#/", decoded. */
typedef struct nib_schema_definition {
    nib_schema_text name;
    uint16_t node;
} nib_schema_definition;

int nib__schema_by_text(const void *left, const void *right); /* of nib_schema_text, for qsort */
nib_status nib__schema_add(nib_schema *s, const nib_schema_node *node, uint16_t *index,
                           nib_err *err);
/* References to nodes, alternatives to leaves; definitions are sorted by name. */
nib_status nib__schema_check(nib_schema *s, const nib_schema_definition *definitions, size_t count,
                             nib_err *err);

#endif
