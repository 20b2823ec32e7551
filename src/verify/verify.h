/* SPDX-License-Identifier: Apache-2.0
 *
 * verify: reads every byte of a checkpoint, reports what is wrong with it, and measures how far it
 * is from another checkpoint.
 */
#ifndef NIB_VERIFY_H
#define NIB_VERIFY_H

#include "info.h"
#include "pool.h"

/* A weight that the config implies. */
typedef struct nib_expected {
    const char *name; /* module */
    int64_t n, k;     /* k 0: a vector of n, such as a norm */
    bool bias;
    bool optional; /* may be missing: a tied head */
    bool bare;     /* a vector whose whole name it is, without .weight */
    int64_t taps;  /* above 0: of a short convolution, [n][1][taps], with k 0 */
} nib_expected;

/* The distance of two models, run on the same token ids. */
typedef struct nib_model_distance {
    const char *why_not; /* why they were not run; NULL: they were */
    int64_t tokens;      /* predicted tokens */
    double kl;           /* KL divergence, nats per token */
    double agreement;    /* 0 to 1: how often the top-1 tokens agree */
} nib_model_distance;

typedef struct nib_verify_job {
    const nib_checkpoint *checkpoint, *against; /* against: NULL, or compared tensor by tensor */
    const nib_expected *expected;
    size_t expected_count; /* 0: completeness is not checked */
    /* Decoder layers that the model does not read, of which anything may be stored. */
    int64_t first_unread, end_unread;
    int64_t first_shared; /* from this layer on, keys and values need no weights, but may have */
    /* Compare module `head` with `against_head` of the other checkpoint: an output that is tied
     * only there. NULL: all modules have the same names. */
    const char *head, *against_head;
    /* Vice versa: `lone_head` of the other checkpoint is `tied_head` here. NULL: as above. */
    const char *lone_head, *tied_head;
    const nib_model_distance *models; /* NULL: not requested */
    const char *signers, *signer;     /* as in nib_signature_job */
    /* Called once when every file that the checks read is open, before they begin: no more will be
     * opened. It may fill in *models and *sandbox. NULL: nothing to do. */
    nib_status (*files_open)(void *ctx, nib_err *err);
    void *ctx;
    const char *sandbox; /* the note on it, for the report; NULL or empty: none */
    nib_pool *pool;
    const nib_callbacks *callbacks; /* NULL allowed */
    const nib_allocator *allocator;
} nib_verify_job;

/* Checks hashes against the manifest, ranges of codes, NaN and infinities, and completeness, and
 * renders the report. *problems: number of findings. Fails only if a check could not be done. */
nib_status nib__verify_render(const nib_verify_job *job, nib_form form, nib_text *out,
                              size_t *problems, nib_err *err);

#endif
