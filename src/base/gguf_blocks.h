/* SPDX-License-Identifier: Apache-2.0
 *
 * Writes GGUF's blocks of 32: from floats, with the scales and codes of ggml's reference
 * quantizers, or from existing codes and scales. code_layout_gguf.c reads blocks.
 */
#ifndef NIB_GGUF_BLOCKS_H
#define NIB_GGUF_BLOCKS_H

#include "type.h"

enum { NIB_BLOCK_ELEMENTS = 32 };

/* The values that the 16 codes of IQ4_NL stand for. */
#define NIB_IQ4_NL_LEVELS -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113

/* Quantizes a row of k finite floats, k a multiple of 32, to k / 32 blocks. False: a scale exceeds
 * the range of the block's type (65504 for f16); the blocks are then invalid. */
bool nib__blocks_quantize(uint8_t *out, nib_type type, const float *row, int64_t k);

/* Writes one block. codes: [32] int8 for Q8_0, -8..7 for Q4_0 and Q4_1, bit patterns of e2m1 for
 * MXFP4, for IQ4_NL its levels. low: the value of the code -8 (Q4_1 only). The scale and `low` are
 * rounded to the block's type; true if that changed nothing, so that the block holds exactly the
 * given values. */
bool nib__block_put(uint8_t *out, nib_type type, const int8_t *codes, float scale, float low);

/* Groups of a super-block, each with a scale. */
int64_t nib__super_block_groups(nib_type type);

/* Writes one super-block. codes: [256], of Q2_K 0..3, Q3_K -4..3, Q4_K -8..7, Q5_K 0..31, Q6_K
 * -32..31. scales, zeros (not of Q3_K and Q6_K): of the groups, which are products of one f16 and
 * integers, as the reader makes them; the f16 and the integers are found again, those with the
 * largest integers if there are several. False: there are none, so that the block does not hold
 * these values. */
bool nib__super_block_put(uint8_t *out, nib_type type, const int8_t *codes, const float *scales,
                          const float *zeros);

#endif
