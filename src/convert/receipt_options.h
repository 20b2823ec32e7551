/* SPDX-License-Identifier: Apache-2.0
 *
 * What was asked of quantize or convert, as far as it decides a byte of the output: as members of a
 * receipt, and back.
 */
#ifndef NIB_RECEIPT_OPTIONS_H
#define NIB_RECEIPT_OPTIONS_H

#include "quantize.h"
#include "session_handle.h"
#include "sha256.h"

/* A file that the options name. */
typedef struct nib_asked_file {
    const char *path; /* as given; NULL: none */
    uint64_t size;
    nib_digest digest;
} nib_asked_file;

typedef struct nib_asked {
    bool convert;       /* the command is convert */
    const char *recipe; /* a name, or JSON; NULL in a conversion */
    const char *method; /* of layers whose rule names none; NULL: not given */
    const char *format, *bias, *dtype; /* as given; NULL: not given */
    nib_strings skip, only, allow;
    int64_t context; /* of a calibration; 0: not given */
    nib_asked_file text, imatrix, tokenizer;
    size_t layers[NIB_PTQ_COUNT]; /* coded by each method, "rtn" included */
    const char *device;           /* computed codes; NULL: the CPU */
    const struct nib_quant_device *codes_by; /* writing: says whether a device did; NULL: none */
} nib_asked;

/* Reads size and digest of a file; path NULL: none. */
nib_status nib__asked_file(nib_asked_file *out, const char *path, nib_err *err);
/* The same for the file that a tokenizer path means. */
nib_status nib__asked_tokenizer(nib_asked_file *out, const char *path, nib_arena *arena,
                                nib_err *err);
/* nib_quantize_job.receipt; asked: a nib_asked. */
void nib__asked_json(const void *asked, nib_jsonw *w);

#endif
