/* SPDX-License-Identifier: Apache-2.0
 *
 * A tile of attention: items (slot, head) of one sequence that read the same keys and values.
 * Gathering items is the same for every instruction set; attn_body.h computes.
 */
#ifndef NIB_ATTN_TILE_H
#define NIB_ATTN_TILE_H

#include "base.h"
#include "ops.h"

enum { NIB_ATTN_ROWS = 8 };

typedef struct nib_tile {
    const nib_attn *a;
    const int32_t *table;         /* the sequence's block table */
    int64_t kv_head, dim, padded; /* padded: to whole lanes */
    int rows;
    int64_t slots[NIB_ATTN_ROWS], heads[NIB_ATTN_ROWS];
    int64_t begins[NIB_ATTN_ROWS]; /* first position that each row sees */
    int64_t ends[NIB_ATTN_ROWS];   /* one past each row's own position, the last that it sees */
    int64_t earliest, longest;     /* least begin and greatest end of the rows */
    float *q, *part, *total;       /* [NIB_ATTN_ROWS][padded], zeros past dim in q */
    float *scores;                 /* [NIB_ATTN_ROWS][NIB_SOFTMAX_BLOCK] */
    float max[NIB_ATTN_ROWS], weight[NIB_ATTN_ROWS];
} nib_tile;

/* Calls `run` for tiles that together cover the items. */
void nib__attn_tiles(const nib_attn *a, int64_t item0, int64_t item1, void *scratch,
                     void (*run)(nib_tile *t));

#endif
