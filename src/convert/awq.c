/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs the text a decoder layer at a time with the weights as stored. For each input of linear
 * layers that can be scaled, it runs the layer again with the weights that the codes of each
 * candidate stand for, and keeps the candidate whose output is nearest to that of the stored
 * weights. The other weights are as stored meanwhile.
 */
#include "awq.h"

#include "fold.h"
#include "gptq_run.h"
#include "plan_handle.h"
#include "portable_math.h"
#include "quantizer.h"

#include <math.h>
#include <stdio.h>

enum { POWERS = 10, CANDIDATES = 2 + POWERS }; /* rounding, no scales, and powers 0.1 .. 1 */

typedef struct awq_run {
    nib_awq *job;
    nib_gptq_run g;
    float *target, *trial; /* states after the layer: of stored weights, of a candidate */
    nib_fold_group *group; /* in work */
    float *columns, *norm; /* [k] scales of a candidate, and the norm before them */
    size_t kept[3];        /* groups that rounding, no scales, and scales serve best */
} awq_run;

/* ---- scales ---- */

/* The importance of input j of a group: the mean over the layers' inputs that take one row. */
static double importance_of(const awq_run *w, int64_t j)
{
    const nib_fold_group *f = w->group;
    const float *of = w->job->layers[f->sites[0]].importance;
    const int64_t head = j / f->head_dim / f->heads_per_row * f->heads_per_row;
    double sum = 0;
    for (int64_t h = 0; h < f->heads_per_row; h++)
        sum += (double)of[(head + h) * f->head_dim + j % f->head_dim];
    return sum / (double)f->heads_per_row;
}

/* s_j = (mean square)^(power / 2), over the geometric mean of the smallest and largest. */
static void fill_scales(const awq_run *w, double power)
{
    double least = INFINITY, most = 0;
    for (int64_t j = 0; j < w->group->k; j++) {
        const double s = nib__exp(power / 2 * nib__log(importance_of(w, j)));
        least = s < least ? s : least;
        most = s > most ? s : most;
        w->columns[j] = (float)s;
    }
    const double middle = sqrt(least) * sqrt(most);
    for (int64_t j = 0; j < w->group->k; j++)
        w->columns[j] = (float)((double)w->columns[j] / middle);
}

/* Rounds to a stored type. */
static float round_stored(nib_type type, double x)
{
    uint8_t stored[4];
    float value = (float)x;
    nib__from_f32(stored, type, &value, 1);
    nib__to_f32(&value, stored, type, 1);
    return value;
}

/* The stored type of a norm's part. */
static nib_type norm_type(const awq_run *w, nib_norm_part part)
{
    char name[NIB_NORM_NAME];
    const nib_network *net = &w->g.model->net;
    return nib__checkpoint_find(net->checkpoint,
                                nib__network_norm_name(name, net, (size_t)w->group->norm, part))
        ->type;
}

static nib_status read_norm(const awq_run *w, nib_norm_part part, nib_err *err)
{
    return nib__network_norm(w->norm, &w->g.model->net, (size_t)w->group->norm, part, err);
}

/* Divides the norm in w->norm by the scales, as it can be stored, and makes the scales those that
 * it then has. */
static void fit_to_norm(const awq_run *w)
{
    const nib_type type = norm_type(w, NIB_NORM_WEIGHT);
    const double offset =
        nib__graph_weight(&w->g.model->net.graph, NIB_WEIGHT_NORM, (size_t)w->group->norm)->offset;
    for (int64_t j = 0; j < w->group->k; j++) {
        const double before = (double)w->norm[j] + offset;
        const float after = round_stored(type, before / (double)w->columns[j] - offset);
        const double scale = before / ((double)after + offset);
        if (isfinite(scale) && scale > 0) {
            w->norm[j] = after;
            w->columns[j] = (float)scale;
        } else {
            w->columns[j] = 1;
        }
    }
}

/* Fills the scales of a candidate, and the norm that goes with them: 0 and 1 have none. */
static nib_status make_scales(const awq_run *w, int candidate, nib_err *err)
{
    if (candidate < 2) {
        for (int64_t j = 0; j < w->group->k; j++)
            w->columns[j] = 1;
        return NIB_OK;
    }
    fill_scales(w, (double)(candidate - 1) / POWERS);
    if (w->group->norm < 0)
        return NIB_OK;
    NIB_TRY(read_norm(w, NIB_NORM_STORED, err));
    fit_to_norm(w);
    return NIB_OK;
}

