/* SPDX-License-Identifier: Apache-2.0
 *
 * Recipes as JSON: tells the forms apart by their keys, and reads Nibble's own,
 *
 *   {"schema": 1, "skip": [PATTERN], "only": [PATTERN], "filter_fqns": [SUBSTRING],
 *    "rules": [{"match": PATTERN, "scheme": SCHEME | "keep", "layout": NAME, "method": METHOD}],
 *    "else": SCHEME | "keep", "method": METHOD}       or "recipe": NAME instead of "else"
 *
 * and torchtitan's {"recipe_name": ..., "filter_fqns": [...]} or {"fqns": [...]}, at the top level
 * or in the sections that its configs put around them. Filters and skips go before rules, wherever
 * they appear in the file.
 */
#include "recipe_rules.h"

#include <stdlib.h>

enum { EVENTS_MAX = 2000000, SECTIONS_DEEP = 4 };

/* Keys of Nibble's form as bits: those seen, and those that a pass reads. */
enum {
    K_SCHEMA = 1 << 0,
    K_SKIP = 1 << 1,
    K_ONLY = 1 << 2,
    K_FILTER = 1 << 3,
    K_FQNS = 1 << 4,
    K_RULES = 1 << 5,
    K_ELSE = 1 << 6,
    K_RECIPE = 1 << 7,
    K_RECIPE_NAME = 1 << 8,
    K_METHOD = 1 << 9,
};

static const char *const keys[] = {"schema", "skip", "only",   "filter_fqns", "fqns",
                                   "rules",  "else", "recipe", "recipe_name", "method"};

/* Settings of torchtitan's converters for its own kernels, which do not change what is
 * quantized. */
static const char *const torchtitan_only[] = {
    "emulate",
    "model_compile_enabled",
    "use_fp8_dim1_cast_triton_kernel",
    "mxfp8_dim1_cast_kernel_choice",
    "enable_fsdp_float8_all_gather",
    "precompute_float8_dynamic_scale_for_fsdp",
    "force_recompute_fp8_weight_in_bwd",
};

/* Objects that only wrap a recipe. */
static const char *const sections[] = {"quantization_config", "quantize", "linear", "mx", "float8"};

static size_t find_name(const nib_json *json, const char *const *names, size_t count)
{
    size_t i = 0;
    while (i < count && !nib__json_is(json, names[i]))
        i++;
    return i;
}

char *nib__recipe_string(nib_recipe *r, nib_json *json)
{
    size_t size;
    char *text = nib__json_string(json, &r->arena, &size);
    if (text != NULL && strlen(text) != size) {
        nib__json_fail(json, "a name holds a zero byte");
        return NULL;
    }
    return text;
}

/* ---- Nibble's own form ---- */

/* A scheme's name, "keep" or "weight-only". In a file a wrong name is bad input, not wrong
 * usage. */
static nib_status read_scheme(nib_recipe *r, nib_json *json, nib_rule *rule, nib_err *err)
{
    nib_err inner = {0};
    if (!nib__json_expect(json, NIB_JSON_STRING))
        return nib__json_status(json, err);
    const char *name = nib__recipe_string(r, json);
    if (name == NULL)
        return nib__json_status(json, err);
    rule->weight_only = strcmp(name, NIB_WEIGHT_ONLY) == 0;
    rule->keep = rule->weight_only || strcmp(name, "keep") == 0;
    if (rule->keep)
        return NIB_OK;
    const nib_status status = nib__scheme_parse(&rule->scheme, name, strlen(name), &inner);
    if (status != NIB_OK)
        return nib__recipe_fail(json, status == NIB_USAGE ? NIB_BAD_INPUT : status, err, "%s",
                                inner.text);
    return NIB_OK;
}

/* How codes are chosen: a name of nib__ptq_names. */
static nib_status read_method(nib_recipe *r, nib_json *json, nib_ptq_method *out, nib_err *err)
{
    const char *name = nib__json_expect(json, NIB_JSON_STRING) ? nib__recipe_string(r, json) : NULL;
    if (name == NULL)
        return nib__json_status(json, err);
    if (nib__ptq_parse(out, name))
        return NIB_OK;
    return nib__recipe_fail(json, NIB_BAD_INPUT, err, "method \"%s\" is unknown%s", name,
                            nib__recipe_suggest(r, name, "methods", nib__ptq_names, NIB_PTQ_COUNT));
}

