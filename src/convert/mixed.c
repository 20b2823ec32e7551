/* SPDX-License-Identifier: Apache-2.0
 *
 * Mixed precision by budget: finds what each candidate takes and loses in each unit of layers, has
 * the solver choose, and compares what was predicted with what was written.
 */
#include "mixed.h"
#include "bench.h"
#include "ledger.h"
#include "variant.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

enum { DECODED = 32 /* tokens that are timed */ };

const char nib__mixed_candidates[] = "int4wo-g128,int4wo,int5wo-g128,int6wo-g128,int8wo,keep";

static const char keep_all[] = "{\"schema\": 1, \"rules\": [], \"else\": \"keep\"}";
static const double picoseconds = 1e12; /* in a second */

typedef struct candidate {
    const char *name;
    bool keep;
    const char *why;   /* the model or the format cannot have it; NULL: they can */
    nib_scheme *asked; /* [site_count] */
    uint64_t *file;    /* [site_count] bytes in the output */
    uint64_t *memory;  /* [site_count] bytes on the machine */
    double *seconds;   /* [site_count] per token */
    uint64_t rest;     /* bytes of memory of everything else */
    double rest_s;     /* seconds per token of everything else */
} candidate;

struct nib_mixed {
    nib_model *model;
    const nib_quantize_options *options;
    nib_arena arena;
    candidate candidates[NIB_MIXED_OPTIONS];
    size_t count, units, layers;
    size_t *unit_of;      /* [site_count]; SIZE_MAX: kept */
    size_t *chosen;       /* [units] */
    double weights;       /* of the units' layers */
    double *costs;        /* [units][count] */
    nib_mixed_text *text; /* NULL: none */
    nib_mixed_result predicted, measured;
    double weight_error; /* predicted without a text */
    bool met_by_all;
    nib_text recipe;
};

static size_t site_count(const nib_mixed *m) { return m->model->net.site_count; }

/* ---- candidates ---- */

static nib_status parse_candidate(nib_mixed *m, const char *name, size_t size, nib_err *err)
{
    candidate *c = &m->candidates[m->count];
    char shown[NIB_SHOWN];
    if (m->count == NIB_MIXED_OPTIONS)
        return nib__fail(err, NIB_USAGE, "more than %d schemes to mix", NIB_MIXED_OPTIONS);
    *c = (candidate){.name = nib__arena_copy(&m->arena, name, size)};
    if (!c->name)
        return nib__fail_memory(err, size, "a name");
    c->keep = strcmp(c->name, "keep") == 0;
    for (size_t i = 0; i < m->count; i++)
        if (strcmp(m->candidates[i].name, c->name) == 0)
            return nib__fail(err, NIB_USAGE, "%s is given twice among the schemes to mix",
                             nib__escape_string(shown, c->name));
    m->count++;
    nib_scheme scheme;
    return c->keep ? NIB_OK : nib__scheme_parse(&scheme, name, size, err);
}

static nib_status parse_candidates(nib_mixed *m, nib_err *err)
{
    const char *at = m->options->request->recipe;
    for (at = at != NULL ? at : nib__mixed_candidates;; at++) {
        const size_t size = strcspn(at, ",");
        NIB_TRY(parse_candidate(m, at, size, err));
        at += size;
        if (*at == 0)
            return NIB_OK;
    }
}

/* ---- what each takes ---- */

static nib_status read_plan(candidate *c, const nib_plan *plan, nib_err *err)
{
    const nib_assignment *all = &plan->assignment;
    nib_policy policy = plan->policy;
    NIB_TRY(nib_plan_status(plan, err));
    policy.weights = all->weights;
    c->rest = nib__plan_needs(plan);
    c->rest_s = all->predicted_token_s;
    for (size_t i = 0; i < all->count; i++) {
        const nib_variant variant = nib__variant_of(&all->layers[i]);
        c->asked[i] = plan->layers[i].asked;
        c->memory[i] =
            all->gpu != NULL ? nib__plan_layer_bytes(&all->layers[i]) : all->ledger.layers[i].bytes;
        c->seconds[i] = nib__variant_seconds(&variant, all->layers[i].layer, &policy, 1);
    }
    return NIB_OK;
}

