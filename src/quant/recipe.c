/* SPDX-License-Identifier: Apache-2.0
 *
 * The rules of a recipe: adding them, parsing a recipe's name, checking patterns against the
 * layers, resolving a layer. recipe_json.c, recipe_torchchat.c and recipe_torchao.c read the JSON
 * forms.
 */
#include "recipe_rules.h"

#include "alias.h"
#include "file.h"

#include <stdarg.h>
#include <stdio.h>

enum { TEXT_MAX_BYTES = 512, NAME_MAX_BYTES = 1024, FILE_MAX = 16 << 20, ARENA_MAX = 64 << 20 };

/* ---- roles ---- */

static const char *const role_names[NIB_ROLE_COUNT] = {
    "q", "k", "v", "o", "gate", "up", "down", "router", "head", "embed", "other"};

const char *nib__role_name(nib_role role)
{
    return (size_t)role < NIB_ROLE_COUNT ? role_names[role] : "other";
}

/* ---- building ---- */

/* Messages quote files, whose control characters must not reach a terminal. */
static void make_printable(char *text)
{
    for (unsigned char *c = (unsigned char *)text; *c != 0; c++) {
        if (*c < 0x20 || *c == 0x7f)
            *c = '?';
        else if (*c == 0xc2 && c[1] >= 0x80 && c[1] < 0xa0) /* U+0080 to U+009F */
            *c = c[1] = '?';
    }
}

const char *nib__recipe_format(nib_recipe *r, const char *format, ...)
{
    char text[TEXT_MAX_BYTES];
    va_list args;
    va_start(args, format);
    nib__vformat(text, sizeof text, format, args);
    va_end(args);
    make_printable(text);
    return nib__arena_copy(&r->arena, text, strlen(text));
}

nib_status nib__recipe_add_setting(nib_recipe *r, nib_err *err, const nib_ledger_setting *setting,
                                   const char *format, ...)
{
    char text[TEXT_MAX_BYTES];
    va_list args;
    va_start(args, format);
    nib__vformat(text, sizeof text, format, args);
    va_end(args);
    make_printable(text);
    nib_ledger_setting by_recipe = *setting;
    if (setting->by == NIB_BY_OPTION && strncmp(setting->name, "--", 2) != 0)
        by_recipe.by = NIB_BY_RECIPE;
    nib__ledger_add_setting(&r->ledger, &by_recipe, "%s", text);
    return r->ledger.failed ? nib__fail_memory(err, strlen(text), "the recipe's ledger") : NIB_OK;
}

nib_status nib__recipe_add_rule(nib_recipe *r, const nib_rule *rule, nib_err *err)
{
    void *rules = r->rules;
    if (rule->words == NULL ||
        !nib__reserve(&r->allocator, &rules, &r->rule_capacity, r->rule_count + 1, sizeof *rule))
        return nib__fail_memory(err, sizeof *rule, "a rule");
    r->rules = rules;
    nib_rule *added = &r->rules[r->rule_count];
    *added = *rule;
    if (rule->match == NIB_MATCH_NAME || rule->match == NIB_MATCH_MODULE ||
        rule->match == NIB_MATCH_PARAMETER) {
        NIB_TRY(nib__pattern_make(&added->pattern, rule->text, &r->budget, &r->allocator, err));
        added->exact = strncmp(rule->text, "re:", 3) != 0 && strpbrk(rule->text, "*?") == NULL;
    }
    r->rule_count++;
    return NIB_OK;
}

nib_status nib__recipe_add_only(nib_recipe *r, const char *text, const char *by, nib_err *err)
{
    void *only = r->only;
    if (!nib__reserve(&r->allocator, &only, &r->only_capacity, r->only_count + 1, sizeof *r->only))
        return nib__fail_memory(err, sizeof *r->only, "a pattern");
    r->only = only;
    nib_only *added = &r->only[r->only_count];
    added->by = by;
    added->text = nib__arena_copy(&r->arena, text, strlen(text));
    if (added->text == NULL)
        return nib__fail_memory(err, strlen(text), "a pattern");
    NIB_TRY(nib__pattern_make(&added->pattern, text, &r->budget, &r->allocator, err));
    r->only_count++;
    return NIB_OK;
}

