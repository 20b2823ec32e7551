/* SPDX-License-Identifier: Apache-2.0
 *
 * Tries recipes: plans each for the device. If the device is in this machine and the model has
 * weights, also runs each that is done as asked and fits, for its loss on a text and tokens per
 * second. Then finds the frontier of cost, time and memory, and chooses from it.
 */
#include "advise.h"
#include "public_struct.h"

#include "bench.h"

#include "fake_quant.h"
#include "config_codes.h"
#include "file.h"
#include "variant.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

/* ---- what to try ---- */

/* Tried after the base schemes. The output layer gets more bits in some: it is most of a small
 * model's bytes, and no later layer averages its error out. */
static const char *const combinations[] = {"int8wo-g32",
                                           "int4wo-sym",
                                           "int4wo-g64",
                                           "int4wo-g128",
                                           "8da4w-g64",
                                           "8da4w-g128",
                                           "int4wo+head-int8wo",
                                           "8da4w+head-int8dq",
                                           "int4wo+head+embed",
                                           "8da4w+head+embed",
                                           "int4wo+head-int8wo+embed-int8wo",
                                           "8da4w+head-int8dq+embed-int8wo"};

enum { ITEMS_MAX = 64 };

static const nib_advised unknown = {.predicted_decode = NAN,
                                    .predicted_prefill = NAN,
                                    .decode = NAN,
                                    .prefill = NAN,
                                    .loss = NAN,
                                    .error = NAN,
                                    .predicted_s = NAN,
                                    .made_s = NAN,
                                    .beaten_by = NIB_UNBEATEN};

/* Whether codes of the recipe need a text, or the whole model. */
static nib_status find_needs(nib_advice *v, nib_advised *c, nib_err *err)
{
    const nib_request request = {.recipe = c->recipe};
    const nib_recipe_layer *layers;
    nib_recipe *recipe;
    NIB_TRY(nib__model_recipe(&recipe, &layers, v->model, &request, &v->arena, err));
    for (size_t i = 0; i < v->model->net.site_count; i++) {
        nib_choice choice;
        nib__recipe_resolve(&choice, recipe, &layers[i]);
        if (!choice.keep && nib__scheme_is_quantized(&choice.scheme))
            c->needs_text |= choice.scheme.act == NIB_ACT_I8_STATIC ||
                             nib__ptq_needs_text(choice.method) || choice.method == NIB_PTQ_ROTATE;
    }
    nib__recipe_free(recipe);
    return NIB_OK;
}

static nib_status add_recipe(nib_advice *v, const char *recipe, nib_err *err)
{
    if (v->count == ITEMS_MAX)
        return nib__fail(err, NIB_USAGE, "%zu recipes; at most %d are compared",
                         v->options->recipes.count, ITEMS_MAX - 1);
    nib_advised *c = &v->items[v->count++];
    *c = unknown;
    c->recipe = recipe;
    if (recipe == NULL)
        return NIB_OK;
    /* a recipe may be JSON, with lines and of any length */
    char shown[NIB_SHOWN];
    nib__escape_string(shown, recipe);
    c->name = nib__arena_copy(&v->arena, shown, strlen(shown));
    return c->name != NULL ? find_needs(v, c, err) : nib__fail_memory(err, strlen(shown), "a name");
}

/* A float type is worth trying if it is narrower than the stored one. */
static bool is_worth(const nib_advice *v, const char *recipe)
{
    const nib_network *net = &v->model->net;
    nib_scheme s;
    int64_t widest = 1;
    if (nib__scheme_parse(&s, recipe, strcspn(recipe, "+"), NULL) != NIB_OK)
        return false;
    for (size_t i = 1; i < net->site_count; i++)
        widest = nib__max(widest, net->sites[i].k);
    if (!nib__scheme_is_quantized(&s))
        return s.code != NIB_CODE_F32 && net->sites[1].stored.code == NIB_CODE_F32;
    return s.group <= widest; /* one group per row is the same recipe */
}