static nib_status add_pattern_rule(nib_recipe *r, nib_json *json, const nib_rule *rule,
                                   nib_err *err)
{
    nib_err inner = {0};
    const nib_status status = nib__recipe_add_rule(r, rule, &inner);
    return status == NIB_OK ? NIB_OK : nib__recipe_fail(json, status, err, "%s", inner.text);
}

/* Reads one {"match", "scheme"}, whose OBJECT was just read. */
static nib_status read_rule(nib_recipe *r, nib_json *json, int index, nib_err *err)
{
    static const char *const members[] = {"match", "scheme", "layout", "method"};
    nib_rule rule = {.match = NIB_MATCH_NAME, .reach = NIB_REACH_ANY, .source = ++r->sources};
    unsigned seen = 0;
    while (nib__json_next(json) == NIB_JSON_KEY) {
        const size_t which = find_name(json, members, COUNT(members));
        if (which == COUNT(members)) {
            const char *key = nib__recipe_string(r, json);
            return nib__recipe_fail(
                json, NIB_BAD_INPUT, err, "a rule has no key \"%s\"%s", key == NULL ? "" : key,
                nib__recipe_suggest(r, key == NULL ? "" : key, "keys", members, COUNT(members)));
        }
        seen |= 1U << which;
        if (which == 1) {
            NIB_TRY(read_scheme(r, json, &rule, err));
            continue;
        }
        if (which == 3) {
            rule.has_method = true;
            NIB_TRY(read_method(r, json, &rule.method, err));
            continue;
        }
        const char *text =
            nib__json_expect(json, NIB_JSON_STRING) ? nib__recipe_string(r, json) : NULL;
        if (text == NULL)
            return nib__json_status(json, err);
        if (which == 0)
            rule.text = text;
        else
            rule.hint = nib__recipe_layout_hint(rule.hint_text = text);
    }
    if ((seen & 3U) != 3U)
        return nib__recipe_fail(json, NIB_BAD_INPUT, err, "rules[%d] lacks \"%s\"", index,
                                members[seen & 1U ? 1 : 0]);
    if (rule.has_method && rule.keep)
        return nib__recipe_fail(json, NIB_BAD_INPUT, err,
                                "rules[%d] has a method, but keeps its layers as stored", index);
    rule.words = nib__recipe_format(r, "rules[%d] \"%s\"", index, rule.text);
    return add_pattern_rule(r, json, &rule, err);
}

static nib_status read_rules(nib_recipe *r, nib_json *json, nib_err *err)
{
    if (!nib__json_expect(json, NIB_JSON_ARRAY))
        return nib__json_status(json, err);
    for (int index = 0; nib__json_next(json) != NIB_JSON_ARRAY_END; index++) {
        if (json->event != NIB_JSON_OBJECT) {
            nib__json_fail(json, "rules[%d] is not an object", index);
            return nib__json_status(json, err);
        }
        NIB_TRY(read_rule(r, json, index, err));
    }
    return NIB_OK;
}

/* Adds one string of "skip", "only", "filter_fqns" or "fqns". */
static nib_status add_list_item(nib_recipe *r, nib_json *json, unsigned key, const char *name,
                                const char *text, const nib_scheme *scheme, nib_err *err)
{
    nib_rule rule = {
        .match = NIB_MATCH_SUBSTRING, .reach = NIB_REACH_ANY, .text = text, .keep = true};
    if (key == K_ONLY) {
        nib_err inner = {0};
        const nib_status status = nib__recipe_add_only(r, text, NIB_ONLY_FILE, &inner);
        return status == NIB_OK ? NIB_OK : nib__recipe_fail(json, status, err, "%s", inner.text);
    }
    if (strcmp(text, "auto_filter_small_kn") == 0)
        return nib__recipe_fail(
            json, NIB_UNSUPPORTED, err,
            "auto_filter_small_kn filters by speeds measured on an H100; name the layers "
            "to keep instead");
    if (text[0] == 0)
        return nib__recipe_fail(json, NIB_BAD_INPUT, err,
                                "an empty string in \"%s\" would match every layer", name);
    if (key == K_SKIP)
        rule.match = NIB_MATCH_NAME;
    if (key == K_FQNS) {
        rule.keep = false;
        rule.scheme = *scheme;
        rule.reach = NIB_REACH_LINEAR;
    }
    rule.source = ++r->sources;
    rule.words = nib__recipe_format(r, "%s \"%s\"", name, text);
    return add_pattern_rule(r, json, &rule, err);
}

