/* SPDX-License-Identifier: Apache-2.0
 *
 * torchao's configs as recipes: one for all linear layers, many by name in FqnToConfig, or either
 * inside Hugging Face's quantization_config ({"quant_type": {"default": ...},
 * "modules_to_not_convert": ...}). recipe_json.c has read the whole text before, so every value
 * ends and can be skipped.
 */
#include "torchao_config.h"

#include <stdio.h>

/* ---- FqnToConfig ---- */

/* torchao's precedence, one pass per level. A plain name means a parameter if it ends in
 * ".weight". */
typedef enum fqn_pass {
    FQN_EXACT_PARAMETER,
    FQN_EXACT_MODULE,
    FQN_REGEX_PARAMETER,
    FQN_REGEX_MODULE,
    FQN_DEFAULT,
    FQN_PASSES
} fqn_pass;

static bool belongs_to_pass(const char *name, fqn_pass pass, nib_match *match)
{
    static const char suffix[] = ".weight";
    const size_t size = strlen(name), end = sizeof suffix - 1;
    const bool regex = strncmp(name, "re:", 3) == 0, rest = strcmp(name, "_default") == 0;
    const bool parameter = size > end && strcmp(name + size - end, suffix) == 0;
    *match = rest                                                         ? NIB_MATCH_ALL
             : pass == FQN_EXACT_PARAMETER || pass == FQN_REGEX_PARAMETER ? NIB_MATCH_PARAMETER
                                                                          : NIB_MATCH_MODULE;
    switch (pass) {
    case FQN_EXACT_PARAMETER: return !regex && !rest && parameter;
    case FQN_EXACT_MODULE: return !regex && !rest && !parameter;
    case FQN_REGEX_PARAMETER:
    case FQN_REGEX_MODULE: return regex;
    default: return rest;
    }
}

/* One pass over the map at `json`, a copy. Rules take their source number from the position in the
 * map, so the two rules of one regex count as one pattern. */
static nib_status read_map_pass(nib_recipe *r, nib_json json, fqn_pass pass, int first_source,
                                int *count, nib_err *err)
{
    if (!nib__json_expect(&json, NIB_JSON_OBJECT))
        return nib__json_status(&json, err);
    for (*count = 0; nib__json_next(&json) == NIB_JSON_KEY; ++*count) {
        const char *name = nib__recipe_string(r, &json);
        nib_rule rule = {.reach = NIB_REACH_ANY, .text = name, .source = first_source + *count};
        if (name == NULL)
            return nib__json_status(&json, err);
        if (!belongs_to_pass(name, pass, &rule.match)) {
            (void)nib__json_skip(&json);
            continue;
        }
        nib_ao_config c;
        nib_json data;
        (void)nib__json_next(&json);
        NIB_TRY(nib__ao_read(&c, r, &json, &data, err));
        NIB_TRY(nib__ao_fill_rule(r, &c, &data, &rule, err));
        rule.may_miss = rule.keep; /* configs often name norms here, which are not layers */
        if (pass == FQN_DEFAULT) {
            rule.reach = NIB_REACH_LINEAR;
            rule.source = 0;
        }
        rule.words = nib__recipe_format(r, "FqnToConfig \"%s\"", name);
        nib_err inner = {0};
        const nib_status status = nib__recipe_add_rule(r, &rule, &inner);
        if (status != NIB_OK)
            return nib__recipe_fail(&json, status, err, "%s", inner.text);
    }
    return NIB_OK;
}

static nib_status read_map(nib_recipe *r, nib_json json, nib_err *err)
{
    const int first = r->sources + 1;
    int count = 0;
    for (int pass = 0; pass < FQN_PASSES; pass++)
        NIB_TRY(read_map_pass(r, json, (fqn_pass)pass, first, &count, err));
    r->sources += count;
    return nib__recipe_add_rule(r,
                                &(nib_rule){.match = NIB_MATCH_ALL,
                                            .reach = NIB_REACH_LINEAR,
                                            .keep = true,
                                            .words = "FqnToConfig"},
                                err);
}

/* True if the values of two KEYs are written alike. *empty: the second has no members. */
static bool is_same_value(nib_json a, nib_json b, bool *empty)
{
    const int depth = b.depth;
    bool same = true;
    *empty = true;
    do {
        const nib_json_event other = nib__json_next(&b);
        *empty = *empty && other != NIB_JSON_KEY;
        same = same && nib__json_next(&a) == other &&
               (other < NIB_JSON_KEY || other > NIB_JSON_NUMBER ||
                (a.token_size == b.token_size && memcmp(a.token, b.token, a.token_size) == 0));
    } while (b.depth > depth);
    return same;
}

