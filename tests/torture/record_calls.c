/* SPDX-License-Identifier: Apache-2.0
 *
 * A library for LD_PRELOAD that records, in order, every call that changes files under one
 * directory, with its bytes, for tests/torture/power_cut. It serializes these calls.
 *
 * RECORD_ROOT: the directory, absolute and without links. RECORD_LOG: the log, outside it.
 * RECORD_NO_EXCHANGE: renameat2 cannot exchange two names, as on file systems without that.
 * RECORD_NO_SYNC: fsync is recorded, but the system does not sync: a test simulates the disk.
 *
 * A record: a line "CALL PID FD A B P Q D", then P bytes of a path relative to the root, Q of a
 * second path, D of data. A and B: flags and "created" (open), offset and size (write, truncate,
 * allocate), flags (rename).
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { FILES = 1 << 16 };

static char root[PATH_MAX];
static int log_fd = -1;
static bool no_exchange, no_sync, inside[FILES]; /* inside: descriptors of files under the root */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

__attribute__((constructor)) static void begin(void)
{
    const char *directory = getenv("RECORD_ROOT"), *log = getenv("RECORD_LOG");
    no_exchange = getenv("RECORD_NO_EXCHANGE") != NULL;
    no_sync = getenv("RECORD_NO_SYNC") != NULL;
    if (directory == NULL || log == NULL)
        return;
    snprintf(root, sizeof root, "%s", directory);
    log_fd =
        (int)syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
}

static void put(const void *bytes, size_t size)
{
    const char *at = bytes;
    while (size > 0) {
        const ssize_t n = syscall(SYS_write, log_fd, at, size);
        if (n <= 0)
            abort(); /* an incomplete log must not look complete */
        at += n;
        size -= (size_t)n;
    }
}

static void record(const char *call, int fd, int64_t a, int64_t b, const char *path,
                   const char *other, const void *data, size_t size)
{
    char line[256];
    const int why = errno;
    const int length =
        snprintf(line, sizeof line, "%s %d %d %lld %lld %zu %zu %zu\n", call, (int)getpid(), fd,
                 (long long)a, (long long)b, strlen(path), strlen(other), size);
    put(line, (size_t)length);
    put(path, strlen(path));
    put(other, strlen(other));
    put(data, size);
    errno = why;
}

/* out: the path relative to the root, "." for the root itself. False if it is elsewhere. */
static bool find(char out[PATH_MAX], int directory, const char *path)
{
    char full[2 * PATH_MAX], whole[PATH_MAX], link[64];
    const int why = errno;
    size_t used = 0;
    bool found = log_fd >= 0;
    if (found && *path != '/' && directory == AT_FDCWD) {
        found = getcwd(full, PATH_MAX) != NULL;
        used = found ? strlen(full) : 0;
    } else if (found && *path != '/') {
        snprintf(link, sizeof link, "/proc/self/fd/%d", directory);
        const ssize_t n = readlink(link, full, PATH_MAX);
        found = n > 0;
        used = found ? (size_t)n : 0;
    }
    if (found) {
        snprintf(full + used, sizeof full - used, "/%s", path);
        for (used = strlen(full); used > 1 && full[used - 1] == '/'; used--)
            full[used - 1] = '\0';
        char *name = strrchr(full, '/');
        *name++ = '\0'; /* the parent exists; the last component need not, and may be a link */
        found = realpath(*full != '\0' ? full : "/", whole) != NULL;
        const size_t size = strlen(root);
        if (found && snprintf(full, sizeof full, "%s/%s", whole, name) >= PATH_MAX)
            found = false;
        found = found && strncmp(full, root, size) == 0 && (full[size] == '/' || full[size] == 0);
        if (found)
            snprintf(out, PATH_MAX, "%s", full[size] == 0 ? "." : full + size + 1);
    }
    errno = why;
    return found;
}

static bool is_inside(int fd) { return fd >= 0 && fd < FILES && inside[fd]; }

