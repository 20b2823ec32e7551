/* SPDX-License-Identifier: Apache-2.0
 *
 * Replaces cuda_prelude.cuh and cuda_ptx.cuh to run the sources of gpu/ on the CPU. A block's
 * threads are coroutines, so barriers, shuffles and matrix instructions of a warp work as on the
 * device; addresses are the host's. Blocks run one after the other. Each warp runs as far as it can
 * without the others, in every second block starting with the last warp. Asynchronous copies happen
 * as late as possible, and shared memory is poisoned before each block, so that a missing barrier
 * or wait shows. This checks arithmetic and order within a block, but neither speed nor races
 * between blocks.
 */
#ifndef NIB_EMULATE_H
#define NIB_EMULATE_H

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#define NIB_CUDA 1
#define NIB_EMULATED 1

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;

struct uint3e {
    uint x, y, z;
};
struct alignas(16) uint4 {
    uint x, y, z, w;
};
struct alignas(8) uint2 {
    uint x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(8) float2 {
    float x, y;
};
struct alignas(8) int2 {
    int x, y;
};
static inline int2 make_int2(int x, int y) { return {x, y}; }
static inline uint4 make_uint4(uint x, uint y, uint z, uint w) { return {x, y, z, w}; }

/* ---- the running thread (emulated_cuda.cpp) ---- */

extern uint3e threadIdx, blockIdx, blockDim, gridDim;
extern unsigned char *emulated_shared; /* a launch's dynamic part */

void emulated_block_barrier();
/* A warp's exchange buffer, of two in turn. What its lanes write before a meeting point, all lanes
 * can read after it, until the next one. Every lane of the warp must take part. */
enum { EMULATED_ROOM = 24 * 32 };
union emulated_room {
    uint32_t words[EMULATED_ROOM];
    float floats[EMULATED_ROOM];
};
emulated_room *emulated_warp_room();
void emulated_warp_meet();
void emulated_copy(void *to, const void *from, size_t from_bytes, size_t bytes);
void emulated_copy_commit();
void emulated_copy_wait(int groups_left);

/* ---- kernels by name ---- */

struct emulated_function {
    template <class... A> emulated_function(const char *image, const char *name, void (*f)(A...))
    {
        add(image, name, [f](void **args) { call(f, args, std::index_sequence_for<A...>{}); });
    }

  private:
    static void add(const char *image, const char *name, std::function<void(void **)> run);
    template <class... A, size_t... I>
    static void call(void (*f)(A...), void **args, std::index_sequence<I...>)
    {
        f(*(std::remove_reference_t<A> *)args[I]...);
    }
};

/* ---- keywords of CUDA and OpenCL C ---- */

#define __kernel static
#define __global
#define __constant static const
#define __local __shared__
#define LOCAL
#define __device__
#define __forceinline__ inline
#define __restrict__
#define __shared__ static __attribute__((section("emulated_static"))) /* to be poisoned */
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))
#define GLOBAL_ARG(type, name) type *name##_base
#define GLOBAL_PTR(type, name) type *name = name##_base
#define GLOBAL_CONST_PTR(type, name) const type *name = name##_base

#define CLK_LOCAL_MEM_FENCE 0
#define barrier(fence) emulated_block_barrier()
#define __syncthreads() emulated_block_barrier()
#define __syncwarp() emulated_warp_meet()

template <class To, class From> static inline To emulated_bits(From from)
{
    static_assert(sizeof(To) == sizeof(From), "as_type keeps the size");
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}
#define as_uint(x) emulated_bits<uint>(x)
#define as_int(x) emulated_bits<int>(x)
#define as_float(x) emulated_bits<float>(x)
#define as_double(x) emulated_bits<double>(x)

using std::exp;
using std::fabs;
using std::fma;
using std::fmax;
using std::fmaxf;
using std::fmin;
using std::isnan;
using std::log;
using std::max;
using std::min;
using std::rint;
using std::round;
using std::sqrt;
using std::tanh;
#define clamp(value, low, high) min(max(value, low), high)

/* Not atomic: threads are coroutines, so one runs at a time. */
template <class T> static inline T atomic_min(T *at, T value)
{
    const T before = *at;
    *at = min(before, value);
    return before;
}
template <class T> static inline T atomic_inc(T *at) { return (*at)++; }

static inline void after_previous() {} /* kernels run one after the other */

static inline uint get_local_id(int d) { return (&threadIdx.x)[d]; }
static inline uint get_group_id(int d) { return (&blockIdx.x)[d]; }
static inline uint get_local_size(int d) { return (&blockDim.x)[d]; }
static inline uint get_num_groups(int d) { return (&gridDim.x)[d]; }
static inline size_t get_global_id(int d)
{
    return (size_t)get_group_id(d) * get_local_size(d) + get_local_id(d);
}

#pragma GCC diagnostic ignored "-Wunused-function"
#include "prelude.cl"

