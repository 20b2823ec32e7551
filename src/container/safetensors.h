/* SPDX-License-Identifier: Apache-2.0
 *
 * One safetensors file: eight bytes of little-endian header size n, n bytes of JSON, the data.
 * Reading checks every rule of the format: the data is covered exactly, nothing overlaps, no name
 * comes twice. Owns no file and no memory: views point into the caller's bytes, names lie in the
 * caller's arena.
 */
#ifndef NIB_SAFETENSORS_H
#define NIB_SAFETENSORS_H

#include "container.h"

enum {
    NIB_SAFETENSORS_HEADER_MAX = 100000000, /* bytes, as the format says */
    NIB_SAFETENSORS_ENTRY_MAX = 1 << 20, /* tensors, and as many metadata entries: ours, so that a
                                            hostile header cannot cost more than twice its size */
};

nib_status nib__safetensors_parse(nib_container *out, const uint8_t *bytes, uint64_t size,
                                  const char *name, int file, nib_arena *arena, nib_err *err);

#endif
