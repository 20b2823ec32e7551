/* SPDX-License-Identifier: Apache-2.0
 *
 * The ledger's lines and settings: adding, counting, --strict, JSON. ledger_text.c renders them as
 * text.
 */
#include "ledger.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>

const char *const nib__rung_names[] = {"none", "kernel", "device", "dequant", "unquantized", NULL};

const char *const nib__verdict_names[] = {"runs", "could", "no"};

const char *const nib__setting_relation_names[] = {"equivalent", "narrower", "other",
                                                   "without effect", NULL};
const char *const nib__asker_names[] = {"option",  "recipe",  "checkpoint", "config",
                                        "default", "request", NULL};

void nib__ledger_init(nib_ledger *ledger, const nib_allocator *a)
{
    *ledger = (nib_ledger){.layers = NULL};
    nib__arena_init(&ledger->arena, a, 0);
}

void nib__ledger_free(nib_ledger *ledger)
{
    const nib_allocator *a = ledger->arena.allocator;
    nib__arena_free(&ledger->arena);
    nib__ledger_init(ledger, a);
}

/* Arrays double inside the arena, which keeps the old copies too: at most twice the memory, and no
 * frees. Capacity is the next power of two, so it needs no field. */
void *nib__ledger_grow(nib_ledger *ledger, void *array, size_t count, size_t size)
{
    if (count != 0 && (count & (count - 1)) != 0)
        return array;
    const size_t capacity = count == 0 ? 1 : 2 * count;
    void *grown = nib__arena_take(&ledger->arena, capacity, size);
    if (grown == NULL) {
        ledger->failed = true;
        return NULL;
    }
    if (count != 0)
        memcpy(grown, array, count * size);
    return grown;
}

nib_ledger_layer *nib__ledger_add_layer(nib_ledger *ledger, const char *name)
{
    nib_ledger_layer *layers =
        nib__ledger_grow(ledger, ledger->layers, ledger->layer_count, sizeof *layers);
    const char *copy = nib__ledger_text(ledger, "%s", name);
    if (layers == NULL || ledger->failed)
        return NULL;
    ledger->layers = layers;
    nib_ledger_layer *layer = &layers[ledger->layer_count++];
    *layer = (nib_ledger_layer){.name = copy, .sqnr_db = NAN};
    return layer;
}

nib_ledger_tensor *nib__ledger_add_tensor(nib_ledger *ledger, const char *name)
{
    nib_ledger_tensor *tensors =
        nib__ledger_grow(ledger, ledger->tensors, ledger->tensor_count, sizeof *tensors);
    const char *copy = nib__ledger_text(ledger, "%s", name);
    if (tensors == NULL || ledger->failed)
        return NULL;
    ledger->tensors = tensors;
    nib_ledger_tensor *tensor = &tensors[ledger->tensor_count++];
    *tensor = (nib_ledger_tensor){.name = copy};
    return tensor;
}

const char *nib__ledger_text_v(nib_ledger *ledger, const char *format, va_list args)
{
    va_list again;
    va_copy(again, args);
    const int length = nib__vformat(NULL, 0, format, again);
    va_end(again);
    char *text = length < 0 ? NULL : nib__arena_take(&ledger->arena, (uint64_t)length + 1, 1);
    if (text == NULL) {
        ledger->failed = true;
        return "";
    }
    nib__vformat(text, (size_t)length + 1, format, args);
    return text;
}

const char *nib__ledger_text(nib_ledger *ledger, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    const char *text = nib__ledger_text_v(ledger, format, args);
    va_end(args);
    return text;
}

static void add_reason(nib_ledger *ledger, nib_reason **reasons, size_t *count, const char *code,
                       const char *text)
{
    nib_reason *grown = nib__ledger_grow(ledger, *reasons, *count, sizeof *grown);
    if (grown == NULL)
        return;
    *reasons = grown;
    grown[(*count)++] = (nib_reason){code, text};
}

void nib__ledger_add_note(nib_ledger *ledger, const char *code, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    const char *text = nib__ledger_text_v(ledger, format, args);
    va_end(args);
    add_reason(ledger, &ledger->notes, &ledger->note_count, code, text);
}

