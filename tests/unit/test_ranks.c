/* SPDX-License-Identifier: Apache-2.0
 *
 * Messages between ranks and the sum of their gradients: in one process, and in each process that
 * `mpirun -n N test_ranks` starts (tests/cli/ranks.sh). `test_ranks hang` stops the last rank: the
 * others must name it and end the run. `test_ranks memory` makes an allocation fail on rank 0
 * during a sum that the others wait for.
 */
#include "engine.h"
#include "gradient.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

static nib_ranks *ranks;
static nib_engine *engine;
static nib_err err;

static void expect_ok(nib_status status)
{
    if (status != NIB_OK)
        fail_msg("%s", err.text);
}

static bool is_started(void) { return getenv("OMPI_COMM_WORLD_SIZE") != NULL; }

static int open_all(void **state)
{
    (void)state;
    const nib_ranks_options options = {.timeout_s = 20};
    if (is_started())
        expect_ok(nib_ranks_open(&ranks, &options, &err));
    nib_engine_options here = {.threads = 2};
    nib_ranks_slice(ranks, &here.slice, &here.slices);
    expect_ok(nib_engine_open(&engine, &here, &err));
    return 0;
}

static int close_all(void **state)
{
    (void)state;
    nib_engine_close(engine);
    nib_ranks_close(ranks);
    return 0;
}

static int this_rank(void) { return nib_ranks_rank(ranks); }
static int rank_count(void) { return nib_ranks_count(ranks); }

static unsigned char byte_at(size_t i, int rank)
{
    return (unsigned char)(i * 7 + i / 251 + (size_t)rank);
}

/* Sends around a ring; the sizes straddle the limits where the transport changes. */
static void test_bytes_arrive(void **state)
{
    (void)state;
    static const size_t sizes[] = {0, 1, 4096, 4097, 1 << 20, (64 << 20) + 5};
    const int next = (this_rank() + 1) % rank_count(),
              last = (this_rank() + rank_count() - 1) % rank_count();
    for (size_t s = 0; rank_count() > 1 && s < sizeof sizes / sizeof *sizes; s++) {
        unsigned char *bytes = malloc(sizes[s] + 1);
        assert_non_null(bytes);
        for (size_t i = 0; i < sizes[s]; i++)
            bytes[i] = byte_at(i, this_rank());
        if (this_rank() == 0)
            expect_ok(nib__ranks_send(ranks, bytes, sizes[s], next, "a ring", &err));
        unsigned char *got = malloc(sizes[s] + 1);
        assert_non_null(got);
        got[sizes[s]] = 42;
        expect_ok(nib__ranks_receive(ranks, got, sizes[s], last, "a ring", &err));
        if (this_rank() != 0)
            expect_ok(nib__ranks_send(ranks, bytes, sizes[s], next, "a ring", &err));
        for (size_t i = 0; i < sizes[s]; i++)
            if (got[i] != byte_at(i, last))
                fail_msg("byte %zu of %zu is wrong", i, sizes[s]);
        assert_int_equal(got[sizes[s]], 42);
        free(got);
        free(bytes);
    }
}

static void test_share(void **state)
{
    (void)state;
    int64_t values[1000];
    for (int i = 0; i < 1000; i++)
        values[i] = this_rank() == 0 ? i * i : -1;
    expect_ok(nib__ranks_share(ranks, values, sizeof values, "squares", &err));
    for (int i = 0; i < 1000; i++)
        assert_int_equal(values[i], i * i);
}

static void test_slices(void **state)
{
    (void)state;
    int slice, slices;
    nib_ranks_slice(ranks, &slice, &slices);
    assert_in_range(slice, 0, slices - 1);
    assert_in_range(slices, 1, rank_count());
}

/* ---- the tree ---- */

enum { TOTAL = 5000 };

/* Values of many magnitudes, so that another order of additions gives other bits. */
static float leaf_value(int64_t leaf, int64_t i)
{
    const uint64_t x = ((uint64_t)leaf * TOTAL + (uint64_t)i + 1) * UINT64_C(0x9e3779b97f4a7c15);
    return ((float)(x >> 40) - 8388608.0f) * (x & 1 ? 1e-3f : 1e2f);
}

static float pair_sum(int64_t first, int64_t leaves, int64_t i)
{
    float sums[16];
    for (int64_t j = 0; j < leaves; j++)
        sums[j] = leaf_value(first + j, i);
    for (int64_t left = leaves; left > 1; left /= 2)
        for (int64_t j = 0; j < left / 2; j++)
            sums[j] = sums[2 * j] + sums[2 * j + 1];
    return sums[0];
}

