/* SPDX-License-Identifier: Apache-2.0
 *
 * For the kernel checker: y = x W^T by cuBLASLt, loaded if installed, as the yardstick for products
 * on tensor cores. The declarations follow its public interface.
 */
#ifndef NIB_CHECK_CUBLAS_H
#define NIB_CHECK_CUBLAS_H

#include "check_gpu.h"

#include <dlfcn.h>

enum { CUDA_F32 = 0, CUDA_BF16 = 14, CUDA_E4M3 = 28 }; /* cudaDataType */
enum { COMPUTE_F32 = 68, TRANSPOSED = 1, ATTRIBUTE_TRANSPOSE_A = 3 };

typedef struct cublas {
    void *handle; /* cuBLASLt's handle */
    void *workspace;
    int (*create)(void **handle);
    int (*new_product)(void **out, int compute, int scale_type);
    int (*set)(void *product, int attribute, const void *value, size_t bytes);
    int (*new_layout)(void **out, int type, uint64_t rows, uint64_t columns, int64_t ld);
    int (*run)(void *handle, void *product, const void *alpha, const void *a, void *a_layout,
               const void *b, void *b_layout, const void *beta, const void *c, void *c_layout,
               void *d, void *d_layout, const void *algorithm, void *workspace, size_t bytes,
               void *stream);
    int (*wait)(void); /* the driver's wait for all streams */
} cublas;

enum { CUBLAS_WORKSPACE = 64 << 20 };

static bool look_up(void *library, const char *name, void *function)
{
    void *at = library != NULL ? dlsym(library, name) : NULL;
    memcpy(function, &at, sizeof at);
    return at != NULL;
}

/* The device address. */
static void *device_address(const nib_gpu *gpu, const void *address)
{
    const nib_gpu_piece *piece = nib__gpu_piece(gpu, address);
    return (void *)(uintptr_t)(piece->handle + ((uint64_t)(uintptr_t)address - piece->address));
}

/* False: cuBLASLt does not work here. */
static bool open_cublas(cublas *c, nib_gpu *gpu)
{
    static const char *const names[] = {"libcublasLt.so.13", "libcublasLt.so.12",
                                        "/usr/local/cuda/lib64/libcublasLt.so"};
    void *library = NULL, *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL), *workspace;
    for (size_t i = 0; library == NULL && i < COUNT(names); i++)
        library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    *c = (cublas){.handle = NULL};
    if (!look_up(library, "cublasLtCreate", &c->create) ||
        !look_up(library, "cublasLtMatmulDescCreate", &c->new_product) ||
        !look_up(library, "cublasLtMatmulDescSetAttribute", &c->set) ||
        !look_up(library, "cublasLtMatrixLayoutCreate", &c->new_layout) ||
        !look_up(library, "cublasLtMatmul", &c->run) ||
        !look_up(driver, "cuCtxSynchronize", &c->wait))
        return false;
    if (c->create(&c->handle) != 0 ||
        nib__gpu_alloc(gpu, CUBLAS_WORKSPACE, "cuBLAS", &workspace, &under_test.err) != NIB_OK)
        return false;
    c->workspace = device_address(gpu, workspace);
    return true;
}

/* A cuBLASLt product: column-major, so y^T = W x^T. */
typedef struct cublas_product {
    void *product, *w_layout, *x_layout, *y_layout;
    void *w, *x, *y; /* device addresses */
} cublas_product;

static bool make_cublas_product(const cublas *c, cublas_product *out, int type, int64_t m,
                                int64_t n, int64_t k)
{
    const int32_t transposed = TRANSPOSED;
    const uint64_t rows = (uint64_t)k;
    return c->new_product(&out->product, COMPUTE_F32, CUDA_F32) == 0 &&
           c->set(out->product, ATTRIBUTE_TRANSPOSE_A, &transposed, sizeof transposed) == 0 &&
           c->new_layout(&out->w_layout, type, rows, (uint64_t)n, k) == 0 &&
           c->new_layout(&out->x_layout, type, rows, (uint64_t)m, k) == 0 &&
           c->new_layout(&out->y_layout, CUDA_F32, (uint64_t)n, (uint64_t)m, n) == 0;
}

static bool run_cublas(const cublas *c, const cublas_product *p)
{
    const float one = 1, zero = 0;
    return c->run(c->handle, p->product, &one, p->w, p->w_layout, p->x, p->x_layout, &zero, p->y,
                  p->y_layout, p->y, p->y_layout, NULL, c->workspace, CUBLAS_WORKSPACE, NULL) == 0;
}

#endif
