/* SPDX-License-Identifier: Apache-2.0
 *
 * RoPE in config.json. If two places differ, rope_scaling takes precedence over rope_parameters,
 * and both over the top level, as in transformers.
 */
#include "config_rope.h"

#include "arch.h"
#include "config_values.h"
#include "portable_math.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#define BETA_KEY "llama_4_scaling_beta"

enum { LIST_MAX = 1 << 15, CONTEXT_MAX = 1 << 30, GAIN_MAX = 1000, BETA_MAX = 10 };
static const double LARGE = 1e9;

static const char *const places[] = {[NIB_ROPE_SCALING] = "rope_scaling",
                                     [NIB_ROPE_PARAMETERS] = "rope_parameters",
                                     [NIB_ROPE_TOP] = "config.json itself"};

static const char *const numbers[] = {
    [NIB_ROPE_FACTOR] = "factor",         [NIB_ROPE_LOW] = "low_freq_factor",
    [NIB_ROPE_HIGH] = "high_freq_factor", [NIB_ROPE_ORIGINAL] = "original_max_position_embeddings",
    [NIB_ROPE_THETA] = "rope_theta",      [NIB_ROPE_PARTIAL] = "partial_rotary_factor",
    [NIB_ROPE_FAST] = "beta_fast",        [NIB_ROPE_SLOW] = "beta_slow",
    [NIB_ROPE_TRUNCATE] = "truncate",     [NIB_ROPE_GAIN] = "attention_factor",
    [NIB_ROPE_MSCALE] = "mscale",         [NIB_ROPE_MSCALE_ALL] = "mscale_all_dim",
    [NIB_ROPE_BETA] = BETA_KEY,           [NIB_ROPE_CONTEXT] = "max_position_embeddings"};

static const char *const lists[] = {
    [NIB_ROPE_SHORT] = "short_factor", [NIB_ROPE_LONG] = "long_factor"};

/* Numbers that each kind of scaling uses; all kinds use rope_theta and partial_rotary_factor. */
static const unsigned used[] = {
    [NIB_ROPE_PLAIN] = 0,
    [NIB_ROPE_LINEAR] = 1U << NIB_ROPE_FACTOR,
    [NIB_ROPE_LLAMA3] =
        1U << NIB_ROPE_FACTOR | 1U << NIB_ROPE_LOW | 1U << NIB_ROPE_HIGH | 1U << NIB_ROPE_ORIGINAL,
    [NIB_ROPE_YARN] = 1U << NIB_ROPE_FACTOR | 1U << NIB_ROPE_ORIGINAL | 1U << NIB_ROPE_FAST |
                      1U << NIB_ROPE_SLOW | 1U << NIB_ROPE_TRUNCATE | 1U << NIB_ROPE_GAIN |
                      1U << NIB_ROPE_MSCALE | 1U << NIB_ROPE_MSCALE_ALL,
    [NIB_ROPE_LONGROPE] = 1U << NIB_ROPE_FACTOR | 1U << NIB_ROPE_ORIGINAL | 1U << NIB_ROPE_GAIN,
    [NIB_ROPE_PROPORTIONAL] = 1U << NIB_ROPE_FACTOR};

static const unsigned used_by_all = 1U << NIB_ROPE_THETA | 1U << NIB_ROPE_PARTIAL;

/* ---- reading ---- */

static bool read_number(nib_rope_given *rope, int place, int number, nib_json *json)
{
    double value = 0;
    int64_t whole = 0;
    bool flag = false;
    const bool size = number == NIB_ROPE_ORIGINAL || number == NIB_ROPE_CONTEXT,
               truncate = number == NIB_ROPE_TRUNCATE;
    if (!(size       ? nib__config_count(json, &whole)
          : truncate ? nib__config_flag(json, &flag)
                     : nib__config_number(json, &value)))
        return false;
    if (json->event == NIB_JSON_NULL)
        return true;
    if (whole > CONTEXT_MAX) {
        nib__json_fail(json, "at most 2^30 positions are supported");
        return false;
    }
    rope->numbers[place][number] = size ? (double)whole : truncate ? flag : value;
    rope->given[place] |= 1U << number;
    return true;
}

