/* SPDX-License-Identifier: Apache-2.0
 *
 * Writes files: one buffered output, and publishing, which gives a finished file or directory its
 * name in one step. file.c reads files and handles paths.
 */
#include "file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#if defined(__linux__)
#include <sys/syscall.h>
#endif

enum {
    BUFFER = 1 << 20,
    LARGEST_WRITE = 1 << 30,
    HEAD = 8, /* bytes that identify a file: GGUF's magic, the size of safetensors' header */
};

/* A file begins with this until it is finished. Read as a header's size, it exceeds any file. */
static const char unfinished[HEAD] = {'n', 'i', 'b', 'p', 'a', 'r', 't', '\n'};

struct nib_output {
    nib_allocator allocator;
    char *path;
    uint8_t *buffer; /* [BUFFER] */
    size_t used;
    uint64_t written;   /* bytes given to the system */
    uint8_t head[HEAD]; /* the file's first bytes, written last */
    int fd;
    bool failed;      /* a failed write cannot be repaired: finish fails too */
    bool mark_synced; /* the mark is on the disk */
};

/* Retries if a signal interrupts the call. */
static int open_retrying(const char *path, int flags)
{
    int fd;
    do {
        fd = open(path, flags | O_CLOEXEC, 0666);
    } while (fd < 0 && errno == EINTR);
    return fd;
}

static void output_free(nib_output *output)
{
    const nib_allocator a = output->allocator;
    nib__release(&a, output->path);
    nib__release(&a, output->buffer);
    nib__release(&a, output);
}

static nib_status fail_write(nib_output *output, nib_err *err)
{
    output->failed = true;
    return nib__file_fail(err, output->path, "write to it");
}

/* Syncs to the disk. Some file systems cannot sync and return EINVAL. */
static bool sync_fd(int fd)
{
#if defined(F_FULLFSYNC)
    if (fcntl(fd, F_FULLFSYNC) == 0)
        return true;
#endif
    int result;
    do {
        result = fsync(fd);
    } while (result != 0 && errno == EINTR);
    return result == 0 || errno == EINVAL || errno == ENOTSUP;
}

static bool truncate_fd(int fd, uint64_t size)
{
    int result;
    do {
        result = ftruncate(fd, (off_t)size);
    } while (result != 0 && errno == EINTR);
    return result == 0;
}