nib_status nib__recipe_add_tail(nib_recipe *r, nib_err *err)
{
    NIB_TRY(nib__recipe_add_rule(r,
                                 &(nib_rule){.match = NIB_MATCH_ALL,
                                             .reach = NIB_REACH_TIED,
                                             .keep = true,
                                             .words = "a tied output is kept without +head"},
                                 err));
    NIB_TRY(nib__recipe_add_rule(r,
                                 &(nib_rule){.match = NIB_MATCH_ALL,
                                             .reach = NIB_REACH_ROUTER,
                                             .keep = true,
                                             .words = "a router is kept without +router"},
                                 err));
    return nib__recipe_add_rule(r,
                                &(nib_rule){.match = NIB_MATCH_ALL,
                                            .reach = NIB_REACH_EMBED,
                                            .keep = true,
                                            .words = "the embedding is kept without +embed"},
                                err);
}

/* An embedding is looked up, not multiplied, so only the weight's half of a scheme applies. */
static nib_scheme without_activations(nib_scheme s)
{
    if (s.code == NIB_CODE_MX8)
        return s; /* its name covers both */
    s.act = NIB_ACT_FLOAT;
    s.act_symmetric = false;
    return s;
}

/* Parses "+head", "+embed" or "+router", with or without "-SCHEME". */
static nib_status add_extra(nib_recipe *r, const char *part, size_t size, const nib_scheme *own,
                            unsigned seen, unsigned *reach, nib_err *err)
{
    static const struct {
        const char *word;
        unsigned reach;
    } extras[] = {{"head", NIB_REACH_HEAD | NIB_REACH_TIED},
                  {"embed", NIB_REACH_EMBED},
                  {"router", NIB_REACH_ROUTER}};
    for (size_t i = 0; i < COUNT(extras); i++) {
        const size_t length = strlen(extras[i].word);
        if (size < length || memcmp(part, extras[i].word, length) != 0 ||
            (size > length && part[length] != '-'))
            continue;
        if (seen & extras[i].reach)
            return nib__fail(err, NIB_USAGE, "recipe \"%s\": +%s is given twice", r->text,
                             extras[i].word);
        nib_rule rule = {.match = NIB_MATCH_ALL, .reach = extras[i].reach, .scheme = *own};
        if (size > length)
            NIB_TRY(nib__scheme_parse(&rule.scheme, part + length + 1, size - length - 1, err));
        rule.words = nib__recipe_format(r, "+%s", extras[i].word);
        *reach = rule.reach;
        return nib__recipe_add_rule(r, &rule, err);
    }
    char shown[64];
    return nib__fail(err, NIB_USAGE,
                     "recipe \"%s\": +%s is unknown; +head, +embed and +router can be added",
                     r->text, nib__escape_name(shown, sizeof shown, part, size));
}

nib_status nib__recipe_add_named(nib_recipe *r, const char *name, nib_err *err)
{
    const size_t base = strcspn(name, "+");
    unsigned seen = 0;
    nib_scheme own;
    if (strcmp(name, NIB_WEIGHT_ONLY) == 0)
        return nib__recipe_add_rule(r,
                                    &(nib_rule){.match = NIB_MATCH_ALL,
                                                .reach = NIB_REACH_ANY,
                                                .keep = true,
                                                .weight_only = true,
                                                .words = NIB_WEIGHT_ONLY},
                                    err);
    NIB_TRY(nib__scheme_parse(&own, name, base, err));
    for (const char *part = name + base; *part == '+';) {
        part++;
        const size_t size = strcspn(part, "+");
        unsigned reach = 0;
        NIB_TRY(add_extra(r, part, size, &own, seen, &reach, err));
        seen |= reach;
        part += size;
    }
    if (own.code == NIB_CODE_MX8)
        NIB_TRY(nib__recipe_add_rule(r,
                                     &(nib_rule){.match = NIB_MATCH_ALL,
                                                 .reach = NIB_REACH_HEAD,
                                                 .keep = true,
                                                 .words = "mxfp8 keeps the output layer"},
                                     err));
    return nib__recipe_add_rule(
        r,
        &(nib_rule){
            .match = NIB_MATCH_ALL, .reach = NIB_REACH_LINEAR, .scheme = own, .words = "recipe"},
        err);
}