static nib_status read_list(nib_recipe *r, nib_json *json, unsigned key, const char *name,
                            const nib_scheme *scheme, size_t *count, nib_err *err)
{
    if (!nib__json_expect(json, NIB_JSON_ARRAY))
        return nib__json_status(json, err);
    for (*count = 0; nib__json_next(json) != NIB_JSON_ARRAY_END; ++*count) {
        if (json->event != NIB_JSON_STRING) {
            nib__json_fail(json, "\"%s\" holds an item that is not a string", name);
            return nib__json_status(json, err);
        }
        const char *text = nib__recipe_string(r, json);
        if (text == NULL)
            return nib__json_status(json, err);
        NIB_TRY(add_list_item(r, json, key, name, text, scheme, err));
    }
    return NIB_OK;
}

/* Maps torchtitan's recipe names to schemes. */
static nib_status read_torchtitan_scheme(nib_recipe *r, nib_json *json, nib_scheme *out,
                                         nib_err *err)
{
    static const struct {
        const char *name, *scheme;
    } known[] = {
        {"mxfp8", "mxfp8-floor"},          {"mxfp8_cublas", "mxfp8-floor"},
        {"mxfp8_emulated", "mxfp8-floor"}, {"mxfp8_cublas_rceil", "mxfp8"},
        {"mxfp8_rceil", "mxfp8"},          {"rowwise", "fp8dq"},
    };
    static const char *const names[] = {"mxfp8", "mxfp8_cublas", "mxfp8_cublas_rceil",
                                        "mxfp8_rceil", "rowwise"};
    const char *name = nib__json_expect(json, NIB_JSON_STRING) ? nib__recipe_string(r, json) : NULL;
    if (name == NULL)
        return nib__json_status(json, err);
    for (size_t i = 0; i < COUNT(known); i++)
        if (strcmp(name, known[i].name) == 0)
            return nib__scheme_parse(out, known[i].scheme, strlen(known[i].scheme), err);
    if (strcmp(name, "tensorwise") == 0)
        return nib__recipe_fail(
            json, NIB_UNSUPPORTED, err,
            "tensorwise gives the activations of a whole batch one scale, so a token's result "
            "would depend on its batch; use rowwise, or \"recipe\": \"fp8dq-tensor\"");
    if (strcmp(name, "rowwise_with_gw_hp") == 0)
        return nib__recipe_fail(
            json, NIB_UNSUPPORTED, err,
            "rowwise_with_gw_hp computes weight gradients in high precision, which fp8dq cannot "
            "do; use rowwise");
    return nib__recipe_fail(json, NIB_BAD_INPUT, err,
                            "torchtitan's recipe_name \"%s\" is unknown%s", name,
                            nib__recipe_suggest(r, name, "names", names, COUNT(names)));
}

/* What a pass over the object collects besides rules. */
typedef struct own_form {
    unsigned seen;
    nib_scheme scheme; /* recipe_name */
    const char *recipe;
    nib_rule rest; /* else */
    size_t fqns;
} own_form;

static nib_status handle_unknown_key(nib_recipe *r, nib_json *json, nib_err *err)
{
    const char *key = nib__recipe_string(r, json);
    if (key == NULL)
        return nib__json_status(json, err);
    if (find_name(json, torchtitan_only, COUNT(torchtitan_only)) < COUNT(torchtitan_only)) {
        NIB_TRY(nib__recipe_add_setting(r, err,
                                        &(nib_ledger_setting){.code = "recipe",
                                                              .name = key,
                                                              .relation = NIB_SETTING_EQUIVALENT},
                                        "it only affects torchtitan's own kernels"));
        (void)nib__json_skip(json);
        return NIB_OK;
    }
    return nib__recipe_fail(json, NIB_BAD_INPUT, err, "a recipe has no key \"%s\"%s", key,
                            nib__recipe_suggest(r, key, "keys", keys, COUNT(keys)));
}

