/* SPDX-License-Identifier: Apache-2.0
 *
 * The codes of a decoder layer's weights, from the second moments of their inputs: sums those while
 * the layer runs, factors them, codes rows against the factor, and writes the codes to the store.
 */
#include "gptq_run.h"

#include "moments_factor.h"
#include "quantizer.h"

#include <math.h>

enum { TRIES = 4, SQUARE = 32, BLOCK = 32 << 20 /* weights in memory at a time */ };

/* ---- moments ---- */

/* Whether a site that reads this input is coded. */
static bool is_wanted(const nib_gptq_run *g, size_t owner)
{
    size_t site = owner;
    do {
        if (nib__gptq_is_coded(g, site))
            return true;
    } while (++site < g->model->net.site_count && nib__gptq_owner(g, site) == owner);
    return false;
}

/* Whether one of them is coded by qronos. */
static bool has_pairs(const nib_gptq_run *g, size_t owner)
{
    size_t site = owner;
    do {
        if (nib__gptq_is_paired(g, site))
            return true;
    } while (++site < g->model->net.site_count && nib__gptq_owner(g, site) == owner);
    return false;
}

typedef struct adding {
    const nib_gptq_run *g;
    nib_moments_add add;
} adding;

static void add_tiles(void *ctx, int worker, int64_t begin, int64_t end)
{
    const adding *a = ctx;
    a->g->rows->add(&a->add, begin, end,
                    a->g->scratch + (size_t)worker * (NIB_MOMENTS_SCRATCH / sizeof(float)));
}

/* Adds x^T x, or x^T y, of m tokens. */
static void add_tokens(const nib_gptq_run *g, const nib_moments_add *tokens)
{
    for (int64_t t = 0; t < tokens->m; t += NIB_MOMENTS_TOKENS) {
        adding a = {g, *tokens};
        a.add.x += t * tokens->ld;
        if (a.add.y != NULL)
            a.add.y += t * tokens->ld_y;
        a.add.m = nib__min(NIB_MOMENTS_TOKENS, tokens->m - t);
        nib__pool_run(g->model->engine->pool, nib__moments_tiles(tokens->k, a.add.y != NULL), 4,
                      false, add_tiles, &a);
    }
}

/* Adds the difference of the kept inputs from x, times x. */
static void add_difference(const nib_gptq_run *g, nib_gptq_input *in, const float *x, int64_t ld,
                           int64_t m)
{
    float *kept = in->kept + in->used * in->k;
    for (int64_t t = 0; t < m; t++)
        for (int64_t j = 0; j < in->k; j++)
            kept[t * in->k + j] -= x[t * ld + j];
    add_tokens(
        g,
        &(nib_moments_add){
            .h = in->difference, .x = kept, .y = x, .k = in->k, .ld = in->k, .ld_y = ld, .m = m});
    in->used += m;
}

/* Whether the site's input is observed now. */
static bool is_observed(const nib_gptq_run *g, size_t site)
{
    return g->status == NIB_OK && site >= g->stage[0] && site < g->stage[1] &&
           nib__gptq_owner(g, site) == site && is_wanted(g, site);
}

static double *allocate_moments(nib_gptq_run *g, int64_t k)
{
    double *h = nib__calloc(&g->model->engine->allocator, (uint64_t)k * (uint64_t)k, sizeof *h);
    if (h == NULL)
        g->status = nib__fail_memory(&g->err, (uint64_t)k * (uint64_t)k * sizeof *h,
                                     "the second moments of an input");
    return h;
}

