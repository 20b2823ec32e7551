/* SPDX-License-Identifier: Apache-2.0
 *
 * One row per nib_code_layout: how to read codes, and the scales stored among them. Only
 * code_layout.c and the files that define rows include this; all others call scheme.h.
 */
#ifndef NIB_CODE_LAYOUT_H
#define NIB_CODE_LAYOUT_H

#include "scheme.h"

/* `row` is the stored row, not its number in the weight. */
typedef struct nib_layout_ops {
    void (*codes)(const nib_weight *w, int64_t row, int64_t k0, int64_t count, int8_t *out);
    /* NULL: scales and zeros are separate arrays, as nib_weight says. */
    float (*scale)(const nib_weight *w, int64_t row, int64_t g);
    float (*zero)(const nib_weight *w, int64_t row,
                  int64_t g); /* NULL: a separate array, or no zeros */
    nib_act act; /* the activations that the tools of this layout use; FLOAT: not known */
    uint64_t (*row_bytes)(const nib_weight *w); /* NULL: rows are not contiguous */
    uint64_t (*bytes)(const nib_weight *w);     /* of n rows; NULL: n * row_bytes */
} nib_layout_ops;

/* ---- words of 32 bits: code_layout_words.c ---- */

void nib__words_codes(const nib_weight *w, int64_t row, int64_t k0, int64_t count, int8_t *out);
float nib__words_zero(const nib_weight *w, int64_t row, int64_t g);
uint64_t nib__words_row_bytes(const nib_weight *w);
void nib__gptq_codes(const nib_weight *w, int64_t row, int64_t k0, int64_t count, int8_t *out);
float nib__gptq_zero(const nib_weight *w, int64_t row, int64_t g);
float nib__gptq_zero_less_one(const nib_weight *w, int64_t row, int64_t g);
uint64_t nib__gptq_bytes(const nib_weight *w);
void nib__awq_codes(const nib_weight *w, int64_t row, int64_t k0, int64_t count, int8_t *out);
float nib__awq_zero(const nib_weight *w, int64_t row, int64_t g);
uint64_t nib__awq_bytes(const nib_weight *w);
/* Is any zero point not 0, in a weight whose layout packs them? */
bool nib__words_has_nonzero_zero_point(const nib_weight *w);

/* ---- GGUF's blocks: code_layout_gguf.c ---- */

void nib__block_codes(const nib_weight *w, int64_t row, int64_t k0, int64_t count, int8_t *out);
uint64_t nib__block_row_bytes(const nib_weight *w);
float nib__block_scale(const nib_weight *w, int64_t row,
                       int64_t g); /* f16 at the start of a block */
float nib__q4_1_zero(const nib_weight *w, int64_t row, int64_t g);
float nib__q5_1_zero(const nib_weight *w, int64_t row, int64_t g);
float nib__q4_k_scale(const nib_weight *w, int64_t row, int64_t g); /* Q5_K's, too */
float nib__q4_k_zero(const nib_weight *w, int64_t row, int64_t g);
float nib__q5_k_zero(const nib_weight *w, int64_t row, int64_t g);
float nib__q6_k_scale(const nib_weight *w, int64_t row, int64_t g);
float nib__q2_k_scale(const nib_weight *w, int64_t row, int64_t g);
float nib__q2_k_zero(const nib_weight *w, int64_t row, int64_t g);
float nib__q3_k_scale(const nib_weight *w, int64_t row, int64_t g);
float nib__mxfp4_scale(const nib_weight *w, int64_t row, int64_t g);
/* ---- layouts of PyTorch's tinygemm: code_layout_tinygemm.c ---- */

void nib__tinygemm_cuda_codes(const nib_weight *w, int64_t row, int64_t k0, int64_t count,
                              int8_t *out);
void nib__tinygemm_rocm_codes(const nib_weight *w, int64_t row, int64_t k0, int64_t count,
                              int8_t *out);
void nib__tinygemm_cpu_codes(const nib_weight *w, int64_t row, int64_t k0, int64_t count,
                             int8_t *out);
uint64_t nib__tinygemm_bytes(const nib_weight *w);

#endif
