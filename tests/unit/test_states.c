/* SPDX-License-Identifier: Apache-2.0
 *
 * States of layers without keys (states.c): how far a sequence can be rolled back, and that it
 * continues with the same bits after a rollback, in a copy, and beside others. What such a model
 * cannot do yet is refused.
 */
#include "session.h"

#include "states.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "refused.h"

enum { LENGTH = 300, MORE = 20 };

/* ---- what is held ---- */

static void test_reach(void **state)
{
    (void)state;
    static const bool has[] = {true, false, true};
    const nib_allocator a = nib__allocator_default();
    const nib_state_shape shape = {
        .layers = 3, .has = has, .channels = 5, .taps = 3, .sequences = 2, .slots = 1};
    uint64_t bytes;
    nib_states s;
    assert_int_equal(nib__states_count(&shape), 2);
    assert_int_equal(nib__states_measure(&bytes, &shape, NULL), NIB_OK);
    assert_int_equal(nib__states_open(&s, &shape, &a, NULL), NIB_OK);
    assert_int_equal(bytes, s.bytes);
    assert_int_equal(bytes, 2 * 2 * (NIB_STATE_SPARE + 2) * 5 * sizeof(float));
    assert_int_equal(s.place[1], -1);
    assert_ptr_equal(nib__states_layer(&s, 2), s.block + 2 * s.room * 5);
    for (int64_t p = 0; p < LENGTH; p++) {
        nib__states_place(&s, 1, p);
        /* the first tokens read nothing before them */
        const int64_t least = s.firsts[1] == 0 ? 0 : p + 1 - NIB_STATE_SPARE;
        assert_int_equal(nib__states_earliest(&s, 1), least);
        assert_int_equal(nib__states_earliest(&s, 0), 0);
    }
    nib__states_place(&s, 1, LENGTH - 60); /* after a rollback nothing more is there */
    assert_int_equal(nib__states_earliest(&s, 1), LENGTH - NIB_STATE_SPARE);
    nib__states_copy(&s, 1, 0);
    assert_int_equal(s.firsts[0], s.firsts[1]);
    nib__states_clear(&s, 1);
    assert_int_equal(s.firsts[1], 0);
    nib__states_close(&s);
    nib__states_close(&s); /* no states */
    assert_int_equal(nib__states_earliest(&s, 7), 0);
}

enum { LAYERS = 2, X = 2 * 3 + 2 * 2, GATES = 2 * 2 };
static const nib_matrix_size matrix = {.key_heads = 1, .heads = 2, .key_dim = 3, .value_dim = 2};

/* A pass of m slots in a layer, whose rows hold their position; its matrices are not computed. */
static int64_t pass(nib_states *s, int64_t layer, const int32_t *sequence, const int32_t *position,
                    int64_t m)
{
    static float x[LENGTH][X], gates[LENGTH][GATES];
    for (int64_t i = 0; i < m; i++) {
        for (int64_t j = 0; j < X; j++)
            x[i][j] = (float)(1000 * sequence[i] + position[i]);
        for (int64_t j = 0; j < GATES; j++)
            gates[i][j] = (float)(1000 * sequence[i] + position[i]);
    }
    const nib_recurrence args = {.x = x[0],
                                 .gates = gates[0],
                                 .ldx = X,
                                 .ldg = GATES,
                                 .logged = 3,
                                 .size = matrix,
                                 .slots = s->slots,
                                 .runs = s->runs,
                                 .count = nib__states_list(s, layer, sequence, position, m)};
    nib__states_keep(s, layer, &args, sequence);
    return args.count;
}

/* The log of a sequence: positions [from, to). */
static void expect_log(nib_states *s, int64_t layer, int32_t sequence, int64_t from, int64_t to)
{
    const int32_t next = (int32_t)to;
    assert_int_equal(nib__states_list(s, layer, &sequence, &next, 1), 1);
    assert_int_equal(s->runs[0].again, to - from);
    assert_int_equal(s->runs[0].empty, from == 0);
    const int64_t width = nib__matrix_token_values(&matrix);
    for (int64_t i = 0; i < (to - from) * width; i++)
        assert_true(s->runs[0].earlier[i] == (float)(1000 * sequence + from + i / width));
}

