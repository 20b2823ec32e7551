/* SPDX-License-Identifier: Apache-2.0
 *
 * Maps, whole files, outputs and publishing, in a fresh directory under $TMPDIR or /tmp.
 */
#include "failing.h"
#include "file.h"
#include "skipping.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "refused.h"

static nib_allocator heap;
static char root[512];

/* ---- the order of writes to disk ---- */

/* Log of fsync calls, one letter each: d, a directory; m, a file with the mark of an unfinished
 * one; f, any other file. */
static char synced[64];
static size_t synced_count;
static int interrupts; /* calls of open that will still fail with EINTR */

/* Interposed functions: the library calls these instead of the C library's. */
int fsync(int fd)
{
    struct stat st;
    char first[8] = {0}, path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    const bool known = fstat(fd, &st) == 0 && synced_count + 1 < sizeof synced;
    const int file = known && !S_ISDIR(st.st_mode) ? openat(AT_FDCWD, path, O_RDONLY) : -1;
    const bool read_it = file >= 0 && read(file, first, sizeof first) >= 0;
    if (file >= 0)
        close(file);
    if (known)
        synced[synced_count++] = S_ISDIR(st.st_mode)                                        ? 'd'
                                 : read_it && memcmp(first, "nibpart\n", sizeof first) == 0 ? 'm'
                                                                                            : 'f';
    return (int)syscall(SYS_fsync, fd);
}

int open(const char *path, int flags, ...)
{
    va_list args;
    va_start(args, flags);
    const int mode = (flags & O_CREAT) != 0 ? va_arg(args, int) : 0;
    va_end(args);
    if (interrupts > 0) {
        interrupts--;
        errno = EINTR;
        return -1;
    }
    return openat(AT_FDCWD, path, flags, mode);
}

static const char *what_was_synced(void)
{
    synced[synced_count] = '\0';
    synced_count = 0;
    return synced;
}

static int setup(void **state)
{
    (void)state;
    heap = nib__allocator_default();
    const char *tmp = getenv("TMPDIR");
    snprintf(root, sizeof root, "%s/nibble-test-file-XXXXXX", tmp == NULL ? "/tmp" : tmp);
    return mkdtemp(root) == NULL;
}

static int teardown(void **state)
{
    (void)state;
    return nib__path_remove(root, NULL) != NIB_OK; /* fails if a test left files behind */
}

/* root/name; up to four results live at a time. */
static const char *at(const char *name)
{
    static char paths[4][700];
    static int next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", root, name);
    return path;
}

static void put(const char *path, const void *bytes, size_t size)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
}

static bool holds(const char *path, const char *text)
{
    char *got = NULL;
    size_t size = 0;
    nib_err err = {0};
    if (nib__file_read(&got, &size, path, 1 << 20, &heap, &err) != NIB_OK)
        return false;
    const bool same = strcmp(got, text) == 0 && size == strlen(text);
    nib__release(&heap, got);
    return same;
}

static void removed(const char *path)
{
    nib_err err = {0};
    if (nib__path_remove(path, &err) != NIB_OK)
        fail_msg("%s", err.text);
    assert_int_equal(nib__path_kind(path), NIB_PATH_NONE);
}

/* ---- reading ---- */

static void test_map(void **state)
{
    (void)state;
    nib_err err = {0};
    nib_map map = {.at = (const uint8_t *)"x", .size = 1};
    put(at("m"), "hello", 5);
    assert_int_equal(nib__map_open(&map, at("m"), &err), NIB_OK);
    assert_int_equal(map.size, 5);
    assert_memory_equal(map.at, "hello", 5);
    nib__map_close(&map);
    assert_null(map.at);
    nib__map_close(&map);
    put(at("m"), "", 0);
    assert_int_equal(nib__map_open(&map, at("m"), &err), NIB_OK);
    assert_null(map.at);
    assert_int_equal(map.size, 0);
    nib__map_close(&map);
    removed(at("m"));
}

