/* SPDX-License-Identifier: Apache-2.0
 *
 * Whether a model with turned weights computes the function of the stored one: both run over a few
 * tokens in f32, a decoder layer at a time, and their logits are compared.
 */
#include "coded_check.h"
#include "plan_handle.h"

#include <math.h>

enum { TOKENS = 64, STORED = 0, TURNED = 1, KINDS = 2 };

typedef struct check {
    const nib_rotating *job;
    nib_gptq_run g; /* stored and coded: the states of both kinds */
    nib_rotate_norms norms;
    float *logits[KINDS]; /* [TOKENS][vocab] */
    nib_arena held;       /* turned weights that are loaded */
} check;

/* ---- norms ---- */

void nib__rotate_set_norms(const nib_rotate_norms *norms, nib_runner *runner, bool are_ones)
{
    for (size_t i = 0; i < runner->ops.count; i++)
        if (norms->stored[i] != NULL)
            runner->ops.nodes[i].weight = are_ones ? norms->ones : norms->stored[i];
}

nib_status nib__rotate_find_norms(nib_rotate_norms *out, const nib_rotating *job,
                                  const nib_runner *runner, nib_arena *arena, nib_err *err)
{
    const nib_lowered *ops = &runner->ops;
    const nib_graph *graph = &runner->net->graph;
    const int64_t width = runner->net->config.width;
    out->stored = nib__arena_take(arena, ops->count, sizeof *out->stored);
    out->ones = nib__arena_take(arena, (uint64_t)width, sizeof *out->ones);
    if (out->stored == NULL || out->ones == NULL)
        return nib__fail_memory(err, (uint64_t)width * sizeof *out->ones, "the weights of norms");
    for (int64_t j = 0; j < width; j++)
        out->ones[j] = 1;
    for (size_t i = 0; i < ops->count && job->graph.residual_why == NULL; i++) {
        const nib_node *node = &ops->nodes[i];
        const bool is_norm = node->op == NIB_OP_NORM || node->op == NIB_OP_NORM_QUANT;
        if (is_norm && node->of->weight != NIB_NO_ID &&
            job->graph.norms[graph->weights[node->of->weight].index])
            out->stored[i] = node->weight;
    }
    return NIB_OK;
}

/* ---- layers ---- */

/* Loads the weight that a site has in the turned model, if it is another. */
static nib_status load_turned(check *c, size_t site, nib_err *err)
{
    const nib_turn *turn = c->job->layers[site].turn;
    nib_engine *engine = c->g.model->engine;
    nib_site *at = &c->g.model->net.sites[site];
    const nib_weight stored = at->weight;
    if (turn == NULL)
        return NIB_OK;
    nib_weight turned;
    NIB_TRY(nib__coded_turn(&turned, turn, NIB_TYPE_F32, engine, &c->held, err));
    at->weight = turned;
    const nib_status status = nib__gptq_load_stored(&c->g, site, err);
    at->weight = stored;
    return status;
}

static nib_status run_turned(check *c, size_t layer, size_t begin, size_t end, nib_err *err)
{
    nib_status status = layer == 0 ? load_turned(c, 0, err) : NIB_OK;
    for (size_t i = begin; i < end && status == NIB_OK; i++)
        status = load_turned(c, i, err);
    nib__rotate_set_norms(&c->norms, &c->g.runner, true);
    if (status == NIB_OK)
        status = nib__gptq_run_layer(&c->g, &c->g.coded, layer, false, err);
    nib__rotate_set_norms(&c->norms, &c->g.runner, false);
    return status;
}

static nib_status run_layer(check *c, size_t layer, nib_err *err)
{
    nib_gptq_run *g = &c->g;
    size_t begin, end;
    nib__gptq_find_sites(g, (int64_t)layer, &begin, &end);
    NIB_TRY(nib__gptq_load_sites(g, begin, end, err));
    NIB_TRY(nib__gptq_run_layer(g, &g->stored, layer, false, err));
    nib__arena_init(&c->held, &g->model->engine->allocator, 0);
    const nib_status status = run_turned(c, layer, begin, end, err);
    nib__gptq_unload_sites(g, begin, end);
    if (layer == 0)
        nib__gptq_unload_sites(g, 0, 1); /* nothing looks up tokens any more */
    nib__arena_free(&c->held);
    return status;
}

static nib_status run_head(check *c, int kind, nib_err *err)
{
    nib_gptq_run *g = &c->g;
    const size_t head = g->model->net.site_count - 1;
    nib__arena_init(&c->held, &g->model->engine->allocator, 0);
    nib_status status = nib__gptq_load_stored(g, head, err);
    if (kind == TURNED && status == NIB_OK)
        status = load_turned(c, head, err);
    nib__rotate_set_norms(&c->norms, &c->g.runner, kind == TURNED);
    const nib_gptq_stream *stream = kind == TURNED ? &g->coded : &g->stored;
    if (status == NIB_OK)
        status = nib__runner_logits(&g->runner, g->first[g->model->net.config.layers], g->count,
                                    stream->state, c->logits[kind], err);
    nib__rotate_set_norms(&c->norms, &c->g.runner, false);
    nib__gptq_unload_sites(g, head, head + 1);
    nib__arena_free(&c->held);
    return status;
}

