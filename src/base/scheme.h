/* SPDX-License-Identifier: Apache-2.0
 *
 * A scheme says how the weights and the activations of a layer are quantized: what a recipe asks
 * for, a checkpoint holds, a kernel accepts. nib_weight is one weight, as a file stores it.
 */
#ifndef NIB_SCHEME_H
#define NIB_SCHEME_H

#include "text.h"
#include "type.h"

/* The number format of one code. GPU kernels see these numbers as WEIGHT_*. */
typedef enum nib_element {
    NIB_ELEMENT_F32,
    NIB_ELEMENT_F16,
    NIB_ELEMENT_BF16,
    NIB_ELEMENT_I8,
    NIB_ELEMENT_I4,
    NIB_ELEMENT_E4M3,
    NIB_ELEMENT_E5M2,
    NIB_ELEMENT_E2M1,
    NIB_ELEMENT_I1, /* integers of other widths; no GPU kernel has them yet */
    NIB_ELEMENT_I2,
    NIB_ELEMENT_I3,
    NIB_ELEMENT_I5,
    NIB_ELEMENT_I6,
    NIB_ELEMENT_I7,
} nib_element;

/* How weights are coded, one row per code. Measured machine files store the position of a row: add
 * new rows at the end.
 * X(id, name in Nibble's checkpoints, name in tables, element, elements of k per scale or 0 if a
 * recipe chooses, type of the scales or NONE if any float type will do) */
#define NIB_CODES(X)                                                                               \
    X(F32, "f32", "f32", F32, 0, NONE)                                                             \
    X(F16, "f16", "f16", F16, 0, NONE)                                                             \
    X(BF16, "bf16", "bf16", BF16, 0, NONE)                                                         \
    X(I8, "i8", "int8", I8, 0, NONE)                                                               \
    X(I4, "i4", "int4", I4, 0, NONE)                                                               \
    X(E4M3, "e4m3", "e4m3", E4M3, 0, NONE)                                                         \
    X(E5M2, "e5m2", "e5m2", E5M2, 0, NONE)                                                         \
    X(MX8, "mx8", "mx8", E4M3, 32, E8M0)                                                           \
    X(MX4, "mx4", "mx4", E2M1, 32, E8M0)                                                           \
    X(NV4, "nv4", "nv4", E2M1, 16, E4M3) /* and a scale of the whole tensor */                     \
    X(I1, "i1", "int1", I1, 0, NONE)                                                               \
    X(I2, "i2", "int2", I2, 0, NONE)                                                               \
    X(I3, "i3", "int3", I3, 0, NONE)                                                               \
    X(I5, "i5", "int5", I5, 0, NONE)                                                               \
    X(I6, "i6", "int6", I6, 0, NONE)                                                               \
    X(I7, "i7", "int7", I7, 0, NONE)

#define X(id, key, name, element, group, scale) NIB_CODE_##id,
typedef enum nib_code { NIB_CODES(X) NIB_CODE_COUNT } nib_code;
#undef X

typedef struct nib_code_info {
    const char *key;
    const char *name;
    nib_element element;
    int64_t group;       /* elements of k per scale; 0: a recipe chooses */
    nib_type scale_type; /* NONE: any float type */
} nib_code_info;
extern const nib_code_info nib__codes[NIB_CODE_COUNT];

/* How activations of a linear layer are coded, one row each; also stored by position.
 * X(id, name in scheme names, name in Nibble's checkpoints, name in tables, code of the same
 * values, elements of k per scale or 0 for one scale per token or tensor)
 *   FLOAT        not quantized (weight-only)
 *   I8_TOKEN     one dynamic scale per token; I4_TOKEN (-8..7) and E4M3_TOKEN likewise
 *   I8_STATIC    one fixed scale per tensor
 *   I8_BLOCK32   ggml's Q8_0, f16 scales; I8_BLOCK256 its Q8_K, f32 scales
 *   MX4, NV4     each code is stored as the e4m3 of its value; NV4 also has a scale per token */