void nib__gptq_keep(void *run, size_t site, const float *x, int64_t ld, int64_t m, int64_t k)
{
    nib_gptq_run *g = run;
    nib_gptq_input *in = &g->inputs[site];
    if (!is_observed(g, site) || !has_pairs(g, site))
        return;
    if (in->kept == NULL) {
        const uint64_t floats = (uint64_t)g->window * (uint64_t)k;
        in->kept = nib__calloc(&g->model->engine->allocator, floats, sizeof *in->kept);
        in->difference = allocate_moments(g, k);
        if (in->kept == NULL || in->difference == NULL) {
            g->status = nib__fail_memory(&g->err, floats * sizeof *in->kept,
                                         "the inputs of a layer in a window");
            return;
        }
    }
    for (int64_t t = 0; t < m; t++)
        memcpy(in->kept + (in->filled + t) * k, x + t * ld, (size_t)k * sizeof *x);
    in->filled += m;
}

void nib__gptq_forget(nib_gptq_run *g)
{
    for (size_t i = 0; i < g->model->net.site_count; i++)
        g->inputs[i].filled = g->inputs[i].used = 0;
}

void nib__gptq_release(nib_gptq_run *g, size_t site)
{
    const nib_allocator *a = &g->model->engine->allocator;
    nib_gptq_input *in = &g->inputs[site];
    nib__release(a, in->h);
    nib__release(a, in->difference);
    nib__release(a, in->kept);
    *in = (nib_gptq_input){.k = in->k, .tokens = in->tokens};
}

void nib__gptq_observe(void *run, size_t site, const float *x, int64_t ld, int64_t m, int64_t k)
{
    nib_gptq_run *g = run;
    nib_gptq_input *in = &g->inputs[site];
    if (!is_observed(g, site))
        return;
    in->k = k;
    if (in->h == NULL && (in->h = allocate_moments(g, k)) == NULL)
        return;
    add_tokens(g, &(nib_moments_add){.h = in->h, .x = x, .k = k, .ld = ld, .m = m});
    in->tokens += m;
    if (in->kept != NULL)
        add_difference(g, in, x, ld, m);
}

/* ---- their factor ---- */

/* Moments on their way to a factor. Work is shared by squares of SQUARE x SQUARE, in which the rows
 * and columns of H that change places fit in a cache. */
typedef struct factoring {
    double *h; /* [k][k] */
    int64_t k;
    bool restores; /* copies the lower triangle to the upper one; else the reverse */
    const nib_gptq_factor *out;
} factoring;

/* Copies one triangle to the other, for rows of squares [begin, end). */
static void copy_triangle(void *ctx, int worker, int64_t begin, int64_t end)
{
    const factoring *f = ctx;
    const int64_t k = f->k;
    (void)worker;
    for (int64_t i0 = begin * SQUARE; i0 < nib__min(end * SQUARE, k); i0 += SQUARE)
        for (int64_t j0 = i0; j0 < k; j0 += SQUARE)
            for (int64_t i = i0; i < nib__min(i0 + SQUARE, k); i++)
                for (int64_t j = nib__max(j0, i + 1); j < nib__min(j0 + SQUARE, k); j++)
                    if (f->restores)
                        f->h[i * k + j] = f->h[j * k + i];
                    else
                        f->h[j * k + i] = f->h[i * k + j];
}

static void copy_triangles(factoring *f, nib_pool *pool, bool restores)
{
    f->restores = restores;
    nib__pool_run(pool, nib__ceil_div(f->k, SQUARE), 1, false, copy_triangle, f);
}

static void divide_rows(void *ctx, int worker, int64_t begin, int64_t end)
{
    const factoring *f = ctx;
    const int64_t k = f->k;
    (void)worker;
    for (int64_t i = begin; i < end; i++)
        for (int64_t j = i + 1; j < k; j++)
            f->out->factor[i * k + j] = (float)(f->h[i * k + j] / f->out->diagonal[j]);
}

static void take_factor(factoring *f, nib_gptq_factor *out, nib_pool *pool)
{
    f->out = out;
    for (int64_t j = 0; j < f->k; j++)
        out->diagonal[j] = f->h[j * f->k + j];
    nib__pool_run(pool, f->k, 16, false, divide_rows, f);
    for (int64_t j = 0; j < f->k; j++)
        out->diagonal[j] *= out->diagonal[j];
}