/* The matrices of a layer, and the log of the tokens that they do not have. */
static void test_log(void **state)
{
    (void)state;
    static const bool has[] = {true, true};
    static const int32_t sequences[LENGTH] = {0};
    const nib_allocator a = nib__allocator_default();
    const nib_state_shape shape = {.layers = LAYERS,
                                   .has = has,
                                   .channels = X,
                                   .taps = 2,
                                   .sequences = 2,
                                   .matrix = matrix,
                                   .slots = LENGTH};
    int32_t positions[LENGTH];
    nib_states s;
    for (int32_t i = 0; i < LENGTH; i++)
        positions[i] = i;
    assert_int_equal(nib__states_open(&s, &shape, &a, NULL), NIB_OK);
    assert_int_equal(pass(&s, 1, sequences, positions, 40), 1); /* a layer that another precedes */
    expect_log(&s, 1, 0, 0, 40);
    assert_int_equal(nib__states_earliest(&s, 0), 0);
    pass(&s, 1, sequences, positions + 40, 3);
    expect_log(&s, 1, 0, 40, 43);
    assert_int_equal(nib__states_earliest(&s, 0), 40);
    pass(&s, 1, sequences, positions + 41, 100); /* two of the three were rolled back */
    expect_log(&s, 1, 0, 141 - NIB_STATE_SPARE, 141);
    nib__states_hold(&s, 0, 139);
    for (int64_t p = 141; p < 150; p++)
        pass(&s, 1, sequences, positions + p, 1);
    expect_log(&s, 1, 0, 139, 150);
    nib__states_copy(&s, 0, 1);
    static const int32_t both[] = {1, 0, 0, 1, 0}, mixed[] = {150, 150, 151, 151, 152};
    assert_int_equal(pass(&s, 1, both, mixed, COUNT(both)), 2);
    expect_log(&s, 1, 1, 150, 152);
    expect_log(&s, 1, 0, 139, 153);
    pass(&s, 1, sequences, positions + 153, 60); /* the log holds no more */
    expect_log(&s, 1, 0, 213 - NIB_STATE_SPARE, 213);
    expect_log(&s, 0, 0, 0, 0);
    nib__states_clear(&s, 0);
    expect_log(&s, 1, 0, 0, 0);
    nib__states_close(&s);
}

static void test_too_many(void **state)
{
    (void)state;
    static const bool has[] = {true};
    const nib_state_shape shape = {
        .layers = 1, .has = has, .channels = 1 << 24, .taps = 64, .sequences = INT64_C(1) << 40};
    uint64_t bytes;
    nib_err err;
    refused(NIB_NO_MEMORY, nib__states_measure(&bytes, &shape, &err), &err);
}

/* ---- in a session ---- */

/* Short convolutions alone; with the gated delta rule; with Mamba-2. */
static const char *const models[] = {"tests/golden/models/lfm2", "tests/golden/models/qwen3_5",
                                     "tests/golden/models/granite_hybrid"};

static opened open_states(const char *path, const char *recipe, int sequences)
{
    return must_open(&(open_how){
        .path = path, .recipe = recipe, .dtype = "f32", .threads = 2, .sequences = sequences});
}

static int32_t token_at(const nib_session *s, int64_t i, int text)
{
    return (int32_t)((7 * i + i / 50 + 31 * text + 3) % nib_session_vocab(s));
}

/* Runs positions [from, to) in steps of at most `chunk`; returns the logits of the last MORE. */
static float *run(nib_session *s, int32_t sequence, int64_t from, int64_t to, int64_t chunk,
                  int text)
{
    const size_t vocab = (size_t)nib_session_vocab(s);
    float *out = calloc(MORE * vocab, sizeof *out);
    nib_slot slots[LENGTH];
    const float *logits;
    nib_err err;
    for (int64_t at = from; at < to; at += chunk) {
        const int64_t count = nib__min(chunk, to - at);
        for (int64_t i = 0; i < count; i++)
            slots[i] = (nib_slot){sequence, (int32_t)(at + i), token_at(s, at + i, text),
                                  at + i >= to - MORE ? NIB_SLOT_LOGITS : 0};
        if (nib_session_step(s, slots, (size_t)count, &logits, &err) != NIB_OK)
            fail_msg("%s", err.text);
        for (int64_t i = 0, row = 0; i < count; i++)
            if (slots[i].outputs != 0)
                memcpy(out + (size_t)(at + i - (to - MORE)) * vocab,
                       logits + row++ * (int64_t)vocab, vocab * sizeof *out);
    }
    return out;
}

static void expect_same(nib_session *s, float *got, const float *want)
{
    assert_memory_equal(got, want, (size_t)(MORE * nib_session_vocab(s)) * sizeof *want);
    free(got);
}

