/* SPDX-License-Identifier: Apache-2.0
 *
 * The programs for CUDA that are in the library: fat binaries that nvcc made of the lines of
 * cuda_programs.txt, or none. A launch's source and options name its program, as they name what
 * OpenCL compiles; tools/cuda_programs writes the table.
 */
#ifndef NIB_CUDA_PROGRAMS_H
#define NIB_CUDA_PROGRAMS_H

#include "launch.h"

typedef struct nib_cuda_program {
    const char *source, *options; /* "token.cl", "-DGROUP=64 ..." */
    const unsigned char *image;
} nib_cuda_program;

extern const nib_cuda_program nib__cuda_programs[]; /* ends in a source of NULL */
/* Of the toolkit that made them, as drivers count: 13000 is 13.0; 0: there are none. */
extern const int nib__cuda_toolkit;

/* Code of a row that is built where nvcc is (make CUDA=1), and declared elsewhere. */
#ifdef NIB_WITH_CUDA
#define NIB_CUDA_BUILT 1
#else
#define NIB_CUDA_BUILT 0
#endif
#define NIB_CUDA_CODE(source, function)                                                            \
    (NIB_CUDA_BUILT ? &(const nib_gpu_code){source, function} : NULL)

/* Code of one architecture alone, which not every nvcc knows. */
#ifdef NIB_WITH_SM90
#define NIB_SM90_BUILT NIB_CUDA_BUILT
#else
#define NIB_SM90_BUILT 0
#endif
#ifdef NIB_WITH_SM100
#define NIB_SM100_BUILT NIB_CUDA_BUILT
#else
#define NIB_SM100_BUILT 0
#endif

#endif