/* Memory for a factor. */
static nib_status allocate_factor(nib_gptq_factor *f, int threads, nib_arena *arena, nib_err *err)
{
    const size_t n = (size_t)f->k;
    f->factor = nib__arena_take(arena, n * n, sizeof *f->factor);
    f->diagonal = nib__arena_take(arena, n, sizeof *f->diagonal);
    f->after = nib__arena_take(arena, n * NIB_MOMENTS_PANEL, sizeof *f->after);
    f->order = nib__arena_take(arena, n, sizeof *f->order);
    f->place = nib__arena_take(arena, n, sizeof *f->place);
    f->from = nib__arena_take(arena, n, sizeof *f->from);
    f->ranked = nib__arena_take(arena, n, sizeof *f->ranked);
    f->room = nib__arena_take(arena, n * ((size_t)threads + 1), sizeof *f->room);
    f->visited = nib__arena_take(arena, n, sizeof *f->visited);
    return f->factor && f->diagonal && f->after && f->order && f->place && f->from && f->ranked &&
                   f->room && f->visited
               ? NIB_OK
               : nib__fail_memory(err, n * n * sizeof *f->factor, f->name);
}

nib_status nib__gptq_moments(nib_gptq_factor *out, double *h, int64_t k, const char *name,
                             nib_pool *pool, nib_arena *arena, nib_err *err)
{
    *out = (nib_gptq_factor){.name = name,
                             .h = h,
                             .k = k,
                             .squares = nib__arena_take(arena, (uint64_t)k, sizeof *out->squares),
                             .importance =
                                 nib__arena_take(arena, (uint64_t)k, sizeof *out->importance)};
    if (!out->squares || !out->importance)
        return nib__fail_memory(err, (uint64_t)k * sizeof *out->squares, name);
    for (int64_t i = 0; i < k; i++) {
        out->squares[i] = h[i * k + i];
        out->mean += out->squares[i] / (double)k;
    }
    if (!isfinite(out->mean))
        return nib__fail(err, NIB_CHECK_FAILED,
                         "%s: its input is not finite on the calibration text; `nibble verify` "
                         "finds the tensor that holds NaN or Inf",
                         name);
    if (!(out->mean > 0)) /* any codes are as good */
        return NIB_OK;
    for (int64_t j = 0; j < k; j++)
        out->importance[j] = (float)fmax(out->squares[j] / out->mean, 0x1p-20);
    NIB_TRY(allocate_factor(out, nib__pool_threads(pool), arena, err));
    for (int64_t j = 0; j < k; j++)
        out->order[j] = out->place[j] = j;
    copy_triangles(&(factoring){.h = h, .k = k}, pool, false);
    return NIB_OK;
}

/* Moves the moments, both of whose triangles are whole, into the order of a rule. */
static void order_moments(nib_gptq_factor *f, nib_order_rule rule, nib_pool *pool)
{
    nib__order_inputs(f->order, rule, f->squares, f->k, f->ranked);
    for (int64_t j = 0; j < f->k; j++)
        f->from[j] = f->place[f->order[j]];
    for (int64_t j = 0; j < f->k; j++)
        f->place[f->order[j]] = j;
    nib__order_moments(f->h, f->from, f->k, f->room, f->visited, pool);
}

nib_status nib__gptq_factor(nib_gptq_factor *out, nib_order_rule rule, const nib_moments_rows *rows,
                            nib_pool *pool, nib_err *err)
{
    const int64_t k = out->k;
    factoring f = {.h = out->h, .k = k};
    if (out->damping > 0) /* the upper triangle is that of an earlier factor */
        copy_triangles(&f, pool, true);
    order_moments(out, rule, pool);
    out->damping = NIB_GPTQ_DAMPING;
    for (int i = 0; i < TRIES; i++, out->damping *= 10) {
        if (i > 0)
            copy_triangles(&f, pool, true);
        for (int64_t j = 0; j < k; j++)
            out->h[j * k + j] = out->squares[out->order[j]] + out->damping * out->mean;
        if (nib__moments_factor(out->h, k, out->after, rows, pool)) {
            take_factor(&f, out, pool);
            return NIB_OK;
        }
    }
    return nib__fail(err, NIB_CHECK_FAILED,
                     "%s: the second moments of its input are not positive definite, even with %g "
                     "times their mean added to the diagonal",
                     out->name, out->damping / 10);
}

