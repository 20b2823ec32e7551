/* SPDX-License-Identifier: Apache-2.0
 *
 * One row per nib_code_layout: how codes, and the scales among them, are read. Only code_layout.c
 * and the files that define rows include this; all others call scheme.h.
 */
#ifndef NIB_LAYOUT_H
#define NIB_LAYOUT_H

#include "scheme.h"

/* `row` is where the row is stored, not its number in the weight. */
typedef struct nib_store_ops {
    void (*codes)(const nib_weight *w, int64_t row, int64_t k0, int64_t count, int8_t *out);
    /* NULL: scales and zeros are arrays of their own, as nib_weight says. */
    float (*scale)(const nib_weight *w, int64_t row, int64_t g);
    float (*zero)(const nib_weight *w, int64_t row, int64_t g); /* NULL: as scale, or no zeros */
    nib_act
        act; /* what the tools that store weights so multiply them with; FLOAT: nothing is known */
    uint64_t (*row_bytes)(const nib_weight *w); /* NULL: rows do not lie by themselves */
    uint64_t (*bytes)(const nib_weight *w);     /* of n rows; NULL: n * row_bytes */
} nib_store_ops;

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
/* Whether a zero point of the weight, whose store packs them, is not 0. */
bool nib__words_any_zero(const nib_weight *w);

/* ---- GGUF's blocks: code_layout_gguf.c ---- */

void nib__block_codes(const nib_weight *w, int64_t row, int64_t k0, int64_t count, int8_t *out);
uint64_t nib__block_row_bytes(const nib_weight *w);
float nib__block_scale(const nib_weight *w, int64_t row, int64_t g); /* f16 first in the block */
float nib__q4_1_zero(const nib_weight *w, int64_t row, int64_t g);
float nib__q5_1_zero(const nib_weight *w, int64_t row, int64_t g);
float nib__q4_k_scale(const nib_weight *w, int64_t row, int64_t g); /* Q5_K's, too */
float nib__q4_k_zero(const nib_weight *w, int64_t row, int64_t g);
float nib__q5_k_zero(const nib_weight *w, int64_t row, int64_t g);
float nib__q6_k_scale(const nib_weight *w, int64_t row, int64_t g);
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
