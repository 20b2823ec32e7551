/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs the calibration text a decoder layer at a time: once with the layer's weights as stored, to
 * sum the second moments of their inputs, then, with the codes that those give, to what the next
 * layer reads. Layers whose codes an earlier run stored run once. Memory holds the text's hidden
 * states, and the weights and moments of one layer.
 *
 * The method qronos goes through a layer in stages, one for each input: q, k and v, then o, gate
 * and up, down. Each sees its inputs with the codes of the stages before it, beside those of the
 * model as stored.
 */
#include "convert.h"
#include "gptq_run.h"
#include "learn_run.h"
#include "plan_handle.h"
#include "quantizer.h"

enum { WINDOW = 2048, TEXT_MAX = 64 << 20 };

bool nib__gptq_is_coded(const nib_gptq_run *g, size_t site)
{
    const nib_quantize_layer *l = &g->job->layers[site];
    return nib__ptq_sweeps(l->choice.method) && nib__layer_is_quantized(l) && !l->recode &&
           l->role != NIB_ROLE_EMBED;
}

/* An expert, or a head of several. */
static bool is_part(const nib_gptq_run *g, size_t site)
{
    const nib_graph_weight *w = nib__graph_weight(&g->model->net.graph, NIB_WEIGHT_MATRIX, site);
    return w->experts > 1 || w->heads > 1;
}

bool nib__gptq_is_paired(const nib_gptq_run *g, size_t site)
{
    return nib__ptq_pairs(g->job->layers[site].choice.method) && nib__gptq_is_coded(g, site) &&
           !is_part(g, site);
}

nib_order_rule nib__gptq_order(const nib_gptq_run *g, size_t site)
{
    return nib__order_of(&g->job->layers[site].choice.scheme, g->model->net.sites[site].k,
                         g->job->ascending);
}

size_t nib__gptq_stage_end(const nib_gptq_run *g, size_t site, size_t end)
{
    const size_t owner = nib__gptq_owner(g, site);
    size_t i = site + 1;
    while (i < end && (nib__gptq_owner(g, i) == owner || (is_part(g, site) && is_part(g, i))))
        i++;
    return i;
}

/* Whether a site of [begin, end) is coded by qronos. */
static bool has_stages(const nib_gptq_run *g, size_t begin, size_t end)
{
    while (begin < end && !nib__gptq_is_paired(g, begin))
        begin++;
    return begin < end;
}

size_t nib__gptq_owner(const nib_gptq_run *g, size_t site)
{
    while (g->model->net.sites[site].shares_input)
        site--;
    return site;
}

/* ---- the weights of a layer ---- */

nib_status nib__gptq_load_stored(nib_gptq_run *g, size_t site, nib_err *err)
{
    nib_runner *r = &g->runner;
    nib__weight_unload(&r->weights[site], &g->model->engine->allocator);
    return nib__weight_load(&r->weights[site], r->net, &r->plan->layers[site], site, &r->staging,
                            NULL, err);
}

nib_status nib__gptq_load_sites(nib_gptq_run *g, size_t begin, size_t end, nib_err *err)
{
    for (size_t i = begin; i < end; i++)
        NIB_TRY(nib__gptq_load_stored(g, i, err));
    return NIB_OK;
}

void nib__gptq_unload_sites(nib_gptq_run *g, size_t begin, size_t end)
{
    for (size_t i = begin; i < end; i++)
        nib__weight_unload(&g->runner.weights[i], &g->model->engine->allocator);
}

nib_status nib__gptq_load(nib_gptq_run *g, size_t site, const nib_codes *codes, nib_err *err)
{
    nib_site *at = &g->model->net.sites[site];
    const nib_weight stored = at->weight;
    nib_quantizer q;
    NIB_TRY(nib__gptq_quantizer(&q, g, site, err));
    nib__quantizer_describe_weight(&at->weight, &q, at->n, codes->codes, codes->scales,
                                   codes->zeros);
    at->weight.tensor_scale = codes->tensor_scale;
    at->weight.bias = stored.bias;
    at->weight.bias_type = stored.bias_type;
    const nib_status status = nib__gptq_load_stored(g, site, err);
    at->weight = stored;
    return status;
}

