/* SPDX-License-Identifier: Apache-2.0
 *
 * The products of a mixture's experts and the preparation of their operands, for all experts of a
 * layer in one round of the workers. A piece is the rows of one expert that a product or a cast
 * takes together: for y and dx all rows of the expert; for dW those of a block of NIB_SUM_BLOCK
 * tokens of the micro-batch, whose sums are added ascending; for a bias those of NIB_TRAIN_ROWS
 * tokens. The piece of a head is the columns of the head in all tokens, for every product.
 */
#include "step_experts.h"

#include "cast.h"
#include "operation.h"

enum {
    PIECE_STEP = 64, /* memory of a piece is counted in steps of so many rows */
    TILE = 12,       /* rows of a tile in linear_float.h; affects speed only */
    ROWS = 240       /* rows of a part of a product, likewise */
};

static uint64_t aligned(uint64_t bytes) { return (bytes + 63) & ~UINT64_C(63); }
static uint64_t larger(uint64_t a, uint64_t b) { return a > b ? a : b; }

size_t nib__step_expert_site(const nib_network *net, const nib_graph_node *of, int64_t e)
{
    return net->graph.weights[of->weight + e * of->weight_step].index;
}

/* ---- memory ---- */

static int64_t blocks_of(int64_t m, int64_t block) { return nib__ceil_div(m, block); }

/* The most steps of memory that the pieces of a layer take, however tokens choose. */
static uint64_t most_steps(const nib_step *s, const nib_graph_node *of, int64_t block)
{
    return (uint64_t)(s->m * nib__step_expert_share(of) / PIECE_STEP +
                      nib__step_expert_count(of) * blocks_of(s->m, block));
}

static nib_product of_rows(const nib_product *p, int which, int64_t count)
{
    nib_product of = *p;
    if (which == NIB_PRODUCT_DW)
        of.shape.k = count;
    return of;
}

/* The encoded x side of a piece at `at`, and its bytes. */
static nib_input input_of(const nib_product *p, int which, const nib_layer *layer, int64_t count,
                          char *at, uint64_t *bytes)
{
    const nib_product of = of_rows(p, which, count);
    return nib__product_input(&of, which == NIB_PRODUCT_DW ? layer->n : count, at, bytes);
}

static uint64_t packed_bytes(const nib_product *p, int64_t count)
{
    const nib_product of = of_rows(p, NIB_PRODUCT_DW, count);
    return aligned(nib__cast_bytes(of.row, &of.shape));
}

uint64_t nib__step_experts_packed_bytes(const nib_step *s, const nib_graph_node *of)
{
    uint64_t most = 0;
    for (int64_t e = 0; e < nib__step_expert_count(of); e++)
        most = larger(
            most, packed_bytes(&s->products[nib__step_expert_site(s->net, of, e)][NIB_PRODUCT_DW],
                               PIECE_STEP));
    return most * most_steps(s, of, NIB_SUM_BLOCK);
}

/* Enlarges the regions for a layer's experts. */
static void size_regions(nib_step *s, const nib_graph_node *of)
{
    uint64_t *bytes = s->sides[NIB_SIDE_CPU].region_bytes;
    const int64_t experts = nib__step_expert_count(of);
    for (int64_t e = 0; e < experts; e++) {
        const size_t site = nib__step_expert_site(s->net, of, e);
        for (int p = 0; p < NIB_PRODUCTS; p++) {
            uint64_t input;
            const bool dw = p == NIB_PRODUCT_DW;
            input_of(&s->products[site][p], p, s->plan->layers[site].layer, PIECE_STEP, NULL,
                     &input);
            bytes[NIB_REGION_INPUT] =
                larger(bytes[NIB_REGION_INPUT],
                       aligned(input) * most_steps(s, of, dw ? NIB_SUM_BLOCK : s->m));
        }
    }
    bytes[NIB_REGION_AMAX] =
        larger(bytes[NIB_REGION_AMAX], (uint64_t)(experts * s->experts.amax_step) * sizeof(float));
}

