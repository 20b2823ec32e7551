/* SPDX-License-Identifier: Apache-2.0
 *
 * Instructions of sm_80 and later that C++ cannot express: matrix products of a warp, asynchronous
 * copies to shared memory, conversions in pairs. tests/cuda/emulate.h defines each in C++.
 */
#ifndef NIB_CUDA_PTX_CUH
#define NIB_CUDA_PTX_CUH

/* D += A B, m16n8k16 of 16-bit floats. A lane holds rows lane / 4 and lane / 4 + 8 of A, column
 * lane / 4 of B, words lane % 4 and lane % 4 + 4 of k in both, and columns 2 (lane % 4) and the
 * next of D. */
static inline void mma_bf16(float d[4], const uint a[4], const uint b[2])
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, "
                 "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

static inline void mma_f16(float d[4], const uint a[4], const uint b[2])
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, "
                 "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* m16n8k32 of int8, four to a word, exact. */
static inline void mma_s8(int d[4], const uint a[4], const uint b[2])
{
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, "
                 "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* m16n8k32 of f8, from sm_89 on: A of e4m3 or e5m2, B of e4m3. The unit's sums keep few bits of
 * each product (docs/devices.md). */
#define MMA_F8(type)                                                                               \
    static inline void mma_##type(float d[4], const uint a[4], const uint b[2])                    \
    {                                                                                              \
        asm volatile("mma.sync.aligned.m16n8k32.row.col.f32." #type ".e4m3.f32 {%0,%1,%2,%3}, "    \
                     "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"                                      \
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                              \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));          \
    }
MMA_F8(e4m3)
MMA_F8(e5m2)

/* Loads four 8x8 matrices of 16-bit values. Lane l passes the address of row l % 8 of matrix l / 8,
 * and gets word l % 4 of row l / 4 of each matrix. */
static inline void load_matrix_x4(uint out[4], const void *row)
{
    const uint at = (uint)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(at)
                 : "memory");
}

/* Copies 16 aligned bytes to shared memory, zeros if not `valid`: visible after copy_wait and a
 * barrier. */
static inline void copy_async(void *to, const void *from, bool valid)
{
    const uint at = (uint)__cvta_generic_to_shared(to);
    const int bytes = valid ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(from), "r"(bytes)
                 : "memory");
}

static inline void copy_async_word(void *to, const void *from, bool valid)
{
    const uint at = (uint)__cvta_generic_to_shared(to);
    const int bytes = valid ? 4 : 0;
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(at), "l"(from), "r"(bytes)
                 : "memory");
}

static inline void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

/* Waits until at most `left` of the thread's groups of copies are in flight. */
template <int left> static inline void copy_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(left) : "memory");
}

/* Two floats rounded to 16-bit ones, the first in the low half. */
static inline uint pack_bf16(float low, float high)
{
    uint out;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
    return out;
}

static inline uint pack_f16(float low, float high)
{
    uint out;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
    return out;
}

/* Two floats as f8, the first in the low byte: from sm_89 on. */
static inline uint pack_e4m3(float low, float high)
{
    ushort out;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(out) : "f"(high), "f"(low));
    return out;
}

static inline uint pack_e5m2(float low, float high)
{
    ushort out;
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(out) : "f"(high), "f"(low));
    return out;
}

/* a * b + c in pairs. */
static inline uint fma_bf16(uint a, uint b, uint c)
{
    uint out;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(out) : "r"(a), "r"(b), "r"(c));
    return out;
}

static inline uint fma_f16(uint a, uint b, uint c)
{
    uint out;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(out) : "r"(a), "r"(b), "r"(c));
    return out;
}

static inline int dot_bytes(uint a, uint b, int sum) { return __dp4a((int)a, (int)b, sum); }

static inline float shuffle_xor(float value, int mask)
{
    return __shfl_xor_sync(0xffffffffu, value, mask);
}

static inline float shuffle_from(float value, int lane)
{
    return __shfl_sync(0xffffffffu, value, lane);
}

static inline uint choose_bytes(uint a, uint b, uint which) { return __byte_perm(a, b, which); }

/* Weights are read once: a streaming load, evicted first. */
static inline uint4 load_once(const void *from) { return __ldcs((const uint4 *)from); }

#define DYNAMIC_SHARED(name) extern __shared__ __align__(128) uchar name[]

#endif
