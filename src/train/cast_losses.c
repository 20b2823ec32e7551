/* SPDX-License-Identifier: Apache-2.0
 *
 * Counts values that casts saturate or round to 0.
 */
#include "cast_losses.h"

#include "step_experts.h"

#include <inttypes.h>
#include <math.h>

/* A matrix, and whether its scales run along columns: see the three products in train_ops.h. */
typedef struct matrix {
    const float *x; /* [rows][ldx] */
    int64_t rows, width, ldx;
    bool across;
} matrix;

nib_status nib__cast_losses_open(nib_cast_losses *out, nib_trainer *t, nib_err *err)
{
    const size_t threads = (size_t)nib__pool_threads(t->engine->pool),
                 sites = t->model->net.site_count;
    *out = (nib_cast_losses){.trainer = t};
    out->sites = nib__arena_take(&t->arena, sites, sizeof *out->sites);
    out->workers = nib__arena_take(&t->arena, threads, sizeof *out->workers);
    return out->sites && out->workers
               ? NIB_OK
               : nib__fail_memory(err, sites * sizeof *out->sites, "the counts of casts");
}

void nib__cast_losses_close(nib_cast_losses *l)
{
    if (l->trainer)
        l->trainer->step.watch = NULL;
    *l = (nib_cast_losses){0};
}

/* ---- counting ---- */

static const nib_product *product_of(const nib_cast_losses *l, size_t site, int product)
{
    return &l->trainer->step.products[site][product];
}

/* How a side is cast; false: it keeps 16 bits or more. */
static bool form_of(nib_cast_form *out, const nib_product *p, int side)
{
    const nib_code code = p->shape.scheme.code;
    *out = (nib_cast_form){.code =
                               code == NIB_CODE_E4M3 && p->e5m2 && side == 0 ? NIB_CODE_E5M2 : code,
                           .mx_floor = p->shape.scheme.mx_floor,
                           .two_power = p->two_power};
    return code == NIB_CODE_E4M3 || code == NIB_CODE_MX8;
}

typedef struct counting {
    const matrix *m;
    const nib_cast_form *form;
    nib_cast_counts *workers;
} counting;

/* Counts rows, or columns where sums run along columns. */
static void job_count(void *ctx, int worker, int64_t begin, int64_t end)
{
    const counting *c = ctx;
    const matrix *m = c->m;
    if (m->across)
        nib__cast_count(&c->workers[worker], m->x + begin, m->rows, end - begin, m->ldx, true,
                        c->form);
    else
        nib__cast_count(&c->workers[worker], m->x + begin * m->ldx, end - begin, m->width, m->ldx,
                        false, c->form);
}

static float largest_of(const matrix *m)
{
    float largest = 0;
    for (int64_t i = 0; i < m->rows && largest == largest; i++)
        for (int64_t j = 0; j < m->width; j++) {
            const float magnitude = fabsf(m->x[i * m->ldx + j]);
            if (!(magnitude <= largest)) /* NaN, too */
                largest = magnitude;
        }
    return largest;
}

static void add_counts(nib_cast_counts *to, const nib_cast_counts *from)
{
    to->nonzero += from->nonzero;
    to->saturated += from->saturated;
    to->underflowed += from->underflowed;
}

static void count_side(nib_cast_losses *l, size_t site, int product, int side, matrix m)
{
    const nib_product *p = product_of(l, site, product);
    nib_pool *pool = l->trainer->engine->pool;
    const int threads = nib__pool_threads(pool);
    nib_cast_counts *total = &l->sites[site][product][side];
    nib_cast_form form;
    if (!form_of(&form, p, side))
        return;
    float amax = 0;
    if (side == 0 ? p->x_amax : p->w_amax) {
        amax = largest_of(&m);
        form.amax = &amax;
    }
    counting c = {&m, &form, l->workers};
    const int64_t lines = m.across ? m.width : m.rows;
    memset(l->workers, 0, (size_t)threads * sizeof *l->workers);
    nib__pool_run(pool, lines, nib__max(1, lines / (8 * threads)), false, job_count, &c);
    for (int i = 0; i < threads; i++)
        add_counts(total, &l->workers[i]);
}

