/* SPDX-License-Identifier: Apache-2.0
 *
 * How a quantized weight is stored: the tensors that a dialect needs for a scheme, how their bytes
 * lie, and the JSON that describes them. Used by the streaming writer; reading is behind
 * nib__checkpoint_weight.
 */
#ifndef NIB_DIALECTS_H
#define NIB_DIALECTS_H

#include "checkpoint.h"

typedef enum nib_dialect { NIB_DIALECT_TORCHAO, NIB_DIALECT_NIBBLE } nib_dialect;

/* One weight to store, as a quantizer makes it. */
typedef struct nib_stored {
    nib_scheme scheme;
    int64_t n, k;
    nib_type source;                /* F32, F16, BF16: the weight's type before */
    nib_type scale_type, zero_type; /* zero_type NONE: no zeros */
} nib_stored;

/* One of its tensors. */
typedef struct nib_stored_part {
    const char *suffix; /* behind the module's name: "._weight_qdata" */
    nib_type type;
    int rank;
    int64_t shape[2];
} nib_stored_part;

/* How the plain results of a quantizer become the parts: codes [n][k] one per byte, scales and
 * zeros [n][groups]. */
typedef struct nib_storage {
    nib_stored_part codes, scales, zeros; /* zeros.suffix NULL: none are stored */
    bool packed;                          /* two codes per byte, low nibble first */
    bool transposed;                      /* scales and zeros are [groups][n] */
    bool tiled;       /* scales in tiles of 128 x 4 (see dialect_torchao.c), padded with 0 */
    bool zero_filled; /* zeros are stored though the scheme has none: all 0, I8 */
} nib_storage;

uint64_t nib__stored_part_bytes(const nib_stored_part *part); /* 0 for one without a suffix */

void nib__storage_of(nib_storage *out, nib_dialect dialect, const nib_stored *weight);

/* Why torchao 0.18 cannot hold this weight, as the end of a sentence; NULL: it can. */
const char *nib__torchao_refuses(char out[160], const nib_stored *weight);
/* The JSON under M.weight in __metadata__, as torchao writes it. */
void nib__torchao_describe(nib_text *out, const nib_stored *weight);
/* The config that makes such weights, as torchao's config_to_dict gives it. */
void nib__torchao_config(nib_jsonw *w, const nib_scheme *scheme);

/* The same of the nibble dialect, which holds every scheme. */
void nib__nibble_describe(nib_text *out, const nib_scheme *scheme, int64_t n, int64_t k);
nib_store nib__nibble_store(nib_code code);
/* The stored type of codes, one per byte; U8 where a byte holds two. */
nib_type nib__code_type(nib_code code);

/* Scales [n][groups] of one byte into tiles, and back; `to` holds ceil(n/128) * ceil(groups/4) *
 * 512 zeroed bytes, or n * groups. */
void nib__tile_scales(uint8_t *to, const uint8_t *from, int64_t n, int64_t groups);
void nib__untile_scales(uint8_t *to, const uint8_t *from, int64_t n, int64_t groups);

#endif