/* ---- a candidate's weights ---- */

typedef struct coding {
    const nib_weight *from;
    nib_quantizer q;
    nib_fold fold;
    const float *columns;
    float *out; /* [n][k] */
    char *room; /* [threads][room_bytes] */
    uint64_t room_bytes;
    nib_err *errs; /* [threads] of the first failure; status NIB_OK: none */
} coding;

static void read_scaled(const coding *c, int64_t i, float *row)
{
    nib__weight_row(c->from, i, row);
    nib__fold_row(&c->fold, i, row, c->q.k, c->q.source);
}

/* Rows become what their codes stand for, without the scales of inputs. */
static void code_rows(void *ctx, int worker, int64_t begin, int64_t end)
{
    const coding *c = ctx;
    const int64_t k = c->q.k;
    float *row = (float *)(void *)(c->room + (uint64_t)worker * c->room_bytes);
    int8_t *codes = (int8_t *)(row + k);
    char *scales = (char *)codes + nib__round_up(k, 8), *zeros = scales + 4 * c->q.groups;
    for (int64_t i = begin; i < end && c->errs[worker].status == NIB_OK; i++) {
        nib_quantized to = {.codes = codes,
                            .scales = scales,
                            .zeros = c->q.zero_type == NIB_TYPE_NONE ? NULL : zeros};
        nib_weight w;
        read_scaled(c, i, row);
        if (nib__quantizer_quantize_rows(&c->q, row, i, 1, &to, &c->errs[worker]) != NIB_OK)
            return;
        nib__quantizer_describe_weight(&w, &c->q, 1, codes, scales, to.zeros);
        nib__weight_row(&w, 0, c->out + i * k);
        for (int64_t j = 0; j < k; j++)
            c->out[i * k + j] /= c->columns[j];
    }
}

static nib_status find_range(coding *c, float *row, nib_err *err)
{
    float range[2] = {0, 0};
    for (int64_t i = 0; i < c->from->n; i++) {
        read_scaled(c, i, row);
        NIB_TRY(nib__quantizer_scan(&c->q, row, i, 1, range, err));
    }
    return nib__quantizer_set_range(&c->q, range, err);
}

/* The importance of scaled inputs: what an input counts is divided by the square of its scale. */
static nib_status scaled_importance(const float **out, const float *importance,
                                    const float *columns, int64_t k, nib_arena *arena, nib_err *err)
{
    float *to = nib__arena_take(arena, (uint64_t)k, sizeof *to);
    if (to == NULL)
        return nib__fail_memory(err, (uint64_t)k * sizeof *to, "the calibration");
    for (int64_t j = 0; j < k; j++)
        to[j] = (float)((double)importance[j] / ((double)columns[j] * (double)columns[j]));
    *out = to;
    return NIB_OK;
}

/* Loads a site with the weights that a candidate's codes stand for. */
static nib_status load_candidate(awq_run *w, size_t site, int candidate, nib_arena *arena,
                                 nib_err *err)
{
    nib_engine *engine = w->g.model->engine;
    nib_site *at = &w->g.model->net.sites[site];
    const nib_quantize_layer *l = &w->job->layers[site];
    const uint64_t threads = (uint64_t)nib__pool_threads(engine->pool);
    const nib_weight stored = at->weight;
    const float *importance;
    coding c = {.from = &at->weight, .fold = {.columns = w->columns}, .columns = w->columns};
    NIB_TRY(nib__quantizer_init(&c.q, &l->choice.scheme, nib__float_type(stored.scheme.code), at->k,
                                err));
    NIB_TRY(scaled_importance(&importance, l->importance, w->columns, at->k, arena, err));
    NIB_TRY(nib__quantizer_method(&c.q, candidate == 0 ? NIB_PTQ_RTN : NIB_PTQ_SEARCH, importance,
                                  err));
    NIB_TRY(nib__quantizer_scales(&c.q, l->choice.scale_type, err));
    c.q.run = nib__quant_w_best(engine->isa);
    c.room_bytes = (uint64_t)nib__round_up(at->k * 6 + 16 + 8 * c.q.groups, 64);
    c.out = nib__arena_take(arena, (uint64_t)at->n * (uint64_t)at->k, sizeof *c.out);
    c.room = nib__arena_take(arena, threads, c.room_bytes);
    c.errs = nib__arena_take(arena, threads, sizeof *c.errs);
    if (!c.out || !c.room || !c.errs)
        return nib__fail_memory(err, (uint64_t)at->n * (uint64_t)at->k * sizeof *c.out, at->name);
    if (nib__quantizer_needs_scan(&c.q))
        NIB_TRY(find_range(&c, (float *)(void *)c.room, err));
    nib__pool_run(engine->pool, at->n, 4, false, code_rows, &c);
    for (uint64_t i = 0; i < threads; i++)
        if (c.errs[i].status != NIB_OK)
            return nib__fail(err, c.errs[i].status, "%s: %s", at->name, c.errs[i].text);
    at->weight = (nib_weight){.scheme = {.code = NIB_CODE_F32, .symmetric = true},
                              .n = at->n,
                              .k = at->k,
                              .layout = NIB_LAYOUT_FLOAT,
                              .codes = (const void *)c.out,
                              .bias = stored.bias,
                              .bias_type = stored.bias_type};
    const nib_status status = nib__gptq_load_stored(&w->g, site, err);
    at->weight = stored;
    return status;
}

