/* SPDX-License-Identifier: Apache-2.0
 *
 * The nib_plan_* functions of nibble.h: copy a request, derive layers, machine and policy from it,
 * call the planner, and write the plan.
 */
#include "plan_handle.h"
#include "bias_codes.h"
#include "config_codes.h"
#include "fake_quant.h"
#include "public_struct.h"
#include "quantizer.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

/* ---- copying the request: it need not outlive this call ---- */

static bool copy_string(nib_arena *arena, const char **string)
{
    return !*string || (*string = nib__arena_copy(arena, *string, strlen(*string))) != NULL;
}

static bool copy_strings(nib_arena *arena, nib_strings *strings)
{
    const char **items = nib__arena_take(arena, strings->count + 1, sizeof *items);
    for (size_t i = 0; items && i < strings->count; i++) {
        items[i] = strings->items[i];
        if (!copy_string(arena, &items[i]))
            return false;
    }
    strings->items = items;
    return items != NULL;
}

/* Only the numbers: a plan reads no text and calls nothing. */
static bool copy_generation(nib_arena *arena, const nib_generate_options **generation)
{
    if (*generation == NULL)
        return true;
    nib_generate_options *copy = nib__arena_take(arena, 1, sizeof *copy);
    if (copy == NULL)
        return false;
    *copy = **generation;
    copy->prompt = NULL;
    copy->schema = NULL;
    copy->stop = (nib_strings){0};
    copy->on_logprobs = NULL;
    copy->on_logprobs_ctx = NULL;
    *generation = copy;
    return true;
}

static nib_status copy_request(nib_plan *p, const nib_request *request, nib_err *err)
{
    nib_request *r = &p->request;
    *r = *request;
    if (r->draft != NULL)
        nib__model_hold(r->draft);
    nib_arena *a = &p->arena;
    const bool ok =
        copy_string(a, &r->recipe) && copy_string(a, &r->device) && copy_string(a, &r->dtype) &&
        copy_string(a, &r->cache) && copy_string(a, &r->engine) && copy_string(a, &r->layer) &&
        copy_string(a, &r->bias) && copy_string(a, &r->draft_recipe) && copy_strings(a, &r->skip) &&
        copy_strings(a, &r->only) && copy_strings(a, &r->allow) && copy_strings(a, &r->kernel) &&
        copy_strings(a, &r->place) && copy_strings(a, &r->without) &&
        copy_generation(a, &r->generation);
    return ok ? NIB_OK : nib__fail_memory(err, sizeof *request, "the request");
}

/* ---- recipe, dtype, machine, layers ---- */

/* A weight that is kept as stored runs with the activations that its format's tools use, unless the
 * recipe is weight-only. */
static nib_scheme choose_kept_scheme(const nib_site *s, const nib_choice *choice)
{
    nib_scheme asked = s->stored;
    if (!nib__scheme_is_quantized(&asked) || s->role == NIB_ROLE_EMBED)
        return asked;
    if (choice->weight_only) {
        asked.act = NIB_ACT_FLOAT;
        asked.act_symmetric = false;
    } else if (asked.act == NIB_ACT_FLOAT && s->act != NIB_ACT_FLOAT) {
        asked.act = s->act;
        asked.act_symmetric = true;
    }
    return asked;
}

