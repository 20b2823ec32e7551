/* SPDX-License-Identifier: Apache-2.0
 *
 * Whether a plan fits: weights in their planned schemes, the KV cache of the whole context and, on
 * a device, the buffers of a step, against the memory of the machine.
 */
#include "cache_costs.h"
#include "plan_handle.h"
#include "variant.h"

#include <stdio.h>

/* ---- what must fit, and where ---- */

typedef struct load {
    const nib_machine *machine;
    uint64_t weights, room; /* bytes of weights there, and bytes available for them */
    uint64_t others;        /* bytes of everything else there */
} load;

/* Whether the CPU reads the layer in the file: rows of an embedding, as they are stored. */
static bool stays_in_file(const nib_plan *p, const nib_layer *layer, const nib_scheme *done,
                          bool on_device)
{
    return layer->role == NIB_ROLE_EMBED && !p->policy.training && !on_device &&
           nib__scheme_same_weight(&layer->stored, done);
}

static bool is_on_device(const nib_layer_plan *plan)
{
    return plan->use_count > 0 && plan->uses[0].kernel->device != NIB_DEVICE_CPU;
}

static uint64_t file_bytes(const nib_plan *p)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < p->assignment.count; i++) {
        const nib_layer_plan *plan = &p->assignment.layers[i];
        if (stays_in_file(p, plan->layer, &plan->done, is_on_device(plan)))
            sum += p->assignment.ledger.layers[i].bytes;
    }
    return sum;
}

/* Bytes of a tied embedding that stays in the file, if its codes are the head's. */
static uint64_t shared_bytes(const nib_plan *p)
{
    const nib_layer_plan *layers = p->assignment.layers;
    const bool same =
        p->model->net.tied && p->assignment.count > 1 &&
        nib__scheme_same_weight(&layers[0].done, &layers[p->assignment.count - 1].done);
    return same ? p->file_bytes : 0;
}

static uint64_t weight_bytes(const nib_plan *p)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < p->assignment.count; i++)
        sum += p->assignment.ledger.layers[i].bytes;
    return sum - p->lent_bytes - (p->lent_bytes > 0 ? 0 : file_bytes(p));
}

static load load_of(const nib_plan *p)
{
    const nib_machine *gpu = p->assignment.gpu, *own = &p->machine;
    load l = {.machine = own, .weights = weight_bytes(p), .room = UINT64_MAX};
    const bool is_step = p->policy.training; /* its device memory is known once allocated */
    if (gpu != NULL && (!is_step || p->policy.limit_message != NULL)) {
        l.machine = gpu;
        l.weights = p->assignment.gpu_bytes;
        l.room = nib__plan_room(&p->policy, own, gpu);
        l.others = is_step ? 0 : p->policy.step_bytes + (gpu == own ? p->cache.bytes : 0);
    } else {
        l.others = p->cache.bytes + (p->draft != NULL ? nib__plan_needs(p->draft) : 0);
        if (own->memory != 0)
            l.room = own->memory > l.others ? own->memory - l.others : 0;
    }
    return l;
}

uint64_t nib__plan_token_bytes(const nib_plan *p)
{
    const nib_kv_shape shape = nib__kv_shape(&p->model->net.config, 1, 1, p->assignment.cache);
    return nib__kv_shape_bytes(&shape);
}

uint64_t nib__plan_needs(const nib_plan *p)
{
    const load l = load_of(p);
    return l.weights + l.others;
}

bool nib__plan_fits(const nib_plan *p)
{
    const load l = load_of(p);
    return l.weights <= l.room;
}

/* ---- what would fit ---- */

/* Bytes of all weights, with those stored as floats converted to this scheme. */
static uint64_t bytes_with(const nib_plan *p, const nib_scheme *scheme, bool tables)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < p->assignment.count; i++) {
        const nib_layer *layer = &p->layers[i];
        const bool is_table = layer->role == NIB_ROLE_EMBED || layer->role == NIB_ROLE_HEAD;
        const bool kept = nib__scheme_is_quantized(&layer->stored) || (is_table && !tables);
        const nib_scheme *done = kept ? &layer->stored : scheme;
        const nib_weight w = nib__layer_weight(layer, done);
        if (!stays_in_file(p, layer, done, p->assignment.gpu != NULL))
            sum += nib__weight_bytes(&w);
    }
    return sum;
}