/* Drafts of any length are rolled back; what is further back is refused, and nothing changes. */
static void check_rollback(const char *path)
{
    static const int64_t cuts[] = {LENGTH - 1, LENGTH - MORE, LENGTH - 40,
                                   LENGTH - NIB_STATE_SPARE};
    opened o = open_states(path, NULL, 1);
    nib_session *s = o.session;
    nib_err err;
    float *whole = run(s, 0, 0, LENGTH, LENGTH, 1);
    refused(NIB_USAGE, nib_session_truncate(s, 0, LENGTH - NIB_STATE_SPARE - 1, &err), &err);
    refused(NIB_USAGE, nib_session_truncate(s, 0, 1, &err), &err);
    for (size_t i = COUNT(cuts); i-- > 0;) {
        assert_int_equal(nib_session_truncate(s, 0, (int32_t)cuts[i], &err), NIB_OK);
        nib__states_hold(&s->runner.kv.states, 0, nib__min(cuts[i], LENGTH - MORE));
        free(run(s, 0, cuts[i], LENGTH, 7, 2)); /* a draft of other tokens */
        assert_int_equal(nib_session_truncate(s, 0, (int32_t)cuts[i], &err), NIB_OK);
        free(run(s, 0, cuts[i], LENGTH, 3, 1));
        assert_int_equal(nib_session_truncate(s, 0, LENGTH - MORE, &err), NIB_OK);
        expect_same(s, run(s, 0, LENGTH - MORE, LENGTH, 1, 1), whole);
    }
    assert_int_equal(nib_session_truncate(s, 0, 0, &err), NIB_OK);
    expect_same(s, run(s, 0, 0, LENGTH, 64, 1), whole);
    free(whole);
    close_opened(&o);
}

static void test_rollback(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(models); i++)
        check_rollback(models[i]);
}

/* Without nib__states_hold, matrices are behind the last step alone. */
static void test_rollback_of_a_step(void **state)
{
    (void)state;
    opened o = open_states(models[1], NULL, 1);
    nib_session *s = o.session;
    nib_err err;
    float *whole = run(s, 0, 0, LENGTH, LENGTH, 1);
    assert_int_equal(nib_session_truncate(s, 0, 0, &err), NIB_OK);
    free(run(s, 0, 0, LENGTH - MORE, 50, 1));
    for (int64_t at = LENGTH - MORE; at < LENGTH; at += 5) { /* one of four is accepted */
        free(run(s, 0, at, at + 4, 4, 2));
        refused(NIB_USAGE, nib_session_truncate(s, 0, (int32_t)at - 1, &err), &err);
        assert_int_equal(nib_session_truncate(s, 0, (int32_t)at, &err), NIB_OK);
        free(run(s, 0, at, at + 5, 5, 1));
        assert_int_equal(nib_session_truncate(s, 0, (int32_t)at + 1, &err), NIB_OK);
        free(run(s, 0, at + 1, at + 5, 1, 1));
    }
    assert_int_equal(nib_session_truncate(s, 0, 0, &err), NIB_OK);
    free(run(s, 0, 0, LENGTH - MORE, 1, 1));
    expect_same(s, run(s, 0, LENGTH - MORE, LENGTH, MORE, 1), whole);
    free(whole);
    close_opened(&o);
}

/* A sequence that shares the beginning of another continues with the bits of one that ran it. */
static void check_share(const char *path)
{
    enum { SHARED = 4 * NIB_CACHE_BLOCK };
    opened o = open_states(path, "8da4w-g16", 3);
    nib_session *s = o.session;
    nib_kv *kv = &s->runner.kv;
    float *whole = run(s, 0, 0, LENGTH, 50, 1);
    free(run(s, 1, 0, LENGTH, LENGTH, 2)); /* its state must not matter */
    assert_int_equal(nib__kv_truncate(kv, 1, 0), 0);
    assert_int_equal(nib__kv_cut(kv, 0, SHARED), SHARED);
    nib__kv_share(kv, 0, 1, SHARED);
    expect_same(s, run(s, 1, SHARED, LENGTH, 9, 1), whole);
    assert_int_equal(nib__kv_cut(kv, 0, SHARED - NIB_CACHE_BLOCK), 0); /* no longer there */
    free(run(s, 2, 0, 30, 30, 1));
    assert_int_equal(nib__kv_cut(kv, 2, 5), 5);
    free(whole);
    close_opened(&o);
}

static void test_share(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(models); i++)
        check_share(models[i]);
}

/* ---- snapshots ---- */

