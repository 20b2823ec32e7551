/* SPDX-License-Identifier: Apache-2.0
 *
 * Whether a method's codes are better than rounding's for the model as a whole: both run beside the
 * stored weights over a part of the text, a layer at a time, and their logits are compared with
 * those of the stored weights. How weights of each kind are loaded is the method's.
 */
#include "divergence.h"
#include "gptq_run.h"
#include "quantizer.h"
#include "sample.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

enum { ROWS = 64, KINDS = NIB_GPTQ_KINDS }; /* ROWS: tokens at a time */

/* Loads rounding's codes of a site. */
static nib_status load_rounded(nib_gptq_run *g, size_t site, nib_err *err)
{
    nib_codes codes;
    nib_arena arena;
    nib__arena_init(&arena, &g->model->engine->allocator, 0);
    nib_status status = nib__gptq_round(g, site, &codes, &arena, err);
    if (status == NIB_OK)
        status = nib__gptq_load(g, site, &codes, err);
    nib__arena_free(&arena);
    return status;
}

static bool has_codes(const void *ctx, size_t site)
{
    const nib_gptq_run *g = ctx;
    return g->job->layers[site].codes != NULL;
}

static nib_status load_codes(void *ctx, size_t site, nib_gptq_kind kind, nib_err *err)
{
    nib_gptq_run *g = ctx;
    return kind == NIB_GPTQ_CODED ? nib__gptq_load(g, site, g->job->layers[site].codes, err)
                                  : load_rounded(g, site, err);
}

nib_gptq_loader nib__gptq_loader(nib_gptq_run *g)
{
    return (nib_gptq_loader){.has = has_codes, .load = load_codes, .ctx = g};
}

static void enter(nib_gptq_run *g, nib_gptq_kind kind)
{
    g->kind = kind;
    if (g->loader.enter != NULL)
        g->loader.enter(g->loader.ctx, kind);
}

nib_status nib__gptq_check_kind(nib_gptq_run *g, nib_gptq_kind kind, size_t layer, size_t begin,
                                size_t end, nib_err *err)
{
    const nib_gptq_loader *loader = &g->loader;
    if (layer == 0 && loader->has(loader->ctx, 0)) /* the embedding */
        NIB_TRY(loader->load(loader->ctx, 0, kind, err));
    for (size_t site = begin; site < end; site++)
        if (loader->has(loader->ctx, site))
            NIB_TRY(loader->load(loader->ctx, site, kind, err));
    enter(g, kind);
    const nib_status status =
        nib__gptq_run_layer(g, kind == NIB_GPTQ_CODED ? &g->coded : &g->rounded, layer, false, err);
    enter(g, NIB_GPTQ_STORED);
    return status;
}

nib_status nib__gptq_check_layer(nib_gptq_run *g, size_t layer, size_t begin, size_t end,
                                 nib_err *err)
{
    NIB_TRY(nib__gptq_run_layer(g, &g->stored, layer, false, err));
    return nib__gptq_check_kind(g, NIB_GPTQ_ROUNDED, layer, begin, end, err);
}

/* ---- logits ---- */

typedef struct comparing {
    const float *logits[KINDS]; /* [ROWS][vocab] */
    int64_t vocab;
    double kl[ROWS][2]; /* of NIB_GPTQ_CODED and NIB_GPTQ_ROUNDED */
} comparing;

static void compare_rows(void *ctx, int worker, int64_t begin, int64_t end)
{
    comparing *c = ctx;
    (void)worker;
    for (int64_t i = begin; i < end; i++) {
        int64_t best;
        const float *stored = c->logits[NIB_GPTQ_STORED] + i * c->vocab;
        const double all = nib__log_sum(stored, c->vocab, &best);
        for (int kind = NIB_GPTQ_CODED; kind < KINDS; kind++) {
            const float *logits = c->logits[kind] + i * c->vocab;
            c->kl[i][kind - 1] = nib__divergence_of(logits, nib__log_sum(logits, c->vocab, &best),
                                                    stored, all, -(double)INFINITY, c->vocab);
        }
    }
}

