/* SPDX-License-Identifier: Apache-2.0
 *
 * Log-probabilities of logits that a program scores itself.
 */
#include "sample.h"
#include "session_handle.h"

#include <inttypes.h>
#include <math.h>

typedef struct summing {
    const float *logits; /* [rows][vocab] */
    int64_t vocab;
    double *sums;       /* [rows] */
    int32_t *likeliest; /* [rows]; NULL: not wanted */
} summing;

static void job_sum(void *ctx, int worker, int64_t begin, int64_t end)
{
    const summing *s = ctx;
    (void)worker;
    for (int64_t i = begin; i < end; i++) {
        int64_t best;
        s->sums[i] = nib__log_sum(s->logits + i * s->vocab, s->vocab, &best);
        if (s->likeliest)
            s->likeliest[i] = (int32_t)best;
    }
}

nib_status nib_session_log_sums(double *sums, int32_t *likeliest, nib_session *session,
                                const float *logits, size_t rows, nib_err *err)
{
    const summing s = {logits, nib_session_vocab(session), sums, likeliest};
    NIB_TRY(nib__session_enter(session, err));
    nib__pool_run(session->model->engine->pool, (int64_t)rows, 1, false, job_sum, (void *)&s);
    nib__session_leave(session);
    for (size_t i = 0; i < rows; i++)
        if (!isfinite(sums[i]))
            return nib__fail(err, NIB_CHECK_FAILED,
                             "row %zu of %zu has no probabilities: a logit is NaN or positive "
                             "infinity, or none is finite; `nibble verify` of the model finds a "
                             "tensor that holds NaN or Inf",
                             i + 1, rows);
    return NIB_OK;
}
