/* SPDX-License-Identifier: Apache-2.0
 *
 * Writes GGUF's blocks of 32: from floats, with the scales and codes of ggml's reference
 * quantizers, or from existing codes and scales. code_layout_gguf.c reads blocks.
 */
#ifndef NIB_GGUF_BLOCKS_H
#define NIB_GGUF_BLOCKS_H

#include "type.h"

enum { NIB_BLOCK_ELEMENTS = 32 };

/* Quantizes a row of k finite floats, k a multiple of 32, to k / 32 blocks. False: a scale exceeds
 * the range of the block's type (65504 for f16); the blocks are then invalid. */
bool nib__blocks_quantize(uint8_t *out, nib_type type, const float *row, int64_t k);

/* Writes one block. codes: [32] int8 for Q8_0, -8..7 for Q4_0 and Q4_1, bit patterns of e2m1 for
 * MXFP4. low: the value of the code -8 (Q4_1 only). The scale and `low` are rounded to the block's
 * type; true if that changed nothing, so that the block holds exactly the given values. */
bool nib__block_put(uint8_t *out, nib_type type, const int8_t *codes, float scale, float low);

/* Writes one super-block of Q4_K, Q5_K or Q6_K. codes: [256] -8..7, 0..31 or -32..31. scales,
 * zeros: of groups of 32 (Q6_K: 16, without zeros), which are products of one f16 and integers, as
 * the reader makes them; the f16 and the integers are found again, those with the largest integers
 * if there are several. False: there are none, so that the block does not hold these values. */
bool nib__super_block_put(uint8_t *out, nib_type type, const int8_t *codes, const float *scales,
                          const float *zeros);

#endif