static nib_status load_recipe(nib_plan *p, nib_err *err)
{
    const nib_network *net = &p->model->net;
    const nib_recipe_layer *layers;
    nib_bias bias;
    NIB_TRY(nib__bias_parse(&bias, p->request.bias, err));
    NIB_TRY(nib__model_recipe(&p->recipe, &layers, p->model, &p->request, &p->arena, err));
    p->layers = nib__arena_take(&p->arena, net->site_count, sizeof *p->layers);
    if (!p->layers)
        return nib__fail_memory(err, net->site_count * sizeof *p->layers, "the layers");
    for (size_t i = 0; i < net->site_count; i++) {
        const nib_site *s = &net->sites[i];
        nib_choice choice;
        nib__recipe_resolve(&choice, p->recipe, &layers[i]);
        const nib_scheme stored = nib__config_codes_stored(net, s, choice.keep);
        nib_layer *l = &p->layers[i];
        *l = (nib_layer){.name = s->name,
                         .role = s->role,
                         .n = s->n,
                         .k = s->k,
                         .experts = s->experts,
                         .top_k = s->top_k,
                         .heads = s->heads,
                         .stored = stored,
                         .asked = choice.keep ? choose_kept_scheme(s, &choice) : choice.scheme,
                         .act = s->act,
                         .rule = choice.rule,
                         .bias = s->bias,
                         .bias_form = s->bias && bias != NIB_BIAS_NONE ? bias : s->bias_form,
                         .scale_type = s->scale_type,
                         .asked_scales = choice.scale_type,
                         .zero_type = s->zero_type,
                         .act_scale_type = s->act_scale_type,
                         .stored_bytes = s->stored_bytes,
                         .plain = s->plain || s->stored_bytes == 0,
                         .q6_k = s->stored_bytes != 0 && s->weight.layout == NIB_LAYOUT_Q6_K,
                         .ordered = s->order != NULL,
                         .shares_input = s->shares_input,
                         .kept_act = choice.keep && !choice.weight_only,
                         .hint = choice.hint,
                         .hint_text = choice.hint_text};
        if (bias != NIB_BIAS_NONE)
            NIB_TRY(nib__bias_allowed(&l->bias_form, s->name, &l->asked, s->k, err));
        if (nib__scheme_same_weight(&l->asked, &l->stored) || !nib__scheme_is_quantized(&l->asked))
            continue;
        nib_quantizer q;
        char shown[NIB_SHOWN];
        /* loading refuses to requantize codes, but the plan still shows the types */
        const nib_type source =
            nib__scheme_is_quantized(&stored) ? NIB_TYPE_BF16 : nib__float_type(stored.code);
        const nib_status status = nib__quantizer_init(&q, &l->asked, source, s->k, err);
        if (status != NIB_OK)
            return nib__fail_in(err, status, nib__escape_string(shown, s->name));
        NIB_TRY(nib__quantizer_scales(&q, l->asked_scales, err));
        NIB_TRY(nib__quantizer_method(&q, choice.method, NULL, err));
        l->method = choice.method;
        l->scale_type = q.scale_type;
        l->zero_type = q.zero_type;
    }
    return NIB_OK;
}

/* The type of the first linear weight that is stored as floats; if all are quantized, the config's
 * torch_dtype. */
static nib_type stored_dtype(const nib_network *net)
{
    for (size_t i = 1; i < net->site_count - 1; i++)
        if (net->sites[i].role != NIB_ROLE_EMBED &&
            !nib__scheme_is_quantized(&net->sites[i].stored))
            return nib__float_type(net->sites[i].stored.code);
    return net->config.dtype == NIB_TYPE_NONE ? NIB_TYPE_F32 : net->config.dtype;
}

static nib_status choose_dtype(nib_plan *p, nib_err *err)
{
    const char *name = p->request.dtype ? p->request.dtype : nib__recipe_dtype(p->recipe);
    const nib_type names[] = {NIB_TYPE_F32, NIB_TYPE_F16, NIB_TYPE_BF16};
    p->policy.dtype = NIB_TYPE_NONE;
    if (!name)
        p->policy.dtype = stored_dtype(&p->model->net);
    for (size_t i = 0; name && i < COUNT(names); i++)
        if (strcmp(name, nib__type_name(names[i])) == 0)
            p->policy.dtype = names[i];
    if (p->policy.dtype == NIB_TYPE_NONE)
        return nib__fail(err, NIB_USAGE, "%s \"%s\" is not one of f32, f16, bf16",
                         p->request.dtype ? "dtype" : "the recipe's dtype", name);
    return NIB_OK;
}

/* Whether the heads of layers with keys can be rotated. */
static nib_status check_rotation(const nib_config *c, int64_t head_dim, nib_err *err)
{
    if (head_dim > NIB_HADAMARD_MOST)
        return nib__fail(err, NIB_UNSUPPORTED,
                         "heads of %" PRId64 " channels are not rotated, at most %d; leave out "
                         "-hadamard",
                         head_dim, NIB_HADAMARD_MOST);
    if (head_dim > 0 && nib__hadamard_block(head_dim, c->latent.rank) == 1)
        return nib__fail(err, NIB_UNSUPPORTED,
                         "heads of %" PRId64 " channels, an odd number, have no Hadamard rotation; "
                         "leave out -hadamard",
                         head_dim);
    return NIB_OK;
}

/* Whether the model's keys and values can be of these types. */
static nib_status check_cache(const nib_plan *p, nib_kv_types types, nib_err *err)
{
    const nib_config *c = &p->model->net.config;
    if (c->latent.rank > 0 && !nib__kv_alike(types))
        return nib__fail(err, NIB_UNSUPPORTED,
                         "cache type %s: this model's values lie in its keys (latent attention), "
                         "so both have one type; give one",
                         p->cache_name);
    if (!types.keys.hadamard && !types.values.hadamard)
        return NIB_OK;
    NIB_TRY(check_rotation(c, nib__kv_shape(c, 1, 1, types).head_dim, err));
    return check_rotation(c, c->global_head_dim, err);
}