uint64_t nib__step_experts_scratch(const nib_step *s)
{
    const nib_graph *g = &s->net->graph;
    uint64_t most = 0;
    for (size_t i = 0; i < g->node_count; i++) {
        const nib_graph_weight *w = &g->weights[g->nodes[i].weight >= 0 ? g->nodes[i].weight : 0];
        const int64_t rows = s->m > NIB_SUM_BLOCK ? ROWS : 1; /* a bias is a row of n */
        if (g->nodes[i].op == NIB_OP_LINEAR_EXPERTS)
            most = larger(most, (uint64_t)(nib__max(rows * w->k, w->n)) * sizeof(float));
    }
    return aligned(most);
}

nib_status nib__step_experts_open(nib_step *s, nib_err *err)
{
    const nib_load *load = &s->params->load;
    const nib_graph *g = &s->net->graph;
    const size_t experts = (size_t)load->experts;
    nib_step_mixtures *x = &s->experts;
    x->sequences = load->over == NIB_BALANCE_SEQUENCES ? s->options.batch : 1;
    x->sequence = s->m / x->sequences;
    const size_t blocks = (size_t)(x->sequences * blocks_of(x->sequence, NIB_TRAIN_ROWS)),
                 groups = (size_t)(load->layers * x->sequences);
    int64_t most = 0; /* experts or heads of a layer */
    for (size_t i = 0; i < g->node_count; i++)
        if (nib__step_of_experts(&g->nodes[i]))
            most = nib__max(most, nib__step_expert_count(&g->nodes[i]));
    if (most == 0)
        return NIB_OK;
    x->amax_step = blocks_of(s->m, NIB_TRAIN_ROWS) + 1;
    x->pieces = (size_t)(most * blocks_of(s->m, NIB_SUM_BLOCK));
    x->load = nib__arena_take(&s->arena, groups * experts, sizeof *x->load);
    x->group_counts = nib__arena_take(&s->arena, groups * experts, sizeof *x->group_counts);
    x->group_sums = nib__arena_take(&s->arena, groups * experts, sizeof *x->group_sums);
    x->sums = nib__arena_take(&s->arena, blocks * experts, sizeof *x->sums);
    x->counts = nib__arena_take(&s->arena, blocks * experts, sizeof *x->counts);
    x->args = nib__arena_take(&s->arena, x->pieces, sizeof *x->args);
    x->parts = nib__arena_take(&s->arena, x->pieces, sizeof *x->parts);
    x->first = nib__arena_take(&s->arena, x->pieces + 1, sizeof *x->first);
    if (x->load == NULL || x->group_counts == NULL || x->group_sums == NULL || x->sums == NULL ||
        x->counts == NULL || x->args == NULL || x->parts == NULL || x->first == NULL)
        return nib__fail_memory(err, x->pieces * sizeof *x->args, "the experts of a micro-batch");
    for (size_t i = 0; i < g->node_count; i++)
        if (nib__step_of_experts(&g->nodes[i]))
            size_regions(s, &g->nodes[i]);
    return NIB_OK;
}

/* ---- pieces ---- */

/* An operation on the rows of all experts of a layer, or of all heads. */
typedef struct work {
    nib_step *s;
    const nib_train_node *n;
    nib_expert_rows order; /* of experts */
    bool heads;
    int64_t count, share; /* experts or heads, and rows of a token */
    int which;            /* the product */
} work;

/* The rows of an expert, or those of one block of tokens, or a head. */
typedef struct piece {
    size_t site;
    int64_t expert, first, end; /* of a head: tokens */
    const nib_product *product;
    const nib_layer *layer;
    uint64_t at; /* bytes before this piece's */
} piece;

/* Iterates over the pieces with rows, expert by expert: starts as {0}, false at the end. `bytes`:
 * of a piece. */
