/* SPDX-License-Identifier: Apache-2.0
 *
 * Adds neighbouring nodes, within a rank and between ranks.
 */
#include "gradient.h"

#include <inttypes.h>

void nib__tree_init(nib_tree *out, nib_pool *pool, nib_ranks *ranks, const nib_kernel *add,
                    uint64_t total, int64_t count)
{
    *out = (nib_tree){.pool = pool, .ranks = ranks, .add = add, .total = total, .count = count};
}

static uint64_t block_bytes(const nib_tree *t) { return t->total * sizeof(float); }

void nib__tree_free(nib_tree *t)
{
    for (int i = 0; i < t->held_count; i++)
        nib__block_free(t->held[i].sum, block_bytes(t));
    for (int i = 0; i < t->spare_count; i++)
        nib__block_free(t->spare[i], block_bytes(t));
    *t = (nib_tree){0};
}

int64_t nib__tree_first(int64_t count, int rank, int ranks) { return count * rank / ranks; }

int nib__tree_blocks(int64_t count, int rank, int ranks)
{
    const int64_t end = nib__tree_first(count, rank + 1, ranks);
    int held = 0, most = 0;
    for (int64_t at = nib__tree_first(count, rank, ranks); at < end; held++) {
        int64_t leaves = 1; /* of the largest node that begins here, within this rank */
        int below = 0;      /* its levels below: one node of each waits when its last leaf comes */
        for (; at % (2 * leaves) == 0 && at + 2 * leaves <= end; below++)
            leaves *= 2;
        most = (int)nib__max(most, held + below + 1);
        at += leaves;
    }
    /* plus one received from another rank */
    return ranks > 1 ? (int)nib__max(most, held + 1) : most;
}

nib_status nib__tree_block(nib_tree *t, float **out, nib_err *err)
{
    if (t->spare_count > 0) {
        *out = t->spare[--t->spare_count];
        return NIB_OK;
    }
    float *block = nib__block_take(block_bytes(t));
    if (!block)
        return nib__fail_memory(err, block_bytes(t), "the gradient of a micro-batch");
    *out = block;
    return NIB_OK;
}

void nib__tree_release_block(nib_tree *t, float *block) { t->spare[t->spare_count++] = block; }

typedef struct adding {
    const nib_kernel *row;
    float *to;
    const float *from;
} adding;

static void job_add(void *ctx, int worker, int64_t begin, int64_t end)
{
    const adding *p = ctx;
    const nib_add a = {.x = p->from + begin, .y = p->to + begin, .m = 1, .width = end - begin};
    (void)worker;
    p->row->run.add(&a, 0, 1);
}

/* left += right, and frees the right block. */
static void merge(nib_tree *t, nib_tree_node *left, const nib_tree_node *right)
{
    adding p = {t->add, left->sum, right->sum};
    nib__pool_run(t->pool, (int64_t)t->total, NIB_TRAIN_PART, false, job_add, &p);
    left->losses.text += right->losses.text;
    left->losses.draft += right->losses.draft;
    left->level++;
    left->index /= 2;
    t->spare[t->spare_count++] = right->sum;
}

static bool are_neighbours(const nib_tree_node *a, const nib_tree_node *b)
{
    return a->level == b->level && a->index % 2 == 0 && b->index == a->index + 1;
}

void nib__tree_put(nib_tree *t, int64_t leaf, float *block, nib_losses losses)
{
    t->held[t->held_count++] = (nib_tree_node){.index = leaf, .sum = block, .losses = losses};
    while (t->held_count > 1 &&
           are_neighbours(&t->held[t->held_count - 2], &t->held[t->held_count - 1])) {
        merge(t, &t->held[t->held_count - 2], &t->held[t->held_count - 1]);
        t->held_count--;
    }
}

/* ---- between ranks ---- */

/* The rank that holds a node: the one with its first leaf. */
static int find_holder(const nib_tree *t, int level, int64_t index)
{
    const int ranks = nib_ranks_count(t->ranks);
    const int64_t leaf = index << level;
    int rank = 0;
    while (rank + 1 < ranks && nib__tree_first(t->count, rank + 1, ranks) <= leaf)
        rank++;
    return rank;
}