static nib_status list_recipes(nib_advice *v, nib_err *err)
{
    const nib_strings *own = &v->options->recipes;
    char name[64];
    v->items = nib__arena_take(&v->arena, ITEMS_MAX, sizeof *v->items);
    if (!v->items)
        return nib__fail_memory(err, ITEMS_MAX * sizeof *v->items, "the list of recipes");
    NIB_TRY(add_recipe(v, NULL, err));
    nib__scheme_name(name, &v->model->net.sites[1].stored);
    char *said = nib__arena_take(&v->arena, 80, 1);
    if (!said)
        return nib__fail_memory(err, 80, "a name");
    snprintf(said, 80, "none (%s)", name);
    v->items[0].name = said;
    for (size_t i = 0; i < own->count; i++)
        NIB_TRY(add_recipe(v, own->items[i], err));
    const nib_scheme_base *base;
    for (size_t i = 0; own->count == 0 && (base = nib__scheme_base(i)) != NULL; i++)
        if (!nib__scheme_is_gguf_block(&base->scheme) && /* for GGUF, where k permits */
            !nib__code_is_odd_int(base->scheme.code) && is_worth(v, base->name))
            NIB_TRY(add_recipe(v, base->name, err));
    for (size_t i = 0; own->count == 0 && i < COUNT(combinations); i++)
        if (is_worth(v, combinations[i]))
            NIB_TRY(add_recipe(v, combinations[i], err));
    return NIB_OK;
}

/* ---- the plan ---- */

nib_status nib__advise_problem(nib_advice *v, nib_advised *c, const char *text, nib_err *err)
{
    c->problem = nib__arena_copy(&v->arena, text, strlen(text));
    return c->problem ? NIB_OK : nib__fail_memory(err, strlen(text), "a sentence");
}

/* Describes the first layer that is not done as asked; "": none. */
static void describe_substituted(const nib_ledger *ledger, char *out, size_t size)
{
    out[0] = '\0';
    for (size_t i = 0; i < ledger->layer_count && out[0] == '\0'; i++) {
        const nib_ledger_layer *l = &ledger->layers[i];
        if (l->rung != NIB_RUNG_NONE)
            snprintf(out, size, "%s: asked %s, done %s, rung %s%s%s", l->name, l->asked,
                     l->done ? l->done : "not", nib__rung_names[l->rung],
                     l->reason_count > 0 ? ": " : "",
                     l->reason_count > 0 ? l->reasons[0].text : "");
    }
}

static bool is_trainable(const nib_assignment *plan)
{
    bool any = false;
    for (size_t i = 1; i < plan->count; i++) {
        const nib_scheme *done = &plan->layers[i].done;
        if (nib__scheme_is_quantized(done) && !nib__fake_has(done))
            return false;
        any |= nib__scheme_is_quantized(done);
    }
    return any;
}

static nib_status read_plan(nib_advice *v, nib_advised *c, const nib_plan *p, nib_err *err)
{
    char text[sizeof err->text];
    const bool is_denied = p->assignment.denied.status == NIB_NOT_AS_ASKED;
    c->weight_bytes = p->weight_bytes;
    c->bytes = is_denied ? p->weight_bytes + p->cache.bytes : nib__plan_needs(p);
    c->over = v->limit != 0 && c->bytes > v->limit ? c->bytes - v->limit : 0;
    c->predicted_decode = 1 / p->assignment.predicted_token_s;
    c->predicted_prefill = (double)NIB_PREFILL_TOKENS / p->assignment.predicted_prefill_s;
    c->trainable = is_trainable(&p->assignment);
    describe_substituted(&p->assignment.ledger, text, sizeof text);
    if (is_denied)
        snprintf(text, sizeof text, "%s", p->assignment.denied.text);
    return text[0] ? nib__advise_problem(v, c, text, err) : NIB_OK;
}

/* ---- the run ---- */

/* Takes the measured speeds of the row without the method if the same kernels read as many bytes:
 * other codes take no other time, and measuring twice would only show how measurements differ. */