static nib_status read_member(nib_recipe *r, nib_json *json, unsigned key, own_form *form,
                              nib_err *err)
{
    int64_t schema;
    size_t count;
    switch (key) {
    case K_SCHEMA:
        if (!nib__json_read_int64(json, 0, INT64_MAX, &schema))
            return nib__json_status(json, err);
        if (schema != 1)
            return nib__recipe_fail(json, NIB_UNSUPPORTED, err,
                                    "schema %lld is not supported; this version reads schema 1",
                                    (long long)schema);
        return NIB_OK;
    case K_RULES: return read_rules(r, json, err);
    case K_ELSE: return read_scheme(r, json, &form->rest, err);
    case K_RECIPE:
        form->recipe = nib__json_expect(json, NIB_JSON_STRING) ? nib__recipe_string(r, json) : NULL;
        return form->recipe == NULL ? nib__json_status(json, err) : NIB_OK;
    case K_RECIPE_NAME: return read_torchtitan_scheme(r, json, &form->scheme, err);
    case K_METHOD: return read_method(r, json, &r->method, err);
    case K_FQNS: return read_list(r, json, key, "fqns", &form->scheme, &form->fqns, err);
    case K_SKIP: return read_list(r, json, key, "skip", NULL, &count, err);
    case K_ONLY: return read_list(r, json, key, "only", NULL, &count, err);
    default: return read_list(r, json, key, "filter_fqns", NULL, &count, err);
    }
}

/* Reads the members in `wanted` of the object at `json`, a copy, in which find_form found a key.
 * The first pass checks all keys. */
static nib_status read_pass(nib_recipe *r, nib_json json, unsigned wanted, own_form *form,
                            nib_err *err)
{
    const bool first = form->seen == 0;
    (void)nib__json_next(&json);
    while (nib__json_next(&json) == NIB_JSON_KEY) {
        const size_t which = find_name(&json, keys, COUNT(keys));
        if (which == COUNT(keys) && first) {
            NIB_TRY(handle_unknown_key(r, &json, err));
            continue;
        }
        const unsigned key = which < COUNT(keys) ? 1U << which : 0;
        if (first)
            form->seen |= key;
        if ((key & wanted) != 0)
            NIB_TRY(read_member(r, &json, key, form, err));
        else
            (void)nib__json_skip(&json);
    }
    return NIB_OK;
}

static nib_status add_named_from_file(nib_recipe *r, nib_json *json, const char *name, nib_err *err)
{
    nib_err inner = {0};
    const nib_status status = nib__recipe_add_named(r, name, &inner);
    if (status == NIB_OK)
        return NIB_OK;
    return nib__recipe_fail(json, status == NIB_USAGE ? NIB_BAD_INPUT : status, err, "%s",
                            inner.text);
}

/* Adds the last rule, for the layers that no other rule matches. */
static nib_status add_rest(nib_recipe *r, nib_json *json, own_form *form, nib_err *err)
{
    nib_rule rest = {.match = NIB_MATCH_ALL, .reach = NIB_REACH_LINEAR};
    if ((form->seen & K_RECIPE) != 0)
        return add_named_from_file(r, json, form->recipe, err);
    if ((form->seen & K_RECIPE_NAME) != 0) {
        const unsigned filters = K_FILTER | K_FQNS;
        if (form->scheme.code == NIB_CODE_MX8 &&
            (form->seen & filters) == 0) /* torchtitan's default filter */
            NIB_TRY(nib__recipe_add_rule(r,
                                         &(nib_rule){.match = NIB_MATCH_ALL,
                                                     .reach = NIB_REACH_HEAD,
                                                     .keep = true,
                                                     .words = "mxfp8 keeps the output layer"},
                                         err));
        rest.scheme = form->scheme;
        rest.keep = form->fqns > 0;
        rest.words = rest.keep ? "not named by fqns" : "recipe_name";
        return nib__recipe_add_rule(r, &rest, err);
    }
    rest.keep = (form->seen & K_ELSE) == 0 || form->rest.keep;
    rest.scheme = form->rest.scheme;
    rest.weight_only = form->rest.weight_only;
    if (rest.weight_only)
        rest.reach = NIB_REACH_ANY;
    rest.words = "else";
    return nib__recipe_add_rule(r, &rest, err);
}