/* Writes all bytes at an offset, in as many calls as needed. */
static nib_status write_all(nib_output *output, uint64_t offset, const uint8_t *bytes, size_t size,
                            nib_err *err)
{
    while (size > 0) {
        const size_t piece = size < LARGEST_WRITE ? size : LARGEST_WRITE;
        const ssize_t n = pwrite(output->fd, bytes, piece, (off_t)offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (n == 0)
            errno = ENOSPC; /* no progress and no error: nothing else explains it */
        if (n <= 0)
            return fail_write(output, err);
        bytes += n;
        offset += (uint64_t)n;
        size -= (size_t)n;
    }
    return NIB_OK;
}

nib_status nib__output_open(nib_output **out, const char *path, const nib_allocator *a,
                            nib_err *err)
{
    nib_output *output = nib__calloc(a, 1, sizeof *output);
    if (output == NULL)
        return nib__fail_memory(err, sizeof *output, path);
    const size_t path_size = strlen(path) + 1;
    output->allocator = *a;
    output->path = nib__calloc(a, path_size, 1);
    output->buffer = nib__calloc(a, BUFFER, 1);
    if (output->path == NULL || output->buffer == NULL) {
        output_free(output);
        return nib__fail_memory(err, path_size + BUFFER, path);
    }
    memcpy(output->path, path, path_size);
    output->fd = open_retrying(path, O_WRONLY | O_CREAT | O_EXCL);
    if (output->fd < 0) {
        const nib_status status = errno == EEXIST
                                      ? nib__fail(err, NIB_EXISTS, "%s: exists already", path)
                                      : nib__file_fail(err, path, "create it");
        output_free(output);
        return status;
    }
    const nib_status status = write_all(output, 0, (const uint8_t *)unfinished, HEAD, err);
    if (status == NIB_OK) {
        *out = output;
    } else {
        nib__output_abandon(output);
        (void)unlink(path);
    }
    return status;
}

/* The mark of a large file is on the disk before the rest: after a power cut, too, the next run may
 * remove the file. */
static nib_status sync_mark(nib_output *output, uint64_t size, nib_err *err)
{
    if (output->mark_synced || size <= BUFFER)
        return NIB_OK;
    if (!sync_fd(output->fd))
        return fail_write(output, err);
    output->mark_synced = true;
    return NIB_OK;
}

/* Writes bytes at an offset, except those of the head, which are written last: a file left by a
 * killed process has the mark. */
static nib_status write_at(nib_output *output, uint64_t offset, const uint8_t *bytes, size_t size,
                           nib_err *err)
{
    const size_t room = offset < HEAD ? HEAD - (size_t)offset : 0;
    const size_t kept = size < room ? size : room;
    if (kept > 0)
        memcpy(output->head + offset, bytes, kept);
    NIB_TRY(sync_mark(output, offset + size, err));
    return write_all(output, offset + kept, bytes + kept, size - kept, err);
}

static nib_status flush(nib_output *output, nib_err *err)
{
    NIB_TRY(write_at(output, output->written, output->buffer, output->used, err));
    output->written += output->used;
    output->used = 0;
    return NIB_OK;
}

nib_status nib__output_write(nib_output *output, const void *bytes, size_t size, nib_err *err)
{
    if (output->failed)
        return nib__fail(err, NIB_IO, "%s: an earlier write failed", output->path);
    if (size > BUFFER - output->used)
        NIB_TRY(flush(output, err));
    if (size >= BUFFER) {
        NIB_TRY(write_at(output, output->written, bytes, size, err));
        output->written += size;
        return NIB_OK;
    }
    if (size != 0)
        memcpy(output->buffer + output->used, bytes, size);
    output->used += size;
    return NIB_OK;
}

nib_status nib__output_patch(nib_output *output, uint64_t offset, const void *bytes, size_t size,
                             nib_err *err)
{
    const uint64_t end = nib__output_offset(output);
    if (output->failed)
        return nib__fail(err, NIB_IO, "%s: an earlier write failed", output->path);
    if (offset > end || size > end - offset)
        return nib__fail(err, NIB_FAILED,
                         "%s: %llu bytes at offset %llu exceed the %llu written so far",
                         output->path, (unsigned long long)size, (unsigned long long)offset,
                         (unsigned long long)end);
    NIB_TRY(flush(output, err));
    return write_at(output, offset, bytes, size, err);
}

bool nib__fd_allocate(int fd, uint64_t size)
{
#if defined(__linux__)
    int result;
    do {
        result = fallocate(fd, 0, 0, (off_t)size);
    } while (result != 0 && errno == EINTR);
    if (result == 0 || (errno != EOPNOTSUPP && errno != ENOSYS))
        return result == 0;
#elif defined(F_PREALLOCATE)
    struct stat st;
    if (fstat(fd, &st) != 0)
        return false;
    fstore_t store = {.fst_flags = F_ALLOCATEALL,
                      .fst_posmode = F_PEOFPOSMODE,
                      .fst_length = (off_t)size - st.st_size};
    if (fcntl(fd, F_PREALLOCATE, &store) != 0 && errno == ENOSPC)
        return false;
#endif
    return truncate_fd(fd, size);
}

nib_status nib__output_extend(nib_output *output, uint64_t size, nib_err *err)
{
    if (output->failed)
        return nib__fail(err, NIB_IO, "%s: an earlier write failed", output->path);
    NIB_TRY(flush(output, err));
    if (size <= output->written)
        return NIB_OK;
    NIB_TRY(sync_mark(output, size, err));
    if (size > INT64_MAX)
        errno = EFBIG;
    if (size > INT64_MAX || !nib__fd_allocate(output->fd, size))
        return fail_write(output, err);
    output->written = size;
    return NIB_OK;
}

uint64_t nib__output_offset(const nib_output *output) { return output->written + output->used; }

/* Replaces the mark, which may be longer than the whole file. */
static nib_status write_head(nib_output *output, nib_err *err)
{
    const size_t size = output->written < HEAD ? (size_t)output->written : HEAD;
    NIB_TRY(write_all(output, 0, output->head, size, err));
    return output->written >= HEAD || truncate_fd(output->fd, output->written)
               ? NIB_OK
               : fail_write(output, err);
}

nib_status nib__output_finish(nib_output *output, nib_err *err)
{
    nib_status status = NIB_OK;
    if (output->failed)
        status = nib__fail(err, NIB_IO, "%s: an earlier write failed", output->path);
    else
        status = flush(output, err);
    /* the rest is on the disk before the head is written */
    for (int i = 0; i < 2 && status == NIB_OK; i++) {
        if (i == 1)
            status = write_head(output, err);
        if (status == NIB_OK && !sync_fd(output->fd))
            status = fail_write(output, err);
    }
    /* On Linux EINTR means that the descriptor is closed; closing must not be retried. */
    if (close(output->fd) != 0 && errno != EINTR && status == NIB_OK)
        status = nib__file_fail(err, output->path, "close it");
    output_free(output);
    return status;
}

void nib__output_abandon(nib_output *output)
{
    if (output == NULL)
        return;
    close(output->fd);
    output_free(output);
}

nib_status nib__file_write(const char *path, const void *bytes, size_t size, const nib_allocator *a,
                           nib_err *err)
{
    nib_output *output;
    NIB_TRY(nib__output_open(&output, path, a, err));
    nib_status status = nib__output_write(output, bytes, size, err);
    if (status == NIB_OK)
        status = nib__output_finish(output, err);
    else
        nib__output_abandon(output);
    if (status != NIB_OK)
        (void)unlink(path);
    return status;
}

/* ---- directories ---- */

static nib_status sync_directory(const char *path, nib_err *err)
{
    const int fd = open_retrying(path, O_RDONLY | O_DIRECTORY);
    if (fd < 0)
        return nib__file_fail(err, path, "open it");
    const bool synced = sync_fd(fd);
    const nib_status status = synced ? NIB_OK : nib__file_fail(err, path, "write it to the disk");
    close(fd);
    return status;
}

enum { PATH_SIZE = 4096 };

/* The directory that holds path; ignores trailing slashes. */
static nib_status find_parent(char parent[PATH_SIZE], const char *path, nib_err *err)
{
    const size_t size = nib__path_parent(path);
    if (size >= PATH_SIZE)
        return nib__fail(err, NIB_IO, "%s: the path is too long", path);
    snprintf(parent, PATH_SIZE, "%.*s", size == 0 ? 1 : (int)size, size == 0 ? "." : path);
    return NIB_OK;
}

static nib_status sync_parent(const char *path, nib_err *err)
{
    char parent[PATH_SIZE];
    NIB_TRY(find_parent(parent, path, err));
    return sync_directory(parent, err);
}

/* ---- a file that grows by lines ---- */

nib_status nib__append_open(int *fd, const char *path, uint64_t keep, nib_err *err)
{
    const int file = open_retrying(path, O_WRONLY | O_CREAT);
    if (file < 0)
        return nib__file_fail(err, path, "open it");
    struct stat st;
    const bool plain = fstat(file, &st) == 0 && S_ISREG(st.st_mode);
    if ((plain && !truncate_fd(file, keep)) || (plain && lseek(file, 0, SEEK_END) < 0)) {
        const nib_status status = nib__file_fail(err, path, "write to it");
        close(file);
        return status;
    }
    const nib_status status = plain ? sync_parent(path, err) : NIB_OK;
    if (status == NIB_OK)
        *fd = file;
    else
        close(file);
    return status;
}

nib_status nib__append(int fd, const char *path, const void *bytes, size_t size, nib_err *err)
{
    const uint8_t *at = bytes;
    while (size > 0) {
        const ssize_t n = write(fd, at, size);
        if (n < 0 && errno == EINTR)
            continue;
        if (n == 0)
            errno = ENOSPC;
        if (n <= 0)
            return nib__file_fail(err, path, "write to it");
        at += n;
        size -= (size_t)n;
    }
    return NIB_OK;
}

nib_status nib__append_sync(int fd, const char *path, nib_err *err)
{
    return sync_fd(fd) ? NIB_OK : nib__file_fail(err, path, "write it to the disk");
}

void nib__append_close(int fd)
{
    if (fd >= 0)
        close(fd);
}

/* ---- one writer at a time ---- */

/* False if the last owner has removed the locked file in the meantime. */
static bool is_still_named(int fd, const char *path)
{
    struct stat opened, named;
    return fstat(fd, &opened) == 0 && stat(path, &named) == 0 && opened.st_dev == named.st_dev &&
           opened.st_ino == named.st_ino;
}

nib_status nib__lock_take(int *fd, const char *path, nib_err *err)
{
    enum { TRIES = 100 };
    *fd = -1;
    for (int i = 0; i < TRIES; i++) {
        const int file = open_retrying(path, O_RDWR | O_CREAT | O_NOFOLLOW);
        if (file < 0 && errno == ELOOP)
            return nib__fail(err, NIB_EXISTS,
                             "%s: is a symbolic link, so it cannot be a lock; remove it", path);
        if (file < 0)
            return NIB_OK; /* the next step fails and says why nothing can be written here */
        if (flock(file, LOCK_EX | LOCK_NB) != 0) {
            const bool taken = errno == EWOULDBLOCK;
            close(file);
            return taken
                       ? nib__fail(err, NIB_EXISTS,
                                   "%s: another process is writing there; wait for it to end", path)
                       : NIB_OK;
        }
        if (is_still_named(file, path)) {
            *fd = file;
            return NIB_OK;
        }
        close(file);
    }
    return nib__fail(err, NIB_EXISTS, "%s: other processes are writing there", path);
}

void nib__lock_release(int fd, const char *path)
{
    if (fd < 0)
        return;
    (void)unlink(path); /* before the unlock, or this would remove the next owner's */
    close(fd);
}

/* ---- parts ---- */

static bool has_mark(const char *path)
{
    char first[HEAD] = {0};
    const int fd = open_retrying(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
    const bool marked = fd >= 0 && read(fd, first, HEAD) == HEAD;
    if (fd >= 0)
        close(fd);
    return marked && memcmp(first, unfinished, HEAD) == 0;
}

/* Makes the path of the mark in a directory; false if it is too long. */
static bool format_mark_path(char out[NIB_PART_PATH], const char *directory)
{
    const int length = snprintf(out, NIB_PART_PATH, "%s/%s", directory, NIB_PART_MARK);
    return length > 0 && length < NIB_PART_PATH;
}

/* Is this file the mark of a directory? Its name is ours; after a power cut it may be empty, or
 * zeros. */
static bool is_mark(const char *mark)
{
    static const char zeros[HEAD];
    char bytes[HEAD + 1];
    const int fd = open_retrying(mark, O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
    const ssize_t size = fd < 0 ? -1 : read(fd, bytes, sizeof bytes);
    if (fd >= 0)
        close(fd);
    return size >= 0 && size <= HEAD &&
           (memcmp(bytes, zeros, (size_t)size) == 0 ||
            (size == HEAD && memcmp(bytes, unfinished, HEAD) == 0));
}

/* Is it an unfinished output? Links are not followed. */
static bool is_unfinished(const char *path, const struct stat *st)
{
    char mark[NIB_PART_PATH];
    return S_ISDIR(st->st_mode) ? format_mark_path(mark, path) && is_mark(mark)
                                : S_ISREG(st->st_mode) && has_mark(path);
}

nib_status nib__part_choose(char out[NIB_PART_PATH], const char *path, const char *end,
                            nib_err *err)
{
    enum { TRIES = 100 };
    struct stat st;
    for (int i = 1; i <= TRIES; i++) {
        const int length = i == 1 ? snprintf(out, NIB_PART_PATH, "%s%s", path, end)
                                  : snprintf(out, NIB_PART_PATH, "%s%s-%d", path, end, i);
        if (length < 0 || length >= NIB_PART_PATH)
            return nib__fail(err, NIB_IO, "%s: the path is too long", path);
        /* the path is free, or the next step fails and says why; a process killed between two calls
         * leaves an empty directory */
        if (lstat(out, &st) != 0 || rmdir(out) == 0)
            return NIB_OK;
        if (is_unfinished(out, &st))
            return nib__path_remove(out, err);
    }
    return nib__fail(err, NIB_EXISTS, "%s%s: it exists, and so do %d numbered ones; remove them",
                     path, end, TRIES - 1);
}

/* No sync: after a power cut the mark may be empty, but it is there before the other entries. */
static nib_status write_mark(const char *directory, nib_err *err)
{
    char mark[NIB_PART_PATH];
    if (!format_mark_path(mark, directory))
        return nib__fail(err, NIB_IO, "%s: the path is too long", directory);
    if (is_mark(mark))
        return NIB_OK; /* a killed run or a power cut left it */
    const int fd = open_retrying(mark, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW);
    if (fd < 0)
        return nib__file_fail(err, mark, "create it");
    const nib_status status = nib__append(fd, mark, unfinished, HEAD, err);
    close(fd);
    if (status != NIB_OK)
        (void)unlink(mark);
    return status;
}

nib_status nib__part_directory(const char *path, nib_err *err)
{
    NIB_TRY(nib__directory_make(path, err));
    const nib_status status = write_mark(path, err);
    if (status != NIB_OK)
        (void)rmdir(path);
    return status;
}

/* From a published output, whose name is on the disk: otherwise a power cut could leave a part
 * without its mark. Does nothing for a plain file. */
static nib_status remove_mark(const char *directory, nib_err *err)
{
    char mark[NIB_PART_PATH];
    if (!format_mark_path(mark, directory) || unlink(mark) == 0 || errno == ENOENT ||
        errno == ENOTDIR)
        return NIB_OK;
    return nib__file_fail(err, mark, "remove it");
}

/* Marks a directory that will be replaced: if a kill or a power cut leaves it under another name, a
 * later run can tell that it may remove it. */
static nib_status mark_replaced(const char *path, nib_err *err)
{
    struct stat st;
    if (lstat(path, &st) != 0 || !S_ISDIR(st.st_mode))
        return NIB_OK;
    NIB_TRY(write_mark(path, err));
    return sync_directory(path, err);
}

/* ---- publishing ---- */

nib_status nib__directories_make(const char *path, nib_err *err)
{
    char part[4096];
    const size_t size = strlen(path);
    if (size >= sizeof part)
        return nib__fail(err, NIB_IO, "%s: the path is too long", path);
    for (size_t end = 1; end <= size; end++) {
        if (path[end] != '/' && path[end] != '\0')
            continue;
        memcpy(part, path, end);
        part[end] = '\0';
        if (mkdir(part, 0777) == 0) {
            NIB_TRY(sync_parent(part, err));
            continue;
        }
        const int why = errno;
        if (nib__path_kind(part) == NIB_PATH_DIRECTORY)
            continue;
        errno = why;
        return nib__file_fail(err, part, "create it");
    }
    return NIB_OK;
}

nib_status nib__publish_aside(const char *from, const char *to, nib_err *err)
{
    char aside[NIB_PART_PATH];
    NIB_TRY(nib__part_choose(aside, to, ".old", err));
    NIB_TRY(mark_replaced(to, err));
    if (rename(to, aside) != 0) {
        const nib_status status = nib__file_fail(err, to, "rename it");
        (void)remove_mark(to, NULL);
        return status;
    }
    if (rename(from, to) != 0) {
        const nib_status status = nib__file_fail(err, from, "rename it");
        (void)rename(aside, to); /* undo */
        (void)remove_mark(to, NULL);
        return status;
    }
    NIB_TRY(sync_parent(to, err));
    NIB_TRY(remove_mark(to, err));
    return nib__path_remove(aside, err);
}

#if defined(__linux__) && !defined(RENAME_EXCHANGE) /* musl before 1.2.6 */
#define RENAME_NOREPLACE 1
#define RENAME_EXCHANGE 2
static int renameat2(int from_folder, const char *from, int to_folder, const char *to, int how)
{
    return (int)syscall(SYS_renameat2, from_folder, from, to_folder, to, how);
}
#endif

/* Swaps two names in one step; false if the system or the file system cannot. */
static bool exchange_names(const char *a, const char *b)
{
#if defined(RENAME_EXCHANGE)
    return renameat2(AT_FDCWD, a, AT_FDCWD, b, RENAME_EXCHANGE) == 0;
#elif defined(RENAME_SWAP)
    return renamex_np(a, b, RENAME_SWAP) == 0;
#else
    (void)a;
    (void)b;
    return false;
#endif
}

/* rename, but an existing `to` is an error even if it appears during the call. */
static bool rename_new(const char *from, const char *to)
{
#if defined(RENAME_NOREPLACE)
    if (renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE) == 0)
        return true;
    if (errno != ENOSYS && errno != EINVAL)
        return false;
#elif defined(RENAME_EXCL)
    if (renamex_np(from, to, RENAME_EXCL) == 0)
        return true;
    if (errno != ENOTSUP && errno != EINVAL)
        return false;
#endif
    return rename(from, to) == 0;
}

nib_status nib__publish(const char *from, const char *to, bool replace, nib_err *err)
{
    struct stat source, target;
    if (lstat(from, &source) != 0)
        return nib__file_fail(err, from, "look at it");
    const bool exists = lstat(to, &target) == 0;
    if (!exists && errno != ENOENT)
        return nib__file_fail(err, to, "look at it");
    if (exists && !replace)
        return nib__fail(err, NIB_EXISTS, "%s: exists already", to);
    if (S_ISDIR(source.st_mode))
        NIB_TRY(sync_directory(from, err)); /* its entries must be on the disk before its name is */
    if (!exists) {
        if (!rename_new(from, to))
            return errno == EEXIST ? nib__fail(err, NIB_EXISTS, "%s: exists already", to)
                                   : nib__file_fail(err, from, "rename it");
        NIB_TRY(sync_parent(to, err));
        return remove_mark(to, err);
    }
    if (!S_ISDIR(source.st_mode) && !S_ISDIR(target.st_mode)) {
        if (rename(from, to) != 0)
            return nib__file_fail(err, from, "rename it");
        return sync_parent(to, err);
    }
    NIB_TRY(nib__path_removable(to, err)); /* before anything moves */
    NIB_TRY(mark_replaced(to, err));
    if (!exchange_names(from, to))
        return nib__publish_aside(from, to, err);
    NIB_TRY(sync_parent(to, err));
    NIB_TRY(remove_mark(to, err));
    return nib__path_remove(from, err);
}

nib_status nib__file_may_replace(const char *path, nib_err *err)
{
    char parent[PATH_SIZE];
    struct stat st;
    if (*path == '\0')
        return nib__fail(err, NIB_USAGE, "the path of the output file is empty");
    NIB_TRY(find_parent(parent, path, err));
    if (stat(parent, &st) != 0)
        return nib__file_fail(err, path, "create it");
    if (stat(path, &st) != 0 || S_ISREG(st.st_mode))
        return NIB_OK;
    if (S_ISDIR(st.st_mode))
        return nib__fail(err, NIB_EXISTS, "%s: is a directory; name a file", path);
    return nib__fail(err, NIB_EXISTS,
                     "%s: is a device or a pipe, which would be replaced; name a file", path);
}

nib_status nib__file_replace(const char *path, const void *bytes, size_t size,
                             const nib_allocator *a, nib_err *err)
{
    char part[NIB_PART_PATH];
    NIB_TRY(nib__file_may_replace(path, err));
    NIB_TRY(nib__part_choose(part, path, ".part", err));
    nib_status status = nib__file_write(part, bytes, size, a, err);
    const bool made = status == NIB_OK;
    if (made)
        status = nib__publish(part, path, true, err);
    if (made && status != NIB_OK)
        (void)nib__path_remove(part, NULL);
    return status;
}
