/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads the pickle of a PyTorch checkpoint without executing anything: a stack machine that knows
 * the few operations and the few names that a dict of tensors needs, and refuses all others by
 * name. What it makes are plain values that point at each other by number; storages and tensors are
 * values like any other, and nothing is looked up in a file here.
 */
#ifndef NIB_PICKLE_H
#define NIB_PICKLE_H

#include "memory.h"
#include "type.h"

typedef enum nib_pickle_kind {
    NIB_PICKLE_NONE,
    NIB_PICKLE_BOOL,    /* whole */
    NIB_PICKLE_INT,     /* whole */
    NIB_PICKLE_FLOAT,   /* number */
    NIB_PICKLE_STRING,  /* text [count], not terminated */
    NIB_PICKLE_TUPLE,   /* items [count] */
    NIB_PICKLE_LIST,    /* items [count] */
    NIB_PICKLE_DICT,    /* items [count]: key, value, key, value ... */
    NIB_PICKLE_NAME,    /* global: one of the known names */
    NIB_PICKLE_STORAGE, /* items: key, number of elements; type */
    NIB_PICKLE_TENSOR,  /* items: storage, offset, sizes, strides; type */
    NIB_PICKLE_REFUSED, /* a tensor of a kind that is not read: global says which */
    NIB_PICKLE_OTHER,   /* a value that no tensor needs: a device, a large number, a set */
} nib_pickle_kind;

typedef struct nib_pickle_value {
    uint8_t kind; /* nib_pickle_kind */
    uint8_t type; /* nib_type; NONE: an untyped storage */
    uint8_t global;
    uint32_t count, capacity;
    union {
        int64_t whole;
        double number;
        const char *text;
        uint32_t *items;
    } u;
} nib_pickle_value;

enum { NIB_TENSOR_STORAGE, NIB_TENSOR_OFFSET, NIB_TENSOR_SIZES, NIB_TENSOR_STRIDES };
enum { NIB_STORAGE_KEY, NIB_STORAGE_COUNT };

typedef struct nib_pickle {
    nib_arena arena;          /* of the items */
    nib_pickle_value *values; /* [count] */
    size_t count, capacity;
    uint32_t root;
} nib_pickle;

/* bytes: the whole pickle, which outlives the values. name: of the file, safe for messages. Freed
 * by nib__pickle_free, also after a failure. */
nib_status nib__pickle_read(nib_pickle *out, const uint8_t *bytes, uint64_t size, const char *name,
                            const nib_allocator *a, nib_err *err);
void nib__pickle_free(nib_pickle *pickle, const nib_allocator *a);

/* Item i of a tuple, list, dict, storage or tensor. */
const nib_pickle_value *nib__pickle_item(const nib_pickle *pickle, const nib_pickle_value *of,
                                         size_t i);
bool nib__pickle_is(const nib_pickle_value *string, const char *text);
/* Why a refused tensor is refused, with the way out: "is a sparse tensor; ...". */
const char *nib__pickle_refusal(const nib_pickle_value *refused);

#endif
