/* SPDX-License-Identifier: Apache-2.0
 *
 * The CUDA programs in the library: fat binaries that nvcc built from the lines of
 * cuda_programs.txt, or none. A launch's source and options identify its program, as they identify
 * what OpenCL compiles. tools/cuda_programs writes the table.
 */
#ifndef NIB_CUDA_PROGRAMS_H
#define NIB_CUDA_PROGRAMS_H

#include "launch.h"

typedef struct nib_cuda_program {
    const char *source, *options; /* "token.cl", "-DGROUP=64 ..." */
    const unsigned char *image;
} nib_cuda_program;

extern const nib_cuda_program nib__cuda_programs[]; /* ends with a NULL source */
/* Version of the toolkit that built them, as drivers number it: 13000 is 13.0; 0: no programs. */
extern const int nib__cuda_toolkit;

/* The code of a row: built by nvcc (make CUDA=1), else NULL, and the row is only declared. */
#ifdef NIB_WITH_CUDA
#define NIB_CUDA_BUILT 1
#else
#define NIB_CUDA_BUILT 0
#endif
#define NIB_CUDA_CODE(source, function)                                                            \
    (NIB_CUDA_BUILT ? &(const nib_gpu_code){source, function} : NULL)

/* Code for a single architecture, which not every nvcc can compile. */
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
