/* SPDX-License-Identifier: Apache-2.0
 *
 * A library for LD_PRELOAD that counts the calls a program makes to the system and the allocator,
 * and fails one of them. tests/torture/run sets:
 *
 *   FAIL_CALLS=KIND:N:HOW   fails the Nth call of this kind (fail_kinds). HOW is an error number;
 *                           "short": a read or write of half the bytes; either with "+": every call
 *                           from the Nth on. N 0: only counts.
 *   FAIL_CALLS_RECORD=FILE  a file of RECORD bytes, which receives `record`
 *
 * Child processes are left alone. Only Linux with glibc.
 */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <link.h>
#include <malloc.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

typedef enum kind {
    OPEN,
    READ,
    WRITE,
    SYNC,
    RENAME,
    MAP,
    RESIZE,
    CLOSE,
    MAKE,
    LIST,
    REMOVE,
    LOOK,
    LOCK,
    THREAD,
    SOCKET,
    MEMORY,
    KINDS,
} kind;

static const char *const fail_kinds[KINDS] = {
    "open", "read", "write",  "sync", "rename", "map",    "resize", "close",
    "make", "list", "remove", "look", "lock",   "thread", "socket", "memory"};

enum { FRAMES = 24, PATH_SIZE = 256, RECORD = 4096 };

/* What the driver reads; tests/torture/run has the same layout. */
typedef struct record {
    atomic_uint_fast64_t count[KINDS];
    atomic_uint_fast64_t failed; /* calls */
    uint64_t frames[FRAMES];     /* of the first one: addresses in the program, 0: of a library */
    char name[32], path[PATH_SIZE];
} record;

static record unused, *seen = &unused;
static kind wanted = KINDS;
static uint64_t wanted_call;
static int error;
static bool is_short, is_retried, all_later, active;
static uintptr_t program;
/* Calls that this library or the C library makes for another call are not counted. */
static __thread int inside __attribute__((tls_model("initial-exec")));

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *old, size_t size);
void *__libc_memalign(size_t align, size_t size);

static int find_program(struct dl_phdr_info *info, size_t size, void *to)
{
    (void)size;
    *(uintptr_t *)to = info->dlpi_addr;
    return 1; /* the program comes first */
}

static void note_failure(const char *name, const char *path)
{
    void *frames[FRAMES];
    const int count = backtrace(frames, FRAMES);
    for (int i = 0; i < count; i++) {
        const uintptr_t at = (uintptr_t)frames[i];
        seen->frames[i] = at > program && at - program < UINT32_MAX ? at - program : 0;
    }
    snprintf(seen->name, sizeof seen->name, "%s", name);
    snprintf(seen->path, sizeof seen->path, "%s", path);
}

/* Counts a call. True if it is to fail, with errno set. */
static bool fails(kind k, const char *name, const char *path)
{
    if (!active || inside > 0)
        return false;
    const uint64_t n = atomic_fetch_add(&seen->count[k], 1) + 1;
    if (k != wanted || wanted_call == 0 || n < wanted_call || (n > wanted_call && !all_later))
        return false;
    if (atomic_fetch_add(&seen->failed, 1) == 0) {
        inside++;
        note_failure(name, path == NULL ? "" : path);
        inside--;
    }
    errno = error;
    return true;
}

static bool fails_on(kind k, const char *name, int fd)
{
    char link[32], path[PATH_SIZE] = "";
    if (k == wanted && active && inside == 0) {
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        const ssize_t n = readlink(link, path, sizeof path - 1);
        path[n < 0 ? 0 : n] = 0;
    }
    return fails(k, name, path);
}

/* Bytes to transfer, 0 if the call is to fail. Calls of 8 bytes are left alone: those of
 * libmicrohttpd to its eventfd, which cannot fail. */
static size_t transfer(kind k, const char *name, int fd, size_t size)
{
    if (size == sizeof(uint64_t))
        return size;
    if (!fails_on(k, name, fd))
        return size;
    return is_short ? (size + 1) / 2 : 0;
}

static void *next(const char *name)
{
    inside++;
    void *at = dlsym(RTLD_NEXT, name);
    inside--;
    return at;
}

