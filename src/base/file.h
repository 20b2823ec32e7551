/* SPDX-License-Identifier: Apache-2.0
 *
 * Files: read-only maps, whole small files, outputs that appear complete or not at all.
 */
#ifndef NIB_FILE_H
#define NIB_FILE_H

#include "hash.h"
#include "text.h"

typedef struct nib_map {
    const uint8_t *at;
    uint64_t size;
    uint64_t device, inode; /* which file it was, and when it was last written */
    int64_t modified_ns;
} nib_map;

/* Maps a regular file (a FIFO, directory or device is an error). An empty file gives size 0, at
 * NULL. */
nib_status nib__map_open(nib_map *out, const char *path, nib_err *err);
/* The same at a huge page's boundary, for what is read again and again. */
nib_status nib__map_open_wide(nib_map *out, const char *path, nib_err *err);
/* What reading from the map ended with, or NIB_IO if another process wrote to the file since it was
 * mapped: that explains an error, and makes a result void. A file that was replaced or removed is
 * still whole in its map. */
nib_status nib__map_read(const nib_map *map, const char *path, nib_status status, nib_err *err);
void nib__map_close(nib_map *map);
/* Tells the system that these bytes will not be read again soon; whole pages inside only. */
void nib__map_release(const void *at, uint64_t size);

/* A whole file, NUL-terminated past *size, at most `limit` bytes. Freed with nib__release. */
nib_status nib__file_read(char **out, size_t *size, const char *path, size_t limit,
                          const nib_allocator *a, nib_err *err);

typedef enum nib_path_kind {
    NIB_PATH_NONE,
    NIB_PATH_FILE,
    NIB_PATH_DIRECTORY,
    NIB_PATH_OTHER
} nib_path_kind;
nib_path_kind nib__path_kind(const char *path);
bool nib__path_writable(const char *directory); /* files can be made there, as far as shows */
/* directory + "/" + name in the arena; NULL: no memory. */
char *nib__path_join(nib_arena *arena, const char *directory, const char *name);
const char *nib__path_name(const char *path); /* past the last slash */
/* Both exist and are one file, through links, too. */
bool nib__path_same(const char *a, const char *b);
/* Of the absolute path without links, where there is such a file, else of the text. */
nib_hash nib__path_hash(const char *path);
/* True if path, which need not exist yet, is the directory or would lie anywhere inside it. */
bool nib__path_within(const char *path, const char *directory);
nib_status nib__directory_make(const char *path, nib_err *err);
/* With those above it that are missing; their names are on the disk when this returns. One that is
 * there is no error. */
nib_status nib__directories_make(const char *path, nib_err *err);
/* Every name in a directory, in no order; one that is not there has none. */
nib_status nib__directory_each(const char *path, void (*each)(void *ctx, const char *name),
                               void *ctx, nib_err *err);
/* Removes a file, or a directory with the plain files in it (one level deep; with a directory in it
 * nothing is removed). Nothing there is no error. */
nib_status nib__path_remove(const char *path, nib_err *err);
bool nib__directory_is_empty(const char *path); /* and can be listed */
/* Would it be removed, as far as can be seen? */
nib_status nib__path_removable(const char *path, nib_err *err);

/* NIB_IO with "PATH: cannot ACTION: <errno's text>". */
nib_status nib__file_fail(nib_err *err, const char *path, const char *action);

/* ---- one output file: buffered, short writes and EINTR handled ---- */

typedef struct nib_output nib_output;

/* Creates path (which must not exist) for writing. Until it is finished the file begins with a mark
 * in place of its first 8 bytes, so no reader accepts it. */
nib_status nib__output_open(nib_output **out, const char *path, const nib_allocator *a,
                            nib_err *err);
nib_status nib__output_write(nib_output *output, const void *bytes, size_t size, nib_err *err);
/* Overwrites bytes already written, at an offset (headers with sizes known last). */
nib_status nib__output_patch(nib_output *output, uint64_t offset, const void *bytes, size_t size,
                             nib_err *err);
/* Makes the file `size` bytes long, so that any part of it can be patched in. The space is taken
 * now where the file system can, so that a full disk is seen before the work is done. */
nib_status nib__output_extend(nib_output *output, uint64_t size, nib_err *err);
uint64_t nib__output_offset(const nib_output *output);
/* Flushes, fsyncs and closes; frees output whatever happens. */
nib_status nib__output_finish(nib_output *output, nib_err *err);
/* Closes without a promise; frees output. The file stays for nib__path_remove. */
void nib__output_abandon(nib_output *output);

/* A whole new file, on the disk when this returns. */
nib_status nib__file_write(const char *path, const void *bytes, size_t size, const nib_allocator *a,
                           nib_err *err);

/* The same under a name that may be taken by a file: it appears complete or not at all, and a kill
 * leaves the old one. NIB_EXISTS: a directory, a device or a pipe has the name. */
nib_status nib__file_replace(const char *path, const void *bytes, size_t size,
                             const nib_allocator *a, nib_err *err);
/* What of that is known before there is anything to write: and is there a directory for it? */
nib_status nib__file_may_replace(const char *path, nib_err *err);

/* ---- a file that grows by lines ---- */

/* Opens path, which may exist, to write behind its first `keep` bytes; what else was there is cut
 * off. */
nib_status nib__append_open(int *fd, const char *path, uint64_t keep, nib_err *err);
/* In one call of the system, so that a killed process leaves at most its last line torn. */
nib_status nib__append(int fd, const char *path, const void *bytes, size_t size, nib_err *err);
void nib__append_close(int fd); /* negative: there is none */

/* ---- locks and names ---- */

/* Takes a file as the sign that an output is being written; NIB_EXISTS if another process has it. A
 * killed process loses it. *fd is for release, negative where the file system knows no locks. */
nib_status nib__lock_take(int *fd, const char *path, nib_err *err);
void nib__lock_release(int fd, const char *path);

/* Where an output is written before it has its name: path + end ("model.part"), or with a number
 * where somebody else's file has that name. What a killed run left bears the mark of an unfinished
 * output and is removed; so is an empty directory. Nothing else is. */
enum { NIB_PART_PATH = 4096 };
#define NIB_PART_MARK ".nibble-part"
nib_status nib__part_choose(char out[NIB_PART_PATH], const char *path, const char *end,
                            nib_err *err);
/* Makes such a directory, with a file in it that is the mark; nib__publish takes it away. */
nib_status nib__part_directory(const char *path, nib_err *err);

/* rename(from, to), then fsync of the directory that holds `to`. With replace, an existing file or
 * one-level directory `to` gives way: a kill at any moment leaves the old or the new one under the
 * name. */
nib_status nib__publish(const char *from, const char *to, bool replace, nib_err *err);
/* What publish does with directories where names cannot be exchanged in one step: the old one is
 * renamed to TO.old first, or with a number where that is taken, so that a kill may leave it there.
 */
nib_status nib__publish_aside(const char *from, const char *to, nib_err *err);

#endif