static nib_status load_codes(nib_gptq_run *g, size_t begin, size_t end, nib_err *err)
{
    for (size_t i = begin; i < end; i++)
        if (g->job->layers[i].codes != NULL)
            NIB_TRY(nib__gptq_load(g, i, g->job->layers[i].codes, err));
    return NIB_OK;
}

/* Whether a record is of a weight of the sites [begin, end), and of its shape. */
static bool is_of_layer(const nib_gptq_run *g, const nib_gptq_codes *c, size_t begin, size_t end)
{
    nib_quantizer q;
    if (c->site < begin || c->site >= end || !nib__gptq_is_coded(g, (size_t)c->site))
        return false;
    const nib_site *at = &g->model->net.sites[c->site];
    return c->n == at->n && c->k == at->k &&
           nib__gptq_quantizer(&q, g, (size_t)c->site, NULL) == NIB_OK &&
           c->scale_bytes == (uint64_t)(c->n * q.groups * (nib__type_bits(q.scale_type) / 8)) &&
           c->zero_bytes == (uint64_t)(c->n * q.groups * (nib__type_bits(q.zero_type) / 8));
}

nib_status nib__gptq_fail_part(const nib_gptq_run *g, size_t part, nib_err *err)
{
    char a[NIB_SHOWN];
    return nib__fail(err, NIB_BAD_INPUT,
                     "%s: part %zu holds codes of another model; remove the directory",
                     nib__escape_string(a, nib__gptq_store_path(g->store)), part);
}

/* Gives the sites [begin, end) the codes of a part. */
static nib_status use_part(nib_gptq_run *g, size_t part, size_t begin, size_t end, nib_err *err)
{
    nib_gptq_codes c;
    for (uint64_t offset = 0; nib__gptq_store_next(g->store, part, &offset, &c);) {
        nib_codes *codes = nib__arena_take(g->job->arena, 1, sizeof *codes);
        if (codes == NULL)
            return nib__fail_memory(err, sizeof *codes, "codes");
        if (!is_of_layer(g, &c, begin, end))
            return nib__gptq_fail_part(g, part, err);
        *codes = c.codes;
        g->job->layers[c.site].codes = codes;
    }
    return NIB_OK;
}

/* ---- the text, a layer at a time ---- */

nib_status nib__gptq_run_layer(nib_gptq_run *g, const nib_gptq_stream *stream, size_t layer,
                               bool stays, nib_err *err)
{
    nib_slot slots[NIB_CHUNK];
    const size_t begin = layer == 0 ? 0 : g->first[layer];
    for (int64_t done = 0; done < stream->count;) {
        const int64_t at = done % g->window;
        const int64_t part = nib__min(nib__min(NIB_CHUNK, g->window - at), stream->count - done);
        float *state = stream->state + done * g->width;
        if (at == 0)
            nib__kv_truncate(&g->runner.kv, 0, 0);
        for (int64_t i = 0; i < part; i++)
            slots[i] = (nib_slot){.position = (int32_t)(at + i),
                                  .token = g->ids[stream->first + done + i]};
        NIB_TRY(nib__runner_part(&g->runner, slots, part, begin, g->first[layer + 1],
                                 begin == 0 ? NULL : state, stays ? NULL : state, err));
        if (g->status != NIB_OK)
            return nib__fail(err, g->status, "%s", g->err.text);
        NIB_TRY(nib__gptq_count(g, (double)part * g->cost.pass, err));
        done += part;
    }
    return NIB_OK;
}

/* The sites of a decoder layer: [*begin, *end). */
void nib__gptq_find_sites(const nib_gptq_run *g, int64_t layer, size_t *begin, size_t *end)
{
    const nib_network *net = &g->model->net;
    size_t i = 0;
    while (i < net->site_count &&
           nib__graph_weight(&net->graph, NIB_WEIGHT_MATRIX, i)->layer != layer)
        i++;
    *begin = i;
    while (i < net->site_count &&
           nib__graph_weight(&net->graph, NIB_WEIGHT_MATRIX, i)->layer == layer)
        i++;
    *end = i;
}

