/* SPDX-License-Identifier: Apache-2.0
 *
 * How dialects write a quantized weight: which tensors they need for a scheme, the layout of their
 * bytes, and the JSON metadata. Weights are read with nib__checkpoint_weight.
 */
#ifndef NIB_DIALECTS_H
#define NIB_DIALECTS_H

#include "checkpoint.h"

/* In the order in which a weight is tried: see dialect_table.c. */
typedef enum nib_dialect {
    NIB_DIALECT_GGUF, /* blocks, in a GGUF file */
    NIB_DIALECT_NIBBLE,
    NIB_DIALECT_TORCHAO,
    NIB_DIALECT_COMPRESSED, /* compressed-tensors */
    NIB_DIALECT_GPTQ,
    NIB_DIALECT_AWQ,
    NIB_DIALECT_FP8,
    NIB_DIALECT_MODELOPT,
    NIB_DIALECT_MXFP4,
    NIB_DIALECT_8DA4W, /* the state dict of ExecuTorch and torchtune */
    NIB_DIALECT_GPTFAST,
    NIB_DIALECT_STACKED, /* floats of experts.c that are not rows of a matrix in the file */
    NIB_DIALECT_META,
    NIB_DIALECT_FLOAT, /* plain floats: a quantized weight is dequantized when written */
    NIB_DIALECT_PYTORCH,
    NIB_DIALECT_COUNT
} nib_dialect;

/* One weight to write, from a quantizer or another checkpoint. */
typedef struct nib_output_weight {
    nib_scheme scheme;
    int64_t n, k;
    nib_type source;                /* F32, F16, BF16: type before quantization */
    nib_type scale_type, zero_type; /* zero_type NONE: no zeros */
    bool embedding;                 /* rows are looked up, not multiplied */
    bool tensor_divides;            /* as in nib_weight */
    int64_t scale_rows;             /* as in nib_weight; 0: each row has its own scales */
    bool ordered;                   /* columns are in act-order: `order` of nib_weight */
    nib_type blocks; /* the type of the source's blocks, which a GGUF keeps; NONE: it has none */
} nib_output_weight;

/* One of its tensors. */
typedef struct nib_output_part {
    const char *suffix; /* after the module name: "._weight_qdata"; NULL: not stored */
    nib_type type;
    int rank;
    int64_t shape[2];
} nib_output_part;

/* How a row of codes, one per byte, is stored. */
typedef enum nib_pieces {
    NIB_PIECES_BYTES,   /* unchanged */
    NIB_PIECES_NIBBLES, /* two per byte, the first in the low half */
    NIB_PIECES_WORDS,   /* little-endian int32, as in NIB_LAYOUT_WORDS */
    NIB_PIECES_FLOATS,  /* no codes: values in the part's type */
    NIB_PIECES_BLOCKS,  /* blocks of the part's type, with codes and scales */
} nib_pieces;

/* How scales or zeros [n][groups] are stored. */
typedef enum nib_order {
    NIB_ORDER_ROWS,   /* [n][groups] */
    NIB_ORDER_GROUPS, /* [groups][n] */
    NIB_ORDER_TILES,  /* bytes in tiles of 128 x 4 (see nib__tile_scales), padded with 0 */
    NIB_ORDER_WORDS,  /* int zeros of b bits, packed along n: [ceil(n*b/32)][groups] */
} nib_order;

typedef struct nib_file_layout {
    nib_output_part codes, scales, zeros;
    nib_output_part tensor; /* the per-tensor scale on top of the block scales */
    nib_output_part size;   /* n and k as a tensor */
    nib_output_part inputs; /* act-order: the input of each column; or, if input_groups, */
    bool input_groups;      /* the group of each input, with codes in the order of inputs */
    nib_pieces pieces;
    int bits; /* of a code or zero in words */
    nib_order order, zero_order;
    bool zero_filled; /* stores zeros, all 0, although the scheme has none */
} nib_file_layout;

/* Bytes of a stored row of codes; writes that row. */
int64_t nib__file_layout_row_bytes(const nib_file_layout *layout, int64_t k);
void nib__file_layout_row(const nib_file_layout *layout, const int8_t *codes, int64_t k,
                          uint8_t *out);
/* Writes a row of blocks. scales, zeros: a value per group, as in nib_weight. False if rounding
 * changed any of them; scales and zeros then have the values that the blocks hold. */
bool nib__file_layout_blocks(const nib_file_layout *layout, const int8_t *codes, float *scales,
                             float *zeros, int64_t k, uint8_t *out);
uint64_t nib__output_part_bytes(const nib_output_part *part); /* 0 if it is not stored */
/* Writes values [n][groups] of the part's type (int8 of `bits` for WORDS) as the bytes of the part,
 * which must be zeroed. */
void nib__file_layout_values(nib_order order, int bits, const nib_output_part *part, uint8_t *to,
                             const uint8_t *from, int64_t n, int64_t groups);

typedef struct nib_dialect_writer {
    bool orders; /* can store act-order */
    bool blocks; /* can store scales shared by several rows; others repeat them */
    bool ties;   /* can store one table for the embedding and the head, coded */
    /* Adapts the weight to what the format stores. NULL, or why it cannot: the end of a sentence
     * (in `out` or a constant). */
    const char *(*fit)(char out[160], nib_output_weight *weight);
    void (*layout)(nib_file_layout *out, const nib_output_weight *weight);
    /* The JSON under M.weight in __metadata__; NULL: none. */
    void (*describe)(nib_text *out, const nib_output_weight *weight);
} nib_dialect_writer;

const nib_dialect_writer *nib__dialect_writer(nib_dialect dialect); /* NULL: it is not written */
const char *nib__dialect_name(nib_dialect dialect);
/* Other programs that read what is written in it: "transformers, vLLM"; NULL: none. */
const char *nib__dialect_readers(nib_dialect dialect);
/* By name; false: no such dialect. */
bool nib__dialect_find(nib_dialect *out, const char *name);

extern const nib_dialect_writer nib__write_torchao, nib__write_nibble, nib__write_8da4w,
    nib__write_compressed, nib__write_gguf, nib__write_float;

/* Appends the JSON that describes a quantized bias under M.bias. */
void nib__describe_bias(nib_text *out, nib_bias form, bool symmetric, int64_t n);
/* Whether the suffix of a module is a tensor of its bias: ".bias", "._bias_qdata", ... */
bool nib__is_bias_part(const char *suffix);

/* The scale type that torchao's config must name; NONE: it is the type of the weight. */
nib_type nib__torchao_scale_dtype(const nib_output_weight *weight);
/* Writes the config that produces such weights, as torchao's config_to_dict does. */
void nib__torchao_config(nib_jsonw *w, const nib_output_weight *weight);

/* Rearranges one-byte scales [n][groups] into tiles. to: ceil(n/128) * ceil(groups/4) * 512 zeroed
 * bytes. */
void nib__tile_scales(uint8_t *to, const uint8_t *from, int64_t n, int64_t groups);

#endif