/* Counts the operands of a site's product. Recomputed products were counted before. */
static void count_product(nib_cast_losses *l, const nib_train_node *n, size_t site, matrix m)
{
    const nib_step *s = &l->trainer->step;
    const bool forward = n - s->nodes < (ptrdiff_t)s->forward_end;
    matrix across = m;
    across.across = true;
    if (n->op == NIB_OP_LINEAR_DX)
        count_side(l, site, NIB_PRODUCT_DX, 0, m);
    else if (n->op == NIB_OP_LINEAR_DW)
        count_side(l, site, NIB_PRODUCT_DW, 0, across);
    else if (forward) {
        count_side(l, site, NIB_PRODUCT_Y, 0, m);
        count_side(l, site, NIB_PRODUCT_DW, 1, across);
    }
}

/* The products of the experts with their rows, or of the heads with their columns. */
static void count_experts(nib_cast_losses *l, const nib_train_node *n, const float *x,
                          int64_t columns)
{
    const nib_step *s = &l->trainer->step;
    const nib_routing *rule = n->of->routing;
    const bool of_y = n->op == NIB_OP_LINEAR_DX || n->op == NIB_OP_LINEAR_DW;
    const int64_t each = columns / nib__step_expert_share(n->of);
    nib_expert_rows o = {.first = NULL};
    if (rule != NULL)
        o = nib__step_order(s, n->in[n->op == NIB_OP_LINEAR_DW ? 2 : 1], rule);
    for (int64_t e = 0; e < nib__step_expert_count(n->of); e++) {
        const size_t site = nib__step_expert_site(s->net, n->of, e);
        const matrix all = {.x = x + (rule != NULL ? o.first[e] : e) * each,
                            .rows = rule != NULL ? o.first[e + 1] - o.first[e] : s->m,
                            .width = of_y ? s->net->sites[site].n : s->net->sites[site].k,
                            .ldx = rule != NULL ? each : columns};
        if (all.rows > 0)
            count_product(l, n, site, all);
    }
}

/* Counts the f32 operands of a product just before it runs, whatever encoded form exists already: x
 * at the forward product, dy at the products of its gradients. */
static nib_status count_operands(void *ctx, const nib_train_node *n, bool done, nib_err *err)
{
    nib_cast_losses *l = ctx;
    const nib_step *s = &l->trainer->step;
    matrix m = {.rows = s->m};
    if (done || n->site == SIZE_MAX ||
        (n->op != NIB_OP_LINEAR && n->op != NIB_OP_LINEAR_EXPERTS && n->op != NIB_OP_LINEAR_HEADS &&
         n->op != NIB_OP_LINEAR_DX && n->op != NIB_OP_LINEAR_DW))
        return NIB_OK;
    NIB_TRY(nib__step_read_buffer(s, n->in[0], &m.x, err));
    m.width = m.ldx = nib__step_ld(s, n->in[0]);
    if (nib__step_of_experts(n->of))
        count_experts(l, n, m.x, m.width);
    else
        count_product(l, n, n->site, m);
    return NIB_OK;
}

void nib__cast_losses_begin(nib_cast_losses *l)
{
    nib_trainer *t = l->trainer;
    const size_t sites = t->model->net.site_count;
    memset(l->sites, 0, sites * sizeof *l->sites);
    l->watch = (nib_step_watch){count_operands, l};
    t->step.watch = &l->watch;
    if (nib_ranks_rank(t->ranks) != 0)
        return; /* weights are the same on all ranks */
    for (size_t i = 1; i < sites; i++) {
        const nib_param *p = &t->params.items[t->params.weight[i]];
        matrix m = {t->weights + p->at, p->rows, p->columns, p->columns, false};
        count_side(l, i, NIB_PRODUCT_Y, 1, m);
        m.across = true;
        count_side(l, i, NIB_PRODUCT_DX, 1, m);
    }
}

