/* SPDX-License-Identifier: Apache-2.0
 *
 * The findings of nib_verify_from: a code, what it is about, and a sentence.
 */
#ifndef NIB_FINDINGS_H
#define NIB_FINDINGS_H

#include "json.h"
#include "ledger.h"

enum { NIB_FINDINGS_MAX = 200 };

typedef struct nib_finding {
    const char *code, *name, *text;
} nib_finding;

typedef struct nib_findings {
    nib_arena *arena;
    nib_finding items[NIB_FINDINGS_MAX];
    size_t count; /* only the first NIB_FINDINGS_MAX are kept */
    nib_err *err;
} nib_findings;

/* Adds a finding to the nib_findings `ctx`, as nib__signature_check reports it. */
nib_status nib__findings_report(void *ctx, const char *code, const char *name, const char *text);
/* Adds a finding; the name is escaped. */
nib_status nib__findings_add(nib_findings *f, const char *code, const char *name,
                             const char *format, ...) NIB_PRINTF(4, 5);
/* The members "findings" and "problems", and "notes" from the ledger, of the open object. */
void nib__findings_json(const nib_findings *f, const nib_ledger *notes, nib_jsonw *w);
/* The findings and notes as lines. */
void nib__findings_text(const nib_findings *f, const nib_ledger *notes, nib_text *out);

#endif
