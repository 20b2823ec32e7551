/* SPDX-License-Identifier: Apache-2.0
 *
 * Adds the moves between the sides and assigns buffers to values. Values that are never live at the
 * same time share a buffer if they are equally wide. An operation that works in place overwrites an
 * input that nothing reads afterwards.
 */
#include "step_list.h"
#include "step_states.h"

#include "cast.h"
#include "operation.h"

static uint64_t aligned(uint64_t bytes) { return (bytes + 63) & ~UINT64_C(63); }
static uint64_t larger(uint64_t a, uint64_t b) { return a > b ? a : b; }

/* ---- values, operations and the moves before them ---- */

nib_status nib__step_add_value(nib_step_list *l, nib_step_value value, int *out, nib_err *err)
{
    if (!nib__reserve(l->allocator, (void **)&l->values, &l->value_capacity, l->value_count + 1,
                      sizeof value))
        return nib__fail_memory(err, (l->value_count + 1) * sizeof value, "a training step");
    *out = (int)l->value_count;
    l->values[l->value_count++] = value;
    return NIB_OK;
}

bool nib__step_only_on_device(const nib_step_list *l, int value)
{
    return l->values[value].held == 1 << NIB_SIDE_GPU;
}

static nib_status append(nib_step_list *l, const nib_train_node *node, nib_err *err)
{
    if (!nib__reserve(l->allocator, (void **)&l->nodes, &l->capacity, l->count + 1, sizeof *node))
        return nib__fail_memory(err, (l->count + 1) * sizeof *node, "a training step");
    l->nodes[l->count++] = *node;
    return NIB_OK;
}

nib_status nib__step_add(nib_step_list *l, const nib_train_node *node, nib_err *err)
{
    for (int i = 0; i < NIB_TRAINING_INPUTS; i++) {
        nib_step_value *value = node->in[i] >= 0 ? &l->values[node->in[i]] : NULL;
        nib_train_node move = {.op = NIB_OP_MOVE,
                               .side = node->side,
                               .site = SIZE_MAX,
                               .param = SIZE_MAX,
                               .layer = node->layer,
                               .rows = 1,
                               .in = {node->in[i], NIB_NO_ID, NIB_NO_ID, NIB_NO_ID, NIB_NO_ID},
                               .out = {node->in[i], NIB_NO_ID, NIB_NO_ID}};
        if (value == NULL || (value->held & 1 << node->side) != 0)
            continue;
        move.columns = value->columns;
        NIB_TRY(append(l, &move, err));
        value->held = (uint8_t)(value->held | 1 << node->side);
    }
    for (int i = 0; i < NIB_TRAINING_OUTPUTS; i++)
        if (node->out[i] >= 0)
            l->values[node->out[i]].held = (uint8_t)(1 << node->side);
    return append(l, node, err);
}

void nib__step_list_free(nib_step_list *l)
{
    nib__release(l->allocator, l->nodes);
    nib__release(l->allocator, l->values);
    l->nodes = NULL;
    l->values = NULL;
}

/* ---- buffers ---- */

/* Memory that buffers use in turn. */
typedef struct slot {
    int side;
    nib_training_kind kind;
    int64_t columns;
    uint64_t bytes, at;
    bool taken;
    bool waits; /* free, but workers of a chain may still read rows of others in it */
} slot;

typedef struct placement {
    nib_step_list *list;
    nib_step *step;
    size_t *last;   /* [value][side] the last operation that uses it there */
    int *buffer_of; /* [value][side]; NIB_NO_ID: not on that side */
    int *slot_of;   /* per buffer; NIB_NO_ID: allocated beside a weight */
    slot *slots;
    nib_step_buffer *buffers;
    size_t buffer_count, buffer_capacity, slot_count, slot_capacity, of_capacity;
} placement;

static size_t index_of(int value, int side)
{
    return (size_t)value * NIB_SIDE_COUNT + (size_t)side;
}

/* The side that a node reads from: for a MOVE, the other one. */
static int side_read(const nib_train_node *n)
{
    return n->op == NIB_OP_MOVE ? NIB_SIDE_COUNT - 1 - n->side : n->side;
}

