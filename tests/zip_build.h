/* SPDX-License-Identifier: Apache-2.0
 *
 * Test helper: builds zip files with stored members and remembers the offset of every record, so
 * tests can change them. Written from the format specification, without our reader's code.
 */
#ifndef NIB_ZIP_BUILD_H
#define NIB_ZIP_BUILD_H

#include "base.h"

#include <stdlib.h>

enum { ZIP_MEMBERS_MAX = 8 };

typedef struct zip_part {
    const char *name;
    const void *data;
    size_t size;
} zip_part;

/* A zip file and the offsets of its records. */
typedef struct zip_built {
    uint8_t *bytes; /* the caller frees them */
    size_t size;
    size_t local[ZIP_MEMBERS_MAX], data[ZIP_MEMBERS_MAX], entry[ZIP_MEMBERS_MAX];
    size_t directory, end64, locator, end;
} zip_built;

static inline void zip_set(uint8_t *at, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++)
        at[i] = (uint8_t)(value >> (8 * i));
}

/* Writes the fields common to a local header and a directory entry, from the flags on. */
static inline void zip_common(uint8_t *at, const zip_part *part, bool descriptor, bool local)
{
    const bool later = local && descriptor;
    zip_set(at, descriptor ? 1 << 3 : 0, 2);
    zip_set(at + 2, 0, 2);
    zip_set(at + 4, 0, 4); /* time and date */
    zip_set(at + 8, later ? 0 : 0x12345678, 4);
    zip_set(at + 12, later ? 0 : part->size, 4);
    zip_set(at + 16, later ? 0 : part->size, 4);
    zip_set(at + 20, strlen(part->name), 2);
    zip_set(at + 22, 0, 2);
}

static inline void zip_put_end(zip_built *z, size_t at, size_t count, bool zip64)
{
    const size_t size = at - z->directory;
    z->end64 = z->locator = at;
    if (zip64) {
        uint8_t *end64 = z->bytes + at;
        zip_set(end64, 0x06064b50, 4);
        zip_set(end64 + 4, 44, 8);
        zip_set(end64 + 24, count, 8);
        zip_set(end64 + 32, count, 8);
        zip_set(end64 + 40, size, 8);
        zip_set(end64 + 48, z->directory, 8);
        z->locator = at + 56;
        zip_set(z->bytes + z->locator, 0x07064b50, 4);
        zip_set(z->bytes + z->locator + 8, at, 8);
        zip_set(z->bytes + z->locator + 16, 1, 4);
        at = z->locator + 20;
    }
    z->end = at;
    zip_set(z->bytes + at, 0x06054b50, 4);
    zip_set(z->bytes + at + 8, count, 2);
    zip_set(z->bytes + at + 10, count, 2);
    zip_set(z->bytes + at + 12, size, 4);
    zip_set(z->bytes + at + 16, z->directory, 4);
    z->size = at + 22;
}

/* descriptor: sizes follow the data, as PyTorch writes them; zip64: adds the 64-bit end record. */
static inline zip_built build_zip(const zip_part *parts, size_t count, bool descriptor, bool zip64)
{
    zip_built z = {0};
    size_t room = 200, at = 0;
    for (size_t i = 0; i < count; i++)
        room += 120 + 2 * strlen(parts[i].name) + parts[i].size;
    z.bytes = calloc(1, room);
    for (size_t i = 0; i < count; i++) {
        const size_t name = strlen(parts[i].name);
        z.local[i] = at;
        zip_set(z.bytes + at, 0x04034b50, 4);
        zip_common(z.bytes + at + 6, &parts[i], descriptor, true);
        memcpy(z.bytes + at + 30, parts[i].name, name);
        z.data[i] = at + 30 + name;
        memcpy(z.bytes + z.data[i], parts[i].data, parts[i].size);
        at = z.data[i] + parts[i].size;
        if (descriptor) {
            zip_set(z.bytes + at, 0x08074b50, 4);
            zip_set(z.bytes + at + 4, 0x12345678, 4);
            zip_set(z.bytes + at + 8, parts[i].size, 4);
            zip_set(z.bytes + at + 12, parts[i].size, 4);
            at += 16;
        }
    }
    z.directory = at;
    for (size_t i = 0; i < count; i++) {
        const size_t name = strlen(parts[i].name);
        z.entry[i] = at;
        zip_set(z.bytes + at, 0x02014b50, 4);
        zip_common(z.bytes + at + 8, &parts[i], descriptor, false);
        zip_set(z.bytes + at + 42, z.local[i], 4);
        memcpy(z.bytes + at + 46, parts[i].name, name);
        at += 46 + name;
    }
    zip_put_end(&z, at, count, zip64);
    return z;
}

#endif