#define CALL_NEXT(name, ...)                                                                       \
    ({                                                                                             \
        static __typeof__(&name) at;                                                               \
        if (at == NULL)                                                                            \
            at = (__typeof__(&name))next(#name);                                                   \
        inside++;                                                                                  \
        __typeof__(at(__VA_ARGS__)) result = at(__VA_ARGS__);                                      \
        inside--;                                                                                  \
        result;                                                                                    \
    })

__attribute__((constructor)) static void start(void)
{
    const char *what = getenv("FAIL_CALLS"), *file = getenv("FAIL_CALLS_RECORD");
    if (what == NULL || file == NULL)
        return;
    void *frames[2];
    backtrace(frames, 2); /* loads what it needs */
    dl_iterate_phdr(find_program, &program);
    const int fd = open(file, O_RDWR | O_CLOEXEC);
    void *at = mmap(NULL, RECORD, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    char name[16], how[16];
    unsigned long long n = 0;
    if (fd < 0 || at == MAP_FAILED || sscanf(what, "%15[a-z]:%llu:%15s", name, &n, how) != 3) {
        fprintf(stderr, "fail_calls: bad FAIL_CALLS or FAIL_CALLS_RECORD\n");
        _exit(99);
    }
    close(fd);
    seen = at;
    for (kind k = 0; k < KINDS; k++)
        if (strcmp(fail_kinds[k], name) == 0)
            wanted = k;
    wanted_call = n;
    error = atoi(how);
    is_short = strncmp(how, "short", 5) == 0;
    is_retried = is_short || error == EINTR; /* streams leave neither to the program */
    all_later = how[strlen(how) - 1] == '+';
    unsetenv("LD_PRELOAD");
    active = true;
}

/* ---- files ---- */

int open(const char *path, int flags, ...)
{
    va_list args;
    va_start(args, flags);
    const mode_t mode = flags & O_CREAT ? va_arg(args, mode_t) : 0;
    va_end(args);
    return fails(OPEN, "open", path) ? -1 : (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

int openat(int folder, const char *path, int flags, ...)
{
    va_list args;
    va_start(args, flags);
    const mode_t mode = flags & O_CREAT ? va_arg(args, mode_t) : 0;
    va_end(args);
    return fails(OPEN, "openat", path) ? -1 : (int)syscall(SYS_openat, folder, path, flags, mode);
}

ssize_t read(int fd, void *to, size_t size)
{
    const size_t part = transfer(READ, "read", fd, size);
    return part == 0 && size > 0 ? -1 : syscall(SYS_read, fd, to, part);
}

ssize_t pread(int fd, void *to, size_t size, off_t at)
{
    const size_t part = transfer(READ, "pread", fd, size);
    return part == 0 && size > 0 ? -1 : syscall(SYS_pread64, fd, to, part, at);
}

ssize_t write(int fd, const void *from, size_t size)
{
    const size_t part = transfer(WRITE, "write", fd, size);
    return part == 0 && size > 0 ? -1 : syscall(SYS_write, fd, from, part);
}

ssize_t pwrite(int fd, const void *from, size_t size, off_t at)
{
    const size_t part = transfer(WRITE, "pwrite", fd, size);
    return part == 0 && size > 0 ? -1 : syscall(SYS_pwrite64, fd, from, part, at);
}

int fsync(int fd) { return fails_on(SYNC, "fsync", fd) ? -1 : (int)syscall(SYS_fsync, fd); }

int fdatasync(int fd)
{
    return fails_on(SYNC, "fdatasync", fd) ? -1 : (int)syscall(SYS_fdatasync, fd);
}

int ftruncate(int fd, off_t size)
{
    return fails_on(RESIZE, "ftruncate", fd) ? -1 : (int)syscall(SYS_ftruncate, fd, size);
}

int fallocate(int fd, int mode, off_t at, off_t size)
{
    return fails_on(RESIZE, "fallocate", fd) ? -1 : (int)syscall(SYS_fallocate, fd, mode, at, size);
}

/* The descriptor is closed, as Linux does when it reports an error. */
int close(int fd)
{
    const bool failing = fails_on(CLOSE, "close", fd);
    const int result = (int)syscall(SYS_close, fd);
    if (failing)
        errno = error;
    return failing ? -1 : result;
}

int flock(int fd, int operation)
{
    return fails_on(LOCK, "flock", fd) ? -1 : (int)syscall(SYS_flock, fd, operation);
}

void *mmap(void *at, size_t size, int access, int flags, int fd, off_t offset)
{
    if (fails_on(MAP, "mmap", fd))
        return MAP_FAILED;
    return (void *)syscall(SYS_mmap, at, size, access, flags, fd, offset);
}

/* ---- names ---- */

int rename(const char *from, const char *to)
{
    if (fails(RENAME, "rename", from))
        return -1;
    return (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
}

int renameat2(int from_folder, const char *from, int to_folder, const char *to, unsigned flags)
{
    if (fails(RENAME, "renameat2", from))
        return -1;
    return (int)syscall(SYS_renameat2, from_folder, from, to_folder, to, flags);
}

int mkdir(const char *path, mode_t mode)
{
    return fails(MAKE, "mkdir", path) ? -1 : (int)syscall(SYS_mkdirat, AT_FDCWD, path, mode);
}

int chmod(const char *path, mode_t mode)
{
    return fails(MAKE, "chmod", path) ? -1 : (int)syscall(SYS_fchmodat, AT_FDCWD, path, mode);
}

int unlink(const char *path)
{
    return fails(REMOVE, "unlink", path) ? -1 : (int)syscall(SYS_unlinkat, AT_FDCWD, path, 0);
}

int unlinkat(int folder, const char *path, int flags)
{
    return fails(REMOVE, "unlinkat", path) ? -1 : (int)syscall(SYS_unlinkat, folder, path, flags);
}

int rmdir(const char *path)
{
    if (fails(REMOVE, "rmdir", path))
        return -1;
    return (int)syscall(SYS_unlinkat, AT_FDCWD, path, AT_REMOVEDIR);
}

int fstatat(int folder, const char *path, struct stat *to, int flags)
{
    if (fails(LOOK, "fstatat", path))
        return -1;
    return (int)syscall(SYS_newfstatat, folder, path, to, flags);
}

int stat(const char *path, struct stat *to)
{
    return fails(LOOK, "stat", path) ? -1 : (int)syscall(SYS_newfstatat, AT_FDCWD, path, to, 0);
}

int lstat(const char *path, struct stat *to)
{
    if (fails(LOOK, "lstat", path))
        return -1;
    return (int)syscall(SYS_newfstatat, AT_FDCWD, path, to, AT_SYMLINK_NOFOLLOW);
}

int fstat(int fd, struct stat *to)
{
    return fails_on(LOOK, "fstat", fd) ? -1
                                       : (int)syscall(SYS_newfstatat, fd, "", to, AT_EMPTY_PATH);
}

int access(const char *path, int mode)
{
    return fails(LOOK, "access", path) ? -1 : (int)syscall(SYS_faccessat, AT_FDCWD, path, mode);
}

char *realpath(const char *restrict path, char *restrict to)
{
    return fails(LOOK, "realpath", path) ? NULL : CALL_NEXT(realpath, path, to);
}

off_t lseek(int fd, off_t at, int whence)
{
    return fails_on(LOOK, "lseek", fd) ? -1 : syscall(SYS_lseek, fd, at, whence);
}

/* ---- directories ---- */

DIR *opendir(const char *path)
{
    return fails(LIST, "opendir", path) ? NULL : CALL_NEXT(opendir, path);
}

struct dirent *readdir(DIR *folder)
{
    return fails_on(LIST, "readdir", dirfd(folder)) ? NULL : CALL_NEXT(readdir, folder);
}

/* ---- streams ---- */

/* As the C library does after a failed system call. */
static void set_error(FILE *file) { file->_flags |= 0x20; /* _IO_ERR_SEEN */ }

FILE *fopen(const char *restrict path, const char *restrict mode)
{
    return !is_retried && fails(OPEN, "fopen", path) ? NULL : CALL_NEXT(fopen, path, mode);
}

size_t fread(void *restrict to, size_t size, size_t count, FILE *restrict file)
{
    if (!is_retried && fails_on(READ, "fread", fileno(file))) {
        set_error(file);
        return 0;
    }
    return CALL_NEXT(fread, to, size, count, file);
}

ssize_t __getdelim(char **restrict line, size_t *restrict size, int end, FILE *restrict file)
{
    if (!is_retried && fails_on(READ, "getdelim", fileno(file))) {
        set_error(file);
        return -1;
    }
    static ssize_t (*at)(char **restrict, size_t *restrict, int, FILE *restrict);
    if (at == NULL)
        at = (ssize_t(*)(char **restrict, size_t *restrict, int, FILE *restrict))next("__getdelim");
    return at(line, size, end, file);
}

int fflush(FILE *file)
{
    if (file != NULL && !is_retried && fails_on(WRITE, "fflush", fileno(file))) {
        set_error(file);
        return EOF;
    }
    return CALL_NEXT(fflush, file);
}

int fclose(FILE *file)
{
    const bool failing = !is_retried && fails_on(CLOSE, "fclose", fileno(file));
    const int result = CALL_NEXT(fclose, file);
    if (failing)
        errno = error;
    return failing ? EOF : result;
}

/* ---- threads and sockets ---- */

int pthread_create(pthread_t *restrict thread, const pthread_attr_t *restrict attributes,
                   void *(*run)(void *), void *restrict ctx)
{
    if (fails(THREAD, "pthread_create", ""))
        return error;
    return CALL_NEXT(pthread_create, thread, attributes, run, ctx);
}

int socket(int domain, int type, int protocol)
{
    return fails(SOCKET, "socket", "") ? -1 : (int)syscall(SYS_socket, domain, type, protocol);
}

int bind(int fd, const struct sockaddr *address, socklen_t size)
{
    return fails(SOCKET, "bind", "") ? -1 : (int)syscall(SYS_bind, fd, address, size);
}

int listen(int fd, int waiting)
{
    return fails(SOCKET, "listen", "") ? -1 : (int)syscall(SYS_listen, fd, waiting);
}

int setsockopt(int fd, int level, int name, const void *value, socklen_t size)
{
    if (fails(SOCKET, "setsockopt", ""))
        return -1;
    return (int)syscall(SYS_setsockopt, fd, level, name, value, size);
}

int accept4(int fd, struct sockaddr *restrict address, socklen_t *restrict size, int flags)
{
    return fails(SOCKET, "accept4", "") ? -1 : (int)syscall(SYS_accept4, fd, address, size, flags);
}

ssize_t recv(int fd, void *to, size_t size, int flags)
{
    const size_t part = transfer(SOCKET, "recv", fd, size);
    return part == 0 && size > 0 ? -1 : syscall(SYS_recvfrom, fd, to, part, flags, NULL, NULL);
}

ssize_t send(int fd, const void *from, size_t size, int flags)
{
    const size_t part = transfer(SOCKET, "send", fd, size);
    return part == 0 && size > 0 ? -1 : syscall(SYS_sendto, fd, from, part, flags, NULL, 0);
}

ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
    return fails(SOCKET, "sendmsg", "") ? -1 : syscall(SYS_sendmsg, fd, message, flags);
}

/* ---- memory ---- */

void *malloc(size_t size) { return fails(MEMORY, "malloc", "") ? NULL : __libc_malloc(size); }

void *calloc(size_t count, size_t size)
{
    return fails(MEMORY, "calloc", "") ? NULL : __libc_calloc(count, size);
}

void *realloc(void *old, size_t size)
{
    return fails(MEMORY, "realloc", "") ? NULL : __libc_realloc(old, size);
}

void *aligned_alloc(size_t align, size_t size)
{
    return fails(MEMORY, "aligned_alloc", "") ? NULL : __libc_memalign(align, size);
}

int posix_memalign(void **to, size_t align, size_t size)
{
    void *at = fails(MEMORY, "posix_memalign", "") ? NULL : __libc_memalign(align, size);
    if (at == NULL)
        return ENOMEM;
    *to = at;
    return 0;
}

/* Oniguruma 6.9.8 frees some nodes twice if memory runs out while it compiles; nib__regex_compile
 * makes sure that there is enough before it calls this. */
int onig_new(void *out, const void *text, const void *end, unsigned options, void *encoding,
             void *syntax, void *error_info)
{
    return CALL_NEXT(onig_new, out, text, end, options, encoding, syntax, error_info);
}