static nib_status read_own(nib_recipe *r, nib_json *json, nib_err *err)
{
    own_form form = {0};
    NIB_TRY(read_pass(r, *json, K_SCHEMA | K_SKIP | K_ONLY | K_FILTER | K_RECIPE_NAME | K_METHOD,
                      &form, err));
    r->has_method = (form.seen & K_METHOD) != 0;
    const unsigned ends = form.seen & (K_ELSE | K_RECIPE | K_RECIPE_NAME);
    if ((ends & (ends - 1)) != 0)
        return nib__recipe_fail(
            json, NIB_BAD_INPUT, err,
            "\"else\", \"recipe\" and \"recipe_name\" all set the scheme of the other layers; "
            "keep one");
    if ((form.seen & K_FQNS) != 0 && (form.seen & K_RECIPE_NAME) == 0)
        return nib__recipe_fail(json, NIB_BAD_INPUT, err,
                                "\"fqns\" needs torchtitan's \"recipe_name\"");
    if ((form.seen & (K_RULES | K_ELSE | K_RECIPE | K_RECIPE_NAME)) == 0)
        return nib__recipe_fail(
            json, NIB_BAD_INPUT, err,
            "the recipe asks for nothing: give \"rules\", \"else\", \"recipe\" or \"recipe_name\"");
    NIB_TRY(read_pass(r, *json, K_FQNS | K_RULES | K_ELSE | K_RECIPE, &form, err));
    return add_rest(r, json, &form, err);
}

/* ---- keys given twice ---- */

typedef struct written_key {
    const char *at; /* the text between its quotes */
    size_t size, object;
} written_key;

static int by_object_and_text(const void *a, const void *b)
{
    const written_key *x = a, *y = b;
    if (x->object != y->object)
        return x->object < y->object ? -1 : 1;
    if (x->size != y->size)
        return x->size < y->size ? -1 : 1;
    const int order = memcmp(x->at, y->at, x->size);
    return order != 0 ? order : x->at < y->at ? -1 : 1;
}

/* Lists the keys of every object of the document. */
static nib_status gather_keys(nib_recipe *r, nib_json json, written_key **keys_out, size_t *count,
                              nib_err *err)
{
    size_t open[NIB_JSON_DEPTH + 1] = {0}, objects = 0, capacity = 0;
    void *list = NULL;
    *count = 0;
    while (nib__json_next(&json) != NIB_JSON_END) {
        if (json.event == NIB_JSON_ERROR) {
            nib__release(&r->allocator, list);
            return nib__json_status(&json, err);
        }
        if (json.event == NIB_JSON_OBJECT)
            open[json.depth] = ++objects;
        if (json.event != NIB_JSON_KEY)
            continue;
        if (!nib__reserve(&r->allocator, &list, &capacity, *count + 1, sizeof **keys_out)) {
            nib__release(&r->allocator, list);
            return nib__fail_memory(err, (*count + 1) * sizeof **keys_out, "the keys");
        }
        ((written_key *)list)[(*count)++] =
            (written_key){json.token, json.token_size, open[json.depth]};
    }
    *keys_out = list;
    return NIB_OK;
}

/* Checks the whole document before any of it takes effect: it is JSON, so that later every value
 * ends and can be skipped, and no object has a key twice, where readers disagree on which value
 * counts. */