template <class T> static inline T shuffle_xor(T value, int mask)
{
    uint32_t *words = emulated_warp_room()->words;
    words[threadIdx.x % 32] = emulated_bits<uint32_t>(value);
    emulated_warp_meet();
    return emulated_bits<T>(words[(threadIdx.x % 32) ^ (uint)mask]);
}

template <class T> static inline T shuffle_from(T value, int lane)
{
    uint32_t *words = emulated_warp_room()->words;
    words[threadIdx.x % 32] = emulated_bits<uint32_t>(value);
    emulated_warp_meet();
    return emulated_bits<T>(words[lane]);
}

static inline float group_sum(float value, float *scratch)
{
    (void)scratch;
    for (int step = 16; step > 0; step /= 2)
        value += shuffle_xor(value, step);
    if (threadIdx.x % 32 == 0)
        scratch[threadIdx.x / 32] = value;
    emulated_block_barrier();
    value = scratch[0];
    for (uint i = 1; i < (blockDim.x + 31) / 32; i++)
        value += scratch[i];
    emulated_block_barrier();
    return value;
}

static inline float group_max(float value, float *scratch)
{
    for (int step = 16; step > 0; step /= 2)
        value = fmaxf(value, shuffle_xor(value, step));
    if (threadIdx.x % 32 == 0)
        scratch[threadIdx.x / 32] = value;
    emulated_block_barrier();
    value = scratch[0];
    for (uint i = 1; i < (blockDim.x + 31) / 32; i++)
        value = fmaxf(value, scratch[i]);
    emulated_block_barrier();
    return value;
}

/* ---- instructions: cuda_ptx.cuh, by the tables of the PTX manual ---- */

#define NIB_CUDA_PTX_CUH

/* Halves and bytes of a word. */
static inline float emulated_bf16(uint32_t word, int half)
{
    return from_bf16((ushort)(word >> (16 * half)));
}
static inline float emulated_f16(uint32_t word, int half)
{
    return from_f16((ushort)(word >> (16 * half)));
}
static inline int emulated_s8(uint32_t word, int byte) { return (int8_t)(word >> (8 * byte)); }
static inline float emulated_e4m3(uint32_t word, int byte)
{
    return from_e4m3((uchar)(word >> (8 * byte)));
}
static inline float emulated_e5m2(uint32_t word, int byte)
{
    return from_e5m2((uchar)(word >> (8 * byte)));
}

/* d + a . b over k in f32; the unit adds in another order. */
static inline float emulated_dot(float d, const float *a, const float *b, int ks)
{
    float sum = 0;
    for (int k = 0; k < ks; k++)
        sum += a[k] * b[k];
    return d + sum;
}

/* As the fp8 units of sm_89 and sm_90 add, by measurement: products and d are truncated 13 bits
 * below the exponent of the largest, and so is the sum. */
static inline float emulated_dot_f8(float d, const float *a, const float *b, int ks)
{
    enum { KEPT = 13 };
    float largest = std::fabs(d), plain = d;
    for (int k = 0; k < ks; k++) {
        largest = std::max(largest, std::fabs(a[k] * b[k]));
        plain += a[k] * b[k];
    }
    if (largest == 0 || !std::isfinite(plain))
        return plain;
    const int last = std::ilogb(largest) - KEPT;
    const double steps = std::ldexp(1.0, -last); /* fewer than 2^14 */
    int sum = (int)(d * steps);
    for (int k = 0; k < ks; k++)
        sum += (int)(a[k] * b[k] * steps);
    for (int drop = 1; std::abs(sum) >= 2 << KEPT; drop *= 2) /* truncate the sum as well */
        if (std::abs(sum) < (2 << KEPT) * 2 * drop) {
            sum = sum / (2 * drop) * (2 * drop);
            break;
        }
    return std::ldexp((float)sum, last);
}

/* D += A B of a warp, m16n8 with k in words of `per` values. A lane holds rows lane / 4 and + 8 of
 * A, column lane / 4 of B, words lane % 4 and + 4 of k, and columns from 2 * (lane % 4) of D.
 * Equals mma.sync except for the order of sums. */
template <int per, class Sum, class ReadA, class ReadB>
static inline void emulated_mma(Sum d[4], const uint a[4], const uint b[2], ReadA read_a,
                                ReadB read_b,
                                float (*dot)(float, const float *, const float *, int))
{
    const int lane = (int)(threadIdx.x % 32), ks = 8 * per;
    float *of_a = emulated_warp_room()->floats, *of_b = of_a + 16 * ks; /* rows of k */
    for (int i = 0; i < per; i++) {
        for (int r = 0; r < 4; r++)
            of_a[(lane / 4 + r % 2 * 8) * ks + (lane % 4 + r / 2 * 4) * per + i] =
                (float)read_a(a[r], i);
        for (int r = 0; r < 2; r++)
            of_b[lane / 4 * ks + (lane % 4 + r * 4) * per + i] = (float)read_b(b[r], i);
    }
    emulated_warp_meet();
    const float *row[2] = {of_a + lane / 4 * ks, of_a + (lane / 4 + 8) * ks};
    const float *column[2] = {of_b + lane % 4 * 2 * ks, of_b + (lane % 4 * 2 + 1) * ks};
    for (int i = 0; i < 4; i++)
        if (std::is_same<Sum, float>::value)
            d[i] = (Sum)dot((float)d[i], row[i / 2], column[i % 2], ks);
        else /* integers, whose sum may exceed f32's exact range */
            d[i] += (Sum)dot(0, row[i / 2], column[i % 2], ks);
}