/* The mildest recipe that makes the plan fit, and its bytes of weights; NULL: none. */
static const char *find_recipe(const nib_plan *p, const load *l, uint64_t *bytes)
{
    static const struct {
        const char *recipe, *scheme;
        bool tables; /* embedding and output, too */
    } recipes[] = {{"int8wo", "int8wo", false},
                   {"8da4w", "8da4w", false},
                   {"8da4w+head+embed", "8da4w", true}};
    for (size_t i = 0; i < COUNT(recipes); i++) {
        nib_scheme scheme;
        if (nib__scheme_parse(&scheme, recipes[i].scheme, strlen(recipes[i].scheme), NULL) !=
            NIB_OK)
            continue;
        *bytes = bytes_with(p, &scheme, recipes[i].tables);
        if (*bytes < l->weights && *bytes <= l->room)
            return recipes[i].recipe;
    }
    return NULL;
}

/* The load with a KV cache of this type, which the CPU supports; false: the cache is as small
 * already, or attention runs on a device. */
static bool with_cache(const nib_plan *p, const load *l, nib_type type, load *out)
{
    const nib_kv_shape shape = nib__plan_kv_shape(p, nib__kv_both(type));
    nib_kv_size size;
    nib_err ignored;
    if (p->assignment.gpu != NULL || l->machine->memory == 0 ||
        nib__kv_measure(&size, &shape, &ignored) != NIB_OK || size.bytes >= p->cache.bytes)
        return false;
    *out = *l;
    out->others = l->others - p->cache.bytes + size.bytes;
    out->room = l->machine->memory > out->others ? l->machine->memory - out->others : 0;
    return true;
}

/* Whether a cache of this type makes the plan fit, alone or with a recipe; says so. */
static bool say_cache(const nib_plan *p, const load *l, nib_type type, bool with_recipe,
                      nib_text *out)
{
    uint64_t bytes = l->weights;
    char text[32];
    load small;
    if (!with_cache(p, l, type, &small))
        return false;
    const char *recipe = with_recipe ? find_recipe(p, &small, &bytes) : NULL;
    if (with_recipe ? recipe == NULL : small.weights > small.room)
        return false;
    nib__text_format(out, "; %s%s%s--cache-type %s needs %s and fits",
                     with_recipe ? "--recipe " : "", with_recipe ? recipe : "",
                     with_recipe ? " " : "", nib__kv_names[nib__kv_kind(type)],
                     nib__format_bytes(text, bytes + small.others));
    return true;
}

/* Names what makes the plan fit: an int8 cache, which costs least, a recipe, or both; then the same
 * with an int4 cache. */
static bool say_smaller(const nib_plan *p, const load *l, nib_text *out)
{
    uint64_t bytes;
    char text[32];
    if (say_cache(p, l, NIB_TYPE_I8, false, out))
        return true;
    const char *recipe = find_recipe(p, l, &bytes);
    if (recipe != NULL) {
        nib__text_format(out, "; --recipe %s needs %s and fits", recipe,
                         nib__format_bytes(text, bytes + l->others));
        return true;
    }
    return say_cache(p, l, NIB_TYPE_I8, true, out) || say_cache(p, l, NIB_TYPE_Q4_1, false, out) ||
           say_cache(p, l, NIB_TYPE_Q4_1, true, out);
}

/* The remedy: a smaller type, or else a shorter context if the cache is what is too large. */
static void say_remedy(const nib_plan *p, const load *l, nib_text *out)
{
    const bool is_step = p->policy.training;
    if (is_step)
        nib__text_format(out, "; lower training.local_batch_size or training.seq_len%s",
                         p->model->net.train.checkpointing == NIB_AC_FULL
                             ? ""
                             : ", or set activation_checkpoint.mode to full");
    else if (say_smaller(p, l, out))
        return;
    else if (l->weights + l->others - p->cache.bytes < l->machine->memory &&
             p->policy.limit_message == NULL)
        nib__text_format(out, "; a --context below %lld fits", (long long)p->context);
    else
        nib__text_str(out, "; no 4-bit recipe fits either");
}

/* What the host would run if the rung `device` were allowed, and the predicted speed with and
 * without it. */
