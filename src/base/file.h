/* SPDX-License-Identifier: Apache-2.0
 *
 * Files: read-only maps, whole small files, and outputs that appear complete or not at all.
 */
#ifndef NIB_FILE_H
#define NIB_FILE_H

#include "hash.h"
#include "text.h"

typedef struct nib_map {
    const uint8_t *at;
    uint64_t size;
    uint64_t device, inode; /* which file, and when it was last written */
    int64_t modified_ns;
} nib_map;

/* Maps a regular file (a FIFO, directory or device is an error). An empty file gives size 0, at
 * NULL. */
nib_status nib__map_open(nib_map *out, const char *path, nib_err *err);
/* The same at a huge-page boundary, for files that are read again and again. */
nib_status nib__map_open_wide(nib_map *out, const char *path, nib_err *err);
/* Returns `status`, the result of reading from the map, or NIB_IO if another process has written to
 * the file since it was mapped: that explains an error and invalidates a result. The map of a file
 * that was replaced or removed is still whole. */
nib_status nib__map_read(const nib_map *map, const char *path, nib_status status, nib_err *err);
void nib__map_close(nib_map *map);
/* Tells the system that these bytes will not be read again soon; whole pages inside only. */
void nib__map_release(const void *at, uint64_t size);

/* Reads a whole file of at most `limit` bytes; a NUL follows the *size bytes. Free with
 * nib__release. */
nib_status nib__file_read(char **out, size_t *size, const char *path, size_t limit,
                          const nib_allocator *a, nib_err *err);

typedef enum nib_path_kind {
    NIB_PATH_NONE,
    NIB_PATH_FILE,
    NIB_PATH_DIRECTORY,
    NIB_PATH_OTHER
} nib_path_kind;
/* NIB_PATH_FILE if the path cannot be looked at, so that opening it reports why. */
nib_path_kind nib__path_kind(const char *path);
/* Fails if the path cannot be looked at. */
nib_status nib__path_look(nib_path_kind *out, const char *path, nib_err *err);
bool nib__path_is_link(const char *path);       /* a symbolic one */
bool nib__path_writable(const char *directory); /* by its permissions */
/* Bytes that this user may still write on the file system of a path. */
nib_status nib__disk_free(uint64_t *out, const char *path, nib_err *err);
/* directory + "/" + name in the arena; NULL: no memory. */
char *nib__path_join(nib_arena *arena, const char *directory, const char *name);
const char *nib__path_name(const char *path); /* past the last slash */
/* What is before the name, "." if nothing is; NULL: no memory. */
const char *nib__path_directory(nib_arena *arena, const char *path);
/* Both exist and are the same file, also through links. */
bool nib__path_same(const char *a, const char *b);
/* Hashes the absolute path without links if the file exists, else the text. */
nib_hash nib__path_hash(const char *path);
/* The size of the path up to its last component, without trailing slashes: 1 of "a/b/", 0 of "a",
 * 1 of "/". */
size_t nib__path_parent(const char *path);
/* True if path, which need not exist yet, is the directory or is inside it at any depth. */
bool nib__path_within(const char *path, const char *directory);
nib_status nib__directory_make(const char *path, nib_err *err);
/* Makes the missing parents too; all are synced when this returns. An existing directory is not an
 * error. */
nib_status nib__directories_make(const char *path, nib_err *err);
/* Calls `each` for every name in a directory, in any order; does nothing if it does not exist. */
nib_status nib__directory_each(const char *path, void (*each)(void *ctx, const char *name),
                               void *ctx, nib_err *err);
/* Removes a file, or a directory with the plain files in it. A directory that holds a directory is
 * left alone, with an error. A missing path is not an error. */
nib_status nib__path_remove(const char *path, nib_err *err);
bool nib__directory_is_empty(const char *path); /* false if it cannot be listed */
/* Would nib__path_remove refuse? Checks without removing anything. */
nib_status nib__path_removable(const char *path, nib_err *err);

