/* SPDX-License-Identifier: Apache-2.0
 *
 * Training on a device: the products of linear layers and the rows that make their operands run
 * where --device and --place put them, everything else on the CPU. The copies between the two are
 * counted by a walk over the operations of a micro-batch.
 */
#include "options.h"
#include "variant.h"

enum { ON_HOST, ON_DEVICE };

typedef struct copy_walk {
    const nib_assignment *plan;
    const nib_layer *layers;
    nib_training list;
    bool device_adds;     /* the device has a row for sums */
    double m;             /* tokens */
    uint8_t *held;        /* per value, bits: the sides that hold it */
    uint8_t *rounded;     /* the same for its fake-quantized values; 0: not made yet */
    double copies, bytes; /* of a micro-batch */
} copy_walk;

static bool is_on_device(const nib_layer_plan *layer)
{
    return layer->use_count > 0 && layer->uses[0].kernel->device != NIB_DEVICE_CPU;
}

/* Whether quantization-aware training fake-quantizes the layer's input. */
static bool is_rounded(const nib_layer *layer)
{
    return nib__scheme_is_quantized(&layer->qat) && layer->qat.act != NIB_ACT_FLOAT;
}

/* Counts a copy of a value, or of its fake-quantized form, unless the side holds it. */
static void copy_to(copy_walk *w, int side, uint8_t *held, int value)
{
    if ((*held & 1 << side) == 0) {
        w->copies++;
        w->bytes += 4 * w->m * (double)w->list.values[value].columns;
    }
    *held = (uint8_t)(*held | 1 << side);
}

static void read_value(copy_walk *w, int side, int value)
{
    if (value >= 0 && w->list.values[value].kind == NIB_TRAINING_ROWS)
        copy_to(w, side, &w->held[value], value);
}

static void write_value(copy_walk *w, int side, int value)
{
    if (value >= 0)
        w->held[value] = (uint8_t)(1 << side);
}

/* ---- an operation ---- */

/* Reads a linear layer's input, for its forward pass or the gradient of its weight. */
static void read_input(copy_walk *w, int side, int value, const nib_layer *layer)
{
    if (!is_rounded(layer)) {
        read_value(w, side, value);
        return;
    }
    read_value(w, ON_HOST, value);
    if (w->rounded[value] == 0)
        w->rounded[value] = 1 << ON_HOST;
    copy_to(w, side, &w->rounded[value], value);
}

static void walk_layer(copy_walk *w, const nib_training_node *node)
{
    const size_t site = w->plan->graph->weights[node->weight].index;
    const nib_layer *layer = &w->layers[site];
    const int side = is_on_device(&w->plan->layers[site]) ? ON_DEVICE : ON_HOST;
    if (node->op == NIB_OP_LINEAR || node->op == NIB_OP_CAST_T)
        read_input(w, side, node->in[0], layer);
    else
        read_value(w, side, node->in[0]);
    write_value(w, side, node->out[0]);
    if (node->op == NIB_OP_LINEAR_DX && is_rounded(layer)) { /* clipped inputs get no gradient */
        read_value(w, ON_HOST, node->out[0]);
        write_value(w, ON_HOST, node->out[0]);
    }
    if (node->op == NIB_OP_LINEAR_DW && side == ON_DEVICE) {
        w->copies++;
        w->bytes += 4 * (double)layer->n * (double)layer->k;
    }
    if (node->op == NIB_OP_LINEAR_DW && layer->bias)
        read_value(w, ON_HOST, node->in[0]);
}

/* Gradients are added on the device if it holds both and has a row for sums, else on the host. */
static int side_of_sum(const copy_walk *w, const nib_training_node *node)
{
    const bool both =
        w->held[node->in[0]] == 1 << ON_DEVICE && w->held[node->in[1]] == 1 << ON_DEVICE;
    return both && w->device_adds ? ON_DEVICE : ON_HOST;
}

static void walk_node(copy_walk *w, const nib_training_node *node)
{
    const int side = node->op == NIB_OP_ADD ? side_of_sum(w, node) : ON_HOST;
    for (int i = 0; i < NIB_TRAINING_INPUTS; i++)
        read_value(w, side, node->in[i]);
    for (int i = 0; i < NIB_TRAINING_OUTPUTS; i++)
        write_value(w, side, node->out[i]);
}