static nib_status say_host(const nib_plan *p, const load *l, nib_text *out, nib_err *err)
{
    const nib_allocator *a = &p->model->engine->allocator;
    const nib_strings *given = &p->policy.allow;
    char then[32], whole[32];
    nib_assignment plan;
    nib_policy policy = p->policy;
    size_t moved = 0;
    if (l->machine->host == NULL || p->policy.strict || p->assignment.denied.status != NIB_OK)
        return NIB_OK;
    const char **allow = nib__calloc(a, given->count + 1, sizeof *allow);
    if (allow == NULL)
        return nib__fail_memory(err, (given->count + 1) * sizeof *allow, "options");
    for (size_t i = 0; i < given->count; i++)
        allow[i] = given->items[i];
    allow[given->count] = nib__rung_names[NIB_RUNG_DEVICE];
    policy.allow = (nib_strings){allow, given->count + 1};
    const nib_status status =
        nib__plan_layers(&plan, p->layers, p->assignment.count, &p->machine, &policy, a, err);
    nib__release(a, allow);
    if (status != NIB_OK)
        return status;
    for (size_t i = 0; i < plan.count; i++)
        moved += plan.layers[i].rung == NIB_RUNG_DEVICE;
    if (plan.denied.status == NIB_OK && plan.gpu_bytes <= l->room)
        nib__text_format(
            out,
            "; --allow device: %zu of %zu layers done by %s, %s per %s predicted, "
            "and %s if all were done by %s",
            moved, plan.count, l->machine->host->name,
            nib__format_seconds(then, plan.predicted_token_s), nib__policy_unit(&policy),
            nib__format_seconds(whole, p->assignment.predicted_token_s), l->machine->name);
    nib__assignment_free(&plan);
    return NIB_OK;
}

/* ---- too large ---- */

static void say_excess(const nib_plan *p, const load *l, nib_text *out)
{
    const nib_machine *m = l->machine;
    char needed[32], there[32], over[32], draft[32];
    if (p->policy.limit_message != NULL) {
        nib__text_format(out, "the weights, %s, are %s more than %s had left (%s)",
                         nib__format_bytes(needed, l->weights),
                         nib__format_bytes(over, l->weights - l->room), m->name,
                         p->policy.limit_message);
        return;
    }
    const uint64_t need = l->weights + l->others;
    nib__text_format(out, "weights, keys%s",
                     p->assignment.gpu != NULL ? ", values and buffers" : " and values");
    if (p->draft != NULL)
        nib__text_format(out, ", with %s of the draft model,",
                         nib__format_bytes(draft, nib__plan_needs(p->draft)));
    nib__text_format(out, " are %s, %s more than %s has (%s)", nib__format_bytes(needed, need),
                     nib__format_bytes(over, need > m->memory ? need - m->memory : 0), m->name,
                     nib__format_bytes(there, m->memory));
}

static nib_status say_too_large(nib_plan *p, const load *l, nib_err *err)
{
    const nib_machine *m = l->machine;
    const bool pages = m->here && m->host == NULL && p->request.memory == 0;
    nib_text words;
    nib__text_init(&words, &p->model->engine->allocator);
    say_excess(p, l, &words);
    say_remedy(p, l, &words);
    const nib_status status = say_host(p, l, &words, err);
    if (status == NIB_OK && !words.failed) {
        nib__ledger_add_note(&p->assignment.ledger, "too-large", "%s", words.at);
        if (p->assignment.denied.status == NIB_OK && !pages)
            nib__fail(&p->assignment.denied, NIB_NO_MEMORY, "%s", words.at);
    }
    const bool failed = words.failed;
    nib__text_free(&words);
    NIB_TRY(status);
    return failed ? nib__fail_memory(err, 1024, "the text of a plan") : NIB_OK;
}

/* Says how many positions the layers with a window keep. */
static void say_windows(const nib_plan *p, char *out, size_t size)
{
    const nib_config *c = &p->model->net.config;
    const int64_t layers = c->layers - c->shared_layers;
    char kept[32];
    nib__format_count(kept, (uint64_t)p->cache.window_positions);
    if (p->cache.window_layers == layers)
        snprintf(out, size, "; each layer keeps only %s positions, for its window", kept);
    else
        snprintf(out, size, "; %lld of %lld layers keep only %s positions, for their window",
                 (long long)p->cache.window_layers, (long long)layers, kept);
}