/* The plan of a recipe on the machine of the budget. */
static nib_status make_plan(nib_plan **out, const nib_mixed *m, const char *recipe, nib_err *err)
{
    nib_request request = *m->options->request;
    request.recipe = recipe;
    request.device = m->options->for_device;
    request.memory = 0; /* the budget, which the smallest mixture may exceed */
    request.strict = false;
    return nib__plan_make(out, m->model, &request, NULL, err);
}

static nib_status survey(nib_mixed *m, candidate *c, nib_mixed_sizes sizes, nib_err *err)
{
    nib_request request = *m->options->request;
    nib_quantize_options options = *m->options;
    nib_plan *plan = NULL;
    request.recipe = c->keep ? keep_all : c->name;
    options.request = &request;
    NIB_TRY(sizes(c->file, m->model, &options, err));
    NIB_TRY(make_plan(&plan, m, request.recipe, err));
    const nib_status status = read_plan(c, plan, err);
    nib_plan_close(plan);
    return status;
}

/* Whether an error says only that this candidate does not fit this model, format or machine. */
static bool is_misfit(nib_status status)
{
    return status == NIB_USAGE || status == NIB_UNSUPPORTED || status == NIB_NOT_AS_ASKED ||
           status == NIB_BAD_INPUT || status == NIB_NO_MEMORY;
}

static nib_status survey_all(nib_mixed *m, nib_mixed_sizes sizes, nib_err *err)
{
    const size_t sites = site_count(m);
    size_t fits = 0;
    nib_err first = {NIB_OK, ""};
    for (size_t i = 0; i < m->count; i++) {
        candidate *c = &m->candidates[i];
        nib_err why = {NIB_OK, ""};
        c->asked = nib__arena_take(&m->arena, sites, sizeof *c->asked);
        c->file = nib__arena_take(&m->arena, sites, sizeof *c->file);
        c->memory = nib__arena_take(&m->arena, sites, sizeof *c->memory);
        c->seconds = nib__arena_take(&m->arena, sites, sizeof *c->seconds);
        if (!c->asked || !c->file || !c->memory || !c->seconds)
            return nib__fail_memory(err, sites * sizeof *c->seconds, "the layers");
        const nib_status status = survey(m, c, sizes, &why);
        if (status != NIB_OK && !is_misfit(status))
            return nib__fail(err, status, "%s", why.text);
        if (status != NIB_OK) {
            c->why = nib__arena_copy(&m->arena, why.text, strlen(why.text));
            first = first.status == NIB_OK ? why : first;
        }
        fits += status == NIB_OK && !c->keep;
    }
    return fits > 0 ? NIB_OK
                    : nib__fail(err, first.status == NIB_OK ? NIB_USAGE : first.status, "%s",
                                first.status == NIB_OK ? "the schemes to mix only keep layers"
                                                       : first.text);
}

/* ---- units ---- */

/* Roles that read one input and are fused by other engines; others are alone. */
static int class_of(nib_role role)
{
    switch (role) {
    case NIB_ROLE_Q:
    case NIB_ROLE_K:
    case NIB_ROLE_V: return NIB_ROLE_Q;
    case NIB_ROLE_GATE:
    case NIB_ROLE_UP: return NIB_ROLE_GATE;
    case NIB_ROLE_O:
    case NIB_ROLE_DOWN: return role;
    default: return -1;
    }
}

static bool is_changed(const nib_mixed *m, size_t site)
{
    for (size_t i = 0; i < m->count; i++)
        if (m->candidates[i].why == NULL &&
            !nib__scheme_same_weight(&m->candidates[i].asked[site],
                                     &m->model->net.sites[site].stored))
            return true;
    return false;
}