bool nib__rope_read_number(nib_rope_given *rope, int number, nib_json *json)
{
    return read_number(rope, NIB_ROPE_TOP, number, json);
}

/* `type` is the older name of `rope_type`; some files have both. */
static bool read_type(nib_rope_given *rope, nib_json *json, nib_arena *arena)
{
    char a[32], b[32];
    if (nib__json_next(json) == NIB_JSON_NULL)
        return true;
    if (!nib__config_check_event(json, NIB_JSON_STRING))
        return false;
    char *type = nib__json_string(json, arena, NULL);
    if (type && rope->type && strcmp(type, rope->type) != 0) {
        nib__json_fail(json, "the rope type is given twice, as \"%s\" and as \"%s\"",
                       nib__escape_name(a, sizeof a, rope->type, strlen(rope->type)),
                       nib__escape_name(b, sizeof b, type, strlen(type)));
        return false;
    }
    rope->type = type;
    return type != NULL;
}

/* Factors of longrope, one per pair of channels. */
static bool read_list(nib_rope_list *list, nib_json *json, nib_arena *arena)
{
    float *values = NULL;
    int64_t room = 0;
    double value;
    if (nib__json_next(json) == NIB_JSON_NULL)
        return true;
    if (!nib__config_check_event(json, NIB_JSON_ARRAY))
        return false;
    for (list->count = 0; nib__json_next(json) == NIB_JSON_NUMBER; list->count++) {
        if (!nib__json_double(json, &value))
            return false;
        if (list->count == LIST_MAX) {
            nib__json_fail(json, "at most %d factors are supported", LIST_MAX);
            return false;
        }
        if (list->count == room) {
            const float *old = values;
            room = room == 0 ? 64 : 2 * room;
            values = nib__arena_take(arena, (uint64_t)room, sizeof *values);
            if (values == NULL) {
                nib__json_fail_memory(json, 256);
                return false;
            }
            if (old != NULL)
                memcpy(values, old, (size_t)list->count * sizeof *values);
        }
        values[list->count] = (float)value;
    }
    list->values = values;
    return nib__config_check_event(json, NIB_JSON_ARRAY_END);
}

/* Reads the object for one kind of layers inside rope_parameters. */
static bool read_kind(nib_rope_given *rope, int place, nib_json *json, nib_arena *arena)
{
    nib_rope_given *to = rope;
    if (nib__json_is(json, "sliding_attention"))
        to = rope->sliding = nib__arena_take(arena, 1, sizeof *rope->sliding);
    if (to == NULL) {
        nib__json_fail_memory(json, 256);
        return false;
    }
    to->inside = true;
    const bool read = nib__rope_read_object(to, place, json, arena);
    to->inside = false;
    return read;
}

bool nib__rope_read_object(nib_rope_given *rope, int place, nib_json *json, nib_arena *arena)
{
    char key[64];
    if (nib__json_next(json) == NIB_JSON_NULL)
        return true;
    if (!nib__config_check_event(json, NIB_JSON_OBJECT))
        return false;
    while (nib__json_next(json) == NIB_JSON_KEY) {
        int number = 0;
        if (!rope->inside && place == NIB_ROPE_PARAMETERS &&
            (nib__json_is(json, "full_attention") || nib__json_is(json, "sliding_attention"))) {
            if (!read_kind(rope, place, json, arena))
                return false;
            continue;
        }
        while (number < NIB_ROPE_NUMBERS && !nib__json_is(json, numbers[number]))
            number++;
        int list = 0;
        while (list < NIB_ROPE_LISTS && !nib__json_is(json, lists[list]))
            list++;
        const bool lists_sections = nib__json_is(json, "mrope_section");
        if (rope->sections && (lists_sections || nib__json_is(json, "mrope_interleaved"))) {
            if (lists_sections ? !read_list(&rope->section_list, json, arena)
                               : !nib__json_skip(json))
                return false;
            continue;
        }
        const bool type = nib__json_is(json, "rope_type") || nib__json_is(json, "type");
        if (!type && number == NIB_ROPE_NUMBERS && list == NIB_ROPE_LISTS)
            nib__json_fail(json, "the rope scaling key \"%s\" is unknown and may change the result",
                           nib__escape_name(key, sizeof key, json->token, json->token_size));
        if (json->event == NIB_JSON_ERROR ||
            !(type                    ? read_type(rope, json, arena)
              : list < NIB_ROPE_LISTS ? read_list(&rope->lists[place][list], json, arena)
                                      : read_number(rope, place, number, json)))
            return false;
    }
    return nib__config_check_event(json, NIB_JSON_OBJECT_END);
}

