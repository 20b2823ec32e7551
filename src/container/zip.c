/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads a zip file from its end: end record (and its zip64 form), central directory, and for each
 * entry the local header and data descriptor. Checks that duplicated fields agree.
 *
 *   [local header, name, extra, data, descriptor]...  central directory  [zip64 end, locator]  end
 */
#include "zip.h"

#include "text.h"

#include <inttypes.h>

enum {
    LOCAL_SIZE = 30,
    ENTRY_SIZE = 46,
    END_SIZE = 22,
    LOCATOR_SIZE = 20,
    END64_SIZE = 56,
    FLAG_DESCRIPTOR = 1 << 3, /* sizes and checksum follow the data */
    FLAG_UTF8 = 1 << 11,
    EXTRA_ZIP64 = 1,
    NAME_LIMIT = 4096,
    SHOWN = 160,
};

static const uint32_t local_magic = 0x04034b50, entry_magic = 0x02014b50, end_magic = 0x06054b50,
                      end64_magic = 0x06064b50, locator_magic = 0x07064b50,
                      descriptor_magic = 0x08074b50;
static const uint64_t max16 = 0xffff, max32 = 0xffffffff;

typedef struct reader {
    const uint8_t *bytes;
    uint64_t size;
    const char *name; /* of the file, escaped for messages */
    nib_arena *arena;
    nib_err *err;
    uint64_t count, directory, directory_end; /* entries; file offsets of the directory */
    uint64_t at;                              /* offset of the next entry */
    nib_zip *out;
} reader;

/* The fields that a directory entry and a local header share. */
typedef struct header {
    unsigned flags, method;
    uint32_t crc;
    uint64_t stored, plain; /* compressed and uncompressed size */
    const char *name;       /* not terminated */
    size_t name_size;
    const uint8_t *extra;
    size_t extra_size;
    const uint8_t *zip64; /* the zip64 field in extra, or NULL */
    size_t zip64_size;
} header;

static uint64_t le(const uint8_t *at, int bytes)
{
    uint64_t value = 0;
    for (int i = bytes; i-- > 0;)
        value = value << 8 | at[i];
    return value;
}

static nib_status fail(const reader *r, const char *sentence)
{
    return nib__fail(r->err, NIB_BAD_INPUT, "%s: %s", r->name, sentence);
}

/* ---- the end record ---- */

/* A field of the end record equals the zip64 record's field, or is saturated because that is too
 * large. */
static bool agrees(uint64_t small, uint64_t large, uint64_t saturated)
{
    return small == large || (small == saturated && large >= saturated);
}

static nib_status read_end64(reader *r, const uint8_t *end)
{
    const uint64_t locator = r->size - END_SIZE - LOCATOR_SIZE;
    const uint64_t at = le(r->bytes + locator + 8, 8);
    if (le(r->bytes + locator + 4, 4) != 0 || le(r->bytes + locator + 16, 4) > 1)
        return fail(r, "the zip file is part of a multi-part archive, which PyTorch never writes");
    if (locator < END64_SIZE || at != locator - END64_SIZE || le(r->bytes + at, 4) != end64_magic ||
        le(r->bytes + at + 4, 8) != END64_SIZE - 12)
        return nib__fail(r->err, NIB_BAD_INPUT,
                         "%s: no zip64 end record of %d bytes at byte %" PRIu64
                         ", where the locator points",
                         r->name, END64_SIZE, at);
    const uint8_t *record = r->bytes + at;
    const uint64_t entries = le(record + 32, 8), size = le(record + 40, 8);
    r->directory = le(record + 48, 8);
    r->count = entries;
    r->directory_end = at;
    if (le(record + 16, 8) != 0 || le(record + 24, 8) != entries)
        return fail(r, "the zip file is part of a multi-part archive, which PyTorch never writes");
    if (!agrees(le(end + 8, 2), entries, max16) || !agrees(le(end + 10, 2), entries, max16) ||
        !agrees(le(end + 12, 4), size, max32) || !agrees(le(end + 16, 4), r->directory, max32))
        return fail(r,
                    "the end record and the zip64 end record disagree about the central directory");
    if (r->directory > at || size != at - r->directory)
        return nib__fail(r->err, NIB_BAD_INPUT,
                         "%s: a central directory of %" PRIu64 " bytes from byte %" PRIu64
                         " does not end at the zip64 end record, byte %" PRIu64,
                         r->name, size, r->directory, at);
    return NIB_OK;
}