static void find_last(placement *p)
{
    for (size_t i = 0; i < p->list->count; i++) {
        const nib_train_node *n = &p->list->nodes[i];
        for (int j = 0; j < NIB_TRAINING_INPUTS; j++)
            if (n->in[j] >= 0)
                p->last[index_of(n->in[j], side_read(n))] = i;
        for (int j = 0; j < NIB_TRAINING_OUTPUTS; j++)
            if (n->out[j] >= 0)
                p->last[index_of(n->out[j], n->side)] = i;
    }
    /* read after the list ends */
    p->last[index_of(p->list->loss, NIB_SIDE_CPU)] = p->list->count;
    if (p->list->draft_loss != NIB_NO_ID)
        p->last[index_of(p->list->draft_loss, NIB_SIDE_CPU)] = p->list->count;
}

static uint64_t bytes_of(const placement *p, const nib_step_value *v)
{
    return v->columns > 0 ? (uint64_t)(p->step->m * v->columns) * sizeof(float) : v->bytes;
}

static int find_slot(const placement *p, int side, const nib_step_value *v)
{
    for (size_t i = 0; i < p->slot_count; i++) {
        const slot *s = &p->slots[i];
        if (!s->taken && s->side == side && s->kind == v->kind && s->columns == v->columns &&
            s->bytes == bytes_of(p, v))
            return (int)i;
    }
    return NIB_NO_ID;
}

/* Takes the first free slot, or appends one. */
static nib_status acquire_slot(placement *p, int side, const nib_step_value *v, int *out,
                               nib_err *err)
{
    *out = find_slot(p, side, v);
    if (*out == NIB_NO_ID) {
        slot s = {.side = side, .kind = v->kind, .columns = v->columns, .bytes = bytes_of(p, v)};
        uint64_t *end =
            v->kind == NIB_TRAINING_STATE ? &p->step->caches : &p->step->sides[side].buffer_bytes;
        if (!nib__reserve(p->list->allocator, (void **)&p->slots, &p->slot_capacity,
                          p->slot_count + 1, sizeof s))
            return nib__fail_memory(err, (p->slot_count + 1) * sizeof s, "a training step");
        s.at = *end;
        *end += v->kind == NIB_TRAINING_STATE ? 1 : aligned(s.bytes);
        *out = (int)p->slot_count;
        p->slots[p->slot_count++] = s;
    }
    p->slots[*out].taken = true;
    return NIB_OK;
}

/* On a device, inputs that are all kept are allocated with their weights, layer by layer. */
static bool is_beside_weight(const placement *p, int side, const nib_step_value *v)
{
    return side == NIB_SIDE_GPU && v->kind == NIB_TRAINING_PACKED && !v->in_block &&
           nib__step_keeps_all_inputs(p->step);
}

static nib_status add_buffer(placement *p, int side, const nib_step_value *v, size_t first,
                             int *out, nib_err *err)
{
    const nib_allocator *a = p->list->allocator;
    int slot_id = NIB_NO_ID;
    if (!is_beside_weight(p, side, v))
        NIB_TRY(acquire_slot(p, side, v, &slot_id, err));
    if (!nib__reserve(a, (void **)&p->buffers, &p->buffer_capacity, p->buffer_count + 1,
                      sizeof *p->buffers) ||
        !nib__reserve(a, (void **)&p->slot_of, &p->of_capacity, p->buffer_count + 1,
                      sizeof *p->slot_of))
        return nib__fail_memory(err, (p->buffer_count + 1) * sizeof *p->buffers, "a training step");
    *out = (int)p->buffer_count++;
    p->slot_of[*out] = slot_id;
    p->buffers[*out] = (nib_step_buffer){.side = side,
                                         .columns = v->columns,
                                         .at = slot_id != NIB_NO_ID ? p->slots[slot_id].at : 0,
                                         .first = first,
                                         .scratch_at = {NIB_CHAIN_NONE, NIB_CHAIN_NONE}};
    return NIB_OK;
}

static bool is_last_use(const placement *p, const nib_train_node *n, int input, size_t at)
{
    return n->in[input] >= 0 && p->last[index_of(n->in[input], n->side)] == at;
}

