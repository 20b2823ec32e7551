/* SPDX-License-Identifier: Apache-2.0
 *
 * Sliding windows and RoPE by layer: layer_types decides if it is given, else the family's rule.
 */
#include "config_layers.h"

#include "arch.h"
#include "config_values.h"

#include <inttypes.h>
#include <stdio.h>

/* ---- reading ---- */

static bool *allocate_list(nib_json *j, nib_arena *arena)
{
    bool *list = nib__arena_take(arena, NIB_LAYERS_MAX, sizeof *list);
    if (list == NULL)
        nib__json_fail_memory(j, NIB_LAYERS_MAX);
    return list;
}

const char *nib__layers_local(const nib_family_row *family)
{
    return family->state_type != NULL            ? family->state_type
           : family->window == NIB_WINDOW_CHUNKS ? "chunked_attention"
                                                 : "sliding_attention";
}

const char *nib__layers_full(const nib_family_row *family)
{
    return family->mamba ? "attention" : "full_attention";
}

/* layer_types: one name per layer. */
bool nib__layers_read_types(nib_layers_given *s, const nib_family_row *family, nib_json *j,
                            nib_arena *arena)
{
    if (nib__json_next(j) == NIB_JSON_NULL)
        return true;
    if (!nib__config_check_event(j, NIB_JSON_ARRAY))
        return false;
    s->sliding = allocate_list(j, arena);
    for (s->type_count = 0; s->sliding != NULL && nib__json_next(j) == NIB_JSON_STRING;) {
        const bool slides = nib__json_is(j, nib__layers_local(family)) ||
                            (family->mamba && nib__json_is(j, "linear_attention"));
        if (s->type_count == NIB_LAYERS_MAX) {
            nib__json_fail(j, "at most %d layers are supported", NIB_LAYERS_MAX);
            return false;
        }
        s->sliding[s->type_count++] = slides;
        if (s->other_type || slides || nib__json_is(j, "full_attention") ||
            (family->mamba && nib__json_is(j, "attention")))
            continue;
        s->other_type = nib__json_string(j, arena, NULL);
        if (!s->other_type)
            return false;
    }
    return s->sliding != NULL && nib__config_check_event(j, NIB_JSON_ARRAY_END);
}

/* no_rope_layers: 1 for each layer with RoPE, 0 for others. */
bool nib__layers_read_rotates(nib_layers_given *s, nib_json *j, nib_arena *arena)
{
    if (nib__json_next(j) == NIB_JSON_NULL)
        return true;
    if (!nib__config_check_event(j, NIB_JSON_ARRAY))
        return false;
    bool *layers = allocate_list(j, arena);
    int64_t count = 0, value;
    while (layers != NULL && nib__json_next(j) == NIB_JSON_NUMBER) {
        if (!nib__json_int64(j, &value))
            return false;
        if (count == NIB_LAYERS_MAX || (value != 0 && value != 1)) {
            nib__json_fail(j, "0 or 1 is expected for each of at most %d layers", NIB_LAYERS_MAX);
            return false;
        }
        layers[count++] = value == 1;
    }
    s->rotates = count != 0 ? layers : NULL;
    s->rotate_count = count;
    return layers != NULL && nib__config_check_event(j, NIB_JSON_ARRAY_END);
}

/* mlp_only_layers, moe_layers: indices of layers. */
bool nib__layers_read_numbers(nib_layer_list *list, nib_json *j, nib_arena *arena)
{
    if (nib__json_next(j) == NIB_JSON_NULL)
        return true;
    if (!nib__config_check_event(j, NIB_JSON_ARRAY))
        return false;
    list->at = nib__arena_take(arena, NIB_LAYERS_MAX, sizeof *list->at);
    if (list->at == NULL)
        nib__json_fail_memory(j, NIB_LAYERS_MAX * sizeof *list->at);
    for (list->count = 0; list->at != NULL && nib__json_next(j) == NIB_JSON_NUMBER;) {
        if (list->count == NIB_LAYERS_MAX) {
            nib__json_fail(j, "at most %d layers are supported", NIB_LAYERS_MAX);
            return false;
        }
        if (!nib__json_int64(j, &list->at[list->count++]))
            return false;
    }
    return list->at != NULL && nib__config_check_event(j, NIB_JSON_ARRAY_END);
}

