/* SPDX-License-Identifier: Apache-2.0
 *
 * Quantizes or converts a checkpoint into a new one, as a stream: all cores quantize rows block by
 * block, source pages are released afterwards, and the output appears whole or not at all. This
 * part owns the order of work and the output files; quantizers own the formulas, dialects the
 * layouts.
 */
#ifndef NIB_QUANTIZE_H
#define NIB_QUANTIZE_H

#include "checkpoint.h"
#include "gguf_write.h"
#include "pool.h"
#include "recipe.h"

/* Codes that a method chose before the stream, in rows of the stored weight. */
typedef struct nib_codes {
    int8_t *codes;        /* [n][k] as nib_quantized */
    void *scales, *zeros; /* [n][groups] */
    float tensor_scale;   /* as nib_quantizer */
    double objective[2];  /* of rounding, and of these */
} nib_codes;

/* Scales that a method moved from the inputs of a weight into what makes them: element (i, j) of
 * the weight is multiplied by rows[i] and by columns[j], and rounded to its stored type. */
typedef struct nib_fold {
    const float *rows, *columns; /* [n], [k]; NULL: all 1 */
} nib_fold;

/* Applies them to row i. type: the stored one. */
void nib__fold_row(const nib_fold *fold, int64_t i, float *row, int64_t k, nib_type type);

/* New values of a stored vector. */
typedef struct nib_vector {
    const char *name;    /* of its tensor */
    const float *values; /* [count] exact in its stored type */
    int64_t count;
} nib_vector;
/* Adds one to a list that has room, with a copy of the name in the arena. */
nib_status nib__vector_add(nib_vector *list, size_t *count, const char *name, const float *values,
                           int64_t size, nib_arena *arena, nib_err *err);

struct nib_digests;

/* One linear layer or embedding of the model. */
typedef struct nib_quantize_layer {
    const char *name;   /* module name in the output */
    const char *source; /* module that stores the weight (for a tied head); NULL: this one */
    nib_role role;
    nib_choice choice;
    /* A conversion: codes stay as they are. choice.scheme is theirs, or the float type that they
     * become. */
    bool recode;
    float act_scale; /* calibrated, for static activations */
    int32_t act_zero;
    const float *importance; /* of choice.method: as in nib_quantizer */
    const nib_codes *codes;  /* of choice.method; NULL: the stream chooses them */
    nib_fold fold;           /* of choice.method */
    /* What the weight becomes before it is coded, cast or kept; NULL: it stays. Floats with one
     * have `recode`. */
    const struct nib_turn *turn;
    const double *objective; /* [2] as nib_codes.objective; NULL: the stream's, or codes' */
} nib_quantize_layer;

/* True if the weight becomes codes: neither kept nor only cast. */
bool nib__layer_is_quantized(const nib_quantize_layer *layer);

enum { NIB_EXTRAS = 2, NIB_BESIDE = 5, NIB_RECEIPT_VERSION = 1 };