typedef uint64_t (*piece_bytes)(const work *w, const piece *p);

/* The rows of the next piece of an expert. False: there are none. */
static bool next_rows(const work *w, int64_t block, piece *p)
{
    const int32_t *first = w->order.first;
    const int64_t begin = p->end;
    while (p->expert < w->count && begin == first[p->expert + 1])
        p->expert++;
    if (p->expert == w->count)
        return false;
    p->first = p->end = begin;
    const int64_t limit = (w->order.token[begin] / block + 1) * block;
    if (limit >= w->s->m)
        p->end = first[p->expert + 1];
    while (p->end < first[p->expert + 1] && w->order.token[p->end] < limit)
        p->end++;
    return true;
}

static bool next_head(const work *w, piece *p)
{
    p->expert += p->product != NULL;
    p->end = w->s->m;
    return p->expert < w->count;
}

static bool next_piece(const work *w, int64_t block, piece_bytes bytes, piece *p)
{
    if (p->product != NULL && bytes != NULL)
        p->at += aligned(bytes(w, p));
    if (w->heads ? !next_head(w, p) : !next_rows(w, block, p))
        return false;
    p->site = nib__step_expert_site(w->s->net, w->n->of, p->expert);
    p->product = &w->s->products[p->site][w->which];
    p->layer = w->s->plan->layers[p->site].layer;
    return true;
}

static uint64_t bytes_of_input(const work *w, const piece *p)
{
    uint64_t bytes;
    input_of(p->product, w->which, p->layer, p->end - p->first, NULL, &bytes);
    return bytes;
}

static uint64_t bytes_of_packed(const work *w, const piece *p)
{
    (void)w;
    return packed_bytes(p->product, p->end - p->first);
}

/* Tokens of a block of the product. */
static int64_t block_of(const work *w)
{
    return w->which == NIB_PRODUCT_DW ? NIB_SUM_BLOCK : w->s->m;
}

/* Columns of a row of an expert's or head's value. */
static int64_t width_of(const work *w, int buffer) { return nib__step_ld(w->s, buffer) / w->share; }

/* Elements from one row of a piece to the next. */
static int64_t ld_of(const work *w, int buffer)
{
    return w->heads ? nib__step_ld(w->s, buffer) : width_of(w, buffer);
}

/* Row p->first + `row` of a piece. */
static float *rows_at(const work *w, const piece *p, int buffer, int64_t row)
{
    return nib__step_rows(w->s, buffer) + (p->first + row) * ld_of(w, buffer) +
           (w->heads ? p->expert * width_of(w, buffer) : 0);
}

/* Copies the columns of a piece's rows r0..r1 after the first `from_used`, to after `to_used`. */
static void copy_rest(const work *w, const piece *p, int from, int64_t from_used, int to,
                      int64_t to_used, int64_t r0, int64_t r1)
{
    const int64_t count = width_of(w, to) - to_used;
    for (int64_t r = r0; r < r1 && count > 0; r++)
        memcpy(rows_at(w, p, to, r) + to_used, rows_at(w, p, from, r) + from_used,
               (size_t)count * sizeof(float));
}

static float *amax_at(const work *w, int64_t expert)
{
    return (float *)(void *)nib__step_region(w->s, NIB_SIDE_CPU, NIB_REGION_AMAX) +
           expert * w->s->experts.amax_step;
}

/* ---- rows of the table on pieces ---- */

static void job_parts(void *ctx, int worker, int64_t begin, int64_t end)
{
    const nib_step *s = ctx;
    const nib_step_mixtures *x = &s->experts;
    size_t i = 0;
    for (int64_t at = begin; at < end; at++) {
        while (x->first[i + 1] <= at)
            i++;
        const nib_step_part *p = &x->parts[i];
        const int64_t from = (at - x->first[i]) * p->step;
        nib__ops[p->row->op].run(p->row, p->args, from, nib__min(from + p->step, p->end),
                                 s->workers.scratch + (uint64_t)worker * s->workers.scratch_bytes);
    }
}

