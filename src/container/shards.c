/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads the index of a sharded checkpoint: {"metadata": {"total_size": ...}, "weight_map": {tensor:
 * shard}}. A shard is a plain file name: anything that leads out of the directory is refused.
 */
#include "shards.h"

#include "json.h"

enum { ENTRY_MAX = 1 << 22, SHOWN = 160 };

typedef struct parser {
    nib_json json;
    nib_arena *arena;
    nib_shards *out;
    nib_name_index by_shard;
    size_t entry_max;
    bool has_map;
} parser;

static char *read_string(parser *p)
{
    size_t size = 0;
    char *string = nib__json_string(&p->json, p->arena, &size);
    if (string != NULL && strlen(string) != size) {
        nib__json_fail(&p->json, "a name contains a NUL character");
        return NULL;
    }
    return string;
}

/* The shard of this name, added if new; NULL: failed. */
static nib_shard *find_or_add_shard(parser *p, const char *name)
{
    nib_shards *out = p->out;
    char shown[SHOWN];
    if (name[0] == 0 || strpbrk(name, "/\\") != NULL || strcmp(name, ".") == 0 ||
        strcmp(name, "..") == 0) {
        nib__json_fail(&p->json,
                       "shard \"%s\" is not the name of a file in the index's own directory",
                       nib__escape_name(shown, sizeof shown, name, strlen(name)));
        return NULL;
    }
    const size_t known = nib__name_index_find(&p->by_shard, (const void *const *)out->shards, name);
    if (known != SIZE_MAX)
        return out->shards[known];
    if (out->shard_count == NIB_SHARD_MAX) {
        nib__json_fail(&p->json, "more than %d shards", NIB_SHARD_MAX);
        return NULL;
    }
    nib_shard *shard = nib__arena_take(p->arena, 1, sizeof *shard);
    if (shard == NULL) {
        nib__json_fail_memory(&p->json, sizeof *shard);
        return NULL;
    }
    shard->name = name;
    out->shards[out->shard_count] = shard;
    nib__name_index_add(&p->by_shard, (const void *const *)out->shards, out->shard_count);
    out->shard_count++;
    return shard;
}

static void read_map(parser *p)
{
    nib_json *json = &p->json;
    nib_shards *out = p->out;
    char shown[SHOWN];
    if (p->has_map)
        nib__json_fail(json, "weight_map appears twice");
    p->has_map = true;
    if (!nib__json_expect(json, NIB_JSON_OBJECT))
        return;
    while (nib__json_next(json) == NIB_JSON_KEY) {
        nib_shard_entry *entry = out->entries[out->count];
        entry->tensor = read_string(p);
        if (entry->tensor == NULL)
            return;
        if (nib__name_index_add(&out->by_tensor, (const void *const *)out->entries, out->count) !=
            NULL)
            nib__json_fail(
                json, "tensor \"%s\" appears twice",
                nib__escape_name(shown, sizeof shown, entry->tensor, strlen(entry->tensor)));
        const char *name = nib__json_expect(json, NIB_JSON_STRING) ? read_string(p) : NULL;
        nib_shard *shard = name == NULL ? NULL : find_or_add_shard(p, name);
        if (shard == NULL)
            return;
        entry->shard = shard;
        shard->tensors++;
        out->count++;
    }
}

static void read_metadata(parser *p)
{
    nib_json *json = &p->json;
    if (nib__json_next(json) != NIB_JSON_OBJECT) {
        nib__json_skip(json);
        return;
    }
    while (nib__json_next(json) == NIB_JSON_KEY) {
        const bool is_total = nib__json_is(json, "total_size");
        if (nib__json_next(json) == NIB_JSON_NUMBER && is_total)
            p->out->has_total = nib__json_double(json, &p->out->total_size);
        else
            nib__json_skip(json);
    }
}

/* First pass: counts the entries of every weight_map, so that one allocation is enough. */
static nib_status count_entries(nib_json json, size_t *count, nib_err *err)
{
    *count = 0;
    nib__json_expect(&json, NIB_JSON_OBJECT);
    while (nib__json_next(&json) == NIB_JSON_KEY) {
        if (!nib__json_is(&json, "weight_map")) {
            nib__json_skip(&json);
        } else if (nib__json_expect(&json, NIB_JSON_OBJECT)) {
            while (nib__json_next(&json) == NIB_JSON_KEY && nib__json_skip(&json))
                ++*count;
        }
        if (*count > ENTRY_MAX)
            nib__json_fail(&json, "more than %d tensors", ENTRY_MAX);
    }
    if (json.event == NIB_JSON_OBJECT_END)
        nib__json_next(&json);
    return nib__json_status(&json, err);
}

static void sort_shards(nib_shards *out)
{
    for (size_t i = 1; i < out->shard_count; i++) {
        nib_shard *moving = out->shards[i];
        size_t at = i;
        for (; at > 0 && strcmp(out->shards[at - 1]->name, moving->name) > 0; at--)
            out->shards[at] = out->shards[at - 1];
        out->shards[at] = moving;
    }
}

static bool allocate_entries(parser *p, size_t count)
{
    nib_shard_entry *entries = nib__arena_take(p->arena, count, sizeof *entries);
    p->out->entries = nib__arena_take(p->arena, count, sizeof *p->out->entries);
    p->out->shards = nib__arena_take(p->arena, NIB_SHARD_MAX, sizeof *p->out->shards);
    if (entries == NULL || p->out->entries == NULL || p->out->shards == NULL)
        return false;
    for (size_t i = 0; i < count; i++)
        p->out->entries[i] = &entries[i];
    return nib__name_index_init(&p->out->by_tensor, p->arena, count) &&
           nib__name_index_init(&p->by_shard, p->arena, NIB_SHARD_MAX);
}

nib_status nib__shards_parse(nib_shards *out, const char *text, size_t size, const char *name,
                             nib_arena *arena, nib_err *err)
{
    static const nib_json_limits limits = {.depth = 16};
    nib_shards result = {0};
    parser p = {.arena = arena, .out = &result};
    size_t count;
    nib__json_init(&p.json, name, text, size, &limits);
    NIB_TRY(count_entries(p.json, &count, err));
    if (!allocate_entries(&p, count))
        return nib__fail_memory(err, count * sizeof(nib_shard_entry), name);
    nib__json_expect(&p.json, NIB_JSON_OBJECT);
    while (nib__json_next(&p.json) == NIB_JSON_KEY) {
        if (nib__json_is(&p.json, "weight_map"))
            read_map(&p);
        else if (nib__json_is(&p.json, "metadata"))
            read_metadata(&p);
        else
            nib__json_skip(&p.json);
    }
    NIB_TRY(nib__json_status(&p.json, err));
    if (result.count == 0)
        return nib__fail(err, NIB_BAD_INPUT, "%s: weight_map is missing or empty", name);
    sort_shards(&result);
    *out = result;
    return NIB_OK;
}
