/* SPDX-License-Identifier: Apache-2.0
 *
 * The file: a head, a table of entries, then records, each at the offset of its entry. An entry is
 * written after its record, and erased before another one takes its place.
 */
#include "record_file.h"
#include "file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum { VERSION = 1, SLOTS = 4096, HEAD = 4096 };

/* Little-endian, as every processor that Nibble supports. */
typedef struct head {
    char magic[8];
    uint64_t version, bytes, slots;
} head;

typedef struct entry {
    nib_hash key;
    uint64_t offset, size; /* size 0: free */
    uint64_t used;         /* counts uses */
    nib_hash content;
    uint64_t check; /* of the members before it */
} entry;
_Static_assert(sizeof(entry) == 64, "a power of two, so that none crosses a page");

enum { DATA = HEAD + SLOTS * (int)sizeof(entry) };

struct nib_record_file {
    const nib_allocator *allocator;
    char *path, *lock_path;
    int fd, lock;
    uint64_t bytes, clock;
    entry entries[SLOTS];
    /* the record that is being written; size 0: none */
    entry writing;
    uint64_t written;
    nib_hasher *hasher;
};

static const char magic[8] = {'n', 'i', 'b', 'r', 'e', 'c', 'r', 'd'};

/* ---- bytes of the file ---- */

static nib_status write_at(nib_record_file *f, uint64_t offset, const void *bytes, size_t size,
                           nib_err *err)
{
    const char *at = bytes;
    while (size > 0) {
        const ssize_t done = pwrite(f->fd, at, size, (off_t)offset);
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return nib__file_fail(err, f->path, "write");
        at += done, offset += (uint64_t)done, size -= (size_t)done;
    }
    return NIB_OK;
}

/* False: the file ends before, or cannot be read. */
static bool read_at(const nib_record_file *f, uint64_t offset, void *bytes, size_t size)
{
    char *at = bytes;
    while (size > 0) {
        const ssize_t done = pread(f->fd, at, size, (off_t)offset);
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return false;
        at += done, offset += (uint64_t)done, size -= (size_t)done;
    }
    return true;
}

static uint64_t check_of(const entry *e) { return nib__hash_bytes(e, offsetof(entry, check)).low; }

static nib_status write_entry(nib_record_file *f, const entry *e, nib_err *err)
{
    return write_at(f, HEAD + (uint64_t)(e - f->entries) * sizeof *e, e, sizeof *e, err);
}

/* ---- opening ---- */

static nib_status make_new(nib_record_file *f, nib_err *err)
{
    head h = {.version = VERSION, .bytes = f->bytes, .slots = SLOTS};
    memcpy(h.magic, magic, sizeof magic);
    memset(f->entries, 0, sizeof f->entries);
    if (ftruncate(f->fd, 0) != 0 || !nib__fd_allocate(f->fd, f->bytes))
        return nib__file_fail(err, f->path, "allocate its space");
    NIB_TRY(write_at(f, HEAD, f->entries, sizeof f->entries, err));
    return write_at(f, 0, &h, sizeof h, err);
}

/* Forgets entries that were torn, or lie outside the file. */
static void check_entries(nib_record_file *f)
{
    for (size_t i = 0; i < SLOTS; i++) {
        entry *e = &f->entries[i];
        const bool good = e->size > 0 && e->check == check_of(e) && e->offset >= DATA &&
                          e->offset <= f->bytes && e->size <= f->bytes - e->offset;
        if (!good)
            *e = (entry){.size = 0};
        f->clock = good && e->used > f->clock ? e->used : f->clock;
    }
}

