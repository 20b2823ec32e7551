/* SPDX-License-Identifier: Apache-2.0
 *
 * Where the operations of a micro-batch find their buffers: which sides hold one, the moves between
 * them, and how large each is on either side.
 */
#include "cast.h"
#include "step.h"

/* ---- what an operation touches ---- */

/* f32 buffers that an operation reads and writes, each of its layer. */
typedef struct touched {
    int buffers[4];
    int count;
} touched;

static void touch(touched *t, int buffer) { t->buffers[t->count++] = buffer; }

/* Operands in their forms lie where they are read, and what is not f32 rows is the CPU's. */
static void touches(const nib_step *s, const nib_train_node *n, touched *reads, touched *writes)
{
    *reads = *writes = (touched){.count = 0};
    switch (n->op) {
    case NIB_OP_EMBED: touch(writes, n->to); break;
    case NIB_OP_LINEAR:
    case NIB_OP_LINEAR_DX:
        if (s->products[n->site][n->product].quant == NULL)
            touch(reads, n->from);
        touch(writes, n->to);
        break;
    case NIB_OP_LINEAR_DW:
    case NIB_OP_FAKE_DW: break;
    case NIB_OP_ROPE:
    case NIB_OP_FAKE_DX: touch(reads, n->to), touch(writes, n->to); break;
    case NIB_OP_COPY:
    case NIB_OP_NORM_DW: touch(reads, n->from), touch(reads, n->other); break;
    case NIB_OP_SWIGLU:
        touch(reads, n->from), touch(reads, n->other);
        touch(writes, n->to);
        break;
    case NIB_OP_ADD:
        touch(reads, n->from), touch(reads, n->to);
        touch(writes, n->to);
        break;
    case NIB_OP_NORM_DX:
        touch(reads, n->from), touch(reads, n->other), touch(reads, n->to);
        touch(writes, n->to);
        break;
    case NIB_OP_SWIGLU_DX:
        touch(reads, n->from), touch(reads, NIB_KEPT_GATE), touch(reads, NIB_KEPT_UP);
        touch(writes, NIB_KEPT_GATE), touch(writes, NIB_KEPT_UP);
        break;
    case NIB_OP_ATTN_DX:
        touch(reads, n->from), touch(reads, NIB_KEPT_Q), touch(reads, NIB_KEPT_ATTN);
        touch(writes, NIB_HELD_DQ), touch(writes, NIB_HELD_DK), touch(writes, NIB_HELD_DV);
        break;
    case NIB_OP_XENT: touch(reads, n->from), touch(writes, n->from); break;
    case NIB_OP_NORM:
    case NIB_OP_FAKE:
    case NIB_OP_ATTN:
        touch(reads, n->from);
        touch(writes, n->to);
        break;
    default: touch(reads, n->from); break; /* AMAX, quantizers, casts, BIAS_DW, EMBED_DW */
    }
}

static bool has(const touched *t, int buffer)
{
    for (int i = 0; i < t->count; i++)
        if (t->buffers[i] == buffer)
            return true;
    return false;
}

bool nib__step_reads(const nib_step *s, const nib_train_node *n, int buffer)
{
    touched reads, writes;
    touches(s, n, &reads, &writes);
    return has(&reads, buffer);
}

bool nib__step_writes(const nib_step *s, const nib_train_node *n, int buffer)
{
    touched reads, writes;
    touches(s, n, &reads, &writes);
    return has(&writes, buffer);
}

/* The layer whose buffer the node means: `next` is of the one that it writes. */
static int64_t layer_of(const nib_train_node *n, int buffer)
{
    return n->layer + (n->next && buffer == n->to);
}

/* ---- operations and the moves before them ---- */

static uint8_t *held_at(const nib_step *s, const nib_train_node *n, int buffer)
{
    const int64_t layers = s->net->config.layers + 1;
    const int64_t layer = nib__step_is_kept(s, buffer) ? layer_of(n, buffer) : 0;
    return &s->held[buffer * layers + layer];
}

bool nib__step_is_there(const nib_step *s, const nib_train_node *n, int buffer)
{
    return *held_at(s, n, buffer) == 1 << NIB_SIDE_GPU;
}

