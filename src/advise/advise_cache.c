/* SPDX-License-Identifier: Apache-2.0
 *
 * Tries types of the KV cache: evaluates a text with each, against the cache in the type of the
 * activations. The result is kept, so that plans of this model print it.
 */
#include "advise.h"

#include "cache_costs.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

/* All that have fewer bits than the activations, from more to fewer bits. */
static const char *const usual[] = {
    "bf16", "int8", "int8-hadamard", "int8:int4", "int8:int4-hadamard", "int4", "int4-hadamard"};

typedef struct tried {
    const char *name;
    uint64_t token_bytes;
    nib_eval_result result;
} tried;

typedef struct trial {
    nib_model *model;
    const nib_advise_options *options;
    const char *device;           /* that every type runs on; NULL: the recipe's, or the CPU */
    nib_type dtype;               /* of the activations */
    nib_session *base;            /* with the cache in the type of the activations */
    tried items[NIB_CACHE_COSTS]; /* [count] */
    size_t count;
} trial;

static nib_status check_options(const trial *t, nib_err *err)
{
    const nib_advise_options *o = t->options;
    const nib_request *r = o->request;
    if (o->text_path == NULL)
        return nib__fail(err, NIB_USAGE,
                         "cache types are compared on a text; give one with --text FILE");
    if (t->model->net.checkpoint == NULL || t->model->net.training)
        return nib__fail(err, NIB_USAGE,
                         "%s has no weights; cache types are compared by running a model",
                         t->model->net.path);
    if (r->cache != NULL)
        return nib__fail(err, NIB_USAGE,
                         "--cache-type %s and a comparison of cache types; leave one out",
                         r->cache);
    if (o->methods != NULL || o->svg != NULL || o->dry_run || o->memory != 0 ||
        o->loss_budget != 0 || o->by_prefill)
        return nib__fail(err, NIB_USAGE,
                         "of the options for recipes, a comparison of cache types takes only a "
                         "text, a window, a context and a dtype");
    if (o->caches->count >= NIB_CACHE_COSTS)
        return nib__fail(err, NIB_USAGE, "%zu cache types; at most %d are compared",
                         o->caches->count, NIB_CACHE_COSTS - 1);
    return NIB_OK;
}

static nib_status open_plan(nib_plan **out, const trial *t, const char *device, const char *cache,
                            nib_err *err)
{
    const nib_request *asked = t->options->request;
    const nib_request r = {.recipe = asked->recipe,
                           .dtype = asked->dtype,
                           .device = device,
                           .cache = cache,
                           .context = asked->context,
                           .lookup = -1};
    return nib_plan_open(out, t->model, &r, err);
}

/* The types to try: those named, or the usual ones. */
static const char *type_at(const trial *t, size_t i)
{
    const nib_strings *own = t->options->caches;
    return own->count > 0 ? own->items[i] : usual[i];
}

static size_t type_count(const trial *t)
{
    const nib_strings *own = t->options->caches;
    return own->count > 0 ? own->count : COUNT(usual);
}

/* Whether the model's heads can be rotated, if the type rotates them. */
static bool applies(const trial *t, const char *name)
{
    nib_kv_types types;
    const nib_config *c = &t->model->net.config;
    if (!nib__kv_parse(&types, name) || types.keys.type == t->dtype)
        return false;
    if (c->latent.rank > 0 && !nib__kv_alike(types))
        return false;
    const int64_t head = nib__kv_shape(c, 1, 1, types).head_dim;
    return !(types.keys.hadamard || types.values.hadamard) ||
           (nib__hadamard_block(head, c->latent.rank) > 1 && head <= NIB_HADAMARD_MOST &&
            (c->global_head_dim == 0 || (nib__hadamard_block(c->global_head_dim, 0) > 1 &&
                                         c->global_head_dim <= NIB_HADAMARD_MOST)));
}

static bool is_tried(const trial *t, const char *name)
{
    return t->options->caches->count > 0 || applies(t, name);
}

/* Plans the type, as nothing is measured if one of them cannot run. --device auto chooses one
 * device for all types: the CPU if they would run on different ones. */