const char *nib__recipe_suggest(nib_recipe *r, const char *wanted, const char *kind,
                                const char *const *names, size_t count)
{
    nib_text near;
    nib__text_init(&near, &r->allocator);
    nib__near_names(&near, wanted, names, count);
    const char *said;
    if (near.size > 0 && !near.failed) {
        said = nib__recipe_format(r, "; did you mean %s", near.at);
    } else {
        nib__text_clear(&near);
        for (size_t i = 0; i < count && i < 24; i++)
            nib__text_format(&near, "%s%s", i == 0 ? "" : ", ", names[i]);
        said = count == 0 || near.failed ? ""
                                         : nib__recipe_format(r, "; the %s are %s", kind, near.at);
    }
    nib__text_free(&near);
    return said == NULL ? "" : said;
}

nib_status nib__recipe_fail(nib_json *json, nib_status status, nib_err *err, const char *format,
                            ...)
{
    char text[sizeof json->err.text];
    va_list args;
    va_start(args, format);
    nib__vformat(text, sizeof text, format, args);
    va_end(args);
    make_printable(text);
    nib__json_fail(json, "%s", text);
    (void)nib__json_status(json, err);
    if (err != NULL)
        err->status = status;
    return status;
}

/* ---- matching ---- */

static unsigned reach_of(const nib_recipe_layer *layer)
{
    if (layer->role == NIB_ROLE_EMBED)
        return NIB_REACH_EMBED;
    if (layer->role == NIB_ROLE_ROUTER)
        return NIB_REACH_ROUTER;
    if (layer->role != NIB_ROLE_HEAD)
        return NIB_REACH_BODY;
    return layer->tied ? NIB_REACH_TIED : NIB_REACH_HEAD;
}

/* Matches one spelling of a module, alone and with ".weight" appended. */
static bool spelling_matches(const nib_pattern *pattern, nib_match match, const char *name,
                             nib_err *err)
{
    char parameter[NAME_MAX_BYTES + 8];
    if (match != NIB_MATCH_PARAMETER && nib__pattern_matches(pattern, name, err))
        return true;
    if (match == NIB_MATCH_MODULE || strlen(name) > NAME_MAX_BYTES)
        return false;
    snprintf(parameter, sizeof parameter, "%s.weight", name);
    return nib__pattern_matches(pattern, parameter, err);
}

static bool pattern_matches(const nib_pattern *pattern, nib_match match, const char *name,
                            nib_err *err)
{
    char meta[NAME_MAX_BYTES];
    return spelling_matches(pattern, match, name, err) ||
           (nib__alias_to_meta(meta, sizeof meta, name) &&
            spelling_matches(pattern, match, meta, err));
}

bool nib__layer_matches(const nib_pattern *pattern, const char *layer, nib_err *err)
{
    return pattern_matches(pattern, NIB_MATCH_NAME, layer, err);
}

static bool rule_matches(const nib_recipe *r, const nib_rule *rule, const nib_recipe_layer *layer,
                         nib_err *err)
{
    char meta[NAME_MAX_BYTES];
    switch (rule->match) {
    case NIB_MATCH_ALL: return true;
    case NIB_MATCH_MIX: return nib__mix_matches(rule, layer, r->blocks);
    case NIB_MATCH_NAME:
    case NIB_MATCH_MODULE:
    case NIB_MATCH_PARAMETER: return pattern_matches(rule->pattern, rule->match, layer->name, err);
    case NIB_MATCH_SUBSTRING:
        return strstr(layer->name, rule->text) != NULL ||
               (nib__alias_to_meta(meta, sizeof meta, layer->name) &&
                strstr(meta, rule->text) != NULL);
    case NIB_MATCH_NONE_OF:
        for (size_t i = 0; i < r->only_count; i++)
            if (strcmp(r->only[i].by, rule->text) == 0 &&
                nib__layer_matches(r->only[i].pattern, layer->name, err))
                return false;
        return true;
    }
    return false;
}

