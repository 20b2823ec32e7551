/* SPDX-License-Identifier: Apache-2.0
 *
 * The names that the pickle of a checkpoint may use, and what each is good for. None of them is
 * ever imported or called; a name that is not here is refused by pickle.c.
 */
#ifndef NIB_PICKLE_NAMES_H
#define NIB_PICKLE_NAMES_H

#include "type.h"

typedef enum nib_global_role {
    NIB_GLOBAL_DICT,      /* called without arguments, or with a list of pairs, gives a dict */
    NIB_GLOBAL_TENSOR,    /* _rebuild_tensor_v2 and its kin: storage, offset, size, stride */
    NIB_GLOBAL_PARAMETER, /* gives its first argument */
    NIB_GLOBAL_STORAGE,   /* of `type`; NONE: bytes, whose tensors say their type */
    NIB_GLOBAL_TYPE,      /* torch.float32 */
    NIB_GLOBAL_OTHER,     /* called or not, it is of no use here */
    NIB_GLOBAL_REFUSED,   /* a tensor that is made with it is refused, by its name */
} nib_global_role;

typedef struct nib_pickle_global {
    const char *module, *name;
    nib_global_role role;
    nib_type type;
    const char *refusal; /* why and the way out: "is sparse; save what its to_dense() gives" */
} nib_pickle_global;

/* i is a number that find gave. */
const nib_pickle_global *nib__pickle_global_at(uint8_t i);
/* Names are as in the pickle, not terminated. False: not known. */
bool nib__pickle_global_find(uint8_t *out, const char *module, size_t module_size, const char *name,
                             size_t name_size);

#endif
