/* SPDX-License-Identifier: Apache-2.0
 *
 * What was asked of quantize or convert, as far as it decides a byte of the output: as members of a
 * receipt, and back.
 */
#ifndef NIB_RECEIPT_OPTIONS_H
#define NIB_RECEIPT_OPTIONS_H

#include "gptq_order.h"
#include "receipt.h"
#include "session_handle.h"

/* A file that the options name. */
typedef struct nib_asked_file {
    const char *path; /* as given; NULL: none */
    uint64_t size;
    nib_digest digest;
} nib_asked_file;

typedef struct nib_asked {
    bool convert;                      /* the command is convert */
    const char *recipe;                /* a name, or JSON; NULL in a conversion */
    const char *method;                /* of layers whose rule names none; NULL: not given */
    const char *format, *bias, *dtype; /* as given; NULL: not given */
    nib_strings skip, only;
    int64_t context; /* of a calibration; 0: not given */
    nib_asked_file text, imatrix, tokenizer;
    bool has_seed; /* a method drew random numbers, from */
    uint64_t seed;
    size_t layers[NIB_PTQ_COUNT];            /* coded by each method, "rtn" included */
    size_t orders[NIB_INPUTS_ORDERS];        /* coded in each order of inputs */
    int64_t held_out;                        /* nib_scaling.held_out; 0: none */
    int64_t rounding_steps;                  /* of learn's codes, a layer; 0: they stay */
    int64_t checked;                         /* nib_coded_comparison.tokens of search and hqq */
    const char *device;                      /* computed codes; NULL: the CPU */
    const struct nib_quant_device *codes_by; /* writing: says whether a device did; NULL: none */
} nib_asked;

/* What quantize was asked, without files and counts. The strings stay theirs. */
void nib__asked_init(nib_asked *out, const nib_quantize_options *options, const char *recipe,
                     const struct nib_quant_device *codes_by);
/* Reads size and digest of a file; path NULL: none. */
nib_status nib__asked_file(nib_asked_file *out, const char *path, nib_err *err);
/* The same for the file that a tokenizer path means. */
nib_status nib__asked_tokenizer(nib_asked_file *out, const char *path, nib_arena *arena,
                                nib_err *err);
/* Both for the files that codes depend on, before they are read. NULL: none. */
nib_status nib__asked_inputs(nib_asked *asked, const char *text, const char *imatrix,
                             const char *tokenizer, nib_arena *arena, nib_err *err);
/* Whether a layer is coded by a method that has an order of inputs. */
bool nib__asked_has_sweeps(const nib_asked *asked);
/* Whether a layer is coded by a method that scales inputs. */
bool nib__asked_has_scales(const nib_asked *asked);
/* Whether a layer is coded by search or hqq. */
bool nib__asked_has_searches(const nib_asked *asked);
/* nib_quantize_job.receipt; asked: a nib_asked. */
void nib__asked_json(const void *asked, nib_jsonw *w);

/* A receipt as read. Strings and arrays live in the arena, but the digests' arrays do not. */
typedef struct nib_read_receipt {
    const char *manifest; /* path of the file */
    bool found;           /* the manifest has a receipt */
    const char *program;
    bool has_orders; /* asked.orders are in it */
    nib_asked asked;
    nib_digests files, tensors, outputs;
} nib_read_receipt;

/* Reads the receipt in the manifest beside a checkpoint; asked.format is that of the manifest where
 * none was asked for, as the default is another in each version. No manifest, or one without a
 * receipt, is not an error. NIB_BAD_INPUT: it is not a receipt of this version. */
nib_status nib__receipt_read(nib_read_receipt *out, const nib_checkpoint *cp, nib_arena *arena,
                             const nib_allocator *a, nib_err *err);
void nib__receipt_free(nib_read_receipt *receipt, const nib_allocator *a);

#endif