static nib_status choose_cache(nib_plan *p, nib_err *err)
{
    const char *name = p->request.cache;
    if (name != NULL && p->model->net.training)
        return nib__fail(err, NIB_USAGE,
                         "--cache-type %s has no effect in training, which keeps keys and values "
                         "in the type of its activations; leave it out",
                         name);
    if (name != NULL && !nib__kv_parse(&p->policy.cache, name))
        return nib__fail(err, NIB_USAGE,
                         "cache type \"%s\" is not one of f32, f16, bf16, int8, int4, one of these "
                         "with -hadamard, or two as KEYS:VALUES%s",
                         name,
                         name[0] == 'q'
                             ? "; int8 has one scale per token and head, q8_0 one per 32 values"
                             : "");
    const nib_kv_types types = nib__policy_cache(&p->policy);
    nib__kv_name(p->cache_name, types);
    return name != NULL ? check_cache(p, types, err) : NIB_OK;
}

nib_kv_shape nib__plan_kv_shape(const nib_plan *p, nib_kv_types types)
{
    nib_kv_shape shape = nib__kv_shape(&p->model->net.config, p->sequences, p->context, types);
    shape.snapshots = p->policy.snapshots * p->sequences;
    return shape;
}

static int64_t snapshots_of(const nib_plan *p)
{
    enum { USUAL = 4 }; /* where a turn starts, where its prompt ends, and two on the way */
    return p->request.snapshots == 0 ? USUAL : nib__max(p->request.snapshots, 0);
}

/* The context, and the bytes of its KV cache; a training step keeps none. */
static nib_status choose_context(nib_plan *p, nib_err *err)
{
    const int64_t limit = p->model->net.config.context;
    p->context = p->request.context > 0 ? p->request.context : nib__min(limit, 4096);
    if (p->context > limit)
        return nib__fail(err, NIB_USAGE,
                         "a context of %" PRId64 " is over the model's limit of %" PRId64
                         "; lower --context",
                         p->context, limit);
    p->sequences = nib__max(p->request.sequences, 1);
    p->cache = (nib_kv_size){0};
    if (p->model->net.training)
        return NIB_OK;
    p->policy.snapshots = snapshots_of(p);
    const nib_kv_shape shape = nib__plan_kv_shape(p, nib__policy_cache(&p->policy));
    return nib__kv_measure(&p->cache, &shape, err);
}

/* ---- settings and notes ---- */

/* One line for all tensors whose values change when they are read. Products are computed in f32, so
 * rounding to f32 (2^-24 relative) is NARROWER: a run could not use more. Beyond that, OTHER. */
static void report_rounding(nib_ledger *ledger)
{
    const double rounding = 0x1p-24;
    const nib_ledger_tensor *first = NULL;
    size_t count = 0;
    double max_change = 0;
    for (size_t i = ledger->tensor_count; i-- > 0;) {
        const nib_ledger_tensor *t = &ledger->tensors[i];
        if (!(t->max_rel_change > 0))
            continue;
        first = t;
        count++;
        max_change = fmax(max_change, t->max_rel_change);
    }
    if (first)
        nib__ledger_add_setting(
            ledger,
            &(nib_ledger_setting){.code = "dtype",
                                  .name = first->name,
                                  .asked = first->asked,
                                  .done = first->done,
                                  .by = NIB_BY_CHECKPOINT,
                                  .relation = max_change > rounding ? NIB_SETTING_OTHER
                                                                    : NIB_SETTING_NARROWER},
            "%zu tensors are read as %s, which changes values by a relative error of up to %.2g",
            count, first->done, max_change);
}

/* The layer whose weight the tensor belongs to, or NULL. *from: where to look first; layers and
 * tensors are in the same order. */
static const nib_layer *find_layer(const nib_plan *p, const char *tensor, size_t *from)
{
    const size_t count = p->model->net.site_count;
    for (size_t i = 0; i < count; i++) {
        const size_t at = (*from + i) % count, size = strlen(p->layers[at].name);
        if (strncmp(p->layers[at].name, tensor, size) != 0 || tensor[size] != '.')
            continue;
        *from = at;
        return &p->layers[at];
    }
    return NULL;
}

/* One line for all weights that run with other activations than the checkpoint describes, unless
 * the recipe chose them. */