/* The output layer of each kind; only the stored one is loaded if it has no codes. */
static nib_status load_heads(nib_gptq_run *g, size_t head, nib_loaded heads[KINDS], nib_err *err)
{
    nib_loaded *at = &g->runner.weights[head];
    for (int kind = 0; kind < KINDS; kind++) {
        nib_status status = NIB_OK;
        if (kind == NIB_GPTQ_STORED)
            status = nib__gptq_load_stored(g, head, err);
        else if (g->loader.has(g->loader.ctx, head))
            status = g->loader.load(g->loader.ctx, head, (nib_gptq_kind)kind, err);
        heads[kind] = *at;
        *at = (nib_loaded){0};
        NIB_TRY(status);
    }
    return NIB_OK;
}

/* Adds the divergences of tokens [first, first + count) to g->kl. */
static nib_status compare(nib_gptq_run *g, size_t head, nib_loaded heads[KINDS], float *logits,
                          int64_t first, int64_t count, nib_err *err)
{
    const nib_gptq_stream *streams[KINDS] = {&g->stored, &g->coded, &g->rounded};
    const int64_t vocab = g->model->net.config.vocab;
    comparing c = {.vocab = vocab};
    for (int kind = 0; kind < KINDS; kind++) {
        float *to = logits + kind * ROWS * vocab;
        c.logits[kind] = to;
        g->runner.weights[head] =
            heads[g->loader.has(g->loader.ctx, head) ? kind : NIB_GPTQ_STORED];
        enter(g, (nib_gptq_kind)kind);
        const nib_status status =
            nib__runner_logits(&g->runner, g->first[g->model->net.config.layers], count,
                               streams[kind]->state + first * g->width, to, err);
        g->runner.weights[head] = (nib_loaded){0};
        enter(g, NIB_GPTQ_STORED);
        NIB_TRY(status);
    }
    nib__pool_run(g->model->engine->pool, count, 1, false, compare_rows, &c);
    for (int64_t i = 0; i < count; i++)
        for (int kind = 0; kind < 2; kind++)
            g->kl[kind] += c.kl[i][kind] / (double)g->rounded.count;
    return nib__gptq_count(g, 3 * (double)count * g->cost.pass, err);
}

nib_status nib__gptq_check(nib_gptq_run *g, nib_err *err)
{
    const nib_allocator *a = &g->model->engine->allocator;
    const size_t head = g->model->net.site_count - 1;
    const uint64_t floats = KINDS * ROWS * (uint64_t)g->model->net.config.vocab;
    nib_loaded heads[KINDS] = {{0}};
    float *logits = nib__calloc(a, floats, sizeof *logits);
    nib_status status = logits != NULL ? load_heads(g, head, heads, err)
                                       : nib__fail_memory(err, floats * sizeof *logits, "logits");
    for (int64_t at = 0; at < g->rounded.count && status == NIB_OK; at += ROWS)
        status = compare(g, head, heads, logits, at, nib__min(ROWS, g->rounded.count - at), err);
    for (int kind = 0; kind < KINDS; kind++)
        nib__weight_unload(&heads[kind], a);
    nib__release(a, logits);
    return status;
}

bool nib__gptq_is_worse(const nib_gptq_run *g, const char *place)
{
    const bool is_worse = !(g->kl[0] <= g->kl[1]);
    char tokens[48];
    if (g->rounded.count == 1)
        snprintf(tokens, sizeof tokens, "%s token", place);
    else
        snprintf(tokens, sizeof tokens, "%s %" PRId64 " tokens", place, g->rounded.count);
    nib__ledger_add_note(
        g->job->ledger, "method",
        "%s: KL divergence from the stored weights on the text's %s %.4g nats, of rounding %.4g%s",
        g->job->name, tokens, g->kl[0], g->kl[1],
        is_worse ? ": worse, so all its layers are rounded to nearest instead" : "");
    return is_worse;
}
