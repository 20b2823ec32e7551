/* SPDX-License-Identifier: Apache-2.0
 *
 * Builds the nodes of a schema from what schema_read.c has read. Lists are allocated in the
 * reader's scratch arena, the data of nodes in the schema's.
 */
#include "schema_parts.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

enum { PATH_SHOWN = 320 }; /* bytes of a path in a message */

static nib_status no_memory(nib_schema_reader *r, size_t bytes)
{
    return nib__fail_memory(r->err, bytes, "the schema");
}

/* ---- paths and errors ---- */

/* The path; if it is long, without its middle. */
static const char *shown_path(const nib_schema_reader *r, char out[PATH_SHOWN])
{
    if (r->path.size < PATH_SHOWN)
        return r->path.at;
    size_t head = PATH_SHOWN / 2 - sizeof "...", from = r->path.size - PATH_SHOWN / 2;
    while (head > 0 && ((uint8_t)r->path.at[head] & 0xc0) == 0x80)
        head--;
    while (((uint8_t)r->path.at[from] & 0xc0) == 0x80)
        from++;
    memcpy(out, r->path.at, head);
    memcpy(out + head, "...", 3);
    memcpy(out + head + 3, r->path.at + from, r->path.size - from + 1);
    return out;
}

nib_status nib__schema_refuse(nib_schema_reader *r, nib_status status, const char *format, ...)
{
    char sentence[640], path[PATH_SHOWN];
    va_list args;
    va_start(args, format);
    nib__vformat(sentence, sizeof sentence, format, args);
    va_end(args);
    if (r->path.failed)
        return no_memory(r, r->path.size);
    return nib__fail(r->err, status, "%s: %s", shown_path(r, path), sentence);
}

size_t nib__schema_enter(nib_schema_reader *r, const char *before, const char *name, size_t size)
{
    char shown[64];
    const size_t was = r->path.size;
    nib__text_str(&r->path, before);
    nib__text_str(&r->path, nib__escape_name(shown, sizeof shown, name, size));
    return was;
}

void nib__schema_leave(nib_schema_reader *r, size_t before)
{
    if (r->path.failed)
        return;
    r->path.size = before;
    r->path.at[before] = 0;
}

nib_status nib__schema_expect(nib_schema_reader *r, nib_json_event event, const char *what)
{
    if (nib__json_next(&r->json) == event)
        return NIB_OK;
    return r->json.event == NIB_JSON_ERROR
               ? nib__json_status(&r->json, r->err)
               : nib__schema_refuse(r, NIB_BAD_INPUT, "expected %s", what);
}

/* ---- lists ---- */

nib_status nib__schema_append(nib_schema_reader *r, nib_schema_list *list, nib_schema_item **item)
{
    *item = nib__arena_take(&r->scratch, 1, sizeof **item);
    if (*item == NULL)
        return no_memory(r, sizeof **item);
    if (list->last == NULL)
        list->first = *item;
    else
        list->last->next = *item;
    list->last = *item;
    list->count++;
    return NIB_OK;
}

/* Appends a copy of a text that lives as long as the schema. */
static nib_status append_text(nib_schema_reader *r, nib_schema_list *list, const char *text,
                              size_t size, nib_schema_item **item)
{
    NIB_TRY(nib__schema_append(r, list, item));
    (*item)->text.at = nib__arena_copy(&r->s->arena, text, size);
    (*item)->text.size = (uint32_t)size;
    for (size_t i = 0; i < size; i++)
        r->s->literal_bytes[(uint8_t)text[i]] = true;
    return (*item)->text.at != NULL ? NIB_OK : no_memory(r, size);
}

/* Puts the KEY or STRING just read into r->spelled, with quotes, as our JSON writer writes it. */
static nib_status spell(nib_schema_reader *r)
{
    nib_jsonw w;
    size_t size;
    const char *text = nib__json_string(&r->json, &r->scratch, &size);
    if (text == NULL)
        return nib__json_status(&r->json, r->err);
    nib__text_clear(&r->spelled);
    nib__jsonw_init(&w, &r->spelled, 0);
    nib__jsonw_string_n(&w, text, size);
    return r->spelled.failed ? no_memory(r, size) : NIB_OK;
}

nib_status nib__schema_name(nib_schema_reader *r, nib_schema_list *list, nib_schema_item **item)
{
    NIB_TRY(spell(r));
    return append_text(r, list, r->spelled.at + 1, r->spelled.size - 2, item);
}

