/* SPDX-License-Identifier: Apache-2.0
 *
 * A JSON schema as checked nodes, for constraint.c. Every keyword is either enforced by the nodes
 * or refused with its path in the schema; only annotations are ignored (docs/schemas.md).
 * schema_read.c reads the text, schema_check.c resolves references and finds contradictions.
 */
#ifndef NIB_SCHEMA_H
#define NIB_SCHEMA_H

#include "json.h"
#include "tokenizer.h"

enum {
    NIB_SCHEMA_BYTES = 1 << 20,
    NIB_SCHEMA_DEPTH = 64,         /* nesting of schemas, and of a value */
    NIB_SCHEMA_NODES = 8192,       /* schemas, and objects and arrays in enums */
    NIB_SCHEMA_VALUES = 8192,      /* of all enums */
    NIB_SCHEMA_ITEMS = 65535,      /* minItems and maxItems */
    NIB_SCHEMA_LENGTH = 1 << 20,   /* minLength and maxLength */
    NIB_SCHEMA_LEAVES = 65536,     /* alternatives of all schemas */
    NIB_SCHEMA_COMPARED = 1 << 21, /* comparisons of texts to tell the schemas of oneOf apart */
    NIB_SCHEMA_SAME_KIND = 16,     /* alternatives of a value with the same kind, such as objects */
    NIB_SCHEMA_NONE = UINT16_MAX,
    NIB_SCHEMA_ENDLESS = NIB_SCHEMA_DEPTH + 1, /* height of a node whose values never end */
    /* Digits of numbers. */
    NIB_INTEGER_DIGITS = 18,
    NIB_NUMBER_DIGITS = 18, /* before the point */
    NIB_FRACTION_DIGITS = 17,
    NIB_EXPONENT_DIGITS = 2,
    NIB_BOUNDED_DIGITS = 9, /* before and after the point of a number with bounds */
};

typedef enum nib_schema_kind {
    NIB_SCHEMA_OBJECT,
    NIB_SCHEMA_ARRAY,
    NIB_SCHEMA_STRING,
    NIB_SCHEMA_NUMBER,
    NIB_SCHEMA_LITERALS, /* strings, numbers, true, false and null, as written in JSON */
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

/* Texts are sorted by bytes, so that texts with a common prefix are adjacent, shortest first. */
typedef struct nib_schema_text {
    const char *at;
    uint32_t size, index; /* of the property */
} nib_schema_text;

typedef struct nib_schema_property {
    uint16_t node;
    uint16_t next_required; /* first required property at or after this one; else their number */
    bool required;
} nib_schema_property;

typedef struct nib_schema_node {
    uint8_t kind, height;                  /* height: nesting of its flattest value; or ENDLESS */
    bool one_of;                           /* ANY_OF: its members must be disjoint */
    bool integer, bounded;                 /* NUMBER; an integer always has bounds */
    uint8_t format;                        /* STRING */
    uint16_t other;                        /* OBJECT: node of additional properties, or NONE */
    uint16_t items;                        /* ARRAY: node of items after the prefix, or NONE */
    uint16_t count;                        /* of the array below */
    uint32_t leaf, leaf_count;             /* range in leaves: its alternatives */
    uint32_t min, max;                     /* ARRAY, STRING; max UINT32_MAX: none */
    int64_t least, most;                   /* NUMBER: in units of 1 (integer) or 10^-9 */
    const char *path;                      /* its place in the schema, for messages; may be NULL */
    const nib_schema_property *properties; /* OBJECT, in order */
    const nib_schema_text *texts; /* OBJECT: names without quotes; LITERALS; REF: its target */
    const uint16_t *members;      /* ARRAY: prefix; ANY_OF */
} nib_schema_node;

typedef struct nib_schema {
    const nib_allocator *allocator;
    const char *name; /* prefix of errors; only valid while reading */
    nib_arena arena;
    nib_schema_node *nodes;
    size_t count, capacity;
    uint16_t *leaves;
    size_t leaf_count, leaf_capacity;
    uint16_t root;           /* an array of exactly one item, the value */
    uint16_t any;            /* node of any value; NONE until needed */
    bool literal_bytes[256]; /* bytes that occur in a name or value */
} nib_schema;

/* text->text NULL: any object. The allocator must outlive the schema. On failure nothing needs
 * closing. */
nib_status nib__schema_read(nib_schema *out, const nib_named_text *text, const nib_allocator *a,
                            nib_err *err);
void nib__schema_close(nib_schema *schema);

/* Restricts the value at the root to objects. NIB_BAD_INPUT: it allows no objects, or none that
 * ends. */
nib_status nib__schema_only_objects(nib_schema *s, nib_err *err);

/* The i-th keyword that is enforced or, as an annotation, ignored; NULL after the last. */
const char *nib__schema_keyword(size_t i, bool *annotation);

/* ---- for schema_read.c ---- */

/* A definition; name: its decoded reference, such as "#/$defs/NAME". */
typedef struct nib_schema_definition {
    nib_schema_text name;
    uint16_t node;
} nib_schema_definition;

int nib__schema_by_text(const void *left, const void *right); /* of nib_schema_text, for qsort */
nib_status nib__schema_add(nib_schema *s, const nib_schema_node *node, uint16_t *index,
                           nib_err *err);
/* Resolves references, lists the alternatives of each node and finds contradictions; definitions
 * must be sorted by name. */
nib_status nib__schema_check(nib_schema *s, const nib_schema_definition *definitions, size_t count,
                             nib_err *err);

#endif