/* The unit of an earlier layer that this one shares a decision with; SIZE_MAX: none. */
static size_t find_unit(const nib_mixed *m, size_t site)
{
    const nib_graph *g = &m->model->net.graph;
    const int64_t layer = nib__graph_weight(g, NIB_WEIGHT_MATRIX, site)->layer;
    const int class = class_of(m->model->net.sites[site].role);
    for (size_t i = site; class >= 0 && i-- > 0;) {
        if (nib__graph_weight(g, NIB_WEIGHT_MATRIX, i)->layer != layer)
            break;
        if (m->unit_of[i] != SIZE_MAX && class_of(m->model->net.sites[i].role) == class)
            return m->unit_of[i];
    }
    return SIZE_MAX;
}

static nib_status find_units(nib_mixed *m, nib_err *err)
{
    const nib_site *sites = m->model->net.sites;
    m->unit_of = nib__arena_take(&m->arena, site_count(m), sizeof *m->unit_of);
    if (!m->unit_of)
        return nib__fail_memory(err, site_count(m) * sizeof *m->unit_of, "the layers");
    for (size_t i = 0; i < site_count(m); i++) {
        m->unit_of[i] = SIZE_MAX;
        if (!is_changed(m, i))
            continue;
        const size_t unit = find_unit(m, i);
        m->unit_of[i] = unit != SIZE_MAX ? unit : m->units++;
        m->weights += (double)sites[i].n * (double)sites[i].k;
        m->layers++;
    }
    m->chosen = nib__arena_take(&m->arena, m->units, sizeof *m->chosen);
    m->costs = nib__arena_take(&m->arena, m->units * m->count, sizeof *m->costs);
    if (!m->chosen || !m->costs)
        return nib__fail_memory(err, m->units * m->count * sizeof *m->costs, "the layers");
    return m->units > 0 ? NIB_OK
                        : nib__fail(err, NIB_USAGE,
                                    "no layer is left to mix schemes in; see "
                                    "--skip and --only");
}

/* ---- what each loses ---- */

/* The loss of the model with this unit alone in the candidate's scheme. */
static nib_status measure_unit(double *kl, const nib_mixed *m, const candidate *c, size_t unit,
                               uint64_t step, uint64_t steps, nib_err *err)
{
    const nib_request *r = m->options->request;
    const nib_allocator *a = &m->model->engine->allocator;
    nib_request request = {.recipe = c->name, .dtype = r->dtype, .context = r->context};
    nib_plan *plan = NULL;
    nib_session *session = NULL;
    const char **names = nib__calloc(a, site_count(m), sizeof *names);
    if (!names)
        return nib__fail_memory(err, site_count(m) * sizeof *names, "names");
    for (size_t i = 0; i < site_count(m); i++)
        if (m->unit_of[i] == unit)
            names[request.only.count++] = m->model->net.sites[i].name;
    request.only.items = names;
    nib_status status = nib_plan_open(&plan, m->model, &request, err);
    if (status == NIB_OK)
        status = nib_session_open(&session, m->model, plan, 1, err);
    if (status == NIB_OK)
        status = nib__mixed_text_kl(kl, m->text, session, step, steps, err);
    nib_session_close(session);
    nib_plan_close(plan);
    nib__release(a, names);
    return status;
}

/* The relative errors of the unit's layers, each once; of experts, by how often they are chosen. */
static nib_status sum_errors(double *sum, const nib_mixed *m, const candidate *c, size_t unit,
                             nib_err *err)
{
    const nib_network *net = &m->model->net;
    *sum = 0;
    for (size_t i = 0; i < net->site_count; i++) {
        const nib_site *s = &net->sites[i];
        double error;
        if (m->unit_of[i] != unit)
            continue;
        NIB_TRY(
            nib__mixed_weight_error(&error, s, &c->asked[i], &m->model->engine->allocator, err));
        *sum += s->experts > 1 ? error * (double)s->top_k / (double)s->experts : error;
    }
    return NIB_OK;
}

