/* SPDX-License-Identifier: Apache-2.0
 *
 * The bytes of a rewrite: one stored tensor in, the tensors that replace it out, in blocks of rows.
 * Inside of quantize only.
 */
#ifndef NIB_STREAM_H
#define NIB_STREAM_H

#include "dialects.h"
#include "quantize.h"
#include "quantizer.h"
#include "writer.h"

/* One tensor of the source and what becomes of it. */
typedef struct nib_rewrite {
    const nib_tensor *from;
    const char *name;                /* of the copied tensor; NULL: quantized */
    nib_type cast;                   /* copied in this float type; NONE: as it is */
    const nib_quantize_layer *layer; /* quantized, or NULL */
    size_t line;                     /* of the ledger, for its SQNR; SIZE_MAX: none */
    nib_quantizer quantizer;
    nib_storage storage;
    size_t copy, codes, scales, zeros; /* places in the writer */
    size_t act_scale, act_zero;        /* SIZE_MAX: none */
} nib_rewrite;

typedef struct nib_stream {
    const nib_quantize_job *job;
    nib_writer *writer;
    nib_ledger *ledger;
    uint64_t done, total; /* source bytes */
} nib_stream;

/* Runs one rewrite. *hash: of the source tensor's bytes. */
nib_status nib__stream_run(nib_stream *stream, const nib_rewrite *rewrite, nib_hash *hash,
                           nib_err *err);
/* Source bytes that a run reads, for the total. */
uint64_t nib__stream_cost(const nib_rewrite *rewrite);

#endif