/* ---- stages ---- */

/* Changes the sites of a stage before this one between their codes and their stored weights. */
static void swap_weights(nib_gptq_run *g, size_t begin)
{
    for (size_t i = begin; i < g->stage[0]; i++)
        if (g->others[i].is_set) {
            const nib_loaded other = g->others[i].weight;
            g->others[i].weight = g->runner.weights[i];
            g->runner.weights[i] = other;
        }
}

/* Observes the inputs of the stage: a window as stored, then the same with codes. begin: the
 * layer's first site. */
static nib_status observe_stage(nib_gptq_run *g, size_t layer, size_t begin, nib_err *err)
{
    nib_status status = NIB_OK;
    for (int64_t at = 0; at < g->count && status == NIB_OK; at += g->window) {
        const int64_t count = nib__min(g->window, g->count - at);
        const nib_gptq_stream stored = {g->stored.state + at * g->width, count, at},
                              coded = {g->coded.state + at * g->width, count, at};
        swap_weights(g, begin);
        g->runner.observer.see = nib__gptq_keep;
        status = nib__gptq_run_layer(g, &stored, layer, true, err);
        swap_weights(g, begin);
        g->runner.observer.see = nib__gptq_observe;
        if (status == NIB_OK)
            status = nib__gptq_run_layer(g, &coded, layer, true, err);
        nib__gptq_forget(g);
    }
    g->runner.observer.see = NULL;
    return status;
}

/* Codes a layer stage by stage into a part, and loads the stored weights again. */
static nib_status code_stages(nib_gptq_run *g, size_t layer, size_t begin, size_t end, nib_err *err)
{
    nib_status status = nib__gptq_store_begin(g->store, layer, err);
    for (size_t i = begin; i < end && status == NIB_OK; i = g->stage[1]) {
        g->stage[0] = i;
        g->stage[1] = nib__gptq_stage_end(g, i, end);
        status = observe_stage(g, layer, begin, err);
        if (status == NIB_OK)
            status = nib__gptq_code(g, i, g->stage[1], err);
    }
    g->stage[0] = end;
    swap_weights(g, begin);
    for (size_t i = begin; i < end; i++) {
        nib__weight_unload(&g->others[i].weight, &g->model->engine->allocator);
        g->others[i].is_set = false;
    }
    g->stage[0] = 0;
    g->stage[1] = SIZE_MAX;
    NIB_TRY(status);
    NIB_TRY(nib__gptq_count(g, (double)g->count * g->cost.moments + g->cost.codes, err));
    return nib__gptq_store_end(g->store, err);
}

/* Codes the sites [begin, end) into a part, from the moments of their inputs. */
static nib_status code_part(nib_gptq_run *g, size_t part, size_t begin, size_t end, nib_err *err)
{
    NIB_TRY(nib__gptq_store_begin(g->store, part, err));
    NIB_TRY(nib__gptq_code(g, begin, end, err));
    NIB_TRY(nib__gptq_count(g, (double)g->count * g->cost.moments + g->cost.codes, err));
    return nib__gptq_store_end(g->store, err);
}

/* Shows the final norm of tokens [first, first + count) of a text. rows: room for them. */
static nib_status show_final(nib_gptq_run *g, size_t head, const nib_gptq_stream *stream,
                             int64_t first, int64_t count, float *rows, nib_err *err)
{
    const int64_t layers = g->model->net.config.layers, width = g->model->net.config.width;
    NIB_TRY(nib__runner_final(&g->runner, g->first[layers], count, stream->state + first * g->width,
                              rows, err));
    (stream == &g->stored ? nib__gptq_keep : nib__gptq_observe)(g, head, rows, width, count, width);
    return NIB_OK;
}