static void report_activations(nib_plan *p)
{
    nib_ledger *ledger = &p->assignment.ledger;
    const nib_ledger_tensor *first = NULL;
    size_t count = 0, from = 0;
    for (size_t i = 0; i < ledger->tensor_count; i++) {
        const nib_ledger_tensor *t = &ledger->tensors[i];
        if (t->asked == NULL || strstr(t->asked, "activations") == NULL)
            continue;
        const nib_layer *layer = find_layer(p, t->name, &from);
        if (layer != NULL && !layer->kept_act)
            continue;
        first = first != NULL ? first : t;
        count++;
    }
    if (first)
        nib__ledger_add_setting(
            ledger,
            &(nib_ledger_setting){.code = "activations",
                                  .name = first->name,
                                  .asked = first->asked,
                                  .done = first->done,
                                  .by = NIB_BY_CHECKPOINT,
                                  .relation = NIB_SETTING_OTHER},
            "%zu weights run with activations that differ from those of the checkpoint", count);
}

void nib__report_overruled(nib_ledger *ledger, const nib_ledger_setting *asked, const char *option,
                           const char *done)
{
    nib_ledger_setting line = *asked;
    if (!asked->asked || !done || strcmp(asked->asked, done) == 0)
        return;
    line.done = done;
    line.relation = NIB_SETTING_OTHER;
    nib__ledger_add_setting(ledger, &line, "%s %s overrules it", option, done);
}

/* Options for this machine's CPU have no effect on the plan of another machine. */
static void report_unused_cpu_options(nib_plan *p)
{
    const nib_engine *engine = p->model->engine;
    char threads[32];
    const nib_ledger_setting lines[] = {
        {.code = "threads",
         .name = "--threads",
         .asked = engine->asked_threads > 0
                      ? nib__format_count(threads, (uint64_t)engine->asked_threads)
                      : NULL,
         .by = NIB_BY_OPTION,
         .relation = NIB_SETTING_NONE},
        {.code = "isa",
         .name = "--isa",
         .asked = *engine->asked_isa ? engine->asked_isa : NULL,
         .by = NIB_BY_OPTION,
         .relation = NIB_SETTING_NONE},
    };
    for (size_t i = 0; i < COUNT(lines); i++)
        if (lines[i].asked)
            nib__ledger_add_setting(&p->assignment.ledger, &lines[i],
                                    "the plan is for %s, not for this machine", p->machine.name);
}

static void report_threads(nib_plan *p)
{
    const nib_engine *engine = p->model->engine;
    const int threads = nib__pool_threads(engine->pool), cores = nib__cores_allowed();
    char asked[32];
    if (!p->machine.here && p->machine.facts.fact[NIB_FACT_DEVICE] == NIB_DEVICE_CPU) {
        report_unused_cpu_options(p);
        return;
    }
    if (threads <= cores)
        return;
    nib__ledger_add_setting(
        &p->assignment.ledger,
        &(nib_ledger_setting){.code = "threads",
                              .name = "--threads",
                              .asked = nib__format_count(asked, (uint64_t)threads),
                              .done = asked,
                              .by = NIB_BY_OPTION,
                              .relation = NIB_SETTING_EQUIVALENT},
        "this process may use only %d cores, so threads compete; use at most "
        "--threads %d",
        cores, cores);
}

/* Stored codes are not requantized, so their scales keep the stored type. */
static void report_scales(nib_plan *p)
{
    nib_type stored = NIB_TYPE_NONE, asked = NIB_TYPE_NONE;
    size_t count = 0;
    for (size_t i = 0; i < p->model->net.site_count; i++) {
        const nib_layer *l = &p->layers[i];
        if (l->asked_scales == NIB_TYPE_NONE || l->asked_scales == l->scale_type)
            continue;
        stored = l->scale_type;
        asked = l->asked_scales;
        count++;
    }
    if (count > 0)
        nib__ledger_add_setting(
            &p->assignment.ledger,
            &(nib_ledger_setting){.code = "scale-type",
                                  .name = "scale_dtype",
                                  .asked = nib__type_name(asked),
                                  .done = nib__type_name(stored),
                                  .by = NIB_BY_RECIPE,
                                  .relation = NIB_SETTING_OTHER},
            "%zu layers keep their stored %s scales: stored codes are not requantized", count,
            nib__type_name(stored));
}

/* Options of nib_generate that will have no effect. */
static void report_generation(nib_plan *p)
{
    const nib_generate_options *o = p->request.generation;
    if (o == NULL)
        return;
    const nib_sampling asked = nib__asked_sampling(o);
    nib__report_sampling(&p->assignment.ledger, p->model, &asked, NIB_BY_OPTION);
    nib__report_max_tokens(&p->assignment.ledger, "--max-tokens", o->max_tokens, 0, p->context,
                           NIB_BY_OPTION);
}

static void note_uncalibrated(nib_plan *p, const char *code, const char *what, size_t count)
{
    if (count > 0)
        nib__ledger_add_note(&p->assignment.ledger, code,
                             "%s: %zu layers need a calibration text, so a run with this "
                             "recipe is refused; this plan is for what `nibble quantize "
                             "--calibrate TEXT` writes",
                             what, count);
}

