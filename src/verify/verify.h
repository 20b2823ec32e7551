/* SPDX-License-Identifier: Apache-2.0
 *
 * What verify has found so far, for the file that looks and the one that says it.
 */
#ifndef NIB_VERIFYING_H
#define NIB_VERIFYING_H

#include "info.h"
#include "manifest.h"
#include "name_index.h"

typedef struct nib_finding {
    const char *code, *tensor, *text;
} nib_finding;

typedef struct nib_verifying {
    const nib_verify_job *job;
    nib_arena arena;
    nib_ledger ledger;
    nib_entry *entries;
    size_t count;
    const void **items; /* [count]: the entries, for by_name */
    nib_name_index by_name;
    const void **parts; /* [count]: the part_of of entries, for by_part, which has the first of a */
    nib_name_index
        by_part; /* module's parts; next_part [count]: the number of the next + 1, or 0 */
    size_t *next_part;
    nib_finding *findings;
    size_t finding_count, finding_capacity, more; /* more: counted beyond those kept */
    nib_manifest manifest;
    size_t files_compared; /* of those that the manifest lists */
    nib_hash *hashes;      /* [tensors of the checkpoint] */
    int64_t *bad;          /* [threads] first, */
    int64_t *many;         /* [threads] and how many, of one block */
    uint64_t done, total;
    nib_err *err;
} nib_verifying;

/* verify_report.c */
void nib__verify_json(const nib_verifying *v, nib_text *out);
void nib__verify_text(const nib_verifying *v, nib_text *out);

#endif