static nib_status open_file(nib_record_file *f, const char *directory, nib_err *err)
{
    head h = {.version = 0};
    struct stat st;
    NIB_TRY(nib__directories_make(directory, err));
    NIB_TRY(nib__lock_take(&f->lock, f->lock_path, err));
    f->fd = open(f->path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (f->fd < 0 || fstat(f->fd, &st) != 0)
        return nib__file_fail(err, f->path, "open");
    if (!S_ISREG(st.st_mode) ||
        (st.st_size > 0 && (!read_at(f, 0, &h, sizeof h) || memcmp(h.magic, magic, sizeof magic))))
        return nib__fail(err, NIB_IO,
                         "%s: is not a file of records; remove it, or name another directory",
                         f->path);
    if (h.version != VERSION || h.bytes != f->bytes || h.slots != SLOTS ||
        (uint64_t)st.st_size != f->bytes || !read_at(f, HEAD, f->entries, sizeof f->entries))
        return make_new(f, err);
    check_entries(f);
    return NIB_OK;
}

static char *join(const nib_allocator *a, const char *directory, const char *name)
{
    const size_t size = strlen(directory) + strlen(name) + 2;
    char *path = nib__calloc(a, size, 1);
    if (path != NULL)
        snprintf(path, size, "%s/%s", directory, name);
    return path;
}

nib_status nib__records_open(nib_record_file **out, const char *directory, uint64_t bytes,
                             const nib_allocator *a, nib_err *err)
{
    nib_status status = NIB_OK;
    if (bytes < 2 * DATA || bytes > INT64_MAX)
        return nib__fail(err, NIB_USAGE, "%s: %" PRIu64 " bytes are not between %d and 2^63",
                         directory, bytes, 2 * DATA);
    nib_record_file *f = nib__calloc(a, 1, sizeof *f);
    if (f == NULL)
        return nib__fail_memory(err, sizeof *f, "a file of records");
    f->allocator = a, f->bytes = bytes, f->fd = f->lock = -1;
    f->path = join(a, directory, "records");
    f->lock_path = join(a, directory, "records.lock");
    if (f->path == NULL || f->lock_path == NULL)
        status = nib__fail_memory(err, strlen(directory), "a path");
    if (status == NIB_OK)
        status = open_file(f, directory, err);
    if (status != NIB_OK) {
        nib__records_close(f);
        return status;
    }
    *out = f;
    return NIB_OK;
}

void nib__records_close(nib_record_file *f)
{
    if (f == NULL)
        return;
    if (f->hasher != NULL)
        (void)nib__hasher_finish(f->hasher);
    if (f->fd >= 0)
        close(f->fd);
    nib__lock_release(f->lock, f->lock_path);
    nib__release(f->allocator, f->path);
    nib__release(f->allocator, f->lock_path);
    nib__release(f->allocator, f);
}

/* ---- reading ---- */

static entry *find(const nib_record_file *f, nib_hash key)
{
    for (size_t i = 0; i < SLOTS; i++)
        if (f->entries[i].size > 0 && nib__hash_equal(f->entries[i].key, key))
            return (entry *)&f->entries[i];
    return NULL;
}

bool nib__records_has(const nib_record_file *f, nib_hash key) { return find(f, key) != NULL; }

static nib_status erase(nib_record_file *f, entry *e, nib_err *err)
{
    *e = (entry){.size = 0};
    return write_entry(f, e, err);
}

void nib__records_remove(nib_record_file *f, nib_hash key)
{
    entry *e = find(f, key);
    if (e != NULL)
        (void)erase(f, e, NULL); /* if the file keeps it, it is found again, as before */
}

/* Marks a record as used now. If that cannot be written, it only seems older after a restart. */
static void use(nib_record_file *f, entry *e)
{
    e->used = ++f->clock;
    e->check = check_of(e);
    (void)write_entry(f, e, NULL);
}

nib_status nib__records_read(nib_record_file *f, nib_hash key, char **out, size_t *size,
                             nib_err *err)
{
    entry *e = find(f, key);
    if (e == NULL)
        return nib__fail(err, NIB_USAGE, "%s: has no such record", f->path);
    char *bytes = nib__calloc(f->allocator, e->size, 1);
    if (bytes == NULL)
        return nib__fail_memory(err, e->size, "a record");
    if (!read_at(f, e->offset, bytes, (size_t)e->size) ||
        !nib__hash_equal(nib__hash_bytes(bytes, e->size), e->content)) {
        nib__release(f->allocator, bytes);
        (void)erase(f, e, NULL);
        return nib__fail(err, NIB_BAD_INPUT, "%s: a record is damaged, and is removed", f->path);
    }
    use(f, e);
    *out = bytes;
    *size = (size_t)e->size;
    return NIB_OK;
}

/* ---- writing ---- */

static int by_offset(const void *a, const void *b)
{
    const entry *x = *(const entry *const *)a, *y = *(const entry *const *)b;
    return (x->offset > y->offset) - (x->offset < y->offset);
}

/* The first gap of `size` bytes between records; 0: there is none. */
static uint64_t find_gap(const nib_record_file *f, uint64_t size)
{
    const entry *list[SLOTS];
    size_t count = 0;
    uint64_t at = DATA;
    for (size_t i = 0; i < SLOTS; i++)
        if (f->entries[i].size > 0)
            list[count++] = &f->entries[i];
    qsort(list, count, sizeof *list, by_offset);
    for (size_t i = 0; i < count; i++) {
        if (list[i]->offset >= at && list[i]->offset - at >= size)
            return at;
        const uint64_t end = list[i]->offset + list[i]->size;
        at = end > at ? end : at;
    }
    return f->bytes - at >= size ? at : 0;
}

/* The free entry, or the one that was not used for longest. */
static entry *find_oldest(nib_record_file *f)
{
    entry *oldest = &f->entries[0];
    for (size_t i = 1; i < SLOTS && oldest->size > 0; i++)
        if (f->entries[i].size == 0 || f->entries[i].used < oldest->used)
            oldest = &f->entries[i];
    return oldest;
}

static entry *oldest_record(nib_record_file *f)
{
    entry *oldest = NULL;
    for (size_t i = 0; i < SLOTS; i++)
        if (f->entries[i].size > 0 && (oldest == NULL || f->entries[i].used < oldest->used))
            oldest = &f->entries[i];
    return oldest;
}

nib_status nib__records_begin(nib_record_file *f, nib_hash key, uint64_t size, nib_err *err)
{
    uint64_t at;
    struct stat st;
    if (fstat(f->fd, &st) == 0 && st.st_nlink == 0)
        return nib__fail(err, NIB_IO,
                         "%s: the file was removed while it was open; open the directory again to "
                         "keep records",
                         f->path);
    if (size == 0 || size > f->bytes - DATA)
        return nib__fail(err, NIB_USAGE, "%s: a record of %" PRIu64 " bytes does not fit", f->path,
                         size);
    nib__records_remove(f, key);
    while ((at = find_gap(f, size)) == 0)
        NIB_TRY(erase(f, oldest_record(f), err));
    if (f->hasher != NULL)
        (void)nib__hasher_finish(f->hasher);
    f->hasher = nib__hasher_open();
    f->writing = (entry){.key = key, .offset = at, .size = f->hasher != NULL ? size : 0};
    f->written = 0;
    return f->hasher != NULL ? NIB_OK : nib__fail_memory(err, 1024, "a hash");
}

nib_status nib__records_write(nib_record_file *f, const void *bytes, size_t size, nib_err *err)
{
    if (size > f->writing.size - f->written)
        return nib__fail(err, NIB_FAILED, "%s: more bytes than the record has", f->path);
    nib__hasher_add(f->hasher, bytes, size);
    NIB_TRY(write_at(f, f->writing.offset + f->written, bytes, size, err));
    f->written += size;
    return NIB_OK;
}

nib_status nib__records_end(nib_record_file *f, nib_err *err)
{
    entry *to = find_oldest(f);
    if (f->writing.size == 0 || f->written != f->writing.size)
        return nib__fail(err, NIB_FAILED, "%s: fewer bytes than the record has", f->path);
    *to = f->writing;
    to->content = nib__hasher_finish(f->hasher);
    to->used = ++f->clock;
    to->check = check_of(to);
    f->hasher = NULL;
    f->writing = (entry){.size = 0};
    return write_entry(f, to, err);
}

nib_records_counts nib__records_count(const nib_record_file *f)
{
    nib_records_counts c = {.bytes_most = f->bytes - DATA};
    for (size_t i = 0; i < SLOTS; i++) {
        c.records += f->entries[i].size > 0;
        c.bytes += f->entries[i].size;
    }
    return c;
}