/* sliding_window_pattern: a number, or a letter for each layer of the repeating pattern. */
bool nib__layers_read_pattern(nib_layers_given *s, nib_json *j, nib_arena *arena)
{
    const nib_json_event event = nib__json_next(j);
    if (event == NIB_JSON_NULL)
        return true;
    if (event == NIB_JSON_NUMBER) {
        if (nib__json_int64(j, &s->pattern) && s->pattern < 1)
            nib__json_fail(j, "a number of layers of at least 1 is expected");
        return s->pattern >= 1;
    }
    if (!nib__config_check_event(j, NIB_JSON_STRING))
        return false;
    s->pattern_letters = nib__json_string(j, arena, NULL);
    if (s->pattern_letters == NULL)
        return false;
    if (*s->pattern_letters != 0 && strspn(s->pattern_letters, "LG") == strlen(s->pattern_letters))
        return true;
    nib__json_fail(j,
                   "only the letters L, a layer with a window, and G, one without, are expected");
    return false;
}

bool nib__layers_read_window(nib_layers_given *s, nib_json *j)
{
    s->window = 0;
    if (!nib__config_size(j, &s->window))
        return false;
    if (s->window == 0 && j->event != NIB_JSON_NULL)
        nib__json_fail(j, "a window of at least 1 position is expected, or null for none");
    return j->event != NIB_JSON_ERROR;
}

/* ---- windows ---- */

static bool in_pattern(const nib_layers_given *s, int64_t pattern, int64_t i)
{
    if (s->pattern_letters != NULL)
        return s->pattern_letters[(size_t)i % strlen(s->pattern_letters)] == 'L';
    return (i + 1) % pattern != 0;
}

/* By the family's rule, without layer_types. */
static bool has_window(const nib_config *c, const nib_layers_given *s, int64_t i)
{
    const nib_family_row *family = nib__family_of(c);
    switch (family->window) {
    case NIB_WINDOW_ALWAYS: return true;
    case NIB_WINDOW_ALL_IF_USED: return s->use_window;
    case NIB_WINDOW_IF_USED:
        return s->use_window &&
               i >= (s->first_window < 0 ? family->absent.first_window : s->first_window);
    case NIB_WINDOW_UNROTATED: return s->use_window && !c->rope_layers[i];
    case NIB_WINDOW_CHUNKS: return c->rope_layers[i];
    case NIB_WINDOW_PATTERN:
        return in_pattern(s, s->pattern > 0 ? s->pattern : family->pattern, i) &&
               !(family->last_full && i == c->layers - 1);
    default: return false;
    }
}

static nib_status set_windows(nib_config *c, int64_t window, const bool *layers,
                              const nib_layers_given *s, nib_arena *arena, nib_err *err)
{
    bool *has = nib__arena_take(arena, (uint64_t)c->layers, sizeof *has), any = false, all = true;
    if (has == NULL)
        return nib__fail_memory(err, (uint64_t)c->layers, "a list of layers");
    for (int64_t i = 0; i < c->layers; i++) {
        has[i] = layers != NULL ? layers[i] : has_window(c, s, i);
        any = any || has[i];
        all = all && has[i];
    }
    c->window = any ? window : 0;
    c->chunked = any && nib__family_of(c)->window == NIB_WINDOW_CHUNKS;
    c->window_layers = any && !all ? has : NULL;
    if (any && nib__family_of(c)->rope_in_windows)
        c->rope_layers = c->window_layers;
    return NIB_OK;
}

static nib_status fail_unrotated(const nib_config *c, const char *name, const char *why,
                                 nib_err *err)
{
    return nib__fail(err, NIB_UNSUPPORTED,
                     "%s: %s: no layer of %s would use RoPE, which is not supported", name, why,
                     nib__arch_name(c->arch));
}

nib_status nib__layers_window(nib_config *c, int64_t window, const bool *layers, const char *name,
                              nib_arena *arena, nib_err *err)
{
    const nib_layers_given none = {0};
    if (window > 0)
        NIB_TRY(set_windows(c, window, layers, &none, arena, err));
    const nib_family_row *family = nib__family_of(c);
    return c->window == 0 && (family->needs_window || (window > 0 && family->rope_in_windows))
               ? fail_unrotated(c, name, "no layer has a window", err)
               : NIB_OK;
}

