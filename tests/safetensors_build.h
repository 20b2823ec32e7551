/* SPDX-License-Identifier: Apache-2.0
 *
 * Test helper: builds safetensors files from header text, in memory and on disk, and temporary
 * directories. It does not use our writer, so a bug shared by reader and writer cannot hide.
 */
#ifndef NIB_SAFETENSORS_BUILD_H
#define NIB_SAFETENSORS_BUILD_H

#include "file.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Eight bytes of header size, the header verbatim, then `data_size` bytes of data (NULL: zeros).
 * The caller frees it. */
static inline uint8_t *build_file(const char *header, size_t header_size, const void *data,
                                  size_t data_size, size_t *size)
{
    uint8_t *file = malloc(8 + header_size + data_size + 1);
    for (int i = 0; i < 8; i++)
        file[i] = (uint8_t)((uint64_t)header_size >> (8 * i));
    memcpy(file + 8, header, header_size);
    if (data != NULL)
        memcpy(file + 8 + header_size, data, data_size);
    else
        memset(file + 8 + header_size, 0, data_size);
    *size = 8 + header_size + data_size;
    return file;
}

static inline void write_bytes(const char *path, const void *bytes, size_t size)
{
    FILE *file = fopen(path, "wb");
    if (file == NULL || fwrite(bytes, 1, size, file) != size || fclose(file) != 0)
        abort();
}

static inline void write_text(const char *directory, const char *name, const char *text)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    write_bytes(path, text, strlen(text));
}

static inline void write_safetensors(const char *directory, const char *name, const char *header,
                                     const void *data, size_t data_size)
{
    char path[1024];
    size_t size;
    uint8_t *file = build_file(header, strlen(header), data, data_size, &size);
    snprintf(path, sizeof path, "%s/%s", directory, name);
    write_bytes(path, file, size);
    free(file);
}

/* Creates a directory under $TMPDIR. */
static inline const char *make_directory(char out[256])
{
    const char *base = getenv("TMPDIR");
    snprintf(out, 256, "%s/nibble-test-XXXXXX", base == NULL ? "/tmp" : base);
    if (mkdtemp(out) == NULL)
        abort();
    return out;
}

static inline void drop_directory(const char *directory)
{
    if (nib__path_remove(directory, NULL) != NIB_OK)
        abort();
}

#endif
