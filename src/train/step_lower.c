/* SPDX-License-Identifier: Apache-2.0
 *
 * Writes the operations of a micro-batch: the forward step as inference runs it, with what the
 * backward pass needs kept, then the gradients, operator by operator in reverse.
 */
#include "cast.h"
#include "lower.h"
#include "step.h"

#include <inttypes.h>

typedef struct lowering {
    nib_step *s;
    const nib_config *c;
    nib_err *err;
    nib_status status; /* of the first failure; later nodes are not added */
    /* which input NIB_HELD_FAKE is of: buffer (-1: none), layer, mask */
    int fake_from;
    int64_t fake_layer;
    uint64_t fake_mask;
} lowering;

static void add(lowering *l, nib_train_node node)
{
    nib_step *s = l->s;
    if (l->status != NIB_OK)
        return;
    if (l->fake_from >= 0 && node.to == l->fake_from)
        l->fake_from = -1;
    if (node.row == NULL && node.op != NIB_OP_FAKE_DX && node.op != NIB_OP_FAKE_DW)
        l->status = nib__fail(l->err, NIB_NOT_AS_ASKED, "no row runs the operation %s on %s",
                              nib__op_names[node.op], s->plan->machine->name);
    else if (s->count == s->capacity)
        l->status =
            nib__fail(l->err, NIB_FAILED, "the list of operations is full at %zu", s->capacity);
    else
        s->nodes[s->count++] = node;
}

/* An operation without a site. */
static void add_op(lowering *l, nib_train_node node)
{
    node.row = nib__plan_op(node.op, NIB_TYPE_F32, l->s->plan->machine);
    node.site = SIZE_MAX;
    add(l, node);
}

static size_t site_of(int64_t layer, size_t part)
{
    return (size_t)(1 + layer * NIB_SITE_COUNT) + part;
}

/* Layers that read one input take the same form of it if their schemes are the same. */
static bool same_form(const lowering *l, size_t a, size_t b, int product)
{
    const nib_product *p = &l->s->products[a][product], *q = &l->s->products[b][product];
    return nib__scheme_equal(&p->shape.scheme, &q->shape.scheme) && p->quant == q->quant &&
           p->cast == q->cast && p->x_amax == q->x_amax && nib__step_fake_same(l->s, a, b);
}

bool nib__step_shares_input(const nib_step *s, size_t site)
{
    const size_t part = (site - 1) % NIB_SITE_COUNT;
    return site + 1 < s->net->site_count &&
           (part == NIB_SITE_K || part == NIB_SITE_V || part == NIB_SITE_UP);
}

/* ---- pieces of both passes ---- */

/* The largest magnitude of a matrix, where one scale serves all of it. */
static void add_amax(lowering *l, bool wanted, int from, int64_t layer, int64_t columns)
{
    if (wanted)
        add_op(l, (nib_train_node){
                      .op = NIB_OP_AMAX, .from = from, .layer = layer, .columns = columns});
}

/* What a layer's products read of `from`: it, or what its codes mean, with the mask for dx. */
static int add_fake(lowering *l, size_t site, int from, int64_t layer)
{
    const nib_step_fake *f = nib__step_fake_at(l->s, site);
    if (f == NULL || f->act == NULL)
        return from;
    if (l->fake_from == from && l->fake_layer == layer && l->fake_mask == f->mask_at)
        return NIB_HELD_FAKE;
    add(l, (nib_train_node){.op = NIB_OP_FAKE,
                            .row = f->act,
                            .site = site,
                            .from = from,
                            .layer = layer,
                            .to = NIB_HELD_FAKE,
                            .columns = l->s->net->sites[site].k});
    l->fake_from = from;
    l->fake_layer = layer;
    l->fake_mask = f->mask_at;
    return NIB_HELD_FAKE;
}

/* The x side of a product in its form: the rows of `from`, or its columns. */
static void add_quant(lowering *l, size_t site, int product, int from, int64_t layer)
{
    const nib_product *p = &l->s->products[site][product];
    const nib_site *shape = &l->s->net->sites[site];
    const int64_t columns = product == NIB_PRODUCT_Y ? shape->k : shape->n;
    if (p->quant == NULL) /* f32 rows are taken as they lie */
        return;
    add_amax(l, p->x_amax, from, layer, columns);
    add(l, (nib_train_node){.op = p->quant->op,
                            .row = p->quant,
                            .site = site,
                            .product = product,
                            .from = from,
                            .layer = layer,
                            .to = NIB_HELD_INPUT,
                            .columns = columns});
}

