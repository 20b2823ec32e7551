/* SPDX-License-Identifier: Apache-2.0
 *
 * Log-probabilities from logits that a program has: the bits of nib_eval and of nib_generator, the
 * likeliest token, rows without probabilities, calls out of a callback.
 */
#include "bench.h"
#include "session.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "refused.h"

enum { IDS = 96 };

static opened open_shipped(int threads)
{
    return must_open(&(open_how){
        .path = "models/nibble-tales", .recipe = "8da4w", .threads = threads, .context = 128});
}

/* Any ids; the same each time. */
static void fill_ids(int32_t ids[IDS], int64_t vocab)
{
    for (int i = 0; i < IDS; i++)
        ids[i] = (int32_t)((i * 7919 + 11) % vocab);
}

/* Rows of the model for ids, their sums and likeliest tokens. */
typedef struct scored {
    const float *logits; /* [IDS][vocab] */
    double sums[IDS];
    int32_t likeliest[IDS];
} scored;

static void score(scored *s, const opened *o, const int32_t ids[IDS])
{
    nib_slot slots[IDS];
    nib_err err;
    for (int i = 0; i < IDS; i++)
        slots[i] = (nib_slot){.position = i, .token = ids[i], .outputs = NIB_SLOT_LOGITS};
    if (nib_session_step(o->session, slots, IDS, &s->logits, &err) != NIB_OK ||
        nib_session_log_sums(s->sums, s->likeliest, o->session, s->logits, IDS, &err) != NIB_OK)
        fail_msg("%s", err.text);
}

static void test_as_eval(void **state)
{
    (void)state;
    for (int threads = 1; threads <= 3; threads++) {
        opened o = open_shipped(threads);
        const int64_t vocab = nib_session_vocab(o.session);
        int32_t ids[IDS];
        scored s;
        fill_ids(ids, vocab);
        score(&s, &o, ids);
        double loss = 0;
        for (int i = 0; i + 1 < IDS; i++) {
            const float *row = s.logits + i * vocab;
            double sum = 0;
            for (int64_t v = 0; v < vocab; v++) {
                sum += exp((double)row[v]);
                assert_true(row[v] <= row[s.likeliest[i]]);
            }
            assert_true(fabs(log(sum) - s.sums[i]) < 1e-12 * fabs(s.sums[i]));
            loss += s.sums[i] - (double)row[ids[i + 1]];
        }
        nib_eval_result result = {.size = sizeof result};
        nib_err err;
        if (nib__eval_ids(o.session, NULL, ids, IDS, &result, &err) != NIB_OK)
            fail_msg("%s", err.text);
        assert_int_equal(result.predicted, IDS - 1);
        assert_true(result.loss == loss / (IDS - 1));
        close_opened(&o);
    }
}

static void test_as_generation(void **state)
{
    (void)state;
    opened o = open_shipped(2);
    nib_err err;
    nib_generator *g;
    const nib_generate_options options = {
        .prompt = "Once upon a time", .max_tokens = 12, .temperature = -1, .logprobs = 1};
    assert_int_equal(nib_generator_open(&g, o.session, &options, &err), NIB_OK);
    int32_t ids[IDS], *prompt;
    double logprobs[IDS];
    size_t count, made = 0;
    nib_piece piece = {.size = sizeof piece};
    while (nib_generator_next(g, &piece, &err) == NIB_OK && !piece.over)
        if (piece.token >= 0) {
            ids[made] = piece.token;
            logprobs[made++] = piece.logprob;
        }
    nib_generator_close(g);
    assert_int_equal(made, 12);

    const nib_tokenizer *tokenizer;
    assert_int_equal(nib_model_tokenizer(&tokenizer, o.model, &err), NIB_OK);
    assert_int_equal(nib_tokenize(tokenizer, options.prompt, strlen(options.prompt),
                                  NIB_TOKENIZE_ADD_SPECIAL, &prompt, &count, &err),
                     NIB_OK);
    assert_true(count > 0 && count + made < IDS);
    assert_int_equal(nib_session_truncate(o.session, 0, 0, &err), NIB_OK);
    for (size_t i = 0; i < count + made - 1; i++) {
        const nib_slot slot = {.position = (int32_t)i,
                               .token = i < count ? prompt[i] : ids[i - count],
                               .outputs = NIB_SLOT_LOGITS};
        const float *row;
        double sum;
        int32_t likeliest;
        assert_int_equal(nib_session_step(o.session, &slot, 1, &row, &err), NIB_OK);
        assert_int_equal(nib_session_log_sums(&sum, &likeliest, o.session, row, 1, &err), NIB_OK);
        if (i + 1 < count)
            continue;
        assert_int_equal(likeliest, ids[i + 1 - count]); /* it was greedy */
        assert_true((double)row[likeliest] - sum == logprobs[i + 1 - count]);
    }
    nib_tokens_free(o.engine, prompt);
    close_opened(&o);
}

static void test_rows(void **state)
{
    (void)state;
    opened o = open_shipped(2);
    const size_t vocab = (size_t)nib_session_vocab(o.session);
    float *rows = malloc(3 * vocab * sizeof *rows);
    assert_non_null(rows);
    double sums[3];
    int32_t likeliest[3];
    nib_err err;
    for (size_t i = 0; i < 3 * vocab; i++)
        rows[i] = 0.5f;
    /* excluded tokens have no part, and of equal ones the smallest is named */
    for (size_t i = 0; i < vocab; i++)
        rows[i] = i == 7 || i == 9 ? 2.0f : -INFINITY;
    assert_int_equal(nib_session_log_sums(sums, likeliest, o.session, rows, 3, &err), NIB_OK);
    assert_true(fabs(sums[0] - (2 + log(2))) < 1e-15);
    assert_int_equal(likeliest[0], 7);
    assert_true(fabs(sums[1] - (0.5 + log((double)vocab))) < 1e-12);
    assert_int_equal(likeliest[1], 0);
    assert_true(sums[1] == sums[2]);
    assert_int_equal(nib_session_log_sums(sums, NULL, o.session, rows, 3, &err), NIB_OK);
    assert_int_equal(nib_session_log_sums(sums, likeliest, o.session, rows, 0, &err), NIB_OK);

    static const float bad[] = {NAN, INFINITY};
    for (size_t i = 0; i < 2; i++) {
        rows[2 * vocab + 5] = bad[i];
        refused(NIB_CHECK_FAILED, nib_session_log_sums(sums, likeliest, o.session, rows, 3, &err),
                &err);
        assert_non_null(strstr(err.text, "row 3 of 3"));
    }
    for (size_t i = 0; i < vocab; i++)
        rows[i] = -INFINITY;
    refused(NIB_CHECK_FAILED, nib_session_log_sums(sums, likeliest, o.session, rows, 1, &err),
            &err);
    o.session->running = true; /* the call comes out of a callback */
    refused(NIB_USAGE, nib_session_log_sums(sums, likeliest, o.session, rows + vocab, 1, &err),
            &err);
    o.session->running = false;
    assert_int_equal(nib_session_log_sums(sums, likeliest, o.session, rows + vocab, 1, &err),
                     NIB_OK);
    free(rows);
    close_opened(&o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_as_eval),
        cmocka_unit_test(test_as_generation),
        cmocka_unit_test(test_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
