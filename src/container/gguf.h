/* SPDX-License-Identifier: Apache-2.0
 *
 * One GGUF file, version 2 or 3, little-endian: a table of typed key/values, then tensors, each at
 * a multiple of the alignment. The parser checks every rule of the format and that tensors and
 * padding cover the data exactly. It owns no file and no memory: values are views into the caller's
 * bytes, keys and names are in the caller's arena. config_gguf.c and the tokenizer interpret keys.
 */
#ifndef NIB_GGUF_H
#define NIB_GGUF_H

#include "container.h"
#include "name_index.h"
#include "text.h"

enum {
    NIB_GGUF_ENTRY_MAX = 1 << 20, /* tensors, and as many keys: our limit, as for safetensors */
    NIB_GGUF_KEY_MAX = 65535,     /* bytes of a key: limit of the format */
    NIB_GGUF_NAME_MAX = 63,       /* bytes of a tensor name: limit of the format */
    NIB_GGUF_STRING_MAX = 1 << 30,
    NIB_GGUF_ALIGNMENT_MAX = 1 << 20, /* our limit; real files use 32 */
    NIB_GGUF_RANK_MAX = 4,
};

/* Numbered as in the file. */
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
    const uint8_t *at;    /* the value or first element as in the file: little-endian, unaligned; a
                          string is 8 bytes of length, then its bytes */
    uint64_t count;       /* elements; 1 for a scalar */
    const uint8_t *entry; /* [entry_bytes] the whole entry, including the key */
    uint64_t entry_bytes;
    uint8_t kind; /* nib_gguf_kind of the value or of each element; never ARRAY */
    bool is_array;
} nib_gguf_value;

struct nib_gguf {
    const char *name;        /* file name, escaped for messages */
    const char *arch;        /* general.architecture; NULL: not given */
    nib_gguf_value **values; /* [count] in file order */
    size_t count;
    nib_name_index by_key;
    uint32_t version;
    uint64_t alignment;
};

nib_parse nib__gguf_parse;

/* Appends a GGUF file without tensors that has all key/values except split.*. */
void nib__gguf_keys(const nib_gguf *gguf, nib_text *out);
/* NULL: no such key. */
const nib_gguf_value *nib__gguf_find(const nib_gguf *gguf, const char *key);
const char *nib__gguf_kind_name(nib_gguf_kind kind); /* "u32" */
int nib__gguf_type_number(nib_type type); /* ggml's type number; -1: GGUF lacks the type */

/* Typed look-ups. A missing key sets *found = false and leaves `out` untouched; if found is NULL,
 * the key is required and its absence is NIB_BAD_INPUT. A value of the wrong kind is NIB_BAD_INPUT,
 * naming both kinds. int accepts integers of any width, double also floats. */
nib_status nib__gguf_int(int64_t *out, bool *found, const nib_gguf *gguf, const char *key,
                         nib_err *err);
nib_status nib__gguf_double(double *out, bool *found, const nib_gguf *gguf, const char *key,
                            nib_err *err);
nib_status nib__gguf_bool(bool *out, bool *found, const nib_gguf *gguf, const char *key,
                          nib_err *err);
/* A view of arbitrary bytes, not NUL-terminated. */
nib_status nib__gguf_string(const char **out, size_t *size, bool *found, const nib_gguf *gguf,
                            const char *key, nib_err *err);

/* Iterator over an array. */
typedef struct nib_gguf_array {
    const uint8_t *at; /* the next element */
    uint64_t count;    /* of the whole array */
    uint64_t left;     /* elements still to read */
    uint8_t kind;
} nib_gguf_array;

/* wanted: NIB_GGUF_STRING, NIB_GGUF_BOOL, NIB_GGUF_I64 (integers of any width) or NIB_GGUF_F64
 * (numbers of any kind). */
nib_status nib__gguf_array_of(nib_gguf_array *out, bool *found, const nib_gguf *gguf,
                              const char *key, nib_gguf_kind wanted, nib_err *err);
/* Reads the next element; false past the last. Call the function for the kind that was wanted. */
bool nib__gguf_next_string(nib_gguf_array *array, const char **out, size_t *size);
bool nib__gguf_next_int(nib_gguf_array *array, int64_t *out);
bool nib__gguf_next_double(nib_gguf_array *array, double *out);

#endif
