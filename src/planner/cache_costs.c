/* SPDX-License-Identifier: Apache-2.0
 *
 * Measured costs of cache types, in a JSON file:
 *
 *   {"schema": 1, "models": [{"weights": hash, "bytes", "recipe", "dtype", "text", "measured",
 *     "predicted", "types": [{"name", "kl"}]}]}
 *
 * A model is found by its bytes first, because hashing its weights reads them.
 */
#include "plan_handle.h"

#include "file.h"
#include "kept_list.h"
#include "network_hash.h"

#include <math.h>
#include <stdio.h>
#include <time.h>

enum { SCHEMA = 1, ENTRIES_MAX = 64, FILE_LIMIT = 1 << 20 };

typedef struct entry {
    char weights[33], recipe[NIB_CACHE_COST_TEXT], dtype[8];
    int64_t bytes;
    nib_cache_costs costs;
} entry;

typedef struct kept {
    entry items[ENTRIES_MAX];
    size_t count;
    nib_json *json;
    nib_arena *arena;
} kept;

static bool read_text(kept *k, char *out, size_t size)
{
    const char *text = nib__json_read_string(k->json, k->arena, NULL);
    if (text != NULL)
        snprintf(out, size, "%s", text);
    return text != NULL;
}

/* ---- reading ---- */

static bool read_cost(void *ctx)
{
    kept *k = ctx;
    nib_cache_costs *costs = &k->items[k->count].costs;
    /* the array's count includes the object that is read; more than there is room for is refused
     * at its end */
    nib_cache_cost *cost = &costs->items[nib__min((int64_t)costs->count, NIB_CACHE_COSTS) - 1];
    if (nib__json_is(k->json, "name"))
        return read_text(k, cost->name, sizeof cost->name);
    if (nib__json_is(k->json, "kl"))
        return nib__json_read_double(k->json, &cost->kl);
    return nib__json_skip(k->json);
}

static bool read_member(void *ctx)
{
    kept *k = ctx;
    entry *e = &k->items[k->count];
    nib_json *json = k->json;
    if (nib__json_is(json, "weights"))
        return read_text(k, e->weights, sizeof e->weights);
    if (nib__json_is(json, "bytes"))
        return nib__json_read_int64(json, 0, INT64_MAX, &e->bytes);
    if (nib__json_is(json, "recipe"))
        return read_text(k, e->recipe, sizeof e->recipe);
    if (nib__json_is(json, "dtype"))
        return read_text(k, e->dtype, sizeof e->dtype);
    if (nib__json_is(json, "text"))
        return read_text(k, e->costs.text, sizeof e->costs.text);
    if (nib__json_is(json, "measured"))
        return read_text(k, e->costs.measured_on, sizeof e->costs.measured_on);
    if (nib__json_is(json, "predicted"))
        return nib__json_read_int64(json, 0, INT64_MAX, &e->costs.predicted);
    if (nib__json_is(json, "types"))
        return nib__json_read_objects(json, read_cost, k, &e->costs.count);
    return nib__json_skip(json);
}

static bool read_entries(nib_json *json, nib_arena *arena, void *ctx)
{
    kept *k = ctx;
    k->json = json, k->arena = arena;
    bool good = k->count == 0 && nib__json_expect(json, NIB_JSON_ARRAY);
    while (good && nib__json_next(k->json) == NIB_JSON_OBJECT && k->count < ENTRIES_MAX) {
        while (good && nib__json_next(k->json) == NIB_JSON_KEY)
            good = read_member(k);
        good = good && k->json->event == NIB_JSON_OBJECT_END &&
               k->items[k->count].costs.count <= NIB_CACHE_COSTS;
        k->count++;
    }
    return good && k->json->event == NIB_JSON_ARRAY_END;
}

static const nib_kept_list list = {
    .name = "models", .schema = SCHEMA, .limit = FILE_LIMIT, .depth = 8, .indent = 1};

/* A file that does not exist or cannot be parsed counts as empty. */
static void read_file(kept *k, const char *path, const nib_allocator *a)
{
    if (!nib__kept_list_read(&list, path, read_entries, k, a))
        k->count = 0;
}

/* ---- writing ---- */

static void write_entry(nib_jsonw *w, const void *ctx, size_t at)
{
    const entry *e = &((const kept *)ctx)->items[at];
    nib__jsonw_object(w);
    nib__jsonw_pair_string(w, "weights", e->weights);
    nib__jsonw_pair_int(w, "bytes", e->bytes);
    nib__jsonw_pair_string(w, "recipe", e->recipe);
    nib__jsonw_pair_string(w, "dtype", e->dtype);
    nib__jsonw_pair_string(w, "text", e->costs.text);
    nib__jsonw_pair_string(w, "measured", e->costs.measured_on);
    nib__jsonw_pair_int(w, "predicted", e->costs.predicted);
    nib__jsonw_key(w, "types");
    nib__jsonw_array(w);
    for (size_t i = 0; i < e->costs.count; i++) {
        nib__jsonw_object(w);
        nib__jsonw_pair_string(w, "name", e->costs.items[i].name);
        nib__jsonw_pair_double(w, "kl", e->costs.items[i].kl);
        nib__jsonw_object_end(w);
    }
    nib__jsonw_array_end(w);
    nib__jsonw_object_end(w);
}

/* ---- one model ---- */

