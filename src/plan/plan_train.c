/* SPDX-License-Identifier: Apache-2.0
 *
 * Training on a device: the products of linear layers and what makes their operands are done where
 * --device and --place put them, all else on the CPU; and what crosses between the two for it, by a
 * walk through a micro-batch in the order of its lowering (src/train/step_lower.c).
 */
#include "options.h"
#include "way.h"

typedef enum buffer {
    NORMED,
    Q,
    K,
    V,
    ATTN,
    X2,
    GATE,
    UP,
    H,
    X1,
    LOGITS,
    D,
    DNORMED,
    TEMP,
    DQ,
    DK,
    DV,
    DATTN,
    DH,
    BUFFERS
} buffer;

enum { HERE, THERE };

typedef struct walk {
    const nib_layers_plan *plan;
    const nib_layer *layers;
    int again;         /* nib_policy.run_again */
    bool adds_there;   /* the device has a row for sums */
    double m;          /* tokens */
    int held[BUFFERS]; /* bits: the sides that hold the buffer */
    double width[BUFFERS];
    double copies, bytes; /* of a micro-batch */
} walk;

static int side_of(const walk *w, size_t site)
{
    const nib_layer_plan *layer = &w->plan->layers[site];
    const bool here = layer->use_count == 0 || layer->uses[0].kernel->device == NIB_DEVICE_CPU;
    return here ? HERE : THERE;
}

static void reads(walk *w, int side, buffer b)
{
    if ((w->held[b] & 1 << side) == 0) {
        w->copies++;
        w->bytes += 4 * w->m * w->width[b];
    }
    w->held[b] |= 1 << side;
}

static void makes(walk *w, int side, buffer b) { w->held[b] = 1 << side; }

/* ---- layers that read one input, as many as follow `site` ---- */

static void forward(walk *w, size_t site, size_t count, buffer from, buffer to)
{
    for (size_t i = 0; i < count; i++) {
        reads(w, side_of(w, site + i), from);
        makes(w, side_of(w, site + i), (buffer)(to + i));
    }
}

/* Their input is cast for the gradients of their weights. */
static void keep(walk *w, size_t site, size_t count, buffer from)
{
    for (size_t i = 0; i < count; i++)
        reads(w, side_of(w, site + i), from);
}

/* In quantization-aware training, where inputs become codes and values again. */
static bool is_rounded(const walk *w, size_t site)
{
    const nib_scheme *qat = &w->layers[site].qat;
    return nib__scheme_is_quantized(qat) && qat->act != NIB_ACT_FLOAT;
}

/* A sum of gradients is made where both are, if that is the device and it has a row for sums. */
static void adds(walk *w, buffer from, buffer to)
{
    const bool both = w->held[from] == 1 << THERE && w->held[to] == 1 << THERE;
    const int side = both && w->adds_there ? THERE : HERE;
    reads(w, side, from), reads(w, side, to);
    makes(w, side, to);
}

/* The gradients of their input, which are added, and of their weights. */
static void backward(walk *w, size_t site, size_t count, buffer dy, buffer dx)
{
    for (size_t i = 0; i < count; i++) {
        const int side = side_of(w, site + i);
        const nib_layer *layer = &w->layers[site + i];
        const buffer to = i == 0 ? dx : TEMP;
        reads(w, side, (buffer)(dy + i));
        makes(w, side, to);
        if (is_rounded(w, site + i)) { /* what was clipped passes no gradient */
            reads(w, HERE, to);
            makes(w, HERE, to);
        }
        if (i > 0)
            adds(w, TEMP, dx);
        if (side == THERE) {
            w->copies++;
            w->bytes += 4 * (double)layer->n * (double)layer->k;
        }
    }
}

/* ---- a micro-batch ---- */

static void norm_gradient(walk *w)
{
    reads(w, HERE, DNORMED);
    makes(w, HERE, D);
}

static void forward_layer(walk *w, size_t first)
{
    makes(w, HERE, NORMED);
    forward(w, first + NIB_SITE_Q, 3, NORMED, Q);
    for (buffer b = Q; b <= V; b++)
        reads(w, HERE, b);
    makes(w, HERE, Q);
    makes(w, HERE, ATTN);
    forward(w, first + NIB_SITE_O, 1, ATTN, X2);
    reads(w, HERE, X2);
    makes(w, HERE, NORMED);
    forward(w, first + NIB_SITE_GATE, 2, NORMED, GATE);
    reads(w, HERE, GATE), reads(w, HERE, UP);
    makes(w, HERE, H);
}

