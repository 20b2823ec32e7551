/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads files, as maps or whole small files; paths. output.c writes.
 *
 * If another process shortens a mapped file, reading the lost pages raises SIGBUS; the program
 * survives that (cli/terminal.c), and nib__map_read then names the file. Nibble itself replaces
 * checkpoints by rename, never in place, so it does not cause this.
 */
#include "file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

_Static_assert(sizeof(off_t) == 8, "files over 2 GiB need 64-bit offsets: -D_FILE_OFFSET_BITS=64");

nib_status nib__file_fail(nib_err *err, const char *path, const char *action)
{
    const int code = errno;
    char buffer[128];
#if defined(__GLIBC__)
    const char *reason = strerror_r(code, buffer, sizeof buffer);
#else
    const char *reason = strerror_r(code, buffer, sizeof buffer) == 0 ? buffer : "unknown reason";
#endif
    const char *remedy = code == ENOSPC ? "; free some space there, or write to another disk" : "";
    return nib__fail(err, NIB_IO, "%s: cannot %s: %s%s", path, action, reason, remedy);
}

/* Opens a regular file. O_NONBLOCK, because opening a FIFO waits for its writer. */
static nib_status open_regular(int *out, struct stat *st, const char *path, nib_err *err)
{
    int fd;
    do {
        fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    } while (fd < 0 && errno == EINTR);
    if (fd < 0)
        return nib__file_fail(err, path, "open it");
    if (fstat(fd, st) != 0) {
        const nib_status status = nib__file_fail(err, path, "read its size");
        close(fd);
        return status;
    }
    if (!S_ISREG(st->st_mode)) {
        close(fd);
        return nib__fail(err, NIB_IO, "%s: is %s, not a regular file", path,
                         S_ISDIR(st->st_mode)    ? "a directory"
                         : S_ISFIFO(st->st_mode) ? "a pipe"
                                                 : "a device or socket");
    }
    *out = fd;
    return NIB_OK;
}

static int64_t modified_ns(const struct stat *st)
{
#ifdef __APPLE__
    const struct timespec at = st->st_mtimespec;
#else
    const struct timespec at = st->st_mtim;
#endif
    return (int64_t)((uint64_t)at.tv_sec * 1000000000u + (uint64_t)at.tv_nsec); /* only compared */
}

/* Maps a whole file: if `wide`, at a huge-page boundary, so that the map can use huge pages of the
 * page cache. MAP_FAILED with errno. */
static void *map_file(int fd, size_t size, bool wide)
{
    enum { HUGE_PAGE = 2 << 20 };
    if (!wide)
        return mmap(NULL, size, PROT_READ, MAP_PRIVATE, fd, 0);
    char *room = mmap(NULL, size + HUGE_PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (room == MAP_FAILED)
        return room;
    const size_t before = (HUGE_PAGE - (uintptr_t)room % HUGE_PAGE) % HUGE_PAGE;
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), whole = (size + page - 1) / page * page;
    void *at = mmap(room + before, size, PROT_READ, MAP_PRIVATE | MAP_FIXED, fd, 0);
    if (at == MAP_FAILED) {
        munmap(room, size + HUGE_PAGE);
        return at;
    }
    if (before != 0)
        munmap(room, before);
    if (room + size + HUGE_PAGE > room + before + whole)
        munmap(room + before + whole, HUGE_PAGE - before - (whole - size));
#if defined(MADV_HUGEPAGE)
    (void)madvise(at, size, MADV_HUGEPAGE); /* a hint */
#endif
    return at;
}

