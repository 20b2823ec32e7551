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

static nib_pattern *make_pattern(nib_json *json, const char *text, nib_target_limits *limits,
                                 const nib_allocator *a)
{
    char whole[600];
    nib_pattern *pattern = NULL;
    nib_err err = {NIB_OK, ""};
    /* Python's re.match matches a prefix; our patterns match the whole name. */
    if (++limits->count > MOST_EXPRESSIONS ||
        snprintf(whole, sizeof whole, "re:(?:%s).*", text + 3) >= (int)sizeof whole) {
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

static void index_names(nib_targets *out, nib_json *json, const char **names, nib_arena *arena)
{
    out->names = nib__arena_take(arena, out->name_count, sizeof *out->names);
    if (out->names == NULL || !nib__name_index_init(&out->by_name, arena, out->name_count)) {
        nib__json_fail_memory(json, out->name_count * sizeof *out->names);
        out->name_count = 0;
        return;
    }
    for (size_t i = 0; i < out->name_count; i++) {
        out->names[i] = &names[i];
        (void)nib__name_index_add(&out->by_name, out->names, i); /* duplicates are harmless */
    }
}

void nib__targets_read(nib_targets *out, nib_json *json, const char *key, nib_target_limits *limits,
                       nib_arena *arena, const nib_allocator *a)
{
    size_t name_capacity = 0, pattern_capacity = 0, names = 0;
    void *texts = NULL, *patterns = NULL;
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
        const bool is_name = strncmp(text, "re:", 3) != 0;
        if (!(is_name ? grow(&texts, &name_capacity, names, arena)
                      : grow(&patterns, &pattern_capacity, out->pattern_count, arena))) {
            nib__json_fail_memory(json, 2 * sizeof(void *) * (names + out->pattern_count));
            return;
        }
        if (is_name) {
            ((const char **)texts)[names++] = text;
            continue;
        }
        out->patterns = patterns;
        out->patterns[out->pattern_count] = make_pattern(json, text, limits, a);
        if (out->patterns[out->pattern_count] == NULL)
            return;
        out->pattern_count++;
    }
    if (json->event != NIB_JSON_ARRAY_END) {
        nib__json_fail(json, "\"%s\" holds an item that is not a name", key);
        return;
    }
    out->name_count = names;
    index_names(out, json, texts, arena);
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

nib_status nib__targets_match(bool *out, const nib_targets *targets, const char *module,
                              nib_err *err)
{
    nib_err problem = {NIB_OK, ""};
    *out = nib__targets_name(targets, module);
    for (size_t i = 0; i < targets->pattern_count && !*out; i++) {
        *out = nib__pattern_matches(targets->patterns[i], module, &problem);
        if (problem.status != NIB_OK)
            return nib__fail(err, problem.status, "%s", problem.text);
    }
    return NIB_OK;
}
