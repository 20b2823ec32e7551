/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads the post-processors of tokenizer.json into two lists: the ids before the text and the ids
 * after it. Texts are never encoded in pairs, so the settings for pairs are ignored.
 */
#include "tokenizer_parts.h"

enum { MOST_ITEMS = 64 }; /* of one template */

typedef struct ids {
    int32_t at[MOST_ITEMS];
    size_t count;
} ids;

/* ---- the lists ---- */

static bool insert(nib_arena *arena, int32_t **list, size_t *count, const int32_t *more,
                   size_t more_count, bool in_front)
{
    int32_t *grown = nib__arena_take(arena, *count + more_count, sizeof *grown);
    if (grown == NULL)
        return false;
    if (more_count != 0)
        memcpy(grown + (in_front ? 0 : *count), more, more_count * sizeof *grown);
    if (*count != 0)
        memcpy(grown + (in_front ? more_count : 0), *list, *count * sizeof *grown);
    *list = grown;
    *count += more_count;
    return true;
}

nib_status nib__processor_wrap(nib_loader *loader, const int32_t *before, size_t before_count,
                               const int32_t *after, size_t after_count)
{
    nib_tokenizer *t = loader->t;
    if (t->before_count + before_count > MOST_ITEMS || t->after_count + after_count > MOST_ITEMS)
        return nib__loader_unsupported(loader, "the post-processors add more than %d tokens",
                                       MOST_ITEMS);
    if (!insert(&t->arena, &t->before, &t->before_count, before, before_count, true) ||
        !insert(&t->arena, &t->after, &t->after_count, after, after_count, false))
        return nib__fail_memory(loader->err, MOST_ITEMS * sizeof *before, "the post-processor");
    return NIB_OK;
}

static bool add_id(nib_json *json, ids *list, int64_t id)
{
    if (list->count == MOST_ITEMS) {
        nib__json_fail(json, "a post-processor adds more than %d tokens", MOST_ITEMS);
        return false;
    }
    list->at[list->count++] = (int32_t)id;
    return true;
}

/* ---- TemplateProcessing ---- */

/* [1, 2, ...] */
static bool read_ids(nib_json *json, ids *out)
{
    if (!nib__json_expect(json, NIB_JSON_ARRAY))
        return false;
    while (nib__json_next(json) == NIB_JSON_NUMBER) {
        int64_t id;
        if (!nib__json_int64(json, &id))
            return false;
        if (id < 0 || id >= NIB_TOKENIZER_IDS) {
            nib__json_fail(json, "%lld is not a token id", (long long)id);
            return false;
        }
        if (!add_id(json, out, id))
            return false;
    }
    if (json->event != NIB_JSON_ARRAY_END)
        nib__json_fail(json, "expected a token id");
    return json->event == NIB_JSON_ARRAY_END;
}

/* Appends the ids that special_tokens gives for a name. */
static nib_status resolve_special(nib_loader *loader, nib_json_slice specials, const char *name,
                                  ids *out)
{
    nib_json json;
    bool found = false;
    char shown[80];
    nib__loader_reader(loader, &json, specials);
    if (nib__json_next(&json) != NIB_JSON_OBJECT)
        nib__json_fail(&json, "special_tokens is an object");
    while (nib__json_next(&json) == NIB_JSON_KEY) {
        if (found || !nib__json_is(&json, name)) {
            if (!nib__json_skip(&json))
                break;
            continue;
        }
        if (!nib__json_expect(&json, NIB_JSON_OBJECT))
            break;
        while (nib__json_next(&json) == NIB_JSON_KEY) {
            const bool is_ids = nib__json_is(&json, "ids");
            found = found || is_ids;
            if (!(is_ids ? read_ids(&json, out) : nib__json_skip(&json)))
                break;
        }
    }
    NIB_TRY(nib__json_status(&json, loader->err));
    if (found)
        return NIB_OK;
    return nib__fail(loader->err, NIB_BAD_INPUT,
                     "%s: the post-processor adds \"%s\", which is not in its special_tokens",
                     loader->file.name, nib__escape_name(shown, sizeof shown, name, strlen(name)));
}

typedef struct item {
    bool is_text; /* stands for the encoded text */
    char *name;   /* of a special token */
} item;

/* {"SpecialToken": {"id": name, "type_id": 0}} or {"Sequence": {"id": "A", "type_id": 0}}, past its
 * brace. */
static bool read_item(nib_loader *loader, nib_json *json, item *out)
{
    *out = (item){0};
    if (!nib__json_expect(json, NIB_JSON_KEY))
        return false;
    out->is_text = nib__json_is(json, "Sequence");
    if (!out->is_text && !nib__json_is(json, "SpecialToken")) {
        nib__json_fail(json, "an item of a template is a Sequence or a SpecialToken");
        return false;
    }
    if (!nib__json_expect(json, NIB_JSON_OBJECT))
        return false;
    while (nib__json_next(json) == NIB_JSON_KEY) {
        if (!nib__json_is(json, "id")) {
            if (!nib__json_skip(json))
                return false;
            continue;
        }
        out->name = nib__json_read_string(json, &loader->scratch, NULL);
        if (out->name == NULL)
            return false;
    }
    if (json->event == NIB_JSON_OBJECT_END && out->name == NULL)
        nib__json_fail(json, "an item of a template has no id");
    return json->event == NIB_JSON_OBJECT_END && nib__json_expect(json, NIB_JSON_OBJECT_END);
}