/* The first rule that matches the layer; NULL: none. */
static const nib_rule *find_rule(const nib_recipe *recipe, const nib_recipe_layer *layer)
{
    const unsigned reach = reach_of(layer);
    for (size_t i = 0; i < recipe->rule_count; i++)
        if ((recipe->rules[i].reach & reach) != 0 &&
            rule_matches(recipe, &recipe->rules[i], layer, NULL))
            return &recipe->rules[i];
    return NULL;
}

void nib__recipe_resolve(nib_choice *out, const nib_recipe *recipe, const nib_recipe_layer *layer)
{
    const nib_rule *rule = find_rule(recipe, layer);
    *out = (nib_choice){.keep = true, .rule = "no rule matches it"};
    if (rule == NULL)
        return;
    *out = (nib_choice){.keep = rule->keep,
                        .weight_only = rule->weight_only,
                        .scale_type = rule->scale_type,
                        .method = rule->has_method ? rule->method : recipe->method,
                        .has_method = rule->has_method || recipe->has_method,
                        .rule = rule->words,
                        .hint = rule->hint,
                        .hint_text = rule->hint_text};
    if (!rule->keep)
        out->scheme =
            layer->role == NIB_ROLE_EMBED ? without_activations(rule->scheme) : rule->scheme;
}

/* ---- checking against the layers ---- */

static nib_status fail_no_match(nib_recipe *r, const nib_recipe_input *in, const char *text,
                                unsigned reach, nib_err *err)
{
    const char *what = reach == NIB_REACH_LINEAR ? "linear layer" : "layer";
    size_t count = 0;
    const char **names = nib__calloc(&r->allocator, in->count, 2 * sizeof *names);
    if (names == NULL)
        return nib__fail_memory(err, in->count * 2 * sizeof *names, "layer names");
    for (size_t i = 0; i < in->count; i++) {
        char other[NAME_MAX_BYTES];
        const char *name = in->layers[i].name;
        if ((reach & reach_of(&in->layers[i])) == 0)
            continue;
        names[count++] = name;
        if (nib__alias_to_meta(other, sizeof other, name) &&
            (name = nib__recipe_format(r, "%s", other)) != NULL)
            names[count++] = name;
    }
    nib_text near;
    nib__text_init(&near, &r->allocator);
    nib__near_names(&near, text, names, count);
    char shown[160], first[160];
    nib__escape_name(shown, sizeof shown, text, strlen(text));
    if (near.size > 0 && !near.failed)
        (void)nib__fail(err, NIB_USAGE, "pattern \"%s\" matches no %s; did you mean %s", shown,
                        what, near.at);
    else
        (void)nib__fail(
            err, NIB_USAGE, "pattern \"%s\" matches no %s%s%s", shown, what,
            count > 0 ? "; names look like " : "",
            count > 0 ? nib__escape_name(first, sizeof first, names[0], strlen(names[0])) : "");
    nib__text_free(&near);
    nib__release(&r->allocator, names);
    return NIB_USAGE;
}

/* Bits of reach of all layers that a rule matches, also outside its own reach. */
static nib_status find_matched_reach(const nib_recipe *r, const nib_rule *rule,
                                     const nib_recipe_input *in, unsigned *out, nib_err *err)
{
    *out = 0;
    for (size_t i = 0; i < in->count; i++) {
        nib_err costly = {0};
        if (rule_matches(r, rule, &in->layers[i], &costly))
            *out |= reach_of(&in->layers[i]);
        if (costly.status != NIB_OK) {
            if (err != NULL)
                *err = costly;
            return costly.status;
        }
    }
    return NIB_OK;
}

