/* SPDX-License-Identifier: Apache-2.0
 *
 * Zip files: stored members are found; everything that two readers could interpret differently, or
 * that leads outside the file, is refused with its name.
 */
#include "zip.h"
#include "zip_build.h"

#include <stdarg.h>
#include <stdio.h>
#include <setjmp.h>
#include <cmocka.h>

#include "refused.h"

static const zip_part parts[] = {
    {"a/data.pkl", "0123456789", 10}, {"a/data/0", "abc", 3}, {"a/version", "3\n", 2}};

typedef struct opened {
    nib_allocator allocator;
    nib_arena arena;
    nib_zip zip;
    nib_err err;
    nib_status status;
} opened;

static void open_bytes(opened *o, const uint8_t *bytes, size_t size)
{
    /* exactly as long as the file, so that a sanitizer catches every read outside */
    uint8_t *copy = malloc(size == 0 ? 1 : size);
    memcpy(copy, bytes, size);
    *o = (opened){.allocator = nib__allocator_default(), .err = {NIB_OK, ""}};
    nib__arena_init(&o->arena, &o->allocator, 2 * size + (64 << 20));
    o->status = nib__zip_read(&o->zip, copy, size, "x.pt", &o->arena, &o->err);
    if (o->status == NIB_OK)
        for (size_t i = 0; i < o->zip.count; i++) {
            const nib_zip_member *m = o->zip.members[i];
            assert_true(m->data >= copy && m->data + m->size <= copy + size);
            assert_ptr_equal(nib__zip_find(&o->zip, m->name), m);
        }
    free(copy);
}

static void drop(opened *o) { nib__arena_free(&o->arena); }

static void expect_refused(const uint8_t *bytes, size_t size, nib_status status)
{
    opened o;
    open_bytes(&o, bytes, size);
    refused(status, o.status, &o.err);
    assert_null(o.zip.members);
    drop(&o);
}

static void test_forms(void **state)
{
    (void)state;
    for (int form = 0; form < 4; form++) {
        zip_built z = build_zip(parts, COUNT(parts), form & 1, form & 2);
        opened o;
        open_bytes(&o, z.bytes, z.size);
        if (o.status != NIB_OK)
            fail_msg("form %d: %s", form, o.err.text);
        assert_int_equal(o.zip.count, 3);
        assert_string_equal(o.zip.members[1]->name, "a/data/0");
        assert_int_equal(o.zip.members[1]->size, 3);
        assert_null(nib__zip_find(&o.zip, "a/data"));
        drop(&o);
        /* no byte may be missing or added */
        for (size_t size = 0; size < z.size; size++) {
            open_bytes(&o, z.bytes, size);
            assert_int_not_equal(o.status, NIB_OK);
            assert_true(o.err.text[0] != 0);
            drop(&o);
        }
        free(z.bytes);
    }
    zip_built z = build_zip(parts, 0, false, false);
    opened o;
    open_bytes(&o, z.bytes, z.size);
    assert_int_equal(o.status, NIB_OK);
    assert_int_equal(o.zip.count, 0);
    drop(&o);
    free(z.bytes);
}

/* ---- one field changed ---- */

typedef enum record { LOCAL, ENTRY, END, END64, LOCATOR, DESCRIPTOR } record;

static size_t place_of(const zip_built *z, record r, int member)
{
    switch (r) {
    case LOCAL: return z->local[member];
    case ENTRY: return z->entry[member];
    case END: return z->end;
    case END64: return z->end64;
    case LOCATOR: return z->locator;
    default: return z->data[member] + parts[member].size;
    }
}

