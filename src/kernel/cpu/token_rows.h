/* SPDX-License-Identifier: Apache-2.0
 *
 * Functions of the token and attention rows that are compiled per instruction set.
 */
#ifndef NIB_TOKEN_ROWS_H
#define NIB_TOKEN_ROWS_H

#include "kernel.h"

#define NIB_TOKEN_FUNCTIONS(isa)                                                                   \
    void nib__token_norm__##isa(const nib_norm *a, int64_t row0, int64_t row1);                    \
    void nib__token_rope__##isa(const nib_rope *a, int64_t m0, int64_t m1);                        \
    void nib__token_swiglu__##isa(const nib_swiglu *a, int64_t m0, int64_t m1);                    \
    void nib__token_scale__##isa(const nib_scale *a, int64_t m0, int64_t m1);                      \
    void nib__token_add__##isa(const nib_add *a, int64_t m0, int64_t m1);                          \
    void nib__token_store_kv__##isa(const nib_store_kv *a, int64_t m0, int64_t m1);                \
    void nib__token_rope_store_kv__##isa(const nib_rope_store_kv *a, int64_t m0, int64_t m1);      \
    void nib__attn__##isa(const nib_attn *a, int64_t item0, int64_t item1, void *scratch)

NIB_TOKEN_FUNCTIONS(ref);
NIB_TOKEN_FUNCTIONS(avx2);
NIB_TOKEN_FUNCTIONS(neon);
NIB_TOKEN_FUNCTIONS(avx512);

#endif