/* What roundings of f32 may add up to, of the range of the logits: a sum of k products is off by
 * about sqrt(k) units, each layer adds four such sums in a row, and some go through twice. */
static double find_bound(const nib_network *net)
{
    int64_t widest = 1;
    for (size_t i = 0; i < net->site_count; i++)
        widest = nib__max(widest, net->sites[i].k);
    return 0x1p-24 * 8 * sqrt((double)widest) * (double)(net->config.layers + 1);
}

static nib_status compare(const check *c, nib_err *err)
{
    const nib_network *net = &c->g.model->net;
    const int64_t count = c->g.count * net->config.vocab;
    double worst = 0, range[2] = {INFINITY, -INFINITY};
    for (int64_t i = 0; i < count; i++) {
        const double stored = (double)c->logits[STORED][i], turned = (double)c->logits[TURNED][i];
        worst = fabs(stored - turned) <= worst ? worst : fabs(stored - turned);
        range[0] = fmin(range[0], stored);
        range[1] = fmax(range[1], stored);
    }
    const double share = worst / (range[1] - range[0]), bound = find_bound(net);
    if (!(share <= bound))
        return nib__fail(err, NIB_CHECK_FAILED,
                         "the method rotate: the logits of %lld tokens with rotated weights in f32 "
                         "differ by %.3g of their range from those of the stored weights, and "
                         "f32 arithmetic explains %.3g; use search",
                         (long long)c->g.count, share, bound);
    nib__ledger_add_note(c->job->ledger, "method",
                         "rotate: with rotated weights in f32, the logits of %lld tokens differ by "
                         "%.2g of their range from those of the stored weights; f32 arithmetic "
                         "explains up to %.2g",
                         (long long)c->g.count, share, bound);
    return NIB_OK;
}

static nib_status allocate(check *c, nib_arena *arena, nib_err *err)
{
    nib_gptq_run *g = &c->g;
    const nib_network *net = &g->model->net;
    const size_t layers = (size_t)net->config.layers;
    g->first = nib__arena_take(arena, layers + 1, sizeof *g->first);
    if (g->first == NULL)
        return nib__fail_memory(err, layers, "the check of rotations");
    NIB_TRY(nib__rotate_find_norms(&c->norms, c->job, &g->runner, arena, err));
    nib__runner_layers(g->first, &g->runner);
    for (size_t l = 1; l <= layers; l++)
        g->width = nib__max(g->width, nib__runner_state_width(&g->runner, g->first[l]));
    g->stored.count = g->coded.count = g->count;
    const uint64_t floats = (uint64_t)g->count * (uint64_t)g->width,
                   logits = (uint64_t)g->count * (uint64_t)net->config.vocab;
    g->stored.state = nib__arena_take(arena, floats, sizeof(float));
    g->coded.state = nib__arena_take(arena, floats, sizeof(float));
    for (int kind = 0; kind < KINDS; kind++)
        c->logits[kind] = nib__arena_take(arena, logits, sizeof(float));
    return g->stored.state && g->coded.state && c->logits[STORED] && c->logits[TURNED]
               ? NIB_OK
               : nib__fail_memory(err, (floats + logits) * 2 * sizeof(float), "logits");
}

static nib_status run_model(check *c, const nib_plan *plan, nib_arena *arena, nib_err *err)
{
    int32_t *ids = nib__arena_take(arena, TOKENS, sizeof *ids);
    if (ids == NULL)
        return nib__fail_memory(err, TOKENS * sizeof *ids, "tokens");
    for (int64_t i = 0; i < TOKENS; i++) /* any will do */
        ids[i] = (int32_t)((i * 7919 + 17) % c->g.model->net.config.vocab);
    c->g.ids = ids;
    c->g.count = c->g.window = nib__min(plan->context, TOKENS);
    NIB_TRY(allocate(c, arena, err));
    for (int64_t l = 0; l < c->g.model->net.config.layers; l++)
        NIB_TRY(run_layer(c, (size_t)l, err));
    for (int kind = 0; kind < KINDS; kind++)
        NIB_TRY(run_head(c, kind, err));
    return compare(c, err);
}

nib_status nib__rotate_check(const nib_rotating *job, nib_model *model, nib_err *err)
{
    nib_gptq as = {.name = "rotate"};
    check c = {.job = job, .g = {.job = &as, .model = model}};
    const nib_request as_stored = {.recipe = "f32+embed+head+router", .dtype = "f32"};
    nib_plan *plan = NULL;
    nib_arena arena;
    nib__arena_init(&arena, &model->engine->allocator, 0);
    nib_status status = nib_plan_open(&plan, model, &as_stored, err);
    if (status == NIB_OK)
        status = nib__runner_open_unloaded(&c.g.runner, &model->net, &plan->assignment,
                                           nib__min(plan->context, TOKENS), err);
    if (status == NIB_OK) {
        status = run_model(&c, plan, &arena, err);
        nib__runner_close(&c.g.runner);
    }
    nib_plan_close(plan);
    nib__arena_free(&arena);
    return status;
}