static void test_rejects_bad_fields(void **state)
{
    (void)state;
    enum { PLAIN, WITH_DESCRIPTOR, ZIP64 };
    static const struct {
        int form;
        record record;
        int member, offset, bytes;
        uint64_t value;
        nib_status status;
    } cases[] = {
        /* compressed, encrypted, in parts */
        {PLAIN, ENTRY, 0, 10, 2, 8, NIB_UNSUPPORTED},      /* is compressed */
        {PLAIN, ENTRY, 0, 8, 2, 1, NIB_UNSUPPORTED},       /* is encrypted */
        {PLAIN, ENTRY, 0, 8, 2, 1 << 13, NIB_UNSUPPORTED}, /* flags that PyTorch never sets */
        {PLAIN, ENTRY, 1, 34, 2, 1, NIB_BAD_INPUT},        /* another part */
        {PLAIN, END, 0, 4, 2, 1, NIB_BAD_INPUT},           /* multi-part archive */
        {PLAIN, END, 0, 8, 2, 2, NIB_BAD_INPUT},
        {ZIP64, END64, 0, 16, 4, 1, NIB_BAD_INPUT},
        {ZIP64, END64, 0, 24, 8, 2, NIB_BAD_INPUT},
        {ZIP64, LOCATOR, 0, 16, 4, 2, NIB_BAD_INPUT},
        /* sizes */
        {PLAIN, ENTRY, 1, 20, 4, 2, NIB_BAD_INPUT}, /* its two sizes differ */
        {PLAIN, ENTRY, 1, 24, 4, 0xfffffffe, NIB_BAD_INPUT},
        {PLAIN, ENTRY, 1, 24, 4, 0xffffffff, NIB_BAD_INPUT}, /* no zip64 field */
        {PLAIN, ENTRY, 1, 42, 4, 0xffffffff, NIB_BAD_INPUT},
        {PLAIN, LOCAL, 1, 18, 4, 2, NIB_BAD_INPUT}, /* disagrees with the directory */
        {PLAIN, LOCAL, 1, 22, 4, 4, NIB_BAD_INPUT},
        {PLAIN, LOCAL, 1, 18, 4, 0, NIB_BAD_INPUT},
        {WITH_DESCRIPTOR, LOCAL, 1, 18, 4, 5, NIB_BAD_INPUT},
        {WITH_DESCRIPTOR, DESCRIPTOR, 1, 8, 4, 5, NIB_BAD_INPUT}, /* no data descriptor */
        {WITH_DESCRIPTOR, DESCRIPTOR, 1, 4, 4, 5, NIB_BAD_INPUT},
        {WITH_DESCRIPTOR, DESCRIPTOR, 1, 0, 4, 5, NIB_BAD_INPUT},
        /* headers that contradict the directory */
        {PLAIN, LOCAL, 1, 0, 4, 0, NIB_BAD_INPUT},      /* no local header */
        {PLAIN, LOCAL, 1, 6, 2, 1 << 3, NIB_BAD_INPUT}, /* disagrees with the directory */
        {PLAIN, LOCAL, 1, 8, 2, 8, NIB_BAD_INPUT},
        {PLAIN, LOCAL, 1, 14, 4, 1, NIB_BAD_INPUT},
        {PLAIN, LOCAL, 1, 26, 2, 7, NIB_BAD_INPUT}, /* a different name in its local header */
        {PLAIN, LOCAL, 1, 30, 1, 'b', NIB_BAD_INPUT},
        {PLAIN, LOCAL, 1, 28, 2, 2, NIB_BAD_INPUT},      /* begins inside */
        {PLAIN, LOCAL, 2, 28, 2, 0xffff, NIB_BAD_INPUT}, /* ends past the data */
        /* overlap: the second member's header is the first's */
        {PLAIN, ENTRY, 1, 42, 4, 0, NIB_BAD_INPUT}, /* a different name in its local header */
        {PLAIN, ENTRY, 1, 42, 4, 7, NIB_BAD_INPUT}, /* no local header */
        {PLAIN, ENTRY, 2, 42, 4, 0xfffffffe, NIB_BAD_INPUT},
        /* names */
        {PLAIN, ENTRY, 1, 46, 1, '/', NIB_BAD_INPUT}, /* not a relative path */
        {PLAIN, ENTRY, 1, 47, 1, '\\', NIB_BAD_INPUT},
        {PLAIN, ENTRY, 1, 47, 1, 0, NIB_BAD_INPUT},
        {PLAIN, ENTRY, 1, 28, 2, 0, NIB_BAD_INPUT},
        {PLAIN, ENTRY, 1, 28, 2, 0xffff, NIB_BAD_INPUT}, /* runs past the end */
        {PLAIN, ENTRY, 1, 30, 2, 0xffff, NIB_BAD_INPUT},
        {PLAIN, ENTRY, 1, 0, 4, 0, NIB_BAD_INPUT}, /* no central directory entry */
        /* the end */
        {PLAIN, END, 0, 0, 1, 0, NIB_BAD_INPUT}, /* does not end with its end record */
        {PLAIN, END, 0, 20, 2, 1, NIB_BAD_INPUT},
        {PLAIN, END, 0, 12, 4, 1, NIB_BAD_INPUT}, /* does not end at the end record */
        {PLAIN, END, 0, 16, 4, 1, NIB_BAD_INPUT},
        {PLAIN, END, 0, 16, 4, 0xffffffff, NIB_BAD_INPUT},
        {ZIP64, LOCATOR, 0, 8, 8, 1, NIB_BAD_INPUT}, /* no zip64 end record */
        {ZIP64, LOCATOR, 0, 8, 8, UINT64_MAX, NIB_BAD_INPUT},
        {ZIP64, END64, 0, 0, 4, 0, NIB_BAD_INPUT},
        {ZIP64, END64, 0, 4, 8, 45, NIB_BAD_INPUT},
        {ZIP64, END64, 0, 40, 8, 5, NIB_BAD_INPUT}, /* disagree about the central directory */
        {ZIP64, END64, 0, 48, 8, 5, NIB_BAD_INPUT},
        {ZIP64, END, 0, 10, 2, 5, NIB_BAD_INPUT},
        {ZIP64, END, 0, 16, 4, 0xffffffff, NIB_BAD_INPUT},
        {ZIP64, LOCATOR, 0, 0, 4, 0, NIB_BAD_INPUT}, /* does not end at the end record */
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        zip_built z = build_zip(parts, COUNT(parts), cases[i].form == WITH_DESCRIPTOR,
                                cases[i].form == ZIP64);
        const size_t at = place_of(&z, cases[i].record, cases[i].member);
        zip_set(z.bytes + at + (size_t)cases[i].offset, cases[i].value, cases[i].bytes);
        expect_refused(z.bytes, z.size, cases[i].status);
        free(z.bytes);
    }
}