static bool share_speed(const nib_advice *v, nib_advised *c)
{
    const nib_advised *r = &v->items[c->rounding];
    c->same_speed = c->method != NULL && c->weight_bytes == r->weight_bytes &&
                    c->predicted_decode == r->predicted_decode &&
                    c->predicted_prefill == r->predicted_prefill;
    if (c->same_speed) {
        c->decode = r->decode;
        c->prefill = r->prefill;
    }
    return c->same_speed;
}

static nib_status eval_and_time(nib_advice *v, nib_advised *c, nib_session *session, nib_err *err)
{
    const nib_eval_options eval = {.text_path = v->options->text_path,
                                   .window = v->options->window};
    const nib_bench_options bench = {.prompt_tokens = v->prompt, .new_tokens = 32, .repeats = 3};
    nib_eval_result loss = {.size = sizeof loss};
    nib_bench_speeds speed;
    if (v->losses) {
        NIB_TRY(nib_eval(session, NULL, &eval, &loss, err));
        c->loss = loss.loss;
    }
    if (v->speeds && !share_speed(v, c)) {
        NIB_TRY(nib__bench_speeds(session, &bench, &speed, err));
        c->decode = speed.decode_tokens_per_s;
        c->prefill = speed.prefill_tokens_per_s;
    }
    return NIB_OK;
}

static nib_status run_plan(nib_advice *v, nib_advised *c, const nib_plan *plan, nib_err *err)
{
    nib_session *session;
    char text[sizeof err->text] = "";
    NIB_TRY(nib_session_open(&session, plan->model, plan, 1, err));
    const nib_plan *runs = nib_session_plan(session);
    if (runs != plan) /* the device refused something, so another row would run */
        describe_substituted(&runs->assignment.ledger, text, sizeof text);
    const nib_status status =
        text[0] ? nib__advise_problem(v, c, text, err) : eval_and_time(v, c, session, err);
    nib_session_close(session);
    return status;
}

/* Plans the model for the recipe; one that was made of it for its own codes. */
static nib_status make_plan(nib_advice *v, nib_plan **out, const nib_advised *c, nib_model *model,
                            bool on_cpu, nib_err *err)
{
    const nib_request *asked = v->options->request;
    const nib_request r = {.recipe = c->is_made ? NULL : c->recipe,
                           .device = on_cpu ? NULL : asked->device,
                           .dtype = asked->dtype,
                           .cache = asked->cache,
                           .context = asked->context};
    return nib_plan_open(out, model, &r, err);
}

/* Losses for a device elsewhere are measured on this CPU: they depend only on the codes. */
static nib_status run_recipe(nib_advice *v, nib_advised *c, const nib_plan *plan, nib_err *err)
{
    nib_plan *here;
    if (v->base->machine.here)
        return run_plan(v, c, plan, err);
    NIB_TRY(make_plan(v, &here, c, plan->model, true, err));
    const nib_status status = run_plan(v, c, here, err);
    nib_plan_close(here);
    return status;
}

/* True for errors that end the whole call, not only one recipe. */
static bool is_fatal(nib_status status)
{
    return status == NIB_CANCELLED || status == NIB_IO || status == NIB_USAGE;
}

static nib_status try_plan(nib_advice *v, nib_advised *c, const nib_plan *plan, nib_err *err)
{
    const uint64_t memory = v->model->engine->here.memory;
    const bool first = c == v->items, runs = v->losses || v->speeds;
    NIB_TRY(read_plan(v, c, plan, err));
    if (!v->losses)
        NIB_TRY(nib__advise_error(&c->error, plan, err));
    if (runs && c->needs_text && !c->is_made) {
        c->inapplicable = true;
        return nib__advise_problem(v, c,
                                   "its codes need the whole model, or a text; with --method and "
                                   "--calibrate TEXT it is quantized and measured",
                                   err);
    }
    /* the model as stored runs even over the limit, because others are compared with it */
    const bool fits = c->over == 0 || (first && (memory == 0 || c->bytes <= memory));
    if (!runs || c->problem || !fits || plan->assignment.denied.status != NIB_OK)
        return NIB_OK;
    const nib_status status = run_recipe(v, c, plan, err);
    if (status == NIB_OK || first || is_fatal(status))
        return status;
    c->decode = c->prefill = c->loss = NAN;
    c->failed = true;
    return nib__advise_problem(v, c, err->text, err);
}