static bool is_layer_op(nib_op op)
{
    return op == NIB_OP_LINEAR || op == NIB_OP_LINEAR_DX || op == NIB_OP_LINEAR_DW ||
           op == NIB_OP_CAST_T;
}

/* False: out of memory. */
static bool walk_all(copy_walk *w, const nib_policy *policy, nib_arena *arena)
{
    if (nib__graph_training(&w->list, w->plan->graph, policy->checkpointing, arena, NULL) != NIB_OK)
        return false;
    w->held = nib__arena_take(arena, w->list.value_count, sizeof *w->held);
    w->rounded = nib__arena_take(arena, w->list.value_count, sizeof *w->rounded);
    if (w->held == NULL || w->rounded == NULL)
        return false;
    for (size_t i = 0; i < w->list.count; i++) {
        const nib_training_node *node = &w->list.nodes[i];
        if (i == w->list.forward_end && policy->checkpointing != NIB_AC_NONE)
            memset(w->rounded, 0, w->list.value_count);
        if (is_layer_op(node->op))
            walk_layer(w, node);
        else
            walk_node(w, node);
    }
    return true;
}

/* ---- notes ---- */

/* Bytes of weights and biases copied to the device per step. */
static double weight_bytes(const copy_walk *w, size_t count)
{
    double bytes = 0;
    for (size_t i = 1; i < count; i++)
        if (is_on_device(&w->plan->layers[i]))
            bytes +=
                4 * (double)w->layers[i].n * (double)(w->layers[i].k + (w->layers[i].bias ? 1 : 0));
    return bytes;
}

static double copy_seconds(const nib_machine *m, double copies, double bytes)
{
    return copies * m->copy_s + (m->copy_bytes_per_s > 0 ? bytes / m->copy_bytes_per_s : 0);
}

static bool device_has_layers(const nib_assignment *plan)
{
    for (size_t i = 0; i < plan->count; i++)
        if (plan->layers[i].layer->role != NIB_ROLE_EMBED && is_on_device(&plan->layers[i]))
            return true;
    return false;
}

static void note_host(nib_assignment *out, const nib_machine *host, bool device_adds)
{
    if (device_has_layers(out))
        nib__ledger_add_note(&out->ledger, "host",
                             "in training %s does the products of linear layers and their casts%s; "
                             "embedding, norms, positions, attention, activation, residual and "
                             "loss, their gradients and the optimizer run on %s",
                             out->gpu->name,
                             device_adds ? ", and adds the gradients that it computed" : "",
                             host->name);
}

void nib__plan_training(nib_assignment *out, const nib_layer *layers, size_t count,
                        const nib_policy *policy)
{
    copy_walk w = {.plan = out, .layers = layers, .m = (double)nib__policy_m(policy)};
    char bytes[32], weights[32], time[32], step_time[32];
    const nib_machine *gpu = out->gpu, *host = nib__plan_host(out);
    if (gpu == NULL || host == NULL || out->graph == NULL)
        return;
    for (int i = 0; i < out->op_count; i++)
        w.device_adds =
            w.device_adds || (out->ops[i].op == NIB_OP_ADD && out->ops[i].machine == gpu);
    if (!walk_all(&w, policy, &out->ledger.arena)) {
        out->ledger.failed = true;
        return;
    }
    const double seconds = copy_seconds(gpu, w.copies, w.bytes);
    const double of_weights = weight_bytes(&w, count);
    out->predicted_token_s += seconds;
    out->predicted_bf16_token_s += seconds; /* copies are f32 whatever the products' schemes are */
    note_host(out, host, w.device_adds);
    nib__ledger_add_note(&out->ledger, "moves",
                         "%.0f copies of %s per micro-batch between %s and its host, %s predicted; "
                         "weights: %s per step, %s",
                         w.copies, nib__format_bytes(bytes, (uint64_t)w.bytes), gpu->name,
                         nib__format_seconds(time, seconds),
                         nib__format_bytes(weights, (uint64_t)of_weights),
                         nib__format_seconds(step_time, copy_seconds(gpu, 0, of_weights)));
}