bool nib__ledger_has_note(const nib_ledger *ledger, const char *code)
{
    for (size_t i = 0; i < ledger->note_count; i++)
        if (strcmp(ledger->notes[i].code, code) == 0)
            return true;
    return false;
}

void nib__ledger_copy_notes(nib_ledger *ledger, const nib_ledger *from, const char *code)
{
    for (size_t i = 0; i < from->note_count; i++)
        if (strcmp(from->notes[i].code, code) == 0)
            nib__ledger_add_note(ledger, from->notes[i].code, "%s", from->notes[i].text);
}

void nib__ledger_add_reason(nib_ledger *ledger, nib_ledger_layer *layer, const char *code,
                            const char *text)
{
    add_reason(ledger, &layer->reasons, &layer->reason_count, code, text);
}

void nib__ledger_add_advice(nib_ledger *ledger, nib_ledger_layer *layer,
                            const nib_ledger_advice *advice)
{
    nib_ledger_advice *grown =
        nib__ledger_grow(ledger, layer->advice, layer->advice_count, sizeof *grown);
    if (grown == NULL)
        return;
    layer->advice = grown;
    grown[layer->advice_count++] = *advice;
}

nib_candidate *nib__ledger_add_candidate(nib_ledger *ledger, nib_ledger_layer *layer)
{
    nib_candidate *grown =
        nib__ledger_grow(ledger, layer->candidates, layer->candidate_count, sizeof *grown);
    if (grown == NULL)
        return NULL;
    layer->candidates = grown;
    nib_candidate *candidate = &grown[layer->candidate_count++];
    *candidate = (nib_candidate){.kernel = NULL};
    return candidate;
}

void nib__ledger_add_candidate_reason(nib_ledger *ledger, nib_candidate *candidate,
                                      const char *code, const char *text)
{
    add_reason(ledger, &candidate->reasons, &candidate->reason_count, code, text);
}

/* ---- settings ---- */

/* Copies a text into the ledger; NULL stays NULL. */
static const char *copy_text(nib_ledger *ledger, const char *text)
{
    return text == NULL ? NULL : nib__ledger_text(ledger, "%s", text);
}

static void add_setting(nib_ledger *ledger, const nib_ledger_setting *from, const char *text)
{
    nib_ledger_setting line = *from;
    line.code = copy_text(ledger, from->code);
    line.name = copy_text(ledger, from->name);
    line.asked = copy_text(ledger, from->asked);
    line.done = copy_text(ledger, from->done);
    line.text = text;
    nib_ledger_setting *grown =
        nib__ledger_grow(ledger, ledger->settings, ledger->setting_count, sizeof *grown);
    if (grown == NULL)
        return;
    ledger->settings = grown;
    grown[ledger->setting_count++] = line;
}

static void add_setting_v(nib_ledger *ledger, const nib_ledger_setting *setting, const char *format,
                          va_list args)
{
    if (ledger != NULL)
        add_setting(ledger, setting, nib__ledger_text_v(ledger, format, args));
}

void nib__ledger_add_setting(nib_ledger *ledger, const nib_ledger_setting *setting,
                             const char *format, ...)
{
    va_list args;
    va_start(args, format);
    add_setting_v(ledger, setting, format, args);
    va_end(args);
}

void nib__ledger_add_overruled(nib_ledger *ledger, const char *code, const char *key,
                               const char *asked, const char *done, const char *format, ...)
{
    const nib_ledger_setting setting = {.code = code,
                                        .name = key,
                                        .asked = asked,
                                        .done = done,
                                        .by = NIB_BY_CONFIG,
                                        .relation =
                                            done != NULL ? NIB_SETTING_OTHER : NIB_SETTING_NONE};
    va_list args;
    va_start(args, format);
    add_setting_v(ledger, &setting, format, args);
    va_end(args);
}

void nib__ledger_add_unread(nib_ledger *ledger, const char *code, const char *file, const char *key,
                            const char *value)
{
    nib__ledger_add_overruled(ledger, code, key, value, NULL,
                              "%s has this key, and Nibble does not read it", file);
}

void nib__ledger_append(nib_ledger *ledger, const nib_ledger *from)
{
    ledger->failed = ledger->failed || from->failed;
    for (size_t i = 0; i < from->setting_count; i++)
        add_setting(ledger, &from->settings[i], copy_text(ledger, from->settings[i].text));
    for (size_t i = 0; i < from->note_count; i++)
        nib__ledger_add_note(ledger, from->notes[i].code, "%s", from->notes[i].text);
}