/* Says which layers a run would refuse to load, because they are quantized with a text. */
static void note_calibration(nib_plan *p)
{
    size_t by[NIB_PTQ_COUNT] = {0}, static_acts = 0;
    for (size_t i = 0; i < p->model->net.site_count; i++) {
        const nib_scheme *done = &p->assignment.layers[i].done;
        by[p->layers[i].method]++;
        static_acts +=
            done->act == NIB_ACT_I8_STATIC && !nib__scheme_is_quantized(&p->layers[i].stored);
    }
    for (int m = 0; m < NIB_PTQ_COUNT; m++)
        if (nib__ptq_needs_text((nib_ptq_method)m))
            note_uncalibrated(p, "method", nib__ptq_names[m], by[m]);
    note_uncalibrated(p, "activations", "static activation scales", static_acts);
}

static void add_notes(nib_plan *p)
{
    const nib_network *net = &p->model->net;
    nib_ledger *to = &p->assignment.ledger;
    nib__ledger_append(to, &net->notes);
    if (!net->training)
        nib__rope_report_context(&net->config, p->context, to);
    for (size_t i = 0; i < net->notes.tensor_count; i++) {
        nib_ledger_tensor *t = nib__ledger_add_tensor(to, net->notes.tensors[i].name);
        if (t)
            *t = net->notes.tensors[i];
    }
    report_rounding(to);
    report_activations(p);
    note_calibration(p);
    nib__ledger_append(to, nib__recipe_ledger(p->recipe));
    const nib_ledger_setting precision = {.code = "dtype",
                                          .name = "precision",
                                          .asked = nib__recipe_dtype(p->recipe),
                                          .by = NIB_BY_RECIPE};
    const nib_ledger_setting executor = {.code = "executor",
                                         .name = "executor",
                                         .asked = nib__recipe_device(p->recipe),
                                         .by = NIB_BY_RECIPE};
    nib__report_overruled(to, &precision, "--dtype", p->request.dtype);
    nib__report_overruled(to, &executor, "--device", p->request.device);
    report_threads(p);
    report_generation(p);
    nib__plan_tell_training(p);
    nib__model_say_tokenizer(p->model, to);
    if (net->checkpoint)
        nib__ledger_append(to, nib__checkpoint_ledger(net->checkpoint));
    report_scales(p);
    if (!p->request.dtype && !nib__recipe_dtype(p->recipe) && net->config.dtype != NIB_TYPE_NONE &&
        net->config.dtype != p->policy.dtype) {
        const char *asked = nib__type_name(net->config.dtype),
                   *done = nib__type_name(p->policy.dtype);
        nib__ledger_add_setting(to,
                                &(nib_ledger_setting){.code = "dtype",
                                                      .name = "torch_dtype",
                                                      .asked = asked,
                                                      .done = done,
                                                      .by = NIB_BY_CONFIG,
                                                      .relation = NIB_SETTING_OTHER},
                                "the linear weights are stored as %s, so activations are %s; "
                                "choose with --dtype %s or --dtype %s",
                                done, done, asked, done);
    }
}

void nib__report_biases(nib_ledger *ledger, const char *asked, const char *others)
{
    size_t biases = 0, as_asked = 0;
    for (size_t i = 0; asked && i < ledger->layer_count; i++) {
        const nib_ledger_layer *line = &ledger->layers[i];
        biases += line->bias;
        as_asked += line->bias && line->bias_form && strcmp(line->bias_form, asked) == 0;
    }
    if (!asked)
        return;
    if (as_asked == biases && biases > 0) {
        nib__ledger_add_note(ledger, "bias", "%zu of %zu biases are %s", as_asked, biases, asked);
        return;
    }
    const nib_ledger_setting s = {.code = "bias",
                                  .name = "--bias",
                                  .asked = asked,
                                  .done = as_asked > 0 ? asked : NULL,
                                  .by = NIB_BY_OPTION,
                                  .relation =
                                      as_asked > 0 ? NIB_SETTING_NARROWER : NIB_SETTING_NONE};
    if (biases == 0)
        nib__ledger_add_setting(ledger, &s, "no layer has a bias");
    else
        nib__ledger_add_setting(ledger, &s, "%zu of %zu biases have this type; the others %s",
                                as_asked, biases, others);
}

/* How a token's time grows with the positions that it attends to. */
static void note_positions(nib_plan *p)
{
    int64_t positions[NIB_PLAN_POSITIONS];
    const int count = nib__plan_positions(positions, p->context);
    char text[256] = "", number[32], time[32];
    size_t used = 0;
    for (int i = 0; i < count; i++) {
        const double seconds =
            nib__plan_step_seconds(&p->assignment, &p->policy, 1, 1, (double)positions[i]);
        if (isnan(seconds))
            return;
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%s at position %s",
                                 i == 0 ? "" : ", ", nib__format_seconds(time, seconds),
                                 nib__format_count(number, (uint64_t)positions[i]));
    }
    nib__ledger_add_note(&p->assignment.ledger, "predicted", "a token takes %s", text);
}