nib_status nib__cast_losses_end(nib_cast_losses *l, nib_err *err)
{
    static const char what[] = "the counts of casts";
    nib_trainer *t = l->trainer;
    const int me = nib_ranks_rank(t->ranks), ranks = nib_ranks_count(t->ranks);
    t->step.watch = NULL;
    for (int rank = 1; rank < ranks; rank++)
        for (size_t i = 0; i < t->model->net.site_count; i++) {
            nib_cast_counts theirs[NIB_PRODUCTS][2];
            if (me == rank)
                NIB_TRY(nib__ranks_send(t->ranks, l->sites[i], sizeof theirs, 0, what, err));
            if (me != 0)
                continue;
            NIB_TRY(nib__ranks_receive(t->ranks, theirs, sizeof theirs, rank, what, err));
            for (int p = 0; p < NIB_PRODUCTS; p++)
                for (int side = 0; side < 2; side++)
                    add_counts(&l->sites[i][p][side], &theirs[p][side]);
        }
    return NIB_OK;
}

/* ---- lines ---- */

static int64_t side_values(const nib_cast_losses *l, size_t site, int product, int side)
{
    const nib_trainer *t = l->trainer;
    const nib_site *s = &t->model->net.sites[site];
    const int64_t tokens = t->micro_batches * t->step.m;
    if (side == 1 && product != NIB_PRODUCT_DW)
        return s->n * s->k;
    return tokens * (product == NIB_PRODUCT_Y || side == 1 ? s->k : s->n);
}

bool nib__cast_losses_line(nib_cast_line *out, const nib_cast_losses *l, size_t site, int product,
                           int side)
{
    static const char *const operands[NIB_PRODUCTS][2] = {{"x", "w"}, {"dy", "w"}, {"dy", "x"}};
    static const char *const products[NIB_PRODUCTS] = {"y", "dx", "dw"};
    nib_cast_form form;
    if (!form_of(&form, product_of(l, site, product), side))
        return false;
    *out = (nib_cast_line){.layer = l->trainer->model->net.sites[site].name,
                           .operand = operands[product][side],
                           .product = products[product],
                           .code = form.code == NIB_CODE_MX8    ? "mxfp8"
                                   : form.code == NIB_CODE_E5M2 ? "e5m2"
                                                                : "e4m3",
                           .counts = l->sites[site][product][side],
                           .values = (uint64_t)side_values(l, site, product, side)};
    return true;
}

static double percent(uint64_t part, uint64_t whole)
{
    return whole > 0 ? 100 * (double)part / (double)whole : 0;
}

void nib__cast_losses_write(nib_text *text, const nib_cast_losses *l, int64_t step)
{
    bool any = false;
    for (size_t i = 1; i < l->trainer->model->net.site_count; i++)
        for (int p = 0; p < NIB_PRODUCTS; p++)
            for (int side = 0; side < 2; side++) {
                nib_cast_line line;
                if (!nib__cast_losses_line(&line, l, i, p, side))
                    continue;
                any = true;
                nib__text_format(text,
                                 "casts of step %" PRId64 ": %-36s %-2s of %-2s %-5s  nonzero "
                                 "%6.2f%%  saturated %.4f%%  underflowed %.4f%%\n",
                                 step, line.layer, line.operand, line.product, line.code,
                                 percent(line.counts.nonzero, line.values),
                                 percent(line.counts.saturated, line.counts.nonzero),
                                 percent(line.counts.underflowed, line.counts.nonzero));
            }
    if (!any)
        nib__text_format(
            text, "casts of step %" PRId64 ": no layer is cast to fewer than 16 bits\n", step);
}