/* ---- opening and closing ---- */

static int open_at(int directory, const char *path, int flags, mode_t mode)
{
    char name[PATH_MAX];
    struct stat st;
    if (!find(name, directory, path))
        return (int)syscall(SYS_openat, directory, path, flags, mode);
    pthread_mutex_lock(&lock);
    const bool created =
        (flags & O_CREAT) != 0 && fstatat(directory, path, &st, AT_SYMLINK_NOFOLLOW) != 0;
    const int fd = (int)syscall(SYS_openat, directory, path, flags, mode);
    if (fd >= FILES)
        abort();
    if (fd >= 0) {
        inside[fd] = true;
        record("open", fd, flags & O_TRUNC, created, name, "", "", 0);
    }
    pthread_mutex_unlock(&lock);
    return fd;
}

static mode_t mode_of(int flags, va_list args)
{
    return (flags & (O_CREAT | __O_TMPFILE)) != 0 ? (mode_t)va_arg(args, unsigned) : 0;
}

int open(const char *path, int flags, ...)
{
    va_list args;
    va_start(args, flags);
    const mode_t mode = mode_of(flags, args);
    va_end(args);
    return open_at(AT_FDCWD, path, flags, mode);
}

int openat(int directory, const char *path, int flags, ...)
{
    va_list args;
    va_start(args, flags);
    const mode_t mode = mode_of(flags, args);
    va_end(args);
    return open_at(directory, path, flags, mode);
}

int creat(const char *path, mode_t mode)
{
    return open_at(AT_FDCWD, path, O_WRONLY | O_CREAT | O_TRUNC, mode);
}

int close(int fd)
{
    if (!is_inside(fd))
        return (int)syscall(SYS_close, fd);
    pthread_mutex_lock(&lock);
    inside[fd] = false;
    record("close", fd, 0, 0, "", "", "", 0);
    const int result = (int)syscall(SYS_close, fd);
    pthread_mutex_unlock(&lock);
    return result;
}

/* ---- contents ---- */

ssize_t write(int fd, const void *bytes, size_t size)
{
    if (!is_inside(fd))
        return syscall(SYS_write, fd, bytes, size);
    pthread_mutex_lock(&lock);
    const ssize_t n = syscall(SYS_write, fd, bytes, size);
    if (n > 0)
        record("write", fd, syscall(SYS_lseek, fd, 0, SEEK_CUR) - n, n, "", "", bytes, (size_t)n);
    pthread_mutex_unlock(&lock);
    return n;
}

ssize_t pwrite(int fd, const void *bytes, size_t size, off_t offset)
{
    if (!is_inside(fd))
        return syscall(SYS_pwrite64, fd, bytes, size, offset);
    pthread_mutex_lock(&lock);
    const ssize_t n = syscall(SYS_pwrite64, fd, bytes, size, offset);
    if (n > 0)
        record("write", fd, offset, n, "", "", bytes, (size_t)n);
    pthread_mutex_unlock(&lock);
    return n;
}

/* Calls the system, and records the call if it succeeds. */
static int on_file(const char *call, long number, int fd, int64_t a, int64_t b, int64_t c)
{
    pthread_mutex_lock(&lock);
    const bool skipped = no_sync && (number == SYS_fsync || number == SYS_fdatasync);
    const int result = skipped ? 0 : (int)syscall(number, fd, a, b, c);
    if (result == 0 && is_inside(fd))
        record(call, fd, number == SYS_fallocate ? b : a, number == SYS_fallocate ? c : 0, "", "",
               "", 0);
    pthread_mutex_unlock(&lock);
    return result;
}

int ftruncate(int fd, off_t size) { return on_file("truncate", SYS_ftruncate, fd, size, 0, 0); }

int fallocate(int fd, int mode, off_t offset, off_t size)
{
    if (mode != 0 && is_inside(fd))
        abort(); /* not replayed */
    return on_file("allocate", SYS_fallocate, fd, mode, offset, size);
}