/* ---- precedence ---- */

static void report_number(nib_ledger *ledger, const nib_rope_given *rope, int place, int number,
                          const char *done, const char *text)
{
    char value[32], name[64];
    const bool top = place == NIB_ROPE_TOP;
    nib__format(value, sizeof value, "%.10g", rope->numbers[place][number]);
    snprintf(name, sizeof name, "%s%s%s", top ? "" : places[place], top ? "" : ".",
             numbers[number]);
    nib__ledger_add_overruled(ledger, "rope", name, value, done, "%s", text);
}

/* The number from the first place that has it; fallback: none has. For the original context the top
 * level comes first, as in transformers. */
static double resolve_number(const nib_rope_given *rope, int number, double fallback,
                             nib_ledger *ledger)
{
    const bool top_first = number == NIB_ROPE_ORIGINAL;
    int from = -1;
    char done[32], text[96];
    for (int i = 0; i < NIB_ROPE_PLACES; i++) {
        const int place = top_first ? NIB_ROPE_PLACES - 1 - i : i;
        if ((rope->given[place] & 1U << number) == 0)
            continue;
        const double value = rope->numbers[place][number];
        if (from < 0) {
            from = place;
        } else if (value != rope->numbers[from][number]) {
            nib__format(done, sizeof done, "%.10g", rope->numbers[from][number]);
            snprintf(text, sizeof text, "%s says %s and takes precedence", places[from], done);
            report_number(ledger, rope, place, number, done, text);
        }
    }
    return from < 0 ? fallback : rope->numbers[from][number];
}

/* ---- ranges ---- */

static nib_status fail_number(const nib_config *c, const char *name, int number, double value,
                              const char *wanted, nib_err *err)
{
    return nib__fail(err, NIB_BAD_INPUT, "%s: %s is %g; %s is expected for the rope type \"%s\"",
                     name, numbers[number], value, wanted, nib__rope_name(c->rope));
}

static nib_status check_yarn(const nib_config *c, const char *name, nib_err *err)
{
    if (!(c->rope_slow > 0))
        return fail_number(c, name, NIB_ROPE_SLOW, c->rope_slow, "a number above 0", err);
    if (!(c->rope_fast >= c->rope_slow) || !(c->rope_fast < LARGE))
        return fail_number(c, name, NIB_ROPE_FAST, c->rope_fast,
                           "a number of at least beta_slow and below 1e9", err);
    if (!(c->rope_theta > 1))
        return fail_number(c, name, NIB_ROPE_THETA, c->rope_theta, "a number above 1", err);
    return NIB_OK;
}