static nib_status make_plan(nib_plan *p, const nib_request *request, const nib_retry *retry,
                            nib_err *err)
{
    NIB_TRY(copy_request(p, request, err));
    const nib_request *r = &p->request;
    NIB_TRY(load_recipe(p, err));
    NIB_TRY(choose_dtype(p, err));
    NIB_TRY(choose_cache(p, err));
    NIB_TRY(nib__choose_machine(p, err));
    NIB_TRY(nib__plan_check_training(p, err));
    NIB_TRY(choose_context(p, err));
    p->policy.allow = r->allow, p->policy.kernel = r->kernel, p->policy.place = r->place;
    NIB_TRY(nib__choose_without(&p->policy.without, &r->without, &p->arena,
                                &p->model->engine->allocator, err));
    if (retry != NULL)
        NIB_TRY(nib__plan_exclude_refused(p, retry, err));
    p->policy.training = p->model->net.training;
    p->policy.graph = &p->model->net.graph;
    p->policy.wgrad_with_hp = p->model->net.train.wgrad_with_hp;
    p->policy.checkpointing = p->model->net.train.checkpointing;
    p->policy.m = p->model->net.train.batch * p->model->net.train.sequence;
    p->policy.strict = r->strict, p->policy.engine = r->engine, p->policy.detail = r->layer;
    p->policy.cache_bytes = p->cache.bytes;
    p->policy.weight_count = nib__network_weights(&p->model->net);
    NIB_TRY(nib__runner_gpu_bytes(&p->policy.step_bytes, &p->model->net, p->layers, p->policy.dtype,
                                  p->context, err));
    NIB_TRY(nib__plan_machines(p, err));
    nib__plan_note_refused(p);
    nib__plan_open_packed(p);
    add_notes(p);
    nib__plan_note_packed(p);
    nib__report_biases(&p->assignment.ledger, p->request.bias,
                       "stay floats, as the weights of their layers do");
    nib__plan_note_training(p);
    NIB_TRY(nib__plan_lookup(p, err));
    NIB_TRY(nib__plan_draft_model(p, err));
    NIB_TRY(nib__plan_memory(p, err));
    if (!p->policy.training)
        note_positions(p);
    nib__ledger_allow(&p->assignment.ledger, &r->allow);
    nib_err *denied = &p->assignment.denied;
    if (r->strict && denied->status == NIB_OK)
        (void)nib__ledger_strict(&p->assignment.ledger, denied);
    if (p->draft != NULL && denied->status == NIB_OK &&
        p->draft->assignment.denied.status != NIB_OK)
        nib__fail(denied, p->draft->assignment.denied.status, "%s: %s", nib__plan_draft_name(p),
                  p->draft->assignment.denied.text);
    return NIB_OK;
}

nib_status nib__plan_make(nib_plan **out, nib_model *model, const nib_request *request,
                          const nib_retry *retry, nib_err *err)
{
    const nib_allocator *a = &model->engine->allocator;
    nib_plan *p = nib__calloc(a, 1, sizeof *p);
    if (!p)
        return nib__fail_memory(err, sizeof *p, "the plan");
    p->model = model;
    nib__model_hold(model);
    nib__arena_init(&p->arena, a, 0);
    const nib_status status = make_plan(p, request, retry, err);
    if (status != NIB_OK) {
        nib_plan_close(p);
        return status;
    }
    *out = p;
    return NIB_OK;
}

nib_status nib__request_check(const nib_request *r, nib_err *err)
{
    NIB_TRY(nib__number_check("nib_request.context", r->context, err));
    NIB_TRY(nib__number_check("nib_request.sequences", r->sequences, err));
    NIB_TRY(nib__number_check("nib_request.ranks", r->ranks, err));
    NIB_TRY(nib__strings_check("nib_request.skip", &r->skip, err));
    NIB_TRY(nib__strings_check("nib_request.only", &r->only, err));
    NIB_TRY(nib__strings_check("nib_request.allow", &r->allow, err));
    NIB_TRY(nib__strings_check("nib_request.kernel", &r->kernel, err));
    NIB_TRY(nib__strings_check("nib_request.place", &r->place, err));
    return nib__strings_check("nib_request.without", &r->without, err);
}