/* Sums the moments of the output layer's input. */
static nib_status observe_head(nib_gptq_run *g, size_t head, nib_err *err)
{
    const int64_t width = g->model->net.config.width;
    float *rows =
        nib__calloc(&g->model->engine->allocator, NIB_CHUNK * (uint64_t)width, sizeof *rows);
    nib_status status = rows != NULL ? NIB_OK : nib__fail_memory(err, (uint64_t)width, "a chunk");
    for (int64_t done = 0; done < g->count && status == NIB_OK;) {
        const int64_t at = done % g->window;
        const int64_t part = nib__min(nib__min(NIB_CHUNK, g->window - at), g->count - done);
        if (nib__gptq_is_paired(g, head))
            status = show_final(g, head, &g->stored, done, part, rows, err);
        if (status == NIB_OK)
            status = show_final(g, head, &g->coded, done, part, rows, err);
        nib__gptq_forget(g);
        done += part;
    }
    nib__release(&g->model->engine->allocator, rows);
    if (status == NIB_OK && g->status != NIB_OK)
        return nib__fail(err, g->status, "%s", g->err.text);
    return status;
}

static nib_status code_head(nib_gptq_run *g, nib_err *err)
{
    const size_t head = g->model->net.site_count - 1, part = (size_t)g->model->net.config.layers;
    nib__gptq_cost_of(&g->cost, g, head, head + 1);
    if (!nib__gptq_is_coded(g, head))
        return NIB_OK;
    if (!nib__gptq_store_has(g->store, part, NULL)) {
        NIB_TRY(observe_head(g, head, err));
        NIB_TRY(code_part(g, part, head, head + 1, err));
    }
    return use_part(g, part, head, head + 1, err);
}

static nib_status code_layer(nib_gptq_run *g, size_t layer, size_t begin, size_t end, nib_err *err)
{
    nib__gptq_cost_of(&g->cost, g, begin, end);
    NIB_TRY(nib__gptq_load_sites(g, begin, end, err));
    const bool is_stored = nib__gptq_store_has(g->store, layer, NULL);
    if (!is_stored && g->cost.stages > 0) {
        NIB_TRY(code_stages(g, layer, begin, end, err));
    } else if (!is_stored) {
        g->runner.observer.see = nib__gptq_observe;
        const nib_status status = nib__gptq_run_layer(g, &g->coded, layer, true, err);
        g->runner.observer.see = NULL;
        NIB_TRY(status);
        NIB_TRY(code_part(g, layer, begin, end, err));
    }
    NIB_TRY(use_part(g, layer, begin, end, err));
    NIB_TRY(nib__gptq_check_layer(g, layer, begin, end, err));
    NIB_TRY(nib__rounding_tune(g, layer, begin, end, err));
    NIB_TRY(load_codes(g, begin, end, err));
    NIB_TRY(nib__gptq_run_layer(g, &g->coded, layer, false, err));
    nib__gptq_unload_sites(g, begin, end);
    return NIB_OK;
}

/* Learns new scales, and runs the beginning of the text with them. */
static nib_status learn(nib_gptq_run *g, nib_err *err)
{
    const size_t part = nib__learn_part(g);
    if (!nib__learn_has(g))
        return NIB_OK;
    if (!nib__gptq_store_has(g->store, part, NULL))
        NIB_TRY(nib__learn(g, err));
    NIB_TRY(use_part(g, part, 0, g->model->net.site_count, err));
    g->coded.count = g->rounded.count;
    for (int64_t l = 0; l < g->model->net.config.layers; l++) {
        size_t begin, end;
        nib__gptq_find_sites(g, l, &begin, &end);
        nib__gptq_cost_of(&g->cost, g, begin, end);
        NIB_TRY(nib__gptq_load_sites(g, begin, end, err));
        NIB_TRY(load_codes(g, begin, end, err));
        NIB_TRY(nib__gptq_run_layer(g, &g->coded, (size_t)l, false, err));
        nib__gptq_unload_sites(g, begin, end);
    }
    return NIB_OK;
}

static double count_all(nib_gptq_run *g)
{
    const int64_t layers = g->model->net.config.layers;
    const size_t head = g->model->net.site_count - 1;
    nib_gptq_cost cost;
    double sum = 0;
    for (int64_t l = 0; l < layers; l++) {
        size_t begin, end;
        nib__gptq_find_sites(g, l, &begin, &end);
        nib__gptq_cost_of(&cost, g, begin, end);
        sum += nib__gptq_layer_cost(g, &cost, nib__gptq_store_has(g->store, (size_t)l, NULL));
    }
    nib__gptq_cost_of(&cost, g, head, head + 1);
    return sum +
           nib__gptq_head_cost(g, &cost, nib__gptq_store_has(g->store, (size_t)layers, NULL)) +
           nib__rounding_cost(g) + nib__learn_cost(g);
}