/* Writing to a mapped file invalidates the read; replacing the file does not. */
static void test_map_read_detects_writes(void **state)
{
    (void)state;
    nib_err err = {0};
    nib_map map;
    put(at("m"), "hello", 5);
    assert_int_equal(nib__map_open(&map, at("m"), &err), NIB_OK);
    assert_int_equal(nib__map_read(&map, at("m"), NIB_OK, &err), NIB_OK);
    assert_int_equal(nib__map_read(&map, at("m"), NIB_CANCELLED, &err), NIB_CANCELLED);
    for (int size = 4; size <= 6; size += 2) {
        assert_int_equal(truncate(at("m"), size), 0);
        refused(NIB_IO, nib__map_read(&map, at("m"), NIB_BAD_INPUT, &err), &err);
    }
    put(at("other"), "new", 3);
    assert_int_equal(rename(at("other"), at("m")), 0);
    assert_int_equal(nib__map_read(&map, at("m"), NIB_OK, &err), NIB_OK);
    removed(at("m"));
    assert_int_equal(nib__map_read(&map, at("m"), NIB_OK, &err), NIB_OK);
    nib__map_close(&map);
    put(at("m"), "hello", 5);
    assert_int_equal(nib__map_open(&map, at("m"), &err), NIB_OK);
    static const struct timespec times[2] = {{1, 0}, {1, 0}}; /* same size, other time */
    assert_int_equal(utimensat(AT_FDCWD, at("m"), times, 0), 0);
    refused(NIB_IO, nib__map_read(&map, at("m"), NIB_OK, &err), &err);
    nib__map_close(&map);
    removed(at("m"));
}

static void test_map_release(void **state)
{
    (void)state;
    enum { SIZE = 100000 };
    nib_err err = {0};
    uint8_t *bytes = malloc(SIZE);
    assert_non_null(bytes);
    for (size_t i = 0; i < SIZE; i++)
        bytes[i] = (uint8_t)(i * 7);
    put(at("m"), bytes, SIZE);
    nib_map map;
    assert_int_equal(nib__map_open(&map, at("m"), &err), NIB_OK);
    nib__map_release(map.at + 1, SIZE - 2);
    nib__map_release(map.at + 5, 3); /* less than a page */
    nib__map_release(map.at, 0);
    assert_memory_equal(map.at, bytes, SIZE); /* still there: read again */
    nib__map_close(&map);
    free(bytes);
    removed(at("m"));
}

static void test_not_regular(void **state)
{
    (void)state;
    nib_err err = {0};
    nib_map map = {.size = 77};
    char *text = NULL;
    size_t size = 0;
    refused(NIB_IO, nib__map_open(&map, at("none"), &err), &err);
    refused(NIB_IO, nib__map_open(&map, root, &err), &err);
    assert_int_equal(mkfifo(at("fifo"), 0600), 0);
    refused(NIB_IO, nib__map_open(&map, at("fifo"), &err), &err); /* at once, without a writer */
    refused(NIB_IO, nib__file_read(&text, &size, at("fifo"), 10, &heap, &err), &err);
    refused(NIB_IO, nib__map_open(&map, "/dev/zero", &err), &err);
    assert_int_equal(map.size, 77); /* untouched */
    assert_null(text);
    assert_int_equal(nib__path_kind(at("fifo")), NIB_PATH_OTHER);
    removed(at("fifo"));
}

static void test_read(void **state)
{
    (void)state;
    nib_err err = {0};
    char *text = NULL;
    size_t size = 99;
    put(at("r"), "a\0bc", 4);
    assert_int_equal(nib__file_read(&text, &size, at("r"), 4, &heap, &err), NIB_OK);
    assert_int_equal(size, 4);
    assert_memory_equal(text, "a\0bc", 5);
    nib__release(&heap, text);
    text = NULL;
    refused(NIB_BAD_INPUT, nib__file_read(&text, &size, at("r"), 3, &heap, &err), &err);
    assert_null(text);
    assert_int_equal(nib__file_read(&text, &size, at("r"), SIZE_MAX, &heap, &err), NIB_OK);
    nib__release(&heap, text);
    put(at("r"), "", 0);
    assert_int_equal(nib__file_read(&text, &size, at("r"), 0, &heap, &err), NIB_OK);
    assert_int_equal(size, 0);
    assert_string_equal(text, "");
    nib__release(&heap, text);
    failing f = {0};
    const nib_allocator a = failing_allocator(&f);
    assert_int_equal(nib__file_read(&text, &size, at("r"), 10, &a, &err), NIB_NO_MEMORY);
    removed(at("r"));
}

/* A file with contents whose stat size is 0. */
static void test_read_unknown_size(void **state)
{
    (void)state;
    char *text = NULL;
    size_t size = 0;
    nib_err err = {0};
    if (access("/proc/self/maps", R_OK) != 0) {
        skip_test(__func__, "no /proc");
    }
    assert_int_equal(nib__file_read(&text, &size, "/proc/self/maps", 1 << 22, &heap, &err), NIB_OK);
    assert_true(size > 100);
    assert_int_equal(strlen(text), size);
    nib__release(&heap, text);
    assert_int_equal(nib__file_read(&text, &size, "/proc/self/maps", 64, &heap, &err),
                     NIB_BAD_INPUT);
}

/* ---- paths ---- */

