/* SPDX-License-Identifier: Apache-2.0
 *
 * The sources of gpu/, as the Makefile puts their bytes into the library.
 */
#ifndef NIB_GPU_SOURCES_H
#define NIB_GPU_SOURCES_H

#include "launch.h"

#define NIB_GPU_SOURCES(X)                                                                         \
    X(prelude)                                                                                     \
    X(token)                                                                                       \
    X(attention)                                                                                   \
    X(linear)                                                                                      \
    X(quant)

#define NIB_SOURCE(file)                                                                           \
    extern const unsigned char nib__text_##file##_cl[];                                            \
    extern const size_t nib__size_##file##_cl;                                                     \
    extern const nib_gpu_source nib__source_##file;
NIB_GPU_SOURCES(NIB_SOURCE)
#undef NIB_SOURCE

#endif
