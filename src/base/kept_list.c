/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads and replaces files of what was measured.
 */
#include "kept_list.h"

#include "file.h"

enum { EVENTS = 400000 };

bool nib__kept_list_read(const nib_kept_list *list, const char *path, nib_kept_read read, void *ctx,
                         const nib_allocator *a)
{
    const nib_json_limits limits = {.depth = list->depth, .events = EVENTS};
    char *text;
    size_t size;
    int64_t schema = 0;
    nib_json json;
    nib_arena arena;
    if (nib__path_kind(path) == NIB_PATH_NONE)
        return true;
    if (nib__file_read(&text, &size, path, list->limit, a, NULL) != NIB_OK)
        return false;
    nib__arena_init(&arena, a, list->limit);
    nib__json_init(&json, path, text, size, &limits);
    bool good = nib__json_expect(&json, NIB_JSON_OBJECT);
    while (good && nib__json_next(&json) == NIB_JSON_KEY) {
        if (nib__json_is(&json, "schema"))
            good = nib__json_read_int64(&json, list->schema, list->schema, &schema);
        else if (nib__json_is(&json, list->name))
            good = read(&json, &arena, ctx);
        else
            good = nib__json_skip(&json);
    }
    good = good && nib__json_next(&json) == NIB_JSON_END && schema == list->schema;
    nib__arena_free(&arena);
    nib__release(a, text);
    return good;
}

nib_status nib__kept_list_write(const nib_kept_list *list, const char *path, size_t count,
                                nib_kept_write write, const void *ctx, const nib_allocator *a,
                                nib_err *err)
{
    nib_text text;
    nib_jsonw w;
    nib__text_init(&text, a);
    nib__jsonw_init(&w, &text, list->indent);
    nib__jsonw_object(&w);
    nib__jsonw_pair_int(&w, "schema", list->schema);
    nib__jsonw_key(&w, list->name);
    nib__jsonw_array(&w);
    for (size_t i = 0; i < count; i++)
        write(&w, ctx, i);
    nib__jsonw_array_end(&w);
    nib__jsonw_object_end(&w);
    nib__text_str(&text, "\n");
    const nib_status status = text.failed ? nib__fail_memory(err, text.size, "what was measured")
                                          : nib__file_replace(path, text.at, text.size, a, err);
    nib__text_free(&text);
    return status;
}
