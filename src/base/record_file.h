/* SPDX-License-Identifier: Apache-2.0
 *
 * A file of a fixed size with records that are found by a key. A new record replaces those that
 * were not used for longest. Its space is allocated when it is opened, so a full disk cannot stop
 * it later, and it needs no path once it is open. A record that a killed process left half written,
 * or that was changed since, is not read: every one has its hash.
 */
#ifndef NIB_RECORD_FILE_H
#define NIB_RECORD_FILE_H

#include "hash.h"
#include "memory.h"

typedef struct nib_record_file nib_record_file;

/* Opens the file "records" of a directory, or makes both; a file of another size or version is
 * emptied. NIB_EXISTS: another process has it open; NIB_USAGE: too small for anything; NIB_IO: the
 * directory cannot be written, is full, or has a file of that name that is none of ours. */
nib_status nib__records_open(nib_record_file **out, const char *directory, uint64_t bytes,
                             const nib_allocator *a, nib_err *err);
void nib__records_close(nib_record_file *f); /* NULL: nothing */

bool nib__records_has(const nib_record_file *f, nib_hash key);
/* Reads a record; free it with nib__release. NIB_BAD_INPUT: it is damaged, and is removed;
 * NIB_IO. */
nib_status nib__records_read(nib_record_file *f, nib_hash key, char **out, size_t *size,
                             nib_err *err);
void nib__records_remove(nib_record_file *f, nib_hash key);
/* Writing a record: begin, then `size` bytes in any number of pieces, then end; a record that was
 * begun and not ended is not there. NIB_USAGE: no file of this size holds it; NIB_IO: the
 * file was removed since it was opened, so nobody could find the record later. */
nib_status nib__records_begin(nib_record_file *f, nib_hash key, uint64_t size, nib_err *err);
nib_status nib__records_write(nib_record_file *f, const void *bytes, size_t size, nib_err *err);
nib_status nib__records_end(nib_record_file *f, nib_err *err);

typedef struct nib_records_counts {
    int64_t records;
    uint64_t bytes, bytes_most; /* of records; and how many fit */
} nib_records_counts;
nib_records_counts nib__records_count(const nib_record_file *f);

#endif