/* A gate may have more columns than what it multiplies, or one. */
static bool same_columns(const placement *p, int a, int b)
{
    return p->list->values[a].columns == p->list->values[b].columns;
}

/* The buffer of an input that may be overwritten, since this is its last use; NIB_NO_ID: none. */
static int reusable_input(const placement *p, nib_train_node *n, size_t at, int out)
{
    const int input = nib__op_inplace_input(n->op, out, n->rows);
    if (input < 0)
        return NIB_NO_ID;
    if (nib__ops[n->op].commutes && !is_last_use(p, n, input, at)) {
        const int other = n->in[0];
        n->in[0] = n->in[1], n->in[1] = other;
    }
    if (!is_last_use(p, n, input, at) || !same_columns(p, n->in[input], n->out[out]))
        return NIB_NO_ID;
    return p->buffer_of[index_of(n->in[input], n->side)];
}

static nib_status assign_output(placement *p, nib_train_node *n, size_t at, int out, nib_err *err)
{
    const nib_step_value *value = &p->list->values[n->out[out]];
    int *buffer = &p->buffer_of[index_of(n->out[out], n->side)];
    if (*buffer != NIB_NO_ID) /* changed in place */
        return NIB_OK;
    *buffer = reusable_input(p, n, at, out);
    if (*buffer != NIB_NO_ID)
        return NIB_OK;
    if (nib__ops[n->op].always_inplace && nib__op_inplace_input(n->op, out, n->rows) >= 0)
        return nib__fail(err, NIB_FAILED, "an input of %s is read again after it is overwritten",
                         nib__op_names[n->op]);
    return add_buffer(p, n->side, value, at, buffer, err);
}

/* Replaces a node's value id by its buffer, and frees the buffer's slot after its last use. */
static void use_buffer(placement *p, int *value, int side, size_t at, const nib_train_node *n)
{
    const size_t i = index_of(*value, side);
    const int buffer = p->buffer_of[i];
    bool still_used = p->last[i] != at;
    for (int j = 0; j < NIB_TRAINING_OUTPUTS; j++) /* an output took the buffer over */
        still_used =
            still_used || (n->out[j] >= 0 && p->buffer_of[index_of(n->out[j], n->side)] == buffer &&
                           p->last[index_of(n->out[j], n->side)] != at);
    p->buffers[buffer].last[1] = at;
    if (at < p->list->forward_end)
        p->buffers[buffer].last[0] = at;
    if (!still_used && p->slot_of[buffer] != NIB_NO_ID) {
        slot *s = &p->slots[p->slot_of[buffer]];
        s->waits = nib__ops[n->op].gathers;
        s->taken = s->waits;
    }
    *value = buffer;
}

/* Frees the slots that waited for the end of a chain. */
static void end_waits(placement *p)
{
    for (size_t i = 0; i < p->slot_count; i++)
        if (p->slots[i].waits)
            p->slots[i].taken = p->slots[i].waits = false;
}

static nib_status assign_node(placement *p, size_t at, nib_err *err)
{
    nib_train_node *n = &p->list->nodes[at];
    if (!nib__ops[n->op].by_tokens)
        end_waits(p);
    for (int i = 0; i < NIB_TRAINING_OUTPUTS; i++)
        if (n->out[i] >= 0)
            NIB_TRY(assign_output(p, n, at, i, err));
    const nib_train_node of_values = *n;
    for (int i = 0; i < NIB_TRAINING_INPUTS; i++)
        if (n->in[i] >= 0)
            use_buffer(p, &n->in[i], side_read(n), at, &of_values);
    for (int i = 0; i < NIB_TRAINING_OUTPUTS; i++)
        if (n->out[i] >= 0)
            use_buffer(p, &n->out[i], n->side, at, &of_values);
    return NIB_OK;
}