static void add_part(nib_step *s, const nib_kernel *row, int64_t step, int64_t end)
{
    nib_step_mixtures *x = &s->experts;
    x->parts[x->count] = (nib_step_part){row, &x->args[x->count], step, end};
    x->first[x->count + 1] = x->first[x->count] + nib__ceil_div(end, step);
    x->count++;
}

static void run_parts(nib_step *s)
{
    nib_step_mixtures *x = &s->experts;
    if (x->count > 0)
        nib__pool_run(s->engine->pool, x->first[x->count], 1, false, job_parts, s);
    x->count = 0;
}

/* The largest magnitude of each expert's rows, if one scale covers them. */
static void run_amax(work *w)
{
    for (int pass = 0; pass < 2; pass++) {
        piece p = {0};
        while (next_piece(w, w->s->m, NULL, &p)) {
            const int64_t count = p.end - p.first, parts = nib__ceil_div(count, NIB_TRAIN_ROWS);
            const int64_t width = w->n->columns, ld = ld_of(w, w->n->in[0]);
            float *out = amax_at(w, p.expert);
            nib_amax *a = &w->s->experts.args[w->s->experts.count].amax;
            if (p.product->amax == NULL)
                continue;
            *a = pass == 0 ? (nib_amax){rows_at(w, &p, w->n->in[0], 0), count, width, ld, out + 1}
                           : (nib_amax){out + 1, 1, parts, parts, out};
            add_part(w->s, p.product->amax, 1, pass == 0 ? parts : 1);
        }
        run_parts(w->s);
    }
}

static void run_quant(work *w)
{
    enum { STEP = 64 };
    char *region = nib__step_region(w->s, NIB_SIDE_CPU, NIB_REGION_INPUT);
    piece p = {0};
    while (next_piece(w, block_of(w), bytes_of_input, &p)) {
        const nib_input x =
            input_of(p.product, w->which, p.layer, p.end - p.first, region + p.at, NULL);
        if (p.product->quant == NULL)
            continue;
        w->s->experts.args[w->s->experts.count].quant =
            nib__product_quant_args(p.product, rows_at(w, &p, w->n->in[0], 0),
                                    ld_of(w, w->n->in[0]), amax_at(w, p.expert), &x);
        add_part(w->s, p.product->quant, STEP, x.m);
    }
    run_parts(w->s);
}

/* Packs the rows for the gradients of the weights. */
static void run_cast(work *w)
{
    enum { STEP = 64 };
    piece p = {0};
    while (next_piece(w, NIB_SUM_BLOCK, bytes_of_packed, &p)) {
        nib_step_args *args = &w->s->experts.args[w->s->experts.count];
        args->shape = of_rows(p.product, NIB_PRODUCT_DW, p.end - p.first).shape;
        args->cast =
            nib__product_cast_args(p.product, rows_at(w, &p, w->n->in[0], 0), ld_of(w, w->n->in[0]),
                                   amax_at(w, p.expert), nib__step_at(w->s, w->n->out[0]) + p.at);
        args->cast.w = &args->shape;
        add_part(w->s, p.product->cast, STEP, args->shape.n);
    }
    run_parts(w->s);
}

/* ---- products ---- */

/* y or dx of one piece. */
static nib_input encoded(const work *w, const piece *p)
{
    nib_input x = input_of(p->product, w->which, p->layer, p->end - p->first,
                           nib__step_region(w->s, NIB_SIDE_CPU, NIB_REGION_INPUT) + p->at, NULL);
    if (p->product->quant == NULL)
        x.f32 = rows_at(w, p, w->n->in[0], 0), x.ld = ld_of(w, w->n->in[0]);
    return x;
}