static nib_status find_costs(nib_mixed *m, nib_err *err)
{
    uint64_t step = 0, steps = 0;
    for (size_t c = 0; c < m->count; c++)
        steps += m->candidates[c].why == NULL && !m->candidates[c].keep ? m->units : 0;
    for (size_t u = 0; u < m->units; u++)
        for (size_t c = 0; c < m->count; c++) {
            const candidate *at = &m->candidates[c];
            double *cost = &m->costs[u * m->count + c];
            *cost = 0;
            if (at->why != NULL || at->keep)
                continue;
            NIB_TRY(m->text != NULL ? measure_unit(cost, m, at, u, step, steps, err)
                                    : sum_errors(cost, m, at, u, err));
            *cost = fmax(*cost, 0); /* a divergence is only negative by rounding */
            step++;
        }
    return NIB_OK;
}

/* ---- the budget ---- */

typedef struct limits {
    uint64_t rest, budget; /* of what is outside of the units, and of all */
} limits;

static uint64_t weight_of(const nib_mixed *m, const candidate *c, size_t site)
{
    const nib_budget *b = m->options->budget;
    if (b->bits > 0)
        return c->file[site];
    return b->memory > 0 ? c->memory[site] : (uint64_t)ceil(c->seconds[site] * picoseconds);
}

static limits find_limits(const nib_mixed *m)
{
    const nib_budget *b = m->options->budget;
    limits l = {0};
    if (b->bits > 0)
        l.budget = (uint64_t)floor(b->bits * m->weights / 8);
    else
        l.budget = b->memory > 0 ? b->memory : (uint64_t)floor(picoseconds / b->speed);
    for (size_t c = 0; c < m->count && b->bits <= 0; c++) {
        const candidate *at = &m->candidates[c];
        uint64_t all = b->memory > 0 ? at->rest : (uint64_t)ceil(at->rest_s * picoseconds);
        if (at->why != NULL)
            continue;
        for (size_t i = 0; i < site_count(m); i++)
            if (m->unit_of[i] != SIZE_MAX)
                all -= all < weight_of(m, at, i) ? all : weight_of(m, at, i);
        l.rest = all > l.rest ? all : l.rest;
    }
    return l;
}

static void fill_table(const nib_mixed *m, nib_mixed_option *table)
{
    for (size_t u = 0; u < m->units; u++)
        for (size_t c = 0; c < m->count; c++)
            table[u * m->count + c] =
                (nib_mixed_option){.weight = m->candidates[c].why == NULL ? 0 : UINT64_MAX,
                                   .cost = m->costs[u * m->count + c]};
    for (size_t i = 0; i < site_count(m); i++)
        for (size_t c = 0; c < m->count && m->unit_of[i] != SIZE_MAX; c++)
            if (m->candidates[c].why == NULL)
                table[m->unit_of[i] * m->count + c].weight += weight_of(m, &m->candidates[c], i);
}

/* A sum of weights in the budget's unit, for people. */
static const char *describe(char out[64], const nib_mixed *m, uint64_t sum)
{
    const nib_budget *b = m->options->budget;
    if (b->bits > 0)
        nib__format(out, 64, "%.4f bits per weight", 8 * (double)sum / m->weights);
    else if (b->memory > 0)
        nib__format(out, 64, "%" PRIu64 " bytes", sum);
    else
        nib__format(out, 64, "%.2f tokens per second", picoseconds / (double)sum);
    return out;
}

