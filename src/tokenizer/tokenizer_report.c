/* SPDX-License-Identifier: Apache-2.0
 *
 * Reports in the ledger what tokenizer.json and tokenizer_config.json ask for and Nibble does not
 * do. Reads tokenizer.json only up to the type of its model, so that a plan can afford it: every
 * writer puts the model last. Ignores a file that cannot be read; loading it reports the error.
 */
#include "file.h"
#include "json.h"
#include "tokenizer.h"

#include <stdio.h>

enum { CONFIG_MAX = 16 << 20 };

typedef enum flag { FLAG_NONE, FLAG_FALSE, FLAG_TRUE } flag;

/* What tokenizer.json does. */
typedef struct actions {
    bool processor, before, after; /* it has a post_processor, which adds tokens */
    bool prefix;                   /* puts a space before the text */
    bool lowercase;
    bool bpe;
} actions;

/* What tokenizer_config.json asks for. */
typedef struct requests {
    flag add_bos, add_eos, add_prefix, clean_up, split_special, lowercase;
    bool has_bos, has_eos, code, pieces;
} requests;

/* ---- tokenizer.json ---- */

/* Scans a normalizer or pre_tokenizer for keys that put a space before the text, and Lowercase. */
static void scan_component(nib_json *json, actions *out)
{
    const int depth = json->depth;
    nib__json_next(json);
    while (json->depth > depth && json->event != NIB_JSON_ERROR) {
        const bool is_key = json->event == NIB_JSON_KEY;
        const bool type = is_key && nib__json_is(json, "type");
        const bool scheme = is_key && nib__json_is(json, "prepend_scheme");
        const bool prepend = is_key && nib__json_is(json, "prepend");
        const bool space = is_key && nib__json_is(json, "add_prefix_space");
        nib__json_next(json);
        if (prepend && json->event == NIB_JSON_STRING &&
            (nib__json_is(json, "\xe2\x96\x81") || nib__json_is(json, " ")))
            out->prefix = true; /* U+2581, a space in SentencePiece */
        if (type && json->event == NIB_JSON_STRING && nib__json_is(json, "Lowercase"))
            out->lowercase = true;
        if (space && json->event == NIB_JSON_TRUE)
            out->prefix = true;
        if (scheme && json->event == NIB_JSON_STRING)
            out->prefix = !nib__json_is(json, "never");
    }
}

/* [{"SpecialToken": ...}, {"Sequence": ...}]: does it add tokens before and after the text? */
static void scan_template(nib_json *json, actions *out)
{
    const int depth = json->depth;
    bool text = false;
    nib__json_next(json);
    while (json->depth > depth && json->event != NIB_JSON_ERROR) {
        if (json->event == NIB_JSON_KEY && nib__json_is(json, "Sequence"))
            text = true;
        else if (json->event == NIB_JSON_KEY && nib__json_is(json, "SpecialToken"))
            *(text ? &out->after : &out->before) = true;
        nib__json_next(json);
    }
}

static void scan_processor(nib_json *json, actions *out)
{
    const int depth = json->depth;
    nib__json_next(json);
    out->processor = json->event == NIB_JSON_OBJECT;
    while (json->depth > depth && json->event != NIB_JSON_ERROR) {
        const bool is_key = json->event == NIB_JSON_KEY;
        if (is_key && nib__json_is(json, "single"))
            scan_template(json, out);
        if (is_key && nib__json_is(json, "cls"))
            out->before = out->after = true;
        nib__json_next(json);
    }
}

/* "truncation" or "padding", which is null unless texts are cut or padded to a length. */
static void report_length(nib_ledger *ledger, nib_json *json, const char *key, const char *text)
{
    nib_json_value value;
    if (nib__json_any(json, &value) && value.event != NIB_JSON_NULL && !value.empty)
        nib__ledger_add_overruled(ledger, "tokenizer", key, NULL, NULL, "%s", text);
}

/* Reads the model's type, which writers put first; skips the rest, which lists all tokens. */
static void read_model_type(nib_json *json, actions *out)
{
    if (nib__json_next(json) == NIB_JSON_OBJECT && nib__json_next(json) == NIB_JSON_KEY &&
        nib__json_is(json, "type") && nib__json_next(json) == NIB_JSON_STRING)
        out->bpe = nib__json_is(json, "BPE");
}

static void read_tokenizer(const nib_map *map, const char *path, actions *out, nib_ledger *ledger)
{
    nib_json json;
    nib__json_init(&json, path, (const char *)map->at, (size_t)map->size, NULL);
    if (!nib__json_expect(&json, NIB_JSON_OBJECT))
        return;
    while (nib__json_next(&json) == NIB_JSON_KEY && !nib__json_is(&json, "model")) {
        if (nib__json_is(&json, "truncation"))
            report_length(ledger, &json, "truncation",
                          "tokenizer.json truncates texts; Nibble reads the whole text");
        else if (nib__json_is(&json, "padding"))
            report_length(ledger, &json, "padding", "tokenizer.json pads texts; Nibble does not");
        else if (nib__json_is(&json, "normalizer") || nib__json_is(&json, "pre_tokenizer"))
            scan_component(&json, out);
        else if (nib__json_is(&json, "post_processor"))
            scan_processor(&json, out);
        else
            (void)nib__json_skip(&json);
    }
    if (json.event == NIB_JSON_KEY)
        read_model_type(&json, out);
}