static nib_status check_document(nib_recipe *r, const nib_json *json, nib_err *err)
{
    written_key *found = NULL;
    size_t count;
    nib_json place = *json;
    char shown[64];
    NIB_TRY(gather_keys(r, *json, &found, &count, err));
    if (count > 1)
        qsort(found, count, sizeof *found, by_object_and_text);
    const written_key *twice = NULL;
    for (size_t i = 1; i < count; i++)
        if (found[i].object == found[i - 1].object && found[i].size == found[i - 1].size &&
            memcmp(found[i].at, found[i - 1].at, found[i].size) == 0 &&
            (twice == NULL || found[i].at < twice->at))
            twice = &found[i];
    nib_status status = NIB_OK;
    if (twice != NULL) {
        place.from = twice->at - 1;
        status = nib__recipe_fail(&place, NIB_BAD_INPUT, err, "\"%s\" is given twice",
                                  nib__escape_name(shown, sizeof shown, twice->at, twice->size));
    }
    nib__release(&r->allocator, found);
    return status;
}

/* ---- which form ---- */

typedef enum json_form { FORM_UNKNOWN, FORM_OWN, FORM_TORCHAO, FORM_HF, FORM_TORCHCHAT } json_form;

static json_form form_of_key(const nib_json *json)
{
    static const char *const torchchat[] = {"embedding", "precision", "executor"};
    static const char *const hf[] = {"quant_type", "quant_method"};
    if (find_name(json, keys, COUNT(keys)) < COUNT(keys))
        return FORM_OWN;
    if (nib__json_is(json, "_type") || nib__json_is(json, "_data"))
        return FORM_TORCHAO;
    if (find_name(json, hf, COUNT(hf)) < COUNT(hf))
        return FORM_HF;
    if (find_name(json, torchchat, COUNT(torchchat)) < COUNT(torchchat))
        return FORM_TORCHCHAT;
    const bool colon = json->token_size > 0 && memchr(json->token, ':', json->token_size) != NULL;
    return colon ? FORM_TORCHCHAT : FORM_UNKNOWN;
}

/* Finds the form of the object at *json, and steps into the one section that wraps it. */
static nib_status find_form(nib_json *json, json_form *form, nib_err *err)
{
    for (int deep = 0; deep < SECTIONS_DEEP; deep++) {
        nib_json scan = *json, inside = *json;
        size_t section = COUNT(sections);
        *form = FORM_UNKNOWN;
        if (!nib__json_expect(&scan, NIB_JSON_OBJECT))
            return nib__json_status(&scan, err);
        while (nib__json_next(&scan) == NIB_JSON_KEY) {
            if (*form == FORM_UNKNOWN)
                *form = form_of_key(&scan);
            const size_t which = find_name(&scan, sections, COUNT(sections));
            if (which < COUNT(sections) && section < COUNT(sections))
                return nib__recipe_fail(
                    &scan, NIB_BAD_INPUT, err,
                    "\"%s\" and \"%s\" can each hold a recipe; keep one of them", sections[section],
                    sections[which]);
            if (which < COUNT(sections)) {
                section = which;
                inside = scan;
            }
            (void)nib__json_skip(&scan);
        }
        if (*form != FORM_UNKNOWN || section == COUNT(sections))
            break;
        *json = inside;
    }
    if (*form == FORM_UNKNOWN)
        return nib__recipe_fail(
            json, NIB_BAD_INPUT, err,
            "this is not a recipe: Nibble's form has \"rules\" or \"recipe\", torchao's \"_type\" "
            "or \"quant_type\", torchchat's keys such as \"linear:int8\"");
    return NIB_OK;
}

nib_status nib__recipe_read_json(nib_recipe *r, const char *name, const char *text, size_t size,
                                 nib_err *err)
{
    nib_json json;
    json_form form;
    const nib_json_limits limits = {.events = EVENTS_MAX};
    nib__json_init(&json, name, text, size, &limits);
    NIB_TRY(check_document(r, &json, err));
    NIB_TRY(find_form(&json, &form, err));
    switch (form) {
    case FORM_TORCHCHAT: NIB_TRY(nib__recipe_read_torchchat(r, &json, err)); break;
    case FORM_TORCHAO: NIB_TRY(nib__recipe_read_torchao(r, &json, false, err)); break;
    case FORM_HF: NIB_TRY(nib__recipe_read_torchao(r, &json, true, err)); break;
    default: NIB_TRY(read_own(r, &json, err));
    }
    return nib__recipe_add_tail(r, err);
}
