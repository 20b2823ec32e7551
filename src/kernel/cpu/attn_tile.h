/* SPDX-License-Identifier: Apache-2.0
 *
 * A tile of attention: items (slot, head) of one sequence that read the same keys and values. How
 * items are gathered is the same for every instruction set; what is computed is attn_body.h.
 */
#ifndef NIB_ATTN_TILE_H
#define NIB_ATTN_TILE_H

#include "base.h"
#include "ops.h"

enum { NIB_ATTN_ROWS = 8 };

typedef struct nib_tile {
    const nib_attn *a;
    const int32_t *table;         /* of the sequence */
    int64_t kv_head, dim, padded; /* padded: to whole lanes */
    int rows;
    int64_t slots[NIB_ATTN_ROWS], heads[NIB_ATTN_ROWS];
    int64_t begins[NIB_ATTN_ROWS]; /* the first position that each row sees */
    int64_t ends[NIB_ATTN_ROWS];   /* past its last: its own */
    int64_t earliest, longest;     /* of the tile's rows: the least begin, the most end */
    float *q, *part, *total;       /* [NIB_ATTN_ROWS][padded], zeros past dim in q */
    float *scores;                 /* [NIB_ATTN_ROWS][NIB_SOFTMAX_BLOCK] */
    float max[NIB_ATTN_ROWS], weight[NIB_ATTN_ROWS];
} nib_tile;

/* Calls run for tiles that cover the items. */
void nib__attn_tiles(const nib_attn *a, int64_t item0, int64_t item1, void *scratch,
                     void (*run)(nib_tile *t));

#endif
