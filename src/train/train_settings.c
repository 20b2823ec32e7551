/* SPDX-License-Identifier: Apache-2.0
 *
 * Records the settings of a run, and compares them with those of other ranks and of the run that
 * wrote a checkpoint.
 */
#include "train_settings.h"

#include "ranks.h"

#include <stdio.h>

/* The config that the plan follows: an option may replace the recipe. */
static nib_train_config planned_config(const nib_trainer *t)
{
    nib_train_config c = *t->config;
    if (t->plan->request.recipe)
        c.recipe = t->plan->request.recipe;
    c.dtype = t->plan->policy.dtype;
    c.wgrad_with_hp = t->plan->policy.wgrad_with_hp;
    return c;
}

/* Writes patterns as one string, since comparison does not look into lists; null: not given. */
static void put_patterns(nib_jsonw *w, const char *key, const nib_strings *patterns,
                         const nib_allocator *a)
{
    nib_text text;
    nib__text_init(&text, a);
    for (size_t i = 0; i < patterns->count; i++)
        nib__text_format(&text, "%s%s", i > 0 ? "," : "", patterns->items[i]);
    w->text->failed |= text.failed;
    nib__jsonw_pair_string(w, key, text.at);
    nib__text_free(&text);
}

void nib__trainer_settings(nib_jsonw *w, const nib_trainer *t)
{
    const nib_train_config c = planned_config(t);
    char hash[33];
    nib__jsonw_object(w);
    nib__train_config_put(w, &c);
    put_patterns(w, "--skip", &t->plan->request.skip, &t->engine->allocator);
    put_patterns(w, "--only", &t->plan->request.only, &t->engine->allocator);
    nib__jsonw_pair_string(w, "schemes", nib__hash_text(hash, nib__trainer_schemes(t)));
    nib__jsonw_object_end(w);
}

nib_hash nib__trainer_schemes(const nib_trainer *t)
{
    const nib_assignment *plan = &t->plan->assignment;
    nib_hash all = {0};
    for (size_t i = 0; i < plan->count; i++) {
        const nib_layer_plan *l = &plan->layers[i];
        char done[64], qat[64] = "", line[512];
        nib__scheme_name(done, &l->done);
        if (nib__scheme_is_quantized(&l->layer->qat))
            nib__scheme_name(qat, &l->layer->qat);
        snprintf(line, sizeof line, "%s %s %s", l->layer->name, done, qat);
        const nib_hash both[] = {all, nib__hash_bytes(line, strlen(line))};
        all = nib__hash_bytes(both, sizeof both);
    }
    return all;
}

nib_hash nib__text_hash(const nib_documents *text)
{
    return nib__hash_bytes(text->text, text->size);
}

/* ---- compared with other ranks ---- */

/* Paths are not compared, only whether they are set: hosts may keep files elsewhere. */
static nib_status hash_settings(nib_hash *out, const nib_trainer *t, bool exports, nib_err *err)
{
    nib_train_config c = planned_config(t);
    nib_text text;
    nib_jsonw w;
    c.dataset = c.initial_load = c.recipe = NULL; /* their content is compared */
    nib__text_init(&text, &t->engine->allocator);
    nib__jsonw_init(&w, &text, 0);
    nib__jsonw_object(&w);
    nib__train_config_put(&w, &c);
    nib__jsonw_pair_bool(&w, "save", c.save);
    nib__jsonw_pair_int(&w, "interval", c.interval);
    nib__jsonw_pair_int(&w, "load_step", c.load_step);
    nib__jsonw_pair_bool(&w, "export", exports);
    nib__jsonw_pair_bool(&w, "export_last", c.export_last);
    nib__jsonw_pair_int(&w, "export_dtype", c.export_dtype);
    nib__jsonw_pair_int(&w, "log_every", c.log_every);
    nib__jsonw_pair_bool(&w, "count_casts", c.count_casts);
    nib__jsonw_pair_double(&w, "spike", c.spike);
    nib__jsonw_pair_double(&w, "norm_spike", c.norm_spike);
    nib__jsonw_pair_bool(&w, "skip_bad_steps", c.skip_bad_steps);
    nib__jsonw_pair_bool(&w, "validation", c.validation != NULL);
    nib__jsonw_pair_int(&w, "validation_every", c.validation_every);
    nib__jsonw_pair_int(&w, "validation_steps", c.validation_steps);
    nib__jsonw_object_end(&w);
    const nib_status status =
        text.failed ? nib__fail_memory(err, text.size, "the settings") : NIB_OK;
    if (status == NIB_OK)
        *out = nib__hash_bytes(text.at, text.size);
    nib__text_free(&text);
    return status;
}

