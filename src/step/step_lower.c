/* SPDX-License-Identifier: Apache-2.0
 *
 * Lowers the training graph to the operations of a micro-batch: each gets its row, and operations
 * that prepare operands precede the products.
 */
#include "cast.h"
#include "step_experts.h"
#include "step_list.h"

typedef struct lowering {
    nib_step *s;
    nib_step_list list;
    nib_training from;
    nib_err *err;
    int *packed; /* per packed value: the value whose packed input it shares */
    /* the value that the last forward quantizer encoded, and for which site; NIB_NO_ID: none */
    int formed;
    size_t formed_site;
    /* quantization-aware training: per value, its quantized and dequantized copy, for which site,
     * and the copy's mask */
    int *rounded;
    size_t *rounded_site;
    int *mask;
    int *node_mask; /* per node of the graph: the mask of the input that its products read */
} lowering;

static const nib_graph *graph_of(const lowering *l) { return &l->s->net->graph; }

static size_t site_of(const lowering *l, const nib_training_node *from)
{
    return graph_of(l)->weights[from->weight].index;
}

static nib_train_node node_of(const nib_training_node *from, nib_op op)
{
    nib_train_node node = {.op = op,
                           .site = SIZE_MAX,
                           .param = SIZE_MAX,
                           .layer = from->layer,
                           .rows = 1,
                           .of = from->of,
                           .inverse = from->inverse,
                           .ahead = from->ahead,
                           .adds = from->adds};
    for (int i = 0; i < NIB_TRAINING_INPUTS; i++)
        node.in[i] = NIB_NO_ID;
    for (int i = 0; i < NIB_TRAINING_OUTPUTS; i++)
        node.out[i] = NIB_NO_ID;
    return node;
}

/* A node with the inputs and outputs of the graph node. */
static nib_train_node copy_node(const nib_training_node *from)
{
    nib_train_node node = node_of(from, from->op);
    memcpy(node.in, from->in, sizeof node.in);
    memcpy(node.out, from->out, sizeof node.out);
    return node;
}

static nib_status append(lowering *l, nib_train_node node)
{
    const bool needs_row =
        node.op != NIB_OP_FAKE_DX && node.op != NIB_OP_FAKE_DW && node.op != NIB_OP_HIDDEN;
    if (node.row == NULL && needs_row)
        return nib__fail(l->err, NIB_NOT_AS_ASKED, "no kernel runs the operation %s on %s",
                         nib__op_names[node.op], nib__plan_host(l->s->plan)->name);
    node.side =
        node.row != NULL && node.row->device != NIB_DEVICE_CPU ? NIB_SIDE_GPU : NIB_SIDE_CPU;
    return nib__step_add(&l->list, &node, l->err);
}

/* The device's add, if the device made both inputs; NULL: the plan has none. */
static const nib_kernel *find_device_add(const lowering *l, const nib_train_node *node)
{
    const nib_assignment *plan = l->s->plan;
    const bool both = node->op == NIB_OP_ADD && nib__step_only_on_device(&l->list, node->in[0]) &&
                      nib__step_only_on_device(&l->list, node->in[1]);
    for (int i = 0; both && i < plan->op_count; i++)
        if (plan->ops[i].op == NIB_OP_ADD && plan->ops[i].machine == plan->gpu)
            return plan->ops[i].row;
    return NULL;
}

/* All other operations without a site run on the CPU. Rows of the embedding are looked up as f32,
 * whatever its plan says. */