/* ---- a layer ---- */

/* The squared distance of the layer's output with the weights that are loaded. */
static nib_status measure(awq_run *w, size_t layer, double *lost, nib_err *err)
{
    nib_gptq_run *g = &w->g;
    const int64_t floats = g->count * g->width;
    const nib_gptq_stream stream = {.state = w->trial, .count = g->count};
    memcpy(w->trial, g->coded.state, (size_t)floats * sizeof *w->trial);
    NIB_TRY(nib__gptq_run_layer(g, &stream, layer, false, err));
    *lost = 0;
    for (int64_t i = 0; i < floats; i++) {
        const double d = (double)w->trial[i] - (double)w->target[i];
        *lost += d * d;
    }
    return NIB_OK;
}

static nib_status measure_candidate(awq_run *w, size_t layer, int candidate, double *lost,
                                    nib_err *err)
{
    nib_status status = make_scales(w, candidate, err);
    for (int i = 0; i < w->group->count && status == NIB_OK; i++) {
        nib_arena arena;
        nib__arena_init(&arena, &w->g.model->engine->allocator, 0);
        status = load_candidate(w, w->group->sites[i], candidate, &arena, err);
        nib__arena_free(&arena);
    }
    return status == NIB_OK ? measure(w, layer, lost, err) : status;
}

/* Lists new values of a vector. They are in the arena of the job. */
static nib_status add_vector(awq_run *w, const char *name, const float *values, int64_t count,
                             nib_err *err)
{
    nib_awq *job = w->job;
    nib_vector *to = &job->vectors[job->vector_count];
    *to = (nib_vector){
        .name = nib__arena_copy(job->arena, name, strlen(name)), .values = values, .count = count};
    if (to->name == NULL)
        return nib__fail_memory(err, strlen(name), "a name");
    job->vector_count++;
    return NIB_OK;
}

static nib_status take_floats(float **out, const awq_run *w, int64_t count, nib_err *err)
{
    *out = nib__arena_take(w->job->arena, (uint64_t)count, sizeof **out);
    return *out != NULL
               ? NIB_OK
               : nib__fail_memory(err, (uint64_t)count * sizeof **out, "the scales of a layer");
}

/* Lists a part of the norm before the group with the values of w->norm. */
static nib_status add_norm(awq_run *w, nib_norm_part part, nib_err *err)
{
    char name[NIB_NORM_NAME];
    float *values;
    NIB_TRY(take_floats(&values, w, w->group->k, err));
    memcpy(values, w->norm, (size_t)w->group->k * sizeof *values);
    nib__network_norm_name(name, &w->g.model->net, (size_t)w->group->norm, part);
    return add_vector(w, name, values, w->group->k, err);
}

/* Gives the norm the inverse of the scales. */
static nib_status fold_into_norm(awq_run *w, nib_err *err)
{
    const nib_graph *graph = &w->g.model->net.graph;
    NIB_TRY(add_norm(w, NIB_NORM_WEIGHT, err));
    if (!nib__graph_weight(graph, NIB_WEIGHT_NORM, (size_t)w->group->norm)->bias)
        return NIB_OK;
    NIB_TRY(read_norm(w, NIB_NORM_BIAS, err));
    for (int64_t j = 0; j < w->group->k; j++)
        w->norm[j] =
            round_stored(norm_type(w, NIB_NORM_BIAS), (double)w->norm[j] / (double)w->columns[j]);
    return add_norm(w, NIB_NORM_BIAS, err);
}