/* ---- codes ---- */

/* Rows of one weight, a block at a time. */
typedef struct sweeping {
    const nib_weight *from;
    float *weights; /* [block][k] */
    int64_t first;  /* row of the block's first */
    nib_quant_sweep sweep;
    nib_quant_sweep_run run;
    char *scratch;
    uint64_t scratch_bytes;
} sweeping;

static void read_rows(void *ctx, int worker, int64_t begin, int64_t end)
{
    const sweeping *s = ctx;
    (void)worker;
    for (int64_t i = begin; i < end; i++)
        nib__weight_row(s->from, s->first + i, s->weights + i * s->from->k);
}

static void sweep_rows(void *ctx, int worker, int64_t begin, int64_t end)
{
    const sweeping *s = ctx;
    s->run(&s->sweep, begin, end, s->scratch + (uint64_t)worker * s->scratch_bytes);
}

nib_status nib__gptq_quantizer(nib_quantizer *out, const nib_gptq_run *g, size_t site, nib_err *err)
{
    const nib_choice *choice = &g->job->layers[site].choice;
    const nib_site *at = &g->model->net.sites[site];
    NIB_TRY(nib__quantizer_init(out, &choice->scheme, nib__float_type(at->weight.scheme.code),
                                at->k, err));
    NIB_TRY(nib__quantizer_method(out, NIB_PTQ_GPTQ, NULL, err)); /* does it apply? */
    return nib__quantizer_scales(out, choice->scale_type, err);
}

/* Reads rows [first, first + count) of the stored weight. */
static void read_block(sweeping *s, const nib_gptq_run *g, int64_t first, int64_t count)
{
    s->first = first;
    nib__pool_run(g->model->engine->pool, count, 4, false, read_rows, s);
    nib__checkpoint_release_rows(g->model->net.checkpoint, s->from, first, count);
}

static nib_status find_range(sweeping *s, const nib_gptq_run *g, nib_quantizer *q, int64_t block,
                             nib_err *err)
{
    float range[2] = {0, 0};
    for (int64_t i = 0; i < s->from->n; i += block) {
        const int64_t count = nib__min(block, s->from->n - i);
        read_block(s, g, i, count);
        NIB_TRY(nib__quantizer_scan(q, s->weights, i, count, range, err));
    }
    return nib__quantizer_set_range(q, range, err);
}

/* Codes rows [first, first + count) into their places. */
static nib_status code_block(sweeping *s, const nib_gptq_run *g, nib_gptq_codes *out, int64_t first,
                             int64_t count, nib_err *err)
{
    const nib_quantizer *q = s->sweep.q;
    const int64_t k = out->k;
    const uint64_t scale_row = out->scale_bytes / (uint64_t)out->n,
                   zero_row = out->zero_bytes / (uint64_t)out->n;
    read_block(s, g, first, count);
    s->sweep.n = count;
    s->sweep.codes = out->codes.codes + first * k;
    s->sweep.scales = (char *)out->codes.scales + (uint64_t)first * scale_row;
    s->sweep.zeros =
        out->codes.zeros != NULL ? (char *)out->codes.zeros + (uint64_t)first * zero_row : NULL;
    nib__pool_run(g->model->engine->pool, count, 16, false, sweep_rows, s);
    for (int64_t i = 0; i < count; i++) {
        if (s->sweep.failed[i] != 0)
            return nib__quantizer_fail_row(q, s->weights + i * k, first + i, s->sweep.failed[i],
                                           err);
        out->codes.objective[0] += s->sweep.objective[2 * i];
        out->codes.objective[1] += s->sweep.objective[2 * i + 1];
    }
    return NIB_OK;
}