/* "_data" of FqnToConfig holds the map, the same map under an older key, or only that. */
static nib_status read_fqn_config(nib_recipe *r, nib_json *data, nib_err *err)
{
    nib_json map, older;
    bool has_map = false, has_older = false;
    if (!nib__json_expect(data, NIB_JSON_OBJECT))
        return nib__json_status(data, err);
    while (nib__json_next(data) == NIB_JSON_KEY) {
        if (nib__json_is(data, "fqn_to_config")) {
            has_map = true;
            map = *data;
        } else if (nib__json_is(data, "module_fqn_to_config")) {
            has_older = true;
            older = *data;
        } else if (!nib__json_is(data, "version")) {
            const char *key = nib__recipe_string(r, data);
            return nib__recipe_fail(data, NIB_BAD_INPUT, err, "FqnToConfig has no setting \"%s\"",
                                    key == NULL ? "" : key);
        }
        (void)nib__json_skip(data);
    }
    if (!has_map && !has_older)
        return nib__recipe_fail(data, NIB_BAD_INPUT, err, "FqnToConfig lacks \"fqn_to_config\"");
    bool no_older = true, no_map = true;
    if (has_map && has_older && !is_same_value(map, older, &no_older)) {
        (void)is_same_value(older, map, &no_map);
        if (!no_map && !no_older)
            return nib__recipe_fail(data, NIB_BAD_INPUT, err,
                                    "FqnToConfig: fqn_to_config and module_fqn_to_config differ; "
                                    "keep one of them");
    }
    return read_map(r, has_map && (no_older || !no_map) ? map : older, err);
}

/* Reads a whole config, whose first event was just read: for all linear layers, or a map of
 * names. */
static nib_status read_whole(nib_recipe *r, nib_json *json, nib_err *err)
{
    nib_ao_config c;
    nib_json data;
    NIB_TRY(nib__ao_read(&c, r, json, &data, err));
    if (c.type == NULL)
        return nib__recipe_fail(json, NIB_BAD_INPUT, err,
                                "the config is null, so it asks for nothing");
    if (strcmp(c.type, "FqnToConfig") == 0 || strcmp(c.type, "ModuleFqnToConfig") == 0) {
        NIB_TRY(nib__ao_check_version(&c, err));
        return read_fqn_config(r, &data, err);
    }
    nib_rule rule = {.match = NIB_MATCH_ALL, .reach = NIB_REACH_LINEAR};
    NIB_TRY(nib__ao_fill_rule(r, &c, &data, &rule, err));
    rule.words = nib__recipe_format(r, "torchao %s", c.type);
    return nib__recipe_add_rule(r, &rule, err);
}

/* ---- Hugging Face's object around it ---- */

typedef struct hf_config {
    nib_json type, keep, settings; /* positions of their keys */
    bool has_type, has_keep, has_settings, embeddings;
} hf_config;

/* One member, whose KEY was just read; `value` is a copy that has read the first event of its
 * value. */
