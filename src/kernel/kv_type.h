/* SPDX-License-Identifier: Apache-2.0
 *
 * How the KV cache keeps keys and values: names, and the bytes of a vector.
 */
#ifndef NIB_KV_TYPE_H
#define NIB_KV_TYPE_H

#include "type.h"

/* X(id, name, element type). INT4 has the numbers of Q4_1 in another order. */
#define NIB_KV_KINDS(X)                                                                            \
    X(F32, "f32", F32)                                                                             \
    X(F16, "f16", F16)                                                                             \
    X(BF16, "bf16", BF16)                                                                          \
    X(INT8, "int8", I8)                                                                            \
    X(INT4, "int4", Q4_1)

/* What the fact CACHE counts. */
#define X(id, name, type) NIB_KV_##id,
typedef enum nib_kv_kind { NIB_KV_KINDS(X) NIB_KV_KIND_COUNT } nib_kv_kind;
#undef X
extern const char *const nib__kv_names[]; /* by kind; ends in NULL */

/* Keys or values. hadamard: vectors are rotated before they are rounded. */
typedef struct nib_kv_type {
    nib_type type; /* F32, F16, BF16, I8 or Q4_1; NONE: not chosen */
    bool hadamard;
} nib_kv_type;

typedef struct nib_kv_types {
    nib_kv_type keys, values;
} nib_kv_types;

enum {
    NIB_KV_NAME = 40,        /* bytes of a name of nib_kv_types */
    NIB_KV_GROUP = 32,       /* channels of a head that share a scale and a minimum in int4 */
    NIB_HADAMARD_MOST = 1024 /* channels of a head that can be rotated */
};

/* Keys and values of one type, not rotated. */
NIB_INLINE nib_kv_types nib__kv_both(nib_type type)
{
    return (nib_kv_types){{type, false}, {type, false}};
}
NIB_INLINE bool nib__kv_alike(nib_kv_types t)
{
    return t.keys.type == t.values.type && t.keys.hadamard == t.values.hadamard;
}
nib_kv_kind nib__kv_kind(nib_type type);
/* Reads "int8", "int8-hadamard", or KEYS:VALUES. */
bool nib__kv_parse(nib_kv_types *out, const char *text);
/* The same in words: one type if both are alike. Returns out. */
const char *nib__kv_name(char out[NIB_KV_NAME], nib_kv_types types);

/* The numbers of one vector of `dim` channels: elements, then others, such as scales. */
typedef struct nib_kv_vector {
    int64_t elements, element_bytes;
    int64_t others, other_bytes;
} nib_kv_vector;

NIB_INLINE int64_t nib__kv_groups(int64_t dim) { return (dim + NIB_KV_GROUP - 1) / NIB_KV_GROUP; }

NIB_INLINE nib_kv_vector nib__kv_vector(nib_type type, int64_t dim)
{
    switch (type) {
    case NIB_TYPE_F32: return (nib_kv_vector){dim, 4, 0, 0};
    case NIB_TYPE_I8: return (nib_kv_vector){dim, 1, 1, 4};
    case NIB_TYPE_Q4_1: return (nib_kv_vector){(dim + 1) / 2, 1, 2 * nib__kv_groups(dim), 2};
    default: return (nib_kv_vector){dim, 2, 0, 0};
    }
}
/* Bytes of the keys, or the values, of one head for `positions` positions. */
NIB_INLINE int64_t nib__cache_bytes(nib_type type, int64_t dim, int64_t positions)
{
    const nib_kv_vector v = nib__kv_vector(type, dim);
    return positions * (v.elements * v.element_bytes + v.others * v.other_bytes);
}

/* Channels that are rotated together: the largest power of two that divides the channels of a key
 * and, if values lie in keys, theirs. value_dim 0: values have their own place. */
NIB_INLINE int64_t nib__hadamard_block(int64_t dim, int64_t value_dim)
{
    const int64_t both = dim | value_dim;
    return both & -both;
}

#endif
