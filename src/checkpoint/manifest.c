/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads the manifest that quantize writes. Skips its ledger, which is for people.
 */
#include "manifest.h"

enum { HASH_MAX = 1 << 22 };

typedef struct hashes {
    nib_manifest_hash *items;
    size_t count;
} hashes;

/* {"name": "32 hex digits", ...} */
static bool read_hashes(nib_json *json, hashes *out, nib_arena *arena, const nib_allocator *a)
{
    void *items = NULL;
    size_t capacity = 0, count = 0;
    bool ok = nib__json_expect(json, NIB_JSON_OBJECT);
    while (ok && nib__json_next(json) == NIB_JSON_KEY) {
        nib_manifest_hash item = {.name = nib__json_string(json, arena, NULL)};
        ok = item.name != NULL && nib__json_expect(json, NIB_JSON_STRING);
        if (ok && !nib__hash_parse(&item.hash, json->token, json->token_size))
            nib__json_fail(json, "a hash must have 32 hexadecimal digits");
        if (ok &&
            (count == HASH_MAX || !nib__reserve(a, &items, &capacity, count + 1, sizeof item)))
            nib__json_fail_memory(json, sizeof item);
        ok = ok && json->event != NIB_JSON_ERROR;
        if (ok)
            ((nib_manifest_hash *)items)[count++] = item;
    }
    out->items = nib__arena_take(arena, count, sizeof *out->items);
    if (out->items == NULL)
        nib__json_fail_memory(json, count * sizeof *out->items);
    else if (count != 0)
        memcpy(out->items, items, count * sizeof *out->items);
    out->count = count;
    nib__release(a, items);
    return json->event != NIB_JSON_ERROR;
}

static bool read_member(nib_json *json, nib_manifest *out, nib_arena *arena, const nib_allocator *a)
{
    const struct {
        const char *key;
        const char **to;
    } texts[] = {{"recipe", &out->recipe}, {"format", &out->format}, {"tool", &out->tool}};
    hashes h = {NULL, 0};
    for (size_t i = 0; i < COUNT(texts); i++)
        if (nib__json_is(json, texts[i].key)) {
            *texts[i].to = nib__json_read_string(json, arena, NULL);
            return *texts[i].to != NULL;
        }
    if (nib__json_is(json, "schema")) {
        int64_t schema;
        return nib__json_read_int64(json, 1, 1, &schema);
    }
    const bool tensors = nib__json_is(json, "tensors");
    if (!tensors && !nib__json_is(json, "files"))
        return nib__json_skip(json);
    if (!read_hashes(json, &h, arena, a))
        return false;
    if (tensors) {
        out->tensors = h.items;
        out->tensor_count = h.count;
    } else {
        out->files = h.items;
        out->file_count = h.count;
    }
    return true;
}

nib_status nib__manifest_find(const char **out, const nib_checkpoint *cp, nib_arena *arena,
                              nib_err *err)
{
    const char *path = nib__checkpoint_path(cp);
    const size_t size = strlen(path);
    nib_path_kind kind;
    *out = NULL;
    NIB_TRY(nib__path_look(&kind, path, err));
    if (kind == NIB_PATH_FILE && (size < 5 || strcmp(path + size - 5, ".json") != 0)) {
        char *beside = nib__arena_take(arena, size + sizeof ".nibble.json", 1);
        if (beside == NULL)
            return nib__fail_memory(err, size, "a path");
        memcpy(beside, path, size);
        memcpy(beside + size, ".nibble.json", sizeof ".nibble.json");
        path = beside;
    } else if (nib__checkpoint_directory(cp) == NULL) {
        return NIB_OK; /* a GGUF file whose name ends in .json: it has no directory */
    } else {
        path = nib__path_join(arena, nib__checkpoint_directory(cp), "nibble.json");
        if (path == NULL)
            return nib__fail_memory(err, size, "a path");
    }
    if (nib__path_kind(path) == NIB_PATH_FILE)
        *out = path;
    return NIB_OK;
}

nib_status nib__manifest_read(nib_manifest *out, const nib_checkpoint *cp, nib_arena *arena,
                              const nib_allocator *a, nib_err *err)
{
    const char *path;
    char *text;
    size_t length;
    *out = (nib_manifest){.path = NULL};
    NIB_TRY(nib__manifest_find(&path, cp, arena, err));
    if (path == NULL)
        return NIB_OK;
    NIB_TRY(nib__file_read(&text, &length, path, NIB_MANIFEST_MAX, a, err));
    nib_json json;
    nib__json_init(&json, path, text, length, NULL);
    bool ok = nib__json_expect(&json, NIB_JSON_OBJECT);
    while (ok && nib__json_next(&json) == NIB_JSON_KEY)
        ok = read_member(&json, out, arena, a);
    if (json.event == NIB_JSON_OBJECT_END)
        nib__json_next(&json);
    const nib_status status = nib__json_status(&json, err);
    nib__release(a, text);
    if (status == NIB_OK)
        out->path = path;
    return status;
}
