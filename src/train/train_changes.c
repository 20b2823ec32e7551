/* SPDX-License-Identifier: Apache-2.0
 *
 * What a run that goes on from a checkpoint does otherwise than the run that wrote it: allowed, but
 * said, since its curve then has a reason to bend.
 */
#include "train_settings.h"
#include "train_state.h"

#include <stdio.h>

/* The value of a key of a flat object, as it is written; NULL: it has none. */
static const char *find_value(const char *object, const char *key, nib_arena *arena)
{
    nib_json json;
    nib__json_init(&json, "", object, strlen(object), NULL);
    bool ok = nib__json_expect(&json, NIB_JSON_OBJECT);
    while (ok && nib__json_next(&json) == NIB_JSON_KEY) {
        if (nib__json_is(&json, key))
            return nib__json_raw(&json, arena);
        ok = nib__json_skip(&json);
    }
    return NULL;
}

/* A value as JSON writes it; the quotes of a text are none of what has to be escaped. */
static const char *shown_value(char out[NIB_SHOWN + 2], const char *value, nib_arena *arena)
{
    char name[NIB_SHOWN];
    const size_t size = strlen(value);
    const bool text = size > 1 && value[0] == '"';
    const char *inner = text ? nib__arena_copy(arena, value + 1, size - 2) : value;
    const char *quote = text ? "\"" : "";
    snprintf(out, NIB_SHOWN + 2, "%s%s%s", quote, nib__shown(name, inner ? inner : "?"), quote);
    return out;
}

static void say_changes(const nib_trainer *t, const char *saved, const char *here, nib_arena *arena)
{
    const nib_callbacks *c = &t->engine->callbacks;
    char line[3 * NIB_SHOWN + 64], name[NIB_SHOWN], was[NIB_SHOWN + 2], is[NIB_SHOWN + 2];
    bool recipe = false;
    nib_json json;
    nib__json_init(&json, "", saved, strlen(saved), NULL);
    bool ok = nib__json_expect(&json, NIB_JSON_OBJECT);
    while (ok && nib__json_next(&json) == NIB_JSON_KEY) {
        const char *key = nib__json_string(&json, arena, NULL);
        const char *value = key ? nib__json_raw(&json, arena) : NULL;
        const char *now = value ? find_value(here, key, arena) : NULL;
        ok = value != NULL;
        /* the data were compared by what they hold, the batch by what it comes to */
        if (!now || strcmp(now, value) == 0 || strcmp(key, "training.dataset_path") == 0 ||
            strcmp(key, "training.global_batch_size") == 0)
            continue;
        if (strcmp(key, "schemes") == 0) { /* the last of them */
            if (!recipe)
                c->log(c->ctx, "layers have other schemes than before the checkpoint: the file of "
                               "the recipe, or the plan, is another one");
            continue;
        }
        recipe |= strncmp(key, "quantize", 8) == 0 || strncmp(key, "--", 2) == 0;
        snprintf(line, sizeof line, "%s was %s before the checkpoint and is %s now",
                 nib__shown(name, key), shown_value(was, value, arena),
                 shown_value(is, now, arena));
        c->log(c->ctx, line);
    }
}

nib_status nib__state_changes(const nib_trainer *t, const char *saved, nib_arena *arena,
                              nib_err *err)
{
    nib_text here;
    nib_jsonw w;
    if (!saved || !t->engine->callbacks.log || nib_ranks_rank(t->ranks) != 0)
        return NIB_OK;
    nib__text_init(&here, &t->engine->allocator);
    nib__jsonw_init(&w, &here, 0);
    nib__trainer_settings(&w, t);
    const nib_status status =
        here.failed ? nib__fail_memory(err, here.size, "the settings") : NIB_OK;
    if (status == NIB_OK)
        say_changes(t, saved, here.at, arena);
    nib__text_free(&here);
    return status;
}
