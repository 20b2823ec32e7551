/* SPDX-License-Identifier: Apache-2.0
 *
 * Builds a Llama graph from sizes alone, for plans without a config.
 */
#ifndef NIB_TESTS_GRAPHS_H
#define NIB_TESTS_GRAPHS_H

#include "arch.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

/* Heads are 16 wide. */
static inline const nib_graph *llama_graph(nib_arena *arena, int64_t layers, int64_t width,
                                           int64_t kv, int64_t ffn, int64_t vocab)
{
    enum { HEAD = 16 };
    const nib_config config = {.arch = NIB_ARCH_LLAMA,
                               .layers = layers,
                               .width = width,
                               .ffn = ffn,
                               .heads = width / HEAD,
                               .kv_heads = kv / HEAD,
                               .head_dim = HEAD,
                               .vocab = vocab};
    nib_graph *graph = nib__arena_take(arena, 1, sizeof *graph);
    assert_non_null(graph);
    assert_int_equal(nib__arch_build(graph, &config, arena, arena->allocator, NULL), NIB_OK);
    return graph;
}

#endif