static void add_product(lowering *l, size_t site, int product, int from, int64_t layer, int to)
{
    static const nib_op ops[NIB_PRODUCTS] = {NIB_OP_LINEAR, NIB_OP_LINEAR_DX, NIB_OP_LINEAR_DW};
    const nib_product *p = &l->s->products[site][product];
    add(l, (nib_train_node){.op = ops[product],
                            .row = p->row,
                            .site = site,
                            .product = product,
                            .from = from,
                            .layer = layer,
                            .to = to,
                            .param = l->s->params->weight[site],
                            .columns = p->shape.n});
}

static void add_add(lowering *l, int from, int to, int64_t layer, int64_t columns)
{
    add_op(l, (nib_train_node){
                  .op = NIB_OP_ADD, .from = from, .to = to, .layer = layer, .columns = columns});
}

static void add_norm(lowering *l, int from, int64_t layer, size_t which)
{
    add_op(l, (nib_train_node){.op = NIB_OP_NORM,
                               .from = from,
                               .layer = layer,
                               .to = NIB_HELD_NORMED,
                               .param = l->s->params->norm[which],
                               .columns = l->c->width});
}

/* Linear layers that read `from`: sites first.. in order, into to[]. */
static void add_linears(lowering *l, size_t first, size_t count, int from, int64_t layer,
                        const int *to)
{
    for (size_t i = 0; i < count; i++) {
        const int x = add_fake(l, first + i, from, layer);
        if (i == 0 || !same_form(l, first + i - 1, first + i, NIB_PRODUCT_Y))
            add_quant(l, first + i, NIB_PRODUCT_Y, x, layer);
        add_product(l, first + i, NIB_PRODUCT_Y, x, layer, to[i]);
    }
}

/* Their input, packed for the gradients of their weights; once per form. */
static void add_keeps(lowering *l, size_t first, size_t count, int from, int64_t layer)
{
    for (size_t i = 0; i < count; i++) {
        const size_t site = first + i;
        const nib_product *p = &l->s->products[site][NIB_PRODUCT_DW];
        if (i > 0 && l->s->input_at[site] == l->s->input_at[site - 1])
            continue;
        const int x = add_fake(l, site, from, layer);
        add_amax(l, p->w_amax, x, layer, p->shape.n);
        add(l, (nib_train_node){.op = NIB_OP_CAST_T,
                                .row = p->cast,
                                .site = site,
                                .product = NIB_PRODUCT_DW,
                                .from = x,
                                .layer = layer,
                                .to = NIB_KEPT_INPUTS,
                                .columns = p->shape.n});
    }
}

/* ---- forward ---- */

static void add_swiglu(lowering *l, int64_t layer)
{
    add_op(l, (nib_train_node){.op = NIB_OP_SWIGLU,
                               .from = NIB_KEPT_GATE,
                               .other = NIB_KEPT_UP,
                               .to = NIB_HELD_H,
                               .layer = layer,
                               .columns = l->c->ffn});
}

static void add_rope(lowering *l, int to, int64_t layer, int64_t heads, bool backward)
{
    add_op(
        l,
        (nib_train_node){
            .op = NIB_OP_ROPE, .to = to, .layer = layer, .columns = heads, .backward = backward});
}

/* x2 from x1, and gate, up and h from x2. */
static void forward_layer(lowering *l, int64_t layer, bool keeps)
{
    static const int qkv[] = {NIB_KEPT_Q, NIB_HELD_K, NIB_HELD_V}, x2[] = {NIB_KEPT_X2},
                     wide[] = {NIB_KEPT_GATE, NIB_KEPT_UP};
    const size_t q = site_of(layer, NIB_SITE_Q), o = site_of(layer, NIB_SITE_O),
                 gate = site_of(layer, NIB_SITE_GATE), down = site_of(layer, NIB_SITE_DOWN);
    add_norm(l, NIB_KEPT_X1, layer, (size_t)(2 * layer));
    add_linears(l, q, 3, NIB_HELD_NORMED, layer, qkv);
    if (keeps)
        add_keeps(l, q, 3, NIB_HELD_NORMED, layer);
    add_rope(l, NIB_KEPT_Q, layer, l->c->heads, false);
    add_rope(l, NIB_HELD_K, layer, l->c->kv_heads, false);
    add_op(l, (nib_train_node){.op = NIB_OP_COPY,
                               .from = NIB_HELD_K,
                               .other = NIB_HELD_V,
                               .to = NIB_KEPT_CACHE,
                               .layer = layer});
    add_op(l, (nib_train_node){
                  .op = NIB_OP_ATTN, .from = NIB_KEPT_Q, .to = NIB_KEPT_ATTN, .layer = layer});
    add_linears(l, o, 1, NIB_KEPT_ATTN, layer, x2);
    if (keeps)
        add_keeps(l, o, 1, NIB_KEPT_ATTN, layer);
    add_add(l, NIB_KEPT_X1, NIB_KEPT_X2, layer, l->c->width);
    add_norm(l, NIB_KEPT_X2, layer, (size_t)(2 * layer + 1));
    add_linears(l, gate, 2, NIB_HELD_NORMED, layer, wide);
    if (keeps)
        add_keeps(l, gate, 2, NIB_HELD_NORMED, layer);
    add_swiglu(l, layer);
    if (keeps)
        add_keeps(l, down, 1, NIB_HELD_H, layer);
}