static nib_status fail_budget(const nib_mixed *m, const limits *l, const nib_mixed_reach *reach,
                              nib_err *err)
{
    char asked[64], least[64], next[64];
    const char *recipe = m->options->request->recipe;
    size_t out = 0;
    while (out < m->count && m->candidates[out].why == NULL)
        out++;
    const bool has_out = out < m->count;
    return nib__fail(err, NIB_UNSUPPORTED,
                     "no mixture of %.200s keeps to a budget of %s: the nearest two have %s and "
                     "%s%s%s%s%s",
                     recipe != NULL ? recipe : nib__mixed_candidates, describe(asked, m, l->budget),
                     describe(least, m, l->rest + reach->least),
                     describe(next, m, l->rest + reach->next), has_out ? "; " : "",
                     has_out ? m->candidates[out].name : "", has_out ? " is left out: " : "",
                     has_out ? m->candidates[out].why : "");
}

static nib_status choose(nib_mixed *m, nib_err *err)
{
    const limits l = find_limits(m);
    nib_mixed_option *table = nib__arena_take(&m->arena, m->units * m->count, sizeof *table);
    if (!table)
        return nib__fail_memory(err, m->units * m->count * sizeof *table, "the layers");
    fill_table(m, table);
    const nib_mixed_problem problem = {.table = table,
                                       .units = m->units,
                                       .options = m->count,
                                       .budget = l.budget > l.rest ? l.budget - l.rest : 0};
    const nib_mixed_reach reach = nib__mixed_reach(&problem);
    if (l.budget < l.rest || problem.budget < reach.least)
        return fail_budget(m, &l, &reach, err);
    m->met_by_all = problem.budget >= reach.most;
    return nib__mixed_solve(m->chosen, &problem, &m->model->engine->allocator, err);
}

/* ---- what was chosen ---- */

static const candidate *chosen_of(const nib_mixed *m, size_t site)
{
    return m->unit_of[site] == SIZE_MAX ? NULL : &m->candidates[m->chosen[m->unit_of[site]]];
}

static nib_status write_recipe(nib_mixed *m, nib_err *err)
{
    const char **schemes = nib__arena_take(&m->arena, site_count(m), sizeof *schemes);
    if (!schemes)
        return nib__fail_memory(err, site_count(m) * sizeof *schemes, "the layers");
    for (size_t i = 0; i < site_count(m); i++)
        schemes[i] = chosen_of(m, i) != NULL ? chosen_of(m, i)->name : NULL;
    nib__mixed_rules(&m->recipe, m->model->net.sites, schemes, site_count(m));
    return m->recipe.failed ? nib__fail_memory(err, m->recipe.size, "the recipe") : NIB_OK;
}

static nib_status predict(nib_mixed *m, nib_err *err)
{
    nib_plan *plan = NULL;
    double sum = 0;
    nib_mixed_result *p = &m->predicted;
    NIB_TRY(make_plan(&plan, m, m->recipe.at, err));
    p->memory = nib__plan_needs(plan);
    p->speed = 1 / plan->assignment.predicted_token_s;
    nib_plan_close(plan);
    for (size_t i = 0; i < site_count(m); i++)
        p->bytes += chosen_of(m, i) != NULL ? chosen_of(m, i)->file[i] : 0;
    p->bits = 8 * (double)p->bytes / m->weights;
    for (size_t u = 0; u < m->units; u++)
        sum += m->costs[u * m->count + m->chosen[u]];
    p->loss = m->text != NULL ? sum : NAN;
    m->weight_error = sum;
    const nib_budget *b = m->options->budget;
    if ((b->memory > 0 && p->memory > b->memory) || (b->speed > 0 && p->speed < b->speed))
        return nib__fail(err, NIB_NOT_AS_ASKED,
                         "the plan of the chosen mixture needs %" PRIu64 " bytes and runs %.2f "
                         "tokens per second, which its layers alone did not show; ask for a "
                         "little less",
                         p->memory, p->speed);
    return NIB_OK;
}

const char *nib__mixed_recipe(const nib_mixed *mixed) { return mixed->recipe.at; }

/* ---- measured ---- */

