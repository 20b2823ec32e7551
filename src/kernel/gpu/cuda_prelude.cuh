/* SPDX-License-Identifier: Apache-2.0
 *
 * Included before every source that nvcc compiles: defines OpenCL C in terms of CUDA, so that the
 * .cl files serve both, then includes the number formats of prelude.cl. tests/cuda/emulate.h
 * replaces it in tests that run the same sources on the CPU.
 */
#ifndef NIB_CUDA_PRELUDE_CUH
#define NIB_CUDA_PRELUDE_CUH

#include <cuda_runtime.h>

#include <stdint.h>

#define NIB_CUDA 1

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;

#define __kernel extern "C" __global__
#define __global
#define __constant __constant__ const
#define __local __shared__
#define LOCAL
#define GLOBAL_ARG(type, name) type *name##_base
#define GLOBAL_PTR(type, name) type *name = (after_previous(), name##_base)
#define GLOBAL_CONST_PTR(type, name) const type *name = (after_previous(), name##_base)

#define CLK_LOCAL_MEM_FENCE 0
#define barrier(fence) __syncthreads()
#define as_uint(x) __float_as_uint(x)
#define as_int(x) __float_as_int(x)
#define as_float(x) __uint_as_float(x)
#define as_double(x) __longlong_as_double((long long)(x))
#define atomic_min(at, value) atomicMin(at, value)
#define atomic_inc(at) atomicAdd(at, 1)
#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#endif

#define clamp(value, low, high) min(max(value, low), high)

/* Functions that a .cl file defines beside its kernels must be device code here. */
#define static __device__ static

/* From sm_90 on, a kernel may start while the one before it runs (cuda.c), so that it is there when
 * that one ends. Every kernel must call this before it reads what another one wrote, or writes. */
static inline void after_previous()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

static inline uint get_local_id(int d)
{
    return d == 0 ? threadIdx.x : d == 1 ? threadIdx.y : threadIdx.z;
}

static inline uint get_group_id(int d)
{
    return d == 0 ? blockIdx.x : d == 1 ? blockIdx.y : blockIdx.z;
}

static inline uint get_local_size(int d)
{
    return d == 0 ? blockDim.x : d == 1 ? blockDim.y : blockDim.z;
}

static inline uint get_num_groups(int d)
{
    return d == 0 ? gridDim.x : d == 1 ? gridDim.y : gridDim.z;
}

static inline size_t get_global_id(int d)
{
    return (size_t)get_group_id(d) * get_local_size(d) + get_local_id(d);
}

#include "prelude.cl"

/* `scratch` has a float for each thread. */
static inline float group_sum(float value, float *scratch)
{
    const int id = (int)threadIdx.x, warps = ((int)blockDim.x + 31) / 32;
    for (int step = 16; step > 0; step /= 2)
        value += __shfl_xor_sync(0xffffffffu, value, step);
    if (id % 32 == 0)
        scratch[id / 32] = value;
    __syncthreads();
    value = scratch[0];
    for (int i = 1; i < warps; i++)
        value += scratch[i];
    __syncthreads();
    return value;
}

static inline float group_max(float value, float *scratch)
{
    const int id = (int)threadIdx.x, warps = ((int)blockDim.x + 31) / 32;
    for (int step = 16; step > 0; step /= 2)
        value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, step));
    if (id % 32 == 0)
        scratch[id / 32] = value;
    __syncthreads();
    value = scratch[0];
    for (int i = 1; i < warps; i++)
        value = fmaxf(value, scratch[i]);
    __syncthreads();
    return value;
}

#endif
