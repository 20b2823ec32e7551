/* SPDX-License-Identifier: Apache-2.0
 *
 * Quantizing and converting a model: the device that does it, the machine that it is for, and
 * calibration.
 */
#ifndef NIB_CONVERT_H
#define NIB_CONVERT_H

#include "session_handle.h"

struct nib_digests;
struct nib_quant_device;
/* Chooses where the arithmetic of quantizing by a method runs, if a device was asked for: adds a
 * ledger line, or fails if the substitution is not allowed. *out is in the ledger's arena, and NULL
 * if the CPU does it. */
nib_status nib__quantize_where(struct nib_quant_device **out, nib_ledger *ledger, nib_model *model,
                               const nib_quantize_options *options, nib_ptq_method method,
                               nib_err *err);
/* Makes the plan of the machine that will run the result, which must have an allowed kernel for
 * each layer, and adds its summary as a note. *out is NULL if no machine was named. */
nib_status nib__quantize_for(nib_plan **out, nib_ledger *ledger, nib_model *model,
                             const nib_quantize_options *options, nib_err *err);

struct nib_quantize_report;
/* What was made for an examiner, or, by a dry run, would be. */
typedef struct nib_examined {
    const struct nib_quantize_report *report;
    const nib_ledger *ledger;
    uint64_t store_bytes; /* at most, of the codes that a method keeps on the disk meanwhile */
    double predicted_s;   /* of a dry run: by what its methods say before they start; NaN: none
                             does */
    bool keeps_rounding;  /* because a method was worse */
} nib_examined;

/* Sees an output that is then removed: nib_quantize_job.examine. ascending and rounds: of nib_gptq;
 * held_out: nib_scaling.held_out, of rotate, too; checked: nib_coded_comparison.tokens of search
 * and hqq, 0: they are not compared; seed: nib_rotating.seed. */
typedef struct nib_examiner {
    nib_status (*examine)(void *ctx, const char *place, const struct nib_digests *outputs,
                          nib_err *err);
    /* Called after that, or by a dry run alone; NULL: nothing is told */
    nib_status (*tell)(void *ctx, const nib_examined *made, nib_err *err);
    void *ctx;
    bool ascending, rounds;
    int64_t held_out, checked;
    uint64_t seed;
    bool directory; /* the output is a directory, also of a single file */
} nib_examiner;
/* nib_quantize and nib_convert into a directory beside options->out, for the examiner; a dry run of
 * nib_quantize makes nothing. Options and model are as those calls take them. The codes of a method
 * are meanwhile in OUT.verify.codes. */
nib_status nib__quantize_again(nib_model *model, const nib_quantize_options *options,
                               const nib_examiner *examiner, nib_err *err);
nib_status nib__convert_again(nib_model *model, const nib_convert_options *options,
                              const nib_examiner *examiner, nib_err *err);

/* The check of nib_verify_from that needs no source: the signature. */
struct nib_findings;
nib_status nib__verify_signature(const nib_model *model, const nib_verify_from_options *options,
                                 struct nib_findings *findings, nib_ledger *notes, nib_err *err);

/* Adds what --pack asks for to an output. */
typedef struct nib_packing_job {
    nib_model *model; /* the source */
    const char *out;  /* its final name, for notes */
    nib_ledger *ledger;
    nib_arena *arena;
} nib_packing_job;
/* Packs the weights in `directory` for the rows that this machine would run, into it, and its
 * tokenizer. */
nib_status nib__pack_output(const nib_packing_job *job, const char *directory, nib_err *err);

/* nib_verify_from of a checkpoint without a receipt: judges each of its tensors by the source's.
 * manifest: its path, or NULL if there is none. */
nib_status nib__verify_by_source(nib_model *model, const nib_verify_from_options *options,
                                 const char *manifest, nib_form form, const nib_sink *sink,
                                 nib_err *err);

/* What calibration finds of the inputs of one linear layer. */
typedef struct nib_input_stats {
    float range[2];        /* smallest and largest, and 0 */
    float stored_range[2]; /* the same before the turn */
    int64_t tokens;
    /* [k] the sum of the squares of each input over the tokens in f64, ascending; NULL: not
     * wanted */
    double *squares;
    /* [2][k] smallest and largest of each input, and 0; NULL: not wanted */
    float *extremes;
    /* The squares are of the first two parts of the text, the extremes of the first one. */
    bool in_parts;
    /* The inputs are those of the turned weight; NULL: as stored. */
    const struct nib_turn *turn;
} nib_input_stats;

/* The parts of a text for methods that are checked on tokens that they did not use. Scales of awq
 * and smooth are made of the first, chosen by the second, and checked by the third; rotate uses the
 * first two alike. */
typedef struct nib_text_parts {
    int64_t first, second, third; /* tokens; the second as many as the third */
} nib_text_parts;
enum { NIB_HELD_OUT_DEFAULT = -1, NIB_CHECKED_DEFAULT = -1 };
/* held_out: tokens of the third part; by default nib__text_end. 0: the whole text is the first
 * part, and the others are empty. NIB_BAD_INPUT: the text is shorter than three tokens, or than the
 * parts. */
nib_status nib__text_parts(nib_text_parts *out, int64_t held_out, int64_t tokens, nib_err *err);
/* How many tokens at the end of a text check the whole model: a quarter, at least 1 and at most
 * 4,096. */
int64_t nib__text_end(int64_t tokens);

/* The importance of k inputs for nib_quantizer, [k] from the arena: their squares over the mean,
 * at least 2^-20, so that no group weighs nothing. NULL: no square is above 0. */
nib_status nib__importance(const float **out, const double *squares, int64_t k, nib_arena *arena,
                           nib_err *err);

enum { NIB_HEAD_EVERY = 8 }; /* the output layer sees every eighth token, because it is wide */

/* How a text was run: in windows that share no tokens, the last of which may be shorter. */
typedef struct nib_calibration {
    int64_t held_out;       /* asked, if some stats are in parts: of nib__text_parts */
    int64_t tokens, window; /* result: both at least 1 */
} nib_calibration;

/* Runs the model as stored over a text and fills stats[site], zeroed but for `squares`, `extremes`
 * and `in_parts`, and the result in *run. Neither depends on the number of threads, or on how the
 * text is divided into steps. */
nib_status nib__calibrate(nib_input_stats *stats, nib_calibration *run, nib_model *model,
                          const nib_request *request, const char *text_path, nib_err *err);

#endif