static uint64_t state_bytes(const nib_plan *p)
{
    return p->cache.state_bytes * (uint64_t)(p->sequences + p->cache.snapshots);
}

/* Says what layers keep that have no keys. */
static void say_states(const nib_plan *p, char *out, size_t size)
{
    char one[32], all[32];
    const int used =
        snprintf(out, size, "; %lld layers keep %s a sequence instead",
                 (long long)p->cache.state_layers, nib__format_bytes(one, p->cache.state_bytes));
    if (p->cache.snapshots > 0)
        snprintf(out + used, size - (size_t)used, ", and %lld snapshots of as much, %s in all",
                 (long long)p->cache.snapshots, nib__format_bytes(all, state_bytes(p)));
}

/* Says what the type of the cache costs, if it is not that of the activations. */
static nib_status say_cost(nib_plan *p, char *out, size_t size, nib_err *err)
{
    const nib_kv_types types = p->assignment.cache;
    if (nib__kv_alike(types) && types.keys.type == p->policy.dtype && !types.keys.hadamard)
        return NIB_OK;
    NIB_TRY(nib__cache_costs_find(&p->cache_costs, p, err));
    const nib_cache_cost *cost = nib__cache_costs_of(&p->cache_costs, p->cache_name);
    char tokens[32];
    if (types.keys.hadamard || types.values.hadamard) {
        const nib_config *c = &p->model->net.config;
        const int64_t dim = nib__kv_shape(c, 1, 1, types).head_dim;
        const int used = nib__format(out, size, ", rotated by %lld channels at a time",
                                     (long long)nib__hadamard_block(dim, c->latent.rank));
        out += used, size -= (size_t)used;
    }
    if (cost != NULL)
        nib__format(out, size, " (KL %.2g from %s, measured %s on %s tokens of %s)", cost->kl,
                    nib__type_name(p->policy.dtype), p->cache_costs.measured_on,
                    nib__format_count(tokens, (uint64_t)p->cache_costs.predicted),
                    p->cache_costs.text);
    else
        nib__format(out, size, " (KL not measured; `nibble advise --cache` does)");
    return NIB_OK;
}

nib_status nib__plan_memory(nib_plan *p, nib_err *err)
{
    char weights[32], cache[32], context[32], token[32];
    p->file_bytes = p->lent_bytes > 0 ? 0 : file_bytes(p);
    p->weight_bytes = weight_bytes(p);
    p->policy.shared_bytes = shared_bytes(p);
    if (p->policy.training) {
        nib__ledger_add_note(&p->assignment.ledger, "memory", "weights %s",
                             nib__format_bytes(weights, p->weight_bytes));
        if (p->policy.limit_message == NULL)
            return NIB_OK;
    } else {
        const int64_t shared = p->model->net.config.shared_layers;
        char sequences[48] = "", windows[96] = "", sharing[64] = "", states[160] = "",
             cost[256] = "", file[64] = "";
        NIB_TRY(say_cost(p, cost, sizeof cost, err));
        if (p->file_bytes > 0)
            snprintf(file, sizeof file, " (%s of the embedding stay in the file)",
                     nib__format_bytes(token, p->file_bytes));
        if (p->sequences > 1)
            snprintf(sequences, sizeof sequences, "%lld sequences of ", (long long)p->sequences);
        if (p->cache.window_layers > 0)
            say_windows(p, windows, sizeof windows);
        if (p->cache.state_layers > 0)
            say_states(p, states, sizeof states);
        if (shared > 0)
            snprintf(sharing, sizeof sharing, "; %lld more layers share theirs", (long long)shared);
        nib__ledger_add_note(
            &p->assignment.ledger, "memory",
            "weights %s%s, keys and values of %s%s positions %s, in %s with %s a token%s%s%s%s",
            nib__format_bytes(weights, p->weight_bytes), file, sequences,
            nib__format_count(context, (uint64_t)p->context),
            nib__format_bytes(cache, p->cache.bytes - state_bytes(p)), p->cache_name,
            nib__format_bytes(token, nib__plan_token_bytes(p)), cost, windows, sharing, states);
    }
    const load l = load_of(p);
    return l.weights <= l.room ? NIB_OK : say_too_large(p, &l, err);
}