static nib_status time_decode(nib_mixed *m, nib_session *session, nib_err *err)
{
    double seconds;
    const int64_t count = nib__min(DECODED, session->plan->context / 2);
    NIB_TRY(nib__bench_decode(session, count, &seconds, err));
    m->measured.speed = (double)count / seconds;
    return NIB_OK;
}

static nib_status measure_session(nib_mixed *m, nib_model *made, const nib_plan *plan, nib_err *err)
{
    nib_session *session = NULL;
    NIB_TRY(nib_session_open(&session, made, (nib_plan *)plan, 1, err));
    nib_status status = m->text != NULL
                            ? nib__mixed_text_kl(&m->measured.loss, m->text, session, 0, 1, err)
                            : NIB_OK;
    if (status == NIB_OK && m->options->for_device == NULL)
        status = time_decode(m, session, err);
    nib_session_close(session);
    return status;
}

static nib_status measure_model(nib_mixed *m, nib_model *made, nib_err *err)
{
    const nib_request *r = m->options->request;
    const nib_request request = {.dtype = r->dtype, .context = r->context};
    nib_plan *plan = NULL;
    NIB_TRY(nib_plan_open(&plan, made, &request, err));
    m->measured.memory = m->options->for_device == NULL ? nib__plan_needs(plan) : 0;
    nib_status status = nib_plan_status(plan, err);
    if (status == NIB_OK)
        status = measure_session(m, made, plan, err);
    nib_plan_close(plan);
    return status;
}

/* The layer of a unit that a tensor belongs to, but for a bias; SIZE_MAX: none. *from: where to
 * look first; tensors of a layer follow each other. */
static size_t find_layer(const nib_mixed *m, const char *tensor, size_t *from)
{
    const char *dot = strrchr(tensor, '.');
    if (dot == NULL || strcmp(dot, ".bias") == 0)
        return SIZE_MAX;
    for (size_t i = 0; i < site_count(m); i++) {
        const size_t at = (*from + i) % site_count(m);
        const char *name = m->model->net.sites[at].name;
        const size_t size = strlen(name);
        if (strncmp(name, tensor, size) == 0 && tensor[size] == '.') {
            *from = at;
            return m->unit_of[at] != SIZE_MAX ? at : SIZE_MAX;
        }
    }
    return SIZE_MAX;
}

/* Bytes of the tensors of the units' layers; in a GGUF, which names them otherwise, of the weights
 * that they become. */
static uint64_t measure_bytes(const nib_mixed *m, const nib_network *made)
{
    uint64_t sum = 0;
    size_t from = 0;
    if (nib__checkpoint_gguf(made->checkpoint) == NULL) {
        for (size_t i = 0; i < nib__checkpoint_count(made->checkpoint); i++) {
            const nib_tensor *t = nib__checkpoint_at(made->checkpoint, i);
            sum += find_layer(m, t->name, &from) != SIZE_MAX ? t->bytes : 0;
        }
        return sum;
    }
    for (size_t i = 0; i < made->site_count && i < site_count(m); i++)
        sum += m->unit_of[i] != SIZE_MAX ? made->sites[i].stored_bytes : 0;
    return sum;
}

nib_status nib__mixed_measure(nib_mixed *m, const char *path, nib_err *err)
{
    nib_model *made = NULL;
    NIB_TRY(nib_model_open(&made, m->model->engine, path, NULL, err));
    m->measured.bytes = measure_bytes(m, &made->net);
    m->measured.bits = 8 * (double)m->measured.bytes / m->weights;
    const nib_status status = measure_model(m, made, err);
    nib_model_close(made);
    return status;
}

/* ---- the report ---- */

static size_t count_chosen(const nib_mixed *m, size_t which)
{
    size_t count = 0;
    for (size_t i = 0; i < site_count(m); i++)
        count += m->unit_of[i] != SIZE_MAX && m->chosen[m->unit_of[i]] == which;
    return count;
}

