/* SPDX-License-Identifier: Apache-2.0
 *
 * One walk over the nodes in order: a value takes over the buffer of an input that it may
 * overwrite, else a buffer whose value is dead, else a new one.
 */
#include "buffers.h"

#include "operation.h"

typedef struct walk {
    const nib_graph *graph;
    nib_graph_buffers *out;
    int *last; /* [value_count] last node that reads each value */
    bool is_free[NIB_GRAPH_BUFFERS];
} walk;

static bool dies_at(const walk *w, int value, int node)
{
    return value >= 0 && w->last[value] == node;
}

/* True for the last value and values that are only scaled into it: logits are large, so they use
 * one buffer. */
static bool is_result(const nib_graph *g, int value)
{
    int result = (int)g->value_count - 1;
    while (result != value && g->nodes[g->values[result].writer].op == NIB_OP_SCALE)
        result = g->nodes[g->values[result].writer].in[0];
    return result == value;
}

/* The buffer of an input that dies here and may be overwritten; -1: none. */
static int find_overwritable(const walk *w, const nib_graph_node *node, int at)
{
    const int input = node->part ? 0 : nib__op_inplace_input(node->op, 0, node->heads);
    const nib_graph_value *values = w->graph->values;
    if (input >= 0 && dies_at(w, node->in[input], at) &&
        values[node->in[input]].columns == values[node->out].columns)
        return w->out->of[node->in[input]];
    if (nib__ops[node->op].commutes && dies_at(w, node->in[1 - input], at))
        return w->out->of[node->in[1 - input]];
    return -1;
}

static int find_free(const walk *w, int64_t columns)
{
    for (int i = 0; i < w->out->count; i++)
        if (w->is_free[i] && w->out->columns[i] == columns)
            return i;
    return -1;
}

static int add_buffer(walk *w, int64_t columns)
{
    if (w->out->count == NIB_GRAPH_BUFFERS)
        return -1;
    w->out->columns[w->out->count] = columns;
    return w->out->count++;
}

static nib_status assign_buffer(walk *w, int at, nib_err *err)
{
    const nib_graph_node *node = &w->graph->nodes[at];
    int buffer = -1;
    if (node->out < 0)
        return NIB_OK;
    const bool result = is_result(w->graph, node->out),
               starts_result =
                   result && !(node->op == NIB_OP_SCALE && is_result(w->graph, node->in[0]));
    const int64_t columns = w->graph->values[node->out].columns;
    if (!starts_result)
        buffer = find_overwritable(w, node, at);
    if (buffer < 0 && (node->part || nib__ops[node->op].always_inplace))
        return nib__fail(err, NIB_FAILED, "an input of %s is read again after it is overwritten",
                         nib__op_names[node->op]);
    if (buffer < 0 && !result)
        buffer = find_free(w, columns);
    if (buffer < 0)
        buffer = add_buffer(w, columns);
    if (buffer < 0)
        return nib__fail(err, NIB_FAILED, "the model's graph needs more than %d buffers",
                         NIB_GRAPH_BUFFERS);
    w->out->of[node->out] = buffer;
    return NIB_OK;
}

/* Frees buffers of dead values. A buffer that was overwritten belongs to the output now. */
static void free_dead(walk *w, int at)
{
    const nib_graph_node *node = &w->graph->nodes[at];
    for (int i = 0; i < NIB_NODE_INPUTS; i++)
        if (dies_at(w, node->in[i], at))
            w->is_free[w->out->of[node->in[i]]] = true;
    if (node->out >= 0)
        w->is_free[w->out->of[node->out]] = false;
}

nib_status nib__graph_buffers(nib_graph_buffers *out, const nib_graph *graph, nib_arena *arena,
                              nib_err *err)
{
    walk w = {.graph = graph,
              .out = out,
              .last = nib__arena_take(arena, graph->value_count, sizeof *w.last)};
    *out = (nib_graph_buffers){.of = nib__arena_take(arena, graph->value_count, sizeof *out->of)};
    if (w.last == NULL || out->of == NULL)
        return nib__fail_memory(err, graph->value_count * sizeof *out->of, "the buffers of a step");
    for (size_t i = 0; i < graph->node_count; i++)
        for (int j = 0; j < NIB_NODE_INPUTS; j++)
            if (graph->nodes[i].in[j] >= 0)
                w.last[graph->nodes[i].in[j]] = (int)i;
    for (size_t i = 0; i < graph->node_count; i++) {
        NIB_TRY(assign_buffer(&w, (int)i, err));
        free_dead(&w, (int)i);
    }
    return NIB_OK;
}
