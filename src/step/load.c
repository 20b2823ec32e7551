/* SPDX-License-Identifier: Apache-2.0
 *
 * The load of experts: where it lies, its extremes, and the bias that balances it.
 */
#include "load.h"

#include <math.h>

nib_status nib__load_list(nib_load *out, const nib_network *net, uint64_t at, nib_arena *arena,
                          nib_err *err)
{
    const nib_graph *g = &net->graph;
    const size_t layers = (size_t)nib__config_trained_layers(&net->config);
    *out = (nib_load){.at = at,
                      .mixture = nib__arena_take(arena, layers, sizeof *out->mixture),
                      .route = nib__arena_take(arena, layers, sizeof *out->route)};
    if (out->mixture == NULL || out->route == NULL)
        return nib__fail_memory(err, layers * sizeof *out->route, "the list of mixtures");
    for (size_t i = 0; i < layers; i++)
        out->mixture[i] = -1;
    for (size_t i = 0; i < g->node_count; i++) {
        const nib_graph_node *node = &g->nodes[i];
        if (node->op != NIB_OP_ROUTE)
            continue;
        out->mixture[node->layer] = out->layers;
        out->route[out->layers++] = node;
        out->experts = nib__max(out->experts, node->routing->experts);
        out->balances = out->balances || node->routing->balance > 0;
        out->over = node->routing->balance_over;
    }
    return NIB_OK;
}

nib_load_extremes nib__load_extremes(const nib_load *load, const float *block)
{
    nib_load_extremes x = {.most = -1, .least = INFINITY};
    double all = 0, experts = 0;
    for (int64_t i = 0; i < load->layers; i++) {
        const float *counts = block + load->at + (uint64_t)(i * load->experts);
        const int64_t count = load->route[i]->routing->experts;
        double sum = 0;
        for (int64_t e = 0; e < count; e++)
            sum += (double)counts[e];
        const double mean = sum / (double)count;
        for (int64_t e = 0; e < count && mean > 0; e++) {
            const double share = (double)counts[e] / mean;
            if (share > x.most)
                x.most = share, x.most_layer = load->route[i]->layer;
            if (share < x.least)
                x.least = share, x.least_layer = load->route[i]->layer;
        }
        all += sum;
        experts += (double)count;
    }
    x.mean = all / experts;
    return x;
}

void nib__load_update_bias(float *bias, const float *counts, int64_t experts, double coefficient)
{
    double sum = 0;
    int64_t above = 0;
    for (int64_t e = 0; e < experts; e++)
        sum += (double)counts[e];
    const double mean = sum / (double)experts;
    for (int64_t e = 0; e < experts; e++)
        above += (mean > (double)counts[e]) - (mean < (double)counts[e]);
    for (int64_t e = 0; e < experts; e++) {
        const int sign = (mean > (double)counts[e]) - (mean < (double)counts[e]);
        const double delta = (double)sign - (double)above / (double)experts;
        bias[e] = (float)((double)bias[e] + coefficient * delta);
    }
}