#define NIB_ACTS(X)                                                                                \
    X(FLOAT, "float", "float", "float", F32, 0)                                                    \
    X(I8_TOKEN, "a8t", "i8_token", "int8-token", I8, 0)                                            \
    X(I8_STATIC, "a8s", "i8_static", "int8-static", I8, 0)                                         \
    X(I4_TOKEN, "a4t", "i4_token", "int4-token", I4, 0)                                            \
    X(E4M3_TOKEN, "e4m3t", "e4m3_token", "e4m3-token", E4M3, 0)                                    \
    X(MX8, "mx8", "mx8", "mx8", MX8, 32)                                                           \
    X(I8_BLOCK32, "a8b32", "i8_block32", "int8-block32", I8, 32)                                   \
    X(I8_BLOCK256, "a8b256", "i8_block256", "int8-block256", I8, 256)                              \
    X(MX4, "mx4", "mx4", "mx4", MX4, 32)                                                           \
    X(NV4, "nv4", "nv4", "nv4", NV4, 16)

#define X(id, short_name, key, name, code, block) NIB_ACT_##id,
typedef enum nib_act { NIB_ACTS(X) NIB_ACT_COUNT } nib_act;
#undef X

typedef struct nib_act_info {
    const char *short_name;
    const char *key;
    const char *name;
    nib_code code; /* of a weight with the same values */
    int64_t block; /* elements of k per scale; 0: one scale per token or tensor */
} nib_act_info;
extern const nib_act_info nib__acts[NIB_ACT_COUNT];

typedef enum nib_zero { NIB_ZERO_NONE, NIB_ZERO_INT, NIB_ZERO_FLOAT } nib_zero;

/* Which published formula chooses scales. */
typedef enum nib_formula {
    NIB_FORMULA_TORCHAO,  /* 0.18: eps is the smallest normal of the weight's type */
    NIB_FORMULA_AO017,    /* 0.17 and older: eps is the type's epsilon */
    NIB_FORMULA_TINYGEMM, /* float zero, range without 0: (q-8)*scale+zero */
    NIB_FORMULA_GGML,     /* ggml's reference for Q8_0, Q4_0 and Q4_1: f16 scales, groups of 32 */
    /* ggml's super-blocks. Groups of 32 with a float zero: int4 is Q4_K, int8 is Q5_K; groups of
     * 16: int4 with a float zero is Q2_K, without one Q3_K; int8 is Q6_K. */
    NIB_FORMULA_SUPER,
    NIB_FORMULA_LEVELS, /* ggml's IQ4_NL: int8 in groups of 32, each one of 16 levels, f16 scales */
} nib_formula;

/* Inputs of a super-block. */
enum { NIB_SUPER_ELEMENTS = 256 };

enum { NIB_GROUP_ROW = 0, NIB_GROUP_TENSOR = -1 };

/* How a bias is stored. INT8: codes in groups of NIB_BIAS_GROUP along n (the last may be shorter),
 * each with a scale; INT32: in units of the activations' single scale times the row's. */
typedef enum nib_bias {
    NIB_BIAS_NONE,
    NIB_BIAS_FLOAT,
    NIB_BIAS_INT8,
    NIB_BIAS_INT32,
    NIB_BIAS_COUNT
} nib_bias;
extern const char *const nib__bias_names[]; /* "none", "float", "int8", "int32" */

enum { NIB_BIAS_GROUP = 32 };

typedef struct nib_scheme {
    nib_code code;
    int64_t group;  /* elements of k per scale; NIB_GROUP_ROW, NIB_GROUP_TENSOR */
    bool symmetric; /* the weight's mapping */
    nib_zero zero;
    nib_act act;
    bool act_symmetric;
    bool mx_floor;   /* MX scale rounding: floor instead of rceil */
    bool block_only; /* NV4: block scales only, no tensor (or token) scale */
    nib_formula formula;
} nib_scheme;