static nib_status check_rules(nib_recipe *r, const nib_recipe_input *in, nib_err *err)
{
    bool *hit = nib__calloc(&r->allocator, (uint64_t)r->sources + 1, sizeof *hit);
    if (hit == NULL)
        return nib__fail_memory(err, (uint64_t)r->sources + 1, "patterns");
    nib_status status = NIB_OK;
    for (size_t i = 0; i < r->rule_count && status == NIB_OK; i++) {
        nib_rule *rule = &r->rules[i];
        const unsigned reach = rule->reach;
        unsigned matched;
        status = find_matched_reach(r, rule, in, &matched, err);
        if (rule->pattern != NULL && !rule->exact && !rule->keep &&
            (matched & NIB_REACH_LINEAR) != 0)
            rule->reach &= NIB_REACH_LINEAR;
        /* A rule that may miss changes nothing, so a match out of reach counts as kept. */
        hit[rule->source] |= (matched & reach) != 0 || (rule->may_miss && matched != 0);
    }
    for (size_t i = 0; i < r->rule_count && status == NIB_OK; i++) {
        const nib_rule *rule = &r->rules[i];
        if (rule->source == 0 || hit[rule->source])
            continue;
        hit[rule->source] = true; /* report once */
        if (rule->may_miss)
            status = nib__recipe_add_setting(r, err,
                                             &(nib_ledger_setting){.code = "filter",
                                                                   .name = rule->words,
                                                                   .relation = NIB_SETTING_NONE},
                                             "it matches no layer");
        else
            status = fail_no_match(r, in, rule->text, rule->reach, err);
    }
    nib__release(&r->allocator, hit);
    return status;
}

static nib_status check_only(nib_recipe *r, const nib_recipe_input *in, nib_err *err)
{
    for (size_t p = 0; p < r->only_count; p++) {
        bool hit = false;
        for (size_t i = 0; i < in->count && !hit; i++) {
            nib_err costly = {0};
            hit = nib__layer_matches(r->only[p].pattern, in->layers[i].name, &costly);
            if (costly.status != NIB_OK) {
                if (err != NULL)
                    *err = costly;
                return costly.status;
            }
        }
        if (!hit)
            return fail_no_match(r, in, r->only[p].text, NIB_REACH_ANY, err);
    }
    return NIB_OK;
}

static bool quantizes_layer(const nib_rule *rule)
{
    return rule != NULL && (!rule->keep || rule->weight_only);
}

/* Reports an --only whose layers are all kept for another reason, such as a tied output. */
static nib_status report_dead_only(nib_recipe *r, const nib_recipe_input *in, const nib_only *only,
                                   nib_err *err)
{
    const nib_rule *keeper = NULL;
    for (size_t i = 0; i < in->count; i++) {
        if (!nib__layer_matches(only->pattern, in->layers[i].name, NULL))
            continue;
        const nib_rule *rule = find_rule(r, &in->layers[i]);
        if (quantizes_layer(rule))
            return NIB_OK;
        keeper = rule;
    }
    return nib__recipe_add_setting(
        r, err,
        &(nib_ledger_setting){
            .code = "filter", .name = only->by, .asked = only->text, .relation = NIB_SETTING_NONE},
        "it quantizes nothing: %s", keeper != NULL ? keeper->words : "no rule matches its layers");
}

/* Reports what the user wrote without effect: a rule whose layers all match an earlier one, or a
 * recipe that keeps every layer. */
static nib_status report_dead(nib_recipe *r, const nib_recipe_input *in, nib_err *err)
{
    bool *alive = nib__calloc(&r->allocator, (uint64_t)r->sources + 1, sizeof *alive),
         quantizes = false;
    if (alive == NULL)
        return nib__fail_memory(err, (uint64_t)r->sources + 1, "patterns");
    for (size_t i = 0; i < in->count; i++) {
        const nib_rule *rule = find_rule(r, &in->layers[i]);
        alive[rule == NULL ? 0 : rule->source] = true;
        quantizes = quantizes || quantizes_layer(rule);
    }
    nib_status status = NIB_OK;
    bool asked = false;
    for (size_t i = 0; i < r->rule_count; i++)
        asked = asked || !r->rules[i].keep;
    alive[0] = true; /* 0 is not from the user */
    for (size_t i = 0; i < r->rule_count && status == NIB_OK; i++) {
        const nib_rule *rule = &r->rules[i];
        if (alive[rule->source] || rule->may_miss)
            continue;
        alive[rule->source] = true; /* report once */
        status = nib__recipe_add_setting(r, err,
                                         &(nib_ledger_setting){.code = "filter",
                                                               .name = rule->words,
                                                               .relation = NIB_SETTING_NONE},
                                         "earlier rules decide every layer that it matches");
    }
    for (size_t p = 0; p < r->only_count && status == NIB_OK && quantizes; p++)
        status = report_dead_only(r, in, &r->only[p], err);
    if (status == NIB_OK && asked && !quantizes)
        status = nib__recipe_add_setting(
            r, err,
            &(nib_ledger_setting){.code = "recipe",
                                  .name = in->by == NIB_BY_OPTION ? "--recipe" : "recipe",
                                  .asked = r->text,
                                  .by = in->by,
                                  .relation = NIB_SETTING_NONE},
            "it quantizes no layer: filters and rules keep them all");
    nib__release(&r->allocator, alive);
    return status;
}

