/* SPDX-License-Identifier: Apache-2.0
 *
 * The device sources of gpu/, which the Makefile embeds in the library.
 */
#ifndef NIB_GPU_SOURCES_H
#define NIB_GPU_SOURCES_H

#include "launch.h"

/* X(file, the source compiled before it) */
#define NIB_GPU_SOURCES(X)                                                                         \
    X(token, &nib__source_prelude)                                                                 \
    X(attention, &nib__source_prelude)                                                             \
    X(experts, &nib__source_prelude)                                                               \
    X(linear, &nib__source_prelude)                                                                \
    X(gfx90a, &nib__source_linear)                                                                 \
    X(quant, &nib__source_prelude)                                                                 \
    X(quant_w, &nib__source_prelude)                                                               \
    X(sample, &nib__source_prelude)                                                                \
    X(pack, &nib__source_prelude)                                                                  \
    X(cast, &nib__source_prelude)

#define NIB_SOURCE(file, before)                                                                   \
    extern const unsigned char nib__text_##file##_cl[];                                            \
    extern const size_t nib__size_##file##_cl;                                                     \
    extern const nib_gpu_source nib__source_##file;
NIB_SOURCE(prelude, NULL)
NIB_GPU_SOURCES(NIB_SOURCE)
#undef NIB_SOURCE

#endif