static void check_tree(nib_tree *tree, int64_t leaves, int64_t step)
{
    const int64_t first = nib__tree_first(leaves, this_rank(), rank_count()),
                  end = nib__tree_first(leaves, this_rank() + 1, rank_count());
    for (int64_t leaf = first; leaf < end; leaf++) {
        float *block;
        expect_ok(nib__tree_block(tree, &block, &err));
        for (int64_t i = 0; i < TOTAL; i++)
            block[i] = leaf_value(step * leaves + leaf, i);
        nib__tree_put(tree, leaf, block, (nib_losses){.text = (double)(leaf + 1), .draft = 1});
    }
    const float *sum;
    nib_losses losses;
    expect_ok(nib__tree_sum(tree, &sum, &losses, "a test", &err));
    assert_true(losses.text == (double)(leaves * (leaves + 1)) / 2);
    assert_true(losses.draft == (double)leaves);
    for (int64_t i = 0; i < TOTAL; i++)
        if (sum[i] != pair_sum(step * leaves, leaves, i))
            fail_msg("%d leaves, step %d, element %d: %a is not %a", (int)leaves, (int)step, (int)i,
                     (double)sum[i], (double)pair_sum(step * leaves, leaves, i));
}

static void test_tree_has_the_bits_of_one_process(void **state)
{
    (void)state;
    for (int64_t leaves = 1; leaves <= 16; leaves *= 2) {
        nib_tree tree;
        if (leaves < rank_count())
            continue;
        nib__tree_init(&tree, engine->pool, ranks,
                       nib__plan_op(NIB_OP_ADD, NIB_TYPE_F32, &engine->here, NULL), TOTAL, leaves);
        for (int64_t step = 0; step < 3; step++)
            check_tree(&tree, leaves, step);
        nib__tree_free(&tree);
    }
}

/* ---- agreeing ---- */

static void test_errors_reach_all_ranks(void **state)
{
    (void)state;
    expect_ok(nib_ranks_agree(ranks, NIB_OK, &err));
    /* a verdict does not end the run: later messages still reach all ranks */
    if (rank_count() > 1) {
        const nib_status bad =
            this_rank() == 1 ? nib__fail(&err, NIB_CHECK_FAILED, "a bad step") : NIB_OK;
        assert_int_equal(nib__ranks_verdict(ranks, bad, &err), NIB_CHECK_FAILED);
        assert_string_equal(err.text, "rank 1: a bad step");
    }
    expect_ok(nib_ranks_agree(ranks, NIB_OK, &err));
    assert_int_equal(nib_ranks_agree(NULL, NIB_IO, NULL), NIB_IO);
    if (rank_count() == 1)
        return;
    nib_status mine = NIB_OK;
    if (this_rank() > 0)
        mine = nib__fail(&err, NIB_IO, "a disk of %d bytes is full", this_rank());
    assert_int_equal(nib_ranks_agree(ranks, mine, &err), NIB_IO);
    assert_string_equal(err.text, "rank 1: a disk of 1 bytes is full");
    /* the run has ended: no rank waits, and the error text stays */
    assert_int_equal(nib_ranks_agree(ranks, NIB_IO, &err), NIB_IO);
    assert_string_equal(err.text, "rank 1: a disk of 1 bytes is full");
    assert_false(nib_ranks_broken(ranks));
}

/* Each rank waits for the next, and the last has stopped: the first must still name the last. */
static int hang(void)
{
    const nib_ranks_options options = {.timeout_s = 2, .asked = 3};
    char byte;
    if (nib_ranks_open(&ranks, &options, &err) != NIB_OK) {
        fprintf(stderr, "%s\n", err.text);
        return nib_status_exit(err.status);
    }
    if (this_rank() == rank_count() - 1)
        raise(SIGSTOP);
    else if (nib__ranks_receive(ranks, &byte, 1, this_rank() + 1, "a byte", &err) != NIB_OK &&
             nib_ranks_broken(ranks) && this_rank() == 0)
        fprintf(stderr, "%s\n", err.text);
    if (this_rank() == 0)
        nib_ranks_abort(ranks, 7);
    raise(SIGSTOP);
    return 0;
}

static int run_out_of_memory(void)
{
    const nib_ranks_options options = {.timeout_s = 20, .asked = 2};
    nib_tree tree;
    if (nib_ranks_open(&ranks, &options, &err) != NIB_OK || rank_count() > 2) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    const nib_engine_options here = {.threads = 1};
    float *block;
    const float *sum;
    nib_losses losses;
    expect_ok(nib_engine_open(&engine, &here, &err));
    nib__tree_init(&tree, engine->pool, ranks,
                   nib__plan_op(NIB_OP_ADD, NIB_TYPE_F32, &engine->here, NULL), TOTAL, 2);
    expect_ok(nib__tree_block(&tree, &block, &err));
    memset(block, 0, TOTAL * sizeof *block);
    nib__tree_put(&tree, this_rank(), block, (nib_losses){0});
    if (this_rank() == 0) /* the block for the other rank's sum cannot be allocated */
        tree.total = SIZE_MAX / 16;
    if (nib__tree_sum(&tree, &sum, &losses, "a test", &err) == NIB_NO_MEMORY &&
        nib_ranks_broken(ranks))
        nib_ranks_abort(ranks, 5);
    fprintf(stderr, "%s\n", err.text);
    return 1;
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "hang") == 0)
        return hang();
    if (argc == 2 && strcmp(argv[1], "memory") == 0)
        return run_out_of_memory();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bytes_arrive),
        cmocka_unit_test(test_share),
        cmocka_unit_test(test_slices),
        cmocka_unit_test(test_tree_has_the_bits_of_one_process),
        cmocka_unit_test(test_errors_reach_all_ranks), /* last, as it ends the run */
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