/* Which slot is found, replaced and free. */
static void test_snapshot_slots(void **state)
{
    (void)state;
    const nib_allocator a = nib__allocator_default();
    nib_snapshots s;
    assert_int_equal(nib__snapshots_open(&s, 3, 2, &a, NULL), NIB_OK);
    assert_int_equal(nib__snapshots_find(&s, 0, 1000), -1);
    assert_int_equal(nib__snapshots_take(&s, 0, 64, NIB_SNAPSHOT_TURN), 0);
    assert_int_equal(nib__snapshots_take(&s, 0, 128, NIB_SNAPSHOT_PASSING), 1);
    assert_int_equal(nib__snapshots_take(&s, 0, 128, NIB_SNAPSHOT_PASSING), -1); /* it has one */
    assert_int_equal(nib__snapshots_find(&s, 0, 63), -1);
    assert_int_equal(nib__snapshots_find(&s, 0, 127), 0);
    assert_int_equal(nib__snapshots_find(&s, 0, 128), 1);
    assert_int_equal(nib__snapshots_find(&s, 1, 128), -1);
    nib__snapshots_share(&s, 0, 1, 100); /* the first one is both sequences' now */
    assert_int_equal(nib__snapshots_find(&s, 1, 128), 0);
    assert_int_equal(nib__snapshots_take(&s, 1, 192, NIB_SNAPSHOT_TURN), 2);
    assert_int_equal(nib__snapshots_used(&s), 3);
    /* all are in use: the passing one goes first, then the one that was not used for longest */
    assert_int_equal(nib__snapshots_take(&s, 1, 256, NIB_SNAPSHOT_PASSING), 1);
    assert_int_equal(nib__snapshots_find(&s, 0, 128), 0);
    assert_int_equal(nib__snapshots_take(&s, 1, 320, NIB_SNAPSHOT_TURN), 1);
    assert_int_equal(nib__snapshots_take(&s, 1, 384, NIB_SNAPSHOT_PASSING), -1);
    nib__snapshots_use(&s, 0);
    assert_int_equal(nib__snapshots_take(&s, 1, 384, NIB_SNAPSHOT_TURN), 2);
    /* a slot is free once neither sequence has it */
    nib__snapshots_cut(&s, 1, 63);
    assert_int_equal(nib__snapshots_used(&s), 1);
    nib__snapshots_cut(&s, 0, 63);
    assert_int_equal(nib__snapshots_used(&s), 0);
    nib__snapshots_close(&s);
    assert_int_equal(nib__snapshots_take(&s, 0, 64, NIB_SNAPSHOT_TURN), -1);
}

/* A sequence that is rolled back to a snapshot, or shares one, continues with the same bits. */
static void check_snapshots(const char *path)
{
    enum { KEPT = 2 * NIB_CACHE_BLOCK, TURN = KEPT + 21 };
    opened o = open_states(path, "8da4w-g16", 2);
    nib_session *s = o.session;
    nib_kv *kv = &s->runner.kv;
    nib_err err;
    float *whole = run(s, 0, 0, LENGTH, LENGTH, 1);
    assert_int_equal(nib_session_truncate(s, 0, 0, &err), NIB_OK);
    const uint64_t before = nib__kv_used_bytes(kv);
    free(run(s, 0, 0, KEPT, KEPT, 1));
    nib__kv_snapshot(kv, 0, NIB_SNAPSHOT_PASSING);
    free(run(s, 0, KEPT, TURN, 1, 1));
    nib__kv_snapshot(kv, 0, NIB_SNAPSHOT_TURN);
    free(run(s, 0, TURN, LENGTH, LENGTH, 2)); /* goes on otherwise */
    assert_true(nib__kv_used_bytes(kv) - before > 3 * kv->states.bytes / 10);
    assert_int_equal(nib__kv_cut(kv, 0, TURN + 20), TURN);
    assert_int_equal(nib__kv_cut(kv, 0, TURN - 1), KEPT);
    assert_int_equal(nib__kv_cut(kv, 0, KEPT - 1), 0);
    assert_int_equal(nib__kv_shareable(kv, 0, TURN + 20), KEPT); /* whole blocks */
    nib__kv_share(kv, 0, 1, KEPT);
    expect_same(s, run(s, 1, KEPT, LENGTH, 40, 1), whole);
    assert_int_equal(nib_session_truncate(s, 0, TURN, &err), NIB_OK);
    expect_same(s, run(s, 0, TURN, LENGTH, 13, 1), whole);
    assert_int_equal(nib__kv_truncate(kv, 0, KEPT + 1), KEPT);
    assert_int_equal(nib__snapshots_used(&kv->snapshots), 1); /* the later one is gone */
    expect_same(s, run(s, 0, KEPT, LENGTH, 64, 1), whole);
    assert_int_equal(nib_session_truncate(s, 0, 0, &err), NIB_OK);
    assert_int_equal(nib__kv_cut(kv, 1, KEPT), KEPT); /* still of the other sequence */
    free(whole);
    close_opened(&o);
}