static void render_row(nib_text *out, const char *name, const char *format, double predicted,
                       double measured)
{
    char text[32];
    nib__format(text, sizeof text, format, predicted);
    nib__text_format(out, "  %-18s %14s", name, isnan(predicted) ? "-" : text);
    nib__format(text, sizeof text, format, measured);
    nib__text_format(out, " %14s\n", isnan(measured) ? "-" : text);
}

static double known(uint64_t value) { return value == 0 ? NAN : (double)value; }

void nib__mixed_render(const nib_mixed *m, nib_text *out)
{
    const nib_budget *b = m->options->budget;
    const nib_mixed_result *p = &m->predicted, *is = &m->measured;
    char asked[64];
    const uint64_t budget = b->memory > 0 ? b->memory : (uint64_t)(picoseconds / b->speed);
    if (b->bits > 0)
        nib__format(asked, sizeof asked, "%g bits per weight", b->bits);
    else
        describe(asked, m, budget);
    nib__text_format(out, "\nbudget of %s, %zu layers in %zu units%s\n", asked, m->layers, m->units,
                     m->met_by_all ? ": every mixture keeps to it, so this is the best of all"
                                   : "");
    for (size_t i = 0; i < m->count; i++) {
        const candidate *c = &m->candidates[i];
        nib__text_format(out, "  %-18s ", c->name);
        if (c->why != NULL)
            nib__text_format(out, "left out: %s\n", c->why);
        else
            nib__text_format(out, "%zu layers\n", count_chosen(m, i));
    }
    nib__text_format(out, "  %-18s %14s %14s\n", "", "predicted", "measured");
    render_row(out, "bytes", "%.0f", (double)p->bytes, known(is->bytes));
    render_row(out, "bits per weight", "%.4f", p->bits, is->bytes == 0 ? NAN : is->bits);
    if (m->text != NULL)
        render_row(out, "KL divergence", "%.6f", p->loss, is->loss);
    else
        render_row(out, "weight error", "%.6f", m->weight_error, NAN);
    render_row(out, "memory, bytes", "%.0f", (double)p->memory, known(is->memory));
    render_row(out, "tokens per second", "%.2f", p->speed, is->speed);
    if (m->text != NULL)
        nib__text_format(out,
                         "  the divergence from the model as stored is in nats per token, on %lld "
                         "tokens of the text; predicted: the sum of the units', each rounded "
                         "alone\n",
                         (long long)nib__mixed_text_tokens(m->text));
    else
        nib__text_str(out, "  without --calibrate TEXT, a layer counts by the relative error of "
                           "its weight, which says little about the model's loss\n");
}

static void write_result(nib_jsonw *w, const char *key, const nib_mixed_result *r)
{
    nib__jsonw_key(w, key);
    nib__jsonw_object(w);
    nib__jsonw_pair_int(w, "bytes", (int64_t)r->bytes);
    nib__jsonw_pair_double(w, "bits_per_weight", r->bits);
    nib__jsonw_pair_double(w, "kl", r->loss);
    nib__jsonw_pair_double(w, "memory_bytes", known(r->memory));
    nib__jsonw_pair_double(w, "tokens_per_s", r->speed);
    nib__jsonw_object_end(w);
}