static nib_status allocate_codes(nib_gptq_codes *out, const nib_quantizer *q, nib_arena *arena,
                                 nib_err *err)
{
    const uint64_t count = (uint64_t)out->n * (uint64_t)out->k,
                   scales = (uint64_t)out->n * (uint64_t)q->groups;
    out->scale_bytes = scales * (uint64_t)nib__type_bits(q->scale_type) / 8;
    out->zero_bytes =
        q->zero_type == NIB_TYPE_NONE ? 0 : scales * (uint64_t)nib__type_bits(q->zero_type) / 8;
    out->codes = (nib_codes){.codes = nib__arena_take(arena, count, 1),
                             .scales = nib__arena_take(arena, out->scale_bytes, 1)};
    if (out->zero_bytes != 0)
        out->codes.zeros = nib__arena_take(arena, out->zero_bytes, 1);
    return out->codes.codes && out->codes.scales && (out->codes.zeros || out->zero_bytes == 0)
               ? NIB_OK
               : nib__fail_memory(err, count + out->scale_bytes + out->zero_bytes,
                                  "the codes of a weight");
}

/* Codes a weight into memory of the arena. */
static nib_status code_site(nib_gptq_run *g, nib_gptq_codes *out, const nib_gptq_factor *f,
                            nib_arena *arena, nib_err *err)
{
    nib_engine *engine = g->model->engine;
    const size_t site = (size_t)out->site, threads = (size_t)nib__pool_threads(engine->pool);
    const int64_t block = nib__min(out->n, nib__max(1, BLOCK / out->k));
    nib_quantizer q;
    NIB_TRY(nib__gptq_quantizer(&q, g, site, err));
    NIB_TRY(nib__quantizer_method(&q, NIB_PTQ_SEARCH, f->importance, err));
    NIB_TRY(allocate_codes(out, &q, arena, err));
    sweeping s = {.from = &g->model->net.sites[site].weight,
                  .weights =
                      nib__arena_take(arena, (uint64_t)block * (uint64_t)out->k, sizeof(float)),
                  .run = nib__quant_sweep_best(engine->isa),
                  .scratch_bytes = (nib__quant_sweep_scratch(&q) + 63) & ~UINT64_C(63)};
    s.scratch = nib__arena_take(arena, threads * s.scratch_bytes + 64, 1);
    s.sweep = (nib_quant_sweep){
        .q = &q,
        .rows = s.weights,
        .k = out->k,
        .order = f->order,
        .place = f->place,
        .scales_first = nib__order_has_scales_first(nib__gptq_order(g, site), out->k),
        .factor = f->factor,
        .diagonal = f->diagonal,
        .difference = nib__gptq_is_paired(g, site) ? f->difference : NULL,
        .objective = nib__arena_take(arena, 2 * (uint64_t)block, sizeof *s.sweep.objective),
        .failed = nib__arena_take(arena, (uint64_t)block, sizeof *s.sweep.failed)};
    if (!s.weights || !s.scratch || !s.sweep.objective || !s.sweep.failed)
        return nib__fail_memory(err, (uint64_t)block * (uint64_t)out->k * sizeof(float),
                                "rows of a weight");
    s.scratch += (64 - (uintptr_t)s.scratch % 64) % 64;
    if (nib__quantizer_needs_scan(&q))
        NIB_TRY(find_range(&s, g, &q, block, err));
    for (int64_t i = 0; i < out->n; i += block)
        NIB_TRY(code_block(&s, g, out, i, nib__min(block, out->n - i), err));
    out->codes.tensor_scale = q.tensor_scale;
    out->damping = f->damping;
    return NIB_OK;
}

