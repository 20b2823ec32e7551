/* SPDX-License-Identifier: Apache-2.0
 *
 * Declares what macOS has and this system lacks, so that a compiler checks the macOS branches of
 * src/base and src/device. Names and types follow Apple's manual pages; nothing is linked or run.
 * Included before every file.
 */
#ifndef NIB_TESTS_APPLE_H
#define NIB_TESTS_APPLE_H

#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/types.h>

/* This system's C library is not Apple's: its headers must not see __APPLE__. */
#define __APPLE__ 1

#undef RENAME_EXCHANGE
#undef RENAME_NOREPLACE
#undef MADV_HUGEPAGE

#define st_mtimespec st_mtim /* stat(2) */

#define F_FULLFSYNC 51 /* fcntl(2) */
#define F_PREALLOCATE 42
#define F_ALLOCATEALL 4
#define F_PEOFPOSMODE 3
typedef struct fstore {
    unsigned int fst_flags;
    int fst_posmode;
    off_t fst_offset, fst_length, fst_bytesalloc;
} fstore_t;

#define RENAME_SWAP 2 /* renamex_np(2) */
#define RENAME_EXCL 4
int renamex_np(const char *from, const char *to, unsigned int flags);

#endif