typedef struct nib_quantize_job {
    const nib_checkpoint *checkpoint;
    const nib_quantize_layer *layers;
    size_t count;
    uint64_t weights;         /* nib__network_weights */
    const char *recipe;       /* as given; for the manifest */
    const char *out;          /* a directory if the checkpoint is one, else a file */
    const char *format;       /* dialect to write; NULL: the smallest that holds the result */
    nib_bias bias;            /* form of biases of quantized layers; NONE: as stored */
    bool strict;              /* refuse what is not as asked */
    const nib_strings *allow; /* setting codes that strict accepts; NULL: none */
    /* Called once the output is decided, before strict is checked, to add ledger lines. NULL:
     * none */
    void (*decided)(nib_ledger *ledger, const void *ctx);
    const void *ctx;
    /* config.json for a source that has none; the output is then a directory unless OUT names a
     * file. NULL: copy the source's. */
    const char *config;
    /* Files beside the weights for a source that has none: name NULL ends the list. */
    struct nib_beside {
        const char *name, *text;
        size_t size;
    } beside[NIB_BESIDE];
    /* For a GGUF: key/values, architecture, and the width of heads whose q and k rows it stores in
     * pairs; 0: rows stay in our order. */
    const nib_gguf_head *gguf;
    const char *gguf_arch;
    int64_t paired_head;
    int64_t groups; /* of norms of recurrent layers that a GGUF stores by group; 0: 1 */
    bool has_rates; /* the source has -e^A_log of recurrent layers in place of A_log */
    unsigned fused; /* weights that readers expect fused: fused.h */
    /* model_type, for the names and stacks of experts that a family publishes; NULL: unknown */
    const char *family;
    double norm_shift; /* added to norm weights, which become f32; 0: unchanged */
    /* More vectors that the format needs, under its readers' names: f32 [count]. values NULL ends
     * the list. */
    struct nib_extra {
        const char *name;
        const float *values;
        int64_t count;
    } extras[NIB_EXTRAS];
    const nib_vector *vectors; /* [vector_count]: norms and biases that a method changes */
    size_t vector_count;
    bool convert;      /* report layers as kept, with how well */
    const char *dtype; /* conversion: type asked for plain floats; NULL: not given */
    /* Adds more files to the output directory before it is renamed; NULL: none. */
    nib_status (*complete)(void *ctx, const char *directory, nib_err *err);
    void *complete_ctx;
    /* Writes the members of the receipt that say what was asked; NULL: the manifest has no
     * receipt */
    void (*receipt)(const void *ctx, nib_jsonw *w);
    const void *receipt_ctx;
    /* Instead of being published, the output is shown and then removed. place: its directory or
     * file; outputs: its files, as nib__digest_outputs lists them. NULL: publish */
    nib_status (*examine)(void *ctx, const char *place, const struct nib_digests *outputs,
                          nib_err *err);
    void *examine_ctx;
    bool examine_directory; /* it is a directory; else it is what OUT is now */
    bool force, dry_run;
    struct nib_quant_device *device; /* device that computes codes; NULL: this CPU */
    nib_pool *pool;
    int64_t isa;                    /* instruction sets for quantizers: NIB_ISA_AVX2 and so on */
    const nib_callbacks *callbacks; /* NULL allowed */
    const nib_allocator *allocator;
} nib_quantize_job;

enum { NIB_ELSEWHERE = 2 };

typedef struct nib_quantize_report {
    const char *format;                 /* name of the dialect written */
    const char *readers;                /* other programs that read it; NULL: none */
    uint64_t bytes_before, bytes_after; /* of the weight files */
    uint64_t weights;                   /* of the job */
    size_t files;
    size_t biases, biases_changed; /* layers with a bias; those whose bias changed */
    double seconds, sync_seconds;  /* total, and of these waiting for the disk */
    bool dry_run;
    /* The same weights in other formats that hold them; name NULL ends the list. */
    struct nib_elsewhere {
        const char *name, *readers;
        uint64_t bytes;
    } elsewhere[NIB_ELSEWHERE + 1];
} nib_quantize_report;

/* Adds a line per layer to the ledger, with bytes and SQNR. NIB_NOT_AS_ASKED: the asked format
 * cannot hold a layer; NIB_EXISTS: OUT exists without force; NIB_CANCELLED: progress said so. A
 * failure leaves no output, with one exception: if the manifest of a single file cannot be renamed,
 * the file that it replaced is already gone. */
nib_status nib__quantize(nib_ledger *ledger, nib_quantize_report *report,
                         const nib_quantize_job *job, nib_err *err);

/* Whether nib__quantize would begin to write: checks the output path, the format and what strict
 * forbids, with nib__quantize's failures. Writes nothing, and adds nothing to the ledger. */
nib_status nib__quantize_check(const nib_quantize_job *job, nib_err *err);

/* Renders the ledger, then sizes and time, as text. */
void nib__quantize_render(const nib_ledger *ledger, const nib_quantize_report *report,
                          nib_text *out);
/* The same as members of the open JSON object of w. */
void nib__quantize_json(const nib_ledger *ledger, const nib_quantize_report *report, nib_jsonw *w);

#endif