static const float *bias_of(const work *w, size_t site)
{
    const size_t bias = w->s->params->bias[site];
    return w->which == NIB_PRODUCT_Y && bias != SIZE_MAX
               ? w->s->weights + w->s->params->items[bias].at
               : NULL;
}

/* Part `part` of `parts` of `count` rows, in whole tiles. */
static int64_t first_row(int64_t count, int64_t part, int64_t parts)
{
    return nib__min(count, part * nib__ceil_div(count, TILE) / parts * TILE);
}

static int64_t parts_of(int64_t count) { return nib__ceil_div(count, ROWS); }

typedef struct product_job {
    work *w;
    int64_t column_parts; /* of the outputs, if there are fewer parts of rows than workers */
} product_job;

static void *scratch_of(const nib_step *s, int worker)
{
    return s->workers.scratch + (uint64_t)worker * s->workers.scratch_bytes;
}

static void run_part(const product_job *j, const piece *p, int64_t index, void *scratch)
{
    const work *w = j->w;
    const int64_t count = p->end - p->first, parts = parts_of(count);
    const int64_t part = index / j->column_parts, column = index % j->column_parts;
    const int64_t r0 = first_row(count, part, parts), r1 = first_row(count, part + 1, parts);
    const int64_t n = p->product->shape.n, step = nib__max(1, p->product->row->n_step);
    const int64_t steps = nib__ceil_div(n, step);
    const int64_t n0 = column * steps / j->column_parts * step,
                  n1 = nib__min(n, (column + 1) * steps / j->column_parts * step);
    const nib_input all = encoded(w, p);
    const nib_input x = nib__product_input_rows(p->product, &all, r0, r1);
    if (r0 < r1 && n0 < n1)
        nib__product_part(p->product, &x, w->s->packed[p->site][w->which], bias_of(w, p->site),
                          rows_at(w, p, w->n->out[0], r0), ld_of(w, w->n->out[0]), n0, n1, scratch);
    if (column == 0)
        copy_rest(w, p, w->n->in[0], p->product->shape.k, w->n->out[0], n, r0, r1);
}

/* Parts are numbered piece by piece. */
static void job_product(void *ctx, int worker, int64_t begin, int64_t end)
{
    const product_job *j = ctx;
    piece p = {0};
    int64_t first = 0, next = 0; /* parts of this piece */
    for (int64_t i = begin; i < end; i++) {
        while (next <= i) {
            next_piece(j->w, j->w->s->m, bytes_of_input, &p);
            first = next;
            next += parts_of(p.end - p.first) * j->column_parts;
        }
        run_part(j, &p, i - first, scratch_of(j->w->s, worker));
    }
}

static void run_product(work *w)
{
    product_job job = {w, 1};
    int64_t parts = 0;
    for (piece p = {0}; next_piece(w, w->s->m, NULL, &p);)
        parts += parts_of(p.end - p.first);
    const int64_t threads = nib__pool_threads(w->s->engine->pool);
    job.column_parts = nib__max(1, threads / nib__max(1, parts));
    nib__pool_run(w->s->engine->pool, parts * job.column_parts, 1, true, job_product, &job);
}

/* ---- gradients of weights and biases ---- */

/* Adds, or first copies, `count` values. */
static void add_values(float *to, const float *from, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        to[i] += from[i];
}

/* Where sums of later blocks go before they are added. */
static float *sums_of(const nib_step *s, int worker)
{
    return (float *)(void *)((char *)scratch_of(s, worker) + s->experts.scratch_at);
}

