/* SPDX-License-Identifier: Apache-2.0
 *
 * Writes the operations of a micro-batch: the forward step as inference runs it, with what the
 * backward pass needs kept, then the gradients, operator by operator in reverse.
 */
#include "step.h"

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
    if (l->status != NIB_OK)
        return;
    if (l->fake_from >= 0 && node.to == l->fake_from)
        l->fake_from = -1;
    if (node.row == NULL && node.op != NIB_OP_FAKE_DX && node.op != NIB_OP_FAKE_DW) {
        l->status = nib__fail(l->err, NIB_NOT_AS_ASKED, "no row runs the operation %s on %s",
                              nib__op_names[node.op], nib__plan_host(l->s->plan)->name);
        return;
    }
    node.side =
        node.row != NULL && node.row->device != NIB_DEVICE_CPU ? NIB_SIDE_GPU : NIB_SIDE_CPU;
    l->status = nib__step_add(l->s, &node, l->err);
}

/* The device's row that adds what it made itself; NULL: the plan has none. */
static const nib_kernel *add_there(const lowering *l, const nib_train_node *node)
{
    const nib_layers_plan *plan = l->s->plan;
    const bool both = node->op == NIB_OP_ADD && nib__step_is_there(l->s, node, node->from) &&
                      nib__step_is_there(l->s, node, node->to);
    for (int i = 0; both && i < plan->op_count; i++)
        if (plan->ops[i].op == NIB_OP_ADD && plan->ops[i].machine == plan->gpu)
            return plan->ops[i].row;
    return NULL;
}

/* Other operations without a site are the CPU's; rows of the embedding are looked up as f32,
 * whatever the plan of it says. */
static void add_op(lowering *l, nib_train_node node)
{
    const nib_layers_plan *plan = l->s->plan;
    const nib_op_plan *planned = nib__plan_operation(plan, node.op);
    node.row = add_there(l, &node);
    if (node.row == NULL)
        node.row = planned != NULL
                       ? planned->row
                       : nib__plan_op(node.op, NIB_TYPE_F32, nib__plan_host(plan), &plan->without);
    node.site = SIZE_MAX;
    add(l, node);
}

static size_t site_of(int64_t layer, size_t part)
{
    return (size_t)(1 + layer * NIB_SITE_COUNT) + part;
}

bool nib__step_same_form(const nib_step *s, size_t a, size_t b, int product)
{
    const nib_product *p = &s->products[a][product], *q = &s->products[b][product];
    return nib__scheme_equal(&p->shape.scheme, &q->shape.scheme) && p->quant == q->quant &&
           p->cast == q->cast && p->x_amax == q->x_amax && nib__step_fake_same(s, a, b);
}

bool nib__step_shares_input(const nib_step *s, size_t site)
{
    return nib__graph_weight(&s->net->graph, NIB_WEIGHT_MATRIX, site)->shares_input;
}

/* ---- pieces of both passes ---- */