/* Reports the settings of recipes that the user named, and of the model as stored. */
static void report_settings(nib_advice *v, const nib_advised *c, const nib_plan *plan)
{
    const size_t before = v->said.setting_count;
    if (c != v->items && v->options->recipes.count == 0)
        return;
    nib__ledger_merge_settings(&v->said, &plan->assignment.ledger);
    nib__log_settings(v->model->engine, &v->said, before);
}

nib_status nib__advise_try(nib_advice *v, nib_advised *c, nib_model *model, nib_err *err)
{
    nib_plan *plan;
    NIB_TRY(make_plan(v, &plan, c, model, false, err));
    report_settings(v, c, plan);
    const nib_status status = try_plan(v, c, plan, err);
    nib_plan_close(plan);
    return status;
}

/* ---- the frontier ---- */

/* Positive: a is better; 0: equal. */
static int compare(double a, double b, double equal)
{
    if (isnan(a) || isnan(b))
        return (isnan(b) != 0) - (isnan(a) != 0);
    if (a * (1 + equal) < b)
        return 1;
    return b * (1 + equal) < a ? -1 : 0;
}

/* True if a is at least as good as b in everything and better in something. Treating nearly equal
 * times as equal cannot make a cycle: its recipes would share cost and bytes, and each would need a
 * clearly shorter time than the next. */
static bool beats(const nib_merit *a, const nib_merit *b)
{
    const int cost = compare(a->cost, b->cost, 0), bytes = compare(a->bytes, b->bytes, 0),
              time = compare(a->seconds, b->seconds, NIB_EQUAL_TIMES);
    return a->counts && cost >= 0 && bytes >= 0 && time >= 0 && (cost | bytes | time) != 0;
}

void nib__frontier(int *beaten_by, const nib_merit *merits, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        beaten_by[i] = NIB_UNBEATEN;
        for (size_t j = 0; merits[i].counts && j < count; j++)
            if (beaten_by[i] == NIB_UNBEATEN && beats(&merits[j], &merits[i]))
                beaten_by[i] = (int)j;
    }
    for (size_t i = 0; i < count; i++) /* prefer a recipe on the frontier */
        for (size_t j = 0; beaten_by[i] != NIB_UNBEATEN && j < count; j++)
            if (beaten_by[beaten_by[i]] != NIB_UNBEATEN && beaten_by[j] == NIB_UNBEATEN &&
                beats(&merits[j], &merits[i]))
                beaten_by[i] = (int)j;
}

int nib__frontier_choose(bool *within, const nib_merit *merits, size_t count, double most_cost)
{
    double fastest = NAN;
    int best = -1;
    *within = false;
    for (size_t i = 0; i < count; i++)
        if (merits[i].counts && merits[i].cost <= most_cost) {
            *within = true;
            fastest = fmin(fastest, merits[i].seconds);
        }
    for (size_t i = 0; i < count; i++) {
        const nib_merit *m = &merits[i];
        const bool among = !*within || (m->cost <= most_cost &&
                                        compare(fastest, m->seconds, NIB_EQUAL_TIMES) <= 0);
        if (!m->counts || !among)
            continue;
        const int cheaper = best < 0 ? 1 : compare(m->cost, merits[best].cost, 0);
        if (cheaper > 0 || (cheaper == 0 && compare(m->bytes, merits[best].bytes, 0) > 0))
            best = (int)i;
    }
    return best;
}

/* ---- choosing ---- */

bool nib__advised_counts(const nib_advised *c) { return c->over == 0 && !c->problem; }

bool nib__advised_leads(const nib_advised *c, bool with_methods)
{
    return with_methods ? nib__advised_counts(c) && c->beaten_by == NIB_UNBEATEN
                        : c->round_frontier;
}

double nib__advised_cost(const nib_advice *v, const nib_advised *c)
{
    return v->losses ? c->loss : c->error;
}

double nib__advised_speed(const nib_advice *v, const nib_advised *c)
{
    if (v->options->by_prefill)
        return v->speeds ? c->prefill : c->predicted_prefill;
    return v->speeds ? c->decode : c->predicted_decode;
}

