/* SPDX-License-Identifier: Apache-2.0
 *
 * How a quantized weight is stored: the tensors that a dialect needs for a scheme, how their bytes
 * lie, and the JSON that describes them. Used by the streaming writer; reading is behind
 * nib__checkpoint_weight.
 */
#ifndef NIB_DIALECTS_H
#define NIB_DIALECTS_H

#include "checkpoint.h"

typedef enum nib_dialect {
    NIB_DIALECT_TORCHAO,
    NIB_DIALECT_NIBBLE,
    NIB_DIALECT_8DA4W,      /* the state dict of ExecuTorch and torchtune */
    NIB_DIALECT_COMPRESSED, /* compressed-tensors */
    NIB_DIALECT_GGUF,       /* blocks, in a GGUF file */
    NIB_DIALECT_FLOAT,      /* plain floats: a quantized weight is dequantized */
    NIB_DIALECT_COUNT
} nib_dialect;

/* One weight to store, as a quantizer makes it or a checkpoint holds it. */
typedef struct nib_output_weight {
    nib_scheme scheme;
    int64_t n, k;
    nib_type source;                /* F32, F16, BF16: the weight's type before */
    nib_type scale_type, zero_type; /* zero_type NONE: no zeros */
    bool embedding;                 /* rows are looked up, not multiplied */
    bool tensor_divides;            /* as in nib_weight */
    int64_t scale_rows;             /* likewise; 0 where a dialect gives every row its scales */
    bool ordered;                   /* its columns are in act-order: nib_weight's `order` */
} nib_output_weight;

/* One of its tensors. */
typedef struct nib_output_part {
    const char *suffix; /* behind the module's name: "._weight_qdata"; NULL: not stored */
    nib_type type;
    int rank;
    int64_t shape[2];
} nib_output_part;

/* How codes, one per byte, become the bytes of a row. */
typedef enum nib_pieces {
    NIB_PIECES_BYTES,   /* as they are */
    NIB_PIECES_NIBBLES, /* two per byte, the first in the low half */
    NIB_PIECES_WORDS4,  /* eight per little-endian int32, code + 8, the first lowest */
    NIB_PIECES_WORDS8,  /* four per int32, code + 128 */
    NIB_PIECES_FLOATS,  /* no codes: the row's values in the part's type */
    NIB_PIECES_BLOCKS,  /* codes with their scales, in blocks of the part's type */
} nib_pieces;

/* How the values of a group, plain [n][groups], become a part. */
typedef enum nib_order {
    NIB_ORDER_ROWS,   /* [n][groups] */
    NIB_ORDER_GROUPS, /* [groups][n] */
    NIB_ORDER_TILES,  /* bytes in tiles of 128 x 4 (see nib__tile_scales), padded with 0 */
    NIB_ORDER_WORDS4, /* int zeros, eight rows per int32, zero + 8: [ceil(n/8)][groups] */
    NIB_ORDER_WORDS8, /* four rows per int32, zero + 128 */
} nib_order;

typedef struct nib_file_layout {
    nib_output_part codes, scales, zeros;
    nib_output_part tensor; /* the scale of the tensor over those of its blocks */
    nib_output_part size;   /* the weight's n and k as a tensor */
    nib_output_part inputs; /* of a weight in act-order: the input of each column, or */
    bool input_groups;      /* the group of each input, and codes lie in the order of inputs */
    nib_pieces pieces;
    nib_order order, zero_order;
    bool zero_filled; /* zeros are stored though the scheme has none: all 0 */
} nib_file_layout;

/* Bytes of a row of codes as stored, and the row itself. */
int64_t nib__file_layout_row_bytes(const nib_file_layout *storage, int64_t k);
void nib__file_layout_row(const nib_file_layout *storage, const int8_t *codes, int64_t k,
                          uint8_t *out);
/* A row of blocks; scales and zeros as nib_weight means them, a value per group. True if the blocks
 * mean what was given, else what they mean is in scales and zeros. */
bool nib__file_layout_blocks(const nib_file_layout *storage, const int8_t *codes, float *scales,
                             float *zeros, int64_t k, uint8_t *out);
uint64_t nib__output_part_bytes(const nib_output_part *part); /* 0 for one without a suffix */
/* Values [n][groups] of the part's type (int8 for the packed orders) as the part's bytes, which
 * are zeroed before. */
void nib__file_layout_values(nib_order order, const nib_output_part *part, uint8_t *to,
                             const uint8_t *from, int64_t n, int64_t groups);

typedef struct nib_dialect_writer {
    const char *name;
    bool orders; /* it has a place for act-order */
    bool blocks; /* and for scales that rows share; others repeat them */
    /* Why it cannot hold this weight, as the end of a sentence (in `out` or a constant); NULL: it
     * can. The types of scales and zeros become those that it stores. */
    const char *(*refuses)(char out[160], nib_output_weight *weight);
    void (*storage)(nib_file_layout *out, const nib_output_weight *weight);
    /* The JSON under M.weight in __metadata__; NULL: none. */
    void (*describe)(nib_text *out, const nib_output_weight *weight);
} nib_dialect_writer;

const nib_dialect_writer *nib__dialect_writer(nib_dialect dialect);
/* By name; false: no such. */
bool nib__dialect_find(nib_dialect *out, const char *name);

extern const nib_dialect_writer nib__write_torchao, nib__write_nibble, nib__write_8da4w,
    nib__write_compressed, nib__write_gguf, nib__write_float;

/* The JSON under M.bias of a bias in codes. */
void nib__describe_bias(nib_text *out, nib_bias form, bool symmetric, int64_t n);
/* True for what follows the module's name in the names of its bias: ".bias", "._bias_qdata", ... */
bool nib__is_bias_part(const char *suffix);

/* The type of scales that torchao's config has to name; NONE: it follows from the weight's. */
nib_type nib__torchao_scale_dtype(const nib_output_weight *weight);
/* The config that makes such weights, as torchao's config_to_dict gives it. */
void nib__torchao_config(nib_jsonw *w, const nib_output_weight *weight);

/* A scale of the tensor lies over those of its blocks. */
bool nib__scheme_has_tensor_scale(const nib_scheme *scheme);
/* The stored type of codes, one per byte; U8 where a byte holds two. */
nib_type nib__code_type(nib_code code);
nib_code_layout nib__nibble_layout(nib_code code);

/* Scales [n][groups] of one byte into tiles; `to` holds ceil(n/128) * ceil(groups/4) * 512 zeroed
 * bytes. */
void nib__tile_scales(uint8_t *to, const uint8_t *from, int64_t n, int64_t groups);

#endif