static void backward_layer(walk *w, size_t first)
{
    const bool again = w->again == 1;
    if (again)
        makes(w, HERE, H);
    keep(w, first + NIB_SITE_DOWN, 1, H);
    backward(w, first + NIB_SITE_DOWN, 1, D, DH);
    reads(w, HERE, DH);
    makes(w, HERE, GATE), makes(w, HERE, UP);
    if (again) {
        makes(w, HERE, NORMED);
        keep(w, first + NIB_SITE_GATE, 2, NORMED);
    }
    backward(w, first + NIB_SITE_GATE, 2, GATE, DNORMED);
    norm_gradient(w);
    if (again && is_rounded(w, first + NIB_SITE_O)) { /* else it is still there */
        makes(w, HERE, ATTN);
        keep(w, first + NIB_SITE_O, 1, ATTN);
    }
    backward(w, first + NIB_SITE_O, 1, D, DATTN);
    reads(w, HERE, DATTN);
    for (buffer b = DQ; b <= DV; b++)
        makes(w, HERE, b);
    if (again) {
        makes(w, HERE, NORMED);
        keep(w, first + NIB_SITE_Q, 3, NORMED);
    }
    backward(w, first + NIB_SITE_Q, 3, DQ, DNORMED);
    norm_gradient(w);
}

static void walk_all(walk *w, size_t count)
{
    const size_t head = count - 1;
    for (size_t first = 1; first + NIB_SITE_COUNT < count; first += NIB_SITE_COUNT) {
        forward_layer(w, first);
        forward(w, first + NIB_SITE_DOWN, 1, H, X1);
        reads(w, HERE, X1);
    }
    makes(w, HERE, NORMED);
    forward(w, head, 1, NORMED, LOGITS);
    reads(w, HERE, LOGITS);
    makes(w, HERE, LOGITS);
    backward(w, head, 1, LOGITS, DNORMED);
    norm_gradient(w);
    for (size_t first = head; first > NIB_SITE_COUNT; first -= NIB_SITE_COUNT) {
        if (w->again == 2)
            forward_layer(w, first - NIB_SITE_COUNT);
        else
            w->held[H] = 1 << HERE | 1 << THERE; /* cast when it was made */
        backward_layer(w, first - NIB_SITE_COUNT);
    }
}

static void set_widths(walk *w, const nib_layer *layers, size_t count)
{
    const nib_layer *sites = &layers[1]; /* of the first decoder layer */
    const double width = (double)sites[NIB_SITE_Q].k, q = (double)sites[NIB_SITE_Q].n;
    const double k = (double)sites[NIB_SITE_K].n, v = (double)sites[NIB_SITE_V].n;
    const double ffn = (double)sites[NIB_SITE_UP].n;
    const double widths[BUFFERS] = {[NORMED] = width,
                                    [Q] = q,
                                    [K] = k,
                                    [V] = v,
                                    [ATTN] = q,
                                    [X2] = width,
                                    [GATE] = ffn,
                                    [UP] = ffn,
                                    [H] = ffn,
                                    [X1] = width,
                                    [D] = width,
                                    [DNORMED] = width,
                                    [TEMP] = width,
                                    [DQ] = q,
                                    [DK] = k,
                                    [DV] = v,
                                    [DATTN] = q,
                                    [DH] = ffn,
                                    [LOGITS] = (double)layers[count - 1].n};
    memcpy(w->width, widths, sizeof widths);
}

/* ---- what is said ---- */

/* Bytes of weights that go to the device for each step, with their biases. */
static double bytes_of_weights(const walk *w, size_t count)
{
    double bytes = 0;
    for (size_t i = 1; i < count; i++)
        if (side_of(w, i) == THERE)
            bytes +=
                4 * (double)w->layers[i].n * (double)(w->layers[i].k + (w->layers[i].bias ? 1 : 0));
    return bytes;
}

static double seconds_of(const nib_machine *m, double copies, double bytes)
{
    return copies * m->copy_s + (m->copy_bytes_per_s > 0 ? bytes / m->copy_bytes_per_s : 0);
}

static bool has_layers_there(const nib_layers_plan *plan)
{
    for (size_t i = 0; i < plan->count; i++)
        if (plan->layers[i].use_count > 0 && plan->layers[i].layer->role != NIB_ROLE_EMBED &&
            plan->layers[i].uses[0].kernel->device != NIB_DEVICE_CPU)
            return true;
    return false;
}

static void note_host(nib_layers_plan *out, const nib_machine *host, bool adds_there)
{
    if (has_layers_there(out))
        nib__ledger_add_note(
            &out->ledger, "host",
            "of training %s does the products of linear layers and their casts%s; embedding, "
            "norms, positions, attention, activation, residual and loss, their gradients and the "
            "optimizer are done by %s",
            out->gpu->name, adds_there ? ", and adds gradients that it made" : "", host->name);
}

void nib__plan_training(nib_layers_plan *out, const nib_layer *layers, size_t count,
                        const nib_policy *policy)
{
    walk w = {.plan = out, .layers = layers, .again = policy->run_again};
    char bytes[32], weights[32], time[32], step_time[32];
    const nib_machine *gpu = out->gpu, *host = nib__plan_host(out);
    if (gpu == NULL || host == NULL || !nib__layers_of_model(count))
        return;
    w.m = (double)nib__policy_m(policy);
    for (int i = 0; i < out->op_count; i++)
        w.adds_there = w.adds_there || (out->ops[i].op == NIB_OP_ADD && out->ops[i].machine == gpu);
    for (int i = 0; i < BUFFERS; i++)
        w.held[i] = 1 << HERE;
    set_widths(&w, layers, count);
    walk_all(&w, count);
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