void nib__mixed_json(const nib_mixed *m, nib_jsonw *w)
{
    const nib_budget *b = m->options->budget;
    nib__jsonw_pair_double(w, "bits_per_weight", b->bits > 0 ? b->bits : NAN);
    nib__jsonw_pair_double(w, "memory_bytes", known(b->memory));
    nib__jsonw_pair_double(w, "tokens_per_s", b->speed > 0 ? b->speed : NAN);
    nib__jsonw_pair_bool(w, "met_by_all", m->met_by_all);
    nib__jsonw_pair_int(w, "units", (int64_t)m->units);
    nib__jsonw_pair_int(w, "tokens", m->text != NULL ? nib__mixed_text_tokens(m->text) : 0);
    nib__jsonw_key(w, "candidates");
    nib__jsonw_array(w);
    for (size_t i = 0; i < m->count; i++) {
        nib__jsonw_object(w);
        nib__jsonw_pair_string(w, "scheme", m->candidates[i].name);
        nib__jsonw_pair_string(w, "left_out", m->candidates[i].why);
        nib__jsonw_pair_int(w, "layers", (int64_t)count_chosen(m, i));
        nib__jsonw_object_end(w);
    }
    nib__jsonw_array_end(w);
    if (m->text == NULL)
        nib__jsonw_pair_double(w, "weight_error", m->weight_error);
    write_result(w, "predicted", &m->predicted);
    if (m->measured.bytes > 0) /* not after a dry run */
        write_result(w, "measured", &m->measured);
}

/* ---- opening ---- */

nib_status nib__mixed_check(const nib_budget *b, nib_err *err)
{
    if (isnan(b->bits) || isnan(b->speed) || b->bits < 0 || b->speed < 0)
        return nib__fail(err, NIB_USAGE, "a number of nib_budget is negative or not a number");
    const int given = (b->bits > 0) + (b->memory > 0) + (b->speed > 0);
    return given == 1 ? NIB_OK
                      : nib__fail(err, NIB_USAGE,
                                  "a budget is one of --budget, --memory and --speed; %d are given",
                                  given);
}

static nib_status check_stored(const nib_mixed *m, nib_err *err)
{
    char name[64];
    for (size_t i = 1; i < site_count(m); i++) {
        const nib_site *s = &m->model->net.sites[i];
        if (nib__scheme_is_quantized(&s->stored))
            return nib__fail(err, NIB_UNSUPPORTED,
                             "%s is stored as %s and cannot be quantized again; give the "
                             "checkpoint that it was made from",
                             s->name, nib__scheme_name(name, &s->stored));
    }
    return NIB_OK;
}

static nib_status open_mixed(nib_mixed *m, nib_mixed_sizes sizes, nib_err *err)
{
    const nib_quantize_options *o = m->options;
    NIB_TRY(check_stored(m, err));
    NIB_TRY(parse_candidates(m, err));
    NIB_TRY(survey_all(m, sizes, err));
    NIB_TRY(find_units(m, err));
    NIB_TRY(choose(m, err)); /* before the measurement, whether it can be met at all */
    if (o->calibrate != NULL)
        NIB_TRY(nib__mixed_text_open(&m->text, m->model, o->request, o->calibrate, err));
    NIB_TRY(find_costs(m, err));
    NIB_TRY(choose(m, err));
    NIB_TRY(write_recipe(m, err));
    return predict(m, err);
}

nib_status nib__mixed_open(nib_mixed **out, nib_model *model, const nib_quantize_options *options,
                           nib_mixed_sizes sizes, nib_err *err)
{
    const nib_allocator *a = &model->engine->allocator;
    const nib_mixed_result unknown = {.loss = NAN, .speed = NAN};
    nib_mixed *m = nib__calloc(a, 1, sizeof *m);
    if (!m)
        return nib__fail_memory(err, sizeof *m, "a mixture");
    *m = (nib_mixed){.model = model, .options = options, .predicted = unknown, .measured = unknown};
    nib__arena_init(&m->arena, a, 0);
    nib__text_init(&m->recipe, a);
    const nib_status status = open_mixed(m, sizes, err);
    if (status == NIB_OK)
        *out = m;
    else
        nib__mixed_close(m);
    return status;
}

void nib__mixed_close(nib_mixed *m)
{
    if (!m)
        return;
    const nib_allocator a = m->model->engine->allocator;
    nib__mixed_text_close(m->text);
    nib__text_free(&m->recipe);
    nib__arena_free(&m->arena);
    nib__release(&a, m);
}