static nib_status append(nib_step *s, const nib_train_node *node, nib_err *err)
{
    if (s->count == s->capacity)
        return nib__fail(err, NIB_FAILED, "the list of operations is full at %zu", s->capacity);
    s->nodes[s->count++] = *node;
    return NIB_OK;
}

/* The device has buffers of those that its operations touch. */
static void need(nib_step *s, int side, int buffer)
{
    if (side == NIB_SIDE_GPU)
        s->sides[side].each[buffer] = s->sides[NIB_SIDE_CPU].each[buffer];
}

nib_status nib__step_add(nib_step *s, const nib_train_node *node, nib_err *err)
{
    touched reads, writes;
    touches(s, node, &reads, &writes);
    for (int i = 0; i < reads.count; i++) {
        const int buffer = reads.buffers[i];
        uint8_t *held = held_at(s, node, buffer);
        const nib_train_node move = {.op = NIB_OP_MOVE,
                                     .side = node->side,
                                     .site = SIZE_MAX,
                                     .param = SIZE_MAX,
                                     .layer = layer_of(node, buffer),
                                     .from = buffer,
                                     .to = buffer,
                                     .columns = nib__step_ld(s, node, buffer)};
        need(s, node->side, buffer);
        if ((*held & 1 << node->side) == 0)
            NIB_TRY(append(s, &move, err));
        *held |= (uint8_t)(1 << node->side);
    }
    for (int i = 0; i < writes.count; i++) {
        need(s, node->side, writes.buffers[i]);
        *held_at(s, node, writes.buffers[i]) = (uint8_t)(1 << node->side);
    }
    return append(s, node, err);
}

/* ---- sizes ---- */

static uint64_t larger(uint64_t a, uint64_t b) { return a > b ? a : b; }

void nib__step_place_inputs(nib_step *s)
{
    const bool each = nib__step_keeps_all_inputs(s);
    uint64_t used[NIB_SIDE_COUNT] = {0, 0};
    for (size_t i = 1; i < s->net->site_count; i++) {
        const int side = nib__step_side(s, i);
        const nib_product *p = &s->products[i][NIB_PRODUCT_DW];
        uint64_t *most = &s->sides[side].each[NIB_KEPT_INPUTS];
        if (!each && nib__graph_begins_layer(&s->net->graph, i))
            used[NIB_SIDE_CPU] = used[NIB_SIDE_GPU] = 0; /* layers take turns */
        if (nib__step_shares_input(s, i) && nib__step_same_form(s, i - 1, i, NIB_PRODUCT_DW)) {
            s->input_at[i] = s->input_at[i - 1];
            continue;
        }
        s->input_at[i] = used[side];
        used[side] += (nib__cast_bytes(p->row, &p->shape) + 63) & ~UINT64_C(63);
        if (!each || side == NIB_SIDE_CPU)
            *most = larger(*most, used[side]);
    }
}

/* Buffers of a site's products that only its own side has. */
static void size_site(nib_step *s, size_t site)
{
    const int side = nib__step_side(s, site);
    const nib_site *of = &s->net->sites[site];
    uint64_t *each = s->sides[side].each;
    for (int p = 0; p < NIB_PRODUCTS; p++) {
        uint64_t bytes;
        nib__product_input(&s->products[site][p],
                           nib__product_rows(s->plan->layers[site].layer, p, s->m), NULL, &bytes);
        each[NIB_HELD_INPUT] = larger(each[NIB_HELD_INPUT], bytes);
    }
    /* rows of a matrix whose magnitude is looked for; weights, too */
    const int64_t parts = nib__ceil_div(nib__max(s->m, of->n), NIB_TRAIN_ROWS) + 1;
    each[NIB_HELD_AMAX] = larger(each[NIB_HELD_AMAX], (uint64_t)parts * sizeof(float));
    if (side == NIB_SIDE_GPU)
        each[NIB_HELD_WEIGHT] =
            larger(each[NIB_HELD_WEIGHT], (uint64_t)(of->n * of->k) * sizeof(float));
}

void nib__step_size(nib_step *s)
{
    const nib_config *c = &s->net->config;
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
        s->sides[NIB_SIDE_CPU].each[i] = (uint64_t)columns[i] * (uint64_t)s->m * sizeof(float);
    }
    for (size_t i = 1; i < s->net->site_count; i++)
        size_site(s, i);
}
