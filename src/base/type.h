/* SPDX-License-Identifier: Apache-2.0
 *
 * Stored element types and the number formats behind them.
 */
#ifndef NIB_TYPE_H
#define NIB_TYPE_H

#include "base.h"

/* X(id, safetensors name, our name, bits) */
#define NIB_TYPES(X)                                                                               \
    X(NONE, "", "none", 0)                                                                         \
    X(BOOL, "BOOL", "bool", 8)                                                                     \
    X(U8, "U8", "u8", 8)                                                                           \
    X(I8, "I8", "i8", 8)                                                                           \
    X(U16, "U16", "u16", 16)                                                                       \
    X(I16, "I16", "i16", 16)                                                                       \
    X(U32, "U32", "u32", 32)                                                                       \
    X(I32, "I32", "i32", 32)                                                                       \
    X(U64, "U64", "u64", 64)                                                                       \
    X(I64, "I64", "i64", 64)                                                                       \
    X(F16, "F16", "f16", 16)                                                                       \
    X(BF16, "BF16", "bf16", 16)                                                                    \
    X(F32, "F32", "f32", 32)                                                                       \
    X(F64, "F64", "f64", 64)                                                                       \
    X(C64, "C64", "c64", 64)                                                                       \
    X(E4M3, "F8_E4M3", "e4m3", 8)                                                                  \
    X(E5M2, "F8_E5M2", "e5m2", 8)                                                                  \
    X(E8M0, "F8_E8M0", "e8m0", 8)                                                                  \
    X(E4M3FNUZ, "F8_E4M3FNUZ", "e4m3fnuz", 8)                                                      \
    X(E5M2FNUZ, "F8_E5M2FNUZ", "e5m2fnuz", 8)                                                      \
    X(E2M3, "F6_E2M3", "e2m3", 6)                                                                  \
    X(E3M2, "F6_E3M2", "e3m2", 6)                                                                  \
    X(E2M1, "F4", "e2m1", 4)

/* GGUF types with elements and scales in blocks: X(id, GGUF's name, our name, elements per block,
 * bytes per block). A single element has no size or value of its own. */
#define NIB_BLOCK_TYPES(X)                                                                         \
    X(Q4_0, "Q4_0", "q4_0", 32, 18)                                                                \
    X(Q4_1, "Q4_1", "q4_1", 32, 20)                                                                \
    X(Q5_0, "Q5_0", "q5_0", 32, 22)                                                                \
    X(Q5_1, "Q5_1", "q5_1", 32, 24)                                                                \
    X(Q8_0, "Q8_0", "q8_0", 32, 34)                                                                \
    X(Q4_K, "Q4_K", "q4_k", 256, 144)                                                              \
    X(Q5_K, "Q5_K", "q5_k", 256, 176)                                                              \
    X(Q6_K, "Q6_K", "q6_k", 256, 210)                                                              \
    X(IQ4_NL, "IQ4_NL", "iq4_nl", 32, 18)                                                          \
    X(MXFP4, "MXFP4", "mxfp4", 32, 17)                                                             \
    X(Q2_K, "Q2_K", "q2_k", 256, 84)                                                               \
    X(Q3_K, "Q3_K", "q3_k", 256, 110)

#define X(id, stored, name, bits) NIB_TYPE_##id,
#define Y(id, stored, name, elements, bytes) NIB_TYPE_##id,
typedef enum nib_type { NIB_TYPES(X) NIB_BLOCK_TYPES(Y) NIB_TYPE_COUNT } nib_type;
#undef X
#undef Y

const char *nib__type_name(nib_type type);
const char *nib__type_stored_name(nib_type type); /* as in safetensors, or in GGUF */
int nib__type_bits(nib_type type);                /* of an element; 0 for block types */
bool nib__type_is_block(nib_type type);
/* Elements and bytes per block. Plain types: 1 element; bytes are 0 below 8 bits. */
int64_t nib__type_block_elements(nib_type type);
int64_t nib__type_block_bytes(nib_type type);
/* The safetensors type of this name; NIB_TYPE_NONE: none. */
nib_type nib__type_find(const char *stored_name, size_t size);
/* Bytes of a tensor of this type and shape. False: the product overflows, or the elements (of types
 * below 8 bits) do not fill whole bytes, or the rows do not fill whole blocks. */
bool nib__tensor_bytes(uint64_t *out, nib_type type, const int64_t *shape, int rank);
bool nib__type_is_float(nib_type type); /* F16 BF16 F32 F64 */

/* ---- one value. To f32 is exact except for F64; from f32 rounds to nearest, ties to even ---- */

float nib__f16_to_f32(uint16_t h);
uint16_t nib__f32_to_f16(float f); /* overflow to infinity, NaN kept quiet */

float nib__bf16_to_f32(uint16_t h);
uint16_t nib__f32_to_bf16(float f); /* NaN becomes 0x7fc0 with the sign kept */

/* e4m3fn: no infinity; 0x7f and 0xff are NaN. Values that round above 448 become NaN, as in
 * PyTorch's cast up to 2.11. Saturated: they are clamped to +-448; NaN stays NaN. */
float nib__e4m3_to_f32(uint8_t code);
uint8_t nib__f32_to_e4m3(float f);
uint8_t nib__f32_to_e4m3_saturated(float f);

float nib__e5m2_to_f32(uint8_t code);
uint8_t nib__f32_to_e5m2(float f);           /* overflow to infinity */
uint8_t nib__f32_to_e5m2_saturated(float f); /* clamped to +-57344 first */

/* 2^(code - 127); 255 is NaN, 0 the denormal 2^-127. Up: the smallest power of two >= |f|, within
 * 2^-127..2^127. */
float nib__e8m0_to_f32(uint8_t code);
uint8_t nib__f32_to_e8m0_up(float f);

/* Reads the low 4 bits of code. Writing saturates and keeps -0. NaN, which e2m1 lacks, becomes -0,
 * as in ONNX. */
float nib__e2m1_to_f32(uint8_t code);
uint8_t nib__f32_to_e2m1(float f);

/* ---- arrays. nib__to_f32 and nib__measure_f64_to_f32_error accept an unaligned `from` ---- */

/* count values of `type` (BOOL to F64, E4M3, E5M2, E8M0; not the sub-byte types) as f32. */
void nib__to_f32(float *out, const void *from, nib_type type, int64_t count);
/* No value is NaN or infinite. */
bool nib__all_finite(const float *x, int64_t count);
/* Rounds to `type` (F16, BF16, F32, E4M3 or E5M2 unsaturated, E8M0 up). */
void nib__from_f32(void *out, nib_type type, const float *from, int64_t count);
/* Largest |x - f32(x)| / |x| of `count` F64 values, for the ledger. NaN and infinities count as
 * 0. */
double nib__measure_f64_to_f32_error(const void *from, int64_t count);

/* int4 two per byte, low nibble first, signed -8..7; count codes from code index `first`. */
void nib__unpack_i4(int8_t *out, const uint8_t *bytes, int64_t first, int64_t count);
void nib__pack_i4(uint8_t *bytes, const int8_t *codes, int64_t count);
/* Packs codes of 1 to 8 bits, each plus 2^(bits-1), lowest bits first, into ceil(count * bits / 8)
 * bytes; the last bits of the last byte become 0. */
void nib__pack_bits(uint8_t *bytes, const int8_t *codes, int64_t count, int bits);

#endif
