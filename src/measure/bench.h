/* SPDX-License-Identifier: Apache-2.0
 *
 * Speeds and losses of a session.
 */
#ifndef NIB_BENCH_H
#define NIB_BENCH_H

#include "session_handle.h"

/* A prompt, and new tokens from an empty cache; seconds of all. */
nib_status nib__bench_prefill(nib_session *session, int64_t count, double *seconds, nib_err *err);
nib_status nib__bench_decode(nib_session *session, int64_t count, double *seconds, nib_err *err);
/* Positions `from` to `to` of a sequence, whose earlier ones stay; new tokens behind such. */
nib_status nib__bench_fill(nib_session *session, int32_t sequence, int64_t from, int64_t to,
                           nib_err *err);
nib_status nib__bench_decode_at(nib_session *session, int32_t sequence, int64_t from, int64_t count,
                                double *seconds, nib_err *err);
/* Each step has a token of each sequence; before them sequence j has nib__bench_batch_start(j)
 * positions. *logits: [sequences][vocab] of the last step. */
nib_status nib__bench_batch(nib_session *session, int64_t sequences, int64_t count,
                            const float **logits, double *seconds, nib_err *err);
int64_t nib__bench_batch_start(const nib_session *session, int64_t sequence, int64_t count);
/* What the options leave open, and whether the context holds it. */
nib_status nib__bench_complete(nib_bench_options *options, const nib_session *session,
                               nib_err *err);
/* Is the row one of a product that runs here on the shape of `bench --kernels`? */
bool nib__bench_takes(const nib_engine *engine, const nib_kernel *row);
/* The speeds of nib_bench, without measuring the machine. */
nib_status nib__bench_speeds(nib_session *session, const nib_bench_options *options,
                             nib_bench_speeds *speeds, nib_err *err);
/* Is no layer of the plan done in codes? */
bool nib__plan_is_floats(const nib_assignment *plan);
/* The floats that a session is compared with. */
typedef struct nib_bench_floats {
    nib_model *model; /* opened for it; NULL: the session's own */
    nib_plan *plan;
    nib_session *session; /* NULL: they cannot be had */
} nib_bench_floats;
/* The model at `path` as it is stored, on the session's device; NULL: the session's own model,
 * where `why` gets the reason if it cannot be had. */
nib_status nib__bench_floats_open(nib_bench_floats *out, const nib_session *of, const char *path,
                                  char *why, size_t size, nib_err *err);
void nib__bench_floats_close(nib_bench_floats *floats);

/* Loss of one window of ids, and the distance to another session on them. */
nib_status nib__eval_ids(nib_session *session, nib_session *against, const int32_t *ids,
                         int64_t count, nib_eval_result *result, nib_err *err);

#endif
