/* SPDX-License-Identifier: Apache-2.0
 *
 * A checkpoint through a recipe into a new one, as a stream: rows go through the quantizer block by
 * block on all cores, source pages are let go of behind it, and the output appears whole or not at
 * all. Owns the order of work and the output's files; formulas are the quantizer's, layouts the
 * dialects'.
 */
#ifndef NIB_QUANTIZE_H
#define NIB_QUANTIZE_H

#include "checkpoint.h"
#include "gguf_write.h"
#include "pool.h"
#include "recipe.h"

/* One linear layer or embedding of the model. */
typedef struct nib_quantize_layer {
    const char *name;   /* module, as it will be written */
    const char *source; /* the module whose stored weight it is, where that is another one (a tied
                           head without a name of its own in the file); NULL: itself */
    nib_role role;
    nib_choice choice;
    /* A conversion: the weight's codes stay what they are. choice.scheme is theirs, or the float
     * type that they become. */
    bool recode;
    float act_scale; /* calibrated, for static activations */
    int32_t act_zero;
} nib_quantize_layer;

/* Its weight becomes codes: neither kept nor only cast. */
bool nib__layer_is_quantized(const nib_quantize_layer *layer);

enum { NIB_EXTRAS = 2 };

typedef struct nib_quantize_job {
    const nib_checkpoint *checkpoint;
    const nib_quantize_layer *layers;
    size_t count;
    const char *recipe;       /* as given, for the manifest */
    const char *out;          /* a directory if the checkpoint is one, else a file */
    const char *format;       /* a dialect that is written; NULL: torchao, or nibble with a note */
    nib_bias bias;            /* of layers that are quantized in the end; NONE: as stored */
    bool strict;              /* what is not as asked is an error */
    const nib_strings *allow; /* codes of settings that strict accepts; NULL: none */
    /* Called once the output is decided, before strict judges: adds lines of its own. NULL: none */
    void (*decided)(nib_ledger *ledger, const void *ctx);
    const void *ctx;
    /* JSON for a source without a config.json of its own, whose output is then a directory unless
     * OUT is named as a file; NULL: its own is copied. */
    const char *config;
    /* Of a GGUF: its key/values, its architecture, and the width of the heads whose q and k rows
     * that keeps in pairs; 0: in our order. */
    const nib_gguf_head *gguf;
    const char *gguf_arch;
    int64_t paired_head;
    unsigned fused;    /* weights that readers of the model expect as one tensor: fused.h */
    double norm_shift; /* added to the weights of norms, which become f32; 0: they stay */
    /* Vectors that the format wants besides, as its readers name them: f32 [count]; after the last
     * values are NULL. */
    struct nib_extra {
        const char *name;
        const float *values;
        int64_t count;
    } extras[NIB_EXTRAS];
    bool convert;      /* layers are told as kept, and how well */
    const char *dtype; /* of a conversion: the type asked for plain floats; NULL: none was */
    /* What else belongs into a directory, before it gets its name; NULL: nothing does. */
    nib_status (*complete)(void *ctx, const char *directory, nib_err *err);
    void *complete_ctx;
    bool force, dry_run;
    struct nib_quant_device *device; /* where weights become codes; NULL: here */
    nib_pool *pool;
    int64_t isa; /* instruction sets that quantizers may use: NIB_ISA_AVX2 and so on */
    const nib_callbacks *callbacks; /* NULL allowed */
    const nib_allocator *allocator;
} nib_quantize_job;

typedef struct nib_quantize_report {
    const char *format;                 /* as written */
    uint64_t bytes_before, bytes_after; /* of the weight files */
    size_t files;
    size_t biases, biases_changed; /* how many layers have one; those not bit for bit */
    double seconds, sync_seconds;  /* the latter: of them, until the disk had the weight files */
    bool dry_run;
} nib_quantize_report;

/* Adds a line per layer to the ledger, with bytes and SQNR. NIB_NOT_AS_ASKED: the asked format
 * cannot hold a layer; NIB_EXISTS: OUT is there and force is not given; NIB_CANCELLED: progress
 * said so. On any failure nothing of the output is left, but a lone file whose manifest could not
 * be renamed beside it: then what it replaced is gone already. */
nib_status nib__quantize(nib_ledger *ledger, nib_quantize_report *report,
                         const nib_quantize_job *job, nib_err *err);

/* The ledger, then sizes and time, in words. */
void nib__quantize_render(const nib_ledger *ledger, const nib_quantize_report *report,
                          nib_text *out);
/* The same as members of the open JSON object of w. */
void nib__quantize_json(const nib_ledger *ledger, const nib_quantize_report *report, nib_jsonw *w);

#endif
