/* SPDX-License-Identifier: Apache-2.0
 *
 * Speeds and losses of a session.
 */
#ifndef NIB_BENCH_H
#define NIB_BENCH_H

#include "session_handle.h"

/* Times a prompt, and new tokens from an empty cache (as llama-bench's tg does); seconds for
 * all. */
nib_status nib__bench_prefill(nib_session *session, int64_t count, double *seconds, nib_err *err);
nib_status nib__bench_decode(nib_session *session, int64_t count, double *seconds, nib_err *err);
/* Fills positions `from` to `to` of a sequence and keeps the earlier ones; times new tokens after
 * `from` positions. */
nib_status nib__bench_fill(nib_session *session, int32_t sequence, int64_t from, int64_t to,
                           nib_err *err);
nib_status nib__bench_decode_at(nib_session *session, int32_t sequence, int64_t from, int64_t count,
                                double *seconds, nib_err *err);
/* Times `count` steps with one token of each sequence. Sequence j starts with
 * nib__bench_batch_start(j) positions. *logits: [sequences][vocab] of the last step. */
nib_status nib__bench_batch(nib_session *session, int64_t sequences, int64_t count,
                            const float **logits, double *seconds, nib_err *err);
int64_t nib__bench_batch_start(const nib_session *session, int64_t sequence, int64_t count);
/* Fills in default options and checks that the context holds them. */
nib_status nib__bench_complete(nib_bench_options *options, const nib_session *session,
                               nib_err *err);
/* Whether the row is a linear kernel that runs here on the shape of `bench --kernels`. */
bool nib__bench_supports(const nib_engine *engine, const nib_kernel *row);
/* The speeds of nib_bench, without measuring the machine. */
nib_status nib__bench_speeds(nib_session *session, const nib_bench_options *options,
                             nib_bench_speeds *speeds, nib_err *err);
/* Whether no layer of the plan runs in codes. */
bool nib__plan_is_floats(const nib_assignment *plan);
/* The model in floats that a session is compared with. */
typedef struct nib_bench_floats {
    nib_model *model; /* opened for the comparison; NULL: the session's model */
    nib_plan *plan;
    nib_session *session; /* NULL: not available */
} nib_bench_floats;
/* Opens the model at `path` as stored, on the session's device. path NULL: the session's own model;
 * if it is not available in floats, `why` gets the reason. */
nib_status nib__bench_floats_open(nib_bench_floats *out, const nib_session *of, const char *path,
                                  char *why, size_t size, nib_err *err);
void nib__bench_floats_close(nib_bench_floats *floats);

/* The loss on one window of ids, and the distance to another session on them. */
nib_status nib__eval_ids(nib_session *session, nib_session *against, const int32_t *ids,
                         int64_t count, nib_eval_result *result, nib_err *err);

#endif
