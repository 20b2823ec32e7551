/* SPDX-License-Identifier: Apache-2.0
 *
 * Mutates a zip file as structure: members are renamed, repeated, removed and edited. Local
 * headers, descriptors, zip64 fields, directory and end records are written to agree, or with one
 * number wrong in one place.
 */
#ifndef NIB_TESTS_MUTATE_ZIP_H
#define NIB_TESTS_MUTATE_ZIP_H

#include "mutate.h"

enum { ZF_MEMBERS = 32 };

typedef struct zf_member {
    piece name, data, extra; /* extra: of the local header, which pads the data */
    uint32_t crc;
    unsigned flags, method;
    uint64_t at; /* where the local header was written */
} zf_member;

typedef struct zf_file {
    zf_member members[ZF_MEMBERS];
    size_t count;
} zf_file;

static inline bool zf_read_member(zf_member *z, const uint8_t *data, size_t size,
                                  const uint8_t *entry)
{
    const size_t from = (size_t)number_at(entry + 42, 4), stored = (size_t)number_at(entry + 20, 4);
    *z = (zf_member){.flags = (unsigned)number_at(entry + 8, 2),
                     .method = (unsigned)number_at(entry + 10, 2),
                     .crc = (uint32_t)number_at(entry + 16, 4),
                     .name = {entry + 46, (size_t)number_at(entry + 28, 2)}};
    if (from > size || size - from < 30)
        return false;
    const size_t extra = (size_t)number_at(data + from + 28, 2);
    const size_t begin = from + 30 + (size_t)number_at(data + from + 26, 2);
    if (begin > size || extra > size - begin || stored > size - begin - extra)
        return false;
    z->extra = (piece){data + begin, extra};
    z->data = (piece){data + begin + extra, stored};
    return true;
}

/* False: no end record, or its directory is damaged. */
static inline bool zf_read(zf_file *f, const uint8_t *data, size_t size)
{
    *f = (zf_file){.count = 0};
    if (size < 22)
        return false;
    const uint8_t *end = data + size - 22;
    size_t at = (size_t)number_at(end + 16, 4), count = (size_t)number_at(end + 10, 2);
    if (number_at(end, 4) != 0x06054b50 || count >= ZF_MEMBERS)
        return false;
    for (; f->count < count; f->count++) {
        if (at > size || size - at < 46)
            return false;
        const size_t rest = (size_t)number_at(data + at + 28, 2) +
                            (size_t)number_at(data + at + 30, 2) +
                            (size_t)number_at(data + at + 32, 2);
        if (rest > size - at - 46 || !zf_read_member(&f->members[f->count], data, size, data + at))
            return false;
        at += 46 + rest;
    }
    return true;
}

/* A pickle with an instruction of torch.save added somewhere. */
static inline piece zf_edit_pickle(mutant *m, piece pickle)
{
    static const char *const codes[] = {"ctorch._utils\n_rebuild_tensor_v2\n",
                                        "ctorch\nFloatStorage\n",
                                        "ctorch\nBFloat16Storage\n",
                                        "ctorch._utils\n_rebuild_parameter\n",
                                        "ccollections\nOrderedDict\n",
                                        "cos\nsystem\n",
                                        "X\001\000\000\000a",
                                        "K\001",
                                        "M\001\001",
                                        "J\377\377\377\377",
                                        "\x8a\001\377",
                                        "q\001",
                                        "h\001",
                                        "r\001\001\000\000",
                                        "(",
                                        "t",
                                        "}",
                                        "]",
                                        "e",
                                        "u",
                                        "s",
                                        "Q",
                                        "R",
                                        "\x85",
                                        "\x86",
                                        "\x87",
                                        "\x88",
                                        "\x89",
                                        "N",
                                        ")",
                                        "\x94",
                                        "\x8c\001a",
                                        "\x93",
                                        "b",
                                        "0",
                                        "1",
                                        "2",
                                        ".",
                                        "G\077\360\0\0"};
    const size_t at = roll(m, pickle.size + 1);
    const piece code = piece_of(codes[roll(m, COUNT(codes))]);
    return join_pieces(m, join_pieces(m, (piece){pickle.at, at}, code),
                       (piece){pickle.at + at, pickle.size - at});
}

static inline void zf_edit(mutant *m, zf_file *f)
{
    static const char *const names[] = {"a/data.pkl", "a/byteorder", "a/version",       "a/data/0",
                                        "a/data/1",   "a/code/x.py", "a/constants.pkl", "../a",
                                        "/a",         "a/.data/x"};
    if (f->count == 0)
        return;
    zf_member *z = &f->members[roll(m, f->count)];
    switch (roll(m, 10)) {
    case 0: z->name = piece_of(names[roll(m, COUNT(names))]); break;
    case 1: z->name = f->members[roll(m, f->count)].name; break;
    case 2:
        if (f->count + 1 < ZF_MEMBERS)
            f->members[f->count++] = *z;
        break;
    case 3: *z = f->members[--f->count]; break;
    case 4: z->flags ^= 1u << roll(m, 16); break;
    case 5: z->flags ^= 1u << 3; break;
    case 6: z->name = scramble(m, z->name); break;
    case 7: z->data = scramble(m, z->data); break;
    case 8: z->data.size = smaller(roll_number(m, z->data.size), z->data.size); break;
    default:
        for (size_t i = 0; i < f->count; i++)
            if (piece_ends(f->members[i].name, "data.pkl"))
                f->members[i].data = roll(m, 2) == 0 ? scramble(m, f->members[i].data)
                                                     : zf_edit_pickle(m, f->members[i].data);
    }
}