static nib_status read_end(reader *r)
{
    if (r->size < END_SIZE || le(r->bytes + r->size - END_SIZE, 4) != end_magic ||
        le(r->bytes + r->size - 2, 2) != 0)
        return nib__fail(r->err, NIB_BAD_INPUT,
                         "%s: the zip file does not end with its end record: it is cut short, or "
                         "something was added to its end",
                         r->name);
    const uint64_t at = r->size - END_SIZE;
    const uint8_t *end = r->bytes + at;
    if (at >= LOCATOR_SIZE && le(end - LOCATOR_SIZE, 4) == locator_magic)
        return read_end64(r, end);
    const uint64_t size = le(end + 12, 4);
    r->count = le(end + 10, 2);
    r->directory = le(end + 16, 4);
    r->directory_end = at;
    if (le(end + 4, 4) != 0 || le(end + 8, 2) != r->count)
        return fail(r, "the zip file is part of a multi-part archive, which PyTorch never writes");
    if (r->directory > at || size != at - r->directory)
        return nib__fail(r->err, NIB_BAD_INPUT,
                         "%s: a central directory of %" PRIu64 " bytes from byte %" PRIu64
                         " does not end at the end record, byte %" PRIu64,
                         r->name, size, r->directory, at);
    return NIB_OK;
}

/* ---- one member ---- */

static nib_status fail_member(const reader *r, const header *h, nib_status status,
                              const char *sentence)
{
    char shown[SHOWN];
    return nib__fail(r->err, status, "%s: member \"%s\" %s", r->name,
                     nib__escape_name(shown, sizeof shown, h->name, h->name_size), sentence);
}

static nib_status find_zip64(const reader *r, header *h)
{
    const uint8_t *at = h->extra, *end = h->extra + h->extra_size;
    while (end - at >= 4) {
        const uint64_t id = le(at, 2), size = le(at + 2, 2);
        at += 4;
        if (size > (uint64_t)(end - at))
            return fail_member(r, h, NIB_BAD_INPUT,
                               "has an extra field that runs past the end of its extra data");
        if (id == EXTRA_ZIP64 && h->zip64 != NULL)
            return fail_member(r, h, NIB_BAD_INPUT, "has two zip64 fields");
        if (id == EXTRA_ZIP64) {
            h->zip64 = at;
            h->zip64_size = (size_t)size;
        }
        at += size;
    }
    return NIB_OK;
}

/* A local header may repeat the entry's zip64 field even if its own sizes follow the data: PyTorch
 * does so past 4 GiB, with 0 for values that it does not know yet. */
static bool repeats_zip64(const header *local, const header *entry)
{
    if (entry->zip64 == NULL || local->zip64_size != entry->zip64_size ||
        local->zip64_size % 8 != 0)
        return false;
    for (size_t at = 0; at < local->zip64_size; at += 8) {
        const uint64_t value = le(local->zip64 + at, 8);
        if (value != 0 && value != le(entry->zip64 + at, 8))
            return false;
    }
    return true;
}

/* Replaces saturated values by those of the zip64 field, in the same order; none may be left over.
 * entry: the directory entry if h is a local header, or NULL if h is the entry itself. */