nib_status nib__schema_word(nib_schema_reader *r, const char *word, nib_schema_list *list)
{
    nib_schema_item *item;
    return append_text(r, list, word, strlen(word), &item);
}

/* ---- values of enums ---- */

static nib_status append_scalar(nib_schema_reader *r, nib_schema_list *list, unsigned *types)
{
    const nib_json *json = &r->json;
    nib_schema_item *item;
    switch (json->event) {
    case NIB_JSON_STRING:
        *types |= NIB_IS_STRING;
        NIB_TRY(spell(r));
        return append_text(r, list, r->spelled.at, r->spelled.size, &item);
    case NIB_JSON_NUMBER:
        *types |= NIB_IS_INTEGER;
        for (size_t i = 0; i < json->token_size; i++)
            if (json->token[i] == '.' || (json->token[i] | 0x20) == 'e')
                *types = (*types & ~(unsigned)NIB_IS_INTEGER) | NIB_IS_NUMBER;
        break;
    case NIB_JSON_NULL: *types |= NIB_IS_NULL; break;
    default: *types |= NIB_IS_BOOLEAN; break;
    }
    return append_text(r, list, json->token, json->token_size, &item);
}

static nib_status read_value_node(nib_schema_reader *r, uint16_t *out);

/* Reads the object whose `{` was just read: a node with its keys in order, all required. */
static nib_status read_object(nib_schema_reader *r, uint16_t *out)
{
    nib_json *json = &r->json;
    nib_schema_list properties = {0};
    nib_schema_node node = {.kind = NIB_SCHEMA_OBJECT, .other = NIB_SCHEMA_NONE};
    while (nib__json_next(json) == NIB_JSON_KEY) {
        nib_schema_item *item;
        NIB_TRY(nib__schema_name(r, &properties, &item));
        item->required = true;
        nib__json_next(json);
        NIB_TRY(read_value_node(r, &item->node));
    }
    if (json->event != NIB_JSON_OBJECT_END)
        return nib__json_status(json, r->err);
    NIB_TRY(nib__schema_properties(r, &properties, &node));
    return nib__schema_add(r->s, &node, out, r->err);
}

static nib_status read_array(nib_schema_reader *r, uint16_t *out)
{
    nib_json *json = &r->json;
    nib_schema_list items = {0};
    nib_schema_node node = {.kind = NIB_SCHEMA_ARRAY, .items = NIB_SCHEMA_NONE};
    while (nib__json_next(json) != NIB_JSON_ARRAY_END) {
        nib_schema_item *item;
        NIB_TRY(nib__schema_append(r, &items, &item));
        NIB_TRY(read_value_node(r, &item->node));
    }
    node.count = (uint16_t)items.count;
    node.min = node.max = node.count;
    NIB_TRY(nib__schema_members(r, &items, &node.members));
    return nib__schema_add(r->s, &node, out, r->err);
}

nib_status nib__schema_value(nib_schema_reader *r, nib_schema_list *scalars, nib_schema_list *nodes,
                             unsigned *types)
{
    nib_schema_item *item;
    const nib_json_event event = r->json.event;
    if (++r->values > NIB_SCHEMA_VALUES)
        return nib__schema_refuse(r, NIB_BAD_INPUT,
                                  "the enums of the schema have more than %d values",
                                  NIB_SCHEMA_VALUES);
    if (event == NIB_JSON_ERROR)
        return nib__json_status(&r->json, r->err);
    if (event != NIB_JSON_OBJECT && event != NIB_JSON_ARRAY) {
        unsigned type = 0;
        NIB_TRY(append_scalar(r, scalars, &type));
        *types |= type;
        return NIB_OK;
    }
    if (++r->depth > NIB_SCHEMA_DEPTH)
        return nib__schema_refuse(r, NIB_BAD_INPUT, "the value is nested deeper than %d",
                                  NIB_SCHEMA_DEPTH);
    *types |= event == NIB_JSON_OBJECT ? NIB_IS_OBJECT : NIB_IS_ARRAY;
    NIB_TRY(nib__schema_append(r, nodes, &item));
    NIB_TRY(event == NIB_JSON_OBJECT ? read_object(r, &item->node) : read_array(r, &item->node));
    r->depth--;
    return NIB_OK;
}