bool nib__scheme_equal(const nib_scheme *a, const nib_scheme *b);
bool nib__scheme_same_weight(const nib_scheme *a, const nib_scheme *b); /* activations may differ */
bool nib__scheme_is_quantized(const nib_scheme *s); /* the code is not a float type */
/* A block type of GGUF with a base of its own, whose name fixes group and zero; quantized on the
 * CPU only. */
bool nib__scheme_is_gguf_block(const nib_scheme *s);
/* The lowest and highest code of super-blocks with the scheme's code, group and zero. */
void nib__super_codes(const nib_scheme *s, int *lowest, int *highest);
/* NV4 scales cover too small a range for a whole tensor; -block leaves out the tensor's scale. */
bool nib__scheme_has_tensor_scale(const nib_scheme *s);
nib_type nib__float_type(nib_code code); /* of a float code; NONE for others */
nib_code nib__float_code(nib_type type); /* of f32, f16 and bf16; F32 for others */
int nib__code_bits(nib_code code);       /* of one packed code: 1 to 32 */
/* Of one code in a plain array; U8 for 4-bit codes, I32 for codes that are packed in words. */
nib_type nib__code_type(nib_code code);
bool nib__code_is_int(nib_code code); /* I1 to I8: -2^(b-1) to 2^(b-1) - 1 */
/* The largest integer code, 2^(b-1) - 1; the lowest is -2^(b-1). */
NIB_INLINE int nib__code_most(nib_code code)
{
    return (int)((UINT32_C(1) << (nib__code_bits(code) - 1)) - 1);
}
nib_code nib__int_code(int64_t bits); /* the integer code of 1 to 8 bits */
/* An integer code whose width is not 4 or 8: weight-only, and packed in words by Nibble. */
bool nib__code_is_odd_int(nib_code code);
bool nib__code_is_f8(nib_code code); /* E4M3, E5M2, MX8 */
bool nib__code_is_mx(nib_code code); /* a power of two per block: MX8, MX4 */
/* The scheme in recipe grammar ("8da4w-g32", "bf16"), canonical: parse(name(s)) == s. */
const char *nib__scheme_name(char out[64], const nib_scheme *s);
/* base[-gN|-row|-tensor][-sym|-asym]...: the part of a recipe before any '+'. Also "f32", "f16",
 * "bf16". */
nib_status nib__scheme_parse(nib_scheme *out, const char *name, size_t size, nib_err *err);
/* A base name of the recipe grammar. One row says all that Nibble knows of it by name. */
typedef struct nib_scheme_base {
    const char *name;
    nib_scheme scheme;  /* what the bare name means */
    nib_zero asym_zero; /* the zero of the asymmetric mapping */
    unsigned takes;     /* the modifiers that apply: bits of scheme.c */
    /* for `nibble recipes`: formulas, and who defined them */
    const char *weights, *activations, *source;
} nib_scheme_base;

/* The bases that parse accepts, in order; NULL past the last. */
const nib_scheme_base *nib__scheme_base(size_t i);
/* The modifiers of a base: "-gN, -row and -sym"; empty if it has none. */
const char *nib__scheme_takes(char out[128], unsigned takes);
/* Groups along k, 1 for row and tensor. */
int64_t nib__scheme_groups(const nib_scheme *s, int64_t k);
/* Elements per group: k for row and tensor. */
int64_t nib__scheme_group_size(const nib_scheme *s, int64_t k);
/* Elements of k per activation scale; 0: one scale per token or tensor, or none. */
NIB_INLINE int64_t nib__act_block(nib_act act) { return nib__acts[act].block; }
/* int8 or int4 with one scale per token or tensor, which may have a zero point. */
bool nib__act_is_int(nib_act act);
/* MX8 or MX4: e4m3 codes with a power of two per block of 32. */
NIB_INLINE bool nib__act_is_mx(nib_act act) { return act == NIB_ACT_MX8 || act == NIB_ACT_MX4; }
/* MX or NV4: e4m3 codes in the weight's blocks along k, each with an f32 scale. */
NIB_INLINE bool nib__act_is_f8_blocks(nib_act act)
{
    return nib__act_is_mx(act) || act == NIB_ACT_NV4;
}