static nib_status read_extra(const reader *r, header *h, uint64_t *const *values,
                             size_t value_count, const header *entry)
{
    size_t wanted = 0;
    NIB_TRY(find_zip64(r, h));
    for (size_t i = 0; i < value_count; i++)
        wanted += *values[i] == max32;
    if (h->zip64 == NULL)
        return wanted == 0
                   ? NIB_OK
                   : fail_member(r, h, NIB_BAD_INPUT, "has a size of 2^32 - 1 but no zip64 field");
    if (wanted == 0 && entry != NULL && repeats_zip64(h, entry))
        return NIB_OK;
    if (h->zip64_size != 8 * wanted)
        return fail_member(r, h, NIB_BAD_INPUT,
                           entry != NULL ? "has a zip64 field in its local header that does not "
                                           "match the sizes there"
                                         : "has a zip64 field that does not match its sizes");
    for (size_t i = 0, place = 0; i < value_count; i++)
        if (*values[i] == max32)
            *values[i] = le(h->zip64 + 8 * place++, 8);
    return NIB_OK;
}

static nib_status check_name(const reader *r, const header *h)
{
    const char *at = h->name, *end = h->name + h->name_size;
    if (at == end || h->name_size > NAME_LIMIT || *at == '/' || memchr(at, 0, h->name_size) ||
        memchr(at, '\\', h->name_size))
        return fail_member(r, h, NIB_BAD_INPUT, "has a name that is not a relative path");
    while (at < end) {
        const char *slash = memchr(at, '/', (size_t)(end - at));
        const char *stop = slash == NULL ? end : slash;
        if (stop - at == 2 && at[0] == '.' && at[1] == '.')
            return fail_member(r, h, NIB_BAD_INPUT, "has a name that leads out of the archive");
        at = stop + 1;
    }
    return NIB_OK;
}

static nib_status check_kind(const reader *r, const header *h)
{
    if ((h->flags & ~(unsigned)(FLAG_DESCRIPTOR | FLAG_UTF8)) != 0)
        return fail_member(r, h, NIB_UNSUPPORTED,
                           (h->flags & 1) != 0 ? "is encrypted, which PyTorch never does"
                                               : "has flags that PyTorch never sets");
    if (h->method != 0)
        return fail_member(r, h, NIB_UNSUPPORTED,
                           "is compressed, as in TorchScript archives; the members of a checkpoint "
                           "are stored uncompressed: load it and save its state_dict()");
    if (h->stored != h->plain)
        return fail_member(r, h, NIB_BAD_INPUT, "is stored uncompressed, but its two sizes differ");
    return NIB_OK;
}

/* Whether the `gap` bytes between the data and the next member are a descriptor (checksum and
 * sizes) that matches h, in any of the four forms in use. */
static bool matches_descriptor(const uint8_t *at, uint64_t gap, const header *h)
{
    if (gap >= 16 && le(at, 4) == descriptor_magic && (gap == 16 || gap == 24)) {
        at += 4;
        gap -= 4;
    }
    const int size = gap == 12 ? 4 : 8;
    return (gap == 12 || gap == 20) && le(at, 4) == h->crc && le(at + 4, size) == h->stored &&
           le(at + 4 + size, size) == h->plain;
}

/* Checks the local header at `from` against the directory entry h and fills `out` except the name.
 * The descriptor is checked later, when the next member is known. */