static void test_paths(void **state)
{
    (void)state;
    nib_arena arena;
    nib__arena_init(&arena, &heap, 0);
    assert_string_equal(nib__path_join(&arena, "a", "b"), "a/b");
    assert_string_equal(nib__path_join(&arena, "a/", "b"), "a/b");
    assert_string_equal(nib__path_join(&arena, "/", "b"), "/b");
    assert_string_equal(nib__path_join(&arena, "", "b"), "b");
    nib__arena_free(&arena);
    nib__arena_init(&arena, &heap, 8);
    assert_null(nib__path_join(&arena, "long enough", "to fail"));
    nib__arena_free(&arena);
    assert_string_equal(nib__path_name("/x/y.json"), "y.json");
    assert_string_equal(nib__path_name("y.json"), "y.json");
    assert_string_equal(nib__path_name("x/"), "");
    assert_int_equal(nib__path_kind(root), NIB_PATH_DIRECTORY);
    assert_int_equal(nib__path_kind(at("none")), NIB_PATH_NONE);
    put(at("file"), "", 0);
    assert_int_equal(nib__path_kind(at("file")), NIB_PATH_FILE);
    assert_int_equal(nib__path_kind(at("file/below")), NIB_PATH_NONE);
    removed(at("file"));
    /* a path that cannot be looked at is not missing */
    nib_err err;
    nib_path_kind kind;
    assert_int_equal(symlink("loop", at("loop")), 0);
    refused(NIB_IO, nib__path_look(&kind, at("loop"), &err), &err);
    assert_int_equal(nib__path_kind(at("loop")), NIB_PATH_FILE);
    assert_int_equal(nib__path_look(&kind, at("none"), &err), NIB_OK);
    assert_int_equal(kind, NIB_PATH_NONE);
    removed(at("loop"));
}

static void make_directory(const char *name, const char *content)
{
    char file[800];
    assert_int_equal(mkdir(at(name), 0700), 0);
    snprintf(file, sizeof file, "%s/x", at(name));
    put(file, content, strlen(content));
    snprintf(file, sizeof file, "%s/y", at(name));
    put(file, "y", 1);
}

static void test_remove(void **state)
{
    (void)state;
    nib_err err = {0};
    assert_int_equal(nib__path_remove(at("none"), &err), NIB_OK);
    make_directory("d", "1");
    assert_int_equal(symlink(root, at("d/link")), 0);
    removed(at("d"));
    assert_int_equal(nib__path_kind(root), NIB_PATH_DIRECTORY); /* a link's target is kept */
    make_directory("d", "1");
    assert_int_equal(mkdir(at("d/below"), 0700), 0);
    assert_false(nib__directory_is_empty(at("d")));
    assert_true(nib__directory_is_empty(at("d/below")));
    assert_false(nib__directory_is_empty(at("none")));
    refused(NIB_IO, nib__path_removable(at("d"), &err), &err);
    refused(NIB_IO, nib__path_remove(at("d"), &err), &err);
    assert_true(holds(at("d/x"), "1") && holds(at("d/y"), "y")); /* unchanged */
    removed(at("d/below"));
    assert_int_equal(nib__path_removable(at("d"), &err), NIB_OK);
    removed(at("d"));
    assert_int_equal(nib__path_removable(at("d"), &err), NIB_OK);
}

/* ---- writing ---- */

static nib_output *output_at(const char *name)
{
    nib_output *output = NULL;
    nib_err err = {0};
    if (nib__output_open(&output, at(name), &heap, &err) != NIB_OK)
        fail_msg("%s", err.text);
    return output;
}

static void test_output(void **state)
{
    (void)state;
    nib_err err = {0};
    nib_output *output = output_at("o");
    assert_int_equal(nib__output_write(output, NULL, 0, &err), NIB_OK);
    assert_int_equal(nib__output_write(output, "hello ", 6, &err), NIB_OK);
    assert_int_equal(nib__output_write(output, "world", 5, &err), NIB_OK);
    assert_int_equal(nib__output_offset(output), 11);
    assert_int_equal(nib__output_patch(output, 0, "J", 1, &err), NIB_OK);
    assert_int_equal(nib__output_patch(output, 10, "D", 1, &err), NIB_OK);
    refused(NIB_FAILED, nib__output_patch(output, 11, "x", 1, &err), &err);
    refused(NIB_FAILED, nib__output_patch(output, UINT64_MAX, "x", 1, &err), &err);
    assert_int_equal(nib__output_write(output, "!", 1, &err), NIB_OK);
    assert_int_equal(nib__output_finish(output, &err), NIB_OK);
    assert_true(holds(at("o"), "Jello worlD!"));
    output = NULL;
    refused(NIB_EXISTS, nib__output_open(&output, at("o"), &heap, &err), &err);
    assert_null(output);
    refused(NIB_IO, nib__output_open(&output, at("none/o"), &heap, &err), &err);
    removed(at("o"));
}