/* The next layer's x1. */
static void finish_layer(lowering *l, int64_t layer)
{
    static const int x1[] = {NIB_KEPT_X1};
    nib_step *s = l->s;
    const size_t first = s->count;
    add_linears(l, site_of(layer, NIB_SITE_DOWN), 1, NIB_HELD_H, layer, x1);
    if (l->status == NIB_OK && s->count > first)
        s->nodes[s->count - 1].next = true;
    add_op(l, (nib_train_node){.op = NIB_OP_ADD,
                               .from = NIB_KEPT_X2,
                               .to = NIB_KEPT_X1,
                               .layer = layer,
                               .next = true,
                               .columns = l->c->width});
}

static void forward(lowering *l)
{
    static const int logits[] = {NIB_HELD_LOGITS};
    const nib_ac ac = l->s->options.checkpointing;
    const int64_t layers = l->c->layers;
    const size_t head = l->s->net->site_count - 1;
    add_op(l, (nib_train_node){
                  .op = NIB_OP_EMBED, .to = NIB_KEPT_X1, .param = l->s->params->weight[0]});
    for (int64_t i = 0; i < layers; i++) {
        forward_layer(l, i, ac == NIB_AC_NONE);
        finish_layer(l, i);
    }
    add_norm(l, NIB_KEPT_X1, layers, (size_t)(2 * layers));
    add_linears(l, head, 1, NIB_HELD_NORMED, layers, logits);
    add_op(l, (nib_train_node){.op = NIB_OP_XENT,
                               .from = NIB_HELD_LOGITS,
                               .layer = layers,
                               .columns = l->s->net->sites[head].n});
}

/* ---- backward ---- */

/* The gradient of a weight and a bias from dy and the kept input. */
static void add_dw(lowering *l, size_t site, int dy, int64_t layer)
{
    const size_t bias = l->s->params->bias[site];
    add_quant(l, site, NIB_PRODUCT_DW, dy, layer);
    add_product(l, site, NIB_PRODUCT_DW, dy, layer, NIB_KEPT_INPUTS);
    if (nib__step_fake_at(l->s, site))
        add(l, (nib_train_node){.op = NIB_OP_FAKE_DW,
                                .site = site,
                                .layer = layer,
                                .param = l->s->params->weight[site]});
    if (bias != SIZE_MAX)
        add_op(l, (nib_train_node){.op = NIB_OP_BIAS_DW,
                                   .from = dy,
                                   .layer = layer,
                                   .param = bias,
                                   .columns = l->s->net->sites[site].n});
}

static void add_dx(lowering *l, size_t site, int dy, int64_t layer, int to)
{
    const nib_step_fake *f = nib__step_fake_at(l->s, site);
    add_quant(l, site, NIB_PRODUCT_DX, dy, layer);
    add_product(l, site, NIB_PRODUCT_DX, dy, layer, to);
    if (f && f->act)
        add(l, (nib_train_node){.op = NIB_OP_FAKE_DX,
                                .site = site,
                                .layer = layer,
                                .to = to,
                                .columns = l->s->net->sites[site].k});
}

/* The gradients of layers that read one input: dx is the sum, in the order of the sites. */
static void add_gradients(lowering *l, size_t first, size_t count, const int *dy, int64_t layer,
                          int dx)
{
    for (size_t i = 0; i < count; i++) {
        add_dx(l, first + i, dy[i], layer, i == 0 ? dx : NIB_HELD_TEMP);
        if (i > 0)
            add_add(l, NIB_HELD_TEMP, dx, layer, l->s->net->sites[first].k);
        add_dw(l, first + i, dy[i], layer);
    }
}