nib_status nib__rope_check(const nib_config *c, const char *name, nib_err *err)
{
    const bool has_original = c->rope == NIB_ROPE_YARN || c->rope == NIB_ROPE_LONGROPE;
    if (!(c->rope_theta > 0) || !(c->rope_theta < 1e18))
        return nib__fail(err, NIB_BAD_INPUT,
                         "%s: rope_theta is %g; a number above 0 and below 1e18 is expected", name,
                         c->rope_theta);
    if (c->rope != NIB_ROPE_PLAIN && !(c->rope_factor >= 1.0 && c->rope_factor < LARGE))
        return nib__fail(err, NIB_BAD_INPUT,
                         "%s: the rope scaling needs a factor of at least 1 and below 1e9, not %g",
                         name, c->rope_factor);
    if (c->rope == NIB_ROPE_LLAMA3 &&
        !(c->rope_low > 0 && c->rope_high >= c->rope_low && c->rope_original > 0))
        return nib__fail(
            err, NIB_BAD_INPUT,
            "%s: llama3 rope scaling needs 0 < low_freq_factor <= high_freq_factor and "
            "original_max_position_embeddings; they are %g, %g and %" PRId64,
            name, c->rope_low, c->rope_high, c->rope_original);
    if (has_original && (c->rope_original < 2 || c->rope_original > CONTEXT_MAX))
        return fail_number(c, name, NIB_ROPE_ORIGINAL, (double)c->rope_original,
                           "a number from 2 to 2^30", err);
    if (has_original && !(c->rope_gain > 0 && c->rope_gain <= GAIN_MAX))
        return fail_number(c, name, NIB_ROPE_GAIN, c->rope_gain,
                           "a number above 0 and at most 1000", err);
    return c->rope == NIB_ROPE_YARN ? check_yarn(c, name, err) : NIB_OK;
}

/* ---- applying ---- */

/* Whether config.json says nothing about RoPE. */
static bool is_absent(const nib_rope_given *rope)
{
    return rope->type == NULL && rope->given[NIB_ROPE_SCALING] == 0 &&
           rope->given[NIB_ROPE_PARAMETERS] == 0 && rope->given[NIB_ROPE_TOP] == 0;
}

/* Sets how many pairs of a head rotate; the others have frequency 0. */
static nib_status set_proportional(nib_config *c, double partial, const char *name, nib_err *err)
{
    const int64_t dims = nib__config_rope_dims(c);
    if (!(partial > 0 && partial <= 1))
        return nib__fail(err, NIB_BAD_INPUT,
                         "%s: partial_rotary_factor is %g; a number above 0 and at most 1 is "
                         "expected for the rope type \"%s\"",
                         name, partial, nib__rope_name(c->rope));
    c->rope_pairs = (int64_t)(partial * (double)dims / 2);
    return NIB_OK;
}

/* Sets the number of channels of a head that rotate. */
static nib_status set_partial(nib_config *c, const nib_rope_given *rope, const char *name,
                              nib_ledger *ledger, nib_err *err)
{
    const nib_family_row *family = nib__family_of(c);
    const bool own = family->absent.rope_partial > 0 && (!family->proportional || is_absent(rope));
    const double absent = own ? family->absent.rope_partial : 1,
                 partial = resolve_number(rope, NIB_ROPE_PARTIAL, absent, ledger),
                 dims = floor((double)c->head_dim * partial);
    if (c->rope == NIB_ROPE_PROPORTIONAL)
        return set_proportional(c, partial, name, err);
    if (partial == 1.0)
        return NIB_OK;
    if (!family->partial)
        return nib__fail(err, NIB_UNSUPPORTED,
                         "%s: partial_rotary_factor is %g; only 1 is supported for %s", name,
                         partial, nib__arch_name(c->arch));
    if (!(partial > 0 && partial < 1) || dims < 2 || fmod(dims, 2) != 0)
        return nib__fail(err, NIB_BAD_INPUT,
                         "%s: partial_rotary_factor %g of head_dim %" PRId64
                         " rotates %g channels of each head; 2, 4, 6, ... are expected",
                         name, partial, c->head_dim, dims);
    c->rope_dims = (int64_t)dims;
    return NIB_OK;
}

double nib__rope_yarn_gain(double factor, double mscale)
{
    return factor <= 1 ? 1 : 0.1 * mscale * nib__log(factor) + 1;
}

static bool is_given(const nib_rope_given *rope, int number)
{
    for (int place = 0; place < NIB_ROPE_PLACES; place++)
        if ((rope->given[place] & 1U << number) != 0)
            return true;
    return false;
}

static void report_given(nib_ledger *ledger, const nib_rope_given *rope, int number,
                         const char *done, const char *text)
{
    for (int place = 0; place < NIB_ROPE_PLACES; place++)
        if ((rope->given[place] & 1U << number) != 0)
            report_number(ledger, rope, place, number, done, text);
}