static nib_status read_hf_member(nib_recipe *r, const nib_json *key, nib_json *value, hf_config *hf,
                                 nib_err *err)
{
    const bool is_null = value->event == NIB_JSON_NULL;
    if (nib__json_is(key, "quant_type")) {
        hf->has_type = true;
        hf->type = *key;
    } else if (nib__json_is(key, "modules_to_not_convert")) {
        hf->has_keep = value->event == NIB_JSON_ARRAY;
        hf->keep = *key;
        if (!hf->has_keep && !is_null)
            return nib__recipe_fail(value, NIB_BAD_INPUT, err,
                                    "modules_to_not_convert is neither a list of names nor null");
    } else if (nib__json_is(key, "include_input_output_embeddings")) {
        hf->embeddings = value->event == NIB_JSON_TRUE;
        if (!hf->embeddings && value->event != NIB_JSON_FALSE && !is_null)
            return nib__recipe_fail(value, NIB_BAD_INPUT, err,
                                    "include_input_output_embeddings must be true, false or null");
    } else if (nib__json_is(key, "quant_method")) {
        if (value->event != NIB_JSON_STRING)
            return nib__recipe_fail(value, NIB_BAD_INPUT, err, "quant_method is not a name");
        if (!nib__json_is(value, "torchao"))
            return nib__recipe_fail(value, NIB_UNSUPPORTED, err,
                                    "quant_method \"%.*s\" cannot be a recipe; only torchao can",
                                    (int)nib__min((int64_t)value->token_size, 40), value->token);
    } else if (nib__json_is(key, "quant_type_kwargs")) {
        nib_json first = *value;
        hf->has_settings =
            value->event == NIB_JSON_OBJECT && nib__json_next(&first) == NIB_JSON_KEY;
        hf->settings = *key;
        if (value->event != NIB_JSON_OBJECT && !is_null)
            return nib__recipe_fail(value, NIB_BAD_INPUT, err,
                                    "quant_type_kwargs is neither an object nor null");
    } else if (nib__json_is(key, "untie_embedding_weights")) {
        r->untie = value->event == NIB_JSON_TRUE;
        if (!r->untie && value->event != NIB_JSON_FALSE && !is_null)
            return nib__recipe_fail(value, NIB_BAD_INPUT, err,
                                    "untie_embedding_weights must be true, false or null");
    } else {
        char shown[96];
        return nib__recipe_add_setting(
            r, err,
            &(nib_ledger_setting){
                .code = "recipe",
                .name = nib__escape_name(shown, sizeof shown, key->token, key->token_size),
                .relation = NIB_SETTING_NONE},
            "Nibble does not read this key of quantization_config");
    }
    return NIB_OK;
}

static nib_status scan_hf(nib_recipe *r, nib_json *json, hf_config *hf, nib_err *err)
{
    (void)nib__json_next(json); /* the object whose keys chose this form */
    while (nib__json_next(json) == NIB_JSON_KEY) {
        nib_json value = *json;
        nib__json_next(&value);
        NIB_TRY(read_hf_member(r, json, &value, hf, err));
        (void)nib__json_skip(json);
    }
    return NIB_OK;
}

/* Wraps an entry without cutting it: a shortened pattern would match other layers. */
static const char *wrap(nib_recipe *r, const char *before, const char *entry, const char *after)
{
    const size_t size = strlen(before) + strlen(entry) + strlen(after) + 1;
    char *text = nib__arena_take(&r->arena, size, 1);
    if (text != NULL)
        snprintf(text, size, "%s%s%s", before, entry, after);
    return text;
}

/* Hugging Face keeps a module if an entry, as a regular expression, matches the beginning of its
 * name up to a dot or the end, or if the name ends in the entry. */
static nib_status keep_module(nib_recipe *r, nib_json *json, unsigned reach, const char *entry,
                              nib_err *err)
{
    const int source = ++r->sources;
    nib_rule rule = {.match = NIB_MATCH_MODULE,
                     .reach = reach,
                     .keep = true,
                     .may_miss = true,
                     .source = source};
    rule.words = nib__recipe_format(r, "modules_to_not_convert \"%s\"", entry);
    rule.text = wrap(r, "re:(?:", entry, ")(?:(?<=\\.).*|\\..*)?");
    const char *suffix = wrap(r, "*", entry, "");
    if (rule.text == NULL || suffix == NULL)
        return nib__fail_memory(err, strlen(entry), "a pattern");
    nib_err inner = {0};
    nib_status status = nib__recipe_add_rule(r, &rule, &inner);
    if (status == NIB_OK && strpbrk(entry, "*?") == NULL) {
        rule.text = suffix;
        status = nib__recipe_add_rule(r, &rule, &inner);
    }
    return status == NIB_OK ? NIB_OK : nib__recipe_fail(json, status, err, "%s", inner.text);
}

static nib_status read_modules_to_keep(nib_recipe *r, nib_json json, unsigned reach, nib_err *err)
{
    (void)nib__json_next(&json); /* read_hf_member has seen that it is a list */
    while (nib__json_next(&json) != NIB_JSON_ARRAY_END) {
        const char *entry = json.event == NIB_JSON_STRING ? nib__recipe_string(r, &json) : NULL;
        if (entry == NULL || entry[0] == 0) {
            nib__json_fail(&json, "modules_to_not_convert holds an item that is not a name");
            return nib__json_status(&json, err);
        }
        NIB_TRY(keep_module(r, &json, reach, entry, err));
    }
    return NIB_OK;
}