static nib_status add_op(lowering *l, nib_train_node node)
{
    const nib_assignment *plan = l->s->plan;
    const nib_op_plan *planned = nib__plan_operation(plan, node.op);
    node.row = find_device_add(l, &node);
    if (node.row == NULL)
        node.row = planned != NULL
                       ? planned->row
                       : nib__plan_op(node.op, NIB_TYPE_F32, nib__plan_host(plan), &plan->without);
    return append(l, node);
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

/* ---- the sites of an operation: one, or one per expert or head ---- */

static bool of_experts(const nib_training_node *from) { return nib__step_of_experts(from->of); }

static int64_t site_count(const nib_training_node *from)
{
    return of_experts(from) ? nib__step_expert_count(from->of) : 1;
}

static size_t site_at(const lowering *l, const nib_training_node *from, int64_t e)
{
    return of_experts(from) ? nib__step_expert_site(l->s->net, from->of, e) : site_of(l, from);
}

/* The order of the experts' rows, or NIB_NO_ID. */
static int order_of(const nib_training_node *from)
{
    return !of_experts(from) ? NIB_NO_ID : from->in[from->op == NIB_OP_LINEAR_DW ? 2 : 1];
}

/* Whether the sites of an operation and those that start at `other` have the same forms. */
static bool same_forms(const lowering *l, const nib_training_node *from, size_t other, int product)
{
    const int64_t step = of_experts(from) ? from->of->weight_step : 0;
    for (int64_t e = 0; e < site_count(from); e++)
        if (!nib__step_same_form(l->s, other + (size_t)(e * step), site_at(l, from, e), product))
            return false;
    return true;
}

static bool same_rounding(const lowering *l, const nib_training_node *from, size_t other)
{
    const int64_t step = of_experts(from) ? from->of->weight_step : 0;
    for (int64_t e = 0; e < site_count(from); e++)
        if (!nib__step_fake_same(l->s, other + (size_t)(e * step), site_at(l, from, e)))
            return false;
    return true;
}

/* The first site whose inputs are rounded, or NULL. */
static const nib_step_fake *rounded_input(const lowering *l, const nib_training_node *from)
{
    for (int64_t e = 0; e < site_count(from); e++) {
        const nib_step_fake *f = nib__step_fake_at(l->s, site_at(l, from, e));
        if (f != NULL && f->act != NULL)
            return f;
    }
    return NULL;
}

/* ---- operands ---- */

/* Appends the search for the largest magnitude of a matrix, if one scale covers the whole matrix;
 * on the side of the product. */
static nib_status add_amax(lowering *l, const nib_training_node *from, bool x_side, int product,
                           int value)
{
    for (int64_t e = 0; e < site_count(from); e++) {
        const size_t site = site_at(l, from, e);
        const nib_product *p = &l->s->products[site][product];
        const nib_site *of = &l->s->net->sites[site];
        nib_train_node node = node_of(from, NIB_OP_AMAX);
        if (x_side ? !p->x_amax : !p->w_amax)
            continue;
        node.row = p->amax;
        node.product = product;
        node.in[0] = value, node.in[1] = order_of(from);
        node.columns = product == NIB_PRODUCT_Y || !x_side ? of->k : of->n;
        return append(l, node);
    }
    return NIB_OK;
}

static int *node_mask(const lowering *l, const nib_training_node *from)
{
    return &l->node_mask[from->of - graph_of(l)->nodes];
}

/* Sets *value to what the layer's products read: the value itself, or its quantized and dequantized
 * copy, with the mask for dx. */
static nib_status fake_quantize_input(lowering *l, const nib_training_node *from, int *value)
{
    const size_t site = site_of(l, from);
    const nib_step_fake *f = rounded_input(l, from);
    const int x = *value;
    if (f == NULL)
        return NIB_OK;
    if (l->rounded[x] == NIB_NO_ID || !same_rounding(l, from, l->rounded_site[x])) {
        const int64_t k = l->s->net->sites[site].k, columns = l->list.values[x].columns;
        const int64_t share = of_experts(from) ? nib__step_expert_share(from->of) : 1;
        const nib_step_value rows = {.kind = NIB_TRAINING_ROWS, .columns = columns},
                             mask = {.kind = NIB_TRAINING_PACKED,
                                     .bytes = (uint64_t)(l->s->m * share * nib__fake_mask_ld(k))};
        nib_train_node node = node_of(from, NIB_OP_FAKE);
        node.row = f->act, node.site = site, node.columns = columns;
        node.in[0] = x, node.in[1] = order_of(from);
        NIB_TRY(nib__step_add_value(&l->list, rows, &node.out[0], l->err));
        NIB_TRY(nib__step_add_value(&l->list, mask, &node.out[1], l->err));
        NIB_TRY(append(l, node));
        l->rounded[x] = node.out[0];
        l->rounded_site[x] = site;
        l->mask[x] = node.out[1];
        l->formed = NIB_NO_ID; /* quantizing overwrote that region */
    }
    *node_mask(l, from) = l->mask[x];
    *value = l->rounded[x];
    return NIB_OK;
}

/* Appends the quantizer of the x side of a product, by rows or by columns. */
static nib_status add_quant(lowering *l, const nib_training_node *from, int product, int value)
{
    const nib_kernel *quant = NULL; /* NULL: the products read f32 rows */
    nib_train_node node = node_of(from, NIB_OP_QUANT);
    for (int64_t e = 0; e < site_count(from) && quant == NULL; e++)
        quant = l->s->products[site_at(l, from, e)][product].quant;
    if (quant == NULL)
        return NIB_OK;
    NIB_TRY(add_amax(l, from, true, product, value));
    node.op = quant->op, node.row = quant;
    node.site = site_of(l, from), node.product = product;
    node.in[0] = value, node.in[1] = order_of(from);
    node.columns = l->list.values[value].columns;
    l->formed = product == NIB_PRODUCT_Y ? value : NIB_NO_ID;
    l->formed_site = node.site;
    return append(l, node);
}

static nib_status add_product(lowering *l, const nib_training_node *from, int product, int value)
{
    const size_t site = site_of(l, from);
    const nib_product *p = &l->s->products[site][product];
    nib_train_node node = copy_node(from);
    node.row = p->row, node.site = site, node.product = product;
    node.in[0] = value;
    node.param = l->s->params->weight[site];
    node.columns = p->shape.n;
    return append(l, node);
}

/* ---- operations with a weight ---- */

/* Layers that read one value in the same form share its quantizer. */
static nib_status lower_linear(lowering *l, const nib_training_node *from)
{
    int x = from->in[0];
    NIB_TRY(fake_quantize_input(l, from, &x));
    if (l->formed != x || !same_forms(l, from, l->formed_site, NIB_PRODUCT_Y))
        NIB_TRY(add_quant(l, from, NIB_PRODUCT_Y, x));
    return add_product(l, from, NIB_PRODUCT_Y, x);
}

/* Packs the input of a layer for the gradient of its weight, once per form. */
static nib_status lower_packed(lowering *l, const nib_training_node *from)
{
    const size_t site = site_of(l, from);
    const nib_product *p = &l->s->products[site][NIB_PRODUCT_DW];
    nib_train_node node = copy_node(from);
    int x = from->in[0];
    if (nib__step_shares_input(l->s, site) && same_forms(l, from, site - 1, NIB_PRODUCT_DW)) {
        l->packed[from->out[0]] = l->s->inputs[site] = l->s->inputs[site - 1];
        return NIB_OK;
    }
    NIB_TRY(fake_quantize_input(l, from, &x));
    NIB_TRY(add_amax(l, from, false, NIB_PRODUCT_DW, x));
    node.row = p->cast, node.site = site, node.product = NIB_PRODUCT_DW;
    node.in[0] = x;
    node.columns = p->shape.n;
    l->list.values[from->out[0]].in_block = from->adds || from->partial;
    l->list.values[from->out[0]].bytes = of_experts(from)
                                             ? nib__step_experts_packed_bytes(l->s, from->of)
                                             : nib__cast_bytes(p->row, &p->shape);
    l->packed[from->out[0]] = l->s->inputs[site] = from->out[0];
    return append(l, node);
}

static nib_status lower_dx(lowering *l, const nib_training_node *from)
{
    const size_t site = site_of(l, from);
    nib_train_node clipped = node_of(from, NIB_OP_FAKE_DX);
    NIB_TRY(add_quant(l, from, NIB_PRODUCT_DX, from->in[0]));
    NIB_TRY(add_product(l, from, NIB_PRODUCT_DX, from->in[0]));
    if (rounded_input(l, from) == NULL)
        return NIB_OK;
    clipped.site = site;
    clipped.in[0] = clipped.out[0] = from->out[0], clipped.in[1] = *node_mask(l, from);
    clipped.in[2] = order_of(from);
    clipped.columns = l->list.values[from->out[0]].columns;
    return append(l, clipped);
}

static nib_status add_bias(lowering *l, const nib_training_node *from, int dy, size_t bias)
{
    nib_train_node node = node_of(from, NIB_OP_BIAS_DW);
    if (bias == SIZE_MAX)
        return NIB_OK;
    node.in[0] = dy, node.in[1] = order_of(from);
    node.param = bias;
    node.columns = l->list.values[dy].columns;
    node.rows = node.columns / l->s->params->items[bias].columns;
    return add_op(l, node);
}

/* The gradient of a weight and a bias from dy and the packed input. */
static nib_status lower_dw(lowering *l, const nib_training_node *from)
{
    const size_t site = site_of(l, from);
    size_t bias = SIZE_MAX;
    bool is_rounded = false;
    nib_training_node dw = *from;
    for (int64_t e = 0; e < site_count(from); e++) {
        const size_t own = site_at(l, from, e);
        bias = bias == SIZE_MAX ? l->s->params->bias[own] : bias;
        is_rounded = is_rounded || nib__step_fake_at(l->s, own) != NULL;
    }
    dw.in[1] = l->packed[from->in[1]];
    NIB_TRY(add_quant(l, from, NIB_PRODUCT_DW, from->in[0]));
    NIB_TRY(add_product(l, &dw, NIB_PRODUCT_DW, from->in[0]));
    if (is_rounded && !from->partial) { /* of the whole gradient */
        nib_train_node node = node_of(from, NIB_OP_FAKE_DW);
        node.site = site;
        node.param = l->s->params->weight[site];
        NIB_TRY(append(l, node));
    }
    return add_bias(l, from, from->in[0], bias);
}

/* ---- other operations ---- */

/* Norms, the embedding, and operations without a weight. */
static nib_status lower_op(lowering *l, const nib_training_node *from)
{
    nib_train_node node = copy_node(from);
    const int wide =
        node.out[0] >= 0 && l->list.values[node.out[0]].columns > 0 ? node.out[0] : node.in[0];
    node.columns = l->list.values[wide].columns;
    node.rows = from->heads > 0 ? from->heads : 1;
    if (from->weight != NIB_NO_ID) {
        const nib_graph_weight *w = &graph_of(l)->weights[from->weight];
        const nib_params *params = l->s->params;
        node.param = w->kind == NIB_WEIGHT_NORM ? params->norm[w->index] : params->weight[w->index];
    }
    return add_op(l, node);
}

static nib_status lower_norm_dw(lowering *l, const nib_training_node *from)
{
    const size_t norm = graph_of(l)->weights[from->weight].index;
    NIB_TRY(lower_op(l, from));
    return add_bias(l, from, from->in[1], l->s->params->norm_bias[norm]);
}

/* Also the gradient of COMBINE, which reads an order made before. */
static nib_status lower_dispatch(lowering *l, const nib_training_node *from)
{
    if (from->out[1] >= 0)
        l->list.values[from->out[1]].bytes = nib__step_order_bytes(l->s, from->of->routing);
    return lower_op(l, from);
}

static nib_status lower(lowering *l, const nib_training_node *from)
{
    switch (from->op) {
    case NIB_OP_LINEAR:
    case NIB_OP_LINEAR_EXPERTS:
    case NIB_OP_LINEAR_HEADS: return lower_linear(l, from);
    case NIB_OP_DISPATCH: return lower_dispatch(l, from);
    case NIB_OP_BALANCE: return add_op(l, copy_node(from));
    case NIB_OP_CAST_T: return lower_packed(l, from);
    case NIB_OP_LINEAR_DX: return lower_dx(l, from);
    case NIB_OP_LINEAR_DW: return lower_dw(l, from);
    case NIB_OP_NORM_DW: return lower_norm_dw(l, from);
    default: return lower_op(l, from);
    }
}

/* ---- all of it ---- */

/* The backward pass quantizes inputs again, unless all of them are kept. */
static void clear_rounded(lowering *l)
{
    for (size_t i = 0; i < l->from.value_count; i++)
        l->rounded[i] = NIB_NO_ID;
}

static nib_status lower_all(lowering *l)
{
    const nib_training *from = &l->from;
    for (size_t i = 0; i < from->value_count; i++) {
        const nib_step_value value = {
            .kind = from->values[i].kind,
            .columns = from->values[i].kind == NIB_TRAINING_ROWS ? from->values[i].columns : 0};
        int id;
        NIB_TRY(nib__step_add_value(&l->list, value, &id, l->err));
    }
    clear_rounded(l);
    for (size_t i = 0; i < from->count; i++) {
        if (i == from->forward_end) {
            l->list.forward_end = l->list.count;
            l->list.loss = from->nodes[i - 1].out[1];
            if (i > 1 && from->nodes[i - 2].op == NIB_OP_XENT)
                l->list.draft_loss = from->nodes[i - 2].out[1];
            if (!nib__step_keeps_all_inputs(l->s))
                clear_rounded(l);
        }
        NIB_TRY(lower(l, &from->nodes[i]));
    }
    return NIB_OK;
}

/* Replaces value ids of kept inputs by their buffers. */
static void set_input_buffers(nib_step *s)
{
    for (size_t i = 0; i < s->count; i++)
        if (s->nodes[i].op == NIB_OP_LINEAR_DW)
            s->inputs[s->nodes[i].site] = s->nodes[i].adds ? NIB_NO_ID : s->nodes[i].in[1];
}

static nib_status open_lowering(lowering *l)
{
    nib_step *s = l->s;
    const size_t sites = s->net->site_count;
    NIB_TRY(
        nib__graph_training(&l->from, graph_of(l), s->options.checkpointing, &s->arena, l->err));
    const size_t values = l->from.value_count;
    s->products = nib__arena_take(&s->arena, sites, sizeof *s->products);
    s->packed = nib__arena_take(&s->arena, sites, sizeof *s->packed);
    s->inputs = nib__arena_take(&s->arena, sites, sizeof *s->inputs);
    l->packed = nib__arena_take(&s->arena, values, sizeof *l->packed);
    l->rounded = nib__arena_take(&s->arena, values, sizeof *l->rounded);
    l->rounded_site = nib__arena_take(&s->arena, values, sizeof *l->rounded_site);
    l->mask = nib__arena_take(&s->arena, values, sizeof *l->mask);
    l->node_mask = nib__arena_take(&s->arena, graph_of(l)->node_count, sizeof *l->node_mask);
    if (!s->products || !s->packed || !s->inputs || !l->packed || !l->rounded || !l->rounded_site ||
        !l->mask || !l->node_mask)
        return nib__fail_memory(l->err, sites * sizeof *s->products, "the list of operations");
    for (size_t i = 1; i < sites; i++)
        for (int p = 0; p < NIB_PRODUCTS; p++)
            NIB_TRY(nib__product_find(&s->products[i][p], s->plan, &s->plan->layers[i], p, s->m,
                                      s->net->train.wgrad_with_hp, l->err));
    nib__step_size_regions(s);
    NIB_TRY(nib__step_experts_open(s, l->err));
    return nib__step_fake_open(s, l->err);
}

nib_status nib__step_lower(nib_step *s, nib_err *err)
{
    lowering l = {.s = s,
                  .list = {.step = s, .allocator = &s->engine->allocator, .draft_loss = NIB_NO_ID},
                  .err = err,
                  .formed = NIB_NO_ID};
    nib_status status = open_lowering(&l);
    if (status == NIB_OK)
        status = lower_all(&l);
    if (status == NIB_OK)
        status = nib__step_assign_buffers(&l.list, err);
    nib__step_list_free(&l.list);
    if (status != NIB_OK)
        return status;
    s->node_ns = nib__arena_take(&s->arena, s->count, sizeof *s->node_ns);
    if (s->node_ns == NULL)
        return nib__fail_memory(err, s->count * sizeof *s->node_ns, "the list of operations");
    set_input_buffers(s);
    return NIB_OK;
}