/* A number of yarn for which transformers treats 0 as absent. */
static double resolve_turns(const nib_rope_given *rope, int number, double fallback,
                            nib_ledger *ledger)
{
    const double value = resolve_number(rope, number, fallback, ledger);
    char done[32];
    if (value != 0)
        return value;
    nib__format(done, sizeof done, "%g", fallback);
    report_given(ledger, rope, number, done, "transformers treats 0 as absent");
    return fallback;
}

static void set_yarn(nib_config *c, const nib_rope_given *rope, nib_ledger *ledger)
{
    const double mscale = resolve_number(rope, NIB_ROPE_MSCALE, 0, ledger),
                 all = resolve_number(rope, NIB_ROPE_MSCALE_ALL, 0, ledger);
    const bool both = mscale != 0 && all != 0, gain = is_given(rope, NIB_ROPE_GAIN);
    const char *text = gain ? "attention_factor is given and takes precedence"
                            : "it has no effect unless mscale and mscale_all_dim are both given";
    if (mscale != 0 && (gain || !both))
        report_given(ledger, rope, NIB_ROPE_MSCALE, NULL, text);
    if (c->latent.rank > 0)
        c->latent.mscale = all;
    else if (all != 0 && (gain || !both))
        report_given(ledger, rope, NIB_ROPE_MSCALE_ALL, NULL, text);
    c->rope_fast = resolve_turns(rope, NIB_ROPE_FAST, 32, ledger);
    c->rope_slow = resolve_turns(rope, NIB_ROPE_SLOW, 1, ledger);
    c->rope_unrounded = resolve_number(rope, NIB_ROPE_TRUNCATE, 1, ledger) == 0;
    c->rope_gain = resolve_number(rope, NIB_ROPE_GAIN,
                                  both ? nib__rope_yarn_gain(c->rope_factor, mscale) /
                                             nib__rope_yarn_gain(c->rope_factor, all)
                                       : nib__rope_yarn_gain(c->rope_factor, 1),
                                  ledger);
}

static nib_status set_list(const float **out, const nib_config *c, const nib_rope_given *rope,
                           int list, const char *name, nib_ledger *ledger, nib_err *err)
{
    const nib_rope_list *scaling = &rope->lists[NIB_ROPE_SCALING][list],
                        *parameters = &rope->lists[NIB_ROPE_PARAMETERS][list],
                        *from = scaling->values != NULL ? scaling : parameters;
    const int64_t wanted = nib__config_rope_dims(c) / 2;
    char key[64];
    if (from->values == NULL)
        return nib__fail(err, NIB_BAD_INPUT,
                         "%s: %s is missing; the rope type \"longrope\" needs %" PRId64 " numbers",
                         name, lists[list], wanted);
    if (from->count != wanted)
        return nib__fail(err, NIB_BAD_INPUT,
                         "%s: %s has %" PRId64 " numbers; %" PRId64
                         " are expected, one for each pair of channels that rotates",
                         name, lists[list], from->count, wanted);
    for (int64_t i = 0; i < wanted; i++)
        if (!(from->values[i] > 0) || !(from->values[i] < LARGE))
            return nib__fail(err, NIB_BAD_INPUT,
                             "%s: %s[%" PRId64
                             "] is %g; a number above 0 and below 1e9 is expected",
                             name, lists[list], i, (double)from->values[i]);
    if (from == scaling && parameters->values != NULL &&
        (parameters->count != wanted ||
         memcmp(parameters->values, from->values, (size_t)wanted * sizeof *from->values) != 0)) {
        snprintf(key, sizeof key, "rope_parameters.%s", lists[list]);
        nib__ledger_add_overruled(ledger, "rope", key, NULL, NULL,
                                  "rope_scaling has other numbers and takes precedence");
    }
    *out = from->values;
    return NIB_OK;
}