static nib_status code_layers(nib_gptq_run *g, nib_err *err)
{
    const uint64_t start = nib__now_ns();
    g->runner.observer.ctx = g;
    g->stage[1] = SIZE_MAX;
    g->total = count_all(g);
    NIB_TRY(nib__gptq_predict(g, err));
    for (int64_t l = 0; l < g->model->net.config.layers; l++) {
        size_t begin, end;
        nib__gptq_find_sites(g, l, &begin, &end);
        NIB_TRY(code_layer(g, (size_t)l, begin, end, err));
    }
    NIB_TRY(code_head(g, err));
    NIB_TRY(learn(g, err));
    NIB_TRY(nib__gptq_check(g, err));
    NIB_TRY(nib__gptq_count(g, g->total, err));
    g->job->seconds = (double)(nib__now_ns() - start) * 1e-9;
    return NIB_OK;
}

/* ---- notes ---- */

/* Inputs of which a note says how many there are, and names one. */
typedef struct unusual {
    size_t count;
    nib_gptq_codes most; /* the one that is named */
} unusual;

static void count_unusual(unusual *u, const nib_gptq_codes *c, bool is_more)
{
    if (u->count++ == 0 || is_more)
        u->most = *c;
}

/* Says which inputs saw too few tokens for moments of full rank, and which needed more on their
 * diagonal. Codes of one input stand in a row. */
static void note_inputs(const nib_gptq_run *g)
{
    unusual few = {0}, damped = {0};
    nib_gptq_codes c;
    char a[NIB_SHOWN];
    size_t owner = SIZE_MAX;
    for (size_t part = 0; part <= (size_t)g->model->net.config.layers; part++)
        for (uint64_t offset = 0; nib__gptq_store_has(g->store, part, NULL) &&
                                  nib__gptq_store_next(g->store, part, &offset, &c);) {
            if (nib__gptq_owner(g, (size_t)c.site) == owner)
                continue;
            owner = nib__gptq_owner(g, (size_t)c.site);
            if (c.tokens < c.k)
                count_unusual(&few, &c, c.tokens < few.most.tokens);
            if (c.damping > NIB_GPTQ_DAMPING)
                count_unusual(&damped, &c, c.damping > damped.most.damping);
        }
    if (few.count > 0)
        nib__ledger_add_note(g->job->ledger, "method",
                             "%s: %zu inputs saw fewer tokens than they have columns, so their "
                             "moments say little: %s %lld tokens, %lld columns",
                             g->job->name, few.count,
                             nib__escape_string(a, g->job->layers[few.most.site].name),
                             (long long)few.most.tokens, (long long)few.most.k);
    if (damped.count > 0)
        nib__ledger_add_note(g->job->ledger, "method",
                             "%s: the second moments of %zu inputs are not positive definite "
                             "with %g times their mean on the diagonal, but with more: %s %g",
                             g->job->name, damped.count, NIB_GPTQ_DAMPING,
                             nib__escape_string(a, g->job->layers[damped.most.site].name),
                             damped.most.damping);
}

/* Says how many layers qronos codes as gptq does. */
static void note_unpaired(const nib_gptq_run *g)
{
    size_t count = 0;
    for (size_t i = 0; i < g->model->net.site_count; i++)
        count += nib__gptq_is_coded(g, i) && is_part(g, i) &&
                 nib__ptq_pairs(g->job->layers[i].choice.method);
    if (count > 0)
        nib__ledger_add_note(g->job->ledger, "method",
                             "%s: %zu layers are experts or heads, whose inputs have no "
                             "counterpart in the model as stored, so they are coded as by gptq%s",
                             g->job->name, count,
                             nib__learn_any(g) ? ", before they are learned" : "");
}