/* The memory layout of a nib_weight's codes; code_layout.c has a table row for each. */
typedef enum nib_code_layout {
    NIB_LAYOUT_FLOAT,  /* [n][k] of the code's float type */
    NIB_LAYOUT_F64,    /* [n][k] of f64, each read as the nearest f32; the code is F32 */
    NIB_LAYOUT_BYTE,   /* [n][k] one code per byte: i8 for I8 and I4, the bit pattern for the others
                         (E4M3, E5M2, MX8, MX4, NV4) */
    NIB_LAYOUT_NIBBLE, /* [n][ceil(k/2)] low nibble first: two's complement for I4, bit pattern for
                         MX4, NV4 */
    /* Words of 32 bits: an integer code of b bits is stored plus 2^(b-1), the first in the lowest
     * bits, without gaps; it may begin in one word and end in the next. Codes are in the order of
     * the inputs, regardless of `order`. */
    NIB_LAYOUT_WORDS,         /* [n][ceil(k*b/32)] along k */
    NIB_LAYOUT_WORDS_ZEROS,   /* the same; zeros too, [ceil(n*b/32)][groups] along n */
    NIB_LAYOUT_GPTQ,          /* [ceil(k*b/32)][n] along k, zeros [groups][ceil(n*b/32)] along n */
    NIB_LAYOUT_GPTQ_LESS_ONE, /* the same; a zero is stored less 1, modulo 2^b */
    NIB_LAYOUT_AWQ,  /* [k][n/8] along n, zeros [groups][n/8] likewise; outputs 0 2 4 6 1 3 5 7 */
    NIB_LAYOUT_Q4_0, /* GGUF's blocks, with scales among the codes: code_layout_gguf.c */
    NIB_LAYOUT_Q4_1,
    NIB_LAYOUT_Q5_0,
    NIB_LAYOUT_Q5_1,
    NIB_LAYOUT_Q8_0,
    NIB_LAYOUT_Q4_K,
    NIB_LAYOUT_Q5_K,
    NIB_LAYOUT_Q6_K,
    NIB_LAYOUT_IQ4_NL,
    NIB_LAYOUT_MXFP4,
    NIB_LAYOUT_Q2_K,
    NIB_LAYOUT_Q3_K,
    /* int4 as PyTorch's tinygemm packs it for one kind of machine (code_layout_tinygemm.c): codes
     * are stored plus 8; stored_n and stored_k include padding. */
    NIB_LAYOUT_TINYGEMM_CUDA,   /* [n/8][k/16/tiles][32][tiles/2] words */
    NIB_LAYOUT_TINYGEMM_ROCM,   /* [n/16][k/16/tiles][64][tiles/2] words */
    NIB_LAYOUT_TINYGEMM_AVX512, /* [n/64][k][32] bytes, rows d and d + 32 in a byte */
    NIB_LAYOUT_TINYGEMM_AVX2,   /* [n/32][k][16] bytes, rows d and d + 16 */
    NIB_LAYOUT_TINYGEMM_SCALAR, /* [n/32][k][16] bytes, rows 2d and 2d + 1 */
    NIB_LAYOUT_FLOAT_T,         /* [k][stored_n] of the code's float type: transposed */
    NIB_LAYOUT_BYTE_T,          /* [k][stored_n] of one code per byte: transposed */
    NIB_LAYOUT_COUNT
} nib_code_layout;

/* The layout of a quantized code in Nibble's own files: NIBBLE, WORDS or BYTE. */
nib_code_layout nib__code_layout(nib_code code);
/* The columns of a row of k codes in that layout, in units of nib__code_type. */
int64_t nib__code_columns(nib_code code, int64_t k);