/* Rows r0..r1 of the gradient of an expert's weight, [n][k]. */
static void run_dw_rows(const work *w, int64_t expert, int64_t r0, int64_t r1, int worker)
{
    const nib_step *s = w->s;
    const size_t site = nib__step_expert_site(s->net, w->n->of, expert);
    const nib_param *param = &s->params->items[s->params->weight[site]];
    const int64_t k = param->columns, count = (r1 - r0) * k;
    float *const to = s->gradients + param->at + r0 * k, *const sums = sums_of(s, worker);
    char *region = nib__step_region(s, NIB_SIDE_CPU, NIB_REGION_INPUT);
    bool any = false;
    uint64_t packed_at = 0;
    piece p = {0};
    while (next_piece(w, NIB_SUM_BLOCK, bytes_of_input, &p)) {
        const uint64_t before = packed_at;
        packed_at += bytes_of_packed(w, &p);
        if (p.expert != expert)
            continue;
        const nib_product block = of_rows(p.product, NIB_PRODUCT_DW, p.end - p.first);
        const nib_input all = input_of(p.product, NIB_PRODUCT_DW, p.layer, p.end - p.first,
                                       region + p.at, NULL),
                        x = nib__product_input_rows(&block, &all, r0, r1);
        nib__product_part(&block, &x, nib__step_at(s, w->n->in[1]) + before, NULL, any ? sums : to,
                          k, 0, k, scratch_of(s, worker));
        if (any)
            add_values(to, sums, count);
        any = true;
    }
    if (!any)
        memset(to, 0, (size_t)count * sizeof *to);
}

static void job_dw(void *ctx, int worker, int64_t begin, int64_t end)
{
    const work *w = ctx;
    const size_t site = nib__step_expert_site(w->s->net, w->n->of, 0);
    const int64_t n = w->s->net->sites[site].n, parts = parts_of(n);
    for (int64_t i = begin; i < end; i++)
        run_dw_rows(w, i / parts, first_row(n, i % parts, parts),
                    first_row(n, i % parts + 1, parts), worker);
}

static void run_dw(work *w)
{
    const size_t site = nib__step_expert_site(w->s->net, w->n->of, 0);
    nib__pool_run(w->s->engine->pool, w->count * parts_of(w->s->net->sites[site].n), 1, true,
                  job_dw, w);
}

static void job_bias(void *ctx, int worker, int64_t begin, int64_t end)
{
    const work *w = ctx;
    const nib_step *s = w->s;
    piece p = {0};
    bool more = next_piece(w, NIB_TRAIN_ROWS, NULL, &p);
    for (int64_t e = begin; e < end; e++) {
        const size_t bias = s->params->bias[nib__step_expert_site(s->net, w->n->of, e)];
        bool any = false;
        while (more && p.expert < e)
            more = next_piece(w, NIB_TRAIN_ROWS, NULL, &p);
        if (bias == SIZE_MAX)
            continue;
        float *const to = s->gradients + s->params->items[bias].at, *const sums =
                                                                        sums_of(s, worker);
        const int64_t n = s->params->items[bias].columns;
        for (; more && p.expert == e; more = next_piece(w, NIB_TRAIN_ROWS, NULL, &p)) {
            const nib_bias_dw a = {rows_at(w, &p, w->n->in[0], 0), any ? sums : to, p.end - p.first,
                                   n, ld_of(w, w->n->in[0])};
            w->n->row->run.bias_dw(&a, 0, n);
            if (any)
                add_values(to, sums, n);
            any = true;
        }
        if (!any)
            memset(to, 0, (size_t)n * sizeof *to);
    }
}

/* ---- quantization-aware training ---- */

static uint8_t *mask_at(const work *w, const piece *p, int buffer)
{
    const int64_t row = p->first + (w->heads ? p->expert * w->s->m : 0);
    return (uint8_t *)nib__step_at(w->s, buffer) + row * nib__fake_mask_ld(p->layer->k);
}

