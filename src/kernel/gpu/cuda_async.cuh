/* SPDX-License-Identifier: Apache-2.0
 *
 * The instructions of matrix units that work by themselves on shared memory: wgmma of sm_90a, and
 * tcgen05 of sm_100a with its tensor memory. Both are told where their operands lie by descriptors
 * (PTX ISA, "Matrix Descriptors" and "Instruction descriptor"). tests/cuda/emulate_async.h says in
 * C++ what each does.
 */
#ifndef NIB_CUDA_ASYNC_CUH
#define NIB_CUDA_ASYNC_CUH

#include "cuda_ptx.cuh"

static inline uint shared_address(const void *at) { return (uint)__cvta_generic_to_shared(at); }

/* What this thread wrote to shared memory is seen by matrix units after the next barrier. */
static inline void fence_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

/* ---- barriers of shared memory, which units arrive at ---- */

static inline void arrivals_init(ulong *at)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(at)) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/* Until the phase of that parity, of phases 0, 1, 2 and on, is over. */
static inline void arrivals_wait(ulong *at, int parity)
{
    asm volatile("{\n\t"
                 ".reg .pred over;\n"
                 "WAIT:\n\t"
                 "mbarrier.try_wait.parity.shared::cta.b64 over, [%0], %1;\n\t"
                 "@!over bra.uni WAIT;\n\t"
                 "}" ::"r"(shared_address(at)),
                 "r"(parity)
                 : "memory");
}

/* ---- tcgen05 ---- */

/* Columns of tensor memory, a power of two from 32 on, for the block; all lanes of one warp call
 * these. The address of the first is put into shared memory. */
static inline void tensor_take(uint *address, int columns)
{
    asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], %1;" ::"r"(
                     shared_address(address)),
                 "r"(columns)
                 : "memory");
    asm volatile("tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;");
}

static inline void tensor_give(uint address, int columns)
{
    asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, %1;" ::"r"(address),
                 "r"(columns));
}

/* Around a barrier, so that its order is also one of what threads ask of the unit. */
static inline void tensor_before_barrier()
{
    asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory");
}

static inline void tensor_after_barrier()
{
    asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
}

/* `at` is arrived at when all is done that this thread asked of the unit. */
static inline void tensor_commit(ulong *at)
{
    asm volatile(
        "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];" ::"r"(
            shared_address(at))
        : "memory");
}

/* 32 rows of 16 bytes to four columns of each 32 lanes. Products that are asked for later wait. */
static inline void tensor_copy_scales(uint to, ulong from)
{
    asm volatile("tcgen05.cp.cta_group::1.32x128b.warpx4 [%0], %1;" ::"r"(to), "l"(from)
                 : "memory");
}

/* D = A B, or D += A B, over 32 codes of e4m3 with a scale of e8m0 for the 32 of each row of A and
 * of each column of B. */
static inline void tensor_mma_mx8(uint d, ulong a, ulong b, uint what, uint scale_a, uint scale_b,
                                  bool adds)
{
    asm volatile("{\n\t"
                 ".reg .pred adds;\n\t"
                 "setp.ne.b32 adds, %6, 0;\n\t"
                 "tcgen05.mma.cta_group::1.kind::mxf8f6f4.block_scale.scale_vec::1X "
                 "[%0], %1, %2, %3, [%4], [%5], adds;\n\t"
                 "}" ::"r"(d),
                 "l"(a), "l"(b), "r"(what), "r"(scale_a), "r"(scale_b), "r"((int)adds)
                 : "memory");
}

/* The same without scales. */
static inline void tensor_mma_f8(uint d, ulong a, ulong b, uint what, bool adds)
{
    asm volatile("{\n\t"
                 ".reg .pred adds;\n\t"
                 "setp.ne.b32 adds, %4, 0;\n\t"
                 "tcgen05.mma.cta_group::1.kind::f8f6f4 [%0], %1, %2, %3, adds;\n\t"
                 "}" ::"r"(d),
                 "l"(a), "l"(b), "r"(what), "r"((int)adds)
                 : "memory");
}

/* Operands of an instruction. */
#define OUT(x) "=f"(x)
#define INOUT(x) "+f"(x)
#define SIXTEEN(x, from, how)                                                                      \
    how(x[from]), how(x[from + 1]), how(x[from + 2]), how(x[from + 3]), how(x[from + 4]),          \
        how(x[from + 5]), how(x[from + 6]), how(x[from + 7]), how(x[from + 8]), how(x[from + 9]),  \
        how(x[from + 10]), how(x[from + 11]), how(x[from + 12]), how(x[from + 13]),                \
        how(x[from + 14]), how(x[from + 15])

/* Of the lane's own row, 16 columns from the address on, in which is the warp's first lane. */
static inline void tensor_load(float out[16], uint from)
{
    asm volatile("tcgen05.ld.sync.aligned.32x32b.x16.b32 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, "
                 "%10, %11, %12, %13, %14, %15}, [%16];\n\t"
                 "tcgen05.wait::ld.sync.aligned;"
                 : SIXTEEN(out, 0, OUT)
                 : "r"(from)
                 : "memory");
}

/* ---- wgmma ---- */

/* Before the first product of a step: registers and shared memory are as the warp left them. */
static inline void group_mma_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

static inline void group_mma_commit()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* Until all products are done; d is read after it alone. */
static inline void group_mma_wait(float d[64])
{
    asm volatile("wgmma.wait_group.sync.aligned 0;"
                 : SIXTEEN(d, 0, INOUT), SIXTEEN(d, 16, INOUT), SIXTEEN(d, 32, INOUT),
                   SIXTEEN(d, 48, INOUT)::"memory");
}

/* D = A B, or D += A B, of four warps: m64n128k32, A of e4m3 or of e5m2, B of e4m3. Of each 8
 * columns of D a lane has 2 (lane % 4) and the next, of row lane / 4 and then of 8 rows further. */
#define GROUP_MMA(type)                                                                            \
    static inline void group_mma_##type(float d[64], ulong a, ulong b, bool adds)                  \
    {                                                                                              \
        asm volatile(                                                                              \
            "{\n\t"                                                                                \
            ".reg .pred adds;\n\t"                                                                 \
            "setp.ne.b32 adds, %66, 0;\n\t"                                                        \
            "wgmma.mma_async.sync.aligned.m64n128k32.f32." #type ".e4m3 {"                         \
            "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "               \
            "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "     \
            "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "     \
            "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "    \
            "%64, %65, adds, 1, 1;\n\t"                                                            \
            "}"                                                                                    \
            : SIXTEEN(d, 0, INOUT), SIXTEEN(d, 16, INOUT), SIXTEEN(d, 32, INOUT),                  \
              SIXTEEN(d, 48, INOUT)                                                                \
            : "l"(a), "l"(b), "r"((int)adds)                                                       \
            : "memory");                                                                           \
    }
GROUP_MMA(e4m3)
GROUP_MMA(e5m2)

#endif
