/* SPDX-License-Identifier: Apache-2.0
 *
 * The bytes of a rewrite: reads one stored tensor in blocks of rows and writes the tensors that
 * replace it. Private to quantize.
 */
#ifndef NIB_STREAM_H
#define NIB_STREAM_H

#include "dialects.h"
#include "quant_device.h"
#include "quantize.h"
#include "quantizer.h"
#include "sha256.h"
#include "writer.h"

typedef enum nib_rewrite_kind {
    NIB_REWRITE_COPY,     /* the tensor, perhaps in another float type */
    NIB_REWRITE_QUANTIZE, /* floats become codes */
    NIB_REWRITE_RECODE,   /* codes stay, in the tensors of another dialect */
    NIB_REWRITE_BIAS,     /* a bias changes its form, or coded biases are copied */
    NIB_REWRITE_HASH,     /* part of a weight that another rewrite writes: only hashed */
} nib_rewrite_kind;

/* One source tensor and what becomes of it. */
typedef struct nib_rewrite {
    nib_rewrite_kind kind;
    const nib_tensor *from;          /* RECODE: first tensor of the weight */
    const char *name;                /* COPY: name of the copied tensor */
    nib_type cast;                   /* COPY: cast to this float type; NONE: unchanged */
    const nib_quantize_layer *layer; /* QUANTIZE, RECODE */
    size_t line;                     /* index of the ledger line, for SQNR; SIZE_MAX: none */
    nib_quantizer quantizer;         /* QUANTIZE */
    nib_weight weight;               /* RECODE: as read; QUANTIZE: if codes is not NULL */
    const int32_t *written_rows; /* QUANTIZE, RECODE: source rows in written order; NULL: same */
    nib_output_weight stored;    /* QUANTIZE, RECODE: as written */
    const nib_weight *biased; /* BIAS, and QUANTIZE with an int32 bias: the weight with its bias */
    nib_bias bias_form;       /* form of the written bias */
    nib_file_layout storage;
    /* Tensor indices in the writer; SIZE_MAX: no such part. */
    size_t copy, codes, scales, zeros, tensor, size, inputs, act_scale, act_zero;
    size_t bias; /* QUANTIZE: an int32 bias */
} nib_rewrite;

/* Of the bytes that a source tensor spans in its file. */
typedef struct nib_source_hash {
    nib_hash quick;
    nib_digest digest;
} nib_source_hash;

typedef struct nib_stream {
    const nib_quantize_job *job;
    nib_writer *writer;
    nib_ledger *ledger;
    uint64_t done, total; /* source bytes */
} nib_stream;

/* Writes scales or zeros, plain [n][groups] (one value for one scale per tensor), in the dialect's
 * order. values NULL: zeros that the scheme does not have. */
nib_status nib__stream_put_values(nib_stream *s, const nib_rewrite *r, const nib_output_part *part,
                                  nib_order order, size_t place, const void *values, nib_err *err);
/* Writes the other parts of a weight: the tensor scale above its block scales, its size, its
 * activation scale. */
nib_status nib__stream_put_extras(nib_stream *s, const nib_rewrite *r, nib_err *err);
/* NIB_CANCELLED if the caller's progress says so. */
nib_status nib__stream_progress(nib_stream *s, uint64_t bytes, nib_err *err);

/* The written tensor scale above the block scales; 0: none. */
float nib__rewrite_tensor_scale(const nib_rewrite *rewrite);

/* recode.c: writes the rows of one weight in another dialect. */
nib_status nib__recode_run(nib_stream *stream, const nib_rewrite *rewrite, nib_err *err);

/* bias_stream.c: writes a bias; with: in steps of a weight that is quantized in this run, with its
 * scales, one per row or one. */
nib_status nib__bias_run(nib_stream *stream, const nib_rewrite *rewrite, nib_err *err);
nib_status nib__bias_run_with(nib_stream *stream, const nib_rewrite *rewrite, const void *scales,
                              nib_err *err);

/* Runs one rewrite. *hash: of rewrite->from. */
nib_status nib__stream_run(nib_stream *stream, const nib_rewrite *rewrite, nib_source_hash *hash,
                           nib_err *err);
/* QUANTIZE: rows per block, and the type of rows sent to a device: the stored type, or f32 if the
 * host reads them row by row. */
int64_t nib__stream_block_rows(const nib_rewrite *rewrite);
nib_type nib__stream_sends(const nib_rewrite *rewrite);
/* Source bytes that a rewrite reads, for the progress total. */
uint64_t nib__stream_cost(const nib_rewrite *rewrite);

#endif