static nib_status read_value_node(nib_schema_reader *r, uint16_t *out)
{
    nib_schema_list scalars = {0}, nodes = {0};
    unsigned types = 0;
    NIB_TRY(nib__schema_value(r, &scalars, &nodes, &types));
    if (scalars.count != 0)
        NIB_TRY(nib__schema_literals(r, &scalars, &nodes));
    *out = nodes.first->node;
    return NIB_OK;
}

/* ---- nodes ---- */

nib_status nib__schema_add(nib_schema *s, const nib_schema_node *node, uint16_t *index,
                           nib_err *err)
{
    if (s->count == NIB_SCHEMA_NODES)
        return nib__fail(err, NIB_BAD_INPUT,
                         "%s: it is made of more than %d schemas, the limit; make it smaller",
                         s->name, NIB_SCHEMA_NODES);
    if (!nib__reserve(s->allocator, (void **)&s->nodes, &s->capacity, s->count + 1,
                      sizeof *s->nodes))
        return nib__fail_memory(err, 2 * s->count * sizeof *s->nodes, "the schema");
    *index = (uint16_t)s->count;
    s->nodes[s->count++] = *node;
    return NIB_OK;
}

nib_status nib__schema_add_placed(nib_schema_reader *r, nib_schema_node *node, uint16_t *out)
{
    char shown[PATH_SHOWN];
    if (!r->path.failed) {
        const char *path = shown_path(r, shown);
        node->path = nib__arena_copy(&r->s->arena, path, strlen(path));
    }
    return node->path != NULL ? nib__schema_add(r->s, node, out, r->err)
                              : no_memory(r, r->path.size);
}

nib_status nib__schema_members(nib_schema_reader *r, const nib_schema_list *list,
                               const uint16_t **out)
{
    uint16_t *members = nib__arena_take(&r->s->arena, list->count + 1, sizeof *members);
    size_t n = 0;
    if (members == NULL)
        return no_memory(r, list->count * sizeof *members);
    for (const nib_schema_item *item = list->first; item != NULL; item = item->next)
        members[n++] = item->node;
    *out = members;
    return NIB_OK;
}

nib_status nib__schema_any(nib_schema_reader *r, uint16_t *out)
{
    static const char *const words[] = {"false", "true", "null"};
    nib_schema_list members = {0}, literals = {0};
    *out = r->s->any;
    if (r->s->any != NIB_SCHEMA_NONE)
        return NIB_OK;
    nib_schema_node any = {.kind = NIB_SCHEMA_ANY_OF, .count = 5};
    NIB_TRY(nib__schema_add_placed(r, &any, &r->s->any));
    *out = r->s->any;
    const nib_schema_node kinds[] = {
        {.kind = NIB_SCHEMA_OBJECT, .other = *out},
        {.kind = NIB_SCHEMA_ARRAY, .items = *out, .max = UINT32_MAX},
        {.kind = NIB_SCHEMA_STRING, .max = UINT32_MAX},
        {.kind = NIB_SCHEMA_NUMBER},
    };
    for (size_t i = 0; i < COUNT(kinds); i++) {
        nib_schema_item *item;
        NIB_TRY(nib__schema_append(r, &members, &item));
        NIB_TRY(nib__schema_add(r->s, &kinds[i], &item->node, r->err));
    }
    for (size_t i = 0; i < COUNT(words); i++)
        NIB_TRY(nib__schema_word(r, words[i], &literals));
    NIB_TRY(nib__schema_literals(r, &literals, &members));
    return nib__schema_members(r, &members, &r->s->nodes[*out].members);
}

nib_status nib__schema_reference(nib_schema_reader *r, const char *target, size_t size,
                                 uint16_t *out)
{
    static const char *const places[] = {"#", "#/$defs/", "#/definitions/"};
    nib_schema_node node = {.kind = NIB_SCHEMA_REF};
    nib_schema_text *text = nib__arena_take(&r->s->arena, 1, sizeof *text);
    char *name = nib__arena_copy(&r->s->arena, target, size), shown[NIB_SHOWN];
    if (text == NULL || name == NULL)
        return no_memory(r, size);
    bool known = size == 1 && target[0] == '#';
    for (size_t i = 1; i < COUNT(places); i++) {
        const size_t length = strlen(places[i]);
        known |= size > length && memcmp(target, places[i], length) == 0 &&
                 memchr(target + length, '/', size - length) == NULL &&
                 memchr(target + length, '%', size - length) == NULL;
    }
    const size_t before = nib__schema_enter(r, ".", "$ref", 4);
    if (!known)
        return nib__schema_refuse(r, NIB_UNSUPPORTED,
                                  "\"%s\" is not supported, and nothing is fetched; a reference "
                                  "must be \"#\", \"#/$defs/NAME\" or \"#/definitions/NAME\"",
                                  nib__escape_name(shown, sizeof shown, target, size));
    /* ~1 and ~0 stand for / and ~. */
    size_t to = 0;
    for (size_t i = 0; i < size; i++) {
        const bool escape = name[i] == '~' && i + 1 < size && (name[i + 1] | 1) == '1';
        name[to++] = !escape ? name[i] : name[i + 1] == '1' ? '/' : '~';
        i += escape;
    }
    *text = (nib_schema_text){.at = name, .size = (uint32_t)to};
    node.texts = text;
    const nib_status status = nib__schema_add_placed(r, &node, out);
    nib__schema_leave(r, before);
    return status;
}