static nib_status plan_type(trial *t, const char *name, nib_err *err)
{
    nib_plan *plan;
    NIB_TRY(open_plan(&plan, t, t->options->request->device, name, err));
    nib_status status = nib_plan_status(plan, err);
    const char *chosen = plan->machine.name; /* of --device auto: the engine's */
    if (status == NIB_NOT_AS_ASKED && name != NULL)
        status =
            nib__fail(err, status,
                      "a KV cache in %s does not run on %s; leave out --device, or say "
                      "--device auto. `nibble plan --device %s --cache-type %s` has the reason",
                      name, chosen, chosen, name);
    t->dtype = plan->policy.dtype;
    if (nib__plan_is_auto(plan))
        t->device = t->device == NULL || strcmp(t->device, chosen) == 0 ? chosen : "cpu";
    nib_plan_close(plan);
    return status;
}

static nib_status choose_device(trial *t, nib_err *err)
{
    const char *asked = t->options->request->device;
    NIB_TRY(plan_type(t, NULL, err));
    for (size_t i = 0; i < type_count(t); i++)
        if (is_tried(t, type_at(t, i)))
            NIB_TRY(plan_type(t, type_at(t, i), err));
    if (t->device == NULL)
        t->device = asked;
    return NIB_OK;
}

static nib_status open_session(nib_session **out, const trial *t, const char *cache,
                               uint64_t *token_bytes, nib_err *err)
{
    nib_plan *plan;
    NIB_TRY(open_plan(&plan, t, t->device, cache, err));
    *token_bytes = nib__plan_token_bytes(plan);
    const nib_status status = nib_session_open(out, t->model, plan, 1, err);
    nib_plan_close(plan);
    return status;
}

static nib_status try_type(trial *t, const char *name, nib_err *err)
{
    nib_session *session;
    tried *c = &t->items[t->count];
    const nib_eval_options eval = {.text_path = t->options->text_path,
                                   .window = t->options->window};
    *c = (tried){.name = name, .result = {.size = sizeof c->result}};
    NIB_TRY(open_session(&session, t, name, &c->token_bytes, err));
    const nib_status status = nib_eval(session, t->base, &eval, &c->result, err);
    nib_session_close(session);
    t->count += status == NIB_OK;
    return status;
}

static nib_status try_all(trial *t, nib_err *err)
{
    for (size_t i = 0; i < type_count(t); i++)
        if (is_tried(t, type_at(t, i)))
            NIB_TRY(try_type(t, type_at(t, i), err));
    return NIB_OK;
}

/* ---- the report ---- */

static void render(const trial *t, uint64_t base_bytes, nib_text *out)
{
    const nib_plan *plan = t->base->plan;
    char tokens[32];
    nib__text_format(out, "%s tokens of %s, each cache type against %s, on %s\n\n",
                     nib__format_count(tokens, (uint64_t)t->items[0].result.predicted),
                     t->options->text_path, plan->cache_name, plan->machine.name);
    nib__text_format(out, "%-22s %9s %7s  %-11s %-24s %s\n", "KV cache", "B/token", "share",
                     "KL, nats", "95 %", "same top-1");
    nib__text_format(out, "%-22s %9" PRIu64 " %5d %%  %-11s %-24s %s\n", plan->cache_name,
                     base_bytes, 100, "0", "", "100 %");
    for (size_t i = 0; i < t->count; i++) {
        const tried *c = &t->items[i];
        const nib_eval_result *r = &c->result;
        char interval[48] = "";
        if (r->resamples > 0)
            nib__format(interval, sizeof interval, "%.7f to %.7f", r->kl_interval[0],
                        r->kl_interval[1]);
        nib__text_format(out, "%-22s %9" PRIu64 " %5.0f %%  %-11.7f %-24s %.2f %%\n", c->name,
                         c->token_bytes, 100 * (double)c->token_bytes / (double)base_bytes, r->kl,
                         interval, 100 * r->top1_agreement);
    }
    nib__text_str(out,
                  "\n`nibble plan --cache-type TYPE` prints these for this model from now on\n");
}

