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

/* A key of how a run begins, which a run that goes on has behind it; NULL: another key. */
static const nib_train_asked *asked_of_begin(const nib_trainer *t, const char *key)
{
    const nib_train_config *c = t->config;
    return strcmp(key, "training.seed") == 0                  ? &c->asked.seed
           : strcmp(key, "checkpoint.initial_load_path") == 0 ? &c->asked.initial_load
                                                              : NULL;
}

static void log_line(const nib_trainer *t, const char *line)
{
    const nib_callbacks *c = &t->engine->callbacks;
    if (c->log && nib_ranks_rank(t->ranks) == 0)
        c->log(c->ctx, line);
}

/* A line of the ledger as the log has it. */
static void log_setting(const nib_trainer *t, const nib_ledger_setting *setting)
{
    nib_text text;
    nib__text_init(&text, &t->engine->allocator);
    nib__text_str(&text, "without effect: ");
    nib__ledger_setting_sentence(setting, &text);
    if (!text.failed)
        log_line(t, text.at);
    nib__text_free(&text);
}

/* What differs: said, or in *ledger where it has no effect. */
static void find_changes(const nib_trainer *t, const char *saved, const char *here,
                         nib_ledger *ledger, nib_arena *arena)
{
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
                log_line(t, "layers have other schemes than before the checkpoint: the file of "
                            "the recipe, or the plan, is another one");
            continue;
        }
        recipe |= strncmp(key, "quantize", 8) == 0 || strncmp(key, "--", 2) == 0;
        shown_value(was, value, arena);
        shown_value(is, now, arena);
        const nib_train_asked *begin = asked_of_begin(t, key);
        if (begin && begin->key)
            nib__ledger_add_setting(ledger,
                                    &(nib_ledger_setting){.code = "training-key",
                                                          .name = begin->key,
                                                          .asked = begin->value,
                                                          .by = begin->by,
                                                          .relation = NIB_SETTING_NONE},
                                    "training goes on from a checkpoint, whose run had %s",
                                    strcmp(value, "null") == 0 ? "none" : was);
        if (begin)
            continue;
        snprintf(line, sizeof line, "%s was %s before the checkpoint and is %s now",
                 nib__shown(name, key), was, is);
        log_line(t, line);
    }
}

nib_status nib__state_changes(const nib_trainer *t, const char *saved, nib_arena *arena,
                              nib_err *err)
{
    nib_text here;
    nib_jsonw w;
    nib_ledger ledger;
    if (!saved)
        return NIB_OK;
    nib__text_init(&here, &t->engine->allocator);
    nib__ledger_init(&ledger, &t->engine->allocator);
    nib__jsonw_init(&w, &here, 0);
    nib__trainer_settings(&w, t);
    if (!here.failed)
        find_changes(t, saved, here.at, &ledger, arena);
    nib_status status =
        here.failed || ledger.failed ? nib__fail_memory(err, here.size, "the settings") : NIB_OK;
    nib__ledger_allow(&ledger, &t->plan->request.allow);
    for (size_t i = 0; i < ledger.setting_count && status == NIB_OK; i++)
        log_setting(t, &ledger.settings[i]);
    if (status == NIB_OK && t->plan->request.strict)
        status = nib__ledger_strict(&ledger, err);
    nib__ledger_free(&ledger);
    nib__text_free(&here);
    return status;
}
