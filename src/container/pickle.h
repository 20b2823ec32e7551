/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads the pickle of a PyTorch checkpoint without executing anything: a stack machine with the few
 * opcodes and globals that a dict of tensors needs, which refuses all others by name. The result is
 * a list of plain values that refer to each other by index. Storages and tensors are values too;
 * the caller finds their bytes in the file.
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
    NIB_PICKLE_STRING,  /* text [count], not NUL-terminated */
    NIB_PICKLE_TUPLE,   /* items [count] */
    NIB_PICKLE_LIST,    /* items [count] */
    NIB_PICKLE_DICT,    /* items [count]: key, value, key, value ... */
    NIB_PICKLE_NAME,    /* global: index of a known name */
    NIB_PICKLE_STORAGE, /* items: key, number of elements; type */
    NIB_PICKLE_TENSOR,  /* items: storage, offset, sizes, strides; type */
    NIB_PICKLE_REFUSED, /* a tensor of an unsupported kind: global names the kind */
    NIB_PICKLE_OTHER,   /* a value that no tensor needs, such as a device or a large integer */
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
    nib_arena arena;          /* holds the items */
    nib_pickle_value *values; /* [count] */
    size_t count, capacity;
    uint32_t root;
} nib_pickle;

/* bytes: the whole pickle, which must outlive the values. name: file name, escaped for messages.
 * Call nib__pickle_free even after a failure. */
nib_status nib__pickle_read(nib_pickle *out, const uint8_t *bytes, uint64_t size, const char *name,
                            const nib_allocator *a, nib_err *err);
void nib__pickle_free(nib_pickle *pickle, const nib_allocator *a);

/* Item i of a tuple, list, dict, storage or tensor. */
const nib_pickle_value *nib__pickle_item(const nib_pickle *pickle, const nib_pickle_value *of,
                                         size_t i);
bool nib__pickle_is(const nib_pickle_value *string, const char *text);
/* Why a tensor is refused and what to do: "is sparse; save what its to_dense() gives". */
const char *nib__pickle_refusal(const nib_pickle_value *refused);

#endif
