/* SPDX-License-Identifier: Apache-2.0
 *
 * Families of models: each turns a config into the graph of its forward pass.
 */
#ifndef NIB_ARCH_H
#define NIB_ARCH_H

#include "config.h"
#include "graph.h"

nib_status nib__arch_build(nib_graph *out, const nib_config *config, nib_arena *arena,
                           const nib_allocator *a, nib_err *err);

/* ---- blocks.c: what families share ---- */

/* The table of tokens, [vocab][width]; returns the residual. */
int nib__block_embed(nib_build *b, const nib_config *c);
/* Attention of a layer over x, which is normed: projections, norms of heads where the config has
 * them, rotary positions, and the output projection. */
int nib__block_attention(nib_build *b, const nib_config *c, int64_t layer, int x);
/* down(silu(gate(x)) * up(x)) */
int nib__block_gated_mlp(nib_build *b, const nib_config *c, int64_t layer, int x);
/* The last norm and the head; its value is the logits. */
int nib__block_head(nib_build *b, const nib_config *c, int x);

/* ---- one function per family ---- */

void nib__arch_llama(nib_build *b, const nib_config *c);

#endif