static void run_fake(work *w)
{
    nib_step *s = w->s;
    const int in = w->n->in[0], out = w->n->out[0];
    for (piece p = {0}; next_piece(w, s->m, NULL, &p);) {
        const nib_step_fake *f = nib__step_fake_at(s, p.site);
        const bool rounds = f != NULL && f->act != NULL;
        const int64_t count = p.end - p.first, rounded = rounds ? p.layer->k : 0;
        uint8_t *mask = mask_at(w, &p, w->n->out[1]);
        if (rounds)
            nib__step_fake_input(s, p.site, count, rows_at(w, &p, in, 0), ld_of(w, in),
                                 nib__step_region(s, NIB_SIDE_CPU, NIB_REGION_INPUT),
                                 rows_at(w, &p, out, 0), ld_of(w, out), mask);
        else
            memset(mask, UINT8_MAX, (size_t)(count * nib__fake_mask_ld(p.layer->k)));
        copy_rest(w, &p, in, rounded, out, rounded, 0, count);
    }
}

static void run_fake_dx(work *w)
{
    nib_step *s = w->s;
    for (piece p = {0}; next_piece(w, s->m, NULL, &p);)
        nib__step_fake_dx(s, p.site, p.end - p.first, mask_at(w, &p, w->n->in[1]),
                          rows_at(w, &p, w->n->out[0], 0), ld_of(w, w->n->out[0]));
}

static void run_fake_dw(const work *w)
{
    nib_step *s = w->s;
    for (int64_t e = 0; e < w->count; e++) {
        const size_t site = nib__step_expert_site(s->net, w->n->of, e);
        const uint64_t at = s->params->items[s->params->weight[site]].at;
        if (nib__step_fake_at(s, site) != NULL)
            nib__step_fake_dw(s, site, s->weights + at, s->gradients + at);
    }
}

/* ---- an operation ---- */

void nib__step_experts(nib_step *s, const nib_train_node *n)
{
    static const struct {
        nib_op op;
        int order; /* the input that is the order of the rows; -1: none */
        int which; /* the product; -1: the node's */
    } of[] = {{NIB_OP_LINEAR_EXPERTS, 1, NIB_PRODUCT_Y},
              {NIB_OP_LINEAR_HEADS, -1, NIB_PRODUCT_Y},
              {NIB_OP_LINEAR_DX, 1, NIB_PRODUCT_DX},
              {NIB_OP_LINEAR_DW, 2, NIB_PRODUCT_DW},
              {NIB_OP_CAST_T, 1, NIB_PRODUCT_DW},
              {NIB_OP_AMAX, 1, -1},
              {NIB_OP_QUANT, 1, -1},
              {NIB_OP_QUANT_T, 1, -1},
              {NIB_OP_BIAS_DW, 1, -1},
              {NIB_OP_FAKE, 1, -1},
              {NIB_OP_FAKE_DX, 2, -1},
              {NIB_OP_FAKE_DW, -1, -1}};
    size_t i = 0;
    while (i < COUNT(of) - 1 && of[i].op != n->op)
        i++;
    work w = {.s = s,
              .n = n,
              .heads = n->of->op == NIB_OP_LINEAR_HEADS,
              .count = nib__step_expert_count(n->of),
              .share = nib__step_expert_share(n->of),
              .which = of[i].which >= 0 ? of[i].which : n->product};
    if (of[i].order >= 0 && !w.heads)
        w.order = nib__step_order(s, n->in[of[i].order], n->of->routing);
    switch (n->op) {
    case NIB_OP_AMAX: run_amax(&w); break;
    case NIB_OP_QUANT:
    case NIB_OP_QUANT_T: run_quant(&w); break;
    case NIB_OP_CAST_T: run_cast(&w); break;
    case NIB_OP_LINEAR_DW: run_dw(&w); break;
    case NIB_OP_BIAS_DW: nib__pool_run(s->engine->pool, w.count, 1, false, job_bias, &w); break;
    case NIB_OP_FAKE: run_fake(&w); break;
    case NIB_OP_FAKE_DX: run_fake_dx(&w); break;
    case NIB_OP_FAKE_DW: run_fake_dw(&w); break;
    default: run_product(&w); break;
    }
}