int nib__schema_by_text(const void *left, const void *right)
{
    const nib_schema_text *a = left, *b = right;
    const int order = memcmp(a->at, b->at, a->size < b->size ? a->size : b->size);
    return order != 0 ? order : (a->size > b->size) - (a->size < b->size);
}

nib_status nib__schema_literals(nib_schema_reader *r, const nib_schema_list *values,
                                nib_schema_list *out)
{
    nib_schema_node node = {.kind = NIB_SCHEMA_LITERALS};
    nib_schema_text *texts = nib__arena_take(&r->s->arena, values->count, sizeof *texts);
    nib_schema_item *made;
    size_t n = 0, kept = 0;
    if (texts == NULL)
        return no_memory(r, values->count * sizeof *texts);
    for (const nib_schema_item *item = values->first; item != NULL; item = item->next)
        texts[n++] = item->text;
    qsort(texts, n, sizeof *texts, nib__schema_by_text);
    for (size_t i = 0; i < n; i++)
        if (i == 0 || nib__schema_by_text(&texts[kept - 1], &texts[i]) != 0)
            texts[kept++] = texts[i];
    node.texts = texts;
    node.count = (uint16_t)kept;
    NIB_TRY(nib__schema_append(r, out, &made));
    return nib__schema_add(r->s, &node, &made->node, r->err);
}

/* ---- properties ---- */

nib_status nib__schema_require(nib_schema_reader *r, nib_schema_list *properties,
                               const nib_schema_list *names, uint16_t other)
{
    const size_t count = properties->count;
    nib_schema_item **items = nib__arena_take(&r->scratch, count + 1, sizeof *items);
    nib_schema_text *texts = nib__arena_take(&r->scratch, count + 1, sizeof *texts);
    if (items == NULL || texts == NULL)
        return no_memory(r, (count + 1) * sizeof *texts);
    size_t n = 0;
    for (nib_schema_item *item = properties->first; item != NULL; item = item->next) {
        items[n] = item;
        texts[n] = item->text;
        texts[n].index = (uint32_t)n;
        n++;
    }
    qsort(texts, count, sizeof *texts, nib__schema_by_text);
    for (const nib_schema_item *name = names->first; name != NULL; name = name->next) {
        char shown[NIB_SHOWN];
        const nib_schema_text *found =
            bsearch(&name->text, texts, count, sizeof *texts, nib__schema_by_text);
        if (found != NULL) {
            items[found->index]->required = true;
            continue;
        }
        if (other == NIB_SCHEMA_NONE)
            return nib__schema_refuse(
                r, NIB_BAD_INPUT, "\"%s\" is required, but additionalProperties false forbids it",
                nib__escape_name(shown, sizeof shown, name->text.at, name->text.size));
        nib_schema_item *item;
        NIB_TRY(nib__schema_append(r, properties, &item));
        item->text = name->text;
        item->node = other;
        item->required = true;
    }
    return NIB_OK;
}