/* Gives the rows of the layer before, and its bias, the inverse of the scales. */
static nib_status fold_into_rows(awq_run *w, nib_err *err)
{
    const nib_fold_group *f = w->group;
    const nib_site *at = &w->g.model->net.sites[f->before];
    char name[512];
    float *rows;
    NIB_TRY(take_floats(&rows, w, at->n, err));
    for (int64_t j = 0; j < f->k; j++)
        rows[nib__fold_row_of(f, j)] = 1 / w->columns[j];
    w->job->layers[f->before].fold.rows = rows;
    if (at->weight.bias == NULL)
        return NIB_OK;
    float *bias;
    NIB_TRY(take_floats(&bias, w, at->n, err));
    nib__weight_bias(&at->weight, bias);
    for (int64_t i = 0; i < at->n; i++)
        bias[i] = round_stored(at->weight.bias_type, (double)bias[i] * (double)rows[i]);
    snprintf(name, sizeof name, "%s.bias", at->name);
    return add_vector(w, name, bias, at->n, err);
}

/* Gives the layers of a group the best candidate, whose scales are in w->columns. */
static nib_status keep(awq_run *w, int candidate, const double lost[2], nib_err *err)
{
    const nib_fold_group *f = w->group;
    double *objective = nib__arena_take(w->job->arena, 2, sizeof *objective);
    float *columns = NULL;
    if (objective == NULL)
        return nib__fail_memory(err, 2 * sizeof *objective, "the scales of a layer");
    if (candidate >= 2)
        NIB_TRY(take_floats(&columns, w, f->k, err));
    memcpy(objective, lost, 2 * sizeof *objective);
    NIB_TRY(make_scales(w, candidate, err));
    if (candidate >= 2)
        memcpy(columns, w->columns, (size_t)f->k * sizeof *columns);
    for (int i = 0; i < f->count; i++) {
        nib_quantize_layer *l = &w->job->layers[f->sites[i]];
        if (candidate == 0)
            l->choice.method = NIB_PTQ_RTN;
        l->objective = objective;
        l->fold.columns = columns;
        NIB_TRY(
            scaled_importance(&l->importance, l->importance, w->columns, f->k, w->job->arena, err));
    }
    w->kept[candidate < 2 ? candidate : 2]++;
    if (candidate < 2)
        return NIB_OK;
    return f->norm >= 0 ? fold_into_norm(w, err) : fold_into_rows(w, err);
}

static nib_status scale_group(awq_run *w, size_t layer, nib_err *err)
{
    double lost[2] = {0, 0};
    int best = 0;
    for (int i = 0; i < CANDIDATES; i++) {
        double one;
        NIB_TRY(measure_candidate(w, layer, i, &one, err));
        if (i == 0)
            lost[0] = lost[1] = one;
        else if (one < lost[1]) {
            lost[1] = one;
            best = i;
        }
    }
    for (int i = 0; i < w->group->count; i++)
        NIB_TRY(nib__gptq_load_stored(&w->g, w->group->sites[i], err));
    return keep(w, best, lost, err);
}

/* ---- notes ---- */

/* Says of the sites of each reason why their inputs have no scales: every one by its name. */
static nib_status note_unscaled(const awq_run *w, const char *const *why, nib_err *err)
{
    const size_t sites = w->g.model->net.site_count;
    for (size_t i = 0; i < sites; i++) {
        bool known = why[i] == NULL;
        size_t count = 0;
        nib_text names;
        for (size_t j = 0; j < i && !known; j++)
            known = why[j] != NULL && strcmp(why[j], why[i]) == 0;
        if (known)
            continue;
        nib__text_init(&names, &w->g.model->engine->allocator);
        for (size_t j = i; j < sites; j++)
            if (why[j] != NULL && strcmp(why[j], why[i]) == 0)
                nib__text_format(&names, "%s%s", count++ == 0 ? "" : ", ", w->job->layers[j].name);
        if (!names.failed)
            nib__ledger_add_note(w->job->ledger, "method",
                                 "awq: the inputs of %zu layers have no scales, as %s: %s", count,
                                 why[i], names.at);
        const bool failed = names.failed;
        nib__text_free(&names);
        if (failed)
            return nib__fail_memory(err, sites, "names of layers");
    }
    return NIB_OK;
}

static void note_kept(const awq_run *w)
{
    nib__ledger_add_note(w->job->ledger, "method",
                         "awq: %zu inputs have scales, folded into what makes them; without scales "
                         "%zu lose least of their layer's output by searched codes, and %zu by "
                         "rounding",
                         w->kept[2], w->kept[1], w->kept[0]);
}

