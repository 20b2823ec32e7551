/* SPDX-License-Identifier: Apache-2.0
 *
 * Quantizing weights: the arithmetic that cpu/quant_w.c defines, shared with GPU rows, which
 * compute the same bits, and with src/quant, which handles files and messages.
 */
#ifndef NIB_QUANT_W_H
#define NIB_QUANT_W_H

#include "ops.h"

/* The formulas; gpu/quant_w.cl uses the same numbers. */
typedef enum nib_quant_family {
    NIB_QUANT_INTX,     /* scale in the source's type, eps of that type; then cast to scale_type */
    NIB_QUANT_INT8,     /* torchao's Int8Tensor: scale kept in f32, eps of f32 */
    NIB_QUANT_INT4,     /* torchao's Int4Tensor: f32 throughout, float zero */
    NIB_QUANT_TINYGEMM, /* float zero, in the source's type */
    NIB_QUANT_FP8,
    NIB_QUANT_MX,
    NIB_QUANT_NV,     /* torchao's NVFP4Tensor: f32 throughout */
    NIB_QUANT_GGML,   /* blocks of gguf_blocks.h: scale in f16 */
    NIB_QUANT_SUPER,  /* ggml's super-blocks: quant_w_super.h; on the CPU only */
    NIB_QUANT_LEVELS, /* IQ4_NL's levels, scale in f16; on the CPU only */
} nib_quant_family;

/* NIB_UNSUPPORTED for schemes without a quantizer (floats, e5m2). k >= 1. */
nib_status nib__quantizer_init(nib_quantizer *out, const nib_scheme *scheme, nib_type source,
                               int64_t k, nib_err *err);

/* Sets the type of stored scales, F32, BF16 or F16, if a recipe asks for one; NONE: the formula's
 * own. NIB_UNSUPPORTED for formulas with a fixed type. */
nib_status nib__quantizer_scales(nib_quantizer *q, nib_type type, nib_err *err);

/* The method of a name; false: there is none. */
bool nib__ptq_parse(nib_ptq_method *out, const char *name);
/* Sets the method. importance: as in nib_quantizer. NIB_UNSUPPORTED: the method does not apply to
 * the scheme. */
nib_status nib__quantizer_method(nib_quantizer *q, nib_ptq_method method, const float *importance,
                                 nib_err *err);

nib_quant_family nib__quant_family(const nib_scheme *scheme);
/* Whether the whole tensor has one scale and zero. */
bool nib__quantizer_is_one(const nib_quantizer *q);
/* Whether the tensor has a scale, alone or over block scales, which needs its range first. */
bool nib__quantizer_needs_scan(const nib_quantizer *q);
/* INTX, TINYGEMM: the smallest scale, in the source's type. */
float nib__quant_smallest(const nib_quantizer *q);
/* NV4: the factor of blocks if the tensor has a scale; else 1. */
float nib__quant_inverse(const nib_quantizer *q);

/* Sets the tensor scale, alone or over block scales, from the tensor's range. False: it is not
 * finite. */
bool nib__quantizer_fix(nib_quantizer *q, const float range[2]);

/* What the codes of a scheme stand for, without scale and zero, ascending; not of super-blocks. */
typedef struct nib_code_levels {
    int count; /* at least 2 */
    int8_t code[256];
    float value[256];
} nib_code_levels;
void nib__quant_levels(nib_code_levels *out, const nib_quantizer *q);

/* Smallest and largest of x, count >= 1; false if one is NaN or infinite. */
bool nib__quant_range(const float *x, int64_t count, float *low, float *high);

/* Stores a scale or zero in an array of its type. */
void nib__quant_store(void *out, nib_type type, int64_t at, float value);

/* The CPU's rows. scratch: k floats if the rows are not f32. */
void nib__quant_w__ref(const nib_quant_w *a, int64_t row0, int64_t row1, void *scratch);
void nib__quant_w__avx2(const nib_quant_w *a, int64_t row0, int64_t row1, void *scratch);
void nib__quant_w__avx512(const nib_quant_w *a, int64_t row0, int64_t row1, void *scratch);
void nib__quant_w__neon(const nib_quant_w *a, int64_t row0, int64_t row1, void *scratch);
/* The row of the lowest rank for a processor with these instruction sets. */
nib_quant_w_run nib__quant_w_best(int64_t isa);

/* Codes rows against the second moments of their inputs: the methods gptq and qronos,
 * quant_w_sweep.h. */
typedef struct nib_quant_sweep {
    const nib_quantizer *q; /* method SEARCH: searches the scales; with importance */
    const float *rows;      /* [n][k] each value exact in q->source */
    int64_t n, k;
    /* [k] the input that is coded first, second, ...; and its inverse, each input's place */
    const int64_t *order, *place;
    /* Search all scales on the rows before anything is coded. Else a group's when its first input
     * is coded, on what the codes before it lost; its other inputs then follow that one. */
    bool scales_first;
    /* Rows and columns of the next three are in that order. */
    const float *factor;    /* [k][k] F_ij = R_ij / R_jj for i < j; H = R R^T, R upper triangular */
    const double *diagonal; /* [k] R_jj^2 */
    /* [k][k] D: for qronos, sum over tokens of (b - a)^T a, where b is the input in the model as
     * stored, and a in the model with codes; NULL: 0 */
    const float *difference;
    int8_t *codes;        /* [n][k] as nib_quant_w */
    void *scales, *zeros; /* [n][groups] */
    double *objective;    /* [n][2] E of rounding's codes, and of these */
    int32_t *failed;      /* [n] as nib_quant_w */
} nib_quant_sweep;
/* scratch: nib__quant_sweep_scratch bytes, aligned to 64. */
typedef void (*nib_quant_sweep_run)(const nib_quant_sweep *a, int64_t row0, int64_t row1,
                                    void *scratch);
void nib__quant_sweep__ref(const nib_quant_sweep *a, int64_t row0, int64_t row1, void *scratch);
void nib__quant_sweep__avx2(const nib_quant_sweep *a, int64_t row0, int64_t row1, void *scratch);
void nib__quant_sweep__avx512(const nib_quant_sweep *a, int64_t row0, int64_t row1, void *scratch);
void nib__quant_sweep__neon(const nib_quant_sweep *a, int64_t row0, int64_t row1, void *scratch);
nib_quant_sweep_run nib__quant_sweep_best(int64_t isa);
uint64_t nib__quant_sweep_scratch(const nib_quantizer *q);

#endif