/* Reports a layer_types that the family ignores and that differs from what runs. */
static void report_types(const nib_config *c, const nib_layers_given *s, nib_ledger *ledger)
{
    bool differs = s->sliding != NULL && (s->other_type != NULL || s->type_count != c->layers);
    for (int64_t i = 0; i < s->type_count && !differs; i++)
        differs = s->sliding[i] != (nib__config_window(c, i) > 0);
    if (differs)
        nib__ledger_add_overruled(ledger, "config-key", "layer_types", NULL, NULL,
                                  "transformers ignores this key for %s, whose layers have %s",
                                  nib__arch_name(c->arch),
                                  c->window > 0 ? "a sliding window" : "no sliding window");
}

/* Whether use_sliding_window decides if there are windows. */
static bool reads_use_window(const nib_family_row *family)
{
    return family->window == NIB_WINDOW_IF_USED || family->window == NIB_WINDOW_ALL_IF_USED ||
           family->window == NIB_WINDOW_UNROTATED;
}

/* Checks layer_types, for a family that reads it. */
static nib_status check_types(const nib_config *c, const nib_layers_given *s, const char *name,
                              nib_err *err)
{
    char shown[64];
    if (s->sliding != NULL && s->type_count != c->layers)
        return nib__fail(err, NIB_BAD_INPUT,
                         "%s: layer_types has length %" PRId64
                         ", but num_hidden_layers is %" PRId64,
                         name, s->type_count, c->layers);
    if (s->other_type)
        return nib__fail(
            err, NIB_UNSUPPORTED, "%s: layer_types names \"%s\"; only %s and %s are supported",
            name, nib__escape_name(shown, sizeof shown, s->other_type, strlen(s->other_type)),
            nib__layers_full(nib__family_of(c)), nib__layers_local(nib__family_of(c)));
    return NIB_OK;
}

static nib_status find_windows(nib_config *c, const nib_layers_given *s, const char *name,
                               nib_arena *arena, nib_ledger *ledger, nib_err *err)
{
    const nib_family_row *family = nib__family_of(c);
    const bool off = reads_use_window(family) && !s->use_window;
    const int64_t window = off ? 0 : s->window;
    bool slides = false;
    if (family->state_type != NULL) /* layer_types is about these */
        return NIB_OK;
    if (!family->layer_types) {
        NIB_TRY(window > 0 ? set_windows(c, window, NULL, s, arena, err) : NIB_OK);
        report_types(c, s, ledger);
        return NIB_OK;
    }
    NIB_TRY(check_types(c, s, name, err));
    if (family->last_full && s->sliding != NULL && s->sliding[c->layers - 1]) {
        s->sliding[c->layers - 1] = false;
        nib__ledger_add_overruled(ledger, "config-key", "layer_types", "sliding_attention",
                                  "full_attention",
                                  "the last layer of %s attends to all positions, as in "
                                  "transformers",
                                  nib__arch_name(c->arch));
    }
    for (int64_t i = 0; i < s->type_count; i++)
        slides = slides || s->sliding[i];
    if (slides && window <= 0)
        return nib__fail(err, NIB_BAD_INPUT, "%s: layer_types names \"%s\", but %s", name,
                         nib__layers_local(family),
                         off                                   ? "use_sliding_window is not true"
                         : family->window == NIB_WINDOW_CHUNKS ? "attention_chunk_size is null"
                                                               : "sliding_window is not given");
    if (s->window == 0 && s->sliding == NULL && family->window == NIB_WINDOW_PATTERN &&
        !family->rope_in_windows)
        return nib__fail(err, NIB_BAD_INPUT,
                         "%s: sliding_window is null, but layers of %s have a window; give it, or "
                         "layer_types without sliding_attention",
                         name, nib__arch_name(c->arch));
    if (window > 0)
        NIB_TRY(set_windows(c, window, s->sliding, s, arena, err));
    if (c->window == 0 && (family->needs_window || (window > 0 && family->rope_in_windows)))
        return fail_unrotated(c, name,
                              window > 0 ? "no layer has a window" : "sliding_window is null", err);
    return NIB_OK;
}

/* ---- RoPE ---- */

