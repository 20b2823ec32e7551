/* SPDX-License-Identifier: Apache-2.0
 *
 * The part of the CUDA driver API that cuda.c calls: facts of a public ABI, declared here because
 * cuda.h comes only with the toolkit. Functions have the library's names, with _v2 where the ABI
 * was revised.
 */
#ifndef NIB_CUDA_API_H
#define NIB_CUDA_API_H

#include <stddef.h>
#include <stdint.h>

typedef int cu_result;
typedef int cu_device;
typedef uint64_t cu_address; /* CUdeviceptr */
typedef struct cu_context_object *cu_context;
typedef struct cu_module_object *cu_module;
typedef struct cu_function_object *cu_function;
typedef struct cu_stream_object *cu_stream;
typedef struct cu_event_object *cu_event;

enum {
    CU_SUCCESS = 0,
    CU_ERROR_OUT_OF_MEMORY = 2,
    CU_ERROR_NO_DEVICE = 100,
    CU_ERROR_NOT_READY = 600,
};

enum {
    CU_ATTRIBUTE_CLOCK_KHZ = 13,
    CU_ATTRIBUTE_MULTIPROCESSORS = 16,
    CU_ATTRIBUTE_MEMORY_CLOCK_KHZ = 36,
    CU_ATTRIBUTE_MEMORY_BUS_BITS = 37,
    CU_ATTRIBUTE_CAPABILITY_MAJOR = 75,
    CU_ATTRIBUTE_CAPABILITY_MINOR = 76,
};

enum {
    CU_FUNCTION_MOST_DYNAMIC_SHARED = 8, /* an attribute to set */
    CU_STREAM_ALONE = 1,                 /* does not wait for the default stream */
    CU_EVENT_WITHOUT_TIME = 2,
};

enum { CU_LAUNCH_OVERLAPS = 6 /* "programmatic stream serialization", allowed */ };

typedef struct cu_launch_attribute {
    int id;
    union {
        int is_allowed;
        uint64_t room[8];
    } value;
} cu_launch_attribute;

typedef struct cu_launch_config {
    unsigned grid[3], block[3], shared;
    cu_stream stream;
    cu_launch_attribute *attributes;
    unsigned attribute_count;
} cu_launch_config;

/* X(result, name, arguments) */
#define NIB_CUDA_FUNCTIONS(X)                                                                      \
    X(cu_result, cuInit, (unsigned flags))                                                         \
    X(cu_result, cuDriverGetVersion, (int *version))                                               \
    X(cu_result, cuGetErrorString, (cu_result code, const char **text))                            \
    X(cu_result, cuDeviceGetCount, (int *count))                                                   \
    X(cu_result, cuDeviceGet, (cu_device * device, int index))                                     \
    X(cu_result, cuDeviceGetName, (char *name, int size, cu_device device))                        \
    X(cu_result, cuDeviceTotalMem_v2, (size_t * bytes, cu_device device))                          \
    X(cu_result, cuDeviceGetAttribute, (int *value, int attribute, cu_device device))              \
    X(cu_result, cuDevicePrimaryCtxRetain, (cu_context * context, cu_device device))               \
    X(cu_result, cuDevicePrimaryCtxRelease_v2, (cu_device device))                                 \
    X(cu_result, cuCtxSetCurrent, (cu_context context))                                            \
    X(cu_result, cuMemAlloc_v2, (cu_address * address, size_t bytes))                              \
    X(cu_result, cuMemFree_v2, (cu_address address))                                               \
    X(cu_result, cuMemcpyHtoDAsync_v2,                                                             \
      (cu_address to, const void *from, size_t bytes, cu_stream stream))                           \
    X(cu_result, cuMemcpyDtoHAsync_v2,                                                             \
      (void *to, cu_address from, size_t bytes, cu_stream stream))                                 \
    X(cu_result, cuMemcpyDtoDAsync_v2,                                                             \
      (cu_address to, cu_address from, size_t bytes, cu_stream stream))                            \
    X(cu_result, cuModuleLoadData, (cu_module * module, const void *image))                        \
    X(cu_result, cuModuleUnload, (cu_module module))                                               \
    X(cu_result, cuModuleGetFunction,                                                              \
      (cu_function * function, cu_module module, const char *name))                                \
    X(cu_result, cuFuncSetAttribute, (cu_function function, int attribute, int value))             \
    X(cu_result, cuLaunchKernelEx,                                                                 \
      (const cu_launch_config *how, cu_function function, void **arguments, void **extra))         \
    X(cu_result, cuStreamCreate, (cu_stream * stream, unsigned flags))                             \
    X(cu_result, cuStreamDestroy_v2, (cu_stream stream))                                           \
    X(cu_result, cuStreamSynchronize, (cu_stream stream))                                          \
    X(cu_result, cuEventCreate, (cu_event * event, unsigned flags))                                \
    X(cu_result, cuEventDestroy_v2, (cu_event event))                                              \
    X(cu_result, cuEventRecord, (cu_event event, cu_stream stream))                                \
    X(cu_result, cuEventQuery, (cu_event event))

#endif
