/* SPDX-License-Identifier: Apache-2.0
 *
 * Defines the embedded device sources.
 */
#include "sources.h"

#define NIB_SOURCE(file, before)                                                                   \
    const nib_gpu_source nib__source_##file = {#file ".cl", nib__text_##file##_cl,                 \
                                               &nib__size_##file##_cl, before};
NIB_SOURCE(prelude, NULL)
NIB_GPU_SOURCES(NIB_SOURCE)
