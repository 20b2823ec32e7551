/* SPDX-License-Identifier: Apache-2.0
 *
 * One GGUF file, version 2 or 3, little-endian: a table of typed key/values, then tensors, each at
 * a multiple of the alignment. Reading checks every rule of the format and that the data is covered
 * exactly. Owns no file and no memory: values are views into the caller's bytes, keys and names lie
 * in the caller's arena. What the keys mean is config_gguf.c's and the tokenizer's.
 */
#ifndef NIB_GGUF_H
#define NIB_GGUF_H

#include "container.h"
#include "name_index.h"
#include "text.h"

enum {
    NIB_GGUF_ENTRY_MAX = 1 << 20, /* tensors, and as many keys: ours, as for safetensors */
    NIB_GGUF_KEY_MAX = 65535,     /* bytes of a key, as the format says */
    NIB_GGUF_NAME_MAX = 63,       /* bytes of a tensor's name, as the format says */
    NIB_GGUF_STRING_MAX = 1 << 30,
    NIB_GGUF_ALIGNMENT_MAX = 1 << 20, /* ours; files have 32 */
    NIB_GGUF_RANK_MAX = 4,
};

/* The numbers are the file's. */
typedef enum nib_gguf_kind {
    NIB_GGUF_U8,
    NIB_GGUF_I8,
    NIB_GGUF_U16,
    NIB_GGUF_I16,
    NIB_GGUF_U32,
    NIB_GGUF_I32,
    NIB_GGUF_F32,
    NIB_GGUF_BOOL,
    NIB_GGUF_STRING,
    NIB_GGUF_ARRAY,
    NIB_GGUF_U64,
    NIB_GGUF_I64,
    NIB_GGUF_F64,
    NIB_GGUF_KIND_COUNT
} nib_gguf_kind;

typedef struct nib_gguf_value {
    const char *key;
    const uint8_t *at; /* the value or the first element, as in the file: little-endian, unaligned;
                          a string is 8 bytes of length and its bytes */
    uint64_t count;    /* elements; 1 for what is no array */
    const uint8_t *entry; /* the whole entry, key and all: entry_bytes */
    uint64_t entry_bytes;
    uint8_t kind; /* nib_gguf_kind of the value or of each element; never ARRAY */
    bool is_array;
} nib_gguf_value;

struct nib_gguf {
    const char *name;        /* of the file, safe for messages */
    const char *arch;        /* general.architecture; NULL: not said */
    nib_gguf_value **values; /* [count] in the order of the file */
    size_t count;
    nib_name_index by_key;
    uint32_t version;
    uint64_t alignment;
};

nib_parse nib__gguf_parse;

/* All keys and values as they are, but for those of a split, as a file without tensors. */
void nib__gguf_keys(const nib_gguf *gguf, nib_text *out);
/* NULL: no such key. */
const nib_gguf_value *nib__gguf_find(const nib_gguf *gguf, const char *key);
const char *nib__gguf_kind_name(nib_gguf_kind kind); /* "u32" */
int nib__gguf_type_number(nib_type type);            /* of a tensor's type; -1: GGUF has none */

/* Typed look-ups. A missing key is *found = false and `out` untouched, or NIB_BAD_INPUT if found is
 * NULL; another kind of value is NIB_BAD_INPUT with both kinds. Whole numbers of any width are
 * taken as integers, floats and whole numbers as doubles. */
nib_status nib__gguf_int(int64_t *out, bool *found, const nib_gguf *gguf, const char *key,
                         nib_err *err);
nib_status nib__gguf_double(double *out, bool *found, const nib_gguf *gguf, const char *key,
                            nib_err *err);
nib_status nib__gguf_bool(bool *out, bool *found, const nib_gguf *gguf, const char *key,
                          nib_err *err);
/* A view of any bytes, not NUL-terminated. */
nib_status nib__gguf_string(const char **out, size_t *size, bool *found, const nib_gguf *gguf,
                            const char *key, nib_err *err);

/* An array, and how far it was read. */
typedef struct nib_gguf_array {
    const uint8_t *at; /* the next element */
    uint64_t count;    /* of the whole array */
    uint64_t left;     /* elements not read yet */
    uint8_t kind;
} nib_gguf_array;

/* wanted: NIB_GGUF_STRING, NIB_GGUF_I64 for whole numbers of any width, NIB_GGUF_F64 for numbers of
 * any kind, NIB_GGUF_BOOL. */
nib_status nib__gguf_array_of(nib_gguf_array *out, bool *found, const nib_gguf *gguf,
                              const char *key, nib_gguf_kind wanted, nib_err *err);
/* The next element; false past the last. Call the one that fits what was wanted. */
bool nib__gguf_next_string(nib_gguf_array *array, const char **out, size_t *size);
bool nib__gguf_next_int(nib_gguf_array *array, int64_t *out);
bool nib__gguf_next_double(nib_gguf_array *array, double *out);

#endif