/* The loss that the budget adds to: the model's as stored, or the lowest one if that could not
 * run. */
static double base_cost(const nib_advice *v)
{
    double least = nib__advised_cost(v, &v->items[0]);
    if (!v->losses)
        return 0;
    for (size_t i = 1; i < v->count && isnan(v->items[0].loss); i++)
        least = fmin(least, v->items[i].loss);
    return least;
}

/* Finds the fastest recipe to train for: over the budget as it is, trainable, and faster or smaller
 * than the taken one. */
static int find_training(const nib_advice *v, nib_merit *merits)
{
    const nib_merit taken = merits[v->taken < 0 ? 0 : v->taken];
    bool any;
    for (size_t i = 0; i < v->count; i++) {
        nib_merit *m = &merits[i];
        const bool gains = !v->within || m->seconds * (1 + NIB_EQUAL_TIMES) < taken.seconds ||
                           m->bytes < taken.bytes;
        m->counts &= v->losses && v->taken >= 0 && v->items[i].trainable && gains &&
                     v->items[i].method == NULL && m->cost > v->base_cost + v->budget;
    }
    return nib__frontier_choose(&any, merits, v->count, INFINITY);
}

/* Which rows without a method would be on the frontier if there were no others. */
static void find_round_frontier(nib_advice *v, const nib_merit *merits, nib_merit *rounded,
                                int *beaten_by)
{
    for (size_t i = 0; i < v->count; i++) {
        rounded[i] = merits[i];
        rounded[i].counts &= v->items[i].method == NULL;
    }
    nib__frontier(beaten_by, rounded, v->count);
    for (size_t i = 0; i < v->count; i++)
        v->items[i].round_frontier = rounded[i].counts && beaten_by[i] == NIB_UNBEATEN;
}

static nib_status choose_recipe(nib_advice *v, nib_err *err)
{
    nib_merit *merits = nib__arena_take(&v->arena, v->count, sizeof *merits),
              *rounded = nib__arena_take(&v->arena, v->count, sizeof *rounded);
    int *beaten_by = nib__arena_take(&v->arena, v->count, sizeof *beaten_by);
    if (merits == NULL || rounded == NULL || beaten_by == NULL)
        return nib__fail_memory(err, v->count * sizeof *merits, "the frontier");
    for (size_t i = 0; i < v->count; i++) {
        const nib_advised *c = &v->items[i];
        merits[i] = (nib_merit){.counts = nib__advised_counts(c),
                                .cost = nib__advised_cost(v, c),
                                .seconds = 1 / nib__advised_speed(v, c),
                                /* memory besides the weights is nearly the same for all */
                                .bytes = (double)c->weight_bytes};
    }
    v->base_cost = base_cost(v);
    find_round_frontier(v, merits, rounded, beaten_by);
    nib__frontier(beaten_by, merits, v->count);
    for (size_t i = 0; i < v->count; i++)
        v->items[i].beaten_by = beaten_by[i];
    v->taken = nib__frontier_choose(&v->within, merits, v->count, v->base_cost + v->budget);
    v->train = find_training(v, merits);
    return NIB_OK;
}

/* Fails with the reason why no recipe can be taken. */
static nib_status fail_nothing(const nib_advice *v, nib_err *err)
{
    const nib_advised *least = NULL;
    char need[32], there[32], over[32];
    for (size_t i = 0; i < v->count; i++)
        if (!v->items[i].problem && (!least || v->items[i].bytes < least->bytes))
            least = &v->items[i];
    if (!least)
        return nib__fail(err, NIB_NOT_AS_ASKED, "%s runs none of %zu recipes as asked: %.600s",
                         v->base->machine.name, v->count, v->items[0].problem);
    return nib__fail(err, NIB_NO_MEMORY,
                     "no recipe fits in %s: the smallest, %s, needs %s for weights%s, %s over the "
                     "limit; a shorter --context needs less",
                     nib__format_bytes(there, v->limit), least->name,
                     nib__format_bytes(need, least->bytes),
                     v->base->assignment.gpu != NULL ? ", KV cache and buffers" : " and KV cache",
                     nib__format_bytes(over, least->over));
}

