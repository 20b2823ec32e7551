/* SPDX-License-Identifier: Apache-2.0
 *
 * One safetensors file: eight bytes of little-endian header size n, n bytes of JSON, the data.
 * The parser checks every rule of the format: tensors cover the data exactly, none overlap, no name
 * appears twice. It owns no file and no memory: tensors are views into the caller's bytes, names
 * are in the caller's arena.
 */
#ifndef NIB_SAFETENSORS_H
#define NIB_SAFETENSORS_H

#include "container.h"

enum {
    NIB_SAFETENSORS_HEADER_MAX = 100000000, /* bytes: limit of the format */
    NIB_SAFETENSORS_ENTRY_MAX = 1 << 20, /* tensors, and as many metadata entries: our limit, so a
                                            hostile header costs at most twice its size */
};

nib_status nib__safetensors_parse(nib_container *out, const uint8_t *bytes, uint64_t size,
                                  const char *name, int file, nib_arena *arena, nib_err *err);

#endif