static nib_status set_longrope(nib_config *c, const nib_rope_given *rope, const char *name,
                               nib_ledger *ledger, nib_err *err)
{
    const double original = (double)c->rope_original;
    double gain = 1;
    if ((rope->given[NIB_ROPE_SCALING] & 1U << NIB_ROPE_FACTOR) == 0 &&
        (rope->given[NIB_ROPE_PARAMETERS] & 1U << NIB_ROPE_FACTOR) == 0)
        c->rope_factor = fmax(1, (double)c->context / original);
    if (c->rope_factor > 1)
        gain = sqrt(1 + nib__log(c->rope_factor) / nib__log(original));
    c->rope_gain = resolve_number(rope, NIB_ROPE_GAIN, gain, ledger);
    NIB_TRY(set_list(&c->rope_short, c, rope, NIB_ROPE_SHORT, name, ledger, err));
    return set_list(&c->rope_long, c, rope, NIB_ROPE_LONG, name, ledger, err);
}

/* Sets the scaling of queries with their position. */
static nib_status set_query_beta(nib_config *c, const nib_rope_given *rope, const char *name,
                                 nib_ledger *ledger, nib_err *err)
{
    const double beta = resolve_number(rope, NIB_ROPE_BETA, 0, ledger);
    const bool built = nib__family_of(c)->scales_queries;
    if (!built && beta != 0)
        return nib__fail(err, NIB_UNSUPPORTED, "%s: " BETA_KEY " is %g; it is not supported for %s",
                         name, beta, nib__arch_name(c->arch));
    if (!built)
        return NIB_OK;
    if (!(beta >= 0 && beta <= BETA_MAX))
        return nib__fail(err, NIB_BAD_INPUT,
                         "%s: " BETA_KEY " is %g; a number from 0 to 10 is expected", name, beta);
    if (c->rope_original < 1)
        return nib__fail(err, NIB_BAD_INPUT,
                         "%s: original_max_position_embeddings of rope_parameters is missing; "
                         "%s scales queries by it",
                         name, nib__arch_name(c->arch));
    c->query_beta = beta;
    c->query_step = c->rope_original;
    return NIB_OK;
}

/* Reports numbers and lists that neither this kind of scaling nor the family uses. */
static void report_unused(const nib_config *c, const nib_rope_given *rope, nib_ledger *ledger)
{
    char text[96], key[64];
    const nib_family_row *family = nib__family_of(c);
    const unsigned queries = 1U << NIB_ROPE_BETA | 1U << NIB_ROPE_ORIGINAL,
                   /* models of such a family have it, scaled or not */
        original = family->only_longrope ? 1U << NIB_ROPE_ORIGINAL : 0,
                   reads = used[c->rope] | used_by_all | (family->scales_queries ? queries : 0) |
                           original;
    snprintf(text, sizeof text, "the rope type \"%s\" does not use it", nib__rope_name(c->rope));
    for (int n = 0; n < NIB_ROPE_NUMBERS; n++)
        for (int place = 0; place < NIB_ROPE_PLACES; place++) {
            const bool same =
                n == NIB_ROPE_CONTEXT && rope->numbers[place][n] == (double)c->context;
            if ((rope->given[place] & ~reads & 1U << n) != 0 && !same)
                report_number(ledger, rope, place, n, NULL, text);
        }
    for (int l = 0; l < NIB_ROPE_LISTS; l++)
        for (int place = 0; place < NIB_ROPE_TOP; place++) {
            if (c->rope == NIB_ROPE_LONGROPE || rope->lists[place][l].values == NULL)
                continue;
            snprintf(key, sizeof key, "%s.%s", places[place], lists[l]);
            nib__ledger_add_overruled(ledger, "rope", key, NULL, NULL, "%s", text);
        }
}