/* One linear weight, as a file stores it. Pointers belong to the checkpoint (or the quantizer's
 * buffer) and may be unaligned. The value of element (i, j) of group g:
 *   ZERO_NONE   code * scale
 *   ZERO_INT    (code - zero) * scale
 *   ZERO_FLOAT  code * scale + zero; of tinygemm files the loader has taken 8 off the unsigned code
 * Read it through the functions below: a layout may store scales among the codes, and rows may be
 * in another order. */
typedef struct nib_weight {
    nib_scheme scheme;
    int64_t n, k;
    nib_code_layout layout;
    const void *codes;
    /* Scale (i, g) is element i / scale_rows * scale_stride_n + g * scale_stride_g. NULL for float
     * codes and for layouts that hold the scales. */
    const void *scales;
    /* F32 F16 BF16 F64, E8M0 for MX, E4M3 for NV; NONE for float codes. If the layout holds the
     * scales: the smallest type that is exact. */
    nib_type scale_type;
    int64_t scale_stride_n, scale_stride_g; /* 0 and 0 for one tensor scale */
    int64_t scale_rows;                     /* rows that share their scales; 0 means 1 */
    bool scale_tiles;    /* scales, one byte each, are at nib__scale_tile instead */
    float tensor_scale;  /* NV4: multiplies every scale; 0: none */
    bool tensor_divides; /* NV4: tensor_scale divides every scale instead */
    const void *zeros;   /* strided as scales; NULL for ZERO_NONE and where scales is */
    /* I8 or I32 for ZERO_INT, a float type for ZERO_FLOAT; I8 if the layout packs the zeros or they
     * are stored as floats. */
    nib_type zero_type;
    nib_type float_zeros; /* ZERO_INT: the float type the integers are stored in; NONE: zero_type */
    /* [n] the stored row of row i, for parts of a fused weight or the rotary order of another tool;
     * NULL: i. */
    const int32_t *rows;
    /* [k] the input of stored column j (GPTQ's act-order); groups run over stored columns; NULL:
     * j. */
    const int32_t *order;
    int64_t stored_n, stored_k; /* TINYGEMM: rows and columns of the layout; *_T: its columns */
    int64_t inner_tiles;        /* TINYGEMM_CUDA, _ROCM: 2, 4 or 8 */
    const void *bias;           /* [n] or NULL */
    nib_type bias_type;         /* a float type; I8 or I32: codes */
    const void *bias_scales;    /* of I8: [ceil(n/32)] of bias_scale_type, a float type */
    nib_type bias_scale_type;
    const int8_t *bias_zeros; /* of I8: [ceil(n/32)]; NULL: all 0 */
    const float *act_scale;   /* one value, NIB_ACT_I8_STATIC only */
    const int32_t *act_zero;  /* likewise; NULL when symmetric */
} nib_weight;

/* The index of the one-byte scale (i, g) in the tiles of 128 x 4 that tensor cores read. */
NIB_INLINE int64_t nib__scale_tile(int64_t i, int64_t g, int64_t groups)
{
    return (i / 128 * nib__ceil_div(groups, 4) + g / 4) * 512 + (i % 32) * 16 + (i % 128 / 32) * 4 +
           g % 4;
}

/* Whether rows of the weight are columns of what is stored. */
NIB_INLINE bool nib__weight_is_transposed(const nib_weight *w)
{
    return w->layout == NIB_LAYOUT_FLOAT_T || w->layout == NIB_LAYOUT_BYTE_T;
}

/* The stored row of row i. */
NIB_INLINE int64_t nib__weight_place(const nib_weight *w, int64_t i)
{
    return w->rows != NULL ? w->rows[i] : i;
}

/* The factor of sums over the groups of an NV4 weight with a tensor scale. */
NIB_INLINE float nib__weight_factor(const nib_weight *w)
{
    return w->tensor_divides ? 1 / w->tensor_scale : w->tensor_scale;
}

/* The activations to use unless a recipe says otherwise: the scheme's, or those of the tools that
 * use this layout. */