/* Finds the layers that use RoPE, for families in which some do not. */
static nib_status find_rotation(nib_config *c, const nib_layers_given *s, const char *name,
                                nib_arena *arena, nib_ledger *ledger, nib_err *err)
{
    const nib_family_row *family = nib__family_of(c);
    const bool skips = family->rope_interval > 0;
    const int64_t every = s->rotate_interval > 0 ? s->rotate_interval : family->rope_interval;
    bool *layers = s->rotates, differs = false;
    char shown[32];
    if (!skips && layers != NULL)
        return nib__fail(err, NIB_BAD_INPUT,
                         "%s: no_rope_layers changes the result and is not supported for %s", name,
                         nib__arch_name(c->arch));
    if (!skips)
        return NIB_OK;
    if (layers != NULL && s->rotate_count != c->layers)
        return nib__fail(err, NIB_BAD_INPUT,
                         "%s: no_rope_layers has length %" PRId64
                         ", but num_hidden_layers is %" PRId64,
                         name, s->rotate_count, c->layers);
    if (layers == NULL)
        layers = nib__arena_take(arena, (uint64_t)c->layers, sizeof *layers);
    if (layers == NULL)
        return nib__fail_memory(err, (uint64_t)c->layers, "a list of layers");
    for (int64_t i = 0; i < c->layers; i++) {
        const bool rotates = (i + 1) % every != 0;
        if (s->rotates == NULL)
            layers[i] = rotates;
        else
            differs = differs || (layers[i] != rotates && s->rotate_interval > 0);
    }
    if (differs)
        nib__ledger_add_overruled(ledger, "config-key", "no_rope_layer_interval",
                                  nib__format_double(shown, (double)s->rotate_interval), NULL,
                                  "no_rope_layers names other layers and takes precedence");
    c->rope_layers = layers;
    return NIB_OK;
}

/* ---- experts ---- */

static nib_status mark_layers(bool *layers, const nib_config *c, const nib_layer_list *list,
                              const char *key, const char *name, bool to, nib_err *err)
{
    for (int64_t i = 0; i < list->count; i++) {
        if (list->at[i] < 0 || list->at[i] >= c->layers)
            return nib__fail(err, NIB_BAD_INPUT,
                             "%s: %s names layer %" PRId64 ", but num_hidden_layers is %" PRId64,
                             name, key, list->at[i], c->layers);
        layers[list->at[i]] = to;
    }
    return NIB_OK;
}

/* Layers of a mixture that mlp_only_layers, or moe_layers without them, makes plain. moe_layers
 * takes precedence over the family's interval. */
static nib_status find_dense(nib_config *c, const nib_layers_given *s, const char *name,
                             nib_arena *arena, nib_ledger *ledger, nib_err *err)
{
    const bool experts = nib__family_of(c)->experts != NULL,
               mixed = nib__family_of(c)->lists_experts && s->mixed.at != NULL;
    if (s->dense.count > 0 && !experts)
        nib__ledger_add_unread(ledger, "config-key", "config.json", "mlp_only_layers", "a list");
    if (s->mixed.count > 0 && !mixed)
        nib__ledger_add_unread(ledger, "config-key", "config.json", "moe_layers", "a list");
    if (!experts || (s->dense.count == 0 && !mixed))
        return NIB_OK;
    bool *dense = nib__arena_take(arena, (uint64_t)c->layers, sizeof *dense);
    if (dense == NULL)
        return nib__fail_memory(err, (uint64_t)c->layers, "a list of layers");
    for (int64_t i = 0; mixed && i < c->layers; i++)
        dense[i] = true;
    c->moe.interval = mixed ? 1 : c->moe.interval;
    c->moe.dense = dense;
    if (mixed)
        NIB_TRY(mark_layers(dense, c, &s->mixed, "moe_layers", name, false, err));
    return mark_layers(dense, c, &s->dense, "mlp_only_layers", name, true, err);
}

/* ---- short convolutions ---- */