/* The largest magnitude of a matrix, where one scale serves all of it; beside the product. */
static void add_amax(lowering *l, bool wanted, const nib_product *p, int from, int64_t layer,
                     int64_t columns)
{
    if (wanted)
        add(l, (nib_train_node){.op = NIB_OP_AMAX,
                                .row = p->amax,
                                .site = SIZE_MAX,
                                .from = from,
                                .layer = layer,
                                .columns = columns});
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
    add_amax(l, p->x_amax, p, from, layer, columns);
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
                            .next = to == NIB_KEPT_X1,
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
        if (i == 0 || !nib__step_same_form(l->s, first + i - 1, first + i, NIB_PRODUCT_Y))
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
        if (i > 0 && nib__step_same_form(l->s, site - 1, site, NIB_PRODUCT_DW))
            continue;
        const int x = add_fake(l, site, from, layer);
        add_amax(l, p->w_amax, p, x, layer, p->shape.n);
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

/* q, and k and v in the cache, from x1. */
static void forward_qkv(lowering *l, int64_t layer)
{
    static const int qkv[] = {NIB_KEPT_Q, NIB_HELD_K, NIB_HELD_V};
    add_norm(l, NIB_KEPT_X1, layer, (size_t)(2 * layer));
    add_linears(l, site_of(layer, NIB_SITE_Q), 3, NIB_HELD_NORMED, layer, qkv);
    add_rope(l, NIB_KEPT_Q, layer, l->c->heads, false);
    add_rope(l, NIB_HELD_K, layer, l->c->kv_heads, false);
    add_op(l, (nib_train_node){.op = NIB_OP_COPY,
                               .from = NIB_HELD_K,
                               .other = NIB_HELD_V,
                               .to = NIB_KEPT_CACHE,
                               .layer = layer});
}

/* x2 from x1, and gate, up and h from x2. Inputs are packed for the weights' gradients as late as
 * may be, so that operations by rows make long chains; rounded ones take turns in one buffer. */
static void forward_layer(lowering *l, int64_t layer, bool keeps)
{
    static const int x2[] = {NIB_KEPT_X2}, wide[] = {NIB_KEPT_GATE, NIB_KEPT_UP};
    const size_t o = site_of(layer, NIB_SITE_O), gate = site_of(layer, NIB_SITE_GATE);
    const bool soon = keeps && l->s->fake != NULL;
    forward_qkv(l, layer);
    if (keeps)
        add_keeps(l, site_of(layer, NIB_SITE_Q), 3, NIB_HELD_NORMED, layer);
    add_op(l, (nib_train_node){
                  .op = NIB_OP_ATTN, .from = NIB_KEPT_Q, .to = NIB_KEPT_ATTN, .layer = layer});
    add_linears(l, o, 1, NIB_KEPT_ATTN, layer, x2);
    if (soon)
        add_keeps(l, o, 1, NIB_KEPT_ATTN, layer);
    add_add(l, NIB_KEPT_X1, NIB_KEPT_X2, layer, l->c->width);
    add_norm(l, NIB_KEPT_X2, layer, (size_t)(2 * layer + 1));
    add_linears(l, gate, 2, NIB_HELD_NORMED, layer, wide);
    if (soon)
        add_keeps(l, gate, 2, NIB_HELD_NORMED, layer);
    add_swiglu(l, layer);
}

/* What forward_layer left to be packed. */
static void keep_layer(lowering *l, int64_t layer)
{
    if (l->s->fake == NULL) {
        add_keeps(l, site_of(layer, NIB_SITE_O), 1, NIB_KEPT_ATTN, layer);
        add_keeps(l, site_of(layer, NIB_SITE_GATE), 2, NIB_HELD_NORMED, layer);
    }
    add_keeps(l, site_of(layer, NIB_SITE_DOWN), 1, NIB_HELD_H, layer);
}

/* The next layer's x1. */
static void finish_layer(lowering *l, int64_t layer)
{
    static const int x1[] = {NIB_KEPT_X1};
    add_linears(l, site_of(layer, NIB_SITE_DOWN), 1, NIB_HELD_H, layer, x1);
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
        if (ac == NIB_AC_NONE)
            keep_layer(l, i);
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

/* The gradient of what layers read: the sum of theirs, in the order of the sites. */
static void add_dxs(lowering *l, size_t first, size_t count, const int *dy, int64_t layer, int dx)
{
    for (size_t i = 0; i < count; i++) {
        add_dx(l, first + i, dy[i], layer, i == 0 ? dx : NIB_HELD_TEMP);
        if (i > 0)
            add_add(l, NIB_HELD_TEMP, dx, layer, l->s->net->sites[first].k);
    }
}

/* D += the gradient through a norm of `from`; that of its weight. */
static void add_norm_gradient(lowering *l, nib_op op, int from, int64_t layer, size_t which)
{
    add_op(l, (nib_train_node){.op = op,
                               .from = from,
                               .other = NIB_HELD_DNORMED,
                               .to = NIB_HELD_D,
                               .layer = layer,
                               .param = l->s->params->norm[which],
                               .columns = l->c->width});
}

/* Gradients of inputs, which chains compute, come before those of weights that read the same dy.
 * Here and below `again`: what the forward pass did not keep is computed again. */
static void backward_head(lowering *l)
{
    static const int logits[] = {NIB_HELD_LOGITS};
    const int64_t layers = l->c->layers;
    const size_t head = l->s->net->site_count - 1;
    add_dxs(l, head, 1, logits, layers, NIB_HELD_DNORMED);
    add_norm_gradient(l, NIB_OP_NORM_DX, NIB_KEPT_X1, layers, (size_t)(2 * layers));
    add_keeps(l, head, 1, NIB_HELD_NORMED, layers);
    add_dw(l, head, NIB_HELD_LOGITS, layers);
    add_norm_gradient(l, NIB_OP_NORM_DW, NIB_KEPT_X1, layers, (size_t)(2 * layers));
}

/* h and the normed x2. */
static void mlp_again(lowering *l, int64_t layer)
{
    add_swiglu(l, layer);
    add_norm(l, NIB_KEPT_X2, layer, (size_t)(2 * layer + 1));
}

/* From D to the gradient of attention's output. */
static void backward_mlp(lowering *l, int64_t layer, bool again)
{
    static const int d[] = {NIB_HELD_D}, wide[] = {NIB_KEPT_GATE, NIB_KEPT_UP};
    const size_t o = site_of(layer, NIB_SITE_O), gate = site_of(layer, NIB_SITE_GATE),
                 down = site_of(layer, NIB_SITE_DOWN), norm = (size_t)(2 * layer + 1);
    if (again) {
        add_keeps(l, down, 1, NIB_HELD_H, layer);
        add_keeps(l, gate, 2, NIB_HELD_NORMED, layer);
        add_keeps(l, o, 1, NIB_KEPT_ATTN, layer);
    }
    add_dw(l, down, NIB_HELD_D, layer);
    add_dxs(l, down, 1, d, layer, NIB_HELD_DH);
    add_op(l,
           (nib_train_node){
               .op = NIB_OP_SWIGLU_DX, .from = NIB_HELD_DH, .layer = layer, .columns = l->c->ffn});
    add_dxs(l, gate, 2, wide, layer, NIB_HELD_DNORMED);
    add_norm_gradient(l, NIB_OP_NORM_DX, NIB_KEPT_X2, layer, norm);
    add_dxs(l, o, 1, d, layer, NIB_HELD_DATTN);
    if (again)
        add_norm(l, NIB_KEPT_X1, layer, (size_t)(2 * layer));
    for (size_t i = 0; i < 2; i++)
        add_dw(l, gate + i, wide[i], layer);
    add_norm_gradient(l, NIB_OP_NORM_DW, NIB_KEPT_X2, layer, norm);
    add_dw(l, o, NIB_HELD_D, layer);
}

/* On to D of the layer before, whose mlp is computed again, too. */
static void backward_attention(lowering *l, int64_t layer, bool again)
{
    static const int qkv[] = {NIB_HELD_DQ, NIB_HELD_DK, NIB_HELD_DV};
    const size_t q = site_of(layer, NIB_SITE_Q), norm = (size_t)(2 * layer);
    if (again)
        add_keeps(l, q, 3, NIB_HELD_NORMED, layer);
    add_op(l, (nib_train_node){.op = NIB_OP_ATTN_DX, .from = NIB_HELD_DATTN, .layer = layer});
    add_rope(l, NIB_HELD_DQ, layer, l->c->heads, true);
    add_rope(l, NIB_HELD_DK, layer, l->c->kv_heads, true);
    add_dxs(l, q, 3, qkv, layer, NIB_HELD_DNORMED);
    add_norm_gradient(l, NIB_OP_NORM_DX, NIB_KEPT_X1, layer, norm);
    if (again && layer > 0)
        mlp_again(l, layer - 1);
    for (size_t i = 0; i < 3; i++)
        add_dw(l, q + i, qkv[i], layer);
    add_norm_gradient(l, NIB_OP_NORM_DW, NIB_KEPT_X1, layer, norm);
}

static void backward(lowering *l)
{
    const nib_ac ac = l->s->options.checkpointing;
    backward_head(l);
    if (ac == NIB_AC_SELECTIVE && l->c->layers > 0)
        mlp_again(l, l->c->layers - 1);
    for (int64_t i = l->c->layers - 1; i >= 0; i--) {
        if (ac == NIB_AC_FULL) {
            forward_layer(l, i, true);
            keep_layer(l, i);
        }
        backward_mlp(l, i, ac == NIB_AC_SELECTIVE);
        backward_attention(l, i, ac == NIB_AC_SELECTIVE);
    }
    add_op(l, (nib_train_node){.op = NIB_OP_EMBED_DW,
                               .from = NIB_HELD_D,
                               .param = l->s->params->weight[0],
                               .columns = l->c->width});
}

/* ---- all of it ---- */

nib_status nib__step_lower(nib_step *s, nib_err *err)
{
    enum { NODES_PER_LAYER = 320, NODES_AROUND = 128 }; /* each may move what it reads */
    lowering l = {.s = s, .c = &s->net->config, .err = err, .fake_from = -1};
    const size_t sites = s->net->site_count;
    s->capacity = (size_t)(l.c->layers * NODES_PER_LAYER + NODES_AROUND);
    s->nodes = nib__arena_take(&s->arena, s->capacity, sizeof *s->nodes);
    s->node_ns = nib__arena_take(&s->arena, s->capacity, sizeof *s->node_ns);
    s->products = nib__arena_take(&s->arena, sites, sizeof *s->products);
    s->input_at = nib__arena_take(&s->arena, sites, sizeof *s->input_at);
    s->packed = nib__arena_take(&s->arena, sites, sizeof *s->packed);
    s->inputs = nib__arena_take(&s->arena, sites, sizeof *s->inputs);
    const size_t buffers = (size_t)(NIB_TRAIN_BUFFERS * (l.c->layers + 1));
    s->held = nib__arena_take(&s->arena, buffers, sizeof *s->held);
    if (!s->nodes || !s->node_ns || !s->products || !s->input_at || !s->packed || !s->inputs ||
        !s->held)
        return nib__fail_memory(err, s->capacity * sizeof *s->nodes, "the list of operations");
    for (size_t i = 1; i < sites; i++)
        for (int p = 0; p < NIB_PRODUCTS; p++)
            NIB_TRY(nib__product_find(&s->products[i][p], s->plan, &s->plan->layers[i], p, s->m,
                                      s->net->train.wgrad_with_hp, err));
    memset(s->held, 1 << NIB_SIDE_CPU, buffers);
    nib__step_size(s);
    NIB_TRY(nib__step_fake_open(s, err));
    nib__step_place_inputs(s);
    forward(&l);
    s->forward_end = s->count;
    backward(&l);
    return l.status;
}