/* D += the gradient through a norm of `from`. */
static void add_norm_gradient(lowering *l, int from, int64_t layer, size_t which)
{
    const nib_train_node node = {.from = from,
                                 .other = NIB_HELD_DNORMED,
                                 .to = NIB_HELD_D,
                                 .layer = layer,
                                 .param = l->s->params->norm[which],
                                 .columns = l->c->width};
    nib_train_node dx = node, dw = node;
    dx.op = NIB_OP_NORM_DX;
    dw.op = NIB_OP_NORM_DW;
    add_op(l, dx);
    add_op(l, dw);
}

static void backward_mlp(lowering *l, int64_t layer, bool keeps)
{
    static const int d[] = {NIB_HELD_D}, wide[] = {NIB_KEPT_GATE, NIB_KEPT_UP};
    const size_t gate = site_of(layer, NIB_SITE_GATE), down = site_of(layer, NIB_SITE_DOWN);
    if (keeps) {
        add_swiglu(l, layer);
        add_keeps(l, down, 1, NIB_HELD_H, layer);
    }
    add_gradients(l, down, 1, d, layer, NIB_HELD_DH);
    add_op(l,
           (nib_train_node){
               .op = NIB_OP_SWIGLU_DX, .from = NIB_HELD_DH, .layer = layer, .columns = l->c->ffn});
    if (keeps) {
        add_norm(l, NIB_KEPT_X2, layer, (size_t)(2 * layer + 1));
        add_keeps(l, gate, 2, NIB_HELD_NORMED, layer);
    }
    add_gradients(l, gate, 2, wide, layer, NIB_HELD_DNORMED);
    add_norm_gradient(l, NIB_KEPT_X2, layer, (size_t)(2 * layer + 1));
}

static void backward_attention(lowering *l, int64_t layer, bool keeps)
{
    static const int d[] = {NIB_HELD_D}, qkv[] = {NIB_HELD_DQ, NIB_HELD_DK, NIB_HELD_DV};
    const size_t q = site_of(layer, NIB_SITE_Q), o = site_of(layer, NIB_SITE_O);
    if (keeps)
        add_keeps(l, o, 1, NIB_KEPT_ATTN, layer);
    add_gradients(l, o, 1, d, layer, NIB_HELD_DATTN);
    add_op(l, (nib_train_node){.op = NIB_OP_ATTN_DX, .from = NIB_HELD_DATTN, .layer = layer});
    add_rope(l, NIB_HELD_DQ, layer, l->c->heads, true);
    add_rope(l, NIB_HELD_DK, layer, l->c->kv_heads, true);
    if (keeps) {
        add_norm(l, NIB_KEPT_X1, layer, (size_t)(2 * layer));
        add_keeps(l, q, 3, NIB_HELD_NORMED, layer);
    }
    add_gradients(l, q, 3, qkv, layer, NIB_HELD_DNORMED);
    add_norm_gradient(l, NIB_KEPT_X1, layer, (size_t)(2 * layer));
}

static void backward(lowering *l)
{
    static const int logits[] = {NIB_HELD_LOGITS};
    const nib_ac ac = l->s->options.checkpointing;
    const int64_t layers = l->c->layers;
    const size_t head = l->s->net->site_count - 1;
    add_keeps(l, head, 1, NIB_HELD_NORMED, layers);
    add_gradients(l, head, 1, logits, layers, NIB_HELD_DNORMED);
    add_norm_gradient(l, NIB_KEPT_X1, layers, (size_t)(2 * layers));
    for (int64_t i = layers - 1; i >= 0; i--) {
        if (ac == NIB_AC_FULL)
            forward_layer(l, i, true);
        backward_mlp(l, i, ac == NIB_AC_SELECTIVE);
        backward_attention(l, i, ac == NIB_AC_SELECTIVE);
    }
    add_op(l, (nib_train_node){.op = NIB_OP_EMBED_DW,
                               .from = NIB_HELD_D,
                               .param = l->s->params->weight[0],
                               .columns = l->c->width});
}

/* ---- products and places ---- */