static void test_file_write(void **state)
{
    (void)state;
    nib_err err = {0};
    assert_int_equal(nib__file_write(at("o"), "whole", 5, &heap, &err), NIB_OK);
    assert_true(holds(at("o"), "whole"));
    refused(NIB_EXISTS, nib__file_write(at("o"), "more", 4, &heap, &err), &err);
    removed(at("o"));
}

/* A file extended to its full size accepts parts in any order. */
static void test_output_extend(void **state)
{
    (void)state;
    nib_err err = {0};
    nib_output *output = output_at("o");
    assert_int_equal(nib__output_write(output, "ab", 2, &err), NIB_OK);
    assert_int_equal(nib__output_extend(output, 6, &err), NIB_OK);
    assert_int_equal(nib__output_offset(output), 6);
    assert_int_equal(nib__output_extend(output, 3, &err), NIB_OK); /* never shorter */
    assert_int_equal(nib__output_patch(output, 4, "ef", 2, &err), NIB_OK);
    assert_int_equal(nib__output_patch(output, 2, "cd", 2, &err), NIB_OK);
    refused(NIB_FAILED, nib__output_patch(output, 5, "xy", 2, &err), &err);
    assert_int_equal(nib__output_finish(output, &err), NIB_OK);
    assert_true(holds(at("o"), "abcdef"));
    removed(at("o"));
    output = output_at("o");
    assert_int_equal(nib__output_extend(output, UINT64_C(1) << 62, &err), NIB_IO);
    assert_int_equal(nib__output_write(output, "x", 1, &err), NIB_IO); /* once failed, always */
    nib__output_abandon(output);
    removed(at("o"));
}

static void test_within(void **state)
{
    (void)state;
    static const struct {
        const char *path, *directory;
        bool within;
    } cases[] = {
        {"d", "d", true},       {"d/", "d", true},          {"d/x", "d", true},
        {"d/new", "d", true},   {"d/new/newer", "d", true}, {"d/below/../new", "d", true},
        {"d/below", "d", true}, {"link", "d", true},        {"link/new", "d", true},
        {"new", "d", false},    {"", "d", false},           {"d", "d/below", false},
        {"dd/new", "d", false}, {"d/x", "none", false},     {"d/../new", "d", false},
    };
    make_directory("d", "1");
    assert_int_equal(mkdir(at("d/below"), 0700), 0);
    char target[512];
    snprintf(target, sizeof target, "%s", at("d"));
    assert_int_equal(symlink(target, at("link")), 0);
    for (size_t i = 0; i < COUNT(cases); i++) {
        char path[512];
        snprintf(path, sizeof path, "%s", at(cases[i].path));
        if (nib__path_within(path, at(cases[i].directory)) != cases[i].within)
            fail_msg("%s in %s", cases[i].path, cases[i].directory);
    }
    assert_true(nib__path_within("new", "."));
    assert_true(nib__path_same(target, at("link")));
    assert_false(nib__path_same(target, at("none")));
    removed(at("link"));
    removed(at("d/below"));
    removed(at("d"));
    nib_err err = {0};
    assert_int_equal(nib__directory_make(at("made"), &err), NIB_OK);
    refused(NIB_IO, nib__directory_make(at("made"), &err), &err);
    removed(at("made"));
}

/* Mixed writes around the buffer size give the same bytes as a single write. */
static void test_output_sizes(void **state)
{
    (void)state;
    static const size_t sizes[] = {1, (1 << 20) - 1, 1, 5, 1 << 20, (1 << 20) + 1, 3, 3000000,
                                   7, (1 << 20) - 5};
    nib_err err = {0};
    size_t total = 0;
    for (size_t i = 0; i < COUNT(sizes); i++)
        total += sizes[i];
    uint8_t *bytes = malloc(total);
    assert_non_null(bytes);
    for (size_t i = 0; i < total; i++)
        bytes[i] = (uint8_t)(i ^ i >> 8 ^ i >> 16);
    nib_output *output = output_at("o");
    size_t offset = 0;
    for (size_t i = 0; i < COUNT(sizes); i++) {
        assert_int_equal(nib__output_write(output, bytes + offset, sizes[i], &err), NIB_OK);
        offset += sizes[i];
        assert_int_equal(nib__output_offset(output), offset);
    }
    assert_int_equal(nib__output_finish(output, &err), NIB_OK);
    nib_map map;
    assert_int_equal(nib__map_open(&map, at("o"), &err), NIB_OK);
    assert_int_equal(map.size, total);
    assert_memory_equal(map.at, bytes, total);
    nib__map_close(&map);
    free(bytes);
    removed(at("o"));
}

