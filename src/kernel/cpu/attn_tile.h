/* SPDX-License-Identifier: Apache-2.0
 *
 * A tile of attention: items (slot, head) of one sequence that read the same keys and values.
 * Gathering items is the same for every instruction set; attn_body.h computes.
 */
#ifndef NIB_ATTN_TILE_H
#define NIB_ATTN_TILE_H

#include "base.h"
#include "ops.h"

enum {
    /* Rows of a tile whose values lie in its keys: turning them costs less per row if more rows
     * share it. */
    NIB_ATTN_ROWS_MAX = 32,
    /* Dimensions of values that are turned at a time: those of a softmax block fit in a first-level
     * cache. */
    NIB_ATTN_TURNED = 32
};

typedef struct nib_tile {
    const nib_attn *a;
    const int32_t *table;         /* the sequence's block table */
    int64_t kv_head, dim, padded; /* of keys; padded: to whole lanes */
    int64_t wide, wide_padded;    /* the same of values */
    int64_t back;   /* channels of an output that are rotated back together; 0: none */
    int rows, most; /* most: rows that fill the tile */
    int64_t slots[NIB_ATTN_ROWS_MAX], heads[NIB_ATTN_ROWS_MAX];
    int64_t begins[NIB_ATTN_ROWS_MAX]; /* first position that each row sees */
    int64_t ends[NIB_ATTN_ROWS_MAX];   /* one past each row's own position, the last that it sees */
    int64_t earliest, longest;         /* least begin and greatest end of the rows */
    float *q;                          /* [NIB_ATTN_ROWS_MAX][padded], zeros past dim */
    float *part, *total;               /* [NIB_ATTN_ROWS_MAX][wide_padded] */
    float *turned; /* [NIB_SOFTMAX_BLOCK][NIB_ATTN_TURNED] some dimensions of values that lie in
                      keys; NULL: values have a place of their own */
    float *scores; /* [NIB_ATTN_ROWS_MAX][NIB_SOFTMAX_BLOCK] */
    float max[NIB_ATTN_ROWS_MAX], weight[NIB_ATTN_ROWS_MAX];
} nib_tile;

/* Calls `run` for tiles that together cover the items. */
void nib__attn_tiles(const nib_attn *a, int64_t item0, int64_t item1, void *scratch,
                     void (*run)(nib_tile *t));

#endif