static bool same_text(const char *a, const char *b)
{
    return a == b || (a != NULL && b != NULL && strcmp(a, b) == 0);
}

void nib__ledger_merge_settings(nib_ledger *ledger, const nib_ledger *from)
{
    ledger->failed = ledger->failed || from->failed;
    for (size_t i = 0; i < from->setting_count; i++) {
        const nib_ledger_setting *s = &from->settings[i];
        bool known = false;
        for (size_t j = 0; j < ledger->setting_count && !known; j++) {
            const nib_ledger_setting *t = &ledger->settings[j];
            known = same_text(s->code, t->code) && same_text(s->name, t->name) &&
                    same_text(s->asked, t->asked) && same_text(s->text, t->text);
        }
        if (!known)
            add_setting(ledger, s, copy_text(ledger, s->text));
    }
}

void nib__ledger_allow(nib_ledger *ledger, const nib_strings *allow)
{
    for (size_t i = 0; i < ledger->setting_count; i++)
        for (size_t j = 0; j < allow->count; j++)
            if (strcmp(ledger->settings[i].code, allow->items[j]) == 0)
                ledger->settings[i].allowed = true;
}

void nib__ledger_setting_sentence(const nib_ledger_setting *s, nib_text *out)
{
    nib__text_format(out, "%s%s%s (%s): %s", s->name, s->asked != NULL ? " " : "",
                     s->asked != NULL ? s->asked : "", nib__asker_names[s->by], s->text);
}

nib_status nib__ledger_strict(const nib_ledger *ledger, nib_err *err)
{
    const nib_ledger_setting *first = NULL;
    size_t count = 0;
    for (size_t i = 0; i < ledger->setting_count; i++) {
        const nib_ledger_setting *s = &ledger->settings[i];
        if (s->relation < NIB_SETTING_OTHER || s->allowed)
            continue;
        first = count++ == 0 ? s : first;
    }
    if (count == 0)
        return NIB_OK;
    char others[64] = "";
    nib_text sentence;
    nib__text_init(&sentence, ledger->arena.allocator);
    nib__ledger_setting_sentence(first, &sentence);
    if (count > 1)
        snprintf(others, sizeof others, "; %zu more are not as asked", count - 1);
    const nib_status status =
        sentence.failed ? nib__fail_memory(err, 256, "a sentence")
                        : nib__fail(err, NIB_NOT_AS_ASKED, "--strict: %s; --allow %s accepts it%s",
                                    sentence.at, first->code, others);
    nib__text_free(&sentence);
    return status;
}

/* ---- counts ---- */

bool nib__ledger_is_linear(const nib_ledger_layer *layer)
{
    return layer->role == NULL ||
           (strcmp(layer->role, "embed") != 0 && strcmp(layer->role, NIB_LEDGER_OPERATION) != 0);
}

nib_ledger_counts nib__ledger_count(const nib_ledger *ledger)
{
    nib_ledger_counts counts = {0};
    for (size_t i = 0; i < ledger->layer_count; i++) {
        const nib_ledger_layer *layer = &ledger->layers[i];
        const bool as_asked = !layer->denied && layer->rung == NIB_RUNG_NONE;
        if (!nib__ledger_is_linear(layer)) {
            const bool is_operation = strcmp(layer->role, NIB_LEDGER_OPERATION) == 0;
            counts.embeddings += !as_asked && !is_operation;
            counts.operations += !as_asked && is_operation;
            continue;
        }
        counts.asked++;
        counts.done += as_asked;
        counts.denied += layer->denied;
        counts.substituted += !as_asked && !layer->denied;
    }
    for (size_t i = 0; i < ledger->setting_count; i++)
        counts.settings[ledger->settings[i].relation]++;
    return counts;
}

/* ---- JSON ---- */

static void json_reasons(nib_jsonw *w, const char *key, const nib_reason *reasons, size_t count)
{
    nib__jsonw_key(w, key);
    nib__jsonw_array(w);
    for (size_t i = 0; i < count; i++) {
        nib__jsonw_object(w);
        nib__jsonw_pair_string(w, "code", reasons[i].code);
        nib__jsonw_pair_string(w, "text", reasons[i].text);
        nib__jsonw_object_end(w);
    }
    nib__jsonw_array_end(w);
}