nib_status nib_plan_open(nib_plan **out, nib_model *model, const nib_request *request, nib_err *err)
{
    NIB_NEED(err, "out, model", out, model);
    NIB_OPTIONS(nib_request, asked, request, err);
    NIB_TRY(nib__request_check(&asked, err));
    NIB_OPTIONS(nib_generate_options, generation, asked.generation, err);
    if (asked.generation != NULL)
        asked.generation = &generation;
    if (isnan(generation.temperature) || isnan(generation.top_p) || isnan(generation.min_p) ||
        isnan(generation.repeat_penalty))
        return nib__fail(err, NIB_USAGE, "a sampling option of nib_request.generation is NaN");
    NIB_TRY(nib__engine_check(model->engine, err));
    NIB_TRY(nib__model_runs(model, err));
    return nib__plan_make(out, model, &asked, NULL, err);
}

nib_plan *nib__plan_hold(const nib_plan *plan)
{
    nib_plan *held = (nib_plan *)plan; /* what callers see of it does not change */
    nib__holders_add(&held->holders);
    return held;
}

nib_status nib__plan_check_model(const nib_plan *plan, const nib_model *model, nib_err *err)
{
    if (plan->model == model)
        return NIB_OK;
    return nib__fail(err, NIB_USAGE,
                     "%s: the plan is of another model, %s; make a plan of this one",
                     model->net.path, plan->model->net.path);
}

void nib_plan_close(nib_plan *plan)
{
    if (!plan || !nib__holders_leave(&plan->holders))
        return;
    nib_model *model = plan->model;
    nib_plan_close(plan->draft);
    nib_model_close(plan->request.draft);
    nib__assignment_free(&plan->assignment);
    nib__recipe_free(plan->recipe);
    nib__arena_free(&plan->arena);
    nib__release(&model->engine->allocator, plan);
    nib_model_close(model);
}

nib_status nib_plan_status(const nib_plan *plan, nib_err *err)
{
    NIB_NEED(err, "plan", plan);
    const nib_err *denied = &plan->assignment.denied;
    return denied->status == NIB_OK ? NIB_OK : nib__fail(err, denied->status, "%s", denied->text);
}

/* "predicted_positions": [[positions, seconds of a token behind them], ...] */
static void put_positions(const nib_plan *p, nib_jsonw *w)
{
    int64_t positions[NIB_PLAN_POSITIONS];
    const int count = p->policy.training ? 0 : nib__plan_positions(positions, p->context);
    nib__jsonw_key(w, "predicted_positions");
    nib__jsonw_array(w);
    for (int i = 0; i < count; i++) {
        nib__jsonw_array(w);
        nib__jsonw_int(w, positions[i]);
        nib__jsonw_double(
            w, nib__plan_step_seconds(&p->assignment, &p->policy, 1, 1, (double)positions[i]));
        nib__jsonw_array_end(w);
    }
    nib__jsonw_array_end(w);
}

void nib__plan_json(const nib_plan *p, nib_jsonw *w)
{
    const nib_network *net = &p->model->net;
    const bool is_gguf = nib__checkpoint_gguf(net->checkpoint) != NULL;
    nib__jsonw_pair_string(w, "model",
                           is_gguf ? nib__checkpoint_path(net->checkpoint) : net->directory);
    nib__jsonw_pair_string(w, "recipe", nib__recipe_text(p->recipe));
    nib__jsonw_pair_string(w, "device", p->machine.name);
    nib__jsonw_pair_string(w, "dtype", nib__type_name(p->policy.dtype));
    nib__jsonw_pair_int(w, "context", p->context);
    nib__jsonw_pair_int(w, "lookup", p->lookup);
    nib__jsonw_pair_int(w, "weights", (int64_t)p->policy.weight_count);
    nib__jsonw_pair_int(w, "weight_bytes", (int64_t)p->weight_bytes);
    nib__jsonw_pair_int(w, "file_bytes", (int64_t)p->file_bytes);
    nib__jsonw_pair_string(w, "cache_type", p->cache_name);
    nib__jsonw_pair_int(w, "cache_bytes", (int64_t)p->cache.bytes);
    const nib_cache_cost *cost = nib__cache_costs_of(&p->cache_costs, p->cache_name);
    if (cost != NULL)
        nib__jsonw_pair_double(w, "cache_kl", cost->kl);
    if (p->cache.window_layers > 0) {
        nib__jsonw_pair_int(w, "window_layers", p->cache.window_layers);
        nib__jsonw_pair_int(w, "window_positions", p->cache.window_positions);
    }
    if (p->cache.state_layers > 0) {
        nib__jsonw_pair_int(w, "state_layers", p->cache.state_layers);
        nib__jsonw_pair_int(w, "state_bytes", (int64_t)p->cache.state_bytes);
        nib__jsonw_pair_int(w, "snapshots", p->cache.snapshots);
    }
    nib__jsonw_pair_double(w, "predicted_token_s", p->assignment.predicted_token_s);
    put_positions(p, w);
    nib__jsonw_pair_double(w, "predicted_bf16_token_s", p->assignment.predicted_bf16_token_s);
    nib__jsonw_pair_double(w, "predicted_prefill_s", p->assignment.predicted_prefill_s);
    nib__jsonw_pair_double(w, "linear_token_s", p->assignment.linear_token_s);
    nib__jsonw_pair_double(w, "linear_prefill_s", p->assignment.linear_prefill_s);
    nib__ledger_json(&p->assignment.ledger, w);
    if (p->draft == NULL)
        return;
    nib__jsonw_pair_int(w, "drafts", p->drafts);
    nib__jsonw_key(w, "draft");
    nib__jsonw_object(w);
    nib__plan_json(p->draft, w);
    nib__jsonw_object_end(w);
}

