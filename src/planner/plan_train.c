/* SPDX-License-Identifier: Apache-2.0
 *
 * Training on a device: the products of linear layers and what makes their operands are done where
 * --device and --place put them, all else on the CPU; and what crosses between the two for it, by a
 * walk through the list of a micro-batch.
 */
#include "options.h"
#include "variant.h"

enum { HERE, THERE };

typedef struct walk {
    const nib_assignment *plan;
    const nib_layer *layers;
    nib_training list;
    bool adds_there;      /* the device has a row for sums */
    double m;             /* tokens */
    uint8_t *held;        /* of each value, bits: the sides that hold it */
    uint8_t *rounded;     /* the same of its codes and values again; 0: they are not made */
    double copies, bytes; /* of a micro-batch */
} walk;

static bool is_there(const nib_layer_plan *layer)
{
    return layer->use_count > 0 && layer->uses[0].kernel->device != NIB_DEVICE_CPU;
}

/* In quantization-aware training, where inputs become codes and values again. */
static bool is_rounded(const nib_layer *layer)
{
    return nib__scheme_is_quantized(&layer->qat) && layer->qat.act != NIB_ACT_FLOAT;
}

/* A value, or the rounded one, is brought to a side that does not hold it. */
static void bring(walk *w, int side, uint8_t *held, int value)
{
    if ((*held & 1 << side) == 0) {
        w->copies++;
        w->bytes += 4 * w->m * (double)w->list.values[value].columns;
    }
    *held = (uint8_t)(*held | 1 << side);
}

static void reads(walk *w, int side, int value)
{
    if (value >= 0 && w->list.values[value].kind == NIB_TRAINING_ROWS)
        bring(w, side, &w->held[value], value);
}

static void makes(walk *w, int side, int value)
{
    if (value >= 0)
        w->held[value] = (uint8_t)(1 << side);
}

/* ---- an operation ---- */

/* What a linear layer multiplies, in its forward pass or for the gradient of its weight. */
static void read_input(walk *w, int side, int value, const nib_layer *layer)
{
    if (!is_rounded(layer)) {
        reads(w, side, value);
        return;
    }
    reads(w, HERE, value);
    if (w->rounded[value] == 0)
        w->rounded[value] = 1 << HERE;
    bring(w, side, &w->rounded[value], value);
}

static void walk_layer(walk *w, const nib_training_node *node)
{
    const size_t site = w->plan->graph->weights[node->weight].index;
    const nib_layer *layer = &w->layers[site];
    const int side = is_there(&w->plan->layers[site]) ? THERE : HERE;
    if (node->op == NIB_OP_LINEAR || node->op == NIB_OP_CAST_T)
        read_input(w, side, node->in[0], layer);
    else
        reads(w, side, node->in[0]);
    makes(w, side, node->out[0]);
    if (node->op == NIB_OP_LINEAR_DX && is_rounded(layer)) { /* what was clipped passes none */
        reads(w, HERE, node->out[0]);
        makes(w, HERE, node->out[0]);
    }
    if (node->op == NIB_OP_LINEAR_DW && side == THERE) {
        w->copies++;
        w->bytes += 4 * (double)layer->n * (double)layer->k;
    }
    if (node->op == NIB_OP_LINEAR_DW && layer->bias)
        reads(w, HERE, node->in[0]);
}

/* A sum of gradients is made where both are, if that is the device and it has a row for sums. */
static int side_of_sum(const walk *w, const nib_training_node *node)
{
    const bool both = w->held[node->in[0]] == 1 << THERE && w->held[node->in[1]] == 1 << THERE;
    return both && w->adds_there ? THERE : HERE;
}

static void walk_node(walk *w, const nib_training_node *node)
{
    const int side = node->op == NIB_OP_ADD ? side_of_sum(w, node) : HERE;
    for (int i = 0; i < NIB_TRAINING_INPUTS; i++)
        reads(w, side, node->in[i]);
    for (int i = 0; i < NIB_TRAINING_OUTPUTS; i++)
        makes(w, side, node->out[i]);
}

static bool is_of_layer(nib_op op)
{
    return op == NIB_OP_LINEAR || op == NIB_OP_LINEAR_DX || op == NIB_OP_LINEAR_DW ||
           op == NIB_OP_CAST_T;
}

/* false: memory ran out. */
static bool walk_all(walk *w, const nib_policy *policy, nib_arena *arena)
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
        if (is_of_layer(node->op))
            walk_layer(w, node);
        else
            walk_node(w, node);
    }
    return true;
}

/* ---- what is said ---- */

/* Bytes of weights that go to the device for each step, with their biases. */
static double bytes_of_weights(const walk *w, size_t count)
{
    double bytes = 0;
    for (size_t i = 1; i < count; i++)
        if (is_there(&w->plan->layers[i]))
            bytes +=
                4 * (double)w->layers[i].n * (double)(w->layers[i].k + (w->layers[i].bias ? 1 : 0));
    return bytes;
}

static double seconds_of(const nib_machine *m, double copies, double bytes)
{
    return copies * m->copy_s + (m->copy_bytes_per_s > 0 ? bytes / m->copy_bytes_per_s : 0);
}

static bool has_layers_there(const nib_assignment *plan)
{
    for (size_t i = 0; i < plan->count; i++)
        if (plan->layers[i].layer->role != NIB_ROLE_EMBED && is_there(&plan->layers[i]))
            return true;
    return false;
}

static void note_host(nib_assignment *out, const nib_machine *host, bool adds_there)
{
    if (has_layers_there(out))
        nib__ledger_add_note(
            &out->ledger, "host",
            "of training %s does the products of linear layers and their casts%s; embedding, "
            "norms, positions, attention, activation, residual and loss, their gradients and the "
            "optimizer are done by %s",
            out->gpu->name, adds_there ? ", and adds gradients that it made" : "", host->name);
}

void nib__plan_training(nib_assignment *out, const nib_layer *layers, size_t count,
                        const nib_policy *policy)
{
    walk w = {.plan = out, .layers = layers, .m = (double)nib__policy_m(policy)};
    char bytes[32], weights[32], time[32], step_time[32];
    const nib_machine *gpu = out->gpu, *host = nib__plan_host(out);
    if (gpu == NULL || host == NULL || out->graph == NULL)
        return;
    for (int i = 0; i < out->op_count; i++)
        w.adds_there = w.adds_there || (out->ops[i].op == NIB_OP_ADD && out->ops[i].machine == gpu);
    if (!walk_all(&w, policy, &out->ledger.arena)) {
        out->ledger.failed = true;
        return;
    }
    const double seconds = seconds_of(gpu, w.copies, w.bytes);
    const double of_weights = bytes_of_weights(&w, count);
    out->predicted_token_s += seconds;
    out->predicted_bf16_token_s += seconds; /* f32 moves, whatever the products' codes are */
    note_host(out, host, w.adds_there);
    nib__ledger_add_note(
        &out->ledger, "moves",
        "%.0f copies of %s per micro-batch between %s and its host, %s predicted; of weights %s "
        "per step, %s",
        w.copies, nib__say_bytes(bytes, (uint64_t)w.bytes), gpu->name,
        nib__say_seconds(time, seconds), nib__say_bytes(weights, (uint64_t)of_weights),
        nib__say_seconds(step_time, seconds_of(gpu, 0, of_weights)));
}
