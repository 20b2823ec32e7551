/* SPDX-License-Identifier: Apache-2.0
 *
 * PyTorch's zip files (.pt, .pth, .bin): one dict of tensors, read from a pickle without executing
 * it.
 */
#ifndef NIB_TORCH_ZIP_H
#define NIB_TORCH_ZIP_H

#include "container.h"

nib_status nib__torch_parse(nib_container *out, const uint8_t *bytes, uint64_t size,
                            const char *name, int file, nib_arena *arena, nib_err *err);

#endif