static void write_json(const nib_plan *p, nib_text *text)
{
    nib_jsonw w;
    nib__jsonw_report(&w, text);
    nib__plan_json(p, &w);
    nib__jsonw_report_end(&w);
}

nib_status nib_plan_write(const nib_plan *plan, nib_form form, const nib_sink *sink, nib_err *err)
{
    NIB_NEED(err, "plan", plan);
    NIB_TRY(nib__report_check(form, sink, err));
    nib_text text;
    nib__text_init(&text, &plan->model->engine->allocator);
    if (form == NIB_FORM_JSON)
        write_json(plan, &text);
    else
        nib__plan_render(&plan->assignment, &plan->policy, &text);
    if (form != NIB_FORM_JSON && plan->draft != NULL) {
        nib__text_format(&text, "\ndraft model %s\n\n", plan->draft->model->net.path);
        nib__plan_render(&plan->draft->assignment, &plan->draft->policy, &text);
    }
    const nib_status status = nib__text_flush(&text, sink, err);
    nib__text_free(&text);
    return status;
}

nib_status nib_plan_ledger_write(const nib_plan *plan, nib_form form, const nib_sink *sink,
                                 nib_err *err)
{
    NIB_NEED(err, "plan", plan);
    NIB_TRY(nib__report_check(form, sink, err));
    const nib_ledger *ledger = &plan->assignment.ledger;
    nib_text text;
    nib__text_init(&text, &plan->model->engine->allocator);
    if (form == NIB_FORM_JSON) {
        nib_jsonw w;
        nib__jsonw_init(&w, &text, 0);
        nib__jsonw_object(&w);
        nib__ledger_json(ledger, &w);
        if (plan->draft != NULL) {
            nib__jsonw_key(&w, "draft");
            nib__jsonw_object(&w);
            nib__ledger_json(&plan->draft->assignment.ledger, &w);
            nib__jsonw_object_end(&w);
        }
        nib__jsonw_object_end(&w);
    } else {
        nib__ledger_render_settings(ledger, NIB_SETTING_EQUIVALENT, &text);
        if (plan->draft != NULL && plan->draft->assignment.ledger.setting_count > 0) {
            nib__text_format(&text, "draft model %s\n", plan->draft->model->net.path);
            nib__ledger_render_settings(&plan->draft->assignment.ledger, NIB_SETTING_EQUIVALENT,
                                        &text);
        }
    }
    const nib_status status = nib__text_flush(&text, sink, err);
    nib__text_free(&text);
    return status;
}

nib_status nib_plan_summary(const nib_plan *plan, const nib_sink *sink, nib_err *err)
{
    NIB_NEED(err, "plan", plan);
    NIB_TRY(nib__sink_check(sink, err));
    const nib_ledger *ledger = &plan->assignment.ledger;
    nib_text text;
    nib__text_init(&text, &plan->model->engine->allocator);
    for (size_t i = 0; i < ledger->note_count; i++)
        if (strcmp(ledger->notes[i].code, NIB_NOTE_REFUSED) == 0)
            nib__text_format(&text, "%s\n", ledger->notes[i].text);
    nib__ledger_summary(ledger, &text);
    if (plan->request.cache != NULL) {
        char token[32];
        nib__text_format(&text, "; KV cache in %s, %s per token", plan->cache_name,
                         nib__format_bytes(token, nib__plan_token_bytes(plan)));
    }
    nib__text_str(&text, "\n");
    if (plan->draft != NULL) {
        nib__text_str(&text, "draft model: ");
        nib__ledger_summary(&plan->draft->assignment.ledger, &text);
        nib__text_str(&text, "\n");
    }
    const nib_status status = nib__text_flush(&text, sink, err);
    nib__text_free(&text);
    return status;
}