static nib_tree_node *find_node(nib_tree *t, int level, int64_t index)
{
    for (int i = 0; i < t->held_count; i++)
        if (t->held[i].level == level && t->held[i].index == index)
            return &t->held[i];
    return NULL;
}

static void remove_node(nib_tree *t, nib_tree_node *node)
{
    const int at = (int)(node - t->held);
    memmove(node, node + 1, (size_t)(t->held_count - at - 1) * sizeof *node);
    t->held_count--;
}

static nib_status send_node(nib_tree *t, nib_tree_node *node, int to, const char *what,
                            nib_err *err)
{
    NIB_TRY(nib__ranks_send(t->ranks, &node->losses, sizeof node->losses, to, what, err));
    NIB_TRY(nib__ranks_send(t->ranks, node->sum, (size_t)block_bytes(t), to, what, err));
    t->spare[t->spare_count++] = node->sum;
    remove_node(t, node);
    return NIB_OK;
}

static nib_status receive_node(nib_tree *t, nib_tree_node *left, int from, const char *what,
                               nib_err *err)
{
    nib_tree_node right = *left;
    right.index++;
    NIB_TRY(nib__tree_block(t, &right.sum, err));
    nib_status status =
        nib__ranks_receive(t->ranks, &right.losses, sizeof right.losses, from, what, err);
    if (status == NIB_OK)
        status = nib__ranks_receive(t->ranks, right.sum, (size_t)block_bytes(t), from, what, err);
    if (status == NIB_OK)
        merge(t, left, &right);
    else
        t->spare[t->spare_count++] = right.sum;
    return status;
}

/* Adds two nodes of this rank; the right one was completed by a part from another rank. */
static void join_local(nib_tree *t, int level, int64_t index)
{
    nib_tree_node *left = find_node(t, level, index), *right = find_node(t, level, index + 1);
    if (!left || !right)
        return;
    merge(t, left, right);
    remove_node(t, right);
}

/* Adds the remaining pairs of one level. */
static nib_status join_level(nib_tree *t, int level, const char *what, nib_err *err)
{
    const int me = nib_ranks_rank(t->ranks);
    for (int64_t i = 0; i << level < t->count; i += 2) {
        const int left = find_holder(t, level, i), right = find_holder(t, level, i + 1);
        nib_tree_node *node = find_node(t, level, me == left ? i : i + 1);
        if (left == right)
            join_local(t, level, i);
        else if (node == NULL)
            continue;
        else if (me == right)
            NIB_TRY(send_node(t, node, left, what, err));
        else if (me == left)
            NIB_TRY(receive_node(t, node, right, what, err));
    }
    return NIB_OK;
}

static nib_status sum_ranks(nib_tree *t, const float **sum, nib_losses *losses, const char *what,
                            nib_err *err)
{
    const bool alone = nib_ranks_count(t->ranks) == 1;
    for (int level = 0; !alone && INT64_C(1) << level < t->count; level++)
        NIB_TRY(join_level(t, level, what, err));
    float *block;
    if (nib_ranks_rank(t->ranks) == 0) {
        block = t->held[0].sum;
        *losses = t->held[0].losses;
        t->held_count = 0;
    } else {
        NIB_TRY(nib__tree_block(t, &block, err));
    }
    t->spare[t->spare_count++] = block;
    NIB_TRY(nib__ranks_share(t->ranks, losses, sizeof *losses, what, err));
    NIB_TRY(nib__ranks_share(t->ranks, block, (size_t)block_bytes(t), what, err));
    *sum = block;
    return NIB_OK;
}

nib_status nib__tree_sum(nib_tree *t, const float **sum, nib_losses *losses, const char *what,
                         nib_err *err)
{
    const nib_status status = sum_ranks(t, sum, losses, what, err);
    if (status != NIB_OK)
        nib__ranks_break(t->ranks); /* the other ranks wait in the middle of the sum */
    return status;
}