/* Loads the codes of a site for the stages after it, and keeps the stored weight. */
static nib_status swap_in(nib_gptq_run *g, const nib_gptq_codes *codes, nib_err *err)
{
    nib_loaded *at = &g->runner.weights[codes->site];
    g->others[codes->site] = (nib_gptq_other){.weight = *at, .is_set = true};
    *at = (nib_loaded){0};
    return nib__gptq_load(g, (size_t)codes->site, &codes->codes, err);
}

/* Takes the difference of an input, in f32 and in the order of the factor. */
static nib_status take_difference(nib_gptq_factor *f, const nib_gptq_input *in, nib_arena *arena,
                                  nib_err *err)
{
    const int64_t k = in->k;
    const uint64_t count = (uint64_t)k * (uint64_t)k;
    if (in->difference == NULL)
        return NIB_OK;
    if (f->difference == NULL)
        f->difference = nib__arena_take(arena, count, sizeof *f->difference);
    if (f->difference == NULL)
        return nib__fail_memory(err, count * sizeof *f->difference, "moments of an input");
    for (int64_t i = 0; i < k; i++)
        for (int64_t j = 0; j < k; j++)
            f->difference[i * k + j] = (float)in->difference[f->order[i] * k + f->order[j]];
    return NIB_OK;
}

/* Codes a site, and writes its codes. */
static nib_status put_site(nib_gptq_run *g, size_t site, int64_t tokens, const nib_gptq_factor *f,
                           nib_err *err)
{
    const nib_site *at = &g->model->net.sites[site];
    nib_gptq_codes codes = {.site = site, .n = at->n, .k = at->k, .tokens = tokens};
    nib_arena own;
    nib__arena_init(&own, &g->model->engine->allocator, 0);
    nib_status status = code_site(g, &codes, f, &own, err);
    if (status != NIB_OK)
        (void)nib__fail_in(err, status, at->name);
    else
        status = nib__gptq_store_put(g->store, &codes, err);
    if (status == NIB_OK && g->stage[1] != SIZE_MAX)
        status = swap_in(g, &codes, err);
    nib__arena_free(&own);
    return status;
}

/* The coded site after `site` whose input is owner's and whose order is, or is not, this one; end:
 * there is none. */
static size_t next_site(const nib_gptq_run *g, size_t owner, size_t site, size_t end,
                        nib_order_rule rule, bool same)
{
    for (; site < end && nib__gptq_owner(g, site) == owner; site++) {
        const nib_order_rule other = nib__gptq_order(g, site);
        if (nib__gptq_is_coded(g, site) &&
            same == (other.kind == rule.kind && other.group == rule.group))
            return site;
    }
    return end;
}

/* Codes the sites that read one input, those of each order together. */
static nib_status code_sites(nib_gptq_run *g, nib_gptq_factor *f, size_t owner, size_t end,
                             nib_arena *arena, nib_err *err)
{
    nib_gptq_input *in = &g->inputs[owner];
    nib_pool *pool = g->model->engine->pool;
    for (size_t first = owner; first < end && nib__gptq_owner(g, first) == owner; first++) {
        const nib_order_rule rule = nib__gptq_order(g, first);
        if (!nib__gptq_is_coded(g, first) || next_site(g, owner, owner, end, rule, true) < first)
            continue;
        NIB_TRY(nib__gptq_factor(f, rule, g->rows, pool, err));
        NIB_TRY(take_difference(f, in, arena, err));
        if (next_site(g, owner, owner, end, rule, false) == end) /* the only order */
            nib__gptq_release(g, owner);
        for (size_t site = first; site < end; site = next_site(g, owner, site + 1, end, rule, true))
            NIB_TRY(put_site(g, site, in->tokens, f, err));
    }
    return NIB_OK;
}