static nib_status load_template(nib_loader *loader, nib_json_slice single, nib_json_slice specials)
{
    ids before = {.count = 0}, after = {.count = 0};
    nib_json json;
    int texts = 0;
    nib__loader_reader(loader, &json, single);
    if (nib__json_next(&json) != NIB_JSON_ARRAY)
        nib__json_fail(&json, "a template is a list");
    while (nib__json_next(&json) == NIB_JSON_OBJECT) {
        item entry;
        if (!read_item(loader, &json, &entry))
            break;
        texts += entry.is_text;
        if (!entry.is_text)
            NIB_TRY(resolve_special(loader, specials, entry.name, texts == 0 ? &before : &after));
    }
    if (json.event != NIB_JSON_ARRAY_END)
        nib__json_fail(&json, "expected an item of a template");
    else if (texts != 1)
        nib__json_fail(&json, "the template \"single\" has the text %d times instead of once",
                       texts);
    NIB_TRY(nib__json_status(&json, loader->err));
    return nib__processor_wrap(loader, before.at, before.count, after.at, after.count);
}

/* ---- post-processors ---- */

typedef struct processor {
    char *type;
    nib_json_slice single, specials, list, cls, sep;
} processor;

static bool read_processor_field(nib_loader *loader, nib_json *json, processor *p)
{
    static const char *const ignored[] = {"pair", "add_prefix_space", "trim_offsets", "use_regex"};
    if (nib__json_is(json, "type"))
        return (p->type = nib__json_read_string(json, &loader->scratch, NULL)) != NULL;
    if (nib__json_is(json, "single"))
        return nib__loader_slice(json, &p->single);
    if (nib__json_is(json, "special_tokens"))
        return nib__loader_slice(json, &p->specials);
    if (nib__json_is(json, "processors"))
        return nib__loader_slice(json, &p->list);
    if (nib__json_is(json, "cls"))
        return nib__loader_slice(json, &p->cls);
    if (nib__json_is(json, "sep"))
        return nib__loader_slice(json, &p->sep);
    for (size_t i = 0; i < COUNT(ignored); i++) /* pairs and offsets */
        if (nib__json_is(json, ignored[i]))
            return nib__json_skip(json);
    char key[80];
    nib__json_fail(json, "unknown key \"%s\" in a post-processor could change the ids",
                   nib__escape_name(key, sizeof key, json->token, json->token_size));
    return false;
}

/* ["[SEP]", 102] */
static nib_status read_named_id(nib_loader *loader, nib_json_slice slice, const char *key,
                                int32_t *id)
{
    nib_json json;
    int64_t value = 0;
    if (slice.at == NULL)
        return nib__fail(loader->err, NIB_BAD_INPUT, "%s: the post-processor has no \"%s\"",
                         loader->file.name, key);
    nib__loader_reader(loader, &json, slice);
    if (nib__json_expect(&json, NIB_JSON_ARRAY) &&
        nib__json_read_string(&json, &loader->scratch, NULL) != NULL)
        (void)nib__json_read_int64(&json, 0, NIB_TOKENIZER_IDS - 1, &value);
    *id = (int32_t)value;
    return nib__json_status(&json, loader->err);
}

static nib_status load_list(nib_loader *loader, nib_json_slice list, int nesting)
{
    nib_json json;
    if (nesting >= NIB_TOKENIZER_NESTING)
        return nib__loader_unsupported(loader, "post-processors are nested deeper than %d",
                                       NIB_TOKENIZER_NESTING);
    nib__loader_reader(loader, &json, list);
    if (nib__json_next(&json) != NIB_JSON_ARRAY)
        nib__json_fail(&json, "a Sequence of post-processors is a list");
    while (nib__json_next(&json) != NIB_JSON_ARRAY_END && json.event != NIB_JSON_ERROR) {
        const char *const from = json.from;
        if (!nib__json_skip(&json))
            break;
        NIB_TRY(nib__load_processor(loader, (nib_json_slice){from, (size_t)(json.at - from)},
                                    nesting + 1));
    }
    return nib__json_status(&json, loader->err);
}

nib_status nib__load_processor(nib_loader *loader, nib_json_slice slice, int nesting)
{
    nib_json json;
    processor p = {0};
    char name[80];
    nib__loader_reader(loader, &json, slice);
    if (nib__json_next(&json) == NIB_JSON_NULL)
        return NIB_OK;
    if (json.event != NIB_JSON_OBJECT)
        nib__json_fail(&json, "a post-processor is an object with a type");
    while (nib__json_next(&json) == NIB_JSON_KEY)
        if (!read_processor_field(loader, &json, &p))
            break;
    if (json.event == NIB_JSON_OBJECT_END && p.type == NULL)
        nib__json_fail(&json, "a post-processor has no type");
    NIB_TRY(nib__json_status(&json, loader->err));
    loader->t->has_processor = true;
    if (strcmp(p.type, "ByteLevel") == 0)
        return NIB_OK; /* offsets only */
    if (strcmp(p.type, "Sequence") == 0 && p.list.at != NULL)
        return load_list(loader, p.list, nesting);
    if (strcmp(p.type, "TemplateProcessing") == 0 && p.single.at != NULL && p.specials.at != NULL)
        return load_template(loader, p.single, p.specials);
    if (strcmp(p.type, "BertProcessing") == 0 || strcmp(p.type, "RobertaProcessing") == 0) {
        int32_t cls, sep;
        NIB_TRY(read_named_id(loader, p.cls, "cls", &cls));
        NIB_TRY(read_named_id(loader, p.sep, "sep", &sep));
        return nib__processor_wrap(loader, &cls, 1, &sep, 1);
    }
    return nib__loader_unsupported(
        loader,
        "the post-processor \"%s\" is not supported or lacks a field (supported: "
        "TemplateProcessing, ByteLevel, BertProcessing, RobertaProcessing, Sequence)",
        nib__escape_name(name, sizeof name, p.type, strlen(p.type)));
}
