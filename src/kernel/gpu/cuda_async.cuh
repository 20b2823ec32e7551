/* SPDX-License-Identifier: Apache-2.0
 *
 * Instructions of asynchronous matrix units that read shared memory: wgmma of sm_90a, and tcgen05
 * of sm_100a with its tensor memory. Descriptors tell both where their operands are (PTX ISA,
 * "Matrix Descriptors" and "Instruction descriptor"). tests/cuda/emulate_async.h has C++ for each.
 */
#ifndef NIB_CUDA_ASYNC_CUH
#define NIB_CUDA_ASYNC_CUH

#include "cuda_ptx.cuh"

static inline uint shared_address(const void *at) { return (uint)__cvta_generic_to_shared(at); }

/* Makes what this thread wrote to shared memory visible to matrix units after the next barrier. */
static inline void fence_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

/* ---- barriers in shared memory, at which the units arrive ---- */

static inline void arrivals_init(ulong *at)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(at)) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/* Waits until the phase of that parity, of phases 0, 1, 2 and on, is over. */
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

/* Allocates columns of tensor memory for the block, a power of two of at least 32, and writes the
 * address of the first to shared memory; tensor_give frees them. All lanes of a warp call these. */
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

/* Before and after a barrier, so that it also orders what the threads request of the unit. */
static inline void tensor_before_barrier()
{
    asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory");
}

static inline void tensor_after_barrier()
{
    asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
}

/* The unit arrives at `at` when everything that this thread requested is done. */
static inline void tensor_commit(ulong *at)
{
    asm volatile(
        "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];" ::"r"(
            shared_address(at))
        : "memory");
}

/* Copies 32 rows of 16 bytes to four columns of each 32 lanes. Later products wait for it. */
static inline void tensor_copy_scales(uint to, ulong from)
{
    asm volatile("tcgen05.cp.cta_group::1.32x128b.warpx4 [%0], %1;" ::"r"(to), "l"(from)
                 : "memory");
}

/* D = A B, or D += A B if `adds`, over 32 e4m3 codes with one e8m0 scale per row of A and column of
 * B. */
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

/* Operand lists of an instruction. */
#define OUT(x) "=f"(x)
#define INOUT(x) "+f"(x)
#define SIXTEEN(x, from, how)                                                                      \
    how(x[from]), how(x[from + 1]), how(x[from + 2]), how(x[from + 3]), how(x[from + 4]),          \
        how(x[from + 5]), how(x[from + 6]), how(x[from + 7]), how(x[from + 8]), how(x[from + 9]),  \
        how(x[from + 10]), how(x[from + 11]), how(x[from + 12]), how(x[from + 13]),                \
        how(x[from + 14]), how(x[from + 15])

/* Loads 16 columns of the lane's own row from `from` on, which names the warp's first lane. */
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

/* Before the first product of a step: orders it after the warp's writes to registers and shared
 * memory. */
static inline void group_mma_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

static inline void group_mma_commit()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* Waits until all products are done; d may be read only after it. */
static inline void group_mma_wait(float d[64])
{
    asm volatile("wgmma.wait_group.sync.aligned 0;"
                 : SIXTEEN(d, 0, INOUT), SIXTEEN(d, 16, INOUT), SIXTEEN(d, 32, INOUT),
                   SIXTEEN(d, 48, INOUT)::"memory");
}

/* D = A B, or D += A B if `adds`, by four warps: m64n128k32, A of e4m3 or e5m2, B of e4m3. Of every
 * 8 columns of D a lane holds 2 (lane % 4) and the next, in row lane / 4, then in the row 8
 * further. */
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