static nib_status open_placement(placement *p, nib_err *err)
{
    const size_t count = p->list->value_count * NIB_SIDE_COUNT;
    p->last = nib__arena_take(&p->step->arena, count, sizeof *p->last);
    p->buffer_of = nib__arena_take(&p->step->arena, count, sizeof *p->buffer_of);
    if (p->last == NULL || p->buffer_of == NULL)
        return nib__fail_memory(err, count * sizeof *p->last, "a training step");
    for (size_t i = 0; i < count; i++)
        p->buffer_of[i] = NIB_NO_ID;
    find_last(p);
    return NIB_OK;
}

/* The buffer of a loss, kept until the list has run, because the loss is read then. NIB_NO_ID: the
 * step has no such loss. */
static int keep_loss(placement *p, int value)
{
    if (value == NIB_NO_ID)
        return NIB_NO_ID;
    const int buffer = p->buffer_of[index_of(value, NIB_SIDE_CPU)];
    p->buffers[buffer].last[0] = p->buffers[buffer].last[1] = p->list->count;
    return buffer;
}

static nib_status assign_all(placement *p, nib_err *err)
{
    NIB_TRY(open_placement(p, err));
    for (size_t i = 0; i < p->list->count; i++)
        NIB_TRY(assign_node(p, i, err));
    p->step->loss = keep_loss(p, p->list->loss);
    p->step->draft_loss = keep_loss(p, p->list->draft_loss);
    return NIB_OK;
}

nib_status nib__step_assign_buffers(nib_step_list *l, nib_err *err)
{
    nib_step *s = l->step;
    placement p = {.list = l, .step = s};
    const nib_status status = assign_all(&p, err);
    s->buffer_count = p.buffer_count;
    s->buffers =
        nib__arena_settle(&s->arena, l->allocator, p.buffers, p.buffer_count, sizeof *s->buffers);
    nib__release(l->allocator, p.slots);
    nib__release(l->allocator, p.slot_of);
    NIB_TRY(status);
    s->count = l->count;
    s->forward_end = l->forward_end;
    s->nodes = nib__arena_settle(&s->arena, l->allocator, l->nodes, l->count, sizeof *s->nodes);
    l->nodes = NULL;
    if (s->buffers == NULL || s->nodes == NULL)
        return nib__fail_memory(err, l->count * sizeof *s->nodes, "a training step");
    return NIB_OK;
}

/* ---- regions ---- */

/* Enlarges the regions for a site's products, on their side. */
static void size_site(nib_step *s, size_t site)
{
    const int side = nib__step_side(s, site);
    const nib_site *of = &s->net->sites[site];
    uint64_t *bytes = s->sides[side].region_bytes;
    for (int p = 0; p < NIB_PRODUCTS; p++) {
        uint64_t input;
        nib__product_input(&s->products[site][p],
                           nib__product_rows(s->plan->layers[site].layer, p, s->m), NULL, &input);
        bytes[NIB_REGION_INPUT] = larger(bytes[NIB_REGION_INPUT], input);
    }
    /* the matrix is x, dy or the weight */
    const int64_t parts = nib__ceil_div(nib__max(s->m, of->n), NIB_TRAIN_ROWS) + 1;
    bytes[NIB_REGION_AMAX] = larger(bytes[NIB_REGION_AMAX], (uint64_t)parts * sizeof(float));
    if (side == NIB_SIDE_CPU)
        return;
    bytes[NIB_REGION_WEIGHT] =
        larger(bytes[NIB_REGION_WEIGHT], (uint64_t)(of->n * of->k) * sizeof(float));
    uint64_t *observed = &s->sides[NIB_SIDE_CPU].region_bytes[NIB_REGION_OBSERVED];
    *observed = larger(*observed, (uint64_t)(s->m * nib__max(of->n, of->k)) * sizeof(float));
}

void nib__step_size_regions(nib_step *s)
{
    const nib_site *head = nib__network_head(s->net);
    uint64_t *here = s->sides[NIB_SIDE_CPU].region_bytes;
    here[NIB_REGION_STATE] = nib__step_state_bytes(s);
    if (s->net->config.trains_head) /* of the output layer, which has two gradients */
        here[NIB_REGION_WEIGHT] = (uint64_t)(head->n * head->k) * sizeof(float);
    for (size_t i = 1; i < s->net->site_count; i++)
        size_site(s, i);
}
