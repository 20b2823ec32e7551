/* SPDX-License-Identifier: Apache-2.0
 *
 * Codes of the method gptq on disk, or the choices of awq and smooth, in a directory beside OUT,
 * until OUT is complete: a file `key` with what they depend on, and a file for each part, which
 * appears whole or not at all. Parts are the decoder layers, then for codes the output layer, and
 * for learn its result, what its next step starts from, and the tuned codes of each decoder layer.
 * A killed run leaves the parts that it finished, and the next one with the same key continues
 * after them.
 *
 * A part: 16 bytes of magic and format, then for each weight a record, its codes, scales and zeros,
 * each of them padded to 64 bytes; at the end the XXH3-128 of everything before. In the byte order
 * of the machine.
 */
#ifndef NIB_GPTQ_STORE_H
#define NIB_GPTQ_STORE_H

#include "file.h"
#include "quantize.h"

typedef struct nib_gptq_store nib_gptq_store;

/* Bytes that a weight takes besides its codes, scales and zeros, at most, with its share of a
 * part's head and end. */
enum { NIB_GPTQ_STORE_EXTRA = 512 };

/* The codes of one weight, and how they came about. */
typedef struct nib_gptq_codes {
    uint64_t site;                    /* of the network */
    int64_t n, k;                     /* [n][k] codes */
    uint64_t scale_bytes, zero_bytes; /* of all rows */
    nib_codes codes;                  /* in memory, or in the map of a part */
    double damping;                   /* share of H's mean diagonal that was added */
    int64_t tokens;                   /* that the layer saw */
    int64_t candidate; /* of the methods that scale inputs, which store no codes; of learn's
                          steps and result, see learn.c; else 0 */
} nib_gptq_codes;

/* Opens the store of `out`: "OUT.codes". key: lines "name: value". If the directory holds codes for
 * another key, they are removed, and *other names the first line that differs; else it is NULL.
 * NIB_EXISTS: the directory holds something else, or another process writes there. */
nib_status nib__gptq_store_open(nib_gptq_store **store, const char *out, const char *key,
                                size_t parts, const char **other, const nib_allocator *a,
                                nib_err *err);
const char *nib__gptq_store_path(const nib_gptq_store *store);

/* Whether a part is complete. A damaged one is not, and *damaged (NULL allowed) says so. store
 * NULL: none is. */
bool nib__gptq_store_has(nib_gptq_store *store, size_t part, bool *damaged);
/* The record at `offset` of a complete part, 0 at first, which it advances; false: no more. */
bool nib__gptq_store_next(const nib_gptq_store *store, size_t part, uint64_t *offset,
                          nib_gptq_codes *out);

/* Writes a part, a weight at a time. When nib__gptq_store_end returns, it is on the disk, and
 * complete; a part that was there before stays until then, and what points into it ends. */
nib_status nib__gptq_store_begin(nib_gptq_store *store, size_t part, nib_err *err);
nib_status nib__gptq_store_put(nib_gptq_store *store, const nib_gptq_codes *codes, nib_err *err);
nib_status nib__gptq_store_end(nib_gptq_store *store, nib_err *err);

/* Closes it, and what points into its parts ends. The files stay. NULL: nothing. */
void nib__gptq_store_close(nib_gptq_store *store);
/* Closes it and removes its files. */
nib_status nib__gptq_store_remove(nib_gptq_store *store, nib_err *err);

#endif