/* Untying needs either tensor to be quantized; otherwise reports that they stay tied. */
static nib_status report_tied(nib_recipe *r, const nib_recipe_input *in, nib_err *err)
{
    for (size_t i = 0; i < in->count && r->untie; i++) {
        if (in->layers[i].role == NIB_ROLE_EMBED && quantizes_layer(find_rule(r, &in->layers[i])))
            return NIB_OK;
        if (in->layers[i].role != NIB_ROLE_HEAD || !in->layers[i].tied ||
            quantizes_layer(find_rule(r, &in->layers[i])))
            continue;
        return nib__recipe_add_setting(
            r, err,
            &(nib_ledger_setting){.code = "recipe",
                                  .name = "untie_embedding_weights",
                                  .asked = "true",
                                  .relation = NIB_SETTING_NONE},
            "%s and the embedding stay one tensor, because neither is quantized",
            in->layers[i].name);
    }
    return NIB_OK;
}

/* ---- loading ---- */

static nib_status add_skips(nib_recipe *r, const nib_recipe_input *in, nib_err *err)
{
    for (size_t i = 0; i < in->skip.count; i++) {
        const char *text = in->skip.items[i];
        nib_rule rule = {
            .match = NIB_MATCH_NAME, .reach = NIB_REACH_ANY, .keep = true, .source = ++r->sources};
        rule.text = nib__arena_copy(&r->arena, text, strlen(text));
        rule.words = nib__recipe_format(r, "--skip %s", text);
        if (rule.text == NULL)
            return nib__fail_memory(err, strlen(text), "a pattern");
        NIB_TRY(nib__recipe_add_rule(r, &rule, err));
    }
    for (size_t i = 0; i < in->only.count; i++)
        NIB_TRY(nib__recipe_add_only(r, in->only.items[i], NIB_ONLY_OPTION, err));
    return NIB_OK;
}

/* Adds the rules for --only and "only": after --skip and before every other rule, even if a file
 * adds the patterns. */
static nib_status add_only_rules(nib_recipe *r, nib_err *err)
{
    static const struct {
        const char *by, *words;
    } lists[] = {{NIB_ONLY_OPTION, "not named by --only"},
                 {NIB_ONLY_FILE, "not named by \"only\""}};
    for (size_t i = 0; i < COUNT(lists); i++)
        NIB_TRY(nib__recipe_add_rule(r,
                                     &(nib_rule){.match = NIB_MATCH_NONE_OF,
                                                 .reach = 0, /* until the list has patterns */
                                                 .keep = true,
                                                 .text = lists[i].by,
                                                 .words = lists[i].words},
                                     err));
    return NIB_OK;
}

static void enable_only_rules(nib_recipe *r)
{
    for (size_t i = 0; i < r->rule_count; i++)
        for (size_t p = 0; p < r->only_count && r->rules[i].match == NIB_MATCH_NONE_OF; p++)
            if (strcmp(r->only[p].by, r->rules[i].text) == 0)
                r->rules[i].reach = NIB_REACH_ANY;
}

static nib_status read_file(nib_recipe *r, const char *path, nib_err *err)
{
    char *text;
    size_t size;
    NIB_TRY(nib__file_read(&text, &size, path, FILE_MAX, &r->allocator, err));
    nib_status status = nib__recipe_read_json(r, path, text, size, err);
    r->source = nib__arena_copy(&r->arena, text, size);
    if (status == NIB_OK && r->source == NULL)
        status = nib__fail_memory(err, size, "a recipe");
    nib__release(&r->allocator, text);
    return status;
}