static nib_status find_convolutions(nib_config *c, const nib_layers_given *s, const char *name,
                                    nib_arena *arena, nib_ledger *ledger, nib_err *err)
{
    const nib_family_row *family = nib__family_of(c);
    const bool listed = s->attending.at != NULL && family->full_interval == 0;
    const int64_t every = c->full_interval > 0 ? c->full_interval : family->full_interval;
    bool any = false, all = true, differs = false;
    if (s->attending.count > 0 && (family->state_type == NULL || !listed))
        nib__ledger_add_unread(ledger, "config-key", "config.json", "full_attn_idxs", "a list");
    if (family->state_type == NULL ||
        (!listed && s->sliding == NULL && every == 0 && !family->mamba))
        return NIB_OK;
    NIB_TRY(check_types(c, s, name, err));
    bool *convolves = nib__arena_take(arena, (uint64_t)c->layers, sizeof *convolves);
    if (convolves == NULL)
        return nib__fail_memory(err, (uint64_t)c->layers, "a list of layers");
    for (int64_t i = 0; i < c->layers; i++)
        convolves[i] = listed || (every > 0 && (i + 1) % every != 0) || family->mamba;
    if (listed)
        NIB_TRY(mark_layers(convolves, c, &s->attending, "full_attn_idxs", name, false, err));
    for (int64_t i = 0; i < c->layers; i++) {
        differs = differs || ((listed || c->full_interval > 0) && s->sliding != NULL &&
                              convolves[i] != s->sliding[i]);
        convolves[i] = s->sliding != NULL ? s->sliding[i] : convolves[i];
        any = any || convolves[i];
        all = all && convolves[i];
    }
    if (differs)
        nib__ledger_add_overruled(ledger, "config-key",
                                  listed ? "full_attn_idxs" : "full_attention_interval", NULL, NULL,
                                  "layer_types names other layers and takes precedence");
    if (all)
        return nib__fail(err, NIB_UNSUPPORTED,
                         "%s: all layers have a convolution; a model without any attention is not "
                         "supported",
                         name);
    c->conv_layers = any ? convolves : NULL;
    c->full_interval = 0; /* done: layer_types is written */
    return NIB_OK;
}

/* ---- keys that are not followed ---- */

/* max_window_layers and sliding_window_pattern choose among layers; if no layer has a window, they
 * have no effect. */
static void report_patterns(const nib_config *c, const nib_layers_given *s, nib_ledger *ledger)
{
    const char *decides = s->sliding != NULL ? "layer_types decides" : "the family decides";
    const bool patterned = s->pattern > 0 || s->pattern_letters != NULL;
    bool first_differs = false, pattern_differs = false;
    char asked[32], letters[NIB_SHOWN];
    for (int64_t i = 0; i < c->layers && c->window > 0; i++) {
        const bool has = nib__config_window(c, i) > 0;
        first_differs |= s->first_window >= 0 && has != (i >= s->first_window);
        pattern_differs |= patterned && has != in_pattern(s, s->pattern, i);
    }
    if (first_differs)
        nib__ledger_add_overruled(ledger, "config-key", "max_window_layers",
                                  nib__format_double(asked, (double)s->first_window), NULL,
                                  "the layers with a window are not those from this one on: %s",
                                  decides);
    if (pattern_differs)
        nib__ledger_add_overruled(ledger, "config-key", "sliding_window_pattern",
                                  s->pattern_letters != NULL
                                      ? nib__escape_string(letters, s->pattern_letters)
                                      : nib__format_double(asked, (double)s->pattern),
                                  NULL, "other layers have a window: %s", decides);
}

static void report_use_window(const nib_config *c, const nib_layers_given *s, nib_ledger *ledger)
{
    const nib_family_row *family = nib__family_of(c);
    if (!s->use_window)
        return;
    if (!reads_use_window(family))
        nib__ledger_add_unread(ledger, "config-key", "config.json", "use_sliding_window", "true");
    else if (c->window == 0)
        nib__ledger_add_overruled(ledger, "config-key", "use_sliding_window", "true", NULL,
                                  "no layer has a window, because of %s",
                                  s->window == 0                           ? "sliding_window"
                                  : s->sliding != NULL                     ? "layer_types"
                                  : family->window == NIB_WINDOW_UNROTATED ? "no_rope_layers"
                                                                           : "max_window_layers");
}

/* ---- both ---- */

nib_status nib__layers_apply(nib_config *c, const nib_layers_given *s, const char *name,
                             nib_arena *arena, nib_ledger *ledger, nib_err *err)
{
    char asked[32];
    NIB_TRY(find_rotation(c, s, name, arena, ledger, err));
    NIB_TRY(find_windows(c, s, name, arena, ledger, err));
    NIB_TRY(find_dense(c, s, name, arena, ledger, err));
    NIB_TRY(find_convolutions(c, s, name, arena, ledger, err));
    report_use_window(c, s, ledger);
    report_patterns(c, s, ledger);
    if (nib__family_of(c)->window == NIB_WINDOW_IGNORED && s->window > 0 && s->window < c->context)
        nib__ledger_add_overruled(ledger, "config-key", "sliding_window",
                                  nib__format_double(asked, (double)s->window), NULL,
                                  "%s has no window; every position attends to all earlier ones",
                                  nib__arch_name(c->arch));
    return NIB_OK;
}