/* Where each site's input lies: one place for neighbours that read it in the same form. */
static uint64_t place_inputs(lowering *l)
{
    nib_step *s = l->s;
    const bool each = s->options.checkpointing == NIB_AC_NONE;
    uint64_t used = 0;
    for (size_t i = 1; i < s->net->site_count; i++) {
        const size_t part = (i - 1) % NIB_SITE_COUNT;
        const nib_product *p = &s->products[i][NIB_PRODUCT_DW];
        if (!each && part == 0)
            used = 0; /* layers take turns */
        if (nib__step_shares_input(s, i) && same_form(l, i - 1, i, NIB_PRODUCT_DW)) {
            s->input_at[i] = s->input_at[i - 1];
            continue;
        }
        s->input_at[i] = used;
        used += (nib__cast_bytes(p->row, &p->shape) + 63) & ~UINT64_C(63);
        if (used > s->each[NIB_KEPT_INPUTS])
            s->each[NIB_KEPT_INPUTS] = used;
    }
    return used;
}

static void size_buffers(lowering *l)
{
    nib_step *s = l->s;
    const nib_config *c = l->c;
    const int64_t q = c->heads * c->head_dim, kv = c->kv_heads * c->head_dim;
    const int64_t columns[NIB_TRAIN_BUFFERS] = {
        [NIB_KEPT_X1] = c->width,   [NIB_KEPT_X2] = c->width,
        [NIB_KEPT_Q] = q,           [NIB_KEPT_ATTN] = q,
        [NIB_KEPT_LSE] = c->heads,  [NIB_KEPT_GATE] = c->ffn,
        [NIB_KEPT_UP] = c->ffn,     [NIB_HELD_NORMED] = c->width,
        [NIB_HELD_K] = kv,          [NIB_HELD_V] = kv,
        [NIB_HELD_H] = c->ffn,      [NIB_HELD_LOGITS] = nib__network_head(s->net)->n,
        [NIB_HELD_D] = c->width,    [NIB_HELD_DNORMED] = c->width,
        [NIB_HELD_TEMP] = c->width, [NIB_HELD_DQ] = q,
        [NIB_HELD_DK] = kv,         [NIB_HELD_DV] = kv,
        [NIB_HELD_DATTN] = q,       [NIB_HELD_DH] = c->ffn,
        [NIB_HELD_INVERSE] = 1,     [NIB_HELD_LOSS] = 1,
    };
    for (int i = 0; i < NIB_TRAIN_BUFFERS; i++) {
        s->ld[i] = columns[i];
        s->each[i] = (uint64_t)columns[i] * (uint64_t)s->m * sizeof(float);
    }
    int64_t rows = s->m; /* the most of a matrix whose magnitude is looked for; weights, too */
    for (size_t i = 1; i < s->net->site_count; i++) {
        rows = nib__max(rows, s->net->sites[i].n);
        for (int p = 0; p < NIB_PRODUCTS; p++) {
            uint64_t bytes;
            nib__product_input(&s->products[i][p],
                               nib__product_rows(s->plan->layers[i].layer, p, s->m), NULL, &bytes);
            if (bytes > s->each[NIB_HELD_INPUT])
                s->each[NIB_HELD_INPUT] = bytes;
        }
    }
    s->each[NIB_HELD_AMAX] = (uint64_t)(nib__ceil_div(rows, NIB_TRAIN_ROWS) + 1) * sizeof(float);
}

nib_status nib__step_lower(nib_step *s, nib_err *err)
{
    enum { NODES_PER_LAYER = 160, NODES_AROUND = 64 };
    lowering l = {.s = s, .c = &s->net->config, .err = err, .fake_from = -1};
    const size_t sites = s->net->site_count;
    s->capacity = (size_t)(l.c->layers * NODES_PER_LAYER + NODES_AROUND);
    s->nodes = nib__arena_take(&s->arena, s->capacity, sizeof *s->nodes);
    s->node_ns = nib__arena_take(&s->arena, s->capacity, sizeof *s->node_ns);
    s->products = nib__arena_take(&s->arena, sites, sizeof *s->products);
    s->input_at = nib__arena_take(&s->arena, sites, sizeof *s->input_at);
    s->packed_at = nib__arena_take(&s->arena, sites, sizeof *s->packed_at);
    if (!s->nodes || !s->node_ns || !s->products || !s->input_at || !s->packed_at)
        return nib__fail_memory(err, s->capacity * sizeof *s->nodes, "the list of operations");
    for (size_t i = 1; i < sites; i++)
        for (int p = 0; p < NIB_PRODUCTS; p++)
            NIB_TRY(nib__product_find(&s->products[i][p], &s->plan->layers[i], p, s->m,
                                      s->net->train.wgrad_with_hp, s->plan->machine, err));
    size_buffers(&l);
    NIB_TRY(nib__step_fake_open(s, err));
    place_inputs(&l);
    forward(&l);
    s->forward_end = s->count;
    backward(&l);
    return l.status;
}