static void json_candidates(nib_jsonw *w, const nib_ledger_layer *layer)
{
    nib__jsonw_key(w, "candidates");
    nib__jsonw_array(w);
    for (size_t i = 0; i < layer->candidate_count; i++) {
        const nib_candidate *c = &layer->candidates[i];
        nib__jsonw_object(w);
        nib__jsonw_pair_string(w, "kernel", c->kernel);
        nib__jsonw_pair_string(w, "phase", c->phase);
        nib__jsonw_pair_string(w, "verdict", nib__verdict_names[c->verdict]);
        if (c->engine != NULL) {
            nib__jsonw_pair_string(w, "engine", c->engine);
            nib__jsonw_pair_string(w, "consequence", c->consequence);
            nib__jsonw_pair_string(w, "source", c->source);
        }
        json_reasons(w, "reasons", c->reasons, c->reason_count);
        nib__jsonw_object_end(w);
    }
    nib__jsonw_array_end(w);
}

static void json_uses(nib_jsonw *w, const nib_ledger_layer *layer)
{
    nib__jsonw_key(w, "uses");
    nib__jsonw_array(w);
    for (size_t i = 0; i < layer->use_count; i++) {
        const nib_ledger_use *use = &layer->uses[i];
        nib__jsonw_object(w);
        nib__jsonw_pair_string(w, "phase", use->phase);
        nib__jsonw_pair_int(w, "m_min", use->m_min);
        nib__jsonw_key(w, "m_max");
        if (use->m_max == 0)
            nib__jsonw_null(w);
        else
            nib__jsonw_int(w, use->m_max);
        nib__jsonw_pair_string(w, "kernel", use->kernel);
        nib__jsonw_pair_string(w, "quant", use->quant);
        nib__jsonw_pair_string(w, "device", use->device);
        nib__jsonw_pair_double(w, "predicted_us", use->predicted_us);
        if (use->tuned_us > 0)
            nib__jsonw_pair_double(w, "tuned_us", use->tuned_us);
        nib__jsonw_object_end(w);
    }
    nib__jsonw_array_end(w);
}

static void json_advice(nib_jsonw *w, const nib_ledger_layer *layer)
{
    nib__jsonw_key(w, "advice");
    nib__jsonw_array(w);
    for (size_t i = 0; i < layer->advice_count; i++) {
        nib__jsonw_object(w);
        nib__jsonw_pair_string(w, "code", layer->advice[i].code);
        nib__jsonw_pair_string(w, "option", layer->advice[i].option);
        nib__jsonw_pair_string(w, "text", layer->advice[i].text);
        nib__jsonw_object_end(w);
    }
    nib__jsonw_array_end(w);
}

static void json_layer(nib_jsonw *w, const nib_ledger_layer *layer)
{
    nib__jsonw_object(w);
    nib__jsonw_pair_string(w, "name", layer->name);
    nib__jsonw_pair_string(w, "role", layer->role);
    nib__jsonw_pair_int(w, "n", layer->n);
    nib__jsonw_pair_int(w, "k", layer->k);
    nib__jsonw_pair_bool(w, "bias", layer->bias);
    nib__jsonw_pair_string(w, "bias_form", layer->bias_form);
    nib__jsonw_pair_string(w, "asked", layer->asked);
    nib__jsonw_pair_string(w, "done", layer->denied ? NULL : layer->done);
    nib__jsonw_pair_string(w, "rung", nib__rung_names[layer->rung]);
    nib__jsonw_pair_string(w, "rule", layer->rule);
    nib__jsonw_pair_string(w, "allowed", layer->allowed);
    nib__jsonw_pair_bool(w, "denied", layer->denied);
    nib__jsonw_pair_int(w, "bytes", (int64_t)layer->bytes);
    if (!isnan(layer->sqnr_db))
        nib__jsonw_pair_double(w, "sqnr_db", layer->sqnr_db);
    if (layer->method != NULL)
        nib__jsonw_pair_string(w, "method", layer->method);
    if (layer->method != NULL && layer->objective[0] > 0) {
        nib__jsonw_pair_double(w, "weighted_error_of_rounding", layer->objective[0]);
        nib__jsonw_pair_double(w, "weighted_error", layer->objective[1]);
    }
    if (layer->kept != NULL)
        nib__jsonw_pair_string(w, "kept", layer->kept);
    json_reasons(w, "reasons", layer->reasons, layer->reason_count);
    if (layer->candidate_count != 0)
        json_candidates(w, layer);
    json_uses(w, layer);
    if (layer->advice_count != 0)
        json_advice(w, layer);
    nib__jsonw_object_end(w);
}