nib_status nib__schema_properties(nib_schema_reader *r, const nib_schema_list *list,
                                  nib_schema_node *object)
{
    const size_t count = list->count;
    nib_schema_property *properties = nib__arena_take(&r->s->arena, count + 1, sizeof *properties);
    nib_schema_text *texts = nib__arena_take(&r->s->arena, count + 1, sizeof *texts);
    size_t n = 0;
    if (properties == NULL || texts == NULL)
        return no_memory(r, (count + 1) * sizeof *texts);
    if (count > NIB_SCHEMA_NODES)
        return nib__schema_refuse(r, NIB_BAD_INPUT,
                                  "there are %zu properties, over the limit of %d", count,
                                  NIB_SCHEMA_NODES);
    for (const nib_schema_item *item = list->first; item != NULL; item = item->next) {
        properties[n] = (nib_schema_property){.node = item->node, .required = item->required};
        texts[n] = item->text;
        texts[n].index = (uint32_t)n;
        n++;
    }
    uint16_t next = (uint16_t)count;
    for (size_t i = count; i-- > 0;) {
        if (properties[i].required)
            next = (uint16_t)i;
        properties[i].next_required = next;
    }
    qsort(texts, count, sizeof *texts, nib__schema_by_text);
    for (size_t i = 1; i < count; i++) {
        char shown[NIB_SHOWN];
        if (nib__schema_by_text(&texts[i - 1], &texts[i]) == 0)
            return nib__schema_refuse(
                r, NIB_BAD_INPUT, "\"%s\" is given twice",
                nib__escape_name(shown, sizeof shown, texts[i].at, texts[i].size));
    }
    object->properties = properties;
    object->texts = texts;
    object->count = (uint16_t)count;
    return NIB_OK;
}

/* ---- bounds ---- */

nib_status nib__schema_bound(nib_schema_reader *r, const char *keyword, const nib_schema_text *text,
                             bool integer, int64_t *out)
{
    const int most = integer ? NIB_INTEGER_DIGITS : NIB_BOUNDED_DIGITS;
    const int fraction = integer ? 0 : NIB_BOUNDED_DIGITS;
    const bool negative = text->at[0] == '-';
    int64_t value = 0;
    int before = 0, after = -1;
    bool fits = true;
    for (uint32_t i = negative; i < text->size && fits; i++) {
        const char c = text->at[i]; /* above '9': an exponent */
        if (c == '.') {
            after = 0;
        } else if (c > '9' || (after < 0 && before == most) || (after == fraction && c != '0')) {
            fits = false;
        } else if (after < fraction) {
            value = value * 10 + (c - '0');
            *(after < 0 ? &before : &after) += 1;
        }
    }
    char shown[NIB_SHOWN];
    nib__escape_name(shown, sizeof shown, text->at, text->size);
    if (!fits && integer)
        return nib__schema_refuse(r, NIB_UNSUPPORTED,
                                  "%s %s is not a whole number of at most %d digits", keyword,
                                  shown, most);
    if (!fits)
        return nib__schema_refuse(r, NIB_UNSUPPORTED,
                                  "%s %s has more than %d digits before or after the point, or an "
                                  "exponent",
                                  keyword, shown, most);
    for (int i = after < 0 ? 0 : after; i < fraction; i++)
        value *= 10;
    *out = negative ? -value : value;
    return NIB_OK;
}

/* ---- finishing ---- */

static int by_name(const void *left, const void *right)
{
    const nib_schema_definition *a = left, *b = right;
    return nib__schema_by_text(&a->name, &b->name);
}

nib_status nib__schema_finish(nib_schema_reader *r)
{
    static const char *const places[] = {"#/$defs/", "#/definitions/"};
    const size_t count = r->definitions[0].count + r->definitions[1].count;
    nib_schema_definition *all = nib__arena_take(&r->scratch, count + 1, sizeof *all);
    size_t n = 0;
    if (all == NULL)
        return no_memory(r, (count + 1) * sizeof *all);
    for (int i = 0; i < 2; i++) {
        for (const nib_schema_item *item = r->definitions[i].first; item != NULL;
             item = item->next) {
            nib__text_clear(&r->spelled);
            nib__text_str(&r->spelled, places[i]);
            nib__text_put(&r->spelled, item->text.at, item->text.size);
            const char *name = r->spelled.failed
                                   ? NULL
                                   : nib__arena_copy(&r->scratch, r->spelled.at, r->spelled.size);
            if (name == NULL)
                return no_memory(r, item->text.size);
            all[n++] = (nib_schema_definition){{name, (uint32_t)r->spelled.size, 0}, item->node};
        }
    }
    qsort(all, count, sizeof *all, by_name);
    for (size_t i = 1; i < count; i++) {
        char shown[NIB_SHOWN];
        if (by_name(&all[i - 1], &all[i]) == 0)
            return nib__schema_refuse(r, NIB_BAD_INPUT, "\"%s\" is defined twice",
                                      nib__escape_string(shown, all[i].name.at));
    }
    return nib__schema_check(r->s, all, count, r->err);
}