static nib_status read_local(const reader *r, const header *h, uint64_t from, nib_zip_member *out)
{
    header local;
    if (from > r->directory || r->directory - from < LOCAL_SIZE ||
        le(r->bytes + from, 4) != local_magic)
        return fail_member(r, h, NIB_BAD_INPUT,
                           "has no local header at the offset in the directory");
    const uint8_t *at = r->bytes + from;
    local = (header){.flags = (unsigned)le(at + 6, 2),
                     .method = (unsigned)le(at + 8, 2),
                     .crc = (uint32_t)le(at + 14, 4),
                     .stored = le(at + 18, 4),
                     .plain = le(at + 22, 4),
                     .name = (const char *)at + LOCAL_SIZE,
                     .name_size = (size_t)le(at + 26, 2),
                     .extra_size = (size_t)le(at + 28, 2)};
    const uint64_t begin = from + LOCAL_SIZE + local.name_size + local.extra_size;
    if (begin > r->directory || h->stored > r->directory - begin)
        return nib__fail(r->err, NIB_BAD_INPUT,
                         "%s: a member of %" PRIu64 " bytes at byte %" PRIu64
                         " ends past the data, byte %" PRIu64
                         ": the file is cut short or its directory is wrong",
                         r->name, h->stored, from, r->directory);
    local.extra = at + LOCAL_SIZE + local.name_size;
    if (local.name_size != h->name_size || memcmp(local.name, h->name, h->name_size) != 0)
        return fail_member(r, h, NIB_BAD_INPUT, "has a different name in its local header");
    NIB_TRY(read_extra(r, &local, (uint64_t *const[]){&local.plain, &local.stored}, 2, h));
    const bool later = (h->flags & FLAG_DESCRIPTOR) != 0 && local.crc == 0 && local.stored == 0 &&
                       local.plain == 0;
    if (local.flags != h->flags || local.method != h->method ||
        (!later && (local.crc != h->crc || local.stored != h->stored || local.plain != h->plain)))
        return fail_member(r, h, NIB_BAD_INPUT,
                           "has a local header that disagrees with the directory");
    out->data = r->bytes + begin;
    out->size = h->stored;
    out->begin = from;
    out->end = begin + h->stored;
    return NIB_OK;
}

/* ---- the directory ---- */

/* Keeps the header of a member until the offset of the next one is known, to check the descriptor.
 */
typedef struct entry {
    nib_zip_member member; /* name first, as nib_name_index requires */
    header header;
} entry;

static nib_status read_entry(reader *r, entry *out)
{
    const uint8_t *at = r->bytes + r->at;
    if (r->directory_end - r->at < ENTRY_SIZE || le(at, 4) != entry_magic)
        return nib__fail(r->err, NIB_BAD_INPUT, "%s: no central directory entry at byte %" PRIu64,
                         r->name, r->at);
    header *h = &out->header;
    *h = (header){.flags = (unsigned)le(at + 8, 2),
                  .method = (unsigned)le(at + 10, 2),
                  .crc = (uint32_t)le(at + 16, 4),
                  .stored = le(at + 20, 4),
                  .plain = le(at + 24, 4),
                  .name = (const char *)at + ENTRY_SIZE,
                  .name_size = (size_t)le(at + 28, 2),
                  .extra_size = (size_t)le(at + 30, 2)};
    const uint64_t size = ENTRY_SIZE + h->name_size + h->extra_size + le(at + 32, 2);
    if (size > r->directory_end - r->at)
        return nib__fail(r->err, NIB_BAD_INPUT,
                         "%s: the central directory entry at byte %" PRIu64
                         " runs past the end of the directory",
                         r->name, r->at);
    r->at += size;
    h->extra = at + ENTRY_SIZE + h->name_size;
    uint64_t from = le(at + 42, 4);
    NIB_TRY(check_name(r, h));
    NIB_TRY(read_extra(r, h, (uint64_t *const[]){&h->plain, &h->stored, &from}, 3, NULL));
    NIB_TRY(check_kind(r, h));
    if (le(at + 34, 2) != 0)
        return fail_member(r, h, NIB_BAD_INPUT, "is in another part of a multi-part archive");
    NIB_TRY(read_local(r, h, from, &out->member));
    out->member.name = nib__arena_copy(r->arena, h->name, h->name_size);
    return out->member.name == NULL ? nib__fail_memory(r->err, h->name_size, r->name) : NIB_OK;
}

/* Sorts entries by file offset. PyTorch's are sorted already. */
static void sort_by_offset(entry **items, entry **spare, size_t count)
{
    for (size_t width = 1; width < count; width *= 2) {
        for (size_t start = 0; start < count; start += 2 * width) {
            const size_t middle = start + width < count ? start + width : count;
            const size_t end = middle + width < count ? middle + width : count;
            size_t a = start, b = middle;
            for (size_t i = start; i < end; i++)
                spare[i] =
                    a < middle && (b == end || items[a]->member.begin <= items[b]->member.begin)
                        ? items[a++]
                        : items[b++];
        }
        memcpy(items, spare, count * sizeof *items);
    }
}