/* quant_type as transformers wrote it up to torchao 0.9: the name of a function, with its arguments
 * in quant_type_kwargs. Each function became a config of version 1. */
static nib_status read_named(nib_recipe *r, nib_json *type, const hf_config *hf, nib_err *err)
{
    static const struct {
        const char *name, *config;
    } names[] = {
        {"int4_weight_only", "Int4WeightOnlyConfig"},
        {"int8_weight_only", "Int8WeightOnlyConfig"},
        {"int8_dynamic_activation_int8_weight", "Int8DynamicActivationInt8WeightConfig"},
        {"int8_dynamic_activation_int4_weight", "Int8DynamicActivationInt4WeightConfig"},
        {"float8_weight_only", "Float8WeightOnlyConfig"},
        {"float8_dynamic_activation_float8_weight", "Float8DynamicActivationFloat8WeightConfig"},
    };
    size_t i = 0;
    while (i < COUNT(names) && !nib__json_is(type, names[i].name))
        i++;
    if (i == COUNT(names))
        return nib__recipe_fail(type, NIB_UNSUPPORTED, err,
                                "quant_type \"%.*s\" has no scheme in Nibble; give torchao's "
                                "config object or a Nibble recipe",
                                (int)nib__min((int64_t)type->token_size, 64), type->token);
    nib_ao_config c = {.type = names[i].config, .version = 1, .at = *type};
    nib_json settings = hf->settings;
    if (!hf->has_settings)
        nib__json_init(&settings, "quant_type_kwargs", "{}", 2, &(nib_json_limits){0});
    nib_rule rule = {.match = NIB_MATCH_ALL, .reach = NIB_REACH_LINEAR};
    NIB_TRY(nib__ao_fill_rule(r, &c, &settings, &rule, err));
    rule.words = nib__recipe_format(r, "torchao %s", names[i].name);
    return nib__recipe_add_rule(r, &rule, err);
}

static nib_status read_hf(nib_recipe *r, nib_json *json, nib_err *err)
{
    hf_config hf = {0};
    NIB_TRY(scan_hf(r, json, &hf, err));
    if (!hf.has_type)
        return nib__recipe_fail(json, NIB_BAD_INPUT, err,
                                "quantization_config lacks \"quant_type\"");
    if (hf.has_keep)
        NIB_TRY(
            read_modules_to_keep(r, hf.keep, hf.embeddings ? NIB_REACH_BODY : NIB_REACH_ANY, err));
    else if (!hf.embeddings)
        NIB_TRY(
            nib__recipe_add_rule(r,
                                 &(nib_rule){.match = NIB_MATCH_ALL,
                                             .reach = NIB_REACH_HEAD,
                                             .keep = true,
                                             .words = "transformers keeps the output layer unless "
                                                      "modules_to_not_convert is given"},
                                 err));
    const size_t from = r->rule_count;
    nib_json type = hf.type;
    if (nib__json_next(&type) == NIB_JSON_STRING) {
        NIB_TRY(read_named(r, &type, &hf, err));
    } else {
        if (type.event != NIB_JSON_OBJECT || !nib__json_expect(&type, NIB_JSON_KEY) ||
            !nib__json_is(&type, "default"))
            return nib__recipe_fail(&type, NIB_BAD_INPUT, err,
                                    "quant_type is not {\"default\": CONFIG}");
        (void)nib__json_next(&type);
        NIB_TRY(read_whole(r, &type, err));
        if (nib__json_next(&type) != NIB_JSON_OBJECT_END)
            return nib__recipe_fail(&type, NIB_BAD_INPUT, err,
                                    "quant_type holds more than \"default\"");
        if (hf.has_settings)
            NIB_TRY(nib__recipe_add_setting(r, err,
                                            &(nib_ledger_setting){.code = "recipe",
                                                                  .name = "quant_type_kwargs",
                                                                  .relation = NIB_SETTING_NONE},
                                            "quant_type is a config and holds its own settings"));
    }
    for (size_t i = from; hf.embeddings && i < r->rule_count; i++)
        if (r->rules[i].match == NIB_MATCH_ALL)
            r->rules[i].reach = NIB_REACH_ANY;
    return NIB_OK;
}

nib_status nib__recipe_read_torchao(nib_recipe *r, nib_json *json, bool hf, nib_err *err)
{
    if (hf)
        return read_hf(r, json, err);
    (void)nib__json_next(json);
    return read_whole(r, json, err);
}
