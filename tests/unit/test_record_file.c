/* SPDX-License-Identifier: Apache-2.0
 *
 * Files of records (record_file.c): what was written is read, also by a later process; the oldest
 * go first; nothing that is damaged or half written is read.
 */
#include "record_file.h"

#include "file.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#include "refused.h"

enum { SIZE = 600000, FIRST = 4096 + 4096 * 64 };

static char folder[] = "/tmp/nibble-records-XXXXXX", path[64];

static nib_record_file *open_at(uint64_t bytes)
{
    static nib_allocator a;
    nib_record_file *f;
    nib_err err;
    a = nib__allocator_default();
    if (nib__records_open(&f, folder, bytes, &a, &err) != NIB_OK)
        fail_msg("%s", err.text);
    return f;
}

static nib_hash key(uint64_t i) { return (nib_hash){i, ~i}; }

static void put(nib_record_file *f, uint64_t i, size_t size)
{
    char *bytes = malloc(size);
    memset(bytes, (int)('a' + i % 26), size);
    assert_int_equal(nib__records_begin(f, key(i), size, NULL), NIB_OK);
    assert_int_equal(nib__records_write(f, bytes, size / 3, NULL), NIB_OK);
    assert_int_equal(nib__records_write(f, bytes, size - size / 3, NULL), NIB_OK);
    assert_int_equal(nib__records_end(f, NULL), NIB_OK);
    free(bytes);
}

/* Reads a record and checks each byte. */
static void expect(nib_record_file *f, uint64_t i, size_t wanted)
{
    const nib_allocator a = nib__allocator_default();
    char *bytes;
    size_t size;
    assert_true(nib__records_has(f, key(i)));
    assert_int_equal(nib__records_read(f, key(i), &bytes, &size, NULL), NIB_OK);
    assert_int_equal(size, wanted);
    for (size_t at = 0; at < size; at++)
        assert_int_equal(bytes[at], 'a' + i % 26);
    nib__release(&a, bytes);
}

static void change_byte(uint64_t offset)
{
    char byte;
    const int fd = open(path, O_RDWR);
    assert_int_equal(pread(fd, &byte, 1, (off_t)offset), 1);
    byte ^= 1;
    assert_int_equal(pwrite(fd, &byte, 1, (off_t)offset), 1);
    close(fd);
}

static void test_records(void **state)
{
    (void)state;
    nib_record_file *f = open_at(SIZE);
    nib_err err;
    put(f, 1, 1000);
    put(f, 2, 1);
    put(f, 3, 50000);
    expect(f, 1, 1000);
    put(f, 1, 2000); /* again, longer */
    expect(f, 1, 2000);
    assert_int_equal(nib__records_count(f).records, 3);
    assert_int_equal(nib__records_count(f).bytes, 52001);
    refused(NIB_USAGE, nib__records_begin(f, key(4), SIZE - FIRST + 1, &err), &err);
    refused(NIB_USAGE, nib__records_begin(f, key(4), 0, &err), &err);
    nib__records_remove(f, key(2));
    assert_false(nib__records_has(f, key(2)));
    /* one that is begun and not ended, or gets too few or too many bytes, is not there */
    assert_int_equal(nib__records_begin(f, key(5), 10, &err), NIB_OK);
    assert_int_equal(nib__records_write(f, "12345", 5, &err), NIB_OK);
    refused(NIB_FAILED, nib__records_end(f, &err), &err);
    refused(NIB_FAILED, nib__records_write(f, "123456", 6, &err), &err);
    assert_false(nib__records_has(f, key(5)));
    nib__records_close(f);
    f = open_at(SIZE);
    expect(f, 1, 2000);
    expect(f, 3, 50000);
    assert_int_equal(nib__records_count(f).records, 2);
    nib__records_close(f);
    f = open_at(SIZE + 1); /* another size: all are gone */
    assert_int_equal(nib__records_count(f).records, 0);
    nib__records_close(f);
}