/* Codes the sites that read one input, and releases its moments. */
static nib_status code_input(nib_gptq_run *g, size_t owner, size_t end, nib_err *err)
{
    nib_gptq_input *in = &g->inputs[owner];
    nib_gptq_factor f;
    nib_arena arena;
    nib__arena_init(&arena, &g->model->engine->allocator, 0);
    nib_status status = nib__gptq_moments(&f, in->h, in->k, g->job->layers[owner].name,
                                          g->model->engine->pool, &arena, err);
    if (status == NIB_OK && f.factor != NULL)
        status = code_sites(g, &f, owner, end, &arena, err);
    nib__gptq_release(g, owner);
    nib__arena_free(&arena);
    return status;
}

nib_status nib__gptq_code(nib_gptq_run *g, size_t begin, size_t end, nib_err *err)
{
    for (size_t owner = begin; owner < end; owner++)
        if (g->inputs[owner].h != NULL)
            NIB_TRY(code_input(g, owner, end, err));
    return NIB_OK;
}

/* ---- rounding ---- */

typedef struct rounding {
    const nib_weight *from;
    const nib_quantizer *q;
    const nib_gptq_codes *to;
    float *rows;   /* [threads][k] */
    nib_err *errs; /* [threads] of the first failure; status NIB_OK: none */
} rounding;

static void round_rows(void *ctx, int worker, int64_t begin, int64_t end)
{
    const rounding *r = ctx;
    const int64_t k = r->to->k, n = r->to->n;
    const uint64_t scale_row = r->to->scale_bytes / (uint64_t)n,
                   zero_row = r->to->zero_bytes / (uint64_t)n;
    const nib_codes *codes = &r->to->codes;
    float *row = r->rows + worker * k;
    for (int64_t i = begin; i < end && r->errs[worker].status == NIB_OK; i++) {
        nib_quantized out = {.codes = codes->codes + i * k,
                             .scales = (char *)codes->scales + (uint64_t)i * scale_row};
        if (codes->zeros != NULL)
            out.zeros = (char *)codes->zeros + (uint64_t)i * zero_row;
        nib__weight_row(r->from, i, row);
        (void)nib__quantizer_quantize_rows(r->q, row, i, 1, &out, &r->errs[worker]);
    }
}

nib_status nib__gptq_round(nib_gptq_run *g, size_t site, nib_codes *out, nib_arena *arena,
                           nib_err *err)
{
    nib_engine *engine = g->model->engine;
    const nib_site *at = &g->model->net.sites[site];
    const size_t threads = (size_t)nib__pool_threads(engine->pool);
    const int64_t block = nib__min(at->n, nib__max(1, BLOCK / at->k));
    nib_gptq_codes codes = {.site = site, .n = at->n, .k = at->k};
    nib_quantizer q;
    NIB_TRY(nib__gptq_quantizer(&q, g, site, err));
    q.run = nib__quant_w_best(engine->isa);
    NIB_TRY(allocate_codes(&codes, &q, arena, err));
    rounding r = {.from = &at->weight,
                  .q = &q,
                  .to = &codes,
                  .rows = nib__arena_take(arena, threads * (uint64_t)at->k, sizeof *r.rows),
                  .errs = nib__arena_take(arena, threads, sizeof *r.errs)};
    if (!r.rows || !r.errs)
        return nib__fail_memory(err, threads * (uint64_t)at->k * sizeof *r.rows, at->name);
    if (nib__quantizer_needs_scan(&q)) {
        sweeping s = {.from = &at->weight};
        s.weights = nib__arena_take(arena, (uint64_t)block * (uint64_t)at->k, sizeof(float));
        if (s.weights == NULL)
            return nib__fail_memory(err, (uint64_t)block * (uint64_t)at->k * sizeof(float),
                                    at->name);
        NIB_TRY(find_range(&s, g, &q, block, err));
    }
    nib__pool_run(engine->pool, at->n, 4, false, round_rows, &r);
    for (size_t i = 0; i < threads; i++)
        if (r.errs[i].status != NIB_OK)
            return nib__fail(err, r.errs[i].status, "%s: %s", at->name, r.errs[i].text);
    *out = codes.codes;
    out->tensor_scale = q.tensor_scale;
    return NIB_OK;
}