/* ---- the call ---- */

static nib_status check_options(const nib_model *model, const nib_advise_options *o, nib_err *err)
{
    const nib_network *net = &model->net;
    const char *given = o->name ? o->name : net->path;
    char name[64];
    NIB_TRY(nib__model_runs(model, err));
    if (net->training)
        return nib__fail(err, NIB_USAGE,
                         "%s: is a training config, and advice is about running a model; use "
                         "`nibble plan` or `nibble bench --train`",
                         given);
    for (size_t i = 1; i < net->site_count; i++) {
        const nib_scheme stored = nib__config_codes_stored(net, &net->sites[i], false);
        if (nib__scheme_is_quantized(&stored))
            return nib__fail(err, NIB_UNSUPPORTED,
                             "%s is stored as %s and cannot be quantized again; give the "
                             "checkpoint that it was made from",
                             net->sites[i].name, nib__scheme_name(name, &stored));
    }
    if (o->request->device && strcmp(o->request->device, "auto") == 0)
        return nib__fail(err, NIB_USAGE,
                         "recipes are compared on one device; name one in place of auto");
    if (o->svg) /* fail before the work */
        NIB_TRY(nib__file_may_replace(o->svg, err));
    if (o->text_path && o->dry_run)
        return nib__fail(err, NIB_USAGE, "%s is not read: --dry-run runs nothing", o->text_path);
    if (o->text_path && !net->checkpoint)
        return nib__fail(err, NIB_USAGE, "%s: only a config was given, and a loss needs weights",
                         given);
    if (o->window != 0 && !o->text_path)
        return nib__fail(err, NIB_USAGE,
                         "a window of %" PRId64 " tokens, but no text to cut into windows; give "
                         "--text, too",
                         o->window);
    if (o->loss_budget != 0 && !o->text_path)
        return nib__fail(err, NIB_USAGE,
                         "a budget of %g nats per token, but no text to measure a loss with; give "
                         "--text, too",
                         fmax(o->loss_budget, 0));
    return NIB_OK;
}

/* Finds the device and what can be measured, from the plan of the model as stored. */
static nib_status prepare(nib_advice *v, nib_err *err)
{
    const nib_advise_options *o = v->options;
    const bool weights = v->model->net.checkpoint != NULL;
    NIB_TRY(list_recipes(v, err));
    if (v->methods != NULL)
        NIB_TRY(nib__methods_list(v, err));
    NIB_TRY(make_plan(v, &v->base, &v->items[0], v->model, false, err));
    const nib_machine *m = &v->base->machine;
    v->limit = o->memory != 0 && (m->memory == 0 || o->memory < m->memory) ? o->memory : m->memory;
    v->speeds = weights && m->here && !o->dry_run;
    v->losses = o->text_path != NULL;
    v->real = weights;
    v->prompt = v->speeds ? nib__min(NIB_PREFILL_TOKENS, v->base->context) : NIB_PREFILL_TOKENS;
    v->budget = !v->losses            ? NIB_ERROR_BUDGET
                : o->loss_budget != 0 ? fmax(o->loss_budget, 0)
                                      : NIB_LOSS_BUDGET;
    return v->methods != NULL ? nib__methods_prepare(v, err) : NIB_OK;
}

static nib_status write_report(nib_advice *v, nib_form form, const nib_sink *sink, nib_err *err)
{
    const nib_allocator *a = &v->model->engine->allocator;
    nib_text text;
    nib__text_init(&text, a);
    if (form == NIB_FORM_JSON)
        nib__advise_json(v, &text);
    else
        nib__advise_render(v, &text);
    nib_status status = nib__text_flush(&text, sink, err);
    if (status == NIB_OK && v->options->svg) {
        nib__advise_draw(v, &text);
        status = text.failed ? nib__fail_memory(err, text.size, "the picture")
                             : nib__file_replace(v->options->svg, text.at, text.size, a, err);
    }
    nib__text_free(&text);
    return status;
}