/* ---- the layers ---- */

/* Why a group keeps its inputs, beyond what the graph says; NULL: it need not. */
static const char *check_group(const awq_run *w, const nib_fold_group *f)
{
    const nib_network *net = &w->g.model->net;
    if (f->why != NULL)
        return f->why;
    if (w->job->layers[f->sites[0]].importance == NULL)
        return "they are 0 on the text";
    if (f->before != SIZE_MAX && net->sites[f->before].weight.bias != NULL &&
        w->job->options->request->bias != NULL)
        return "the bias of the linear layer before it becomes codes";
    return NULL;
}

static nib_status scale_layer(awq_run *w, size_t layer, const char **why, nib_err *err)
{
    nib_gptq_run *g = &w->g;
    nib_fold_group *groups;
    nib_arena arena;
    size_t begin, end, count;
    float *target = g->coded.state;
    nib__gptq_find_sites(g, (int64_t)layer, &begin, &end);
    nib__gptq_cost_of(&g->cost, g, begin, end);
    NIB_TRY(nib__gptq_load_sites(g, begin, end, err));
    memcpy(w->target, g->coded.state, (size_t)(g->count * g->width) * sizeof *w->target);
    const nib_gptq_stream stored = {.state = w->target, .count = g->count};
    NIB_TRY(nib__gptq_run_layer(g, &stored, layer, false, err));
    nib__arena_init(&arena, &g->model->engine->allocator, 0);
    nib_status status = nib__fold_groups(&groups, &count, &g->model->net, (int64_t)layer,
                                         w->job->layers, NIB_PTQ_AWQ, &arena, err);
    for (size_t i = 0; i < count && status == NIB_OK; i++) {
        const char *reason = check_group(w, &groups[i]);
        for (int j = 0; j < groups[i].count; j++)
            if (nib__fold_is_scaled(&w->job->layers[groups[i].sites[j]], NIB_PTQ_AWQ))
                why[groups[i].sites[j]] = reason;
        w->group = &groups[i];
        if (reason == NULL)
            status = scale_group(w, layer, err);
    }
    nib__arena_free(&arena);
    nib__gptq_unload_sites(g, begin, end);
    g->coded.state = w->target;
    w->target = target;
    return status;
}

/* Multiply-adds of the layers, attention aside. */
static nib_status count_all(awq_run *w, nib_err *err)
{
    nib_gptq_run *g = &w->g;
    nib_gptq_cost cost;
    for (int64_t l = 0; l < g->model->net.config.layers; l++) {
        nib_fold_group *groups;
        nib_arena arena;
        size_t begin, end, count, scaled = 0;
        nib__arena_init(&arena, &g->model->engine->allocator, 0);
        const nib_status status = nib__fold_groups(&groups, &count, &g->model->net, l,
                                                   w->job->layers, NIB_PTQ_AWQ, &arena, err);
        for (size_t i = 0; i < count && status == NIB_OK; i++)
            scaled += check_group(w, &groups[i]) == NULL;
        nib__arena_free(&arena);
        NIB_TRY(status);
        nib__gptq_find_sites(g, l, &begin, &end);
        nib__gptq_cost_of(&cost, g, begin, end);
        g->total += (double)g->count * cost.pass * (double)(1 + scaled * CANDIDATES);
    }
    return NIB_OK;
}

static nib_status scale_layers(awq_run *w, const char **why, nib_err *err)
{
    nib_gptq_run *g = &w->g;
    const uint64_t start = nib__now_ns();
    for (size_t i = 0; i < g->model->net.site_count; i++)
        if (nib__fold_is_scaled(&w->job->layers[i], NIB_PTQ_AWQ))
            why[i] = g->model->net.sites[i].experts > 1 ? "they are of experts"
                                                        : "they are outside of the decoder layers";
    NIB_TRY(count_all(w, err));
    NIB_TRY(nib__gptq_predict(g, err));
    for (int64_t l = 0; l < g->model->net.config.layers; l++)
        NIB_TRY(scale_layer(w, (size_t)l, why, err));
    NIB_TRY(nib__gptq_count(g, g->total, err));
    w->job->seconds = (double)(nib__now_ns() - start) * 1e-9;
    w->job->multiply_adds = g->job->multiply_adds;
    w->job->predicted_s = g->job->predicted_s;
    note_kept(w);
    return note_unscaled(w, why, err);
}