/* Hashes the rows that run on a device, which may have refused some on one rank only. All CPU rows
 * follow one arithmetic contract. */
static nib_status hash_plan(nib_hash *out, const nib_assignment *plan, nib_engine *engine,
                            nib_err *err)
{
    nib_text rows;
    nib__text_init(&rows, &engine->allocator);
    for (size_t i = 0; i < plan->count; i++)
        for (int u = 0; u < plan->layers[i].use_count; u++) {
            const nib_kernel *row = plan->layers[i].uses[u].kernel;
            if (row->device != NIB_DEVICE_CPU)
                nib__text_format(&rows, "%zu %s\n", i, row->name);
        }
    *out = nib__hash_bytes(rows.at != NULL ? rows.at : "", rows.size);
    const bool failed = rows.failed;
    nib__text_free(&rows);
    return failed ? nib__fail_memory(err, 4096, "the names of kernels") : NIB_OK;
}

typedef struct compared {
    nib_hash settings, schemes, text, tokenizer, plan;
    int64_t micro_batches, lines;
} compared;

static nib_status gather(compared *out, const nib_trainer *t, bool exports, nib_err *err)
{
    *out = (compared){.schemes = nib__trainer_schemes(t),
                      .text = nib__text_hash(&t->data.documents),
                      .lines = t->data.documents.lines,
                      .tokenizer = t->tokenizer,
                      .micro_batches = t->micro_batches};
    NIB_TRY(hash_plan(&out->plan, &t->plan->assignment, t->engine, err));
    return hash_settings(&out->settings, t, exports, err);
}

static nib_status compare(const compared *first, const compared *mine, nib_err *err)
{
    static const char same_files[] = "every host needs the same files and the same options";
    if (!nib__hash_equal(first->settings, mine->settings) ||
        first->micro_batches != mine->micro_batches)
        return nib__fail(err, NIB_BAD_INPUT, "this rank's config differs from rank 0's; %s",
                         same_files);
    if (!nib__hash_equal(first->schemes, mine->schemes))
        return nib__fail(err, NIB_BAD_INPUT,
                         "the schemes of this rank's layers differ from rank 0's, by the recipe or "
                         "the plan; %s",
                         same_files);
    if (!nib__hash_equal(first->text, mine->text) || first->lines != mine->lines)
        return nib__fail(err, NIB_BAD_INPUT, "this rank's text differs from rank 0's; %s",
                         same_files);
    if (!nib__hash_equal(first->tokenizer, mine->tokenizer))
        return nib__fail(err, NIB_BAD_INPUT, "this rank's tokenizer differs from rank 0's; %s",
                         same_files);
    if (!nib__hash_equal(first->plan, mine->plan))
        return nib__fail(
            err, NIB_NOT_AS_ASKED,
            "its device runs other layers or kernels than rank 0's; give all ranks one "
            "plan with --without and --place");
    return NIB_OK;
}

nib_status nib__ranks_same_settings(const nib_trainer *t, bool exports, nib_err *err)
{
    compared mine, first;
    if (!t->ranks)
        return NIB_OK;
    NIB_TRY(nib_ranks_agree(t->ranks, gather(&mine, t, exports, err), err));
    first = mine;
    NIB_TRY(nib__ranks_share(t->ranks, &first, sizeof first, "the settings of rank 0", err));
    return nib_ranks_agree(t->ranks, compare(&first, &mine, err), err);
}