/* Maps the progress of one recipe to the whole: its loss first, then its speed. */
static bool on_progress(void *ctx, const char *what, uint64_t done, uint64_t total)
{
    const nib_advice *v = ctx;
    enum { WHOLE = 1000, LOSS = 800 };
    const double share = total > 0 && done < total ? (double)done / (double)total : 1;
    const bool loss = strcmp(what, "evaluate") == 0;
    double part = loss ? share * LOSS : LOSS + share * (WHOLE - LOSS);
    if (v->methods != NULL && v->methods->begin_ns != 0)
        part = WHOLE * nib__methods_progress(v->methods, what, share);
    return v->outer.progress == NULL ||
           v->outer.progress(v->outer.ctx, "advise", v->at * WHOLE + (uint64_t)part,
                             v->count * WHOLE);
}

static void on_log(void *ctx, const char *line)
{
    const nib_advice *v = ctx;
    if (v->outer.log)
        v->outer.log(v->outer.ctx, line);
}

static nib_status try_all(nib_advice *v, nib_err *err)
{
    for (size_t i = 0; i < v->count; i++) {
        if (v->items[i].is_made)
            continue;
        if (!nib__engine_progress(v->model->engine, "evaluate", 0, 1))
            return nib__fail(err, NIB_CANCELLED, "cancelled after %zu of %zu recipes", v->at,
                             v->count);
        NIB_TRY(nib__advise_try(v, &v->items[i], v->model, err));
        v->at++;
    }
    return v->methods != NULL ? nib__methods_try(v, err) : NIB_OK;
}

static nib_status advise(nib_advice *v, nib_form form, const nib_sink *sink, nib_err *err)
{
    nib_callbacks *callbacks = &v->model->engine->callbacks;
    NIB_TRY(prepare(v, err));
    v->outer = *callbacks;
    *callbacks = (nib_callbacks){.progress = on_progress, .log = on_log, .ctx = v};
    const nib_status status = try_all(v, err);
    *callbacks = v->outer;
    NIB_TRY(status);
    if (v->model->net.checkpoint)
        NIB_TRY(nib__model_check_files(v->model, NIB_OK, err));
    NIB_TRY(choose_recipe(v, err));
    NIB_TRY(write_report(v, form, sink, err));
    return v->taken < 0 ? fail_nothing(v, err) : NIB_OK;
}

nib_status nib_advise(nib_model *model, const nib_advise_options *options, nib_form form,
                      const nib_sink *sink, nib_err *err)
{
    NIB_NEED(err, "model", model);
    NIB_TRY(nib__report_check(form, sink, err));
    NIB_OPTIONS(nib_advise_options, o, options, err);
    NIB_OPTIONS(nib_request, request, o.request, err);
    NIB_TRY(nib__request_check(&request, err));
    NIB_TRY(nib__strings_check("nib_advise_options.recipes", &o.recipes, err));
    NIB_TRY(nib__number_check("nib_advise_options.window", o.window, err));
    if (isnan(o.loss_budget))
        return nib__fail(err, NIB_USAGE, "nib_advise_options.loss_budget is not a number");
    o.request = &request;
    nib_methods methods = {.lock = -1};
    nib_advice v = {.model = model, .options = &o};
    nib_err own; /* the report includes the error of a failed recipe in any case */
    err = err != NULL ? err : &own;
    NIB_TRY(nib__engine_check(model->engine, err));
    if (o.caches != NULL) {
        NIB_TRY(nib__strings_check("nib_advise_options.caches", o.caches, err));
        NIB_TRY(nib__model_runs(model, err));
        return nib__advise_caches(model, &o, form, sink, err);
    }
    if (o.methods != NULL)
        NIB_TRY(nib__methods_read(&v, &methods, err));
    NIB_TRY(check_options(model, v.options, err));
    nib__arena_init(&v.arena, &model->engine->allocator, 0);
    nib__ledger_init(&v.said, &model->engine->allocator);
    const nib_status status = advise(&v, form, sink, err);
    nib__methods_close(v.methods);
    nib_plan_close(v.base);
    nib__ledger_free(&v.said);
    nib__arena_free(&v.arena);
    return status;
}
