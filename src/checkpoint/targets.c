/* SPDX-License-Identifier: Apache-2.0
 *
 * Names are looked up by hash, because there may be a hundred thousand of them for as many modules;
 * expressions are tried one by one.
 */
#include "targets.h"

#include <stdio.h>

enum {
    MOST_TARGETS = 1 << 18,    /* names in one list */
    MOST_EXPRESSIONS = 1 << 12 /* of one config */
};

/* Makes room for one more pointer in an array in the arena, which also keeps the smaller arrays: at
 * most as much again. */
static bool grow(void **array, size_t *capacity, size_t count, nib_arena *arena)
{
    if (count < *capacity)
        return true;
    const size_t want = *capacity == 0 ? 4 : 2 * *capacity;
    void *grown = want > MOST_TARGETS ? NULL : nib__arena_take(arena, want, sizeof(void *));
    if (grown == NULL)
        return false;
    if (count != 0)
        memcpy(grown, *array, count * sizeof(void *));
    *array = grown;
    *capacity = want;
    return true;
}

static nib_pattern *make_pattern(const nib_targets *out, nib_json *json, const char *text,
                                 nib_target_limits *limits, const nib_allocator *a)
{
    const bool glob = out->rules == NIB_TARGETS_MODELOPT;
    char whole[600];
    nib_pattern *pattern = NULL;
    nib_err err = {NIB_OK, ""};
    /* Python's re.match matches a prefix; our patterns match the whole name. */
    if (++limits->count > MOST_EXPRESSIONS ||
        snprintf(whole, sizeof whole, "%s%s%s", glob ? "" : "re:(?:", text + (glob ? 0 : 3),
                 glob ? "" : ").*") >= (int)sizeof whole) {
        nib__json_fail(json, "more than %d expressions, or one of over 500 bytes",
                       MOST_EXPRESSIONS);
        return NULL;
    }
    const nib_status status = nib__pattern_make(&pattern, whole, &limits->budget, a, &err);
    if (status == NIB_NO_MEMORY)
        nib__json_fail_memory(json, sizeof whole);
    else if (status != NIB_OK)
        nib__json_fail(json, "%s", err.text);
    return pattern;
}

bool nib__target_names_add(nib_target_names *names, const char *name, nib_arena *arena)
{
    if (!grow(&names->texts, &names->capacity, names->count, arena))
        return false;
    ((const char **)names->texts)[names->count++] = name;
    return true;
}

void nib__targets_of_names(nib_targets *out, const nib_target_names *names, nib_json *json,
                           nib_arena *arena)
{
    const char **texts = names->texts;
    out->name_count = names->count;
    out->names = nib__arena_take(arena, out->name_count, sizeof *out->names);
    if (out->names == NULL || !nib__name_index_init(&out->by_name, arena, out->name_count)) {
        nib__json_fail_memory(json, out->name_count * sizeof *out->names);
        out->name_count = 0;
        return;
    }
    for (size_t i = 0; i < out->name_count; i++) {
        out->names[i] = &texts[i];
        (void)nib__name_index_add(&out->by_name, out->names, i); /* duplicates are harmless */
    }
}

static bool is_name(const nib_targets *targets, const char *text)
{
    return targets->rules == NIB_TARGETS_MODELOPT ? strpbrk(text, "*?") == NULL
                                                  : strncmp(text, "re:", 3) != 0;
}

void nib__targets_read(nib_targets *out, nib_json *json, const char *key, nib_target_limits *limits,
                       nib_arena *arena, const nib_allocator *a)
{
    size_t capacity = 0;
    nib_target_names names = {0};
    void *patterns = NULL;
    if (json->event == NIB_JSON_NULL)
        return;
    if (json->event != NIB_JSON_ARRAY || out->names != NULL) {
        nib__json_fail(json, "\"%s\" must be one list of names", key);
        return;
    }
    while (nib__json_next(json) == NIB_JSON_STRING) {
        char *text = nib__json_string(json, arena, NULL);
        if (text == NULL)
            return;
        if (!(is_name(out, text) ? nib__target_names_add(&names, text, arena)
                                 : grow(&patterns, &capacity, out->pattern_count, arena))) {
            nib__json_fail_memory(json, 2 * sizeof(void *) * (names.count + out->pattern_count));
            return;
        }
        if (is_name(out, text))
            continue;
        out->patterns = patterns;
        out->patterns[out->pattern_count] = make_pattern(out, json, text, limits, a);
        if (out->patterns[out->pattern_count] == NULL)
            return;
        out->pattern_count++;
    }
    if (json->event != NIB_JSON_ARRAY_END) {
        nib__json_fail(json, "\"%s\" holds an item that is not a name", key);
        return;
    }
    nib__targets_of_names(out, &names, json, arena);
}

void nib__targets_free(nib_targets *targets)
{
    for (size_t i = 0; i < targets->pattern_count; i++)
        nib__pattern_free(targets->patterns[i]);
}

bool nib__targets_name(const nib_targets *targets, const char *name)
{
    return targets->name_count != 0 &&
           nib__name_index_find(&targets->by_name, targets->names, name) != SIZE_MAX;
}

size_t nib__targets_find(const nib_targets *targets, const char *module)
{
    char above[512];
    size_t size = strlen(module), at;
    if (targets->name_count == 0)
        return SIZE_MAX;
    at = nib__name_index_find(&targets->by_name, targets->names, module);
    if (targets->rules != NIB_TARGETS_MODELOPT || size >= sizeof above)
        return at;
    memcpy(above, module, size + 1);
    while (at == SIZE_MAX && size > 0) {
        if (above[--size] != '.')
            continue;
        above[size] = 0;
        at = nib__name_index_find(&targets->by_name, targets->names, above);
    }
    return at;
}

const char *nib__targets_pattern(const nib_targets *targets, size_t i, nib_arena *arena)
{
    const char *text = nib__pattern_text(targets->patterns[i]);
    if (targets->rules == NIB_TARGETS_MODELOPT)
        return nib__arena_copy(arena, text, strlen(text));
    char *out = nib__arena_copy(arena, text + 3, strlen(text) - 6); /* of "re:(?:...).*" */
    return out != NULL ? memcpy(out, "re:", 3) : NULL;
}

nib_status nib__targets_match(bool *out, const nib_targets *targets, const char *module,
                              nib_err *err)
{
    nib_err problem = {NIB_OK, ""};
    *out = nib__targets_find(targets, module) != SIZE_MAX;
    for (size_t i = 0; i < targets->pattern_count && !*out; i++) {
        *out = nib__pattern_matches(targets->patterns[i], module, &problem);
        if (problem.status != NIB_OK)
            return nib__fail(err, problem.status, "%s", problem.text);
    }
    return NIB_OK;
}