static void test_abandoned_output(void **state)
{
    (void)state;
    nib_err err = {0};
    nib_output *output = output_at("o");
    assert_int_equal(nib__output_write(output, "x", 1, &err), NIB_OK);
    nib__output_abandon(output);
    nib__output_abandon(NULL);
    assert_int_equal(nib__path_kind(at("o")), NIB_PATH_FILE);
    removed(at("o"));
}

/* A write that fails midway (here by the file size limit, like a full disk) is an error with the
 * path, and finish still reports it. */
static void test_failed_write(void **state)
{
    (void)state;
    nib_err err = {0};
    struct rlimit old;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    nib_output *output = output_at("o");
    const struct rlimit limit = {4096, old.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    uint8_t *bytes = calloc(1, 3 << 20);
    assert_non_null(bytes);
    const nib_status first = nib__output_write(output, bytes, 3 << 20, &err);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    signal(SIGXFSZ, handler);
    refused(NIB_IO, first, &err);
    refused(NIB_IO, nib__output_write(output, "x", 1, &err), &err);
    refused(NIB_IO, nib__output_patch(output, 0, "x", 1, &err), &err);
    refused(NIB_IO, nib__output_finish(output, &err), &err);
    free(bytes);
    removed(at("o"));
    errno = ENOSPC;
    refused(NIB_IO, nib__file_fail(&err, "/disk/o", "write to it"), &err);
}

static void test_output_without_memory(void **state)
{
    (void)state;
    for (int n = 0; n < 3; n++) {
        failing f = {.left = n};
        const nib_allocator a = failing_allocator(&f);
        nib_output *output = NULL;
        nib_err err = {0};
        assert_int_equal(nib__output_open(&output, at("o"), &a, &err), NIB_NO_MEMORY);
        assert_null(output);
        assert_int_equal(f.live, 0);
        assert_int_equal(nib__path_kind(at("o")), NIB_PATH_NONE);
    }
}

/* An unfinished file begins with the mark, whatever was written. Everything after the mark is on
 * disk before the mark is replaced. */
static void test_head_is_written_last(void **state)
{
    (void)state;
    nib_output *output;
    nib_err err = {0};
    char bytes[12] = "x";
    for (int finished = 0; finished < 2; finished++) {
        assert_int_equal(nib__output_open(&output, at("o"), &heap, &err), NIB_OK);
        assert_int_equal(nib__output_write(output, "GGUF", 4, &err), NIB_OK);
        assert_int_equal(nib__output_extend(output, 12, &err), NIB_OK);
        assert_int_equal(nib__output_patch(output, 6, "cdefgh", 6, &err), NIB_OK);
        assert_int_equal(nib__output_patch(output, 3, "G", 1, &err), NIB_OK);
        (void)what_was_synced();
        if (finished)
            assert_int_equal(nib__output_finish(output, &err), NIB_OK);
        else
            nib__output_abandon(output);
        assert_string_equal(what_was_synced(), finished ? "mf" : "");
        FILE *file = fopen(at("o"), "rb");
        assert_non_null(file);
        assert_int_equal(fread(bytes, 1, sizeof bytes, file), sizeof bytes);
        fclose(file);
        assert_memory_equal(bytes, finished ? "GGUG\0\0cd" : "nibpart\n", 8);
        assert_memory_equal(bytes + 8, "efgh", 4);
        removed(at("o"));
    }
    assert_int_equal(nib__file_write(at("o"), "abc", 3, &heap, &err), NIB_OK);
    assert_true(holds(at("o"), "abc"));
    removed(at("o"));
}

/* ---- publishing ---- */

static void publishes(const char *from, const char *to, bool replace)
{
    nib_err err = {0};
    if (nib__publish(at(from), at(to), replace, &err) != NIB_OK)
        fail_msg("%s", err.text);
    assert_int_equal(nib__path_kind(at(from)), NIB_PATH_NONE);
}

static void test_lock(void **state)
{
    (void)state;
    nib_err err = {0};
    int first = -1, second = -1;
    const char *path = at("out.lock");
    assert_int_equal(nib__lock_take(&first, path, &err), NIB_OK);
    assert_true(first >= 0);
    refused(NIB_EXISTS, nib__lock_take(&second, path, &err), &err);
    assert_int_equal(second, -1);
    nib__lock_release(first, path);
    assert_int_equal(nib__path_kind(path), NIB_PATH_NONE);
    put(path, "", 0); /* left by a killed process: the file without the lock */
    assert_int_equal(nib__lock_take(&second, path, &err), NIB_OK);
    nib__lock_release(second, path);
    /* if the directory is missing, the writer reports it */
    assert_int_equal(nib__lock_take(&first, at("missing/out.lock"), &err), NIB_OK);
    assert_int_equal(first, -1);
    nib__lock_release(first, path);
    /* a dangling link is not followed */
    assert_int_equal(symlink(at("elsewhere"), path), 0);
    refused(NIB_EXISTS, nib__lock_take(&first, path, &err), &err);
    assert_int_equal(nib__path_kind(at("elsewhere")), NIB_PATH_NONE);
    assert_int_equal(unlink(path), 0);
    /* a signal does not lose the lock */
    interrupts = 3;
    assert_int_equal(nib__lock_take(&first, path, &err), NIB_OK);
    assert_true(first >= 0);
    nib__lock_release(first, path);
}

/* After a rename the directory is synchronized, even if signals interrupt. */
static void test_publish_synced(void **state)
{
    (void)state;
    nib_err err = {0};
    put(at("new"), "1", 1);
    (void)what_was_synced();
    interrupts = 2;
    publishes("new", "to", false);
    assert_int_equal(interrupts, 0);
    assert_string_equal(what_was_synced(), "d");
    put(at("new"), "2", 1);
    publishes("new", "to", true);
    assert_string_equal(what_was_synced(), "d");
    assert_int_equal(nib__file_replace(at("to"), "12345678", 8, &heap, &err), NIB_OK);
    assert_string_equal(what_was_synced(), "mfd");
    removed(at("to"));
    /* the new directory, the mark in the old one before it gets another name, the parent */
    make_directory("to", "1");
    make_directory("new", "2");
    (void)what_was_synced();
    publishes("new", "to", true);
    assert_string_equal(what_was_synced(), "ddd");
    removed(at("to"));
    /* lines: the name, then what was appended */
    int fd = -1;
    assert_int_equal(nib__append_open(&fd, at("lines"), 0, &err), NIB_OK);
    assert_string_equal(what_was_synced(), "d");
    assert_int_equal(nib__append(fd, at("lines"), "1\n", 2, &err), NIB_OK);
    assert_string_equal(what_was_synced(), "");
    assert_int_equal(nib__append_sync(fd, at("lines"), &err), NIB_OK);
    assert_string_equal(what_was_synced(), "f");
    nib__append_close(fd);
    removed(at("lines"));
}

/* The mark of a large file is on the disk before the file is large, however it grows. */
static void test_large_mark_is_synced(void **state)
{
    (void)state;
    enum { LARGE = 3 << 20 };
    static const char bytes[LARGE] = "x";
    nib_err err = {0};
    for (int extended = 0; extended < 2; extended++) {
        nib_output *output = output_at("o");
        (void)what_was_synced();
        assert_int_equal(nib__output_write(output, bytes, 9, &err), NIB_OK);
        assert_string_equal(what_was_synced(), "");
        assert_int_equal(extended ? nib__output_extend(output, LARGE, &err)
                                  : nib__output_write(output, bytes, LARGE, &err),
                         NIB_OK);
        assert_string_equal(what_was_synced(), "m");
        assert_int_equal(nib__output_write(output, bytes, LARGE, &err), NIB_OK);
        assert_string_equal(what_was_synced(), "");
        assert_int_equal(nib__output_finish(output, &err), NIB_OK);
        assert_string_equal(what_was_synced(), "mf");
        removed(at("o"));
    }
}

static void test_publish_file(void **state)
{
    (void)state;
    nib_err err = {0};
    put(at("new"), "1", 1);
    publishes("new", "to", false);
    assert_true(holds(at("to"), "1"));
    put(at("new"), "2", 1);
    refused(NIB_EXISTS, nib__publish(at("new"), at("to"), false, &err), &err);
    assert_true(holds(at("to"), "1") && holds(at("new"), "2"));
    publishes("new", "to", true);
    assert_true(holds(at("to"), "2"));
    refused(NIB_IO, nib__publish(at("none"), at("to"), true, &err), &err);
    assert_true(holds(at("to"), "2"));
    put(at("new"), "3", 1);
    refused(NIB_IO, nib__publish(at("new"), at("none/to"), true, &err), &err);
    removed(at("new"));
    removed(at("to"));
}

static void test_replace(void **state)
{
    (void)state;
    nib_err err = {0};
    struct stat st;
    assert_int_equal(nib__file_replace(at("to"), "1", 1, &heap, &err), NIB_OK);
    put(at("to.part"), "nibpart\nof a killed run", 23);
    assert_int_equal(nib__file_replace(at("to"), "22", 2, &heap, &err), NIB_OK);
    assert_true(holds(at("to"), "22"));
    assert_int_equal(nib__path_kind(at("to.part")), NIB_PATH_NONE);
    put(at("to.part"), "mine", 4); /* a file of others is kept */
    assert_int_equal(nib__file_replace(at("to"), "33", 2, &heap, &err), NIB_OK);
    assert_true(holds(at("to"), "33") && holds(at("to.part"), "mine"));
    assert_int_equal(nib__path_kind(at("to.part-2")), NIB_PATH_NONE);
    removed(at("to.part"));
    refused(NIB_IO, nib__file_replace(at("none/to"), "3", 1, &heap, &err), &err);
    /* a device is kept, such as /dev/null for a user who may rename it; so is a pipe */
    assert_int_equal(mkfifo(at("pipe"), 0600), 0);
    refused(NIB_EXISTS, nib__file_replace(at("pipe"), "4", 1, &heap, &err), &err);
    assert_int_equal(stat(at("pipe"), &st), 0);
    assert_true(S_ISFIFO(st.st_mode));
    assert_int_equal(nib__path_kind(at("pipe.part")), NIB_PATH_NONE);
    refused(NIB_EXISTS, nib__file_may_replace("/dev/null", &err), &err);
    refused(NIB_EXISTS, nib__file_may_replace(root, &err), &err);
    assert_int_equal(nib__file_may_replace(at("to"), &err), NIB_OK);
    assert_int_equal(nib__file_may_replace(at("new"), &err), NIB_OK);
    assert_int_equal(nib__file_may_replace("new", &err), NIB_OK);
    refused(NIB_USAGE, nib__file_may_replace("", &err), &err);
    refused(NIB_IO, nib__file_may_replace(at("none/to"), &err), &err);
    removed(at("pipe"));
    removed(at("to"));
}

static void test_publish_directory(void **state)
{
    (void)state;
    nib_err err = {0};
    make_directory("new", "1");
    publishes("new", "to", false);
    assert_true(holds(at("to/x"), "1"));
    make_directory("new", "2");
    refused(NIB_EXISTS, nib__publish(at("new"), at("to"), false, &err), &err);
    publishes("new", "to", true);
    assert_true(holds(at("to/x"), "2"));
    assert_int_equal(nib__path_kind(at("to.old")), NIB_PATH_NONE);
    /* If the old directory cannot be removed, it is not moved. */
    assert_int_equal(mkdir(at("to/below"), 0700), 0);
    make_directory("new", "3");
    refused(NIB_IO, nib__publish(at("new"), at("to"), true, &err), &err);
    assert_true(holds(at("to/x"), "2") && holds(at("new/x"), "3"));
    removed(at("to/below"));
    publishes("new", "to", true);
    removed(at("to"));
}

static void test_publish_mixed(void **state)
{
    (void)state;
    make_directory("new", "1");
    put(at("to"), "file", 4);
    publishes("new", "to", true);
    assert_true(holds(at("to/x"), "1"));
    put(at("new"), "file", 4);
    publishes("new", "to", true);
    assert_true(holds(at("to"), "file"));
    removed(at("to"));
}

static void test_publish_aside(void **state)
{
    (void)state;
    nib_err err = {0};
    make_directory("to", "1");
    make_directory("new", "2");
    make_directory("to.old", "left by a killed run");
    put(at("to.old/.nibble-part"), "nibpart\n", 8);
    assert_int_equal(nib__publish_aside(at("new"), at("to"), &err), NIB_OK);
    assert_true(holds(at("to/x"), "2"));
    assert_int_equal(nib__path_kind(at("to.old")), NIB_PATH_NONE);
    make_directory("new", "3");
    make_directory("to.old", "mine"); /* a directory of others is kept */
    assert_int_equal(nib__publish_aside(at("new"), at("to"), &err), NIB_OK);
    assert_true(holds(at("to/x"), "3") && holds(at("to.old/x"), "mine"));
    assert_int_equal(nib__path_kind(at("to.old-2")), NIB_PATH_NONE);
    removed(at("to.old"));
    assert_int_equal(nib__path_kind(at("new")), NIB_PATH_NONE);
    refused(NIB_IO, nib__publish_aside(at("new"), at("to"), &err), &err); /* nothing to publish */
    assert_true(holds(at("to/x"), "3"));
    assert_int_equal(nib__path_kind(at("to.old")), NIB_PATH_NONE);
    removed(at("to"));
}

/* A part never takes a name in use; leftovers of a killed run are recognized by their mark. */
static void test_part_names(void **state)
{
    (void)state;
    char part[NIB_PART_PATH];
    nib_err err = {0};
    assert_int_equal(nib__part_choose(part, at("out"), ".part", &err), NIB_OK);
    assert_string_equal(part, at("out.part"));
    assert_int_equal(nib__part_directory(part, &err), NIB_OK);
    put(at("out.part/x"), "1", 1);
    assert_int_equal(nib__part_choose(part, at("out"), ".part", &err),
                     NIB_OK); /* ours is removed */
    assert_string_equal(part, at("out.part"));
    assert_int_equal(nib__path_kind(part), NIB_PATH_NONE);
    /* an empty file, zeros, a link to a marked file, a directory: all are kept */
    put(at("marked"), "nibpart\n", 8);
    put(at("out.part"), "", 0);
    put(at("out.part-2"), "\0\0\0\0\0\0\0\0", 8);
    assert_int_equal(symlink(at("marked"), at("out.part-3")), 0);
    make_directory("out.part-4", "mine");
    assert_int_equal(nib__part_choose(part, at("out"), ".part", &err), NIB_OK);
    assert_string_equal(part, at("out.part-5"));
    for (int i = 1; i <= 4; i++) {
        char name[32];
        snprintf(name, sizeof name, i == 1 ? "out.part" : "out.part-%d", i);
        removed(at(name));
    }
    removed(at("marked"));
    /* a directory's mark is known by its name: a power cut may leave it empty, or zeros */
    for (size_t size = 0; size <= 8; size += 8) {
        make_directory("out.part", "half");
        put(at("out.part/.nibble-part"), "\0\0\0\0\0\0\0\0", size);
        assert_int_equal(nib__part_choose(part, at("out"), ".part", &err), NIB_OK);
        assert_string_equal(part, at("out.part"));
        assert_int_equal(nib__path_kind(part), NIB_PATH_NONE);
        make_directory("out", "old");
        put(at("out/.nibble-part"), "\0\0\0\0\0\0\0\0", size);
        make_directory("out.part", "new");
        publishes("out.part", "out", true);
        assert_true(holds(at("out/x"), "new"));
        removed(at("out"));
    }
    make_directory("out.part", "mine"); /* a file of others that has the mark's name */
    put(at("out.part/.nibble-part"), "not a mark", 10);
    assert_int_equal(nib__part_choose(part, at("out"), ".part", &err), NIB_OK);
    assert_string_equal(part, at("out.part-2"));
    removed(at("out.part"));
    assert_int_equal(nib__part_directory(at("out.part"), &err), NIB_OK);
    publishes("out.part", "out", false);
    assert_int_equal(nib__path_kind(at("out/.nibble-part")), NIB_PATH_NONE);
    removed(at("out"));
}

/* Names without a directory part, and with trailing slashes. */
static void test_publish_relative(void **state)
{
    (void)state;
    char before[1024];
    nib_err err = {0};
    assert_non_null(getcwd(before, sizeof before));
    assert_int_equal(chdir(root), 0);
    put("new", "1", 1);
    assert_int_equal(nib__publish("new", "to", false, &err), NIB_OK);
    assert_true(holds("to", "1"));
    removed("to");
    make_directory("new", "2");
    assert_int_equal(nib__publish("new/", "to/", false, &err), NIB_OK);
    assert_true(holds("to/x", "2"));
    removed("to");
    assert_int_equal(chdir(before), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_map),
        cmocka_unit_test(test_map_read_detects_writes),
        cmocka_unit_test(test_map_release),
        cmocka_unit_test(test_not_regular),
        cmocka_unit_test(test_read),
        cmocka_unit_test(test_read_unknown_size),
        cmocka_unit_test(test_paths),
        cmocka_unit_test(test_remove),
        cmocka_unit_test(test_output),
        cmocka_unit_test(test_file_write),
        cmocka_unit_test(test_output_extend),
        cmocka_unit_test(test_within),
        cmocka_unit_test(test_output_sizes),
        cmocka_unit_test(test_abandoned_output),
        cmocka_unit_test(test_failed_write),
        cmocka_unit_test(test_output_without_memory),
        cmocka_unit_test(test_lock),
        cmocka_unit_test(test_publish_file),
        cmocka_unit_test(test_replace),
        cmocka_unit_test(test_head_is_written_last),
        cmocka_unit_test(test_part_names),
        cmocka_unit_test(test_large_mark_is_synced),
        cmocka_unit_test(test_publish_synced),
        cmocka_unit_test(test_publish_directory),
        cmocka_unit_test(test_publish_mixed),
        cmocka_unit_test(test_publish_aside),
        cmocka_unit_test(test_publish_relative),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