static nib_status open_map(nib_map *out, const char *path, bool wide, nib_err *err)
{
    int fd;
    struct stat st;
    NIB_TRY(open_regular(&fd, &st, path, err));
    nib_status status = NIB_OK;
    void *at = NULL;
    const uint64_t size = (uint64_t)st.st_size;
    if (size > SIZE_MAX / 2) {
        status = nib__fail(err, NIB_UNSUPPORTED, "%s: is larger than this machine's address space",
                           path);
    } else if (size != 0) {
        at = map_file(fd, (size_t)size, wide);
        if (at == MAP_FAILED && errno == ENOMEM) /* also if addresses run out */
            status = nib__fail(err, NIB_NO_MEMORY, "%s: out of memory: cannot map the file", path);
        else if (at == MAP_FAILED)
            status = nib__file_fail(err, path, "map it into memory");
    }
    close(fd);
    if (status == NIB_OK)
        *out = (nib_map){at, size, (uint64_t)st.st_dev, (uint64_t)st.st_ino, modified_ns(&st)};
    return status;
}

nib_status nib__map_open(nib_map *out, const char *path, nib_err *err)
{
    return open_map(out, path, false, err);
}

nib_status nib__map_open_wide(nib_map *out, const char *path, nib_err *err)
{
    return open_map(out, path, true, err);
}

nib_status nib__map_read(const nib_map *map, const char *path, nib_status status, nib_err *err)
{
    struct stat st;
    char shown[160];
    if (stat(path, &st) != 0 || (uint64_t)st.st_dev != map->device ||
        (uint64_t)st.st_ino != map->inode)
        return status;
    const uint64_t size = (uint64_t)st.st_size;
    if (size == map->size && modified_ns(&st) == map->modified_ns)
        return status;
    return nib__fail(err, NIB_IO,
                     "%s: another process wrote to the file while it was being read (%llu bytes "
                     "before, %llu now%s); run again when that process has finished",
                     nib__escape_name(shown, sizeof shown, path, strlen(path)),
                     (unsigned long long)map->size, (unsigned long long)size,
                     size == map->size ? ", but a later time" : "");
}

void nib__map_close(nib_map *map)
{
    if (map->at != NULL)
        munmap((void *)(uintptr_t)map->at, (size_t)map->size);
    *map = (nib_map){0};
}

void nib__map_release(const void *at, uint64_t size)
{
    const long known = sysconf(_SC_PAGESIZE);
    const uintptr_t page = known > 0 ? (uintptr_t)known : 4096;
    const uintptr_t end = ((uintptr_t)at + (uintptr_t)size) / page * page;
    const uintptr_t begin = ((uintptr_t)at + page - 1) / page * page;
    if (begin < end)
        (void)madvise((void *)begin, end - begin, MADV_DONTNEED); /* only a hint */
}

/* Reads until the end or until `want` bytes; *got counts them. */
static bool read_all(int fd, char *to, size_t want, size_t *got)
{
    while (*got < want) {
        const ssize_t n = read(fd, to + *got, want - *got);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n == 0;
        *got += (size_t)n;
    }
    return true;
}

nib_status nib__file_read(char **out, size_t *size, const char *path, size_t limit,
                          const nib_allocator *a, nib_err *err)
{
    int fd;
    struct stat st;
    NIB_TRY(open_regular(&fd, &st, path, err));
    nib_status status = NIB_OK;
    const uint64_t stated = (uint64_t)st.st_size;
    void *text = NULL;
    size_t capacity = 0, got = 0;
    /* The size may be wrong (files of /proc report 0), so read until the end of the file. */
    if (limit > SIZE_MAX / 2)
        limit = SIZE_MAX / 2;
    size_t want = stated < limit ? (size_t)stated + 1 : limit + 1;
    for (;;) {
        if (!nib__reserve(a, &text, &capacity, want + 1, 1))
            status = nib__fail_memory(err, want, path);
        else if (!read_all(fd, text, want, &got))
            status = nib__file_fail(err, path, "read it");
        else if (got > limit)
            status =
                nib__fail(err, NIB_BAD_INPUT, "%s: is %llu bytes or more, over the limit of %llu",
                          path, (unsigned long long)nib__max((int64_t)stated, (int64_t)got),
                          (unsigned long long)limit);
        if (status != NIB_OK || got < want)
            break;
        want = got < limit / 2 ? 2 * got : limit + 1;
    }
    close(fd);
    if (status != NIB_OK) {
        nib__release(a, text);
        return status;
    }
    ((char *)text)[got] = 0;
    *out = text;
    *size = got;
    return NIB_OK;
}