static int64_t checkpoint_bytes(const nib_checkpoint *cp)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < nib__checkpoint_count(cp); i++)
        sum += nib__checkpoint_at(cp, i)->bytes;
    return (int64_t)(sum & INT64_MAX);
}

/* All but the hash of the weights. */
static entry entry_of(const nib_plan *p)
{
    entry e = {.bytes = checkpoint_bytes(p->model->net.checkpoint)};
    const char *recipe = nib__recipe_text(p->recipe);
    snprintf(e.recipe, sizeof e.recipe, "%s", recipe != NULL ? recipe : "");
    snprintf(e.dtype, sizeof e.dtype, "%s", nib__type_name(p->policy.dtype));
    return e;
}

static nib_status hash_weights(entry *e, const nib_plan *p, nib_err *err)
{
    nib_hash hash;
    NIB_TRY(nib__network_hash(&hash, &p->model->net, err));
    nib__hash_text(e->weights, hash);
    return NIB_OK;
}

/* Whether both may be of the same weights. */
static bool is_alike(const entry *a, const entry *b)
{
    return a->bytes == b->bytes && strcmp(a->recipe, b->recipe) == 0 &&
           strcmp(a->dtype, b->dtype) == 0;
}

static nib_status path_of(char **out, nib_arena *arena, const nib_plan *p, nib_err *err)
{
    static const char name[] = "cache_costs.json";
    const char *beside = p->model->engine->cache_path;
    const size_t folder = (size_t)(nib__path_name(beside) - beside);
    *out = nib__arena_take(arena, folder + sizeof name, 1);
    if (*out == NULL)
        return nib__fail_memory(err, folder + sizeof name, "a path");
    memcpy(*out, beside, folder);
    memcpy(*out + folder, name, sizeof name);
    return NIB_OK;
}

static nib_status find_entry(nib_cache_costs *out, const kept *k, const nib_plan *p, nib_err *err)
{
    entry own = entry_of(p);
    for (size_t i = 0; i < k->count; i++) {
        const entry *e = &k->items[i];
        if (!is_alike(e, &own))
            continue;
        if (own.weights[0] == '\0')
            NIB_TRY(hash_weights(&own, p, err));
        if (strcmp(e->weights, own.weights) == 0)
            *out = e->costs;
    }
    return NIB_OK;
}

/* Adds the types that were measured earlier on the same text, and not again. */
static void keep_earlier(nib_cache_costs *costs, const nib_cache_costs *earlier)
{
    if (strcmp(costs->text, earlier->text) != 0 || costs->predicted != earlier->predicted)
        return;
    for (size_t i = 0; i < earlier->count && costs->count < NIB_CACHE_COSTS; i++)
        if (nib__cache_costs_of(costs, earlier->items[i].name) == NULL)
            costs->items[costs->count++] = earlier->items[i];
}

static nib_status put_entry(kept *k, const nib_cache_costs *costs, const nib_plan *p,
                            const char *path, nib_err *err)
{
    entry own = entry_of(p);
    NIB_TRY(hash_weights(&own, p, err));
    own.costs = *costs;
    size_t at = 0;
    while (at < k->count &&
           !(is_alike(&k->items[at], &own) && strcmp(k->items[at].weights, own.weights) == 0))
        at++;
    if (at < k->count)
        keep_earlier(&own.costs, &k->items[at].costs);
    if (at == ENTRIES_MAX) { /* the oldest goes */
        memmove(k->items, k->items + 1, (ENTRIES_MAX - 1) * sizeof *k->items);
        at = --k->count;
    }
    k->count += at == k->count;
    k->items[at] = own;
    return nib__kept_list_write(&list, path, k->count, write_entry, k, &p->model->engine->allocator,
                                err);
}

/* Finds the plan's costs in the file (found), or puts them into it. */
static nib_status with_file(nib_cache_costs *found, const nib_cache_costs *costs, const nib_plan *p,
                            nib_err *err)
{
    const nib_allocator *a = &p->model->engine->allocator;
    char *path;
    nib_arena arena;
    if (p->model->engine->cache_path == NULL || p->model->net.checkpoint == NULL)
        return NIB_OK;
    kept *k = nib__calloc(a, 1, sizeof *k);
    if (k == NULL)
        return nib__fail_memory(err, sizeof *k, "what was measured");
    nib__arena_init(&arena, a, 0);
    nib_status status = path_of(&path, &arena, p, err);
    if (status == NIB_OK) {
        read_file(k, path, a);
        status = found != NULL ? find_entry(found, k, p, err) : put_entry(k, costs, p, path, err);
    }
    nib__arena_free(&arena);
    nib__release(a, k);
    return status;
}

nib_status nib__cache_costs_find(nib_cache_costs *out, const nib_plan *plan, nib_err *err)
{
    *out = (nib_cache_costs){.count = 0};
    return with_file(out, NULL, plan, err);
}

nib_status nib__cache_costs_keep(const nib_cache_costs *costs, const nib_plan *plan, nib_err *err)
{
    return with_file(NULL, costs, plan, err);
}

const nib_cache_cost *nib__cache_costs_of(const nib_cache_costs *costs, const char *name)
{
    for (size_t i = 0; i < costs->count; i++)
        if (strcmp(costs->items[i].name, name) == 0)
            return &costs->items[i];
    return NULL;
}
