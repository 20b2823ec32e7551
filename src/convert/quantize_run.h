/* SPDX-License-Identifier: Apache-2.0
 *
 * A run of nib_quantize or nib_convert: what its parts share. quantize_model.c makes the job and
 * the report, quantize_methods.c runs the methods before the stream.
 */
#ifndef NIB_QUANTIZE_RUN_H
#define NIB_QUANTIZE_RUN_H

#include "convert.h"
#include "gptq.h"
#include "mixed.h"
#include "receipt_options.h"
#include "rotate.h"
#include "scales.h"

typedef struct nib_quantize_run {
    nib_model *model;
    const nib_quantize_options *options; /* NULL: a conversion */
    nib_arena arena;
    nib_recipe *recipe; /* NULL: a conversion */
    const char *out;    /* without trailing slashes */
    nib_quantize_layer *layers;
    nib_text config;    /* for a model without a config.json */
    nib_gguf_head head; /* for the format gguf */
    nib_mixed *mixed;   /* chose the recipe; NULL: the request did */
    nib_plan *plan;     /* for the machine that will run the result; NULL: not named */
    nib_ledger ledger;
    nib_gptq gptq;          /* its codes, while the output is written */
    nib_input_stats *stats; /* [site_count] of a calibration; NULL: none ran */
    nib_scaling scales;     /* of awq and smooth */
    nib_rotating rotating;
    nib_quantize_layer *unrotated; /* [site_count] the layers before it; NULL: no layer has it */
    bool keeps_rounding;           /* because search, hqq or rotate was worse */
    nib_asked asked;               /* for the receipt */
    const nib_examiner *examiner;  /* NULL: the output is published, and reported */
} nib_quantize_run;

/* Recodes a layer that only changes its container or float type, into the output's format. */
void nib__layer_keep(nib_quantize_layer *layer, const nib_scheme *stored);
/* How many layers a method codes. */
size_t nib__methods_count(const nib_quantize_run *run, nib_ptq_method method);
/* The method that a device needs a kernel for. */
nib_ptq_method nib__methods_on_device(const nib_quantize_run *run);
/* Checks calibration text and imatrix against the methods and the recipe, and runs the methods, as
 * far as the stream does not. In a dry run only what decides sizes and the ledger. */
nib_status nib__methods_run(nib_quantize_run *run, nib_err *err);
/* The vectors that they change, which the job gets. */
void nib__methods_vectors(const nib_quantize_run *run, nib_quantize_job *job);
/* When the output is complete: removes the store, and adds notes that are not about the output. */
void nib__methods_finish(nib_quantize_run *run);

#endif