/* Counts the layers that have codes by the order of their inputs, and says it. */
static void note_orders(const nib_gptq_run *g)
{
    static const char *const words[NIB_INPUTS_ORDERS] = {
        "as stored", "by groups, those with the largest squares first",
        "one by one, those with the largest squares first"};
    for (size_t i = 0; i < g->model->net.site_count && !g->job->keeps_rounding; i++)
        if (g->job->layers[i].codes != NULL)
            g->job->orders[nib__gptq_order(g, i).kind]++;
    for (int i = 0; i < NIB_INPUTS_ORDERS; i++)
        if (g->job->orders[i] != 0)
            nib__ledger_add_note(g->job->ledger, "method", "%s: inputs of %zu layer%s are coded %s",
                                 g->job->name, g->job->orders[i], g->job->orders[i] == 1 ? "" : "s",
                                 words[i]);
}

/* ---- opening ---- */

/* The tokens of each stream. */
static void count_tokens(nib_gptq_run *g)
{
    g->coded.count = g->count;
    g->stored.count = g->rounded.count = nib__min(g->count, NIB_GPTQ_CHECKED);
    if (has_stages(g, 0, g->model->net.site_count) || nib__learn_any(g))
        g->stored.count = g->count;
}

static nib_status allocate(nib_gptq_run *g, nib_arena *arena, nib_err *err)
{
    const size_t layers = (size_t)g->model->net.config.layers, sites = g->model->net.site_count,
                 threads = (size_t)nib__pool_threads(g->model->engine->pool);
    g->first = nib__arena_take(arena, layers + 1, sizeof *g->first);
    g->inputs = nib__arena_take(arena, sites, sizeof *g->inputs);
    g->others = nib__arena_take(arena, sites, sizeof *g->others);
    g->scratch = nib__arena_take(arena, threads, NIB_MOMENTS_SCRATCH);
    if (!g->first || !g->inputs || !g->others || !g->scratch)
        return nib__fail_memory(err, threads * NIB_MOMENTS_SCRATCH, "the method gptq");
    nib__runner_layers(g->first, &g->runner);
    for (size_t l = 1; l <= layers; l++)
        g->width = nib__max(g->width, nib__runner_state_width(&g->runner, g->first[l]));
    count_tokens(g);
    nib_gptq_stream *const streams[] = {&g->coded, &g->stored, &g->rounded};
    for (size_t i = 0; i < COUNT(streams); i++) {
        const uint64_t floats = (uint64_t)streams[i]->count * (uint64_t)g->width;
        streams[i]->state = nib__arena_take(arena, floats, sizeof *streams[i]->state);
        if (streams[i]->state == NULL)
            return nib__fail_memory(err, floats * sizeof(float), "the hidden states of a text");
    }
    return NIB_OK;
}

static nib_status run_model(nib_gptq_run *g, const nib_plan *plan, nib_err *err)
{
    nib_arena arena;
    NIB_TRY(
        nib__runner_open_unloaded(&g->runner, &g->model->net, &plan->assignment, g->window, err));
    nib__arena_init(&arena, &g->model->engine->allocator, 0);
    nib_status status = allocate(g, &arena, err);
    if (status == NIB_OK)
        status = code_layers(g, err);
    if (status == NIB_OK) {
        note_inputs(g);
        note_unpaired(g);
        nib__learn_note(g);
        g->job->keeps_rounding = nib__gptq_is_worse(g, "first");
        note_orders(g);
    }
    for (size_t i = 0; g->inputs != NULL && i < g->model->net.site_count; i++)
        nib__gptq_release(g, i);
    nib__arena_free(&arena);
    nib__runner_close(&g->runner);
    return status;
}