static nib_status find_kind(nib_config *c, const nib_rope_given *rope, const char *name,
                            nib_err *err)
{
    const bool own = nib__family_of(c)->proportional;
    const char *type = rope->type ? rope->type
                                  : nib__rope_name(own && is_absent(rope) ? NIB_ROPE_PROPORTIONAL
                                                                          : NIB_ROPE_PLAIN);
    const bool only_long = nib__family_of(c)->only_longrope;
    char shown[64];
    size_t kind = 0;
    if (only_long && (strcmp(type, "su") == 0 || strcmp(type, "yarn") == 0))
        type = nib__rope_name(NIB_ROPE_LONGROPE); /* older names of longrope in this family */
    while (kind < COUNT(used) && strcmp(type, nib__rope_name((nib_rope_kind)kind)) != 0)
        kind++;
    if (kind == COUNT(used) || (kind == NIB_ROPE_PROPORTIONAL && !own))
        return nib__fail(
            err, NIB_UNSUPPORTED,
            "%s: the type \"%s\" of rope_scaling is not supported; default, linear, llama3, yarn "
            "and longrope are",
            name, nib__escape_name(shown, sizeof shown, type, strlen(type)));
    if (only_long && kind != NIB_ROPE_PLAIN && kind != NIB_ROPE_LONGROPE)
        return nib__fail(
            err, NIB_UNSUPPORTED,
            "%s: the type \"%s\" of rope_scaling is not supported for %s; default and longrope are",
            name, type, nib__arch_name(c->arch));
    c->rope = (nib_rope_kind)kind;
    return NIB_OK;
}

/* Sets the second table, for families that have one. */
static nib_status set_sliding(nib_config *c, const nib_rope_given *rope, const char *name,
                              nib_err *err)
{
    const nib_rope_given *sliding = rope->sliding;
    const unsigned theta = 1U << NIB_ROPE_THETA;
    if (sliding == NULL)
        return NIB_OK;
    if (c->local_theta == 0)
        return nib__fail(err, NIB_UNSUPPORTED,
                         "%s: rope_parameters has an object for sliding_attention, but all layers "
                         "of %s use the same RoPE",
                         name, nib__arch_name(c->arch));
    const nib_rope_list *factors = sliding->lists[NIB_ROPE_PARAMETERS];
    if ((sliding->given[NIB_ROPE_PARAMETERS] & ~theta) != 0 ||
        factors[NIB_ROPE_SHORT].values != NULL || factors[NIB_ROPE_LONG].values != NULL ||
        (sliding->type != NULL && strcmp(sliding->type, nib__rope_name(NIB_ROPE_PLAIN)) != 0))
        return nib__fail(err, NIB_UNSUPPORTED,
                         "%s: rope_parameters scales sliding_attention; only rope_theta without "
                         "scaling is supported there",
                         name);
    if ((sliding->given[NIB_ROPE_PARAMETERS] & theta) != 0)
        c->local_theta = sliding->numbers[NIB_ROPE_PARAMETERS][NIB_ROPE_THETA];
    if (!(c->local_theta >= 1) || !(c->local_theta < 1e18))
        return nib__fail(err, NIB_BAD_INPUT,
                         "%s: rope_theta of sliding_attention is %g; a number of at least 1 and "
                         "below 1e18 is expected",
                         name, c->local_theta);
    return NIB_OK;
}

/* In some families the class has its own original context, which transformers uses unless
 * config.json has one at its top level. */
static void set_original(nib_config *c, const nib_rope_given *rope, nib_ledger *ledger)
{
    const int64_t own = nib__family_of(c)->absent.original;
    const bool has_original = c->rope == NIB_ROPE_YARN || c->rope == NIB_ROPE_LONGROPE;
    const unsigned original = 1U << NIB_ROPE_ORIGINAL;
    char done[32];
    c->rope_original = (int64_t)resolve_number(
        rope, NIB_ROPE_ORIGINAL, has_original ? (double)(own > 0 ? own : c->context) : 0, ledger);
    if (!has_original || own == 0 || (rope->given[NIB_ROPE_TOP] & original) != 0 ||
        c->rope_original == own)
        return;
    snprintf(done, sizeof done, "%" PRId64, own);
    for (int place = 0; place < NIB_ROPE_TOP; place++)
        if ((rope->given[place] & original) != 0)
            report_number(
                ledger, rope, place, NIB_ROPE_ORIGINAL, done,
                "config.json has none at its top level, so transformers uses the class's");
    c->rope_original = own;
}