static void write_json(const trial *t, uint64_t base_bytes, nib_text *out)
{
    const nib_plan *plan = t->base->plan;
    nib_jsonw w;
    nib__jsonw_report(&w, out);
    nib__jsonw_pair_string(&w, "model",
                           t->options->name != NULL ? t->options->name : t->model->net.path);
    nib__jsonw_pair_string(&w, "dtype", nib__type_name(plan->policy.dtype));
    nib__jsonw_pair_string(&w, "device", plan->machine.name);
    nib__jsonw_pair_string(&w, "text", t->options->text_path);
    nib__jsonw_pair_int(&w, "predicted", t->items[0].result.predicted);
    nib__jsonw_pair_string(&w, "against", plan->cache_name);
    nib__jsonw_pair_int(&w, "against_token_bytes", (int64_t)base_bytes);
    nib__jsonw_key(&w, "caches");
    nib__jsonw_array(&w);
    for (size_t i = 0; i < t->count; i++) {
        const tried *c = &t->items[i];
        nib__jsonw_object(&w);
        nib__jsonw_pair_string(&w, "cache_type", c->name);
        nib__jsonw_pair_int(&w, "token_bytes", (int64_t)c->token_bytes);
        nib__jsonw_pair_double(&w, "kl", c->result.kl);
        nib__jsonw_key(&w, "kl_interval");
        if (c->result.resamples > 0) {
            nib__jsonw_array(&w);
            nib__jsonw_double(&w, c->result.kl_interval[0]);
            nib__jsonw_double(&w, c->result.kl_interval[1]);
            nib__jsonw_array_end(&w);
        } else {
            nib__jsonw_null(&w);
        }
        nib__jsonw_pair_double(&w, "top1_agreement", c->result.top1_agreement);
        nib__jsonw_pair_double(&w, "loss", c->result.loss);
        nib__jsonw_pair_double(&w, "loss_difference", c->result.loss_difference);
        nib__jsonw_object_end(&w);
    }
    nib__jsonw_array_end(&w);
    nib__jsonw_report_end(&w);
}

static nib_status keep(const trial *t, nib_err *err)
{
    nib_cache_costs costs = {.predicted = t->items[0].result.predicted, .count = t->count};
    const char *slash = strrchr(t->options->text_path, '/');
    nib__today(costs.measured_on);
    snprintf(costs.text, sizeof costs.text, "%s",
             slash != NULL ? slash + 1 : t->options->text_path);
    for (size_t i = 0; i < t->count; i++) {
        nib_kv_types types; /* the name that a plan gives them */
        if (nib__kv_parse(&types, t->items[i].name))
            nib__kv_name(costs.items[i].name, types);
        costs.items[i].kl = t->items[i].result.kl;
    }
    return nib__cache_costs_keep(&costs, t->base->plan, err);
}

static nib_status run(trial *t, nib_form form, const nib_sink *sink, nib_err *err)
{
    uint64_t base_bytes;
    nib_text text;
    NIB_TRY(open_session(&t->base, t, NULL, &base_bytes, err));
    NIB_TRY(try_all(t, err));
    NIB_TRY(keep(t, err));
    nib__text_init(&text, &t->model->engine->allocator);
    if (form == NIB_FORM_JSON)
        write_json(t, base_bytes, &text);
    else
        render(t, base_bytes, &text);
    const nib_status status = nib__text_flush(&text, sink, err);
    nib__text_free(&text);
    return status;
}

nib_status nib__advise_caches(nib_model *model, const nib_advise_options *options, nib_form form,
                              const nib_sink *sink, nib_err *err)
{
    trial *t = nib__calloc(&model->engine->allocator, 1, sizeof *t);
    if (t == NULL)
        return nib__fail_memory(err, sizeof *t, "a comparison of cache types");
    t->model = model, t->options = options;
    nib_status status = check_options(t, err);
    if (status == NIB_OK)
        status = choose_device(t, err);
    if (status == NIB_OK)
        status = run(t, form, sink, err);
    nib_session_close(t->base);
    nib__release(&model->engine->allocator, t);
    return status;
}
