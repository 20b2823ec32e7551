/* SPDX-License-Identifier: Apache-2.0
 *
 * The bytes of a rewrite: one stored tensor in, the tensors that replace it out, in blocks of rows.
 * Inside of quantize only.
 */
#ifndef NIB_STREAM_H
#define NIB_STREAM_H

#include "dialects.h"
#include "quant_device.h"
#include "quantize.h"
#include "quantizer.h"
#include "writer.h"

typedef enum nib_rewrite_kind {
    NIB_REWRITE_COPY,     /* the tensor, perhaps in another float type */
    NIB_REWRITE_QUANTIZE, /* floats become codes */
    NIB_REWRITE_RECODE,   /* the weight's codes stay, in another dialect's tensors */
    NIB_REWRITE_BIAS,     /* a bias in another form, or the codes of one */
    NIB_REWRITE_HASH,     /* a part of a weight that another rewrite takes: only hashed */
} nib_rewrite_kind;

/* One tensor of the source and what becomes of it. */
typedef struct nib_rewrite {
    nib_rewrite_kind kind;
    const nib_tensor *from;          /* RECODE: the first of the weight's */
    const char *name;                /* COPY: of the copied tensor */
    nib_type cast;                   /* COPY: in this float type; NONE: as it is */
    const nib_quantize_layer *layer; /* QUANTIZE, RECODE */
    size_t line;                     /* of the ledger, for its SQNR; SIZE_MAX: none */
    nib_quantizer quantizer;         /* QUANTIZE */
    nib_weight weight;               /* RECODE: as it is read; QUANTIZE: where codes is not NULL */
    const int32_t *written_rows;     /* QUANTIZE, RECODE: which row is written as row j; NULL: j */
    nib_output_weight stored;        /* QUANTIZE, RECODE: as it is written */
    const nib_weight *biased;        /* BIAS, and QUANTIZE with an int32 one: with the bias */
    nib_bias bias_form;              /* of that: as it is written */
    nib_file_layout storage;
    /* Places in the writer; SIZE_MAX: no such part. */
    size_t copy, codes, scales, zeros, tensor, size, inputs, act_scale, act_zero;
    size_t bias; /* QUANTIZE: of an int32 bias */
} nib_rewrite;

typedef struct nib_stream {
    const nib_quantize_job *job;
    nib_writer *writer;
    nib_ledger *ledger;
    uint64_t done, total; /* source bytes */
} nib_stream;

/* Scales or zeros, plain [n][groups] (one value for a tensor's scale), into their part in the
 * dialect's order. values NULL: zeros that the scheme does not have. */
nib_status nib__stream_put_values(nib_stream *s, const nib_rewrite *r, const nib_output_part *part,
                                  nib_order order, size_t place, const void *values, nib_err *err);
/* What a weight has besides codes, scales and zeros: the scale over those of its blocks, its size,
 * the scale of its activations. */
nib_status nib__stream_put_extras(nib_stream *s, const nib_rewrite *r, nib_err *err);
/* NIB_CANCELLED where the caller's progress says so. */
nib_status nib__stream_progress(nib_stream *s, uint64_t bytes, nib_err *err);

/* The scale of the tensor over those of its blocks, as it is written; 0: none. */
float nib__rewrite_tensor_scale(const nib_rewrite *rewrite);

/* recode.c: the rows of one weight into another dialect. */
nib_status nib__recode_run(nib_stream *stream, const nib_rewrite *rewrite, nib_err *err);

/* bias_stream.c: a bias; and one in the steps of a weight that is quantized now, whose scales, one
 * per row or one, are given. */
nib_status nib__bias_run(nib_stream *stream, const nib_rewrite *rewrite, nib_err *err);
nib_status nib__bias_run_with(nib_stream *stream, const nib_rewrite *rewrite, const void *scales,
                              nib_err *err);

/* Runs one rewrite. *hash: of the source tensor's bytes. */
nib_status nib__stream_run(nib_stream *stream, const nib_rewrite *rewrite, nib_hash *hash,
                           nib_err *err);
/* QUANTIZE: rows of a block, and the type in which a device gets them: the stored one, or f32 where
 * the host reads them one by one. */
int64_t nib__stream_block_rows(const nib_rewrite *rewrite);
nib_type nib__stream_sends(const nib_rewrite *rewrite);
/* Source bytes that a run reads, for the total. */
uint64_t nib__stream_cost(const nib_rewrite *rewrite);

#endif