/* Both counts of the end record, as one false count alone is found at once. */
static void test_counts(void **state)
{
    (void)state;
    static const uint64_t counts[] = {2, 4, 65535};
    for (size_t i = 0; i < COUNT(counts); i++) {
        zip_built z = build_zip(parts, COUNT(parts), false, false);
        zip_set(z.bytes + z.end + 8, counts[i], 2);
        zip_set(z.bytes + z.end + 10, counts[i], 2);
        expect_refused(z.bytes, z.size, NIB_BAD_INPUT);
        free(z.bytes);
    }
}

static void test_names(void **state)
{
    (void)state;
    static const char *const bad[] = {"../data.pkl", "a/../../x", "a/..", "/etc/passwd", "a\\b"};
    for (size_t i = 0; i < COUNT(bad); i++) {
        const zip_part part = {bad[i], "x", 1};
        zip_built z = build_zip(&part, 1, false, false);
        expect_refused(z.bytes, z.size, NIB_BAD_INPUT);
        free(z.bytes);
    }
    const zip_part twice[] = {{"a/data.pkl", "x", 1}, {"a/data.pkl", "y", 1}};
    zip_built z = build_zip(twice, 2, true, true);
    expect_refused(z.bytes, z.size, NIB_BAD_INPUT);
    free(z.bytes);
}

/* Bytes that no member owns: before, between and after members. */
static void test_rejects_holes(void **state)
{
    (void)state;
    zip_built z = build_zip(parts, COUNT(parts), false, false);
    /* the last entry is not counted and its record removed: its member's bytes become a hole */
    const size_t cut = z.end - z.entry[2];
    memmove(z.bytes + z.entry[2], z.bytes + z.end, 22);
    uint8_t *end = z.bytes + z.entry[2];
    zip_set(end + 8, 2, 2);
    zip_set(end + 10, 2, 2);
    zip_set(end + 12, z.entry[2] - z.directory, 4);
    expect_refused(z.bytes, z.size - cut, NIB_BAD_INPUT);
    free(z.bytes);
    /* the same for the first entry */
    z = build_zip(parts, COUNT(parts), false, false);
    const size_t first = z.entry[1] - z.entry[0];
    memmove(z.bytes + z.entry[0], z.bytes + z.entry[1], z.size - z.entry[1]);
    end = z.bytes + z.end - first;
    zip_set(end + 8, 2, 2);
    zip_set(end + 10, 2, 2);
    zip_set(end + 12, z.end - z.entry[1], 4);
    expect_refused(z.bytes, z.size - first, NIB_BAD_INPUT);
    free(z.bytes);
}