static nib_status read_recipe(nib_recipe *r, const nib_recipe_input *in, nib_err *err)
{
    const char *text = in->text;
    const char *first = text + strspn(text, " \t\r\n");
    const size_t size = strlen(text);
    r->source = nib__arena_copy(&r->arena, text, size);
    if (r->source == NULL)
        return nib__fail_memory(err, size, "a recipe");
    if (*first == '{' || *first == '[')
        return nib__recipe_read_json(r, "recipe", text, size, err);
    if (strchr(text, '/') != NULL || (size > 5 && strcmp(text + size - 5, ".json") == 0))
        return read_file(r, text, err);
    if (nib__recipe_is_mix(text))
        NIB_TRY(nib__recipe_add_mix(r, in, text, err));
    else
        NIB_TRY(nib__recipe_add_named(r, text, err));
    return nib__recipe_add_tail(r, err);
}

static nib_status load_rules(nib_recipe *r, const nib_recipe_input *in, nib_err *err)
{
    r->text = in->text == NULL ? "as stored" : nib__recipe_format(r, "%s", in->text);
    if (r->text == NULL)
        return nib__fail_memory(err, TEXT_MAX_BYTES, "a recipe");
    NIB_TRY(add_skips(r, in, err));
    NIB_TRY(add_only_rules(r, err));
    if (in->text == NULL)
        NIB_TRY(nib__recipe_add_rule(
            r,
            &(nib_rule){
                .match = NIB_MATCH_ALL, .reach = NIB_REACH_ANY, .keep = true, .words = "as stored"},
            err));
    else
        NIB_TRY(read_recipe(r, in, err));
    enable_only_rules(r);
    if (in->count == 0)
        return NIB_OK;
    NIB_TRY(check_rules(r, in, err));
    NIB_TRY(check_only(r, in, err));
    NIB_TRY(report_tied(r, in, err));
    return report_dead(r, in, err);
}

nib_status nib__recipe_load(nib_recipe **out, const nib_recipe_input *input, const nib_allocator *a,
                            nib_err *err)
{
    nib_recipe *r = nib__calloc(a, 1, sizeof *r);
    if (r == NULL)
        return nib__fail_memory(err, sizeof *r, "a recipe");
    r->allocator = *a;
    nib__arena_init(&r->arena, &r->allocator, ARENA_MAX);
    nib__ledger_init(&r->ledger, &r->allocator);
    const nib_status status = load_rules(r, input, err);
    if (status != NIB_OK) {
        nib__recipe_free(r);
        return status;
    }
    *out = r;
    return NIB_OK;
}

void nib__recipe_free(nib_recipe *recipe)
{
    if (recipe == NULL)
        return;
    for (size_t i = 0; i < recipe->rule_count; i++)
        nib__pattern_free(recipe->rules[i].pattern);
    for (size_t i = 0; i < recipe->only_count; i++)
        nib__pattern_free(recipe->only[i].pattern);
    const nib_allocator a = recipe->allocator;
    nib__release(&a, recipe->rules);
    nib__release(&a, recipe->only);
    nib__ledger_free(&recipe->ledger);
    nib__arena_free(&recipe->arena);
    nib__release(&a, recipe);
}

const char *nib__recipe_text(const nib_recipe *recipe) { return recipe->text; }
const char *nib__recipe_source(const nib_recipe *recipe) { return recipe->source; }
const char *nib__recipe_dtype(const nib_recipe *recipe) { return recipe->dtype; }
const char *nib__recipe_device(const nib_recipe *recipe) { return recipe->device; }
const nib_ledger *nib__recipe_ledger(const nib_recipe *recipe) { return &recipe->ledger; }

bool nib__recipe_needs_calibration(const nib_recipe *recipe)
{
    for (size_t i = 0; i < recipe->rule_count; i++)
        if (!recipe->rules[i].keep && recipe->rules[i].scheme.act == NIB_ACT_I8_STATIC)
            return true;
    return false;
}