/* ---- paths ---- */

nib_status nib__path_look(nib_path_kind *out, const char *path, nib_err *err)
{
    struct stat st;
    *out = NIB_PATH_NONE;
    if (stat(path, &st) == 0)
        *out = S_ISREG(st.st_mode)   ? NIB_PATH_FILE
               : S_ISDIR(st.st_mode) ? NIB_PATH_DIRECTORY
                                     : NIB_PATH_OTHER;
    else if (errno != ENOENT && errno != ENOTDIR)
        return nib__file_fail(err, path, "look at it");
    return NIB_OK;
}

nib_path_kind nib__path_kind(const char *path)
{
    nib_path_kind kind;
    return nib__path_look(&kind, path, NULL) == NIB_OK ? kind : NIB_PATH_FILE;
}

bool nib__path_is_link(const char *path)
{
    struct stat st;
    return lstat(path, &st) == 0 && S_ISLNK(st.st_mode);
}

bool nib__path_writable(const char *directory) { return access(directory, W_OK | X_OK) == 0; }

nib_status nib__disk_free(uint64_t *out, const char *path, nib_err *err)
{
    struct statvfs st;
    if (statvfs(path, &st) != 0)
        return nib__file_fail(err, path, "find the free space there");
    if (!nib__mul(out, (uint64_t)st.f_bavail, (uint64_t)st.f_frsize))
        *out = UINT64_MAX;
    return NIB_OK;
}

const char *nib__path_directory(nib_arena *arena, const char *path)
{
    const size_t size = (size_t)(nib__path_name(path) - path);
    return size == 0 ? "." : nib__arena_copy(arena, path, size);
}

char *nib__path_join(nib_arena *arena, const char *directory, const char *name)
{
    const size_t head = strlen(directory), tail = strlen(name);
    const size_t slash = head != 0 && directory[head - 1] != '/';
    char *path = nib__arena_take(arena, head + slash + tail + 1, 1);
    if (path == NULL)
        return NULL;
    memcpy(path, directory, head);
    if (slash)
        path[head] = '/';
    memcpy(path + head + slash, name, tail);
    return path;
}

const char *nib__path_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash == NULL ? path : slash + 1;
}