nib_status nib__ranks_same_start(const nib_trainer *t, const nib_documents *validation,
                                 nib_err *err)
{
    struct {
        nib_hash weights, text;
        int64_t taken, lines;
    } mine = {.taken = t->optimizer.steps}, first;
    if (!t->ranks)
        return NIB_OK;
    mine.weights = nib__hash_bytes(t->weights, t->params.total * sizeof *t->weights);
    if (validation) {
        mine.text = nib__text_hash(validation);
        mine.lines = validation->lines;
    }
    first = mine;
    NIB_TRY(nib__ranks_share(t->ranks, &first, sizeof first, "the start of rank 0", err));
    const char *what = NULL;
    if (!nib__hash_equal(first.weights, mine.weights) || first.taken != mine.taken)
        what = "starts with other weights than rank 0";
    else if (!nib__hash_equal(first.text, mine.text) || first.lines != mine.lines)
        what = "validates on another text than rank 0";
    return nib_ranks_agree(
        t->ranks,
        what == NULL ? NIB_OK
                     : nib__fail(err, NIB_BAD_INPUT,
                                 "this rank %s; every host needs the same files and the same "
                                 "program",
                                 what),
        err);
}

/* ---- compared with the run that wrote a checkpoint ---- */

/* The raw value of a key of a flat object; NULL: absent. */
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

/* A value as JSON, shortened for a message; only the inside of a string is escaped. */
static const char *format_value(char out[NIB_SHOWN + 2], const char *value, nib_arena *arena)
{
    char name[NIB_SHOWN];
    const size_t size = strlen(value);
    const bool text = size > 1 && value[0] == '"';
    const char *inner = text ? nib__arena_copy(arena, value + 1, size - 2) : value;
    const char *quote = text ? "\"" : "";
    snprintf(out, NIB_SHOWN + 2, "%s%s%s", quote, nib__escape_string(name, inner ? inner : "?"),
             quote);
    return out;
}

/* The setting of a key that matters only when a run begins, so not on resuming; NULL: another
 * key. */
static const nib_train_asked *find_start_setting(const nib_trainer *t, const char *key)
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

/* Logs a line of the ledger. */
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

/* Logs each setting that differs, or adds it to *ledger if it has no effect. */
static void log_changes(const nib_trainer *t, const char *saved, const char *current,
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
        const char *now = value ? find_value(current, key, arena) : NULL;
        ok = value != NULL;
        /* the content of the data and the resulting batch size were compared before */
        if (!now || strcmp(now, value) == 0 || strcmp(key, "training.dataset_path") == 0 ||
            strcmp(key, "training.global_batch_size") == 0)
            continue;
        if (strcmp(key, "schemes") == 0) { /* the last key */
            if (!recipe)
                log_line(t, "layer schemes differ from those before the checkpoint: the recipe "
                            "file or the plan has changed");
            continue;
        }
        recipe |= strncmp(key, "quantize", 8) == 0 || strncmp(key, "--", 2) == 0;
        format_value(was, value, arena);
        format_value(is, now, arena);
        const nib_train_asked *start = find_start_setting(t, key);
        if (start && start->key)
            nib__ledger_add_setting(ledger,
                                    &(nib_ledger_setting){.code = "training-key",
                                                          .name = start->key,
                                                          .asked = start->value,
                                                          .by = start->by,
                                                          .relation = NIB_SETTING_NONE},
                                    "training resumes from a checkpoint of a run that had %s",
                                    strcmp(value, "null") == 0 ? "none" : was);
        if (start)
            continue;
        snprintf(line, sizeof line, "%s was %s before the checkpoint and is %s now",
                 nib__escape_string(name, key), was, is);
        log_line(t, line);
    }
}

nib_status nib__log_changed_settings(const nib_trainer *t, const char *saved, nib_arena *arena,
                                     nib_err *err)
{
    nib_text current;
    nib_jsonw w;
    nib_ledger ledger;
    if (!saved)
        return NIB_OK;
    nib__text_init(&current, &t->engine->allocator);
    nib__ledger_init(&ledger, &t->engine->allocator);
    nib__jsonw_init(&w, &current, 0);
    nib__trainer_settings(&w, t);
    if (!current.failed)
        log_changes(t, saved, current.at, &ledger, arena);
    nib_status status = current.failed || ledger.failed
                            ? nib__fail_memory(err, current.size, "the settings")
                            : NIB_OK;
    nib__ledger_allow(&ledger, &t->plan->request.allow);
    for (size_t i = 0; i < ledger.setting_count && status == NIB_OK; i++)
        log_setting(t, &ledger.settings[i]);
    if (status == NIB_OK && t->plan->request.strict)
        status = nib__ledger_strict(&ledger, err);
    nib__ledger_free(&ledger);
    nib__text_free(&current);
    return status;
}