static nib_status read_tokens(nib_gptq_run *g, const nib_tokenizer *tokenizer, int32_t **ids,
                              nib_err *err)
{
    const nib_allocator *a = &g->model->engine->allocator;
    char shown[NIB_SHOWN], *text;
    size_t size, count;
    NIB_TRY(nib__file_read(&text, &size, g->job->text, TEXT_MAX, a, err));
    const nib_status status =
        nib__tokenizer_encode(tokenizer, text, size, NIB_ENCODE_ADD_SPECIAL, ids, &count, err);
    nib__release(a, text);
    NIB_TRY(status);
    g->ids = *ids;
    g->count = nib__min((int64_t)count, g->job->tokens);
    if (count == 0)
        return nib__fail(err, NIB_BAD_INPUT, "%s: the calibration text is empty",
                         nib__escape_string(shown, g->job->text));
    nib__ledger_add_note(g->job->ledger, "method",
                         "%s: %lld of the text's %zu tokens, in windows of %lld", g->job->name,
                         (long long)g->count, count, (long long)g->window);
    return NIB_OK;
}

static void name_method(const nib_gptq_run *g)
{
    nib_ptq_method method = NIB_PTQ_GPTQ;
    for (size_t i = 0; i < g->model->net.site_count; i++)
        if (nib__gptq_is_coded(g, i) && nib__ptq_pairs(g->job->layers[i].choice.method) &&
            method != NIB_PTQ_LEARN)
            method = g->job->layers[i].choice.method;
    g->job->name = nib__ptq_names[method];
}

nib_status nib__gptq_with_text(nib_gptq_run *g, nib_gptq_job run, void *ctx, nib_err *err)
{
    const nib_request *r = g->job->request;
    const char *dtype = g->job->dtype != NULL ? g->job->dtype : r->dtype;
    const nib_request as_stored = {.dtype = dtype, .context = r->context};
    const nib_tokenizer *tokenizer;
    nib_plan *plan = NULL;
    int32_t *ids = NULL;
    if (g->model->net.config.shared_layers > 0)
        return nib__fail(err, NIB_UNSUPPORTED,
                         "the method %s runs a layer at a time, and the last %lld layers of this "
                         "model read the keys of earlier ones; use the method search",
                         g->job->name, (long long)g->model->net.config.shared_layers);
    if (nib__learn_any(g))
        NIB_TRY(nib__learn_check(g, err));
    NIB_TRY(nib_model_tokenizer(&tokenizer, g->model, err));
    nib_status status = nib_plan_open(&plan, g->model, &as_stored, err);
    if (status == NIB_OK) {
        g->window = nib__min(plan->context, WINDOW);
        status = read_tokens(g, tokenizer, &ids, err);
    }
    if (status == NIB_OK)
        status = run(ctx, plan, err);
    nib__tokenizer_ids_free(tokenizer, ids);
    nib_plan_close(plan);
    return status;
}

static nib_status run_gptq(void *ctx, const nib_plan *plan, nib_err *err)
{
    nib_gptq_run *g = ctx;
    const nib_gptq_saved saved = {.parts = nib__learn_parts(g),
                                  .layers = (size_t)g->model->net.config.layers + 1,
                                  .is_saved = nib__gptq_is_coded,
                                  .noun = "codes",
                                  .done = "coded",
                                  .more = nib__learn_found,
                                  .key = g->job->rounds && nib__learn_any(g) ? "rounding: tuned\n"
                                                                             : NULL};
    NIB_TRY(nib__gptq_open_store(g, &saved, plan->assignment.dtype, err));
    return run_model(g, plan, err);
}

static nib_status forecast(void *ctx, const nib_plan *plan, nib_err *err)
{
    nib_gptq_run *g = ctx;
    g->runner.plan = &plan->assignment;
    count_tokens(g);
    g->total = count_all(g);
    return nib__gptq_time(g, err);
}

static nib_status with_text(nib_gptq *job, nib_model *model, nib_gptq_job run, nib_err *err)
{
    nib_gptq_run g = {.job = job, .model = model, .rows = nib__moments_best(model->engine->isa)};
    name_method(&g);
    g.loader = nib__gptq_loader(&g);
    job->tokens = NIB_GPTQ_TOKENS;
    return nib__gptq_with_text(&g, run, &g, err);
}

nib_status nib__gptq(nib_gptq *job, nib_model *model, nib_err *err)
{
    return with_text(job, model, run_gptq, err);
}

nib_status nib__gptq_forecast(nib_gptq *job, nib_model *model, nib_err *err)
{
    return with_text(job, model, forecast, err);
}