static bool same_file(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

nib_hash nib__path_hash(const char *path)
{
    char *whole = realpath(path, NULL);
    const char *text = whole != NULL ? whole : path;
    const nib_hash hash = nib__hash_bytes(text, strlen(text));
    free(whole);
    return hash;
}

bool nib__path_same(const char *a, const char *b)
{
    struct stat a_stat, b_stat;
    return stat(a, &a_stat) == 0 && stat(b, &b_stat) == 0 && same_file(&a_stat, &b_stat);
}

size_t nib__path_parent(const char *path)
{
    size_t size = strlen(path);
    while (size > 1 && path[size - 1] == '/')
        size--;
    while (size > 0 && path[size - 1] != '/')
        size--;
    while (size > 1 && path[size - 1] == '/')
        size--;
    return size;
}

/* Removes the last component: "a/b/" becomes "a", "a" becomes "."; false for "/" and ".". */
static bool cut_component(char *path)
{
    const size_t size = nib__path_parent(path);
    if (size == 0) {
        const bool was_dot = strcmp(path, ".") == 0;
        memcpy(path, ".", 2);
        return !was_dot;
    }
    const bool shorter = path[size] != 0;
    path[size] = 0;
    return shorter;
}

bool nib__path_within(const char *path, const char *directory)
{
    char at[4096];
    struct stat here, above, wanted;
    const size_t size = strlen(path);
    if (size >= sizeof at || stat(directory, &wanted) != 0)
        return false;
    memcpy(at, path, size + 1);
    while (stat(at, &here) != 0 || !S_ISDIR(here.st_mode))
        if (!cut_component(at))
            return false;
    for (;;) {
        if (same_file(&here, &wanted))
            return true;
        const size_t used = strlen(at);
        if (used + sizeof "/.." > sizeof at)
            return false;
        memcpy(at + used, "/..", sizeof "/..");
        if (stat(at, &above) != 0 || same_file(&above, &here))
            return false; /* the root */
        here = above;
    }
}

nib_status nib__directory_make(const char *path, nib_err *err)
{
    return mkdir(path, 0777) == 0 ? NIB_OK : nib__file_fail(err, path, "create it");
}

nib_status nib__directory_each(const char *path, void (*each)(void *ctx, const char *name),
                               void *ctx, nib_err *err)
{
    DIR *directory = opendir(path);
    if (directory == NULL)
        return errno == ENOENT ? NIB_OK : nib__file_fail(err, path, "open it");
    const struct dirent *entry;
    while (errno = 0, (entry = readdir(directory)) != NULL)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            each(ctx, entry->d_name);
    const nib_status status = errno == 0 ? NIB_OK : nib__file_fail(err, path, "list it");
    closedir(directory);
    return status;
}

/* Visits the entries of an open directory: fails if one is a directory, or unlinks them all. */
static nib_status each_entry(DIR *directory, const char *path, bool unlink_them, nib_err *err)
{
    rewinddir(directory);
    for (;;) {
        errno = 0;
        const struct dirent *entry = readdir(directory);
        if (entry == NULL)
            return errno == 0 ? NIB_OK : nib__file_fail(err, path, "list it");
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        if (unlink_them) {
            if (strcmp(entry->d_name, NIB_PART_MARK) == 0)
                continue; /* comes last: a killed process leaves a marked directory */
            if (unlinkat(dirfd(directory), entry->d_name, 0) != 0)
                return nib__file_fail(err, path, "remove a file in it");
            continue;
        }
        struct stat st;
        if (fstatat(dirfd(directory), entry->d_name, &st, AT_SYMLINK_NOFOLLOW) != 0)
            return nib__file_fail(err, path, "look at a file in it");
        if (S_ISDIR(st.st_mode)) {
            char safe[128];
            return nib__fail(
                err, NIB_IO,
                "%s: not removed, because it holds the directory %s; remove it by hand", path,
                nib__escape_name(safe, sizeof safe, entry->d_name, strlen(entry->d_name)));
        }
    }
}

static nib_status empty_directory(const char *path, bool unlink_them, nib_err *err)
{
    DIR *directory = opendir(path);
    if (directory == NULL)
        return nib__file_fail(err, path, "open it");
    nib_status status = each_entry(directory, path, false, err);
    if (status == NIB_OK && unlink_them)
        status = each_entry(directory, path, true, err);
    if (status == NIB_OK && unlink_them && unlinkat(dirfd(directory), NIB_PART_MARK, 0) != 0 &&
        errno != ENOENT)
        status = nib__file_fail(err, path, "remove a file in it");
    closedir(directory);
    return status;
}

bool nib__directory_is_empty(const char *path)
{
    DIR *directory = opendir(path);
    const struct dirent *entry = NULL;
    if (directory == NULL)
        return false;
    do
        entry = readdir(directory);
    while (entry != NULL && (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0));
    closedir(directory);
    return entry == NULL;
}

nib_status nib__path_removable(const char *path, nib_err *err)
{
    struct stat st;
    if (lstat(path, &st) != 0)
        return errno == ENOENT ? NIB_OK : nib__file_fail(err, path, "look at it");
    return S_ISDIR(st.st_mode) ? empty_directory(path, false, err) : NIB_OK;
}

nib_status nib__path_remove(const char *path, nib_err *err)
{
    struct stat st;
    if (lstat(path, &st) != 0)
        return errno == ENOENT ? NIB_OK : nib__file_fail(err, path, "look at it");
    if (S_ISDIR(st.st_mode)) {
        NIB_TRY(empty_directory(path, true, err));
        return rmdir(path) == 0 ? NIB_OK : nib__file_fail(err, path, "remove it");
    }
    return unlink(path) == 0 ? NIB_OK : nib__file_fail(err, path, "remove it");
}