static nib_status run_model(void *ctx, const nib_plan *plan, nib_err *err)
{
    awq_run *w = ctx;
    nib_gptq_run *g = &w->g;
    const nib_network *net = &g->model->net;
    const size_t layers = (size_t)net->config.layers;
    int64_t widest = 0;
    nib_arena arena;
    NIB_TRY(nib__runner_open_unloaded(&g->runner, net, &plan->assignment, g->window, err));
    nib__arena_init(&arena, &g->model->engine->allocator, 0);
    for (size_t i = 0; i < net->site_count; i++)
        widest = nib__max(widest, net->sites[i].k);
    g->first = nib__arena_take(&arena, layers + 1, sizeof *g->first);
    const char **why = nib__arena_take(&arena, net->site_count, sizeof *why);
    w->columns = nib__arena_take(&arena, (uint64_t)widest, sizeof *w->columns);
    w->norm = nib__arena_take(&arena, (uint64_t)widest, sizeof *w->norm);
    /* a weight and a bias of each norm, and the bias of each linear layer */
    w->job->vectors =
        nib__arena_take(w->job->arena, 2 * net->graph.kind_count[NIB_WEIGHT_NORM] + net->site_count,
                        sizeof *w->job->vectors);
    nib_status status = g->first && why && w->columns && w->norm && w->job->vectors
                            ? NIB_OK
                            : nib__fail_memory(err, (uint64_t)widest, "the method awq");
    if (status == NIB_OK) {
        nib__runner_layers(g->first, &g->runner);
        for (size_t l = 1; l <= layers; l++)
            g->width = nib__max(g->width, nib__runner_state_width(&g->runner, g->first[l]));
        float **const states[] = {&g->coded.state, &w->target, &w->trial};
        g->coded.count = g->count;
        for (size_t i = 0; i < COUNT(states) && status == NIB_OK; i++) {
            const uint64_t floats = (uint64_t)g->count * (uint64_t)g->width;
            *states[i] = nib__arena_take(&arena, floats, sizeof(float));
            if (*states[i] == NULL)
                status =
                    nib__fail_memory(err, floats * sizeof(float), "the hidden states of a text");
        }
    }
    if (status == NIB_OK)
        status = scale_layers(w, why, err);
    nib__arena_free(&arena);
    nib__runner_close(&g->runner);
    return status;
}

nib_status nib__awq(nib_awq *job, nib_model *model, nib_err *err)
{
    nib_gptq as = {.name = "awq",
                   .tokens = NIB_AWQ_TOKENS,
                   .layers = job->layers,
                   .request = job->options->request,
                   .text = job->options->calibrate,
                   .ledger = job->ledger,
                   .arena = job->arena};
    awq_run w = {.job = job, .g = {.job = &as, .model = model}};
    if (nib__checkpoint_gguf(model->net.checkpoint) != NULL)
        return nib__fail(err, NIB_UNSUPPORTED,
                         "the method awq changes norms, which are not those of the family in a "
                         "GGUF; `nibble convert` it to --format safetensors first");
    return nib__gptq_with_text(&w.g, run_model, &w, err);
}

nib_status nib__awq_check(const nib_quantize_layer *layers, size_t count, const char *text,
                          nib_err *err)
{
    bool awq = false;
    const char *other = NULL;
    for (size_t i = 0; i < count; i++) {
        const nib_ptq_method method = layers[i].choice.method;
        awq = awq || nib__fold_is_scaled(&layers[i], NIB_PTQ_AWQ);
        if (nib__ptq_sweeps(method) && nib__fold_is_scaled(&layers[i], method))
            other = nib__ptq_names[method];
    }
    if (awq && text == NULL)
        return nib__fail(err, NIB_USAGE,
                         "the method awq needs a text to calibrate with; give --calibrate TEXT");
    return awq && other != NULL
               ? nib__fail(err, NIB_UNSUPPORTED,
                           "the methods %s and awq do not mix: %s codes weights as they are "
                           "stored, and awq scales them; use search where the recipe has one of "
                           "them",
                           other, other)
               : NIB_OK;
}

void nib__awq_note(const nib_awq *job)
{
    if (job->seconds > 0)
        nib__ledger_add_note(job->ledger, "method",
                             "awq: %.3g multiply-adds, predicted to take %.1f s, took %.1f s",
                             job->multiply_adds, job->predicted_s, job->seconds);
}