nib_act nib__weight_act(const nib_weight *w);
/* Reads columns k0..k0+count of row i of float codes, as values of the code's type. */
void nib__weight_floats(const nib_weight *w, int64_t i, int64_t k0, int64_t count, void *out);
/* Reads stored columns k0..k0+count of row i as int8 (I8, I4) or raw bytes (E4M3, E5M2, MX8; MX4
 * and NV4 one per byte). */
void nib__weight_codes(const nib_weight *w, int64_t i, int64_t k0, int64_t count, int8_t *out);
float nib__weight_scale(const nib_weight *w, int64_t i, int64_t g);       /* times tensor_scale */
float nib__weight_group_scale(const nib_weight *w, int64_t i, int64_t g); /* without it */
float nib__weight_zero(const nib_weight *w, int64_t i, int64_t g);        /* 0 for ZERO_NONE */
int64_t nib__weight_int_zero(const nib_weight *w, int64_t i, int64_t g);  /* 0 unless ZERO_INT */
/* Write scales and zeros of groups g..g+count as values of scale_type and zero_type, `step` bytes
 * apart from `to` on, F64 rounded to F32, without tensor_scale: the form that packed layouts
 * hold. */
void nib__weight_put_scales(const nib_weight *w, int64_t i, int64_t g, int64_t count, void *to,
                            size_t step);
void nib__weight_put_zeros(const nib_weight *w, int64_t i, int64_t g, int64_t count, void *to,
                           size_t step);
/* The value of a code in a group with this scale and zero. */
float nib__weight_value(const nib_weight *w, int8_t code, float scale, float zero);
/* Dequantizes row i to f32 [k] by the formula above in f32 (no fma), in the order of the inputs. */
void nib__weight_row(const nib_weight *w, int64_t i, float *out);
/* The layout stores scales (and zeros) among the codes, not in arrays. */
bool nib__weight_holds_scales(const nib_weight *w);
/* A weight of a block type, [n][k / block] blocks; false for other types. */
bool nib__block_weight(nib_weight *out, nib_type type, int64_t n, int64_t k, const void *blocks);
/* The type of the weight's blocks; NONE: it has none. */
nib_type nib__weight_block_type(const nib_weight *w);
/* The blocks of row i, nib__weight_row_bytes bytes. */
const void *nib__weight_block_row(const nib_weight *w, int64_t i);
/* For a weight in Q6_K blocks, whose groups of 16 elements have scales f16 * s: f16 and s of the
 * block that begins with group g, a multiple of 16. */
void nib__weight_q6_k(const nib_weight *w, int64_t i, int64_t g, uint16_t *f16, int8_t s[16]);
/* The form of the bias, and its values as f32 [n]: float: converted; int8: (code - zero) * scale in
 * f32; int32: code * (act_scale * scale of the row), multiplied in double and rounded once. */
nib_bias nib__weight_bias_form(const nib_weight *w);
void nib__weight_bias(const nib_weight *w, float *out);
/* Why the weight's integer sums cannot start at an int32 bias, to end a sentence; NULL: they
 * can. */
const char *nib__bias_int32_refuses(const nib_scheme *s, int64_t k);
/* The largest code of an int32 bias with which sums of k products still fit in 32 bits. At least 1
 * unless an int32 bias is refused. */
int64_t nib__bias_int32_most(const nib_scheme *s, int64_t k);
/* Bytes of codes, scales and zeros. */
uint64_t nib__weight_bytes(const nib_weight *w);
/* Codes, scales and zeros are plain row-major arrays, which can be copied without the layout's
 * functions. */
bool nib__weight_is_plain(const nib_weight *w);
/* Bytes of all codes, including scales stored among them. */
uint64_t nib__weight_code_bytes(const nib_weight *w);
/* Bytes of an array of values strided as the scales; 0 for NULL. */
uint64_t nib__weight_value_bytes(const nib_weight *w, const void *values, nib_type type);
/* Bytes of one stored row of codes; 0: rows are not contiguous. */
uint64_t nib__weight_row_bytes(const nib_weight *w);

#endif