/* A size beyond 2^32 in a zip64 field, which the file does not have. */
static void test_zip64_lies(void **state)
{
    (void)state;
    const zip_part part = {"a/data/0xxxxxxxxxxxxxxxxxxxx", "abc", 3};
    zip_built z = build_zip(&part, 1, false, false);
    /* the name's last 20 bytes become the extra field */
    uint8_t *entry = z.bytes + z.entry[0];
    zip_set(entry + 28, strlen(part.name) - 20, 2);
    zip_set(entry + 30, 20, 2);
    zip_set(entry + 20, 0xffffffff, 4);
    zip_set(entry + 24, 0xffffffff, 4);
    uint8_t *extra = entry + 46 + strlen(part.name) - 20;
    zip_set(extra, 1, 2);
    zip_set(extra + 2, 16, 2);
    zip_set(extra + 4, UINT64_C(1) << 62, 8);
    zip_set(extra + 12, UINT64_C(1) << 62, 8);
    expect_refused(z.bytes, z.size, NIB_BAD_INPUT);
    zip_set(entry + 20, 3, 4); /* one size is not in the field */
    expect_refused(z.bytes, z.size, NIB_BAD_INPUT);
    zip_set(extra + 2, 17, 2);
    expect_refused(z.bytes, z.size, NIB_BAD_INPUT);
    free(z.bytes);
    /* two fields: readers may use either */
    z = build_zip(&part, 1, false, false);
    entry = z.bytes + z.entry[0];
    zip_set(entry + 28, strlen(part.name) - 20, 2);
    zip_set(entry + 30, 20, 2);
    extra = entry + 46 + strlen(part.name) - 20;
    for (int i = 0; i < 2; i++) {
        zip_set(extra + 10 * i, 1, 2);
        zip_set(extra + 10 * i + 2, 6, 2);
    }
    expect_refused(z.bytes, z.size, NIB_BAD_INPUT);
    free(z.bytes);
}

/* As PyTorch writes members beyond 4 GiB: the local header repeats the entry's zip64 field, with
 * sizes of 0. */
static void test_zip64_repeated(void **state)
{
    (void)state;
    const zip_part part = {"a/data/0xxxxxxxxxxxxxxxxxxxx", "abc", 3};
    zip_built z = build_zip(&part, 1, true, true);
    const size_t name = strlen(part.name) - 20;
    uint8_t *const headers[] = {z.bytes + z.local[0] + 26, z.bytes + z.entry[0] + 28};
    const size_t names[] = {4, 18}; /* from there */
    opened o;
    zip_set(z.bytes + z.entry[0] + 20, 0xffffffff, 4);
    zip_set(z.bytes + z.entry[0] + 24, 0xffffffff, 4);
    for (int i = 0; i < 2; i++) { /* the second value of the local field is not known yet */
        uint8_t *extra = headers[i] + names[i] + name;
        zip_set(headers[i], name, 2);
        zip_set(headers[i] + 2, 20, 2);
        zip_set(extra, 1, 2);
        zip_set(extra + 2, 16, 2);
        zip_set(extra + 4, 3, 8);
        zip_set(extra + 12, i == 0 ? 0 : 3, 8);
    }
    open_bytes(&o, z.bytes, z.size);
    if (o.status != NIB_OK)
        fail_msg("%s", o.err.text);
    assert_int_equal(o.zip.members[0]->size, 3);
    drop(&o);
    zip_set(headers[0] + names[0] + name + 12, 4, 8);
    expect_refused(z.bytes, z.size, NIB_BAD_INPUT);
    free(z.bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_forms),          cmocka_unit_test(test_rejects_bad_fields),
        cmocka_unit_test(test_counts),         cmocka_unit_test(test_names),
        cmocka_unit_test(test_rejects_holes),  cmocka_unit_test(test_zip64_lies),
        cmocka_unit_test(test_zip64_repeated),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