/* The least recently used records go, and none that stays is touched. */
static void test_replacing(void **state)
{
    enum { RECORD = 60000, FIT = (SIZE - FIRST) / RECORD };
    (void)state;
    nib_record_file *f = open_at(SIZE);
    for (uint64_t i = 0; i < FIT; i++)
        put(f, i, RECORD);
    expect(f, 0, RECORD); /* used now */
    put(f, 10, RECORD);
    assert_false(nib__records_has(f, key(1)));
    put(f, 11, RECORD / 2);
    put(f, 12, RECORD / 2); /* both halves in one place */
    assert_false(nib__records_has(f, key(2)));
    for (uint64_t i = 3; i < FIT; i++)
        expect(f, i, RECORD);
    expect(f, 0, RECORD);
    expect(f, 12, RECORD / 2);
    nib__records_close(f);
    f = open_at(SIZE); /* what is oldest is kept with the file */
    put(f, 20, 2 * RECORD);
    assert_false(nib__records_has(f, key(10)));
    expect(f, 12, RECORD / 2);
    put(f, 21, SIZE - FIRST); /* all of it */
    assert_int_equal(nib__records_count(f).records, 1);
    expect(f, 21, SIZE - FIRST);
    nib__records_close(f);
}

static void test_more_than_the_table(void **state)
{
    (void)state;
    nib_record_file *f = open_at(SIZE);
    for (uint64_t i = 0; i < 4096 + 10; i++)
        put(f, 100 + i, 10);
    assert_int_equal(nib__records_count(f).records, 4096);
    assert_false(nib__records_has(f, key(109)));
    expect(f, 110, 10);
    nib__records_close(f);
}

static void test_damage(void **state)
{
    const nib_allocator a = nib__allocator_default();
    char *bytes;
    size_t size;
    nib_err err;
    (void)state;
    unlink(path);
    nib_record_file *f = open_at(SIZE);
    put(f, 1, 1000);
    put(f, 2, 1000);
    put(f, 3, 1000);
    change_byte(FIRST + 1500); /* in the second record */
    refused(NIB_BAD_INPUT, nib__records_read(f, key(2), &bytes, &size, &err), &err);
    assert_false(nib__records_has(f, key(2)));
    refused(NIB_USAGE, nib__records_read(f, key(2), &bytes, &size, &err), &err);
    nib__records_close(f);
    change_byte(4096 + 20); /* in the first entry */
    f = open_at(SIZE);
    assert_false(nib__records_has(f, key(1)));
    expect(f, 3, 1000);
    /* another process has it; when the file is removed, this one has what it holds, and no more */
    nib_record_file *other;
    refused(NIB_EXISTS, nib__records_open(&other, folder, SIZE, &a, &err), &err);
    unlink(path);
    expect(f, 3, 1000);
    refused(NIB_IO, nib__records_begin(f, key(4), 1000, &err), &err);
    nib__records_close(f);
    /* what is none of ours stays */
    const int fd = open(path, O_CREAT | O_WRONLY, 0600);
    assert_int_equal(write(fd, "something else", 14), 14);
    close(fd);
    refused(NIB_IO, nib__records_open(&other, folder, SIZE, &a, &err), &err);
    unlink(path);
    refused(NIB_USAGE, nib__records_open(&other, folder, 1000, &a, &err), &err);
    refused(NIB_IO, nib__records_open(&other, folder, UINT64_C(1) << 60, &a, &err), &err);
    refused(NIB_IO, nib__records_open(&other, "/dev/null/x", SIZE, &a, &err), &err);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_records),
        cmocka_unit_test(test_replacing),
        cmocka_unit_test(test_more_than_the_table),
        cmocka_unit_test(test_damage),
    };
    if (mkdtemp(folder) == NULL)
        return 1;
    snprintf(path, sizeof path, "%s/records", folder);
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    nib__path_remove(folder, NULL);
    return failed;
}
