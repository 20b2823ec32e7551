/* SPDX-License-Identifier: Apache-2.0
 *
 * Writing GGUF's blocks of 32: from floats as ggml's reference quantizers choose scales and codes,
 * or from codes and scales that are there already. How blocks are read is code_layout_gguf.c's.
 */
#ifndef NIB_GGUF_BLOCKS_H
#define NIB_GGUF_BLOCKS_H

#include "type.h"

enum { NIB_BLOCK_ELEMENTS = 32 };

/* A row of k finite floats, k a multiple of 32, into k / 32 blocks. False: a scale is beyond what
 * the block's can be (65504 for f16); the row is then not usable. */
bool nib__blocks_quantize(uint8_t *out, nib_type type, const float *row, int64_t k);

/* One block. codes: [32] int8 of Q8_0, -8..7 of Q4_0 and Q4_1, bit patterns of e2m1 for MXFP4.
 * low: what the code -8 means (Q4_1 only). The scale and `low` are rounded to the block's type;
 * true if that changed nothing, so that the block means what was given. */
bool nib__block_put(uint8_t *out, nib_type type, const int8_t *codes, float scale, float low);

#endif