/* Keeps mrope_section, which is the same in text: another file of the model needs it. */
static nib_status set_sections(nib_config *c, const nib_rope_given *rope, const char *name,
                               nib_err *err)
{
    const nib_rope_list *list = &rope->section_list;
    if (list->count > NIB_ROPE_SECTIONS)
        return nib__fail(err, NIB_BAD_INPUT,
                         "%s: mrope_section has %" PRId64 " numbers; at most %d are expected", name,
                         list->count, NIB_ROPE_SECTIONS);
    for (int64_t i = 0; i < list->count; i++) {
        const double pairs = (double)list->values[i];
        if (!(pairs >= 0 && pairs <= 1 << 16) || pairs != floor(pairs))
            return nib__fail(err, NIB_BAD_INPUT,
                             "%s: mrope_section has %g; a number of pairs from 0 to %d is expected",
                             name, pairs, 1 << 16);
        c->rope_sections[i] = (int64_t)pairs;
    }
    return NIB_OK;
}

nib_status nib__rope_apply(nib_config *c, const nib_rope_given *rope, const char *name,
                           nib_ledger *ledger, nib_err *err)
{
    NIB_TRY(set_sliding(c, rope, name, err));
    NIB_TRY(find_kind(c, rope, name, err));
    c->rope_factor =
        resolve_number(rope, NIB_ROPE_FACTOR, c->rope == NIB_ROPE_PROPORTIONAL ? 1 : 0, ledger);
    c->rope_low = resolve_number(rope, NIB_ROPE_LOW, 0, ledger);
    c->rope_high = resolve_number(rope, NIB_ROPE_HIGH, 0, ledger);
    set_original(c, rope, ledger);
    c->rope_theta = resolve_number(rope, NIB_ROPE_THETA, c->rope_theta, ledger);
    NIB_TRY(set_partial(c, rope, name, ledger, err));
    NIB_TRY(set_query_beta(c, rope, name, ledger, err));
    NIB_TRY(set_sections(c, rope, name, err));
    if (c->rope == NIB_ROPE_YARN)
        set_yarn(c, rope, ledger);
    if (c->rope == NIB_ROPE_LONGROPE && c->rope_original > 1)
        NIB_TRY(set_longrope(c, rope, name, ledger, err));
    report_unused(c, rope, ledger);
    return nib__rope_check(c, name, err);
}

void nib__rope_report_context(const nib_config *c, int64_t context, nib_ledger *ledger)
{
    char asked[64], text[32];
    if (c->rope != NIB_ROPE_LONGROPE || context <= c->rope_original)
        return;
    snprintf(text, sizeof text, "%" PRId64, c->rope_original);
    snprintf(asked, sizeof asked, "up to %s positions", text);
    nib__ledger_add_setting(ledger,
                            &(nib_ledger_setting){.code = "rope",
                                                  .name = "short_factor",
                                                  .asked = asked,
                                                  .done = "long_factor",
                                                  .by = NIB_BY_CONFIG,
                                                  .relation = NIB_SETTING_OTHER},
                            "the context of %" PRId64 " is longer than %s, so every position "
                            "rotates by long_factor; transformers changes to it once a text "
                            "passes %s; for shorter texts use --context %s",
                            context, text, text, text);
}

void nib__rope_find_proportional(nib_config *c, int64_t pairs)
{
    int64_t rotates = 0, i;
    while (c->rope_divisors != NULL && rotates < pairs && c->rope_divisors[rotates] == 1.0f)
        rotates++;
    for (i = rotates; c->rope_divisors != NULL && i < pairs && c->rope_divisors[i] >= 1e30f;)
        i++;
    if (c->rope_divisors == NULL || rotates == 0 || i < pairs)
        return;
    c->rope = NIB_ROPE_PROPORTIONAL;
    c->rope_pairs = rotates;
    c->rope_factor = 1;
    c->rope_divisors = NULL;
}