int posix_fallocate(int fd, off_t offset, off_t size)
{
    return fallocate(fd, 0, offset, size) == 0 ? 0 : errno;
}

int fsync(int fd) { return on_file("sync", SYS_fsync, fd, 0, 0, 0); }
int fdatasync(int fd) { return on_file("sync", SYS_fdatasync, fd, 0, 0, 0); }
int syncfs(int fd) { return on_file("syncall", SYS_syncfs, fd, 0, 0, 0); }

void *mmap(void *at, size_t size, int protection, int flags, int fd, off_t offset)
{
    if ((flags & MAP_SHARED) != 0 && (protection & PROT_WRITE) != 0 && is_inside(fd))
        abort(); /* writes through a map cannot be recorded */
    return (void *)syscall(SYS_mmap, at, size, protection, flags, fd, offset);
}

/* ---- names ---- */

static int rename_at(int from_directory, const char *from, int to_directory, const char *to,
                     unsigned flags)
{
    char a[PATH_MAX] = "", b[PATH_MAX] = "";
    if (no_exchange && (flags & RENAME_EXCHANGE) != 0) {
        errno = EINVAL;
        return -1;
    }
    const bool here = find(a, from_directory, from), there = find(b, to_directory, to);
    if (here != there)
        abort(); /* into or out of the directory: not replayed */
    pthread_mutex_lock(&lock);
    const int result = (int)syscall(SYS_renameat2, from_directory, from, to_directory, to, flags);
    if (result == 0 && here)
        record("rename", -1, flags, 0, a, b, "", 0);
    pthread_mutex_unlock(&lock);
    return result;
}

int rename(const char *from, const char *to) { return rename_at(AT_FDCWD, from, AT_FDCWD, to, 0); }

int renameat(int from_directory, const char *from, int to_directory, const char *to)
{
    return rename_at(from_directory, from, to_directory, to, 0);
}

int renameat2(int from_directory, const char *from, int to_directory, const char *to,
              unsigned flags)
{
    return rename_at(from_directory, from, to_directory, to, flags);
}

int linkat(int from_directory, const char *from, int to_directory, const char *to, int flags)
{
    char a[PATH_MAX] = "", b[PATH_MAX] = "";
    const bool here = find(a, from_directory, from), there = find(b, to_directory, to);
    if (there && !here)
        abort(); /* into the directory: not replayed */
    pthread_mutex_lock(&lock);
    const int result = (int)syscall(SYS_linkat, from_directory, from, to_directory, to, flags);
    if (result == 0 && there)
        record("link", -1, 0, 0, a, b, "", 0);
    pthread_mutex_unlock(&lock);
    return result;
}

int link(const char *from, const char *to) { return linkat(AT_FDCWD, from, AT_FDCWD, to, 0); }

static int on_name(const char *call, long number, int directory, const char *path, long a)
{
    char name[PATH_MAX];
    const bool here = find(name, directory, path);
    pthread_mutex_lock(&lock);
    const int result = (int)syscall(number, directory, path, a);
    if (result == 0 && here)
        record(call, -1, 0, 0, name, "", "", 0);
    pthread_mutex_unlock(&lock);
    return result;
}

int unlinkat(int directory, const char *path, int flags)
{
    return on_name("remove", SYS_unlinkat, directory, path, flags);
}

int unlink(const char *path) { return on_name("remove", SYS_unlinkat, AT_FDCWD, path, 0); }
int rmdir(const char *path)
{
    return on_name("remove", SYS_unlinkat, AT_FDCWD, path, AT_REMOVEDIR);
}

int mkdirat(int directory, const char *path, mode_t mode)
{
    return on_name("mkdir", SYS_mkdirat, directory, path, mode);
}

int mkdir(const char *path, mode_t mode)
{
    return on_name("mkdir", SYS_mkdirat, AT_FDCWD, path, mode);
}