static inline void mma_bf16(float d[4], const uint a[4], const uint b[2])
{
    emulated_mma<2>(d, a, b, emulated_bf16, emulated_bf16, emulated_dot);
}
static inline void mma_f16(float d[4], const uint a[4], const uint b[2])
{
    emulated_mma<2>(d, a, b, emulated_f16, emulated_f16, emulated_dot);
}
static inline void mma_s8(int d[4], const uint a[4], const uint b[2])
{
    emulated_mma<4>(d, a, b, emulated_s8, emulated_s8, emulated_dot);
}
static inline void mma_e4m3(float d[4], const uint a[4], const uint b[2])
{
    emulated_mma<4>(d, a, b, emulated_e4m3, emulated_e4m3, emulated_dot_f8);
}
static inline void mma_e5m2(float d[4], const uint a[4], const uint b[2])
{
    emulated_mma<4>(d, a, b, emulated_e5m2, emulated_e4m3, emulated_dot_f8);
}

/* Loads four 8x8 matrices of 16-bit values; lane l passes the address of row l % 8 of matrix l / 8.
 */
static inline void load_matrix_x4(uint out[4], const void *row)
{
    const int lane = (int)(threadIdx.x % 32);
    uint32_t *words = emulated_warp_room()->words;
    memcpy(words + 2 * lane, &row, sizeof row);
    emulated_warp_meet();
    for (int i = 0; i < 4; i++) {
        const unsigned char *from;
        memcpy(&from, words + 2 * (8 * i + lane / 4), sizeof from);
        memcpy(&out[i], from + 4 * (lane % 4), 4);
    }
}

static inline void copy_async(void *to, const void *from, bool valid)
{
    emulated_copy(to, from, valid ? 16 : 0, 16);
}
static inline void copy_async_word(void *to, const void *from, bool valid)
{
    emulated_copy(to, from, valid ? 4 : 0, 4);
}
static inline void copy_commit() { emulated_copy_commit(); }
template <int left> static inline void copy_wait() { emulated_copy_wait(left); }

static inline uint pack_bf16(float low, float high)
{
    return (uint)to_bf16(high) << 16 | to_bf16(low);
}
static inline uint pack_f16(float low, float high)
{
    return (uint)to_f16(high) << 16 | to_f16(low);
}
static inline uint emulated_code(float value, uint code)
{
    return (std::isnan(value) ? 0x7fu : code) | (std::signbit(value) ? 0x80u : 0u);
}
static inline uint emulated_to_e4m3(float value)
{
    return emulated_code(value, e4m3_code(NEAREST_E4M3(value)));
}
static inline uint emulated_to_e5m2(float value)
{
    return emulated_code(value, (uint)to_f16(NEAREST_E5M2(value)) >> 8);
}
static inline uint pack_e4m3(float low, float high)
{
    return emulated_to_e4m3(high) << 8 | emulated_to_e4m3(low);
}
static inline uint pack_e5m2(float low, float high)
{
    return emulated_to_e5m2(high) << 8 | emulated_to_e5m2(low);
}
static inline uint fma_bf16(uint a, uint b, uint c)
{
    return pack_bf16(std::fma(emulated_bf16(a, 0), emulated_bf16(b, 0), emulated_bf16(c, 0)),
                     std::fma(emulated_bf16(a, 1), emulated_bf16(b, 1), emulated_bf16(c, 1)));
}
static inline uint fma_f16(uint a, uint b, uint c)
{
    return pack_f16(std::fma(emulated_f16(a, 0), emulated_f16(b, 0), emulated_f16(c, 0)),
                    std::fma(emulated_f16(a, 1), emulated_f16(b, 1), emulated_f16(c, 1)));
}
static inline int dot_bytes(uint a, uint b, int sum)
{
    for (int i = 0; i < 4; i++)
        sum += emulated_s8(a, i) * emulated_s8(b, i);
    return sum;
}

/* Bytes of two words, chosen by the nibbles of `which`. */
static inline uint choose_bytes(uint a, uint b, uint which)
{
    const uint64_t both = (uint64_t)b << 32 | a;
    uint out = 0;
    for (int i = 0; i < 4; i++)
        out |= (uint)(both >> (8 * (which >> (4 * i) & 7)) & 255) << (8 * i);
    return out;
}

static inline uint4 load_once(const void *from)
{
    uint4 out;
    memcpy(&out, from, sizeof out);
    return out;
}

#define DYNAMIC_SHARED(name) unsigned char *name = emulated_shared

#include "emulate_async.h"

#endif