static void json_tensor(nib_jsonw *w, const nib_ledger_tensor *tensor)
{
    nib__jsonw_object(w);
    nib__jsonw_pair_string(w, "name", tensor->name);
    nib__jsonw_pair_string(w, "asked", tensor->asked);
    nib__jsonw_pair_string(w, "done", tensor->done);
    nib__jsonw_pair_string(w, "reason", tensor->reason);
    nib__jsonw_pair_double(w, "max_rel_change", tensor->max_rel_change);
    nib__jsonw_object_end(w);
}

static void json_setting(nib_jsonw *w, const nib_ledger_setting *s)
{
    nib__jsonw_object(w);
    nib__jsonw_pair_string(w, "code", s->code);
    nib__jsonw_pair_string(w, "name", s->name);
    nib__jsonw_pair_string(w, "asked", s->asked);
    nib__jsonw_pair_string(w, "done", s->done);
    nib__jsonw_pair_string(w, "by", nib__asker_names[s->by]);
    nib__jsonw_pair_string(w, "relation", nib__setting_relation_names[s->relation]);
    nib__jsonw_pair_bool(w, "allowed", s->allowed);
    nib__jsonw_pair_string(w, "text", s->text);
    nib__jsonw_object_end(w);
}

void nib__ledger_settings_json(const nib_ledger *ledger, nib_jsonw *w)
{
    if (ledger->failed)
        w->text->failed = true;
    nib__jsonw_key(w, "settings");
    nib__jsonw_array(w);
    for (size_t i = 0; i < ledger->setting_count; i++)
        json_setting(w, &ledger->settings[i]);
    nib__jsonw_array_end(w);
}

void nib__ledger_notes_json(const nib_ledger *ledger, nib_jsonw *w)
{
    if (ledger->failed)
        w->text->failed = true;
    json_reasons(w, "notes", ledger->notes, ledger->note_count);
}

void nib__ledger_json(const nib_ledger *ledger, nib_jsonw *w)
{
    if (ledger->failed)
        w->text->failed = true;
    nib__jsonw_key(w, "layers");
    nib__jsonw_array(w);
    for (size_t i = 0; i < ledger->layer_count; i++)
        json_layer(w, &ledger->layers[i]);
    nib__jsonw_array_end(w);
    nib__jsonw_key(w, "tensors");
    nib__jsonw_array(w);
    for (size_t i = 0; i < ledger->tensor_count; i++)
        json_tensor(w, &ledger->tensors[i]);
    nib__jsonw_array_end(w);
    nib__ledger_settings_json(ledger, w);
    nib__ledger_notes_json(ledger, w);
    const nib_ledger_counts counts = nib__ledger_count(ledger);
    nib__jsonw_key(w, "counts");
    nib__jsonw_object(w);
    nib__jsonw_pair_int(w, "asked", (int64_t)counts.asked);
    nib__jsonw_pair_int(w, "done", (int64_t)counts.done);
    nib__jsonw_pair_int(w, "substituted", (int64_t)counts.substituted);
    nib__jsonw_pair_int(w, "denied", (int64_t)counts.denied);
    nib__jsonw_pair_int(w, "embeddings_not_as_asked", (int64_t)counts.embeddings);
    if (counts.operations != 0)
        nib__jsonw_pair_int(w, "operations_not_as_asked", (int64_t)counts.operations);
    nib__jsonw_key(w, "settings");
    nib__jsonw_object(w);
    for (int r = 0; r < NIB_SETTING_COUNT; r++)
        nib__jsonw_pair_int(w, nib__setting_relation_names[r], (int64_t)counts.settings[r]);
    nib__jsonw_object_end(w);
    nib__jsonw_object_end(w);
}