/* Allocates the space of a file of `size` bytes; false with errno on failure. */
bool nib__fd_allocate(int fd, uint64_t size);
/* NIB_IO with "PATH: cannot ACTION: <errno's text>". */
nib_status nib__file_fail(nib_err *err, const char *path, const char *action);

/* ---- one output file: buffered, short writes and EINTR handled ---- */

typedef struct nib_output nib_output;

/* Creates path (which must not exist) for writing. Until it is finished, a mark replaces the first
 * 8 bytes of the file, so no reader accepts it. */
nib_status nib__output_open(nib_output **out, const char *path, const nib_allocator *a,
                            nib_err *err);
nib_status nib__output_write(nib_output *output, const void *bytes, size_t size, nib_err *err);
/* Overwrites bytes already written, at an offset: for headers whose sizes are known last. */
nib_status nib__output_patch(nib_output *output, uint64_t offset, const void *bytes, size_t size,
                             nib_err *err);
/* Extends the file to `size` bytes, so that any part of it can be patched. Allocates the space now
 * if the file system can, so that a full disk is an error before the work, not after it. */
nib_status nib__output_extend(nib_output *output, uint64_t size, nib_err *err);
uint64_t nib__output_offset(const nib_output *output);
/* Flushes, fsyncs and closes; frees output even on failure. */
nib_status nib__output_finish(nib_output *output, nib_err *err);
/* Closes without finishing; frees output. The unfinished file stays until nib__path_remove. */
void nib__output_abandon(nib_output *output);

/* Writes a whole new file, synced when this returns. */
nib_status nib__file_write(const char *path, const void *bytes, size_t size, const nib_allocator *a,
                           nib_err *err);

/* The same, but replaces an existing file at once; if the process is killed, the old file stays.
 * NIB_EXISTS: the path is a directory, a device or a pipe. */
nib_status nib__file_replace(const char *path, const void *bytes, size_t size,
                             const nib_allocator *a, nib_err *err);
/* Checks, before there is anything to write, whether nib__file_replace may write there: the path's
 * kind and its directory. */
nib_status nib__file_may_replace(const char *path, nib_err *err);

/* ---- a file that grows by lines ---- */

/* Opens path, which may exist, to append after its first `keep` bytes; the rest is cut off. Syncs
 * its name. */
nib_status nib__append_open(int *fd, const char *path, uint64_t keep, nib_err *err);
/* Appends in one system call, so that a killed process leaves at most its last line torn. */
nib_status nib__append(int fd, const char *path, const void *bytes, size_t size, nib_err *err);
nib_status nib__append_sync(int fd, const char *path, nib_err *err); /* what was appended */
void nib__append_close(int fd);                                      /* negative: no file */

/* ---- locks and names ---- */

/* Locks a file while an output is being written; NIB_EXISTS if another process holds the lock. The
 * lock of a killed process is released. *fd is for release, negative if the file system has no
 * locks. */
nib_status nib__lock_take(int *fd, const char *path, nib_err *err);
void nib__lock_release(int fd, const char *path);

/* Chooses the temporary path of an output: path + end ("model.part"), or with a number if another
 * file has that name. Removes what a killed run left there, which it knows by the mark of an
 * unfinished output, and an empty directory; nothing else. */
enum { NIB_PART_PATH = 4096 };
#define NIB_PART_MARK ".nibble-part"
nib_status nib__part_choose(char out[NIB_PART_PATH], const char *path, const char *end,
                            nib_err *err);
/* Makes a temporary directory with the mark as a file in it; nib__publish removes the mark. */
nib_status nib__part_directory(const char *path, nib_err *err);

/* rename(from, to), then fsync of the directory that holds `to`. With replace, an existing file or
 * one-level directory `to` is replaced: if the process is killed at any moment, the old or the new
 * one has the name. */
nib_status nib__publish(const char *from, const char *to, bool replace, nib_err *err);
/* The fallback of nib__publish for directories if the system cannot exchange two names in one step:
 * renames the old one to TO.old first, or with a number if that is taken. A kill may leave it
 * there. */
nib_status nib__publish_aside(const char *from, const char *to, nib_err *err);

#endif