/* A number, now and then a wrong one. */
static inline void zf_put(mutant *m, uint64_t value, int bytes, bool may_err)
{
    put_number(m, may_err && roll(m, 12) == 0 ? roll_number(m, value) : value, bytes);
}

static inline void zf_put_field64(mutant *m, uint64_t a, uint64_t b)
{
    put_number(m, 1, 2);
    put_number(m, 16, 2);
    put_number(m, a, 8);
    put_number(m, b, 8);
}

/* wide: sizes in a zip64 field. */
static inline void zf_put_local(mutant *m, zf_member *z, bool wide, bool err)
{
    const bool later = (z->flags & 1u << 3) != 0;
    const uint64_t size = later ? 0 : wide ? UINT32_MAX : z->data.size;
    z->at = m->size;
    put_number(m, 0x04034b50, 4);
    put_number(m, 20, 2);
    zf_put(m, z->flags, 2, err);
    zf_put(m, z->method, 2, err);
    put_number(m, 0, 4);
    zf_put(m, later ? 0 : z->crc, 4, err);
    zf_put(m, size, 4, err);
    zf_put(m, size, 4, err);
    zf_put(m, z->name.size, 2, err);
    zf_put(m, wide && !later ? 20 : z->extra.size, 2, err);
    put_piece(m, z->name.at, z->name.size);
    if (wide && !later)
        zf_put_field64(m, z->data.size, z->data.size);
    else
        put_piece(m, z->extra.at, z->extra.size);
    put_piece(m, z->data.at, z->data.size);
    if (!later)
        return;
    if (roll(m, 4) > 0)
        put_number(m, 0x08074b50, 4);
    zf_put(m, z->crc, 4, err);
    zf_put(m, z->data.size, wide ? 8 : 4, err);
    zf_put(m, z->data.size, wide ? 8 : 4, err);
}

static inline void zf_put_entry(mutant *m, const zf_member *z, bool wide, bool err)
{
    put_number(m, 0x02014b50, 4);
    put_number(m, 0, 4);
    zf_put(m, z->flags, 2, err);
    zf_put(m, z->method, 2, err);
    put_number(m, 0, 4);
    zf_put(m, z->crc, 4, err);
    zf_put(m, wide ? UINT32_MAX : z->data.size, 4, err);
    zf_put(m, wide ? UINT32_MAX : z->data.size, 4, err);
    zf_put(m, z->name.size, 2, err);
    zf_put(m, wide ? 20 : 0, 2, err);
    put_number(m, 0, 8); /* comment, disk, attributes */
    put_number(m, 0, 2);
    zf_put(m, z->at, 4, err);
    put_piece(m, z->name.at, z->name.size);
    if (wide)
        zf_put_field64(m, z->data.size, z->data.size);
}

static inline void zf_write(mutant *m, zf_file *f)
{
    const bool end64 = roll(m, 3) == 0, err = roll(m, 4) == 0;
    const size_t wide = roll(m, 4) == 0 && f->count > 0 ? roll(m, f->count) : SIZE_MAX;
    for (size_t i = 0; i < f->count; i++)
        zf_put_local(m, &f->members[i], i == wide, err);
    const size_t directory = m->size;
    for (size_t i = 0; i < f->count; i++)
        zf_put_entry(m, &f->members[i], i == wide, err);
    const size_t end = m->size;
    if (end64) {
        put_number(m, 0x06064b50, 4);
        zf_put(m, 44, 8, err);
        put_number(m, 0, 4);
        put_number(m, 0, 8);
        zf_put(m, f->count, 8, err);
        zf_put(m, f->count, 8, err);
        zf_put(m, end - directory, 8, err);
        zf_put(m, directory, 8, err);
        put_number(m, 0x07064b50, 4);
        zf_put(m, 0, 4, err);
        zf_put(m, end, 8, err);
        zf_put(m, 1, 4, err);
    }
    put_number(m, 0x06054b50, 4);
    put_number(m, 0, 4);
    zf_put(m, f->count, 2, err);
    zf_put(m, f->count, 2, err);
    zf_put(m, end - directory, 4, err);
    zf_put(m, directory, 4, err);
    zf_put(m, 0, 2, err);
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t most, unsigned seed)
{
    mutant m;
    zf_file file;
    mutant_init(&m, most, seed);
    uint8_t *const edits = m.edits;
    if (zf_read(&file, data, size) && roll(&m, 6) > 0) {
        for (size_t left = 1 + roll(&m, 3); left > 0; left--)
            zf_edit(&m, &file);
        zf_write(&m, &file);
    }
    return mutant_done(&m, data, size, most, edits);
}

#endif