/* Checks that every byte before the directory belongs to exactly one member. */
static nib_status check_coverage(const reader *r, entry *const *sorted)
{
    uint64_t at = 0;
    for (size_t i = 0; i < r->count; i++) {
        const entry *e = sorted[i];
        const uint64_t next = i + 1 < r->count ? sorted[i + 1]->member.begin : r->directory;
        if (e->member.begin < at)
            return fail_member(r, &e->header, NIB_BAD_INPUT, "begins inside the member before it");
        if (e->member.begin > at)
            return nib__fail(r->err, NIB_BAD_INPUT,
                             "%s: bytes %" PRIu64 " to %" PRIu64 " belong to no member of the zip "
                             "file",
                             r->name, at, e->member.begin);
        at = e->member.end;
        if (next < at || (e->header.flags & FLAG_DESCRIPTOR) == 0)
            continue;
        if (!matches_descriptor(r->bytes + at, next - at, &e->header))
            return fail_member(r, &e->header, NIB_BAD_INPUT,
                               "has no data descriptor that matches the directory");
        at = next;
    }
    return at == r->directory
               ? NIB_OK
               : nib__fail(r->err, NIB_BAD_INPUT,
                           "%s: bytes %" PRIu64 " to %" PRIu64 " belong to no member of the zip "
                           "file",
                           r->name, at, r->directory);
}

static nib_status read_directory(reader *r, entry **items, entry *entries)
{
    char shown[SHOWN];
    r->at = r->directory;
    for (size_t i = 0; i < r->count; i++) {
        items[i] = &entries[i];
        NIB_TRY(read_entry(r, items[i]));
        r->out->members[i] = &items[i]->member;
        if (nib__name_index_add(&r->out->by_name, (const void *const *)r->out->members, i) != NULL)
            return nib__fail(r->err, NIB_BAD_INPUT, "%s: member \"%s\" appears twice", r->name,
                             nib__escape_name(shown, sizeof shown, entries[i].member.name,
                                              strlen(entries[i].member.name)));
    }
    if (r->at != r->directory_end)
        return nib__fail(r->err, NIB_BAD_INPUT,
                         "%s: the central directory has more than the %" PRIu64
                         " entries that its end record counts",
                         r->name, r->count);
    return NIB_OK;
}

nib_status nib__zip_read(nib_zip *out, const uint8_t *bytes, uint64_t size, const char *name,
                         nib_arena *arena, nib_err *err)
{
    nib_zip zip = {0};
    reader r = {
        .bytes = bytes, .size = size, .name = name, .arena = arena, .err = err, .out = &zip};
    NIB_TRY(read_end(&r));
    if (r.count > (r.directory_end - r.directory) / ENTRY_SIZE)
        return nib__fail(err, NIB_BAD_INPUT,
                         "%s: the end record counts %" PRIu64 " members, but the central directory "
                         "has %" PRIu64 " bytes",
                         name, r.count, r.directory_end - r.directory);
    const size_t count = (size_t)r.count;
    entry *entries = nib__arena_take(arena, count, sizeof *entries);
    entry **items = nib__arena_take(arena, count, sizeof *items),
          **spare = nib__arena_take(arena, count, sizeof *spare);
    zip.members = nib__arena_take(arena, count, sizeof *zip.members);
    zip.count = count;
    if (entries == NULL || items == NULL || spare == NULL || zip.members == NULL ||
        !nib__name_index_init(&zip.by_name, arena, count))
        return nib__fail_memory(err, count * sizeof *entries, name);
    NIB_TRY(read_directory(&r, items, entries));
    sort_by_offset(items, spare, count);
    NIB_TRY(check_coverage(&r, items));
    *out = zip;
    return NIB_OK;
}

const nib_zip_member *nib__zip_find(const nib_zip *zip, const char *name)
{
    const size_t i = nib__name_index_find(&zip->by_name, (const void *const *)zip->members, name);
    return i == SIZE_MAX ? NULL : zip->members[i];
}