static void test_snapshots(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(models); i++)
        check_snapshots(models[i]);
}

/* ---- saving and loading ---- */

static nib_status put(void *ctx, const char *bytes, size_t size)
{
    nib__text_put(ctx, bytes, size);
    return NIB_OK;
}

/* A log of more tokens than the sequence has, or than a log can have, under a right checksum. */
static void refuse_log(nib_session *s, nib_text *saved)
{
    static const uint64_t logged[] = {NIB_STATE_SPARE + 1, UINT64_MAX};
    const nib_states *states = &s->runner.kv.states;
    const size_t matrices = (size_t)states->each * sizeof *states->block;
    int64_t length;
    uint64_t basis;
    int32_t loaded;
    nib_err err;
    memcpy(&basis, saved->at + 32, sizeof basis); /* docs/formats.md */
    memcpy(&length, saved->at + 64, sizeof length);
    char *at = saved->at + 80 + basis + nib__states_content(states, length) - matrices;
    for (size_t i = 0; i < COUNT(logged); i++) { /* of layer 0 */
        memcpy(at - sizeof logged[i], &logged[i], sizeof logged[i]);
        const size_t size = saved->size - sizeof(nib_hash);
        const nib_hash sum = nib__hash_bytes(saved->at, size);
        memcpy(saved->at + size, &sum, sizeof sum);
        refused(NIB_BAD_INPUT, nib_session_load(s, 1, saved->at, saved->size, &loaded, &err), &err);
    }
}

/* A saved sequence continues in another session, with the same bits and nothing of what was there
 * before. */
static void check_saved(const char *path)
{
    static const int64_t lengths[] = {1, 2, 70, LENGTH - MORE};
    const nib_allocator a = nib__allocator_default();
    opened o = open_states(path, "8da4w-g16", 1), other = open_states(path, "8da4w-g16", 2);
    nib_session *s = o.session;
    nib_err err;
    float *whole = run(s, 0, 0, LENGTH, LENGTH, 1);
    for (size_t i = 0; i < COUNT(lengths); i++) {
        nib_text text;
        int32_t length;
        nib__text_init(&text, &a);
        const nib_sink sink = {put, &text};
        assert_int_equal(nib_session_truncate(s, 0, 0, &err), NIB_OK);
        free(run(s, 0, 0, lengths[i], 33, 1));
        assert_int_equal(nib_session_save(s, 0, &sink, &err), NIB_OK);
        free(run(other.session, 1, nib_session_length(other.session, 1), LENGTH, 50, 2));
        if (nib_session_load(other.session, 1, text.at, text.size, &length, &err) != NIB_OK)
            fail_msg("%s", err.text);
        assert_int_equal(length, lengths[i]);
        const nib_kv *kv = &other.session->runner.kv;
        assert_int_equal(nib__kv_cut(kv, 1, length), length);
        assert_int_equal(nib__kv_cut(kv, 1, length - 1), length > 2 ? 0 : length - 1);
        expect_same(s, run(other.session, 1, length, LENGTH, 19, 1), whole);
        /* a byte less or other is found */
        text.at[text.size / 2] ^= 1;
        refused(NIB_BAD_INPUT,
                nib_session_load(other.session, 1, text.at, text.size, &length, &err), &err);
        text.at[text.size / 2] ^= 1;
        refused(NIB_BAD_INPUT,
                nib_session_load(other.session, 1, text.at, text.size - 1, &length, &err), &err);
        if (kv->states.each > 0)
            refuse_log(other.session, &text);
        assert_int_equal(nib_session_length(other.session, 1), LENGTH);
        nib__text_free(&text);
    }
    free(whole);
    close_opened(&o);
    close_opened(&other);
}

static void test_saved(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(models); i++)
        check_saved(models[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reach),
        cmocka_unit_test(test_log),
        cmocka_unit_test(test_too_many),
        cmocka_unit_test(test_rollback),
        cmocka_unit_test(test_rollback_of_a_step),
        cmocka_unit_test(test_share),
        cmocka_unit_test(test_snapshot_slots),
        cmocka_unit_test(test_snapshots),
        cmocka_unit_test(test_saved),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