/* ---- tokenizer_config.json ---- */

static void read_config(const nib_map *map, const char *path, requests *out)
{
    const struct {
        const char *key;
        flag *flag;
        bool *there;
    } keys[] = {
        {"add_bos_token", &out->add_bos, NULL},
        {"add_eos_token", &out->add_eos, NULL},
        {"add_prefix_space", &out->add_prefix, NULL},
        {"clean_up_tokenization_spaces", &out->clean_up, NULL},
        {"do_lower_case", &out->lowercase, NULL},
        {"split_special_tokens", &out->split_special, NULL},
        {"auto_map", NULL, &out->code},
        {"bos_token", NULL, &out->has_bos},
        {"eos_token", NULL, &out->has_eos},
        {"sp_model_kwargs", NULL, &out->pieces},
    };
    const nib_json_limits limits = {.literals = true};
    nib_json json;
    nib__json_init(&json, path, (const char *)map->at, (size_t)map->size, &limits);
    if (!nib__json_expect(&json, NIB_JSON_OBJECT))
        return;
    while (nib__json_next(&json) == NIB_JSON_KEY) {
        size_t i = 0;
        nib_json_value value;
        while (i < COUNT(keys) && !nib__json_is(&json, keys[i].key))
            i++;
        if (!nib__json_any(&json, &value))
            return;
        if (i == COUNT(keys))
            continue;
        if (keys[i].flag)
            *keys[i].flag = value.event == NIB_JSON_TRUE    ? FLAG_TRUE
                            : value.event == NIB_JSON_FALSE ? FLAG_FALSE
                                                            : FLAG_NONE;
        else
            *keys[i].there = value.event != NIB_JSON_NULL && !value.empty;
    }
}

/* ---- differences ---- */

static void report_flag(nib_ledger *ledger, const char *name, flag asked, bool done,
                        const char *more, const char *less)
{
    if (asked == FLAG_TRUE && !done)
        nib__ledger_add_overruled(ledger, "tokenizer", name, "true", NULL, "%s", less);
    if (asked == FLAG_FALSE && done)
        nib__ledger_add_overruled(ledger, "tokenizer", name, "false", "true", "%s", more);
}

static void report_differences(const requests *a, const actions *d, nib_ledger *ledger)
{
    const bool adds = !d->processor; /* tokenizer_config.json decides what is added */
    report_flag(ledger, "add_bos_token", a->add_bos,
                adds ? a->add_bos == FLAG_TRUE && a->has_bos : d->before,
                "the post_processor of tokenizer.json begins texts with a token",
                adds ? "no bos_token is named"
                     : "the post_processor of tokenizer.json begins texts with no token");
    report_flag(ledger, "add_eos_token", a->add_eos,
                adds ? a->add_eos == FLAG_TRUE && a->has_eos : d->after,
                "the post_processor of tokenizer.json ends texts with a token",
                adds ? "no eos_token is named"
                     : "the post_processor of tokenizer.json ends texts with no token");
    report_flag(ledger, "add_prefix_space", a->add_prefix, d->prefix,
                "tokenizer.json puts a space before a text",
                "tokenizer.json puts no space before a text");
    report_flag(ledger, "do_lower_case", a->lowercase, d->lowercase, "tokenizer.json has Lowercase",
                "tokenizer.json has no Lowercase");
    if (a->clean_up == FLAG_TRUE)
        nib__ledger_add_setting(
            ledger,
            &(nib_ledger_setting){.code = "tokenizer",
                                  .name = "clean_up_tokenization_spaces",
                                  .asked = "true",
                                  .by = NIB_BY_CONFIG,
                                  .relation = d->bpe ? NIB_SETTING_EQUIVALENT : NIB_SETTING_NONE},
            "spaces before punctuation stay%s",
            d->bpe ? ", as in transformers 5.23, which ignores this key with BPE" : "");
    if (a->split_special == FLAG_TRUE)
        nib__ledger_add_overruled(ledger, "tokenizer", "split_special_tokens", "true", NULL,
                                  "special tokens in a text stay whole");
    if (a->pieces)
        nib__ledger_add_unread(ledger, "tokenizer", "tokenizer_config.json", "sp_model_kwargs",
                               NULL);
    if (a->code)
        nib__ledger_add_overruled(ledger, "config-code", "auto_map", NULL, NULL,
                                  "tokenizer_config.json names Python code, which is not run");
}

void nib__tokenizer_report(nib_ledger *ledger, const char *path, const char *config)
{
    nib_map map;
    nib_err err;
    actions actual = {0};
    requests requested = {0};
    if (nib__map_open(&map, path, &err) != NIB_OK)
        return;
    read_tokenizer(&map, path, &actual, ledger);
    nib__map_close(&map);
    if (config == NULL || nib__map_open(&map, config, &err) != NIB_OK)
        return;
    if (map.size <= CONFIG_MAX)
        read_config(&map, config, &requested);
    nib__map_close(&map);
    report_differences(&requested, &actual, ledger);
}
