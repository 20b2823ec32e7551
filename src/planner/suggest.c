/* SPDX-License-Identifier: Apache-2.0
 *
 * Advice: the layer planned again with one change. Only changes that then run as asked are offered,
 * with their predicted speed, the fastest first.
 */
#include "variant.h"

#include <math.h>
#include <stdio.h>

enum { OFFERS_MAX = 4 };

/* A plan with one change. */
typedef struct change {
    const char *code; /* of the advice */
    char option[96];
    nib_layer layer;
    nib_scheme scheme;
    nib_type dtype;
    double seconds;
    const char *kernel;
} change;

typedef struct search {
    const nib_layer *layer;
    const nib_machine *machine;
    const nib_policy *policy;
    double now; /* seconds of one token in the current plan; NaN: denied */
    int64_t m;
    change found[OFFERS_MAX]; /* ascending in seconds */
    int count;
} search;

/* True if the change runs as asked, without a faster row being refused, and is faster than now. */
static bool works(const search *s, change *c)
{
    nib_variant variant;
    nib_policy policy = *s->policy;
    policy.dtype = c->dtype;
    nib__variant_find(&variant, &c->layer, &c->scheme, s->machine, &policy, NULL);
    if (!variant.runs)
        return false;
    for (int i = 0; i < variant.use_count; i++)
        if (nib__variant_refused(&variant, &c->layer, &policy, i) != NULL)
            return false;
    c->seconds = nib__variant_seconds(&variant, &c->layer, &policy, s->m);
    c->kernel = variant.uses[0].kernel->name;
    return isnan(s->now) || c->seconds < 0.95 * s->now;
}

/* True if the change works, whether or not it is among the best. */
static bool try_change(search *s, change *c)
{
    if (!works(s, c))
        return false;
    int at = s->count;
    while (at > 0 && s->found[at - 1].seconds > c->seconds)
        at--;
    if (at == OFFERS_MAX)
        return true;
    const int moved = (s->count < OFFERS_MAX ? s->count : OFFERS_MAX - 1) - at;
    memmove(&s->found[at + 1], &s->found[at], (size_t)moved * sizeof s->found[0]);
    s->found[at] = *c;
    if (s->count < OFFERS_MAX)
        s->count++;
    return true;
}

static change unchanged(const search *s)
{
    change c = {.layer = *s->layer, .scheme = s->layer->asked, .dtype = s->policy->dtype};
    c.layer.hint = NIB_HINT_NONE;
    return c;
}

/* mxfp8 does not quantize the output layer unless +head asks for it. */
static const char *head_suffix(const search *s, const nib_scheme *scheme)
{
    return scheme->code == NIB_CODE_MX8 && s->layer->role == NIB_ROLE_HEAD ? "+head" : "";
}

/* Tries a scheme if a recipe has its name. */
static void try_scheme(search *s, const nib_scheme *scheme)
{
    char name[64];
    nib_scheme parsed;
    change c = unchanged(s);
    c.scheme = *scheme;
    nib__scheme_name(name, scheme);
    if (nib__scheme_parse(&parsed, name, strlen(name), NULL) != NIB_OK ||
        !nib__scheme_equal(&parsed, scheme))
        return;
    c.code = "recipe";
    snprintf(c.option, sizeof c.option, "--recipe %s%s", name, head_suffix(s, scheme));
    try_change(s, &c);
}

static void try_groups(search *s)
{
    static const int64_t groups[] = {32, 64, 128, 256, NIB_GROUP_ROW};
    const nib_code code = s->layer->asked.code;
    for (size_t i = 0; i < COUNT(groups); i++) {
        nib_scheme scheme = s->layer->asked;
        if (!nib__code_is_int(code) || scheme.group == groups[i])
            continue;
        scheme.group = groups[i];
        try_scheme(s, &scheme);
    }
}

static void try_mapping(search *s)
{
    nib_scheme scheme = s->layer->asked;
    const bool is_float = scheme.act == NIB_ACT_FLOAT && scheme.code != NIB_CODE_I8;
    if (!nib__code_is_int(scheme.code))
        return;
    scheme.symmetric = !scheme.symmetric;
    scheme.zero = scheme.symmetric ? NIB_ZERO_NONE : is_float ? NIB_ZERO_FLOAT : NIB_ZERO_INT;
    try_scheme(s, &scheme);
}

static void try_dtypes(search *s)
{
    static const nib_type types[] = {NIB_TYPE_F32, NIB_TYPE_BF16, NIB_TYPE_F16};
    for (size_t i = 0; i < COUNT(types); i++) {
        change c = unchanged(s);
        if (types[i] == c.dtype)
            continue;
        c.dtype = types[i];
        c.code = "dtype";
        snprintf(c.option, sizeof c.option, "--dtype %s", nib__type_name(types[i]));
        try_change(s, &c);
    }
}

const char *nib__suggest_recipe(nib_scheme *scheme, size_t i)
{
    static const char *const recipes[] = {"8da4w", "int4wo", "int8dq", "int8wo",
                                          "fp8dq", "fp8wo",  "mxfp8"};
    return i < COUNT(recipes) &&
                   nib__scheme_parse(scheme, recipes[i], strlen(recipes[i]), NULL) == NIB_OK
               ? recipes[i]
               : NULL;
}

static void try_recipes(search *s)
{
    nib_scheme scheme;
    for (size_t i = 0; nib__suggest_recipe(&scheme, i) != NULL; i++)
        if (!nib__scheme_equal(&scheme, &s->layer->asked))
            try_scheme(s, &scheme);
}

static void add_advice(nib_ledger *ledger, nib_ledger_layer *line, const search *s, const change *c)
{
    char then[32], now[32], bf16[32];
    const double bf16_s = nib__bf16_seconds(s->layer, s->machine, s->policy, s->m);
    nib__format_seconds(then, c->seconds);
    const char *is_now = isnan(s->now) ? "not at all" : nib__format_seconds(now, s->now);
    nib__ledger_add_advice(
        ledger, line,
        &(nib_ledger_advice){.code = c->code,
                             .option = nib__ledger_text(ledger, "%s", c->option),
                             .text = nib__ledger_text(ledger,
                                                      "%s, %s per %s predicted; now %s; in bf16 %s",
                                                      c->kernel, then, nib__policy_unit(s->policy),
                                                      is_now, nib__format_seconds(bf16, bf16_s))});
}

void nib__suggest(nib_ledger *ledger, nib_ledger_layer *line, const nib_layer *layer,
                  const nib_machine *machine, const nib_policy *policy, double now)
{
    search s = {.layer = layer, .machine = machine, .policy = policy, .now = now};
    s.m = nib__policy_m(policy);
    try_dtypes(&s);
    if (!nib__scheme_is_quantized(&layer->stored)) { /* stored codes cannot change */
        try_groups(&s);
        try_mapping(&s);
        try_recipes(&s);
    }
    for (int i = 0; i < s.count; i++)
        add_advice(ledger, line, &s, &s.found[i]);
}
